/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: compressed-tensors' and modelopt's checkpoints; OCP Microscaling Formats 1.0. */
#include "engine/model/load/weight_fp4.h"
#include <math.h>
#include "engine/model/load/weight_fp8.h"
#include "engine/model/load/weight_parts.h"
#include "kernels/ops/e4m3.h"

static const struct kind {
    const char *numbers, *whole; /* what stands for ".weight"; of the scale of all, or NULL */
    uint32_t group;
    enum part_type type, scales;
    float most; /* the largest number without its scale */
} kinds[] = {
    [QUANT_NVFP4] = {".weight_packed", ".weight_global_scale", 16, PART_U8, PART_E4M3, 6},
    [QUANT_MXFP4_PACKED] = {".weight_packed", NULL, 32, PART_U8, PART_E8M0, 6},
    [QUANT_MXFP8] = {".weight", NULL, 32, PART_E4M3, PART_E8M0, 448},
};

static float group_scale(const struct quant_tensors *q, size_t i)
{
    const uint8_t byte = ((const uint8_t *)q->scales->data)[i];
    if (kinds[q->kind].scales == PART_E8M0)
        return weight_part_e8m0(byte);
    const float scale = e4m3_to_f32(byte);
    return q->divides ? scale / q->whole_scale : scale * q->whole_scale;
}

static enum q_code check_scales(const struct weight_source *s, struct q_err *e)
{
    const struct quant_tensors *q = &s->quant;
    const size_t n = (size_t)s->rows * q->n_group;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(group_scale(q, i) * kinds[q->kind].most))
            return q_fail(e, Q_CORRUPT,
                          "%s: tensor %s: the scale of output %zu, group %zu is not finite, or too "
                          "large",
                          weight_part_file(q->scales), q->scales->name, i / q->n_group,
                          i % q->n_group);
    return Q_OK;
}

/* The one scale of all groups. */
static enum q_code find_whole(struct quant_tensors *q, const struct weight_finder *f,
                              const char *name, struct q_err *e)
{
    const char *suffix = q->divides ? kinds[q->kind].whole : ".weight_scale_2";
    const struct tensor *t = weight_part(f, name, suffix);
    const struct part_wanted w = {.name = name, .suffix = suffix, .type = PART_SCALE};
    enum q_code rc = weight_part_check(t, &w, e);
    if (rc)
        return rc;
    q->whole_scale = weight_part_float(t, 0);
    if (isfinite(q->whole_scale) && q->whole_scale > 0)
        return Q_OK;
    return q_fail(e, Q_CORRUPT, "%s: tensor %s is %g, expected a number above 0",
                  weight_part_file(t), t->name, (double)q->whole_scale);
}

/* A layer's experts in one tensor, and products of activations before the matrix. */
static enum q_code refuse(const struct weight_source *s, const struct weight_finder *f,
                          const char *name, struct q_err *e)
{
    const struct tensor *before = weight_part(f, name, ".pre_quant_scale");
    if (before)
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: tensor %s multiplies activations, which is not supported; use a "
            "checkpoint that was quantized without AWQ's smoothing, or the original model",
            weight_part_file(before), before->name);
    return s->stacked ? q_fail(e, Q_UNSUPPORTED,
                               "tensor %s: fp4 weights of all experts in one tensor are not "
                               "supported, expected a tensor for each expert",
                               name)
                      : Q_OK;
}

static enum q_code find_kind(struct weight_source *s, const struct weight_finder *f,
                             const char *name, struct q_err *e)
{
    struct quant_tensors *q = &s->quant;
    const struct kind *k = &kinds[q->kind];
    const uint32_t per_byte = k->type == PART_U8 ? 2 : 1;
    const char *numbers = q->divides || !k->whole ? k->numbers : ".weight";
    const struct part_wanted w = {name, numbers, s->rows, s->cols / per_byte, k->type};
    const struct part_wanted c = {name, ".weight_scale", s->rows, s->cols / k->group, k->scales};
    enum q_code rc;
    if (s->cols % k->group)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s: %u inputs are no whole groups of %u",
                      weight_part_file(q->q), q->q->name, s->cols, k->group);
    q->method = QUANT_FP4;
    q->bits = 8 / per_byte;
    q->group = k->group;
    q->n_group = s->cols / k->group;
    q->is_made = true;
    if ((rc = refuse(s, f, name, e)) || (rc = weight_part_check(q->q, &w, e)) ||
        (rc = weight_part_check(q->scales, &c, e)) ||
        (k->whole && (rc = find_whole(q, f, name, e))))
        return rc;
    s->dtype = DT_F32;
    return check_scales(s, e);
}

enum q_code weight_fp4_find(struct weight_source *s, const struct weight_finder *f,
                            const char *name, struct q_err *e)
{
    const struct tensor *packed = weight_part(f, name, ".weight_packed");
    const struct tensor *plain = weight_part(f, name, ".weight");
    const struct tensor *scales = weight_part(f, name, ".weight_scale");
    const bool of_powers = scales && (scales->dtype == DT_U8 || scales->dtype == DT_F8_E8M0);
    struct quant_tensors q = {.q = packed ? packed : plain, .scales = scales, .divides = packed};
    enum q_code rc;
    if (!q.q || (!packed && plain->dtype != DT_U8 && plain->dtype != DT_F8_E4M3))
        return Q_OK; /* one that was left as it is */
    q.kind = q.q->dtype == DT_U8 ? of_powers ? QUANT_MXFP4_PACKED : QUANT_NVFP4
             : of_powers         ? QUANT_MXFP8
                                 : QUANT_E4M3;
    if (q.kind == QUANT_E4M3) {
        rc = weight_fp8_find(s, f, name, e);
        s->quant.is_made = true;
    } else if (!scales) {
        rc = weight_part_check(NULL, &(struct part_wanted){.name = name, .suffix = ".weight_scale"},
                               e);
    } else {
        s->quant = q;
        rc = find_kind(s, f, name, e);
    }
    if (rc)
        s->quant = (struct quant_tensors){0};
    return rc;
}

void weight_fp4_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    static const float e2m1[16] = {0, 0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const struct quant_tensors *q = &s->quant;
    const bool is_half = q->bits == 4;
    const uint8_t *bytes = (const uint8_t *)q->q->data + (size_t)o * s->cols / (is_half ? 2 : 1);
    for (size_t g = 0, i = 0; g < (size_t)n * q->n_group; g++) {
        const float scale = group_scale(q, (size_t)o * q->n_group + g);
        for (uint32_t k = 0; k < q->group; k++, i++)
            out[i] =
                scale * (is_half ? e2m1[bytes[i / 2] >> (i % 2 * 4) & 15] : e4m3_to_f32(bytes[i]));
    }
}

void weight_fp4_codes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o)
{
    const struct quant_tensors *t = &s->quant;
    const uint8_t *bytes = (const uint8_t *)t->q->data + (size_t)o * s->cols / 2;
    for (uint32_t g = 0; g < t->n_group; g++)
        scales[g] = group_scale(t, (size_t)o * t->n_group + g) * 0.5f;
    for (uint32_t k = 0; k < s->cols; k++)
        q[k] = bytes[k / 2] >> (k % 2 * 4) & 15;
}
