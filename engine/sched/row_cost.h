/* SPDX-License-Identifier: Apache-2.0 */
/* row_cost - what a step costs beside its rows: weights are read once for all of them.
 *
 * A step of n rows takes about
 *
 *     fixed + row * n
 *
 * where memory limits small steps, `fixed` is worth many rows; where arithmetic does, few. Both are
 * fitted to one step of each power of two of n, the fastest one lately, because what delays a step
 * (other processes, long contexts) is no property of n. The fit is the least squares of errors
 * relative to n, so that steps of one row and of a thousand count alike. While steps of one size
 * alone were seen, nothing is known about a row: then ROW_COST_GUESS is the answer.
 * Threads: the scheduler's loop only. Allocates nothing. */
#ifndef QUIRE_ENGINE_SCHED_ROW_COST_H
#define QUIRE_ENGINE_SCHED_ROW_COST_H
#include <stdint.h>

#define ROW_COST_SIZES 21     /* up to 2^20 rows and more */
#define ROW_COST_GUESS 8.0    /* before enough was measured */
#define ROW_COST_MAX   4096.0 /* rows that seem to cost nothing */

struct row_cost {
    struct {
        double n, us; /* 0: no step of this size yet */
    } fastest[ROW_COST_SIZES];
};
/* A step of n_row rows took so long. */
void row_cost_note(struct row_cost *c, uint32_t n_row, int64_t us);
/* fixed / row: how many rows take as long as what is fixed; 0 … ROW_COST_MAX. */
double row_cost_fixed_rows(const struct row_cost *c);

#endif
