/* SPDX-License-Identifier: Apache-2.0 */
/* plugin: what the engine says of a shared object that is no plugin or a wrong one, where it looks
 * for one, the config of an architecture that a plugin serves, and the items of its modalities. */
#include <math.h>
#include <unistd.h>
#include "common/hub/archs.h"
#include "engine/model/arch.h"
#include "engine/model/modality.h"
#include "engine/model/plugins.h"
#include "folder.h"
#include "plugins_near.h"

static char plugins_dir[PLUGINS_DIR_MAX];

static enum q_code open_plugins(const char *const *paths, uint32_t n, const char *search,
                                const char *dir, struct q_err *e)
{
    static struct plugins_config c;
    memset(&c, 0, sizeof c);
    const enum q_code rc = plugins_config_set(&c, paths, n, search, e);
    return rc ? rc : plugins_open(&c, dir, e);
}

static enum q_code open_one(const char *name, struct q_err *e)
{
    char path[PATH_MAX];
    const char *const paths[] = {path};
    snprintf(path, sizeof path, "%s/%s", plugins_dir, name);
    return open_plugins(paths, 1, "", NULL, e);
}

static const char llama_config[] = "\"vocab_size\": 512, \"hidden_size\": 64, "
                                   "\"intermediate_size\": 96, \"num_hidden_layers\": 2, "
                                   "\"num_attention_heads\": 4, \"max_position_embeddings\": 256";

static void write_config(const struct folder *f, const char *architecture, const char *more)
{
    char text[2000];
    snprintf(text, sizeof text, "{\"architectures\": [\"%s\"], \"model_type\": \"x\", %s%s}",
             architecture, llama_config, more);
    folder_text(f, "config.json", text);
}

/* ---- wrong ones ---- */

/* First: a shared object's constructors run once in a process. */
static void one_that_crashes_is_an_error(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"crash", "while it was loaded"},
        {"exit", "ended the process while it was loaded, with status 0"},
        {"crash in entry", "while it was loaded"},
        {"wild", "crashed while it was loaded: signal 11"},
        {"wild name", "crashed while it was loaded: signal 11"},
        {"wild list", "crashed while it was loaded: signal 11"},
        {"wild architecture", "crashed while it was loaded: signal 11"},
        {"wild pattern", "crashed while it was loaded: signal 11"},
    };
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("QUIRE_TEST_FAULT", cases[i][0], 1);
        assert_fails(open_one("faulty.so", &e), Q_UNAVAILABLE, cases[i][1], &e);
    }
    unsetenv("QUIRE_TEST_FAULT");
}

static void files_that_are_none(void **state)
{
    (void)state;
    struct folder f;
    struct q_err e = Q_ERR_INIT;
    char path[PATH_MAX];
    const char *const paths[] = {path};
    folder_init(&f);
    folder_text(&f, "text.so", "no shared object");
    assert_fails(open_one("no_such.so", &e), Q_NOT_FOUND, "no_such.so: no such file", &e);
    assert_fails(open_one("", &e), Q_NOT_FOUND, "is no file", &e);
    assert_fails(open_one("empty.so", &e), Q_CORRUPT, "does not export quire_plugin_1", &e);
    snprintf(path, sizeof path, "%s/text.so", f.path);
    assert_fails(open_plugins(paths, 1, "", NULL, &e), Q_CORRUPT, "not a shared object", &e);
    folder_release(&f);
}

static void each_fault_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *fault, *part;
        enum q_code code;
    } cases[] = {
        {"null", "gave NULL", Q_INVALID},
        {"abi", "version 99, this engine's is version 2", Q_MISMATCH},
        {"older abi", "its ABI is version 1, this engine's is version 2; build it with the engine/",
         Q_MISMATCH},
        {"small", "the plugin: size is ", Q_INVALID},
        {"newer", "built with a newer engine/plugin.h", Q_UNSUPPORTED},
        {"no name", "name is NULL", Q_INVALID},
        {"long name", "name has 64 characters or more, expected 1 to 63", Q_INVALID},
        {"bytes", "name is not UTF-8", Q_INVALID},
        {"huge count", "architectures: 4294967295 of them, expected at most 256", Q_INVALID},
        {"huge list", "maps: 1073741824 of them, expected at most 1024", Q_INVALID},
        {"control characters", "version has control characters", Q_INVALID},
        {"no architectures", "n_architecture is 0", Q_INVALID},
        {"null list", "architectures is NULL", Q_INVALID},
        {"null architecture", "architectures[0] is NULL", Q_INVALID},
        {"twice", "architectures[1] is FaultyForCausalLM", Q_INVALID},
        {"null operation", "operations[0] is NULL", Q_INVALID},
        {"no run", "operation own: run is NULL", Q_INVALID},
        {"base", "base FourierForCausalLM is no family of this engine; these are afmoe, ",
         Q_INVALID},
        {"taken", "plugin variation 1.0 (", Q_INVALID},
        {"config value", "config[0] (hidden_size): value \"{\" is not JSON", Q_INVALID},
        {"config size", "is \"a +  b\", expected a number", Q_INVALID},
        {"config nothing", "neither from nor value", Q_INVALID},
        {"setting key", "no setting \"colour\"; settings are norm, ", Q_INVALID},
        {"setting value", "qk_norm is \"whole heads\", expected one of none, heads, whole",
         Q_INVALID},
        {"setting null", "layer[0]: key or value is NULL", Q_INVALID},
        {"pattern", "maps[0]: pattern \"model.(\", at 7", Q_INVALID},
        {"map name", "maps[0]: name is empty", Q_INVALID},
        {"tensor id", "its id a is that of tensors[0]", Q_INVALID},
        {"tensor size", "tensor b: rows is \"\"", Q_INVALID},
        {"tensor kind", "tensor b: a vector has rows and no cols", Q_INVALID},
        {"tensor name", "has two %u", Q_INVALID},
        {"modality size", "modalities[0]: size is 8", Q_INVALID},
        {"modality dims", "n_dim is 5, expected 1 to 4", Q_INVALID},
        {"modality any", "dims_max[0] is 0", Q_INVALID},
        {"modality embed", "embed_item is NULL", Q_INVALID},
        {"modality tokens", "neither n_token nor count_tokens", Q_INVALID},
        {"modality twice", "its name or its placeholder -1 is that of things", Q_INVALID},
    };
    struct q_err e = Q_ERR_INIT;
    assert_ok(open_one("variation.so", &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("QUIRE_TEST_FAULT", cases[i].fault, 1);
        assert_fails(open_one("faulty.so", &e), cases[i].code, cases[i].part, &e);
        assert_null(archs_added_find("FaultyForCausalLM"));
    }
    setenv("QUIRE_TEST_FAULT", "newer and unused", 1); /* a newer header, nothing new of it */
    assert_ok(open_one("faulty.so", &e), &e);
    assert_non_null(archs_added_find("FaultyForCausalLM"));
    assert_string_equal(plugins_text("FaultyForCausalLM"), "faulty 0");
    assert_ok(open_one("faulty.so", &e), &e); /* again: it is there */
    unsetenv("QUIRE_TEST_FAULT");
}

static void too_many_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    const char *paths[PLUGINS_MAX + 1];
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, "%s/variation.so", plugins_dir);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        paths[i] = path;
    assert_ok(open_plugins(paths, PLUGINS_MAX, "", NULL, &e), &e);
    assert_fails(open_plugins(paths, PLUGINS_MAX + 1, "", NULL, &e), Q_INVALID, "more than 8 times",
                 &e);
}

/* ---- where it is looked for ---- */

static void link_plugin(const struct folder *f, const char *name, const char *as)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", plugins_dir, name);
    folder_link(f, as, path);
}

/* No folder is looked into for what is built in, or served already. */
static void the_search_path_is_for_what_is_missing(void **state)
{
    (void)state;
    struct folder model, first, second;
    char search[3 * PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    folder_init(&model);
    folder_init(&first);
    folder_init(&second);
    snprintf(search, sizeof search, "%s::%s:/no/such/folder", first.path, second.path);
    folder_text(&first, "ItemsForCausalLM.so", "no shared object");
    write_config(&model, "LlamaForCausalLM", "");
    assert_ok(open_plugins(NULL, 0, search, model.path, &e), &e);
    write_config(&model, "VariationForCausalLM", "");
    assert_ok(open_plugins(NULL, 0, search, model.path, &e), &e);
    write_config(&model, "NobodysForCausalLM", ""); /* which no family serves */
    assert_ok(open_plugins(NULL, 0, search, model.path, &e), &e);
    write_config(&model, "ItemsForCausalLM", ", \"action_dim\": 3");
    assert_fails(open_plugins(NULL, 0, search, model.path, &e), Q_CORRUPT, "ItemsForCausalLM.so",
                 &e);
    folder_release(&first);
    folder_init(&first);
    snprintf(search, sizeof search, "%s:%s", first.path, second.path);
    folder_text(&first, "a.so", "no shared object"); /* a warning: no option has named it */
    link_plugin(&second, "items.so", "b.so");
    assert_ok(open_plugins(NULL, 0, search, model.path, &e), &e);
    assert_string_equal(plugins_text("ItemsForCausalLM"), "items 2");
    folder_release(&first);
    folder_release(&second);
    folder_release(&model);
}

/* ---- config ---- */

static void a_variation_reads_its_own_keys(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architectures\": [\"VariationForCausalLM\"], \"model_type\": \"mine\", \"vocab_size\": "
        "512, \"dim\": 64, \"sizes\": {\"n_layers\": 2}, \"heads.q\": 4, \"heads\": {\"kv\": 2}, "
        "\"ffn_blocks\": 3, \"frames\": 8, \"frame_len\": 32, \"eps\": 1e-5, \"rope_theta\": 500}";
    struct model_config c, like;
    struct generation_defaults g;
    struct q_err e = Q_ERR_INIT;
    struct folder f;
    folder_init(&f);
    folder_text(&f, "config.json", text);
    assert_ok(model_config_load(&c, &g, f.path, &e), &e);
    assert_ok(model_config_load(&like, &g, "tests/data/models/llama", &e), &e);
    assert_string_equal(c.architecture, "VariationForCausalLM");
    assert_string_equal(c.model_type, "llama");
    assert_int_equal(c.hidden_size, like.hidden_size);
    assert_int_equal(c.intermediate_size, like.intermediate_size);
    assert_int_equal(c.n_layer, like.n_layer);
    assert_int_equal(c.n_head, like.n_head);
    assert_int_equal(c.n_kv_head, like.n_kv_head);
    assert_int_equal(c.head_dim, like.head_dim);
    assert_int_equal(c.max_position, like.max_position);
    assert_true(c.rms_norm_eps == like.rms_norm_eps);
    assert_true(c.rope.theta == 500); /* the file's, before the rule's default */
    folder_text(&f, "config.json",
                "{\"architectures\": [\"VariationForCausalLM\"], \"vocab_size\": 512, \"dim\": 64, "
                "\"ffn_blocks\": -3}");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT,
                 "ffn_blocks is a whole number, expected a whole number above 0", &e);
    folder_release(&f);
}

static void settings_change_the_layer(void **state)
{
    (void)state;
    const struct arch *a, *base;
    struct q_err e = Q_ERR_INIT;
    assert_ok(arch_find(&a, "VariationForCausalLM", &e), &e);
    assert_ok(arch_find(&base, "LlamaForCausalLM", &e), &e);
    assert_string_equal(a->name, "VariationForCausalLM");
    assert_int_equal(a->layer.activations, 1u << ARCH_SILU | 1u << ARCH_GELU);
    assert_int_equal(a->layer.norm, base->layer.norm);
    assert_int_equal(a->n_tensor, base->n_tensor);
    assert_ok(arch_find(&a, "FaultyForCausalLM", &e), &e);
    assert_int_equal(a->layer.qk_norm, ARCH_QK_NORM_HEADS);
}

/* A process that does not load plugins takes what it needs of a config that it cannot know. */
static void a_frontend_needs_no_plugin(void **state)
{
    (void)state;
    struct model_config c;
    struct generation_defaults g;
    struct q_err e = Q_ERR_INIT;
    struct folder f;
    folder_init(&f);
    write_config(&f, "NobodysForCausalLM", ", \"eos_token_id\": 7");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_UNSUPPORTED, "and by plugins ", &e);
    assert_ok(model_config_load_any(&c, &g, f.path, &e), &e);
    assert_int_equal(c.vocab_size, 512);
    assert_int_equal(c.max_position, 256);
    assert_int_equal(c.eos_ids[0], 7);
    folder_text(&f, "config.json", "{\"architectures\": [\"NobodysForCausalLM\"]}");
    assert_ok(model_config_load_any(&c, &g, f.path, &e), &e);
    assert_int_equal(c.vocab_size, 1u << 24);
    write_config(&f, "LlamaForCausalLM", ", \"num_key_value_heads\": 3");
    assert_fails(model_config_load_any(&c, &g, f.path, &e), Q_CORRUPT, "num_key_value_heads", &e);
    folder_release(&f);
}

/* ---- modalities ---- */

static void open_items(struct modalities **m, struct folder *f, const char *more)
{
    struct q_err e = Q_ERR_INIT;
    folder_init(f);
    write_config(f, "ItemsForCausalLM", more);
    assert_ok(modalities_open(m, f->path, NULL, &e), &e);
}

static const char items_config[] =
    ", \"action_dim\": 3, \"num_frames\": 5, \"actions_per_frame\": 6, \"clip_max\": 1.5";

static void modalities_are_resolved(void **state)
{
    (void)state;
    struct modalities *m;
    struct folder f;
    struct q_err e = Q_ERR_INIT;
    struct quire_item item;
    open_items(&m, &f, items_config);
    assert_int_equal(m->n, 3);
    assert_string_equal(m->rows[0].name, "actions");
    assert_string_equal(m->rows[0].part_type, "action");
    assert_int_equal(m->rows[0].placeholder, 0xfffffffdu);
    assert_int_equal(m->rows[0].dims[0], 3);
    assert_int_equal(m->rows[0].n_token, 1);
    assert_int_equal(m->rows[0].max_items, 30);
    assert_int_equal(m->rows[1].dims[0], 0);
    assert_int_equal(m->rows[1].n_token, 0);
    assert_true(m->rows[1].expand);
    assert_int_equal(m->rows[2].max_items, MODALITY_ITEMS_LIMIT);
    assert_int_equal(modality_find(m, "clips"), 1);
    assert_int_equal(modality_find(m, "images"), 3);
    assert_int_equal(modality_of_placeholder(m, (uint32_t)-4), 1);
    assert_int_equal(modality_of_placeholder(m, 7), 2);
    assert_int_equal(modality_of_placeholder(m, 8), 3);
    modality_largest(m, 1, &item);
    assert_int_equal(item.dims[0], 64);
    assert_int_equal(item.n_token, 16);
    assert_int_equal(item.n_byte, 256);
    modalities_free(m);
    assert_ok(modalities_open(&m, "tests/data/models/llama", NULL, &e), &e);
    assert_int_equal(m->n, 0);
    modalities_free(m);
    write_config(&f, "ItemsForCausalLM", ", \"action_dim\": 3");
    assert_fails(modalities_open(&m, f.path, NULL, &e), Q_CORRUPT, "num_frames is missing", &e);
    write_config(&f, "ItemsForCausalLM",
                 ", \"action_dim\": 3, \"num_frames\": 66000, \"actions_per_frame\": 1");
    assert_fails(modalities_open(&m, f.path, NULL, &e), Q_CORRUPT, "above 65536", &e);
    folder_release(&f);
}

static const float numbers[64] = {0.5f, NAN, 1};
static const float many[8] = {9};
static const struct {
    uint32_t i;
    struct quire_item item;
    const char *part; /* NULL: taken, with so many rows */
    uint32_t n_token;
} items[] = {
    {0, {.index = 2, .n_dim = 1, .dims = {3}, .data = many, .n_byte = 12}, NULL, 1},
    {0,
     {.index = 3, .n_dim = 1, .dims = {2}, .data = numbers, .n_byte = 8},
     "actions[3]: shape [2] is not [3]",
     0},
    {0,
     {.n_dim = 2, .dims = {3, 1}, .data = numbers, .n_byte = 12},
     "actions[0]: shape [3, 1] is not [3]",
     0},
    {0,
     {.dtype = QUIRE_U8, .n_dim = 1, .dims = {3}, .data = numbers, .n_byte = 3},
     "actions[0]: dtype u8 is not f32",
     0},
    {0,
     {.n_dim = 1, .dims = {3}, .data = numbers, .n_byte = 11},
     "actions[0]: 11 bytes are not the 12 of f32 [3]",
     0},
    {0,
     {.n_dim = 1, .dims = {3}, .data = numbers, .n_byte = 12},
     "actions[0]: number 1 of it is not a number",
     0},
    {1,
     {.index = 1, .n_dim = 1, .dims = {65}, .data = numbers, .n_byte = 260},
     "clips[1]: shape [65] is not [1…64]",
     0},
    {1,
     {.index = 1, .n_dim = 1, .dims = {0}, .data = numbers, .n_byte = 0},
     "clips[1]: shape [0] is not [1…64]",
     0},
    {1,
     {.n_dim = 1, .dims = {6}, .data = numbers, .n_byte = 24},
     "clips[0]: plugin items 2: its length is no multiple of 4",
     0},
    {1,
     {.n_dim = 1, .dims = {2}, .data = numbers, .n_byte = 8},
     "plugin items 2 says that it becomes 0 rows",
     0},
    {1,
     {.n_dim = 1, .dims = {8}, .data = many, .n_byte = 32},
     "clips[0]: plugin items 2: a number is beyond clip_max",
     0},
    {1, {.n_dim = 1, .dims = {60}, .data = numbers + 4, .n_byte = 240}, NULL, 15},
    {2, {.dtype = QUIRE_U8, .n_dim = 2, .dims = {2, 3}, .data = many, .n_byte = 6}, NULL, 2},
    {2,
     {.dtype = QUIRE_U8, .n_dim = 2, .dims = {3, 2}, .data = many, .n_byte = 6},
     "marks[0]: shape [3, 2] is not [2, 3]",
     0},
};

static void items_are_checked(void **state)
{
    (void)state;
    struct modalities *m;
    struct folder f;
    struct q_err e = Q_ERR_INIT;
    open_items(&m, &f, items_config);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        struct quire_item item = items[i].item;
        const enum q_code rc = modality_check(m, items[i].i, &item, &e);
        if (items[i].part) {
            assert_fails(rc, Q_INVALID, items[i].part, &e);
            continue;
        }
        assert_ok(rc, &e);
        assert_int_equal(item.n_token, items[i].n_token);
    }
    modalities_free(m);
    folder_release(&f);
}

/* An item with any header is refused or is one that the modality accepts. */
static void items_at_random(void **state)
{
    (void)state;
    enum { N = 200000, BYTES = 4096 };
    static float data[BYTES / sizeof(float)];
    uint64_t seed = 20261123;
    uint32_t n_taken = 0;
    struct modalities *m;
    struct folder f;
    open_items(&m, &f, items_config);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t r[12];
        struct q_err e = Q_ERR_INIT;
        for (size_t k = 0; k < sizeof r / sizeof *r; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            r[k] = (uint32_t)(seed >> 33);
        }
        struct quire_item item = {.index = r[0], .n_dim = r[1] % 6, .data = data};
        item.dtype = (enum quire_dtype)(r[2] % 4);
        for (uint32_t k = 0; k < QUIRE_DIMS_MAX; k++)
            item.dims[k] = r[3] % 7 ? r[4 + k] % 5 : r[4 + k];
        item.n_byte = r[9] % 3 ? modality_item_bytes(&item) : r[10];
        if (item.n_byte > BYTES && r[11] % 2)
            item.n_byte = BYTES;
        const enum q_code rc = modality_check(m, r[8] % m->n, &item, &e);
        assert_true(rc == Q_OK || (rc == Q_INVALID && strlen(e.message) > 10));
        n_taken += rc == Q_OK;
        if (!rc)
            assert_true(item.n_byte <= BYTES && item.n_token >= 1 && item.n_token <= 16);
    }
    print_message("%u of %u items are taken\n", n_taken, N);
    assert_true(n_taken > 50);
    modalities_free(m);
    folder_release(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_crashes_is_an_error),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(too_many_are_refused),
        cmocka_unit_test(the_search_path_is_for_what_is_missing),
        cmocka_unit_test(a_variation_reads_its_own_keys),
        cmocka_unit_test(settings_change_the_layer),
        cmocka_unit_test(a_frontend_needs_no_plugin),
        cmocka_unit_test(modalities_are_resolved),
        cmocka_unit_test(items_are_checked),
        cmocka_unit_test(items_at_random),
    };
    (void)argc;
    plugins_near(plugins_dir, argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
