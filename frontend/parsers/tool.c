/* SPDX-License-Identifier: Apache-2.0 */
/* The framework: the table of formats, and the collector between a format and the sink. Pieces of
 * the same kind are joined in `pending` until something else comes or the feed is over. */
#include "frontend/parsers/format.h"
#include <string.h>
#include "common/mem.h"

struct tool_parser {
    const struct tool_format *format;
    void *state;
    tool_sink *sink; /* of the feed that is running */
    void *ctx;
    struct buf pending;
    enum tool_event_kind pending_kind;
    uint32_t n_call;
};

/* clang-format off */
#define TOOL(name, format) extern const struct tool_format tool_##format;
#include "frontend/parsers/tools.def"
static const struct tool_format *const formats[] = {
#define TOOL(name, format) &tool_##format,
#include "frontend/parsers/tools.def"
};
static const char *const names[] = {
#define TOOL(name, format) name,
#include "frontend/parsers/tools.def"
    NULL
};
/* clang-format on */

const char *const *tool_parser_names(void)
{
    return names;
}

static const struct tool_format *find_format(const char *name, struct q_err *e)
{
    char list[160] = "";
    for (size_t i = 0; names[i]; i++) {
        if (strcmp(names[i], name) == 0)
            return formats[i];
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", names[i]);
    }
    q_fail(e, Q_NOT_FOUND, "tool-call parser \"%.60s\" does not exist; there are: %s", name, list);
    return NULL;
}

enum q_code tool_parser_new(struct tool_parser **out, const char *name, struct q_err *e)
{
    const struct tool_format *format = find_format(name, e);
    if (!format)
        return Q_NOT_FOUND;
    struct tool_parser *p = q_calloc(1, sizeof *p);
    void *state = p ? q_calloc(1, format->state_bytes) : NULL;
    if (!state) {
        q_free(p);
        return q_fail(e, Q_NO_MEMORY, "tool-call parser: out of memory");
    }
    p->format = format;
    p->state = state;
    *out = p;
    return Q_OK;
}

void tool_parser_free(struct tool_parser *p)
{
    if (!p)
        return;
    if (p->format->release)
        p->format->release(p);
    buf_release(&p->pending);
    q_free(p->state);
    q_free(p);
}

uint32_t tool_parser_n_calls(const struct tool_parser *p)
{
    return p->n_call;
}

void *tool_state(struct tool_parser *p)
{
    return p->state;
}

static enum q_code send(struct tool_parser *p, enum tool_event_kind kind, const char *text,
                        size_t n, struct q_err *e)
{
    const struct tool_event event = {kind, kind == TOOL_CONTENT ? 0 : p->n_call - 1, text, n};
    return p->sink(p->ctx, &event, e);
}

static enum q_code flush(struct tool_parser *p, struct q_err *e)
{
    enum q_code rc = buf_check(&p->pending, "tool-call parser", e);
    if (!rc && p->pending.len)
        rc = send(p, p->pending_kind, p->pending.data, p->pending.len, e);
    buf_reset(&p->pending);
    return rc;
}

static enum q_code collect(struct tool_parser *p, enum tool_event_kind kind, const char *text,
                           size_t n, struct q_err *e)
{
    enum q_code rc;
    if (p->pending.len && p->pending_kind != kind && (rc = flush(p, e)))
        return rc;
    p->pending_kind = kind;
    buf_add(&p->pending, text, n);
    return p->pending.failed ? buf_check(&p->pending, "tool-call parser", e) : Q_OK;
}

enum q_code put_content(struct tool_parser *p, const char *text, size_t n, struct q_err *e)
{
    return collect(p, TOOL_CONTENT, text, n, e);
}

enum q_code put_args(struct tool_parser *p, const char *text, size_t n, struct q_err *e)
{
    return collect(p, TOOL_CALL_ARGS, text, n, e);
}

enum q_code put_call(struct tool_parser *p, const char *name, size_t n, struct q_err *e)
{
    enum q_code rc = flush(p, e);
    if (rc)
        return rc;
    p->n_call++;
    return send(p, TOOL_CALL_BEGIN, name, n, e);
}

enum q_code put_end(struct tool_parser *p, struct q_err *e)
{
    enum q_code rc = flush(p, e);
    return rc ? rc : send(p, TOOL_CALL_END, "", 0, e);
}

enum q_code tool_parser_feed(struct tool_parser *p, const char *text, size_t n, tool_sink *sink,
                             void *ctx, struct q_err *e)
{
    enum q_code rc = Q_OK;
    p->sink = sink;
    p->ctx = ctx;
    for (size_t i = 0; i < n && !rc; i++)
        rc = p->format->byte(p, text[i], e);
    return rc ? rc : flush(p, e);
}

enum q_code tool_parser_finish(struct tool_parser *p, tool_sink *sink, void *ctx, struct q_err *e)
{
    p->sink = sink;
    p->ctx = ctx;
    enum q_code rc = p->format->finish(p, e);
    return rc ? rc : flush(p, e);
}

/* --- "none": everything is content ------------------------------------------------------------ */

static enum q_code none_byte(struct tool_parser *p, char c, struct q_err *e)
{
    return put_content(p, &c, 1, e);
}

static enum q_code none_finish(struct tool_parser *p, struct q_err *e)
{
    (void)p;
    (void)e;
    return Q_OK;
}

const struct tool_format tool_none = {"none", 1, none_byte, none_finish, NULL};
