/* SPDX-License-Identifier: Apache-2.0 */
/* dataset - training data: JSONL files to micro batches.
 *
 * A line is one sample: {"input_ids": […], "labels": […]} (same length, unshifted, -100 not
 * counted; labels may be missing: all of input_ids), {"text": "…"}, or {"messages": […]} (rendered
 * by the model's chat template; only tokens of assistant messages count). Samples are tokenized
 * once into a cache file, which is keyed by the contents of data, tokenizer and template.
 * Row t of a segment predicts labels[t + 1].
 *
 * The sequences of step s are a function of (data, seed, options, s) alone: a run resumes by its
 * step. Without packing a sequence is a sample, cut to seq_len; with packing it is samples one
 * after another up to seq_len tokens, each a segment of its own. An epoch takes every sample once,
 * in file order or in an order of the seed and the epoch's number; a step may go on into the next
 * epoch. Every rank opens the same data.
 *
 * Threads: one owner; opening tokenizes on a team. */
#ifndef QUIRE_ENGINE_DISTILL_DATASET_H
#define QUIRE_ENGINE_DISTILL_DATASET_H
#include <stdbool.h>
#include "common/err.h"
#include "common/team.h"
#include "engine/distill/micro_batch.h"

struct dataset_options {
    const char *const *paths; /* [n_path] JSONL files, in this order */
    uint32_t n_path;
    const char *tokenizer_dir; /* model folder; needed for text and messages only */
    const char *cache_dir;     /* made when missing; NULL: a temporary file without a name */
    uint32_t seq_len;          /* tokens of a sequence at most */
    uint32_t vocab_size;       /* ids and labels are below it */
    bool packing, shuffle;
    uint64_t seed;
    uint32_t global_batch, micro_batch; /* sequences; global_batch is a multiple of micro_batch */
    struct team *team;
    void (*progress)(void *ctx, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
    void *progress_ctx;
};

struct dataset_counts {
    uint64_t n_line, n_sample, n_token, n_counted;
    uint64_t n_broken;    /* lines that are no sample: left out, the first ones are in the log with
                             file, line and reason */
    uint64_t n_empty;     /* samples without a counted token: left out with packing only */
    uint64_t n_truncated; /* samples longer than seq_len */
    uint64_t n_sequence;  /* of an epoch */
    uint64_t content_sum; /* a hash of all sequences: of ids, labels and segments */
    uint32_t row_max;     /* of a micro batch at most: micro_batch times the longest sequence */
};

struct dataset;
/* Errors: Q_NOT_FOUND, Q_IO, Q_CORRUPT (no usable sample: counts and the first reason), Q_INVALID
 * (option), Q_NO_MEMORY. */
FALLIBLE dataset_open(struct dataset **out, const struct dataset_options *o, struct q_err *e);
void dataset_free(struct dataset *d);
const struct dataset_counts *dataset_counts(const struct dataset *d);
/* Micro batch i of n = global_batch / micro_batch of step 1, 2, …; valid until the next call with
 * the same `slot` (0 … DATASET_SLOTS - 1). Errors: Q_NO_MEMORY, Q_IO, Q_CORRUPT (the file of
 * tokenized data has changed since it was opened). */
#define DATASET_SLOTS 64u
FALLIBLE dataset_batch(struct dataset *d, uint64_t step, uint32_t i, uint32_t slot,
                       struct micro_batch *out, struct q_err *e);
/* N: counted rows of all micro batches of a step. Errors: as dataset_batch. */
FALLIBLE dataset_n_counted(struct dataset *d, uint64_t step, uint64_t *n, struct q_err *e);

#endif
