/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_quant.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/load/weight_fp8.h"
#include "engine/model/load/weight_gguf.h"
#include "engine/model/load/weight_mxfp4.h"

#define PATH_SHOWN 60 /* bytes of a path's end that a message has room for */
#define GROUPS_MAX (KERN_INT8_IN_MAX / KERN_INT4_GROUP_MIN) /* of a matrix that stays 4-bit */

/* What stands for ".weight" in the names of the parts. */
static const char *const suffixes[] = {
    ".qweight",       ".qzeros",       ".scales",           ".g_idx",
    ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_zero_point",
    ".weight_shape",  ".weight_g_idx", ".input_scale"};

/* Which integer of an int32 is output j of awq's eight. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static size_t base_length(const char *name)
{
    const size_t n = strlen(name), end = strlen(".weight");
    return n > end && strcmp(name + n - end, ".weight") == 0 ? n - end : 0;
}

bool weight_quant_is_part(const char *name, const char *found)
{
    const size_t n = base_length(name);
    if (weight_mxfp4_is_part(name, found))
        return true;
    if (n == 0 || strncmp(name, found, n) != 0)
        return false;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcmp(found + n, suffixes[i]) == 0)
            return true;
    return false;
}

static const struct tensor *part(const struct weight_finder *f, const char *name,
                                 const char *suffix)
{
    char whole[ARCH_NAME_MAX + 32];
    snprintf(whole, sizeof whole, "%.*s%s", (int)base_length(name), name, suffix);
    return tensor_find(f->files, whole);
}

struct wanted {
    const char *name, *suffix; /* of the matrix; of the part */
    uint64_t rows, cols;       /* cols 0: a vector */
    bool is_scale;             /* a float instead of an int32 */
    bool is_int8;
};

static enum q_code check_part(const struct tensor *t, const struct wanted *w, struct q_err *e)
{
    const size_t n = t ? strlen(t->file) : 0;
    const char *file = n > PATH_SHOWN ? t->file + n - PATH_SHOWN : t ? t->file : "";
    if (!t)
        return q_fail(e, Q_NOT_FOUND,
                      "tensor %.*s%s is missing beside the others of a quantized matrix",
                      (int)base_length(w->name), w->name, w->suffix);
    bool right = w->is_scale  ? t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16
                 : w->is_int8 ? t->dtype == DT_I8
                              : t->dtype == DT_I32;
    if (!right)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has dtype %s, expected %s", file, t->name,
                      dtype_name(t->dtype),
                      w->is_scale  ? "F32, F16 or BF16"
                      : w->is_int8 ? "I8"
                                   : "I32");
    if (t->n_dim == (w->cols ? 2u : 1u) && t->shape[0] == w->rows &&
        (!w->cols || t->shape[1] == w->cols))
        return Q_OK;
    return q_fail(e, Q_MISMATCH, "%s: tensor %s has shape [%llu%s%.0llu], expected [%llu%s%.0llu]",
                  file, t->name, (unsigned long long)t->shape[0], t->n_dim > 1 ? ", " : "",
                  t->n_dim > 1 ? (unsigned long long)t->shape[1] : 0, (unsigned long long)w->rows,
                  w->cols ? ", " : "", (unsigned long long)w->cols);
}

static int32_t load_i32(const struct tensor *t, size_t i)
{
    int32_t v;
    memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
    return v;
}

static float load_scale(const struct tensor *t, size_t i)
{
    float v;
    uint16_t h;
    if (t->dtype == DT_F32) {
        memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
        return v;
    }
    memcpy(&h, (const char *)t->data + i * sizeof h, sizeof h);
    return t->dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Every scale must be finite: what is computed with it is. */
static enum q_code check_scales(const struct tensor *t, struct q_err *e)
{
    const size_t n = t->n_bytes / (dtype_bits(t->dtype) / 8);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(load_scale(t, i)))
            return q_fail(e, Q_CORRUPT, "%s: tensor %s: scale %zu is not finite", t->file, t->name,
                          i);
    return Q_OK;
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
        int32_t g = load_i32(q->order, k);
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

/* Shapes of the parts by the table of the header. */
static enum q_code check_parts(const struct weight_source *s, const char *name, struct q_err *e)
{
    const struct quant_tensors *q = &s->quant;
    const uint64_t v = 32 / q->bits, n_out = s->rows, n_in = s->cols;
    struct wanted w = {.name = name, .suffix = ".qweight"};
    struct wanted z = {.name = name, .suffix = ".qzeros", .rows = q->n_group, .cols = n_out / v};
    struct wanted c = {
        .name = name,
        .suffix = ".scales",
        .rows = q->n_group,
        .cols = n_out,
        .is_scale = true,
    };
    struct wanted g = {.name = name, .suffix = ".g_idx", .rows = n_in};
    w.rows = q->method == QUANT_AWQ ? n_in : n_in / v;
    w.cols = q->method == QUANT_AWQ ? n_out / v : n_out;
    if (q->method == QUANT_PACKED || q->method == QUANT_INT8) {
        w = (struct wanted){name,  q->method == QUANT_INT8 ? ".weight" : ".weight_packed",
                            n_out, q->method == QUANT_INT8 ? n_in : n_in / v,
                            false, q->method == QUANT_INT8};
        c = (struct wanted){name, ".weight_scale", n_out, q->n_group, true, false};
        z = (struct wanted){name, ".weight_zero_point", n_out / v, q->n_group, false, false};
        g.suffix = ".weight_g_idx";
    }
    enum q_code rc;
    if ((rc = check_part(q->q, &w, e)) || (rc = check_part(q->scales, &c, e)) ||
        (q->needs_zeros && (rc = check_part(q->zeros, &z, e))) ||
        (q->order && (rc = check_part(q->order, &g, e))))
        return rc;
    return check_scales(q->scales, e);
}

enum q_code weight_quant_find(struct weight_source *s, const struct weight_finder *f,
                              const char *name, struct q_err *e)
{
    const struct quant_config *c = &f->config->quant;
    struct quant_tensors q = {.method = c->method, .bits = c->bits};
    const bool old = c->method == QUANT_GPTQ || c->method == QUANT_AWQ;
    s->stored_rows = s->rows;
    if (c->method == QUANT_MXFP4)
        return weight_mxfp4_find(s, f, name, e);
    if (!c->method || c->method == QUANT_GGUF || base_length(name) == 0 || s->cols == 1)
        return Q_OK; /* the tensors of a GGUF file say themselves what they are */
    if (c->method == QUANT_FP8)
        return weight_fp8_find(s, f, name, e);
    q.q = part(f, name,
               old                         ? ".qweight"
               : c->method == QUANT_PACKED ? ".weight_packed"
                                           : ".weight");
    if (!q.q || (c->method == QUANT_INT8 && q.q->dtype != DT_I8))
        return Q_OK; /* one that was left as it is */
    q.scales = part(f, name, old ? ".scales" : ".weight_scale");
    q.needs_zeros = old || (c->method == QUANT_PACKED && !c->symmetric);
    q.zeros = q.needs_zeros ? part(f, name, old ? ".qzeros" : ".weight_zero_point") : NULL;
    q.order = c->method == QUANT_GPTQ     ? part(f, name, ".g_idx")
              : c->method == QUANT_PACKED ? part(f, name, ".weight_g_idx")
                                          : NULL;
    q.zero_offset = c->method == QUANT_GPTQ && c->zeros_less_one;
    q.group = c->group_size && c->group_size < s->cols ? c->group_size : s->cols;
    q.n_group = (s->cols + q.group - 1) / q.group;
    if (s->cols % (32 / q.bits) || s->rows % (32 / q.bits))
        return q_fail(e, Q_MISMATCH,
                      "tensor %s: quantized weights of shape [%u, %u] with %u bits are not "
                      "supported, both must be multiples of %u",
                      q.q->name, s->rows, s->cols, q.bits, 32 / q.bits);
    s->quant = q;
    s->dtype = q.scales ? q.scales->dtype : DT_F16;
    enum q_code rc = check_parts(s, name, e);
    return rc ? rc : check_order(&s->quant, s->cols, e);
}

uint32_t weight_quant_group(const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    if (!q->q || weight_quant_is_made(s) || q->bits != 4 || (q->order && !q->is_even) ||
        s->cols % q->group)
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
        order[next[load_i32(q->order, k)]++] = k;
}

bool weight_quant_is_made(const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    return q->q && (q->method == QUANT_MXFP4 || (q->method == QUANT_GGUF && q->bits != 4));
}

bool weight_quant_is_int8(const struct weight_source *s)
{
    return s->quant.q && s->quant.method == QUANT_INT8;
}

static float scale_of(const struct weight_source *s, uint32_t o, uint32_t g)
{
    const struct quant_tensors *q = &s->quant;
    if (q->method == QUANT_GGUF)
        return f16_to_f32(weight_gguf_scale(s, o, g));
    const bool by_output = q->method == QUANT_PACKED || q->method == QUANT_INT8;
    return load_scale(q->scales,
                      by_output ? (size_t)o * q->n_group + g : (size_t)g * s->stored_rows + o);
}

static uint32_t zero_of(const struct weight_source *s, uint32_t o, uint32_t g)
{
    const struct quant_tensors *q = &s->quant;
    const uint32_t v = 32 / q->bits, mask = (1u << q->bits) - 1;
    if (!q->zeros)
        return q->method == QUANT_INT8 ? 128 : 1u << (q->bits - 1);
    const uint32_t place = q->method == QUANT_AWQ ? awq_place[o % 8] : o % v;
    const size_t at = q->method == QUANT_PACKED ? (size_t)(o / v) * q->n_group + g
                                                : ((size_t)g * s->stored_rows + o) / v;
    return ((uint32_t)load_i32(q->zeros, at) >> (place * q->bits) & mask) + q->zero_offset;
}

/* q[o,k] of outputs o … o + n - 1, n at most a panel, as [n, n_in]. */
static void integers(uint8_t *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const uint32_t v = 32 / q->bits, mask = (1u << q->bits) - 1, n_in = s->cols;
    const uint32_t step = q->method == QUANT_AWQ || q->method == QUANT_INT8 ? 1 : v;
    const uint8_t *bytes = q->q->data;
    if (q->method == QUANT_GGUF) {
        weight_gguf_integers(out, s, o, n);
        return;
    }
    for (uint32_t k = 0; k < n_in; k += step)
        for (uint32_t i = 0; i < n; i++) {
            uint8_t *to = out + (size_t)i * n_in + k;
            const uint32_t out_of = o + i;
            if (q->method == QUANT_INT8) {
                *to = bytes[(size_t)out_of * n_in + k] ^ 128;
                continue;
            }
            if (q->method == QUANT_AWQ) {
                uint32_t all = (uint32_t)load_i32(q->q, ((size_t)k * s->stored_rows + out_of) / 8);
                *to = all >> (4 * awq_place[out_of % 8]) & 15;
                continue;
            }
            uint32_t all = (uint32_t)load_i32(q->q, q->method == QUANT_GPTQ
                                                        ? (size_t)(k / v) * s->stored_rows + out_of
                                                        : ((size_t)out_of * n_in + k) / v);
            for (uint32_t j = 0; j < v; j++)
                to[j] = (uint8_t)(all >> (j * q->bits) & mask);
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

void weight_quant_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct quant_tensors *q = &s->quant;
    const uint32_t n_in = s->cols;
    if (q->method == QUANT_FP8) {
        weight_fp8_rows(out, s, o, n);
        return;
    }
    if (q->method == QUANT_MXFP4) {
        weight_mxfp4_rows(out, s, o, n);
        return;
    }
    if (q->method == QUANT_GGUF) {
        weight_gguf_rows(out, s, o, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float *row = out + (size_t)i * n_in;
        /* the integers of a row fit in the last quarter of its floats, and are read before they are
         * written over */
        uint8_t *bytes = (uint8_t *)(void *)row + 3 * (size_t)n_in;
        integers(bytes, s, o + i, 1);
        uint32_t group = UINT32_MAX;
        float scale = 0, zero = 0;
        for (uint32_t k = 0; k < n_in; k++) {
            uint32_t g = q->order ? (uint32_t)load_i32(q->order, k) : k / q->group;
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
