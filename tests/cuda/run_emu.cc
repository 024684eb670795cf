/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_run of the program that is built on tests/emu: on host memory, done when it returns. */
#include "cuda_emu.h"
#include <cstdlib>
extern "C" {
#include "kernels/ops.h"
}
#define WORKSPACE_BYTES ((size_t)8 << 20)

extern "C" void cuda_with_e4m3(bool there)
{
    emu_has_e4m3 = there;
}

typedef void launcher(const void *args, const struct kern_exec *x);

static void run(launcher *launch, const void *args, size_t shared_max)
{
    static void *workspace;
    if (!workspace)
        workspace = aligned_alloc(256, WORKSPACE_BYTES);
    memset(workspace, 0xff, 1 << 16); /* what a kernel finds there is nothing it may read */
    emu_shared_max = shared_max;
    struct kern_exec x = {};
    x.nth = 1;
    x.scratch = workspace;
    x.scratch_bytes = WORKSPACE_BYTES;
    launch(args, &x);
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
