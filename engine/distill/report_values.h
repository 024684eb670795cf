/* SPDX-License-Identifier: Apache-2.0 */
/* report_values - what a run reports: the cut, steps, evaluations. Threads: values. */
#ifndef QUIRE_ENGINE_DISTILL_REPORT_VALUES_H
#define QUIRE_ENGINE_DISTILL_REPORT_VALUES_H
#include <stdbool.h>
#include "engine/distill/dataset.h"

struct report_rank {                                             /* of the table of the cut */
    uint32_t student_first, student_n, teacher_first, teacher_n; /* layers; n 0: none */
    uint32_t n_stage, n_teacher_stage; /* on this rank; more than one: virtual */
    bool has_embedding, has_head;      /* of the student */
    double share;                      /* of all ranks' work */
    double memory_mb;                  /* weights, gradients, moments, activations */
};
struct report_cut {
    const struct report_rank *ranks; /* [n_rank] */
    uint32_t n_rank;
    double bubble; /* predicted, 0 … 1 */
    uint64_t n_param;
    uint32_t n_micro; /* a step and replica */
    uint32_t n_replica;
    double peak_gflop_s; /* of all ranks; 0: not measured */
    const char *isa;
};

struct report_step {
    uint64_t step;
    double loss, kd_loss, ce_loss;
    bool has_hidden, has_attention, has_values; /* --hidden-loss, --attention-loss */
    double hidden_loss, attention_loss, value_loss;
    double agreement; /* 0 … 1; below 0: no teacher */
    double grad_norm, lr;
    uint64_t n_token;     /* counted */
    double tok_s;         /* all rows */
    double peak;          /* fraction of the machine's; 0: not known */
    double bubble;        /* waited, of all ranks' time */
    double left_s;        /* of the run */
    const double *rss_mb; /* [n_rank] */
    uint32_t n_rank;
    const char *skipped; /* why it changed nothing; NULL: it did */
};
struct report_eval {
    uint64_t step;
    bool has_hidden, has_attention, has_values; /* all as in a step */
    double loss, kd_loss, ce_loss, hidden_loss, attention_loss, value_loss, agreement;
    uint64_t n_token;
};

#endif
