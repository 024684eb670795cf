/* SPDX-License-Identifier: Apache-2.0 */
/* teacher - the teacher's stages on one rank: any model that can be served, quantized ones too,
 * through the executor that serves it (engine/model/model.h), without gradients. Over several
 * tensor-parallel ranks each has some of the outputs of every matrix (engine/model/model_shard.h),
 * and all have the bits of one rank.
 *
 * A stage runs some of the layers over one micro batch: each segment is a sequence with its own
 * blocks of a small KV cache, which the next micro batch writes over. Only the weights of its
 * layers are loaded. Threads: one owner; each function runs on the team and returns when done. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_H
#define QUIRE_ENGINE_DISTILL_TEACHER_H
#include "engine/distill/loss_head.h"
#include "engine/distill/teacher_options.h"

struct teacher;
/* What teacher_load would refuse, as far as options, config and headers say it. Of o: all but team
 * and n_row_max. layers: of one of several stages; n 0: there is one. Errors: as teacher_load. */
FALLIBLE teacher_check(const struct teacher_options *o, struct q_err *e);
/* Errors: as model_load. */
FALLIBLE teacher_load(struct teacher **out, const struct teacher_options *o, struct q_err *e);
void teacher_free(struct teacher *t);
const struct model_config *teacher_config(const struct teacher *t);
/* x: [n_row, hidden_size] f32, NULL for a stage with the embedding; *out: the stream at its end,
 * valid until the next call, NULL of a stage with the head. Errors: Q_INVALID (a token beyond the
 * teacher's vocabulary, a sequence longer than it takes, more rows than n_row_max), Q_NO_MEMORY,
 * those of the tensor group. */
FALLIBLE teacher_forward(struct teacher *t, const struct micro_batch *b, const float *x,
                         const float **out, struct q_err *e);
/* Of a stage with the head: logits of rows of the micro batch that teacher_forward had last. All
 * ranks of a tensor group ask for the same rows. Errors of its function: Q_NO_MEMORY, those of the
 * group. */
struct teacher_source teacher_logits_source(struct teacher *t);
uint64_t teacher_bytes(const struct teacher *t);

#endif
