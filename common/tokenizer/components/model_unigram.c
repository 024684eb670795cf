/* SPDX-License-Identifier: Apache-2.0 */
/* Unigram: the segmentation of a word into vocabulary entries with the best sum of scores.
 *
 * A pass over the characters keeps, for each possible end of a piece, the best total score and the
 * last piece (Viterbi). Of equal scores the first one is kept, whose piece starts first. A
 * character that is no entry is the unknown piece, with a score below all others; a run of unknown
 * pieces becomes one.
 *
 *   best      | 0 | . | . | 3 | . | 5 |        window: from `base` to the end of the longest piece
 *   text       a   b   c   d   e   f
 *
 * Where no piece extends beyond the current position, all earlier pieces are final: they are
 * written and the window restarts there, so memory depends on the longest run of overlapping
 * pieces and not on the text. Scores continue from the total, because the reference adds from the
 * start of the word and rounding decides between equal scores. */
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/steps.h"
#include "common/tokenizer/tokenizer_internal.h"
#include "common/tokenizer/components/trie.h"
#include "common/utf8.h"

#define UNK_PENALTY 10.0 /* below the lowest score; SentencePiece's and the reference's value */
#define WINDOW_MAX  (TOKENIZER_TEXT_MAX * 4) /* a normalizer may lengthen a text */

struct unigram {
    const struct tok_vocab *vocab; /* borrowed from the tokenizer */
    struct tok_trie trie;
    double *scores; /* [n_score] by id */
    size_t n_score, score_cap;
    double unk_score;
    uint32_t unk_id;        /* TOKEN_NONE: an unknown character is an error */
    uint32_t fallback[256]; /* byte_fallback: <0x00>.., TOKEN_NONE where missing */
    bool byte_fallback;
    bool single; /* totals are kept in single precision, as in SentencePiece */
};

struct best {
    double score;
    uint32_t len; /* bytes of the piece that ends here, 0 = none does yet */
    uint32_t id;
};

struct scratch {
    const struct unigram *m;
    struct best *best; /* [n_best] for the places from `base` on */
    size_t n_best, best_cap;
    uint32_t *ends; /* [end_cap] the way back through a window */
    size_t end_cap;
    const char *word;        /* [n] being encoded */
    size_t n;                /* bytes of it */
    size_t base;             /* place in word of best[0] */
    size_t unk_from, unk_to; /* a run of unknown pieces not yet put out */
};

static enum q_code unigram_begin(void **out, const void *self, size_t n_text, struct q_err *e)
{
    (void)n_text;
    struct scratch *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory encoding");
    s->m = self;
    *out = s;
    return Q_OK;
}

static void unigram_end(void *scratch)
{
    struct scratch *s = scratch;
    if (!s)
        return;
    q_free(s->best);
    q_free(s->ends);
    q_free(s);
}

/* ---- putting out ---- */

static enum q_code flush_unk(struct scratch *s, struct token_list *out, struct q_err *e)
{
    const struct unigram *m = s->m;
    const char *run = s->word + s->unk_from;
    size_t n = s->unk_to - s->unk_from;
    enum q_code rc = Q_OK;
    s->unk_from = s->unk_to;
    if (n == 0)
        return Q_OK;
    uint32_t id = tok_vocab_id(m->vocab, run, n); /* together they may be an entry */
    if (id != TOKEN_NONE)
        return token_list_add(out, id, e);
    bool all = m->byte_fallback;
    for (size_t i = 0; i < n && all; i++)
        all = m->fallback[(unsigned char)run[i]] != TOKEN_NONE;
    for (size_t i = 0; i < n && all && !rc; i++)
        rc = token_list_add(out, m->fallback[(unsigned char)run[i]], e);
    return all ? rc : token_list_add(out, m->unk_id, e);
}

static enum q_code put_piece(struct scratch *s, size_t from, const struct best *piece,
                             struct token_list *out, struct q_err *e)
{
    enum q_code rc;
    if (piece->id == s->m->unk_id) {
        if (s->unk_from == s->unk_to)
            s->unk_from = from;
        s->unk_to = from + piece->len;
        return Q_OK;
    }
    if ((rc = flush_unk(s, out, e)))
        return rc;
    return token_list_add(out, piece->id, e);
}

/* The best pieces from base to `at`, which becomes the new base. */
static enum q_code commit(struct scratch *s, size_t at, struct token_list *out, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t n = 0;
    for (size_t end = at - s->base; end > 0; end -= s->best[end].len) {
        if ((rc = q_grow(&s->ends, &s->end_cap, n + 1, sizeof *s->ends, WINDOW_MAX, e)))
            return rc;
        s->ends[n++] = (uint32_t)end;
    }
    while (n > 0 && !rc) {
        const struct best *piece = &s->best[s->ends[--n]];
        rc = put_piece(s, s->base + s->ends[n] - piece->len, piece, out, e);
    }
    s->best[0] = (struct best){.score = s->best[at - s->base].score};
    s->n_best = 1;
    s->base = at;
    return rc;
}

/* ---- the walk ---- */

static enum q_code offer(struct scratch *s, size_t end, struct best piece, struct q_err *e)
{
    size_t i = end - s->base;
    if (i >= s->n_best) {
        enum q_code rc = q_grow(&s->best, &s->best_cap, i + 1, sizeof *s->best, WINDOW_MAX, e);
        if (rc)
            return rc;
        memset(s->best + s->n_best, 0, (i + 1 - s->n_best) * sizeof *s->best);
        s->n_best = i + 1;
    }
    if (s->m->single)
        piece.score = (double)(float)piece.score;
    if (s->best[i].len == 0 || piece.score > s->best[i].score)
        s->best[i] = piece;
    return Q_OK;
}

/* All pieces that start at `at`. */
static enum q_code pieces_at(struct scratch *s, size_t at, size_t n_char, struct q_err *e)
{
    const struct unigram *m = s->m;
    double score = s->best[at - s->base].score;
    bool single = false;
    enum q_code rc = Q_OK;
    uint32_t node = 0;
    for (size_t i = at; i < s->n && !rc; i++) {
        node = tok_trie_step(&m->trie, node, (unsigned char)s->word[i]);
        TOK_STEPS(1);
        if (!node)
            break;
        uint32_t id = m->trie.nodes[node].value;
        if (id == TOK_TRIE_NONE)
            continue;
        uint32_t len = (uint32_t)(i + 1 - at);
        single = single || len == n_char;
        rc = offer(s, i + 1, (struct best){m->scores[id] + score, len, id}, e);
    }
    if (single || rc)
        return rc;
    if (m->unk_id == TOKEN_NONE)
        return q_fail(e, Q_INVALID,
                      "a character of the text is not in the tokenizer's vocabulary, and the "
                      "tokenizer has no unk_id");
    struct best unk = {m->unk_score + score, (uint32_t)n_char, m->unk_id};
    return offer(s, at + n_char, unk, e);
}

static enum q_code unigram_encode(void *scratch, const char *word, size_t n, struct token_list *out,
                                  struct q_err *e)
{
    struct scratch *s = scratch;
    enum q_code rc = q_grow(&s->best, &s->best_cap, 1, sizeof *s->best, WINDOW_MAX, e);
    if (rc)
        return rc;
    s->word = word;
    s->n = n;
    s->base = s->unk_from = s->unk_to = 0;
    s->best[0] = (struct best){0};
    s->n_best = 1;
    for (size_t at = 0; at < n && !rc;) {
        uint32_t cp;
        size_t n_char = utf8_decode(word + at, n - at, &cp);
        if ((rc = pieces_at(s, at, n_char, e)))
            return rc;
        at += n_char;
        if (at == s->base + s->n_best - 1)
            rc = commit(s, at, out, e);
    }
    return rc ? rc : flush_unk(s, out, e);
}

/* ---- loading ---- */

static void unigram_drop(void *self)
{
    struct unigram *m = self;
    if (!m)
        return;
    tok_trie_release(&m->trie);
    q_free(m->scores);
    q_free(m);
}

/* [token, score], whose token gets the id n_score. */
static bool vocab_item(struct unigram *m, struct tok_scan *s, struct tok_vocab *v, enum q_code *rc,
                       struct q_err *e)
{
    struct tok_str text;
    uint32_t id = (uint32_t)m->n_score;
    bool more = s->more;
    *rc = q_grow(&m->scores, &m->score_cap, m->n_score + 1, sizeof *m->scores, TOK_ID_MAX, e);
    if (*rc)
        return true;
    if (!scan_open(s, '[') || !scan_item(s, ']') || !scan_string(s, &text))
        return false;
    if ((*rc = tok_vocab_append(v, text.s, text.n, id, e)))
        return true;
    bool ok = scan_item(s, ']') && scan_number(s, &m->scores[m->n_score++]) && !scan_item(s, ']') &&
              !scan_failed(s);
    s->more = more;
    return ok;
}

static enum q_code load_scores(struct unigram *m, struct tok_str vocab, struct tok_vocab *v,
                               struct q_err *e)
{
    struct tok_scan s;
    enum q_code rc = Q_OK;
    scan_init(&s, vocab);
    bool ok = scan_open(&s, '[');
    while (ok && !rc && scan_item(&s, ']'))
        ok = vocab_item(m, &s, v, &rc, e);
    if (!rc && (!ok || scan_failed(&s))) {
        char key[32] = "vocab";
        bool list = vocab.n && vocab.s[0] == '[';
        if (list)
            snprintf(key, sizeof key, "vocab[%zu]", m->n_score);
        rc = tok_bad_value(&s, vocab, key, list ? "[token, score]" : "an array of [token, score]",
                           e);
    }
    scan_release(&s);
    return rc ? rc : tok_vocab_index(v, e);
}

static enum q_code load_unk(struct unigram *m, const json_t *spec, struct q_err *e)
{
    const json_t *unk = json_object_get(spec, "unk_id");
    enum q_code rc;
    m->unk_id = TOKEN_NONE;
    if (!unk || json_is_null(unk))
        return Q_OK;
    if ((rc = tok_json_id(unk, "model", "unk_id", &m->unk_id, e)))
        return rc;
    if (m->unk_id >= m->n_score)
        return q_fail(e, Q_CORRUPT,
                      "tokenizer.json: model.unk_id %u: the vocabulary has %zu tokens", m->unk_id,
                      m->n_score);
    return Q_OK;
}

static enum q_code load_trie(struct unigram *m, struct q_err *e)
{
    const struct tok_vocab *v = m->vocab;
    struct tok_trie_key *keys = q_calloc(v->n_word + 1, sizeof *keys);
    double low = 0;
    if (!keys)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu tokens", v->n_word);
    for (size_t i = 0; i < v->n_word; i++)
        keys[i] =
            (struct tok_trie_key){v->pool.data + v->words[i].off, v->words[i].len, v->words[i].id};
    for (size_t i = 0; i < m->n_score; i++)
        low = i == 0 || m->scores[i] < low ? m->scores[i] : low;
    m->unk_score = low - UNK_PENALTY;
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        int n = snprintf(text, sizeof text, "<0x%02X>", b);
        m->fallback[b] = tok_vocab_id(v, text, (size_t)n);
    }
    enum q_code rc = tok_trie_init(&m->trie, keys, v->n_word, e);
    q_free(keys);
    return rc;
}

static enum q_code unigram_load(void **self, const struct model_src *src, struct tok_vocab *v,
                                bool *raw, struct q_err *e)
{
    const json_t *spec = src->spec;
    enum q_code rc;
    struct unigram *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
    *self = m;
    *raw = false;
    m->vocab = v;
    if ((rc = load_scores(m, src->big.vocab, v, e)) || (rc = load_unk(m, spec, e)) ||
        (rc = tok_json_bool(spec, "byte_fallback", "model", &m->byte_fallback, e)))
        return rc;
    if (src->extra && src->extra->scores)
        memcpy(m->scores, src->extra->scores,
               (src->extra->n < m->n_score ? src->extra->n : m->n_score) * sizeof *m->scores);
    if ((rc = load_trie(m, e)))
        return rc;
    if (src->extra && src->extra->single) {
        m->single = true;
        m->unk_score = (double)(float)(src->extra->low - UNK_PENALTY);
    }
    return Q_OK;
}

const struct model_ops model_unigram = {unigram_load, unigram_drop, unigram_begin, unigram_end,
                                        unigram_encode};
