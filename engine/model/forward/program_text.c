/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/program_text.h"
#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "engine/plugin.h"

#define LINE_MAX_TEXT 200 /* of one part of a line */

const char *program_kind_name(enum program_kind kind)
{
    static const char *const names[PROGRAM_KINDS] = {
#define OP(id, name, rows) [PROGRAM_##id] = name,
#include "engine/model/forward/program_ops.def"
    };
    return names[kind];
}

const char *program_op_name(const struct program_op *op)
{
    return op->kind == PROGRAM_OWN ? op->own->of->name : program_kind_name(op->kind);
}

const char *program_fusion_text(enum program_fusion f)
{
    static const char *const texts[PROGRAM_FUSIONS] = {
        [PROGRAM_FUSE_NONE] = "",
#define FUSION(id, text, ...) [PROGRAM_FUSE_##id] = text,
#include "engine/model/forward/program_fusions.def"
    };
    return texts[f];
}

/* ---- what it costs ---- */

static uint64_t form_bytes(const struct program_costs *c, const struct program_op *op)
{
    return c->forms->form(c->forms->ctx, op->weight, op->layer).bytes;
}

static uint64_t kv_bytes(const struct program_costs *c, const struct program_op *op)
{
    return c->kv_bytes ? c->kv_bytes[op->layer] : 0;
}

struct program_cost program_cost(const struct program_op *op, const struct program_costs *c)
{
    const uint64_t in = op->in[0].n_col, out = op->out.n_col;
    switch (op->kind) {
    case PROGRAM_MATMUL: {
        const uint64_t bytes = form_bytes(c, op);
        return (struct program_cost){bytes, bytes, 2 * in * out, 0, 0};
    }
    case PROGRAM_EXPERTS: {
        const uint64_t bytes = form_bytes(c, op), n = op->route.n_used;
        return (struct program_cost){bytes * op->route.n_expert, bytes * n, 2 * in * out * n, 0, 0};
    }
    case PROGRAM_HEADS: {
        const uint64_t n = (uint64_t)op->heads.n_head * op->heads.n_in * op->heads.n_out;
        const uint64_t bytes = n * c->table_bytes;
        return (struct program_cost){bytes, bytes, 2 * n, 0, 0};
    }
    case PROGRAM_ATTENTION_LATENT:
        return (struct program_cost){
            .context_ops =
                2 * (uint64_t)op->latent.n_head * (op->latent.n_key + op->latent.n_value),
            .context_bytes = kv_bytes(c, op),
        };
    case PROGRAM_ATTENTION:
        return (struct program_cost){
            .context_ops = 4 * (uint64_t)op->attention.n_head * op->attention.head_dim,
            .context_bytes = kv_bytes(c, op),
        };
    default:
        return (struct program_cost){0};
    }
}

/* Tokens of a context that a row of the operation sees. */
static uint64_t seen(const struct program_op *op, uint64_t n_context)
{
    const uint32_t window = op->kind == PROGRAM_ATTENTION ? op->attention.window : 0;
    return window && window < n_context ? window : n_context;
}

struct totals {
    uint64_t weight_bytes, row_bytes, layer_ops, logit_ops; /* ops of a row */
    uint64_t context_ops, context_bytes;                    /* of a row with all its context */
    uint64_t stored_bytes;                                  /* of a token in the KV cache */
};

static struct totals totals_of(const struct layer_program *p, const struct program_show *s)
{
    struct totals t = {0};
    bool asked = false;
    for (uint32_t i = 0; i < p->n_op; i++) {
        const struct program_op *op = &p->ops[i];
        const struct program_cost c = program_cost(op, &s->costs);
        asked |= op->asked;
        t.weight_bytes += c.weight_bytes;
        t.row_bytes += c.row_bytes;
        *(asked ? &t.logit_ops : &t.layer_ops) += c.row_ops;
        t.context_ops += c.context_ops * seen(op, s->n_context);
        if (op->kind == PROGRAM_STORE || op->kind == PROGRAM_STORE_LATENT)
            t.stored_bytes += kv_bytes(&s->costs, op);
        t.context_bytes += c.context_bytes * seen(op, s->n_context);
    }
    return t;
}

/* ---- lines ---- */

/* Columns that the buffer has where `op` reads it; 0: no operation writes it. UINT32_MAX: more than
 * the last one has written. */
static uint32_t columns_at(const struct layer_program *p, const struct program_op *op,
                           uint16_t buffer)
{
    while (op-- > p->ops)
        if (op->out.buffer == buffer && !op->in_place && !op->onto)
            return op->out.col ? UINT32_MAX : op->out.n_col;
    return 0;
}

/* A reference as it is read: which columns, where these are not all. */
static void read_text(char *to, size_t n, const struct layer_program *p,
                      const struct program_op *op, struct program_ref r)
{
    const uint32_t all = columns_at(p, op, r.buffer);
    if (all == 0 || (r.col == 0 && r.n_col == all))
        snprintf(to, n, "%s", p->buffers[r.buffer].name);
    else if (r.n_col == 1)
        snprintf(to, n, "%s[%u]", p->buffers[r.buffer].name, r.col);
    else
        snprintf(to, n, "%s[%u…%u]", p->buffers[r.buffer].name, r.col, r.col + r.n_col - 1);
}

static void append(char *to, size_t n, const char *format, ...)
{
    const size_t at = strlen(to);
    va_list ap;
    va_start(ap, format);
    vsnprintf(to + at, n - at, format, ap);
    va_end(ap);
}

static void inputs_text(char *to, size_t n, const struct layer_program *p,
                        const struct program_op *op)
{
    char one[60];
    *to = 0;
    for (int i = 0; i < 2 && op->in[i].buffer; i++) {
        read_text(one, sizeof one, p, op, op->in[i]);
        append(to, n, "%s%s", i ? " · " : "", one);
    }
    if (op->weight && op->kind != PROGRAM_QUANTIZE)
        append(to, n, " · %s", program_weight_info(op->weight)->name);
    if (op->bias)
        append(to, n, " + %s", program_weight_info(op->bias)->name);
}

static void output_text(char *to, size_t n, const struct layer_program *p,
                        const struct program_op *op)
{
    const char *name = p->buffers[op->out.buffer].name;
    *to = 0;
    if (op->onto)
        snprintf(to, n, "+> %s", name);
    else if (op->out.buffer == PROGRAM_B_CACHE)
        snprintf(to, n, "-> %s", name);
    else if (!op->in_place)
        snprintf(to, n, "-> %s[%u] %s", name, op->out.n_col, dtype_name((enum dtype)op->out.dtype));
}

static void attention_text(char *to, size_t n, const struct program_op *op)
{
    append(to, n, "%s, %u heads (%u of K and V) of %u, scale %g",
           op->attention.causal ? "causal" : "both ways", op->attention.n_head,
           op->attention.n_kv_head, op->attention.head_dim, (double)op->attention.scale);
    if (op->attention.window)
        append(to, n, ", %s %u", op->attention.chunked ? "chunks of" : "window",
               op->attention.window);
    if (op->attention.soft_cap > 0)
        append(to, n, ", soft cap %g", (double)op->attention.soft_cap);
    if (op->attention.alibi)
        append(to, n, ", ALiBi slopes");
    if (op->attention.shared)
        append(to, n, ", K and V of layer %u", op->attention.of);
}

static void latent_text(char *to, size_t n, const struct program_op *op)
{
    append(to, n, "causal, %u heads, keys of %u, latents of %u, scale %g", op->latent.n_head,
           op->latent.n_key, op->latent.n_value, (double)op->latent.scale);
}

static void heads_text(char *to, size_t n, const struct program_op *op)
{
    append(to, n, "%u heads, %u to %u", op->heads.n_head, op->heads.n_in, op->heads.n_out);
    if (op->heads.n_kept)
        append(to, n, ", %u copied", op->heads.n_kept);
}

static const char *const pool_texts[POOLING_KINDS] = {
    [POOLING_LAST] = "last row",
    [POOLING_CLS] = "first row",
    [POOLING_MEAN] = "mean of the sequence",
    [POOLING_MAX] = "maximum of the sequence",
    [POOLING_WEIGHTED_MEAN] = "mean weighted by position",
    [POOLING_MEAN_SQRT_LEN] = "sum / sqrt(length)",
};

static void route_text(char *to, size_t n, const struct program_op *op)
{
    static const char *const rules[] = {
        [ARCH_ROUTE_SOFTMAX] = "softmax of all", [ARCH_ROUTE_TOP_SOFTMAX] = "softmax of the top k",
        [ARCH_ROUTE_SIGMOID] = "sigmoid",        [ARCH_ROUTE_SOFTMAX_BIASED] = "softmax, by a bias",
        [ARCH_ROUTE_MIXER] = "sparse mixer",
    };
    append(to, n, "%u of %u", op->route.n_used, op->route.n_expert);
    if (op->kind == PROGRAM_ROUTE)
        append(to, n, ", %s%s", rules[op->route.rule],
               op->route.renormalize ? ", to a sum of 1" : "");
    if (op->kind == PROGRAM_ROUTE && op->route.n_group > 1)
        append(to, n, ", from %u of %u groups", op->route.n_group_used, op->route.n_group);
    if (op->kind == PROGRAM_ROUTE && op->route.scale != 1)
        append(to, n, ", times %g", (double)op->route.scale);
    if (op->kind == PROGRAM_ROUTE && op->route.mixer > 0)
        append(to, n, ", within %g", (double)op->route.mixer);
    if (op->kind == PROGRAM_EXPERTS && op->route.of_input)
        append(to, n, ", inputs weighed");
}

static void scale_q_text(char *to, size_t n, const struct program_op *op)
{
    char position[40] = "position";
    if (op->by_position.first)
        snprintf(position, sizeof position, "(position + %u)", op->by_position.first);
    append(to, n, "times 1 + %g ln(1 + floor(%s / %g))", (double)op->by_position.growth, position,
           (double)op->by_position.length);
}

static void state_text(char *to, size_t n, const struct program_op *op)
{
    if (op->kind == PROGRAM_CONV)
        append(to, n, "of %u rows%s", op->conv.width, op->conv.gated ? ", gated" : "");
    if (op->kind == PROGRAM_DELTA)
        append(to, n, "%u heads of %u, keys of %u heads of %u%s", op->delta.n_value_head,
               op->delta.value_dim, op->delta.n_key_head, op->delta.key_dim,
               op->delta.beta_max > 1 ? ", beta up to 2" : "");
    if (op->kind != PROGRAM_SCAN)
        return;
    if (op->scan.by_state)
        append(to, n, "%u columns, states of %u", op->scan.n_head, op->scan.n_state);
    else
        append(to, n, "%u heads of %u in %u groups, states of %u", op->scan.n_head,
               op->scan.head_dim, op->scan.n_group, op->scan.n_state);
    if (op->scan.step_min > 0 || op->scan.step_max < INFINITY)
        append(to, n, ", steps from %g to %g", (double)op->scan.step_min,
               (double)op->scan.step_max);
}

static void norm_text(char *to, size_t n, const struct program_op *op)
{
    append(to, n, "%s, eps %g", op->norm.kind == ARCH_NORM_RMS ? "rms" : "layer",
           (double)op->norm.eps);
    if (op->norm.unit != op->in[0].n_col)
        append(to, n, ", heads of %u%s", op->norm.unit,
               op->norm.apart ? ", each by its own weights" : "");
    if (op->asked)
        append(to, n, ", rows asked");
}

static void number_text(char *to, size_t n, const struct program_op *op)
{
    append(to, n, op->kind == PROGRAM_SPARSE ? "above the mean + %g deviations" : "%g",
           (double)op->cap);
}

static const char *const gate_texts[] = {
    [KERN_GATE_SIGMOID] = "sigmoid",
    [KERN_GATE_SILU] = "silu",
    [KERN_GATE_PRODUCT] = "product",
};

static void attributes_text(char *to, size_t n, const struct program_op *op)
{
    *to = 0;
    switch (op->kind) {
    case PROGRAM_NORM:
        norm_text(to, n, op);
        break;
    case PROGRAM_ACTIVATE:
        append(to, n, "%s%s", arch_activation_name(op->act.is), op->act.gated ? ", gated" : "");
        if (op->act.limit > 0)
            append(to, n, " by up + 1, limit %g", (double)op->act.limit);
        break;
    case PROGRAM_ROPE:
        append(to, n, "%s, %u of %u%s, theta %g%s", op->rope.interleaved ? "interleaved" : "half",
               op->rope.n_rot, op->rope.head_dim, op->rope.first ? " at the end" : "",
               op->rope.theta, op->rope.local ? ", local" : "");
        break;
    case PROGRAM_ATTENTION:
        attention_text(to, n, op);
        break;
    case PROGRAM_ATTENTION_LATENT:
        latent_text(to, n, op);
        break;
    case PROGRAM_HEADS:
        heads_text(to, n, op);
        break;
    case PROGRAM_ROUTE:
    case PROGRAM_EXPERTS:
        route_text(to, n, op);
        break;
    case PROGRAM_EMBED:
    case PROGRAM_ADD:
    case PROGRAM_SCALE:
        if (op->scale != 1)
            append(to, n, "times %g", (double)op->scale);
        break;
    case PROGRAM_SCALE_Q:
        scale_q_text(to, n, op);
        break;
    case PROGRAM_POSITIONS:
        append(to, n, op->mod ? "row %u + (position / %u) %% %u" : "position 0 is row %u",
               op->first, op->div, op->mod);
        break;
    case PROGRAM_POOL:
        append(to, n, "%s",
               op->out.buffer == PROGRAM_B_LOGITS ? pool_texts[op->pool] : "rows asked");
        break;
    case PROGRAM_CONV:
    case PROGRAM_DELTA:
    case PROGRAM_SCAN:
        state_text(to, n, op);
        break;
    case PROGRAM_GATE:
        append(to, n, "%s", gate_texts[op->gate]);
        break;
    case PROGRAM_SOFT_CAP:
    case PROGRAM_CLIP:
    case PROGRAM_SPARSE:
        number_text(to, n, op);
        break;
    case PROGRAM_OWN:
        for (uint32_t i = 0; i < QUIRE_OP_PARAMS_MAX && op->own->of->params[i]; i++)
            append(to, n, "%s%s %g", i ? ", " : "", op->own->of->params[i], op->own->params[i]);
        break;
    default:
        break;
    }
}

/* "1.5 GB" */
static const char *size_text(char out[16], uint64_t n, const char *unit)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    double x = (double)n;
    int i = 0;
    for (; x >= 1000 && i < 5; i++)
        x /= 1000;
    if (n == 0)
        *out = 0;
    else
        snprintf(out, 16, i ? "%.3g %s%s" : "%g %s%s", x, prefixes[i], unit);
    return out;
}

/* Columns as they are seen: bytes that continue a character have none. */
static void pad(struct buf *out, const char *text, unsigned width)
{
    unsigned n = 0;
    for (const char *c = text; *c; c++)
        n += ((unsigned char)*c & 0xc0) != 0x80;
    buf_add_str(out, text);
    do
        buf_add_char(out, ' ');
    while (++n < width);
}

struct line { /* of one operation */
    const struct program_op *op;
    const struct program_stage *stage;
    bool is_first; /* of its stage */
};

static void print_line(struct buf *out, const struct layer_program *p, const struct line *l,
                       const struct program_show *s)
{
    char text[LINE_MAX_TEXT], bytes[16], ops[16], *end;
    const struct program_cost c = program_cost(l->op, &s->costs);
    const size_t from = out->len;
    buf_printf(out, "%s%c ", l->op->layer == PROGRAM_NO_LAYER ? "" : "  ",
               l->stage->n == 1 ? ' '
               : l->is_first    ? '/'
                                : '|');
    pad(out, program_op_name(l->op), 10);
    inputs_text(text, sizeof text, p, l->op);
    pad(out, text, 38);
    output_text(text, sizeof text, p, l->op);
    pad(out, text, 24);
    pad(out, size_text(bytes, c.row_bytes, "B"), 9);
    pad(out, size_text(ops, c.row_ops, "FLOP"), 11);
    attributes_text(text, sizeof text, l->op);
    buf_add_str(out, text);
    if (l->is_first && l->stage->n > 1)
        buf_printf(out, "%s[%s]", *text ? "  " : "", program_fusion_text(l->stage->fusion));
    for (end = out->data ? out->data + out->len : NULL; end && out->len > from && end[-1] == ' ';)
        *--end = 0, out->len--;
    buf_add_char(out, '\n');
}

/* ---- layers that are alike ---- */

struct layer_ops { /* of one layer */
    uint32_t first, n, first_stage;
    uint32_t like; /* the first layer that is the same */
};

/* Are they shown alike? */
static bool same_op(const struct layer_program *p, const struct program_op *a,
                    const struct program_op *b)
{
    char x[LINE_MAX_TEXT], y[LINE_MAX_TEXT];
    inputs_text(x, sizeof x, p, a);
    inputs_text(y, sizeof y, p, b);
    if (strcmp(program_op_name(a), program_op_name(b)) != 0 || strcmp(x, y) != 0)
        return false;
    output_text(x, sizeof x, p, a);
    output_text(y, sizeof y, p, b);
    if (strcmp(x, y) != 0)
        return false;
    attributes_text(x, sizeof x, a);
    attributes_text(y, sizeof y, b);
    return strcmp(x, y) == 0;
}

static bool same_layer(const struct layer_program *p, const struct layer_ops *a,
                       const struct layer_ops *b, const struct program_show *s)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct program_op *x = &p->ops[a->first + i], *y = &p->ops[b->first + i];
        if (!same_op(p, x, y) ||
            program_cost(x, &s->costs).row_bytes != program_cost(y, &s->costs).row_bytes)
            return false;
    }
    return true;
}

/* Layers that have operations: of a pipeline stage not all. */
static uint32_t count_layers(const struct layer_program *p)
{
    uint32_t n = 0, last = PROGRAM_NO_LAYER;
    for (uint32_t i = 0; i < p->n_op; i++) {
        n += p->ops[i].layer != PROGRAM_NO_LAYER && p->ops[i].layer != last;
        last = p->ops[i].layer;
    }
    return n;
}

static void find_layers(struct layer_ops *layers, const struct layer_program *p,
                        const struct program_show *s)
{
    for (uint32_t i = 0; i <= p->n_layer; i++)
        layers[i].like = PROGRAM_NO_LAYER;
    for (uint32_t i = 0; i < p->n_stage; i++) {
        const struct program_op *op = &p->ops[p->stages[i].first];
        if (op->layer == PROGRAM_NO_LAYER)
            continue;
        struct layer_ops *l = &layers[op->layer];
        if (l->n == 0)
            *l = (struct layer_ops){p->stages[i].first, 0, i, op->layer};
        l->n += p->stages[i].n;
    }
    for (uint32_t i = 0; i < p->n_layer; i++)
        for (uint32_t j = 0; j < i && layers[i].like == i; j++)
            if (layers[j].like == j && same_layer(p, &layers[j], &layers[i], s))
                layers[i].like = j;
}

/* "layers 0-3, 5, 7" of those like `like`; with one step between all of them "0, 2 … 40". */
static void print_heading(struct buf *out, const struct layer_ops *layers, uint32_t n,
                          uint32_t like)
{
    uint32_t count = 0, last = like, step = 0;
    bool even = true;
    for (uint32_t i = like + 1; i < n; i++)
        if (layers[i].like == like) {
            even = even && (step == 0 || i - last == step);
            step = i - last;
            last = i;
            count++;
        }
    buf_printf(out, count ? "layers %u" : "layer %u", like);
    if (even && count > 1 && step > 1) {
        buf_printf(out, ", %u … %u\n", like + step, last);
        return;
    }
    for (uint32_t i = like + 1, from = like; count && i <= n; i++) {
        const bool here = i < n && layers[i].like == like;
        const bool before = layers[i - 1].like == like;
        if (here && !before) {
            buf_printf(out, ", %u", i);
            from = i;
        } else if (!here && before && i - 1 > from) {
            buf_printf(out, "-%u", i - 1);
        }
    }
    buf_add_char(out, '\n');
}

static void print_stages(struct buf *out, const struct layer_program *p, uint32_t first,
                         uint32_t n_op, const struct program_show *s)
{
    for (uint32_t i = first, seen_ops = 0; seen_ops < n_op; i++)
        for (uint32_t j = 0; j < p->stages[i].n; j++, seen_ops++)
            print_line(out, p,
                       &(struct line){&p->ops[p->stages[i].first + j], &p->stages[i], j == 0}, s);
}

/* Operations of n rows that are prompts as long as the context, or one that is shorter: a row sees
 * those before it. */
static uint64_t prompt_ops(const struct layer_program *p, const struct totals *t,
                           const struct program_show *s)
{
    const uint64_t n = s->n_token, length = n < s->n_context ? n : s->n_context;
    uint64_t context_ops = 0;
    for (uint32_t i = 0; i < p->n_op; i++)
        context_ops +=
            program_cost(&p->ops[i], &s->costs).context_ops * seen(&p->ops[i], (length + 1) / 2);
    return t->layer_ops * n + t->logit_ops + context_ops * n;
}

static void print_totals(struct buf *out, const struct layer_program *p,
                         const struct program_show *s)
{
    const struct totals t = totals_of(p, s);
    char a[16], b[16];
    buf_printf(out, "weights %s, of which one row reads %s;", size_text(a, t.weight_bytes, "B"),
               size_text(b, t.row_bytes, "B"));
    if (t.stored_bytes)
        buf_printf(out, " KV %s a token\n", size_text(a, t.stored_bytes, "B"));
    else
        buf_add_str(out, " no KV\n");
    buf_printf(out, "a step of 1 token with %u of context: %s, and %s of KV\n", s->n_context,
               size_text(a, t.layer_ops + t.logit_ops + t.context_ops, "FLOP"),
               t.context_bytes ? size_text(b, t.context_bytes, "B") : "nothing");
    buf_printf(out, "a step of %u tokens of prompts, logits of one: %s\n", s->n_token,
               size_text(a, prompt_ops(p, &t, s), "FLOP"));
}

void program_print(struct buf *out, const struct layer_program *p, const struct program_show *s)
{
    struct layer_ops *layers = q_calloc((size_t)p->n_layer + 1, sizeof *layers);
    uint32_t last_stage = p->n_stage, head = 0, tail = 0;
    if (!layers) {
        out->failed = Q_NO_MEMORY;
        return;
    }
    find_layers(layers, p, s);
    buf_printf(out, "%s: %u layers, %u operations in %u stages\n", s->title, count_layers(p),
               p->n_op, p->n_stage);
    buf_add_str(out, "bytes: weights that one row reads; FLOP: of one row; / and |: one stage\n");
    while (head < p->n_op && p->ops[head].layer == PROGRAM_NO_LAYER)
        head++;
    print_stages(out, p, 0, head, s);
    for (uint32_t i = 0; i < p->n_layer; i++) {
        if (layers[i].like != i)
            continue;
        print_heading(out, layers, p->n_layer, i);
        print_stages(out, p, layers[i].first_stage, layers[i].n, s);
    }
    while (last_stage && p->ops[p->stages[last_stage - 1].first].layer == PROGRAM_NO_LAYER)
        tail += p->stages[--last_stage].n;
    print_stages(out, p, last_stage, tail, s);
    print_totals(out, p, s);
    q_free(layers);
}

/* ---- JSON ---- */

static void json_text(struct buf *out, const char *key, const char *text)
{
    buf_printf(out, ",\"%s\":", key);
    buf_add_json_str(out, text, strlen(text));
}

static void json_ref(struct buf *out, const struct layer_program *p, struct program_ref r)
{
    buf_add_str(out, "{\"buffer\":");
    buf_add_json_str(out, p->buffers[r.buffer].name, strlen(p->buffers[r.buffer].name));
    buf_printf(out, ",\"dtype\":\"%s\",\"column\":%u,\"columns\":%u}",
               dtype_name((enum dtype)r.dtype), r.col, r.n_col);
}

static void json_op(struct buf *out, const struct layer_program *p, const struct program_op *op,
                    const struct program_show *s)
{
    const struct program_cost c = program_cost(op, &s->costs);
    char text[LINE_MAX_TEXT];
    buf_add_str(out, "{\"operation\":");
    buf_add_json_str(out, program_op_name(op), strlen(program_op_name(op)));
    if (op->layer != PROGRAM_NO_LAYER)
        buf_printf(out, ",\"layer\":%u", op->layer);
    buf_add_str(out, ",\"in\":[");
    for (int i = 0; i < 2 && op->in[i].buffer; i++) {
        buf_add_str(out, i ? "," : "");
        json_ref(out, p, op->in[i]);
    }
    buf_add_str(out, "],\"out\":");
    json_ref(out, p, op->out);
    buf_printf(out, ",\"adds\":%s", op->onto ? "true" : "false");
    if (op->weight)
        json_text(out, "weight", program_weight_info(op->weight)->name);
    if (op->bias)
        json_text(out, "bias", program_weight_info(op->bias)->name);
    attributes_text(text, sizeof text, op);
    if (*text)
        json_text(out, "attributes", text);
    buf_printf(out, ",\"weight_bytes\":%" PRIu64 ",\"row_flop\":%" PRIu64, c.weight_bytes,
               c.row_ops);
    buf_printf(out, ",\"context_flop\":%" PRIu64 "}", c.context_ops);
}

void program_json(struct buf *out, const struct layer_program *p, const struct program_show *s)
{
    const struct totals t = totals_of(p, s);
    buf_add_str(out, "{\"architecture\":");
    buf_add_json_str(out, s->title, strlen(s->title));
    buf_printf(out, ",\"layers\":%u,\"weight_bytes\":%" PRIu64 ",\"row_weight_bytes\":%" PRIu64,
               count_layers(p), t.weight_bytes, t.row_bytes);
    buf_printf(out, ",\"layer_flop\":%" PRIu64 ",\"logit_flop\":%" PRIu64, t.layer_ops,
               t.logit_ops);
    buf_printf(out, ",\"context\":%u,\"context_flop\":%" PRIu64 ",\"stages\":[", s->n_context,
               t.context_ops);
    for (uint32_t i = 0; i < p->n_stage; i++) {
        const struct program_stage *g = &p->stages[i];
        buf_printf(out, "%s{\"fusion\":\"%s\",\"operations\":[", i ? "," : "",
                   program_fusion_text(g->fusion));
        for (uint32_t j = 0; j < g->n; j++) {
            buf_add_str(out, j ? "," : "");
            json_op(out, p, &p->ops[g->first + j], s);
        }
        buf_add_str(out, "]}");
    }
    buf_add_str(out, "]}\n");
}
