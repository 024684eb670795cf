/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_rows: the engine's functions that embed_item calls (tests/plugins/rows.c), against the
 * same arithmetic in f64; and what they say about tensors and shapes that do not fit. */
#include "engine/model/modality.h"
#include "engine/model/plugins.h"
#include "golden.h"
#include "plugins_near.h"
#include "rows_model.h"

#define STRIDE (ROWS_COLS + 5u)
#define UNUSED 77.0f /* what lies between rows */

/* calls[] of the plugin */
enum {
    LINEAR_FLOATS,
    LINEAR_QUANTIZED,
    LINEAR_FLOATS_BY_ROW,
    LINEAR_QUANTIZED_BY_ROW,
    LINEAR_ABSENT_BIAS,
    LAYER_NORM,
    LAYER_NORM_NO_BIAS,
    LAYER_NORM_ABSENT_BIAS,
    RMS_NORM,
    RMS_NORM_PART,
    ATTEND,
    TENSORS,
    SCRATCH,
    SILU,
    GELU,
    GELU_TANH,
    QUICK_GELU,
    RELU,
    RELU2,
    LINEAR_READ_BIAS,
    CALLS,
    MISTAKES = 100
};

static char plugins_dir[PLUGINS_DIR_MAX];
static struct folder folder;
static struct model *model;
static struct modalities *modalities;
static float numbers[(ROWS_N + 1) * ROWS_COLS];
static float got[ROWS_N * STRIDE];
static double want[ROWS_N][ROWS_COLS];

static void load(uint32_t caps, enum quantization quantization)
{
    static struct kern_table kern;
    struct q_err e = Q_ERR_INIT;
    kern_table_cpu(&kern, caps);
    const struct model_options o = {
        .dir = folder.path,
        .dtype = DT_F32,
        .quantization = quantization,
        .kern = &kern,
    };
    assert_ok(model_load(&model, &o, &e), &e);
    assert_ok(modalities_open(&modalities, folder.path, NULL, &e), &e);
    assert_ok(modalities_bind(modalities, model, 2, &e), &e);
}

static void unload(void)
{
    modalities_free(modalities);
    model_free(model);
}

static enum q_code embed(uint32_t call, struct q_err *e)
{
    struct quire_item item = {
        .n_dim = 2,
        .dims = {ROWS_N + 1, ROWS_COLS},
        .data = numbers,
        .n_byte = sizeof numbers,
    };
    const struct quire_rows out = {got, ROWS_N, ROWS_COLS, STRIDE};
    numbers[0] = (float)call;
    for (uint32_t i = 0; i < ROWS_N * STRIDE; i++)
        got[i] = UNUSED;
    const enum q_code rc = modality_check(modalities, 0, &item, e);
    return rc ? rc : modality_embed(modalities, 0, &item, &out, e);
}

/* ---- the same in f64 ---- */

static double in(uint32_t r, uint32_t c)
{
    return numbers[(r + 1) * ROWS_COLS + c];
}

static double weight(uint32_t t, uint32_t i)
{
    return rows_number(t, i);
}

#define NO_BIAS UINT32_MAX

static void linear(uint32_t matrix, uint32_t bias)
{
    for (uint32_t r = 0; r < ROWS_N; r++)
        for (uint32_t c = 0; c < ROWS_COLS; c++) {
            want[r][c] = bias == NO_BIAS ? 0 : weight(bias, c);
            for (uint32_t k = 0; k < ROWS_NARROW; k++)
                want[r][c] += in(r, k) * weight(matrix, c * ROWS_NARROW + k);
        }
}

static void layer_norm(bool has_bias)
{
    for (uint32_t r = 0; r < ROWS_N; r++) {
        double mean = 0, square = 0;
        for (uint32_t c = 0; c < ROWS_COLS; c++)
            mean += in(r, c) / ROWS_COLS;
        for (uint32_t c = 0; c < ROWS_COLS; c++)
            square += (in(r, c) - mean) * (in(r, c) - mean) / ROWS_COLS;
        for (uint32_t c = 0; c < ROWS_COLS; c++)
            want[r][c] = (in(r, c) - mean) / sqrt(square + 1e-5) * weight(ROWS_NORM, c) +
                         (has_bias ? weight(ROWS_BIAS, c) : 0);
    }
}

/* Of n columns from `first` on. */
static void rms_norm(uint32_t norm, uint32_t first, uint32_t n)
{
    for (uint32_t r = 0; r < ROWS_N; r++) {
        double square = 0;
        for (uint32_t c = 0; c < n; c++)
            square += in(r, first + c) * in(r, first + c) / n;
        for (uint32_t c = 0; c < n; c++)
            want[r][first + c] = in(r, first + c) / sqrt(square + 1e-6) * weight(norm, c);
    }
}

static void attend_row(uint32_t r)
{
    double p[3], sum = 0;
    for (uint32_t j = 0; j < 3; j++) {
        double score = 0;
        for (uint32_t c = 0; c < 16; c++)
            score += in(r, c) * in(j, 16 + c);
        p[j] = exp(score * 0.25);
        sum += p[j];
    }
    for (uint32_t c = 0; c < 24; c++) {
        want[r][c] = 0;
        for (uint32_t j = 0; j < 3; j++)
            want[r][c] += p[j] / sum * in(j, 32 + c);
    }
}

static double activation(uint32_t call, double x)
{
    switch (call) {
    case SILU:
        return x / (1 + exp(-x));
    case GELU:
        return x / 2 * (1 + erf(x / sqrt(2)));
    case GELU_TANH:
        return x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case RELU:
        return x > 0 ? x : 0;
    default:
        return x > 0 ? x * x : 0;
    }
}

static void by_number(uint32_t call, uint32_t r, uint32_t c)
{
    if (call == TENSORS)
        want[r][c] = weight(ROWS_TABLE, (r + 1) * ROWS_COLS + c) * weight(ROWS_STEPS + r % 2, c);
    else if (call == SCRATCH)
        want[r][c] = in(ROWS_N - 1 - r, c);
    else
        want[r][c] = activation(call, in(r, c));
}

static void reference(uint32_t call)
{
    for (uint32_t r = 0; r < ROWS_N; r++)
        for (uint32_t c = 0; c < ROWS_COLS; c++)
            want[r][c] = in(r, c); /* what a call does not write stays */
    if (call == RMS_NORM)
        rms_norm(ROWS_NORM, 0, ROWS_COLS);
    else if (call == RMS_NORM_PART)
        rms_norm(ROWS_SHORT_NORM, 8, ROWS_NARROW);
    else if (call >= LAYER_NORM && call <= LAYER_NORM_ABSENT_BIAS)
        layer_norm(call == LAYER_NORM);
    else if (call == LINEAR_QUANTIZED || call == LINEAR_QUANTIZED_BY_ROW)
        linear(ROWS_QUANTIZED, ROWS_BIAS);
    else if (call == LINEAR_FLOATS || call == LINEAR_FLOATS_BY_ROW)
        linear(ROWS_FLOATS, ROWS_BIAS);
    else if (call == LINEAR_ABSENT_BIAS || call == LINEAR_READ_BIAS)
        linear(ROWS_FLOATS, call == LINEAR_READ_BIAS ? ROWS_READ : NO_BIAS);
    for (uint32_t r = 0; r < ROWS_N && call == ATTEND; r++)
        attend_row(r);
    for (uint32_t r = 0; r < ROWS_N && call >= TENSORS && call <= RELU2; r++)
        for (uint32_t c = 0; c < ROWS_COLS; c++)
            by_number(call, r, c);
}

static double distance(void)
{
    double most = 0;
    for (uint32_t r = 0; r < ROWS_N; r++) {
        for (uint32_t c = 0; c < ROWS_COLS; c++) {
            assert_true(isfinite(got[r * STRIDE + c]));
            most = fmax(most, fabs(got[r * STRIDE + c] - want[r][c]));
        }
        for (uint32_t c = ROWS_COLS; c < STRIDE; c++)
            assert_true(got[r * STRIDE + c] == UNUSED);
    }
    return most;
}

static void check_calls(bool is_quantized)
{
    static float whole[2][ROWS_N * STRIDE];
    struct q_err e = Q_ERR_INIT;
    for (uint32_t call = 0; call < CALLS; call++) {
        const bool is_near =
            is_quantized && (call == LINEAR_QUANTIZED || call == LINEAR_QUANTIZED_BY_ROW);
        assert_ok(embed(call, &e), &e);
        reference(call);
        const double d = distance();
        if (d > (is_near ? 0.3 : 2e-5) || (is_near && d < 1e-3))
            fail_msg("call %u: %g from the reference", call, d);
        if (call <= LINEAR_QUANTIZED)
            memcpy(whole[call], got, sizeof got);
        else if (call <= LINEAR_QUANTIZED_BY_ROW) /* and the bits do not depend on n */
            assert_memory_equal(whole[call - LINEAR_FLOATS_BY_ROW], got, sizeof got);
    }
}

static void calls_are_right(void **state)
{
    (void)state;
    const uint32_t caps[] = {0, kern_caps_machine()};
    for (size_t i = 0; i < 2; i++) {
        load(caps[i], QUANTIZE_NOT);
        check_calls(false);
        unload();
        load(caps[i], QUANTIZE_INT8);
        check_calls(true);
        unload();
    }
}

/* A matrix that is not quantized has the bits of a model that is not. */
static void a_matrix_stays_as_it_is(void **state)
{
    (void)state;
    static float plain[2][ROWS_N * STRIDE];
    static const enum quantization kinds[] = {QUANTIZE_INT8, QUANTIZE_INT4};
    struct q_err e = Q_ERR_INIT;
    load(kern_caps_machine(), QUANTIZE_NOT);
    for (uint32_t call = LINEAR_FLOATS; call <= LINEAR_QUANTIZED; call++) {
        assert_ok(embed(call, &e), &e);
        memcpy(plain[call], got, sizeof got);
    }
    unload();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        load(kern_caps_machine(), kinds[i]);
        assert_ok(embed(LINEAR_FLOATS, &e), &e);
        assert_memory_equal(plain[LINEAR_FLOATS], got, sizeof got);
        assert_ok(embed(LINEAR_QUANTIZED, &e), &e);
        assert_memory_not_equal(plain[LINEAR_QUANTIZED], got, sizeof got);
        unload();
    }
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "there is no tensor \"none such\"",
        "there is no tensor \"NULL\"",
        "linear: tensor norm is no matrix of the model's own",
        "linear: tensor absent matrix is not in the checkpoint",
        "linear: floats is [64, 48], its input has 4 rows of 32, its output 4 of 64",
        "linear: floats is [64, 48], its input has 3 rows of 48, its output 4 of 64",
        "tensor table is of another kind or length, expected a vector of 64",
        "there is no tensor \"none such\"",
        "linear: floats is [64, 48], its input has 0 rows of 0, its output 4 of 64",
        "tensor norm is of another kind or length, expected a vector of 32",
        "tensor short norm is of another kind or length, expected a vector of 64",
        "there is no tensor \"NULL\"",
        "layer_norm: no rows",
        "tensor absent is not in the checkpoint, expected a vector of 64",
        "tensor floats is of another kind or length, expected a vector of 64",
        "rms_norm: no rows",
        "activate: \"mish\" is none; these are silu, gelu, gelu_new, gelu_fast",
        "activate: \"NULL\" is none",
        "activate: no rows",
        "attend: rows of q, k, v and out do not fit each other",
        "attend: rows of q, k, v and out do not fit each other",
        "attend: rows of q, k, v and out do not fit each other",
        "attend: out overlaps q, k or v",
    };
    char part[200];
    struct q_err e = Q_ERR_INIT;
    load(0, QUANTIZE_NOT);
    for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        q_err_reset(&e);
        snprintf(part, sizeof part, "sheets[0]: %s", parts[i]);
        const enum q_code rc = embed(MISTAKES + i, &e);
        if (rc != Q_INVALID || !strstr(e.message, part))
            fail_msg("mistake %u: %s \"%s\", expected \"%s\"", i, q_code_name(rc), e.message, part);
    }
    q_err_reset(&e);
    assert_ok(embed(LINEAR_FLOATS, &e), &e); /* and it still answers */
    unload();
}

static int setup(void **state)
{
    (void)state;
    struct plugins_config c = {.n = 0};
    char path[PATH_MAX];
    const char *const paths[] = {path};
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, "%s/rows.so", plugins_dir);
    assert_ok(plugins_config_set(&c, paths, 1, "", &e), &e);
    assert_ok(plugins_open(&c, NULL, &e), &e);
    rows_model(&folder, GOLDEN_DIR "/llama", "");
    for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        numbers[i] = 2 * rows_number(99, i);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&folder);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_right),
        cmocka_unit_test(a_matrix_stays_as_it_is),
        cmocka_unit_test(mistakes_are_named),
    };
    (void)argc;
    plugins_near(plugins_dir, argv[0]);
    return cmocka_run_group_tests(tests, setup, teardown);
}
