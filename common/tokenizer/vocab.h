/* SPDX-License-Identifier: Apache-2.0 */
/* vocab - token strings and ids: one pool of bytes with an open-addressed table.
 *
 * Filled once, then only read. Strings are NUL-terminated in the pool and may contain NULs.
 * Threads: read-only after loading. */
#ifndef QUIRE_COMMON_TOKENIZER_VOCAB_H
#define QUIRE_COMMON_TOKENIZER_VOCAB_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/tokenizer/json.h"

struct tok_word {
    uint32_t off, len; /* into the pool */
    uint32_t id;
};
struct tok_slot_entry {
    uint32_t hash;   /* of the string, so that others are passed over without looking at them */
    uint32_t i_word; /* index into words + 1, 0 = free */
};
struct tok_vocab {
    struct buf pool;
    struct tok_word *words; /* [n_word] in the order of adding */
    size_t n_word, word_cap;
    struct tok_slot_entry *slots; /* [n_slot] open-addressed, n_slot a power of two */
    size_t n_slot;
};
/* clang-format off */
#define TOK_VOCAB_INIT {BUF_INIT, NULL, 0, 0, NULL, 0}
/* clang-format on */
#define TOK_WORDS_MAX ((size_t)1 << 24)

/* Up to 8 bytes as a number that no other n bytes have, without a call: two loads that may overlap.
 */
static inline uint64_t tok_few_bytes(const char *s, size_t n)
{
    uint32_t first, last;
    const unsigned char *u = (const unsigned char *)s;
    if (n < 4)
        return n ? u[0] | (uint64_t)u[n / 2] << 8 | (uint64_t)u[n - 1] << 16 : 0;
    memcpy(&first, s, 4);
    memcpy(&last, s + n - 4, 4);
    return (uint64_t)last << 32 | first;
}
/* memcmp(a, b, n) == 0; most words are short. */
static inline bool tok_equal(const char *a, const char *b, size_t n)
{
    return n <= 8 ? tok_few_bytes(a, n) == tok_few_bytes(b, n) : memcmp(a, b, n) == 0;
}

/* Make room for n strings at once; adding more is allowed. */
FALLIBLE tok_vocab_reserve(struct tok_vocab *v, size_t n, struct q_err *e);
/* Adding a string twice keeps the newer id. */
FALLIBLE tok_vocab_add(struct tok_vocab *v, const char *s, size_t n, uint32_t id, struct q_err *e);
/* Many at once: append them all, then make them known; tok_vocab_add comes after. Of equal strings
 * the first stays, with the last one's id. */
FALLIBLE tok_vocab_append(struct tok_vocab *v, const char *s, size_t n, uint32_t id,
                          struct q_err *e);
/* Append the string that the caller wrote at the end of v->pool, from `off` on. */
FALLIBLE tok_vocab_end(struct tok_vocab *v, size_t off, uint32_t id, struct q_err *e);
FALLIBLE tok_vocab_index(struct tok_vocab *v, struct q_err *e);
uint32_t tok_vocab_id(const struct tok_vocab *v, const char *s, size_t n); /* TOKEN_NONE */
/* The string's place in words, TOKEN_NONE when it is not there. */
uint32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t n);
#define TOK_BATCH 64
/* The ids of n strings, n <= TOK_BATCH: the tables are fetched for all of them at once, which is
 * three times as fast as one string after another where they do not fit the cache. TOKEN_NONE for
 * those that are not there. */
void tok_vocab_ids(const struct tok_vocab *v, const struct tok_str *s, size_t n, uint32_t *ids);
void tok_vocab_release(struct tok_vocab *v); /* leaves TOK_VOCAB_INIT */

#endif
