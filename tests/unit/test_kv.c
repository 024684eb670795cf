/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "common/mem.h"
#include "engine/sched/kv.h"

static struct q_err e;

static void check(struct kv_pool *p, const struct kv_table *tables, int n)
{
    kv_check_begin(p);
    for (int i = 0; i < n; i++)
        kv_check_table(p, &tables[i]);
    kv_check_end(p);
}

static void test_grow_and_drop(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_table t[2];
    assert_ok(kv_init(&p, 5, 2, 4, &e), &e);
    kv_open(&p, &t[0], 0);
    kv_open(&p, &t[1], 1);
    assert_int_equal(kv_need(&t[0], 1), 1);
    assert_int_equal(kv_need(&t[0], 16), 1);
    assert_int_equal(kv_need(&t[0], 17), 2);
    assert_int_equal(kv_need(&t[0], 0), 0);
    assert_ok(kv_grow(&p, &t[0], 17, &e), &e);
    assert_int_equal(t[0].n_block, 2);
    assert_int_equal(kv_need(&t[0], 32), 0);
    assert_ok(kv_grow(&p, &t[0], 3, &e), &e); /* covers more already */
    assert_int_equal(t[0].n_block, 2);
    assert_ok(kv_grow(&p, &t[1], 48, &e), &e);
    assert_int_equal(p.n_free, 0);
    check(&p, t, 2);
    assert_fails(kv_grow(&p, &t[0], 33, &e), Q_NO_SPACE, "need 1 blocks, 0 of 5 free", &e);
    assert_int_equal(t[0].n_block, 2);
    kv_drop(&p, &t[1]);
    assert_int_equal(p.n_free, 3);
    assert_ok(kv_grow(&p, &t[0], 64, &e), &e);
    check(&p, t, 2);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(t[0].blocks[i], t[0].blocks[j]);
    kv_drop(&p, &t[0]);
    kv_drop(&p, &t[0]); /* an empty table is fine */
    assert_int_equal(p.n_free, 5);
    check(&p, t, 2);
    kv_release(&p);
    kv_release(&p);
}

/* Two tables hold one block: it is free when both let go. */
static void test_shared(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_table t[2];
    assert_ok(kv_init(&p, 3, 2, 2, &e), &e);
    kv_open(&p, &t[0], 0);
    kv_open(&p, &t[1], 1);
    assert_ok(kv_grow(&p, &t[0], 32, &e), &e);
    kv_ref(&p, t[0].blocks[0]);
    t[1].blocks[0] = t[0].blocks[0];
    t[1].n_block = 1;
    check(&p, t, 2);
    kv_drop(&p, &t[0]);
    assert_int_equal(p.n_free, 2);
    check(&p, t, 2);
    kv_drop(&p, &t[1]);
    assert_int_equal(p.n_free, 3);
    check(&p, t, 2);
    kv_release(&p);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int n = 0; n < 5; n++) {
        struct kv_pool p;
        mem_fail_after(n);
        enum q_code rc = kv_init(&p, 3, 2, 2, &e);
        mem_fail_after(-1);
        assert_int_equal(rc, n < 4 ? Q_NO_MEMORY : Q_OK);
        kv_release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grow_and_drop),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
