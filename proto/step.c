/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a step and of a result in shared memory, and the checks of the reader.
 *
 *     step     head | seqs | admits | blocks | known | stop ids | bias ids | bias | lists | outs |
 *              ins | snapshots
 *     result   head | rows | top ids | top logprobs | notes      each part starts on 8 bytes
 *
 * The counts come first and determine all sizes, so writer and reader use the same function
 * (place). All sums are 64-bit sums of 32-bit counts and cannot overflow. */
#include "proto/step.h"
#include <string.h>
#include "common/thinking_budget.h"
#include "common/utf8.h"
#include "proto/items.h"
#include "proto/proto.h"

#define ALIGN 8u

struct place { /* assigns parts of memory[0..n) one after the other */
    char *memory;
    uint64_t at;
};

static void *part(struct place *p, uint64_t n_item, size_t size)
{
    char *start = p->memory ? p->memory + p->at : NULL;
    p->at += (n_item * size + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    return start;
}

/* memory NULL: sizes only. Returns the total number of bytes. */
static uint64_t place_step(struct step_view *v, void *memory, const struct step_head *h)
{
    struct place p = {memory, 0};
    v->head = part(&p, 1, sizeof *v->head);
    v->seqs = part(&p, h->n_seq, sizeof *v->seqs);
    v->admits = part(&p, h->n_admit, sizeof *v->admits);
    v->blocks = part(&p, h->n_block, sizeof *v->blocks);
    v->known = part(&p, h->n_known, sizeof *v->known);
    v->stop_ids = part(&p, h->n_stop_id, sizeof *v->stop_ids);
    v->bias_ids = part(&p, h->n_bias, sizeof *v->bias_ids);
    v->bias = part(&p, h->n_bias, sizeof *v->bias);
    v->lists = part(&p, h->n_list, sizeof *v->lists);
    v->outs = part(&p, h->n_out, sizeof *v->outs);
    v->ins = part(&p, h->n_in, sizeof *v->ins);
    v->snapshots = part(&p, h->n_snapshot, sizeof *v->snapshots);
    return p.at;
}

static uint64_t place_result(struct step_result *r, void *memory, uint32_t n_row, uint32_t n_top,
                             uint32_t n_note)
{
    struct place p = {memory, 0};
    r->head = part(&p, 1, sizeof *r->head);
    r->rows = part(&p, n_row, sizeof *r->rows);
    r->top_ids = part(&p, n_top, sizeof *r->top_ids);
    r->top_logprobs = part(&p, n_top, sizeof *r->top_logprobs);
    r->notes = part(&p, n_note, sizeof *r->notes);
    return p.at;
}

static uint64_t blocks_of(uint64_t n_token)
{
    return (n_token + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
}

uint64_t step_top_max(const struct step_limits *l)
{
    return (uint64_t)l->logit_rows_max * SAMPLE_LOGPROBS_FEW + l->top_more;
}

/* The maximum counts of the parts, as a head. False if one exceeds 32 bits. */
static bool counts_max(struct step_head *h, const struct step_limits *l)
{
    uint64_t n_seq = l->max_num_seqs;
    /* Maximum number of appended blocks: for the rows of this step, or in advance for the complete
     * history of an admitted sequence. */
    uint64_t n_block = n_seq * blocks_of(l->max_model_len);
    uint64_t n_stop_id = n_seq * STEP_STOP_IDS_MAX, n_bias = n_seq * SAMPLE_BIAS_MAX;
    if (n_seq > STEP_SEQS_MAX || n_block > UINT32_MAX || n_stop_id > UINT32_MAX ||
        n_bias > UINT32_MAX || step_top_max(l) > UINT32_MAX)
        return false;
    *h = (struct step_head){
        .n_seq = (uint32_t)n_seq,
        .n_admit = (uint32_t)n_seq,
        .n_block = (uint32_t)n_block,
        .n_known = l->known_max,
        .n_stop_id = (uint32_t)n_stop_id,
        .n_bias = (uint32_t)n_bias,
        .n_list = STEP_LISTS_MAX,
        .n_token = l->max_num_batched_tokens,
        .n_logit = l->logit_rows_max,
        .n_out = l->copies_max,
        .n_in = l->copies_max,
        .n_snapshot = l->n_state ? (uint32_t)n_seq * STEP_SEQ_SNAPSHOTS : 0,
    };
    return true;
}

enum q_code step_bytes_max(size_t *step_bytes, size_t *result_bytes, const struct step_limits *l,
                           struct q_err *e)
{
    struct step_head max;
    struct step_view v;
    struct step_result r;
    if (!counts_max(&max, l))
        return q_fail(e, Q_TOO_LARGE,
                      "step: limits too large: max_num_seqs %u (at most %u), max_model_len %u, "
                      "logit_rows_max %u",
                      l->max_num_seqs, STEP_SEQS_MAX, l->max_model_len, l->logit_rows_max);
    *step_bytes = (size_t)place_step(&v, NULL, &max);
    *result_bytes = (size_t)place_result(&r, NULL, l->logit_rows_max, (uint32_t)step_top_max(l),
                                         l->max_num_seqs);
    return Q_OK;
}

size_t step_size(const struct step_head *counts)
{
    struct step_view sizes;
    return (size_t)place_step(&sizes, NULL, counts);
}

enum q_code step_layout(struct step_view *v, void *memory, size_t n, const struct step_head *counts,
                        struct q_err *e)
{
    struct step_view sizes;
    uint64_t need = place_step(&sizes, NULL, counts);
    if (need > n)
        return q_fail(e, Q_TOO_LARGE, "step: %llu bytes needed, %zu available",
                      (unsigned long long)need, n);
    struct step_head head = *counts; /* counts may lie in memory */
    place_step(v, memory, &head);
    *v->head = head;
    return Q_OK;
}

static enum q_code corrupt(const char *what, uint64_t found, uint64_t limit, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "step: %s is %llu, expected at most %llu", what,
                  (unsigned long long)found, (unsigned long long)limit);
}

static enum q_code check_counts(const struct step_head *h, const struct step_limits *l,
                                struct q_err *e)
{
    struct step_head max;
    if (!counts_max(&max, l))
        return q_fail(e, Q_CORRUPT, "step: limits too large");
    const struct {
        const char *what;
        uint32_t found, limit;
    } counts[] = {
        {"n_seq", h->n_seq, max.n_seq},
        {"n_admit", h->n_admit, h->n_seq},
        {"n_block", h->n_block, max.n_block},
        {"n_known", h->n_known, max.n_known},
        {"n_stop_id", h->n_stop_id, max.n_stop_id},
        {"n_bias", h->n_bias, max.n_bias},
        {"n_list", h->n_list, max.n_list},
        {"n_token", h->n_token, max.n_token},
        {"n_logit", h->n_logit, max.n_logit},
        {"n_out", h->n_out, max.n_out},
        {"n_in", h->n_in, max.n_in},
        {"n_snapshot", h->n_snapshot, max.n_snapshot},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].found > counts[i].limit)
            return corrupt(counts[i].what, counts[i].found, counts[i].limit, e);
    return Q_OK;
}

/* Check one seq by itself. */
static enum q_code check_seq(const struct step_seq *q, const struct step_limits *l, struct q_err *e)
{
    const uint32_t known_flags = STEP_SAMPLE | STEP_ADMIT | STEP_PROMPT_LOGPROBS | STEP_SPECULATE;
    uint64_t end = (uint64_t)q->start + q->n_token;
    if (q->slot >= l->max_num_seqs)
        return corrupt("a slot", q->slot, l->max_num_seqs - 1, e);
    if (q->flags & ~known_flags)
        return corrupt("a seq's flags", q->flags, known_flags, e);
    if (q->n_token == 0)
        return q_fail(e, Q_CORRUPT, "step: slot %u has no rows", q->slot);
    if (end > l->max_model_len)
        return corrupt("the end of a seq", end, l->max_model_len, e);
    if (q->flags & STEP_SAMPLE && end == l->max_model_len)
        return q_fail(e, Q_CORRUPT, "step: slot %u samples beyond max_model_len %u", q->slot,
                      l->max_model_len);
    if (q->flags & STEP_SPECULATE && (q->flags & ~STEP_SPECULATE) != STEP_SAMPLE)
        return q_fail(e, Q_CORRUPT, "step: slot %u has draft tokens with flags %u", q->slot,
                      q->flags);
    if (q->n_new_block > blocks_of(l->max_model_len))
        return corrupt("a seq's n_new_block", q->n_new_block, blocks_of(l->max_model_len), e);
    return Q_OK;
}

uint32_t step_seq_logits(const struct step_seq *q)
{
    if (q->flags & (STEP_PROMPT_LOGPROBS | STEP_SPECULATE))
        return q->n_token;
    return (q->flags & STEP_SAMPLE) != 0;
}

/* A slot may occur once: the worker keeps one range of rows per slot. */
static bool mark_slot(uint64_t *seen, uint32_t slot)
{
    uint64_t bit = UINT64_C(1) << (slot % 64);
    bool fresh = !(seen[slot / 64] & bit);
    seen[slot / 64] |= bit;
    return fresh;
}

struct sums {
    uint64_t n_admit, n_block, n_known, n_stop_id, n_bias, n_list, n_token, n_logit;
};

static enum q_code check_seqs(const struct step_view *v, const struct step_limits *l,
                              struct sums *sums, struct q_err *e)
{
    uint64_t seen[STEP_SEQS_MAX / 64];
    memset(seen, 0, (l->max_num_seqs + 63) / 64 * sizeof *seen);
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_seq *q = &v->seqs[i];
        enum q_code rc = check_seq(q, l, e);
        if (rc)
            return rc;
        if (!mark_slot(seen, q->slot))
            return q_fail(e, Q_CORRUPT, "step: slot %u appears twice", q->slot);
        sums->n_admit += (q->flags & STEP_ADMIT) != 0;
        sums->n_block += q->n_new_block;
        sums->n_token += q->n_token;
        sums->n_logit += step_seq_logits(q);
    }
    return Q_OK;
}

static enum q_code check_state(const struct step_admit *a, const struct step_limits *l,
                               struct q_err *e)
{
    if (l->n_state == 0)
        return Q_OK;
    if (a->state >= l->n_state)
        return corrupt("an admit's state", a->state, l->n_state - 1, e);
    if (a->state_from >= l->n_state && a->state_from != STEP_STATE_ZERO)
        return corrupt("an admit's state_from", a->state_from, l->n_state - 1, e);
    return Q_OK;
}

/* Within the rows of their seqs, in order. */
static enum q_code check_snapshots(const struct step_view *v, const struct step_limits *l,
                                   struct q_err *e)
{
    uint32_t n_of_seq = 0;
    for (uint32_t i = 0; i < v->head->n_snapshot; i++) {
        const struct step_snapshot *s = &v->snapshots[i], *before = i ? s - 1 : NULL;
        if (s->seq >= v->head->n_seq)
            return corrupt("a snapshot's seq", s->seq, v->head->n_seq - 1, e);
        const struct step_seq *q = &v->seqs[s->seq];
        n_of_seq = before && before->seq == s->seq ? n_of_seq + 1 : 1;
        if (n_of_seq > STEP_SEQ_SNAPSHOTS)
            return corrupt("a seq's snapshots", n_of_seq, STEP_SEQ_SNAPSHOTS, e);
        if (before &&
            (before->seq > s->seq || (before->seq == s->seq && before->position >= s->position)))
            return q_fail(e, Q_CORRUPT, "step: snapshot %u is not in order", i);
        if (s->position <= q->start || s->position > q->start + q->n_token)
            return q_fail(e, Q_CORRUPT, "step: snapshot %u at %u is not of rows %u to %u", i,
                          s->position, q->start, q->start + q->n_token);
        if (s->state >= l->n_state)
            return corrupt("a snapshot's state", s->state, l->n_state - 1, e);
    }
    return Q_OK;
}

/* Is the table in the store? What it says is checked by its reader (step_items_check). */
static enum q_code check_table(const struct step_admit *a, const struct step_limits *l,
                               struct q_err *e)
{
    const uint64_t store = step_store_bytes(l), n_byte = a->n_item * sizeof(struct step_item);
    if (a->n_item > a->n_prompt)
        return corrupt("an admit's n_item", a->n_item, a->n_prompt, e);
    if (a->n_item && (a->item_offset % ALIGN || a->item_offset > store))
        return corrupt("an admit's item_offset", a->item_offset, store, e);
    if (a->n_item && n_byte > store - a->item_offset)
        return corrupt("the end of an admit's items", a->item_offset + n_byte, store, e);
    return Q_OK;
}

static enum q_code check_admits(const struct step_view *v, const struct step_limits *l,
                                struct sums *sums, struct q_err *e)
{
    uint32_t i_seq = 0;
    for (uint32_t i = 0; i < v->head->n_admit; i++, i_seq++) {
        while (i_seq < v->head->n_seq && !(v->seqs[i_seq].flags & STEP_ADMIT))
            i_seq++;
        if (i_seq == v->head->n_seq)
            return q_fail(e, Q_CORRUPT, "step: admit %u does not belong to a seq", i);
        const struct step_admit *a = &v->admits[i];
        const struct step_seq *q = &v->seqs[i_seq];
        if (a->n_known > l->max_model_len)
            return corrupt("an admit's n_known", a->n_known, l->max_model_len, e);
        if (a->n_prompt < 1 || a->n_prompt > a->n_known)
            return corrupt("an admit's n_prompt", a->n_prompt, a->n_known, e);
        if (q->start + q->n_token > a->n_known)
            return corrupt("an admitted seq's end", q->start + q->n_token, a->n_known, e);
        if (a->n_cached > a->n_known)
            return corrupt("an admit's n_cached", a->n_cached, a->n_known, e);
        if (a->n_restored > a->n_known)
            return corrupt("an admit's n_restored", a->n_restored, a->n_known, e);
        uint32_t n_there = a->n_restored > a->n_cached ? a->n_restored : a->n_cached;
        if (q->start > n_there)
            return corrupt("an admitted seq's start", q->start, n_there, e);
        if (a->n_stop_id > STEP_STOP_IDS_MAX)
            return corrupt("an admit's n_stop_id", a->n_stop_id, STEP_STOP_IDS_MAX, e);
        if (a->n_bias > SAMPLE_BIAS_MAX)
            return corrupt("an admit's n_bias", a->n_bias, SAMPLE_BIAS_MAX, e);
        if (a->n_allowed > SAMPLE_ALLOWED_MAX)
            return corrupt("an admit's n_allowed", a->n_allowed, SAMPLE_ALLOWED_MAX, e);
        if (a->n_bad > SAMPLE_BAD_MAX)
            return corrupt("an admit's n_bad", a->n_bad, SAMPLE_BAD_MAX, e);
        if (a->n_grammar > STEP_GRAMMAR_MAX)
            return corrupt("an admit's n_grammar", a->n_grammar, STEP_GRAMMAR_MAX, e);
        if (a->n_thinking > THINKING_BUDGET_WORDS_MAX)
            return corrupt("an admit's n_thinking", a->n_thinking, THINKING_BUDGET_WORDS_MAX, e);
        enum q_code rc = check_table(a, l, e);
        if (rc || (rc = check_state(a, l, e)))
            return rc;
        sums->n_known += a->n_known;
        sums->n_stop_id += a->n_stop_id;
        sums->n_bias += a->n_bias;
        sums->n_list += step_admit_lists(a);
    }
    return Q_OK;
}

uint64_t step_admit_lists(const struct step_admit *a)
{
    return (uint64_t)a->n_allowed + a->n_bad + a->n_grammar + a->n_thinking;
}

static enum q_code check_sums(const struct step_head *h, const struct sums *sums, struct q_err *e)
{
    const struct {
        const char *what;
        uint64_t head, sum;
    } pairs[] = {
        {"n_admit", h->n_admit, sums->n_admit}, {"n_block", h->n_block, sums->n_block},
        {"n_known", h->n_known, sums->n_known}, {"n_stop_id", h->n_stop_id, sums->n_stop_id},
        {"n_bias", h->n_bias, sums->n_bias},    {"n_list", h->n_list, sums->n_list},
        {"n_token", h->n_token, sums->n_token}, {"n_logit", h->n_logit, sums->n_logit},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].head != pairs[i].sum)
            return q_fail(e, Q_CORRUPT, "step: %s is %llu, the sum over the seqs is %llu",
                          pairs[i].what, (unsigned long long)pairs[i].head,
                          (unsigned long long)pairs[i].sum);
    return Q_OK;
}

static bool aligned(const void *memory)
{
    return (uintptr_t)memory % ALIGN == 0;
}

enum q_code step_view(struct step_view *v, void *memory, size_t n, const struct step_limits *l,
                      struct q_err *e)
{
    struct step_view sizes, found;
    struct sums sums = {0};
    enum q_code rc;
    if (n < sizeof(struct step_head) || !aligned(memory))
        return q_fail(e, Q_CORRUPT, "step: %zu bytes at %p do not contain a head", n, memory);
    struct step_head head = *(struct step_head *)memory;
    if ((rc = check_counts(&head, l, e)))
        return rc;
    uint64_t need = place_step(&sizes, NULL, &head);
    if (need > n)
        return corrupt("its size", need, n, e);
    place_step(&found, memory, &head);
    if ((rc = check_seqs(&found, l, &sums, e)))
        return rc;
    if (head.n_admit != sums.n_admit)
        return q_fail(e, Q_CORRUPT, "step: n_admit is %u, but the flags indicate %llu",
                      head.n_admit, (unsigned long long)sums.n_admit);
    if ((rc = check_admits(&found, l, &sums, e)) || (rc = check_sums(&head, &sums, e)) ||
        (rc = check_snapshots(&found, l, e)))
        return rc;
    *v = found;
    return Q_OK;
}

enum q_code step_result_layout(struct step_result *r, void *memory, size_t n, uint32_t n_row,
                               uint32_t n_top, struct q_err *e)
{
    struct step_result sizes;
    uint64_t need = place_result(&sizes, NULL, n_row, n_top, 0);
    if (need > n)
        return q_fail(e, Q_TOO_LARGE, "step result: %llu bytes needed, %zu available",
                      (unsigned long long)need, n);
    place_result(r, memory, n_row, n_top, 0);
    *r->head = (struct step_result_head){.n_row = n_row, .n_top = n_top, .gap_us = STEP_NO_GAP};
    return Q_OK;
}

/* Control characters become spaces, a character that does not fit is left out whole. */
void step_note_set(struct step_note *note, uint32_t slot, uint32_t position, const char *text)
{
    size_t n = 0, step;
    note->slot = slot;
    note->position = position;
    for (const size_t n_text = strlen(text); n < n_text; n += step) {
        uint32_t cp;
        step = utf8_decode(text + n, n_text - n, &cp);
        if (n + step >= sizeof note->text)
            break;
        memcpy(note->text + n, text + n, step);
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == UTF8_REPLACEMENT)
            memset(note->text + n, ' ', step);
    }
    note->text[n] = '\0';
}

FALLIBLE step_result_note(struct step_result *r, size_t n, const struct step_note *note,
                          struct q_err *e)
{
    struct step_result sizes;
    const struct step_result_head *h = r->head;
    const uint64_t need = place_result(&sizes, NULL, h->n_row, h->n_top, h->n_note + 1);
    if (need > n)
        return q_fail(e, Q_TOO_LARGE, "step result: %llu bytes needed for a note, %zu available",
                      (unsigned long long)need, n);
    r->notes[r->head->n_note++] = *note;
    return Q_OK;
}

static enum q_code check_notes(const struct step_result *r, const struct step_limits *l,
                               struct q_err *e)
{
    uint64_t seen[STEP_SEQS_MAX / 64];
    memset(seen, 0, (l->max_num_seqs + 63) / 64 * sizeof *seen);
    for (uint32_t i = 0; i < r->head->n_note; i++) {
        const struct step_note *note = &r->notes[i];
        if (note->slot >= l->max_num_seqs)
            return corrupt("a note's slot", note->slot, l->max_num_seqs - 1, e);
        if (!mark_slot(seen, note->slot))
            return q_fail(e, Q_CORRUPT, "step: slot %u has two notes", note->slot);
        if (!memchr(note->text, '\0', sizeof note->text))
            return q_fail(e, Q_CORRUPT, "step: the note of slot %u has no end", note->slot);
    }
    return Q_OK;
}

enum q_code step_result_view(struct step_result *r, void *memory, size_t n,
                             const struct step_limits *l, struct q_err *e)
{
    struct step_result sizes, found;
    if (n < sizeof(struct step_result_head) || !aligned(memory))
        return q_fail(e, Q_CORRUPT, "step result: %zu bytes at %p do not contain a head", n,
                      memory);
    const struct step_result_head head = *(const struct step_result_head *)memory;
    if (head.error >= Q_CODE_COUNT)
        return corrupt("a result's error", head.error, Q_CODE_COUNT - 1, e);
    if (head.n_row > l->logit_rows_max)
        return corrupt("a result's n_row", head.n_row, l->logit_rows_max, e);
    if (head.n_top > step_top_max(l))
        return corrupt("a result's n_top", head.n_top, step_top_max(l), e);
    if (head.n_note > l->max_num_seqs)
        return corrupt("a result's n_note", head.n_note, l->max_num_seqs, e);
    uint64_t need = place_result(&sizes, NULL, head.n_row, head.n_top, head.n_note);
    if (need > n)
        return corrupt("a result's size", need, n, e);
    place_result(&found, memory, head.n_row, head.n_top, head.n_note);
    for (uint32_t i = 0; i < head.n_row; i++) {
        const struct step_row *row = &found.rows[i];
        if (row->slot >= l->max_num_seqs)
            return corrupt("a row's slot", row->slot, l->max_num_seqs - 1, e);
        if (row->position >= l->max_model_len)
            return corrupt("a row's position", row->position, l->max_model_len - 1, e);
        if (row->n_top > SAMPLE_LOGPROBS_MAX)
            return corrupt("a row's n_top", row->n_top, SAMPLE_LOGPROBS_MAX, e);
        if ((uint64_t)row->top_start + row->n_top > head.n_top)
            return corrupt("the end of a row's alternatives", (uint64_t)row->top_start + row->n_top,
                           head.n_top, e);
    }
    enum q_code rc = check_notes(&found, l, e);
    if (!rc)
        *r = found;
    return rc;
}
