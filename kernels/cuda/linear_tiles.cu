/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by mma.sync, bf16, f16, int8 and e4m3; order and fragments: linear.cuh.
 *
 * few: up to 16 rows. A block of 8 warps has 32 outputs. Warp w takes segments w, w + 8, … of K straight
 *   from device memory to registers, four blocks of 64 bytes of 32 rows of W in flight (8 KiB a warp);
 *   the sums of 8 segments meet in shared memory and are added ascending by one warp.
 *   Shared memory: [8 warps][2 mma][2 groups of 8 rows][32 lanes] x 16 bytes = 16 KiB.
 *   Bytes: W once; x from L2, n_row / 32 of W. Floor: bytes / bandwidth.
 * many: a block of 8 warps has 128 outputs x 128 rows, a warp 32 x 64 (4 x 2 warps). Four stages of
 *   [128 rows of W][64 bytes] and [128 rows of x][64 bytes], cp.async: 64 KiB. A quarter of a warp reads
 *   128 contiguous bytes of them: no bank is asked twice. The same memory then takes the sums on their
 *   way out. Sums of the segment and of those before it:
 *   64 + 64 registers. Floor: 2 n_row n_out n_in / peak.
 * groups: the same two with a matrix of its own for each group of rows. A block finds its group and its
 *   first row by a scan over where groups start, a warp at 32 groups a time; blocks of a grid that is
 *   larger than what there is end at once. Rows of x are fetched where they are: nothing is gathered.
 * Fractions: not measured yet. */
#include "kernels/cuda/linear.cuh"

#define WARPS     8u
#define FEW_ROWS  16u
#define FEW_AHEAD 4u /* blocks of 64 bytes in flight */
#define MANY_OUT  128u
#define MANY_ROWS 128u
#define MANY_WARP 64u /* rows of a warp */
#define STAGES    4u

static uint32_t n_blocks_of(const struct linear_in *in)
{
    return div_up(in->row_bytes, K_BYTES);
}

/* 16 bytes of a row, zeros past its end; a row that is not there is the last one, whose sums nobody
 * stores. In this order and all before the first use: that is what keeps memory busy. */
static __device__ __forceinline__ uint4 piece(const void *rows, size_t stride, size_t row_bytes,
                                              uint32_t row, uint32_t n_row, size_t at)
{
    const bool there = at < row_bytes;
    const uint4 v =
        load_once((const char *)rows + (row < n_row ? row : n_row - 1) * stride + (there ? at : 0));
    return there ? v : make_uint4(0, 0, 0, 0);
}

/* ---- few rows ---- */
template <enum form F> struct few_shared {
    typename form_of<F>::acc part[WARPS][2][FEW_ROWS / 8][WARP][4];
};

/* What a block multiplies: outputs from o on and rows from `row` on, whose x is in rows x_row of
 * this lane. */
template <unsigned N> struct few_part {
    uint32_t o, row, x_row[N];
};

/* The sums of one segment; N: groups of 8 rows. */
template <enum form F, unsigned N>
static __device__ __forceinline__ void
few_segment(typename form_of<F>::acc acc[2][N][4], const struct linear_in &in,
            const struct linear_out &out, const struct few_part<N> &p, uint32_t segment)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (unsigned i = 0; i < 2 * N; i++)
        acc[i / N][i % N][0] = acc[i / N][i % N][1] = acc[i / N][i % N][2] = acc[i / N][i % N][3] =
            0;
    for (uint32_t b = 0; b < SEGMENT_BLOCKS; b += FEW_AHEAD) {
        uint4 w[FEW_AHEAD][4], x[FEW_AHEAD][N];
#pragma unroll
        for (unsigned i = 0; i < FEW_AHEAD; i++) {
            const size_t at = ((size_t)segment * SEGMENT_BLOCKS + b + i) * K_BYTES + t * 16;
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                w[i][j] = piece(in.w, in.row_bytes, in.row_bytes, p.o + g + 8 * j, out.n_out, at);
#pragma unroll
            for (unsigned n = 0; n < N; n++)
                x[i][n] = piece(in.x, in.x_bytes, in.row_bytes, p.x_row[n], UINT32_MAX, at);
        }
#pragma unroll
        for (unsigned i = 0; i < FEW_AHEAD; i++)
#pragma unroll
            for (unsigned n = 0; n < N; n++) {
                multiply<F>(acc[0][n], w[i][0], w[i][1], x[i][n]);
                multiply<F>(acc[1][n], w[i][2], w[i][3], x[i][n]);
            }
    }
}

/* PICKED: of a group (linear.cuh). */
template <enum form F, unsigned N, bool PICKED>
static __device__ __forceinline__ void few_rows(struct few_shared<F> &s, const struct linear_in &in,
                                                const struct linear_out &out,
                                                const struct few_part<N> &p, uint32_t n_block)
{
    typedef typename form_of<F>::acc acc_type;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_segment = (n_block + SEGMENT_BLOCKS - 1) / SEGMENT_BLOCKS;
    acc_type acc[2][N][4], total[2][N][4] = {};
    for (uint32_t first = 0; first < n_segment; first += WARPS) {
        if (first + warp < n_segment) {
            few_segment<F, N>(acc, in, out, p, first + warp);
#pragma unroll
            for (unsigned i = 0; i < 2 * N * 4; i++)
                s.part[warp][i / 4 / N][i / 4 % N][lane][i % 4] = acc[i / 4 / N][i / 4 % N][i % 4];
        }
        __syncthreads();
        const uint32_t n = n_segment - first < WARPS ? n_segment - first : WARPS;
        for (uint32_t w = 0; warp == 0 && w < n; w++)
#pragma unroll
            for (unsigned i = 0; i < 2 * N * 4; i++) {
                acc_type *to = &total[i / 4 / N][i / 4 % N][i % 4];
                const acc_type part = s.part[w][i / 4 / N][i / 4 % N][lane][i % 4];
                *to += part;
            }
        __syncthreads();
    }
    if (warp == 0)
#pragma unroll
        for (unsigned n = 0; n < N; n++)
            finish_tile<F == FORM_E4M3, PICKED>(out, p.o, p.row + 8 * n, total[0][n], total[1][n]);
}

template <enum form F, unsigned N>
static __global__ void __launch_bounds__(WARPS *WARP)
    few_kernel(const struct linear_in in, const struct linear_out out, uint32_t n_block)
{
    await_inputs();
    SHARED_MEMORY(s, struct few_shared<F>);
    const uint32_t g = threadIdx.x % WARP / 4;
    struct few_part<N> p;
    p.o = blockIdx.x * WARP_OUT;
    p.row = 0;
#pragma unroll
    for (unsigned n = 0; n < N; n++)
        p.x_row[n] = g + 8 * n < out.n_row ? g + 8 * n : out.n_row - 1;
    few_rows<F, N, false>(s, in, out, p, n_block);
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

/* What a block multiplies: rows from `row` on; x_row: of x, that this thread fetches from. */
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
            finish(out, row, o, scaled<SCALED, PICKED>(out, s.sums[r][c], row, o));
        else if (c / KERN_TURN % 2 == 0)
            finish_gated(out, row, o, scaled<SCALED, PICKED>(out, s.sums[r][c], row, o),
                         scaled<SCALED, PICKED>(out, s.sums[r][c + KERN_TURN], row, o + KERN_TURN));
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
        __syncthreads(); /* block b is there, and nobody reads the stage that is loaded next */
        if (b + STAGES - 1 < n_block)
            many_load(s.in, (b + STAGES - 1) % STAGES, in, out, p, b + STAGES - 1);
        cp_async_commit();
        many_block<F>(acc, s.in, b % STAGES);
        if ((b + 1) % SEGMENT_BLOCKS && b + 1 < n_block)
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
struct linear_group {         /* rows of one group */
    uint32_t group, row, end; /* row == end: there is none */
};

/* Tile number `tile` of all groups' tiles of n_row rows, by each warp for itself. */
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

static __device__ __forceinline__ uint32_t row_of_x(const struct groups &g, uint32_t place)
{
    return g.rows ? g.rows[place] : place;
}

/* Blocks of a multiprocessor that registers are kept for, 0: as many as the compiler likes. Of scaled
 * sums of 8 rows it likes more than it has registers for, but on sm_90. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define SCALED_BLOCKS 0
#else
#define SCALED_BLOCKS (__CUDA_ARCH__ < 900 ? 2 : 1)
#endif
template <enum form F, unsigned N> struct few_groups_blocks {
    static const unsigned n = N == 1 && (F == FORM_I8 || F == FORM_E4M3) ? SCALED_BLOCKS : 0;
};

template <enum form F, unsigned N>
static __global__ void __launch_bounds__(WARPS *WARP, few_groups_blocks<F, N>::n)
    few_groups_kernel(const struct linear_in all_in, const struct linear_out all_out,
                      const struct groups g, uint32_t n_block)
{
    await_inputs();
    SHARED_MEMORY(s, struct few_shared<F>);
    const struct linear_group t = tile_at(g, blockIdx.y, 8 * N);
    struct linear_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, out, g, t);
    struct few_part<N> p;
    p.o = blockIdx.x * WARP_OUT;
    p.row = t.row;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t place = t.row + threadIdx.x % WARP / 4 + 8 * n;
        p.x_row[n] = row_of_x(g, place < t.end ? place : t.end - 1);
    }
    few_rows<F, N, true>(s, in, out, p, n_block);
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
        launch(few_kernel<F, 1>, few, WARPS * WARP, sizeof(struct few_shared<F>), x, *in, *out,
               n_block);
    else if (out->n_row <= FEW_ROWS)
        launch(few_kernel<F, 2>, few, WARPS * WARP, sizeof(struct few_shared<F>), x, *in, *out,
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
void linear_tiles_e4m3(const struct linear_in *in, const struct linear_out *out,
                       const struct kern_exec *x)
{
    tiles<FORM_E4M3>(in, out, x);
}

/* Tiles of n_row rows that n places in so many groups can come to. */
static uint32_t tiles_max(uint32_t n, uint32_t n_group, uint32_t n_row)
{
    const uint32_t most = n / n_row + (n < n_group ? n : n_group);
    return most < n ? most : n;
}

template <enum form F>
static void group_tiles(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x)
{
    const uint32_t n_block = n_blocks_of(in), n = out->n_row;
    const uint32_t few = div_up(out->n_out, WARP_OUT), many = div_up(out->n_out, MANY_OUT);
    if (n <= 8 * g->n_group) /* on average */
        launch(few_groups_kernel<F, 1>, dim3(few, tiles_max(n, g->n_group, 8)), WARPS * WARP,
               sizeof(struct few_shared<F>), x, *in, *out, *g, n_block);
    else if (n <= FEW_ROWS * g->n_group)
        launch(few_groups_kernel<F, 2>, dim3(few, tiles_max(n, g->n_group, FEW_ROWS)), WARPS * WARP,
               sizeof(struct few_shared<F>), x, *in, *out, *g, n_block);
    else
        launch(many_groups_kernel<F>, dim3(many, tiles_max(n, g->n_group, MANY_ROWS)), WARPS * WARP,
               sizeof(struct many_groups_shared<typename form_of<F>::acc>), x, *in, *out, *g,
               n_block);
}

void linear_groups_bf16(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_BF16>(in, out, g, x);
}
void linear_groups_f16(const struct linear_in *in, const struct linear_out *out,
                       const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_F16>(in, out, g, x);
}
void linear_groups_i8(const struct linear_in *in, const struct linear_out *out,
                      const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_I8>(in, out, g, x);
}
void linear_groups_e4m3(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x)
{
    group_tiles<FORM_E4M3>(in, out, g, x);
}
