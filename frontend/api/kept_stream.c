/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/kept_stream.h"

#include <inttypes.h>
#include <openssl/rand.h>
#include <string.h>
#include <strings.h>
#include "common/log.h"
#include "common/mem.h"
#include "frontend/api/job_internal.h"

/* Does the Accept header name event streams? */
static bool accepts_events(const struct http_exchange *x)
{
    static const char type[] = "text/event-stream";
    const struct http_text accept = http_header(x, "accept");
    for (size_t i = 0; i + sizeof type - 1 <= accept.n; i++)
        if (!strncasecmp(accept.data + i, type, sizeof type - 1))
            return true;
    return false;
}

static int64_t keep_seconds(const struct job *j)
{
    const int64_t wanted = j->app->options->stream_resume_timeout;
    return wanted >= 0 ? wanted : accepts_events(j->task.x) ? KEPT_STREAM_DEFAULT_S : 0;
}

static bool can_resume(const struct job *j)
{
    return j->params.stream && !j->dialect && !j->params.use_beam_search && !j->n_items &&
           !j->positions && j->sampling.n_prompt_logprob == SAMPLE_NO_LOGPROBS &&
           j->task.text.n <= KEPT_STREAM_BYTES_MAX &&
           j->prompts.n * (size_t)j->width <= STREAM_LOG_CHOICES_MAX;
}

FALLIBLE kept_stream_begin(struct job *j, struct q_err *e)
{
    const int64_t seconds = keep_seconds(j);
    if (j->kept || seconds <= 0 || !can_resume(j))
        return Q_OK;
    struct kept_stream *k = q_calloc(1, sizeof *k);
    if (!k)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the request");
    k->keep_ms = (uint32_t)seconds * 1000;
    k->seed = j->sampling.seed;
    if (RAND_bytes(k->id, sizeof k->id) != 1) {
        q_free(k);
        return q_fail(e, Q_INTERNAL, "cannot get random numbers for a stream's id");
    }
    j->kept = k;
    return Q_OK;
}

void kept_stream_free(struct kept_stream *k)
{
    if (!k)
        return;
    stream_log_release(&k->log);
    q_free(k);
}

void kept_stream_event(struct job *j, struct buf *out)
{
    struct kept_stream *k = j->kept;
    if (k) {
        k->n_event++;
        buf_add_str(out, "id: ");
        for (size_t i = 0; i < sizeof k->id; i++)
            buf_printf(out, "%02x", k->id[i]);
        buf_printf(out, ".%" PRIu64 "\n", k->n_event);
    }
    buf_add_str(out, "data: ");
}

void kept_stream_event_end(struct job *j, struct buf *out)
{
    buf_add_str(out, "\n\n");
    if (j->kept && j->kept->n_event <= j->kept->n_seen)
        j->kept->n_old = out->len;
}

void kept_stream_submit(struct job *j, struct link *to)
{
    struct kept_stream *k = j->kept;
    const uint64_t engine = link_engine(to)->instance;
    if (!k || k->is_lost || k->kept_by == engine)
        return;
    struct q_err e = Q_ERR_INIT;
    unsigned char key[32];
    const struct stream_columns log = stream_log_columns(&k->log);
    const struct msg_keep_stream m = {
        .stream_id = {k->id, sizeof k->id},
        .n_resume = k->n_resume,
        .key_digest = {key, http_key(j->task.x, key) ? sizeof key : 0},
        .keep_ms = k->keep_ms,
        .chat = j->chat,
        .response_id = {j->id, strlen(j->id)},
        .created = (uint64_t)j->created,
        .seed = k->seed,
        .body = {(const uint8_t *)j->task.text.data, j->task.text.n},
        .rows = log.rows,
        .tokens = log.tokens,
        .logprob_ids = log.logprob_ids,
        .logprobs = log.logprobs,
        .ranks = log.ranks,
    };
    if (link_keep_stream(to, &m, &e) == Q_OK)
        k->kept_by = engine; /* otherwise with the next submission */
}

void kept_stream_note(struct job *j, const struct choice *c, const struct link_tokens *t)
{
    struct kept_stream *k = j->kept;
    if (!k || k->is_lost || k->replaying)
        return;
    const struct stream_output o = {
        .choice = c->index,
        .n_token = t->n,
        .finish = t->finish,
        .stop_id = t->stop_id,
        .n_cached = t->n_cached,
        .n_logprob = t->logprobs.n,
        .tokens = t->ids,
        .logprob_ids = t->logprobs.ids,
        .logprobs = t->logprobs.logprobs,
        .ranks = t->logprobs.ranks,
    };
    if (stream_log_add(&k->log, &o) &&
        stream_log_bytes(&k->log) + j->task.text.n <= KEPT_STREAM_BYTES_MAX)
        return;
    log_warning("%s: the stream has become too large to be resumed", j->id);
    stream_log_release(&k->log);
    k->is_lost = true;
}

static FALLIBLE replay_output(struct job *j, const struct stream_output *o, struct q_err *e)
{
    if (o->choice >= j->n_choice)
        return q_fail(e, Q_CORRUPT, "the kept stream has a choice %u, its request %u choices",
                      o->choice, j->n_choice);
    struct choice *c = &j->choices[o->choice];
    const struct link_tokens t = {
        .ids = o->tokens,
        .n = o->n_token,
        .logprobs = {o->n_logprob ? o->n_token : 0, o->n_logprob, o->logprob_ids, o->logprobs,
                     o->ranks},
        .finish = (enum finish_reason)o->finish,
        .stop_id = o->stop_id,
        .n_cached = o->n_cached,
    };
    if (!c->finished) /* otherwise a stop string ended it before the engine was told */
        c->generation.calls->on_tokens(&c->generation, &t);
    return Q_OK;
}

static FALLIBLE begun_of(const struct kept_stream *k, uint32_t choice, struct token_list *out,
                         struct q_err *e)
{
    struct stream_place at = {0};
    struct stream_output o;
    while (stream_log_next(&k->log, &at, &o))
        for (uint32_t i = 0; i < o.n_token && o.choice == choice; i++)
            if (token_list_add(out, o.tokens[i], e))
                return e->code;
    return Q_OK;
}

static FALLIBLE open_rest(struct job *j, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < j->n_choice && !rc && !j->ended; i++) {
        struct choice *c = &j->choices[i];
        struct token_list begun = TOKEN_LIST_INIT;
        if (c->finished)
            continue;
        if (!(rc = begun_of(j->kept, i, &begun, e))) {
            c->generation.begun = begun.ids;
            c->generation.n_begun = begun.n;
            rc = engines_open(j->app->engines, &c->generation, e);
            c->generation.begun = NULL;
        }
        token_list_release(&begun);
    }
    return rc;
}

FALLIBLE kept_stream_check(const struct job *j, uint64_t n_event, struct q_err *e)
{
    if (!j->kept || n_event >= j->kept->n_seen)
        return Q_OK;
    return q_fail(e, Q_NOT_FOUND,
                  "Last-Event-ID: the stream has no event %" PRIu64
                  ": send the request again without this header",
                  j->kept->n_seen);
}

FALLIBLE kept_stream_replay(struct job *j, struct q_err *e)
{
    struct kept_stream *k = j->kept;
    struct stream_place at = {0};
    struct stream_output o;
    enum q_code rc = Q_OK;
    k->replaying = true;
    while (!rc && !j->ended && stream_log_next(&k->log, &at, &o))
        rc = replay_output(j, &o, e);
    k->replaying = false;
    if (rc || j->ended)
        return rc;
    rc = kept_stream_check(j, k->n_event, e);
    return rc ? rc : open_rest(j, e);
}
