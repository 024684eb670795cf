/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_writer - writes a folder of a teacher's log-probabilities (teacher_shard.h), or goes on
 * with one: sequences that it has are skipped, a shard that was being written is continued.
 * Threads: one owner; one process has a folder at a time. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_WRITER_H
#define QUIRE_ENGINE_DISTILL_TEACHER_WRITER_H
#include "engine/distill/teacher_shard.h"

struct teacher_writer_options {
    const char *dir; /* made when missing */
    uint32_t top_k, n_vocab;
    const char *teacher;  /* name of the model; cut to TEACHER_NAME_MAX */
    uint64_t shard_bytes; /* a shard ends beyond; 0: 64 MB */
};

struct teacher_writer;
/* Errors: Q_MISMATCH (the folder has another top k, vocabulary or teacher: both values), Q_IO,
 * Q_CORRUPT, Q_UNAVAILABLE (another process writes to the folder), Q_NO_MEMORY. */
FALLIBLE teacher_writer_open(struct teacher_writer **out, const struct teacher_writer_options *o,
                             struct q_err *e);
/* What is not finished stays as it is, to be gone on with. */
void teacher_writer_close(struct teacher_writer *w);
bool teacher_writer_has(const struct teacher_writer *w, const struct teacher_key *key);
uint64_t teacher_writer_count(const struct teacher_writer *w); /* sequences in the folder */

struct teacher_sequence {
    struct teacher_key key;
    uint32_t n_row, n_counted;
    const uint32_t *ids;   /* [n_counted][top_k] ascending in a row */
    const float *logprobs; /* [n_counted][top_k] */
};
/* Errors: Q_IO (disk full: path and reason; what was written before is not lost), Q_NO_MEMORY. */
FALLIBLE teacher_writer_add(struct teacher_writer *w, const struct teacher_sequence *s,
                            struct q_err *e);
/* The last shard gets its index and its name. Errors: Q_IO, Q_NO_MEMORY. */
FALLIBLE teacher_writer_finish(struct teacher_writer *w, struct q_err *e);

#endif
