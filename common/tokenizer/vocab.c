/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/vocab.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/token_list.h"

#define HASH_PRIME 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */

/* Words are short: eight bytes at a time, one multiplication each. */
static inline uint32_t hash_of(const char *s, size_t n)
{
    uint64_t h = n * HASH_PRIME;
    for (; n > 8; s += 8, n -= 8) {
        h = (h ^ tok_few_bytes(s, 8)) * HASH_PRIME;
        h ^= h >> 29;
    }
    h = (h ^ tok_few_bytes(s, n)) * HASH_PRIME;
    h = (h ^ h >> 32) * HASH_PRIME; /* the first product's low half never saw the last bytes */
    return (uint32_t)(h >> 32);
}

static inline bool same(const struct tok_vocab *v, const struct tok_word *w, const char *s,
                        size_t n)
{
    return w->len == n && tok_equal(v->pool.data + w->off, s, n);
}

/* The slot where s is, or the free one where it would go. */
static size_t slot_of(const struct tok_vocab *v, uint32_t hash, const char *s, size_t n)
{
    size_t mask = v->n_slot - 1;
    size_t i = hash & mask;
    for (; v->slots[i].i_word; i = (i + 1) & mask) {
        if (v->slots[i].hash == hash && same(v, &v->words[v->slots[i].i_word - 1], s, n))
            break;
    }
    return i;
}

static enum q_code resize(struct tok_vocab *v, size_t n_slot, struct q_err *e)
{
    size_t mask = n_slot - 1;
    struct tok_slot_entry *slots = q_alloc_huge(n_slot * sizeof *slots);
    if (!slots)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a vocabulary of %zu slots", n_slot);
    memset(slots, 0, n_slot * sizeof *slots);
    for (size_t k = 0; k < v->n_slot; k++) {
        size_t i = v->slots[k].hash & mask;
        if (!v->slots[k].i_word)
            continue;
        while (slots[i].i_word)
            i = (i + 1) & mask;
        slots[i] = v->slots[k];
    }
    q_free(v->slots);
    v->slots = slots;
    v->n_slot = n_slot;
    return Q_OK;
}

enum q_code tok_vocab_reserve(struct tok_vocab *v, size_t n, struct q_err *e)
{
    size_t n_slot = 64;
    enum q_code rc = q_grow(&v->words, &v->word_cap, n, sizeof *v->words, TOK_WORDS_MAX, e);
    while (n_slot < n * 2)
        n_slot *= 2;
    return rc || n_slot <= v->n_slot ? rc : resize(v, n_slot, e);
}

enum q_code tok_vocab_end(struct tok_vocab *v, size_t off, uint32_t id, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (v->n_word == v->word_cap)
        rc = q_grow(&v->words, &v->word_cap, v->n_word + 1, sizeof *v->words, TOK_WORDS_MAX, e);
    if (rc)
        return rc;
    size_t n = v->pool.len - off;
    buf_add_char(&v->pool, '\0');
    if (v->pool.failed || off > UINT32_MAX)
        return v->pool.failed ? buf_check(&v->pool, "vocabulary", e)
                              : q_fail(e, Q_TOO_LARGE, "the vocabulary exceeds 4 GiB");
    v->words[v->n_word++] = (struct tok_word){(uint32_t)off, (uint32_t)n, id};
    return Q_OK;
}

enum q_code tok_vocab_append(struct tok_vocab *v, const char *s, size_t n, uint32_t id,
                             struct q_err *e)
{
    size_t off = v->pool.len;
    buf_add(&v->pool, s, n);
    return tok_vocab_end(v, off, id, e);
}

static uint32_t word_hash(const struct tok_vocab *v, size_t i)
{
    return hash_of(v->pool.data + v->words[i].off, v->words[i].len);
}

/* The table does not fit the cache: a slot is fetched AHEAD words before its turn. */
enum q_code tok_vocab_index(struct tok_vocab *v, struct q_err *e)
{
    enum { AHEAD = 16 };
    uint32_t hashes[AHEAD];
    size_t n_all = v->n_word;
    size_t n_slot = 64;
    while (n_slot < n_all * 2)
        n_slot *= 2;
    enum q_code rc = n_slot > v->n_slot ? resize(v, n_slot, e) : Q_OK;
    if (rc)
        return rc;
    for (size_t i = 0; i < AHEAD && i < n_all; i++)
        hashes[i] = word_hash(v, i);
    v->n_word = 0;
    for (size_t i = 0; i < n_all; i++) {
        struct tok_word w = v->words[i];
        uint32_t hash = hashes[i % AHEAD];
        if (i + AHEAD < n_all) {
            hashes[i % AHEAD] = word_hash(v, i + AHEAD);
            __builtin_prefetch(&v->slots[hashes[i % AHEAD] & (v->n_slot - 1)], 1);
        }
        size_t at = slot_of(v, hash, v->pool.data + w.off, w.len);
        if (v->slots[at].i_word) {
            v->words[v->slots[at].i_word - 1].id = w.id;
            continue;
        }
        v->words[v->n_word] = w;
        v->slots[at] = (struct tok_slot_entry){hash, (uint32_t)++v->n_word};
    }
    return Q_OK;
}

enum q_code tok_vocab_add(struct tok_vocab *v, const char *s, size_t n, uint32_t id,
                          struct q_err *e)
{
    enum q_code rc;
    if (v->n_word * 2 >= v->n_slot && (rc = resize(v, v->n_slot ? v->n_slot * 2 : 64, e)))
        return rc;
    uint32_t hash = hash_of(s, n);
    size_t i = slot_of(v, hash, s, n);
    if (v->slots[i].i_word) {
        v->words[v->slots[i].i_word - 1].id = id;
        return Q_OK;
    }
    if ((rc = tok_vocab_append(v, s, n, id, e)))
        return rc;
    v->slots[i] = (struct tok_slot_entry){hash, (uint32_t)v->n_word};
    return Q_OK;
}

uint32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t n)
{
    if (!v->n_slot)
        return TOKEN_NONE;
    return v->slots[slot_of(v, hash_of(s, n), s, n)].i_word - 1; /* 0 - 1 is TOKEN_NONE */
}

uint32_t tok_vocab_id(const struct tok_vocab *v, const char *s, size_t n)
{
    uint32_t i = tok_vocab_find(v, s, n);
    return i == TOKEN_NONE ? i : v->words[i].id;
}

/* i_word of the first entry with this hash, 0 when there is none; it may be another string's. */
static inline uint32_t first_of_hash(const struct tok_vocab *v, uint32_t hash)
{
    size_t mask = v->n_slot - 1;
    size_t i = hash & mask;
    while (v->slots[i].i_word && v->slots[i].hash != hash)
        i = (i + 1) & mask;
    return v->slots[i].i_word;
}

void tok_vocab_ids(const struct tok_vocab *v, const struct tok_str *s, size_t n, uint32_t *ids)
{
    uint32_t hash[TOK_BATCH];
    uint32_t i_word[TOK_BATCH] = {0}; /* + 1, 0 = none */
    Q_ASSERT(n <= TOK_BATCH);
    for (size_t i = 0; i < n; i++) {
        hash[i] = hash_of(s[i].s, s[i].n);
        if (v->n_slot)
            __builtin_prefetch(&v->slots[hash[i] & (v->n_slot - 1)]);
    }
    for (size_t i = 0; i < n && v->n_slot; i++) {
        i_word[i] = first_of_hash(v, hash[i]);
        if (i_word[i])
            __builtin_prefetch(&v->words[i_word[i] - 1]);
    }
    for (size_t i = 0; i < n; i++) {
        if (i_word[i])
            __builtin_prefetch(v->pool.data + v->words[i_word[i] - 1].off);
    }
    for (size_t i = 0; i < n; i++) {
        if (i_word[i] && !same(v, &v->words[i_word[i] - 1], s[i].s, s[i].n))
            i_word[i] = v->slots[slot_of(v, hash[i], s[i].s, s[i].n)].i_word;
        ids[i] = i_word[i] ? v->words[i_word[i] - 1].id : TOKEN_NONE;
    }
}

void tok_vocab_release(struct tok_vocab *v)
{
    buf_release(&v->pool);
    q_free(v->words);
    q_free(v->slots);
    *v = (struct tok_vocab)TOK_VOCAB_INIT;
}
