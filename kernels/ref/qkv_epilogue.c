/* SPDX-License-Identifier: Apache-2.0 */
/* Three operations in sequence on each row, with their order and roundings. */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static const struct kern_exec alone = {.nth = 1};

static void norm_heads(const struct qkv_epilogue_args *a, float *heads, uint32_t n_head,
                       const float *w)
{
    struct rms_norm_args n = {
        .y = heads,
        .y_dtype = DT_F32,
        .x = heads,
        .w = w,
        .n_row = n_head,
        .n_col = a->head_dim,
        .x_stride = a->head_dim,
        .y_stride = a->head_dim,
        .eps = a->eps,
    };
    rms_norm_ref(&n, &alone);
}

void qkv_epilogue_ref(const struct qkv_epilogue_args *a, const struct kern_exec *x)
{
    const size_t q = (size_t)a->n_head * a->head_dim, kv = (size_t)a->n_kv_head * a->head_dim;
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float *row = a->x + i * a->x_stride;
        if (a->q_norm) {
            norm_heads(a, row, a->n_head, a->q_norm);
            norm_heads(a, row + q, a->n_kv_head, a->k_norm);
        }
        if (a->v_norm)
            norm_heads(a, row + q + kv, a->n_kv_head, a->v_norm);
        struct rope_args rope = {
            .x = row,
            .x_stride = a->x_stride,
            .table = a->table,
            .pos = a->pos + i,
            .n_row = 1,
            .n_head = a->n_head + a->n_kv_head,
            .head_dim = a->head_dim,
            .n_rot = a->n_rot,
            .interleaved = a->interleaved,
        };
        if (a->n_rot)
            rope_ref(&rope, &alone);
        if (a->n_kv_head == 0)
            continue;
        struct kv_store_args store = {
            .k_cache = a->k_cache,
            .v_cache = a->v_cache,
            .kv_dtype = a->kv_dtype,
            .k = row + q,
            .v = row + q + kv,
            .k_stride = a->x_stride,
            .v_stride = a->x_stride,
            .slot = a->slot + i,
            .n_row = 1,
            .n_kv_head = a->n_kv_head,
            .head_dim = a->head_dim,
        };
        kv_store_ref(&store, &alone);
    }
}
