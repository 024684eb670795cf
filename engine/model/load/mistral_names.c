/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/mistral_names.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

#define NAMES_BYTES ((size_t)1 << 26)

/* `from` is a name or, behind "layers.N.", a part of it; one that ends with "." is its beginning, and
 * the rest is the same in both layouts. `to` NULL: not needed. */
static const struct rule {
    const char *from, *to;
    int pairs; /* TENSOR_Q or TENSOR_K: rows of heads are stored as pairs */
} of_model[] =
    {
        {"tok_embeddings.weight", "model.embed_tokens.weight", 0},
        {"norm.weight", "model.norm.weight", 0},
        {"output.weight", "lm_head.weight", 0},
        {"rope.freqs", NULL, 0},
},
  of_layer[] = {
      {"attention_norm.weight", "input_layernorm.weight", 0},
      {"ffn_norm.weight", "post_attention_layernorm.weight", 0},
      {"attention.wq.", "self_attn.q_proj.", TENSOR_Q},
      {"attention.wk.", "self_attn.k_proj.", TENSOR_K},
      {"attention.wv.", "self_attn.v_proj.", 0},
      {"attention.wo.", "self_attn.o_proj.", 0},
      {"attention.inner_attention.rope.freqs", NULL, 0},
      {"feed_forward.w1.", "mlp.gate_proj.", 0},
      {"feed_forward.w2.", "mlp.down_proj.", 0},
      {"feed_forward.w3.", "mlp.up_proj.", 0},
      {"feed_forward.gate.", "block_sparse_moe.gate.", 0},
      {"feed_forward.experts.", "block_sparse_moe.experts.",
       0}, /* N.w1.weight is the same in both */
};

struct mapper {
    const struct model_config *config;
    struct arena names;
    struct tensor *items; /* [n] */
    size_t n;
};

bool mistral_names_are_in(const struct tensor_set *s)
{
    return tensor_set_format(s) == WEIGHTS_MISTRAL;
}

/* The rule that the text begins with; one that ends with "." is a beginning, others are whole. */
static const struct rule *find_rule(const struct rule *rules, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(rules[i].from);
        const bool is_part = rules[i].from[length - 1] == '.';
        if (strncmp(rules[i].from, text, length) == 0 && (is_part || !text[length]))
            return &rules[i];
    }
    return NULL;
}

/* What is behind "layers.N."; NULL: the name begins otherwise. */
static const char *behind_layer(const char *name)
{
    static const char start[] = "layers.";
    const char *number = name + sizeof start - 1;
    if (strncmp(name, start, sizeof start - 1) != 0)
        return NULL;
    const size_t n = strspn(number, "0123456789");
    return n && number[n] == '.' ? number + n + 1 : NULL;
}

static enum q_code map_one(struct mapper *m, const struct tensor *t, struct q_err *e)
{
    char name[ARCH_NAME_MAX];
    const char *in_layer = behind_layer(t->name), *text = in_layer ? in_layer : t->name;
    const struct rule *rule = in_layer
                                  ? find_rule(of_layer, sizeof of_layer / sizeof *of_layer, text)
                                  : find_rule(of_model, sizeof of_model / sizeof *of_model, text);
    if (rule && !rule->to)
        return Q_OK;
    struct tensor *to = &m->items[m->n++];
    *to = *t;
    if (!rule)
        return Q_OK;
    const int n = snprintf(name, sizeof name, "%s%.*s%s%s", in_layer ? "model." : "",
                           in_layer ? (int)(in_layer - t->name) : 0, t->name, rule->to,
                           text + strlen(rule->from));
    if (n < 0 || (size_t)n >= sizeof name)
        return q_fail(e, Q_CORRUPT, "%s: the name of tensor %.80s … is longer than %u", t->file,
                      t->name, ARCH_NAME_MAX - 1);
    to->stored = t->name;
    to->name = arena_strndup(&m->names, name, (size_t)n);
    to->in_pairs = rule->pairs;
    to->head_rows = rule->pairs ? m->config->head_dim : 0;
    return to->name ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for names of tensors");
}

enum q_code mistral_names_map(struct tensor_set *s, const struct model_config *c, struct q_err *e)
{
    struct mapper m = {
        .config = c,
        .names = ARENA_INIT(NAMES_BYTES),
        .items = q_calloc((size_t)tensor_count(s) + 1, sizeof *m.items),
    };
    enum q_code rc = m.items ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for names of tensors");
    for (uint32_t i = 0; i < tensor_count(s) && !rc; i++)
        rc = map_one(&m, tensor_at(s, i), e);
    if (!rc)
        rc = tensor_set_replace(s, m.items, m.n, e);
    q_free(m.items);
    arena_release(&m.names);
    return rc;
}
