/* SPDX-License-Identifier: Apache-2.0 */
/* The fields "truncation" and "padding" of tokenizer.json. */
#include "common/tokenizer/limits.h"
#include <string.h>

static enum q_code load_size(const json_t *v, const char *at, const char *key, uint32_t *out,
                             struct q_err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return tok_json_bad(v, at, key, "a number of tokens", e);
    json_int_t n = json_integer_value(v);
    *out = n < (json_int_t)LIMIT_NONE ? (uint32_t)n : LIMIT_NONE;
    return Q_OK;
}

/* One of two or three names; *out is its number. Absent leaves it. */
static enum q_code load_name(const json_t *o, const char *at, const char *key,
                             const char *const names[3], int *out, struct q_err *e)
{
    struct tok_str s;
    if (!json_object_get(o, key))
        return Q_OK;
    enum q_code rc = tok_json_str(o, key, at, &s, e);
    if (rc)
        return rc;
    for (int i = 0; i < 3 && names[i]; i++) {
        if (strcmp(names[i], s.s) == 0) {
            *out = i;
            return Q_OK;
        }
    }
    return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s.%s: unknown value \"%.40s\"", at, key, s.s);
}

static const char *const sides[3] = {"Left", "Right", NULL};

static enum q_code load_truncation(struct tok_limits *l, const json_t *o, struct q_err *e)
{
    static const char *const strategies[3] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    enum q_code rc;
    int side = 1;
    int strategy = 0;
    if (!o || json_is_null(o))
        return Q_OK;
    if (!json_is_object(o))
        return q_fail(e, Q_CORRUPT,
                      "tokenizer.json: truncation: expected an object or null, found %s",
                      json_kind(o));
    if ((rc = load_size(json_object_get(o, "max_length"), "truncation", "max_length",
                        &l->length_max, e)) ||
        (rc = load_name(o, "truncation", "direction", sides, &side, e)) ||
        (rc = load_name(o, "truncation", "strategy", strategies, &strategy, e)))
        return rc;
    l->cut_left = side == 0;
    l->second_only = strategy == 2;
    return Q_OK;
}

/* "BatchLongest" or {"Fixed": n}: of one text the longest is itself. */
static enum q_code load_pad_length(struct tok_limits *l, const json_t *v, struct q_err *e)
{
    l->pad_to = 0;
    if (json_is_string(v) && strcmp(json_string_value(v), "BatchLongest") == 0)
        return Q_OK;
    return load_size(json_object_get(v, "Fixed"), "padding", "strategy", &l->pad_to, e);
}

static enum q_code load_padding(struct tok_limits *l, const json_t *o, struct q_err *e)
{
    enum q_code rc;
    int side = 1;
    if (!o || json_is_null(o))
        return Q_OK;
    if (!json_is_object(o))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: padding: expected an object or null, found %s",
                      json_kind(o));
    const json_t *multiple = json_object_get(o, "pad_to_multiple_of");
    if ((rc = load_pad_length(l, json_object_get(o, "strategy"), e)) ||
        (rc = load_name(o, "padding", "direction", sides, &side, e)) ||
        (rc = tok_json_id(json_object_get(o, "pad_id"), "padding", "pad_id", &l->pad_id, e)) ||
        (multiple && !json_is_null(multiple) &&
         (rc = load_size(multiple, "padding", "pad_to_multiple_of", &l->pad_multiple, e))))
        return rc;
    if (l->pad_to > PAD_MAX || l->pad_multiple > PAD_MAX)
        return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: padding: to more than %u tokens", PAD_MAX);
    l->pad = true;
    l->pad_left = side == 0;
    return Q_OK;
}

enum q_code tok_limits_load(struct tok_limits *l, const json_t *root, struct q_err *e)
{
    *l = (struct tok_limits){.length_max = LIMIT_NONE};
    enum q_code rc = load_truncation(l, json_object_get(root, "truncation"), e);
    return rc ? rc : load_padding(l, json_object_get(root, "padding"), e);
}

enum q_code tok_truncate(const struct tok_limits *l, size_t n_special, struct token_list *ids,
                         size_t i_from, struct q_err *e)
{
    size_t n = ids->n - i_from;
    size_t max = l->length_max > n_special ? l->length_max - n_special : 0;
    if (l->length_max == LIMIT_NONE || n <= max)
        return Q_OK;
    if (l->second_only && max)
        return q_fail(e, Q_INVALID,
                      "the text has %zu tokens, and the tokenizer's truncation to %zu applies only "
                      "to the second of two texts",
                      n, max);
    if (l->cut_left)
        memmove(ids->ids + i_from, ids->ids + ids->n - max, max * sizeof *ids->ids);
    ids->n = i_from + max;
    return Q_OK;
}

enum q_code tok_pad(const struct tok_limits *l, struct token_list *ids, size_t i_from,
                    struct q_err *e)
{
    size_t n = ids->n - i_from;
    size_t to = l->pad_to ? l->pad_to : n;
    enum q_code rc = Q_OK;
    if (!l->pad)
        return Q_OK;
    if (l->pad_multiple)
        to += (l->pad_multiple - to % l->pad_multiple) % l->pad_multiple;
    for (size_t i = n; i < to && !rc; i++)
        rc = token_list_add(ids, l->pad_id, e);
    if (rc || !l->pad_left || to <= n)
        return rc;
    uint32_t *text = ids->ids + i_from;
    memmove(text + (to - n), text, n * sizeof *text);
    for (size_t i = 0; i < to - n; i++)
        text[i] = l->pad_id;
    return Q_OK;
}
