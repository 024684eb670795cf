/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/safetensors_internal.h"
#include <stdlib.h>
#include <string.h>
#include "common/hub/hub_json.h"

#define LENGTH_BYTES 8u /* the u64 in front of the header */

struct reader {
    const struct safetensors_file *f;
    uint64_t data_start, data_bytes; /* the data section within the file */
    struct arena *names;
    struct q_err *e;
};

static enum q_code bad(const struct reader *r, const char *tensor, const char *reason)
{
    return q_fail(r->e, Q_CORRUPT, "%s: tensor %s: %s", r->f->path, tensor, reason);
}

static bool read_u64(uint64_t *out, const json_t *v)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

/* Size of t's elements in bytes by dtype and shape; false on overflow, or if it is not a whole
 * number of bytes. */
static bool shape_bytes(uint64_t *out, const struct tensor *t)
{
    uint64_t bits = dtype_bits(t->dtype);
    for (uint32_t i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(bits, t->shape[i], &bits))
            return false;
    *out = bits / 8;
    return bits % 8 == 0;
}

static enum q_code read_shape(const struct reader *r, struct tensor *t, const json_t *shape)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape))
        return bad(r, t->name, "shape is not a list");
    if (n > TENSOR_DIMS_MAX)
        return bad(r, t->name, "shape has more than 8 dimensions");
    for (size_t i = 0; i < n; i++)
        if (!read_u64(&t->shape[i], json_array_get(shape, i)))
            return bad(r, t->name, "shape contains an entry that is not a size");
    t->n_dim = (uint32_t)n;
    return Q_OK;
}

/* The data of a file of which only the header is in memory lie nowhere: a number, then. */
static uintptr_t place_of(const struct safetensors_file *f, uint64_t offset)
{
    return (uintptr_t)f->data + offset;
}

static enum q_code read_place(const struct reader *r, struct tensor *t, const json_t *offsets)
{
    uint64_t start, end, bytes;
    if (json_array_size(offsets) != 2 || !read_u64(&start, json_array_get(offsets, 0)) ||
        !read_u64(&end, json_array_get(offsets, 1)))
        return bad(r, t->name, "data_offsets is not a list of two offsets");
    if (start > end)
        return bad(r, t->name, "data_offsets: the end is before the start");
    if (end > r->data_bytes)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: tensor %s: the data end at byte %llu of %llu: the file is truncated",
                      r->f->path, t->name, (unsigned long long)end,
                      (unsigned long long)r->data_bytes);
    if (!shape_bytes(&bytes, t))
        return bad(r, t->name, "the size of shape and dtype exceeds the limit");
    if (bytes != end - start)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: tensor %s: shape and dtype %s require %llu bytes, the data have %llu",
                      r->f->path, t->name, dtype_name(t->dtype), (unsigned long long)bytes,
                      (unsigned long long)(end - start));
    t->data = (const void *)place_of(r->f, r->data_start + start);
    t->n_bytes = bytes;
    return Q_OK;
}

static enum q_code read_tensor(const struct reader *r, struct tensor *t, const char *name,
                               const json_t *v)
{
    enum q_code rc;
    *t = (struct tensor){.name = name, .file = r->f->path};
    if (!json_is_object(v))
        return bad(r, name, "its header entry is not an object");
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    if (!dtype || !dtype_parse(&t->dtype, dtype))
        return q_fail(r->e, Q_CORRUPT,
                      "%s: tensor %s: dtype \"%.20s\" is not defined in the format", r->f->path,
                      name, dtype ? dtype : "?");
    if ((rc = read_shape(r, t, json_object_get(v, "shape"))))
        return rc;
    if (!(t->name = arena_strndup(r->names, name, strlen(name))))
        return q_fail(r->e, Q_NO_MEMORY, "%s: out of memory for tensor names", r->f->path);
    return read_place(r, t, json_object_get(v, "data_offsets"));
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    if (x->n_bytes != y->n_bytes) /* empty tensors first, so that they do not count as overlaps */
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return 0;
}

/* Check the tensors from index `start` on: in file order, each begins where the previous one ends,
 * and the last one ends with the file. */
static enum q_code check_cover(const struct reader *r, const struct tensor_list *list, size_t start)
{
    size_t n = list->n - start;
    struct tensor *t = n ? list->items + start : NULL;
    uintptr_t at = place_of(r->f, r->data_start);
    if (n)
        qsort(t, n, sizeof *t, by_place);
    for (size_t i = 0; i < n; i++) {
        const uintptr_t place = (uintptr_t)t[i].data;
        if (place < at)
            return bad(r, t[i].name, "its data overlap the previous tensor");
        if (place > at)
            return bad(r, t[i].name, "there is a gap between its data and the previous tensor");
        at = place + t[i].n_bytes;
    }
    const size_t rest = r->f->size - (size_t)(at - (uintptr_t)r->f->data);
    if (rest)
        return q_fail(r->e, Q_CORRUPT, "%s: %zu extra bytes after the last tensor", r->f->path,
                      rest);
    return Q_OK;
}

static enum q_code read_length(uint64_t *length, const struct safetensors_file *f, struct q_err *e)
{
    uint64_t h = 0;
    if (f->size < LENGTH_BYTES)
        return q_fail(e, Q_CORRUPT, "%s: %zu bytes are too short for a safetensors file", f->path,
                      f->size);
    for (uint32_t i = LENGTH_BYTES; i-- > 0;)
        h = h << 8 | f->data[i];
    if (h > SAFETENSORS_HEADER_MAX)
        return q_fail(e, Q_CORRUPT, "%s: the header has %llu bytes, expected at most %llu", f->path,
                      (unsigned long long)h, (unsigned long long)SAFETENSORS_HEADER_MAX);
    if (h > f->size - LENGTH_BYTES)
        return q_fail(e, Q_CORRUPT,
                      "%s: the header has %llu bytes, the file %zu: the file is truncated", f->path,
                      (unsigned long long)h, f->size);
    *length = h;
    return Q_OK;
}

enum q_code safetensors_header_read(struct tensor_list *out, struct arena *names,
                                    const struct safetensors_file *f, struct q_err *e)
{
    uint64_t length = 0;
    json_t *root = NULL;
    size_t n_before = out->n;
    enum q_code rc = read_length(&length, f, e);
    if (rc ||
        (rc = hub_json_parse(&root, (const char *)f->data + LENGTH_BYTES, length, f->path, e)))
        return rc;
    struct reader r = {f, LENGTH_BYTES + length, f->size - LENGTH_BYTES - length, names, e};
    rc = q_grow(&out->items, &out->cap, out->n + json_object_size(root), sizeof *out->items,
                TENSOR_LIST_MAX, e);
    for (void *it = json_object_iter(root); it && !rc; it = json_object_iter_next(root, it)) {
        const char *name = json_object_iter_key(it);
        if (strcmp(name, "__metadata__") != 0)
            rc = read_tensor(&r, &out->items[out->n++], name, json_object_iter_value(it));
    }
    if (!rc)
        rc = check_cover(&r, out, n_before);
    if (rc)
        out->n = n_before;
    json_decref(root);
    return rc;
}

void safetensors_head_release(struct safetensors_head *h)
{
    q_free(h->list.items);
    q_free(h->bytes);
    arena_release(&h->names);
    *h = (struct safetensors_head)SAFETENSORS_HEAD_INIT;
}

enum q_code safetensors_head_read(struct safetensors_head *h, const struct file_open *f,
                                  uint64_t size, struct q_err *e)
{
    unsigned char first[LENGTH_BYTES] = {0};
    struct safetensors_file file = {first, size, f->path};
    uint64_t length = 0;
    *h = (struct safetensors_head)SAFETENSORS_HEAD_INIT;
    enum q_code rc = size < sizeof first ? Q_OK : file_read_at(f, first, sizeof first, 0, e);
    if (rc || (rc = read_length(&length, &file, e)))
        return rc;
    file.data = h->bytes = q_alloc(LENGTH_BYTES + length);
    if (!h->bytes)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for a header of %llu bytes", f->path,
                      (unsigned long long)length);
    memcpy(h->bytes, first, sizeof first);
    if (!(rc = file_read_at(f, h->bytes + LENGTH_BYTES, length, LENGTH_BYTES, e)))
        rc = safetensors_header_read(&h->list, &h->names, &file, e);
    if (rc)
        safetensors_head_release(h);
    return rc;
}

uint64_t safetensors_head_offset(const struct safetensors_head *h, const struct tensor *t)
{
    return (uintptr_t)t->data - (uintptr_t)h->bytes;
}
