/* SPDX-License-Identifier: Apache-2.0 */
/* The student is cut first, by forward and backward work with head and loss; then the teacher, with
 * what the student's stages of the same ranks cost at its first and last stage. So a rank whose
 * student part has the vocabulary gets fewer of the teacher's layers. */
#include "common/mem.h"
#include "engine/distill/trainer_internal.h"

#define BACKWARD 2.0 /* products of a backward pass for one of the forward pass */

static FALLIBLE stages_of(struct stage_layers **out, const struct cut_costs *costs, struct q_err *e)
{
    if (!(*out = q_calloc(costs->n_stage, sizeof **out)))
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", costs->n_stage);
    return cut_layers(costs, *out, e);
}

static double stage_cost_of(const struct model_costs *c, const struct stage_layers *s)
{
    double sum = s->has_head ? c->head : 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += c->layers[s->first + i];
    return sum;
}

/* What the first tensor ranks do for the student, into c->ranks. */
static void add_student(struct trainer_cut *c, const struct distill_options *o,
                        const struct topology *top)
{
    const uint32_t n = top->sizes.n_student_pipeline, first = top->n_pipeline - n;
    const double again = o->recompute ? 1 : 0, part = 1.0 / top->sizes.n_student_tensor;
    for (uint32_t i = 0; i < c->n_student; i++) {
        struct stage_cost *rank = &c->ranks[first + i % n];
        const double layers = part * (stage_cost_of(&c->student_costs, &c->student[i]) -
                                      (c->student[i].has_head ? c->student_costs.head : 0));
        rank->forward += layers;
        rank->backward += (BACKWARD + again) * layers;
        if (c->student[i].has_head) /* head and loss run behind the forward pass, with gradients */
            rank->forward += (1 + BACKWARD) * part * c->student_costs.head;
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
    enum q_code rc = stages_of(&c->student, &costs, e);
    if (!rc)
        add_student(c, o, top);
    return rc;
}

static FALLIBLE cut_teacher(struct trainer_cut *c, const struct topology *top, struct q_err *e)
{
    const uint32_t n = top->sizes.n_teacher_pipeline, first = top->n_pipeline - n;
    const double size = top->sizes.n_teacher_tensor; /* costs of whole layers are divided by it */
    double most = 0, least = -1;
    for (uint32_t i = first; i < top->n_pipeline; i++) {
        const double here = c->ranks[i].forward + c->ranks[i].backward;
        least = least < 0 || here < least ? here : least;
    }
    most = c->ranks[top->n_pipeline - 1].forward + c->ranks[top->n_pipeline - 1].backward;
    const struct cut_costs costs = {
        .layers = c->teacher_costs.layers,
        .embedding = size * (c->ranks[first].forward + c->ranks[first].backward - least),
        .head = c->teacher_costs.head + size * (most - least),
        .n_layer = c->teacher_costs.n_layer,
        .n_stage = n,
    };
    enum q_code rc = stages_of(&c->teacher, &costs, e);
    for (uint32_t i = 0; i < n && !rc; i++)
        c->ranks[first + i].teacher += stage_cost_of(&c->teacher_costs, &c->teacher[i]) / size;
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
    if (!(c->ranks = q_calloc(top->n_pipeline, sizeof *c->ranks)))
        return q_fail(e, Q_NO_MEMORY, "no memory for the costs of %u ranks", top->n_pipeline);
    if ((rc = model_costs_of(&c->student_costs, o->student, n_context, e)) ||
        (rc = cut_student(c, o, top, e)))
        return rc;
    if (o->teacher && ((rc = model_costs_of(&c->teacher_costs, o->teacher, n_context, e)) ||
                       (rc = cut_teacher(c, top, e))))
        return rc;
    return schedule_bubble(&schedule, c->ranks, &c->bubble, e);
}

void trainer_cut_release(struct trainer_cut *c)
{
    model_costs_release(&c->student_costs);
    model_costs_release(&c->teacher_costs);
    q_free(c->student);
    q_free(c->teacher);
    q_free(c->ranks);
}
