/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that hold all experts of a layer: every number of an expert's gate, up, down and biases,
 * of floats and of MXFP4, against what its place in the file says. */
#include "engine/model/load/fill.h"
#include "engine/model/load/weight_finder.h"
#include "engine/model/load/weight_quant.h"
#include "folder.h"
#include "golden.h"

#define MODELS "tests/data/models/"
#define LAYER  1u
#define P      "model.layers.1.mlp.experts."
#define MOST   4096u

static struct q_err e;
static struct model_config config;
static const struct arch *arch;
static struct tensor_set *files;
static struct weight_source sources[W_COUNT];

static enum q_code find(const char *dir, uint32_t expert)
{
    assert_ok(model_config_load(&config, NULL, dir, &e), &e);
    assert_ok(arch_find(&arch, config.architecture, &e), &e);
    assert_ok(tensor_set_open(&files, dir, &e), &e);
    const struct weight_finder f = {.arch = arch, .config = &config, .files = files};
    return weight_finder_find_expert(sources, &f, (struct arch_place){LAYER, expert}, &e);
}

static const void *bytes_of(const char *name)
{
    const struct tensor *t = tensor_find(files, name);
    assert_non_null(t);
    return t->data;
}

static float float_at(const char *name, size_t i)
{
    float v;
    memcpy(&v, (const char *)bytes_of(name) + i * sizeof v, sizeof v);
    return v;
}

static float half_at(const char *name, size_t i)
{
    uint16_t v;
    memcpy(&v, (const char *)bytes_of(name) + i * sizeof v, sizeof v);
    return bf16_to_f32(v);
}

/* All rows of a source, as the loader makes them. */
static const float *rows_of(enum arch_slot slot)
{
    static float rows[MOST];
    const struct weight_source *s = &sources[slot];
    assert_true(s->present && (size_t)s->rows * s->cols <= MOST);
    if (s->cols == 1)
        fill_vector_part(rows, s, KIND_BIAS);
    for (uint32_t r = 0, to; s->cols > 1 && r < s->rows; r = to) {
        to = r + (s->rows - r < weight_source_run(s, r) ? s->rows - r : weight_source_run(s, r));
        fill_make_rows(rows + (size_t)r * s->cols, s, weight_source_row(s, r), to - r);
    }
    return rows;
}

/* [E, hidden, 2 I] with gate and up in alternate columns, [E, I, hidden], biases [E, 2 I] and
 * [E, hidden]. */
static void floats_of_gpt_oss(void **state)
{
    (void)state;
    for (uint32_t x = 0; x < 8; x++) {
        assert_ok(find(MODELS "gpt_oss", x), &e);
        const uint32_t hidden = config.hidden_size, width = config.moe.width;
        for (uint32_t up = 0; up < 2; up++) {
            const enum arch_slot slot = up ? W_EXPERT_UP : W_EXPERT_GATE;
            assert_true(sources[slot].rows == width && sources[slot].cols == hidden);
            const float *w = rows_of(slot);
            for (uint32_t o = 0; o < width; o++)
                for (uint32_t k = 0; k < hidden; k++)
                    assert_true(w[o * hidden + k] ==
                                float_at(P "gate_up_proj",
                                         ((size_t)x * hidden + k) * 2 * width + 2 * o + up));
            const float *b = rows_of(up ? W_EXPERT_UP_BIAS : W_EXPERT_GATE_BIAS);
            for (uint32_t o = 0; o < width; o++)
                assert_true(b[o] ==
                            float_at(P "gate_up_proj_bias", (size_t)x * 2 * width + 2 * o + up));
        }
        const float *w = rows_of(W_EXPERT_DOWN);
        for (uint32_t o = 0; o < hidden; o++)
            for (uint32_t k = 0; k < width; k++)
                assert_true(w[o * width + k] ==
                            float_at(P "down_proj", ((size_t)x * width + k) * hidden + o));
        const float *b = rows_of(W_EXPERT_DOWN_BIAS);
        for (uint32_t o = 0; o < hidden; o++)
            assert_true(b[o] == float_at(P "down_proj_bias", (size_t)x * hidden + o));
        tensor_set_free(files);
    }
}

/* e2m1 by its bits: sign, exponent of bias 1, mantissa of a bit; exponent 0 has no leading 1. */
static double e2m1(unsigned bits)
{
    const unsigned exponent = bits >> 1 & 3, mantissa = bits & 1;
    const double size = exponent ? ldexp(1 + mantissa / 2.0, (int)exponent - 1) : mantissa / 2.0;
    return bits & 8 ? -size : size;
}

static double mxfp4_at(const char *name, size_t row, uint32_t k, uint32_t n_in)
{
    char blocks[80], scales[80];
    snprintf(blocks, sizeof blocks, "%s_blocks", name);
    snprintf(scales, sizeof scales, "%s_scales", name);
    const uint8_t byte = ((const uint8_t *)bytes_of(blocks))[(row * n_in + k) / 2];
    const uint8_t scale = ((const uint8_t *)bytes_of(scales))[(row * n_in + k) / 32];
    return ldexp(e2m1(k % 2 ? byte >> 4 : byte & 15), scale - 127);
}

/* Outputs are rows, and bfloat16 has every number. */
static void mxfp4_of_gpt_oss(void **state)
{
    (void)state;
    for (uint32_t x = 0; x < 6; x++) {
        assert_ok(find(MODELS "gpt_oss-mxfp4", x), &e);
        const uint32_t hidden = config.hidden_size, width = config.moe.width;
        for (uint32_t up = 0; up < 2; up++) {
            const float *w = rows_of(up ? W_EXPERT_UP : W_EXPERT_GATE);
            for (uint32_t o = 0; o < width; o++)
                for (uint32_t k = 0; k < hidden; k++) {
                    const float got = w[o * hidden + k];
                    const size_t row = (size_t)x * 2 * width + 2 * o + up;
                    assert_true(got == mxfp4_at(P "gate_up_proj", row, k, hidden));
                    assert_true(got == bf16_to_f32(f32_to_bf16(got)));
                }
            const float *b = rows_of(up ? W_EXPERT_UP_BIAS : W_EXPERT_GATE_BIAS);
            for (uint32_t o = 0; o < width; o++)
                assert_true(b[o] ==
                            half_at(P "gate_up_proj_bias", (size_t)x * 2 * width + 2 * o + up));
        }
        const float *w = rows_of(W_EXPERT_DOWN);
        for (uint32_t o = 0; o < hidden; o++)
            for (uint32_t k = 0; k < width; k++)
                assert_true(w[o * width + k] ==
                            mxfp4_at(P "down_proj", (size_t)x * hidden + o, k, width));
        tensor_set_free(files);
    }
}

/* Of 2^-127 e2m1's smallest number is no normal float; 2^125 is the largest power whose 6 is
 * finite. */
static void scales_of_mxfp4(void **state)
{
    static const struct {
        uint8_t scale;
        enum q_code code;
    } cases[] = {{0, Q_OK}, {1, Q_OK}, {252, Q_OK}, {253, Q_CORRUPT}, {255, Q_CORRUPT}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        struct buf data = BUF_INIT;
        folder_init(&f);
        folder_copy(&f, MODELS "gpt_oss-mxfp4", "config.json");
        assert_ok(file_read(&data, MODELS "gpt_oss-mxfp4/model.safetensors", 1 << 24, &e), &e);
        assert_ok(tensor_set_open(&files, MODELS "gpt_oss-mxfp4", &e), &e);
        const struct tensor *t = tensor_find(files, P "down_proj_scales");
        assert_non_null(t);
        char *at = memmem(data.data, data.len, t->data, t->n_bytes);
        assert_non_null(at);
        at[3 * 64 + 5] = (char)cases[i].scale; /* expert 3, output 5 */
        folder_write(&f, "model.safetensors", data.data, data.len);
        tensor_set_free(files);
        if (cases[i].code) {
            assert_fails(find(f.path, 3), cases[i].code,
                         "down_proj_scales: the scale of expert 3, output 5, block 0 is", &e);
        } else {
            assert_ok(find(f.path, 3), &e);
            const float *w = rows_of(W_EXPERT_DOWN) + 5 * (size_t)config.moe.width;
            for (uint32_t k = 0; k < config.moe.width; k++)
                assert_true(isfinite(w[k]) &&
                            w[k] == mxfp4_at(P "down_proj", 3 * 64 + 5, k, config.moe.width));
        }
        tensor_set_free(files);
        buf_release(&data);
        folder_release(&f);
    }
}

/* [E, 2 I, hidden]: gate, then up. */
static void floats_of_granitemoe(void **state)
{
    static const char name[] = "model.layers.1.block_sparse_moe.input_linear.weight";
    (void)state;
    for (uint32_t x = 0; x < 6; x++) {
        assert_ok(find(MODELS "granitemoe", x), &e);
        for (uint32_t up = 0; up < 2; up++) {
            const struct weight_source *s = &sources[up ? W_EXPERT_UP : W_EXPERT_GATE];
            assert_true(weight_source_has_rows(s) && s->stacked);
            for (uint32_t o = 0; o < s->rows; o++) {
                const size_t row = (size_t)(2 * x + up) * s->rows + o;
                assert_int_equal(weight_source_first(s) + weight_source_row(s, o) * s->cols,
                                 row * s->cols);
            }
            assert_ptr_equal(s->tensor->data, bytes_of(name));
        }
        tensor_set_free(files);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_of_gpt_oss),
        cmocka_unit_test(mxfp4_of_gpt_oss),
        cmocka_unit_test(scales_of_mxfp4),
        cmocka_unit_test(floats_of_granitemoe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
