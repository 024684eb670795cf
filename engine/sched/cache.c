/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache as requests meet it: names for their full blocks, what they find when they are
 * admitted, what they leave for others.
 *
 * A block is published when its last row is planned and all its tokens are known, which may be
 * before it is computed. Whoever finds it is planned later, or later in the same step. Steps are
 * executed in order, and within one every layer stores the keys and values of all rows before any
 * row reads (engine/model/forward/executor_cpu.c), so the reader finds them written. If the step
 * fails, or the worker dies, everything is forgotten. A sequence never gives up rows that were
 * planned (a preempted or aborted one only its blocks), so what is published is computed or lost as
 * a whole.
 *
 * A history that is found whole still needs its last row's logits. The row is computed, but its
 * block is shared and others may read it in the same step: it is read as it is, and nothing is
 * written (step_admit.n_cached). Keys and values there are the very ones that the row would give,
 * by the promise that a row's bits do not depend on the batch. In the same way a request that wants
 * logprobs of its prompt shares all it finds and computes every row. */
#include "engine/sched/scheduler_internal.h"

void cache_root(struct scheduler *s, uint32_t i_request, const struct msg_submit *m)
{
    struct request *r = request_at(s, i_request);
    uint32_t free_len = s->config.prompt_free_len;
    struct prefix_root root = {
        .length_class = free_len && r->n_prompt > free_len ? r->n_prompt : 0,
        .salt = m->cache_salt.data,
        .n_salt = m->cache_salt.n,
    };
    uint32_t n_shared = m->n_shared < r->n_prompt ? m->n_shared : r->n_prompt;
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
        prefix_hash_block(&s->hasher, &r->hashes[r->n_hash + 1], &before,
                          r->tokens + (size_t)r->n_hash * KV_BLOCK_TOKENS);
    }
}

/* The first row that has to be computed though all before `n_found` are in the cache: the last one,
 * for its logits; or where prompt logprobs are still wanted. */
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
}
