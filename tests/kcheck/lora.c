/* SPDX-License-Identifier: Apache-2.0 */
/* lora_shrink, lora_expand: the reference against f64, variants against the reference, a row alone
 * against the row among rows of other adapters, and nothing written to rows or columns without an
 * adapter. */
#include "kcheck.h"
#include <math.h>
#include <string.h>
#include "kernels/variants.h"

#define GROUPS_MAX 5u

struct lora_case {
    struct lora_group groups[GROUPS_MAX];
    struct lora_factors factors[GROUPS_MAX];
    uint32_t rows[GROUPS_MAX][16];
    uint32_t n_group, n_row, n_in, n_out, first;
    uint32_t rank_max; /* sum of a row's ranks */
};

static uint32_t ranks(const struct lora_factors *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_part; i++)
        n += f->parts[i].rank;
    return n;
}

static void fill_part(struct kcheck *k, const struct lora_factors *f, struct lora_part *p)
{
    const size_t element = dtype_bits(f->dtype) / 8, n_a = (size_t)p->rank * f->n_in;
    const size_t n_b = lora_b_size(p->rank, p->n_out);
    void *a = kc_buf(k, n_a * element), *b = kc_buf(k, n_b * element);
    kc_fill_dtype(k, a, f->dtype, n_a);
    kc_fill_dtype(k, b, f->dtype, n_b);
    p->a = a;
    p->b = b;
}

static void choose_factors(struct kcheck *k, struct lora_case *c, struct lora_factors *f)
{
    static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};
    uint32_t col = 0;
    *f = (struct lora_factors){(enum dtype)kc_pick(k, dtypes, 3), c->n_in, 0, {{0}}};
    const uint32_t n_part = kc_range(k, 1, KERN_LORA_PARTS);
    for (uint32_t i = 0; i < n_part && col < c->n_out; i++) {
        struct lora_part *p = &f->parts[f->n_part++];
        p->col = kc_range(k, col, c->n_out - 1);
        p->n_out = kc_range(k, 1, c->n_out - p->col);
        p->rank = kc_range(k, 1, kc_chance(k, 20) ? 64 : 10);
        p->scale = kc_f32(k);
        col = p->col + p->n_out;
        fill_part(k, f, p);
    }
    c->rank_max = ranks(f) > c->rank_max ? ranks(f) : c->rank_max;
}

/* Rows of no group have no adapter. */
static void choose_case(struct kcheck *k, struct lora_case *c)
{
    *c = (struct lora_case){
        .n_group = kc_range(k, 1, GROUPS_MAX),
        .n_row = kc_range(k, 1, 14),
        .n_in = kc_range(k, 1, kc_chance(k, 30) ? 300 : 40),
        .n_out = kc_range(k, 1, kc_chance(k, 30) ? 300 : 40),
        .first = kc_range(k, 0, 3),
    };
    for (uint32_t g = 0; g < c->n_group; g++) {
        choose_factors(k, c, &c->factors[g]);
        c->groups[g] = (struct lora_group){&c->factors[g], c->rows[g], 0};
    }
    for (uint32_t r = 0; r < c->n_row; r++) {
        const uint32_t g = kc_range(k, 0, c->n_group);
        if (g < c->n_group)
            c->rows[g][c->groups[g].n_row++] = c->first + r;
    }
    kc_shape(k, "%u rows of %u groups, %u to %u, ranks to %u", c->n_row, c->n_group, c->n_in,
             c->n_out, c->rank_max);
}

static const struct lora_group *group_of(const struct lora_case *c, uint32_t row)
{
    for (uint32_t g = 0; g < c->n_group; g++)
        for (uint32_t i = 0; i < c->groups[g].n_row; i++)
            if (c->rows[g][i] == c->first + row)
                return &c->groups[g];
    return NULL;
}

static void near_f64_shrink(struct kcheck *k, const struct lora_shrink_args *a,
                            const struct lora_factors *f, uint32_t row)
{
    const float *t = a->t + row * a->t_stride;
    for (uint32_t i = 0; i < f->n_part; i++)
        for (uint32_t j = 0; j < f->parts[i].rank; j++, t++) {
            double sum = 0, size = 0;
            for (uint32_t c = 0; c < f->n_in; c++) {
                const double x = kc_get(a->x, a->x_dtype, row * a->x_stride + c);
                const double w = kc_get(f->parts[i].a, f->dtype, (size_t)j * f->n_in + c);
                sum += x * w;
                size += fabs(x * w);
            }
            kc_near(k, "t", *t, sum * f->parts[i].scale,
                    fabs(f->parts[i].scale) * size * (f->n_in + 4) * 0x1p-24);
        }
}

void kcheck_lora_shrink(struct kcheck *k)
{
    struct lora_case c;
    k->specials = false;
    choose_case(k, &c);
    struct lora_shrink_args a = {
        .x_dtype = kc_chance(k, 50) ? DT_F32 : DT_BF16,
        .groups = c.groups,
        .n_group = c.n_group,
        .first = c.first,
        .x_stride = c.n_in + kc_range(k, 0, 5),
        .t_stride = c.rank_max + kc_range(k, 0, 5),
    };
    const size_t n_t = c.n_row * a.t_stride, n_x = c.n_row * a.x_stride;
    void *x = kc_buf(k, n_x * (dtype_bits(a.x_dtype) / 8));
    kc_fill_dtype(k, x, a.x_dtype, n_x);
    a.x = x;
    float *want = a.t = kc_buf(k, n_t * sizeof *want);
    memset(want, 0, n_t * sizeof *want);
    kc_run(k, k->ref, &a, 1);
    for (uint32_t r = 0; r < c.n_row; r++)
        if (group_of(&c, r))
            near_f64_shrink(k, &a, group_of(&c, r)->factors, r);
    float *got = a.t = kc_buf(k, n_t * sizeof *got);
    memset(got, 0, n_t * sizeof *got);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "t", &(struct kc_array){got, DT_F32, c.n_row, a.t_stride, a.t_stride},
               &(struct kc_array){want, DT_F32, c.n_row, a.t_stride, a.t_stride});
    float *alone = a.t = kc_buf(k, n_t * sizeof *alone);
    for (uint32_t r = 0; r < c.n_row; r++) {
        const uint32_t row = c.first + r;
        const struct lora_group *of = group_of(&c, r);
        const struct lora_group one = {of ? of->factors : NULL, &row, 1};
        if (!of)
            continue;
        memset(alone, 0, n_t * sizeof *alone);
        a.groups = &one;
        a.n_group = 1;
        kc_run(k, k->variant, &a, kc_range(k, 1, 3));
        kc_same_bits(
            k, "row alone",
            (struct kc_bits){alone + r * a.t_stride, got + r * a.t_stride, DT_F32, a.t_stride});
    }
}

static void near_f64_expand(struct kcheck *k, const struct lora_expand_args *a,
                            const struct lora_factors *f, uint32_t row, const float *before)
{
    const float *t = a->t + row * a->t_stride;
    for (uint32_t i = 0; i < f->n_part; t += f->parts[i++].rank) {
        const struct lora_part *p = &f->parts[i];
        for (uint32_t c = 0; c < p->n_out; c++) {
            const size_t at = row * a->y_stride + p->col + c;
            double sum = 0, size = fabs(before[at]);
            for (uint32_t j = 0; j < p->rank; j++) {
                const double w = kc_get(p->b, f->dtype, lora_b_index(p->rank, j, c));
                sum += t[j] * w;
                size += fabs(t[j] * w);
            }
            kc_near(k, "y", a->y[at], sum + before[at], size * (p->rank + 4) * 0x1p-24);
        }
    }
}

void kcheck_lora_expand(struct kcheck *k)
{
    struct lora_case c;
    k->specials = false;
    choose_case(k, &c);
    struct lora_expand_args a = {
        .groups = c.groups,
        .n_group = c.n_group,
        .first = c.first,
        .y_stride = c.n_out + kc_range(k, 0, 5),
        .t_stride = c.rank_max + kc_range(k, 0, 5),
    };
    const size_t n_t = c.n_row * a.t_stride, n_y = c.n_row * a.y_stride;
    float *t = kc_buf(k, n_t * sizeof *t), *before = kc_buf(k, n_y * sizeof *before);
    kc_fill(k, t, n_t);
    kc_fill(k, before, n_y);
    a.t = t;
    float *want = a.y = kc_copy(k, before, n_y * sizeof *want);
    kc_run(k, k->ref, &a, 1);
    for (uint32_t r = 0; r < c.n_row; r++)
        if (group_of(&c, r))
            near_f64_expand(k, &a, group_of(&c, r)->factors, r, before);
    float *got = a.y = kc_copy(k, before, n_y * sizeof *got);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, c.n_row, a.y_stride, a.y_stride},
               &(struct kc_array){want, DT_F32, c.n_row, a.y_stride, a.y_stride});
    for (uint32_t r = 0; r < c.n_row; r++) {
        const uint32_t row = c.first + r;
        const struct lora_group *of = group_of(&c, r);
        const struct lora_group one = {of ? of->factors : NULL, &row, 1};
        const float *other = before + r * a.y_stride;
        if (of) {
            a.y = kc_copy(k, before, n_y * sizeof *a.y);
            a.groups = &one;
            a.n_group = 1;
            kc_run(k, k->variant, &a, kc_range(k, 1, 3));
            other = a.y + r * a.y_stride;
        }
        kc_same_bits(k, of ? "row alone" : "row without an adapter",
                     (struct kc_bits){other, got + r * a.y_stride, DT_F32, a.y_stride});
    }
}

/* ---- benchmarks: 8 rows of 8 adapters of rank 16, and 256 rows of one ---- */

struct bench {
    struct lora_factors factors[8];
    struct lora_group groups[8];
    uint32_t rows[256];
};

static void make_bench(struct kcheck *k, struct bench *b, uint32_t n)
{
    for (uint32_t i = 0; i < 256; i++)
        b->rows[i] = i;
    for (uint32_t i = 0; i < 8; i++) {
        b->factors[i] =
            (struct lora_factors){DT_BF16, n, 1, {{.rank = 16, .n_out = n, .scale = 1}}};
        fill_part(k, &b->factors[i], &b->factors[i].parts[0]);
        b->groups[i] = (struct lora_group){&b->factors[i], &b->rows[i], 1};
    }
}

void kbench_lora_shrink(struct kc_bench *b)
{
    const uint32_t n = 2048;
    struct bench of;
    make_bench(b->k, &of, n);
    uint16_t *x = kc_buf(b->k, 256 * (size_t)n * sizeof *x);
    kc_fill_dtype(b->k, x, DT_BF16, 256 * (size_t)n);
    struct lora_shrink_args a = {
        .t = kc_buf(b->k, 256 * 16 * sizeof *a.t),
        .x = x,
        .x_dtype = DT_BF16,
        .groups = of.groups,
        .n_group = 8,
        .x_stride = n,
        .t_stride = 16,
    };
    kc_print_bytes(b, "8 rows of 8 adapters, 2048 to 16", kc_time(b, &a), 8 * 2.0 * n * 16);
    of.groups[0].n_row = 256;
    a.n_group = 1;
    kc_print_flop(b, "256 rows of one, 2048 to 16", kc_time(b, &a), 256 * 2.0 * n * 16);
}

void kbench_lora_expand(struct kc_bench *b)
{
    const uint32_t n = 2048;
    struct bench of;
    make_bench(b->k, &of, n);
    float *t = kc_buf(b->k, 256 * 16 * sizeof *t), *y = kc_buf(b->k, 256 * (size_t)n * sizeof *y);
    kc_fill(b->k, t, 256 * 16);
    kc_fill(b->k, y, 256 * (size_t)n);
    struct lora_expand_args a = {
        .y = y,
        .t = t,
        .groups = of.groups,
        .n_group = 8,
        .y_stride = n,
        .t_stride = 16,
    };
    kc_print_bytes(b, "8 rows of 8 adapters, 16 to 2048", kc_time(b, &a), 8 * 2.0 * n * 16);
    of.groups[0].n_row = 256;
    a.n_group = 1;
    kc_print_flop(b, "256 rows of one, 16 to 2048", kc_time(b, &a), 256 * 2.0 * n * 16);
}
