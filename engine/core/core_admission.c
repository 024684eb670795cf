/* SPDX-License-Identifier: Apache-2.0 */
/* Refusal of requests whose first token would come too late (--max-ttft).
 *
 * What is ahead of a new request takes the longer of two times: that of the steps that compute the
 * prompts ahead, by the costs of the steps seen (step_cost.h), and, where all slots are taken, that
 * of the requests that must finish first, by the pace at which requests finish. A request with
 * nothing ahead is accepted whatever it takes itself: to come again later would not help it. */
#include "common/clock.h"
#include "engine/core/core_internal.h"

#define KEEP 0.9 /* weight of the past in the mean time between finishes */

void core_note_finishes(struct core *c, uint32_t n_output, int64_t now_us)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_output; i++)
        n += c->outputs[i].finish != FINISH_NONE;
    if (!n)
        return;
    if (c->finish_us) {
        const double every = (double)(now_us - c->finish_us) / n;
        c->finish_every_us =
            c->finish_every_us > 0 ? KEEP * c->finish_every_us + (1 - KEEP) * every : every;
    }
    c->finish_us = now_us;
}

/* Of a token of a prompt, in a step that is full of them; 0: no step was seen. */
static double prompt_token_us(const struct core *c)
{
    const uint64_t n = c->info.limits.max_num_batched_tokens;
    return (double)step_cost_expected_us(&c->cost, n * (STEP_COST_ROW + n / 2)) / (double)n;
}

int64_t core_ttft_us(const struct core *c, size_t n_prompt, int64_t *ahead_us)
{
    struct scheduler_stats s;
    core_stats(c, &s);
    const double token_us = prompt_token_us(c);
    const int64_t n_over = (int64_t)s.n_waiting + s.n_swapped + s.n_running + 1 -
                           c->info.limits.max_num_seqs; /* must finish first */
    const double prompts_us = token_us * (double)(s.n_waiting_token + s.n_prefill_token);
    const double slots_us = n_over > 0 ? c->finish_every_us * (double)n_over : 0;
    *ahead_us = (int64_t)(prompts_us > slots_us ? prompts_us : slots_us);
    return *ahead_us + (int64_t)(token_us * (double)n_prompt);
}

uint32_t core_ttft_excess_ms(const struct core *c, size_t n_prompt)
{
    int64_t ahead_us;
    if (!c->config.ttft_max_us || c->state != CORE_READY)
        return 0;
    const int64_t over_us = core_ttft_us(c, n_prompt, &ahead_us) - c->config.ttft_max_us;
    const int64_t us = over_us < ahead_us ? over_us : ahead_us;
    return us <= 0 ? 0 : us / 1000 + 1 < UINT32_MAX ? (uint32_t)(us / 1000 + 1) : UINT32_MAX;
}

FALLIBLE core_admit(const struct core *c, const struct msg_submit *m, struct q_err *e)
{
    int64_t ahead_us;
    if (m->emitted.n || !core_ttft_excess_ms(c, m->prompt.n)) /* a replay was admitted before */
        return Q_OK;
    return q_fail(e, Q_NO_SPACE,
                  "the first token would come after about %.1f seconds, more than %.1f "
                  "(--max-ttft); retry later",
                  (double)core_ttft_us(c, m->prompt.n, &ahead_us) / 1e6,
                  (double)c->config.ttft_max_us / 1e6);
}
