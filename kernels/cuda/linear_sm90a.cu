/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many rows on sm_90a, bf16, f16, int8 and e4m3, of one matrix or of groups of rows with a matrix each;
 * e4m3 with a scale a row of x and an output, or with scales of blocks of 128 of K (linear_fp8_block.cu):
 * wgmma from shared memory, which the tensor copy engine fills. The epilogue is that of linear_tiles.cu.
 *
 * A block has three warpgroups and is persistent: it computes several tiles, of 128 rows and 256 outputs (A: rows
 * of x, B: rows of W, a slice of 128 bytes of K at a time, which is four instructions for every type):
 *
 *     0      producer   copies x and W of slice after slice, tile after tile, into free stages
 *     1, 2   consumers  rows      x outputs
 *              tall       64 each     256      128 registers of sums, m64n256
 *              tall e4m3  64 each     128      64 and 64, m64n128: of the slice, and of those before
 *              flat       the same 64, 128 outputs each (e4m3: 64 and 64 again), m64n128
 *
 * flat serves groups of few rows, and matrices with too few tall tiles for the card. While one consumer runs its
 * epilogue or adds e4m3's sums, the other uses the tensor cores, as long as stages are loaded.
 *
 * The copy engine loads consecutive rows of x. It cannot load indexed rows of groups (a mixture's gate and up): for
 * these the producer's four warps copy 16 bytes a thread (cp.async), and signal a slice two slices later; rows are
 * not gathered beforehand.
 *
 * Order of a sum: K ascending in one register from 0, 16 numbers an instruction (of bytes 32); e4m3: of
 * each 128 numbers from 0, these ascending in f32, since Hopper keeps about 14 bits within the tensor cores
 * (arXiv:2412.19437, 3.3.2), and so a slice is a block of scales: sum = fma(slice, scale of x * scale of W, sum), as
 * ref/linear_fp8_block.c. A lane loads the scales of the next slice while this one is multiplied: of its two rows, and
 * one of W, which the warp shares. The order depends on n_in alone, not on rows, tile or grid. It is not the order of
 * linear_tiles.cu: bits differ from those of mma.sync, but for int8, whose sums are exact. So a deterministic
 * device uses this kernel for int8 only (linear.cu, trial.h).
 *
 * Shared memory (sm90a_tiles), up to 225 KiB:
 *     stage [4; tall e4m3 6]   x: rows x 128 bytes, W: outputs x 128 bytes, 128-byte swizzle (hopper.h)
 *     out [8 warps]           16 rows x 64 outputs f32, on their way to whole lines of y; chunks of 16 bytes
 *                             lie at c ^ 2 row % 16, so that no bank is asked twice
 *     full, empty [..]        as attention_sm90a.cu; full: with picked rows four warps' arrivals besides
 * Registers: 3 x 128 threads start with 168; the producer keeps 40, consumers take 232.
 *
 * Tiles are ordered in bands of 2048 rows, rows fastest, so that concurrent tiles share rows and outputs in L2.
 * FLOP: 2 n_row n_out n_in. A tall slice is 2 x 128 x 256 x 64 FLOP (bf16) in 1024 cycles at the
 * peak, for which 48 KiB come from L2 (6.3 TB/s of a whole card of 132) and shared memory gives 80 KiB to
 * the tensor cores and takes 48: all of its 128 bytes a cycle. Multicast within a cluster would halve the L2
 * traffic of one operand; it is not implemented. Groups: W of each group that has rows, once for 128 of them.
 * Floor: FLOP / peak, or bytes / bandwidth. Not measured: no card has run this. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/linear.cuh"
/* included after it, because its includes have C linkage */
#include "kernels/cuda/hopper.cuh"

#define CONSUMERS    2u
#define BLOCK        ((1 + CONSUMERS) * WGMMA_THREADS)
#define SLICE        PANEL_ROW_BYTES /* bytes of K at a time */
#define RING_ROOM    (192u << 10)
#define BAND_ROWS    2048u
#define OUT_COLS     64u /* of a warp's 16 rows at a time, to be stored */
#define BEHIND       2u  /* slices in flight per thread of the producer */
#define ROW_THREADS  8u  /* that fetch a row's slice */
#define TRIAL_BLOCKS 2u  /* so that a block has several tiles */
#define TALL_ROWS    128u
#define FLAT_ROWS    64u

template <enum form F, unsigned ROWS> struct tile_of {
    static const bool twice =
        F == FORM_E4M3 || F == FORM_BLOCKS; /* sums of the slice and of those before */
    static const bool tall = ROWS == TALL_ROWS;
    static const unsigned width = tall && !twice ? 256 : 128; /* outputs of a consumer */
    static const unsigned n_out = tall ? width : CONSUMERS * width;
    static const unsigned ring = tall && twice ? 6 : 4;
    static_assert(ring * (ROWS + n_out) * SLICE <= RING_ROOM, "with `out` that is what there is");
};
template <enum form F, unsigned ROWS> struct alignas(PANEL_ALIGN) sm90a_tiles {
    struct {
        unsigned char x[ROWS * SLICE], w[tile_of<F, ROWS>::n_out * SLICE];
    } stage[tile_of<F, ROWS>::ring];
    float out[CONSUMERS * WGMMA_THREADS / WARP][16 * OUT_COLS];
    uint64_t full[tile_of<F, ROWS>::ring], empty[tile_of<F, ROWS>::ring];
};
struct many_work {
    struct linear_in in;
    struct linear_out out;
    struct groups of; /* n_group 0: one matrix */
    struct block_scales by;
    unsigned patience;
    bool four; /* y can be written four at a time */
};
struct many_maps {
    tensor_map x, w;
};
struct ring_position { /* of the ring */
    uint32_t stage, parity;
};
template <unsigned N> static __device__ __forceinline__ void next_position(struct ring_position *t)
{
    if (++t->stage == N) {
        t->stage = 0;
        t->parity ^= 1;
    }
}

#ifdef HOPPER_CODE
/* ---- which tile; by each warp for itself ---- */
/* Number i of a product of n_row rows by n_o tiles of outputs: bands, then outputs, then rows. */
template <unsigned ROWS>
static __device__ __forceinline__ struct linear_group tile_of_band(uint32_t i, uint32_t n_row,
                                                                   uint32_t n_o)
{
    const uint32_t n_tall = (n_row + ROWS - 1) / ROWS, band = BAND_ROWS / ROWS;
    const uint32_t first = i / (band * n_o) * band, rest = i % (band * n_o);
    const uint32_t left = n_tall > first ? n_tall - first : 1;
    const uint32_t tall = left < band ? left : band;
    const uint32_t row = (first + rest % tall) * ROWS;
    const struct linear_group t = {0, row < n_row ? row : n_row, n_row, rest / tall};
    return t;
}

template <enum form F, unsigned ROWS>
static __device__ __forceinline__ struct linear_group tile_number(uint32_t i,
                                                                  const struct many_work &w)
{
    const unsigned n = tile_of<F, ROWS>::n_out;
    const uint32_t n_o = (w.out.n_out + n - 1) / n;
    struct linear_group t =
        w.of.n_group ? tile_at(w.of, i, ROWS, n_o) : tile_of_band<ROWS>(i, w.out.n_row, n_o);
    t.o *= n;
    return t;
}

static __device__ __forceinline__ uint32_t n_slice_of(const struct many_work &w)
{
    return (uint32_t)((w.in.row_bytes + SLICE - 1) / SLICE);
}

/* ---- the producer ---- */
/* W's part of a slice, and with boxes x's too. */
template <enum form F, unsigned ROWS>
static __device__ __forceinline__ void
ask_for(sm90a_tiles<F, ROWS> &s, const struct ring_position &t, const struct many_maps &maps,
        const struct linear_group &at, uint32_t slice, bool with_x)
{
    const unsigned w_bytes = tile_of<F, ROWS>::n_out * SLICE, x_bytes = ROWS * SLICE;
    uint64_t *full = &s.full[t.stage];
    barrier_arrive_bytes(full, w_bytes + (with_x ? x_bytes : 0));
    if (with_x)
        tensor_copy(s.stage[t.stage].x, &maps.x, (int)(slice * SLICE), (int)at.row, full);
    tensor_copy_of(s.stage[t.stage].w, &maps.w, (int)(slice * SLICE), (int)at.o, (int)at.group,
                   full);
}

/* One warp: rows that follow each other. */
template <enum form F, unsigned ROWS>
static __device__ __forceinline__ void
produce_boxes(sm90a_tiles<F, ROWS> &s, const struct many_maps &maps, const struct many_work &w)
{
    const uint32_t n_slice = n_slice_of(w);
    struct ring_position t = {0, 0};
    for (uint32_t i = blockIdx.x;; i += gridDim.x) {
        const struct linear_group at = tile_number<F, ROWS>(i, w);
        if (at.row == at.end)
            break;
        for (uint32_t slice = 0; slice < n_slice; slice++) {
            barrier_wait(&s.empty[t.stage], t.parity ^ 1, w.patience);
            if (threadIdx.x == 0)
                ask_for<F, ROWS>(s, t, maps, at, slice, true);
            __syncwarp();
            next_position<tile_of<F, ROWS>::ring>(&t);
        }
    }
}

/* Signal the oldest slice that was not signaled: this thread's copies have arrived. */
template <enum form F, unsigned ROWS>
static __device__ __forceinline__ void tell(sm90a_tiles<F, ROWS> &s, struct ring_position *t)
{
    shared_written();
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(&s.full[t->stage]);
    next_position<tile_of<F, ROWS>::ring>(t);
}

/* Four warps: rows as they were picked, thread t 16 bytes of row t / 8 and of each 16th after it. */
template <enum form F, unsigned ROWS>
static __device__ __forceinline__ void
produce_picked(sm90a_tiles<F, ROWS> &s, const struct many_maps &maps, const struct many_work &w)
{
    const uint32_t chunk = threadIdx.x % ROW_THREADS, first = threadIdx.x / ROW_THREADS;
    const uint32_t step = WGMMA_THREADS / ROW_THREADS, n_slice = n_slice_of(w);
    const uint32_t to = first * SLICE + (chunk ^ first % PANEL_ATOM_ROWS) * 16;
    struct ring_position t = {0, 0}, told = {0, 0};
    uint32_t under_way = 0;
    for (uint32_t i = blockIdx.x;; i += gridDim.x) {
        const struct linear_group at = tile_number<F, ROWS>(i, w);
        uint32_t rows[ROWS / (WGMMA_THREADS / ROW_THREADS)];
        if (at.row == at.end)
            break;
#pragma unroll
        for (uint32_t j = 0; j < ROWS / step; j++) {
            const uint32_t place = at.row + first + j * step;
            rows[j] = w.of.rows[place < at.end ? place : at.end - 1];
        }
        for (uint32_t slice = 0; slice < n_slice; slice++) {
            const size_t from = (size_t)slice * SLICE + chunk * 16;
            const bool there = from < w.in.row_bytes;
            barrier_wait(&s.empty[t.stage], t.parity ^ 1, w.patience);
            __syncwarp();
            if (threadIdx.x == 0)
                ask_for<F, ROWS>(s, t, maps, at, slice, false);
#pragma unroll
            for (uint32_t j = 0; j < ROWS / step; j++)
                cp_async16(s.stage[t.stage].x + to + j * step * SLICE,
                           (const char *)w.in.x + rows[j] * w.in.x_bytes + (there ? from : 0),
                           there ? 16 : 0);
            cp_async_commit();
            next_position<tile_of<F, ROWS>::ring>(&t);
            if (under_way++ < BEHIND)
                continue;
            cp_async_wait(BEHIND);
            under_way--;
            tell<F, ROWS>(s, &told);
        }
    }
    cp_async_wait(0);
    for (; under_way; under_way--)
        tell<F, ROWS>(s, &told);
}

/* ---- a consumer: a warpgroup ---- */
template <enum form F, unsigned N, class T>
static __device__ __forceinline__ void multiply_slice(T (&acc)[N / 8][4], uint64_t x, uint64_t w,
                                                      bool keep)
{
    const enum wgmma_kind kind = F == FORM_BF16  ? WGMMA_BF16
                                 : F == FORM_F16 ? WGMMA_F16
                                 : F == FORM_I8  ? WGMMA_I8
                                                 : WGMMA_E4M3;
    wgmma_fence();
#pragma unroll
    for (unsigned k = 0; k < SLICE; k += WGMMA_K_BYTES)
        wgmma_tiles<kind, N>(acc, wgmma_further(x, k), wgmma_further(w, k), keep || k);
    wgmma_commit();
}

/* The stage may be filled again: its products are done, in all lanes. */
template <enum form F, unsigned ROWS>
static __device__ __forceinline__ void let_go(sm90a_tiles<F, ROWS> &s, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(&s.empty[stage]);
}

struct my_part { /* of a tile */
    uint32_t team, row, col;
};
template <enum form F, unsigned ROWS> static __device__ __forceinline__ struct my_part part_of(void)
{
    const uint32_t team = threadIdx.x / WGMMA_THREADS - 1;
    const bool tall = tile_of<F, ROWS>::tall;
    const struct my_part p = {team, tall ? team * WGMMA_M : 0,
                              tall ? 0 : team * tile_of<F, ROWS>::width};
    return p;
}

/* Scales of blocks: of a lane's two rows of x, and of W of group lane % 8 of the consumer's 16 outputs each. */
struct scale_place {
    const float *x[2], *w;
};
struct slice_scales {
    float x[2], w;
};
template <unsigned N>
static __device__ __forceinline__ struct scale_place
place_scales(const struct many_work &w, const struct linear_group &at, uint32_t row, uint32_t o)
{
    static_assert(N == 8 * KERN_GATE_INTERLEAVE, "a group for 8 lanes each");
    const uint32_t last = (w.out.n_out - 1) / KERN_GATE_INTERLEAVE;
    const uint32_t group = o / KERN_GATE_INTERLEAVE + threadIdx.x % 8;
    struct scale_place p;
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t place = row + 8 * i < at.end ? row + 8 * i : at.end - 1;
        p.x[i] = w.by.x + (w.of.n_group && w.of.rows ? w.of.rows[place] : place) * w.by.x_stride;
    }
    p.w = (const float *)((const char *)w.by.w + at.group * w.of.w_stride) +
          (group < last ? group : last) * (size_t)w.by.w_stride;
    return p;
}
static __device__ __forceinline__ struct slice_scales load_scales(const struct scale_place &p,
                                                                  uint32_t slice)
{
    return {{p.x[0][slice], p.x[1][slice]}, p.w[slice]};
}

/* sums += of_slice; with scales of blocks times these. */
template <enum form F, unsigned N, class T>
static __device__ __forceinline__ void promote(T (&sums)[N / 8][4], const T (&of_slice)[N / 8][4],
                                               const struct slice_scales &scales)
{
#pragma unroll
    for (unsigned j = 0; j < N / 8; j++) {
        const float w = F == FORM_BLOCKS ? __shfl_sync(ALL_LANES, scales.w, j / 2) : 1;
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            if constexpr (F == FORM_BLOCKS)
                sums[j][i] = fmaf(of_slice[j][i], scales.x[i / 2] * w, sums[j][i]);
            else
                sums[j][i] += of_slice[j][i];
    }
}

/* sums = the products of all slices. One slice is multiplied while the next is waited for; sums of e4m3 are added
 * in f32, slice by slice. */
template <enum form F, unsigned ROWS, unsigned N, class T>
static __device__ __forceinline__ void
sum_slices(T (&sums)[N / 8][4], sm90a_tiles<F, ROWS> &s, struct ring_position *t,
           const struct many_work &w, const struct scale_place &scales_at)
{
    const struct my_part p = part_of<F, ROWS>();
    const uint32_t n_slice = n_slice_of(w);
    T of_slice[tile_of<F, ROWS>::twice ? N / 8 : 1][4] = {};
    struct slice_scales scales = {};
    uint32_t last = 0;
    if constexpr (F == FORM_BLOCKS)
        scales = load_scales(scales_at, 0);
#pragma unroll
    for (unsigned i = 0; i < N / 2; i++)
        sums[i / 4][i % 4] = 0;
    hold(sums);
#pragma unroll 1
    for (uint32_t slice = 0; slice < n_slice; slice++) {
        struct slice_scales next = {};
        barrier_wait(&s.full[t->stage], t->parity, w.patience);
        __syncwarp(); /* products are for whole warps */
        const uint64_t x = wgmma_columns_k(shared_offset(s.stage[t->stage].x + p.row * SLICE));
        const uint64_t o = wgmma_columns_k(shared_offset(s.stage[t->stage].w + p.col * SLICE));
        if constexpr (tile_of<F, ROWS>::twice) {
            hold(of_slice);
            multiply_slice<F, N>(of_slice, x, o, false);
            if constexpr (F == FORM_BLOCKS)
                next = load_scales(scales_at, slice + 1 < n_slice ? slice + 1 : slice);
            wgmma_wait(0);
            hold(of_slice);
            let_go<F, ROWS>(s, t->stage);
            promote<F, N>(sums, of_slice, scales);
            scales = next;
        } else {
            multiply_slice<F, N>(sums, x, o, true);
            wgmma_wait(1);
            if (slice)
                let_go<F, ROWS>(s, last);
            last = t->stage;
        }
        next_position<tile_of<F, ROWS>::ring>(t);
    }
    if constexpr (!tile_of<F, ROWS>::twice) {
        wgmma_wait(0);
        let_go<F, ROWS>(s, last);
    }
    hold(sums);
}

/* ---- epilogue ---- */
/* A thread's two rows of a tile, and the scales of their sums. */
struct my_rows {
    float scale[2];
};
template <enum form F>
static __device__ __forceinline__ struct my_rows rows_of(const struct linear_out &out, uint32_t row)
{
    struct my_rows r = {{1, 1}};
    if constexpr (F == FORM_I8 || F == FORM_E4M3) {
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const uint32_t at = row + 8 * i < out.n_row ? row + 8 * i : out.n_row - 1;
            r.scale[i] = out.rows[out.picked ? out.picked[at] : at].scale;
        }
    }
    return r;
}

/* Sums of output o, or 0 past the last, scaled and with its bias: scaled() and finish() of linear.cuh. */
template <enum form F, class T>
static __device__ __forceinline__ float settled(const struct linear_out &out, uint32_t o, T sum,
                                                float row_scale)
{
    const uint32_t at = o < out.n_out ? o : 0;
    float y = (float)sum;
    if constexpr (F == FORM_I8 || F == FORM_E4M3)
        y = y * out.scales[at] * row_scale;
    return out.bias ? y + out.bias[at] : y;
}

/* Four neighbours of a row of y, of which there are n_col. */
static __device__ __forceinline__ void store_four(const struct linear_out &out, bool four,
                                                  uint32_t row, uint32_t col, float4 v)
{
    const uint32_t n_col = out.gated ? out.n_out / 2 : out.n_out;
    const size_t at = row * out.y_stride + col;
    if (four && col + 4 <= n_col) {
        if (out.accumulate) {
            const float4 was = load4_as(out.y, DT_F32, at);
            v = make_float4(v.x + was.x, v.y + was.y, v.z + was.z, v.w + was.w);
        }
        store4_as(out.y, out.y_dtype, at, v);
        return;
    }
    const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        if (col + i < n_col)
            store_as(out.y, out.y_dtype, at + i,
                     out.accumulate ? each[i] + ((const float *)out.y)[at + i] : each[i]);
}

/* A warp's 16 rows x 64 outputs, from `out` of shared memory. */
static __device__ __forceinline__ void store_lines(const struct linear_out &out, bool four,
                                                   const float *lines, uint32_t row, uint32_t col)
{
    const uint32_t lane = threadIdx.x % WARP, chunk = lane % 16;
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = lane / 16; i < 16; i += 2) {
        const float4 v = *(const float4 *)&lines[i * OUT_COLS + (chunk ^ i * 2 % 16) * 4];
        if (row + i < out.n_row)
            store_four(out, four, row + i, col + chunk * 4, v);
    }
    __syncwarp();
}

/* The sums of a consumer's rows of a tile: out.n_row is where rows end. GATED: as it is in `out`. */
template <enum form F, bool GATED, unsigned N, class T>
static __device__ __forceinline__ void store_sums(const struct linear_out &out, bool four,
                                                  float *lines, uint32_t row, uint32_t o,
                                                  const T (&sums)[N / 8][4])
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, pair = lane % 4 * 2;
    const uint32_t first = row + threadIdx.x % WGMMA_THREADS / WARP * 16;
    const struct my_rows r = rows_of<F>(out, first + g);
#pragma unroll
    for (unsigned c = 0; c < N / (GATED ? 2 : 1); c += OUT_COLS) {
#pragma unroll
        for (unsigned j = 0; j < OUT_COLS / 8; j++) {
            /* eight outputs; gated: of gate, and up is two eights on */
            const unsigned e = c / 8 + j, from = GATED ? e / 2 * 4 + e % 2 : e;
            const uint32_t at = o + from * 8 + pair;
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                float v[2];
#pragma unroll
                for (unsigned i = 0; i < 2; i++) {
                    v[i] = settled<F>(out, at + i, sums[from][2 * half + i], r.scale[half]);
                    if (GATED)
                        v[i] =
                            silu_times(v[i], settled<F>(out, at + KERN_GATE_INTERLEAVE + i,
                                                        sums[GATED ? from + 2 : from][2 * half + i],
                                                        r.scale[half]));
                }
                const uint32_t i = g + 8 * half, chunk = j * 2 + pair / 4;
                *(float2 *)&lines[i * OUT_COLS + (chunk ^ i * 2 % 16) * 4 + pair % 4] =
                    make_float2(v[0], v[1]);
            }
        }
        store_lines(out, four, lines, first, (GATED ? o / 2 : o) + c);
    }
}

template <enum form F, unsigned ROWS>
static __device__ __forceinline__ void consume(sm90a_tiles<F, ROWS> &s, const struct many_work &w)
{
    const unsigned n = tile_of<F, ROWS>::width;
    const struct my_part p = part_of<F, ROWS>();
    float *lines = s.out[threadIdx.x / WARP - WGMMA_THREADS / WARP];
    struct ring_position t = {0, 0};
    for (uint32_t i = blockIdx.x;; i += gridDim.x) {
        const struct linear_group at = tile_number<F, ROWS>(i, w);
        typename form_of<F>::acc sums[n / 8][4];
        if (at.row == at.end)
            break;
        struct scale_place scales = {};
        if constexpr (F == FORM_BLOCKS)
            scales = place_scales<n>(w, at,
                                     at.row + p.row + threadIdx.x % WGMMA_THREADS / WARP * 16 +
                                         threadIdx.x % WARP / 4,
                                     at.o + p.col);
        sum_slices<F, ROWS, n>(sums, s, &t, w, scales);
        struct linear_out out = w.out;
        out.n_row = at.end;
        if (F == FORM_I8 || F == FORM_E4M3)
            out.scales = (const float *)((const char *)out.scales + at.group * w.of.w_stride);
        if (out.gated)
            store_sums<F, true, n>(out, w.four, lines, at.row + p.row, at.o + p.col, sums);
        else
            store_sums<F, false, n>(out, w.four, lines, at.row + p.row, at.o + p.col, sums);
    }
}
#endif

template <enum form F, unsigned ROWS>
static __global__ void __launch_bounds__(BLOCK, 1)
    linear_sm90a_kernel(const __grid_constant__ struct many_maps maps,
                        const __grid_constant__ struct many_work w)
{
    await_inputs();
#ifdef HOPPER_CODE
    typedef sm90a_tiles<F, ROWS> tiles;
    SHARED_MEMORY(s, tiles);
    const bool picked = w.of.n_group && w.of.rows;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < tile_of<F, ROWS>::ring; i++) {
            barrier_init(&s.full[i], picked ? 1 + WGMMA_THREADS / WARP : 1);
            barrier_init(&s.empty[i], CONSUMERS * WGMMA_THREADS / WARP);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < WGMMA_THREADS) {
        registers_fewer<40>();
        if (picked)
            produce_picked<F, ROWS>(s, maps, w);
        else if (threadIdx.x < WARP)
            produce_boxes<F, ROWS>(s, maps, w);
    } else {
        registers_more<232>();
        consume<F, ROWS>(s, w);
    }
#endif
}

/* ---- launches ---- */
/* Maximum number of tiles, for any distribution of the rows over the groups. */
static uint32_t work_tiles_max(const struct many_work *w, uint32_t rows, uint32_t outputs)
{
    const uint32_t n = w->out.n_row, n_group = w->of.n_group ? w->of.n_group : 1;
    const uint32_t more = n_group == 1 ? 0 : n < n_group ? n : n_group;
    const uint32_t tall = n_group == 1 ? div_up(n, rows) : n / rows + more;
    return tall * div_up(w->out.n_out, outputs);
}

template <enum form F, unsigned ROWS>
static bool launch_tiles(const struct many_work *w, const struct kern_exec *x)
{
    const size_t bytes = sizeof(sm90a_tiles<F, ROWS>);
    const uint32_t outputs = tile_of<F, ROWS>::n_out, n_group = w->of.n_group ? w->of.n_group : 1;
    const uint32_t n = work_tiles_max(w, ROWS, outputs);
    const uint32_t blocks = w->patience ? TRIAL_BLOCKS : card_blocks(bytes, BLOCKS_MOST);
    const struct map_shape rows = map_bytes_of(w->in.row_bytes, w->out.n_row, w->in.x_bytes, ROWS);
    const struct map_shape matrix =
        map_bytes_of(w->in.row_bytes, w->out.n_out, w->in.row_bytes, outputs);
    struct many_maps maps;
    if (!tensor_map_encode(&maps.x, w->in.x, &rows))
        return false;
    const struct map_shape all = map_several(
        matrix, n_group, w->of.n_group ? w->of.w_stride : w->in.row_bytes * w->out.n_out);
    if (!tensor_map_encode(&maps.w, w->in.w, &all))
        return false;
    launch(linear_sm90a_kernel<F, ROWS>, dim3(n < blocks ? n : blocks), BLOCK, bytes, x, maps, *w);
    return true;
}

/* Which tiles: those of which the card is through sooner (a trial goes by rows). A flat one has half the work of a tall
 * one (of e4m3 all of it), and takes about 0.7 of its time: shared memory gives no more. */
template <enum form F> static bool choose(const struct many_work *w, const struct kern_exec *x)
{
    const uint32_t blocks = card_blocks(sizeof(sm90a_tiles<F, TALL_ROWS>), BLOCKS_MOST);
    const uint32_t n_group = w->of.n_group ? w->of.n_group : 1;
    const uint32_t tall = work_tiles_max(w, TALL_ROWS, tile_of<F, TALL_ROWS>::n_out);
    const uint32_t flat = work_tiles_max(w, FLAT_ROWS, tile_of<F, FLAT_ROWS>::n_out);
    const uint32_t by_tall = div_up(tall, blocks) * 10;
    const uint32_t by_flat = div_up(flat, blocks) * (tile_of<F, TALL_ROWS>::twice ? 10 : 7);
    if (w->out.n_row <= FLAT_ROWS * n_group || (!w->patience && by_flat < by_tall))
        return launch_tiles<F, FLAT_ROWS>(w, x);
    return launch_tiles<F, TALL_ROWS>(w, x);
}

bool linear_wgmma(enum form f, const struct linear_in *in, const struct linear_out *out,
                  const struct groups *g, const struct block_scales *scales,
                  const struct kern_exec *x, unsigned patience)
{
    const struct groups none = {};
    const struct block_scales unscaled = {};
    const uint32_t n_col = out->gated ? out->n_out / 2 : out->n_out;
    const struct many_work w = {
        *in,           *out,
        g ? *g : none, scales ? *scales : unscaled,
        patience,      fours(out->y, out->y_dtype, out->y_stride) && n_col >= 4};
    if (f == FORM_BF16)
        return choose<FORM_BF16>(&w, x);
    if (f == FORM_F16)
        return choose<FORM_F16>(&w, x);
    if (f == FORM_I8)
        return choose<FORM_I8>(&w, x);
    if (f == FORM_BLOCKS)
        return choose<FORM_BLOCKS>(&w, x);
    return choose<FORM_E4M3>(&w, x);
}
