/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/server/outbox.h"
#include <string.h>
#include "common/mem.h"

FALLIBLE outbox_init(struct outbox *o, const struct step_limits *l, struct q_err *e)
{
    *o = (struct outbox)OUTBOX_INIT;
    size_t n = l->logit_rows_max, m = n + (size_t)step_top_max(l); /* tokens, alternatives */
    uint32_t **columns[] = {
        &o->seq,      &o->n_token,   &o->tokens,       &o->finish,           &o->stop_id,
        &o->n_cached, &o->n_logprob, &o->n_prompt_row, &o->n_prompt_logprob, &o->n_value};
    uint32_t **arrays[] = {&o->chosen.ids, &o->prompt.ids, &o->ranks, &o->prompt_ranks};
    float **floats[] = {&o->chosen.logprobs, &o->prompt.logprobs, &o->values};
    size_t n_column = sizeof columns / sizeof *columns, n_array = sizeof arrays / sizeof *arrays;
    size_t n_float = sizeof floats / sizeof *floats;
    uint64_t *at = q_calloc(
        2 * n * sizeof *at + (n_column * n + (n_array + n_float) * m) * sizeof(uint32_t), 1);
    if (!at)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for the outputs of %zu requests", n);
    o->memory = at;
    o->req_ids = at;
    o->queue_us = at + n;
    uint32_t *next = (uint32_t *)(at + 2 * n);
    for (size_t i = 0; i < n_column; i++, next += n)
        *columns[i] = next;
    for (size_t i = 0; i < n_array; i++, next += m)
        *arrays[i] = next;
    for (size_t i = 0; i < n_float; i++, next += m)
        *floats[i] = (float *)next;
    o->n_request_max = l->logit_rows_max;
    o->n_row_max = l->logit_rows_max;
    return Q_OK;
}

void outbox_release(struct outbox *o)
{
    q_free(o->memory);
    buf_release(&o->frame);
    *o = (struct outbox)OUTBOX_INIT;
}

/* The token itself and `n` alternatives. */
static void add_entries(struct outbox_entries *to, const struct step_result *r,
                        const struct step_row *row, uint32_t n)
{
    to->ids[to->n] = row->token;
    to->logprobs[to->n++] = row->logprob;
    memcpy(to->ids + to->n, r->top_ids + row->top_start, n * sizeof *to->ids);
    memcpy(to->logprobs + to->n, r->top_logprobs + row->top_start, n * sizeof *to->logprobs);
    to->n += n;
}

static void add_prompt_rows(struct outbox *o, const struct step_result *r,
                            const struct scheduler_output *out)
{
    uint32_t n_top = UINT32_MAX; /* the same for all rows, but for rows that are no numbers */
    for (uint32_t i = 0; i < out->n_prompt_row; i++)
        if (out->prompt_rows[i].n_top < n_top)
            n_top = out->prompt_rows[i].n_top;
    o->n_prompt_row[o->n_request] = out->n_prompt_row;
    o->n_prompt_logprob[o->n_request] = out->n_prompt_row ? n_top + 1 : 0;
    for (uint32_t i = 0; i < out->n_prompt_row; i++) {
        add_entries(&o->prompt, r, &out->prompt_rows[i], n_top);
        o->prompt_ranks[o->n_prompt_row_all++] = out->prompt_rows[i].rank;
    }
}

/* One more token of the request that was added last: an accepted draft token. False when its
 * columns say something else. */
static bool add_to_last(struct outbox *o, const struct step_result *r,
                        const struct scheduler_output *out)
{
    uint32_t i = o->n_request - 1, n_logprob = out->row && out->row->rank ? out->row->n_top + 1 : 0;
    if (o->n_request == 0 || o->req_ids[i] != out->req_id || !out->has_token ||
        o->n_logprob[i] != n_logprob)
        return false;
    o->n_token[i]++;
    o->finish[i] = out->finish;
    o->stop_id[i] = out->stop_id;
    o->tokens[o->n_token_all++] = out->token;
    if (n_logprob) {
        add_entries(&o->chosen, r, out->row, out->row->n_top);
        o->ranks[o->n_rank_all++] = out->row->rank;
    }
    o->n_finished += out->finish != FINISH_NONE;
    return true;
}

static void add_vector(struct outbox *o, const struct step_result *r,
                       const struct scheduler_output *out)
{
    const uint32_t n = out->has_vector ? out->row->n_top : 0;
    o->n_value[o->n_request] = n;
    if (n)
        memcpy(o->values + o->n_value_all, r->top_logprobs + out->row->top_start,
               n * sizeof *o->values);
    o->n_value_all += n;
}

static void add_output(struct outbox *o, const struct step_result *r,
                       const struct scheduler_output *out)
{
    if (add_to_last(o, r, out))
        return;
    uint32_t i = o->n_request;
    bool logprobs = out->has_token && out->row && out->row->rank;
    o->req_ids[i] = out->req_id;
    o->queue_us[i] = out->queue_us;
    o->seq[i] = out->seq;
    o->n_token[i] = out->has_token;
    o->finish[i] = out->finish;
    o->stop_id[i] = out->stop_id;
    o->n_cached[i] = out->n_cached;
    o->n_logprob[i] = logprobs ? out->row->n_top + 1 : 0;
    if (out->has_token)
        o->tokens[o->n_token_all++] = out->token;
    if (logprobs) {
        add_entries(&o->chosen, r, out->row, out->row->n_top);
        o->ranks[o->n_rank_all++] = out->row->rank;
    }
    add_prompt_rows(o, r, out);
    add_vector(o, r, out);
    o->n_finished += out->finish != FINISH_NONE;
    o->n_request++;
}

FALLIBLE outbox_fill(struct outbox *o, uint32_t frontend_id, const struct outbox_step *step,
                     uint32_t *n, struct q_err *e)
{
    o->n_request = o->n_token_all = o->n_rank_all = o->n_prompt_row_all = o->n_finished = 0;
    o->n_value_all = 0;
    o->chosen.n = o->prompt.n = 0;
    for (uint32_t i = 0; i < step->n; i++)
        if (step->outputs[i].frontend_id == frontend_id && !step->outputs[i].why)
            add_output(o, step->result, &step->outputs[i]);
    *n = o->n_request;
    if (!o->n_request)
        return Q_OK;
    const struct msg_output m = {
        .step = step->result ? step->result->head->step : 0,
        .req_ids = {o->req_ids, o->n_request},
        .seq = {o->seq, o->n_request},
        .n_token = {o->n_token, o->n_request},
        .tokens = {o->tokens, o->n_token_all},
        .finish = {o->finish, o->n_request},
        .stop_id = {o->stop_id, o->n_request},
        .n_cached = {o->n_cached, o->n_request},
        .n_logprob = {o->n_logprob, o->n_request},
        .logprob_ids = {o->chosen.ids, o->chosen.n},
        .logprobs = {o->chosen.logprobs, o->chosen.n},
        .ranks = {o->ranks, o->n_rank_all},
        .n_prompt_row = {o->n_prompt_row, o->n_request},
        .n_prompt_logprob = {o->n_prompt_logprob, o->n_request},
        .prompt_logprob_ids = {o->prompt.ids, o->prompt.n},
        .prompt_logprobs = {o->prompt.logprobs, o->prompt.n},
        .prompt_ranks = {o->prompt_ranks, o->n_prompt_row_all},
        .queue_us = {o->queue_us, o->n_request},
        .n_value = {o->n_value, o->n_request},
        .values = {o->values, o->n_value_all},
    };
    buf_reset(&o->frame);
    return msg_output_encode(&m, &o->frame, e);
}
