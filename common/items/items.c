/* SPDX-License-Identifier: Apache-2.0 */
/* Contents grow in one buffer, so an item's data is an offset in it until all have been read. */
#include "common/items/items.h"
#include <limits.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/file.h"
#include "common/hub/safetensors.h"
#include "common/items/item_image.h"
#include "common/items/items_internal.h"
#include "common/items/npy.h"
#include "common/json_kind.h"
#include "common/mem.h"

#define ALIGN      16u
#define SHAPE_TEXT 128u
#define EXACT      9007199254740992.0 /* 2^53: whole numbers up to it are exact as f64 */

struct reading {
    struct item_list *list;
    const struct item_rules *rules;
    const char *name;             /* of the modality */
    size_t index;                 /* of the item */
    bool is_all;                  /* the value is the whole modality */
    const struct item_type *type; /* of a content part; NULL: multi_modal_data */
};

/* "multi_modal_data: actions[3]: ", before what is in e. */
static enum q_code in_item(const struct reading *r, struct q_err *e)
{
    return r->is_all ? q_wrap(e, "multi_modal_data: %.64s", r->name)
                     : q_wrap(e, "multi_modal_data: %.64s[%zu]", r->name, r->index);
}

static FALLIBLE add_item(struct reading *r, const struct item_array *item, struct q_err *e)
{
    struct item_list *l = r->list;
    enum q_code rc = q_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items, ITEM_LIST_MAX, e);
    if (rc == Q_TOO_LARGE)
        return q_fail(e, Q_INVALID, "more than %u items", ITEM_LIST_MAX);
    if (rc)
        return rc;
    l->items[l->n] = *item;
    l->items[l->n++].modality = r->name;
    return Q_OK;
}

/* n bytes at the end of the contents; NULL: there is no room (buf.failed). */
static void *extend(struct item_list *l, size_t n, size_t *offset)
{
    static const char zeros[4096];
    buf_add(&l->data, zeros, (ALIGN - l->data.len % ALIGN) % ALIGN);
    *offset = l->data.len;
    for (size_t done = 0; done < n && !l->data.failed; done += sizeof zeros)
        buf_add(&l->data, zeros, n - done < sizeof zeros ? n - done : sizeof zeros);
    return l->data.failed ? NULL : l->data.data + *offset;
}

static FALLIBLE no_room(const struct item_list *l, struct q_err *e)
{
    return l->data.failed == Q_NO_MEMORY
               ? q_fail(e, Q_NO_MEMORY, "out of memory")
               : q_fail(e, Q_TOO_LARGE, "the items of a request have more than %zu bytes",
                        ITEM_LIST_BYTES);
}

/* ---- nested numbers ---- */

struct nested {
    double *to; /* NULL: they are only counted and checked */
    size_t n;
    const struct item_array *shape;
};

static FALLIBLE fill_nested(struct nested *x, const json_t *v, uint32_t depth, struct q_err *e)
{
    if (depth == x->shape->n_dim) {
        if (!json_is_number(v))
            return q_fail(e, Q_INVALID, "number %zu is %s, expected a number%s", x->n, json_kind(v),
                          json_is_array(v) ? " (the lists are nested unevenly)" : "");
        if (x->to)
            x->to[x->n] = json_number_value(v);
        x->n++;
        return Q_OK;
    }
    if (!json_is_array(v) || json_array_size(v) != x->shape->dims[depth])
        return q_fail(e, Q_INVALID,
                      "the lists are ragged: dimension %u has %zu entries before number %zu, "
                      "expected %u",
                      depth, json_array_size(v), x->n, x->shape->dims[depth]);
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++)
        rc = fill_nested(x, json_array_get(v, i), depth + 1, e);
    return rc;
}

static FALLIBLE read_nested(struct reading *r, const json_t *v, struct q_err *e)
{
    struct item_array item = {.dtype = ITEM_NUMBERS};
    size_t offset, n = 1;
    for (const json_t *at = v; json_is_array(at); at = json_array_get(at, 0)) {
        if (item.n_dim == ITEM_ARRAY_DIMS_MAX)
            return q_fail(e, Q_INVALID, "more than %u nested lists", ITEM_ARRAY_DIMS_MAX);
        if (json_array_size(at) == 0)
            return q_fail(e, Q_INVALID, "a list is empty");
        item.dims[item.n_dim++] = (uint32_t)json_array_size(at);
        if (__builtin_mul_overflow(n, json_array_size(at), &n))
            return q_fail(e, Q_TOO_LARGE, "too many numbers");
    }
    if (n > ITEM_LIST_BYTES / sizeof(double))
        return q_fail(e, Q_TOO_LARGE, "more than %zu numbers", ITEM_LIST_BYTES / sizeof(double));
    struct nested x = {.shape = &item};
    enum q_code rc = fill_nested(&x, v, 0, e); /* before there is memory for what is not there */
    if (rc)
        return rc;
    x = (struct nested){.to = extend(r->list, n * sizeof(double), &offset), .shape = &item};
    rc = x.to ? fill_nested(&x, v, 0, e) : no_room(r->list, e);
    item.n_byte = n * sizeof(double);
    item.data = (const void *)offset;
    return rc ? rc : add_item(r, &item, e);
}

/* ---- arrays ---- */

/* An array that is in the list's contents from `offset` on: one item, or a modality's. */
static FALLIBLE add_array(struct reading *r, struct item_array *a, size_t offset, struct q_err *e)
{
    enum q_code rc = Q_OK;
    a->n_byte = item_array_bytes(a);
    a->data = (const void *)offset;
    if (!r->is_all && !(r->type && a->n_dim == r->type->n_dim + 1))
        return add_item(r, a, e);
    if (!a->n_dim)
        return q_fail(e, Q_INVALID, "expected a first dimension that counts the items");
    const uint32_t n = a->dims[0];
    memmove(a->dims, a->dims + 1, --a->n_dim * sizeof *a->dims);
    a->n_byte = item_array_bytes(a);
    for (uint32_t i = 0; i < n && !rc; i++) {
        a->data = (const void *)(offset + i * a->n_byte);
        rc = add_item(r, a, e);
    }
    return rc;
}

struct source { /* where n bytes of an array come from: memory, or a file */
    const void *data;
    const struct file_open *file; /* NULL: data */
    uint64_t offset;              /* in the file */
};

static FALLIBLE take_bytes(void *to, size_t n, const struct source *from, struct q_err *e)
{
    if (from->file)
        return file_read_at(from->file, to, n, from->offset, e);
    Q_ASSERT(from->data || !n);
    if (n)
        memcpy(to, from->data, n);
    return Q_OK;
}

/* Integers that no modality takes as they are, as numbers. */
static FALLIBLE add_integers(struct reading *r, struct item_array *a, const struct npy *npy,
                             const struct source *from, struct q_err *e)
{
    const size_t n_byte = item_array_bytes(a), n = n_byte / sizeof(double);
    size_t offset;
    if (n_byte > ITEM_LIST_BYTES)
        return q_fail(e, Q_TOO_LARGE, "%zu bytes, expected at most %zu", n_byte, ITEM_LIST_BYTES);
    double *to = extend(r->list, n_byte, &offset);
    unsigned char *raw = q_alloc(npy->n_byte + 1);
    enum q_code rc = to ? Q_OK : no_room(r->list, e);
    if (!rc && !raw)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory");
    if (!rc)
        rc = take_bytes(raw, npy->n_byte, from, e);
    for (size_t i = 0; i < n && !rc; i++)
        to[i] = (double)npy_integer(npy->type, raw, i);
    q_free(raw);
    return rc ? rc : add_array(r, a, offset, e);
}

/* As it is, or i8 as numbers. */
static FALLIBLE add_bytes(struct reading *r, struct item_array *a, const struct source *from,
                          bool is_i64, struct q_err *e)
{
    const size_t n_byte = item_array_bytes(a);
    size_t offset;
    if (n_byte > ITEM_LIST_BYTES)
        return q_fail(e, Q_TOO_LARGE, "%zu bytes, expected at most %zu", n_byte, ITEM_LIST_BYTES);
    unsigned char *to = extend(r->list, n_byte, &offset);
    if (!to)
        return no_room(r->list, e);
    enum q_code rc = take_bytes(to, n_byte, from, e);
    for (size_t i = 0; i < n_byte / sizeof(double) && is_i64 && !rc; i++) {
        int64_t v;
        memcpy(&v, to + i * sizeof v, sizeof v);
        const double x = (double)v;
        if (x > EXACT || x < -EXACT)
            rc = q_fail(e, Q_INVALID, "number %zu is %lld, expected at most 2^53", i, (long long)v);
        memcpy(to + i * sizeof x, &x, sizeof x);
    }
    return rc ? rc : add_array(r, a, offset, e);
}

static FALLIBLE read_shape(struct item_array *a, const json_t *v, struct q_err *e)
{
    if (!json_is_array(v) || json_array_size(v) > ITEM_ARRAY_DIMS_MAX)
        return q_fail(e, Q_INVALID, "shape: expected a list of at most %u numbers",
                      ITEM_ARRAY_DIMS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        const json_int_t n = json_integer_value(one);
        if (!json_is_integer(one) || n < 0 || n > UINT32_MAX)
            return q_fail(e, Q_INVALID, "shape: entry %zu is not a whole number of 0 or more", i);
        a->dims[a->n_dim++] = (uint32_t)n;
    }
    return Q_OK;
}

static FALLIBLE read_dtype(struct item_array *a, bool *is_i64, const json_t *v, struct q_err *e)
{
    static const struct {
        const char *name;
        enum item_dtype dtype;
        bool is_i64;
    } names[] = {
        {"float32", ITEM_F32, false},     {"uint8", ITEM_U8, false},     {"int32", ITEM_I32, false},
        {"float64", ITEM_NUMBERS, false}, {"int64", ITEM_NUMBERS, true},
    };
    const char *name = v ? json_string_value(v) : "float32";
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) {
            a->dtype = names[i].dtype;
            *is_i64 = names[i].is_i64;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID,
                  "dtype: expected \"float32\", \"uint8\", \"int32\", \"float64\" or \"int64\"");
}

static FALLIBLE not_base64(const char *member, struct q_err *e)
{
    return q_fail(e, Q_INVALID, "%s: not base64 (with + and /, without white space)", member);
}

FALLIBLE item_base64(unsigned char **out, size_t *n, const struct item_text *from, struct q_err *e)
{
    const char *text = from->data, *member = from->member;
    const size_t n_text = from->n;
    size_t n_pad = 0;
    if (!text || n_text % 4 || n_text > INT_MAX)
        return q_fail(e, Q_INVALID, "%s: expected base64 text (a multiple of 4 characters)",
                      member);
    while (n_pad < 2 && n_pad < n_text && text[n_text - 1 - n_pad] == '=')
        n_pad++;
    /* The decoder skips white space, and a "-" at the end. */
    if (memchr(text, '=', n_text - n_pad) || strpbrk(text, " \t\r\n-_"))
        return not_base64(member, e);
    *out = q_alloc(n_text / 4 * 3 + 1);
    if (!*out)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", member);
    const int got = EVP_DecodeBlock(*out, (const unsigned char *)text, (int)n_text);
    if (got < 0 || (size_t)got < n_pad) {
        q_free(*out);
        *out = NULL;
        return not_base64(member, e);
    }
    *n = (size_t)got - n_pad;
    return Q_OK;
}

static FALLIBLE read_base64(struct reading *r, const json_t *v, struct q_err *e)
{
    struct item_array a = {.n_dim = 0};
    bool is_i64 = false;
    const json_t *given = json_object_get(v, "data");
    const struct item_text text = {"data", json_string_value(given), json_string_length(given)};
    unsigned char *data = NULL;
    size_t n = 0;
    enum q_code rc;
    if ((rc = read_dtype(&a, &is_i64, json_object_get(v, "dtype"), e)) ||
        (rc = read_shape(&a, json_object_get(v, "shape"), e)) ||
        (rc = item_base64(&data, &n, &text, e)))
        return rc;
    if (item_array_bytes(&a) == SIZE_MAX)
        rc = q_fail(e, Q_INVALID, "shape: more than 2^64 bytes");
    else if (item_array_bytes(&a) != n)
        rc = q_fail(e, Q_INVALID, "data: %zu bytes, expected %zu for its shape and dtype", n,
                    item_array_bytes(&a));
    else
        rc = add_bytes(r, &a, &(struct source){.data = data}, is_i64, e);
    q_free(data);
    return rc;
}

/* ---- files ----
 * They are read and not mapped: others may cut them meanwhile, and an access to a mapping behind
 * the end of its file ends the process. */

FALLIBLE item_path(char out[PATH_MAX], const struct item_rules *rules, const char *path,
                   const char *member, struct q_err *e)
{
    char dir[PATH_MAX];
    if (!rules->files)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: this server reads no files; send the data, or start it with "
                      "--allowed-local-media-path",
                      member);
    if (!path)
        return q_fail(e, Q_INVALID, "%s: expected a string", member);
    if (!rules->dir)
        return realpath(path, out)
                   ? Q_OK
                   : q_fail(e, Q_INVALID, "%s: %.200s cannot be read", member, path);
    /* The same of a file elsewhere and of none: a client does not learn which files there are. */
    const size_t n = realpath(rules->dir, dir) ? strlen(dir) : 0;
    if (!n || !realpath(path, out) || strncmp(out, dir, n) != 0 ||
        (out[n] != '/' && dir[n - 1] != '/'))
        return q_fail(e, Q_INVALID,
                      "%s: %.200s is no file in the folder of --allowed-local-media-path", member,
                      path);
    return Q_OK;
}

static FALLIBLE read_npy(struct reading *r, const struct file_open *f, uint64_t size,
                         struct q_err *e)
{
    static const enum item_dtype dtypes[] = {
        [NPY_F32] = ITEM_F32,     [NPY_F64] = ITEM_NUMBERS, [NPY_U8] = ITEM_U8,
        [NPY_I32] = ITEM_I32,     [NPY_I64] = ITEM_NUMBERS, [NPY_I8] = ITEM_NUMBERS,
        [NPY_I16] = ITEM_NUMBERS, [NPY_U16] = ITEM_NUMBERS, [NPY_U32] = ITEM_NUMBERS,
    };
    const size_t n_head = size < NPY_HEAD_MAX ? (size_t)size : NPY_HEAD_MAX;
    unsigned char *head = q_alloc(NPY_HEAD_MAX);
    struct npy npy;
    enum q_code rc = head ? file_read_at(f, head, n_head, 0, e)
                          : q_fail(e, Q_NO_MEMORY, "out of memory for %s", f->path);
    if (!rc && !(rc = npy_read(&npy, head, n_head, size, e))) {
        struct item_array a = {.dtype = dtypes[npy.type], .n_dim = npy.n_dim};
        const struct source from = {.file = f, .offset = npy.offset};
        memcpy(a.dims, npy.dims, sizeof a.dims);
        rc = npy.type >= NPY_I8 ? add_integers(r, &a, &npy, &from, e)
                                : add_bytes(r, &a, &from, npy.type == NPY_I64, e);
    }
    q_free(head);
    return rc;
}

static FALLIBLE of_safetensors(struct item_array *a, bool *is_i64, const struct tensor *t,
                               struct q_err *e)
{
    static const struct {
        enum dtype from;
        enum item_dtype to;
        bool is_i64;
    } types[] = {
        {DT_F32, ITEM_F32, false},
        {DT_U8, ITEM_U8, false},
        {DT_I32, ITEM_I32, false},
        {DT_I64, ITEM_NUMBERS, true},
    };
    for (uint32_t i = 0; i < t->n_dim; i++) {
        if (t->shape[i] > UINT32_MAX)
            return q_fail(e, Q_TOO_LARGE, "tensor %.64s: too large", t->name);
        a->dims[a->n_dim++] = (uint32_t)t->shape[i];
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].from == t->dtype) {
            a->dtype = types[i].to;
            *is_i64 = types[i].is_i64;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "tensor %.64s: type %s, expected F32, U8, I32 or I64", t->name,
                  dtype_name(t->dtype));
}

static const struct tensor *find_tensor(const struct safetensors_head *h, const char *name,
                                        struct q_err *e)
{
    for (size_t i = 0; i < h->list.n; i++)
        if (name ? !strcmp(h->list.items[i].name, name) : h->list.n == 1)
            return &h->list.items[i];
    if (name)
        q_fail_text(e, Q_INVALID, "path: the file has no tensor \"%.64s\"", name);
    else
        q_fail_text(e, Q_INVALID, "path: the file has %zu tensors; name one with \"tensor\"",
                    h->list.n);
    return NULL;
}

struct file_source {
    struct file_open f;
    uint64_t size;
    const char *tensor; /* NULL: the only one */
};

static FALLIBLE read_safetensors(struct reading *r, const struct file_source *s, struct q_err *e)
{
    struct safetensors_head h;
    struct item_array a = {.n_dim = 0};
    bool is_i64 = false;
    enum q_code rc = safetensors_head_read(&h, &s->f, s->size, e);
    if (rc)
        return rc;
    const struct tensor *t = find_tensor(&h, s->tensor, e);
    if (!t) {
        rc = e->code;
    } else if (!(rc = of_safetensors(&a, &is_i64, t, e))) {
        const struct source from = {.file = &s->f, .offset = safetensors_head_offset(&h, t)};
        rc = add_bytes(r, &a, &from, is_i64, e);
    }
    safetensors_head_release(&h);
    return rc;
}

static FALLIBLE read_file(struct reading *r, const char *path, const char *tensor, struct q_err *e)
{
    struct file_source s = {.f = {.fd = -1, .path = path}, .tensor = tensor};
    const char *dot = strrchr(path, '.');
    const bool is_npy = dot && !strcmp(dot, ".npy");
    enum q_code rc;
    if (!is_npy && !(dot && !strcmp(dot, ".safetensors")))
        return q_fail(e, Q_INVALID, "path: expected a file name ending in .npy or .safetensors");
    if (is_npy && tensor)
        return q_fail(e, Q_INVALID, "tensor: an .npy file has one array without a name");
    if (!(rc = file_open_regular(&s.f.fd, &s.size, path, e))) {
        rc = is_npy ? read_npy(r, &s.f, s.size, e) : read_safetensors(r, &s, e);
        close(s.f.fd);
    }
    /* A file that cannot be read is the request's mistake. */
    if (rc == Q_NOT_FOUND || rc == Q_IO || rc == Q_CORRUPT)
        rc = e->code = Q_INVALID;
    return rc;
}

static FALLIBLE read_path(struct reading *r, const json_t *v, struct q_err *e)
{
    char path[PATH_MAX];
    const json_t *given = json_object_get(v, "path"), *name = json_object_get(v, "tensor");
    const char *text = json_string_value(given), *tensor = json_string_value(name);
    if (text && strlen(text) != json_string_length(given))
        return q_fail(e, Q_INVALID, "path: has a NUL");
    if (name && !json_is_null(name) && !tensor)
        return q_fail(e, Q_INVALID, "tensor: expected a string, got %s", json_kind(name));
    enum q_code rc = item_path(path, r->rules, text, "path", e);
    return rc ? rc : read_file(r, path, tensor, e);
}

/* The pixels are what a modality of images takes: [height][width][3] bytes. */
static FALLIBLE read_image(struct reading *r, const json_t *v, struct q_err *e)
{
    struct image image = {.rgb = NULL};
    enum q_code rc = item_image_read(&image, v, r->rules, e);
    if (!rc) {
        struct item_array a = {
            .dtype = ITEM_U8,
            .n_dim = 3,
            .dims = {image.height, image.width, 3},
        };
        rc = add_bytes(r, &a, &(struct source){.data = image.rgb}, false, e);
    }
    image_release(&image);
    return rc;
}

/* In a content part of a modality of images, and, by {"url": …}, in multi_modal_data. */
static bool may_be_image(const struct reading *r, const json_t *v)
{
    return r->type ? item_type_is_image(r->type) && item_image_is(v)
                   : json_object_get(v, "url") != NULL;
}

static FALLIBLE read_object(struct reading *r, const json_t *v, struct q_err *e)
{
    static const char *const members[2][3] = {{"data", "dtype", "shape"}, {"path", "tensor"}};
    const bool has_path = json_object_get(v, "path"), has_data = json_object_get(v, "data");
    const char *key;
    json_t *member;
    if (may_be_image(r, v))
        return read_image(r, v, e);
    if (has_path == has_data)
        return q_fail(e, Q_INVALID, "expected either data (with dtype and shape) or path");
    json_object_foreach ((json_t *)(uintptr_t)v, key, member) {
        bool is_known = false;
        for (size_t i = 0; i < 3 && members[has_path][i]; i++)
            is_known = is_known || !strcmp(key, members[has_path][i]);
        if (!is_known)
            return q_fail(
                e, Q_INVALID,
                "unexpected member \"%.64s\"; expected data, dtype and shape, or path and "
                "tensor",
                key);
    }
    return has_path ? read_path(r, v, e) : read_base64(r, v, e);
}

/* ---- the whole ---- */

static FALLIBLE read_modality(struct reading *r, const json_t *v, struct q_err *e)
{
    enum q_code rc = Q_OK;
    r->is_all = json_is_object(v) && !json_object_get(v, "url"); /* an image is one item */
    r->index = 0;
    if (json_is_object(v))
        return read_object(r, v, e) ? in_item(r, e) : Q_OK;
    if (!json_is_array(v)) {
        r->is_all = true;
        q_fail_text(e, Q_INVALID, "expected a list of items, got %s", json_kind(v));
        return in_item(r, e);
    }
    for (r->index = 0; r->index < json_array_size(v) && !rc; r->index++) {
        const json_t *item = json_array_get(v, r->index);
        if (json_is_object(item))
            rc = read_object(r, item, e);
        else if (json_is_array(item) || json_is_number(item))
            rc = read_nested(r, item, e);
        else
            rc = q_fail(e, Q_INVALID, "expected numbers, or an object with data or path, got %s",
                        json_kind(item));
        if (rc)
            return in_item(r, e);
    }
    return Q_OK;
}

FALLIBLE item_list_read(struct item_list *out, const json_t *value, const struct item_rules *rules,
                        struct q_err *e)
{
    struct reading r = {.list = out, .rules = rules};
    const char *key;
    json_t *v;
    enum q_code rc = Q_OK;
    *out = (struct item_list)ITEM_LIST_INIT;
    if (!value || json_is_null(value))
        return Q_OK;
    if (!json_is_object(value))
        return q_fail(e, Q_INVALID,
                      "multi_modal_data: expected an object such as {\"actions\": […]}, got %s",
                      json_kind(value));
    json_object_foreach ((json_t *)(uintptr_t)value, key, v) {
        r.name = key;
        if (strlen(key) >= 64 || !*key)
            rc = q_fail(e, Q_INVALID, "multi_modal_data: a name has more than 63 bytes, or none");
        else if (!json_is_null(v))
            rc = read_modality(&r, v, e);
        if (rc)
            break;
    }
    item_list_end(out);
    return rc;
}

FALLIBLE item_list_file(struct item_list *out, const char *path, const char *tensor,
                        struct q_err *e)
{
    struct reading r = {.list = out, .name = ""};
    *out = (struct item_list)ITEM_LIST_INIT;
    enum q_code rc = read_file(&r, path, tensor, e);
    item_list_end(out);
    return rc;
}

void item_list_end(struct item_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        l->items[i].data = buf_str(&l->data) + (size_t)l->items[i].data;
}

/* ---- content parts ---- */

bool item_type_is_image(const struct item_type *t)
{
    return !strcmp(t->part_type, ITEM_IMAGE_PART) && t->n_dim == 3 && t->dims[2] == 3;
}

/* "[1…5, 3]"; without a type the item's own shape. */
static void shape_text(char out[SHAPE_TEXT], const struct item_array *a, const struct item_type *t)
{
    const uint32_t n_dim = t ? t->n_dim : a->n_dim;
    size_t n = (size_t)snprintf(out, SHAPE_TEXT, "[");
    for (uint32_t i = 0; i < n_dim && n < SHAPE_TEXT; i++) {
        const bool any = t && !t->dims[i];
        n += (size_t)snprintf(out + n, SHAPE_TEXT - n, "%s%s%u", i ? ", " : "", any ? "1…" : "",
                              !t    ? a->dims[i]
                              : any ? t->dims_max[i]
                                    : t->dims[i]);
    }
    if (n < SHAPE_TEXT)
        snprintf(out + n, SHAPE_TEXT - n, "]");
}

static FALLIBLE check_shape(const struct item_array *a, const struct item_type *t, struct q_err *e)
{
    char found[SHAPE_TEXT], wanted[SHAPE_TEXT];
    bool fits = a->n_dim == t->n_dim;
    for (uint32_t i = 0; i < t->n_dim && fits; i++)
        fits =
            t->dims[i] ? a->dims[i] == t->dims[i] : a->dims[i] >= 1 && a->dims[i] <= t->dims_max[i];
    if (fits)
        return Q_OK;
    shape_text(found, a, NULL);
    shape_text(wanted, a, t);
    return q_fail(e, Q_INVALID, "shape %s is not %s", found, wanted);
}

static uint32_t depth_of(const json_t *v)
{
    uint32_t n = 0;
    for (; json_is_array(v) && n <= ITEM_ARRAY_DIMS_MAX; v = json_array_get(v, 0))
        n++;
    return n;
}

/* One item, or element i of several. */
static FALLIBLE read_part_item(struct reading *r, const json_t *v, struct q_err *e)
{
    const size_t first = r->list->n;
    enum q_code rc;
    Q_ASSERT(r->type);
    if (json_is_object(v) || may_be_image(r, v))
        rc = read_object(r, v, e);
    else if (json_is_array(v) || json_is_number(v))
        rc = read_nested(r, v, e);
    else if (item_type_is_image(r->type))
        rc = q_fail(e, Q_INVALID, "expected {\"url\": \"data:image/png;base64,…\"}, got %s",
                    json_kind(v));
    else
        rc = q_fail(e, Q_INVALID, "expected numbers, or an object with data or path, got %s",
                    json_kind(v));
    for (size_t i = first; i < r->list->n && !rc; i++) {
        r->index += i > first;
        rc = check_shape(&r->list->items[i], r->type, e);
    }
    return rc ? q_wrap(e, "%.64s[%zu]", r->name, r->index) : Q_OK;
}

FALLIBLE item_list_add(struct item_list *l, const struct item_type *type, size_t first,
                       const json_t *value, const struct item_rules *rules, struct q_err *e)
{
    struct reading r = {
        .list = l,
        .rules = rules,
        .name = type->modality,
        .index = first,
        .type = type,
    };
    const bool is_list = json_is_array(value) && (json_is_object(json_array_get(value, 0)) ||
                                                  depth_of(value) > type->n_dim);
    const size_t n_before = l->n;
    enum q_code rc = is_list ? Q_OK : read_part_item(&r, value, e);
    for (size_t i = 0; is_list && i < json_array_size(value) && !rc; i++) {
        r.index = first + (l->n - n_before);
        rc = read_part_item(&r, json_array_get(value, i), e);
    }
    if (!rc && l->n == n_before)
        rc = q_fail(e, Q_INVALID, "%.64s: expected at least one item", r.name);
    return rc;
}

void item_list_release(struct item_list *l)
{
    q_free(l->items);
    buf_release(&l->data);
    *l = (struct item_list)ITEM_LIST_INIT;
}
