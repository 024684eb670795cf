/* SPDX-License-Identifier: Apache-2.0 */
/* engine_bits - drives an engine in a test and records its answers bit by bit: every sampled row
 * with its logprob and alternatives, every prompt row, the finish reason. Tests run the same
 * requests in two ways and compare with memcmp; values that may differ (prefix-cache hits, the
 * reason of a failure) are recorded separately. core_run.h builds on this for tests of one core at
 * a time.
 * Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_ENGINE_BITS_H
#define QUIRE_TESTS_UNIT_ENGINE_BITS_H
#include "engine_goldens.h"
#include <poll.h>
#include <stdlib.h>
#include "common/log.h"
#include "engine/core/core.h"
#include "engine/core/speculative.h"

#define BITS_ROWS     160 /* prompt and output of one request */
#define BITS_REQUESTS 256
#define BITS_TOP      3 /* alternatives of each sampled row */

struct bits_row {
    uint32_t position, token, rank, n_top, top_ids[BITS_TOP];
    float logprob, top_logprobs[BITS_TOP];
};
struct bits_answer { /* all zero before the request is submitted */
    struct bits_row sampled[BITS_ROWS], prompt[BITS_ROWS];
    uint32_t n, n_prompt;
    enum finish_reason finish;
};

struct bits_note { /* values of an answer that may differ between two runs */
    uint32_t n_cached;
    struct q_err why; /* of FINISH_ERROR, if the core reports it */
};

struct bits_engine {
    struct core *core;
    struct bits_answer *answers;           /* [BITS_REQUESTS] by req_id */
    struct bits_note notes[BITS_REQUESTS]; /* by req_id */
    uint32_t n_finished;
};

static inline void bits_take_row(struct bits_row *to, const struct step_result *r,
                                 const struct step_row *row)
{
    assert_true(row->n_top <= BITS_TOP);
    *to = (struct bits_row){
        .position = row->position,
        .token = row->token,
        .rank = row->rank,
        .n_top = row->n_top,
        .logprob = row->logprob,
    };
    memcpy(to->top_ids, r->top_ids + row->top_start, row->n_top * sizeof *to->top_ids);
    memcpy(to->top_logprobs, r->top_logprobs + row->top_start,
           row->n_top * sizeof *to->top_logprobs);
}

static inline void bits_sink(void *ctx, const struct step_result *r,
                             const struct scheduler_output *outputs, uint32_t n)
{
    struct bits_engine *b = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const struct scheduler_output *o = &outputs[i];
        assert_true(o->req_id < BITS_REQUESTS);
        struct bits_answer *a = &b->answers[o->req_id];
        struct bits_note *note = &b->notes[o->req_id];
        assert_true(a->finish == FINISH_NONE && a->n_prompt + o->n_prompt_row <= BITS_ROWS);
        for (uint32_t j = 0; j < o->n_prompt_row; j++)
            bits_take_row(&a->prompt[a->n_prompt++], r, &o->prompt_rows[j]);
        if (o->has_token) {
            assert_int_equal(o->seq, a->n); /* no token lost or duplicated */
            assert_true(a->n < BITS_ROWS);
            bits_take_row(&a->sampled[a->n++], r, o->row);
        }
        a->finish = o->finish;
        note->n_cached = o->n_cached;
        if (o->why)
            note->why = *o->why;
        b->n_finished += o->finish != FINISH_NONE;
    }
}

/* Wait for outputs and record them. Errors: those of a failed core. */
static inline enum q_code bits_try(struct bits_engine *b, struct q_err *e)
{
    struct pollfd p = {.fd = core_fd(b->core), .events = POLLIN};
    int wait_ms = core_wait_ms(b->core);
    assert_true(poll(&p, 1, wait_ms >= 0 ? wait_ms : 60000) >= 0);
    return core_step(b->core, e);
}

static inline void bits_turn(struct bits_engine *b)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(bits_try(b, &e), &e);
}

/* A small engine in this process; tests change what they vary before bits_open. */
static inline struct core_config bits_config(const char *dir)
{
    struct core_config c = {
        .worker =
            {
                .dtype = DT_F32,
                .max_model_len = 144,
                .max_num_seqs = 8,
                .max_num_batched_tokens = 64,
                .n_thread = 1,
                .cpu_isa = "auto",
                .log_level = LOG_ERROR,
            },
        .queue_max = BITS_REQUESTS,
        .in_process = true,
    };
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", dir);
    return c;
}

/* Forget all answers; request ids may be reused. */
static inline void bits_forget(struct bits_engine *b)
{
    memset(b->answers, 0, BITS_REQUESTS * sizeof *b->answers);
    memset(b->notes, 0, sizeof b->notes);
    b->n_finished = 0;
}

static inline void bits_open(struct bits_engine *b, const struct core_config *c,
                             struct bits_answer *answers)
{
    struct q_err e = Q_ERR_INIT;
    b->core = NULL;
    b->answers = answers;
    bits_forget(b);
    assert_ok(core_new(&b->core, c, bits_sink, b, &e), &e);
    while (core_state(b->core, NULL) == CORE_LOADING)
        bits_turn(b);
    assert_int_equal(core_state(b->core, NULL), CORE_READY);
}

static inline void bits_submit(struct bits_engine *b, const struct msg_submit *m)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_submit(b->core, 1, m, &e), &e);
    assert_ok(core_step(b->core, &e), &e);
}

/* Run until n requests have finished; then no block is in use. */
static inline struct scheduler_stats bits_wait(struct bits_engine *b, uint32_t n)
{
    struct scheduler_stats s;
    while (b->n_finished < n)
        bits_turn(b);
    core_stats(b->core, &s);
    assert_int_equal(s.kv_blocks_used, 0);
    assert_false(core_busy(b->core));
    return s;
}

static inline struct scheduler_stats bits_finish(struct bits_engine *b, uint32_t n)
{
    struct scheduler_stats s = bits_wait(b, n);
    core_free(b->core);
    return s;
}

#endif
