/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/topology.h"
#include "common/mem.h"

#define RANKS_MAX  4096u
/* A tag: the kind above, the receiving stage below. */
#define STAGE_BITS 13
_Static_assert((SCHEDULE_TEACHER + 1) << STAGE_BITS == TRANSPORT_LANE_TAGS, "the teacher's lane");
_Static_assert((SCHEDULE_BACKWARD + 1) << STAGE_BITS <= TRANSPORT_TAGS, "tags are too large");

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

uint32_t topology_n_rank(const struct topology_sizes *s)
{
    return larger(s->n_student_pipeline, s->n_teacher_pipeline) *
           larger(s->n_student_tensor, s->n_teacher_tensor) * s->n_data;
}

static enum q_code check_sizes(const struct topology_sizes *s, uint32_t n_rank, struct q_err *e)
{
    const uint32_t all[] = {
        s->n_student_pipeline, s->n_virtual,        s->n_student_tensor,
        s->n_teacher_pipeline, s->n_teacher_tensor, s->n_data,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] > RANKS_MAX)
            return q_fail(e, Q_INVALID, "a size of %u ranks; %u at most", all[i], RANKS_MAX);
    if (!s->n_student_pipeline || !s->n_virtual || !s->n_student_tensor || !s->n_data ||
        !s->n_teacher_pipeline != !s->n_teacher_tensor)
        return q_fail(e, Q_INVALID,
                      "sizes of pipeline %u, virtual stages %u, tensor %u, data %u, teacher's "
                      "pipeline %u, teacher's tensor %u; each has to be 1 or more",
                      s->n_student_pipeline, s->n_virtual, s->n_student_tensor, s->n_data,
                      s->n_teacher_pipeline, s->n_teacher_tensor);
    if (s->n_teacher_virtual > 1 &&
        (s->n_teacher_virtual != s->n_virtual ||
         !schedule_divides_teacher(s->n_student_pipeline, s->n_teacher_pipeline)))
        return q_fail(e, Q_INVALID,
                      "%u virtual stages of a teacher on %u pipeline ranks; expected 1, or the "
                      "student's %u on half of its %u ranks or more",
                      s->n_teacher_virtual, s->n_teacher_pipeline, s->n_virtual,
                      s->n_student_pipeline);
    uint64_t n_stage =
        (uint64_t)larger(s->n_student_pipeline, s->n_teacher_pipeline) * s->n_virtual;
    if (n_stage > 1u << STAGE_BITS)
        return q_fail(e, Q_INVALID, "%llu pipeline stages; %u at most", (unsigned long long)n_stage,
                      1u << STAGE_BITS);
    uint64_t n = (uint64_t)larger(s->n_student_pipeline, s->n_teacher_pipeline) *
                 larger(s->n_student_tensor, s->n_teacher_tensor) * s->n_data;
    if (n > RANKS_MAX)
        return q_fail(e, Q_INVALID, "the sizes need %llu ranks; %u at most", (unsigned long long)n,
                      RANKS_MAX);
    if (n != n_rank)
        return q_fail(e, Q_INVALID,
                      "the run has %u ranks, but its sizes need %llu: data %u x pipeline %u x "
                      "tensor %u (the larger ones of student and teacher)",
                      n_rank, (unsigned long long)n, s->n_data,
                      larger(s->n_student_pipeline, s->n_teacher_pipeline),
                      larger(s->n_student_tensor, s->n_teacher_tensor));
    return Q_OK;
}

/* The first pipeline rank with a stage of student and of teacher. */
static uint32_t student_begin(const struct topology *t)
{
    return t->n_pipeline - t->sizes.n_student_pipeline;
}
static uint32_t teacher_begin(const struct topology *t)
{
    return t->n_pipeline - t->sizes.n_teacher_pipeline;
}

static uint32_t rank_at(const struct topology *t, uint32_t data, uint32_t pipeline, uint32_t tensor)
{
    return (data * t->n_pipeline + pipeline) * t->n_tensor + tensor;
}

/* ---- groups ---- */

/* The ranks of a box of the three coordinates, in ascending order. */
struct box {
    uint32_t data, n_data, pipeline, n_pipeline, pipeline_step, tensor, n_tensor;
};

static void add_group(struct topology *t, enum topology_group which, const struct box *b)
{
    uint32_t *ranks = t->ranks + (size_t)which * t->n_rank, n = 0;
    for (uint32_t d = b->data; d < b->data + b->n_data; d++)
        for (uint32_t p = 0; p < b->n_pipeline; p++)
            for (uint32_t i = b->tensor; i < b->tensor + b->n_tensor; i++)
                ranks[n++] = rank_at(t, d, b->pipeline + p * b->pipeline_step, i);
    t->groups[which] = (struct transport_group){ranks, n};
}

static void add_student_groups(struct topology *t)
{
    const struct topology_sizes *s = &t->sizes;
    const uint32_t n = s->n_student_pipeline, d = t->data, p = t->pipeline,
                   begin = student_begin(t);
    add_group(t, TOPOLOGY_STUDENT, &(struct box){d, 1, begin, n, 1, 0, s->n_student_tensor});
    add_group(t, TOPOLOGY_TENSOR, &(struct box){d, 1, p, 1, 1, 0, s->n_student_tensor});
    add_group(t, TOPOLOGY_DATA, &(struct box){0, s->n_data, p, 1, 1, t->tensor, 1});
    if (t->student_pipeline == 0 || t->student_pipeline == n - 1)
        add_group(t, TOPOLOGY_EMBEDDING,
                  &(struct box){d, 1, begin, n > 1 ? 2 : 1, n - 1, t->tensor, 1});
}

static void add_groups(struct topology *t)
{
    const struct topology_sizes *s = &t->sizes;
    const uint32_t d = t->data, p = t->pipeline, n_tensor = t->n_tensor;
    add_group(t, TOPOLOGY_ALL, &(struct box){0, s->n_data, 0, t->n_pipeline, 1, 0, n_tensor});
    add_group(t, TOPOLOGY_REPLICA, &(struct box){d, 1, 0, t->n_pipeline, 1, 0, n_tensor});
    add_group(t, TOPOLOGY_BOTH_TENSOR, &(struct box){d, 1, p, 1, 1, 0, n_tensor});
    if (t->has_student)
        add_student_groups(t);
    if (t->has_teacher)
        add_group(t, TOPOLOGY_TEACHER_TENSOR, &(struct box){d, 1, p, 1, 1, 0, s->n_teacher_tensor});
}

FALLIBLE topology_make(struct topology *out, const struct topology_sizes *s, uint32_t rank,
                       uint32_t n_rank, struct q_err *e)
{
    enum q_code rc = check_sizes(s, n_rank, e);
    *out = (struct topology){0};
    if (rc)
        return rc;
    if (rank >= n_rank)
        return q_fail(e, Q_INVALID, "rank %u of %u ranks", rank, n_rank);
    struct topology t = {.sizes = *s, .n_rank = n_rank, .rank = rank};
    t.n_pipeline = larger(s->n_student_pipeline, s->n_teacher_pipeline);
    t.n_tensor = larger(s->n_student_tensor, s->n_teacher_tensor);
    t.tensor = rank % t.n_tensor;
    t.pipeline = rank / t.n_tensor % t.n_pipeline;
    t.data = rank / t.n_tensor / t.n_pipeline;
    t.has_student = t.pipeline >= student_begin(&t) && t.tensor < s->n_student_tensor;
    t.has_teacher = t.pipeline >= teacher_begin(&t) && t.tensor < s->n_teacher_tensor;
    t.student_pipeline = t.pipeline >= student_begin(&t) ? t.pipeline - student_begin(&t) : 0;
    t.teacher_pipeline = t.has_teacher ? t.pipeline - teacher_begin(&t) : 0;
    t.ranks = q_calloc((size_t)TOPOLOGY_GROUPS * n_rank, sizeof *t.ranks);
    if (!t.ranks)
        return q_fail(e, Q_NO_MEMORY, "no memory for the groups of %u ranks", n_rank);
    add_groups(&t);
    *out = t;
    return Q_OK;
}

void topology_release(struct topology *t)
{
    q_free(t->ranks);
    *t = (struct topology){0};
}

/* ---- stages and messages ---- */

struct schedule_options topology_schedule(const struct topology *t, uint32_t n_micro)
{
    return (struct schedule_options){
        .n_rank = t->sizes.n_student_pipeline,
        .n_virtual = t->sizes.n_virtual,
        .n_teacher_rank = t->sizes.n_teacher_pipeline,
        .n_micro = n_micro,
        .n_teacher_virtual = t->sizes.n_teacher_virtual,
    };
}

uint32_t topology_student_stage(const struct topology *t, uint32_t i)
{
    return i * t->sizes.n_student_pipeline + t->student_pipeline;
}

uint32_t topology_teacher_stage(const struct topology *t, uint32_t i)
{
    return i * t->sizes.n_teacher_pipeline + t->teacher_pipeline;
}

/* `peer_stage` is on another rank; the message is for `receiver`. */
static struct topology_message message(const struct topology *t, enum schedule_kind kind,
                                       uint32_t peer_stage, uint32_t receiver)
{
    uint32_t pipeline = kind == SCHEDULE_TEACHER
                            ? teacher_begin(t) + peer_stage % t->sizes.n_teacher_pipeline
                            : student_begin(t) + peer_stage % t->sizes.n_student_pipeline;
    return (struct topology_message){
        true,
        rank_at(t, t->data, pipeline, t->tensor),
        (uint32_t)kind << STAGE_BITS | receiver,
    };
}

struct topology_messages topology_messages(const struct topology *t, enum schedule_kind kind,
                                           uint32_t stage)
{
    struct topology_messages out = {0};
    const bool of_teacher = kind == SCHEDULE_TEACHER;
    const struct topology_sizes *s = &t->sizes;
    const uint32_t here =
        of_teacher ? topology_teacher_stage(t, stage) : topology_student_stage(t, stage);
    const uint32_t n = of_teacher ? s->n_teacher_pipeline * larger(1, s->n_teacher_virtual)
                                  : s->n_student_pipeline * s->n_virtual;
    const bool back = kind == SCHEDULE_BACKWARD;
    if (here > 0 && back)
        out.to = message(t, kind, here - 1, here - 1);
    else if (here > 0)
        out.from = message(t, kind, here - 1, here);
    if (here + 1 < n && back)
        out.from = message(t, kind, here + 1, here);
    else if (here + 1 < n)
        out.to = message(t, kind, here + 1, here + 1);
    return out;
}
