/* SPDX-License-Identifier: Apache-2.0 */
/* Queries, keys and values of the last layer lie among the values that the layer keeps for the
 * gradient of its attention: with recomputation too, until the next pass, because it is the layer
 * that was computed last. */
#include "engine/distill/student_internal.h"

/* The gradient of the attention of the last layer; NULL: another rank has it. *i: the layer's
 * number among this rank's. */
static const struct train_step *last_attention(const struct student *s, uint32_t *i)
{
    const uint32_t last = s->config.n_layer - 1;
    for (*i = 0; *i < s->n_layer; ++*i) {
        const struct train_list *list = &s->layers[*i].backward;
        for (uint32_t k = 0; k < list->n && s->layers[*i].layer == last; k++)
            if (list->steps[k].kind == TRAIN_GRAD && list->steps[k].op->kind == PROGRAM_ATTENTION)
                return &list->steps[k];
    }
    return NULL;
}

static size_t columns_of(const struct train_step *step)
{
    size_t n = 0;
    for (uint32_t k = 0; k < TRAIN_INPUTS; k++)
        n += step->in[k].n_col;
    return n;
}

size_t student_attention_bytes(const struct student *s)
{
    uint32_t i;
    const struct train_step *step = s->shares_attention ? last_attention(s, &i) : NULL;
    return step ? s->n_slot * (size_t)s->n_row_max * columns_of(step) * sizeof(float) : 0;
}

/* Of q, k and v, one behind the other, in the slot. */
static void grads_of(const struct student *s, const struct train_step *step, uint32_t slot,
                     float *out[TRAIN_INPUTS])
{
    float *at = (float *)(void *)s->attention_grads.at;
    at += slot * (size_t)s->n_row_max * columns_of(step);
    for (uint32_t k = 0; k < TRAIN_INPUTS; k++) {
        out[k] = at;
        at += (size_t)s->n_row_max * step->in[k].n_col;
    }
}

void student_attention(struct student *s, uint32_t slot, struct student_attention *out)
{
    uint32_t i = 0;
    const struct train_step *step = last_attention(s, &i);
    const struct micro_batch none = {.n_row = 0};
    const struct student_pass pass = {.slot = slot, .batch = &none};
    struct student_call call = {.s = s, .pass = &pass};
    struct student_run r = student_run_of(&call, 0, 1);
    float *grads[TRAIN_INPUTS];
    Q_ASSERT(step && s->attention_grads.at && slot < s->n_slot);
    student_enter_layer(&r, i);
    const struct student_rows q = student_rows_of(&r, step->in[0]);
    const struct student_rows k = student_rows_of(&r, step->in[1]);
    const struct student_rows v = student_rows_of(&r, step->in[2]);
    grads_of(s, step, slot, grads);
    Q_ASSERT(k.stride == v.stride);
    *out = (struct student_attention){
        .rows =
            {
                .q = student_floats(&q, 0),
                .k = student_floats(&k, 0),
                .v = student_floats(&v, 0),
                .q_stride = q.stride,
                .kv_stride = k.stride,
            },
        .dq = grads[0],
        .dk = grads[1],
        .dv = grads[2],
    };
}

void student_add_attention(struct student_run *r, const struct train_step *step)
{
    const struct student *s = r->s;
    const struct student_part p = student_part_of(r);
    float *grads[TRAIN_INPUTS];
    if (!s->attention_grads.at || r->l->layer != s->config.n_layer - 1)
        return;
    student_meet(r);
    grads_of(s, step, r->call->pass->slot, grads);
    for (uint32_t k = 0; k < TRAIN_INPUTS; k++) {
        const struct student_rows to = student_rows_of(r, step->d_in[k]);
        const uint32_t n = step->d_in[k].n_col;
        const struct add_rows_args a = {
            .y = student_floats(&to, p.at),
            .x = grads[k] + (size_t)p.at * n,
            .n_row = p.n,
            .n_col = n,
            .x_stride = n,
            .y_stride = to.stride,
            .scale = 1,
        };
        if (p.n)
            s->kern->add_rows(&a, &r->mine);
    }
}
