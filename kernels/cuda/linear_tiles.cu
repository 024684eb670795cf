/* SPDX-License-Identifier: Apache-2.0 */
/* Products of rows by matrices with tensor cores (mma.sync): bf16, f16, int8, e4m3. Fragments, the order of a sum
 * and the epilogue: linear.cuh. Choice of the kernel: linear.cu.
 *
 * few: up to 16 rows. The time is that of reading W, so W is loaded directly from device memory to registers, with
 *   loads in flight from the first block to the last; the first loads are issued before the previous kernel has
 *   ended.
 *   Shape: a block of 8 warps has 32 outputs x 8 or 16 rows. Warp w takes segments w, w + 8, … of K, four
 *     blocks of 64 bytes of 32 rows of W in flight (8 KiB a warp; two where registers are short). A thread
 *     adds the segments' sums of its outputs, ascending. Grid: n_out / 32.
 *   Shared: sums [32 segments, of 16 rows 16][2 mma][8 rows, twice][4][32 lanes] x 4 bytes = 32 KiB.
 *   Bytes: W once; x of a block, n_row / 32 of its W, from L2; y. Limit: bytes / bandwidth.
 * many: a tile of the product in registers, W and x by way of shared memory.
 *   Shape: a block of 8 warps has 128 outputs x 128 rows, a warp 32 x 64 (4 x 2 warps), a thread 64 sums of
 *     the segment and 64 of those before it. Grid: n_out / 128 x n_row / 128.
 *   Shared (many_shared, a union): 66 KiB
 *     in    4 stages of w [128][64 bytes] and x [128][64 bytes], cp.async: 64 KiB. A quarter of a warp
 *           reads 128 contiguous bytes of one: no bank is asked twice.
 *     sums  [128 rows][128 + 4 outputs] x 4 bytes, on their way out
 *   FLOP: 2 n_row n_out n_in. Bytes: W n_row / 128 times and x n_out / 128 times, mostly from L2; y.
 *     Limit: FLOP / peak of the type (e4m3: of f16, but on sm_89).
 * groups: the same two with a matrix of its own for each group of rows (experts, groups.cuh). Rows of x are
 *   read where they are.
 *
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/linear.cuh"

#define WARPS     8u
#define FEW_ROWS  16u
#define MANY_OUT  128u
#define MANY_ROWS 128u
#define MANY_WARP 64u /* rows of a warp */
#define STAGES    4u

static uint32_t n_blocks_of(const struct linear_in *in)
{
    return div_up(in->row_bytes, K_BYTES);
}

/* 16 bytes of a row, zeros past its end; a missing row is replaced by the last one, and its sums are not stored.
 * All loads are issued in this order before the first use, so that they overlap. */
static __device__ __forceinline__ uint4 piece(const void *rows, size_t stride, size_t row_bytes,
                                              uint32_t row, uint32_t n_row, size_t at)
{
    const bool there = at < row_bytes;
    const uint4 v =
        load_once((const char *)rows + (row < n_row ? row : n_row - 1) * stride + (there ? at : 0));
    return there ? v : make_uint4(0, 0, 0, 0);
}

/* ---- few rows ---- */
#define FEW_PARTS 32u /* segments of 8 rows whose sums there is room for */
template <enum form F, unsigned N> struct few_shared {
    /* [segment][mma][8 rows][element][lane] */
    typename form_of<F>::acc part[FEW_PARTS / N][2][N][4][WARP];
};

/* The part of a block: outputs from o on and rows from `row` on; x_row: this lane's rows of x. */
template <unsigned N> struct few_part {
    uint32_t o, row, x_row[N];
};

/* n blocks of 64 bytes: in flight or loaded; and how many blocks of threads a multiprocessor keeps registers for.
 * Unpacking e4m3 takes some. */
template <enum form F, unsigned N> struct few_prefetch {
    static const unsigned n = (F == FORM_E4M3) == (N > 1) ? 4 : 2;
    static const unsigned n_block = F == FORM_E4M3 && N > 1 ? 1 : 2;
    uint4 w[n][4], x[n][N];
};

/* Block `block` of K into place i. */
template <enum form F, unsigned N>
static __device__ __forceinline__ void
few_load_w(struct few_prefetch<F, N> &to, unsigned i, const struct linear_in &in,
           const struct linear_out &out, const struct few_part<N> &p, uint32_t block)
{
    const size_t at = (size_t)block * K_BYTES + threadIdx.x % 4 * 16;
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        to.w[i][j] = piece(in.w, in.row_bytes, in.row_bytes, p.o + threadIdx.x % WARP / 4 + 8 * j,
                           out.n_out, at);
}
template <enum form F, unsigned N>
static __device__ __forceinline__ void few_load_x(struct few_prefetch<F, N> &to, unsigned i,
                                                  const struct linear_in &in,
                                                  const struct few_part<N> &p, uint32_t block)
{
    const size_t at = (size_t)block * K_BYTES + threadIdx.x % 4 * 16;
#pragma unroll
    for (unsigned n = 0; n < N; n++)
        to.x[i][n] = piece(in.x, in.x_bytes, in.row_bytes, p.x_row[n], UINT32_MAX, at);
}

/* This warp's first blocks of W. Weights are there before the kernel ahead has ended. */
template <enum form F, unsigned N>
static __device__ __forceinline__ void
few_begin(struct few_prefetch<F, N> &ahead, const struct linear_in &in,
          const struct linear_out &out, const struct few_part<N> &p)
{
#pragma unroll
    for (unsigned i = 0; i < few_prefetch<F, N>::n; i++)
        few_load_w<F, N>(ahead, i, in, out, p, threadIdx.x / WARP * form_of<F>::segment + i);
}

/* The sums of segments `first` + warp, + 8, … below `end`, to s. ahead: has the first blocks; when
 * `more`, those of segment `end` + warp afterwards. So memory is busy from the first block to the
 * last: whose place is free, the one so many further takes. */
template <enum form F, unsigned N>
static __device__ __forceinline__ void
few_segments(struct few_shared<F, N> &s, struct few_prefetch<F, N> &ahead,
             const struct linear_in &in, const struct linear_out &out, const struct few_part<N> &p,
             uint32_t first, uint32_t end, bool more)
{
    typedef typename form_of<F>::acc acc_type;
    const uint32_t lane = threadIdx.x % WARP, n_ahead = few_prefetch<F, N>::n;
    for (uint32_t segment = first + threadIdx.x / WARP; segment < end; segment += WARPS) {
        acc_type acc[2][N][4] = {};
#pragma unroll 1
        for (uint32_t b = 0; b < form_of<F>::segment; b += n_ahead) {
            const bool last = b + n_ahead == form_of<F>::segment;
            const uint32_t next = (last ? segment + WARPS : segment) * form_of<F>::segment +
                                  (last ? 0 : b + n_ahead);
            const bool go_on = !last || segment + WARPS < end || more;
#pragma unroll
            for (unsigned i = 0; i < n_ahead; i++) {
#pragma unroll
                for (unsigned n = 0; n < N; n++) {
                    multiply<F>(acc[0][n], ahead.w[i][0], ahead.w[i][1], ahead.x[i][n]);
                    multiply<F>(acc[1][n], ahead.w[i][2], ahead.w[i][3], ahead.x[i][n]);
                }
                if (go_on) {
                    few_load_w<F, N>(ahead, i, in, out, p, next + i);
                    few_load_x<F, N>(ahead, i, in, p, next + i);
                }
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 2 * N * 4; i++)
            s.part[segment - first][i / 4 / N][i / 4 % N][i % 4][lane] =
                acc[i / 4 / N][i / 4 % N][i % 4];
    }
}

/* The block's outputs and rows: a thread has element warp % 4 of mma warp / 4. */
template <enum form F, unsigned N, bool PICKED>
static __device__ __forceinline__ void
few_epilogue(struct few_shared<F, N> &s, const struct linear_out &out, const struct few_part<N> &p,
             const typename form_of<F>::acc total[N])
{
    const uint32_t mma = threadIdx.x / WARP / 4, i = threadIdx.x / WARP % 4,
                   lane = threadIdx.x % WARP;
    const uint32_t o = p.o + lane / 4 + i / 2 * 8;
    if (out.gated) { /* up to the threads that have gate */
#pragma unroll
        for (unsigned n = 0; n < N && mma; n++)
            s.part[0][0][n][i][lane] = total[n];
        __syncthreads();
        if (mma)
            return;
    }
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t row = p.row + 8 * n + lane % 4 * 2 + i % 2;
        if (row >= out.n_row || o + 16 * mma >= out.n_out)
            continue;
        const float sum = scaled<F == FORM_E4M3, PICKED>(out, total[n], row, o + 16 * mma);
        if (out.gated)
            epilogue_gated(
                out, row, o, sum,
                scaled<F == FORM_E4M3, PICKED>(out, s.part[0][0][n][i][lane], row, o + 16));
        else
            epilogue(out, row, o + 16 * mma, sum);
    }
}

/* PICKED: of a group (linear.cuh). ahead: has the first blocks of W. */
template <enum form F, unsigned N, bool PICKED>
static __device__ __forceinline__ void
few_rows(struct few_shared<F, N> &s, struct few_prefetch<F, N> &ahead, const struct linear_in &in,
         const struct linear_out &out, const struct few_part<N> &p, uint32_t n_block)
{
    typedef typename form_of<F>::acc acc_type;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_segment = (n_block + form_of<F>::segment - 1) / form_of<F>::segment;
    acc_type total[N] = {}; /* element warp % 4 of mma warp / 4 */
#pragma unroll
    for (unsigned i = 0; i < few_prefetch<F, N>::n; i++)
        few_load_x<F, N>(ahead, i, in, p, warp * form_of<F>::segment + i);
    for (uint32_t first = 0; first < n_segment; first += FEW_PARTS / N) {
        const uint32_t end = first + FEW_PARTS / N < n_segment ? first + FEW_PARTS / N : n_segment;
        few_segments<F, N>(s, ahead, in, out, p, first, end, end < n_segment);
        __syncthreads();
        for (uint32_t i = 0; i < end - first; i++)
#pragma unroll
            for (unsigned n = 0; n < N; n++)
                total[n] += s.part[i][warp / 4][n][warp % 4][lane];
        __syncthreads();
    }
    few_epilogue<F, N, PICKED>(s, out, p, total);
}

template <enum form F, unsigned N>
static __global__ void __launch_bounds__(WARPS *WARP, few_prefetch<F, N>::n_block)
    few_kernel(const struct linear_in in, const struct linear_out out, uint32_t n_block)
{
    typedef few_shared<F, N> shared_type;
    SHARED_MEMORY(s, shared_type);
    const uint32_t g = threadIdx.x % WARP / 4;
    struct few_part<N> p;
    struct few_prefetch<F, N> ahead;
    p.o = blockIdx.x * WARP_OUT;
    p.row = 0;
#pragma unroll
    for (unsigned n = 0; n < N; n++)
        p.x_row[n] = g + 8 * n < out.n_row ? g + 8 * n : out.n_row - 1;
    few_begin<F, N>(ahead, in, out, p);
    await_inputs();
    few_rows<F, N, false>(s, ahead, in, out, p, n_block);
}

/* ---- many rows ---- */
struct many_in {
    uint4 w[STAGES][MANY_OUT][4], x[STAGES][MANY_ROWS][4];
};
template <class T> union many_shared {
    struct many_in in;
    T sums[MANY_ROWS][MANY_OUT + 4]; /* when all is added; + 4: other banks for the next row */
};

#define MANY_LOADS (MANY_ROWS / (WARPS * WARP / 4)) /* rows of each that a thread fetches from */

/* The part of a block: rows from `row` on; x_row: the row of x that this thread loads. */
struct many_part {
    uint32_t row, x_row[MANY_LOADS];
};

static __device__ __forceinline__ void many_load(struct many_in &s, uint32_t stage,
                                                 const struct linear_in &in,
                                                 const struct linear_out &out,
                                                 const struct many_part &p, uint32_t block)
{
    const uint32_t chunk = threadIdx.x % 4;
    const size_t at = (size_t)block * K_BYTES + chunk * 16;
#pragma unroll
    for (uint32_t i = 0; i < MANY_LOADS; i++) {
        const uint32_t r = threadIdx.x / 4 + i * (WARPS * WARP / 4);
        const uint32_t o = blockIdx.x * MANY_OUT + r, row = p.x_row[i];
        const bool of_w = o < out.n_out && at < in.row_bytes;
        const bool of_x = p.row + r < out.n_row && at < in.row_bytes;
        cp_async16(&s.w[stage][r][chunk],
                   of_w ? (const char *)in.w + o * in.row_bytes + at : (const char *)in.w,
                   of_w ? 16 : 0);
        cp_async16(&s.x[stage][r][chunk],
                   of_x ? (const char *)in.x + row * in.x_bytes + at : (const char *)in.x,
                   of_x ? 16 : 0);
    }
}

template <enum form F>
static __device__ __forceinline__ void many_block(typename form_of<F>::acc acc[2][8][4],
                                                  const struct many_in &s, uint32_t stage)
{
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    uint4 w[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        w[j] = s.w[stage][warp % 4 * WARP_OUT + g + 8 * j][t];
#pragma unroll
    for (unsigned n = 0; n < 8; n++) {
        const uint4 x = s.x[stage][warp / 4 * MANY_WARP + 8 * n + g][t];
        multiply<F>(acc[0][n], w[0], w[1], x);
        multiply<F>(acc[1][n], w[2], w[3], x);
    }
}

/* Sums through shared memory, so that neighbouring threads store neighbouring outputs. */
template <bool SCALED, bool PICKED, class T>
static __device__ __forceinline__ void many_store(union many_shared<T> &s,
                                                  const struct linear_out &out, uint32_t first,
                                                  const T total[2][8][4])
{
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned i = 0; i < 2 * 8 * 4; i++) { /* mma, group of 8 rows, element */
        const uint32_t row = warp / 4 * MANY_WARP + i / 4 % 8 * 8 + t + i % 2;
        s.sums[row][warp % 4 * WARP_OUT + i / 32 * 16 + g + i % 4 / 2 * 8] =
            total[i / 32][i / 4 % 8][i % 4];
    }
    __syncthreads();
    const uint32_t c = threadIdx.x % MANY_OUT, o = blockIdx.x * MANY_OUT + c;
    for (uint32_t r = threadIdx.x / MANY_OUT; r < MANY_ROWS; r += WARPS * WARP / MANY_OUT) {
        const uint32_t row = first + r;
        if (row >= out.n_row || o >= out.n_out)
            break;
        if (!out.gated)
            epilogue(out, row, o, scaled<SCALED, PICKED>(out, s.sums[r][c], row, o));
        else if (c / KERN_GATE_INTERLEAVE % 2 == 0)
            epilogue_gated(out, row, o, scaled<SCALED, PICKED>(out, s.sums[r][c], row, o),
                           scaled<SCALED, PICKED>(out, s.sums[r][c + KERN_GATE_INTERLEAVE], row,
                                                  o + KERN_GATE_INTERLEAVE));
    }
}

template <enum form F, bool PICKED>
static __device__ __forceinline__ void
many_rows(union many_shared<typename form_of<F>::acc> &s, const struct linear_in &in,
          const struct linear_out &out, const struct many_part &p, uint32_t n_block)
{
    typedef typename form_of<F>::acc acc_type;
    acc_type acc[2][8][4] = {}, total[2][8][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < n_block)
            many_load(s.in, i, in, out, p, i);
        cp_async_commit();
    }
#pragma unroll 1
    for (uint32_t b = 0; b < n_block; b++) {
        cp_async_wait(STAGES - 2);
        __syncthreads(); /* block b is loaded, and no warp reads the stage that is loaded next */
        if (b + STAGES - 1 < n_block)
            many_load(s.in, (b + STAGES - 1) % STAGES, in, out, p, b + STAGES - 1);
        cp_async_commit();
        many_block<F>(acc, s.in, b % STAGES);
        if ((b + 1) % form_of<F>::segment && b + 1 < n_block)
            continue;
#pragma unroll
        for (unsigned i = 0; i < 2 * 8 * 4; i++) { /* the segment's end */
            acc_type *to = &total[i / 32][i / 4 % 8][i % 4], *from = &acc[i / 32][i / 4 % 8][i % 4];
            *to += *from;
            *from = 0;
        }
    }
    cp_async_wait(0);
    __syncthreads();
    many_store<F == FORM_E4M3, PICKED>(s, out, p.row, total);
}

template <enum form F>
static __global__ void __launch_bounds__(WARPS *WARP, 1)
    many_kernel(const struct linear_in in, const struct linear_out out, uint32_t n_block)
{
    await_inputs();
    SHARED_MEMORY(s, union many_shared<typename form_of<F>::acc>);
    struct many_part p;
    p.row = blockIdx.y * MANY_ROWS;
#pragma unroll
    for (uint32_t i = 0; i < MANY_LOADS; i++)
        p.x_row[i] = p.row + threadIdx.x / 4 + i * (WARPS * WARP / 4);
    many_rows<F, false>(s, in, out, p, n_block);
}

/* ---- groups ---- */
/* The matrix of the group, and rows up to its end. */
static __device__ __forceinline__ void to_group(struct linear_in &in, struct linear_out &out,
                                                const struct groups &g,
                                                const struct linear_group &t)
{
    const size_t at = t.group * g.w_stride;
    in.w = (const char *)in.w + at;
    if (out.scales)
        out.scales = (const float *)((const char *)out.scales + at);
    out.n_row = t.end;
}

template <enum form F, unsigned N>
static __global__ void __launch_bounds__(WARPS *WARP, few_prefetch<F, N>::n_block)
    few_groups_kernel(const struct linear_in all_in, const struct linear_out all_out,
                      const struct groups g, uint32_t n_block)
{
    await_inputs();
    typedef few_shared<F, N> shared_type;
    SHARED_MEMORY(s, shared_type);
    const struct linear_group t = tile_at(g, blockIdx.y, 8 * N);
    struct linear_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, out, g, t);
    struct few_part<N> p;
    struct few_prefetch<F, N> ahead;
    p.o = blockIdx.x * WARP_OUT;
    p.row = t.row;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t place = t.row + threadIdx.x % WARP / 4 + 8 * n;
        p.x_row[n] = row_of_x(g, place < t.end ? place : t.end - 1);
    }
    few_begin<F, N>(ahead, in, out, p);
    few_rows<F, N, true>(s, ahead, in, out, p, n_block);
}

/* With the group's `out`: e4m3 has no registers left for it. */
template <class T> struct many_groups_shared {
    union many_shared<T> tile;
    struct linear_out out;
};

template <enum form F>
static __global__ void __launch_bounds__(WARPS *WARP, 1)
    many_groups_kernel(const struct linear_in all_in, const struct linear_out all_out,
                       const struct groups g, uint32_t n_block)
{
    await_inputs();
    SHARED_MEMORY(s, struct many_groups_shared<typename form_of<F>::acc>);
    const struct linear_group t = tile_at(g, blockIdx.y, MANY_ROWS);
    struct linear_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, out, g, t);
    if (threadIdx.x == 0)
        s.out = out;
    __syncthreads();
    struct many_part p;
    p.row = t.row;
#pragma unroll
    for (uint32_t i = 0; i < MANY_LOADS; i++) {
        const uint32_t place = t.row + threadIdx.x / 4 + i * (WARPS * WARP / 4);
        p.x_row[i] = row_of_x(g, place < t.end ? place : t.end - 1);
    }
    many_rows<F, true>(s.tile, in, s.out, p, n_block);
}

template <enum form F>
static void tiles(const struct linear_in *in, const struct linear_out *out,
                  const struct kern_exec *x)
{
    const uint32_t n_block = n_blocks_of(in);
    const dim3 few(div_up(out->n_out, WARP_OUT));
    if (out->n_row <= 8)
        launch(few_kernel<F, 1>, few, WARPS * WARP, sizeof(few_shared<F, 1>), x, *in, *out,
               n_block);
    else if (out->n_row <= FEW_ROWS)
        launch(few_kernel<F, 2>, few, WARPS * WARP, sizeof(few_shared<F, 2>), x, *in, *out,
               n_block);
    else
        launch(many_kernel<F>, dim3(div_up(out->n_out, MANY_OUT), div_up(out->n_row, MANY_ROWS)),
               WARPS * WARP, sizeof(union many_shared<typename form_of<F>::acc>), x, *in, *out,
               n_block);
}

void linear_tiles_bf16(const struct linear_in *in, const struct linear_out *out,
                       const struct kern_exec *x)
{
    tiles<FORM_BF16>(in, out, x);
}
void linear_tiles_f16(const struct linear_in *in, const struct linear_out *out,
                      const struct kern_exec *x)
{
    tiles<FORM_F16>(in, out, x);
}
void linear_tiles_i8(const struct linear_in *in, const struct linear_out *out,
                     const struct kern_exec *x)
{
    tiles<FORM_I8>(in, out, x);
}
void linear_tiles_fp8(const struct linear_in *in, const struct linear_out *out,
                      const struct kern_exec *x)
{
    tiles<FORM_E4M3>(in, out, x);
}

template <enum form F>
static void group_tiles(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x)
{
    const uint32_t n_block = n_blocks_of(in), n = out->n_row;
    const uint32_t few = div_up(out->n_out, WARP_OUT), many = div_up(out->n_out, MANY_OUT);
    if (n <= 8 * g->n_group) /* on average */
        launch(few_groups_kernel<F, 1>, dim3(few, tiles_max(n, g->n_group, 8)), WARPS * WARP,
               sizeof(few_shared<F, 1>), x, *in, *out, *g, n_block);
    else if (n <= FEW_ROWS * g->n_group)
        launch(few_groups_kernel<F, 2>, dim3(few, tiles_max(n, g->n_group, FEW_ROWS)), WARPS * WARP,
               sizeof(few_shared<F, 2>), x, *in, *out, *g, n_block);
    else
        launch(many_groups_kernel<F>, dim3(many, tiles_max(n, g->n_group, MANY_ROWS)), WARPS * WARP,
               sizeof(struct many_groups_shared<typename form_of<F>::acc>), x, *in, *out, *g,
               n_block);
}

void linear_grouped_bf16(const struct linear_in *in, const struct linear_out *out,
                         const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_BF16>(in, out, g, x);
}
void linear_grouped_f16(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_F16>(in, out, g, x);
}
void linear_grouped_i8(const struct linear_in *in, const struct linear_out *out,
                       const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_I8>(in, out, g, x);
}
void linear_grouped_fp8(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_E4M3>(in, out, g, x);
}
