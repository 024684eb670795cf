/* SPDX-License-Identifier: Apache-2.0 */
/* hopper: the bits that sm_90a's instructions are given, against numbers worked out by hand from
 * the manual; which card gets which kernels; and the trials, on the host emulation. What the bits
 * mean is tested by the emulation, which decodes them on its own (cuda_check, emu_planted). */
#include <math.h>
#include "check.h"
#include "common/mem.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/trial_attention.h"
#include "kernels/cuda/trial_linear.h"
#include "kernels/cuda/workspace.h"

extern size_t emu_shared_max; /* cuda_emu.h */
attention_fn attention_cuda, attention_sm90a;
typedef void linear_fn(const struct linear_args *a, const struct kern_exec *x);
linear_fn linear_cuda, linear_sm90a;
void linear_int8_sm90a(const struct linear_int8_args *a, const struct kern_exec *x);
void linear_fp8_cuda(const struct linear_fp8_args *a, const struct kern_exec *x);

static void descriptors(void **state)
{
    (void)state;
    /* a tile of 64 rows at 1 KiB: address 0x40, leading 1, stride 64, swizzle 1, in units of 16 */
    assert_true(wgmma_columns_k(0x400) == 0x4000004000010040u);
    /* at 33 KiB; leading: 64 rows of 128 bytes */
    assert_true(wgmma_rows_k(0x8400, 64) == 0x4000004002000840u);
    assert_true(wgmma_rows_k(0x8400, 128) == 0x4000004004000840u);
    /* the last KiB that 18 bits reach */
    assert_true(wgmma_columns_k(0x3fc00) == 0x4000004000013fc0u);
    assert_int_equal(wgmma_columns_k_at(64, 0), 0);
    assert_int_equal(wgmma_columns_k_at(64, 48), 96);
    assert_int_equal(wgmma_columns_k_at(64, 64), 64 * 128);
    assert_int_equal(wgmma_columns_k_at(64, 112), 64 * 128 + 96);
    assert_int_equal(wgmma_rows_k_at(48), 48 * 128);
    assert_true(wgmma_further(wgmma_columns_k(0x400), 96) == 0x4000004000010046u);
    assert_true(wgmma_further(wgmma_rows_k(0x8400, 64), 6144) == 0x40000040020009c0u);
}

static void fragments(void **state)
{
    (void)state;
    static const struct place {
        uint32_t thread, i, row, col;
    } acc[] =
        {
            {0, 0, 0, 0},   {0, 1, 0, 1},    {0, 2, 8, 0},      {0, 3, 8, 1},
            {0, 4, 0, 8},   {3, 1, 0, 7},    {5, 0, 1, 2},      {31, 3, 15, 7},
            {32, 0, 16, 0}, {100, 6, 57, 8}, {127, 31, 63, 63}, {127, 63, 63, 127},
        },
      a[] = {
          {0, 0, 0, 0}, {0, 1, 8, 0}, {0, 2, 0, 8}, {0, 3, 8, 8}, {6, 3, 9, 12}, {127, 3, 63, 14},
      };
    bool taken[64][128] = {{false}};
    for (size_t i = 0; i < sizeof acc / sizeof *acc; i++) {
        assert_int_equal(wgmma_acc_row(acc[i].thread, acc[i].i), acc[i].row);
        assert_int_equal(wgmma_acc_col(acc[i].thread, acc[i].i), acc[i].col);
    }
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) {
        assert_int_equal(wgmma_a_row(a[i].thread, a[i].i), a[i].row);
        assert_int_equal(wgmma_a_col(a[i].thread, a[i].i), a[i].col);
    }
    for (uint32_t thread = 0; thread < WGMMA_THREADS; thread++)
        for (uint32_t i = 0; i < 64; i++) {
            const uint32_t row = wgmma_acc_row(thread, i), col = wgmma_acc_col(thread, i);
            assert_true(row < 64 && col < 128 && !taken[row][col]);
            taken[row][col] = true;
            /* accumulators 8 k + 2 i and + 1 are word i of A for columns 16 k … */
            assert_int_equal(wgmma_a_row(thread, i % 8 / 2), row);
            assert_int_equal(i / 8 * 16 + wgmma_a_col(thread, i % 8 / 2) + i % 2, col);
        }
}

static void maps(void **state)
{
    (void)state;
    const struct map_shape s = map_shape_of(128, 16);
    assert_true(s.dim[0] == 128 && s.dim[1] == (uint64_t)1 << 31 && s.stride[0] == 256);
    assert_true(s.box[0] == 64 && s.box[1] == 16 && s.step[0] == 1 && s.step[1] == 1);
    assert_true(map_shape_of(64, 1).stride[0] == 128 && map_shape_of(64, 1).box[1] == 1);
    assert_true(MAP_NOWHERE + 16 <= 0);
    assert_true(s.rank == 2 && s.element_bytes == 2);
    const struct map_shape b = map_several(map_bytes_of(4112, 70, 4224, 256), 8, 300000);
    assert_true(b.rank == 3 && b.element_bytes == 1 && b.dim[0] == 4112 && b.dim[1] == 70);
    assert_true(b.dim[2] == 8 && b.stride[0] == 4224 && b.stride[1] == 300000);
    assert_true(b.box[0] == 128 && b.box[1] == 256 && b.box[2] == 1 && b.step[2] == 1);
}

static void tables(void **state)
{
    (void)state;
    struct kern_table t;
    assert_int_equal(kern_caps_cuda(8, 0), CAP_SM80);
    assert_int_equal(kern_caps_cuda(8, 9), CAP_SM80);
    assert_int_equal(kern_caps_cuda(9, 0), CAP_SM80 | CAP_SM90A_ALL);
    assert_int_equal(kern_caps_cuda(10, 0), CAP_SM80);
    assert_int_equal(kern_caps_cuda(7, 5), 0);
    kern_table_cuda(&t, kern_caps_cuda(8, 6));
    assert_true(t.attention == attention_cuda && t.linear == linear_cuda);
    kern_table_cuda(&t, kern_caps_cuda(9, 0));
    assert_true(t.attention == attention_sm90a && t.linear == linear_sm90a);
    assert_int_equal(t.caps, CAP_SM80 | CAP_SM90A_ALL);
    kern_table_cuda(&t, CAP_SM80 | CAP_SM90A_I8); /* what a deterministic device ends with */
    assert_true(t.attention == attention_cuda && t.linear == linear_cuda);
    assert_true(t.linear_int8 == linear_int8_sm90a && t.linear_fp8 == linear_fp8_cuda);
}

/* ---- a device that runs each call at once, on host memory ---- */
static enum q_code direct_get(struct device *d, void **out, size_t n, const char *what,
                              struct q_err *e)
{
    (void)d;
    *out = q_alloc(n);
    return *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "%s", what);
}
static void direct_drop(struct device *d, void *p)
{
    (void)d;
    q_free(p);
}
static void direct_copy(struct device_stream *s, void *dst, const void *src, size_t n)
{
    (void)s;
    memcpy(dst, src, n);
}
static void direct_fill(struct device_stream *s, void *dst, int byte, size_t n)
{
    (void)s;
    memset(dst, byte, n);
}
static enum q_code direct_sync(struct device_stream *s, struct q_err *e)
{
    (void)s;
    (void)e;
    return Q_OK;
}
static enum q_code failing_sync(struct device_stream *s, struct q_err *e)
{
    (void)s;
    return q_fail(e, Q_IO, "an illegal instruction");
}
static enum q_code direct_check(struct device *d, struct q_err *e)
{
    (void)d;
    (void)e;
    return Q_OK;
}
static size_t direct_workspace(const struct device *d, const struct device_limits *l)
{
    (void)d;
    return cuda_workspace_bytes(l, 4);
}
static size_t direct_plan_bytes(const struct device *d, const struct device_limits *l)
{
    (void)d;
    return plan_bytes(l);
}
static size_t direct_plan(const struct device *d, void *out, const struct device_limits *l,
                          const struct attention_seq *seqs, uint32_t n_seq)
{
    (void)d;
    plan_make(out, l, 0, seqs, n_seq);
    return plan_bytes(l);
}
static const struct device_table direct = {
    .alloc = direct_get,
    .release = direct_drop,
    .host_alloc = direct_get,
    .host_free = direct_drop,
    .copy = direct_copy,
    .fill = direct_fill,
    .sync = direct_sync,
    .check = direct_check,
    .workspace_bytes = direct_workspace,
    .plan_bytes = direct_plan_bytes,
    .plan = direct_plan,
};

/* Kernels of which only the results matter. */
static void some_numbers(const struct attention_args *a, const struct kern_exec *x)
{
    float *out = a->out;
    (void)x;
    for (uint32_t i = 0; i < a->n_row * a->n_head * a->head_dim; i++)
        out[i] = (float)(i % 997) / 997 - 0.5f;
}
static void others_of_a_head(const struct attention_args *a, const struct kern_exec *x)
{
    float *out = a->out;
    some_numbers(a, x);
    for (uint32_t i = 0; i < a->head_dim; i++)
        out[i] += 0.01f;
}
static void other_rounding(const struct attention_args *a, const struct kern_exec *x)
{
    some_numbers(a, x);
    ((float *)a->out)[7] *= 1 + 0x1p-20f;
}
static void leaves_one_out(const struct attention_args *a, const struct kern_exec *x)
{
    some_numbers(a, x);
    ((float *)a->out)[8] = NAN;
}

static struct trial_result trial_of(attention_fn *known, attention_fn *tried)
{
    const struct device_link on = {&direct, NULL, NULL};
    struct trial_result r;
    struct q_err e = Q_ERR_INIT;
    emu_shared_max = (size_t)227 << 10;
    assert_ok(attention_trial_run(&r, &on, known, tried, TRIAL_SMALL, &e), &e);
    assert_int_equal(r.n, 99 * 8 * (128 + 128 + 64));
    return r;
}

static void trial(void **state)
{
    (void)state;
    struct trial_result r = trial_of(attention_cuda, attention_sm90a_trial);
    assert_int_equal(r.n_differ, 0); /* the emulation adds products one by one in both */
    assert_true(attention_trial_holds(&r, true) && attention_trial_holds(&r, false));
}

static void trial_of_wrong_ones(void **state)
{
    (void)state;
    struct trial_result r = trial_of(some_numbers, others_of_a_head);
    assert_true(r.n_differ == 128 + 128 + 64 && !attention_trial_holds(&r, false));
    r = trial_of(some_numbers, other_rounding);
    assert_int_equal(r.n_differ, 3);
    assert_true(attention_trial_holds(&r, false) && !attention_trial_holds(&r, true));
    r = trial_of(some_numbers, leaves_one_out);
    assert_true(isinf(r.worst) && !attention_trial_holds(&r, false));
    assert_false(attention_trial_holds(&(struct trial_result){0}, false)); /* nothing was tried */
}

static void trial_that_fails(void **state)
{
    (void)state;
    struct device_table broken = direct;
    struct trial_result r;
    struct q_err e = Q_ERR_INIT;
    broken.sync = failing_sync;
    const struct device_link on = {&broken, NULL, NULL};
    emu_shared_max = (size_t)227 << 10;
    assert_fails(attention_trial_run(&r, &on, some_numbers, some_numbers, TRIAL_SMALL, &e), Q_IO,
                 "illegal", &e);
}

/* ---- products ---- */
/* Products of all types, plain and of groups: their outputs together. */
static FALLIBLE try_all(struct trial_result r[LINEAR_TYPES], const struct device_link *on,
                        const struct kern_table *known, const struct kern_table *tried,
                        struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (int i = 0; i < LINEAR_TYPES && !rc; i++) {
        struct trial_result grouped;
        const enum linear_type type = (enum linear_type)i;
        if ((rc = linear_trial_run(&r[i], on, known, tried, type, false, TRIAL_SMALL, e)) ||
            (rc = linear_trial_run(&grouped, on, known, tried, type, true, TRIAL_SMALL, e)))
            break;
        const uint32_t times = type == LINEAR_FP8 ? 2 : 1; /* also with scales of blocks */
        assert_int_equal(r[i].n, times * (130 * 200 + 40 * 144));
        assert_int_equal(grouped.n, times * (100 * 32 + 200 * 150));
        r[i].n += grouped.n;
        r[i].n_differ += grouped.n_differ;
        r[i].worst = fmax(r[i].worst, grouped.worst);
    }
    return rc;
}

static void trial_of_products(void **state)
{
    (void)state;
    const struct device_link on = {&direct, NULL, NULL};
    struct trial_result r[LINEAR_TYPES];
    struct kern_table known, tried;
    struct q_err e = Q_ERR_INIT;
    emu_shared_max = (size_t)227 << 10;
    kern_table_cuda(&known, kern_caps_cuda(8, 9));
    tried = known;
    linear_trial_table(&tried);
    assert_ok(try_all(r, &on, &known, &tried, &e), &e);
    for (int i = 0; i < LINEAR_TYPES; i++) {
        const bool exact = i == LINEAR_I8;
        assert_true(linear_trial_holds(&r[i], (enum linear_type)i, false));
        assert_true((r[i].n_differ == 0) == exact); /* sums of floats have another order */
        assert_true(linear_trial_holds(&r[i], (enum linear_type)i, true) == exact);
    }
}

/* Kernels of which only the results matter, as those of attention above. */
static void write_numbers(void *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((float *)y)[i] = (float)(i % 997) / 997 - 0.5f;
}
static void some_linear(const struct linear_args *a, const struct kern_exec *x)
{
    (void)x;
    write_numbers(a->y, a->n_row * a->y_stride);
}
static void some_quant(const struct linear_int8_args *a, const struct kern_exec *x)
{
    (void)x;
    write_numbers(a->y, a->n_row * a->y_stride);
}
static void some_e4m3(const struct linear_fp8_args *a, const struct kern_exec *x)
{
    some_quant(&a->by, x);
}
static void some_groups(const struct linear_grouped_args *a, const struct kern_exec *x)
{
    some_linear(&a->by, x);
}
static void some_int8_grouped(const struct linear_int8_grouped_args *a, const struct kern_exec *x)
{
    some_quant(&a->by, x);
}
static void some_fp8_grouped(const struct linear_fp8_grouped_args *a, const struct kern_exec *x)
{
    some_quant(&a->as.by, x);
}
static void some_blocks(const struct linear_fp8_block_args *a, const struct kern_exec *x)
{
    (void)x;
    write_numbers(a->y, a->n_row * a->y_stride);
}
static void some_blocks_grouped(const struct linear_fp8_block_grouped_args *a,
                                const struct kern_exec *x)
{
    some_blocks(&a->by, x);
}
static void block_is_off(const struct linear_fp8_block_args *a, const struct kern_exec *x)
{
    some_blocks(a, x);
    ((float *)a->y)[3] += 1;
}
static void first_is_off(const struct linear_args *a, const struct kern_exec *x)
{
    some_linear(a, x);
    ((float *)a->y)[5] += 1;
}
static void rounds_otherwise(const struct linear_int8_args *a, const struct kern_exec *x)
{
    some_quant(a, x);
    if (!a->w.gated)
        ((float *)a->y)[7] *= 1 + 0x1p-22f;
}
static void does_nothing(const struct linear_fp8_args *a, const struct kern_exec *x)
{
    (void)a;
    (void)x;
}

static void trial_of_wrong_products(void **state)
{
    (void)state;
    const struct device_link on = {&direct, NULL, NULL};
    struct device_table broken = direct;
    struct trial_result r[LINEAR_TYPES];
    struct kern_table known, tried;
    struct q_err e = Q_ERR_INIT;
    known.linear = some_linear;
    known.linear_int8 = some_quant;
    known.linear_fp8 = some_e4m3;
    known.linear_grouped = some_groups;
    known.linear_int8_grouped = some_int8_grouped;
    known.linear_fp8_grouped = some_fp8_grouped;
    known.linear_fp8_block = some_blocks;
    known.linear_fp8_block_grouped = some_blocks_grouped;
    tried = known;
    tried.linear = first_is_off;
    tried.linear_int8 = rounds_otherwise;
    tried.linear_fp8 = does_nothing;
    assert_ok(try_all(r, &on, &known, &tried, &e), &e);
    for (int i = 0; i < LINEAR_TYPES; i++)
        assert_false(linear_trial_holds(&r[i], (enum linear_type)i, false));
    assert_int_equal(r[LINEAR_I8].n_differ, 1);
    assert_true(isinf(r[LINEAR_FP8].worst));
    assert_false(linear_trial_holds(&(struct trial_result){0}, LINEAR_BF16, false));
    tried = known;
    tried.linear_fp8_block = block_is_off; /* scales of blocks alone are wrong */
    assert_ok(try_all(r, &on, &known, &tried, &e), &e);
    assert_false(linear_trial_holds(&r[LINEAR_FP8], LINEAR_FP8, false));
    assert_true(linear_trial_holds(&r[LINEAR_BF16], LINEAR_BF16, true));
    tried.linear = first_is_off;
    broken.sync = failing_sync;
    const struct device_link fails = {&broken, NULL, NULL};
    assert_fails(try_all(r, &fails, &known, &tried, &e), Q_IO, "illegal", &e);
}

/* ---- kernels that begin early: what a card may do wrong, on the second stream ---- */
#define LAYERS 3u
#define CHAIN  (OVERLAP_KERNELS * LAYERS)
#define RUNS   2u
static struct kern_table real;
static struct device_stream *const second = (void *)0x100;
struct recorded_kernel {
    enum { A_NORM, A_PRODUCT, AN_ATTENTION } kind;
    union {
        struct norm_rows_args norm;
        struct linear_args product;
        struct attention_args attention;
    } a;
};
static struct {
    struct recorded_kernel kernels[CHAIN];
    struct kern_exec x;
    uint32_t n;
    bool is_recording;
    uint32_t n_run, skipped; /* kernels run on the second stream; the one that is left out */
} graph;

static void run_kernel(const struct recorded_kernel *k, const struct kern_exec *x)
{
    if (graph.is_recording) {
        assert_true(graph.n < CHAIN);
        graph.x = *x;
        graph.kernels[graph.n++] = *k;
        return;
    }
    if (x->stream == second && ++graph.n_run == graph.skipped)
        return;
    if (k->kind == A_NORM)
        real.norm_rows(&k->a.norm, x);
    else if (k->kind == A_PRODUCT)
        real.linear(&k->a.product, x);
    else
        real.attention(&k->a.attention, x);
}
static void run_norm(const struct norm_rows_args *a, const struct kern_exec *x)
{
    run_kernel(&(struct recorded_kernel){.kind = A_NORM, .a.norm = *a}, x);
}
static void run_product(const struct linear_args *a, const struct kern_exec *x)
{
    run_kernel(&(struct recorded_kernel){.kind = A_PRODUCT, .a.product = *a}, x);
}
static void run_attention(const struct attention_args *a, const struct kern_exec *x)
{
    run_kernel(&(struct recorded_kernel){.kind = AN_ATTENTION, .a.attention = *a}, x);
}
static enum q_code record_begin(struct device_stream *s, struct q_err *e)
{
    (void)e;
    assert_ptr_equal(s, second);
    graph.is_recording = true;
    return Q_OK;
}
static enum q_code record_end(struct device_stream *s, struct device_graph **out, struct q_err *e)
{
    (void)s;
    (void)e;
    graph.is_recording = false;
    *out = (void *)&graph;
    return Q_OK;
}
static void record_launch(struct device_graph *g, struct device_stream *s)
{
    struct kern_exec x = graph.x;
    assert_ptr_equal(g, (void *)&graph);
    x.stream = s;
    for (uint32_t i = 0; i < graph.n; i++)
        run_kernel(&graph.kernels[i], &x);
}
static void record_free(struct device_graph *g)
{
    (void)g;
}

static struct kern_table recorded;
static const struct kern_table *kern_of(const struct device *d)
{
    (void)d;
    return &recorded;
}

static struct trial_result overlap_of(uint32_t skipped)
{
    const struct overlap_size size = {LAYERS, RUNS};
    struct device_table t = direct;
    struct trial_result r;
    struct q_err e = Q_ERR_INIT;
    t.graph_begin = record_begin;
    t.graph_end = record_end;
    t.graph_launch = record_launch;
    t.graph_free = record_free;
    kern_table_cuda(&real, kern_caps_cuda(8, 0));
    recorded = real;
    recorded.norm_rows = run_norm;
    recorded.linear = run_product;
    recorded.attention = run_attention;
    t.kern = kern_of;
    memset(&graph, 0, sizeof graph);
    graph.skipped = skipped;
    const struct device_link apart = {&t, NULL, NULL}, early = {&t, NULL, second};
    assert_ok(overlap_trial_run(&r, &apart, &early, size, &e), &e);
    assert_int_equal(graph.n, CHAIN);
    assert_int_equal(graph.n_run, 2 * RUNS * CHAIN);
    assert_int_equal(r.n, 2 * RUNS);
    return r;
}

static void overlap(void **state)
{
    (void)state;
    assert_int_equal(overlap_of(0).n_differ, 0);
    for (uint32_t i = 1; i <= OVERLAP_KERNELS; i++) /* each kernel, of the second layer */
        assert_int_equal(overlap_of(OVERLAP_KERNELS + i).n_differ, 1);
    assert_int_equal(overlap_of(3 * CHAIN).n_differ, 1); /* a graph's last kernel */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors),
        cmocka_unit_test(fragments),
        cmocka_unit_test(maps),
        cmocka_unit_test(tables),
        cmocka_unit_test(trial),
        cmocka_unit_test(trial_of_wrong_ones),
        cmocka_unit_test(trial_that_fails),
        cmocka_unit_test(trial_of_products),
        cmocka_unit_test(trial_of_wrong_products),
        cmocka_unit_test(overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
