/* SPDX-License-Identifier: Apache-2.0 */
/* schedule - the order in which a rank computes, and how layers are cut into stages.
 *
 * 1F1B: arXiv:1806.03377 and arXiv:2006.09503; interleaved, with virtual stages: arXiv:2104.04473.
 * The teacher's forward pass of a micro batch is in the same pipeline: right before the student's
 * last stage on a rank, or, where the teacher has as many virtual stages, each of its stages right
 * before the student's; the pipeline ranks of the two may differ. On the last rank no other item of
 * its last stage lies between that and the backward item that needs its rows: a rank keeps what one
 * micro batch needs, times the stages behind it.
 * Student and teacher lie on the last ranks of a pipeline of max(n_rank, n_teacher_rank) ranks.
 * Pure functions. */
#ifndef QUIRE_ENGINE_DISTILL_SCHEDULE_H
#define QUIRE_ENGINE_DISTILL_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "engine/distill/student.h"

struct schedule_options {
    uint32_t n_rank;         /* pipeline ranks of the student */
    uint32_t n_virtual;      /* stages a rank; 1: plain 1F1B; more needs 2 ranks or more */
    uint32_t n_teacher_rank; /* pipeline ranks of the teacher; 0: no teacher */
    uint32_t n_micro;        /* micro batches a step; any number */
    bool forward_only;       /* evaluation: no backward items, one slot */
    /* stages of the teacher on each of its ranks: 1, or n_virtual (schedule_divides_teacher) */
    uint32_t n_teacher_virtual;
};
/* May the teacher have virtual stages? n_rank micro batches lie between two stages of a rank; they
 * are messages under way between the teacher's ranks, TRANSPORT_SENDS for each. With fewer ranks
 * all would wait for each other. */
bool schedule_divides_teacher(uint32_t n_rank, uint32_t n_teacher_rank);
enum schedule_kind { SCHEDULE_TEACHER, SCHEDULE_FORWARD, SCHEDULE_BACKWARD };
struct schedule_item {
    enum schedule_kind kind;
    uint32_t micro;
    uint32_t stage; /* of this rank: virtual stage 0 … n_virtual - 1, of the teacher or student */
    uint32_t slot;  /* FORWARD, BACKWARD: where the stage's activations are kept */
};
struct schedule {
    struct schedule_item *items;
    uint32_t n, n_slot; /* slots of a stage; plain: n_rank - rank at most */
};
/* Errors: Q_INVALID (a combination that no schedule has, with what is accepted), Q_NO_MEMORY. */
FALLIBLE schedule_make(struct schedule *out, const struct schedule_options *o, uint32_t rank,
                       struct q_err *e);
void schedule_release(struct schedule *s);

struct stage_cost { /* seconds or FLOP of one micro batch, of a virtual stage of a rank */
    double teacher, forward, backward;
};
/* Runs all ranks' schedules with the messages between them, of which TRANSPORT_SENDS of a lane may
 * be under way from a rank to another: the idle part of all ranks' time, 0 … 1. costs:
 * [max(n_rank, n_teacher_rank)][n_virtual]; a teacher of one stage a rank is in virtual stage 0.
 * Errors: Q_INVALID (they wait for each other: which items), Q_NO_MEMORY. */
FALLIBLE schedule_bubble(const struct schedule_options *o, const struct stage_cost *costs,
                         double *bubble, struct q_err *e);

struct cut_costs {
    const double *layers;   /* [n_layer] */
    double embedding, head; /* before the first layer, behind the last one */
    uint32_t n_layer, n_stage;
    const double *beside; /* [n_stage] what else the rank of a stage does, or NULL */
};
/* The cut whose largest stage costs least; of equal ones the one whose first stages have more
 * layers. Each stage has a layer at least. out: [n_stage]. Errors: Q_INVALID (fewer layers than
 * stages, a cost below 0 or no number), Q_NO_MEMORY. */
FALLIBLE cut_layers(const struct cut_costs *c, struct stage_layers *out, struct q_err *e);
/* Virtual stages, stage s on rank s modulo n_rank: layers of the cut move between neighbours while
 * the work of the rank that has most becomes less. beside: [n_stage] what else its rank does for
 * each stage; c->embedding and c->head are not read. */
void cut_balance(const struct cut_costs *c, uint32_t n_rank, const double *beside,
                 struct stage_layers *stages);

#endif
