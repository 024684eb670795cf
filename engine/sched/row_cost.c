/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/row_cost.h"

#define RISE (1.0 / 64) /* of a fastest time, with each step of its size: it follows slower ones */

void row_cost_note(struct row_cost *c, uint32_t n_row, int64_t us)
{
    if (n_row == 0 || us <= 0)
        return;
    uint32_t size = 31 - (uint32_t)__builtin_clz(n_row);
    size = size < ROW_COST_SIZES ? size : ROW_COST_SIZES - 1;
    const double slower = c->fastest[size].us * (1 + RISE);
    if (slower > 0 && (double)us > slower) {
        c->fastest[size].us = slower;
        return;
    }
    c->fastest[size].n = n_row;
    c->fastest[size].us = (double)us;
}

double row_cost_fixed_rows(const struct row_cost *c)
{
    double w = 0, wn = 0, wnn = 0, wus = 0, wnus = 0; /* sums, each weighted with 1 / n^2 */
    for (uint32_t i = 0; i < ROW_COST_SIZES; i++) {
        const double n = c->fastest[i].n, us = c->fastest[i].us;
        if (n > 0) {
            w += 1 / (n * n);
            wn += 1 / n;
            wnn += 1;
            wus += us / (n * n);
            wnus += us / n;
        }
    }
    if (wnn < 2)
        return ROW_COST_GUESS;
    const double row = w * wnus - wn * wus, fixed = wus * wnn - wn * wnus; /* times w wnn - wn^2 */
    if (fixed <= 0)
        return 0;
    return fixed < ROW_COST_MAX * row ? fixed / row : ROW_COST_MAX;
}
