/* SPDX-License-Identifier: Apache-2.0 */
/* Source: the state dicts of bitsandbytes' QuantState and Linear8bitLt. */
#include "engine/model/load/weight_bnb.h"
#include <math.h>
#include <stdio.h>
#include "common/hub/hub_json.h"
#include "engine/model/load/weight_parts.h"

#define BLOCK_MAX (1 << 20) /* numbers that share a scale */
#define STATE_MAX 65536u    /* bytes of a quant_state */
#define N_CODE    16u
#define N_NESTED  256u

static const char *const parts[] = {".absmax",
                                    ".quant_map",
                                    ".nested_absmax",
                                    ".nested_quant_map",
                                    ".quant_state.bitsandbytes__nf4",
                                    ".quant_state.bitsandbytes__fp4"};

bool weight_bnb_is_part(const char *name, const char *found)
{
    const size_t n = strlen(name);
    if (strncmp(name, found, n) != 0)
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(found + n, parts[i]) == 0)
            return true;
    return false;
}

/* The tensor whose name is the matrix's with `end` behind it. */
static const struct tensor *beside(const struct weight_finder *f, const char *name, const char *end)
{
    char whole[ARCH_NAME_MAX + 64];
    snprintf(whole, sizeof whole, "%s%s", name, end);
    return tensor_find(f->files, whole);
}

/* n floats. */
static enum q_code check_floats(const struct tensor *t, const char *name, const char *end,
                                uint64_t n, struct q_err *e)
{
    if (!t)
        return q_fail(e, Q_NOT_FOUND, "tensor %s%s is missing beside a matrix of bitsandbytes",
                      name, end);
    if (t->dtype != DT_F32 || t->n_bytes != n * sizeof(float))
        return q_fail(e, Q_MISMATCH, "%s: tensor %s is %llu numbers of %s, expected %llu of F32",
                      weight_part_file(t), t->name,
                      (unsigned long long)(t->n_bytes * 8 / dtype_bits(t->dtype)),
                      dtype_name(t->dtype), (unsigned long long)n);
    return weight_part_check_finite(t, e);
}

/* ---- quant_state ---- */

struct state {
    uint64_t shape[2];
    int64_t block, nested_block;
    double offset;
};

static enum q_code read_state(struct state *out, const struct hub_json_at *at, struct q_err *e)
{
    const json_t *shape = hub_json_find(at, "shape");
    const struct hub_json_range blocks = {1, BLOCK_MAX};
    enum q_code rc;
    for (size_t i = 0; i < 2; i++) {
        const json_int_t n = json_integer_value(json_array_get(shape, i));
        out->shape[i] = n > 0 ? (uint64_t)n : 0;
    }
    if (json_array_size(shape) != 2 || !out->shape[0] || !out->shape[1])
        return q_fail(e, Q_CORRUPT, "%s: shape is no list of two sizes", at->path);
    if ((rc = hub_json_int(&out->block, at, "blocksize", blocks, e)) ||
        (rc = hub_json_int(&out->nested_block, at, "nested_blocksize", blocks, e)))
        return rc;
    if (!out->block)
        return q_fail(e, Q_CORRUPT, "%s: blocksize is missing", at->path);
    return hub_json_number(&out->offset, at, "nested_offset", (struct hub_json_range){-1e30, 1e30},
                           e);
}

static enum q_code load_state(struct state *out, const struct weight_finder *f, const char *name,
                              struct q_err *e)
{
    const struct tensor *t = beside(f, name, parts[4]);
    char what[ARCH_NAME_MAX + 128];
    json_t *json = NULL;
    t = t ? t : beside(f, name, parts[5]);
    if (!t)
        return q_fail(e, Q_NOT_FOUND,
                      "tensor %s%s (or fp4) is missing beside a matrix of bitsandbytes; other "
                      "quant_types than nf4 and fp4 are not supported",
                      name, parts[4]);
    if (t->dtype != DT_U8 || t->n_bytes > STATE_MAX)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s is %llu bytes of %s, expected at most %u of U8",
                      weight_part_file(t), t->name, (unsigned long long)t->n_bytes,
                      dtype_name(t->dtype), STATE_MAX);
    snprintf(what, sizeof what, "%s: tensor %s", weight_part_file(t), t->name);
    enum q_code rc = hub_json_parse(&json, t->data, t->n_bytes, what, e);
    const struct hub_json_at at = {json, what};
    *out = (struct state){.nested_block = N_NESTED};
    if (!rc)
        rc = read_state(out, &at, e);
    json_decref(json);
    return rc;
}

/* ---- 4 bits ---- */

static float scale_of(const struct quant_tensors *q, size_t block)
{
    if (!q->nested.codes)
        return weight_part_float(q->scales, block);
    const uint8_t code = ((const uint8_t *)q->scales->data)[block];
    return weight_part_float(q->nested.codes, code) *
               weight_part_float(q->nested.scales, block / q->nested.group) +
           q->nested.offset;
}

/* Scales of scales. */
static enum q_code find_nested(struct quant_tensors *q, const struct weight_finder *f,
                               const char *name, const struct state *state, struct q_err *e)
{
    const uint64_t n = q->scales->n_bytes, block = (uint64_t)state->nested_block;
    enum q_code rc;
    q->nested.scales = beside(f, name, parts[2]);
    q->nested.codes = beside(f, name, parts[3]);
    q->nested.group = (uint32_t)block;
    q->nested.offset = (float)state->offset;
    if ((rc = check_floats(q->nested.scales, name, parts[2], (n + block - 1) / block, e)))
        return rc;
    if ((rc = check_floats(q->nested.codes, name, parts[3], N_NESTED, e)))
        return rc;
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(scale_of(q, i)))
            return q_fail(e, Q_CORRUPT, "%s: tensor %s: scale %llu is not finite",
                          weight_part_file(q->scales), q->scales->name, (unsigned long long)i);
    return Q_OK;
}

static enum q_code find_scales(struct quant_tensors *q, const struct weight_finder *f,
                               const char *name, const struct state *state, struct q_err *e)
{
    const uint64_t n = state->shape[0] * state->shape[1], block = (uint64_t)state->block;
    const uint64_t n_block = (n + block - 1) / block;
    enum q_code rc = check_floats(q->codes, name, parts[1], N_CODE, e);
    if (rc)
        return rc;
    if (q->scales->dtype != DT_U8)
        return check_floats(q->scales, name, parts[0], n_block, e);
    if (q->scales->n_bytes != n_block)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has %llu scales, expected %llu",
                      weight_part_file(q->scales), q->scales->name,
                      (unsigned long long)q->scales->n_bytes, (unsigned long long)n_block);
    return find_nested(q, f, name, state, e);
}

enum q_code weight_bnb4_find(struct weight_source *s, const struct weight_finder *f,
                             const char *name, struct q_err *e)
{
    struct quant_tensors q = {.method = QUANT_BNB4, .bits = 4, .is_made = true};
    struct state state;
    enum q_code rc;
    q.q = tensor_find(f->files, name);
    q.scales = beside(f, name, parts[0]);
    q.codes = beside(f, name, parts[1]);
    if (!q.q || (!q.scales && q.q->dtype != DT_U8))
        return Q_OK; /* one that was left as it is */
    if (!q.scales)
        return q_fail(e, Q_NOT_FOUND, "tensor %s%s is missing beside a matrix of bitsandbytes",
                      name, parts[0]);
    if ((rc = load_state(&state, f, name, e)))
        return rc;
    if (state.shape[0] != s->rows || state.shape[1] != s->cols)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has shape [%llu, %llu], expected [%u, %u]",
                      weight_part_file(q.q), name, (unsigned long long)state.shape[0],
                      (unsigned long long)state.shape[1], s->rows, s->cols);
    if (q.q->n_bytes != ((uint64_t)s->rows * s->cols + 1) / 2)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has %llu bytes, expected half of %u x %u",
                      weight_part_file(q.q), name, (unsigned long long)q.q->n_bytes, s->rows,
                      s->cols);
    if ((rc = find_scales(&q, f, name, &state, e)))
        return rc;
    q.group = (uint32_t)state.block;
    q.n_group = (s->cols + q.group - 1) / q.group;
    s->quant = q;
    s->dtype = DT_F32;
    return Q_OK;
}

void weight_bnb4_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const uint8_t *bytes = q->q->data;
    float codes[N_CODE];
    const size_t first = (size_t)o * s->cols, end = first + (size_t)n * s->cols;
    for (uint32_t c = 0; c < N_CODE; c++)
        codes[c] = weight_part_float(q->codes, c);
    for (size_t i = first; i < end;) {
        const float scale = scale_of(q, i / q->group);
        const size_t to = (i / q->group + 1) * q->group;
        for (; i < to && i < end; i++)
            out[i - first] = scale * codes[i % 2 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4];
    }
}

void weight_bnb4_codes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o)
{
    const struct quant_tensors *t = &s->quant;
    const uint8_t *bytes = t->q->data;
    const size_t first = (size_t)o * s->cols;
    for (uint32_t g = 0; g < t->n_group; g++)
        scales[g] = scale_of(t, first / t->group + g);
    for (size_t i = 0; i < s->cols; i++) {
        const size_t at = first + i;
        q[i] = at % 2 ? bytes[at / 2] & 15 : bytes[at / 2] >> 4;
    }
}

bool weight_bnb4_has_codes(const struct weight_source *s, enum kern_codes kind)
{
    bool same = true;
    for (uint32_t c = 0; c < N_CODE; c++)
        same = same && weight_part_float(s->quant.codes, c) == kern_codes_value(kind, (uint8_t)c);
    return same;
}

/* ---- 8 bits ---- */

enum q_code weight_bnb8_find(struct weight_source *s, const struct weight_finder *f,
                             const char *name, struct q_err *e)
{
    struct quant_tensors q = {.method = QUANT_BNB8, .bits = 8, .n_group = 1, .row_block = 1};
    const struct part_wanted w = {name, ".weight", s->rows, s->cols, PART_I8};
    const struct part_wanted c = {name, ".SCB", s->rows, 0, PART_SCALE};
    const struct tensor *format = weight_part(f, name, ".weight_format");
    enum q_code rc;
    q.q = tensor_find(f->files, name);
    q.scales = weight_part(f, name, ".SCB");
    q.group = s->cols;
    if (!q.q || q.q->dtype != DT_I8)
        return Q_OK; /* one that was left as it is */
    if ((rc = weight_part_check(q.q, &w, e)) || (rc = weight_part_check(q.scales, &c, e)) ||
        (rc = weight_part_check_finite(q.scales, e)))
        return rc;
    if (format && (format->n_bytes != 1 || *(const uint8_t *)format->data != 0))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: tensor %s is not 0: rows that a GPU's kernels have in another order are "
                      "not supported; use the original model with --quantization int8",
                      weight_part_file(format), format->name);
    s->quant = q;
    s->dtype = DT_F32;
    return Q_OK;
}
