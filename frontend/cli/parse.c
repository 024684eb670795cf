/* SPDX-License-Identifier: Apache-2.0 */
/* quire-parse: converts model output in pieces to content, reasoning and tool calls. */
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/hub/hub.h"
#include "common/json_read.h"
#include "common/options.h"
#include "frontend/cli/jsonl.h"
#include "common/parsers/parser.h"
#include "common/template/chat.h"

struct verb {
    const char *tool, *reasoning; /* NULL: none */
};

struct result {
    struct buf content, reasoning;
    json_t *calls, *events;
    struct buf args; /* of the call that came last */
    bool call_open;
    size_t i_delta; /* which delta is being read */
};

/* Bytes that are not UTF-8 become U+FFFD. */
static json_t *text_of(const char *text, size_t n)
{
    struct buf quoted = BUF_INIT;
    buf_add_json_str(&quoted, text, n);
    json_t *v =
        json_read_bytes(buf_str(&quoted), quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    buf_release(&quoted);
    return v;
}

static void close_call(struct result *r, bool complete)
{
    json_t *call = json_array_get(r->calls, json_array_size(r->calls) - 1);
    if (!r->call_open)
        return;
    r->call_open = false;
    json_object_set_new(call, "arguments", text_of(buf_str(&r->args), r->args.len));
    json_object_set_new(call, "complete", json_boolean(complete));
    buf_reset(&r->args);
}

static enum q_code on_event(void *ctx, const struct parsed_event *event, struct q_err *e)
{
    static const char *const kinds[] = {"content",   "reasoning",     "tool_call",
                                        "arguments", "tool_call_end", "tool_call_broken"};
    struct result *r = ctx;
    json_t *out = json_object(), *text = text_of(event->text, event->n);
    json_object_set_new(out, "type", json_string(kinds[event->kind]));
    json_object_set_new(out, "delta", json_integer((json_int_t)r->i_delta));
    if (event->kind >= PARSED_CALL_BEGIN)
        json_object_set_new(out, "index", json_integer(event->call));
    if (event->kind == PARSED_CALL_BEGIN) {
        close_call(r, false);
        r->call_open = true;
        json_array_append_new(r->calls, json_object());
        json_object_set(json_array_get(r->calls, event->call), "name", text);
    }
    if (event->kind == PARSED_CALL_BROKEN)
        close_call(r, false);
    if (event->kind == PARSED_CALL_END)
        close_call(r, true);
    else
        json_object_set(out, event->kind == PARSED_CALL_BEGIN ? "name" : "text", text);
    json_decref(text);
    if (json_array_append_new(r->events, out) != 0)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the events");
    struct buf *b = event->kind == PARSED_CONTENT     ? &r->content
                    : event->kind == PARSED_REASONING ? &r->reasoning
                                                      : &r->args;
    if (event->kind != PARSED_CALL_BEGIN && event->kind != PARSED_CALL_BROKEN)
        buf_add(b, event->text, event->n);
    return buf_check(b, "the answer", e);
}

/* Deltas are strings. JSON cannot contain a string that is cut inside a character; tests of that
 * pass arrays of bytes. */
static enum q_code feed_delta(struct parser *p, const json_t *delta, struct result *r,
                              struct q_err *e)
{
    struct buf bytes = BUF_INIT;
    size_t i;
    json_t *v;
    if (json_is_string(delta))
        return parser_feed(p, json_string_value(delta), json_string_length(delta), on_event, r, e);
    if (!json_is_array(delta))
        return q_fail(e, Q_INVALID, "deltas[%zu]: expected a string or an array of bytes",
                      r->i_delta);
    json_array_foreach ((json_t *)delta, i, v)
        buf_add_char(&bytes, (char)json_integer_value(v));
    enum q_code rc = buf_check(&bytes, "a delta", e);
    if (rc == Q_OK)
        rc = parser_feed(p, buf_str(&bytes), bytes.len, on_event, r, e);
    buf_release(&bytes);
    return rc;
}

static enum q_code run_parser(struct parser *p, const json_t *deltas, const json_t *text,
                              struct result *r, struct q_err *e)
{
    enum q_code rc = Q_OK;
    json_t *delta;
    if (text)
        rc = feed_delta(p, text, r, e);
    for (r->i_delta = 0; rc == Q_OK && (delta = json_array_get(deltas, r->i_delta)); r->i_delta++)
        rc = feed_delta(p, delta, r, e);
    if (rc == Q_OK)
        rc = parser_finish(p, on_event, r, e);
    close_call(r, false);
    return rc;
}

static enum q_code answer(void *ctx, const json_t *in, json_t **out, struct q_err *e)
{
    const struct verb *verb = ctx;
    struct parser_config config = {.tool = verb->tool, .reasoning = verb->reasoning};
    const json_t *deltas, *text, *prompt;
    struct parser *p = NULL;
    struct result r = {.calls = json_array(), .events = json_array()};
    static const char *const names[] = {"deltas", "text", "tools", "prompt", NULL};
    enum q_code rc;
    if ((rc = jsonl_only(in, names, e)) ||
        (rc = jsonl_member(in, "deltas", JSON_ARRAY, &deltas, e)) ||
        (rc = jsonl_member(in, "text", JSON_STRING, &text, e)) ||
        (rc = jsonl_member(in, "tools", JSON_ARRAY, &config.tools, e)) ||
        (rc = jsonl_member(in, "prompt", JSON_STRING, &prompt, e)))
        goto out;
    if (!deltas && !text) {
        rc = q_fail(e, Q_INVALID,
                    "deltas: missing; expected {\"deltas\": [\"…\", …]} or {\"text\": \"…\"}");
        goto out;
    }
    if (prompt)
        config.start = parser_reasoning_start(verb->reasoning, json_string_value(prompt),
                                              json_string_length(prompt));
    if ((rc = parser_new(&p, &config, e)) || (rc = run_parser(p, deltas, text, &r, e)))
        goto out;
    *out = json_pack("{s:o, s:o, s:O, s:O}", "content", text_of(buf_str(&r.content), r.content.len),
                     "reasoning", text_of(buf_str(&r.reasoning), r.reasoning.len), "tool_calls",
                     r.calls, "events", r.events);
out:
    parser_free(p);
    buf_release(&r.content);
    buf_release(&r.reasoning);
    buf_release(&r.args);
    json_decref(r.calls);
    json_decref(r.events);
    return rc;
}

/* "auto": the format that is detected from the model's chat template. */
static enum q_code choose(struct verb *v, const struct options *o, struct q_err *e)
{
    struct parser_detected found = {NULL, NULL}, with_tools = {NULL, NULL};
    struct chat *chat = NULL;
    char dir[PATH_MAX];
    enum q_code rc = Q_OK;
    if (o->n_positional) {
        if ((rc = hub_resolve_files(dir, o->positional[0], *o->revision ? o->revision : NULL, e)) ||
            (rc = chat_open(&chat, dir, *o->chat_template ? o->chat_template : NULL, e)))
            return rc;
        found = parser_detect(chat_source(chat));
        with_tools = parser_detect(chat_tool_source(chat));
        found.tool = with_tools.tool ? with_tools.tool : found.tool;
        chat_free(chat);
    }
    v->tool = strcmp(o->tool_call_parser, "auto") ? o->tool_call_parser : found.tool;
    v->reasoning = strcmp(o->reasoning_parser, "auto") ? o->reasoning_parser : found.reasoning;
    struct parser *p = NULL;
    rc = parser_new(&p, &(struct parser_config){.tool = v->tool, .reasoning = v->reasoning}, e);
    parser_free(p);
    return rc;
}

int main(int argc, char **argv)
{
    static struct options o;
    static const struct program_info info = {
        .program = FOR_PARSE,
        .name = "quire parse",
        .usage = "[MODEL] [options] < LINES",
        .about =
            "Applies a tool-call or reasoning parser to model output, without a server. With MODEL "
            "the "
            "formats are detected from its chat template. Each line of standard input is a JSON "
            "object:\n"
            "\"deltas\": [\"…\", …]\tmodel output in pieces, as in a stream\n"
            "\"text\": \"…\"\tmodel output in one piece\n"
            "\"tools\": […]\ttools of the request; they define the types of arguments\n"
            "\"prompt\": \"…\"\trendered prompt; it determines whether the output starts inside "
            "reasoning\n"
            "Each line of standard output has the members content, reasoning, tool_calls (with "
            "name, "
            "arguments, complete) and events.",
        .positional_min = 0,
        .positional_max = 1,
    };
    struct verb verb;
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (choose(&verb, &o, &e) != Q_OK) {
        fprintf(stderr, "quire parse: %s\n", e.message);
        if (e.code == Q_NOT_FOUND && strstr(e.message, "parser \"")) /* it names them all */
            return 2;
        return 3;
    }
    return jsonl_run(answer, &verb);
}
