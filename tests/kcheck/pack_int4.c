/* SPDX-License-Identifier: Apache-2.0 */
/* pack_int4: against the layout defined in ops_int4.h, implemented here a second time, for the
 * reference too; every weight within half a step of its source or clamped to the range, and never
 * worse than with the full range. */
#include "kcheck.h"
#include <math.h>

static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16}, groups[] = {32, 64, 128};

struct pack_case {
    const char *src;
    enum dtype from;
    uint32_t n_out, n_in, group;
    const uint8_t *got;
};

static const uint8_t *group_at(const struct pack_case *c, uint32_t o, uint32_t k)
{
    size_t bytes = (size_t)c->group * 32 + 192;
    return c->got + (o / 64 * (c->n_in / c->group) + k / c->group) * bytes;
}

static int stored_code(const struct pack_case *c, uint32_t o, uint32_t k)
{
    uint32_t at = k % c->group;
    uint8_t both = group_at(c, o, k)[(size_t)(at / 8) * 256 + (size_t)(o % 64) * 4 + at % 4];
    return at % 8 < 4 ? both & 15 : both >> 4;
}

static float scale_of(const struct pack_case *c, uint32_t o, uint32_t k)
{
    return kc_get(group_at(c, o, k) + (size_t)c->group * 32, DT_F16, o % 64);
}

static int zero_of(const struct pack_case *c, uint32_t o, uint32_t k)
{
    return group_at(c, o, k)[(size_t)c->group * 32 + 128 + o % 64];
}

/* Group by group: the error against that of min-max with a zero that need not be whole. */
static void check_group(struct kcheck *k, const struct pack_case *c, uint32_t o, uint32_t from)
{
    double scale = scale_of(c, o, from), low = 0, high = 0, error = 0;
    int zero = zero_of(c, o, from);
    for (uint32_t i = from; i < from + c->group; i++) {
        double w = o < c->n_out ? kc_get(c->src, c->from, (size_t)o * c->n_in + i) : 0;
        int q = stored_code(c, o, i);
        double off = scale * (q - zero) - w;
        low = fmin(low, w);
        high = fmax(high, w);
        error += off * off;
        k->n_compared++;
        if (!k->specials && fabs(off) > scale * 0.51 + 0x1p-24 && q != 0 && q != 15)
            kc_fail(k, "W[%u,%u] is %g * (%d - %d), wanted %g", o, i, scale, q, zero, w);
    }
    double step = (high - low) / 15 * 1.01 + 0x1p-24;
    if (!k->specials && error > c->group * step * step)
        kc_fail(k, "output %u from %u: error %g, step %g", o, from, error, step);
    if (o >= c->n_out && (scale != 0 || zero != 0))
        kc_fail(k, "padding output %u has scale %g, zero %d", o, scale, zero);
}

/* `variant` packs the case; fused matrices come in pieces. */
static void pack_case(struct kcheck *k, const struct kc_variant *v, const struct pack_case *c,
                      void *dst)
{
    struct pack_int4_args a = {
        .dst = dst,
        .src_dtype = c->from,
        .n_in = c->n_in,
        .group = c->group,
        .n_out_total = c->n_out,
    };
    for (uint32_t done = 0; done < c->n_out; done += a.n_out) {
        a.n_out = kc_chance(k, 40) ? c->n_out - done : kc_range(k, 1, c->n_out - done);
        a.row_start = done;
        a.src = c->src + (size_t)done * c->n_in * (dtype_bits(c->from) / 8);
        kc_run(k, v, &a, kc_range(k, 1, 6));
    }
}

void kcheck_pack_int4(struct kcheck *k)
{
    struct pack_case c = {
        .from = (enum dtype)kc_pick(k, dtypes, 3),
        .n_out = kc_range(k, 1, 100),
        .group = kc_pick(k, groups, 3),
    };
    c.n_in = c.group * kc_range(k, 1, 3);
    size_t bytes = packed_int4_bytes(c.n_out, c.n_in, c.group), n = (size_t)c.n_out * c.n_in;
    kc_shape(k, "%s [%u,%u] group %u", dtype_name(c.from), c.n_out, c.n_in, c.group);
    char *src = (char *)kc_buf(k, n * (dtype_bits(c.from) / 8) + 1) + kc_range(k, 0, 1);
    k->scale = kc_chance(k, 10) ? 0x1p-24f : kc_chance(k, 10) ? 3e4f : 0.05f;
    kc_fill_dtype(k, src, c.from, n);
    c.src = src;
    uint8_t *want = kc_buf(k, bytes), *got = kc_buf(k, bytes);
    pack_case(k, k->ref, &c, want);
    pack_case(k, k->variant, &c, got);
    kc_same_bits(k, "packed", (struct kc_bits){got, want, DT_U8, bytes});
    c.got = got;
    for (uint32_t o = 0; o < (c.n_out + 63) / 64 * 64; o++)
        for (uint32_t from = 0; from < c.n_in; from += c.group)
            check_group(k, &c, o, from);
}

void kbench_pack_int4(struct kc_bench *b)
{
    const uint32_t n_out = 4864, n_in = 896;
    struct pack_int4_args a = {
        .src_dtype = DT_BF16,
        .n_out = n_out,
        .n_in = n_in,
        .group = 128,
        .n_out_total = n_out,
    };
    size_t bytes = packed_int4_bytes(n_out, n_in, a.group), src_bytes = (size_t)n_out * n_in * 2;
    if (!b->k->variant->caps)
        return; /* the reference would take long */
    a.dst = kc_buf(b->k, bytes);
    void *src = kc_buf(b->k, src_bytes);
    kc_fill_dtype(b->k, src, DT_BF16, (size_t)n_out * n_in);
    a.src = src;
    kc_print_bytes(b, "bf16 -> int4 [4864,896]", kc_time(b, &a), (double)(bytes + src_bytes));
}
