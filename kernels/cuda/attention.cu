/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over the paged cache by tensor cores (mma.sync m16n8k16), decode and prefill alike.
 *
 * A warp holds 16 rows of one KV head: query tokens x the heads that share it, so K and V are read once for the
 * group. It iterates over the context in tiles of 64 positions with an online softmax:
 *
 *     S = q K^T           16 x 64, f32; * scale of K (int8); * scale; soft cap; mask
 *     m, p = exp(S - m)   m: running maximum; when it grows, acc and l are rescaled
 *     l += p              f32, per thread; summed over the four threads of a row at a split's end
 *     acc += (p * scale of V) V
 *
 * q and p are rounded to bf16, for caches of 8 bits to f16, which has all of their values (attention_warp.cuh).
 *
 * A head's sink is one more term of L at the end, exp(sink - M).
 *
 * At multiples of 256 positions (a split, plan.h) m, l and acc are folded into the total and reset:
 *     M' = max(M, m), L = L exp(M - M') + l exp(m - M'), O = fma(acc, exp(m - M'), O exp(M - M'))
 * in ascending order. Tiles and splits begin at absolute positions, so a row has the same bits alone, in a batch,
 * in decode, and in a prompt of one chunk or of many. A tile that is fully masked for a row changes none of its
 * bits, and a tile without a new maximum has the factor 1: both updates may be skipped.
 *
 *     attention_kernel<D, KV, 1>   small pieces: a block is a warp, many blocks a multiprocessor; partial
 *                                  results go to the workspace and attention_fold.cu joins them
 *     attention_kernel<D, KV, 4>   large pieces, in halves: 64 rows share each tile of K and V
 * Pieces x KV heads are assigned to blocks round robin, large ones in a snake (item_after): the grid depends on the
 * card only, so one graph serves every step.
 *
 * Shared memory (attention_shared_of): q, then stages for tiles of K and V, then, for four warps with heads of 96
 * and 128, the total of splits. Three stages (wide heads: two) hold K0 V0 K1 V1 … in rotation: two tiles (one) are
 * in flight (cp.async) while one is computed. The 8 rows of an ldmatrix are in different banks (row_of). int8 and
 * e4m3 are loaded without conversion and widened to f16 (exactly) in a separate buffer.
 *
 *     KiB, D =                  64     80     96    128    192    256
 *     bf16          1 warp      26     36     43     52     57     75
 *                   4 warps     32     44     76     96     75     99, which is all that sm_86 has
 *     int8, e4m3    1 warp      23     30     35     45     56     74
 *                   4 warps     29     38     69     89     75     99
 *
 * Bytes: K and V of the context once for the rows of a piece, 2 D each a position (int8 and e4m3: D), which is
 *   the limit of decoding: bytes / bandwidth. FLOP: 4 D a pair of row and position, the limit of prompts:
 *   FLOP / peak of bf16.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/attention.cuh"

template <int D, enum dtype KV, unsigned WARPS>
static __global__ void __launch_bounds__(WARPS *WARP, 1)
    attention_kernel(const struct attention_args a, const struct attention_room room)
{
    await_inputs();
    SHARED_MEMORY(s, attention_shared_of<D, KV, WARPS>);
    const struct plan_head *plan = (const struct plan_head *)a.plan;
    const uint32_t parts = WARPS == 1 ? 1 : PLAN_ROWS_LARGE / (16 * WARPS);
    const uint32_t n_piece = (WARPS == 1 ? plan->n_small : plan->n_large) * parts * a.n_kv_head;
    const struct plan_piece *pieces =
        (const struct plan_piece *)((const char *)plan +
                                    (WARPS == 1 ? plan->small_at : plan->large_at));
    for (uint32_t i = blockIdx.x; i < n_piece; i = WARPS == 1 ? i + gridDim.x : item_after(i)) {
        struct plan_piece piece = pieces[i / a.n_kv_head / parts];
        piece.row += i / a.n_kv_head % parts * 16 * WARPS;
        if (parts > 1 && piece.row >= a.seqs[piece.seq].n_query * (a.n_head / a.n_kv_head))
            continue;
        attend_piece<D, KV, WARPS>(a, piece, i % a.n_kv_head, room, s);
        team_sync<WARPS>(); /* the next piece overwrites the stages */
    }
}

template <int D, enum dtype KV, unsigned WARPS> static unsigned blocks_of(void)
{
    return card_blocks(sizeof(attention_shared_of<D, KV, WARPS>),
                       total_of<D, WARPS>::place == IN_WORKSPACE ? PLAN_WIDE_ROWS / (WARPS * 16)
                                                                 : BLOCKS_MOST);
}
template <int D, enum dtype KV, unsigned WARPS>
static void launch_pieces(const struct attention_args *a, const struct kern_exec *x)
{
    const size_t bytes = sizeof(attention_shared_of<D, KV, WARPS>);
    const bool wide = total_of<D, WARPS>::place == IN_WORKSPACE;
    const unsigned n_block = blocks_of<D, KV, WARPS>();
    /* at the end of the workspace (plan_workspace_bytes) */
    const size_t totals = wide ? (size_t)n_block * WARPS * 16 * D * sizeof(float) : 0;
    const struct attention_room room = {
        (float *)x->scratch, (float *)((char *)x->scratch + x->scratch_bytes / 16 * 16 - totals)};
    launch(attention_kernel<D, KV, WARPS>, dim3(n_block), WARPS * WARP, bytes, x, *a, room);
}

template <int D, enum dtype KV>
static void launch_small(const struct attention_args *a, const struct kern_exec *x)
{
    if (plan_has_small(a))
        launch_pieces<D, KV, 1>(a, x);
    fold_attention(a, x);
}

void attention_small_launch(const struct attention_args *a, const struct kern_exec *x)
{
    if (a->head_dim == 64)
        launch_small<64, DT_BF16>(a, x);
    else
        launch_small<128, DT_BF16>(a, x);
}

template <int D, enum dtype KV>
static void launch_all(const struct attention_args *a, const struct kern_exec *x)
{
    launch_small<D, KV>(a, x);
    if (plan_has_large(a))
        launch_pieces<D, KV, 4>(a, x);
}

template <enum dtype KV>
static bool launch_for(const struct attention_args *a, const struct kern_exec *x)
{
    switch (a->head_dim) {
    case 64:
        launch_all<64, KV>(a, x);
        return true;
    case 80:
        launch_all<80, KV>(a, x);
        return true;
    case 96:
        launch_all<96, KV>(a, x);
        return true;
    case 128:
        launch_all<128, KV>(a, x);
        return true;
    case 192:
        launch_all<192, KV>(a, x);
        return true;
    case 256:
        launch_all<256, KV>(a, x);
        return true;
    default:
        return false;
    }
}

template <enum dtype KV> static uint32_t slots_for(uint32_t head_dim)
{
    switch (head_dim) {
    case 64:
        return blocks_of<64, KV, 1>();
    case 80:
        return blocks_of<80, KV, 1>();
    case 96:
        return blocks_of<96, KV, 1>();
    case 128:
        return blocks_of<128, KV, 1>();
    case 192:
        return blocks_of<192, KV, 1>();
    case 256:
        return blocks_of<256, KV, 1>();
    default:
        return 0;
    }
}

extern "C" uint32_t attention_slots(enum dtype kv_dtype, uint32_t head_dim)
{
    return kv_dtype == DT_BF16      ? slots_for<DT_BF16>(head_dim)
           : kv_dtype == DT_I8      ? slots_for<DT_I8>(head_dim)
           : kv_dtype == DT_F8_E4M3 ? slots_for<DT_F8_E4M3>(head_dim)
                                    : 0;
}

extern "C" void attention_cuda(const struct attention_args *a, const struct kern_exec *x)
{
    if (a->n_seq == 0 || a->n_row == 0)
        return;
    if (!a->slopes && !a->both_ways &&
        ((a->kv_dtype == DT_BF16 && launch_for<DT_BF16>(a, x)) ||
         (a->kv_dtype == DT_I8 && launch_for<DT_I8>(a, x)) ||
         (a->kv_dtype == DT_F8_E4M3 && launch_for<DT_F8_E4M3>(a, x))))
        return;
    if (a->head_dim == 512 && a->kv_dtype == DT_BF16 && !a->slopes && !a->both_ways)
        attention_wide_launch(a, x);
    else
        attention_any_launch(a, x);
}
