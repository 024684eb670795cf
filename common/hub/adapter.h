/* SPDX-License-Identifier: Apache-2.0 */
/* adapter - what the folder of a low-rank adapter (LoRA, as PEFT saves it) says about itself:
 * adapter_config.json, and where its tensors are.
 *
 *     adapter_config.json         rank, scale, the modules that it adapts
 *     adapter_model.safetensors   base_model.model.<module>.lora_A.weight [rank, inputs], .lora_B…
 *     or adapter_model.bin        the same, written by torch.save
 *
 * A module is a matrix of the model by its name without ".weight". Names are matched by PEFT's
 * rules: a list (the name, or its end behind a dot), a regular expression (the whole name), or
 * "all-linear"; layers_to_transform, layers_pattern, exclude_modules, rank_pattern, alpha_pattern.
 * What would change the numbers in another way is refused by its name: DoRA, modules_to_save,
 * biases, initialisations that change the model's own weights.
 * The files are untrusted: sizes, numbers and the work of expressions are limited.
 * Threads: an open adapter is only read. */
#ifndef QUIRE_COMMON_HUB_ADAPTER_H
#define QUIRE_COMMON_HUB_ADAPTER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/hub/safetensors.h"

#define ADAPTER_RANK_MAX     4096u
#define ADAPTER_PATTERNS_MAX 4096u /* entries of a list or of a map of the config */
#define ADAPTER_TEXT_MAX     4096u /* bytes of one of them */

struct adapter_config;

/* Errors: Q_NOT_FOUND (no adapter_config.json), Q_CORRUPT (key, value, what is accepted),
 * Q_UNSUPPORTED (what of the config is not supported, by name), Q_NO_MEMORY. */
FALLIBLE adapter_config_load(struct adapter_config **out, const char *dir, struct q_err *e);
/* The same of bytes; path: for messages. */
FALLIBLE adapter_config_parse(struct adapter_config **out, const char *data, size_t n,
                              const char *path, struct q_err *e);
void adapter_config_free(struct adapter_config *c);

/* Does it adapt the module? is_head: the matrix of the logits, which "all-linear" leaves out.
 * Errors: Q_TOO_LARGE (an expression took too many steps). */
FALLIBLE adapter_targets(bool *yes, const struct adapter_config *c, const char *module,
                         bool is_head, struct q_err *e);
struct adapter_size {
    uint32_t rank;
    float scale; /* lora_alpha / rank, or / sqrt(rank) with use_rslora */
};
/* Of a module that it adapts. Errors: as adapter_targets; Q_CORRUPT (a rank of 0). */
FALLIBLE adapter_size_of(struct adapter_size *out, const struct adapter_config *c,
                         const char *module, struct q_err *e);
/* base_model_name_or_path; "": not said. Borrowed. */
const char *adapter_base(const struct adapter_config *c);

/* The tensors of a folder. Errors: Q_NOT_FOUND (with the names searched), Q_CORRUPT, Q_UNSUPPORTED
 * (torch_file.h). */
FALLIBLE adapter_tensors_open(struct tensor_set **out, const char *dir, struct q_err *e);

enum adapter_factor { ADAPTER_A, ADAPTER_B };
#define ADAPTER_MODULE_MAX 256u /* bytes of a module's name */
/* "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" -> "model.layers.0.mlp.up_proj", A.
 * False: the name is of no factor (`module` is then not set). */
bool adapter_tensor_parse(char module[ADAPTER_MODULE_MAX], enum adapter_factor *factor,
                          const char *name);

#endif
