/* SPDX-License-Identifier: Apache-2.0 */
/* pool_rows: the reference against f64, variants against the reference, and a sequence alone
 * against the sequence among others. */
#include "kcheck.h"
#include <math.h>
#include <string.h>

#define SEQS_MAX 9u

struct pool_case {
    struct pool_rows_args a;
    struct attention_seq seqs[SEQS_MAX];
    uint32_t n_x;
};

/* Sequences of which some have a row that is asked for; others have none, or are empty. */
static void make_case(struct kcheck *k, struct pool_case *c)
{
    static const char *const names[] = {"one", "mean", "max", "weighted mean", "mean by sqrt(n)"};
    struct pool_rows_args *a = &c->a;
    *c = (struct pool_case){.a.n_seq = kc_range(k, 1, SEQS_MAX)};
    uint32_t *rows = kc_buf(k, SEQS_MAX * sizeof *rows);
    a->kind = (enum pool_rows_kind)kc_range(k, 0, POOL_ROWS_KINDS - 1);
    a->n_col = kc_chance(k, 30) ? kc_range(k, 60, 300) : kc_range(k, 1, 20);
    for (uint32_t i = 0; i < a->n_seq; i++) {
        const uint32_t n = kc_chance(k, 20) ? 0 : kc_range(k, 1, kc_chance(k, 20) ? 70 : 9);
        c->seqs[i] = (struct attention_seq){.row = c->n_x, .n_query = n};
        if (n && kc_chance(k, 70))
            rows[a->n_row++] = c->n_x + kc_range(k, 0, n - 1);
        c->n_x += n;
    }
    a->rows = rows;
    a->seqs = kc_copy(k, c->seqs, sizeof c->seqs);
    a->x_stride = a->n_col + kc_range(k, 0, 5);
    a->y_stride = a->n_col + kc_range(k, 0, 5);
    float *x = kc_buf(k, (c->n_x * a->x_stride + 1) * sizeof *x);
    kc_fill(k, x, c->n_x * a->x_stride);
    a->x = x;
    kc_shape(k, "%u rows of %u sequences, %u columns, %s", a->n_row, a->n_seq, a->n_col,
             names[a->kind]);
}

static const struct attention_seq *seq_of(const struct pool_case *c, uint32_t row)
{
    const struct attention_seq *q = c->seqs;
    while (row - q->row >= q->n_query)
        q++;
    return q;
}

static double weight_of(enum pool_rows_kind kind, uint32_t k, uint32_t n)
{
    return kind == POOL_ROWS_WEIGHTED_MEAN   ? (double)k / ((double)n * (n + 1.0) / 2)
           : kind == POOL_ROWS_MEAN_SQRT_LEN ? 1 / sqrt((double)n)
                                             : 1.0 / n;
}

static void near_f64(struct kcheck *k, const struct pool_case *c, uint32_t i)
{
    const struct pool_rows_args *a = &c->a;
    const struct attention_seq *q = seq_of(c, a->rows[i]);
    const bool is_one = a->kind == POOL_ROWS_ONE;
    const uint32_t first = is_one ? a->rows[i] : q->row, n = is_one ? 1 : q->n_query;
    for (uint32_t col = 0; col < a->n_col; col++) {
        double sum = 0, size = 0, most = -INFINITY;
        for (uint32_t r = 0; r < n; r++) {
            const double x = (double)a->x[(first + r) * a->x_stride + col];
            sum += x * weight_of(a->kind, r + 1, n);
            size += fabs(x) * fmax(weight_of(a->kind, r + 1, n), 1.0 / n) * n;
            most = fmax(most, x);
        }
        const bool is_max = a->kind == POOL_ROWS_MAX;
        kc_near(k, "y", (double)a->y[i * a->y_stride + col], is_max ? most : sum,
                is_max ? 0 : size * 0x1p-23);
    }
}

/* The row of its sequence alone, whose rows begin with number 0. */
static void check_alone(struct kcheck *k, const struct pool_case *c, uint32_t i)
{
    struct pool_rows_args one = c->a;
    const struct attention_seq *q = seq_of(c, one.rows[i]);
    const uint32_t row = one.rows[i] - q->row;
    const struct attention_seq seq = {.n_query = q->n_query};
    const float *want = one.y + i * one.y_stride;
    one.x += q->row * one.x_stride;
    one.y = kc_buf(k, one.y_stride * sizeof *one.y);
    one.rows = kc_copy(k, &row, sizeof row);
    one.seqs = kc_copy(k, &seq, sizeof seq);
    one.n_row = one.n_seq = 1;
    kc_run(k, k->variant, &one, 1);
    kc_same_bits(k, "sequence alone", (struct kc_bits){one.y, want, DT_F32, one.n_col});
}

void kcheck_pool_rows(struct kcheck *k)
{
    struct pool_case c;
    k->specials = false;
    make_case(k, &c);
    const size_t n_y = SEQS_MAX * c.a.y_stride;
    float *want = c.a.y = kc_buf(k, n_y * sizeof *want);
    kc_run(k, k->ref, &c.a, 1);
    for (uint32_t i = 0; i < c.a.n_row; i++)
        near_f64(k, &c, i);
    c.a.y = kc_buf(k, n_y * sizeof *c.a.y);
    kc_run(k, k->variant, &c.a, kc_range(k, 1, 4));
    kc_compare(k, "y", &(struct kc_array){c.a.y, DT_F32, c.a.n_row, c.a.n_col, c.a.y_stride},
               &(struct kc_array){want, DT_F32, c.a.n_row, c.a.n_col, c.a.y_stride});
    for (uint32_t i = 0; i < c.a.n_row; i++)
        check_alone(k, &c, i);
}

void kbench_pool_rows(struct kc_bench *b)
{
    const uint32_t n_seq = 16, n = 128, n_col = 768;
    struct attention_seq seqs[16];
    uint32_t rows[16];
    float *x = kc_buf(b->k, (size_t)n_seq * n * n_col * sizeof *x);
    kc_fill(b->k, x, (size_t)n_seq * n * n_col);
    for (uint32_t i = 0; i < n_seq; i++) {
        seqs[i] = (struct attention_seq){.row = i * n, .n_query = n};
        rows[i] = i * n + n - 1;
    }
    const struct pool_rows_args a = {
        .y = kc_buf(b->k, n_seq * n_col * sizeof *a.y),
        .x = x,
        .rows = rows,
        .seqs = seqs,
        .n_row = n_seq,
        .n_seq = n_seq,
        .n_col = n_col,
        .x_stride = n_col,
        .y_stride = n_col,
        .kind = POOL_ROWS_MEAN,
    };
    kc_print_bytes(b, "means of 16 x 128 x 768", kc_time(b, &a), 4.0 * n_seq * n * n_col);
}
