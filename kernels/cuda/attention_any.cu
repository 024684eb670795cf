/* SPDX-License-Identifier: Apache-2.0 */
/* Attention for the cases that attention.cu does not support: any head size up to 512, K and V also in f32 and f16,
 * slopes (ALiBi), and contexts that go both ways.
 * For tiny models and for comparison; not optimized.
 *
 * Shape: a warp a (row, head), 4 a block; lane l has columns l, l + 32, … of q and out. No shared memory.
 * Order: positions ascending, one at a time, online softmax; a score is a warp sum (lanes by halves) over d.
 *   It depends on the row's own context only.
 * Bytes: K and V of the context for each (row, head), from L2 at best. FLOP: 4 head_dim a (row, head) and
 *   position.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/attention.cuh"

#define ROWS 4u

static __device__ __forceinline__ float kv_value(const char *head, enum dtype kv_dtype, size_t i)
{
    if (kv_dtype == DT_I8)
        return (float)((const int8_t *)head)[i];
    if (kv_dtype == DT_F8_E4M3)
        return e4m3_value(((const uint8_t *)head)[i]);
    return load_as(head, kv_dtype, i);
}

static __device__ __forceinline__ float kv_scale(const char *head, const struct attention_args &a,
                                                 uint32_t c)
{
    return ((const float *)(head + (size_t)KERN_BLOCK * a.head_dim))[c % KERN_BLOCK];
}

struct any_row {
    const uint32_t *blocks;
    uint32_t kv_head, head, pos, end; /* end: of the context */
    size_t to;                        /* element of out */
};

/* Finds the sequence of a row of the batch. */
static __device__ __forceinline__ bool any_find(struct any_row *r, const struct attention_args &a,
                                                uint32_t row, uint32_t head)
{
    for (uint32_t i = 0; i < a.n_seq; i++) {
        const struct attention_seq s = a.seqs[i];
        if (row < s.row || row >= s.row + s.n_query)
            continue;
        r->blocks = s.blocks;
        r->kv_head = head / (a.n_head / a.n_kv_head);
        r->head = head;
        r->pos = s.start + row - s.row;
        r->end = s.start + (a.both_ways ? s.n_query : row - s.row + 1);
        if (a.both_ways && a.window && a.window < r->end - r->pos)
            r->end = r->pos + a.window;
        r->to = row * a.out_stride + (size_t)head * a.head_dim;
        return true;
    }
    return false;
}

/* COLUMNS: of a lane, the head's elements / 32. */
template <unsigned COLUMNS>
static __device__ __forceinline__ void any_attend(const struct any_row &r, const float *q,
                                                  const struct attention_args &a)
{
    const uint32_t lane = threadIdx.x % WARP;
    const size_t head_bytes = cuda_kv_head_bytes(a.kv_dtype, a.head_dim);
    float of_q[COLUMNS], acc[COLUMNS], m = NONE, l = 0;
    for (uint32_t i = 0; i < COLUMNS; i++) {
        of_q[i] = lane + i * WARP < a.head_dim ? q[lane + i * WARP] : 0;
        acc[i] = 0;
    }
    const int from = context_from(a, (int)r.pos);
    for (uint32_t c = from > 0 ? (uint32_t)from : 0; c < r.end; c++) {
        const size_t block = (size_t)r.blocks[c / KERN_BLOCK] * a.n_kv_head + r.kv_head;
        const char *k = (const char *)a.k_cache + block * head_bytes;
        const char *v = (const char *)a.v_cache + block * head_bytes;
        const size_t at = (size_t)(c % KERN_BLOCK) * a.head_dim + lane;
        float s = 0;
        for (uint32_t i = 0; i < COLUMNS; i++)
            if (lane + i * WARP < a.head_dim)
                s = fmaf(of_q[i], kv_value(k, a.kv_dtype, at + i * WARP), s);
        s = warp_sum(s) * (a.kv_dtype == DT_I8 ? kv_scale(k, a, c) : 1) * a.scale;
        if (a.slopes)
            s = fmaf(-a.slopes[r.head], c > r.pos ? (float)(c - r.pos) : (float)(r.pos - c), s);
        if (a.soft_cap > 0)
            s = a.soft_cap * tanhf(s / a.soft_cap);
        const float most = s > m ? s : m, factor = m == most ? 1 : expf(m - most);
        const float p = expf(s - most), pv = p * (a.kv_dtype == DT_I8 ? kv_scale(v, a, c) : 1);
        l = l * factor + p;
        m = most;
        for (uint32_t i = 0; i < COLUMNS; i++)
            if (lane + i * WARP < a.head_dim)
                acc[i] = fmaf(pv, kv_value(v, a.kv_dtype, at + i * WARP), acc[i] * factor);
    }
    if (a.sinks)
        l += expf(a.sinks[r.head] - m);
    for (uint32_t i = 0; i < COLUMNS; i++)
        if (lane + i * WARP < a.head_dim)
            store_as(a.out, a.out_dtype, r.to + lane + i * WARP, acc[i] * (1.0f / l));
}

template <unsigned COLUMNS>
static __global__ void __launch_bounds__(ROWS *WARP)
    attention_any_kernel(const struct attention_args a)
{
    await_inputs();
    const size_t i = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP;
    const uint32_t row = (uint32_t)(i / a.n_head), head = (uint32_t)(i % a.n_head);
    struct any_row r;
    if (row < a.n_row && any_find(&r, a, row, head))
        any_attend<COLUMNS>(r, a.q + row * a.q_stride + (size_t)head * a.head_dim, a);
}

void attention_any_launch(const struct attention_args *a, const struct kern_exec *x)
{
    const dim3 grid(div_up((size_t)a->n_row * a->n_head, ROWS));
    if (a->head_dim <= 256)
        launch(attention_any_kernel<8>, grid, ROWS * WARP, 0, x, *a);
    else
        launch(attention_any_kernel<16>, grid, ROWS * WARP, 0, x, *a);
}
