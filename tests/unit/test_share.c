/* SPDX-License-Identifier: Apache-2.0 */
/* share: each panel of a product is computed once, whatever thread takes it and when; what is late
 * is taken from its end; other products and threads that have left are not touched. */
#include "check.h"
#include <stdatomic.h>
#include "common/team.h"
#include "kernels/tiling/share.h"

#define N_THREAD 4
#define N_PANEL  1000

static struct kern_exec exec_of(struct kern_share *shares, uint32_t ith, uint32_t nth,
                                uint64_t product)
{
    return (struct kern_exec){.ith = ith, .nth = nth, .shares = shares, .product = product};
}

static void test_without_shares(void **state)
{
    (void)state;
    uint32_t n_done[10] = {0};
    for (uint32_t ith = 0; ith < 3; ith++) {
        const struct kern_exec x = {.ith = ith, .nth = 3};
        struct panels p = panels_of(10, &x);
        for (int block = 0; block < 2; block++) {
            panels_start(&p, block == 1);
            size_t last = p.own.begin;
            for (size_t i; panels_next(&p, &i); last = i) {
                assert_true(i == last || i == last + 1);
                assert_int_equal(panels_after(&p, i), i + 1 < p.own.end ? i + 1 : p.own.begin);
                n_done[i]++;
            }
        }
    }
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(n_done[i], 2);
}

/* Thread 0 is done while thread 1 has begun: it takes half of the rest, from the end, then half of
 * that; 1 goes on with what is left. */
static void test_the_end_is_taken(void **state)
{
    (void)state;
    static struct kern_share shares[2];
    const struct kern_exec x[2] = {exec_of(shares, 0, 2, 7), exec_of(shares, 1, 2, 7)};
    struct panels p[2] = {panels_of(16, &x[0]), panels_of(16, &x[1])};
    panels_start(&p[0], true);
    panels_start(&p[1], true);
    size_t i;
    assert_true(panels_next(&p[1], &i)); /* it has 8 … 11 now */
    assert_int_equal(i, 8);
    static const size_t of_first[] = {0, 1, 2, 3, 4, 5, 6, 7, 14, 15, 13};
    for (size_t n = 0; n < sizeof of_first / sizeof *of_first; n++) {
        assert_true(panels_next(&p[0], &i));
        assert_int_equal(i, of_first[n]);
    }
    for (size_t n = 9; n < 13; n++) {
        assert_true(panels_next(&p[1], &i));
        assert_int_equal(i, n);
    }
    for (int n = 0; n < 4; n++) /* and they stay at the end */
        assert_false(panels_next(&p[n % 2], &i));
}

/* Of a thread that has not begun, one that is in another product, and, before the last block, one
 * that has. */
static void test_what_is_not_taken(void **state)
{
    (void)state;
    static struct kern_share shares[3];
    const struct kern_exec x = exec_of(shares, 0, 3, 8), later = exec_of(shares, 1, 3, 9);
    (void)panels_of(9, &later); /* thread 2 has not begun any */
    struct panels p = panels_of(9, &x);
    size_t i, n = 0;
    panels_start(&p, true);
    for (; panels_next(&p, &i); n++)
        assert_int_equal(i, n);
    assert_int_equal(n, 3);
    const struct kern_exec now = exec_of(shares, 1, 3, 8);
    (void)panels_of(9, &now);
    n = 0;
    for (panels_start(&p, false); panels_next(&p, &i); n++)
        assert_int_equal(i, n);
    assert_int_equal(n, 3);
}

/* More panels than a word can count are not shared; fewer panels than threads are. */
static void test_sizes(void **state)
{
    (void)state;
    static struct kern_share shares[N_THREAD];
    const size_t most = (size_t)SHARE_PANELS * N_THREAD;
    const struct kern_exec x = exec_of(shares, 0, N_THREAD, 3);
    assert_false(panels_of(most, &x).is_shared);
    assert_true(panels_of(most - 1, &x).is_shared);
    uint32_t n = 0;
    for (uint32_t ith = 0; ith < N_THREAD; ith++) {
        const struct kern_exec each = exec_of(shares, ith, N_THREAD, 4);
        struct panels p = panels_of(2, &each);
        panels_start(&p, true);
        for (size_t i; panels_next(&p, &i);)
            n++;
    }
    assert_int_equal(n, 2);
}

struct product {
    struct team *team;
    struct kern_share shares[N_THREAD];
    atomic_uint n_done[N_PANEL];
    uint32_t n_round;
    atomic_uint n_wrong;
};

/* Products one after the other, two between barriers, of few and of many panels. */
static void run_products(void *arg, uint32_t ith, uint32_t nth)
{
    struct product *p = arg;
    for (uint32_t round = 0; round < p->n_round; round++) {
        const size_t n = round % 3 ? round % 7 : N_PANEL;
        for (uint32_t k = 0; k < 2; k++) {
            const struct kern_exec x =
                exec_of(p->shares, ith, nth, (uint64_t)team_phase(p->team) * 256 + k);
            struct panels mine = panels_of(n, &x);
            panels_start(&mine, true);
            for (size_t i; panels_next(&mine, &i);)
                atomic_fetch_add(&p->n_done[i], 1);
        }
        team_barrier(p->team);
        for (size_t i = ith; i < N_PANEL; i += nth)
            if (atomic_exchange(&p->n_done[i], 0) != (i < n ? 2 : 0))
                atomic_fetch_add(&p->n_wrong, 1);
        team_barrier(p->team);
    }
}

static void test_threads_take_each_panel_once(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    static struct product p = {.n_round = 400};
    assert_ok(team_new(&p.team, N_THREAD, false, &e), &e);
    for (int i = 0; i < 3; i++)
        team_run(p.team, run_products, &p);
    assert_int_equal(p.n_wrong, 0);
    team_free(p.team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_shares),
        cmocka_unit_test(test_the_end_is_taken),
        cmocka_unit_test(test_what_is_not_taken),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_threads_take_each_panel_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
