/* SPDX-License-Identifier: Apache-2.0 */
/* ring: order and contents of many steps between two threads, waking, stopping, refusal of foreign
 * memory. */
#include "check.h"
#include <pthread.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"
#include "engine/worker/ring.h"

static const struct step_limits limits = {
    .max_num_seqs = 4,
    .max_num_batched_tokens = 64,
    .max_model_len = 128,
    .logit_rows_max = 8,
    .known_max = 256,
};

static struct ring *new_ring(void)
{
    struct ring *r = NULL;
    struct q_err e = Q_ERR_INIT;
    const struct worker_config c = {.model_dir = "/model", .max_num_seqs = 4};
    assert_ok(ring_new(&r, &c, &e), &e);
    return r;
}

static void wait_event(struct ring *r)
{
    struct pollfd p = {.fd = ring_event_fd(r), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    ring_event_clear(r);
}

/* A worker that answers each step with its first word plus one. */
static void *echo(void *arg)
{
    struct ring *r = arg;
    struct q_err e = Q_ERR_INIT;
    struct worker_info info = {.limits = limits, .n_block = 9};
    void *step, *result;
    ring_progress(r, 50);
    if (ring_ready(r, &info, &e))
        return r;
    alloc_freeze();
    while (ring_step_wait(r, &step, &result)) {
        *(uint64_t *)result = *(uint64_t *)step + 1;
        ring_step_done(r);
    }
    alloc_thaw();
    return NULL;
}

static void attach(struct ring *r, struct worker_info *info)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t percent;
    while (ring_state(r, &percent, &e) == WORKER_LOADING)
        wait_event(r);
    assert_int_equal(ring_state(r, &percent, &e), WORKER_READY);
    assert_int_equal(percent, 50);
    assert_ok(ring_attach(r, info, &e), &e);
}

static void steps_arrive_in_order_with_two_in_flight(void **state)
{
    (void)state;
    enum { N_STEP = 20000 };
    struct ring *r = new_ring();
    struct worker_info info;
    pthread_t t;
    assert_string_equal(ring_config(r)->model_dir, "/model");
    assert_int_equal(pthread_create(&t, NULL, echo, r), 0);
    attach(r, &info);
    assert_int_equal(info.n_block, 9);
    uint64_t sent = 0, got = 0;
    while (got < N_STEP) {
        uint64_t *space;
        while (sent < N_STEP && (space = ring_step_space(r))) {
            *space = sent++ * 3;
            ring_step_send(r);
        }
        if (sent < N_STEP)
            assert_int_equal(ring_in_flight(r), RING_DEPTH);
        const uint64_t *result;
        bool any = false;
        while ((result = ring_result_next(r))) {
            assert_int_equal(*result, got * 3 + 1);
            got++;
            any = true;
            ring_result_take(r);
        }
        if (!any)
            wait_event(r);
    }
    assert_null(ring_result_next(r));
    ring_stop(r);
    void *failed;
    pthread_join(t, &failed);
    assert_null(failed);
    ring_free(r);
}

/* A sleeping worker uses no core and wakes for a step as well as for stop. */
static void an_idle_worker_sleeps(void **state)
{
    (void)state;
    struct ring *r = new_ring();
    struct worker_info info;
    struct rusage before, after;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, echo, r), 0);
    attach(r, &info);
    for (int round = 0; round < 3; round++) {
        getrusage(RUSAGE_SELF, &before);
        usleep(100000);
        getrusage(RUSAGE_SELF, &after);
        int64_t cpu_us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * INT64_C(1000000) +
                         (after.ru_utime.tv_usec - before.ru_utime.tv_usec);
        assert_true(cpu_us < 20000);
        *(uint64_t *)ring_step_space(r) = 7;
        ring_step_send(r);
        uint64_t *result;
        while (!(result = ring_result_next(r)))
            wait_event(r);
        assert_int_equal(*result, 8);
        ring_result_take(r);
    }
    usleep(20000);
    ring_stop(r);
    pthread_join(t, NULL);
    ring_free(r);
}

static void a_failed_load_says_why(void **state)
{
    (void)state;
    struct ring *r = new_ring();
    struct q_err e = Q_ERR_INIT;
    uint32_t percent;
    assert_int_equal(ring_state(r, &percent, &e), WORKER_LOADING);
    assert_int_equal(e.code, Q_OK);
    struct q_err why = Q_ERR_INIT;
    q_fail(&why, Q_CORRUPT, "model.safetensors: bad");
    ring_failed(r, &why);
    wait_event(r);
    assert_int_equal(ring_state(r, &percent, &e), WORKER_FAILED);
    assert_int_equal(e.code, Q_CORRUPT);
    assert_string_equal(e.message, "model.safetensors: bad");
    ring_free(r);
}

static bool third_ask(void *n)
{
    return ++*(uint32_t *)n == 3;
}

static void a_second_mapping_sees_the_same(void **state)
{
    (void)state;
    struct ring *engine = new_ring(), *worker = NULL;
    struct q_err e = Q_ERR_INIT;
    assert_ok(ring_open(&worker, dup(ring_memory_fd(engine)), dup(ring_event_fd(engine)), &e), &e);
    assert_string_equal(ring_config(worker)->model_dir, "/model");
    struct worker_info info = {.limits = limits}, seen;
    assert_ok(ring_ready(worker, &info, &e), &e);
    wait_event(engine);
    assert_ok(ring_attach(engine, &seen, &e), &e);
    assert_int_equal(seen.step_bytes, info.step_bytes);
    uint32_t n_ask = 0;
    assert_false(ring_step_before(worker, third_ask, &n_ask));
    assert_int_equal(n_ask, 3);
    *(uint64_t *)ring_step_space(engine) = 42;
    ring_step_send(engine);
    assert_true(ring_step_before(worker, third_ask, &n_ask));
    assert_int_equal(n_ask, 3);
    void *step, *result;
    assert_true(ring_step_wait(worker, &step, &result));
    assert_int_equal(*(uint64_t *)step, 42);
    memset(result, 0x5a, info.result_bytes);
    ring_step_done(worker);
    const unsigned char *got = ring_result_next(engine);
    assert_non_null(got);
    assert_int_equal(got[info.result_bytes - 1], 0x5a);
    ring_result_take(engine);
    ring_command(engine, RING_FORGET_KV, NULL); /* before the step that is sent after it */
    ring_step_send(engine);
    assert_true(ring_step_wait(worker, &step, &result));
    assert_null(step);
    assert_int_equal(ring_command_now(worker), RING_FORGET_KV);
    assert_true(ring_commanding(engine));
    ring_event_clear(engine);
    ring_command_done(worker, NULL);
    wait_event(engine);
    assert_false(ring_commanding(engine));
    assert_ok(ring_command_result(engine, &e), &e);
    assert_true(ring_step_wait(worker, &step, &result));
    assert_non_null(step);
    ring_step_done(worker);
    assert_non_null(ring_result_next(engine));
    ring_result_take(engine);
    char path[PATH_MAX];
    struct q_err why = Q_ERR_INIT;
    assert_int_equal(q_fail(&why, Q_CORRUPT, "half a file"), Q_CORRUPT);
    ring_command(engine, RING_RELOAD, "/some/where");
    assert_true(ring_step_wait(worker, &step, &result));
    ring_command_path(worker, path);
    assert_string_equal(path, "/some/where");
    ring_command_done(worker, &why);
    assert_fails(ring_command_result(engine, &e), Q_CORRUPT, "half a file", &e);
    ring_stop(engine);
    assert_false(ring_step_wait(worker, &step, &result));
    ring_free(worker);
    ring_free(engine);
}

static void foreign_memory_is_refused(void **state)
{
    (void)state;
    struct ring *r = NULL;
    struct q_err e = Q_ERR_INIT;
    int fd = memfd_create("other", MFD_CLOEXEC);
    assert_fails(ring_open(&r, dup(fd), eventfd(0, 0), &e), Q_MISMATCH, "holds 0 bytes", &e);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_fails(ring_open(&r, dup(fd), eventfd(0, 0), &e), Q_MISMATCH, "different builds", &e);
    assert_fails(ring_open(&r, 12345, eventfd(0, 0), &e), Q_IO, "descriptor 12345", &e);
    close(fd);
    assert_null(r);
    mem_fail_after(0);
    assert_fails(ring_new(&r, &(struct worker_config){.max_num_seqs = 1}, &e), Q_NO_MEMORY, "ring",
                 &e);
    mem_fail_after(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_arrive_in_order_with_two_in_flight),
        cmocka_unit_test(an_idle_worker_sleeps),
        cmocka_unit_test(a_failed_load_says_why),
        cmocka_unit_test(a_second_mapping_sees_the_same),
        cmocka_unit_test(foreign_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
