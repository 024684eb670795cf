/* SPDX-License-Identifier: Apache-2.0 */
/* item_array - an item of a request as an array of numbers, and lists of them from JSON.
 *
 * multi_modal_data is {"modality": [item, …]}; an item is nested JSON numbers, or an object with
 * base64 data, or with the path of a file (common/items). Nothing here knows what a modality takes.
 * Threads: values. */
#ifndef QUIRE_COMMON_ITEM_ARRAY_H
#define QUIRE_COMMON_ITEM_ARRAY_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define ITEM_ARRAY_DIMS_MAX 8u

/* Little-endian. ITEM_NUMBERS: JSON numbers as f64, which become what the modality takes. */
enum item_dtype { ITEM_F32, ITEM_U8, ITEM_I32, ITEM_NUMBERS, ITEM_DTYPES };

struct item_array {
    const char *modality; /* NUL-terminated; borrowed */
    enum item_dtype dtype;
    uint32_t n_dim, dims[ITEM_ARRAY_DIMS_MAX]; /* n_dim 0: one number */
    const void *data;                          /* [n_byte] row-major; borrowed; any alignment */
    size_t n_byte;
};

const char *item_dtype_name(enum item_dtype dtype); /* "float32", "uint8", "int32", "numbers" */
size_t item_dtype_size(enum item_dtype dtype);
/* Bytes of its dtype and dims; SIZE_MAX: too many to count. */
size_t item_array_bytes(const struct item_array *t);

#endif
