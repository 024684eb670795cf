/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: the config.json of checkpoints made by AutoGPTQ and GPTQModel, AutoAWQ, AutoRound,
 * bitsandbytes, AutoFP8, FBGEMM and DeepSeek. */
#include "common/hub/config_quant.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/hub/config_quant_internal.h"

const char *quant_method_name(enum quant_method m)
{
    static const char *const names[QUANT_COUNT] = {
        [QUANT_NONE] = "",
        [QUANT_GPTQ] = "gptq",
        [QUANT_AWQ] = "awq",
        [QUANT_AWQ_ROWS] = "awq",
        [QUANT_PACKED] = "compressed-tensors",
        [QUANT_INT8] = "compressed-tensors",
        [QUANT_INTX] = "compressed-tensors",
        [QUANT_TORCHAO] = "torchao",
        [QUANT_MXFP4] = "mxfp4",
        [QUANT_FP8] = "fp8",
        [QUANT_GGUF] = "gguf",
        [QUANT_FP4] = "fp4",
        [QUANT_BNB4] = "bitsandbytes",
        [QUANT_BNB8] = "bitsandbytes",
        [QUANT_HQQ] = "hqq",
    };
    return names[m];
}

const char *quant_config_name(const struct quant_config *q)
{
    return q->is_torchao ? "torchao" : quant_method_name(q->method);
}

bool quant_config_becomes_floats(const struct quant_config *q)
{
    return q->method == QUANT_MXFP4 || q->method == QUANT_FP4 || q->method == QUANT_BNB4 ||
           q->method == QUANT_TORCHAO || q->method == QUANT_HQQ ||
           (q->method == QUANT_GGUF && q->bits != 4);
}

/* group_size, or q_group_size of AutoAWQ's own file: -1 or an absent key means the whole row. */
enum q_code config_quant_group(struct quant_config *q, const struct hub_json_at *at,
                               struct q_err *e)
{
    int64_t size = -1;
    const char *key = hub_json_find(at, "group_size") ? "group_size" : "q_group_size";
    enum q_code rc = hub_json_int(&size, at, key, (struct hub_json_range){-1, QUANT_GROUP_MAX}, e);
    if (!rc && size == 0)
        rc = q_fail(e, Q_CORRUPT, "%s: %s is 0, expected -1 or 1 to %d", at->path, key,
                    QUANT_GROUP_MAX);
    q->group_size = size > 0 ? (uint32_t)size : 0;
    return rc;
}

enum q_code config_quant_bits(struct quant_config *q, const struct hub_json_at *at,
                              const struct quant_bits *b, struct q_err *e)
{
    int64_t bits = 0;
    enum q_code rc = hub_json_int(&bits, at, b->key, (struct hub_json_range){1, 64}, e);
    q->bits = (uint32_t)bits;
    if (!rc && bits <= 8 && (b->accepted >> bits & 1))
        return Q_OK;
    return rc ? rc
              : q_fail(e, Q_UNSUPPORTED,
                       "%s: quantized weights with %s %d are not supported, expected %s", at->path,
                       b->key, (int)bits, b->text);
}

static const struct quant_bits gptq_bits = {"bits", 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8,
                                            "2, 3, 4 or 8"};

/* Matrices may differ: what is needed of each is in the shapes of its tensors. */
static void set_by_tensor(struct quant_config *q)
{
    q->by_tensor = true;
    q->bits = 4;
}

static enum q_code load_gptq(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const char *format = "gptq";
    bool is_marlin = false;
    enum q_code rc;
    q->method = QUANT_GPTQ;
    if ((rc = config_quant_bits(q, at, &gptq_bits, e)) || (rc = config_quant_group(q, at, e)) ||
        (rc = hub_json_str(&format, at, "format", e)) ||
        (rc = hub_json_str(&format, at, "checkpoint_format", e)) ||
        (rc = hub_json_bool(&is_marlin, at, "is_marlin_format", e)))
        return rc;
    format = is_marlin ? "marlin" : format;
    q->zeros_less_one = strcmp(format, "gptq_v2") != 0;
    if (json_object_size(hub_json_find(at, "dynamic")))
        set_by_tensor(q);
    if (strcmp(format, "gptq") == 0 || strcmp(format, "gptq_v2") == 0)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: gptq's checkpoint_format \"%.40s\" is not supported, expected gptq or "
                  "gptq_v2; " COULD_USE,
                  at->path, format);
}

static enum q_code load_awq(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const struct quant_bits bits = {hub_json_find(at, "bits") ? "bits" : "w_bit", 1 << 4, "4"};
    const char *version = "gemm";
    bool zero_point = true;
    enum q_code rc;
    if ((rc = config_quant_bits(q, at, &bits, e)) || (rc = config_quant_group(q, at, e)) ||
        (rc = hub_json_str(&version, at, "format", e)) ||
        (rc = hub_json_str(&version, at, "checkpoint_format", e)) ||
        (rc = hub_json_str(&version, at, "version", e)) ||
        (rc = hub_json_bool(&zero_point, at, "zero_point", e)))
        return rc;
    q->method = strcasecmp(version, "gemv") ? QUANT_AWQ : QUANT_AWQ_ROWS;
    if (q->method == QUANT_AWQ && strcasecmp(version, "gemm") != 0)
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: awq's version \"%.40s\" is not supported, expected gemm or gemv; " COULD_USE,
            at->path, version);
    if (!zero_point)
        return q_fail(e, Q_UNSUPPORTED, "%s: awq without zero_point is not supported; " COULD_USE,
                      at->path);
    return Q_OK;
}

/* The layouts are gptq's and awq's; older files name the packing "backend". */
static enum q_code load_auto_round(struct quant_config *q, const struct hub_json_at *at,
                                   struct q_err *e)
{
    const char *packing = "missing", *type = "int";
    enum q_code rc;
    if ((rc = hub_json_str(&packing, at, "backend", e)) ||
        (rc = hub_json_str(&packing, at, "packing_format", e)) ||
        (rc = hub_json_str(&type, at, "data_type", e)))
        return rc;
    const bool is_gptq = strstr(packing, "gptq"), is_awq = strstr(packing, "awq");
    if (strcmp(type, "int") != 0 || is_gptq == is_awq)
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: auto-round's packing_format \"%.40s\" with data_type \"%.40s\" is not "
            "supported, expected auto_round:auto_gptq or auto_round:auto_awq with int; " COULD_USE,
            at->path, packing, type);
    q->method = is_gptq ? QUANT_GPTQ : QUANT_AWQ;
    q->zeros_less_one = is_gptq;
    const struct quant_bits awq_bits = {"bits", 1 << 4, "4 with auto_awq"};
    if ((rc = config_quant_bits(q, at, is_gptq ? &gptq_bits : &awq_bits, e)) ||
        (rc = config_quant_group(q, at, e)))
        return rc;
    if (json_object_size(hub_json_find(at, "extra_config")))
        set_by_tensor(q);
    return Q_OK;
}

/* What a matrix has, its tensors say. */
static enum q_code load_bitsandbytes(struct quant_config *q, const struct hub_json_at *at,
                                     struct q_err *e)
{
    bool is_4 = false, is_8 = false;
    enum q_code rc;
    if ((rc = hub_json_bool(&is_4, at, "_load_in_4bit", e)) ||
        (rc = hub_json_bool(&is_8, at, "_load_in_8bit", e)) ||
        (rc = hub_json_bool(&is_4, at, "load_in_4bit", e)) ||
        (rc = hub_json_bool(&is_8, at, "load_in_8bit", e)))
        return rc;
    if (is_4 == is_8)
        return q_fail(e, Q_CORRUPT,
                      "%s: bitsandbytes with load_in_4bit %s and load_in_8bit %s, expected one of "
                      "them",
                      at->path, is_4 ? "true" : "false", is_8 ? "true" : "false");
    q->method = is_4 ? QUANT_BNB4 : QUANT_BNB8;
    q->bits = is_4 ? 4 : 8;
    q->symmetric = true;
    return Q_OK;
}

/* The block [outputs, inputs] that shares a scale: a list, or text like "128x128"; may be
 * absent. */
enum q_code config_quant_blocks(struct quant_config *q, const struct hub_json_at *at,
                                const char *key, struct q_err *e)
{
    const json_t *pair = hub_json_find(at, key);
    json_int_t rows = json_integer_value(json_array_get(pair, 0));
    json_int_t cols = json_integer_value(json_array_get(pair, 1));
    if (!pair)
        return Q_OK;
    char *end = NULL;
    if (json_is_string(pair)) {
        rows = strtol(json_string_value(pair), &end, 10);
        cols = *end == 'x' ? strtol(end + 1, &end, 10) : 0;
    }
    if ((end ? *end != '\0' : json_array_size(pair) != 2) || rows < 1 || rows > QUANT_GROUP_MAX ||
        cols < 1 || cols > QUANT_GROUP_MAX)
        return q_fail(e, Q_CORRUPT, "%s: %s is not a list of two numbers from 1 to %d", at->path,
                      key, QUANT_GROUP_MAX);
    q->row_block = (uint32_t)rows;
    q->group_size = (uint32_t)cols;
    return Q_OK;
}

/* Where the activation scheme is not dynamic, the tensors say whether inputs have a scale. */
static enum q_code load_fp8(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const char *format = "e4m3", *scheme = "static";
    q->method = QUANT_FP8;
    q->bits = 8;
    q->symmetric = true;
    enum q_code rc = hub_json_str(&format, at, "fmt", e);
    if (!rc && strcmp(format, "e4m3") != 0 && strcmp(format, "float8_e4m3fn") != 0)
        rc = q_fail(e, Q_UNSUPPORTED, "%s: fp8's fmt \"%.40s\" is not supported, expected e4m3",
                    at->path, format);
    if (rc || (rc = hub_json_str(&scheme, at, "activation_scheme", e)))
        return rc;
    q->dynamic_inputs = strcmp(scheme, "dynamic") == 0;
    return config_quant_blocks(q, at, "weight_block_size", e);
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

/* In any letters, and compressed_tensors for compressed-tensors, as vLLM has them. */
static bool is_method(const char *given, const char *name)
{
    while (*given && *name &&
           (tolower((unsigned char)*given) == *name ||
            (strchr("-_", *given) && strchr("-_", *name)))) {
        given++;
        name++;
    }
    return *given == *name;
}

/* quant_method; ModelOpt's producer stands for it where it is missing. */
static enum q_code read_method(const char **out, const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_at producer = {hub_json_find(at, "producer"), at->path};
    const char *name = NULL;
    enum q_code rc = hub_json_str(out, at, "quant_method", e);
    if (rc || *out || !json_is_object(producer.object))
        return rc;
    rc = hub_json_str(&name, &producer, "name", e);
    if (!rc && name && !strcmp(name, "modelopt"))
        *out = name;
    return rc;
}

enum q_code config_quant_load(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    static const struct {
        const char *name;
        enum q_code (*load)(struct quant_config *, const struct hub_json_at *, struct q_err *);
    } methods[] = {
        {"gptq", load_gptq},
        {"awq", load_awq},
        {"auto-round", load_auto_round},
        {"intel/auto-round", load_auto_round},
        {"bitsandbytes", load_bitsandbytes},
        {"fp8", load_fp8},
        {"fbgemm_fp8", load_fp8},
        {"mxfp4", load_mxfp4},
        {"torchao", config_quant_torchao},
        {"hqq", config_quant_hqq},
        {"compressed-tensors", config_quant_compressed},
        {"modelopt", config_quant_modelopt},
        {"modelopt_fp4", config_quant_modelopt},
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
            "%s: weights quantized by MLX (key \"quantization\") are not supported; " COULD_USE,
            at->path);
    if (!found)
        found = hub_json_find(at, "compression_config");
    if (!found)
        return Q_OK;
    if (!json_is_object(found))
        return q_fail(e, Q_CORRUPT, "%s: quantization_config is %s, expected an object", at->path,
                      hub_json_kind(found));
    const struct hub_json_at inside = {found, at->path};
    enum q_code rc = read_method(&method, &inside, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (method && is_method(method, methods[i].name))
            return methods[i].load(q, &inside, e);
    return q_fail(
        e, Q_UNSUPPORTED,
        "%s: quantized weights (quant_method %.40s) are not supported, expected gptq, awq, "
        "auto-round, bitsandbytes, fp8, fbgemm_fp8, mxfp4, modelopt, torchao, hqq or "
        "compressed-tensors; " COULD_USE,
        at->path, method ? method : "missing");
}
