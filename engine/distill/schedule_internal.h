/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_internal - where student and teacher lie in a pipeline; a run of given schedules.
 * Threads: pure. */
#ifndef QUIRE_ENGINE_DISTILL_SCHEDULE_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_SCHEDULE_INTERNAL_H
#include "engine/distill/schedule.h"

struct schedule_place {
    uint32_t n;                /* pipeline ranks of both */
    uint32_t student, teacher; /* the first rank with a stage; teacher n: none has one */
};
static inline struct schedule_place schedule_place(const struct schedule_options *o)
{
    uint32_t n = o->n_rank > o->n_teacher_rank ? o->n_rank : o->n_teacher_rank;
    return (struct schedule_place){n, n - o->n_rank, n - o->n_teacher_rank};
}
static inline uint32_t schedule_n_teacher(const struct schedule_options *o) /* stages a rank */
{
    return o->n_teacher_virtual ? o->n_teacher_virtual : 1;
}
/* Errors: Q_INVALID (sizes that no schedule has, by name). */
FALLIBLE schedule_check(const struct schedule_options *o, struct q_err *e);

/* schedule_bubble for schedules: [place.n] that need not be those of schedule_make. */
FALLIBLE schedule_run(const struct schedule_options *o, const struct schedule *schedules,
                      const struct stage_cost *costs, double *bubble, struct q_err *e);

#endif
