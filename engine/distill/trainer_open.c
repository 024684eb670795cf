/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a rank, in the order in which they need each other: data (lengths), the cut, the
 * schedule (slots), models, buffers, the optimiser, the state of an earlier run. */
#include <math.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/launch.h"
#include "engine/distill/trainer_internal.h"

#define PROGRESS_MS  5000             /* between lines about reading data */
#define RATES        "learning_rates" /* member of what a run depends on */
#define SLOTS_STEADY 4 /* micro batches of a stage, from where on slots are all in use */

struct params *trainer_params(struct trainer *t)
{
    return t->student ? student_params(t->student) : &t->no_params;
}

/* ---- data ---- */

static void say_progress(void *ctx, uint64_t done, uint64_t total)
{
    int64_t *said_ms = ctx;
    const int64_t now = clock_ms();
    if (now - *said_ms < PROGRESS_MS)
        return;
    *said_ms = now;
    log_info("reading data: %.0f %% of %.1f MB", total ? 100 * (double)done / (double)total : 100,
             (double)total / 1e6);
}

static FALLIBLE open_sets(struct trainer *t, struct q_err *e)
{
    int64_t said_ms = clock_ms();
    struct dataset_options o = t->o->data;
    o.team = t->team;
    o.progress = t->top.rank == 0 ? say_progress : NULL;
    o.progress_ctx = &said_ms;
    enum q_code rc = dataset_open(&t->data, &o, e);
    if (rc || !t->o->eval_path)
        return rc;
    o.paths = &t->o->eval_path; /* every sequence once, each a micro batch */
    o.n_path = 1;
    o.shuffle = false;
    o.global_batch = o.micro_batch = 1;
    return dataset_open(&t->eval, &o, e) ? q_wrap(e, "--eval-data") : Q_OK;
}

/* Rank 0 tokenizes; the others read its cache, where they see the same files. */
static FALLIBLE open_data(struct trainer *t, struct q_err *e)
{
    const struct transport_group *all = &t->top.groups[TOPOLOGY_ALL];
    uint64_t done = 1;
    enum q_code rc = t->top.rank == 0 ? open_sets(t, e) : Q_OK;
    if (rc || (rc = transport_max(t->transport, all, &done, e)) ||
        (t->top.rank != 0 && (rc = open_sets(t, e))))
        return rc;
    t->row_max = dataset_counts(t->data)->row_max;
    if (t->eval && dataset_counts(t->eval)->row_max > t->row_max)
        t->row_max = dataset_counts(t->eval)->row_max;
    return Q_OK;
}

/* ---- models ---- */

static enum q_code group_sum(void *ctx, float *x, size_t n, struct q_err *e)
{
    struct trainer *t = ctx;
    return transport_sum_f32(t->transport, &t->top.groups[TOPOLOGY_TENSOR], x, n, e);
}

static enum q_code group_gather(void *ctx, const float *x, size_t n, float *out, struct q_err *e)
{
    struct trainer *t = ctx;
    return transport_gather(t->transport, &t->top.groups[TOPOLOGY_TENSOR], x, n * sizeof *x, out,
                            e);
}

/* Slots of a step of many micro batches: memory is that of the largest global batch from the first
 * step on. */
static FALLIBLE count_slots(const struct trainer *t, uint32_t *n_slot, struct q_err *e)
{
    const struct topology_sizes *s = &t->top.sizes;
    const uint32_t many = SLOTS_STEADY * s->n_student_pipeline * s->n_virtual;
    const struct schedule_options o = topology_schedule(&t->top, many);
    struct schedule schedule = {.items = NULL};
    enum q_code rc = schedule_make(&schedule, &o, t->top.pipeline, e);
    *n_slot = schedule.n_slot > t->schedule.n_slot ? schedule.n_slot : t->schedule.n_slot;
    schedule_release(&schedule);
    return rc;
}

/* Of the rank with the last stage. */
static FALLIBLE make_losses(struct trainer *t, struct q_err *e)
{
    const struct loss_options *o = &t->o->loss;
    struct head_weights head;
    if (!student_head(t->student, &head))
        return Q_OK;
    enum q_code rc = loss_head_new(&t->head, &head, o, e);
    if (!rc && attention_is_asked(&o->attention))
        rc = attention_loss_new(&t->attention, &o->attention, t->o->kern, t->team, t->row_max, e);
    return rc;
}

static FALLIBLE load_student(struct trainer *t, struct q_err *e)
{
    const uint32_t n = t->top.sizes.n_virtual;
    uint32_t n_slot = 0;
    enum q_code rc = count_slots(t, &n_slot, e);
    if (rc)
        return rc;
    if (!(t->stages = q_calloc(n, sizeof *t->stages)))
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages", n);
    for (uint32_t i = 0; i < n; i++)
        t->stages[i] = t->cut.student[topology_student_stage(&t->top, i)];
    const struct student_options o = {
        .dir = t->o->student,
        .kern = t->o->kern,
        .team = t->team,
        .compute = t->o->compute,
        .stages = t->stages,
        .n_stage = n,
        .n_slot = n_slot,
        .n_row_max = t->row_max,
        .recompute = t->o->recompute,
        .n_projection_row = hidden_projection_rows(&t->o->loss.hidden, t->hidden),
        .shares_attention = attention_is_asked(&t->o->loss.attention),
        .tensor_parallel = {t->top.tensor, t->top.sizes.n_student_tensor, group_sum, group_gather,
                            t},
    };
    if (student_load(&t->student, &o, e))
        return q_wrap(e, "--student");
    return make_losses(t, e);
}

static FALLIBLE load_models(struct trainer *t, struct q_err *e)
{
    enum q_code rc;
    if ((rc = trainer_teacher_load(t, e)) || (t->top.has_student && (rc = load_student(t, e))))
        return rc;
    return trainer_teacher_connect(t, e);
}

/* ---- buffers ---- */

static FALLIBLE rows_new(float **out, bool wanted, size_t n, struct q_err *e)
{
    if (wanted && !(*out = q_alloc(n * sizeof **out)))
        return q_fail(e, Q_NO_MEMORY, "no memory for %zu numbers between stages", n);
    return Q_OK;
}

static FALLIBLE make_buffers(struct trainer *t, struct q_err *e)
{
    const size_t rows = t->row_max;
    const struct topology *top = &t->top;
    const bool sends = top->sizes.n_student_pipeline > 1 && t->student;
    const size_t n_number = RANK_NUMBERS + OPTIMIZER_SUMS(t->n_layer);
    enum q_code rc;
    if ((rc = rows_new(&t->buffers.teacher_in,
                       t->n_teacher > 1 || (t->n_teacher && top->teacher_pipeline > 0),
                       rows * t->teacher_hidden, e)) ||
        (rc = rows_new(&t->buffers.forward_in, sends, rows * t->hidden, e)) ||
        (rc = rows_new(&t->buffers.backward_in, sends, rows * t->hidden, e)) ||
        (rc = rows_new(&t->buffers.loss_grads, t->head != NULL,
                       rows * t->hidden * t->schedule.n_slot, e)))
        return rc;
    t->mine = q_calloc(n_number, sizeof *t->mine);
    t->all = q_calloc(n_number * top->n_rank, sizeof *t->all);
    t->rss_mb = q_calloc(top->n_rank, sizeof *t->rss_mb);
    return t->mine && t->all && t->rss_mb
               ? Q_OK
               : q_fail(e, Q_NO_MEMORY, "no memory for the numbers of %u ranks", top->n_rank);
}

/* ---- the state of an earlier run ---- */

static void add_text(struct buf *b, const char *name, const char *text)
{
    buf_printf(b, "\"%s\": ", name);
    buf_add_json_str(b, text, strlen(text));
    buf_add_str(b, ", ");
}

/* Everything that the weights depend on, but for the division into ranks and threads. */
static FALLIBLE describe_run(struct trainer *t, struct q_err *e)
{
    const struct distill_options *o = t->o;
    const struct loss_options *l = &o->loss;
    const struct optimizer_options *p = &o->optimizer;
    const struct dataset_counts *c = dataset_counts(t->data);
    struct buf *b = &t->run;
    buf_add_char(b, '{');
    add_text(b, "teacher", o->teacher ? o->teacher : o->teacher_file ? o->teacher_file : "");
    add_text(b, "student", o->student);
    add_text(b, "dtype", dtype_name(o->compute));
    add_text(b, "teacher_dtype", dtype_name(o->teacher_dtype));
    add_text(b, "teacher_quantization", quantization_name(o->teacher_quantization));
    buf_printf(b,
               "\"samples\": %llu, \"tokens\": %llu, \"data_hash\": \"%016llx\", "
               "\"seq_length\": %u, \"packing\": %d, "
               "\"shuffle\": %d, \"seed\": %llu, \"global_batch_size\": %u, ",
               (unsigned long long)c->n_sample, (unsigned long long)c->n_token,
               (unsigned long long)c->content_sum, o->data.seq_len, o->data.packing,
               o->data.shuffle, (unsigned long long)o->data.seed, o->data.global_batch);
    buf_printf(b,
               "\"loss\": %d, \"beta\": %.9g, \"temperature\": %.9g, \"t2\": %d, "
               "\"kd_weight\": %.17g, \"ce_weight\": %.17g, \"top_k\": %u, \"renorm\": %d, ",
               (int)l->kind, (double)l->beta, (double)l->temperature, l->t2, l->kd_weight,
               l->ce_weight, l->top_k, l->renorm);
    if (l->hidden.kind != HIDDEN_NONE)
        buf_printf(b, "\"hidden_loss\": %d, \"hidden_weight\": %.17g, ", (int)l->hidden.kind,
                   l->hidden.weight);
    if (attention_is_asked(&l->attention))
        buf_printf(b, "\"attention_weight\": %.17g, \"value_weight\": %.17g, ", l->attention.weight,
                   l->attention.value_weight);
    buf_add_str(b, "\"" RATES "\": ");
    trainer_rates_write(b, p);
    buf_printf(b,
               ", \"adam_beta1\": %.17g, \"adam_beta2\": %.17g, \"adam_eps\": %.17g, "
               "\"weight_decay\": %.17g, \"max_grad_norm\": %.17g, \"spike_factor\": %.17g}",
               p->beta1, p->beta2, p->eps, p->weight_decay, p->max_grad_norm, o->spike_factor);
    return buf_check(b, "the description of the run", e);
}

struct checkpoint_run trainer_checkpoint_run(const struct trainer *t)
{
    return (struct checkpoint_run){
        .text = t->run.data,
        .judged = RATES,
        .judge = trainer_rates_judge,
        .ctx = (struct optimizer_options *)(uintptr_t)&t->o->optimizer,
    };
}

static FALLIBLE open_checkpoint(struct trainer *t, struct q_err *e)
{
    const struct checkpoint_options o = {
        .output = t->o->output,
        .student_dir = t->o->student,
        .dtype = t->o->save_dtype,
        .keep_last = t->o->keep_last,
        .keep_steps = t->o->save_steps,
        .n_keep_step = t->o->n_save_step,
        .transport = t->transport,
    };
    double numbers[CHECKPOINT_NUMBERS] = {0};
    enum q_code rc;
    if ((rc = describe_run(t, e)) ||
        (rc = checkpoint_open(&t->checkpoint, &o, trainer_params(t), e)))
        return rc;
    const struct checkpoint_run run = trainer_checkpoint_run(t);
    if ((rc = checkpoint_resume(t->checkpoint, &run, &t->step, numbers, e)))
        return rc;
    if (t->step && !t->o->resume && !launch_n_restart())
        return q_fail(
            e, Q_INVALID,
            "--no-resume: %s has a state of step %llu; choose another --output, or remove "
            "its state-N folders",
            t->o->output, (unsigned long long)t->step);
    memcpy(&t->numbers, numbers, sizeof t->numbers);
    if (t->step && t->student)
        student_params_changed(t->student);
    return Q_OK;
}

/* ---- all ---- */

static FALLIBLE open_report(struct trainer *t, struct q_err *e)
{
    const struct report_options o = {
        .metrics_path = t->o->metrics_path,
        .tensorboard_dir = t->o->tensorboard_dir,
        .metrics_port = t->o->metrics_port,
        .json = t->o->json,
        .quiet = t->o->quiet,
        .first_step = t->step,
        .n_step = t->o->optimizer.n_step,
        .n_rank = t->top.n_rank,
    };
    return t->top.rank ? Q_OK : report_new(&t->report, &o, e);
}

static FALLIBLE make_team(struct trainer *t, struct q_err *e)
{
    const uint32_t of_launcher = launch_n_thread();
    return team_new(&t->team, of_launcher ? of_launcher : t->o->n_thread, true, e);
}

FALLIBLE trainer_open(struct trainer *t, struct q_err *e)
{
    const struct topology_sizes sizes = trainer_sizes(t->o);
    enum q_code rc;
    if ((rc = topology_make(&t->top, &sizes, transport_rank(t->transport),
                            transport_size(t->transport), e)) ||
        (rc = make_team(t, e)) || (rc = open_data(t, e)) ||
        (rc = trainer_cut_choose(&t->cut, t->o, &t->top, e)))
        return rc;
    t->n_micro = t->o->data.global_batch / t->o->data.micro_batch / sizes.n_data;
    t->n_layer = t->cut.student_costs.n_layer;
    t->hidden = t->o->student_hidden;
    t->teacher_hidden = t->o->teacher_hidden;
    const struct schedule_options schedule = topology_schedule(&t->top, t->n_micro);
    if ((rc = schedule_make(&t->schedule, &schedule, t->top.pipeline, e)) ||
        (rc = load_models(t, e)) || (rc = make_buffers(t, e)) ||
        (rc = optimizer_new(&t->optimizer, &t->o->optimizer, trainer_params(t), t->o->kern, t->team,
                            e)) ||
        (rc = open_checkpoint(t, e)) || (rc = open_report(t, e)))
        return rc;
    return trainer_show_cut(t, e);
}

void trainer_close(struct trainer *t)
{
    report_free(t->report);
    checkpoint_close(t->checkpoint);
    optimizer_free(t->optimizer);
    loss_head_free(t->head);
    attention_loss_free(t->attention);
    student_free(t->student);
    trainer_teacher_free(t);
    schedule_release(&t->schedule);
    trainer_cut_release(&t->cut);
    dataset_free(t->eval);
    dataset_free(t->data);
    topology_release(&t->top);
    team_free(t->team);
    q_free(t->stages);
    q_free(t->buffers.teacher_in);
    q_free(t->buffers.forward_in);
    q_free(t->buffers.backward_in);
    q_free(t->buffers.loss_grads);
    q_free(t->mine);
    q_free(t->all);
    q_free(t->rss_mb);
    buf_release(&t->run);
}
