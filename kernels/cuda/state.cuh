/* SPDX-License-Identifier: Apache-2.0 */
/* state - what the kernels of operations with states (ops_state.h) have in common.
 *
 * A block computes some columns of one sequence, of all its parts in order, so nothing is handed from block to
 * block. blockIdx.x is a part: the block of a sequence's first part has the sequence, the blocks of its other parts
 * and of those that pad end at once. So the grid depends on counts of the host alone, and a recorded launch serves
 * any parts. */
#ifndef QUIRE_KERNELS_CUDA_STATE_CUH
#define QUIRE_KERNELS_CUDA_STATE_CUH
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/ops_state.h"
}

struct state_sequence {
    uint32_t part, end;   /* its parts: numbers part … end - 1 */
    uint32_t first, last; /* its rows: first … last - 1 */
};

/* Does part i go on where the part before it ends? */
static __device__ __forceinline__ bool state_follows(const struct state_rows &s, uint32_t i)
{
    return i && i < s.n_part && s.parts[i].n_row && s.parts[i].from == s.parts[i].state &&
           s.parts[i - 1].state == s.parts[i].state;
}

/* The sequence that this block computes; false: none. */
static __device__ __forceinline__ bool state_sequence_of(struct state_sequence *q,
                                                         const struct state_rows &s)
{
    const struct state_part *part = s.parts + blockIdx.x;
    if (part->n_row == 0 || state_follows(s, blockIdx.x))
        return false;
    q->part = blockIdx.x;
    q->first = q->last = part->row;
    for (q->end = q->part; q->end == q->part || state_follows(s, q->end); q->end++)
        q->last += s.parts[q->end].n_row;
    return true;
}

/* A column of a state, one a thread of the first warp: N floats in registers, or, for any number of them, in shared
 * memory, where the warp's columns lie side by side. */
template <unsigned N> struct state_column {
    float kept[N];
    __device__ __forceinline__ explicit state_column(float *)
    {
    }
    __device__ __forceinline__ float &operator[](uint32_t i)
    {
        return kept[i];
    }
};
template <> struct state_column<0> {
    float *kept;
    __device__ __forceinline__ explicit state_column(float *shared)
        : kept(shared + threadIdx.x % WARP)
    {
    }
    __device__ __forceinline__ float &operator[](uint32_t i)
    {
        return kept[i * WARP];
    }
};

struct state_place { /* of a column in a row of the pool */
    size_t at;       /* of its first element */
    size_t stride;   /* to the next one */
    uint32_t n;      /* elements; N where the column has that many registers */
    bool is_there;   /* columns beyond the last one are zeros and are not written */
};

template <unsigned N>
static __device__ __forceinline__ void state_load(state_column<N> &s, const struct state_rows &rows,
                                                  uint32_t from, const struct state_place &p)
{
    const float *x = rows.pool + p.at;
    if (from != KERN_STATE_ZERO)
        x += from * rows.stride;
    const bool reads = p.is_there && from != KERN_STATE_ZERO;
    const uint32_t n = N ? N : p.n;
#pragma unroll(N ? N : 8)
    for (uint32_t i = 0; i < n; i++)
        s[i] = reads ? x[i * p.stride] : 0;
}

template <unsigned N>
static __device__ __forceinline__ void state_store(state_column<N> &s,
                                                   const struct state_rows &rows, uint32_t to,
                                                   const struct state_place &p)
{
    float *x = rows.pool + to * rows.stride + p.at;
    const uint32_t n = N ? N : p.n;
    if (!p.is_there)
        return;
#pragma unroll(N ? N : 8)
    for (uint32_t i = 0; i < n; i++)
        x[i * p.stride] = s[i];
}

/* What goes over a sequence's rows with a column: its parts' ends, where snapshots are taken. */
struct state_cursor {
    uint32_t part, stop; /* the part of the next row, and the row behind it */
};
static __device__ __forceinline__ struct state_cursor
state_cursor_at(const struct state_rows &rows, const struct state_sequence &q)
{
    return {q.part, q.first + rows.parts[q.part].n_row};
}
/* Behind `row`, which was computed. */
template <unsigned N>
static __device__ __forceinline__ void
state_pass(struct state_cursor *at, state_column<N> &s, const struct state_rows &rows,
           const struct state_sequence &q, uint32_t row, const struct state_place &p)
{
    if (row + 1 != at->stop)
        return;
    const uint32_t to = rows.parts[at->part].to;
    if (to != KERN_STATE_NONE)
        state_store(s, rows, to, p);
    if (++at->part < q.end)
        at->stop += rows.parts[at->part].n_row;
}

#endif
