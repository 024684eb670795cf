/* SPDX-License-Identifier: Apache-2.0 */
/* The student is cut first, by forward and backward work with head and loss, beside an equal part
 * of the teacher on the ranks that have one; then the teacher, beside what the student's stages of
 * the same ranks cost. So ranks of the student alone get more of its layers, and a rank whose
 * student part has the vocabulary fewer of the teacher's. */
#include <math.h>
#include "common/mem.h"
#include "engine/distill/trainer_internal.h"

#define BACKWARD 2.0 /* products of a backward pass for one of the forward pass */

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

/* The teacher's part beside each stage of the student, in FLOP of forward passes: an equal part for
 * each of its ranks. */
static void teacher_beside(double *beside, const struct trainer_cut *c,
                           const struct distill_options *o, const struct topology *top)
{
    const struct topology_sizes *s = &top->sizes;
    const double passes = 1 + BACKWARD + (o->recompute ? 1 : 0), part = 1.0 / s->n_student_tensor;
    const double all = o->teacher ? model_costs_row(&c->teacher_costs) / s->n_teacher_tensor : 0;
    const uint32_t n = s->n_student_pipeline;
    Q_ASSERT(n > 0); /* topology_make */
    for (uint32_t i = 0; i < c->n_student && s->n_teacher_pipeline < n && all > 0; i++)
        if (i % n >= n - s->n_teacher_pipeline)
            beside[i] += all / (s->n_teacher_pipeline * s->n_virtual * passes * part);
}

static FALLIBLE cut_student(struct trainer_cut *c, const struct distill_options *o,
                            const struct topology *top, struct q_err *e)
{
    double *beside = q_calloc(c->n_student, sizeof *beside);
    if (!beside)
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", c->n_student);
    teacher_beside(beside, c, o, top);
    const struct cut_costs costs = {
        .layers = c->student_costs.layers,
        .head = c->student_costs.head,
        .n_layer = c->student_costs.n_layer,
        .n_stage = c->n_student,
        .beside = beside,
    };
    enum q_code rc = cut_layers(&costs, c->student, e);
    beside[c->n_student - 1] += costs.head;
    if (!rc && c->n_student > top->sizes.n_student_pipeline)
        cut_balance(&costs, top->sizes.n_student_pipeline, beside, c->student);
    q_free(beside);
    if (!rc)
        add_student(c, o, top);
    return rc;
}

static struct stage_cost *teacher_cost(struct trainer_cut *c, const struct topology *top,
                                       uint32_t stage)
{
    const uint32_t n = top->sizes.n_teacher_pipeline, first = top->n_pipeline - n;
    Q_ASSERT(n > 0); /* there is a stage of it */
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
    double *beside = q_calloc(n, sizeof *beside);
    if (!beside)
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", n);
    for (uint32_t i = 0; i < n; i++)
        beside[i] = size * student_beside(c, top, i);
    const struct cut_costs costs = {
        .layers = c->teacher_costs.layers,
        .head = c->teacher_costs.head,
        .n_layer = c->teacher_costs.n_layer,
        .n_stage = n,
        .beside = beside,
    };
    enum q_code rc = cut_layers(&costs, c->teacher, e);
    beside[n - 1] += costs.head;
    if (!rc && n > top->sizes.n_teacher_pipeline)
        cut_balance(&costs, top->sizes.n_teacher_pipeline, beside, c->teacher);
    q_free(beside);
    for (uint32_t i = 0; i < n && !rc; i++)
        teacher_cost(c, top, i)->teacher += stage_cost_of(&c->teacher_costs, &c->teacher[i]) / size;
    return rc;
}

static FALLIBLE make_stages(struct trainer_cut *c, const struct topology *top, struct q_err *e)
{
    const struct topology_sizes *s = &top->sizes;
    c->n_student = s->n_student_pipeline * s->n_virtual;
    c->n_teacher = s->n_teacher_pipeline * (s->n_teacher_virtual > 1 ? s->n_teacher_virtual : 1);
    c->costs = q_calloc((size_t)top->n_pipeline * s->n_virtual, sizeof *c->costs);
    c->student = q_calloc(c->n_student, sizeof *c->student);
    c->teacher = q_calloc(c->n_teacher + 1, sizeof *c->teacher);
    return c->costs && c->student && c->teacher
               ? Q_OK
               : q_fail(e, Q_NO_MEMORY, "no memory for the costs of %u ranks", top->n_pipeline);
}

FALLIBLE trainer_cut_make(struct trainer_cut *c, const struct distill_options *o,
                          const struct topology *top, struct q_err *e)
{
    const uint32_t n_micro = o->data.global_batch / o->data.micro_batch / top->sizes.n_data;
    const struct schedule_options schedule = topology_schedule(top, n_micro);
    const uint32_t n_context = o->data.seq_len / 2;
    enum q_code rc;
    if ((rc = make_stages(c, top, e)) ||
        (rc = model_costs_of(&c->student_costs, o->student, n_context, e)) ||
        (o->teacher && (rc = model_costs_of(&c->teacher_costs, o->teacher, n_context, e))) ||
        (rc = cut_student(c, o, top, e)) || (o->teacher && (rc = cut_teacher(c, top, e))))
        return rc;
    return schedule_bubble(&schedule, c->costs, &c->bubble, e);
}

FALLIBLE trainer_cut_choose(struct trainer_cut *c, const struct distill_options *o,
                            struct topology *top, struct q_err *e)
{
    struct topology plain = *top; /* borrows */
    struct trainer_cut whole = {.bubble = 0};
    enum q_code rc = trainer_cut_make(c, o, top, e);
    plain.sizes.n_teacher_virtual = 1;
    if (rc || top->sizes.n_teacher_virtual < 2)
        return rc;
    if (!(rc = trainer_cut_make(&whole, o, &plain, e)) && whole.bubble < c->bubble) {
        const struct trainer_cut divided = *c;
        top->sizes.n_teacher_virtual = 1;
        *c = whole;
        whole = divided;
    }
    trainer_cut_release(&whole);
    return rc;
}

void trainer_cut_release(struct trainer_cut *c)
{
    model_costs_release(&c->student_costs);
    model_costs_release(&c->teacher_costs);
    q_free(c->student);
    q_free(c->teacher);
    q_free(c->costs);
}
