/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_core: an engine with a plugin whose forward pass fails or crashes for one token, whose
 * operation fails for one, or whose embed_item does for one item: the request with it ends with an
 * error, the others have the tokens that they have without it, and the engine continues. The worker
 * process loads the plugin by itself. */
#include "core_run.h"
#include "engine/core/fingerprint.h"
#include "folder.h"
#include "items_run.h"
#include "plugins_near.h"

static char plugins_dir[PLUGINS_DIR_MAX];

struct near_model {
    const char *architecture, *file; /* of tests/plugins */
};
static const struct near_model override = {"OverrideForCausalLM", "override.so"};
static const struct near_model operation = {"OperationForCausalLM", "operation.so"};

/* Llama's golden weights as a model of a plugin; more: of its config.json. */
static void make_model(struct core_config *c, struct folder *f, const struct near_model *m,
                       const char *more)
{
    char text[1200], path[PATH_MAX];
    const char *const paths[] = {path};
    struct q_err e = Q_ERR_INIT;
    folder_init(f);
    snprintf(text, sizeof text,
             "{\"architectures\": [\"%s\"], \"model_type\": \"llama\", "
             "\"vocab_size\": 512, \"hidden_size\": 64, \"intermediate_size\": 96, "
             "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
             "\"hidden_act\": \"silu\", \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-05, "
             "\"rope_theta\": 1000000.0%s}",
             m->architecture, more);
    folder_text(f, "config.json", text);
    assert_non_null(realpath("tests/data/models/llama/model.safetensors", path));
    folder_link(f, "model.safetensors", path);
    *c = config_of(f->path);
    c->in_process = false;
    c->worker_program = program_beside("/bin/quire-worker");
    snprintf(path, sizeof path, "%s/%s", plugins_dir, m->file);
    assert_ok(plugins_config_set(&c->worker.plugins, paths, 1, "", &e), &e);
    assert_ok(plugins_open(&c->worker.plugins, f->path, &e), &e);
}

static void make_config(struct core_config *c, struct folder *f, const char *more)
{
    make_model(c, f, &override, more);
}

static bool is_in_prompts(const struct golden *g, uint32_t token)
{
    bool found = false;
    for (uint32_t i = 0; i < g->n; i++) {
        for (uint32_t k = 0; k < g->prompts[i].n; k++)
            found = found || g->prompts[i].ids[k] == token;
        for (uint32_t k = 0; k < g->prompts[i].n_greedy; k++)
            found = found || g->prompts[i].greedy[k] == token;
    }
    return found;
}

/* One that no other request has. */
static uint32_t bad_token(const struct golden *g)
{
    uint32_t token = 3;
    while (is_in_prompts(g, token))
        token++;
    return token;
}

/* n requests, of which number `bad` has that prompt. */
static void submit_all(const struct golden *g, uint32_t n, uint32_t bad,
                       const struct golden_prompt *p)
{
    for (uint32_t i = 0; i < n; i++)
        submit_prompt(i, i == bad ? p : &g->prompts[i % g->n], 0);
    finish_all(n);
    for (uint32_t i = 0; i < n; i++)
        if (i != bad)
            check_answer(i, &g->prompts[i % g->n], "with a plugin");
}

/* The same with a token that no other request has. */
static void run_all(const struct core_config *c, const struct golden *g, uint32_t n, uint32_t bad)
{
    const struct golden_prompt p = {.ids = {11, bad_token(g), 12}, .n = 3, .n_greedy = 24};
    open_core(c);
    submit_all(g, n, bad, &p);
}

static void the_family_s_tokens(void **state)
{
    (void)state;
    struct golden g;
    struct folder f;
    struct core_config c;
    golden_get(&g, "llama");
    make_config(&c, &f, "");
    run_all(&c, &g, g.n, UINT32_MAX);
    assert_int_equal(core_n_restart(engine.core), 0);
    core_free(engine.core);
    folder_release(&f);
}

static void a_crash_is_blamed_on_its_request(void **state)
{
    (void)state;
    struct golden g;
    struct folder f;
    struct core_config c;
    struct q_err e = Q_ERR_INIT;
    char more[60];
    golden_get(&g, "llama");
    snprintf(more, sizeof more, ", \"crashes_at\": %u", bad_token(&g));
    make_config(&c, &f, more);
    run_all(&c, &g, 5, 2);
    assert_int_equal(answers[2].finish, FINISH_ERROR);
    assert_non_null(strstr(engine.notes[2].why.message, "crashed each time it computed this"));
    assert_ok(core_step(engine.core, &e), &e);
    assert_true(core_state(engine.core, NULL) != CORE_FAILED);
    assert_true(core_n_restart(engine.core) >= 2);
    core_free(engine.core);
    folder_release(&f);
}

static void an_error_ends_its_request(void **state)
{
    (void)state;
    struct golden g;
    struct folder f;
    struct core_config c;
    char more[60];
    golden_get(&g, "llama");
    snprintf(more, sizeof more, ", \"fails_at\": %u", bad_token(&g));
    make_config(&c, &f, more);
    run_all(&c, &g, 3, 1);
    assert_int_equal(answers[1].finish, FINISH_ERROR);
    assert_string_equal(engine.notes[1].why.message,
                        "the request could not be computed: plugin override 1.0: forward: a token "
                        "it does not want");
    assert_int_equal(core_n_restart(engine.core), 0);
    core_free(engine.core);
    folder_release(&f);
}

/* An operation fails in a step of several requests, in chunks and not, for a token of the prompt;
 * then the others answer again from the prefix cache. Its sentence is the request's error. */
static void an_operation_s_error_ends_its_request(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {5, 16, 128};
    struct golden g;
    struct folder f;
    struct core_config c;
    char more[60], expected[200];
    golden_get(&g, "llama");
    const uint32_t bad = bad_token(&g);
    const struct golden_prompt p = {.ids = {11, bad, 12}, .n = 3, .n_greedy = 24};
    snprintf(more, sizeof more, ", \"fails_at\": %u", bad);
    snprintf(expected, sizeof expected,
             "the request could not be computed: plugin operation 1.0: operation shift: token %u "
             "is not one that it takes",
             bad);
    make_model(&c, &f, &operation, more);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        c.worker.max_num_batched_tokens = chunks[i];
        c.worker.max_num_seqs = 5;
        open_core(&c);
        for (uint32_t k = 0; k < 2; k++) {
            submit_all(&g, 5, 2, &p);
            assert_int_equal(answers[2].finish, FINISH_ERROR);
            assert_int_equal(answers[2].n, 0);
            assert_string_equal(engine.notes[2].why.message, expected);
            bits_forget(&engine);
        }
        assert_int_equal(core_n_restart(engine.core), 0);
        core_free(engine.core);
    }
    folder_release(&f);
}

/* One that computes the rows whose logits are asked for. */
static void an_operation_s_error_behind_the_final_norm(void **state)
{
    (void)state;
    struct golden g;
    struct folder f;
    struct core_config c;
    char more[60];
    golden_get(&g, "llama");
    const struct golden_prompt p = {.ids = {11, 12, bad_token(&g)}, .n = 3, .n_greedy = 24};
    snprintf(more, sizeof more, ", \"marks\": %u", bad_token(&g));
    make_model(&c, &f, &operation, more);
    open_core(&c);
    submit_all(&g, 5, 2, &p);
    assert_int_equal(answers[2].finish, FINISH_ERROR);
    assert_string_equal(engine.notes[2].why.message,
                        "the request could not be computed: plugin operation 1.0: operation keep: "
                        "a row of 64 columns is marked");
    assert_int_equal(core_n_restart(engine.core), 0);
    core_free(engine.core);
    folder_release(&f);
}

/* ---- items ---- */

static struct items_request with_items[5];

/* The grids model, whose items another process computes. */
static struct core_config items_process(void)
{
    char path[PATH_MAX];
    const char *const paths[] = {path};
    struct q_err e = Q_ERR_INIT;
    items_model();
    struct core_config c = items_config();
    c.in_process = false;
    c.worker_program = program_beside("/bin/quire-worker");
    snprintf(path, sizeof path, "%s/grids.so", plugins_dir);
    assert_ok(plugins_config_set(&c.worker.plugins, paths, 1, "", &e), &e);
    return c;
}

/* Each request has items of its own; the first grid of number 2 begins with `bad`. */
static void ask_all(double bad)
{
    for (uint32_t i = 0; i < 5; i++) {
        make_mixed(&with_items[i], i == 2 ? bad : i);
        ask_items(&with_items[i], i);
    }
    finish_all(5);
}

/* What the others answer beside a request that fails is what they answer beside one that does
 * not. Returns the number of restarts. */
static uint64_t fails_alone(double bad)
{
    static struct bits_answer whole[5];
    struct core_config c = items_process();
    open_core(&c);
    ask_all(50);
    memcpy(whole, answers, sizeof whole);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(whole[i].finish, FINISH_LENGTH);
    bits_forget(&engine);
    ask_all(bad);
    for (uint32_t i = 0; i < 5; i++)
        if (i != 2 && memcmp(&whole[i], &answers[i], sizeof whole[i]) != 0)
            fail_msg("request %u has other bits beside a failed one", i);
    assert_int_equal(answers[2].finish, FINISH_ERROR);
    assert_int_equal(answers[2].n, 0);
    const struct q_err why = engine.notes[2].why;
    bits_forget(&engine);
    ask_all(50); /* it still answers */
    assert_int_equal(memcmp(whole, answers, sizeof whole), 0);
    assert_int_equal(core_item_bytes(engine.core), 0);
    const uint64_t n = core_n_restart(engine.core);
    assert_true((n > 0) == (strstr(why.message, "crashed each time it computed this") != NULL));
    core_free(engine.core);
    folder_release(&items_folder);
    return n;
}

static void a_crash_of_an_item_is_blamed_on_its_request(void **state)
{
    (void)state;
    assert_true(fails_alone(999) >= 2);
}

static void an_item_s_error_ends_its_request(void **state)
{
    (void)state;
    assert_int_equal(fails_alone(666), 0);
}

/* Last: from here on a plugin serves Llama in place of the built-in family. */
static void the_fingerprint_has_the_plugin(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    struct worker_info info = {.n_block = 1};
    char before[FINGERPRINT_MAX], after[FINGERPRINT_MAX], path[PATH_MAX];
    const char *const paths[] = {path};
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    assert_ok(fingerprint_make(before, &c.worker, &info, NULL, &e), &e);
    snprintf(path, sizeof path, "%s/faulty.so", plugins_dir);
    setenv("QUIRE_TEST_FAULT", "built in", 1);
    assert_ok(plugins_config_set(&c.worker.plugins, paths, 1, "", &e), &e);
    assert_ok(plugins_open(&c.worker.plugins, NULL, &e), &e);
    assert_string_equal(plugins_text("LlamaForCausalLM"), "faulty 0");
    assert_ok(fingerprint_make(after, &c.worker, &info, NULL, &e), &e);
    assert_string_not_equal(before, after);
    unsetenv("QUIRE_TEST_FAULT");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_family_s_tokens),
        cmocka_unit_test(a_crash_is_blamed_on_its_request),
        cmocka_unit_test(an_error_ends_its_request),
        cmocka_unit_test(an_operation_s_error_ends_its_request),
        cmocka_unit_test(an_operation_s_error_behind_the_final_norm),
        cmocka_unit_test(a_crash_of_an_item_is_blamed_on_its_request),
        cmocka_unit_test(an_item_s_error_ends_its_request),
        cmocka_unit_test(the_fingerprint_has_the_plugin),
    };
    (void)argc;
    plugins_near(plugins_dir, argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
