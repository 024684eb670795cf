/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prompts on sm_90a: the large pieces of a plan by wgmma and the tensor copy engine, bf16 K
 * and V, heads of 64 and 128. attention.cu serves all other cases; the arithmetic here is the same, in the same
 * order: tiles of 64 positions, splits of 256 (attention.cuh). So the two differ at most in how the tensor cores
 * add 16 products; a trial compares them when a card is opened (trial.h).
 *
 * A block has three warpgroups and is persistent: it computes several pieces.
 *
 *     0      producer   one warp: starts tensor copies of K0 V0 K1 V1 … of the piece, one tile per stage
 *     1, 2   consumers  64 rows each of the piece's 128 (query tokens x the heads of a KV head):
 *                         S   = Q K^T     m64n64k16, Q from registers, K as its rows lie: columns are k
 *                         p   = exp(S - m) in the accumulators' registers, which as bf16 are the next A
 *                         acc += p V      m64nDk16, V as its rows lie: rows are k (N-major)
 *
 * A consumer starts the next tile's S and p V together, and computes the next softmax while p V is computed
 * (FlashAttention-3, arXiv 2407.08608, section 3.2); the other consumer uses the tensor cores meanwhile too. All
 * registers of both products are ready before the first of them: else the compiler serializes them (C7520). Q is
 * read once and kept as fragments: in shared memory it would be read again for every tile, with 64 columns of B
 * as many bytes as B itself, which already needs the full bandwidth of shared memory (128 bytes a cycle).
 *
 * Shared memory (sm90a_shared), 130 KiB, or 161 with heads of 128:
 *     stage [8 or 16]     64 positions x D bf16 in panels of 64 columns, 128-byte swizzle (hopper.h)
 *     full [..]          mbarrier: the stage is loaded; one arrival and the byte count
 *     empty [..]         mbarrier: the stage is free; one arrival of each of the 8 consumer warps
 *     total [8 warps]    heads of 128: half of the total of splits
 * Both sides track stage and phase parity over all pieces without reset. Consumers process every load of the piece;
 * of tiles that are masked for all of their rows they only release the stage.
 *
 * A block of the cache, 16 positions of one KV head, is a box of a tensor map whose rows are [block][head]
 * [position]. Blocks past the context, and single positions of V, are copied from a row outside the map, which the
 * copy engine fills with zeros: p is 0 there, but 0 times the cache's content may be NaN.
 *
 * Registers: 3 x 128 threads start with 168; the producer keeps 24, consumers take 240: acc D / 2,
 * the total of splits D / 2 (of 128: D / 4), S 32, Q D / 4, p 16.
 *
 * FLOP: 4 D a pair of row and position. Bytes: K and V once for 128 rows, 4 D a position, from L2 when heads
 * or chunks share them. 8 k tokens, 32 heads over 8, D 128, causal: 0.55 TFLOP a layer, 0.70 ms at
 * 790 TFLOP/s; 4.3 GB through L2. Shared memory at that peak: 75 % of 128 bytes a cycle (B twice, 64 KiB, and
 * the copy's 32 KiB, in 1024 cycles a tile).
 *
 * Fraction of the limit: not measured on a card yet; no card has run this kernel. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/hopper.cuh"

#define CONSUMERS 2u
#define BLOCK     ((1 + CONSUMERS) * WGMMA_THREADS)
#define RING_ROOM (128u << 10)
static_assert(PLAN_ROWS_LARGE == CONSUMERS * WGMMA_M, "a consumer has 64 rows");
static_assert(TILE == PANEL_COLS && TILE % KERN_BLOCK == 0, "S is one product wide");

template <int D> struct ring_of {
    static const unsigned n = RING_ROOM / (TILE * D * 2);
};
/* Half of a wide head's total has no registers. */
template <int D> struct split_total {
    static const enum total_place place = D > 64 ? IN_BOTH : IN_REGISTERS;
    static const unsigned n = D > 64 ? D / 4 : 1; /* floats a thread, 32 apart */
};
template <int D> struct alignas(1024) sm90a_shared {
    uint16_t stage[ring_of<D>::n][TILE * D];
    uint64_t full[ring_of<D>::n], empty[ring_of<D>::n];
    float total[CONSUMERS * WGMMA_THREADS / WARP][split_total<D>::n][WARP];
};
struct cache_maps { /* v_row: boxes of one position */
    tensor_map k, v, v_row;
};
struct ring_position { /* of the ring */
    uint32_t stage, parity;
};
template <int D> static __device__ __forceinline__ void next_position(struct ring_position *t)
{
    if (++t->stage == ring_of<D>::n) {
        t->stage = 0;
        t->parity ^= 1;
    }
}

#ifdef HOPPER_CODE
/* Work items of the blocks: item i is a piece for one KV head. */
static __device__ __forceinline__ uint32_t n_work(const struct attention_args &a)
{
    return ((const struct plan_head *)a.plan)->n_large * a.n_kv_head;
}
struct work {
    struct plan_piece piece;
    struct piece_at p;
    struct tile_range tiles; /* that its 128 rows see something of */
};
static __device__ __forceinline__ struct work work_of(const struct attention_args &a, uint32_t i)
{
    const struct plan_head *plan = (const struct plan_head *)a.plan;
    struct work w;
    w.piece = ((const struct plan_piece *)((const char *)plan + plan->large_at))[i / a.n_kv_head];
    w.p = place_of(a, w.piece.seq, i % a.n_kv_head);
    w.tiles = tiles_of(w.piece, seen_by(w.p, a, w.piece.row, PLAN_ROWS_LARGE));
    return w;
}

/* ---- the producer: one warp ---- */
struct feed { /* where its loads come from */
    struct piece_at p;
    uint32_t n_kv_head, ids; /* ids: a lane's of 32 blocks, 8 tiles */
    unsigned patience;
};

/* Lane l has block 32 chunk + l of the table. */
static __device__ __forceinline__ uint32_t ids_of(const struct piece_at &p, uint32_t chunk)
{
    const uint32_t at = chunk * WARP + threadIdx.x % WARP;
    return at < (p.end + KERN_BLOCK - 1) / KERN_BLOCK ? p.seq.blocks[at] : 0;
}

static __device__ __forceinline__ int map_row(const struct feed &f, uint32_t block)
{
    return (int)((block * f.n_kv_head + f.p.kv_head) * KERN_BLOCK);
}

/* Copy tile `tile` to the current stage. rows: the map of single positions, for V. */
template <int D>
static __device__ __forceinline__ void load_stage(sm90a_shared<D> &s, const struct ring_position &t,
                                                  const struct feed &f, const tensor_map *map,
                                                  const tensor_map *rows, uint32_t tile)
{
    const uint32_t lane = threadIdx.x % WARP, panels = D / PANEL_COLS, per_tile = TILE / KERN_BLOCK;
    const uint32_t j = lane / panels % per_tile, col = lane % panels * PANEL_COLS;
    const uint32_t in_ids = tile % (WARP / per_tile) * per_tile;
    const int there = (int)f.p.end - (int)(tile * TILE); /* positions of the tile that exist */
    const int of_block = there - (int)(j * KERN_BLOCK);
    const uint32_t block = __shfl_sync(ALL_LANES, f.ids, in_ids + j);
    const bool cut = rows && there > 0 && there < (int)TILE && there % KERN_BLOCK;
    uint16_t *to = s.stage[t.stage];
    barrier_wait(&s.empty[t.stage], t.parity ^ 1, f.patience);
    if (lane == 0)
        barrier_arrive_bytes(&s.full[t.stage], TILE * D * 2);
    __syncwarp();
    if (lane < per_tile * panels && !(cut && of_block > 0 && of_block < (int)KERN_BLOCK))
        tensor_copy(to + (col / PANEL_COLS * TILE + j * KERN_BLOCK) * PANEL_COLS, map, (int)col,
                    of_block > 0 ? map_row(f, block) : MAP_NOWHERE, &s.full[t.stage]);
    if (cut) { /* the block where the context ends: position by position */
        const uint32_t last = (uint32_t)there / KERN_BLOCK, n = (uint32_t)there % KERN_BLOCK;
        const uint32_t it = __shfl_sync(ALL_LANES, f.ids, in_ids + last);
        for (uint32_t i = lane; i < KERN_BLOCK * panels; i += WARP) {
            const uint32_t row = i / panels, from = i % panels * PANEL_COLS;
            tensor_copy(to + (i % panels * TILE + last * KERN_BLOCK + row) * PANEL_COLS, rows,
                        (int)from, row < n ? map_row(f, it) + (int)row : MAP_NOWHERE,
                        &s.full[t.stage]);
        }
    }
}

template <int D>
static __device__ __forceinline__ void produce(const struct attention_args &a,
                                               const struct cache_maps &maps, sm90a_shared<D> &s,
                                               unsigned patience)
{
    /* tiles whose blocks are looked up at once */
    const uint32_t per_chunk = WARP * KERN_BLOCK / TILE;
    struct ring_position t = {0, 0};
    for (uint32_t i = blockIdx.x; i < n_work(a); i = item_after(i)) {
        const struct work w = work_of(a, i);
        const struct tile_range tiles = w.tiles;
        struct feed f = {w.p, a.n_kv_head, 0, patience};
        uint32_t next = ids_of(f.p, tiles.from / per_chunk);
        for (uint32_t tile = tiles.from; tile < tiles.to; tile++) {
            if (tile == tiles.from || tile % per_chunk == 0) {
                f.ids = next;
                next = ids_of(f.p, tile / per_chunk + 1);
            }
            load_stage<D>(s, t, f, &maps.k, nullptr, tile);
            next_position<D>(&t);
            load_stage<D>(s, t, f, &maps.v, &maps.v_row, tile);
            next_position<D>(&t);
        }
    }
}

/* ---- a consumer: a warpgroup ---- */
/* Rows row … row + 63 of q as A, rounded to bf16; rows that are not there are zeros. */
template <int D>
static __device__ __forceinline__ void load_a(uint32_t (&q)[D / 16][4], const struct piece_at &p,
                                              const struct attention_args &a, uint32_t row)
{
    const uint32_t thread = threadIdx.x % WGMMA_THREADS;
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        const uint32_t at = row + wgmma_a_row(thread, half);
        const bool there = at < p.seq.n_query * p.group;
        const float *from = a.q + (p.seq.row + at / p.group) * a.q_stride +
                            (size_t)(p.kv_head * p.group + at % p.group) * D;
#pragma unroll
        for (unsigned k = 0; k < D / 16; k++)
#pragma unroll
            for (unsigned i = half; i < 4; i += 2) {
                const float *pair = from + WGMMA_K * k + wgmma_a_col(thread, i);
                q[k][i] = there ? bf16_pair(pair[0], pair[1]) : 0;
            }
    }
    hold(q);
}

/* Wait until the current stage is loaded. */
template <int D>
static __device__ __forceinline__ const uint16_t *
wait_for(sm90a_shared<D> &s, const struct ring_position &t, unsigned patience)
{
    barrier_wait(&s.full[t.stage], t.parity, patience);
    __syncwarp(); /* products are for whole warps */
    return s.stage[t.stage];
}

/* The stage may be filled again: its products are done, in all lanes. */
template <int D>
static __device__ __forceinline__ void let_go(sm90a_shared<D> &s, struct ring_position *t)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(&s.empty[t->stage]);
    next_position<D>(t);
}

/* K and V of tiles that none of the rows sees. */
template <int D>
static __device__ __forceinline__ void pass_over(sm90a_shared<D> &s, struct ring_position *t,
                                                 uint32_t from, uint32_t to, unsigned patience)
{
    for (; from < to; from++)
        for (unsigned half = 0; half < 2; half++) {
            wait_for<D>(s, *t, patience);
            let_go<D>(s, t);
        }
}

template <int D> struct consumer { /* 64 rows */
    struct warp_rows rows;
    struct warp_state<D> w;
    warp_total<D, split_total<D>::place> total;
    uint32_t q[D / 16][4], p[TILE / 16][4]; /* A of the two products */
};

/* exp(S - m) as accumulators becomes A. */
static __device__ __forceinline__ void weights_of(uint32_t (&p)[TILE / 16][4], const float s[8][4])
{
#pragma unroll
    for (unsigned k = 0; k < TILE / 16; k++)
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            p[k][i] = bf16_pair(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* A group of products: s = Q K^T. */
template <int D>
static __device__ __forceinline__ void start_scores(float (&s)[8][4], const uint32_t q[D / 16][4],
                                                    const uint16_t *keys)
{
    const uint64_t b = wgmma_columns_k(shared_offset(keys));
#pragma unroll
    for (unsigned k = 0; k < D / 16; k++)
        wgmma_n8(s, q[k], wgmma_further(b, wgmma_columns_k_at(TILE, WGMMA_K * k)), k > 0, false);
    wgmma_commit();
}

/* A group of products: acc += p V. */
template <int D>
static __device__ __forceinline__ void start_values(struct consumer<D> &c, const uint16_t *v)
{
    const uint64_t b = wgmma_rows_k(shared_offset(v), TILE);
#pragma unroll
    for (unsigned k = 0; k < TILE / 16; k++) {
        const uint64_t at = wgmma_further(b, wgmma_rows_k_at(WGMMA_K * k));
        if constexpr (D == 64)
            wgmma_n8(c.w.acc, c.p[k], at, true, true);
        else
            wgmma_n16(c.w.acc, c.p[k], at, true, true);
    }
    wgmma_commit();
}

/* The scores of the first tile. */
template <int D>
static __device__ __forceinline__ void
begin_tiles(struct consumer<D> &c, const struct attention_args &a, sm90a_shared<D> &s,
            struct ring_position *t, uint32_t tile, unsigned patience)
{
    float sc[8][4];
    const uint16_t *keys = wait_for<D>(s, *t, patience);
    wgmma_fence();
    start_scores<D>(sc, c.q, keys);
    wgmma_wait(0);
    hold(sc);
    let_go<D>(s, t);
    finish_scores(sc, c.rows, a, (int)(tile * TILE), nullptr);
    soften<D>(sc, c.w);
    weights_of(c.p, sc);
}

/* The values of a tile, and the scores of the next one. */
template <int D>
static __device__ __forceinline__ void
next_tile(struct consumer<D> &c, const struct attention_args &a, sm90a_shared<D> &s,
          struct ring_position *t, uint32_t tile, unsigned patience)
{
    float sc[8][4];
    struct ring_position of_keys = *t;
    next_position<D>(&of_keys);
    const uint16_t *v = wait_for<D>(s, *t, patience);
    const uint16_t *keys = wait_for<D>(s, of_keys, patience);
    hold(c.p);
    hold(c.w.acc);
    wgmma_fence();
    start_scores<D>(sc, c.q, keys);
    start_values<D>(c, v);
    wgmma_wait(1);
    hold(sc);
    finish_scores(sc, c.rows, a, (int)((tile + 1) * TILE), nullptr);
    if ((tile + 1) % (PLAN_SPLIT / TILE) == 0) { /* acc is complete, and another one begins */
        wgmma_wait(0);
        hold(c.w.acc);
        end_split(c.w, c.total);
        begin_split<D>(c.w);
        soften<D>(sc, c.w);
    } else {
        const struct row_factors f = soften_scores<D>(sc, c.w);
        wgmma_wait(0);
        hold(c.w.acc);
        rescale(c.w, f);
    }
    let_go<D>(s, t); /* V, then K: they are filled in this order */
    let_go<D>(s, t);
    weights_of(c.p, sc);
}

/* The values of the last tile. */
template <int D>
static __device__ __forceinline__ void end_tiles(struct consumer<D> &c, sm90a_shared<D> &s,
                                                 struct ring_position *t, unsigned patience)
{
    const uint16_t *v = wait_for<D>(s, *t, patience);
    hold(c.p);
    hold(c.w.acc);
    wgmma_fence();
    start_values<D>(c, v);
    wgmma_wait(0);
    hold(c.w.acc);
    let_go<D>(s, t);
}

/* Tiles that the consumer's rows see something of. */
static __device__ __forceinline__ struct tile_range
tiles_of_team(const struct work &w, const struct attention_args &a, uint32_t row)
{
    struct tile_range t = tiles_of(w.piece, seen_by(w.p, a, row, WGMMA_M));
    if (t.from >= t.to) /* no such rows */
        t.from = t.to = w.tiles.to;
    return t;
}
static __device__ __forceinline__ uint32_t row_of_team(const struct work &w)
{
    return w.piece.row + (threadIdx.x / WGMMA_THREADS - 1) * WGMMA_M;
}

/* Values that are needed only before and after the loop over tiles are read twice, because there are no registers
 * to keep them. */
template <int D>
static __device__ __forceinline__ void consume_one(const struct attention_args &a, uint32_t i,
                                                   sm90a_shared<D> &s, struct ring_position *t,
                                                   unsigned patience)
{
    struct consumer<D> c;
    struct tile_range mine;
    {
        const struct work k = work_of(a, i);
        const uint32_t row = row_of_team(k);
        mine = tiles_of_team(k, a, row);
        rows_of_warp(&c.rows, k.p, a, row + threadIdx.x % WGMMA_THREADS / WARP * 16);
        load_a<D>(c.q, k.p, a, row);
        pass_over<D>(s, t, k.tiles.from, mine.from, patience);
    }
    c.total = {};
    c.total.f[0] = c.total.f[1] = {NONE, 0, 1, 0};
    c.total.far_o = &s.total[(threadIdx.x - WGMMA_THREADS) / WARP][0][threadIdx.x % WARP];
    begin_split<D>(c.w);
    if (mine.from < mine.to)
        begin_tiles<D>(c, a, s, t, mine.from, patience);
    for (uint32_t tile = mine.from; tile + 1 < mine.to; tile++)
        next_tile<D>(c, a, s, t, tile, patience);
    if (mine.from < mine.to)
        end_tiles<D>(c, s, t, patience);
    const struct work k = work_of(a, i);
    rows_of_warp(&c.rows, k.p, a, row_of_team(k) + threadIdx.x % WGMMA_THREADS / WARP * 16);
    pass_over<D>(s, t, mine.to, k.tiles.to, patience);
    store_total(c.w, c.total, a, k.p, c.rows);
}

template <int D>
static __device__ __forceinline__ void consume(const struct attention_args &a, sm90a_shared<D> &s,
                                               unsigned patience)
{
    struct ring_position t = {0, 0};
    for (uint32_t i = blockIdx.x; i < n_work(a); i = item_after(i))
        consume_one<D>(a, i, s, &t, patience);
}
#endif

template <int D>
static __global__ void __launch_bounds__(BLOCK, 1)
    attention_sm90a_kernel(const struct attention_args a,
                           const __grid_constant__ struct cache_maps maps, const unsigned patience)
{
    await_inputs();
#ifdef HOPPER_CODE
    SHARED_MEMORY(s, sm90a_shared<D>);
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < ring_of<D>::n; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], CONSUMERS * WGMMA_THREADS / WARP);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < WGMMA_THREADS) {
        registers_fewer<24>();
        if (threadIdx.x < WARP)
            produce<D>(a, maps, s, patience);
    } else {
        registers_more<240>();
        consume<D>(a, s, patience);
    }
#endif
}

static bool maps_of(struct cache_maps *m, const struct attention_args *a)
{
    const struct map_shape blocks = map_shape_of(a->head_dim, KERN_BLOCK),
                           rows = map_shape_of(a->head_dim, 1);
    return tensor_map_encode(&m->k, a->k_cache, &blocks) &&
           tensor_map_encode(&m->v, a->v_cache, &blocks) &&
           tensor_map_encode(&m->v_row, a->v_cache, &rows);
}

template <int D>
static void launch_large(const struct attention_args *a, const struct kern_exec *x,
                         const struct cache_maps &maps, unsigned patience)
{
    const size_t bytes = sizeof(sm90a_shared<D>);
    launch(attention_sm90a_kernel<D>, dim3(card_blocks(bytes, 1)), BLOCK, bytes, x, *a, maps,
           patience);
}

/* False: nothing was done, these arguments are attention.cu's. */
static bool attend_prompts(const struct attention_args *a, const struct kern_exec *x,
                           unsigned patience)
{
    struct cache_maps maps;
    if (a->kv_dtype != DT_BF16 || (a->head_dim != 64 && a->head_dim != 128) || a->n_seq == 0 ||
        !plan_has_large(a) || a->slopes || a->both_ways || !maps_of(&maps, a))
        return false;
    attention_small_launch(a, x);
    if (a->head_dim == 64)
        launch_large<64>(a, x, maps, patience);
    else
        launch_large<128>(a, x, maps, patience);
    return true;
}

extern "C" void attention_sm90a(const struct attention_args *a, const struct kern_exec *x)
{
    if (!attend_prompts(a, x, 0))
        attention_cuda(a, x);
}

/* A wait that never ends does not hang the trial: there are fewer than 100 waits, each limited to 80 ms. If the
 * driver makes no map, the output keeps its old contents, which differ from the other kernel's. */
#define TRIAL_PATIENCE (1u << 12)
extern "C" void attention_sm90a_trial(const struct attention_args *a, const struct kern_exec *x)
{
    attend_prompts(a, x, TRIAL_PATIENCE);
}
