/* SPDX-License-Identifier: Apache-2.0 */
/* Held-out data: every sequence once, each a micro batch of its own, forward only. Replica d of D
 * takes sequences d + 1, d + 1 + D, … */
#include <math.h>
#include "engine/distill/trainer_internal.h"

enum {
    SUM_KD,
    SUM_CE,
    SUM_HIDDEN,
    SUM_ATTENTION,
    SUM_VALUES,
    SUM_AGREE,
    SUM_COUNTED,
    SUM_HAS_TEACHER,
    N_SUM
};

static FALLIBLE run_passes(struct trainer *t, uint32_t n_micro, struct pass_sums *sums,
                           struct q_err *e)
{
    struct schedule_options options = topology_schedule(&t->top, n_micro);
    struct schedule schedule = {.items = NULL};
    options.forward_only = true;
    enum q_code rc = schedule_make(&schedule, &options, t->top.pipeline, e);
    const struct trainer_pass pass = {
        .data = t->eval,
        .schedule = &schedule,
        .step = 1,
        .micro_at = t->top.data,
        .stride = t->top.sizes.n_data,
        .each_is_a_step = true,
        .n_position = 1,
    };
    if (!rc)
        rc = trainer_pass_run(t, &pass, sums, e);
    schedule_release(&schedule);
    return rc;
}

static FALLIBLE show(struct trainer *t, const double *sums, struct q_err *e)
{
    const double n = fmax(1, sums[SUM_COUNTED]);
    const double kd = sums[SUM_HAS_TEACHER] > 0 ? sums[SUM_KD] / n : (double)NAN,
                 ce = sums[SUM_CE] / n, hidden = sums[SUM_HIDDEN] / n,
                 attention = sums[SUM_ATTENTION] / n, values = sums[SUM_VALUES] / n;
    const struct loss_options *l = &t->o->loss;
    const struct report_eval line = {
        .step = t->step,
        .has_hidden = l->hidden.kind != HIDDEN_NONE,
        .loss = (l->kd_weight > 0 ? l->kd_weight * kd : 0) + l->ce_weight * ce +
                l->hidden.weight * hidden + l->attention.weight * attention +
                l->attention.value_weight * values,
        .kd_loss = kd,
        .ce_loss = ce,
        .hidden_loss = hidden,
        .has_attention = l->attention.weight > 0,
        .attention_loss = attention,
        .has_values = l->attention.value_weight > 0,
        .value_loss = values,
        .agreement = sums[SUM_HAS_TEACHER] > 0 ? sums[SUM_AGREE] / n : -1,
        .n_token = (uint64_t)sums[SUM_COUNTED],
    };
    return report_eval(t->report, &line, e);
}

FALLIBLE trainer_evaluate(struct trainer *t, struct q_err *e)
{
    const uint32_t n_replica = t->top.sizes.n_data;
    const uint64_t n = dataset_counts(t->eval)->n_sequence;
    const uint64_t here = n > t->top.data ? (n - t->top.data + n_replica - 1) / n_replica : 0;
    struct pass_sums pass = {.n_row = 0};
    double sums[N_SUM] = {0};
    enum q_code rc = here ? run_passes(t, (uint32_t)here, &pass, e) : Q_OK;
    if (rc)
        return rc;
    if (trainer_has_sums(t)) {
        sums[SUM_KD] = pass.loss.kd;
        sums[SUM_CE] = pass.loss.ce;
        sums[SUM_HIDDEN] = pass.loss.hidden;
        sums[SUM_ATTENTION] = pass.attention.attention;
        sums[SUM_VALUES] = pass.attention.values;
        sums[SUM_AGREE] = (double)pass.loss.n_agree;
        sums[SUM_COUNTED] = (double)pass.loss.n_counted;
        sums[SUM_HAS_TEACHER] = t->eval_has_teacher;
    }
    if ((rc = transport_sum_f64(t->transport, &t->top.groups[TOPOLOGY_ALL], sums, N_SUM, e)))
        return rc;
    return t->report ? show(t, sums, e) : Q_OK;
}
