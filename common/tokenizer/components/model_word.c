/* SPDX-License-Identifier: Apache-2.0 */
/* WordPiece and WordLevel: look-up of words in a vocabulary.
 *
 * WordPiece takes the longest entry at the start of the word, then repeatedly the longest entry
 * with the prefix ("##") at the start of the rest; if a rest remains, the whole word is unknown.
 * Most words are entries, so the whole word is looked up first. For other words two tries, of
 * first pieces and of continuations (without their prefix), find the longest entry in one pass. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tokenizer_internal.h"
#include "common/tokenizer/components/trie.h"
#include "common/utf8.h"

struct words {
    const struct tok_vocab *vocab; /* borrowed from the tokenizer */
    char *unk;                     /* [n_unk] the unknown word's token */
    size_t n_unk;
    uint32_t unk_id;   /* TOKEN_NONE: not in the vocabulary, an unknown word is an error */
    uint32_t char_max; /* characters of a word; longer ones are unknown */
    struct tok_trie first, rest; /* WordPiece only */
};

enum q_code tok_bad_value(const struct tok_scan *s, struct tok_str value, const char *key,
                          const char *want, struct q_err *e)
{
    if (value.n == 0)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: model.%s: expected %s, found nothing", key,
                      want);
    size_t n = s->p ? (size_t)(s->end - s->p) : 0;
    return q_fail(e, Q_CORRUPT, "tokenizer.json: model.%s: expected %s, found \"%.*s\"", key, want,
                  n < 24 ? (int)n : 24, s->p ? s->p : "");
}

/* One entry: its token is added. */
static bool vocab_item(struct tok_scan *s, struct tok_vocab *v, enum q_code *rc, struct q_err *e)
{
    struct tok_str key;
    uint64_t id;
    if (!scan_string(s, &key) || !scan_colon(s))
        return false;
    int n = key.n < 60 ? (int)key.n : 60;
    scan_peek(s);
    const char *found = s->p;
    if (!scan_uint(s, &id))
        *rc = q_fail(e, Q_CORRUPT,
                     "tokenizer.json: model.vocab.%.*s: expected a token id, found \"%.*s\"", n,
                     key.s, s->end - found < 12 ? (int)(s->end - found) : 12, found);
    else if (id >= TOK_ID_MAX)
        *rc =
            q_fail(e, Q_CORRUPT, "tokenizer.json: model.vocab.%.*s: token id %llu is not in 0..%u",
                   n, key.s, (unsigned long long)id, TOK_ID_MAX - 1);
    else
        *rc = tok_vocab_append(v, key.s, key.n, (uint32_t)id, e);
    return true;
}

#define VOCAB_WANT "an object of token to id"
#define ENTRY_MIN  5 /* bytes that an entry takes at least */

enum q_code tok_load_vocab(struct tok_vocab *v, const struct tok_big *big, struct q_err *e)
{
    struct tok_str vocab = big->vocab;
    size_t n_max = vocab.n / ENTRY_MIN;
    struct tok_scan s;
    scan_init(&s, vocab);
    enum q_code rc = tok_vocab_reserve(v, big->n_vocab < n_max ? big->n_vocab : n_max, e);
    bool ok = scan_open(&s, '{');
    while (ok && !rc && scan_item(&s, '}'))
        ok = vocab_item(&s, v, &rc, e);
    if (!rc && (!ok || scan_failed(&s)))
        rc = tok_bad_value(&s, vocab, "vocab", VOCAB_WANT, e);
    scan_release(&s);
    return rc ? rc : tok_vocab_index(v, e);
}

static void words_drop(void *self)
{
    struct words *m = self;
    if (!m)
        return;
    tok_trie_release(&m->first);
    tok_trie_release(&m->rest);
    q_free(m->unk);
    q_free(m);
}

/* The vocabulary and the unknown token, which is `fallback` where the file names none. */
static enum q_code load_words(void **self, const struct model_src *src, struct tok_vocab *v,
                              const char *fallback, struct q_err *e)
{
    const json_t *spec = src->spec;
    enum q_code rc;
    struct tok_str unk = {fallback, strlen(fallback)};
    struct words *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
    *self = m;
    m->vocab = v;
    if (json_object_get(spec, "unk_token") &&
        (rc = tok_json_str(spec, "unk_token", "model", &unk, e)))
        return rc;
    if ((rc = tok_load_vocab(v, &src->big, e)))
        return rc;
    m->unk = q_strndup(unk.s, unk.n);
    m->n_unk = unk.n;
    m->unk_id = tok_vocab_id(v, unk.s, unk.n);
    return m->unk ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
}

static enum q_code add_unk(const struct words *m, struct token_list *out, struct q_err *e)
{
    if (m->unk_id == TOKEN_NONE)
        return q_fail(e, Q_INVALID,
                      "a word of the text is not in the tokenizer's vocabulary, and neither is its "
                      "unk_token \"%.40s\"",
                      m->unk);
    return token_list_add(out, m->unk_id, e);
}

/* Models without working memory: the scratch is the model. */
static enum q_code words_begin(void **scratch, const void *self, size_t n_text, struct q_err *e)
{
    (void)n_text;
    (void)e;
    *scratch = (void *)self;
    return Q_OK;
}

static void words_end(void *scratch)
{
    (void)scratch;
}

/* ---- WordLevel ---- */

static enum q_code level_load(void **self, const struct model_src *src, struct tok_vocab *v,
                              bool *raw, struct q_err *e)
{
    *raw = false;
    return load_words(self, src, v, "<unk>", e);
}

static enum q_code level_encode(void *scratch, const char *word, size_t n, struct token_list *out,
                                struct q_err *e)
{
    const struct words *m = scratch;
    uint32_t id = tok_vocab_id(m->vocab, word, n);
    return id == TOKEN_NONE ? add_unk(m, out, e) : token_list_add(out, id, e);
}

const struct model_ops model_word_level = {level_load, words_drop, words_begin, words_end,
                                           level_encode};

/* ---- WordPiece ---- */

/* Both tries: every entry may be first, those with the prefix may follow. */
static enum q_code load_tries(struct words *m, struct tok_str prefix, struct q_err *e)
{
    const struct tok_vocab *v = m->vocab;
    struct tok_trie_key *keys = q_calloc(v->n_word + 1, sizeof *keys);
    if (!keys)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu words", v->n_word);
    for (size_t i = 0; i < v->n_word; i++)
        keys[i] =
            (struct tok_trie_key){v->pool.data + v->words[i].off, v->words[i].len, v->words[i].id};
    enum q_code rc = tok_trie_init(&m->first, keys, v->n_word, e);
    size_t n = 0;
    for (size_t i = 0; i < v->n_word; i++) {
        struct tok_trie_key k = keys[i];
        if (k.n >= prefix.n && memcmp(k.s, prefix.s, prefix.n) == 0)
            keys[n++] = (struct tok_trie_key){k.s + prefix.n, k.n - (uint32_t)prefix.n, k.value};
    }
    if (!rc)
        rc = tok_trie_init(&m->rest, keys, n, e);
    q_free(keys);
    return rc;
}

static enum q_code piece_load(void **self, const struct model_src *src, struct tok_vocab *v,
                              bool *raw, struct q_err *e)
{
    const json_t *spec = src->spec;
    struct tok_str prefix = {"##", 2};
    uint32_t char_max = 100;
    const json_t *limit = json_object_get(spec, "max_input_chars_per_word");
    enum q_code rc;
    *raw = false;
    if ((rc = load_words(self, src, v, "[UNK]", e)) ||
        (json_object_get(spec, "continuing_subword_prefix") &&
         (rc = tok_json_str(spec, "continuing_subword_prefix", "model", &prefix, e))) ||
        (limit && (rc = tok_json_id(limit, "model", "max_input_chars_per_word", &char_max, e))))
        return rc;
    struct words *m = *self;
    m->char_max = char_max;
    return load_tries(m, prefix, e);
}

/* The longest key of t that s starts with; its bytes, 0 when there is none. */
static size_t longest(const struct tok_trie *t, const char *s, size_t n, uint32_t *id)
{
    size_t best = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < n && (node = tok_trie_step(t, node, (unsigned char)s[i])); i++) {
        if (t->nodes[node].value != TOK_TRIE_NONE) {
            best = i + 1;
            *id = t->nodes[node].value;
        }
    }
    return best;
}

static enum q_code piece_encode(void *scratch, const char *word, size_t n, struct token_list *out,
                                struct q_err *e)
{
    const struct words *m = scratch;
    size_t n_before = out->n;
    enum q_code rc = Q_OK;
    if (n > m->char_max && utf8_count(word, n) > m->char_max)
        return add_unk(m, out, e);
    uint32_t id = tok_vocab_id(m->vocab, word, n);
    if (id != TOKEN_NONE)
        return token_list_add(out, id, e);
    for (size_t at = 0; at < n && !rc;) {
        size_t step = longest(at ? &m->rest : &m->first, word + at, n - at, &id);
        if (step == 0) {
            out->n = n_before;
            return add_unk(m, out, e);
        }
        rc = token_list_add(out, id, e);
        at += step;
    }
    return rc;
}

const struct model_ops model_word_piece = {piece_load, words_drop, words_begin, words_end,
                                           piece_encode};
