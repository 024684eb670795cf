/* SPDX-License-Identifier: Apache-2.0 */
/* Products of more than 16 rows by cuBLASLt (lt.h), where the tuner found it faster than linear_tiles.cu.
 *
 * The library writes y directly if it is f32 and not gated, with bias and accumulation; of e4m3 where it takes a scale
 * for each row and output (from 12.9 on, on 9.0), which lt_scales_kernel puts side by side. Otherwise it writes sums to
 * the workspace, f32 or int32 [rows, n_out], and lt_epilogue_kernel computes y: scales of int8 and e4m3, SiLU of
 * gated weights, bias, rounding, in the same steps as our own kernels. Rows are processed in pieces that fit the
 * workspace:
 *     workspace, from its first multiple of 256 on: [lt_workspace_max() for the library][sums, or scales of all rows]
 *
 * Shape of lt_epilogue_kernel: a thread an output of y, 256 neighbours a block, a row a block. No shared memory.
 * Bytes: 4 n_out a row written by the library and read here, from L2 while a piece fits there; y once.
 *   Limit: bytes / bandwidth, of L2 or the card.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/linear.cuh"
extern "C" {
#include "kernels/cuda/lt_call.h"
}

#define THREADS    256u
#define PIECE_MAX  32768u /* rows; a grid has 65535 at most */
#define PIECE_UNIT 128u
#define ALIGN      256u /* bytes, of the library's workspace */

template <bool SCALED, class T>
static __global__ void __launch_bounds__(THREADS)
    lt_epilogue_kernel(const T *sums, const struct linear_out out)
{
    await_inputs();
    const uint32_t c = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    const T *from = sums + (size_t)row * out.n_out;
    const uint32_t o =
        out.gated ? c / KERN_GATE_INTERLEAVE * 2 * KERN_GATE_INTERLEAVE + c % KERN_GATE_INTERLEAVE
                  : c;
    if (o >= out.n_out)
        return;
    if (out.gated)
        epilogue_gated(
            out, row, o, scaled<SCALED>(out, from[o], row, o),
            scaled<SCALED>(out, from[o + KERN_GATE_INTERLEAVE], row, o + KERN_GATE_INTERLEAVE));
    else
        epilogue(out, row, o, scaled<SCALED>(out, from[o], row, o));
}

static __global__ void __launch_bounds__(THREADS)
    lt_scales_kernel(float *to, const struct quant_row *rows, uint32_t n)
{
    await_inputs();
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        to[i] = rows[i].scale;
}

static size_t element_bytes(enum form f)
{
    return f == FORM_I8 || f == FORM_E4M3 ? 1 : 2;
}

/* Rows from `first` on, n of them. */
static struct linear_out rows_of(const struct linear_out *all, uint32_t first, uint32_t n)
{
    struct linear_out out = *all;
    out.y = (char *)all->y + first * all->y_stride * (all->y_dtype == DT_F32 ? 4 : 2);
    out.rows = all->rows ? all->rows + first : NULL;
    out.n_row = n;
    return out;
}

void linear_skip(struct linear_in *in, struct linear_out *out, uint32_t n)
{
    in->x = (const char *)in->x + n * in->x_bytes;
    *out = rows_of(out, n, out->n_row - n);
}

static char *workspace_of(const struct kern_exec *x)
{
    return (char *)(((uintptr_t)x->scratch + ALIGN - 1) / ALIGN * ALIGN);
}

static struct lt_call call_of(enum form f, const struct linear_in *in, const struct linear_out *out,
                              const struct kern_exec *x)
{
    static const enum lt_kind kinds[] = {LT_KIND_BF16, LT_KIND_F16, LT_KIND_I8,
                                         LT_KIND_E4M3}; /* by enum form */
    struct lt_call c = {};
    c.shape.kind = kinds[f];
    c.shape.n_out = out->n_out;
    c.shape.n_in = (uint32_t)(in->row_bytes / element_bytes(f));
    c.shape.target = out->y_dtype == DT_F32 ? LT_TO_Y : LT_TO_SUMS;
    c.shape.has_bias = out->bias != NULL;
    c.shape.accumulate = out->accumulate != 0;
    c.shape.gated = out->gated != 0;
    lt_shape_settle(&c.shape);
    c.n_row_all = out->n_row;
    c.w = in->w;
    c.x_stride = in->x_bytes / element_bytes(f);
    c.bias = out->bias;
    c.w_scales = out->scales;
    c.workspace = workspace_of(x);
    c.stream = lt_stream_of(x);
    return c;
}

/* What is behind the library's own workspace. */
static char *room_of(const struct lt *lt, const struct kern_exec *x, size_t *bytes)
{
    char *room = workspace_of(x) + (lt_workspace_max(lt) + ALIGN - 1) / ALIGN * ALIGN;
    *bytes = (size_t)((char *)x->scratch + x->scratch_bytes - room);
    return room;
}

/* The rows' scales side by side; false: they do not fit, or those of the weights are not aligned. */
static bool give_scales(const struct lt *lt, struct lt_call *c, const struct linear_out *out,
                        const struct kern_exec *x)
{
    size_t bytes;
    float *scales = (float *)room_of(lt, x, &bytes);
    if (bytes / sizeof *scales < out->n_row || (uintptr_t)out->scales % LT_ALIGN)
        return false;
    launch(lt_scales_kernel, dim3(div_up(out->n_row, THREADS)), THREADS, 0, x, scales, out->rows,
           out->n_row);
    c->x_scales = scales;
    return true;
}

/* By way of the sums; returns how many rows were served. */
static uint32_t by_sums(struct lt *lt, struct lt_call *c, const struct lt_choice *choice,
                        const struct linear_in *in, const struct linear_out *out,
                        const struct kern_exec *x)
{
    size_t bytes;
    char *sums = room_of(lt, x, &bytes);
    const size_t room = bytes / out->n_out / 4;
    uint32_t most = room < PIECE_MAX ? (uint32_t)room : PIECE_MAX, first = 0;
    if (most > PIECE_UNIT)
        most = most / PIECE_UNIT * PIECE_UNIT;
    if (most < LT_ROWS_MIN)
        return 0;
    c->y = sums;
    c->y_stride = out->n_out;
    while (first < out->n_row) {
        const uint32_t n = out->n_row - first < most ? out->n_row - first : most;
        const struct linear_out piece = rows_of(out, first, n);
        const dim3 grid(div_up(out->gated ? out->n_out / 2 : out->n_out, THREADS), n);
        c->n_row = n;
        c->x = (const char *)in->x + first * in->x_bytes;
        if (!lt_run(lt, c, choice))
            break;
        if (c->shape.kind == LT_KIND_I8)
            launch(lt_epilogue_kernel<true, int>, grid, THREADS, 0, x, (const int *)c->y, piece);
        else if (c->shape.kind == LT_KIND_E4M3)
            launch(lt_epilogue_kernel<true, float>, grid, THREADS, 0, x, (const float *)c->y,
                   piece);
        else
            launch(lt_epilogue_kernel<false, float>, grid, THREADS, 0, x, (const float *)c->y,
                   piece);
        first += n;
    }
    return first;
}

uint32_t linear_lt(enum form f, const struct linear_in *in, const struct linear_out *out,
                   const struct kern_exec *x)
{
    struct lt *lt = lt_of(x);
    if (!lt || out->n_row < LT_ROWS_MIN || x->scratch_bytes < lt_workspace_max(lt) + 2 * ALIGN)
        return 0;
    struct lt_call c = call_of(f, in, out, x);
    const struct lt_choice *choice = lt_choice_of(lt, &c.shape, out->n_row);
    if (!choice)
        return 0;
    if (choice->by_sums)
        return by_sums(lt, &c, choice, in, out, x);
    if (((uintptr_t)out->y | out->y_stride * 4 | (uintptr_t)out->bias) % LT_ALIGN)
        return 0;
    if (f == FORM_E4M3 && !give_scales(lt, &c, out, x))
        return 0;
    c.n_row = out->n_row;
    c.x = in->x;
    c.y = out->y;
    c.y_stride = out->y_stride;
    return lt_run(lt, &c, choice) ? out->n_row : 0;
}
