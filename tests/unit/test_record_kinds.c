/* SPDX-License-Identifier: Apache-2.0 */
/* --record and quire replay of steps that refer to more than tokens: a draft model, LoRA adapters,
 * states of sequences, inputs that are no tokens. Pools are small and files too, so that each file
 * begins with running sequences, shared blocks, swapped ones and snapshots. */
#include "record_run.h"
#include "common/mem.h"
#include "engine/model/plugins.h"
#include "items_run.h"

#define LORA_DIR   "tests/data/lora"
#define FILE_BYTES 6000u

static struct q_err e;

static int setup(void **state)
{
    (void)state;
    folder_init(&record_folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&record_folder);
    return 0;
}

/* Room for few sequences, and swap space. */
static struct core_config small(const char *dir, const char *name, uint64_t file_bytes)
{
    struct core_config c = record_config(bits_config(dir), name, file_bytes);
    c.worker.n_block = 30;
    c.worker.max_num_seqs = 4;
    c.worker.max_num_batched_tokens = 48;
    c.worker.swap_bytes = 1 << 22;
    c.policy.preemption = PREEMPT_SWAP;
    return c;
}

static void submit(const struct golden_prompt *p, uint32_t id, const char *adapter)
{
    const struct msg_submit m = {
        .req_id = id,
        .prompt = {p->ids, p->n},
        .temperature = id % 2 ? 1 : 0,
        .seed = id,
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = p->n_greedy,
        .ignore_eos = true,
        .n_logprob = id % 3 ? 2 : 0,
        .adapter = {adapter, strlen(adapter)},
    };
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* Until n requests have ended; now and then the last running one is preempted. */
static struct scheduler_stats finish(uint32_t n)
{
    struct scheduler_stats s;
    for (uint32_t i = 0; engine.n_finished < n; i++) {
        bits_turn(&engine);
        if (i % 5 == 4)
            core_preempt_last(engine.core);
    }
    core_stats(engine.core, &s);
    core_free(engine.core);
    return s;
}

/* n requests, beside the i-th one the adapter adapters[i % 3]. */
static struct scheduler_stats run(const struct core_config *c, const struct golden *g, uint32_t n,
                                  const char *const adapters[3])
{
    open_core(c);
    for (uint32_t i = 0; i < n; i++)
        submit(&g->prompts[i % g->n], i, adapters[i % 3]);
    assert_ok(core_step(engine.core, &e), &e);
    return finish(n);
}

static const char *const no_adapters[] = {"", "", ""};

static void check_files(const struct core_config *c, const struct scheduler_stats *s,
                        const char *what)
{
    uint32_t n_file;
    uint64_t n_filled;
    assert_int_equal(replay_all(c, &n_file, &n_filled), s->step);
    print_message("%s: %u files, %llu steps, %llu rows computed first, %llu swapped in\n", what,
                  n_file, (unsigned long long)s->step, (unsigned long long)n_filled,
                  (unsigned long long)s->n_swap_in);
    assert_true(n_file > 2 && n_filled > 0);
}

static void draft_models(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct core_config c = small(g.dir, "draft", FILE_BYTES);
    assert_ok(speculative_parse(&c.worker.speculation,
                                "{\"model\": \"" GOLDENS_DIR
                                "/llama-draft\", \"num_speculative_tokens\": 3}",
                                &e),
              &e);
    const struct scheduler_stats s = run(&c, &g, 4 * g.n, no_adapters);
    assert_true(s.n_accepted_token > 0);
    check_files(&c, &s, "draft");
}

static void states_of_sequences(void **state)
{
    (void)state;
    static const char *const names[] = {"mamba2", "jamba", "lfm2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct golden g;
        golden_get(&g, names[i]);
        struct core_config c = small(g.dir, names[i], FILE_BYTES);
        const struct scheduler_stats s = run(&c, &g, 4 * g.n, no_adapters);
        check_files(&c, &s, names[i]);
    }
}

/* ---- adapters ---- */

static struct adapter_module module_of(const char *name, const char *path)
{
    struct adapter_module m;
    snprintf(m.name, sizeof m.name, "%s", name);
    snprintf(m.path, sizeof m.path, "%s", path);
    return m;
}

/* Two adapters, and room in memory for one: each is loaded several times. */
static void set_adapters(struct core_config *c, const char *second)
{
    c->worker.max_lora_rank = 8;
    c->worker.lora_dtype_auto = true;
    c->adapters = (struct adapter_settings){.max_loras = 1, .max_in_memory = 1, .n = 2};
    c->adapters.modules = q_calloc(2, sizeof *c->adapters.modules);
    c->adapters.modules[0] = module_of("first", LORA_DIR "/llama-lora-r4");
    c->adapters.modules[1] = module_of("second", second);
}

static void lora_adapters(void **state)
{
    (void)state;
    static const char *const adapters[] = {"", "first", "second"};
    struct golden g;
    golden_get(&g, "llama");
    struct core_config c = small(g.dir, "adapters", FILE_BYTES);
    set_adapters(&c, LORA_DIR "/llama-lora-r8");
    const struct scheduler_stats s = run(&c, &g, 4 * g.n, adapters);
    c.adapters.modules = NULL; /* core_new has taken them; the file says where they are */
    c.adapters.n = 0;
    check_files(&c, &s, "adapters");
}

static enum q_code replay_again(const struct core_config *c, struct replay_difference *out)
{
    static struct replay r;
    struct mapping m = MAPPING_INIT;
    enum q_code rc;
    r = (struct replay)REPLAY_INIT;
    r.config = *c;
    q_err_reset(&e);
    assert_ok(mapping_open(&m, c->record.path, &e), &e);
    assert_ok(record_open(&r.file, m.data, m.size, &e), &e);
    assert_ok(replay_open(&r, &e), &e);
    rc = replay_run(&r, &e);
    *out = r.difference;
    replay_release(&r);
    mapping_release(&m);
    return rc;
}

/* Files that moved are found by their digest; others are refused with the place to name them. */
static void an_adapter_that_moved_is_found(void **state)
{
    (void)state;
    static const char *const adapters[] = {"second", "first", "second"};
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    char here[PATH_MAX], there[PATH_MAX];
    struct folder moved;
    struct golden g;
    struct replay_difference d;
    folder_init(&moved);
    golden_get(&g, "llama");
    for (size_t i = 0; i < 2; i++)
        folder_copy(&moved, LORA_DIR "/llama-lora-r8", files[i]);
    struct core_config c = small(g.dir, "moved", 1 << 30);
    set_adapters(&c, moved.path);
    run(&c, &g, 4, adapters);
    c.adapters.n = 0;
    assert_ok(replay_again(&c, &d), &e);
    assert_int_equal(d.step, 0);
    snprintf(here, sizeof here, "%s", moved.path);
    snprintf(there, sizeof there, "%s-moved", moved.path);
    assert_int_equal(rename(here, there), 0);
    assert_int_equal(replay_again(&c, &d), Q_MISMATCH);
    assert_non_null(strstr(e.message, "--lora-modules"));
    struct adapter_module modules[] = {module_of("other", LORA_DIR "/llama-lora-r4"),
                                       module_of("any", there)};
    c.adapters.modules = modules;
    c.adapters.n = 2;
    assert_ok(replay_again(&c, &d), &e);
    assert_int_equal(d.step, 0);
    assert_int_equal(rename(there, here), 0);
    folder_release(&moved);
}

/* ---- items ---- */

static void set_plugins(struct core_config *c)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", program_beside("/tests/plugins/grids.so"));
    const char *paths[] = {path};
    assert_ok(plugins_config_set(&c->worker.plugins, paths, 1, "", &e), &e);
    c->worker_program = program_beside("/bin/quire-worker"); /* its memory is the one path */
}

/* The same prompts come again, so that some items are in cached blocks alone. */
static void inputs_that_are_no_tokens(void **state)
{
    (void)state;
    static struct items_request requests[3];
    const uint32_t n = 12;
    items_model();
    struct core_config c = small(items_folder.path, "items", 2 * FILE_BYTES);
    set_plugins(&c);
    c.items.store_bytes = 1u << 20;
    c.worker.max_num_batched_tokens = 16; /* chunks end within items */
    for (uint32_t i = 0; i < 3; i++)
        make_mixed(&requests[i], i);
    open_core(&c);
    for (uint32_t i = 0; i < n; i++)
        ask_items(&requests[i % 3], i);
    assert_ok(core_step(engine.core, &e), &e);
    const struct scheduler_stats s = finish(n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(answers[i].finish, FINISH_LENGTH);
    check_files(&c, &s, "items");
    folder_release(&items_folder);
}

/* ---- damaged files ---- */

/* A table that a slot still reads is not overwritten, and one that the file does not have is not
 * read. */
static void items_of_a_hostile_file_are_refused(void **state)
{
    (void)state;
    struct record_table t;
    const struct step_limits l = {.max_num_seqs = 2, .max_model_len = 64, .item_mib = 1};
    struct step_item items[2] = {
        {.offset = 256, .n_byte = 8, .n_token = 1, .n_dim = 1, .dims = {2}, .dtype = ITEM_F32},
        {.offset = 272, .n_byte = 4, .position = 1, .n_token = 1, .dtype = ITEM_F32},
    };
    const struct record_items head = {.offset = 0, .i_admit = 1, .n_item = 2};
    static unsigned char store[1 << 20];
    struct buf frame = BUF_INIT;
    record_put_items(&frame, &head, items, store);
    unsigned char *payload = (unsigned char *)frame.data + 16;
    const size_t n = sizeof head + sizeof items + 16;
    assert_ok(record_read_items(&t, payload, n, &l, &e), &e);
    assert_fails(record_read_items(&t, payload, n - 1, &l, &e), Q_CORRUPT, "cut", &e);
    assert_fails(record_read_items(&t, payload, n + 8, &l, &e), Q_CORRUPT, "more contents", &e);
    assert_fails(record_read_items(&t, payload, sizeof head, &l, &e), Q_CORRUPT, "table", &e);
    struct record_items *h = (struct record_items *)(void *)payload;
    h->offset = (1 << 20) - 8;
    assert_fails(record_read_items(&t, payload, n, &l, &e), Q_CORRUPT, "table", &e);
    *h = head;
    h->i_admit = 2;
    assert_fails(record_read_items(&t, payload, n, &l, &e), Q_CORRUPT, "table", &e);
    *h = head;
    struct step_item *x = (struct step_item *)(void *)(h + 1);
    x->offset = 1 << 20;
    assert_fails(record_read_items(&t, payload, n, &l, &e), Q_CORRUPT, "not in the store", &e);
    buf_release(&frame);
}

/* One slot is admitted with a table, another one's contents fall on it. */
static void a_table_in_use_is_not_overwritten(void **state)
{
    (void)state;
    static unsigned char memory[4096];
    static struct replay r;
    struct step_item item = {.offset = 1024, .n_byte = 64, .n_token = 1};
    struct record_table t = {.head = {.offset = 0, .n_item = 1}, .items = &item};
    struct step_head head = {.n_seq = 1};
    struct step_seq seq = {.slot = 0, .n_token = 1};
    const struct step_view v = {.head = &head, .seqs = &seq};
    unsigned char contents[64] = {0};
    t.contents = contents;
    r = (struct replay)REPLAY_INIT;
    r.file.head.limits.max_num_seqs = 2;
    assert_ok(replay_items_init(&r, &e), &e);
    r.items.store.memory = memory;
    replay_items_place(&r, 0, &t);
    assert_ok(replay_items_check(&r, &v, &e), &e);
    t.head.offset = 2048; /* its contents lie where they lay */
    replay_items_place(&r, 1, &t);
    assert_ok(replay_items_check(&r, &v, &e), &e);
    item.offset = 32;
    replay_items_place(&r, 1, &t);
    assert_fails(replay_items_check(&r, &v, &e), Q_CORRUPT, "overwritten", &e);
    r.items.store.memory = NULL;
    replay_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_models),
        cmocka_unit_test(states_of_sequences),
        cmocka_unit_test(lora_adapters),
        cmocka_unit_test(an_adapter_that_moved_is_found),
        cmocka_unit_test(inputs_that_are_no_tokens),
        cmocka_unit_test(items_of_a_hostile_file_are_refused),
        cmocka_unit_test(a_table_in_use_is_not_overwritten),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
