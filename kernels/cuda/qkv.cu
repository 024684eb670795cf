/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on heads between the matrix product and attention: rope, kv_store, and qkv_epilogue (head norm + rope
 * + kv_store in one launch).
 *
 * Shape: a warp a head, 4 heads a block of 128 threads; lane l has columns l, l + 32, … A head stays in the
 *   warp's shared memory between the steps, so each element is read and written once.
 *   Shared (qkv_epilogue): [4 warps][256] floats = 4 KiB; for heads of more elements [4][512], 8 KiB.
 * Order: the head norm's sum is one lane's columns ascending, one fma each, from +0, then lanes by halves;
 *   everything else has no sum. int8 of K and V: kernels/ops/int8.h, the bits of ref/kv_store.c.
 * Bytes of qkv_epilogue a column: q 4 + 4; k 4 + 4 + the cache's element; v 4 (normed 4 + 4) + the cache's
 *   element.
 *   Limit: bytes / bandwidth.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/layout.h"

#define HEADS 4u /* of a block */

template <unsigned DIM> struct qkv_shared {
    float head[HEADS][DIM]; /* DIM: of the largest head */
};

/* One head to its place in the cache. Lanes have columns l, l + 32, … of v. */
static __device__ __forceinline__ void store_head(void *cache, enum dtype kv_dtype, size_t head,
                                                  uint32_t slot, const float *v, uint32_t head_dim)
{
    char *base = (char *)cache + head * cuda_kv_head_bytes(kv_dtype, head_dim);
    const uint32_t lane = threadIdx.x % WARP;
    const size_t at = (size_t)(slot % KERN_BLOCK) * head_dim;
    if (kv_dtype == DT_I8) {
        float most = 0;
        for (uint32_t d = lane; d < head_dim; d += WARP)
            most = most_of(fabsf(v[d]), most);
        const struct int8_scale s = int8_scale_for(warp_most(most));
        for (uint32_t d = lane; d < head_dim; d += WARP)
            ((int8_t *)base)[at + d] = int8_of(v[d], s.inverse);
        if (lane == 0)
            ((float *)(base + (size_t)KERN_BLOCK * head_dim))[slot % KERN_BLOCK] = s.scale;
        return;
    }
    for (uint32_t d = lane; d < head_dim; d += WARP) {
        if (kv_dtype == DT_F8_E4M3)
            ((uint8_t *)base)[at + d] = e4m3_of(v[d]);
        else
            store_as(base, kv_dtype, at + d, v[d]);
    }
}

/* The pair j of a head: elements *p and *q of it. */
static __device__ __forceinline__ void rotate_pair(float *head, const float *cos_sin, uint32_t j,
                                                   uint32_t half, int interleaved)
{
    float *p = interleaved ? head + 2 * j : head + j;
    float *q = interleaved ? head + 2 * j + 1 : head + j + half;
    const float c = cos_sin[2 * j], s = cos_sin[2 * j + 1], u = *p, v = *q;
    *p = u * c - v * s;
    *q = v * c + u * s;
}

/* This warp's head of all heads in the launch; >= n: none. */
static __device__ __forceinline__ size_t my_head(void)
{
    return (size_t)blockIdx.x * HEADS + threadIdx.x / WARP;
}

static __global__ void __launch_bounds__(HEADS *WARP) rope_kernel(const struct rope_args a)
{
    await_inputs();
    const size_t i = my_head();
    if (i >= (size_t)a.n_row * a.n_head)
        return;
    const size_t row = i / a.n_head, head = i % a.n_head;
    const float *cos_sin = a.table + (size_t)a.pos[row] * a.n_rot;
    for (uint32_t j = threadIdx.x % WARP; j < a.n_rot / 2; j += WARP)
        rotate_pair(a.x + row * a.x_stride + head * a.head_dim, cos_sin, j, a.n_rot / 2,
                    a.interleaved);
}

extern "C" void rope_cuda(const struct rope_args *a, const struct kern_exec *x)
{
    const size_t n = (size_t)a->n_row * a->n_head;
    if (n)
        launch(rope_kernel, dim3(div_up(n, HEADS)), HEADS * WARP, 0, x, *a);
}

static __global__ void __launch_bounds__(HEADS *WARP) kv_store_kernel(const struct kv_store_args a)
{
    await_inputs();
    const size_t i = my_head();
    if (i >= (size_t)a.n_row * a.n_kv_head)
        return;
    const size_t row = i / a.n_kv_head, head = i % a.n_kv_head;
    const uint32_t slot = a.slot[row];
    if (slot == KERN_NO_SLOT)
        return;
    const size_t at = (size_t)(slot / KERN_BLOCK) * a.n_kv_head + head;
    store_head(a.k_cache, a.kv_dtype, at, slot, a.k + row * a.k_stride + head * a.head_dim,
               a.head_dim);
    store_head(a.v_cache, a.kv_dtype, at, slot, a.v + row * a.v_stride + head * a.head_dim,
               a.head_dim);
}

extern "C" void kv_store_cuda(const struct kv_store_args *a, const struct kern_exec *x)
{
    const size_t n = (size_t)a->n_row * a->n_kv_head;
    if (n)
        launch(kv_store_kernel, dim3(div_up(n, HEADS)), HEADS * WARP, 0, x, *a);
}

/* head = rms_norm(head) * w, in place, in shared memory. */
static __device__ __forceinline__ void norm_head(float *head, const float *w, uint32_t n, float eps)
{
    const uint32_t lane = threadIdx.x % WARP;
    float sum = 0;
    for (uint32_t d = lane; d < n; d += WARP)
        sum = fmaf(head[d], head[d], sum);
    const float r = 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
    for (uint32_t d = lane; d < n; d += WARP)
        head[d] = head[d] * r * w[d];
}

template <unsigned DIM>
static __global__ void __launch_bounds__(HEADS *WARP)
    qkv_epilogue_kernel(const struct qkv_epilogue_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct qkv_shared<DIM>);
    const uint32_t n_head = a.n_head + 2 * a.n_kv_head, lane = threadIdx.x % WARP;
    const size_t i = my_head();
    if (i >= (size_t)a.n_row * n_head)
        return;
    const size_t row = i / n_head, h = i % n_head;
    float *x = a.x + row * a.x_stride + h * a.head_dim, *head = s.head[threadIdx.x / WARP];
    const bool is_q = h < a.n_head, is_v = h >= a.n_head + a.n_kv_head;
    for (uint32_t d = lane; d < a.head_dim; d += WARP)
        head[d] = x[d];
    __syncwarp();
    const float *norm = is_q ? a.q_norm : is_v ? a.v_norm : a.k_norm;
    if (!is_v || norm) {
        if (norm)
            norm_head(head, norm, a.head_dim, a.eps);
        __syncwarp();
        const uint32_t n_pair = is_v ? 0 : a.n_rot / 2;
        const float *cos_sin = n_pair ? a.table + (size_t)a.pos[row] * a.n_rot : nullptr;
        for (uint32_t j = lane; j < n_pair; j += WARP)
            rotate_pair(head, cos_sin, j, n_pair, a.interleaved);
        __syncwarp();
        for (uint32_t d = lane; d < a.head_dim; d += WARP)
            x[d] = head[d];
    }
    if (is_q || a.slot[row] == KERN_NO_SLOT)
        return;
    const size_t kv_head = h - a.n_head - (is_v ? a.n_kv_head : 0);
    store_head(is_v ? a.v_cache : a.k_cache, a.kv_dtype,
               (size_t)(a.slot[row] / KERN_BLOCK) * a.n_kv_head + kv_head, a.slot[row], head,
               a.head_dim);
}

extern "C" void qkv_epilogue_cuda(const struct qkv_epilogue_args *a, const struct kern_exec *x)
{
    const size_t n = (size_t)a->n_row * (a->n_head + 2 * a->n_kv_head);
    if (n && a->head_dim <= 256)
        launch(qkv_epilogue_kernel<256>, dim3(div_up(n, HEADS)), HEADS * WARP,
               sizeof(struct qkv_shared<256>), x, *a);
    else if (n)
        launch(qkv_epilogue_kernel<KERN_DEVICE_HEAD_MAX>, dim3(div_up(n, HEADS)), HEADS * WARP,
               sizeof(struct qkv_shared<KERN_DEVICE_HEAD_MAX>), x, *a);
}
