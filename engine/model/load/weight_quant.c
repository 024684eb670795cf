/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_quant.h"
#include "engine/model/load/weight_bnb.h"
#include "engine/model/load/weight_fp4.h"
#include "engine/model/load/weight_fp8.h"
#include "engine/model/load/weight_gguf.h"
#include "engine/model/load/weight_hqq.h"
#include "engine/model/load/weight_mxfp4.h"
#include "engine/model/load/weight_parts.h"
#include "engine/model/load/weight_torchao.h"

#define GROUPS_MAX (KERN_INT8_IN_MAX / KERN_INT4_GROUP_MIN) /* of a matrix that stays 4-bit */
#define BNB8_UNIT  (1 / 127.0f) /* of bitsandbytes' SCB, which are the largest magnitudes */

/* What stands for ".weight" in the names of the parts. */
static const char *const suffixes[] = {".qweight",
                                       ".qzeros",
                                       ".scales",
                                       ".g_idx",
                                       ".weight_packed",
                                       ".weight_scale",
                                       ".weight_scale_inv",
                                       ".weight_scale_2",
                                       ".weight_global_scale",
                                       ".weight_zero_point",
                                       ".weight_shape",
                                       ".weight_g_idx",
                                       ".input_scale",
                                       ".activation_scale",
                                       ".input_zero_point",
                                       ".input_global_scale",
                                       ".k_scale",
                                       ".v_scale",
                                       "._weight_qdata",
                                       "._weight_scale",
                                       "._weight_zero_point",
                                       "._weight_scale_and_zero",
                                       "._weight_act_quant_scale",
                                       "._weight_act_quant_zero_point",
                                       "._weight_act_pre_scale",
                                       ".SCB",
                                       ".weight_format"};

/* Which integer of an int32 is output j of awq's eight. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

bool weight_quant_is_part(const char *name, const char *found)
{
    const size_t n = weight_part_base(name);
    if (weight_mxfp4_is_part(name, found))
        return true;
    if (n == 0 || strncmp(name, found, n) != 0)
        return false;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcmp(found + n, suffixes[i]) == 0)
            return true;
    return weight_bnb_is_part(name, found) || weight_hqq_is_part(name, found);
}

/* The groups of act-order: each below n_group. In order they count for nothing. */
static enum q_code check_order(struct quant_tensors *q, uint32_t n_in, struct q_err *e)
{
    bool in_order = true;
    uint32_t counts[GROUPS_MAX] = {0};
    if (!q->order)
        return Q_OK;
    q->is_even = q->n_group <= GROUPS_MAX;
    for (uint32_t k = 0; k < n_in; k++) {
        int32_t g = weight_part_i32(q->order, k);
        if (g < 0 || (uint32_t)g >= q->n_group)
            return q_fail(e, Q_CORRUPT, "%s: tensor %s: input %u is in group %d, expected 0 to %u",
                          q->order->file, q->order->name, k, g, q->n_group - 1);
        in_order &= (uint32_t)g == k / q->group;
        if (q->is_even)
            counts[g]++;
    }
    for (uint32_t g = 0; g < q->n_group && q->is_even; g++)
        q->is_even = counts[g] == q->group;
    if (in_order)
        q->order = NULL;
    return Q_OK;
}

/* The int32 that hold n numbers. */
static uint64_t words(const struct quant_tensors *q, uint64_t n)
{
    return q->per_word ? (n + q->per_word - 1) / q->per_word : (n * q->bits + 31) / 32;
}

/* The same of an older pack-quantized file, where an int32 has bits left over. */
static uint64_t older_words(uint64_t n, uint32_t bits)
{
    return (n + 32 / bits - 1) / (32 / bits);
}

/* Scales of an output in the tensor: awq gemv has more than it has groups. */
static uint64_t row_scales(const struct quant_tensors *q)
{
    const uint64_t least = (q->n_group + 7) / 8;
    if (q->method != QUANT_AWQ_ROWS)
        return q->n_group;
    return 8 * (q->zeros && q->zeros->n_dim == 2 && q->zeros->shape[1] > least ? q->zeros->shape[1]
                                                                               : least);
}

/* Shapes of the parts by the table of the header. */
static enum q_code check_parts(const struct weight_source *s, const char *name, struct q_err *e)
{
    const struct quant_tensors *q = &s->quant;
    const uint64_t n_out = s->rows, n_in = s->cols, n_group = q->n_group;
    const uint64_t out_words = words(q, n_out), in_words = words(q, n_in);
    struct part_wanted w = {name, ".qweight", in_words, n_out, PART_I32};
    struct part_wanted z = {name, ".qzeros", n_group, out_words, PART_I32};
    struct part_wanted c = {name, ".scales", n_group, n_out, PART_SCALE};
    struct part_wanted g = {name, ".g_idx", n_in, 0, PART_I32};
    enum q_code rc;
    if (q->method == QUANT_AWQ)
        w = (struct part_wanted){name, ".qweight", n_in, out_words, PART_I32};
    if (q->method == QUANT_AWQ_ROWS) {
        w = (struct part_wanted){name, ".qweight", n_out, in_words, PART_I32};
        z = (struct part_wanted){name, ".qzeros", n_out, row_scales(q) / 8, PART_I32};
        c = (struct part_wanted){name, ".scales", n_out, row_scales(q), PART_SCALE};
    }
    if (q->method == QUANT_PACKED || q->method == QUANT_INT8) {
        w = (struct part_wanted){name, ".weight_packed", n_out, in_words, PART_I32};
        z = (struct part_wanted){name, ".weight_zero_point", out_words, n_group, PART_I32};
        c = (struct part_wanted){name, ".weight_scale", n_out, n_group, PART_SCALE};
        g.suffix = ".weight_g_idx";
    }
    if (q->method == QUANT_INT8)
        w = (struct part_wanted){name, ".weight", n_out, n_in, PART_I8};
    if (q->row_block > 1) /* one for all outputs */
        c = (struct part_wanted){name, ".weight_scale", 0, 0, PART_SCALE};
    if ((rc = weight_part_check(q->q, &w, e)) || (rc = weight_part_check(q->scales, &c, e)) ||
        (q->needs_zeros && (rc = weight_part_check(q->zeros, &z, e))) ||
        (q->order && (rc = weight_part_check(q->order, &g, e))))
        return rc;
    return weight_part_check_finite(q->scales, e);
}

/* Zero points of int8, which torchao writes, are all 0. */
static enum q_code check_no_zeros(const struct weight_finder *f, const char *name, struct q_err *e)
{
    const struct tensor *t = weight_part(f, name, ".weight_zero_point");
    for (uint64_t i = 0; t && i < t->n_bytes; i++)
        if (((const unsigned char *)t->data)[i])
            return q_fail(e, Q_UNSUPPORTED, "%s: tensor %s: int8 with zero points is not supported",
                          weight_part_file(t), t->name);
    return Q_OK;
}

/* Bits and group of a matrix that may have others than the config's, where the shapes of its parts
 * make sense; where not, they are refused as the config's. */
static void read_shapes(struct quant_tensors *q, const struct weight_source *s)
{
    const bool by_output = q->method == QUANT_PACKED || q->method == QUANT_INT8;
    const uint64_t stored = q->q->n_dim == 2 ? q->q->shape[by_output] : 0;
    const uint64_t n_group = q->scales && q->scales->n_dim == 2 ? q->scales->shape[by_output] : 0;
    /* of 32 inputs older files of some bits are as newer ones of others */
    const bool any = q->method == QUANT_PACKED && s->cols > 32;
    for (uint32_t bits = 2; bits <= 8 && q->method != QUANT_AWQ && q->method != QUANT_INT8; bits++)
        if ((bits < 5 || bits == 8 || any) &&
            (((uint64_t)s->cols * bits + 31) / 32 == stored ||
             (any && bits < 7 && older_words(s->cols, bits) == stored)))
            q->bits = bits;
    const bool by_config =
        (s->cols + q->group - 1) / q->group == n_group; /* of a last group in part */
    if (n_group && n_group <= s->cols && !by_config)
        q->group = (uint32_t)((s->cols + n_group - 1) / n_group);
}

/* The parts of a matrix of integers. q->q NULL: it was left as it is. */
static void find_parts(struct quant_tensors *q, const struct weight_finder *f, const char *name)
{
    const struct quant_config *c = &f->config->quant;
    const bool old =
        c->method == QUANT_GPTQ || c->method == QUANT_AWQ || c->method == QUANT_AWQ_ROWS;
    q->method = c->method;
    q->bits = c->bits;
    q->q = weight_part(f, name, old ? ".qweight" : ".weight_packed");
    if (!old && !(q->q && c->method == QUANT_PACKED)) {
        q->method = QUANT_INT8;
        q->bits = 8;
        q->q = c->method == QUANT_INT8 || c->by_tensor || c->is_torchao
                   ? weight_part(f, name, ".weight")
                   : NULL;
        if (q->q && q->q->dtype != DT_I8)
            q->q = NULL;
    }
    q->scales = weight_part(f, name, old ? ".scales" : ".weight_scale");
    const struct tensor *zeros = weight_part(f, name, old ? ".qzeros" : ".weight_zero_point");
    q->needs_zeros =
        old || (q->method == QUANT_PACKED && (c->by_tensor ? zeros != NULL : !c->symmetric));
    q->zeros = q->needs_zeros ? zeros : NULL;
    q->order = q->method == QUANT_GPTQ     ? weight_part(f, name, ".g_idx")
               : q->method == QUANT_PACKED ? weight_part(f, name, ".weight_g_idx")
                                           : NULL;
    q->zero_offset = q->method == QUANT_GPTQ && c->zeros_less_one;
}

/* Is a pack-quantized matrix of an older file, whose int32 have bits left over? */
static bool has_gaps(const struct quant_tensors *q, uint32_t n_in)
{
    return q->method == QUANT_PACKED && 32 % q->bits && q->q->n_dim == 2 &&
           q->q->shape[1] != words(q, n_in) && q->q->shape[1] == older_words(n_in, q->bits);
}

static enum q_code check_whole_words(const struct weight_source *s, const struct quant_tensors *q,
                                     struct q_err *e)
{
    const bool is_packed = q->method == QUANT_PACKED; /* its rows may end within an int32 */
    const bool fits = s->cols * q->bits % 32 == 0 &&
                      (s->rows * q->bits % 32 == 0 || (is_packed && !q->needs_zeros));
    if (q->method == QUANT_INT8 || fits || (is_packed && 32 % q->bits == 0))
        return Q_OK;
    return q_fail(e, Q_MISMATCH,
                  "tensor %s: quantized weights of shape [%u, %u] with %u bits are not supported, "
                  "both must be multiples of %u",
                  q->q->name, s->rows, s->cols, q->bits, 32 % q->bits ? 32 : 32 / q->bits);
}

static enum q_code find_integers(struct weight_source *s, const struct weight_finder *f,
                                 const char *name, struct q_err *e)
{
    const struct quant_config *c = &f->config->quant;
    struct quant_tensors q = {.row_block = 1};
    find_parts(&q, f, name);
    if (!q.q)
        return Q_OK;
    q.group = c->group_size && c->group_size < s->cols ? c->group_size : s->cols;
    if (c->by_tensor)
        read_shapes(&q, s);
    if (q.method == QUANT_INT8 && weight_torchao_is_intx(&q, f, name))
        return weight_torchao_find_intx(s, f, name, e);
    if (q.method == QUANT_INT8) {
        q.group = s->cols;
        q.row_block = q.scales && weight_part_is_one(q.scales) ? s->rows : 1;
    }
    q.n_group = (s->cols + q.group - 1) / q.group;
    q.per_word = has_gaps(&q, s->cols) ? 32 / q.bits : 0;
    enum q_code rc = check_whole_words(s, &q, e);
    if (rc)
        return rc;
    s->quant = q;
    s->dtype = q.scales ? q.scales->dtype : DT_F16;
    rc = check_parts(s, name, e);
    if (!rc && q.method == QUANT_INT8)
        rc = check_no_zeros(f, name, e);
    return rc ? rc : check_order(&s->quant, s->cols, e);
}

/* Where the config's method is QUANT_TORCHAO, all are made floats. */
static enum q_code find_torchao(struct weight_source *s, const struct weight_finder *f,
                                const char *name, struct q_err *e)
{
    enum weight_torchao is;
    enum q_code rc = weight_torchao_find(&is, s, f, name, e);
    if (!rc && is == WEIGHT_TORCHAO_FP8)
        rc = weight_fp8_find(s, f, name, e);
    if (!rc && is == WEIGHT_TORCHAO_INT8)
        rc = find_integers(s, f, name, e);
    if (rc || !s->quant.q)
        return rc;
    s->quant.is_torchao = true;
    s->quant.is_made |= f->config->quant.method == QUANT_TORCHAO;
    return Q_OK;
}

enum q_code weight_quant_find(struct weight_source *s, const struct weight_finder *f,
                              const char *name, struct q_err *e)
{
    static enum q_code (*const finders[QUANT_COUNT])(
        struct weight_source *, const struct weight_finder *, const char *, struct q_err *) = {
        [QUANT_GPTQ] = find_integers,     [QUANT_AWQ] = find_integers,
        [QUANT_AWQ_ROWS] = find_integers, [QUANT_PACKED] = find_integers,
        [QUANT_INT8] = find_integers,     [QUANT_INTX] = find_torchao,
        [QUANT_TORCHAO] = find_torchao,   [QUANT_MXFP4] = weight_mxfp4_find,
        [QUANT_FP8] = weight_fp8_find,    [QUANT_FP4] = weight_fp4_find,
        [QUANT_BNB4] = weight_bnb4_find,  [QUANT_BNB8] = weight_bnb8_find,
        [QUANT_HQQ] = weight_hqq_find, /* the tensors of a GGUF file say themselves what they are */
    };
    const enum quant_method method = f->config->quant.method;
    s->stored_rows = s->rows;
    if (!finders[method] ||
        (method != QUANT_MXFP4 && (weight_part_base(name) == 0 || s->cols == 1)))
        return Q_OK;
    return f->config->quant.is_torchao ? find_torchao(s, f, name, e)
                                       : finders[method](s, f, name, e);
}

uint32_t weight_quant_group(const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    if (!q->q || q->is_made || q->bits > 4 || (q->order && !q->is_even) || s->cols % q->group)
        return 0;
    return kern_int4_group(q->group);
}

bool weight_quant_same_order(const struct weight_source *a, const struct weight_source *b)
{
    const struct tensor *x = a->quant.order, *y = b->quant.order;
    if (!x || !y)
        return !x && !y;
    return x->n_bytes == y->n_bytes && memcmp(x->data, y->data, x->n_bytes) == 0;
}

void weight_quant_order(uint32_t *order, const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    uint32_t next[GROUPS_MAX];
    for (uint32_t k = 0; k < s->cols && !q->order; k++)
        order[k] = k;
    if (!q->order)
        return;
    Q_ASSERT(q->is_even);
    for (uint32_t g = 0; g < q->n_group; g++)
        next[g] = g * q->group;
    for (uint32_t k = 0; k < s->cols; k++)
        order[next[weight_part_i32(q->order, k)]++] = k;
}

bool weight_quant_is_made(const struct weight_source *s)
{
    return s->quant.q && s->quant.is_made;
}

bool weight_quant_is_int8(const struct weight_source *s)
{
    return s->quant.q && (s->quant.method == QUANT_INT8 || s->quant.method == QUANT_BNB8);
}

static float scale_of(const struct weight_source *s, uint32_t o, uint32_t g)
{
    const struct quant_tensors *q = &s->quant;
    if (q->method == QUANT_GGUF)
        return f16_to_f32(weight_gguf_scale(s, o, g));
    if (q->method == QUANT_BNB8)
        return weight_part_float(q->scales, o) * BNB8_UNIT;
    const bool by_output = q->method == QUANT_PACKED || q->method == QUANT_INT8 ||
                           q->method == QUANT_INTX || q->method == QUANT_AWQ_ROWS;
    return weight_part_float(q->scales, by_output ? (size_t)(o / q->row_block) * row_scales(q) + g
                                                  : (size_t)g * s->stored_rows + o);
}

/* Integers of few bits in int32, lowest bits first: number i of those that begin at int32 `first`,
 * and go on `step` further; per_word as in struct quant_tensors. */
struct bits_at {
    const struct tensor *t;
    size_t first, step;
    uint32_t per_word;
};
static uint32_t take(const struct bits_at *w, uint32_t i, uint32_t bits)
{
    const uint64_t bit = w->per_word
                             ? (uint64_t)(i / w->per_word) * 32 + (uint64_t)(i % w->per_word) * bits
                             : (uint64_t)i * bits;
    const uint32_t shift = bit % 32;
    const size_t at = w->first + bit / 32 * w->step;
    uint32_t v = (uint32_t)weight_part_i32(w->t, at) >> shift;
    if (shift + bits > 32)
        v |= (uint32_t)weight_part_i32(w->t, at + w->step) << (32 - shift);
    return v & ((1u << bits) - 1);
}

/* The same and 1: of GPTQ's first format, where an int32 of zero points as a whole was made less by
 * 1 in each of them, so that one below 0 has borrowed of the next. Source: GPTQModel. */
static uint32_t add_one(const struct bits_at *w, uint32_t i, uint32_t bits)
{
    const uint32_t mask = (1u << bits) - 1, ones = UINT32_MAX / mask;
    const uint64_t bit = (uint64_t)i * bits;
    if (32 % bits)
        return (take(w, i, bits) + 1) & mask;
    return ((uint32_t)weight_part_i32(w->t, w->first + bit / 32 * w->step) + ones) >> bit % 32 &
           mask;
}

static uint32_t zero_of(const struct weight_source *s, uint32_t o, uint32_t g)
{
    const struct quant_tensors *q = &s->quant;
    if (q->method == QUANT_INTX)
        return weight_torchao_zero(s, o, g);
    if (!q->zeros)
        return weight_quant_is_int8(s) ? 128 : 1u << (q->bits - 1);
    struct bits_at at = {q->zeros, (size_t)g * words(q, s->stored_rows), 1, 0};
    if (q->method == QUANT_PACKED)
        at = (struct bits_at){q->zeros, g, q->n_group, q->per_word};
    uint32_t i = o;
    if (q->method == QUANT_AWQ)
        i = o / 8 * 8 + awq_place[o % 8];
    if (q->method == QUANT_AWQ_ROWS) {
        at.first = (size_t)o * row_scales(q) / 8;
        i = g;
    }
    return q->zero_offset ? add_one(&at, i, q->bits) : take(&at, i, q->bits);
}

/* q[o,k] of one output: [n_in]. */
static void integers_of(uint8_t *out, const struct weight_source *s, uint32_t o)
{
    const struct quant_tensors *q = &s->quant;
    const uint32_t n_in = s->cols, v = 32 / q->bits, mask = (1u << q->bits) - 1;
    const struct bits_at at = q->method == QUANT_GPTQ
                                  ? (struct bits_at){q->q, o, s->stored_rows, 0}
                                  : (struct bits_at){q->q, o * words(q, n_in), 1, q->per_word};
    if (32 % q->bits || n_in % v) { /* an int32 has no whole number of them, or the row's end */
        for (uint32_t k = 0; k < n_in; k++)
            out[k] = (uint8_t)take(&at, k, q->bits);
        return;
    }
    for (uint32_t k = 0; k < n_in; k += v) {
        const uint32_t all = (uint32_t)weight_part_i32(q->q, at.first + k / v * at.step);
        for (uint32_t j = 0; j < v; j++)
            out[k + j] = (uint8_t)(all >> (j * q->bits) & mask);
    }
}

/* q[o,k] of outputs o … o + n - 1, n at most a panel, as [n, n_in]. */
static void integers(uint8_t *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const uint32_t n_in = s->cols;
    const uint8_t *bytes = q->q->data;
    if (q->method == QUANT_GGUF) {
        weight_gguf_integers(out, s, o, n);
        return;
    }
    if (q->method == QUANT_INTX) {
        weight_torchao_integers(out, s, o, n);
        return;
    }
    if (weight_quant_is_int8(s)) {
        for (size_t i = 0; i < (size_t)n * n_in; i++)
            out[i] = bytes[(size_t)o * n_in + i] ^ 128;
        return;
    }
    if (q->method != QUANT_AWQ) {
        for (uint32_t i = 0; i < n; i++)
            integers_of(out + (size_t)i * n_in, s, o + i);
        return;
    }
    for (uint32_t k = 0; k < n_in; k++)
        for (uint32_t i = 0; i < n; i++) {
            const size_t at = ((size_t)k * s->stored_rows + o + i) / 8;
            const uint32_t all = (uint32_t)weight_part_i32(q->q, at);
            out[(size_t)i * n_in + k] = all >> (4 * awq_place[(o + i) % 8]) & 15;
        }
}

/* Scales and zeros of output o. */
static void groups_of(uint16_t *scales, uint8_t *zeros, const struct weight_source *s, uint32_t o,
                      uint32_t group)
{
    for (uint32_t g = 0; g < s->cols / group; g++) {
        uint32_t from = (uint32_t)((uint64_t)g * group / s->quant.group);
        scales[g] = f32_to_f16(scale_of(s, o, from));
        zeros[g] = (uint8_t)zero_of(s, o, from);
    }
}

static void set_int4(const struct packed *dst, uint32_t row, const struct weight_source *s,
                     uint32_t o, const uint8_t *q)
{
    uint16_t scales[GROUPS_MAX];
    uint8_t zeros[GROUPS_MAX];
    groups_of(scales, zeros, s, o, dst->group);
    kern_int4_set(dst, row, &(struct int4_output){q, scales, zeros});
}

void weight_quant_int4(const struct int4_arrays *to, const struct weight_source *s, uint32_t o,
                       uint32_t n)
{
    const size_t n_group = s->cols / to->group;
    integers(to->q, s, o, n);
    for (uint32_t i = 0; i < n; i++)
        groups_of(to->scales + i * n_group, to->zeros + i * n_group, s, o + i, to->group);
}

void weight_quant_int8(int8_t *q, float *scales, const struct weight_source *s, uint32_t o,
                       uint32_t n)
{
    memcpy(q, (const int8_t *)s->quant.q->data + (size_t)o * s->cols, (size_t)n * s->cols);
    for (uint32_t i = 0; i < n; i++)
        scales[i] = scale_of(s, o + i, 0);
}

void weight_quant_set(const struct packed *dst, uint32_t row, const struct weight_source *s,
                      uint32_t o, uint32_t n, void *buffer)
{
    uint8_t *q = buffer, *ordered = q + (size_t)n * s->cols;
    if (dst->group)
        integers(q, s, o, n);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *from = q + (size_t)i * s->cols;
        for (uint32_t k = 0; dst->order && k < s->cols; k++)
            ordered[k] = from[dst->order[k]];
        if (dst->group)
            set_int4(dst, row + i, s, o + i, dst->order ? ordered : from);
        else
            kern_int8_set(dst, row + i,
                          (const int8_t *)s->quant.q->data + (size_t)(o + i) * s->cols,
                          scale_of(s, o + i, 0));
    }
}

/* Outputs o … of integers with scales. */
static void integer_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const uint32_t n_in = s->cols;
    for (uint32_t i = 0; i < n; i++) {
        float *row = out + (size_t)i * n_in;
        /* the integers of a row fit in the last quarter of its floats, and are read before they are
         * written over */
        uint8_t *bytes = (uint8_t *)(void *)row + 3 * (size_t)n_in;
        integers(bytes, s, o + i, 1);
        uint32_t group = UINT32_MAX;
        float scale = 0, zero = 0;
        for (uint32_t k = 0; k < n_in; k++) {
            uint32_t g = q->order ? (uint32_t)weight_part_i32(q->order, k) : k / q->group;
            if (g != group) {
                scale = scale_of(s, o + i, g);
                zero = (float)zero_of(s, o + i, g);
                group = g;
            }
            float w = scale * ((float)bytes[k] - zero);
            memcpy(row + k, &w, sizeof w);
        }
    }
}

void weight_quant_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    static void (*const rows[QUANT_COUNT])(float *, const struct weight_source *, uint32_t,
                                           uint32_t) = {
        [QUANT_GPTQ] = integer_rows,       [QUANT_AWQ] = integer_rows,
        [QUANT_AWQ_ROWS] = integer_rows,   [QUANT_PACKED] = integer_rows,
        [QUANT_INT8] = integer_rows,       [QUANT_BNB8] = integer_rows,
        [QUANT_INTX] = integer_rows,       [QUANT_TORCHAO] = weight_torchao_rows,
        [QUANT_MXFP4] = weight_mxfp4_rows, [QUANT_FP8] = weight_fp8_rows,
        [QUANT_FP4] = weight_fp4_rows,     [QUANT_BNB4] = weight_bnb4_rows,
        [QUANT_GGUF] = weight_gguf_rows,   [QUANT_HQQ] = weight_hqq_rows,
    };
    rows[s->quant.method](out, s, o, n);
}
