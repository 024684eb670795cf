/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
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
    assert_fails(kv_grow(&p, &t[0], 33, &e), Q_NO_SPACE, "1 blocks needed, 0 of 5 free", &e);
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

static struct kv_hash name(uint64_t n)
{
    return (struct kv_hash){{n, n, n, n}};
}

/* Two tables hold one block; when both let go it is cached, found again, and evicted last. */
static void test_shared(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_table t[2];
    const struct kv_hash names[] = {name(1), name(2), name(3)};
    uint32_t n_used;
    assert_ok(kv_init(&p, 4, 2, 6, &e), &e);
    kv_open(&p, &t[0], 0);
    kv_open(&p, &t[1], 1);
    assert_int_equal(kv_match(&p, names, 3, &n_used), 0);
    assert_ok(kv_grow(&p, &t[0], 40, &e), &e);
    kv_publish(&p, &t[0], 0, &names[0]);
    kv_publish(&p, &t[0], 1, &names[1]);
    assert_int_equal(kv_match(&p, names, 3, &n_used), 2);
    assert_int_equal(n_used, 2);
    kv_share(&p, &t[1], names, 2);
    assert_memory_equal(t[0].blocks, t[1].blocks, 2 * sizeof *t[0].blocks);
    check(&p, t, 2);
    kv_drop(&p, &t[0]); /* the third block is free, two have a holder */
    assert_int_equal(kv_available(&p), 2);
    kv_drop(&p, &t[1]);
    assert_int_equal(p.n_free, 2);
    assert_int_equal(p.n_cached, 2);
    assert_int_equal(kv_match(&p, names, 3, &n_used), 2);
    assert_int_equal(n_used, 0);
    check(&p, t, 2);
    assert_ok(kv_grow(&p, &t[0], 48, &e), &e); /* takes the leaf, not the root */
    assert_int_equal(kv_match(&p, names, 3, &n_used), 1);
    check(&p, t, 2);
    assert_fails(kv_grow(&p, &t[0], 80, &e), Q_NO_SPACE, "2 blocks needed, 1 of 4 free", &e);
    kv_share(&p, &t[1], names, 1);
    assert_int_equal(kv_available(&p), 0);
    kv_forget(&p);
    assert_int_equal(kv_match(&p, names, 3, &n_used), 0);
    check(&p, t, 2);
    kv_drop(&p, &t[0]);
    kv_drop(&p, &t[1]);
    assert_int_equal(p.n_free, 4);
    check(&p, t, 2);
    kv_release(&p);
}

/* What is not indexed: behind a block that is not, and under a name that is taken. */
static void test_not_indexed(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_table t[2];
    const struct kv_hash names[] = {name(1), name(2), name(3)};
    uint32_t n_used;
    assert_ok(kv_init(&p, 6, 2, 3, &e), &e);
    kv_open(&p, &t[0], 0);
    kv_open(&p, &t[1], 1);
    assert_ok(kv_grow(&p, &t[0], 48, &e), &e);
    assert_ok(kv_grow(&p, &t[1], 48, &e), &e);
    kv_publish(&p, &t[0], 1, &names[1]);
    assert_int_equal(kv_match(&p, names + 1, 1, &n_used), 0);
    kv_publish(&p, &t[0], 0, &names[0]);
    kv_publish(&p, &t[1], 0, &names[0]); /* the same text computed twice */
    kv_publish(&p, &t[1], 1, &names[1]);
    assert_int_equal(kv_match(&p, names, 3, &n_used), 1);
    check(&p, t, 2);
    kv_drop(&p, &t[1]);
    assert_int_equal(p.n_free, 3);
    kv_drop(&p, &t[0]);
    assert_int_equal(p.n_free, 5);
    assert_int_equal(p.n_cached, 1);
    check(&p, t, 2);
    kv_release(&p);
}

/* A naive model of the pool without regard to cost: the content of each block, its owners, and
 * since when it has none. */
#define TABLES 4
#define BLOCKS 11
#define LENGTH 5 /* blocks of a table */
struct naive {
    uint64_t held[BLOCKS]; /* name of the text in it, 0 = none that others may find */
    int refs[BLOCKS];
    uint64_t idle[BLOCKS]; /* when the last table let go */
    kv_block blocks[TABLES][LENGTH];
    uint32_t n[TABLES], n_named[TABLES];
    uint64_t names[TABLES][LENGTH + 1];
    uint64_t now;
};

static kv_block naive_find(const struct naive *m, uint64_t held)
{
    for (kv_block b = 0; b < BLOCKS; b++)
        if (held && m->held[b] == held)
            return b;
    return KV_NONE;
}

static uint32_t naive_count(const struct naive *m, bool named)
{
    uint32_t n = 0;
    for (kv_block b = 0; b < BLOCKS; b++)
        n += !m->refs[b] && (m->held[b] != 0) == named;
    return n;
}

/* The block that was just given out: free, or the longest idle one when none is. */
static void naive_take(struct naive *m, uint32_t t, kv_block b)
{
    assert_int_equal(m->refs[b], 0);
    if (naive_count(m, false))
        assert_int_equal(m->held[b], 0);
    for (kv_block i = 0; m->held[b] && i < BLOCKS; i++)
        assert_true(m->refs[i] || i == b || m->idle[i] > m->idle[b]);
    m->held[b] = 0;
    m->refs[b] = 1;
    m->blocks[t][m->n[t]++] = b;
}

static void naive_drop(struct naive *m, uint32_t t)
{
    while (m->n[t]) {
        kv_block b = m->blocks[t][--m->n[t]];
        m->refs[b]--;
        m->idle[b] = ++m->now;
    }
    m->n_named[t] = 0;
}

static void play(struct kv_pool *p, struct kv_table *tables, struct naive *m, uint64_t random)
{
    uint32_t i = random % TABLES, op = (uint32_t)(random >> 8) % 100;
    struct kv_table *t = &tables[i];
    uint64_t *names = m->names[i];
    if (op < 30 && t->n_block == 0) { /* a text: look it up, take what is there */
        struct kv_hash hashes[LENGTH];
        uint32_t n = 1 + (uint32_t)(random >> 16) % LENGTH, n_used, n_hit = 0, n_held = 0;
        for (uint32_t k = 0; k < LENGTH; k++) { /* few texts: many begin alike */
            names[k + 1] = names[k] * 3 + 1 + (random >> (20 + 2 * k)) % 2;
            hashes[k] = name(names[k + 1]);
        }
        for (kv_block b; n_hit < n && (b = naive_find(m, names[n_hit + 1])) != KV_NONE; n_hit++) {
            n_held += m->refs[b] > 0;
            m->blocks[i][n_hit] = b;
        }
        assert_int_equal(kv_match(p, hashes, n, &n_used), n_hit);
        assert_int_equal(n_used, n_held);
        kv_share(p, t, hashes, n_hit);
        m->n[i] = m->n_named[i] = n_hit;
        for (uint32_t k = 0; k < n_hit; k++)
            m->refs[t->blocks[k]]++;
        assert_memory_equal(t->blocks, m->blocks[i], n_hit * sizeof *t->blocks);
    } else if (op < 60 && t->n_block < LENGTH) {
        uint32_t n = naive_count(m, false) + naive_count(m, true), n_more = 1 + op % 2;
        if (t->n_block + n_more > LENGTH)
            n_more = 1;
        enum q_code rc = kv_grow(p, t, (t->n_block + n_more) * KV_BLOCK_TOKENS, &e);
        assert_int_equal(rc, n < n_more ? Q_NO_SPACE : Q_OK);
        for (uint32_t k = m->n[i]; k < t->n_block; k++)
            naive_take(m, i, t->blocks[k]);
    } else if (op < 85 && m->n_named[i] < m->n[i] && names[1]) { /* one more is full */
        uint32_t k = m->n_named[i]++;
        struct kv_hash hash = name(names[k + 1]);
        kv_publish(p, t, k, &hash);
        if ((!k || m->held[m->blocks[i][k - 1]]) && naive_find(m, names[k + 1]) == KV_NONE)
            m->held[m->blocks[i][k]] = names[k + 1];
    } else if (op < 99) {
        kv_drop(p, t);
        naive_drop(m, i);
    } else if (random >> 60 == 0) {
        kv_forget(p);
        memset(m->held, 0, sizeof m->held);
    }
}

/* Two million operations on a pool that is always short, against the naive one. */
static void test_against_naive(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_table tables[TABLES];
    struct naive m = {0};
    uint64_t x = 88172645463325252u;
    assert_ok(kv_init(&p, BLOCKS, TABLES, LENGTH, &e), &e);
    for (uint32_t i = 0; i < TABLES; i++)
        kv_open(&p, &tables[i], i);
    for (int n = 0; n < 2000000; n++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        play(&p, tables, &m, x * UINT64_C(0x2545f4914f6cdd1d));
        if (n % 8 == 0)
            check(&p, tables, TABLES);
        if (p.n_free != naive_count(&m, false) || p.n_cached != naive_count(&m, true))
            fail_msg("operation %d: %u free, %u cached", n, p.n_free, p.n_cached);
    }
    for (uint32_t i = 0; i < TABLES; i++)
        kv_drop(&p, &tables[i]);
    assert_int_equal(kv_available(&p), BLOCKS);
    kv_release(&p);
}

/* A pool takes memory when a block is first written, in huge pages that hold many: so blocks that
 * were never used come last, when nothing that was is free, and in order. */
static void test_blocks_lie_close(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_table t[8];
    uint32_t n_touched = 0;
    uint64_t random = 7;
    assert_ok(kv_init(&p, 400, 8, 40, &e), &e);
    for (uint32_t i = 0; i < 8; i++)
        kv_open(&p, &t[i], i);
    for (uint32_t step = 0; step < 20000 && n_touched < p.n_block; step++) {
        random = random * UINT64_C(6364136223846793005) + 1;
        struct kv_table *one = &t[random >> 33 & 7];
        const uint32_t n_token = (uint32_t)(random >> 40) % (step < 10000 ? 300 : 640);
        if (random >> 60 < 4) {
            for (uint32_t i = 0; i < one->n_block; i++) {
                const struct kv_hash hash = name(random + i);
                kv_publish(&p, one, i, &hash);
            }
            kv_drop(&p, one);
            continue;
        }
        const uint32_t before = one->n_block, n_again = p.n_free - (p.n_block - n_touched);
        assert_ok(kv_grow(&p, one, n_token, &e), &e);
        for (uint32_t i = before; i < one->n_block; i++)
            if (i - before < n_again)
                assert_true(one->blocks[i] < n_touched);
            else if (n_touched < p.n_block)
                assert_int_equal(one->blocks[i], n_touched++);
    }
    for (uint32_t i = 0; i < 8; i++)
        kv_drop(&p, &t[i]);
    check(&p, t, 8);
    kv_release(&p);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        struct kv_pool p;
        mem_fail_after(n);
        enum q_code rc = kv_init(&p, 3, 2, 2, &e);
        mem_fail_after(-1);
        assert_int_equal(rc, n < 5 ? Q_NO_MEMORY : Q_OK);
        kv_release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grow_and_drop),    cmocka_unit_test(test_shared),
        cmocka_unit_test(test_not_indexed),      cmocka_unit_test(test_against_naive),
        cmocka_unit_test(test_blocks_lie_close), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
