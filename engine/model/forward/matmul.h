/* SPDX-License-Identifier: Apache-2.0 */
/* matmul - a product with a packed matrix of any form, and the conversion of rows into the bytes
 * that it reads. Both executors select the kernel for a matrix format here and nowhere else.
 *
 *     weights             input       by rows           by groups (experts on a device)
 *     f32, f16, bf16      floats      linear            linear_grouped
 *     4 or 8 bits, codes  floats      linear_codes      (CPU only)
 *     int8                int8        linear_int8       linear_int8_grouped
 *     4 bits in groups    int8        linear_w4a8       linear_w4a8_grouped
 *     4 bits in groups    16 bits     linear_w4a16      linear_w4a16_grouped
 *     e4m3                e4m3        linear_fp8        linear_fp8_grouped
 *     e4m3, blocks        e4m3        linear_fp8_block  linear_fp8_block_grouped
 *
 * Threads: as kernels/ops/ops.h: every thread calls it with its own kern_exec. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_MATMUL_H
#define QUIRE_ENGINE_MODEL_FORWARD_MATMUL_H
#include "kernels/kern.h"

static inline bool matmul_reads_bytes(enum dtype input)
{
    return input == DT_I8 || input == DT_F8_E4M3;
}

struct matmul_rows { /* of activations: floats, or bytes with their scales */
    void *x;
    size_t stride; /* elements */
    enum dtype dtype;
    struct quant_row *rows; /* of bytes */
    int16_t *sums;          /* of int8 for weights of 4 bits: [rows, stride / KERN_INT8_SUM] */
    float *scales;          /* of blocks of e4m3 */
    size_t scale_stride;
};
/* Rows from i on. */
struct matmul_rows matmul_rows_at(const struct matmul_rows *r, size_t i);

struct matmul { /* y = W x + bias, onto y when `add`; of interleaved weights the gated product */
    const struct packed *w;
    const float *bias; /* NULL: none */
    const struct matmul_rows *x;
    void *y;
    enum dtype y_dtype;
    size_t y_stride;
    uint32_t n_row;
    bool add;
    const struct groups *groups; /* NULL: all rows by w; else w is the matrix of expert 0 */
};
void matmul_run(const struct kern_table *k, const struct matmul *m, const struct kern_exec *x);

struct matmul_source { /* floats of which a product's bytes are made */
    const float *x;
    size_t stride;
    uint32_t n_row, n_col;
    const uint32_t *order; /* of int8; NULL: none */
    float scale;           /* of e4m3 without scales of blocks: packed.x_scale */
};
/* Bytes of to->dtype, with scales of blocks where to->scales is set, sums where to->sums is. */
void matmul_quantize(const struct kern_table *k, const struct matmul_rows *to,
                     const struct matmul_source *from, const struct kern_exec *x);

/* The operation that a product with w needs, by name, and whether the table has it. */
const char *matmul_needs(const struct packed *w, enum dtype input, bool grouped);
bool matmul_is_there(const struct kern_table *k, const struct packed *w, enum dtype input,
                     bool grouped);

#endif
