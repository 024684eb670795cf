/* SPDX-License-Identifier: Apache-2.0 */
/* sample: the tokens, ranks and logprobs of engine/worker/sample.c for the same logits, and the
 * same bits in another batch. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "engine/worker/sample.h"
#include "kernels/variants.h"

#define ROWS_MAX  4u
#define MANY_ROWS 66u /* more than sample.cu samples at once */

CUDA_CALL(sample)

struct sample_case {
    struct sample_args a;
    float *x; /* logits as they were */
    struct sample_row *rows;
    uint32_t *histories, *masks, *bias_ids;
    float *bias;
    bool free_edge[MANY_ROWS]; /* a sum that the CPU makes in another order decides */
};

#define HISTORY 40u
#define N_BIAS  5u

static void choose_row(struct kcheck *k, struct sample_case *c, uint32_t i)
{
    const uint32_t n = c->a.n_vocab;
    struct sample_row *r = &c->rows[i];
    *r = (struct sample_row){
        .seed = kc_rnd(k),
        .temperature = kc_chance(k, 25) ? 0 : 0.005f + 1.5f * fabsf(kc_f32(k)),
        .top_p = kc_chance(k, 50) ? 1 : 0.3f + 0.69f * (float)kc_range(k, 0, 100) / 100,
        .min_p = kc_chance(k, 70) ? 0 : 0.2f * (float)kc_range(k, 0, 100) / 100,
        .top_k = kc_chance(k, 50) ? 0 : kc_range(k, 1, kc_chance(k, 50) ? 60 : n + 5),
        .repetition = kc_chance(k, 60) ? 1 : 1.3f,
        .presence = kc_chance(k, 70) ? 0 : 0.4f,
        .frequency = kc_chance(k, 70) ? 0 : -0.3f,
        .top_n_sigma = kc_chance(k, 85) ? 0 : 1.5f,
        .history = i,
        .n_known = kc_range(k, 1, HISTORY),
        .mask = kc_chance(k, 70) ? SAMPLE_NO_MASK : i,
        .bias_start = i * N_BIAS,
        .n_bias = kc_chance(k, 60) ? 0 : kc_range(k, 1, N_BIAS),
        .n_top = kc_range(k, 0, SAMPLE_TOP_MAX),
    };
    if (!(r->temperature == r->temperature) || isinf(r->temperature))
        r->temperature = 1;
    r->n_prompt = kc_range(k, 0, r->n_known);
    r->flags = (kc_chance(k, 50) ? SAMPLE_LOGPROB : 0) | (kc_chance(k, 30) ? SAMPLE_ADJUSTED : 0);
    if (kc_chance(k, 8))
        r->flags = SAMPLE_LOGPROB | SAMPLE_KNOWN;
    r->token = kc_range(k, 0, n - 1);
    c->free_edge[i] = r->temperature != 0 && (r->top_n_sigma > 0 || r->top_p < 1) &&
                      !(r->top_k && r->top_k <= SAMPLE_HEAP_MAX && r->top_n_sigma == 0);
}

static void make(struct kcheck *k, struct sample_case *c)
{
    const bool many = kc_chance(k, 4);
    const uint32_t n = many || kc_chance(k, 40) ? kc_range(k, 1, 70)
                       : kc_chance(k, 75)       ? kc_range(k, 1000, 5200)
                                                : kc_range(k, 8000, 20000); /* parts of 4096 */
    const size_t words = (n + 31) / 32;
    c->a = (struct sample_args){
        .n_row = many ? MANY_ROWS : kc_range(k, 1, ROWS_MAX),
        .n_vocab = n,
        .history_stride = HISTORY,
    };
    c->a.x_stride = n + kc_range(k, 0, 3);
    c->x = kc_buf(k, c->a.n_row * c->a.x_stride * sizeof(float));
    c->rows = kc_buf(k, c->a.n_row * sizeof *c->rows);
    c->histories = kc_buf(k, c->a.n_row * HISTORY * 4);
    c->masks = kc_buf(k, c->a.n_row * words * 4);
    c->bias_ids = kc_buf(k, c->a.n_row * N_BIAS * 4);
    c->bias = kc_buf(k, c->a.n_row * N_BIAS * 4);
    k->scale = 8;
    const bool coarse = kc_chance(k, 30); /* many equal logits */
    for (size_t i = 0; i < c->a.n_row * c->a.x_stride; i++) {
        c->x[i] = kc_chance(k, 1) ? -INFINITY : kc_f32(k);
        if (coarse)
            c->x[i] = rintf(c->x[i] / 4);
    }
    for (size_t i = 0; i < c->a.n_row * HISTORY; i++)
        c->histories[i] = kc_chance(k, 3) ? n + kc_range(k, 0, 9) /* an item's place: no token */
                                          : kc_range(k, 0, n - 1);
    for (size_t i = 0; i < c->a.n_row * words; i++)
        c->masks[i] = (uint32_t)kc_rnd(k) | 1;
    for (uint32_t i = 0; i < c->a.n_row; i++) {
        choose_row(k, c, i);
        for (uint32_t j = 0; j < N_BIAS; j++) {
            c->bias_ids[i * N_BIAS + j] = (i + j * (n / N_BIAS)) % n;
            c->bias[i * N_BIAS + j] = kc_chance(k, 20) ? -INFINITY : 3 * (float)j - 6;
        }
        if (n <= N_BIAS) /* no id twice */
            c->rows[i].n_bias = c->rows[i].n_bias ? 1 : 0;
    }
    k->scale = 1;
    c->a.rows = c->rows;
    c->a.histories = c->histories;
    c->a.masks = c->masks;
    c->a.bias_ids = c->bias_ids;
    c->a.bias = c->bias;
    kc_shape(k, "n_row %u n_vocab %u%s", c->a.n_row, n, coarse ? " coarse" : "");
}

static struct sample_args run(struct kcheck *k, const struct sample_case *c, uint32_t first,
                              uint32_t n)
{
    struct sample_args a = c->a;
    a.n_row = n;
    a.rows += first;
    a.x = kc_copy(k, c->x + first * a.x_stride, n * a.x_stride * sizeof(float));
    a.out = kc_buf(k, n * sizeof *a.out);
    a.top_ids = kc_buf(k, n * SAMPLE_TOP_MAX * 4);
    a.top_logprobs = kc_buf(k, n * SAMPLE_TOP_MAX * 4);
    kc_run(k, k->variant, &a, 1);
    return a;
}

/* The same by the CPU. */
static void expect(struct kcheck *k, const struct sample_case *c, const struct sample_args *a,
                   uint32_t i, struct sample_scratch *s)
{
    const struct sample_row *r = &c->rows[i];
    const uint32_t n = a->n_vocab;
    struct sample_params p;
    struct step_row row = {.token = r->token};
    uint32_t top_ids[SAMPLE_TOP_MAX];
    float top_logprobs[SAMPLE_TOP_MAX];
    struct sample_result out = {&row, top_ids, top_logprobs};
    float *x = kc_copy(k, c->x + i * a->x_stride, n * sizeof *x);
    sample_params_default(&p);
    p.temperature = r->temperature;
    p.top_p = r->top_p;
    p.min_p = r->min_p;
    p.top_k = r->top_k;
    p.repetition_penalty = r->repetition;
    p.presence_penalty = r->presence;
    p.frequency_penalty = r->frequency;
    p.top_n_sigma = r->top_n_sigma;
    p.seed = r->seed;
    p.bias_ids = c->bias_ids + r->bias_start;
    p.bias = c->bias + r->bias_start;
    p.n_bias = r->n_bias;
    p.n_logprob = r->flags & SAMPLE_LOGPROB ? r->n_top : SAMPLE_NO_LOGPROBS;
    p.adjusted_logprobs = r->flags & SAMPLE_ADJUSTED;
    const struct sample_input in = {
        .params = &p,
        .history = c->histories + r->history * HISTORY,
        .n_known = r->n_known,
        .n_prompt = r->n_prompt,
        .allowed = r->mask == SAMPLE_NO_MASK ? NULL : c->masks + r->mask * ((n + 31) / 32),
    };
    if (r->flags & SAMPLE_KNOWN)
        sample_known(x, r->n_top, s, &out);
    else
        sample_token(x, &in, s, &out);
    if (a->out[i].token != row.token && c->free_edge[i])
        return;
    if (a->out[i].token != row.token) {
        kc_fail(k, "row %u: token %u, on the CPU %u (t %g p %g k %u min %g)", i, a->out[i].token,
                row.token, (double)p.temperature, (double)p.top_p, p.top_k, (double)p.min_p);
        return;
    }
    if (row.token == SAMPLE_BAD) { /* SAMPLE_EMPTY is what masks left; elsewhere it is bad too */
        const bool differs = a->out[i].rank != row.rank && row.rank == SAMPLE_EMPTY;
        kc_near(k, "why there is no token", differs, 0, 0);
    }
    if (!(r->flags & SAMPLE_LOGPROB) || row.token == SAMPLE_BAD)
        return;
    kc_near(k, "rank", a->out[i].rank, row.rank, 0);
    kc_near(k, "logprob", (double)a->out[i].logprob, (double)row.logprob,
            1e-5 * (1 + fabs((double)row.logprob)));
    kc_near(k, "n_top", a->out[i].n_top, row.n_top, 0);
    for (uint32_t j = 0; j < row.n_top; j++) {
        kc_near(k, "top id", a->top_ids[i * SAMPLE_TOP_MAX + j], top_ids[j], 0);
        kc_near(k, "top logprob", (double)a->top_logprobs[i * SAMPLE_TOP_MAX + j],
                (double)top_logprobs[j], 1e-5 * (1 + fabs((double)top_logprobs[j])));
    }
}

static void check_sample(struct kcheck *k)
{
    struct sample_case c;
    struct sample_scratch s;
    struct kern_table table;
    struct q_err e = Q_ERR_INIT;
    make(k, &c);
    kern_table_cpu(&table, CAP_NONE);
    if (sample_scratch_init(&s, c.a.n_vocab, &table, &e)) {
        kc_fail(k, "%s", e.message);
        return;
    }
    struct sample_args all = run(k, &c, 0, c.a.n_row);
    for (uint32_t i = c.a.n_row > ROWS_MAX ? c.a.n_row - 2 * ROWS_MAX : 0; i < c.a.n_row; i++)
        expect(k, &c, &all, i, &s); /* of many the last before and after the launches end */
    uint32_t i = kc_range(k, 0, c.a.n_row - 1);
    struct sample_args one = run(k, &c, i, 1);
    kc_near(k, "token alone", one.out->token, all.out[i].token, 0);
    if (all.out[i].rank)
        kc_same_bits(k, "logprob alone",
                     (struct kc_bits){&one.out->logprob, &all.out[i].logprob, DT_F32, 1});
    sample_scratch_release(&s);
}

const struct cuda_check cuda_checks_sample[] = {
    {"sample", NULL, call_sample, 0, check_sample, 16},
    {0},
};
