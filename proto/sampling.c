/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/sampling.h"
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include "common/thinking_budget.h"
#include "proto/proto.h"

void sample_params_default(struct sample_params *p)
{
    *p = (struct sample_params){
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = 16,
        .n_logprob = SAMPLE_NO_LOGPROBS,
        .n_prompt_logprob = SAMPLE_NO_LOGPROBS,
    };
}

/* The float parameters and their ranges; NaN is outside every range. */
static const struct range {
    const char *name;
    size_t offset;
    float min, max;
    bool above_min; /* the range leaves min out */
} ranges[] = {
    {"temperature", offsetof(struct sample_params, temperature), 0.0f, 2.0f, false},
    {"top_p", offsetof(struct sample_params, top_p), 0.0f, 1.0f, true},
    {"min_p", offsetof(struct sample_params, min_p), 0.0f, 1.0f, false},
    {"repetition_penalty", offsetof(struct sample_params, repetition_penalty), 0.0f, 2.0f, true},
    {"presence_penalty", offsetof(struct sample_params, presence_penalty), -2.0f, 2.0f, false},
    {"frequency_penalty", offsetof(struct sample_params, frequency_penalty), -2.0f, 2.0f, false},
    {"top_n_sigma", offsetof(struct sample_params, top_n_sigma), 0.0f, 1000.0f, false},
};

static enum q_code check_ranges(const struct sample_params *p, struct q_err *e)
{
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const struct range *r = &ranges[i];
        float v = *(const float *)((const char *)p + r->offset);
        if (!(v >= r->min && v <= r->max) || (r->above_min && v == r->min))
            return q_fail(e, Q_INVALID, "%s: expected a value in %c%g, %g], got %g", r->name,
                          r->above_min ? '(' : '[', (double)r->min, (double)r->max, (double)v);
    }
    return Q_OK;
}

static enum q_code check_ids(const char *name, const uint32_t *ids, uint32_t n, uint32_t vocab_size,
                             struct q_err *e)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= vocab_size)
            return q_fail(e, Q_INVALID, "%s: token id %u is not in the vocabulary of %u", name,
                          ids[i], vocab_size);
    return Q_OK;
}

static enum q_code check_count(const char *name, uint32_t n, uint32_t max, struct q_err *e)
{
    if (n > max)
        return q_fail(e, Q_INVALID, "%s: expected at most %u, got %u", name, max, n);
    return Q_OK;
}

/* The limit on alternatives: the vocabulary, or 20 for a tiny vocabulary. */
static enum q_code check_logprobs(const char *name, uint32_t n, uint32_t vocab_size,
                                  struct q_err *e)
{
    uint32_t max = vocab_size > SAMPLE_LOGPROBS_FEW ? vocab_size : SAMPLE_LOGPROBS_FEW;
    if (max > SAMPLE_LOGPROBS_MAX)
        max = SAMPLE_LOGPROBS_MAX;
    return n == SAMPLE_NO_LOGPROBS ? Q_OK : check_count(name, n, max, e);
}

bool sample_bad_words_fit(const uint32_t *bad_words, uint32_t n_bad, uint32_t vocab_size)
{
    uint32_t left = 0; /* ids of the sequence that follow */
    for (uint32_t i = 0; i < n_bad; i++) {
        if (left) {
            if (bad_words[i] >= vocab_size)
                return false;
            left--;
        } else if (!(left = bad_words[i])) {
            return false;
        }
    }
    return left == 0;
}

/* Does an id occur twice? n <= SAMPLE_BIAS_MAX, so at least half of the table stays free. */
static bool is_twice(const uint32_t *ids, uint32_t n, uint32_t *which)
{
    enum { BITS = 11, SIZE = 1 << BITS };
    static_assert(SIZE >= 2 * SAMPLE_BIAS_MAX, "a free slot ends every search");
    uint32_t at, seen[SIZE] = {0}; /* index + 1 */
    for (uint32_t i = 0; i < n; i++) {
        *which = ids[i];
        for (at = ids[i] * 2654435761u >> (32 - BITS); seen[at]; at = (at + 1) % SIZE)
            if (ids[seen[at] - 1] == ids[i])
                return true;
        seen[at] = i + 1;
    }
    return false;
}

static enum q_code check_masks(const struct sample_params *p, uint32_t vocab_size, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_count("allowed_token_ids", p->n_allowed, SAMPLE_ALLOWED_MAX, e)) ||
        (rc = check_ids("allowed_token_ids", p->allowed_ids, p->n_allowed, vocab_size, e)) ||
        (rc = check_count("bad_words", p->n_bad, SAMPLE_BAD_MAX, e)) ||
        (rc = check_count("no_repeat_ngram_size", p->no_repeat_ngram, SAMPLE_NGRAM_MAX, e)))
        return rc;
    if (!sample_bad_words_fit(p->bad_words, p->n_bad, vocab_size))
        return q_fail(
            e, Q_INVALID,
            "bad_words: lengths and ids do not match, or an id is not in the vocabulary of %u",
            vocab_size);
    struct thinking_budget budget;
    if (p->n_thinking && !thinking_budget_view(&budget, p->thinking, p->n_thinking, vocab_size))
        return q_fail(e, Q_INVALID, "thinking_token_budget: malformed tags of reasoning");
    return Q_OK;
}

enum q_code sample_params_check(const struct sample_params *p, uint32_t vocab_size, struct q_err *e)
{
    enum q_code rc;
    uint32_t twice;
    if ((rc = check_ranges(p, e)))
        return rc;
    if (p->max_tokens < 1)
        return q_fail(e, Q_INVALID, "max_tokens: expected at least 1, got 0");
    if (p->min_tokens > p->max_tokens)
        return q_fail(e, Q_INVALID, "min_tokens: expected at most max_tokens (%u), got %u",
                      p->max_tokens, p->min_tokens);
    if ((!p->pools && (rc = check_logprobs("logprobs", p->n_logprob, vocab_size, e))) ||
        (rc = check_logprobs("prompt_logprobs", p->n_prompt_logprob, vocab_size, e)) ||
        (rc = check_count("stop_token_ids", p->n_stop_id, SAMPLE_STOP_IDS_MAX, e)) ||
        (rc = check_ids("stop_token_ids", p->stop_ids, p->n_stop_id, vocab_size, e)) ||
        (rc = check_count("logit_bias", p->n_bias, SAMPLE_BIAS_MAX, e)) ||
        (rc = check_ids("logit_bias", p->bias_ids, p->n_bias, vocab_size, e)) ||
        (rc = check_masks(p, vocab_size, e)))
        return rc;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (!(fabsf(p->bias[i]) <= 100.0f))
            return q_fail(e, Q_INVALID,
                          "logit_bias: expected a value in [-100, 100], got %g for token %u",
                          (double)p->bias[i], p->bias_ids[i]);
    if (is_twice(p->bias_ids, p->n_bias, &twice))
        return q_fail(e, Q_INVALID, "logit_bias: token %u has more than one bias", twice);
    return Q_OK;
}

/* The number of alternatives is sent plus 1, so that an omitted field means none. */
static uint32_t logprobs_from_wire(uint32_t n)
{
    return n == 0 ? SAMPLE_NO_LOGPROBS : n - 1;
}

static uint32_t logprobs_to_wire(uint32_t n)
{
    return n == SAMPLE_NO_LOGPROBS ? 0 : n + 1;
}

enum q_code sample_params_from_submit(struct sample_params *p, const struct msg_submit *m,
                                      struct q_err *e)
{
    if (m->bias.n != m->bias_ids.n)
        return q_fail(e, Q_INVALID, "logit_bias: %zu ids but %zu values", m->bias_ids.n, m->bias.n);
    const struct {
        const char *name;
        size_t n, max;
    } counts[] = {
        {"stop_token_ids", m->stop_ids.n, SAMPLE_STOP_IDS_MAX},
        {"logit_bias", m->bias.n, SAMPLE_BIAS_MAX},
        {"allowed_token_ids", m->allowed_ids.n, SAMPLE_ALLOWED_MAX},
        {"bad_words", m->bad_words.n, SAMPLE_BAD_MAX},
        {"thinking_token_budget", m->thinking.n, THINKING_BUDGET_WORDS_MAX},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].n > counts[i].max)
            return q_fail(e, Q_INVALID, "%s: expected at most %zu, got %zu", counts[i].name,
                          counts[i].max, counts[i].n);
    *p = (struct sample_params){
        .temperature = m->temperature,
        .top_p = m->top_p,
        .min_p = m->min_p,
        .top_k = m->top_k,
        .repetition_penalty = m->repetition_penalty,
        .presence_penalty = m->presence_penalty,
        .frequency_penalty = m->frequency_penalty,
        .seed = m->seed,
        .max_tokens = m->max_tokens,
        .min_tokens = m->min_tokens,
        .ignore_eos = m->ignore_eos,
        .n_logprob = logprobs_from_wire(m->n_logprob),
        .n_prompt_logprob = logprobs_from_wire(m->n_prompt_logprob),
        .stop_ids = m->stop_ids.data,
        .n_stop_id = (uint32_t)m->stop_ids.n,
        .bias_ids = m->bias_ids.data,
        .bias = m->bias.data,
        .n_bias = (uint32_t)m->bias.n,
        .allowed_ids = m->allowed_ids.data,
        .n_allowed = (uint32_t)m->allowed_ids.n,
        .bad_words = m->bad_words.data,
        .n_bad = (uint32_t)m->bad_words.n,
        .no_repeat_ngram = m->no_repeat_ngram,
        .no_repeat_window = m->no_repeat_window,
        .top_n_sigma = m->top_n_sigma,
        .thinking = m->thinking.data,
        .n_thinking = (uint32_t)m->thinking.n,
        .pools = m->pools,
        .n_value = m->n_value,
        .raw_vector = m->raw_vector,
        .second_text = m->second_text,
        .adjusted_logprobs = m->adjusted_logprobs,
        .grammar = m->grammar_kind,
        .grammar_data = m->grammar.data,
        .n_grammar = (uint32_t)m->grammar.n,
        .grammar_after = (const char *)m->grammar_after.data,
        .n_grammar_after = (uint32_t)m->grammar_after.n,
        .reasoning_tags = (const char *)m->reasoning_tags.data,
        .n_reasoning_tags = (uint32_t)m->reasoning_tags.n,
    };
    return Q_OK;
}

void sample_params_to_submit(struct msg_submit *m, const struct sample_params *p)
{
    m->temperature = p->temperature;
    m->top_p = p->top_p;
    m->min_p = p->min_p;
    m->top_k = p->top_k;
    m->repetition_penalty = p->repetition_penalty;
    m->presence_penalty = p->presence_penalty;
    m->frequency_penalty = p->frequency_penalty;
    m->seed = p->seed;
    m->max_tokens = p->max_tokens;
    m->min_tokens = p->min_tokens;
    m->ignore_eos = p->ignore_eos;
    m->n_logprob = logprobs_to_wire(p->n_logprob);
    m->n_prompt_logprob = logprobs_to_wire(p->n_prompt_logprob);
    m->stop_ids = (struct proto_u32s){p->stop_ids, p->n_stop_id};
    m->bias_ids = (struct proto_u32s){p->bias_ids, p->n_bias};
    m->bias = (struct proto_f32s){p->bias, p->n_bias};
    m->allowed_ids = (struct proto_u32s){p->allowed_ids, p->n_allowed};
    m->bad_words = (struct proto_u32s){p->bad_words, p->n_bad};
    m->no_repeat_ngram = p->no_repeat_ngram;
    m->no_repeat_window = p->no_repeat_window;
    m->top_n_sigma = p->top_n_sigma;
    m->thinking = (struct proto_u32s){p->thinking, p->n_thinking};
    m->pools = p->pools;
    m->n_value = p->n_value;
    m->raw_vector = p->raw_vector;
    m->second_text = p->second_text;
    m->adjusted_logprobs = p->adjusted_logprobs;
    m->grammar_kind = p->grammar;
    m->grammar = (struct proto_bytes){p->grammar_data, p->n_grammar};
    m->grammar_after =
        (struct proto_bytes){(const unsigned char *)p->grammar_after, p->n_grammar_after};
    m->reasoning_tags =
        (struct proto_bytes){(const unsigned char *)p->reasoning_tags, p->n_reasoning_tags};
}
