/* SPDX-License-Identifier: Apache-2.0 */
/* sequence_file - tokenized sequences on disk: written once in order, read at random.
 *
 *     0            SEQUENCE_FILE_HEAD                    index_at           notes_at        size
 *     | head        | record, record, …                  | index entries     | text          |
 *     record        u32 n_segment, u32 flags, u32 rows of each segment [n_segment],
 *                   u32 ids [n_row], and i32 labels [n_row] (SEQUENCE_LABELS) or u32 bits
 *                   [ceil(n_row / 32)]: the label of the position is its id
 *     index entry   u64 place of the record, u32 n_row, u32 n_counted
 * Little-endian. The head has two checksums (XXH3): of itself, and of all behind it, which
 * sequence_file_open compares. What a record says is checked again when it is read, so that a file
 * of any bytes gives sequences of the stated size or an error. Records are read, not mapped: the
 * resident memory does not grow with the steps.
 * Threads: one owner each. */
#ifndef QUIRE_ENGINE_DISTILL_SEQUENCE_FILE_H
#define QUIRE_ENGINE_DISTILL_SEQUENCE_FILE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define SEQUENCE_FILE_KEY  32u  /* bytes */
#define SEQUENCE_FILE_HEAD 256u /* bytes */
#define SEQUENCE_NOTES_MAX 16384u

struct sequence_totals {
    uint64_t n_line, n_sample, n_broken, n_empty, n_truncated; /* of the data that it is made of */
    uint64_t n_sequence, n_token, n_counted;
    uint32_t longest; /* rows of the longest sequence */
};

struct sequence { /* in memory */
    uint32_t n_row, n_segment, n_counted;
    const uint32_t *ids;    /* [n_row] */
    const int32_t *labels;  /* [n_row] of the positions themselves; -1: not counted */
    const uint32_t *n_rows; /* [n_segment] rows of each segment */
};

/* ---- writing ---- */

struct sequence_writer;
/* path NULL: a file without a name, which goes when it is closed. Errors: Q_IO, Q_NO_MEMORY. */
FALLIBLE sequence_writer_new(struct sequence_writer **out, const char *path, struct q_err *e);
/* Errors: Q_IO (disk full: the path and the bytes that it has). */
FALLIBLE sequence_writer_add(struct sequence_writer *w, const struct sequence *s, struct q_err *e);
/* The end of the file: index, notes, head. t: the first group of its fields is taken, the others
 * are counted here. *fd: the open file, the caller's. */
FALLIBLE sequence_writer_finish(struct sequence_writer *w, const char key[SEQUENCE_FILE_KEY],
                                const struct sequence_totals *t, const char *notes, int *fd,
                                struct q_err *e);
void sequence_writer_free(struct sequence_writer *w); /* an unfinished file is removed */

/* ---- reading ---- */

struct sequence_file;
/* fd becomes the file's, also after an error. key NULL: any. vocab_size: ids and labels are below
 * it. Errors: Q_CORRUPT, Q_MISMATCH (another key), Q_IO, Q_NO_MEMORY. */
FALLIBLE sequence_file_open(struct sequence_file **out, int fd, const char *key,
                            uint32_t vocab_size, struct q_err *e);
void sequence_file_close(struct sequence_file *f);
const struct sequence_totals *sequence_file_totals(const struct sequence_file *f);
const char *sequence_file_notes(const struct sequence_file *f);
/* A hash of all records and their index. */
uint64_t sequence_file_content_sum(const struct sequence_file *f);
/* i < n_sequence. Errors: Q_CORRUPT, Q_IO. */
FALLIBLE sequence_file_size(const struct sequence_file *f, uint64_t i, uint32_t *n_row,
                            uint32_t *n_counted, struct q_err *e);
/* *out: valid until the next call. Errors: Q_CORRUPT, Q_IO, Q_NO_MEMORY. */
FALLIBLE sequence_file_read(struct sequence_file *f, uint64_t i, struct sequence *out,
                            struct q_err *e);

#endif
