/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of several residual streams, and sparse gates (ops_streams.h). */
#include <math.h>
#include "kcheck.h"
#include "kernels/tiling/streams.h"

struct rows {           /* of streams, with scores and weights */
    float *x[2], *s[2]; /* of the reference, of the variant */
    float *scores, *w;
    const float *x_before, *s_before;
    uint32_t n_row, n, n_col;
    size_t x_stride, s_stride, scores_stride;
};

static float *filled(struct kcheck *k, size_t n)
{
    float *x = kc_buf(k, (n + 1) * sizeof *x);
    kc_fill(k, x, n);
    return x;
}

static struct rows make_rows(struct kcheck *k)
{
    struct rows r = {
        .n_row = kc_range(k, 0, 5),
        .n = kc_range(k, 2, KERN_STREAMS_MAX),
        .n_col = kc_range(k, 1, 100),
    };
    r.x_stride = r.n_col + kc_range(k, 0, 9);
    r.s_stride = r.n * r.n_col + kc_range(k, 0, 9);
    r.scores_stride = r.n + kc_range(k, 0, 3);
    kc_shape(k, "n_row %u n %u n_col %u", r.n_row, r.n, r.n_col);
    r.x_before = filled(k, r.n_row * r.x_stride);
    r.s_before = filled(k, r.n_row * r.s_stride);
    r.scores = filled(k, r.n_row * r.scores_stride);
    r.w = filled(k, (size_t)r.n * r.n * r.n);
    for (int i = 0; i < 2; i++) {
        r.x[i] = kc_copy(k, r.x_before, (r.n_row * r.x_stride + 1) * sizeof(float));
        r.s[i] = kc_copy(k, r.s_before, (r.n_row * r.s_stride + 1) * sizeof(float));
    }
    return r;
}

static void compare(struct kcheck *k, const struct rows *r)
{
    kc_compare(k, "x", &(struct kc_array){r->x[1], DT_F32, r->n_row, r->n_col, r->x_stride},
               &(struct kc_array){r->x[0], DT_F32, r->n_row, r->n_col, r->x_stride});
    kc_compare(k, "s", &(struct kc_array){r->s[1], DT_F32, r->n_row, r->n * r->n_col, r->s_stride},
               &(struct kc_array){r->s[0], DT_F32, r->n_row, r->n * r->n_col, r->s_stride});
}

/* sum_k w[j,k] tanh(scores[k]), and the sum of the magnitudes */
static double factor(const struct rows *r, uint32_t i, uint32_t j, double *size)
{
    double sum = 0;
    *size = 0;
    for (uint32_t k = 0; k < r->n; k++) {
        const double term =
            (double)r->w[j * r->n + k] * tanh((double)r->scores[i * r->scores_stride + k]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static double magnitude(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t c = 0; c < n; c++)
        sum += (double)x[c] * x[c];
    return sum / n;
}

void kcheck_stream_match(struct kcheck *k)
{
    const struct rows r = make_rows(k);
    if (kc_chance(k, 20) && r.n_row) /* a stream of zeros stays one */
        for (int i = 0; i < 2; i++)
            memset(r.s[i], 0, r.n_col * sizeof(float));
    const float *before = kc_copy(k, r.s[0], (r.n_row * r.s_stride + 1) * sizeof *before);
    struct stream_match_args a = {
        .s = r.s[0],
        .x = r.x[0],
        .n_row = r.n_row,
        .n_part = r.n,
        .n_col = r.n_col,
        .s_stride = r.s_stride,
        .x_stride = r.x_stride,
    };
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < r.n_row && !k->specials; i++)
        for (uint32_t j = 0; j < r.n; j++) {
            const size_t at = i * r.s_stride + j * r.n_col;
            const double of = sqrt(magnitude(r.x_before + i * r.x_stride, r.n_col));
            const double by = of / sqrt(fmax(magnitude(before + at, r.n_col), 1e-5));
            for (uint32_t c = 0; c < r.n_col; c++)
                kc_near(k, "s", r.s[0][at + c], before[at + c] * by,
                        fabs(before[at + c] * by) * 24 * 0x1p-24 + 1e-37);
        }
    a.s = r.s[1];
    a.x = r.x[1];
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    compare(k, &r);
}

/* i: 0 of the reference, 1 of the variant */
static struct stream_args args_of(const struct rows *r, int i)
{
    return (struct stream_args){
        .x = r->x[i],
        .s = r->s[i],
        .scores = r->scores,
        .w = r->w,
        .n_row = r->n_row,
        .n = r->n,
        .n_col = r->n_col,
        .x_stride = r->x_stride,
        .s_stride = r->s_stride,
        .scores_stride = r->scores_stride,
    };
}

void kcheck_stream_predict(struct kcheck *k)
{
    const struct rows r = make_rows(k);
    struct stream_predict_args a = {args_of(&r, 0)};
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < r.n_row && !k->specials; i++)
        for (uint32_t c = 0; c < r.n_col; c++)
            for (uint32_t j = 0; j < r.n; j++) {
                const float *s = r.s_before + i * r.s_stride + c;
                double h[KERN_STREAMS_MAX] = {r.x_before[i * r.x_stride + c]}, size;
                for (uint32_t f = 1; f < r.n; f++)
                    h[f] = s[f * r.n_col];
                double y = h[j], all = fabs(h[j]);
                for (uint32_t f = 0; f < r.n; f++) {
                    y += factor(&r, i, j * r.n + f, &size) * h[f];
                    all += size * fabs(h[f]);
                }
                kc_near(k, "s", r.s[0][i * r.s_stride + j * r.n_col + c], y,
                        all * 14 * 0x1p-24 + 1e-37);
                if (j == 0)
                    kc_near(k, "x", r.x[0][i * r.x_stride + c], y, all * 14 * 0x1p-24 + 1e-37);
            }
    a.by = args_of(&r, 1);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    compare(k, &r);
}

void kcheck_stream_correct(struct kcheck *k)
{
    const struct rows r = make_rows(k);
    const float *scale = kc_chance(k, 50) ? filled(k, r.n_col) : NULL;
    struct stream_correct_args a = {args_of(&r, 0), scale};
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < r.n_row && !k->specials; i++)
        for (uint32_t c = 0; c < r.n_col; c++)
            for (uint32_t j = 0; j < r.n; j++) {
                const float *s = r.s_before + i * r.s_stride + c;
                const double x = r.x_before[i * r.x_stride + c], p = s[j * r.n_col], first = s[0];
                double size;
                const double y = p + (x - first) * (1 + factor(&r, i, j, &size));
                const double all = fabs(p) + (fabs(x) + fabs(first)) * (1 + size);
                const double by = scale && j == 0 ? scale[c] : 1;
                kc_near(k, "s", r.s[0][i * r.s_stride + j * r.n_col + c], y * by,
                        fabs(by) * all * 13 * 0x1p-24 + 1e-37);
                if (j == 0)
                    kc_near(k, "x", r.x[0][i * r.x_stride + c], y, all * 12 * 0x1p-24 + 1e-37);
            }
    a.by = args_of(&r, 1);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    compare(k, &r);
}

void kcheck_sparse_gate(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    const size_t stride = n_col + kc_range(k, 0, 9), n = n_row * stride;
    const float cutoff = kc_chance(k, 50) ? 1.6448536f : kc_f32(k);
    kc_shape(k, "n_row %u n_col %u cutoff %g", n_row, n_col, (double)cutoff);
    float *x = kc_buf(k, (n + 1) * sizeof *x);
    kc_fill(k, x, n);
    float *want = kc_copy(k, x, n * sizeof *x), *got = kc_copy(k, x, n * sizeof *x);
    struct sparse_gate_args a = {
        .x = want,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = stride,
        .cutoff = cutoff,
    };
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < n_row && !k->specials; i++) {
        double mean = 0, variance = 0, size = 0;
        for (uint32_t c = 0; c < n_col; c++)
            mean += (double)x[i * stride + c] / n_col;
        for (uint32_t c = 0; c < n_col; c++) {
            variance += pow(x[i * stride + c] - mean, 2) / n_col;
            size = fmax(size, fabs((double)x[i * stride + c]));
        }
        const double t = mean + sqrt(variance) * cutoff;
        for (uint32_t c = 0; c < n_col; c++)
            kc_near(k, "x", want[i * stride + c], fmax(x[i * stride + c] - t, 0),
                    size * (1 + fabs((double)cutoff)) * 30 * 0x1p-24 + 1e-37);
    }
    a.x = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "x", &(struct kc_array){got, DT_F32, n_row, n_col, stride},
               &(struct kc_array){want, DT_F32, n_row, n_col, stride});
}

/* ---- speed ---- */

#define BENCH_ROWS 64u
#define BENCH_COLS 2048u
#define BENCH_N    4u

static float *bench_rows(struct kc_bench *b, size_t n)
{
    float *x = kc_buf(b->k, n * sizeof *x);
    kc_fill(b->k, x, n);
    return x;
}

void kbench_stream_match(struct kc_bench *b)
{
    const size_t n = (size_t)BENCH_ROWS * BENCH_COLS;
    const struct stream_match_args a = {
        .s = bench_rows(b, (BENCH_N - 1) * n),
        .x = bench_rows(b, n),
        .n_row = BENCH_ROWS,
        .n_part = BENCH_N - 1,
        .n_col = BENCH_COLS,
        .s_stride = (size_t)(BENCH_N - 1) * BENCH_COLS,
        .x_stride = BENCH_COLS,
    };
    kc_print_bytes(b, "64 x 3 x 2048", kc_time(b, &a), (double)n * (BENCH_N - 1) * 8);
}

static struct stream_args bench_args(struct kc_bench *b, size_t n_w)
{
    const size_t n = (size_t)BENCH_ROWS * BENCH_COLS;
    return (struct stream_args){
        .x = bench_rows(b, n),
        .s = bench_rows(b, BENCH_N * n),
        .scores = bench_rows(b, (size_t)BENCH_ROWS * BENCH_N),
        .w = memset(bench_rows(b, n_w), 0, n_w * sizeof(float)), /* the same streams again */
        .n_row = BENCH_ROWS,
        .n = BENCH_N,
        .n_col = BENCH_COLS,
        .x_stride = BENCH_COLS,
        .s_stride = (size_t)BENCH_N * BENCH_COLS,
        .scores_stride = BENCH_N,
    };
}

static const double bench_bytes = (double)BENCH_ROWS * BENCH_COLS * (BENCH_N + 1) * 8;

void kbench_stream_predict(struct kc_bench *b)
{
    const struct stream_predict_args a = {bench_args(b, BENCH_N * BENCH_N * BENCH_N)};
    kc_print_bytes(b, "64 x 4 x 2048", kc_time(b, &a), bench_bytes);
}

void kbench_stream_correct(struct kc_bench *b)
{
    const struct stream_correct_args a = {bench_args(b, BENCH_N * BENCH_N), NULL};
    kc_print_bytes(b, "64 x 4 x 2048", kc_time(b, &a), bench_bytes);
}

void kbench_sparse_gate(struct kc_bench *b)
{
    const uint32_t n_col = 16384;
    const struct sparse_gate_args a = {
        .x = bench_rows(b, (size_t)BENCH_ROWS * n_col),
        .n_row = BENCH_ROWS,
        .n_col = n_col,
        .x_stride = n_col,
        .cutoff = 1.6448536f,
    };
    kc_print_bytes(b, "64 x 16384", kc_time(b, &a), BENCH_ROWS * (double)n_col * 8);
}
