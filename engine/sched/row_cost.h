/* SPDX-License-Identifier: Apache-2.0 */
/* row_cost - what a step costs beside its rows: weights are read once for all of them.
 *
 * A step of n rows takes about
 *
 *     fixed + row * n
 *
 * where memory limits small steps, `fixed` is worth many rows; where arithmetic does, few. Both are
 * fitted to the steps that were measured: the least squares of errors relative to n, so that steps
 * of one row and of a thousand count alike; about the last hundred steps count. Steps that all have
 * nearly the same number of rows say nothing about a row: then ROW_COST_GUESS is the answer.
 * Threads: the scheduler's loop only. Allocates nothing. */
#ifndef QUIRE_ENGINE_SCHED_ROW_COST_H
#define QUIRE_ENGINE_SCHED_ROW_COST_H
#include <stdint.h>

#define ROW_COST_GUESS 8.0    /* before enough was measured */
#define ROW_COST_MAX   4096.0 /* rows that seem to cost nothing */

struct row_cost { /* sums over steps, each weighted with 1 / n^2; zero: none yet */
    double w, n, nn, us, n_us;
};
/* A step of n_row rows took so long; 0 us is no measurement. */
void row_cost_note(struct row_cost *c, uint32_t n_row, uint32_t us);
/* fixed / row: the number of rows that take as long as what is fixed; 0 … ROW_COST_MAX. */
double row_cost_fixed_rows(const struct row_cost *c);

#endif
