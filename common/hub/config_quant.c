/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: the config.json of checkpoints made by AutoGPTQ and GPTQModel, AutoAWQ, llm-compressor,
 * AutoFP8, FBGEMM and DeepSeek. */
#include "common/hub/config_quant.h"
#include <string.h>

#define GROUP_MAX (1 << 20)

const char *quant_method_name(enum quant_method m)
{
    static const char *const names[] = {
        "", "gptq", "awq", "compressed-tensors", "compressed-tensors", "mxfp4", "fp8", "gguf"};
    return names[m];
}

/* group_size: -1 or an absent key means the whole row. */
static enum q_code load_group_size(struct quant_config *q, const struct hub_json_at *at,
                                   struct q_err *e)
{
    int64_t size = -1;
    enum q_code rc =
        hub_json_int(&size, at, "group_size", (struct hub_json_range){-1, GROUP_MAX}, e);
    if (!rc && size == 0)
        rc = q_fail(e, Q_CORRUPT, "%s: group_size is 0, expected -1 or 1 to %d", at->path,
                    GROUP_MAX);
    q->group_size = size > 0 ? (uint32_t)size : 0;
    return rc;
}

static enum q_code load_bits(struct quant_config *q, const struct hub_json_at *at, const char *key,
                             struct q_err *e)
{
    int64_t bits = 0;
    enum q_code rc = hub_json_int(&bits, at, key, (struct hub_json_range){1, 64}, e);
    q->bits = (uint32_t)bits;
    if (!rc && (bits == 4 || bits == 8))
        return Q_OK;
    return rc ? rc
              : q_fail(e, Q_UNSUPPORTED,
                       "%s: quantized weights with %s %d are not supported, expected 4 or 8",
                       at->path, key, (int)bits);
}

static enum q_code load_gptq(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const char *format = "gptq";
    enum q_code rc;
    q->method = QUANT_GPTQ;
    if ((rc = load_bits(q, at, "bits", e)) || (rc = load_group_size(q, at, e)) ||
        (rc = hub_json_str(&format, at, "checkpoint_format", e)))
        return rc;
    q->zeros_less_one = strcmp(format, "gptq_v2") != 0;
    if (strcmp(format, "gptq") == 0 || strcmp(format, "gptq_v2") == 0)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: gptq's checkpoint_format \"%.40s\" is not supported, expected gptq or "
                  "gptq_v2",
                  at->path, format);
}

static enum q_code load_awq(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const char *version = "gemm";
    bool zero_point = true;
    enum q_code rc;
    q->method = QUANT_AWQ;
    if ((rc = load_bits(q, at, hub_json_find(at, "bits") ? "bits" : "w_bit", e)) ||
        (rc = load_group_size(q, at, e)) || (rc = hub_json_str(&version, at, "version", e)) ||
        (rc = hub_json_bool(&zero_point, at, "zero_point", e)))
        return rc;
    if (q->bits != 4)
        return q_fail(e, Q_UNSUPPORTED, "%s: awq with bits %u is not supported, expected 4",
                      at->path, q->bits);
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: awq's version \"%.40s\" is not supported, expected gemm", at->path,
                      version);
    if (!zero_point)
        return q_fail(e, Q_UNSUPPORTED, "%s: awq without zero_point is not supported", at->path);
    return Q_OK;
}

/* The block [outputs, inputs] that shares a scale; may be absent. */
static enum q_code load_blocks(struct quant_config *q, const struct hub_json_at *at,
                               const char *key, struct q_err *e)
{
    const json_t *pair = hub_json_find(at, key);
    const json_int_t rows = json_integer_value(json_array_get(pair, 0));
    const json_int_t cols = json_integer_value(json_array_get(pair, 1));
    if (!pair)
        return Q_OK;
    if (json_array_size(pair) != 2 || rows < 1 || rows > GROUP_MAX || cols < 1 || cols > GROUP_MAX)
        return q_fail(e, Q_CORRUPT, "%s: %s is not a list of two numbers from 1 to %d", at->path,
                      key, GROUP_MAX);
    q->row_block = (uint32_t)rows;
    q->group_size = (uint32_t)cols;
    return Q_OK;
}

/* The activation scheme may be static or dynamic; the kernels quantize activations by row in both
 * cases. */
static enum q_code load_fp8(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const char *format = "e4m3";
    q->method = QUANT_FP8;
    q->bits = 8;
    q->symmetric = true;
    enum q_code rc = hub_json_str(&format, at, "fmt", e);
    if (!rc && strcmp(format, "e4m3") != 0 && strcmp(format, "float8_e4m3fn") != 0)
        rc = q_fail(e, Q_UNSUPPORTED, "%s: fp8's fmt \"%.40s\" is not supported, expected e4m3",
                    at->path, format);
    return rc ? rc : load_blocks(q, at, "weight_block_size", e);
}

/* The block size and the types are the format's; which matrices are so, the tensors say. */
static enum q_code load_mxfp4(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    (void)at;
    (void)e;
    q->method = QUANT_MXFP4;
    q->bits = 4;
    q->group_size = 32;
    q->symmetric = true;
    return Q_OK;
}

/* Of gguf_config.c: 4 bits where the most part of the file is Q4_0, whose integers stay. */
static enum q_code load_gguf(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    int64_t bits = 0;
    q->method = QUANT_GGUF;
    q->group_size = 32;
    const enum q_code rc = hub_json_int(&bits, at, "bits", (struct hub_json_range){4, 4}, e);
    q->bits = (uint32_t)bits;
    return rc;
}

/* The format float-quantized of compressed-tensors. */
static enum q_code load_float_scheme(struct quant_config *q, const struct hub_json_at *at,
                                     const char *strategy, struct q_err *e)
{
    enum q_code rc = load_bits(q, at, "num_bits", e);
    if (rc)
        return rc;
    const bool blocks = strcmp(strategy, "block") == 0;
    if (q->bits != 8 || !q->symmetric ||
        (!blocks && strcmp(strategy, "tensor") != 0 && strcmp(strategy, "channel") != 0))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: float-quantized weights with %u bits, strategy %.40s, %s are not "
                      "supported, expected 8 bits, strategy tensor, channel or block, symmetric",
                      at->path, q->bits, strategy, q->symmetric ? "symmetric" : "asymmetric");
    q->group_size = q->row_block = 0;
    if (blocks && !hub_json_find(at, "block_structure"))
        return q_fail(e, Q_CORRUPT, "%s: strategy is block, but block_structure is missing",
                      at->path);
    return blocks ? load_blocks(q, at, "block_structure", e) : Q_OK;
}

/* The weights of one of compressed-tensors' config_groups. */
static enum q_code load_scheme(struct quant_config *q, const struct hub_json_at *at,
                               struct q_err *e)
{
    const char *type = "int", *strategy = "channel";
    enum q_code rc;
    q->symmetric = true;
    if ((rc = hub_json_str(&type, at, "type", e)) ||
        (rc = hub_json_str(&strategy, at, "strategy", e)) ||
        (rc = hub_json_bool(&q->symmetric, at, "symmetric", e)))
        return rc;
    const char *wanted = q->method == QUANT_FP8 ? "float" : "int";
    if (strcmp(type, wanted) != 0)
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: compressed-tensors weights of type \"%.40s\" are not supported, expected "
            "%s",
            at->path, type, wanted);
    if (q->method == QUANT_FP8)
        return load_float_scheme(q, at, strategy, e);
    if ((rc = load_bits(q, at, "num_bits", e)) || (rc = load_group_size(q, at, e)))
        return rc;
    if (strcmp(strategy, "group") == 0 && q->group_size == 0)
        return q_fail(e, Q_CORRUPT, "%s: strategy is group, but group_size is missing", at->path);
    if (strcmp(strategy, "channel") == 0)
        q->group_size = 0;
    else if (strcmp(strategy, "group") != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: compressed-tensors strategy \"%.40s\" is not supported for weights, "
                      "expected group or channel",
                      at->path, strategy);
    return Q_OK;
}

static enum q_code load_format(struct quant_config *q, const struct hub_json_at *at,
                               struct q_err *e)
{
    const char *format = "?";
    enum q_code rc = hub_json_str(&format, at, "format", e);
    if (rc)
        return rc;
    q->method = strcmp(format, "pack-quantized") == 0    ? QUANT_PACKED
                : strcmp(format, "int-quantized") == 0   ? QUANT_INT8
                : strcmp(format, "float-quantized") == 0 ? QUANT_FP8
                                                         : QUANT_NONE;
    if (!q->method)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: compressed-tensors format \"%.40s\" is not supported, expected "
                      "pack-quantized, int-quantized or float-quantized",
                      at->path, format);
    return Q_OK;
}

static enum q_code load_compressed(struct quant_config *q, const struct hub_json_at *at,
                                   struct q_err *e)
{
    json_t *groups = json_object_get(at->object, "config_groups"), *group;
    const char *name;
    struct quant_config first = {0};
    size_t n = 0;
    enum q_code rc = load_format(q, at, e);
    if (rc)
        return rc;
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return q_fail(e, Q_CORRUPT, "%s: config_groups is %s, expected an object with one group",
                      at->path, hub_json_kind(groups));
    json_object_foreach (groups, name, group) {
        const struct hub_json_at weights = {json_object_get(group, "weights"), at->path};
        if (!json_is_object(weights.object))
            return q_fail(e, Q_UNSUPPORTED, "%s: config_groups.%.40s has no weights", at->path,
                          name);
        if ((rc = load_scheme(q, &weights, e)))
            return rc;
        if (n++ == 0)
            first = *q;
        else if (first.bits != q->bits || first.group_size != q->group_size ||
                 first.symmetric != q->symmetric || first.row_block != q->row_block)
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: config_groups with different weights are not supported, %.40s "
                          "differs from the first",
                          at->path, name);
    }
    if (q->method == QUANT_INT8 && (q->bits != 8 || q->group_size || !q->symmetric))
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: int-quantized with %u bits, group_size %u, %s is not supported, expected "
            "8 bits, strategy channel, symmetric",
            at->path, q->bits, q->group_size, q->symmetric ? "symmetric" : "asymmetric");
    return Q_OK;
}

enum q_code config_quant_load(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    static const struct {
        const char *name;
        enum q_code (*load)(struct quant_config *, const struct hub_json_at *, struct q_err *);
    } methods[] = {
        {"gptq", load_gptq},      {"awq", load_awq},     {"fp8", load_fp8},
        {"fbgemm_fp8", load_fp8}, {"mxfp4", load_mxfp4}, {"compressed-tensors", load_compressed},
        {"gguf", load_gguf},
    };
    const json_t *found = hub_json_find(at, "quantization_config");
    const char *method = NULL;
    *q = (struct quant_config){0};
    const struct hub_json_at mlx = {hub_json_find(at, "quantization"), at->path};
    if (json_is_object(mlx.object) && hub_json_find(&mlx, "group_size") &&
        !json_object_get(found, "quant_method"))
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: weights quantized by MLX (key \"quantization\") are not supported; use the "
            "original model, or a GPTQ, AWQ, fp8 or compressed-tensors checkpoint of it",
            at->path);
    if (!found)
        found = hub_json_find(at, "compression_config");
    if (!found)
        return Q_OK;
    if (!json_is_object(found))
        return q_fail(e, Q_CORRUPT, "%s: quantization_config is %s, expected an object", at->path,
                      hub_json_kind(found));
    const struct hub_json_at inside = {found, at->path};
    enum q_code rc = hub_json_str(&method, &inside, "quant_method", e);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (method && strcmp(methods[i].name, method) == 0)
            return methods[i].load(q, &inside, e);
    return q_fail(
        e, Q_UNSUPPORTED,
        "%s: quantized weights (quant_method %.40s) are not supported, expected gptq, awq, "
        "fp8, fbgemm_fp8, mxfp4 or compressed-tensors",
        at->path, method ? method : "missing");
}
