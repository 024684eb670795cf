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
    const unsigned char *data; /* [n_byte] in the file; any alignment */
    size_t n_byte;
};
/* Of file[0..n). Errors: Q_INVALID (what it is, and what is read). */
FALLIBLE npy_read(struct npy *out, const unsigned char *file, size_t n, struct q_err *e);

#endif
