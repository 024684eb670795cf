/* SPDX-License-Identifier: Apache-2.0 */
/* device_vectors: models that make vectors (embeddings, scores, classes) on a device. Every folder
 * of tests/data/pooling: with the reference's kernels the vectors have the CPU's bits, with the
 * CUDA kernels on the emulation those of the shorter prompts are the golden's (embeddings 1e-4,
 * logits 2e-4 of the largest). With --deterministic a vector has the same bits alone and beside
 * others: of models of a prompt's mean and of its last token. */
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>
#include "common/log.h"
#include "engine/core/core.h"
#include "golden.h"

#define POOLING_DIR "tests/data/pooling"
#define FOLDERS     9u /* those in the tree; a new one is found by its name */
#define PROMPTS_MAX 8u
#define WIDTH       64u
#define SHORT       33u /* --max-model-len on the emulation, where a token takes milliseconds */
#define REFERENCE   "/tests/libquire-fake.so"
#define EMULATION   "/tests/libquire-fake-cuda.so"

struct vectors { /* of one engine, by prompt */
    float values[PROMPTS_MAX][WIDTH];
    uint32_t n[PROMPTS_MAX];
    uint32_t n_done;
};

static struct vectors expected, got;

static void take(void *ctx, const struct step_result *r, const struct scheduler_output *outputs,
                 uint32_t n)
{
    struct vectors *v = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const struct scheduler_output *o = &outputs[i];
        if (o->finish == FINISH_NONE)
            continue;
        assert_int_equal(o->finish, FINISH_STOP);
        assert_true(o->has_vector && o->row->n_top > 0 && o->row->n_top <= WIDTH);
        v->n[o->req_id] = o->row->n_top;
        memcpy(v->values[o->req_id], r->top_logprobs + o->row->top_start,
               o->row->n_top * sizeof(float));
        v->n_done++;
    }
}

static bool wait_for(const struct core *c)
{
    struct pollfd p = {.fd = core_fd(c), .events = POLLIN};
    const int wait_ms = core_wait_ms(c);
    return poll(&p, 1, wait_ms >= 0 ? wait_ms : 60000) >= 0;
}

static void turn(struct core *c)
{
    struct q_err e = Q_ERR_INIT;
    assert_true(wait_for(c));
    assert_ok(core_step(c, &e), &e);
}

/* A library of the build folder. */
static void choose_device(struct worker_config *w, const char *library)
{
    char path[PATH_MAX - 64];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(path, '/') = '\0';
    snprintf(w->device, sizeof w->device, "cuda");
    snprintf(w->device_library, sizeof w->device_library, "%s%s", path, library);
    w->n_block = 64;
}

static struct core_config config_of(const char *dir, const char *library)
{
    struct core_config c = {
        .worker =
            {
                .dtype = DT_F32,
                .max_num_seqs = 4,
                .max_num_batched_tokens = 48,
                .max_model_len = 120, /* a prompt has as many */
                .n_thread = 2,
                .cpu_isa = "none",
                .log_level = LOG_ERROR,
            },
        .queue_max = PROMPTS_MAX,
        .in_process = true,
    };
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, "%s", dir);
    if (library)
        choose_device(&c.worker, library);
    return c;
}

/* Vectors of odd prompts are raw. */
static bool is_raw(size_t i)
{
    return i % 2 == 1;
}

/* The first token of type 1; 0: there is none. */
static uint32_t second_text(const json_t *prompt)
{
    const json_t *types = json_object_get(prompt, "token_type_ids");
    uint32_t i = 0;
    while (i < json_array_size(types) && !json_integer_value(json_array_get(types, i)))
        i++;
    return i < json_array_size(types) ? i : 0;
}

static const json_t *prompt_of(const struct golden *g, size_t i)
{
    return json_array_get(json_object_get(g->root, "prompts"), i);
}

/* The golden's prompts, which ascend in length, up to this length. */
static uint32_t count_prompts(const struct golden *g, uint32_t longest)
{
    uint32_t n = 0;
    while (prompt_of(g, n) && json_array_size(json_object_get(prompt_of(g, n), "ids")) <= longest)
        n++;
    return n;
}

static void submit(struct core *c, const struct golden *g, uint32_t i)
{
    uint32_t ids[RUN_TOKENS_MAX];
    struct q_err e = Q_ERR_INIT;
    const json_t *prompt = prompt_of(g, i);
    const uint32_t n = golden_ids(ids, json_object_get(prompt, "ids"));
    const struct msg_submit m = {
        .req_id = i,
        .prompt = {ids, n},
        .pools = true,
        .raw_vector = is_raw(i),
        .second_text = second_text(prompt),
    };
    assert_ok(core_submit(c, 1, &m, &e), &e);
}

/* The vectors of the golden's prompts that fit --max-model-len; `apart`: each request waits for the
 * one before. */
static void run(struct vectors *v, const struct core_config *config, const struct golden *g,
                bool apart)
{
    struct core *c = NULL;
    struct q_err e = Q_ERR_INIT;
    const uint32_t n = count_prompts(g, config->worker.max_model_len);
    assert_in_range(n, 3, PROMPTS_MAX);
    memset(v, 0, sizeof *v);
    assert_ok(core_new(&c, config, take, v, &e), &e);
    while (core_state(c, NULL) == CORE_LOADING)
        turn(c);
    for (uint32_t i = 0; i < n; i++) {
        submit(c, g, i);
        if (apart || i == 2) /* the others come while these run */
            assert_ok(core_step(c, &e), &e);
        while (apart && v->n_done <= i)
            turn(c);
    }
    assert_ok(core_step(c, &e), &e);
    while (v->n_done < n)
        turn(c);
    core_free(c);
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
    struct core_config cpu = config_of(dir, NULL), device = config_of(dir, REFERENCE);
    run(&expected, &cpu, g, false);
    run(&got, &device, g, false);
    if (memcmp(&expected, &got, sizeof got) != 0)
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
        struct core_config cpu = config_of(dir, NULL), device = config_of(dir, REFERENCE);
        cpu.worker.dtype = device.worker.dtype = cases[i].dtype;
        cpu.worker.quantization = device.worker.quantization = cases[i].quantization;
        run(&expected, &cpu, &g, false);
        run(&got, &device, &g, false);
        if (memcmp(&expected, &got, sizeof got) != 0)
            fail_msg("%s: other bits on the device", dir);
        golden_close(&g);
    }
}

/* Too little memory: the start ends with an error that names the part. Every other allocation: the
 * rows of the two steps in flight are neighbours. */
static void memory_is_refused(void **state)
{
    const struct core_config config = config_of(POOLING_DIR "/bert-rerank", REFERENCE);
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
        assert_ok(core_new(&c, &config, take, &got, &e), &e);
        while (core_state(c, NULL) == CORE_LOADING && wait_for(c) && !core_step(c, &e))
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
    const bool embeds = !strcmp(json_string_value(json_object_get(g->root, "kind")), "embed");
    struct core_config c = config_of(dir, EMULATION);
    c.worker.max_model_len = SHORT;
    c.worker.max_num_batched_tokens = 20; /* of models whose prompts may be cut */
    run(&got, &c, g, false);
    for (uint32_t i = 0; i < got.n_done; i++) {
        const char *what = embeds      ? is_raw(i) ? "pooled" : "pooled_normalized"
                           : is_raw(i) ? "logits"
                                       : "probs";
        const struct tensor *want = golden_array(g, i, what);
        assert_non_null(want);
        const size_t n = want->n_bytes / sizeof(float);
        const double most = embeds ? 1e-4 : 2e-4 * abs_max(want->data, n);
        const double far = difference(got.values[i], want->data, n);
        if (!(far <= most))
            fail_msg("%s: prompt %u: %s differs by %g, at most %g is accepted", dir, i, what, far,
                     most);
    }
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
        struct core_config c = config_of(dir, EMULATION);
        c.worker.dtype = cases[i].dtype;
        c.worker.quantization = cases[i].quantization;
        c.worker.deterministic = true;
        c.worker.max_model_len = 17;
        run(&expected, &c, &g, false);
        c.worker.max_num_batched_tokens = 16;
        run(&got, &c, &g, true);
        if (memcmp(&expected, &got, sizeof got) != 0)
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
