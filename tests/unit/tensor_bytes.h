/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_bytes - where a tensor's bytes are in a safetensors file that was read, so that a test can
 * change them. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_TENSOR_BYTES_H
#define QUIRE_TESTS_UNIT_TENSOR_BYTES_H
#include "check.h"
#include "common/buf.h"
#include "common/hub/safetensors.h"

/* file: the bytes of the only file of s. The last tensor ends where the file does. */
static inline char *tensor_bytes_at(const struct buf *file, const struct tensor_set *s,
                                    const struct tensor *t)
{
    const char *end = t->data;
    for (uint32_t i = 0; i < tensor_count(s); i++) {
        const char *one = (const char *)tensor_at(s, i)->data + tensor_at(s, i)->n_bytes;
        end = one > end ? one : end;
    }
    const size_t behind = (size_t)(end - (const char *)t->data);
    assert_true(behind <= file->len && behind >= t->n_bytes);
    char *at = file->data + file->len - behind;
    assert_memory_equal(at, t->data, t->n_bytes);
    return at;
}

#endif
