/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint - folders that a run writes: models, gradients, the state to resume from.
 *
 *     O/step-N/                  a Hugging Face folder: model.safetensors (shards with an index
 *                                beyond shard_bytes), and the other files of the student's folder
 *                                (config with the dtype that is written, tokenizer,
 *                                generation_config, template)
 *     O/gradients-N.safetensors  names of the student's tensors, f32, before clipping
 *     O/state-N/                 state.json (step, what the run depends on, numbers, checksums)
 *                                and state.safetensors (f32: w.NAME, m.NAME, v.NAME)
 *     O/state-N.bad/             a state that could not be read, set aside
 *
 * All ranks write their parts of one file, whose layout each computes from the tensors that all
 * ranks tell each other at the beginning; rank 0 writes headers and copies files. A part that
 * several ranks have (replicas, what tensor parallelism repeats) is written by the first of them.
 * What is not complete has the name NAME.tmp and is renamed when all ranks have written and synced.
 * Files name whole tensors: a run may resume with other stages.
 * Threads: one owner a rank; the functions are called by all ranks together, and all of them return
 * the same code, with the message of the first rank that failed. */
#ifndef QUIRE_ENGINE_DISTILL_CHECKPOINT_H
#define QUIRE_ENGINE_DISTILL_CHECKPOINT_H
#include "engine/distill/params.h"
#include "engine/distill/transport.h"

#define CHECKPOINT_SHARD_BYTES (5000ull * 1000 * 1000)
#define CHECKPOINT_NUMBERS     8u

struct checkpoint_options {
    const char *output;         /* O; made when missing */
    const char *student_dir;    /* whose other files are copied */
    enum dtype dtype;           /* of model.safetensors: F32, BF16 or F16 */
    uint64_t shard_bytes;       /* of data in a file; 0: CHECKPOINT_SHARD_BYTES */
    uint32_t keep_last;         /* states, and models besides keep_steps; 0: all */
    const uint64_t *keep_steps; /* [n_keep_step] steps whose models stay; borrowed */
    uint32_t n_keep_step;
    struct transport *transport;
};

/* May checkpoints lie in this folder? Errors: Q_INVALID (a file, or a model folder), Q_IO. */
FALLIBLE checkpoint_check_output(const char *dir, struct q_err *e);

struct checkpoint;
/* params: this rank's, borrowed. What an interrupted run has left (NAME.tmp) is removed. Errors:
 * Q_INVALID (output is a model folder or a file, another run writes there), Q_IO (also: no room for
 * one model and one state, with the bytes needed and free), Q_MISMATCH (parts of a tensor are on no
 * rank), Q_NO_MEMORY. */
FALLIBLE checkpoint_open(struct checkpoint **out, const struct checkpoint_options *o,
                         struct params *params, struct q_err *e);
void checkpoint_close(struct checkpoint *c);
/* On an error (disk full: Q_IO with the bytes needed and free) nothing earlier is lost and nothing
 * incomplete has its final name. A checkpoint of the same step is replaced. */
FALLIBLE checkpoint_save_model(struct checkpoint *c, uint64_t step, struct q_err *e);
FALLIBLE checkpoint_save_gradients(struct checkpoint *c, uint64_t step, struct q_err *e);

struct checkpoint_run { /* borrowed */
    const char *text;   /* JSON object of what the run depends on (options, data); a resumption must
                         * have the same members */
    const char *judged; /* but for this one, which need not be equal; NULL: none */
    /* May a state of `step` with this JSON text of that member go on? Errors: Q_MISMATCH. */
    enum q_code (*judge)(void *ctx, uint64_t step, const char *before, struct q_err *e);
    void *ctx;
};
/* numbers: [CHECKPOINT_NUMBERS] finite, what else the next step needs; that of rank 0 counts. */
FALLIBLE checkpoint_save_state(struct checkpoint *c, uint64_t step,
                               const struct checkpoint_run *run, const double *numbers,
                               struct q_err *e);
/* The newest state into the masters and moments: *step, 0 and zeros in `numbers` when there is
 * none. A state that is incomplete or has a wrong checksum is named in the log, the one before is
 * taken, and the folder is renamed to state-N.bad. Errors: Q_MISMATCH (the first member of run that
 * differs, both values; a tensor), Q_CORRUPT (no state can be read; all remain), Q_IO. */
FALLIBLE checkpoint_resume(struct checkpoint *c, const struct checkpoint_run *run, uint64_t *step,
                           double *numbers, struct q_err *e);

#endif
