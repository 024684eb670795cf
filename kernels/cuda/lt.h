/* SPDX-License-Identifier: Apache-2.0 */
/* lt - matrix products by cuBLASLt, and which algorithm of its serves what.
 *
 *     y[i,o] = sum_k x[i,k] W[o,k]      W: [n_out, n_in], x: [n_row, n_in], y: rows of n_out
 *
 * A shape is all of a product but its number of rows; rows are taken together in buckets (32, 48,
 * 64, 96 …: powers of two and the middle between two), and each shape and bucket has one choice:
 * our own kernel, or an algorithm. Nobody has chosen: our own kernel. Choices are made by tune.h
 * and kept on disk by tune_file.h. Nothing here launches a kernel of ours or knows CUDA: this is
 * plain C over lt_api.h.
 *
 * A row's bits depend on the rows beside it (an algorithm may cut K otherwise for another bucket),
 * so a device that was opened `deterministic` has no struct lt.
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

/* The bucket that n_row is in; the last one has all that are more. n_row at least LT_ROWS_MIN. */
uint32_t lt_bucket(uint32_t n_row);
uint32_t lt_bucket_rows(uint32_t bucket); /* the most rows of it */

/* Algorithms for n_row rows, best guess first, at most LT_CANDIDATES_MAX; 0: the library has none,
 * or there are LT_SHAPES_MAX shapes already. */
uint32_t lt_candidates(struct lt *lt, const struct lt_shape *s, uint32_t n_row,
                       struct lt_choice *out);
void lt_keep(struct lt *lt, const struct lt_shape *s, uint32_t bucket, const struct lt_choice *c);
void lt_set_trial(struct lt *lt, const struct lt_choice *c); /* borrowed; NULL: none */

uint64_t lt_n_run(const struct lt *lt);     /* products given to the library so far */
uint64_t lt_n_refused(const struct lt *lt); /* and those it refused */

#endif
