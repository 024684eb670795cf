/* SPDX-License-Identifier: Apache-2.0 */
/* device_goldens: every folder of a set of goldens (../shared/goldens, whose README has the
 * layout), on the CPU and on a device with the CUDA kernels of the emulation, against what the
 * golden says: greedy tokens and log-probabilities of causal models and of adapters, vectors of
 * embedding models and classifiers. One test a folder; a new one is found by its name.
 *
 *     test_device_goldens [SET [TOKENS]]    default: ../shared/goldens, 2 tokens of short prompts
 *
 * With TOKENS (24: all there are) the longer prompts too. By hand: it takes more than a minute. */
#include <dirent.h>
#include "common/hub/config.h"
#include "common/mem.h"
#include "engine/model/forward/rotary.h"
#include "golden_core.h"

#define SET_DEFAULT "../shared/goldens"
#define FOLDERS_MAX 128u
#define SHORT       17u /* prompts of a default run: a token of the emulation takes milliseconds */
#define N_TOKEN     2u
#define EXACT       1e-3f /* of log-probabilities, in float32 */

static const char *set = SET_DEFAULT;
static uint32_t n_token = N_TOKEN, longest = SHORT;
static struct core_answers got;

/* A folder of the set. */
struct item {
    char name[64];
    char path[PATH_MAX]; /* of the model */
    bool is_adapter;
};

static struct item items[FOLDERS_MAX];
static uint32_t n_item;

/* Of log-probabilities: each of them within EXACT, or, where products are of integers or, on a
 * device, of e4m3, the root of their mean square. */
static float margin_of(const struct model_config *c, bool on_device)
{
    switch (c->quant.method) {
    case QUANT_NONE:
        return EXACT;
    case QUANT_FP8:
        return on_device ? 0.4f : EXACT;
    default:
        return 0.15f;
    }
}

/* ---- what the golden says ---- */

/* Greedy tokens that the reference computes as an engine with a cache does: README of the set on
 * llama-rope-dynamic. */
static uint32_t count_tokens(const struct model_config *c, const json_t *prompt, uint32_t n)
{
    const uint32_t free_length = rotary_free_length(c);
    if (json_object_get(prompt, "greedy_kv_cached"))
        return 1;
    return free_length && n <= free_length && n + n_token > free_length + 1 ? free_length + 1 - n
                                                                            : n_token;
}

struct errors {
    float margin;
    double squares;
    uint32_t n;
};

static void check_logprob(struct errors *of, uint32_t i, float have, const json_t *want)
{
    const double off = have - json_number_value(want);
    if (of->margin <= EXACT && !(fabs(off) <= (double)of->margin))
        fail_msg("token %u has log-probability %f, expected %f", i, (double)have,
                 json_number_value(want));
    of->squares += off * off;
    of->n++;
}

/* Where values are rounded more than in the reference, another token may be the best one; what
 * follows it is another text. Returns how many tokens are the golden's. */
static uint32_t check_tokens(struct errors *of, uint32_t i, const json_t *prompt, uint32_t n)
{
    uint32_t want[CORE_TOKENS_MAX] = {0};
    const json_t *logprobs = json_object_get(prompt, "greedy_logprobs");
    assert_true(golden_ids(want, json_object_get(prompt, "greedy")) >= n && got.n[i] >= n);
    for (uint32_t k = 0; k < n; k++) {
        if (got.tokens[i][k] != want[k] && of->margin > EXACT)
            return k;
        if (got.tokens[i][k] != want[k])
            fail_msg("prompt %u: token %u is %u, expected %u", i, k, got.tokens[i][k], want[k]);
        check_logprob(of, k, got.logprobs[i][k], json_array_get(logprobs, k));
    }
    return n;
}

static void check_causal(const struct golden *g, const struct model_config *c, float margin)
{
    struct errors of = {.margin = margin};
    uint32_t n_all = 0, n_same = 0;
    for (uint32_t i = 0; i < got.n_done; i++) {
        const json_t *prompt = core_prompt_of(g, i);
        const json_t *logprobs = json_object_get(prompt, "prompt_logprobs");
        const uint32_t n = (uint32_t)json_array_size(logprobs);
        const uint32_t n_new = count_tokens(c, prompt, n);
        for (uint32_t k = 1; k < n; k++)
            check_logprob(&of, k, got.prompt_logprobs[i][k], json_array_get(logprobs, k));
        n_all += n_new;
        n_same += check_tokens(&of, i, prompt, n_new);
    }
    const double rms = of.n ? sqrt(of.squares / of.n) : INFINITY;
    if (margin > EXACT)
        print_message("log-probabilities differ by %.3f, root of the mean square\n", rms);
    if (!(rms <= (double)margin))
        fail_msg("log-probabilities differ by %f, root of the mean square, at most %f is accepted",
                 rms, (double)margin);
    if (n_same * 2 < n_all)
        fail_msg("%u of %u tokens are the golden's", n_same, n_all);
}

/* ---- one folder ---- */

static void open_golden(struct golden *g, const struct item *item)
{
    char text[PATH_MAX], arrays[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    snprintf(text, sizeof text, "%s/goldens/%s.json", set, item->name);
    snprintf(arrays, sizeof arrays, "%s/goldens/%s.safetensors", set, item->name);
    assert_ok(golden_open_files(g, text, arrays, &e), &e);
}

/* The adapter is the one of the item's name. The core takes the list. */
static void add_adapter(struct core_config *c, const struct item *item)
{
    struct adapter_settings *s = &c->adapters;
    c->worker.max_lora_rank = 8;
    c->worker.lora_dtype_auto = true;
    c->worker.max_loras = s->max_loras = s->max_in_memory = s->n = 1;
    s->modules = q_calloc(1, sizeof *s->modules);
    assert_non_null(s->modules);
    snprintf(s->modules->name, sizeof s->modules->name, "%s", item->name);
    snprintf(s->modules->path, sizeof s->modules->path, "%s/lora/%s", set, item->name);
}

static void check_item(const struct item *item, const char *library)
{
    struct golden g;
    struct model_config config;
    struct q_err e = Q_ERR_INIT;
    open_golden(&g, item);
    assert_ok(model_config_load(&config, NULL, item->path, &e), &e);
    struct core_config c = core_config_of(item->path, library);
    struct core_run r = {.config = &c, .golden = &g, .longest = longest, .ask = {n_token, NULL}};
    c.worker.max_model_len =
        core_golden_pools(&g) ? longest : 144; /* the longest with its tokens */
    if (item->is_adapter) {
        add_adapter(&c, item);
        r.ask.adapter = item->name;
    }
    core_run_golden(&got, &r);
    if (core_golden_pools(&g))
        core_check_vectors(&got, &g, item->name);
    else
        check_causal(&g, &config, margin_of(&config, library != NULL));
    golden_close(&g);
}

static void on_the_cpu(void **state)
{
    check_item(*state, NULL);
}

static void by_cuda_kernels(void **state)
{
    check_item(*state, CORE_EMULATION);
}

/* ---- the list ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->name, ((const struct item *)b)->name);
}

/* False: there is no such folder. */
static bool list_folder(const char *folder, bool of_adapters)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", set, folder);
    DIR *d = opendir(path);
    if (!d)
        return false;
    for (const struct dirent *entry; (entry = readdir(d)) && n_item < FOLDERS_MAX;) {
        struct item *item = &items[n_item];
        if (*entry->d_name == '.')
            continue;
        snprintf(item->name, sizeof item->name, "%.63s", entry->d_name);
        snprintf(item->path, sizeof item->path, "%s/models/%s", set,
                 of_adapters ? "llama" : item->name);
        item->is_adapter = of_adapters;
        n_item++;
    }
    closedir(d);
    qsort(items, n_item, sizeof *items, by_name);
    return true;
}

static void no_set(void **state)
{
    (void)state;
    skip_without(set);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * FOLDERS_MAX];
    static const struct CMUnitTest none[] = {cmocka_unit_test(no_set)};
    size_t n = 0;
    if (argc > 1)
        set = argv[1];
    if (argc > 2) {
        n_token = (uint32_t)strtoul(argv[2], NULL, 10);
        longest = 120;
    }
    if (argc > 3 || n_token < 1 || n_token > CORE_TOKENS_MAX) {
        fprintf(stderr, "usage: %s [SET [TOKENS]], 1 to %u tokens\n", argv[0], CORE_TOKENS_MAX);
        return 2;
    }
    if (!list_folder("models", false))
        return cmocka_run_group_tests(none, NULL, NULL);
    list_folder("lora", true);
    for (uint32_t i = 0; i < n_item; i++) {
        tests[n++] = (struct CMUnitTest){items[i].name, on_the_cpu, NULL, NULL, &items[i]};
        tests[n++] = (struct CMUnitTest){items[i].name, by_cuda_kernels, NULL, NULL, &items[i]};
    }
    return _cmocka_run_group_tests("goldens", tests, n, NULL, NULL);
}
