/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model_same.h"
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/weight_files.h"

/* One number, or text, of the model. */
static const struct {
    const char *name;
    size_t offset;
    enum { IS_U32, IS_F64, IS_BOOL, IS_TEXT } type;
} fields[] = {
#define FIELD(type, name)                                \
    {                                                    \
#name, offsetof(struct model_config, name), type \
    }
    FIELD(IS_TEXT, architecture),
    FIELD(IS_U32, vocab_size),
    FIELD(IS_U32, hidden_size),
    FIELD(IS_U32, embed_size),
    FIELD(IS_U32, intermediate_size),
    FIELD(IS_U32, n_layer),
    FIELD(IS_U32, n_head),
    FIELD(IS_U32, n_kv_head),
    FIELD(IS_U32, head_dim),
    FIELD(IS_U32, max_position),
    FIELD(IS_F64, rms_norm_eps),
    FIELD(IS_TEXT, hidden_act),
    FIELD(IS_BOOL, tie_word_embeddings),
    FIELD(IS_BOOL, attention_bias),
    FIELD(IS_BOOL, attention_out_bias),
    FIELD(IS_BOOL, mlp_bias),
    FIELD(IS_BOOL, head_bias),
    FIELD(IS_U32, moe.n_expert),
    FIELD(IS_U32, moe.n_used),
    FIELD(IS_U32, moe.width),
    FIELD(IS_U32, moe.shared_width),
    FIELD(IS_BOOL, moe.renormalize),
    FIELD(IS_BOOL, moe.sigmoid),
    FIELD(IS_BOOL, moe.averages),
    FIELD(IS_F64, moe.scale),
    FIELD(IS_F64, moe.mixer),
    FIELD(IS_F64, forward.attention_soft_cap),
    FIELD(IS_F64, forward.logit_soft_cap),
    FIELD(IS_F64, forward.query_scalar),
    FIELD(IS_F64, forward.attention_multiplier),
    FIELD(IS_F64, forward.embedding_multiplier),
    FIELD(IS_F64, forward.residual_multiplier),
    FIELD(IS_F64, forward.logit_multiplier),
    FIELD(IS_F64, forward.rotary_fraction),
    FIELD(IS_F64, forward.query_growth),
    FIELD(IS_F64, forward.query_length),
    FIELD(IS_U32, forward.query_first),
    FIELD(IS_BOOL, forward.post_norms),
    FIELD(IS_BOOL, forward.sum_norms),
    FIELD(IS_BOOL, forward.bare_end),
    FIELD(IS_BOOL, forward.unit_head),
    FIELD(IS_F64, forward.clip),
    FIELD(IS_F64, forward.glu_limit),
    FIELD(IS_BOOL, forward.parallel_residual),
    FIELD(IS_BOOL, forward.shared_norm),
    FIELD(IS_BOOL, forward.rms_norm),
    FIELD(IS_BOOL, forward.qk_norm),
    FIELD(IS_BOOL, forward.alibi),
    FIELD(IS_BOOL, forward.chunks),
    FIELD(IS_BOOL, forward.half_rope),
    FIELD(IS_F64, rope.theta),
    FIELD(IS_F64, rope.factor),
    FIELD(IS_F64, rope.original_max_position),
    FIELD(IS_F64, rope.low_freq_factor),
    FIELD(IS_F64, rope.high_freq_factor),
    FIELD(IS_F64, rope.beta_fast),
    FIELD(IS_F64, rope.beta_slow),
    FIELD(IS_F64, rope.attention_factor),
    FIELD(IS_F64, rope.mscale),
    FIELD(IS_F64, rope.mscale_all_dim),
    FIELD(IS_BOOL, rope.truncate),
    FIELD(IS_F64, local_rope.theta),
    FIELD(IS_F64, local_rope.factor),
    FIELD(IS_U32, local_rope.kind),
    FIELD(IS_U32, quant.method),
    FIELD(IS_U32, quant.bits),
    FIELD(IS_U32, quant.group_size),
    FIELD(IS_U32, quant.row_block),
    FIELD(IS_BOOL, quant.dynamic_inputs),
    FIELD(IS_U32, moe.n_group),
    FIELD(IS_U32, moe.n_group_used),
    FIELD(IS_U32, moe.latent),
    FIELD(IS_U32, latent.rank),
    FIELD(IS_U32, latent.q_rank),
    FIELD(IS_U32, latent.nope),
    FIELD(IS_U32, latent.rope),
    FIELD(IS_U32, latent.value),
    FIELD(IS_BOOL, mixer.beside),
    FIELD(IS_U32, mixer.conv_width),
    FIELD(IS_U32, mixer.n_key_head),
    FIELD(IS_U32, mixer.n_value_head),
    FIELD(IS_U32, mixer.key_dim),
    FIELD(IS_U32, mixer.value_dim),
    FIELD(IS_U32, mixer.step_rank),
    FIELD(IS_F64, mixer.step_min),
    FIELD(IS_F64, mixer.step_max),
    FIELD(IS_BOOL, mixer.no_norm),
    FIELD(IS_BOOL, mixer.norm_first),
    FIELD(IS_F64, mixer.norm_eps),
    FIELD(IS_BOOL, mixer.negative),
    FIELD(IS_F64, mixer.multipliers[0]),
    FIELD(IS_F64, mixer.multipliers[1]),
    FIELD(IS_F64, mixer.multipliers[2]),
    FIELD(IS_F64, mixer.multipliers[3]),
    FIELD(IS_F64, mixer.multipliers[4]),
    FIELD(IS_U32, layers.wide_head_dim),
    FIELD(IS_U32, layers.wide_n_kv_head),
    FIELD(IS_BOOL, layers.wide_v_is_k),
    FIELD(IS_U32, layers.n_kv_reader),
    FIELD(IS_BOOL, layers.reader_mlp),
    FIELD(IS_U32, layers.input),
    FIELD(IS_U32, layers.input_vocab),
    FIELD(IS_U32, streams.n),
    FIELD(IS_U32, streams.rank),
    FIELD(IS_BOOL, streams.scaled),
    FIELD(IS_F64, forward.attention_out),
    FIELD(IS_F64, forward.mixer_out),
    FIELD(IS_F64, forward.mlp_out),
    FIELD(IS_F64, forward.mlp_gate),
    FIELD(IS_F64, forward.attention_kept),
    FIELD(IS_F64, forward.mixer_kept),
    FIELD(IS_F64, forward.mlp_kept),
    FIELD(IS_F64, forward.value),
    FIELD(IS_U32, layers.value_dim),
#undef FIELD
};

/* One of each layer; what two models do that differ in it. */
static const struct {
    size_t offset, size;
    const char *text;
} lists[] = {
#define LIST(name, text)                                                                      \
    {                                                                                         \
        offsetof(struct model_config, name), sizeof((const struct model_config *)NULL)->name, \
            (text)                                                                            \
    }
    LIST(window, "differ in their sliding window"),
    LIST(no_rope, "rotate different layers"),
    LIST(moe.layers, "have experts in different layers"),
    LIST(mixer.layers, "have mixers in different layers"),
    LIST(mixer.no_mlp, "have MLPs in different layers"),
    LIST(layers.wide, "have full attention in different layers"),
    LIST(streams.sparsity, "differ in the sparsity of their gates"),
#undef LIST
};

/* What the config says and the family's layers do not read. */
void model_drop_unread(struct model_config *c, const struct arch_layer *l)
{
    if (!l->windows)
        memset(c->window, 0, sizeof c->window);
    if (!arch_rotates(l))
        c->rope = (struct rope_config){.theta = c->rope.theta};
    if (!l->local_rope)
        c->local_rope = c->rope;
    if (!l->no_rope)
        memset(c->no_rope, 0, sizeof c->no_rope);
}

static void field_text(char out[CONFIG_NAME_MAX], const struct model_config *c, size_t i)
{
    const char *at = (const char *)c + fields[i].offset;
    switch (fields[i].type) {
    case IS_U32:
        snprintf(out, CONFIG_NAME_MAX, "%u", *(const uint32_t *)(const void *)at);
        break;
    case IS_F64:
        snprintf(out, CONFIG_NAME_MAX, "%.17g", *(const double *)(const void *)at);
        break;
    case IS_BOOL:
        snprintf(out, CONFIG_NAME_MAX, "%s", *(const bool *)at ? "true" : "false");
        break;
    case IS_TEXT:
        snprintf(out, CONFIG_NAME_MAX, "%s", at);
        break;
    }
}

static bool same_factors(const struct rope_config *a, const struct rope_config *b)
{
    bool same = true;
    for (uint32_t i = 0; i < CONFIG_ROPE_FACTORS_MAX; i++)
        same = same && a->short_factor[i] == b->short_factor[i] &&
               a->long_factor[i] == b->long_factor[i];
    return same;
}

enum q_code model_check_same(const struct model_config *of, const struct arch *arch,
                             const char *dir, struct q_err *e)
{
    struct model_config other, served = *of;
    char path[PATH_MAX], mine[CONFIG_NAME_MAX], its[CONFIG_NAME_MAX];
    enum q_code rc;
    if ((rc = path_join(path, sizeof path, dir, "config.json", e)))
        return rc;
    if (!file_exists(path) && !weight_files_has_params(dir))
        return Q_OK;
    if ((rc = model_config_load(&other, NULL, dir, e)))
        return rc;
    model_drop_unread(&other, &arch->layer);
    model_drop_unread(&served, &arch->layer);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        field_text(mine, &served, i);
        field_text(its, &other, i);
        if (strcmp(mine, its) != 0)
            return q_fail(e, Q_MISMATCH, "the new config.json has %s %s, the served model has %s",
                          fields[i].name, its, mine);
    }
    if (other.rope.kind != served.rope.kind)
        return q_fail(e, Q_MISMATCH,
                      "the new config.json and the served model differ in their kind of rope");
    if (!same_factors(&other.rope, &served.rope))
        return q_fail(e, Q_MISMATCH,
                      "the new config.json has other factors of longrope than that of the model "
                      "served");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (memcmp((const char *)&other + lists[i].offset, (const char *)&served + lists[i].offset,
                   lists[i].size) != 0)
            return q_fail(e, Q_MISMATCH, "the new config.json and the served model %s",
                          lists[i].text);
    return Q_OK;
}
