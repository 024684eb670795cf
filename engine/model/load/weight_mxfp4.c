/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_mxfp4.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/load/weight_parts.h"

#define BLOCK       32u  /* inputs that share a scale */
#define BLOCK_BYTES 16u  /* of their e2m1 */
#define SCALE_MAX   252u /* the largest one with which 6, the largest e2m1, is finite; 255 is NaN */
#define SCALE_ONE   127

static const char *const ends[] = {"_blocks", "_scales"};

bool weight_mxfp4_is_part(const char *name, const char *found)
{
    const size_t n = strlen(name);
    return strncmp(name, found, n) == 0 &&
           (strcmp(found + n, ends[0]) == 0 || strcmp(found + n, ends[1]) == 0);
}

static const struct tensor *part(const struct weight_finder *f, const char *name, const char *end)
{
    char whole[ARCH_NAME_MAX + 32];
    snprintf(whole, sizeof whole, "%s%s", name, end);
    return tensor_find(f->files, whole);
}

/* [n_expert, n_out, n_in / 32], then the bytes of a block. */
static enum q_code check_shape(const struct tensor *t, const uint64_t want[4], uint32_t n_dim,
                               struct q_err *e)
{
    bool same = t->n_dim == n_dim;
    char bytes[16] = "";
    for (uint32_t i = 0; same && i < n_dim; i++)
        same = t->shape[i] == want[i];
    if (t->dtype != DT_U8)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has dtype %s, expected U8", weight_part_file(t),
                      t->name, dtype_name(t->dtype));
    if (n_dim == 4)
        snprintf(bytes, sizeof bytes, ", %u", BLOCK_BYTES);
    return same ? Q_OK
                : q_fail(e, Q_MISMATCH,
                         "%s: tensor %s has another shape than [%llu, %llu, %llu%s] (experts, "
                         "outputs, blocks of %u inputs%s)",
                         weight_part_file(t), t->name, (unsigned long long)want[0],
                         (unsigned long long)want[1], (unsigned long long)want[2], bytes, BLOCK,
                         n_dim == 4 ? ", bytes" : "");
}

/* The expert's part of a tensor with n bytes an output. */
static const uint8_t *bytes_of(const struct weight_source *s, const struct tensor *t, size_t n)
{
    return (const uint8_t *)t->data + (size_t)s->place.expert * s->stored_rows * n;
}

static enum q_code check_scales(const struct weight_source *s, struct q_err *e)
{
    const struct quant_tensors *q = &s->quant;
    const uint8_t *scales = bytes_of(s, q->scales, q->n_group);
    const size_t n = (size_t)s->stored_rows * q->n_group;
    for (size_t i = 0; i < n; i++)
        if (scales[i] > SCALE_MAX)
            return q_fail(e, Q_CORRUPT,
                          "%s: tensor %s: the scale of expert %u, output %zu, block %zu is %u, "
                          "expected 0 to %u",
                          weight_part_file(q->scales), q->scales->name, s->place.expert,
                          i / q->n_group, i % q->n_group, scales[i], SCALE_MAX);
    return Q_OK;
}

enum q_code weight_mxfp4_find(struct weight_source *s, const struct weight_finder *f,
                              const char *name, struct q_err *e)
{
    struct quant_tensors q = {.method = QUANT_MXFP4, .bits = 4, .group = BLOCK, .is_made = true};
    const uint64_t want[4] = {f->config->moe.n_expert, s->rows, s->cols / BLOCK, BLOCK_BYTES};
    enum q_code rc;
    q.q = part(f, name, ends[0]);
    if (!q.q || !s->stacked)
        return Q_OK; /* one that was left as it is */
    q.scales = part(f, name, ends[1]);
    q.n_group = s->cols / BLOCK;
    if (!q.scales)
        return q_fail(e, Q_NOT_FOUND, "%s: tensor %s%s is missing beside %s", weight_part_file(q.q),
                      name, ends[1], q.q->name);
    if (s->cols % BLOCK)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s: %u inputs are no whole blocks of %u",
                      weight_part_file(q.q), q.q->name, s->cols, BLOCK);
    if ((rc = check_shape(q.q, want, 4, e)) || (rc = check_shape(q.scales, want, 3, e)))
        return rc;
    s->quant = q;
    s->dtype = DT_BF16;
    return check_scales(s, e);
}

void weight_mxfp4_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    static const float e2m1[16] = {0, 0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const struct quant_tensors *q = &s->quant;
    const size_t n_block = (size_t)n * q->n_group;
    const uint8_t *bytes =
        bytes_of(s, q->q, (size_t)q->n_group * BLOCK_BYTES) + (size_t)o * q->n_group * BLOCK_BYTES;
    const uint8_t *scales = bytes_of(s, q->scales, q->n_group) + (size_t)o * q->n_group;
    for (size_t b = 0; b < n_block; b++) {
        const float scale = ldexpf(1, scales[b] - SCALE_ONE);
        for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
            const uint8_t two = bytes[b * BLOCK_BYTES + i];
            out[b * BLOCK + 2 * i] = scale * e2m1[two & 15];
            out[b * BLOCK + 2 * i + 1] = scale * e2m1[two >> 4];
        }
    }
}

void weight_mxfp4_codes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o)
{
    const struct quant_tensors *t = &s->quant;
    const size_t row_bytes = (size_t)t->n_group * BLOCK_BYTES;
    const uint8_t *bytes = bytes_of(s, t->q, row_bytes) + (size_t)o * row_bytes;
    const uint8_t *stored = bytes_of(s, t->scales, t->n_group) + (size_t)o * t->n_group;
    for (uint32_t g = 0; g < t->n_group; g++)
        scales[g] = ldexpf(1, stored[g] - SCALE_ONE - 1);
    for (size_t i = 0; i < row_bytes; i++) {
        q[2 * i] = bytes[i] & 15;
        q[2 * i + 1] = bytes[i] >> 4;
    }
}
