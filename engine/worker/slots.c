/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/slots.h"
#include <string.h>
#include <sys/mman.h>
#include "common/mem.h"
#include "common/thinking_budget.h"
#include "engine/worker/sample.h"

static uint32_t blocks_of(uint32_t n_token)
{
    return n_token / STEP_BLOCK_TOKENS + (n_token % STEP_BLOCK_TOKENS != 0);
}

static size_t table_of(const struct step_limits *l) /* entries */
{
    return blocks_of(l->max_model_len);
}

/* Bytes of one slot's part of the mapping. */
static size_t slot_bytes(const struct step_limits *l, uint32_t vocab_size)
{
    return (l->max_model_len + table_of(l) + SAMPLE_BAD_MAX + THINKING_BUDGET_WORDS_MAX +
            SAMPLE_MASK_WORDS(vocab_size)) *
           sizeof(uint32_t);
}

uint64_t slots_bytes(const struct step_limits *l, uint32_t vocab_size)
{
    return (uint64_t)l->max_num_seqs * (slot_bytes(l, vocab_size) + sizeof(struct slot));
}

FALLIBLE slots_init(struct slots *s, const struct step_limits *l, uint32_t n_block,
                    uint32_t vocab_size, struct q_err *e)
{
    Q_ASSERT(n_block && vocab_size && l->max_num_seqs && l->max_model_len);
    *s = (struct slots)SLOTS_INIT;
    s->limits = *l;
    s->n_block = n_block;
    s->vocab_size = vocab_size;
    size_t n_history = l->max_model_len, n_table = table_of(l), one = slot_bytes(l, vocab_size);
    s->memory_bytes = one * l->max_num_seqs;
    s->memory = mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->memory == MAP_FAILED)
        s->memory = NULL;
    s->slots = q_calloc(l->max_num_seqs, sizeof *s->slots);
    s->token_ids = q_calloc(l->max_num_batched_tokens, sizeof *s->token_ids);
    s->positions = q_calloc(l->max_num_batched_tokens, sizeof *s->positions);
    s->slot_mapping = q_calloc(l->max_num_batched_tokens, sizeof *s->slot_mapping);
    s->token_types = q_calloc(l->max_num_batched_tokens, sizeof *s->token_types);
    s->seqs = q_calloc(l->max_num_seqs, sizeof *s->seqs);
    s->n_prompts = q_calloc(l->max_num_seqs, sizeof *s->n_prompts);
    s->logit_rows = q_calloc(l->logit_rows_max, sizeof *s->logit_rows);
    s->rows = q_calloc(l->logit_rows_max, sizeof *s->rows);
    s->fresh = q_calloc(l->max_num_seqs, sizeof *s->fresh);
    const size_t n_part = l->n_state ? (size_t)l->max_num_seqs * (1 + STEP_SEQ_SNAPSHOTS) : 1;
    s->state_parts = q_calloc(n_part, sizeof *s->state_parts);
    s->state_steps = q_calloc((size_t)l->n_state + 1, sizeof *s->state_steps);
    if (!s->memory || !s->slots || !s->token_ids || !s->positions || !s->slot_mapping ||
        !s->token_types || !s->seqs || !s->n_prompts || !s->logit_rows || !s->rows || !s->fresh ||
        !s->state_parts || !s->state_steps) {
        slots_release(s);
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for %u sequences of %u tokens",
                      l->max_num_seqs, l->max_model_len);
    }
    for (uint32_t i = 0; i < l->max_num_seqs; i++) {
        s->slots[i].history = (uint32_t *)((char *)s->memory + i * one);
        s->slots[i].blocks = s->slots[i].history + n_history;
        s->slots[i].bad_words = s->slots[i].blocks + n_table;
        s->slots[i].thinking = s->slots[i].bad_words + SAMPLE_BAD_MAX;
        s->slots[i].allowed = s->slots[i].thinking + THINKING_BUDGET_WORDS_MAX;
    }
    s->batch = (struct batch){
        .token_ids = s->token_ids,
        .positions = s->positions,
        .slot_mapping = s->slot_mapping,
        .seqs = s->seqs,
        .logit_rows = s->logit_rows,
        .n_prompts = s->n_prompts,
        .state_parts = s->state_parts,
    };
    return Q_OK;
}

void slots_release(struct slots *s)
{
    if (s->memory)
        munmap(s->memory, s->memory_bytes);
    q_free(s->slots);
    q_free(s->token_ids);
    q_free(s->positions);
    q_free(s->slot_mapping);
    q_free(s->token_types);
    q_free(s->seqs);
    q_free(s->n_prompts);
    q_free(s->logit_rows);
    q_free(s->rows);
    q_free(s->fresh);
    q_free(s->state_parts);
    q_free(s->state_steps);
    *s = (struct slots)SLOTS_INIT;
}

struct cursor { /* how far each array of the step is used up */
    const struct step_view *v;
    uint32_t admit, block, known, stop_id, bias, list;
};

static FALLIBLE admit_lists(struct slots *s, struct slot *slot, const struct step_admit *a,
                            struct cursor *c, struct q_err *e)
{
    const uint32_t *allowed = c->v->lists + c->list, *bad_words = allowed + a->n_allowed,
                   *thinking = bad_words + a->n_bad + a->n_grammar;
    struct thinking_budget budget;
    if (a->n_allowed > SAMPLE_ALLOWED_MAX || a->n_bad > SAMPLE_BAD_MAX ||
        !sample_bad_words_fit(bad_words, a->n_bad, s->vocab_size))
        return q_fail(e, Q_CORRUPT, "invalid admission: %u allowed ids, %u entries of bad words",
                      a->n_allowed, a->n_bad);
    if (a->n_thinking && !thinking_budget_view(&budget, thinking, a->n_thinking, s->vocab_size))
        return q_fail(e, Q_CORRUPT, "invalid admission: %u words of a thinking budget",
                      a->n_thinking);
    if (slot->params.n_allowed)
        memset(slot->allowed, 0, SAMPLE_MASK_WORDS(s->vocab_size) * sizeof(uint32_t));
    slot->params.n_allowed = a->n_allowed;
    for (uint32_t i = 0; i < a->n_allowed; i++) {
        if (allowed[i] >= s->vocab_size)
            return q_fail(e, Q_CORRUPT, "allowed id %u is not in the vocabulary of %u", allowed[i],
                          s->vocab_size);
        slot->allowed[allowed[i] / 32] |= 1u << allowed[i] % 32;
    }
    if (a->n_bad)
        memcpy(slot->bad_words, bad_words, a->n_bad * sizeof(uint32_t));
    if (a->n_grammar)
        s->fresh[s->n_fresh++] =
            (struct slot_grammar){(uint32_t)(slot - s->slots), a->n_grammar, bad_words + a->n_bad};
    if (a->n_thinking)
        memcpy(slot->thinking, thinking, a->n_thinking * sizeof(uint32_t));
    c->list += (uint32_t)step_admit_lists(a);
    return Q_OK;
}

/* Ids from row q->start on are tokens, or an item has rows there. */
static FALLIBLE check_known(const struct slots *s, const struct step_seq *q,
                            const struct step_admit *a, const uint32_t *known, struct q_err *e)
{
    const struct slot *slot = &s->slots[q->slot];
    uint32_t i_item = 0;
    for (uint32_t i = q->start; i < a->n_known; i++)
        if (known[i] >= s->vocab_size && !step_items_have(slot->items, slot->n_item, &i_item, i))
            return q_fail(e, Q_CORRUPT, "token %u at %u is not in the vocabulary of %u", known[i],
                          i, s->vocab_size);
    return Q_OK;
}

static FALLIBLE admit_items(const struct slots *s, struct slot *slot, const struct step_admit *a,
                            struct q_err *e)
{
    const struct step_item_limits l = {step_store_bytes(&s->limits), s->n_modality, a->n_prompt};
    slot->n_item = 0;
    if (!a->n_item)
        return Q_OK;
    if (!s->item_store) /* step_view has looked at the place of the table */
        return q_fail(e, Q_CORRUPT, "%u items, but the model takes none", a->n_item);
    slot->items = (const struct step_item *)(const void *)(s->item_store + a->item_offset);
    enum q_code rc = step_items_check(slot->items, a->n_item, &l, e);
    slot->n_item = rc ? 0 : a->n_item;
    return rc;
}

static FALLIBLE admit(struct slots *s, const struct step_seq *q, struct cursor *c, struct q_err *e)
{
    struct slot *slot = &s->slots[q->slot];
    const struct step_view *v = c->v;
    const struct step_admit *a = &v->admits[c->admit++];
    if (a->n_known > s->limits.max_model_len || a->n_prompt > a->n_known ||
        a->n_stop_id > STEP_STOP_IDS_MAX || a->n_bias > SAMPLE_BIAS_MAX)
        return q_fail(e, Q_CORRUPT,
                      "invalid admission: %u tokens (%u prompt), %u stop ids, %u biases",
                      a->n_known, a->n_prompt, a->n_stop_id, a->n_bias);
    const uint32_t *known = v->known + c->known;
    enum q_code rc;
    slot->n_known = slot->n_prompt = 0; /* whatever is wrong with it */
    if ((rc = admit_items(s, slot, a, e)) || (rc = check_known(s, q, a, known, e)) ||
        (rc = admit_lists(s, slot, a, c, e)))
        return rc;
    memcpy(slot->history, known, a->n_known * sizeof *known);
    slot->has_items = false;
    for (uint32_t i = 0; i < a->n_prompt && !slot->has_items; i++)
        slot->has_items = known[i] >= s->vocab_size;
    slot->n_known = a->n_known;
    slot->n_prompt = a->n_prompt;
    slot->n_admitted++;
    slot->n_block = 0;
    slot->n_cached = a->n_cached;
    slot->adapter = a->adapter;
    slot->state = a->state;
    slot->params = a->params;
    slot->params.n_allowed = a->n_allowed; /* the capacity of the mask, which bounds the
                                            * parameters */
    memcpy(slot->stop_ids, v->stop_ids + c->stop_id, a->n_stop_id * sizeof(uint32_t));
    memcpy(slot->bias_ids, v->bias_ids + c->bias, a->n_bias * sizeof(uint32_t));
    memcpy(slot->bias, v->bias + c->bias, a->n_bias * sizeof(float));
    slot->params.stop_ids = slot->stop_ids;
    slot->params.n_stop_id = a->n_stop_id;
    slot->params.bias_ids = slot->bias_ids;
    slot->params.bias = slot->bias;
    slot->params.n_bias = a->n_bias;
    slot->params.allowed_ids = NULL;
    slot->params.grammar_data = NULL;
    slot->params.bad_words = slot->bad_words;
    slot->params.n_bad = a->n_bad;
    slot->params.thinking = slot->thinking;
    slot->params.n_thinking = a->n_thinking;
    c->known += a->n_known;
    c->stop_id += a->n_stop_id;
    c->bias += a->n_bias;
    return Q_OK;
}

static FALLIBLE grow_table(struct slots *s, struct slot *slot, uint32_t n, struct cursor *c,
                           struct q_err *e)
{
    if (n > blocks_of(s->limits.max_model_len) - slot->n_block)
        return q_fail(e, Q_CORRUPT, "too many blocks: %u more after %u", n, slot->n_block);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = c->v->blocks[c->block + i];
        if (block >= s->n_block)
            return q_fail(e, Q_CORRUPT, "block %u is out of range, there are %u", block,
                          s->n_block);
        slot->blocks[slot->n_block++] = block;
    }
    c->block += n;
    return Q_OK;
}

/* Rows that the sequence has in this step: fewer than planned when there are fewer draft tokens. */
static uint32_t rows_of(const struct slots *s, const struct step_seq *q)
{
    return q->flags & STEP_SPECULATE ? 1 + s->slots[q->slot].n_draft_token : q->n_token;
}

/* One sequence's rows of the batch. */
static void add_tokens(struct slots *s, const struct step_seq *q)
{
    const struct slot *slot = &s->slots[q->slot];
    struct batch *b = &s->batch;
    uint32_t n = rows_of(s, q);
    Q_ASSERT(b->n_seq < s->limits.max_num_seqs &&
             q->start + n <= slot->n_known + slot->n_draft_token);
    s->n_prompts[b->n_seq] = slot->n_prompt;
    s->seqs[b->n_seq++] = (struct attention_seq){
        .blocks = slot->blocks,
        .row = b->n_token,
        .n_query = n,
        .start = q->start,
    };
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = q->start + i;
        uint32_t row = b->n_token + i;
        s->token_ids[row] = slots_token(s, slot->history[position]);
        s->positions[row] = position;
        s->token_types[row] =
            slot->params.second_text && position >= slot->params.second_text ? 1 : 0;
        s->slot_mapping[row] = slots_slot_mapping(slot, position);
    }
    if (q->start + n > b->context_max)
        b->context_max = q->start + n;
}

/* Row `batch_row` of the batch computes logits, processed as described by `row`. */
static FALLIBLE add_logit(struct slots *s, uint32_t batch_row, struct logit_row row,
                          struct q_err *e)
{
    struct batch *b = &s->batch;
    if (b->n_logit >= s->limits.logit_rows_max)
        return q_fail(e, Q_CORRUPT, "more than %u logits rows", s->limits.logit_rows_max);
    row.slot = &s->slots[row.i_slot];
    row.n_top = row.is_prompt ? row.slot->params.n_prompt_logprob : row.slot->params.n_logprob;
    if (row.n_top == SAMPLE_NO_LOGPROBS)
        row.n_top = 0;
    if (row.n_top > SAMPLE_LOGPROBS_MAX ||
        s->n_top + (uint64_t)row.n_top > step_top_max(&s->limits))
        return q_fail(e, Q_CORRUPT, "too many logprobs: %u alternatives", row.n_top);
    row.top_start = s->n_top;
    s->n_top += row.n_top;
    s->logit_rows[b->n_logit] = batch_row;
    s->rows[b->n_logit++] = row;
    return Q_OK;
}

static FALLIBLE add_logits(struct slots *s, const struct step_seq *q, struct q_err *e)
{
    const struct slot *slot = &s->slots[q->slot];
    uint32_t first_row = s->batch.n_token, n = rows_of(s, q);
    uint32_t first_sampled = q->flags & STEP_SPECULATE ? 0 : n - 1;
    struct logit_row row = {.i_slot = q->slot, .is_prompt = true};
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; q->flags & STEP_PROMPT_LOGPROBS && i < n && !rc; i++) {
        row.position = q->start + i + 1;
        if (row.position < slot->n_known)
            rc = add_logit(s, first_row + i, row, e);
    }
    row.is_prompt = false;
    for (uint32_t i = first_sampled; q->flags & STEP_SAMPLE && i < n && !rc; i++) {
        const bool is_first = slot->params.pools && s->pooling == POOLING_CLS;
        row.position = q->start + i + 1;
        rc = add_logit(s, first_row + (is_first ? 0 : i), row, e);
    }
    return rc;
}

static FALLIBLE apply_seq(struct slots *s, const struct step_seq *q, struct cursor *c,
                          struct q_err *e)
{
    struct slot *slot = &s->slots[q->slot];
    enum q_code rc;
    if ((q->flags & STEP_ADMIT) && (rc = admit(s, q, c, e)))
        return rc;
    if ((rc = grow_table(s, slot, q->n_new_block, c, e)))
        return rc;
    /* Swapped-in blocks are valid for the draft model too, except possibly their last row
     * (draft.c). */
    slot->state_from = q->flags & STEP_ADMIT ? c->v->admits[c->admit - 1].state_from : slot->state;
    if (q->flags & STEP_ADMIT)
        slot->n_draft = q->start - (q->start > slot->n_cached);
    slot->n_draft_token = 0;
    slot->is_predicted = true;
    slot->is_forced = false;
    uint64_t end = (uint64_t)q->start + q->n_token;
    uint64_t known_end = q->flags & STEP_SPECULATE ? (uint64_t)q->start + 1 : end;
    if (q->n_token == 0 || known_end > slot->n_known || blocks_of((uint32_t)end) > slot->n_block)
        return q_fail(e, Q_CORRUPT, "rows %u to %llu do not fit %u known tokens and %u blocks",
                      q->start, (unsigned long long)end, slot->n_known, slot->n_block);
    if ((q->flags & STEP_SAMPLE) && known_end != slot->n_known)
        return q_fail(e, Q_CORRUPT, "sampling after row %llu, but %u tokens are known",
                      (unsigned long long)known_end, slot->n_known);
    return Q_OK;
}

/* ---- states ---- */

/* The row is written by this step; no other sequence of it may have it. */
static FALLIBLE mark_state(struct slots *s, uint64_t step, uint32_t row, struct q_err *e)
{
    if (row >= s->limits.n_state || s->state_steps[row] == step)
        return q_fail(e, Q_CORRUPT, "worker: step %llu: state %u is %s", (unsigned long long)step,
                      row, row >= s->limits.n_state ? "no row" : "written twice");
    s->state_steps[row] = step;
    return Q_OK;
}

/* A snapshot that a sequence begins with is written by no one. */
static FALLIBLE check_source(const struct slots *s, uint64_t step, const struct slot *slot,
                             struct q_err *e)
{
    const uint32_t from = slot->state_from;
    if (from == slot->state || from == STEP_STATE_ZERO ||
        (from < s->limits.n_state && s->state_steps[from] != step))
        return Q_OK;
    return q_fail(e, Q_CORRUPT, "worker: step %llu: state %u is read and written",
                  (unsigned long long)step, from);
}

static FALLIBLE check_states(struct slots *s, const struct step_view *v, struct q_err *e)
{
    const uint64_t step = v->head->step;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < v->head->n_seq && !rc; i++)
        rc = mark_state(s, step, s->slots[v->seqs[i].slot].state, e);
    for (uint32_t i = 0; i < v->head->n_snapshot && !rc; i++)
        rc = mark_state(s, step, v->snapshots[i].state, e);
    for (uint32_t i = 0; i < v->head->n_seq && !rc; i++)
        rc = check_source(s, step, &s->slots[v->seqs[i].slot], e);
    return rc;
}

FALLIBLE slots_apply(struct slots *s, const struct step_view *v, struct q_err *e)
{
    struct cursor c = {.v = v};
    s->n_fresh = 0;
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        if (apply_seq(s, &v->seqs[i], &c, e))
            return q_wrap(e, "step %llu, sequence %u", (unsigned long long)v->head->step, i);
    return s->limits.n_state ? check_states(s, v, e) : Q_OK;
}

/* Rows of a sequence up to each snapshot, and the rest. */
static void add_parts(struct slots *s, const struct step_view *v, uint32_t i_seq,
                      uint32_t *i_snapshot)
{
    const struct attention_seq *rows = &s->seqs[i_seq];
    const struct slot *slot = &s->slots[v->seqs[i_seq].slot];
    struct state_part part = {.row = rows->row, .state = slot->state, .from = slot->state_from};
    const uint32_t end = rows->row + rows->n_query;
    while (part.row < end) {
        const struct step_snapshot *next = &v->snapshots[*i_snapshot];
        const bool has_one = *i_snapshot < v->head->n_snapshot && next->seq == i_seq;
        part.n_row = (has_one ? rows->row + (next->position - rows->start) : end) - part.row;
        part.to = has_one ? next->state : KERN_STATE_NONE;
        *i_snapshot += has_one;
        s->state_parts[s->batch.n_state_part++] = part;
        part.row += part.n_row;
        part.from = part.state;
    }
}

FALLIBLE slots_batch(struct slots *s, const struct step_view *v, struct q_err *e)
{
    struct batch *b = &s->batch;
    uint32_t n_unused = 0; /* rows that were planned for draft tokens */
    b->n_token = b->n_seq = b->n_logit = b->context_max = b->n_state_part = 0;
    b->token_types = s->has_types ? s->token_types : NULL;
    s->n_top = 0;
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_seq *q = &v->seqs[i];
        uint32_t n = rows_of(s, q);
        if (n > s->limits.max_num_batched_tokens - b->n_token)
            return q_fail(e, Q_CORRUPT, "worker: step %llu has more than %u rows",
                          (unsigned long long)v->head->step, s->limits.max_num_batched_tokens);
        if (add_logits(s, q, e))
            return q_wrap(e, "step %llu, sequence %u", (unsigned long long)v->head->step, i);
        add_tokens(s, q);
        b->n_token += n;
        n_unused += q->n_token - n;
    }
    for (uint32_t i = 0, i_snapshot = 0; i < b->n_seq && s->limits.n_state; i++)
        add_parts(s, v, i, &i_snapshot);
    if (b->n_logit + n_unused != v->head->n_logit)
        return q_fail(e, Q_CORRUPT, "worker: step %llu has %u logits rows, its head has %u",
                      (unsigned long long)v->head->step, b->n_logit + n_unused, v->head->n_logit);
    return Q_OK;
}

struct sample_input slots_input(const struct logit_row *row, struct row_mask mask)
{
    const struct slot *slot = row->slot;
    Q_ASSERT(row->position >= 1 && row->position <= slot->n_known + slot->n_draft_token);
    return (struct sample_input){
        .params = &slot->params,
        .history = slot->history,
        .n_known = row->position,
        .n_prompt = slot->n_prompt,
        .allowed = slot->params.n_allowed ? slot->allowed : NULL,
        .grammar = mask.bits,
        .forced = mask.forced,
    };
}

void slots_reserve(struct slots *s, const struct logit_row *row)
{
    struct slot *slot = row->slot;
    Q_ASSERT(!row->is_prompt && !slot->n_draft_token && row->position == slot->n_known);
    if (slot->n_known < s->limits.max_model_len)
        slot->history[slot->n_known++] = 0;
}

void slots_fill(struct slots *s, const struct logit_row *row, uint32_t n_admitted, uint32_t token)
{
    Q_ASSERT(!row->is_prompt && n_admitted <= row->slot->n_admitted);
    if (row->slot->n_admitted == n_admitted && row->position < s->limits.max_model_len)
        row->slot->history[row->position] = token < s->vocab_size ? token : 0;
}

bool slots_take(struct slots *s, uint32_t i, uint32_t token)
{
    Q_ASSERT(i < s->batch.n_logit && !s->rows[i].is_prompt);
    struct slot *slot = s->rows[i].slot;
    if (!slot->is_predicted)
        return false;
    uint32_t draft_token = slot->n_draft_token ? slot->history[slot->n_known] : token;
    slot->is_predicted = slot->n_draft_token && draft_token == token;
    slot->n_draft_token -= slot->n_draft_token > 0;
    /* A full history stays as it is: the sequence ends there. */
    if (slot->n_known < s->limits.max_model_len)
        slot->history[slot->n_known++] = token < s->vocab_size ? token : 0;
    return true;
}
