/* SPDX-License-Identifier: Apache-2.0 */
/* device_near - comparison of a device's answers with the CPU's, where the device sums in another
 * order or rounds differently: if two tokens are almost equally likely, either is accepted;
 * everywhere else the answers must agree. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_DEVICE_NEAR_H
#define QUIRE_TESTS_UNIT_DEVICE_NEAR_H
#include <math.h>
#include "device_run.h"

static struct bits_answer near_expected[BITS_REQUESTS];

#define NEAR_QUANTIZED "tests/data/quantized/"
/* A checkpoint of tests/data/quantized, and generated prompts. */
static inline void near_quantized(struct golden *g, const char *name)
{
    snprintf(g->dir, sizeof g->dir, NEAR_QUANTIZED "%s", name);
    g->n = 3;
    for (uint32_t i = 0; i < g->n; i++) {
        g->prompts[i].n = 7 + 9 * i;
        for (uint32_t k = 0; k < g->prompts[i].n; k++)
            g->prompts[i].ids[k] = 3 + (31 * i + 7 * k) % 90;
    }
}

struct near {     /* of two answers */
    float margin; /* of logprobs */
    uint32_t n_row, n_same;
};

/* True if the sampled token is as likely as the expected one. */
static inline bool near_is_close(const struct bits_row *want, const struct bits_row *got,
                                 float margin)
{
    for (uint32_t i = 0; i < want->n_top; i++)
        if (want->top_ids[i] == got->token)
            return fabsf(want->top_logprobs[i] - want->logprob) < margin;
    return false;
}

/* may_differ: tokens are sampled at random, and the draw may be at the edge between two tokens. */
static inline void near_rows(struct near *n, const struct bits_answer *want,
                             const struct bits_answer *got, bool may_differ, const char *what)
{
    n->n_row += want->n;
    for (uint32_t i = 0; i < want->n; i++) {
        const struct bits_row *w = &want->sampled[i], *r = &got->sampled[i];
        if (w->token != r->token) {
            if (!may_differ && !near_is_close(w, r, n->margin))
                fail_msg("%s: token %u is %u, expected %u", what, i, r->token, w->token);
            return; /* the texts differ from here on */
        }
        n->n_same++;
        if (r->rank && fabsf(w->logprob - r->logprob) > n->margin)
            fail_msg("%s: token %u has logprob %f, expected %f", what, i, (double)r->logprob,
                     (double)w->logprob);
    }
}

static inline void near_prompt(const struct near *n, const struct bits_answer *want,
                               const struct bits_answer *got, const char *what)
{
    assert_int_equal(want->n_prompt, got->n_prompt);
    for (uint32_t i = 0; i < want->n_prompt; i++) {
        assert_int_equal(want->prompt[i].token, got->prompt[i].token);
        if (fabsf(want->prompt[i].logprob - got->prompt[i].logprob) > n->margin)
            fail_msg("%s: prompt token %u has logprob %f, expected %f", what, i,
                     (double)got->prompt[i].logprob, (double)want->prompt[i].logprob);
    }
}

struct near_case {
    const char *what;
    float margin; /* of logprobs */
    const char
        *plain; /* the folder that the CPU loads, in float32; NULL: the same folder and dtype */
};

/* The same n requests of every kind on both. */
static inline void near_compare_case(const struct core_config *c, const struct golden *g,
                                     uint32_t n, const struct near_case *k)
{
    const float margin = k->margin;
    struct near all = {.margin = margin};
    struct core_config cpu = *c;
    *cpu.worker.device = *cpu.worker.device_library = '\0';
    if (k->plain) {
        snprintf(cpu.worker.model_dir, sizeof cpu.worker.model_dir, "%s", k->plain);
        cpu.worker.dtype = DT_F32;
    }
    if (cpu.worker.quantization == QUANTIZE_FP8) /* for devices only */
        cpu.worker.quantization = QUANTIZE_NOT;
    if (cpu.worker.kv_dtype == DT_F8_E4M3)
        cpu.worker.kv_dtype = DT_BF16;
    device_all_logprobs = true;
    device_answers(&cpu, g, n);
    memcpy(near_expected, answers, sizeof near_expected);
    device_all_logprobs = false;
    device_answers(c, g, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(near_expected[i].finish, answers[i].finish);
        assert_int_equal(near_expected[i].n, answers[i].n);
        near_rows(&all, &near_expected[i], &answers[i], device_is_drawn(i) && margin > 0.01f,
                  k->what);
        near_prompt(&all, &near_expected[i], &answers[i], k->what);
    }
    assert_true(all.n_same * 10 >= all.n_row * (margin > 0.01f ? 3 : 10));
}

static inline void near_compare(const struct core_config *c, const struct golden *g, uint32_t n,
                                const char *what, float margin)
{
    near_compare_case(c, g, n, &(struct near_case){.what = what, .margin = margin});
}

#endif
