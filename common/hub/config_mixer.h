/* SPDX-License-Identifier: Apache-2.0 */
/* config_mixer - the layers of a model that have something in place of attention, or beside it
 * (config.h). Threads: a loaded config is read-only. */
#ifndef QUIRE_COMMON_HUB_CONFIG_MIXER_H
#define QUIRE_COMMON_HUB_CONFIG_MIXER_H
#include <stdbool.h>
#include <stdint.h>

#define CONFIG_LAYERS_MAX 1024u

/* What a layer has in place of attention. Each of these keeps a state of a sequence that is no K
 * and V: its size does not depend on the length. */
enum layer_mixer {
    MIXER_ATTENTION,
    MIXER_CONV,      /* a gated short convolution: LFM2 */
    MIXER_DELTA,     /* a gated delta net, arXiv:2412.06464, behind a convolution */
    MIXER_SSD,       /* Mamba 2, arXiv:2405.21060, behind a convolution */
    MIXER_SCAN,      /* Mamba, arXiv:2312.00752, likewise */
    MIXER_LIGHTNING, /* lightning attention, arXiv:2405.17381: a state that fades at a rate which
                        the head's and the layer's numbers give */
    MIXER_NONE       /* nothing: the layer is an MLP alone, or experts */
};
#define CONFIG_SSD_PARTS 5u /* of the first product of MIXER_SSD: gate, x, B, C, step */
struct mixer_config {
    uint8_t layers[CONFIG_LAYERS_MAX]; /* enum layer_mixer of each */
    bool no_mlp[CONFIG_LAYERS_MAX];    /* layers that have no MLP behind it */
    bool experts[CONFIG_LAYERS_MAX];   /* layers that are experts alone */
    enum layer_mixer kind;             /* of all layers that have not attention */
    bool beside;         /* the layers have attention too, of the same input: Falcon-H1 */
    uint32_t conv_width; /* rows that a convolution sums; 0: no layer has one */
    bool conv_bias;      /* of the convolution */
    bool bias;           /* of the products around it */
    /* MIXER_DELTA: heads of keys (and queries) and of values, and their elements; MIXER_LIGHTNING:
     * as many of both. MIXER_SSD: groups of heads that have the same B and C, heads, elements of a
     * state and of a head. MIXER_SCAN: the same with one group, and heads of one element. */
    uint32_t n_key_head, n_value_head, key_dim, value_dim;
    uint32_t step_rank;        /* MIXER_SCAN: columns that the steps are made of */
    double step_min, step_max; /* MIXER_SSD: limits of steps */
    bool no_norm;              /* MIXER_SSD: its output has no norm, */
    bool norm_first;           /* or one in front of its gate */
    double norm_eps;           /* MIXER_SCAN: of the norms of its steps, B and C; MIXER_DELTA,
                                  MIXER_LIGHTNING: of its output's; 0: rms_norm_eps */
    bool negative;             /* MIXER_DELTA: eigenvalues of its state may be negative */
    double multipliers[CONFIG_SSD_PARTS]; /* of these parts of the product; 0: 1 */
};

#endif
