/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of each kind of operation, as a table: the number of buffers that it reads, the kind of
 * its weight, and the relation between the columns of its inputs and output. */
#include "engine/model/forward/program.h"
#include "engine/model/forward/program_text.h"
#include "kernels/ops/ops_mla.h"
#include "kernels/ops/ops_state.h"
#include "kernels/ops/ops_streams.h"

enum { NO_WEIGHT = -1, MAY_VECTOR = -2, MAY_FLOATS = -3 }; /* else enum program_weight_kind */

struct rule {
    int n_in, weight;
    bool (*fits)(const struct program_op *op);
    const char *shapes; /* what fits() holds them to */
};

static bool same_columns(const struct program_op *op)
{
    return op->in[0].n_col == op->out.n_col;
}

static bool any_columns(const struct program_op *op)
{
    return op->in[0].n_col > 0 && op->out.n_col > 0;
}

static bool norm_fits(const struct program_op *op)
{
    return same_columns(op) && op->norm.unit && op->in[0].n_col % op->norm.unit == 0;
}

static bool act_fits(const struct program_op *op)
{
    return op->in[0].n_col == op->out.n_col * (op->act.gated ? 2 : 1);
}

static bool rope_fits(const struct program_op *op)
{
    return same_columns(op) && op->in[0].n_col == op->rope.n_head * op->rope.head_dim &&
           op->rope.n_rot && op->rope.n_rot % 2 == 0 &&
           op->rope.first + op->rope.n_rot <= op->rope.head_dim;
}

static bool store_fits(const struct program_op *op)
{
    const uint32_t kv = op->attention.n_kv_head * op->attention.head_dim;
    return op->in[0].n_col == kv && op->in[1].n_col == kv && op->out.n_col == 2 * kv;
}

static bool attention_fits(const struct program_op *op)
{
    const uint32_t q = op->attention.n_head * op->attention.head_dim;
    const uint32_t kv = op->attention.n_kv_head * op->attention.head_dim;
    return op->in[0].n_col == q && op->in[1].n_col == 2 * kv && op->out.n_col == q &&
           op->attention.n_kv_head && op->attention.n_head % op->attention.n_kv_head == 0;
}

static bool store_latent_fits(const struct program_op *op)
{
    return op->in[0].n_col == op->latent.n_key && op->out.n_col == op->latent.n_key;
}

static bool attention_latent_fits(const struct program_op *op)
{
    return op->in[0].n_col == op->latent.n_head * op->latent.n_key &&
           op->in[1].n_col == op->latent.n_key &&
           op->out.n_col == op->latent.n_head * op->latent.n_value && op->latent.n_value &&
           op->latent.n_value <= op->latent.n_key && op->latent.n_key <= KERN_MLA_KEY_MAX;
}

static bool heads_fits(const struct program_op *op)
{
    const uint32_t n_w = op->heads.transposed ? op->heads.n_in : op->heads.n_out;
    return op->in[0].n_col == op->heads.n_head * (op->heads.n_in + op->heads.n_kept) &&
           op->out.n_col == op->heads.n_head * (op->heads.n_out + op->heads.n_kept) &&
           op->heads.w_first + n_w <= op->heads.w_rows;
}

static bool route_fits(const struct program_op *op)
{
    return op->in[0].n_col == op->route.n_expert && op->out.n_col == op->route.n_used &&
           op->route.n_used && op->route.n_used <= op->route.n_expert;
}

static bool scale_q_fits(const struct program_op *op)
{
    return same_columns(op) && op->by_position.length > 0;
}

static bool conv_fits(const struct program_op *op)
{
    return op->conv.width >= 2 && op->conv.width <= KERN_CONV_MAX &&
           op->in[0].n_col == op->out.n_col * (op->conv.gated ? 3 : 1);
}

static bool delta_fits(const struct program_op *op)
{
    const uint32_t n_key = op->delta.n_key_head * op->delta.key_dim;
    const uint32_t n_value = op->delta.n_value_head * op->delta.value_dim;
    return n_key && n_value && op->delta.n_value_head % op->delta.n_key_head == 0 &&
           op->delta.key_dim <= KERN_DELTA_MAX && op->delta.value_dim <= KERN_DELTA_MAX &&
           op->in[0].n_col == 2 * n_key + n_value && op->out.n_col == n_value &&
           op->in[1].n_col == 2 * op->delta.n_value_head;
}

static bool scan_fits(const struct program_op *op)
{
    const uint32_t n_x = op->scan.n_head * op->scan.head_dim;
    const uint32_t n_b = op->scan.n_group * op->scan.n_state;
    return n_x && n_b && op->scan.n_head % op->scan.n_group == 0 &&
           op->scan.head_dim <= KERN_SCAN_MAX && op->scan.n_state <= KERN_SCAN_MAX &&
           op->scan.first >= n_x && op->in[0].n_col == op->scan.first + 2 * n_b &&
           op->out.n_col == n_x && op->in[1].n_col == op->scan.n_head &&
           (!op->scan.by_state || (op->scan.head_dim == 1 && op->scan.n_group == 1));
}

static bool gate_fits(const struct program_op *op)
{
    return same_columns(op) && op->in[1].n_col == op->out.n_col;
}

static bool match_fits(const struct program_op *op)
{
    return same_columns(op) && op->in[1].n_col && op->out.n_col % op->in[1].n_col == 0;
}

/* n parts of as many columns as x has, by n scores. */
static bool streams_fit(const struct program_op *op)
{
    return op->onto && op->in[1].n_col >= 2 && op->in[1].n_col <= KERN_STREAMS_MAX &&
           op->out.n_col == op->in[0].n_col * op->in[1].n_col;
}

static bool share_fits(const struct program_op *op)
{
    return same_columns(op) && op->in[1].n_col == 1;
}

static const struct rule rules[PROGRAM_KINDS] = {
    [PROGRAM_EMBED] = {1, PROGRAM_TABLE, any_columns, "there are columns"},
    [PROGRAM_POSITIONS] = {1, PROGRAM_TABLE, any_columns, "there are columns"},
    [PROGRAM_TYPES] = {1, PROGRAM_TABLE, any_columns, "there are columns"},
    [PROGRAM_POOL] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_NORM] = {1, PROGRAM_VECTOR, norm_fits, "in = out, of whole units"},
    [PROGRAM_QUANTIZE] = {1, PROGRAM_MATRIX, same_columns, "in = out"},
    [PROGRAM_MATMUL] = {1, PROGRAM_MATRIX, any_columns, "there are columns"},
    [PROGRAM_ADD] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_ACTIVATE] = {1, MAY_VECTOR, act_fits, "in = out, twice that when gated"},
    [PROGRAM_ROPE] = {1, NO_WEIGHT, rope_fits, "in = out = heads of head_dim, n_rot of it"},
    [PROGRAM_STORE] = {2, NO_WEIGHT, store_fits, "K and V of KV heads of head_dim"},
    [PROGRAM_ATTENTION] = {2, MAY_VECTOR, attention_fits, "in = out = heads of head_dim"},
    [PROGRAM_STORE_LATENT] = {1, NO_WEIGHT, store_latent_fits, "in = out = a key"},
    [PROGRAM_ATTENTION_LATENT] = {2, NO_WEIGHT, attention_latent_fits,
                                  "in = heads of keys, out = heads of latents"},
    [PROGRAM_HEADS] = {1, PROGRAM_TABLE, heads_fits, "heads of inputs, heads of outputs"},
    [PROGRAM_ROUTE] = {1, MAY_VECTOR, route_fits, "in = experts, out = those used"},
    [PROGRAM_EXPERTS] = {2, PROGRAM_MATRIX, any_columns, "there are columns"},
    [PROGRAM_COMBINE] = {2, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_SHARE] = {2, NO_WEIGHT, share_fits, "in = out, one score"},
    [PROGRAM_CONV] = {1, PROGRAM_VECTOR, conv_fits, "in = out, three times that when gated"},
    [PROGRAM_DELTA] = {2, PROGRAM_VECTOR, delta_fits, "q, k, v and gates of heads, out = values"},
    [PROGRAM_SCAN] = {2, PROGRAM_VECTOR, scan_fits,
                      "x of heads, b and c of groups; steps of heads"},
    [PROGRAM_MATCH] = {2, NO_WEIGHT, match_fits, "in = out, of whole rows of the other input"},
    [PROGRAM_PREDICT] = {2, PROGRAM_VECTOR, streams_fit, "out = as many rows as scores"},
    [PROGRAM_CORRECT] = {2, PROGRAM_VECTOR, streams_fit, "out = as many rows as scores"},
    [PROGRAM_SPARSE] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_GATE] = {2, NO_WEIGHT, gate_fits, "in = gate = out"},
    [PROGRAM_SCALE] = {1, MAY_VECTOR, same_columns, "in = out"},
    [PROGRAM_SCALE_Q] = {1, NO_WEIGHT, scale_q_fits, "in = out, by a number of positions"},
    [PROGRAM_ITEMS] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_OWN] = {1, MAY_FLOATS, any_columns, "there are columns"},
    [PROGRAM_SHRINK] = {1, PROGRAM_MATRIX, any_columns, "there are columns"},
    [PROGRAM_EXPAND] = {1, PROGRAM_MATRIX, any_columns, "there are columns"},
    [PROGRAM_CLIP] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_SOFT_CAP] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_RECEIVE] = {1, NO_WEIGHT, same_columns, "in = out"},
    [PROGRAM_SEND] = {1, NO_WEIGHT, same_columns, "in = out"},
};

struct written { /* what a buffer has */
    bool is_there;
    uint16_t dtype;
    uint32_t n_col, layer;
};

struct checker {
    const struct layer_program *p;
    struct written has[PROGRAM_BUFFERS_MAX];
    uint32_t stored[CONFIG_LAYERS_MAX]; /* columns of the layer's cache */
    uint32_t at;
    struct q_err *e;
};

static enum q_code fail(const struct checker *t, const char *what)
{
    const struct program_op *op = &t->p->ops[t->at];
    const char *name = op->kind < PROGRAM_KINDS ? program_kind_name(op->kind) : "?";
    if (op->layer == PROGRAM_NO_LAYER)
        return q_fail(t->e, Q_INVALID, "operation %u (%s): %s", t->at, name, what);
    return q_fail(t->e, Q_INVALID, "operation %u (%s of layer %u): %s", t->at, name, op->layer,
                  what);
}

static enum q_code check_weight(const struct checker *t, const struct program_op *op)
{
    const int wanted = rules[op->kind].weight;
    const bool has = op->weight != PROGRAM_W_NONE;
    if (!program_weight_is_there(op->weight) || !program_weight_is_there(op->bias))
        return fail(t, "its weight does not exist");
    if (wanted == NO_WEIGHT)
        return has ? fail(t, "it takes no weight, but has one") : Q_OK;
    if ((wanted == MAY_VECTOR || wanted == MAY_FLOATS) && !has)
        return Q_OK;
    if (!has)
        return fail(t, "it has no weight");
    const enum program_weight_kind kind = program_weight_info(op->weight)->kind;
    if (wanted == MAY_FLOATS)
        return kind == PROGRAM_MATRIX ? fail(t, "its weight is a matrix, expected floats") : Q_OK;
    if (kind != (wanted == MAY_VECTOR ? PROGRAM_VECTOR : (enum program_weight_kind)wanted))
        return fail(t, "its weight has the wrong kind (matrix, vector, table)");
    return Q_OK;
}

static bool is_of_batch(uint16_t buffer)
{
    return buffer == PROGRAM_B_IDS || buffer == PROGRAM_B_POSITIONS || buffer == PROGRAM_B_TYPES ||
           buffer == PROGRAM_B_STREAM_IN;
}

/* Its own layer's, or the one that it shares. */
static enum q_code check_cache(const struct checker *t, struct program_ref r)
{
    const struct program_op *op = &t->p->ops[t->at];
    const bool shared = op->kind == PROGRAM_ATTENTION && op->attention.shared;
    const uint32_t layer = shared ? op->attention.of : op->layer;
    const uint32_t n = layer < t->p->n_layer ? t->stored[layer] : 0;
    if (n == 0)
        return fail(t, "it reads the KV cache of a layer that has stored no K and V");
    if (r.col > n || r.n_col > n - r.col)
        return fail(t, "it reads columns that no operation has written");
    return Q_OK;
}

static enum q_code check_read(const struct checker *t, struct program_ref r)
{
    const struct written *w = &t->has[r.buffer];
    if (is_of_batch(r.buffer))
        return Q_OK;
    if (!w->is_there)
        return fail(t, "it reads a buffer that no operation has written");
    if (r.buffer == PROGRAM_B_CACHE)
        return check_cache(t, r);
    if (w->dtype != r.dtype)
        return fail(t, "the element type it reads differs from the one written");
    if (r.col > w->n_col || r.n_col > w->n_col - r.col)
        return fail(t, "it reads columns that no operation has written");
    return Q_OK;
}

static enum q_code check_reads(const struct checker *t, const struct program_op *op)
{
    const int n_in = (op->in[0].buffer != PROGRAM_B_NONE) + (op->in[1].buffer != PROGRAM_B_NONE);
    enum q_code rc;
    const bool may_have_two = op->kind == PROGRAM_OWN && n_in == 2;
    if ((n_in != rules[op->kind].n_in && !may_have_two) || op->in[0].buffer == PROGRAM_B_NONE)
        return fail(t, "it has too few or too many inputs");
    if (op->in_place &&
        (op->in[0].buffer != op->out.buffer || op->in[0].col != op->out.col || op->onto))
        return fail(t, "it works in place, but its input and output buffers differ");
    for (int i = 0; i < n_in; i++)
        if ((rc = check_read(t, op->in[i])))
            return rc;
    return op->onto ? check_read(t, op->out) : Q_OK;
}

static enum q_code check_op(struct checker *t)
{
    const struct program_op *op = &t->p->ops[t->at];
    const uint32_t n = t->p->n_buffer;
    enum q_code rc;
    if (op->kind >= PROGRAM_KINDS)
        return fail(t, "its kind is unknown");
    if (op->in[0].buffer >= n || op->in[1].buffer >= n || op->out.buffer >= n ||
        op->out.buffer == PROGRAM_B_NONE || is_of_batch(op->out.buffer))
        return fail(t, "its buffer does not exist");
    if (op->layer != PROGRAM_NO_LAYER && op->layer >= t->p->n_layer)
        return fail(t, "its layer does not exist");
    if ((rc = check_weight(t, op)) || (rc = check_reads(t, op)))
        return rc;
    if (!rules[op->kind].fits(op)) {
        char text[120];
        snprintf(text, sizeof text, "shapes do not agree: %s", rules[op->kind].shapes);
        return fail(t, text);
    }
    if (op->out.buffer == PROGRAM_B_CACHE && op->layer < t->p->n_layer)
        t->stored[op->layer] = op->out.col + op->out.n_col;
    if (!op->in_place && !op->onto)
        t->has[op->out.buffer] =
            (struct written){true, op->out.dtype, op->out.col + op->out.n_col, op->layer};
    return Q_OK;
}

FALLIBLE program_check(const struct layer_program *p, struct q_err *e)
{
    struct checker t = {.p = p, .e = e};
    if (p->n_buffer > PROGRAM_BUFFERS_MAX || p->n_buffer < PROGRAM_BUFFERS)
        return q_fail(e, Q_INVALID, "the program has %u buffers, expected %u to %u", p->n_buffer,
                      PROGRAM_BUFFERS, PROGRAM_BUFFERS_MAX);
    for (; t.at < p->n_op; t.at++) {
        enum q_code rc = check_op(&t);
        if (rc)
            return rc;
    }
    if (!t.has[PROGRAM_B_LOGITS].is_there && !t.has[PROGRAM_B_STREAM_OUT].is_there)
        return q_fail(e, Q_INVALID,
                      "a program of %u operations has no operation that writes logits", p->n_op);
    return Q_OK;
}
