/* SPDX-License-Identifier: Apache-2.0 */
/* cpus - the processors this process may compute on, and the memory that is near them.
 *
 * One processor of each physical core, of those that the affinity mask allows; how many of them are
 * to be kept busy is what the CPU quotas of the cgroups grant besides. Where the machine has more
 * than one NUMA node, memory can be had from the nodes of the processors in use. The topology is
 * hwloc's. Threads: one owner. */
#ifndef QUIRE_COMMON_CPUS_H
#define QUIRE_COMMON_CPUS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CPUS_MAX 256

struct cpus {
    uint32_t ids[CPUS_MAX]; /* by core */
    uint32_t n;             /* at least 1 */
    uint32_t n_may;         /* of them, by the quotas; at least 1 */
    void *topology;         /* hwloc's; NULL: nothing is known of it */
};
void cpus_init(struct cpus *c);
void cpus_release(struct cpus *c);

/* The whole processors that the tightest quota on the way from this process's cgroup up to the root
 * grants (version 1 and 2), at least 1; `n` where none grants less.
 * root: "", or a folder with files like the kernel's. */
uint32_t cpus_quota(const char *root, uint32_t n);

enum cpus_memory {
    CPUS_FIRST_TOUCH, /* several nodes: a page comes from that of the thread that writes it first */
    CPUS_SPREAD,      /* several nodes: pages in turn from all of them */
};
/* Where the pages of n bytes at `at` (a multiple of the page size) are to come from when they are
 * written: the node of the first n_used processors, or as `how` says when those are of several. A
 * wish: a node that is full is helped out by others. Returns the number of nodes that those
 * processors are of; on a machine of one node that is 1 and nothing is asked for. */
uint32_t cpus_place(const struct cpus *c, uint32_t n_used, void *at, size_t n,
                    enum cpus_memory how);
/* NUMA nodes of this machine; 1 when nobody knows. */
uint32_t cpus_nodes(const struct cpus *c);

#endif
