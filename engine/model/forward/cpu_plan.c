/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers. For each mode a pass is gone through with what is pending: by memory slot, which parts
 * were read and which written since the last barrier. What may be pending where a pass begins is
 * the union over all modes of what the pass before left, and of what this pass itself left behind
 * another block; that is done again until it does not grow. More pending means more barriers, so
 * the union is safe. */
#include "engine/model/forward/cpu_plan.h"
#include <string.h>

enum part { PART_ROWS, PART_PLACES, PART_SUMS, PART_OWN, PART_ANY };

#define SLOT_ROPE  PROGRAM_BUFFERS_MAX /* cos and sin of the rows, made before the first stage */
#define SLOTS      (PROGRAM_BUFFERS_MAX + 1) /* none is above */
#define ACCESS_MAX 16                        /* of a stage */
#define ROUTE_COST 16u                       /* multiply-adds that an exponential takes */

struct access {
    uint32_t slot;
    enum part part;
    bool is_write;
};

struct accesses {
    struct access all[ACCESS_MAX];
    uint32_t n;
};

struct pending { /* since the last barrier: bits of parts */
    uint8_t reads[SLOTS], writes[SLOTS];
};

struct planner {
    const struct layer_program *p;
    const uint8_t *arenas;
    struct cpu_stage *stages;
    bool is_own[SLOTS]; /* in the mode at hand: what it has are copies */
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

static void add(struct accesses *a, uint32_t slot, enum part part, bool is_write)
{
    Q_ASSERT(a->n < ACCESS_MAX);
    a->all[a->n++] = (struct access){slot, part, is_write};
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
    case PROGRAM_MATMUL:
    case PROGRAM_EXPERTS:
    case PROGRAM_ATTENTION:
    case PROGRAM_SCALE:
    case PROGRAM_SOFT_CAP:
        return PART_ANY;
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
    if (t->is_own[t->arenas[r.buffer]])
        return PART_OWN;
    if (part == PART_OWN || part == PART_SUMS || is_second)
        return PART_ANY; /* all of it: what other threads have made too */
    return part;
}

static void add_op(struct accesses *a, const struct planner *t, const struct program_op *op,
                   enum part part)
{
    for (int i = 0; i < 2 && op->in[i].buffer; i++) {
        const bool by_rows = op->kind == PROGRAM_STORE && i == 1;
        add(a, t->arenas[op->in[i].buffer], read_part(t, op->in[i], part, i == 1 && !by_rows),
            false);
    }
    add(a, t->arenas[op->out.buffer], part, true);
    if (op->onto)
        add(a, t->arenas[op->out.buffer], part, false);
    if (op->kind == PROGRAM_ROPE)
        add(a, SLOT_ROPE, part, false);
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

static bool conflicts(const struct pending *now, const struct access *a)
{
    const uint8_t safe = a->part == PART_ANY ? 0 : (uint8_t)(1u << a->part);
    return (now->writes[a->slot] & ~safe) || (a->is_write && (now->reads[a->slot] & ~safe));
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
            meets = meets || conflicts(now, &a.all[j]);
        if (meets) {
            memset(now, 0, sizeof *now);
            t->stages[i].barrier |= (uint16_t)(1u << mode);
        }
        for (uint32_t j = 0; j < a.n; j++) {
            const struct access *x = &a.all[j];
            uint8_t *parts = x->is_write ? now->writes : now->reads;
            parts[x->slot] |= (uint8_t)(1u << x->part);
            if (x->is_write)
                t->is_own[x->slot] = x->part == PART_OWN;
        }
    }
}

static bool join(struct pending *to, const struct pending *from)
{
    const struct pending before = *to;
    for (uint32_t i = 0; i < SLOTS; i++) {
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
            now->reads[t->arenas[i]] = now->writes[t->arenas[i]] = 0;
    now->reads[SLOT_ROPE] = now->writes[SLOT_ROPE] = 0;
}

/* `now`: what is pending before the pass, then behind it. */
static void plan_pass(struct planner *t, const struct program_pass *pass, struct pending *now)
{
    struct pending entry = *now, behind;
    bool grows = true;
    while (grows) {
        memset(&behind, 0, sizeof behind);
        for (uint32_t mode = 0; mode < CPU_MODES; mode++) {
            struct pending one = entry;
            plan_mode(t, pass, mode, &one);
            (void)join(&behind, &one);
        }
        struct pending next = behind;
        drop_step(&next, t);
        grows = join(&entry, &next);
    }
    *now = behind;
}

void cpu_plan_stages(struct cpu_stage *stages, const struct layer_program *p, const uint8_t *arenas)
{
    struct planner t = {.p = p, .arenas = arenas, .stages = stages};
    struct pending now = {{0}, {0}};
    for (uint32_t i = 0; i < p->n_stage; i++)
        stages[i] = (struct cpu_stage){.own_cols = own_columns(p, &p->stages[i])};
    now.writes[SLOT_ROPE] = 1u << PART_ANY;
    for (uint32_t i = 0; i < p->n_pass; i++) {
        if (p->passes[i].asked) /* model_logits begins behind a barrier */
            memset(&now, 0, sizeof now);
        plan_pass(&t, &p->passes[i], &now);
    }
}

/* ---- memory ---- */

struct life { /* of what a buffer has, in stages of one pass */
    uint32_t from, to;
    bool is_there;
};

/* May it share memory? Inputs of products do: barriers stand between them as it is. Others would
 * need more of these. */
static bool is_shareable(const struct layer_program *p, uint32_t buffer)
{
    return p->buffers[buffer].rows == PROGRAM_ROWS_BLOCK && p->buffers[buffer].is_stored &&
           buffer != PROGRAM_B_ROUTES && cpu_plan_is_copied(p, buffer);
}

static void note_life(struct life *lives, struct program_ref r, uint32_t stage)
{
    struct life *l = &lives[r.buffer];
    l->from = l->is_there ? l->from : stage;
    l->is_there = true;
    l->to = stage;
}

/* One that the last stage reads would otherwise have to be left by all threads before the next
 * block begins. */
static void hold_last(const struct layer_program *p, struct life *lives,
                      const struct program_pass *pass)
{
    const uint32_t last = pass->first + pass->n - 1;
    for (uint32_t i = 0; i < p->n_buffer; i++)
        if (lives[i].is_there && lives[i].to == last)
            lives[i].from = pass->first;
}

/* Buffers that are needed at the same time, as bits. Within a pass a buffer lives from its first
 * stage to its last. */
static void find_neighbours(uint64_t *with, const struct layer_program *p)
{
    for (uint32_t i = 0; i < p->n_pass; i++) {
        struct life lives[PROGRAM_BUFFERS_MAX] = {{0}};
        for (uint32_t j = p->passes[i].first; j < p->passes[i].first + p->passes[i].n; j++)
            for (uint32_t k = 0; k < p->stages[j].n; k++) {
                const struct program_op *op = &p->ops[p->stages[j].first + k];
                note_life(lives, op->in[0], j);
                note_life(lives, op->in[1], j);
                note_life(lives, op->out, j);
            }
        hold_last(p, lives, &p->passes[i]);
        for (uint32_t a = 0; a < p->n_buffer; a++)
            for (uint32_t b = 0; b < p->n_buffer; b++)
                if (a != b && lives[a].is_there && lives[b].is_there &&
                    lives[a].from <= lives[b].to && lives[b].from <= lives[a].to)
                    with[a] |= 1ull << b;
    }
}

uint32_t cpu_plan_memory(uint8_t *arenas, const struct layer_program *p)
{
    uint64_t with[PROGRAM_BUFFERS_MAX] = {0}, in_slot[PROGRAM_BUFFERS_MAX] = {0};
    uint32_t n = 0;
    _Static_assert(PROGRAM_BUFFERS_MAX <= 64, "a bit for each buffer");
    find_neighbours(with, p);
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        uint32_t at = n;
        const bool shares = is_shareable(p, i);
        for (uint32_t j = 0; shares && j < n && at == n; j++)
            if (in_slot[j] && !(in_slot[j] & with[i]))
                at = j;
        arenas[i] = (uint8_t)at;
        if (shares) /* others have theirs alone */
            in_slot[at] |= 1ull << i;
        n += at == n;
    }
    return n;
}
