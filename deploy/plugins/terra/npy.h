/* SPDX-License-Identifier: Apache-2.0 */
/* npy - an array of int32 as a file in numpy's .npy format; files are read by the library
 * (quire_input_read).
 *
 *     "\x93NUMPY" 1 0 | length of the header | {'descr': '<i4', 'fortran_order': False, 'shape': (3,
 *     576), } … \n | the numbers, row-major
 *
 * Source: numpy.lib.format, version 1.0. Threads: reentrant. */
#ifndef TERRA_NPY_H
#define TERRA_NPY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "output.h"

/* dims [n_dim], data row-major. false: why says what is wrong. */
bool npy_write(const char *path, const int32_t *data, const size_t *dims, uint32_t n_dim,
               char why[OUTPUT_WHY_MAX]);

#endif
