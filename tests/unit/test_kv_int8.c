/* SPDX-License-Identifier: Apache-2.0 */
/* What KV in int8 costs: logits of every position against those with KV in float32, computed in
 * float32, over 20 random tokens and 220 that the model made of them. The goldens' random weights
 * make flat distributions. What was measured: tests/bench/README.md, model. */
#include "golden.h"

#define VOCAB_MAX 2560u

struct int8_case {
    const char *dir;
    double rms_max; /* of the differences, as a part of the rms of the logits */
    double top1_min;
};

static const struct int8_case cases[] = {
    {"deploy/model/quire-tiny", 0.03, 0.97},
    {GOLDEN_DIR "/llama", 0.03, 0.9},
    {GOLDEN_DIR "/mistral", 0.03, 0.9},
    {GOLDEN_DIR "/qwen2", 0.03, 0.9},
    {GOLDEN_DIR "/qwen2-sliding-bf16", 0.03, 0.9},
    {GOLDEN_DIR "/qwen3", 0.03, 0.9},
};
#define N_CASE (sizeof cases / sizeof *cases)

static float exact[RUN_TOKENS_MAX * VOCAB_MAX], coarse[RUN_TOKENS_MAX * VOCAB_MAX];

static void logits_with(const struct int8_case *c, enum dtype kv_dtype, uint32_t *ids, uint32_t n,
                        uint32_t *vocab)
{
    struct q_err e = Q_ERR_INIT;
    struct runner r;
    struct runner_options o = {
        .dir = c->dir,
        .n_thread = 1,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
        .kv_given = true,
        .kv_dtype = kv_dtype,
    };
    assert_ok(runner_open(&r, &o, &e), &e);
    *vocab = model_shape(r.model)->vocab_size;
    if (kv_dtype == DT_F32) { /* the prompt: some words, and what the model makes of them */
        uint64_t state = 7;
        for (uint32_t i = 0; i < 20; i++)
            ids[i] = (uint32_t)(run_random(&state) % *vocab);
        run_prompt(&r, ids, 20, 20, exact);
        run_greedy(&r, ids, 20, n - 20, exact + (size_t)19 * *vocab);
    }
    run_prompt(&r, ids, n, n, kv_dtype == DT_F32 ? exact : coarse);
    runner_close(&r);
}

static void test_int8(void **state)
{
    const struct int8_case *c = *state;
    static uint32_t ids[RUN_TOKENS_MAX];
    uint32_t vocab, n = 240, n_same = 0;
    double error = 0, size = 0;
    logits_with(c, DT_F32, ids, n, &vocab);
    logits_with(c, DT_I8, ids, n, &vocab);
    for (uint32_t i = 0; i < n; i++) {
        const float *a = exact + (size_t)i * vocab, *b = coarse + (size_t)i * vocab;
        n_same += argmax(a, vocab) == argmax(b, vocab);
        for (uint32_t v = 0; v < vocab; v++) {
            error += ((double)a[v] - b[v]) * ((double)a[v] - b[v]);
            size += (double)a[v] * a[v];
        }
    }
    double rms = sqrt(error / size), top1 = (double)n_same / n;
    print_message("int8 KV: logits differ by %.4f of their rms, top-1 agrees on %.4f\n", rms, top1);
    assert_true(rms > 0); /* it is int8 */
    if (!(rms <= c->rms_max && top1 >= c->top1_min))
        fail_msg("%s: logits differ by %.4f of their rms (at most %.4f), top-1 agrees on %.4f (at "
                 "least %.4f)",
                 c->dir, rms, c->rms_max, top1, c->top1_min);
}

int main(void)
{
    struct CMUnitTest tests[N_CASE];
    for (size_t i = 0; i < N_CASE; i++)
        tests[i] = (struct CMUnitTest){strrchr(cases[i].dir, '/') + 1, test_int8, NULL, NULL,
                                       (void *)(uintptr_t)&cases[i]};
    return _cmocka_run_group_tests("kv_int8", tests, N_CASE, NULL, NULL);
}
