/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/params_sampling.h"
#include <math.h>
#include <openssl/rand.h>
#include <string.h>
#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/api/json.h"
#include "frontend/api/structured.h"

static double pick(const struct params *p, enum field f, double given, bool has_default,
                   double by_default, double otherwise)
{
    return p->has[f] ? given : has_default ? by_default : otherwise;
}

static enum q_code read_stop_ids(const struct params *p, const struct params_context *c,
                                 struct sample_params *s, struct params_ids *ids, struct q_err *e)
{
    size_t i;
    json_t *v;
    if (json_array_size(p->stop_token_ids) > SAMPLE_STOP_IDS_MAX)
        return q_fail(e, Q_INVALID, "stop_token_ids: %zu entries, expected at most %d",
                      json_array_size(p->stop_token_ids), SAMPLE_STOP_IDS_MAX);
    json_array_foreach ((json_t *)p->stop_token_ids, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= (c->vocab_size ? c->vocab_size : UINT32_MAX))
            return q_fail(e, Q_INVALID, "stop_token_ids: entry %zu is not a token id below %u", i,
                          c->vocab_size);
        ids->stop_ids[i] = (uint32_t)id;
    }
    s->stop_ids = ids->stop_ids;
    s->n_stop_id = (uint32_t)json_array_size(p->stop_token_ids);
    return Q_OK;
}

static enum q_code read_bias(const struct params *p, const struct params_context *c,
                             struct sample_params *s, struct params_ids *ids, struct q_err *e)
{
    const char *key;
    json_t *v;
    const size_t n = json_object_size(p->logit_bias);
    if (!n)
        return Q_OK;
    if (n > SAMPLE_BIAS_MAX)
        return q_fail(e, Q_INVALID, "logit_bias: %zu entries, expected at most %d", n,
                      SAMPLE_BIAS_MAX);
    ids->bias_ids = q_calloc(n, sizeof *ids->bias_ids);
    ids->bias = q_calloc(n, sizeof *ids->bias);
    if (!ids->bias_ids || !ids->bias)
        return q_fail(e, Q_NO_MEMORY, "logit_bias: out of memory for %zu entries", n);
    json_object_foreach ((json_t *)p->logit_bias, key, v) {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        double bias = json_number_value(v);
        if (*key < '0' || *key > '9' || *end || id >= (c->vocab_size ? c->vocab_size : UINT32_MAX))
            return q_fail(e, Q_INVALID, "logit_bias: \"%.40s\" is not a token id below %u", key,
                          c->vocab_size);
        if (*key == '0' && key[1]) /* "05" and "5" are the same id */
            return q_fail(e, Q_INVALID,
                          "logit_bias: token id \"%.40s\" has leading zeros, expected \"%llu\"",
                          key, id);
        if (!json_is_number(v) || !(bias >= -100 && bias <= 100))
            return q_fail(e, Q_INVALID,
                          "logit_bias: the bias of token %s must be a number from -100 to 100",
                          key);
        ids->bias_ids[s->n_bias] = (uint32_t)id;
        ids->bias[s->n_bias++] = (float)bias;
    }
    s->bias_ids = ids->bias_ids;
    s->bias = ids->bias;
    return Q_OK;
}

/* Check the number of alternatives against the server's limit and the vocabulary. */
static enum q_code fit_logprobs(const char *name, const struct params_context *c, uint32_t *n,
                                struct q_err *e)
{
    uint32_t few = SAMPLE_LOGPROBS_FEW, most = c->vocab_size > few ? c->vocab_size : few;
    if (*n == SAMPLE_NO_LOGPROBS)
        return Q_OK;
    if (*n == PARAMS_ALL && c->max_logprobs >= 0 && c->max_logprobs < (int64_t)most)
        return q_fail(e, Q_INVALID,
                      "%s: -1 requests all %u tokens, but the limit of this server is %lld "
                      "(--max-logprobs; -1 removes the limit)",
                      name, c->vocab_size, (long long)c->max_logprobs);
    if (*n != PARAMS_ALL && c->max_logprobs >= 0 && *n > c->max_logprobs)
        return q_fail(e, Q_INVALID,
                      "%s: %u exceeds the limit of this server, %lld (--max-logprobs)", name, *n,
                      (long long)c->max_logprobs);
    if (*n > most)
        *n = most;
    if (*n > SAMPLE_LOGPROBS_MAX)
        *n = SAMPLE_LOGPROBS_MAX;
    return Q_OK;
}

static enum q_code check_counts(const struct params *p, const struct params_context *c,
                                struct sample_params *s, struct q_err *e)
{
    enum q_code rc;
    const char *name = p->has[FIELD_top_logprobs] ? "top_logprobs" : "logprobs";
    if ((rc = fit_logprobs(name, c, &s->n_logprob, e)) ||
        (rc = fit_logprobs("prompt_logprobs", c, &s->n_prompt_logprob, e)))
        return rc;
    if (p->stream && s->n_logprob != SAMPLE_NO_LOGPROBS &&
        s->n_logprob > PARAMS_STREAM_LOGPROBS_MAX)
        return q_fail(e, Q_INVALID, "%s: %u per token exceed the limit for streams, %d", name,
                      s->n_logprob, PARAMS_STREAM_LOGPROBS_MAX);
    if (s->max_tokens && s->min_tokens > s->max_tokens)
        return q_fail(e, Q_INVALID, "min_tokens: %u is greater than max_tokens, %u", s->min_tokens,
                      s->max_tokens);
    if (s->top_p <= 0)
        return q_fail(e, Q_INVALID, "top_p: must be above 0 and at most 1, got %g", s->top_p);
    if (s->repetition_penalty <= 0)
        return q_fail(e, Q_INVALID, "repetition_penalty: must be above 0 and at most 2, got %g",
                      s->repetition_penalty);
    return Q_OK;
}

static enum q_code fill_sampling(struct params *p, const struct params_context *c,
                                 struct sample_params *s, struct params_ids *ids, struct q_err *e)
{
    static const struct generation_defaults none;
    const struct generation_defaults *d = c->defaults ? c->defaults : &none;
    enum q_code rc;
    double top_k = pick(p, FIELD_top_k, (double)p->top_k, d->has_top_k, (double)d->top_k, 0);
    memset(s, 0, sizeof *s);
    s->temperature =
        (float)pick(p, FIELD_temperature, p->temperature, d->has_temperature, d->temperature, 1);
    s->top_p = (float)pick(p, FIELD_top_p, p->top_p, d->has_top_p, d->top_p, 1);
    s->min_p = (float)pick(p, FIELD_min_p, p->min_p, d->has_min_p, d->min_p, 0);
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    s->repetition_penalty = (float)pick(p, FIELD_repetition_penalty, p->repetition_penalty,
                                        d->has_repetition_penalty, d->repetition_penalty, 1);
    s->presence_penalty = (float)p->presence_penalty;
    s->frequency_penalty = (float)p->frequency_penalty;
    s->seed = (uint64_t)p->seed;
    if (!p->has[FIELD_seed] && RAND_bytes((unsigned char *)&s->seed, sizeof s->seed) != 1)
        return q_fail(e, Q_INTERNAL, "cannot get random numbers for a seed");
    s->max_tokens =
        (uint32_t)(p->has[FIELD_max_completion_tokens] ? p->max_completion_tokens : p->max_tokens);
    s->min_tokens = (uint32_t)p->min_tokens;
    s->ignore_eos = p->ignore_eos;
    s->n_logprob = p->n_logprob;
    s->n_prompt_logprob = p->has[FIELD_prompt_logprobs] ? params_count_logprobs(p->prompt_logprobs)
                                                        : SAMPLE_NO_LOGPROBS;
    if ((rc = read_stop_ids(p, c, s, ids, e)) || (rc = read_bias(p, c, s, ids, e)) ||
        (rc = params_masks(p, c, s, ids, e)) || (rc = structured_read(p, s, ids, e)))
        return rc;
    return check_counts(p, c, s, e);
}

FALLIBLE params_sampling(struct params *p, const struct params_context *c, struct sample_params *s,
                         struct params_ids *ids, struct q_err *e)
{
    enum q_code rc = fill_sampling(p, c, s, ids, e);
    if (rc != Q_OK)
        params_note_field(p, e);
    return rc;
}

FALLIBLE params_stops(struct params *p, const char *stops[PARAMS_STOPS_MAX], uint32_t *n,
                      struct q_err *e)
{
    const json_t *v = p->stop;
    size_t count = json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
    *n = 0;
    snprintf(p->param, sizeof p->param, "stop");
    if (count > PARAMS_STOPS_MAX)
        return q_fail(e, Q_INVALID, "stop: %zu strings, expected at most %d", count,
                      PARAMS_STOPS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s))
            return q_fail(e, Q_INVALID, "stop: expected a string or an array of strings, got %s",
                          json_kind(s));
        if (json_string_length(s) == 0)
            return q_fail(e, Q_INVALID, "stop: a stop string is empty");
        stops[(*n)++] = json_string_value(s);
    }
    p->param[0] = 0;
    return Q_OK;
}
