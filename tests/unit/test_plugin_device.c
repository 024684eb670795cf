/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_device: models of plugins on the fake device, and requests with items, give the bits of
 * the CPU, with graphs and without; what has no code for a device is refused by name. */
#include "device_near.h"
#include "folder.h"
#include "items_run.h"
#include "plugins_near.h"
#include "rows_model.h"

static char plugins_dir[PLUGINS_DIR_MAX];
static struct bits_answer expected[BITS_REQUESTS];

static void use_plugin(struct core_config *c, const char *name)
{
    char path[PATH_MAX];
    const char *const paths[] = {path};
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, "%s/%s", plugins_dir, name);
    assert_ok(plugins_config_set(&c->worker.plugins, paths, 1, "", &e), &e);
    assert_ok(plugins_open(&c->worker.plugins, c->worker.model_dir, &e), &e);
}

static void compare(struct core_config c, const struct golden *g, const char *what)
{
    snprintf(c.worker.cpu_isa, sizeof c.worker.cpu_isa, "none");
    struct core_config cpu = c;
    device_answers(&cpu, g, g->n);
    memcpy(expected, answers, sizeof expected);
    device_choose(&c, "/tests/libquire-fake.so");
    for (int eager = 0; eager < 2; eager++) {
        c.worker.enforce_eager = eager;
        device_answers(&c, g, g->n);
        for (uint32_t i = 0; i < g->n; i++)
            if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
                fail_msg("%s: request %u has other bits on the device (eager %d)", what, i, eager);
    }
}

/* more: of its config.json. */
static void write_with(const struct folder *f, const char *architecture, const char *more)
{
    char text[1200], path[PATH_MAX];
    snprintf(
        text, sizeof text,
        "{\"architectures\": [\"%s\"], \"model_type\": \"llama\", \"vocab_size\": 512, "
        "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"hidden_act\": \"silu\", "
        "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0%s}",
        architecture, more);
    folder_text(f, "config.json", text);
    assert_non_null(realpath("tests/data/models/llama/model.safetensors", path));
    folder_link(f, "model.safetensors", path);
}

static void write_like(const struct folder *f, const char *architecture)
{
    write_with(f, architecture, "");
}

static void own_operations(void **state)
{
    (void)state;
    struct golden g;
    struct folder f;
    folder_init(&f);
    write_like(&f, "OperationForCausalLM");
    golden_get(&g, "llama");
    struct core_config c = config_of(f.path);
    c.worker.max_model_len = 144;
    use_plugin(&c, "operation.so");
    compare(c, &g, "operation");
    folder_release(&f);
}

/* A launch that fails ends all requests of its step with its sentence; the engine goes on. */
static void a_launch_that_fails(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {7, 9, 20};
    struct golden g;
    struct folder f;
    struct q_err e = Q_ERR_INIT;
    folder_init(&f);
    write_with(&f, "OperationForCausalLM", ", \"refuses\": 16"); /* 7 + 9, in one step */
    golden_get(&g, "llama");
    struct core_config c = config_of(f.path);
    use_plugin(&c, "operation.so");
    device_choose(&c, "/tests/libquire-fake.so");
    c.worker.max_num_seqs = 8;
    for (int eager = 0; eager < 2; eager++) {
        c.worker.enforce_eager = eager;
        open_core(&c);
        for (uint32_t i = 0; i < 2; i++) {
            struct golden_prompt p = {.n = lengths[i], .n_greedy = 4};
            for (uint32_t k = 0; k < p.n; k++)
                p.ids[k] = 40 * i + k;
            submit_prompt(i, &p, 0);
        }
        finish_all(2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(answers[i].finish, FINISH_ERROR);
            assert_int_equal(answers[i].n, 0);
            assert_string_equal(engine.notes[i].why.message,
                                "the request could not be computed: plugin operation 1.0: "
                                "operation shift: 16 rows are more than its launch takes");
        }
        bits_forget(&engine);
        for (uint32_t i = 0; i < g.n; i++) {
            submit_prompt(i, &g.prompts[i], 0);
            assert_ok(core_step(engine.core, &e), &e);
        }
        finish_all(g.n);
        for (uint32_t i = 0; i < g.n; i++)
            check_answer(i, &g.prompts[i], "after a launch that failed");
        assert_int_equal(core_n_restart(engine.core), 0);
        core_free(engine.core);
    }
    folder_release(&f);
}

/* Tables of positions, and the operation that takes rows of items, of which there are none. */
static void positions(void **state)
{
    (void)state;
    struct golden g = {.n = 3};
    snprintf(g.dir, sizeof g.dir, "tests/data/terra/model");
    for (uint32_t i = 0; i < g.n; i++) {
        g.prompts[i].n = 5 + 13 * i;
        for (uint32_t k = 0; k < g.prompts[i].n; k++)
            g.prompts[i].ids[k] = (31 * i + 7 * k) % 90;
    }
    struct core_config c = config_of(g.dir);
    use_plugin(&c, "positions.so");
    compare(c, &g, "positions");
    c.worker.quantization = QUANTIZE_INT8;
    compare(c, &g, "positions, int8");
}

/* ---- items ---- */

#define ITEM_REQUESTS 6u
static struct items_request with_items[ITEM_REQUESTS];

/* Items and text alone, some while others are computed. */
static void item_answers(const struct core_config *c)
{
    struct q_err e = Q_ERR_INIT;
    open_core(c);
    for (uint32_t i = 0; i < ITEM_REQUESTS; i++) {
        ask_items(&with_items[i], i);
        if (i % 3 == 2)
            assert_ok(core_step(engine.core, &e), &e);
    }
    finish_all(ITEM_REQUESTS);
    core_free(engine.core);
}

static void same_items(const char *what, uint32_t chunk)
{
    for (uint32_t i = 0; i < ITEM_REQUESTS; i++) {
        assert_int_equal(answers[i].finish, FINISH_LENGTH);
        if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
            fail_msg("%s, chunks of %u: request %u has other bits", what, chunk, i);
    }
}

/* The first grid of a mixed request is rows 13 … 16, so each of these chunks but the last ends
 * within an item of some request. */
static void items_on_a_device(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {5, 15, 16, 40, 128};
    items_model();
    struct core_config cpu = items_config();
    cpu.prefix_cache = false;
    snprintf(cpu.worker.cpu_isa, sizeof cpu.worker.cpu_isa, "none");
    for (uint32_t i = 0; i < ITEM_REQUESTS; i++)
        make_mixed(&with_items[i], i);
    memset(&with_items[4], 0, sizeof with_items[4]);
    add_text(&with_items[4], 30, 5);
    item_answers(&cpu);
    memcpy(expected, answers, sizeof expected);
    assert_true(memcmp(&expected[0], &expected[1], sizeof expected[0]) != 0);
    struct core_config c = cpu;
    device_choose(&c, "/tests/libquire-fake.so");
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
        for (int eager = 0; eager < 2; eager++) {
            c.worker.enforce_eager = eager;
            c.worker.max_num_batched_tokens = chunks[i];
            c.worker.max_num_seqs = chunks[i] < 8 ? 4 : 8;
            item_answers(&c);
            same_items(eager ? "eager" : "graphs", chunks[i]);
        }
    c.prefix_cache = true; /* the second time, blocks with rows of items come from the cache */
    item_answers(&c);
    same_items("with the prefix cache", c.worker.max_num_batched_tokens);
    folder_release(&items_folder);
}

/* An item that the plugin cannot compute ends its request, and no other. */
static void a_failed_item_on_a_device(void **state)
{
    (void)state;
    items_model();
    struct core_config c = items_config();
    device_choose(&c, "/tests/libquire-fake.so");
    for (uint32_t i = 0; i < ITEM_REQUESTS; i++)
        make_mixed(&with_items[i], i == 2 ? 666 : i);
    for (int eager = 0; eager < 2; eager++) {
        c.worker.enforce_eager = eager;
        item_answers(&c);
        for (uint32_t i = 0; i < ITEM_REQUESTS; i++)
            assert_int_equal(answers[i].finish, i == 2 ? FINISH_ERROR : FINISH_LENGTH);
        assert_int_equal(memcmp(&answers[0], &expected[0], sizeof expected[0]), 0);
        assert_int_equal(memcmp(&answers[5], &expected[5], sizeof expected[5]), 0);
    }
    folder_release(&items_folder);
}

/* Text around a sheet of tests/plugins/rows.c, whose rows call number `call` makes. */
static void make_sheet(struct items_request *r, float *numbers, uint32_t call)
{
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < (ROWS_N + 1) * ROWS_COLS; i++)
        numbers[i] = 2 * rows_number(call, i);
    numbers[0] = (float)call;
    r->items[r->n_item++] = (struct item_array){
        .modality = "sheets",
        .dtype = ITEM_F32,
        .n_dim = 2,
        .dims = {ROWS_N + 1, ROWS_COLS},
        .data = numbers,
        .n_byte = (ROWS_N + 1) * ROWS_COLS * sizeof *numbers,
    };
    add_text(r, 14, call);
    add_id(r, ROWS_ID, ROWS_N);
    add_text(r, 5, call + 1);
}

static void compare_sheets(const struct core_config *cpu)
{
    struct core_config c = *cpu;
    item_answers(cpu);
    memcpy(expected, answers, sizeof expected);
    device_choose(&c, "/tests/libquire-fake.so");
    for (int eager = 0; eager < 2; eager++) {
        c.worker.enforce_eager = eager;
        item_answers(&c);
        same_items(eager ? "sheets, eager" : "sheets, graphs", c.worker.max_num_batched_tokens);
    }
}

/* Tensors that items alone read stay on the host, quantized as the model. */
static void host_functions_for_a_device(void **state)
{
    (void)state;
    static const uint32_t calls[ITEM_REQUESTS] = {0, 1, 5, 8, 10, 11};
    static float numbers[ITEM_REQUESTS][(ROWS_N + 1) * ROWS_COLS];
    struct folder f;
    rows_model(&f, GOLDENS_DIR "/llama", "");
    for (uint32_t i = 0; i < ITEM_REQUESTS; i++)
        make_sheet(&with_items[i], numbers[i], calls[i]);
    struct core_config c = config_of(f.path);
    c.worker.max_model_len = 144;
    c.worker.max_num_batched_tokens = 16; /* ends in the middle of a sheet */
    c.items.store_bytes = 1u << 20;
    snprintf(c.worker.cpu_isa, sizeof c.worker.cpu_isa, "none");
    use_plugin(&c, "rows.so");
    compare_sheets(&c);
    c.worker.quantization = QUANTIZE_INT8;
    compare_sheets(&c);
    folder_release(&f);
}

/* Of a tensor that the program reads there is nothing on the host: an error, though it is optional,
 * and not a product without its bias. */
static void a_tensor_that_lies_on_the_device(void **state)
{
    (void)state;
    static float numbers[ITEM_REQUESTS][(ROWS_N + 1) * ROWS_COLS];
    struct folder f;
    rows_model(&f, GOLDENS_DIR "/llama", "\"reads\": 1, ");
    for (uint32_t i = 0; i < ITEM_REQUESTS; i++)
        make_sheet(&with_items[i], numbers[i], i == 3 ? 19 : 0);
    struct core_config c = config_of(f.path);
    c.worker.max_model_len = 144;
    c.items.store_bytes = 1u << 20;
    use_plugin(&c, "rows.so");
    for (int on_device = 0; on_device < 2; on_device++) {
        if (on_device)
            device_choose(&c, "/tests/libquire-fake.so");
        item_answers(&c);
        for (uint32_t i = 0; i < ITEM_REQUESTS; i++)
            assert_int_equal(answers[i].finish, on_device && i == 3 ? FINISH_ERROR : FINISH_LENGTH);
    }
    folder_release(&f);
}

static void refused(struct core_config *c, enum q_code code, const char *part)
{
    struct q_err e = Q_ERR_INIT;
    device_choose(c, "/tests/libquire-fake.so");
    assert_ok(core_new(&engine.core, c, bits_sink, &engine, &e), &e);
    while (core_state(engine.core, NULL) == CORE_LOADING)
        run_once(&e);
    assert_int_equal(core_state(engine.core, NULL), CORE_FAILED);
    q_err_reset(&e);
    assert_fails(core_step(engine.core, &e), code, part, &e);
    core_free(engine.core);
}

/* A launch that fails while graphs are captured, or in the largest step: the start fails. */
static void a_launch_that_fails_at_the_start(void **state)
{
    (void)state;
    static const struct {
        const char *more, *part;
    } cases[] = {
        {", \"refuses\": 4",
         "capturing CUDA graphs (--enforce-eager disables them): plugin operation 1.0: operation "
         "shift: 4 rows are more than its launch takes"},
        {", \"refuses\": 48",
         "memory measurement with a step of 48 tokens: plugin operation 1.0: operation shift: 48 "
         "rows are more than its launch takes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        folder_init(&f);
        write_with(&f, "OperationForCausalLM", cases[i].more);
        struct core_config c = config_of(f.path);
        c.worker.max_num_batched_tokens = 48;
        c.worker.max_num_seqs = 8;
        use_plugin(&c, "operation.so");
        refused(&c, Q_INTERNAL, cases[i].part);
        folder_release(&f);
    }
}

static void what_has_no_code_for_a_device(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    write_like(&f, "OperationHereForCausalLM");
    struct core_config c = config_of(f.path);
    use_plugin(&c, "operation.so");
    refused(&c, Q_UNSUPPORTED,
            "operation here only of plugin operation 1.0 has no code for a device");
    folder_release(&f);
    folder_init(&f);
    write_like(&f, "OverrideForCausalLM");
    c = config_of(f.path);
    use_plugin(&c, "override.so");
    refused(&c, Q_UNSUPPORTED,
            "plugin override 1.0 computes the forward pass itself, which is not supported");
    folder_release(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_operations),
        cmocka_unit_test(a_launch_that_fails),
        cmocka_unit_test(a_launch_that_fails_at_the_start),
        cmocka_unit_test(positions),
        cmocka_unit_test(items_on_a_device),
        cmocka_unit_test(a_failed_item_on_a_device),
        cmocka_unit_test(host_functions_for_a_device),
        cmocka_unit_test(a_tensor_that_lies_on_the_device),
        cmocka_unit_test(what_has_no_code_for_a_device),
    };
    (void)argc;
    plugins_near(plugins_dir, argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
