/* SPDX-License-Identifier: Apache-2.0 */
#include "common/item_array.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[ITEM_DTYPES] = {
    [ITEM_F32] = {"float32", 4},
    [ITEM_U8] = {"uint8", 1},
    [ITEM_I32] = {"int32", 4},
    [ITEM_NUMBERS] = {"numbers", 8},
};

const char *item_dtype_name(enum item_dtype dtype)
{
    return dtype < ITEM_DTYPES ? dtypes[dtype].name : "unknown";
}

size_t item_dtype_size(enum item_dtype dtype)
{
    Q_ASSERT(dtype < ITEM_DTYPES);
    return dtypes[dtype].size;
}

size_t item_array_bytes(const struct item_array *t)
{
    size_t n = item_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(n, (size_t)t->dims[i], &n))
            return SIZE_MAX;
    return n;
}
