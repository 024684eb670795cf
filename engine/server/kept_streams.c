/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of kept streams (streams.h). A stream is taken over even if its frontend still has
 * it: the client that resumes is the one that counts, because a broken connection may look whole at
 * the frontend for a long time. */
#include "common/clock.h"
#include "common/log.h"
#include "engine/server/frontends_internal.h"

#define FRONTENDS_RETURN_MS 5000 /* after its start: frontends submit their requests again */

/* End the stream's open generations at the frontends that have them. */
static void end_parts(struct frontends *p, struct stream *x)
{
    struct q_err why = Q_ERR_INIT;
    uint32_t frontend_id;
    uint64_t req_id;
    enum q_code rc = q_fail(&why, Q_CANCELLED, "the stream was resumed over another connection");
    (void)rc;
    while (stream_take_part(x, &frontend_id, &req_id)) {
        const bool was_open = core_abort(p->core, frontend_id, req_id);
        for (uint32_t i = 0; i < p->n; i++) {
            struct frontend *of = &p->frontends[i];
            if (of->frontend_id != frontend_id || of->removed || of->lost)
                continue;
            of->n_open -= was_open && of->n_open;
            frontends_send_error(p, &of->at, req_id, &why, 0);
        }
    }
}

FALLIBLE frontends_on_keep_stream(struct frontends *p, const struct msg_keep_stream *m,
                                  struct q_err *e)
{
    struct stream *before = streams_find(&p->streams, m->stream_id.data, m->stream_id.n);
    if (before && before->n_resume < m->n_resume)
        end_parts(p, before);
    return streams_keep(&p->streams, m, clock_ms(), e);
}

static FALLIBLE find_stream(const struct frontends *p, const struct msg_resume_stream *m,
                            struct stream **out, struct q_err *e)
{
    *out = streams_find(&p->streams, m->stream_id.data, m->stream_id.n);
    if (*out && stream_allows(*out, m->key_digest.data, m->key_digest.n))
        return Q_OK;
    if (!*out && clock_ms() - p->started_ms < FRONTENDS_RETURN_MS)
        return q_fail(e, Q_UNAVAILABLE,
                      "Last-Event-ID: the engine has just started and may not know the stream yet; "
                      "retry");
    return q_fail(e, Q_NOT_FOUND,
                  "Last-Event-ID: the server keeps no such stream of this API key (any more): send "
                  "the request again without this header");
}

static void send_refusal(struct frontends *p, struct frontend *to, uint64_t order_id,
                         const struct q_err *why)
{
    struct q_err e = Q_ERR_INIT;
    const char *code = q_code_name(why->code);
    const struct msg_stream_resumed m = {
        .order_id = order_id,
        .code = {code, strlen(code)},
        .message = {why->message, strlen(why->message)},
    };
    buf_reset(&p->frame);
    enum q_code rc = msg_stream_resumed_encode(&m, &p->frame, &e);
    frontends_send(p, to, rc, &e);
}

void frontends_on_resume_stream(struct frontends *p, struct frontend *from,
                                const struct msg_resume_stream *m)
{
    struct q_err e = Q_ERR_INIT;
    struct stream *x;
    if (find_stream(p, m, &x, &e)) {
        send_refusal(p, from, m->order_id, &e);
        return;
    }
    end_parts(p, x);
    x->n_resume++;
    x->left_ms = clock_ms();
    const struct stream_columns log = stream_log_columns(&x->log);
    const struct msg_stream_resumed reply = {
        .order_id = m->order_id,
        .code = {"OK", 2},
        .n_resume = x->n_resume,
        .keep_ms = x->keep_ms,
        .chat = x->chat,
        .response_id = {buf_str(&x->response_id), x->response_id.len},
        .created = x->created,
        .seed = x->seed,
        .body = {(const uint8_t *)buf_str(&x->body), x->body.len},
        .rows = log.rows,
        .tokens = log.tokens,
        .logprob_ids = log.logprob_ids,
        .logprobs = log.logprobs,
        .ranks = log.ranks,
    };
    log_debug("frontend %u resumes a stream with %zu tokens", from->frontend_id, log.tokens.n);
    buf_reset(&p->frame);
    enum q_code rc = msg_stream_resumed_encode(&reply, &p->frame, &e);
    frontends_send(p, from, rc, &e);
}

void frontends_keep_outputs(struct frontends *p, const struct frontend *of)
{
    const struct outbox *o = &p->outbox;
    const int64_t now = clock_ms();
    size_t token = 0, entry = 0, rank = 0;
    for (uint32_t i = 0; i < o->n_request && p->streams.n; i++) {
        const struct stream_output output = {
            .n_token = o->n_token[i],
            .finish = o->finish[i],
            .stop_id = o->stop_id[i],
            .n_cached = o->n_cached[i],
            .n_logprob = o->n_logprob[i],
            .tokens = o->tokens + token,
            .logprob_ids = o->chosen.ids + entry,
            .logprobs = o->chosen.logprobs + entry,
            .ranks = o->ranks + rank,
        };
        if (output.n_token || output.finish)
            streams_output(&p->streams, of->frontend_id, o->req_ids[i], &output, now);
        token += output.n_token;
        entry += (size_t)output.n_token * output.n_logprob;
        rank += output.n_logprob ? output.n_token : 0;
    }
}
