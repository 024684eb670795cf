/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/json.h"

#include <math.h>
#include <stdbool.h>

/* Depth and value count of JSON text, or an upper bound on them where it is malformed (the parser
 * will say so). */
static enum q_code check_size(const char *text, size_t n, struct q_err *e)
{
    size_t n_value = 1;
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"')
            in_string = true;
        else if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        n_value += c == ',' || c == '[' || c == '{';
        if (depth > JSON_DEPTH_MAX)
            return q_fail(e, Q_TOO_LARGE, "the JSON body is nested deeper than %d", JSON_DEPTH_MAX);
        if (n_value > JSON_VALUES_MAX)
            return q_fail(e, Q_TOO_LARGE, "the JSON body has more than %u values", JSON_VALUES_MAX);
    }
    return Q_OK;
}

FALLIBLE json_body(json_t **out, const char *text, size_t n, struct q_err *e)
{
    json_error_t error;
    enum q_code rc;
    *out = NULL;
    if (n == 0)
        return q_fail(e, Q_INVALID, "the request has no body; expected a JSON object");
    if ((rc = check_size(text, n, e)) != Q_OK)
        return rc;
    json_t *v = json_loadb(text, n, JSON_ALLOW_NUL, &error);
    if (!v)
        return q_fail(e, Q_INVALID, "the body is not valid JSON: line %d, column %d: %s",
                      error.line, error.column, error.text);
    if (!json_is_object(v)) {
        json_decref(v);
        return q_fail(e, Q_INVALID, "the body must be a JSON object, got an array");
    }
    *out = v;
    return Q_OK;
}

const char *json_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static int add_piece(const char *data, size_t n, void *out)
{
    buf_add(out, data, n);
    return 0;
}

void json_add(struct buf *out, const json_t *v)
{
    if (json_dump_callback(v, add_piece, out, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        out->failed = Q_NO_MEMORY;
}

void json_add_logprob(struct buf *out, float v)
{
    buf_printf(out, "%.9g", isfinite(v) ? (double)v : -9999.0);
}
