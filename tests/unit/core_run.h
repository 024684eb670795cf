/* SPDX-License-Identifier: Apache-2.0 */
/* core_run - drives a core the way tests want it: golden prompts in, answers by req_id out. One
 * core at a time. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_CORE_RUN_H
#define QUIRE_TESTS_UNIT_CORE_RUN_H
#include <poll.h>
#include "common/log.h"
#include "engine/core/core.h"
#include "engine_goldens.h"

#define ANSWERS_MAX 64

struct answer {
    uint32_t tokens[GOLDEN_TOKENS], n;
    enum finish_reason finish;
    uint32_t n_prompt_row;
    struct q_err why; /* of FINISH_ERROR, when the core says */
};

static struct answer answers[ANSWERS_MAX];
static uint32_t n_finished;
static struct core *core;

static inline void sink(void *ctx, const struct step_result *result,
                        const struct scheduler_output *outputs, uint32_t n)
{
    (void)ctx;
    (void)result;
    for (uint32_t i = 0; i < n; i++) {
        const struct scheduler_output *o = &outputs[i];
        struct answer *a = &answers[o->req_id];
        assert_true(o->req_id < ANSWERS_MAX && a->finish == FINISH_NONE);
        a->n_prompt_row += o->n_prompt_row;
        if (o->has_token) {
            assert_int_equal(o->seq, a->n); /* none lost, none doubled */
            a->tokens[a->n++] = o->token;
        }
        a->finish = o->finish;
        if (o->why)
            a->why = *o->why;
        n_finished += o->finish != FINISH_NONE;
    }
}

static inline struct core_config config_of(const char *dir)
{
    struct core_config c = {.worker = {.dtype = DT_F32,
                                       .max_num_seqs = 8,
                                       .max_num_batched_tokens = 64,
                                       .n_thread = 2,
                                       .cpu_isa = "auto",
                                       .log_level = LOG_ERROR},
                            .queue_max = ANSWERS_MAX,
                            .in_process = true};
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", dir);
    return c;
}

static inline void turn(struct q_err *e)
{
    struct pollfd p = {.fd = core_fd(core), .events = POLLIN};
    int wait_ms = core_wait_ms(core);
    assert_true(poll(&p, 1, wait_ms >= 0 ? wait_ms : 60000) >= 0);
    if (core_step(core, e) != Q_OK)
        return;
}

static inline void open_core(const struct core_config *c)
{
    struct q_err e = Q_ERR_INIT;
    memset(answers, 0, sizeof answers);
    n_finished = 0;
    assert_ok(core_new(&core, c, sink, NULL, &e), &e);
    while (core_state(core, NULL) == CORE_LOADING)
        turn(&e);
    if (core_state(core, NULL) != CORE_READY)
        fail_msg("%s", e.message);
}

static inline void submit(uint64_t req_id, const struct golden_prompt *p, uint32_t n_emitted)
{
    struct q_err e = Q_ERR_INIT;
    const struct msg_submit m = {.req_id = req_id,
                                 .prompt = {p->ids, p->n},
                                 .emitted = {p->greedy, n_emitted},
                                 .top_p = 1,
                                 .repetition_penalty = 1,
                                 .max_tokens = p->n_greedy,
                                 .ignore_eos = true};
    answers[req_id].n = n_emitted;
    memcpy(answers[req_id].tokens, p->greedy, n_emitted * sizeof(uint32_t));
    assert_ok(core_submit(core, 1, &m, &e), &e);
}

static inline void finish_all(uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_step(core, &e), &e);
    while (n_finished < n) {
        turn(&e);
        if (e.code)
            fail_msg("%s", e.message);
    }
    struct scheduler_stats s;
    core_stats(core, &s);
    assert_int_equal(s.kv_blocks_used, 0);
    assert_false(core_busy(core));
}

static inline void check_answer(uint64_t req_id, const struct golden_prompt *p, const char *what)
{
    const struct answer *a = &answers[req_id];
    assert_int_equal(a->finish, FINISH_LENGTH);
    assert_int_equal(a->n, p->n_greedy);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->tokens[i] != p->greedy[i])
            fail_msg("%s, request %u: token %u is %u, expected %u", what, (unsigned)req_id, i,
                     a->tokens[i], p->greedy[i]);
}

/* A program of the build folder: "/bin/quire-worker". */
static inline const char *program_beside(const char *name)
{
    static char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(path, '/') = '\0';
    strncat(path, name, sizeof path - strlen(path) - 1);
    return path;
}

#endif
