/* SPDX-License-Identifier: Apache-2.0 */
/* groups - which rows of which matrix a block multiplies, when one launch has all experts of a layer
 * (struct groups, ops_moe.h). Private to kernels/cuda; read by linear.cu, linear_tiles.cu,
 * linear_w4.cu and moe.cu.
 *
 * How many rows a group has is known on the device only. A grid has room for every way in which so
 * many places can fall into groups; a block finds its own by a scan over where groups start, and one
 * that finds none ends at once. */
#ifndef QUIRE_KERNELS_CUDA_GROUPS_CUH
#define QUIRE_KERNELS_CUDA_GROUPS_CUH
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/ops_moe.h"
}

struct linear_group {         /* rows of one group */
    uint32_t group, row, end; /* row == end: there is none */
};

/* Tile number `tile` of all groups' tiles of n_row rows, by each warp for itself, 32 groups a time. */
static __device__ __forceinline__ struct linear_group tile_at(const struct groups &g, uint32_t tile,
                                                              uint32_t n_row)
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
        const uint32_t has = __ballot_sync(ALL_LANES, before + upto > tile);
        if (has) {
            const uint32_t l = (uint32_t)__ffs((int)has) - 1;
            const uint32_t from = before + __shfl_sync(ALL_LANES, upto - mine, l);
            const struct linear_group found = {
                first + l, __shfl_sync(ALL_LANES, begin, l) + (tile - from) * n_row,
                __shfl_sync(ALL_LANES, end, l)};
            return found;
        }
        before += __shfl_sync(ALL_LANES, upto, WARP - 1);
    }
    const struct linear_group none = {0, 0, 0};
    return none;
}

/* A place's group, by each thread for itself: starts ascend. */
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

/* Tiles of n_row rows that n places in so many groups can come to. */
static inline uint32_t tiles_max(uint32_t n, uint32_t n_group, uint32_t n_row)
{
    const uint32_t most = n / n_row + (n < n_group ? n : n_group);
    return most < n ? most : n;
}

#endif
