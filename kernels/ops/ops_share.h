/* SPDX-License-Identifier: Apache-2.0 */
/* ops_share - what threads know of one another's panels of a product (kern_exec.shares;
 * tiling/share.h has its use). Zeros to begin with. Threads: any. */
#ifndef QUIRE_KERNELS_OPS_OPS_SHARE_H
#define QUIRE_KERNELS_OPS_OPS_SHARE_H
#include <stdint.h>

struct kern_share {
    _Alignas(64) _Atomic uint64_t word; /* no two on a cache line */
};

#endif
