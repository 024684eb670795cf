/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of attention against its formulas in f64, whose gradients are checked by finite
 * differences: heads that share keys, relations of joined heads, windows, caps, ALiBi, sequences of
 * more rows than a tile and of one, rows that do not count; the same bits with any number of
 * threads; what is refused. */
#include <math.h>
#include <string.h>
#include "check.h"
#include "common/mem.h"
#include "engine/distill/attention_loss.h"
#include "engine/model/forward/alibi.h"

enum { N_ROW = 190, N_HEAD = 4, COLUMNS_MAX = 64, N_SEGMENT = 4 };
#define N_POSITION 50.0
#define STEP       1e-4 /* of finite differences */

static const struct train_segment segments[N_SEGMENT] = {{0, 141}, {141, 1}, {142, 37}, {179, 11}};

struct model_rows { /* f64, and what the function under test reads */
    double q[N_ROW * COLUMNS_MAX], k[N_ROW * COLUMNS_MAX], v[N_ROW * COLUMNS_MAX];
    float q32[N_ROW * COLUMNS_MAX], k32[N_ROW * COLUMNS_MAX], v32[N_ROW * COLUMNS_MAX];
};
struct fixture {
    struct attention_options o;
    struct model_rows teacher, student;
    int32_t labels[N_ROW];
    double dq[N_ROW * COLUMNS_MAX], dk[N_ROW * COLUMNS_MAX], dv[N_ROW * COLUMNS_MAX];
    struct attention_sums sums;
};
struct result {
    float dq[N_ROW * COLUMNS_MAX], dk[N_ROW * COLUMNS_MAX], dv[N_ROW * COLUMNS_MAX];
    struct attention_sums sums;
};

static uint64_t random_state;

static float draw(void) /* -1 … 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void fill_rows(struct model_rows *m)
{
    float *const floats[] = {m->q32, m->k32, m->v32};
    double *const doubles[] = {m->q, m->k, m->v};
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t i = 0; i < N_ROW * COLUMNS_MAX; i++)
            doubles[a][i] = floats[a][i] = 2 * draw();
}

static void fill(struct fixture *f)
{
    random_state = 1;
    fill_rows(&f->teacher);
    fill_rows(&f->student);
    for (uint32_t i = 0; i < N_ROW; i++)
        f->labels[i] = i % 5 == 2 ? -1 : 7;
    for (uint32_t i = 179; i < N_ROW; i++)
        f->labels[i] = -1; /* a sequence without a row that counts */
}

/* ---- the formulas ---- */

struct side {
    const double *q, *k;
    double *dq, *dk;
    uint32_t q_stride, k_stride, n_dim;
    double scale, cap, slope;
};

static double score(const struct side *s, uint32_t i, uint32_t c)
{
    double sum = 0;
    for (uint32_t d = 0; d < s->n_dim; d++)
        sum += s->q[i * s->q_stride + d] * s->k[c * s->k_stride + d];
    sum = s->scale * sum - s->slope * (i - c);
    return s->cap > 0 ? s->cap * tanh(sum / s->cap) : sum;
}

static void softmax(double *p, const double *z, uint32_t begin, uint32_t end)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t c = begin; c < end; c++)
        most = fmax(most, z[c]);
    for (uint32_t c = begin; c < end; c++)
        sum += p[c] = exp(z[c] - most);
    for (uint32_t c = begin; c < end; c++)
        p[c] /= sum;
}

static void add_gradient(const struct side *s, uint32_t i, uint32_t c, double g)
{
    for (uint32_t d = 0; d < s->n_dim; d++) {
        s->dq[i * s->q_stride + d] += g * s->scale * s->k[c * s->k_stride + d];
        s->dk[c * s->k_stride + d] += g * s->scale * s->q[i * s->q_stride + d];
    }
}

/* Row i of a sequence; gradients are added with this factor. */
static double row_kl(const struct side *t, const struct side *s, uint32_t begin, uint32_t i,
                     double factor)
{
    double zt[N_ROW] = {0}, zs[N_ROW] = {0}, p[N_ROW], q[N_ROW], kl = 0;
    for (uint32_t c = begin; c <= i; c++) {
        zt[c] = score(t, i, c);
        zs[c] = score(s, i, c);
    }
    softmax(p, zt, begin, i + 1);
    softmax(q, zs, begin, i + 1);
    for (uint32_t c = begin; c <= i; c++) {
        const double of_cap = s->cap > 0 ? 1 - zs[c] / s->cap * zs[c] / s->cap : 1;
        kl += p[c] * (log(p[c]) - log(q[c]));
        add_gradient(s, i, c, factor * (q[c] - p[c]) * of_cap);
    }
    return kl;
}

static double relation_kl(const struct fixture *f, const struct side *t, const struct side *s,
                          const struct train_segment *g, double factor)
{
    const uint32_t a = f->o.teacher.window, b = f->o.student.window;
    const uint32_t window = a && b ? (a < b ? a : b) : a + b;
    double sum = 0;
    for (uint32_t i = 0; i < g->n_row; i++)
        if (f->labels[g->row + i] >= 0)
            sum += row_kl(t, s, window && i >= window ? i + 1 - window : 0, i, factor);
    return sum;
}

static struct side head_of(const struct attention_shape *shape, struct model_rows *m, uint32_t row,
                           uint32_t h)
{
    const uint32_t group = h * shape->n_kv_head / shape->n_head;
    return (struct side){
        .q = m->q + row * shape->n_head * shape->head_dim + h * shape->head_dim,
        .k = m->k + row * shape->n_kv_head * shape->head_dim + group * shape->head_dim,
        .q_stride = shape->n_head * shape->head_dim,
        .k_stride = shape->n_kv_head * shape->head_dim,
        .n_dim = shape->head_dim,
        .scale = shape->scale,
        .cap = shape->soft_cap,
        .slope = shape->slope_scale * alibi_slope(h, shape->n_head),
    };
}

static struct side values_of(const struct attention_shape *shape, struct model_rows *m,
                             uint32_t row, uint32_t i, uint32_t n)
{
    const uint32_t columns = shape->n_kv_head * shape->head_dim, n_dim = columns / n;
    const double *v = m->v + row * columns + i * n_dim;
    return (struct side){
        .q = v,
        .k = v,
        .q_stride = columns,
        .k_stride = columns,
        .n_dim = n_dim,
        .scale = 1 / sqrt(n_dim),
    };
}

/* n_value: relations of values. The loss, with weights and N. */
static double compute(struct fixture *f, uint32_t n_value)
{
    struct attention_options *o = &f->o;
    memset(f->dq, 0, sizeof f->dq);
    memset(f->dk, 0, sizeof f->dk);
    memset(f->dv, 0, sizeof f->dv);
    f->sums = (struct attention_sums){0};
    for (uint32_t g = 0; g < N_SEGMENT; g++) {
        const uint32_t row = segments[g].row;
        for (uint32_t h = 0; h < N_HEAD && o->weight > 0; h++) {
            const struct side t = head_of(&o->teacher, &f->teacher, row, h);
            struct side s = head_of(&o->student, &f->student, row, h);
            s.dq = f->dq + (s.q - f->student.q);
            s.dk = f->dk + (s.k - f->student.k);
            f->sums.attention +=
                relation_kl(f, &t, &s, &segments[g], o->weight / N_POSITION / N_HEAD) / N_HEAD;
        }
        for (uint32_t i = 0; i < n_value && o->value_weight > 0; i++) {
            const struct side t = values_of(&o->teacher, &f->teacher, row, i, n_value);
            struct side s = values_of(&o->student, &f->student, row, i, n_value);
            s.dq = s.dk = f->dv + (s.q - f->student.v);
            f->sums.values +=
                relation_kl(f, &t, &s, &segments[g], o->value_weight / N_POSITION / n_value) /
                n_value;
        }
    }
    return (o->weight * f->sums.attention + o->value_weight * f->sums.values) / N_POSITION;
}

/* Some elements of each array. */
static void check_differences(struct fixture *f, uint32_t n_value)
{
    static double want[3][N_ROW * COLUMNS_MAX];
    double *const arrays[] = {f->student.q, f->student.k, f->student.v};
    const uint32_t n_q = attention_q_columns(&f->o.student);
    const uint32_t n_kv = attention_kv_columns(&f->o.student);
    compute(f, n_value);
    memcpy(want[0], f->dq, sizeof f->dq);
    memcpy(want[1], f->dk, sizeof f->dk);
    memcpy(want[2], f->dv, sizeof f->dv);
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t k = 0; k < 6; k++) {
            const uint32_t i = (uint32_t)((draw() + 1) / 2 * 0.9999f * 179) * (a ? n_kv : n_q) +
                               k * ((a ? n_kv : n_q) / 6);
            const double x = arrays[a][i];
            arrays[a][i] = x + STEP;
            const double above = compute(f, n_value);
            arrays[a][i] = x - STEP;
            const double below = compute(f, n_value);
            arrays[a][i] = x;
            const double got = (above - below) / (2 * STEP);
            assert_true(fabs(got - want[a][i]) <= 1e-6 * fabs(want[a][i]) + 1e-9);
        }
}

/* ---- the functions ---- */

static struct attention_rows rows_of(const struct attention_shape *s, const struct model_rows *m)
{
    return (struct attention_rows){
        m->q32, m->k32, m->v32, attention_q_columns(s), attention_kv_columns(s),
    };
}

static void run(struct result *to, const struct fixture *f, uint32_t n_thread, bool trains)
{
    static uint32_t zeros[N_ROW];
    struct q_err e = Q_ERR_INIT;
    struct kern_table kern;
    struct team *team = NULL;
    struct attention_loss *l = NULL;
    const struct micro_batch batch = {
        N_ROW, N_SEGMENT, zeros, zeros, segments, f->labels, N_ROW,
    };
    struct attention_pair pair = {
        .batch = &batch,
        .teacher = rows_of(&f->o.teacher, &f->teacher),
        .student = rows_of(&f->o.student, &f->student),
        .n_position = N_POSITION,
    };
    memset(to, 0xff, sizeof *to);
    if (trains) {
        pair.dq = to->dq;
        pair.dk = to->dk;
        pair.dv = to->dv;
    }
    kern_table_cpu(&kern, kern_caps_machine());
    if (n_thread > 1)
        assert_ok(team_new(&team, n_thread, false, &e), &e);
    assert_ok(attention_loss_new(&l, &f->o, &kern, team, 141, &e), &e);
    assert_true(attention_loss_bytes(l) > 0);
    attention_loss_run(l, &pair, &to->sums);
    attention_loss_free(l);
    team_free(team);
}

static void assert_near(const float *got, const double *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(got[i] - want[i]) <= 2e-5 * most + 1e-12);
}

static const struct attention_shape shared = {
    .n_head = 4,
    .n_kv_head = 2,
    .head_dim = 8,
    .scale = 0.35f,
};

static struct attention_options options_of(uint32_t i)
{
    struct attention_options o = {.weight = 0.7, .value_weight = 1.3};
    o.teacher = (struct attention_shape){
        .n_head = 4,
        .n_kv_head = 4,
        .head_dim = 12,
        .scale = 0.3f,
    };
    o.student = shared;
    if (i == 1) { /* the smaller window counts; a cap on either side */
        o.teacher.window = 50;
        o.student.window = 9;
        o.student.soft_cap = 2;
    }
    if (i == 2) {
        o.teacher.soft_cap = 3;
        o.student.slope_scale = 0.5f;
        o.value_weight = 0;
    }
    if (i == 3) { /* three heads of keys, two: one relation of all; other heads do not matter */
        o.teacher = (struct attention_shape){
            .n_head = 6,
            .n_kv_head = 3,
            .head_dim = 10,
            .scale = 1,
        };
        o.weight = 0;
    }
    return o;
}

static void test_formulas(void **state)
{
    static struct fixture f;
    static struct result got, again;
    static const uint32_t n_value[] = {2, 2, 2, 1};
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        fill(&f);
        f.o = options_of(i);
        const size_t n_q = N_ROW * attention_q_columns(&f.o.student);
        const size_t n_kv = N_ROW * attention_kv_columns(&f.o.student);
        check_differences(&f, n_value[i]);
        compute(&f, n_value[i]);
        run(&got, &f, 1, true);
        assert_true(fabs(got.sums.attention - f.sums.attention) <= 1e-5 * f.sums.attention);
        assert_true(fabs(got.sums.values - f.sums.values) <= 1e-5 * f.sums.values);
        assert_true((f.sums.attention > 0) == (f.o.weight > 0));
        assert_near(got.dq, f.dq, n_q);
        assert_near(got.dk, f.dk, n_kv);
        assert_near(got.dv, f.dv, n_kv);
        for (uint32_t n = 2; n <= 5; n += 3) {
            run(&again, &f, n, true);
            assert_memory_equal(&again, &got, sizeof got);
        }
        run(&again, &f, 2, false); /* evaluation: the same sums, nothing is written */
        assert_memory_equal(&again.sums, &got.sums, sizeof got.sums);
    }
}

/* A student that is its teacher has no difference and no gradient. */
static void test_equal(void **state)
{
    static struct fixture f;
    static struct result got;
    (void)state;
    fill(&f);
    f.o = (struct attention_options){1, 1, shared, shared};
    f.teacher = f.student;
    run(&got, &f, 2, true);
    assert_true(fabs(got.sums.attention) < 1e-4 && fabs(got.sums.values) < 1e-4);
    for (uint32_t i = 0; i < N_ROW * attention_q_columns(&shared); i++)
        assert_true(fabsf(got.dq[i]) < 1e-6f);
}

static void test_refused(void **state)
{
    struct attention_options o = {1, 1, shared, shared};
    struct q_err e = Q_ERR_INIT;
    (void)state;
    assert_ok(attention_loss_check(&o, &e), &e);
    o.teacher.n_head = 8;
    assert_fails(attention_loss_check(&o, &e), Q_INVALID,
                 "the teacher has 8 attention heads and the student 4", &e);
    o.weight = 0;
    assert_ok(attention_loss_check(&o, &e), &e);
    o.value_weight = 0;
    assert_fails(attention_loss_check(&o, &e), Q_INVALID, "one of them above 0", &e);
    o.value_weight = -1;
    assert_fails(attention_loss_check(&o, &e), Q_INVALID, "weights 0 of the attention and -1", &e);
}

/* The n-th allocation fails, for every n. */
static void test_no_memory(void **state)
{
    const struct attention_options o = {1, 1, shared, shared};
    struct attention_loss *l = NULL;
    struct q_err e = Q_ERR_INIT;
    struct kern_table kern;
    enum q_code rc = Q_NO_MEMORY;
    (void)state;
    kern_table_cpu(&kern, CAP_NONE);
    for (int64_t n = 0; rc == Q_NO_MEMORY; n++) {
        q_err_reset(&e);
        mem_fail_after(n);
        rc = attention_loss_new(&l, &o, &kern, NULL, 64, &e);
        mem_fail_after(-1);
    }
    assert_ok(rc, &e);
    attention_loss_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
