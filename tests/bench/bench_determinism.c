/* SPDX-License-Identifier: Apache-2.0 */
/* bench_determinism MODEL [THREADS]: what the fixed order of summation costs.
 *
 * Compared are two engines in this process, alike but for one kernel: attention with one order for
 * each row, as quire ships it, and attention that cuts rows to give all threads the same share of
 * each step (free_attention.h), which changes bits with the batch. The matrix products stay the
 * same: one accumulator per output along K is also what a free order would take, as they run at the
 * machine's read bandwidth when they decode and near its peak in prefill (kcheck --bench), and no
 * matrix has so few panels that K would be split over a few threads.
 *
 * Both decode the same sequences, a few steps in turns, so that a busy machine slows both. A step
 * counts with all the worker does for it; of each load's steps the fastest tenth is taken, which
 * other programs disturbed least. Then each engine answers requests alone and together, which shows
 * that the one is free and the other is not. Weights are random: numbers do not matter here. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/core/core.h"
#include "free_attention.h"

enum {
    SEQS_MAX = 32,
    ROUNDS = 12,
    STEPS = 10,
    TIMES_MAX = ROUNDS * STEPS,
    N_NEW = 4000,
    TOLD = 24
};
enum order { FIXED, FREE, N_ORDER };
static const char *const order_names[] = {"fixed order", "free order"};

struct engine {
    struct core *core;
    uint32_t n_seq, n_step, n_finished, n_open; /* n_step: with all sequences decoding */
    uint32_t times[TIMES_MAX], n_time;          /* us; taken while n_time < n_wanted */
    uint32_t n_wanted;
    uint64_t answers[SEQS_MAX], next_id; /* answers: a hash of tokens and logprobs */
};
static struct engine engines[N_ORDER];
static enum order loading; /* whose kernels are picked */

void __real_kern_table_cpu(struct kern_table *t, uint32_t caps);
void __wrap_kern_table_cpu(struct kern_table *t, uint32_t caps);
void __wrap_kern_table_cpu(struct kern_table *t, uint32_t caps)
{
    __real_kern_table_cpu(t, caps);
    if (loading == FREE)
        t->attention = free_attention;
}

static void must(enum q_code rc, const struct q_err *e)
{
    if (rc)
        fprintf(stderr, "bench_determinism: %s\n", e->message);
    Q_ASSERT(rc == Q_OK);
}

static void sink(void *ctx, const struct step_result *result,
                 const struct scheduler_output *outputs, uint32_t n)
{
    struct engine *g = ctx;
    uint32_t n_token = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct scheduler_output *o = &outputs[i];
        g->n_finished += o->finish != FINISH_NONE;
        n_token += o->has_token;
        if (!o->has_token)
            continue;
        uint64_t *hash = &g->answers[o->req_id % SEQS_MAX];
        uint32_t bits;
        memcpy(&bits, &o->row->logprob, sizeof bits);
        *hash = (*hash ^ o->token ^ (uint64_t)bits << 32) * UINT64_C(0x9e3779b97f4a7c15);
    }
    if (!result || n_token < g->n_seq)
        return;
    g->n_step++;
    if (g->n_time < g->n_wanted)
        g->times[g->n_time++] = result->head->total_us;
}

static void run_once(struct engine *g)
{
    struct q_err e = Q_ERR_INIT;
    struct pollfd p = {.fd = core_fd(g->core), .events = POLLIN};
    poll(&p, 1, 100);
    must(core_step(g->core, &e), &e);
}

static void open_engine(enum order order, const char *model, uint32_t n_thread)
{
    static struct core_config c = {
        .worker =
            {
                .dtype_auto = true,
                .format = LOAD_DUMMY,
                .max_num_seqs = SEQS_MAX,
                .max_num_batched_tokens = 2048,
                .n_block = 2048,
                .cpu_isa = "auto",
                .log_level = LOG_ERROR,
            },
        .queue_max = SEQS_MAX,
        .in_process = true,
    };
    struct q_err e = Q_ERR_INIT;
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", model);
    c.worker.n_thread = n_thread;
    loading = order;
    must(core_new(&engines[order].core, &c, sink, &engines[order], &e), &e);
    while (core_state(engines[order].core, NULL) == CORE_LOADING)
        run_once(&engines[order]);
}

static void submit(struct engine *g, uint32_t i, uint32_t n_prompt, uint32_t n_new)
{
    static uint32_t prompt[8192];
    struct q_err e = Q_ERR_INIT;
    for (uint32_t j = 0; j < n_prompt; j++)
        prompt[j] = 3 + (j * 31 + i * 7919) % 500;
    g->next_id += SEQS_MAX;
    const struct msg_submit m = {
        .req_id = g->next_id / SEQS_MAX * SEQS_MAX + i,
        .prompt = {prompt, n_prompt},
        .top_p = 1,
        .repetition_penalty = 1,
        .n_logprob = 1,
        .max_tokens = n_new,
        .ignore_eos = true,
    };
    g->answers[i] = 0;
    must(core_submit(g->core, 1, &m, &e), &e);
}

/* Let it decode n steps, then stand still. */
static void run_steps(struct engine *g, uint32_t n)
{
    struct scheduler_stats s;
    uint32_t until = g->n_step + n;
    g->n_wanted = g->n_time + n < TIMES_MAX ? g->n_time + n : TIMES_MAX;
    core_resume(g->core);
    while (g->n_step < until)
        run_once(g);
    core_pause(g->core, IN_FLIGHT_KEEP, false);
    do {
        run_once(g);
        core_stats(g->core, &s);
    } while (s.n_in_flight);
}

static int smaller(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

struct load {
    const char *what;
    uint32_t n_seq, longest, shortest; /* tokens of context at the beginning */
};

/* Prints the load's line; returns what the fixed order costs, in seconds a step of both. */
static void measure(const struct load *l, double step_s[N_ORDER])
{
    for (int o = 0; o < N_ORDER; o++) {
        struct engine *g = &engines[o];
        g->n_seq = l->n_seq;
        g->n_time = g->n_step = 0;
        for (uint32_t i = 0; i < l->n_seq; i++)
            submit(g, i,
                   l->n_seq == 1 ? l->longest
                                 : l->longest - (l->longest - l->shortest) * i / (l->n_seq - 1),
                   N_NEW);
        run_steps(g, 3);
        g->n_time = 0;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int o = 0; o < N_ORDER; o++)
            run_steps(&engines[round % 2 ? N_ORDER - 1 - o : o], STEPS);
    for (int o = 0; o < N_ORDER; o++) {
        struct engine *g = &engines[o];
        qsort(g->times, g->n_time, sizeof *g->times, smaller);
        step_s[o] = g->times[g->n_time / 10] / 1e6;
        core_abort_frontend(g->core, 1);
        core_resume(g->core);
    }
    printf("  %-44s %8.2f ms a step, free %8.2f ms (medians %.2f, %.2f): costs %+5.1f %%\n",
           l->what, step_s[FIXED] * 1e3, step_s[FREE] * 1e3,
           engines[FIXED].times[engines[FIXED].n_time / 2] / 1e3,
           engines[FREE].times[engines[FREE].n_time / 2] / 1e3,
           (step_s[FIXED] / step_s[FREE] - 1) * 100);
    fflush(stdout);
}

/* How many of the answers are other ones alone than together. */
static uint32_t count_changed(struct engine *g, uint32_t n)
{
    uint64_t alone[SEQS_MAX];
    uint32_t n_changed = 0;
    g->n_seq = SEQS_MAX + 1;
    for (uint32_t i = 0; i < n; i++) {
        g->n_finished = 0;
        submit(g, i, 100 + 37 * i, TOLD);
        while (g->n_finished < 1)
            run_once(g);
        alone[i] = g->answers[i];
    }
    g->n_finished = 0;
    for (uint32_t i = 0; i < n; i++)
        submit(g, i, 100 + 37 * i, TOLD);
    while (g->n_finished < n)
        run_once(g);
    for (uint32_t i = 0; i < n; i++)
        n_changed += g->answers[i] != alone[i];
    return n_changed;
}

int main(int argc, char **argv)
{
    static const struct load loads[] = {
        {"1 sequence of 2000 tokens", 1, 2000, 2000},
        {"3 sequences of 1500 to 200 tokens", 3, 1500, 200},
        {"8 sequences of 600 to 60 tokens", 8, 600, 60},
        {"32 sequences of 300 to 16 tokens", 32, 300, 16},
    };
    enum { N_LOAD = sizeof loads / sizeof *loads };
    double step_s[N_LOAD][N_ORDER], time[N_ORDER] = {0};
    if (argc < 2)
        return fprintf(stderr, "usage: bench_determinism MODEL [THREADS]\n"), 2;
    if (!free_attention_there())
        return puts("determinism: this machine has no AVX-512, which the free order needs"), 0;
    log_setup("bench", LOG_ERROR, false);
    for (int o = 0; o < N_ORDER; o++)
        open_engine(o, argv[1], argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0);
    for (int i = 0; i < N_LOAD; i++) {
        measure(&loads[i], step_s[i]);
        for (int o = 0; o < N_ORDER; o++) /* every load gives the same number of tokens */
            time[o] += step_s[i][o] / loads[i].n_seq;
    }
    printf("  tokens per second over all loads, a like number each: costs %+.1f %% "
           "(promised: 5 at most)\n",
           (1 - time[FREE] / time[FIXED]) * 100);
    for (int o = 0; o < N_ORDER; o++)
        printf("  %s: %u of 8 answers have other bits together than alone\n", order_names[o],
               count_changed(&engines[o], 8));
    for (int o = 0; o < N_ORDER; o++)
        core_free(engines[o].core);
    return 0;
}
