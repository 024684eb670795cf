/* SPDX-License-Identifier: Apache-2.0 */
/* lora_internal - struct lora: lora.c fills it, lora_device.c takes its numbers to a device.
 * Internal to engine/model/lora. Threads: as lora.h. */
#ifndef QUIRE_ENGINE_MODEL_LORA_LORA_INTERNAL_H
#define QUIRE_ENGINE_MODEL_LORA_LORA_INTERNAL_H
#include "engine/model/lora/lora.h"

struct device_link;

struct lora {
    uint32_t n_layer;
    struct lora_factors *factors; /* [n_layer][LORA_PRODUCTS] */
    unsigned char *data;          /* [n_byte] what their a and b point into; NULL: in `image` */
    size_t n_byte;
    const struct device_link *link; /* NULL: of the CPU */
    unsigned char *image; /* [image_bytes] its slot's bytes, in host memory that the device reads */
    size_t image_bytes;
};

/* Bytes of a factor of n numbers, in whole lines of the cache. */
static inline size_t lora_factor_bytes(enum dtype dtype, size_t n)
{
    return (n * (dtype_bits(dtype) / 8) + 63) / 64 * 64;
}
/* Bytes of all factors that an adapter may have, each of the largest rank. */
FALLIBLE lora_most_bytes(size_t *out, const struct model_config *c, const struct lora_options *o,
                         struct q_err *e);

#endif
