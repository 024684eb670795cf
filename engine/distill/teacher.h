/* SPDX-License-Identifier: Apache-2.0 */
/* teacher - the teacher's stages on one rank: any model that can be served, quantized ones too,
 * through the executor that serves it (engine/model/model.h), without gradients.
 *
 * A stage runs some of the layers over one micro batch: each segment is a sequence with its own
 * blocks of a small KV cache, which the next micro batch writes over. Only the weights of its
 * layers are loaded. Threads: one owner; each function runs on the team and returns when done. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_H
#define QUIRE_ENGINE_DISTILL_TEACHER_H
#include "engine/distill/loss_head.h"
#include "engine/model/model.h"

struct teacher;
struct teacher_options {
    const char *dir;
    const struct kern_table *kern;
    struct team *team;
    bool dtype_auto;
    enum dtype dtype; /* F32, BF16, F16 */
    enum quantization quantization;
    struct stage_layers layers; /* of this rank */
    uint32_t n_row_max;         /* of a micro batch */
    struct tensor_group tensor_parallel;
};
/* Errors: as model_load. */
FALLIBLE teacher_load(struct teacher **out, const struct teacher_options *o, struct q_err *e);
void teacher_free(struct teacher *t);
const struct model_config *teacher_config(const struct teacher *t);
/* x: [n_row, hidden_size] f32, NULL for a stage with the embedding; *out: the stream at its end,
 * valid until the next call. */
FALLIBLE teacher_forward(struct teacher *t, const struct micro_batch *b, const float *x,
                         const float **out, struct q_err *e);
/* Of a stage with the head: logits of rows of the micro batch that teacher_forward had last. */
struct teacher_source teacher_logits_source(struct teacher *t);
uint64_t teacher_bytes(const struct teacher *t);

#endif
