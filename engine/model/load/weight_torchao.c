/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_torchao.h"
#include <math.h>
#include "engine/model/load/weight_parts.h"

#define TILE_OUT 8u    /* outputs of a tile */
#define TILE_IN  128u  /* inputs of a tile */
#define TILE_PAD 1024u /* inputs are padded to a multiple of it */

static bool has_shape(const struct tensor *t, uint64_t rows, uint64_t cols)
{
    return t->n_dim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* Are all zero points 0, or are there none? */
static bool has_no_zeros(const struct tensor *t)
{
    for (uint64_t i = 0; t && i < t->n_bytes; i++)
        if (((const unsigned char *)t->data)[i])
            return false;
    return true;
}

static enum q_code refuse(const struct tensor *t, const char *what, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: tensor %s: %s; use the original model, with --quantization int8 or int4 if "
                  "it does not fit, or a torchao checkpoint in int4 that is plain or "
                  "tile_packed_to_4d",
                  weight_part_file(t), t->name, what);
}

/* ---- integers of up to 8 bits in int8 ---- */

static int int8_at(const struct tensor *t, size_t i)
{
    return (((const uint8_t *)t->data)[i] ^ 128) - 128;
}

/* The bits that the config says integers in groups, or of whole outputs, have. */
static uint32_t bits_of(const struct quant_config *c, bool grouped)
{
    const uint32_t most = c->whole_bits > c->group_bits ? c->whole_bits : c->group_bits;
    if (!most)
        return 8;
    return grouped && c->group_bits ? c->group_bits : most;
}

static enum q_code check_zeros(const struct quant_tensors *q, struct q_err *e)
{
    const int half = q->bits > 4 ? 128 : 8;
    for (uint64_t i = 0; i < q->zeros->n_bytes; i++) {
        const int zero = int8_at(q->zeros, i);
        if (zero < -half || zero >= half)
            return q_fail(e, Q_CORRUPT, "%s: tensor %s: zero point %llu is %d, expected %d to %d",
                          weight_part_file(q->zeros), q->zeros->name, (unsigned long long)i, zero,
                          -half, half - 1);
    }
    return Q_OK;
}

bool weight_torchao_is_intx(const struct quant_tensors *q, const struct weight_finder *f,
                            const char *name)
{
    const struct quant_config *c = &f->config->quant;
    if (c->is_torchao || !q->scales || weight_part_is_one(q->scales))
        return false;
    return (q->scales->n_dim == 2 && q->scales->shape[1] > 1) || bits_of(c, false) <= 4 ||
           !has_no_zeros(weight_part(f, name, ".weight_zero_point"));
}

enum q_code weight_torchao_find_intx(struct weight_source *s, const struct weight_finder *f,
                                     const char *name, struct q_err *e)
{
    const struct part_wanted w = {name, ".weight", s->rows, s->cols, PART_I8};
    s->quant = (struct quant_tensors){
        .q = weight_part(f, name, ".weight"),
        .scales = weight_part(f, name, ".weight_scale"),
        .zeros = weight_part(f, name, ".weight_zero_point"),
        .row_block = 1,
    };
    struct quant_tensors *q = &s->quant;
    const struct tensor *t = q->scales;
    enum q_code rc = weight_part_check(q->q, &w, e);
    if (rc)
        return rc;
    if (!t || t->n_dim != 2 || t->shape[0] != s->rows || !t->shape[1] || s->cols % t->shape[1])
        return t ? refuse(t, "scales that are not those of equal groups of inputs", e)
                 : weight_part_check(NULL, &(struct part_wanted){name, ".weight_scale", 0, 0, 0},
                                     e);
    q->method = QUANT_INTX;
    q->n_group = (uint32_t)t->shape[1];
    q->group = s->cols / q->n_group;
    q->bits = bits_of(&f->config->quant, q->n_group > 1);
    q->row_block = 1;
    const struct part_wanted c = {name, ".weight_scale", s->rows, q->n_group, PART_SCALE};
    const struct part_wanted z = {name, ".weight_zero_point", s->rows, q->n_group, PART_I8};
    if (q->zeros && q->zeros->dtype != DT_I8)
        return refuse(q->zeros, "zero points that are no integers are not supported here", e);
    if ((rc = weight_part_check(t, &c, e)) || (rc = weight_part_check_finite(t, e)) ||
        (q->zeros && ((rc = weight_part_check(q->zeros, &z, e)) || (rc = check_zeros(q, e)))))
        return rc;
    if (has_no_zeros(q->zeros))
        q->zeros = NULL;
    s->dtype = t->dtype;
    return Q_OK;
}

void weight_torchao_integers(uint8_t *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const size_t first = (size_t)o * s->cols;
    for (size_t i = 0; i < (size_t)n * s->cols; i++) {
        const int v = int8_at(q->q, first + i);
        out[i] = (uint8_t)(q->bits > 4 ? v + 128 : v < -8 ? 0 : v > 7 ? 15 : v + 8);
    }
}

uint32_t weight_torchao_zero(const struct weight_source *s, uint32_t o, uint32_t g)
{
    const struct quant_tensors *q = &s->quant;
    const int half = q->bits > 4 ? 128 : 8;
    return (uint32_t)(half + (q->zeros ? int8_at(q->zeros, (size_t)o * q->n_group + g) : 0));
}

/* ---- int4 with zeros that are floats ---- */

static enum q_code check_floats(const struct quant_tensors *q, struct q_err *e)
{
    enum q_code rc = weight_part_check_finite(q->scales, e);
    return rc || q->zeros == q->scales ? rc : weight_part_check_finite(q->zeros, e);
}

/* G of n_in inputs in n groups; 0: they are no equal groups of 16 inputs or more. */
static uint32_t group_of(uint64_t n_in, uint64_t n)
{
    return n && n_in % n == 0 && n_in / n >= 16 ? (uint32_t)(n_in / n) : 0;
}

static enum q_code find_plain(struct weight_source *s, const char *name, struct q_err *e)
{
    struct quant_tensors *q = &s->quant;
    const struct tensor *t = q->scales;
    enum q_code rc;
    q->group = t && t->n_dim == 2 ? group_of(s->cols, t->shape[0]) : 0;
    if (t && !q->group)
        return refuse(t, "scales that are not those of equal groups of inputs", e);
    q->n_group = q->group ? s->cols / q->group : 0;
    const struct part_wanted c = {name, ".weight_scale", q->n_group, s->rows, PART_SCALE};
    const struct part_wanted z = {name, ".weight_zero_point", q->n_group, s->rows, PART_SCALE};
    if ((rc = weight_part_check(t, &c, e)) || (rc = weight_part_check(q->zeros, &z, e)))
        return rc;
    return check_floats(q, e);
}

static uint32_t tiled_outputs(const struct weight_source *s)
{
    return (s->stored_rows + TILE_OUT - 1) / TILE_OUT * TILE_OUT;
}

static enum q_code find_tiles(struct weight_source *s, const struct weight_finder *f,
                              const char *name, struct q_err *e)
{
    struct quant_tensors *q = &s->quant;
    const uint64_t m_out = tiled_outputs(s);
    const uint64_t m_in = ((uint64_t)s->cols + TILE_PAD - 1) / TILE_PAD * TILE_PAD;
    const struct tensor *t = weight_part(f, name, ".weight_scale_and_zero");
    const uint64_t shape[4] = {m_out / TILE_OUT, m_in / TILE_IN, 32, 4};
    for (size_t i = 0; i < 4; i++)
        if (q->q->shape[i] != shape[i])
            return q_fail(e, Q_MISMATCH,
                          "%s: tensor %s has shape [%llu, %llu, %llu, %llu], expected [%llu, %llu, "
                          "32, 4]",
                          weight_part_file(q->q), q->q->name, (unsigned long long)q->q->shape[0],
                          (unsigned long long)q->q->shape[1], (unsigned long long)q->q->shape[2],
                          (unsigned long long)q->q->shape[3], (unsigned long long)shape[0],
                          (unsigned long long)shape[1]);
    if (!t)
        return weight_part_check(NULL,
                                 &(struct part_wanted){name, ".weight_scale_and_zero", 0, 0, 0}, e);
    q->group = t->n_dim == 3 ? group_of(m_in, t->shape[0]) : 0;
    if (!q->group || t->shape[1] != m_out || t->shape[2] != 2 ||
        (t->dtype != DT_BF16 && t->dtype != DT_F16 && t->dtype != DT_F32))
        return q_fail(e, Q_MISMATCH,
                      "%s: tensor %s is not floats of shape [groups, %llu, 2], as its matrix in "
                      "tiles needs",
                      weight_part_file(t), t->name, (unsigned long long)m_out);
    q->scales = q->zeros = t;
    q->n_group = (s->cols + q->group - 1) / q->group;
    q->tiled = true;
    return check_floats(q, e);
}

static enum q_code find_int4(struct weight_source *s, const struct weight_finder *f,
                             const char *name, struct q_err *e)
{
    struct quant_tensors *q = &s->quant;
    q->method = QUANT_TORCHAO;
    q->bits = 4;
    q->is_made = true;
    s->dtype = DT_F32;
    if (q->q->n_dim == 4)
        return find_tiles(s, f, name, e);
    if (s->cols % 2 == 0 && has_shape(q->q, s->rows, s->cols / 2))
        return find_plain(s, name, e);
    return q_fail(e, Q_MISMATCH,
                  "%s: tensor %s has neither the shape [%u, %u] of int8 nor [%u, %u] of int4",
                  weight_part_file(q->q), q->q->name, s->rows, s->cols, s->rows, s->cols / 2);
}

static float scale_of(const struct weight_source *s, uint32_t o, uint32_t g, bool zero)
{
    const struct quant_tensors *q = &s->quant;
    if (q->tiled)
        return weight_part_float(q->scales, ((size_t)g * tiled_outputs(s) + o) * 2 + zero);
    return weight_part_float(zero ? q->zeros : q->scales, (size_t)g * s->stored_rows + o);
}

/* q + 8 of an output, [n_in]. */
static void codes_of(uint8_t *out, const struct weight_source *s, uint32_t o)
{
    const struct quant_tensors *q = &s->quant;
    const uint8_t *bytes = (const uint8_t *)q->q->data + (size_t)o * s->cols / 2;
    if (!q->tiled) {
        for (uint32_t k = 0; k < s->cols; k++)
            out[k] = (bytes[k / 2] >> (k % 2 * 4) & 15) ^ 8;
        return;
    }
    const size_t tiles = (size_t)q->q->shape[1] * (o / TILE_OUT);
    for (uint32_t k = 0; k < s->cols; k++) {
        const uint32_t in = k % 32, t = o % TILE_OUT * 4 + in % 8 / 2, j = k % TILE_IN / 32;
        const size_t word = ((tiles + k / TILE_IN) * 32 + t) * 4 + j;
        const uint32_t all = (uint32_t)weight_part_i32(q->q, word);
        out[k] = all >> (in / 8 * 4 + in % 2 * 16) & 15;
    }
}

void weight_torchao_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float *row = out + (size_t)i * s->cols;
        /* codes fit in the last quarter of the row's floats, and are read before they are written
         * over */
        uint8_t *codes = (uint8_t *)(void *)row + 3 * (size_t)s->cols;
        codes_of(codes, s, o + i);
        for (uint32_t k = 0; k < s->cols;) {
            const uint32_t g = k / s->quant.group, end = (g + 1) * s->quant.group;
            const float scale = scale_of(s, o + i, g, false), zero = scale_of(s, o + i, g, true);
            for (; k < end && k < s->cols; k++) {
                const float w = fmaf(scale, (float)codes[k] - 8, zero);
                memcpy(row + k, &w, sizeof w);
            }
        }
    }
}

void weight_torchao_codes(const struct weight_torchao_codes *to, const struct weight_source *s,
                          uint32_t o)
{
    const struct quant_tensors *q = &s->quant;
    if (q->method == QUANT_INT8) {
        memcpy(to->q, (const uint8_t *)q->q->data + (size_t)o * s->cols, s->cols);
        to->scales[0] = weight_part_float(q->scales, o / q->row_block);
        return;
    }
    codes_of(to->q, s, o);
    for (uint32_t g = 0; g < q->n_group; g++) {
        to->scales[g] = scale_of(s, o, g, false);
        to->mins[g] = scale_of(s, o, g, true);
    }
}

/* ---- which of them ---- */

enum q_code weight_torchao_find(enum weight_torchao *is, struct weight_source *s,
                                const struct weight_finder *f, const char *name, struct q_err *e)
{
    const struct tensor *t = weight_part(f, name, ".weight");
    const struct tensor *before = weight_part(f, name, ".weight_act_pre_scale");
    struct quant_tensors q = {.q = t, .row_block = 1};
    *is = WEIGHT_TORCHAO_NOT;
    if (!t ||
        (t->dtype != DT_I8 && t->dtype != DT_U8 && t->dtype != DT_I32 && t->dtype != DT_F8_E4M3))
        return Q_OK; /* one that was left as it is */
    if (before)
        return refuse(before, "it multiplies activations, which is not supported", e);
    if (s->stacked)
        return refuse(t, "weights of all experts in one tensor are not supported", e);
    q.scales = weight_part(f, name, ".weight_scale");
    q.zeros = weight_part(f, name, ".weight_zero_point");
    if (t->dtype == DT_F8_E4M3) {
        *is = WEIGHT_TORCHAO_FP8;
        return Q_OK;
    }
    const bool one_each = q.scales && (weight_part_is_one(q.scales) ||
                                       (q.scales->n_dim == 2 && q.scales->shape[1] == 1));
    if (t->dtype == DT_I8 && has_shape(t, s->rows, s->cols) && one_each && has_no_zeros(q.zeros) &&
        bits_of(&f->config->quant, false) > 4) {
        *is = WEIGHT_TORCHAO_INT8;
        return Q_OK;
    }
    if (t->dtype == DT_I32 && t->n_dim != 4)
        return refuse(t,
                      "int4_packing_format plain_int32, which XPUs and NPUs have in different "
                      "orders, is not supported",
                      e);
    *is = WEIGHT_TORCHAO_FOUND;
    s->quant = q;
    enum q_code rc = t->dtype == DT_I8 && has_shape(t, s->rows, s->cols)
                         ? weight_torchao_find_intx(s, f, name, e)
                         : find_int4(s, f, name, e);
    if (rc)
        s->quant = (struct quant_tensors){0};
    return rc;
}
