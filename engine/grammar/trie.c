/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/trie.h"
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/grammar/program.h"
#include "engine/grammar/shared.h"

struct entry { /* one token, to be sorted */
    const unsigned char *s;
    uint32_t n, id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (c == 0)
        c = x->n < y->n ? -1 : x->n > y->n;
    return c ? c : x->id < y->id ? -1 : x->id > y->id;
}

static uint32_t common(const struct entry *x, const struct entry *y)
{
    uint32_t n = 0;
    while (n < x->n && n < y->n && x->s[n] == y->s[n])
        n++;
    return n;
}

/* Sorted entries to nodes. path[d]: the node at depth d + 1 of the token before. */
static void lay_out(struct trie *t, const struct entry *entries, uint32_t n)
{
    uint32_t path[TRIE_TOKEN_MAX], n_path = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *x = &entries[i];
        uint32_t keep = i ? common(x, x - 1) : 0;
        Q_ASSERT(x->n > 0);
        if (i && keep == x->n && x->n == x[-1].n) { /* the same bytes again */
            struct trie_node *last = &t->nodes[path[n_path - 1]];
            t->same[x->id] = last->token;
            last->token = x->id;
            t->order[i] = x->id;
            continue;
        }
        while (n_path > keep)
            t->nodes[path[--n_path]].end = t->n_node;
        for (; n_path < x->n; n_path++) {
            path[n_path] = t->n_node;
            t->nodes[t->n_node++] = (struct trie_node){.token = TRIE_NONE,
                                                       .first = i,
                                                       .depth = (uint16_t)(n_path + 1),
                                                       .byte = x->s[n_path]};
        }
        t->nodes[path[n_path - 1]].token = x->id;
        t->order[i] = x->id;
    }
    while (n_path)
        t->nodes[path[--n_path]].end = t->n_node;
    t->nodes[t->n_node] = (struct trie_node){.token = TRIE_NONE, .first = n};
}

/* From the leaves up. */
static void mark_plain(struct trie *t)
{
    for (uint32_t i = t->n_node; i-- > 0;) {
        struct trie_node *n = &t->nodes[i];
        n->is_plain = trie_is_plain(n->byte);
        for (uint32_t k = i + 1; k < n->end && n->is_plain; k = t->nodes[k].end)
            n->is_plain = t->nodes[k].is_plain;
    }
}

static uint32_t list_tokens(struct trie *t, struct entry *entries)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        uint32_t bytes = t->at[i + 1] - t->at[i];
        t->same[i] = TRIE_NONE;
        if (bytes == 0 || bytes > TRIE_TOKEN_MAX)
            continue;
        entries[n++] = (struct entry){(const unsigned char *)t->text + t->at[i], bytes, i};
        t->longest = bytes > t->longest ? bytes : t->longest;
    }
    qsort(entries, n, sizeof *entries, by_bytes);
    return n;
}

FALLIBLE trie_init(struct trie *t, const char *text, const uint32_t *at, uint32_t n_vocab,
                   struct q_err *e)
{
    *t = (struct trie){.n_vocab = n_vocab};
    struct entry *entries = q_alloc((n_vocab + 1) * sizeof *entries);
    t->text = q_alloc(at[n_vocab] + 1);
    t->at = q_alloc((n_vocab + 1) * sizeof *t->at);
    t->same = q_alloc((n_vocab + 1) * sizeof *t->same);
    t->order = q_alloc((n_vocab + 1) * sizeof *t->order);
    t->walks = q_calloc(1, sizeof *t->walks);
    uint64_t n_node = 0;
    if (entries && t->text && t->at && t->same && t->order && t->walks) {
        memcpy(t->text, text, at[n_vocab]);
        memcpy(t->at, at, (n_vocab + 1) * sizeof *at);
        uint32_t n = list_tokens(t, entries);
        for (uint32_t i = 0; i < n; i++)
            n_node += entries[i].n - (i ? common(&entries[i], &entries[i - 1]) : 0);
        t->nodes = q_alloc((n_node + 1) * sizeof *t->nodes);
        if (t->nodes) {
            lay_out(t, entries, n);
            mark_plain(t);
        }
    }
    q_free(entries);
    if (t->nodes)
        return Q_OK;
    trie_release(t);
    return q_fail(e, Q_NO_MEMORY, "grammar: no memory for a vocabulary of %u", n_vocab);
}

void trie_release(struct trie *t)
{
    q_free(t->nodes);
    q_free(t->same);
    q_free(t->order);
    shared_walks_free(t->walks);
    q_free(t->text);
    q_free(t->at);
    *t = (struct trie)TRIE_INIT;
}

FALLIBLE trie_of_tokenizer(struct trie *out, const struct tokenizer *t, uint32_t n_vocab,
                           struct q_err *e)
{
    struct buf text = BUF_INIT;
    uint32_t *at = q_alloc((n_vocab + 1) * sizeof *at), n_known = tokenizer_vocab_size(t);
    enum q_code rc = at ? Q_OK : q_fail(e, Q_NO_MEMORY, "grammar: no memory for a vocabulary");
    for (uint32_t i = 0; !rc && i < n_vocab; i++) {
        bool special = i < n_known && tokenizer_is_special(t, i);
        at[i] = (uint32_t)text.len;
        if (special)
            buf_add_char(&text, (char)PROGRAM_SPECIAL);
        if (i < n_known)
            rc = tokenizer_token_bytes(t, i, &text, e);
        if (special)
            buf_add_char(&text, (char)PROGRAM_SPECIAL);
    }
    if (!rc && !(rc = buf_check(&text, "a vocabulary", e))) {
        at[n_vocab] = (uint32_t)text.len;
        rc = trie_init(out, buf_str(&text), at, n_vocab, e);
    }
    q_free(at);
    buf_release(&text);
    return rc;
}

size_t trie_longest(const struct trie *t, const char *text, size_t n, uint32_t *token)
{
    size_t longest = 0;
    uint32_t i = 0, end = t->n_node;
    for (size_t at = 0; at < n; at++, i++) {
        while (i < end && t->nodes[i].byte != (uint8_t)text[at])
            i = t->nodes[i].end;
        if (i >= end)
            break;
        end = t->nodes[i].end;
        if (t->nodes[i].token != TRIE_NONE) {
            *token = t->nodes[i].token;
            longest = at + 1;
        }
    }
    return longest;
}
