/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_tensors - the tensors of a GGUF file as those of a model.
 *
 * Floats are tensors of their type; numbers in blocks keep them (tensor.blocks). Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_HUB_GGUF_TENSORS_H
#define QUIRE_COMMON_HUB_GGUF_TENSORS_H
#include "common/gguf/gguf_file.h"
#include "common/hub/tensor.h"
#include "common/mem.h"

struct gguf_bytes {
    const unsigned char *data; /* [size], the mapped file, borrowed: tensors point into it */
    size_t size;
    const char *path; /* borrowed by the tensors */
};
/* Append the file's tensors. Names live in `names`. On failure out->n is as before. Errors: those
 * of gguf_read, Q_UNSUPPORTED (a type that is not read, with what could be used instead). */
FALLIBLE gguf_tensors_read(struct tensor_list *out, struct arena *names, const struct gguf_bytes *f,
                           struct q_err *e);

/* The error for one of `count` files of a model that is not there. Never Q_OK. */
FALLIBLE gguf_tensors_fail_split(const char *path, uint32_t count, struct q_err *e);

#endif
