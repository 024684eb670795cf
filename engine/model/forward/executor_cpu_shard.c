/* SPDX-License-Identifier: Apache-2.0 */
/* Products whose matrices are divided among ranks (model_shard.h): a rank computes its columns for
 * all rows, then all ranks tell each other theirs, in pieces of a block's rows. Columns are copied,
 * whatever their type, so all ranks have the bits of the whole product; what was added to before
 * (a residual stream) was the same on all of them. */
#include <string.h>
#include "engine/model/forward/executor_cpu.h"

struct cpu_part_matrix cpu_part_matrix(const struct cpu_run *w, const struct packed *whole)
{
    const struct model_shard *s = &w->m->shard;
    const struct shard_outputs o = model_shard_outputs(s, s->rank, whole->n_out);
    struct cpu_part_matrix part = {*whole, o.first, o.first / (whole->gated ? 2 : 1)};
    part.w.n_out = o.n;
    return part;
}

/* A panel more than its share at most; panels of a gated matrix are half as wide, and twice as
 * many. */
uint32_t cpu_columns_most(const struct model_shard *s, uint32_t n_col)
{
    return ((n_col / KERN_PANEL + 1) / s->size + 1) * KERN_PANEL;
}

struct columns { /* of a rank */
    uint32_t first, n;
};

static struct columns columns_of(const struct cpu_run *w, const struct cpu_product *p,
                                 uint32_t rank)
{
    const struct shard_outputs o = model_shard_outputs(&w->m->shard, rank, p->whole->n_out);
    const uint32_t each = p->whole->gated ? 2 : 1;
    const uint32_t first = o.first / each, end = (o.first + o.n) / each;
    const uint32_t stop = end < p->n_col ? end : p->n_col; /* interleaved ones are rounded up */
    return (struct columns){first, stop > first ? stop - first : 0};
}

struct piece { /* of the rows */
    uint32_t at, n;
};

static size_t width_of(const struct cpu_product *p)
{
    return dtype_bits(p->dtype) / 8;
}

/* Floats that hold these rows' columns of the rank that has most. */
static size_t floats_of(const struct cpu_run *w, const struct cpu_product *p, struct piece rows)
{
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < w->m->shard.size; rank++) {
        const uint32_t n = columns_of(w, p, rank).n;
        most = n > most ? n : most;
    }
    return ((size_t)rows.n * most * width_of(p) + sizeof(float) - 1) / sizeof(float);
}

/* This thread's rows of the piece, between a rank's columns and its neighbouring rows. */
static void copy_columns(const struct cpu_run *w, const struct cpu_product *p, struct piece rows,
                         uint32_t rank, bool back)
{
    const struct columns c = columns_of(w, p, rank);
    const struct cpu_exchange *x = &w->s->exchange;
    const struct cpu_rows share = cpu_share(w, (struct cpu_rows){0, rows.n});
    const size_t n = c.n * width_of(p);
    float *slot = back ? x->all + rank * floats_of(w, p, rows) : x->mine;
    char *to = (char *)slot;
    for (uint32_t i = share.at; i < share.at + share.n; i++) {
        char *y = (char *)p->y->x + ((rows.at + i) * p->y->stride + c.first) * width_of(p);
        memcpy(back ? y : to + i * n, back ? to + i * n : y, n);
    }
}

static void exchange_piece(struct cpu_run *w, const struct cpu_product *p, struct piece rows)
{
    const struct model_shard *s = &w->m->shard;
    const struct cpu_exchange *x = &w->s->exchange;
    const size_t n = floats_of(w, p, rows);
    Q_ASSERT(n <= x->n);
    cpu_meet(w);
    copy_columns(w, p, rows, s->rank, false);
    cpu_meet(w);
    if (w->x.ith == 0)
        s->gather(s->ctx, x->mine, n, x->all);
    cpu_meet(w);
    for (uint32_t rank = 0; rank < s->size; rank++)
        if (rank != s->rank)
            copy_columns(w, p, rows, rank, true);
    w->is_clean = false;
}

void cpu_exchange_columns(struct cpu_run *w, const struct cpu_product *p)
{
    const uint32_t most = w->s->block_rows;
    for (uint32_t at = 0; at < p->n_row; at += most)
        exchange_piece(w, p, (struct piece){at, p->n_row - at < most ? p->n_row - at : most});
    cpu_meet(w);
}
