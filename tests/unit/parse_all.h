/* SPDX-License-Identifier: Apache-2.0 */
/* parse_all - parse a text cut at any positions and collect the events. */
#ifndef QUIRE_TESTS_UNIT_PARSE_ALL_H
#define QUIRE_TESTS_UNIT_PARSE_ALL_H
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/parsers/json_scan.h"
#include "common/parsers/parser.h"

struct parsed {                            /* all events, joined */
    struct buf content, reasoning, broken; /* broken: text of broken calls */
    struct buf shown;                      /* both content and broken, in order */
    struct buf name[PARSER_CALLS_MAX], args[PARSER_CALLS_MAX];
    uint32_t n_call, n_end;
    size_t n_event;
    bool failing; /* the sink fails */
};

static enum q_code parsed_sink_all(void *ctx, const struct parsed_event *event, struct q_err *e)
{
    struct parsed *r = ctx;
    r->n_event++;
    if (r->failing)
        return q_fail(e, Q_CANCELLED, "the client is gone");
    switch (event->kind) {
    case PARSED_CONTENT:
    case PARSED_REASONING: {
        struct buf *b = event->kind == PARSED_CONTENT ? &r->content : &r->reasoning;
        assert_true(event->n > 0);
        buf_add(b, event->text, event->n);
        if (b == &r->content)
            buf_add(&r->shown, event->text, event->n);
        return buf_check(b, "content", e);
    }
    case PARSED_CALL_BEGIN:
        assert_int_equal(event->call, r->n_call);
        assert_true(event->n > 0);
        buf_add(&r->name[r->n_call], event->text, event->n);
        return buf_check(&r->name[r->n_call++], "name", e);
    case PARSED_CALL_ARGS:
        assert_int_equal(event->call, r->n_call - 1);
        buf_add(&r->args[event->call], event->text, event->n);
        return buf_check(&r->args[event->call], "args", e);
    case PARSED_CALL_END:
        assert_int_equal(event->call, r->n_call - 1);
        if (!json_scan_valid(buf_str(&r->args[event->call]), r->args[event->call].len))
            fail_msg("no JSON: %s", buf_str(&r->args[event->call]));
        r->n_end++;
        return Q_OK;
    case PARSED_CALL_BROKEN:
        assert_int_equal(event->call, r->n_call - 1);
        buf_add(&r->broken, event->text, event->n);
        buf_add(&r->shown, event->text, event->n);
        return buf_check(&r->broken, "broken", e);
    }
    return Q_INTERNAL;
}

static void parsed_release(struct parsed *r)
{
    buf_release(&r->content);
    buf_release(&r->reasoning);
    buf_release(&r->broken);
    buf_release(&r->shown);
    for (size_t i = 0; i < r->n_call; i++) { /* others hold nothing; there is room for many */
        buf_release(&r->name[i]);
        buf_release(&r->args[i]);
    }
    memset(r, 0, sizeof *r);
}

/* Parse s[0..n) cut at the n_cut positions. */
static enum q_code parse_cut(const struct parser_config *c, const char *s, size_t n,
                             const size_t *cut, size_t n_cut, struct parsed *r, struct q_err *e)
{
    struct parser *p = NULL;
    size_t at = 0;
    enum q_code rc = parser_new(&p, c, e);
    for (size_t i = 0; i <= n_cut && !rc; i++) {
        size_t to = i < n_cut ? cut[i] : n;
        char *piece = malloc(to - at + 1); /* a separate allocation, so that asan detects reads
                                            * past its end */
        memcpy(piece, s + at, to - at);
        rc = parser_feed(p, piece, to - at, parsed_sink_all, r, e);
        free(piece);
        at = to;
    }
    if (!rc)
        rc = parser_finish(p, parsed_sink_all, r, e);
    if (p && !rc)
        assert_int_equal(parser_n_calls(p), r->n_call);
    parser_free(p);
    return rc;
}

#endif
