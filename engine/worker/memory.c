/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/memory.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/log.h"
#include "common/parse.h"

#define LINE_MAX_BYTES 4096
#define MIB            1048576.0
#define BLOCKS_MAX     (1u << 30) /* far beyond any memory */

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

/* Free bytes of one cgroup (version 2): its limit less what it holds and cannot drop. */
static uint64_t cgroup_free(const char *dir)
{
    char path[LINE_MAX_BYTES + 64];
    snprintf(path, sizeof path, "%s/memory.max", dir);
    uint64_t max = number_in(path, "", UINT64_MAX);
    if (max == UINT64_MAX) /* "max", or no such file */
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.current", dir);
    uint64_t current = number_in(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t cache = number_in(path, "inactive_file ", 0);
    current = current > cache ? current - cache : 0;
    return max > current ? max - current : 0;
}

/* The tightest of this process's cgroup and those above it. */
static uint64_t cgroups_free(void)
{
    char dir[LINE_MAX_BYTES + 32], line[LINE_MAX_BYTES];
    uint64_t free_bytes = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return free_bytes;
    const char *group = NULL;
    while (!group && fgets(line, sizeof line, f))
        if (!strncmp(line, "0::", 3))
            group = line + 3;
    fclose(f);
    if (!group)
        return free_bytes;
    line[strcspn(line, "\n")] = '\0';
    snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", group);
    for (char *slash; (slash = strrchr(dir, '/')) && strlen(dir) >= strlen("/sys/fs/cgroup");
         *slash = '\0') {
        uint64_t here = cgroup_free(dir);
        free_bytes = here < free_bytes ? here : free_bytes;
    }
    return free_bytes;
}

uint64_t memory_available(void)
{
    uint64_t machine_kib = number_in("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    uint64_t machine = machine_kib >= UINT64_MAX / 1024 ? UINT64_MAX : machine_kib * 1024;
    uint64_t group = cgroups_free();
    return machine < group ? machine : group;
}

static uint64_t default_blocks(uint64_t n_seq_block, const struct step_limits *l,
                               const struct memory_need *need, uint64_t available)
{
    uint64_t wanted = n_seq_block * l->max_num_seqs;
    double part = MEMORY_KV_PART * (double)available / (double)need->block_bytes;
    uint64_t n = (double)wanted > part ? (uint64_t)part : wanted;
    /* One whole sequence must fit, and may take twice the part when nothing else does. */
    if (n < n_seq_block && (double)n_seq_block <= 2 * part)
        n = n_seq_block;
    return n;
}

FALLIBLE memory_blocks(uint32_t *n_block, const struct worker_config *c,
                       const struct step_limits *l, const struct memory_need *need, struct q_err *e)
{
    uint64_t n_seq_block = ((uint64_t)l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    uint64_t available = memory_available();
    available = available > need->activation_bytes ? available - need->activation_bytes : 0;
    uint64_t n = c->n_block    ? c->n_block
                 : c->kv_bytes ? c->kv_bytes / need->block_bytes
                               : default_blocks(n_seq_block, l, need, available);
    if (n > BLOCKS_MAX)
        n = BLOCKS_MAX;
    if (n < n_seq_block)
        return q_fail(e, Q_NO_MEMORY,
                      "one sequence of max_model_len %u tokens needs %.1f MiB of KV cache, there "
                      "are %.1f MiB (%" PRIu64 " blocks); lower --max-model-len to %" PRIu64
                      " or give more memory",
                      l->max_model_len, (double)(n_seq_block * need->block_bytes) / MIB,
                      (double)(n * need->block_bytes) / MIB, n, n * STEP_BLOCK_TOKENS);
    log_info("memory: weights %.1f MiB, activations %.1f MiB, KV %.1f MiB in %" PRIu64 " blocks of "
             "%u tokens: %.1f sequences of %u tokens at once; %.0f MiB were free",
             (double)need->weight_bytes / MIB, (double)need->activation_bytes / MIB,
             (double)(n * need->block_bytes) / MIB, n, STEP_BLOCK_TOKENS,
             (double)n / (double)n_seq_block, l->max_model_len,
             available == UINT64_MAX ? 0.0 : (double)available / MIB);
    *n_block = (uint32_t)n;
    return Q_OK;
}
