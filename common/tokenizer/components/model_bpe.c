/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding.
 *
 * A word starts as one symbol per character (or per byte, see `raw`). Then the adjacent pair with
 * the lowest rank is merged, the leftmost of equals, until no pair is in the table. Three methods
 * give the same result.
 *
 * First: the whole word is an entry of `words`, the vocabulary, and encodes to itself (with
 * ignore_merges all entries do). Whether an entry does is computed at its first use and stored in
 * `whole`; at load time this would take as long as the rest of the load. 88 to 96 % of the words
 * of English text and C code end here (tokenizers of gpt2 and qwen3).
 *
 * Second, up to SHORT_MAX symbols: search of the minimum over all pairs. Quadratic, but in L1.
 *
 * Third, longer words: a heap of pairs over a linked list of symbols, O(n log n). A heap entry
 * whose symbols have changed is skipped; ranks are unique to a pair, so a comparison of ranks
 * detects it.
 *
 * SentencePiece-like files have no pre-tokenizer, so a word is a whole text. If tokens contain
 * U+2581 only at their start, the word is first cut there; no merge crosses such a cut.
 *
 * Files older than byte-level BPE mark the pieces of a word: each character but the first has a
 * prefix, the last one a suffix ("</w>"), and a merge removes the prefix of its right part. Marks
 * belong to the symbols only; see add_char and add_word.
 *
 * There is no cache of whole words: it would be shared by threads, and the first method has most
 * of its gain. */
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/bpe.h"
#include "common/tokenizer/steps.h"
#include "common/tokenizer/tokenizer_internal.h"
#include "common/utf8.h"

#define SHORT_MAX 48 /* symbols; few enough that looking at all pairs stays in L1 */
#define END       UINT32_MAX

#define MARK   "\xe2\x96\x81" /* U+2581, SentencePiece's space */
#define N_MARK 3

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
        const struct merge *g = bpe_merge(s->m, ids[i], ids[i + 1]);
        rank[i] = g->rank;
        id[i] = g->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        TOK_STEPS(n);
        if (rank[best] == NO_MERGE)
            break;
        ids[best] = id[best];
        size_t tail = n - best - 2; /* symbols after the pair */
        memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
        n--;
        if (tail) {
            memmove(rank + best + 1, rank + best + 2, (tail - 1) * sizeof *rank);
            memmove(id + best + 1, id + best + 2, (tail - 1) * sizeof *id);
            const struct merge *g = bpe_merge(s->m, ids[best], ids[best + 1]);
            rank[best] = g->rank;
            id[best] = g->id;
        }
        if (best > 0) {
            const struct merge *g = bpe_merge(s->m, ids[best - 1], ids[best]);
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
        TOK_STEPS(1);
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
    struct item x = {bpe_merge(s->m, s->ids[at], s->ids[right])->rank, at};
    if (x.rank == NO_MERGE)
        return Q_OK;
    if (s->n_heap == s->heap_cap) {
        enum q_code rc = q_grow(&s->heap, &s->heap_cap, s->n_heap + 1, sizeof x, SIZE_MAX / 64, e);
        if (rc)
            return rc;
    }
    TOK_STEPS(1);
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
        uint32_t rank = bpe_merge(s->m, s->ids[i], s->ids[i + 1])->rank;
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
        const struct merge *g = bpe_merge(s->m, s->ids[at], s->ids[right]);
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
    TOK_STEPS(n);
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
    const struct bpe *m = s->m;
    uint32_t i_word = n <= m->word_max ? tok_vocab_find(m->words, word, n) : TOKEN_NONE;
    uint32_t id = i_word != TOKEN_NONE ? m->words->words[i_word].id : TOKEN_NONE;
    uint8_t known = WORD_SPLITS;
    if (i_word != TOKEN_NONE)
        known = m->ignore_merges ? WORD_WHOLE
                                 : atomic_load_explicit(&m->whole[i_word], memory_order_relaxed);
    if (known == WORD_WHOLE)
        return token_list_add(out, id, e);
    enum q_code rc = merge_word(s, word, n, e);
    if (!rc && known == WORD_UNKNOWN) {
        bool whole = s->n == 1 && s->ids[0] == id;
        atomic_store_explicit(&m->whole[i_word], whole ? WORD_WHOLE : WORD_SPLITS,
                              memory_order_relaxed);
    }
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = token_list_add(out, s->ids[i], e);
    return rc;
}

/* Bytes up to the first MARK that follows something else. */
static size_t chunk_length(const char *word, size_t n)
{
    for (size_t i = 1; i + N_MARK <= n;) {
        const char *mark = memmem(word + i, n - i, MARK, N_MARK);
        if (!mark) {
            TOK_STEPS(n - i);
            break;
        }
        size_t at = (size_t)(mark - word);
        TOK_STEPS(at - i + 1);
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
    q_free(m->whole);
    tok_vocab_release(&m->own);
    q_free(m);
}

/* A vocabulary entry as a word: its bytes if raw (then there is no suffix), else without the suffix
 * that ends a whole word. Entries that are neither are no words. */
static enum q_code add_word(struct bpe *m, const struct tok_word *w, struct q_err *e)
{
    const char *word = m->vocab->pool.data + w->off;
    struct buf *pool = &m->own.pool;
    size_t off = pool->len;
    if (m->raw) {
        if (!tok_unmap(word, w->len, pool))
            return Q_OK;
    } else if (w->len >= m->n_suffix &&
               memcmp(word + w->len - m->n_suffix, m->suffix, m->n_suffix) == 0)
        buf_add(pool, word, w->len - m->n_suffix);
    bool empty = pool->len == off && !pool->failed;
    return empty ? Q_OK : tok_vocab_end(&m->own, off, w->id, e);
}

static enum q_code load_words(struct bpe *m, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (m->raw || (m->n_suffix && !m->ignore_merges)) {
        rc = tok_vocab_reserve(&m->own, m->vocab->n_word, e);
        for (size_t i = 0; i < m->vocab->n_word && !rc; i++)
            rc = add_word(m, &m->vocab->words[i], e);
        rc = rc ? rc : tok_vocab_index(&m->own, e);
        m->words = &m->own;
    } else
        m->words = m->vocab;
    if (rc)
        return rc;
    m->whole = q_calloc(m->words->n_word + 1, sizeof *m->whole);
    if (!m->whole)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu words", m->words->n_word);
    for (size_t i = 0; i < m->words->n_word; i++)
        m->word_max = m->words->words[i].len > m->word_max ? m->words->words[i].len : m->word_max;
    return Q_OK;
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

static bool only_marks(const char *s, size_t n)
{
    size_t i = 0;
    while (i + N_MARK <= n && memcmp(s + i, MARK, N_MARK) == 0)
        i += N_MARK;
    return i == n;
}

/* Whether an unknown character is a symbol and no MARK: where it vanishes, or is one, MARKs from
 * both sides of it can meet. */
static bool unknowns_stay(const struct bpe *m)
{
    const struct tok_vocab *v = m->vocab;
    bool all = m->byte_fallback;
    bool marks = m->unk_id == TOKEN_NONE;
    for (size_t b = 0; b < 256 && all; b++)
        all = m->fallback[b] != TOKEN_NONE;
    for (size_t i = 0; i < v->n_word && !all && !marks; i++)
        marks = v->words[i].id == m->unk_id &&
                only_marks(v->pool.data + v->words[i].off, v->words[i].len);
    return all || !marks;
}

/* Whether no merge puts a MARK behind another character. */
static bool marks_start_words(const struct bpe *m)
{
    const struct tok_vocab *v = m->vocab;
    if (tok_vocab_id(v, MARK, N_MARK) == TOKEN_NONE || !unknowns_stay(m))
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
    if ((rc = load_options(m, spec, e)) || (rc = tok_load_vocab(v, &src->big, e)) ||
        (rc = load_unk(m, spec, e)) ||
        (rc = src->extra && src->extra->ranks ? bpe_rank_merges(m, src->extra, e)
                                              : bpe_load_merges(m, &src->big, e)))
        return rc;
    load_bytes(m, *raw);
    *raw = m->raw;
    m->cut_at_mark = !m->raw && !m->n_prefix && !m->n_suffix && marks_start_words(m);
    return load_words(m, e);
}

const struct model_ops model_bpe = {bpe_load, bpe_drop, bpe_begin, bpe_end, bpe_encode};
