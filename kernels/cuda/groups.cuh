/* SPDX-License-Identifier: Apache-2.0 */
/* groups - assignment of a layer's experts to the blocks of one launch: rows and matrix of each block (struct
 * groups, ops_moe.h). Private to kernels/cuda; read by the products, linear_sm90a.cu among them, and moe.cu.
 *
 * The number of rows of a group is known on the device only. A grid has enough blocks for every distribution of the
 * places over the groups; a block finds its rows by a scan of the groups' starts, and a block without rows ends at
 * once. */
#ifndef QUIRE_KERNELS_CUDA_GROUPS_CUH
#define QUIRE_KERNELS_CUDA_GROUPS_CUH
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/ops_moe.h"
}

struct linear_group {            /* rows of one group, and a tile of outputs */
    uint32_t group, row, end, o; /* row == end: no rows */
};

/* Tile number `tile` of all groups' tiles of n_row rows by n_o tiles of outputs: groups, then outputs, then rows. Each
 * warp computes it, 32 groups at a time. */
static __device__ __forceinline__ struct linear_group tile_at(const struct groups &g, uint32_t tile,
                                                              uint32_t n_row, uint32_t n_o = 1)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t before = 0; /* tiles of the groups before these 32 */
    for (uint32_t first = 0; first < g.n_group; first += WARP) {
        const uint32_t i = first + lane;
        const uint32_t begin = i < g.n_group ? g.starts[i] : 0;
        const uint32_t end = i < g.n_group ? g.starts[i + 1] : 0;
        const uint32_t mine = (end - begin + n_row - 1) / n_row;
        uint32_t upto = mine;
#pragma unroll
        for (unsigned n = 1; n < WARP; n *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, upto, n);
            upto += lane >= n ? other : 0;
        }
        const uint32_t has = __ballot_sync(ALL_LANES, (before + upto) * n_o > tile);
        if (has) {
            const uint32_t l = (uint32_t)__ffs((int)has) - 1;
            const uint32_t n = __shfl_sync(ALL_LANES, mine, l);
            const uint32_t rest = tile - (before + __shfl_sync(ALL_LANES, upto - mine, l)) * n_o;
            const struct linear_group found = {
                first + l, __shfl_sync(ALL_LANES, begin, l) + (n_o == 1 ? rest : rest % n) * n_row,
                __shfl_sync(ALL_LANES, end, l), n_o == 1 ? 0 : rest / n};
            return found;
        }
        before += __shfl_sync(ALL_LANES, upto, WARP - 1);
    }
    const struct linear_group none = {0, 0, 0, 0};
    return none;
}

/* A place's group; each thread computes it, by a search in the ascending starts. */
static __device__ __forceinline__ uint32_t group_at(const struct groups &g, uint32_t place)
{
    uint32_t low = 0, high = g.n_group;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (g.starts[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static __device__ __forceinline__ uint32_t row_of_x(const struct groups &g, uint32_t place)
{
    return g.rows ? g.rows[place] : place;
}

/* Maximum number of tiles of n_row rows for n places in n_group groups. */
static inline uint32_t tiles_max(uint32_t n, uint32_t n_group, uint32_t n_row)
{
    const uint32_t most = n / n_row + (n < n_group ? n : n_group);
    return most < n ? most : n;
}

#endif
