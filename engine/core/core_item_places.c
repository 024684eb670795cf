/* SPDX-License-Identifier: Apache-2.0 */
/* Items and the placeholders of a prompt: which item each has, and the prompt with as many rows in
 * their place as the items have. Reads the tables that core_items_fill wrote, never contents. */
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/core/core_items.h"

/* Placeholders that stand for the items of a modality. */
static uint64_t n_expected(const struct core_items_job *t, uint32_t at)
{
    return t->modalities->rows[at].expand ? t->n_of[at] : t->n_row_of[at];
}

static FALLIBLE check_counts(const struct core_items_job *t, const struct proto_u32s *prompt,
                             struct q_err *e)
{
    const struct modalities *m = t->modalities;
    uint64_t n_of[MODALITIES_MAX] = {0};
    for (size_t i = 0; i < prompt->n; i++) {
        const uint32_t at = modality_of_placeholder(m, prompt->data[i]);
        if (at < m->n)
            n_of[at]++;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        const struct modality *one = &m->rows[i];
        const int id = (int)one->placeholder;
        const unsigned long long n = n_of[i];
        /* Without items, a placeholder of the vocabulary is the token that it is. */
        if (n == n_expected(t, i) || (!t->n_of[i] && one->placeholder < t->args.vocab_size))
            continue;
        if (!t->n_of[i])
            return q_fail(e, Q_INVALID,
                          "prompt has %llu placeholders (%d) of %s, but multi_modal_data has no %s",
                          n, id, one->name, one->name);
        if (n_expected(t, i) != t->n_of[i])
            return q_fail(e, Q_INVALID,
                          "%s: %u items of %llu rows in total, but the prompt has %llu "
                          "placeholders (%d)",
                          one->name, t->n_of[i], (unsigned long long)t->n_row_of[i], n, id);
        return q_fail(e, Q_INVALID, "%s: %u items, but the prompt has %llu placeholders (%d)",
                      one->name, t->n_of[i], n, id);
    }
    return Q_OK;
}

static FALLIBLE add_ids(struct core_items_job *t, uint32_t id, uint32_t n, struct q_err *e)
{
    struct core_items *x = t->x;
    const size_t n_max = t->args.max_model_len;
    if (n > n_max - x->n_prompt)
        return q_fail(e, Q_INVALID,
                      "prompt: with its items it has more than %zu tokens, the limit for prompt "
                      "and answer together (max_model_len)",
                      n_max);
    enum q_code rc =
        q_grow(&x->prompt, &x->prompt_cap, x->n_prompt + n, sizeof *x->prompt, n_max, e);
    for (uint32_t i = 0; i < n && !rc; i++)
        x->prompt[x->n_prompt++] = id;
    return rc;
}

/* The rows of an item: its placeholder for each, but for those that are tokens. */
static FALLIBLE add_item(struct core_items_job *t, const struct step_item *s, uint32_t id,
                         struct q_err *e)
{
    const enum q_code rc = add_ids(t, id, s->n_token, e);
    if (rc)
        return rc;
    struct quire_item kept = {.dtype = (enum quire_dtype)s->dtype, .n_dim = s->n_dim};
    uint32_t *ids = t->x->prompt + t->x->n_prompt - s->n_token;
    memcpy(kept.dims, s->dims, sizeof kept.dims);
    modality_tokens(t->modalities, s->modality, &kept, 0, s->n_token, ids);
    for (uint32_t i = 0; i < s->n_token; i++)
        if (ids[i] == MODALITY_ROW)
            ids[i] = id;
    return Q_OK;
}

/* The first item of modality `at` from number `from` on; a->n: there is none. */
static uint32_t next_item(const struct core_items_job *t, uint32_t at, uint32_t from)
{
    Q_ASSERT(t->table); /* take_contents */
    while (from < t->args.n && t->table[from].modality != at)
        from++;
    return from;
}

static FALLIBLE not_together(const struct core_items_job *t, const struct step_item *s,
                             size_t position, struct q_err *e)
{
    const struct modality *m = &t->modalities->rows[s->modality];
    return q_fail(e, Q_INVALID,
                  "%s[%u]: its %u placeholders (%d) are not consecutive: position %zu of the "
                  "prompt is another token",
                  m->name, s->index, s->n_token, (int)m->placeholder, position);
}

/* The placeholder at position i of the sent prompt is n rows. */
static FALLIBLE note_expansion(struct core_items_job *t, size_t i, uint32_t n, struct q_err *e)
{
    struct core_items *x = t->x;
    struct core_expansions *all = &x->expanded;
    enum q_code rc;
    if (n == 1)
        return Q_OK;
    if ((rc = q_grow(&all->positions, &x->expanded_cap[0], all->n + 1, sizeof *all->positions,
                     ITEMS_MAX, e)) ||
        (rc = q_grow(&all->n_token, &x->expanded_cap[1], all->n + 1, sizeof *all->n_token,
                     ITEMS_MAX, e)))
        return rc;
    all->positions[all->n] = (uint32_t)i;
    all->n_token[all->n++] = n;
    return Q_OK;
}

/* Is there one placeholder for each item, at ascending positions? */
static FALLIBLE check_positions(const struct core_items_job *t, const struct msg_submit *m,
                                struct q_err *e)
{
    const struct proto_u32s *at = &m->item_positions;
    if (at->n != t->args.n)
        return q_fail(e, Q_INVALID, "item_positions: %zu for %u items", at->n, t->args.n);
    for (size_t i = 0; i < at->n; i++) {
        const struct modality *one = &t->modalities->rows[t->table[i].modality];
        if (at->data[i] >= m->prompt.n || (i && at->data[i] <= at->data[i - 1]) ||
            m->prompt.data[at->data[i]] != one->placeholder)
            return q_fail(e, Q_INVALID,
                          "item_positions: entry %zu is no placeholder (%d) of %s in the prompt", i,
                          (int)one->placeholder, one->name);
    }
    return Q_OK;
}

/* The prompt with as many rows in place of each placeholder as its item has. */
static FALLIBLE place_at(struct core_items_job *t, const struct msg_submit *m, struct q_err *e)
{
    uint32_t i_item = 0;
    enum q_code rc = check_positions(t, m, e);
    for (size_t i = 0; i < m->prompt.n && !rc; i++) {
        if (i_item == t->args.n || m->item_positions.data[i_item] != i) {
            rc = add_ids(t, m->prompt.data[i], 1, e);
            continue;
        }
        struct step_item *s = &t->table[i_item++];
        s->position = (uint32_t)t->x->n_prompt;
        if (!(rc = note_expansion(t, i, s->n_token, e)))
            rc = add_item(t, s, m->prompt.data[i], e);
    }
    return rc;
}

/* The prompt with a row for each placeholder, and where each item begins in it. */
static FALLIBLE place_items(struct core_items_job *t, const struct proto_u32s *prompt,
                            struct q_err *e)
{
    const struct modalities *m = t->modalities;
    uint32_t next[MODALITIES_MAX] = {0};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < prompt->n && !rc; i++) {
        const uint32_t id = prompt->data[i], at = modality_of_placeholder(m, id);
        if (at == m->n || !t->n_of[at]) {
            rc = add_ids(t, id, 1, e);
            continue;
        }
        const uint32_t i_item = next_item(t, at, next[at]);
        Q_ASSERT(i_item < t->args.n); /* check_counts */
        struct step_item *s = &t->table[i_item];
        next[at] = i_item + 1;
        s->position = (uint32_t)t->x->n_prompt;
        for (uint32_t j = 1; j < s->n_token && !m->rows[at].expand; j++)
            if (++i == prompt->n || prompt->data[i] != id)
                return not_together(t, s, i, e);
        if (m->rows[at].expand)
            rc = note_expansion(t, i, s->n_token, e);
        if (!rc)
            rc = add_item(t, s, id, e);
    }
    return rc;
}

static FALLIBLE place(struct core_items_job *t, const struct msg_submit *sent, struct q_err *e)
{
    if (sent->item_positions.n)
        return place_at(t, sent, e);
    enum q_code rc = check_counts(t, &sent->prompt, e);
    return rc || !t->args.n ? rc : place_items(t, &sent->prompt, e);
}

/* A sender knows the prompt's length without what its items become. */
static FALLIBLE fit_length(struct core_items_job *t, struct msg_submit *m, struct q_err *e)
{
    const uint32_t limit = t->args.max_model_len, n = (uint32_t)t->x->n_prompt;
    if (!t->x->expanded.n)
        return Q_OK;
    t->x->expanded.n_prompt = n;
    if (m->count_only)
        return Q_OK;
    if (n < limit && m->max_tokens > limit - n && m->max_tokens_fits)
        m->max_tokens = limit - n;
    if (n < limit && m->max_tokens <= limit - n)
        return Q_OK;
    const uint32_t asked = m->max_tokens_fits ? 1 : m->max_tokens;
    return q_fail(e, Q_INVALID,
                  "This model's maximum context length is %u tokens. However, you requested %llu "
                  "tokens (%u in the prompt with the tokens of its items, %u in the completion). "
                  "Please reduce the length of the prompt or completion.",
                  limit, (unsigned long long)n + asked, n, asked);
}

static int by_position(const void *a, const void *b)
{
    const struct step_item *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

FALLIBLE core_items_place(struct core_items *x, struct core_items_job *t, struct msg_submit *m,
                          struct q_err *e)
{
    const struct msg_submit sent = *m;
    const uint32_t n = t->args.n;
    enum q_code rc;
    t->x = x;
    x->n_prompt = x->expanded.n = 0;
    x->expanded.n_prompt = (uint32_t)m->prompt.n;
    step_items_put(m, NULL, 0, 0);
    if ((rc = place(t, &sent, e)) || (rc = fit_length(t, m, e)) || !n)
        return rc;
    Q_ASSERT(t->table);
    qsort(t->table, n, sizeof *t->table, by_position);
    m->prompt = (struct proto_u32s){x->prompt, x->n_prompt};
    step_items_put(m, t->table, n, t->offset);
    return Q_OK;
}
