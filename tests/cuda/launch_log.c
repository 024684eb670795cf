/* SPDX-License-Identifier: Apache-2.0 */
/* Each operation of the table is one here that notes its bytes and calls it. An operation without a
 * function below is left as it is, and its launches have no name. */
#include "launch_log.h"
#include <stdlib.h>
#include "common/err.h"
#include "fake_cuda.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/table.h"

struct launch_log launch_log;
static struct launch now; /* the operation in progress */

struct launch launch_log_entry(const void *kernel)
{
    struct launch entry = now;
    entry.kernel = kernel;
    now = (struct launch){.op = now.op, .n_row = now.n_row};
    return entry;
}

void launch_log_run(void *entry)
{
    struct launch_log *l = &launch_log;
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 1024;
        l->items = realloc(l->items, l->room * sizeof *l->items);
        Q_ASSERT(l->items);
    }
    l->items[l->n++] = *(const struct launch *)entry;
}

void launch_log_reset(void)
{
    free(launch_log.items);
    launch_log = (struct launch_log){0};
}

/* ---- bytes of the operations ---- */

static uint64_t bytes_of(enum dtype dtype, uint64_t n)
{
    return n * (dtype_bits(dtype) / 8);
}

static struct launch of_embed(const struct embed_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    return (struct launch){
        .n_row = a->n_row,
        .weights = bytes_of(a->dtype, n),
        .read = a->accumulate ? bytes_of(DT_F32, n) : 0,
        .written = bytes_of(DT_F32, n),
    };
}

static struct launch of_norm_rows(const struct norm_rows_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    const uint64_t n_scale = (a->n_col + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
    return (struct launch){
        .n_row = a->n_row,
        .weights = bytes_of(DT_F32, a->n_col),
        .read = bytes_of(DT_F32, n) + (a->add ? bytes_of(a->add_dtype, n) : 0),
        .written = bytes_of(a->y_dtype, n) + (a->add ? bytes_of(DT_F32, n) : 0) +
                   (a->quant ? a->n_row * sizeof *a->quant : 0) +
                   (a->scales ? a->n_row * bytes_of(DT_F32, n_scale) : 0),
    };
}

static struct launch of_rms_norm(const struct rms_norm_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    return (struct launch){
        .n_row = a->n_row,
        .weights = bytes_of(DT_F32, a->n_col),
        .read = bytes_of(DT_F32, n),
        .written = bytes_of(a->y_dtype, n),
    };
}

static struct launch of_quant_rows(const struct quant_rows_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    const uint64_t sums = a->sums ? a->n_row * (a->q_stride / KERN_INT8_SUM) : 0;
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, n),
        .written = n + a->n_row * sizeof *a->rows + sums * sizeof *a->sums,
    };
}

static struct launch of_quant_rows_fp8(const struct quant_rows_fp8_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, n),
        .written = n + a->n_row * sizeof *a->rows,
    };
}

static struct launch of_silu_mul(const struct silu_mul_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, 2 * n),
        .written = bytes_of(a->y_dtype, n),
    };
}

struct output { /* of a product */
    enum dtype dtype;
    bool added, bias;
};

static struct launch product(const struct packed *w, uint32_t n_row, enum dtype x, struct output y)
{
    const uint64_t n_x = (uint64_t)n_row * w->n_in;
    const uint64_t n_y = (uint64_t)n_row * (w->gated ? w->n_out / 2 : w->n_out);
    return (struct launch){
        .n_row = n_row,
        .weights = cuda_matrix_bytes(w) + (y.bias ? bytes_of(DT_F32, w->n_out) : 0),
        .read = bytes_of(x, n_x) + (y.added ? bytes_of(y.dtype, n_y) : 0),
        .written = bytes_of(y.dtype, n_y),
    };
}

static struct launch of_linear(const struct linear_args *a)
{
    const struct output y = {a->y_dtype, a->accumulate, a->bias};
    return product(&a->w, a->n_row, a->x_dtype, y);
}

/* Of bytes with their scales. */
static struct launch of_linear_int8(const struct linear_int8_args *a)
{
    const struct output y = {a->y_dtype, a->accumulate, a->bias};
    struct launch l = product(&a->w, a->n_row, DT_I8, y);
    l.read += a->n_row * sizeof *a->rows;
    return l;
}

static struct launch of_linear_fp8(const struct linear_fp8_args *a)
{
    return of_linear_int8(&a->by);
}

static struct launch of_linear_w4a16(const struct linear_w4a16_args *a)
{
    return of_linear(&a->by);
}

static struct launch grouped(struct launch l, const struct groups *of)
{
    l.weights *= l.n_row < of->n_group ? l.n_row : of->n_group;
    return l;
}

static struct launch of_linear_grouped(const struct linear_grouped_args *a)
{
    return grouped(of_linear(&a->by), &a->of);
}

static struct launch of_linear_int8_grouped(const struct linear_int8_grouped_args *a)
{
    return grouped(of_linear_int8(&a->by), &a->of);
}

static struct launch of_linear_fp8_grouped(const struct linear_fp8_grouped_args *a)
{
    return of_linear_int8_grouped(&a->as);
}

static struct launch of_linear_w4a16_grouped(const struct linear_w4a16_grouped_args *a)
{
    return of_linear_grouped(&a->as);
}

/* q is rotated in place, K and V go to the cache. */
static struct launch of_qkv_epilogue(const struct qkv_epilogue_args *a)
{
    const uint64_t q = (uint64_t)a->n_head * a->head_dim, kv = (uint64_t)a->n_kv_head * a->head_dim;
    const uint64_t stored = 2 * a->n_kv_head * cuda_kv_head_bytes(a->kv_dtype, a->head_dim);
    return (struct launch){
        .n_row = a->n_row,
        .weights = a->q_norm ? 2 * bytes_of(DT_F32, a->head_dim) : 0,
        .read = a->n_row * (bytes_of(DT_F32, q + 2 * kv) + bytes_of(DT_F32, a->n_rot)),
        .written = a->n_row * bytes_of(DT_F32, q),
        .kv_written = a->n_row * (stored / KERN_BLOCK),
    };
}

static struct launch of_attention(const struct attention_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_head * a->head_dim;
    const uint64_t kv = 2 * a->n_kv_head * cuda_kv_head_bytes(a->kv_dtype, a->head_dim);
    return (struct launch){
        .n_row = a->n_row,
        .kv_token = (uint32_t)(kv / KERN_BLOCK),
        .read = bytes_of(DT_F32, n),
        .written = bytes_of(a->out_dtype, n),
    };
}

static struct launch of_moe_route(const struct moe_route_args *a)
{
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, (uint64_t)a->n_row * a->n_expert),
        .written = bytes_of(DT_F32, (uint64_t)a->n_row * a->n_used * 2),
    };
}

static struct launch of_moe_group_rows(const struct moe_group_rows_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_used;
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, n),
        .written = bytes_of(DT_F32, 2 * n + a->n_expert + 1),
    };
}

static struct launch of_moe_combine(const struct moe_combine_args *a)
{
    const uint64_t n = (uint64_t)a->n_row * a->n_col;
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, n * a->n_used + 2 * (uint64_t)a->n_row * a->n_used) +
                (a->set ? 0 : bytes_of(DT_F32, n)),
        .written = bytes_of(DT_F32, n),
    };
}

static struct launch of_scatter(const struct scatter_args *a)
{
    const uint64_t n = (uint64_t)a->n * (1 + (a->at != NULL) + (a->from != NULL));
    return (struct launch){
        .n_row = a->n,
        .read = bytes_of(DT_F32, n),
        .written = bytes_of(DT_F32, a->n),
    };
}

static struct launch of_sample(const struct sample_args *a)
{
    return (struct launch){
        .n_row = a->n_row,
        .read = bytes_of(DT_F32, (uint64_t)a->n_row * a->n_vocab) + a->n_row * sizeof *a->rows,
        .written = a->n_row * sizeof *a->out,
    };
}

/* ---- the table ---- */

static struct kern_table plain;
void __real_kern_table_cuda(struct kern_table *t, uint32_t caps);
void __wrap_kern_table_cuda(struct kern_table *t, uint32_t caps);

/* clang-format off */
#define OPERATIONS(X)                                                                           \
    X(embed) X(norm_rows) X(rms_norm) X(quant_rows) X(quant_rows_fp8) X(silu_mul) X(linear)     \
    X(linear_int8) X(linear_fp8) X(linear_w4a16) X(linear_grouped) X(linear_int8_grouped)       \
    X(linear_fp8_grouped) X(linear_w4a16_grouped) X(qkv_epilogue) X(attention) X(moe_route)     \
    X(moe_group_rows) X(moe_combine) X(scatter) X(sample)
/* clang-format on */

#define LOGGED(name)                                                                  \
    static void name##_logged(const struct name##_args *a, const struct kern_exec *x) \
    {                                                                                 \
        now = of_##name(a);                                                           \
        now.op = #name;                                                               \
        plain.name(a, x);                                                             \
        now = (struct launch){0};                                                     \
    }
OPERATIONS(LOGGED)

/* A card that records has every kernel of its compute capability: no trial can run. */
void __wrap_kern_table_cuda(struct kern_table *t, uint32_t caps)
{
    if (fake_cuda.records)
        caps = kern_caps_cuda((uint32_t)fake_cuda.major, (uint32_t)fake_cuda.minor);
    __real_kern_table_cuda(t, caps);
    if (!fake_cuda.records)
        return;
    plain = *t;
#define TAKE(name) t->name = name##_logged;
    OPERATIONS(TAKE)
}
