/* SPDX-License-Identifier: Apache-2.0 */
/* A step: passes, sums of gradients, one exchange of numbers from which every rank comes to the
 * same decision, the update.
 *
 * A copy of a tied table: both ranks add both gradients, in the order of ranks, so that the copies
 * stay equal bit for bit; then replicas are added. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/distill/trainer_internal.h"
#include "engine/model/forward/program.h"

#define NORMS_BEFORE_SPIKES 20  /* norms in the running mean before one of them is a spike */
#define NORMS_MEAN          100 /* over how many the mean runs */
#define TIME_MEAN           0.1 /* weight of the last step in the mean time of a step */
#define STUDENT_PASSES      3   /* forward, and twice as much backward */

double trainer_row_flop(const struct trainer *t)
{
    const double passes = STUDENT_PASSES + (t->o->recompute ? 1 : 0);
    const double student = model_costs_row(&t->cut.student_costs);
    const double head = t->cut.student_costs.head;
    return passes * (student - head) + STUDENT_PASSES * head +
           (t->o->teacher ? model_costs_row(&t->cut.teacher_costs) : 0);
}

/* ---- gradients ---- */

/* The parameter that is the embedding and the head of two ranks; NULL: none here. */
static const struct param *tied_part(struct trainer *t)
{
    const struct params *p = trainer_params(t);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->all[i].is_copy)
            return &p->all[i];
    return params_find(p, PROGRAM_W_EMBED, PROGRAM_NO_LAYER);
}

static FALLIBLE sum_gradients(struct trainer *t, struct q_err *e)
{
    const struct transport_group *ends = &t->top.groups[TOPOLOGY_EMBEDDING];
    const struct transport_group *replicas = &t->top.groups[TOPOLOGY_DATA];
    struct params *p = trainer_params(t);
    if (t->o->student_tied && ends->n > 1) {
        const struct param *tied = tied_part(t);
        Q_ASSERT(tied); /* the first and the last stage have one */
        enum q_code rc = transport_sum_f32(t->transport, ends, p->g + tied->at,
                                           (size_t)tied->n_row * tied->n_col, e);
        if (rc)
            return rc;
    }
    return replicas->n > 1 ? transport_sum_f32(t->transport, replicas, p->g, p->n_element, e)
                           : Q_OK;
}

/* ---- numbers of all ranks ---- */

struct step_numbers {
    uint64_t step, n_counted;
    double kd, ce, hidden, attention, values, agree, n_row; /* sums */
    double norm, seconds;
    double waited_s, elapsed_s; /* of all ranks, until they told each other */
    int64_t start_us;
    bool stop;
};

static FALLIBLE exchange(struct trainer *t, const struct pass_sums *sums, int64_t start_us,
                         struct q_err *e)
{
    const bool counts = trainer_has_sums(t);
    const size_t n = RANK_NUMBERS + OPTIMIZER_SUMS(t->n_layer);
    const struct rank_numbers mine = {
        .kd = counts ? sums->loss.kd : 0,
        .ce = counts ? sums->loss.ce : 0,
        .hidden = counts ? sums->loss.hidden : 0,
        .attention = counts ? sums->attention.attention : 0,
        .values = counts ? sums->attention.values : 0,
        .agree = counts ? (double)sums->loss.n_agree : 0,
        .n_row = counts ? (double)sums->n_row : 0,
        .waited_s = transport_waited(t->transport),
        .elapsed_s = (double)(clock_us() - start_us) / 1e6,
        .rss_mb = trainer_rss_mb(),
        .stop = trainer_signalled(),
    };
    memcpy(t->mine, &mine, sizeof mine);
    optimizer_square_sums(t->optimizer, t->n_layer, t->mine + RANK_NUMBERS);
    return transport_gather(t->transport, &t->top.groups[TOPOLOGY_ALL], t->mine,
                            n * sizeof *t->mine, t->all, e);
}

/* The norm: a sum for each layer over the ranks of the first replica, then over layers. */
static double norm_of(const struct trainer *t)
{
    const size_t n = OPTIMIZER_SUMS(t->n_layer), stride = RANK_NUMBERS + n;
    const uint32_t n_rank = t->top.n_rank / t->top.sizes.n_data;
    double all = 0;
    for (size_t i = 0; i < n; i++) {
        double layer = 0;
        for (uint32_t r = 0; r < n_rank; r++)
            layer += t->all[r * stride + RANK_NUMBERS + i];
        all += layer;
    }
    return sqrt(all);
}

static void add_up(struct trainer *t, struct step_numbers *s)
{
    const size_t stride = RANK_NUMBERS + OPTIMIZER_SUMS(t->n_layer);
    for (uint32_t r = 0; r < t->top.n_rank; r++) {
        struct rank_numbers here;
        memcpy(&here, t->all + r * stride, sizeof here);
        s->kd += here.kd;
        s->ce += here.ce;
        s->hidden += here.hidden;
        s->attention += here.attention;
        s->values += here.values;
        s->agree += here.agree;
        s->n_row += here.n_row;
        s->waited_s += here.waited_s;
        s->elapsed_s += here.elapsed_s;
        s->stop |= here.stop > 0;
        t->rss_mb[r] = here.rss_mb;
    }
    s->norm = norm_of(t);
}

/* ---- the update, or none ---- */

static double loss_of(const struct trainer *t, const struct step_numbers *s)
{
    const struct loss_options *l = &t->o->loss;
    const double sum = l->kd_weight * s->kd + l->ce_weight * s->ce + l->hidden.weight * s->hidden +
                       l->attention.weight * s->attention + l->attention.value_weight * s->values;
    return s->n_counted ? sum / (double)s->n_counted : 0;
}

/* Why the step changes nothing, into text; false: it does. */
static bool is_bad(const struct trainer *t, const struct step_numbers *s, char *text, size_t size)
{
    const struct trainer_numbers *n = &t->numbers;
    const double loss = loss_of(t, s), factor = t->o->spike_factor;
    if (!isfinite(loss))
        snprintf(text, size, "the loss is %g", loss);
    else if (!isfinite(s->norm))
        snprintf(text, size, "the norm of the gradients is %g", s->norm);
    else if (factor > 0 && n->n_norm >= NORMS_BEFORE_SPIKES && s->norm > factor * n->norm_mean)
        snprintf(text, size, "the norm of the gradients is %g, above %g times its mean %g", s->norm,
                 factor, n->norm_mean);
    else
        return false;
    return true;
}

static void update(struct trainer *t, const struct step_numbers *s)
{
    struct trainer_numbers *n = &t->numbers;
    n->n_bad = 0;
    n->n_update++;
    n->n_norm++;
    n->norm_mean += (s->norm - n->norm_mean) / fmin(n->n_norm, NORMS_MEAN);
    optimizer_step(t->optimizer, s->step, (uint64_t)n->n_update, s->norm);
    if (t->student)
        student_params_changed(t->student);
}

/* ---- the report ---- */

static FALLIBLE report(struct trainer *t, const struct step_numbers *s, const char *skipped,
                       struct q_err *e)
{
    const double n = s->n_counted ? (double)s->n_counted : 1;
    const bool has_teacher = t->o->teacher || t->o->teacher_file;
    const double peak = t->peak_gflop_s * 1e9 * s->seconds;
    t->step_s += (t->step_s > 0 ? TIME_MEAN : 1) * (s->seconds - t->step_s);
    const struct report_step line = {
        .step = s->step,
        .loss = loss_of(t, s),
        .kd_loss = s->kd / n,
        .ce_loss = s->ce / n,
        .has_hidden = t->o->loss.hidden.kind != HIDDEN_NONE,
        .hidden_loss = s->hidden / n,
        .has_attention = t->o->loss.attention.weight > 0,
        .attention_loss = s->attention / n,
        .has_values = t->o->loss.attention.value_weight > 0,
        .value_loss = s->values / n,
        .agreement = has_teacher ? s->agree / n : -1,
        .grad_norm = s->norm,
        .lr = optimizer_lr(&t->o->optimizer, s->step),
        .n_token = s->n_counted,
        .tok_s = s->n_row / s->seconds,
        .peak = peak > 0 ? s->n_row * trainer_row_flop(t) / peak : 0,
        .bubble = s->waited_s / fmax(1e-6, s->elapsed_s),
        .left_s = t->step_s * (double)(t->o->optimizer.n_step - s->step),
        .rss_mb = t->rss_mb,
        .n_rank = t->top.n_rank,
        .skipped = skipped,
    };
    return report_step(t->report, &line, e);
}

static FALLIBLE run_passes(struct trainer *t, struct step_numbers *s, struct q_err *e)
{
    const struct trainer_pass pass = {
        .data = t->data,
        .schedule = &t->schedule,
        .step = s->step,
        .micro_at = t->top.data * t->n_micro,
        .stride = 1,
        .trains = true,
        .n_position = (double)s->n_counted,
    };
    struct pass_sums sums = {.n_row = 0};
    enum q_code rc = Q_OK;
    (void)transport_waited(t->transport); /* from here on */
    params_zero_gradients(trainer_params(t));
    if (s->n_counted && ((rc = trainer_pass_run(t, &pass, &sums, e)) || (rc = sum_gradients(t, e))))
        return rc;
    if ((rc = exchange(t, &sums, s->start_us, e)))
        return rc;
    add_up(t, s);
    return Q_OK;
}

static FALLIBLE fail_numbers(const struct trainer *t, const struct step_numbers *s,
                             const char *text, struct q_err *e)
{
    return q_fail(
        e, Q_INTERNAL,
        "step %llu: %s; %.0f steps in a row were skipped (--max-bad-steps). The last state "
        "in %s is of before; a lower --lr, --max-grad-norm or other data may help",
        (unsigned long long)s->step, text, t->numbers.n_bad, t->o->output);
}

FALLIBLE trainer_step(struct trainer *t, bool *stop, bool *bad_numbers, struct q_err *e)
{
    struct step_numbers s = {.step = t->step + 1, .start_us = clock_us()};
    char skipped[160] = "";
    enum q_code rc;
    if ((rc = dataset_n_counted(t->data, s.step, &s.n_counted, e)) || (rc = run_passes(t, &s, e)))
        return rc;
    if (t->o->save_gradients == s.step &&
        (rc = checkpoint_save_gradients(t->checkpoint, s.step, e)))
        return rc;
    const bool bad = is_bad(t, &s, skipped, sizeof skipped);
    if (bad)
        t->numbers.n_bad++;
    else if (s.n_counted)
        update(t, &s);
    else
        snprintf(skipped, sizeof skipped, "no token counts");
    s.seconds = fmax(1e-6, (double)(clock_us() - s.start_us) / 1e6);
    t->step = s.step;
    *stop = s.stop;
    if (t->report && *skipped)
        log_warning("step %llu is skipped: %s", (unsigned long long)s.step, skipped);
    if (t->report && (rc = report(t, &s, *skipped ? skipped : NULL, e)))
        return rc;
    *bad_numbers = bad && t->numbers.n_bad >= t->o->max_bad_steps;
    return *bad_numbers ? fail_numbers(t, &s, skipped, e) : Q_OK;
}
