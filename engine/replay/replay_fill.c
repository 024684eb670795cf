/* SPDX-License-Identifier: Apache-2.0 */
/* What a file refers to and does not contain, computed from tokens that it does contain.
 *
 * A running sequence: its history is in the file (SLOT); its rows before the first one that a step
 * computes are computed again, into its own blocks. A cached block: an admission says which
 * positions have KV already, and has the tokens of them; they are computed into the same blocks,
 * by a sequence in the admission's slot, which the recorded step replaces. A block in swap space:
 * the same into blocks behind those of the record, from which it is copied to swap space. */
#include <string.h>
#include "common/mem.h"
#include "engine/replay/replay.h"

struct fill {                  /* rows to compute */
    const struct step_view *v; /* admits the sequence */
    uint32_t i_seq, i_admit;
    uint32_t known, stop_id, bias, list; /* its places in the arrays of v */
    const uint32_t *blocks;              /* [n_block] of its rows, or of all the sequence */
    uint32_t n_block, n_row;
    bool with_lists;        /* it goes on afterwards: with its stop ids, bias and lists */
    struct step_copy *outs; /* [n_out] to swap space, at the end */
    uint32_t n_out;
};

FALLIBLE replay_fill_init(struct replay *r, struct q_err *e)
{
    const struct record_head *h = &r->file.head;
    r->waiting = q_calloc(h->limits.max_num_seqs, sizeof *r->waiting);
    r->blocks = q_calloc(h->n_block / 64 + 1, sizeof *r->blocks);
    r->hosts = q_calloc(h->n_swap_block / 64 + 1, sizeof *r->hosts);
    if (!r->waiting || !r->blocks || !r->hosts)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u blocks", h->n_block);
    return Q_OK;
}

void replay_fill_release(struct replay *r)
{
    q_free(r->waiting);
    q_free(r->blocks);
    q_free(r->hosts);
}

void replay_fill_forget(struct replay *r)
{
    const struct record_head *h = &r->file.head;
    memset(r->waiting, 0, h->limits.max_num_seqs * sizeof *r->waiting);
    memset(r->blocks, 0, (h->n_block / 64 + 1) * sizeof *r->blocks);
    memset(r->hosts, 0, (h->n_swap_block / 64 + 1) * sizeof *r->hosts);
}

void replay_fill_add(struct replay *r, const struct step_view *v)
{
    r->waiting[v->seqs[0].slot] = *v;
}

static bool has(const uint64_t *bits, uint32_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static void mark(uint64_t *bits, uint32_t i)
{
    bits[i / 64] |= UINT64_C(1) << (i % 64);
}

static uint32_t blocks_of(uint32_t n_token)
{
    return n_token / STEP_BLOCK_TOKENS + (n_token % STEP_BLOCK_TOKENS != 0);
}

/* Rows start … start + n - 1; the first step admits the sequence. */
static FALLIBLE fill_rows(struct replay *r, const struct fill *f, uint32_t start, uint32_t n,
                          struct q_err *e)
{
    const bool first = start == 0, last = start + n == f->n_row;
    const struct step_admit *a = &f->v->admits[f->i_admit];
    const uint32_t n_list = a->n_allowed + a->n_bad + a->n_grammar;
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
    if (first) {
        v.admits[0] = *a;
        v.admits[0].n_cached = v.admits[0].n_restored = 0;
        memcpy(v.blocks, f->blocks, head.n_block * sizeof *v.blocks);
        memcpy(v.known, f->v->known + f->known, head.n_known * sizeof *v.known);
    }
    if (first && !f->with_lists)
        v.admits[0].n_stop_id = v.admits[0].n_bias = v.admits[0].n_allowed = v.admits[0].n_bad =
            v.admits[0].n_grammar = 0;
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
 * before anything reads them. */
static FALLIBLE fill_waiting(struct replay *r, struct step_view *w, uint32_t n_row, struct q_err *e)
{
    const struct fill f = {
        .v = w,
        .blocks = w->blocks,
        .n_block = w->head->n_block,
        .n_row = n_row,
        .with_lists = true,
    };
    const enum q_code rc = fill(r, &f, e);
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
    return fill_waiting(r, w, q->start, e);
}

static bool has_block(const struct step_view *w, uint32_t block)
{
    for (uint32_t i = 0; w->head && i < w->head->n_block; i++)
        if (w->blocks[i] == block)
            return true;
    return false;
}

/* One that is preempted before a step has it: its blocks are copied to swap space. Of several
 * that had the block, the last one computed has it still. */
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

static FALLIBLE fill_swapped(struct replay *r, const struct fill *all, struct q_err *e)
{
    struct fill f = *all;
    const uint32_t n_known = f.v->admits[f.i_admit].n_known;
    uint32_t end;
    enum q_code rc = Q_OK;
    if (!f.v->head->n_in || !r->n_scratch)
        return Q_OK;
    struct step_copy *outs = q_calloc(f.v->head->n_in, sizeof *outs);
    uint32_t *scratch = q_calloc(r->n_scratch, sizeof *scratch);
    if (!outs || !scratch) {
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for %u copies", f.v->head->n_in);
        goto out;
    }
    for (uint32_t i = 0; i < r->n_scratch; i++)
        scratch[i] = r->file.head.n_block + i;
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
out:
    q_free(outs);
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

/* Copies first, then rows: every block that a sequence gets is known after the step. */
static void note_step(struct replay *r, const struct step_view *v)
{
    for (uint32_t k = 0; k < v->head->n_out; k++)
        mark(r->hosts, v->outs[k].host);
    for (uint32_t i = 0; i < v->head->n_block; i++)
        mark(r->blocks, v->blocks[i]);
}

FALLIBLE replay_fill(struct replay *r, const struct step_view *v, struct q_err *e)
{
    struct fill f = {.v = v, .blocks = v->blocks};
    enum q_code rc = check_blocks(r, v, e);
    for (uint32_t k = 0; k < v->head->n_out && !rc; k++)
        if (!has(r->blocks, v->outs[k].block))
            rc = fill_preempted(r, v->outs[k].block, e);
    for (uint32_t i = 0; i < v->head->n_seq && !rc; i++) {
        const struct step_seq *q = &v->seqs[i];
        f.i_seq = i;
        f.n_block = q->n_new_block;
        if ((rc = fill_running(r, q, e)))
            break;
        if (q->flags & STEP_ADMIT) {
            if (r->file.head.continues && !(rc = fill_cached(r, &f, e)))
                rc = fill_swapped(r, &f, e);
            f.known += v->admits[f.i_admit++].n_known;
        }
        f.blocks += q->n_new_block;
    }
    if (!rc)
        note_step(r, v);
    return rc;
}
