/* SPDX-License-Identifier: Apache-2.0 */
/* torch_file - the tensors of a file that torch.save wrote: a zip archive, or the format before it.
 *
 *     zip     NAME/data.pkl    the pickle of a dict {name: tensor}; tensors name storages
 *             NAME/data/KEY    the bytes of a storage, as they are
 *             NAME/byteorder   "little", or not there
 *     legacy  pickles of a magic number, a version, a dict of the writing system, the dict of
 *             tensors, the list of keys; then for each key u64 n, and n elements
 *
 * Tensors are views of the mapped file; those with strides of their own (transposed views) are
 * copied. Nothing of the pickle is run (pickle.h). Source: torch/serialization.py. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_HUB_TORCH_FILE_H
#define QUIRE_COMMON_HUB_TORCH_FILE_H
#include "common/hub/tensor.h"
#include "common/hub/torch_copy.h"
#include "common/mem.h"

struct torch_file {
    const unsigned char *data; /* [size], the mapped file, borrowed: tensors point into it */
    size_t size;
    const char *path; /* borrowed by the tensors */
};
/* Is it such a file, by its first bytes? */
bool torch_file_is(const void *data, size_t n);
/* Append the file's tensors, by name; entries of the dict that are no tensors are left out. Names
 * live in `names`. On failure out->n is as before. Errors: Q_CORRUPT (path, tensor, reason),
 * Q_UNSUPPORTED (a pickle that does more, by name; big-endian, TorchScript), Q_NO_MEMORY,
 * Q_TOO_LARGE. */
FALLIBLE torch_file_read(struct tensor_list *out, struct torch_copies *copies, struct arena *names,
                         const struct torch_file *f, struct q_err *e);

#endif
