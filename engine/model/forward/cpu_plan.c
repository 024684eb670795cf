/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers. Each mode (number of rows of a block) simulates a pass with a set of pending accesses:
 * for each buffer the parts that were read and written since the last barrier. The set at the start
 * of a pass is the union over all modes of the set at the end of the pass before, and of the set at
 * the end of this pass, which the next block begins with; this repeats until the set stays the
 * same. A larger set gives more barriers, so the union is safe. */
#include "engine/model/forward/cpu_plan.h"
#include <string.h>

enum part { PART_ROWS, PART_PLACES, PART_SUMS, PART_OWN, PART_ANY };

#define COS_SIN    PROGRAM_BUFFERS_MAX /* of the rows, made before the first stage */
#define BUFFERS    (PROGRAM_BUFFERS_MAX + 1)
#define ACCESS_MAX 16  /* of a stage */
#define ROUTE_COST 16u /* multiply-adds that an exponential takes */

struct access {
    uint32_t buffer; /* or COS_SIN */
    enum part part;
    bool is_write;
};

struct accesses {
    struct access all[ACCESS_MAX];
    uint32_t n;
};

struct pending { /* since the last barrier: bits of parts */
    uint8_t reads[BUFFERS], writes[BUFFERS];
};

struct planner {
    const struct layer_program *p;
    const uint64_t *overlaps; /* struct program_memory */
    struct cpu_stage *stages;
    bool is_own[BUFFERS]; /* in the mode at hand: what it has are copies */
};

static const struct program_op *first_op(const struct layer_program *p,
                                         const struct program_stage *s)
{
    return &p->ops[s->first];
}

static const struct program_op *last_op(const struct layer_program *p,
                                        const struct program_stage *s)
{
    return &p->ops[s->first + s->n - 1];
}

/* Does each row of its output depend on the same row of its input only, and could a thread make all
 * of them? */
static bool is_row_wise(const struct layer_program *p, const struct program_stage *s)
{
    const struct program_op *op = first_op(p, s);
    if (s->fusion != PROGRAM_FUSE_NONE && s->fusion != PROGRAM_FUSE_NORM_QUANTIZE)
        return false;
    return !op->in_place && (op->kind == PROGRAM_NORM || op->kind == PROGRAM_QUANTIZE ||
                             op->kind == PROGRAM_ROUTE || op->kind == PROGRAM_ACTIVATE);
}

/* Elements of a row that a thread makes when it makes all rows; 0: it never does. */
static uint32_t own_columns(const struct layer_program *p, const struct program_stage *s)
{
    const struct program_op *op = first_op(p, s);
    const struct program_buffer *out = &p->buffers[last_op(p, s)->out.buffer];
    if (!is_row_wise(p, s) || out->rows == PROGRAM_ROWS_STEP)
        return 0;
    if (op->kind == PROGRAM_ROUTE)
        return op->in[0].n_col * ROUTE_COST;
    if (out->rows != PROGRAM_ROWS_PLACES)
        return op->in[0].n_col;
    while (op-- > p->ops) /* of each row as many places as it takes experts */
        if (op->kind == PROGRAM_ROUTE)
            return first_op(p, s)->in[0].n_col * op->route.n_used;
    return 0;
}

bool cpu_plan_is_copied(const struct layer_program *p, uint32_t buffer)
{
    for (uint32_t i = 0; i < p->n_stage; i++)
        if (last_op(p, &p->stages[i])->out.buffer == buffer && own_columns(p, &p->stages[i]))
            return true;
    return false;
}

/* ---- what a stage reads and writes ---- */

static void add(struct accesses *a, uint32_t buffer, enum part part, bool is_write)
{
    Q_ASSERT(a->n < ACCESS_MAX);
    a->all[a->n++] = (struct access){buffer, part, is_write};
}

/* The part by which a stage goes through rows; of a stage that makes copies in this mode: OWN. */
static enum part part_of(const struct planner *t, uint32_t i_stage, uint32_t mode)
{
    const struct layer_program *p = t->p;
    const struct program_stage *s = &p->stages[i_stage];
    const struct program_op *op = first_op(p, s);
    if (s->fusion == PROGRAM_FUSE_QKV_EPILOGUE)
        return PART_ROWS;
    if (s->fusion != PROGRAM_FUSE_NONE && s->fusion != PROGRAM_FUSE_NORM_QUANTIZE)
        return PART_ANY;
    switch (op->kind) {
    case PROGRAM_COMBINE:
    case PROGRAM_SHARE:
        return PART_SUMS;
    case PROGRAM_EMBED:
    case PROGRAM_POSITIONS:
    case PROGRAM_TYPES:
    case PROGRAM_POOL:
    case PROGRAM_MATMUL:
    case PROGRAM_EXPERTS:
    case PROGRAM_ATTENTION:
    case PROGRAM_ATTENTION_LATENT:
    case PROGRAM_HEADS:
    case PROGRAM_CONV:
    case PROGRAM_DELTA:
    case PROGRAM_SCAN:
    case PROGRAM_SOFT_CAP:
    case PROGRAM_SHRINK:
    case PROGRAM_EXPAND:
        return PART_ANY;
    case PROGRAM_SCALE:
        return cpu_scales_columns(op) ? PART_ANY : PART_ROWS;
    default:
        break;
    }
    if (mode + 1 < CPU_MODES && cpu_is_own(t->stages[i_stage].own_cols, mode + 1))
        return PART_OWN;
    return p->buffers[op->out.buffer].rows == PROGRAM_ROWS_PLACES ? PART_PLACES : PART_ROWS;
}

/* How a stage that goes by `part` reads a buffer. */
static enum part read_part(const struct planner *t, struct program_ref r, enum part part,
                           bool is_second)
{
    if (t->is_own[r.buffer])
        return PART_OWN;
    if (part == PART_OWN || part == PART_SUMS || is_second)
        return PART_ANY; /* all of it: what other threads have made too */
    return part;
}

/* Does a row of the output need of the second input too the row with the same number alone? */
static bool reads_both_by_rows(const struct program_op *op)
{
    return op->kind == PROGRAM_STORE || op->kind == PROGRAM_GATE || op->kind == PROGRAM_MATCH ||
           op->kind == PROGRAM_PREDICT || op->kind == PROGRAM_CORRECT;
}

static void add_op(struct accesses *a, const struct planner *t, const struct program_op *op,
                   enum part part)
{
    for (int i = 0; i < 2 && op->in[i].buffer; i++) {
        const bool by_rows = reads_both_by_rows(op) && i == 1;
        add(a, op->in[i].buffer, read_part(t, op->in[i], part, i == 1 && !by_rows), false);
    }
    add(a, op->out.buffer, part, true);
    if (op->onto)
        add(a, op->out.buffer, part, false);
    if (op->kind == PROGRAM_PREDICT || op->kind == PROGRAM_CORRECT)
        add(a, op->in[0].buffer, part, true);
    if (op->kind == PROGRAM_ROPE)
        add(a, COS_SIN, part, false);
}

static void accesses_of(struct accesses *a, const struct planner *t, uint32_t i_stage,
                        uint32_t mode)
{
    const struct program_stage *s = &t->p->stages[i_stage];
    const enum part part = part_of(t, i_stage, mode);
    a->n = 0;
    if (s->fusion == PROGRAM_FUSE_NONE || s->fusion == PROGRAM_FUSE_QKV_EPILOGUE) {
        for (uint32_t i = 0; i < s->n; i++)
            add_op(a, t, &t->p->ops[s->first + i], part);
        return;
    }
    struct program_op whole = *first_op(t->p, s); /* its inputs, and the last one's output */
    whole.out = last_op(t->p, s)->out;
    whole.onto = last_op(t->p, s)->onto;
    add_op(a, t, &whole, part);
}

/* With what other threads may have done in the same memory: a part is safe after itself in its own
 * buffer only, since rows of another one lie elsewhere. */
static bool conflicts(const struct planner *t, const struct pending *now, const struct access *a)
{
    const uint8_t own = a->part == PART_ANY ? 0 : (uint8_t)(1u << a->part);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        const bool shares = i != COS_SIN && a->buffer != COS_SIN && t->overlaps[a->buffer] >> i & 1;
        const uint8_t safe = i == a->buffer ? own : 0;
        if (i != a->buffer && !shares)
            continue;
        if ((now->writes[i] & ~safe) || (a->is_write && (now->reads[i] & ~safe)))
            return true;
    }
    return false;
}

/* ---- barriers ---- */

/* A pass in one mode, with what is pending before and, on return, behind it. */
static void plan_mode(struct planner *t, const struct program_pass *pass, uint32_t mode,
                      struct pending *now)
{
    struct accesses a;
    memset(t->is_own, 0, sizeof t->is_own);
    for (uint32_t i = pass->first; i < pass->first + pass->n; i++) {
        bool meets = t->stages[i].barrier >> mode & 1;
        accesses_of(&a, t, i, mode);
        for (uint32_t j = 0; j < a.n; j++)
            meets = meets || conflicts(t, now, &a.all[j]);
        if (meets) {
            memset(now, 0, sizeof *now);
            t->stages[i].barrier |= (uint16_t)(1u << mode);
        }
        for (uint32_t j = 0; j < a.n; j++) {
            const struct access *x = &a.all[j];
            uint8_t *parts = x->is_write ? now->writes : now->reads;
            parts[x->buffer] |= (uint8_t)(1u << x->part);
            if (x->is_write)
                t->is_own[x->buffer] = x->part == PART_OWN;
        }
    }
}

static bool join(struct pending *to, const struct pending *from)
{
    const struct pending before = *to;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        to->reads[i] |= from->reads[i];
        to->writes[i] |= from->writes[i];
    }
    return memcmp(&before, to, sizeof before) != 0;
}

/* What the next block of the same pass meets: buffers of the step have other rows for it. */
static void drop_step(struct pending *now, const struct planner *t)
{
    for (uint32_t i = 0; i < t->p->n_buffer; i++)
        if (t->p->buffers[i].rows == PROGRAM_ROWS_STEP)
            now->reads[i] = now->writes[i] = 0;
    now->reads[COS_SIN] = now->writes[COS_SIN] = 0;
}

/* What is pending behind a pass whose blocks are others: a thread's share of its rows is no longer
 * the same rows. */
static void divide_anew(struct pending *now)
{
    for (uint32_t i = 0; i < BUFFERS; i++) {
        now->reads[i] = now->reads[i] ? 1u << PART_ANY : 0;
        now->writes[i] = now->writes[i] ? 1u << PART_ANY : 0;
    }
}

/* `now`: what is pending before the pass, then behind it. `before`: the pass before, or NULL. A
 * step of few rows is one block in each pass, so blocks differ only where there are many. */
static void plan_pass(struct planner *t, const struct program_pass *pass,
                      const struct program_pass *before, struct pending *now)
{
    struct pending entry = *now, first = *now, behind;
    bool grows = true;
    if (before && cpu_is_whole(before) != cpu_is_whole(pass))
        divide_anew(&first);
    while (grows) {
        memset(&behind, 0, sizeof behind);
        for (uint32_t mode = 0; mode < CPU_MODES; mode++) {
            struct pending one = entry;
            if (mode + 1 == CPU_MODES)
                (void)join(&one, &first);
            plan_mode(t, pass, mode, &one);
            (void)join(&behind, &one);
        }
        struct pending next = behind;
        drop_step(&next, t);
        grows = join(&entry, &next);
    }
    *now = behind;
}

void cpu_plan_stages(struct cpu_stage *stages, const struct layer_program *p,
                     const uint64_t *overlaps)
{
    struct planner t = {.p = p, .overlaps = overlaps, .stages = stages};
    struct pending now = {{0}, {0}};
    for (uint32_t i = 0; i < p->n_stage; i++)
        stages[i] = (struct cpu_stage){.own_cols = own_columns(p, &p->stages[i])};
    now.writes[COS_SIN] = 1u << PART_ANY;
    for (uint32_t i = 0; i < p->n_pass; i++) {
        if (p->passes[i].asked) /* model_logits begins behind a barrier */
            memset(&now, 0, sizeof now);
        plan_pass(&t, &p->passes[i], i ? &p->passes[i - 1] : NULL, &now);
    }
}

/* ---- memory ---- */

/* May it share memory? Inputs of products do: barriers stand between them as it is. Others would
 * need more of these. */
static bool is_shareable(const struct layer_program *p, uint32_t buffer)
{
    return p->buffers[buffer].rows == PROGRAM_ROWS_BLOCK && p->buffers[buffer].is_stored &&
           buffer != PROGRAM_B_ROUTES && cpu_plan_is_copied(p, buffer);
}

static void keep_apart(uint64_t *apart, uint32_t buffer, uint64_t from)
{
    apart[buffer] |= from;
    for (uint32_t i = 0; i < PROGRAM_BUFFERS_MAX; i++)
        if (from >> i & 1)
            apart[i] |= 1ull << buffer;
}

/* The buffers that a stage reads or writes, as bits. */
static uint64_t touched(const struct layer_program *p, uint32_t i_stage)
{
    const struct program_stage *s = &p->stages[i_stage];
    uint64_t set = 0;
    for (const struct program_op *op = first_op(p, s); op <= last_op(p, s); op++)
        set |= 1ull << op->in[0].buffer | 1ull << op->in[1].buffer | 1ull << op->out.buffer;
    return set;
}

void cpu_plan_apart(uint64_t *apart, const struct layer_program *p)
{
    _Static_assert(PROGRAM_BUFFERS_MAX <= 64, "a bit for each buffer");
    memset(apart, 0, PROGRAM_BUFFERS_MAX * sizeof *apart);
    for (uint32_t i = 0; i < p->n_buffer; i++)
        if (!is_shareable(p, i))
            keep_apart(apart, i, ~0ull);
    /* What the last stage of a pass reads would otherwise have to be left by all threads before
     * the next block begins. */
    for (uint32_t i = 0; i < p->n_pass; i++) {
        const uint32_t first = p->passes[i].first, last = first + p->passes[i].n - 1;
        uint64_t all = 0;
        for (uint32_t j = first; j <= last; j++)
            all |= touched(p, j);
        for (uint32_t j = 0; j < p->n_buffer; j++)
            if (touched(p, last) >> j & 1)
                keep_apart(apart, j, all);
    }
}
