/* SPDX-License-Identifier: Apache-2.0 */
/* trie - the bytes of a vocabulary's tokens, so that one walk finds all tokens that may follow.
 *
 * Nodes are in preorder: the subtree of node i is i … nodes[i].end - 1, and a prefix that is not
 * allowed is skipped by continuing at its end. Several tokens may have the same bytes. Special
 * tokens are under PROGRAM_SPECIAL, which no text contains.
 *
 * Two shortcuts for places where a grammar accepts all texts of some kind, as inside strings: each
 * node has the classes of bytes in its subtree, so that a whole subtree is accepted at once; and
 * the tokens that consist of text (TRIE_TEXT) are a separate list, the others a second, much
 * smaller trie (nodes n_node … n_all - 1). Threads: made once, then read-only except `walks`. */
#ifndef QUIRE_ENGINE_GRAMMAR_MATCHER_TRIE_H
#define QUIRE_ENGINE_GRAMMAR_MATCHER_TRIE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TRIE_TOKEN_MAX 1024u /* bytes of a token; longer ones can never come */
#define TRIE_TEXT_AT   (TRIE_TOKEN_MAX + 4)
#define TRIE_NONE      UINT32_MAX

/* Classes of bytes, one bit each: ASCII by what patterns treat alike (trie_class), then whole
 * characters of several bytes (the last perhaps cut off), and bytes that are no UTF-8. */
#define TRIE_CHARS  (1ull << 43)
#define TRIE_BROKEN (1ull << 63)
/* What stands for itself in a JSON string: printable ASCII but quote and backslash, and TRIE_CHARS.
 */
#define TRIE_TEXT   (((1ull << 37) - 1) | TRIE_CHARS)

struct trie_node {
    uint32_t token; /* that ends here, TRIE_NONE = none */
    uint32_t end;   /* the node after its subtree */
    uint32_t first; /* in trie.order: the tokens of its subtree begin here, and end where the next's
                       begin */
    uint16_t depth; /* bytes from the root, >= 1 */
    uint8_t byte;
    uint64_t classes; /* of itself and its subtree, read from the start of a character */
};
struct trie {
    struct trie_node *nodes; /* [n_all] without the roots; then one with `first` alone */
    uint32_t n_node, n_all, n_vocab;
    uint32_t root[256];         /* the node of a first byte, TRIE_NONE: no token begins with it */
    uint32_t root_other[256];   /* the same among the tokens that are not text */
    uint32_t *order;            /* [2 n_vocab] tokens in the order of the nodes */
    uint16_t *n_char;           /* [n_vocab] characters of a token: bytes that begin one */
    uint32_t *text_bits;        /* [trie_words] tokens that are text */
    uint32_t *text_ids;         /* [n_text] the same by n_char: those with x + 1 characters … */
    uint32_t *text_at;          /* … begin at text_at[x]; [TRIE_TEXT_AT] */
    uint32_t longest;           /* bytes of the longest token */
    uint32_t *same;             /* [n_vocab] another token of the same bytes, TRIE_NONE = no more */
    char *text;                 /* bytes of all tokens */
    uint32_t *at;               /* [n_vocab + 1] where they start */
    struct shared_walks *walks; /* shared.h: of the one thread that has matchers over this trie */
};
/* clang-format off */
#define TRIE_INIT {.nodes = NULL}
/* clang-format on */

/* text[at[i] … at[i + 1]) are token i's bytes; empty: it can never come. Both are copied.
 * Errors: Q_NO_MEMORY. */
FALLIBLE trie_init(struct trie *t, const char *text, const uint32_t *at, uint32_t n_vocab,
                   struct q_err *e);
void trie_release(struct trie *t);
struct tokenizer;
/* Of a model's vocabulary. n_vocab: rows of its logits; ids beyond the tokenizer's never come. */
FALLIBLE trie_of_tokenizer(struct trie *out, const struct tokenizer *t, uint32_t n_vocab,
                           struct q_err *e);

uint64_t trie_class(uint8_t byte); /* of ASCII; TRIE_BROKEN for other bytes */
/* What follows the first byte of a character of several: that many bytes of 0x80 … 0xBF, the first
 * of them from lo to hi. 0: no character begins so. */
uint32_t trie_lead(uint8_t byte, uint8_t *lo, uint8_t *hi);
/* The longest token that text[0..n) begins with; its length, 0 = none. */
size_t trie_longest(const struct trie *t, const char *text, size_t n, uint32_t *token);

static inline uint32_t trie_words(const struct trie *t)
{
    return (t->n_vocab + 31) / 32;
}

#endif
