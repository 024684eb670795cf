/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and the prefix cache: hashes of full blocks, look-up at admission, publication of new
 * blocks.
 *
 * A block is published when its last row is planned and all its tokens are known, possibly before
 * it is computed. A request that finds the block is planned in a later step or later in the same
 * step. Steps are executed in order, and within a step each layer stores the keys and values of all
 * rows before any row reads them (engine/model/forward/executor_cpu.c), so the reader finds the
 * block written. If the step fails or the worker dies, the whole index is cleared. Rows that were
 * planned are always computed, even when their sequence is preempted or aborted (it releases only
 * its blocks); so published blocks are either computed or lost together.
 *
 * If all blocks of a history are cached, its last row is still computed, because its logits are
 * needed. The block of that row is shared, and other sequences may read it in the same step; so the
 * row reads the block and writes nothing (step_admit.n_cached). The keys and values in the block
 * equal those that the row would write, because a row's bits do not depend on the batch (DESIGN
 * section 6). In the same way a request with prompt logprobs shares all cached blocks and computes
 * every row. */
#include "engine/sched/scheduler_internal.h"

void cache_root(struct scheduler *s, uint32_t i_request, const struct msg_submit *m)
{
    struct request *r = request_at(s, i_request);
    uint32_t free_len = s->config.prompt_free_len;
    struct prefix_root root = {
        .lora = r->adapter,
        .length_class = free_len && r->n_prompt > free_len ? r->n_prompt : 0,
        .salt = m->cache_salt.data,
        .n_salt = m->cache_salt.n,
    };
    uint32_t n_shared = m->n_shared < r->n_prompt ? m->n_shared : r->n_prompt;
    if (r->n_item && n_shared > r->items[0].position) /* items are the client's own */
        n_shared = r->items[0].position;
    r->n_public = m->cache_salt.n ? n_shared / KV_BLOCK_TOKENS : 0;
    if (!r->hashes)
        return;
    if (r->n_public) {
        prefix_hash_root(&s->hasher, &r->salted, &root);
        root.n_salt = 0;
    }
    prefix_hash_root(&s->hasher, r->hashes, &root);
}

static void hash_to(const struct scheduler *s, struct request *r, uint32_t n_block)
{
    for (; r->n_hash < n_block; r->n_hash++) {
        struct kv_hash before = r->hashes[r->n_hash];
        if (r->n_public && r->n_hash == r->n_public)
            prefix_hash_salted(&s->hasher, &before, &before, &r->salted);
        struct prefix_block block = {
            .tokens = r->tokens + (size_t)r->n_hash * KV_BLOCK_TOKENS,
            .start = r->n_hash * KV_BLOCK_TOKENS,
        };
        const uint32_t first = step_items_from(r->items, r->n_item, block.start);
        if (first < r->n_item)
            block.items = r->items + first;
        while (block.items && first + block.n_item < r->n_item &&
               block.items[block.n_item].position < block.start + KV_BLOCK_TOKENS)
            block.n_item++;
        prefix_hash_block(&s->hasher, &r->hashes[r->n_hash + 1], &before, &block);
    }
}

/* The first row to compute when all rows before `n_found` are cached: the last one, for its logits,
 * or the first one whose prompt logprobs are still to be sent. */
static uint32_t start_of(const struct request *r, uint32_t n_found)
{
    uint32_t last = r->prompt_next < r->n_prompt ? r->prompt_next - 1 : r->n_token - 1;
    return n_found < last ? n_found : last;
}

void cache_find(struct scheduler *s, uint32_t i_request, struct admission *admission)
{
    struct request *r = request_at(s, i_request);
    uint32_t n_used = 0, n_found = 0;
    *admission = (struct admission){0};
    if (r->hashes) {
        uint32_t n_full = r->n_token / KV_BLOCK_TOKENS;
        hash_to(s, r, n_full);
        admission->n_shared = kv_match(&s->pool, r->hashes + 1, n_full, &n_used);
        n_found = admission->n_shared * KV_BLOCK_TOKENS;
    }
    admission->n_in = swap_n_in(&r->held, admission->n_shared);
    if (admission->n_in)
        n_found = r->held.n_row;
    admission->start = start_of(r, n_found);
    if (s->config.limits.n_state)
        scheduler_find_state(s, r, admission,
                             start_of(r, admission->n_shared * KV_BLOCK_TOKENS) / KV_BLOCK_TOKENS);
    admission->n_taken = kv_blocks_for(r->n_token) - n_used;
}

void cache_admit(struct scheduler *s, uint32_t i_request, const struct admission *admission)
{
    struct request *r = request_at(s, i_request);
    if (admission->n_shared)
        kv_share(&s->pool, &r->table, r->hashes + 1, admission->n_shared);
    enum q_code rc = kv_grow(&s->pool, &r->table, r->n_token, NULL);
    Q_ASSERT(rc == Q_OK);
    scheduler_restore(s, r, admission);
    if (s->config.limits.n_state)
        scheduler_admit_state(s, r, admission);
    r->n_shared = admission->n_shared;
    r->n_planned = admission->start;
    if (r->hashes)
        r->publish_at = (admission->n_shared + 1) * KV_BLOCK_TOKENS;
    if (r->started || !r->hashes)
        return;
    r->n_cached = admission->start < r->n_prompt ? admission->start : r->n_prompt;
    s->stats.prefix_queries += r->n_prompt;
    s->stats.prefix_hits += r->n_cached;
}

void cache_publish_full(struct scheduler *s, struct request *r)
{
    uint32_t n_full = (r->n_token < r->n_planned ? r->n_token : r->n_planned) / KV_BLOCK_TOKENS;
    hash_to(s, r, n_full);
    for (uint32_t i = r->publish_at / KV_BLOCK_TOKENS - 1; i < n_full; i++)
        kv_publish(&s->pool, &r->table, i, &r->hashes[i + 1]);
    r->publish_at = (n_full + 1) * KV_BLOCK_TOKENS;
    (void)scheduler_attach_pending(s, r);
}
