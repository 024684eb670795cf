/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/row_cost.h"

#define KEEP       0.99 /* of a sum, with each step */
#define SPREAD_MIN 0.05 /* of the weighted variance of n in its mean square */

void row_cost_note(struct row_cost *c, uint32_t n_row, uint32_t us)
{
    if (n_row == 0 || us == 0)
        return;
    const double n = n_row, w = 1 / (n * n);
    c->w = c->w * KEEP + w;
    c->n = c->n * KEEP + w * n;
    c->nn = c->nn * KEEP + w * n * n;
    c->us = c->us * KEEP + w * us;
    c->n_us = c->n_us * KEEP + w * n * us;
}

double row_cost_fixed_rows(const struct row_cost *c)
{
    const double spread = c->w * c->nn - c->n * c->n;
    if (spread <= SPREAD_MIN * c->w * c->nn)
        return ROW_COST_GUESS;
    const double row = c->w * c->n_us - c->n * c->us, fixed = c->us * c->nn - c->n * c->n_us;
    if (fixed <= 0)
        return 0;
    return fixed < ROW_COST_MAX * row ? fixed / row : ROW_COST_MAX;
}
