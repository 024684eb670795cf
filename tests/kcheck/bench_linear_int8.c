/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int8 and linear_w4a8 in the cases whose speed matters: one pass over weights larger than
 * the caches, and prompts. */
#include "kcheck.h"

#define BIG_OUT 262144u
#define BIG_IN  1792u
#define GROUP   128u

/* group 0: int8. */
static struct linear_w4a8_args make_args(struct kc_bench *b, const struct packed *w, uint32_t n_row)
{
    const size_t n_sum = (size_t)n_row * w->n_in / KERN_INT8_SUM;
    struct quant_row *rows = kc_buf(b->k, n_row * sizeof *rows);
    int8_t *x = kc_buf(b->k, (size_t)n_row * w->n_in);
    int16_t *sums = kc_buf(b->k, n_sum * sizeof *sums);
    memset(x, 3, (size_t)n_row * w->n_in);
    for (uint32_t i = 0; i < n_row; i++)
        rows[i] = (struct quant_row){1, 3 * (int32_t)w->n_in};
    for (size_t i = 0; i < n_sum; i++)
        sums[i] = 3 * KERN_INT8_SUM;
    return (struct linear_w4a8_args){
        .by =
            {
                .y = kc_buf(b->k, (size_t)n_row * w->n_out * sizeof(float)),
                .x = x,
                .rows = rows,
                .w = *w,
                .n_row = n_row,
                .x_stride = w->n_in,
                .y_stride = w->n_out,
            },
        .sums = sums,
    };
}

static struct bench_seconds time_of(struct kc_bench *b, const struct packed *w, uint32_t n_row)
{
    struct linear_w4a8_args a = make_args(b, w, n_row);
    return kc_time(b, w->group ? (const void *)&a : &a.by);
}

static void bench(struct kc_bench *b, uint32_t group)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32};
    static const uint32_t shapes[][3] = {
        {2048, 9728, 896}, {512, 9728, 896}, {512, 896, 4864}, {64, 9728, 896}, {16, 9728, 896},
    };
    static const struct {
        uint32_t caps;
        enum roofline_peak peak;
    } peaks[] = {
        {0, PEAK_I8_AVX2},
        {CAP_AVX_VNNI, PEAK_I8_VNNI32},
        {CAP_AVX512_VNNI, PEAK_I8_VNNI64},
        {CAP_AMX_INT8, PEAK_I8_AMX},
    };
    const size_t bytes =
        group ? packed_int4_bytes(BIG_OUT, BIG_IN, group) : packed_int8_bytes(BIG_OUT, BIG_IN);
    const char *name = group ? "int4" : "int8";
    char shape[64];
    if (!b->k->variant->caps)
        return; /* the reference would take minutes */
    void *weights = kc_map(bytes, true);
    struct packed w = {
        .data = weights,
        .n_out = BIG_OUT,
        .n_in = BIG_IN,
        .dtype = DT_I8,
        .group = group,
    };
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if ((b->k->variant->caps & peaks[i].caps) == peaks[i].caps)
            b->i_peak = peaks[i].peak;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(shape, sizeof shape, "%s %u x [%u,%u]", name, rows[i], BIG_OUT, BIG_IN);
        kc_print_bytes(b, shape, time_of(b, &w, rows[i]), (double)bytes);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        w.n_out = s[1];
        w.n_in = s[2];
        snprintf(shape, sizeof shape, "%s %u x [%u,%u]", name, s[0], s[1], s[2]);
        kc_print_flop(b, shape, time_of(b, &w, s[0]), 2.0 * s[0] * s[1] * s[2]);
    }
    kc_unmap(weights, bytes);
    kc_end_case(b->k);
}

void kbench_linear_int8(struct kc_bench *b)
{
    bench(b, 0);
}

void kbench_linear_w4a8(struct kc_bench *b)
{
    bench(b, GROUP);
}
