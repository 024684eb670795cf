/* SPDX-License-Identifier: Apache-2.0 */
/* config_moe - the experts of a model's layers (config.h). Threads: a loaded config is
 * read-only. */
#ifndef QUIRE_COMMON_HUB_CONFIG_MOE_H
#define QUIRE_COMMON_HUB_CONFIG_MOE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/config_mixer.h"

#define CONFIG_EXPERTS_MAX 1024u

struct moe_config {    /* mixture of experts, in place of a layer's MLP */
    uint32_t n_expert; /* 0: no layer has any */
    uint32_t n_used;   /* experts per token: 1 … n_expert */
    uint32_t width;    /* outputs of one expert's gate */
    uint32_t latent; /* columns that experts read and write, between two products; 0: hidden_size */
    uint32_t shared_width; /* outputs of the shared expert's gate; 0: no shared expert */
    bool renormalize;      /* normalize the weights of the chosen experts to a sum of 1 */
    bool sigmoid;          /* weights are sigmoids, where the family leaves it to the config */
    bool averages;         /* half of the experts' sum and half of the shared expert's output */
    uint32_t n_group, n_group_used; /* experts are chosen from some groups of them; 1: no groups */
    double scale;                   /* of the weights; 0: 1 */
    double mixer;                   /* of a sparse mixer: how near scores are; 0: none */
    bool layers[CONFIG_LAYERS_MAX]; /* which have them */
};

#endif
