/* SPDX-License-Identifier: Apache-2.0 */
/* Two trained checkpoints, outside the tree: stories260K, and tinystories-656k, which is tied and
 * stores its table as lm_head.weight only. Greedy tokens as in their golden_greedy.json. Skipped
 * where the data are absent. */
#include "golden.h"

#define WEIGHTS_DIR "../shared/data/weights"
#define VOCAB_MAX   2048u

static float logits[RUN_TOKENS_MAX * VOCAB_MAX];

static void check_model(const char *name, const char *folder)
{
    char dir[PATH_MAX], path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    struct runner r;
    snprintf(dir, sizeof dir, WEIGHTS_DIR "/%s%s", name, folder);
    snprintf(path, sizeof path, WEIGHTS_DIR "/%s/golden_greedy.json", name);
    if (!file_exists(path))
        skip_without(path);
    json_t *root = json_load_file(path, 0, NULL);
    struct runner_options o = {
        .dir = dir,
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
    };
    assert_ok(runner_open(&r, &o, &e), &e);
    uint32_t vocab = model_shape(r.model)->vocab_size;
    json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        static uint32_t ids[2 * RUN_TOKENS_MAX], want[RUN_TOKENS_MAX];
        json_t *c = json_array_get(cases, i);
        uint32_t n = golden_ids(ids, json_object_get(c, "prompt_ids"));
        uint32_t n_new = golden_ids(want, json_object_get(c, "greedy_ids"));
        if (n + n_new > RUN_TOKENS_MAX)
            n_new = RUN_TOKENS_MAX - n;
        run_prompt(&r, ids, n, n, logits);
        run_greedy(&r, ids, n, n_new, logits + (size_t)(n - 1) * vocab);
        for (uint32_t k = 0; k < n_new; k++)
            if (ids[n + k] != want[k])
                fail_msg("%s case %zu: token %u is %u, expected %u", name, i, k, ids[n + k],
                         want[k]);
    }
    runner_close(&r);
    json_decref(root);
}

static void test_stories(void **state)
{
    (void)state;
    check_model("stories260K", "/hf");
}

static void test_tinystories(void **state)
{
    (void)state;
    check_model("tinystories-656k", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stories),
                                       cmocka_unit_test(test_tinystories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
