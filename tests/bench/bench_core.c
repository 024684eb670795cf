/* SPDX-License-Identifier: Apache-2.0 */
/* bench_core MODEL N_SEQ [process]: what core, ring and sampling cost per decode step beyond the
 * forward pass. Decodes greedily with N_SEQ sequences at once and compares the time from result to
 * result with the forward pass's own (step_result.forward_us). */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/core/core.h"

enum { N_TOKEN = 200, N_PROMPT = 8 };

static uint32_t n_finished;
static uint64_t n_step, forward_us;
static int64_t first_us, last_us;

static void sink(void *ctx, const struct step_result *result,
                 const struct scheduler_output *outputs, uint32_t n)
{
    uint32_t n_seq = *(const uint32_t *)ctx;
    last_us = clock_us();
    if (n == n_seq && outputs[0].seq > 8) { /* all are decoding */
        if (!first_us)
            first_us = last_us;
        else
            n_step++, forward_us += result->head->forward_us;
    }
    for (uint32_t i = 0; i < n; i++)
        n_finished += outputs[i].finish != FINISH_NONE;
}

static int fail(const struct q_err *e)
{
    fprintf(stderr, "bench_core: %s\n", e->message);
    return 1;
}

int main(int argc, char **argv)
{
    static struct core_config c = {
        .worker =
            {
                .dtype_auto = true,
                .max_num_batched_tokens = 2048,
                .pin = true,
                .cpu_isa = "auto",
                .log_level = LOG_ERROR,
            },
        .queue_max = 1024,
        .in_process = true,
    };
    struct q_err e = Q_ERR_INIT;
    struct core *core = NULL;
    uint32_t n_seq = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1;
    uint32_t prompt[N_PROMPT] = {3, 5, 7, 9, 11, 13, 15, 17};
    if (argc < 2 || n_seq == 0 || n_seq > 512)
        return fprintf(stderr, "usage: bench_core MODEL N_SEQ [process]\n"), 2;
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", argv[1]);
    c.worker.max_num_seqs = n_seq;
    c.in_process = argc < 4;
    log_setup("bench", LOG_ERROR, false);
    if (core_new(&core, &c, sink, &n_seq, &e))
        return fail(&e);
    for (uint32_t n_submitted = 0; n_finished < n_seq;) {
        struct pollfd p = {.fd = core_fd(core), .events = POLLIN};
        const struct msg_submit m = {
            .req_id = n_submitted + 1,
            .prompt = {prompt, N_PROMPT},
            .top_p = 1,
            .repetition_penalty = 1,
            .max_tokens = N_TOKEN,
            .ignore_eos = true,
        };
        if (core_state(core, NULL) == CORE_READY && n_submitted < n_seq) {
            if (core_submit(core, 1, &m, &e))
                return fail(&e);
            n_submitted++;
        } else {
            poll(&p, 1, core_wait_ms(core));
        }
        if ((n_submitted == 0 || n_submitted == n_seq) && core_step(core, &e))
            return fail(&e);
    }
    double step_us = (double)(last_us - first_us) / (double)n_step;
    double pass_us = (double)forward_us / (double)n_step;
    printf("%4u sequences, worker in %s: step %.1f us, forward pass %.1f us, the rest %.1f us\n",
           n_seq, c.in_process ? "a thread" : "a process", step_us, pass_us, step_us - pass_us);
    core_free(core);
    return 0;
}
