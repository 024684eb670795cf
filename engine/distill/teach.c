/* SPDX-License-Identifier: Apache-2.0 */
/* The data are packed, so that a micro batch has several short samples; each segment is a sequence
 * of the files. Keys of sequences on their way are those of the last micro batches; what the data
 * have twice is asked for twice at most that often, and written once. */
#include "engine/distill/teach.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/hub/config.h"
#include "common/log.h"
#include "common/mem.h"

#define TELL_US 500000 /* between two lines of progress */

struct teach {
    const struct teach_options *o;
    struct dataset *data;
    struct teacher_writer *w;
    struct teach_counts *counts;
    struct micro_batch b; /* the last one of the data */
    uint64_t i_batch, n_batch;
    uint32_t i_segment; /* of b: the next */
    uint64_t n_position_all;
    int64_t start_us, told_us;
    bool is_terminal;
};

/* ---- progress ---- */

static void tell(struct teach *t, bool is_last)
{
    const int64_t now = clock_us();
    const double s = (double)(now - t->start_us) * 1e-6;
    const uint64_t n = t->counts->n_position;
    if (t->o->quiet || (!is_last && now - t->told_us < (t->is_terminal ? TELL_US : 20 * TELL_US)))
        return;
    t->told_us = now;
    fprintf(stderr,
            "%s%" PRIu64 " sequences, %" PRIu64 " positions (%.0f per second), %.1f %% of the "
            "data, %" PRIu64 " sequences were there%s",
            t->is_terminal ? "\r" : "", t->counts->n_sequence, n, s > 0 ? (double)n / s : 0,
            100 * (double)t->i_batch / (double)t->n_batch, t->counts->n_skipped,
            t->is_terminal && !is_last ? "   " : "\n");
}

/* ---- the data ---- */

static uint32_t count_rows(const int32_t *labels, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += labels[i] >= 0;
    return count;
}

static struct teacher_key key_of(const struct micro_batch *b, const struct train_segment *g)
{
    return teacher_key_of(b->ids + g->row, b->labels + g->row, g->n_row);
}

static bool is_wanted(struct teach *t, const struct train_segment *g)
{
    const struct teacher_key key = key_of(&t->b, g);
    if (count_rows(t->b.labels + g->row, g->n_row) == 0)
        return false;
    const bool is_known = teacher_writer_has(t->w, &key);
    t->counts->n_skipped += is_known;
    return !is_known;
}

static FALLIBLE next_batch(struct teach *t, bool *end, struct q_err *e)
{
    *end = t->i_batch == t->n_batch;
    if (*end)
        return Q_OK;
    t->i_segment = 0;
    return dataset_batch(t->data, ++t->i_batch, 0, 0, &t->b, e);
}

static FALLIBLE write_rows(struct teach *t, const struct teacher_sequence *s, struct q_err *e)
{
    enum q_code rc;
    if (teacher_writer_has(t->w, &s->key)) {
        t->counts->n_skipped++;
        return Q_OK;
    }
    if ((rc = teacher_writer_add(t->w, s, e)))
        return rc;
    t->counts->n_sequence++;
    t->counts->n_position += s->n_counted;
    tell(t, false);
    return Q_OK;
}

/* ---- from a server ---- */

static enum q_code next_sample(void *ctx, struct teacher_url_sample *s, bool *end, struct q_err *e)
{
    struct teach *t = ctx;
    enum q_code rc = Q_OK;
    for (*end = false; !rc && !*end;) {
        if (t->i_segment == t->b.n_segment) {
            rc = next_batch(t, end, e);
            continue;
        }
        const struct train_segment *g = &t->b.segments[t->i_segment++];
        if (!is_wanted(t, g))
            continue;
        *s = (struct teacher_url_sample){t->b.ids + g->row, t->b.labels + g->row, g->n_row,
                                         count_rows(t->b.labels + g->row, g->n_row)};
        break;
    }
    return rc;
}

static enum q_code take_rows(void *ctx, const struct teacher_url_rows *r, struct q_err *e)
{
    const struct teacher_sequence s = {r->key, r->n_row, r->n_counted, r->ids, r->logprobs};
    return write_rows(ctx, &s, e);
}

/* ---- from a model here ---- */

/* Micro batches with something that is not there yet. */
static enum q_code next_wanted(void *ctx, struct micro_batch *b, bool *end, struct q_err *e)
{
    struct teach *t = ctx;
    bool any = false;
    enum q_code rc = Q_OK;
    while (!any && !(rc = next_batch(t, end, e)) && !*end) {
        const uint64_t n_before = t->counts->n_skipped;
        for (uint32_t i = 0; i < t->b.n_segment; i++)
            any |= is_wanted(t, &t->b.segments[i]);
        if (any)
            t->counts->n_skipped = n_before; /* counted when they are not written */
    }
    *b = t->b;
    return rc;
}

static enum q_code take_batch(void *ctx, const struct micro_batch *b, const uint32_t *ids,
                              const float *logprobs, struct q_err *e)
{
    struct teach *t = ctx;
    size_t at = 0;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < b->n_segment && !rc; i++) {
        const struct train_segment *g = &b->segments[i];
        const struct teacher_sequence s = {
            .key = key_of(b, g),
            .n_row = g->n_row,
            .n_counted = count_rows(b->labels + g->row, g->n_row),
            .ids = ids + at * t->o->top_k,
            .logprobs = logprobs + at * t->o->top_k,
        };
        at += s.n_counted;
        rc = s.n_counted ? write_rows(t, &s, e) : Q_OK;
    }
    return rc;
}

/* ---- all of it ---- */

static FALLIBLE open_data(struct teach *t, struct q_err *e)
{
    struct dataset_options d = t->o->data;
    d.packing = true;
    d.shuffle = false;
    d.global_batch = d.micro_batch = 1;
    const enum q_code rc = dataset_open(&t->data, &d, e);
    if (!rc)
        t->n_batch = dataset_counts(t->data)->n_sequence;
    return rc;
}

static FALLIBLE open_writer(struct teach *t, const char *teacher, uint32_t n_vocab, struct q_err *e)
{
    const struct teacher_writer_options w = {
        .dir = t->o->output,
        .top_k = t->o->top_k,
        .n_vocab = n_vocab,
        .teacher = teacher,
    };
    return teacher_writer_open(&t->w, &w, e);
}

static FALLIBLE run_url(struct teach *t, struct q_err *e)
{
    const struct teacher_url_calls calls = {next_sample, take_rows, t};
    struct teacher_url_options o = t->o->url;
    struct teacher_url *url = NULL;
    enum q_code rc;
    o.top_k = t->o->top_k;
    o.stop = t->o->stop;
    if (!(rc = teacher_url_open(&url, &o, e)) &&
        !(rc = open_writer(t, teacher_url_model(url), 0, e)))
        rc = teacher_url_run(url, &calls, e);
    teacher_url_close(url);
    return rc;
}

static FALLIBLE run_model(struct teach *t, struct q_err *e)
{
    const struct teach_model_calls calls = {next_wanted, take_batch, t};
    struct model_config c;
    enum q_code rc;
    if ((rc = model_config_load(&c, NULL, t->o->dir, e)))
        return rc;
    if (t->o->top_k > c.vocab_size)
        return q_fail(e, Q_INVALID, "top k of %u: the teacher has %u tokens", t->o->top_k,
                      c.vocab_size);
    if ((rc = open_writer(t, t->o->name, c.vocab_size, e)))
        return rc;
    return teach_model_run(t->o, dataset_counts(t->data)->row_max, &calls, e);
}

FALLIBLE teach_run(const struct teach_options *o, struct teach_counts *counts, struct q_err *e)
{
    struct teach t = {
        .o = o,
        .counts = counts,
        .start_us = clock_us(),
        .is_terminal = isatty(STDERR_FILENO),
    };
    enum q_code rc;
    *counts = (struct teach_counts){0};
    if (!(rc = open_data(&t, e)) && !(rc = o->url.url ? run_url(&t, e) : run_model(&t, e)))
        rc = teacher_writer_finish(t.w, e);
    if (t.w)
        tell(&t, true);
    teacher_writer_close(t.w);
    dataset_free(t.data);
    return rc;
}
