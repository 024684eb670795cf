/* SPDX-License-Identifier: Apache-2.0 */
/* bench_engine MODEL [N_SEQ [SECONDS [TRACE]]]: the whole engine (core, scheduler, ring, outputs as
 * the messages that frontends get) with a worker that computes nothing, on one core: output tokens
 * per second with N_SEQ (256) sequences running all the time. Of MODEL only the configuration is
 * read. The worker is another process on the same core, so its small share is in the wall-clock
 * figure; CPU time of both is told too, which other programs on the machine do not change. */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/core/core.h"
#include "engine/server/outbox.h"
#include "noop_worker.h"

enum { N_PROMPT = 128, N_NEW_MIN = 256, N_NEW_MAX = 512, WARM_STEPS = 200 };

struct load {
    struct core *core;
    struct outbox outbox;
    uint32_t prompt[N_PROMPT];
    uint32_t n_seq;
    uint64_t n_submit, n_open, n_token, n_step, n_byte, n_wrong;
};

static void must(enum q_code rc, const struct q_err *e)
{
    if (rc)
        fprintf(stderr, "bench_engine: %s\n", e->message);
    Q_ASSERT(rc == Q_OK);
}

static void submit(struct load *l)
{
    struct q_err e = Q_ERR_INIT;
    uint64_t id = ++l->n_submit;
    const struct msg_submit m = {
        .req_id = id,
        .prompt = {l->prompt, N_PROMPT},
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = id * 1000003,
        .tenant = id % 4,
        .max_tokens = N_NEW_MIN + id * 37 % (N_NEW_MAX - N_NEW_MIN),
    };
    must(core_submit(l->core, 1, &m, &e), &e);
    l->n_open++;
}

/* What the server does with a step: one message for the frontend, encoded. */
static void sink(void *ctx, const struct step_result *result,
                 const struct scheduler_output *outputs, uint32_t n)
{
    struct load *l = ctx;
    struct q_err e = Q_ERR_INIT;
    const struct outbox_step step = {result, outputs, n};
    uint32_t n_request;
    must(outbox_fill(&l->outbox, 1, &step, &n_request, &e), &e);
    l->n_byte += l->outbox.frame.len;
    l->n_step++;
    for (uint32_t i = 0; i < n; i++) {
        l->n_token += outputs[i].has_token;
        l->n_open -= outputs[i].finish != FINISH_NONE;
        l->n_wrong +=
            outputs[i].token != noop_token(outputs[i].req_id * 1000003, N_PROMPT + outputs[i].seq);
    }
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One turn of a server's loop without sockets. */
static void run_once(struct load *l)
{
    struct q_err e = Q_ERR_INIT;
    struct pollfd p = {.fd = core_fd(l->core), .events = POLLIN};
    poll(&p, 1, core_wait_ms(l->core));
    must(core_step(l->core, &e), &e);
    if (core_state(l->core, NULL) != CORE_READY)
        return;
    if (!l->outbox.memory)
        must(outbox_init(&l->outbox, &core_info(l->core)->limits, &e), &e);
    bool news = false;
    for (; l->n_open < l->n_seq; news = true)
        submit(l);
    if (news)
        must(core_step(l->core, &e), &e);
}

static void measure(struct load *l, double seconds)
{
    clockid_t worker_clock;
    while (l->n_step < WARM_STEPS)
        run_once(l);
    Q_ASSERT(clock_getcpuclockid(core_worker_pid(l->core), &worker_clock) == 0);
    l->n_token = l->n_step = l->n_byte = l->n_wrong = 0;
    double wall = seconds_of(CLOCK_MONOTONIC), own = seconds_of(CLOCK_PROCESS_CPUTIME_ID),
           worker = seconds_of(worker_clock);
    while (seconds_of(CLOCK_MONOTONIC) - wall < seconds)
        run_once(l);
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    own = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own;
    worker = seconds_of(worker_clock) - worker;
    double n = (double)l->n_token;
    printf("engine: %u sequences, %.1f a step: %.0f tokens/s by the clock, %.0f per CPU second of "
           "engine and worker, %.0f of the engine alone (%.1f us a step)\n",
           l->n_seq, n / (double)l->n_step, n / wall, n / (own + worker), n / own,
           own / (double)l->n_step * 1e6);
    printf("engine: %.0f %% of the core were ours; %.1f bytes of messages a token; %llu tokens "
           "wrong\n",
           (own + worker) / wall * 100, (double)l->n_byte / n, (unsigned long long)l->n_wrong);
}

static void one_core(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set); /* the worker inherits it */
}

int main(int argc, char **argv)
{
    static struct core_config c = {
        .worker = {.max_num_batched_tokens = 8192, .log_level = LOG_ERROR, .cpu_isa = "auto"},
        .queue_max = 4096,
    };
    static struct load l = {.outbox = OUTBOX_INIT};
    struct q_err e = Q_ERR_INIT;
    char program[PATH_MAX] = {0};
    if (argc < 2)
        return fprintf(stderr, "usage: bench_engine MODEL [N_SEQ [SECONDS [TRACE]]]\n"), 2;
    l.n_seq = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 256;
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 5;
    c.trace_path = argc > 4 ? argv[4] : NULL;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        l.prompt[i] = 5 + i;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - sizeof "noop_worker");
    Q_ASSERT(n > 0);
    memcpy(strrchr(program, '/') + 1, "noop_worker", sizeof "noop_worker");
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", argv[1]);
    c.worker.max_num_seqs = l.n_seq;
    c.worker.n_block = l.n_seq * (N_PROMPT + N_NEW_MAX) / STEP_BLOCK_TOKENS * 2;
    c.worker_program = program;
    log_setup("bench", LOG_ERROR, false);
    one_core();
    must(core_new(&l.core, &c, sink, &l, &e), &e);
    measure(&l, seconds);
    core_free(l.core);
    outbox_release(&l.outbox);
    return l.n_wrong != 0;
}
