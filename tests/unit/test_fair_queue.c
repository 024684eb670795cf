/* SPDX-License-Identifier: Apache-2.0 */
/* Long bodies on threads: the policy with jobs that never run, and the tasks on real threads, where
 * short ones end the long ones' wait, so that a wrong order would hang and be no matter of time. */
#include "check.h"
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>
#include "frontend/api/fair_queue.h"
#include "frontend/api/task.h"

static struct q_err err;

#define KB ((size_t)1 << 10)
#define MB ((size_t)1 << 20)

static void add(struct fair_queue *l, struct fair_queue_job *job, size_t bytes, uint64_t key)
{
    assert_ok(fair_queue_add(l, job, bytes, key, &err), &err);
}

/* Whatever is being read, a shorter body finds a thread. */
static void test_no_thread_is_taken_by_long_bodies_alone(void **state)
{
    (void)state;
    static const size_t sizes[LANES] = {40 * KB, 200 * KB, MB, 16 * MB};
    struct fair_queue_job jobs[LANES][8];
    for (uint32_t n_thread = FAIR_QUEUE_THREAD_MIN; n_thread < 8; n_thread++) {
        struct fair_queue l;
        fair_queue_init(&l, n_thread);
        for (uint32_t c = LANES;
             c-- > 0;) { /* the longest come first, more than there are threads */
            for (int i = 0; i < 8; i++)
                add(&l, &jobs[c][i], sizes[c], 0);
            uint32_t n = 0;
            while (fair_queue_next(&l))
                n++;
            assert_int_equal(n, c == LANES - 1 ? n_thread - c : 1);
        }
        assert_int_equal(fair_queue_n_busy(&l), n_thread);
        assert_int_equal(l.n_wait, LANES * 8 - n_thread);
        fair_queue_done(&l, &jobs[0][0]);
        assert_ptr_equal(fair_queue_next(&l), &jobs[0][1]);
        fair_queue_done(&l, &jobs[LANES - 1][0]); /* which the shorter may take as well */
        assert_ptr_equal(fair_queue_next(&l), &jobs[0][2]);
    }
}

/* Short ones are preferred LANES_PATIENCE times, then a long one has its turn. */
static void test_long_bodies_are_not_starved(void **state)
{
    (void)state;
    struct fair_queue l;
    struct fair_queue_job big, small[2 * FAIR_QUEUE_PATIENCE];
    fair_queue_init(&l, 4);
    add(&l, &big, 3 * MB, 0);
    for (int i = 0; i < 2 * FAIR_QUEUE_PATIENCE; i++)
        add(&l, &small[i], 50 * KB, 0);
    for (int i = 0; i < FAIR_QUEUE_PATIENCE; i++) {
        assert_ptr_equal(fair_queue_next(&l), &small[i]);
        fair_queue_done(&l, &small[i]);
    }
    assert_ptr_equal(fair_queue_next(&l), &big);
    assert_ptr_equal(fair_queue_next(&l), &small[FAIR_QUEUE_PATIENCE]);
}

/* A key that sends many shares by bytes with one that comes later; without keys it is a queue. */
static void test_keys_share(void **state)
{
    (void)state;
    struct fair_queue l;
    struct fair_queue_job many[6], late[2], none[3];
    fair_queue_init(&l, 4);
    for (int i = 0; i < 6; i++)
        add(&l, &many[i], 600 * KB, 1);
    assert_ptr_equal(fair_queue_next(&l), &many[0]);
    assert_ptr_equal(fair_queue_next(&l), &many[1]);
    assert_null(fair_queue_next(&l));
    add(&l, &late[0], 1200 * KB, 2);
    add(&l, &late[1], 600 * KB, 2);
    static const int order[] = {-1, 2, 3, -2, 4, 5}; /* -1, -2: late */
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        struct fair_queue_job *want = order[i] < 0 ? &late[-order[i] - 1] : &many[order[i]];
        fair_queue_done(&l, &many[0]);
        assert_ptr_equal(fair_queue_next(&l), want);
    }
    fair_queue_init(&l, 4);
    for (int i = 0; i < 3; i++)
        add(&l, &none[i], (size_t)(900 - 100 * i) * KB, 0);
    fair_queue_remove(&l, &none[1]);
    assert_ptr_equal(fair_queue_next(&l), &none[0]);
    assert_ptr_equal(fair_queue_next(&l), &none[2]);
    assert_int_equal(l.n_wait, 0);
}

static void test_the_queue_is_bounded(void **state)
{
    (void)state;
    static struct fair_queue_job jobs[FAIR_QUEUE_WAIT_MAX + 1];
    struct fair_queue l;
    fair_queue_init(&l, 4);
    for (int i = 0; i < FAIR_QUEUE_WAIT_MAX; i++)
        add(&l, &jobs[i], 40 * KB, 0);
    assert_fails(fair_queue_add(&l, &jobs[FAIR_QUEUE_WAIT_MAX], 40 * KB, 0, &err), Q_NO_SPACE,
                 "1024", &err);
    assert_ptr_equal(fair_queue_next(&l), &jobs[0]);
    add(&l, &jobs[FAIR_QUEUE_WAIT_MAX], 40 * KB, 0);
}

/* ---- on threads: exchanges with a body and a callback at their end ---- */

#define N_LONG 12
struct http_exchange {
    size_t n;
    void (*gone)(void *ctx);
    void *ctx;
};
static char body[MB];

struct http_text http_body(const struct http_exchange *x)
{
    return (struct http_text){body, x->n};
}

void http_on_gone(struct http_exchange *x, void (*gone)(void *ctx), void *ctx)
{
    x->gone = gone;
    x->ctx = ctx;
}

bool http_key(const struct http_exchange *x, unsigned char digest[32])
{
    (void)x;
    (void)digest;
    return false;
}

struct request {
    struct task task;
    struct http_exchange x;
    bool read;
};
static struct request requests[N_LONG + 1]; /* the last one is short */
static sem_t short_is_answered;
static int n_disposed, n_answered;

static void wait_for_short(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += 250; /* a wrong order fails then; a right one never waits so long */
    assert_int_equal(sem_timedwait(&short_is_answered, &at), 0);
    sem_post(&short_is_answered);
}

static enum q_code prepare(struct task *t, struct q_err *e)
{
    struct request *r = (struct request *)t;
    (void)e;
    if (r != &requests[N_LONG])
        wait_for_short();
    r->read = true;
    return Q_OK;
}

static void go(struct task *t, const struct q_err *e)
{
    assert_int_equal(e->code, Q_OK);
    if ((struct request *)t == &requests[N_LONG]) {
        assert_int_equal(n_answered, 0);
        sem_post(&short_is_answered);
    }
    n_answered++;
    struct http_exchange *x = t->x;
    x->gone(x->ctx);
}

static void dispose(struct task *t)
{
    (void)t;
    n_disposed++;
}

static const struct task_calls calls = {prepare, go, dispose};

static void test_a_short_body_is_read_before_long_ones_end(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct tasks tasks;
    sem_init(&short_is_answered, 0, 0);
    setenv("UV_THREADPOOL_SIZE", "5", 1);
    assert_int_equal(uv_loop_init(&loop), 0);
    tasks_init(&tasks, &loop);
    for (int i = 0; i <= N_LONG; i++) {
        requests[i].x.n = i < N_LONG ? sizeof body : 50 * KB;
        task_start(&requests[i].task, &calls, &tasks, &requests[i].x);
    }
    assert_int_equal(tasks_n_working(&tasks), N_LONG + 1);
    requests[N_LONG - 1].x.gone(requests[N_LONG - 1].x.ctx); /* one that still waits goes away */
    assert_int_equal(n_disposed, 1);
    assert_int_equal(tasks_n_working(&tasks), N_LONG);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(n_answered, N_LONG);
    assert_int_equal(n_disposed, N_LONG + 1);
    assert_false(requests[N_LONG - 1].read);
    assert_int_equal(tasks_n_working(&tasks), 0);
    uv_loop_close(&loop);
    sem_destroy(&short_is_answered);
}

static enum q_code only_read(struct task *t, struct q_err *e)
{
    (void)e;
    ((struct request *)t)->read = true;
    return Q_OK;
}

/* A small body is read at once; where bodies may name files, or have images, one that does is read
 * on a thread. */
static void test_a_body_that_names_a_file(void **state)
{
    (void)state;
    static const struct task_calls reading = {only_read, go, dispose};
    static const struct {
        const char *body;
        bool is_file, is_image; /* or may be one */
    } bodies[] = {
        {"{\"prompt\": [1]}", false, false},
        {"{\"path\": \"a.npy\"}", true, false},
        {"{\"\\u0070ath\": \"a.npy\"}", true, true},
        {"{\"url\": \"file:///a.png\"}", true, false},
        {"{\"url\": \"data:image/png;base64,AAAA\"}", false, true},
    };
    uv_loop_t loop;
    struct tasks tasks;
    assert_int_equal(uv_loop_init(&loop), 0);
    tasks_init(&tasks, &loop);
    for (int set = 0; set < 4; set++)
        for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
            tasks.reads_files = set & 1;
            tasks.reads_images = set & 2;
            requests[0] = (struct request){.x.n = strlen(bodies[i].body)};
            memcpy(body, bodies[i].body, requests[0].x.n);
            task_start(&requests[0].task, &reading, &tasks, &requests[0].x);
            assert_int_equal(tasks_n_working(&tasks),
                             ((set & 1) && bodies[i].is_file) || ((set & 2) && bodies[i].is_image));
            assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
            assert_true(requests[0].read);
        }
    uv_loop_close(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_thread_is_taken_by_long_bodies_alone),
        cmocka_unit_test(test_long_bodies_are_not_starved),
        cmocka_unit_test(test_keys_share),
        cmocka_unit_test(test_the_queue_is_bounded),
        cmocka_unit_test(test_a_short_body_is_read_before_long_ones_end),
        cmocka_unit_test(test_a_body_that_names_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
