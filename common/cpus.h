/* SPDX-License-Identifier: Apache-2.0 */
/* cpus - the processors available to this process, the memory of their NUMA nodes, and threads that
 * leave the processors to others.
 *
 * One processor of each physical core in the affinity mask; the CPU quotas of the cgroups limit the
 * number of busy processors. On a machine with several NUMA nodes, memory can be placed on the
 * nodes of the processors in use. The topology comes from hwloc. Threads: one owner. */
#ifndef QUIRE_COMMON_CPUS_H
#define QUIRE_COMMON_CPUS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CPUS_MAX 256

struct cpus {
    uint32_t ids[CPUS_MAX]; /* by core */
    uint32_t n;             /* at least 1 */
    uint32_t n_may;         /* number allowed by the quotas, at least 1 */
    void *topology;         /* hwloc's; NULL: unknown */
};
void cpus_init(struct cpus *c);
void cpus_release(struct cpus *c);

/* Number of whole processors of the tightest quota from this process's cgroup up to the root
 * (version 1 and 2), at least 1; `n` without a lower quota. root: "", or a folder with files in the
 * kernel's format (tests). */
uint32_t cpus_quota(const char *root, uint32_t n);

enum cpus_memory {
    CPUS_FIRST_TOUCH, /* several nodes: a page is placed on the node of the thread that writes it
                       * first */
    CPUS_SPREAD,      /* several nodes: pages alternate between them */
};
/* Set the NUMA node of the n bytes at `at` (a multiple of the page size) for the first write: the
 * node of the first n_used processors, or `how` if they are on several nodes. The setting is a
 * preference: if the node is full, other nodes are used. Returns the number of nodes of these
 * processors; on a machine with one node it returns 1 and sets nothing. */
uint32_t cpus_place(const struct cpus *c, uint32_t n_used, void *at, size_t n,
                    enum cpus_memory how);
/* NUMA nodes of this machine; 1 if unknown. */
uint32_t cpus_nodes(const struct cpus *c);

#define CPUS_LATER_NICE 10
/* The calling thread runs from now on at a nice value CPUS_LATER_NICE above that of the process's
 * first thread: for long work of one request beside the steps of all, since a step ends with the
 * last of the worker's threads. Needs privileges to be undone. Threads: any but the first. */
void cpus_run_later(void);
/* For the loops of such work, about every 100 us. A nice value decides how much of a processor a
 * thread gets, not when: since Linux 6.6 a thread that wakes up may wait for the end of a slice of
 * another one, 3 to 5 ms, ten times as long as a step of a small model. Here it gets the processor
 * at once. Does nothing on threads that did not call cpus_run_later. */
void cpus_yield(void);

#endif
