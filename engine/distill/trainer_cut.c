/* SPDX-License-Identifier: Apache-2.0 */
/* The student is cut first, by forward and backward work with head and loss; then the teacher, with
 * what the student's stages of the same ranks cost at its first and last stage. So a rank whose
 * student part has the vocabulary gets fewer of the teacher's layers. */
#include <math.h>
#include "common/mem.h"
#include "engine/distill/trainer_internal.h"

#define BACKWARD 2.0 /* products of a backward pass for one of the forward pass */

/* beside: [n_stage] of virtual stages over n_rank ranks. */
static FALLIBLE stages_of(struct stage_layers **out, const struct cut_costs *costs, uint32_t n_rank,
                          const double *beside, struct q_err *e)
{
    if (!(*out = q_calloc(costs->n_stage, sizeof **out)))
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", costs->n_stage);
    enum q_code rc = cut_layers(costs, *out, e);
    if (!rc && costs->n_stage > n_rank)
        cut_balance(costs, n_rank, beside, *out);
    return rc;
}

static double stage_cost_of(const struct model_costs *c, const struct stage_layers *s)
{
    double sum = s->has_head ? c->head : 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += c->layers[s->first + i];
    return sum;
}

/* What the first tensor ranks do for the student, into c->costs. */
static void add_student(struct trainer_cut *c, const struct distill_options *o,
                        const struct topology *top)
{
    const uint32_t n = top->sizes.n_student_pipeline, first = top->n_pipeline - n;
    const double again = o->recompute ? 1 : 0, part = 1.0 / top->sizes.n_student_tensor;
    for (uint32_t i = 0; i < c->n_student; i++) {
        struct stage_cost *cost = &c->costs[(first + i % n) * top->sizes.n_virtual + i / n];
        const double layers = part * (stage_cost_of(&c->student_costs, &c->student[i]) -
                                      (c->student[i].has_head ? c->student_costs.head : 0));
        cost->forward += layers;
        cost->backward += (BACKWARD + again) * layers;
        if (c->student[i].has_head) /* head and loss run behind the forward pass, with gradients */
            cost->forward += (1 + BACKWARD) * part * c->student_costs.head;
    }
}

static FALLIBLE cut_student(struct trainer_cut *c, const struct distill_options *o,
                            const struct topology *top, struct q_err *e)
{
    const struct cut_costs costs = {
        .layers = c->student_costs.layers,
        .head = c->student_costs.head,
        .n_layer = c->student_costs.n_layer,
        .n_stage = c->n_student,
    };
    double *beside = q_calloc(c->n_student, sizeof *beside);
    if (!beside)
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", c->n_student);
    beside[c->n_student - 1] = costs.head;
    enum q_code rc = stages_of(&c->student, &costs, top->sizes.n_student_pipeline, beside, e);
    q_free(beside);
    if (!rc)
        add_student(c, o, top);
    return rc;
}

static struct stage_cost *teacher_cost(struct trainer_cut *c, const struct topology *top,
                                       uint32_t stage)
{
    const uint32_t n = top->sizes.n_teacher_pipeline, first = top->n_pipeline - n;
    return &c->costs[(first + stage % n) * top->sizes.n_virtual + stage / n];
}

/* What the student costs beside a stage of the teacher: beside one of its own stages, or all of a
 * rank. */
static double student_beside(struct trainer_cut *c, const struct topology *top, uint32_t stage)
{
    const uint32_t n = top->sizes.n_teacher_virtual > 1 ? 1 : top->sizes.n_virtual;
    const struct stage_cost *costs = teacher_cost(c, top, stage);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += costs[i].forward + costs[i].backward;
    return sum;
}

static FALLIBLE cut_teacher(struct trainer_cut *c, const struct topology *top, struct q_err *e)
{
    const double size = top->sizes.n_teacher_tensor; /* costs of whole layers are divided by it */
    const uint32_t n = c->n_teacher;
    double *beside = q_calloc(n, sizeof *beside), least = INFINITY;
    if (!beside)
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", n);
    for (uint32_t i = 0; i < n; i++) {
        beside[i] = size * student_beside(c, top, i);
        least = fmin(least, beside[i]);
    }
    const struct cut_costs costs = {
        .layers = c->teacher_costs.layers,
        .embedding = beside[0] - least,
        .head = c->teacher_costs.head + beside[n - 1] - least,
        .n_layer = c->teacher_costs.n_layer,
        .n_stage = n,
    };
    beside[n - 1] += c->teacher_costs.head;
    enum q_code rc = stages_of(&c->teacher, &costs, top->sizes.n_teacher_pipeline, beside, e);
    q_free(beside);
    for (uint32_t i = 0; i < n && !rc; i++)
        teacher_cost(c, top, i)->teacher += stage_cost_of(&c->teacher_costs, &c->teacher[i]) / size;
    return rc;
}

FALLIBLE trainer_cut_make(struct trainer_cut *c, const struct distill_options *o,
                          const struct topology *top, struct q_err *e)
{
    const uint32_t n_micro = o->data.global_batch / o->data.micro_batch / top->sizes.n_data;
    const struct schedule_options schedule = topology_schedule(top, n_micro);
    const uint32_t n_context = o->data.seq_len / 2;
    enum q_code rc;
    c->n_student = top->sizes.n_student_pipeline * top->sizes.n_virtual;
    c->n_teacher = top->sizes.n_teacher_pipeline;
    if (top->sizes.n_teacher_virtual > 1)
        c->n_teacher *= top->sizes.n_teacher_virtual;
    if (!(c->costs = q_calloc((size_t)top->n_pipeline * top->sizes.n_virtual, sizeof *c->costs)))
        return q_fail(e, Q_NO_MEMORY, "no memory for the costs of %u ranks", top->n_pipeline);
    if ((rc = model_costs_of(&c->student_costs, o->student, n_context, e)) ||
        (rc = cut_student(c, o, top, e)))
        return rc;
    if (o->teacher && ((rc = model_costs_of(&c->teacher_costs, o->teacher, n_context, e)) ||
                       (rc = cut_teacher(c, top, e))))
        return rc;
    return schedule_bubble(&schedule, c->costs, &c->bubble, e);
}

void trainer_cut_release(struct trainer_cut *c)
{
    model_costs_release(&c->student_costs);
    model_costs_release(&c->teacher_costs);
    q_free(c->student);
    q_free(c->teacher);
    q_free(c->costs);
}
