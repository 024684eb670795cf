/* SPDX-License-Identifier: Apache-2.0 */
/* What --quantization costs: logits of every position against those in float32, over 20 random
 * tokens and 220 that the model made of them. */
#include "golden.h"

#define VOCAB_MAX 2560u

struct quant_case {
    const char *dir;
    enum quantization quantization;
    double rms_max; /* of the differences, as a part of the rms of the logits */
    double top1_min;
};

/* Random weights make flat distributions, in which a small error finds another best token; the
 * trained model is what counts. Measured values: see the printed lines. */
static const struct quant_case cases[] = {
    {"deploy/model/quire-tiny", QUANTIZE_INT8, 0.03, 0.99},
    {GOLDEN_DIR "/llama", QUANTIZE_INT8, 0.09, 0.85},
    {GOLDEN_DIR "/llama-bias-tied", QUANTIZE_INT8, 0.09, 0.85},
    {GOLDEN_DIR "/mistral", QUANTIZE_INT8, 0.09, 0.85},
    {GOLDEN_DIR "/qwen2-sliding-bf16", QUANTIZE_INT8, 0.09, 0.85},
    {GOLDEN_DIR "/qwen3-v5cfg-f16", QUANTIZE_INT8, 0.09, 0.85},
    {"deploy/model/quire-tiny", QUANTIZE_INT4, 0.22, 0.95},
    {GOLDEN_DIR "/llama", QUANTIZE_INT4, 0.45, 0.4},
};
#define N_CASE (sizeof cases / sizeof *cases)

static float exact[RUN_TOKENS_MAX * VOCAB_MAX], coarse[RUN_TOKENS_MAX * VOCAB_MAX];
static uint32_t ids[RUN_TOKENS_MAX];

struct loaded {
    uint32_t vocab;
    uint64_t weight_bytes;
};

static struct loaded logits_with(const char *dir, enum quantization quantization, uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    struct runner r;
    struct runner_options o = {
        .dir = dir,
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
        .quantization = quantization,
    };
    assert_ok(runner_open(&r, &o, &e), &e);
    const struct model_shape *s = model_shape(r.model);
    struct loaded out = {s->vocab_size, s->weight_bytes};
    assert_int_equal(s->quantization, quantization);
    if (!quantization) { /* the prompt: some words, and what the model makes of them */
        uint64_t state = 7;
        for (uint32_t i = 0; i < 20; i++)
            ids[i] = (uint32_t)(run_random(&state) % out.vocab);
        run_prompt(&r, ids, 20, 20, exact);
        run_greedy(&r, ids, 20, n - 20, exact + (size_t)19 * out.vocab);
    }
    run_prompt(&r, ids, n, n, quantization ? coarse : exact);
    runner_close(&r);
    return out;
}

static void logits_stay_close(void **state)
{
    const struct quant_case *c = *state;
    const uint32_t n = 240;
    uint32_t n_same = 0;
    double error = 0, size = 0;
    struct loaded whole = logits_with(c->dir, QUANTIZE_NOT, n);
    struct loaded small = logits_with(c->dir, c->quantization, n);
    for (uint32_t i = 0; i < n; i++) {
        const float *a = exact + (size_t)i * whole.vocab, *b = coarse + (size_t)i * whole.vocab;
        n_same += argmax(a, whole.vocab) == argmax(b, whole.vocab);
        for (uint32_t v = 0; v < whole.vocab; v++) {
            error += ((double)a[v] - b[v]) * ((double)a[v] - b[v]);
            size += (double)a[v] * a[v];
        }
    }
    double rms = sqrt(error / size), top1 = (double)n_same / n;
    print_message("%s %s: logits differ by %.4f of their rms, top-1 agrees on %.4f, %.2f of the "
                  "bytes\n",
                  strrchr(c->dir, '/') + 1, quantization_name(c->quantization), rms, top1,
                  (double)small.weight_bytes / (double)whole.weight_bytes);
    assert_true(rms > 0); /* it is quantized */
    if (!(rms <= c->rms_max && top1 >= c->top1_min))
        fail_msg("%s: logits differ by %.4f of their rms (at most %.4f), top-1 agrees on %.4f (at "
                 "least %.4f)",
                 c->dir, rms, c->rms_max, top1, c->top1_min);
}

int main(void)
{
    struct CMUnitTest tests[N_CASE];
    for (size_t i = 0; i < N_CASE; i++)
        tests[i] = (struct CMUnitTest){strrchr(cases[i].dir, '/') + 1, logits_stay_close, NULL,
                                       NULL, (void *)(uintptr_t)&cases[i]};
    return _cmocka_run_group_tests("quantization", tests, N_CASE, NULL, NULL);
}
