/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/memory.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/log.h"
#include "common/parse.h"

#define LINE_MAX_BYTES 4096
#define MIB            1048576.0
/* 268 M tokens. The scheduler keeps some tens of bytes for each block, used or not. */
#define BLOCKS_MAX     (1u << 24)

/* The number after `key` in a file of "key value" lines (or the file's first number when key is
 * ""). */
static uint64_t number_in(const char *path, const char *key, uint64_t otherwise)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return otherwise;
    char line[LINE_MAX_BYTES];
    uint64_t value = otherwise;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, n)) {
            unsigned long long v;
            if (sscanf(line + n, "%llu", &v) == 1)
                value = v;
            break;
        }
    fclose(f);
    return value;
}

/* The kernel's files with limits and usage. A limit this large means no limit. */
struct cgroup_files {
    const char *mount;                 /* of the hierarchy, below the root */
    const char *limit, *used, *freely; /* file, file, and the key in memory.stat */
};
static const struct cgroup_files versions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "},
    {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
};
#define NO_LIMIT ((uint64_t)1 << 60)

/* Free bytes of one cgroup: its limit minus its memory that cannot be reclaimed. */
static uint64_t cgroup_free(const struct cgroup_files *v, const char *dir)
{
    char path[2 * LINE_MAX_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, v->limit);
    uint64_t max = number_in(path, "", UINT64_MAX);
    if (max >= NO_LIMIT) /* "max", or no such file */
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, v->used);
    uint64_t current = number_in(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t cache = number_in(path, v->freely, 0);
    current = current > cache ? current - cache : 0;
    return max > current ? max - current : 0;
}

/* The tightest of a cgroup and those above it. In a container the group's path is often the host's
 * and not there; the mount is then the container's own group. */
static uint64_t hierarchy_free(const char *root, const struct cgroup_files *v, const char *group)
{
    char dir[2 * LINE_MAX_BYTES];
    uint64_t free_bytes = UINT64_MAX;
    int n_mount = snprintf(dir, sizeof dir, "%s%s", root, v->mount);
    if (n_mount < 0 || n_mount >= LINE_MAX_BYTES)
        return free_bytes;
    snprintf(dir + n_mount, sizeof dir - (size_t)n_mount, "%s", group);
    for (char *slash; strlen(dir) >= (size_t)n_mount && (slash = strrchr(dir, '/')); *slash = 0) {
        uint64_t here = cgroup_free(v, dir);
        free_bytes = here < free_bytes ? here : free_bytes;
    }
    return free_bytes;
}

/* Is `memory` among the controllers of a line "7:cpu,memory:/group"? */
static bool has_memory(const char *controllers, const char *end)
{
    static const char name[] = "memory";
    const size_t n = sizeof name - 1;
    for (const char *p = controllers; p < end; p += strcspn(p, ",:") + 1)
        if (strcspn(p, ",:") == n && !strncmp(p, name, n))
            return true;
    return false;
}

uint64_t memory_cgroups_free(const char *root)
{
    char path[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
    uint64_t free_bytes = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return free_bytes;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const char *controllers = strchr(line, ':');
        const char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        bool second = !strncmp(line, "0::", 3);
        if (!second && !has_memory(controllers + 1, group))
            continue;
        uint64_t here = hierarchy_free(root, &versions[second], group + 1);
        free_bytes = here < free_bytes ? here : free_bytes;
    }
    fclose(f);
    return free_bytes;
}

uint64_t memory_available(void)
{
    uint64_t machine_kib = number_in("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    uint64_t machine = machine_kib >= UINT64_MAX / 1024 ? UINT64_MAX : machine_kib * 1024;
    uint64_t group = memory_cgroups_free("");
    return machine < group ? machine : group;
}

uint64_t memory_for_weights(void)
{
    const uint64_t here = memory_available(), group = memory_cgroups_free("");
    const uint64_t swap = number_in("/proc/meminfo", "SwapFree:", 0) * 1024;
    if (here == UINT64_MAX)
        return 0;
    return here == group ? here : here + swap < group ? here + swap : group;
}

uint64_t memory_resident(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long size, resident, shared;
    if (!f)
        return 0;
    int n = fscanf(f, "%llu %llu %llu", &size, &resident, &shared);
    fclose(f);
    return n == 3 && resident > shared ? (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static uint64_t blocks_of(uint32_t n_token)
{
    return ((uint64_t)n_token + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
}

/* Blocks in the remainder of `part` of the memory. */
static uint64_t blocks_in(const struct memory_need *need, double part)
{
    if (need->total_bytes == UINT64_MAX)
        return BLOCKS_MAX;
    double left = part * (double)need->total_bytes - (double)need->weight_bytes -
                  (double)need->activation_bytes - (double)need->step_bytes -
                  (double)need->states_bytes;
    double n = left > 0 ? left / (double)need->block_bytes : 0;
    return n < BLOCKS_MAX ? (uint64_t)n : BLOCKS_MAX;
}

static uint64_t default_blocks(uint64_t n_seq_block, const struct step_limits *l,
                               const struct memory_need *need)
{
    uint64_t wanted = n_seq_block * l->max_num_seqs, n = blocks_in(need, MEMORY_CPU_PART);
    if (n > wanted)
        n = wanted;
    if (n < n_seq_block && n_seq_block <= blocks_in(need, MEMORY_ONE_PART))
        n = n_seq_block;
    return n;
}

static FALLIBLE too_small(uint64_t n, uint64_t n_seq_block, const struct worker_config *c,
                          const struct step_limits *l, const struct memory_need *need,
                          struct q_err *e)
{
    char way[96], fits[64];
    double seq_mib = (double)(n_seq_block * need->block_bytes) / MIB;
    if (c->n_block)
        snprintf(way, sizeof way, "--num-gpu-blocks-override %" PRIu64, n_seq_block);
    else if (c->kv_bytes)
        snprintf(way, sizeof way, "--kv-cache-memory-bytes %" PRIu64,
                 n_seq_block * need->block_bytes + need->states_bytes);
    else
        snprintf(way, sizeof way, "raise --gpu-memory-utilization");
    if (n)
        snprintf(fits, sizeof fits, "--max-model-len %" PRIu64 ", ", n * STEP_BLOCK_TOKENS);
    return q_fail(e, Q_NO_MEMORY,
                  "KV cache: a sequence of max_model_len %u needs %.1f MiB, %.1f MiB are "
                  "available; possible remedies: %s%s, or a smaller --kv-cache-dtype",
                  l->max_model_len, seq_mib, (double)(n * need->block_bytes) / MIB, n ? fits : "",
                  way);
}

static void log_sum(uint64_t n, uint64_t n_seq_block, const struct worker_config *c,
                    const struct step_limits *l, const struct memory_need *need)
{
    double kv = (double)(n * need->block_bytes);
    log_info("memory: weights %.1f MiB, %s %.1f MiB%s, step buffers at most "
             "%.1f MiB, KV cache %.1f MiB%s: %" PRIu64 " tokens in %" PRIu64 " blocks of %u",
             (double)need->weight_bytes / MIB,
             need->on_device ? "other memory on the GPU" : "activations",
             (double)need->activation_bytes / MIB, need->on_device ? "" : " at most",
             (double)need->step_bytes / MIB, kv / MIB,
             need->on_device ? "" : ", allocated on demand", n * STEP_BLOCK_TOKENS, n,
             STEP_BLOCK_TOKENS);
    log_info("Maximum concurrency for %u tokens per request: %.2fx", l->max_model_len,
             (double)n / (double)n_seq_block);
    if (need->total_bytes == UINT64_MAX)
        return;
    double all =
        kv + (double)need->weight_bytes + (double)need->activation_bytes + (double)need->step_bytes;
    if (all > (double)need->total_bytes && !need->on_device)
        log_warning("memory: the total exceeds the %.1f MiB available to this process; the process "
                    "may be killed or start swapping when the KV cache fills: lower "
                    "--gpu-memory-utilization, --kv-cache-memory-bytes or --max-num-seqs",
                    (double)need->total_bytes / MIB);
    else if (!c->n_block && !c->kv_bytes)
        log_info(
            "memory: %.2f of the %.1f MiB available to this process (--gpu-memory-utilization)",
            all / (double)need->total_bytes, (double)need->total_bytes / MIB);
}

static uint64_t count_blocks(const struct worker_config *c, const struct step_limits *l,
                             const struct memory_need *need)
{
    uint64_t n;
    if (c->n_block)
        n = c->n_block;
    else if (c->kv_bytes)
        n = (c->kv_bytes - need->states_bytes) / need->block_bytes;
    else if (c->memory_part > 0)
        n = blocks_in(need, c->memory_part);
    else
        n = default_blocks(blocks_of(l->max_model_len), l, need);
    return n < BLOCKS_MAX ? n : BLOCKS_MAX;
}

/* Bytes that K, V and states have together; UINT64_MAX: not known. */
static uint64_t cache_bytes(const struct worker_config *c, const struct memory_need *need)
{
    const double part = c->memory_part > 0 ? c->memory_part : MEMORY_CPU_PART;
    if (c->kv_bytes && !c->n_block)
        return c->kv_bytes;
    if (c->n_block || need->total_bytes == UINT64_MAX)
        return UINT64_MAX;
    const double left = part * (double)need->total_bytes - (double)need->weight_bytes -
                        (double)need->activation_bytes - (double)need->step_bytes;
    return left > 0 ? (uint64_t)left : 0;
}

FALLIBLE memory_states(struct step_limits *l, const struct worker_config *c,
                       struct memory_need *need, struct q_err *e)
{
    const uint64_t wanted = 2 * (uint64_t)l->max_num_seqs;
    if (need->state_bytes == 0)
        return Q_OK;
    const uint64_t room = cache_bytes(c, need) / 2 / need->state_bytes;
    const uint32_t n = c->is_again ? c->n_state : (uint32_t)(room < wanted ? room : wanted);
    if (n == 0)
        return q_fail(
            e, Q_NO_MEMORY,
            "KV cache: the state of a sequence takes %.1f MiB, which is more than half of "
            "the memory there is for the cache: raise --gpu-memory-utilization or "
            "--kv-cache-memory-bytes",
            (double)need->state_bytes / MIB);
    if (n < l->max_num_seqs && !c->is_again)
        log_warning("memory: --max-num-seqs is %u instead of %u: the state of a sequence takes "
                    "%.1f MiB",
                    n, l->max_num_seqs, (double)need->state_bytes / MIB);
    l->max_num_seqs = n < l->max_num_seqs ? n : l->max_num_seqs;
    l->n_state = n;
    need->states_bytes = n * need->state_bytes;
    if (!c->is_again)
        log_info("memory: states of sequences %.1f MiB%s: %u of %.1f KiB, %u of "
                 "them for the prefix cache and preempted requests",
                 (double)need->states_bytes / MIB, need->on_device ? "" : ", allocated on demand",
                 n, (double)need->state_bytes / 1024, n - l->max_num_seqs);
    return Q_OK;
}

/* The same limits for sequences of n_block blocks, or of full_len tokens where that is less. */
static struct step_limits with_length(const struct step_limits *l, uint64_t n_block,
                                      uint32_t full_len)
{
    struct step_limits shorter = *l;
    const uint64_t n_token = n_block * STEP_BLOCK_TOKENS;
    shorter.max_model_len = n_token < full_len ? (uint32_t)n_token : full_len;
    shorter.known_max = l->known_max - l->max_model_len + shorter.max_model_len;
    return shorter;
}

bool memory_fit_length(struct step_limits *l, const struct worker_config *c,
                       const struct memory_need *need, memory_steps *steps, void *ctx)
{
    const uint32_t full_len = l->max_model_len;
    uint64_t fits = 0, least_not = blocks_of(full_len) + 1;
    while (least_not - fits > 1) {
        const uint64_t n = fits + (least_not - fits) / 2;
        const struct step_limits tried = with_length(l, n, full_len);
        struct memory_need of = *need;
        struct q_err too_large = Q_ERR_INIT;
        if ((!steps || steps(&of.step_bytes, &tried, ctx, &too_large) == Q_OK) &&
            count_blocks(c, &tried, &of) >= n)
            fits = n;
        else
            least_not = n;
    }
    if (fits == 0)
        return false; /* memory_blocks reports the reason */
    const bool shorter = fits < blocks_of(full_len);
    *l = with_length(l, fits, full_len);
    if (!c->is_again)
        log_info("--max-model-len auto: %u tokens%s", l->max_model_len,
                 shorter ? ", the limit of the KV cache; the model's own limit is higher"
                         : ", the model's own limit");
    return shorter;
}

FALLIBLE memory_blocks(uint32_t *n_block, const struct worker_config *c,
                       const struct step_limits *l, const struct memory_need *need, struct q_err *e)
{
    const uint64_t n_seq_block = blocks_of(l->max_model_len), n = count_blocks(c, l, need);
    if (n < n_seq_block)
        return too_small(n, n_seq_block, c, l, need, e);
    if (!c->is_again)
        log_sum(n, n_seq_block, c, l, need);
    *n_block = (uint32_t)n;
    return Q_OK;
}

static void log_swap(uint64_t n, uint64_t n_asked, const struct memory_need *need)
{
    double mib = (double)(n * need->block_bytes) / MIB;
    log_info("memory: swap space for preempted requests %.1f MiB%s: %" PRIu64 " blocks%s", mib,
             need->on_device ? "" : ", allocated on demand", n,
             n < n_asked ? "; less than --swap-space because of limited memory" : "");
}

uint32_t memory_swap_blocks(uint32_t n_block, const struct worker_config *c,
                            const struct step_limits *l, const struct memory_need *need)
{
    uint64_t wanted = blocks_of(l->max_model_len) * l->max_num_seqs;
    if (c->is_again)
        return c->n_swap_block;
    if (c->swap_bytes == 0 || n_block >= wanted) {
        log_info("memory: no swap space: %s",
                 c->swap_bytes ? "the KV cache has room for --max-num-seqs sequences"
                               : "--swap-space is 0");
        return 0;
    }
    uint64_t n = c->swap_bytes / need->block_bytes, all = blocks_in(need, MEMORY_SWAP_PART);
    if (n > wanted)
        n = wanted;
    if (n > BLOCKS_MAX)
        n = BLOCKS_MAX;
    const uint64_t beside = need->on_device ? 0 : n_block; /* of the same memory */
    uint64_t n_asked = n, left = all > beside ? all - beside : 0;
    if (n > left)
        n = left;
    log_swap(n, n_asked, need);
    return (uint32_t)n;
}
