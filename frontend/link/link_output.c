/* SPDX-License-Identifier: Apache-2.0 */
/* An output message has columns: one entry per request, and flat arrays for all requests together.
 * The columns are checked against each other first, so that reading them needs no checks, and a
 * malformed message delivers nothing. */
#include <string.h>
#include "frontend/link/link_internal.h"

struct place { /* position in the flat arrays */
    size_t token, logprob, rank, prompt_logprob, prompt_rank, value;
};

/* Entry i of a column that may be omitted (then 0). */
static uint32_t entry(struct proto_u32s column, size_t i)
{
    return i < column.n ? column.data[i] : 0;
}

static bool column_ok(struct proto_u32s column, size_t n)
{
    return column.n == n || column.n == 0;
}

static void advance(struct place *p, const struct msg_output *m, size_t i)
{
    size_t n_token = entry(m->n_token, i), n_logprob = entry(m->n_logprob, i);
    size_t n_row = entry(m->n_prompt_row, i), n_prompt = entry(m->n_prompt_logprob, i);
    p->token += n_token;
    p->logprob += n_token * n_logprob;
    p->rank += n_logprob ? n_token : 0;
    p->prompt_logprob += n_row * n_prompt;
    p->prompt_rank += n_prompt ? n_row : 0;
    p->value += entry(m->n_value, i);
}

static enum q_code check(const struct msg_output *m, struct q_err *e)
{
    size_t n = m->req_ids.n;
    struct place sum = {0};
    if (!column_ok(m->seq, n) || !column_ok(m->n_token, n) || !column_ok(m->finish, n) ||
        !column_ok(m->stop_id, n) || !column_ok(m->n_cached, n) || !column_ok(m->n_logprob, n) ||
        !column_ok(m->n_prompt_row, n) || !column_ok(m->n_prompt_logprob, n) ||
        !column_ok(m->n_value, n) || (m->queue_us.n != n && m->queue_us.n != 0))
        return q_fail(e, Q_CORRUPT, "output: the columns differ in length, expected %zu entries",
                      n);
    for (size_t i = 0; i < n; i++) {
        if (entry(m->n_logprob, i) > SAMPLE_LOGPROBS_MAX + 1 ||
            entry(m->n_prompt_logprob, i) > SAMPLE_LOGPROBS_MAX + 1 ||
            entry(m->finish, i) > FINISH_ERROR)
            return q_fail(e, Q_CORRUPT, "output: entry %zu: value out of range", i);
        advance(&sum, m, i); /* 32-bit counts in 64-bit sums: no overflow for any frame that fits */
    }
    if (sum.token != m->tokens.n || sum.logprob != m->logprob_ids.n ||
        sum.logprob != m->logprobs.n || sum.rank != m->ranks.n ||
        sum.prompt_logprob != m->prompt_logprob_ids.n ||
        sum.prompt_logprob != m->prompt_logprobs.n || sum.prompt_rank != m->prompt_ranks.n ||
        sum.value != m->values.n)
        return q_fail(e, Q_CORRUPT,
                      "output: the lengths of arrays and columns differ (%zu tokens, expected %zu)",
                      m->tokens.n, sum.token);
    return Q_OK;
}

static struct link_tokens row(const struct msg_output *m, size_t i, const struct place *p)
{
    struct link_tokens t = {
        .ids = m->tokens.data ? m->tokens.data + p->token : NULL,
        .n = entry(m->n_token, i),
        .finish = (enum finish_reason)entry(m->finish, i),
        .stop_id = entry(m->stop_id, i),
        .n_cached = entry(m->n_cached, i),
        .queue_us = i < m->queue_us.n ? m->queue_us.data[i] : 0,
    };
    t.n_value = entry(m->n_value, i);
    t.values = t.n_value ? m->values.data + p->value : NULL;
    uint32_t n_logprob = entry(m->n_logprob, i), n_prompt = entry(m->n_prompt_logprob, i);
    if (n_logprob)
        t.logprobs = (struct logprob_rows){t.n, n_logprob, m->logprob_ids.data + p->logprob,
                                           m->logprobs.data + p->logprob, m->ranks.data + p->rank};
    if (n_prompt)
        t.prompt = (struct logprob_rows){
            entry(m->n_prompt_row, i), n_prompt, m->prompt_logprob_ids.data + p->prompt_logprob,
            m->prompt_logprobs.data + p->prompt_logprob, m->prompt_ranks.data + p->prompt_rank};
    return t;
}

FALLIBLE link_output(struct link *l, const struct msg_output *m, struct q_err *e)
{
    struct place p = {0};
    enum q_code rc = check(m, e);
    if (rc != Q_OK)
        return rc;
    for (size_t i = 0; i < m->req_ids.n; i++) {
        struct generation *f = generation_by_wire_id(l, m->req_ids.data[i]);
        if (f) { /* otherwise the generation was aborted or submitted again */
            struct link_tokens t = row(m, i, &p);
            link_deliver(l, f, entry(m->seq, i), &t);
        }
        advance(&p, m, i);
    }
    return Q_OK;
}
