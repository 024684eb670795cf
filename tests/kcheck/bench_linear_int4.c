/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int4 where its speed is felt: one pass over weights that no cache holds, and prompts. */
#include "kcheck.h"

#define BIG_OUT 262144u
#define BIG_IN  1792u

static struct linear_int4_args make_args(struct kc_bench *b, const void *weights, uint32_t n_row,
                                         const uint32_t shape[2])
{
    const size_t n_sum = (size_t)n_row * shape[1] / KERN_QUANT_SUM;
    struct quant_row *rows = kc_buf(b->k, n_row * sizeof *rows);
    int8_t *x = kc_buf(b->k, (size_t)n_row * shape[1]);
    int16_t *sums = kc_buf(b->k, n_sum * sizeof *sums);
    memset(x, 3, (size_t)n_row * shape[1]);
    for (uint32_t i = 0; i < n_row; i++)
        rows[i] = (struct quant_row){1, 3 * (int32_t)shape[1]};
    for (size_t i = 0; i < n_sum; i++)
        sums[i] = 3 * KERN_QUANT_SUM;
    return (struct linear_int4_args){
        .y = kc_buf(b->k, (size_t)n_row * shape[0] * sizeof(float)),
        .x = x,
        .rows = rows,
        .sums = sums,
        .w = {.data = weights, .n_out = shape[0], .n_in = shape[1], .dtype = DT_I8, .group = 128},
        .n_row = n_row,
        .x_stride = shape[1],
        .y_stride = shape[0]};
}

void kbench_linear_int4(struct kc_bench *b)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32}, big[2] = {BIG_OUT, BIG_IN};
    static const uint32_t shapes[][3] = {{512, 9728, 896}, {512, 896, 4864}, {64, 9728, 896}};
    static const struct {
        uint32_t caps;
        enum roofline_peak peak;
    } peaks[] = {{0, PEAK_I8_AVX2},
                 {CAP_AVX_VNNI, PEAK_I8_VNNI32},
                 {CAP_AVX512_VNNI, PEAK_I8_VNNI64},
                 {CAP_AMX_INT8, PEAK_I8_AMX}};
    const size_t bytes = packed_int4_bytes(BIG_OUT, BIG_IN, 128);
    char shape[64];
    if (!b->k->variant->caps)
        return; /* the reference would take minutes */
    void *weights = kc_map(bytes, true);
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if ((b->k->variant->caps & peaks[i].caps) == peaks[i].caps)
            b->i_peak = peaks[i].peak;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct linear_int4_args a = make_args(b, weights, rows[i], big);
        snprintf(shape, sizeof shape, "int4 %u x [%u,%u]", rows[i], BIG_OUT, BIG_IN);
        kc_print_bytes(b, shape, kc_time(b, &a), (double)bytes);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct linear_int4_args a = make_args(b, weights, shapes[i][0], shapes[i] + 1);
        snprintf(shape, sizeof shape, "int4 %u x [%u,%u]", shapes[i][0], shapes[i][1],
                 shapes[i][2]);
        kc_print_flop(b, shape, kc_time(b, &a), 2.0 * shapes[i][0] * shapes[i][1] * shapes[i][2]);
    }
    kc_unmap(weights, bytes);
    kc_end_case(b->k);
}
