/* SPDX-License-Identifier: Apache-2.0 */
/* permuted - level 1 of engine/plugin.h: checkpoints for interleaved rope whose q, k and v are one
 * tensor, or are quantized; beside them a rule that permutes what has no heads. */
#include "engine/plugin.h"

static const struct quire_tensor_map stacked[] = {
    {"(model\\.layers\\.\\d+\\.self_attn\\.)qkv(\\..*)", "$1q_proj$2, $1k_proj$2, $1v_proj$2",
     QUIRE_UNPERMUTE_QK},
    {"(.*\\.q_proj\\..*)", "$1", QUIRE_UNPERMUTE_Q},
    {"(.*\\.k_proj\\..*)", "$1", QUIRE_UNPERMUTE_K},
};
static const struct quire_tensor_map fused[] = {
    {"(.*\\.(qkv_proj|query_key_value)\\..*)", "$1", QUIRE_UNPERMUTE_QK},
};
static const struct quire_tensor_map wrong_stack[] = {
    {"(model\\.layers\\.\\d+\\.mlp\\.)both(\\..*)", "$1gate_proj$2, $1up_proj$2",
     QUIRE_UNPERMUTE_Q},
};
static const struct quire_tensor_map wrong_whole[] = {
    {"(.*\\.gate_up_proj\\..*)", "$1", QUIRE_UNPERMUTE_QK},
};

#define ARCHITECTURE(id, its_base, rules)          \
    static const struct quire_architecture id = {  \
        .size = sizeof(struct quire_architecture), \
        .name = #id,                               \
        .base = its_base,                          \
        .maps = rules,                             \
        .n_map = sizeof rules / sizeof *rules,     \
    };
ARCHITECTURE(PermutedLlama, "LlamaForCausalLM", stacked)
ARCHITECTURE(PermutedPhi3, "Phi3ForCausalLM", fused)
ARCHITECTURE(PermutedNeoX, "GPTNeoXForCausalLM", fused)
ARCHITECTURE(WrongStack, "LlamaForCausalLM", wrong_stack)
ARCHITECTURE(WrongWhole, "Phi3ForCausalLM", wrong_whole)

static const struct quire_architecture *const architectures[] = {
    &PermutedLlama, &PermutedPhi3, &PermutedNeoX, &WrongStack, &WrongWhole,
};
static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "permuted",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 5,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
