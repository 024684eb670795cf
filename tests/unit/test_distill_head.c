/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head and loss against the same written down in f64 without chunks: sums, the gradient
 * of the stream, of the head, of its bias and of the norm; every loss, multiplier and cap of the
 * logits, vocabularies of different sizes, rows that are hard for exponentials, several chunks,
 * two ranks of a tensor group; the same bits for any number of threads. */
#include <math.h>
#include <pthread.h>
#include "check.h"
#include "engine/distill/loss_head.h"

enum { N_ROW = 1300, HIDDEN = 40, N_VOCAB = 98, N_TEACHER = 113, TOP_K = 7 };
#define EPS 1e-5
#define N   700.0 /* counted positions of the global batch */

static struct q_err e;
static uint64_t random_state;

static float draw(void) /* -1 … 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

/* ---- a case ---- */

struct head_case {
    const char *name;
    struct loss_options o;
    float multiplier, soft_cap, weights; /* of the head: how large */
    bool has_bias, by_ids, same_vocab, is_hard, no_teacher;
    bool is_layer_norm, has_norm_bias; /* else RMS norm */
};

static const struct head_case cases[] = {
    {
        .name = "forward KL",
        .o = {DISTILL_FKL, 1, 0, true, 1, 0, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
    },
    {
        .name = "forward KL, T 2, CE",
        .o = {DISTILL_FKL, 2, 0, true, 0.7, 0.3, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 2,
        .has_bias = true,
        .is_hard = true,
    },
    {
        .name = "no T^2",
        .o = {DISTILL_FKL, 2, 0, false, 1, 0, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
        .same_vocab = true,
    },
    {
        .name = "reverse KL",
        .o = {DISTILL_RKL, 1.5f, 0, true, 1, 0.5, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
    },
    {
        .name = "Jensen-Shannon",
        .o = {DISTILL_JSD, 1.5f, 0.3f, true, 1, 0, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
        .is_hard = true,
    },
    {
        .name = "multiplier and cap",
        .o = {DISTILL_FKL, 1, 0, true, 1, 1, 0, false, {0}, {0}},
        .multiplier = 0.25f,
        .soft_cap = 3,
        .weights = 6,
        .has_bias = true,
    },
    {
        .name = "top k",
        .o = {DISTILL_FKL, 2, 0, true, 1, 0.5, TOP_K, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
    },
    {
        .name = "top k by ids",
        .o = {DISTILL_FKL, 1, 0, true, 1, 0.5, TOP_K, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
        .by_ids = true,
    },
    {
        .name = "top k of both",
        .o = {DISTILL_JSD, 1, 0.5f, true, 1, 0, TOP_K, true, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
        .by_ids = true,
        .same_vocab = true,
    },
    {
        .name = "large logits",
        .o = {DISTILL_FKL, 1, 0, true, 1, 0.5, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 60,
        .same_vocab = true,
        .is_hard = true,
    },
    {
        .name = "cross-entropy",
        .o = {DISTILL_FKL, 1, 0, true, 0, 1, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
        .has_bias = true,
        .no_teacher = true,
    },
    {
        .name = "LayerNorm",
        .o = {DISTILL_FKL, 2, 0, true, 1, 0.5, 0, false, {0}, {0}},
        .multiplier = 1,
        .weights = 1,
        .same_vocab = true,
        .is_layer_norm = true,
    },
    {
        .name = "LayerNorm, biases",
        .o = {DISTILL_FKL, 1, 0, true, 1, 0, 0, false, {0}, {0}},
        .multiplier = 0.25f,
        .weights = 2,
        .has_bias = true,
        .same_vocab = true,
        .is_layer_norm = true,
        .has_norm_bias = true,
    },
};
#define N_CASE (sizeof cases / sizeof *cases)

static float x[N_ROW * HIDDEN], norm_weight[HIDDEN], norm_bias[HIDDEN], head[N_VOCAB * HIDDEN],
    bias[N_VOCAB];
static float teacher[N_ROW * N_TEACHER];
static int32_t labels[N_ROW];
static uint32_t ids_of_rows[N_ROW * TOP_K]; /* the teacher's largest, ascending */
static float top_of_rows[N_ROW * TOP_K];
static uint32_t n_counted;

static uint32_t teacher_columns(const struct head_case *c)
{
    return c->same_vocab ? N_VOCAB : N_TEACHER;
}

static uint32_t common_columns(const struct head_case *c)
{
    const uint32_t n = teacher_columns(c);
    return n < N_VOCAB ? n : N_VOCAB;
}

/* Is column v of the row among its k largest? Draws have no equals. */
static bool is_top(const float *row, uint32_t n, uint32_t v)
{
    uint32_t n_larger = 0;
    for (uint32_t i = 0; i < n; i++)
        n_larger += row[i] > row[v];
    return n_larger < TOP_K;
}

static void make_hard(float *row, uint32_t kind)
{
    for (uint32_t v = 0; v < N_TEACHER; v++)
        row[v] = kind == 0   ? (v == 5 ? 60.0f : -60.0f)
                 : kind == 1 ? 0.25f
                 : kind == 2 ? row[v] + 1e4f
                 : kind == 3 ? row[v] - 1e4f
                             : row[v];
}

static void make(const struct head_case *c)
{
    random_state = 7;
    n_counted = 0;
    for (uint32_t i = 0; i < N_ROW * HIDDEN; i++)
        x[i] = 3 * draw();
    for (uint32_t i = 0; i < HIDDEN; i++)
        norm_weight[i] = 1 + 0.5f * draw();
    for (uint32_t i = 0; i < N_VOCAB * HIDDEN; i++)
        head[i] = 0.3f * c->weights * draw();
    for (uint32_t i = 0; i < N_VOCAB; i++)
        bias[i] = draw();
    for (uint32_t i = 0; i < N_ROW * N_TEACHER; i++)
        teacher[i] = 4 * draw();
    for (uint32_t i = 0; i < HIDDEN; i++)
        norm_bias[i] = c->has_norm_bias ? 0.3f * draw() : 0;
    for (uint32_t r = 0; r < N_ROW; r++) {
        labels[r] = r % 3 == 1 || (r > 20 && r < 60) ? -1 : (int32_t)((r * 31) % N_VOCAB);
        n_counted += labels[r] >= 0;
        if (c->is_hard)
            make_hard(teacher + r * N_TEACHER, r % 7);
        for (uint32_t v = 0, k = 0; c->o.top_k && v < common_columns(c); v++)
            if (is_top(teacher + r * N_TEACHER, common_columns(c), v)) {
                ids_of_rows[r * TOP_K + k] = v;
                top_of_rows[r * TOP_K + k++] = teacher[r * N_TEACHER + v];
            }
    }
}

/* ---- the same in f64 ---- */

struct result {
    double kd, ce;
    uint64_t n_agree;
    double dx[N_ROW * HIDDEN], head[N_VOCAB * HIDDEN], bias[N_VOCAB], norm[HIDDEN],
        norm_bias[HIDDEN];
};
static struct result want;

/* out: softmax of z / t over the columns that `in` has; log_out its logarithm. */
static void softmax(double *out, double *log_out, const double *z, const bool *in, uint32_t n,
                    double t)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t v = 0; v < n; v++)
        if (in[v])
            most = fmax(most, z[v] / t);
    for (uint32_t v = 0; v < n; v++)
        sum += in[v] ? exp(z[v] / t - most) : 0;
    for (uint32_t v = 0; v < n; v++) {
        log_out[v] = z[v] / t - most - log(sum);
        out[v] = in[v] ? exp(log_out[v]) : 0;
    }
}

/* D of a row; g += its gradient by zs. */
static double divergence(const struct head_case *c, const double *zs, const double *zt, double *g)
{
    const uint32_t n = common_columns(c);
    const double t = (double)c->o.temperature, beta = (double)c->o.beta;
    double p[N_TEACHER], log_p[N_TEACHER], q[N_TEACHER], log_q[N_TEACHER], slope[N_TEACHER];
    bool in_p[N_TEACHER], in_q[N_TEACHER];
    float row[N_TEACHER];
    double d = 0, mean = 0;
    for (uint32_t v = 0; v < n; v++)
        row[v] = (float)zt[v];
    for (uint32_t v = 0; v < n; v++) {
        in_p[v] = !c->o.top_k || is_top(row, n, v);
        in_q[v] = !c->o.renorm || in_p[v];
    }
    softmax(p, log_p, zt, in_p, n, t);
    softmax(q, log_q, zs, in_q, n, t);
    for (uint32_t v = 0; v < n; v++) {
        const double m = beta * p[v] + (1 - beta) * q[v];
        slope[v] = 0; /* q * dD/dq */
        if (c->o.kind == DISTILL_FKL && in_p[v]) {
            d += p[v] * (log_p[v] - log_q[v]);
            slope[v] = -p[v];
        } else if (c->o.kind == DISTILL_RKL) {
            d += q[v] * (log_q[v] - log_p[v]);
            slope[v] = q[v] * (log_q[v] - log_p[v]);
        } else if (c->o.kind == DISTILL_JSD && in_p[v]) {
            d += p[v] > 0 ? beta * p[v] * (log_p[v] - log(m)) : 0;
            d += q[v] > 0 ? (1 - beta) * q[v] * (log_q[v] - log(m)) : 0;
            slope[v] = q[v] > 0 ? (1 - beta) * q[v] * (log_q[v] - log(m)) : 0;
        }
        mean += slope[v];
    }
    for (uint32_t v = 0; v < n; v++)
        g[v] += (slope[v] - q[v] * mean) / t;
    return d;
}

struct row64 {                                              /* of the student */
    double h[HIDDEN], z[N_VOCAB], g[N_VOCAB], d[HIDDEN], r; /* d: x, less its mean */
};

static void forward64(struct row64 *s, const struct head_case *c, const float *in)
{
    double squares = 0, mean = 0;
    for (uint32_t i = 0; i < HIDDEN && c->is_layer_norm; i++)
        mean += (double)in[i] / HIDDEN;
    for (uint32_t i = 0; i < HIDDEN; i++) {
        s->d[i] = (double)in[i] - mean;
        squares += s->d[i] * s->d[i];
    }
    s->r = 1 / sqrt(squares / HIDDEN + EPS);
    for (uint32_t i = 0; i < HIDDEN; i++)
        s->h[i] = s->d[i] * s->r * (double)norm_weight[i] + (double)norm_bias[i];
    for (uint32_t v = 0; v < N_VOCAB; v++) {
        double z = c->has_bias ? (double)bias[v] : 0;
        for (uint32_t i = 0; i < HIDDEN; i++)
            z += s->h[i] * (double)head[v * HIDDEN + i];
        z *= (double)c->multiplier;
        s->z[v] = c->soft_cap > 0 ? (double)c->soft_cap * tanh(z / (double)c->soft_cap) : z;
    }
}

static void loss64(struct row64 *s, const struct head_case *c, uint32_t r)
{
    const double t2 = c->o.t2 ? (double)c->o.temperature * (double)c->o.temperature : 1;
    double zt[N_TEACHER], q[N_TEACHER], log_q[N_TEACHER], g[N_TEACHER] = {0};
    bool all[N_VOCAB];
    uint32_t best_t = 0, best_s = 0;
    for (uint32_t v = 0; v < N_TEACHER; v++)
        zt[v] = (double)teacher[r * N_TEACHER + v];
    for (uint32_t v = 0; v < N_VOCAB; v++)
        all[v] = true;
    for (uint32_t v = 1; v < common_columns(c); v++) {
        best_t = zt[v] > zt[best_t] ? v : best_t;
        best_s = s->z[v] > s->z[best_s] ? v : best_s;
    }
    if (!c->no_teacher) {
        want.kd += t2 * divergence(c, s->z, zt, g);
        want.n_agree += best_t == best_s;
    }
    softmax(q, log_q, s->z, all, N_VOCAB, 1);
    want.ce -= log_q[labels[r]];
    for (uint32_t v = 0; v < N_VOCAB; v++) {
        const double cap = (double)c->soft_cap;
        const double ce = q[v] - ((int32_t)v == labels[r]);
        s->g[v] = (c->o.kd_weight * t2 * g[v] + c->o.ce_weight * ce) / N;
        s->g[v] *= cap > 0 ? 1 - s->z[v] / cap * (s->z[v] / cap) : 1;
        s->g[v] *= (double)c->multiplier;
    }
}

static void backward64(const struct row64 *s, const struct head_case *c, uint32_t r)
{
    double dh[HIDDEN] = {0}, dot = 0, mean = 0;
    for (uint32_t v = 0; v < N_VOCAB; v++) {
        want.bias[v] += c->has_bias ? s->g[v] : 0;
        for (uint32_t i = 0; i < HIDDEN; i++) {
            dh[i] += s->g[v] * (double)head[v * HIDDEN + i];
            want.head[v * HIDDEN + i] += s->g[v] * s->h[i];
        }
    }
    for (uint32_t i = 0; i < HIDDEN; i++) {
        want.norm[i] += dh[i] * s->d[i] * s->r;
        want.norm_bias[i] += c->has_norm_bias ? dh[i] : 0;
        dot += dh[i] * (double)norm_weight[i] * s->d[i];
        mean += c->is_layer_norm ? dh[i] * (double)norm_weight[i] / HIDDEN : 0;
    }
    for (uint32_t i = 0; i < HIDDEN; i++)
        want.dx[r * HIDDEN + i] =
            s->r * (dh[i] * (double)norm_weight[i] - mean - s->d[i] * s->r * s->r * dot / HIDDEN);
}

static void compute64(const struct head_case *c)
{
    struct row64 s;
    memset(&want, 0, sizeof want);
    for (uint32_t r = 0; r < N_ROW; r++) {
        if (labels[r] < 0)
            continue;
        forward64(&s, c, x + r * HIDDEN);
        loss64(&s, c, r);
        backward64(&s, c, r);
    }
}

/* ---- ours ---- */

struct grads {
    float dx[N_ROW * HIDDEN], head[N_VOCAB * HIDDEN], bias[N_VOCAB], norm[HIDDEN],
        norm_bias[HIDDEN];
};
static struct grads got, other;

/* Copies of the rows that are asked for, as a model would give them. */
struct source {
    const struct head_case *c;
    float z[LOSS_HEAD_ROWS_MAX * (N_TEACHER + 3)];
    uint32_t ids[LOSS_HEAD_ROWS_MAX * (N_TEACHER + 3)];
};
static struct source sources[2];

static enum q_code source_rows(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                               uint32_t n, struct teacher_rows *out, struct q_err *err)
{
    struct source *s = ctx;
    const struct head_case *c = s->c;
    (void)err;
    *out = (struct teacher_rows){s->z, c->by_ids ? s->ids : NULL, N_TEACHER + 3,
                                 c->by_ids ? TOP_K : teacher_columns(c)};
    for (uint32_t i = 0; i < n; i++) {
        assert_true(rows[i] < b->n_row && (i == 0 || rows[i] > rows[i - 1]));
        memcpy(s->z + i * out->stride,
               c->by_ids ? top_of_rows + rows[i] * TOP_K : teacher + rows[i] * N_TEACHER,
               out->n_col * sizeof *s->z);
        memcpy(s->ids + i * out->stride, ids_of_rows + rows[i] * TOP_K, TOP_K * sizeof *s->ids);
    }
    return Q_OK;
}

struct way { /* of computing */
    uint32_t caps, n_thread, rank, n_rank;
    enum dtype compute;
    struct tensor_group group;
};

struct head {
    struct kern_table k;
    struct team *team;
    void *packed, *columns;
    struct head_weights w;
    struct loss_head *l;
};

static void *aligned(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, n);
    return p;
}

static void pack_head(struct head *h)
{
    const uint32_t n = h->w.w.n_out;
    const struct kern_exec one = {.nth = 1};
    const float *from = head + (size_t)h->w.tensor_parallel.rank * n * HIDDEN;
    const struct pack_args p = {
        .dst = h->packed,
        .dst_dtype = h->w.compute,
        .src = from,
        .src_dtype = DT_F32,
        .n_out = n,
        .n_in = HIDDEN,
        .n_out_total = n,
    };
    const struct pack_columns_args c = {
        .dst = h->columns,
        .dst_dtype = h->w.compute,
        .src = from,
        .src_dtype = DT_F32,
        .n_out = HIDDEN,
        .n_in = n,
        .src_stride = HIDDEN,
    };
    h->k.pack(&p, &one);
    h->k.pack_columns(&c, &one);
}

static void head_open(struct head *h, const struct head_case *c, const struct way *way,
                      struct grads *g)
{
    const uint32_t n = N_VOCAB / way->n_rank, first = way->rank * n;
    *h = (struct head){0};
    kern_table_cpu(&h->k, way->caps);
    if (way->n_thread > 1)
        assert_ok(team_new(&h->team, way->n_thread, false, &e), &e);
    h->packed = aligned(packed_bytes(way->compute, n, HIDDEN));
    h->columns = aligned(packed_bytes(way->compute, HIDDEN, n));
    h->w = (struct head_weights){
        .kern = &h->k,
        .team = h->team,
        .compute = way->compute,
        .n_vocab = N_VOCAB,
        .hidden = HIDDEN,
        .norm_eps = (float)EPS,
        .norm = norm_weight,
        .is_layer_norm = c->is_layer_norm,
        .norm_bias = c->has_norm_bias ? norm_bias : NULL,
        .w = {.data = h->packed, .n_out = n, .n_in = HIDDEN, .dtype = way->compute},
        .w_columns = {.data = h->columns, .n_out = HIDDEN, .n_in = n, .dtype = way->compute},
        .bias = c->has_bias ? bias + first : NULL,
        .multiplier = c->multiplier,
        .soft_cap = c->soft_cap,
        .norm_grad = g->norm,
        .norm_bias_grad = c->has_norm_bias ? g->norm_bias : NULL,
        .w_grad = g->head + first * HIDDEN,
        .bias_grad = c->has_bias ? g->bias + first : NULL,
        .tensor_parallel = way->group,
    };
    h->w.tensor_parallel.rank = way->rank;
    pack_head(h);
    assert_ok(loss_head_new(&h->l, &h->w, &c->o, &e), &e);
    assert_true(loss_head_bytes(h->l) > 0);
}

static void head_close(struct head *h)
{
    loss_head_free(h->l);
    team_free(h->team);
    free(h->packed);
    free(h->columns);
}

static struct micro_batch batch(void)
{
    return (struct micro_batch){.n_row = N_ROW, .labels = labels, .n_counted = n_counted};
}

static enum q_code run_head(struct head *h, const struct head_case *c, struct source *s, float *dx,
                            struct loss_sums *sums, struct q_err *err)
{
    const struct micro_batch b = batch();
    const struct teacher_source t = {.rows = source_rows, .ctx = s, .n_vocab = teacher_columns(c)};
    s->c = c;
    return loss_head_run(h->l, &b, x, c->no_teacher ? NULL : &t, N, dx, sums, err);
}

static void compute(const struct head_case *c, const struct way *way, struct grads *g,
                    struct loss_sums *sums)
{
    struct head h;
    memset(g, 0, sizeof *g);
    memset(g->dx, 0xff, sizeof g->dx);
    head_open(&h, c, way, g);
    assert_ok(run_head(&h, c, &sources[0], g->dx, sums, &e), &e);
    head_close(&h);
}

static void assert_near(const char *name, const char *what, const float *a, const double *b,
                        size_t n, double bound)
{
    double most = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs(b[i]));
        worst = fmax(worst, fabs((double)a[i] - b[i]));
        if (!isfinite(a[i]))
            fail_msg("%s: %s %zu is not finite", name, what, i);
    }
    if (worst > bound * most)
        fail_msg("%s: %s differs by %g, largest %g", name, what, worst, most);
}

static void check(const struct head_case *c, const struct loss_sums *s, double bound)
{
    const double loss = bound < 1e-3 ? 1e-5 : 1e-2;
    if (fabs(s->kd - want.kd) > loss * (fabs(want.kd) + 1e-3) ||
        fabs(s->ce - want.ce) > loss * want.ce)
        fail_msg("%s: losses %.9g, %.9g, expected %.9g, %.9g", c->name, s->kd, s->ce, want.kd,
                 want.ce);
    assert_int_equal(s->n_counted, n_counted);
    if (bound < 1e-3)
        assert_int_equal(s->n_agree, want.n_agree);
    assert_near(c->name, "dx", got.dx, want.dx, N_ROW * HIDDEN, bound);
    assert_near(c->name, "head", got.head, want.head, N_VOCAB * HIDDEN, bound);
    assert_near(c->name, "norm", got.norm, want.norm, HIDDEN, bound);
    assert_near(c->name, "norm bias", got.norm_bias, want.norm_bias, HIDDEN, bound);
    if (c->has_bias)
        assert_near(c->name, "bias", got.bias, want.bias, N_VOCAB, bound);
}

static const char *const levels[] = {"none", "avx2", "avx512", "auto"};

static uint32_t caps_of(size_t level)
{
    uint32_t caps = 0;
    assert_ok(kern_caps_parse(&caps, levels[level], &e), &e);
    return caps;
}

static void test_float32(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASE; i++) {
        struct loss_sums sums;
        make(&cases[i]);
        compute64(&cases[i]);
        assert_true(n_counted > loss_head_rows(N_VOCAB)); /* more than one chunk */
        for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
            const struct way way = {caps_of(l), 2, 0, 1, DT_F32, {0}};
            compute(&cases[i], &way, &got, &sums);
            check(&cases[i], &sums, 2e-5);
        }
    }
}

/* Rounded inputs of products: as large as these are, the gradient is. Rows with logits of hundreds
 * are left out, whose softmax the rounding decides. */
static void test_bfloat16(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASE; i++) {
        const struct way way = {caps_of(3), 2, 0, 1, DT_BF16, {0}};
        struct loss_sums sums;
        if (cases[i].weights > 6)
            continue;
        make(&cases[i]);
        compute64(&cases[i]);
        compute(&cases[i], &way, &got, &sums);
        check(&cases[i], &sums, 3e-2);
    }
}

static void test_threads(void **state)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    (void)state;
    for (size_t i = 0; i < N_CASE; i++)
        for (size_t d = 0; d < 2; d++) {
            struct loss_sums first, sums;
            make(&cases[i]);
            compute(&cases[i], &(struct way){caps_of(3), 1, 0, 1, dtypes[d], {0}}, &got, &first);
            for (uint32_t n = 2; n <= 5; n += 3) {
                const struct way way = {caps_of(3), n, 0, 1, dtypes[d], {0}};
                compute(&cases[i], &way, &other, &sums);
                assert_memory_equal(&sums, &first, sizeof sums);
                assert_memory_equal(&other, &got, sizeof got);
            }
        }
}

/* ---- micro batches ---- */

/* Gradients are added to those of the micro batch before; an evaluation changes none. */
static void test_accumulates(void **state)
{
    const struct head_case *c = &cases[1];
    const struct way way = {caps_of(3), 2, 0, 1, DT_F32, {0}};
    struct loss_sums once, sums;
    struct head h;
    (void)state;
    make(c);
    compute(c, &way, &got, &once);
    memset(&other, 0, sizeof other);
    head_open(&h, c, &way, &other);
    assert_ok(run_head(&h, c, &sources[0], NULL, &sums, &e), &e);
    assert_memory_equal(&sums, &once, sizeof sums);
    for (size_t i = 0; i < N_VOCAB * HIDDEN; i++)
        assert_true(other.head[i] == 0 && other.norm[i % HIDDEN] == 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(run_head(&h, c, &sources[0], other.dx, &sums, &e), &e);
        assert_memory_equal(&sums, &once, sizeof sums);
        assert_memory_equal(other.dx, got.dx, sizeof got.dx);
    }
    head_close(&h);
    compute64(c);
    for (size_t i = 0; i < N_VOCAB * HIDDEN; i++)
        want.head[i] *= 2;
    assert_near(c->name, "head of both", other.head, want.head, N_VOCAB * HIDDEN, 2e-5);
}

static void test_nothing_counts(void **state)
{
    const struct head_case *c = &cases[1];
    const struct way way = {caps_of(3), 2, 0, 1, DT_F32, {0}};
    struct loss_sums sums;
    (void)state;
    make(c);
    for (uint32_t r = 0; r < N_ROW; r++)
        labels[r] = -1;
    compute(c, &way, &got, &sums);
    assert_true(sums.kd == 0 && sums.ce == 0 && sums.n_agree == 0 && sums.n_counted == 0);
    for (size_t i = 0; i < N_ROW * HIDDEN; i++)
        assert_true(got.dx[i] == 0);
    for (size_t i = 0; i < N_VOCAB * HIDDEN; i++)
        assert_true(got.head[i] == 0);
}

/* ---- two ranks ---- */

static pthread_barrier_t meeting;
static float parts[2][LOSS_HEAD_ROWS_MAX * N_VOCAB];

static enum q_code group_gather(void *ctx, const float *from, size_t n, float *out,
                                struct q_err *err)
{
    const uint32_t *rank = ctx;
    (void)err;
    memcpy(parts[*rank], from, n * sizeof *from);
    pthread_barrier_wait(&meeting);
    memcpy(out, parts[0], n * sizeof *from);
    memcpy(out + n, parts[1], n * sizeof *from);
    pthread_barrier_wait(&meeting);
    return Q_OK;
}

static enum q_code group_sum(void *ctx, float *at, size_t n, struct q_err *err)
{
    const uint32_t *rank = ctx;
    (void)err;
    memcpy(parts[*rank], at, n * sizeof *at);
    pthread_barrier_wait(&meeting);
    for (size_t i = 0; i < n; i++)
        at[i] = parts[0][i] + parts[1][i];
    pthread_barrier_wait(&meeting);
    return Q_OK;
}

struct rank_job {
    const struct head_case *c;
    uint32_t rank;
    struct grads g;
    struct loss_sums sums;
    struct head h;
};
static struct rank_job jobs[2];

static void *run_rank(void *arg)
{
    struct rank_job *j = arg;
    struct q_err err = Q_ERR_INIT;
    const enum q_code rc = run_head(&j->h, j->c, &sources[j->rank], j->g.dx, &j->sums, &err);
    return (void *)(intptr_t)rc;
}

static void run_two(const struct head_case *c)
{
    pthread_t threads[2];
    void *rc;
    for (uint32_t i = 0; i < 2; i++) {
        struct rank_job *j = &jobs[i];
        memset(j, 0, sizeof *j);
        j->c = c;
        j->rank = i;
        const struct way way = {caps_of(3), 1,      i,
                                2,          DT_F32, {i, 2, group_sum, group_gather, &j->rank}};
        head_open(&j->h, c, &way, &j->g);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &rc), 0);
        assert_int_equal((intptr_t)rc, Q_OK);
        head_close(&jobs[i].h);
    }
}

static void test_tensor_group(void **state)
{
    (void)state;
    assert_int_equal(pthread_barrier_init(&meeting, NULL, 2), 0);
    for (size_t i = 0; i < N_CASE; i++) {
        make(&cases[i]);
        compute64(&cases[i]);
        run_two(&cases[i]);
        assert_memory_equal(&jobs[0].sums, &jobs[1].sums, sizeof jobs[0].sums);
        assert_memory_equal(jobs[0].g.dx, jobs[1].g.dx, sizeof jobs[0].g.dx);
        assert_memory_equal(jobs[0].g.norm, jobs[1].g.norm, sizeof jobs[0].g.norm);
        got = jobs[0].g; /* each rank has written its own rows of the head */
        for (size_t k = 0; k < N_VOCAB * HIDDEN; k++)
            got.head[k] += jobs[1].g.head[k];
        for (size_t k = 0; k < N_VOCAB; k++)
            got.bias[k] += jobs[1].g.bias[k];
        check(&cases[i], &jobs[0].sums, 2e-5);
    }
    pthread_barrier_destroy(&meeting);
}

/* ---- what is refused ---- */

static void refuse(struct loss_options o, const char *part)
{
    static const struct head_weights w = {.n_vocab = N_VOCAB, .hidden = HIDDEN, .compute = DT_F32};
    struct loss_head *h;
    assert_fails(loss_head_new(&h, &w, &o, &e), Q_INVALID, part, &e);
}

static void test_refused(void **state)
{
    const struct way way = {caps_of(3), 1, 0, 1, DT_F32, {0}};
    struct head_case c = cases[6];
    struct loss_sums sums;
    struct head h;
    (void)state;
    refuse((struct loss_options){.temperature = 0}, "temperature 0: it must be above 0");
    refuse((struct loss_options){.kind = DISTILL_JSD, .temperature = 1, .beta = 1, .kd_weight = 1},
           "beta 1");
    refuse((struct loss_options){.kind = DISTILL_RKL, .temperature = 1, .kd_weight = 1, .top_k = 5},
           "only forward KL");
    refuse((struct loss_options){.kind = DISTILL_FKL, .temperature = 1, .kd_weight = -1},
           "must be 0 or more");
    refuse(
        (struct loss_options){.kind = DISTILL_FKL, .temperature = 1, .kd_weight = 1, .top_k = 2000},
        "at most 1024");
    make(&c);
    c.o.top_k = N_VOCAB + 1;
    head_open(&h, &c, &way, &got);
    assert_fails(run_head(&h, &c, &sources[0], got.dx, &sums, &e), Q_INVALID,
                 "teacher and student have 98 tokens in common", &e);
    head_close(&h);
    c = cases[7];
    c.o.top_k = TOP_K + 1;
    head_open(&h, &c, &way, &got);
    assert_fails(run_head(&h, &c, &sources[0], got.dx, &sums, &e), Q_INVALID,
                 "the teacher gives its top 7, the loss takes 8", &e);
    labels[3] = N_VOCAB;
    assert_fails(run_head(&h, &c, &sources[0], got.dx, &sums, &e), Q_INVALID,
                 "label 98 of row 3: the student has 98 tokens", &e);
    head_close(&h);
}

static void test_rows(void **state)
{
    (void)state;
    assert_int_equal(loss_head_rows(256), LOSS_HEAD_ROWS_MAX);
    assert_int_equal(loss_head_rows(32768), 128);
    assert_int_equal(loss_head_rows(151936), 32);
    assert_int_equal(loss_head_rows(50000000), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float32),        cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_accumulates),
        cmocka_unit_test(test_nothing_counts), cmocka_unit_test(test_tensor_group),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
