/* SPDX-License-Identifier: Apache-2.0 */
/* device_fp8: products of fp8 in the checkpoint's scales of inputs, on the fake device
 * (fake_device.h), whose kernels are the reference's: against a forward pass written for tests, of
 * experts, and after a reload. */
#include "device_near.h"
#include "fp8_inputs.h"
#include "kernels/ops/e4m3.h"

#define LIBRARY "/tests/libquire-fake.so"

static struct bits_answer expected[BITS_REQUESTS];

static void on_device(struct core_config *c)
{
    device_choose(c, LIBRARY);
}

static uint64_t n_launch(void)
{
    return *(const uint64_t *)device_symbol(LIBRARY, "fake_n_launch");
}

/* A device multiplies in the checkpoint's scales of inputs: what these cut is cut. Not so where the
 * config says that inputs are dynamic, nor where one of q, k and v has no scale. */
static void fp8_inputs_in_the_scales_of_the_checkpoint(void **state)
{
    static const struct fp8_inputs cases[] = {
        {{0.004f, 0.002f, 0.003f, 0.0008f, 0.003f, 0.005f, 0.0002f}, false, false},
        {{0.004f, 0, 0.003f, 0.0008f, 0.003f, 0.005f, 0.0002f}, false, false},
        {{0.004f, 0.002f, 0.003f, 0.0008f, 0.003f, 0.005f, 0.0002f}, true, false},
    };
    static struct fp8_model m;
    struct golden g;
    (void)state;
    fp8_model_read(&m);
    near_quantized(&g, "fp8");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double of[3]; /* from what each case computes */
        struct folder f;
        fp8_folder(&f, &cases[i]);
        struct core_config c = config_of(f.path);
        c.worker.max_model_len = 64;
        on_device(&c);
        open_core(&c);
        for (size_t k = 0; k < 3; k++) {
            memset(m.scales, 0, sizeof m.scales);
            if (!cases[k].dynamic)
                fp8_set(m.scales, cases[k].scales);
            of[k] = fp8_worst_of(&m, &g, g.n);
        }
        core_free(engine.core);
        print_message("%zu: %g, %g, %g\n", i, of[0], of[1], of[2]);
        for (size_t k = 0; k < 3; k++)
            assert_true(k == i ? of[k] < 0.005
                               : of[k] > 0.05); /* a tie may be rounded the other way */
        folder_release(&f);
    }
}

/* mixtral with its experts in fp8: expert i's inputs have scales[i], in the checkpoint. */
static void experts_in_fp8(struct folder *f, const float *scales, const char *scheme)
{
    static struct safetensors_item items[160];
    static char names[160][96];
    struct buf data = BUF_INIT, file = BUF_INIT, config = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    struct tensor_set *s;
    struct golden g;
    uint64_t n_byte;
    size_t n = 0;
    golden_get(&g, "mixtral");
    assert_ok(tensor_set_open(&s, g.dir, &e), &e);
    for (uint32_t i = 0; i < tensor_count(s); i++) {
        const struct tensor *t = tensor_at(s, i);
        const char *expert = strstr(t->name, "experts.");
        const size_t n_number = t->n_bytes / sizeof(float);
        const float w_scale = 1.0f / 256, x_scale = expert ? scales[expert[8] - '0'] : 0;
        items[n] = (struct safetensors_item){
            .name = t->name,
            .dtype = expert ? DT_F8_E4M3 : DT_F32,
            .n_dim = t->n_dim,
            .shape = {t->shape[0], t->shape[1]},
        };
        n++;
        for (size_t k = 0; expert && k < n_number; k++)
            buf_add_char(&data, (char)f32_to_e4m3(((const float *)t->data)[k] / w_scale));
        if (!expert)
            buf_add(&data, t->data, t->n_bytes);
        for (int k = 0; expert && k < 2; k++) {
            const int n_base = (int)(strlen(t->name) - strlen("weight"));
            snprintf(names[n], sizeof names[n], "%.*s%s", n_base, t->name,
                     k ? "input_scale" : "weight_scale");
            items[n] = (struct safetensors_item){.name = names[n], .dtype = DT_F32};
            buf_add(&data, (const char *)(k ? &x_scale : &w_scale), sizeof(float));
            n++;
        }
    }
    assert_ok(safetensors_layout(items, n, &file, &n_byte, &e), &e);
    buf_add(&file, data.data, data.len);
    assert_int_equal(file.len, n_byte);
    folder_init(f);
    folder_write(f, "model.safetensors", file.data, file.len);
    snprintf(g.dir + strlen(g.dir), sizeof g.dir - strlen(g.dir), "/config.json");
    buf_reset(&file);
    assert_ok(file_read(&file, g.dir, 1 << 16, &e), &e);
    buf_printf(&config,
               "{\"quantization_config\": {\"quant_method\": \"fp8\", "
               "\"activation_scheme\": \"%s\"}, %s",
               scheme, strchr(buf_str(&file), '{') + 1);
    folder_write(f, "config.json", config.data, config.len);
    tensor_set_free(s);
    buf_release(&data);
    buf_release(&file);
    buf_release(&config);
}

/* All experts' products are one launch, with the largest scale of theirs, or with those of rows. */
static void scales_of_experts_inputs(void **state)
{
    static const struct {
        float scales[4];
        const char *scheme;
        int same; /* bits as those of the case before */
    } cases[] = {
        {{0.002f, 0.002f, 0.002f, 0.002f}, "static", -1},
        {{0.0005f, 0.002f, 0.001f, 0.0002f}, "static", 1},
        {{0.0005f, 0.002f, 0, 0.0002f}, "static", 0},
        {{0.002f, 0.002f, 0.002f, 0.002f}, "dynamic", 1},
        {{0.0005f, 0.0005f, 0.0005f, 0.0005f}, "static", 0},
    };
    struct golden g;
    (void)state;
    golden_get(&g, "mixtral");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        experts_in_fp8(&f, cases[i].scales, cases[i].scheme);
        struct core_config c = config_of(f.path);
        c.worker.max_model_len = 144;
        on_device(&c);
        device_all_logprobs = true;
        device_answers(&c, &g, 3);
        device_all_logprobs = false;
        if (cases[i].same >= 0 && cases[i].same != !memcmp(expected, answers, sizeof expected))
            fail_msg("case %zu has%s the bits of the one before", i, cases[i].same ? " not" : "");
        memcpy(expected, answers, sizeof expected);
        folder_release(&f);
    }
}

/* An engine that is open gets other weights. */
static void reload(const char *dir)
{
    struct q_err e = Q_ERR_INIT, result = Q_ERR_INIT;
    assert_ok(core_reload(engine.core, dir, IN_FLIGHT_KEEP, &e), &e);
    assert_ok(core_step(engine.core, &e), &e); /* begins it: without, nothing ends the first wait */
    while (!core_take_reload(engine.core, &result))
        bits_turn(&engine);
    assert_ok(result.code, &result);
}

/* Graphs hold scales of inputs, and addresses: after a reload an engine gives the bits of one that
 * begins with the weights. fp8-some has other types, so its matrices lie elsewhere. */
static void graphs_after_a_reload(void **state)
{
    static const struct fp8_inputs before = {
        .scales = {0.01f, 0.01f, 0.01f, 0.004f, 0.01f, 0.01f, 0.002f},
    };
    static const struct fp8_inputs after = {
        .scales = {0.002f, 0.002f, 0.002f, 0.0008f, 0.003f, 0.004f, 0.0002f},
        .renamed = true,
    };
    static const struct fp8_inputs dynamic = {{0.01f}, true, false};
    static struct fp8_model m;
    struct q_err e = Q_ERR_INIT;
    struct golden g;
    struct folder first, second, third;
    (void)state;
    fp8_model_read(&m);
    near_quantized(&g, "fp8");
    fp8_folder(&first, &before);
    fp8_folder(&second, &after);
    fp8_folder(&third, &dynamic);
    const char *const others[] = {second.path, NEAR_QUANTIZED "fp8-some"};
    struct core_config c = config_of(first.path);
    c.worker.max_model_len = 64;
    on_device(&c);
    for (size_t i = 0; i < 2; i++) {
        struct core_config fresh = c;
        snprintf(fresh.worker.model_dir, sizeof fresh.worker.model_dir, "%s", others[i]);
        open_core(&fresh);
        (void)fp8_worst_of(&m, &g, g.n);
        memcpy(expected, answers, sizeof expected);
        core_free(engine.core);
        open_core(&c);
        fp8_set(m.scales, before.scales);
        assert_true(fp8_worst_of(&m, &g, g.n) < 0.005);
        assert_memory_not_equal(expected, answers, sizeof expected);
        const uint64_t n = n_launch();
        reload(others[i]);
        fp8_set(m.scales, after.scales);
        assert_true(fp8_worst_of(&m, &g, g.n) < 0.005 || i);
        assert_memory_equal(expected, answers, sizeof expected);
        assert_true(n_launch() > n); /* of graphs */
        assert_fails(core_reload(engine.core, third.path, IN_FLIGHT_KEEP, &e), Q_MISMATCH,
                     "has quant.dynamic_inputs true, the served model has false", &e);
        core_free(engine.core);
    }
    folder_release(&first);
    folder_release(&second);
    folder_release(&third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_inputs_in_the_scales_of_the_checkpoint),
        cmocka_unit_test(scales_of_experts_inputs),
        cmocka_unit_test(graphs_after_a_reload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
