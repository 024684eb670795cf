/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/json.h"
#include <string.h>
#include "common/json_read.h"

enum q_code tok_json_bad(const json_t *found, const char *at, const char *key, const char *want,
                         struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.%s: expected %s, found %s", at, key, want,
                  json_kind(found));
}

enum q_code tok_json_str(const json_t *o, const char *key, const char *at, struct tok_str *s,
                         struct q_err *e)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v))
        return tok_json_bad(v, at, key, "a string", e);
    s->s = json_string_value(v);
    s->n = json_string_length(v);
    return Q_OK;
}

enum q_code tok_json_bool(const json_t *o, const char *key, const char *at, bool *out,
                          struct q_err *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return Q_OK;
    if (!json_is_boolean(v))
        return tok_json_bad(v, at, key, "true or false", e);
    *out = json_is_true(v);
    return Q_OK;
}

enum q_code tok_json_id(const json_t *v, const char *at, const char *key, uint32_t *out,
                        struct q_err *e)
{
    if (!json_is_integer(v))
        return tok_json_bad(v, at, key, "a token id", e);
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= (json_int_t)TOK_ID_MAX)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.%s: token id %lld is not in 0..%u", at, key,
                      (long long)id, TOK_ID_MAX - 1);
    *out = (uint32_t)id;
    return Q_OK;
}

enum q_code tok_json_parse(json_t **out, struct tok_str json, const char *name, struct q_err *e)
{
    json_error_t why;
    /* tokenizer_config.json often holds 10^30, written out, for "no limit" */
    size_t flags = JSON_ALLOW_NUL | (strcmp(name, CONFIG_NAME) == 0 ? JSON_DECODE_INT_AS_REAL : 0);
    *out = json_read_bytes(json.s, json.n, flags, &why);
    if (*out)
        return Q_OK;
    if (json_error_code(&why) == json_error_out_of_memory ||
        !why.text[0]) /* it says nothing then */
        return q_fail(e, Q_NO_MEMORY, "out of memory reading %s", name);
    return q_fail(e, Q_CORRUPT, "%s: line %d, column %d: %.120s", name, why.line, why.column,
                  why.text);
}
