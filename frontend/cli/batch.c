/* SPDX-License-Identifier: Apache-2.0 */
/* The path of a line: read → look up custom_id (done before? a duplicate?) → exchange without a
 * connection → handler of its url → reply → a line of results, or the retry list.
 *
 * A reply may come from inside the handler, and the exchange must not be freed there; so a reply
 * only moves the item to `over` and wakes `turn`, which frees items and starts new ones. */
#include "frontend/cli/batch.h"

#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "frontend/cli/batch_line.h"
#include "frontend/http/local.h"

#define OPEN_BYTES_MAX ((size_t)64 << 20) /* bytes of bodies; one more line may be open */
#define TICK_MS        50
#define TRIES_MAX      5 /* attempts of a single open line that is rejected for lack of room */

struct batch_item {
    struct batch *batch;
    struct batch_item *next, *prev;
    uint64_t n_line;
    size_t n_bytes; /* of the input */
    struct batch_line line;
    struct http_exchange *x;
    uint32_t n_try;
    int64_t try_at_ms;
};

static void push(struct batch_item **list, struct batch_item *t)
{
    t->prev = NULL;
    t->next = *list;
    if (*list)
        (*list)->prev = t;
    *list = t;
}

static void take_item(struct batch_item **list, struct batch_item *t)
{
    if (t->prev)
        t->prev->next = t->next;
    else
        *list = t->next;
    if (t->next)
        t->next->prev = t->prev;
}

static void item_free(struct batch_item *t)
{
    http_local_free(t->x);
    batch_line_release(&t->line);
    q_free(t);
}

static void end(struct batch *b)
{
    if (b->ended)
        return;
    b->ended = true;
    b->on_end(b->ctx);
}

static void fail(struct batch *b, const struct q_err *e)
{
    if (!b->error.code)
        b->error = *e;
    end(b);
}

static void write_line(struct batch *b, const struct buf *line, size_t n_bytes)
{
    struct q_err e = Q_ERR_INIT;
    if (b->ended)
        return;
    b->count.bytes += n_bytes;
    if (batch_out_write(&b->out, line, &e))
        fail(b, &e);
}

/* The number after the last `key` of a response; quotes inside strings are escaped, so they do not
 * match. */
static uint64_t number_after(const struct buf *body, const char *key)
{
    size_t n = strlen(key);
    const char *found = NULL, *at = buf_str(body), *stop = at + body->len;
    while ((at = memmem(at, (size_t)(stop - at), key, n)))
        found = at += n;
    return found ? strtoull(found, NULL, 10) : 0;
}

static void write_answer(struct batch_item *t, int status, const struct buf *body)
{
    struct batch *b = t->batch;
    struct buf line = BUF_INIT;
    const struct batch_answer a = {status, http_request_id(t->x), body};
    if (status == 200) {
        b->count.n_answered++;
        const bool other = t->line.url == BATCH_RESPONSES; /* names of its own */
        b->count.prompt_tokens +=
            number_after(body, other ? "\"input_tokens\":" : "\"prompt_tokens\":");
        b->count.completion_tokens +=
            number_after(body, other ? "\"output_tokens\":" : "\"completion_tokens\":");
    } else {
        b->count.n_refused++;
    }
    batch_answer_line(&line, t->line.custom_id, &a);
    write_line(b, &line, t->n_bytes);
    buf_release(&line);
}

static void write_error(struct batch *b, const char *custom_id, const struct batch_error *error,
                        size_t n_bytes)
{
    struct buf line = BUF_INIT;
    b->count.n_bad++;
    batch_error_line(&line, custom_id, error);
    write_line(b, &line, n_bytes);
    buf_release(&line);
}

/* Rejected for lack of room, or the engine is not connected: retry later. A single open line is not
 * retried without limit. */
static bool try_later(struct batch_item *t, int status, uint32_t retry_after_s)
{
    struct batch *b = t->batch;
    if (status == 503)
        t->n_try = 0;
    if ((status != 429 && status != 503) || (b->n_open == 1 && ++t->n_try >= TRIES_MAX))
        return false;
    b->count.n_retry++;
    t->try_at_ms = clock_ms() + (int64_t)(retry_after_s ? retry_after_s : 1) * 1000;
    return true;
}

static void on_reply(void *ctx, int status, struct buf *body, uint32_t retry_after_s)
{
    struct batch_item *t = ctx;
    struct batch *b = t->batch;
    take_item(&b->open, t);
    if (try_later(t, status, retry_after_s)) {
        push(&b->wait, t);
        return;
    }
    write_answer(t, status, body);
    b->n_open--;
    b->open_bytes -= t->n_bytes;
    push(&b->over, t);
    uv_async_send(&b->turn);
}

/* Call the handler; the response may come before this returns. */
static void start(struct batch_item *t)
{
    static const struct {
        const char *path;
        http_handler *handle;
    } handlers[] = {
        [BATCH_CHAT] = {"/v1/chat/completions", on_chat},
        [BATCH_COMPLETIONS] = {"/v1/completions", on_completions},
        [BATCH_RESPONSES] = {"/v1/responses", on_responses},
        [BATCH_EMBEDDINGS] = {"/v1/embeddings", on_embeddings},
        [BATCH_POOLING] = {"/pooling", on_pooling},
        [BATCH_CLASSIFY] = {"/classify", on_classify},
        [BATCH_SCORE] = {"/v1/score", on_score},
        [BATCH_RERANK] = {"/v1/rerank", on_rerank},
    };
    struct batch *b = t->batch;
    const char *path = handlers[t->line.url].path;
    const struct http_local l = {
        .path = {path, strlen(path)},
        .body = {buf_str(&t->line.body), t->line.body.len},
        .reply = on_reply,
        .ctx = t,
    };
    http_local_free(t->x);
    t->x = http_local_new(&l);
    push(&b->open, t);
    if (t->x) {
        handlers[t->line.url].handle(b->app, t->x);
        return;
    }
    struct q_err e = Q_ERR_INIT;
    q_fail(&e, Q_NO_MEMORY, "out of memory for a request");
    fail(b, &e);
}

static const char *error_code(enum q_code code)
{
    return code == Q_UNSUPPORTED ? "not_supported"
           : code == Q_TOO_LARGE ? "line_too_large"
                                 : "invalid_line";
}

/* Must the line be processed? Not if an earlier run did, or if its custom_id occurred before. */
static FALLIBLE look_up(struct batch *b, struct batch_item *t, bool *wanted, struct q_err *e)
{
    struct batch_entry *entry = NULL;
    enum q_code rc = batch_ids_find(&b->ids, t->line.custom_id, t->n_line, &entry, e);
    *wanted = false;
    if (rc)
        return rc;
    bool first = entry->n_seen++ == 0;
    if (first ? entry->answered : entry->n_seen - 1 <= entry->n_told) {
        b->count.n_before++;
        b->count.bytes += t->n_bytes;
    } else if (first) {
        *wanted = true;
    } else {
        struct q_err text = Q_ERR_INIT;
        q_fail(&text, Q_INVALID, "duplicate custom_id \"%.100s\": only its first line is processed",
               t->line.custom_id);
        write_error(b, t->line.custom_id,
                    &(struct batch_error){BATCH_DUPLICATE, text.message, t->n_line}, t->n_bytes);
    }
    return Q_OK;
}

static FALLIBLE take_line(struct batch *b, struct batch_item *t, const char *text, size_t n,
                          struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    bool wanted, raw = b->app->options->raw;
    const struct chat_model *chat = &b->app->served.chat;
    const struct batch_form form = {
        .n_line = t->n_line,
        .raw = raw,
        .chats = !raw && chat->template,
        .broken = !raw && chat->broken ? chat->error : NULL,
    };
    enum q_code rc,
        bad = text ? batch_line_read(&t->line, &form, text, n, &why)
                   : q_fail(&why, Q_TOO_LARGE, "the line exceeds %zu bytes", b->in.line_max);
    if (bad == Q_NO_MEMORY || bad == Q_CORRUPT) {
        *e = why;
        return bad;
    }
    if ((rc = look_up(b, t, &wanted, e)) || !wanted) {
        item_free(t);
        return rc;
    }
    if (bad) {
        write_error(b, t->line.custom_id,
                    &(struct batch_error){error_code(bad), why.message, t->n_line}, t->n_bytes);
        item_free(t);
        return Q_OK;
    }
    b->n_open++;
    b->open_bytes += t->n_bytes;
    start(t);
    return Q_OK;
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t')
            return false;
    return true;
}

/* Fill the window. */
static void pump(struct batch *b)
{
    const char *text = "";
    size_t n = 0;
    enum batch_next next = BATCH_LINE;
    struct q_err e = Q_ERR_INIT;
    if (b->app->reading) /* the chat template too determines the meaning of lines */
        return;
    while (!b->ended && b->n_open < b->open_max && b->open_bytes <= OPEN_BYTES_MAX &&
           ((next = batch_in_next(&b->in, &text, &n)) == BATCH_LINE || next == BATCH_TOO_LONG)) {
        if (next == BATCH_LINE && is_blank(text, n)) {
            b->count.bytes += n + 1;
            continue;
        }
        struct batch_item *t = q_calloc(1, sizeof *t);
        b->count.n_line++;
        if (!t && q_fail(&e, Q_NO_MEMORY, "out of memory for a line"))
            break;
        *t = (struct batch_item){.batch = b, .n_line = b->in.n_line, .n_bytes = n + 1};
        if (take_line(b, t, next == BATCH_LINE ? text : NULL, n, &e))
            break;
    }
    if (next == BATCH_FAILED)
        e = b->in.error;
    if (e.code)
        fail(b, &e);
    else if (next == BATCH_END && b->n_open == 0)
        end(b);
}

static void free_over(struct batch *b)
{
    while (b->over) {
        struct batch_item *t = b->over;
        take_item(&b->over, t);
        item_free(t);
    }
}

static void on_turn(uv_async_t *handle)
{
    struct batch *b = handle->data;
    free_over(b);
    pump(b);
}

static void on_more(void *ctx)
{
    pump(ctx);
}

static void on_tick(uv_timer_t *timer)
{
    struct batch *b = timer->data;
    struct batch_item *next;
    int64_t now = clock_ms();
    if (!b->began && !b->app->reading) {
        b->began = true;
        pump(b);
    }
    for (struct batch_item *t = b->wait; t && !b->ended; t = next) {
        next = t->next;
        if (t->try_at_ms > now)
            continue;
        take_item(&b->wait, t);
        start(t);
    }
    b->on_tick(b->ctx);
}

FALLIBLE batch_begin(struct batch *b, const char *input, const char *output, struct q_err *e)
{
    enum q_code rc;
    uv_loop_t *loop = &b->app->loop;
    b->in = (struct batch_in)BATCH_IN_INIT;
    b->out = (struct batch_out)BATCH_OUT_INIT;
    b->in.loop = loop;
    b->in.line_max = b->app->options->max_body_bytes;
    b->in.more = on_more;
    b->in.ctx = b;
    if ((rc = batch_in_open(&b->in, input, e)) ||
        (rc = batch_out_open(&b->out, output, &b->ids, e)))
        return rc;
    b->turn.data = b->tick.data = b;
    uv_async_init(loop, &b->turn, on_turn);
    uv_timer_init(loop, &b->tick);
    uv_timer_start(&b->tick, on_tick, TICK_MS, TICK_MS);
    uv_async_send(&b->turn);
    return Q_OK;
}

void batch_stop(struct batch *b)
{
    b->ended = true;
    free_over(b);
    for (struct batch_item **list = &b->open;; list = &b->wait) {
        while (*list) {
            struct batch_item *t = *list;
            take_item(list, t);
            item_free(t);
        }
        if (list == &b->wait)
            break;
    }
    b->n_open = 0;
}
