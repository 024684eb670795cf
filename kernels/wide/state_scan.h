/* SPDX-License-Identifier: Apache-2.0 */
/* state_scan; formula and order: ops_state.h. Plain loops over columns, of which the compiler makes
 * the lanes of the instruction set; ref/ is compiled from the same source for any machine. e^x is
 * made of sums and products here, so that the bits are equal where those of expf and log1pf are,
 * which only the steps take. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_STATE_SCAN_H
#define QUIRE_KERNELS_WIDE_STATE_SCAN_H
#include <math.h>
#include "kernels/wide/state_rows.h"

/* takes ? a : b, without a branch, which would keep loops from lanes. */
static inline float scan_pick(bool takes, float a, float b)
{
    const uint32_t mask = 0u - (uint32_t)takes;
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = (x & mask) | (y & ~mask);
    memcpy(&a, &x, sizeof a);
    return a;
}

/* e^x for x in -87 … 88, and that of the nearest of these for others; NaN stays. The polynomial of
 * wide/exp.h; adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits. */
static inline float scan_exp(float x)
{
    const float above = scan_pick(x < -87.0f, -87.0f, x);
    const float y = scan_pick(above > 88.0f, 88.0f, above);
    const float shifted = y * 0x1.715476p+0f + 0x1.8p+23f, n = shifted - 0x1.8p+23f;
    const float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts */
    float q = 0x1.6a23dp-10f, power;
    uint32_t bits;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127u) << 23;
    memcpy(&power, &bits, sizeof power);
    return (q * (r * r) + r + 1.0f) * power;
}

/* A row's step of a head. */
static inline float scan_step(const struct state_scan_args *a, size_t row, uint32_t head)
{
    const float x = a->step[row * a->step_stride + head] + a->step_bias[head];
    const float soft = x > 20.0f ? x : log1pf(expf(x));
    const float above = soft < a->step_min ? a->step_min : soft;
    return above > a->step_max ? a->step_max : above;
}

/* ---- one rate a head ---- */

struct scan_columns { /* that are computed together: of one head */
    uint32_t head, first, n;
};

/* S = decay S + b (step x); y = c S + skip x. */
static inline void scan_head_row(float *restrict s, const struct state_scan_args *a, size_t row,
                                 const struct scan_columns *k)
{
    const size_t column = (size_t)k->head * a->head_dim + k->first;
    const size_t group =
        row * a->b_stride + k->head / (a->n_head / a->n_group) * (size_t)a->n_state;
    const float *x = a->x + row * a->x_stride + column, *b = a->b + group, *c = a->c + group;
    float *restrict y = a->y + row * a->y_stride + column;
    float u[KERN_SCAN_MAX], sums[KERN_SCAN_MAX];
    const float step = scan_step(a, row, k->head), skip = a->skip[k->head];
    const float decay = scan_exp(-step * scan_exp(a->log_rate[k->head]));
    for (uint32_t j = 0; j < k->n; j++) {
        u[j] = step * x[j];
        sums[j] = 0;
    }
    for (uint32_t i = 0; i < a->n_state; i++) {
        float *restrict line = s + (size_t)i * a->head_dim;
        for (uint32_t j = 0; j < k->n; j++) {
            line[j] = line[j] * decay + b[i] * u[j];
            sums[j] += c[i] * line[j];
        }
    }
    for (uint32_t j = 0; j < k->n; j++)
        y[j] = sums[j] + skip * x[j];
}

static inline void scan_head_parts(const struct state_scan_args *a, const struct scan_columns *k)
{
    const size_t at = (size_t)k->head * a->n_state * a->head_dim + k->first;
    const struct state_piece piece = {at, k->n, a->n_state, a->head_dim};
    for (uint32_t i = 0; i < a->states.n_part; i++) {
        const struct state_part *part = &a->states.parts[i];
        if (part->n_row == 0)
            continue;
        state_begin(&a->states, part, &piece);
        float *s = state_at(&a->states, part->state) + piece.at;
        for (size_t row = part->row; row < (size_t)part->row + part->n_row; row++)
            scan_head_row(s, a, row, k);
        state_end(&a->states, part, &piece);
    }
}

static inline void scan_heads(const struct state_scan_args *a, struct range mine)
{
    for (size_t at = mine.begin, end; at < mine.end; at = end) {
        struct scan_columns k = {.head = (uint32_t)(at / a->head_dim)};
        k.first = (uint32_t)(at % a->head_dim);
        end = (size_t)(k.head + 1) * a->head_dim;
        end = end < mine.end ? end : mine.end;
        k.n = (uint32_t)(end - at);
        scan_head_parts(a, &k);
    }
}

/* ---- a rate for each element of the state ---- */

struct scan_tile { /* columns of one line */
    uint32_t n;
    float rates[KERN_SCAN_MAX][STATE_COLUMNS]; /* [n_state] */
};

static inline void scan_rates(struct scan_tile *t, const struct state_scan_args *a, size_t first)
{
    for (uint32_t j = 0; j < t->n; j++)
        for (uint32_t i = 0; i < a->n_state; i++)
            t->rates[i][j] = a->log_rate[(first + j) * a->n_state + i];
    for (uint32_t i = 0; i < a->n_state; i++)
        for (uint32_t j = 0; j < STATE_COLUMNS; j++)
            t->rates[i][j] = scan_exp(t->rates[i][j]);
}

static inline void scan_tile_row(float *restrict s, const struct state_scan_args *a, size_t row,
                                 const struct scan_tile *t, size_t first)
{
    const float *x = a->x + row * a->x_stride + first;
    const float *b = a->b + row * a->b_stride, *c = a->c + row * a->b_stride;
    float *restrict y = a->y + row * a->y_stride + first;
    float steps[STATE_COLUMNS] = {0}, u[STATE_COLUMNS] = {0}, sums[STATE_COLUMNS] = {0};
    for (uint32_t j = 0; j < t->n; j++) {
        steps[j] = -scan_step(a, row, (uint32_t)first + j);
        u[j] = -steps[j] * x[j];
    }
    for (uint32_t i = 0; i < a->n_state; i++) {
        float *restrict line = s + (size_t)i * a->n_head;
        float decay[STATE_COLUMNS];
        for (uint32_t j = 0; j < STATE_COLUMNS; j++)
            decay[j] = scan_exp(steps[j] * t->rates[i][j]);
        for (uint32_t j = 0; j < t->n; j++) {
            line[j] = line[j] * decay[j] + b[i] * u[j];
            sums[j] += c[i] * line[j];
        }
    }
    for (uint32_t j = 0; j < t->n; j++)
        y[j] = sums[j] + a->skip[first + j] * x[j];
}

static inline void scan_tiles(const struct state_scan_args *a, struct range mine)
{
    struct scan_tile t = {0}; /* columns that are not there have any rates */
    for (size_t at = mine.begin; at < mine.end; at += STATE_COLUMNS) {
        const size_t left = mine.end - at;
        t.n = left < STATE_COLUMNS ? (uint32_t)left : STATE_COLUMNS;
        const struct state_piece piece = {at, t.n, a->n_state, a->n_head};
        scan_rates(&t, a, at);
        for (uint32_t i = 0; i < a->states.n_part; i++) {
            const struct state_part *part = &a->states.parts[i];
            if (part->n_row == 0)
                continue;
            state_begin(&a->states, part, &piece);
            float *s = state_at(&a->states, part->state) + at;
            for (size_t row = part->row; row < (size_t)part->row + part->n_row; row++)
                scan_tile_row(s, a, row, &t, at);
            state_end(&a->states, part, &piece);
        }
    }
}

static inline void wide_state_scan(const struct state_scan_args *a, const struct kern_exec *x)
{
    const struct range mine = state_columns((size_t)a->n_head * a->head_dim, x);
    if (a->by_state)
        scan_tiles(a, mine);
    else
        scan_heads(a, mine);
}

#endif
