/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/mem.h"
#include "engine/distill/student_internal.h"

/* ---- what steps ask for ---- */

void student_meet(const struct student_run *r)
{
    if (r->x.nth > 1)
        team_barrier(r->s->team);
}

struct student_part student_part_of(const struct student_run *r)
{
    const uint64_t n = r->n;
    const uint32_t at = (uint32_t)(n * r->x.ith / r->x.nth);
    return (struct student_part){at, (uint32_t)(n * (r->x.ith + 1) / r->x.nth) - at};
}

struct student_rows student_rows_of(const struct student_run *r, struct train_ref ref)
{
    const struct train_value *v = &r->l->values[ref.value];
    const struct student *s = r->s;
    const size_t width = dtype_bits(v->dtype) / 8, stride = train_stride(v);
    const bool is_block = v->place == TRAIN_BLOCK;
    char *base = ref.value == TRAIN_STREAM        ? (char *)s->stream
                 : ref.value == TRAIN_STREAM_GRAD ? (char *)r->d_stream
                 : v->place == TRAIN_KEPT         ? r->kept
                 : is_block                       ? s->block.at
                                                  : s->work.at;
    base += v->at * (is_block ? s->n_row_block : s->n_row_max);
    return (struct student_rows){
        .x = base + (is_block ? 0 : r->at * stride) + ref.col * width,
        .stride = stride / width,
        .dtype = v->dtype,
    };
}

struct student_weight student_weight_of(const struct student *s, enum program_weight w,
                                        uint32_t layer)
{
    const struct param *p = w == PROGRAM_W_NONE ? NULL : params_find(&s->params, w, layer);
    if (!p)
        return (struct student_weight){0};
    const struct student_pack *pack = &s->packs[p - s->params.all];
    return (struct student_weight){
        .param = p,
        .pack = pack,
        .w = pack->vector ? pack->vector : s->params.w + p->at,
        .g = s->params.g ? s->params.g + p->at : NULL,
    };
}

struct student_weight student_norm_weight(const struct student *s, const struct program_op *op)
{
    struct student_weight w = student_weight_of(s, op->weight, op->layer);
    if (!w.w)
        w.w = s->ones;
    return w;
}

bool student_is_summed(const struct student *s, const struct param *p)
{
    return s->group.size > 1 && p->tensors[0].n_col < p->tensors[0].all_cols;
}

bool student_is_divided(const struct student *s, const struct param *p)
{
    return s->group.size > 1 && p->tensors[0].n_row < p->tensors[0].all_rows;
}

/* ---- rope ---- */

bool student_rope_varies(const struct student *s, uint32_t i_rope)
{
    return i_rope == STUDENT_ROPE_ALL && rotary_varies(&s->config);
}

void student_rope_row(const struct student_rope *t, uint32_t i, uint32_t position, uint32_t n_row)
{
    const uint32_t n = 2 * t->rotary.n_pair;
    float *row = t->table + (size_t)i * n;
    rotary_row(&t->rotary, row, position, n_row);
    for (uint32_t c = 0; t->back && c < n; c++)
        t->back[(size_t)i * n + c] = c % 2 ? -row[c] : row[c];
}

/* This thread's rows of the table whose frequencies depend on a sequence's length. */
static void make_rope(const struct student_run *r)
{
    const struct student *s = r->s;
    const struct student_part part = student_part_of(r);
    if (!student_rope_varies(s, STUDENT_ROPE_ALL))
        return;
    for (uint32_t i = 0; i < r->b->n_segment; i++) {
        const struct train_segment *q = &r->b->segments[i];
        for (uint32_t k = q->row; k < q->row + q->n_row; k++)
            if (k >= part.at && k < part.at + part.n)
                student_rope_row(&s->ropes[STUDENT_ROPE_ALL], k, r->b->positions[k], q->n_row);
    }
}

/* ---- passes ---- */

struct student_run student_run_of(struct student_call *c, uint32_t ith, uint32_t nth)
{
    struct student *s = c->s;
    const struct kern_exec x = {
        .ith = ith,
        .nth = nth,
        .scratch = s->kern_scratch + ith * s->kern_bytes,
        .scratch_bytes = s->kern_bytes,
    };
    struct student_run r = {
        .call = c,
        .s = s,
        .b = c->pass->batch,
        .n = c->pass->batch->n_row,
        .d_stream = c->dy,
        .x = x,
        .mine = x,
    };
    r.mine.ith = 0;
    r.mine.nth = 1;
    return r;
}

/* i: of this rank's layers. */
void student_enter_layer(struct student_run *r, uint32_t i)
{
    const struct student *s = r->s;
    const size_t slot = r->call->pass->slot;
    r->l = &s->layers[i];
    r->kept = s->kept.at;
    if (!s->recompute)
        r->kept += (slot * s->kept_row + s->kept_at[i]) * s->n_row_max;
}

/* Where a layer's input is kept when the rest is computed again. */
static float *input_of(const struct student_run *r, uint32_t i)
{
    const struct student *s = r->s;
    const size_t n = (size_t)s->n_row_max * s->config.hidden_size;
    return (float *)(void *)s->inputs + ((size_t)r->call->pass->slot * s->n_layer + i) * n;
}

static void copy_stream(const struct student_run *r, float *to, const float *from)
{
    const struct student_part p = student_part_of(r);
    const size_t hidden = r->s->config.hidden_size;
    if (to != from)
        memcpy(to + p.at * hidden, from + p.at * hidden, p.n * hidden * sizeof *to);
    student_meet(r);
}

/* Steps of one pass, over all rows in blocks of at most `most`. */
static void run_blocks(struct student_run *r, const struct train_step *steps, uint32_t n,
                       uint32_t most)
{
    const uint32_t n_row = r->b->n_row;
    for (uint32_t at = 0; at < n_row; at += most) {
        r->at = at;
        r->n = n_row - at < most ? n_row - at : most;
        for (uint32_t i = 0; i < n; i++) {
            if (steps[i].reuses)
                student_meet(r);
            student_grad_step(r, &steps[i]);
        }
        student_meet(r);
    }
    r->at = 0;
    r->n = n_row;
}

static void run_steps(struct student_run *r, const struct train_list *list, uint32_t n)
{
    const bool is_forward = list == &r->l->forward;
    const uint32_t block = is_forward ? STUDENT_BLOCK_ROWS * r->x.nth : STUDENT_GRAD_ROWS;
    for (uint32_t i = 0, end; i < n; i = end) {
        const bool all_rows = list->steps[i].all_rows;
        for (end = i + 1; end < n && !all_rows && !list->steps[end].all_rows;)
            end++;
        run_blocks(r, &list->steps[i], end - i, all_rows ? UINT32_MAX : block);
    }
}

static void forward_pass(void *arg, uint32_t ith, uint32_t nth)
{
    struct student_call *c = arg;
    struct student_run r = student_run_of(c, ith, nth);
    const struct student_stage *stage = &c->s->stages[c->pass->stage];
    make_rope(&r);
    if (stage->of.has_embedding)
        student_embed(&r);
    else
        copy_stream(&r, c->s->stream, c->x);
    for (uint32_t i = stage->i_layer; i < stage->i_layer + stage->of.n; i++) {
        student_enter_layer(&r, i);
        if (c->s->recompute)
            copy_stream(&r, input_of(&r, i), c->s->stream);
        run_steps(&r, &r.l->forward, r.l->forward.n);
    }
}

static void backward_pass(void *arg, uint32_t ith, uint32_t nth)
{
    struct student_call *c = arg;
    struct student_run r = student_run_of(c, ith, nth);
    const struct student_stage *stage = &c->s->stages[c->pass->stage];
    make_rope(&r);
    student_meet(&r);
    for (uint32_t i = stage->i_layer + stage->of.n; i-- > stage->i_layer;) {
        student_enter_layer(&r, i);
        if (c->s->recompute) {
            copy_stream(&r, c->s->stream, input_of(&r, i));
            run_steps(&r, &r.l->forward, r.l->n_again);
        }
        run_steps(&r, &r.l->backward, r.l->backward.n);
    }
    if (stage->of.has_embedding)
        student_embed_grad(&r);
}

static void run_call(struct student_call *c, team_fn *fn)
{
    const struct student *s = c->s;
    const struct micro_batch *b = c->pass->batch;
    Q_ASSERT(c->pass->stage < s->n_stage && c->pass->slot < s->n_slot && b->n_row <= s->n_row_max);
    if (!b->n_row)
        return;
    if (s->n_thread > 1)
        team_run(s->team, fn, c);
    else
        fn(c, 0, 1);
}

FALLIBLE student_forward(struct student *s, const struct student_pass *p, const float *x,
                         const float **out, struct q_err *e)
{
    struct student_call c = {.s = s, .pass = p, .x = x, .e = e};
    run_call(&c, forward_pass);
    *out = s->stream;
    return c.rc;
}

FALLIBLE student_backward(struct student *s, const struct student_pass *p, float *dy, float **dx,
                          struct q_err *e)
{
    struct student_call c = {.s = s, .pass = p, .dy = dy, .e = e};
    run_call(&c, backward_pass);
    *dx = s->stages[p->stage].of.has_embedding ? NULL : dy;
    return c.rc;
}
