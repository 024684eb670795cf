/* SPDX-License-Identifier: Apache-2.0 */
/* added - search of added tokens in text: the leftmost match, and of those the longest.
 *
 * A trie over the patterns is walked from each position whose byte can start one, so the cost is
 * O(text + matches) for ordinary text and at most O(text * longest pattern). Threads: read-only
 * after tok_matcher_add. */
#ifndef QUIRE_COMMON_TOKENIZER_ADDED_H
#define QUIRE_COMMON_TOKENIZER_ADDED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TOK_ADDED_MAX         (1u << 20) /* added tokens of one tokenizer */
#define TOK_ADDED_CONTENT_MAX 4096u      /* bytes of one */

struct tok_edge { /* child of `node` by `byte`; key = node << 8 | byte */
    uint64_t key;
    uint32_t child; /* 0 = free slot */
};
struct tok_matcher {
    struct tok_edge *edges; /* [n_slot] open-addressed */
    size_t n_slot, n_edge;
    int32_t
        *value; /* [n_node] index of the pattern that ends here, -1 = none; node 0 is the root */
    size_t n_node, node_cap;
    uint32_t first[256]; /* the root's children, 0 = none */
};
FALLIBLE tok_matcher_add(struct tok_matcher *m, const char *pattern, size_t n, int32_t value,
                         struct q_err *e);
void tok_matcher_release(struct tok_matcher *m);
struct tok_match {
    size_t start, end;
    int32_t value; /* of the pattern */
};
/* The first match at or after `from`; false when there is none. */
bool tok_matcher_find(const struct tok_matcher *m, const char *s, size_t n, size_t from,
                      struct tok_match *out);

#endif
