/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/packing.h"
#include <string.h>
#include "common/mem.h"

#define OPEN_MAX      64u
#define OPEN_ROWS_MAX (4u << 20) /* of all open sequences: 32 MB of ids and labels */

struct open_sequence {
    uint32_t *ids;
    int32_t *labels;
    uint32_t *n_rows;                     /* of each segment */
    size_t ids_cap, labels_cap, rows_cap; /* capacities */
    uint32_t n, n_segment, n_counted;
};

struct packing {
    struct sequence_writer *w;
    uint32_t seq_len, n_open_max;
    bool pack;
    struct open_sequence open[OPEN_MAX]; /* [n_open], the oldest first; behind them spare memory */
    uint32_t n_open;
};

enum q_code packing_new(struct packing **out, uint32_t seq_len, bool pack,
                        struct sequence_writer *w, struct q_err *e)
{
    const uint32_t fits = OPEN_ROWS_MAX / seq_len;
    struct packing *p = q_calloc(1, sizeof *p);
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "out of memory for packing of samples");
    p->w = w;
    p->seq_len = seq_len;
    p->pack = pack;
    p->n_open_max = fits < 4 ? 4 : fits > OPEN_MAX ? OPEN_MAX : fits;
    *out = p;
    return Q_OK;
}

void packing_free(struct packing *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < OPEN_MAX; i++) {
        q_free(p->open[i].ids);
        q_free(p->open[i].labels);
        q_free(p->open[i].n_rows);
    }
    q_free(p);
}

static enum q_code close_sequence(struct packing *p, uint32_t i, struct q_err *e)
{
    struct open_sequence spare = p->open[i];
    const struct sequence s = {
        .n_row = spare.n,
        .n_segment = spare.n_segment,
        .n_counted = spare.n_counted,
        .ids = spare.ids,
        .labels = spare.labels,
        .n_rows = spare.n_rows,
    };
    const enum q_code rc = sequence_writer_add(p->w, &s, e);
    memmove(p->open + i, p->open + i + 1, (p->n_open - i - 1) * sizeof *p->open);
    spare.n = spare.n_segment = spare.n_counted = 0;
    p->open[--p->n_open] = spare;
    return rc;
}

/* The open sequence with the least room in which n rows fit; n_open: none. */
static uint32_t best_fit(const struct packing *p, uint32_t n)
{
    uint32_t best = p->n_open;
    for (uint32_t i = 0; i < p->n_open; i++)
        if (p->seq_len - p->open[i].n >= n && (best == p->n_open || p->open[i].n > p->open[best].n))
            best = i;
    return best;
}

static uint32_t fullest(const struct packing *p)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < p->n_open; i++)
        if (p->open[i].n > p->open[best].n)
            best = i;
    return best;
}

static enum q_code append(struct open_sequence *o, const struct sample *s, struct q_err *e)
{
    const size_t n = (size_t)o->n + s->n, n_max = UINT32_MAX;
    enum q_code rc;
    if ((rc = q_grow(&o->ids, &o->ids_cap, n, sizeof *o->ids, n_max, e)) ||
        (rc = q_grow(&o->labels, &o->labels_cap, n, sizeof *o->labels, n_max, e)) ||
        (rc = q_grow(&o->n_rows, &o->rows_cap, o->n_segment + 1, sizeof *o->n_rows, n_max, e)))
        return rc;
    memcpy(o->ids + o->n, s->ids, s->n * sizeof *s->ids);
    memcpy(o->labels + o->n, s->labels, s->n * sizeof *s->labels);
    o->n_rows[o->n_segment++] = s->n;
    o->n += s->n;
    o->n_counted += s->n_counted;
    return Q_OK;
}

enum q_code packing_add(struct packing *p, const struct sample *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    uint32_t i = p->pack ? best_fit(p, s->n) : p->n_open;
    if (i == p->n_open) {
        if (p->n_open == p->n_open_max && (rc = close_sequence(p, fullest(p), e)))
            return rc;
        i = p->n_open++;
    }
    if ((rc = append(&p->open[i], s, e)))
        return rc;
    return !p->pack || p->open[i].n == p->seq_len ? close_sequence(p, i, e) : Q_OK;
}

enum q_code packing_finish(struct packing *p, struct q_err *e)
{
    enum q_code rc = Q_OK;
    while (p->n_open && !rc)
        rc = close_sequence(p, 0, e);
    return rc;
}
