/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that load and unload LoRA adapters; paths, fields and replies are vLLM's. The engine
 * reads the folder, so the path is one of its machine. */
#include <string.h>
#include "frontend/api/app.h"
#include "frontend/api/json.h"

struct adapter_request {
    const char *name, *path; /* borrowed from the body; NULL: not given */
    bool in_place;
};

static enum q_code read_text(const char **out, const char *key, const json_t *v, struct q_err *e)
{
    if (!json_is_string(v) || !json_string_length(v))
        return q_fail(e, Q_INVALID, "%s: expected a text, got %s", key,
                      json_is_string(v) ? "an empty one" : json_kind(v));
    *out = json_string_value(v);
    return Q_OK;
}

static enum q_code read_flag(bool *out, const char *key, const json_t *v, struct q_err *e)
{
    if (!json_is_boolean(v))
        return q_fail(e, Q_INVALID, "%s: expected true or false, got %s", key, json_kind(v));
    *out = json_is_true(v);
    return Q_OK;
}

/* Errors: Q_INVALID, begins with the field's name. */
static enum q_code read_fields(struct adapter_request *r, json_t *body, bool loads, struct q_err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach (body, key, v) {
        enum q_code rc = Q_OK;
        if (json_is_null(v))
            continue;
        if (!strcmp(key, "lora_name"))
            rc = read_text(&r->name, key, v, e);
        else if (loads && !strcmp(key, "lora_path"))
            rc = read_text(&r->path, key, v, e);
        else if (loads && !strcmp(key, "load_inplace"))
            rc = read_flag(&r->in_place, key, v, e);
        else if (loads || strcmp(key, "lora_int_id") != 0) /* vLLM's, without a meaning here */
            rc = q_fail(e, Q_INVALID, "%.60s: unknown field; accepted are lora_name%s", key,
                        loads ? ", lora_path and load_inplace" : "");
        if (rc)
            return rc;
    }
    if (!r->name)
        return q_fail(e, Q_INVALID, "lora_name: is missing");
    if (loads && !r->path)
        return q_fail(e, Q_INVALID, "lora_path: is missing");
    return Q_OK;
}

/* Requests with such a name are the model's, so none would reach the adapter. */
static enum q_code check_name(const struct app *a, const char *name, struct q_err *e)
{
    struct q_err other = Q_ERR_INIT;
    return served_model_check_name(&a->served, name, &other)
               ? Q_OK
               : q_fail(e, Q_INVALID, "lora_name: \"%.200s\" is a name of the served model", name);
}

static void change(struct app *a, struct http_exchange *x, enum engine_command_kind kind)
{
    const bool loads = kind == ENGINE_COMMAND_LOAD_ADAPTER;
    struct http_text text = http_body(x);
    struct adapter_request r = {NULL, NULL, false};
    struct q_err e = Q_ERR_INIT;
    json_t *body = NULL;
    enum q_code rc = json_body(&body, text.data, text.n, &e);
    const bool parsed = rc == Q_OK;
    if (parsed)
        rc = read_fields(&r, body, loads, &e);
    if (!rc && loads)
        rc = check_name(a, r.name, &e);
    if (rc == Q_OK) {
        struct msg_command m = {
            .kind = kind,
            .name = {r.name, strlen(r.name)},
            .path = {r.path, r.path ? strlen(r.path) : 0},
            .in_place = r.in_place,
        };
        control_order(a, x, &m);
    } else {
        char param[64];
        snprintf(param, sizeof param, "%.*s", (int)strcspn(e.message, ":"), e.message);
        app_reply_error(x, &e, parsed ? param : NULL);
    }
    json_decref(body);
}

void on_load_lora_adapter(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_load_lora_adapter))
        change(app, x, ENGINE_COMMAND_LOAD_ADAPTER);
}

void on_unload_lora_adapter(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_unload_lora_adapter))
        change(app, x, ENGINE_COMMAND_UNLOAD_ADAPTER);
}
