/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are quantized already: every matrix of tests/data/quantized against what numpy
 * makes of it, to the bit; what the kernels compute with it; the logits against those of the
 * dequantized model; and what is refused. */
#include "engine/model/load/weight_quant.h"
#include "engine/model/load/load_form.h"
#include "engine/model/load/weight_codes.h"
#include "engine/model/load/weight_finder.h"
#include "golden.h"
#include "plain_twin.h"
#include "tensor_bytes.h"

#define DATA       "tests/data/quantized/"
#define N_TOKEN    40u
#define VOCAB      96u
#define MATRIX     (96u * 96u)
#define PACKED_MAX (1u << 16)

static struct q_err e;

struct quant_case {
    const char *name;
    enum quantization quantization;
    uint32_t group; /* of q, k, v in the kernels' layout; 0 = int8 */
    double rms_max; /* of the logits' differences: activations are int8 */
};
static const struct quant_case cases[] = {
    {"gptq-4", QUANTIZE_INT4, 32, 0.05},        {"gptq-4-asym", QUANTIZE_INT4, 32, 0.05},
    {"gptq-4-v2-row", QUANTIZE_INT4, 64, 0.05}, {"gptq-4-act", QUANTIZE_INT4, 32, 0.05},
    {"gptq-8-act", QUANTIZE_INT8, 0, 0.05},     {"gptq-4-act-one", QUANTIZE_INT4, 32, 0.05},
    {"awq-4", QUANTIZE_INT4, 32, 0.05},         {"packed-4", QUANTIZE_INT4, 32, 0.05},
    {"packed-4-asym", QUANTIZE_INT4, 32, 0.05}, {"packed-8-row", QUANTIZE_INT8, 0, 0.05},
    {"int8", QUANTIZE_INT8, 0, 0.05},           {"fp8", QUANTIZE_NOT, 0, 1e-6},
    {"fp8-channel", QUANTIZE_NOT, 0, 1e-6},     {"fp8-block", QUANTIZE_NOT, 0, 1e-6},
    {"auto-round", QUANTIZE_INT4, 32, 0.05},    {"packed-mixed", QUANTIZE_INT4, 32, 0.05},
    {"fp4-packed", QUANTIZE_NOT, 0, 1e-6},      {"fp4-modelopt", QUANTIZE_NOT, 0, 1e-6},
    {"bnb-nf4", QUANTIZE_NOT, 0, 1e-6},         {"bnb-fp4", QUANTIZE_NOT, 0, 1e-6},
    {"bnb-int8", QUANTIZE_INT8, 0, 0.05},       {"torchao-int8", QUANTIZE_INT8, 0, 0.05},
    {"torchao-fp8", QUANTIZE_NOT, 0, 1e-6},     {"awq-gemv", QUANTIZE_INT4, 32, 0.05},
    {"torchao-intx", QUANTIZE_INT4, 32, 0.05},  {"torchao-intx-asym", QUANTIZE_INT4, 32, 0.05},
    {"torchao-mixed", QUANTIZE_NOT, 0, 1e-6},   {"torchao-tiles", QUANTIZE_NOT, 0, 1e-6},
    {"fp8-block-e8m0", QUANTIZE_NOT, 0, 1e-6},  {"packed-bits", QUANTIZE_INT4, 32, 0.05},
    {"packed-7", QUANTIZE_INT8, 0, 0.05},       {"packed-3-older", QUANTIZE_INT4, 32, 0.05},
    {"packed-5-older", QUANTIZE_INT8, 0, 0.05}, {"w4a8", QUANTIZE_INT4, 32, 0.05},
    {"w4a8-asym", QUANTIZE_INT4, 32, 0.05},     {"hqq-4", QUANTIZE_NOT, 0, 1e-6},
    {"hqq-mixed", QUANTIZE_NOT, 0, 1e-6},       {"auto-round-ragged", QUANTIZE_INT4, 64, 0.05},
    {"packed-embed", QUANTIZE_INT4, 32, 0.05},  {"int8-tied", QUANTIZE_INT8, 0, 0.05},
};
#define N_CASE (sizeof cases / sizeof *cases)

/* Of experts: each has orders of inputs of its own. Another expert for a token moves its logits
 * far. */
static const struct quant_case experts[] = {
    {"experts-gptq-4-act", QUANTIZE_INT4, 32, 0.03},
    {"experts-awq-4", QUANTIZE_INT4, 32, 0.03},
};
#define N_EXPERTS (sizeof experts / sizeof *experts)

struct opened {
    struct model_config config;
    const struct arch *arch;
    struct tensor_set *files;
    struct weight_source sources[W_COUNT];
};

static void open_dir(struct opened *f, const char *dir)
{
    assert_ok(model_config_load(&f->config, NULL, dir, &e), &e);
    assert_ok(arch_find(&f->arch, f->config.architecture, &e), &e);
    assert_ok(tensor_set_open(&f->files, dir, &e), &e);
    const struct weight_finder finder = {.arch = f->arch, .config = &f->config, .files = f->files};
    assert_ok(weight_finder_find(f->sources, &finder, 0, &e), &e);
}

static void open_folder(struct opened *f, const char *name)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, DATA "%s", name);
    open_dir(f, dir);
}

/* x[i] = 1 at input i, as int8: y[i,o] is W[o,i]. */
static void multiply_out(float *y, const struct packed *w)
{
    static float x[96 * 96];
    static _Alignas(64) int8_t q[96 * 128];
    static struct quant_row rows[96];
    static int16_t sums[96 * 4];
    static _Alignas(64) unsigned char scratch[1 << 21];
    struct kern_table kern;
    const struct kern_exec alone = {.nth = 1, .scratch = scratch, .scratch_bytes = sizeof scratch};
    const uint32_t n = w->n_in;
    kern_table_cpu(&kern, kern_caps_machine());
    memset(x, 0, sizeof x);
    for (uint32_t i = 0; i < n; i++)
        x[i * n + i] = 1;
    struct quant_rows_args a = {
        .q = q,
        .rows = rows,
        .sums = sums,
        .x = x,
        .n_row = n,
        .n_col = n,
        .x_stride = n,
    };
    a.q_stride = 128;
    a.order = w->order;
    kern.quant_rows(&a, &alone);
    assert_true(kern_scratch_bytes(64, 4, 16) <= sizeof scratch);
    struct linear_w4a8_args product = {
        .by =
            {
                .y = y,
                .x = q,
                .rows = rows,
                .w = *w,
                .n_row = n,
                .x_stride = 128,
                .y_stride = w->n_out,
            },
        .sums = sums,
    };
    if (w->group)
        kern.linear_w4a8(&product, &alone);
    else
        kern.linear_int8(&product.by, &alone);
}

/* As fill_host.c does it. w->data: PACKED_MAX bytes. */
static void pack_matrix(struct packed *w, const struct weight_source *s)
{
    static uint32_t order[96];
    static float buffer[MATRIX];
    if (w->group && s->quant.order) {
        weight_quant_order(order, s);
        w->order = order;
    }
    assert_true(load_form_bytes(w, NULL) <= PACKED_MAX);
    for (uint32_t o = 0; o < s->rows; o += 32)
        weight_quant_set(w, o, s, o, 32, buffer);
}

/* As it is packed without going through floats. */
static void check_packed(const struct weight_source *s, const float *want)
{
    static float y[MATRIX];
    static _Alignas(64) unsigned char data[PACKED_MAX];
    struct packed w = {
        .data = data,
        .n_out = s->rows,
        .n_in = s->cols,
        .dtype = DT_I8,
        .group = weight_quant_group(s),
    };
    if (!w.group && !weight_quant_is_int8(s))
        return;
    pack_matrix(&w, s);
    multiply_out(y, &w);
    for (uint32_t o = 0; o < s->rows; o++)
        for (uint32_t k = 0; k < s->cols; k++) {
            double got = y[k * s->rows + o], is = want[o * s->cols + k];
            if (!(fabs(got - is) <= 2e-7 * fabs(is)))
                fail_msg("W[%u,%u] multiplies as %g, expected %g", o, k, got, is);
        }
}

/* As codes, where the source has such a form: multiplied by 1 at one input at a time. */
static bool check_codes(const struct weight_source *s, const float *want)
{
    static float x[MATRIX], y[MATRIX], buffer[96];
    static _Alignas(64) unsigned char data[PACKED_MAX], scratch[1 << 21];
    const struct kern_exec alone = {.nth = 1, .scratch = scratch, .scratch_bytes = sizeof scratch};
    struct kern_table kern;
    struct packed w = {.data = data, .n_out = s->rows, .n_in = s->cols, .dtype = DT_F32};
    if (!weight_codes_form(&w.codes, s))
        return false;
    kern_table_cpu(&kern, kern_caps_machine());
    assert_true(load_form_bytes(&w, NULL) <= PACKED_MAX);
    weight_codes_set(&w, 0, s, 0, s->rows, buffer);
    memset(x, 0, sizeof x);
    for (uint32_t i = 0; i < s->cols; i++)
        x[i * s->cols + i] = 1;
    const struct linear_codes_args product = {
        .by =
            {
                .y = y,
                .x = x,
                .w = w,
                .n_row = s->cols,
                .x_stride = s->cols,
                .y_stride = s->rows,
            },
    };
    kern.linear_codes(&product, &alone);
    for (uint32_t o = 0; o < s->rows; o++)
        for (uint32_t k = 0; k < s->cols; k++)
            if (y[k * s->rows + o] != want[o * s->cols + k])
                fail_msg("W[%u,%u] multiplies as %a, expected %a", o, k, (double)y[k * s->rows + o],
                         (double)want[o * s->cols + k]);
    return true;
}

/* Which matrices keep their bits as codes: bitsandbytes' blocks of 64 do not divide the 96 inputs
 * of down_proj, and e4m3 are none. */
static bool expects_codes(const char *name, enum arch_slot slot)
{
    if (strncmp(name, "bnb-", 4) == 0)
        return strcmp(name, "bnb-int8") != 0 && slot != W_DOWN;
    if (strcmp(name, "torchao-mixed") == 0)
        return slot != W_O; /* e4m3 */
    if (strcmp(name, "fp4-modelopt") == 0)
        return slot != W_O && slot != W_DOWN;
    return strncmp(name, "hqq-", 4) == 0 || strcmp(name, "fp4-packed") == 0 ||
           strcmp(name, "torchao-tiles") == 0;
}

static void matrices_are_numpys(void **state)
{
    static const enum arch_slot slots[] = {W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN};
    const struct quant_case *c = *state;
    static struct opened stored, plain;
    static float got[MATRIX], want[MATRIX];
    struct folder twin;
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, DATA "%s", c->name);
    plain_twin(&twin, dir);
    open_folder(&stored, c->name);
    open_dir(&plain, twin.path);
    assert_int_equal(weight_quant_group(&stored.sources[W_Q]), c->group);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        const struct weight_source *s = &stored.sources[slots[i]];
        memcpy(want, plain.sources[slots[i]].tensor->data,
               (size_t)s->rows * s->cols * sizeof *want); /* a file's tensors are not aligned */
        assert_non_null(s->quant.q);
        weight_quant_rows(got, s, 0, s->rows);
        assert_memory_equal(got, want, (size_t)s->rows * s->cols * sizeof *got);
        check_packed(s, want);
        assert_int_equal(check_codes(s, want), expects_codes(c->name, slots[i]));
    }
    tensor_set_free(stored.files);
    tensor_set_free(plain.files);
    folder_release(&twin);
}

/* y[o] of one row by the definition: integers of a group, wherever its inputs are, groups
 * ascending. */
static float defined(const struct weight_source *s, uint32_t o, const int8_t *x)
{
    const struct quant_tensors *q = &s->quant;
    float acc = 0;
    for (uint32_t g = 0; g < q->n_group; g++) {
        uint16_t half;
        uint32_t zeros;
        int32_t sum = 0;
        memcpy(&half, (const char *)q->scales->data + ((size_t)g * s->rows + o) * 2, sizeof half);
        memcpy(&zeros, (const char *)q->zeros->data + ((size_t)g * s->rows + o) / 8 * 4, 4);
        const int32_t zero = (int32_t)(zeros >> o % 8 * 4 & 15) + (int32_t)q->zero_offset;
        for (uint32_t k = 0; k < s->cols; k++) {
            uint32_t of, all;
            memcpy(&of, (const char *)q->order->data + k * sizeof of, sizeof of);
            memcpy(&all, (const char *)q->q->data + ((size_t)(k / 8) * s->rows + o) * 4, 4);
            sum += of == g ? x[k] * ((int32_t)(all >> k % 8 * 4 & 15) - zero) : 0;
        }
        acc = fmaf(f16_to_f32(half), (float)sum, acc);
    }
    return acc;
}

/* A row through quant_rows and linear_w4a8 of act-order weights, against the definition, bit for
 * bit. */
static void check_product(const struct kern_table *kern, const struct weight_source *s)
{
    static _Alignas(64) unsigned char data[PACKED_MAX], scratch[1 << 21];
    static _Alignas(64) int8_t q[128], plain[128];
    float x[96], y[96];
    int16_t sums[4];
    struct quant_row row, of_plain;
    uint64_t state = 5;
    const struct kern_exec alone = {.nth = 1, .scratch = scratch, .scratch_bytes = sizeof scratch};
    struct packed w = {
        .data = data,
        .n_out = s->rows,
        .n_in = s->cols,
        .dtype = DT_I8,
        .group = weight_quant_group(s),
    };
    pack_matrix(&w, s);
    for (uint32_t k = 0; k < s->cols; k++)
        x[k] = (float)(run_random(&state) % 2001) / 1000 - 1;
    struct quant_rows_args a = {
        .q = plain,
        .rows = &of_plain,
        .x = x,
        .n_row = 1,
        .n_col = s->cols,
        .x_stride = 96,
        .q_stride = 128,
    };
    kern->quant_rows(&a, &alone);
    a.q = q;
    a.rows = &row;
    a.sums = sums;
    a.order = w.order;
    kern->quant_rows(&a, &alone);
    const struct linear_w4a8_args product = {
        .by = {.y = y, .x = q, .rows = &row, .w = w, .n_row = 1, .x_stride = 128, .y_stride = 96},
        .sums = sums,
    };
    kern->linear_w4a8(&product, &alone);
    for (uint32_t o = 0; o < s->rows; o++) {
        const float want = defined(s, o, plain) * of_plain.scale;
        if (memcmp(&want, &y[o], sizeof want) != 0)
            fail_msg("y[%u] is %a, by the definition %a", o, (double)y[o], (double)want);
    }
}

static void act_order_multiplies_as_defined(void **state)
{
    static const char *const names[] = {"gptq-4-act", "gptq-4-act-one"};
    static const enum arch_slot slots[] = {W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN};
    static const uint32_t caps[] = {~0u, CAP_AVX2, CAP_NONE};
    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        static struct opened f;
        open_folder(&f, names[n]);
        for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
            for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
                struct kern_table kern;
                kern_table_cpu(&kern, caps[c]);
                assert_int_equal(weight_quant_group(&f.sources[slots[i]]), 32);
                assert_non_null(f.sources[slots[i]].quant.order);
                check_product(&kern, &f.sources[slots[i]]);
            }
        const bool one = weight_quant_same_order(&f.sources[W_Q], &f.sources[W_K]);
        assert_int_equal(one, n == 1);
        tensor_set_free(f.files);
    }
}

/* All matrices of a model whose fused ones agree on an order stay in 4 bits; the others' fused ones
 * become int8. */
static void act_order_takes_four_bits(void **state)
{
    static const char *const names[] = {"gptq-4-asym", "gptq-4-act-one", "gptq-4-act"};
    uint64_t bytes[3];
    struct kern_table kern;
    (void)state;
    kern_table_cpu(&kern, kern_caps_machine());
    for (size_t i = 0; i < 3; i++) {
        char dir[PATH_MAX];
        struct model *m = NULL;
        snprintf(dir, sizeof dir, DATA "%s", names[i]);
        struct model_options o = {.dir = dir, .dtype = DT_F32, .kern = &kern};
        assert_ok(model_load(&m, &o, &e), &e);
        bytes[i] = model_shape(m)->step_bytes;
        model_free(m);
    }
    assert_int_equal(bytes[1], bytes[0]);
    assert_true(bytes[2] > bytes[0]);
}

static void logits_of(float *out, const char *dir, uint32_t caps, enum quantization want)
{
    struct runner r;
    struct runner_options o = {.dir = dir, .n_thread = 2, .caps = caps, .dtype = DT_F32};
    uint32_t ids[N_TOKEN];
    uint64_t state = 3;
    for (uint32_t i = 0; i < N_TOKEN; i++)
        ids[i] = (uint32_t)(run_random(&state) % VOCAB);
    assert_ok(runner_open(&r, &o, &e), &e);
    assert_int_equal(model_shape(r.model)->quantization, want);
    run_prompt(&r, ids, N_TOKEN, 17, out);
    runner_close(&r);
}

static void logits_are_of_the_dequantized(void **state)
{
    const struct quant_case *c = *state;
    static float want[N_TOKEN * VOCAB], got[N_TOKEN * VOCAB], other[N_TOKEN * VOCAB];
    struct folder twin;
    char dir[PATH_MAX];
    double error = 0, size = 0;
    snprintf(dir, sizeof dir, DATA "%s", c->name);
    plain_twin(&twin, dir);
    logits_of(want, twin.path, kern_caps_machine(), QUANTIZE_NOT);
    folder_release(&twin);
    logits_of(got, dir, kern_caps_machine(), c->quantization);
    for (uint32_t i = 0; i < N_TOKEN * VOCAB; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    print_message("%s: logits differ by %.4f of their rms\n", c->name, sqrt(error / size));
    assert_true(error > 0 || c->quantization == QUANTIZE_NOT); /* fp8 is made floats, exactly */
    if (!(sqrt(error / size) <= c->rms_max))
        fail_msg("%s: logits differ by %.4f of their rms, at most %.4f is accepted", c->name,
                 sqrt(error / size), c->rms_max);
    logits_of(other, dir, kern_caps_machine() & CAP_AVX2, c->quantization);
    double d = difference(other, got, N_TOKEN * VOCAB);
    if (d > 1e-4 * abs_max(got, N_TOKEN * VOCAB)) /* attention's exp is not the same */
        fail_msg("%s: AVX2's logits differ by %g", c->name, d);
}

/* The logits of the dequantized model, by transformers. */
static void check_golden(const char *dir, double rms_max)
{
    static float logits[RUN_TOKENS_MAX * 512];
    struct golden g;
    struct runner r;
    double error = 0, size = 0;
    struct runner_options o = {
        .dir = dir,
        .n_thread = 1,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
    };
    assert_ok(golden_open(&g, dir, &e), &e);
    assert_ok(runner_open(&r, &o, &e), &e);
    const uint32_t vocab = model_shape(r.model)->vocab_size;
    const json_t *prompts = json_object_get(g.root, "prompts");
    assert_true(vocab <= 512);
    for (uint32_t p = 0; p < json_array_size(prompts); p++) {
        static uint32_t ids[RUN_TOKENS_MAX];
        uint32_t n = golden_ids(ids, json_object_get(json_array_get(prompts, p), "ids"));
        const float *want = golden_array(&g, p, "logits_last")->data;
        run_prompt(&r, ids, n, n, logits);
        const float *got = logits + (size_t)(n - 1) * vocab;
        for (uint32_t v = 0; v < vocab; v++) {
            error += ((double)got[v] - want[v]) * ((double)got[v] - want[v]);
            size += (double)want[v] * want[v];
        }
    }
    print_message("%s: logits differ by %.4f of their rms\n", strrchr(dir, '/') + 1,
                  sqrt(error / size));
    if (!(sqrt(error / size) < rms_max))
        fail_msg("%s: logits differ by %.4f of their rms, at most %.4f is accepted", dir,
                 sqrt(error / size), rms_max);
    runner_close(&r);
    golden_close(&g);
}

static void goldens(void **state)
{
    static const char *const names[] = {"llama-gptq", "llama-gptq-act8", "qwen2-awq",
                                        "llama-torchao-int8-int4"};
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, GOLDEN_DIR "/%s", names[m]);
        check_golden(dir, 0.09);
    }
}

/* Of tests/differential/quantized.py: floats are off by rounding, integers by 8-bit activations. */
static void golden_of_folder(void **state)
{
    struct model_config c;
    assert_ok(model_config_load(&c, NULL, *state, &e), &e);
    /* compressed-tensors gives what nvfp4 stands for in bfloat16 */
    const double rounded = c.quant.method == QUANT_FP4 ? 0.03 : 1e-4;
    const bool by_ints = c.quant.method != QUANT_FP8 && !quant_config_becomes_floats(&c.quant);
    check_golden(*state, by_ints ? 0.1 : rounded);
}

/* A folder with the tensors of `from`, byte `at` of tensor `name` on replaced, and a config.json in
 * which `old` has become `new`. */
struct damage {
    const char *from, *old, *new, *name;
    size_t at;
    const char *bytes;
    size_t n;
    enum q_code code;
    const char *part; /* of the message */
};

static void write_damaged(const struct folder *f, const struct damage *d)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT, data = BUF_INIT, out = BUF_INIT;
    struct tensor_set *s;
    snprintf(path, sizeof path, DATA "%s/config.json", d->from);
    assert_ok(file_read(&text, path, 1 << 20, &e), &e);
    const char *at = d->old ? strstr(buf_str(&text), d->old) : NULL;
    assert_true(!d->old || at);
    size_t before = d->old ? (size_t)(at - text.data) : text.len;
    buf_add(&out, text.data, before);
    if (d->old) {
        buf_add(&out, d->new, strlen(d->new));
        buf_add(&out, at + strlen(d->old), text.len - before - strlen(d->old));
    }
    folder_write(f, "config.json", out.data, out.len);
    snprintf(path, sizeof path, DATA "%s/model.safetensors", d->from);
    assert_ok(file_read(&data, path, 1 << 24, &e), &e);
    if (d->name) {
        snprintf(path, sizeof path, DATA "%s", d->from);
        assert_ok(tensor_set_open(&s, path, &e), &e);
        const struct tensor *t = tensor_find(s, d->name);
        assert_non_null(t);
        memcpy(tensor_bytes_at(&data, s, t) + d->at, d->bytes, d->n);
        tensor_set_free(s);
    }
    folder_write(f, "model.safetensors", data.data, data.len);
    buf_release(&text);
    buf_release(&data);
    buf_release(&out);
}

static void check_refused(const struct damage *d)
{
    struct folder f;
    struct model *m = NULL;
    struct kern_table kern;
    kern_table_cpu(&kern, kern_caps_machine());
    folder_init(&f);
    write_damaged(&f, d);
    struct model_options o = {.dir = f.path, .dtype = DT_F32, .kern = &kern};
    assert_fails(model_load(&m, &o, &e), d->code, d->part, &e);
    folder_release(&f);
}

#define Q_PROJ "model.layers.0.self_attn.q_proj."
static void damaged_codes_are_refused(void **state)
{
    static const struct damage all[] = {
        {"auto-round", "\"extra_config\"", "\"other\"", NULL, 0, NULL, 0, Q_MISMATCH,
         "self_attn.o_proj.qweight has shape [6, 64], expected [8, 64]"},
        {"bnb-nf4", NULL, NULL, Q_PROJ "weight.quant_state.bitsandbytes__nf4", 0, "[", 1, Q_CORRUPT,
         Q_PROJ "weight.quant_state.bitsandbytes__nf4"},
        {"bnb-nf4", "\"intermediate_size\": 96", "\"intermediate_size\": 64", NULL, 0, NULL, 0,
         Q_MISMATCH, "mlp.gate_proj.weight has shape [96, 64], expected [64, 64]"},
        {"bnb-fp4", NULL, NULL, Q_PROJ "weight.absmax", 4, "\0\0\x80\x7f", 4, Q_CORRUPT,
         Q_PROJ "weight.absmax: scale 1 is not finite"},
        {"bnb-int8", NULL, NULL, Q_PROJ "SCB", 4, "\0\0\x80\x7f", 4, Q_CORRUPT,
         Q_PROJ "SCB: scale 1 is not finite"},
        {"fp4-packed", NULL, NULL, Q_PROJ "weight_scale", 0, "\x7f", 1, Q_CORRUPT,
         Q_PROJ "weight_scale: the scale of output 0, group 0 is not finite"},
        {"torchao-intx-asym", NULL, NULL, Q_PROJ "_weight_zero_point", 0, "\x08", 1, Q_CORRUPT,
         Q_PROJ "_weight_zero_point: zero point 0 is 8, expected -8 to 7"},
        {"torchao-intx", "\"intermediate_size\": 96", "\"intermediate_size\": 64", NULL, 0, NULL, 0,
         Q_MISMATCH, "gate_proj._weight_qdata has neither the shape [64, 64] of int8 nor [64, 32]"},
        {"torchao-tiles", NULL, NULL, Q_PROJ "_weight_scale_and_zero", 4, "\x80\x7f", 2, Q_CORRUPT,
         Q_PROJ "_weight_scale_and_zero: scale 2 is not finite"},
        {"torchao-tiles", "\"intermediate_size\": 96", "\"intermediate_size\": 64", NULL, 0, NULL,
         0, Q_MISMATCH, "gate_proj._weight_qdata has shape [12, 8, 32, 4], expected [8, 8, 32, 4]"},
        {"torchao-tiles", "TILE_PACKED_TO_4D", "MARLIN_SPARSE", NULL, 0, NULL, 0, Q_UNSUPPORTED,
         "torchao's int4_packing_format \"MARLIN_SPARSE\" is not supported, expected plain or "
         "tile"},
        {"torchao-tiles", "\"int4_tile_packed_ntile\": 8", "\"int4_tile_packed_ntile\": 16", NULL,
         0, NULL, 0, Q_UNSUPPORTED, "with an int4_tile_packed_ntile of ROCm is not supported"},
        {"torchao-int8", NULL, NULL, Q_PROJ "_weight_scale", 4, "\0\0\x80\x7f", 4, Q_CORRUPT,
         Q_PROJ "_weight_scale: scale 1 is not finite"},
        {"fp8-block-e8m0", NULL, NULL, Q_PROJ "weight_scale_inv", 0, "\xff", 1, Q_CORRUPT,
         "weight_scale_inv: scale 0 is not finite"},
        {"packed-7", "\"num_bits\": 7", "\"num_bits\": 8", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "weight_packed has shape [64, 14], expected [64, 16]"},
        {"w4a8-asym", NULL, NULL, Q_PROJ "weight_zero_point", 0, "\x08", 1, Q_CORRUPT,
         Q_PROJ "weight_zero_point: zero point 0 is 8, expected -8 to 7"},
        {"w4a8", "\"intermediate_size\": 96", "\"intermediate_size\": 64", NULL, 0, NULL, 0,
         Q_MISMATCH, "mlp.gate_proj.weight has shape [96, 64], expected [64, 64]"},
        {"hqq-4", NULL, NULL, Q_PROJ "zero", 2, "\0\x7e", 2, Q_CORRUPT,
         Q_PROJ "scale: scale 1, or its zero point, is not finite"},
        {"hqq-4", "\"axis\": 1", "\"axis\": 0", NULL, 0, NULL, 0, Q_UNSUPPORTED,
         "hqq with axis 0 is not supported"},
        {"hqq-4", "\"intermediate_size\": 96", "\"intermediate_size\": 64", NULL, 0, NULL, 0,
         Q_MISMATCH,
         "mlp.gate_proj.W_q has shape [96, 32], which are no integers of 2, 3, 4 or 8 bits of a "
         "matrix [64, 64]"},
        {"hqq-mixed", "\"intermediate_size\": 96", "\"intermediate_size\": 80", NULL, 0, NULL, 0,
         Q_MISMATCH, "mlp.gate_proj.W_q has shape"},
        {"fp4-modelopt", NULL, NULL, Q_PROJ "weight_scale_2", 0, "\0\0\0\0", 4, Q_CORRUPT,
         Q_PROJ "weight_scale_2 is 0, expected a number above 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_refused(&all[i]);
}

static void damaged_is_refused(void **state)
{
    static const struct damage all[] = {
        {"gptq-4", "\"group_size\": 32", "\"group_size\": 64", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "scales has shape [2, 64], expected [1, 64]"},
        {"gptq-4", "\"bits\": 4", "\"bits\": 8", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "qweight has shape [8, 64], expected [16, 64]"},
        {"awq-4", "\"hidden_size\": 64", "\"hidden_size\": 72", NULL, 0, NULL, 0, Q_MISMATCH,
         "expected [96, 72]"},
        {"packed-4", "\"symmetric\": true", "\"symmetric\": false", NULL, 0, NULL, 0, Q_NOT_FOUND,
         Q_PROJ "weight_zero_point is missing"},
        {"gptq-4-act", NULL, NULL, Q_PROJ "g_idx", 0, "\x02\0\0\0", 4, Q_CORRUPT,
         Q_PROJ "g_idx: input 0 is in group 2, expected 0 to 1"},
        {"gptq-4-act", NULL, NULL, Q_PROJ "g_idx", 4, "\xff\xff\xff\xff", 4, Q_CORRUPT,
         "input 1 is in group -1"},
        {"awq-4", NULL, NULL, Q_PROJ "scales", 2, "\0\x7e", 2, Q_CORRUPT,
         Q_PROJ "scales: scale 1 is not finite"},
        {"int8", "\"int-quantized\"", "\"float-quantized\"", NULL, 0, NULL, 0, Q_UNSUPPORTED,
         "type \"int\" are not supported, expected float"},
        {"awq-gemv", "\"gemv\"", "\"gemm\"", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "scales has shape [64, 32], expected [2, 64]"},
        {"awq-4", "\"gemm\"", "\"GEMV\"", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "scales has shape [2, 64], expected [64, 64]"},
        {"awq-4", "\"awq\"", "\"exl2\"", NULL, 0, NULL, 0, Q_UNSUPPORTED, "quant_method exl2"},
        {"fp8-channel", "\"float\"", "\"int\"", NULL, 0, NULL, 0, Q_UNSUPPORTED,
         "type \"int\" are not supported, expected float"},
        {"fp8-channel", "\"num_bits\": 8", "\"num_bits\": 4", NULL, 0, NULL, 0, Q_UNSUPPORTED,
         "float-quantized weights with 4 bits"},
        {"fp8-channel", "\"channel\"", "\"group\"", NULL, 0, NULL, 0, Q_UNSUPPORTED,
         "expected 8 bits, strategy tensor, channel or block"},
        {"fp8-channel", "\"channel\"", "\"block\"", NULL, 0, NULL, 0, Q_CORRUPT,
         "block_structure is missing"},
        {"fp8-block", "\"e4m3\"", "\"e5m2\"", NULL, 0, NULL, 0, Q_UNSUPPORTED, "fmt \"e5m2\""},
        {"fp8-block", "\"weight_block_size\"", "\"other\"", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "weight_scale_inv has neither one scale nor one for each of 64 outputs"},
        {"fp8-block", "48", "64", NULL, 0, NULL, 0, Q_MISMATCH,
         Q_PROJ "weight_scale_inv does not have a scale for each 32 x 64 of 64 x 64"},
        {"fp8", "\"fp8\"", "\"fp8\", \"weight_block_size\": [0, 1]", NULL, 0, NULL, 0, Q_CORRUPT,
         "weight_block_size is not a list of two numbers"},
        {"fp8", NULL, NULL, Q_PROJ "weight_scale", 0, "\0\0\xc0\x7f", 4, Q_CORRUPT,
         Q_PROJ "weight_scale: scale 0 is not finite"},
    };
    struct kern_table kern;
    (void)state;
    kern_table_cpu(&kern, kern_caps_machine());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_refused(&all[i]);
    struct model *m = NULL;
    struct model_options o = {
        .dir = DATA "awq-4",
        .dtype = DT_F32,
        .kern = &kern,
        .quantization = QUANTIZE_INT8,
    };
    assert_fails(model_load(&m, &o, &e), Q_INVALID, "quantized already (awq, 4 bits)", &e);
    o.dir = DATA "torchao-int8";
    assert_fails(model_load(&m, &o, &e), Q_INVALID, "quantized already (torchao, 8 bits)", &e);
    o.dir = DATA "fp8";
    assert_fails(model_load(&m, &o, &e), Q_INVALID, "quantized already (fp8, 8 bits)", &e);
    o.quantization = QUANTIZE_FP8; /* what it is */
    assert_ok(model_load(&m, &o, &e), &e);
    model_free(m);
    struct folder twin;
    plain_twin(&twin, DATA "fp8");
    o.dir = twin.path;
    assert_fails(model_load(&m, &o, &e), Q_UNSUPPORTED, "fp8 is not supported on the CPU", &e);
    folder_release(&twin);
}

/* A tensor X.scales without X.qweight: what AutoAWQ divides an activation by. */
static void scaled_activations_are_refused(void **state)
{
    static const char from[] = "mlp.up_proj.scales", to[] = "mlp.act.one.scales";
    struct folder f;
    struct buf config = BUF_INIT, data = BUF_INIT;
    struct model *m = NULL;
    struct kern_table kern;
    (void)state;
    kern_table_cpu(&kern, kern_caps_machine());
    folder_init(&f);
    assert_ok(file_read(&config, DATA "awq-4/config.json", 1 << 20, &e), &e);
    assert_ok(file_read(&data, DATA "awq-4/model.safetensors", 1 << 24, &e), &e);
    char *name = memmem(data.data, data.len, from, sizeof from - 1);
    assert_non_null(name);
    memcpy(name, to, sizeof to - 1);
    folder_write(&f, "config.json", config.data, config.len);
    folder_write(&f, "model.safetensors", data.data, data.len);
    struct model_options o = {.dir = f.path, .dtype = DT_F32, .kern = &kern};
    assert_fails(model_load(&m, &o, &e), Q_UNSUPPORTED,
                 "mlp.act.one.scales divides activations (AutoAWQ's scaled activation)", &e);
    buf_release(&config);
    buf_release(&data);
    folder_release(&f);
}

/* GPTQ's first format: zero points of 8 outputs are an int32, less 0x11111111. A zero of 0 has
 * borrowed of the next one. */
static void first_format_borrows(void **state)
{
    static const struct damage zero = {
        .from = "gptq-4-asym",
        .name = Q_PROJ "qzeros",
        .bytes = "\x6f\x77\x77\x77", /* of 0, 8, 8, 8, 8, 8, 8, 8 */
        .n = 4,
    };
    static struct opened plain, made;
    static float want[MATRIX], got[MATRIX];
    struct folder f;
    (void)state;
    folder_init(&f);
    write_damaged(&f, &zero);
    open_folder(&plain, "gptq-4-asym");
    open_dir(&made, f.path);
    const struct weight_source *s = &plain.sources[W_Q];
    weight_quant_rows(want, s, 0, s->rows);
    weight_quant_rows(got, &made.sources[W_Q], 0, s->rows);
    for (uint32_t o = 0; o < 8; o++) {
        uint16_t scale;
        memcpy(&scale, (const char *)s->quant.scales->data + 2 * o, sizeof scale);
        const uint8_t *zeros = s->quant.zeros->data;
        const int before = (zeros[o / 2] >> o % 2 * 4 & 15) + 1, after = o ? 8 : 0;
        for (uint32_t k = 0; k < 32; k++) /* exact: a few bits more than a half's */
            want[o * s->cols + k] += (float)(before - after) * f16_to_f32(scale);
    }
    assert_memory_equal(got, want, (size_t)s->rows * s->cols * sizeof *got);
    tensor_set_free(plain.files);
    tensor_set_free(made.files);
    folder_release(&f);
}

/* Of a matrix's inputs: what is used is checked, and what the config rules out is not. */
static void scales_of_inputs_are_checked(void **state)
{
    static const struct damage all[] = {
        {"fp8", NULL, NULL, Q_PROJ "input_scale", 0, "\0\0\xc0\x7f", 4, Q_CORRUPT,
         Q_PROJ "input_scale is nan, expected a finite number above 0"},
        {"fp8", NULL, NULL, Q_PROJ "input_scale", 0, "\0\0\x80\xbf", 4, Q_CORRUPT,
         Q_PROJ "input_scale is -1, expected a finite number above 0"},
        {"fp8", NULL, NULL, Q_PROJ "input_scale", 0, "\1\0\0\0", 4, Q_CORRUPT,
         Q_PROJ "input_scale is 1.4013e-45, expected"},
    };
    static const struct damage ruled_out = {
        "fp8", "\"static\"", "\"dynamic\"", Q_PROJ "input_scale", 0, "\0\0\xc0\x7f", 4, Q_OK, NULL};
    struct model_options o = {.dtype = DT_F32};
    struct kern_table kern;
    struct folder f;
    struct model *m = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_refused(&all[i]);
    kern_table_cpu(&kern, kern_caps_machine());
    folder_init(&f);
    write_damaged(&f, &ruled_out);
    o.dir = f.path;
    o.kern = &kern;
    assert_ok(model_load(&m, &o, &e), &e);
    model_free(m);
    folder_release(&f);
}

/* Its config.json is enough: random weights of as many bits. */
static void dummy_has_its_bits(void **state)
{
    static const struct {
        const char *dir;
        enum quantization quantization;
    } all[] = {
        {DATA "awq-4", QUANTIZE_INT4},        {DATA "gptq-4-act", QUANTIZE_INT4},
        {DATA "int8", QUANTIZE_INT8},         {DATA "torchao-intx", QUANTIZE_INT4},
        {DATA "torchao-tiles", QUANTIZE_NOT}, {DATA "hqq-4", QUANTIZE_NOT},
        {DATA "w4a8", QUANTIZE_INT4},         {DATA "packed-7", QUANTIZE_INT8},
    };
    struct kern_table kern;
    (void)state;
    kern_table_cpu(&kern, kern_caps_machine());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct model *m = NULL;
        struct model_options o = {
            .dir = all[i].dir,
            .dtype = DT_F32,
            .kern = &kern,
            .format = LOAD_DUMMY,
        };
        assert_ok(model_load(&m, &o, &e), &e);
        assert_int_equal(model_shape(m)->quantization, all[i].quantization);
        model_free(m);
    }
}

static int check_folders(char *const *dirs, size_t n)
{
    static struct CMUnitTest tests[4096];
    if (n > sizeof tests / sizeof *tests)
        return fprintf(stderr, "%zu folders, at most %zu\n", n, sizeof tests / sizeof *tests), 2;
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){dirs[i], golden_of_folder, NULL, NULL, dirs[i]};
    return _cmocka_run_group_tests("weights_quant", tests, n, NULL, NULL);
}

/* Folders may be given, which tests/differential/quantized.py writes. */
int main(int argc, char **argv)
{
    if (argc > 1)
        return check_folders(argv + 1, (size_t)argc - 1);
    struct CMUnitTest tests[2 * N_CASE + N_EXPERTS + 9];
    size_t n = 0;
    for (size_t i = 0; i < N_CASE; i++) {
        void *c = (void *)(uintptr_t)&cases[i];
        tests[n++] = (struct CMUnitTest){cases[i].name, matrices_are_numpys, NULL, NULL, c};
        tests[n++] =
            (struct CMUnitTest){cases[i].name, logits_are_of_the_dequantized, NULL, NULL, c};
    }
    for (size_t i = 0; i < N_EXPERTS; i++)
        tests[n++] = (struct CMUnitTest){experts[i].name, logits_are_of_the_dequantized, NULL, NULL,
                                         (void *)(uintptr_t)&experts[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(goldens);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(damaged_is_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(scales_of_inputs_are_checked);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(damaged_codes_are_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(first_format_borrows);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(scaled_activations_are_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(dummy_has_its_bits);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(act_order_multiplies_as_defined);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(act_order_takes_four_bits);
    return _cmocka_run_group_tests("weights_quant", tests, n, NULL, NULL);
}
