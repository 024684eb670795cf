/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_stage - a part of a model's layers, loaded and run by itself: the residual stream comes
 * in before its first layer unless it has the embedding, and goes out behind its last one unless it
 * has the head. Layers keep their numbers of the whole model. Threads: values. */
#ifndef QUIRE_ENGINE_MODEL_PIPELINE_STAGE_H
#define QUIRE_ENGINE_MODEL_PIPELINE_STAGE_H
#include <stdbool.h>
#include <stdint.h>

struct pipeline_stage {
    uint32_t first, n_layer; /* n_layer 0: the whole model, whatever the others say */
    bool has_embedding, has_head;
};

static inline bool pipeline_stage_is_whole(const struct pipeline_stage *s)
{
    return s->n_layer == 0;
}

static inline bool pipeline_stage_has_layer(const struct pipeline_stage *s, uint32_t layer)
{
    return s->n_layer == 0 || (layer >= s->first && layer - s->first < s->n_layer);
}

static inline bool pipeline_stage_has_embedding(const struct pipeline_stage *s)
{
    return s->n_layer == 0 || s->has_embedding;
}

static inline bool pipeline_stage_has_head(const struct pipeline_stage *s)
{
    return s->n_layer == 0 || s->has_head;
}

#endif
