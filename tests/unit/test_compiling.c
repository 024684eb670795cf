/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on their way through the compiler: in which order, together with which others, within
 * which bounds. The test is both threads itself, so that what it counts does not depend on time. */
#include "engine/core/grammar_compiler.h"
#include "check.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/sched/programs.h"

static struct grammar_compiler *grammar_compiler;

static struct msg_submit request(uint64_t req_id, uint64_t tenant, const char *schema, size_t n)
{
    static const uint32_t prompt[4] = {1, 2, 3, 4};
    return (struct msg_submit){
        .req_id = req_id,
        .prompt = {prompt, 4},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 5,
        .tenant = tenant,
        .grammar_kind = GRAMMAR_JSON,
        .grammar = {(const unsigned char *)schema, n},
    };
}

static void add(uint64_t req_id, uint64_t tenant, const char *schema)
{
    struct q_err e = Q_ERR_INIT;
    const struct msg_submit m = request(req_id, tenant, schema, strlen(schema));
    assert_ok(grammar_compiler_add(grammar_compiler, 1, &m, &e), &e);
}

/* Takes more steps than the short stage has, and then ends well. */
static void add_long(uint64_t req_id, uint64_t tenant)
{
    struct buf b = BUF_INIT;
    buf_printf(&b,
               "{\"title\":\"%u\",\"type\":\"string\",\"pattern\":\"^[^a]{%u}$\",\"maxLength\":"
               "9000}",
               (unsigned)req_id, 9000u);
    add(req_id, tenant, buf_str(&b));
    buf_release(&b);
}

static void add_short(uint64_t req_id, uint64_t tenant)
{
    char schema[64];
    snprintf(schema, sizeof schema, "{\"const\":%u}", (unsigned)req_id);
    add(req_id, tenant, schema);
}

static struct grammar_compiler_stats stats(void)
{
    struct grammar_compiler_stats s;
    grammar_compiler_stats(grammar_compiler, &s);
    return s;
}

static void begin(void)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(grammar_compiler_new(&grammar_compiler, false, &e), &e);
}

/* The requests that are done are these, in this order, each with a program. */
static void expect_done(const uint64_t *ids, size_t n)
{
    struct compiled x;
    for (size_t i = 0; i < n; i++) {
        assert_true(grammar_compiler_take(grammar_compiler, &x));
        if (x.error.code)
            fail_msg("request %u: %s", (unsigned)x.req_id, x.error.message);
        assert_int_equal(x.req_id, ids[i]);
        assert_int_equal(x.submit.prompt.n, 4);
        assert_true(x.submit.grammar.n > 0);
    }
    assert_false(grammar_compiler_take(grammar_compiler, &x));
}
#define EXPECT_DONE(...)                         \
    expect_done((const uint64_t[]){__VA_ARGS__}, \
                sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Five grammars that take long come first; each other one is done after the short stages before it,
 * and while all five still wait for the long stage. */
static void long_grammars_do_not_hold_up_others(void **state)
{
    (void)state;
    struct compiled x;
    begin();
    for (uint32_t i = 0; i < 5; i++)
        add_long(i, 0);
    add_short(10, 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
        assert_false(grammar_compiler_take(grammar_compiler, &x));
    }
    assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
    EXPECT_DONE(10);
    assert_int_equal(stats().n_waiting[GRAMMAR_COMPILER_IS_LONG], 5);
    assert_false(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
    for (uint64_t i = 0; i < 5; i++) {
        assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_LONG, 0));
        EXPECT_DONE(i);
    }
    assert_int_equal(grammar_compiler_count(grammar_compiler), 0);
    grammar_compiler_free(grammar_compiler);
}

/* Of one tenant's hundred, a few are before another tenant's first one. */
static void tenants_take_turns(void **state)
{
    (void)state;
    struct compiled x;
    uint32_t n_before = 0;
    begin();
    for (uint32_t i = 0; i < 100; i++)
        add_short(i, 7);
    add_short(200, 8);
    for (;; n_before++) {
        assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
        assert_true(grammar_compiler_take(grammar_compiler, &x));
        if (x.req_id == 200)
            break;
    }
    assert_true(n_before <= GRAMMAR_COMPILER_HANDED);
    grammar_compiler_free(grammar_compiler);
}

static void equal_sources_are_compiled_once(void **state)
{
    (void)state;
    uint32_t n_word;
    begin();
    for (uint32_t i = 0; i < 3; i++)
        add(i, i, "{\"const\":1}");
    assert_int_equal(stats().n_shared, 2);
    assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
    assert_false(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
    EXPECT_DONE(0, 1, 2);
    const struct msg_submit m = request(9, 9, "{\"const\":1}", 11), other = request(9, 9, "{}", 2);
    assert_non_null(grammar_compiler_known(grammar_compiler, &m, &n_word));
    assert_null(grammar_compiler_known(grammar_compiler, &other, &n_word));
    assert_int_equal(stats().bytes > 0, 1); /* of the one given out last */
    grammar_compiler_free(grammar_compiler);
}

static void errors_reach_every_request(void **state)
{
    (void)state;
    struct compiled x;
    begin();
    add(1, 0, "{\"type\":\"strin\"}");
    add(2, 0, "{\"type\":\"strin\"}");
    assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
    for (uint64_t i = 1; i <= 2; i++) {
        assert_true(grammar_compiler_take(grammar_compiler, &x));
        assert_int_equal(x.req_id, i);
        assert_int_equal(x.error.code, Q_INVALID);
        assert_non_null(strstr(x.error.message, "type"));
    }
    grammar_compiler_free(grammar_compiler);
}

/* Aborted ones leave at once, their memory too; a compile that is under way is stopped when its
 * last request leaves, and a new request for the same source begins anew. */
static void work_for_nobody_is_stopped(void **state)
{
    (void)state;
    struct compiled x;
    begin();
    add_long(1, 0);
    add_long(2, 0);
    add_long(3, 0); /* waits: two are handed out */
    add(4, 0, "{\"const\":4}");
    add(5, 0, "{\"const\":4}");
    assert_true(grammar_compiler_abort(grammar_compiler, 1, 3));
    assert_false(grammar_compiler_abort(grammar_compiler, 1, 3));
    assert_true(grammar_compiler_abort(grammar_compiler, 1, 1));
    assert_true(grammar_compiler_abort(grammar_compiler, 1, 4));
    assert_int_equal(grammar_compiler_count(grammar_compiler), 2);
    add_long(1, 0);
    assert_true(grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0));
    assert_false(grammar_compiler_take(grammar_compiler, &x));
    assert_int_equal(stats().n_stopped, 1);
    assert_int_equal(stats().n_job[GRAMMAR_COMPILER_IS_SHORT], 1);
    uint32_t frontend_id;
    uint64_t req_id;
    for (uint32_t n = 3; n; n--) {
        assert_int_equal(grammar_compiler_count(grammar_compiler), n);
        assert_true(grammar_compiler_abort_next(grammar_compiler, &frontend_id, &req_id));
    }
    assert_false(grammar_compiler_abort_next(grammar_compiler, &frontend_id, &req_id));
    assert_int_equal(grammar_compiler_count(grammar_compiler), 0);
    assert_true(grammar_compiler_works(grammar_compiler)); /* what was handed out */
    while (grammar_compiler_work(grammar_compiler, GRAMMAR_COMPILER_IS_SHORT, 0))
        assert_false(grammar_compiler_take(grammar_compiler, &x));
    assert_false(grammar_compiler_works(grammar_compiler));
    assert_int_equal(stats().bytes, 0);
    grammar_compiler_free(grammar_compiler);
}

static void waiting_requests_are_bounded(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const size_t n = 900000;
    char *schema = q_alloc(n + 1);
    uint32_t n_added = 0;
    begin();
    for (enum q_code rc = Q_OK; !rc; n_added += rc == Q_OK) {
        snprintf(schema, n, "{\"title\":\"%6u", n_added);
        memset(schema + 16, 'x', n - 16);
        const struct msg_submit m = request(n_added, 0, schema, n);
        rc = grammar_compiler_add(grammar_compiler, 1, &m, &e);
    }
    assert_int_equal(e.code, Q_NO_SPACE);
    assert_non_null(strstr(e.message, "retry later"));
    assert_in_range(n_added, GRAMMAR_COMPILER_BYTES / n - 2, GRAMMAR_COMPILER_BYTES / n);
    assert_int_equal(grammar_compiler_count(grammar_compiler), n_added);
    assert_int_equal(grammar_compiler_abort_frontend(grammar_compiler, 1), n_added);
    assert_int_equal(stats().bytes, 2 * n); /* two are handed out */
    e = (struct q_err)Q_ERR_INIT;
    for (uint32_t i = 0; i < GRAMMAR_COMPILER_MAX; i++)
        add(i, 0, "{}");
    const struct msg_submit m = request(5000, 0, "{}", 2);
    assert_int_equal(grammar_compiler_add(grammar_compiler, 1, &m, &e), Q_NO_SPACE);
    grammar_compiler_free(grammar_compiler);
    q_free(schema);
}

/* With its threads, and freed while they work. */
static void threads_do_the_same(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct compiled x;
    assert_ok(grammar_compiler_new(&grammar_compiler, true, &e), &e);
    add_long(1, 0);
    add_short(2, 0);
    for (uint32_t n = 2; n;) {
        struct pollfd done = {.fd = grammar_compiler_fd(grammar_compiler), .events = POLLIN};
        assert_int_equal(poll(&done, 1, -1), 1);
        for (; grammar_compiler_take(grammar_compiler, &x); n--)
            assert_int_equal(x.error.code, Q_OK);
    }
    for (uint32_t i = 0; i < 8; i++)
        add_long(10 + i, 0);
    grammar_compiler_free(grammar_compiler);
}

/* Requests with the same program hold it together. */
static void programs_are_held_once(void **state)
{
    (void)state;
    struct programs p = {.first = NULL};
    struct q_err e = Q_ERR_INIT;
    const size_t n = 8u << 20;
    uint32_t *words = q_calloc(n, 1);
    const void *held[100], *first = NULL;
    size_t n_held = 0;
    assert_ok(programs_take(&p, &first, words, n, &e), &e);
    for (; n_held < 100; n_held++) {
        assert_ok(programs_take(&p, &held[n_held], words, n, &e), &e);
        assert_ptr_equal(held[n_held], first);
    }
    assert_int_equal(p.bytes, n);
    while (n_held)
        programs_drop(&p, held[--n_held]);
    for (enum q_code rc = Q_OK; !rc; n_held += rc == Q_OK) {
        words[0] = (uint32_t)n_held + 1;
        rc = programs_take(&p, &held[n_held], words, n, &e);
    }
    assert_int_equal(e.code, Q_NO_SPACE);
    assert_non_null(strstr(e.message, "retry later"));
    assert_int_equal(n_held + 1, PROGRAMS_BYTES / n);
    assert_int_equal(p.bytes, PROGRAMS_BYTES);
    programs_drop(&p, held[0]);
    programs_drop(&p, NULL);
    assert_int_equal(p.bytes, PROGRAMS_BYTES - n);
    assert_ok(programs_take(&p, &held[0], words, n, &e), &e);
    programs_release(&p);
    q_free(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_grammars_do_not_hold_up_others),
                                       cmocka_unit_test(tenants_take_turns),
                                       cmocka_unit_test(equal_sources_are_compiled_once),
                                       cmocka_unit_test(errors_reach_every_request),
                                       cmocka_unit_test(work_for_nobody_is_stopped),
                                       cmocka_unit_test(waiting_requests_are_bounded),
                                       cmocka_unit_test(threads_do_the_same),
                                       cmocka_unit_test(programs_are_held_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
