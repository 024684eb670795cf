/* SPDX-License-Identifier: Apache-2.0 */
/* npy - NumPy's format of one array.
 *
 *     "\x93NUMPY" | major, minor | length of the header | {'descr': '<f4', 'fortran_order': False,
 *     'shape': (3, 4), } | data
 *
 * Source: numpy.lib.format ("Format Version 1.0" to 3.0). Read: f4, f8 and integers, little-endian,
 * row-major. Threads: reentrant. */
#ifndef QUIRE_COMMON_ITEMS_NPY_H
#define QUIRE_COMMON_ITEMS_NPY_H
#include "common/item_array.h"

enum npy_type { NPY_F32, NPY_F64, NPY_U8, NPY_I32, NPY_I64, NPY_I8, NPY_I16, NPY_U16, NPY_U32 };
int64_t npy_integer(enum npy_type type, const unsigned char *data, size_t i); /* not of floats */
struct npy {
    enum npy_type type;
    uint32_t n_dim, dims[ITEM_ARRAY_DIMS_MAX];
    size_t offset, n_byte; /* of the numbers in the file, to its end */
};
#define NPY_HEAD_MAX (65536u + 12) /* bytes */
/* Of a file of n_file bytes, whose first ones are head[n]: NPY_HEAD_MAX, or all. Errors: Q_INVALID
 * (what it is, and what is read). */
FALLIBLE npy_read(struct npy *out, const unsigned char *head, size_t n, size_t n_file,
                  struct q_err *e);

#endif
