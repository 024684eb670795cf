/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/report_text.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- for people ---- */

static void add_duration(struct buf *out, double seconds)
{
    const uint64_t s = (uint64_t)fmax(0, seconds + 0.5);
    if (s >= 86400)
        buf_printf(out, "%" PRIu64 " d %02" PRIu64 " h", s / 86400, s % 86400 / 3600);
    else if (s >= 3600)
        buf_printf(out, "%" PRIu64 " h %02" PRIu64 " min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        buf_printf(out, "%" PRIu64 " min %02" PRIu64 " s", s / 60, s % 60);
    else
        buf_printf(out, "%" PRIu64 " s", s);
}

static void add_layers(struct buf *out, uint32_t first, uint32_t n)
{
    char text[32] = "-";
    if (n == 1)
        snprintf(text, sizeof text, "%u", first);
    else if (n > 1)
        snprintf(text, sizeof text, "%u-%u", first, first + n - 1);
    buf_printf(out, " %9s", text);
}

static void add_stages(struct buf *out, uint32_t n_stage, uint32_t first, uint32_t n)
{
    if (n_stage > 1)
        buf_printf(out, " %3u in %-2u", n, n_stage);
    else
        add_layers(out, first, n);
}

static void add_rank(struct buf *out, uint32_t i, const struct report_rank *r)
{
    char parts[32] = "";
    snprintf(parts, sizeof parts, "%s%s%s", r->has_embedding ? "embedding" : "",
             r->has_embedding && r->has_head ? ", " : "", r->has_head ? "head" : "");
    buf_printf(out, "%5u", i);
    add_stages(out, r->n_stage, r->student_first, r->student_n);
    add_stages(out, r->n_teacher_stage, r->teacher_first, r->teacher_n);
    buf_printf(out, "  %-15s %5.1f %% %9.0f\n", parts, 100 * r->share, r->memory_mb);
}

void report_text_cut(struct buf *out, const struct report_cut *c)
{
    buf_add_str(out, " rank   student   teacher  parts            work        MB\n");
    for (uint32_t i = 0; i < c->n_rank; i++)
        add_rank(out, i, &c->ranks[i]);
    buf_printf(out,
               "%.1f M parameters are trained; %u micro batch%s per step%s; predicted bubble "
               "%.1f %%",
               (double)c->n_param / 1e6, c->n_micro, c->n_micro == 1 ? "" : "es",
               c->n_replica > 1 ? " and replica" : "", 100 * c->bubble);
    if (c->peak_gflop_s > 0)
        buf_printf(out, "; measured peak %.0f GFLOP/s (%s)", c->peak_gflop_s, c->isa);
    buf_add_char(out, '\n');
}

static double most_rss(const struct report_step *s, uint32_t n)
{
    double most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, s->rss_mb[i]);
    return most;
}

void report_text_step(struct buf *out, const struct report_step *s, uint64_t n_step)
{
    buf_printf(out, "step %" PRIu64 "/%" PRIu64 ": loss %.4f, kd %.4f, ce %.4f", s->step, n_step,
               s->loss, s->kd_loss, s->ce_loss);
    if (s->has_hidden)
        buf_printf(out, ", hidden %.4f", s->hidden_loss);
    if (s->has_attention)
        buf_printf(out, ", attention %.4f", s->attention_loss);
    if (s->has_values)
        buf_printf(out, ", values %.4f", s->value_loss);
    if (s->agreement >= 0)
        buf_printf(out, ", agreement %.1f %%", 100 * s->agreement);
    buf_printf(out, ", norm %.3g, lr %.3g, %.0f tokens/s", s->grad_norm, s->lr, s->tok_s);
    if (s->peak > 0)
        buf_printf(out, " (%.0f %% of peak)", 100 * s->peak);
    if (s->bubble > 0)
        buf_printf(out, ", bubble %.0f %%", 100 * s->bubble);
    buf_printf(out, ", %.0f MB, ", most_rss(s, s->n_rank));
    add_duration(out, s->left_s);
    buf_add_str(out, " left");
    if (s->skipped)
        buf_printf(out, "; skipped: %s", s->skipped);
}

void report_text_eval(struct buf *out, const struct report_eval *v)
{
    buf_printf(out, "evaluation after step %" PRIu64 ": loss %.4f, kd %.4f, ce %.4f", v->step,
               v->loss, v->kd_loss, v->ce_loss);
    if (v->has_hidden)
        buf_printf(out, ", hidden %.4f", v->hidden_loss);
    if (v->has_attention)
        buf_printf(out, ", attention %.4f", v->attention_loss);
    if (v->has_values)
        buf_printf(out, ", values %.4f", v->value_loss);
    if (v->agreement >= 0)
        buf_printf(out, ", agreement %.1f %%", 100 * v->agreement);
    buf_printf(out, ", %" PRIu64 " tokens", v->n_token);
}

/* ---- JSON ---- */

/* JSON has no number that is not finite. */
static void add_number(struct buf *out, const char *name, double v)
{
    buf_printf(out, ", \"%s\": ", name);
    if (isfinite(v))
        buf_printf(out, "%.17g", v);
    else
        buf_add_str(out, "null");
}

static void add_text(struct buf *out, const char *name, const char *text)
{
    buf_printf(out, ", \"%s\": ", name);
    buf_add_json_str(out, text, strlen(text));
}

static void add_counts(struct buf *out, const char *name, uint64_t n)
{
    buf_printf(out, ", \"%s\": %" PRIu64, name, n);
}

void report_json_cut(struct buf *out, const struct report_cut *c)
{
    buf_add_str(out, "{\"ranks\": [");
    for (uint32_t i = 0; i < c->n_rank; i++) {
        const struct report_rank *r = &c->ranks[i];
        buf_printf(out,
                   "%s{\"rank\": %u, \"student_layers\": [%u, %u], \"student_stages\": %u, "
                   "\"teacher_layers\": [%u, %u], \"teacher_stages\": %u, \"embedding\": %s, "
                   "\"head\": %s",
                   i ? ", " : "", i, r->student_first, r->student_n, r->n_stage, r->teacher_first,
                   r->teacher_n, r->n_teacher_stage, r->has_embedding ? "true" : "false",
                   r->has_head ? "true" : "false");
        add_number(out, "work", r->share);
        add_number(out, "memory_mb", r->memory_mb);
        buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
    add_number(out, "predicted_bubble", c->bubble);
    add_counts(out, "parameters", c->n_param);
    add_counts(out, "micro_batches", c->n_micro);
    add_counts(out, "replicas", c->n_replica);
    add_number(out, "peak_gflop_s", c->peak_gflop_s);
    buf_add_str(out, "}\n");
}

void report_json_step(struct buf *out, const struct report_step *s, bool all)
{
    buf_printf(out, "{\"step\": %" PRIu64, s->step);
    add_number(out, "loss", s->loss);
    add_number(out, "kd_loss", s->kd_loss);
    add_number(out, "ce_loss", s->ce_loss);
    if (s->has_hidden)
        add_number(out, "hidden_loss", s->hidden_loss);
    if (s->has_attention)
        add_number(out, "attention_loss", s->attention_loss);
    if (s->has_values)
        add_number(out, "value_loss", s->value_loss);
    add_number(out, "grad_norm", s->grad_norm);
    add_number(out, "lr", s->lr);
    add_counts(out, "n_tokens", s->n_token);
    add_number(out, "tok_s", s->tok_s);
    buf_add_str(out, ", \"peak_rss_mb\": [");
    for (uint32_t i = 0; i < s->n_rank; i++)
        buf_printf(out, "%s%.1f", i ? ", " : "", s->rss_mb[i]);
    buf_add_char(out, ']');
    if (s->skipped)
        add_text(out, "skipped", s->skipped);
    if (all) {
        add_number(out, "agreement", s->agreement < 0 ? (double)NAN : s->agreement);
        add_number(out, "peak_fraction", s->peak);
        add_number(out, "bubble", s->bubble);
        add_number(out, "seconds_left", s->left_s);
    }
    buf_add_str(out, "}\n");
}

void report_json_eval(struct buf *out, const struct report_eval *v)
{
    buf_printf(out, "{\"step\": %" PRIu64, v->step);
    add_number(out, "eval_loss", v->loss);
    add_number(out, "eval_kd_loss", v->kd_loss);
    add_number(out, "eval_ce_loss", v->ce_loss);
    if (v->has_hidden)
        add_number(out, "eval_hidden_loss", v->hidden_loss);
    if (v->has_attention)
        add_number(out, "eval_attention_loss", v->attention_loss);
    if (v->has_values)
        add_number(out, "eval_value_loss", v->value_loss);
    add_number(out, "eval_agreement", v->agreement < 0 ? (double)NAN : v->agreement);
    add_counts(out, "eval_n_tokens", v->n_token);
    buf_add_str(out, "}\n");
}

void report_json_data(struct buf *out, const char *what, const struct dataset_counts *c)
{
    buf_add_str(out, "{\"data\": ");
    buf_add_json_str(out, what, strlen(what));
    add_counts(out, "lines", c->n_line);
    add_counts(out, "samples", c->n_sample);
    add_counts(out, "tokens", c->n_token);
    add_counts(out, "counted_tokens", c->n_counted);
    add_counts(out, "broken_lines", c->n_broken);
    add_counts(out, "empty_samples", c->n_empty);
    add_counts(out, "truncated_samples", c->n_truncated);
    add_counts(out, "sequences", c->n_sequence);
    buf_add_str(out, "}\n");
}
