/* SPDX-License-Identifier: Apache-2.0 */
/* team: every member runs once a run, barriers order memory, an idle team sleeps, errors are
 * clean. */
#include "check.h"
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/team.h"
#include "folder.h"

#define N_RUN   300
#define N_PHASE 20
#define N_MAX   8

struct relay {
    struct team *team;
    uint32_t calls[N_MAX]; /* times each member ran */
    uint32_t cell[N_MAX];  /* written by its member, read by the next after a barrier */
    uint32_t n_wrong;
};

/* Each phase: everyone writes its own plain cell, meets, reads the neighbour's, meets. Without
 * the barriers' ordering the values (or tsan) would tell. */
static void relay_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct relay *r = arg;
    r->calls[ith]++;
    for (uint32_t phase = 0; phase < N_PHASE; phase++) {
        r->cell[ith] = phase * 100 + ith;
        team_barrier(r->team);
        uint32_t next = (ith + 1) % nth;
        if (r->cell[next] != phase * 100 + next)
            __atomic_fetch_add(&r->n_wrong, 1, __ATOMIC_RELAXED);
        team_barrier(r->team);
    }
}

static void test_members_meet(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, N_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct q_err e = Q_ERR_INIT;
        struct relay r = {0};
        assert_ok(team_new(&r.team, sizes[i], i % 2 == 0, &e), &e);
        assert_int_equal(team_size(r.team), sizes[i]);
        for (int run = 0; run < N_RUN; run++)
            team_run(r.team, relay_run, &r);
        for (uint32_t ith = 0; ith < N_MAX; ith++)
            assert_int_equal(r.calls[ith], ith < sizes[i] ? N_RUN : 0);
        assert_int_equal(r.n_wrong, 0);
        team_free(r.team);
    }
}

static void count_run(void *arg, uint32_t ith, uint32_t nth)
{
    uint64_t *counts = arg;
    counts[ith * 16] += nth;
}

/* Members that slept (longer than any spin) wake for the next run. */
static void test_sleep_and_wake(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct team *t;
    uint64_t counts[4 * 16] = {0};
    assert_ok(team_new(&t, 4, false, &e), &e);
    for (int i = 0; i < 50; i++) {
        usleep(i % 5 * 400);
        team_run(t, count_run, counts);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(counts[i * 16], 200);
    team_free(t);
}

static int64_t cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000ll + u.ru_utime.tv_usec +
           u.ru_stime.tv_usec;
}

static void test_idle_uses_no_core(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct team *t;
    uint64_t counts[4 * 16] = {0};
    assert_ok(team_new(&t, 4, false, &e), &e);
    team_run(t, count_run, counts);
    usleep(20000);
    int64_t before = cpu_us();
    usleep(300000);
    assert_in_range(cpu_us() - before, 0, 30000); /* 3 spinning members would take up to 900 ms */
    team_free(t);
}

static void test_pinning_is_undone(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    cpu_set_t before, after;
    struct team *t;
    uint64_t counts[2 * 16] = {0};
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_ok(team_new(&t, 2, true, &e), &e);
    team_run(t, count_run, counts);
    team_free(t);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void test_default_threads(void **state)
{
    (void)state;
    cpu_set_t all, one;
    uint32_t n = team_default_threads();
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(n, 1, CPU_COUNT(&all));
    CPU_ZERO(&one); /* with one processor allowed there is one thread */
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(team_default_threads(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void put(const struct folder *f, const char *name, const char *text)
{
    folder_write(f, name, text, strlen(text));
}

/* The tightest of a group's limits and those above it, whole processors, at least one. */
static void test_quota_of_version_2(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    assert_int_equal(cpus_quota(f.path, 8), 8); /* no /proc */
    put(&f, "proc/self/cgroup", "0::/pod/box\n");
    assert_int_equal(cpus_quota(f.path, 8), 8); /* no such group */
    put(&f, "sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    assert_int_equal(cpus_quota(f.path, 8), 8);
    put(&f, "sys/fs/cgroup/pod/cpu.max", "350000 100000\n");
    assert_int_equal(cpus_quota(f.path, 8), 3);
    assert_int_equal(cpus_quota(f.path, 2), 2); /* no more than there are */
    put(&f, "sys/fs/cgroup/pod/box/cpu.max", "50000 100000\n");
    assert_int_equal(cpus_quota(f.path, 8), 1);
    put(&f, "proc/self/cgroup", "0::/\n"); /* a container's own: its limit is at the mount */
    put(&f, "sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(cpus_quota(f.path, 8), 4);
    put(&f, "sys/fs/cgroup/cpu.max", "nonsense\n");
    assert_int_equal(cpus_quota(f.path, 8), 8);
    folder_release(&f);
}

static void test_quota_of_version_1(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    put(&f, "proc/self/cgroup",
        "12:cpuset:/\n7:name=cpu:/other\n6:cpuacct,cpu:/docker/box\n0::/docker/box\n");
    put(&f, "sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "100000\n");
    put(&f, "sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
    put(&f, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"); /* none */
    put(&f, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus_quota(f.path, 8), 8);
    put(&f, "sys/fs/cgroup/cpu/docker/box/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(cpus_quota(f.path, 8), 8); /* no period */
    put(&f, "sys/fs/cgroup/cpu/docker/box/cpu.cfs_period_us", "50000\n");
    assert_int_equal(cpus_quota(f.path, 8), 5);
    folder_release(&f);
}

/* A made-up machine: two nodes of two cores. hwloc binds nothing there. */
static void test_memory_is_placed_by_node(void **state)
{
    (void)state;
    struct cpus c;
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "pack:2 numa:1 core:2 pu:1", 1), 0);
    cpus_init(&c);
    assert_int_equal(cpus_nodes(&c), 2);
    c.n = 4; /* on any set of processors of this process */
    for (uint32_t i = 0; i < c.n; i++)
        c.ids[i] = i;
    assert_int_equal(cpus_place(&c, 1, NULL, 0, CPUS_SPREAD), 1);
    assert_int_equal(cpus_place(&c, 2, NULL, 0, CPUS_SPREAD), 1);
    assert_int_equal(cpus_place(&c, 3, NULL, 0, CPUS_SPREAD), 2);
    assert_int_equal(cpus_place(&c, 4, NULL, 0, CPUS_FIRST_TOUCH), 2);
    cpus_release(&c);
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "core:4 pu:1", 1), 0);
    cpus_init(&c);
    assert_int_equal(cpus_nodes(&c), 1);
    assert_int_equal(cpus_place(&c, c.n, NULL, 0, CPUS_SPREAD), 1);
    cpus_release(&c);
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
    assert_int_equal(team_place_memory(NULL, NULL, 0, CPUS_SPREAD), 1);
}

static void test_a_barrier_has_a_cost(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct team *t;
    assert_ok(team_new(&t, 2, false, &e), &e);
    assert_true(team_barrier_us(t, 1000) > 0);
    assert_true(team_barrier_us(t, 0) == 0); /* nothing to divide by */
    team_free(t);
}

static void test_errors(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct team *t = NULL;
    assert_fails(team_new(&t, TEAM_THREADS_MAX + 1, false, &e), Q_INVALID, "257", &e);
    assert_null(t);
    mem_fail_after(0);
    assert_fails(team_new(&t, 2, false, &e), Q_NO_MEMORY, "2 threads", &e);
    mem_fail_after(-1);
    assert_null(t);
    team_free(NULL);
    team_barrier(NULL);
    assert_int_equal(team_size(NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_meet),
        cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_idle_uses_no_core),
        cmocka_unit_test(test_pinning_is_undone),
        cmocka_unit_test(test_default_threads),
        cmocka_unit_test(test_quota_of_version_2),
        cmocka_unit_test(test_quota_of_version_1),
        cmocka_unit_test(test_memory_is_placed_by_node),
        cmocka_unit_test(test_a_barrier_has_a_cost),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
