/* SPDX-License-Identifier: Apache-2.0 */
/* core_run - one core for tests: submits golden prompts and collects answers by req_id. Threads:
 * the test's. */
#ifndef QUIRE_TESTS_UNIT_CORE_RUN_H
#define QUIRE_TESTS_UNIT_CORE_RUN_H
#include "engine_bits.h"

static struct bits_answer answers[BITS_REQUESTS];
static struct bits_engine engine;

static inline struct core_config config_of(const char *dir)
{
    struct core_config c = bits_config(dir);
    c.worker.max_model_len = 0; /* the model's */
    c.worker.n_thread = 2;
    return c;
}

/* As bits_try, for tests that expect a failure. */
static inline void run_once(struct q_err *e)
{
    if (bits_try(&engine, e) != Q_OK)
        return;
}

static inline void open_core(const struct core_config *c)
{
    bits_open(&engine, c, answers);
}

/* The first n_emitted tokens were emitted by another engine. */
static inline void submit_prompt(uint64_t req_id, const struct golden_prompt *p, uint32_t n_emitted)
{
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {p->ids, p->n},
        .emitted = {p->greedy, n_emitted},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = p->n_greedy,
        .ignore_eos = true,
    };
    struct q_err e = Q_ERR_INIT;
    answers[req_id].n = n_emitted;
    for (uint32_t i = 0; i < n_emitted; i++)
        answers[req_id].sampled[i].token = p->greedy[i];
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

static inline void finish_all(uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_step(engine.core, &e), &e);
    bits_wait(&engine, n);
}

static inline void check_answer(uint64_t req_id, const struct golden_prompt *p, const char *what)
{
    const struct bits_answer *a = &answers[req_id];
    assert_int_equal(a->finish, FINISH_LENGTH);
    assert_int_equal(a->n, p->n_greedy);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->sampled[i].token != p->greedy[i])
            fail_msg("%s, request %u: token %u is %u, expected %u", what, (unsigned)req_id, i,
                     a->sampled[i].token, p->greedy[i]);
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
