/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/batch_line.h"

#include <openssl/rand.h>
#include <string.h>
#include "common/json_read.h"
#include "common/mem.h"
#include "frontend/api/json.h"

static FALLIBLE take_string(const char **out, const json_t *v, const char *key, struct q_err *e)
{
    const json_t *found = json_object_get(v, key);
    if (!found)
        return q_fail(e, Q_INVALID, "%s: is missing", key);
    if (!json_is_string(found))
        return q_fail(e, Q_INVALID, "%s: expected a string, got %s", key, json_kind(found));
    *out = json_string_value(found);
    return Q_OK;
}

static FALLIBLE take_id(struct batch_line *out, const json_t *v, struct q_err *e)
{
    const char *id = NULL;
    enum q_code rc = take_string(&id, v, "custom_id", e);
    if (rc)
        return rc;
    size_t n = json_string_length(json_object_get(v, "custom_id"));
    if (n == 0 || n > BATCH_ID_MAX || strlen(id) != n)
        return q_fail(e, Q_INVALID, "custom_id: expected 1 to %u bytes without NUL, got %zu bytes",
                      BATCH_ID_MAX, n);
    out->custom_id = q_strdup(id);
    return out->custom_id ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for a line");
}

#define URLS_ACCEPTED                                                                             \
    "/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /pooling, /classify, " \
    "/v1/score (or /score) and /v1/rerank (or /rerank, /v2/rerank)"

static FALLIBLE take_url(struct batch_line *out, const char *url, struct q_err *e)
{
    static const char *const later[] = {"/v1/moderations", "/v1/audio/transcriptions",
                                        "/v1/audio/translations"};
    static const struct {
        const char *path;
        enum batch_url is;
    } urls[] = {
        {"/v1/chat/completions", BATCH_CHAT},
        {"/v1/completions", BATCH_COMPLETIONS},
        {"/v1/responses", BATCH_RESPONSES},
        {"/v1/embeddings", BATCH_EMBEDDINGS},
        {"/pooling", BATCH_POOLING},
        {"/classify", BATCH_CLASSIFY},
        {"/score", BATCH_SCORE},
        {"/v1/score", BATCH_SCORE},
        {"/rerank", BATCH_RERANK},
        {"/v1/rerank", BATCH_RERANK},
        {"/v2/rerank", BATCH_RERANK},
    };
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        if (!strcmp(url, urls[i].path)) {
            out->url = urls[i].is;
            return Q_OK;
        }
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (!strcmp(url, later[i]))
            return q_fail(e, Q_UNSUPPORTED, "url: %s is not supported; accepted are %s", url,
                          URLS_ACCEPTED);
    return q_fail(e, Q_INVALID, "url: unknown endpoint \"%s\"; accepted are %s", url,
                  URLS_ACCEPTED);
}

static FALLIBLE take_body(struct batch_line *out, const json_t *body, const char *where,
                          struct q_err *e)
{
    if (json_is_true(json_object_get(body, "stream")))
        return q_fail(e, Q_UNSUPPORTED,
                      "%sstream: streaming is not possible in a batch; remove the field", where);
    json_add(&out->body, body);
    return buf_check(&out->body, "body", e);
}

static FALLIBLE take_request(struct batch_line *out, const json_t *v, struct q_err *e)
{
    const char *method = NULL, *url = NULL;
    const json_t *body = json_object_get(v, "body");
    enum q_code rc;
    if ((rc = take_id(out, v, e)) || (rc = take_string(&method, v, "method", e)) ||
        (rc = take_string(&url, v, "url", e)))
        return rc;
    if (strcmp(method, "POST") != 0)
        return q_fail(e, Q_INVALID, "method: is \"%.20s\", expected POST", method);
    if ((rc = take_url(out, url, e)))
        return rc;
    if (!json_is_object(body))
        return q_fail(e, Q_INVALID, "body: expected an object, got %s", json_kind(body));
    return take_body(out, body, "body.", e);
}

/* A prompt as a conversation. */
static FALLIBLE ask_prompt(json_t *body, struct q_err *e)
{
    json_t *messages =
        json_pack("[{s:s,s:O}]", "role", "user", "content", json_object_get(body, "prompt"));
    if (!messages || json_object_set_new(body, "messages", messages) != 0 ||
        json_object_del(body, "prompt") != 0)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a line");
    return Q_OK;
}

/* A line that is a body alone; the object is modified. */
static FALLIBLE take_bare(struct batch_line *out, const struct batch_form *f, json_t *v,
                          struct q_err *e)
{
    enum q_code rc = Q_OK;
    char name[32];
    snprintf(name, sizeof name, "line-%llu", (unsigned long long)f->n_line);
    bool named = json_object_get(v, "custom_id");
    if ((rc = named ? take_id(out, v, e) : Q_OK))
        return rc;
    if (!named && !(out->custom_id = q_strdup(name)))
        return q_fail(e, Q_NO_MEMORY, "out of memory for a line");
    json_object_del(v, "custom_id");
    bool asks = json_object_get(v, "messages");
    if (asks && f->raw)
        return q_fail(e, Q_INVALID,
                      "messages: not accepted with --raw, which requires plain prompts");
    if (!asks && f->broken && json_is_string(json_object_get(v, "prompt")))
        return q_fail(
            e, Q_CORRUPT,
            "%s; use --raw for prompts as plain text, or --chat-template FILE for a chat template",
            f->broken);
    if (!asks && f->chats && json_is_string(json_object_get(v, "prompt"))) {
        asks = true;
        rc = ask_prompt(v, e);
    }
    out->url = asks ? BATCH_CHAT : BATCH_COMPLETIONS;
    return rc ? rc : take_body(out, v, "", e);
}

/* Is the object a body alone: no member of the envelope, and a member of a body? */
static bool is_bare(const json_t *v)
{
    return !json_object_get(v, "url") && !json_object_get(v, "method") &&
           !json_object_get(v, "body") &&
           (json_object_get(v, "messages") || json_object_get(v, "prompt"));
}

FALLIBLE batch_line_read(struct batch_line *out, const struct batch_form *f, const char *text,
                         size_t n, struct q_err *e)
{
    json_t *v = NULL;
    *out = (struct batch_line)BATCH_LINE_INIT;
    enum q_code rc = json_body(&v, text, n, e);
    if (rc)
        rc = q_wrap(e, "cannot read the line");
    else
        rc = is_bare(v) ? take_bare(out, f, v, e) : take_request(out, v, e);
    json_decref(v);
    return rc;
}

void batch_line_release(struct batch_line *l)
{
    q_free(l->custom_id);
    buf_release(&l->body);
    l->custom_id = NULL;
}

static void add_head(struct buf *out, const char *custom_id)
{
    unsigned char random[16];
    if (RAND_bytes(random, sizeof random) != 1)
        memset(random, 0, sizeof random); /* an id for the log; uniqueness is not required */
    buf_add_str(out, "{\"id\":\"batch_req_");
    for (size_t i = 0; i < sizeof random; i++)
        buf_printf(out, "%02x", random[i]);
    buf_add_str(out, "\",\"custom_id\":");
    if (custom_id)
        buf_add_json_str(out, custom_id, strlen(custom_id));
    else
        buf_add_str(out, "null");
}

void batch_answer_line(struct buf *out, const char *custom_id, const struct batch_answer *a)
{
    add_head(out, custom_id);
    buf_printf(out, ",\"response\":{\"status_code\":%d,\"request_id\":", a->status);
    buf_add_json_str(out, a->request_id, strlen(a->request_id));
    buf_add_str(out, ",\"body\":");
    buf_add(out, a->body->data, a->body->len);
    buf_add_str(out, "},\"error\":null}\n");
}

void batch_error_line(struct buf *out, const char *custom_id, const struct batch_error *error)
{
    add_head(out, custom_id);
    buf_printf(out, ",\"response\":null,\"error\":{\"code\":\"%s\",\"message\":", error->code);
    buf_add_json_str(out, error->message, strlen(error->message));
    buf_printf(out, ",\"line\":%llu}}\n", (unsigned long long)error->line);
}

static FALLIBLE take_done(struct batch_done *out, const json_t *v, struct q_err *e)
{
    const json_t *id = json_object_get(v, "custom_id"), *error = json_object_get(v, "error");
    const json_t *line = json_object_get(error, "line");
    const char *code = json_string_value(json_object_get(error, "code"));
    if (!json_object_get(v, "response") || !error)
        return q_fail(e, Q_CORRUPT, "no \"response\" and \"error\"");
    if (!json_is_string(id) && !(json_is_null(id) && json_is_integer(line)))
        return q_fail(e, Q_CORRUPT, "no \"custom_id\"");
    const json_t *status = json_object_get(json_object_get(v, "response"), "status_code");
    out->failed = json_integer_value(status) != 200;
    out->duplicate = code && !strcmp(code, BATCH_DUPLICATE);
    out->line = json_is_integer(line) ? (uint64_t)json_integer_value(line) : 0;
    if (!json_is_string(id))
        return Q_OK;
    out->custom_id = q_strdup(json_string_value(id));
    return out->custom_id ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for a line");
}

FALLIBLE batch_done_read(struct batch_done *out, const char *text, size_t n, struct q_err *e)
{
    *out = (struct batch_done){.custom_id = NULL};
    json_t *v = json_read_bytes(text, n, JSON_ALLOW_NUL, NULL);
    enum q_code rc =
        json_is_object(v) ? take_done(out, v, e) : q_fail(e, Q_CORRUPT, "expected a JSON object");
    json_decref(v);
    return rc;
}
