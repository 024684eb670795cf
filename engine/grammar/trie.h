/* SPDX-License-Identifier: Apache-2.0 */
/* trie - the bytes of a vocabulary's tokens, so that one walk says of all tokens what may come.
 *
 * Nodes lie in preorder: the subtree of node i is i … nodes[i].end - 1, and a prefix that cannot
 * come is left behind by going on at its end. Several tokens may be the same bytes. Special tokens
 * stand under PROGRAM_SPECIAL, where no text reaches them.
 * Threads: made once, then read-only but for `walks`. */
#ifndef QUIRE_ENGINE_GRAMMAR_TRIE_H
#define QUIRE_ENGINE_GRAMMAR_TRIE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TRIE_TOKEN_MAX 1024u /* bytes of a token; longer ones can never come */
#define TRIE_NONE      UINT32_MAX

struct trie_node {
    uint32_t token; /* that ends here, TRIE_NONE = none */
    uint32_t end;   /* the node after its subtree */
    uint32_t first; /* in trie.order: the tokens of its subtree begin here, and end where the next's
                       begin */
    uint16_t depth; /* bytes from the root, >= 1 */
    uint8_t byte;
    bool is_plain; /* its subtree and itself are plain bytes (trie_is_plain) */
};
struct trie {
    struct trie_node *nodes; /* [n_node] without the root; then one with `first` alone */
    uint32_t n_node, n_vocab;
    uint32_t *order;            /* [n_vocab] tokens in the order of the nodes */
    uint32_t longest;           /* bytes of the longest token */
    uint32_t *same;             /* [n_vocab] another token of the same bytes, TRIE_NONE = no more */
    char *text;                 /* bytes of all tokens */
    uint32_t *at;               /* [n_vocab + 1] where they start */
    struct shared_walks *walks; /* shared.h: of the one thread that has matchers over this trie */
};
/* clang-format off */
#define TRIE_INIT {NULL, 0, 0, NULL, 0, NULL, NULL, NULL, NULL}
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

/* What most of a text consists of, and what stands for itself in a JSON string. */
static inline bool trie_is_plain(uint8_t byte)
{
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}
/* The longest token that text[0..n) begins with; its length, 0 = none. */
size_t trie_longest(const struct trie *t, const char *text, size_t n, uint32_t *token);

static inline uint32_t trie_words(const struct trie *t)
{
    return (t->n_vocab + 31) / 32;
}

#endif
