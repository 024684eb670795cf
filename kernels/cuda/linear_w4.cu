/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8 and linear_w4a16: 4-bit weights in groups (ops_int4.h, layout.h) by tensor cores, for int8
 * and for bf16 or f16 activations; and the same of all experts of a layer in one launch (ops_moe.h).
 *
 * W is the A of an mma (16 outputs), x the B (8 rows of the batch). A lane (g, t) reads 16 bytes of row g of
 * W: its words (t, j), j = 0 … 3, each 8 inputs of a quarter of 128. They are unpacked in registers to
 * q - zero: as signed bytes for one mma m16n8k32, or as 16-bit floats, 2^7 + q (bf16) or 2^10 + q (f16) less
 * 2^7 or 2^10 + zero, both exact, for two mma m16n8k16. x is read with the same permutation of k: any permutation
 * is valid if A and B use the same.
 *
 * Order: within a group integers, exact (int8), or the mma's f32 from 0, quarters ascending; groups
 * ascending, acc = fma(scale, group, acc). So int8 has the bits of ops_int4.h and ref/linear_w4a8.c, and both
 * kernels give a row the same bits.
 *
 * few: up to 16 rows.
 *   Shape: a block of 8 warps has 32 outputs x 8 or 16 rows. A round is up to 16 blocks of 128 inputs, of which
 *     a warp takes one or two, 32 rows x 64 bytes each, straight from device memory to registers, while the
 *     sums of the last round are folded: a thread folds one or two outputs of a row, groups ascending. The first
 *     round's are requested before the wait for the kernel ahead (not those of experts, whose choice it makes).
 *   Shared (few_shared): group sums of a round [32 groups][2 mma][n_row / 8][32 lanes] x 16 bytes and their
 *     totals: 33 or 66 KiB.
 *   Bytes: n_in / 2 + 3 n_in / group an output; x of a block, from L2; y. Limit: bytes / bandwidth.
 * many:
 *   Shape: a block of 8 warps has 128 outputs x 64 rows, a warp 32 x 32 (4 x 2 warps).
 *   Shared (many_shared): 3 stages of [128 rows of W][64 bytes] and [64 rows of x][128 inputs], cp.async: 48 KiB
 *     (int8) or 72 KiB. Units of 32 inputs of x are rotated by the row number, so that there are no bank conflicts.
 *   FLOP: 2 n_row n_out n_in. Limit: FLOP / peak of the activations' type.
 * groups: the same two with a matrix of its own for each group of rows (experts, groups.cuh), by tiles of 8 or
 *   16 rows where a group has no more on average, else of 64. Rows of x are read where they are.
 *   Bytes: the matrices of the chosen experts, once for each of their tiles, mostly from L2.
 *
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/linear.cuh"

#define WARPS      8u
#define FEW_ROWS   16u
#define FEW_GROUPS 32u /* of a round */
#define FEW_BLOCKS 2u  /* of 128 inputs, of a warp in a round */
#define MANY_OUT   128u
#define MANY_ROWS  64u
#define MANY_WARP  32u /* rows of a warp */
#define STAGES     3u

struct int4_in {
    const void *x; /* int8 or 16-bit floats, rows of x_bytes */
    size_t x_bytes;
    const uint8_t *w;
    const uint16_t *scales;           /* f16 [n_out][n_group] */
    const uint8_t *zeros;             /* [n_out][n_group] */
    uint32_t n_in, n_group, quarters; /* quarters: of 32 inputs, in a group: 1, 2 or 4 */
};

template <enum form F> struct quarter_of { /* a lane's registers for 32 inputs of a row */
    static const unsigned regs = 4, element = 2;
    typedef uint4 of_x;
};
template <> struct quarter_of<FORM_I8> {
    static const unsigned regs = 2, element = 1;
    typedef uint2 of_x;
};

/* The offset that is subtracted from the 8 weights of a word. */
template <enum form F> static __device__ __forceinline__ uint32_t zero_code(uint32_t zero)
{
    return F == FORM_I8     ? zero * 0x01010101u
           : F == FORM_BF16 ? (0x4300u | zero) * 0x00010001u
                            : (0x6400u | zero) * 0x00010001u;
}

template <enum form F>
static __device__ __forceinline__ void unpack(uint32_t *to, uint32_t word, uint32_t zero)
{
    const uint32_t low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
    if constexpr (F ==
                  FORM_I8) { /* no byte borrows from the next: 128 + q - zero is within 112 … 143 */
        to[0] = ((low | 0x80808080u) - zero) ^ 0x80808080u;
        to[1] = ((high | 0x80808080u) - zero) ^ 0x80808080u;
    } else {
        const uint32_t top = F == FORM_BF16 ? 0x43434343u : 0x64646464u;
        to[0] = minus_pair<F == FORM_BF16>(__byte_perm(low, top, 0x5140), zero);
        to[1] = minus_pair<F == FORM_BF16>(__byte_perm(low, top, 0x7362), zero);
        to[2] = minus_pair<F == FORM_BF16>(__byte_perm(high, top, 0x5140), zero);
        to[3] = minus_pair<F == FORM_BF16>(__byte_perm(high, top, 0x7362), zero);
    }
}

/* acc += 16 outputs x 8 rows over 32 inputs; low, high: unpacked words of rows g and g + 8 of W. */
static __device__ __forceinline__ void multiply32(int acc[4], const uint32_t *low,
                                                  const uint32_t *high, uint2 x)
{
    const uint32_t a[4] = {low[0], high[0], low[1], high[1]}, b[2] = {x.x, x.y};
    mma_s8(acc, a, b);
}
template <enum form F>
static __device__ __forceinline__ void multiply_halves(float acc[4], const uint32_t *low,
                                                       const uint32_t *high, uint4 x)
{
    const uint32_t a[2][4] = {{low[0], high[0], low[1], high[1]},
                              {low[2], high[2], low[3], high[3]}};
    const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        if constexpr (F == FORM_BF16)
            mma_bf16(acc, a[i], b[i]);
        else
            mma_f16(acc, a[i], b[i]);
    }
}
template <enum form F>
static __device__ __forceinline__ void multiply_quarter(typename form_of<F>::acc acc[4],
                                                        const uint32_t *low, const uint32_t *high,
                                                        typename quarter_of<F>::of_x x)
{
    if constexpr (F == FORM_I8)
        multiply32(acc, low, high, x);
    else
        multiply_halves<F>(acc, low, high, x);
}

static __device__ __forceinline__ uint32_t word_of(uint4 v, unsigned j)
{
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

/* Output `o`, or past the end the last output, whose sums are not stored. */
static __device__ __forceinline__ size_t within(uint32_t o, uint32_t n)
{
    return o < n ? o : n - 1;
}

/* ---- few rows ---- */
template <enum form F, unsigned N> struct few_shared {
    typename form_of<F>::acc group[FEW_GROUPS][2][N][WARP * 4];
    float total[2][N][WARP * 4];
};

/* The part of a block: outputs from o on and rows from `row` on; x_row: this lane's rows of x. */
template <unsigned N> struct few_part {
    uint32_t o, row, x_row[N];
};

struct few_place {              /* of a warp in a round */
    uint32_t o, block, n_block; /* first output of the block; first of 128 inputs, how many */
};

static __device__ __forceinline__ void few_load(uint4 w[FEW_BLOCKS][4], const struct int4_in &in,
                                                const struct linear_out &out,
                                                const struct few_place &p)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const size_t row_bytes = int4_row_bytes(in.n_in);
#pragma unroll
    for (unsigned i = 0; i < FEW_BLOCKS; i++)
#pragma unroll
        for (unsigned r = 0; r < 4; r++) {
            w[i][r] = make_uint4(0, 0, 0, 0);
            if (i < p.n_block)
                w[i][r] = load_once(in.w + within(p.o + g + 8 * r, out.n_out) * row_bytes +
                                    (size_t)(p.block + i) * INT4_BLOCK_BYTES + 16 * t);
        }
}

/* A warp's blocks in a round: as many as FEW_GROUPS takes, but something for every warp. */
static __device__ __forceinline__ uint32_t few_each(const struct int4_in &in)
{
    const uint32_t n_block = (in.n_in + INT4_BLOCK - 1) / INT4_BLOCK;
    return in.quarters == 1 || n_block <= WARPS ? 1 : FEW_BLOCKS;
}

/* Those of a warp from `block` on. */
static __device__ __forceinline__ struct few_place few_place_at(const struct int4_in &in,
                                                                uint32_t o, uint32_t block)
{
    const uint32_t n_block = (in.n_in + INT4_BLOCK - 1) / INT4_BLOCK, mine = few_each(in);
    const uint32_t left = block < n_block ? n_block - block : 0;
    return {o, block, left < mine ? left : mine};
}

/* The first ones of W. */
static __device__ __forceinline__ void few_begin(uint4 w[FEW_BLOCKS][4], const struct int4_in &in,
                                                 const struct linear_out &out, uint32_t o)
{
    few_load(w, in, out, few_place_at(in, o, threadIdx.x / WARP * few_each(in)));
}

struct few_at {            /* of one block of 128 inputs */
    uint32_t group, block; /* where its groups go, which it is */
};

/* Sums of its groups, into shared memory. */
template <enum form F, unsigned N>
static __device__ __forceinline__ void
few_block(few_shared<F, N> &s, const struct few_at &at, const uint4 w[4], const struct int4_in &in,
          const struct linear_out &out, const struct few_part<N> &p)
{
    typedef typename quarter_of<F>::of_x of_x;
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    typename form_of<F>::acc acc[2][N][4] = {};
    uint32_t zero[4] = {};
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        const uint32_t k = at.block * INT4_BLOCK + 32 * j, group = k / 32 / in.quarters;
        if (k >= in.n_in)
            break;
        if (j % in.quarters == 0)
#pragma unroll
            for (unsigned r = 0; r < 4; r++)
                zero[r] =
                    zero_code<F>(in.zeros[within(p.o + g + 8 * r, out.n_out) * in.n_group + group]);
        uint32_t a[4][quarter_of<F>::regs];
#pragma unroll
        for (unsigned r = 0; r < 4; r++)
            unpack<F>(a[r], word_of(w[r], j), zero[r]);
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            const of_x x = *(const of_x *)((const char *)in.x + p.x_row[n] * in.x_bytes +
                                           (size_t)(k + 8 * t) * quarter_of<F>::element);
            multiply_quarter<F>(acc[0][n], a[0], a[1], x);
            multiply_quarter<F>(acc[1][n], a[2], a[3], x);
        }
        if ((j + 1) % in.quarters == 0)
#pragma unroll
            for (unsigned i = 0; i < 2 * N * 4; i++) {
                s.group[at.group + j / in.quarters][i / 4 / N][i / 4 % N][lane * 4 + i % 4] =
                    acc[i / 4 / N][i / 4 % N][i % 4];
                acc[i / 4 / N][i / 4 % N][i % 4] = 0;
            }
    }
}

/* Where value `i` of [2][N][lane * 4 + e] belongs. */
struct few_value {
    uint32_t out, row; /* of the block's 32, of the rows */
};
template <unsigned N> static __device__ __forceinline__ struct few_value few_value_at(uint32_t i)
{
    const uint32_t e = i % 4, lane = i / 4 % WARP, n = i / 4 / WARP % N, m = i / 4 / WARP / N;
    return {16 * m + lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2};
}

/* PICKED: of a group (linear.cuh). */
template <bool PICKED>
static __device__ __forceinline__ float scale_of(const struct linear_out &out, uint32_t row)
{
    return out.rows[PICKED && out.picked ? out.picked[row] : row].scale;
}

template <enum form F, unsigned N, bool PICKED>
static __device__ __forceinline__ void few_store(few_shared<F, N> &s, const float acc[N],
                                                 const struct linear_out &out,
                                                 const struct few_part<N> &p)
{
    float *total = &s.total[0][0][0];
#pragma unroll
    for (unsigned v = 0; v < N; v++)
        total[threadIdx.x + v * WARPS * WARP] = acc[v];
    __syncthreads();
#pragma unroll
    for (unsigned v = 0; v < N; v++) {
        const uint32_t i = threadIdx.x + v * WARPS * WARP;
        const struct few_value at = few_value_at<N>(i);
        const uint32_t row = p.row + at.row, o = p.o + at.out;
        if (row >= out.n_row || o >= out.n_out)
            continue;
        const float scale = F == FORM_I8 ? scale_of<PICKED>(out, row) : 1;
        if (!out.gated)
            epilogue(out, row, o, total[i] * scale);
        else if (at.out < KERN_GATE_INTERLEAVE)
            epilogue_gated(out, row, o, total[i] * scale, total[i + N * WARP * 4] * scale);
    }
}

/* w: has what few_begin loads. */
template <enum form F, unsigned N, bool PICKED>
static __device__ __forceinline__ void
few_rows(few_shared<F, N> &s, uint4 w[FEW_BLOCKS][4], const struct int4_in &in,
         const struct linear_out &out, const struct few_part<N> &part)
{
    const uint32_t warp = threadIdx.x / WARP, mine = few_each(in);
    const uint32_t n_block = (in.n_in + INT4_BLOCK - 1) / INT4_BLOCK, per = 4 / in.quarters;
    float acc[N] = {};
    struct few_place p = few_place_at(in, part.o, warp * mine);
    for (uint32_t first = 0; first < n_block; first += WARPS * mine) {
#pragma unroll
        for (unsigned i = 0; i < FEW_BLOCKS; i++)
            if (i < p.n_block)
                few_block<F, N>(s, {(warp * mine + i) * per, p.block + i}, w[i], in, out, part);
        p = few_place_at(in, part.o, p.block + WARPS * mine);
        few_load(w, in, out, p);
        __syncthreads();
        const uint32_t g0 = first * per, left = in.n_group - g0;
        const uint32_t n = left < WARPS * mine * per ? left : WARPS * mine * per;
#pragma unroll
        for (unsigned v = 0; v < N; v++) {
            const uint32_t i = threadIdx.x + v * WARPS * WARP;
            const uint16_t *scale =
                in.scales + within(part.o + few_value_at<N>(i).out, out.n_out) * in.n_group + g0;
#pragma unroll 4
            for (uint32_t g = 0; g < n; g++)
                acc[v] = fmaf(f16_value(scale[g]), (float)(&s.group[g][0][0][0])[i], acc[v]);
        }
        __syncthreads();
    }
    few_store<F, N, PICKED>(s, acc, out, part);
}

/* Blocks per multiprocessor for __launch_bounds__; 0: the compiler's choice. For 8 rows the compiler's choice
 * spills. */
template <enum form F, unsigned N, bool PICKED> struct few_blocks {
    static const unsigned n = N == 1 && (PICKED || F != FORM_I8) ? 2 : 0;
};

template <enum form F, unsigned N>
static __global__ void __launch_bounds__(WARPS *WARP, few_blocks<F, N, false>::n)
    int4_few_kernel(const struct int4_in in, const struct linear_out out)
{
    typedef few_shared<F, N> shared_type;
    SHARED_MEMORY(s, shared_type);
    struct few_part<N> p;
    uint4 w[FEW_BLOCKS][4];
    p.o = blockIdx.x * WARP_OUT;
    p.row = 0;
#pragma unroll
    for (unsigned n = 0; n < N; n++)
        p.x_row[n] = (uint32_t)within(8 * n + threadIdx.x % WARP / 4, out.n_row);
    few_begin(w, in, out, p.o);
    await_inputs();
    few_rows<F, N, false>(s, w, in, out, p);
}

/* ---- many rows ---- */
template <enum form F> struct many_shared {
    uint4 w[STAGES][MANY_OUT][4];
    uint8_t x[STAGES][MANY_ROWS][4][32 * quarter_of<F>::element]; /* unit j of row r at j ^ r % 4 */
};

/* The part of a block: rows from `row` on; x_row: the row of x of which this thread loads 16 bytes. */
template <enum form F> struct many_part {
    static const unsigned chunks = 8 * quarter_of<F>::element; /* of 16 bytes in 128 inputs */
    static const unsigned step = WARPS * WARP / chunks;        /* rows from one to the next */
    uint32_t row, x_row[MANY_ROWS / step];
};

template <enum form F>
static __device__ __forceinline__ void
int4_many_load(many_shared<F> &s, uint32_t stage, const struct int4_in &in,
               const struct linear_out &out, const struct many_part<F> &p, uint32_t block)
{
    const unsigned element = quarter_of<F>::element, chunks = many_part<F>::chunks;
    const unsigned per = 2 * element, step = many_part<F>::step;
    const size_t row_bytes = int4_row_bytes(in.n_in);
#pragma unroll
    for (uint32_t i = threadIdx.x; i < MANY_OUT * 4; i += WARPS * WARP) {
        const uint32_t o = blockIdx.x * MANY_OUT + i / 4;
        cp_async16(&s.w[stage][i / 4][i % 4],
                   in.w + within(o, out.n_out) * row_bytes + (size_t)block * INT4_BLOCK_BYTES +
                       i % 4 * 16,
                   o < out.n_out ? 16 : 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < MANY_ROWS / step; i++) {
        const uint32_t r = threadIdx.x / chunks + i * step, c = threadIdx.x % chunks;
        const uint32_t k = block * INT4_BLOCK + c * 16 / element;
        const bool there = p.row + r < out.n_row && k < in.n_in;
        cp_async16(&s.x[stage][r][c / per ^ r % 4][c % per * 16],
                   (const char *)in.x +
                       (there ? p.x_row[i] * in.x_bytes + (size_t)k * element : (size_t)0),
                   there ? 16 : 0);
    }
}

/* The groups of one block of 128 inputs: this warp's 32 outputs x 32 rows. */
template <enum form F>
static __device__ __forceinline__ void
int4_many_block(float total[2][4][4], const many_shared<F> &s, uint32_t stage,
                const struct int4_in &in, uint32_t n_out, uint32_t block)
{
    typedef typename quarter_of<F>::of_x of_x;
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t out = warp % 4 * WARP_OUT + g, row = warp / 4 * MANY_WARP + g;
    typename form_of<F>::acc acc[2][4][4] = {};
    uint32_t zero[4] = {};
    size_t at[4];
    uint4 w[4];
#pragma unroll
    for (unsigned r = 0; r < 4; r++) {
        at[r] = within(blockIdx.x * MANY_OUT + out + 8 * r, n_out) * in.n_group;
        w[r] = s.w[stage][out + 8 * r][t];
    }
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        const uint32_t k = block * INT4_BLOCK + 32 * j, group = k / 32 / in.quarters;
        if (k >= in.n_in)
            break;
        uint32_t a[4][quarter_of<F>::regs];
#pragma unroll
        for (unsigned r = 0; r < 4; r++) {
            if (j % in.quarters == 0)
                zero[r] = zero_code<F>(in.zeros[at[r] + group]);
            unpack<F>(a[r], word_of(w[r], j), zero[r]);
        }
#pragma unroll
        for (unsigned n = 0; n < 4; n++) {
            const of_x x = *(const of_x *)&s
                                .x[stage][row + 8 * n][j ^ row % 4][8 * t * quarter_of<F>::element];
            multiply_quarter<F>(acc[0][n], a[0], a[1], x);
            multiply_quarter<F>(acc[1][n], a[2], a[3], x);
        }
        if ((j + 1) % in.quarters)
            continue;
#pragma unroll
        for (unsigned m = 0; m < 2; m++) {
            const float low = f16_value(in.scales[at[2 * m] + group]);
            const float high = f16_value(in.scales[at[2 * m + 1] + group]);
#pragma unroll
            for (unsigned n = 0; n < 4; n++)
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
                    total[m][n][i] = fmaf(i < 2 ? low : high, (float)acc[m][n][i], total[m][n][i]);
                    acc[m][n][i] = 0;
                }
        }
    }
}

template <enum form F, bool PICKED>
static __device__ __forceinline__ void many_rows(many_shared<F> &s, const struct int4_in &in,
                                                 const struct linear_out &out,
                                                 const struct many_part<F> &p)
{
    const uint32_t n_block = (in.n_in + INT4_BLOCK - 1) / INT4_BLOCK, warp = threadIdx.x / WARP;
    float total[2][4][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < n_block)
            int4_many_load<F>(s, i, in, out, p, i);
        cp_async_commit();
    }
#pragma unroll 1
    for (uint32_t b = 0; b < n_block; b++) {
        cp_async_wait(STAGES - 2);
        __syncthreads(); /* block b is loaded, and no warp reads the stage that is loaded next */
        if (b + STAGES - 1 < n_block)
            int4_many_load<F>(s, (b + STAGES - 1) % STAGES, in, out, p, b + STAGES - 1);
        cp_async_commit();
        int4_many_block<F>(total, s, b % STAGES, in, out.n_out, b);
    }
    cp_async_wait(0);
    const uint32_t o = blockIdx.x * MANY_OUT + warp % 4 * WARP_OUT;
#pragma unroll
    for (unsigned n = 0; n < 4; n++) {
        const uint32_t row = p.row + warp / 4 * MANY_WARP + 8 * n;
        if constexpr (F == FORM_I8)
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                const uint32_t r = row + threadIdx.x % 4 * 2 + i % 2;
                const float scale = r < out.n_row ? scale_of<PICKED>(out, r) : 0;
                total[0][n][i] *= scale;
                total[1][n][i] *= scale;
            }
        epilogue_tile(out, o, row, total[0][n], total[1][n]);
    }
}

template <enum form F>
static __global__ void __launch_bounds__(WARPS *WARP, 1)
    int4_many_kernel(const struct int4_in in, const struct linear_out out)
{
    await_inputs();
    SHARED_MEMORY(s, many_shared<F>);
    struct many_part<F> p;
    p.row = blockIdx.y * MANY_ROWS;
#pragma unroll
    for (uint32_t i = 0; i < MANY_ROWS / many_part<F>::step; i++)
        p.x_row[i] = p.row + threadIdx.x / many_part<F>::chunks + i * many_part<F>::step;
    many_rows<F, false>(s, in, out, p);
}

/* ---- experts ---- */
/* The matrix of the group, and rows up to its end. */
static __device__ __forceinline__ void to_group(struct int4_in &in, struct linear_out &out,
                                                const struct groups &g,
                                                const struct linear_group &t)
{
    const size_t at = t.group * g.w_stride;
    in.w += at;
    in.scales = (const uint16_t *)(const void *)((const uint8_t *)in.scales + at);
    in.zeros += at;
    out.n_row = t.end;
}

template <enum form F, unsigned N>
static __global__ void __launch_bounds__(WARPS *WARP, few_blocks<F, N, true>::n)
    int4_few_groups_kernel(const struct int4_in all_in, const struct linear_out all_out,
                           const struct groups g)
{
    await_inputs();
    typedef few_shared<F, N> shared_type;
    SHARED_MEMORY(s, shared_type);
    const struct linear_group t = tile_at(g, blockIdx.y, 8 * N);
    struct int4_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, out, g, t);
    struct few_part<N> p;
    uint4 w[FEW_BLOCKS][4];
    p.o = blockIdx.x * WARP_OUT;
    p.row = t.row;
#pragma unroll
    for (unsigned n = 0; n < N; n++)
        p.x_row[n] = row_of_x(g, (uint32_t)within(t.row + 8 * n + threadIdx.x % WARP / 4, t.end));
    few_begin(w, in, out, p.o);
    few_rows<F, N, true>(s, w, in, out, p);
}

template <enum form F>
static __global__ void __launch_bounds__(WARPS *WARP, 1)
    int4_many_groups_kernel(const struct int4_in all_in, const struct linear_out all_out,
                            const struct groups g)
{
    await_inputs();
    SHARED_MEMORY(s, many_shared<F>);
    const struct linear_group t = tile_at(g, blockIdx.y, MANY_ROWS);
    struct int4_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, out, g, t);
    struct many_part<F> p;
    p.row = t.row;
#pragma unroll
    for (uint32_t i = 0; i < MANY_ROWS / many_part<F>::step; i++) {
        const uint32_t r = threadIdx.x / many_part<F>::chunks + i * many_part<F>::step;
        p.x_row[i] = row_of_x(g, (uint32_t)within(t.row + r, t.end));
    }
    many_rows<F, true>(s, in, out, p);
}

/* ---- launches ---- */
template <enum form F>
static void int4_tiles(const struct int4_in *in, const struct linear_out *out,
                       const struct kern_exec *x)
{
    const dim3 few(div_up(out->n_out, WARP_OUT));
    typedef few_shared<F, 1> one;
    typedef few_shared<F, 2> two;
    if (out->n_row <= 8)
        launch(int4_few_kernel<F, 1>, few, WARPS * WARP, sizeof(one), x, *in, *out);
    else if (out->n_row <= FEW_ROWS)
        launch(int4_few_kernel<F, 2>, few, WARPS * WARP, sizeof(two), x, *in, *out);
    else
        launch(int4_many_kernel<F>,
               dim3(div_up(out->n_out, MANY_OUT), div_up(out->n_row, MANY_ROWS)), WARPS * WARP,
               sizeof(many_shared<F>), x, *in, *out);
}

template <enum form F>
static void int4_group_tiles(const struct int4_in *in, const struct linear_out *out,
                             const struct groups *g, const struct kern_exec *x)
{
    const uint32_t n = out->n_row, few = div_up(out->n_out, WARP_OUT);
    typedef few_shared<F, 1> one;
    typedef few_shared<F, 2> two;
    if (n <= 8 * g->n_group) /* on average */
        launch(int4_few_groups_kernel<F, 1>, dim3(few, tiles_max(n, g->n_group, 8)), WARPS * WARP,
               sizeof(one), x, *in, *out, *g);
    else if (n <= FEW_ROWS * g->n_group)
        launch(int4_few_groups_kernel<F, 2>, dim3(few, tiles_max(n, g->n_group, FEW_ROWS)),
               WARPS * WARP, sizeof(two), x, *in, *out, *g);
    else
        launch(int4_many_groups_kernel<F>,
               dim3(div_up(out->n_out, MANY_OUT), tiles_max(n, g->n_group, MANY_ROWS)),
               WARPS * WARP, sizeof(many_shared<F>), x, *in, *out, *g);
}

static struct int4_in int4_in_of(const struct packed *w, const void *x, size_t x_bytes)
{
    const uint8_t *data = (const uint8_t *)w->data;
    const struct int4_in in = {
        x,
        x_bytes,
        data,
        (const uint16_t *)(const void *)(data + int4_scales_from(w->n_out, w->n_in)),
        data + int4_zeros_from(w->n_out, w->n_in, w->group),
        w->n_in,
        w->n_in / w->group,
        w->group / 32};
    return in;
}

static struct linear_out int8_out(const struct linear_int8_args *a)
{
    const struct linear_out out = {a->y,     a->y_stride, a->y_dtype, a->bias,       NULL, a->rows,
                                   a->n_row, a->w.n_out,  a->w.gated, a->accumulate, NULL};
    return out;
}

static struct linear_out half_out(const struct linear_args *a)
{
    const struct linear_out out = {a->y,     a->y_stride, a->y_dtype, a->bias,       NULL, NULL,
                                   a->n_row, a->w.n_out,  a->w.gated, a->accumulate, NULL};
    return out;
}

extern "C" void linear_w4a8_cuda(const struct linear_w4a8_args *args, const struct kern_exec *x)
{
    const struct linear_int8_args *a = &args->by;
    const struct linear_out out = int8_out(a);
    const struct int4_in in = int4_in_of(&a->w, a->x, a->x_stride);
    if (a->n_row)
        int4_tiles<FORM_I8>(&in, &out, x);
}

extern "C" void linear_w4a16_cuda(const struct linear_w4a16_args *args, const struct kern_exec *x)
{
    const struct linear_args *a = &args->by;
    const struct linear_out out = half_out(a);
    const struct int4_in in = int4_in_of(&a->w, a->x, a->x_stride * 2);
    if (a->n_row == 0)
        return;
    if (a->x_dtype == DT_BF16)
        int4_tiles<FORM_BF16>(&in, &out, x);
    else
        int4_tiles<FORM_F16>(&in, &out, x);
}

extern "C" void linear_w4a8_grouped_cuda(const struct linear_w4a8_grouped_args *args,
                                         const struct kern_exec *x)
{
    const struct linear_int8_args *a = &args->as.by;
    const struct int4_in in = int4_in_of(&a->w, a->x, a->x_stride);
    struct linear_out out = int8_out(a);
    out.picked = args->as.of.rows;
    if (a->n_row)
        int4_group_tiles<FORM_I8>(&in, &out, &args->as.of, x);
}

extern "C" void linear_w4a16_grouped_cuda(const struct linear_w4a16_grouped_args *args,
                                          const struct kern_exec *x)
{
    const struct linear_args *a = &args->as.by;
    const struct linear_out out = half_out(a);
    const struct int4_in in = int4_in_of(&a->w, a->x, a->x_stride * 2);
    if (a->n_row == 0)
        return;
    if (a->x_dtype == DT_BF16)
        int4_group_tiles<FORM_BF16>(&in, &out, &args->as.of, x);
    else
        int4_group_tiles<FORM_F16>(&in, &out, &args->as.of, x);
}
