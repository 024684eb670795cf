/* SPDX-License-Identifier: Apache-2.0 */
/* compressed-tensors (llm-compressor) and modelopt (NVIDIA's Model Optimizer). Which matrices a
 * group is of (targets, ignore) need not be read: a matrix that was left as it is has its plain
 * tensor, and the others' tensors say what they are. Groups that differ are accepted where this
 * tells them apart. Sources: the config.json of checkpoints made by both. */
#include <string.h>
#include "common/hub/config_quant_internal.h"

static const struct quant_bits int_bits = {"num_bits", (1 << 9) - (1 << 2), "2 to 8"};

/* ---- compressed-tensors ---- */

/* The format float-quantized. */
static enum q_code load_float_scheme(struct quant_config *q, const struct hub_json_at *at,
                                     const char *strategy, struct q_err *e)
{
    enum q_code rc = config_quant_bits(q, at, &int_bits, e);
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
    return blocks ? config_quant_blocks(q, at, "block_structure", e) : Q_OK;
}

/* Integers: of a group of inputs, of an output, or with one scale for all. */
static enum q_code load_int_scheme(struct quant_config *q, const struct hub_json_at *at,
                                   const char *strategy, struct q_err *e)
{
    enum q_code rc;
    if ((rc = config_quant_bits(q, at, &int_bits, e)) || (rc = config_quant_group(q, at, e)))
        return rc;
    const bool of_group = strcmp(strategy, "group") == 0;
    const bool of_tensor = strcmp(strategy, "tensor") == 0 && q->method == QUANT_INT8;
    if (of_group && q->group_size == 0)
        return q_fail(e, Q_CORRUPT, "%s: strategy is group, but group_size is missing", at->path);
    if (!of_group && !of_tensor && strcmp(strategy, "channel") != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: compressed-tensors strategy \"%.40s\" is not supported for weights, "
                      "expected group or channel",
                      at->path, strategy);
    if (!of_group)
        q->group_size = 0;
    if (of_tensor && !q->symmetric)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: int-quantized with strategy tensor, asymmetric is not supported, "
                      "expected strategy group or channel, or symmetric",
                      at->path);
    if (q->method == QUANT_INT8)
        *(of_group ? &q->group_bits : &q->whole_bits) = (uint8_t)q->bits;
    return Q_OK;
}

/* The weights of one group; q->method is that of its format. */
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
    const bool is_float = q->method == QUANT_FP8 || q->method == QUANT_FP4;
    if (strcmp(type, is_float ? "float" : "int") != 0)
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: compressed-tensors weights of type \"%.40s\" are not supported, expected "
            "%s",
            at->path, type, is_float ? "float" : "int");
    if (q->method == QUANT_FP4 && !q->symmetric)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: compressed-tensors weights of 4-bit floats with zero points are not "
                      "supported, expected symmetric ones",
                      at->path);
    if (q->method == QUANT_FP4) { /* the tensors say the rest */
        q->bits = 4;
        return Q_OK;
    }
    return is_float ? load_float_scheme(q, at, strategy, e) : load_int_scheme(q, at, strategy, e);
}

/* of: "config_groups.group_0", or ""; type: of the weights. */
static enum q_code use_format(struct quant_config *q, const char *format, const char *type,
                              const struct hub_json_at *at, struct q_err *e)
{
    static const struct {
        const char *name;
        enum quant_method method;
    } formats[] = {
        {"pack-quantized", QUANT_PACKED},    {"int-quantized", QUANT_INT8},
        {"float-quantized", QUANT_FP8},      {"nvfp4-pack-quantized", QUANT_FP4},
        {"mxfp4-pack-quantized", QUANT_FP4}, {"mxfp8-quantized", QUANT_FP4},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(format, formats[i].name) == 0)
            q->method = formats[i].method;
    if (strcmp(format, "naive-quantized") == 0)
        q->method = strcmp(type, "float") == 0 ? QUANT_FP8 : QUANT_INT8;
    if (q->method)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: compressed-tensors format \"%.40s\" is not supported, expected "
                  "pack-quantized, int-quantized, float-quantized, naive-quantized, "
                  "nvfp4-pack-quantized, mxfp4-pack-quantized or mxfp8-quantized",
                  at->path, format);
}

static enum q_code load_group(struct quant_config *q, const json_t *group, const char *name,
                              const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_at weights = {json_object_get(group, "weights"), at->path};
    const struct hub_json_at of_group = {group, at->path};
    const char *format = "?", *type = "int";
    enum q_code rc;
    *q = (struct quant_config){0};
    if (!json_is_object(weights.object))
        return q_fail(e, Q_UNSUPPORTED, "%s: config_groups.%.40s has no weights", at->path, name);
    if ((rc = hub_json_str(&format, at, "format", e)) ||
        (rc = hub_json_str(&format, &of_group, "format", e)) ||
        (rc = hub_json_str(&type, &weights, "type", e)) ||
        (rc = use_format(q, format, type, at, e)))
        return rc;
    q->dynamic_inputs =
        json_is_true(json_object_get(json_object_get(group, "input_activations"), "dynamic"));
    return load_scheme(q, &weights, e);
}

static bool is_same(const struct quant_config *a, const struct quant_config *b)
{
    return a->method == b->method && a->bits == b->bits && a->group_size == b->group_size &&
           a->symmetric == b->symmetric && a->row_block == b->row_block;
}

static bool is_integers(const struct quant_config *q)
{
    return q->method == QUANT_PACKED || q->method == QUANT_INT8;
}

/* Four of them in an int32, as of 8 bits, where the file is an older one (weight_quant.h). */
static bool is_seven(const struct quant_config *q)
{
    return q->method == QUANT_PACKED && q->bits == 7;
}

static uint8_t most(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

/* all: of the groups before `one`. */
static enum q_code join(struct quant_config *all, const struct quant_config *one, const char *name,
                        const struct hub_json_at *at, struct q_err *e)
{
    all->dynamic_inputs = all->dynamic_inputs && one->dynamic_inputs; /* else the tensors say it */
    if (is_same(all, one))
        return Q_OK;
    if (is_integers(all) && is_integers(one)) {
        if (is_seven(all) || is_seven(one))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: config_groups.%.40s: pack-quantized with 7 bits beside other groups "
                          "is not supported, since older files of 7 and of 8 bits look alike; "
                          "expected one group",
                          at->path, name);
        all->group_bits = most(all->group_bits, one->group_bits);
        all->whole_bits = most(all->whole_bits, one->whole_bits);
        all->method = QUANT_PACKED;
        all->by_tensor = true;
        all->bits = 4;
        return Q_OK;
    }
    if (!is_integers(all) && !is_integers(one) && !all->row_block && !one->row_block) {
        all->method = QUANT_FP4;
        all->bits = 4;
        return Q_OK;
    }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: config_groups.%.40s differs from the first: groups of integers beside "
                  "groups of floats, or of blocks, are not supported; expected integers only, or "
                  "floats only",
                  at->path, name);
}

/* Matrices that multiply activations beside the quantized ones, and weights without their zeros. */
static enum q_code refuse_more(const struct hub_json_at *at, struct q_err *e)
{
    const json_t *transforms = hub_json_find(at, "transform_config");
    const struct hub_json_at sparse = {hub_json_find(at, "sparsity_config"), at->path};
    const char *format = "dense";
    enum q_code rc = Q_OK;
    if (json_object_size(json_object_get(transforms, "config_groups")))
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: compressed-tensors with a transform_config (rotations of activations, as "
            "of SpinQuant or QuIP) is not supported; " COULD_USE,
            at->path);
    if (json_is_object(sparse.object))
        rc = hub_json_str(&format, &sparse, "format", e);
    if (rc || !strcmp(format, "dense"))
        return rc;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: sparsity_config's format \"%.40s\" of compressed-tensors (weights stored "
                  "without their zeros) is not supported, expected dense; " COULD_USE,
                  at->path, format);
}

enum q_code config_quant_compressed(struct quant_config *q, const struct hub_json_at *at,
                                    struct q_err *e)
{
    json_t *groups = json_object_get(at->object, "config_groups"), *group;
    const char *name;
    struct quant_config one;
    size_t n = 0;
    enum q_code rc = refuse_more(at, e);
    if (rc)
        return rc;
    if (!json_object_size(groups) && hub_json_find(at, "kv_cache_scheme"))
        return Q_OK; /* of the KV cache alone */
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return q_fail(e, Q_CORRUPT,
                      "%s: config_groups is %s, expected an object with a group at least", at->path,
                      hub_json_kind(groups));
    json_object_foreach (groups, name, group) {
        if ((rc = load_group(&one, group, name, at, e)) || (n && (rc = join(q, &one, name, at, e))))
            return rc;
        if (n++ == 0)
            *q = one;
    }
    return Q_OK;
}

/* ---- modelopt ---- */

enum q_code config_quant_modelopt(struct quant_config *q, const struct hub_json_at *at,
                                  struct q_err *e)
{
    static const struct {
        const char *name;
        enum quant_method method;
    } kinds[] = {
        {"FP8", QUANT_FP8},   {"FP8_PER_CHANNEL_PER_TOKEN", QUANT_FP8}, {"NVFP4", QUANT_FP4},
        {"MXFP8", QUANT_FP4}, {"MIXED_PRECISION", QUANT_FP4},
    };
    const char *name = "missing";
    const struct hub_json_at inner = {hub_json_find(at, "quantization"), at->path};
    enum q_code rc = hub_json_str(&name, at, "quant_algo", e);
    if (!rc && json_is_object(inner.object))
        rc = hub_json_str(&name, &inner, "quant_algo", e);
    if (rc)
        return rc;
    q->symmetric = true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, kinds[i].name) == 0) {
            q->method = kinds[i].method;
            q->dynamic_inputs = strcmp(name, "FP8_PER_CHANNEL_PER_TOKEN") == 0;
            q->bits = q->method == QUANT_FP8 ? 8 : 4;
            return Q_OK;
        }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: modelopt's quant_algo \"%.40s\" is not supported, expected FP8, "
                  "FP8_PER_CHANNEL_PER_TOKEN, NVFP4, MXFP8 or MIXED_PRECISION; use such a "
                  "checkpoint or the original model",
                  at->path, name);
}
