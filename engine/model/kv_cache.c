/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of KV blocks of a model, and swap space of the same shape. */
#include <string.h>
#include <sys/mman.h>
#include "engine/model/model_state.h"

static void kv_cache_set(struct kv_cache *c, const struct model *m, uint32_t n_block)
{
    const struct model_shape *s = &m->shape;
    *c = (struct kv_cache){
        .dtype = s->kv_dtype,
        .n_block = n_block,
        .n_layer = s->n_kv_layer,
        .n_array = model_kv_arrays(m),
        .link = m->link,
    };
    for (uint32_t i = 0; i < m->config.n_layer; i++)
        if (model_has_kv(m, i)) {
            const size_t block = model_kv_block_bytes(m, i);
            c->block_bytes[model_kv_layer(m, i)] = c->stride[model_kv_layer(m, i)] = block;
        }
}

enum q_code kv_cache_init(struct kv_cache *c, const struct model *m, uint32_t n_block,
                          struct q_err *e)
{
    struct region r = REGION_INIT;
    struct region_cutter cutter = {0};
    kv_cache_set(c, m, n_block);
    if (n_block == 0)
        return q_fail(e, Q_INVALID, "the KV cache has 0 blocks; a block holds %u tokens",
                      KERN_BLOCK);
    for (uint32_t i = 0; i < c->n_array * c->n_layer; i++)
        (void)region_cut(&cutter, n_block, c->block_bytes[i / c->n_array]);
    if (c->n_layer == 0) /* states only */
        return Q_OK;
    enum q_code rc = region_init_on(&r, cutter.used, "KV cache", m->link, e);
    if (rc)
        return rc;
    cutter = (struct region_cutter){.base = r.data};
    for (uint32_t i = 0; i < c->n_layer; i++) {
        c->k[i] = region_cut(&cutter, n_block, c->block_bytes[i]);
        c->v[i] = c->n_array > 1 ? region_cut(&cutter, n_block, c->block_bytes[i]) : NULL;
    }
    c->memory = r.map;
    c->memory_bytes = r.map_size;
    return Q_OK;
}

enum q_code kv_cache_init_states(struct kv_cache *c, const struct model *m, uint32_t n_state,
                                 struct q_err *e)
{
    const size_t line = REGION_ALIGN / sizeof(float), n = m->program.n_state;
    struct region r = REGION_INIT;
    Q_ASSERT(n && n_state && !c->states);
    c->state_stride = (n + line - 1) / line * line;
    const size_t n_byte = n_state * c->state_stride * sizeof *c->states;
    const enum q_code rc = region_init_on(&r, n_byte, "states of sequences", c->link, e);
    if (rc)
        return rc;
    c->states = (float *)(void *)r.data;
    c->states_memory = r.map;
    c->states_bytes = r.map_size;
    c->n_state = n_state;
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
    size_t all = 0;
    kv_cache_set(c, m, n_block);
    for (uint32_t i = 0; i < c->n_layer; i++)
        all += c->n_array * c->block_bytes[i];
    (void)region_cut(&cutter, n_block, all);
    if (n_block == 0)
        return q_fail(e, Q_INVALID, "the swap space has 0 blocks");
    enum q_code rc = c->n_layer ? swap_memory(&r, cutter.used, m->link, e) : Q_OK;
    if (rc)
        return rc;
    c->is_swap = true;
    size_t at = 0;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        c->k[i] = r.data + at;
        c->v[i] = c->n_array > 1 ? r.data + at + c->block_bytes[i] : NULL;
        c->stride[i] = all;
        at += c->n_array * c->block_bytes[i];
    }
    c->memory = r.map;
    c->memory_bytes = r.map_size;
    return Q_OK;
}

void kv_cache_release(struct kv_cache *c)
{
    struct region r = {.map = c->memory, .map_size = c->memory_bytes, .link = c->link};
    struct region states = {
        .map = c->states_memory,
        .map_size = c->states_bytes,
        .link = c->link,
    };
    region_release(&states);
    if (c->link && c->is_swap)
        c->link->t->host_free(c->link->d, c->memory);
    else
        region_release(&r);
    *c = (struct kv_cache){0};
}

void kv_cache_forget(const struct kv_cache *c)
{
    if (c->link) { /* the memory stays the device's; swap space is written before it is read */
        if (!c->is_swap && c->memory)
            c->link->t->fill(c->link->s, c->memory, 0, c->memory_bytes);
        if (c->states)
            c->link->t->fill(c->link->s, c->states, 0, c->states_bytes);
        return;
    }
    int failed = madvise(c->memory, c->memory_bytes, MADV_DONTNEED);
    if (c->states)
        failed |= madvise(c->states_memory, c->states_bytes, MADV_DONTNEED);
    Q_ASSERT(!failed); /* these are mappings of ours */
}

void kv_cache_copy(const struct kv_cache *dst, uint32_t to, const struct kv_cache *src,
                   uint32_t from)
{
    if (src->link) {
        kv_cache_copy_on(src->link->s, dst, to, src, from);
        return;
    }
    Q_ASSERT(dst->n_layer == src->n_layer && to < dst->n_block && from < src->n_block);
    for (uint32_t i = 0; i < src->n_layer; i++) {
        const size_t n = src->block_bytes[i];
        const size_t to_at = to * dst->stride[i], from_at = from * src->stride[i];
        Q_ASSERT(dst->block_bytes[i] == n);
        memcpy((char *)dst->k[i] + to_at, (const char *)src->k[i] + from_at, n);
        if (src->n_array > 1)
            memcpy((char *)dst->v[i] + to_at, (const char *)src->v[i] + from_at, n);
    }
}

/* From an array of layer i to the next one (K and V of each layer, or its latents): the same in all
 * layers behind it with heads of its size. */
static size_t array_step(const struct kv_cache *c, uint32_t i)
{
    const void *next = c->n_array > 1 ? c->v[i] : i + 1 < c->n_layer ? c->k[i + 1] : c->k[i];
    return (size_t)((const char *)next - (const char *)c->k[i]);
}

/* How many layers from i on have heads of one size. */
static uint32_t same_layers(const struct kv_cache *c, uint32_t i)
{
    uint32_t n = 1;
    while (i + n < c->n_layer && c->block_bytes[i + n] == c->block_bytes[i])
        n++;
    return n;
}

void kv_cache_copy_on(struct device_stream *s, const struct kv_cache *dst, uint32_t to,
                      const struct kv_cache *src, uint32_t from)
{
    Q_ASSERT(dst->n_layer == src->n_layer && to < dst->n_block && from < src->n_block);
    for (uint32_t i = 0, n; i < src->n_layer; i += n) {
        n = same_layers(src, i);
        const struct device_rows r = {
            .dst = (char *)dst->k[i] + to * dst->stride[i],
            .src = (const char *)src->k[i] + from * src->stride[i],
            .dst_step = array_step(dst, i),
            .src_step = array_step(src, i),
            .n = src->block_bytes[i],
            .n_row = (size_t)src->n_array * n,
        };
        Q_ASSERT(dst->block_bytes[i] == r.n && same_layers(dst, i) == n);
        src->link->t->copy_rows(s, &r);
    }
}
