/* SPDX-License-Identifier: Apache-2.0 */
/* lt_call - a matrix product by cuBLASLt, as the launchers ask for it (linear_lt.cu); C and C++.
 * What there is besides, and the words: lt.h. Threads: the device's; allocates nothing. */
#ifndef QUIRE_KERNELS_CUDA_LT_CALL_H
#define QUIRE_KERNELS_CUDA_LT_CALL_H
#include <stdbool.h>
#include "kernels/cuda/lt_api.h"

struct kern_exec;
struct lt;

#define LT_ROWS_MIN 17u /* fewer are our own kernels', which read W once at bandwidth */
#define LT_ALIGN    16u /* bytes: of every array, and of what is between rows */

enum lt_kind { LT_KIND_BF16, LT_KIND_F16, LT_KIND_I8, LT_KIND_E4M3, LT_KINDS };
/* What becomes of the sums. LT_TO_Y: they are y, f32 (bias and accumulate are the product's own
 * then). LT_TO_SUMS: they go to workspace, f32 (int8: int32) [n_row, n_out], and a kernel of ours
 * finishes them. */
enum lt_target { LT_TO_Y, LT_TO_SUMS };

struct lt_shape {
    enum lt_kind kind;
    uint32_t n_out, n_in;
    enum lt_target target;
    bool has_bias, accumulate; /* false of LT_TO_SUMS: what finishes has them */
    bool gated;                /* changes only what finishes, and so the time */
};

/* target, has_bias and accumulate as they follow from what is asked for: target LT_TO_Y when y is
 * f32, has_bias and accumulate as the product has them. */
void lt_shape_settle(struct lt_shape *s);

struct lt_choice {
    bool is_own; /* our kernel; what follows is 0 then */
    struct lt_algo algo;
    size_t workspace_bytes;
};

struct lt_call {
    struct lt_shape shape;
    uint32_t n_row;     /* of this call */
    uint32_t n_row_all; /* of the product that it may be a piece of: its bucket */
    const void *w, *x;
    void *y;                   /* or the sums */
    size_t x_stride, y_stride; /* elements */
    const float *bias;
    void *workspace; /* choice.workspace_bytes of it */
    void *stream;    /* cudaStream_t */
};

/* What serves n_row rows; NULL: our own kernel. While a trial is set, that. */
const struct lt_choice *lt_choice_of(const struct lt *lt, const struct lt_shape *s, uint32_t n_row);
/* Give the product to the stream. False: the library refused it and nothing was given; from then
 * on our own kernel serves that bucket. */
bool lt_run(struct lt *lt, const struct lt_call *c, const struct lt_choice *choice);
/* Bytes of workspace that an algorithm may have. */
size_t lt_workspace_max(const struct lt *lt);

/* The products of the device behind x; NULL: it has none. The library's is in device.c, a test's
 * with the test. */
struct lt *lt_of(const struct kern_exec *x);
/* cudaStream_t of x. */
void *lt_stream_of(const struct kern_exec *x);

#endif
