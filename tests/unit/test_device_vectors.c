/* SPDX-License-Identifier: Apache-2.0 */
/* device_vectors: models that make vectors (embeddings, scores, classes) on a device. Every folder
 * of tests/data/pooling: with the reference's kernels the vectors have the CPU's bits, with the
 * CUDA kernels on the emulation those of the shorter prompts are the golden's (embeddings 1e-4,
 * logits 2e-4 of the largest). With --deterministic a vector has the same bits alone and beside
 * others: of models of a prompt's mean and of its last token. */
#include <dirent.h>
#include <dlfcn.h>
#include "golden_core.h"

#define POOLING_DIR "tests/data/pooling"
#define FOLDERS     9u  /* those in the tree; a new one is found by its name */
#define SHORT       33u /* --max-model-len on the emulation, where a token takes milliseconds */

static struct core_answers expected, got;

/* The vectors of the golden's prompts that fit --max-model-len. */
static void run(struct core_answers *v, const struct core_config *c, const struct golden *g,
                bool apart)
{
    core_run_golden(v, &(struct core_run){
                           .config = c,
                           .golden = g,
                           .longest = c->worker.max_model_len,
                           .apart = apart,
                       });
    assert_in_range(v->n_done, 3, CORE_PROMPTS_MAX);
}

/* Have `expected` and `got` the same bits? */
static bool same_vectors(void)
{
    const unsigned char *want = (const unsigned char *)expected.vectors;
    const unsigned char *have = (const unsigned char *)got.vectors;
    return memcmp(want, have, sizeof got.vectors) == 0 &&
           memcmp(expected.n, got.n, sizeof got.n) == 0 && expected.n_done == got.n_done;
}

typedef void check_folder(const char *dir, const struct golden *g);

/* Every folder whose golden is one of vectors. */
static void for_each_folder(check_folder *check)
{
    DIR *d = opendir(POOLING_DIR);
    uint32_t n = 0;
    assert_non_null(d);
    for (const struct dirent *entry; (entry = readdir(d));) {
        char dir[PATH_MAX];
        struct golden g;
        struct q_err e = Q_ERR_INIT;
        snprintf(dir, sizeof dir, "%s/%s", POOLING_DIR, entry->d_name);
        if (*entry->d_name == '.' || golden_open(&g, dir, &e))
            continue;
        check(dir, &g);
        golden_close(&g);
        n++;
    }
    closedir(d);
    assert_true(n >= FOLDERS);
}

static void check_bits(const char *dir, const struct golden *g)
{
    struct core_config cpu = core_config_of(dir, NULL),
                       device = core_config_of(dir, CORE_REFERENCE);
    run(&expected, &cpu, g, false);
    run(&got, &device, g, false);
    if (!same_vectors())
        fail_msg("%s: other bits on the device", dir);
}

static void the_bits_of_the_cpu(void **state)
{
    (void)state;
    for_each_folder(check_bits);
}

static void sixteen_bits_and_integers(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        enum quantization quantization;
    } cases[] = {
        {"modernbert", DT_BF16, QUANTIZE_NOT},
        {"roberta-cls", DT_BF16, QUANTIZE_INT8},
        {"qwen3-embed", DT_F32, QUANTIZE_INT4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[PATH_MAX];
        struct golden g;
        struct q_err e = Q_ERR_INIT;
        snprintf(dir, sizeof dir, "%s/%s", POOLING_DIR, cases[i].name);
        assert_ok(golden_open(&g, dir, &e), &e);
        struct core_config cpu = core_config_of(dir, NULL),
                           device = core_config_of(dir, CORE_REFERENCE);
        cpu.worker.dtype = device.worker.dtype = cases[i].dtype;
        cpu.worker.quantization = device.worker.quantization = cases[i].quantization;
        run(&expected, &cpu, &g, false);
        run(&got, &device, &g, false);
        if (!same_vectors())
            fail_msg("%s: other bits on the device", dir);
        golden_close(&g);
    }
}

/* Too little memory: the start ends with an error that names the part. Every other allocation: the
 * rows of the two steps in flight are neighbours. */
static void memory_is_refused(void **state)
{
    const struct core_config config = core_config_of(POOLING_DIR "/bert-rerank", CORE_REFERENCE);
    void *library = dlopen(config.worker.device_library, RTLD_NOW | RTLD_LOCAL);
    struct q_err e = Q_ERR_INIT;
    bool pooled_rows = false;
    uint32_t n = 0;
    (void)state;
    assert_non_null(library);
    uint32_t *refused_in = dlsym(library, "fake_refused_in");
    assert_non_null(refused_in);
    for (enum core_state now = CORE_FAILED; now == CORE_FAILED; n += 2) {
        struct core *c = NULL;
        *refused_in = n + 1;
        assert_ok(core_new(&c, &config, core_take, &got, &e), &e);
        while (core_state(c, NULL) == CORE_LOADING && core_wait(c) && !core_step(c, &e))
            continue;
        now = core_state(c, NULL);
        q_err_reset(&e);
        if (now == CORE_FAILED && core_step(c, &e) != Q_NO_MEMORY)
            fail_msg("allocation %u: %s", n, e.message);
        pooled_rows = pooled_rows || strstr(e.message, "pooled rows");
        q_err_reset(&e);
        core_free(c);
    }
    *refused_in = 0;
    dlclose(library);
    assert_true(n > 10 && pooled_rows);
}

static void check_close(const char *dir, const struct golden *g)
{
    struct core_config c = core_config_of(dir, CORE_EMULATION);
    c.worker.max_model_len = SHORT;
    c.worker.max_num_batched_tokens = 20; /* of models whose prompts may be cut */
    run(&got, &c, g, false);
    core_check_vectors(&got, g, dir);
}

static void goldens_by_cuda_kernels(void **state)
{
    (void)state;
    for_each_folder(check_close);
}

static void the_same_bits_alone_and_together(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        enum quantization quantization;
    } cases[] = {
        {"bert", DT_BF16, QUANTIZE_INT8},
        {"qwen3-embed", DT_F16, QUANTIZE_NOT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[PATH_MAX];
        struct golden g;
        struct q_err e = Q_ERR_INIT;
        snprintf(dir, sizeof dir, "%s/%s", POOLING_DIR, cases[i].name);
        assert_ok(golden_open(&g, dir, &e), &e);
        struct core_config c = core_config_of(dir, CORE_EMULATION);
        c.worker.dtype = cases[i].dtype;
        c.worker.quantization = cases[i].quantization;
        c.worker.deterministic = true;
        c.worker.max_model_len = 17;
        run(&expected, &c, &g, false);
        c.worker.max_num_batched_tokens = 16;
        run(&got, &c, &g, true);
        if (!same_vectors())
            fail_msg("%s: other bits alone", dir);
        golden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_the_cpu),
        cmocka_unit_test(sixteen_bits_and_integers),
        cmocka_unit_test(memory_is_refused),
        cmocka_unit_test(goldens_by_cuda_kernels),
        cmocka_unit_test(the_same_bits_alone_and_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
