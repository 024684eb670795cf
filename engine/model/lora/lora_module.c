/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/lora/lora_module.h"
#include <stdio.h>
#include <string.h>

static const char weight_end[] = ".weight";

bool lora_module_is_adapted(const struct arch_tensor *t)
{
    switch (t->slot) {
    case W_QKV:
    case W_QKV_HEADS:
    case W_Q:
    case W_K:
    case W_V:
    case W_O:
    case W_KV_A:
    case W_Q_B:
    case W_GATE_UP:
    case W_GATE:
    case W_UP:
    case W_DOWN:
        return t->dims[1] != D_NONE;
    default:
        return false;
    }
}

/* Why a matrix that the model has takes no adapter. */
static const char *why_not(enum arch_slot slot)
{
    switch (slot) {
    case W_EMBED:
    case W_POSITIONS:
        return "the embedding";
    case W_LM_HEAD:
        return "the matrix of the logits";
    case W_ROUTER:
    case W_SHARED_GATE:
        return "a router of experts";
    case W_KV_B:
        return "an up-projection of latent attention";
    case W_MIX_IN:
    case W_MIX_OUT:
    case W_MIX_QKVZ:
    case W_MIX_BA:
    case W_MIX_QKV:
    case W_MIX_QKV_HEADS:
    case W_MIX_Q:
    case W_MIX_K:
    case W_MIX_V:
    case W_MIX_Z:
    case W_MIX_B:
    case W_MIX_A:
    case W_MIX_X:
    case W_MIX_STEP:
        return "a product of a layer without attention";
    default:
        return slot >= W_EXPERT_FIRST && slot < W_IGNORE ? "a matrix of experts" : "no product";
    }
}

/* Does the name have the pattern's form? Numbers in it: the layer, an expert. */
static bool has_form(const char *pattern, const char *name, uint32_t numbers[2])
{
    uint32_t n = 0;
    while (*pattern) {
        if (pattern[0] != '%' || pattern[1] != 'u') {
            if (*pattern++ != *name++)
                return false;
            continue;
        }
        uint64_t number = 0;
        if (n == 2 || *name < '0' || *name > '9' ||
            (name[0] == '0' && name[1] >= '0' && name[1] <= '9'))
            return false;
        for (; *name >= '0' && *name <= '9' && number < UINT32_MAX; name++)
            number = 10 * number + (uint64_t)(*name - '0');
        numbers[n++] = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
        pattern += 2;
    }
    return *name == 0;
}

static bool is_of(const struct arch *a, const struct arch_tensor *t, const char *tensor,
                  uint32_t numbers[2])
{
    const size_t n = a->prefix ? strlen(a->prefix) : 0;
    if (!t->name)
        return false;
    if (has_form(t->name, tensor, numbers))
        return true;
    return n && !strncmp(t->name, a->prefix, n) && has_form(t->name + n, tensor, numbers);
}

FALLIBLE lora_module_find(struct lora_module *out, const struct arch *a,
                          const struct model_config *c, const char *name, struct q_err *e)
{
    char tensor[2 * ARCH_NAME_MAX];
    if (snprintf(tensor, sizeof tensor, "%s%s", name, weight_end) >= (int)sizeof tensor)
        return q_fail(e, Q_MISMATCH, "the model has no module %.100s…", name);
    for (size_t i = 0; i < a->n_tensor; i++) {
        const struct arch_tensor *t = &a->tensors[i];
        uint32_t numbers[2] = {0, 0};
        if (!is_of(a, t, tensor, numbers))
            continue;
        const bool of_layer = t->slot >= W_LAYER_FIRST && t->slot < W_IGNORE;
        if (of_layer && (numbers[0] >= c->n_layer || !arch_wants(c, t->when, numbers[0])))
            continue;
        if (c->layers.value_dim && (t->slot == W_V || t->slot == W_O))
            return q_fail(e, Q_UNSUPPORTED,
                          "module %.100s is of V, whose heads are narrower than those of K; such "
                          "modules take no adapter yet",
                          name);
        if (!lora_module_is_adapted(t))
            return q_fail(e, Q_UNSUPPORTED,
                          "module %s: adapters of %s are not supported; expected matrices of "
                          "attention and of the MLP",
                          name, why_not(t->slot));
        *out = (struct lora_module){t, numbers[0]};
        return Q_OK;
    }
    return q_fail(e, Q_MISMATCH, "the model (%s, %u layers) has no module %s", a->name, c->n_layer,
                  name);
}

void lora_module_name(char out[ARCH_NAME_MAX], const struct lora_module *m)
{
    arch_tensor_name(out, m->tensor->name, (struct arch_place){m->layer, 0});
    const size_t n = strlen(out), n_end = sizeof weight_end - 1;
    if (n > n_end && !strcmp(out + n - n_end, weight_end))
        out[n - n_end] = 0;
}

static enum program_weight weight_of(enum arch_slot slot, const struct arch *a)
{
    switch (slot) {
    case W_O:
        return PROGRAM_W_OUT;
    case W_Q_B:
        return PROGRAM_W_Q_B;
    case W_GATE_UP:
    case W_GATE:
        return PROGRAM_W_GATE_UP;
    case W_UP:
        return a->layer.mlp == ARCH_MLP_GATED ? PROGRAM_W_GATE_UP : PROGRAM_W_UP;
    case W_DOWN:
        return PROGRAM_W_DOWN;
    default:
        return PROGRAM_W_QKV;
    }
}

/* Rows of the tensor that the family has for a slot in this layer; 0: none. */
static uint32_t rows_of(const struct arch *a, const struct model_config *c, enum arch_slot slot,
                        uint32_t layer)
{
    for (size_t i = 0; i < a->n_tensor; i++)
        if (a->tensors[i].slot == slot && arch_wants(c, a->tensors[i].when, layer))
            return arch_dim_at(c, a->tensors[i].dims[0], layer);
    return 0;
}

struct lora_place lora_module_place(const struct lora_module *m, const struct arch *a,
                                    const struct model_config *c)
{
    struct lora_place p = {
        .weight = weight_of(m->tensor->slot, a),
        .n_out = arch_dim_at(c, m->tensor->dims[0], m->layer),
        .n_in = arch_dim_at(c, m->tensor->dims[1], m->layer),
        .n_kv_head = m->tensor->slot == W_QKV_HEADS ? c->n_kv_head : 0,
    };
    const struct program_weight_info *info = program_weight_info(p.weight);
    for (uint32_t i = 0; i < info->n_slot && info->slots[i] != m->tensor->slot; i++)
        p.col += rows_of(a, c, info->slots[i], m->layer);
    return p;
}

uint32_t lora_module_column(const struct lora_place *p, const struct model_config *c, uint32_t i)
{
    if (!p->n_kv_head)
        return i;
    const uint32_t q_cols = arch_dim_size(c, D_Q), kv_cols = arch_dim_size(c, D_KV);
    const uint32_t n_q = q_cols / p->n_kv_head, n_kv = kv_cols / p->n_kv_head;
    const uint32_t head = i / (n_q + 2 * n_kv), at = i % (n_q + 2 * n_kv);
    if (at < n_q)
        return head * n_q + at;
    if (at < n_q + n_kv)
        return q_cols + head * n_kv + at - n_q;
    return q_cols + kv_cols + head * n_kv + at - n_q - n_kv;
}
