/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/hub_json.h"
#include <ctype.h>
#include <string.h>
#include "common/download.h"
#include "common/file.h"
#include "common/json_read.h"
#include "common/parse.h"

static size_t number_length(const char *data, size_t n)
{
    size_t i = 0;
    while (i < n && data[i] && strchr("0123456789.eE+-", data[i]))
        i++;
    return i;
}

/* Python writes numbers that JSON or jansson has not; true: there are some, and *out has null in
 * the place of infinities and NaN, and floats in that of whole numbers of more than 64 bits. */
static bool without_such_numbers(struct buf *out, const char *data, size_t n)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool any = false, in_string = false;
    for (size_t i = 0; i < n; i++) {
        size_t n_word = 0;
        for (size_t k = 0; k < sizeof words / sizeof *words && !in_string && !n_word; k++)
            if (n - i >= strlen(words[k]) && memcmp(data + i, words[k], strlen(words[k])) == 0)
                n_word = strlen(words[k]);
        if (n_word) {
            buf_add_str(out, "null");
            i += n_word - 1;
            any = true;
            continue;
        }
        if (!in_string && isdigit((unsigned char)data[i])) {
            const size_t n_number = number_length(data + i, n - i);
            const bool far = parse_exceeds_i64(data + i, n_number);
            buf_add(out, data + i, n_number);
            buf_add_str(out, far ? "e0" : "");
            i += n_number - 1;
            any = any || far;
            continue;
        }
        buf_add_char(out, data[i]);
        if (in_string && data[i] == '\\' && i + 1 < n)
            buf_add_char(out, data[++i]);
        else if (data[i] == '"')
            in_string = !in_string;
    }
    return any;
}

static bool may_be_such_number(const json_error_t *why)
{
    return json_error_code(why) == json_error_invalid_syntax ||
           json_error_code(why) == json_error_numeric_overflow;
}

enum q_code hub_json_parse(json_t **out, const char *data, size_t n, const char *what,
                           struct q_err *e)
{
    json_error_t why;
    bool failed = false;
    json_t *root = json_read_bytes(data, n, JSON_REJECT_DUPLICATES, &why);
    if (!root && may_be_such_number(&why)) {
        struct buf text = BUF_INIT;
        const bool any = without_such_numbers(&text, data, n);
        failed = text.failed;
        if (any && !failed)
            root = json_read_bytes(buf_str(&text), text.len, JSON_REJECT_DUPLICATES, &why);
        buf_release(&text);
    }
    if (failed || (!root && json_error_code(&why) == json_error_out_of_memory))
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory reading JSON", what);
    if (!root)
        return q_fail(e, Q_CORRUPT, "%s: not valid JSON at line %d, column %d: %s", what, why.line,
                      why.column, why.text);
    if (!json_is_object(root)) {
        enum q_code rc =
            q_fail(e, Q_CORRUPT, "%s: found %s, expected a JSON object", what, hub_json_kind(root));
        json_decref(root);
        return rc;
    }
    *out = root;
    return Q_OK;
}

enum q_code hub_json_load(json_t **out, const char *path, struct q_err *e)
{
    struct buf text = BUF_INIT;
    enum q_code rc = file_read(&text, path, HUB_JSON_FILE_MAX, e);
    if (!rc && !(rc = download_check(text.data, text.len, path, e)))
        rc = hub_json_parse(out, buf_str(&text), text.len, path, e);
    buf_release(&text);
    return rc;
}

const json_t *hub_json_find(const struct hub_json_at *at, const char *key)
{
    const json_t *v = json_object_get(at->object, key);
    return json_is_null(v) ? NULL : v;
}

const char *hub_json_kind(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "nothing";
    }
}

static enum q_code fail_kind(const struct hub_json_at *at, const char *key, const json_t *v,
                             const char *expected, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected %s", at->path, key, hub_json_kind(v),
                  expected);
}

enum q_code hub_json_int(int64_t *out, const struct hub_json_at *at, const char *key,
                         struct hub_json_range r, struct q_err *e)
{
    const json_t *v = hub_json_find(at, key);
    if (!v)
        return Q_OK;
    if (!json_is_integer(v))
        return fail_kind(at, key, v, "a whole number", e);
    json_int_t n = json_integer_value(v);
    if ((double)n < r.min || (double)n > r.max)
        return q_fail(e, Q_CORRUPT, "%s: %s is %lld, expected %.0f to %.0f", at->path, key,
                      (long long)n, r.min, r.max);
    *out = n;
    return Q_OK;
}

enum q_code hub_json_number(double *out, const struct hub_json_at *at, const char *key,
                            struct hub_json_range r, struct q_err *e)
{
    const json_t *v = hub_json_find(at, key);
    if (!v)
        return Q_OK;
    if (!json_is_number(v))
        return fail_kind(at, key, v, "a number", e);
    double n = json_number_value(v);
    if (!(n >= r.min && n <= r.max))
        return q_fail(e, Q_CORRUPT, "%s: %s is %g, expected %g to %g", at->path, key, n, r.min,
                      r.max);
    *out = n;
    return Q_OK;
}

enum q_code hub_json_bool(bool *out, const struct hub_json_at *at, const char *key, struct q_err *e)
{
    const json_t *v = hub_json_find(at, key);
    if (!v)
        return Q_OK;
    if (!json_is_boolean(v))
        return fail_kind(at, key, v, "true or false", e);
    *out = json_boolean_value(v);
    return Q_OK;
}

enum q_code hub_json_str(const char **out, const struct hub_json_at *at, const char *key,
                         struct q_err *e)
{
    const json_t *v = hub_json_find(at, key);
    if (!v)
        return Q_OK;
    if (!json_is_string(v))
        return fail_kind(at, key, v, "a string", e);
    *out = json_string_value(v);
    return Q_OK;
}
