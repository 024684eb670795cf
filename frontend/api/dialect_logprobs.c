/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens are a text's own: only text has logprobs in the API, and reasoning, calls and their
 * tags have tokens too.
 *
 * The parser holds text back and drops tags, so that content appears some tokens after its first
 * one. Tokens wait until content appears: the waiting tokens that spell it are its own (the latest
 * that do), those before them are of a tag, and those after them wait on. When reasoning or a call
 * gets on, all that wait are its. A call that no delta has shown may still become content: its
 * tokens wait for its end. */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/job_internal.h"

#define WAITING_TOKENS_MAX 16777216 /* as max_tokens */

struct dialect_mark dialect_mark(const struct choice *c)
{
    const struct answer *a = &c->answer;
    const struct answer_call *last = a->n_call ? &a->calls[a->n_call - 1] : NULL;
    const bool is_settled = last && (last->whole || last->shown);
    return (struct dialect_mark){
        .n_content = a->content.len,
        .n_reasoning = a->reasoning.len,
        .n_call = a->n_call - (last && !is_settled),
        .n_args = last && is_settled ? last->args.len : 0,
        .thinks = c->parser && parser_thinking(c->parser) != THINKING_NOT,
    };
}

/* Drop the first n bytes. */
static void drop_bytes(struct buf *b, size_t n)
{
    if (!n)
        return;
    Q_ASSERT(b->data && n <= b->len);
    memmove(b->data, b->data + n, b->len - n + 1); /* with the NUL */
    b->len -= n;
}

static void drop_tokens(struct choice *c, size_t n)
{
    struct dialect_tokens *w = &c->waiting;
    if (!n)
        return;
    const struct dialect_token last = w->tokens[n - 1];
    const size_t n_comma = n < w->n;
    drop_bytes(&w->text, last.text_end);
    drop_bytes(&c->items, last.items_end + n_comma);
    w->n -= n;
    memmove(w->tokens, w->tokens + n, w->n * sizeof *w->tokens);
    for (size_t i = 0; i < w->n; i++) {
        w->tokens[i].text_end -= last.text_end;
        w->tokens[i].items_end -= last.items_end + n_comma;
    }
}

/* The first n waiting tokens, from i on, are the text's. */
static void settle(struct choice *c, size_t i, size_t n)
{
    drop_tokens(c, i);
    if (n == i)
        return;
    if (c->text_items.len)
        buf_add_char(&c->text_items, ',');
    buf_add(&c->text_items, buf_str(&c->items), c->waiting.tokens[n - i - 1].items_end);
    drop_tokens(c, n - i);
}

/* The waiting tokens that spell the content; all of them where it is not their text. */
static void settle_content(struct choice *c, const char *content, size_t n)
{
    const struct dialect_tokens *w = &c->waiting;
    size_t at = w->text.len >= n ? w->text.len - n : 0, from = 0, to = w->n;
    while (at && memcmp(w->text.data + at, content, n) != 0)
        at--;
    if (w->text.len >= n && !memcmp(w->text.data + at, content, n)) {
        while (from < w->n && w->tokens[from].text_end <= at)
            from++;
        for (to = from; to < w->n && w->tokens[to].text_end < at + n;)
            to++;
        to += to < w->n;
        /* the first bytes of a character have no text of their own */
        while (from && w->tokens[from - 1].text_end == at &&
               (from == 1 ? at == 0 : w->tokens[from - 2].text_end == at))
            from--;
    }
    settle(c, from, to);
}

void dialect_settle(struct choice *c, const struct dialect_mark *before)
{
    const struct dialect_mark now = dialect_mark(c);
    if (now.n_content > before->n_content)
        settle_content(c, buf_str(&c->answer.content) + before->n_content,
                       now.n_content - before->n_content);
    else if (now.n_reasoning > before->n_reasoning || now.n_call > before->n_call ||
             now.n_args > before->n_args || (before->thinks && !now.thinks))
        drop_tokens(c, c->waiting.n);
}

void dialect_token(struct choice *c, const struct dialect_mark *before, const struct buf *piece)
{
    struct dialect_tokens *w = &c->waiting;
    struct q_err e = Q_ERR_INIT;
    buf_add(&w->text, buf_str(piece), piece->len);
    buf_take_failure(&c->items, &w->text);
    if (!c->items.failed &&
        q_grow(&w->tokens, &w->cap, w->n + 1, sizeof *w->tokens, WAITING_TOKENS_MAX, &e))
        c->items.failed = e.code;
    if (c->items.failed)
        return; /* the answer fails */
    w->tokens[w->n++] = (struct dialect_token){w->text.len, c->items.len};
    dialect_settle(c, before);
}

void dialect_tokens_end(struct choice *c, bool in_text)
{
    struct dialect_tokens *w = &c->waiting;
    settle(c, in_text ? 0 : w->n, w->n);
}

void dialect_tokens_release(struct dialect_tokens *w)
{
    buf_release(&w->text);
    q_free(w->tokens);
    *w = (struct dialect_tokens){.n = 0};
}
