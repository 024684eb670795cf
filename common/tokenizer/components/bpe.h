/* SPDX-License-Identifier: Apache-2.0 */
/* bpe - the table of merges, for loading and encoding of byte-pair encoding.
 *
 * Private to common/tokenizer: model_bpe.c (its essay) and bpe_merges.c. Threads: read-only after
 * loading, except `whole`. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_BPE_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_BPE_H
#include <stdatomic.h>
#include "common/tokenizer/tokenizer_internal.h"

#define NO_MERGE UINT32_MAX

enum { WORD_UNKNOWN, WORD_WHOLE, WORD_SPLITS }; /* whether a word encodes to itself */

struct merge {
    uint64_t pair;     /* left id << 32 | right id */
    uint32_t rank, id; /* rank NO_MERGE = free slot */
};

struct bpe {
    struct merge *merges; /* [n_slot] open-addressed, n_slot a power of two */
    size_t n_slot, n_merge;
    const struct tok_vocab *vocab; /* borrowed from the tokenizer */
    const struct tok_vocab
        *words;             /* the vocabulary as words: `vocab`, or `own` where they differ */
    struct tok_vocab own;   /* entries as bytes if raw, or without the suffix */
    _Atomic uint8_t *whole; /* [words->n_word] WORD_*; threads that encode write it, each the
                                      same answer */
    size_t word_max;        /* bytes of the longest word */
    uint32_t byte_id[256];  /* raw: the symbol of each byte */
    uint32_t fallback[256]; /* byte_fallback: <0x00>.., TOKEN_NONE where missing */
    uint32_t unk_id;        /* TOKEN_NONE: unknown characters disappear */
    bool cut_at_mark;       /* words can be taken apart before MARK: no token goes across */
    bool raw, ignore_merges, fuse_unk, byte_fallback;
    char *prefix, *suffix; /* [n_prefix], [n_suffix] of a word's pieces, NULL: none */
    size_t n_prefix, n_suffix;
};

/* Where a pair is looked for first. */
static inline size_t bpe_slot(const struct bpe *m, uint64_t pair)
{
    return (size_t)((pair * 0x9e3779b97f4a7c15ull) >> 32) & (m->n_slot - 1);
}

/* The merge of two symbols, or a slot of rank NO_MERGE. */
static inline const struct merge *bpe_merge(const struct bpe *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = m->n_slot - 1;
    size_t i = bpe_slot(m, pair);
    while (m->merges[i].rank != NO_MERGE && m->merges[i].pair != pair)
        i = (i + 1) & mask;
    return &m->merges[i];
}

/* model.merges, an array of "a b" or ["a", "b"]. Errors: Q_CORRUPT (which one), Q_TOO_LARGE,
 * Q_NO_MEMORY. */
FALLIBLE bpe_load_merges(struct bpe *m, const struct tok_big *big, struct q_err *e);
/* Merges by ranks: wherever two entries together are a third. */
FALLIBLE bpe_rank_merges(struct bpe *m, const struct tok_extra *x, struct q_err *e);

#endif
