/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/safetensors_write.h"
#include <stdlib.h>
#include <string.h>
#include "common/hub/safetensors_internal.h"

#define LENGTH_BYTES 8u
#define ALIGN        8u /* of the data, in bytes */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum q_code check_names(const struct safetensors_item *items, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    const char **names = q_calloc(n + 1, sizeof *names);
    if (!names)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the names of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        names[i] = items[i].name;
    if (n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i + 1 < n && !rc; i++)
        if (strcmp(names[i], names[i + 1]) == 0)
            rc = q_fail(e, Q_INVALID, "two tensors have the name %s", names[i]);
    q_free(names);
    return rc;
}

static enum q_code count_bytes(struct safetensors_item *t, struct q_err *e)
{
    uint64_t bits = dtype_bits(t->dtype);
    for (uint32_t i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(bits, t->shape[i], &bits))
            return q_fail(e, Q_INVALID, "tensor %s: its size exceeds 64 bits", t->name);
    if (bits % 8 != 0)
        return q_fail(e, Q_INVALID, "tensor %s: its elements are no whole number of bytes",
                      t->name);
    t->n_bytes = bits / 8;
    return Q_OK;
}

static void add_entry(struct buf *b, const struct safetensors_item *t)
{
    const uint64_t end = t->at + t->n_bytes;
    buf_add_char(b, ',');
    buf_add_json_str(b, t->name, strlen(t->name));
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->n_dim; i++)
        buf_printf(b, i ? ",%llu" : "%llu", (unsigned long long)t->shape[i]);
    buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->at,
               (unsigned long long)end);
}

enum q_code safetensors_layout(struct safetensors_item *items, size_t n, struct buf *header,
                               uint64_t *n_file, struct q_err *e)
{
    const size_t start = header->len;
    uint64_t at = 0;
    enum q_code rc = check_names(items, n, e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = count_bytes(&items[i], e);
    if (rc)
        return rc;
    buf_add(header, "\0\0\0\0\0\0\0\0", LENGTH_BYTES);
    buf_add_str(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        items[i].at = at; /* in the data, for the header */
        add_entry(header, &items[i]);
        if (__builtin_add_overflow(at, items[i].n_bytes, &at))
            return q_fail(e, Q_INVALID, "the size of the tensors exceeds 64 bits");
    }
    buf_add_char(header, '}');
    for (size_t i = (header->len - start) % ALIGN; i % ALIGN; i++)
        buf_add_char(header, ' ');
    if ((rc = buf_check(header, "the header of a safetensors file", e)))
        return rc;
    const uint64_t n_header = header->len - start, length = n_header - LENGTH_BYTES;
    if (length > SAFETENSORS_HEADER_MAX)
        return q_fail(e, Q_INVALID,
                      "the header of %zu tensors has %llu bytes, expected at most %llu", n,
                      (unsigned long long)length, (unsigned long long)SAFETENSORS_HEADER_MAX);
    for (uint32_t i = 0; i < LENGTH_BYTES; i++)
        header->data[start + i] = (char)(length >> 8 * i);
    for (size_t i = 0; i < n; i++)
        items[i].at += n_header;
    *n_file = n_header + at;
    return Q_OK;
}
