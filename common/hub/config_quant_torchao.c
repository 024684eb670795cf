/* SPDX-License-Identifier: Apache-2.0 */
/* torchao: quantization_config.quant_type is a config of its, {"default": {"_type": …, "_version":
 * 2, "_data": {…}}}, or one for each module by name (FqnToConfig). Which modules these are need not
 * be read: a matrix's tensors say what it is, but for the bits of integers that are stored in int8.
 * Files of version 1 are pickles of classes. Source: the config.json that transformers 5.24 and
 * torchao 0.18 write. */
#include <string.h>
#include <strings.h>
#include "common/hub/config_quant_internal.h"

#define MODULES_MAX 65536u /* configs by name */

struct seen { /* what the configs are of */
    bool int8, fp8, intx, int4;
    uint8_t group_bits, whole_bits;
};

/* The number, or the text, of a key of "_data", which an enumerator or a type has inside one more
 * "_data". "" where there is none. */
static const char *text_of(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(json_object_get(config, "_data"), key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "_data") : v);
    return text ? text : "";
}

/* "int4": 4; 0: no integers of 1 to 8 bits. */
static uint8_t bits_of(const char *dtype)
{
    const bool is_int = strncmp(dtype, "int", 3) == 0 && dtype[3] && !dtype[4];
    return is_int && dtype[3] >= '1' && dtype[3] <= '8' ? (uint8_t)(dtype[3] - '0') : 0;
}

static enum q_code add_int8(struct seen *to, const json_t *config, const struct hub_json_at *at,
                            struct q_err *e)
{
    (void)config;
    (void)at;
    (void)e;
    to->int8 = true;
    if (to->whole_bits < 8)
        to->whole_bits = 8;
    return Q_OK;
}

static enum q_code add_fp8(struct seen *to, const json_t *config, const struct hub_json_at *at,
                           struct q_err *e)
{
    const char *dtype = text_of(config, "weight_dtype");
    const char *packing = text_of(config, "packing_format");
    to->fp8 = true;
    if ((*dtype && strcmp(dtype, "float8_e4m3fn") != 0) ||
        (*packing && strcasecmp(packing, "plain") != 0))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: torchao's float8 with weight_dtype \"%.40s\" and packing_format "
                      "\"%.40s\" is not supported, expected float8_e4m3fn and plain; " COULD_USE,
                      at->path, dtype, packing);
    return Q_OK;
}

/* Its packing may be that of one device. ntile 16: of ROCm, whose order of inputs is another. */
static enum q_code add_int4(struct seen *to, const json_t *config, const struct hub_json_at *at,
                            struct q_err *e)
{
    const char *packing = text_of(config, "int4_packing_format");
    const json_t *ntile =
        json_object_get(json_object_get(config, "_data"), "int4_tile_packed_ntile");
    const bool tiles = strcasecmp(packing, "tile_packed_to_4d") == 0;
    to->int4 = true;
    if ((*packing && !tiles && strcasecmp(packing, "plain") != 0) ||
        (tiles && ntile && json_integer_value(ntile) != 8))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: torchao's int4_packing_format \"%.40s\"%s is not supported, expected "
                      "plain or tile_packed_to_4d; " COULD_USE,
                      at->path, packing, tiles ? " with an int4_tile_packed_ntile of ROCm" : "");
    return Q_OK;
}

/* weight_dtype and, of activations in int8, weight_granularity. */
static enum q_code add_intx(struct seen *to, const json_t *config, const struct hub_json_at *at,
                            struct q_err *e)
{
    const json_t *data = json_object_get(config, "_data");
    const json_t *granularity = json_object_get(data, "weight_granularity");
    const char *dtype = text_of(config, "weight_dtype");
    const char *packing = text_of(config, "intx_packing_format");
    const uint8_t bits = bits_of(dtype);
    if (!granularity)
        granularity = json_object_get(data, "granularity");
    const char *kind = json_string_value(json_object_get(granularity, "_type"));
    uint8_t *most = kind && strcmp(kind, "PerGroup") == 0 ? &to->group_bits : &to->whole_bits;
    to->intx = true;
    if (!bits || (*packing && strcasecmp(packing, "unpacked_to_int8") != 0))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: torchao's weight_dtype \"%.40s\" with intx_packing_format \"%.40s\" is "
                      "not supported, expected int1 to int8 and unpacked_to_int8; " COULD_USE,
                      at->path, dtype, packing);
    if (*most < bits)
        *most = bits;
    return Q_OK;
}

static enum q_code add_config(struct seen *to, const json_t *config, const struct hub_json_at *at,
                              struct q_err *e)
{
    static const struct {
        const char *name;
        json_int_t version;
        enum q_code (*add)(struct seen *, const json_t *, const struct hub_json_at *,
                           struct q_err *);
    } types[] = {
        {"Int8WeightOnlyConfig", 2, add_int8},
        {"Int8DynamicActivationInt8WeightConfig", 2, add_int8},
        {"Int8StaticActivationInt8WeightConfig", 1, add_int8},
        {"Float8WeightOnlyConfig", 2, add_fp8},
        {"Float8DynamicActivationFloat8WeightConfig", 2, add_fp8},
        {"Int4WeightOnlyConfig", 2, add_int4},
        {"Float8DynamicActivationInt4WeightConfig", 1, add_int4},
        {"IntxWeightOnlyConfig", 2, add_intx},
        {"Int8DynamicActivationIntxWeightConfig", 2, add_intx},
    };
    const char *name = json_string_value(json_object_get(config, "_type"));
    const json_int_t version = json_integer_value(json_object_get(config, "_version"));
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0 && types[i].version == version)
            return types[i].add(to, config, at, e);
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: torchao's quant_type %.60s of version %d is not supported, expected version "
                  "2 of Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig, "
                  "Float8WeightOnlyConfig, Float8DynamicActivationFloat8WeightConfig, "
                  "Int4WeightOnlyConfig, IntxWeightOnlyConfig or "
                  "Int8DynamicActivationIntxWeightConfig, or a FqnToConfig of these; " COULD_USE,
                  at->path, name ? name : "missing", (int)version);
}

/* {"_data": {"fqn_to_config": {NAME: config or null}}}; older files: module_fqn_to_config. */
static enum q_code add_modules(struct seen *to, const json_t *config, const struct hub_json_at *at,
                               struct q_err *e)
{
    const json_t *data = json_object_get(config, "_data");
    const json_t *modules = json_object_get(data, "fqn_to_config");
    const char *key;
    json_t *one;
    if (!json_object_size(modules))
        modules = json_object_get(data, "module_fqn_to_config");
    if (!json_object_size(modules) || json_object_size(modules) > MODULES_MAX)
        return q_fail(e, Q_CORRUPT,
                      "%s: torchao's fqn_to_config is no object of 1 to %u configs by name",
                      at->path, MODULES_MAX);
    json_object_foreach ((json_t *)(uintptr_t)modules, key, one) {
        enum q_code rc = json_is_null(one) ? Q_OK : add_config(to, one, at, e);
        if (rc)
            return rc;
    }
    return Q_OK;
}

/* Integers that the kernels have stay integers; where there are int4 with zeros that are floats, or
 * float8 beside integers, all are made floats, or keep their codes. */
enum q_code config_quant_torchao(struct quant_config *q, const struct hub_json_at *at,
                                 struct q_err *e)
{
    const json_t *type = hub_json_find(at, "quant_type");
    const json_t *config = json_object_get(type, "default");
    const char *name = json_string_value(json_object_get(config, "_type"));
    struct seen all = {0};
    if (json_is_string(type))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: torchao's quant_type %.60s is a name of older versions, whose weights "
                      "are pickles of classes; " COULD_USE,
                      at->path, json_string_value(type));
    const bool by_name =
        name && (strcmp(name, "FqnToConfig") == 0 || strcmp(name, "ModuleFqnToConfig") == 0);
    enum q_code rc = by_name ? add_modules(&all, config, at, e) : add_config(&all, config, at, e);
    if (rc)
        return rc;
    const bool integers = all.int8 || all.intx;
    if (!integers && !all.fp8 && !all.int4)
        return q_fail(e, Q_CORRUPT, "%s: torchao's fqn_to_config has no config", at->path);
    q->is_torchao = q->symmetric = true;
    q->group_bits = all.group_bits;
    q->whole_bits = all.whole_bits;
    q->method = all.int4 || (all.fp8 && integers) ? QUANT_TORCHAO
                : all.fp8                         ? QUANT_FP8
                : all.intx                        ? QUANT_INTX
                                                  : QUANT_INT8;
    const bool small = (all.group_bits && all.group_bits <= 4) ||
                       (all.whole_bits && all.whole_bits <= 4) || all.int4;
    q->bits = small ? 4 : 8;
    return Q_OK;
}
