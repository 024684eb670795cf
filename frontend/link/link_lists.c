/* SPDX-License-Identifier: Apache-2.0 */
/* A wire id has a counter in its upper digits and the generation's index in `slots` in the lower
 * ones: lookup is one array access, and an id that was not assigned, or is not assigned any more,
 * does not match. */
#include "common/mem.h"
#include "frontend/link/link_internal.h"

void generation_list_add(struct generation_list *l, struct generation *f)
{
    Q_ASSERT(!f->list);
    f->list = l;
    f->next = NULL;
    f->prev = l->last;
    if (l->last)
        l->last->next = f;
    else
        l->first = f;
    l->last = f;
    l->n++;
}

void generation_list_push(struct generation_list *l, struct generation *f)
{
    Q_ASSERT(!f->list);
    f->list = l;
    f->prev = NULL;
    f->next = l->first;
    if (l->first)
        l->first->prev = f;
    else
        l->last = f;
    l->first = f;
    l->n++;
}

void generation_list_take(struct generation *f)
{
    struct generation_list *l = f->list;
    Q_ASSERT(l && l->n);
    if (f->prev)
        f->prev->next = f->next;
    else
        l->first = f->next;
    if (f->next)
        f->next->prev = f->prev;
    else
        l->last = f->prev;
    l->n--;
    f->list = NULL;
}

struct generation *generation_by_wire_id(const struct link *l, uint64_t wire_id)
{
    uint32_t slot = (uint32_t)(wire_id % LINK_FLOWS_MAX);
    if (wire_id == 0 || slot >= l->n_slot || !l->slots[slot] || l->slots[slot]->wire_id != wire_id)
        return NULL;
    return l->slots[slot];
}

/* Reserve a slot. Slot 0 is used too, but a wire id is never 0, because its counter starts at 1. */
bool generation_name(struct link *l, struct generation *f)
{
    uint32_t slot = l->slot_hint;
    Q_ASSERT(f->wire_id == 0);
    while (slot < l->n_slot && l->slots[slot])
        slot++;
    if (slot == l->n_slot) {
        if (q_grow(&l->slots, &l->slots_cap, l->n_slot + 1, sizeof(struct generation *),
                   LINK_FLOWS_MAX, NULL) != Q_OK)
            return false;
        l->n_slot++;
    }
    l->slots[slot] = f;
    l->slot_hint = slot + 1;
    f->wire_id = ++l->count * LINK_FLOWS_MAX + slot;
    if (f->request)
        f->request->n_submitted++;
    return true;
}

void generation_unname(struct link *l, struct generation *f)
{
    uint32_t slot = (uint32_t)(f->wire_id % LINK_FLOWS_MAX);
    if (f->wire_id == 0)
        return;
    Q_ASSERT(slot < l->n_slot && l->slots[slot] == f);
    l->slots[slot] = NULL;
    if (slot < l->slot_hint)
        l->slot_hint = slot;
    f->wire_id = 0;
    if (f->request)
        f->request->n_submitted--;
}
