/* SPDX-License-Identifier: Apache-2.0 */
/* state_delta; formula and order: ops_state.h. Plain loops over the columns of a head's values, of
 * which the compiler makes the lanes of the instruction set; ref/ is compiled from the same source
 * for any machine, so the bits are equal where expf and log1pf are. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_STATE_DELTA_H
#define QUIRE_KERNELS_WIDE_STATE_DELTA_H
#include <math.h>
#include "kernels/wide/state_rows.h"

#define DELTA_LANES 16u /* partial sums of squares, by the number of the element */

struct delta_row {                              /* what a row has for one head of values */
    float q[KERN_DELTA_MAX], k[KERN_DELTA_MAX]; /* [key_dim] */
    float decay, beta;
};
struct delta_columns { /* that are computed together: of one head */
    uint32_t head, first, n;
};

/* x / sqrt(sum of squares + 1e-6) * scale; lane i sums elements i, i + 16 …, then halves fold. */
static inline void delta_unit(float *restrict to, const float *restrict x, uint32_t n, float scale)
{
    float lanes[DELTA_LANES] = {0};
    for (uint32_t i = 0; i < n; i += DELTA_LANES)
        for (uint32_t j = 0; j < DELTA_LANES && i + j < n; j++)
            lanes[j] += x[i + j] * x[i + j];
    for (uint32_t half = DELTA_LANES / 2; half; half /= 2)
        for (uint32_t j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    const float inverse = 1.0f / sqrtf(lanes[0] + 1e-6f);
    for (uint32_t i = 0; i < n; i++)
        to[i] = x[i] * inverse * scale;
}

static inline float delta_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

static inline void delta_row_of(struct delta_row *r, const struct state_delta_args *a,
                                uint32_t head, size_t row)
{
    const uint32_t group = head / (a->n_value_head / a->n_key_head);
    const float *x = a->x + row * a->x_stride, *gates = a->gates + row * a->gate_stride;
    const uint32_t n_key = a->n_key_head * a->key_dim;
    delta_unit(r->q, x + (size_t)group * a->key_dim, a->key_dim, 1.0f / sqrtf((float)a->key_dim));
    delta_unit(r->k, x + n_key + (size_t)group * a->key_dim, a->key_dim, 1.0f);
    r->beta = a->beta_max / (1.0f + expf(-gates[head]));
    r->decay = expf(-expf(a->log_rate[head]) *
                    delta_softplus(gates[a->n_value_head + head] + a->rate_bias[head]));
}

/* S *= decay; S += k (beta (v - k S)); o = q S. Sums go over keys, ascending. */
static inline void delta_step(float *restrict s, const struct delta_row *r,
                              const struct state_delta_args *a, const float *restrict v,
                              float *restrict o, uint32_t n)
{
    float sums[KERN_DELTA_MAX] = {0};
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *restrict line = s + (size_t)i * a->value_dim;
        for (uint32_t c = 0; c < n; c++) {
            line[c] *= r->decay;
            sums[c] += line[c] * r->k[i];
        }
    }
    for (uint32_t c = 0; c < n; c++) {
        sums[c] = (v[c] - sums[c]) * r->beta;
        o[c] = 0;
    }
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *restrict line = s + (size_t)i * a->value_dim;
        for (uint32_t c = 0; c < n; c++) {
            line[c] += r->k[i] * sums[c];
            o[c] += line[c] * r->q[i];
        }
    }
}

static inline void delta_parts(const struct state_delta_args *a, const struct delta_columns *k)
{
    const size_t n_head = (size_t)a->key_dim * a->value_dim;
    const uint32_t n_keys = 2 * a->n_key_head * a->key_dim;
    const size_t column = (size_t)k->head * a->value_dim + k->first;
    const struct state_piece piece = {k->head * n_head + k->first, k->n, a->key_dim, a->value_dim};
    for (uint32_t i = 0; i < a->states.n_part; i++) {
        const struct state_part *part = &a->states.parts[i];
        if (part->n_row == 0)
            continue;
        state_begin(&a->states, part, &piece);
        float *s = state_at(&a->states, part->state) + piece.at;
        for (size_t row = part->row; row < (size_t)part->row + part->n_row; row++) {
            struct delta_row r;
            delta_row_of(&r, a, k->head, row);
            delta_step(s, &r, a, a->x + row * a->x_stride + n_keys + column,
                       a->y + row * a->y_stride + column, k->n);
        }
        state_end(&a->states, part, &piece);
    }
}

static inline void wide_state_delta(const struct state_delta_args *a, const struct kern_exec *x)
{
    const struct range mine = state_columns((size_t)a->n_value_head * a->value_dim, x);
    for (size_t at = mine.begin, end; at < mine.end; at = end) {
        struct delta_columns k = {.head = (uint32_t)(at / a->value_dim)};
        k.first = (uint32_t)(at % a->value_dim);
        end = (size_t)(k.head + 1) * a->value_dim;
        end = end < mine.end ? end : mine.end;
        k.n = (uint32_t)(end - at);
        delta_parts(a, &k);
    }
}

#endif
