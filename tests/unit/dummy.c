/* SPDX-License-Identifier: Apache-2.0 */
#include "dummy.h"
#include <string.h>
#include "common/mem.h"

#define LONG_ROWS 24u /* of a long sequence: as many as attention takes at a time for one head */
#define N_HISTORY 4u  /* tokens that penalties count */

struct dummy_run {
    const struct dummy *d;
    struct batch batch;
    struct kv_cache kv;
    uint32_t *ids, *positions, *slots, *logit_rows; /* [n_token] */
    uint32_t *blocks;                               /* [blocks of max_model_len] */
    struct attention_seq *seqs;                     /* [n_seq_max] */
    uint32_t n_seq_max;
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static FALLIBLE make_run(struct dummy_run *r, uint32_t n_long, struct q_err *e)
{
    const struct step_limits *l = &r->d->limits;
    uint32_t n_token = l->max_num_batched_tokens;
    uint32_t n_table = (l->max_model_len + KERN_BLOCK - 1) / KERN_BLOCK;
    uint32_t n_block = (n_token + KERN_BLOCK - 1) / KERN_BLOCK;
    r->n_seq_max = n_long + l->max_num_seqs;
    r->ids = q_calloc(n_token, sizeof *r->ids);
    r->positions = q_calloc(n_token, sizeof *r->positions);
    r->slots = q_calloc(n_token, sizeof *r->slots);
    r->logit_rows = q_calloc(n_token, sizeof *r->logit_rows);
    r->blocks = q_calloc(n_table, sizeof *r->blocks);
    r->seqs = q_calloc(r->n_seq_max, sizeof *r->seqs);
    if (!r->ids || !r->positions || !r->slots || !r->logit_rows || !r->blocks || !r->seqs)
        return q_fail(e, Q_NO_MEMORY, "worker: no memory to measure a step of %u tokens", n_token);
    for (uint32_t i = 0; i < n_table; i++) /* what a long context reads does not matter */
        r->blocks[i] = i % n_block;
    return kv_cache_init(&r->kv, r->d->model, n_block, e);
}

static void release(struct dummy_run *r)
{
    kv_cache_release(&r->kv);
    q_free(r->ids);
    q_free(r->positions);
    q_free(r->slots);
    q_free(r->logit_rows);
    q_free(r->blocks);
    q_free(r->seqs);
}

/* One more sequence of n_row rows; each row has a place of its own in the pool. */
static void add_sequence(struct dummy_run *r, uint32_t n_row, uint32_t start)
{
    struct batch *b = &r->batch;
    uint32_t vocab = model_shape(r->d->model)->vocab_size;
    r->seqs[b->n_seq++] = (struct attention_seq){
        .blocks = r->blocks,
        .row = b->n_token,
        .n_query = n_row,
        .start = start,
    };
    for (uint32_t i = 0; i < n_row; i++, b->n_token++) {
        r->ids[b->n_token] = b->n_token % vocab;
        r->positions[b->n_token] = start + i;
        r->slots[b->n_token] = b->n_token;
        r->logit_rows[b->n_token] = b->n_token;
    }
    if (start + n_row > b->context_max)
        b->context_max = start + n_row;
}

/* The layer with the widest window. */
static uint32_t widest_layer(const struct model *m)
{
    const struct model_config *c = model_config(m);
    uint32_t best = 0;
    for (uint32_t i = 1; i < c->n_layer && c->window[best]; i++)
        if (c->window[i] == 0 || c->window[i] > c->window[best])
            best = i;
    return best;
}

static void fill_batch(struct dummy_run *r, uint32_t n_long)
{
    const struct step_limits *l = &r->d->limits;
    uint32_t left = l->max_num_batched_tokens, n_rest = l->max_num_seqs;
    uint32_t n_row = smaller(smaller(LONG_ROWS, l->max_model_len), (left + n_long) / (n_long + 1));
    for (uint32_t i = 0; i < n_long && left; i++) {
        uint32_t n = smaller(n_row, left);
        add_sequence(r, n, l->max_model_len - n);
        left -= n;
    }
    for (; n_rest && left; n_rest--) {
        uint32_t n = smaller((left + n_rest - 1) / n_rest, l->max_model_len);
        add_sequence(r, n, 0);
        left -= n;
    }
    struct batch *b = &r->batch;
    b->token_ids = r->ids;
    b->positions = r->positions;
    b->slot_mapping = r->slots;
    b->seqs = r->seqs;
    b->logit_rows = r->logit_rows;
    b->n_logit = smaller(l->logit_rows_max, b->n_token);
    b->any_row = true; /* else the last layer may have fewer rows */
    b->layer = widest_layer(r->d->model);
    b->n_layer = 1;
}

static void sample(const struct dummy_run *r, uint32_t i_row, struct sample_scratch *s)
{
    struct sample_params p;
    struct step_row row = {0};
    uint32_t top_id = 0;
    float top_logprob = 0;
    sample_params_default(&p);
    p.top_p = 0.9f;
    p.repetition_penalty = 1.1f;
    p.n_logprob = 1;
    uint32_t n_known = smaller(N_HISTORY, r->batch.n_token);
    const struct sample_input in = {
        .params = &p,
        .history = r->ids,
        .n_known = n_known,
        .n_prompt = n_known / 2,
    };
    const struct sample_result out = {
        .row = &row,
        .top_ids = &top_id,
        .top_logprobs = &top_logprob,
    };
    sample_token(r->d->logits + (size_t)i_row * s->n_vocab, &in, s, &out);
}

/* Some rows of logits at a time, as the worker takes them. */
static void logits(const struct dummy_run *r, struct team *team, uint32_t ith, uint32_t nth)
{
    const struct batch *b = &r->batch;
    struct model_logits l = {.rows = r->d->logits};
    for (; l.first < b->n_logit; l.first += l.n) {
        l.n = smaller(b->n_logit - l.first, MODEL_LOGIT_ROWS);
        model_logits(r->d->model, b, r->d->scratch, &l, team, ith, nth);
        for (uint32_t i = ith; r->d->samplers && i < l.n; i += nth)
            sample(r, i, &r->d->samplers[ith]);
        team_barrier(team);
    }
}

static void compute(void *arg, uint32_t ith, uint32_t nth)
{
    const struct dummy_run *r = arg;
    struct team *team = nth > 1 ? r->d->team : NULL;
    model_forward(r->d->model, &r->batch, &r->kv, r->d->scratch, NULL, team, ith, nth);
    logits(r, team, ith, nth);
}

FALLIBLE dummy_step(const struct dummy *d, struct q_err *e)
{
    struct dummy_run r = {.d = d};
    uint32_t n_head =
        model_shape(d->model)->n_head; /* pieces of work a long sequence is, at least */
    uint32_t n_long = (team_size(d->team) + n_head - 1) / n_head;
    enum q_code rc = make_run(&r, n_long, e);
    if (!rc) {
        fill_batch(&r, n_long);
        team_run(d->team, compute, &r);
    }
    release(&r);
    return rc;
}
