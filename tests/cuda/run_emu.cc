/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_run of the program that is built on tests/emu: on host memory, done when it returns. */
#include "cuda_emu.h"
#include <cstdlib>
extern "C" {
#include "kernels/ops.h"
}
#define WORKSPACE_BYTES ((size_t)8 << 20)

extern "C" void cuda_run(void (*launcher)(const void *args, const struct kern_exec *x),
                         const void *args)
{
    static void *workspace;
    if (!workspace)
        workspace = aligned_alloc(256, WORKSPACE_BYTES);
    memset(workspace, 0xff, 1 << 16); /* what a kernel finds there is nothing it may read */
    struct kern_exec x = {};
    x.nth = 1;
    x.scratch = workspace;
    x.scratch_bytes = WORKSPACE_BYTES;
    launcher(args, &x);
}
