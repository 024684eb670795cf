/* SPDX-License-Identifier: Apache-2.0 */
/* Block tables and token histories of the slots on the device. For each slot the host records which
 * sequence the device has and how much of its table and history. One scatter sends the changed
 * words, one copy each a long run (a prompt). Draft tokens are sent but not recorded, because they
 * may be rejected. */
#include <string.h>
#include "common/mem.h"
#include "engine/worker/gpu/gpu_internal.h"

#define RUN_LEAST 8u /* words that are worth a copy of their own */

FALLIBLE gpu_slots_make(struct gpu *g, const struct step_limits *l, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const uint64_t table = (l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    const uint64_t n_word = l->max_num_seqs * (table + l->max_model_len);
    struct gpu_updates *u = &g->updates;
    enum q_code rc;
    void *p;
    if (n_word > KERN_NO_SLOT)
        return q_fail(e, Q_TOO_LARGE,
                      "device: the token histories of %u sequences of %u tokens are too large; "
                      "lower --max-num-seqs or --max-model-len",
                      l->max_num_seqs, l->max_model_len);
    g->table_len = (uint32_t)table;
    g->history_len = l->max_model_len;
    g->histories = (size_t)l->max_num_seqs * g->table_len;
    g->sent = q_calloc(l->max_num_seqs, sizeof *g->sent);
    g->seq_slots = q_calloc(l->max_num_seqs, sizeof *g->seq_slots);
    if (!g->sent || !g->seq_slots)
        return q_fail(e, Q_NO_MEMORY, "device: out of memory for %u sequences", l->max_num_seqs);
    if ((rc = t->alloc(g->link.d, &p, n_word * sizeof(uint32_t), "block tables and histories", e)))
        return rc;
    g->words = p;
    t->fill(g->link.s, g->words, 0, n_word * sizeof(uint32_t)); /* padding reads token 0 there */
    if ((rc = t->alloc(g->link.d, &p, 2 * GPU_UPDATES * sizeof(uint32_t), "changes of tables", e)))
        return rc;
    u->device = p;
    u->text_max = l->known_max + l->max_num_batched_tokens;
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        const size_t n = (2 * (size_t)GPU_UPDATES + u->text_max) * sizeof(uint32_t);
        if ((rc = t->host_alloc(g->link.d, &p, n, "changes of tables", e)))
            return rc;
        u->host[i] = p;
    }
    return Q_OK;
}

void gpu_slots_release(struct gpu *g)
{
    const struct device_table *t = g->link.t;
    t->release(g->link.d, g->words);
    t->release(g->link.d, g->updates.device);
    for (uint32_t i = 0; i < GPU_STEPS; i++)
        t->host_free(g->link.d, g->updates.host[i]);
    q_free(g->sent);
    q_free(g->seq_slots);
}

/* Give the single words to the stream. `again`: more of this step follow. */
static FALLIBLE flush_words(struct gpu *g, bool again, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    struct gpu_updates *u = &g->updates;
    const uint32_t *host = u->host[g->i_buffer] + u->n_given;
    const uint32_t n = u->n - u->n_given;
    u->n_given = u->n;
    if (n) {
        t->copy(g->link.s, u->device, host, n * sizeof *host);
        t->copy(g->link.s, u->device + GPU_UPDATES, host + GPU_UPDATES, n * sizeof *host);
        t->kern(g->link.d)->scatter(
            &(struct scatter_args){
                .dst = g->words,
                .at = u->device,
                .value = u->device + GPU_UPDATES,
                .n = n,
            },
            &(struct kern_exec){.nth = 1, .stream = g->link.s});
    }
    if (again)
        u->n = u->n_given = 0;
    return again ? t->sync(g->link.s, e) : Q_OK; /* they go through the same memory */
}

static FALLIBLE set_word(struct gpu *g, size_t at, uint32_t value, struct q_err *e)
{
    struct gpu_updates *u = &g->updates;
    uint32_t *host = u->host[g->i_buffer];
    enum q_code rc = u->n == GPU_UPDATES ? flush_words(g, true, e) : Q_OK;
    if (rc)
        return rc;
    host[u->n] = (uint32_t)at;
    host[GPU_UPDATES + u->n++] = value;
    return Q_OK;
}

/* n words from `at` on. */
static FALLIBLE set_words(struct gpu *g, size_t at, const uint32_t *from, uint32_t n,
                          struct q_err *e)
{
    struct gpu_updates *u = &g->updates;
    enum q_code rc = Q_OK;
    if (n > RUN_LEAST && n <= u->text_max - u->n_text) {
        uint32_t *text = u->host[g->i_buffer] + 2 * GPU_UPDATES + u->n_text;
        memcpy(text, from, n * sizeof *text);
        g->link.t->copy(g->link.s, g->words + at, text, n * sizeof *text);
        u->n_text += n;
        return Q_OK;
    }
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = set_word(g, at + i, from[i], e);
    return rc;
}

static FALLIBLE update_slot(struct gpu *g, const struct slot *slot, uint32_t i, struct q_err *e)
{
    struct gpu_sent *sent = &g->sent[i];
    enum q_code rc;
    if (sent->n_admitted != slot->n_admitted)
        *sent = (struct gpu_sent){.n_admitted = slot->n_admitted};
    const uint32_t end = slot->n_known + slot->n_draft_token;
    if ((rc = set_words(g, (size_t)i * g->table_len + sent->n_block, slot->blocks + sent->n_block,
                        slot->n_block - sent->n_block, e)))
        return rc;
    sent->n_block = slot->n_block;
    if (sent->n_token < end &&
        (rc = set_words(g, gpu_history_at(g, i, sent->n_token), slot->history + sent->n_token,
                        end - sent->n_token, e)))
        return rc;
    sent->n_token = slot->n_known;
    return Q_OK;
}

void gpu_next_buffer(struct gpu *g)
{
    g->i_buffer = (g->i_buffer + 1) % GPU_STEPS;
    g->updates.n = g->updates.n_given = g->updates.n_text = 0;
}

FALLIBLE gpu_update(struct gpu *g, const struct slots *s, const struct step_view *v,
                    struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < v->head->n_seq && !rc; i++)
        rc = update_slot(g, &s->slots[v->seqs[i].slot], v->seqs[i].slot, e);
    return rc ? rc : flush_words(g, false, e);
}
