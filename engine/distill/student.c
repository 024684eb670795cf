/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a student: masters and what belongs to them (params.h), two packed copies of each
 * matrix (rows for y = x Wᵀ, columns for dx = dy W), the kept values of the micro batches under
 * way, and work memory, which the lists of all layers share: of values that live across attention
 * for all rows, of the others for a block of rows. Memory of micro batches is allocated at once and
 * becomes resident when it is first used. */
#include "engine/distill/student.h"
#include <math.h>
#include <string.h>
#include "common/hub/safetensors.h"
#include "common/mem.h"
#include "engine/distill/student_internal.h"
#include "engine/model/forward/alibi.h"
#include "engine/model/load/weight_finder.h"

#define LINE 64u /* bytes of a cache line: alignment of packed weights */

/* ---- memory ---- */

static size_t whole_lines(size_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

static enum q_code make_memory(struct student_memory *m, size_t n, const char *what,
                               struct q_err *e)
{
    m->n = whole_lines(n ? n : 1);
    m->all = q_alloc_huge(m->n + LINE);
    if (!m->all)
        return q_fail(e, Q_NO_MEMORY, "student: no memory for %zu bytes of %s", m->n, what);
    m->at = (char *)m->all + (LINE - (uintptr_t)m->all % LINE) % LINE;
    return Q_OK;
}

struct sizes { /* the most that an operation of any layer needs */
    uint32_t n_in, n_out, n_unit;
    size_t exchange;
    bool has_ones, has_slopes;
};

static void measure_matrix(struct sizes *z, const struct student *s, const struct train_step *step)
{
    const struct program_op *op = step->op;
    const struct param *p = student_weight_of(s, op->weight, op->layer).param;
    size_t n = (size_t)p->n_row * p->n_col;
    z->n_in = p->n_col > z->n_in ? p->n_col : z->n_in;
    z->n_out = p->n_row > z->n_out ? p->n_row : z->n_out;
    for (uint32_t i = 0; i < p->n_tensor; i++)
        if (p->tensors[i].n_sharing > 1)
            n += (size_t)p->tensors[i].n_row * p->n_col * s->group.size;
    if (step->accumulate && n < (size_t)s->n_row_block * (p->n_col + LINE))
        n = (size_t)s->n_row_block * (p->n_col + LINE);
    z->exchange = n > z->exchange ? n : z->exchange;
}

/* Tables that some operations of the whole model read. */
static void measure_tables(struct sizes *z, const struct student *s)
{
    for (uint32_t i = 0; i < s->program.n_op; i++) {
        const struct program_op *op = &s->program.ops[i];
        z->has_slopes |= op->kind == PROGRAM_ATTENTION && op->attention.alibi;
    }
    for (size_t i = 0; i < s->arch->n_tensor; i++)
        z->has_ones |= s->arch->tensors[i].name == ARCH_ONES;
}

static struct sizes measure(const struct student *s)
{
    struct sizes z = {.n_unit = 1};
    measure_tables(&z, s);
    for (uint32_t i = 0; i < s->n_layer; i++)
        for (uint32_t k = 0; k < s->layers[i].backward.n; k++) {
            const struct train_step *step = &s->layers[i].backward.steps[k];
            const struct program_op *op = step->op;
            if (step->kind != TRAIN_GRAD)
                continue;
            if (op->kind == PROGRAM_MATMUL)
                measure_matrix(&z, s, step);
            if (op->kind == PROGRAM_NORM && op->in[0].n_col / op->norm.unit > z.n_unit)
                z.n_unit = op->in[0].n_col / op->norm.unit;
        }
    return z;
}

/* Pieces of one allocation: with at NULL their sizes are added up. */
static void *piece(char *at, size_t *n, size_t bytes)
{
    void *p = at ? at + *n : NULL;
    *n += whole_lines(bytes);
    return p;
}

static size_t cut_scratch(struct student *s, const struct sizes *z, char *at)
{
    const size_t rows = s->n_row_max, block = s->n_row_block, width = dtype_bits(s->compute) / 8;
    const bool is_bf16 = s->compute == DT_BF16, is_group = s->group.size > 1;
    size_t n = 0;
    s->stream = piece(at, &n, rows * s->config.hidden_size * sizeof(float));
    for (uint32_t i = 0; i < STUDENT_ROPES; i++) {
        const size_t rope = rows * 2 * s->ropes[i].rotary.n_pair * sizeof(float);
        s->ropes[i].table = piece(at, &n, rope);
        s->ropes[i].back = piece(at, &n, rope);
    }
    s->rows = piece(at, &n, rows * sizeof(uint32_t));
    s->ids = piece(at, &n, is_group ? rows * sizeof(uint32_t) : 0);
    s->kern_scratch = piece(at, &n, s->n_thread * s->kern_bytes);
    s->ones = z->has_ones ? piece(at, &n, s->config.hidden_size * sizeof(float)) : NULL;
    s->slopes = z->has_slopes ? piece(at, &n, s->local.n_head * sizeof(float)) : NULL;
    s->embed_dx =
        s->embed_norm ? piece(at, &n, block * s->config.hidden_size * sizeof(float)) : NULL;
    s->rounded = piece(at, &n, is_bf16 ? block * (z->n_out + 32u) * sizeof(uint16_t) : 0);
    s->across = piece(at, &n, (size_t)z->n_out * (STUDENT_GRAD_ROWS + 32u) * width);
    s->factor = piece(at, &n, packed_bytes(s->compute, z->n_in, STUDENT_GRAD_ROWS));
    s->unit_r = piece(at, &n, block * z->n_unit * sizeof(float));
    s->unit_mean = piece(at, &n, block * z->n_unit * sizeof(float));
    s->exchange = piece(at, &n, is_group ? (z->exchange + s->config.hidden_size) * 4 : 0);
    return n;
}

static void fill_slopes(struct student *s)
{
    const uint32_t n = s->local.n_head, first = n * s->group.rank;
    float scale = 1;
    for (uint32_t i = 0; i < s->program.n_op; i++)
        if (s->program.ops[i].kind == PROGRAM_ATTENTION && s->arch->layer.alibi_scaled)
            scale = s->program.ops[i].attention.scale;
    for (uint32_t i = 0; i < n && s->slopes; i++)
        s->slopes[i] = alibi_slope(first + i, s->config.n_head) * scale;
}

static void fill_tables(struct student *s)
{
    fill_slopes(s);
    for (uint32_t i = 0; i < s->config.hidden_size && s->ones; i++)
        s->ones[i] = 1;
    for (uint32_t i = 0; i < s->n_row_max; i++) {
        s->rows[i] = i;
        for (uint32_t k = 0; k < STUDENT_ROPES; k++)
            student_rope_row(&s->ropes[k], i, i, 0);
    }
}

static bool has_local_rope(const struct student *s)
{
    for (uint32_t i = 0; i < s->program.n_op; i++)
        if (s->program.ops[i].kind == PROGRAM_ROPE && s->program.ops[i].rope.local)
            return true;
    return false;
}

static enum q_code make_scratch(struct student *s, struct q_err *e)
{
    const struct sizes z = measure(s);
    const uint32_t head = s->config.head_dim;
    const size_t train = kern_train_scratch_bytes(head);
    size_t work = 0, block = 0;
    enum q_code rc;
    s->kern_bytes = kern_scratch_bytes(1, s->local.n_head, head);
    s->kern_bytes = whole_lines(train > s->kern_bytes ? train : s->kern_bytes);
    for (uint32_t i = 0; i < s->n_layer; i++) {
        work = s->layers[i].work > work ? s->layers[i].work : work;
        block = s->layers[i].block > block ? s->layers[i].block : block;
    }
    rotary_init(&s->ropes[STUDENT_ROPE_ALL].rotary, &s->config);
    if (has_local_rope(s))
        rotary_init_local(&s->ropes[STUDENT_ROPE_LOCAL].rotary, &s->config);
    if ((rc = make_memory(&s->work, work * s->n_row_max, "activations", e)) ||
        (rc = make_memory(&s->block, block * s->n_row_block, "activations", e)) ||
        (rc = make_memory(&s->scratch, cut_scratch(s, &z, NULL), "scratch", e)))
        return rc;
    cut_scratch(s, &z, s->scratch.at);
    fill_tables(s);
    return Q_OK;
}

static enum q_code make_kept(struct student *s, struct q_err *e)
{
    const size_t rows = s->n_row_max;
    const size_t input = rows * s->config.hidden_size * sizeof(float);
    size_t kept = 0;
    s->kept_at = q_calloc(s->n_layer + 1, sizeof *s->kept_at);
    if (!s->kept_at)
        return q_fail(e, Q_NO_MEMORY, "student: no memory for %u layers", s->n_layer);
    for (uint32_t i = 0; i < s->n_layer; i++) {
        const size_t n = s->layers[i].kept;
        s->kept_at[i] = s->recompute ? 0 : s->kept_row;
        s->kept_row = s->recompute ? (n > s->kept_row ? n : s->kept_row) : s->kept_row + n;
    }
    kept = s->kept_row * rows * (s->recompute ? 1 : s->n_slot);
    const size_t inputs = s->recompute ? input * s->n_layer * s->n_slot : 0;
    const enum q_code rc = make_memory(&s->kept, whole_lines(kept) + inputs, "kept activations", e);
    if (rc)
        return rc;
    s->inputs = s->kept.at + whole_lines(kept);
    memset(s->kept.at, 0, whole_lines(kept) + inputs); /* resident before the first step */
    const size_t n = student_attention_bytes(s);
    return n ? make_memory(&s->attention_grads, n, "gradients of attention", e) : Q_OK;
}

/* ---- packed weights ---- */

static bool is_norm(const struct student *s, const struct param *p)
{
    for (uint32_t i = 0; i < s->program.n_op; i++)
        if (s->program.ops[i].kind == PROGRAM_NORM && s->program.ops[i].weight == p->weight)
            return true;
    return false;
}

static bool has_head(const struct student *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->n_stage; i++)
        any = any || s->stages[i].of.has_head;
    return any;
}

static const struct param *head_matrix(const struct student *s)
{
    const struct param *p = params_find(&s->params, PROGRAM_W_LM_HEAD, PROGRAM_NO_LAYER);
    if (p || !has_head(s))
        return p;
    return params_find(&s->params, PROGRAM_W_EMBED, PROGRAM_NO_LAYER);
}

static size_t cut_packs(struct student *s, char *at)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->params.n; i++) {
        const struct param *p = &s->params.all[i];
        struct student_pack *k = &s->packs[i];
        const bool is_matrix =
            p->training_only || program_weight_info(p->weight)->kind == PROGRAM_MATRIX;
        if (is_matrix || p == head_matrix(s)) {
            k->w = (struct packed){.n_out = p->n_row, .n_in = p->n_col, .dtype = s->compute};
            k->w.data = piece(at, &n, packed_bytes(s->compute, p->n_row, p->n_col));
            k->columns = (struct packed){.n_out = p->n_col, .n_in = p->n_row, .dtype = s->compute};
            k->columns.data = piece(at, &n, packed_bytes(s->compute, p->n_col, p->n_row));
        } else if (s->arch->layer.norm_plus_one && is_norm(s, p)) {
            k->vector = piece(at, &n, p->n_row * sizeof(float));
        }
    }
    return n;
}

static void pack_param(const struct student *s, uint32_t i, const float *w,
                       const struct kern_exec *x)
{
    const struct param *p = &s->params.all[i];
    const struct student_pack *k = &s->packs[i];
    for (uint32_t c = 0; k->vector && x->ith == 0 && c < p->n_row; c++)
        k->vector[c] = w[c] + 1;
    if (!k->w.data)
        return;
    const struct pack_args rows = {
        .dst = (void *)(uintptr_t)k->w.data,
        .dst_dtype = s->compute,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = p->n_row,
        .n_in = p->n_col,
        .n_out_total = p->n_row,
    };
    const struct pack_columns_args columns = {
        .dst = (void *)(uintptr_t)k->columns.data,
        .dst_dtype = s->compute,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = p->n_col,
        .n_in = p->n_row,
        .src_stride = p->n_col,
    };
    s->kern->pack(&rows, x);
    s->kern->pack_columns(&columns, x);
}

static void pack_all(void *arg, uint32_t ith, uint32_t nth)
{
    const struct student *s = arg;
    const struct kern_exec x = {.ith = ith, .nth = nth};
    for (uint32_t i = 0; i < s->params.n; i++)
        pack_param(s, i, s->params.w + s->params.all[i].at, &x);
}

void student_params_changed(struct student *s)
{
    if (s->n_thread > 1)
        team_run(s->team, pack_all, s);
    else
        pack_all(s, 0, 1);
}

static enum q_code make_packs(struct student *s, struct q_err *e)
{
    s->packs = q_calloc(s->params.n + 1, sizeof *s->packs);
    if (!s->packs)
        return q_fail(e, Q_NO_MEMORY, "student: no memory for %u parameters", s->params.n);
    const enum q_code rc = make_memory(&s->pack_memory, cut_packs(s, NULL), "packed weights", e);
    if (!rc)
        cut_packs(s, s->pack_memory.at);
    return rc;
}

/* ---- load ---- */

static struct program_form form_of(const void *ctx, enum program_weight w, uint32_t layer)
{
    const struct student *s = ctx;
    (void)w;
    (void)layer;
    return (struct program_form){.input = s->compute};
}

/* What of the model is computed outside of its layers. */
static void read_head(struct student *s)
{
    s->multiplier = 1;
    for (uint32_t i = 0; i < s->program.n_op; i++) {
        const struct program_op *op = &s->program.ops[i];
        if (op->layer != PROGRAM_NO_LAYER)
            continue;
        if (op->kind == PROGRAM_EMBED)
            s->embed = op;
        if (op->kind == PROGRAM_POSITIONS)
            s->positions = op;
        if (op->kind == PROGRAM_NORM)
            *(op->asked ? &s->final_norm : &s->embed_norm) = op;
        if (op->kind == PROGRAM_SCALE)
            s->multiplier *= op->scale;
        if (op->kind == PROGRAM_SOFT_CAP)
            s->soft_cap = op->cap;
    }
}

static enum q_code check_options(const struct student *s, const struct student_options *o,
                                 struct q_err *e)
{
    if (o->compute != DT_F32 && o->compute != DT_BF16)
        return q_fail(e, Q_INVALID, "a student computes in float32 or bfloat16, not in %s",
                      dtype_name(o->compute));
    if (!o->n_stage || !o->n_slot || !o->n_row_max)
        return q_fail(e, Q_INVALID,
                      "a student has %u stages, %u micro batches and %u rows; expected 1 of each "
                      "at least",
                      o->n_stage, o->n_slot, o->n_row_max);
    for (uint32_t i = 0; i < o->n_stage; i++)
        if (o->stages[i].first + (uint64_t)o->stages[i].n > s->config.n_layer)
            return q_fail(e, Q_INVALID, "stage %u has layers %u to %llu, the student has %u", i,
                          o->stages[i].first,
                          (unsigned long long)o->stages[i].first + o->stages[i].n,
                          s->config.n_layer);
    if (s->arch->plugin)
        return q_fail(e, Q_UNSUPPORTED, "%s: architectures of plugins are not supported here",
                      s->config.architecture);
    return Q_OK;
}

/* Do the parameters have the shapes of their operations? */
static enum q_code check_op(const struct student *s, const struct program_op *op, struct q_err *e)
{
    const struct param *p = params_find(&s->params, op->weight, op->layer);
    if (op->kind == PROGRAM_MATMUL && p &&
        (p->n_row != op->out.n_col || p->n_col != op->in[0].n_col))
        return q_fail(e, Q_MISMATCH, "%s: %s of layer %u is [%u, %u], its operation takes [%u, %u]",
                      s->arch->name, program_weight_info(op->weight)->name, op->layer, p->n_row,
                      p->n_col, op->out.n_col, op->in[0].n_col);
    if (op->kind != PROGRAM_NORM || !p)
        return Q_OK;
    const uint32_t n_norm = op->norm.apart ? op->in[0].n_col : op->norm.unit;
    if (p->n_row * p->n_col != n_norm || (!op->norm.apart && student_is_divided(s, p)))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: %s has %u elements, a tensor-parallel rank norms %u: a norm over all "
                      "heads cannot be divided among ranks",
                      s->arch->name, program_weight_info(op->weight)->name, p->tensors[0].all_rows,
                      op->norm.unit);
    return Q_OK;
}

static enum q_code make_layers(struct student *s, const struct student_options *o, struct q_err *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n_stage; i++)
        n += o->stages[i].n;
    s->stages = q_calloc(o->n_stage, sizeof *s->stages);
    s->layers = q_calloc(n + 1, sizeof *s->layers);
    if (!s->stages || !s->layers)
        return q_fail(e, Q_NO_MEMORY, "student: no memory for %u layers", n);
    s->n_stage = o->n_stage;
    for (uint32_t i = 0; i < o->n_stage; i++) {
        s->stages[i] = (struct student_stage){o->stages[i], s->n_layer};
        for (uint32_t k = 0; k < o->stages[i].n; k++) {
            const uint32_t layer = o->stages[i].first + k;
            const enum q_code rc = train_layer_make(&s->layers[s->n_layer], &s->program, layer, e);
            if (rc)
                return rc;
            s->n_layer++;
        }
    }
    return Q_OK;
}

/* What the operations do not say. */
static enum q_code check_kind(const struct student *s, struct q_err *e)
{
    if (!*s->config.outer && !s->config.forward.unit_head)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED, "%s: %s is no student yet", s->arch->name,
                  *s->config.outer ? "the text model of another model"
                                   : "a head whose rows have the length 1");
}

static enum q_code make_program(struct student *s, const struct student_options *o, struct q_err *e)
{
    const struct program_forms forms = {form_of, s, s->compute, 0};
    enum q_code rc;
    if ((rc = model_config_load(&s->config, NULL, o->dir, e)) ||
        (rc = arch_find(&s->arch, s->config.architecture, e)) || (rc = check_options(s, o, e)) ||
        (rc = params_divide(&s->local, &s->config, s->group.size, e)) ||
        (rc = program_compile(&s->program, s->arch, &s->local, &forms, e)) ||
        (rc = train_check_model(&s->program, e)) || (rc = make_layers(s, o, e)) ||
        (rc = check_kind(s, e)))
        return rc;
    read_head(s);
    return Q_OK;
}

static enum q_code load_params(struct student *s, const struct student_options *o, bool list_only,
                               struct q_err *e)
{
    struct tensor_set *files = NULL;
    enum q_code rc = tensor_set_open(&files, o->dir, e);
    if (!rc && tensor_set_format(files) == WEIGHTS_MISTRAL)
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: %s has the names of Mistral's own layout; distillation reads and writes "
                    "those of Hugging Face: convert the model first",
                    o->dir, tensor_set_found(files));
    const struct params_source from = {
        .arch = s->arch,
        .config = &s->config,
        .program = &s->program,
        .files = files,
        .stages = o->stages,
        .n_stage = o->n_stage,
        .rank = s->group.rank,
        .size = s->group.size,
        .n_projection_row = has_head(s) ? o->n_projection_row : 0,
        .no_optimizer = o->no_optimizer,
        .list_only = list_only,
    };
    const struct weight_finder finder = {
        .arch = s->arch,
        .config = &s->config,
        .files = files,
        .names = weight_names_of(s->arch, &s->config, files),
    };
    if (!rc)
        rc = params_load(&s->params, &from, e);
    if (!rc && !list_only) {
        const struct tensor *unused;
        const uint32_t n = weight_finder_unused(&unused, &finder);
        weight_finder_warn_unused(s->arch, n, unused);
    }
    tensor_set_free(files);
    for (uint32_t i = 0; i < s->program.n_op && !rc; i++)
        rc = check_op(s, &s->program.ops[i], e);
    return rc;
}

static enum q_code make_student(struct student **out, const struct student_options *o,
                                struct q_err *e)
{
    struct student *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "no memory for a student");
    s->kern = o->kern;
    s->team = o->team;
    s->n_thread = o->team ? team_size(o->team) : 1;
    s->compute = o->compute;
    s->group = o->tensor_parallel;
    s->group.size = s->group.size ? s->group.size : 1;
    s->n_slot = o->n_slot;
    s->n_row_max = o->n_row_max;
    const uint32_t forward = STUDENT_BLOCK_ROWS * s->n_thread;
    s->n_row_block = forward > STUDENT_GRAD_ROWS ? forward : STUDENT_GRAD_ROWS;
    s->recompute = o->recompute;
    s->shares_attention = o->shares_attention;
    *out = s;
    return make_program(s, o, e);
}

static enum q_code load_numbers(struct student *s, const struct student_options *o, struct q_err *e)
{
    enum q_code rc = load_params(s, o, false, e);
    if (!rc && !(rc = make_packs(s, e)))
        student_params_changed(s);
    return rc;
}

FALLIBLE student_load(struct student **out, const struct student_options *o, struct q_err *e)
{
    struct student *s = NULL;
    enum q_code rc;
    if ((rc = make_student(&s, o, e)) || (rc = load_numbers(s, o, e)) || (rc = make_kept(s, e)) ||
        (rc = make_scratch(s, e))) {
        student_free(s);
        return rc;
    }
    *out = s;
    return Q_OK;
}

FALLIBLE student_check(const struct student_options *o, struct q_err *e)
{
    struct student *s = NULL;
    enum q_code rc = make_student(&s, o, e);
    if (!rc)
        rc = load_params(s, o, true, e);
    student_free(s);
    return rc;
}

void student_free(struct student *s)
{
    if (!s)
        return;
    struct student_memory *const all[] = {&s->pack_memory, &s->kept,    &s->work,
                                          &s->block,       &s->scratch, &s->attention_grads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        q_free(all[i]->all);
    params_release(&s->params);
    program_release(&s->program);
    q_free(s->packs);
    q_free(s->stages);
    q_free(s->layers);
    q_free(s->kept_at);
    q_free(s);
}

/* ---- what others ask ---- */

const struct model_config *student_config(const struct student *s)
{
    return &s->config;
}

struct params *student_params(struct student *s)
{
    return &s->params;
}

/* The last parameter, if there is one. */
static void add_projection(const struct student *s, struct head_weights *to)
{
    const struct param *p = &s->params.all[s->params.n - 1];
    if (!p->training_only)
        return;
    to->projection = s->packs[s->params.n - 1].w;
    to->projection_columns = s->packs[s->params.n - 1].columns;
    to->projection_grad = s->params.g + p->at;
}

bool student_head(const struct student *s, struct head_weights *out)
{
    const struct param *p = head_matrix(s);
    const struct student_weight norm = student_norm_weight(s, s->final_norm);
    const struct student_weight bias =
        student_weight_of(s, PROGRAM_W_LM_HEAD_BIAS, PROGRAM_NO_LAYER);
    if (!p || !has_head(s))
        return false;
    const struct student_weight norm_bias =
        student_weight_of(s, s->final_norm->bias, PROGRAM_NO_LAYER);
    *out = (struct head_weights){
        .kern = s->kern,
        .team = s->team,
        .compute = s->compute,
        .n_vocab = s->config.vocab_size,
        .hidden = s->config.hidden_size,
        .norm_eps = s->final_norm->norm.eps,
        .norm = norm.w,
        .is_layer_norm = s->final_norm->norm.kind == ARCH_NORM_LAYER,
        .norm_bias = norm_bias.w,
        .w = s->packs[p - s->params.all].w,
        .w_columns = s->packs[p - s->params.all].columns,
        .bias = bias.w,
        .multiplier = s->multiplier,
        .soft_cap = s->soft_cap,
        .norm_grad = norm.g,
        .norm_bias_grad = norm_bias.g,
        .w_grad = s->params.g ? s->params.g + p->at : NULL,
        .bias_grad = bias.g,
        .tensor_parallel = s->group,
    };
    add_projection(s, out);
    return true;
}

struct student_cost student_cost(const struct student *s)
{
    struct student_cost c = {0};
    const double size = s->group.size;
    for (uint32_t i = 0; i < s->program.n_op; i++) {
        const struct program_op *op = &s->program.ops[i];
        const double product = 2.0 * op->in[0].n_col * op->out.n_col * size;
        if (op->kind == PROGRAM_ATTENTION)
            c.attention += 4.0 * op->in[0].n_col * size;
        if (op->kind == PROGRAM_MATMUL)
            *(op->layer == PROGRAM_NO_LAYER ? &c.head : &c.layer) += product;
    }
    return c;
}

uint64_t student_bytes(const struct student *s)
{
    const size_t n_array = s->params.m ? 4 : 2;
    return s->params.n_element * n_array * sizeof(float) + s->pack_memory.n + s->kept.n +
           s->work.n + s->block.n + s->scratch.n + s->attention_grads.n +
           s->n_layer * sizeof *s->layers;
}
