/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cpus.h"
#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CGROUP_MAX 4096 /* bytes of a cgroup path */

/* Without a topology every allowed processor counts as a core. */
static void list_cores(struct cpus *c, const cpu_set_t *allowed)
{
    const int n_core = c->topology ? hwloc_get_nbobjs_by_type(c->topology, HWLOC_OBJ_CORE) : 0;
    for (int i = 0; i < n_core && c->n < CPUS_MAX; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(c->topology, HWLOC_OBJ_CORE, (unsigned)i);
        int cpu = -1;
        do
            cpu = hwloc_bitmap_next(core->cpuset, cpu);
        while (cpu >= 0 && !(cpu < CPU_SETSIZE && CPU_ISSET(cpu, allowed)));
        if (cpu >= 0)
            c->ids[c->n++] = (uint32_t)cpu;
    }
    for (uint32_t cpu = 0; c->n == 0 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed))
            c->ids[c->n++] = cpu;
    if (c->n == 0)
        c->n = 1;
}

/* Caches are not queried, because that reads many files. Without /sys (a plain chroot) hwloc prints
 * an error and detects nothing, unless its variables describe the machine. */
static hwloc_topology_t load_topology(void)
{
    hwloc_topology_t t;
    bool is_described = !access("/sys/devices/system/cpu", F_OK) ||
                        !access("/sys/bus/cpu/devices", F_OK) || getenv("HWLOC_SYNTHETIC") ||
                        getenv("HWLOC_XMLFILE");
    if (!is_described || hwloc_topology_init(&t) != 0)
        return NULL;
    hwloc_topology_set_cache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_icache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    if (hwloc_topology_load(t) == 0)
        return t;
    hwloc_topology_destroy(t);
    return NULL;
}

void cpus_init(struct cpus *c)
{
    cpu_set_t allowed;
    *c = (struct cpus){.topology = load_topology()};
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        CPU_ZERO(&allowed);
    list_cores(c, &allowed);
    c->n_may = cpus_quota("", c->n);
}

void cpus_release(struct cpus *c)
{
    if (c->topology)
        hwloc_topology_destroy(c->topology);
    *c = (struct cpus){.n = 0};
}

/* ---- quotas ---- */

/* Read up to two numbers at the beginning of a file. Returns their number. */
static int numbers_in(const char *dir, const char *file, long long out[2])
{
    char path[2 * CGROUP_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    int n = f ? fscanf(f, "%lld %lld", &out[0], &out[1]) : 0;
    if (f)
        fclose(f);
    return n;
}

/* The quota of one group; "max" and -1 are no limit. */
static uint32_t group_quota(const char *dir, bool second, uint32_t n)
{
    long long q[2] = {0, 0}, period[2] = {0, 0};
    if (second) {
        if (numbers_in(dir, "cpu.max", q) != 2)
            return n;
    } else if (numbers_in(dir, "cpu.cfs_quota_us", q) == 1 &&
               numbers_in(dir, "cpu.cfs_period_us", period) == 1) {
        q[1] = period[0];
    }
    if (q[0] <= 0 || q[1] <= 0 || q[0] / q[1] >= n)
        return n;
    return q[0] / q[1] ? (uint32_t)(q[0] / q[1]) : 1;
}

/* The quota of a group and its ancestors. In a container the path is often that of the host and
 * does not exist; then the mount is the container's own group. */
static uint32_t hierarchy_quota(const char *root, bool second, const char *group, uint32_t n)
{
    char dir[2 * CGROUP_MAX];
    int n_mount = snprintf(dir, sizeof dir, "%s/sys/fs/cgroup%s", root, second ? "" : "/cpu");
    if (n_mount < 0 || n_mount >= CGROUP_MAX)
        return n;
    snprintf(dir + n_mount, sizeof dir - (size_t)n_mount, "%s", group);
    for (char *slash; strlen(dir) >= (size_t)n_mount && (slash = strrchr(dir, '/')); *slash = 0)
        n = group_quota(dir, second, n);
    return n;
}

/* Is `cpu` among the controllers of a line "7:cpu,cpuacct:/group"? */
static bool has_cpu(const char *controllers, const char *end)
{
    for (const char *p = controllers; p < end; p += strcspn(p, ",:") + 1)
        if (strcspn(p, ",:") == 3 && !strncmp(p, "cpu", 3))
            return true;
    return false;
}

uint32_t cpus_quota(const char *root, uint32_t n)
{
    char path[CGROUP_MAX], line[CGROUP_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const char *controllers = strchr(line, ':');
        const char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        const bool second = !strncmp(line, "0::", 3);
        if (group && (second || has_cpu(controllers + 1, group)))
            n = hierarchy_quota(root, second, group + 1, n);
    }
    if (f)
        fclose(f);
    return n;
}

/* ---- memory ---- */

uint32_t cpus_nodes(const struct cpus *c)
{
    int n = c->topology ? hwloc_get_nbobjs_by_type(c->topology, HWLOC_OBJ_NUMANODE) : 1;
    return n > 1 ? (uint32_t)n : 1;
}

uint32_t cpus_place(const struct cpus *c, uint32_t n_used, void *at, size_t n, enum cpus_memory how)
{
    hwloc_bitmap_t cpus, nodes;
    int n_node = 1;
    if (cpus_nodes(c) == 1)
        return 1;
    cpus = hwloc_bitmap_alloc();
    nodes = hwloc_bitmap_alloc();
    if (cpus && nodes) {
        for (uint32_t i = 0; i < n_used && i < c->n; i++)
            hwloc_bitmap_set(cpus, c->ids[i]);
        hwloc_cpuset_to_nodeset(c->topology, cpus, nodes);
        n_node = hwloc_bitmap_weight(nodes);
        const hwloc_membind_policy_t policy = n_node == 1          ? HWLOC_MEMBIND_BIND
                                              : how == CPUS_SPREAD ? HWLOC_MEMBIND_INTERLEAVE
                                                                   : HWLOC_MEMBIND_FIRSTTOUCH;
        if (n)
            (void)hwloc_set_area_membind(c->topology, at, n, nodes, policy,
                                         HWLOC_MEMBIND_BYNODESET);
    }
    hwloc_bitmap_free(cpus);
    hwloc_bitmap_free(nodes);
    return n_node > 0 ? (uint32_t)n_node : 1;
}

/* ---- work at a low priority ---- */

static _Thread_local bool runs_later;

/* Linux has a nice value for each thread; that of a process is its first thread's. */
void cpus_run_later(void)
{
    const int nice = getpriority(PRIO_PROCESS, (id_t)getpid()) + CPUS_LATER_NICE;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
    runs_later = true;
}

void cpus_yield(void)
{
    if (runs_later)
        (void)sched_yield();
}
