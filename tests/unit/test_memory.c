/* SPDX-License-Identifier: Apache-2.0 */
/* memory: how many KV blocks come of which flags and how much memory, and what is said when one
 * sequence does not fit. */
#include <stdlib.h>
#include "check.h"
#include "common/log.h"
#include "engine/worker/memory.h"
#include "dummy.h"
#include "folder.h"

#define MIB ((uint64_t)1 << 20)

static struct worker_config config;
static struct step_limits limits;
static struct memory_need need;
static struct q_err e;

/* 4 sequences of 1000 tokens (63 blocks of 1 MiB each) on a machine of 1000 MiB, of which weights,
 * activations and steps take 100. */
static int setup(void **state)
{
    (void)state;
    config = (struct worker_config){.n_block = 0};
    limits = (struct step_limits){.max_num_seqs = 4, .max_model_len = 1000};
    need = (struct memory_need){
        .weight_bytes = 80 * MIB,
        .activation_bytes = 15 * MIB,
        .step_bytes = 5 * MIB,
        .block_bytes = MIB,
        .total_bytes = 1000 * MIB,
    };
    q_err_reset(&e);
    return 0;
}

static uint32_t blocks(void)
{
    uint32_t n = 0;
    assert_ok(memory_blocks(&n, &config, &limits, &need, &e), &e);
    return n;
}

static void the_default_fits_the_load_and_half_of_the_memory(void **state)
{
    (void)state;
    assert_int_equal(blocks(), 4 * 63);
    limits.max_num_seqs = 256;
    assert_int_equal(blocks(), 500 - 100);
    need.total_bytes = UINT64_MAX; /* unknown */
    assert_int_equal(blocks(), 256 * 63);
    need.total_bytes = 300 * MIB; /* half leaves 50 blocks, 0.9 enough for one sequence */
    assert_int_equal(blocks(), 63);
}

static void flags_are_taken_at_their_word(void **state)
{
    (void)state;
    config.memory_part = 0.9;
    assert_int_equal(blocks(), 900 - 100); /* more than the load needs: it was asked for */
    config.kv_bytes = 70 * MIB + MIB / 2;
    assert_int_equal(blocks(), 70);
    config.kv_bytes = 5000 * MIB; /* more than there is: a warning */
    assert_int_equal(blocks(), 5000);
    config.n_block = 64;
    assert_int_equal(blocks(), 64);
    need.total_bytes = UINT64_MAX;
    assert_int_equal(blocks(), 64);
}

static void too_little_is_refused_with_ways_out(void **state)
{
    (void)state;
    uint32_t n;
    need.total_bytes = 130 * MIB; /* 0.9 of it leaves 17 blocks, half of it none */
    assert_int_equal(memory_blocks(&n, &config, &limits, &need, &e), Q_NO_MEMORY);
    assert_non_null(
        strstr(e.message, "raise --gpu-memory-utilization, or a smaller --kv-cache-dtype"));
    assert_null(strstr(e.message, "--max-model-len")); /* no length fits */
    q_err_reset(&e);
    config.memory_part = 0.9;
    assert_fails(memory_blocks(&n, &config, &limits, &need, &e), Q_NO_MEMORY,
                 "max_model_len 1000 needs 63.0 MiB, 17.0 MiB are available; possible remedies: "
                 "--max-model-len 272, raise --gpu-memory-utilization, or a smaller",
                 &e);
    config.kv_bytes = 62 * MIB;
    assert_fails(memory_blocks(&n, &config, &limits, &need, &e), Q_NO_MEMORY,
                 "--max-model-len 992, --kv-cache-memory-bytes 66060288, or", &e);
    config.n_block = 1;
    assert_fails(memory_blocks(&n, &config, &limits, &need, &e), Q_NO_MEMORY,
                 "--max-model-len 16, --num-gpu-blocks-override 63, or", &e);
    /* the longest message is whole */
    limits.max_model_len = 16777216;
    need.block_bytes = 1024 * MIB;
    config.n_block = 0;
    config.kv_bytes = 1048575ull * 1024 * MIB;
    assert_fails(memory_blocks(&n, &config, &limits, &need, &e), Q_NO_MEMORY, "--kv-cache-dtype",
                 &e);
}

/* A step that takes 1 MiB for each 100 tokens of the length. */
static enum q_code growing_steps(uint64_t *bytes, const struct step_limits *l, void *ctx,
                                 struct q_err *err)
{
    (void)ctx;
    if (l->max_model_len > 100000)
        return q_fail(err, Q_TOO_LARGE, "limits too large");
    *bytes = l->max_model_len / 100 * MIB;
    return Q_OK;
}

/* The length that memory_fit_length leaves, or full where it shortens nothing. It is the longest:
 * it fits, and 16 tokens more do not. */
static uint32_t fitted(memory_steps *steps)
{
    const struct step_limits full = limits;
    struct memory_need of = need;
    uint32_t n;
    if (!memory_fit_length(&limits, &config, &need, steps, NULL)) {
        assert_memory_equal(&limits, &full, sizeof full);
        return 0;
    }
    assert_int_equal(limits.known_max - limits.max_model_len, full.known_max - full.max_model_len);
    struct step_limits more = limits;
    more.max_model_len += 16;
    assert_true(!steps || steps(&of.step_bytes, &limits, NULL, &e) == Q_OK);
    assert_ok(memory_blocks(&n, &config, &limits, &of, &e), &e);
    bool fits = !steps || steps(&of.step_bytes, &more, NULL, &e) == Q_OK;
    q_err_reset(&e);
    assert_true(!fits || memory_blocks(&n, &config, &more, &of, &e) == Q_NO_MEMORY);
    q_err_reset(&e);
    n = limits.max_model_len;
    limits = full;
    return n;
}

static void a_length_is_fitted_to_the_memory(void **state)
{
    (void)state;
    limits.known_max = 3048;
    assert_int_equal(fitted(NULL), 0); /* all fits */
    config.n_block = 5;
    assert_int_equal(fitted(NULL), 80);
    config.n_block = 63;
    assert_int_equal(fitted(NULL), 0);
    config.n_block = 0;
    config.kv_bytes = 62 * MIB + 1;
    assert_int_equal(fitted(NULL), 992);
    config.kv_bytes = MIB - 1; /* not one block */
    assert_int_equal(fitted(NULL), 0);
    config.kv_bytes = 0;
    config.memory_part = 0.9;
    need.total_bytes = 130 * MIB; /* leaves 17 blocks */
    assert_int_equal(fitted(NULL), 17 * 16);
    config.memory_part = 0; /* the default: 0.9 for one sequence */
    assert_int_equal(fitted(NULL), 17 * 16);
    need.total_bytes = 200 * MIB; /* 180 - 95 blocks, less what the steps take */
    limits.max_model_len = 100000;
    assert_int_equal(fitted(growing_steps), 1184);
    limits.max_model_len = 16777216; /* steps of this length cannot be made at all */
    need.total_bytes = UINT64_MAX;
    assert_int_equal(fitted(growing_steps), 100000);
}

static uint32_t swap_blocks(uint32_t n_block)
{
    return memory_swap_blocks(n_block, &config, &limits, &need);
}

static void swap_space_is_what_is_left_and_of_use(void **state)
{
    (void)state;
    assert_int_equal(swap_blocks(100), 0); /* not asked for */
    config.swap_bytes = 200 * MIB + 1;
    assert_int_equal(swap_blocks(100), 200);
    assert_int_equal(swap_blocks(251), 200);
    assert_int_equal(swap_blocks(252), 0); /* all that can run is in the pool */
    config.swap_bytes = 4096 * MIB;
    assert_int_equal(swap_blocks(100), 252);
    limits.max_num_seqs = 256;
    assert_int_equal(swap_blocks(500), 900 - 100 - 500);
    assert_int_equal(swap_blocks(900), 0);
    need.total_bytes = UINT64_MAX; /* unknown */
    assert_int_equal(swap_blocks(500), 4096);
    config.is_again = true; /* as the worker before had */
    config.n_swap_block = 77;
    assert_int_equal(swap_blocks(500), 77);
}

static void this_machine_has_memory(void **state)
{
    (void)state;
    assert_true(memory_available() > MIB);
    assert_in_range(memory_resident(), 4096, 1024 * MIB);
}

static void put(const struct folder *f, const char *name, const char *text)
{
    folder_write(f, name, text, strlen(text));
}

/* Version 2: the tightest of the group and those above it; file cache that can go counts as free.
 * */
static void cgroups_of_version_2_limit_the_memory(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    assert_true(memory_cgroups_free(f.path) == UINT64_MAX); /* no /proc */
    put(&f, "proc/self/cgroup", "0::/pod/box\n");
    assert_true(memory_cgroups_free(f.path) == UINT64_MAX); /* no such group */
    put(&f, "sys/fs/cgroup/pod/box/memory.max", "max\n");
    put(&f, "sys/fs/cgroup/pod/memory.max", "1000\n");
    put(&f, "sys/fs/cgroup/pod/memory.current", "700\n");
    put(&f, "sys/fs/cgroup/pod/memory.stat", "anon 600\ninactive_file 100\n");
    assert_int_equal(memory_cgroups_free(f.path), 400);
    put(&f, "sys/fs/cgroup/pod/box/memory.max", "300\n");
    put(&f, "sys/fs/cgroup/pod/box/memory.current", "50\n");
    assert_int_equal(memory_cgroups_free(f.path), 250);
    put(&f, "sys/fs/cgroup/pod/box/memory.current", "301\n");
    assert_int_equal(memory_cgroups_free(f.path), 0);
    folder_release(&f);
}

/* Version 1, also beside a version 2 without a memory controller, also where a container sees its
 * own group as the mount and the host's path of it. */
static void cgroups_of_version_1_limit_the_memory(void **state)
{
    (void)state;
    static const char lines[] = "12:cpuset:/\n7:name=memory:/other\n6:cpu,memory:/docker/box\n"
                                "1:name=systemd:/docker/box\n0::/docker/box\n";
    struct folder f;
    folder_init(&f);
    put(&f, "proc/self/cgroup", lines);
    put(&f, "sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
    put(&f, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_true(memory_cgroups_free(f.path) == UINT64_MAX);
    put(&f, "sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"); /* the container's own */
    put(&f, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
    put(&f, "sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
    assert_int_equal(memory_cgroups_free(f.path), 4300);
    put(&f, "sys/fs/cgroup/memory/docker/box/memory.limit_in_bytes", "2000\n");
    put(&f, "sys/fs/cgroup/memory/docker/box/memory.usage_in_bytes", "500\n");
    assert_int_equal(memory_cgroups_free(f.path), 1500);
    folder_release(&f);
}

/* The dummy step touches what a step may use, and a second one nothing more. */
static void the_dummy_step_is_the_largest(void **state)
{
    (void)state;
    const uint32_t n_thread = 2, n_vocab = 512;
    struct kern_table kern;
    struct sample_scratch samplers[2];
    struct dummy d = {
        .samplers = samplers,
        .limits =
            {
                .max_num_seqs = 16,
                .max_num_batched_tokens = 4000,
                .max_model_len = 256,
                .logit_rows_max = 3000,
            },
    };
    struct model *m;
    kern_table_cpu(&kern, kern_caps_machine());
    assert_ok(team_new(&d.team, n_thread, false, &e), &e);
    struct model_options o = {
        .dir = "tests/data/models/mistral",
        .dtype = DT_F32,
        .kern = &kern,
        .team = d.team,
    };
    assert_ok(model_load(&m, &o, &e), &e);
    d.model = m;
    assert_int_equal(model_shape(m)->vocab_size, n_vocab);
    uint64_t before = memory_resident();
    assert_ok(model_scratch_new(&d.scratch, m, d.limits.max_num_batched_tokens, n_thread, &e), &e);
    for (uint32_t i = 0; i < n_thread; i++)
        assert_ok(sample_scratch_init(&samplers[i], n_vocab, &kern, &e), &e);
    uint64_t logits_bytes = (uint64_t)MODEL_LOGIT_ROWS * n_vocab * sizeof *d.logits;
    d.logits = malloc(logits_bytes);
    assert_true(memory_resident() - before < 3 * MIB); /* a huge page */
    assert_ok(dummy_step(&d, &e), &e);
    uint64_t peak = memory_resident() - before;
    uint64_t bound = logits_bytes +
                     model_scratch_bytes(m, d.limits.max_num_batched_tokens, n_thread) +
                     n_thread * sample_scratch_bytes(n_vocab);
    print_message("at most %.2f MiB, measured %.2f MiB\n", (double)bound / (double)MIB,
                  (double)peak / (double)MIB);
    assert_true(peak > bound * 9 / 10 && peak < bound + 4 * MIB);
    d.limits.max_num_seqs = 1; /* one sequence has not so many rows; its context is the longest */
    assert_ok(dummy_step(&d, &e), &e);
    d.limits.max_num_batched_tokens = 1;
    assert_ok(dummy_step(&d, &e), &e);
    assert_true(memory_resident() - before < peak + MIB / 2);
    free(d.logits);
    for (uint32_t i = 0; i < n_thread; i++)
        sample_scratch_release(&samplers[i]);
    model_scratch_free(d.scratch);
    model_free(m);
    team_free(d.team);
}

/* 256 sequences with a vocabulary of 152k: rows of logits are made and sampled in turns: they take
 * no more memory than MODEL_LOGIT_ROWS of them do. */
static void logits_of_many_sequences_stay_small(void **state)
{
    (void)state;
    static const char qwen2[] =
        "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "
        "\"vocab_size\": 151936, \"hidden_size\": 64, \"intermediate_size\": 128, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"hidden_act\": \"silu\", \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, "
        "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}";
    const uint32_t n_vocab = 151936, n_thread = 2;
    struct kern_table kern;
    struct sample_scratch samplers[2];
    struct dummy d = {
        .samplers = samplers,
        .limits =
            {
                .max_num_seqs = 256,
                .max_num_batched_tokens = 256,
                .max_model_len = 64,
                .logit_rows_max = 256,
            },
    };
    struct folder f;
    struct model *m;
    folder_init(&f);
    put(&f, "config.json", qwen2);
    kern_table_cpu(&kern, kern_caps_machine());
    assert_ok(team_new(&d.team, n_thread, false, &e), &e);
    struct model_options o = {
        .dir = f.path,
        .format = LOAD_DUMMY,
        .dtype_auto = true,
        .kern = &kern,
        .team = d.team,
    };
    assert_ok(model_load(&m, &o, &e), &e);
    d.model = m;
    uint64_t before = memory_resident();
    assert_ok(model_scratch_new(&d.scratch, m, d.limits.max_num_batched_tokens, n_thread, &e), &e);
    for (uint32_t i = 0; i < n_thread; i++)
        assert_ok(sample_scratch_init(&samplers[i], n_vocab, &kern, &e), &e);
    d.logits = malloc((size_t)MODEL_LOGIT_ROWS * n_vocab * sizeof *d.logits);
    assert_ok(dummy_step(&d, &e), &e);
    const uint64_t taken = memory_resident() - before;
    print_message("256 sequences: %.1f MiB\n", (double)taken / (double)MIB);
    assert_true(taken > 37 * MIB && taken < 60 * MIB);
    free(d.logits);
    for (uint32_t i = 0; i < n_thread; i++)
        sample_scratch_release(&samplers[i]);
    model_scratch_free(d.scratch);
    model_free(m);
    team_free(d.team);
    folder_release(&f);
}

int main(void)
{
    log_setup("test", LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_default_fits_the_load_and_half_of_the_memory, setup),
        cmocka_unit_test_setup(flags_are_taken_at_their_word, setup),
        cmocka_unit_test_setup(too_little_is_refused_with_ways_out, setup),
        cmocka_unit_test_setup(a_length_is_fitted_to_the_memory, setup),
        cmocka_unit_test_setup(swap_space_is_what_is_left_and_of_use, setup),
        cmocka_unit_test_setup(this_machine_has_memory, setup),
        cmocka_unit_test_setup(cgroups_of_version_2_limit_the_memory, setup),
        cmocka_unit_test_setup(cgroups_of_version_1_limit_the_memory, setup),
        cmocka_unit_test_setup(the_dummy_step_is_the_largest, setup),
        cmocka_unit_test_setup(logits_of_many_sequences_stay_small, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
