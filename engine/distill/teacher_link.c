/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/teacher_link.h"
#include <string.h>
#include "common/mem.h"

struct question { /* which rows; n 0: the loss is done */
    uint32_t n;
};
struct answer { /* what the rows are */
    uint32_t n_col, has_ids;
};

struct teacher_link {
    struct teacher_source source;
    const struct topology *top;
    struct transport *transport;
    uint32_t *rows; /* [rows_max] of a question */
    size_t rows_max;
    uint32_t n_hidden;
    float *hidden; /* [hidden_max] received */
    size_t hidden_max;
    float *z; /* [z_max] received */
    size_t z_max;
    uint32_t *ids; /* [ids_max] received */
    size_t ids_max;
    bool asks;  /* there are ranks of the teacher alone */
    bool shows; /* there are ranks of the student alone */
};

static FALLIBLE room_for(void *items, size_t *cap, size_t n, size_t size, struct q_err *e)
{
    void **at = items;
    if (n <= *cap)
        return Q_OK;
    void *more = q_realloc_array(*at, n, size);
    if (!more)
        return q_fail(e, Q_NO_MEMORY, "no memory for %zu of the teacher's numbers", n);
    *at = more;
    *cap = n;
    return Q_OK;
}

static FALLIBLE cast(struct teacher_link *l, void *data, size_t bytes, struct q_err *e)
{
    return transport_broadcast(l->transport, &l->top->groups[TOPOLOGY_BOTH_TENSOR], 0, data, bytes,
                               e);
}

FALLIBLE teacher_link_new(struct teacher_link **out, const struct teacher_link_args *a,
                          struct q_err *e)
{
    const struct topology_sizes *sizes = &a->top->sizes;
    struct teacher_link *l = q_calloc(1, sizeof *l);
    *out = l;
    if (!l)
        return q_fail(e, Q_NO_MEMORY, "no memory for the teacher's rows");
    *l = (struct teacher_link){
        .source = a->source,
        .n_hidden = a->n_hidden,
        .top = a->top,
        .transport = a->transport,
        .asks = sizes->n_teacher_tensor > sizes->n_student_tensor,
        .shows = sizes->n_teacher_tensor < sizes->n_student_tensor,
    };
    return Q_OK;
}

void teacher_link_free(struct teacher_link *l)
{
    if (!l)
        return;
    q_free(l->rows);
    q_free(l->z);
    q_free(l->ids);
    q_free(l->hidden);
    q_free(l);
}

/* ---- more ranks of the teacher ---- */

static FALLIBLE ask(struct teacher_link *l, const uint32_t *rows, uint32_t n, struct q_err *e)
{
    struct question q = {n};
    enum q_code rc;
    if ((rc = room_for(&l->rows, &l->rows_max, n, sizeof *l->rows, e)) ||
        (rc = cast(l, &q, sizeof q, e)))
        return rc;
    if (!n)
        return Q_OK;
    memcpy(l->rows, rows, n * sizeof *rows);
    return cast(l, l->rows, n * sizeof *rows, e);
}

FALLIBLE teacher_link_serve(struct teacher_link *l, const struct micro_batch *b, struct q_err *e)
{
    if (!l->asks)
        return Q_OK;
    for (;;) {
        struct question q = {0};
        struct teacher_rows ignored;
        enum q_code rc = cast(l, &q, sizeof q, e);
        if (rc || !q.n)
            return rc;
        if ((rc = room_for(&l->rows, &l->rows_max, q.n, sizeof *l->rows, e)) ||
            (rc = cast(l, l->rows, q.n * sizeof *l->rows, e)) ||
            (rc = l->source.rows(l->source.ctx, b, l->rows, q.n, &ignored, e)))
            return rc;
    }
}

FALLIBLE teacher_link_end(struct teacher_link *l, struct q_err *e)
{
    return l->asks ? ask(l, NULL, 0, e) : Q_OK;
}

/* ---- more ranks of the student ---- */

/* Rank 0's rows, without gaps, in l->z and l->ids of all. */
static FALLIBLE show(struct teacher_link *l, uint32_t n, struct teacher_rows *io, struct q_err *e)
{
    struct answer a = {io->n_col, io->ids != NULL};
    enum q_code rc = cast(l, &a, sizeof a, e);
    const size_t size = (size_t)n * a.n_col;
    if (rc || (rc = room_for(&l->z, &l->z_max, size, sizeof *l->z, e)) ||
        (rc = room_for(&l->ids, &l->ids_max, a.has_ids ? size : 0, sizeof *l->ids, e)))
        return rc;
    for (uint32_t i = 0; i < n && io->z; i++) {
        memcpy(l->z + (size_t)i * a.n_col, io->z + i * io->stride, a.n_col * sizeof *l->z);
        if (io->ids)
            memcpy(l->ids + (size_t)i * a.n_col, io->ids + i * io->stride,
                   a.n_col * sizeof *l->ids);
    }
    if ((rc = cast(l, l->z, size * sizeof *l->z, e)) ||
        (a.has_ids && (rc = cast(l, l->ids, size * sizeof *l->ids, e))))
        return rc;
    *io = (struct teacher_rows){l->z, a.has_ids ? l->ids : NULL, a.n_col, a.n_col};
    return Q_OK;
}

static enum q_code link_rows(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                             uint32_t n, struct teacher_rows *out, struct q_err *e)
{
    struct teacher_link *l = ctx;
    enum q_code rc = l->asks ? ask(l, rows, n, e) : Q_OK;
    *out = (struct teacher_rows){.z = NULL};
    if (!rc && l->source.rows)
        rc = l->source.rows(l->source.ctx, b, rows, n, out, e);
    return rc || !l->shows ? rc : show(l, n, out, e);
}

static enum q_code link_hidden(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                               uint32_t n, const float **out, struct q_err *e)
{
    struct teacher_link *l = ctx;
    const size_t size = (size_t)n * l->n_hidden;
    enum q_code rc = Q_OK;
    *out = NULL;
    if (l->source.hidden)
        rc = l->source.hidden(l->source.ctx, b, rows, n, out, e);
    if (rc || !l->shows || (rc = room_for(&l->hidden, &l->hidden_max, size, sizeof **out, e)))
        return rc;
    if (*out)
        memcpy(l->hidden, *out, size * sizeof **out);
    *out = l->hidden;
    return cast(l, l->hidden, size * sizeof **out, e);
}

/* Of a rank that has both models; more ranks of the student are not supported. */
static enum q_code link_attention(void *ctx, const struct micro_batch *b,
                                  struct attention_rows *out, struct q_err *e)
{
    struct teacher_link *l = ctx;
    return l->source.attention(l->source.ctx, b, out, e);
}

struct teacher_source teacher_link_source(struct teacher_link *l)
{
    return (struct teacher_source){
        .rows = link_rows,
        .hidden = l->n_hidden ? link_hidden : NULL,
        .attention = l->source.attention ? link_attention : NULL,
        .ctx = l,
        .n_vocab = l->source.n_vocab,
    };
}
