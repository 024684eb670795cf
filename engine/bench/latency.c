/* SPDX-License-Identifier: Apache-2.0 */
/* quire bench latency: batches of several sizes, each repeated; medians. Prompts are random tokens,
 * so a folder with only config.json is enough (--load-format dummy). */
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/bench/cost.h"
#include "engine/bench/offline.h"
#include "engine/bench/stats.h"

#define WARM_INPUT  64u /* tokens of a short run before the first that counts */
#define WARM_OUTPUT 8u

struct latency {
    struct bench *b;
    struct bench_list inputs, outputs, batches;
    struct offline engine;
    struct batch *batch;
    uint64_t n_done, n_all; /* batches */
};

struct medians { /* of the repeats */
    struct samples prefill, decode, ttft, itl, gap;
};

static uint32_t largest(const struct bench_list *l)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < l->n; i++)
        most = l->x[i] > most ? l->x[i] : most;
    return most;
}

static FALLIBLE read_shapes(struct latency *l, struct q_err *e)
{
    const struct options *o = &l->b->o;
    enum q_code rc;
    const char *input = *o->input_lens ? o->input_lens : "512";
    const char *output = *o->output_lens ? o->output_lens : "128";
    if ((rc = bench_list_parse(&l->inputs, input, 1 << 24, "--input-len", e)) ||
        (rc = bench_list_parse(&l->outputs, output, 1 << 20, "--output-len", e)))
        return rc;
    return bench_list_parse(&l->batches, o->batch_sizes, 65536, "--batch-size", e);
}

static FALLIBLE open_engine(struct latency *l, struct q_err *e)
{
    const struct batch_shape most = {largest(&l->batches), largest(&l->inputs),
                                     largest(&l->outputs)};
    const struct offline_need need = {
        .n_seq = most.n_seq,
        .n_token = most.input_len + most.output_len,
    };
    enum q_code rc;
    if ((rc = bench_ceilings(l->b, true, e)))
        return rc;
    if ((rc = offline_open(&l->engine, l->b, &need, e)))
        return rc;
    return batch_new(&l->batch, &most, e);
}

static FALLIBLE warm_up(struct latency *l, struct q_err *e)
{
    struct batch_shape s = {l->batches.x[0], l->inputs.x[0], l->outputs.x[0]};
    struct batch_times ignored;
    enum q_code rc = Q_OK;
    s.input_len = s.input_len < WARM_INPUT ? s.input_len : WARM_INPUT;
    s.output_len = s.output_len < WARM_OUTPUT ? s.output_len : WARM_OUTPUT;
    for (int64_t i = 0; i < l->b->o.num_iters_warmup && !rc; i++) {
        bench_progress(l->b, "warming up");
        rc = batch_run(&ignored, l->batch, &l->engine, &s, (uint64_t)l->b->o.bench_seed, e);
    }
    return rc;
}

static FALLIBLE repeat(struct medians *m, struct latency *l, const struct batch_shape *s,
                       struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (int64_t i = 0; i < l->b->o.repeats && !rc; i++) {
        struct batch_times t;
        l->n_done++;
        bench_progress(l->b, "batch %u, %u in, %u out: run %lld of %lld (%.0f %% done)", s->n_seq,
                       s->input_len, s->output_len, (long long)i + 1, (long long)l->b->o.repeats,
                       100 * (double)(l->n_done - 1) / (double)l->n_all);
        uint64_t seed = (uint64_t)l->b->o.bench_seed + (uint64_t)i + 1;
        if ((rc = batch_run(&t, l->batch, &l->engine, s, seed, e)) ||
            (rc = samples_add(&m->prefill, t.prefill_tok_s, e)) ||
            (rc = samples_add(&m->ttft, t.ttft_ms, e)) ||
            (isfinite(t.gap_us) && (rc = samples_add(&m->gap, t.gap_us, e))))
            break;
        if (isfinite(t.decode_tok_s) && !(rc = samples_add(&m->decode, t.decode_tok_s, e)))
            rc = samples_add(&m->itl, t.itl_ms, e);
    }
    samples_sort(&m->prefill);
    samples_sort(&m->decode);
    samples_sort(&m->ttft);
    samples_sort(&m->itl);
    samples_sort(&m->gap);
    return rc;
}

static void print_cell(FILE *out, int width, int digits, double x)
{
    if (isfinite(x))
        fprintf(out, " %*.*f", width, digits, x);
    else
        fprintf(out, " %*s", width, "-");
}

static void print_row(struct latency *l, const struct batch_shape *s, const struct medians *m)
{
    struct bench *b = l->b;
    const struct cost_shape c = {s->n_seq, s->input_len, s->output_len};
    double prefill = samples_median(&m->prefill), decode = samples_median(&m->decode);
    double memory = cost_decode_fraction(b, &l->engine.info, &c, decode);
    double peak = cost_prefill_fraction(b, &l->engine.info, &c, prefill);
    double rss = bench_peak_rss_mb();
    bench_progress_end(b);
    fprintf(b->out, "%6u %6u %6u", s->n_seq, s->input_len, s->output_len);
    print_cell(b->out, 10, 1, prefill);
    print_cell(b->out, 6, 2, peak);
    print_cell(b->out, 10, 1, decode);
    print_cell(b->out, 6, 2, memory);
    print_cell(b->out, 10, 1, samples_median(&m->ttft));
    print_cell(b->out, 9, 2, samples_median(&m->itl));
    print_cell(b->out, 9, 0, rss);
    print_cell(b->out, 7, 0, samples_median(&m->gap));
    double spread = decode > 0 ? m->decode.x[m->decode.n - 1] - m->decode.x[0] : NAN;
    print_cell(b->out, 8, 0, 100 * spread / decode);
    fputs("\n", b->out);
    fflush(b->out);
    bench_row_begin(b);
    bench_row_count(b, "batch_size", s->n_seq);
    bench_row_count(b, "input_len", s->input_len);
    bench_row_count(b, "output_len", s->output_len);
    bench_row_number(b, "prefill_tok_s", prefill);
    bench_row_number(b, "decode_tok_s", decode);
    bench_row_number(b, "ttft_ms", samples_median(&m->ttft));
    bench_row_number(b, "itl_ms", samples_median(&m->itl));
    bench_row_number(b, "step_gap_us", samples_median(&m->gap));
    bench_row_number(b, "peak_rss_mb", rss);
    bench_row_number(b, "fraction_of_bandwidth", memory);
    bench_row_number(b, "fraction_of_peak", peak);
    bench_row_number(b, "step_bytes", cost_step_bytes(&l->engine.info, &c));
    bench_row_number(b, "prefill_ops", cost_prefill_ops(&l->engine.info, &c));
    bench_row_end(b);
}

static FALLIBLE measure(struct latency *l, const struct batch_shape *s, struct q_err *e)
{
    struct medians m = {SAMPLES_INIT, SAMPLES_INIT, SAMPLES_INIT, SAMPLES_INIT, SAMPLES_INIT};
    enum q_code rc = repeat(&m, l, s, e);
    if (!rc)
        print_row(l, s, &m);
    samples_release(&m.prefill);
    samples_release(&m.decode);
    samples_release(&m.ttft);
    samples_release(&m.itl);
    samples_release(&m.gap);
    return rc;
}

static FALLIBLE measure_all(struct latency *l, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < l->inputs.n; i++)
        for (uint32_t j = 0; j < l->outputs.n; j++)
            for (uint32_t k = 0; k < l->batches.n && !rc; k++) {
                const struct batch_shape s = {l->batches.x[k], l->inputs.x[i], l->outputs.x[j]};
                rc = measure(l, &s, e);
            }
    return rc;
}

enum q_code bench_latency(struct bench *b, struct q_err *e)
{
    struct latency l = {.b = b};
    enum q_code rc;
    if ((rc = read_shapes(&l, e)) || (rc = open_engine(&l, e)))
        goto out;
    l.n_all = (uint64_t)l.inputs.n * l.outputs.n * l.batches.n * (uint64_t)b->o.repeats;
    cost_print_header(b, &l.engine.info);
    bench_run_number(b, "repeats", (double)b->o.repeats);
    fputs(" batch     in    out    prefill of peak    decode of read      ttft       itl  peak rss"
          "    gap  spread\n"
          "                         tok/s             tok/s               ms        ms        MB"
          "     us       %\n",
          b->out);
    if (!(rc = warm_up(&l, e)))
        rc = measure_all(&l, e);
out:
    bench_progress_end(b);
    offline_close(&l.engine);
    batch_free(l.batch);
    return rc;
}
