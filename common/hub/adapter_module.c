/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/adapter_module.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "common/json_read.h"

static enum q_code set_text(char *out, size_t size, const char *text, size_t n, struct q_err *e)
{
    if (n == 0 || n >= size)
        return q_fail(e, Q_INVALID,
                      "--lora-modules: a name or a path is empty or has more than %zu bytes",
                      size - 1);
    snprintf(out, size, "%.*s", (int)n, text);
    return Q_OK;
}

FALLIBLE adapter_module_set(struct adapter_module *m, const char *name, size_t n_name,
                            const char *path, struct q_err *e)
{
    const enum q_code rc = set_text(m->name, sizeof m->name, name, n_name, e);
    return rc ? rc : set_text(m->path, sizeof m->path, path, strlen(path), e);
}

static enum q_code parse_json(struct adapter_module *m, const char *text, struct q_err *e)
{
    json_error_t error;
    json_t *root = json_read_string(text, JSON_REJECT_DUPLICATES, &error), *v;
    const char *key, *name = NULL, *path = NULL;
    enum q_code rc = Q_OK;
    if (!root)
        return q_fail(e, Q_INVALID, "--lora-modules %.100s: is no JSON: %.100s", text, error.text);
    json_object_foreach (root, key, v) {
        const bool known = !strcmp(key, "name") || !strcmp(key, "path");
        const bool base = !strcmp(key, "base_model_name"); /* vLLM's: for display */
        if ((!known && !base) || (!json_is_string(v) && !(base && json_is_null(v)))) {
            rc = q_fail(e, Q_INVALID,
                        "--lora-modules %.100s: \"%.40s\" is not accepted; expected texts name "
                        "and path",
                        text, key);
            break;
        }
        name = !strcmp(key, "name") ? json_string_value(v) : name;
        path = !strcmp(key, "path") ? json_string_value(v) : path;
    }
    if (!rc && (!name || !path))
        rc = q_fail(e, Q_INVALID, "--lora-modules %.100s: expected an object with name and path",
                    text);
    if (!rc)
        rc = adapter_module_set(m, name, strlen(name), path, e);
    json_decref(root);
    return rc;
}

FALLIBLE adapter_module_parse(struct adapter_module *m, const char *text, struct q_err *e)
{
    const char *equal = strchr(text, '=');
    if (*text == '{')
        return parse_json(m, text, e);
    if (!equal)
        return q_fail(e, Q_INVALID,
                      "--lora-modules is \"%.100s\", expected NAME=PATH or "
                      "{\"name\": …, \"path\": …}",
                      text);
    return adapter_module_set(m, text, (size_t)(equal - text), equal + 1, e);
}

static bool is_served(const struct options *o, const struct model_names *model, const char *name)
{
    for (size_t i = 0; i < o->served_model_name.n; i++)
        if (!strcmp(o->served_model_name.items[i], name))
            return true;
    return !o->served_model_name.n && model_names_have(model, name);
}

FALLIBLE adapter_modules_check(const struct options *o, const struct model_names *model,
                               struct q_err *e)
{
    struct adapter_module m;
    enum q_code rc;
    for (size_t i = 0; i < o->lora_modules.n; i++) {
        if (!*o->lora_modules.items[i])
            continue;
        if ((rc = adapter_module_parse(&m, o->lora_modules.items[i], e)))
            return rc;
        if (is_served(o, model, m.name))
            return q_fail(e, Q_INVALID,
                          "--lora-modules: \"%s\" is a name of the served model, so no request "
                          "would reach the adapter; give the adapter another name%s",
                          m.name, o->served_model_name.n ? "" : ", or set --served-model-name");
    }
    return Q_OK;
}
