/* SPDX-License-Identifier: Apache-2.0 */
/* config_kinds - models whose layers are of two kinds: the wide ones, whose attention has other
 * heads than config.json says first, and the others; layers that read the K and V of another one;
 * layers with an input of the token beside the residual stream (config.h). Gemma 3n, Gemma 4.
 * Threads: a loaded config is read-only. */
#ifndef QUIRE_COMMON_HUB_CONFIG_KINDS_H
#define QUIRE_COMMON_HUB_CONFIG_KINDS_H
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/config_mixer.h"

struct model_config;

struct layers_config {
    uint32_t wide_head_dim, wide_n_kv_head; /* of wide layers; 0: no layer is wide */
    bool wide[CONFIG_LAYERS_MAX];
    bool wide_v_is_k;     /* their V is K in front of its norm and rope */
    uint32_t n_kv_reader; /* the last layers: they have the K and V of a layer before these */
    bool reader_mlp;      /* and an MLP of twice the width */
    uint32_t value_dim;   /* elements of a head of V in the files, where K's have more, and those
                             that V lacks are 0; 0: as many */
    uint32_t input;       /* columns of the input that a layer has of the token; 0: none */
    uint32_t input_vocab; /* rows of the table of these */
};

/* Elements of a head of the layer's attention, and its KV heads. */
uint32_t model_config_head_dim(const struct model_config *c, uint32_t layer);
uint32_t model_config_kv_heads(const struct model_config *c, uint32_t layer);
/* Of the layer that has the most. */
uint32_t model_config_head_dim_max(const struct model_config *c);
/* Elements of a head that are rotated in the layers that c->rope is for, where others have
 * c->local_rope. */
uint32_t model_config_n_rot_wide(const struct model_config *c);
/* Does the layer read the K and V of another one? */
bool model_config_reads_kv(const struct model_config *c, uint32_t layer);
/* The layer whose K and V it reads: itself, or the last one of its kind that has any of its own. */
uint32_t model_config_kv_of(const struct model_config *c, uint32_t layer);

#endif
