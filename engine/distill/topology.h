/* SPDX-License-Identifier: Apache-2.0 */
/* topology - the place of a rank in a run: replica, pipeline rank, tensor rank; its stages, groups
 * and neighbours.
 *
 *     rank = (data * n_pipeline + pipeline) * n_tensor + tensor
 *
 * n_pipeline and n_tensor are the larger of the student's and the teacher's sizes; stages of the
 * smaller one lie on the last pipeline ranks and the first tensor ranks. So the last pipeline rank
 * has the last stage of both. With virtual stages, stage s of the student lies on its pipeline rank
 * s modulo n_student_pipeline, of the teacher likewise. Messages go between equal tensor ranks of
 * one replica.
 * Threads: read-only after topology_make. */
#ifndef QUIRE_ENGINE_DISTILL_TOPOLOGY_H
#define QUIRE_ENGINE_DISTILL_TOPOLOGY_H
#include "engine/distill/schedule.h"
#include "engine/distill/transport.h"

struct topology_sizes {
    uint32_t n_student_pipeline, n_virtual, n_student_tensor;
    uint32_t n_teacher_pipeline, n_teacher_tensor; /* 0, 0: no teacher on the ranks */
    uint32_t n_data;
    uint32_t n_teacher_virtual; /* as in struct schedule_options */
};

enum topology_group {
    TOPOLOGY_ALL,            /* all ranks */
    TOPOLOGY_REPLICA,        /* all ranks of a replica */
    TOPOLOGY_STUDENT,        /* ranks of a replica that have a part of the student: the norm */
    TOPOLOGY_TENSOR,         /* tensor ranks of the student's stages here */
    TOPOLOGY_TEACHER_TENSOR, /* tensor ranks of the teacher's stage here */
    TOPOLOGY_BOTH_TENSOR,    /* all tensor ranks of this pipeline rank: teacher rows for the loss */
    TOPOLOGY_DATA,           /* the ranks with this rank's part of the student in all replicas */
    TOPOLOGY_EMBEDDING,      /* first and last stage of the student: a table tied to the head; one
                              * rank where both are the same */
    TOPOLOGY_GROUPS
};

struct topology {
    struct topology_sizes sizes;
    uint32_t n_rank, n_pipeline, n_tensor;
    uint32_t rank, data, pipeline, tensor; /* of this rank */
    bool has_student, has_teacher;
    uint32_t student_pipeline; /* number of the pipeline rank among the student's, also of a tensor
                                  rank without a student; 0 in front of them */
    uint32_t teacher_pipeline; /* the same of the teacher; with has_teacher */
    /* n = 0: this rank is in no such group (TENSOR, STUDENT, DATA, EMBEDDING without a student
     * here, TEACHER_TENSOR without a teacher, EMBEDDING of a middle stage) */
    struct transport_group groups[TOPOLOGY_GROUPS];
    uint32_t *ranks; /* [TOPOLOGY_GROUPS][n_rank] memory of the groups */
};

/* Ranks of a run with these sizes. */
uint32_t topology_n_rank(const struct topology_sizes *s);
/* Errors: Q_INVALID (a size of 0, too many ranks; n_rank is not that of the sizes: both numbers),
 * Q_NO_MEMORY. */
FALLIBLE topology_make(struct topology *out, const struct topology_sizes *s, uint32_t rank,
                       uint32_t n_rank, struct q_err *e);
void topology_release(struct topology *t);

/* Options of schedule_make for this rank, whose `rank` argument is t->pipeline. */
struct schedule_options topology_schedule(const struct topology *t, uint32_t n_micro);

/* Number among all stages of the student (n_student_pipeline * n_virtual) of this rank's i-th; of
 * the teacher (n_teacher_pipeline * n_teacher_virtual). */
uint32_t topology_student_stage(const struct topology *t, uint32_t i);
uint32_t topology_teacher_stage(const struct topology *t, uint32_t i);

struct topology_message {
    bool exists;
    uint32_t peer, tag; /* a rank; below TRANSPORT_TAGS */
};
struct topology_messages {
    struct topology_message from, to;
};
/* What a schedule's item of this kind and stage receives before and sends behind it. FORWARD: the
 * stream of the previous stage, to the next one; BACKWARD: the gradient of the next stage, to the
 * previous one; TEACHER: as FORWARD, in shapes of its own. A tag is that of kind and
 * receiving stage; items of one kind and stage are in the order of micro batches on all ranks. */
struct topology_messages topology_messages(const struct topology *t, enum schedule_kind kind,
                                           uint32_t stage);

#endif
