/* SPDX-License-Identifier: Apache-2.0 */
/* Frames, pairs and configs are stored in three pools, with a hash index each for frames and
 * configs; an index entry is a number + 1. Frame 0 is the bottom of a real stack (the end of the
 * text), frame 1 the bottom of a local's stack (the frames below are unknown). Config 0 is the
 * empty one. */
#include "engine/grammar/matcher/matcher.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/matcher/matcher_internal.h"

#define POOL_MAX     (64u << 20) /* entries; MATCHER_BYTES_MAX is met long before */
#define TEXT_STRETCH 256         /* bytes of a text that may take as much work as a mask */

static bool grow(struct matcher *m, void *items, size_t *cap, size_t need, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    if (need <= *cap)
        return true;
    if (m->stuck || q_grow(items, cap, need, size, POOL_MAX, &e)) {
        m->stuck = true;
        return false;
    }
    return true;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* An index with room for one more of n entries; hash_of tells the entries' hashes for moving them.
 */
static bool index_room(struct matcher *m, struct matcher_index *x, uint32_t n,
                       uint64_t (*hash_of)(const struct matcher *, uint32_t))
{
    if (((size_t)n + 1) * 2 < x->size)
        return true;
    size_t size = x->size ? x->size * 2 : 1024;
    uint32_t *slots = m->stuck ? NULL : q_calloc(size, sizeof *slots);
    if (!slots) {
        m->stuck = true;
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t at = hash_of(m, i) & (size - 1);
        while (slots[at])
            at = (at + 1) & (size - 1);
        slots[at] = i + 1;
    }
    q_free(x->slots);
    x->slots = slots;
    x->size = size;
    return true;
}

static uint64_t frame_hash(const struct matcher *m, uint32_t i)
{
    const struct frame *f = &m->frames[i];
    return mix(mix(mix(f->jump, f->low), f->high), f->below);
}

/* The frame with these values. A stack that would be too high is stuck for this one way only: its
 * pair is left out. */
static uint32_t push(struct matcher *m, struct frame f)
{
    if (!index_room(m, &m->frame_index, m->n_frame, frame_hash) ||
        !grow(m, &m->frames, &m->frame_cap, m->n_frame + 1, sizeof *m->frames))
        return FRAME_NONE;
    m->frames[m->n_frame] = f;
    size_t at = frame_hash(m, m->n_frame) & (m->frame_index.size - 1);
    for (; m->frame_index.slots[at]; at = (at + 1) & (m->frame_index.size - 1)) {
        const struct frame *g = &m->frames[m->frame_index.slots[at] - 1];
        if (g->jump == f.jump && g->low == f.low && g->high == f.high && g->below == f.below)
            return m->frame_index.slots[at] - 1;
    }
    m->frames[m->n_frame].depth = f.below < 2 ? 1 : m->frames[f.below].depth + 1;
    m->frames[m->n_frame].back = 0;
    if (m->frames[m->n_frame].depth > MATCHER_DEPTH_MAX)
        return FRAME_NONE;
    m->frame_index.slots[at] = m->n_frame + 1;
    return m->n_frame++;
}

static uint64_t config_hash(const struct matcher *m, uint32_t i)
{
    const struct config *c = &m->configs[i];
    uint64_t h = c->flags;
    for (uint32_t k = 0; k < c->n_pair; k++)
        h = mix(mix(h, m->pairs[c->pair + k].state), m->pairs[c->pair + k].frame);
    return h;
}

static int by_pair(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* The config of the pairs in found (sorted here) and the flags. */
static matcher_config intern(struct matcher *m, uint32_t flags)
{
    if (m->stuck || (m->n_found == 0 && flags == 0))
        return 0;
    if (m->n_found > 1)
        qsort(m->found, m->n_found, sizeof *m->found, by_pair);
    if (!index_room(m, &m->config_index, m->n_config, config_hash) ||
        !grow(m, &m->configs, &m->config_cap, m->n_config + 1, sizeof *m->configs) ||
        !grow(m, &m->pairs, &m->pair_cap, m->n_pair + m->n_found, sizeof *m->pairs))
        return 0;
    struct config *c = &m->configs[m->n_config];
    *c = (struct config){.pair = (uint32_t)m->n_pair, .n_pair = m->n_found, .flags = flags};
    if (m->n_found)
        memcpy(m->pairs + m->n_pair, m->found, m->n_found * sizeof *m->found);
    size_t at = config_hash(m, m->n_config) & (m->config_index.size - 1);
    for (; m->config_index.slots[at]; at = (at + 1) & (m->config_index.size - 1)) {
        const struct config *d = &m->configs[m->config_index.slots[at] - 1];
        if (d->n_pair == c->n_pair && d->flags == c->flags &&
            (!c->n_pair || !memcmp(m->pairs + d->pair, m->found, c->n_pair * sizeof *m->found)))
            return m->config_index.slots[at] - 1;
    }
    m->n_pair += m->n_found;
    m->config_index.slots[at] = m->n_config + 1;
    return m->n_config++;
}

static void begin_closure(struct matcher *m)
{
    m->n_seen = m->n_found = 0;
    if (++m->seen_epoch == 0) {
        memset(m->seen, 0, sizeof m->seen);
        m->seen_epoch = 1;
    }
}

/* Note (state, frame) for the closure, once. */
static void reach(struct matcher *m, uint32_t state, uint32_t frame)
{
    size_t at = mix(state, frame) & (SEEN_SIZE - 1);
    if (frame == FRAME_NONE)
        return;
    for (; m->seen[at].epoch == m->seen_epoch; at = (at + 1) & (SEEN_SIZE - 1)) {
        const struct pair *p = &m->queue[m->seen[at].i];
        if (p->state == state && p->frame == frame)
            return;
    }
    if (m->n_seen >= MATCHER_PAIRS_MAX || ++m->work > m->work_max) {
        m->stuck = true;
        return;
    }
    m->seen[at].epoch = m->seen_epoch;
    m->seen[at].i = m->n_seen;
    m->queue[m->n_seen++] = (struct pair){state, frame};
}

/* Nothing can be done in this state but to end its rule: then a call of it needs no frame. */
static bool only_ends(const struct matcher *m, uint32_t state)
{
    const struct program_state *s = &m->p.states[state];
    return s->n_edge == PROGRAM_FINAL && s->n_jump == 0;
}

/* One of the letters that a text within a length may have is read. */
static void tick(struct matcher *m, const struct program_jump *j, uint32_t frame)
{
    struct frame f = m->frames[frame];
    if (frame <= FRAME_UNKNOWN || m->p.jumps[f.jump].kind != FSM_WITHIN)
        return; /* a damaged program */
    if (f.high != EXPR_INF) {
        if (f.high <= j->min)
            return;
        f.high--;
        frame = push(m, f);
    }
    reach(m, j->to, frame);
}

static void follow(struct matcher *m, uint32_t i_jump, uint32_t frame)
{
    const struct program_jump *j = &m->p.jumps[i_jump];
    if (j->kind == FSM_GOTO) {
        reach(m, j->to, frame);
    } else if (j->kind == FSM_CALL) {
        if (!only_ends(m, j->to))
            frame = push(m, (struct frame){.jump = i_jump, .below = frame});
        reach(m, m->p.rules[j->rule], frame);
    } else if (j->kind == FSM_WITHIN) {
        struct frame f = {.jump = i_jump, .high = j->max, .below = frame};
        reach(m, m->p.rules[j->rule], push(m, f));
    } else if (j->kind == FSM_TICK) {
        tick(m, j, frame);
    } else {
        if (j->min == 0)
            reach(m, j->to, frame);
        struct frame f = {.jump = i_jump, .below = frame};
        f.low = j->min ? j->min - 1 : 0;
        f.high = j->max == EXPR_INF ? EXPR_INF : j->max - 1;
        reach(m, m->p.rules[j->rule], push(m, f));
    }
}

/* The rule on top of `frame` has ended. */
static uint32_t pop(struct matcher *m, uint32_t frame)
{
    if (frame == FRAME_END)
        return CONFIG_END;
    if (frame == FRAME_UNKNOWN)
        return CONFIG_OUT;
    struct frame f = m->frames[frame];
    const struct program_jump *j = &m->p.jumps[f.jump];
    if (j->kind != FSM_COUNT) {
        reach(m, j->to, f.below);
        return 0;
    }
    if (f.low == 0)
        reach(m, j->to, f.below);
    if (f.high) {
        f.low -= f.low > 0;
        f.high -= f.high != EXPR_INF;
        reach(m, m->p.rules[j->rule], push(m, f));
    }
    return 0;
}

/* The text's length leaves no room for any letter that the state reads. */
static bool is_spent(const struct matcher *m, struct pair p, const struct program_state *s)
{
    if (p.frame <= FRAME_UNKNOWN)
        return false;
    const struct frame *f = &m->frames[p.frame];
    if (m->p.jumps[f->jump].kind != FSM_WITHIN || f->high == EXPR_INF)
        return false;
    for (uint32_t i = 0; i < (s->n_edge & ~PROGRAM_FINAL); i++) {
        const struct program_state *to = &m->p.states[m->p.edges[s->edge + i].to];
        if (to->n_edge || to->n_jump != 1 || m->p.jumps[to->jump].kind != FSM_TICK ||
            m->p.jumps[to->jump].min < f->high)
            return false;
    }
    return true;
}

/* From what was reached to everything that is reached without reading: the config. */
static matcher_config close_over(struct matcher *m)
{
    uint32_t flags = 0;
    for (uint32_t i = 0; i < m->n_seen && !m->stuck; i++) {
        struct pair p = m->queue[i];
        const struct program_state *s = &m->p.states[p.state];
        if (s->n_edge & ~PROGRAM_FINAL && !is_spent(m, p, s))
            m->found[m->n_found++] = p;
        for (uint32_t k = 0; k < s->n_jump; k++)
            follow(m, s->jump + k, p.frame);
        if (s->n_edge & PROGRAM_FINAL)
            flags |= pop(m, p.frame);
    }
    return intern(m, flags);
}

static matcher_config step(struct matcher *m, matcher_config c, uint8_t byte)
{
    begin_closure(m);
    for (uint32_t i = 0; i < m->configs[c].n_pair; i++) {
        struct pair p = m->pairs[m->configs[c].pair + i];
        const struct program_state *s = &m->p.states[p.state];
        uint32_t n = s->n_edge & ~PROGRAM_FINAL;
        for (uint32_t k = 0; k < n; k++) {
            const struct program_edge *t = &m->p.edges[s->edge + k];
            if (byte >= (t->bytes & 0xFF) && byte <= t->bytes >> 8)
                reach(m, t->to, p.frame);
        }
    }
    m->work += m->configs[c].n_pair;
    return close_over(m);
}

matcher_config matcher_next_made(struct matcher *m, matcher_config c, uint8_t byte)
{
    if (!m->configs[c].next) {
        uint32_t *next = arena_alloc(&m->arena, 256 * sizeof *next);
        if (!next) {
            m->stuck = true;
            return 0;
        }
        m->configs[c].next = next;
    }
    matcher_config to = step(m, c, byte);
    if (!m->stuck)
        m->configs[c].next[byte] = to + 1;
    return to;
}

/* Every rest of a character, from t on, leads to `to`; to 0: to somewhere that loops on text. */
static bool reads_rest(struct matcher *m, matcher_config t, uint32_t left, uint8_t lo, uint8_t hi,
                       matcher_config to)
{
    matcher_config last = 0;
    if (!t || m->configs[t].flags & CONFIG_OUT)
        return false;
    if (left == 0)
        return to ? t == to : matcher_loops(m, t, TRIE_TEXT);
    for (unsigned byte = lo; byte <= hi; byte++) {
        matcher_config u = matcher_next(m, t, (uint8_t)byte);
        if (u != last && !reads_rest(m, u, left - 1, 0x80, 0xBF, to))
            return false;
        last = u;
    }
    return true;
}

static bool chars_loop(struct matcher *m, matcher_config c)
{
    bool all = true;
    uint8_t lo, hi;
    for (unsigned byte = 0xC2; byte <= 0xF4 && all; byte++) {
        uint32_t left = trie_lead((uint8_t)byte, &lo, &hi);
        all = reads_rest(m, matcher_next(m, c, (uint8_t)byte), left, lo, hi, c);
    }
    return all;
}

static bool class_loops(struct matcher *m, matcher_config c, uint64_t class)
{
    bool all = class != TRIE_BROKEN;
    if (class == TRIE_CHARS)
        return chars_loop(m, c);
    for (unsigned byte = 0; byte < 0x80 && all; byte++)
        all = trie_class((uint8_t)byte) != class || matcher_next(m, c, (uint8_t)byte) == c;
    return all;
}

bool matcher_loops(struct matcher *m, matcher_config c, uint64_t classes)
{
    const struct config *now = &m->configs[c];
    if (now->flags & CONFIG_OUT || classes & now->asked & ~now->loops)
        return false;
    for (uint64_t ask = classes & ~now->asked; ask; ask &= ask - 1) {
        uint64_t class = ask & -ask;
        bool loops = class_loops(m, c, class);
        m->configs[c].asked |= class;
        if (!loops)
            return false;
        m->configs[c].loops |= class;
    }
    return true;
}

bool matcher_opens_text(struct matcher *m, matcher_config c, uint8_t byte)
{
    uint8_t lo, hi;
    uint32_t left = byte < 0x80 ? 0 : trie_lead(byte, &lo, &hi);
    if (byte < 0x80 ? !(trie_class(byte) & TRIE_TEXT) : !left)
        return false;
    return reads_rest(m, matcher_next(m, c, byte), left, left ? lo : 0, left ? hi : 0, 0);
}

matcher_config matcher_single(struct matcher *m, struct pair p)
{
    m->n_found = 1;
    m->found[0] = p;
    return intern(m, 0);
}

matcher_config matcher_enter(struct matcher *m, uint32_t state)
{
    begin_closure(m);
    reach(m, state, FRAME_UNKNOWN);
    return close_over(m);
}

matcher_config matcher_after(struct matcher *m, uint32_t frame)
{
    if (frame < 2)
        return 0;
    if (!m->frames[frame].back) {
        begin_closure(m);
        uint32_t flags = pop(m, frame);
        (void)flags; /* a call's frame is never a bottom */
        matcher_config c = close_over(m);
        m->frames[frame].back = m->stuck ? 0 : c + 1;
        return c;
    }
    return m->frames[frame].back - 1;
}

uint32_t matcher_push(struct matcher *m, struct frame f)
{
    return push(m, f);
}

static void forget(struct matcher *m)
{
    arena_reset(&m->arena);
    matcher_forget_masks(m);
    if (m->frame_index.size)
        memset(m->frame_index.slots, 0, m->frame_index.size * sizeof(uint32_t));
    if (m->config_index.size)
        memset(m->config_index.slots, 0, m->config_index.size * sizeof(uint32_t));
    m->n_pair = m->n_config = m->n_frame = 0;
    m->generation++;
    m->stuck = false;
    if (!grow(m, &m->frames, &m->frame_cap, 2, sizeof *m->frames) ||
        !grow(m, &m->configs, &m->config_cap, 1, sizeof *m->configs))
        return;
    memset(m->frames, 0, 2 * sizeof *m->frames);
    m->frames[0].below = m->frames[1].below = FRAME_NONE; /* equal to no other */
    m->frames[0].low = 0;
    m->frames[1].low = 1;
    m->n_frame = 2;
    m->configs[0] = (struct config){0};
    m->n_config = 1;
}

static size_t bytes_used(const struct matcher *m)
{
    return m->arena.used + m->n_pair * sizeof *m->pairs + m->n_config * sizeof *m->configs +
           m->n_frame * sizeof *m->frames + m->mask_bytes;
}

uint32_t matcher_begin(struct matcher *m)
{
    m->work = 0;
    if (m->stuck || bytes_used(m) > MATCHER_BYTES_MAX) {
        m->stats.n_flush++;
        forget(m);
    }
    return m->generation;
}

FALLIBLE matcher_new(struct matcher **out, const uint32_t *words, size_t n_word,
                     const struct trie *trie, struct q_err *e)
{
    struct matcher *m = q_calloc(1, sizeof *m);
    uint32_t *copy = q_alloc(n_word * sizeof *copy);
    enum q_code rc = Q_NO_MEMORY;
    if (m && copy) {
        memcpy(copy, words, n_word * sizeof *copy);
        m->arena = (struct arena)ARENA_INIT(MATCHER_BYTES_MAX * 4);
        m->words = copy;
        m->n_word = n_word;
        m->trie = trie;
        m->work_max = MATCHER_WORK_MAX;
        rc = program_view(&m->p, copy, n_word, e);
        if (!rc) {
            forget(m);
            *out = m;
            return Q_OK;
        }
    } else {
        rc = q_fail(e, Q_NO_MEMORY, "grammar: out of memory for a matcher");
        q_free(copy);
    }
    matcher_free(m);
    return rc;
}

void matcher_limit(struct matcher *m, uint64_t work_max)
{
    m->work_max = work_max;
}

void matcher_free(struct matcher *m)
{
    if (!m)
        return;
    matcher_forget_masks(m);
    q_free(m->counted);
    q_free(m->frames);
    q_free(m->configs);
    q_free(m->pairs);
    q_free(m->frame_index.slots);
    q_free(m->config_index.slots);
    q_free(m->local_index.slots);
    q_free(m->locals);
    q_free(m->outs);
    q_free(m->words);
    arena_release(&m->arena);
    q_free(m);
}

bool matcher_is(const struct matcher *m, const uint32_t *words, size_t n_word)
{
    return m->n_word == n_word && !memcmp(m->words, words, n_word * sizeof *words);
}

matcher_config matcher_start(struct matcher *m)
{
    begin_closure(m);
    reach(m, m->p.rules[0], FRAME_END);
    return close_over(m);
}

matcher_config matcher_bytes(struct matcher *m, matcher_config c, const char *s, size_t n)
{
    for (size_t i = 0; i < n && c; i++) {
        const uint32_t *next = m->configs[c].next;
        uint8_t byte = (uint8_t)s[i];
        c = next && next[byte] ? next[byte] - 1 : step(m, c, byte);
        if (i % TEXT_STRETCH == TEXT_STRETCH - 1)
            m->work = 0;
    }
    return m->stuck ? 0 : c;
}

matcher_config matcher_token(struct matcher *m, matcher_config c, uint32_t token)
{
    const struct trie *t = m->trie;
    if (token >= t->n_vocab || t->at[token] == t->at[token + 1])
        return 0;
    return matcher_bytes(m, c, t->text + t->at[token], t->at[token + 1] - t->at[token]);
}

bool matcher_can_end(const struct matcher *m, matcher_config c)
{
    return m->configs[c].flags & CONFIG_END;
}

bool matcher_must_end(const struct matcher *m, matcher_config c)
{
    return matcher_can_end(m, c) && m->configs[c].n_pair == 0;
}

bool matcher_is_before(const struct matcher *m, matcher_config c)
{
    const struct config *now = &m->configs[c];
    uint32_t frame = now->n_pair == 1 ? m->pairs[now->pair].frame : FRAME_END;
    return m->p.head->before && frame > FRAME_UNKNOWN &&
           m->p.jumps[m->frames[frame].jump].rule == m->p.head->before - 1;
}

bool matcher_stuck(const struct matcher *m)
{
    return m->stuck;
}

void matcher_stats(const struct matcher *m, struct matcher_stats *out)
{
    *out = m->stats;
    out->n_config = m->n_config;
    out->n_local = m->n_local;
}

/* The one byte that every pair reads, -1 when there are several or none. */
static int only_byte(const struct matcher *m, matcher_config c)
{
    int only = -1;
    for (uint32_t i = 0; i < m->configs[c].n_pair; i++) {
        const struct program_state *s = &m->p.states[m->pairs[m->configs[c].pair + i].state];
        for (uint32_t k = 0; k < (s->n_edge & ~PROGRAM_FINAL); k++) {
            uint32_t bytes = m->p.edges[s->edge + k].bytes;
            int lo = bytes & 0xFF, hi = (int)(bytes >> 8);
            if (lo != hi || (only >= 0 && only != lo))
                return -1;
            only = lo;
        }
    }
    return only;
}

size_t matcher_forced(struct matcher *m, matcher_config c, char *out, size_t n)
{
    size_t i = 0;
    for (; i < n && c && !matcher_can_end(m, c); i++) {
        int byte = only_byte(m, c);
        if (byte < 0)
            break;
        out[i] = (char)byte;
        c = matcher_next(m, c, (uint8_t)byte);
    }
    return i;
}
