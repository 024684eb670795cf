/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/matcher/trie.h"
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/grammar/automaton/program.h"
#include "engine/grammar/matcher/shared.h"

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

/* clang-format off */
static const uint8_t class_bits[128] = { /* of bytes 0x00 … 0x7F */
    42, 42, 42, 42, 42, 42, 42, 42, 42, 39, 40, 42, 42, 41, 42, 42,
    42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42,
    6, 7, 37, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
    0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 21, 22, 23, 24, 25, 26,
    27, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5,
    5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 28, 38, 29, 30, 31,
    32, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3,
    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 33, 34, 35, 36, 42,
};
/* clang-format on */

uint64_t trie_class(uint8_t byte)
{
    return byte < 0x80 ? 1ull << class_bits[byte] : TRIE_BROKEN;
}

uint32_t trie_lead(uint8_t byte, uint8_t *lo, uint8_t *hi)
{
    *lo = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    *hi = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    return byte < 0xC2 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : byte < 0xF5 ? 3 : 0;
}

/* Sorted entries to nodes, behind those that are there. path[d]: the node at depth d + 1 of the
 * token before. */
static void lay_out(struct trie *t, const struct entry *entries, uint32_t n, uint32_t n_order)
{
    uint32_t path[TRIE_TOKEN_MAX], n_path = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *x = &entries[i];
        uint32_t keep = i ? common(x, x - 1) : 0;
        Q_ASSERT(x->n > 0);
        t->order[n_order + i] = x->id;
        if (i && keep == x->n && x->n == x[-1].n) { /* the same bytes again */
            struct trie_node *last = &t->nodes[path[n_path - 1]];
            t->same[x->id] = last->token;
            last->token = x->id;
            continue;
        }
        while (n_path > keep)
            t->nodes[path[--n_path]].end = t->n_all;
        for (; n_path < x->n; n_path++) {
            path[n_path] = t->n_all;
            t->nodes[t->n_all++] = (struct trie_node){
                .token = TRIE_NONE,
                .first = n_order + i,
                .depth = (uint16_t)(n_path + 1),
                .byte = x->s[n_path],
            };
        }
        t->nodes[path[n_path - 1]].token = x->id;
    }
    while (n_path)
        t->nodes[path[--n_path]].end = t->n_all;
    t->nodes[t->n_all] = (struct trie_node){.token = TRIE_NONE, .first = n_order + n};
}

struct reading { /* of a path down to a node: what its character still needs */
    uint32_t left;
    uint8_t lo, hi;
};

/* The class of a node's own byte behind what stands above it; 0: it goes on a character. */
static uint64_t read_byte(const struct reading *above, uint8_t byte, struct reading *now)
{
    bool fits = above->left && byte >= above->lo && byte <= above->hi;
    if (fits) {
        *now = (struct reading){above->left - 1, 0x80, 0xBF};
        return 0;
    }
    now->left = byte < 0x80 ? 0 : trie_lead(byte, &now->lo, &now->hi);
    if (above->left) /* the character is broken off; it is its lead that says so */
        return TRIE_BROKEN;
    return now->left ? TRIE_CHARS : trie_class(byte);
}

/* Downwards each node's own class, upwards the unions. Inside of a character nothing is asked. */
static void classify(struct trie *t)
{
    struct reading path[TRIE_TOKEN_MAX + 1] = {{0, 0, 0}};
    for (uint32_t i = 0; i < t->n_all; i++) {
        struct trie_node *n = &t->nodes[i];
        n->classes = read_byte(&path[n->depth - 1], n->byte, &path[n->depth]);
    }
    for (uint32_t i = t->n_all; i-- > 0;)
        for (uint32_t k = i + 1; k < t->nodes[i].end; k = t->nodes[k].end)
            t->nodes[i].classes |= t->nodes[k].classes;
    for (uint32_t i = 0; i < t->n_all; i++)
        if (t->nodes[i].byte >> 6 == 2)
            t->nodes[i].classes |= TRIE_BROKEN;
}

static bool is_text(const struct entry *x)
{
    struct reading above = {0, 0, 0};
    uint64_t classes = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        struct reading now;
        classes |= read_byte(&above, x->s[i], &now);
        above = now;
    }
    return !(classes & ~TRIE_TEXT);
}

/* Tokens that are text to a list by their characters; the others stay in entries. How many. */
static uint32_t split_text(struct trie *t, struct entry *entries, uint32_t n)
{
    uint32_t n_other = 0, n_text = 0, *at = t->text_at;
    for (uint32_t i = 0; i < n; i++)
        if (!is_text(&entries[i]))
            entries[n_other++] = entries[i];
        else
            t->text_bits[entries[i].id / 32] |= 1u << entries[i].id % 32;
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->text_bits[id / 32] >> id % 32 & 1)
            at[t->n_char[id] + 1]++; /* those with x + 1 characters: counted at x + 2 */
    for (uint32_t x = 0; x < TRIE_TEXT_AT; x++)
        at[x] = n_text += at[x];
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->text_bits[id / 32] >> id % 32 & 1)
            t->text_ids[at[t->n_char[id]]++] = id;
    return n_other;
}

static void find_roots(const struct trie *t, uint32_t from, uint32_t end, uint32_t root[256])
{
    memset(root, 0xff, 256 * sizeof *root);
    for (uint32_t i = from; i < end; i = t->nodes[i].end)
        root[t->nodes[i].byte] = i;
}

static uint32_t list_tokens(struct trie *t, struct entry *entries)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        uint32_t bytes = t->at[i + 1] - t->at[i];
        t->same[i] = TRIE_NONE;
        if (bytes == 0 || bytes > TRIE_TOKEN_MAX)
            continue;
        for (uint32_t k = t->at[i]; k < t->at[i + 1]; k++)
            t->n_char[i] += (t->text[k] & 0xC0) != 0x80;
        entries[n++] = (struct entry){(const unsigned char *)t->text + t->at[i], bytes, i};
        t->longest = bytes > t->longest ? bytes : t->longest;
    }
    qsort(entries, n, sizeof *entries, by_bytes);
    return n;
}

static uint64_t count_nodes(const struct entry *entries, uint32_t n)
{
    uint64_t n_node = 0;
    for (uint32_t i = 0; i < n; i++)
        n_node += entries[i].n - (i ? common(&entries[i], &entries[i - 1]) : 0);
    return n_node;
}

/* Nodes of all tokens, then once more of those that are not text. */
static bool make_nodes(struct trie *t, struct entry *entries)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t n = list_tokens(t, entries);
    size_t cap = 0;
    if (q_grow(&t->nodes, &cap, count_nodes(entries, n) + 1, sizeof *t->nodes, UINT32_MAX, &e))
        return false;
    lay_out(t, entries, n, 0);
    t->n_node = t->n_all;
    uint32_t n_other = split_text(t, entries, n);
    if (q_grow(&t->nodes, &cap, t->n_all + count_nodes(entries, n_other) + 1, sizeof *t->nodes,
               UINT32_MAX, &e))
        return false;
    lay_out(t, entries, n_other, n);
    classify(t);
    find_roots(t, 0, t->n_node, t->root);
    find_roots(t, t->n_node, t->n_all, t->root_other);
    return true;
}

FALLIBLE trie_init(struct trie *t, const char *text, const uint32_t *at, uint32_t n_vocab,
                   struct q_err *e)
{
    *t = (struct trie){.n_vocab = n_vocab};
    struct entry *entries = q_alloc((n_vocab + 1) * sizeof *entries);
    t->text = q_alloc(at[n_vocab] + 1);
    t->at = q_alloc((n_vocab + 1) * sizeof *t->at);
    t->same = q_alloc((n_vocab + 1) * sizeof *t->same);
    t->order = q_alloc((2 * (size_t)n_vocab + 1) * sizeof *t->order);
    t->n_char = q_calloc(n_vocab + 1, sizeof *t->n_char);
    t->text_bits = q_calloc(trie_words(t) + 1, sizeof *t->text_bits);
    t->text_ids = q_alloc((n_vocab + 1) * sizeof *t->text_ids);
    t->text_at = q_calloc(TRIE_TEXT_AT, sizeof *t->text_at);
    t->walks = q_calloc(1, sizeof *t->walks);
    bool ok = entries && t->text && t->at && t->same && t->order && t->walks && t->n_char &&
              t->text_bits && t->text_ids && t->text_at;
    if (ok) {
        memcpy(t->text, text, at[n_vocab]);
        memcpy(t->at, at, (n_vocab + 1) * sizeof *at);
        ok = make_nodes(t, entries);
    }
    q_free(entries);
    if (ok)
        return Q_OK;
    trie_release(t);
    return q_fail(e, Q_NO_MEMORY, "grammar: out of memory for a vocabulary of %u", n_vocab);
}

void trie_release(struct trie *t)
{
    q_free(t->nodes);
    q_free(t->same);
    q_free(t->order);
    q_free(t->n_char);
    q_free(t->text_bits);
    q_free(t->text_ids);
    q_free(t->text_at);
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
    enum q_code rc = at ? Q_OK : q_fail(e, Q_NO_MEMORY, "grammar: out of memory for a vocabulary");
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
