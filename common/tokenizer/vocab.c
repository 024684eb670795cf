/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/vocab.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"

#define HASH_PRIME 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */

/* Words are short: eight bytes at a time, one multiplication each. */
uint32_t tok_hash(const char *s, size_t n)
{
    uint64_t h = n * HASH_PRIME;
    while (n >= 8) {
        uint64_t x;
        memcpy(&x, s, 8);
        h = (h ^ x) * HASH_PRIME;
        h ^= h >> 29;
        s += 8;
        n -= 8;
    }
    uint64_t x = 0;
    memcpy(&x, s, n);
    h = (h ^ x) * HASH_PRIME;
    h = (h ^ h >> 32) * HASH_PRIME; /* the first product's low half never saw the high bytes of x */
    return (uint32_t)(h >> 32);
}

static bool same(const struct tok_vocab *v, const struct tok_word *w, const char *s, size_t n)
{
    return w->len == n && memcmp(v->pool.data + w->off, s, n) == 0;
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
    struct tok_slot_entry *slots = q_calloc(n_slot, sizeof *slots);
    if (!slots)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a vocabulary of %zu slots", n_slot);
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

enum q_code tok_vocab_add(struct tok_vocab *v, const char *s, size_t n, uint32_t id,
                          struct q_err *e)
{
    enum q_code rc;
    if (v->n_word * 2 >= v->n_slot && (rc = resize(v, v->n_slot ? v->n_slot * 2 : 64, e)))
        return rc;
    uint32_t hash = tok_hash(s, n);
    size_t i = slot_of(v, hash, s, n);
    if (v->slots[i].i_word) {
        v->words[v->slots[i].i_word - 1].id = id;
        return Q_OK;
    }
    if ((rc = q_grow(&v->words, &v->word_cap, v->n_word + 1, sizeof *v->words, TOK_WORDS_MAX, e)))
        return rc;
    size_t off = v->pool.len;
    buf_add(&v->pool, s, n);
    buf_add_char(&v->pool, '\0');
    if ((rc = buf_check(&v->pool, "vocabulary", e)))
        return rc;
    v->words[v->n_word] = (struct tok_word){(uint32_t)off, (uint32_t)n, id};
    v->slots[i] = (struct tok_slot_entry){hash, (uint32_t)++v->n_word};
    return Q_OK;
}

uint32_t tok_vocab_id(const struct tok_vocab *v, const char *s, size_t n)
{
    if (!v->n_slot)
        return TOKEN_NONE;
    uint32_t i_word = v->slots[slot_of(v, tok_hash(s, n), s, n)].i_word;
    return i_word ? v->words[i_word - 1].id : TOKEN_NONE;
}

void tok_vocab_release(struct tok_vocab *v)
{
    buf_release(&v->pool);
    q_free(v->words);
    q_free(v->slots);
    *v = (struct tok_vocab)TOK_VOCAB_INIT;
}
