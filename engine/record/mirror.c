/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/record/mirror.h"
#include <string.h>
#include "common/mem.h"

#define LIST_MAX ((size_t)1 << 28)

FALLIBLE mirror_init(struct mirror *m, uint32_t max_num_seqs, struct q_err *e)
{
    *m = (struct mirror)MIRROR_INIT;
    m->slots = q_calloc(max_num_seqs, sizeof *m->slots);
    m->next_items = q_calloc(max_num_seqs, sizeof *m->next_items);
    if (!m->slots || !m->next_items) {
        q_free(m->slots);
        q_free(m->next_items);
        *m = (struct mirror)MIRROR_INIT;
        return q_fail(e, Q_NO_MEMORY, "record: out of memory for %u slots", max_num_seqs);
    }
    m->n = max_num_seqs;
    return Q_OK;
}

void mirror_release(struct mirror *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct mirror_slot *s = &m->slots[i];
        q_free(s->tokens.items);
        q_free(s->blocks.items);
        q_free(s->stop_ids.items);
        q_free(s->bias_ids.items);
        q_free(s->bias.items);
        q_free(s->lists.items);
        buf_release(&s->items);
        buf_release(&m->next_items[i]);
    }
    q_free(m->slots);
    q_free(m->next_items);
    *m = (struct mirror)MIRROR_INIT;
}

void mirror_reset(struct mirror *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        m->slots[i].is_used = false;
        buf_release(&m->slots[i].items);
    }
}

FALLIBLE mirror_items(struct mirror *m, const void *payload, size_t n, struct q_err *e)
{
    struct record_items head;
    Q_ASSERT(n >= sizeof head);
    memcpy(&head, payload, sizeof head);
    Q_ASSERT(head.i_admit < m->n);
    struct buf *to = &m->next_items[head.i_admit];
    head.i_admit = 0; /* of a SLOT */
    buf_reset(to);
    buf_add(to, &head, sizeof head);
    buf_add(to, (const char *)payload + sizeof head, n - sizeof head);
    m->n_next_items++;
    return buf_check(to, "record: items", e);
}

static void drop_next_items(struct mirror *m)
{
    for (uint32_t i = 0; m->n_next_items && i < m->n; i++)
        buf_release(&m->next_items[i]);
    m->n_next_items = 0;
}

static FALLIBLE add(struct mirror_list *l, const void *items, size_t n, struct q_err *e)
{
    const enum q_code rc = q_grow(&l->items, &l->cap, l->n + n, sizeof *l->items, LIST_MAX, e);
    if (rc || !n)
        return rc;
    memcpy(l->items + l->n, items, n * sizeof *l->items);
    l->n += n;
    return Q_OK;
}

static FALLIBLE set(struct mirror_list *l, const void *items, size_t n, struct q_err *e)
{
    l->n = 0;
    return add(l, items, n, e);
}

struct cursor { /* how far the arrays of a step are used up */
    uint32_t admit, block, known, stop_id, bias, list;
};

static FALLIBLE admit(struct mirror *m, struct mirror_slot *s, const struct step_view *v,
                      struct cursor *c, struct q_err *e)
{
    buf_move(&s->items, &m->next_items[c->admit]);
    const struct step_admit *a = &v->admits[c->admit++];
    const uint32_t n_list = (uint32_t)step_admit_lists(a);
    enum q_code rc;
    s->is_used = true;
    s->admit = *a;
    s->blocks.n = 0;
    if ((rc = set(&s->tokens, v->known + c->known, a->n_known, e)) ||
        (rc = set(&s->stop_ids, v->stop_ids + c->stop_id, a->n_stop_id, e)) ||
        (rc = set(&s->bias_ids, v->bias_ids + c->bias, a->n_bias, e)) ||
        (rc = set(&s->bias, v->bias + c->bias, a->n_bias, e)) ||
        (rc = set(&s->lists, v->lists + c->list, n_list, e)))
        return rc;
    c->known += a->n_known;
    c->stop_id += a->n_stop_id;
    c->bias += a->n_bias;
    c->list += n_list;
    return Q_OK;
}

FALLIBLE mirror_step(struct mirror *m, const struct step_view *v, const struct record_row *rows,
                     uint32_t n_row, struct q_err *e)
{
    struct cursor c = {0};
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < v->head->n_seq && !rc; i++) {
        const struct step_seq *q = &v->seqs[i];
        struct mirror_slot *s = &m->slots[q->slot];
        s->last_step = v->head->step;
        if (q->flags & STEP_ADMIT)
            rc = admit(m, s, v, &c, e);
        if (!rc)
            rc = add(&s->blocks, v->blocks + c.block, q->n_new_block, e);
        c.block += q->n_new_block;
    }
    drop_next_items(m);
    for (uint32_t i = 0; i < n_row && !rc; i++) {
        struct mirror_slot *s = &m->slots[rows[i].slot];
        if (!(rows[i].flags & (RECORD_PROMPT | RECORD_REJECTED)) && !s->admit.params.pools &&
            rows[i].position == s->tokens.n)
            rc = add(&s->tokens, &rows[i].token, 1, e);
    }
    return rc;
}

/* All items of the prompt, and its own row of states, from the first token on. n_cached stays: a
 * state may be behind the blocks that were shared. */
static void put_admit(const struct mirror_slot *s, struct step_admit *to)
{
    struct record_items items = {0};
    if (s->items.len)
        memcpy(&items, s->items.data, sizeof items);
    *to = s->admit;
    to->n_known = (uint32_t)s->tokens.n;
    to->n_restored = 0;
    to->n_item = items.n_item;
    to->item_offset = items.offset;
    to->state_from = STEP_STATE_ZERO;
}

static void put(void *to, const struct mirror_list *l)
{
    if (l->n)
        memcpy(to, l->items, l->n * sizeof *l->items);
}

bool mirror_put(const struct mirror *m, uint32_t i, struct buf *out)
{
    const struct mirror_slot *s = &m->slots[i];
    struct step_view v;
    struct q_err ignored = Q_ERR_INIT;
    if (!s->is_used || !s->tokens.n)
        return false;
    const struct step_head head = {
        .step = s->last_step,
        .n_seq = 1,
        .n_admit = 1,
        .n_block = (uint32_t)s->blocks.n,
        .n_known = (uint32_t)s->tokens.n,
        .n_stop_id = (uint32_t)s->stop_ids.n,
        .n_bias = (uint32_t)s->bias.n,
        .n_list = (uint32_t)s->lists.n,
        .n_token = 1,
    };
    const size_t n = step_size(&head);
    void *memory = buf_room(out, n);
    if (!memory || step_layout(&v, memory, n, &head, &ignored))
        return true;
    memset((char *)memory + sizeof head, 0, n - sizeof head);
    v.seqs[0] = (struct step_seq){i, STEP_ADMIT, 0, 1, (uint32_t)s->blocks.n};
    put_admit(s, &v.admits[0]);
    put(v.blocks, &s->blocks);
    put(v.known, &s->tokens);
    put(v.stop_ids, &s->stop_ids);
    put(v.bias_ids, &s->bias_ids);
    put(v.bias, &s->bias);
    put(v.lists, &s->lists);
    out->len += n;
    out->data[out->len] = '\0';
    return true;
}
