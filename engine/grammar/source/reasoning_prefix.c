/* SPDX-License-Identifier: Apache-2.0 */
/* The Knuth-Morris-Pratt search as an automaton over bytes, twice: in state k the first k bytes of
 * the marker have been read outside the name of a special token, in state n + k inside such a
 * name. The byte that begins and ends names (PROGRAM_SPECIAL) switches between the two.
 *
 *      0 … n - 1   outside      n … 2n - 1   inside      2n   the whole marker, inside
 *      2n + 1      the whole marker: the grammar begins
 *
 * From state 2n only the end of the name continues, so a special token whose name continues after
 * the marker is not allowed: it would belong to neither part. */
#include "engine/grammar/source/reasoning_prefix.h"
#include <string.h>
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/automaton/program.h"

struct search {
    const unsigned char *marker;
    uint32_t n;
    uint32_t back[AFTER_MAX]; /* [n] the longest k < i: the marker's first k end its first i */
};

static void find_backs(struct search *s)
{
    for (uint32_t i = 1, k = 0; i < s->n; i++) {
        s->back[i] = k;
        while (k && s->marker[i] != s->marker[k])
            k = s->back[k];
        k += s->marker[i] == s->marker[k];
    }
}

/* Bytes of the marker that are read when `byte` follows the first k. */
static uint32_t next_of(const struct search *s, uint32_t k, unsigned byte)
{
    while (k && s->marker[k] != byte)
        k = s->back[k];
    return k + (s->marker[k] == byte);
}

/* Edges of the state behind k bytes, runs of bytes with the same end as one; how many. */
static uint32_t add_edges(struct fsm_edge *edges, const struct search *s, uint32_t k, bool inside)
{
    uint32_t n = 0;
    for (unsigned byte = 0; byte < PROGRAM_SPECIAL; byte++) {
        uint32_t to = next_of(s, k, byte);
        to = inside ? s->n + to : to == s->n ? 2 * s->n + 1 : to;
        if (n && edges[n - 1].to == to)
            edges[n - 1].hi = byte;
        else
            edges[n++] = (struct fsm_edge){byte, byte, to};
    }
    edges[n++] = (struct fsm_edge){PROGRAM_SPECIAL, PROGRAM_SPECIAL, inside ? k : s->n + k};
    return n;
}

static bool is_marker(struct build *b, const char *marker, size_t n)
{
    if (n && n <= AFTER_MAX && !memchr(marker, (int)PROGRAM_SPECIAL, n))
        return true;
    expr_fail(b, Q_INVALID,
              "the marker before the grammar has %zu bytes, expected 1 to %u of UTF-8", n,
              AFTER_MAX);
    return false;
}

const struct expr *reasoning_prefix_tags_expr(struct build *b, const char *tags, size_t n)
{
    struct expr_list pairs = {0};
    const char *limit = tags + n;
    while (tags < limit && build_ok(b)) {
        const char *end = memchr(tags, 0, (size_t)(limit - tags));
        const char *last = end ? memchr(end + 1, 0, (size_t)(limit - end - 1)) : NULL;
        if (!last || pairs.n == REASONING_PREFIX_TAGS_MAX)
            return expr_fail(
                b, Q_INVALID,
                "the tags of reasoning are not pairs of texts that each end with a NUL, "
                "or more than %u",
                REASONING_PREFIX_TAGS_MAX);
        size_t n_start = (size_t)(end - tags), n_end = (size_t)(last - end) - 1;
        const struct expr *start = expr_bytes(b, tags, n_start);
        if (n_start == 0 || n_start > AFTER_MAX)
            return expr_fail(b, Q_INVALID, "a tag of reasoning has %zu bytes, expected 1 to %u",
                             n_start, AFTER_MAX);
        expr_add(b, &pairs,
                 n_end ? expr_seq2(b, start, reasoning_prefix_expr(b, end + 1, n_end)) : start);
        tags = last + 1;
    }
    return expr_alt(b, pairs.items, pairs.n);
}

const struct expr *reasoning_prefix_expr(struct build *b, const char *marker, size_t n)
{
    struct search s = {.marker = (const unsigned char *)marker, .n = (uint32_t)n};
    if (!is_marker(b, marker, n))
        return &expr_never;
    find_backs(&s);
    struct fsm *f = build_alloc(b, 1, sizeof *f);
    uint32_t n_state = 2 * s.n + 2;
    struct fsm_state *states = build_alloc(b, n_state, sizeof *states);
    struct fsm_edge *edges = build_alloc(b, (size_t)n_state * 64, sizeof *edges);
    if (!build_ok(b))
        return &expr_never;
    *f = (struct fsm){.states = states, .edges = edges, .n_state = n_state};
    for (uint32_t i = 0; i < 2 * s.n; i++) {
        states[i].edge = f->n_edge;
        states[i].n_edge = add_edges(edges + f->n_edge, &s, i < s.n ? i : i - s.n, i >= s.n);
        f->n_edge += states[i].n_edge;
    }
    states[2 * s.n].edge = f->n_edge;
    states[2 * s.n].n_edge = 1;
    edges[f->n_edge++] = (struct fsm_edge){PROGRAM_SPECIAL, PROGRAM_SPECIAL, 2 * s.n + 1};
    states[2 * s.n + 1].final = true;
    return expr_fsm(b, f, EXPR_RAW);
}
