/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/program_cut.h"

static FALLIBLE add_ends(struct layer_program *p, const struct pipeline_stage *s,
                         struct program_ref x, struct q_err *e)
{
    struct program_ref other = x;
    other.col = 0;
    other.buffer = PROGRAM_B_STREAM_IN;
    const struct program_op in = {
        .kind = PROGRAM_RECEIVE,
        .layer = PROGRAM_NO_LAYER,
        .in = {other},
        .out = x,
    };
    other.buffer = PROGRAM_B_STREAM_OUT;
    const struct program_op out = {
        .kind = PROGRAM_SEND,
        .layer = PROGRAM_NO_LAYER,
        .in = {x},
        .out = other,
    };
    const enum q_code rc = s->has_embedding ? Q_OK : program_insert(p, 0, &in, e);
    return rc || s->has_head ? rc : program_add(p, &out, e);
}

/* What layers have of others, or of the embedding, besides the stream. */
static FALLIBLE check_parts(const struct layer_program *p, struct q_err *e)
{
    const char *what = NULL;
    for (uint32_t i = 0; i < p->n_op && !what; i++) {
        const struct program_op *op = &p->ops[i];
        if (op->kind == PROGRAM_ATTENTION && op->attention.shared)
            what = "K and V of another layer";
        if (op->kind == PROGRAM_PREDICT)
            what = "several residual streams";
        if (op->kind == PROGRAM_EMBED && op->onto)
            what = "an input of the token for each layer";
    }
    if (!what)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED, "%s: not supported in pipeline stages yet", what);
}

FALLIBLE program_cut(struct layer_program *p, const struct pipeline_stage *s, struct q_err *e)
{
    struct program_ref x = {PROGRAM_B_X, DT_F32, 0, 0};
    uint32_t n = 0;
    bool behind = false; /* the first layer's first operation */
    if (pipeline_stage_is_whole(s))
        return Q_OK;
    const bool has_all =
        s->first == 0 && s->n_layer == p->n_layer && s->has_embedding && s->has_head;
    enum q_code rc = has_all ? Q_OK : check_parts(p, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < p->n_op; i++) {
        const struct program_op *op = &p->ops[i];
        const bool of_layer = op->layer != PROGRAM_NO_LAYER;
        behind |= of_layer;
        if (op->out.buffer == PROGRAM_B_X && x.n_col < op->out.n_col)
            x.n_col = op->out.n_col;
        if (of_layer ? pipeline_stage_has_layer(s, op->layer)
            : behind ? s->has_head
                     : s->has_embedding)
            p->ops[n++] = *op;
    }
    p->n_op = n;
    rc = add_ends(p, s, x, e);
    if (rc || !program_check(p, e))
        return rc;
    return q_wrap(e, "layers %u to %u as a pipeline stage", s->first, s->first + s->n_layer - 1);
}
