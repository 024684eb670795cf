/* SPDX-License-Identifier: Apache-2.0 */
/* device_run - one core whose worker computes on a fake device, and requests of every kind for it.
 * Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_DEVICE_RUN_H
#define QUIRE_TESTS_UNIT_DEVICE_RUN_H
#include <dlfcn.h>
#include "core_run.h"

/* Use the device of this library of the build folder. */
static inline void device_choose(struct core_config *c, const char *library)
{
    snprintf(c->worker.device, sizeof c->worker.device, "cuda");
    snprintf(c->worker.device_library, sizeof c->worker.device_library, "%s",
             program_beside(library));
    c->worker.n_block = 64;
}

/* A variable of that library, which is loaded. */
static inline void *device_symbol(const char *library, const char *name)
{
    void *handle = dlopen(program_beside(library), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(handle);
    void *p = dlsym(handle, name);
    assert_non_null(p);
    dlclose(handle);
    return p;
}

static bool device_all_logprobs; /* every request has logprobs; they change no token */
static uint32_t device_max_tokens = 12;
static struct scheduler_stats device_stats; /* of the last device_answers */

static inline bool device_is_drawn(uint64_t req_id)
{
    return req_id % 3 == 1;
}

/* Of every kind: greedy and drawn, penalties, biases, logprobs of tokens and prompts. */
static inline void device_submit(uint64_t req_id, const struct golden_prompt *p)
{
    static const uint32_t bias_ids[] = {7, 40};
    static const float bias[] = {2, -50};
    struct msg_submit m = {
        .req_id = req_id,
        .prompt = {p->ids, p->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = device_max_tokens,
        .ignore_eos = true,
        .n_logprob = req_id % 2 || device_all_logprobs ? 1 + BITS_TOP : 0,
        .n_prompt_logprob = req_id % 5 == 4 ? 2 : 0,
        .seed = req_id,
    };
    if (device_is_drawn(req_id))
        m.temperature = 0.8f;
    if (req_id % 4 == 1)
        m.top_p = 0.9f;
    if (req_id % 4 == 3)
        m.presence_penalty = 0.5f;
    if (req_id % 7 == 3) {
        m.bias_ids.data = bias_ids;
        m.bias.data = bias;
        m.bias_ids.n = m.bias.n = 2;
    }
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* Answers of this engine to `n` requests; some come while others run. */
static inline void device_answers(const struct core_config *c, const struct golden *g, uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    open_core(c);
    for (uint32_t i = 0; i < n; i++) {
        device_submit(i, &g->prompts[i % g->n]);
        if (i % 3 == 2)
            assert_ok(core_step(engine.core, &e), &e);
    }
    finish_all(n);
    core_stats(engine.core, &device_stats);
    core_free(engine.core);
}

#endif
