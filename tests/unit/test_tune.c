/* SPDX-License-Identifier: Apache-2.0 */
/* tune: which algorithm of cuBLASLt serves which product, chosen by running our kernels (on the
 * host emulation) and those of a library of the test's (tests/cuda/fake_lt.h) against a clock
 * of the test's; and the file that keeps the choices, with all that can be wrong with it. */
#include <stdlib.h>
#include "emu_lt.h"
#include "fake_lt.h"
#include "folder.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/tune.h"

void linear_cuda(const struct linear_args *a, const struct kern_exec *x);
void linear_int8_cuda(const struct linear_int8_args *a, const struct kern_exec *x);
void linear_fp8_cuda(const struct linear_fp8_args *a, const struct kern_exec *x);

/* ---- a device whose work is done at once, and its clock ---- */
struct device {
    uint32_t n_piece;    /* allocations that there are */
    uint32_t refused_in; /* allocations until one is refused; 0: none is */
    bool is_broken;      /* work fails */
};
struct device_stream {
    int unused;
};
struct device_event {
    float at_ms;
};

static struct device device;
static float now_ms, own_ms;
static float algo_ms[FAKE_LT_ALGOS];

static void ran(uint32_t algo)
{
    now_ms += algo_ms[algo];
}

static void timed_linear(const struct linear_args *a, const struct kern_exec *x)
{
    const uint64_t n = lt_n_run(emu_lt);
    linear_cuda(a, x);
    now_ms += lt_n_run(emu_lt) == n ? own_ms : 0;
}

static void timed_linear_int8(const struct linear_int8_args *a, const struct kern_exec *x)
{
    const uint64_t n = lt_n_run(emu_lt);
    linear_int8_cuda(a, x);
    now_ms += lt_n_run(emu_lt) == n ? own_ms : 0;
}

static void timed_linear_fp8(const struct linear_fp8_args *a, const struct kern_exec *x)
{
    const uint64_t n = lt_n_run(emu_lt);
    linear_fp8_cuda(a, x);
    now_ms += lt_n_run(emu_lt) == n ? own_ms : 0;
}

static const struct kern_table *kern_of(const struct device *d)
{
    static const struct kern_table kern = {
        .linear = timed_linear,
        .linear_int8 = timed_linear_int8,
        .linear_fp8 = timed_linear_fp8,
    };
    (void)d;
    return &kern;
}

static enum q_code get(struct device *d, void **out, size_t n, const char *what, struct q_err *e)
{
    if (d->refused_in && --d->refused_in == 0)
        return q_fail(e, Q_NO_MEMORY, "no %zu bytes for %s", n, what);
    *out = aligned_alloc(256, (n + 255) / 256 * 256);
    assert_non_null(*out);
    d->n_piece++;
    return Q_OK;
}

static void give_back(struct device *d, void *p)
{
    d->n_piece -= p != NULL;
    free(p);
}

static void copy(struct device_stream *s, void *dst, const void *src, size_t n)
{
    (void)s;
    memcpy(dst, src, n);
}

static void fill(struct device_stream *s, void *dst, int byte, size_t n)
{
    (void)s;
    memset(dst, byte, n);
}

static enum q_code wait_for(struct device_stream *s, struct q_err *e)
{
    (void)s;
    return device.is_broken ? q_fail(e, Q_IO, "the device is gone") : Q_OK;
}

static enum q_code check_device(struct device *d, struct q_err *e)
{
    (void)d;
    (void)e;
    return Q_OK;
}

static enum q_code event_new(struct device *d, struct device_event **out, struct q_err *e)
{
    void *p;
    enum q_code rc = get(d, &p, sizeof **out, "an event", e);
    if (!rc)
        *out = p;
    return rc;
}

static void event_free(struct device_event *v)
{
    give_back(&device, v);
}

static void event_record(struct device_event *v, struct device_stream *s)
{
    (void)s;
    v->at_ms = now_ms;
}

static enum q_code event_wait(struct device_event *v, struct q_err *e)
{
    (void)v;
    return wait_for(NULL, e);
}

static float event_ms(struct device_event *from, struct device_event *to)
{
    return to->at_ms - from->at_ms;
}

static const struct device_table table = {
    .kern = kern_of,
    .check = check_device,
    .alloc = get,
    .release = give_back,
    .host_alloc = get,
    .host_free = give_back,
    .copy = copy,
    .fill = fill,
    .sync = wait_for,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_ms = event_ms,
};
static struct device_stream stream;
static const struct device_link link_ = {&table, &device, &stream};
static const struct tune_card card = {{"Test Card 80GB (PCIe)", 9, 0, 13000}, 130100};

/* ---- one start of an engine ---- */
#define WORKSPACE ((size_t)1 << 20)
#define SIDE      32u

static unsigned char weights[2 * SIDE * SIDE * 2 + 2 * SIDE * 4] __attribute__((aligned(256)));
static unsigned char workspace[WORKSPACE] __attribute__((aligned(256)));
static const struct packed plain_matrix = {
    .data = weights,
    .n_out = SIDE,
    .n_in = SIDE,
    .dtype = DT_BF16,
};
static const struct packed gated_matrix = {
    .data = weights,
    .n_out = 2 * SIDE,
    .n_in = SIDE,
    .dtype = DT_BF16,
    .gated = 1,
};
static const struct packed half_matrix = {
    .data = weights,
    .n_out = SIDE,
    .n_in = SIDE,
    .dtype = DT_F16,
};
static const struct packed int8_matrix = {
    .data = weights,
    .n_out = SIDE,
    .n_in = SIDE,
    .dtype = DT_I8,
};
static const struct packed fp8_matrix = {
    .data = weights,
    .n_out = SIDE,
    .n_in = SIDE,
    .dtype = DT_F8_E4M3,
};
static const struct packed int4_matrix = {
    .data = weights,
    .n_out = SIDE,
    .n_in = SIDE,
    .dtype = DT_I8,
    .group = 32,
};

static void set_up(float own, float a0, float a1, float a2, float a3)
{
    const float all[] = {a0, a1, a2, a3};
    fake_lt = (struct fake_lt){.n_algo = FAKE_LT_ALGOS, .n_object = fake_lt.n_object, .ran = ran};
    memcpy(algo_ms, all, sizeof all);
    own_ms = own;
    device = (struct device){0};
    for (size_t i = 0; i < sizeof weights; i++) /* 0x3c3c: small, in bf16, f16 and f32 */
        weights[i] = (unsigned char)(0x3c + (i * 7 % 3 == 0));
}

static enum q_code start(const char *dir, const struct device_product *p, uint32_t n,
                         struct device_tuned *out, struct q_err *e)
{
    const struct kern_exec x = {
        .nth = 1,
        .scratch = workspace,
        .scratch_bytes = WORKSPACE,
        .stream = &stream,
    };
    const struct device_tuning what = {p, n, &x};
    assert_ok(lt_open(&emu_lt, &fake_lt_api, 64 << 10, e), e);
    const struct tuner t = {.lt = emu_lt, .link = &link_, .card = card, .dir = dir, .n_run = 2};
    enum q_code rc = tune_products(&t, &what, out, e);
    assert_int_equal(device.n_piece, 0);
    return rc;
}

static void stop(void)
{
    lt_close(emu_lt);
    emu_lt = NULL;
    assert_int_equal(fake_lt.n_object, 0);
}

static const struct device_product one_product = {
    .w = &plain_matrix,
    .x_dtype = DT_BF16,
    .y_dtype = DT_F32,
    .n_row_max = 40,
};
static const struct lt_shape one_shape = {
    .kind = LT_KIND_BF16,
    .n_out = SIDE,
    .n_in = SIDE,
    .target = LT_TO_Y,
};

/* The algorithm chosen for n_row rows of `one_product`; -1: our own kernel. */
static int chosen(uint32_t n_row)
{
    const struct lt_choice *c = lt_choice_of(emu_lt, &one_shape, n_row);
    return c ? (int)c->algo.data[0] : -1;
}

/* ---- choices ---- */
static void rows_are_taken_together(void **state)
{
    (void)state;
    assert_int_equal(lt_bucket_rows(0), 32);
    assert_int_equal(lt_bucket_rows(1), 48);
    assert_int_equal(lt_bucket_rows(2), 64);
    for (uint32_t n = LT_ROWS_MIN; n < 40000; n++) {
        const uint32_t b = lt_bucket(n);
        assert_true(b < LT_BUCKETS);
        assert_true(b + 1 == LT_BUCKETS || n <= lt_bucket_rows(b));
        assert_true(b == 0 || n > lt_bucket_rows(b - 1));
    }
}

static void the_fastest_is_chosen_and_kept(void **state)
{
    struct device_tuned out;
    struct q_err e = Q_ERR_INIT;
    struct folder f;
    char dir[PATH_MAX];
    (void)state;
    folder_init(&f);
    snprintf(dir, sizeof dir, "%s/a/b", f.path);
    set_up(10, 12, 8, 5, 9);
    assert_ok(start(dir, &one_product, 1, &out, &e), &e);
    assert_int_equal(out.n_made, 2); /* up to 32 rows, up to 40 */
    assert_int_equal(out.n_library, 2);
    assert_int_equal(out.n_wrong, 0);
    assert_string_equal(out.note, "");
    assert_int_equal(chosen(16), -1); /* few rows: always quire's kernel */
    assert_int_equal(chosen(17), 2);
    assert_int_equal(chosen(40), 2);
    assert_int_equal(chosen(49), -1); /* no choice was made */
    stop();
    const uint64_t n = fake_lt.n_matmul;
    assert_ok(start(dir, &one_product, 1, &out, &e), &e);
    assert_int_equal(out.n_kept, 2);
    assert_int_equal(out.n_made, 0);
    assert_int_equal(fake_lt.n_matmul, n); /* nothing was run again */
    assert_int_equal(chosen(33), 2);
    stop();
    struct device_product more = one_product;
    more.n_row_max = 60;
    assert_ok(start(dir, &more, 1, &out, &e), &e); /* only what is new */
    assert_int_equal(out.n_kept, 2);
    assert_int_equal(out.n_made, 1);
    stop();
    folder_release(&f);
}

static void wrong_and_refused_ones_are_not_chosen(void **state)
{
    struct device_tuned out;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    set_up(10, 6, 4, 2, 8);
    fake_lt.wrong = 1u << 2;
    fake_lt.refused = 1u << 1;
    assert_ok(start(NULL, &one_product, 1, &out, &e), &e);
    assert_int_equal(out.n_wrong, 2);
    assert_int_equal(chosen(40), 0);
    stop();
    set_up(10, 9.9f, 12, 30, 11); /* 9.9: not enough faster */
    assert_ok(start(NULL, &one_product, 1, &out, &e), &e);
    assert_int_equal(out.n_made, 2);
    assert_int_equal(out.n_library, 0);
    assert_int_equal(chosen(40), -1);
    stop();
}

static void every_kind_of_product(void **state)
{
    static const struct device_product all[] = {
        {&plain_matrix, DT_BF16, DT_F32, true, false, 20},
        {&plain_matrix, DT_BF16, DT_F32, false, true, 20},
        {&plain_matrix, DT_BF16, DT_F32, true, true, 20},
        {&gated_matrix, DT_BF16, DT_BF16, true, false, 20},
        {&half_matrix, DT_F16, DT_F32, true, false, 20},
        {&int8_matrix, DT_I8, DT_F32, true, true, 20},
        {&fp8_matrix, DT_F8_E4M3, DT_F32, true, false, 20},
        {&int4_matrix, DT_I8, DT_F32, false, false, 20},    /* not the library's */
        {&plain_matrix, DT_F32, DT_F32, false, false, 20},  /* nor mixed types */
        {&plain_matrix, DT_BF16, DT_F32, false, false, 16}, /* nor few rows */
    };
    struct device_tuned out;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    set_up(10, 1, 2, 3, 4);
    float *scales = (float *)(void *)(weights + int8_scales_at(SIDE, SIDE));
    for (uint32_t i = 0; i < SIDE; i++)
        scales[i] = 0.01f;
    assert_ok(start(NULL, all, sizeof all / sizeof *all, &out, &e), &e);
    assert_int_equal(out.n_wrong, 0);
    assert_int_equal(out.n_made, 7);
    assert_int_equal(out.n_library, 7);
    stop();
}

/* Rows and outputs of e4m3 have scales: the library multiplies by them where it can, else a kernel
 * of quire's does. */
static void scales_of_e4m3(void **state)
{
    static const struct device_product product = {&fp8_matrix, DT_F8_E4M3, DT_F32, true, true, 20};
    struct lt_shape shape = {LT_KIND_E4M3, SIDE, SIDE, LT_TO_Y, true, true, false};
    struct device_tuned out;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    for (int i = 0; i < 3; i++) {
        set_up(10, 4, 2, 3, 4);
        fake_lt.is_old = i == 1;
        fake_lt.no_scales = i == 2;
        float *scales = (float *)(void *)(weights + int8_scales_at(SIDE, SIDE));
        for (uint32_t k = 0; k < SIDE; k++)
            scales[k] = 0.01f;
        assert_ok(start(NULL, &product, 1, &out, &e), &e);
        lt_shape_settle(&shape);
        assert_int_equal(shape.target, LT_TO_Y);
        const struct lt_choice *c = lt_choice_of(emu_lt, &shape, 20);
        assert_non_null(c);
        assert_int_equal(c->algo.data[0], 1);
        assert_int_equal(c->by_sums, i > 0);
        assert_int_equal(out.n_wrong, 0);
        stop();
    }
}

static void without_memory_and_without_a_device(void **state)
{
    struct device_tuned out;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    for (uint32_t i = 1; i <= 7; i++) { /* two events, five pieces of memory */
        set_up(10, 1, 1, 1, 1);
        device.refused_in = i;
        assert_ok(start(NULL, &one_product, 1, &out, &e), &e);
        assert_non_null(strstr(out.note, "bytes for"));
        assert_int_equal(out.n_made, 0);
        assert_int_equal(chosen(40), -1);
        stop();
    }
    set_up(10, 1, 1, 1, 1);
    device.is_broken = true;
    assert_fails(start(NULL, &one_product, 1, &out, &e), Q_IO, "the device is gone", &e);
    stop();
}

/* ---- the file ---- */
static void make_table(struct tune_table *t, uint32_t n, uint32_t from)
{
    struct q_err e = Q_ERR_INIT;
    for (uint32_t i = from; i < from + n; i++) {
        struct tune_entry x = {
            .shape =
                {
                    .kind = (enum lt_kind)(i % LT_KINDS),
                    .n_out = 64 + i,
                    .n_in = 32,
                    .target = i % 2 ? LT_TO_Y : LT_TO_SUMS,
                    .has_bias = i % 3 == 1,
                    .accumulate = i % 5 == 1,
                    .gated = i % 4 == 2,
                },
            .bucket = i % LT_BUCKETS,
            .choice = {.is_own = i % 7 == 3},
        };
        lt_shape_settle(&x.shape);
        x.choice.by_sums = !x.choice.is_own && (x.shape.target == LT_TO_SUMS ||
                                                (x.shape.kind == LT_KIND_E4M3 && i % 8 == 7));
        for (uint32_t k = 0; k < 8 && !x.choice.is_own; k++)
            x.choice.algo.data[k] = UINT64_C(0x0123456789abcdef) * (k + i);
        x.choice.workspace_bytes = x.choice.is_own ? 0 : i * 1000;
        assert_ok(tune_add(t, &x, &e), &e);
    }
}

static void assert_same(const struct tune_table *a, const struct tune_table *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        const struct tune_entry *x = &a->entries[i];
        const struct tune_entry *y = tune_find(b, &x->shape, x->bucket);
        assert_non_null(y);
        assert_int_equal(x->choice.is_own, y->choice.is_own);
        assert_int_equal(x->choice.by_sums, y->choice.by_sums);
        assert_int_equal(x->choice.workspace_bytes, y->choice.workspace_bytes);
        assert_memory_equal(&x->choice.algo, &y->choice.algo, sizeof x->choice.algo);
    }
}

static void what_is_printed_is_read(void **state)
{
    struct tune_table t = TUNE_TABLE_INIT, back = TUNE_TABLE_INIT;
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    tune_print(&text, &t, &card); /* empty */
    assert_ok(tune_parse(&back, &card, text.data, text.len, &e), &e);
    assert_int_equal(back.n, 0);
    buf_reset(&text);
    make_table(&t, 100, 0);
    tune_print(&text, &t, &card);
    assert_ok(tune_parse(&back, &card, text.data, text.len, &e), &e);
    assert_same(&t, &back);
    buf_release(&text);
    tune_table_release(&t);
    tune_table_release(&back);
}

static void damage_is_noticed(void **state)
{
    struct tune_table t = TUNE_TABLE_INIT, back = TUNE_TABLE_INIT;
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    make_table(&t, 4, 0);
    tune_print(&text, &t, &card);
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 1;
        assert_int_not_equal(tune_parse(&back, &card, text.data, text.len, &e), Q_OK);
        text.data[i] ^= 1;
        assert_int_not_equal(tune_parse(&back, &card, text.data, i, &e), Q_OK);
        assert_int_equal(back.n, 0);
        assert_null(back.entries);
    }
    buf_release(&text);
    tune_table_release(&t);
}

static void of_another_machine(void **state)
{
    struct tune_table t = TUNE_TABLE_INIT;
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    struct tune_card other;
    (void)state;
    tune_print(&text, &t, &card);
#define OTHER(field, value, part) \
    other = card;                 \
    other.field = value;          \
    assert_fails(tune_parse(&t, &other, text.data, text.len, &e), Q_MISMATCH, part, &e)
    OTHER(card.name[0], 'B',
          "the file is for \"card Test Card 80GB (PCIe)\", this machine has \"card Best");
    OTHER(card.minor, 1, "the file is for \"capability 9.0\", this machine has \"capability 9.1\"");
    OTHER(card.driver, 13010, "driver 13010");
    OTHER(library, 120900, "library 120900");
    buf_release(&text);
}

static void two_writers(void **state)
{
    struct tune_table a = TUNE_TABLE_INIT, b = TUNE_TABLE_INIT, both = TUNE_TABLE_INIT;
    struct q_err e = Q_ERR_INIT;
    struct folder f;
    (void)state;
    folder_init(&f);
    make_table(&a, 10, 0);
    make_table(&b, 10, 5);
    make_table(&both, 15, 0);
    assert_ok(tune_save(&a, &card, f.path, &e), &e);
    assert_ok(tune_save(&b, &card, f.path, &e), &e); /* its own, and a's that it did not have */
    tune_table_release(&a);
    assert_ok(tune_load(&a, &card, f.path, &e), &e);
    assert_same(&a, &both);
    tune_table_release(&a);
    assert_fails(tune_load(&a, &card, "/nowhere", &e), Q_NOT_FOUND, "cannot open", &e);
    assert_fails(tune_save(&b, &card, "/proc/nowhere", &e), Q_IO, "cannot create the folder", &e);
    tune_table_release(&b);
    tune_table_release(&both);
    folder_release(&f);
}

static void a_damaged_file_costs_a_tuning(void **state)
{
    static const char name[] = "Test-Card-80GB--PCIe--9.0-driver13000-cublaslt130100.tune";
    struct device_tuned out;
    struct q_err e = Q_ERR_INIT;
    struct folder f;
    (void)state;
    folder_init(&f);
    set_up(10, 12, 8, 5, 9);
    folder_write(&f, name, "quire-tune 2\nnonsense\n", 22);
    assert_ok(start(f.path, &one_product, 1, &out, &e), &e);
    assert_non_null(strstr(out.note, "the checksum does not match"));
    assert_int_equal(out.n_made, 2);
    stop();
    assert_ok(start(f.path, &one_product, 1, &out, &e), &e);
    assert_string_equal(out.note, "");
    assert_int_equal(out.n_kept, 2);
    stop();
    assert_ok(start("/proc/nowhere", &one_product, 1, &out, &e), &e); /* it works all the same */
    assert_non_null(strstr(out.note, "cannot create the folder"));
    assert_int_equal(chosen(40), 2);
    stop();
    folder_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_taken_together),
        cmocka_unit_test(the_fastest_is_chosen_and_kept),
        cmocka_unit_test(wrong_and_refused_ones_are_not_chosen),
        cmocka_unit_test(every_kind_of_product),
        cmocka_unit_test(scales_of_e4m3),
        cmocka_unit_test(without_memory_and_without_a_device),
        cmocka_unit_test(what_is_printed_is_read),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(of_another_machine),
        cmocka_unit_test(two_writers),
        cmocka_unit_test(a_damaged_file_costs_a_tuning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
