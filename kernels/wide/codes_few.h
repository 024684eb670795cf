/* SPDX-License-Identifier: Apache-2.0 */
/* codes_few - linear_codes for few rows (decoding): formula, order and layout of ops_codes.h. No
 * slice is unpacked to memory; a weight is made in a register and multiplied there:
 *
 *     for panels of this thread          one contiguous stream of memory
 *       for chunks of CODES_CHUNK inputs 8 to 17 KiB, which stay in L1 …
 *         for strips of outputs          … while every strip reads its part of each line
 *           for pairs of inputs          w = fma(scale, value, min); sum = fma(x, w, sum)
 *
 * Sums are in registers for a chunk and in scratch between chunks. Strips are as wide as registers
 * allow, so that enough sums are independent of each other to hide the latency of an fma.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_CODES_FEW_H
#define QUIRE_KERNELS_WIDE_CODES_FEW_H
#include "kernels/tiling/codes_scratch.h"
#include "kernels/wide/codes_values.h"
#include "kernels/wide/linear.h"
#ifdef VEC_SUMS

#define CODES_AHEAD 2048 /* bytes prefetched ahead of a panel */

struct codes_chunk { /* of a panel */
    const struct packed_codes *form;
    const uint8_t *supers, *groups; /* its block, where scales are by 256; its first group */
    const float *x;                 /* first row, from the chunk's first input on */
    size_t x_stride;
    uint32_t n; /* inputs */
    bool first; /* of the panel: sums begin with 0 */
    float (*sum)[KERN_PANEL];
    float *scales, *mins; /* [KERN_PANEL], 64-byte aligned: of the group that is multiplied */
};
struct codes_strip { /* constants where they are inlined, but for the lane */
    int rows, n_vec;
    enum codes_way way;
    uint32_t lane; /* first output */
};
struct codes_sums {
    struct vec v[CODES_FEW][4];
};

/* A group of inputs onto the sums. Scales and mins are read from the first-level cache for each
 * pair of inputs: in registers they would leave none for the sums, and a sum that is stored and
 * loaded between two inputs doubles the time of its chain. */
INLINE void codes_few_group(struct codes_sums *s, const struct codes_chunk *c,
                            const struct codes_part *p, struct codes_strip t,
                            const struct codes_table *table, const float *x)
{
    const uint8_t *at = p->codes + t.lane;
    for (uint32_t k = 0; k < p->n; k += 2, at += codes_pair_bytes(t.way)) {
        if (t.lane == 0)
            for (size_t i = 0; i < codes_pair_bytes(t.way); i += KERN_PANEL)
                __builtin_prefetch(at + i + CODES_AHEAD);
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            load_again();
            const struct vec_two v = codes_pair(at + (size_t)16 * (size_t)j, table, t.way);
            const struct vec scale = vec_load(c->scales + t.lane + 16 * j),
                             min = vec_load(c->mins + t.lane + 16 * j);
            const struct vec low = vec_fma(scale, v.low, min), high = vec_fma(scale, v.high, min);
            UNROLL
            for (int r = 0; r < t.rows; r++) {
                const float *from = x + (size_t)r * c->x_stride + k;
                s->v[r][j] =
                    vec_fma(vec_set(from[1]), high, vec_fma(vec_set(from[0]), low, s->v[r][j]));
            }
        }
    }
}

INLINE void codes_few_strip(const struct codes_chunk *c, struct codes_strip t)
{
    const struct packed_codes form = *c->form;
    const struct codes_table table = codes_table_of(&form, t.way);
    struct codes_part p = {
        .form = &form,
        .codes = c->groups,
        .scales = c->groups + codes_scales_at(&form),
        .supers = c->supers,
        .n = form.group,
    };
    struct codes_sums s;
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        s.v[r][j] = c->first ? vec_set(0) : vec_load(c->sum[r] + t.lane + 16 * j);
    for (uint32_t k = 0; k < c->n; k += form.group) {
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            const struct codes_scales of = codes_scales_of(&p, t.lane + 16 * (uint32_t)j);
            vec_store(c->scales + t.lane + 16 * j, of.scale);
            vec_store(c->mins + t.lane + 16 * j, of.min);
        }
        codes_few_group(&s, c, &p, t, &table, c->x + k);
        p.codes += codes_group_bytes(&form);
        p.scales += codes_group_bytes(&form);
    }
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        vec_store(c->sum[r] + t.lane + 16 * j, s.v[r][j]);
}

INLINE void codes_few_chunk(const struct codes_chunk *c, const int rows, const enum codes_way way)
{
    const int most = VEC_SUMS > 6 ? 16 : 4; /* vecs of sums that leave registers for the rest */
    struct codes_strip t = {.rows = rows, .way = way};
    t.n_vec = most / rows >= 4 ? 4 : most / rows >= 2 ? 2 : 1;
    for (t.lane = 0; t.lane < KERN_PANEL; t.lane += 16 * (uint32_t)t.n_vec)
        codes_few_strip(c, t);
}

typedef void codes_few_fn(const struct codes_chunk *c);
#define FEW(name, way, rows)                                       \
    static void codes_##name##_##rows(const struct codes_chunk *c) \
    {                                                              \
        codes_few_chunk(c, rows, way);                             \
    }
#define FEW_ALL(name, way) FEW(name, way, 1) FEW(name, way, 2) FEW(name, way, 3) FEW(name, way, 4)
#define FEW_ROW(name)                                                          \
    {                                                                          \
        codes_##name##_1, codes_##name##_2, codes_##name##_3, codes_##name##_4 \
    }
FEW_ALL(bytes, CODES_BYTES)
FEW_ALL(halves, CODES_HALVES)
FEW_ALL(tabled, CODES_INTS)
FEW_ALL(reals, CODES_FLOATS)
static codes_few_fn *const codes_few_chunks[][CODES_FEW] = {
    [CODES_BYTES] = FEW_ROW(bytes),
    [CODES_HALVES] = FEW_ROW(halves),
    [CODES_INTS] = FEW_ROW(tabled),
    [CODES_FLOATS] = FEW_ROW(reals),
};
#undef FEW
#undef FEW_ALL
#undef FEW_ROW

/* n inputs of all rows from k on as f32: sets where they are. */
INLINE void codes_few_rows(struct codes_chunk *c, struct codes_scratch *s,
                           const struct linear_args *a, uint32_t k)
{
    c->x = (const float *)a->x + k;
    c->x_stride = a->x_stride;
    if (a->x_dtype != DT_BF16)
        return;
    for (size_t r = 0; r < a->n_row; r++)
        for (uint32_t i = 0; i < c->n; i += 16)
            vec_store(s->few[r] + i,
                      vec_load_bf16((const uint16_t *)a->x + r * a->x_stride + k + i));
    c->x = s->few[0];
    c->x_stride = CODES_CHUNK;
}

/* a->n_row is 1 to CODES_FEW. */
INLINE void codes_few(const struct linear_args *a, const struct kern_exec *x)
{
    const struct packed *w = &a->w;
    const struct packed_codes *form = &w->codes;
    struct panels panels = panels_of((w->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    codes_few_fn *chunk = codes_few_chunks[codes_way_of(form)][a->n_row - 1];
    struct codes_scratch *s = x->scratch;
    panels_start(&panels, true);
    for (size_t panel; panels_next(&panels, &panel);) {
        const uint8_t *at = (const uint8_t *)w->data + panel * codes_panel_bytes(form, w->n_in);
        for (uint32_t k = 0; k < w->n_in; k += CODES_CHUNK) {
            struct codes_chunk c = {
                .form = form,
                .first = k == 0,
                .sum = s->sum,
                .scales = s->scales,
                .mins = s->mins,
            };
            c.n = w->n_in - k < CODES_CHUNK ? w->n_in - k : CODES_CHUNK;
            c.supers = at + codes_block_at(form, k / form->group);
            c.groups = c.supers + codes_supers_bytes(form);
            codes_few_rows(&c, s, a, k);
            chunk(&c);
        }
        for (size_t row = 0; row < a->n_row; row++)
            linear_epilogue(a, s->sum[row], row, (uint32_t)panel);
    }
}

#endif
#endif
