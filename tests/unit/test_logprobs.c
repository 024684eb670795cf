/* SPDX-License-Identifier: Apache-2.0 */
/* Logprobs of an answer when one allocation fails, each in turn: the answer fails as a whole, and
 * never lacks an alternative or a name. */
#include "check.h"
#include <string.h>
#include "common/mem.h"
#include "frontend/api/app.h"
#include "frontend/api/job_internal.h"

#define MODEL "deploy/model/quire-tiny"
#define N_TOP 70u /* more than fit the table on the stack */

static int64_t fail_at = -1; /* allocations before the one that fails; below 0: none does */

void *__real_q_realloc(void *p, size_t n);
void *__real_q_calloc(size_t n, size_t size);
void *__wrap_q_realloc(void *p, size_t n);
void *__wrap_q_calloc(size_t n, size_t size);

static bool fails(void)
{
    return fail_at >= 0 && fail_at-- == 0;
}

void *__wrap_q_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_q_realloc(p, n);
}

void *__wrap_q_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_q_calloc(n, size);
}

static struct app app;
static struct job job;
static struct choice choice;
static uint32_t ids[2 * N_TOP];
static float values[2 * N_TOP];
static uint32_t ranks[2] = {1, 3};

static int setup(void **state)
{
    struct q_err e = Q_ERR_INIT;
    (void)state;
    assert_ok(tokenizer_open(&app.served.tokenizer, MODEL, &e), &e);
    job.app = &app;
    job.sampling.n_logprob = N_TOP;
    choice.job = &job;
    for (uint32_t i = 0; i < 2 * N_TOP; i++) {
        ids[i] = 100 + i % 60; /* some come twice */
        values[i] = -0.25f * (float)i;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(app.served.tokenizer);
    return 0;
}

static void release(void)
{
    struct buf *const all[] = {&choice.items, &choice.values, &choice.tops, &choice.offsets};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_release(all[i]);
    buf_release(&choice.prompt_rows);
    choice.n_char = 0;
}

/* Two tokens into the choice's buffers. */
static void make(void)
{
    const struct logprob_rows rows = {2, N_TOP, ids, values, ranks};
    logprobs_token(&choice, &rows, 0, ids[0]);
    logprobs_token(&choice, &rows, 1, ids[N_TOP]);
}

static bool has_failed(void)
{
    return choice.items.failed || choice.values.failed || choice.tops.failed ||
           choice.offsets.failed;
}

/* The buffers one after the other. */
static void join(struct buf *out)
{
    buf_reset(out);
    buf_printf(out, "%s\n%s\n%s\n%s", buf_str(&choice.items), buf_str(&choice.values),
               buf_str(&choice.tops), buf_str(&choice.offsets));
}

static void check(bool chat)
{
    struct buf want = BUF_INIT, got = BUF_INIT;
    uint32_t n = 0, n_failed = 0;
    job.chat = chat;
    make();
    assert_false(has_failed());
    join(&want);
    release();
    for (bool is_over = false; !is_over; n++) {
        fail_at = n;
        make();
        is_over = fail_at >= 0;
        fail_at = -1;
        n_failed += has_failed();
        join(&got);
        if (!has_failed() && strcmp(buf_str(&want), buf_str(&got)) != 0)
            fail_msg("allocation %u failed, and the answer differs and has not: %s", n,
                     buf_str(&got));
        assert_true(!is_over || !has_failed());
        release();
    }
    print_message("%s: %u allocations, %u of them end the answer\n", chat ? "chat" : "completions",
                  n - 1, n_failed);
    assert_int_equal(n_failed, n - 1);
    buf_release(&want);
    buf_release(&got);
}

static void names_of_completions(void **state)
{
    (void)state;
    check(false);
}

static void entries_of_chat(void **state)
{
    (void)state;
    check(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_completions),
        cmocka_unit_test(entries_of_chat),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
