/* SPDX-License-Identifier: Apache-2.0 */
/* golden_core - an engine in this process that answers the prompts of a golden: vectors of models
 * that make vectors, else greedy tokens with their log-probabilities; and comparison with what the
 * golden says. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_GOLDEN_CORE_H
#define QUIRE_TESTS_UNIT_GOLDEN_CORE_H
#include <poll.h>
#include <unistd.h>
#include "common/log.h"
#include "engine/core/core.h"
#include "golden.h"

#define CORE_PROMPTS_MAX 8u
#define CORE_WIDTH       64u
#define CORE_TOKENS_MAX  24u
#define CORE_PROMPT_MAX  128u                           /* tokens of a prompt */
#define CORE_REFERENCE   "/tests/libquire-fake.so"      /* the reference's kernels on a device */
#define CORE_EMULATION   "/tests/libquire-fake-cuda.so" /* the CUDA kernels */

struct core_answers { /* of one engine, by prompt */
    float vectors[CORE_PROMPTS_MAX][CORE_WIDTH];
    uint32_t n[CORE_PROMPTS_MAX]; /* elements of the vector, or tokens */
    uint32_t tokens[CORE_PROMPTS_MAX][CORE_TOKENS_MAX];
    float logprobs[CORE_PROMPTS_MAX][CORE_TOKENS_MAX];
    float prompt_logprobs[CORE_PROMPTS_MAX][CORE_PROMPT_MAX]; /* from the second token on */
    uint32_t n_done;
};

static inline void core_take_row(struct core_answers *v, const struct scheduler_output *o)
{
    const uint64_t i = o->req_id;
    for (uint32_t k = 0; k < o->n_prompt_row; k++) {
        assert_in_range(o->prompt_rows[k].position, 1, CORE_PROMPT_MAX - 1);
        v->prompt_logprobs[i][o->prompt_rows[k].position] = o->prompt_rows[k].logprob;
    }
    if (!o->has_token)
        return;
    assert_true(v->n[i] < CORE_TOKENS_MAX);
    v->tokens[i][v->n[i]] = o->row->token;
    v->logprobs[i][v->n[i]++] = o->row->logprob;
}

static inline void core_take(void *ctx, const struct step_result *r,
                             const struct scheduler_output *outputs, uint32_t n)
{
    struct core_answers *v = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const struct scheduler_output *o = &outputs[i];
        if (!o->has_vector)
            core_take_row(v, o);
        v->n_done += o->finish != FINISH_NONE;
        if (o->finish == FINISH_NONE)
            continue;
        assert_int_equal(o->finish, o->has_vector ? FINISH_STOP : FINISH_LENGTH);
        if (!o->has_vector)
            continue;
        assert_true(o->row->n_top > 0 && o->row->n_top <= CORE_WIDTH);
        v->n[o->req_id] = o->row->n_top;
        memcpy(v->vectors[o->req_id], r->top_logprobs + o->row->top_start,
               o->row->n_top * sizeof(float));
    }
}

static inline bool core_wait(const struct core *c)
{
    struct pollfd p = {.fd = core_fd(c), .events = POLLIN};
    const int wait_ms = core_wait_ms(c);
    return poll(&p, 1, wait_ms >= 0 ? wait_ms : 60000) >= 0;
}

static inline void core_turn(struct core *c)
{
    struct q_err e = Q_ERR_INIT;
    assert_true(core_wait(c));
    assert_ok(core_step(c, &e), &e);
}

/* A library of the build folder. */
static inline void core_choose_device(struct worker_config *w, const char *library)
{
    char path[PATH_MAX - 64];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(path, '/') = '\0';
    snprintf(w->device, sizeof w->device, "cuda");
    snprintf(w->device_library, sizeof w->device_library, "%s%s", path, library);
    w->n_block = 64;
}

/* library NULL: the CPU. */
static inline struct core_config core_config_of(const char *dir, const char *library)
{
    struct core_config c = {
        .worker =
            {
                .dtype = DT_F32,
                .max_num_seqs = 4,
                .max_num_batched_tokens = 48,
                .max_model_len = 120, /* a prompt has as many */
                .n_thread = 2,
                .cpu_isa = "none",
                .log_level = LOG_ERROR,
            },
        .queue_max = CORE_PROMPTS_MAX,
        .in_process = true,
    };
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", dir);
    if (library)
        core_choose_device(&c.worker, library);
    return c;
}

/* "causal", "lora"; "embed", "seqcls" are of vectors. */
static inline bool core_golden_is(const struct golden *g, const char *kind)
{
    const char *is = json_string_value(json_object_get(g->root, "kind"));
    return is && strcmp(is, kind) == 0;
}

static inline bool core_golden_pools(const struct golden *g)
{
    return core_golden_is(g, "embed") || core_golden_is(g, "seqcls");
}

/* Vectors of odd prompts are raw. */
static inline bool core_is_raw(size_t i)
{
    return i % 2 == 1;
}

/* The first token of type 1; 0: there is none. */
static inline uint32_t core_second_text(const json_t *prompt)
{
    const json_t *types = json_object_get(prompt, "token_type_ids");
    uint32_t i = 0;
    while (i < json_array_size(types) && !json_integer_value(json_array_get(types, i)))
        i++;
    return i < json_array_size(types) ? i : 0;
}

static inline const json_t *core_prompt_of(const struct golden *g, size_t i)
{
    return json_array_get(json_object_get(g->root, "prompts"), i);
}

/* The golden's prompts, which ascend in length, up to this length. */
static inline uint32_t core_count_prompts(const struct golden *g, uint32_t longest)
{
    uint32_t n = 0;
    while (core_prompt_of(g, n) &&
           json_array_size(json_object_get(core_prompt_of(g, n), "ids")) <= longest)
        n++;
    return n;
}

struct core_ask {        /* for tokens, of models that make no vectors */
    uint32_t n_token;    /* of each prompt */
    const char *adapter; /* NULL: none */
};

static inline void core_submit_prompt(struct core *c, const struct golden *g, uint32_t i,
                                      const struct core_ask *ask)
{
    uint32_t ids[RUN_TOKENS_MAX];
    struct q_err e = Q_ERR_INIT;
    const json_t *prompt = core_prompt_of(g, i);
    const uint32_t n = golden_ids(ids, json_object_get(prompt, "ids"));
    struct msg_submit m = {.req_id = i, .prompt = {ids, n}};
    if (core_golden_pools(g)) {
        m.pools = true;
        m.raw_vector = core_is_raw(i);
        m.second_text = core_second_text(prompt);
    } else {
        m.top_p = m.repetition_penalty = 1;
        m.max_tokens = ask->n_token;
        m.ignore_eos = true;
        m.n_logprob = m.n_prompt_logprob = 1;
    }
    if (ask->adapter)
        m.adapter = (struct proto_str){ask->adapter, strlen(ask->adapter)};
    assert_ok(core_submit(c, 1, &m, &e), &e);
}

struct core_run {
    const struct core_config *config;
    const struct golden *golden;
    uint32_t longest; /* of the prompts */
    bool apart;       /* each request waits for the one before */
    struct core_ask ask;
};

/* Answers to the golden's prompts up to the longest one. */
static inline void core_run_golden(struct core_answers *v, const struct core_run *r)
{
    struct core *c = NULL;
    struct q_err e = Q_ERR_INIT;
    const uint32_t n = core_count_prompts(r->golden, r->longest);
    assert_in_range(n, 1, CORE_PROMPTS_MAX);
    memset(v, 0, sizeof *v);
    assert_ok(core_new(&c, r->config, core_take, v, &e), &e);
    while (core_state(c, NULL) == CORE_LOADING)
        core_turn(c);
    for (uint32_t i = 0; i < n; i++) {
        core_submit_prompt(c, r->golden, i, &r->ask);
        if (r->apart || i == 2) /* the others come while these run */
            assert_ok(core_step(c, &e), &e);
        while (r->apart && v->n_done <= i)
            core_turn(c);
    }
    assert_ok(core_step(c, &e), &e);
    while (v->n_done < n)
        core_turn(c);
    core_free(c);
}

/* Of embeddings within 1e-4, of logits and probabilities within 2e-4 of the largest logit. */
static inline void core_check_vectors(const struct core_answers *got, const struct golden *g,
                                      const char *dir)
{
    const bool embeds = core_golden_is(g, "embed");
    for (uint32_t i = 0; i < got->n_done; i++) {
        const char *what = embeds           ? core_is_raw(i) ? "pooled" : "pooled_normalized"
                           : core_is_raw(i) ? "logits"
                                            : "probs";
        const struct tensor *want = golden_array(g, i, what);
        assert_non_null(want);
        const size_t n = want->n_bytes / sizeof(float);
        assert_int_equal(got->n[i], n);
        const double most = embeds ? 1e-4 : 2e-4 * abs_max(want->data, n);
        const double far = difference(got->vectors[i], want->data, n);
        if (!(far <= most))
            fail_msg("%s: prompt %u: %s differs by %g, at most %g is accepted", dir, i, what, far,
                     most);
    }
}

#endif
