/* SPDX-License-Identifier: Apache-2.0 */
/* The table has a row for each name that differs; the first whose model types and beginning suit
 * counts, so that rows for some types stand before those for all.
 * Sources: llama.cpp (gguf-py: tensor_mapping.py; convert_hf_to_gguf.py: what is stored
 * otherwise). */
#include "engine/model/load/gguf_names.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

#define NAMES_BYTES ((size_t)1 << 28)
#define LAYER       "blk."

/* `from` is what is behind "blk.N.", or a name without it; one that ends with "." is a beginning,
 * and the rest is the same in both. In `to` the first "%u" stands for the layer, a second for the
 * expert: the tensor is a stack of them. NULL: read with the config, or not needed. */
static const struct rule {
    const char *types; /* "a b": model types; NULL: all */
    const char *from, *to;
} rules[] = {
    // clang-format off
    {"gpt2",        "token_embd.",          "transformer.wte."},
    {"gpt2",        "position_embd.",       "transformer.wpe."},
    {"gpt2",        "output_norm.",         "transformer.ln_f."},
    {"gpt2",        "attn_norm.",           "transformer.h.%u.ln_1."},
    {"gpt2",        "attn_qkv.",            "transformer.h.%u.attn.c_attn."},
    {"gpt2",        "attn_output.",         "transformer.h.%u.attn.c_proj."},
    {"gpt2",        "ffn_norm.",            "transformer.h.%u.ln_2."},
    {"gpt2",        "ffn_up.",              "transformer.h.%u.mlp.c_fc."},
    {"gpt2",        "ffn_down.",            "transformer.h.%u.mlp.c_proj."},
    {"phi",         "output_norm.",         "model.final_layernorm."},
    {"phi",         "attn_output.",         "model.layers.%u.self_attn.dense."},
    {"phi",         "ffn_up.",              "model.layers.%u.mlp.fc1."},
    {"phi",         "ffn_down.",            "model.layers.%u.mlp.fc2."},
    {"starcoder2",  "ffn_up.",              "model.layers.%u.mlp.c_fc."},
    {"starcoder2",  "ffn_down.",            "model.layers.%u.mlp.c_proj."},
    {"phi3",        "attn_qkv.",            "model.layers.%u.self_attn.qkv_proj."},
    {"glm4 phi3",   "ffn_up.",              "model.layers.%u.mlp.gate_up_proj."},
    {"glm4",        "post_attention_norm.", "model.layers.%u.post_self_attn_layernorm."},
    {"glm4",        "post_ffw_norm.",       "model.layers.%u.post_mlp_layernorm."},
    {"gemma2 gemma3_text", "ffn_norm.",     "model.layers.%u.pre_feedforward_layernorm."},
    {"stablelm",    "attn_q_norm.weight",   "model.layers.%u.self_attn.q_layernorm.norms.%u.weight"},
    {"stablelm",    "attn_k_norm.weight",   "model.layers.%u.self_attn.k_layernorm.norms.%u.weight"},
    {"mixtral",     "ffn_gate_inp.",        "model.layers.%u.block_sparse_moe.gate."},
    {"mixtral",     "ffn_gate_exps.weight", "model.layers.%u.block_sparse_moe.experts.%u.w1.weight"},
    {"mixtral",     "ffn_down_exps.weight", "model.layers.%u.block_sparse_moe.experts.%u.w2.weight"},
    {"mixtral",     "ffn_up_exps.weight",   "model.layers.%u.block_sparse_moe.experts.%u.w3.weight"},
    {NULL, "token_embd.",          "model.embed_tokens."},
    {NULL, "output_norm.",         "model.norm."},
    {NULL, "output.",              "lm_head."},
    {NULL, "rope_freqs.weight",    NULL},
    {NULL, "rope_factors_long.weight", NULL},
    {NULL, "rope_factors_short.weight", NULL},
    {NULL, "attn_norm.",           "model.layers.%u.input_layernorm."},
    {NULL, "attn_q.",              "model.layers.%u.self_attn.q_proj."},
    {NULL, "attn_k.",              "model.layers.%u.self_attn.k_proj."},
    {NULL, "attn_v.",              "model.layers.%u.self_attn.v_proj."},
    {NULL, "attn_output.",         "model.layers.%u.self_attn.o_proj."},
    {NULL, "attn_q_norm.",         "model.layers.%u.self_attn.q_norm."},
    {NULL, "attn_k_norm.",         "model.layers.%u.self_attn.k_norm."},
    {NULL, "post_attention_norm.", "model.layers.%u.post_attention_layernorm."},
    {NULL, "ffn_norm.",            "model.layers.%u.post_attention_layernorm."},
    {NULL, "post_ffw_norm.",       "model.layers.%u.post_feedforward_layernorm."},
    {NULL, "ffn_gate.",            "model.layers.%u.mlp.gate_proj."},
    {NULL, "ffn_up.",              "model.layers.%u.mlp.up_proj."},
    {NULL, "ffn_down.",            "model.layers.%u.mlp.down_proj."},
    {NULL, "ffn_gate_inp.",        "model.layers.%u.mlp.gate."},
    {NULL, "ffn_gate_inp_shexp.",  "model.layers.%u.mlp.shared_expert_gate."},
    {NULL, "ffn_gate_shexp.",      "model.layers.%u.mlp.shared_expert.gate_proj."},
    {NULL, "ffn_up_shexp.",        "model.layers.%u.mlp.shared_expert.up_proj."},
    {NULL, "ffn_down_shexp.",      "model.layers.%u.mlp.shared_expert.down_proj."},
    {NULL, "ffn_gate_exps.weight", "model.layers.%u.mlp.experts.%u.gate_proj.weight"},
    {NULL, "ffn_up_exps.weight",   "model.layers.%u.mlp.experts.%u.up_proj.weight"},
    {NULL, "ffn_down_exps.weight", "model.layers.%u.mlp.experts.%u.down_proj.weight"},
    // clang-format on
};

/* Model types whose rows of q and k are stored as pairs of a head's. */
static const char in_pairs[] = "granite llama mixtral olmo smollm3";
/* Those whose norms have the 1 that the family adds. */
static const char with_one[] = "gemma gemma2 gemma3_text";

struct mapper {
    const struct model_config *config;
    struct arena names;
    struct tensor *items; /* [n] */
    size_t n, cap;
    struct q_err *e;
};

struct place {        /* of a tensor, by its name */
    const char *rest; /* behind "blk.N.", or the name */
    uint32_t layer;
    bool in_layer;
};

static bool in_list(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, " ")) {
        p += *p == ' ';
        if (strncmp(p, word, n) == 0 && (p[n] == ' ' || !p[n]))
            return true;
    }
    return false;
}

bool gguf_names_are_in(const struct tensor_set *s)
{
    return tensor_set_format(s) == WEIGHTS_GGUF;
}

static struct place place_of(const char *name)
{
    struct place p = {.rest = name};
    const char *digit = name + sizeof LAYER - 1;
    if (strncmp(name, LAYER, sizeof LAYER - 1) != 0)
        return p;
    for (; *digit >= '0' && *digit <= '9' && p.layer < CONFIG_LAYERS_MAX; digit++)
        p.layer = p.layer * 10 + (uint32_t)(*digit - '0');
    p.in_layer = digit > name + sizeof LAYER - 1 && *digit == '.';
    p.rest = p.in_layer ? digit + 1 : name;
    return p;
}

/* NULL: the tensor keeps its name. */
static const struct rule *find_rule(const struct place *p, const char *type)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const size_t n = strlen(rules[i].from);
        const bool is_part = rules[i].from[n - 1] == '.';
        const bool of_layer = rules[i].to && strstr(rules[i].to, "%u");
        if (strncmp(rules[i].from, p->rest, n) == 0 && (is_part || !p->rest[n]) &&
            of_layer == p->in_layer && (!rules[i].types || in_list(rules[i].types, type)))
            return &rules[i];
    }
    return NULL;
}

/* The tensors that one becomes: one, or one for each of a stack, whose first dimension counts them;
 * its part is all after it. */
struct made {
    const struct tensor *from;
    const struct rule *rule;
    struct place place;
    bool is_stack;
};

static enum q_code add_one(struct mapper *m, const struct made *made, uint32_t i)
{
    char name[ARCH_NAME_MAX], pattern[ARCH_NAME_MAX];
    const struct tensor *t = made->from;
    const char *rest = made->place.rest + strlen(made->rule->from);
    struct tensor to = *t;
    if (snprintf(pattern, sizeof pattern, "%s%s", made->rule->to, rest) >= (int)sizeof pattern)
        return q_fail(m->e, Q_CORRUPT, "%s: the name of tensor %.80s … is longer than %u", t->file,
                      t->name, ARCH_NAME_MAX - 1);
    arch_tensor_name(name, pattern, (struct arch_place){made->place.layer, i});
    to.stored = t->name;
    to.name = arena_strndup(&m->names, name, strlen(name));
    if (!to.name)
        return q_fail(m->e, Q_NO_MEMORY, "out of memory for names of tensors");
    if (made->is_stack) {
        to.n_bytes = t->n_bytes / t->shape[0];
        to.data = (const char *)t->data + i * to.n_bytes;
        to.n_dim = t->n_dim - 1;
        memmove(to.shape, t->shape + 1, to.n_dim * sizeof *to.shape);
        to.is_part = true;
        to.first_row = (uint64_t)i * to.shape[0];
    }
    m->items[m->n++] = to;
    return Q_OK;
}

/* What is stored otherwise than the family has it. */
static void set_layout(struct tensor *t, const struct model_config *c, const char *from)
{
    const bool is_norm = strstr(from, "norm.") != NULL;
    t->has_outputs_first = true;
    t->has_one = is_norm && in_list(with_one, c->model_type);
    if ((strcmp(from, "attn_q.") == 0 || strcmp(from, "attn_k.") == 0) &&
        in_list(in_pairs, c->model_type)) {
        t->head_rows = c->head_dim;
        t->in_pairs = from[5] == 'q' ? TENSOR_Q : TENSOR_K;
    }
    if (strcmp(from, "ffn_gate_inp_shexp.") == 0 && t->n_dim == 1) { /* a row, as a vector */
        t->n_dim = 2;
        t->shape[1] = t->shape[0];
        t->shape[0] = 1;
    }
}

static enum q_code map_one(struct mapper *m, const struct tensor *t)
{
    struct made made = {.from = t, .place = place_of(t->name)};
    made.rule = find_rule(&made.place, m->config->model_type);
    if (made.rule && !made.rule->to)
        return Q_OK;
    const char *hole = made.rule ? strstr(made.rule->to, "%u") : NULL;
    made.is_stack = hole && strstr(hole + 2, "%u");
    const uint64_t n = made.is_stack ? t->shape[0] : 1;
    const uint64_t most =
        CONFIG_EXPERTS_MAX > CONFIG_HEAD_MAX ? CONFIG_EXPERTS_MAX : CONFIG_HEAD_MAX;
    if (made.is_stack && (t->n_dim < 2 || n > most))
        return q_fail(m->e, Q_CORRUPT,
                      "%s: tensor %s has %u dimensions and %llu parts, expected 2 or more and at "
                      "most %llu",
                      t->file, t->name, t->n_dim, (unsigned long long)n, (unsigned long long)most);
    enum q_code rc =
        q_grow(&m->items, &m->cap, m->n + (size_t)n, sizeof *m->items, TENSOR_LIST_MAX, m->e);
    if (!rc && !made.rule) {
        m->items[m->n++] = *t;
        return Q_OK;
    }
    for (uint32_t i = 0; i < n && !rc; i++) {
        rc = add_one(m, &made, i);
        if (!rc)
            set_layout(&m->items[m->n - 1], m->config, made.rule->from);
    }
    return rc;
}

enum q_code gguf_names_map(struct tensor_set *s, const struct model_config *c, struct q_err *e)
{
    struct mapper m = {.config = c, .names = ARENA_INIT(NAMES_BYTES), .e = e};
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < tensor_count(s) && !rc; i++)
        rc = map_one(&m, tensor_at(s, i));
    if (!rc)
        rc = tensor_set_replace(s, m.items, m.n, e);
    q_free(m.items);
    arena_release(&m.names);
    return rc;
}
