/* SPDX-License-Identifier: Apache-2.0 */
/* trainer - one rank of a run: topology, the loop over steps, evaluation, failures of numbers.
 *
 * Rank r = (d * n_pipeline + p) * n_tensor + t, where n_pipeline and n_tensor are the larger of
 * the student's and the teacher's sizes; stages of the smaller one lie on the last ranks of the
 * pipeline and the first of the tensor group. Teacher and student messages have tags and shapes of
 * their own. N is counted over the global batch of all replicas before the first backward pass.
 * Threads: main; computing: the rank's team. */
#ifndef QUIRE_ENGINE_DISTILL_TRAINER_H
#define QUIRE_ENGINE_DISTILL_TRAINER_H
#include "engine/distill/checkpoint.h"
#include "engine/distill/dataset.h"
#include "engine/distill/loss_head.h"
#include "engine/distill/optimizer.h"
#include "engine/distill/schedule.h"
#include "engine/model/load/load_options.h"

struct distill_options {
    const char *teacher, *student, *output; /* teacher NULL: cross-entropy, or teacher_file */
    const char *teacher_file;
    struct dataset_options data;
    const char *eval_path;
    uint64_t eval_steps;
    struct loss_options loss;
    struct optimizer_options optimizer;
    enum dtype compute;
    enum quantization teacher_quantization;
    bool teacher_dtype_auto;
    enum dtype teacher_dtype;
    uint32_t pipeline, virtual_stages, tensor, data_parallel;
    uint32_t teacher_pipeline, teacher_tensor; /* 0: the student's */
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
    uint32_t n_thread; /* of this rank; 0: its share */
};

uint32_t trainer_n_rank(const struct distill_options *o);
/* All of it: from opening the folders to the last checkpoint. */
FALLIBLE trainer_run(const struct distill_options *o, struct transport *t, struct q_err *e);

#endif
