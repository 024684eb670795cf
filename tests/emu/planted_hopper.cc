/* SPDX-License-Identifier: Apache-2.0 */
/* Bugs with sm_90a's barriers, copies and products. One kernel has all of them, one at a time: a warp
 * brings tiles of 64 rows x 64 columns to the only slot there is, a warpgroup multiplies each by a
 * selection of columns, and what it gets is compared with the array. Then the same of a kernel that has
 * both operands in shared memory: a warp copies rows of A itself and asks for boxes of one of several
 * B, and the warpgroup has a slice under way while it waits for the next. */
#include "kernels/cuda/hopper.cuh"
#include "planted.h"

#define ROWS    64u
#define ROUNDS  3u
#define THREADS (WGMMA_THREADS + WARP)

enum bug {
    NO_BUG,
    READ_TOO_EARLY,
    FILLED_TOO_EARLY,
    LET_GO_TOO_EARLY,
    BYTES_THAT_NEVER_COME,
    NO_WGMMA_FENCE,
    ACCUMULATOR_TOUCHED,
    WORDS_OF_A_TOUCHED,
    WARPS_APART,
    BARRIER_WITHOUT_FENCE,
    BARRIER_TOO_SOON,
    STRIDE_HALF,
    OTHER_MAJOR,
    BOX_MISPLACED,
    PRODUCT_LEFT_BEHIND,
};
struct alignas(1024) ring {
    uint16_t tile[ROWS * PANEL_COLS];
    uint64_t full, empty;
};
static uint16_t array[ROUNDS * ROWS][PANEL_COLS];

static unsigned value_at(unsigned row, unsigned col)
{
    return (5 * row + 3 * col) % 199; /* exact in bf16 */
}

static void fill_array()
{
    for (unsigned r = 0; r < ROUNDS * ROWS; r++)
        for (unsigned c = 0; c < PANEL_COLS; c++)
            array[r][c] = bf16_of((float)value_at(r, c));
}

template <enum bug BUG> static void bring(struct ring &s, const tensor_map &map)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (BUG != FILLED_TOO_EARLY)
            barrier_wait(&s.empty, (i + 1) % 2, 0);
        else if (i > 0) /* it has come, and nobody says that it was read */
            barrier_wait(&s.full, (i + 1) % 2, 0);
        if (threadIdx.x % WARP == 0) {
            barrier_arrive_bytes(&s.full, sizeof s.tile + (BUG == BYTES_THAT_NEVER_COME ? 16 : 0));
            tensor_copy((char *)s.tile + (BUG == BOX_MISPLACED ? 64 : 0), &map, 0, (int)(i * ROWS),
                        &s.full);
        }
        __syncwarp();
    }
}

/* D[m][n] = tile[n][16 + m % 16], or with the tile's rows as k: tile[16 + m % 16][n]. */
template <enum bug BUG> static unsigned multiply(struct ring &s, unsigned i)
{
    const unsigned thread = threadIdx.x;
    const bool rows_k = i == 1;
    uint64_t b =
        rows_k != (BUG == OTHER_MAJOR)
            ? wgmma_further(wgmma_rows_k(shared_offset(s.tile), ROWS), wgmma_rows_k_at(16))
            : wgmma_further(wgmma_columns_k(shared_offset(s.tile)), wgmma_columns_k_at(ROWS, 16));
    float acc[8][4];
    uint32_t a[4];
    unsigned wrong = 0;
    for (unsigned j = 0; j < 4; j++) {
        const unsigned one = wgmma_a_row(thread, j) % 16, col = wgmma_a_col(thread, j);
        a[j] = col == one ? 0x3f80u : col + 1 == one ? 0x3f800000u : 0;
    }
    if (BUG == STRIDE_HALF)
        b = (b & ~((uint64_t)0x3fff << 32)) | (uint64_t)32 << 32;
    if (BUG == WARPS_APART)
        b += thread / WARP == 2 ? 2 : 0;
    if (BUG != READ_TOO_EARLY)
        barrier_wait(&s.full, i % 2, 0);
    if (BUG != NO_WGMMA_FENCE || i == 0)
        wgmma_fence();
    wgmma_n8(acc, a, b, false, rows_k);
    if (BUG != PRODUCT_LEFT_BEHIND || i + 1 < ROUNDS)
        wgmma_commit();
    if (BUG == ACCUMULATOR_TOUCHED)
        wrong += acc[3][2] < 0 || acc[3][2] >= 0 ? 0 : 1; /* NaN now */
    if (BUG == WORDS_OF_A_TOUCHED)
        a[3] = 0;
    if (BUG == LET_GO_TOO_EARLY && thread % WARP == 0)
        barrier_arrive(&s.empty);
    wgmma_wait(0);
    if (BUG == READ_TOO_EARLY)
        barrier_wait(&s.full, i % 2, 0);
    __syncwarp();
    if (BUG != LET_GO_TOO_EARLY && thread % WARP == 0)
        barrier_arrive(&s.empty);
    for (unsigned j = 0; j < 32; j++) {
        const unsigned k = 16 + wgmma_acc_row(thread, j) % 16, n = wgmma_acc_col(thread, j);
        wrong += acc[j / 4][j % 4] != (float)value_at(i * ROWS + (rows_k ? k : n), rows_k ? n : k);
    }
    return wrong;
}

template <enum bug BUG> static __global__ void hopper()
{
    SHARED_MEMORY(s, struct ring);
    const unsigned t = threadIdx.x;
    unsigned wrong = 0;
    tensor_map map;
    struct map_shape shape = map_shape_of(PANEL_COLS, ROWS);
    shape.dim[1] = ROUNDS * ROWS;
    tensor_map_encode(&map, array, &shape);
    if (t == 0) {
        fill_array();
        barrier_init(&s.full, 1);
        barrier_init(&s.empty, 4);
        if (BUG != BARRIER_WITHOUT_FENCE)
            barrier_init_done();
    }
    if (BUG != BARRIER_TOO_SOON)
        __syncthreads();
    if (t >= WGMMA_THREADS)
        bring<BUG>(s, map);
    else
        for (unsigned i = 0; i < ROUNDS; i++)
            wrong += multiply<BUG>(s, i);
    if (t < PLANTED_OUT)
        planted_out[t] = 3 * ((t + 40) % PLANTED_OUT) + wrong;
}

/* ---- both operands in shared memory ---- */
#define SLICES   4u
#define SLICE    PANEL_ROW_BYTES
#define A_ROWS   WGMMA_M
#define B_ROWS   128u
#define MATRICES 2u

enum tiles_bug {
    NO_TILES_BUG,
    NO_PROXY_FENCE,
    TOLD_BEFORE_IT_CAME,
    LET_GO_OF_LATEST,
    SUMS_SEEN_UNDER_WAY,
    OTHER_MATRIX,
    OTHER_ROWS_OF_A,
    ROWS_UNSWIZZLED,
};
struct alignas(PANEL_ALIGN) slots {
    unsigned char a[2][A_ROWS * SLICE], b[2][B_ROWS * SLICE];
    uint64_t full[2], empty[2];
};
alignas(16) static int8_t rows_a[A_ROWS][SLICES * SLICE];
alignas(16) static int8_t rows_b[MATRICES][B_ROWS][SLICES * SLICE];

/* Row m of A takes columns m, m + 64 … of B's. */
static void fill_rows()
{
    for (unsigned k = 0; k < SLICES * SLICE; k++) {
        for (unsigned m = 0; m < A_ROWS; m++)
            rows_a[m][k] = k % A_ROWS == m;
        for (unsigned n = 0; n < MATRICES * B_ROWS; n++)
            rows_b[n / B_ROWS][n % B_ROWS][k] = (int8_t)((int)(11 * n + 5 * k) % 101 - 50);
    }
}

template <enum tiles_bug BUG> static void bring_slices(struct slots &s, const tensor_map &map)
{
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned i = 0; i < SLICES; i++) {
        const unsigned slot = i % 2;
        barrier_wait(&s.empty[slot], (i / 2 + 1) % 2, 0);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive_bytes(&s.full[slot], sizeof s.b[slot]);
            tensor_copy_of(s.b[slot], &map, (int)(i * SLICE), 0, BUG == OTHER_MATRIX ? 0 : 1,
                           &s.full[slot]);
        }
        for (unsigned c = lane; c < A_ROWS * 8; c += WARP) {
            const unsigned row = c / 8, at = BUG == ROWS_UNSWIZZLED ? c % 8 : c % 8 ^ row % 8;
            cp_async16(s.a[slot] + row * SLICE + at * 16, &rows_a[row][i * SLICE + c % 8 * 16], 16);
        }
        cp_async_commit();
        if (BUG != TOLD_BEFORE_IT_CAME)
            cp_async_wait(0);
        if (BUG != NO_PROXY_FENCE)
            shared_written();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&s.full[slot]);
    }
    cp_async_wait(0);
}

template <enum tiles_bug BUG> static unsigned multiply_slices(struct slots &s)
{
    const unsigned thread = threadIdx.x;
    int acc[B_ROWS / 8][4] = {};
    unsigned wrong = 0;
    for (unsigned i = 0; i < SLICES; i++) {
        const unsigned slot = i % 2;
        const uint64_t a = wgmma_columns_k(shared_offset(s.a[slot]));
        const uint64_t b = wgmma_columns_k(shared_offset(s.b[slot]));
        barrier_wait(&s.full[slot], i / 2 % 2, 0);
        __syncwarp();
        wgmma_fence();
        for (unsigned k = 0; k < SLICE; k += WGMMA_K_BYTES)
            wgmma_tiles<WGMMA_I8, B_ROWS>(
                acc, wgmma_further(a, BUG == OTHER_ROWS_OF_A && i == 1 ? k + 1024 : k),
                wgmma_further(b, k), true);
        wgmma_commit();
        wgmma_wait(1); /* of the slice before */
        __syncwarp();
        if (thread % WARP == 0 && (i || BUG == LET_GO_OF_LATEST))
            barrier_arrive(&s.empty[BUG == LET_GO_OF_LATEST ? slot : 1 - slot]);
    }
    if (BUG != SUMS_SEEN_UNDER_WAY)
        wgmma_wait(0);
    for (unsigned j = 0; j < B_ROWS / 2; j++) {
        const unsigned m = wgmma_acc_row(thread, j), n = wgmma_acc_col(thread, j);
        int want = 0;
        for (unsigned k = m; k < SLICES * SLICE; k += A_ROWS)
            want += rows_b[1][n][k];
        wrong += acc[j / 4][j % 4] != want;
    }
    if (BUG == SUMS_SEEN_UNDER_WAY)
        wgmma_wait(0);
    return wrong;
}

template <enum tiles_bug BUG> static __global__ void tiles()
{
    SHARED_MEMORY(s, struct slots);
    const unsigned t = threadIdx.x;
    unsigned wrong = 0;
    tensor_map map;
    const struct map_shape shape = map_several(
        map_bytes_of(SLICES * SLICE, B_ROWS, SLICES * SLICE, B_ROWS), MATRICES, sizeof rows_b[0]);
    tensor_map_encode(&map, rows_b, &shape);
    if (t == 0) {
        fill_rows();
        for (unsigned i = 0; i < 2; i++) {
            barrier_init(&s.full[i], 2);
            barrier_init(&s.empty[i], 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (t >= WGMMA_THREADS)
        bring_slices<BUG>(s, map);
    else
        wrong = multiply_slices<BUG>(s);
    if (t < PLANTED_OUT)
        planted_out[t] = 3 * ((t + 40) % PLANTED_OUT) + wrong;
}

const struct planted planted_hopper[] = {
#define CASE(bug, by, says)                                                           \
    {                                                                                 \
#bug, hopper < NO_BUG>, hopper < bug>, THREADS, sizeof(struct ring), by, says \
    }
    CASE(READ_TOO_EARLY, BY_WATCH, "race: "),
    CASE(FILLED_TOO_EARLY, BY_WATCH, ""), /* a race, or a phase is missed */
    CASE(LET_GO_TOO_EARLY, BY_WATCH, ""), /* a race, or a phase is missed */
    CASE(BYTES_THAT_NEVER_COME, BY_ALL, "is stuck"),
    CASE(NO_WGMMA_FENCE, BY_ALL, "wgmma without a wgmma.fence"),
    CASE(ACCUMULATOR_TOUCHED, BY_RESULT, "wrong result"),
    CASE(WORDS_OF_A_TOUCHED, BY_RESULT, "wrong result"),
    CASE(WARPS_APART, BY_ALL, "the warps of a warpgroup"),
    CASE(BARRIER_WITHOUT_FENCE, BY_WATCH, "fence: "),
    CASE(BARRIER_TOO_SOON, BY_WATCH, ""), /* a race, or there is no barrier */
    CASE(STRIDE_HALF, BY_RESULT, "wrong result"),
    CASE(OTHER_MAJOR, BY_RESULT, ""), /* past the tile, or wrong */
    CASE(BOX_MISPLACED, BY_ALL, "not aligned to 128"),
    CASE(PRODUCT_LEFT_BEHIND, BY_ALL, "products of wgmma under way"),
#undef CASE
#define CASE(bug, by, says)                                                                \
    {                                                                                      \
#bug, tiles < NO_TILES_BUG>, tiles < bug>, THREADS, sizeof(struct slots), by, says \
    }
    CASE(NO_PROXY_FENCE, BY_WATCH, "fence: "),
    CASE(TOLD_BEFORE_IT_CAME, BY_WATCH, ""), /* a race, or a byte that is written without a fence */
    CASE(LET_GO_OF_LATEST, BY_WATCH, ""),    /* a race, or a phase is missed */
    CASE(SUMS_SEEN_UNDER_WAY, BY_RESULT, "wrong result"),
    CASE(OTHER_MATRIX, BY_RESULT, "wrong result"),
    CASE(OTHER_ROWS_OF_A, BY_RESULT, ""), /* past the tile, or wrong */
    CASE(ROWS_UNSWIZZLED, BY_RESULT, "wrong result"),
#undef CASE
    {},
};
