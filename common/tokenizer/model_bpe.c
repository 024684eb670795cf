/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding.
 *
 * A word starts as one symbol per character (or per byte, see `raw`); then the adjacent pair with
 * the lowest rank is merged, the leftmost of equals, until no pair is in the table. There are three
 * ways to that one answer.
 *
 * First: the whole word is in `words`, the vocabulary entries that encode to themselves, found out
 * once at load time (with ignore_merges all entries, which is what that flag means). Of the words
 * of English text and C code 88 to 96 % end here (tokenizers of gpt2 and qwen3).
 *
 * Second, up to SHORT_MAX symbols: find the minimum by looking at all pairs. Quadratic, but in L1.
 *
 * Third, longer ones: a heap of pairs over a linked list of symbols, O(n log n). An entry that no
 * longer fits what stands at its place is skipped when it comes up; ranks are unique to a pair, so
 * comparing the rank is enough.
 *
 * SentencePiece-like files have no pre-tokenizer, so a word is a whole text. Their tokens hold
 * U+2581 only at the start; where that is so, the word is taken apart there first, which no merge
 * can notice.
 *
 * Files of before byte-level BPE mark a word's pieces: each character but the first gets a prefix,
 * the last a suffix ("</w>"), and a merge takes the prefix of its right part away. Such a mark is part of
 * the symbols only; see add_char and add_word.
 *
 * A cache of whole words was left out: it would be shared by threads, and the first way has most of
 * its gain. */
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tok.h"
#include "common/utf8.h"

#define SHORT_MAX  48 /* symbols; few enough that looking at all pairs stays in L1 */
#define NO_MERGE   UINT32_MAX
#define END        UINT32_MAX
#define MERGES_MAX (1u << 25)

#define MARK   "\xe2\x96\x81" /* U+2581, SentencePiece's space */
#define N_MARK 3

struct merge {
    uint64_t pair;     /* left id << 32 | right id */
    uint32_t rank, id; /* rank NO_MERGE = free slot */
};

struct bpe {
    struct merge *merges; /* [n_slot] open-addressed, n_slot a power of two */
    size_t n_slot;
    const struct tok_vocab *vocab; /* borrowed from the tokenizer */
    struct tok_vocab words;        /* words that become one token at once; keys are bytes if raw */
    size_t word_max;               /* bytes of the longest of them */
    uint32_t byte_id[256];         /* raw: the symbol of each byte */
    uint32_t fallback[256];        /* byte_fallback: <0x00>.., TOKEN_NONE where missing */
    uint32_t unk_id;               /* TOKEN_NONE: unknown characters disappear */
    bool cut_at_mark;              /* words can be taken apart before MARK: no token goes across */
    bool raw, ignore_merges, fuse_unk, byte_fallback;
    char *prefix, *suffix; /* [n_prefix], [n_suffix] of a word's pieces, NULL: none */
    size_t n_prefix, n_suffix;
};

static const struct merge *find_merge(const struct bpe *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = m->n_slot - 1;
    size_t i = (size_t)((pair * 0x9e3779b97f4a7c15ull) >> 32) & mask;
    while (m->merges[i].rank != NO_MERGE && m->merges[i].pair != pair)
        i = (i + 1) & mask;
    return &m->merges[i];
}

struct item { /* a pair that may be merged: the symbol at `at` and the one after it */
    uint32_t rank, at;
};

struct scratch {
    const struct bpe *m;
    uint32_t *ids, *prev, *next; /* [cap] symbols of the word; links only for long ones */
    struct item *heap;           /* [n_heap] */
    size_t cap, link_cap, n_heap, heap_cap;
    size_t n;        /* symbols of the word being encoded */
    struct buf mark; /* a character with prefix and suffix */
};

static enum q_code bpe_begin(void **out, const void *self, size_t n_text, struct q_err *e)
{
    (void)n_text;
    struct scratch *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory encoding");
    s->m = self;
    *out = s;
    return Q_OK;
}

static void bpe_end(void *scratch)
{
    struct scratch *s = scratch;
    if (!s)
        return;
    q_free(s->ids);
    q_free(s->prev);
    q_free(s->next);
    q_free(s->heap);
    buf_release(&s->mark);
    q_free(s);
}

/* ---- symbols ---- */

static void add_char(struct scratch *s, const char *c, size_t n, bool *unk_waits)
{
    const struct bpe *m = s->m;
    uint32_t id = tok_vocab_id(m->vocab, c, n);
    if (id != TOKEN_NONE) {
        if (*unk_waits)
            s->ids[s->n++] = m->unk_id;
        *unk_waits = false;
        s->ids[s->n++] = id;
        return;
    }
    bool all = m->byte_fallback;
    for (size_t i = 0; i < n && all; i++)
        all = m->fallback[(unsigned char)c[i]] != TOKEN_NONE;
    for (size_t i = 0; i < n && all; i++)
        s->ids[s->n++] = m->fallback[(unsigned char)c[i]];
    if (all || m->unk_id == TOKEN_NONE)
        return;
    if (*unk_waits && !m->fuse_unk)
        s->ids[s->n++] = m->unk_id;
    *unk_waits = true;
}

/* A character at a place of its word, with the marks of that place. */
static void add_marked(struct scratch *s, const char *c, size_t n, bool first, bool last,
                       bool *unk_waits)
{
    const struct bpe *m = s->m;
    buf_reset(&s->mark);
    if (!first)
        buf_add(&s->mark, m->prefix, m->n_prefix);
    buf_add(&s->mark, c, n);
    if (last)
        buf_add(&s->mark, m->suffix, m->n_suffix);
    add_char(s, buf_str(&s->mark), s->mark.len, unk_waits);
}

/* Symbols that a word of n bytes may have, at most: one for each byte of each marked character. */
static size_t symbols_max(const struct bpe *m, size_t n)
{
    return n + 1 + (m->byte_fallback ? n * m->n_prefix + m->n_suffix : 0);
}

/* s->ids has room for symbols_max. */
static void split_symbols(struct scratch *s, const char *word, size_t n)
{
    bool marks = s->m->n_prefix || s->m->n_suffix;
    s->n = 0;
    if (s->m->raw) {
        for (size_t i = 0; i < n; i++)
            s->ids[i] = s->m->byte_id[(unsigned char)word[i]];
        s->n = n;
        return;
    }
    bool unk_waits =
        false; /* the reference puts a run of unknowns down only when a known character comes */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t step = utf8_decode(word + i, n - i, &cp);
        if (marks)
            add_marked(s, word + i, step, i == 0, i + step == n, &unk_waits);
        else
            add_char(s, word + i, step, &unk_waits);
        i += step;
    }
    if (unk_waits)
        s->ids[s->n++] = s->m->unk_id;
}

/* ---- merging ---- */

static void merge_short(struct scratch *s)
{
    uint32_t rank[SHORT_MAX], id[SHORT_MAX]; /* of the pair that starts at i */
    uint32_t *ids = s->ids;
    size_t n = s->n;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge *g = find_merge(s->m, ids[i], ids[i + 1]);
        rank[i] = g->rank;
        id[i] = g->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        if (rank[best] == NO_MERGE)
            break;
        ids[best] = id[best];
        size_t tail = n - best - 2; /* symbols after the pair */
        memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
        n--;
        if (tail) {
            memmove(rank + best + 1, rank + best + 2, (tail - 1) * sizeof *rank);
            memmove(id + best + 1, id + best + 2, (tail - 1) * sizeof *id);
            const struct merge *g = find_merge(s->m, ids[best], ids[best + 1]);
            rank[best] = g->rank;
            id[best] = g->id;
        }
        if (best > 0) {
            const struct merge *g = find_merge(s->m, ids[best - 1], ids[best]);
            rank[best - 1] = g->rank;
            id[best - 1] = g->id;
        }
    }
    s->n = n;
}

static bool before(struct item a, struct item b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void sift_down(struct item *h, size_t n, size_t i)
{
    struct item x = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(h[child + 1], h[child]))
            child++;
        if (!before(h[child], x))
            break;
        h[i] = h[child];
    }
    h[i] = x;
}

static enum q_code heap_push(struct scratch *s, uint32_t at, struct q_err *e)
{
    uint32_t right = s->next[at];
    if (right == END)
        return Q_OK;
    struct item x = {find_merge(s->m, s->ids[at], s->ids[right])->rank, at};
    if (x.rank == NO_MERGE)
        return Q_OK;
    if (s->n_heap == s->heap_cap) {
        enum q_code rc = q_grow(&s->heap, &s->heap_cap, s->n_heap + 1, sizeof x, SIZE_MAX / 64, e);
        if (rc)
            return rc;
    }
    size_t i = s->n_heap++;
    for (; i && before(x, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
    return Q_OK;
}

static enum q_code long_init(struct scratch *s, struct q_err *e)
{
    enum q_code rc;
    size_t cap = s->link_cap;
    if ((rc = q_grow(&s->prev, &cap, s->n, sizeof *s->prev, UINT32_MAX, e)))
        return rc;
    cap = s->link_cap;
    if ((rc = q_grow(&s->next, &cap, s->n, sizeof *s->next, UINT32_MAX, e)))
        return rc;
    s->link_cap = cap;
    s->n_heap = 0;
    if ((rc = q_grow(&s->heap, &s->heap_cap, s->n, sizeof *s->heap, SIZE_MAX / 64, e)))
        return rc;
    for (size_t i = 0; i < s->n; i++) {
        s->prev[i] = i ? (uint32_t)i - 1 : END;
        s->next[i] = i + 1 < s->n ? (uint32_t)i + 1 : END;
        if (i + 1 == s->n)
            break;
        uint32_t rank = find_merge(s->m, s->ids[i], s->ids[i + 1])->rank;
        if (rank != NO_MERGE)
            s->heap[s->n_heap++] = (struct item){rank, (uint32_t)i};
    }
    for (size_t i = s->n_heap / 2; i-- > 0;)
        sift_down(s->heap, s->n_heap, i);
    return Q_OK;
}

static enum q_code merge_long(struct scratch *s, struct q_err *e)
{
    enum q_code rc = long_init(s, e);
    while (!rc && s->n_heap) {
        struct item top = s->heap[0];
        s->heap[0] = s->heap[--s->n_heap];
        if (s->n_heap)
            sift_down(s->heap, s->n_heap, 0);
        uint32_t at = top.at;
        uint32_t right = s->next[at];
        if (s->ids[at] == TOKEN_NONE || right == END)
            continue;
        const struct merge *g = find_merge(s->m, s->ids[at], s->ids[right]);
        if (g->rank != top.rank)
            continue;
        s->ids[at] = g->id;
        s->ids[right] = TOKEN_NONE;
        s->next[at] = s->next[right];
        if (s->next[right] != END)
            s->prev[s->next[right]] = at;
        if (s->prev[at] != END)
            rc = heap_push(s, s->prev[at], e);
        if (!rc)
            rc = heap_push(s, at, e);
    }
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->ids[i] != TOKEN_NONE)
            s->ids[n++] = s->ids[i];
    }
    s->n = n;
    return rc;
}

static enum q_code merge_word(struct scratch *s, const char *word, size_t n, struct q_err *e)
{
    enum q_code rc = q_grow(&s->ids, &s->cap, symbols_max(s->m, n), sizeof *s->ids, UINT32_MAX, e);
    if (rc)
        return rc;
    split_symbols(s, word, n);
    if ((rc = buf_check(&s->mark, "a marked character", e)))
        return rc;
    if (s->n > SHORT_MAX)
        return merge_long(s, e);
    merge_short(s);
    return Q_OK;
}

static enum q_code encode_word(struct scratch *s, const char *word, size_t n,
                               struct token_list *out, struct q_err *e)
{
    if (n <= s->m->word_max) {
        uint32_t id = tok_vocab_id(&s->m->words, word, n);
        if (id != TOKEN_NONE)
            return token_list_add(out, id, e);
    }
    enum q_code rc = merge_word(s, word, n, e);
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = token_list_add(out, s->ids[i], e);
    return rc;
}

/* Bytes up to the first MARK that follows something else. */
static size_t chunk_length(const char *word, size_t n)
{
    for (size_t i = 1; i + N_MARK <= n;) {
        const char *mark = memmem(word + i, n - i, MARK, N_MARK);
        if (!mark)
            break;
        size_t at = (size_t)(mark - word);
        if (at < N_MARK || memcmp(mark - N_MARK, MARK, N_MARK) != 0)
            return at;
        i = at + N_MARK;
    }
    return n;
}

static enum q_code bpe_encode(void *scratch, const char *word, size_t n, struct token_list *out,
                              struct q_err *e)
{
    struct scratch *s = scratch;
    enum q_code rc = Q_OK;
    if (!s->m->cut_at_mark || s->m->ignore_merges)
        return encode_word(s, word, n, out, e);
    while (n && !rc) {
        size_t chunk = chunk_length(word, n);
        rc = encode_word(s, word, chunk, out, e);
        word += chunk;
        n -= chunk;
    }
    return rc;
}

/* ---- loading ---- */

static void bpe_drop(void *self)
{
    struct bpe *m = self;
    if (!m)
        return;
    q_free(m->merges);
    q_free(m->prefix);
    q_free(m->suffix);
    tok_vocab_release(&m->words);
    q_free(m);
}

struct merge_reader {
    struct tok_scan scan;
    struct tok_str a, b;     /* the merge read last; a may be in `left` */
    struct buf left, joined; /* memory for it and for what it makes */
    uint32_t rank;
};

/* "a b" or ["a", "b"]. */
static bool read_merge(struct merge_reader *r)
{
    struct tok_scan *s = &r->scan;
    if (scan_peek(s) == '"') {
        if (!scan_string(s, &r->a))
            return false;
        const char *end = r->a.s + r->a.n;
        const char *space = memchr(r->a.s, ' ', r->a.n);
        if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
            return false;
        r->a.n = (size_t)(space - r->a.s);
        r->b = (struct tok_str){space + 1, (size_t)(end - space - 1)};
        return true;
    }
    if (!scan_open(s, '[') || !scan_item(s, ']') || !scan_string(s, &r->a))
        return false;
    buf_reset(&r->left);
    buf_add(&r->left, r->a.s, r->a.n); /* the next string may overwrite it */
    r->a.s = buf_str(&r->left);
    return scan_item(s, ']') && scan_string(s, &r->b) && !scan_item(s, ']') && !scan_failed(s);
}

static int shown(struct tok_str s)
{
    return s.n < 40 ? (int)s.n : 40;
}

static enum q_code add_merge(struct bpe *m, struct merge_reader *r, struct q_err *e)
{
    struct tok_str a = r->a;
    struct tok_str b = r->b;
    enum q_code rc;
    if (b.n < m->n_prefix)
        return q_fail(e, Q_CORRUPT,
                      "tokenizer.json: model.merges[%u]: \"%.*s\" is shorter than "
                      "continuing_subword_prefix",
                      r->rank, shown(b), b.s);
    buf_reset(&r->joined);
    buf_add(&r->joined, a.s, a.n);
    buf_add(&r->joined, b.s + m->n_prefix, b.n - m->n_prefix);
    if ((rc = buf_check(&r->joined, "merge", e)) || (rc = buf_check(&r->left, "merge", e)))
        return rc;
    uint32_t left = tok_vocab_id(m->vocab, a.s, a.n);
    uint32_t right = tok_vocab_id(m->vocab, b.s, b.n);
    uint32_t id = tok_vocab_id(m->vocab, buf_str(&r->joined), r->joined.len);
    if (left == TOKEN_NONE || right == TOKEN_NONE || id == TOKEN_NONE)
        return q_fail(
            e, Q_CORRUPT,
            "tokenizer.json: model.merges[%u]: \"%.*s\" + \"%.*s\": %s is not in the vocabulary",
            r->rank, shown(a), a.s, shown(b), b.s,
            left == TOKEN_NONE    ? "the first"
            : right == TOKEN_NONE ? "the second"
                                  : "the sum");
    struct merge *slot = (struct merge *)find_merge(m, left, right);
    *slot = (struct merge){(uint64_t)left << 32 | right, r->rank, id};
    return Q_OK;
}

static enum q_code merge_slots(struct bpe *m, size_t n, struct q_err *e)
{
    if (n > MERGES_MAX)
        return q_fail(e, Q_TOO_LARGE, "tokenizer.json: model.merges: more than %u", MERGES_MAX);
    for (m->n_slot = 16; m->n_slot < n + n / 2; m->n_slot *= 2) {
    }
    m->merges = q_alloc(m->n_slot * sizeof *m->merges);
    if (!m->merges)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu merges", n);
    memset(m->merges, 0xff, m->n_slot * sizeof *m->merges); /* rank NO_MERGE */
    return Q_OK;
}

/* How many items the array has. */
static size_t count_items(struct tok_str array)
{
    struct tok_scan s;
    size_t n = 0;
    scan_init(&s, array);
    for (bool ok = scan_open(&s, '['); ok && scan_item(&s, ']'); n++)
        ok = scan_skip(&s);
    scan_release(&s);
    return n;
}

#define MERGES_WANT "\"a b\" or [\"a\", \"b\"]"

static enum q_code load_merges(struct bpe *m, struct tok_str merges, struct q_err *e)
{
    struct merge_reader r = {.rank = 0};
    struct tok_scan *s = &r.scan;
    enum q_code rc = merge_slots(m, count_items(merges), e);
    scan_init(s, merges);
    if (!rc && !scan_open(s, '['))
        rc = tok_bad_value(s, merges, "merges", "an array of " MERGES_WANT, e);
    for (; !rc && scan_item(s, ']'); r.rank++) {
        char key[32];
        scan_peek(s);
        const char *from = s->p;
        snprintf(key, sizeof key, "merges[%u]", r.rank);
        if (read_merge(&r))
            rc = add_merge(m, &r, e);
        else {
            s->p = from;
            rc = tok_bad_value(s, merges, key, MERGES_WANT, e);
        }
        s->more = true;
    }
    if (!rc && scan_failed(s))
        rc = tok_bad_value(s, merges, "merges", "an array of " MERGES_WANT, e);
    scan_release(s);
    buf_release(&r.left);
    buf_release(&r.joined);
    return rc;
}

/* ---- merges by ranks: wherever two entries together are a third ---- */

struct ranked {
    struct merge *all; /* [n] */
    size_t n, cap;
};

/* Every way to cut one entry in two others. */
static enum q_code add_cuts(const struct bpe *m, const struct tok_word *w, uint32_t rank,
                            struct ranked *r, struct q_err *e)
{
    const char *s = m->vocab->pool.data + w->off;
    for (size_t i = 1; i < w->len; i++) {
        if (((unsigned char)s[i] & 0xc0) == 0x80)
            continue;
        uint32_t left = tok_vocab_id(m->vocab, s, i);
        uint32_t right = left == TOKEN_NONE ? left : tok_vocab_id(m->vocab, s + i, w->len - i);
        if (right == TOKEN_NONE)
            continue;
        enum q_code rc = q_grow(&r->all, &r->cap, r->n + 1, sizeof *r->all, MERGES_MAX, e);
        if (rc)
            return rc;
        r->all[r->n++] = (struct merge){(uint64_t)left << 32 | right, rank, w->id};
    }
    return Q_OK;
}

static enum q_code rank_merges(struct bpe *m, const struct tok_extra *x, struct q_err *e)
{
    struct ranked r = {NULL, 0, 0};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < m->vocab->n_word && !rc; i++) {
        const struct tok_word *w = &m->vocab->words[i];
        uint32_t rank = w->id < x->n ? x->ranks[w->id] : RANK_NONE;
        if (rank != RANK_NONE)
            rc = add_cuts(m, w, rank, &r, e);
    }
    if (!rc && !(rc = merge_slots(m, r.n, e))) {
        for (size_t i = 0; i < r.n; i++) {
            uint64_t pair = r.all[i].pair;
            struct merge *slot =
                (struct merge *)find_merge(m, (uint32_t)(pair >> 32), (uint32_t)pair);
            *slot = r.all[i];
        }
    }
    q_free(r.all);
    return rc;
}

/* Whether a vocabulary entry encodes to itself. */
static enum q_code add_word(struct bpe *m, struct scratch *s, const struct tok_word *w,
                            struct buf *bytes, struct q_err *e)
{
    const char *word = m->vocab->pool.data + w->off;
    size_t n = w->len;
    enum q_code rc;
    if (m->raw) {
        buf_reset(bytes);
        if (!tok_unmap(word, n, bytes))
            return buf_check(bytes, "vocabulary", e);
        word = buf_str(bytes);
        n = bytes->len;
    }
    if (m->n_suffix && !m->ignore_merges) { /* a whole word's entry ends with the suffix */
        if (n < m->n_suffix || memcmp(word + n - m->n_suffix, m->suffix, m->n_suffix) != 0)
            return Q_OK;
        n -= m->n_suffix;
    }
    if (n == 0)
        return Q_OK;
    if (!m->ignore_merges) {
        if ((rc = merge_word(s, word, n, e)))
            return rc;
        if (s->n != 1 || s->ids[0] != w->id)
            return Q_OK;
    }
    if (n > m->word_max)
        m->word_max = n;
    return tok_vocab_add(&m->words, word, n, w->id, e);
}

static enum q_code load_words(struct bpe *m, struct q_err *e)
{
    void *scratch = NULL;
    struct buf bytes = BUF_INIT;
    enum q_code rc = bpe_begin(&scratch, m, 0, e);
    if (!rc)
        rc = tok_vocab_reserve(&m->words, m->vocab->n_word, e);
    for (size_t i = 0; i < m->vocab->n_word && !rc; i++)
        rc = add_word(m, scratch, &m->vocab->words[i], &bytes, e);
    m->word_max = rc ? 0 : m->word_max;
    buf_release(&bytes);
    bpe_end(scratch);
    return rc;
}

static void load_bytes(struct bpe *m, bool raw)
{
    m->raw = raw && !m->n_prefix && !m->n_suffix;
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        int n = snprintf(text, sizeof text, "<0x%02X>", b);
        m->fallback[b] = tok_vocab_id(m->vocab, text, (size_t)n);
        m->byte_id[b] =
            tok_vocab_id(m->vocab, text, utf8_encode(tok_byte_char((unsigned char)b), text));
        bool in_utf8 = b < 0xf5 && b != 0xc0 && b != 0xc1;
        if (in_utf8 && m->byte_id[b] == TOKEN_NONE)
            m->raw = false; /* a byte without a symbol follows the rules for unknown characters */
    }
}

static enum q_code load_affix(char **out, size_t *n, const json_t *spec, const char *key,
                              struct q_err *e)
{
    const json_t *a = json_object_get(spec, key);
    if (!a || json_is_null(a))
        return Q_OK;
    if (!json_is_string(a))
        return tok_json_bad(a, "model", key, "a string or null", e);
    *n = json_string_length(a);
    *out = q_strndup(json_string_value(a), *n);
    return *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
}

/* Options that are refused, or read into m. */
static enum q_code load_options(struct bpe *m, const json_t *spec, struct q_err *e)
{
    enum q_code rc;
    const json_t *dropout = json_object_get(spec, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: model.dropout is not supported");
    if ((rc = load_affix(&m->prefix, &m->n_prefix, spec, "continuing_subword_prefix", e)) ||
        (rc = load_affix(&m->suffix, &m->n_suffix, spec, "end_of_word_suffix", e)))
        return rc;
    if ((rc = tok_json_bool(spec, "ignore_merges", "model", &m->ignore_merges, e)) ||
        (rc = tok_json_bool(spec, "fuse_unk", "model", &m->fuse_unk, e)))
        return rc;
    return tok_json_bool(spec, "byte_fallback", "model", &m->byte_fallback, e);
}

static enum q_code load_unk(struct bpe *m, const json_t *spec, struct q_err *e)
{
    const json_t *unk = json_object_get(spec, "unk_token");
    m->unk_id = TOKEN_NONE;
    if (!unk || json_is_null(unk))
        return Q_OK;
    if (!json_is_string(unk))
        return tok_json_bad(unk, "model", "unk_token", "a string or null", e);
    m->unk_id = tok_vocab_id(m->vocab, json_string_value(unk), json_string_length(unk));
    if (m->unk_id == TOKEN_NONE)
        return q_fail(e, Q_CORRUPT,
                      "tokenizer.json: model.unk_token \"%.40s\" is not in the vocabulary",
                      json_string_value(unk));
    return Q_OK;
}

/* Whether no merge puts a MARK behind another character. */
static bool marks_start_words(const struct bpe *m)
{
    const struct tok_vocab *v = m->vocab;
    if (tok_vocab_id(v, MARK, N_MARK) == TOKEN_NONE)
        return false;
    for (size_t i = 0; i < v->n_word; i++) {
        const struct tok_word *w = &v->words[i];
        if (chunk_length(v->pool.data + w->off, w->len) != w->len)
            return false;
    }
    return true;
}

static enum q_code bpe_load(void **self, const struct model_src *src, struct tok_vocab *v,
                            bool *raw, struct q_err *e)
{
    const json_t *spec = src->spec;
    enum q_code rc;
    struct bpe *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
    *self = m;
    m->vocab = v;
    if ((rc = load_options(m, spec, e)) || (rc = tok_load_vocab(v, src->big.vocab, e)) ||
        (rc = load_unk(m, spec, e)) ||
        (rc = src->extra && src->extra->ranks ? rank_merges(m, src->extra, e)
                                              : load_merges(m, src->big.merges, e)))
        return rc;
    load_bytes(m, *raw);
    *raw = m->raw;
    m->cut_at_mark = !m->raw && !m->n_prefix && !m->n_suffix && marks_start_words(m);
    return load_words(m, e);
}

const struct model_ops model_bpe = {bpe_load, bpe_drop, bpe_begin, bpe_end, bpe_encode};
