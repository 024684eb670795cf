/* SPDX-License-Identifier: Apache-2.0 */
/* tensor - one tensor of a model's files, and a list of them. Threads: values. */
#ifndef QUIRE_COMMON_HUB_TENSOR_H
#define QUIRE_COMMON_HUB_TENSOR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/dtype.h"
#include "common/gguf/gguf.h"

#define TENSOR_DIMS_MAX 8u

struct tensor {
    const char *name; /* borrowed from the set */
    const char *file; /* path, for messages; borrowed from the set */
    enum dtype dtype;
    uint32_t n_dim;
    uint64_t shape[TENSOR_DIMS_MAX];
    const void *data; /* into the mapping, without alignment */
    uint64_t n_bytes;
    /* Of tensor_set_replace: rows of a head that lie as pairs; 0: as they are. Of a tensor that
     * holds q, k and v: in_pairs says of which. */
    uint32_t head_rows;
    enum { TENSOR_Q = 1, TENSOR_K = 2 } in_pairs;
    const char *stored; /* of tensor_set_replace: its name in the file, as `name`; NULL: `name` */
    uint64_t first_row; /* of the tensor in the file, of which it is a part */
    bool is_part;
    /* Of a GGUF file. Numbers in blocks (gguf/rows.h), then dtype is U8 and shape counts numbers;
     * NULL: numbers of dtype. */
    const struct gguf_type *blocks;
    bool has_outputs_first; /* also where the family's tensor of this name has inputs first */
    bool has_one;           /* a norm whose numbers are all of it, also where families add 1 */
};

/* Number i of a tensor of F32, F16 or BF16. */
static inline float tensor_number(const struct tensor *t, size_t i)
{
    uint16_t half;
    float f;
    if (t->dtype == DT_F32) {
        memcpy(&f, (const char *)t->data + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, (const char *)t->data + i * sizeof half, sizeof half);
    return t->dtype == DT_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

#define TENSOR_LIST_MAX ((size_t)1 << 20) /* of one model; the largest MoE checkpoints have 10^5 */

struct tensor_list {
    struct tensor *items; /* [n], q_free */
    size_t n, cap;
};

#endif
