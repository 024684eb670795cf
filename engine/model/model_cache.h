/* SPDX-License-Identifier: Apache-2.0 */
/* model_cache - the pool of KV blocks of a model, its rows for states of sequences, and swap space.
 * Threads: made by one; then as model_forward. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_CACHE_H
#define QUIRE_ENGINE_MODEL_MODEL_CACHE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/hub/config.h"
#include "kernels/device.h"

struct model;

/* The pool: one K and one V array per layer of the stage with K and V of its own, from its first
 * on, layout in kernels/ops/ops.h; of latent attention one array per layer in k
 * (kernels/ops/ops_mla.h), v is NULL. */
struct kv_cache {
    void *k[CONFIG_LAYERS_MAX], *v[CONFIG_LAYERS_MAX];
    enum dtype dtype;
    uint32_t n_block, n_layer, n_array;    /* layers with K and V; arrays of one: 2, or 1 */
    size_t block_bytes[CONFIG_LAYERS_MAX]; /* of one block in one of the layer's arrays */
    size_t stride[CONFIG_LAYERS_MAX]; /* from one block to the next there: block_bytes but for swap
                                         space */
    void *memory;                     /* one mapping that holds them all */
    size_t memory_bytes;
    const struct device_link *link; /* not NULL: memory of that device, or (swap space) host memory
                                       that it copies from and to */
    bool is_swap;
    /* States of sequences, which are no K and V: rows that steps name (batch.state_parts). */
    float *states;
    size_t state_stride; /* floats from a row to the next */
    uint32_t n_state;
    void *states_memory; /* the mapping */
    size_t states_bytes;
};
/* Memory is the system's until a block is written, so a pool costs what its used blocks cost (in
 * steps of huge pages). Errors: Q_INVALID (no blocks), Q_NO_MEMORY. */
FALLIBLE kv_cache_init(struct kv_cache *c, const struct model *m, uint32_t n_block,
                       struct q_err *e);
/* A second pool, for copies only: model_forward cannot use it. All that is of one block lies
 * together, so that memory is taken block by block. Errors: as kv_cache_init. */
FALLIBLE kv_cache_init_swap(struct kv_cache *c, const struct model *m, uint32_t n_block,
                            struct q_err *e);
/* Rows for states, of a model that has some, in a pool that kv_cache_init has made. Memory of the
 * host is the system's until a row is written. Errors: Q_NO_MEMORY. */
FALLIBLE kv_cache_init_states(struct kv_cache *c, const struct model *m, uint32_t n_state,
                              struct q_err *e);
void kv_cache_release(struct kv_cache *c);
/* Give the memory of all blocks back to the system; the pool stays, its blocks hold zeros. */
void kv_cache_forget(const struct kv_cache *c);
/* Block `from` of one pool into block `to` of another (or the same) pool of the same model: all
 * layers, bytes as they are, whatever the dtype. Not while a step uses either block. Cost: one
 * shape.kv_block_bytes read and written. */
void kv_cache_copy(const struct kv_cache *dst, uint32_t to, const struct kv_cache *src,
                   uint32_t from);
/* The same on a device, when the stream comes to it. */
void kv_cache_copy_on(struct device_stream *s, const struct kv_cache *dst, uint32_t to,
                      const struct kv_cache *src, uint32_t from);

#endif
