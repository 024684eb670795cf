/* SPDX-License-Identifier: Apache-2.0 */
/* The memory a model needs besides its weights: activations of one step, and the KV pool. */
#include <string.h>
#include <sys/mman.h>
#include "common/mem.h"
#include "engine/model/model_state.h"

#define ROW_ALIGN       KERN_QUANT_K /* elements: 64 bytes of int8, 128 of bf16 */
/* Rows that go through a layer's products together. Enough to hide the reading of the weights
 * behind the arithmetic (a byte of them is used this many times), and few enough that their
 * activations stay in the second- and third-level caches between two products. */
#define BLOCK_ROWS      256u
#define BLOCK_SHARES    64u /* rows of a block for each thread, at least */
/* With experts a weight is used by a few of the rows only; so many on average, as long as the block
 * is no larger than the second number. */
#define EXPERT_ROWS     64u
#define EXPERT_ROWS_MAX 1024u

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

static void cut_operand(struct operand *o, struct region_cutter *c, const struct model *m,
                        size_t n_row, uint32_t n_col)
{
    const enum quantization quantization = m->shape.quantization;
    const size_t width = quantization ? 1 : dtype_bits(model_input_dtype(m)) / 8;
    o->stride = row_stride(n_col);
    o->x = region_cut(c, n_row * o->stride, width);
    if (quantization)
        o->rows = region_cut(c, n_row, sizeof *o->rows);
    if (quantization == QUANTIZE_INT4)
        o->sums = region_cut(c, n_row * o->stride / KERN_QUANT_SUM, sizeof *o->sums);
}

static uint32_t block_rows(const struct model_scratch *s, const struct moe_config *moe)
{
    uint32_t block = larger(BLOCK_ROWS, BLOCK_SHARES * s->n_thread);
    if (moe->n_expert) {
        const uint32_t rows = EXPERT_ROWS * moe->n_expert / moe->n_used;
        block = larger(block, rows < EXPERT_ROWS_MAX ? rows : EXPERT_ROWS_MAX);
    }
    return block < s->n_token_max ? block : s->n_token_max;
}

static void cut_experts(struct model_scratch *s, struct region_cutter *c, const struct model *m)
{
    const struct moe_config *moe = &m->config.moe;
    const size_t hidden = m->config.hidden_size, n_thread = s->n_thread;
    const size_t n_place = (size_t)s->block_rows * moe->n_used;
    const size_t n_made = m->shape.quantization ? 1 : 0;
    struct expert_scratch *e = &s->e;
    if (!moe->n_expert)
        return;
    const size_t n_shared = moe->shared_width ? 1 : 0;
    e->scores =
        region_cut(c, (size_t)s->block_rows * (moe->n_expert + n_shared), sizeof *e->scores);
    e->normed = region_cut(c, n_made * s->in_rows * hidden, sizeof *e->normed);
    e->experts = region_cut(c, (size_t)s->in_rows * moe->n_used, sizeof *e->experts);
    e->weights = region_cut(c, (size_t)s->in_rows * moe->n_used, sizeof *e->weights);
    e->shared = region_cut(c, n_shared * s->in_rows, sizeof *e->shared);
    e->ends = region_cut(c, n_thread * moe->n_expert, sizeof *e->ends);
    e->rows = region_cut(c, n_thread * n_place, sizeof *e->rows);
    e->places = region_cut(c, n_thread * n_place, sizeof *e->places);
    cut_operand(&e->picked, c, m, n_thread * PICK_ROWS, m->config.hidden_size);
    cut_operand(&e->act, c, m, (size_t)s->in_rows * moe->n_used, moe->width);
    e->gated = region_cut(c, n_made * n_place * e->act.stride, sizeof *e->gated);
    e->out = region_cut(c, (n_place + n_shared * s->block_rows) * hidden, sizeof *e->out);
}

/* Has any layer an MLP without experts? */
static bool has_dense(const struct model_config *c)
{
    bool dense = c->moe.n_expert == 0;
    for (uint32_t i = 0; i < c->n_layer; i++)
        dense |= !c->moe.layers[i];
    return dense;
}

/* Run twice (region_cutter): measures, then gives the pointers. */
static void cut(struct model_scratch *s, struct region_cutter *c, const struct model *m)
{
    const struct model_config *g = &m->config;
    const size_t n = s->n_token_max, n_made = m->shape.quantization ? 1 : 0;
    const uint32_t q = model_q_cols(m), kv = model_kv_cols(m);
    s->block_rows = block_rows(s, &g->moe);
    s->in_rows = larger(s->block_rows, ALONE_ROWS * s->n_thread);
    s->kern_bytes =
        (kern_scratch_bytes(m->shape.max_model_len, g->n_head, g->head_dim) + REGION_ALIGN - 1) /
        REGION_ALIGN * REGION_ALIGN;
    s->x = region_cut(c, n * g->hidden_size, sizeof *s->x);
    s->qkv_stride = row_stride(q + 2 * kv);
    s->qkv = region_cut(c, n * s->qkv_stride, sizeof *s->qkv);
    s->att.stride = row_stride(q);
    s->att.x = region_cut(c, n * s->att.stride, dtype_bits(model_input_dtype(m)) / 8);
    cut_operand(&s->in, c, m, s->in_rows, larger(g->hidden_size, q));
    cut_operand(&s->act, c, m, s->in_rows,
                larger(has_dense(g) ? g->intermediate_size : 0, g->moe.shared_width));
    s->norm = region_cut(c, n_made * s->n_thread * g->hidden_size, sizeof *s->norm);
    s->gated = region_cut(c, n_made * s->block_rows * s->act.stride, sizeof *s->gated);
    cut_experts(s, c, m);
    s->turns = region_cut(c, n * g->head_dim, sizeof *s->turns);
    s->n_part = kern_attention_parts(m->shape.max_model_len, g->n_head, g->head_dim, s->n_thread);
    s->parts = region_cut(c, s->n_part, sizeof *s->parts);
    s->rows = region_cut(c, n, sizeof *s->rows);
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

static void kv_cache_set(struct kv_cache *c, const struct model *m, uint32_t n_block)
{
    const struct model_shape *s = &m->shape;
    size_t block = model_kv_block_bytes(m);
    *c = (struct kv_cache){.dtype = s->kv_dtype,
                           .n_block = n_block,
                           .n_layer = s->n_layer,
                           .block_bytes = block,
                           .stride = block,
                           .link = m->link};
}

enum q_code kv_cache_init(struct kv_cache *c, const struct model *m, uint32_t n_block,
                          struct q_err *e)
{
    struct region r = REGION_INIT;
    struct region_cutter cutter = {0};
    kv_cache_set(c, m, n_block);
    if (n_block == 0)
        return q_fail(e, Q_INVALID, "a KV cache of 0 blocks; one holds %u tokens", KERN_BLOCK);
    for (uint32_t i = 0; i < 2 * c->n_layer; i++)
        (void)region_cut(&cutter, n_block, c->block_bytes);
    enum q_code rc = region_init_on(&r, cutter.used, "KV cache", m->link, e);
    if (rc)
        return rc;
    cutter = (struct region_cutter){.base = r.data};
    for (uint32_t i = 0; i < c->n_layer; i++) {
        c->k[i] = region_cut(&cutter, n_block, c->block_bytes);
        c->v[i] = region_cut(&cutter, n_block, c->block_bytes);
    }
    c->memory = r.map;
    c->memory_bytes = r.map_size;
    return Q_OK;
}

/* Swap space of a device is host memory that it copies from and to by itself. */
static enum q_code swap_memory(struct region *r, size_t n, const struct device_link *link,
                               struct q_err *e)
{
    void *data = NULL;
    if (!link)
        return region_init(r, n, "swap space", e);
    enum q_code rc = link->t->host_alloc(link->d, &data, n, "swap space", e);
    *r = (struct region){.data = data, .size = n, .map = data, .map_size = n};
    return rc;
}

enum q_code kv_cache_init_swap(struct kv_cache *c, const struct model *m, uint32_t n_block,
                               struct q_err *e)
{
    struct region r = REGION_INIT;
    struct region_cutter cutter = {0};
    kv_cache_set(c, m, n_block);
    c->stride = 2 * c->n_layer * c->block_bytes;
    (void)region_cut(&cutter, n_block, c->stride);
    if (n_block == 0)
        return q_fail(e, Q_INVALID, "swap space of 0 blocks");
    enum q_code rc = swap_memory(&r, cutter.used, m->link, e);
    if (rc)
        return rc;
    c->is_swap = true;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        c->k[i] = r.data + 2 * i * c->block_bytes;
        c->v[i] = r.data + (2 * i + 1) * c->block_bytes;
    }
    c->memory = r.map;
    c->memory_bytes = r.map_size;
    return Q_OK;
}

void kv_cache_release(struct kv_cache *c)
{
    struct region r = {.map = c->memory, .map_size = c->memory_bytes, .link = c->link};
    if (c->link && c->is_swap)
        c->link->t->host_free(c->link->d, c->memory);
    else
        region_release(&r);
    *c = (struct kv_cache){0};
}

void kv_cache_forget(const struct kv_cache *c)
{
    if (c->link) { /* the memory stays the device's; swap space is written before it is read */
        if (!c->is_swap)
            c->link->t->fill(c->link->s, c->memory, 0, c->memory_bytes);
        return;
    }
    int failed = madvise(c->memory, c->memory_bytes, MADV_DONTNEED);
    Q_ASSERT(!failed); /* it is a mapping of ours */
}

void kv_cache_copy(const struct kv_cache *dst, uint32_t to, const struct kv_cache *src,
                   uint32_t from)
{
    if (src->link) {
        kv_cache_copy_on(src->link->s, dst, to, src, from);
        return;
    }
    size_t n = src->block_bytes;
    Q_ASSERT(dst->block_bytes == n && dst->n_layer == src->n_layer);
    Q_ASSERT(to < dst->n_block && from < src->n_block);
    for (uint32_t i = 0; i < src->n_layer; i++) {
        memcpy((char *)dst->k[i] + to * dst->stride, (const char *)src->k[i] + from * src->stride,
               n);
        memcpy((char *)dst->v[i] + to * dst->stride, (const char *)src->v[i] + from * src->stride,
               n);
    }
}

/* From K to V of one layer, and from there to K of the next: the same everywhere in a pool. */
static size_t array_step(const struct kv_cache *c)
{
    return (size_t)((char *)c->v[0] - (char *)c->k[0]);
}

void kv_cache_copy_on(struct device_stream *s, const struct kv_cache *dst, uint32_t to,
                      const struct kv_cache *src, uint32_t from)
{
    const struct device_rows r = {.dst = (char *)dst->k[0] + to * dst->stride,
                                  .src = (const char *)src->k[0] + from * src->stride,
                                  .dst_step = array_step(dst),
                                  .src_step = array_step(src),
                                  .n = src->block_bytes,
                                  .n_row = 2 * (size_t)src->n_layer};
    Q_ASSERT(dst->block_bytes == r.n && dst->n_layer == src->n_layer);
    Q_ASSERT(to < dst->n_block && from < src->n_block);
    src->link->t->copy_rows(s, &r);
}
