/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/library/session.h"
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include "common/mem.h"

#define COMMANDS_MAX ((size_t)1 << 20)
#define ORIGIN       1u /* of all requests in the core */

enum command_kind { COMMAND_SUBMIT, COMMAND_ABORT, COMMAND_STATS, COMMAND_RELOAD };
struct command {
    enum command_kind kind;
    const struct session_submit_args *submit;
    uint64_t req_id;      /* ABORT */
    struct queue *answer; /* STATS: of struct stats_answer; RELOAD: of struct q_err */
    const char *dir;      /* RELOAD; borrowed until answered */
    enum in_flight_mode mode;
};
struct stats_answer {
    struct scheduler_stats stats;
    uint64_t n_restart;
    char fingerprint[CORE_FINGERPRINT_MAX];
};
struct start_item { /* while loading */
    enum core_state state;
    uint32_t percent;
    struct q_err error;
};

struct session {
    struct core_config config;
    struct core *core;
    pthread_t thread;
    struct queue commands, start;
    struct session_request **open; /* [n_open_max] by place; NULL = free */
    uint32_t n_open_max;
    uint64_t n_submit;
    struct queue *reload; /* the caller that waits for the current reload; NULL = none */
    struct q_err failure; /* of the core; code Q_OK while it lives */
    uint32_t percent;
};

/* A req_id is a count and, in its low part, the place in `open`. */
static struct session_request *find_request(const struct session *s, uint64_t req_id)
{
    struct session_request *r = s->open[req_id % s->n_open_max];
    return r && r->req_id == req_id ? r : NULL;
}

/* Push an item; a request whose queue cannot grow is ended by closing the queue. */
static void push_item(struct session *s, struct session_request *r, struct session_item *item)
{
    struct q_err e = Q_ERR_INIT;
    void (*notify)(void *) = r->notify;
    void *ctx = r->notify_ctx;
    bool last = item->kind == SESSION_FINISH;
    uint64_t req_id = r->req_id;
    if (last)
        s->open[req_id % s->n_open_max] = NULL;
    if (queue_push(&r->items, item, &e)) {
        q_free(item->top);
        q_free(item->values);
        if (!last) {
            core_abort(s->core, ORIGIN, req_id);
            s->open[req_id % s->n_open_max] = NULL;
        }
        queue_close(&r->items);
    }
    if (notify)
        notify(ctx);
}

static void push_row(struct session *s, struct session_request *r, const struct step_result *result,
                     const struct step_row *row, struct session_item item)
{
    item.token = row->token;
    item.position = row->position;
    item.rank = row->rank;
    item.logprob = row->logprob;
    item.n_top = row->n_top;
    item.top = row->n_top ? q_calloc(row->n_top, sizeof *item.top) : NULL;
    if (!item.top)
        item.n_top = 0;
    for (uint32_t i = 0; i < item.n_top; i++) {
        item.top[i].token = result->top_ids[row->top_start + i];
        item.top[i].logprob = result->top_logprobs[row->top_start + i];
    }
    push_item(s, r, &item);
}

/* Its large items are read, or it ends before: session_submit waits for that. error NULL:
 * accepted. */
static void answer_submit(struct session *s, struct session_request *r, const struct q_err *error)
{
    struct session_item item = {.kind = error ? SESSION_REFUSED : SESSION_ACCEPTED};
    struct q_err ignored = Q_ERR_INIT;
    const uint64_t req_id = r->req_id;
    r->is_pending = false;
    item.position = core_expansions(s->core)->n_prompt;
    if (error && error->code)
        item.error = *error;
    else if (error)
        q_fail_text(&item.error, Q_CANCELLED, "the request was aborted");
    if (error)
        s->open[req_id % s->n_open_max] = NULL;
    if (!queue_push(&r->items, &item, &ignored))
        return;
    if (!error) {
        core_abort(s->core, ORIGIN, req_id);
        s->open[req_id % s->n_open_max] = NULL;
    }
    queue_close(&r->items);
}

static void finish(struct session *s, struct session_request *r, enum finish_reason why,
                   uint32_t stop_id, const struct q_err *error)
{
    struct session_item item = {.kind = SESSION_FINISH, .finish = why, .stop_id = stop_id};
    const struct q_err none = Q_ERR_INIT;
    if (r->is_pending) {
        answer_submit(s, r, error ? error : &none);
        return;
    }
    if (error)
        item.error = *error;
    push_item(s, r, &item);
}

static void push_vector(struct session *s, struct session_request *r,
                        const struct step_result *result, const struct step_row *row)
{
    struct session_item item = {.kind = SESSION_VECTOR, .n_value = row->n_top};
    item.values = q_alloc(row->n_top * sizeof *item.values + 1);
    if (!item.values)
        item.n_value = 0;
    else
        memcpy(item.values, result->top_logprobs + row->top_start,
               row->n_top * sizeof *item.values);
    push_item(s, r, &item);
}

static void sink(void *ctx, const struct step_result *result,
                 const struct scheduler_output *outputs, uint32_t n)
{
    struct session *s = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const struct scheduler_output *o = &outputs[i];
        struct session_request *r = find_request(s, o->req_id);
        if (r && o->is_accepted)
            answer_submit(s, r, NULL);
        for (uint32_t j = 0; r && j < o->n_prompt_row; j++) {
            push_row(s, r, result, &o->prompt_rows[j],
                     (struct session_item){.kind = SESSION_PROMPT});
            r = find_request(s, o->req_id); /* gone when its queue could not grow */
        }
        if (r && o->has_token) {
            push_row(s, r, result, o->row,
                     (struct session_item){
                         .kind = SESSION_TOKEN,
                         .finish = o->finish,
                         .stop_id = o->stop_id,
                     });
            r = find_request(s, o->req_id);
        }
        if (r && o->has_vector) {
            push_vector(s, r, result, o->row);
            r = find_request(s, o->req_id);
        }
        if (r && o->finish) {
            struct q_err error = Q_ERR_INIT;
            if (o->why)
                error = *o->why;
            else if (o->finish == FINISH_ERROR)
                q_fail(&error, Q_INTERNAL, "the model's logits are NaN or infinite");
            finish(s, r, o->finish, o->stop_id, &error);
        }
    }
}

static FALLIBLE place_of(const struct session *s, uint32_t *place, struct q_err *e)
{
    for (uint32_t i = 0; i < s->n_open_max; i++) {
        *place = (uint32_t)((s->n_submit + 1 + i) % s->n_open_max);
        if (!s->open[*place])
            return Q_OK;
    }
    return q_fail(e, Q_NO_SPACE, "too many open requests: the limit is %u", s->n_open_max);
}

static void on_submit(struct session *s, const struct command *c)
{
    struct session_request *r = c->submit->request;
    struct session_item item = {.kind = SESSION_ACCEPTED};
    struct q_err ignored = Q_ERR_INIT;
    struct msg_submit m = *c->submit->submit;
    uint32_t place = 0;
    enum q_code rc = s->failure.code;
    if (rc)
        item.error = s->failure;
    else
        rc = place_of(s, &place, &item.error);
    if (!rc) {
        m.req_id = ++s->n_submit * s->n_open_max + place;
        struct item_contents contents = {.fd = -1, .is_borrowed = true}; /* the caller waits */
        const struct core_submit_items_args items = {c->submit->items, c->submit->n_item,
                                                     &contents};
        rc = core_submit_contents(s->core, ORIGIN, &m, &items, &item.error);
    }
    if (rc) {
        item.kind = SESSION_REFUSED;
    } else {
        r->req_id = m.req_id;
        s->open[place] = r;
        r->is_pending = core_items_pending(s->core, ORIGIN, m.req_id);
        item.position = core_expansions(s->core)->n_prompt;
        if (r->is_pending)
            return; /* accept, or finish */
    }
    if (queue_push(&r->items, &item,
                   &ignored)) { /* session_submit waits: it sees the closed queue */
        if (!rc) {
            core_abort(s->core, ORIGIN, m.req_id);
            s->open[place] = NULL;
        }
        queue_close(&r->items);
    }
}

/* The waiter's queue has room for one. */
static void answer_reload(struct queue *answer, const struct q_err *result)
{
    struct q_err ignored = Q_ERR_INIT;
    if (queue_push(answer, result, &ignored))
        queue_close(answer);
}

static void on_reload(struct session *s, const struct command *c)
{
    struct q_err e = s->failure;
    if (e.code || core_reload(s->core, c->dir, c->mode, &e))
        answer_reload(c->answer, &e);
    else
        s->reload = c->answer;
}

static void tell_reload(struct session *s)
{
    struct q_err result = s->failure;
    if (!s->reload || (!result.code && !core_take_reload(s->core, &result)))
        return;
    answer_reload(s->reload, &result);
    s->reload = NULL;
}

static void on_command(struct session *s, const struct command *c)
{
    struct q_err e = Q_ERR_INIT;
    if (c->kind == COMMAND_SUBMIT) {
        on_submit(s, c);
    } else if (c->kind == COMMAND_ABORT) {
        struct session_request *r = find_request(s, c->req_id);
        core_abort(s->core, ORIGIN, c->req_id);
        if (r)
            finish(s, r, FINISH_ABORT, 0, NULL);
    } else if (c->kind == COMMAND_RELOAD) {
        on_reload(s, c);
    } else {
        struct stats_answer a = {.n_restart = core_n_restart(s->core)};
        core_stats(s->core, &a.stats);
        snprintf(a.fingerprint, sizeof a.fingerprint, "%s", core_info(s->core)->fingerprint);
        if (queue_push(c->answer, &a, &e))
            queue_close(c->answer);
    }
}

static void fail_all(struct session *s)
{
    core_end_intake(s->core); /* callers that wait may then free what it reads */
    for (uint32_t i = 0; i < s->n_open_max; i++)
        if (s->open[i])
            finish(s, s->open[i], FINISH_ERROR, 0, &s->failure);
}

static void tell_start(struct session *s)
{
    struct q_err ignored = Q_ERR_INIT;
    struct start_item item = {.error = s->failure};
    item.state = core_state(s->core, &item.percent);
    if (item.state == CORE_LOADING && item.percent == s->percent)
        return;
    s->percent = item.percent;
    if (queue_push(&s->start, &item, &ignored) || item.state != CORE_LOADING)
        queue_close(&s->start);
}

static void *thread_main(void *arg)
{
    struct session *s = arg;
    struct command c;
    while (!queue_closed(&s->commands)) {
        struct pollfd p[] = {
            {.fd = queue_fd(&s->commands), .events = POLLIN},
            {.fd = core_fd(s->core), .events = POLLIN},
        };
        poll(p, s->failure.code ? 1 : 2, s->failure.code ? -1 : core_wait_ms(s->core));
        while (queue_pop(&s->commands, &c, 0))
            on_command(s, &c);
        if (!s->failure.code && core_step(s->core, &s->failure))
            fail_all(s);
        tell_reload(s);
        if (!queue_closed(&s->start))
            tell_start(s);
    }
    core_free(
        s->core); /* on the thread that started the worker: its process dies with this thread */
    return NULL;
}

/* core_new too must run on the thread: a worker process dies with the thread that made it. */
static void *thread_start(void *arg)
{
    struct session *s = arg;
    struct start_item item = {.state = CORE_FAILED};
    if (core_new(&s->core, &s->config, sink, s, &item.error) == Q_OK)
        return thread_main(s);
    struct q_err ignored = Q_ERR_INIT;
    if (queue_push(&s->start, &item, &ignored))
        queue_close(&s->start);
    return NULL;
}

static FALLIBLE wait_start(struct session *s, void (*progress)(void *, uint32_t), void *ctx,
                           struct q_err *e)
{
    struct start_item item = {.state = CORE_LOADING};
    while (item.state == CORE_LOADING && queue_pop(&s->start, &item, -1))
        if (item.state == CORE_LOADING && progress)
            progress(ctx, item.percent);
    if (item.state == CORE_READY) {
        if (progress)
            progress(ctx, 100);
        return Q_OK;
    }
    if (!item.error.code)
        q_fail(&item.error, Q_INTERNAL, "the engine failed to start");
    *e = item.error;
    return e->code;
}

FALLIBLE session_open(struct session **out, const struct core_config *c,
                      void (*progress)(void *ctx, uint32_t percent), void *progress_ctx,
                      struct q_err *e)
{
    struct session *s = q_calloc(1, sizeof *s);
    enum q_code rc;
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory");
    s->config = *c;
    s->n_open_max = c->queue_max + c->worker.max_num_seqs;
    s->open = q_calloc(s->n_open_max, sizeof(struct session_request *));
    if (!s->open)
        rc = q_fail(e, Q_NO_MEMORY, "engine: out of memory for %u requests", s->n_open_max);
    else if (!(rc = queue_init(&s->commands, sizeof(struct command), COMMANDS_MAX, true, e)))
        rc = queue_init(&s->start, sizeof(struct start_item), COMMANDS_MAX, false, e);
    if (rc)
        goto out;
    int failed = pthread_create(&s->thread, NULL, thread_start, s);
    if (failed) {
        rc = q_fail(e, Q_IO, "engine: cannot start a thread: %s", strerror(failed));
        goto out;
    }
    pthread_setname_np(s->thread, "quire-engine");
    if ((rc = wait_start(s, progress, progress_ctx, e))) {
        session_close(s);
        return rc;
    }
    *out = s;
    return Q_OK;
out:
    queue_release(&s->commands);
    queue_release(&s->start);
    q_free(s->open);
    q_free(s);
    return rc;
}

void session_close(struct session *s)
{
    if (!s)
        return;
    queue_close(&s->commands);
    pthread_join(s->thread, NULL);
    queue_release(&s->commands);
    queue_release(&s->start);
    q_free(s->open);
    q_free(s);
}

FALLIBLE session_submit(struct session *s, struct session_submit_args *a, struct q_err *e)
{
    const struct command c = {.kind = COMMAND_SUBMIT, .submit = a};
    struct session_item item;
    enum q_code rc = queue_push(&s->commands, &c, e);
    if (rc)
        return rc;
    if (!queue_pop(&a->request->items, &item, -1))
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for a request");
    a->n_prompt = item.position;
    if (item.kind == SESSION_ACCEPTED)
        return Q_OK;
    *e = item.error;
    return e->code;
}

void session_abort(struct session *s, const struct session_request *r)
{
    const struct command c = {.kind = COMMAND_ABORT, .req_id = r->req_id};
    struct q_err ignored = Q_ERR_INIT;
    if (queue_push(&s->commands, &c, &ignored)) {
        /* no memory for a command: the request runs to its own end */
    }
}

static struct stats_answer ask_stats(struct session *s)
{
    struct queue answer = QUEUE_INIT;
    struct q_err e = Q_ERR_INIT;
    struct stats_answer a = {0};
    const struct command c = {.kind = COMMAND_STATS, .answer = &answer};
    if (!queue_init(&answer, sizeof a, 1, false, &e) && !queue_push(&s->commands, &c, &e))
        queue_pop(&answer, &a, -1);
    queue_release(&answer);
    return a;
}

void session_stats(struct session *s, struct scheduler_stats *out, uint64_t *n_restart)
{
    struct stats_answer a = ask_stats(s);
    *out = a.stats;
    *n_restart = a.n_restart;
}

void session_fingerprint(struct session *s, char out[CORE_FINGERPRINT_MAX])
{
    struct stats_answer a = ask_stats(s);
    memcpy(out, a.fingerprint, CORE_FINGERPRINT_MAX);
}

FALLIBLE session_reload(struct session *s, const char *dir, enum in_flight_mode mode,
                        struct q_err *e)
{
    struct queue answer = QUEUE_INIT;
    struct q_err result = Q_ERR_INIT;
    const struct command c = {.kind = COMMAND_RELOAD, .answer = &answer, .dir = dir, .mode = mode};
    enum q_code rc;
    if (!(rc = queue_init(&answer, sizeof result, 1, false, e)) &&
        !(rc = queue_push(&s->commands, &c, e))) {
        if (!queue_pop(&answer, &result, -1))
            q_fail(&result, Q_NO_MEMORY, "engine: out of memory for an answer");
        if ((rc = result.code))
            *e = result;
    }
    queue_release(&answer);
    return rc;
}

const struct item_types *session_item_types(const struct session *s)
{
    return core_item_types(s->core);
}

const struct core_info *session_info(const struct session *s)
{
    return core_info(s->core);
}

const struct pooling *session_pooling(const struct session *s)
{
    return core_pooling(s->core);
}

uint32_t session_max_model_len(const struct session *s)
{
    return core_max_model_len(s->core);
}

const struct generation_defaults *session_generation_defaults(const struct session *s)
{
    return core_generation_defaults(s->core);
}
