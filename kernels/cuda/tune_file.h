/* SPDX-License-Identifier: Apache-2.0 */
/* tune_file - choices of algorithms (lt.h) on disk: one file per card, driver and version of the
 * library, because an algorithm is valid for these only. Text, one choice per line:
 *
 *     quire-tune 2
 *     card NVIDIA H100 80GB HBM3
 *     capability 9.0
 *     driver 13000
 *     library 130100
 *     bf16 28672 4096 gated 2048 sums 33554432 0000000000000036 … (8 numbers)
 *     e4m3 4096 4096 y,accumulate 2048 lt 0 0000000000000036 …
 *     bf16 4096 4096 y,accumulate 256 own
 *     sum 9e3779b97f4a7c15     (card_file.h)
 *
 * kind, n_out, n_in, flags of the shape ("-": none), rows of the bucket, implementation (own, lt, or
 * sums: the library's algorithm, by_sums); for an algorithm also its bytes of workspace and its
 * description. Every value is checked: by the
 * library, which rejects an algorithm that does not fit, and by the limits of tune_parse.
 *
 * An unusable file costs another tuning and never a failed start. The file is replaced atomically
 * and keeps entries that another process added meanwhile; if two processes write at once, the later
 * file remains.
 * Threads: pure functions, and files. */
#ifndef QUIRE_KERNELS_CUDA_TUNE_FILE_H
#define QUIRE_KERNELS_CUDA_TUNE_FILE_H
#include "common/buf.h"
#include "kernels/cuda/card_file.h"
#include "kernels/cuda/lt.h"

#define TUNE_ENTRIES_MAX (LT_SHAPES_MAX * LT_BUCKETS)
#define TUNE_FILE_MAX    (1u << 20) /* bytes */

struct tune_card { /* identifies the file */
    struct card card;
    uint64_t library; /* cublasLtGetVersion */
};
struct tune_entry {
    struct lt_shape shape;
    uint32_t bucket;
    struct lt_choice choice;
};
struct tune_table {
    struct tune_entry *entries;
    size_t n, room;
};
/* clang-format off */
#define TUNE_TABLE_INIT {NULL, 0, 0}
/* clang-format on */
void tune_table_release(struct tune_table *t);
const struct tune_entry *tune_find(const struct tune_table *t, const struct lt_shape *s,
                                   uint32_t bucket);
/* Add an entry; it replaces the one of the same shape and bucket. Errors: Q_NO_MEMORY,
 * Q_TOO_LARGE. */
FALLIBLE tune_add(struct tune_table *t, const struct tune_entry *x, struct q_err *e);

/* t is empty before, and after an error: Q_CORRUPT (line and reason), Q_MISMATCH (another card,
 * driver or library; the message names it), Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE tune_parse(struct tune_table *t, const struct tune_card *card, const char *text, size_t n,
                    struct q_err *e);
void tune_print(struct buf *out, const struct tune_table *t, const struct tune_card *card);

/* Errors: as tune_parse; Q_NOT_FOUND, Q_IO. */
FALLIBLE tune_load(struct tune_table *t, const struct tune_card *card, const char *dir,
                   struct q_err *e);
/* Creates the folder and adds to t the entries that are only in the file. Errors: Q_IO,
 * Q_TOO_LARGE. */
FALLIBLE tune_save(struct tune_table *t, const struct tune_card *card, const char *dir,
                   struct q_err *e);

#endif
