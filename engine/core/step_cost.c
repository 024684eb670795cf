/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/step_cost.h"

#define COPY_WORK      256u /* of a block copied from or to host memory */
#define FORGET_PART    16   /* of the difference to a shorter time */
#define UNSEEN_FLOP_US 1000 /* 1 GFLOP/s */
#define LIMIT_US_MAX   ((int64_t)1 << 50)

uint64_t step_cost_work(const struct step_view *v)
{
    uint64_t work = STEP_COST_ROW + (uint64_t)COPY_WORK * (v->head->n_out + v->head->n_in);
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_seq *q = &v->seqs[i];
        work += (uint64_t)q->n_token * (STEP_COST_ROW + q->start + q->n_token);
    }
    return work;
}

static uint32_t size_of(uint64_t work)
{
    return work ? 63u - (uint32_t)__builtin_clzll(work) : 0;
}

void step_cost_note(struct step_cost *c, uint64_t work, int64_t us)
{
    int64_t *slowest = &c->slowest_us[size_of(work)];
    us = us > 1 ? us : 1;
    *slowest = us >= *slowest ? us : *slowest - (*slowest - us) / FORGET_PART;
}

int64_t step_cost_expected_us(const struct step_cost *c, uint64_t work)
{
    const uint32_t size = size_of(work);
    int64_t us = 0, seen_us = 0;
    for (uint32_t i = 0; i <= size; i++) {
        seen_us = c->slowest_us[i] > seen_us ? c->slowest_us[i] : seen_us;
        if (c->slowest_us[i])
            us = seen_us;
        else if (us < LIMIT_US_MAX / 2)
            us *= 2; /* with each size that was not seen */
    }
    for (uint32_t i = size + 1; i < STEP_COST_SIZES && !us; i++)
        us = c->slowest_us[i];
    return us;
}

int64_t step_cost_limit_us(const struct step_cost *c, uint64_t work, int64_t least_us)
{
    int64_t us = step_cost_expected_us(c, work);
    if (us)
        us = us < LIMIT_US_MAX / STEP_COST_FACTOR ? us * STEP_COST_FACTOR : LIMIT_US_MAX;
    else
        us = (int64_t)(2.0 * (double)c->n_param * (double)work / STEP_COST_ROW / UNSEEN_FLOP_US);
    return us > least_us ? us : least_us;
}
