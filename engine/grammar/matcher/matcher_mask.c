/* SPDX-License-Identifier: Apache-2.0 */
/* A mask is the union, over the pairs of a config, of the local of the pair and of the walks from
 * the points where the local left its rule, with the frames of the real stack below (matcher.h). */
#include <string.h>
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/matcher/matcher_internal.h"

void matcher_forget_masks(struct matcher *m)
{
    for (uint32_t i = 0; i < m->n_local; i++) {
        q_free(m->locals[i].ids);
        q_free(m->locals[i].outs);
    }
    for (uint32_t i = 0; i < MASKS_KEPT; i++) {
        q_free(m->kept[i].bits);
        m->kept[i] = (struct kept_mask){0, NULL};
    }
    counted_loop_forget(m);
    if (m->local_index.size)
        memset(m->local_index.slots, 0, m->local_index.size * sizeof(uint32_t));
    m->n_local = 0;
    m->mask_bytes = 0;
}

static void set_token(const struct trie *t, uint32_t token, uint32_t *bits)
{
    for (; token != TRIE_NONE; token = t->same[token])
        bits[token / 32] |= 1u << token % 32;
}

/* Node i below config c: is it, and everything below it, text that c takes without a change? Then
 * these are all its tokens. */
static bool take_subtree(struct matcher *m, uint32_t i, matcher_config c, uint32_t *bits)
{
    const struct trie *t = m->trie;
    const struct trie_node *n = &t->nodes[i];
    if (!(m->configs[c].asked & CONFIG_SELF) || !matcher_loops(m, c, n->classes))
        return false;
    for (uint32_t k = n->first, end = t->nodes[n->end].first; k < end; k++)
        bits[t->order[k] / 32] |= 1u << t->order[k] % 32;
    return true;
}

/* The config behind node i; 0: nothing below it comes, or all of it, and then the bits are set. */
static inline matcher_config enter(struct matcher *m, uint32_t i, uint32_t *bits)
{
    const struct trie_node *n = &m->trie->nodes[i];
    matcher_config from = m->path[n->depth - 1];
    if (take_subtree(m, i, from, bits))
        return 0;
    matcher_config to = matcher_next(m, from, n->byte);
    if (to == from)
        m->configs[to].asked |= CONFIG_SELF;
    return to;
}

/* Tokens below node `from` that config c lets come. */
static void walk(struct matcher *m, uint32_t from, matcher_config c, uint32_t *bits)
{
    const struct trie *t = m->trie;
    m->path[t->nodes[from].depth] = c;
    for (uint32_t i = from + 1, end = t->nodes[from].end; i < end;) {
        const struct trie_node *n = &t->nodes[i];
        matcher_config to = enter(m, i, bits);
        if (!to) {
            i = n->end;
            continue;
        }
        if (n->token != TRIE_NONE)
            set_token(t, n->token, bits);
        m->path[n->depth] = to;
        i++;
    }
}

/* The same of node i and what is below, with an unknown bottom; notes where that was reached. */
static void walk_part(struct matcher *m, uint32_t i, uint32_t *bits)
{
    const struct trie *t = m->trie;
    struct q_err e = Q_ERR_INIT;
    for (uint32_t end = t->nodes[i].end; i < end && !m->stuck;) {
        const struct trie_node *n = &t->nodes[i];
        m->stats.n_node++;
        matcher_config to = enter(m, i, bits);
        if (!to) {
            i = n->end;
            continue;
        }
        if (n->token != TRIE_NONE)
            set_token(t, n->token, bits);
        if (m->configs[to].flags & CONFIG_OUT && n->end > i + 1) {
            if (q_grow(&m->outs, &m->out_cap, m->n_out + 1, sizeof *m->outs, t->n_all, &e))
                m->stuck = true;
            else
                m->outs[m->n_out++] = i;
        }
        m->path[n->depth] = to;
        i++;
    }
}

static void clear_subtree(const struct trie *t, uint32_t i, uint32_t *bits)
{
    const struct trie_node *n = &t->nodes[i];
    for (uint32_t k = n->first, end = t->nodes[n->end].first; k < end; k++)
        bits[t->order[k] / 32] &= ~(1u << t->order[k] % 32);
}

/* Over the whole vocabulary. Where most text may come all of it is taken at once, then what begins
 * with bytes for which that does not hold is taken back and walked, and of the others only the
 * tokens that are not text. */
static void walk_local(struct matcher *m, matcher_config c, uint32_t *bits)
{
    const struct trie *t = m->trie;
    bool opens[256];
    uint32_t n_open = 0;
    m->n_out = 0;
    m->stats.n_walk++;
    m->path[0] = c;
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t i = t->root[byte];
        opens[byte] = i != TRIE_NONE && matcher_opens_text(m, c, (uint8_t)byte);
        if (opens[byte])
            n_open += t->nodes[t->nodes[i].end].first - t->nodes[i].first;
    }
    bool most = n_open > t->n_vocab / 2;
    if (most)
        memcpy(bits, t->text_bits, trie_words(t) * sizeof *bits);
    for (unsigned byte = 0; byte < 256 && !m->stuck; byte++) {
        uint32_t i = t->root[byte];
        if (most && opens[byte])
            i = t->root_other[byte];
        else if (most && i != TRIE_NONE)
            clear_subtree(t, i, bits);
        if (i != TRIE_NONE)
            walk_part(m, i, bits);
    }
}

static uint64_t local_hash(const struct matcher *m, uint32_t i)
{
    struct pair p = m->locals[i].pair;
    return ((uint64_t)p.state << 32 | p.frame) * 0x9E3779B97F4A7C15u >> 20;
}

static bool index_room(struct matcher *m)
{
    struct matcher_index *x = &m->local_index;
    if ((size_t)(m->n_local + 1) * 2 < x->size)
        return true;
    size_t size = x->size ? x->size * 2 : 256;
    uint32_t *slots = q_calloc(size, sizeof *slots);
    if (!slots)
        return false;
    for (uint32_t i = 0; i < m->n_local; i++) {
        size_t at = local_hash(m, i) & (size - 1);
        while (slots[at])
            at = (at + 1) & (size - 1);
        slots[at] = i + 1;
    }
    q_free(x->slots);
    x->slots = slots;
    x->size = size;
    return true;
}

/* Few tokens are kept as a list, many as bits. */
static bool keep(struct matcher *m, struct local *l, uint32_t *bits)
{
    uint32_t n_word = trie_words(m->trie), n = 0;
    for (uint32_t i = 0; i < n_word && n < n_word / 2; i++)
        n += (uint32_t)__builtin_popcount(bits[i]);
    l->outs = q_alloc(m->n_out * sizeof *l->outs);
    l->n_out = (uint32_t)m->n_out;
    if (l->outs && m->n_out)
        memcpy(l->outs, m->outs, m->n_out * sizeof *l->outs);
    l->n_id = n < n_word / 2 ? n : UINT32_MAX;
    l->ids = l->n_id == UINT32_MAX ? bits : q_alloc(n * sizeof *l->ids);
    m->mask_bytes += (l->n_id == UINT32_MAX ? n_word : n) * 4ull + m->n_out * 4;
    if (l->n_id == UINT32_MAX)
        return l->outs != NULL;
    n = 0;
    for (uint32_t i = 0; l->ids && i < n_word; i++)
        for (uint32_t word = bits[i]; word; word &= word - 1)
            l->ids[n++] = i * 32 + (uint32_t)__builtin_ctz(word);
    q_free(bits);
    return l->ids && l->outs;
}

/* Another grammar has walked the same: its tokens and places. */
static void take_shared(struct matcher *m, const struct shared_walk *x, uint32_t *bits)
{
    struct q_err e = Q_ERR_INIT;
    if (q_grow(&m->outs, &m->out_cap, x->n_out, sizeof *m->outs, m->trie->n_all + 1, &e)) {
        m->stuck = true;
        return;
    }
    memcpy(bits, x->bits, trie_words(m->trie) * sizeof *bits);
    if (x->n_out)
        memcpy(m->outs, x->outs, x->n_out * sizeof *m->outs);
    m->n_out = x->n_out;
}

static void give_shared(struct matcher *m, const struct shared_key *key, const uint32_t *bits)
{
    struct shared_walk *x = shared_add(m->trie->walks, key);
    if (!x)
        return;
    size_t bytes = trie_words(m->trie) * sizeof *bits;
    x->bits = q_alloc(bytes);
    x->outs = q_alloc((m->n_out + 1) * sizeof *x->outs);
    if (!x->bits || !x->outs) {
        shared_drop(x);
        return;
    }
    memcpy(x->bits, bits, bytes);
    if (m->n_out)
        memcpy(x->outs, m->outs, m->n_out * sizeof *x->outs);
    x->n_out = (uint32_t)m->n_out;
}

/* Bits and m->outs of a pair, whose config is c: from a table, from another grammar, or by a walk
 * of its own. */
static void find_tokens(struct matcher *m, struct pair p, matcher_config c, uint32_t *bits)
{
    struct shared_key key = {.n = 0};
    if (counted_loop_tokens(m, p, bits))
        return;
    bool shares = p.frame == FRAME_UNKNOWN && shared_key_add(&key, &m->p, p.state);
    const struct shared_walk *x = shares ? shared_find(m->trie->walks, &key) : NULL;
    if (x) {
        take_shared(m, x, bits);
        return;
    }
    walk_local(m, c, bits);
    if (shares && !m->stuck)
        give_shared(m, &key, bits);
}

/* NULL: stuck. */
static const struct local *local_of(struct matcher *m, struct pair p)
{
    struct q_err e = Q_ERR_INIT;
    if (!index_room(m) ||
        q_grow(&m->locals, &m->local_cap, m->n_local + 1, sizeof *m->locals, 1u << 24, &e)) {
        m->stuck = true;
        return NULL;
    }
    m->locals[m->n_local] = (struct local){.pair = p};
    size_t at = local_hash(m, m->n_local) & (m->local_index.size - 1);
    for (; m->local_index.slots[at]; at = (at + 1) & (m->local_index.size - 1)) {
        const struct local *l = &m->locals[m->local_index.slots[at] - 1];
        if (l->pair.state == p.state && l->pair.frame == p.frame)
            return l;
    }
    uint32_t *bits = q_calloc(trie_words(m->trie), sizeof *bits);
    matcher_config c = bits ? matcher_single(m, p) : 0;
    if (c)
        find_tokens(m, p, c, bits);
    if (!c || m->stuck) {
        q_free(bits);
        m->stuck = true;
        return NULL;
    }
    struct local *l = &m->locals[m->n_local];
    m->stuck = !keep(m, l, bits);
    m->local_index.slots[at] = ++m->n_local;
    return m->stuck ? NULL : l;
}

/* The counted loops and lengths on top of a call's frame (*base), as a token can tell them apart,
 * on an unknown bottom. */
static uint32_t top_of(struct matcher *m, uint32_t frame, uint32_t *base)
{
    uint32_t loops[MATCHER_DEPTH_MAX], n = 0, longest = m->trie->longest;
    for (; frame > FRAME_UNKNOWN; frame = m->frames[frame].below) {
        if (m->p.jumps[m->frames[frame].jump].kind == FSM_CALL)
            break;
        loops[n++] = frame;
    }
    *base = frame;
    uint32_t top = FRAME_UNKNOWN;
    while (n && top != FRAME_NONE) {
        struct frame f = m->frames[loops[--n]];
        const struct program_jump *j = &m->p.jumps[f.jump];
        uint64_t enough = longest + (j->kind == FSM_WITHIN ? (uint64_t)j->min : 0);
        f.low = f.low < longest ? f.low : longest;
        f.high = f.high > enough ? EXPR_INF : f.high;
        f.below = top;
        top = matcher_push(m, f);
    }
    return top;
}

static void add_local(const struct matcher *m, const struct local *l, uint32_t *bits)
{
    if (l->n_id == UINT32_MAX)
        for (uint32_t i = 0, n = trie_words(m->trie); i < n; i++)
            bits[i] |= l->ids[i];
    else
        for (uint32_t i = 0; i < l->n_id; i++)
            bits[l->ids[i] / 32] |= 1u << l->ids[i] % 32;
}

static void add_pair(struct matcher *m, struct pair p, uint32_t *bits)
{
    uint32_t base;
    p.frame = top_of(m, p.frame, &base);
    const struct local *l = p.frame == FRAME_NONE ? NULL : local_of(m, p);
    if (!l) {
        m->stuck = true;
        return;
    }
    add_local(m, l, bits);
    uint32_t n_out = l->n_out;
    const uint32_t *outs = l->outs;
    matcher_config rest = n_out ? matcher_after(m, base) : 0;
    for (uint32_t i = 0; rest && i < n_out && !m->stuck; i++)
        walk(m, outs[i], rest, bits);
}

static void keep_mask(struct matcher *m, matcher_config c, const uint32_t *bits)
{
    struct kept_mask *k = &m->kept[m->kept_next];
    size_t bytes = trie_words(m->trie) * sizeof *bits;
    if (!k->bits && !(k->bits = q_alloc(bytes)))
        return;
    memcpy(k->bits, bits, bytes);
    k->of = c;
    m->configs[c].mask = m->kept_next + 1;
    m->kept_next = (m->kept_next + 1) % MASKS_KEPT;
}

bool matcher_mask(struct matcher *m, matcher_config c, uint32_t *bits)
{
    const struct config *now = &m->configs[c];
    m->stats.n_mask++;
    if (!c || m->stuck)
        return false;
    if (now->mask && m->kept[now->mask - 1].of == c) {
        memcpy(bits, m->kept[now->mask - 1].bits, trie_words(m->trie) * sizeof *bits);
        m->stats.n_hit++;
        return true;
    }
    for (uint32_t i = 0; i < m->configs[c].n_pair && !m->stuck; i++)
        add_pair(m, m->pairs[m->configs[c].pair + i], bits);
    if (!m->stuck)
        keep_mask(m, c, bits);
    return !m->stuck;
}
