/* SPDX-License-Identifier: Apache-2.0 */
/* state_rows - what operations with states (ops_state.h) have in common. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_STATE_ROWS_H
#define QUIRE_KERNELS_WIDE_STATE_ROWS_H
#include <string.h>
#include "kernels/ops/ops_state.h"
#include "kernels/tiling/split.h"

#define STATE_COLUMNS 16u /* that one thread computes at least: a line of floats */

/* This thread's columns: whole lines, but for the end of the last one. */
static inline struct range state_columns(size_t n_col, const struct kern_exec *x)
{
    struct range r = split((n_col + STATE_COLUMNS - 1) / STATE_COLUMNS, x);
    r.begin *= STATE_COLUMNS;
    r.end = r.end * STATE_COLUMNS < n_col ? r.end * STATE_COLUMNS : n_col;
    return r;
}

static inline float *state_at(const struct state_rows *s, uint32_t row)
{
    return s->pool + row * s->stride;
}

struct state_piece { /* columns of n_row rows of a state that lie `stride` apart */
    size_t at, n_col, n_row, stride;
};

static inline void state_copy(const struct state_rows *s, uint32_t to, uint32_t from,
                              const struct state_piece *p)
{
    for (size_t i = 0; i < p->n_row; i++) {
        const size_t at = p->at + i * p->stride;
        if (from == KERN_STATE_ZERO)
            memset(state_at(s, to) + at, 0, p->n_col * sizeof(float));
        else
            memcpy(state_at(s, to) + at, state_at(s, from) + at, p->n_col * sizeof(float));
    }
}

static inline void state_begin(const struct state_rows *s, const struct state_part *part,
                               const struct state_piece *p)
{
    if (part->from != part->state)
        state_copy(s, part->state, part->from, p);
}

static inline void state_end(const struct state_rows *s, const struct state_part *part,
                             const struct state_piece *p)
{
    if (part->to != KERN_STATE_NONE)
        state_copy(s, part->to, part->state, p);
}

#endif
