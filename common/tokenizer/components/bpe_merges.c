/* SPDX-License-Identifier: Apache-2.0 */
/* The table of merges, made from a list of merges or from ranks.
 *
 * A tokenizer of 128 000 tokens has 280 000 merges. Each needs three string look-ups and a table
 * entry, and none of these tables fits into the cache of a core. Merges are therefore read in
 * batches whose look-ups are prefetched together (tok_vocab_ids), and the result of a merge is
 * searched first after the previous result: files list tokens in the order of their creation. */
#include "common/tokenizer/components/bpe.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

#define MERGES_MAX  (1u << 25)
#define BATCH       (TOK_BATCH / 2) /* merges looked up together */
#define MERGE_MIN   4               /* bytes that a merge takes at least */
#define MERGES_WANT "\"a b\" or [\"a\", \"b\"]"

static struct merge *slot_of(const struct bpe *m, uint64_t pair)
{
    return (struct merge *)bpe_merge(m, (uint32_t)(pair >> 32), (uint32_t)pair);
}

/* ---- the table ---- */

/* A table for n merges and those that are there. */
static enum q_code resize(struct bpe *m, size_t n, struct q_err *e)
{
    struct bpe bigger = *m;
    for (bigger.n_slot = 16; bigger.n_slot < n + n / 2; bigger.n_slot *= 2) {
    }
    size_t bytes = bigger.n_slot * sizeof *m->merges;
    if (!(bigger.merges = q_alloc_huge(bytes)))
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu merges", n);
    memset(bigger.merges, 0xff, bytes); /* rank NO_MERGE */
    for (size_t i = 0; i < m->n_slot; i++)
        if (m->merges[i].rank != NO_MERGE)
            *slot_of(&bigger, m->merges[i].pair) = m->merges[i];
    q_free(m->merges);
    *m = bigger;
    return Q_OK;
}

/* Of two with the same pair the later one counts. */
static enum q_code put_merge(struct bpe *m, struct merge g, struct q_err *e)
{
    enum q_code rc;
    if (m->n_merge == MERGES_MAX)
        return q_fail(e, Q_TOO_LARGE, "tokenizer.json: model.merges: more than %u merges",
                      MERGES_MAX);
    if (m->n_merge + m->n_merge / 2 >= m->n_slot && (rc = resize(m, m->n_merge * 2, e)))
        return rc;
    struct merge *slot = slot_of(m, g.pair);
    m->n_merge += slot->rank == NO_MERGE;
    *slot = g;
    return Q_OK;
}

/* ---- a list ---- */

struct reader {
    struct tok_scan scan;
    struct tok_str parts[2 * BATCH]; /* left and right of the merges not looked up yet */
    struct buf copy[2];              /* left and right with escapes; then these are the last ones */
    size_t n_part;
    bool copied;
    struct buf joined;
    size_t n;     /* merges looked up */
    size_t i_sum; /* where the last sum stood in the vocabulary */
};

/* A string that stays good: one with escapes is copied. */
static bool read_part(struct reader *r, struct buf *copy, struct tok_str *out)
{
    struct tok_scan *s = &r->scan;
    if (!scan_string(s, out))
        return false;
    if (out->s != buf_str(&s->text) || !out->n)
        return true;
    buf_reset(copy);
    buf_add(copy, out->s, out->n);
    out->s = buf_str(copy);
    r->copied = true;
    return !copy->failed;
}

/* "a b", with escapes or what else scan_two_words does not read. */
static bool read_words(struct reader *r, struct tok_str *a, struct tok_str *b)
{
    if (!read_part(r, &r->copy[0], a))
        return false;
    const char *end = a->s + a->n;
    const char *space = memchr(a->s, ' ', a->n);
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return false;
    a->n = (size_t)(space - a->s);
    *b = (struct tok_str){space + 1, (size_t)(end - space - 1)};
    return true;
}

/* ["a", "b"] */
static bool read_list(struct reader *r, struct tok_str *a, struct tok_str *b)
{
    struct tok_scan *s = &r->scan;
    return scan_open(s, '[') && scan_item(s, ']') && read_part(r, &r->copy[0], a) &&
           scan_item(s, ']') && read_part(r, &r->copy[1], b) && !scan_item(s, ']') &&
           !scan_failed(s);
}

/* What scan_two_words reads may be no UTF-8; then it is not in the vocabulary. */
static bool read_merge(struct reader *r)
{
    struct tok_scan *s = &r->scan;
    struct tok_str *a = &r->parts[r->n_part];
    struct tok_str *b = a + 1;
    if (!scan_two_words(s, a, b) &&
        !(scan_peek(s) == '"' ? read_words(r, a, b) : read_list(r, a, b)))
        return false;
    r->n_part += 2;
    return true;
}

static int shown(struct tok_str s)
{
    return s.n < 40 ? (int)s.n : 40;
}

/* The id of a + b (without the prefix), TOKEN_NONE when it is not in the vocabulary. */
static uint32_t sum_id(struct reader *r, const struct bpe *m, struct tok_str a, struct tok_str b)
{
    const struct tok_vocab *v = m->vocab;
    size_t n = a.n + b.n - m->n_prefix;
    const char *rest = b.s + m->n_prefix;
    for (size_t k = r->i_sum; k < r->i_sum + 2 && k < v->n_word; k++) {
        const struct tok_word *w = &v->words[k];
        const char *text = v->pool.data + w->off;
        if (w->len == n && tok_equal(text, a.s, a.n) && tok_equal(text + a.n, rest, n - a.n)) {
            r->i_sum = k;
            return w->id;
        }
    }
    buf_reset(&r->joined);
    buf_add(&r->joined, a.s, a.n);
    buf_add(&r->joined, rest, n - a.n);
    uint32_t i =
        r->joined.failed ? TOKEN_NONE : tok_vocab_find(v, buf_str(&r->joined), r->joined.len);
    if (i == TOKEN_NONE)
        return i;
    r->i_sum = i;
    return v->words[i].id;
}

/* The next merge, of two parts with these ids. */
static enum q_code make_merge(struct reader *r, const struct bpe *m, const struct tok_str *part,
                              const uint32_t *ids, struct merge *out, struct q_err *e)
{
    size_t rank = r->n++;
    if (part[1].n < m->n_prefix)
        return q_fail(e, Q_CORRUPT,
                      "tokenizer.json: model.merges[%zu]: \"%.*s\" is shorter than "
                      "continuing_subword_prefix",
                      rank, shown(part[1]), part[1].s);
    uint32_t id = sum_id(r, m, part[0], part[1]);
    enum q_code rc;
    if (id == TOKEN_NONE && (rc = buf_check(&r->joined, "merge", e)))
        return rc;
    if (ids[0] == TOKEN_NONE || ids[1] == TOKEN_NONE || id == TOKEN_NONE)
        return q_fail(
            e, Q_CORRUPT,
            "tokenizer.json: model.merges[%zu]: \"%.*s\" + \"%.*s\": %s is not in the vocabulary",
            rank, shown(part[0]), part[0].s, shown(part[1]), part[1].s,
            ids[0] == TOKEN_NONE   ? "the first"
            : ids[1] == TOKEN_NONE ? "the second"
                                   : "the merged token");
    *out = (struct merge){(uint64_t)ids[0] << 32 | ids[1], (uint32_t)rank, id};
    return Q_OK;
}

/* Look up the merges that were read. */
static enum q_code flush(struct reader *r, struct bpe *m, struct q_err *e)
{
    uint32_t ids[2 * BATCH];
    struct merge found[BATCH];
    enum q_code rc = Q_OK;
    tok_vocab_ids(m->vocab, r->parts, r->n_part, ids);
    for (size_t i = 0; i < r->n_part / 2 && !rc; i++) {
        if (!(rc = make_merge(r, m, r->parts + 2 * i, ids + 2 * i, &found[i], e)))
            __builtin_prefetch(&m->merges[bpe_slot(m, found[i].pair)], 1);
    }
    for (size_t i = 0; i < r->n_part / 2 && !rc; i++)
        rc = put_merge(m, found[i], e);
    r->n_part = 0;
    r->copied = false;
    return rc;
}

static enum q_code read_all(struct reader *r, struct bpe *m, struct tok_str merges, struct q_err *e)
{
    struct tok_scan *s = &r->scan;
    enum q_code rc = Q_OK;
    if (!scan_open(s, '['))
        return tok_bad_value(s, merges, "merges", "an array of " MERGES_WANT, e);
    while (!rc && scan_item(s, ']')) {
        scan_peek(s);
        const char *from = s->p;
        if (!read_merge(r)) {
            char key[40];
            snprintf(key, sizeof key, "merges[%zu]", r->n + r->n_part / 2);
            s->p = from;
            if (!(rc = flush(r, m, e))) /* what is wrong first is said */
                rc = tok_bad_value(s, merges, key, MERGES_WANT, e);
            break;
        }
        s->more = true;
        if (r->n_part == 2 * BATCH || r->copied)
            rc = flush(r, m, e);
    }
    if (!rc)
        rc = flush(r, m, e);
    if (!rc && scan_failed(s))
        rc = tok_bad_value(s, merges, "merges", "an array of " MERGES_WANT, e);
    return rc;
}

enum q_code bpe_load_merges(struct bpe *m, const struct tok_big *big, struct q_err *e)
{
    struct reader r = {.n_part = 0};
    scan_init(&r.scan, big->merges);
    size_t n_max = big->merges.n / MERGE_MIN < MERGES_MAX ? big->merges.n / MERGE_MIN : MERGES_MAX;
    enum q_code rc = resize(m, big->n_merge < n_max ? big->n_merge : n_max, e);
    if (!rc)
        rc = read_all(&r, m, big->merges, e);
    scan_release(&r.scan);
    buf_release(&r.joined);
    buf_release(&r.copy[0]);
    buf_release(&r.copy[1]);
    return rc;
}

/* ---- ranks ---- */

/* Every way to cut one entry in two others. */
static enum q_code add_cuts(struct bpe *m, const struct tok_word *w, uint32_t rank, struct q_err *e)
{
    const char *s = m->vocab->pool.data + w->off;
    enum q_code rc = Q_OK;
    for (size_t i = 1; i < w->len && !rc; i++) {
        if (((unsigned char)s[i] & 0xc0) == 0x80)
            continue;
        uint32_t left = tok_vocab_id(m->vocab, s, i);
        uint32_t right = left == TOKEN_NONE ? left : tok_vocab_id(m->vocab, s + i, w->len - i);
        if (right != TOKEN_NONE)
            rc = put_merge(m, (struct merge){(uint64_t)left << 32 | right, rank, w->id}, e);
    }
    return rc;
}

enum q_code bpe_rank_merges(struct bpe *m, const struct tok_extra *x, struct q_err *e)
{
    enum q_code rc = resize(m, m->vocab->n_word * 2, e); /* there are two cuts a token or so */
    for (size_t i = 0; i < m->vocab->n_word && !rc; i++) {
        const struct tok_word *w = &m->vocab->words[i];
        uint32_t rank = w->id < x->n ? x->ranks[w->id] : RANK_NONE;
        if (rank != RANK_NONE)
            rc = add_cuts(m, w, rank, e);
    }
    return rc;
}
