/* SPDX-License-Identifier: Apache-2.0 */
/* team - a fixed set of threads that run one function together, the caller being thread 0.
 *
 * The compute threads of one worker. team_run starts fn(arg, ith, nth) on all of them and returns
 * when all are done; team_barrier synchronizes them inside. Waiting spins for a few microseconds
 * and then sleeps on a futex, so an idle worker uses no CPU. Threads are pinned (hwloc) one per
 * physical core if there are enough. Threads: one owner calls team_run; fn calls team_barrier. */
#ifndef QUIRE_COMMON_TEAM_H
#define QUIRE_COMMON_TEAM_H
#include <stdbool.h>
#include <stdint.h>
#include "common/cpus.h"
#include "common/err.h"

struct team;
typedef void team_fn(void *arg, uint32_t ith, uint32_t nth);

#define TEAM_THREADS_MAX CPUS_MAX

uint32_t team_default_threads(
    void); /* physical cores this process may use (cgroup quota and affinity counted) */
/* n_thread 0 = team_default_threads(). Errors: Q_INVALID (over TEAM_THREADS_MAX), Q_NO_MEMORY, Q_IO
 * (thread creation). */
FALLIBLE team_new(struct team **out, uint32_t n_thread, bool pin, struct q_err *e);
void team_free(struct team *t);
uint32_t team_size(const struct team *t);
void team_run(struct team *t, team_fn *fn, void *arg);
/* Barrier of all nth threads; writes before it are visible to all after it. t == NULL (a team of
 * one) returns at once. */
void team_barrier(struct team *t);
/* The number of barriers and runs so far: between two barriers it is the same in all threads inside
 * fn. It begins again after 2^32. t == NULL: 0. */
uint32_t team_phase(const struct team *t);
/* Duration of one barrier in microseconds if all threads arrive at the same time: the mean of
 * n_barrier. Called by the owner, outside team_run. */
double team_barrier_us(struct team *t, uint32_t n_barrier);

/* cpus_place for the team's processors. t == NULL: nothing is done, 1 node. */
uint32_t team_place_memory(const struct team *t, void *at, size_t n, enum cpus_memory how);
uint32_t team_machine_nodes(const struct team *t); /* NUMA nodes of the machine */

#endif
