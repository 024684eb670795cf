/* SPDX-License-Identifier: Apache-2.0 */
/* What a file refers to and does not contain, computed from tokens that it does contain.
 *
 * A running sequence: its history is in the file (SLOT); its rows before the first one that a step
 * computes are computed again, into its own blocks. A cached block: an admission says which
 * positions have KV already, and has the tokens of them; they are computed into the same blocks,
 * by a sequence in the admission's slot, which the recorded step replaces. A block in swap space:
 * the same into blocks behind those of the record, from which it is copied to swap space. A state,
 * a snapshot or that of a preempted sequence, is the one in front of the first row of the admission
 * that begins with it: the rows before are computed into it, with blocks behind those of the
 * record. */
#include <string.h>
#include "common/mem.h"
#include "engine/replay/replay.h"

struct fill {                  /* rows to compute */
    const struct step_view *v; /* admits the sequence */
    uint32_t i_seq, i_admit;
    uint32_t known, stop_id, bias, list; /* its places in the arrays of v */
    const uint32_t *blocks;              /* [n_block] of its rows, or of all the sequence */
    uint32_t n_block, n_row;
    const struct record_table *table; /* all items of its prompt; NULL: none */
    uint32_t state;                   /* the row of states that it has meanwhile */
    bool with_lists;                  /* it goes on afterwards: with its stop ids, bias and lists */
    struct step_copy *outs;           /* [n_out] to swap space, at the end */
    uint32_t n_out;
};

FALLIBLE replay_fill_init(struct replay *r, struct q_err *e)
{
    const struct record_head *h = &r->file.head;
    r->waiting = q_calloc(h->limits.max_num_seqs, sizeof *r->waiting);
    r->blocks = q_calloc(h->n_block / 64 + 1, sizeof *r->blocks);
    r->hosts = q_calloc(h->n_swap_block / 64 + 1, sizeof *r->hosts);
    r->states = q_calloc(h->limits.n_state / 64 + 1, sizeof *r->states);
    if (!r->waiting || !r->blocks || !r->hosts || !r->states)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u blocks", h->n_block);
    return Q_OK;
}

void replay_fill_release(struct replay *r)
{
    q_free(r->waiting);
    q_free(r->blocks);
    q_free(r->hosts);
    q_free(r->states);
}

void replay_fill_forget(struct replay *r)
{
    const struct record_head *h = &r->file.head;
    memset(r->waiting, 0, h->limits.max_num_seqs * sizeof *r->waiting);
    memset(r->blocks, 0, (h->n_block / 64 + 1) * sizeof *r->blocks);
    memset(r->hosts, 0, (h->n_swap_block / 64 + 1) * sizeof *r->hosts);
    memset(r->states, 0, (h->limits.n_state / 64 + 1) * sizeof *r->states);
}

void replay_fill_add(struct replay *r, const struct step_view *v)
{
    r->waiting[v->seqs[0].slot] = *v;
    r->items.waiting[v->seqs[0].slot] = r->items.next[0];
    replay_items_drop(r);
}

static bool has(const uint64_t *bits, uint32_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static void mark(uint64_t *bits, uint32_t i)
{
    bits[i / 64] |= UINT64_C(1) << (i % 64);
}

static void unmark(uint64_t *bits, uint32_t i)
{
    bits[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

static uint32_t blocks_of(uint32_t n_token)
{
    return n_token / STEP_BLOCK_TOKENS + (n_token % STEP_BLOCK_TOKENS != 0);
}

/* The admission of the recorded step, from its first token on. */
static void fill_admit(struct step_view *v, const struct fill *f)
{
    struct step_admit *a = v->admits;
    *a = f->v->admits[f->i_admit];
    a->n_cached = a->n_restored = 0;
    a->n_item = f->table ? f->table->head.n_item : 0;
    a->item_offset = f->table ? f->table->head.offset : 0;
    a->state = f->state;
    a->state_from = STEP_STATE_ZERO;
    if (!f->with_lists)
        a->n_stop_id = a->n_bias = a->n_allowed = a->n_bad = a->n_grammar = a->n_thinking = 0;
    memcpy(v->blocks, f->blocks, v->head->n_block * sizeof *v->blocks);
    memcpy(v->known, f->v->known + f->known, v->head->n_known * sizeof *v->known);
}

/* Rows start … start + n - 1; the first step admits the sequence. */
static FALLIBLE fill_rows(struct replay *r, const struct fill *f, uint32_t start, uint32_t n,
                          struct q_err *e)
{
    const bool first = start == 0, last = start + n == f->n_row;
    const struct step_admit *a = &f->v->admits[f->i_admit];
    const uint32_t n_list = (uint32_t)step_admit_lists(a);
    struct step_view v;
    struct step_result ignored;
    const struct step_head head = {
        .n_seq = 1,
        .n_admit = first,
        .n_block = first ? f->n_block : 0,
        .n_known = first ? a->n_known : 0,
        .n_stop_id = first && f->with_lists ? a->n_stop_id : 0,
        .n_bias = first && f->with_lists ? a->n_bias : 0,
        .n_list = first && f->with_lists ? n_list : 0,
        .n_token = n,
        .n_out = last ? f->n_out : 0,
    };
    const size_t size = step_size(&head);
    void *memory = q_calloc(1, size);
    if (!memory)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a step");
    enum q_code rc = step_layout(&v, memory, size, &head, e);
    if (rc)
        goto out;
    v.seqs[0] = (struct step_seq){
        .slot = f->v->seqs[f->i_seq].slot,
        .flags = first ? STEP_ADMIT : 0,
        .start = start,
        .n_token = n,
        .n_new_block = head.n_block,
    };
    if (first)
        fill_admit(&v, f);
    memcpy(v.stop_ids, f->v->stop_ids + f->stop_id, head.n_stop_id * sizeof *v.stop_ids);
    memcpy(v.bias_ids, f->v->bias_ids + f->bias, head.n_bias * sizeof *v.bias_ids);
    memcpy(v.bias, f->v->bias + f->bias, head.n_bias * sizeof *v.bias);
    memcpy(v.lists, f->v->lists + f->list, head.n_list * sizeof *v.lists);
    if (f->outs && head.n_out)
        memcpy(v.outs, f->outs, head.n_out * sizeof *v.outs);
    rc = replay_compute(r, &v, &ignored, e);
    r->n_filled += n;
out:
    q_free(memory);
    return rc;
}

static FALLIBLE fill(struct replay *r, const struct fill *f, struct q_err *e)
{
    const uint32_t most = r->info.limits.max_num_batched_tokens, n = f->n_row;
    struct fill rows = *f;
    enum q_code rc = Q_OK;
    rows.n_out = 0;
    for (uint32_t at = 0; at < n && !rc; at += most)
        rc = fill_rows(r, &rows, at, n - at < most ? n - at : most, e);
    if (!rc && f->n_out) /* copies come before the rows of their step: one row again */
        rc = fill_rows(r, f, n - 1, 1, e);
    return rc;
}

/* ---- running sequences ---- */

/* The first n_row rows of a sequence that waits. Its other blocks get their rows by recorded steps,
 * before anything reads them; but where a state is behind the blocks that were shared, their rows
 * come first, because they may be read when the sequence is gone. */
static FALLIBLE fill_waiting(struct replay *r, struct step_view *w, uint32_t n_row, struct q_err *e)
{
    const uint32_t n_cached = w->admits[0].n_cached;
    struct fill f = {
        .v = w,
        .blocks = w->blocks,
        .n_block = w->head->n_block,
        .n_row = n_cached,
        .table = replay_items_of(r->items.waiting, w->seqs[0].slot),
        .state = w->admits[0].state,
        .with_lists = true,
    };
    enum q_code rc = Q_OK;
    if (f.table)
        replay_items_place(r, w->seqs[0].slot, f.table);
    if (n_cached > n_row && blocks_of(n_cached) <= f.n_block)
        rc = fill(r, &f, e);
    f.n_row = n_row;
    if (!rc)
        rc = fill(r, &f, e);
    for (uint32_t i = 0; i < f.n_block && !rc; i++)
        mark(r->blocks, w->blocks[i]);
    w->head = NULL;
    return rc;
}

static FALLIBLE fill_running(struct replay *r, const struct step_seq *q, struct q_err *e)
{
    struct step_view *w = &r->waiting[q->slot];
    if (q->flags & STEP_ADMIT)
        w->head = NULL;
    if (!w->head)
        return Q_OK;
    if (q->start == 0 || q->start > w->admits[0].n_known || blocks_of(q->start) > w->head->n_block)
        return q_fail(e, Q_CORRUPT, "slot %u: row %u does not follow the sequence that was running",
                      q->slot, q->start);
    const uint32_t state = w->admits[0].state;
    const enum q_code rc = fill_waiting(r, w, q->start, e);
    if (!rc && r->info.limits.n_state)
        mark(r->states, state);
    return rc;
}

static bool has_block(const struct step_view *w, uint32_t block)
{
    for (uint32_t i = 0; w->head && i < w->head->n_block; i++)
        if (w->blocks[i] == block)
            return true;
    return false;
}

/* One that is preempted before a step has it: its blocks are copied to swap space. Of several
 * that had the block, the last one computed has it still. Its state is not known: there may be one
 * row more than were computed. */
static FALLIBLE fill_preempted(struct replay *r, uint32_t block, struct q_err *e)
{
    struct step_view *owner = NULL;
    for (uint32_t i = 0; i < r->file.head.limits.max_num_seqs; i++)
        if (has_block(&r->waiting[i], block) &&
            (!owner || r->waiting[i].head->step > owner->head->step))
            owner = &r->waiting[i];
    if (!owner || !owner->head)
        return Q_OK;
    const uint32_t n_known = owner->admits[0].n_known,
                   n_room = owner->head->n_block * STEP_BLOCK_TOKENS;
    return fill_waiting(r, owner, n_known < n_room ? n_known : n_room, e);
}

/* ---- cached and swapped blocks ---- */

/* Is a block that the admission shares not known? */
static bool lacks_cached(const struct replay *r, const struct fill *f)
{
    const struct step_admit *a = &f->v->admits[f->i_admit];
    for (uint32_t i = 0; i < blocks_of(a->n_cached) && i < f->n_block; i++)
        if (!has(r->blocks, f->blocks[i]))
            return true;
    return false;
}

/* It had a row of states meanwhile. */
static void forget_state(struct replay *r, const struct fill *f)
{
    if (r->info.limits.n_state)
        unmark(r->states, f->state);
}

static FALLIBLE fill_cached(struct replay *r, const struct fill *all, struct q_err *e)
{
    struct fill f = *all;
    f.n_row = f.v->admits[f.i_admit].n_cached;
    f.n_block = blocks_of(f.n_row);
    if (!f.n_row || f.n_block > all->n_block || !lacks_cached(r, all))
        return Q_OK;
    const enum q_code rc = fill(r, &f, e);
    for (uint32_t i = 0; i < f.n_block && !rc; i++)
        mark(r->blocks, f.blocks[i]);
    forget_state(r, &f);
    return rc;
}

/* Copies from swap space into the blocks of this admission whose contents are not known. */
static uint32_t unknown_copies(const struct replay *r, const struct fill *f, struct step_copy *out,
                               uint32_t *end)
{
    uint32_t n = 0;
    *end = 0;
    for (uint32_t k = 0; k < f->v->head->n_in; k++)
        for (uint32_t i = 0; i < f->n_block && i < r->n_scratch; i++)
            if (f->blocks[i] == f->v->ins[k].block && !has(r->hosts, f->v->ins[k].host)) {
                out[n++] = (struct step_copy){r->file.head.n_block + i, f->v->ins[k].host};
                *end = i + 1 > *end ? i + 1 : *end;
            }
    return n;
}

/* The numbers of all blocks behind those of the record. NULL, with `e` set: out of memory. */
static uint32_t *make_scratch(const struct replay *r, struct q_err *e)
{
    uint32_t *scratch = q_calloc(r->n_scratch + 1, sizeof *scratch);
    for (uint32_t i = 0; scratch && i < r->n_scratch; i++)
        scratch[i] = r->file.head.n_block + i;
    if (!scratch)
        q_fail(e, Q_NO_MEMORY, "out of memory for %u blocks", r->n_scratch);
    return scratch;
}

static FALLIBLE fill_swapped(struct replay *r, const struct fill *all, struct q_err *e)
{
    struct fill f = *all;
    const uint32_t n_known = f.v->admits[f.i_admit].n_known;
    uint32_t end;
    enum q_code rc = Q_OK;
    if (!f.v->head->n_in || !r->n_scratch)
        return Q_OK;
    struct step_copy *outs = q_calloc(f.v->head->n_in, sizeof *outs);
    uint32_t *scratch = make_scratch(r, e);
    if (!outs || !scratch) {
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for %u copies", f.v->head->n_in);
        goto out;
    }
    f.n_out = unknown_copies(r, all, outs, &end);
    if (!f.n_out)
        goto out;
    f.outs = outs;
    f.blocks = scratch;
    f.n_block = end;
    f.n_row = end * STEP_BLOCK_TOKENS < n_known ? end * STEP_BLOCK_TOKENS : n_known;
    rc = fill(r, &f, e);
    for (uint32_t i = 0; i < f.n_out && !rc; i++)
        mark(r->hosts, outs[i].host);
    forget_state(r, &f);
out:
    q_free(outs);
    q_free(scratch);
    return rc;
}

/* ---- states ---- */

static FALLIBLE fill_state(struct replay *r, const struct fill *all, struct q_err *e)
{
    struct fill f = *all;
    f.state = f.v->admits[f.i_admit].state_from;
    f.n_row = f.v->seqs[f.i_seq].start;
    if (!r->info.limits.n_state || f.state == STEP_STATE_ZERO || has(r->states, f.state) ||
        !f.n_row)
        return Q_OK;
    uint32_t *scratch = make_scratch(r, e);
    if (!scratch)
        return e->code;
    f.blocks = scratch;
    f.n_block = blocks_of(f.n_row);
    const enum q_code rc = fill(r, &f, e);
    if (!rc)
        mark(r->states, f.state);
    q_free(scratch);
    return rc;
}

/* ---- a step ---- */

static FALLIBLE check_blocks(const struct replay *r, const struct step_view *v, struct q_err *e)
{
    const struct record_head *h = &r->file.head;
    for (uint32_t i = 0; i < v->head->n_block; i++)
        if (v->blocks[i] >= h->n_block)
            return q_fail(e, Q_CORRUPT, "block %u of %u", v->blocks[i], h->n_block);
    for (uint32_t k = 0; k < v->head->n_out + v->head->n_in; k++) {
        const struct step_copy *c = k < v->head->n_out ? &v->outs[k] : &v->ins[k - v->head->n_out];
        if (c->block >= h->n_block || c->host >= h->n_swap_block)
            return q_fail(e, Q_CORRUPT, "a copy of block %u of %u and %u of %u", c->block,
                          h->n_block, c->host, h->n_swap_block);
    }
    return Q_OK;
}

/* Every block that a sequence gets is known after the step, and every state. */
static void note_step(struct replay *r, const struct step_view *v)
{
    for (uint32_t i = 0; i < v->head->n_block; i++)
        mark(r->blocks, v->blocks[i]);
    for (uint32_t i = 0; r->info.limits.n_state && i < v->head->n_admit; i++)
        mark(r->states, v->admits[i].state);
    for (uint32_t i = 0; i < v->head->n_snapshot; i++)
        mark(r->states, v->snapshots[i].state);
}

/* What a sequence begins with and the worker does not have. The state comes last, because the
 * others use its row. */
static FALLIBLE fill_admission(struct replay *r, struct fill *f, struct q_err *e)
{
    enum q_code rc;
    f->table = replay_items_of(r->items.next, f->i_admit);
    f->state = f->v->admits[f->i_admit].state;
    if ((rc = fill_cached(r, f, e)) || (rc = fill_swapped(r, f, e)))
        return rc;
    return fill_state(r, f, e);
}

FALLIBLE replay_fill(struct replay *r, const struct step_view *v, struct q_err *e)
{
    struct fill f = {.v = v, .blocks = v->blocks};
    enum q_code rc = check_blocks(r, v, e);
    for (uint32_t k = 0; k < v->head->n_out && !rc; k++)
        if (!has(r->blocks, v->outs[k].block))
            rc = fill_preempted(r, v->outs[k].block, e);
    for (uint32_t k = 0; k < v->head->n_out && !rc; k++)
        mark(r->hosts, v->outs[k].host); /* copies out come before those in */
    if (!rc) /* behind those of preempted sequences, which may be admitted again at once */
        rc = replay_items_begin(r, v, e);
    for (uint32_t i = 0; i < v->head->n_seq && !rc; i++) {
        const struct step_seq *q = &v->seqs[i];
        f.i_seq = i;
        f.n_block = q->n_new_block;
        if ((rc = fill_running(r, q, e)))
            break;
        if (q->flags & STEP_ADMIT) {
            if (r->file.head.continues)
                rc = fill_admission(r, &f, e);
            f.known += v->admits[f.i_admit++].n_known;
        }
        f.blocks += q->n_new_block;
    }
    if (!rc && !(rc = replay_items_check(r, v, e)))
        note_step(r, v);
    replay_items_drop(r);
    return rc;
}
