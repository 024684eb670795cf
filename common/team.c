/* SPDX-License-Identifier: Apache-2.0 */
/* A `gate` is a counter that threads wait to change: they spin for a while, then sleep on it
 * with a futex. Three gates make a team: `start` (work is there), `done` (all others have
 * finished) and `meet` (a barrier inside the work). Everything is published by the release
 * increment of a gate and seen by its acquire load; the futex only saves the core.
 *
 * Wake-ups are not lost: the sleeper announces itself (n_sleep), then the kernel compares the
 * word again before it sleeps; the opener increments the word first and then looks at n_sleep,
 * both sequentially consistent. */
#include "common/team.h"
#include <errno.h>
#include <hwloc.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"

/* Work that follows work within a step comes within microseconds, the other threads of a barrier
 * arrive within one kernel; a futex round trip costs 5 to 50 us. An idle team gives the core back
 * after START_SPIN_US. */
#define START_SPIN_US 20
#define MEET_SPIN_US  100
#define CGROUP_MAX    4096 /* bytes of a cgroup path */

struct gate {
    char apart[64]; /* no two gates share a cache line */
    atomic_uint word;
    atomic_uint n_sleep;
};

struct member { /* one thread besides the owner */
    struct team *team;
    pthread_t thread;
    uint32_t ith;
};

struct team {
    uint32_t n;
    uint32_t spin; /* 1, or 0 when there are more threads than cores: spinning would only delay */
    team_fn *fn;   /* NULL: the threads end */
    void *arg;
    struct gate start, done, meet;
    atomic_uint n_busy; /* members still inside fn */
    char apart[64];
    atomic_uint n_met; /* threads that have reached the barrier */
    bool pinned;
    cpu_set_t owner_cpus; /* the owner's affinity before it was pinned */
    uint32_t n_started;
    struct member members[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Return once g->word is no longer `old`. */
static void gate_wait(struct gate *g, uint32_t old, int64_t spin_us)
{
    int64_t until = spin_us ? clock_us() + spin_us : 0;
    while (spin_us) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&g->word, memory_order_acquire) != old)
                return;
            relax();
        }
        if (clock_us() >= until)
            break;
    }
    while (atomic_load(&g->word) == old) {
        atomic_fetch_add(&g->n_sleep, 1);
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
        atomic_fetch_sub(&g->n_sleep, 1);
    }
}

static void gate_open(struct gate *g)
{
    atomic_fetch_add(&g->word, 1);
    if (atomic_load(&g->n_sleep))
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&t->start, seen, t->spin * START_SPIN_US);
        if (!t->fn)
            return NULL;
        t->fn(t->arg, m->ith, t->n);
        if (atomic_fetch_sub(&t->n_busy, 1) == 1)
            gate_open(&t->done);
    }
}

void team_run(struct team *t, team_fn *fn, void *arg)
{
    if (t->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    uint32_t done = atomic_load(&t->done.word);
    t->fn = fn;
    t->arg = arg;
    atomic_store(&t->n_busy, t->n - 1);
    gate_open(&t->start);
    fn(arg, 0, t->n);
    gate_wait(&t->done, done, t->spin * MEET_SPIN_US);
}

void team_barrier(struct team *t)
{
    if (!t || t->n == 1)
        return;
    /* Read before arriving: once the last thread has arrived, the word may move at any moment. */
    uint32_t phase = atomic_load(&t->meet.word);
    if (atomic_fetch_add(&t->n_met, 1) + 1 == t->n) {
        atomic_store(&t->n_met, 0);
        gate_open(&t->meet);
    } else {
        gate_wait(&t->meet, phase, t->spin * MEET_SPIN_US);
    }
}

uint32_t team_size(const struct team *t)
{
    return t ? t->n : 1;
}

/* The first processor of every physical core this process may run on, into cpus[TEAM_THREADS_MAX].
 * Without a topology every allowed processor counts as a core. */
static uint32_t core_list(uint32_t *cpus)
{
    cpu_set_t allowed;
    uint32_t n = 0;
    hwloc_topology_t topology;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        CPU_ZERO(&allowed);
    if (hwloc_topology_init(&topology) == 0) {
        int n_core = hwloc_topology_load(topology) == 0
                         ? hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE)
                         : 0;
        for (int i = 0; i < n_core && n < TEAM_THREADS_MAX; i++) {
            hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)i);
            int cpu = -1;
            do
                cpu = hwloc_bitmap_next(core->cpuset, cpu);
            while (cpu >= 0 && !(cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)));
            if (cpu >= 0)
                cpus[n++] = (uint32_t)cpu;
        }
        hwloc_topology_destroy(topology);
    }
    for (uint32_t cpu = 0; n == 0 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            cpus[n++] = cpu;
    return n;
}

/* Processors that the cpu.max file of one cgroup (version 2) grants, rounded down but at least 1;
 * `n` when there is no limit. */
static uint32_t quota_of(const char *dir, uint32_t n)
{
    char path[CGROUP_MAX + 64];
    unsigned long long quota, period;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", dir);
    FILE *f = fopen(path, "re");
    if (!f)
        return n;
    if (fscanf(f, "%llu %llu", &quota, &period) == 2 && period > 0 && quota / period < n)
        n = quota / period ? (uint32_t)(quota / period) : 1;
    fclose(f);
    return n;
}

/* The strictest quota on the way from this process's cgroup up to the root of the mount. */
static uint32_t cgroup_limit(uint32_t n)
{
    char line[CGROUP_MAX + 8];
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return n;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        char *dir = line + 3;
        dir[strcspn(dir, "\n")] = '\0';
        for (char *cut; (cut = strrchr(dir, '/'));) {
            n = quota_of(dir, n);
            *cut = '\0';
        }
        n = quota_of("", n); /* in a container's own namespace the limit is at the root */
    }
    fclose(f);
    return n;
}

uint32_t team_default_threads(void)
{
    uint32_t cpus[TEAM_THREADS_MAX] = {0};
    uint32_t n = core_list(cpus);
    return cgroup_limit(n ? n : 1);
}

static void pin(pthread_t thread, uint32_t cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)pthread_setaffinity_np(thread, sizeof set, &set); /* refused: it runs unpinned */
}

static enum q_code members_start(struct team *t, struct q_err *e)
{
    for (uint32_t i = 1; i < t->n; i++) {
        struct member *m = &t->members[i];
        *m = (struct member){.team = t, .ith = i};
        int rc = pthread_create(&m->thread, NULL, member_main, m);
        if (rc != 0)
            return q_fail(e, Q_IO, "team: thread %u of %u: %s", i, t->n, strerror(rc));
        t->n_started = i;
    }
    return Q_OK;
}

static void team_pin(struct team *t, const uint32_t *cpus)
{
    t->pinned = sched_getaffinity(0, sizeof t->owner_cpus, &t->owner_cpus) == 0;
    if (!t->pinned)
        return;
    pin(pthread_self(), cpus[0]);
    for (uint32_t i = 1; i < t->n; i++)
        pin(t->members[i].thread, cpus[i]);
}

enum q_code team_new(struct team **out, uint32_t n_thread, bool want_pin, struct q_err *e)
{
    uint32_t cpus[TEAM_THREADS_MAX] = {0};
    *out = NULL;
    if (n_thread > TEAM_THREADS_MAX)
        return q_fail(e, Q_INVALID, "team: %u threads asked for, the limit is %u", n_thread,
                      TEAM_THREADS_MAX);
    uint32_t n_core = core_list(cpus), n_may = cgroup_limit(n_core ? n_core : 1);
    uint32_t n = n_thread ? n_thread : n_may;
    struct team *t = q_calloc(1, sizeof *t + n * sizeof *t->members);
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "team: no memory for %u threads", n);
    t->n = n;
    t->spin = n <= n_may;
    enum q_code rc = members_start(t, e);
    if (rc) {
        team_free(t);
        return rc;
    }
    if (want_pin && n > 1 && n <= n_core)
        team_pin(t, cpus);
    *out = t;
    return Q_OK;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    t->fn = NULL;
    gate_open(&t->start);
    for (uint32_t i = 1; i <= t->n_started; i++)
        pthread_join(t->members[i].thread, NULL);
    if (t->pinned)
        (void)sched_setaffinity(0, sizeof t->owner_cpus, &t->owner_cpus);
    q_free(t);
}
