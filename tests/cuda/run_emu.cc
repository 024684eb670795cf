/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_run of the program that is built on tests/emu: on host memory, done when it returns. */
#include "cuda_emu.h"
#include <cstdio>
#include <cstdlib>
extern "C" {
#include "kernels/ops/ops.h"
}
#define WORKSPACE_BYTES ((size_t)8 << 20)
#define GUARD_BYTES     ((size_t)64 << 10)

extern "C" void cuda_with_e4m3(bool there)
{
    emu_has_e4m3 = there;
}

typedef void launcher(const void *args, const struct kern_exec *x);

static size_t workspace_bytes = WORKSPACE_BYTES;
extern "C" void cuda_workspace(size_t bytes)
{
    workspace_bytes = bytes ? bytes : WORKSPACE_BYTES;
}

/* Before the workspace is what no kernel may write; behind it nothing is. */
static void check_guard(const unsigned char *guard)
{
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != 0xff) {
            fprintf(stderr, "a kernel wrote %zu bytes before its workspace\n", GUARD_BYTES - i);
            abort();
        }
}

static void run(launcher *launch, const void *args, size_t shared_max)
{
    const size_t bytes = (workspace_bytes + 255) / 256 * 256;
    unsigned char *guard = (unsigned char *)aligned_alloc(256, GUARD_BYTES + bytes);
    const size_t dirty = bytes < GUARD_BYTES ? bytes : GUARD_BYTES;
    /* what a kernel finds there is nothing it may read */
    memset(guard, 0xff, GUARD_BYTES + dirty);
    emu_shared_max = shared_max;
    struct kern_exec x = {};
    x.nth = 1;
    x.scratch = guard + GUARD_BYTES;
    x.scratch_bytes = workspace_bytes;
    launch(args, &x);
    check_guard(guard);
    free(guard);
}

extern "C" void cuda_run_sm90(launcher *launch, const void *args)
{
    run(launch, args, (size_t)227 << 10);
}

extern "C" void cuda_run(launcher *launch, const void *args)
{
    /* what a block of sm_86 may have, and of sm_90: some kernels are chosen by it */
    static unsigned n_run;
    run(launch, args, n_run++ % 2 ? (size_t)227 << 10 : (size_t)99 << 10);
}
