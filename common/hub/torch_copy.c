/* SPDX-License-Identifier: Apache-2.0 */
/* A copy lies in a mapped file without a name: the loader lets go of the pages of what it has read
 * (tensor_drop), and what is asked for again then must still be there. */
#include "common/hub/torch_copy.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Numbers of elements, without dimensions of one. */
static bool is_in_order(const struct pickle_tensor *t)
{
    uint64_t stride = 1;
    for (uint32_t i = t->n_dim; i-- > 0;) {
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return false;
        stride *= t->shape[i]; /* fits: the product of all does */
    }
    return true;
}

bool torch_view_fits(struct torch_view *view, const struct pickle_tensor *t, uint64_t n)
{
    uint64_t last = t->offset, bytes = view->element;
    for (uint32_t i = 0; i < t->n_dim; i++)
        if (t->shape[i] == 0) { /* of none, offset and strides mean nothing */
            view->first = view->n_bytes = 0;
            view->is_contiguous = true;
            return true;
        }
    for (uint32_t i = 0; i < t->n_dim; i++) {
        uint64_t step;
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes) ||
            __builtin_mul_overflow(t->shape[i] - 1, t->stride[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            return false;
    }
    if (last >= n / view->element)
        return false;
    view->first = t->offset * view->element;
    view->n_bytes = bytes;
    view->is_contiguous = is_in_order(t);
    return true;
}

/* The number of elements is that of a product that fits 64 bits, and not 0. */
static void copy_elements(unsigned char *to, const unsigned char *from,
                          const struct pickle_tensor *t, uint64_t element)
{
    uint64_t index[TENSOR_DIMS_MAX] = {0}, at = 0;
    const uint32_t last = t->n_dim - 1; /* one dimension at least: a single element is in order */
    for (;;) {
        for (uint64_t i = 0; i < t->shape[last]; i++, to += element)
            memcpy(to, from + (at + i * t->stride[last]) * element, element);
        uint32_t d = last;
        while (d > 0 && ++index[d - 1] == t->shape[d - 1]) {
            d--;
            at -= (t->shape[d] - 1) * t->stride[d];
            index[d] = 0;
        }
        if (d == 0)
            return;
        at += t->stride[d - 1];
    }
}

enum q_code torch_copy(const void **data, struct torch_copies *copies,
                       const struct pickle_tensor *t, const struct torch_view *view,
                       struct q_err *e)
{
    void *memory = MAP_FAILED;
    enum q_code rc = q_grow(&copies->items, &copies->cap, copies->n + 1, sizeof *copies->items,
                            TENSOR_LIST_MAX, e);
    if (rc)
        return rc;
    const int fd = memfd_create("quire-tensor", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)view->n_bytes) == 0)
        memory = mmap(NULL, view->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        rc = q_fail(e, Q_NO_MEMORY, "no memory for a copy of a transposed tensor, %llu bytes: %s",
                    (unsigned long long)view->n_bytes, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    copy_elements(memory, *data, t, view->element);
    (void)mprotect(memory, view->n_bytes, PROT_READ);
    copies->items[copies->n++] = (struct mapping){memory, view->n_bytes};
    copies->n_bytes += view->n_bytes;
    *data = memory;
    return Q_OK;
}

void torch_copies_release(struct torch_copies *c)
{
    for (size_t i = 0; i < c->n; i++)
        mapping_release(&c->items[i]);
    q_free(c->items);
    *c = (struct torch_copies){0};
}
