/* SPDX-License-Identifier: Apache-2.0 */
/* attention_train and attention_grad over segments of packed rows. Rows that are in no segment hold
 * NaN and stay as they are. That the formulas are derivatives is shown by
 * tests/unit/test_train_kernels.c. */
#include "kcheck.h"
#include <math.h>

#define ROWS_MAX     260u
#define SEGMENTS_MAX 4u

struct batch { /* one case */
    struct attention_train_args a;
    struct train_segment segments[SEGMENTS_MAX];
    uint32_t n_row;
    size_t q_width, kv_width; /* of a row */
};

struct query { /* one row of one head, and what f64 says of it */
    const struct attention_train_args *a;
    uint32_t first, row, head; /* of the segment; of the batch */
    double s[ROWS_MAX], p[ROWS_MAX], lse;
};

static float *fresh(struct kcheck *k, const struct batch *b, size_t stride)
{
    return kc_buf(k, b->n_row * stride * sizeof(float));
}

/* Values in the rows of segments; NaN elsewhere, and between the rows. */
static const float *filled(struct kcheck *k, const struct batch *b, size_t width, size_t stride)
{
    float *p = fresh(k, b, stride);
    for (uint32_t n = 0; n < b->a.n_segment; n++)
        for (uint32_t i = 0; i < b->segments[n].n_row; i++)
            kc_fill(k, p + (b->segments[n].row + i) * stride, width);
    return p;
}

static void draw_segments(struct kcheck *k, struct batch *b)
{
    b->a.n_segment = kc_range(k, 0, SEGMENTS_MAX);
    b->a.segments = b->segments;
    for (uint32_t n = 0; n < b->a.n_segment; n++) {
        b->n_row += kc_range(k, 0, 2);
        b->segments[n].row = b->n_row;
        b->segments[n].n_row = kc_chance(k, 20) ? kc_range(k, 90, 200) : kc_range(k, 0, 50);
        if (b->n_row + b->segments[n].n_row > ROWS_MAX)
            b->segments[n].n_row = 0;
        b->n_row += b->segments[n].n_row;
    }
}

/* Of ALiBi: 2^-8 to 1. */
static const float *draw_slopes(struct kcheck *k, uint32_t n_head)
{
    float *slopes = kc_buf(k, n_head * sizeof *slopes);
    for (uint32_t h = 0; h < n_head; h++)
        slopes[h] = (float)kc_range(k, 1, 256) / 256;
    return slopes;
}

static void draw(struct kcheck *k, struct batch *b)
{
    static const uint32_t dims[] = {16, 48, 64, 80, 128};
    const uint32_t dim = kc_chance(k, 50) ? kc_range(k, 1, 40) : kc_pick(k, dims, 5);
    const uint32_t n_kv = kc_range(k, 1, 3), n_head = n_kv * kc_range(k, 1, 3);
    k->specials = false;
    k->scratch_bytes = kern_train_scratch_bytes(dim);
    *b = (struct batch){.q_width = (size_t)n_head * dim, .kv_width = (size_t)n_kv * dim};
    b->a.n_head = n_head;
    b->a.n_kv_head = n_kv;
    b->a.head_dim = dim;
    b->a.scale = kc_chance(k, 30) ? 2.0f : 1 / sqrtf((float)dim);
    b->a.soft_cap = kc_chance(k, 30) ? 3.0f : 0;
    b->a.window = kc_chance(k, 40) ? kc_range(k, 1, 120) : 0;
    b->a.compute = kc_chance(k, 50) ? DT_BF16 : DT_F32;
    b->a.slopes = kc_chance(k, 30) ? draw_slopes(k, n_head) : NULL;
    draw_segments(k, b);
    b->a.q_stride = b->q_width + kc_range(k, 0, 9);
    b->a.kv_stride = b->kv_width + kc_range(k, 0, 9);
    b->a.out_stride = b->q_width + kc_range(k, 0, 9);
    b->a.q = filled(k, b, b->q_width, b->a.q_stride);
    b->a.k = filled(k, b, b->kv_width, b->a.kv_stride);
    b->a.v = filled(k, b, b->kv_width, b->a.kv_stride);
    kc_shape(k, "%u segments, %u rows, %u/%u heads of %u, scale %g cap %g window %u%s%s",
             b->a.n_segment, b->n_row, n_head, n_kv, dim, (double)b->a.scale, (double)b->a.soft_cap,
             b->a.window, b->a.compute == DT_BF16 ? ", bf16" : "", b->a.slopes ? ", slopes" : "");
}

static size_t key_at(const struct query *g, size_t stride, uint32_t c)
{
    return c * stride + g->head / (g->a->n_head / g->a->n_kv_head) * (size_t)g->a->head_dim;
}

/* A factor of a product, which is exact: what is left is the rounding of p and ds. */
static double factor(const struct attention_train_args *a, float x)
{
    return (double)(a->compute == DT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x);
}

/* sum of products of factors */
static double dot(const struct attention_train_args *of, const float *a, const float *b,
                  double *sizes)
{
    double sum = 0;
    *sizes = 0;
    for (uint32_t d = 0; d < of->head_dim; d++) {
        const double term = factor(of, a[d]) * factor(of, b[d]);
        sum += term;
        *sizes += fabs(term);
    }
    return sum;
}

/* Rows are of the batch from here on: keys g->first … g->row. */
static void score_query(struct query *g, uint32_t segment_row)
{
    const struct attention_train_args *a = g->a;
    const float *q = a->q + g->row * a->q_stride + (size_t)g->head * a->head_dim;
    double most = -INFINITY, total = 0, sizes;
    g->first = segment_row;
    if (a->window && g->row - segment_row + 1 > a->window)
        g->first = g->row + 1 - a->window;
    for (uint32_t c = g->first; c <= g->row; c++) {
        const double slope = a->slopes ? (double)a->slopes[g->head] * (g->row - c) : 0;
        const double s = a->scale * dot(a, q, a->k + key_at(g, a->kv_stride, c), &sizes) - slope;
        const double cap = a->soft_cap;
        g->s[c - g->first] = cap > 0 ? cap * tanh(s / cap) : s;
        most = fmax(most, g->s[c - g->first]);
    }
    for (uint32_t c = 0; c <= g->row - g->first; c++)
        total += exp(g->s[c] - most);
    g->lse = most + log(total);
    for (uint32_t c = 0; c <= g->row - g->first; c++)
        g->p[c] = exp(g->s[c] - g->lse);
}

/* An error of the scores of head_dim sums, of exponents and of sums over the keys. */
static double slack(const struct attention_train_args *a, uint32_t n_key)
{
    const double slopes = a->slopes ? ROWS_MAX : 0; /* a score is as large as that */
    return (8.0 * a->head_dim * a->scale + n_key + 64 + 16.0 * a->soft_cap + slopes) * 0x1p-24;
}

/* The rounding of p or ds to bf16, of each term. */
static double half_slack(const struct attention_train_args *a)
{
    return a->compute == DT_BF16 ? 0x1.1p-8 : 0;
}

static void near_out(struct kcheck *k, const struct batch *b)
{
    const struct attention_train_args *a = &b->a;
    for (uint32_t n = 0; n < a->n_segment; n++)
        for (uint32_t i = 0; i < b->segments[n].n_row * a->n_head; i++) {
            struct query g = {
                .a = a,
                .row = b->segments[n].row + i / a->n_head,
                .head = i % a->n_head,
            };
            score_query(&g, b->segments[n].row);
            kc_near(k, "lse", a->lse[(size_t)g.row * a->n_head + g.head], g.lse,
                    slack(a, 0) * (1 + fabs(g.lse)));
            for (uint32_t d = 0; d < a->head_dim; d++) {
                double want = 0, sizes = 0;
                for (uint32_t c = g.first; c <= g.row; c++) {
                    const double term =
                        g.p[c - g.first] * factor(a, a->v[key_at(&g, a->kv_stride, c) + d]);
                    want += term;
                    sizes += fabs(term);
                }
                kc_near(k, "out", a->out[g.row * a->out_stride + (size_t)g.head * a->head_dim + d],
                        want, (slack(a, g.row - g.first) + half_slack(a)) * (sizes + 0.01));
            }
        }
}

/* A segment alone gives the same bits, by any number of threads. */
static void train_alone(struct kcheck *k, const struct batch *b)
{
    if (!b->a.n_segment)
        return;
    const uint32_t n = kc_range(k, 0, b->a.n_segment - 1);
    struct attention_train_args one = b->a;
    one.segments = &b->segments[n];
    one.n_segment = 1;
    one.out = fresh(k, b, one.out_stride);
    one.lse = fresh(k, b, one.n_head);
    kc_run(k, k->variant, &one, kc_range(k, 1, 7));
    for (uint32_t i = 0; i < b->segments[n].n_row; i++) {
        const size_t at = b->segments[n].row + i;
        kc_same_bits(k, "segment alone",
                     (struct kc_bits){one.out + at * one.out_stride, b->a.out + at * one.out_stride,
                                      DT_F32, b->q_width});
        kc_same_bits(k, "segment alone, lse",
                     (struct kc_bits){one.lse + at * one.n_head, b->a.lse + at * one.n_head, DT_F32,
                                      one.n_head});
    }
}

void kcheck_attention_train(struct kcheck *k)
{
    struct batch b;
    draw(k, &b);
    const size_t n = b.n_row * b.a.out_stride;
    float *want = fresh(k, &b, b.a.out_stride), *want_lse = fresh(k, &b, b.a.n_head);
    float *got = fresh(k, &b, b.a.out_stride), *lse = fresh(k, &b, b.a.n_head);
    b.a.out = want;
    b.a.lse = want_lse;
    kc_run(k, k->ref, &b.a, 1);
    near_out(k, &b);
    b.a.out = got;
    b.a.lse = lse;
    kc_run(k, k->variant, &b.a, kc_range(k, 1, 7));
    near_out(k, &b);
    k->magnitude = 1;
    if (b.a.soft_cap > 0 || b.a.scale > 1) /* what is wrong with a score multiplies p */
        k->magnitude = 8;
    if (b.a.compute == DT_BF16) /* p may be rounded to the other neighbour, 2^-7 away */
        k->magnitude = 0x1p-7 / (32 * 0x1p-24);
    kc_compare(k, "out", &(struct kc_array){got, DT_F32, b.n_row, b.q_width, b.a.out_stride},
               &(struct kc_array){want, DT_F32, b.n_row, b.q_width, b.a.out_stride});
    train_alone(k, &b);
    struct attention_train_args other = b.a;
    other.out = fresh(k, &b, b.a.out_stride);
    other.lse = fresh(k, &b, b.a.n_head);
    kc_same_as_sibling(k, &other, (struct kc_bits){other.out, got, DT_F32, n});
    kc_run(k, k->variant, &other, 1);
    kc_same_bits(k, "one thread", (struct kc_bits){other.out, got, DT_F32, n});
}

/* ---- attention_grad ---- */
struct gradients {
    const float *dq, *dk, *dv;
};

/* Sums of the gradient in f64, and of the sizes of their terms. [rows][width of q, or of k] */
struct sums {
    double *dq, *dk, *dv, *dq_size, *dk_size, *dv_size;
};

static double *zeros(struct kcheck *k, const struct batch *b, size_t width)
{
    double *p = kc_buf(k, b->n_row * width * sizeof *p);
    memset(p, 0, b->n_row * width * sizeof *p);
    return p;
}

static void add_key(const struct attention_grad_args *a, const struct batch *b,
                    const struct query *g, uint32_t c, const struct sums *s)
{
    const uint32_t dim = a->of.head_dim;
    const size_t at = (size_t)g->head * dim, key = key_at(g, b->kv_width, c);
    const float *dout = a->dout + g->row * a->dout_stride + at;
    const float *out = a->of.out + g->row * a->of.out_stride + at;
    const float *q = a->of.q + g->row * a->of.q_stride + at;
    const float *k = a->of.k + key_at(g, a->of.kv_stride, c);
    const float *v = a->of.v + key_at(g, a->of.kv_stride, c);
    double size, delta_size = 0, delta = 0,
                 t = a->of.soft_cap > 0 ? g->s[c - g->first] / a->of.soft_cap : 0;
    const double p = g->p[c - g->first], scale = a->of.scale;
    const double dp = dot(&a->of, dout, v, &size);
    for (uint32_t d = 0; d < dim; d++) {
        delta += (double)dout[d] * out[d];
        delta_size += fabs((double)dout[d] * out[d]);
    }
    const double ds = p * (dp - delta) * (1 - t * t) * scale,
                 ds_size = p * (size + delta_size) * scale;
    for (uint32_t d = 0; d < dim; d++) {
        s->dq[g->row * b->q_width + at + d] += ds * factor(&a->of, k[d]);
        s->dq_size[g->row * b->q_width + at + d] += ds_size * fabsf(k[d]);
        s->dk[key + d] += ds * factor(&a->of, q[d]);
        s->dk_size[key + d] += ds_size * fabsf(q[d]);
        s->dv[key + d] += p * factor(&a->of, dout[d]);
        s->dv_size[key + d] += p * fabsf(dout[d]);
    }
}

static struct sums sums_of(struct kcheck *k, const struct attention_grad_args *a,
                           const struct batch *b)
{
    struct sums s = {zeros(k, b, b->q_width), zeros(k, b, b->kv_width), zeros(k, b, b->kv_width),
                     zeros(k, b, b->q_width), zeros(k, b, b->kv_width), zeros(k, b, b->kv_width)};
    for (uint32_t n = 0; n < a->of.n_segment; n++)
        for (uint32_t i = 0; i < b->segments[n].n_row * a->of.n_head; i++) {
            struct query g = {
                .a = &a->of,
                .row = b->segments[n].row + i / a->of.n_head,
                .head = i % a->of.n_head,
            };
            score_query(&g, b->segments[n].row);
            for (uint32_t c = g.first; c <= g.row; c++)
                add_key(a, b, &g, c, &s);
        }
    return s;
}

static void near_grad(struct kcheck *k, const struct attention_grad_args *a, const struct batch *b,
                      const struct sums *s)
{
    const double bound = slack(&a->of, b->n_row * a->of.n_head) + half_slack(&a->of);
    for (uint32_t n = 0; n < a->of.n_segment; n++)
        for (uint32_t i = 0; i < b->segments[n].n_row; i++) {
            const size_t row = b->segments[n].row + i;
            for (size_t c = 0; c < b->q_width; c++)
                kc_near(k, "dq", a->dq[row * a->dq_stride + c], s->dq[row * b->q_width + c],
                        bound * (s->dq_size[row * b->q_width + c] + 0.01));
            for (size_t c = 0; c < b->kv_width; c++) {
                const size_t at = row * b->kv_width + c;
                kc_near(k, "dk", a->dk[row * a->dkv_stride + c], s->dk[at],
                        bound * (s->dk_size[at] + 0.01));
                kc_near(k, "dv", a->dv[row * a->dkv_stride + c], s->dv[at],
                        bound * (s->dv_size[at] + 0.01));
            }
        }
}

static void fresh_gradients(struct kcheck *k, const struct batch *b, struct attention_grad_args *a)
{
    a->dq = fresh(k, b, a->dq_stride);
    a->dk = fresh(k, b, a->dkv_stride);
    a->dv = fresh(k, b, a->dkv_stride);
}

static void same_gradients(struct kcheck *k, const struct batch *b, const char *what,
                           const struct attention_grad_args *x, const struct attention_grad_args *y)
{
    const size_t n_q = b->n_row * x->dq_stride, n_kv = b->n_row * x->dkv_stride;
    kc_same_bits(k, what, (struct kc_bits){x->dq, y->dq, DT_F32, n_q});
    kc_same_bits(k, what, (struct kc_bits){x->dk, y->dk, DT_F32, n_kv});
    kc_same_bits(k, what, (struct kc_bits){x->dv, y->dv, DT_F32, n_kv});
}

/* By other numbers of threads, which cut the work in other ways, and by the sibling. */
static void grad_again(struct kcheck *k, const struct batch *b, const struct attention_grad_args *a)
{
    struct attention_grad_args other = *a;
    fresh_gradients(k, b, &other);
    kc_run(k, k->variant, &other, 1);
    same_gradients(k, b, "one thread", &other, a);
    fresh_gradients(k, b, &other);
    kc_run(k, k->variant, &other, kc_range(k, 8, 40));
    same_gradients(k, b, "many threads", &other, a);
    if (!k->sibling)
        return;
    fresh_gradients(k, b, &other);
    kc_run(k, k->sibling, &other, kc_range(k, 1, 4));
    same_gradients(k, b, k->sibling->name, &other, a);
}

void kcheck_attention_grad(struct kcheck *k)
{
    struct batch b;
    draw(k, &b);
    b.a.out = fresh(k, &b, b.a.out_stride);
    b.a.lse = fresh(k, &b, b.a.n_head);
    struct kern_table t;
    kern_table_cpu(&t, CAP_NONE);
    t.attention_train(&b.a, &(struct kern_exec){.nth = 1});
    struct attention_grad_args a = {
        .of = b.a,
        .dout_stride = b.q_width + kc_range(k, 0, 9),
        .dq_stride = b.q_width + kc_range(k, 0, 9),
        .dkv_stride = b.kv_width + kc_range(k, 0, 9),
    };
    a.dout = filled(k, &b, b.q_width, a.dout_stride);
    fresh_gradients(k, &b, &a);
    struct attention_grad_args got = a;
    fresh_gradients(k, &b, &got);
    const struct sums s = sums_of(k, &a, &b);
    kc_run(k, k->ref, &a, kc_range(k, 1, 3));
    near_grad(k, &a, &b, &s);
    kc_run(k, k->variant, &got, kc_range(k, 1, 7));
    near_grad(k, &got, &b, &s);
    k->magnitude =
        b.a.soft_cap > 0 || b.a.scale > 1 ? 16 : 2; /* terms cancel, p is wrong by more */
    if (b.a.compute == DT_BF16) /* p and ds may be rounded to the other neighbour, 2^-7 away */
        k->magnitude *= 0x1p-7 / (64 * 0x1p-24);
    kc_compare(k, "dq", &(struct kc_array){got.dq, DT_F32, b.n_row, b.q_width, a.dq_stride},
               &(struct kc_array){a.dq, DT_F32, b.n_row, b.q_width, a.dq_stride});
    kc_compare(k, "dk", &(struct kc_array){got.dk, DT_F32, b.n_row, b.kv_width, a.dkv_stride},
               &(struct kc_array){a.dk, DT_F32, b.n_row, b.kv_width, a.dkv_stride});
    kc_compare(k, "dv", &(struct kc_array){got.dv, DT_F32, b.n_row, b.kv_width, a.dkv_stride},
               &(struct kc_array){a.dv, DT_F32, b.n_row, b.kv_width, a.dkv_stride});
    grad_again(k, &b, &got);
}

/* ---- benchmarks ---- */
static const struct shape {
    uint32_t n_row, n_head, n_kv_head, head_dim;
    enum dtype compute;
    const char *name;
} shapes[] = {
    {512, 4, 4, 64, DT_F32, "512 rows, 4/4 heads of 64"},
    {512, 4, 4, 64, DT_BF16, "512 rows, 4/4 heads of 64, bf16"},
    {512, 8, 2, 128, DT_F32, "512 rows, 8/2 heads of 128"},
    {512, 8, 2, 128, DT_BF16, "512 rows, 8/2 heads of 128, bf16"},
};

static struct attention_train_args bench_args(struct kc_bench *b, const struct shape *s,
                                              const struct train_segment *segment)
{
    const size_t q = (size_t)s->n_head * s->head_dim, kv = (size_t)s->n_kv_head * s->head_dim;
    float *all = kc_buf(b->k, s->n_row * (q + 2 * kv) * sizeof *all);
    kc_fill(b->k, all, s->n_row * (q + 2 * kv));
    return (struct attention_train_args){
        .out = kc_buf(b->k, s->n_row * q * sizeof(float)),
        .lse = kc_buf(b->k, (size_t)s->n_row * s->n_head * sizeof(float)),
        .q = all,
        .k = all + q,
        .v = all + q + kv,
        .out_stride = q,
        .q_stride = q + 2 * kv,
        .kv_stride = q + 2 * kv,
        .segments = segment,
        .n_segment = 1,
        .n_head = s->n_head,
        .n_kv_head = s->n_kv_head,
        .head_dim = s->head_dim,
        .scale = 1 / sqrtf((float)s->head_dim),
        .compute = s->compute,
    };
}

/* What bounds the products of this variant. */
static int bench_peak(const struct kc_bench *b, const struct shape *s)
{
    const uint32_t caps = b->k->variant->caps;
    if (s->compute == DT_BF16 && (caps & CAP_AVX512_BF16))
        return PEAK_BF16_32;
    return caps & (CAP_AVX512 | CAP_AVX512_BF16) ? PEAK_F32_16 : PEAK_F32_8;
}

/* The plain C of the reference takes seconds for heads of 128. */
static size_t bench_shapes(const struct kc_bench *b)
{
    return b->k->variant->caps == CAP_NONE ? 2 : sizeof shapes / sizeof *shapes;
}

/* Of one product over the pairs that causal attention has. */
static double bench_flop(const struct shape *s)
{
    return 2.0 * s->n_head * s->head_dim * s->n_row * (s->n_row + 1.0) / 2;
}

void kbench_attention_train(struct kc_bench *b)
{
    for (size_t i = 0; i < bench_shapes(b); i++) {
        b->i_peak = bench_peak(b, &shapes[i]);
        const struct train_segment segment = {0, shapes[i].n_row};
        const struct attention_train_args a = bench_args(b, &shapes[i], &segment);
        kc_print_flop(b, shapes[i].name, kc_time(b, &a), 2 * bench_flop(&shapes[i]));
        kc_end_case(b->k);
    }
}

void kbench_attention_grad(struct kc_bench *b)
{
    for (size_t i = 0; i < bench_shapes(b); i++) {
        b->i_peak = bench_peak(b, &shapes[i]);
        const struct train_segment segment = {0, shapes[i].n_row};
        struct attention_grad_args a = {.of = bench_args(b, &shapes[i], &segment)};
        const size_t n_q = shapes[i].n_row * a.of.out_stride,
                     n_kv = shapes[i].n_row * a.of.q_stride;
        struct kern_table t;
        kern_table_cpu(&t, b->k->variant->caps);
        t.attention_train(&a.of, &(struct kern_exec){.nth = 1, .scratch = b->scratch[0]});
        float *dout = kc_buf(b->k, n_q * sizeof *dout);
        kc_fill(b->k, dout, n_q);
        a.dout = dout;
        a.dout_stride = a.of.out_stride;
        a.dq_stride = a.dkv_stride = a.of.q_stride;
        a.dq = kc_buf(b->k, n_kv * sizeof *a.dq);
        a.dk = a.dq + a.of.out_stride;
        a.dv = a.dk + (size_t)shapes[i].n_kv_head * shapes[i].head_dim;
        kc_print_flop(b, shapes[i].name, kc_time(b, &a), 5 * bench_flop(&shapes[i]));
        kc_end_case(b->k);
    }
}
