/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/added.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/steps.h"

#define NODES_MAX ((size_t)1 << 26)

static size_t slot_of(const struct tok_matcher *m, uint64_t key)
{
    size_t mask = m->n_slot - 1;
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 24) & mask;
    while (m->edges[i].child && m->edges[i].key != key)
        i = (i + 1) & mask;
    return i;
}

static uint32_t child_of(const struct tok_matcher *m, uint32_t node, unsigned char byte)
{
    if (node == 0)
        return m->first[byte];
    return m->edges[slot_of(m, (uint64_t)node << 8 | byte)].child;
}

static enum q_code more_edges(struct tok_matcher *m, struct q_err *e)
{
    struct tok_matcher bigger = *m;
    bigger.n_slot = m->n_slot ? m->n_slot * 2 : 64;
    bigger.edges = q_calloc(bigger.n_slot, sizeof *bigger.edges);
    if (!bigger.edges)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu added-token edges", bigger.n_slot);
    for (size_t i = 0; i < m->n_slot; i++) {
        if (m->edges[i].child)
            bigger.edges[slot_of(&bigger, m->edges[i].key)] = m->edges[i];
    }
    q_free(m->edges);
    *m = bigger;
    return Q_OK;
}

static enum q_code node_new(struct tok_matcher *m, uint32_t *node, struct q_err *e)
{
    enum q_code rc = q_grow(&m->value, &m->node_cap, m->n_node + 1, sizeof *m->value, NODES_MAX, e);
    if (rc)
        return rc;
    *node = (uint32_t)m->n_node;
    m->value[m->n_node++] = -1;
    return Q_OK;
}

static enum q_code child_add(struct tok_matcher *m, uint32_t node, unsigned char byte,
                             uint32_t *child, struct q_err *e)
{
    enum q_code rc;
    if (m->n_edge * 2 >= m->n_slot && (rc = more_edges(m, e)))
        return rc;
    if ((rc = node_new(m, child, e)))
        return rc;
    if (node == 0) {
        m->first[byte] = *child;
        return Q_OK;
    }
    uint64_t key = (uint64_t)node << 8 | byte;
    m->edges[slot_of(m, key)] = (struct tok_edge){key, *child};
    m->n_edge++;
    return Q_OK;
}

enum q_code tok_matcher_add(struct tok_matcher *m, const char *pattern, size_t n, int32_t value,
                            struct q_err *e)
{
    enum q_code rc;
    uint32_t node = 0;
    if (m->n_slot == 0 && (rc = more_edges(m, e)))
        return rc;
    if (m->n_node == 0 && (rc = node_new(m, &node, e)))
        return rc;
    for (size_t i = 0; i < n; i++) {
        uint32_t next = child_of(m, node, (unsigned char)pattern[i]);
        if (!next && (rc = child_add(m, node, (unsigned char)pattern[i], &next, e)))
            return rc;
        node = next;
    }
    if (n && m->value[node] < 0)
        m->value[node] = value;
    return Q_OK;
}

void tok_matcher_release(struct tok_matcher *m)
{
    q_free(m->edges);
    q_free(m->value);
    memset(m, 0, sizeof *m);
}

bool tok_matcher_find(const struct tok_matcher *m, const char *s, size_t n, size_t from,
                      struct tok_match *out)
{
    if (m->n_node < 2)
        return false;
    for (size_t i = from; i < n; i++) {
        uint32_t node = m->first[(unsigned char)s[i]];
        int32_t best = -1;
        for (size_t k = i + 1; node; k++) {
            if (m->value[node] >= 0) {
                best = m->value[node];
                out->end = k;
            }
            node = k < n ? child_of(m, node, (unsigned char)s[k]) : 0;
            TOK_STEPS(1);
        }
        if (best >= 0) {
            out->start = i;
            out->value = best;
            return true;
        }
    }
    return false;
}
