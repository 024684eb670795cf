/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a counted loop, for all counts at once. A loop such as the characters of a string
 * with a maxLength has a different mask in each of its last rounds, and a walk over the vocabulary
 * for each of them took milliseconds. One walk is sufficient if a text can be divided into rounds
 * in only one way: the condition of a token is then a number.
 *
 *      x = rounds that the token begins after the current one
 *      inside: the token ends within a round (or at its end):  allowed iff x <= high
 *      exit:   the token leaves the loop after x + 1 rounds:   allowed iff low <= x <= high
 *
 * with low and high as in struct frame: the number of further rounds that must and may begin.
 * Tokens are sorted by x, once per state and loop, and the mask of any low and high is a range of
 * each list. Where a text can be divided in two ways (a round that may end or continue, and the
 * text after the loop begins like a round) the table is marked and the mask is walked as for any
 * other state. */
#include <string.h>
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/matcher/matcher_internal.h"

struct place {                   /* where a prefix of a token has led */
    matcher_config inside, exit; /* in the loop's body, and behind the loop; 0 = not there */
    uint32_t x;                  /* of a token that goes on inside */
    uint32_t x_exit;
    uint32_t n_char; /* of the prefix */
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
    uint64_t rounds;             /* classes of which each character is a round, and nothing that
                                    follows the loop */
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
    to->n_char += (n->byte & 0xC0) != 0x80;
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

/* Does every character that has led to t, and then through `left` more bytes, end the round? */
static bool is_round(struct matcher *m, matcher_config t, uint32_t left, uint8_t lo, uint8_t hi)
{
    matcher_config last = 0;
    const struct config *now = &m->configs[t];
    if (!t || left == 0)
        return t && now->flags & CONFIG_OUT && !now->n_pair;
    if (now->flags & CONFIG_OUT)
        return false;
    for (unsigned byte = lo; byte <= hi; byte++) {
        matcher_config u = matcher_next(m, t, (uint8_t)byte);
        if (u != last && !is_round(m, u, left - 1, 0x80, 0xBF))
            return false;
        last = u;
    }
    return true;
}

static uint64_t find_rounds(struct sorting *s)
{
    struct matcher *m = s->m;
    uint64_t others = m->configs[s->after].flags & CONFIG_OUT ? TRIE_TEXT : TRIE_BROKEN;
    for (unsigned byte = 0x20; byte <= 0xF4 && others != TRIE_TEXT; byte++) {
        uint8_t lo = 0, hi = 0;
        uint32_t left = byte < 0x80 ? 0 : trie_lead((uint8_t)byte, &lo, &hi);
        uint64_t class = left ? TRIE_CHARS : trie_class((uint8_t)byte);
        if (class & ~others & TRIE_TEXT &&
            (matcher_next(m, s->after, (uint8_t)byte) ||
             !is_round(m, matcher_next(m, s->round, (uint8_t)byte), left, lo, hi)))
            others |= class;
    }
    return TRIE_TEXT & ~others;
}

/* Below such a node each character is one round more. */
static bool take_subtree(struct sorting *s, const struct place *from, uint32_t i)
{
    const struct trie *t = s->m->trie;
    const struct trie_node *n = &t->nodes[i];
    if (n->classes & ~s->rounds || from->inside != s->round ||
        (from->exit && from->exit != s->after))
        return false;
    uint32_t n_before = from->n_char;
    for (uint32_t k = n->first, end = t->nodes[n->end].first; k < end; k++)
        note(s, &s->inside, t->order[k], from->x + t->n_char[t->order[k]] - n_before - 1);
    return true;
}

/* False: there are two ways to read something, or no memory. *has_text: text is left out. */
static bool walk(struct sorting *s, matcher_config start, bool *has_text)
{
    const struct trie *t = s->m->trie;
    bool clear = true;
    *has_text = start == s->round && s->rounds == TRIE_TEXT;
    s->path[0] = (struct place){.inside = start};
    uint32_t i = *has_text ? t->n_node : 0, n = *has_text ? t->n_all : t->n_node;
    while (i < n && clear && !s->failed && !s->m->stuck) {
        const struct trie_node *at = &t->nodes[i];
        const struct place *from = &s->path[at->depth - 1];
        s->m->stats.n_node++;
        bool on = !take_subtree(s, from, i) && go_on(s, from, i, &s->path[at->depth], &clear);
        i = on ? i + 1 : at->end;
    }
    return clear && !s->failed && !s->m->stuck;
}

/* The list by x: *ids [n], those with x from at[x] to at[x + 1]; x < COUNTED_LOOPS_MAX. */
static bool sort(const struct items *l, struct counted_loop_list *out)
{
    out->ids = q_alloc((l->n + 1) * sizeof *out->ids);
    out->at = q_calloc(COUNTED_LOOPS_MAX + 2, sizeof *out->at);
    if (!out->ids || !out->at)
        return false;
    for (size_t i = 0; i < l->n; i++)
        out->at[l->items[i].x + 2]++;
    for (uint32_t x = 2; x < COUNTED_LOOPS_MAX + 2; x++)
        out->at[x] += out->at[x - 1];
    for (size_t i = 0; i < l->n; i++)
        out->ids[out->at[l->items[i].x + 1]++] = l->items[i].is;
    return true;
}

/* All tokens that stay inside, so that of most masks only the longest have to be taken out. */
static bool make_all(const struct matcher *m, struct counted_loop_table *c)
{
    uint32_t n_word = trie_words(m->trie);
    c->all = q_calloc(n_word, sizeof *c->all);
    if (c->all && c->has_text)
        memcpy(c->all, m->trie->text_bits, n_word * sizeof *c->all);
    for (uint32_t i = 0, n = c->inside.at[COUNTED_LOOPS_MAX]; c->all && i < n; i++)
        c->all[c->inside.ids[i] / 32] |= 1u << c->inside.ids[i] % 32;
    return c->all;
}

/* With one reference; NULL: there is none to be made. */
static struct counted_loop_table *make(struct matcher *m, uint32_t state,
                                       const struct program_jump *j)
{
    struct sorting *s = q_calloc(1, sizeof *s);
    struct counted_loop_table *t = q_calloc(1, sizeof *t);
    bool ok = s && t;
    if (ok) {
        t->n_ref = 1;
        s->m = m;
        m->stats.n_walk++;
        s->round = matcher_enter(m, m->p.rules[j->rule]);
        s->after = matcher_enter(m, j->to);
        s->rounds = s->round && s->after ? find_rounds(s) : 0;
        matcher_config start = matcher_single(m, (struct pair){state, FRAME_UNKNOWN});
        ok = s->round && s->after && start && walk(s, start, &t->has_text) &&
             sort(&s->inside, &t->inside) && sort(&s->exits, &t->exits) &&
             sort(&s->outs, &t->outs) && make_all(m, t);
        q_free(s->inside.items);
        q_free(s->exits.items);
        q_free(s->outs.items);
    }
    q_free(s);
    if (ok)
        return t;
    if (t)
        t->n_ref = 1;
    counted_loop_table_unref(t);
    return NULL;
}

void counted_loop_forget(struct matcher *m)
{
    for (uint32_t i = 0; i < m->n_counted_loop; i++)
        counted_loop_table_unref(m->counted[i].table);
    m->n_counted_loop = 0;
}

/* Another grammar's, or a new one; with one reference. */
static struct counted_loop_table *shared_table(struct matcher *m, uint32_t state, uint32_t jump)
{
    const struct program_jump *j = &m->p.jumps[jump];
    struct shared_key k = {.n = 1, .words = {FSM_COUNT}};
    bool shares = shared_key_add(&k, &m->p, state) &&
                  shared_key_add(&k, &m->p, m->p.rules[j->rule]) &&
                  shared_key_add(&k, &m->p, j->to);
    struct shared_walk *x = shares ? shared_find(m->trie->walks, &k) : NULL;
    struct counted_loop_table *t = x ? x->table : make(m, state, j);
    if (!x && t && shares && (x = shared_add(m->trie->walks, &k))) {
        x->table = t;
        t->n_ref++;
    } else if (x && t) {
        t->n_ref++;
    }
    return t;
}

/* The table of (state, jump); NULL: there is none. */
static const struct counted_loop_table *find_loop_table(struct matcher *m, uint32_t state,
                                                        uint32_t jump)
{
    struct q_err e = Q_ERR_INIT;
    for (uint32_t i = 0; i < m->n_counted_loop; i++)
        if (m->counted[i].state == state && m->counted[i].jump == jump)
            return m->counted[i].table;
    if (q_grow(&m->counted, &m->counted_loop_cap, m->n_counted_loop + 1, sizeof *m->counted,
               1u << 20, &e))
        return NULL;
    struct counted_loop_table *t = shared_table(m, state, jump);
    m->counted[m->n_counted_loop++] = (struct counted_loop){state, jump, t};
    if (t)
        m->mask_bytes +=
            sizeof(uint32_t) *
            (t->inside.at[COUNTED_LOOPS_MAX] + t->exits.at[COUNTED_LOOPS_MAX] +
             t->outs.at[COUNTED_LOOPS_MAX] + 3 * COUNTED_LOOPS_MAX + trie_words(m->trie));
    return t;
}

static void set_run(const uint32_t *ids, uint32_t n, uint32_t *bits)
{
    for (uint32_t i = 0; i < n; i++)
        bits[ids[i] / 32] |= 1u << ids[i] % 32;
}

static void clear_run(const uint32_t *ids, uint32_t n, uint32_t *bits)
{
    for (uint32_t i = 0; i < n; i++)
        bits[ids[i] / 32] &= ~(1u << ids[i] % 32);
}

/* Tokens with x < end. */
static void set_inside(const struct trie *t, const struct counted_loop_table *c, uint32_t end,
                       uint32_t *bits)
{
    const struct counted_loop_list *l = &c->inside;
    uint32_t n = l->at[COUNTED_LOOPS_MAX], n_text = c->has_text ? t->text_at[COUNTED_LOOPS_MAX] : 0;
    uint32_t take = l->at[end], take_text = c->has_text ? t->text_at[end] : 0;
    if (take + take_text < (n + n_text) / 4) {
        set_run(l->ids, take, bits);
        set_run(t->text_ids, take_text, bits);
        return;
    }
    for (uint32_t i = 0, n_word = trie_words(t); i < n_word; i++)
        bits[i] |= c->all[i];
    clear_run(l->ids + take, n - take, bits);
    if (n_text > take_text)
        clear_run(t->text_ids + take_text, n_text - take_text, bits);
}

bool counted_loop_tokens(struct matcher *m, struct pair p, uint32_t *bits)
{
    struct q_err e = Q_ERR_INIT;
    const struct frame f = m->frames[p.frame];
    if (p.frame <= FRAME_UNKNOWN || f.below != FRAME_UNKNOWN ||
        m->p.jumps[f.jump].kind != FSM_COUNT || m->trie->longest >= COUNTED_LOOPS_MAX)
        return false;
    const struct counted_loop_table *c = find_loop_table(m, p.state, f.jump);
    if (!c)
        return false;
    uint32_t end = f.high < COUNTED_LOOPS_MAX ? f.high + 1 : COUNTED_LOOPS_MAX;
    uint32_t low = f.low < end ? f.low : end;
    set_inside(m->trie, c, end, bits);
    set_run(c->exits.ids + c->exits.at[low], c->exits.at[end] - c->exits.at[low], bits);
    uint32_t n = c->outs.at[end] - c->outs.at[low];
    m->n_out = 0;
    if (q_grow(&m->outs, &m->out_cap, n, sizeof *m->outs, m->trie->n_all + 1, &e)) {
        m->stuck = true;
        return true;
    }
    if (n)
        memcpy(m->outs, c->outs.ids + c->outs.at[low], n * sizeof *m->outs);
    m->n_out = n;
    return true;
}
