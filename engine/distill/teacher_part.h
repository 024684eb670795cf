/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_part - a rank's part of a teacher whose matrices are divided among tensor-parallel ranks.
 *
 * The executor that serves models runs whole matrices. The student's divides them, so a divided
 * teacher runs on that one (student.h: forward_only): dense families whose operations it has, float
 * checkpoints. Logits: each rank multiplies its rows of the head; they are gathered, so that all
 * ranks have the same bits. Threads: those of teacher.h. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_PART_H
#define QUIRE_ENGINE_DISTILL_TEACHER_PART_H
#include "common/hub/config.h"
#include "engine/distill/micro_batch.h"
#include "engine/distill/teacher_options.h"

struct teacher_part;
/* What teacher_part_load would refuse, from options, config and headers: the cause and what is
 * accepted. Of o: dir, dtype, quantization, tensor_parallel.size. Errors: as student_check. */
FALLIBLE teacher_part_check(const struct teacher_options *o, struct q_err *e);
/* Errors: those of teacher_part_check, Q_NO_MEMORY. */
FALLIBLE teacher_part_load(struct teacher_part **out, const struct teacher_options *o,
                           struct q_err *e);
void teacher_part_free(struct teacher_part *t);
const struct model_config *teacher_part_config(const struct teacher_part *t);
/* x, *out: as teacher_forward, but *out is there with the head too. Errors: the group's. */
FALLIBLE teacher_part_forward(struct teacher_part *t, const struct micro_batch *b, const float *x,
                              const float **out, struct q_err *e);
/* Of a stage with the head: *out [n, vocab_size], valid until the next call; rows: [n] of the last
 * micro batch. All ranks of the group call it. Errors: Q_NO_MEMORY, the group's. */
FALLIBLE teacher_part_logits(struct teacher_part *t, const uint32_t *rows, uint32_t n,
                             const float **out, struct q_err *e);
uint64_t teacher_part_bytes(const struct teacher_part *t);

#endif
