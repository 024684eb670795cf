/* SPDX-License-Identifier: Apache-2.0 */
/* What an answer takes in this process, before it is computed: a whole answer is kept until its
 * end, so a request of a few bytes (n, max_tokens, logprobs, echo) may ask for gigabytes. Of a
 * stream only the prompt that it repeats is kept, and in another dialect (dialect.h) its text. */
#include <inttypes.h>
#include "frontend/api/job_internal.h"

/* Bytes, about: a token's text and id; an entry of logprobs as JSON, whose text and bytes stand in
 * it. The help of --max-answer-bytes says them. */
#define TOKEN_BYTES 16u
#define ENTRY_BYTES 112u

static uint64_t row_bytes(uint32_t n_logprob)
{
    return n_logprob == SAMPLE_NO_LOGPROBS ? TOKEN_BYTES
                                           : TOKEN_BYTES + (1 + (uint64_t)n_logprob) * ENTRY_BYTES;
}

FALLIBLE job_fit_answer(struct job *j, uint32_t longest, struct q_err *e)
{
    const struct sample_params *s = &j->sampling;
    const uint64_t most = (uint64_t)j->app->options->max_answer_bytes;
    const uint64_t n_choice = j->prompts.n * (uint64_t)j->width; /* below 2^32 */
    const bool has_prompt = j->params.echo || s->n_prompt_logprob != SAMPLE_NO_LOGPROBS;
    const uint64_t per_token = j->params.stream && !j->dialect ? 0 : row_bytes(s->n_logprob);
    const uint64_t of_prompt = has_prompt ? longest * row_bytes(s->n_prompt_logprob) : 0;
    const uint64_t each = most / n_choice; /* bytes of a choice */
    if (of_prompt + per_token * s->max_tokens <= each)
        return Q_OK;
    if (j->fits_max_tokens && of_prompt + per_token * (s->min_tokens + 1ull) <= each) {
        j->sampling.max_tokens = (uint32_t)((each - of_prompt) / per_token);
        return Q_OK;
    }
    const char *prompt = j->params.echo ? "echo" : "prompt_logprobs";
    const char *field = of_prompt > each ? prompt : n_choice > 1 ? "n" : "max_tokens";
    snprintf(j->params.param, sizeof j->params.param, "%s", field);
    return q_fail(e, Q_INVALID,
                  "%s: the answer would have up to %" PRIu64 " choices (prompts times n) of %u "
                  "tokens%s with %" PRIu64 " bytes each, more than the %" PRIu64
                  " bytes of --max-answer-bytes; reduce n, max_tokens, logprobs%s%s or use stream",
                  field, n_choice, s->max_tokens, of_prompt ? " and the prompt's" : "",
                  per_token ? per_token : row_bytes(s->n_prompt_logprob), most,
                  of_prompt ? ", " : "", of_prompt ? prompt : "");
}
