/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_shard - one file of a teacher's log-probabilities, of the folder that `quire teach`
 * writes (teacher_writer.h) and `quire distill --teacher-file` reads (teacher_file.h).
 *
 *     FOLDER/000000.logprobs, 000001.logprobs, …    complete; a number that grows
 *     FOLDER/000002.logprobs.tmp                    being written
 *
 *     0          256                                          index_at               file_bytes
 *     | head     | entry, ids, values, entry, ids, values, …  | entry, entry, entry …|
 *     ids        u32 [n_counted][top_k], ascending in a row
 *     values     f16 [n_counted][top_k] natural logarithms; then zeros up to a multiple of 8 bytes
 *
 * Little-endian. A sequence is found by its key, a hash of its tokens and of which rows count, so
 * that order, packing and repetitions of the data do not matter. Checksums are XXH3: of the head,
 * of the index, and of each sequence's ids and values. A file without its index (tmp) is resumed
 * behind its last entry whose checksum is right. Threads: reentrant. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_SHARD_H
#define QUIRE_ENGINE_DISTILL_TEACHER_SHARD_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TEACHER_SHARD_SUFFIX   ".logprobs"
#define TEACHER_SHARD_BESIDE   ".tmp"
#define TEACHER_SHARD_NAME_MAX 32u /* bytes of "000000.logprobs.tmp" */
#define TEACHER_SHARD_MAX      999999u
#define TEACHER_NAME_MAX       200u
#define TEACHER_ROWS_MAX       (1u << 24) /* of a sequence */

struct teacher_shard_head {
    char magic[8];
    uint32_t top_k, n_vocab; /* n_vocab 0: not known */
    uint64_t n_entry, index_at, file_bytes, index_sum;
    char teacher[TEACHER_NAME_MAX]; /* whose they are; ends with 0 */
    uint64_t head_sum;              /* of all before */
};
_Static_assert(sizeof(struct teacher_shard_head) == 256, "the layout of the file");

struct teacher_key {
    uint64_t word[2];
};
struct teacher_entry {
    struct teacher_key key;
    uint64_t at; /* of its ids */
    uint32_t n_row, n_counted;
    uint64_t sum;
};
_Static_assert(sizeof(struct teacher_entry) == 40, "the layout of the file");

/* labels: [n] of rows, below 0: the row does not count. */
struct teacher_key teacher_key_of(const uint32_t *ids, const int32_t *labels, uint32_t n);
static inline bool teacher_key_equal(const struct teacher_key *a, const struct teacher_key *b)
{
    return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

/* Of ids and values, with the zeros. */
uint64_t teacher_entry_bytes(const struct teacher_entry *x, uint32_t top_k);
/* Ids and values of an entry: [bytes]; are they what was written? */
uint64_t teacher_entry_sum(const void *data, uint64_t bytes);

/* head with the checksum of itself. */
void teacher_shard_seal(struct teacher_shard_head *head);
/* is_complete: it must have an index. Errors: Q_IO, Q_CORRUPT (path and reason). */
FALLIBLE teacher_shard_read_head(struct teacher_shard_head *out, int fd, const char *path,
                                 bool is_complete, struct q_err *e);
/* out: [n_entry], q_free; each lies within the file. Errors: Q_IO, Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE teacher_shard_read_index(struct teacher_entry **out, const struct teacher_shard_head *head,
                                  int fd, const char *path, struct q_err *e);
/* All n bytes, or Q_IO, or Q_CORRUPT (the file ends before). */
FALLIBLE teacher_shard_read(int fd, const char *path, uint64_t at, void *out, size_t n,
                            struct q_err *e);

/* The numbers of the complete shards of a folder, ascending; q_free. *tmp: the number of the one
 * being written, UINT32_MAX: none. Errors: Q_NOT_FOUND, Q_IO, Q_NO_MEMORY. */
FALLIBLE teacher_shard_list(uint32_t **numbers, size_t *n, uint32_t *tmp, const char *dir,
                            struct q_err *e);
FALLIBLE teacher_shard_path(char out[PATH_MAX], const char *dir, uint32_t number, bool is_tmp,
                            struct q_err *e);

#endif
