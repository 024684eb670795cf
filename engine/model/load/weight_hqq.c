/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_hqq.h"
#include "engine/model/load/weight_parts.h"

#define MOST_IN_WORD 10u /* integers of 3 bits */

static const char *const suffixes[] = {
    ".W_q",
    ".scale",
    ".zero",
    ".shape",
    ".nbits",
    ".group_size",
    ".axis",
    ".packing",
    ".channel_wise",
    ".optimize",
    ".round_zero",
    ".view_as_float",
    ".quant_scale",
    ".quant_zero",
    ".offload_meta",
    ".unpack_view_dtype",
    ".compute_dtype",
    ".encoded_state_dict",
    ".stores_quant_config",
};

bool weight_hqq_is_part(const char *name, const char *found)
{
    const size_t n = weight_part_base(name);
    if (n == 0 || strncmp(name, found, n) != 0)
        return false;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcmp(found + n, suffixes[i]) == 0)
            return true;
    return false;
}

static enum q_code refuse(const struct tensor *t, const char *what, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: tensor %s: %s; quantize with HqqConfig(nbits=4, group_size=64, axis=1), or "
                  "use the original model, with --quantization int8 or int4 if it does not fit",
                  weight_part_file(t), t->name, what);
}

/* Bits of an integer when n rows of them lie in m rows of t; 0: in no way that is known. */
static uint32_t bits_of(const struct tensor *t, uint64_t n)
{
    const uint64_t m = t->shape[0];
    if (t->dtype == DT_I32)
        return m == (n + MOST_IN_WORD - 1) / MOST_IN_WORD ? 3 : 0;
    return m == n ? 8 : m * 2 == n ? 4 : m * 4 == n ? 2 : 0;
}

/* The integers: their type, groups and bits. */
static enum q_code find_rows(struct quant_tensors *q, const struct weight_source *s,
                             struct q_err *e)
{
    const struct tensor *t = q->q;
    if (t->dtype == DT_F16 || t->dtype == DT_BF16 || t->dtype == DT_F32)
        return refuse(t, "integers viewed as floats (view_as_float) are not supported", e);
    if ((t->dtype != DT_U8 && t->dtype != DT_I32) || t->n_dim != 2)
        return q_fail(e, Q_MISMATCH,
                      "%s: tensor %s has dtype %s and %u dimensions, expected U8 or I32 and 2",
                      weight_part_file(t), t->name, dtype_name(t->dtype), t->n_dim);
    const uint64_t group = t->shape[1];
    if (group == 0 || group > s->cols || s->cols % group)
        return refuse(t,
                      "groups that do not divide the inputs, or are along axis 0, are not "
                      "supported",
                      e);
    q->group = (uint32_t)group;
    q->n_group = s->cols / q->group;
    q->bits = bits_of(t, (uint64_t)s->rows * q->n_group);
    if (q->bits)
        return Q_OK;
    return q_fail(
        e, Q_MISMATCH,
        "%s: tensor %s has shape [%llu, %u], which are no integers of 2, 3, 4 or 8 bits of "
        "a matrix [%u, %u]",
        weight_part_file(t), t->name, (unsigned long long)t->shape[0], q->group, s->rows, s->cols);
}

/* What is subtracted from an integer so that it is a code's value. */
static float middle_of(const struct quant_tensors *q)
{
    return (float)(1u << (q->bits - 1));
}

static float min_of(const struct quant_tensors *q, size_t row)
{
    return weight_part_float(q->scales, row) * (middle_of(q) - weight_part_float(q->zeros, row));
}

/* With them all weights are finite: they lie between those of the two ends of q's range. */
static enum q_code check_numbers(const struct quant_tensors *q, size_t n, struct q_err *e)
{
    for (size_t r = 0; r < n; r++) {
        const float most = weight_part_float(q->scales, r) * middle_of(q), min = min_of(q, r);
        if (!isfinite(min) || !isfinite(min + most) || !isfinite(min - most))
            return q_fail(e, Q_CORRUPT,
                          "%s: tensor %s: scale %zu, or its zero point, is not finite or too large",
                          weight_part_file(q->scales), q->scales->name, r);
    }
    return Q_OK;
}

enum q_code weight_hqq_find(struct weight_source *s, const struct weight_finder *f,
                            const char *name, struct q_err *e)
{
    struct quant_tensors q = {
        .method = QUANT_HQQ,
        .q = weight_part(f, name, ".W_q"),
        .scales = weight_part(f, name, ".scale"),
        .zeros = weight_part(f, name, ".zero"),
        .row_block = 1,
        .is_made = true,
    };
    enum q_code rc;
    if (!q.q)
        return Q_OK; /* one that was left as it is */
    if (s->stacked)
        return refuse(q.q, "weights of all experts in one tensor are not supported", e);
    if ((rc = find_rows(&q, s, e)))
        return rc;
    const uint64_t n = (uint64_t)s->rows * q.n_group;
    const struct part_wanted c = {name, ".scale", n, 1, PART_SCALE};
    const struct part_wanted z = {name, ".zero", n, 1, PART_SCALE};
    if ((rc = weight_part_check(q.scales, &c, e)) || (rc = weight_part_check(q.zeros, &z, e)) ||
        (rc = check_numbers(&q, (size_t)n, e)))
        return rc;
    s->quant = q;
    s->dtype = DT_F32;
    return Q_OK;
}

/* Integer i of row r. */
static uint32_t integer_at(const struct quant_tensors *q, size_t r, uint32_t i)
{
    const size_t m = q->q->shape[0], at = r % m * q->group + i;
    const uint32_t place = (uint32_t)(r / m);
    if (q->q->dtype == DT_I32)
        return (uint32_t)weight_part_i32(q->q, at) >> (27 - 3 * place) & 7;
    return ((const uint8_t *)q->q->data)[at] >> (8 - q->bits * (place + 1)) & ((1u << q->bits) - 1);
}

void weight_hqq_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const float middle = middle_of(q);
    for (size_t r = (size_t)o * q->n_group; r < (size_t)(o + n) * q->n_group; r++) {
        const float scale = weight_part_float(q->scales, r), min = min_of(q, r);
        for (uint32_t i = 0; i < q->group; i++)
            *out++ = fmaf(scale, (float)integer_at(q, r, i) - middle, min);
    }
}

void weight_hqq_codes(uint8_t *q, float *scales, float *mins, const struct weight_source *s,
                      uint32_t o)
{
    const struct quant_tensors *t = &s->quant;
    const uint32_t middle = 1u << (t->bits - 1);
    for (uint32_t g = 0; g < t->n_group; g++) {
        const size_t r = (size_t)o * t->n_group + g;
        scales[g] = weight_part_float(t->scales, r);
        mins[g] = min_of(t, r);
        for (uint32_t i = 0; i < t->group; i++) {
            const uint32_t v = integer_at(t, r, i) - middle;
            *q++ = (uint8_t)(t->bits > 4 ? v : v + 8);
        }
    }
}
