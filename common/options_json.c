/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <string.h>
#include "common/json_read.h"
#include "common/mem.h"
#include "common/options_internal.h"

#define DEPTH_MAX 16 /* keys of a path */

/* The object of a JSON option; a new object if none was given. */
static FALLIBLE read_object(json_t **out, const char *flag, const char *text, struct q_err *e)
{
    json_error_t at;
    *out = *text ? json_read_string(text, 0, &at) : json_object();
    if (!*out)
        return *text ? q_fail(e, Q_INVALID, "%s is not valid JSON: line %d, column %d: %s", flag,
                              at.line, at.column, at.text)
                     : q_fail(e, Q_NO_MEMORY, "%s: out of memory", flag);
    if (json_is_object(*out))
        return Q_OK;
    json_decref(*out);
    *out = NULL;
    return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a JSON object such as {\"key\": value, …}",
                  flag, text);
}

/* A value that is valid JSON is used as JSON, any other as a string: 4, true, [1, 2], ngram. */
static json_t *value_of(const char *text, size_t n)
{
    json_t *v = json_read_bytes(text, n, JSON_DECODE_ANY, NULL);
    return v ? v : json_stringn(text, n);
}

/* Append the items of "a,b" to the array under the key. */
static FALLIBLE append(json_t *object, const char *key, const char *text, struct q_err *e)
{
    json_t *array = json_object_get(object, key);
    if (!array && json_object_set_new(object, key, json_array()) == 0)
        array = json_object_get(object, key);
    if (!json_is_array(array))
        return q_fail(e, Q_INVALID, "%s is not an array", key);
    for (size_t n = 0; *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        if (json_array_append_new(array, value_of(text, n)) != 0)
            return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not UTF-8", key, text);
    }
    return Q_OK;
}

static FALLIBLE set_path(json_t *object, const struct option_target *t, const char *value,
                         struct q_err *e)
{
    char path[256], *key = path, *dot;
    if (t->n_path == 0 || t->n_path >= sizeof path)
        return q_fail(e, Q_INVALID, "expected a key of 1 to %zu bytes after the dot",
                      sizeof path - 1);
    memcpy(path, t->path, t->n_path);
    path[t->n_path] = '\0';
    for (int depth = 0; (dot = strchr(key, '.')); key = dot + 1) {
        *dot = '\0';
        if (++depth > DEPTH_MAX)
            return q_fail(e, Q_INVALID, "more than %d keys", DEPTH_MAX);
        json_t *inner = json_object_get(object, key);
        if (!inner && json_object_set_new(object, key, json_object()) == 0)
            inner = json_object_get(object, key);
        if (!json_is_object(inner))
            return q_fail(e, Q_INVALID, "%s is not an object", key);
        object = inner;
    }
    size_t n = strlen(key);
    if (n > 1 && key[n - 1] == '+') {
        key[n - 1] = '\0';
        return append(object, key, value, e);
    }
    if (json_object_set_new(object, key, value_of(value, strlen(value))) != 0)
        return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not UTF-8", key, value);
    return Q_OK;
}

static FALLIBLE keep(struct options *o, option_JSON *field, const json_t *object, const char *flag,
                     struct q_err *e)
{
    size_t n = json_dumpb(object, NULL, 0, JSON_COMPACT);
    char *text = q_alloc(n + 1);
    const char *kept = NULL;
    if (text && json_dumpb(object, text, n, JSON_COMPACT) == n)
        kept = option_text(o, text, n);
    q_free(text);
    if (!kept)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", flag);
    *field = kept;
    return Q_OK;
}

FALLIBLE option_member(struct options *o, const struct option_target *t, const char *value,
                       struct q_err *e)
{
    option_JSON *field = (option_JSON *)((char *)o + t->row->offset);
    json_t *object = NULL;
    enum q_code rc = read_object(&object, t->row->flag, *field, e);
    if (rc || !value)
        goto out;
    if (set_path(object, t, value, e) != Q_OK) {
        rc = q_wrap(e, "%s.%.*s", t->row->flag, (int)(t->n_path < 60 ? t->n_path : 60), t->path);
        goto out;
    }
    rc = keep(o, field, object, t->row->flag, e);
out:
    json_decref(object);
    return rc;
}

/* "image=2,actions=64" as {"image": 2, "actions": 64}. */
static FALLIBLE read_pairs(json_t *object, const char *flag, const char *text, struct q_err *e)
{
    while (*text) {
        const size_t n = strcspn(text, ","), n_name = strcspn(text, "=,");
        if (n_name == 0 || n_name == n)
            return q_fail(e, Q_INVALID,
                          "%s: \"%.60s\" is neither a JSON object such as {\"key\": 2} nor pairs "
                          "such as key=2,key=3",
                          flag, text);
        if (json_object_setn_new(object, text, n_name,
                                 value_of(text + n_name + 1, n - n_name - 1)) != 0)
            return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not UTF-8", flag, text);
        text += n + (text[n] == ',');
    }
    return Q_OK;
}

FALLIBLE option_pairs(struct options *o, const struct option_target *t, struct q_err *e)
{
    option_JSON *field = (option_JSON *)((char *)o + t->row->offset);
    if (**field == '{')
        return option_member(o, t, NULL, e);
    json_t *object = json_object();
    enum q_code rc = read_pairs(object, t->row->flag, *field, e);
    if (!rc)
        rc = keep(o, field, object, t->row->flag, e);
    json_decref(object);
    return rc;
}

FALLIBLE option_array(struct options *o, const char *text, const char **items, size_t *n,
                      struct q_err *e)
{
    size_t max = *n, i;
    json_t *array = *text == '[' ? json_read_string(text, 0, NULL) : NULL, *v;
    enum q_code rc = Q_OK;
    *n = 0;
    if (json_array_size(array) > max)
        rc = q_fail(e, Q_INVALID, "more than %zu values", max);
    json_array_foreach (array, i, v) {
        if (rc)
            break;
        if (!json_is_string(v)) {
            *n = 0;
            break;
        }
        items[i] = option_text(o, json_string_value(v), strlen(json_string_value(v)));
        if (!items[i])
            rc = q_fail(e, Q_NO_MEMORY, "out of memory");
        *n = i + 1;
    }
    json_decref(array);
    return rc;
}
