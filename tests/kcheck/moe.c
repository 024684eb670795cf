/* SPDX-License-Identifier: Apache-2.0 */
/* moe_route, moe_combine, moe_group_rows, grouped products, and the other operations of experts on
 * a device. */
#include "kcheck.h"
#include <math.h>
#include <string.h>
#include "kernels/variants.h"

/* ---- route ---- */

static float score(const float *x, uint32_t j)
{
    return isnan(x[j]) ? -INFINITY : x[j];
}

static double scale_of(const struct moe_route_args *a)
{
    return a->scale != 0 ? a->scale : 1;
}

/* Each step in f32, as ties are decided by it. */
static float choice(const struct moe_route_args *a, const float *x, uint32_t j)
{
    float max = -INFINITY, sum = 0;
    if (!a->bias)
        return score(x, j);
    if (a->sigmoid)
        return 1.0f / (1.0f + expf(-score(x, j))) + a->bias[j];
    for (uint32_t i = 0; i < a->n_expert; i++)
        max = fmaxf(max, score(x, i));
    for (uint32_t i = 0; i < a->n_expert; i++)
        sum += max == -INFINITY ? 0 : expf(score(x, i) - max);
    return (sum > 0 ? expf(score(x, j) - max) / sum : 0) + a->bias[j];
}

#define EXPERTS_MAX 256

struct choices { /* of a row */
    float of[EXPERTS_MAX];
    bool is_open[EXPERTS_MAX]; /* its group is used */
};

/* Does expert j come before expert i? */
static bool before(const struct choices *c, uint32_t j, uint32_t i)
{
    return c->of[j] > c->of[i] || (c->of[j] == c->of[i] && j < i);
}

/* The largest choice of a group, or the largest sum of two. */
static float group_value(const struct moe_route_args *a, const struct choices *c, uint32_t group)
{
    const uint32_t n = a->n_expert / a->n_group, from = group * n;
    float best = -INFINITY;
    for (uint32_t j = from; j < from + n; j++) {
        if (!a->sigmoid || n == 1)
            best = fmaxf(best, c->of[j]);
        for (uint32_t i = from; a->sigmoid && i < j; i++)
            best = fmaxf(best, c->of[i] + c->of[j]);
    }
    return best;
}

/* By counting the groups that come before each. */
static void open_groups(const struct moe_route_args *a, struct choices *c)
{
    const uint32_t n_group = a->n_group > 1 ? a->n_group : 1, n = a->n_expert / n_group;
    float values[EXPERTS_MAX] = {0};
    for (uint32_t g = 0; g < n_group && n_group > 1; g++)
        values[g] = group_value(a, c, g);
    for (uint32_t g = 0; g < n_group; g++) {
        uint32_t n_before = 0;
        for (uint32_t i = 0; i < n_group; i++)
            n_before += values[i] > values[g] || (values[i] == values[g] && i < g);
        for (uint32_t j = g * n; j < (g + 1) * n; j++)
            c->is_open[j] = n_group == 1 || n_before < a->n_group_used;
    }
}

/* Weights of sigmoid scores in f64. */
static void sigmoid_row(struct kcheck *k, const struct moe_route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    double taken = 0;
    for (uint32_t i = 0; i < a->n_used; i++)
        taken += 1 / (1 + exp(-(double)score(x, a->experts[row * a->n_used + i])));
    for (uint32_t i = 0; i < a->n_used && taken > 1e-36; i++) { /* else f32 has no such p */
        const double p = 1 / (1 + exp(-(double)score(x, a->experts[row * a->n_used + i])));
        const double want = (a->renormalize && taken > 0 ? p / taken : p) * scale_of(a);
        if (p > 1e-36)
            kc_near(k, "weight", a->weights[row * a->n_used + i], want,
                    want * 64 * 0x1p-24 + 1e-37);
    }
}

/* The definition of the header, by counting and in f64. */
static void plain_row(struct kcheck *k, const struct moe_route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    const uint32_t *experts = a->experts + row * a->n_used;
    const float *weights = a->weights + row * a->n_used;
    double max = -INFINITY, sum = 0, taken = 0;
    struct choices c = {.of = {0}};
    uint32_t n = 0;
    for (uint32_t j = 0; j < a->n_expert; j++)
        c.of[j] = choice(a, x, j);
    open_groups(a, &c);
    for (uint32_t j = 0; j < a->n_expert; j++)
        max = fmax(max, score(x, j));
    for (uint32_t j = 0; j < a->n_expert; j++)
        sum += max == -INFINITY ? 0 : exp(score(x, j) - max);
    for (uint32_t j = 0; j < a->n_expert; j++) {
        uint32_t n_before = 0;
        for (uint32_t i = 0; i < a->n_expert; i++)
            n_before += c.is_open[i] && before(&c, i, j);
        if (n_before >= a->n_used || !c.is_open[j])
            continue;
        if (n >= a->n_used || experts[n] != j)
            kc_fail(k, "row %zu: place %u has expert %u, not %u", row, n, experts[n], j);
        n++;
    }
    if (a->sigmoid) {
        sigmoid_row(k, a, row);
        return;
    }
    for (uint32_t i = 0; i < a->n_used; i++)
        taken += exp(score(x, experts[i]) - max) / sum;
    if (a->bias && taken < 1e-30) /* those with a bias may be any: f32 has no such p */
        return;
    for (uint32_t i = 0; i < a->n_used && sum > 0 && isfinite(sum); i++) {
        const double p = exp(score(x, experts[i]) - max) / sum;
        if (a->bias && p < 1e-30)
            continue;
        const double want = (a->renormalize ? p / taken : p) * scale_of(a);
        /* the difference to the largest is rounded before exp, and n_expert terms are added up */
        const double off = 2 * (a->n_expert + 16 + fabs(score(x, experts[i]) - max));
        kc_near(k, "weight", weights[i], want, want > 0 ? want * off * 0x1p-24 + 1e-37 : 1e-37);
    }
    for (uint32_t i = 0; i < a->n_used && sum == 0; i++)
        kc_near(k, "weight of nothing", weights[i], 0, 0);
}

/* Of a sparse mixer, in f64: the first of the chosen among all experts, the second among the
 * others. */
static void mixer_row(struct kcheck *k, const struct moe_route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    const uint32_t *two = a->experts + row * 2;
    const uint32_t first = score(x, two[1]) > score(x, two[0]) ? 1 : 0;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t at = i ? !first : first;
        const double m = score(x, two[at]);
        double sum = 0;
        for (uint32_t j = 0; j < a->n_expert; j++) {
            const double s = score(x, j), far = (m - s) / fmax(fabs(s), m);
            if (fabs(far - (double)a->mixer) < 1e-6)
                return; /* rounding decides */
            if (!(i && j == two[first]) && far <= a->mixer)
                sum += exp(s - m);
        }
        kc_near(k, "weight", a->weights[row * 2 + at], 1 / sum, 1e-4);
    }
}

static void choose_routing(struct kcheck *k, struct moe_route_args *a)
{
    uint32_t open = a->n_expert;
    a->sigmoid = kc_chance(k, 40);
    a->scale = kc_chance(k, 40) ? 2.5f : 0;
    if (kc_chance(k, 40) && a->n_expert % 4 == 0) {
        a->n_group = kc_chance(k, 50) ? 4 : 2;
        a->n_group_used = kc_range(k, 1, a->n_group);
        open = a->n_expert / a->n_group * a->n_group_used;
    }
    a->n_used = kc_range(k, 1, open < 12 ? open : 12);
    if (kc_chance(k, a->sigmoid ? 60 : 30)) {
        float *bias = kc_buf(k, a->n_expert * sizeof *bias);
        k->specials = false;
        kc_fill(k, bias, a->n_expert);
        a->bias = bias;
    }
}

/* The sparse mixer, whose scores are of the size that routers give. */
static void check_mixer(struct kcheck *k)
{
    struct moe_route_args a = {
        .n_row = kc_range(k, 1, 6),
        .n_expert = kc_range(k, 2, 24),
        .n_used = 2,
        .mixer = 0.02f + 0.01f * (float)kc_range(k, 0, 60),
    };
    a.x_stride = a.n_expert + kc_range(k, 0, 7);
    k->specials = false;
    kc_shape(k, "mixer, n_row %u experts %u within %g", a.n_row, a.n_expert, (double)a.mixer);
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x);
    for (size_t i = 0; i < a.n_row * a.x_stride; i++)
        x[i] = kc_f32(k) * 3;
    a.x = x;
    a.experts = kc_buf(k, 2u * a.n_row * sizeof *a.experts);
    a.weights = kc_buf(k, 2u * a.n_row * sizeof *a.weights);
    kc_run(k, k->variant, &a, 1);
    for (size_t i = 0; i < a.n_row; i++)
        mixer_row(k, &a, i);
}

/* Weights by a number of each expert are those without, times it. */
static void check_scales(struct kcheck *k)
{
    struct moe_route_args a = {
        .n_row = kc_range(k, 1, 6),
        .n_expert = kc_range(k, 2, 24),
        .renormalize = kc_chance(k, 50),
    };
    a.n_used = kc_range(k, 1, a.n_expert);
    a.x_stride = a.n_expert;
    kc_shape(k, "scales, n_row %u experts %u of %u", a.n_row, a.n_used, a.n_expert);
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x);
    float *scales = kc_buf(k, a.n_expert * sizeof *scales);
    float *plain = kc_buf(k, a.n_row * a.n_used * sizeof *plain);
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill(k, scales, a.n_expert);
    a.x = x;
    a.experts = kc_buf(k, a.n_row * a.n_used * sizeof *a.experts);
    a.weights = plain;
    kc_run(k, k->variant, &a, 1);
    a.scales = scales;
    a.weights = kc_buf(k, a.n_row * a.n_used * sizeof *a.weights);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t i = 0; i < a.n_row * a.n_used && !k->specials; i++)
        kc_near(k, "weight", a.weights[i], plain[i] * scales[a.experts[i]], 0);
}

void kcheck_moe_route(struct kcheck *k)
{
    static const uint32_t counts[] = {1, 2, 4, 8, 60, 64, 128, 160, 256};
    struct moe_route_args a = {
        .n_row = kc_range(k, 0, 6),
        .n_expert = kc_pick(k, counts, sizeof counts / sizeof *counts),
        .renormalize = kc_chance(k, 50),
    };
    if (kc_chance(k, 20)) {
        check_mixer(k);
        return;
    }
    if (kc_chance(k, 20)) {
        check_scales(k);
        return;
    }
    choose_routing(k, &a);
    a.x_stride = a.n_expert + kc_range(k, 0, 7);
    kc_shape(k, "n_row %u experts %u of %u%s", a.n_row, a.n_used, a.n_expert,
             a.renormalize ? " renormalized" : "");
    kc_shape(k, "%s, %u of %u groups", a.sigmoid ? "sigmoid" : "softmax", a.n_group_used,
             a.n_group);
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x);
    const bool ties = kc_chance(k, 30), wide = kc_chance(k, 20);
    for (size_t i = 0; i < a.n_row * a.x_stride; i++)
        x[i] = ties ? (float)kc_range(k, 0, 3) : kc_f32(k) * (wide ? 100.0f : 6.0f);
    const size_t n = (size_t)a.n_row * a.n_used;
    a.x = x;
    uint32_t *experts = a.experts = kc_buf(k, n * sizeof *experts);
    float *weights = a.weights = kc_buf(k, n * sizeof *weights);
    kc_run(k, k->ref, &a, 1);
    for (size_t i = 0; i < a.n_row; i++)
        plain_row(k, &a, i);
    a.experts = kc_buf(k, n * sizeof *experts);
    a.weights = kc_buf(k, n * sizeof *weights);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (size_t i = 0; i < n; i++)
        if (a.experts[i] != experts[i])
            kc_fail(k, "expert %zu is %u, not %u", i, a.experts[i], experts[i]);
    kc_compare(k, "weights", &(struct kc_array){a.weights, DT_F32, a.n_row, a.n_used, a.n_used},
               &(struct kc_array){weights, DT_F32, a.n_row, a.n_used, a.n_used});
    for (uint32_t i = 0; i < a.n_row; i++) { /* a row alone takes the same */
        struct moe_route_args one = a;
        one.n_row = 1;
        one.x = x + i * a.x_stride;
        one.experts = kc_buf(k, a.n_used * sizeof *experts);
        one.weights = kc_buf(k, a.n_used * sizeof *weights);
        kc_run(k, k->variant, &one, 1);
        kc_same_bits(
            k, "row alone",
            (struct kc_bits){one.weights, a.weights + (size_t)i * a.n_used, DT_F32, a.n_used});
        kc_drop(k, 2);
    }
}

void kbench_moe_route(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_expert = 128, n_used = 8;
    float *x = kc_buf(b->k, (size_t)n_row * n_expert * sizeof *x);
    kc_fill(b->k, x, (size_t)n_row * n_expert);
    const struct moe_route_args a = {
        .x = x,
        .x_stride = n_expert,
        .n_row = n_row,
        .n_expert = n_expert,
        .n_used = n_used,
        .renormalize = 1,
        .experts = kc_buf(b->k, (size_t)n_row * n_used * 4),
        .weights = kc_buf(b->k, (size_t)n_row * n_used * 4),
    };
    kc_print_bytes(b, "512 x 8 of 128", kc_time(b, &a), n_row * (double)n_expert * 4);
}

/* ---- combine ---- */

struct combine_case {
    struct moe_combine_args a;
    float *y; /* as it was */
    size_t n_y;
};

static void make_combine(struct kcheck *k, struct combine_case *c)
{
    struct moe_combine_args *a = &c->a;
    *a = (struct moe_combine_args){
        .n_row = kc_range(k, 0, 6),
        .n_col = kc_range(k, 1, 600),
        .n_used = kc_range(k, 1, 8),
    };
    a->y_stride = a->n_col + kc_range(k, 0, 9);
    a->x_stride = a->n_col + kc_range(k, 0, 9);
    kc_shape(k, "n_row %u n_col %u of %u", a->n_row, a->n_col, a->n_used);
    const uint32_t n = a->n_row * a->n_used;
    a->set = kc_chance(k, 30);
    uint32_t *places = kc_buf(k, n * sizeof *places);
    float *x = kc_buf(k, n * a->x_stride * sizeof *x), *weights = kc_buf(k, n * sizeof *weights);
    for (uint32_t i = 0; i < n; i++)
        places[i] = kc_range(k, 0, n - 1);
    kc_fill(k, x, n * a->x_stride);
    kc_fill(k, weights, n);
    a->x = x;
    a->places = places;
    a->weights = kc_chance(k, 80) ? weights : NULL;
    c->n_y = a->n_row * a->y_stride;
    c->y = kc_buf(k, c->n_y * sizeof *c->y);
    kc_fill(k, c->y, c->n_y);
}

void kcheck_moe_combine(struct kcheck *k)
{
    struct combine_case c;
    make_combine(k, &c);
    struct moe_combine_args a = c.a;
    float *want = kc_copy(k, c.y, c.n_y * sizeof *want),
          *got = kc_copy(k, c.y, c.n_y * sizeof *got);
    a.y = want;
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < a.n_row && !k->specials; i++)
        for (uint32_t col = 0; col < a.n_col; col++) {
            double sum = a.set ? 0 : c.y[i * a.y_stride + col], most = fabs(sum);
            for (uint32_t j = i * a.n_used; j < (i + 1) * a.n_used; j++) {
                const double w = a.weights ? a.weights[j] : 1;
                const double v = w * a.x[a.places[j] * a.x_stride + col];
                sum += v;
                most += fabs(v);
            }
            kc_near(k, "y", want[i * a.y_stride + col], sum, most * a.n_used * 0x1p-24 + 1e-37);
        }
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    const size_t n_row = a.n_row, n_col = a.n_col;
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, n_row, n_col, a.y_stride},
               &(struct kc_array){want, DT_F32, n_row, n_col, a.y_stride});
    for (uint32_t i = 0; i < a.n_row; i++) {
        struct moe_combine_args one = a;
        one.n_row = 1;
        one.places += (size_t)i * a.n_used;
        one.weights = a.weights ? a.weights + (size_t)i * a.n_used : NULL;
        one.y = kc_copy(k, c.y + i * a.y_stride, n_col * sizeof *one.y);
        kc_run(k, k->variant, &one, kc_range(k, 1, 5));
        kc_same_bits(k, "row alone", (struct kc_bits){one.y, got + i * a.y_stride, DT_F32, n_col});
    }
}

void kbench_moe_combine(struct kc_bench *b)
{
    const uint32_t n_row = 128, n_used = 8, n_col = 2048, n = n_row * n_used;
    uint32_t *places = kc_buf(b->k, n * sizeof *places);
    float *x = kc_buf(b->k, (size_t)n * n_col * sizeof *x);
    float *weights = kc_buf(b->k, n * sizeof *weights);
    for (uint32_t i = 0; i < n; i++)
        places[i] = i * 7 % n;
    kc_fill(b->k, x, (size_t)n * n_col);
    kc_fill(b->k, weights, n);
    float *y = kc_buf(b->k, (size_t)n_row * n_col * sizeof *y);
    kc_fill(b->k, y, (size_t)n_row * n_col);
    const struct moe_combine_args a = {y,       n_col, x,     n_col,  places,
                                       weights, n_row, n_col, n_used, 0};
    kc_print_bytes(b, "128 x 2048 of 8", kc_time(b, &a), n * (double)n_col * 4);
}

/* ---- moe_group_rows ---- */

static void check_places(struct kcheck *k, const struct moe_group_rows_args *a)
{
    const uint32_t n = a->n_row * a->n_used;
    k->n_compared += n + 1;
    if (a->starts[0] != 0 || a->starts[a->n_expert] != n)
        kc_fail(k, "starts are from %u to %u, not to %u", a->starts[0], a->starts[a->n_expert], n);
    for (uint32_t e = 0; e < a->n_expert; e++)
        for (uint32_t p = a->starts[e]; p + 1 < a->starts[e + 1]; p++)
            if (a->rows[p] >= a->rows[p + 1])
                kc_fail(k, "rows of expert %u: %u before %u", e, a->rows[p], a->rows[p + 1]);
    for (uint32_t i = 0; i < n && k->n_failed == 0; i++) {
        const uint32_t p = a->places[i], e = a->experts[i];
        if (p < a->starts[e] || p >= a->starts[e + 1] || a->rows[p] != i / a->n_used)
            kc_fail(k, "row %u of expert %u has place %u, which is row %u's", i / a->n_used, e, p,
                    p < n ? a->rows[p] : UINT32_MAX);
    }
}

/* n_used different ones of n_expert, ascending, for each row. */
static uint32_t *make_choices(struct kcheck *k, const struct moe_group_rows_args *a)
{
    uint32_t *experts = kc_buf(k, ((size_t)a->n_row * a->n_used + 1) * sizeof *experts);
    const bool crowded = kc_chance(k, 20); /* many rows at the same ones */
    for (uint32_t i = 0; i < a->n_row; i++) {
        uint32_t left = a->n_used, *to = experts + (size_t)i * a->n_used;
        for (uint32_t e = 0; left && e < a->n_expert; e++)
            if (crowded || kc_range(k, 1, a->n_expert - e) <= left) {
                *to++ = e;
                left--;
            }
    }
    return experts;
}

void kcheck_moe_group_rows(struct kcheck *k)
{
    static const uint32_t counts[] = {1, 4, 8, 31, 64, 128};
    struct moe_group_rows_args a = {
        .n_row = kc_range(k, 0, kc_chance(k, 20) ? 300 : 12),
        .n_expert = kc_pick(k, counts, sizeof counts / sizeof *counts),
    };
    a.n_used = kc_range(k, 1, a.n_expert < 8 ? a.n_expert : 8);
    kc_shape(k, "n_row %u x %u of %u", a.n_row, a.n_used, a.n_expert);
    const uint32_t n = a.n_row * a.n_used;
    a.experts = make_choices(k, &a);
    a.starts = kc_buf(k, (a.n_expert + 1) * sizeof *a.starts);
    a.rows = kc_buf(k, (n + 1) * sizeof *a.rows);
    a.places = kc_buf(k, (n + 1) * sizeof *a.places);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    check_places(k, &a);
}

void kbench_moe_group_rows(struct kc_bench *b)
{
    struct moe_group_rows_args a = {.n_row = 2048, .n_used = 8, .n_expert = 128};
    const uint32_t n = a.n_row * a.n_used;
    a.experts = make_choices(b->k, &a);
    a.starts = kc_buf(b->k, (a.n_expert + 1) * sizeof *a.starts);
    a.rows = kc_buf(b->k, n * sizeof *a.rows);
    a.places = kc_buf(b->k, n * sizeof *a.places);
    kc_print_bytes(b, "2048 x 8 of 128", kc_time(b, &a), n * 12.0);
}

/* ---- products with groups: each place against the plain product of its row ---- */

struct groups_case {
    struct groups g;
    uint32_t n_place, n_x;
};

static void make_groups(struct kcheck *k, struct groups_case *c)
{
    c->g.n_group = kc_range(k, 1, 6);
    uint32_t *starts = kc_buf(k, (c->g.n_group + 1) * sizeof *starts);
    starts[0] = 0;
    for (uint32_t e = 0; e < c->g.n_group; e++)
        starts[e + 1] = starts[e] + (kc_chance(k, 40) ? 0 : kc_range(k, 1, 7));
    c->n_place = starts[c->g.n_group];
    c->n_x = kc_range(k, 1, 9);
    uint32_t *rows = kc_buf(k, (c->n_place + 1) * sizeof *rows);
    for (uint32_t p = 0; p < c->n_place; p++)
        rows[p] = kc_range(k, 0, c->n_x - 1);
    c->g.starts = starts;
    c->g.rows = kc_chance(k, 60) ? rows : NULL;
    if (!c->g.rows)
        c->n_x = c->n_place;
}

static uint32_t expert_at(const struct groups *g, uint32_t place)
{
    uint32_t e = 0;
    while (g->starts[e + 1] <= place)
        e++;
    return e;
}

void kcheck_linear_grouped(struct kcheck *k)
{
    struct groups_case c;
    make_groups(k, &c);
    const uint32_t n_out = kc_range(k, 1, 150), n_in = kc_range(k, 1, 120);
    const bool half = kc_chance(k, 50);
    const enum dtype t = half ? DT_BF16 : DT_F32;
    c.g.w_stride = packed_bytes(t, n_out, n_in);
    kc_shape(k, "%u groups, %u places of %u rows, n_out %u n_in %u %s", c.g.n_group, c.n_place,
             c.n_x, n_out, n_in, dtype_name(t));
    char *w = kc_buf(k, c.g.n_group * c.g.w_stride);
    float *plain = kc_buf(k, (size_t)n_out * n_in * sizeof *plain);
    for (uint32_t e = 0; e < c.g.n_group; e++) {
        kc_fill(k, plain, (size_t)n_out * n_in);
        const struct pack_args p = {w + e * c.g.w_stride, t, plain, DT_F32, n_out, n_in, 0, n_out};
        pack_ref(&p, &(struct kern_exec){.nth = 1});
    }
    void *x = kc_buf(k, (c.n_x + 1) * n_in * sizeof(float));
    kc_fill_dtype(k, x, t, (size_t)c.n_x * n_in);
    float *y = kc_buf(k, (size_t)c.n_place * n_out * sizeof *y);
    float *want = kc_buf(k, n_out * sizeof *want);
    const struct linear_grouped_args a = {
        .by =
            {
                .y = y,
                .x = x,
                .x_dtype = t,
                .w = {.data = w, .n_out = n_out, .n_in = n_in, .dtype = t},
                .n_row = c.n_place,
                .x_stride = n_in,
                .y_stride = n_out,
            },
        .of = c.g,
    };
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    for (uint32_t p = 0; p < c.n_place; p++) {
        struct linear_args one = a.by;
        one.w.data = w + expert_at(&c.g, p) * c.g.w_stride;
        one.x = (char *)x + (size_t)(c.g.rows ? c.g.rows[p] : p) * n_in * (half ? 2 : 4);
        one.y = want;
        one.n_row = 1;
        linear_ref(&one, &(struct kern_exec){.nth = 1});
        kc_same_bits(k, "place", (struct kc_bits){y + (size_t)p * n_out, want, DT_F32, n_out});
    }
}

void kbench_linear_grouped(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* Matrices and rows as int8, or as e4m3, by the reference. */
static void make_bytes(struct kcheck *k, struct linear_int8_grouped_args *a, enum dtype as)
{
    const struct kern_exec alone = {.nth = 1};
    struct groups_case c;
    make_groups(k, &c);
    const uint32_t n_out = kc_range(k, 1, 150), n_in = kc_range(k, 1, 120);
    const size_t stride = (n_in + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    c.g.w_stride = packed_int8_bytes(n_out, n_in);
    kc_shape(k, "%u groups, %u places of %u rows, n_out %u n_in %u", c.g.n_group, c.n_place, c.n_x,
             n_out, n_in);
    char *w = kc_buf(k, c.g.n_group * c.g.w_stride);
    float *plain = kc_buf(k, (size_t)n_out * n_in * sizeof *plain);
    float *x = kc_buf(k, (c.n_x + 1) * n_in * sizeof *x);
    int8_t *q = kc_buf(k, (c.n_x + 1) * stride);
    struct quant_row *rows = kc_buf(k, (c.n_x + 1) * sizeof *rows);
    kc_fill(k, x, (size_t)c.n_x * n_in);
    for (uint32_t e = 0; e < c.g.n_group; e++) {
        kc_fill(k, plain, (size_t)n_out * n_in);
        const struct pack_int8_args p = {
            .dst = w + e * c.g.w_stride,
            .src = plain,
            .n_out = n_out,
            .n_in = n_in,
            .n_out_total = n_out,
        };
        const struct pack_fp8_args p8 = {
            .dst = w + e * c.g.w_stride,
            .src = plain,
            .n_out = n_out,
            .n_in = n_in,
            .n_out_total = n_out,
        };
        if (as == DT_I8)
            pack_int8_ref(&p, &alone);
        else
            pack_fp8_ref(&p8, &alone);
    }
    const struct quant_rows_args made = {q, rows, NULL, x, NULL, c.n_x, n_in, n_in, stride};
    const struct quant_rows_fp8_args made8 = {(uint8_t *)q, rows, x, c.n_x, n_in, n_in, stride, 0};
    if (as == DT_I8)
        quant_rows_ref(&made, &alone);
    else
        quant_rows_fp8_ref(&made8, &alone);
    *a = (struct linear_int8_grouped_args){
        .by =
            {
                .y = kc_buf(k, (size_t)c.n_place * n_out * sizeof(float)),
                .x = q,
                .rows = rows,
                .w = {.data = w, .n_out = n_out, .n_in = n_in, .dtype = as},
                .n_row = c.n_place,
                .x_stride = stride,
                .y_stride = n_out,
            },
        .of = c.g,
    };
}

/* Each place as its row alone. */
static void check_bytes(struct kcheck *k, const struct linear_int8_grouped_args *a)
{
    const struct kern_exec alone = {.nth = 1};
    const uint32_t n_out = a->by.w.n_out;
    float *want = kc_buf(k, n_out * sizeof *want);
    for (uint32_t p = 0; p < a->by.n_row; p++) {
        const size_t row = a->of.rows ? a->of.rows[p] : p;
        struct linear_fp8_args one = {a->by};
        one.by.w.data = (const char *)a->by.w.data + expert_at(&a->of, p) * a->of.w_stride;
        one.by.x = a->by.x + row * a->by.x_stride;
        one.by.rows = a->by.rows + row;
        one.by.y = want;
        one.by.n_row = 1;
        if (a->by.w.dtype == DT_I8)
            linear_int8_ref(&one.by, &alone);
        else
            linear_fp8_ref(&one, &alone);
        kc_same_bits(k, "place",
                     (struct kc_bits){(float *)a->by.y + (size_t)p * n_out, want, DT_F32, n_out});
    }
}

void kcheck_linear_int8_grouped(struct kcheck *k)
{
    struct linear_int8_grouped_args a;
    make_bytes(k, &a, DT_I8);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    check_bytes(k, &a);
}

void kbench_linear_int8_grouped(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

void kcheck_linear_fp8_grouped(struct kcheck *k)
{
    struct linear_fp8_grouped_args a;
    make_bytes(k, &a.as, DT_F8_E4M3);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    check_bytes(k, &a.as);
}

void kbench_linear_fp8_grouped(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* ---- of 4 bits ---- */

struct int4_case {
    struct groups_case c;
    struct packed w; /* of expert 0 */
};

static void make_int4(struct kcheck *k, struct int4_case *t)
{
    static const uint32_t groups[] = {32, 64, 128};
    const struct kern_exec alone = {.nth = 1};
    make_groups(k, &t->c);
    t->w = (struct packed){
        .n_out = kc_range(k, 1, 150),
        .dtype = DT_I8,
        .group = kc_pick(k, groups, 3),
    };
    t->w.n_in = t->w.group * kc_range(k, 1, 3);
    t->c.g.w_stride = packed_int4_bytes(t->w.n_out, t->w.n_in, t->w.group);
    kc_shape(k, "%u groups, %u places of %u rows, n_out %u n_in %u by %u", t->c.g.n_group,
             t->c.n_place, t->c.n_x, t->w.n_out, t->w.n_in, t->w.group);
    char *w = kc_buf(k, t->c.g.n_group * t->c.g.w_stride);
    float *plain = kc_buf(k, (size_t)t->w.n_out * t->w.n_in * sizeof *plain);
    k->specials = false;
    for (uint32_t e = 0; e < t->c.g.n_group; e++) {
        kc_fill(k, plain, (size_t)t->w.n_out * t->w.n_in);
        const struct pack_int4_args p = {
            .dst = w + e * t->c.g.w_stride,
            .src = plain,
            .n_out = t->w.n_out,
            .n_in = t->w.n_in,
            .group = t->w.group,
            .n_out_total = t->w.n_out,
        };
        pack_int4_ref(&p, &alone);
    }
    t->w.data = w;
}

/* Place p's matrix. */
static struct packed matrix_at(const struct int4_case *t, uint32_t p)
{
    struct packed w = t->w;
    w.data = (const char *)w.data + expert_at(&t->c.g, p) * t->c.g.w_stride;
    return w;
}

void kcheck_linear_w4a8_grouped(struct kcheck *k)
{
    const struct kern_exec alone = {.nth = 1};
    struct int4_case t;
    make_int4(k, &t);
    const uint32_t n_out = t.w.n_out, n_in = t.w.n_in, n_x = t.c.n_x;
    const size_t stride = (n_in + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    float *x = kc_buf(k, (n_x + 1) * n_in * sizeof *x);
    float *y = kc_buf(k, (size_t)t.c.n_place * n_out * sizeof *y);
    float *want = kc_buf(k, n_out * sizeof *want);
    int8_t *q = kc_buf(k, (n_x + 1) * stride);
    struct quant_row *rows = kc_buf(k, (n_x + 1) * sizeof *rows);
    kc_fill(k, x, (size_t)n_x * n_in);
    const struct quant_rows_args made = {q, rows, NULL, x, NULL, n_x, n_in, n_in, stride};
    quant_rows_ref(&made, &alone);
    const struct linear_w4a8_grouped_args a = {
        .as =
            {
                .by =
                    {
                        .y = y,
                        .x = q,
                        .rows = rows,
                        .w = t.w,
                        .n_row = t.c.n_place,
                        .x_stride = stride,
                        .y_stride = n_out,
                    },
                .of = t.c.g,
            },
    };
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    for (uint32_t p = 0; p < t.c.n_place; p++) {
        const size_t row = t.c.g.rows ? t.c.g.rows[p] : p;
        struct linear_w4a8_args one = {.by = a.as.by};
        one.by.w = matrix_at(&t, p);
        one.by.x = q + row * stride;
        one.by.rows = rows + row;
        one.by.y = want;
        one.by.n_row = 1;
        linear_w4a8_ref(&one, &alone);
        kc_same_bits(k, "place", (struct kc_bits){y + (size_t)p * n_out, want, DT_F32, n_out});
    }
}

void kbench_linear_w4a8_grouped(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

void kcheck_linear_w4a16_grouped(struct kcheck *k)
{
    struct int4_case t;
    make_int4(k, &t);
    const uint32_t n_out = t.w.n_out, n_in = t.w.n_in;
    const enum dtype as = kc_chance(k, 50) ? DT_BF16 : DT_F16;
    uint16_t *x = kc_buf(k, (t.c.n_x + 1) * n_in * sizeof *x);
    float *y = kc_buf(k, (size_t)t.c.n_place * n_out * sizeof *y);
    float *want = kc_buf(k, n_out * sizeof *want);
    kc_fill_dtype(k, x, as, (size_t)t.c.n_x * n_in);
    const struct linear_w4a16_grouped_args a = {
        .as =
            {
                .by =
                    {
                        .y = y,
                        .x = x,
                        .x_dtype = as,
                        .w = t.w,
                        .n_row = t.c.n_place,
                        .x_stride = n_in,
                        .y_stride = n_out,
                    },
                .of = t.c.g,
            },
    };
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    for (uint32_t p = 0; p < t.c.n_place; p++) {
        struct linear_w4a16_args one = {a.as.by};
        one.by.w = matrix_at(&t, p);
        one.by.x = x + (size_t)(t.c.g.rows ? t.c.g.rows[p] : p) * n_in;
        one.by.y = want;
        one.by.n_row = 1;
        linear_w4a16_ref(&one, &(struct kern_exec){.nth = 1});
        kc_same_bits(k, "place", (struct kc_bits){y + (size_t)p * n_out, want, DT_F32, n_out});
    }
}

void kbench_linear_w4a16_grouped(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* ---- permute_cols ---- */

static void shuffle(struct kcheck *k, uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = kc_range(k, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
}

void kcheck_permute_cols(struct kcheck *k)
{
    struct groups_case c;
    make_groups(k, &c);
    const bool grouped = kc_chance(k, 60), scaled = kc_chance(k, 50);
    const uint32_t n_col = (kc_chance(k, 50) ? 32 : 1) * kc_range(k, 1, 70);
    const uint32_t element = kc_range(k, 1, 2), n_order = grouped ? c.g.n_group : 1;
    c.g.w_stride = (n_col + kc_range(k, 0, 9)) * sizeof(uint32_t);
    uint32_t *orders = kc_buf(k, n_order * c.g.w_stride);
    for (uint32_t e = 0; e < n_order; e++)
        shuffle(k, orders + e * (c.g.w_stride / sizeof *orders), n_col);
    struct permute_cols_args a = {
        .element = element,
        .order = orders,
        .n_row = c.n_place,
        .n_col = n_col,
        .x_stride = n_col + kc_range(k, 0, 3),
        .y_stride = (n_col + 15) / 16 * 16,
        .of = c.g,
    };
    a.of.n_group = grouped ? c.g.n_group : 0;
    unsigned char *x = kc_buf(k, (c.n_x + 1) * a.x_stride * element);
    for (size_t i = 0; i < c.n_x * a.x_stride * element; i++)
        x[i] = (unsigned char)kc_range(k, 0, 255);
    struct quant_row *rows = kc_buf(k, (c.n_x + 1) * sizeof *rows);
    for (uint32_t i = 0; i < c.n_x; i++)
        rows[i] = (struct quant_row){(float)i, (int32_t)i};
    a.x = x;
    a.y = kc_buf(k, (c.n_place + 1) * a.y_stride * element);
    a.x_rows = scaled ? rows : NULL;
    a.y_rows = scaled ? kc_buf(k, (c.n_place + 1) * sizeof *rows) : NULL;
    kc_shape(k, "%u orders, %u places of %u rows, %u columns of %u", n_order, c.n_place, c.n_x,
             n_col, element);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    k->n_compared += c.n_place * n_col;
    for (uint32_t p = 0; p < c.n_place; p++) {
        const uint32_t *order =
            orders + (grouped ? expert_at(&c.g, p) : 0) * (c.g.w_stride / sizeof *orders);
        const uint32_t row = c.g.rows ? c.g.rows[p] : p;
        for (uint32_t i = 0; i < n_col; i++)
            if (memcmp((char *)a.y + (p * a.y_stride + i) * element,
                       x + (row * a.x_stride + order[i]) * element, element) != 0)
                kc_fail(k, "place %u column %u is not that of row %u", p, i, row);
        if (scaled && a.y_rows[p].sum != (int32_t)row)
            kc_fail(k, "place %u has the scale of row %d, not %u", p, a.y_rows[p].sum, row);
    }
}

void kbench_permute_cols(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* ---- moe_add_bias ---- */

/* Places behind those of the last expert keep what they have. */
void kcheck_moe_add_bias(struct kcheck *k)
{
    struct moe_add_bias_args a = {.n_col = kc_range(k, 1, 300), .of.n_group = kc_range(k, 1, 9)};
    const uint32_t n_group = a.of.n_group, spare = kc_range(k, 0, 2);
    const size_t stride = a.n_col + kc_range(k, 0, 5);
    uint32_t *starts = kc_buf(k, (n_group + 1) * sizeof *starts);
    starts[0] = 0;
    for (uint32_t e = 0; e < n_group; e++)
        starts[e + 1] = starts[e] + kc_range(k, 0, 4);
    a.n_row = starts[n_group] + spare;
    a.y_stride = a.n_col + kc_range(k, 0, 5);
    float *y = kc_buf(k, a.n_row * a.y_stride * sizeof *y);
    float *bias = kc_buf(k, n_group * stride * sizeof *bias);
    k->specials = false;
    kc_fill(k, y, a.n_row * a.y_stride);
    kc_fill(k, bias, n_group * stride);
    a.bias = bias;
    a.of.w_stride = stride * sizeof *bias;
    a.of.starts = starts;
    const float *before = kc_copy(k, y, a.n_row * a.y_stride * sizeof *y);
    a.y = y;
    kc_shape(k, "%u groups, %u places, %u spare x %u", n_group, a.n_row, spare, a.n_col);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    for (uint32_t p = 0, e = 0; p < a.n_row; p++) {
        while (e < n_group && starts[e + 1] <= p)
            e++;
        for (uint32_t c = 0; c < a.n_col; c++) {
            const float was = before[p * a.y_stride + c];
            const float want = e < n_group ? was + bias[e * stride + c] : was;
            kc_near(k, "y", (double)y[p * a.y_stride + c], (double)want, 0);
        }
    }
}

void kbench_moe_add_bias(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* ---- moe_add_shared ---- */

void kcheck_moe_add_shared(struct kcheck *k)
{
    struct moe_add_shared_args a = {.n_row = kc_range(k, 0, 6), .n_col = kc_range(k, 1, 300)};
    a.x_stride = a.n_col + kc_range(k, 0, 5);
    a.y_stride = a.n_col + kc_range(k, 0, 5);
    a.score_stride = kc_range(k, 1, 9);
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x);
    float *y = kc_buf(k, a.n_row * a.y_stride * sizeof *y);
    float *scores = kc_buf(k, a.n_row * a.score_stride * sizeof *scores);
    k->specials = false;
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill(k, y, a.n_row * a.y_stride);
    kc_fill(k, scores, a.n_row * a.score_stride);
    a.x = x;
    a.scores = scores;
    const float *before = kc_copy(k, y, a.n_row * a.y_stride * sizeof *y);
    a.y = y;
    kc_shape(k, "%u x %u", a.n_row, a.n_col);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    for (uint32_t i = 0; i < a.n_row; i++)
        for (uint32_t c = 0; c < a.n_col; c++) {
            const double share = 1 / (1 + exp(-(double)scores[i * a.score_stride]));
            const double was = (double)before[i * a.y_stride + c];
            const double more = share * (double)x[i * a.x_stride + c];
            kc_near(k, "y", (double)y[i * a.y_stride + c], was + more,
                    (fabs(was) + 8 * fabs(more)) * 0x1p-23 + 1e-37);
        }
}

void kbench_moe_add_shared(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}
