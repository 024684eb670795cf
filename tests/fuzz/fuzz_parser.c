/* SPDX-License-Identifier: Apache-2.0 */
/* Arbitrary model output through every parser: whole and cut give the same events, begun calls have
 * names, ended ones valid JSON, and text without calls comes out as it went in, but for tags that
 * say nothing and blocks with nothing in them. The first byte chooses the tool format (and with its
 * high bit a reasoning format), the second seeds the cuts, says whether tools are known and where
 * the text begins. */
#include <stdbool.h>
#include <string.h>
#include "common/buf.h"
#include "common/parsers/parser_internal.h"
#include "common/parsers/json_scan.h"
#include "common/parsers/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct record {
    struct buf log;     /* events, joined where they continue each other */
    struct buf content; /* that of broken calls among it */
    struct buf args;    /* of the current call */
    enum parsed_kind last;
    uint32_t n_end;
};

static enum q_code sink(void *ctx, const struct parsed_event *event, struct q_err *e)
{
    struct record *r = ctx;
    (void)e;
    if (event->kind != r->last || event->kind == PARSED_CALL_BEGIN)
        buf_printf(&r->log, "\n%d:%u:", event->kind, event->call);
    r->last = event->kind;
    buf_add(&r->log, event->text, event->n);
    if (event->kind == PARSED_CONTENT || event->kind == PARSED_CALL_BROKEN)
        buf_add(&r->content, event->text, event->n);
    if (event->kind == PARSED_CALL_BEGIN) {
        Q_ASSERT(event->n > 0);
        buf_reset(&r->args);
    }
    if (event->kind == PARSED_CALL_ARGS)
        buf_add(&r->args, event->text, event->n);
    if (event->kind == PARSED_CALL_END)
        Q_ASSERT(json_scan_valid(buf_str(&r->args), r->args.len));
    r->n_end += event->kind == PARSED_CALL_END;
    return Q_OK;
}

static uint32_t parse(const struct parser_config *c, const char *text, size_t n, uint32_t seed,
                      struct record *r)
{
    struct parser *p = NULL;
    struct q_err e = Q_ERR_INIT;
    *r = (struct record){BUF_INIT, BUF_INIT, BUF_INIT, PARSED_CALL_END, 0};
    Q_ASSERT(parser_new(&p, c, &e) == Q_OK);
    for (size_t at = 0; at < n;) {
        size_t step = seed ? 1 + (seed >> 24) % 7 : n; /* seed 0: in one piece */
        seed = seed ? (seed * 1664525u + 1013904223u) | 1 : 0;
        if (step > n - at)
            step = n - at;
        Q_ASSERT(parser_feed(p, text + at, step, sink, r, &e) == Q_OK);
        at += step;
    }
    Q_ASSERT(parser_finish(p, sink, r, &e) == Q_OK);
    uint32_t n_call = parser_n_calls(p);
    parser_free(p);
    return n_call;
}

static void record_release(struct record *r)
{
    buf_release(&r->log);
    buf_release(&r->content);
    buf_release(&r->args);
}

static bool same(const struct buf *a, const char *text, size_t n)
{
    return a->len == n && memcmp(buf_str(a), text, n) == 0;
}

static bool holds(const char *text, size_t n, const char *const *tags)
{
    for (size_t i = 0; i < FORMAT_TAGS && tags[i]; i++) {
        size_t n_tag = strcspn(tags[i], TAG_SUFFIX); /* what has a suffix counts by its begin */
        if (memmem(text, n, tags[i], n_tag))
            return true;
    }
    return false;
}

/* May something of a text without calls be left out? */
static bool left_out(const char *tool, const char *text, size_t n)
{
    for (size_t i = 0; i < n_tool_format; i++) {
        const struct tool_format *f = &tool_formats[i];
        if (strcmp(f->name, tool) == 0)
            return holds(text, n, f->close) || holds(text, n, f->layout) ||
                   holds(text, n, f->drop) || (f->tag_drops && holds(text, n, f->open));
    }
    return false;
}

/* Is `part` what is left of the text when pieces of it are taken out? */
static bool is_rest(const struct buf *part, const char *text, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at < part->len; i++)
        at += part->data[at] == text[i];
    return at == part->len && part->len < n;
}

static size_t count(const char *const *names)
{
    size_t n = 0;
    while (names[n])
        n++;
    return n;
}

static const json_t *known_tools(void)
{
    static json_t *tools;
    if (!tools)
        tools = json_loads(
            "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": "
            "\"string\"}, \"b\": {\"type\": \"integer\"}, \"c\": {\"type\": \"array\", \"items\": "
            "{\"type\": \"string\"}}, \"d\": {\"type\": \"object\", \"properties\": {\"a\": "
            "{\"type\": "
            "\"string\"}}}}}}}]",
            0, NULL);
    return tools;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *const *tools = parser_tool_names(), *const *reasonings = parser_reasoning_names();
    struct record whole, cut;
    if (n < 2)
        return 0;
    const char *text = (const char *)data + 2;
    struct parser_config c = {.tool = tools[(data[0] & 127) % count(tools)]};
    if (data[0] & 128)
        c.reasoning = reasonings[data[1] % count(reasonings)];
    if (data[1] & 1)
        c.tools = known_tools();
    c.start = (enum reasoning_start)(data[1] % 3);
    bool channels = !strcmp(c.tool, "openai") || !strncmp(c.tool, "muse", 4); /* no headers */
    n -= 2;
    uint32_t n_call = parse(&c, text, n, 0, &whole);
    Q_ASSERT(n_call == parse(&c, text, n, data[1] + 1u, &cut));
    Q_ASSERT(same(&cut.log, buf_str(&whole.log), whole.log.len));
    Q_ASSERT(whole.n_end || c.reasoning || channels || same(&whole.content, text, n) ||
             (left_out(c.tool, text, n) && is_rest(&whole.content, text, n)));
    record_release(&whole);
    record_release(&cut);
    return 0;
}
