/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write - the layout of a safetensors file that is to be written: its header, and the
 * place of each tensor's data. The data are the caller's to write, in any order and by any number
 * of processes; the reader (safetensors.h) accepts the file when all are there.
 * Threads: pure. */
#ifndef QUIRE_COMMON_HUB_SAFETENSORS_WRITE_H
#define QUIRE_COMMON_HUB_SAFETENSORS_WRITE_H
#include "common/buf.h"
#include "common/hub/safetensors.h"

struct safetensors_item {
    const char *name; /* UTF-8 */
    enum dtype dtype;
    uint32_t n_dim;
    uint64_t shape[TENSOR_DIMS_MAX];
    uint64_t at, n_bytes; /* set by safetensors_layout: of the data in the file */
};

/* Append the file's first bytes to `header`: length, and JSON with the metadata {"format": "pt"},
 * which transformers asks for; padded, so that data begin at a multiple of 8. Data lie in the order
 * of the items. *n_file: bytes of the whole file. Errors: Q_INVALID (two of one name, a shape of no
 * whole bytes, a header that readers refuse), Q_NO_MEMORY. */
FALLIBLE safetensors_layout(struct safetensors_item *items, size_t n, struct buf *header,
                            uint64_t *n_file, struct q_err *e);

#endif
