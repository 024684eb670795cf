/* SPDX-License-Identifier: Apache-2.0 */
/* states: rows beside a naive model of who has which, and snapshots with the blocks of the prefix
 * cache. What steps do with them: tests/sim. */
#include <string.h>
#include "check.h"
#include "engine/sched/kv.h"

#define N_ROW     12u
#define N_RUNNING 5u

static struct q_err e;
static uint64_t random_state;

static uint32_t roll(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

static struct kv_hash name(uint64_t n)
{
    return (struct kv_hash){{n, n, n, n}};
}

/* Of each row what the test thinks it is. */
struct model {
    enum state_use uses[N_ROW];
    uint32_t n_running, n_held;
};

static uint32_t any_row(const struct model *m, enum state_use use)
{
    const uint32_t first = roll(N_ROW);
    for (uint32_t i = 0; i < N_ROW; i++)
        if (m->uses[(first + i) % N_ROW] == use)
            return (first + i) % N_ROW;
    return STATE_NONE;
}

static void take(struct state_pool *p, struct model *m)
{
    if (m->n_running == N_RUNNING)
        return;
    const uint32_t row = states_take(p);
    assert_int_equal(m->uses[row], STATE_FREE);
    m->uses[row] = STATE_RUNNING;
    m->n_running++;
}

/* A running request is preempted and keeps its row, or ends. */
static void leave(struct state_pool *p, struct model *m, uint64_t step)
{
    const uint32_t row = any_row(m, STATE_RUNNING);
    uint32_t evicted = STATE_NONE;
    if (row == STATE_NONE)
        return;
    m->n_running--;
    if (roll(2) || !states_make_room(p, step, &evicted)) {
        states_drop(p, row);
        m->uses[row] = STATE_FREE;
        return;
    }
    if (evicted != STATE_NONE) /* blocks have their rows' numbers */
        m->uses[evicted] = STATE_FREE;
    states_hold(p, row);
    m->uses[row] = STATE_HELD;
    m->n_held++;
}

static void come_back(struct state_pool *p, struct model *m)
{
    const uint32_t row = any_row(m, STATE_HELD);
    if (row == STATE_NONE || m->n_running == N_RUNNING)
        return;
    states_resume(p, row);
    m->uses[row] = STATE_RUNNING;
    m->n_held--;
    m->n_running++;
}

static void snapshot(struct state_pool *p, struct model *m, uint64_t step)
{
    uint32_t evicted;
    if (!states_make_room(p, step, &evicted))
        return;
    if (evicted != STATE_NONE) {
        assert_int_equal(m->uses[evicted], STATE_SNAPSHOT);
        m->uses[evicted] = STATE_FREE;
    }
    const uint32_t row = states_take_snapshot(p, step);
    assert_int_equal(m->uses[row], STATE_FREE);
    assert_false(states_is_there(p, row, step)); /* not for the step that writes it */
    assert_true(states_is_there(p, row, step + 1));
    states_attach(p, row, row);
    m->uses[row] = STATE_SNAPSHOT;
}

static void test_rows(void **state)
{
    struct state_pool p;
    (void)state;
    for (random_state = 1; random_state < 40; random_state += 2) {
        struct model m = {{STATE_FREE}, 0, 0};
        uint64_t seed = random_state;
        assert_ok(states_init(&p, N_ROW, N_RUNNING, &e), &e);
        for (uint64_t step = 1; step < 600; step++) {
            const uint32_t row = any_row(&m, STATE_SNAPSHOT);
            const uint32_t what = roll(7);
            if (what == 0)
                take(&p, &m);
            else if (what == 1)
                leave(&p, &m, step);
            else if (what == 2)
                come_back(&p, &m);
            else if (what < 5)
                snapshot(&p, &m, step);
            else if (row != STATE_NONE && what == 5)
                states_use(&p, row, step);
            else if (row != STATE_NONE) {
                states_detach(&p, row);
                m.uses[row] = STATE_FREE;
            }
            states_check(&p, m.n_running, m.n_held);
            for (uint32_t i = 0; i < N_ROW; i++)
                assert_int_equal(p.infos[i].use, m.uses[i]);
        }
        states_release(&p);
        random_state = seed;
    }
}

/* The longest unused goes first; one that the step uses does not go, and then there is no room. */
static void test_eviction(void **state)
{
    struct state_pool p;
    uint32_t rows[2], evicted;
    (void)state;
    assert_ok(states_init(&p, 3, 1, &e), &e);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(states_make_room(&p, 1 + i, &evicted));
        rows[i] = states_take_snapshot(&p, 1 + i);
        states_attach(&p, rows[i], i);
    }
    states_use(&p, rows[0], 3);
    assert_true(states_make_room(&p, 3, &evicted));
    assert_int_equal(evicted, 1);
    rows[1] = states_take_snapshot(&p, 3);
    states_attach(&p, rows[1], 7);
    assert_false(states_make_room(&p, 3, &evicted)); /* one is read, one is written */
    assert_int_equal(evicted, STATE_NONE);
    assert_true(states_make_room(&p, 4, &evicted));
    assert_int_equal(evicted, 0);
    states_check(&p, 0, 0);
    states_release(&p);
    states_release(&p);
}

static void check(const struct kv_pool *p, const struct kv_table *t)
{
    kv_check_begin(p);
    kv_check_table(p, t);
    kv_check_end(p);
    states_check(&p->states, 0, 0);
}

/* A chain of blocks: the last snapshot counts; a snapshot leaves with its block. */
static void test_with_blocks(void **state)
{
    const struct kv_hash chain[] = {name(1), name(2), name(3)};
    struct kv_pool p;
    struct kv_table t;
    uint32_t row, rows[2];
    (void)state;
    assert_ok(kv_init(&p, 3, 1, 3, &e), &e);
    assert_ok(states_init(&p.states, 3, 1, &e), &e);
    kv_open(&p, &t, 0);
    assert_ok(kv_grow(&p, &t, 48, &e), &e);
    rows[0] = kv_take_snapshot(&p, 1);
    assert_false(kv_attach_snapshot(&p, &chain[0], rows[0])); /* the block is not in the index */
    assert_int_equal(p.states.n_free, 3);
    for (uint32_t i = 0; i < 3; i++)
        kv_publish(&p, &t, i, &chain[i]);
    rows[0] = kv_take_snapshot(&p, 1);
    rows[1] = kv_take_snapshot(&p, 1);
    assert_true(kv_attach_snapshot(&p, &chain[0], rows[0]));
    assert_true(kv_attach_snapshot(&p, &chain[1], rows[1]));
    assert_true(kv_has_state(&p, &chain[1]));
    assert_false(kv_has_state(&p, &chain[2]));
    check(&p, &t);
    assert_int_equal(kv_match_state(&p, chain, 3, 1, &row), 0); /* not in the same step */
    assert_int_equal(row, STATE_NONE);
    assert_int_equal(kv_match_state(&p, chain, 3, 2, &row), 2);
    assert_int_equal(row, rows[1]);
    assert_int_equal(kv_match_state(&p, chain, 1, 2, &row), 1);
    assert_int_equal(row, rows[0]);
    states_use(&p.states, rows[0], 2);
    kv_drop_unused(&p, rows[0], t.blocks[0], 3); /* a request has begun with it */
    assert_true(kv_has_state(&p, &chain[0]));
    kv_drop_unused(&p, rows[1], t.blocks[0], 3); /* the block has another one */
    kv_drop_unused(&p, rows[1], t.blocks[1], 1); /* written by this step */
    assert_true(kv_has_state(&p, &chain[1]));
    kv_drop_unused(&p, rows[1], t.blocks[1], 3);
    assert_false(kv_has_state(&p, &chain[1]));
    kv_unpublish(&p, &t, 0);
    check(&p, &t);
    assert_int_equal(p.states.n_free, 3);
    for (uint32_t i = 0; i < 3; i++)
        kv_publish(&p, &t, i, &chain[i]);
    rows[0] = kv_take_snapshot(&p, 5);
    assert_true(kv_attach_snapshot(&p, &chain[2], rows[0]));
    kv_drop(&p, &t);
    assert_int_equal(p.states.n_free, 2); /* the block is cached */
    assert_ok(kv_grow(&p, &t, 48, &e), &e);
    assert_int_equal(p.states.n_free, 3); /* and evicted */
    check(&p, &t);
    kv_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_with_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
