/* SPDX-License-Identifier: Apache-2.0 */
#include "common/items/npy.h"
#include <stdbool.h>
#include <string.h>

#define MAGIC      "\x93NUMPY"
#define MAGIC_LEN  6u
#define HEADER_MAX (NPY_HEAD_MAX - 12)

static const struct {
    const char *descr;
    enum npy_type type;
    size_t size;
} types[] = {
    {"<f4", NPY_F32, 4}, {"<f8", NPY_F64, 8}, {"|u1", NPY_U8, 1}, {"<u1", NPY_U8, 1},
    {"<i4", NPY_I32, 4}, {"<i8", NPY_I64, 8}, {"|i1", NPY_I8, 1}, {"<i2", NPY_I16, 2},
    {"<u2", NPY_U16, 2}, {"<u4", NPY_U32, 4},
};

int64_t npy_integer(enum npy_type type, const unsigned char *data, size_t i)
{
    int64_t i64;
    int32_t i32;
    uint32_t u32;
    int16_t i16;
    uint16_t u16;
    switch (type) {
    case NPY_I64:
        memcpy(&i64, data + i * sizeof i64, sizeof i64);
        return i64;
    case NPY_I32:
        memcpy(&i32, data + i * sizeof i32, sizeof i32);
        return i32;
    case NPY_U32:
        memcpy(&u32, data + i * sizeof u32, sizeof u32);
        return u32;
    case NPY_I16:
        memcpy(&i16, data + i * sizeof i16, sizeof i16);
        return i16;
    case NPY_U16:
        memcpy(&u16, data + i * sizeof u16, sizeof u16);
        return u16;
    case NPY_I8:
        return (int8_t)data[i];
    default:
        return data[i];
    }
}

struct text { /* the header; not NUL-terminated */
    const char *at, *end;
};

static void skip_space(struct text *t)
{
    while (t->at < t->end && strchr(" \t\r\n", *t->at) && *t->at)
        t->at++;
}

static bool take(struct text *t, char c)
{
    skip_space(t);
    if (t->at == t->end || *t->at != c)
        return false;
    t->at++;
    return true;
}

/* 'text' or "text", without escapes. */
static bool take_string(struct text *t, const char **out, size_t *n)
{
    skip_space(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"'))
        return false;
    const char quote = *t->at++;
    *out = t->at;
    while (t->at < t->end && *t->at != quote)
        t->at++;
    *n = (size_t)(t->at - *out);
    return take(t, quote);
}

static bool take_word(struct text *t, const char *word)
{
    const size_t n = strlen(word);
    skip_space(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
        return false;
    t->at += n;
    return true;
}

static bool take_number(struct text *t, uint32_t *out)
{
    uint64_t v = 0;
    skip_space(t);
    const char *start = t->at;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9' && v <= UINT32_MAX; t->at++)
        v = v * 10 + (uint64_t)(*t->at - '0');
    *out = (uint32_t)v;
    return t->at > start && v <= UINT32_MAX;
}

static bool take_shape(struct text *t, struct npy *out)
{
    if (!take(t, '('))
        return false;
    for (out->n_dim = 0; !take(t, ')'); out->n_dim++) {
        if (out->n_dim == ITEM_ARRAY_DIMS_MAX || !take_number(t, &out->dims[out->n_dim]))
            return false;
        take_word(t, "L"); /* as Python 2 wrote long numbers */
        if (!take(t, ','))
            return take(t, ')') && ++out->n_dim;
    }
    return true;
}

static bool is_key(const char *key, size_t n, const char *name)
{
    return n == strlen(name) && !memcmp(key, name, n);
}

static FALLIBLE bad_header(struct q_err *e)
{
    return q_fail(
        e, Q_INVALID,
        "npy: the header is malformed; expected {'descr': …, 'fortran_order': …, 'shape': "
        "(…), }");
}

static const char *expected_of(const char *key, size_t n)
{
    return is_key(key, n, "shape") ? "malformed; expected at most 8 whole numbers below 2^32 in ()"
           : is_key(key, n, "descr")         ? "no type of numbers; expected one, such as '<f4'"
           : is_key(key, n, "fortran_order") ? "neither True nor False"
                                             : "unknown; expected descr, fortran_order and shape";
}

static FALLIBLE take_type(struct npy *out, const char *descr, size_t n, struct q_err *e)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (is_key(descr, n, types[i].descr)) {
            out->type = types[i].type;
            out->n_byte = types[i].size;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID,
                  "npy: type \"%.*s\", expected float32, float64, or an integer of at most 64 bits "
                  "(not uint64), little-endian",
                  (int)(n < 32 ? n : 32), descr);
}

static FALLIBLE read_header(struct npy *out, struct text *t, struct q_err *e)
{
    const char *key, *descr = NULL;
    size_t n, n_descr = 0;
    bool has_order = false, is_fortran = false, has_shape = false;
    if (!take(t, '{'))
        return bad_header(e);
    while (!take(t, '}')) {
        if (!take_string(t, &key, &n) || !take(t, ':'))
            return bad_header(e);
        bool good = false;
        if (is_key(key, n, "descr"))
            good = take_string(t, &descr, &n_descr);
        else if (is_key(key, n, "fortran_order"))
            good = has_order = (is_fortran = take_word(t, "True")) || take_word(t, "False");
        else if (is_key(key, n, "shape"))
            good = has_shape = take_shape(t, out);
        if (!good)
            return q_fail(e, Q_INVALID, "npy: the header's \"%.*s\" is %s", (int)(n < 32 ? n : 32),
                          key, expected_of(key, n));
        if (!take(t, ',') && (skip_space(t), t->at == t->end || *t->at != '}'))
            return bad_header(e);
    }
    if (!descr || !has_order || !has_shape)
        return bad_header(e);
    if (is_fortran && out->n_dim > 1)
        return q_fail(e, Q_INVALID,
                      "npy: column-major, expected row-major (numpy.ascontiguousarray)");
    return take_type(out, descr, n_descr, e);
}

FALLIBLE npy_read(struct npy *out, const unsigned char *head, size_t n, size_t n_file,
                  struct q_err *e)
{
    size_t at = MAGIC_LEN + 2, n_header;
    *out = (struct npy){.n_dim = 0};
    if (n < at + 4 || memcmp(head, MAGIC, MAGIC_LEN) != 0)
        return q_fail(e, Q_INVALID, "npy: the file does not begin as one");
    if (head[MAGIC_LEN] < 1 || head[MAGIC_LEN] > 3)
        return q_fail(e, Q_INVALID, "npy: version %u, expected 1, 2 or 3", head[MAGIC_LEN]);
    n_header = head[at] | (size_t)head[at + 1] << 8;
    if (head[MAGIC_LEN] > 1)
        n_header |= (size_t)head[at + 2] << 16 | (size_t)head[at + 3] << 24;
    at += head[MAGIC_LEN] > 1 ? 4 : 2;
    if (n_header > HEADER_MAX || n_header > n - at)
        return q_fail(e, Q_INVALID, "npy: the header has %zu bytes, the file %zu", n_header,
                      n_file);
    struct text t = {(const char *)head + at, (const char *)head + at + n_header};
    enum q_code rc = read_header(out, &t, e);
    if (rc)
        return rc;
    at += n_header;
    for (uint32_t i = 0; i < out->n_dim; i++)
        if (__builtin_mul_overflow(out->n_byte, (size_t)out->dims[i], &out->n_byte))
            return q_fail(e, Q_INVALID, "npy: its shape has more than 2^64 bytes");
    if (out->n_byte != n_file - at)
        return q_fail(e, Q_INVALID, "npy: %zu bytes of data, expected %zu for its shape",
                      n_file - at, out->n_byte);
    out->offset = at;
    return Q_OK;
}
