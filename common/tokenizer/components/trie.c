/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/components/trie.h"
#include <stdlib.h>
#include "common/mem.h"

#define NODES_MAX ((size_t)1 << 28)

struct part { /* the sorted keys [from, to) that share the first `depth` bytes: one node's */
    uint32_t from, to, depth;
};
struct build {
    struct tok_trie *t;
    const struct tok_trie_key *keys;
    struct part *parts; /* [n_node] */
    size_t part_cap;
};

static int compare(const void *x, const void *y)
{
    const struct tok_trie_key *a = x;
    const struct tok_trie_key *b = y;
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    if (c)
        return c;
    return a->n != b->n ? (a->n < b->n ? -1 : 1) : (a->value > b->value) - (a->value < b->value);
}

static enum q_code add_node(struct build *b, struct part part, unsigned char label, struct q_err *e)
{
    struct tok_trie *t = b->t;
    size_t n = t->n_node + 1;
    enum q_code rc;
    if ((rc = q_grow(&t->nodes, &t->node_cap, n, sizeof *t->nodes, NODES_MAX, e)) ||
        (rc = q_grow(&t->labels, &t->label_cap, n, sizeof *t->labels, NODES_MAX, e)) ||
        (rc = q_grow(&b->parts, &b->part_cap, n, sizeof *b->parts, NODES_MAX, e)))
        return rc;
    t->nodes[t->n_node] = (struct tok_trie_node){0, 0, TOK_TRIE_NONE};
    t->labels[t->n_node] = label;
    b->parts[t->n_node++] = part;
    return Q_OK;
}

/* The value and the children of a node. */
static enum q_code fill(struct build *b, uint32_t node, struct q_err *e)
{
    struct part p = b->parts[node];
    uint32_t i = p.from;
    for (; i < p.to && b->keys[i].n == p.depth; i++)
        b->t->nodes[node].value = b->keys[i].value;
    b->t->nodes[node].first = (uint32_t)b->t->n_node;
    while (i < p.to) {
        unsigned char byte = (unsigned char)b->keys[i].s[p.depth];
        uint32_t end = i + 1;
        while (end < p.to && (unsigned char)b->keys[end].s[p.depth] == byte)
            end++;
        if (node == 0)
            b->t->root[byte] = (uint32_t)b->t->n_node;
        enum q_code rc = add_node(b, (struct part){i, end, p.depth + 1}, byte, e);
        if (rc)
            return rc;
        b->t->nodes[node].n_child++;
        i = end;
    }
    return Q_OK;
}

enum q_code tok_trie_init(struct tok_trie *t, struct tok_trie_key *keys, size_t n, struct q_err *e)
{
    enum q_code rc;
    struct build b = {.t = t, .keys = keys};
    memset(t, 0, sizeof *t);
    if (n >= UINT32_MAX)
        return q_fail(e, Q_TOO_LARGE, "a trie of %zu keys", n);
    if (n)
        qsort(keys, n, sizeof *keys, compare);
    rc = add_node(&b, (struct part){0, (uint32_t)n, 0}, 0, e);
    for (uint32_t i = 0; !rc && i < t->n_node; i++)
        rc = fill(&b, i, e);
    q_free(b.parts);
    return rc;
}

void tok_trie_release(struct tok_trie *t)
{
    q_free(t->nodes);
    q_free(t->labels);
    memset(t, 0, sizeof *t);
}
