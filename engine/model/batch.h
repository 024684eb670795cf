/* SPDX-License-Identifier: Apache-2.0 */
/* batch - the rows of one step: tokens of several sequences, one after another.
 * Threads: read-only during a step. */
#ifndef QUIRE_ENGINE_MODEL_BATCH_H
#define QUIRE_ENGINE_MODEL_BATCH_H
#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops/ops_attention.h"
#include "kernels/ops/ops_state.h"

struct lora_batch;
struct batch {                   /* one step, ragged; all borrowed for the call */
    const uint32_t *token_ids;   /* [n_token], each < vocab_size */
    const uint32_t *positions;   /* [n_token] */
    const uint32_t *token_types; /* [n_token], each < type_vocab_size; NULL: all are 0 */
    const uint32_t
        *slot_mapping; /* [n_token] block * KERN_BLOCK + offset, KERN_NO_SLOT: not written */
    const struct attention_seq
        *seqs;                  /* [n_seq], rows in order, together covering all n_token rows */
    const uint32_t *logit_rows; /* [n_logit] ascending row numbers whose logits are wanted */
    uint32_t n_token, n_seq, n_logit;
    bool any_row; /* model_logits may be called with other logit_rows: all rows are computed to the
                   * end of the layers */
    uint32_t context_max; /* longest start + n_query */
    /* Layers layer … layer + n_layer - 1 only; n_layer 0: all of the stage. To measure a step. */
    uint32_t layer, n_layer;
    const uint32_t *n_prompts; /* [n_seq] tokens of each sequence's prompt, the same in every step
                                * of its life (replays included); read by models with dynamic rope
                                * only. NULL: no prompt is longer than the trained length */
    /* [n_token] the row of embeddings that stands for a placeholder, hidden_size f32, NULL for a
     * token; its token_ids entry is 0. NULL: the step has no items (modality.h) */
    const float *const *item_rows;
    /* Of a model with states (model_shape.state_bytes): all rows, in order, by the sequence; at
     * least one part for each. */
    const struct state_part *state_parts; /* [n_state_part] */
    uint32_t n_state_part;
    const struct lora_batch *lora; /* rows with adapters; NULL: none has one */
    /* The residual stream, [n_token, hidden_size] f32, neighbours: what comes into a stage without
     * the embedding, and where that of a stage without the head is written. */
    const float *stream_in;
    float *stream_out;
};

#endif
