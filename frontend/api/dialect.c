/* SPDX-License-Identifier: Apache-2.0 */
/* The items of an answer, and the names in errors. */
#include "frontend/api/dialect.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/api/job_internal.h"

#define ANSWER_ITEMS_MAX 65536 /* text between calls makes items */

void dialect_release(struct dialect_answer *a)
{
    for (size_t i = 0; i < a->n; i++) {
        buf_release(&a->items[i].text);
        buf_release(&a->items[i].logprobs);
    }
    q_free(a->items);
    *a = (struct dialect_answer){.n = 0};
}

/* The last item if it is open, else NULL. */
static struct dialect_item *open_item(struct dialect_answer *a)
{
    if (!a->n)
        return NULL;
    Q_ASSERT(a->items);
    return a->items[a->n - 1].closed ? NULL : &a->items[a->n - 1];
}

/* whole: text ends here because the model ended it; of a call the parser knows. */
static void close_item(struct job *j, bool whole, struct buf *out)
{
    struct dialect_item *item = open_item(&j->made);
    if (!item)
        return;
    item->closed = true;
    item->whole =
        item->kind == DIALECT_CALL ? j->choices[0].answer.calls[item->i_call].whole : whole;
    if (out)
        j->dialect->item_end(j, j->made.n - 1, out);
}

/* NULL: no memory, which is noted. */
static struct dialect_item *begin_item(struct job *j, enum dialect_kind kind, size_t i_call,
                                       struct buf *out)
{
    struct dialect_answer *a = &j->made;
    struct q_err e = Q_ERR_INIT;
    close_item(j, true, out);
    if (q_grow(&a->items, &a->cap, a->n + 1, sizeof *a->items, ANSWER_ITEMS_MAX, &e)) {
        a->failed = e.code;
        return NULL;
    }
    a->items[a->n++] = (struct dialect_item){.kind = kind, .i_call = i_call};
    if (out)
        j->dialect->item_begin(j, a->n - 1, out);
    return &a->items[a->n - 1];
}

/* Move the piece to the open item. */
static void take_piece(struct job *j, struct buf *piece, struct buf *logprobs, struct buf *out)
{
    struct dialect_item *item = open_item(&j->made);
    const bool has_logprobs = logprobs && logprobs->len;
    buf_add(&item->text, buf_str(piece), piece->len);
    buf_take_failure(&item->text, piece);
    if (has_logprobs) {
        if (item->logprobs.len)
            buf_add_char(&item->logprobs, ',');
        buf_add(&item->logprobs, buf_str(logprobs), logprobs->len);
        buf_take_failure(&item->logprobs, logprobs);
    }
    if (item->text.failed || item->logprobs.failed)
        j->made.failed = item->text.failed ? item->text.failed : item->logprobs.failed;
    if (out && (piece->len || has_logprobs))
        j->dialect->item_piece(j, j->made.n - 1, piece, logprobs, out);
    buf_reset(piece);
    if (logprobs)
        buf_reset(logprobs);
}

static void take_text(struct job *j, enum dialect_kind kind, struct buf *piece,
                      struct buf *logprobs, struct buf *out)
{
    const struct dialect_item *item = open_item(&j->made);
    if (!piece->len || ((!item || item->kind != kind) && !begin_item(j, kind, 0, out)))
        return;
    take_piece(j, piece, logprobs, out);
}

/* Calls that were taken are shown: the answer keeps those that turn out to be none. n: of the first
 * n calls. */
static void take_calls(struct job *j, struct answer *a, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        struct answer_call *call = &a->calls[i];
        const struct dialect_item *item = open_item(&j->made);
        const bool is_open = item && item->kind == DIALECT_CALL && item->i_call == i;
        if (call->shown && !is_open)
            continue;
        if (!is_open && !begin_item(j, DIALECT_CALL, i, out))
            return;
        call->shown = true;
        take_piece(j, &call->args, NULL, out);
        if (call->whole || i + 1 < a->n_call)
            close_item(j, true, out);
    }
}

/* The tokens behind the last text have logprobs too. */
static void end_items(struct job *j, struct choice *c, struct buf *out)
{
    const struct dialect_item *item = open_item(&j->made);
    if (!j->made.n && j->dialect->needs_text)
        item = begin_item(j, DIALECT_TEXT, 0, out);
    const bool in_text = item && item->kind == DIALECT_TEXT;
    dialect_tokens_end(c, in_text);
    if (in_text)
        take_piece(j, &c->answer.content, &c->text_items, out);
    close_item(j, strcmp(c->finish, "length") != 0 && strcmp(c->finish, "abort") != 0, out);
}

static void begin(struct job *j, struct buf *out)
{
    if (!j->made.begun)
        j->dialect->begin(j, out);
    j->made.begun = true;
}

void dialect_take(struct job *j, struct choice *c, struct buf *out)
{
    if (out)
        begin(j, out);
    c->begun = true;
    /* what is left of a call that is open comes before text behind it */
    const struct dialect_item *item = open_item(&j->made);
    if (item && item->kind == DIALECT_CALL)
        take_calls(j, &c->answer, item->i_call + 1, out);
    take_text(j, DIALECT_REASONING, &c->answer.reasoning, NULL, out);
    take_text(j, DIALECT_TEXT, &c->answer.content, &c->text_items, out);
    take_calls(j, &c->answer, c->answer.n_call, out);
    buf_reset(&c->ids);
    c->n_told = c->n_token;
    if (c->finished)
        end_items(j, c, out);
    if (out && j->made.failed)
        out->failed = j->made.failed;
}

void dialect_fail(struct job *j, const struct http_error *error, struct buf *out)
{
    const bool complete = !out->failed; /* else the client may not know the open item */
    buf_reset(out);
    if (complete) {
        begin(j, out);
        close_item(j, false, out);
    }
    j->dialect->fail(j, error, out);
}

static const char *field_of(const struct dialect *d, const char *name)
{
    for (size_t i = 0; d->names[i][0]; i++)
        if (!strcmp(d->names[i][0], name))
            return d->names[i][1];
    return name;
}

/* "messages: entry 3: …" is about another entry of the dialect's list, or about its system prompt.
 */
static bool take_entry(struct dialect_error *out, const struct dialect *d, const json_t *entries)
{
    static const char prefix[] = "messages: entry ";
    char *end;
    if (strncmp(out->message, prefix, sizeof prefix - 1) != 0)
        return false;
    const json_t *entry =
        json_array_get(entries, strtoul(out->message + sizeof prefix - 1, &end, 10));
    if (!entry)
        return false;
    const long long i = json_integer_value(entry);
    if (i < 0) {
        snprintf(out->room, sizeof out->room, "%s%s", d->system, end);
        out->param = d->system;
    } else {
        snprintf(out->room, sizeof out->room, "%s: entry %lld%s", field_of(d, "messages"), i, end);
    }
    out->message = out->room;
    return true;
}

void dialect_error_of(struct dialect_error *out, const struct dialect *d, const json_t *entries,
                      const char *message, const char *param)
{
    const size_t n = strcspn(message, ":");
    char name[64];
    out->message = message;
    out->param = param && *param ? param : NULL;
    if (!d)
        return;
    if (out->param)
        out->param = field_of(d, param);
    if (take_entry(out, d, entries) || !message[n] || n >= sizeof name)
        return;
    memcpy(name, message, n);
    name[n] = 0;
    const char *other = field_of(d, name);
    if (other == name)
        return;
    snprintf(out->room, sizeof out->room, "%s%s", other, message + n);
    out->message = out->room;
}
