/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/stream_log.h"

#include <string.h>
#include "proto/sampling.h"

enum { ROW_CHOICE, ROW_N_TOKEN, ROW_FINISH, ROW_STOP_ID, ROW_N_CACHED, ROW_N_LOGPROB, ROW_NUMBERS };

void stream_log_release(struct stream_log *l)
{
    buf_release(&l->rows);
    buf_release(&l->tokens);
    buf_release(&l->logprob_ids);
    buf_release(&l->logprobs);
    buf_release(&l->ranks);
}

size_t stream_log_bytes(const struct stream_log *l)
{
    return l->rows.len + l->tokens.len + l->logprob_ids.len + l->logprobs.len + l->ranks.len;
}

static void add_u32s(struct buf *b, const uint32_t *items, size_t n)
{
    if (n)
        buf_add(b, items, n * sizeof *items);
}

static bool is_whole(const struct stream_log *l)
{
    return !l->rows.failed && !l->tokens.failed && !l->logprob_ids.failed && !l->logprobs.failed &&
           !l->ranks.failed;
}

bool stream_log_add(struct stream_log *l, const struct stream_output *o)
{
    const uint32_t row[ROW_NUMBERS] = {o->choice,  o->n_token,  o->finish,
                                       o->stop_id, o->n_cached, o->n_logprob};
    const size_t n_entry = (size_t)o->n_token * o->n_logprob;
    add_u32s(&l->rows, row, ROW_NUMBERS);
    add_u32s(&l->tokens, o->tokens, o->n_token);
    add_u32s(&l->logprob_ids, o->logprob_ids, n_entry);
    if (n_entry)
        buf_add(&l->logprobs, o->logprobs, n_entry * sizeof *o->logprobs);
    add_u32s(&l->ranks, o->ranks, o->n_logprob ? o->n_token : 0);
    return is_whole(l);
}

/* The bytes of a buffer are those of an allocation, so they are aligned for any type. */
static const uint32_t *u32s_of(const struct buf *b)
{
    return (const uint32_t *)(const void *)b->data;
}

bool stream_log_next(const struct stream_log *l, struct stream_place *at, struct stream_output *out)
{
    if (at->row + ROW_NUMBERS > l->rows.len / sizeof(uint32_t))
        return false;
    const uint32_t *row = u32s_of(&l->rows) + at->row;
    const bool has = row[ROW_N_TOKEN] > 0, rated = has && row[ROW_N_LOGPROB] > 0;
    *out = (struct stream_output){
        .choice = row[ROW_CHOICE],
        .n_token = row[ROW_N_TOKEN],
        .finish = row[ROW_FINISH],
        .stop_id = row[ROW_STOP_ID],
        .n_cached = row[ROW_N_CACHED],
        .n_logprob = row[ROW_N_LOGPROB],
        .tokens = has ? u32s_of(&l->tokens) + at->token : NULL,
        .logprob_ids = rated ? u32s_of(&l->logprob_ids) + at->entry : NULL,
        .logprobs = rated ? (const float *)(const void *)l->logprobs.data + at->entry : NULL,
        .ranks = rated ? u32s_of(&l->ranks) + at->rank : NULL,
    };
    at->row += ROW_NUMBERS;
    at->token += out->n_token;
    at->entry += (size_t)out->n_token * out->n_logprob;
    at->rank += rated ? out->n_token : 0;
    return true;
}

bool stream_log_cut(struct stream_log *l, uint32_t choice, size_t n_token)
{
    struct stream_log kept = STREAM_LOG_INIT;
    struct stream_place at = {0};
    struct stream_output o;
    size_t n_seen = 0;
    bool changes = false, fits = true;
    while (stream_log_next(l, &at, &o)) {
        const bool is_of = o.choice == choice;
        /* An output without a token says that the choice has ended, or nothing. */
        const bool goes = is_of && (o.finish || n_seen + o.n_token > n_token);
        if (goes && n_seen < n_token)
            fits = false;
        n_seen += is_of && !goes ? o.n_token : 0;
        changes = changes || goes;
    }
    if (!fits || n_seen != n_token)
        return false;
    if (!changes)
        return true;
    at = (struct stream_place){0};
    n_seen = 0;
    while (fits && stream_log_next(l, &at, &o)) {
        if (o.choice == choice && (o.finish || n_seen + o.n_token > n_token))
            continue;
        n_seen += o.choice == choice ? o.n_token : 0;
        fits = stream_log_add(&kept, &o);
    }
    if (!fits) {
        stream_log_release(&kept);
        return false;
    }
    stream_log_release(l);
    *l = kept;
    return true;
}

static struct proto_u32s column(const struct buf *b)
{
    return (struct proto_u32s){u32s_of(b), b->len / sizeof(uint32_t)};
}

struct stream_columns stream_log_columns(const struct stream_log *l)
{
    return (struct stream_columns){
        .rows = column(&l->rows),
        .tokens = column(&l->tokens),
        .logprob_ids = column(&l->logprob_ids),
        .logprobs = {(const float *)(const void *)l->logprobs.data,
                     l->logprobs.len / sizeof(float)},
        .ranks = column(&l->ranks),
    };
}

static FALLIBLE check_columns(const struct stream_columns *c, struct q_err *e)
{
    uint64_t n_token = 0, n_entry = 0, n_rank = 0;
    if (c->rows.n % ROW_NUMBERS)
        return q_fail(e, Q_CORRUPT, "stream: %zu numbers of rows, expected a multiple of %d",
                      c->rows.n, ROW_NUMBERS);
    for (size_t i = 0; i < c->rows.n; i += ROW_NUMBERS) {
        const uint32_t *row = c->rows.data + i;
        if (row[ROW_CHOICE] >= STREAM_LOG_CHOICES_MAX || row[ROW_FINISH] > FINISH_ERROR ||
            row[ROW_N_LOGPROB] > SAMPLE_LOGPROBS_MAX + 1)
            return q_fail(e, Q_CORRUPT, "stream: row %zu: value out of range", i / ROW_NUMBERS);
        n_token += row[ROW_N_TOKEN]; /* 32-bit numbers in 64-bit sums */
        n_entry += (uint64_t)row[ROW_N_TOKEN] * row[ROW_N_LOGPROB];
        n_rank += row[ROW_N_LOGPROB] ? row[ROW_N_TOKEN] : 0;
    }
    if (n_token != c->tokens.n || n_entry != c->logprob_ids.n || n_entry != c->logprobs.n ||
        n_rank != c->ranks.n)
        return q_fail(e, Q_CORRUPT, "stream: the lengths of rows and arrays differ (%zu tokens)",
                      c->tokens.n);
    return Q_OK;
}

FALLIBLE stream_log_read(struct stream_log *l, const struct stream_columns *c, struct q_err *e)
{
    enum q_code rc = check_columns(c, e);
    if (rc)
        return rc;
    add_u32s(&l->rows, c->rows.data, c->rows.n);
    add_u32s(&l->tokens, c->tokens.data, c->tokens.n);
    add_u32s(&l->logprob_ids, c->logprob_ids.data, c->logprob_ids.n);
    if (c->logprobs.n)
        buf_add(&l->logprobs, c->logprobs.data, c->logprobs.n * sizeof *c->logprobs.data);
    add_u32s(&l->ranks, c->ranks.data, c->ranks.n);
    return is_whole(l) ? Q_OK : q_fail(e, Q_NO_MEMORY, "stream: out of memory for its outputs");
}
