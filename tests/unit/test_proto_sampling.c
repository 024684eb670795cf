/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include <math.h>
#include "proto/proto.h"
#include "proto/sampling.h"

static struct q_err e;

static struct sample_params defaults(void)
{
    struct sample_params p;
    sample_params_default(&p);
    return p;
}

static void test_defaults(void **state)
{
    (void)state;
    struct sample_params p = defaults();
    assert_ok(sample_params_check(&p, 10, &e), &e);
    assert_int_equal(p.max_tokens, 16);
    assert_true(p.temperature == 1.0f && p.top_p == 1.0f && p.repetition_penalty == 1.0f);
    assert_int_equal(p.n_logprob, SAMPLE_NO_LOGPROBS);
}

#define REFUSED(field, value, part)                                          \
    do {                                                                     \
        struct sample_params p_ = defaults();                                \
        p_.field = (value);                                                  \
        assert_fails(sample_params_check(&p_, 10, &e), Q_INVALID, part, &e); \
    } while (0)
#define ACCEPTED(field, value)                           \
    do {                                                 \
        struct sample_params p_ = defaults();            \
        p_.field = (value);                              \
        assert_ok(sample_params_check(&p_, 10, &e), &e); \
    } while (0)

static void test_ranges(void **state)
{
    (void)state;
    ACCEPTED(temperature, 0.0f);
    ACCEPTED(temperature, 2.0f);
    REFUSED(temperature, -0.1f, "temperature: expected a value in [0, 2]");
    REFUSED(temperature, 2.1f, "temperature");
    REFUSED(temperature, NAN, "temperature");
    REFUSED(temperature, INFINITY, "temperature");
    REFUSED(top_p, 0.0f, "top_p: expected a value in (0, 1]");
    REFUSED(top_p, 1.01f, "top_p");
    ACCEPTED(min_p, 0.0f);
    REFUSED(min_p, -0.5f, "min_p");
    REFUSED(repetition_penalty, 0.0f, "repetition_penalty");
    ACCEPTED(repetition_penalty, 2.0f);
    ACCEPTED(presence_penalty, -2.0f);
    REFUSED(presence_penalty, -2.5f, "presence_penalty");
    REFUSED(frequency_penalty, NAN, "frequency_penalty");
    REFUSED(max_tokens, 0, "max_tokens");
    ACCEPTED(min_tokens, 16);
    REFUSED(min_tokens, 17, "min_tokens: expected at most max_tokens (16)");
    ACCEPTED(n_logprob, 20);
    REFUSED(n_logprob, 21, "logprobs: expected at most 20");
    REFUSED(n_prompt_logprob, 21, "prompt_logprobs");
    ACCEPTED(no_repeat_ngram, SAMPLE_NGRAM_MAX);
    REFUSED(no_repeat_ngram, SAMPLE_NGRAM_MAX + 1, "no_repeat_ngram_size: expected at most 64");
    ACCEPTED(top_n_sigma, 1.5f);
    REFUSED(top_n_sigma, -1.0f, "top_n_sigma");
    REFUSED(top_n_sigma, NAN, "top_n_sigma");
}

static void test_arrays(void **state)
{
    (void)state;
    struct sample_params p = defaults();
    const uint32_t ids[] = {9, 10};
    const float bias[] = {-100.0f, 100.5f};
    p.stop_ids = p.bias_ids = ids;
    p.bias = bias;
    p.n_stop_id = p.n_bias = 1;
    assert_ok(sample_params_check(&p, 10, &e), &e);
    p.n_stop_id = 2;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "stop_token_ids: token id 10", &e);
    p.n_stop_id = 1;
    p.n_bias = 2;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "logit_bias: token id 10", &e);
    assert_fails(sample_params_check(&p, 11, &e), Q_INVALID, "[-100, 100], got 100.5", &e);
    static const float none[SAMPLE_BIAS_MAX];
    uint32_t all[SAMPLE_BIAS_MAX];
    for (uint32_t i = 0; i < SAMPLE_BIAS_MAX; i++)
        all[i] = i * 2048u; /* many in one place of a table by low bits */
    p.bias_ids = all;
    p.bias = none;
    p.n_bias = SAMPLE_BIAS_MAX;
    assert_ok(sample_params_check(&p, 1u << 22, &e), &e);
    all[SAMPLE_BIAS_MAX - 1] = all[7];
    assert_fails(sample_params_check(&p, 1u << 22, &e), Q_INVALID, "token 14336 has more than one",
                 &e);
    static const uint32_t many[SAMPLE_BIAS_MAX + 1];
    p.n_bias = 0;
    p.stop_ids = many;
    p.n_stop_id = SAMPLE_STOP_IDS_MAX + 1;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "at most 64, got 65", &e);
}

static void test_masks(void **state)
{
    (void)state;
    struct sample_params p = defaults();
    static const uint32_t many[SAMPLE_ALLOWED_MAX + 1];
    static const struct {
        uint32_t n, words[6];
        bool fits;
    } cases[] = {
        {0, {0}, true},           {2, {1, 9}, true}, {5, {1, 9, 2, 0, 3}, true},
        {2, {1, 10}, false},   /* not in the vocabulary */
        {3, {1, 9, 0}, false}, /* an empty sequence */
        {2, {2, 1}, false},    /* cut short */
        {1, {UINT32_MAX}, false},
    };
    p.allowed_ids = (const uint32_t[]){3, 10};
    p.n_allowed = 1;
    assert_ok(sample_params_check(&p, 10, &e), &e);
    p.n_allowed = 2;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "allowed_token_ids: token id 10", &e);
    p.allowed_ids = many;
    p.n_allowed = SAMPLE_ALLOWED_MAX + 1;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "allowed_token_ids: expected at most",
                 &e);
    p.n_allowed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p.bad_words = cases[i].words;
        p.n_bad = cases[i].n;
        assert_int_equal(sample_params_check(&p, 10, &e), cases[i].fits ? Q_OK : Q_INVALID);
    }
    p.bad_words = many;
    p.n_bad = SAMPLE_BAD_MAX + 1;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "bad_words: expected at most", &e);
    static const uint32_t thinking[] = {5, 0, 0, 1, 0, 'x', 1, 1, 1, 'y', 9}; /* x … y, id 9 */
    p.n_bad = 0;
    p.thinking = thinking;
    p.n_thinking = sizeof thinking / sizeof *thinking;
    assert_ok(sample_params_check(&p, 10, &e), &e);
    assert_fails(sample_params_check(&p, 9, &e), Q_INVALID, "thinking_token_budget: malformed", &e);
    p.n_thinking--;
    assert_fails(sample_params_check(&p, 10, &e), Q_INVALID, "thinking_token_budget: malformed",
                 &e);
}

static void test_wire(void **state)
{
    (void)state;
    const uint32_t ids[] = {1, 2};
    const float bias[] = {3.0f, 4.0f};
    struct sample_params p = {
        .temperature = 0.5f,
        .top_p = 0.9f,
        .min_p = 0.1f,
        .top_k = 7,
        .repetition_penalty = 1.1f,
        .presence_penalty = 0.2f,
        .frequency_penalty = 0.3f,
        .seed = 42,
        .max_tokens = 5,
        .min_tokens = 2,
        .ignore_eos = true,
        .n_logprob = 0,
        .n_prompt_logprob = SAMPLE_NO_LOGPROBS,
        .stop_ids = ids,
        .n_stop_id = 2,
        .bias_ids = ids,
        .bias = bias,
        .n_bias = 2,
        .allowed_ids = ids,
        .n_allowed = 2,
        .bad_words = ids,
        .n_bad = 2,
        .no_repeat_ngram = 3,
        .no_repeat_window = 4,
        .top_n_sigma = 1.5f,
        .thinking = ids,
        .n_thinking = 2,
    };
    struct sample_params back;
    struct msg_submit m = {0}, again = {0};
    sample_params_to_submit(&m, &p);
    assert_int_equal(m.n_logprob, 1);
    assert_int_equal(m.n_prompt_logprob, 0);
    assert_ok(sample_params_from_submit(&back, &m, &e), &e);
    sample_params_to_submit(&again, &back);
    assert_true(msg_submit_equal(&m, &again));
    assert_int_equal(back.n_logprob, 0);
    assert_true(back.n_bad == 2 && back.n_allowed == 2 && back.no_repeat_window == 4);
    assert_true(back.n_thinking == 2 && back.thinking == ids);
    assert_int_equal(back.n_prompt_logprob, SAMPLE_NO_LOGPROBS);
    m.bias.n = 1;
    assert_fails(sample_params_from_submit(&back, &m, &e), Q_INVALID, "2 ids but 1 values", &e);
    m.bias.n = m.bias_ids.n = (size_t)1 << 33;
    assert_fails(sample_params_from_submit(&back, &m, &e), Q_INVALID,
                 "logit_bias: expected at most 1024", &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_arrays),   cmocka_unit_test(test_masks),
        cmocka_unit_test(test_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
