/* SPDX-License-Identifier: Apache-2.0 */
/* The draft model's KV cache. Positions 0 … slot->n_draft - 1 of a sequence have keys and values in
 * it that belong to the tokens of the history:
 *
 *     0 ………… n_draft … start ……… n_known - 1 | draft 0, draft 1, …
 *       there    to compute                   pass 0 gives draft 0, pass j gives draft j
 *
 * Pass 0 computes the rows from n_draft to the end of the step's known rows for every sequence;
 * each later pass computes the draft token of the pass before. After the step the sequence has m
 * more tokens, of which m - 1 were accepted draft tokens, so the computed keys and values before
 * its newest token are valid. */
#include "engine/worker/draft.h"
#include <string.h>
#include <sys/mman.h>
#include "common/mem.h"
#include "engine/worker/sample.h"

struct draft {
    struct model *model;
    struct model_scratch *scratch;
    struct kv_cache kv, swap;
    struct step_limits limits;
    uint32_t n_token_max, n_draft_token, vocab_size;
    float *logits; /* [logits_max, vocab_size], a mapping; none with a gpu */
    size_t logits_bytes;
    uint32_t logits_max; /* rows that are made at a time */
    /* the pass being computed */
    struct batch batch;
    uint32_t *token_ids, *positions, *slot_mapping; /* [n_token_max] */
    struct attention_seq *seqs;                     /* [max_num_seqs] */
    uint32_t *n_prompts, *logit_rows;               /* [max_num_seqs] */
    struct slot **drafting;                         /* [max_num_seqs] of which row of logits */
    uint32_t *seq_slots;                            /* [max_num_seqs] */
    uint32_t *tokens;                               /* [max_num_seqs] that the device drafted */
    struct team *team;
    struct gpu *gpu; /* NULL: the team computes; borrowed */
};

static FALLIBLE check_pair(const struct model_shape *draft, const struct speculation *c,
                           const struct draft_args *a, struct q_err *e)
{
    const struct model_shape *target = a->target;
    if (draft->vocab_size != target->vocab_size)
        return q_fail(
            e, Q_MISMATCH,
            "draft model %s: its vocabulary has %u tokens, the model's has %u; they must be equal",
            c->draft_dir, draft->vocab_size, target->vocab_size);
    if (draft->state_bytes)
        return q_fail(
            e, Q_UNSUPPORTED,
            "draft model %s: its layers have a state of each sequence, which a draft token "
            "that is rejected would change",
            c->draft_dir);
    if (draft->max_model_len < target->max_model_len)
        return q_fail(e, Q_MISMATCH,
                      "draft model %s: it supports %u positions, the model runs with %u; lower "
                      "--max-model-len to %u",
                      c->draft_dir, draft->max_model_len, target->max_model_len,
                      draft->max_model_len);
    return Q_OK;
}

static FALLIBLE make_arrays(struct draft *d, struct q_err *e)
{
    uint32_t n_seq = d->limits.max_num_seqs, n_token = d->n_token_max;
    d->token_ids = q_calloc(n_token, sizeof *d->token_ids);
    d->positions = q_calloc(n_token, sizeof *d->positions);
    d->slot_mapping = q_calloc(n_token, sizeof *d->slot_mapping);
    d->seqs = q_calloc(n_seq, sizeof *d->seqs);
    d->n_prompts = q_calloc(n_seq, sizeof *d->n_prompts);
    d->logit_rows = q_calloc(n_seq, sizeof *d->logit_rows);
    d->drafting = q_calloc(n_seq, sizeof(struct slot *));
    d->seq_slots = q_calloc(n_seq, sizeof *d->seq_slots);
    d->tokens = q_calloc(n_seq, sizeof *d->tokens);
    d->logits_max = n_seq < MODEL_LOGIT_ROWS ? n_seq : MODEL_LOGIT_ROWS;
    d->logits_bytes = d->gpu ? 0 : (size_t)d->logits_max * d->vocab_size * sizeof *d->logits;
    void *logits = d->gpu ? NULL
                          : mmap(NULL, d->logits_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    d->logits = logits == MAP_FAILED ? NULL : logits;
    if (!d->seq_slots || !d->tokens || !d->token_ids || !d->positions || !d->slot_mapping ||
        !d->seqs || !d->n_prompts || !d->logit_rows || !d->drafting || (!d->gpu && !d->logits))
        return q_fail(e, Q_NO_MEMORY, "draft model: out of memory for %u sequences", n_seq);
    d->batch = (struct batch){
        .token_ids = d->token_ids,
        .positions = d->positions,
        .slot_mapping = d->slot_mapping,
        .seqs = d->seqs,
        .logit_rows = d->logit_rows,
        .n_prompts = d->n_prompts,
    };
    return Q_OK;
}

FALLIBLE draft_new(struct draft **out, const struct speculation *c, const struct draft_args *a,
                   struct q_err *e)
{
    Q_ASSERT(c->method == SPECULATE_DRAFT && c->n_draft_token);
    struct draft *d = q_calloc(1, sizeof *d);
    enum q_code rc;
    if (!d)
        return q_fail(e, Q_NO_MEMORY, "draft model: out of memory");
    d->limits = *a->limits;
    d->n_draft_token = c->n_draft_token;
    /* After a step whose draft tokens were all accepted, the row of the last one is still to be
     * computed. */
    d->n_token_max = a->limits->max_num_batched_tokens + a->limits->max_num_seqs;
    d->team = a->options->team;
    d->gpu = a->gpu;
    struct model_options o = *a->options;
    o.lora_rank = 0; /* what it proposes needs no adapter */
    o.dir = c->draft_dir;
    o.max_model_len = 0; /* its own; check_pair compares */
    o.progress = NULL;
    if (model_load(&d->model, &o, e)) {
        rc = q_wrap(e, "draft model");
        goto out;
    }
    d->vocab_size = model_shape(d->model)->vocab_size;
    if ((rc = check_pair(model_shape(d->model), c, a, e)))
        goto out;
    if (!d->gpu &&
        (rc = model_scratch_new(&d->scratch, d->model, d->n_token_max, team_size(d->team), e)))
        goto out;
    rc = make_arrays(d, e);
out:
    if (rc)
        draft_free(d);
    else
        *out = d;
    return rc;
}

FALLIBLE draft_make_kv(struct draft *d, uint32_t n_block, uint32_t n_swap_block, struct q_err *e)
{
    enum q_code rc = kv_cache_init(&d->kv, d->model, n_block, e);
    if (!rc && n_swap_block)
        rc = kv_cache_init_swap(&d->swap, d->model, n_swap_block, e);
    return rc;
}

void draft_copy(const struct draft *d, const struct step_copy *c, bool is_out)
{
    if (is_out)
        kv_cache_copy(&d->swap, c->host, &d->kv, c->block);
    else
        kv_cache_copy(&d->kv, c->block, &d->swap, c->host);
}

void draft_forget_kv(struct draft *d)
{
    kv_cache_forget(&d->kv);
    if (d->swap.memory)
        kv_cache_forget(&d->swap);
}

void draft_free(struct draft *d)
{
    if (!d)
        return;
    kv_cache_release(&d->kv);
    kv_cache_release(&d->swap);
    q_free(d->token_ids);
    q_free(d->positions);
    q_free(d->slot_mapping);
    q_free(d->seqs);
    q_free(d->n_prompts);
    q_free(d->logit_rows);
    q_free(d->drafting);
    q_free(d->seq_slots);
    q_free(d->tokens);
    if (d->logits)
        munmap(d->logits, d->logits_bytes);
    model_scratch_free(d->scratch);
    model_free(d->model);
    q_free(d);
}

const struct model *draft_model(const struct draft *d)
{
    return d->model;
}

const struct model_shape *draft_shape(const struct draft *d)
{
    return model_shape(d->model);
}

uint64_t draft_scratch_bytes(const struct draft *d)
{
    return model_scratch_bytes(d->model, d->n_token_max, team_size(d->team)) + d->logits_bytes;
}

static void clear(struct batch *b)
{
    b->n_token = b->n_seq = b->n_logit = b->context_max = 0;
}

/* Rows for positions from … end - 1 of slot number i; with `draft token` the last one gives
 * logits. */
static void add_rows(struct draft *d, struct slots *s, uint32_t i, uint32_t end, bool draft_token)
{
    struct batch *b = &d->batch;
    struct slot *slot = &s->slots[i];
    const uint32_t from = slot->n_draft;
    if (from == end)
        return;
    d->seq_slots[b->n_seq] = i;
    d->n_prompts[b->n_seq] = slot->n_prompt;
    d->seqs[b->n_seq++] = (struct attention_seq){
        .blocks = slot->blocks,
        .row = b->n_token,
        .n_query = end - from,
        .start = from,
    };
    for (uint32_t at = from; at < end; at++, b->n_token++) {
        Q_ASSERT(b->n_token < d->n_token_max);
        d->token_ids[b->n_token] = slots_token(s, slot->history[at]);
        d->positions[b->n_token] = at;
        d->slot_mapping[b->n_token] = slots_slot_mapping(slot, at);
    }
    if (end > b->context_max)
        b->context_max = end;
    slot->n_draft = end;
    if (!draft_token)
        return;
    d->drafting[b->n_logit] = slot;
    d->logit_rows[b->n_logit++] = b->n_token - 1;
}

static void add_draft_token(struct slot *slot, uint32_t token)
{
    slot->history[slot->n_known + slot->n_draft_token] = token == SAMPLE_BAD ? 0 : token;
    slot->n_draft_token++;
}

/* Every thread: one pass, then the most likely tokens, some rows of logits at a time. */
static void pass(void *arg, uint32_t ith, uint32_t nth)
{
    struct draft *d = arg;
    struct team *team = nth > 1 ? d->team : NULL;
    struct model_logits l = {.rows = d->logits};
    model_forward(d->model, &d->batch, &d->kv, d->scratch, NULL, team, ith, nth);
    for (; l.first < d->batch.n_logit; l.first += l.n) {
        const uint32_t left = d->batch.n_logit - l.first;
        l.n = left < d->logits_max ? left : d->logits_max;
        model_logits(d->model, &d->batch, d->scratch, &l, team, ith, nth);
        for (uint32_t i = ith; i < l.n; i += nth)
            add_draft_token(d->drafting[l.first + i],
                            sample_greedy(d->logits + (size_t)i * d->vocab_size, d->vocab_size));
        if (l.n < left)
            team_barrier(team);
    }
}

static FALLIBLE run_pass(struct draft *d, const struct slots *s, const struct step_view *v,
                         struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (d->batch.n_token == 0)
        return Q_OK;
    if (!d->gpu) {
        team_run(d->team, pass, d);
        return Q_OK;
    }
    if ((rc = gpu_update(d->gpu, s, v, e)) || /* the last pass's tokens are draft tokens */
        (rc = gpu_draft(d->gpu, &d->batch, d->seq_slots, d->tokens, e)))
        return rc;
    for (uint32_t i = 0; i < d->batch.n_logit; i++)
        add_draft_token(d->drafting[i], d->tokens[i]);
    return Q_OK;
}

/* The first pass. If the grammar has proposed draft tokens (slot->is_forced), the draft model
 * computes their rows and adds none. */
static void add_known(struct draft *d, struct slots *s, const struct step_seq *q)
{
    const struct slot *slot = &s->slots[q->slot];
    bool draft_token = q->flags & STEP_SPECULATE && q->n_token > 1 && !slot->is_forced;
    uint32_t n_forced = slot->is_forced ? slot->n_draft_token : 0;
    uint32_t n_token = q->flags & STEP_SPECULATE ? 1 + n_forced : q->n_token;
    add_rows(d, s, q->slot, q->start + n_token, draft_token);
}

FALLIBLE draft_propose(struct draft *d, struct slots *s, const struct step_view *v, struct q_err *e)
{
    clear(&d->batch);
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        add_known(d, s, &v->seqs[i]);
    enum q_code rc = run_pass(d, s, v, e);
    for (uint32_t j = 1; j < d->n_draft_token && !rc; j++) {
        clear(&d->batch);
        for (uint32_t i = 0; i < v->head->n_seq; i++) {
            const struct step_seq *q = &v->seqs[i];
            const struct slot *slot = &s->slots[q->slot];
            if (q->flags & STEP_SPECULATE && q->n_token - 1 > j && !slot->is_forced)
                add_rows(d, s, q->slot, slot->n_draft + 1, true);
        }
        rc = run_pass(d, s, v, e);
    }
    return rc;
}

void draft_settle(struct slots *s, const struct step_view *v)
{
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        struct slot *slot = &s->slots[v->seqs[i].slot];
        Q_ASSERT(slot->n_known);
        if (slot->n_draft > slot->n_known - 1 && v->seqs[i].flags & STEP_SPECULATE)
            slot->n_draft = slot->n_known - 1;
    }
}
