/* SPDX-License-Identifier: Apache-2.0 */
/* A quire_op in words becomes an operation of the list: its buffers get the type and the columns
 * that they have at that place, its weights are looked up among the plugin's tensors and the
 * family's weights, and a product that reads bytes gets an operation in front of it that makes
 * them. */
#include "engine/model/plugin/host_program.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/model/forward/program_text.h"

struct quire_program {
    const struct program_change *c;
    struct layer_program *p;
};

struct insertion {
    const struct program_change *c;
    struct layer_program *p;
    const struct quire_op *op;
    uint32_t at, layer;
    struct program_op to;
    struct q_err *e;
};

static int give(struct quire_plugin_error *error, const struct q_err *e)
{
    if (error)
        snprintf(error->message, sizeof error->message, "%.*s", (int)sizeof error->message - 1,
                 e->message);
    return 1;
}

/* ---- places ---- */

/* "add", "matmul down" (with its weight), "add#2" (the second one). */
struct place_name {
    char text[96];
    uint32_t number;
};

static bool has_name(const struct program_op *op, const char *name)
{
    const char *kind = program_op_name(op);
    const size_t n = strlen(kind);
    if (strcmp(kind, name) == 0)
        return true;
    return op->weight && strncmp(name, kind, n) == 0 && name[n] == ' ' &&
           strcmp(name + n + 1, program_weight_info(op->weight)->name) == 0;
}

static enum q_code parse_place(struct place_name *n, const char *name, struct q_err *e)
{
    const char *number = name ? strchr(name, '#') : NULL;
    const size_t length = number ? (size_t)(number - name) : name ? strlen(name) : 0;
    n->number = 1;
    if (!name || length >= sizeof n->text)
        return q_fail(e, Q_INVALID, "the name of a place is %s", name ? "too long" : "NULL");
    memcpy(n->text, name, length);
    n->text[length] = '\0';
    if (number) {
        char *end;
        const unsigned long v = strtoul(number + 1, &end, 10);
        if (*end || end == number + 1 || v == 0 || v > 1000)
            return q_fail(e, Q_INVALID, "place \"%.60s\": expected a number from 1 behind #", name);
        n->number = (uint32_t)v;
    }
    return Q_OK;
}

static enum q_code fail_place(const struct layer_program *p, uint32_t layer, const char *name,
                              struct q_err *e)
{
    char names[300] = "", where[32] = "outside of the layers";
    size_t n = 0;
    const char *last = "";
    for (uint32_t i = 0; i < p->n_op && n < sizeof names; i++) {
        const char *one = program_op_name(&p->ops[i]);
        if (p->ops[i].layer != layer || strcmp(one, last) == 0)
            continue;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", one);
        last = one;
    }
    if (layer != QUIRE_NO_LAYER)
        snprintf(where, sizeof where, "in layer %u", layer);
    return q_fail(e, Q_INVALID, "there is no operation \"%.60s\" %s; there are %s", name, where,
                  *names ? names : "none");
}

/* The operation of that name; of "" the first one. */
static enum q_code find_op(uint32_t *out, const struct layer_program *p, uint32_t layer,
                           const char *name, struct q_err *e)
{
    struct place_name place;
    enum q_code rc = parse_place(&place, name, e);
    if (rc)
        return rc;
    if (layer != QUIRE_NO_LAYER && layer >= p->n_layer)
        return q_fail(e, Q_INVALID, "layer %u does not exist, there are %u", layer, p->n_layer);
    for (uint32_t i = 0; i < p->n_op; i++) {
        if (p->ops[i].layer != layer || (*place.text && !has_name(&p->ops[i], place.text)))
            continue;
        if (--place.number)
            continue;
        *out = i;
        return Q_OK;
    }
    return fail_place(p, layer, name, e);
}

/* ---- buffers ---- */

static uint16_t find_buffer(const struct layer_program *p, const char *name)
{
    for (uint32_t i = PROGRAM_B_NONE + 1; name && i < p->n_buffer; i++)
        if (strcmp(p->buffers[i].name, name) == 0)
            return (uint16_t)i;
    return PROGRAM_B_NONE;
}

static enum q_code add_buffer(uint16_t *out, struct insertion *t, const char *name)
{
    struct layer_program *p = t->p;
    const uint32_t i = p->n_buffer;
    if (!*name || strlen(name) >= PROGRAM_NAME_MAX)
        return q_fail(t->e, Q_INVALID,
                      "buffer \"%.40s\": its name has no or more than %u characters", name,
                      PROGRAM_NAME_MAX - 1);
    if (i == PROGRAM_BUFFERS_MAX)
        return q_fail(t->e, Q_TOO_LARGE, "buffer %s: there are %u of them already", name, i);
    snprintf(p->own_names[i], PROGRAM_NAME_MAX, "%s", name);
    p->buffers[i] = (struct program_buffer){.name = p->own_names[i]};
    p->n_buffer++;
    *out = (uint16_t)i;
    return Q_OK;
}

/* What the buffer holds before operation `at`: of type and columns of the last one that wrote it;
 * PROGRAM_B_NONE: nothing has. Rows of all tokens and rows asked for do not mix. */
static struct program_ref held_at(const struct layer_program *p, uint32_t at, uint16_t buffer)
{
    for (uint32_t i = at; i-- > 0;) {
        const struct program_op *op = &p->ops[i];
        if (op->out.buffer == buffer && !op->onto && !op->in_place)
            return (struct program_ref){buffer, op->out.dtype, 0, op->out.col + op->out.n_col};
        if (op->asked)
            break;
    }
    return (struct program_ref){0};
}

static bool param(double *out, const struct quire_op *op, const char *name)
{
    for (uint32_t i = 0; i < QUIRE_OP_PARAMS_MAX && op->params[i].name; i++)
        if (strcmp(op->params[i].name, name) == 0) {
            *out = op->params[i].value;
            return true;
        }
    return false;
}

/* A parameter that is a whole number; `out` stays as it is where it is not given. */
static enum q_code whole(uint32_t *out, const struct insertion *t, const char *name, uint32_t least)
{
    double v;
    if (!param(&v, t->op, name))
        return Q_OK;
    if (!(v >= least && v <= UINT32_MAX - 1.0) || v != floor(v))
        return q_fail(t->e, Q_INVALID, "operation %s: %s is %g, expected a whole number from %u",
                      t->op->kind, name, v, least);
    *out = (uint32_t)v;
    return Q_OK;
}

static enum q_code input(struct insertion *t, struct program_ref *to, const char *name,
                         const char *col, const char *cols)
{
    const uint16_t b = find_buffer(t->p, name);
    *to = b ? held_at(t->p, t->at, b) : (struct program_ref){0};
    if (!to->buffer)
        return q_fail(
            t->e, Q_INVALID,
            "operation %s: its input \"%.40s\" is a buffer that no operation before it has "
            "written",
            t->op->kind, name ? name : "NULL");
    const uint32_t all = to->n_col;
    enum q_code rc;
    if ((rc = whole(&to->col, t, col, 0)))
        return rc;
    to->n_col = to->col < all ? all - to->col : 0;
    if ((rc = whole(&to->n_col, t, cols, 1)))
        return rc;
    if (to->n_col == 0 || to->col > all || to->n_col > all - to->col)
        return q_fail(t->e, Q_INVALID, "operation %s: %s has %u columns, it reads %u from %u on",
                      t->op->kind, name, all, to->n_col, to->col);
    return Q_OK;
}

/* `n_col` columns of f32; `onto`: of a buffer that has them. */
static enum q_code output(struct insertion *t, uint32_t n_col)
{
    struct program_op *to = &t->to;
    uint16_t b = find_buffer(t->p, t->op->out);
    enum q_code rc;
    if (!t->op->out)
        return q_fail(t->e, Q_INVALID, "operation %s: out is NULL", t->op->kind);
    if (!b && (rc = add_buffer(&b, t, t->op->out)))
        return rc;
    if (b == PROGRAM_B_CACHE || b == PROGRAM_B_IDS || b == PROGRAM_B_POSITIONS ||
        b == PROGRAM_B_ROUTES || b == PROGRAM_B_STREAM_IN || b == PROGRAM_B_STREAM_OUT)
        return q_fail(t->e, Q_INVALID, "operation %s: %s is no buffer to write", t->op->kind,
                      t->op->out);
    to->out = (struct program_ref){.buffer = b, .dtype = DT_F32, .n_col = n_col};
    if ((rc = whole(&to->out.col, t, "out_col", 0)))
        return rc;
    const struct program_ref held = held_at(t->p, t->at, b);
    const bool is_part = to->out.col || (held.buffer && to->out.n_col < held.n_col);
    to->in_place = b == to->in[0].buffer && to->kind != PROGRAM_ADD && to->kind != PROGRAM_MATMUL;
    if (to->in_place || to->onto)
        return Q_OK;
    if (is_part)
        return q_fail(
            t->e, Q_INVALID,
            "operation %s: it writes %u columns of %s, which has %u; write another buffer "
            "and add it",
            t->op->kind, to->out.n_col, t->op->out, held.n_col);
    if (b < PROGRAM_BUFFERS && held.buffer && held.dtype != DT_F32)
        return q_fail(t->e, Q_INVALID, "operation %s: %s holds %s, a plugin writes float32",
                      t->op->kind, t->op->out, dtype_name((enum dtype)held.dtype));
    return Q_OK;
}

/* ---- weights ---- */

static enum q_code find_weight(enum program_weight *out, const struct insertion *t, const char *id)
{
    const struct arch *a = &t->c->model->arch->arch;
    *out = PROGRAM_W_NONE;
    if (!id)
        return Q_OK;
    for (uint32_t i = 0; i < a->n_own && !*out; i++)
        if (strcmp(a->own[i].tensor->id, id) == 0)
            *out = (enum program_weight)a->own[i].weight;
    for (uint32_t w = PROGRAM_W_NONE + 1; w < PROGRAM_WEIGHTS && !*out; w++)
        if (strcmp(program_weight_info((enum program_weight)w)->name, id) == 0)
            *out = (enum program_weight)w;
    if (!*out)
        return q_fail(t->e, Q_INVALID, "operation %s: there is no tensor \"%.60s\"", t->op->kind,
                      id);
    const bool of_layer = program_weight_info(*out)->scope != PROGRAM_OF_MODEL;
    if (of_layer && t->layer == QUIRE_NO_LAYER)
        return q_fail(t->e, Q_INVALID,
                      "operation %s: tensor %s is of each layer, the operation of none",
                      t->op->kind, id);
    return Q_OK;
}

/* [rows, cols] of a plugin's tensor; of others nothing is said, the loaded model checks them. */
static bool own_size(const struct insertion *t, enum program_weight w, struct config_own *out)
{
    if (!program_weight_is_own(w))
        return false;
    *out = t->c->model->config.own[program_weight_info(w)->i_own];
    return true;
}

static enum q_code fail_size(const struct insertion *t, enum program_weight w,
                             const struct config_own *has, const char *what)
{
    return q_fail(t->e, Q_INVALID, "operation %s: tensor %s is [%u%s%.0u], %s", t->op->kind,
                  program_weight_info(w)->name, has->rows, has->cols ? ", " : "", has->cols, what);
}

static enum q_code check_vector(const struct insertion *t, enum program_weight w, uint32_t n)
{
    struct config_own has;
    char what[60];
    snprintf(what, sizeof what, "its operation takes [%u]", n);
    return own_size(t, w, &has) && (has.cols || has.rows != n) ? fail_size(t, w, &has, what) : Q_OK;
}

/* ---- kinds ---- */

static enum q_code make_embed(struct insertion *t)
{
    struct config_own has = {0};
    double scale = 1;
    (void)param(&scale, t->op, "scale");
    t->to.in[0] = (struct program_ref){PROGRAM_B_IDS, DT_F32, 0, 1};
    t->to.scale = (float)scale;
    const bool is_own = own_size(t, t->to.weight, &has);
    if (is_own && has.rows < t->c->model->config.vocab_size)
        return fail_size(t, t->to.weight, &has, "which is fewer rows than the vocabulary has");
    return output(t, is_own ? has.cols : t->c->model->config.hidden_size);
}

static enum q_code make_positions(struct insertion *t)
{
    struct config_own has = {0};
    const uint32_t n_position = t->c->model->config.max_position;
    uint32_t first = 0, div = 1, mod = 0;
    enum q_code rc;
    if (!own_size(t, t->to.weight, &has))
        return q_fail(t->e, Q_INVALID, "operation positions: its weight is no table of the plugin");
    if ((rc = whole(&first, t, "first", 0)) || (rc = whole(&div, t, "div", 1)) ||
        (rc = whole(&mod, t, "mod", 1)))
        return rc;
    const uint64_t rows = first + (mod ? (uint64_t)mod : ((uint64_t)n_position - 1) / div + 1);
    if (rows > has.rows) {
        char what[120];
        snprintf(what, sizeof what, "%u positions need %llu rows (first %u, div %u, mod %u)",
                 n_position, (unsigned long long)rows, first, div, mod);
        return fail_size(t, t->to.weight, &has, what);
    }
    t->to.in[0] = (struct program_ref){PROGRAM_B_POSITIONS, DT_F32, 0, 1};
    t->to.first = first;
    t->to.div = div;
    t->to.mod = mod ? mod : (uint32_t)(rows - first);
    t->to.onto = true;
    if ((rc = output(t, has.cols)))
        return rc;
    const struct program_ref held = held_at(t->p, t->at, t->to.out.buffer);
    return held.buffer && held.n_col == has.cols
               ? Q_OK
               : fail_size(t, t->to.weight, &has,
                           "its rows are not as wide as what they are added to");
}

static enum q_code make_norm(struct insertion *t)
{
    const struct arch_layer *l = &t->c->model->arch->arch.layer;
    const struct model_config *c = &t->c->model->config;
    double eps = c->rms_norm_eps, layer = arch_norm_of(l, c) == ARCH_NORM_LAYER;
    enum q_code rc = input(t, &t->to.in[0], t->op->in, "in_col", "in_cols");
    if (rc)
        return rc;
    (void)param(&eps, t->op, "eps");
    (void)param(&layer, t->op, "layer");
    t->to.norm.kind = layer != 0 ? ARCH_NORM_LAYER : ARCH_NORM_RMS;
    t->to.norm.eps = (float)eps;
    t->to.norm.unit = t->to.in[0].n_col;
    if ((rc = check_vector(t, t->to.weight, t->to.in[0].n_col)) ||
        (rc = check_vector(t, t->to.bias, t->to.in[0].n_col)))
        return rc;
    return output(t, t->to.in[0].n_col);
}

/* Bytes that a product reads are made by an operation of their own. */
static enum q_code make_bytes(struct insertion *t, const struct program_form *form)
{
    char name[PROGRAM_NAME_MAX];
    struct program_ref bytes = {0, (uint16_t)form->input, 0, t->to.in[0].n_col};
    snprintf(name, sizeof name, "%.20s.bytes", t->op->in);
    bytes.buffer = find_buffer(t->p, name);
    enum q_code rc = bytes.buffer ? Q_OK : add_buffer(&bytes.buffer, t, name);
    const struct program_op op = {
        .kind = PROGRAM_QUANTIZE,
        .layer = t->layer,
        .in = {t->to.in[0]},
        .out = bytes,
        .weight = t->to.weight,
        .ordered = form->ordered,
    };
    t->to.in[0] = bytes;
    return rc ? rc : program_insert(t->p, t->at++, &op, t->e);
}

static enum q_code make_matmul(struct insertion *t)
{
    struct config_own has;
    enum q_code rc = input(t, &t->to.in[0], t->op->in, "in_col", "in_cols");
    if (rc)
        return rc;
    if (!own_size(t, t->to.weight, &has) || !has.cols)
        return q_fail(t->e, Q_INVALID, "operation matmul: its weight is no matrix of the plugin");
    char what[60];
    snprintf(what, sizeof what, "its input has %u columns", t->to.in[0].n_col);
    if (has.cols != t->to.in[0].n_col)
        return fail_size(t, t->to.weight, &has, what);
    if ((rc = check_vector(t, t->to.bias, has.rows)) || (rc = output(t, has.rows)))
        return rc;
    const struct program_form form = t->c->forms->form(t->c->forms->ctx, t->to.weight, t->layer);
    const enum dtype in = (enum dtype)t->to.in[0].dtype;
    if (form.input == in || (!t->c->on_device && in == DT_F32 && form.input == DT_BF16))
        return Q_OK;
    if (in == DT_F32 && (form.input == DT_I8 || form.input == DT_F8_E4M3))
        return make_bytes(t, &form);
    return q_fail(
        t->e, Q_UNSUPPORTED,
        "operation matmul: %s is %s, the product with %s reads %s here; read the output of "
        "a norm",
        t->op->in, dtype_name(in), t->op->weight, dtype_name(form.input));
}

static enum q_code make_add(struct insertion *t)
{
    double scale = 1;
    enum q_code rc = input(t, &t->to.in[0], t->op->in, "in_col", "in_cols");
    if (rc)
        return rc;
    (void)param(&scale, t->op, "scale");
    t->to.onto = true;
    t->to.scale = (float)scale;
    return output(t, t->to.in[0].n_col);
}

static enum q_code make_activate(struct insertion *t)
{
    double gated = 0;
    enum q_code rc = input(t, &t->to.in[0], t->op->in, "in_col", "in_cols");
    if (rc)
        return rc;
    (void)param(&gated, t->op, "gated");
    if (!arch_activation_parse(&t->to.act.is, t->c->model->config.hidden_act))
        return q_fail(t->e, Q_UNSUPPORTED, "operation activate: hidden_act \"%s\" is not supported",
                      t->c->model->config.hidden_act);
    t->to.act.gated = gated != 0;
    if (find_buffer(t->p, t->op->out) == t->to.in[0].buffer)
        return q_fail(t->e, Q_INVALID,
                      "operation activate: out is its input; write another buffer");
    return output(t, t->to.in[0].n_col / (t->to.act.gated ? 2 : 1));
}

static enum q_code make_scale(struct insertion *t)
{
    double by = 1;
    enum q_code rc = input(t, &t->to.in[0], t->op->in, "in_col", "in_cols");
    const bool is_cap = t->to.kind == PROGRAM_SOFT_CAP;
    if (rc)
        return rc;
    if (!param(&by, t->op, is_cap ? "cap" : "scale") || (is_cap && !(by > 0)))
        return q_fail(t->e, Q_INVALID, "operation %s: parameter %s is not given or not above 0",
                      t->op->kind, is_cap ? "cap" : "scale");
    if (is_cap)
        t->to.cap = (float)by;
    else
        t->to.scale = (float)by;
    if (find_buffer(t->p, t->op->out) != t->to.in[0].buffer)
        return q_fail(t->e, Q_INVALID, "operation %s: out is not its input, which it changes",
                      t->op->kind);
    rc = output(t, t->to.in[0].n_col);
    t->to.out.col = t->to.in[0].col;
    return rc;
}

static const struct {
    const char *name;
    enum program_kind kind;
    enum q_code (*make)(struct insertion *t);
    const char *params[5];
} kinds[] = {
    {"embed", PROGRAM_EMBED, make_embed, {"scale"}},
    {"positions", PROGRAM_POSITIONS, make_positions, {"first", "div", "mod"}},
    {"norm", PROGRAM_NORM, make_norm, {"eps", "layer", "in_col", "in_cols"}},
    {"matmul", PROGRAM_MATMUL, make_matmul, {"in_col", "in_cols"}},
    {"add", PROGRAM_ADD, make_add, {"scale", "in_col", "in_cols", "out_col"}},
    {"activate", PROGRAM_ACTIVATE, make_activate, {"gated", "in_col", "in_cols"}},
    {"scale", PROGRAM_SCALE, make_scale, {"scale", "in_col", "in_cols"}},
    {"soft cap", PROGRAM_SOFT_CAP, make_scale, {"cap", "in_col", "in_cols"}},
};
#define N_KIND (sizeof kinds / sizeof *kinds)

/* ---- a plugin's own operations ---- */

static const struct quire_operation *find_operation(const struct insertion *t)
{
    const struct plugin *p = t->c->model->arch->plugin;
    for (uint32_t i = 0; i < p->p.n_operation; i++)
        if (strcmp(p->operations[i].name, t->op->kind) == 0)
            return &p->operations[i];
    return NULL;
}

static enum q_code make_own(struct insertion *t, const struct quire_operation *of)
{
    struct program_own *own = q_calloc(1, sizeof *own);
    uint32_t n_col = 0;
    if (!own)
        return q_fail(t->e, Q_NO_MEMORY, "out of memory for operation %s", of->name);
    own->of = of;
    own->next = t->p->owns;
    t->p->owns = own;
    t->to.own = own;
    for (uint32_t i = 0; i < QUIRE_OP_PARAMS_MAX && of->params[i]; i++)
        (void)param(&own->params[i], t->op, of->params[i]);
    enum q_code rc = input(t, &t->to.in[0], t->op->in, "in_col", "in_cols");
    if (!rc && t->op->in2)
        rc = input(t, &t->to.in[1], t->op->in2, "in2_col", "in2_cols");
    if (rc)
        return rc;
    for (int i = 0; i < 2 && t->to.in[i].buffer; i++)
        if (t->to.in[i].dtype != DT_F32)
            return q_fail(t->e, Q_UNSUPPORTED, "operation %s: %s is %s here, expected float32",
                          of->name, t->p->buffers[t->to.in[i].buffer].name,
                          dtype_name((enum dtype)t->to.in[i].dtype));
    n_col = t->to.in[0].n_col;
    if ((rc = whole(&n_col, t, "out_cols", 1)) || (rc = output(t, n_col)))
        return rc;
    if (t->to.in_place)
        t->to.out.col = t->to.in[0].col;
    if (t->to.in_place && t->to.out.n_col != t->to.in[0].n_col)
        return q_fail(t->e, Q_INVALID, "operation %s: in place it has %u columns in and %u out",
                      of->name, t->to.in[0].n_col, t->to.out.n_col);
    return Q_OK;
}

/* ---- insertion ---- */

static bool is_common(const char *name, bool own)
{
    static const char *const names[] = {"in_col", "in_cols", "in2_col", "in2_cols", "out_cols"};
    for (size_t i = 0; own && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static enum q_code check_params(const struct insertion *t, const char *const *known, size_t n,
                                bool own)
{
    char names[200] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < QUIRE_OP_PARAMS_MAX && t->op->params[i].name; i++) {
        bool found = is_common(t->op->params[i].name, own);
        for (size_t k = 0; k < n && known[k] && !found; k++)
            found = strcmp(known[k], t->op->params[i].name) == 0;
        if (found && isfinite(t->op->params[i].value))
            continue;
        for (size_t k = 0; k < n && known[k] && used < sizeof names; k++)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", k ? ", " : "",
                                     known[k]);
        return q_fail(t->e, Q_INVALID, "operation %s: parameter \"%.40s\" %s; it takes %s",
                      t->op->kind, t->op->params[i].name, found ? "is not finite" : "is unknown",
                      *names ? names : "none");
    }
    return Q_OK;
}

static enum q_code fail_kind(const struct insertion *t)
{
    char names[200] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_KIND && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", kinds[i].name);
    return q_fail(t->e, Q_INVALID,
                  "operation \"%.40s\" is none that a plugin inserts: %s, and its own operations",
                  t->op->kind, names);
}

static enum q_code make(struct insertion *t)
{
    enum q_code rc;
    size_t i = 0;
    if (!t->op->kind)
        return q_fail(t->e, Q_INVALID, "an operation's kind is NULL");
    const struct quire_operation *own = find_operation(t);
    while (i < N_KIND && strcmp(kinds[i].name, t->op->kind) != 0)
        i++;
    if (!own && i == N_KIND)
        return fail_kind(t);
    t->to = (struct program_op){
        .kind = own ? PROGRAM_OWN : kinds[i].kind,
        .layer = t->layer,
    };
    if ((rc = find_weight(&t->to.weight, t, t->op->weight)) ||
        (rc = find_weight(&t->to.bias, t, t->op->bias)) ||
        (rc = own ? check_params(t, own->params, QUIRE_OP_PARAMS_MAX, true)
                  : check_params(t, kinds[i].params, 5, false)))
        return rc;
    return own ? make_own(t, own) : kinds[i].make(t);
}

int host_insert_after(struct quire_program *program, uint32_t layer, const char *name,
                      const struct quire_op *given, struct quire_plugin_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct quire_op op;
    struct layer_program *p = program->p;
    struct insertion t = {.c = program->c, .p = p, .op = &op, .layer = layer, .e = &e};
    if (plugin_take(&op, sizeof op, given, "an operation", &e) ||
        find_op(&t.at, p, layer, name, &e))
        return give(error, &e);
    if (*name) {
        t.at++;
        if (p->ops[t.at - 1].kind == PROGRAM_EMBED && t.at < p->n_op &&
            p->ops[t.at].kind == PROGRAM_ITEMS)
            t.at++; /* items are what is embedded, too */
    }
    if (make(&t) || program_insert(p, t.at, &t.to, &e))
        return give(error, &e);
    return 0;
}

int host_remove(struct quire_program *program, uint32_t layer, const char *name,
                struct quire_plugin_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct layer_program *p = program->p;
    uint32_t at = 0;
    if (name && !*name)
        (void)q_fail(&e, Q_INVALID, "an operation to be removed has no name");
    if (e.code || find_op(&at, p, layer, name, &e))
        return give(error, &e);
    if (p->ops[at].asked) {
        (void)q_fail(&e, Q_UNSUPPORTED, "operation %s takes the rows that are asked for; it stays",
                     name);
        return give(error, &e);
    }
    memmove(&p->ops[at], &p->ops[at + 1], (p->n_op - at - 1) * sizeof *p->ops);
    p->n_op--;
    return 0;
}

const struct quire_model *host_program_model(const struct quire_program *p)
{
    return p->c->model;
}

struct program_call {
    struct quire_program program;
    struct quire_plugin_error error;
    int failed;
};

static void call_program(void *ctx)
{
    struct program_call *c = ctx;
    c->failed = c->program.c->model->arch->a.program(&plugin_host, &c->program, &c->error);
}

FALLIBLE plugin_change_program(const struct program_change *c, struct q_err *e)
{
    struct program_call call = {.program = {c, c->p}};
    const struct plugin_arch *a = c->model->arch;
    if (!a->a.program)
        return Q_OK;
    enum q_code rc = plugin_call(c->model, "program", call_program, &call, e);
    if (rc)
        return rc;
    rc = call.failed ? plugin_failed(c->model, "program", &call.error, Q_INVALID, e)
                     : program_check(c->p, e);
    return rc ? q_wrap(e, "plugin %s: program of %s", plugin_arch_text(a), a->a.name) : Q_OK;
}

void plugin_place_buffers(struct layer_program *p)
{
    for (uint32_t i = 0; i < p->n_op && p->ops[i].layer == PROGRAM_NO_LAYER && !p->ops[i].asked;
         i++)
        if (p->ops[i].out.buffer >= PROGRAM_BUFFERS)
            p->buffers[p->ops[i].out.buffer].rows = PROGRAM_ROWS_STEP;
}
