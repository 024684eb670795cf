/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows: against the reference byte for byte, the reference against the definition in f64. */
#include "kcheck.h"
#include <math.h>

#define ROUND 64u /* bytes a row is padded to */

struct rows_case {
    struct quant_rows_args a;
    size_t n_q;
};

static const uint32_t *shuffled(struct kcheck *k, uint32_t n)
{
    uint32_t *at = kc_buf(k, n * sizeof *at);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = kc_range(k, 0, i);
        at[i] = at[j];
        at[j] = i;
    }
    return at;
}

static void make_case(struct kcheck *k, struct rows_case *c)
{
    uint32_t n_row = kc_range(k, 0, 9), n_col = kc_range(k, 1, kc_chance(k, 50) ? 40 : 700);
    size_t x_stride = n_col + kc_range(k, 0, 7);
    float *x = kc_buf(k, (n_row ? (n_row - 1) * x_stride + n_col : 0) * sizeof *x);
    for (uint32_t i = 0; i < n_row; i++) {
        k->scale = kc_chance(k, 10) ? 0x1p-102f : kc_chance(k, 10) ? 0x1p+100f : 1;
        kc_fill(k, x + i * x_stride, n_col);
        if (kc_chance(k, 10))
            memset(x + i * x_stride, 0, n_col * sizeof *x);
    }
    k->scale = 1;
    *c = (struct rows_case){.a = {.x = x, .n_row = n_row, .n_col = n_col, .x_stride = x_stride}};
    if (kc_chance(k, 50))
        c->a.order = shuffled(k, n_col);
    c->a.q_stride = (n_col + ROUND - 1) / ROUND * ROUND + ROUND * kc_range(k, 0, 1);
    c->n_q = n_row * c->a.q_stride;
    kc_shape(k, "n_row %u n_col %u", n_row, n_col);
}

/* Every value is within half a step of its source, zeros follow, and the sum is correct. */
static void near_f64(struct kcheck *k, const struct rows_case *c)
{
    for (uint32_t i = 0; i < c->a.n_row; i++) {
        const int8_t *q = c->a.q + i * c->a.q_stride;
        double scale = c->a.rows[i].scale, sum = 0;
        for (uint32_t j = 0; j < (c->a.n_col + ROUND - 1) / ROUND * ROUND; j++) {
            uint32_t at = c->a.order && j < c->a.n_col ? c->a.order[j] : j;
            double x = j < c->a.n_col ? c->a.x[i * c->a.x_stride + at] : 0;
            sum += q[j];
            if (fabs(q[j] * scale - x) > scale * 0.50001 + 0x1p-100)
                kc_fail(k, "q[%u,%u] is %d, wanted %g / %g", i, j, q[j], x, scale);
        }
        kc_near(k, "sum", c->a.rows[i].sum, sum, 0);
        for (uint32_t j = 0; c->a.sums && j < (c->a.n_col + ROUND - 1) / ROUND * 2; j++) {
            sum = 0;
            for (uint32_t d = 32 * j; d < 32 * (j + 1); d++)
                sum += q[d];
            kc_near(k, "sum of 32", c->a.sums[i * c->a.q_stride / 32 + j], sum, 0);
        }
    }
}

void kcheck_quant_rows(struct kcheck *k)
{
    struct rows_case c;
    make_case(k, &c);
    size_t rows_bytes = c.a.n_row * sizeof *c.a.rows;
    struct quant_rows_args want = c.a, got = c.a;
    want.q = kc_buf(k, c.n_q);
    want.rows = kc_buf(k, rows_bytes);
    size_t sums_bytes = kc_chance(k, 50) ? c.n_q / 32 * sizeof *want.sums : 0;
    want.sums = sums_bytes ? kc_buf(k, sums_bytes) : NULL;
    got.sums = sums_bytes ? kc_copy(k, want.sums, sums_bytes) : NULL;
    got.q = kc_copy(k, want.q, c.n_q);
    got.rows = kc_buf(k, rows_bytes);
    kc_run(k, k->ref, &want, 1);
    c.a = want;
    if (!k->specials)
        near_f64(k, &c);
    kc_run(k, k->variant, &got, kc_range(k, 1, 5));
    kc_same_bits(k, "q", (struct kc_bits){got.q, want.q, DT_I8, c.n_q});
    kc_same_bits(k, "sums", (struct kc_bits){got.sums, want.sums, DT_I8, sums_bytes});
    for (uint32_t i = 0; i < c.a.n_row; i++) {
        kc_same_bits(k, "scale",
                     (struct kc_bits){&got.rows[i].scale, &want.rows[i].scale, DT_F32, 1});
        kc_near(k, "sum", got.rows[i].sum, want.rows[i].sum, 0);
    }
}

void kbench_quant_rows(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_col = 896;
    struct quant_rows_args a = {
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = n_col,
        .q_stride = n_col,
    };
    float *x = kc_buf(b->k, (size_t)n_row * n_col * sizeof *x);
    kc_fill(b->k, x, (size_t)n_row * n_col);
    a.x = x;
    a.q = kc_buf(b->k, (size_t)n_row * n_col);
    a.rows = kc_buf(b->k, n_row * sizeof *a.rows);
    kc_print_bytes(b, "512 x 896", kc_time(b, &a), 5.0 * n_row * n_col);
}
