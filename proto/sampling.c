/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/sampling.h"
#include <math.h>
#include <stddef.h>
#include "proto/proto.h"

void sample_params_default(struct sample_params *p)
{
    *p = (struct sample_params){.temperature = 1.0f,
                                .top_p = 1.0f,
                                .repetition_penalty = 1.0f,
                                .max_tokens = 16,
                                .n_logprob = SAMPLE_NO_LOGPROBS,
                                .n_prompt_logprob = SAMPLE_NO_LOGPROBS};
}

/* The float parameters and their ranges; NaN is in none. */
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
};

static enum q_code check_ranges(const struct sample_params *p, struct q_err *e)
{
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const struct range *r = &ranges[i];
        float v = *(const float *)((const char *)p + r->offset);
        if (!(v >= r->min && v <= r->max) || (r->above_min && v == r->min))
            return q_fail(e, Q_INVALID, "%s: must be in %c%g, %g], is %g", r->name,
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
        return q_fail(e, Q_INVALID, "%s: at most %u, are %u", name, max, n);
    return Q_OK;
}

static enum q_code check_logprobs(const char *name, uint32_t n, struct q_err *e)
{
    return n == SAMPLE_NO_LOGPROBS ? Q_OK : check_count(name, n, SAMPLE_LOGPROBS_MAX, e);
}

enum q_code sample_params_check(const struct sample_params *p, uint32_t vocab_size, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_ranges(p, e)))
        return rc;
    if (p->max_tokens < 1)
        return q_fail(e, Q_INVALID, "max_tokens: must be at least 1, is 0");
    if (p->min_tokens > p->max_tokens)
        return q_fail(e, Q_INVALID, "min_tokens: must be at most max_tokens (%u), is %u",
                      p->max_tokens, p->min_tokens);
    if ((rc = check_logprobs("logprobs", p->n_logprob, e)) ||
        (rc = check_logprobs("prompt_logprobs", p->n_prompt_logprob, e)) ||
        (rc = check_count("stop_token_ids", p->n_stop_id, SAMPLE_STOP_IDS_MAX, e)) ||
        (rc = check_ids("stop_token_ids", p->stop_ids, p->n_stop_id, vocab_size, e)) ||
        (rc = check_count("logit_bias", p->n_bias, SAMPLE_BIAS_MAX, e)) ||
        (rc = check_ids("logit_bias", p->bias_ids, p->n_bias, vocab_size, e)))
        return rc;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (!(fabsf(p->bias[i]) <= 100.0f))
            return q_fail(e, Q_INVALID, "logit_bias: must be in [-100, 100], is %g for token %u",
                          (double)p->bias[i], p->bias_ids[i]);
    return Q_OK;
}

/* Alternatives travel as count + 1, so that a field left out means none. */
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
    if (m->stop_ids.n > SAMPLE_STOP_IDS_MAX || m->bias.n > SAMPLE_BIAS_MAX)
        return q_fail(e, Q_INVALID, "%s: too many: %zu",
                      m->bias.n > SAMPLE_BIAS_MAX ? "logit_bias" : "stop_token_ids",
                      m->bias.n > SAMPLE_BIAS_MAX ? m->bias.n : m->stop_ids.n);
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
}
