/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm_grad, activate_grad, column_sums and embed_grad: gradients of what goes row by row. That
 * their formulas are derivatives is shown by tests/unit/test_train_kernels.c. */
#include "kcheck.h"
#include <math.h>

/* ---- rms_norm_grad ---- */

/* The formula in f64. What is taken off may cancel, so bounds are of the terms. */
static void norm_near(struct kcheck *k, const struct rms_norm_grad_args *a, size_t i,
                      const float *before)
{
    const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col;
    const float *x = a->x + row * a->x_stride + at, *dy = a->dy + row * a->dy_stride + at;
    const float *dx = a->dx + row * a->dx_stride + at;
    double squares = 0, products = 0, sizes = 0;
    for (uint32_t c = 0; c < a->n_col; c++) {
        squares += (double)x[c] * x[c];
        products += (double)dy[c] * a->w[c] * x[c];
        sizes += fabs((double)dy[c] * a->w[c] * x[c]);
    }
    const double r = 1 / sqrt(squares / a->n_col + (double)a->eps);
    kc_near(k, "r", a->r[i], r, r * (a->n_col + 8) * 0x1p-24);
    for (uint32_t c = 0; c < a->n_col; c++) {
        const double g = (double)dy[c] * a->w[c];
        const double old = a->accumulate ? before[row * a->dx_stride + at + c] : 0;
        const double want = old + r * (g - x[c] * r * r * products / a->n_col);
        const double terms =
            fabs(old) + r * (fabs(g) + fabs((double)x[c]) * r * r * sizes / a->n_col);
        kc_near(k, "dx", dx[c], want, terms * (3 * a->n_col + 16) * 0x1p-24 + 1e-37);
    }
}

void kcheck_rms_norm_grad(struct kcheck *k)
{
    k->specials = false;
    struct rms_norm_grad_args a = {
        .accumulate = kc_chance(k, 50),
        .n_row = kc_range(k, 0, 6),
        .n_unit = kc_chance(k, 50) ? 1 : kc_range(k, 2, 5),
        .n_col = kc_range(k, 1, 200),
        .eps = 1e-5f,
    };
    const uint32_t width = a.n_unit * a.n_col;
    const bool in_place = !a.accumulate && kc_chance(k, 30);
    a.x_stride = width + kc_range(k, 0, 9);
    a.dy_stride = width + kc_range(k, 0, 9);
    a.dx_stride = in_place ? a.dy_stride : width + kc_range(k, 0, 9);
    kc_shape(k, "%u rows of %u x %u%s%s", a.n_row, a.n_unit, a.n_col, a.accumulate ? " added" : "",
             in_place ? " in place" : "");
    const size_t n_dx = a.n_row * a.dx_stride, n_dy = a.n_row * a.dy_stride;
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x), *dy = kc_buf(k, n_dy * sizeof *dy);
    float *w = kc_buf(k, a.n_col * sizeof *w), *before = kc_buf(k, n_dx * sizeof *before);
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill(k, dy, n_dy);
    kc_fill(k, w, a.n_col);
    kc_fill(k, before, n_dx);
    const float *start = in_place ? dy : before;
    float *want = kc_copy(k, start, n_dx * sizeof *want),
          *got = kc_copy(k, start, n_dx * sizeof *got);
    a.x = x;
    a.w = w;
    a.dy = dy;
    a.dx = want;
    a.r = kc_buf(k, (size_t)a.n_row * a.n_unit * sizeof *a.r);
    kc_run(k, k->ref, &a, 1);
    for (size_t i = 0; i < (size_t)a.n_row * a.n_unit; i++)
        norm_near(k, &a, i, before);
    const float *r = a.r;
    a.r = kc_buf(k, (size_t)a.n_row * a.n_unit * sizeof *a.r);
    a.dx = got;
    a.dy = in_place ? got : dy;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "dx", &(struct kc_array){got, DT_F32, a.n_row, width, a.dx_stride},
               &(struct kc_array){want, DT_F32, a.n_row, width, a.dx_stride});
    kc_same_bits(k, "r", (struct kc_bits){a.r, r, DT_F32, (size_t)a.n_row * a.n_unit});
}

void kbench_rms_norm_grad(struct kc_bench *b)
{
    const uint32_t n_row = 2048, n_col = 1024;
    const size_t n = (size_t)n_row * n_col;
    struct rms_norm_grad_args a = {
        .n_row = n_row,
        .n_unit = 1,
        .n_col = n_col,
        .dx_stride = n_col,
        .dy_stride = n_col,
        .x_stride = n_col,
        .accumulate = 1,
        .eps = 1e-6f,
    };
    float *x = kc_buf(b->k, n * 4), *dy = kc_buf(b->k, n * 4), *w = kc_buf(b->k, n_col * 4);
    kc_fill(b->k, x, n);
    kc_fill(b->k, dy, n);
    kc_fill(b->k, w, n_col);
    a.x = x;
    a.dy = dy;
    a.w = w;
    a.dx = kc_copy(b->k, x, n * 4);
    a.r = kc_buf(b->k, n_row * sizeof *a.r);
    kc_print_bytes(b, "2048 x 1024, added", kc_time(b, &a), (double)n * 16);
}

/* ---- activate_grad ---- */
struct value { /* act(z), act'(z) */
    double act, slope;
};

static struct value value_f64(enum kern_act act, double z)
{
    const double k1 = 2 * sqrt(2 / M_PI), k3 = k1 * 0.044715;
    const double e = act == KERN_GELU_TANH    ? z * (k1 + k3 * z * z)
                     : act == KERN_GELU_QUICK ? 1.702 * z
                                              : z;
    const double slope = act == KERN_GELU_TANH    ? k1 + 3 * k3 * z * z
                         : act == KERN_GELU_QUICK ? 1.702
                                                  : 1;
    const double s = 1 / (1 + exp(-e)), rest = 1 / (1 + exp(e)), phi = erfc(-z / sqrt(2)) / 2;
    switch (act) {
    case KERN_GELU:
        return (struct value){z * phi, phi + z * exp(-z * z / 2) / sqrt(2 * M_PI)};
    case KERN_RELU:
        return (struct value){fmax(z, 0), z > 0};
    case KERN_RELU2:
        return (struct value){fmax(z, 0) * fmax(z, 0), 2 * fmax(z, 0)};
    case KERN_IDENTITY:
        return (struct value){z, 1};
    default:
        return (struct value){z * s, s * (1 + z * rest * slope)};
    }
}

/* The terms of a slope are at most 1 + |z| e^-..., which the bound multiplies; an exponent is
 * rounded a few times, and e^… multiplies that by its size. */
static void activate_near(struct kcheck *k, const struct activate_grad_args *a, const float *dx)
{
    for (uint32_t i = 0; i < a->n_row; i++)
        for (uint32_t c = 0; c < a->n_col; c++) {
            const double z = a->x[i * a->x_stride + c], dy = a->dy[i * a->dy_stride + c];
            const double up = a->gated ? a->x[i * a->x_stride + a->n_col + c] : 1;
            const struct value v = value_f64(a->act, z);
            const double bound = 24 * (1 + fmin(z * z, 100)) * 0x1p-24;
            kc_near(k, "dx", dx[i * a->dx_stride + c], dy * up * v.slope,
                    fabs(dy * up) * bound * (a->act == KERN_RELU2 ? fabs(z) : 1) + 1e-34);
            if (a->gated)
                kc_near(k, "dup", dx[i * a->dx_stride + a->n_col + c], dy * v.act,
                        fabs(dy) * (fabs(v.act) * bound + 0x1p-24) + 1e-34);
        }
}

void kcheck_activate_grad(struct kcheck *k)
{
    k->specials = false;
    struct activate_grad_args a = {
        .act = (enum kern_act)kc_range(k, 0, KERN_ACTS - 1),
        .gated = kc_chance(k, 50),
        .n_row = kc_range(k, 0, 6),
        .n_col = kc_range(k, 1, 300),
    };
    const uint32_t width = a.gated ? 2 * a.n_col : a.n_col;
    const bool in_place = kc_chance(k, 50);
    a.x_stride = width + kc_range(k, 0, 9);
    a.dy_stride = a.n_col + kc_range(k, 0, 9);
    a.dx_stride = in_place ? a.x_stride : width + kc_range(k, 0, 9);
    kc_shape(k, "act %d%s %u x %u%s", (int)a.act, a.gated ? " gated" : "", a.n_row, a.n_col,
             in_place ? " in place" : "");
    const size_t n_x = a.n_row * a.x_stride, n_dx = a.n_row * a.dx_stride;
    float *x = kc_buf(k, n_x * sizeof *x), *dy = kc_buf(k, a.n_row * a.dy_stride * sizeof *dy);
    k->scale = kc_chance(k, 30) ? 110.0f : 8.0f;
    kc_fill(k, x, n_x);
    k->scale = 1;
    kc_fill(k, dy, a.n_row * a.dy_stride);
    float *want = kc_buf(k, n_dx * sizeof *want);
    float *got = in_place ? kc_copy(k, x, n_dx * sizeof *got) : kc_buf(k, n_dx * sizeof *got);
    a.x = x;
    a.dy = dy;
    a.dx = want;
    if (in_place) /* what lies between rows is compared too */
        memcpy(want, x, n_dx * sizeof *want);
    kc_run(k, k->ref, &a, 1);
    activate_near(k, &a, want);
    a.dx = got;
    a.x = in_place ? got : x;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    a.x = x;
    activate_near(k, &a, got);
    kc_compare(k, "dx", &(struct kc_array){got, DT_F32, a.n_row, width, a.dx_stride},
               &(struct kc_array){want, DT_F32, a.n_row, width, a.dx_stride});
    a.dx = want;
    kc_same_as_sibling(k, &a, (struct kc_bits){want, got, DT_F32, n_dx});
}

void kbench_activate_grad(struct kc_bench *b)
{
    static const struct {
        enum kern_act act;
        const char *shape;
    } cases[] = {{KERN_SILU, "silu, 512 x 4864, gated"}, {KERN_GELU, "gelu, 512 x 4864, gated"}};
    const uint32_t n_row = 512, n_col = 4864;
    const size_t n = (size_t)n_row * n_col;
    struct activate_grad_args a = {
        .gated = 1,
        .n_row = n_row,
        .n_col = n_col,
        .dx_stride = 2 * n_col,
        .dy_stride = n_col,
        .x_stride = 2 * n_col,
    };
    float *x = kc_buf(b->k, n * 8), *dy = kc_buf(b->k, n * 4);
    kc_fill(b->k, x, 2 * n);
    kc_fill(b->k, dy, n);
    a.x = x;
    a.dy = dy;
    a.dx = kc_buf(b->k, n * 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a.act = cases[i].act;
        kc_print_bytes(b, cases[i].shape, kc_time(b, &a), (double)n * 20);
    }
}

/* ---- column_sums ---- */
static void column_near(struct kcheck *k, const struct column_sums_args *a, uint32_t c, double old)
{
    double sum = old, sizes = fabs(old);
    for (size_t i = 0; i < (size_t)a->n_row * a->n_unit; i++) {
        const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col + c;
        double term = a->x[row * a->x_stride + at];
        double size = fabs(term);
        if (a->z) {
            const double z = a->z[row * a->z_stride + at], shift = a->shift ? a->shift[i] : 0;
            term *= (z - shift) * a->r[i];
            size *= (fabs(z) + fabs(shift)) * fabs((double)a->r[i]);
        }
        sum += term;
        sizes += size;
    }
    /* 64 additions in a block, n / 64 of blocks, three roundings of a term */
    const double steps = 64 + (double)a->n_row * a->n_unit / 64 + 8;
    kc_near(k, "y", a->y[c], sum, sizes * steps * 0x1p-24 + 1e-37);
}

void kcheck_column_sums(struct kcheck *k)
{
    k->specials = false;
    struct column_sums_args a = {
        .n_row = kc_range(k, 0, 150),
        .n_unit = kc_chance(k, 60) ? 1 : kc_range(k, 2, 4),
        .n_col = kc_range(k, 1, 150),
    };
    const bool with_z = kc_chance(k, 60), with_shift = with_z && kc_chance(k, 50);
    const uint32_t width = a.n_unit * a.n_col;
    a.x_stride = width + kc_range(k, 0, 9);
    a.z_stride = width + kc_range(k, 0, 9);
    kc_shape(k, "%u rows of %u x %u%s", a.n_row, a.n_unit, a.n_col,
             with_shift ? " z shift"
             : with_z   ? " z"
                        : "");
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x);
    float *z = kc_buf(k, a.n_row * a.z_stride * sizeof *z);
    float *r = kc_buf(k, (size_t)a.n_row * a.n_unit * sizeof *r);
    float *shift = kc_buf(k, (size_t)a.n_row * a.n_unit * sizeof *shift);
    float *before = kc_buf(k, a.n_col * sizeof *before);
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill(k, z, a.n_row * a.z_stride);
    kc_fill(k, r, (size_t)a.n_row * a.n_unit);
    kc_fill(k, shift, (size_t)a.n_row * a.n_unit);
    kc_fill(k, before, a.n_col);
    float *want = kc_copy(k, before, a.n_col * sizeof *want);
    float *got = kc_copy(k, before, a.n_col * sizeof *got);
    a.x = x;
    a.z = with_z ? z : NULL;
    a.r = with_z ? r : NULL;
    a.shift = with_shift ? shift : NULL;
    a.y = want;
    kc_run(k, k->ref, &a, 1);
    for (uint32_t c = 0; c < a.n_col; c++)
        column_near(k, &a, c, before[c]);
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, 1, a.n_col, a.n_col},
               &(struct kc_array){want, DT_F32, 1, a.n_col, a.n_col});
}

void kbench_column_sums(struct kc_bench *b)
{
    const uint32_t n_row = 2048, n_col = 1024;
    const size_t n = (size_t)n_row * n_col;
    struct column_sums_args a = {
        .n_row = n_row,
        .n_unit = 1,
        .n_col = n_col,
        .x_stride = n_col,
        .z_stride = n_col,
    };
    float *x = kc_buf(b->k, n * 4), *z = kc_buf(b->k, n * 4), *r = kc_buf(b->k, n_row * 4);
    kc_fill(b->k, x, n);
    kc_fill(b->k, z, n);
    kc_fill(b->k, r, n_row);
    a.y = kc_buf(b->k, n_col * 4);
    memset(a.y, 0, n_col * 4);
    a.x = x;
    a.z = z;
    a.r = r;
    kc_print_bytes(b, "2048 x 1024, with z", kc_time(b, &a), (double)n * 8);
}

/* ---- embed_grad ---- */
void kcheck_embed_grad(struct kcheck *k)
{
    struct embed_grad_args a = {
        .n_row = kc_range(k, 0, 40),
        .n_col = kc_range(k, 1, 150),
        .scale = kc_chance(k, 50) ? 1 : 11.3f,
    };
    const uint32_t n_vocab = kc_range(k, 1, 20);
    const size_t n = (size_t)n_vocab * a.n_col;
    a.dy_stride = a.n_col + kc_range(k, 0, 9);
    kc_shape(k, "%u rows of %u to %u tokens", a.n_row, a.n_col, n_vocab);
    float *dy = kc_buf(k, a.n_row * a.dy_stride * sizeof *dy),
          *before = kc_buf(k, n * sizeof *before);
    uint32_t *ids = kc_buf(k, a.n_row * sizeof *ids);
    kc_fill(k, dy, a.n_row * a.dy_stride);
    kc_fill(k, before, n);
    for (uint32_t i = 0; i < a.n_row; i++)
        ids[i] = kc_range(k, 0, n_vocab - 1);
    float *want = kc_copy(k, before, n * sizeof *want), *got = kc_copy(k, before, n * sizeof *got);
    a.dy = dy;
    a.ids = ids;
    a.dtable = want;
    kc_run(k, k->ref, &a, 1);
    for (size_t j = 0; j < n && !k->specials; j++) {
        double sum = before[j], sizes = fabs(sum);
        for (uint32_t i = 0; i < a.n_row; i++) {
            const double term =
                ids[i] == j / a.n_col ? (double)a.scale * dy[i * a.dy_stride + j % a.n_col] : 0;
            sum += term;
            sizes += fabs(term);
        }
        kc_near(k, "dtable", want[j], sum, sizes * (a.n_row + 1) * 0x1p-24);
    }
    a.dtable = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "dtable", &(struct kc_array){got, DT_F32, n_vocab, a.n_col, a.n_col},
               &(struct kc_array){want, DT_F32, n_vocab, a.n_col, a.n_col});
}

void kbench_embed_grad(struct kc_bench *b)
{
    const uint32_t n_row = 2048, n_col = 1024, n_vocab = 32768;
    struct embed_grad_args a = {.n_row = n_row, .n_col = n_col, .dy_stride = n_col, .scale = 1};
    float *dy = kc_buf(b->k, (size_t)n_row * n_col * 4);
    uint32_t *ids = kc_buf(b->k, n_row * sizeof *ids);
    kc_fill(b->k, dy, (size_t)n_row * n_col);
    for (uint32_t i = 0; i < n_row; i++)
        ids[i] = kc_range(b->k, 0, n_vocab - 1);
    a.dtable = kc_buf(b->k, (size_t)n_vocab * n_col * 4);
    memset(a.dtable, 0, (size_t)n_vocab * n_col * 4);
    a.dy = dy;
    a.ids = ids;
    kc_print_bytes(b, "2048 x 1024 of 32768", kc_time(b, &a), (double)n_row * n_col * 12);
}
