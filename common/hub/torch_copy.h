/* SPDX-License-Identifier: Apache-2.0 */
/* torch_copy - where the elements of a strided tensor lie in its storage, and a copy of them in
 * order. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_TORCH_COPY_H
#define QUIRE_COMMON_HUB_TORCH_COPY_H
#include "common/file.h"
#include "common/hub/pickle.h"

struct torch_copies {      /* tensors that are no views of the file */
    struct mapping *items; /* [n], memory of this process alone */
    size_t n, cap;
    uint64_t n_bytes; /* of those of the file that is read: not more than it has */
};
void torch_copies_release(struct torch_copies *c);

struct torch_view {
    uint64_t element;   /* bytes */
    uint64_t first;     /* byte of the storage where the first element is */
    uint64_t n_bytes;   /* of all elements */
    bool is_contiguous; /* in order and without gaps: the storage's bytes from `first` on */
};
/* view->element is set; fills the rest. false: an element lies outside of the storage's n bytes, or
 * a size exceeds 64 bits. */
bool torch_view_fits(struct torch_view *view, const struct pickle_tensor *t, uint64_t n);
/* The elements in order: *data, which points to the first one, points to the copy then.
 * Errors: Q_NO_MEMORY. */
FALLIBLE torch_copy(const void **data, struct torch_copies *copies, const struct pickle_tensor *t,
                    const struct torch_view *view, struct q_err *e);

#endif
