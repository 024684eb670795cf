/* SPDX-License-Identifier: Apache-2.0 */
/* pack: against the layout defined in ops.h, implemented here a second time, for the reference
 * too. */
#include "kcheck.h"

static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};

/* Element index of W[o,k] by the text of ops.h. */
static size_t place(enum dtype t, uint32_t n_in, uint32_t o, uint32_t k)
{
    size_t p = o / 64, lane = o % 64;
    if (t != DT_BF16)
        return p * n_in * 64 + (size_t)k * 64 + lane;
    size_t pairs = n_in / 2 + n_in % 2;
    return p * pairs * 128 + (size_t)(k / 2) * 128 + lane * 2 + k % 2;
}

static float rounded(float f, enum dtype to)
{
    if (to == DT_F32)
        return f;
    return to == DT_F16 ? f16_to_f32(f32_to_f16(f)) : bf16_to_f32(f32_to_bf16(f));
}

void kcheck_pack(struct kcheck *k)
{
    enum dtype to = (enum dtype)kc_pick(k, dtypes, 3), from = (enum dtype)kc_pick(k, dtypes, 3);
    uint32_t n_out = kc_range(k, 1, 260), n_in = kc_range(k, 1, 90);
    uint32_t n_pad = (n_out + 63) / 64 * 64, n_k = to == DT_BF16 ? (n_in + 1) / 2 * 2 : n_in;
    size_t bytes = packed_bytes(to, n_out, n_in), from_bytes = dtype_bits(from) / 8;
    kc_shape(k, "%s -> %s [%u,%u]", dtype_name(from), dtype_name(to), n_out, n_in);
    if (bytes != (size_t)n_pad * n_k * (dtype_bits(to) / 8))
        kc_fail(k, "packed_bytes says %zu", bytes);
    char *src = (char *)kc_buf(k, (size_t)n_out * n_in * from_bytes + 1) + kc_range(k, 0, 1);
    kc_fill_dtype(k, src, from, (size_t)n_out * n_in);
    float *want = kc_buf(k, (size_t)n_pad * n_k * sizeof *want);
    for (uint32_t o = 0; o < n_pad; o++)
        for (uint32_t i = 0; i < n_k; i++)
            want[place(to, n_in, o, i)] =
                o < n_out && i < n_in ? rounded(kc_get(src, from, (size_t)o * n_in + i), to) : 0;
    struct pack_args a = {
        .dst = kc_buf(k, bytes),
        .dst_dtype = to,
        .src_dtype = from,
        .n_in = n_in,
        .n_out_total = n_out,
    };
    for (uint32_t done = 0; done < n_out; done += a.n_out) { /* fused matrices come in pieces */
        a.n_out = kc_chance(k, 40) ? n_out - done : kc_range(k, 1, n_out - done);
        a.row_start = done;
        a.src = src + (size_t)done * n_in * from_bytes;
        kc_run(k, k->variant, &a, kc_range(k, 1, 6));
    }
    float *got = kc_buf(k, (size_t)n_pad * n_k * sizeof *got);
    for (size_t i = 0; i < (size_t)n_pad * n_k; i++)
        got[i] = kc_get(a.dst, to, i);
    kc_compare(k, "panel",
               &(struct kc_array){got, DT_F32, 1, (size_t)n_pad * n_k, (size_t)n_pad * n_k},
               &(struct kc_array){want, DT_F32, 1, (size_t)n_pad * n_k, (size_t)n_pad * n_k});
}

void kbench_pack(struct kc_bench *b)
{
    static const uint32_t to[] = {DT_BF16, DT_F32};
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t n_out = 4864, n_in = 896;
        struct pack_args a = {
            .dst_dtype = (enum dtype)to[i],
            .src_dtype = DT_BF16,
            .n_out = n_out,
            .n_in = n_in,
            .n_out_total = n_out,
        };
        size_t bytes = packed_bytes(a.dst_dtype, n_out, n_in), src_bytes = (size_t)n_out * n_in * 2;
        a.dst = kc_buf(b->k, bytes);
        a.src = kc_buf(b->k, src_bytes);
        kc_print_bytes(b, to[i] == DT_BF16 ? "bf16 -> bf16 [4864,896]" : "bf16 -> f32 [4864,896]",
                       kc_time(b, &a), (double)(bytes + src_bytes));
    }
}
