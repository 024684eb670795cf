/* SPDX-License-Identifier: Apache-2.0 */
/* lt_call - a matrix product by cuBLASLt, as called by the launchers (linear_lt.cu); C and C++.
 * Terms: lt.h. Threads: the device's; allocates nothing. */
#ifndef QUIRE_KERNELS_CUDA_LT_CALL_H
#define QUIRE_KERNELS_CUDA_LT_CALL_H
#include <stdbool.h>
#include "kernels/cuda/lt_api.h"

struct kern_exec;
struct lt;

#define LT_ROWS_MIN 17u /* fewer rows: our own kernels, which read W once at bandwidth */
#define LT_ALIGN    16u /* bytes: of every array and row stride */

enum lt_kind { LT_KIND_BF16, LT_KIND_F16, LT_KIND_I8, LT_KIND_E4M3, LT_KINDS };
/* Destination of the sums. LT_TO_Y: y itself, f32 (the library then applies scales of e4m3, bias
 * and accumulate). LT_TO_SUMS: workspace, f32 (int8: int32) [n_row, n_out]; a kernel of ours
 * applies the epilogue. */
enum lt_target { LT_TO_Y, LT_TO_SUMS };

struct lt_shape {
    enum lt_kind kind;
    uint32_t n_out, n_in;
    enum lt_target target;
    bool has_bias, accumulate; /* false with LT_TO_SUMS: the epilogue applies them */
    bool gated;                /* changes only the epilogue, and so the time */
};

/* Derive target, has_bias and accumulate from the product: target is LT_TO_Y if y is f32 and the
 * library has all that makes it. */
void lt_shape_settle(struct lt_shape *s);

struct lt_choice {
    bool is_own; /* our kernel; the following members are 0 then */
    /* As LT_TO_SUMS. Of e4m3 with LT_TO_Y too where it is faster so, or where the library or the
     * card has no scales for each row and output. */
    bool by_sums;
    struct lt_algo algo;
    size_t workspace_bytes;
};

struct lt_call {
    struct lt_shape shape;
    uint32_t n_row;     /* of this call */
    uint32_t n_row_all; /* of the whole product, of which this call may be a part: it determines
                         * the bucket */
    const void *w, *x;
    void *y;                   /* or the sums */
    size_t x_stride, y_stride; /* elements */
    const float *bias;
    const float *w_scales, *x_scales; /* of e4m3, not by sums: [n_out], [n_row] */
    void *workspace;                  /* choice.workspace_bytes of it */
    void *stream;                     /* cudaStream_t */
};

/* The choice for n_row rows; NULL: our own kernel. While a trial is set, the trial. */
const struct lt_choice *lt_choice_of(const struct lt *lt, const struct lt_shape *s, uint32_t n_row);
/* Launch the product on the stream. False: the library rejected it and nothing was launched; from
 * then on our own kernel serves that bucket. */
bool lt_run(struct lt *lt, const struct lt_call *c, const struct lt_choice *choice);
/* Bytes of workspace that an algorithm may have. */
size_t lt_workspace_max(const struct lt *lt);

/* The struct lt of the device of x; NULL: it has none. Defined in device.c and in tests. */
struct lt *lt_of(const struct kern_exec *x);
/* cudaStream_t of x. */
void *lt_stream_of(const struct kern_exec *x);

#endif
