/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/params.h"
#include <string.h>
#include "common/mem.h"

/* Rows from r on, r among them, that are neighbours in the tensor. */
static uint32_t run_from(const struct param_tensor *t, uint32_t r)
{
    const uint32_t left = t->n_row - r, run = t->block ? t->block - r % t->block : left;
    return run < left ? run : left;
}

static void next_column(struct param_piece *out, struct param_walk *w)
{
    const struct param_tensor *t = w->t;
    const uint32_t n = run_from(t, w->row);
    *out = (struct param_piece){
        .at = ((size_t)t->col_at + w->col) * t->all_rows + param_tensor_row(t, w->row),
        .of = (size_t)w->row * t->n_col + w->col,
        .n = n,
        .step = t->n_col,
    };
    w->row += n;
    if (w->row == t->n_row && ++w->col < t->n_col)
        w->row = 0;
}

bool param_next_piece(struct param_piece *out, struct param_walk *w)
{
    const struct param_tensor *t = w->t;
    if (w->row >= t->n_row || w->col >= t->n_col)
        return false;
    if (t->transposed) {
        next_column(out, w);
        return true;
    }
    const uint32_t n = t->n_col == t->all_cols ? run_from(t, w->row) : 1; /* rows */
    *out = (struct param_piece){
        .at = (size_t)param_tensor_row(t, w->row) * t->all_cols + t->col_at,
        .of = (size_t)w->row * t->n_col,
        .n = (size_t)n * t->n_col,
        .step = 1,
    };
    w->row += n;
    return true;
}

struct param *params_find(const struct params *p, enum program_weight w, uint32_t layer)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (w != PROGRAM_W_NONE && p->all[i].weight == w && p->all[i].layer == layer)
            return &p->all[i];
    return NULL;
}

void params_zero_gradients(struct params *p)
{
    memset(p->g, 0, p->n_element * sizeof *p->g);
}

void params_release(struct params *p)
{
    q_free(p->all);
    q_free(p->w);
    q_free(p->g);
    q_free(p->m);
    q_free(p->v);
    *p = (struct params)PARAMS_INIT;
}
