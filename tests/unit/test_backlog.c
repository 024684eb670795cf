/* SPDX-License-Identifier: Apache-2.0 */
/* Which request is next: single cases, shares by weight, and random operations beside a naive model
 * that looks at every request. */
#include "check.h"
#include "common/mem.h"
#include "engine/sched/backlog.h"

#define N_ITEM 64u

static struct q_err e;
static struct request_table table;
static struct backlog b;
static uint64_t next_id;

static void setup(bool by_priority)
{
    next_id = 0;
    assert_ok(request_table_init(&table, N_ITEM, &e), &e);
    assert_ok(backlog_init(&b, &table, by_priority, &e), &e);
}

static void drop(void)
{
    backlog_check(&b);
    backlog_release(&b);
    request_table_release(&table);
}

/* A request with n_token prompt tokens; returns its entry. */
static uint32_t enter(uint64_t tenant, uint32_t weight, int32_t priority, uint32_t n_token)
{
    static const uint32_t prompt[256];
    uint32_t i = 0;
    const struct msg_submit m = {
        .req_id = ++next_id,
        .prompt = {prompt, n_token},
        .priority = (uint32_t)priority,
        .max_tokens = 1,
    };
    assert_ok(request_add(&table, &i, 0, &m, n_token + 1, &e), &e);
    backlog_enter(&b, i, tenant, weight);
    backlog_check(&b);
    return i;
}

static uint32_t take_first(void)
{
    uint32_t i = backlog_first(&b, UINT32_MAX);
    assert_int_not_equal(i, REQUEST_NONE);
    backlog_take(&b, i, table.items[i].n_token);
    table.items[i].state = REQUEST_RUNNING;
    backlog_check(&b);
    return i;
}

static void put_back(uint32_t i)
{
    table.items[i].state = REQUEST_WAITING;
    backlog_return(&b, i);
    backlog_check(&b);
}

static void forget(uint32_t i)
{
    backlog_leave(&b, i);
    request_remove(&table, i);
}

static void test_one_tenant(void **state)
{
    (void)state;
    setup(false);
    assert_int_equal(backlog_first(&b, UINT32_MAX), REQUEST_NONE);
    uint32_t first = enter(0, 1, 5, 100), second = enter(0, 1, -5, 1), third = enter(0, 1, 0, 9);
    assert_int_equal(take_first(), first); /* priorities are not looked at */
    assert_int_equal(take_first(), second);
    put_back(second);
    put_back(first);
    assert_int_equal(b.n, 3);
    assert_int_equal(take_first(), first);
    backlog_remove(&b, second);
    forget(second);
    assert_int_equal(take_first(), third);
    assert_int_equal(b.n, 0);
    assert_int_equal(backlog_n_tenant(&b), 1);
    forget(first);
    forget(third);
    assert_int_equal(backlog_n_tenant(&b), 0);
    drop();
}

static void test_priorities(void **state)
{
    (void)state;
    setup(true);
    uint32_t usual = enter(0, 1, 0, 5), late = enter(0, 1, 7, 5), urgent = enter(0, 1, -1, 5);
    uint32_t same = enter(0, 1, -1, 5), other = enter(9, 1, INT32_MIN, 5);
    assert_int_equal(take_first(), other);
    assert_int_equal(take_first(), urgent);
    assert_int_equal(take_first(), same);
    put_back(same);
    uint32_t better = enter(0, 1, -2, 5), equal = enter(9, 1, -1, 5);
    assert_int_equal(take_first(), better); /* before one that was returned */
    assert_int_equal(take_first(), same);   /* which is before an equal one */
    assert_int_equal(take_first(), equal);
    assert_int_equal(take_first(), usual);
    assert_int_equal(take_first(), late);
    drop();
}

/* Tenants that always have requests waiting get work in proportion to their weights; how many
 * requests that is does not matter. */
static void test_shares(void **state)
{
    (void)state;
    static const uint32_t weights[] = {1, 3, 2}, sizes[] = {5, 50, 200};
    uint64_t work[3] = {0};
    setup(false);
    for (uint32_t t = 0; t < 3; t++)
        for (int k = 0; k < 3; k++)
            enter(t, weights[t], 0, sizes[t]);
    for (int i_round = 0; i_round < 5000; i_round++) {
        uint32_t i = take_first(), t = (uint32_t)b.tenants[table.items[i].tenant].id;
        backlog_charge(&b, i, sizes[t]); /* as many output tokens as prompt tokens */
        work[t] += 2 * sizes[t];
        forget(i);
        enter(t, weights[t], 0, sizes[t]);
    }
    for (uint32_t t = 1; t < 3; t++) {
        double ratio = (double)work[t] / (double)work[0] / weights[t];
        if (ratio < 0.98 || ratio > 1.02)
            fail_msg("tenant %u has %.3f times its share", t, ratio);
    }
    drop();
}

/* Who was away is next when it comes back, once; it has saved nothing up. And who left with a debt
 * still has it. */
static void test_idle(void **state)
{
    (void)state;
    setup(false);
    for (int k = 0; k < 30; k++)
        enter(1, 1, 0, 10);
    for (int k = 0; k < 20; k++)
        forget(take_first());
    uint32_t here = enter(2, 1, 0, 10);
    enter(2, 1, 0, 10);
    enter(2, 1, 0, 10);
    uint64_t ids[6];
    for (int k = 0; k < 6; k++)
        ids[k] = b.tenants[table.items[take_first()].tenant].id;
    int n_two = 0;
    for (int k = 0; k < 6; k++)
        n_two += ids[k] == 2;
    assert_int_equal(n_two, 3); /* they alternate; without a lift 2 would have the first three */
    assert_false(ids[0] == 2 && ids[1] == 2);
    backlog_charge(&b, here, 1000);
    for (uint32_t i = 0; i < N_ITEM; i++)
        if (table.items[i].state == REQUEST_RUNNING)
            forget(i);
    uint32_t again = enter(2, 1, 0, 10);
    for (int k = 0; k < 5; k++)
        assert_int_not_equal(take_first(), again); /* 1000 tokens are more than these have */
    drop();
}

static void test_long_ones(void **state)
{
    (void)state;
    setup(false);
    uint32_t big = enter(0, 1, 0, 50), small = enter(0, 1, 0, 10), tiny = enter(1, 1, 0, 2);
    assert_int_equal(backlog_first(&b, 50), big);
    assert_int_equal(backlog_first(&b, 49), small);
    assert_int_equal(backlog_first(&b, 9), tiny);
    assert_int_equal(backlog_first(&b, 1), REQUEST_NONE);
    assert_int_equal(take_first(), big);
    put_back(big);
    assert_int_equal(backlog_first(&b, 10), REQUEST_NONE); /* a returned one is not overtaken */
    drop();
}

static void test_who_makes_room(void **state)
{
    (void)state;
    setup(false);
    assert_int_equal(backlog_last_of_many(&b, 1), REQUEST_NONE);
    enter(1, 1, 0, 5);
    enter(1, 1, 0, 5);
    uint32_t last = enter(1, 1, 0, 5);
    assert_int_equal(backlog_last_of_many(&b, 1), REQUEST_NONE); /* itself has the most */
    assert_int_equal(backlog_last_of_many(&b, 2), last);
    enter(2, 1, 0, 5);
    assert_int_equal(backlog_last_of_many(&b, 2), last);
    enter(2, 1, 0, 5);
    assert_int_equal(backlog_last_of_many(&b, 2), REQUEST_NONE); /* it would have as many */
    assert_int_equal(backlog_last_of_many(&b, 3), last);
    drop();
}

static uint64_t seed = 88172645463325252u;
static uint32_t dice(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % n;
}

/* The order of backlog.h, by looking at all. */
static bool naive_before(const struct request *x, const struct request *y)
{
    const struct tenant *s = &b.tenants[x->tenant], *t = &b.tenants[y->tenant];
    if (x->priority != y->priority)
        return x->priority < y->priority;
    if (x->admission_seq && y->admission_seq)
        return x->admission_seq < y->admission_seq;
    if (x->admission_seq || y->admission_seq)
        return x->admission_seq;
    if (x->tenant != y->tenant && s->charge != t->charge)
        return s->charge < t->charge;
    return x->arrival < y->arrival;
}

static uint32_t naive_first(void)
{
    uint32_t best = REQUEST_NONE;
    for (uint32_t i = 0; i < N_ITEM; i++)
        if (table.items[i].state == REQUEST_WAITING &&
            (best == REQUEST_NONE || naive_before(&table.items[i], &table.items[best])))
            best = i;
    return best;
}

/* The one of all that run which stands last. */
static uint32_t last_running(void)
{
    uint32_t last = REQUEST_NONE;
    for (uint32_t i = 0; i < N_ITEM; i++)
        if (table.items[i].state == REQUEST_RUNNING &&
            (last == REQUEST_NONE || request_before(&table.items[last], &table.items[i])))
            last = i;
    return last;
}

static void play(uint32_t what)
{
    uint32_t i = dice(N_ITEM);
    const struct request *r = &table.items[i];
    if (what < 4 && table.free.n)
        enter(dice(40) ? dice(5) : dice(1000), 1 + dice(3), (int32_t)dice(4) - 2, 1 + dice(200));
    else if (what < 7 && b.n)
        take_first();
    else if (what == 7 && (i = last_running()) != REQUEST_NONE)
        put_back(i);
    else if (what == 8 && r->state == REQUEST_RUNNING)
        backlog_charge(&b, i, 1 + dice(100));
    else if (what == 9 && r->state == REQUEST_RUNNING)
        forget(i);
    else if (what == 10 && r->state == REQUEST_WAITING) {
        backlog_remove(&b, i);
        forget(i);
    }
}

static void test_random(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        setup(round % 2);
        for (int k = 0; k < 10000; k++) {
            play(dice(11));
            assert_int_equal(backlog_first(&b, UINT32_MAX), naive_first());
        }
        drop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_tenant), cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_shares),     cmocka_unit_test(test_idle),
        cmocka_unit_test(test_long_ones),  cmocka_unit_test(test_who_makes_room),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
