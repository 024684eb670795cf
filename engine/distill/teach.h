/* SPDX-License-Identifier: Apache-2.0 */
/* teach - writes a folder of a teacher's log-probabilities (teacher_writer.h) for all sequences of
 * some data, by a server (teacher_url.h) or a model that is loaded here (teacher.h). Sequences that
 * the folder has are skipped, so that an interrupted run goes on. Threads: main. */
#ifndef QUIRE_ENGINE_DISTILL_TEACH_H
#define QUIRE_ENGINE_DISTILL_TEACH_H
#include "engine/distill/dataset.h"
#include "engine/distill/loss_head.h"
#include "engine/distill/teacher_url.h"
#include "engine/distill/teacher_writer.h"
#include "engine/model/load/load_options.h"

struct teach_options {
    struct dataset_options data; /* batches are set here */
    const char *output;
    uint32_t top_k;
    struct teacher_url_options url; /* url.url NULL: a model here */
    const char *dir;                /* of the model, and what it is called in the files */
    const char *name;
    bool dtype_auto;
    enum dtype dtype;
    enum quantization quantization;
    const struct kern_table *kern;
    struct team *team;
    atomic_bool *stop; /* set: end behind the sequence at hand, Q_CANCELLED */
    bool quiet;        /* no progress on standard error */
};

struct teach_counts {
    uint64_t n_sequence, n_position; /* of this run */
    uint64_t n_skipped;              /* sequences that were there, or are there twice */
};
/* Errors: those of dataset_open, teacher_writer_open, teacher_url_run or teacher_load. */
FALLIBLE teach_run(const struct teach_options *o, struct teach_counts *counts, struct q_err *e);

/* ---- its parts (teach_model.c) ---- */

/* Of n rows of logits the top k with their log-probabilities: ids ascending in a row, of equal
 * logits the lowest ids. z: [n, n_col]; ids, logprobs: [n, k]. Runs on the team (NULL: alone). */
struct teach_rows {
    const float *z;
    size_t stride;
    uint32_t n, n_col, k;
    uint32_t *ids;
    float *logprobs;
};
void teach_top_k(const struct teach_rows *r, const struct kern_table *kern, struct team *team);

/* Where samples come from and go to: as struct teacher_url_calls, but of micro batches. */
struct teach_model_calls {
    enum q_code (*next)(void *ctx, struct micro_batch *b, bool *end, struct q_err *e);
    /* All rows of the batch that count: [n_counted][top_k]. */
    enum q_code (*take)(void *ctx, const struct micro_batch *b, const uint32_t *ids,
                        const float *logprobs, struct q_err *e);
    void *ctx;
};
FALLIBLE teach_model_run(const struct teach_options *o, uint32_t n_row_max,
                         const struct teach_model_calls *calls, struct q_err *e);

#endif
