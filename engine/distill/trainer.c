/* SPDX-License-Identifier: Apache-2.0 */
/* The loop over steps, and what is written behind them. The parts: trainer_open.c; a step:
 * trainer_step.c. */
#include "engine/distill/trainer.h"
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/mem.h"
#include "engine/distill/launch.h"
#include "engine/distill/trainer_internal.h"

static volatile sig_atomic_t signalled;

static void note_signal(int number)
{
    signalled = number;
}

/* Without a launcher a second signal ends the process; of launched ranks, which may get one from a
 * service manager and again from the launcher, the launcher kills what does not end. */
void trainer_catch_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART | (launch_is_rank() ? 0 : (int)SA_RESETHAND);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
    action.sa_flags = SA_RESTART; /* each write to a pipe whose reader has ended sends one */
    sigaction(SIGPIPE, &action, NULL);
}

bool trainer_signalled(void)
{
    return signalled != 0;
}

/* The teacher's default is one tensor rank, which sends least. It may have the student's virtual
 * stages where each of them gets a layer; trainer_cut_choose decides. */
struct topology_sizes trainer_sizes(const struct distill_options *o)
{
    struct topology_sizes s = {
        .n_student_pipeline = o->pipeline,
        .n_virtual = o->virtual_stages,
        .n_student_tensor = o->tensor,
        .n_data = o->data_parallel,
    };
    if (o->teacher) {
        s.n_teacher_pipeline = o->teacher_pipeline ? o->teacher_pipeline : o->pipeline;
        s.n_teacher_tensor = o->teacher_tensor ? o->teacher_tensor : 1;
        s.n_teacher_virtual = schedule_divides_teacher(o->pipeline, s.n_teacher_pipeline) &&
                                      o->teacher_layers / s.n_teacher_pipeline >= o->virtual_stages
                                  ? o->virtual_stages
                                  : 1;
    }
    return s;
}

/* ---- behind a step ---- */

static bool is_asked(const struct distill_options *o, uint64_t step)
{
    for (uint32_t i = 0; i < o->n_save_step; i++)
        if (o->save_steps[i] == step)
            return true;
    return step == o->optimizer.n_step || (o->save_every && step % o->save_every == 0);
}

static FALLIBLE save_state(struct trainer *t, struct q_err *e)
{
    double numbers[CHECKPOINT_NUMBERS] = {0};
    const struct checkpoint_run run = trainer_checkpoint_run(t);
    memcpy(numbers, &t->numbers, sizeof t->numbers);
    return checkpoint_save_state(t->checkpoint, t->step, &run, numbers, e);
}

static FALLIBLE save(struct trainer *t, bool stop, struct q_err *e)
{
    const struct distill_options *o = t->o;
    const bool is_last = t->step == o->optimizer.n_step;
    const bool with_state = stop || is_last || (o->state_every && t->step % o->state_every == 0);
    enum q_code rc = Q_OK;
    if (is_asked(o, t->step) && (rc = checkpoint_save_model(t->checkpoint, t->step, e)))
        return rc;
    return with_state ? save_state(t, e) : Q_OK;
}

static FALLIBLE evaluate(struct trainer *t, struct q_err *e)
{
    const struct distill_options *o = t->o;
    const bool is_last = t->step == o->optimizer.n_step;
    if (!t->eval || !(is_last || (o->eval_steps && t->step % o->eval_steps == 0)))
        return Q_OK;
    return trainer_evaluate(t, e);
}

/* The last step's model of a run that was done before: it is missing where --steps was larger
 * then, or where its folder was removed. */
static FALLIBLE complete(struct trainer *t, struct q_err *e)
{
    const struct transport_group all = transport_all(t->transport);
    char path[PATH_MAX];
    uint64_t missing = 0;
    if (t->top.rank == 0)
        missing = snprintf(path, sizeof path, "%s/step-%llu", t->o->output,
                           (unsigned long long)t->step) < (int)sizeof path &&
                  !dir_exists(path);
    enum q_code rc = transport_max(t->transport, &all, &missing, e);
    if (!rc && missing)
        rc = checkpoint_save_model(t->checkpoint, t->step, e);
    if (!rc && t->report)
        report_say(t->report, "all %llu steps are done; the model is in %s/step-%llu",
                   (unsigned long long)t->step, t->o->output, (unsigned long long)t->step);
    return rc;
}

static FALLIBLE run_steps(struct trainer *t, bool *bad_numbers, struct q_err *e)
{
    const uint64_t n = t->o->optimizer.n_step;
    bool stop = false;
    enum q_code rc = Q_OK;
    if (t->step >= n)
        rc = complete(t, e);
    while (!rc && !stop && t->step < n)
        if (!(rc = trainer_step(t, &stop, bad_numbers, e)) && !(rc = evaluate(t, e)))
            rc = save(t, stop, e);
    if (rc || !t->report)
        return rc;
    if (t->step < n)
        report_say(t->report,
                   "stopped by a signal after step %llu of %llu; the same command goes on from "
                   "%s/state-%llu",
                   (unsigned long long)t->step, (unsigned long long)n, t->o->output,
                   (unsigned long long)t->step);
    else
        report_say(t->report, "done: quire serve %s/step-%llu", t->o->output,
                   (unsigned long long)n);
    return Q_OK;
}

FALLIBLE trainer_run(const struct distill_options *o, struct transport *transport,
                     bool *bad_numbers, struct q_err *e)
{
    struct trainer *t = q_calloc(1, sizeof *t);
    *bad_numbers = false;
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "no memory for a rank");
    t->o = o;
    t->transport = transport;
    enum q_code rc = trainer_open(t, e);
    if (!rc)
        rc = run_steps(t, bad_numbers, e);
    trainer_close(t);
    q_free(t);
    return rc;
}
