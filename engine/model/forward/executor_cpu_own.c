/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin's forward pass (quire_architecture.forward), and the functions of a step that it has
 * (quire_host.step_*). All threads of the team run it with their own ith, as they run a program;
 * each function does a thread's share, in the same way as the program's operation of that name, so
 * that the bits are those of the program.
 *
 * Rows of logits are kept until they are asked for, since the sampler asks for some at a time.
 * Those of a pass that fails (executor_cpu_failure.c) are no numbers. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/forward/executor_cpu.h"
#include "engine/model/forward/forms.h"
#include "engine/model/plugin/host_step.h"
#include "engine/model/plugin/plugin_model.h"

struct own_step {
    struct quire_step s; /* first: what the plugin has */
    struct cpu_run *w;
};

static struct cpu_run *run_of(const struct quire_step *s)
{
    return ((const struct own_step *)(const void *)s)->w;
}

__attribute__((format(printf, 2, 3))) static int fail(struct quire_plugin_error *error,
                                                      const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (error)
        vsnprintf(error->message, sizeof error->message, format, ap);
    va_end(ap);
    return 1;
}

static bool is_rows(const struct quire_rows *r, uint32_t n)
{
    return r && r->rows && r->n == n && r->stride >= r->n_col;
}

static const struct program_op *find_op(const struct cpu_run *w, enum program_kind kind,
                                        uint32_t layer)
{
    const struct layer_program *p = &w->m->program;
    for (uint32_t i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == kind && p->ops[i].layer == layer)
            return &p->ops[i];
    return NULL;
}

/* A weight by its id: the plugin's, then the family's. */
static enum program_weight find_weight(const struct cpu_run *w, const char *id)
{
    const struct arch *a = w->m->arch;
    for (uint32_t i = 0; id && i < a->n_own; i++)
        if (strcmp(a->own[i].tensor->id, id) == 0)
            return (enum program_weight)a->own[i].weight;
    for (uint32_t i = PROGRAM_W_NONE + 1; id && i < PROGRAM_WEIGHTS; i++)
        if (strcmp(program_weight_info((enum program_weight)i)->name, id) == 0)
            return (enum program_weight)i;
    return PROGRAM_W_NONE;
}

static bool is_of_layer(const struct cpu_run *w, enum program_weight id, uint32_t layer)
{
    const enum program_weight_scope scope = program_weight_info(id)->scope;
    return scope == PROGRAM_OF_MODEL || (scope == PROGRAM_OF_LAYER && layer < w->m->config.n_layer);
}

/* "qkv" -> the vector "qkv.bias", where there is one. */
static const float *bias_of(const struct cpu_run *w, const char *id, uint32_t layer)
{
    char name[ARCH_NAME_MAX];
    snprintf(name, sizeof name, "%s.bias", id);
    const enum program_weight b = find_weight(w, name);
    return b && program_weight_info(b)->kind == PROGRAM_VECTOR && is_of_layer(w, b, layer)
               ? program_vector(&w->m->weights, b, layer)
               : NULL;
}

/* ---- functions of a step ---- */

void host_barrier(const struct quire_step *s)
{
    cpu_meet(run_of(s));
}

int host_step_embed(const struct quire_step *s, const struct quire_rows *out,
                    struct quire_plugin_error *error)
{
    struct cpu_run *w = run_of(s);
    const uint32_t hidden = w->m->config.hidden_size;
    const struct program_op *op = find_op(w, PROGRAM_EMBED, PROGRAM_NO_LAYER);
    if (!op || !is_rows(out, s->n_row) || out->n_col != hidden || out->stride != hidden)
        return fail(error, "step_embed: expected %u rows of %u, side by side", s->n_row, hidden);
    cpu_embed(w, op, out->rows);
    if (!s->item_rows)
        return 0;
    cpu_meet(w);
    cpu_items(w, out);
    return 0;
}

/* This thread's rows of a product's input, as the product takes them. */
static void make_input(const struct cpu_run *w, const struct matmul_rows *x,
                       const struct quire_rows *in, const struct packed *p)
{
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, in->n});
    const struct matmul_rows at = matmul_rows_at(x, r.at);
    const float *from = in->rows + r.at * in->stride;
    if (x->dtype == DT_I8 && r.n)
        matmul_quantize(w->k, &at,
                        &(struct matmul_source){from, in->stride, r.n, p->n_in, p->order, 0},
                        &w->mine);
    for (uint32_t i = 0; x->dtype != DT_I8 && i < r.n; i++)
        for (uint32_t c = 0; c < p->n_in; c++)
            ((uint16_t *)at.x)[i * at.stride + c] = f32_to_bf16(from[i * in->stride + c]);
}

static struct matmul_rows input_of(struct cpu_run *w, const struct quire_rows *in,
                                   const struct packed *p, enum dtype type)
{
    struct matmul_rows x = {.x = in->rows, .stride = in->stride, .dtype = DT_F32};
    if (type == DT_F32)
        return x;
    x = w->s->own.inputs;
    x.dtype = type;
    cpu_meet(w); /* the product before it has read them */
    make_input(w, &x, in, p);
    cpu_meet(w);
    return x;
}

int host_step_linear(const struct quire_step *s, const char *matrix, uint32_t layer,
                     const struct quire_rows *in, const struct quire_rows *out,
                     struct quire_plugin_error *error)
{
    struct cpu_run *w = run_of(s);
    const enum program_weight id = find_weight(w, matrix);
    if (!id || program_weight_info(id)->kind != PROGRAM_MATRIX || !is_of_layer(w, id, layer))
        return fail(error, "step_linear: there is no matrix \"%.60s\" of layer %u",
                    matrix ? matrix : "NULL", layer);
    const struct packed *p = program_matrix(&w->m->weights, id, layer, 0);
    const uint32_t n_out = p ? (p->gated ? p->n_out / 2 : p->n_out) : 0;
    if (!p || !in || in->n > w->s->n_token_max || !is_rows(in, in->n) || !is_rows(out, in->n) ||
        in->n_col != p->n_in || out->n_col != n_out)
        return fail(error, "step_linear: %s takes rows of %u and gives rows of %u", matrix,
                    p ? p->n_in : 0, n_out);
    const struct program_forms forms = forms_of_model(w->m);
    const struct matmul_rows x = input_of(w, in, p, forms.form(forms.ctx, id, layer).input);
    const struct matmul a = {
        .w = p,
        .bias = bias_of(w, matrix, layer),
        .x = &x,
        .y = out->rows,
        .y_dtype = DT_F32,
        .y_stride = out->stride,
        .n_row = in->n,
    };
    matmul_run(w->k, &a, &w->x);
    return 0;
}

/* Numbers of a vector; 0: it is none, or not there. */
static uint32_t length_of(const struct cpu_run *w, enum program_weight id, uint32_t layer)
{
    if (!id || program_weight_info(id)->kind != PROGRAM_VECTOR || !is_of_layer(w, id, layer) ||
        !program_vector(&w->m->weights, id, layer))
        return 0;
    return program_weight_is_own(id) ? w->m->config.own[program_weight_info(id)->i_own].rows
                                     : w->m->config.hidden_size;
}

int host_step_rms_norm(const struct quire_step *s, const char *weight, uint32_t layer,
                       const struct quire_rows *in, const struct quire_rows *out,
                       struct quire_plugin_error *error)
{
    struct cpu_run *w = run_of(s);
    const enum program_weight id = find_weight(w, weight);
    const uint32_t n = length_of(w, id, layer);
    if (!n || !in || !is_rows(in, in->n) || !is_rows(out, in->n) || out->n_col != n ||
        in->n_col != n)
        return fail(error,
                    "step_rms_norm: \"%.60s\" of layer %u is a vector of %u, its rows differ",
                    weight ? weight : "NULL", layer, n);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, in->n});
    const struct rms_norm_args a = {
        .y = out->rows + r.at * out->stride,
        .y_dtype = DT_F32,
        .x = in->rows + r.at * in->stride,
        .w = program_vector(&w->m->weights, id, layer),
        .n_row = r.n,
        .n_col = n,
        .x_stride = in->stride,
        .y_stride = out->stride,
        .eps = (float)w->m->config.rms_norm_eps,
    };
    if (r.n)
        w->k->rms_norm(&a, &w->mine);
    return 0;
}

int host_step_rope(const struct quire_step *s, uint32_t n_head, const struct quire_rows *rows,
                   struct quire_plugin_error *error)
{
    struct cpu_run *w = run_of(s);
    const uint32_t head = w->m->config.head_dim, n_rot = 2 * w->m->rotary.n_pair;
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, s->n_row});
    if (!is_rows(rows, s->n_row) || rows->n_col != n_head * head)
        return fail(error, "step_rope: expected %u rows of %u heads of %u", s->n_row, n_head, head);
    const struct rope_args a = {
        .x = rows->rows + r.at * rows->stride,
        .x_stride = rows->stride,
        .table = w->s->rope + (size_t)r.at * n_rot,
        .pos = w->s->rows,
        .n_row = r.n,
        .n_head = n_head,
        .head_dim = head,
        .n_rot = n_rot,
        .interleaved = w->m->arch->layer.positions == ARCH_ROPE_INTERLEAVED,
    };
    if (r.n)
        w->k->rope(&a, &w->mine);
    return 0;
}

int host_step_attention(const struct quire_step *s, uint32_t layer, const struct quire_rows *qkv,
                        const struct quire_rows *out, struct quire_plugin_error *error)
{
    struct cpu_run *w = run_of(s);
    const struct program_op *store = find_op(w, PROGRAM_STORE, layer);
    const struct program_op *attend = find_op(w, PROGRAM_ATTENTION, layer);
    const uint32_t q_cols = model_q_cols(w->m), kv_cols = model_kv_cols(w->m);
    if (!store || !attend || !is_rows(qkv, s->n_row) || !is_rows(out, s->n_row) ||
        qkv->n_col != q_cols + 2 * kv_cols || out->n_col != q_cols)
        return fail(error, "step_attention: layer %u takes rows of %u and gives rows of %u", layer,
                    q_cols + 2 * kv_cols, q_cols);
    const struct matmul_rows q = {.x = qkv->rows, .stride = qkv->stride, .dtype = DT_F32};
    const struct matmul_rows to = {.x = out->rows, .stride = out->stride, .dtype = DT_F32};
    struct matmul_rows k = q, v = q;
    k.x = qkv->rows + q_cols;
    v.x = qkv->rows + q_cols + kv_cols;
    cpu_meet(w); /* other threads have made rows of them */
    cpu_store(w, store, &k, &v);
    cpu_meet(w);
    cpu_attend(w, attend, &q, &to);
    return 0;
}

float *host_step_buffer(const struct quire_step *s, uint32_t i)
{
    return i < QUIRE_BUFFERS_MAX ? run_of(s)->s->own.buffers[i] : NULL;
}

/* ---- the pass ---- */

static void begin_pass(const struct cpu_run *w)
{
    struct cpu_own *own = &w->s->own;
    for (uint32_t i = 0; i < w->b->n_seq; i++) {
        own->sequences[i] = (struct quire_sequence){
            .row = w->b->seqs[i].row,
            .n_row = w->b->seqs[i].n_query,
            .start = w->b->seqs[i].start,
        };
    }
    for (uint32_t i = 0; i < w->b->n_logit; i++)
        own->logit_rows[i] = w->b->logit_rows[i] - w->part.row;
}

static struct quire_step step_of(const struct cpu_run *w)
{
    const struct batch *b = w->b;
    return (struct quire_step){
        .host = &plugin_host,
        .model = w->m->plugin,
        .n_row = b->n_token,
        .n_seq = b->n_seq,
        .n_logit = b->n_logit,
        .token_ids = b->token_ids,
        .positions = b->positions,
        .item_rows = b->item_rows,
        .sequences = w->s->own.sequences,
        .logit_rows = w->s->own.logit_rows,
        .logits = w->s->own.logits + (size_t)w->part.logit * w->m->config.vocab_size,
        .ith = w->x.ith,
        .nth = w->x.nth,
    };
}

static void spoil_logits(const struct cpu_run *w)
{
    const size_t vocab = w->m->config.vocab_size;
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){w->part.logit, w->b->n_logit});
    for (size_t i = r.at * vocab; i < (r.at + r.n) * vocab; i++)
        w->s->own.logits[i] = NAN;
}

void cpu_forward_own(struct cpu_run *w)
{
    struct quire_plugin_error error = {{0}};
    const struct quire_model *m = w->m->plugin;
    const struct own_step step = {step_of(w), w};
    w->block = (struct cpu_rows){0, w->b->n_token};
    if (w->x.ith == 0)
        begin_pass(w);
    cpu_meet(w); /* rows of rope, too */
    plugin_begin(m, NULL);
    if (m->arch->a.forward(&step.s, &error) != 0)
        cpu_fail(w, "forward", &error);
    plugin_end();
    cpu_meet(w);
    if (atomic_load(&w->s->own.has_failed))
        spoil_logits(w);
}

void cpu_logits_own(struct cpu_run *w, const struct model_logits *out)
{
    const size_t vocab = w->m->config.vocab_size;
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, out->n});
    memcpy(out->rows + r.at * vocab, w->s->own.logits + (out->first + r.at) * vocab,
           r.n * vocab * sizeof *out->rows);
    cpu_meet(w);
}
