/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store and qkv_epilogue: against the reference, element by element, since the cache lies
 * otherwise there (kernels/cuda/layout.h). */
#include "check.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/ref/element.h"
#include "kernels/ref/int8.h"
#include "kernels/variants.h"

#define N_BLOCK 3u

CUDA_CALL(kv_store)
CUDA_CALL(qkv_epilogue)
REF_CALL(kv_store)
REF_CALL(qkv_epilogue)

uint8_t emu_f32_to_e4m3(float f);

struct cache {
    void *k, *v;
    enum dtype dtype;
    uint32_t n_kv_head, head_dim;
};

static void make_cache(struct kcheck *k, struct cache *c)
{
    const size_t bytes = N_BLOCK * c->n_kv_head * cuda_kv_head_bytes(c->dtype, c->head_dim);
    c->k = kc_buf(k, bytes);
    c->v = kc_buf(k, bytes);
}

/* That the head of `slot` in `cache` is what x becomes there. */
static void expect_head(struct kcheck *k, const struct cache *c, const void *cache, uint32_t slot,
                        uint32_t head, const float *x)
{
    const char *at = (const char *)cache + (slot / KERN_BLOCK * c->n_kv_head + head) *
                                               cuda_kv_head_bytes(c->dtype, c->head_dim);
    const size_t first = (size_t)(slot % KERN_BLOCK) * c->head_dim;
    const struct int8_scale s = int8_scale_of(x, c->head_dim);
    float scale;
    for (uint32_t d = 0; d < c->head_dim; d++) {
        if (c->dtype == DT_I8) {
            kc_near(k, "int8", ((const int8_t *)at)[first + d], int8_of(x[d], s.inverse), 0);
        } else if (c->dtype == DT_F8_E4M3) {
            kc_near(k, "e4m3", ((const uint8_t *)at)[first + d], emu_f32_to_e4m3(x[d]), 0);
        } else {
            uint16_t h = c->dtype == DT_F16 ? f32_to_f16(x[d]) : f32_to_bf16(x[d]);
            float want = c->dtype == DT_F32   ? x[d]
                         : c->dtype == DT_F16 ? f16_to_f32(h)
                                              : bf16_to_f32(h);
            kc_near(k, "float", kc_get(at, c->dtype, first + d), want, 0);
        }
    }
    if (c->dtype == DT_I8) {
        memcpy(&scale, at + (size_t)KERN_BLOCK * c->head_dim + slot % KERN_BLOCK * 4, 4);
        kc_same_bits(k, "scale", (struct kc_bits){&scale, &s.scale, DT_F32, 1});
    }
}

static const uint32_t kv_dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_F8_E4M3};

static uint32_t *make_slots(struct kcheck *k, uint32_t n)
{
    uint32_t *slot = kc_buf(k, (n + 1) * sizeof *slot);
    for (uint32_t i = 0; i < n; i++)
        slot[i] = kc_chance(k, 20) ? KERN_NO_SLOT : 7 * i;
    return slot;
}

static void check_kv_store(struct kcheck *k)
{
    struct cache c = {
        .dtype = (enum dtype)kc_pick(k, kv_dtypes, 5),
        .n_kv_head = kc_range(k, 1, 3),
        .head_dim = kc_range(k, 1, 130),
    };
    uint32_t n_row = kc_range(k, 0, 6);
    size_t stride = (size_t)c.n_kv_head * c.head_dim + kc_range(k, 0, 5);
    float *x = kc_buf(k, 2 * n_row * stride * sizeof *x);
    kc_fill(k, x, 2 * n_row * stride);
    make_cache(k, &c);
    struct kv_store_args a = {
        .k_cache = c.k,
        .v_cache = c.v,
        .kv_dtype = c.dtype,
        .k = x,
        .v = x + n_row * stride,
        .k_stride = stride,
        .v_stride = stride,
        .slot = make_slots(k, n_row),
        .n_row = n_row,
        .n_kv_head = c.n_kv_head,
        .head_dim = c.head_dim,
    };
    kc_shape(k, "n_row %u heads %u of %u %s", n_row, c.n_kv_head, c.head_dim, dtype_name(c.dtype));
    kc_run(k, k->variant, &a, 1);
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t h = 0; a.slot[i] != KERN_NO_SLOT && h < c.n_kv_head; h++) {
            expect_head(k, &c, c.k, a.slot[i], h, a.k + i * stride + (size_t)h * c.head_dim);
            expect_head(k, &c, c.v, a.slot[i], h, a.v + i * stride + (size_t)h * c.head_dim);
        }
}

static void check_qkv_epilogue(struct kcheck *k)
{
    const uint32_t n_pos = 9;
    struct cache c = {
        .dtype = (enum dtype)kc_pick(k, kv_dtypes, 5),
        .n_kv_head = kc_range(k, 1, 3),
        .head_dim = kc_chance(k, 10) ? 2 * kc_range(k, 128, 256) : 2 * kc_range(k, 1, 64),
    };
    uint32_t n_row = kc_range(k, 0, 6), n_head = c.n_kv_head * kc_range(k, 0, 3);
    c.n_kv_head = kc_chance(k, 15) ? 0 : c.n_kv_head; /* q alone */
    uint32_t n_rot = kc_chance(k, 50) ? c.head_dim : 2 * kc_range(k, 0, c.head_dim / 2);
    size_t stride = (size_t)(n_head + 2 * c.n_kv_head) * c.head_dim + kc_range(k, 0, 5);
    float *x = kc_buf(k, n_row * stride * sizeof *x);
    float *table = kc_buf(k, (size_t)n_pos * n_rot * sizeof *table);
    float *norms = kc_buf(k, 3 * (size_t)c.head_dim * sizeof *norms);
    uint32_t *pos = kc_buf(k, (n_row + 1) * sizeof *pos);
    kc_fill(k, x, n_row * stride);
    kc_fill(k, table, (size_t)n_pos * n_rot);
    kc_fill(k, norms, 3 * (size_t)c.head_dim);
    for (uint32_t i = 0; i < n_row; i++)
        pos[i] = kc_range(k, 0, n_pos - 1);
    make_cache(k, &c);
    const bool norm = kc_chance(k, 50), of_v = kc_chance(k, 30);
    struct qkv_epilogue_args a =
                                 {
                                     .x = kc_copy(k, x, n_row * stride * sizeof *x),
                                     .x_stride = stride,
                                     .q_norm = norm ? norms : NULL,
                                     .k_norm = norm ? norms + c.head_dim : NULL,
                                     .v_norm = of_v ? norms + 2 * c.head_dim : NULL,
                                     .eps = 1e-6f,
                                     .table = n_rot ? table : NULL,
                                     .pos = pos,
                                     .k_cache = c.k,
                                     .v_cache = c.v,
                                     .kv_dtype = c.dtype,
                                     .slot = make_slots(k, n_row),
                                     .n_row = n_row,
                                     .n_head = n_head,
                                     .n_kv_head = c.n_kv_head,
                                     .head_dim = c.head_dim,
                                     .n_rot = n_rot,
                                     .interleaved = kc_chance(k, 30),
                                 },
                             want = a;
    const size_t bytes = N_BLOCK * kern_kv_block_bytes(DT_F32, c.n_kv_head, c.head_dim);
    want.x = kc_copy(k, x, n_row * stride * sizeof *x);
    want.k_cache = kc_buf(k, bytes);
    want.v_cache = kc_buf(k, bytes);
    want.kv_dtype = DT_F32;
    kc_shape(k, "n_row %u heads %u %u of %u rot %u %s%s", n_row, n_head, c.n_kv_head, c.head_dim,
             n_rot, dtype_name(c.dtype), norm ? " norm" : "");
    kc_shape(k, "%s", of_v ? ", of V too" : "");
    kc_run(k, k->ref, &want, 1);
    kc_run(k, k->variant, &a, 1);
    if (k->specials && (norm || of_v))
        return; /* a sum in another order may be infinite, or not */
    k->magnitude = 1;
    kc_compare(k, "x", &(struct kc_array){a.x, DT_F32, n_row, stride, stride},
               &(struct kc_array){want.x, DT_F32, n_row, stride, stride});
    for (uint32_t i = 0; i < n_row; i++) /* what is stored is what x has become */
        for (uint32_t h = 0; a.slot[i] != KERN_NO_SLOT && h < c.n_kv_head; h++) {
            const float *heads = a.x + i * stride + (size_t)(n_head + h) * c.head_dim;
            expect_head(k, &c, c.k, a.slot[i], h, heads);
            expect_head(k, &c, c.v, a.slot[i], h, heads + (size_t)c.n_kv_head * c.head_dim);
        }
}

const struct cuda_check cuda_checks_kv[] = {
    {"kv_store", ref_kv_store, call_kv_store, 0, check_kv_store, 60},
    {"qkv_epilogue", ref_qkv_epilogue, call_qkv_epilogue, 16, check_qkv_epilogue, 60},
    {0},
};
