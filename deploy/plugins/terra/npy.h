/* SPDX-License-Identifier: Apache-2.0 */
/* npy - arrays in numpy's .npy format: read any of numbers, write int32.
 *
 *     "\x93NUMPY" major minor | length of the header | {'descr': '<f4', 'fortran_order': False,
 *     'shape': (3, 576), } … \n | the numbers, row-major
 *
 * Source: numpy.lib.format, versions 1.0 to 3.0. Threads: reentrant. */
#ifndef TERRA_NPY_H
#define TERRA_NPY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NPY_DIMS_MAX 4u
#define NPY_WHY_MAX  200u

struct npy {
    uint32_t n_dim;
    size_t dims[NPY_DIMS_MAX];
    size_t n;                  /* numbers: the product of dims */
    char kind;                 /* 'f', 'i', 'u' */
    uint32_t width;            /* bytes of a number */
    const unsigned char *data; /* [n * width], little-endian, not aligned */
    void *file;                /* of npy_read; npy_release frees it */
};
#define NPY_INIT \
    {            \
        0        \
    }

/* From n bytes, which `a` borrows. false: why says what is wrong. */
bool npy_parse(struct npy *a, const void *bytes, size_t n, char why[NPY_WHY_MAX]);
/* From a file, read whole. */
bool npy_read(struct npy *a, const char *path, char why[NPY_WHY_MAX]);
void npy_release(struct npy *a);
double npy_number(const struct npy *a, size_t i); /* i < n */
/* An integer that fits int64, or false. */
bool npy_integer(const struct npy *a, size_t i, int64_t *out);
/* dims [n_dim], data row-major. */
bool npy_write(const char *path, const int32_t *data, const size_t *dims, uint32_t n_dim,
               char why[NPY_WHY_MAX]);

#endif
