/* SPDX-License-Identifier: Apache-2.0 */
/* link_run - a link against an engine in memory: frames it sends are kept, frames it gets are made
 * here. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_LINK_RUN_H
#define QUIRE_TESTS_UNIT_LINK_RUN_H
#include "check.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/link/link_internal.h"
#include "proto/item_types.h"
#include "proto/socket.h"

#define FRAMES_MAX 256
#define FLOWS      8

struct seen {                     /* one generation and what its owner heard */
    struct generation generation; /* first */
    uint32_t tokens[64];
    uint32_t n, n_prompt_row;
    enum finish_reason finish;
    enum q_code error;
    char message[2 * Q_MESSAGE_MAX];
    uint32_t retry_after_ms;
    bool close_in_call;
    uint32_t at[4], n_token[4];
    size_t n_expanded;
};

static struct link link_now;
static struct buf frames[FRAMES_MAX]; /* sent by the link */
static uint32_t n_frame, n_read;
static bool connected;
static struct seen generations[FLOWS];
static const uint32_t prompt[] = {1, 2, 3};

static inline bool keep_frame(void *ctx, const void *frame, size_t n)
{
    (void)ctx;
    if (!connected)
        return false;
    assert_true(n_frame < FRAMES_MAX);
    buf_add(&frames[n_frame++], frame, n);
    return true;
}

static inline void on_tokens(struct generation *f, const struct link_tokens *t)
{
    struct seen *s = (struct seen *)f;
    for (uint32_t i = 0; i < t->n; i++)
        s->tokens[s->n++] = t->ids[i];
    s->n_prompt_row += t->prompt.n_row;
    s->finish = t->finish;
    if (s->close_in_call)
        link_close(&link_now, f);
}

static inline void on_error(struct generation *f, enum q_code code, const char *message,
                            uint32_t retry_after_ms)
{
    struct seen *s = (struct seen *)f;
    assert_true(*message != 0);
    s->error = code;
    snprintf(s->message, sizeof s->message, "%s", message);
    s->retry_after_ms = retry_after_ms;
}

static inline void on_expanded(struct generation *f, const uint32_t *positions,
                               const uint32_t *n_token, size_t n)
{
    struct seen *s = (struct seen *)f;
    assert_true(n <= 4);
    memcpy(s->at, positions, n * sizeof *positions);
    memcpy(s->n_token, n_token, n * sizeof *n_token);
    s->n_expanded = n;
}

static const struct generation_calls calls = {
    .on_tokens = on_tokens,
    .on_error = on_error,
    .on_expanded = on_expanded,
};

static inline int setup(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct link_config c = {.address = "ipc:///nowhere", .engine_timeout_ms = 1000};
    assert_ok(link_init(&link_now, &c, &e), &e);
    link_now.send = keep_frame;
    memset(generations, 0, sizeof generations);
    n_frame = n_read = 0;
    connected = true;
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < FLOWS; i++)
        link_close(&link_now, &generations[i].generation);
    link_release(&link_now);
    for (int i = 0; i < FRAMES_MAX; i++)
        buf_release(&frames[i]);
    return 0;
}

/* The engine's side. */
#define GIVE(name, ...)                                     \
    do {                                                    \
        struct q_err e_ = Q_ERR_INIT;                       \
        struct buf b_ = BUF_INIT;                           \
        struct msg_##name m_ = __VA_ARGS__;                 \
        assert_ok(msg_##name##_encode(&m_, &b_, &e_), &e_); \
        link_receive(&link_now, b_.data, b_.len);           \
        buf_release(&b_);                                   \
    } while (0)

/* After an engine that no request has crashed. */
static inline void greet(uint64_t instance, uint32_t credit)
{
    static const uint8_t digest[32];
    static const char death[] = "other: it was stopped";
    GIVE(hello, {.wire_min = 1,
                 .wire_max = 1,
                 .digest = {digest, 32},
                 .instance = instance,
                 .credit = credit,
                 .max_model_len = 100,
                 .heartbeat_ms = 50,
                 .fingerprint = {"fp", 2},
                 .death = {death, sizeof death - 1}});
}

static inline void give_tokens(uint64_t id, uint32_t seq, const uint32_t *tokens, uint32_t n,
                               uint32_t finish)
{
    GIVE(output, {.req_ids = {&id, 1},
                  .seq = {&seq, 1},
                  .n_token = {&n, 1},
                  .tokens = {tokens, n},
                  .finish = {&finish, 1}});
}

/* The next frame of that kind the link sent; fails when there is none. */
static inline const struct buf *next_frame(uint32_t tag)
{
    while (n_read < n_frame) {
        const struct buf *b = &frames[n_read++];
        if (proto_peek(b->data, b->len) == tag)
            return b;
    }
    fail_msg("no %s was sent", proto_name(tag));
    return NULL;
}

static inline bool no_more(uint32_t tag)
{
    for (uint32_t i = n_read; i < n_frame; i++)
        if (proto_peek(frames[i].data, frames[i].len) == tag)
            return false;
    return true;
}

static inline struct msg_submit next_submit(void)
{
    static struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    struct msg_submit m;
    const struct buf *b = next_frame(MSG_submit);
    assert_ok(msg_submit_decode(&m, b->data, b->len, &a, &e), &e);
    return m;
}

static inline void open_generation(int i)
{
    struct q_err e = Q_ERR_INIT;
    generations[i].generation =
        (struct generation){.calls = &calls, .prompt = prompt, .n_prompt = 3};
    sample_params_default(&generations[i].generation.params);
    generations[i].generation.params.seed = 40 + (uint64_t)i;
    assert_ok(link_open(&link_now, &generations[i].generation, &e), &e);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
