/* SPDX-License-Identifier: Apache-2.0 */
/* step_cost - how long a step may take before its worker counts as hung.
 *
 * The work of a step is estimated from its rows and their contexts; for each power of two of work
 * the longest time is kept that a step took lately. A step is expected to take no longer than those
 * of its size or below; beyond the sizes seen the time grows with the work. Before any step was
 * seen, a machine of 1 GFLOP/s is assumed. Threads: the core's owner. Allocates nothing. */
#ifndef QUIRE_ENGINE_CORE_STEP_COST_H
#define QUIRE_ENGINE_CORE_STEP_COST_H
#include <stdint.h>
#include "proto/step.h"

#define STEP_COST_SIZES  64
#define STEP_COST_ROW    4096u /* work of a row, beside one for each position of its context */
#define STEP_COST_FACTOR 30    /* a step that takes this many times what is expected is a hang */

struct step_cost {
    int64_t slowest_us[STEP_COST_SIZES]; /* by log2 of the work; 0 = none seen */
    uint64_t n_param;                    /* of the model; rows cost two operations each */
};
uint64_t step_cost_work(const struct step_view *v);
/* A step of this work took so long. */
void step_cost_note(struct step_cost *c, uint64_t work, int64_t us);
/* How long a step of this work takes at most, by those seen; 0: none was seen. */
int64_t step_cost_expected_us(const struct step_cost *c, uint64_t work);
/* The time after which a step of this work is a hang; at least least_us. */
int64_t step_cost_limit_us(const struct step_cost *c, uint64_t work, int64_t least_us);

#endif
