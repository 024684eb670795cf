/* SPDX-License-Identifier: Apache-2.0 */
/* pack_int8: against the layout defined in ops_int8.h, implemented here a second time, for the
 * reference too; and every weight within half a step of its source. */
#include "kcheck.h"
#include <math.h>

static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};

struct pack_case {
    const char *src;
    enum dtype from;
    uint32_t n_out, n_in, n_k;
    const uint8_t *got;
};

static size_t panel_bytes(const struct pack_case *c)
{
    return (size_t)c->n_k * 64 + 64 * 4;
}

static int stored_code(const struct pack_case *c, uint32_t o, uint32_t k)
{
    const uint8_t *panel = c->got + o / 64 * panel_bytes(c);
    return panel[(size_t)(k / 4) * 256 + (size_t)(o % 64) * 4 + k % 4] - 128;
}

static float scale_of(const struct pack_case *c, uint32_t o)
{
    float f;
    memcpy(&f, c->got + o / 64 * panel_bytes(c) + (size_t)c->n_k * 64 + 4 * (size_t)(o % 64), 4);
    return f;
}

static void check_output(struct kcheck *k, const struct pack_case *c, uint32_t o)
{
    float scale = scale_of(c, o);
    int most = 0;
    for (uint32_t i = 0; i < c->n_k; i++) {
        int q = stored_code(c, o, i);
        double w =
            o < c->n_out && i < c->n_in ? kc_get(c->src, c->from, (size_t)o * c->n_in + i) : 0;
        most = abs(q) > most ? abs(q) : most;
        k->n_compared++;
        if (!k->specials && fabs(q * (double)scale - w) > scale * 0.50001 + 0x1p-100)
            kc_fail(k, "W[%u,%u] is %d * %g, wanted %g", o, i, q, scale, w);
        if ((o >= c->n_out || i >= c->n_in) && q != 0)
            kc_fail(k, "padding [%u,%u] is %d", o, i, q);
    }
    if (!k->specials && most != 127 && scale != 0)
        kc_fail(k, "output %u: the largest is %d", o, most);
    if (o >= c->n_out && scale != 0)
        kc_fail(k, "padding output %u has scale %g", o, scale);
}

/* `variant` packs the case; fused matrices come in pieces. */
static void pack_case(struct kcheck *k, const struct kc_variant *v, const struct pack_case *c,
                      void *dst)
{
    struct pack_int8_args a = {
        .dst = dst,
        .src_dtype = c->from,
        .n_in = c->n_in,
        .n_out_total = c->n_out,
    };
    for (uint32_t done = 0; done < c->n_out; done += a.n_out) {
        a.n_out = kc_chance(k, 40) ? c->n_out - done : kc_range(k, 1, c->n_out - done);
        a.row_start = done;
        a.src = c->src + (size_t)done * c->n_in * (dtype_bits(c->from) / 8);
        kc_run(k, v, &a, kc_range(k, 1, 6));
    }
}

void kcheck_pack_int8(struct kcheck *k)
{
    struct pack_case c = {
        .from = (enum dtype)kc_pick(k, dtypes, 3),
        .n_out = kc_range(k, 1, 260),
        .n_in = kc_range(k, 1, 200),
    };
    c.n_k = (c.n_in + 63) / 64 * 64;
    size_t bytes = packed_int8_bytes(c.n_out, c.n_in), n = (size_t)c.n_out * c.n_in;
    kc_shape(k, "%s [%u,%u]", dtype_name(c.from), c.n_out, c.n_in);
    if (bytes != (c.n_out + 63) / 64 * panel_bytes(&c))
        kc_fail(k, "packed_int8_bytes says %zu", bytes);
    char *src = (char *)kc_buf(k, n * (dtype_bits(c.from) / 8) + 1) + kc_range(k, 0, 1);
    k->scale = kc_chance(k, 10) ? 0x1p-14f : 1;
    kc_fill_dtype(k, src, c.from, n);
    c.src = src;
    uint8_t *want = kc_buf(k, bytes), *got = kc_buf(k, bytes);
    pack_case(k, k->ref, &c, want);
    pack_case(k, k->variant, &c, got);
    c.got = got;
    for (uint32_t o = 0; o < (c.n_out + 63) / 64 * 64; o++) {
        check_output(k, &c, o);
        float scale = scale_of(&c, o);
        struct pack_case of_ref = c;
        of_ref.got = want;
        float wanted = scale_of(&of_ref, o);
        kc_same_bits(k, "scale", (struct kc_bits){&scale, &wanted, DT_F32, 1});
        for (uint32_t i = 0; i < c.n_k; i++)
            if (stored_code(&c, o, i) != stored_code(&of_ref, o, i))
                kc_fail(k, "W[%u,%u] is %d, the reference's %d", o, i, stored_code(&c, o, i),
                        stored_code(&of_ref, o, i));
    }
}

void kbench_pack_int8(struct kc_bench *b)
{
    const uint32_t n_out = 4864, n_in = 896;
    struct pack_int8_args a = {
        .src_dtype = DT_BF16,
        .n_out = n_out,
        .n_in = n_in,
        .n_out_total = n_out,
    };
    size_t bytes = packed_int8_bytes(n_out, n_in), src_bytes = (size_t)n_out * n_in * 2;
    a.dst = kc_buf(b->k, bytes);
    void *src = kc_buf(b->k, src_bytes);
    kc_fill_dtype(b->k, src, DT_BF16, (size_t)n_out * n_in);
    a.src = src;
    kc_print_bytes(b, "bf16 -> int8 [4864,896]", kc_time(b, &a), (double)(bytes + src_bytes));
}
