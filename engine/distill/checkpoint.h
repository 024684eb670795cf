/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint - folders that a run writes: models, gradients, the state to resume from.
 *
 *     O/step-N/                  a Hugging Face folder: model.safetensors (shards with an index
 *                                beyond CHECKPOINT_SHARD_BYTES), and the other files of the
 *                                student's folder (config, tokenizer, generation_config, template)
 *     O/gradients-N.safetensors  names of the student's tensors, f32, before clipping
 *     O/state-N/                 state.json (step, what the run depends on) and state.safetensors
 *                                (f32: w.NAME, m.NAME, v.NAME)
 *
 * All ranks write their parts of one file, whose layout each computes from the shapes; rank 0
 * writes headers and copies files. What is not complete has the name NAME.tmp and is renamed when
 * all ranks have written and synced. Files name whole tensors: a run may resume with other stages.
 * Threads: one owner a rank; the functions are called by all ranks together. */
#ifndef QUIRE_ENGINE_DISTILL_CHECKPOINT_H
#define QUIRE_ENGINE_DISTILL_CHECKPOINT_H
#include "engine/distill/params.h"
#include "engine/distill/transport.h"

#define CHECKPOINT_SHARD_BYTES (5000ull * 1000 * 1000)

struct checkpoint_options {
    const char *output;      /* O; made when missing */
    const char *student_dir; /* whose other files are copied */
    enum dtype dtype;        /* of model.safetensors: F32, BF16 or F16 */
    uint32_t keep_last;      /* states and models that were not asked for by step; 0: all */
    struct transport *transport;
};

struct checkpoint;
/* params: this rank's, borrowed. Errors: Q_INVALID (output is not empty and no run of this kind),
 * Q_IO, Q_NO_MEMORY. */
FALLIBLE checkpoint_open(struct checkpoint **out, const struct checkpoint_options *o,
                         struct params *params, struct q_err *e);
void checkpoint_close(struct checkpoint *c);
/* On an error (disk full: Q_IO with the bytes needed and free) nothing earlier is lost and nothing
 * incomplete has its final name; every rank returns the same code. */
FALLIBLE checkpoint_save_model(struct checkpoint *c, uint64_t step, struct q_err *e);
FALLIBLE checkpoint_save_gradients(struct checkpoint *c, uint64_t step, struct q_err *e);
/* run: JSON text of what the run depends on (options, data); a resumption must have the same. */
FALLIBLE checkpoint_save_state(struct checkpoint *c, uint64_t step, const char *run,
                               struct q_err *e);
/* The newest complete state into the masters and moments: *step, 0 when there is none. Errors:
 * Q_MISMATCH (the first option that differs, both values), Q_CORRUPT, Q_IO. */
FALLIBLE checkpoint_resume(struct checkpoint *c, uint64_t *step, const char *run, struct q_err *e);

#endif
