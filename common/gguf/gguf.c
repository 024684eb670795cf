/* SPDX-License-Identifier: Apache-2.0 */
/* A reader with a place and an end: every length is compared with what is left of the file before
 * it is used, and every count with the fewest bytes that so many entries take, so that nothing is
 * allocated for entries that cannot be there. */
#include "common/gguf/gguf.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX     (1u << 20)
#define VALUE_BYTES_MIN   13u /* an empty key, a kind, a number of one byte */
#define TENSOR_BYTES_MIN  32u /* an empty name, one dimension */
#define KEY_SHOWN         60

static const struct gguf_type types[] = {
#define GGUF_TYPE(name, number, block, bytes, read_as) \
    {#name, number, block, bytes, GGUF_##read_as},
#include "common/gguf/types.def"
};
#define N_TYPE (sizeof types / sizeof *types)

static const uint32_t kind_bytes[GGUF_KIND_COUNT] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

const struct gguf_type *gguf_type_of(uint32_t number)
{
    for (size_t i = 0; i < N_TYPE; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

const struct gguf_type *gguf_type_named(const char *name)
{
    for (size_t i = 0; i < N_TYPE; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

static uint32_t load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const unsigned char *p)
{
    return load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

bool gguf_is(const void *data, size_t n)
{
    return n >= 4 && memcmp(data, "GGUF", 4) == 0;
}

/* ---- reading ---- */

struct reader {
    const unsigned char *data; /* [size] */
    size_t size, at;
    const char *path;
    struct q_err *e;
};

static enum q_code fail_end(const struct reader *r, const char *what)
{
    return q_fail(r->e, Q_CORRUPT,
                  "%s: byte %zu: %s does not fit the file, which has %zu bytes: the download is "
                  "incomplete, or the file is damaged",
                  r->path, r->at, what, r->size);
}

static enum q_code read_u32(uint32_t *out, struct reader *r, const char *what)
{
    if (r->size - r->at < 4)
        return fail_end(r, what);
    *out = load_u32(r->data + r->at);
    r->at += 4;
    return Q_OK;
}

static enum q_code read_u64(uint64_t *out, struct reader *r, const char *what)
{
    if (r->size - r->at < 8)
        return fail_end(r, what);
    *out = load_u64(r->data + r->at);
    r->at += 8;
    return Q_OK;
}

static enum q_code read_text(struct gguf_text *out, struct reader *r, const char *what)
{
    uint64_t n = 0;
    const enum q_code rc = read_u64(&n, r, what);
    if (rc)
        return rc;
    if (n > r->size - r->at)
        return fail_end(r, what);
    *out = (struct gguf_text){(const char *)r->data + r->at, (size_t)n};
    r->at += (size_t)n;
    return Q_OK;
}

/* A key or a name: some bytes, no NUL. */
static enum q_code read_name(struct gguf_text *out, struct reader *r, const char *what, size_t most)
{
    const size_t at = r->at;
    const enum q_code rc = read_text(out, r, what);
    if (rc)
        return rc;
    if (out->n == 0 || out->n > most || memchr(out->s, 0, out->n))
        return q_fail(r->e, Q_CORRUPT, "%s: byte %zu: %s has %zu bytes%s, expected 1 to %zu%s",
                      r->path, at, what, out->n,
                      out->n && out->n <= most ? " and a zero among them" : "", most,
                      out->n && out->n <= most ? " without one" : "");
    return Q_OK;
}

/* Bytes of a key that a message has room for. */
static int shown(struct gguf_text key)
{
    return key.n < KEY_SHOWN ? (int)key.n : KEY_SHOWN;
}

static enum q_code fail_kind(const struct reader *r, const struct gguf_value *v, uint32_t kind)
{
    return q_fail(r->e, Q_CORRUPT,
                  "%s: byte %zu: the value of %.*s has the kind %u, expected 0 to %d%s", r->path,
                  r->at - 4, shown(v->key), v->key.s, kind, GGUF_KIND_COUNT - 1,
                  kind == GGUF_ARRAY ? "; arrays of arrays are not read" : "");
}

static enum q_code skip_texts(struct reader *r, uint64_t n, const char *what)
{
    struct gguf_text ignored;
    enum q_code rc = Q_OK;
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = read_text(&ignored, r, what);
    return rc;
}

/* Elements of v->of, v->n of them. */
static enum q_code skip_elements(struct reader *r, const struct gguf_value *v)
{
    const uint64_t left = r->size - r->at;
    const uint32_t least = v->of == GGUF_TEXT ? 8 : kind_bytes[v->of];
    if (v->n > left / least)
        return fail_end(r, v->kind == GGUF_ARRAY ? "an array" : "a value");
    if (v->of == GGUF_TEXT)
        return skip_texts(r, v->n, v->kind == GGUF_ARRAY ? "a text of an array" : "a text");
    r->at += (size_t)v->n * least;
    return Q_OK;
}

static enum q_code read_value(struct gguf_value *v, struct reader *r)
{
    uint32_t kind = 0;
    enum q_code rc;
    if ((rc = read_name(&v->key, r, "a key", GGUF_KEY_MAX)) ||
        (rc = read_u32(&kind, r, "the kind of a value")))
        return rc;
    if (kind >= GGUF_KIND_COUNT)
        return fail_kind(r, v, kind);
    v->kind = v->of = (enum gguf_kind)kind;
    v->n = 1;
    if (kind == GGUF_ARRAY) {
        if ((rc = read_u32(&kind, r, "the kind of an array's elements")))
            return rc;
        if (kind >= GGUF_KIND_COUNT || kind == GGUF_ARRAY)
            return fail_kind(r, v, kind);
        v->of = (enum gguf_kind)kind;
        if ((rc = read_u64(&v->n, r, "the length of an array")))
            return rc;
    }
    v->data = r->data + r->at;
    return skip_elements(r, v);
}

/* Bytes of its data; false: the sizes are no whole blocks, or exceed 63 bits. */
static bool tensor_bytes(struct gguf_tensor *t)
{
    uint64_t n = 1;
    const uint64_t row = t->shape[t->n_dim - 1];
    if (row % t->type->block)
        return false;
    for (uint32_t i = 0; i < t->n_dim; i++)
        if (t->shape[i] == 0 || __builtin_mul_overflow(n, t->shape[i], &n) || n > INT64_MAX)
            return false;
    return !__builtin_mul_overflow(n / t->type->block, t->type->bytes, &t->n_bytes) &&
           t->n_bytes <= INT64_MAX;
}

static enum q_code read_shape(struct gguf_tensor *t, struct reader *r)
{
    enum q_code rc = read_u32(&t->n_dim, r, "the number of a tensor's dimensions");
    if (rc)
        return rc;
    if (t->n_dim == 0 || t->n_dim > GGUF_DIMS_MAX)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: byte %zu: tensor %.*s has %u dimensions, expected 1 to %u", r->path,
                      r->at - 4, (int)t->name.n, t->name.s, t->n_dim, GGUF_DIMS_MAX);
    for (uint32_t i = t->n_dim; i-- > 0 && !rc;)
        rc = read_u64(&t->shape[i], r, "the sizes of a tensor");
    return rc;
}

/* data stays NULL: where it begins is known behind the last tensor. */
static enum q_code read_tensor(struct gguf_tensor *t, struct reader *r)
{
    uint32_t number = 0;
    enum q_code rc;
    if ((rc = read_name(&t->name, r, "the name of a tensor", GGUF_NAME_MAX)) ||
        (rc = read_shape(t, r)) || (rc = read_u32(&number, r, "the type of a tensor")))
        return rc;
    t->type = gguf_type_of(number);
    if (!t->type)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: byte %zu: tensor %.*s has the type %u, which is not known", r->path,
                      r->at - 4, (int)t->name.n, t->name.s, number);
    if (!tensor_bytes(t))
        return q_fail(r->e, Q_CORRUPT,
                      "%s: byte %zu: tensor %.*s of type %s: its sizes are 0 or too large, or rows "
                      "of %llu numbers are no whole blocks of %u",
                      r->path, r->at, (int)t->name.n, t->name.s, t->type->name,
                      (unsigned long long)t->shape[t->n_dim - 1], t->type->block);
    return read_u64(&t->offset, r, "the offset of a tensor");
}

/* ---- checks of the whole ---- */

static int compare_texts(const struct gguf_text *a, const struct gguf_text *b)
{
    const size_t n = a->n < b->n ? a->n : b->n;
    const int order = memcmp(a->s, b->s, n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_value *const *x = a, *const *y = b;
    return compare_texts(&(*x)->key, &(*y)->key);
}

static int by_name(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    return compare_texts(&(*x)->name, &(*y)->name);
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static enum q_code sort_values(struct gguf *g, struct q_err *e)
{
    for (uint64_t i = 0; i < g->n_value; i++)
        g->by_key[i] = &g->values[i];
    qsort(g->by_key, g->n_value, sizeof *g->by_key, by_key);
    for (uint64_t i = 1; i < g->n_value; i++)
        if (by_key(&g->by_key[i - 1], &g->by_key[i]) == 0)
            return q_fail(e, Q_CORRUPT, "%s: the key %.*s is there twice", g->path,
                          shown(g->by_key[i]->key), g->by_key[i]->key.s);
    return Q_OK;
}

static enum q_code sort_tensors(struct gguf *g, struct q_err *e)
{
    for (uint64_t i = 0; i < g->n_tensor; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensor, sizeof *g->by_name, by_name);
    for (uint64_t i = 1; i < g->n_tensor; i++)
        if (by_name(&g->by_name[i - 1], &g->by_name[i]) == 0)
            return q_fail(e, Q_CORRUPT, "%s: two tensors have the name %.*s", g->path,
                          (int)g->by_name[i]->name.n, g->by_name[i]->name.s);
    return Q_OK;
}

static enum q_code find_alignment(struct gguf *g, struct q_err *e)
{
    const struct gguf_value *v = gguf_find(g, "general.alignment");
    int64_t n = ALIGNMENT_DEFAULT;
    if (v && (!gguf_whole(v, &n) || n < 1 || n > ALIGNMENT_MAX || (n & (n - 1))))
        return q_fail(e, Q_CORRUPT,
                      "%s: general.alignment is %lld, expected a power of two up to %u", g->path,
                      (long long)n, ALIGNMENT_MAX);
    g->alignment = (uint32_t)n;
    return Q_OK;
}

/* Tensors by their offsets, which are counted from `start`: aligned, in the file, no overlap. */
static enum q_code place_tensors(struct gguf *g, const struct reader *r)
{
    const uint64_t start = (r->at + (uint64_t)g->alignment - 1) / g->alignment * g->alignment;
    const struct gguf_tensor *before = NULL;
    qsort(g->by_name, g->n_tensor, sizeof *g->by_name, by_offset);
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        struct gguf_tensor *t = &g->tensors[g->by_name[i] - g->tensors];
        if (t->offset % g->alignment)
            return q_fail(r->e, Q_CORRUPT,
                          "%s: tensor %.*s has the offset %llu, expected a multiple of %u", g->path,
                          (int)t->name.n, t->name.s, (unsigned long long)t->offset, g->alignment);
        if (start > r->size || t->offset > r->size - start ||
            t->n_bytes > r->size - start - t->offset)
            return q_fail(r->e, Q_CORRUPT,
                          "%s: tensor %.*s ends behind the file, which has %zu bytes: it begins at "
                          "byte %llu and has %llu: the download is incomplete, or the file is "
                          "damaged",
                          g->path, (int)t->name.n, t->name.s, r->size,
                          (unsigned long long)(start + t->offset), (unsigned long long)t->n_bytes);
        t->offset += start;
        t->data = r->data + t->offset;
        if (before && before->offset + before->n_bytes > t->offset)
            return q_fail(r->e, Q_CORRUPT, "%s: tensors %.*s and %.*s overlap at byte %llu",
                          g->path, (int)before->name.n, before->name.s, (int)t->name.n, t->name.s,
                          (unsigned long long)t->offset);
        before = t;
    }
    return Q_OK;
}

static enum q_code read_counts(struct gguf *g, struct reader *r)
{
    enum q_code rc;
    if (!gguf_is(r->data, r->size))
        return q_fail(r->e, Q_CORRUPT, "%s: not a GGUF file: its first bytes are not \"GGUF\"",
                      r->path);
    r->at = 4;
    if ((rc = read_u32(&g->version, r, "the version")))
        return rc;
    if (g->version && !(g->version & 0xffff))
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: a big-endian GGUF file, which is not supported; convert the original "
                      "model on a little-endian machine",
                      r->path);
    if (g->version != 2 && g->version != 3)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: GGUF version %u is not supported, expected 2 or 3; convert the original "
                      "model anew",
                      r->path, g->version);
    if ((rc = read_u64(&g->n_tensor, r, "the number of tensors")) ||
        (rc = read_u64(&g->n_value, r, "the number of values")))
        return rc;
    const uint64_t left = r->size - r->at;
    if (g->n_value > GGUF_VALUES_MAX || g->n_tensor > GGUF_TENSORS_MAX ||
        g->n_value > left / VALUE_BYTES_MIN || g->n_tensor > left / TENSOR_BYTES_MIN)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: byte 8: %llu tensors and %llu values do not fit the file, which has %zu "
                      "bytes (at most %llu and %llu)",
                      r->path, (unsigned long long)g->n_tensor, (unsigned long long)g->n_value,
                      r->size, (unsigned long long)GGUF_TENSORS_MAX,
                      (unsigned long long)GGUF_VALUES_MAX);
    return Q_OK;
}

static enum q_code make_room(struct gguf *g, struct q_err *e)
{
    g->values = q_calloc(g->n_value + 1, sizeof *g->values);
    g->by_key = q_calloc(g->n_value + 1, sizeof *g->by_key);
    g->tensors = q_calloc(g->n_tensor + 1, sizeof *g->tensors);
    g->by_name = q_calloc(g->n_tensor + 1, sizeof *g->by_name);
    return g->values && g->by_key && g->tensors && g->by_name
               ? Q_OK
               : q_fail(e, Q_NO_MEMORY, "%s: out of memory for %llu tensors", g->path,
                        (unsigned long long)g->n_tensor);
}

enum q_code gguf_read(struct gguf *out, const void *data, size_t n, const char *path,
                      struct q_err *e)
{
    struct reader r = {.data = data, .size = n, .path = path, .e = e};
    enum q_code rc;
    *out = (struct gguf){.path = path};
    if ((rc = read_counts(out, &r)) || (rc = make_room(out, e))) {
        out->n_value = out->n_tensor = 0;
        return rc;
    }
    for (uint64_t i = 0; i < out->n_value && !rc; i++)
        rc = read_value(&out->values[i], &r);
    if (!rc)
        rc = sort_values(out, e);
    for (uint64_t i = 0; i < out->n_tensor && !rc; i++)
        rc = read_tensor(&out->tensors[i], &r);
    if (rc || (rc = find_alignment(out, e)))
        return rc;
    for (uint64_t i = 0; i < out->n_tensor; i++)
        out->by_name[i] = &out->tensors[i];
    rc = place_tensors(out, &r);
    return rc ? rc : sort_tensors(out, e);
}

void gguf_release(struct gguf *g)
{
    q_free(g->values);
    q_free(g->by_key);
    q_free(g->tensors);
    q_free(g->by_name);
    *g = (struct gguf){0};
}

/* ---- values ---- */

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    const struct gguf_value wanted = {.key = {key, strlen(key)}}, *at = &wanted;
    const struct gguf_value *const *found =
        g->n_value ? bsearch(&at, g->by_key, g->n_value, sizeof *g->by_key, by_key) : NULL;
    return found ? *found : NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    const struct gguf_tensor wanted = {.name = {name, strlen(name)}}, *at = &wanted;
    const struct gguf_tensor *const *found =
        g->n_tensor ? bsearch(&at, g->by_name, g->n_tensor, sizeof *g->by_name, by_name) : NULL;
    return found ? *found : NULL;
}

static bool whole_at(enum gguf_kind kind, const unsigned char *p, int64_t *out)
{
    switch (kind) {
    case GGUF_U8:
        *out = p[0];
        return true;
    case GGUF_I8:
        *out = p[0] < 128 ? p[0] : p[0] - 256;
        return true;
    case GGUF_U16:
        *out = p[0] | p[1] << 8;
        return true;
    case GGUF_I16:
        *out = (int16_t)(uint16_t)(p[0] | p[1] << 8);
        return true;
    case GGUF_U32:
        *out = load_u32(p);
        return true;
    case GGUF_I32:
        *out = (int32_t)load_u32(p);
        return true;
    case GGUF_I64:
        *out = (int64_t)load_u64(p);
        return true;
    case GGUF_U64:
        if (load_u64(p) > INT64_MAX)
            return false;
        *out = (int64_t)load_u64(p);
        return true;
    default:
        return false;
    }
}

static bool number_at(enum gguf_kind kind, const unsigned char *p, double *out)
{
    int64_t whole;
    float f;
    if (whole_at(kind, p, &whole)) {
        *out = (double)whole;
        return true;
    }
    if (kind == GGUF_U64)
        *out = (double)load_u64(p);
    else if (kind == GGUF_F32) {
        memcpy(&f, p, sizeof f);
        *out = (double)f;
    } else if (kind == GGUF_F64)
        memcpy(out, p, sizeof *out);
    else
        return false;
    return true;
}

bool gguf_whole(const struct gguf_value *v, int64_t *out)
{
    return v && whole_at(v->kind, v->data, out);
}

bool gguf_number(const struct gguf_value *v, double *out)
{
    return v && number_at(v->kind, v->data, out);
}

bool gguf_bool(const struct gguf_value *v, bool *out)
{
    if (!v || v->kind != GGUF_BOOL)
        return false;
    *out = v->data[0] != 0;
    return true;
}

bool gguf_text(const struct gguf_value *v, struct gguf_text *out)
{
    if (!v || v->kind != GGUF_TEXT)
        return false;
    *out = (struct gguf_text){(const char *)v->data + 8, (size_t)load_u64(v->data)};
    return true;
}

bool gguf_text_is(const struct gguf_value *v, const char *text)
{
    struct gguf_text t;
    return gguf_text(v, &t) && t.n == strlen(text) && memcmp(t.s, text, t.n) == 0;
}

bool gguf_element(const struct gguf_value *v, uint64_t i, double *out)
{
    return v && v->kind == GGUF_ARRAY && i < v->n && v->of != GGUF_TEXT &&
           number_at(v->of, v->data + i * kind_bytes[v->of], out);
}

bool gguf_element_whole(const struct gguf_value *v, uint64_t i, int64_t *out)
{
    if (v && v->kind == GGUF_ARRAY && v->of == GGUF_BOOL && i < v->n) {
        *out = v->data[i] != 0;
        return true;
    }
    return v && v->kind == GGUF_ARRAY && i < v->n && v->of != GGUF_TEXT &&
           whole_at(v->of, v->data + i * kind_bytes[v->of], out);
}

bool gguf_texts_of(struct gguf_texts *t, const struct gguf_value *v)
{
    if (!v || v->kind != GGUF_ARRAY || v->of != GGUF_TEXT)
        return false;
    *t = (struct gguf_texts){v->data, v->n};
    return true;
}

bool gguf_texts_next(struct gguf_texts *t, struct gguf_text *out)
{
    if (t->left == 0)
        return false;
    *out = (struct gguf_text){(const char *)t->at + 8, (size_t)load_u64(t->at)};
    t->at += 8 + out->n;
    t->left--;
    return true;
}
