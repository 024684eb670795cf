/* SPDX-License-Identifier: Apache-2.0 */
/* Training kernels: gradients against central differences of the forward formula in f64, the loss
 * of distillation against goldens, products of a backward pass put together from the operations.
 * Every test goes through the tables of the instruction sets that the machine has; variants against
 * each other are kcheck's.
 *
 * tests/data/distill: losses and gradients computed in f64 by another implementation, whose README
 * gives the tolerance: 1e-5 of the row's largest value + 1e-6. */
#include <math.h>
#include "check.h"
#include "common/hub/safetensors.h"
#include "kernels/kern.h"

#define STEP       1e-5 /* of the differences: their error is about STEP^2 and 2^-53 / STEP */
#define THREADS    3u
#define SCRATCH    (1u << 20)
#define VALUES_MAX 4096u

/* Sets of kernels, each once: a machine without the instructions of one gives that before it. */
static uint32_t levels[4];
static size_t n_level;

static int find_levels(void **state)
{
    static const char *const names[] = {"none", "avx2", "avx512", "auto"};
    struct q_err e = Q_ERR_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(kern_caps_parse(&levels[n_level], names[i], &e), &e);
        n_level += n_level == 0 || levels[n_level] != levels[n_level - 1];
    }
    return 0;
}

static struct kern_table table_of(size_t level)
{
    struct kern_table t;
    kern_table_cpu(&t, levels[level]);
    return t;
}

/* One call by THREADS threads, one after another. */
#define RUN(table, op, args)                                                        \
    do {                                                                            \
        static _Alignas(64) unsigned char room[SCRATCH];                            \
        for (uint32_t i_ = 0; i_ < THREADS; i_++)                                   \
            (table)->op((args), &(struct kern_exec){.ith = i_,                      \
                                                    .nth = THREADS,                 \
                                                    .scratch = room,                \
                                                    .scratch_bytes = sizeof room}); \
    } while (0)

static uint64_t random_state;

static float draw(void) /* -1 … 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void fill(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = draw();
}

/* ---- central differences ---- */

/* A function of n values, in f64. */
typedef double scalar_fn(const double *x, const void *context);

/* got[i] is the derivative of f by x[i], within `bound` of the largest one. */
static void assert_gradient(scalar_fn *f, const void *context, const float *x, const float *got,
                            size_t n, double bound)
{
    static double at[VALUES_MAX], slope[VALUES_MAX];
    double most = 0;
    assert_true(n <= VALUES_MAX);
    for (size_t i = 0; i < n; i++)
        at[i] = (double)x[i];
    for (size_t i = 0; i < n; i++) {
        at[i] = (double)x[i] + STEP;
        const double above = f(at, context);
        at[i] = (double)x[i] - STEP;
        slope[i] = (above - f(at, context)) / (2 * STEP);
        at[i] = (double)x[i];
        most = fmax(most, fabs(slope[i]));
    }
    assert_true(most > 0);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - slope[i]) <= bound * most))
            fail_msg("value %zu: gradient %.9g, by differences %.9g, largest %g", i, (double)got[i],
                     slope[i], most);
}

/* ---- rms_norm ---- */
enum { NORM_ROWS = 3, NORM_UNITS = 2, NORM_COLS = 21, NORM_N = NORM_ROWS * NORM_UNITS * NORM_COLS };
#define NORM_EPS 1e-3

/* x, then w; context: dy. */
static double norm_f64(const double *x, const void *context)
{
    const float *dy = context;
    const double *w = x + NORM_N;
    double sum = 0;
    for (size_t u = 0; u < NORM_N; u += NORM_COLS) {
        double squares = 0;
        for (size_t c = u; c < u + NORM_COLS; c++)
            squares += x[c] * x[c];
        for (size_t c = u; c < u + NORM_COLS; c++)
            sum += (double)dy[c] * x[c] / sqrt(squares / NORM_COLS + NORM_EPS) * w[c - u];
    }
    return sum;
}

static void test_rms_norm_grad(void **state)
{
    (void)state;
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        float x[NORM_N + NORM_COLS], dy[NORM_N], grad[NORM_N + NORM_COLS] = {0};
        float r[NORM_ROWS * NORM_UNITS];
        random_state = 1;
        fill(x, NORM_N + NORM_COLS);
        fill(dy, NORM_N);
        const struct rms_norm_grad_args a = {
            .dx = grad,
            .dy = dy,
            .x = x,
            .w = x + NORM_N,
            .r = r,
            .n_row = NORM_ROWS,
            .n_unit = NORM_UNITS,
            .n_col = NORM_COLS,
            .dx_stride = NORM_UNITS * NORM_COLS,
            .dy_stride = NORM_UNITS * NORM_COLS,
            .x_stride = NORM_UNITS * NORM_COLS,
            .eps = (float)NORM_EPS,
        };
        const struct column_sums_args w = {
            .y = grad + NORM_N,
            .x = dy,
            .z = x,
            .r = r,
            .n_row = NORM_ROWS,
            .n_unit = NORM_UNITS,
            .n_col = NORM_COLS,
            .x_stride = NORM_UNITS * NORM_COLS,
            .z_stride = NORM_UNITS * NORM_COLS,
        };
        RUN(&k, rms_norm_grad, &a);
        RUN(&k, column_sums, &w);
        assert_gradient(norm_f64, dy, x, grad, NORM_N + NORM_COLS, 2e-6);
    }
}

/* ---- layer_norm ---- */

/* x, then w, then b; context: dy. */
static double layer_norm_f64(const double *x, const void *context)
{
    const float *dy = context;
    const double *w = x + NORM_N, *b = w + NORM_COLS;
    double sum = 0;
    for (size_t u = 0; u < NORM_N; u += NORM_COLS) {
        double mean = 0, squares = 0;
        for (size_t c = u; c < u + NORM_COLS; c++)
            mean += x[c] / NORM_COLS;
        for (size_t c = u; c < u + NORM_COLS; c++)
            squares += (x[c] - mean) * (x[c] - mean);
        for (size_t c = u; c < u + NORM_COLS; c++)
            sum += (double)dy[c] *
                   ((x[c] - mean) / sqrt(squares / NORM_COLS + NORM_EPS) * w[c - u] + b[c - u]);
    }
    return sum;
}

static void test_layer_norm_grad(void **state)
{
    enum { ALL = NORM_N + 2 * NORM_COLS };
    (void)state;
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        float x[ALL], dy[NORM_N], grad[ALL] = {0};
        float r[NORM_ROWS * NORM_UNITS], mean[NORM_ROWS * NORM_UNITS];
        random_state = 1;
        fill(x, ALL);
        fill(dy, NORM_N);
        const struct layer_norm_grad_args a = {
            .dx = grad,
            .dy = dy,
            .x = x,
            .w = x + NORM_N,
            .mean = mean,
            .r = r,
            .n_row = NORM_ROWS,
            .n_unit = NORM_UNITS,
            .n_col = NORM_COLS,
            .dx_stride = NORM_UNITS * NORM_COLS,
            .dy_stride = NORM_UNITS * NORM_COLS,
            .x_stride = NORM_UNITS * NORM_COLS,
            .eps = (float)NORM_EPS,
        };
        const struct column_sums_args b = {
            .y = grad + NORM_N + NORM_COLS,
            .x = dy,
            .n_row = NORM_ROWS,
            .n_unit = NORM_UNITS,
            .n_col = NORM_COLS,
            .x_stride = NORM_UNITS * NORM_COLS,
        };
        struct column_sums_args w = b;
        w.y = grad + NORM_N;
        w.z = x;
        w.z_stride = NORM_UNITS * NORM_COLS;
        w.r = r;
        w.shift = mean;
        RUN(&k, layer_norm_grad, &a);
        RUN(&k, column_sums, &w);
        RUN(&k, column_sums, &b);
        assert_gradient(layer_norm_f64, dy, x, grad, ALL, 2e-6);
    }
}

/* ---- activations ---- */
enum { ACT_N = 67 };

struct act_case {
    enum kern_act act;
    int gated;
    float dy[ACT_N];
};

static double act_f64(enum kern_act act, double z)
{
    const double u = sqrt(2 / M_PI) * (z + 0.044715 * z * z * z);
    switch (act) {
    case KERN_GELU:
        return z / 2 * erfc(-z / sqrt(2));
    case KERN_GELU_TANH:
        return z / 2 * (1 + tanh(u));
    case KERN_GELU_QUICK:
        return z / (1 + exp(-1.702 * z));
    case KERN_RELU:
        return fmax(z, 0);
    case KERN_RELU2:
        return fmax(z, 0) * fmax(z, 0);
    case KERN_IDENTITY:
        return z;
    default:
        return z / (1 + exp(-z));
    }
}

static double activation_f64(const double *x, const void *context)
{
    const struct act_case *c = context;
    double sum = 0;
    for (size_t i = 0; i < ACT_N; i++)
        sum += (double)c->dy[i] * act_f64(c->act, x[i]) * (c->gated ? x[ACT_N + i] : 1);
    return sum;
}

static void activate_case(const struct kern_table *k, struct act_case *c)
{
    const size_t n = c->gated ? 2 * ACT_N : ACT_N;
    float x[2 * ACT_N], dx[2 * ACT_N];
    for (size_t i = 0; i < n; i++) {
        x[i] = draw() * 6;
        x[i] = fabsf(x[i]) < 0.01f ? 0.5f : x[i]; /* the bend of relu */
    }
    fill(c->dy, ACT_N);
    const struct activate_grad_args a = {
        .act = c->act,
        .gated = c->gated,
        .dx = dx,
        .dy = c->dy,
        .x = x,
        .n_row = 1,
        .n_col = ACT_N,
        .dx_stride = n,
        .dy_stride = ACT_N,
        .x_stride = n,
    };
    RUN(k, activate_grad, &a);
    assert_gradient(activation_f64, c, x, dx, n, 2e-6);
}

static void test_activate_grad(void **state)
{
    (void)state;
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        random_state = 2;
        for (int i = 0; i < 2 * (int)KERN_ACTS; i++)
            activate_case(&k, &(struct act_case){.act = (enum kern_act)(i / 2), .gated = i % 2});
    }
}

/* ---- attention ---- */
enum { AT_ROWS = 60, AT_HEADS = 4, AT_KV = 2, AT_DIM = 5, AT_Q = AT_HEADS * AT_DIM };
enum { AT_KV_COLS = AT_KV * AT_DIM, AT_WIDTH = AT_Q + 2 * AT_KV_COLS, AT_N = AT_ROWS * AT_WIDTH };

/* Rows of q, k and v side by side, as a fused product leaves them. */
static const struct train_segment at_segments[] = {{0, 7}, {7, 53}};

struct at_case {
    float soft_cap;
    uint32_t window;
    enum dtype compute;
    float dout[AT_ROWS * AT_Q];
};

/* sum of dout * out of one row and head of the segment from `first` on. */
static double attend_f64(const double *x, const struct at_case *c, uint32_t first, uint32_t row,
                         uint32_t head)
{
    const double *q = x + (size_t)row * AT_WIDTH + head * AT_DIM;
    const double *kv = x + AT_Q + head / (AT_HEADS / AT_KV) * AT_DIM;
    uint32_t begin = c->window && row - first + 1 > c->window ? row + 1 - c->window : first;
    double total = 0, sum = 0;
    for (; begin <= row; begin++) {
        const double *k = kv + (size_t)begin * AT_WIDTH, *v = k + AT_KV_COLS;
        double s = 0, of_v = 0;
        for (uint32_t d = 0; d < AT_DIM; d++) {
            s += q[d] * k[d] * 0.7;
            of_v += (double)c->dout[row * AT_Q + head * AT_DIM + d] * v[d];
        }
        if (c->soft_cap > 0)
            s = (double)c->soft_cap * tanh(s / (double)c->soft_cap);
        total += exp(s);
        sum += exp(s) * of_v;
    }
    return sum / total;
}

static double attention_f64(const double *x, const void *context)
{
    double sum = 0;
    for (size_t n = 0; n < sizeof at_segments / sizeof *at_segments; n++)
        for (uint32_t i = 0; i < at_segments[n].n_row; i++)
            for (uint32_t h = 0; h < AT_HEADS; h++)
                sum += attend_f64(x, context, at_segments[n].row, at_segments[n].row + i, h);
    return sum;
}

static void attention_case(const struct kern_table *k, struct at_case *c)
{
    static float x[AT_N], grad[AT_N], out[AT_ROWS * AT_Q], lse[AT_ROWS * AT_HEADS];
    fill(x, AT_N);
    fill(c->dout, AT_ROWS * AT_Q);
    const struct attention_grad_args a = {
        .of =
            {
                .out = out,
                .lse = lse,
                .q = x,
                .k = x + AT_Q,
                .v = x + AT_Q + AT_KV_COLS,
                .out_stride = AT_Q,
                .q_stride = AT_WIDTH,
                .kv_stride = AT_WIDTH,
                .segments = at_segments,
                .n_segment = sizeof at_segments / sizeof *at_segments,
                .n_head = AT_HEADS,
                .n_kv_head = AT_KV,
                .head_dim = AT_DIM,
                .scale = 0.7f,
                .soft_cap = c->soft_cap,
                .window = c->window,
                .compute = c->compute,
            },
        .dout = c->dout,
        .dq = grad,
        .dk = grad + AT_Q,
        .dv = grad + AT_Q + AT_KV_COLS,
        .dout_stride = AT_Q,
        .dq_stride = AT_WIDTH,
        .dkv_stride = AT_WIDTH,
    };
    RUN(k, attention_train, &a.of);
    RUN(k, attention_grad, &a);
    assert_gradient(attention_f64, c, x, grad, AT_N, c->compute == DT_BF16 ? 2e-2 : 5e-6);
}

static void test_attention_grad(void **state)
{
    (void)state;
    static struct at_case cases[] = {
        {.compute = DT_F32},
        {.soft_cap = 1.5f},
        {.window = 9},
        {.compute = DT_BF16},
        {.compute = DT_BF16, .soft_cap = 1.5f},
        {.compute = DT_BF16, .window = 9},
    };
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        random_state = 3;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            attention_case(&k, &cases[i]);
    }
}

/* ---- rope ---- */

/* The table with negated sines gives the transpose of the rotation: <rope x, y> = <x, rope' y>. */
static void test_rope_grad(void **state)
{
    (void)state;
    enum { ROWS = 3, HEADS = 2, DIM = 12, ROT = 8, N = ROWS * HEADS * DIM };
    static const uint32_t pos[ROWS] = {0, 1, 2};
    for (size_t l = 0; l < 2 * n_level; l++) {
        const struct kern_table k = table_of(l / 2);
        float x[N], y[N], x0[N], y0[N], table[2][ROWS * ROT];
        double forward = 0, backward = 0;
        random_state = 4;
        fill(x, N);
        fill(y, N);
        memcpy(x0, x, sizeof x);
        memcpy(y0, y, sizeof y);
        for (int i = 0; i < ROWS * ROT / 2; i++) {
            table[0][2 * i] = table[1][2 * i] = cosf((float)i);
            table[0][2 * i + 1] = sinf((float)i);
            table[1][2 * i + 1] = -sinf((float)i);
        }
        struct rope_args a = {
            .x = x,
            .x_stride = HEADS * DIM,
            .table = table[0],
            .pos = pos,
            .n_row = ROWS,
            .n_head = HEADS,
            .head_dim = DIM,
            .n_rot = ROT,
            .interleaved = l % 2,
        };
        RUN(&k, rope, &a);
        a.x = y;
        a.table = table[1];
        RUN(&k, rope, &a);
        for (int i = 0; i < N; i++) {
            forward += (double)x[i] * (double)y0[i];
            backward += (double)x0[i] * (double)y[i];
        }
        assert_true(fabs(forward) > 0.1);
        assert_true(fabs(forward - backward) < 1e-5);
    }
}

/* ---- products ---- */
enum { P_TOKENS = 37, P_IN = 70, P_OUT = 90, P_MAX = 90 * 90 };

struct product {
    const struct kern_table *k;
    enum dtype dtype; /* of rows and weights */
};

/* y (+)= rows times the transpose of `weights`, whose columns are packed: weights [n_in, n_out]. */
static void product_of(const struct product *p, struct linear_args *a, const float *weights,
                       const float *rows)
{
    static _Alignas(64) unsigned char packed[128 * 128 * 4];
    static uint16_t half[P_MAX];
    const struct pack_columns_args pack = {
        .dst = packed,
        .dst_dtype = p->dtype,
        .src = weights,
        .src_dtype = DT_F32,
        .n_out = a->w.n_out,
        .n_in = a->w.n_in,
        .src_stride = a->w.n_out,
    };
    const struct convert_args convert = {
        .y = half,
        .x = rows,
        .y_dtype = DT_BF16,
        .x_dtype = DT_F32,
        .n_row = a->n_row,
        .n_col = a->w.n_in,
        .x_stride = a->w.n_in,
        .y_stride = a->w.n_in,
    };
    assert_true(packed_bytes(p->dtype, a->w.n_out, a->w.n_in) <= sizeof packed);
    RUN(p->k, pack_columns, &pack);
    RUN(p->k, convert, &convert);
    a->x = p->dtype == DT_BF16 ? (const void *)half : rows;
    a->x_dtype = a->w.dtype = p->dtype;
    a->x_stride = a->w.n_in;
    a->y_stride = a->w.n_out;
    a->w.data = packed;
    RUN(p->k, linear, a);
}

static void products(const struct product *p, double bound)
{
    static float x[P_TOKENS * P_IN], dy[P_TOKENS * P_OUT], w[P_OUT * P_IN], dx[P_TOKENS * P_IN];
    static float dw[P_OUT * P_IN], old[P_OUT * P_IN], dy_t[P_OUT * P_TOKENS];
    fill(x, P_TOKENS * P_IN);
    fill(dy, P_TOKENS * P_OUT);
    fill(w, P_OUT * P_IN);
    fill(old, P_OUT * P_IN);
    memcpy(dw, old, sizeof dw);
    struct linear_args a = {.y = dx, .n_row = P_TOKENS, .w = {.n_out = P_IN, .n_in = P_OUT}};
    product_of(p, &a, w, dy);
    const struct transpose_args t = {
        .y = dy_t,
        .x = dy,
        .y_dtype = DT_F32,
        .x_dtype = DT_F32,
        .n_row = P_TOKENS,
        .n_col = P_OUT,
        .x_stride = P_OUT,
        .y_stride = P_TOKENS,
    };
    RUN(p->k, transpose, &t);
    a = (struct linear_args){
        .y = dw,
        .n_row = P_OUT,
        .w = {.n_out = P_IN, .n_in = P_TOKENS},
        .accumulate = 1,
    };
    product_of(p, &a, x, dy_t);
    for (size_t i = 0; i < P_TOKENS * P_IN; i++) {
        double want = 0;
        for (size_t o = 0; o < P_OUT; o++)
            want += (double)dy[i / P_IN * P_OUT + o] * (double)w[o * P_IN + i % P_IN];
        assert_true(fabs((double)dx[i] - want) <= bound);
    }
    for (size_t i = 0; i < P_OUT * P_IN; i++) {
        double want = (double)old[i];
        for (size_t n = 0; n < P_TOKENS; n++)
            want += (double)dy[n * P_OUT + i / P_IN] * (double)x[n * P_IN + i % P_IN];
        assert_true(fabs((double)dw[i] - want) <= bound);
    }
}

/* dx = dy W and dW += dyᵀ x as ops_train.h defines them. */
static void test_products(void **state)
{
    (void)state;
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        random_state = 5;
        products(&(struct product){&k, DT_F32}, 1e-5);
        products(&(struct product){&k, DT_BF16}, 0.06); /* 90 terms, each off by 2^-8 at most */
    }
}

/* ---- the loss ---- */
enum { LOSS_ROWS = 24, LOSS_COLS = 97 };

/* tests/data/distill/loss_kernels.json, as a table. */
static const struct loss_case {
    const char *name;
    enum distill_kind kind;
    float temperature, beta;
    uint32_t top_k;
    int renorm;
    double ce_weight;
} loss_cases[] = {
    {"fkl_T1", DISTILL_FKL, 1, 0.5f, 0, 0, 0},       {"fkl_T2", DISTILL_FKL, 2, 0.5f, 0, 0, 0},
    {"rkl_T1", DISTILL_RKL, 1, 0.5f, 0, 0, 0},       {"rkl_T2", DISTILL_RKL, 2, 0.5f, 0, 0, 0},
    {"jsd_b05", DISTILL_JSD, 1, 0.5f, 0, 0, 0},      {"jsd_b03_T2", DISTILL_JSD, 2, 0.3f, 0, 0, 0},
    {"topk20", DISTILL_FKL, 1, 0.5f, 20, 0, 0},      {"topk20_T2", DISTILL_FKL, 2, 0.5f, 20, 0, 0},
    {"topk20_both", DISTILL_FKL, 1, 0.5f, 20, 1, 0}, {"fkl_ce05", DISTILL_FKL, 1, 0.5f, 0, 0, 0.5},
};

static const void *tensor_data(const struct tensor_set *s, const char *name, const char *part,
                               uint64_t n)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, part);
    const struct tensor *t = tensor_find(s, full);
    assert_non_null(t);
    assert_int_equal(t->n_bytes, n * 4);
    return t->data;
}

/* Values of one golden row, or of its loss; their largest sets the tolerance. NaN rows, where the
 * golden's choice of K is not defined, are left out: returns false. */
static bool row_near(const char *name, size_t row, const float *got, const float *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]))
            return false;
        most = fmax(most, fabs((double)want[i]));
    }
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 1e-5 * most + 1e-6))
            fail_msg("%s row %zu [%zu]: %.9g, golden %.9g", name, row, i, (double)got[i],
                     (double)want[i]);
    return true;
}

struct loss {
    float zs[LOSS_ROWS * LOSS_COLS];
    double kd[LOSS_ROWS], ce[LOSS_ROWS];
    uint32_t agree[LOSS_ROWS];
};

static struct distill_loss_args loss_args(const struct loss_case *c, struct loss *l)
{
    return (struct distill_loss_args){
        .zs = l->zs,
        .zs_stride = LOSS_COLS,
        .zt_stride = LOSS_COLS,
        .n_row = LOSS_ROWS,
        .n_student = LOSS_COLS,
        .n_teacher = LOSS_COLS,
        .kind = c->kind,
        .temperature = c->temperature,
        .beta = c->beta,
        .t2 = 1,
        .top_k = c->top_k,
        .renorm = c->renorm,
        .kd_weight = 1,
        .ce_weight = c->ce_weight,
        .n_position = 1,
        .kd = l->kd,
        .ce = l->ce,
        .agree = l->agree,
    };
}

static void golden_case(const struct kern_table *k, const struct tensor_set *s,
                        const struct loss_case *c)
{
    static struct loss l;
    static float zt[LOSS_ROWS * LOSS_COLS], loss[LOSS_ROWS], grad[LOSS_ROWS * LOSS_COLS];
    static int32_t labels[LOSS_ROWS];
    struct distill_loss_args a = loss_args(c, &l);
    size_t n_row = 0;
    memcpy(l.zs, tensor_data(s, "student_logits", "", LOSS_ROWS * LOSS_COLS), sizeof l.zs);
    memcpy(zt, tensor_data(s, "teacher_logits", "", LOSS_ROWS * LOSS_COLS), sizeof zt);
    memcpy(labels, tensor_data(s, "labels", "", LOSS_ROWS), sizeof labels);
    memcpy(loss, tensor_data(s, c->name, ".loss", LOSS_ROWS), sizeof loss);
    memcpy(grad, tensor_data(s, c->name, ".grad", LOSS_ROWS * LOSS_COLS), sizeof grad);
    a.zt = zt;
    a.labels = labels;
    RUN(k, distill_loss, &a);
    for (size_t i = 0; i < LOSS_ROWS; i++) {
        const float sum = (float)(l.kd[i] + c->ce_weight * l.ce[i]), *g = l.zs + i * LOSS_COLS;
        for (size_t v = 0; v < LOSS_COLS; v++)
            assert_true(isfinite(g[v]));
        assert_true(isfinite(sum));
        n_row += row_near(c->name, i, &sum, &loss[i], 1) &&
                 row_near(c->name, i, g, grad + i * LOSS_COLS, LOSS_COLS);
    }
    assert_in_range(n_row, c->top_k ? LOSS_ROWS - 3 : LOSS_ROWS, LOSS_ROWS);
}

static void test_loss_goldens(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct tensor_set *s = NULL;
    assert_ok(tensor_set_open_file(&s, "tests/data/distill/loss_kernels.safetensors", &e), &e);
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        for (size_t i = 0; i < sizeof loss_cases / sizeof *loss_cases; i++)
            golden_case(&k, s, &loss_cases[i]);
    }
    tensor_set_free(s);
}

/* What the differences of a soft-capped, mixed, tempered loss of one row are taken of. */
struct capped {
    const struct loss_case *c;
    const float *zt;
    double cap;
    int32_t label;
};

static double log_sum(const double *z, size_t n, double scale)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp(z[i] * scale);
    return log(sum);
}

static double capped_f64(const double *x, const void *context)
{
    const struct capped *c = context;
    const double i = 1 / (double)c->c->temperature, beta = (double)c->c->beta;
    double z[LOSS_COLS], zt[LOSS_COLS], sum = 0;
    for (size_t v = 0; v < LOSS_COLS; v++) {
        z[v] = c->cap * tanh(x[v] / c->cap);
        zt[v] = (double)c->zt[v];
    }
    for (size_t v = 0; v < LOSS_COLS; v++) {
        const double lp = zt[v] * i - log_sum(zt, LOSS_COLS, i);
        const double lq = z[v] * i - log_sum(z, LOSS_COLS, i);
        const double lm = log(beta * exp(lp) + (1 - beta) * exp(lq));
        if (c->c->kind == DISTILL_FKL)
            sum += exp(lp) * (lp - lq);
        else if (c->c->kind == DISTILL_RKL)
            sum += exp(lq) * (lq - lp);
        else
            sum += beta * exp(lp) * (lp - lm) + (1 - beta) * exp(lq) * (lq - lm);
    }
    return sum / (i * i) + c->c->ce_weight * (log_sum(z, LOSS_COLS, 1) - z[c->label]);
}

static void test_loss_differences(void **state)
{
    (void)state;
    static const struct loss_case cases[] = {
        {"fkl", DISTILL_FKL, 2, 0.5f, 0, 0, 0.5},
        {"rkl", DISTILL_RKL, 1.5f, 0.5f, 0, 0, 0.5},
        {"jsd", DISTILL_JSD, 1.5f, 0.3f, 0, 0, 0.5},
    };
    static const int32_t label = 11;
    for (size_t i = 0; i < n_level * 3; i++) {
        const struct kern_table k = table_of(i / 3);
        float x[LOSS_COLS], zt[LOSS_COLS];
        static struct loss l;
        random_state = 6;
        fill(x, LOSS_COLS);
        fill(zt, LOSS_COLS);
        for (size_t v = 0; v < LOSS_COLS; v++) {
            x[v] *= 4;
            zt[v] *= 4;
        }
        memcpy(l.zs, x, sizeof x);
        struct distill_loss_args a = loss_args(&cases[i % 3], &l);
        a.n_row = 1;
        a.zt = zt;
        a.labels = &label;
        a.soft_cap = 3;
        const struct soft_cap_args cap = {
            .x = l.zs,
            .n_row = 1,
            .n_col = LOSS_COLS,
            .x_stride = LOSS_COLS,
            .cap = 3,
        };
        RUN(&k, soft_cap, &cap);
        RUN(&k, distill_loss, &a);
        const struct capped c = {&cases[i % 3], zt, 3, label};
        assert_gradient(capped_f64, &c, x, l.zs, LOSS_COLS, 2e-6);
    }
}

/* Equal teacher logits: K is the lowest columns. A larger one among them comes in anywhere. */
static void test_loss_ties(void **state)
{
    (void)state;
    for (size_t level = 0; level < n_level; level++) {
        const struct kern_table k = table_of(level);
        static struct loss l;
        static const int32_t label = 0;
        float zt[LOSS_COLS];
        const struct loss_case c = {"ties", DISTILL_FKL, 1, 0.5f, 5, 1, 0};
        struct distill_loss_args a = loss_args(&c, &l);
        a.n_row = 1;
        a.zt = zt;
        a.labels = &label;
        for (size_t v = 0; v < LOSS_COLS; v++) {
            zt[v] = v == 90 ? 2 : v >= 3 ? 1 : 0;
            l.zs[v] = (float)v / 10;
        }
        RUN(&k, distill_loss, &a);
        for (size_t v = 0; v < LOSS_COLS; v++) /* renorm: 0 outside of K */
            assert_int_equal(l.zs[v] != 0, (v >= 3 && v < 7) || v == 90);
        assert_int_equal(l.agree[0], 0);
    }
}

/* ---- the optimiser ---- */

/* Ten steps against f64, and the sum of squares against its definition. */
static void test_optimiser(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float w[N], m[N], v[N], g[N];
    static double w64[N], m64[N], v64[N], sums[2];
    for (size_t l = 0; l < n_level; l++) {
        const struct kern_table k = table_of(l);
        double off = 0, moved = 0, square = 0;
        random_state = 7;
        fill(w, N);
        for (size_t i = 0; i < N; i++) {
            w64[i] = (double)w[i];
            m[i] = v[i] = 0;
            m64[i] = v64[i] = 0;
        }
        for (int step = 1; step <= 10; step++) {
            const struct adamw_args a = {
                .w = w,
                .m = m,
                .v = v,
                .g = g,
                .n = N,
                .lr = 1e-3,
                .beta1 = 0.9,
                .beta2 = 0.95,
                .eps = 1e-8,
                .weight_decay = 0.1,
                .bias1 = 1 - pow(0.9, step),
                .bias2 = 1 - pow(0.95, step),
                .grad_scale = 0.5,
            };
            fill(g, N);
            RUN(&k, adamw, &a);
            for (size_t i = 0; i < N; i++) {
                const double d = 0.5 * (double)g[i];
                w64[i] *= 1 - 1e-3 * 0.1;
                m64[i] = 0.9 * m64[i] + 0.1 * d;
                v64[i] = 0.95 * v64[i] + 0.05 * d * d;
                w64[i] -= 1e-3 / a.bias1 * m64[i] / (sqrt(v64[i] / a.bias2) + 1e-8);
            }
        }
        const struct sum_squares_args s = {.x = g, .n = N, .sums = sums};
        RUN(&k, sum_squares, &s);
        random_state = 7;
        for (size_t i = 0; i < N; i++) {
            const double start = (double)draw();
            off = fmax(off, fabs((double)w[i] - w64[i]));
            moved = fmax(moved, fabs((double)w[i] - start));
            square += (double)g[i] * (double)g[i];
        }
        assert_true(moved > 1e-3 && off < 1e-6);
        assert_true(fabs(sums[0] + sums[1] - square) < 1e-9 * square);
        g[N - 1] = NAN;
        RUN(&k, sum_squares, &s);
        assert_true(isfinite(sums[0]) && !isfinite(sums[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm_grad), cmocka_unit_test(test_layer_norm_grad),
        cmocka_unit_test(test_activate_grad), cmocka_unit_test(test_attention_grad),
        cmocka_unit_test(test_rope_grad),     cmocka_unit_test(test_products),
        cmocka_unit_test(test_loss_goldens),  cmocka_unit_test(test_loss_differences),
        cmocka_unit_test(test_loss_ties),     cmocka_unit_test(test_optimiser),
    };
    return cmocka_run_group_tests(tests, find_levels, NULL);
}
