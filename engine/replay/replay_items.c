/* SPDX-License-Identifier: Apache-2.0 */
/* Items of a record, put where they were in the item store of the recorded engine.
 *
 * A worker checks the table of a slot when the slot is admitted, and reads it until the prompt is
 * computed. A file may come from others, so a table that its slot still uses is never overwritten
 * unnoticed: what is written marks the tables in its way as lost, and a step that has such a slot,
 * without admitting it again, is refused. */
#include <string.h>
#include "common/mem.h"
#include "engine/replay/replay.h"

FALLIBLE replay_items_init(struct replay *r, struct q_err *e)
{
    struct replay_items *x = &r->items;
    const uint32_t n = r->file.head.limits.max_num_seqs;
    x->next = q_calloc(n, sizeof *x->next);
    x->waiting = q_calloc(n, sizeof *x->waiting);
    x->spans = q_calloc(n, sizeof *x->spans);
    if (!x->next || !x->waiting || !x->spans)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u sequences", n);
    return Q_OK;
}

void replay_items_release(struct replay *r)
{
    q_free(r->items.next);
    q_free(r->items.waiting);
    q_free(r->items.spans);
    item_store_release(&r->items.store);
}

void replay_items_add(struct replay *r, const struct record_table *t)
{
    r->items.next[t->head.i_admit] = *t;
    r->items.n_next++;
}

void replay_items_drop(struct replay *r)
{
    struct replay_items *x = &r->items;
    if (x->n_next)
        memset(x->next, 0, r->file.head.limits.max_num_seqs * sizeof *x->next);
    x->n_next = 0;
}

const struct record_table *replay_items_of(const struct record_table *tables, uint32_t i)
{
    return tables[i].head.n_item ? &tables[i] : NULL;
}

/* ---- the store ---- */

static struct replay_span table_span(const struct record_table *t)
{
    const uint64_t n = t->head.n_item * sizeof *t->items;
    return (struct replay_span){.start = t->head.offset, .end = t->head.offset + n};
}

/* From the first byte of table and contents to the last one. */
static struct replay_span whole_span(const struct record_table *t)
{
    struct replay_span all = table_span(t);
    for (uint32_t i = 0; i < t->head.n_item; i++) {
        const struct step_item *x = &t->items[i];
        all.start = x->offset < all.start ? x->offset : all.start;
        all.end = x->offset + x->n_byte > all.end ? x->offset + x->n_byte : all.end;
    }
    return all;
}

void replay_items_place(struct replay *r, uint32_t slot, const struct record_table *t)
{
    const struct replay_span all = whole_span(t);
    for (uint32_t i = 0; i < r->file.head.limits.max_num_seqs; i++) {
        struct replay_span *s = &r->items.spans[i];
        s->is_lost |= s->start < all.end && all.start < s->end;
    }
    r->items.spans[slot] = table_span(t);
    record_place(t, r->items.store.memory);
}

/* One admission of a step: its items are those of the frame before it. */
static FALLIBLE place_admission(struct replay *r, uint32_t slot, uint32_t i_admit,
                                const struct step_admit *a, struct q_err *e)
{
    const struct record_table *t = replay_items_of(r->items.next, i_admit);
    r->items.spans[slot] = (struct replay_span){0};
    if (t)
        replay_items_place(r, slot, t);
    const struct replay_span *s = &r->items.spans[slot];
    if (a->n_item && (a->item_offset < s->start || a->item_offset > s->end ||
                      a->n_item * sizeof(struct step_item) > s->end - a->item_offset))
        return q_fail(e, Q_CORRUPT, "slot %u: its %u items are not in the file", slot, a->n_item);
    return Q_OK;
}

FALLIBLE replay_items_begin(struct replay *r, const struct step_view *v, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0, i_admit = 0; i < v->head->n_seq && !rc; i++)
        if (v->seqs[i].flags & STEP_ADMIT) {
            rc = place_admission(r, v->seqs[i].slot, i_admit, &v->admits[i_admit], e);
            i_admit++;
        }
    return rc;
}

FALLIBLE replay_items_check(const struct replay *r, const struct step_view *v, struct q_err *e)
{
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        if (r->items.spans[v->seqs[i].slot].is_lost)
            return q_fail(e, Q_CORRUPT, "slot %u: its items were overwritten", v->seqs[i].slot);
    return Q_OK;
}
