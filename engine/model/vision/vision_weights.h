/* SPDX-License-Identifier: Apache-2.0 */
/* vision_weights - the tensors of a tower and its projector, packed for the CPU's kernels.
 *
 * The tower's layers are a model of engine/model (a pipeline stage without embedding and head whose
 * rows attend both ways), so that they have its formats, kernels and executor. What is before and
 * behind them is loaded here. They stay floats: --quantization is the text model's.
 * Threads: loaded by one; then only read. */
#ifndef QUIRE_ENGINE_MODEL_VISION_VISION_WEIGHTS_H
#define QUIRE_ENGINE_MODEL_VISION_VISION_WEIGHTS_H
#include "engine/model/arch.h"
#include "engine/model/model.h"
#include "engine/model/region.h"
#include "engine/model/vision/vision_config.h"

#define VISION_LAYER_TENSORS 20u

struct vision_weights {
    struct arch arch; /* of the layers; tensors and names below are its own */
    struct arch_tensor tensors[VISION_LAYER_TENSORS];
    char names[VISION_LAYER_TENSORS][ARCH_NAME_MAX];
    struct model *layers;
    struct packed patch; /* [hidden, v->n_patch] */
    const float *patch_bias;
    const float *class_row;                    /* [hidden] or NULL */
    const float *positions;                    /* [v->n_row, hidden] */
    const float *first_norm[2], *last_norm[2]; /* weight and bias, [hidden]; NULL: there is none */
    const float *shuffled_norm[2]; /* the same of rows of several patches, before the projector */
    struct packed project[2];      /* the second may be not there */
    const float *project_bias[2];  /* or NULL */
    struct region memory;          /* of all but the layers */
};

/* o: of the text model, whose folder, format, dtype, kernels and team are the tower's too. Errors:
 * Q_NOT_FOUND (a tensor), Q_MISMATCH (its shape), Q_UNSUPPORTED (its type), those of model_load. */
FALLIBLE vision_weights_load(struct vision_weights **out, const struct vision_config *v,
                             const struct model_options *o, struct q_err *e);
void vision_weights_free(struct vision_weights *w); /* NULL is fine */
uint64_t vision_weights_bytes(const struct vision_weights *w);

#endif
