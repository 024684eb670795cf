/* SPDX-License-Identifier: Apache-2.0 */
/* config_streams - models with several residual streams (AltUp, arXiv:2301.13310), whose layers
 * have a low-rank branch beside attention (LAuReL, arXiv:2411.07501) and, some of them, sparse
 * gates. Gemma 3n. Threads: a loaded config is read-only. */
#ifndef QUIRE_COMMON_HUB_CONFIG_STREAMS_H
#define QUIRE_COMMON_HUB_CONFIG_STREAMS_H
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/config_mixer.h"

#define CONFIG_STREAMS_MAX 4u

struct streams_config {
    uint32_t n;    /* residual streams, 2 … CONFIG_STREAMS_MAX; 0: one, as in all other models */
    uint32_t rank; /* columns between the two products of the low-rank branch */
    bool scaled;   /* the first stream is scaled by columns for the layer's input of the token */
    /* Part of the columns of the MLP's gate that are 0, if they are normally distributed; 0: none
     * is made 0. */
    float sparsity[CONFIG_LAYERS_MAX];
};

struct model_config;
/* Has a layer of the model sparse gates? */
bool model_config_is_sparse(const struct model_config *c);
/* The number z of standard deviations above the mean below which a part `p` of normally distributed
 * numbers is, 0 < p < 1: the normal distribution's quantile. */
double config_normal_quantile(double p);

#endif
