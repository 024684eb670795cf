/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of multi-head latent attention. Defaults are transformers' for absent keys. */
#include <string.h>
#include "common/hub/config_internal.h"

static const struct family {
    const char *model_type;
    int64_t q_rank, rank, nope, rope,
        value; /* when their keys are absent; value 0: hidden_size / heads */
} families[] = {
    {"deepseek_v2", 1536, 512, 128, 64, 128},  {"deepseek_v3", 1536, 512, 128, 64, 128},
    {"glm4_moe_lite", 768, 512, 192, 64, 256}, {"minicpm3", 768, 256, 64, 32, 0},
    {"mistral4", 1024, 256, 64, 64, 128},      {"youtu", 1536, 512, 128, 64, 128},
};

static const struct family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

#define RANK_MAX 8192
#define HEAD_MAX 2048 /* of each part of a head */

enum q_code config_latent_load(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    const struct family *row = family_of(c->model_type);
    const struct hub_json_range ranks = {1, RANK_MAX}, heads = {1, HEAD_MAX};
    bool interleaved = true, biased = false;
    enum q_code rc;
    if (!row)
        return Q_OK;
    struct family f = *row;
    if (json_is_null(json_object_get(at->object, "q_lora_rank")))
        f.q_rank = 0;
    if ((rc = hub_json_int(&f.q_rank, at, "q_lora_rank", ranks, e)) ||
        (rc = hub_json_int(&f.rank, at, "kv_lora_rank", ranks, e)) ||
        (rc = hub_json_int(&f.nope, at, "qk_nope_head_dim", heads, e)) ||
        (rc = hub_json_int(&f.rope, at, "qk_rope_head_dim", heads, e)) ||
        (rc = hub_json_int(&f.value, at, "v_head_dim", heads, e)) ||
        (rc = hub_json_bool(&interleaved, at, "rope_interleave", e)) ||
        (rc = hub_json_bool(&biased, at, "attention_bias", e)))
        return rc;
    if (biased)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: attention_bias true is not supported for model_type \"%s\", only false",
                      at->path, c->model_type);
    if (f.value == 0)
        f.value = c->hidden_size / c->n_head;
    if (f.rope % 2)
        return q_fail(e, Q_CORRUPT,
                      "%s: qk_rope_head_dim is %lld, expected an even number (rotary embedding)",
                      at->path, (long long)f.rope);
    if (f.nope % 2)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: qk_nope_head_dim %lld is not supported, only an even number", at->path,
                      (long long)f.nope);
    c->latent = (struct latent_config){
        .rank = (uint32_t)f.rank,
        .q_rank = (uint32_t)f.q_rank,
        .nope = (uint32_t)f.nope,
        .rope = (uint32_t)f.rope,
        .value = (uint32_t)f.value,
    };
    c->forward.half_rope = !interleaved;
    c->head_dim = c->latent.nope + c->latent.rope;
    c->n_kv_head = c->n_head;
    return Q_OK;
}
