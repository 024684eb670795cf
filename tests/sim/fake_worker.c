/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_worker.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

#define NOBODY UINT32_MAX

struct slot {
    struct step_admit admit;
    uint64_t admission; /* number of the admission; 0 = never used */
    uint32_t *tokens;   /* [n_token] history */
    uint64_t *hashes;   /* [n_token] of the history up to and with each token */
    uint32_t n_token;
    uint32_t *blocks; /* [n_block] */
    uint32_t n_block;
    uint32_t *stop_ids;  /* [admit.n_stop_id] */
    uint32_t n_computed; /* positions that have been computed or were found */
};

struct fake_state { /* what a row of states holds: of a history's first n tokens */
    uint64_t hash;
    uint32_t n;
    uint64_t step; /* the last one that writes it */
};

struct fake_worker {
    struct fake_state *states; /* [limits.n_state] */
    struct fake_model model;
    struct step_limits limits;
    uint32_t n_block, n_host, seq_blocks_max;
    struct slot *slots;                       /* [max_num_seqs] */
    uint64_t *content;                        /* [n_block, STEP_BLOCK_TOKENS] */
    uint64_t *block_owner;                    /* [n_block] the admission it was last given to */
    uint64_t *host;                           /* [n_host, STEP_BLOCK_TOKENS] */
    uint64_t n_admission, n_admission_before; /* this step */
    uint64_t last_step;
    uint32_t n_row, n_top; /* of the result being built */
    uint32_t n_unused;     /* rows planned for draft tokens that were not made */
    uint64_t n_roll;       /* of draft_luck */
    struct step_result result;
};

void sim_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("FAILED: ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
    exit(1);
}

static void *need(void *p)
{
    if (!p)
        sim_fail("no memory");
    return p;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 30;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    h ^= h >> 27;
    h *= UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

uint64_t fake_hash(uint64_t before, uint32_t token)
{
    return mix(before * 31 + token + 1);
}

uint64_t fake_root(const struct fake_model *m, const struct step_admit *a)
{
    bool own = m->prompt_free_len && a->n_prompt > m->prompt_free_len;
    return mix(a->params.seed % FAKE_SALTS + (own ? (uint64_t)a->n_prompt << 8 : 0));
}

uint32_t fake_next(const struct fake_model *m, uint64_t hash, const struct step_admit *a,
                   const uint32_t *stop_ids, uint32_t position)
{
    uint32_t temperature;
    memcpy(&temperature, &a->params.temperature, sizeof temperature);
    uint64_t h = mix(hash ^ mix(a->params.seed + position) ^ mix(temperature + a->n_prompt));
    uint32_t token = (uint32_t)(h >> 8) % m->vocab_size;
    if (h % m->eos_every == 0)
        token = FAKE_EOS;
    if (position - a->n_prompt >= a->params.min_tokens)
        return token;
    for (uint32_t i = 0; i < a->n_stop_id; i++)
        if (stop_ids[i] == token) { /* masked: try the next token */
            token = (token + 1) % m->vocab_size;
            i = UINT32_MAX;
        }
    return token;
}

void fake_model_answer(const struct fake_model *model, const struct msg_submit *m,
                       uint32_t max_model_len, struct fake_answer *out)
{
    struct step_admit a = {.n_prompt = (uint32_t)m->prompt.n};
    struct q_err e = Q_ERR_INIT;
    uint32_t stop_ids[STEP_STOP_IDS_MAX], n_max = a.n_prompt + m->max_tokens;
    if (sample_params_from_submit(&a.params, m, &e))
        sim_fail("%s", e.message);
    a.n_stop_id = (uint32_t)m->stop_ids.n;
    if (a.n_stop_id)
        memcpy(stop_ids, m->stop_ids.data, a.n_stop_id * sizeof *stop_ids);
    if (!m->ignore_eos)
        stop_ids[a.n_stop_id++] = FAKE_EOS;
    if (n_max > max_model_len)
        n_max = max_model_len;
    uint64_t hash = fake_root(model, &a);
    for (uint32_t i = 0; i < a.n_prompt; i++)
        hash = fake_hash(hash, m->prompt.data[i]);
    out->n = out->stop_id = 0;
    out->finish = FINISH_NONE;
    while (!out->finish) {
        const uint32_t at = a.n_prompt + out->n;
        const uint32_t token = fake_next(model, hash, &a, stop_ids, at);
        const bool may_stop = out->n >= m->min_tokens;
        out->ids[out->n++] = token;
        hash = fake_hash(hash, token);
        for (uint32_t i = 0; may_stop && i < a.n_stop_id; i++)
            if (stop_ids[i] == token)
                out->finish = FINISH_STOP;
        if (out->finish && (m->ignore_eos || token != FAKE_EOS))
            out->stop_id = token + 1;
        if (!out->finish && at + 1 == n_max)
            out->finish = FINISH_LENGTH;
    }
}

struct fake_worker *fake_worker_new(const struct fake_model *m, const struct step_limits *l,
                                    uint32_t n_block, uint32_t n_host)
{
    struct fake_worker *w = need(q_calloc(1, sizeof *w));
    w->model = *m;
    w->limits = *l;
    w->n_block = n_block;
    w->n_host = n_host;
    w->seq_blocks_max = (l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    w->slots = need(q_calloc(l->max_num_seqs, sizeof *w->slots));
    w->content = need(q_calloc((size_t)n_block * STEP_BLOCK_TOKENS, sizeof *w->content));
    w->block_owner = need(q_calloc(n_block, sizeof *w->block_owner));
    w->states = need(q_calloc((size_t)l->n_state + 1, sizeof *w->states));
    w->host = need(q_calloc((size_t)n_host * STEP_BLOCK_TOKENS + 1, sizeof *w->host));
    for (uint32_t i = 0; i < l->max_num_seqs; i++) {
        struct slot *s = &w->slots[i];
        s->tokens = need(q_calloc(l->max_model_len, sizeof *s->tokens));
        s->hashes = need(q_calloc(l->max_model_len, sizeof *s->hashes));
        s->blocks = need(q_calloc(w->seq_blocks_max, sizeof *s->blocks));
        s->stop_ids = need(q_calloc(STEP_STOP_IDS_MAX, sizeof *s->stop_ids));
    }
    return w;
}

void fake_worker_free(struct fake_worker *w)
{
    for (uint32_t i = 0; w && i < w->limits.max_num_seqs; i++) {
        q_free(w->slots[i].tokens);
        q_free(w->slots[i].hashes);
        q_free(w->slots[i].blocks);
        q_free(w->slots[i].stop_ids);
    }
    if (w) {
        q_free(w->slots);
        q_free(w->content);
        q_free(w->block_owner);
        q_free(w->host);
        q_free(w->states);
    }
    q_free(w);
}

static void add_token(const struct fake_model *m, struct slot *s, uint32_t token)
{
    uint64_t before = s->n_token ? s->hashes[s->n_token - 1] : fake_root(m, &s->admit);
    s->hashes[s->n_token] = fake_hash(before, token);
    s->tokens[s->n_token++] = token;
}

struct cursor {
    const struct step_admit *admit;
    const uint32_t *block, *known, *stop_id;
};

static void take_admit(struct fake_worker *w, struct slot *s, struct cursor *c)
{
    s->admit = *c->admit++;
    s->admission = ++w->n_admission;
    s->n_token = s->n_block = s->n_computed = 0;
    if (s->admit.params.stop_ids || s->admit.params.bias_ids || s->admit.params.bias)
        sim_fail("a pointer of the engine's is in the step");
    for (uint32_t i = 0; i < s->admit.n_known; i++) {
        if (c->known[i] >= w->model.vocab_size)
            sim_fail("token %u is not in the vocabulary", c->known[i]);
        add_token(&w->model, s, c->known[i]);
    }
    memcpy(s->stop_ids, c->stop_id, s->admit.n_stop_id * sizeof *s->stop_ids);
    c->known += s->admit.n_known;
    c->stop_id += s->admit.n_stop_id;
}

/* Blocks for positions before n_cached are shared; the others belong to this sequence only, and
 * their contents are invalid. */
static void take_blocks(struct fake_worker *w, struct slot *s, uint32_t n, struct cursor *c)
{
    if (s->admit.n_cached % STEP_BLOCK_TOKENS)
        sim_fail("%u cached positions are no whole blocks", s->admit.n_cached);
    for (; n; n--) {
        uint32_t b = *c->block++;
        if (b >= w->n_block)
            sim_fail("block %u of a pool of %u", b, w->n_block);
        if (s->n_block == w->seq_blocks_max)
            sim_fail("a table of more than %u blocks", w->seq_blocks_max);
        for (uint32_t i = 0; i < s->n_block; i++)
            if (s->blocks[i] == b)
                sim_fail("block %u is twice in one table", b);
        if (s->n_block >= s->admit.n_cached / STEP_BLOCK_TOKENS) {
            w->block_owner[b] = s->admission;
            memset(w->content + (size_t)b * STEP_BLOCK_TOKENS, 0xdd,
                   STEP_BLOCK_TOKENS * sizeof *w->content);
        }
        s->blocks[s->n_block++] = b;
    }
}

/* One block to host memory (is_out) or back, to one that a sequence of this step was just given;
 * then the host's is rubbish. */
static void copy_block(struct fake_worker *w, const struct step_copy *c, bool is_out)
{
    const size_t n = STEP_BLOCK_TOKENS * sizeof *w->host;
    if (c->block >= w->n_block || c->host >= w->n_host)
        sim_fail("copy of block %u of %u, %u of %u in host memory", c->block, w->n_block, c->host,
                 w->n_host);
    uint64_t *block = w->content + (size_t)c->block * STEP_BLOCK_TOKENS;
    uint64_t *host = w->host + (size_t)c->host * STEP_BLOCK_TOKENS;
    if (!is_out && w->block_owner[c->block] <= w->n_admission_before)
        sim_fail("copy from host memory into block %u, which is another's", c->block);
    memcpy(is_out ? host : block, is_out ? block : host, n);
    if (!is_out)
        memset(host, 0xee, n);
}

static uint64_t *content_of(struct fake_worker *w, const struct slot *s, uint32_t position)
{
    uint32_t i = position / STEP_BLOCK_TOKENS;
    if (i >= s->n_block)
        sim_fail("position %u, but the table has %u blocks", position, s->n_block);
    if (position >= s->admit.n_cached && w->block_owner[s->blocks[i]] != s->admission)
        sim_fail("block %u was given to another sequence while this one uses it", s->blocks[i]);
    return &w->content[s->blocks[i] * STEP_BLOCK_TOKENS + position % STEP_BLOCK_TOKENS];
}

static void write_row(struct fake_worker *w, struct slot *s, uint32_t position)
{
    if (position >= s->n_token)
        sim_fail("row %u of a history of %u", position, s->n_token);
    if (position != s->n_computed)
        sim_fail("row %u follows %u computed ones", position, s->n_computed);
    s->n_computed++;
    if (position >= s->admit.n_cached)
        *content_of(w, s, position) = s->hashes[position];
}

/* One row reads all positions up to its own. Returns the hash it "computed". */
static uint64_t read_row(struct fake_worker *w, struct slot *s, uint32_t position)
{
    for (uint32_t i = 0; i <= position; i++)
        if (*content_of(w, s, i) != s->hashes[i])
            sim_fail("position %u (%u cached) read at row %u is not this sequence's", i,
                     s->admit.n_cached, position);
    return *content_of(w, s, position);
}

static void add_row(struct fake_worker *w, const struct step_row *row, uint32_t n_logprob)
{
    const uint32_t n_top = n_logprob == SAMPLE_NO_LOGPROBS ? 0 : n_logprob;
    struct step_row *out = &w->result.rows[w->n_row++];
    *out = *row;
    out->rank = n_logprob != SAMPLE_NO_LOGPROBS;
    out->n_top = n_top;
    out->top_start = w->n_top;
    if (w->n_top + (uint64_t)n_top > step_top_max(&w->limits))
        sim_fail("more than %llu alternatives in one step",
                 (unsigned long long)step_top_max(&w->limits));
    for (uint32_t i = 0; i < n_top; i++) {
        w->result.top_ids[w->n_top] = row->token + i;
        w->result.top_logprobs[w->n_top++] = -(float)i;
    }
}

static uint64_t draft_luck(struct fake_worker *w)
{
    return mix(++w->n_roll) >> 8;
}

/* Rows of draft tokens: the fake worker knows the next token, and either proposes it or writes
 * garbage to the position of a rejected draft token. Sometimes it proposes fewer tokens than
 * allowed. */
static void compute_draft_tokens(struct fake_worker *w, const struct step_seq *q)
{
    struct slot *s = &w->slots[q->slot];
    uint32_t n = 1 + (uint32_t)(draft_luck(w) % q->n_token);
    bool right = true;
    if (s->n_token != q->start + 1)
        sim_fail("draft tokens after row %u of a history of %u", q->start, s->n_token);
    w->n_unused += q->n_token - n;
    for (uint32_t i = 0; i < n; i++) {
        struct step_row row = {
            .slot = q->slot,
            .position = q->start + i + 1,
            .is_rejected = !right,
        };
        if (right) {
            if (i) /* the first was written with all others */
                write_row(w, s, q->start + i);
            uint64_t hash = read_row(w, s, q->start + i);
            row.token = fake_next(&w->model, hash, &s->admit, s->stop_ids, s->n_token);
            add_token(&w->model, s, row.token);
            right = draft_luck(w) % 4 != 0;
        } else {
            *content_of(w, s, q->start + i) = draft_luck(w);
        }
        add_row(w, &row, s->admit.params.n_logprob);
    }
}

static void compute_seq(struct fake_worker *w, const struct step_seq *q)
{
    struct slot *s = &w->slots[q->slot];
    uint64_t hash = 0;
    if (q->flags & STEP_SPECULATE) {
        compute_draft_tokens(w, q);
        return;
    }
    for (uint32_t i = 0; i < q->n_token; i++) {
        uint32_t next = q->start + i + 1;
        hash = read_row(w, s, q->start + i);
        if (q->flags & STEP_PROMPT_LOGPROBS && next < s->n_token)
            add_row(w,
                    &(struct step_row){
                        .slot = q->slot,
                        .position = next,
                        .token = s->tokens[next],
                        .is_prompt = 1,
                    },
                    s->admit.params.n_prompt_logprob);
    }
    if (!(q->flags & STEP_SAMPLE))
        return;
    if (s->n_computed != s->n_token)
        sim_fail("samples after row %u of a history of %u", s->n_computed, s->n_token);
    uint32_t token = fake_next(&w->model, hash, &s->admit, s->stop_ids, s->n_token);
    add_row(w, &(struct step_row){.slot = q->slot, .position = s->n_token, .token = token},
            s->admit.params.n_logprob);
    add_token(&w->model, s, token);
}

/* ---- states ---- */

static void write_state(struct fake_worker *w, uint32_t row, const struct slot *s, uint32_t n)
{
    w->states[row].n = n;
    w->states[row].hash = s->hashes[n - 1];
}

static void mark_state(struct fake_worker *w, uint32_t row)
{
    if (w->states[row].step == w->last_step)
        sim_fail("state %u is written by two sequences of a step", row);
    w->states[row].step = w->last_step;
}

/* The sequences of a step are computed side by side: none reads what another one writes. */
static void mark_states(struct fake_worker *w, const struct step_view *v)
{
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        mark_state(w, w->slots[v->seqs[i].slot].admit.state);
    for (uint32_t i = 0; i < v->head->n_snapshot; i++)
        mark_state(w, v->snapshots[i].state);
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_admit *a = &w->slots[v->seqs[i].slot].admit;
        const uint32_t from = a->state_from;
        if (v->seqs[i].flags & STEP_ADMIT && from != STEP_STATE_ZERO && from != a->state &&
            w->states[from].step == w->last_step)
            sim_fail("state %u is read and written in one step", from);
    }
}

/* A state is that of its sequence's history, exactly as long as the rows before those of the
 * step. */
static void compute_state(struct fake_worker *w, const struct step_view *v, uint32_t i)
{
    const struct step_seq *q = &v->seqs[i];
    const struct slot *s = &w->slots[q->slot];
    const uint32_t from = q->flags & STEP_ADMIT ? s->admit.state_from : s->admit.state;
    const struct fake_state *before = from == STEP_STATE_ZERO ? NULL : &w->states[from];
    if (before ? before->n != q->start || before->hash != s->hashes[q->start - 1] : q->start != 0)
        sim_fail("slot %u begins row %u with state %u, which is of %u tokens, or of others",
                 q->slot, q->start, from, before ? before->n : 0);
    for (uint32_t k = 0; k < v->head->n_snapshot; k++)
        if (v->snapshots[k].seq == i)
            write_state(w, v->snapshots[k].state, s, v->snapshots[k].position);
    write_state(w, s->admit.state, s, q->start + q->n_token);
}

static void compute_states(struct fake_worker *w, const struct step_view *v)
{
    mark_states(w, v);
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        compute_state(w, v, v->head->step % 2 ? i : v->head->n_seq - 1 - i);
}

/* Results do not promise an order of sequences: every other step is computed from the back. */
static void compute_all(struct fake_worker *w, const struct step_view *v)
{
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        for (uint32_t k = 0; k < (v->seqs[i].flags & STEP_SPECULATE ? 1 : v->seqs[i].n_token); k++)
            write_row(w, &w->slots[v->seqs[i].slot], v->seqs[i].start + k);
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        compute_seq(w, &v->seqs[v->head->step % 2 ? i : v->head->n_seq - 1 - i]);
}

/* Decode rows come first: one row that samples, past the prompt, of a sequence that was there
 * before. */
static void check_order(const struct fake_worker *w, const struct step_view *v)
{
    bool other_seen = false;
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_seq *q = &v->seqs[i];
        bool one = q->n_token == 1 && q->flags == STEP_SAMPLE;
        bool decode = (one || q->flags == (STEP_SAMPLE | STEP_SPECULATE)) &&
                      q->start >= w->slots[q->slot].admit.n_prompt;
        if (decode && other_seen)
            sim_fail("seq %u is a decode row after others", i);
        other_seen = other_seen || !decode;
    }
}

void fake_worker_execute(struct fake_worker *w, void *memory, size_t n, void *result_memory,
                         size_t result_n)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    if (step_view(&v, memory, n, &w->limits, &e))
        sim_fail("%s", e.message);
    if (v.head->step <= w->last_step)
        sim_fail("step %llu after %llu", (unsigned long long)v.head->step,
                 (unsigned long long)w->last_step);
    w->last_step = v.head->step;
    check_order(w, &v);
    for (uint32_t i = 0; i < v.head->n_out; i++)
        copy_block(w, &v.outs[i], true);
    w->n_admission_before = w->n_admission;
    struct cursor c = {v.admits, v.blocks, v.known, v.stop_ids};
    for (uint32_t i = 0; i < v.head->n_seq; i++) {
        struct slot *s = &w->slots[v.seqs[i].slot];
        if (v.seqs[i].flags & STEP_ADMIT) {
            take_admit(w, s, &c);
            s->n_computed = v.seqs[i].start; /* earlier positions were cached or swapped in */
        } else if (!s->admission) {
            sim_fail("slot %u was never admitted", v.seqs[i].slot);
        }
        take_blocks(w, s, v.seqs[i].n_new_block, &c);
    }
    for (uint32_t i = 0; i < v.head->n_in; i++)
        copy_block(w, &v.ins[i], false);
    w->n_row = w->n_top = w->n_unused = 0;
    if (step_result_layout(&w->result, result_memory, result_n, w->limits.logit_rows_max,
                           (uint32_t)step_top_max(&w->limits), &e))
        sim_fail("%s", e.message);
    if (w->limits.n_state)
        compute_states(w, &v);
    compute_all(w, &v);
    if (w->n_row + w->n_unused != v.head->n_logit)
        sim_fail("%u logit rows were needed, the step says %u", w->n_row + w->n_unused,
                 v.head->n_logit);
    struct step_result big =
        w->result; /* rows have the same offset for any count; alternatives move up */
    if (step_result_layout(&w->result, result_memory, result_n, w->n_row, w->n_top, &e))
        sim_fail("%s", e.message);
    memmove(w->result.top_ids, big.top_ids, w->n_top * sizeof *big.top_ids);
    memmove(w->result.top_logprobs, big.top_logprobs, w->n_top * sizeof *big.top_logprobs);
    w->result.head->step = v.head->step;
    w->result.head->copy_us = (uint32_t)(draft_luck(w) % 100);
    w->result.head->forward_us = (uint32_t)(draft_luck(w) % 400);
}

bool fake_worker_finds(struct fake_worker *w, void *memory, size_t n, uint32_t kind)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    if (step_view(&v, memory, n, &w->limits, &e))
        sim_fail("%s", e.message);
    for (uint32_t i = 0; i < v.head->n_seq; i++)
        if (w->slots[v.seqs[i].slot].admit.params.seed % FAKE_KINDS == kind)
            return true;
    return false;
}
