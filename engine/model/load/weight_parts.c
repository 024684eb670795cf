/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_parts.h"
#include <stdio.h>

#define PATH_SHOWN 60 /* bytes of a path's end that a message has room for */

size_t weight_part_base(const char *name)
{
    const size_t n = strlen(name), end = strlen(".weight");
    return n > end && strcmp(name + n - end, ".weight") == 0 ? n - end : 0;
}

const struct tensor *weight_part(const struct weight_finder *f, const char *name,
                                 const char *suffix)
{
    static const char of_weight[] = ".weight"; /* torchao: X._weight_qdata, X._weight_scale */
    char whole[ARCH_NAME_MAX + 64];
    const size_t n = sizeof of_weight - 1;
    snprintf(whole, sizeof whole, "%.*s%s", (int)weight_part_base(name), name, suffix);
    const struct tensor *t = tensor_find(f->files, whole);
    if (t || strncmp(suffix, of_weight, n) != 0)
        return t;
    snprintf(whole, sizeof whole, "%.*s._weight%s", (int)weight_part_base(name), name,
             suffix[n] ? suffix + n : "_qdata");
    return tensor_find(f->files, whole);
}

const char *weight_part_file(const struct tensor *t)
{
    const size_t n = strlen(t->file);
    return n > PATH_SHOWN ? t->file + n - PATH_SHOWN : t->file;
}

static bool is_scale(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* As bytes, too. */
static bool is_e8m0(enum dtype t)
{
    return t == DT_U8 || t == DT_F8_E8M0;
}

static bool has_type(const struct tensor *t, enum part_type type)
{
    switch (type) {
    case PART_I8:
        return t->dtype == DT_I8;
    case PART_U8:
        return t->dtype == DT_U8;
    case PART_E8M0:
        return is_e8m0(t->dtype);
    case PART_E4M3:
        return t->dtype == DT_F8_E4M3;
    case PART_SCALE:
        return is_scale(t->dtype);
    default:
        return t->dtype == DT_I32;
    }
}

enum q_code weight_part_check(const struct tensor *t, const struct part_wanted *w, struct q_err *e)
{
    static const char *const types[] = {"I32",     "I8",           "U8", "F32, F16 or BF16",
                                        "F8_E4M3", "U8 or F8_E8M0"};
    if (!t)
        return q_fail(e, Q_NOT_FOUND,
                      "tensor %.*s%s is missing beside the others of a quantized matrix",
                      (int)weight_part_base(w->name), w->name, w->suffix);
    const char *file = weight_part_file(t);
    if (!has_type(t, w->type))
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has dtype %s, expected %s", file, t->name,
                      dtype_name(t->dtype), types[w->type]);
    if (!w->rows && weight_part_is_one(t))
        return Q_OK;
    if (t->n_dim == (w->cols ? 2u : 1u) && t->shape[0] == w->rows &&
        (!w->cols || t->shape[1] == w->cols))
        return Q_OK;
    return q_fail(e, Q_MISMATCH, "%s: tensor %s has shape [%llu%s%.0llu], expected [%llu%s%.0llu]",
                  file, t->name, (unsigned long long)t->shape[0], t->n_dim > 1 ? ", " : "",
                  t->n_dim > 1 ? (unsigned long long)t->shape[1] : 0, (unsigned long long)w->rows,
                  w->cols ? ", " : "", (unsigned long long)w->cols);
}

bool weight_part_is_one(const struct tensor *t)
{
    return t->n_dim == 0 || t->n_bytes == dtype_bits(t->dtype) / 8;
}

float weight_part_float(const struct tensor *t, size_t i)
{
    float v;
    uint16_t h;
    if (is_e8m0(t->dtype))
        return weight_part_e8m0(((const uint8_t *)t->data)[i]);
    if (t->dtype == DT_F32) {
        memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
        return v;
    }
    memcpy(&h, (const char *)t->data + i * sizeof h, sizeof h);
    return t->dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

enum q_code weight_part_check_finite(const struct tensor *t, struct q_err *e)
{
    const size_t n = t->n_bytes / (dtype_bits(t->dtype) / 8);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(weight_part_float(t, i)))
            return q_fail(e, Q_CORRUPT, "%s: tensor %s: scale %zu is not finite",
                          weight_part_file(t), t->name, i);
    return Q_OK;
}
