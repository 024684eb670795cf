/* SPDX-License-Identifier: Apache-2.0 */
/* trainer - one rank of a run: the loop over steps, evaluation, failures of numbers.
 *
 * A step: N, the positions that count in the global batch of all replicas; the items of the
 * schedule, each with its messages (topology.h); sums of gradients over copies of a tied table,
 * then over replicas; the norm over all ranks; the update. A step whose loss or norm is not finite,
 * or whose norm is a spike, changes nothing.
 * Threads: main; computing: the rank's team. */
#ifndef QUIRE_ENGINE_DISTILL_TRAINER_H
#define QUIRE_ENGINE_DISTILL_TRAINER_H
#include "engine/distill/checkpoint.h"
#include "engine/distill/dataset.h"
#include "engine/distill/loss_head.h"
#include "engine/distill/optimizer.h"
#include "engine/distill/topology.h"
#include "engine/model/load/load_options.h"

struct distill_options {
    const char *teacher, *student, *output; /* teacher NULL: cross-entropy, or teacher_file */
    const char *teacher_file;
    const char *teacher_url; /* from which teacher_file is written before (distill_taught.h) */
    struct dataset_options data;
    const char *eval_path;
    uint64_t eval_steps;
    struct loss_options loss;
    struct optimizer_options optimizer;
    bool compute_auto, teacher_dtype_auto,
        save_dtype_auto; /* until distill_options_folders decides */
    enum dtype compute, teacher_dtype;
    enum dtype save_dtype; /* of models that are written */
    enum quantization teacher_quantization;
    uint32_t student_hidden, teacher_hidden, teacher_vocab, teacher_layers; /* of the folders */
    bool student_tied;
    uint32_t pipeline, virtual_stages, tensor, data_parallel;
    uint32_t teacher_pipeline, teacher_tensor; /* 0: the student's; 1 */
    bool recompute;
    uint64_t *save_steps; /* [n_save_step] ascending */
    uint32_t n_save_step;
    uint64_t save_every, state_every; /* steps; 0: at the end only */
    uint64_t save_gradients;          /* a step; 0: none */
    uint32_t keep_last;
    bool resume;
    uint32_t max_bad_steps; /* in a row, skipped for NaN or a spike, after which the run ends */
    double spike_factor;    /* of the norm's running mean; 0: no such check */
    const char *metrics_path;
    const char *tensorboard_dir;
    uint32_t metrics_port; /* 0: none */
    bool json, quiet;
    const struct kern_table *kern;
    uint32_t n_thread; /* of all ranks of this machine; 0: as many as there are processors */
};

/* The sizes of the run's topology, with what options leave to others put in. */
struct topology_sizes trainer_sizes(const struct distill_options *o);
/* SIGTERM, SIGINT, SIGHUP and SIGPIPE end the run behind the step that runs. Call it before
 * trainer_run. */
void trainer_catch_signals(void);
/* All of it: from opening the folders to the last checkpoint. *bad_numbers: the error is that the
 * loss or the norm was no number, or a spike, in too many steps in a row. Errors: those of the
 * parts. */
FALLIBLE trainer_run(const struct distill_options *o, struct transport *t, bool *bad_numbers,
                     struct q_err *e);

#endif
