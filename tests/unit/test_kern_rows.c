/* SPDX-License-Identifier: Apache-2.0 */
/* Products large enough that a kernel cuts rows and K into blocks, which kcheck's shapes are too
 * small for: a row has the bits that it has alone, beside any other rows. kcheck holds the row
 * alone to the reference. */
#include <stdlib.h>
#include "check.h"
#include "kernels/kern.h"

enum { OUT = 1000, IN = 6272, STRIDE = IN + 64, ROWS = 300, GROUP = 128 };

struct all {
    struct kern_table t;
    float *x, *y, *one; /* [ROWS][STRIDE]; [ROWS][OUT]; [OUT] */
    void *packed, *scratch[3];
    uint16_t *half;
    int8_t *q;
    int16_t *sums;
    struct quant_row *rows;
};

static void *room(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed * 0x1p-31f;
}

/* The weights as f32: [OUT, IN]. */
static float *weights(void)
{
    uint32_t seed = 2;
    float *w = room(sizeof *w * OUT * IN);
    for (size_t i = 0; i < (size_t)OUT * IN; i++)
        w[i] = noise(&seed);
    return w;
}

static int begin(void **state)
{
    struct all *a = calloc(1, sizeof *a);
    const size_t n = (size_t)ROWS * STRIDE;
    const struct kern_exec x = {.nth = 1};
    uint32_t seed = 1;
    kern_table_cpu(&a->t, UINT32_MAX);
    a->x = room(n * sizeof *a->x);
    a->half = room(n * sizeof *a->half);
    a->q = room(n);
    a->rows = room(ROWS * sizeof *a->rows);
    a->sums = room(n / KERN_INT8_SUM * sizeof *a->sums);
    a->y = room(sizeof *a->y * ROWS * OUT);
    a->one = room(sizeof *a->one * OUT);
    a->packed = room(packed_bytes(DT_F32, OUT, IN));
    for (int i = 0; i < 3; i++)
        a->scratch[i] = room(kern_scratch_bytes(1, 1, 64));
    for (size_t i = 0; i < n; i++) {
        a->x[i] = noise(&seed);
        a->half[i] = f32_to_bf16(a->x[i]);
    }
    a->t.quant_rows(
        &(struct quant_rows_args){
            .q = a->q,
            .rows = a->rows,
            .sums = a->sums,
            .x = a->x,
            .n_row = ROWS,
            .n_col = IN,
            .x_stride = STRIDE,
            .q_stride = STRIDE,
        },
        &x);
    *state = a;
    return 0;
}

static int end(void **state)
{
    struct all *a = *state;
    for (int i = 0; i < 3; i++)
        free(a->scratch[i]);
    free(a->x);
    free(a->half);
    free(a->q);
    free(a->rows);
    free(a->sums);
    free(a->y);
    free(a->one);
    free(a->packed);
    free(a);
    return 0;
}

/* The product of rows at … at + n - 1, by nth threads one after the other. */
typedef void product_fn(struct all *a, uint32_t at, uint32_t n, float *y,
                        const struct kern_exec *x);

static void run(struct all *a, product_fn *product, uint32_t at, uint32_t n, float *y, uint32_t nth)
{
    for (uint32_t i = 0; i < nth; i++)
        product(a, at, n, y,
                &(struct kern_exec){
                    .ith = i,
                    .nth = nth,
                    .scratch = a->scratch[i],
                    .scratch_bytes = kern_scratch_bytes(1, 1, 64),
                });
}

static void check(struct all *a, product_fn *product)
{
    static const uint32_t counts[] = {ROWS, 256, 250, 240}; /* a last group of 12, 32, 26 and 16 */
    for (uint32_t c = 0; c < 4; c++) {
        run(a, product, 0, counts[c], a->y, c % 2 ? 3 : 1);
        for (uint32_t i = 0; i < counts[c]; i += i == counts[c] - 20 ? 19 : 20) {
            run(a, product, i, 1, a->one, 1);
            assert_memory_equal(a->one, a->y + (size_t)i * OUT, OUT * sizeof *a->one);
        }
    }
}

static void by_halves(struct all *a, uint32_t at, uint32_t n, float *y, const struct kern_exec *x)
{
    const struct linear_args l = {
        .y = y,
        .y_dtype = DT_F32,
        .x = a->half + (size_t)at * STRIDE,
        .x_dtype = DT_BF16,
        .w = {.data = a->packed, .n_out = OUT, .n_in = IN, .dtype = DT_BF16},
        .n_row = n,
        .x_stride = STRIDE,
        .y_stride = OUT,
    };
    a->t.linear(&l, x);
}

static struct linear_int8_args quant_args(const struct all *a, uint32_t at, uint32_t n, float *y)
{
    return (struct linear_int8_args){
        .y = y,
        .y_dtype = DT_F32,
        .x = a->q + (size_t)at * STRIDE,
        .rows = a->rows + at,
        .w = {.data = a->packed, .n_out = OUT, .n_in = IN, .dtype = DT_I8},
        .n_row = n,
        .x_stride = STRIDE,
        .y_stride = OUT,
    };
}

static void by_bytes(struct all *a, uint32_t at, uint32_t n, float *y, const struct kern_exec *x)
{
    const struct linear_int8_args l = quant_args(a, at, n, y);
    a->t.linear_int8(&l, x);
}

static void by_int4(struct all *a, uint32_t at, uint32_t n, float *y, const struct kern_exec *x)
{
    struct linear_w4a8_args l = {
        .by = quant_args(a, at, n, y),
        .sums = a->sums + (size_t)at * STRIDE / KERN_INT8_SUM,
    };
    l.by.w.group = GROUP;
    a->t.linear_w4a8(&l, x);
}

static void test_bf16(void **state)
{
    struct all *a = *state;
    float *w = weights();
    const struct kern_exec x = {.nth = 1};
    const struct pack_args p = {
        .dst = a->packed,
        .dst_dtype = DT_BF16,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = OUT,
        .n_in = IN,
        .n_out_total = OUT,
    };
    a->t.pack(&p, &x);
    free(w);
    check(a, by_halves);
}

static void test_int8(void **state)
{
    struct all *a = *state;
    float *w = weights();
    const struct kern_exec x = {.nth = 1};
    const struct pack_int8_args p = {
        .dst = a->packed,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = OUT,
        .n_in = IN,
        .n_out_total = OUT,
    };
    a->t.pack_int8(&p, &x);
    free(w);
    check(a, by_bytes);
}

static void test_int4(void **state)
{
    struct all *a = *state;
    float *w = weights();
    const struct kern_exec x = {.nth = 1};
    const struct pack_int4_args p = {
        .dst = a->packed,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = OUT,
        .n_in = IN,
        .group = GROUP,
        .n_out_total = OUT,
    };
    a->t.pack_int4(&p, &x);
    free(w);
    check(a, by_int4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int4),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
