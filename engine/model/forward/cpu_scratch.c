/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/cpu_scratch.h"
#include <string.h>
#include "common/mem.h"
#include "engine/model/plugin/plugin_model.h"
#include "engine/model/forward/program_memory.h"

#define ROW_ALIGN       KERN_INT8_K /* elements: 64 bytes of int8, 128 of bf16 */
/* Rows that go through a pass together. Enough to hide the reading of the weights behind the
 * arithmetic (a byte of them is used this many times), and few enough that their activations stay
 * in the second- and third-level caches between two products. */
#define BLOCK_ROWS      256u
#define BLOCK_SHARES    64u /* rows of a block for each thread, at least */
/* With experts a weight is used by a few of the rows only; so many on average, as long as the block
 * is no larger than the second number. */
#define EXPERT_ROWS     64u
#define EXPERT_ROWS_MAX 1024u

struct need {              /* of a buffer, over all operations that have it */
    uint32_t n_col, width; /* elements; bytes of one, the most */
    bool is_bytes, has_sums;
};

struct cutter {
    struct model_scratch *s;
    struct region_cutter *c;
    const struct model *m;
    const struct layer_program *p;
    struct need needs[PROGRAM_BUFFERS_MAX];
};

/* Elements between rows: whole lines, an odd number of them, since rows that are a multiple of 4096
 * bytes apart would share a few sets of a cache. */
static size_t row_stride(uint32_t n)
{
    const size_t n_line = ((size_t)n + ROW_ALIGN - 1) / ROW_ALIGN;
    return (n_line | 1) * ROW_ALIGN;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Ranks that exchange columns of a block have the same blocks with any threads. */
static uint32_t block_rows(const struct model_scratch *s, const struct model *m)
{
    const struct moe_config *moe = &m->config.moe;
    const uint32_t n_thread = model_shard_is_part(&m->shard) ? 1 : s->n_thread;
    uint32_t block = larger(BLOCK_ROWS, BLOCK_SHARES * n_thread);
    if (moe->n_expert) {
        const uint32_t rows = EXPERT_ROWS * moe->n_expert / moe->n_used;
        block = larger(block, rows < EXPERT_ROWS_MAX ? rows : EXPERT_ROWS_MAX);
    }
    return block < s->n_token_max ? block : s->n_token_max;
}

static void note_need(struct cutter *t, struct program_ref r)
{
    struct need *n = &t->needs[r.buffer];
    const bool is_bytes = matmul_reads_bytes((enum dtype)r.dtype);
    n->n_col = larger(n->n_col, r.col + r.n_col);
    n->width = larger(n->width, dtype_bits((enum dtype)r.dtype) / 8);
    n->is_bytes |= is_bytes;
    n->has_sums |= is_bytes && t->m->shape.quantization == QUANTIZE_INT4;
}

static size_t rows_of(const struct cutter *t, uint32_t buffer)
{
    const struct model_scratch *s = t->s;
    const size_t of_block = cpu_plan_is_copied(t->p, buffer) ? s->in_rows : s->block_rows;
    switch (t->p->buffers[buffer].rows) {
    case PROGRAM_ROWS_STEP:
        return s->n_token_max;
    case PROGRAM_ROWS_PLACES:
        return of_block * t->m->config.moe.n_used;
    default:
        return of_block;
    }
}

static bool needs_memory(const struct cutter *t, uint32_t buffer)
{
    return t->p->buffers[buffer].is_stored && t->p->buffers[buffer].rows != PROGRAM_ROWS_CACHE &&
           buffer != PROGRAM_B_LOGITS && buffer != PROGRAM_B_ROUTES;
}

static void cut_rows(struct region_cutter *c, struct matmul_rows *to, size_t n_row,
                     const struct need *need)
{
    to->x = region_cut(c, n_row * to->stride, need->width);
    if (need->is_bytes)
        to->rows = region_cut(c, n_row, sizeof *to->rows);
    if (need->has_sums)
        to->sums = region_cut(c, n_row * to->stride / KERN_INT8_SUM, sizeof *to->sums);
}

/* Elements between the rows of a buffer. The residual stream, what is added to it and inputs of
 * layers are read whole, so their rows are neighbours; scores are as many as the router has
 * outputs. */
static size_t stride_of(const struct cutter *t, uint32_t buffer)
{
    const bool of_plugin = buffer >= PROGRAM_BUFFERS && !t->needs[buffer].is_bytes;
    const bool whole = buffer == PROGRAM_B_X || buffer == PROGRAM_B_EXPERT_O || of_plugin ||
                       buffer == PROGRAM_B_SHARED_O || buffer == PROGRAM_B_SCORES ||
                       buffer == PROGRAM_B_LAYER_IN || buffer == PROGRAM_B_EMBED;
    return whole ? t->needs[buffer].n_col : row_stride(t->needs[buffer].n_col);
}

static void cut_buffers(struct cutter *t)
{
    struct model_scratch *s = t->s;
    struct program_memory at = {0};
    uint64_t apart[PROGRAM_BUFFERS_MAX];
    for (uint32_t i = 0; i < t->p->n_buffer; i++) {
        struct region_cutter c = {0};
        s->buffers[i].stride = stride_of(t, i);
        if (needs_memory(t, i))
            cut_rows(&c, &s->buffers[i], rows_of(t, i), &t->needs[i]);
        at.sizes[i] = c.used;
    }
    cpu_plan_apart(apart, t->p);
    program_memory_place(&at, t->p, apart);
    memcpy(s->overlaps, at.overlaps, sizeof s->overlaps);
    unsigned char *base = region_cut(t->c, 1, at.n_bytes);
    for (uint32_t i = 0; base && i < t->p->n_buffer; i++) {
        struct region_cutter c = {.base = base, .used = at.offsets[i]};
        if (at.sizes[i])
            cut_rows(&c, &s->buffers[i], rows_of(t, i), &t->needs[i]);
    }
}

static void cut_experts(struct cutter *t)
{
    const struct moe_config *moe = &t->m->config.moe;
    const size_t n_thread = t->s->n_thread, n_place = (size_t)t->s->block_rows * moe->n_used;
    struct cpu_experts *e = &t->s->e;
    if (!moe->n_expert)
        return;
    e->experts = region_cut(t->c, (size_t)t->s->in_rows * moe->n_used, sizeof *e->experts);
    e->weights = region_cut(t->c, (size_t)t->s->in_rows * moe->n_used, sizeof *e->weights);
    e->ends = region_cut(t->c, n_thread * moe->n_expert, sizeof *e->ends);
    e->rows = region_cut(t->c, n_thread * n_place, sizeof *e->rows);
    e->places = region_cut(t->c, n_thread * n_place, sizeof *e->places);
    e->of_places = region_cut(t->c, n_thread * n_place, sizeof *e->of_places);
    e->shares =
        region_cut(t->c, moe->shared_width ? n_thread * t->s->block_rows : 0, sizeof *e->shares);
    const bool quantized = t->m->shape.quantization != QUANTIZE_NOT;
    const struct need need = {
        .width = quantized ? 1 : dtype_bits(model_input_dtype(t->m)) / 8,
        .is_bytes = quantized,
        .has_sums = t->m->shape.quantization == QUANTIZE_INT4,
    };
    e->picked.stride = row_stride(arch_dim_size(&t->m->config, D_EXPERT_HIDDEN));
    cut_rows(t->c, &e->picked, n_thread * CPU_PICK_ROWS, &need);
}

/* Columns of the widest row that becomes bytes without being kept. */
static uint32_t made_of_columns(const struct layer_program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_stage; i++)
        if (p->stages[i].fusion == PROGRAM_FUSE_NORM_QUANTIZE)
            n = larger(n, p->ops[p->stages[i].first].out.n_col);
    return n;
}

/* Columns of the widest matrix that a plugin's forward pass may multiply with. */
static uint32_t widest_input(const struct model *m)
{
    const struct model_config *c = &m->config;
    uint32_t n = larger(larger(c->hidden_size, c->intermediate_size), model_q_cols(m));
    for (uint32_t i = 0; i < m->arch->n_own; i++)
        n = larger(n, c->own[i].cols);
    return n;
}

/* What a plugin needs that computes the forward pass itself. */
static void cut_own(struct cutter *t)
{
    struct cpu_own *own = &t->s->own;
    const size_t n = t->s->n_token_max;
    const bool quantized = t->m->shape.quantization != QUANTIZE_NOT;
    const struct need need = {
        .width = quantized ? 1 : sizeof(uint16_t),
        .is_bytes = quantized,
        .has_sums = t->m->shape.quantization == QUANTIZE_INT4,
    };
    if (model_has_own_forward(t->m) || t->m->program.owns)
        own->errors = region_cut(t->c, n, sizeof *own->errors);
    if (!model_has_own_forward(t->m))
        return;
    own->logits = region_cut(t->c, n * t->m->config.vocab_size, sizeof *own->logits);
    own->sequences = region_cut(t->c, n, sizeof *own->sequences);
    own->logit_rows = region_cut(t->c, n, sizeof *own->logit_rows);
    for (uint32_t i = 0; i < QUIRE_BUFFERS_MAX && t->m->plugin->buffers[i]; i++)
        own->buffers[i] = region_cut(t->c, n * t->m->plugin->buffers[i], sizeof *own->buffers[i]);
    own->inputs.stride = row_stride(widest_input(t->m));
    cut_rows(t->c, &own->inputs, n, &need);
}

static size_t kern_bytes(const struct model *m)
{
    const struct model_config *c = &m->config;
    const uint32_t length = m->shape.max_model_len;
    const size_t any = kern_scratch_bytes(length, c->n_head, model_config_head_dim_max(c));
    const size_t mla = c->latent.rank ? kern_mla_scratch_bytes(length, c->latent.rank) : 0;
    return ((any > mla ? any : mla) + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

/* For so many rows of the widest product. */
static void cut_exchange(struct cutter *t)
{
    const struct model_shard *shard = &t->m->shard;
    struct cpu_exchange *x = &t->s->exchange;
    if (!model_shard_is_part(shard))
        return;
    for (uint32_t i = 0; i < t->p->n_op; i++) {
        const struct program_op *op = &t->p->ops[i];
        const bool is_product = op->kind == PROGRAM_MATMUL || op->kind == PROGRAM_EXPERTS;
        const uint32_t n = is_product ? cpu_columns_most(shard, op->out.n_col) : 0;
        x->n = n > x->n ? n : x->n;
    }
    x->n *= t->s->block_rows;
    x->mine = region_cut(t->c, x->n, sizeof *x->mine);
    x->all = region_cut(t->c, x->n * shard->size, sizeof *x->all);
}

/* Run twice (region_cutter): measures, then gives the pointers. */
static void cut(struct model_scratch *s, struct region_cutter *c, const struct model *m)
{
    const struct model_config *g = &m->config;
    const size_t n = s->n_token_max;
    struct cutter t = {.s = s, .c = c, .m = m, .p = &m->program};
    for (uint32_t i = 0; i < t.p->n_op; i++) {
        note_need(&t, t.p->ops[i].in[0]);
        note_need(&t, t.p->ops[i].in[1]);
        note_need(&t, t.p->ops[i].out);
    }
    s->block_rows = block_rows(s, m);
    s->in_rows = larger(s->block_rows, CPU_OWN_ROWS * s->n_thread);
    s->kern_bytes = kern_bytes(m);
    cut_buffers(&t);
    cut_experts(&t);
    cut_own(&t);
    s->exchange.n = 0;
    cut_exchange(&t);
    s->made_of_stride = made_of_columns(t.p);
    s->made_of = region_cut(c, s->n_thread * s->made_of_stride, sizeof *s->made_of);
    const uint32_t head_dim = model_config_head_dim_max(g);
    s->rope = region_cut(c, n * head_dim, sizeof *s->rope);
    if (m->arch->layer.local_rope)
        s->local_rope = region_cut(c, n * g->head_dim, sizeof *s->local_rope);
    s->n_part = kern_attention_parts(m->shape.max_model_len, g->n_head, head_dim, s->n_thread);
    s->parts = region_cut(c, s->n_part, sizeof *s->parts);
    s->stages = region_cut(c, t.p->n_stage, sizeof *s->stages);
    s->lines = region_cut(c, PROGRAM_BUFFERS_MAX, sizeof *s->lines);
    s->rows = region_cut(c, n, sizeof *s->rows); /* beside what is written first, too */
    s->spans.rows = region_cut(c, n, sizeof *s->spans.rows);
    s->spans.seqs = region_cut(c, n, sizeof *s->spans.seqs);
    s->shares = region_cut(c, s->n_thread, sizeof *s->shares);
    s->kern = region_cut(c, s->n_thread, s->kern_bytes);
}

enum q_code model_scratch_new(struct model_scratch **out, const struct model *m,
                              uint32_t n_token_max, uint32_t n_thread, struct q_err *e)
{
    if (n_token_max == 0 || n_thread == 0)
        return q_fail(e, Q_INVALID, "scratch for %u tokens and %u threads: both must be above 0",
                      n_token_max, n_thread);
    struct model_scratch *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory for scratch");
    s->n_token_max = n_token_max;
    s->n_thread = n_thread;
    struct region_cutter c = {0};
    cut(s, &c, m);
    enum q_code rc = region_init(&s->memory, c.used, "activations", e);
    if (rc) {
        q_free(s);
        return rc;
    }
    c = (struct region_cutter){.base = s->memory.data};
    cut(s, &c, m);
    cpu_plan_stages(s->stages, &m->program, s->overlaps);
    s->n_stage = m->program.n_stage;
    s->asked_pass = cpu_asked_pass(&m->program);
    for (uint32_t i = 0; i < m->program.n_buffer; i++)
        s->lines[i].b = (struct cpu_buffer){
            .all = s->buffers[i],
            .of_step = m->program.buffers[i].rows == PROGRAM_ROWS_STEP,
            .of_places = m->program.buffers[i].rows == PROGRAM_ROWS_PLACES,
        };
    for (uint32_t i = 0; i < n_token_max; i++)
        s->rows[i] = i;
    *out = s;
    return Q_OK;
}

void model_scratch_free(struct model_scratch *s)
{
    if (!s)
        return;
    region_release(&s->memory);
    q_free(s);
}

uint64_t model_scratch_bytes(const struct model *m, uint32_t n_token_max, uint32_t n_thread)
{
    struct model_scratch s = {.n_token_max = n_token_max, .n_thread = n_thread};
    struct region_cutter c = {0};
    cut(&s, &c, m);
    return c.used;
}

void model_scratch_tap(struct model_scratch *s, float *const *out)
{
    s->tap = out;
}
