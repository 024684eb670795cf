/* SPDX-License-Identifier: Apache-2.0 */
/* Each thing that is reported goes to the same places: the person or --json, the file, the port,
 * the event files. A terminal has one line of progress that is written over; elsewhere a step has a
 * line of its own, but not more than one in SAY_EVERY_MS. */
#include "engine/distill/report.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/columns.h"
#include "common/mem.h"
#include "engine/distill/metrics_port.h"
#include "engine/distill/report_file.h"
#include "engine/distill/report_text.h"
#include "engine/distill/tensorboard.h"

#define SAY_EVERY_MS 1000
#define REDRAW_MS    100

struct report {
    struct report_options o;
    struct report_file file;
    struct tensorboard *tensorboard;
    struct metrics_port *port;
    bool in_place; /* standard output is a terminal, and this process writes to it alone */
    bool drawn;    /* a line of progress is there */
    int64_t said_ms;
    struct buf text;
};

FALLIBLE report_new(struct report **out, const struct report_options *o, struct q_err *e)
{
    struct report *r = q_calloc(1, sizeof *r);
    enum q_code rc = Q_OK;
    *out = NULL;
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "no memory for the report");
    r->o = *o;
    r->file = (struct report_file)REPORT_FILE_INIT;
    r->in_place = !o->json && !o->quiet && isatty(STDOUT_FILENO);
    if (o->metrics_path)
        rc = report_file_open(&r->file, o->metrics_path, o->first_step, e);
    if (!rc && o->tensorboard_dir)
        rc = tensorboard_open(&r->tensorboard, o->tensorboard_dir, o->first_step + 1, e);
    if (!rc && o->metrics_port)
        rc = metrics_port_open(&r->port, o->metrics_port, o->n_rank, e);
    if (!rc && r->port)
        metrics_port_set(r->port, RUN_STEPS, (double)o->n_step);
    if (rc)
        report_free(r);
    else
        *out = r;
    return rc;
}

/* ---- lines ---- */

static void clear_line(struct report *r)
{
    if (r->drawn)
        fputs("\r\033[K", stdout);
    fflush(stdout);
    r->drawn = false;
}

/* r->text to the person: standard error. */
static void say_text(struct report *r)
{
    clear_line(r);
    if (!r->o.quiet)
        fputs(buf_str(&r->text), stderr);
    buf_reset(&r->text);
}

static void say_json(struct report *r)
{
    fputs(buf_str(&r->text), stdout);
    fflush(stdout);
    buf_reset(&r->text);
}

void report_free(struct report *r)
{
    if (!r)
        return;
    clear_line(r);
    report_file_close(&r->file);
    tensorboard_close(r->tensorboard);
    metrics_port_close(r->port);
    buf_release(&r->text);
    q_free(r);
}

void report_say(struct report *r, const char *fmt, ...)
{
    va_list ap;
    if (r->o.json)
        return;
    va_start(ap, fmt);
    buf_vprintf(&r->text, fmt, ap);
    va_end(ap);
    buf_add_char(&r->text, '\n');
    say_text(r);
}

void report_data(struct report *r, const char *what, const struct dataset_counts *c)
{
    if (!r->o.json)
        return; /* the data set has a line in the log */
    report_json_data(&r->text, what, c);
    say_json(r);
}

void report_cut(struct report *r, const struct report_cut *c)
{
    (r->o.json ? report_json_cut : report_text_cut)(&r->text, c);
    (r->o.json ? say_json : say_text)(r);
}

/* ---- steps ---- */

/* As much of the line as the terminal's width holds. */
static void draw(struct report *r)
{
    const unsigned width = columns_width(stdout);
    const char *text = buf_str(&r->text);
    fprintf(stdout, "\r\033[K%.*s", (int)(width > 1 ? width - 1 : 1), text);
    fflush(stdout);
    r->drawn = true;
    buf_reset(&r->text);
}

static void show_step(struct report *r, const struct report_step *s)
{
    const int64_t now = clock_ms();
    const bool is_end = s->step == r->o.n_step || s->step == r->o.first_step + 1 || s->skipped;
    if (r->o.json) {
        report_json_step(&r->text, s, true);
        say_json(r);
        return;
    }
    if (r->o.quiet || (!is_end && now - r->said_ms < (r->in_place ? REDRAW_MS : SAY_EVERY_MS)))
        return;
    r->said_ms = now;
    report_text_step(&r->text, s, r->o.n_step);
    if (r->in_place && !s->skipped && s->step != r->o.n_step) {
        draw(r);
        return;
    }
    buf_add_char(&r->text, '\n');
    say_text(r);
}

static void set_port(struct metrics_port *p, const struct report_step *s, uint32_t n_rank)
{
    const struct {
        enum run_metric metric;
        double value;
        bool is_absent;
    } values[] = {
        {RUN_STEP, (double)s->step, false},
        {RUN_LOSS, s->loss, false},
        {RUN_KD_LOSS, s->kd_loss, false},
        {RUN_CE_LOSS, s->ce_loss, false},
        {RUN_GRAD_NORM, s->grad_norm, false},
        {RUN_LR, s->lr, false},
        {RUN_TOK_S, s->tok_s, false},
        {RUN_PEAK, s->peak, false},
        {RUN_BUBBLE, s->bubble, false},
        {RUN_LEFT, s->left_s, false},
        {RUN_AGREEMENT, s->agreement, s->agreement < 0},
        {RUN_HIDDEN_LOSS, s->hidden_loss, !s->has_hidden},
        {RUN_ATTENTION_LOSS, s->attention_loss, !s->has_attention},
        {RUN_VALUE_LOSS, s->value_loss, !s->has_values},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (!values[i].is_absent)
            metrics_port_set(p, values[i].metric, values[i].value);
    metrics_port_add(p, RUN_TOKENS, (double)s->n_token);
    metrics_port_add(p, RUN_SKIPPED, s->skipped ? 1 : 0);
    for (uint32_t i = 0; i < n_rank; i++)
        metrics_port_rss(p, i, s->rss_mb[i]);
}

static FALLIBLE add_events(struct tensorboard *t, const struct report_step *s, struct q_err *e)
{
    const struct tensorboard_value values[] = {
        {"train/loss", s->loss},
        {"train/kd_loss", s->kd_loss},
        {"train/ce_loss", s->ce_loss},
        {"train/grad_norm", s->grad_norm},
        {"train/lr", s->lr},
        {"speed/tokens_per_second", s->tok_s},
        {"speed/peak_fraction", s->peak},
        {"speed/bubble", s->bubble},
        {s->agreement < 0 ? NULL : "train/agreement", s->agreement},
        {s->has_hidden ? "train/hidden_loss" : NULL, s->hidden_loss},
        {s->has_attention ? "train/attention_loss" : NULL, s->attention_loss},
        {s->has_values ? "train/value_loss" : NULL, s->value_loss},
    };
    return tensorboard_add(t, s->step, values, sizeof values / sizeof *values, e);
}

FALLIBLE report_step(struct report *r, const struct report_step *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    show_step(r, s);
    if (r->port)
        set_port(r->port, s, r->o.n_rank);
    if (r->file.fd >= 0) {
        report_json_step(&r->text, s, false);
        rc = report_file_add(&r->file, &r->text, e);
        buf_reset(&r->text);
    }
    return rc || !r->tensorboard ? rc : add_events(r->tensorboard, s, e);
}

FALLIBLE report_eval(struct report *r, const struct report_eval *v, struct q_err *e)
{
    const struct tensorboard_value values[] = {
        {"eval/loss", v->loss},
        {"eval/kd_loss", v->kd_loss},
        {"eval/ce_loss", v->ce_loss},
        {v->agreement < 0 ? NULL : "eval/agreement", v->agreement},
        {v->has_hidden ? "eval/hidden_loss" : NULL, v->hidden_loss},
        {v->has_attention ? "eval/attention_loss" : NULL, v->attention_loss},
        {v->has_values ? "eval/value_loss" : NULL, v->value_loss},
    };
    enum q_code rc = Q_OK;
    report_json_eval(&r->text, v);
    if (r->file.fd >= 0)
        rc = report_file_add(&r->file, &r->text, e);
    if (r->o.json)
        say_json(r);
    buf_reset(&r->text);
    if (!r->o.json) {
        report_text_eval(&r->text, v);
        buf_add_char(&r->text, '\n');
        say_text(r);
    }
    if (r->port) {
        metrics_port_set(r->port, RUN_EVAL_LOSS, v->loss);
        if (v->agreement >= 0)
            metrics_port_set(r->port, RUN_EVAL_AGREEMENT, v->agreement);
    }
    const uint32_t n = sizeof values / sizeof *values;
    return rc || !r->tensorboard ? rc : tensorboard_add(r->tensorboard, v->step, values, n, e);
}
