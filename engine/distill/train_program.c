/* SPDX-License-Identifier: Apache-2.0 */
/* Three passes over the operations of a layer: what each reads and writes as values (trace), what
 * the gradients read of them and how it survives (keep), the steps (emit_forward, emit_backward).
 *
 * Rounding to bf16 (QUANTIZE, and attention's output where the next product reads bf16) is the
 * identity for gradients: products round what they read anyway, so the f32 value is kept. */
#include "engine/distill/train_program.h"
#include <stdio.h>
#include <string.h>
#include "engine/model/forward/features.h"
#include "engine/model/forward/program_text.h"
#include "kernels/ops/ops_train.h"

#define OPS_MAX   48u /* of a layer */
#define KEEPS_MAX 16u
#define NO_OP     UINT32_MAX

static const struct train_ref no_ref = {.value = TRAIN_NONE};

struct traced { /* an operation with its values */
    const struct program_op *op;
    struct train_ref in[TRAIN_INPUTS], out, lse;
    struct train_ref cast;               /* ATTENTION: out rounded */
    struct train_ref kept[TRAIN_INPUTS]; /* what its gradient reads of `in` */
    uint32_t again; /* MATMUL: the operation that makes in[0] again; NO_OP: none */
};
struct keep { /* a copy of a value's columns, made before operation `at` */
    struct train_ref from, to;
    uint32_t at;
};
struct maker {
    struct train_layer *l;
    struct traced ops[OPS_MAX];
    uint32_t n_op;
    uint32_t current[PROGRAM_BUFFERS_MAX]; /* the value of each buffer */
    uint32_t made_by[TRAIN_VALUES];        /* operation; NO_OP: the stream */
    struct train_ref cast_of[TRAIN_VALUES];
    struct train_ref kv[2]; /* of STORE */
    struct keep keeps[KEEPS_MAX];
    uint32_t n_keep;
    struct train_ref grads[TRAIN_VALUES]; /* of each value; no_ref: nothing has been written */
    bool is_alias[TRAIN_VALUES];          /* its gradient is the stream's */
    const struct layer_program *p;
    struct q_err *e;
};

size_t train_stride(const struct train_value *v)
{
    const size_t n = (size_t)v->n_col * dtype_bits(v->dtype) / 8;
    if (v->place == TRAIN_FIXED)
        return n;
    const size_t lines = (n + 63) / 64 * 64;
    return lines % 1024 ? lines : lines + 64; /* rows that share few sets of the caches */
}

static enum q_code refuse(const struct maker *m, const struct program_op *op, const char *why)
{
    return q_fail(m->e, Q_UNSUPPORTED, "operation %u (%s of layer %u) has no gradient: %s",
                  (uint32_t)(op - m->p->ops), program_op_name(op), op->layer, why);
}

/* ---- which operations have a gradient ---- */

/* Kinds that have a handler: in a layer, and in front of the layers and behind them. */
static bool has_handler(const struct program_op *op)
{
    const bool is_model = op->layer == PROGRAM_NO_LAYER;
    switch (op->kind) {
    case PROGRAM_NORM:
    case PROGRAM_QUANTIZE:
    case PROGRAM_MATMUL:
    case PROGRAM_SCALE:
        return true;
    case PROGRAM_EMBED:
    case PROGRAM_POSITIONS:
    case PROGRAM_SOFT_CAP:
        return is_model;
    case PROGRAM_CLIP:
    case PROGRAM_ADD:
    case PROGRAM_ACTIVATE:
    case PROGRAM_ROPE:
    case PROGRAM_STORE:
    case PROGRAM_ATTENTION:
        return !is_model;
    default:
        return false;
    }
}

static bool is_of_experts(enum program_kind kind)
{
    return kind == PROGRAM_ROUTE || kind == PROGRAM_EXPERTS || kind == PROGRAM_COMBINE ||
           kind == PROGRAM_SHARE;
}

struct why { /* an operation is refused; "": it is not */
    char text[128];
};

/* Attributes: features.def, whose rows for ON_STUDENT say what is computed here. */
static struct why why_not(const struct program_op *op)
{
    const char *lacks = features_missing(op, ON_STUDENT);
    struct why w = {""};
    if (is_of_experts(op->kind))
        snprintf(w.text, sizeof w.text, "only dense families are supported");
    else if (lacks)
        snprintf(w.text, sizeof w.text, "no support for %s", lacks);
    else if (!has_handler(op))
        snprintf(w.text, sizeof w.text, "its kind is not supported");
    else if (op->kind == PROGRAM_POSITIONS && op->mod)
        snprintf(w.text, sizeof w.text, "no support for positions of several parts");
    else if (op->kind == PROGRAM_ATTENTION && op->attention.head_dim > KERN_TRAIN_HEAD_MAX)
        snprintf(w.text, sizeof w.text, "heads of %u elements are not supported, the most is %u",
                 op->attention.head_dim, KERN_TRAIN_HEAD_MAX);
    return w;
}

FALLIBLE train_check_model(const struct layer_program *p, struct q_err *e)
{
    for (uint32_t i = 0; i < p->n_op; i++) {
        const struct program_op *op = &p->ops[i];
        const struct why why = why_not(op);
        if (op->layer == PROGRAM_NO_LAYER && *why.text)
            return q_fail(e, Q_UNSUPPORTED, "operation %u (%s) has no gradient: %s", i,
                          program_op_name(op), why.text);
    }
    return Q_OK;
}

/* ---- trace ---- */

static uint32_t new_value(struct maker *m, uint32_t n_col, enum dtype dtype, uint32_t by)
{
    const uint32_t i = m->l->n_value++;
    Q_ASSERT(i < TRAIN_VALUES);
    m->l->values[i] = (struct train_value){.n_col = n_col, .dtype = dtype, .place = TRAIN_WORK};
    m->made_by[i] = by;
    m->cast_of[i] = m->grads[i] = no_ref;
    return i;
}

static struct train_ref whole(const struct maker *m, uint32_t value)
{
    return (struct train_ref){value, 0, m->l->values[value].n_col};
}

static struct train_ref ref_of(const struct maker *m, struct program_ref r)
{
    if (r.buffer == PROGRAM_B_NONE)
        return no_ref;
    return (struct train_ref){m->current[r.buffer], r.col, r.n_col};
}

static enum q_code trace_attention(struct maker *m, struct traced *t, uint32_t i)
{
    const struct program_op *op = t->op;
    const uint32_t n = op->out.n_col;
    t->in[1] = m->kv[0];
    t->in[2] = m->kv[1];
    t->out = whole(m, new_value(m, n, DT_F32, i));
    t->lse = whole(m, new_value(m, op->attention.n_head, DT_F32, i));
    m->l->values[t->out.value].place = m->l->values[t->lse.value].place = TRAIN_KEPT;
    m->current[op->out.buffer] = t->out.value;
    if (op->out.dtype == DT_BF16) {
        t->cast = whole(m, new_value(m, n, DT_BF16, i));
        m->cast_of[t->cast.value] = t->out;
        m->current[op->out.buffer] = t->cast.value;
    }
    return t->in[1].value == TRAIN_NONE ? refuse(m, op, "no K and V were stored") : Q_OK;
}

static enum q_code trace_op(struct maker *m, const struct program_op *op)
{
    const struct why why = why_not(op);
    const uint32_t i = m->n_op++;
    struct traced *t = &m->ops[i];
    *t = (struct traced){.op = op, .out = no_ref, .lse = no_ref, .cast = no_ref, .again = NO_OP};
    for (uint32_t k = 0; k < TRAIN_INPUTS; k++)
        t->in[k] = t->kept[k] = k < 2 ? ref_of(m, op->in[k]) : no_ref;
    if (*why.text)
        return refuse(m, op, why.text);
    if (op->kind == PROGRAM_ATTENTION)
        return trace_attention(m, t, i);
    if (op->kind == PROGRAM_STORE) {
        m->kv[0] = t->in[0];
        m->kv[1] = t->in[1];
        return Q_OK;
    }
    if (!op->in_place && !op->onto) {
        if (op->out.col || op->out.buffer == PROGRAM_B_X)
            return refuse(m, op, "it writes a part of a buffer");
        m->current[op->out.buffer] = new_value(m, op->out.n_col, (enum dtype)op->out.dtype, i);
    }
    t->out = ref_of(m, op->out);
    if (op->kind == PROGRAM_QUANTIZE)
        m->cast_of[t->out.value] = t->in[0];
    return Q_OK;
}

/* ---- keep ---- */

static bool overlaps(struct train_ref a, struct train_ref b)
{
    return a.value == b.value && a.col < b.col + b.n_col && b.col < a.col + a.n_col;
}

/* Does an operation from `at` to `end` - 1 change these columns? */
static bool is_changed(const struct maker *m, struct train_ref r, uint32_t at, uint32_t end)
{
    for (uint32_t i = at; i < end; i++)
        if ((m->ops[i].op->in_place || m->ops[i].op->onto) && overlaps(m->ops[i].out, r))
            return true;
    return false;
}

/* Where the numbers that r has before operation `at` are in the backward pass. */
static struct train_ref keep(struct maker *m, struct train_ref r, uint32_t at)
{
    struct train_value *v = &m->l->values[r.value];
    if (r.value != TRAIN_STREAM && !is_changed(m, r, at, m->n_op)) {
        v->place = TRAIN_KEPT;
        return r;
    }
    for (uint32_t i = 0; i < m->n_keep; i++) {
        const struct keep *k = &m->keeps[i];
        if (k->from.value == r.value && k->from.col == r.col && k->from.n_col == r.n_col &&
            !is_changed(m, r, k->at, at))
            return k->to;
    }
    Q_ASSERT(m->n_keep < KEEPS_MAX);
    struct keep *k = &m->keeps[m->n_keep++];
    *k = (struct keep){r, whole(m, new_value(m, r.n_col, DT_F32, at)), at};
    m->l->values[k->to.value].place = TRAIN_KEPT;
    return k->to;
}

/* The input of a product: an f32 value that it was rounded from; made again of what is kept; or
 * kept. */
static void keep_factor(struct maker *m, struct traced *t, uint32_t i)
{
    const struct train_ref r = t->in[0];
    const uint32_t by = m->made_by[r.value];
    const struct program_op *maker = by == NO_OP ? NULL : m->ops[by].op;
    if (maker && m->cast_of[r.value].value != TRAIN_NONE) {
        t->kept[0] = keep(m, m->cast_of[r.value], maker->kind == PROGRAM_ATTENTION ? i : by);
    } else if (maker && (maker->kind == PROGRAM_NORM || maker->kind == PROGRAM_ACTIVATE) &&
               !is_changed(m, r, by, i)) {
        t->again = by;
    } else {
        t->kept[0] = keep(m, r, i);
    }
}

static void keep_inputs(struct maker *m)
{
    for (uint32_t i = 0; i < m->n_op; i++) {
        struct traced *t = &m->ops[i];
        switch (t->op->kind) {
        case PROGRAM_MATMUL:
            keep_factor(m, t, i);
            break;
        case PROGRAM_NORM:
        case PROGRAM_ACTIVATE:
        case PROGRAM_CLIP:
        case PROGRAM_ATTENTION:
            for (uint32_t k = 0; k < TRAIN_INPUTS; k++)
                if (t->in[k].value != TRAIN_NONE)
                    t->kept[k] = keep(m, t->in[k], i);
            break;
        default:
            break;
        }
    }
}

/* ---- steps ---- */

static struct train_step *add_step(struct train_list *list, enum train_step_kind kind,
                                   const struct program_op *op)
{
    Q_ASSERT(list->n < TRAIN_STEPS);
    struct train_step *s = &list->steps[list->n++];
    *s = (struct train_step){.kind = kind, .op = op};
    s->out = s->lse = s->d_out = no_ref;
    for (uint32_t k = 0; k < TRAIN_INPUTS; k++)
        s->in[k] = s->d_in[k] = no_ref;
    return s;
}

static void add_keep(struct train_list *list, const struct program_op *op, struct train_ref from,
                     struct train_ref to)
{
    struct train_step *s = add_step(list, TRAIN_KEEP, op);
    s->in[0] = from;
    s->out = to;
}

static void add_run(struct train_list *list, const struct traced *t)
{
    struct train_step *s = add_step(list, TRAIN_RUN, t->op);
    memcpy(s->in, t->in, sizeof s->in);
    s->out = t->out;
    s->lse = t->lse;
}

static void emit_forward(struct maker *m)
{
    struct train_list *list = &m->l->forward;
    for (uint32_t i = 0; i < m->n_op; i++) {
        const struct traced *t = &m->ops[i];
        for (uint32_t k = 0; k < m->n_keep; k++)
            if (m->keeps[k].at == i)
                add_keep(list, t->op, m->keeps[k].from, m->keeps[k].to);
        if (t->op->kind != PROGRAM_STORE)
            add_run(list, t);
        if (t->cast.value != TRAIN_NONE)
            add_keep(list, t->op, t->out, t->cast);
    }
    for (uint32_t i = 0; i < list->n; i++) {
        const struct train_step *s = &list->steps[i];
        if (m->l->values[s->out.value].place == TRAIN_KEPT)
            m->l->n_again = i + 1;
    }
}

/* ---- gradients ---- */

/* Of the value that r is columns of, or was rounded from; `is_new`: nothing has been written to it
 * yet. */
static struct train_ref grad_of(struct maker *m, struct train_ref r, bool *is_new)
{
    if (m->cast_of[r.value].value != TRAIN_NONE)
        r = m->cast_of[r.value];
    *is_new = m->grads[r.value].value == TRAIN_NONE;
    if (*is_new) {
        const uint32_t g = new_value(m, m->l->values[r.value].n_col, DT_F32, NO_OP);
        m->l->values[g].is_grad = true;
        m->grads[r.value] = whole(m, g);
    }
    return (struct train_ref){m->grads[r.value].value, r.col, r.n_col};
}

/* Gradients of values whose columns are written one after another are not supported: no operation
 * needs it. */
static enum q_code grad_of_input(struct maker *m, const struct traced *t, struct train_step *s)
{
    bool is_new;
    s->d_in[0] = grad_of(m, t->in[0], &is_new);
    s->accumulate = !is_new;
    if (is_new && s->d_in[0].n_col != m->l->values[s->d_in[0].value].n_col)
        return refuse(m, t->op, "it reads a part of a buffer");
    if (s->accumulate && t->op->kind == PROGRAM_ACTIVATE)
        return refuse(m, t->op, "two operations read its input");
    return Q_OK;
}

static enum q_code grad_attention(struct maker *m, const struct traced *t, struct train_step *s)
{
    bool is_first, is_new;
    uint32_t n_col = 0;
    s->out = t->out;
    s->lse = t->lse;
    for (uint32_t k = 0; k < TRAIN_INPUTS; k++) {
        s->d_in[k] = grad_of(m, t->in[k], k ? &is_new : &is_first);
        n_col += t->in[k].n_col;
        if (s->d_in[k].value != s->d_in[0].value)
            return refuse(m, t->op, "q, k and v are columns of different buffers");
    }
    if (!is_first || n_col != m->l->values[s->d_in[0].value].n_col)
        return refuse(m, t->op, "other operations read q, k or v too");
    return Q_OK;
}

/* A norm in place: sums over its output's gradient go on while its input's is written, so that has
 * memory of its own, and is copied where other columns stay. */
static enum q_code grad_norm_in_place(struct maker *m, const struct traced *t, struct train_step *s)
{
    const uint32_t v = t->out.value;
    const bool is_whole = t->out.n_col == m->l->values[v].n_col && v != TRAIN_STREAM;
    const uint32_t d = new_value(m, t->out.n_col, DT_F32, NO_OP);
    m->l->values[d].is_grad = true;
    s->d_in[0] = whole(m, d);
    if (is_whole) {
        m->grads[v] = s->d_in[0];
        m->is_alias[v] = false;
        return Q_OK;
    }
    if (m->is_alias[v])
        return refuse(m, t->op, "it changes a part of a branch in place");
    add_keep(&m->l->backward, t->op, s->d_in[0], s->d_out);
    return Q_OK;
}

/* Of an operation in place: the gradient of its output becomes that of its input. */
static enum q_code grad_in_place(struct maker *m, const struct traced *t, struct train_step *s)
{
    if (t->op->kind == PROGRAM_NORM)
        return grad_norm_in_place(m, t, s);
    if (m->is_alias[t->out.value])
        return refuse(m, t->op, "it changes a branch in place");
    s->d_in[0] = s->d_out;
    return Q_OK;
}

/* Does an operation between the one that made v and `at` read or change the stream? */
static bool meets_stream(const struct maker *m, uint32_t v, uint32_t at)
{
    for (uint32_t i = m->made_by[v] + 1; i < at; i++)
        for (uint32_t k = 0; k < TRAIN_INPUTS; k++)
            if (m->ops[i].in[k].value == TRAIN_STREAM || m->ops[i].out.value == TRAIN_STREAM)
                return true;
    return false;
}

static enum q_code grad_add(struct maker *m, const struct traced *t, uint32_t i)
{
    const uint32_t v = t->in[0].value;
    bool is_new;
    if (m->grads[v].value != TRAIN_NONE || m->made_by[v] == NO_OP ||
        t->in[0].n_col != m->l->values[v].n_col)
        return refuse(m, t->op, "two operations read what it adds");
    if (t->op->scale == 1 && t->out.value == TRAIN_STREAM && !meets_stream(m, v, i)) {
        m->grads[v] = m->grads[TRAIN_STREAM];
        m->is_alias[v] = true;
        return Q_OK;
    }
    struct train_step *s = add_step(&m->l->backward, TRAIN_SCALE, t->op);
    s->d_out = m->grads[t->out.value];
    s->d_in[0] = grad_of(m, t->in[0], &is_new);
    return Q_OK;
}

/* The operation runs again, with inputs as they are kept, into memory of the backward pass. */
static struct train_ref make_again(struct maker *m, const struct traced *t)
{
    struct train_list *list = &m->l->backward;
    const uint32_t v = new_value(m, t->out.n_col, m->l->values[t->out.value].dtype, NO_OP);
    m->l->values[v].is_grad = true;
    add_run(list, t);
    struct train_step *s = &list->steps[list->n - 1];
    memcpy(s->in, t->kept, sizeof s->in);
    s->out = whole(m, v);
    return s->out;
}

static enum q_code grad_op(struct maker *m, const struct traced *t, uint32_t i)
{
    const struct program_op *op = t->op;
    struct train_ref factor = no_ref;
    if (op->kind == PROGRAM_STORE || op->kind == PROGRAM_QUANTIZE)
        return Q_OK;
    if (m->grads[t->out.value].value == TRAIN_NONE)
        return refuse(m, op, "no operation reads its output");
    if (op->kind == PROGRAM_ADD)
        return grad_add(m, t, i);
    if (t->again != NO_OP)
        factor = make_again(m, &m->ops[t->again]);
    struct train_step *s = add_step(&m->l->backward, TRAIN_GRAD, op);
    memcpy(s->in, t->kept, sizeof s->in);
    if (t->again != NO_OP)
        s->in[0] = factor;
    s->d_out = (struct train_ref){m->grads[t->out.value].value, t->out.col, t->out.n_col};
    if (op->in_place)
        return grad_in_place(m, t, s);
    if (op->kind == PROGRAM_ATTENTION)
        return grad_attention(m, t, s);
    return grad_of_input(m, t, s);
}

static enum q_code emit_backward(struct maker *m)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = m->n_op; i-- && !rc;)
        rc = grad_op(m, &m->ops[i], i);
    return rc;
}

/* ---- memory ---- */

struct use { /* of a value in a list */
    uint32_t first_pass, last_pass;
};

static void note_use(struct train_layer *l, struct use *uses, struct train_ref r, uint32_t step,
                     uint32_t pass)
{
    if (r.value == TRAIN_NONE || l->values[r.value].place != TRAIN_WORK)
        return;
    struct train_value *v = &l->values[r.value];
    if (!v->end) {
        v->first = step;
        uses[r.value].first_pass = pass;
    }
    v->end = step + 1;
    uses[r.value].last_pass = pass;
}

/* Passes are counted by 2: attention's have odd numbers. */
static void note_uses(struct train_layer *l, struct train_list *list, struct use *uses)
{
    uint32_t pass = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        struct train_step *s = &list->steps[i];
        const bool computes = s->kind == TRAIN_RUN || s->kind == TRAIN_GRAD;
        s->all_rows = computes && s->op->kind == PROGRAM_ATTENTION;
        pass += s->all_rows;
        for (uint32_t k = 0; k < TRAIN_INPUTS; k++) {
            note_use(l, uses, s->in[k], i, pass);
            note_use(l, uses, s->d_in[k], i, pass);
        }
        note_use(l, uses, s->out, i, pass);
        note_use(l, uses, s->lse, i, pass);
        note_use(l, uses, s->d_out, i, pass);
        pass += s->all_rows;
    }
}

static bool shares_time(const struct train_value *a, const struct train_value *b)
{
    return a->place == b->place && a->is_grad == b->is_grad && a->first < b->end &&
           b->first < a->end;
}

/* As low as it fits among the values in front of it in the list. */
static void place_work(struct train_layer *l, uint32_t i)
{
    struct train_value *v = &l->values[i];
    size_t *most = v->place == TRAIN_BLOCK ? &l->block : &l->work;
    const size_t n = train_stride(v);
    for (uint32_t k = 0; k < i; k++) {
        const struct train_value *other = &l->values[k];
        const size_t end = other->at + train_stride(other);
        if (!shares_time(v, other) || v->at >= end || other->at >= v->at + n)
            continue;
        v->at = end;
        k = UINT32_MAX; /* look at all of them again */
    }
    *most = *most > v->at + n ? *most : v->at + n;
}

/* A thread's rows of one value and another thread's rows of a value before it may be the same
 * memory. */
static void note_reuse(struct train_layer *l, uint32_t i)
{
    const struct train_value *v = &l->values[i];
    for (uint32_t k = 0; k < l->n_value; k++) {
        const struct train_value *other = &l->values[k];
        if (other->place == v->place && other->is_grad == v->is_grad && other->end &&
            other->end <= v->first && v->at < other->at + train_stride(other) &&
            other->at < v->at + train_stride(v))
            (v->is_grad ? &l->backward : &l->forward)->steps[v->first].reuses = true;
    }
}

static void place(struct train_layer *l)
{
    struct use uses[TRAIN_VALUES] = {{0}};
    note_uses(l, &l->forward, uses);
    note_uses(l, &l->backward, uses);
    for (uint32_t i = 0; i < l->n_value; i++) {
        struct train_value *v = &l->values[i];
        const bool is_work = v->place == TRAIN_WORK && v->end;
        if (is_work && uses[i].first_pass == uses[i].last_pass && uses[i].first_pass % 2 == 0)
            v->place = TRAIN_BLOCK;
        if (is_work)
            place_work(l, i);
        if (v->place != TRAIN_KEPT)
            continue;
        v->at = l->kept;
        l->kept += train_stride(v);
    }
    for (uint32_t i = 0; i < l->n_value; i++)
        if ((l->values[i].place == TRAIN_WORK || l->values[i].place == TRAIN_BLOCK) &&
            l->values[i].end)
            note_reuse(l, i);
}

static enum q_code trace_layer(struct maker *m)
{
    const struct layer_program *p = m->p;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < p->n_op && !rc; i++) {
        if (p->ops[i].layer != m->l->layer)
            continue;
        if (m->n_op == OPS_MAX)
            return refuse(m, &p->ops[i], "the layer has too many operations");
        rc = trace_op(m, &p->ops[i]);
    }
    return rc;
}

FALLIBLE train_layer_make(struct train_layer *out, const struct layer_program *p, uint32_t layer,
                          struct q_err *e)
{
    struct maker m = {
        .l = out,
        .p = p,
        .e = e,
        .kv = {no_ref, no_ref},
    };
    enum q_code rc;
    *out = (struct train_layer){.layer = layer};
    for (uint32_t i = 0; i < p->n_buffer; i++)
        m.current[i] = TRAIN_NONE;
    m.current[PROGRAM_B_X] = new_value(&m, p->ops[0].out.n_col, DT_F32, NO_OP);
    const uint32_t d = new_value(&m, p->ops[0].out.n_col, DT_F32, NO_OP);
    out->values[d].is_grad = true;
    out->values[TRAIN_STREAM].place = out->values[d].place = TRAIN_FIXED;
    m.grads[TRAIN_STREAM] = whole(&m, d);
    if ((rc = trace_layer(&m)))
        return rc;
    keep_inputs(&m);
    emit_forward(&m);
    if ((rc = emit_backward(&m)))
        return rc;
    place(out);
    return Q_OK;
}
