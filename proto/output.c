/* SPDX-License-Identifier: Apache-2.0 */
/* An output message is columns that must fit each other; a decoder sees only single arrays. All
 * columns of wire version 1 are there, one entry per request; a column added later may be empty as
 * a whole and is not checked here. */
#include "proto/proto.h"

static enum q_code check_sum(const char *name, size_t n, uint64_t want, struct q_err *e)
{
    if (n != want)
        return q_fail(e, Q_CORRUPT, "output.%s: %zu entries where the columns add up to %llu", name,
                      n, (unsigned long long)want);
    return Q_OK;
}

static enum q_code check_columns(const struct msg_output *m, struct q_err *e)
{
    const struct {
        const char *name;
        size_t n;
    } columns[] = {{"seq", m->seq.n},
                   {"n_token", m->n_token.n},
                   {"finish", m->finish.n},
                   {"stop_id", m->stop_id.n},
                   {"n_cached", m->n_cached.n},
                   {"n_logprob", m->n_logprob.n},
                   {"n_prompt_row", m->n_prompt_row.n},
                   {"n_prompt_logprob", m->n_prompt_logprob.n},
                   {"queue_us", m->queue_us.n}};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (columns[i].n != m->req_ids.n)
            return q_fail(e, Q_CORRUPT, "output.%s: %zu entries for %zu requests", columns[i].name,
                          columns[i].n, m->req_ids.n);
    for (size_t i = 0; i < m->finish.n; i++)
        if (m->finish.data[i] > FINISH_ERROR)
            return q_fail(e, Q_CORRUPT, "output.finish: unknown reason %u", m->finish.data[i]);
    return Q_OK;
}

enum q_code proto_output_check(const struct msg_output *m, struct q_err *e)
{
    /* Each product is below 2^64 and each count below PROTO_ARRAY_MAX entries, but their sum may
     * wrap: stop at a limit. */
    const uint64_t limit = PROTO_ARRAY_MAX;
    uint64_t n_token = 0, n_logprob = 0, n_rank = 0, n_row = 0, n_prompt = 0;
    enum q_code rc = check_columns(m, e);
    for (size_t i = 0; i < m->req_ids.n && !rc; i++) {
        uint64_t tokens = m->n_token.data[i], each = m->n_logprob.data[i];
        uint64_t rows = m->n_prompt_row.data[i], row_each = m->n_prompt_logprob.data[i];
        n_token += tokens;
        n_rank += each ? tokens : 0;
        n_row += rows;
        if (tokens > limit || rows > limit || each > limit || row_each > limit ||
            (n_logprob += tokens * each) > limit || (n_prompt += rows * row_each) > limit)
            rc = q_fail(e, Q_CORRUPT, "output: request %zu of %zu: counts beyond %llu", i,
                        m->req_ids.n, (unsigned long long)limit);
    }
    if (rc || (rc = check_sum("tokens", m->tokens.n, n_token, e)) ||
        (rc = check_sum("logprob_ids", m->logprob_ids.n, n_logprob, e)) ||
        (rc = check_sum("logprobs", m->logprobs.n, n_logprob, e)) ||
        (rc = check_sum("ranks", m->ranks.n, n_rank, e)) ||
        (rc = check_sum("prompt_logprob_ids", m->prompt_logprob_ids.n, n_prompt, e)) ||
        (rc = check_sum("prompt_logprobs", m->prompt_logprobs.n, n_prompt, e)))
        return rc;
    return check_sum("prompt_ranks", m->prompt_ranks.n, n_row, e);
}
