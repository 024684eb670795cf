/* SPDX-License-Identifier: Apache-2.0 */
/* Operations with states: the same bits in any parts of a sequence, with any snapshots. */
#include "kcheck.h"
#include <math.h>
#include <string.h>

#define PARTS_MAX 12u
#define SEQS_MAX  3u

#define PADS_MAX 2u

struct states { /* of a case: sequences whose rows are neighbours, and the pool */
    struct state_part parts[PARTS_MAX + PADS_MAX];
    uint32_t n_part, n_row, n_pool, n_seq, n_pad;
    uint32_t begin[SEQS_MAX + 1]; /* rows of sequence i: begin[i] … begin[i + 1] - 1 */
    size_t n_float;               /* of the operation in a row of the pool */
    float *pool;
};

/* Rows 0 … n_seq - 1 of the pool are the sequences', then as many to begin with, then snapshots. */
static void make_states(struct kcheck *k, struct states *s, size_t n_float)
{
    s->n_seq = kc_range(k, 1, SEQS_MAX);
    s->n_pool = 2 * s->n_seq + PARTS_MAX;
    s->n_float = n_float;
    s->pool = kc_buf(k, s->n_pool * n_float * sizeof *s->pool);
    kc_fill(k, s->pool, s->n_pool * n_float);
    s->n_part = s->n_row = 0;
    for (uint32_t q = 0; q < s->n_seq; q++) {
        const uint32_t n = kc_range(k, 1, PARTS_MAX / SEQS_MAX);
        const uint32_t start = kc_range(k, 0, 2);
        s->begin[q] = s->n_row;
        for (uint32_t i = 0; i < n; i++) {
            struct state_part *p = &s->parts[s->n_part];
            *p = (struct state_part){s->n_row, kc_range(k, 1, 9), q, q, KERN_STATE_NONE};
            if (i == 0)
                p->from = start == 0 ? KERN_STATE_ZERO : start == 1 ? q : s->n_seq + q;
            if (kc_chance(k, 50))
                p->to = 2 * s->n_seq + s->n_part;
            s->n_row += p->n_row;
            s->n_part++;
        }
    }
    s->begin[s->n_seq] = s->n_row;
    s->n_pad = kc_range(k, 0, PADS_MAX);
    for (uint32_t i = 0; i < s->n_pad; i++)
        s->parts[s->n_part + i] =
            (struct state_part){UINT32_MAX, 0, KERN_STATE_NONE, KERN_STATE_NONE, KERN_STATE_NONE};
}

static struct state_rows rows_of(const struct states *s, float *pool)
{
    return (struct state_rows){
        .parts = s->parts,
        .n_part = s->n_part + s->n_pad,
        .pool = pool,
        .stride = s->n_float,
        .n_row = s->n_row,
    };
}

/* The pool of a variant and the reference's: equal where no libraries' e^x differ. */
static void compare_pools(struct kcheck *k, const struct states *s, const float *got,
                          const float *want)
{
    kc_compare(k, "states", &(struct kc_array){got, DT_F32, s->n_pool, s->n_float, s->n_float},
               &(struct kc_array){want, DT_F32, s->n_pool, s->n_float, s->n_float});
}

/* One part for each sequence, which begins as the first of its parts does. */
static void join_parts(const struct states *s, struct states *joined)
{
    *joined = *s;
    joined->n_part = joined->n_pad = 0;
    for (uint32_t i = 0; i < s->n_part; i++) {
        const struct state_part *p = &s->parts[i];
        if (joined->n_part && joined->parts[joined->n_part - 1].state == p->state)
            joined->parts[joined->n_part - 1].n_row += p->n_row;
        else
            joined->parts[joined->n_part++] = *p;
        joined->parts[joined->n_part - 1].to = KERN_STATE_NONE;
    }
}

static double conv_input(const struct state_conv_args *a, const float *pool, const struct states *s,
                         uint32_t q, int64_t row, uint32_t c)
{
    const int64_t first = s->begin[q];
    uint32_t from = 0;
    while (s->parts[from].state != q)
        from++;
    from = s->parts[from].from;
    if (row < first)
        return from == KERN_STATE_ZERO
                   ? 0
                   : pool[from * s->n_float +
                          (size_t)((int64_t)a->width - 1 + row - first) * a->n_col + c];
    const size_t at = (size_t)row * a->x_stride + c;
    return a->pre ? (double)a->x[at] * a->pre[at] : a->x[at];
}

static void check_conv(struct kcheck *k, const struct state_conv_args *a, const struct states *s,
                       const float *before)
{
    for (uint32_t q = 0; q < s->n_seq && !k->specials; q++)
        for (uint32_t r = s->begin[q]; r < s->begin[q + 1]; r++)
            for (uint32_t c = 0; c < a->n_col; c++) {
                double sum = a->bias ? a->bias[c] : 0, all = fabs(sum);
                const double post = a->post ? a->post[r * a->x_stride + c] : 1;
                for (uint32_t j = 0; j < a->width; j++) {
                    const double term =
                        a->w[c * a->width + j] *
                        conv_input(a, before, s, q, (int64_t)r - a->width + 1 + j, c);
                    sum += term;
                    all += fabs(term);
                }
                kc_near(k, "y", a->y[r * a->y_stride + c], sum * post,
                        all * fabs(post) * 12 * 0x1p-24 + 1e-37);
            }
}

void kcheck_state_conv(struct kcheck *k)
{
    const uint32_t n_col = kc_range(k, 1, 150), width = kc_range(k, 2, KERN_CONV_MAX);
    const size_t stride = 3 * n_col + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    struct states s, joined;
    make_states(k, &s, (size_t)(width - 1) * n_col);
    kc_shape(k, "n_col %u width %u parts %u rows %u", n_col, width, s.n_part, s.n_row);
    float *x = kc_buf(k, s.n_row * stride * sizeof *x);
    float *w = kc_buf(k, (size_t)n_col * width * sizeof *w), *bias = kc_buf(k, n_col * sizeof *w);
    float *want = kc_buf(k, s.n_row * y_stride * sizeof *x),
          *got = kc_buf(k, s.n_row * y_stride * sizeof *x);
    const size_t n_pool = s.n_pool * s.n_float;
    kc_fill(k, x, s.n_row * stride);
    kc_fill(k, w, (size_t)n_col * width);
    kc_fill(k, bias, n_col);
    float *one = kc_copy(k, s.pool, n_pool * sizeof *one),
          *two = kc_copy(k, s.pool, n_pool * sizeof *one);
    struct state_conv_args a = {
        .y = want,
        .x = x + 2 * n_col,
        .pre = kc_chance(k, 50) ? x : NULL,
        .post = kc_chance(k, 50) ? x + n_col : NULL,
        .y_stride = y_stride,
        .x_stride = stride,
        .w = w,
        .bias = kc_chance(k, 50) ? bias : NULL,
        .n_col = n_col,
        .width = width,
        .states = rows_of(&s, one),
    };
    kc_run(k, k->ref, &a, 1);
    check_conv(k, &a, &s, s.pool);
    a.y = got;
    a.states = rows_of(&s, two);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, s.n_row, n_col, y_stride},
               &(struct kc_array){want, DT_F32, s.n_row, n_col, y_stride});
    compare_pools(k, &s, two, one);
    join_parts(&s, &joined);
    memcpy(one, s.pool, n_pool * sizeof *one);
    a.states = rows_of(&joined, one);
    float *whole = a.y = kc_buf(k, s.n_row * y_stride * sizeof *x);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t r = 0; r < s.n_row; r++)
        kc_same_bits(k, "rows in one part",
                     (struct kc_bits){whole + r * y_stride, got + r * y_stride, DT_F32, n_col});
    kc_same_bits(k, "states behind one part",
                 (struct kc_bits){one, two, DT_F32, s.n_seq * s.n_float});
}

void kbench_state_conv(struct kc_bench *b)
{
    enum { COLS = 2048, WIDTH = 3, ROWS = 64 };
    static const struct state_part part = {0, ROWS, 0, 0, KERN_STATE_NONE};
    float *x = kc_buf(b->k, (size_t)ROWS * 3 * COLS * 4),
          *y = kc_buf(b->k, (size_t)ROWS * COLS * 4);
    float *w = kc_buf(b->k, (size_t)COLS * WIDTH * 4),
          *pool = kc_buf(b->k, (size_t)COLS * WIDTH * 4);
    kc_fill(b->k, x, (size_t)ROWS * 3 * COLS);
    kc_fill(b->k, w, (size_t)COLS * WIDTH);
    kc_fill(b->k, pool, (size_t)COLS * WIDTH);
    const struct state_conv_args a = {
        .y = y,
        .x = x + 2 * COLS,
        .pre = x,
        .post = x + COLS,
        .y_stride = COLS,
        .x_stride = 3 * COLS,
        .w = w,
        .n_col = COLS,
        .width = WIDTH,
        .states = {&part, 1, pool, (WIDTH - 1) * COLS, ROWS},
    };
    kc_print_bytes(b, "64 x 2048, width 3", kc_time(b, &a), ROWS * (double)COLS * 16);
}

/* The recurrence in doubles, row by row. */
static void delta_head(const struct state_delta_args *a, const struct states *s, uint32_t q,
                       uint32_t head, double *got)
{
    const uint32_t dk = a->key_dim, dv = a->value_dim, n_key = a->n_key_head * dk;
    const uint32_t group = head / (a->n_value_head / a->n_key_head);
    double *state = got + (size_t)s->n_row * dv;
    for (uint32_t r = s->begin[q]; r < s->begin[q + 1]; r++) {
        const float *x = a->x + r * a->x_stride, *g = a->gates + r * a->gate_stride;
        const float *xq = x + group * dk, *xk = x + n_key + group * dk;
        const double soft = g[a->n_value_head + head] + (double)a->rate_bias[head];
        const double decay = exp(-exp(a->log_rate[head]) * log1p(exp(soft)));
        double nq = 1e-6, nk = 1e-6;
        for (uint32_t i = 0; i < dk; i++) {
            nq += (double)xq[i] * xq[i];
            nk += (double)xk[i] * xk[i];
        }
        for (uint32_t c = 0; c < dv; c++) {
            double sum = 0, out = 0;
            for (uint32_t i = 0; i < dk; i++)
                sum += (state[i * dv + c] *= decay) * xk[i] / sqrt(nk);
            sum = (x[2 * n_key + head * dv + c] - sum) * a->beta_max / (1 + exp(-(double)g[head]));
            for (uint32_t i = 0; i < dk; i++)
                out += (state[i * dv + c] += sum * xk[i] / sqrt(nk)) * xq[i] / sqrt(nq * dk);
            got[(size_t)r * dv + c] = out;
        }
    }
}

static void check_delta(struct kcheck *k, const struct state_delta_args *a, const struct states *s,
                        const float *before)
{
    const uint32_t dv = a->value_dim, n = a->key_dim * dv;
    double *got = kc_buf(k, ((size_t)s->n_row * dv + n) * sizeof *got);
    for (uint32_t q = 0; q < s->n_seq && !k->specials; q++)
        for (uint32_t head = 0; head < a->n_value_head; head++) {
            uint32_t from = 0;
            while (s->parts[from].state != q)
                from++;
            from = s->parts[from].from;
            for (uint32_t i = 0; i < n; i++)
                got[(size_t)s->n_row * dv + i] =
                    from == KERN_STATE_ZERO ? 0 : before[from * s->n_float + head * n + i];
            delta_head(a, s, q, head, got);
            for (uint32_t r = s->begin[q]; r < s->begin[q + 1]; r++)
                for (uint32_t c = 0; c < dv; c++)
                    kc_near(k, "y", a->y[r * a->y_stride + head * dv + c], got[(size_t)r * dv + c],
                            2e-5 * sqrt(a->key_dim));
        }
}

void kcheck_state_delta(struct kcheck *k)
{
    const uint32_t n_key = kc_range(k, 1, 3), n_value = n_key * kc_range(k, 1, 3);
    const uint32_t dk = kc_chance(k, 20) ? 128 : kc_range(k, 1, 40), dv = kc_range(k, 1, 40);
    const uint32_t n_x = 2 * n_key * dk + n_value * dv, n_y = n_value * dv;
    const size_t stride = n_x + kc_range(k, 0, 9), y_stride = n_y + kc_range(k, 0, 9);
    struct states s, joined;
    make_states(k, &s, (size_t)n_value * dk * dv);
    kc_shape(k, "%u heads of %u, %u of %u, parts %u rows %u", n_key, dk, n_value, dv, s.n_part,
             s.n_row);
    float *x = kc_buf(k, s.n_row * stride * sizeof *x);
    float *gates = kc_buf(k, (size_t)s.n_row * 2 * n_value * sizeof *x);
    float *rate = kc_buf(k, n_value * sizeof *x), *bias = kc_buf(k, n_value * sizeof *x);
    float *want = kc_buf(k, s.n_row * y_stride * sizeof *x);
    float *got = kc_buf(k, s.n_row * y_stride * sizeof *x);
    const size_t n_pool = s.n_pool * s.n_float;
    kc_fill(k, x, s.n_row * stride);
    kc_fill(k, gates, (size_t)s.n_row * 2 * n_value);
    kc_fill(k, rate, n_value);
    kc_fill(k, bias, n_value);
    float *one = kc_copy(k, s.pool, n_pool * sizeof *one);
    float *two = kc_copy(k, s.pool, n_pool * sizeof *one);
    struct state_delta_args a = {
        .y = want,
        .x = x,
        .gates = gates,
        .y_stride = y_stride,
        .x_stride = stride,
        .gate_stride = 2 * n_value,
        .log_rate = rate,
        .rate_bias = bias,
        .n_key_head = n_key,
        .n_value_head = n_value,
        .key_dim = dk,
        .value_dim = dv,
        .beta_max = kc_chance(k, 50) ? 2 : 1,
        .states = rows_of(&s, one),
    };
    kc_run(k, k->ref, &a, 1);
    check_delta(k, &a, &s, s.pool);
    a.y = got;
    a.states = rows_of(&s, two);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, s.n_row, n_y, y_stride},
               &(struct kc_array){want, DT_F32, s.n_row, n_y, y_stride});
    compare_pools(k, &s, two, one);
    join_parts(&s, &joined);
    memcpy(one, s.pool, n_pool * sizeof *one);
    a.states = rows_of(&joined, one);
    float *whole = a.y = kc_buf(k, s.n_row * y_stride * sizeof *x);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t r = 0; r < s.n_row; r++)
        kc_same_bits(k, "rows in one part",
                     (struct kc_bits){whole + r * y_stride, got + r * y_stride, DT_F32, n_y});
    kc_same_bits(k, "states behind one part",
                 (struct kc_bits){one, two, DT_F32, s.n_seq * s.n_float});
}

void kbench_state_delta(struct kc_bench *b)
{
    enum { HEADS = 32, DIM = 128, KEYS = 16, COLS = 2 * KEYS * DIM + HEADS * DIM };
    static const struct state_part part = {0, 1, 0, 0, KERN_STATE_NONE};
    const size_t n = (size_t)HEADS * DIM * DIM;
    float *x = kc_buf(b->k, COLS * 4), *y = kc_buf(b->k, (size_t)HEADS * DIM * 4);
    float *gates = kc_buf(b->k, (size_t)4 * HEADS * 4), *pool = kc_buf(b->k, n * 4);
    kc_fill(b->k, x, COLS);
    kc_fill(b->k, gates, 4 * HEADS);
    kc_fill(b->k, pool, n);
    const struct state_delta_args a = {
        .y = y,
        .x = x,
        .gates = gates,
        .y_stride = HEADS * DIM,
        .x_stride = COLS,
        .gate_stride = 2 * HEADS,
        .log_rate = gates + 2 * HEADS,
        .rate_bias = gates + 3 * HEADS,
        .n_key_head = KEYS,
        .n_value_head = HEADS,
        .key_dim = DIM,
        .value_dim = DIM,
        .beta_max = 1,
        .states = {&part, 1, pool, n, 1},
    };
    kc_print_bytes(b, "32 heads of 128 x 128", kc_time(b, &a), (double)n * 8);
}

/* The recurrence in doubles: y of rows of a sequence and of one head, from its state `s`, which is
 * replaced. Returns the largest sum of magnitudes. */
static double scan_head(const struct state_scan_args *a, const struct states *s, uint32_t q,
                        uint32_t head, double *state, double *y)
{
    const uint32_t dim = a->head_dim, group = head / (a->n_head / a->n_group);
    double most = 0;
    for (uint32_t r = s->begin[q]; r < s->begin[q + 1]; r++) {
        const float *x = a->x + r * a->x_stride + (size_t)head * dim;
        const float *b = a->b + r * a->b_stride + (size_t)group * a->n_state;
        const float *c = a->c + r * a->b_stride + (size_t)group * a->n_state;
        const double soft = a->step[r * a->step_stride + head] + (double)a->step_bias[head];
        const double step = fmin(fmax(log1p(exp(soft)), a->step_min), a->step_max);
        for (uint32_t j = 0; j < dim; j++) {
            double sum = a->skip[head] * (double)x[j], all = fabs(sum);
            for (uint32_t i = 0; i < a->n_state; i++) {
                const size_t rate = a->by_state ? (size_t)head * a->n_state + i : head;
                double *at = &state[i * dim + j];
                *at = *at * exp(-step * exp(a->log_rate[rate])) + b[i] * step * x[j];
                sum += c[i] * *at;
                all += fabs(c[i] * *at);
            }
            y[(size_t)r * dim + j] = sum;
            most = fmax(most, all);
        }
    }
    return most;
}

/* Where element i of column j of a head's state lies. */
static size_t scan_at(const struct state_scan_args *a, uint32_t head, uint32_t i, uint32_t j)
{
    return a->by_state ? (size_t)i * a->n_head + head
                       : ((size_t)head * a->n_state + i) * a->head_dim + j;
}

static void check_scan(struct kcheck *k, const struct state_scan_args *a, const struct states *s,
                       const float *before)
{
    const uint32_t dim = a->head_dim;
    double *state = kc_buf(k, (size_t)a->n_state * dim * sizeof *state);
    double *y = kc_buf(k, (size_t)s->n_row * dim * sizeof *y);
    for (uint32_t q = 0; q < s->n_seq && !k->specials; q++)
        for (uint32_t head = 0; head < a->n_head; head++) {
            uint32_t from = 0;
            while (s->parts[from].state != q)
                from++;
            from = s->parts[from].from;
            for (uint32_t i = 0; i < a->n_state; i++)
                for (uint32_t j = 0; j < dim; j++)
                    state[i * dim + j] = from == KERN_STATE_ZERO
                                             ? 0
                                             : before[from * s->n_float + scan_at(a, head, i, j)];
            const double most = scan_head(a, s, q, head, state, y);
            for (uint32_t r = s->begin[q]; r < s->begin[q + 1]; r++)
                for (uint32_t j = 0; j < dim; j++)
                    kc_near(k, "y", a->y[r * a->y_stride + (size_t)head * dim + j],
                            y[(size_t)r * dim + j], most * (a->n_state + 64) * 0x1p-24 + 1e-30);
        }
}

struct scan_shape {
    uint32_t n_head, dim, n_group, n_state;
    bool by_state;
};

static struct scan_shape scan_shape(struct kcheck *k)
{
    const bool by_state = kc_chance(k, 50);
    const uint32_t n_group = by_state ? 1 : kc_range(k, 1, 3), usual = by_state ? 16 : 128;
    return (struct scan_shape){
        .n_head = by_state ? kc_range(k, 1, 90) : n_group * kc_range(k, 1, 3),
        .dim = by_state ? 1 : kc_range(k, 1, 40),
        .n_group = n_group,
        .n_state = kc_chance(k, 20) ? usual : kc_range(k, 1, 24),
        .by_state = by_state,
    };
}

void kcheck_state_scan(struct kcheck *k)
{
    const struct scan_shape h = scan_shape(k);
    const uint32_t n_y = h.n_head * h.dim, n_b = h.n_group * h.n_state;
    const size_t stride = n_y + 2 * n_b + h.n_head + kc_range(k, 0, 9);
    const size_t y_stride = n_y + kc_range(k, 0, 9), n_rate = h.by_state ? h.n_state : 1;
    struct states s, joined;
    make_states(k, &s, (size_t)n_y * h.n_state);
    kc_shape(k, "%u heads of %u in %u groups, states of %u, by state %d, parts %u rows %u",
             h.n_head, h.dim, h.n_group, h.n_state, h.by_state, s.n_part, s.n_row);
    float *x = kc_buf(k, s.n_row * stride * sizeof *x);
    float *rate = kc_buf(k, h.n_head * n_rate * sizeof *x);
    float *bias = kc_buf(k, h.n_head * sizeof *x), *skip = kc_buf(k, h.n_head * sizeof *x);
    float *want = kc_buf(k, s.n_row * y_stride * sizeof *x);
    float *got = kc_buf(k, s.n_row * y_stride * sizeof *x);
    const size_t n_pool = s.n_pool * s.n_float;
    kc_fill(k, x, s.n_row * stride);
    kc_fill(k, rate, h.n_head * n_rate);
    kc_fill(k, bias, h.n_head);
    kc_fill(k, skip, h.n_head);
    float *one = kc_copy(k, s.pool, n_pool * sizeof *one);
    float *two = kc_copy(k, s.pool, n_pool * sizeof *one);
    struct state_scan_args a = {
        .y = want,
        .x = x,
        .b = x + n_y,
        .c = x + n_y + n_b,
        .step = x + n_y + 2 * n_b,
        .y_stride = y_stride,
        .x_stride = stride,
        .b_stride = stride,
        .step_stride = stride,
        .log_rate = rate,
        .step_bias = bias,
        .skip = skip,
        .step_min = kc_chance(k, 50) ? 0.5f : 0,
        .step_max = kc_chance(k, 50) ? 0.75f : INFINITY,
        .n_head = h.n_head,
        .head_dim = h.dim,
        .n_group = h.n_group,
        .n_state = h.n_state,
        .by_state = h.by_state,
        .states = rows_of(&s, one),
    };
    kc_run(k, k->ref, &a, 1);
    check_scan(k, &a, &s, s.pool);
    a.y = got;
    a.states = rows_of(&s, two);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, s.n_row, n_y, y_stride},
               &(struct kc_array){want, DT_F32, s.n_row, n_y, y_stride});
    compare_pools(k, &s, two, one);
    join_parts(&s, &joined);
    memcpy(one, s.pool, n_pool * sizeof *one);
    a.states = rows_of(&joined, one);
    float *whole = a.y = kc_buf(k, s.n_row * y_stride * sizeof *x);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t r = 0; r < s.n_row; r++)
        kc_same_bits(k, "rows in one part",
                     (struct kc_bits){whole + r * y_stride, got + r * y_stride, DT_F32, n_y});
    kc_same_bits(k, "states behind one part",
                 (struct kc_bits){one, two, DT_F32, s.n_seq * s.n_float});
}

/* One row: of Mamba 2 as of Bamba 9B, and of Mamba as of Falcon Mamba 7B. */
static void bench_scan(struct kc_bench *b, const struct scan_shape *h, const char *text)
{
    static const struct state_part part = {0, 1, 0, 0, KERN_STATE_NONE};
    const size_t n_y = (size_t)h->n_head * h->dim, n = n_y * h->n_state;
    const size_t n_x = n_y + 2 * (size_t)h->n_group * h->n_state + h->n_head;
    const size_t n_rate = (size_t)h->n_head * (h->by_state ? h->n_state : 1);
    float *x = kc_buf(b->k, n_x * 4), *y = kc_buf(b->k, n_y * 4), *pool = kc_buf(b->k, n * 4);
    float *rate = kc_buf(b->k, n_rate * 4), *of_head = kc_buf(b->k, (size_t)h->n_head * 8);
    kc_fill(b->k, x, n_x);
    kc_fill(b->k, pool, n);
    kc_fill(b->k, rate, n_rate);
    kc_fill(b->k, of_head, 2 * (size_t)h->n_head);
    const struct state_scan_args a = {
        .y = y,
        .x = x,
        .b = x + n_y,
        .c = x + n_y + (size_t)h->n_group * h->n_state,
        .step = x + n_x - h->n_head,
        .y_stride = n_y,
        .x_stride = n_x,
        .b_stride = n_x,
        .step_stride = n_x,
        .log_rate = rate,
        .step_bias = of_head,
        .skip = of_head + h->n_head,
        .step_max = INFINITY,
        .n_head = h->n_head,
        .head_dim = h->dim,
        .n_group = h->n_group,
        .n_state = h->n_state,
        .by_state = h->by_state,
        .states = {&part, 1, pool, n, 1},
    };
    kc_print_bytes(b, text, kc_time(b, &a), (double)n * 8);
}

void kbench_state_scan(struct kc_bench *b)
{
    bench_scan(b, &(struct scan_shape){128, 64, 1, 128, false}, "128 heads of 64, states of 128");
    bench_scan(b, &(struct scan_shape){8192, 1, 1, 16, true}, "8192 columns, states of 16");
}
