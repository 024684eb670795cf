/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a schedule, one after another: receive, compute, send. The transport copies what it
 * sends, so a stage's output needs no buffer of ours. A micro batch without a counted position
 * takes part like any other.
 *
 * The loss belongs to the forward item of the last stage: it reads the teacher's rows of the micro
 * batch that the teacher's item before it had, and keeps the gradient of the stream until the
 * backward item of the slot. */
#include <string.h>
#include "engine/distill/teacher_link.h"
#include "engine/distill/trainer_internal.h"

struct item {
    const struct schedule_item *is;
    const struct micro_batch *batch;
    struct topology_messages messages;
};

bool trainer_has_sums(const struct trainer *t)
{
    return t->head && t->top.tensor == 0;
}

/* ---- micro batches ---- */

/* Those under way are fewer than the slots but for very deep pipelines, where one is made again. */
static FALLIBLE micro_batch_of(struct trainer *t, const struct trainer_pass *p, uint32_t micro,
                               const struct micro_batch **out, struct q_err *e)
{
    const uint32_t slot = micro % DATASET_SLOTS;
    const uint64_t at = p->micro_at + (uint64_t)micro * p->stride;
    const uint64_t step = p->each_is_a_step ? p->step + at : p->step;
    const uint32_t i = p->each_is_a_step ? 0 : (uint32_t)at;
    *out = &t->batches[slot];
    if (t->batch_data[slot] == p->data && t->batch_steps[slot] == step &&
        t->batch_micros[slot] == i)
        return Q_OK;
    t->batch_data[slot] = NULL;
    enum q_code rc = dataset_batch(p->data, step, i, slot, &t->batches[slot], e);
    if (rc)
        return rc;
    t->batch_data[slot] = p->data;
    t->batch_steps[slot] = step;
    t->batch_micros[slot] = i;
    return Q_OK;
}

/* ---- messages ---- */

static size_t stream_bytes(const struct micro_batch *b, uint32_t hidden)
{
    return (size_t)b->n_row * hidden * sizeof(float);
}

/* *out: the stream before the stage; NULL without a message. */
static FALLIBLE receive(struct trainer *t, const struct item *item, float *room, uint32_t hidden,
                        float **out, struct q_err *e)
{
    const struct topology_message *from = &item->messages.from;
    const struct transport_message m = {from->peer, from->tag, stream_bytes(item->batch, hidden)};
    *out = from->exists ? room : NULL;
    return from->exists ? transport_receive(t->transport, &m, room, e) : Q_OK;
}

static FALLIBLE send_on(struct trainer *t, const struct item *item, const float *x, uint32_t hidden,
                        struct q_err *e)
{
    const struct topology_message *to = &item->messages.to;
    const struct transport_message m = {to->peer, to->tag, stream_bytes(item->batch, hidden)};
    return to->exists ? transport_send(t->transport, &m, x, e) : Q_OK;
}

/* ---- items ---- */

static FALLIBLE run_teacher(struct trainer *t, const struct item *item, struct q_err *e)
{
    float *x = NULL;
    const float *out = NULL;
    enum q_code rc;
    if (!t->n_teacher)
        return Q_OK; /* a tensor rank of the student alone */
    if ((rc = receive(t, item, t->buffers.teacher_in, t->teacher_hidden, &x, e)) ||
        (rc = teacher_forward(t->teachers[item->is->stage], item->batch, x, &out, e)))
        return rc;
    return send_on(t, item, out, t->teacher_hidden, e);
}

static bool is_last_stage(const struct trainer *t, uint32_t stage)
{
    return topology_student_stage(&t->top, stage) + 1 == t->cut.n_student;
}

static float *loss_grad(const struct trainer *t, uint32_t slot)
{
    return t->buffers.loss_grads + (size_t)slot * t->row_max * t->hidden;
}

/* Of the micro batch that student_forward and teacher_forward had last. */
static FALLIBLE run_attention(struct trainer *t, const struct trainer_pass *p,
                              const struct item *item, struct pass_sums *sums, struct q_err *e)
{
    struct student_attention of;
    struct attention_pair pair = {.batch = item->batch, .n_position = p->n_position};
    struct attention_sums here;
    const enum q_code rc = t->source.attention(t->source.ctx, item->batch, &pair.teacher, e);
    if (rc)
        return rc;
    student_attention(t->student, item->is->slot, &of);
    pair.student = of.rows;
    if (p->trains) {
        pair.dq = of.dq;
        pair.dk = of.dk;
        pair.dv = of.dv;
    }
    attention_loss_run(t->attention, &pair, &here);
    sums->attention.attention += here.attention;
    sums->attention.values += here.values;
    return Q_OK;
}

static FALLIBLE run_loss(struct trainer *t, const struct trainer_pass *p, const struct item *item,
                         const float *x, struct pass_sums *sums, struct q_err *e)
{
    const bool has_teacher = t->source.rows && (p->trains || t->eval_has_teacher);
    const struct teacher_source *source = has_teacher ? &t->source : NULL;
    struct loss_sums here = {0};
    enum q_code rc = loss_head_run(t->head, item->batch, x, source, p->n_position,
                                   p->trains ? loss_grad(t, item->is->slot) : NULL, &here, e);
    if (!rc && t->link)
        rc = teacher_link_end(t->link, e);
    if (!rc && source && t->attention)
        rc = run_attention(t, p, item, sums, e);
    sums->loss.kd += here.kd;
    sums->loss.ce += here.ce;
    sums->loss.hidden += here.hidden;
    sums->loss.n_agree += here.n_agree;
    sums->loss.n_counted += here.n_counted;
    sums->n_row += item->batch->n_row;
    return rc;
}

static FALLIBLE run_forward(struct trainer *t, const struct trainer_pass *p,
                            const struct item *item, struct pass_sums *sums, struct q_err *e)
{
    const struct student_pass pass = {item->is->stage, item->is->slot, item->batch};
    const bool is_last = is_last_stage(t, item->is->stage);
    float *x = NULL;
    const float *out = NULL;
    enum q_code rc;
    if (!t->student) /* a tensor rank of the teacher alone: the loss may ask for its columns */
        return is_last && t->link ? teacher_link_serve(t->link, item->batch, e) : Q_OK;
    if ((rc = receive(t, item, t->buffers.forward_in, t->hidden, &x, e)) ||
        (rc = student_forward(t->student, &pass, x, &out, e)))
        return rc;
    return is_last ? run_loss(t, p, item, out, sums, e) : send_on(t, item, out, t->hidden, e);
}

static FALLIBLE run_backward(struct trainer *t, const struct item *item, struct q_err *e)
{
    const struct student_pass pass = {item->is->stage, item->is->slot, item->batch};
    float *dy = NULL, *dx = NULL;
    enum q_code rc;
    if (!t->student)
        return Q_OK;
    if ((rc = receive(t, item, t->buffers.backward_in, t->hidden, &dy, e)))
        return rc;
    if (!dy)
        dy = loss_grad(t, item->is->slot);
    if ((rc = student_backward(t->student, &pass, dy, &dx, e)))
        return rc;
    return send_on(t, item, dx, t->hidden, e);
}

FALLIBLE trainer_pass_run(struct trainer *t, const struct trainer_pass *p, struct pass_sums *out,
                          struct q_err *e)
{
    enum q_code rc = Q_OK;
    *out = (struct pass_sums){.n_row = 0};
    for (uint32_t i = 0; i < p->schedule->n && !rc; i++) {
        struct item item = {.is = &p->schedule->items[i]};
        if ((rc = micro_batch_of(t, p, item.is->micro, &item.batch, e)))
            break;
        item.messages = topology_messages(&t->top, item.is->kind, item.is->stage);
        switch (item.is->kind) {
        case SCHEDULE_TEACHER:
            rc = run_teacher(t, &item, e);
            break;
        case SCHEDULE_FORWARD:
            rc = run_forward(t, p, &item, out, e);
            break;
        case SCHEDULE_BACKWARD:
            rc = run_backward(t, &item, e);
            break;
        }
    }
    return rc;
}
