/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/steps.h"
#include "common/tokenizer/tokenizer_internal.h"

#define SPANS_MAX ((size_t)1 << 30)

enum q_code tok_span_add(struct tok_work *w, size_t start, size_t end, struct q_err *e)
{
    if (start >= end && !w->keep_empty)
        return Q_OK;
    TOK_STEPS(1);
    if (w->n_next == w->next_cap) {
        enum q_code rc =
            q_grow(&w->next, &w->next_cap, w->n_next + 1, sizeof *w->next, SPANS_MAX, e);
        if (rc)
            return rc;
    }
    w->next[w->n_next++] = (struct tok_span){(uint32_t)start, (uint32_t)end};
    return Q_OK;
}

void tok_spans_done(struct tok_work *w)
{
    struct tok_span *spans = w->spans;
    size_t cap = w->span_cap;
    w->spans = w->next;
    w->n_span = w->n_next;
    w->span_cap = w->next_cap;
    w->next = spans;
    w->next_cap = cap;
    w->n_next = 0;
}

struct buf *tok_rewrite(struct tok_work *w)
{
    buf_reset(&w->bufs[w->i_free]);
    return &w->bufs[w->i_free];
}

enum q_code tok_rewrite_done(struct tok_work *w, struct q_err *e)
{
    struct buf *b = &w->bufs[w->i_free];
    enum q_code rc = buf_check(b, "normalized text", e);
    if (rc)
        return rc;
    TOK_STEPS(b->len);
    w->text = buf_str(b);
    w->n = b->len;
    w->i_free = 1 - w->i_free;
    w->in_buf = true;
    return Q_OK;
}

void tok_work_release(struct tok_work *w)
{
    q_free(w->spans);
    q_free(w->next);
    buf_release(&w->bufs[0]);
    buf_release(&w->bufs[1]);
    tok_regex_run_release(&w->regex);
    memset(w, 0, sizeof *w);
}
