/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a low priority: what they read offers its processor to others, again and again, and
 * what others read does not. Turns are counted, not timed. */
#include "check.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/chat/json.h"
#include "common/cpus.h"

#define TEXT_BYTES ((size_t)1 << 20)
#define NICE_MAX   19

static unsigned n_yield; /* in this process */

int sched_yield(void) /* in place of the C library's */
{
    __atomic_fetch_add(&n_yield, 1, __ATOMIC_RELAXED);
    return 0;
}

static int nice_of(long id)
{
    return getpriority(PRIO_PROCESS, (id_t)id);
}

struct reading {
    struct buf text;
    int n_call; /* of cpus_run_later */
    int nice;   /* of the thread */
    unsigned n_yield;
    size_t n_prompt; /* bytes read */
    struct q_err e;
};

static void *read_text(void *arg)
{
    struct reading *r = arg;
    json_t *v = NULL;
    for (int i = 0; i < r->n_call; i++)
        cpus_run_later();
    r->nice = nice_of(syscall(SYS_gettid));
    n_yield = 0;
    if (json_body(&v, r->text.data, r->text.len, &r->e) == Q_OK)
        r->n_prompt = json_string_length(json_object_get(v, "prompt"));
    r->n_yield = n_yield;
    json_decref(v);
    return NULL;
}

static void read_on_thread(struct reading *r, int n_call, size_t n)
{
    pthread_t thread;
    *r = (struct reading){.n_call = n_call, .text = BUF_INIT, .e = Q_ERR_INIT};
    buf_add_str(&r->text, "{\"prompt\":\"");
    while (r->text.len < n)
        buf_add_str(&r->text, "0123456789abcdef");
    buf_add_str(&r->text, "\"}");
    assert_false(r->text.failed);
    assert_int_equal(pthread_create(&thread, NULL, read_text, r), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void test_a_low_priority_offers_its_processor(void **state)
{
    (void)state;
    const int nice = nice_of(getpid());
    const int want = nice + CPUS_LATER_NICE;
    struct reading r;
    read_on_thread(&r, 1, TEXT_BYTES);
    assert_ok(r.e.code, &r.e);
    assert_true(r.n_prompt > TEXT_BYTES - 32);
    assert_int_equal(r.nice, want < NICE_MAX ? want : NICE_MAX);
    assert_int_equal(nice_of(getpid()), nice); /* that of other threads stays */
    assert_in_range(r.n_yield, 100, 200);
    buf_release(&r.text);
    read_on_thread(&r, 1, 1000); /* it is short */
    assert_ok(r.e.code, &r.e);
    assert_int_equal(r.n_yield, 0);
    buf_release(&r.text);
}

static void test_other_threads_keep_theirs(void **state)
{
    (void)state;
    struct reading r;
    read_on_thread(&r, 0, TEXT_BYTES);
    assert_ok(r.e.code, &r.e);
    assert_true(r.n_prompt > TEXT_BYTES - 32);
    assert_int_equal(r.nice, nice_of(getpid()));
    assert_int_equal(r.n_yield, 0);
    buf_release(&r.text);
}

static void test_a_second_call_changes_nothing(void **state)
{
    (void)state;
    struct reading once, twice;
    read_on_thread(&once, 1, 1000);
    read_on_thread(&twice, 2, 1000);
    assert_int_equal(once.nice, twice.nice);
    buf_release(&once.text);
    buf_release(&twice.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_low_priority_offers_its_processor),
        cmocka_unit_test(test_other_threads_keep_theirs),
        cmocka_unit_test(test_a_second_call_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
