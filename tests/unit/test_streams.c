/* SPDX-License-Identifier: Apache-2.0 */
/* Kept event streams: what is added, cut, taken over and forgotten, within their memory. */
#include "check.h"
#include <string.h>
#include "common/mem.h"
#include "engine/server/streams.h"

#define KEEP_MS 1000

static const uint8_t key[STREAM_DIGEST] = {1, 2, 3};

static struct msg_keep_stream keep_of(const uint8_t *id, uint32_t n_resume, size_t n_body)
{
    static const uint8_t body[1 << 16];
    return (struct msg_keep_stream){
        .stream_id = {id, STREAM_ID_BYTES},
        .n_resume = n_resume,
        .key_digest = {key, sizeof key},
        .keep_ms = KEEP_MS,
        .response_id = {"cmpl-1", 6},
        .seed = 7,
        .body = {body, n_body},
    };
}

static void keep(struct streams *s, const uint8_t *id, uint32_t n_resume, size_t n_body,
                 int64_t now)
{
    struct q_err e = Q_ERR_INIT;
    const struct msg_keep_stream m = keep_of(id, n_resume, n_body);
    assert_ok(streams_keep(s, &m, now, &e), &e);
}

static bool open_choice(struct streams *s, const uint8_t *id, uint32_t n_resume, uint32_t choice,
                        uint64_t req_id, size_t n_emitted)
{
    static const uint32_t tokens[64];
    const struct msg_submit m = {
        .req_id = req_id,
        .stream_id = {id, STREAM_ID_BYTES},
        .n_resume = n_resume,
        .choice = choice,
        .emitted = {tokens, n_emitted},
    };
    return streams_open(s, 1, &m);
}

static void put(struct streams *s, uint64_t req_id, uint32_t n_token, uint32_t finish, int64_t now)
{
    static const uint32_t tokens[4] = {10, 11, 12, 13}, ids[8] = {1, 2, 3, 4, 5, 6, 7, 8},
                          ranks[4] = {1, 1, 2, 1};
    static const float logprobs[8] = {-1, -2, -3, -4, -5, -6, -7, -8};
    const struct stream_output o = {
        .n_token = n_token,
        .finish = finish,
        .n_logprob = 2,
        .tokens = tokens,
        .logprob_ids = ids,
        .logprobs = logprobs,
        .ranks = ranks,
    };
    streams_output(s, 1, req_id, &o, now);
}

/* "choice:tokens …" of the log; a finish is marked. */
static void assert_log(const struct stream *x, const char *want)
{
    char text[256] = "";
    struct stream_place at = {0};
    struct stream_output o;
    while (stream_log_next(&x->log, &at, &o)) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%u:%u%s", n ? " " : "", o.choice, o.n_token,
                 o.finish ? "!" : "");
        for (uint32_t i = 0; i < o.n_token; i++) {
            assert_int_equal(o.tokens[i], 10 + i);
            assert_int_equal(o.logprob_ids[2 * i], 1 + 2 * i);
            assert_true(o.logprobs[2 * i + 1] == -2.0f - 2.0f * (float)i);
        }
    }
    assert_string_equal(text, want);
}

static void outputs_are_added_and_cut(void **state)
{
    (void)state;
    static const uint8_t id[STREAM_ID_BYTES] = {1};
    struct streams s;
    struct q_err e = Q_ERR_INIT;
    assert_ok(streams_init(&s, 1 << 20, &e), &e);
    keep(&s, id, 0, 100, 0);
    struct stream *x = streams_find(&s, id, sizeof id);
    assert_non_null(x);
    assert_true(open_choice(&s, id, 0, 0, 100, 0) && open_choice(&s, id, 0, 1, 101, 0));
    put(&s, 100, 1, 0, 0);
    put(&s, 101, 2, 0, 0);
    put(&s, 100, 3, 0, 0);
    put(&s, 999, 3, 0, 0); /* of no kept stream */
    assert_log(x, "0:1 1:2 0:3");
    /* The frontend has not received the second output of choice 0, and submits it again. */
    assert_true(open_choice(&s, id, 0, 0, 102, 1));
    assert_log(x, "0:1 1:2");
    put(&s, 100, 3, 0, 0); /* late output of the earlier submission */
    put(&s, 102, 1, FINISH_STOP, 0);
    assert_log(x, "0:1 1:2 0:1!");
    /* A number of tokens that divides an output: the stream is not whole any more. */
    assert_true(open_choice(&s, id, 0, 1, 103, 1));
    assert_null(streams_find(&s, id, sizeof id));
    assert_int_equal(s.n_byte, 0);
    streams_release(&s);
}

static void a_stream_is_kept_for_its_time(void **state)
{
    (void)state;
    static const uint8_t id[STREAM_ID_BYTES] = {1};
    struct streams s;
    struct q_err e = Q_ERR_INIT;
    assert_ok(streams_init(&s, 1 << 20, &e), &e);
    keep(&s, id, 0, 100, 0);
    assert_true(open_choice(&s, id, 0, 0, 100, 0) && open_choice(&s, id, 0, 1, 101, 0));
    streams_tick(&s, 100 * KEEP_MS); /* it is read */
    assert_non_null(streams_find(&s, id, sizeof id));
    put(&s, 100, 1, FINISH_LENGTH, 100 * KEEP_MS);
    streams_tick(&s, 200 * KEEP_MS);
    assert_non_null(streams_find(&s, id, sizeof id));
    streams_leave(&s, 2, 200 * KEEP_MS); /* another frontend */
    streams_leave(&s, 1, 200 * KEEP_MS);
    streams_tick(&s, 201 * KEEP_MS);
    assert_non_null(streams_find(&s, id, sizeof id));
    streams_tick(&s, 201 * KEEP_MS + 1);
    assert_null(streams_find(&s, id, sizeof id));
    streams_release(&s);
}

static void resumptions_and_keys(void **state)
{
    (void)state;
    static const uint8_t id[STREAM_ID_BYTES] = {1}, other[STREAM_DIGEST] = {1, 2, 4};
    struct streams s;
    struct q_err e = Q_ERR_INIT;
    uint32_t frontend_id;
    uint64_t req_id;
    assert_ok(streams_init(&s, 1 << 20, &e), &e);
    keep(&s, id, 0, 100, 0);
    struct stream *x = streams_find(&s, id, sizeof id);
    assert_true(stream_allows(x, key, sizeof key));
    assert_false(stream_allows(x, other, sizeof other));
    assert_false(stream_allows(x, key, 0) || stream_allows(x, key, 3));
    assert_true(open_choice(&s, id, 0, 0, 100, 0));
    put(&s, 100, 1, 0, 0);
    assert_true(stream_take_part(x, &frontend_id, &req_id));
    assert_int_equal(req_id, 100);
    assert_false(stream_take_part(x, &frontend_id, &req_id));
    x->n_resume++;
    put(&s, 100, 1, 0, 0); /* of the connection before */
    assert_log(x, "0:1");
    assert_false(open_choice(&s, id, 0, 0, 101, 1));
    assert_true(open_choice(&s, id, 1, 0, 102, 1));
    keep(&s, id, 0, 50, 0); /* by the connection before, for a new engine */
    assert_ptr_equal(streams_find(&s, id, sizeof id), x);
    assert_log(x, "0:1");
    keep(&s, id, 2, 50, 0);
    assert_log(streams_find(&s, id, sizeof id), "");
    streams_release(&s);
}

static void memory_is_limited(void **state)
{
    (void)state;
    uint8_t id[STREAM_ID_BYTES] = {0};
    struct streams s;
    struct q_err e = Q_ERR_INIT;
    assert_ok(streams_init(&s, 100000, &e), &e);
    for (uint8_t i = 0; i < 20; i++) { /* of 10 kB; those with an open generation stay */
        id[0] = i;
        keep(&s, id, 0, 10000, i);
        if (i < 3)
            assert_true(open_choice(&s, id, 0, 0, i, 0));
        assert_in_range(s.n_byte, 1, 100000);
    }
    for (uint8_t i = 0; i < 20; i++) {
        id[0] = i;
        const bool is_kept = streams_find(&s, id, sizeof id) != NULL;
        assert_int_equal(is_kept, i < 3 || s.n - 3 >= 20u - i);
    }
    for (int i = 0; i < 100000 && s.n; i++) /* one that grows is the last to go */
        put(&s, 1, 4, 0, 0);
    id[0] = 1;
    assert_null(streams_find(&s, id, sizeof id));
    assert_in_range(s.n_byte, 0, 100000);
    streams_clear(&s);
    assert_int_equal(s.n_byte, 0);
    id[0] = 99;
    keep(&s, id, 0, 40000, 0);
    assert_non_null(streams_find(&s, id, sizeof id));
    streams_release(&s);
    assert_ok(streams_init(&s, 0, &e), &e); /* --stream-resume-bytes 0 */
    keep(&s, id, 0, 1, 0);
    assert_int_equal(s.n, 0);
    assert_true(open_choice(&s, id, 0, 0, 1, 0));
    streams_release(&s);
}

static void hostile_columns(void **state)
{
    (void)state;
    static const uint32_t good[6] = {0, 1, 0, 0, 0, 0}, token[1] = {5};
    static const uint32_t bad[][6] = {
        {4096, 1, 0, 0, 0, 0},
        {0, 2, 0, 0, 0, 0},
        {0, 1, 99, 0, 0, 0},
        {0, 1, 0, 0, 0, 1},
        {0, UINT32_MAX, 0, 0, 0, UINT32_MAX},
    };
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        struct stream_log l = STREAM_LOG_INIT;
        struct q_err e = Q_ERR_INIT;
        const struct stream_columns c = {
            .rows = {i ? bad[i - 1] : good, 6},
            .tokens = {token, 1},
        };
        assert_int_equal(stream_log_read(&l, &c, &e), i ? Q_CORRUPT : Q_OK);
        stream_log_release(&l);
    }
    struct stream_log l = STREAM_LOG_INIT;
    struct q_err e = Q_ERR_INIT;
    const struct stream_columns c = {.rows = {good, 5}};
    assert_int_equal(stream_log_read(&l, &c, &e), Q_CORRUPT);
    uint8_t id[3] = {0};
    struct streams s;
    q_err_reset(&e);
    assert_ok(streams_init(&s, 1 << 20, &e), &e);
    const struct msg_keep_stream m = {.stream_id = {id, sizeof id}};
    assert_int_equal(streams_keep(&s, &m, 0, &e), Q_CORRUPT);
    streams_release(&s);
}

/* Each allocation fails once: nothing leaks, and what is kept is whole. */
static void without_memory(void **state)
{
    (void)state;
    static const uint8_t id[STREAM_ID_BYTES] = {1};
    for (int64_t n = 0; n < 40; n++) {
        struct streams s;
        struct q_err e = Q_ERR_INIT;
        assert_ok(streams_init(&s, 1 << 20, &e), &e);
        mem_fail_after(n);
        keep(&s, id, 0, 100, 0);
        assert_true(open_choice(&s, id, 0, 0, 100, 0));
        put(&s, 100, 1, 0, 0);
        put(&s, 100, 2, 0, 0);
        assert_true(open_choice(&s, id, 0, 0, 101, 1));
        put(&s, 101, 1, 0, 0);
        mem_fail_after(-1);
        const struct stream *x = streams_find(&s, id, sizeof id);
        if (x)
            assert_log(x, "0:1 0:1");
        streams_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_added_and_cut),
        cmocka_unit_test(a_stream_is_kept_for_its_time),
        cmocka_unit_test(resumptions_and_keys),
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(hostile_columns),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
