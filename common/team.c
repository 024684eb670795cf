/* SPDX-License-Identifier: Apache-2.0 */
/* A `gate` is a counter that threads wait to change: they spin for a while, then sleep on it
 * with a futex. Three gates make a team: `start` (work is there), `done` (all others have
 * finished) and `meet` (a barrier inside the work). Everything is published by the release
 * increment of a gate and seen by its acquire load; the futex only frees the core of a waiting
 * thread.
 *
 * No wake-up is lost: the waiting thread increments n_sleep, then the kernel compares the word
 * again before the thread sleeps; the opening thread increments the word first and reads n_sleep
 * afterwards, both sequentially consistent. */
#include "common/team.h"
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/cpus.h"
#include "common/mem.h"

/* Work that follows work within a step comes within microseconds, the other threads of a barrier
 * arrive within one kernel; a futex round trip costs 5 to 50 us. The threads of an idle team sleep
 * after START_SPIN_US. */
#define START_SPIN_US 20
#define MEET_SPIN_US  100

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
    struct cpus cpus;
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

uint32_t team_phase(const struct team *t)
{
    return t ? atomic_load_explicit(&t->start.word, memory_order_relaxed) +
                   atomic_load_explicit(&t->meet.word, memory_order_relaxed)
             : 0;
}

struct barriers {
    struct team *team;
    uint32_t n;
    int64_t spent_us;
};

static void barriers_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct barriers *b = arg;
    (void)nth;
    team_barrier(b->team); /* all have started */
    const int64_t start = clock_us();
    for (uint32_t i = 0; i < b->n; i++)
        team_barrier(b->team);
    if (ith == 0)
        b->spent_us = clock_us() - start;
}

uint32_t team_size(const struct team *t)
{
    return t ? t->n : 1;
}

uint32_t team_default_threads(void)
{
    struct cpus c;
    cpus_init(&c);
    uint32_t n = c.n_may;
    cpus_release(&c);
    return n;
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

static void team_pin(struct team *t)
{
    t->pinned = sched_getaffinity(0, sizeof t->owner_cpus, &t->owner_cpus) == 0;
    if (!t->pinned)
        return;
    pin(pthread_self(), t->cpus.ids[0]);
    for (uint32_t i = 1; i < t->n; i++)
        pin(t->members[i].thread, t->cpus.ids[i]);
}

enum q_code team_new(struct team **out, uint32_t n_thread, bool want_pin, struct q_err *e)
{
    struct cpus cpus;
    *out = NULL;
    if (n_thread > TEAM_THREADS_MAX)
        return q_fail(e, Q_INVALID, "team: %u threads requested, the limit is %u", n_thread,
                      TEAM_THREADS_MAX);
    cpus_init(&cpus);
    uint32_t n = n_thread ? n_thread : cpus.n_may;
    struct team *t = q_calloc(1, sizeof *t + n * sizeof *t->members);
    if (!t) {
        cpus_release(&cpus);
        return q_fail(e, Q_NO_MEMORY, "team: out of memory for %u threads", n);
    }
    t->n = n;
    t->spin = n <= cpus.n_may;
    t->cpus = cpus;
    enum q_code rc = members_start(t, e);
    if (rc) {
        team_free(t);
        return rc;
    }
    if (want_pin && n > 1 && n <= cpus.n)
        team_pin(t);
    *out = t;
    return Q_OK;
}

uint32_t team_place_memory(const struct team *t, void *at, size_t n, enum cpus_memory how)
{
    if (!t)
        return 1;
    return cpus_place(&t->cpus, t->n <= t->cpus.n ? t->n : t->cpus.n, at, n, how);
}

uint32_t team_machine_nodes(const struct team *t)
{
    return t ? cpus_nodes(&t->cpus) : 1;
}

double team_barrier_us(struct team *t, uint32_t n_barrier)
{
    struct barriers b = {t, n_barrier, 0};
    team_run(t, barriers_run, &b);
    return n_barrier ? (double)b.spent_us / n_barrier : 0;
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
    cpus_release(&t->cpus);
    q_free(t);
}
