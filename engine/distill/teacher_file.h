/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_file - reads a folder of a teacher's log-probabilities (teacher_shard.h): a teacher that
 * is no model. Sequences are found by their tokens; of a micro batch each segment is one. Indices
 * are in memory, what they point to is read when it is needed and not kept, so that memory does not
 * grow with the steps. Files are data from outside: whatever bytes they have, there is an error or
 * rows with ascending ids. Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_FILE_H
#define QUIRE_ENGINE_DISTILL_TEACHER_FILE_H
#include "engine/distill/loss_head.h"
#include "engine/distill/teacher_shard.h"

struct teacher_file_info {
    uint32_t top_k, n_vocab; /* n_vocab 0: not known */
    uint64_t n_sequence, n_position;
    char teacher[TEACHER_NAME_MAX];
};

struct teacher_file;
/* A shard that is still being written is not read. Errors: Q_NOT_FOUND (no folder, no shard in it),
 * Q_IO, Q_CORRUPT, Q_MISMATCH (shards of different teachers), Q_NO_MEMORY. */
FALLIBLE teacher_file_open(struct teacher_file **out, const char *dir, struct q_err *e);
void teacher_file_close(struct teacher_file *f);
const struct teacher_file_info *teacher_file_info(const struct teacher_file *f);
/* Are all segments that count there? For before the first step. Errors: Q_NOT_FOUND (the segment's
 * length and first tokens). */
FALLIBLE teacher_file_check(const struct teacher_file *f, const struct micro_batch *b,
                            struct q_err *e);
/* top_k: 0 or at most that of the file, of whose rows the likeliest are taken; n_student: tokens of
 * the student, columns beyond are left out and stand as an id with probability 0. The source has as
 * many columns as top_k says; it lives as the file does, and there is one of a file. Errors:
 * Q_INVALID (top_k), Q_NO_MEMORY; of its function: Q_NOT_FOUND, Q_IO, Q_CORRUPT. */
FALLIBLE teacher_file_source(struct teacher_file *f, uint32_t top_k, uint32_t n_student,
                             struct teacher_source *out, struct q_err *e);

#endif
