/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a link between two events. */
#include "frontend/link/link_internal.h"

static void check_flow(const struct link *l, const struct generation *f)
{
    Q_ASSERT(f->link == l && f->calls && f->prompt && f->n_prompt);
    Q_ASSERT(f->emitted.n >= f->n_begun);
    Q_ASSERT(f->n_prompt_skip <= f->n_prompt_row);
    Q_ASSERT(f->n_item_received <= f->n_item_written);
    Q_ASSERT(f->list == &l->running ? generation_by_wire_id(l, f->wire_id) == f : f->wire_id == 0);
}

static void check_list(const struct link *l, const struct generation_list *list)
{
    const struct generation *before = NULL;
    uint32_t n = 0;
    for (const struct generation *f = list->first; f; before = f, f = f->next) {
        Q_ASSERT(f->list == list && f->prev == before && ++n <= list->n);
        check_flow(l, f);
    }
    Q_ASSERT(n == list->n && list->last == before);
}

/* Each running generation has one slot, and a used slot has a running generation. */
static void check_slots(const struct link *l)
{
    uint32_t n = 0;
    Q_ASSERT(l->slot_hint <= l->n_slot && l->n_slot <= LINK_FLOWS_MAX);
    for (uint32_t i = 0; i < l->n_slot; i++) {
        n += l->slots[i] != NULL;
        Q_ASSERT(i >= l->slot_hint || l->slots[i]); /* none is free below the hint */
    }
    Q_ASSERT(n == l->running.n);
}

void link_check(const struct link *l)
{
    bool up = l->state == LINK_UP || l->state == LINK_DRAINING;
    Q_ASSERT(l->state <= LINK_DRAINING && (l->state != LINK_UP || !*l->reason));
    Q_ASSERT(up || l->running.n == 0);
    Q_ASSERT(l->running.n <= l->engine.credit || !up);
    Q_ASSERT(link_n_open(l) <= LINK_FLOWS_MAX && l->heartbeat_ms);
    Q_ASSERT(!l->writing || l->writing->list == &l->running ||
             (l->writing->list == &l->waiting && *l->writing->item_memory));
    check_list(l, &l->waiting);
    check_list(l, &l->running);
    check_slots(l);
}
