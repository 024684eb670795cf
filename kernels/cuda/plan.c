/* SPDX-License-Identifier: Apache-2.0 */
/* Large pieces are assigned to blocks in a snake (attention.cuh), so the long ones come first: the
 * last rows of a prompt have the longest context. Small pieces have about equal length. */
#include "kernels/cuda/plan.h"
#include <stdlib.h>
#include "kernels/device.h"

static uint32_t div_up(uint64_t n, uint32_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

static uint32_t group_of(const struct device_limits *l)
{
    return l->n_head / l->n_kv_head;
}

uint32_t plan_partial_rows(const struct device_limits *l)
{
    uint64_t rows = (uint64_t)l->n_seq_max * div_up(l->context_max, PLAN_SPLIT) * l->n_head *
                    (PLAN_ROWS_SMALL / group_of(l) > 1 ? PLAN_ROWS_SMALL / group_of(l) : 1);
    return rows < PLAN_PARTIAL_ROWS ? (uint32_t)rows : PLAN_PARTIAL_ROWS;
}

size_t plan_workspace_bytes(const struct device_limits *l, uint32_t n_unit)
{
    const size_t wide_rows = l->head_dim > PLAN_NARROW ? (size_t)n_unit * PLAN_WIDE_ROWS : 0;
    return (size_t)plan_partial_rows(l) * (l->head_dim + 2) * sizeof(float) +
           wide_rows * l->head_dim * sizeof(float) + 16;
}

static uint64_t small_max(const struct device_limits *l)
{
    const uint32_t tiles = div_up(group_of(l), PLAN_ROWS_SMALL);
    return ((uint64_t)plan_partial_rows(l) / l->n_head + l->n_seq_max) * tiles;
}

static uint64_t large_max(const struct device_limits *l)
{
    return div_up((uint64_t)l->n_row_max * group_of(l), PLAN_ROWS_LARGE) + (uint64_t)l->n_seq_max;
}

size_t plan_bytes(const struct device_limits *l)
{
    return sizeof(struct plan_head) + l->n_seq_max * sizeof(struct plan_fold) +
           (size_t)(small_max(l) + large_max(l)) * sizeof(struct plan_piece);
}

/* A token or few: split over the card, or else (`alone`) one warp after the other. */
static bool is_small(const struct device_limits *l, const struct attention_seq *seq)
{
    return seq->n_query == 1 || (uint64_t)seq->n_query * group_of(l) <= PLAN_ROWS_SMALL;
}

/* Are pieces that are not split done about as soon as split ones? Pieces go to warps round robin,
 * as in attention.cu; without splits nothing is written, read and folded again: worth 1 / 16. */
static bool fills_card(const struct device_limits *l, uint32_t n_slot,
                       const struct attention_seq *seqs, uint32_t n_seq)
{
    uint32_t loads[PLAN_SLOTS_MAX] = {0}, slot = 0, most = 0;
    uint64_t n_all = 0;
    if (n_slot == 0 || n_slot > PLAN_SLOTS_MAX)
        return false;
    for (uint32_t i = 0; i < n_seq; i++) {
        if (!seqs[i].n_query || !is_small(l, &seqs[i]))
            continue;
        const uint32_t n_split = div_up((uint64_t)seqs[i].start + seqs[i].n_query, PLAN_SPLIT);
        const uint32_t n_item =
            div_up((uint64_t)seqs[i].n_query * group_of(l), PLAN_ROWS_SMALL) * l->n_kv_head;
        for (uint32_t j = 0; j < n_item; j++) {
            loads[slot] += n_split;
            most = loads[slot] > most ? loads[slot] : most;
            slot = slot + 1 < n_slot ? slot + 1 : 0;
        }
        n_all += (uint64_t)n_split * n_item;
    }
    return (uint64_t)most * 16 <= (uint64_t)div_up(n_all, n_slot) * 17;
}

struct maker {
    const struct device_limits *l;
    bool whole; /* small pieces have all splits */
    struct plan_piece *small, *large;
    uint32_t n_small, n_large, n_partial;
};

static void make_small(struct maker *m, uint32_t i_seq, const struct attention_seq *seq,
                       struct plan_fold *fold)
{
    const uint32_t n_row = seq->n_query * group_of(m->l), n_all = seq->n_query * m->l->n_head;
    const uint32_t n_split = div_up((uint64_t)seq->start + seq->n_query, PLAN_SPLIT);
    const bool parts = !m->whole && n_split > 1 &&
                       (uint64_t)n_split * n_all <= plan_partial_rows(m->l) - m->n_partial;
    if (parts) {
        *fold = (struct plan_fold){m->n_partial, n_split, n_all};
        m->n_partial += n_split * n_all;
    }
    for (uint32_t row = 0; row < n_row; row += PLAN_ROWS_SMALL)
        for (uint32_t s = 0; s < (parts ? n_split : 1); s++)
            m->small[m->n_small++] = (struct plan_piece){
                .seq = i_seq,
                .row = row,
                .split = s,
                .n_split = parts ? 1 : n_split,
                .partial = parts ? fold->partial + s * n_all : PLAN_NO_PARTIAL,
            };
}

static int longest_first(const void *a, const void *b)
{
    const struct plan_piece *x = a, *y = b;
    if (x->n_split != y->n_split)
        return x->n_split > y->n_split ? -1 : 1;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return x->row > y->row ? -1 : 1;
}

static void make_large(struct maker *m, uint32_t i_seq, const struct attention_seq *seq)
{
    const uint32_t group = group_of(m->l), n_row = seq->n_query * group;
    for (uint32_t row = 0; row < n_row; row += PLAN_ROWS_LARGE) {
        const uint32_t last = (row + PLAN_ROWS_LARGE < n_row ? row + PLAN_ROWS_LARGE : n_row) - 1;
        m->large[m->n_large++] = (struct plan_piece){
            .seq = i_seq,
            .row = row,
            .n_split = (seq->start + last / group) / PLAN_SPLIT + 1,
            .partial = PLAN_NO_PARTIAL,
        };
    }
}

void plan_make(void *out, const struct device_limits *l, uint32_t n_slot,
               const struct attention_seq *seqs, uint32_t n_seq)
{
    struct plan_head *head = out;
    struct plan_fold *folds = (struct plan_fold *)(void *)(head + 1);
    struct maker m = {
        .l = l,
        .whole = fills_card(l, n_slot, seqs, n_seq),
        .small = (struct plan_piece *)(void *)(folds + n_seq),
    };
    for (uint32_t i = 0; i < n_seq; i++) {
        folds[i] = (struct plan_fold){0, 0, 0};
        if (seqs[i].n_query && is_small(l, &seqs[i]))
            make_small(&m, i, &seqs[i], &folds[i]);
    }
    m.large = m.small + m.n_small;
    for (uint32_t i = 0; i < n_seq; i++)
        if (seqs[i].n_query && !is_small(l, &seqs[i]))
            make_large(&m, i, &seqs[i]);
    qsort(m.large, m.n_large, sizeof *m.large, longest_first);
    *head = (struct plan_head){m.n_small, m.n_large, (uint32_t)((char *)m.small - (char *)out),
                               (uint32_t)((char *)m.large - (char *)out), m.n_partial};
}
