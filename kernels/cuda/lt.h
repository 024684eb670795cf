/* SPDX-License-Identifier: Apache-2.0 */
/* lt - matrix products by cuBLASLt, and the choice of an algorithm for each shape.
 *
 *     y[i,o] = sum_k x[i,k] W[o,k]      W: [n_out, n_in], x: [n_row, n_in], y: rows of n_out
 *
 * A shape is a product without its number of rows; numbers of rows are grouped in buckets (32, 48,
 * 64, 96 …: powers of two and the midpoints between them), and each shape and bucket has one
 * choice: our own kernel (the default) or an algorithm. tune.h makes the choices and tune_file.h
 * saves them. This module launches no kernel of ours and does not use CUDA: it is plain C over
 * lt_api.h.
 *
 * A row's bits depend on the number of rows (another bucket's algorithm may split K differently),
 * so a device opened with `deterministic` has no struct lt.
 * Threads: the device's. lt_run allocates nothing of ours. */
#ifndef QUIRE_KERNELS_CUDA_LT_H
#define QUIRE_KERNELS_CUDA_LT_H
#include "common/err.h"
#include "kernels/cuda/lt_call.h"

#define LT_SHAPES_MAX     64u
#define LT_BUCKETS        20u
#define LT_CANDIDATES_MAX 8u

/* workspace_max: bytes that an algorithm may ask for. Errors: Q_NO_MEMORY; Q_IO (the library's
 * status). */
FALLIBLE lt_open(struct lt **out, const struct lt_api *api, size_t workspace_max, struct q_err *e);
void lt_close(struct lt *lt); /* takes NULL */
size_t lt_version(const struct lt *lt);

/* The bucket of n_row; the last one has no upper limit. n_row at least LT_ROWS_MIN. */
uint32_t lt_bucket(uint32_t n_row);
uint32_t lt_bucket_rows(uint32_t bucket); /* the most rows of it */

/* Algorithms for n_row rows, best guess first, at most LT_CANDIDATES_MAX; 0: the library has none,
 * or there are LT_SHAPES_MAX shapes already. */
uint32_t lt_candidates(struct lt *lt, const struct lt_shape *s, uint32_t n_row,
                       struct lt_choice *out);
void lt_keep(struct lt *lt, const struct lt_shape *s, uint32_t bucket, const struct lt_choice *c);
void lt_set_trial(struct lt *lt, const struct lt_choice *c); /* borrowed; NULL: none */

uint64_t lt_n_run(const struct lt *lt);     /* products launched by the library so far */
uint64_t lt_n_refused(const struct lt *lt); /* and products that it rejected */

#endif
