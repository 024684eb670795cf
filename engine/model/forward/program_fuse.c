/* SPDX-License-Identifier: Apache-2.0 */
/* Stages and passes. One pass over the list, the same for every executor: at each operation it
 * takes the first fusion of the table that matches there and that the executor has; without one
 * the operation is a stage of its own. The values between two operations of a stage are not
 * stored, so a fusion is taken only where no other operation reads them. */
#include "common/mem.h"
#include "engine/model/forward/program.h"

#define PATTERN_MAX 3
#define HEADS       PROGRAM_KINDS /* in a pattern: norms in place, any number of them */

static const struct {
    uint8_t kinds[PATTERN_MAX]; /* enum program_kind or HEADS */
    uint8_t n;
} fusions[PROGRAM_FUSIONS] = {
#define FUSION(id, text, ...) [PROGRAM_FUSE_##id] = {__VA_ARGS__, sizeof((uint8_t[])__VA_ARGS__)},
#include "engine/model/forward/program_fusions.def"
};

struct fuser {
    struct layer_program *p;
    const struct program_forms *f;
    uint32_t fusions;
};

static bool reads(const struct program_op *op, uint16_t buffer)
{
    return op->in[0].buffer == buffer || op->in[1].buffer == buffer ||
           ((op->onto || op->in_place) && op->out.buffer == buffer);
}

static bool replaces(const struct program_op *op, uint16_t buffer)
{
    return op->out.buffer == buffer && !op->onto && !op->in_place;
}

/* Does an operation from `at` on read what is in the buffer now? */
static bool is_read_from(const struct layer_program *p, uint32_t at, uint16_t buffer)
{
    for (uint32_t i = at; i < p->n_op; i++) {
        if (reads(&p->ops[i], buffer))
            return true;
        if (replaces(&p->ops[i], buffer))
            return false;
    }
    return false;
}

/* Operations from `at` on that match the pattern; 0: none. */
static uint32_t match(const struct layer_program *p, uint32_t at, enum program_fusion fusion)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < fusions[fusion].n; i++) {
        const uint8_t kind = fusions[fusion].kinds[i];
        const struct program_op *op = &p->ops[at + n];
        while (kind == HEADS && at + n < p->n_op && op->kind == PROGRAM_NORM && op->in_place) {
            n++;
            op = &p->ops[at + n];
        }
        if (kind == HEADS)
            continue;
        if (at + n >= p->n_op || op->kind != kind || op->layer != p->ops[at].layer)
            return 0;
        n++;
    }
    return n;
}

/* Do the values go from each operation to the next one only? */
static bool is_chain(const struct layer_program *p, uint32_t at, uint32_t n)
{
    for (uint32_t i = at; i + 1 < at + n; i++) {
        const struct program_op *op = &p->ops[i], *next = &p->ops[i + 1];
        if (op->in_place) {
            if (next->in[0].buffer != op->out.buffer)
                return false;
            continue;
        }
        if (next->in[0].buffer != op->out.buffer)
            return false;
        if (!op->onto && is_read_from(p, i + 2, op->out.buffer))
            return false;
    }
    return true;
}

static bool is_interleaved(const struct fuser *t, const struct program_op *op)
{
    return t->f->form(t->f->ctx, op->weight, op->layer).interleaved;
}

/* What a fusion takes besides its pattern. */
static bool fits(const struct fuser *t, enum program_fusion fusion, uint32_t at)
{
    const struct program_op *first = &t->p->ops[at], *second = &t->p->ops[at + 1];
    switch (fusion) {
    case PROGRAM_FUSE_GATED:
    case PROGRAM_FUSE_EXPERTS_GATED:
        return second->act.gated && is_interleaved(t, first);
    case PROGRAM_FUSE_MATMUL_ADD:
        return second->scale == 1;
    case PROGRAM_FUSE_NORM_QUANTIZE:
        return !first->in_place && first->norm.unit == first->in[0].n_col &&
               t->f->form(t->f->ctx, second->weight, second->layer).of_norm;
    default:
        return true;
    }
}

/* Gate and up that are interleaved have no form in which they could be apart. */
static bool is_wanted(const struct fuser *t, enum program_fusion fusion)
{
    return fusion == PROGRAM_FUSE_GATED || fusion == PROGRAM_FUSE_EXPERTS_GATED ||
           (t->fusions >> fusion & 1);
}

static struct program_stage stage_at(const struct fuser *t, uint32_t at)
{
    for (enum program_fusion f = PROGRAM_FUSE_NONE + 1; f < PROGRAM_FUSIONS; f++) {
        const uint32_t n = is_wanted(t, f) ? match(t->p, at, f) : 0;
        if (n > 1 && is_chain(t->p, at, n) && fits(t, f, at))
            return (struct program_stage){at, n, f};
    }
    return (struct program_stage){at, 1, PROGRAM_FUSE_NONE};
}

/* ---- passes and buffers ---- */

static void add_stage(struct layer_program *p, const struct program_stage *s)
{
    const struct program_op *first = &p->ops[s->first];
    const bool all_rows = first->kind == PROGRAM_ATTENTION ||
                          first->kind == PROGRAM_ATTENTION_LATENT ||
                          program_state_floats(first) > 0;
    struct program_pass *last = p->n_pass ? &p->passes[p->n_pass - 1] : NULL;
    const bool begins =
        !last || first->layer != last->layer || all_rows || last->all_rows || first->asked;
    if (begins)
        p->passes[p->n_pass++] = (struct program_pass){
            .first = p->n_stage,
            .layer = first->layer,
            .asked = first->asked,
            .all_rows = all_rows,
        };
    p->stages[p->n_stage++] = *s;
    p->passes[p->n_pass - 1].n++;
    p->passes[p->n_pass - 1].has_product |= first->kind == PROGRAM_MATMUL;
}

struct writer { /* of what a buffer has now */
    uint32_t stage, pass;
    bool is_there;
};

static void note_read(struct layer_program *p, const struct writer *w, struct program_ref r,
                      struct writer now)
{
    struct program_buffer *b = &p->buffers[r.buffer];
    if (!w[r.buffer].is_there)
        return;
    b->is_stored |= w[r.buffer].stage != now.stage;
    if (w[r.buffer].pass != now.pass)
        b->rows = PROGRAM_ROWS_STEP;
}

static enum program_rows rows_at_first(uint32_t buffer)
{
    switch (buffer) {
    case PROGRAM_B_IDS:
    case PROGRAM_B_POSITIONS:
    case PROGRAM_B_TYPES:
    case PROGRAM_B_STREAM_IN:
    case PROGRAM_B_STREAM_OUT:
    case PROGRAM_B_CACHE:
        return PROGRAM_ROWS_CACHE;
    case PROGRAM_B_EXPERT_G:
    case PROGRAM_B_EXPERT_ACT:
    case PROGRAM_B_EXPERT_ACT_Q:
    case PROGRAM_B_EXPERT_O:
        return PROGRAM_ROWS_PLACES;
    default:
        return PROGRAM_ROWS_BLOCK;
    }
}

static void widen(struct layer_program *p, struct program_ref r)
{
    struct program_buffer *b = &p->buffers[r.buffer];
    b->n_col = r.col + r.n_col > b->n_col ? r.col + r.n_col : b->n_col;
}

/* Which buffers need memory, and for which rows. */
static void place_buffers(struct layer_program *p)
{
    struct writer w[PROGRAM_BUFFERS_MAX] = {0};
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        p->buffers[i].rows = rows_at_first(i);
        p->buffers[i].n_col = 0;
        p->buffers[i].is_stored = false;
    }
    for (uint32_t i = 0; i < p->n_pass; i++)
        for (uint32_t j = p->passes[i].first; j < p->passes[i].first + p->passes[i].n; j++)
            for (uint32_t k = 0; k < p->stages[j].n; k++) {
                const struct program_op *op = &p->ops[p->stages[j].first + k];
                const struct writer now = {j, i, true};
                note_read(p, w, op->in[0], now);
                note_read(p, w, op->in[1], now);
                if (op->onto)
                    note_read(p, w, op->out, now);
                w[op->out.buffer] = now;
                widen(p, op->out);
            }
    p->buffers[PROGRAM_B_LOGITS].is_stored = true; /* what the program is for */
    p->buffers[PROGRAM_B_CACHE].rows = PROGRAM_ROWS_CACHE;
}

FALLIBLE program_fuse(struct layer_program *p, const struct program_forms *f, uint32_t wanted,
                      struct q_err *e)
{
    const struct fuser t = {p, f, wanted};
    q_free(p->stages);
    q_free(p->passes);
    p->n_stage = p->n_pass = 0;
    p->stages = q_calloc(p->n_op, sizeof *p->stages);
    p->passes = q_calloc(p->n_op, sizeof *p->passes);
    if (!p->stages || !p->passes)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u stages", p->n_op);
    for (uint32_t at = 0; at < p->n_op;) {
        const struct program_stage s = stage_at(&t, at);
        add_stage(p, &s);
        at += s.n;
    }
    place_buffers(p);
    return Q_OK;
}
