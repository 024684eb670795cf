/* SPDX-License-Identifier: Apache-2.0 */
/* state_conv; formula and order: ops_state.h. Plain loops, of which the compiler makes the lanes of
 * the instruction set: no sum goes over columns, so the lanes change no bit, and ref/ is the same
 * source. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_STATE_CONV_H
#define QUIRE_KERNELS_WIDE_STATE_CONV_H
#include "kernels/wide/state_rows.h"

#define CONV_COLUMNS 64u /* that go through all rows of a part together */

struct conv_tile { /* of columns; the weights of each place are neighbours */
    uint32_t n;
    float w[KERN_CONV_MAX][CONV_COLUMNS], bias[CONV_COLUMNS];
    float u[KERN_CONV_MAX][CONV_COLUMNS]; /* the window: the state's rows, then this row */
};

/* The sums of one row; the window moves on. */
static inline void conv_row(struct conv_tile *t, float *restrict y, uint32_t width)
{
    for (uint32_t c = 0; c < t->n; c++)
        y[c] = t->bias[c];
    for (uint32_t j = 0; j < width; j++)
        for (uint32_t c = 0; c < t->n; c++)
            y[c] += t->w[j][c] * t->u[j][c];
    for (uint32_t j = 0; j + 1 < width; j++)
        memcpy(t->u[j], t->u[j + 1], t->n * sizeof(float));
}

static inline void conv_part(const struct state_conv_args *a, struct conv_tile *t, size_t first,
                             const struct state_part *part)
{
    const uint32_t newest = a->width - 1;
    float *state = state_at(&a->states, part->state) + first;
    for (uint32_t j = 0; j < newest; j++)
        memcpy(t->u[j], state + (size_t)j * a->n_col, t->n * sizeof(float));
    for (uint32_t r = part->row; r < part->row + part->n_row; r++) {
        const size_t at = r * a->x_stride + first;
        float *restrict y = a->y + r * a->y_stride + first, *restrict u = t->u[newest];
        for (uint32_t c = 0; c < t->n; c++)
            u[c] = a->pre ? a->x[at + c] * a->pre[at + c] : a->x[at + c];
        conv_row(t, y, a->width);
        for (uint32_t c = 0; a->post && c < t->n; c++)
            y[c] *= a->post[at + c];
    }
    for (uint32_t j = 0; j < newest; j++)
        memcpy(state + (size_t)j * a->n_col, t->u[j], t->n * sizeof(float));
}

static inline void wide_state_conv(const struct state_conv_args *a, const struct kern_exec *x)
{
    const struct range mine = state_columns(a->n_col, x);
    for (size_t at = mine.begin; at < mine.end; at += CONV_COLUMNS) {
        const size_t left = mine.end - at;
        struct conv_tile t = {.n = left < CONV_COLUMNS ? (uint32_t)left : CONV_COLUMNS};
        const struct state_piece piece = {at, t.n, a->width - 1, a->n_col};
        for (uint32_t c = 0; c < t.n; c++) {
            t.bias[c] = a->bias ? a->bias[at + c] : 0;
            for (uint32_t j = 0; j < a->width; j++)
                t.w[j][c] = a->w[(at + c) * a->width + j];
        }
        for (uint32_t i = 0; i < a->states.n_part; i++) {
            const struct state_part *part = &a->states.parts[i];
            if (part->n_row == 0)
                continue;
            state_begin(&a->states, part, &piece);
            conv_part(a, &t, at, part);
            state_end(&a->states, part, &piece);
        }
    }
}

#endif
