/* SPDX-License-Identifier: Apache-2.0 */
/* trie - search of all keys at the start of a text, in one walk over its bytes.
 *
 * The children of a node are adjacent and their labels are in an array of bytes, so that a step
 * reads a few adjacent bytes. Built once from all keys, level by level. Private to
 * common/tokenizer. Threads: read-only after tok_trie_init. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_TRIE_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_TRIE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/err.h"

#define TOK_TRIE_NONE UINT32_MAX /* value of a node where no key ends */

struct tok_trie_key {
    const char *s; /* [n] borrowed until tok_trie_init returns */
    uint32_t n, value;
};
struct tok_trie_node {
    uint32_t first;   /* its children are first .. first + n_child - 1 */
    uint32_t n_child; /* at most 256 */
    uint32_t value;   /* of the key that ends here, or TOK_TRIE_NONE */
};
struct tok_trie {
    struct tok_trie_node *nodes; /* [n_node], 0 is the root; none: a trie without keys */
    unsigned char *labels;       /* [n_node] the byte that leads to the node */
    size_t n_node, node_cap, label_cap;
    uint32_t root[256]; /* the root's children by byte, 0 = none */
};

/* Keys are sorted in place; of equal ones that with the highest value counts; empty ones are never
 * found. Errors: Q_NO_MEMORY, Q_TOO_LARGE; the trie is then to be released all the same. */
FALLIBLE tok_trie_init(struct tok_trie *t, struct tok_trie_key *keys, size_t n, struct q_err *e);
void tok_trie_release(struct tok_trie *t);

/* The child of `node` by `byte`, 0 when there is none. */
static inline uint32_t tok_trie_step(const struct tok_trie *t, uint32_t node, unsigned char byte)
{
    if (node == 0)
        return t->root[byte];
    const struct tok_trie_node *p = &t->nodes[node];
    if (p->n_child == 0)
        return 0;
    const unsigned char *label = memchr(t->labels + p->first, byte, p->n_child);
    return label ? (uint32_t)(label - t->labels) : 0;
}

#endif
