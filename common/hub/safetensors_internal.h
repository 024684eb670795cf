/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_internal - one safetensors file's header, from bytes to checked tensors. Part of
 * safetensors.h; the fuzz target calls it directly.
 *
 *     byte 0         8                 8 + h                               size
 *          | u64 h LE | JSON, h bytes   | data: tensor after tensor, no hole |
 *
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_SAFETENSORS_INTERNAL_H
#define QUIRE_COMMON_HUB_SAFETENSORS_INTERNAL_H
#include <stddef.h>
#include "common/hub/safetensors.h"
#include "common/mem.h"

#define SAFETENSORS_HEADER_MAX \
    ((uint64_t)100 << 20) /* bytes; the limit of the reference reader \
                                                      */

struct safetensors_file {
    const unsigned char *data; /* the mapped file, or its header alone; borrowed: tensors point
                                * into it */
    size_t size;               /* bytes of the file */
    const char *path;          /* borrowed by the tensors */
};

/* Append the file's tensors, sorted by their place in the file. Names live in `names`. On failure
 * out->n is as before (the array may have grown). Errors: Q_CORRUPT (file, tensor, reason),
 * Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE safetensors_header_read(struct tensor_list *out, struct arena *names,
                                 const struct safetensors_file *f, struct q_err *e);

#endif
