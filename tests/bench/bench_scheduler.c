/* SPDX-License-Identifier: Apache-2.0 */
/* bench_scheduler [N_SEQ]: what planning and settling cost by themselves, without and with the
 * prefix cache. A worker that takes no time samples for N_SEQ (256) sequences, two steps in flight;
 * prints tokens per second of one core. With the cache every prompt is found whole, and every block
 * that fills is hashed. Nothing may allocate in the loop. */
#include <stdio.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/parse.h"
#include "engine/sched/scheduler.h"

#define N_PROMPT 128u
#define N_NEW    2048u
#define N_STEP   20000u

struct loop {
    struct scheduler *s;
    struct scheduler_config c;
    size_t n, result_n;
    void *memory[SCHEDULER_IN_FLIGHT_MAX], *result;
    struct scheduler_output *outputs;
    uint32_t *prompt;
    uint64_t i_plan, i_settle; /* steps; each lies in memory[i % 2] */
    uint64_t next_id, n_token, work_us;
};

static void must(enum q_code rc, const struct q_err *e)
{
    if (rc)
        fprintf(stderr, "bench_scheduler: %s\n", e->message);
    Q_ASSERT(rc == Q_OK);
}

static void submit(struct loop *l)
{
    struct q_err e = Q_ERR_INIT;
    struct msg_submit m = {
        .req_id = ++l->next_id,
        .prompt = {l->prompt, N_PROMPT},
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = N_NEW / 2 + (uint32_t)(l->next_id * 37 % (N_NEW / 2)),
    };
    must(scheduler_submit(l->s, 0, &m, 0, &e), &e);
}

/* What a worker answers: one token for each sequence that samples. Not timed. */
static struct step_result compute(struct loop *l, void *memory)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    struct step_result r;
    uint32_t n_row = 0;
    must(step_view(&v, memory, l->n, &l->c.limits, &e), &e);
    must(step_result_layout(&r, l->result, l->result_n, v.head->n_seq, 0, &e), &e);
    for (uint32_t i = 0; i < v.head->n_seq; i++)
        if (v.seqs[i].flags & STEP_SAMPLE)
            r.rows[n_row++] = (struct step_row){
                .slot = v.seqs[i].slot,
                .position = v.seqs[i].start + v.seqs[i].n_token,
                .token = 5,
            };
    must(step_result_layout(&r, l->result, l->result_n, n_row, 0, &e), &e);
    r.head->step = v.head->step;
    return r;
}

static void plan(struct loop *l)
{
    struct q_err e = Q_ERR_INIT;
    bool planned;
    int64_t start = clock_us();
    alloc_freeze();
    must(scheduler_plan(l->s, l->memory[l->i_plan % 2], l->n, 0, &planned, &e), &e);
    alloc_thaw();
    l->work_us += (uint64_t)(clock_us() - start);
    l->i_plan += planned;
}

/* One turn: plan while the step before is "computed", settle that. Requests that end are replaced,
 * untimed. */
static void run_once(struct loop *l)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t n_output;
    plan(l);
    struct step_result r = compute(l, l->memory[l->i_settle++ % 2]);
    int64_t start = clock_us();
    alloc_freeze();
    must(scheduler_settle(l->s, &r, 0, l->outputs, &n_output, &e), &e);
    alloc_thaw();
    l->work_us += (uint64_t)(clock_us() - start);
    for (uint32_t k = 0; k < n_output; k++) {
        l->n_token += l->outputs[k].has_token;
        if (l->outputs[k].finish)
            submit(l);
    }
    if (l->i_plan == l->i_settle) /* the only sequences were over */
        plan(l);
}

static void setup(struct loop *l, uint32_t n_seq, bool prefix_cache)
{
    struct q_err e = Q_ERR_INIT;
    l->c = (struct scheduler_config){
        .limits =
            {
                .max_num_seqs = n_seq,
                .max_num_batched_tokens = 8192,
                .max_model_len = N_PROMPT + N_NEW,
                .logit_rows_max = n_seq,
                .known_max = 65536,
            },
        .n_block = n_seq * (N_PROMPT + N_NEW) / 16 * 2, /* never short */
        .queue_max = n_seq,
        .vocab_size = 1000,
        .prefix_cache = prefix_cache,
    };
    must(scheduler_new(&l->s, &l->c, &e), &e);
    must(step_bytes_max(&l->n, &l->result_n, &l->c.limits, &e), &e);
    l->memory[0] = q_alloc(l->n);
    l->memory[1] = q_alloc(l->n);
    l->result = q_alloc(l->result_n);
    l->outputs = q_calloc(n_seq, sizeof *l->outputs);
    l->prompt = q_calloc(N_PROMPT, sizeof *l->prompt);
    for (uint32_t i = 0; i < n_seq; i++)
        submit(l);
    plan(l);
}

static void drop(struct loop *l)
{
    scheduler_free(l->s);
    q_free(l->memory[0]);
    q_free(l->memory[1]);
    q_free(l->result);
    q_free(l->outputs);
    q_free(l->prompt);
}

static void measure(int64_t n_seq, bool prefix_cache)
{
    struct loop l = {0};
    setup(&l, (uint32_t)n_seq, prefix_cache);
    for (uint64_t i = 0; i < N_STEP; i++)
        run_once(&l);
    double seconds = (double)l.work_us / 1e6;
    printf("scheduler, prefix cache %s: %lld sequences, %u steps: %.1f us a step, %.2f M tokens/s "
           "of one core (plan and settle alone)\n",
           prefix_cache ? "on" : "off", (long long)n_seq, N_STEP, (double)l.work_us / N_STEP,
           (double)l.n_token / seconds / 1e6);
    drop(&l);
}

int main(int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    int64_t n_seq = 256;
    if (argc > 1)
        must(parse_i64(&n_seq, argv[1], 1, 4096, "N_SEQ", &e), &e);
    measure(n_seq, false);
    measure(n_seq, true);
    return 0;
}
