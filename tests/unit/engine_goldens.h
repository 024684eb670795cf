/* SPDX-License-Identifier: Apache-2.0 */
/* engine_goldens - the causal Llama, Mistral, Mixtral, Qwen2, Qwen3 and Qwen3-MoE goldens as lists
 * of prompts with their greedy tokens. */
#ifndef QUIRE_TESTS_UNIT_ENGINE_GOLDENS_H
#define QUIRE_TESTS_UNIT_ENGINE_GOLDENS_H
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <unistd.h>
#include "check.h"

#define GOLDENS_DIR    "tests/data/models"
#define GOLDEN_PROMPTS 8
#define GOLDEN_TOKENS  256

static const char *const golden_models[] = {
    "llama",
    "llama-rope-llama3",
    "llama-rope-linear",
    "llama-rope-dynamic",
    "llama-rope-yarn",
    "llama-bias-tied",
    "mistral",
    "qwen2",
    "qwen2-sliding-bf16",
    "qwen3",
    "qwen3-v5cfg-f16",
    "llama-draft",
    "llama-bf16-sharded",
    "qwen3_moe",
    "mixtral",
    "deepseek_v3",
    "bloom",
    "cohere",
    "cohere2",
    "exaone4",
    "falcon",
    "gemma",
    "gemma3",
    "glm4",
    "gpt2",
    "gpt2-noprefix",
    "gptj",
    "lfm2",
    "lfm2-bias",
    "qwen3_next",
    "falcon_h1",
    "jamba",
    "mamba2",
    "olmo",
    "olmo2",
    "opt",
    "opt-post",
    "smollm3",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
};
#define N_GOLDEN_MODEL (sizeof golden_models / sizeof *golden_models)

struct golden_prompt {
    uint32_t ids[GOLDEN_TOKENS], greedy[64], n, n_greedy;
};
struct golden {
    char dir[PATH_MAX];
    struct golden_prompt prompts[GOLDEN_PROMPTS];
    uint32_t n;
};

static inline uint32_t golden_ids(const json_t *list, uint32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

/* False if the golden is missing. llama-rope-dynamic: only the tokens that the reference sampled
 * from a sequence within the original length of 64, and the first one after a longer prompt; for
 * the others it recomputes the past with other frequencies (README of the goldens). */
static inline bool golden_load(struct golden *g, const char *name)
{
    char path[PATH_MAX];
    json_error_t je;
    snprintf(path, sizeof path, GOLDENS_DIR "/%s/golden.json", name);
    json_t *root = json_load_file(path, 0, &je);
    if (!root)
        return false;
    snprintf(g->dir, sizeof g->dir, GOLDENS_DIR "/%s", name);
    const json_t *prompts = json_object_get(root, "prompts");
    g->n = 0;
    for (size_t i = 0; i < json_array_size(prompts) && i < GOLDEN_PROMPTS; i++) {
        const json_t *p = json_array_get(prompts, i);
        struct golden_prompt *out = &g->prompts[g->n];
        out->n = golden_ids(json_object_get(p, "ids"), out->ids);
        out->n_greedy = golden_ids(json_object_get(p, "greedy"), out->greedy);
        g->n++;
        if (strcmp(name, "llama-rope-dynamic") == 0 && out->n + out->n_greedy > 64)
            out->n_greedy = out->n <= 64 ? 64 - out->n + 1 : 1;
    }
    json_decref(root);
    return true;
}

#define golden_get(g, name) assert_true(golden_load((g), (name)))

#endif
