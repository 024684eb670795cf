/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a counted loop, for every count at once. A loop such as the characters of a string
 * with a maxLength has another mask for each of its last rounds, and a walk over the vocabulary for
 * each took milliseconds. One walk is enough when a text can be cut into rounds in one way only:
 * then what a token needs is a number.
 *
 *      x = rounds that the token begins beyond the one the text stands in
 *      inside: the token ends within a round (or just behind one):  it may come iff x <= high
 *      exit:   it leaves the loop behind x + 1 rounds:              iff low <= x <= high
 *
 * with low and high as in struct frame: how many more rounds must and may be begun. So tokens are
 * sorted by x, once per state and loop, and the mask of any low and high is a run of each list.
 * Where a text can be cut in two ways (a round that may end or go on, what follows begins like a
 * round) the table says so and the mask is walked as for any other state. */
#include <string.h>
#include "engine/grammar/fsm.h"
#include "engine/grammar/matcher_state.h"

struct place {                   /* where a prefix of a token has led */
    matcher_config inside, exit; /* in the loop's body, and behind the loop; 0 = not there */
    uint32_t x;                  /* of a token that goes on inside */
    uint32_t x_exit;
};
struct item {
    uint32_t is, x; /* a token or a place in the trie */
};
struct items {
    struct item *items; /* [n] */
    size_t n, cap;
};
struct sorting { /* a table being made */
    struct matcher *m;
    matcher_config round, after; /* the body's start, and what follows the loop */
    bool is_plain;               /* each plain byte is a round, and nothing that follows the loop */
    struct items inside, exits, outs;
    bool failed;
    struct place path[TRIE_TOKEN_MAX + 1];
};

static void note(struct sorting *s, struct items *l, uint32_t is, uint32_t x)
{
    struct q_err e = Q_ERR_INIT;
    if (l->n == l->cap && q_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items, 1u << 26, &e))
        s->failed = true;
    else
        l->items[l->n++] = (struct item){is, x};
}

static void note_tokens(struct sorting *s, struct items *l, uint32_t token, uint32_t x)
{
    for (; token != TRIE_NONE; token = s->m->trie->same[token])
        note(s, l, token, x);
}

/* What the byte of node i makes of `from`; false: nothing. *clear: there is one way to read it. */
static bool go_on(struct sorting *s, const struct place *from, uint32_t i, struct place *to,
                  bool *clear)
{
    struct matcher *m = s->m;
    const struct trie_node *n = &m->trie->nodes[i];
    *to = *from;
    to->inside = from->inside ? matcher_next(m, from->inside, n->byte) : 0;
    to->exit = from->exit ? matcher_next(m, from->exit, n->byte) : 0;
    const struct config *now = &m->configs[to->inside];
    bool done = to->inside && now->flags & CONFIG_OUT;
    *clear = !(to->inside && to->exit) && !(done && now->n_pair);
    if (to->inside)
        note_tokens(s, &s->inside, n->token, to->x);
    else if (to->exit)
        note_tokens(s, &s->exits, n->token, to->x_exit);
    if (done) {
        to->inside = s->round;
        to->exit = s->after;
        to->x_exit = to->x++;
    }
    if (to->exit && m->configs[to->exit].flags & CONFIG_OUT && n->end > i + 1)
        note(s, &s->outs, i, to->x_exit);
    return to->inside || to->exit;
}

static bool rounds_are_plain(struct sorting *s)
{
    struct matcher *m = s->m;
    bool all = !(m->configs[s->after].flags & CONFIG_OUT);
    for (unsigned byte = 0; byte < 0x80 && all; byte++) {
        if (!trie_is_plain((uint8_t)byte))
            continue;
        matcher_config c = matcher_next(m, s->round, (uint8_t)byte);
        all = c && m->configs[c].flags & CONFIG_OUT && !m->configs[c].n_pair &&
              !matcher_next(m, s->after, (uint8_t)byte);
    }
    return all;
}

/* Below a plain node each byte is one round more. */
static bool take_subtree(struct sorting *s, const struct place *from, uint32_t i)
{
    const struct trie *t = s->m->trie;
    const struct trie_node *n = &t->nodes[i];
    if (!s->is_plain || !n->is_plain || from->inside != s->round ||
        (from->exit && from->exit != s->after))
        return false;
    for (uint32_t k = n->first, end = t->nodes[n->end].first; k < end; k++) {
        uint32_t id = t->order[k], length = t->at[id + 1] - t->at[id];
        note(s, &s->inside, id, from->x + length - n->depth);
    }
    return true;
}

/* False: there are two ways to read something, or no memory. */
static bool walk(struct sorting *s, matcher_config start)
{
    const struct trie *t = s->m->trie;
    bool clear = true;
    s->path[0] = (struct place){.inside = start};
    for (uint32_t i = 0; i < t->n_node && clear && !s->failed && !s->m->stuck;) {
        const struct trie_node *n = &t->nodes[i];
        const struct place *from = &s->path[n->depth - 1];
        bool on = !take_subtree(s, from, i) && go_on(s, from, i, &s->path[n->depth], &clear);
        i = on ? i + 1 : n->end;
    }
    return clear && !s->failed && !s->m->stuck;
}

/* The list by x: *ids [n], those with x from at[x] to at[x + 1]; x < COUNTED_MAX. */
static bool sort(const struct items *l, struct counted_list *out)
{
    out->ids = q_alloc((l->n + 1) * sizeof *out->ids);
    out->at = q_calloc(COUNTED_MAX + 2, sizeof *out->at);
    if (!out->ids || !out->at)
        return false;
    for (size_t i = 0; i < l->n; i++)
        out->at[l->items[i].x + 2]++;
    for (uint32_t x = 2; x < COUNTED_MAX + 2; x++)
        out->at[x] += out->at[x - 1];
    for (size_t i = 0; i < l->n; i++)
        out->ids[out->at[l->items[i].x + 1]++] = l->items[i].is;
    return true;
}

/* All tokens that stay inside, so that of most masks only the longest have to be taken out. */
static bool make_all(const struct matcher *m, struct counted_table *c)
{
    uint32_t n_word = trie_words(m->trie);
    c->all = q_calloc(n_word, sizeof *c->all);
    for (uint32_t i = 0, n = c->inside.at[COUNTED_MAX]; c->all && i < n; i++)
        c->all[c->inside.ids[i] / 32] |= 1u << c->inside.ids[i] % 32;
    return c->all;
}

void counted_table_unref(struct counted_table *t)
{
    if (!t || --t->n_ref)
        return;
    struct counted_list *lists[] = {&t->inside, &t->exits, &t->outs};
    for (int i = 0; i < 3; i++) {
        q_free(lists[i]->ids);
        q_free(lists[i]->at);
    }
    q_free(t->all);
    q_free(t);
}

/* With one reference; NULL: there is none to be made. */
static struct counted_table *make(struct matcher *m, uint32_t state, const struct program_jump *j)
{
    struct sorting *s = q_calloc(1, sizeof *s);
    struct counted_table *t = q_calloc(1, sizeof *t);
    bool ok = s && t;
    if (ok) {
        t->n_ref = 1;
        s->m = m;
        m->stats.n_walk++;
        s->round = matcher_enter(m, m->p.rules[j->rule]);
        s->after = matcher_enter(m, j->to);
        s->is_plain = s->round && s->after && rounds_are_plain(s);
        matcher_config start = matcher_single(m, (struct pair){state, FRAME_UNKNOWN});
        ok = s->round && s->after && start && walk(s, start) && sort(&s->inside, &t->inside) &&
             sort(&s->exits, &t->exits) && sort(&s->outs, &t->outs) && make_all(m, t);
        q_free(s->inside.items);
        q_free(s->exits.items);
        q_free(s->outs.items);
    }
    q_free(s);
    if (ok)
        return t;
    if (t)
        t->n_ref = 1;
    counted_table_unref(t);
    return NULL;
}

void counted_forget(struct matcher *m)
{
    for (uint32_t i = 0; i < m->n_counted; i++)
        counted_table_unref(m->counted[i].table);
    m->n_counted = 0;
}

/* Another grammar's, or a new one; with one reference. */
static struct counted_table *shared_table(struct matcher *m, uint32_t state, uint32_t jump)
{
    const struct program_jump *j = &m->p.jumps[jump];
    struct shared_key k = {.n = 1, .words = {FSM_COUNT}};
    bool shares = shared_key_add(&k, &m->p, state) &&
                  shared_key_add(&k, &m->p, m->p.rules[j->rule]) &&
                  shared_key_add(&k, &m->p, j->to);
    struct shared_walk *x = shares ? shared_find(m->trie->walks, &k) : NULL;
    struct counted_table *t = x ? x->table : make(m, state, j);
    if (!x && t && shares && (x = shared_add(m->trie->walks, &k))) {
        x->table = t;
        t->n_ref++;
    } else if (x && t) {
        t->n_ref++;
    }
    return t;
}

/* The table of (state, jump); NULL: there is none. */
static const struct counted_table *find(struct matcher *m, uint32_t state, uint32_t jump)
{
    struct q_err e = Q_ERR_INIT;
    for (uint32_t i = 0; i < m->n_counted; i++)
        if (m->counted[i].state == state && m->counted[i].jump == jump)
            return m->counted[i].table;
    if (q_grow(&m->counted, &m->counted_cap, m->n_counted + 1, sizeof *m->counted, 1u << 20, &e))
        return NULL;
    struct counted_table *t = shared_table(m, state, jump);
    m->counted[m->n_counted++] = (struct counted){state, jump, t};
    if (t)
        m->mask_bytes +=
            sizeof(uint32_t) * (t->inside.at[COUNTED_MAX] + t->exits.at[COUNTED_MAX] +
                                t->outs.at[COUNTED_MAX] + 3 * COUNTED_MAX + trie_words(m->trie));
    return t;
}

static void set_run(const struct counted_list *l, uint32_t from, uint32_t to, uint32_t *bits)
{
    for (uint32_t i = l->at[from], end = l->at[to]; i < end; i++)
        bits[l->ids[i] / 32] |= 1u << l->ids[i] % 32;
}

static void set_inside(const struct matcher *m, const struct counted_table *c, uint32_t end,
                       uint32_t *bits)
{
    const struct counted_list *l = &c->inside;
    uint32_t n = l->at[COUNTED_MAX];
    if (l->at[end] < n / 4) {
        set_run(l, 0, end, bits);
        return;
    }
    for (uint32_t i = 0, n_word = trie_words(m->trie); i < n_word; i++)
        bits[i] |= c->all[i];
    for (uint32_t i = l->at[end]; i < n; i++)
        bits[l->ids[i] / 32] &= ~(1u << l->ids[i] % 32);
}

bool counted_tokens(struct matcher *m, struct pair p, uint32_t *bits)
{
    struct q_err e = Q_ERR_INIT;
    const struct frame f = m->frames[p.frame];
    if (p.frame <= FRAME_UNKNOWN || f.below != FRAME_UNKNOWN ||
        m->p.jumps[f.jump].kind != FSM_COUNT || m->trie->longest >= COUNTED_MAX)
        return false;
    const struct counted_table *c = find(m, p.state, f.jump);
    if (!c)
        return false;
    uint32_t end = f.high < COUNTED_MAX ? f.high + 1 : COUNTED_MAX;
    uint32_t low = f.low < end ? f.low : end;
    set_inside(m, c, end, bits);
    set_run(&c->exits, low, end, bits);
    uint32_t n = c->outs.at[end] - c->outs.at[low];
    m->n_out = 0;
    if (q_grow(&m->outs, &m->out_cap, n, sizeof *m->outs, m->trie->n_node + 1, &e)) {
        m->stuck = true;
        return true;
    }
    if (n)
        memcpy(m->outs, c->outs.ids + c->outs.at[low], n * sizeof *m->outs);
    m->n_out = n;
    return true;
}
