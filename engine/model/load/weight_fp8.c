/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_fp8.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/load/weight_parts.h"
#include "kernels/ops/e4m3.h"
#include "kernels/ops/ops_fp8.h"

static const struct tensor *scales_of(const struct weight_finder *f, const char *name)
{
    const struct tensor *t = weight_part(f, name, ".weight_scale");
    return t ? t : weight_part(f, name, ".weight_scale_inv");
}

static enum q_code check_scales(const struct tensor *t, struct q_err *e)
{
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16 && t->dtype != DT_F8_E8M0 &&
        t->dtype != DT_U8)
        return q_fail(e, Q_MISMATCH,
                      "%s: tensor %s has dtype %s, expected F32, F16, BF16, F8_E8M0 or U8",
                      weight_part_file(t), t->name, dtype_name(t->dtype));
    return weight_part_check_finite(t, e);
}

static bool has_shape(const struct tensor *t, uint64_t rows, uint64_t cols)
{
    return t->n_dim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* Which outputs and inputs share a scale: by the config's blocks, or by the shape alone. */
static bool fit_scales(struct quant_tensors *q, const struct quant_config *c,
                       const struct weight_source *s)
{
    const struct tensor *t = q->scales;
    q->group = s->cols;
    q->n_group = 1;
    if (c->row_block) {
        q->row_block = c->row_block;
        q->group = c->group_size;
        q->n_group = (s->cols + q->group - 1) / q->group;
        return has_shape(t, (s->rows + q->row_block - 1) / q->row_block, q->n_group);
    }
    q->row_block = 1;
    if (has_shape(t, s->rows, 1) || (t->n_dim == 1 && t->shape[0] == s->rows))
        return true;
    q->row_block = s->rows;
    return t->n_dim == 0 || (t->n_dim == 1 && t->shape[0] == 1) || has_shape(t, 1, 1);
}

/* Of its inputs. What divides by it (kernels/ops/fp8.h) takes no inverse that is infinite. */
static enum q_code find_x_scale(struct quant_tensors *q, const struct weight_finder *f,
                                const char *name, struct q_err *e)
{
    const struct tensor *older = weight_part(f, name, ".input_scale");
    const char *part = older ? ".input_scale" : ".activation_scale"; /* transformers' own */
    const struct tensor *t = older ? older : weight_part(f, name, part);
    const struct part_wanted one = {name, part, 0, 0, PART_SCALE};
    enum q_code rc;
    q->has_x_scale = t != NULL;
    if (!t || f->config->quant.dynamic_inputs || q->n_group > 1)
        return Q_OK;
    if (!weight_part_is_one(t))
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has %llu bytes of %s, expected one number",
                      weight_part_file(t), t->name, (unsigned long long)t->n_bytes,
                      dtype_name(t->dtype));
    if ((rc = weight_part_check(t, &one, e)))
        return rc;
    q->x_scale = weight_part_float(t, 0);
    if (q->x_scale == 0 || (q->x_scale > 0 && isfinite(q->x_scale) && isfinite(1 / q->x_scale)))
        return Q_OK;
    return q_fail(e, Q_CORRUPT, "%s: tensor %s is %g, expected a finite number above 0",
                  weight_part_file(t), t->name, (double)q->x_scale);
}

enum q_code weight_fp8_find(struct weight_source *s, const struct weight_finder *f,
                            const char *name, struct q_err *e)
{
    const struct quant_config *c = &f->config->quant;
    struct quant_tensors q = {.method = QUANT_FP8, .bits = 8, .q = weight_part(f, name, ".weight")};
    if (!q.q || q.q->dtype != DT_F8_E4M3)
        return Q_OK; /* one that was left as it is */
    if (!has_shape(q.q, s->rows, s->cols))
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has another shape than [%u, %u]",
                      weight_part_file(q.q), name, s->rows, s->cols);
    q.scales = scales_of(f, name);
    if (!q.scales)
        return q_fail(e, Q_NOT_FOUND, "tensor %s_scale is missing beside that of a matrix in fp8",
                      name);
    enum q_code rc = check_scales(q.scales, e);
    if (rc)
        return rc;
    if (!fit_scales(&q, c, s) && c->row_block)
        return q_fail(e, Q_MISMATCH,
                      "%s: tensor %s does not have a scale for each %u x %u of %u x %u",
                      weight_part_file(q.scales), q.scales->name, c->row_block, c->group_size,
                      s->rows, s->cols);
    if (!fit_scales(&q, c, s))
        return q_fail(e, Q_MISMATCH,
                      "%s: tensor %s has neither one scale nor one for each of %u "
                      "outputs",
                      weight_part_file(q.scales), q.scales->name, s->rows);
    if ((rc = find_x_scale(&q, f, name, e)))
        return rc;
    s->quant = q;
    s->dtype = DT_F32;
    return Q_OK;
}

void weight_fp8_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *from = (const uint8_t *)q->q->data + (size_t)(o + i) * s->cols;
        float *row = out + (size_t)i * s->cols;
        for (uint32_t g = 0; g < q->n_group; g++) {
            const size_t at = (size_t)((o + i) / q->row_block) * q->n_group + g;
            const float scale = weight_part_float(q->scales, at);
            const uint32_t end = s->cols - g * q->group < q->group ? s->cols : (g + 1) * q->group;
            for (uint32_t k = g * q->group; k < end; k++)
                row[k] = scale * e4m3_to_f32(from[k]);
        }
    }
}

bool weight_fp8_is_plain(const struct weight_source *s)
{
    return s->quant.q && s->quant.method == QUANT_FP8 && s->quant.n_group == 1;
}

void weight_fp8_bytes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o,
                      uint32_t n)
{
    memcpy(q, (const uint8_t *)s->quant.q->data + (size_t)o * s->cols, (size_t)n * s->cols);
    for (uint32_t i = 0; i < n; i++)
        scales[i] = weight_part_float(s->quant.scales, (o + i) / s->quant.row_block);
}

/* Outputs that share scales must be whole blocks of the packed matrix, of a slice too. */
bool weight_fp8_is_blocks(const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    const struct weight_slice *v = &s->slice;
    if (v->first % KERN_GATE_INTERLEAVE || v->block % KERN_GATE_INTERLEAVE ||
        v->stride % KERN_GATE_INTERLEAVE)
        return false;
    if (v->pairs && (v->pairs / 2 % KERN_GATE_INTERLEAVE || /* 16 outputs come of 32 rows */
                     q->row_block % (2 * KERN_GATE_INTERLEAVE)))
        return false;
    return q->q && q->method == QUANT_FP8 && q->n_group > 1 &&
           q->row_block % KERN_GATE_INTERLEAVE == 0 && q->group % KERN_FP8_BLOCK == 0;
}

void weight_fp8_block(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o,
                      uint32_t n)
{
    const struct quant_tensors *t = &s->quant;
    const uint32_t n_block = (s->cols + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
    memcpy(q, (const uint8_t *)t->q->data + (size_t)o * s->cols, (size_t)n * s->cols);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = 0; b < n_block; b++)
            scales[(size_t)i * n_block + b] =
                weight_part_float(t->scales, (size_t)((o + i) / t->row_block) * t->n_group +
                                                 b * KERN_FP8_BLOCK / t->group);
}
