/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of /v1/responses: the response object, and the events of a stream, each with its name
 * and number, the last of an item with the whole item. */
#include "frontend/api/responses.h"

#include <inttypes.h>
#include <string.h>
#include "common/clock.h"
#include "frontend/api/job_internal.h"
#include "frontend/api/json.h"

static const char *const prefixes[] = {
    [DIALECT_REASONING] = "rs",
    [DIALECT_TEXT] = "msg",
    [DIALECT_CALL] = "fc",
};

static void add_str(struct buf *out, const char *s)
{
    buf_add_json_str(out, s, strlen(s));
}

static void add_buf(struct buf *out, const struct buf *s)
{
    buf_add_json_str(out, buf_str(s), s->len);
    buf_take_failure(out, s);
}

/* ,"name":value as the request has it; else as given here */
static void add_asked(const struct job *j, const char *name, const char *otherwise, struct buf *out)
{
    const json_t *v = json_object_get(j->asked, name);
    buf_printf(out, ",\"%s\":", name);
    if (v && !json_is_null(v))
        json_add(out, v);
    else
        buf_add_str(out, otherwise);
}

/* ---- items ---- */
/* The id in quotes: of the response, and the item's place. */
static void add_id(const struct job *j, size_t i, struct buf *out)
{
    struct buf id = BUF_INIT;
    buf_printf(&id, "%s_%s_%zu", prefixes[j->made.items[i].kind], strchr(j->id, '_') + 1, i);
    add_buf(out, &id);
    buf_release(&id);
}

static void add_part(const struct dialect_item *item, bool filled, struct buf *out)
{
    const struct buf none = BUF_INIT;
    const bool is_text = item->kind == DIALECT_TEXT;
    buf_printf(out, "{\"type\":\"%s\",\"text\":", is_text ? "output_text" : "reasoning_text");
    add_buf(out, filled ? &item->text : &none);
    if (is_text)
        buf_printf(out, ",\"annotations\":[],\"logprobs\":[%s]",
                   filled ? buf_str(&item->logprobs) : "");
    buf_add_char(out, '}');
}

/* The item as it begins (not filled), and as it is at its end. */
static void add_item(const struct job *j, size_t i, bool filled, struct buf *out)
{
    const struct dialect_item *item = &j->made.items[i];
    const char *status = !filled ? "in_progress" : item->whole ? "completed" : "incomplete";
    buf_add_str(out, "{\"id\":");
    add_id(j, i, out);
    if (item->kind == DIALECT_CALL) {
        const struct answer_call *call = &j->choices[0].answer.calls[item->i_call];
        const struct buf none = BUF_INIT;
        buf_printf(out, ",\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", call->id);
        add_str(out, call->name);
        buf_add_str(out, ",\"arguments\":");
        add_buf(out, filled ? &item->text : &none);
    } else {
        buf_add_str(out, item->kind == DIALECT_TEXT
                             ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                             : ",\"type\":\"reasoning\",\"summary\":[],"
                               "\"encrypted_content\":null,\"content\":[");
        if (filled)
            add_part(item, true, out);
        buf_add_char(out, ']');
    }
    buf_printf(out, ",\"status\":\"%s\"}", status);
}

/* ---- the response ---- */
static void add_usage(const struct job *j, struct buf *out)
{
    const struct choice *c = &j->choices[0];
    const size_t n_in = prompt_ids(&j->prompts.items[0])->n;
    buf_printf(out,
               "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%u,"
               "\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":"
               "{\"reasoning_tokens\":%u},\"total_tokens\":%zu}",
               n_in, c->n_cached, c->n_token, c->n_thought + c->n_perhaps, n_in + c->n_token);
}

/* NULL: none. An aborted answer has failed: its client did not ask for that. */
static const char *failure_of(const struct job *j, const struct http_error *error)
{
    const char *finish = j->n_choice ? j->choices[0].finish : NULL;
    if (error)
        return error->message;
    return finish && !strcmp(finish, "abort") ? "the server aborted this request" : NULL;
}

static const char *status_of(const struct job *j, const struct http_error *error)
{
    if (failure_of(j, error))
        return "failed";
    return strcmp(j->choices[0].finish, "length") ? "completed" : "incomplete";
}

static void add_fields(const struct job *j, struct buf *out)
{
    static const char *const same[][2] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"safety_identifier", "null"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_logprobs", "0"},
        {"user", "null"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        add_asked(j, same[i][0], same[i][1], out);
    buf_printf(out, ",\"temperature\":%.6g,\"top_p\":%.6g", (double)j->sampling.temperature,
               (double)j->sampling.top_p);
    buf_add_str(out, ",\"background\":false,\"previous_response_id\":null,\"prompt\":null,"
                     "\"service_tier\":\"default\",\"store\":false,\"truncation\":\"disabled\"");
}

/* is_over: else as it begins, whatever is known by now. */
static void add_response(const struct job *j, bool is_over, const struct http_error *error,
                         struct buf *out)
{
    const char *status = is_over ? status_of(j, error) : "in_progress";
    const char *failure = is_over ? failure_of(j, error) : NULL;
    char now[JOB_FINGERPRINT_MAX];
    job_fingerprint(j, now);
    const char *fingerprint = *j->fingerprints ? j->fingerprints : now;
    buf_add_str(out, "{\"id\":");
    add_str(out, j->id);
    buf_printf(out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
               (long long)j->created, status);
    add_str(out, j->model);
    buf_add_str(out, ",\"completed_at\":");
    if (!strcmp(status, "completed"))
        buf_printf(out, "%lld", (long long)clock_unix());
    else
        buf_add_str(out, "null");
    buf_add_str(out, ",\"output\":[");
    for (size_t i = 0; is_over && i < j->made.n; i++) {
        if (i)
            buf_add_char(out, ',');
        add_item(j, i, true, out);
    }
    buf_add_str(out, "],\"error\":");
    if (failure) {
        buf_add_str(out, "{\"code\":\"server_error\",\"message\":");
        add_str(out, failure);
        buf_add_char(out, '}');
    } else {
        buf_add_str(out, "null");
    }
    buf_add_str(out, ",\"incomplete_details\":");
    buf_add_str(out, strcmp(status, "incomplete") ? "null" : "{\"reason\":\"max_output_tokens\"}");
    add_fields(j, out);
    buf_add_str(out, ",\"usage\":");
    if (is_over && j->n_choice)
        add_usage(j, out);
    else
        buf_add_str(out, "null");
    buf_add_str(out, ",\"system_fingerprint\":");
    if (*fingerprint)
        add_str(out, fingerprint);
    else
        buf_add_str(out, "null");
    buf_add_char(out, '}');
}

/* ---- events ---- */
static void begin_event(struct job *j, const char *type, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRIu64, type, type,
               j->made.n_event++);
}

static void end_event(struct buf *out)
{
    buf_add_str(out, "}\n\n");
}

static void response_event(struct job *j, const char *status, bool is_over,
                           const struct http_error *error, struct buf *out)
{
    char type[32];
    snprintf(type, sizeof type, "response.%s", status);
    begin_event(j, type, out);
    buf_add_str(out, ",\"response\":");
    add_response(j, is_over, error, out);
    end_event(out);
}

static void item_event(struct job *j, const char *type, size_t i, bool filled, struct buf *out)
{
    begin_event(j, type, out);
    buf_printf(out, ",\"output_index\":%zu,\"item\":", i);
    add_item(j, i, filled, out);
    end_event(out);
}

/* An event of what is in an item: its places come first. */
static void begin_inner(struct job *j, const char *type, size_t i, struct buf *out)
{
    begin_event(j, type, out);
    buf_printf(out, ",\"output_index\":%zu,\"item_id\":", i);
    add_id(j, i, out);
    if (j->made.items[i].kind != DIALECT_CALL)
        buf_add_str(out, ",\"content_index\":0");
}

static void part_event(struct job *j, const char *type, size_t i, bool filled, struct buf *out)
{
    if (j->made.items[i].kind == DIALECT_CALL)
        return;
    begin_inner(j, type, i, out);
    buf_add_str(out, ",\"part\":");
    add_part(&j->made.items[i], filled, out);
    end_event(out);
}

static void on_begin(struct job *j, struct buf *out)
{
    response_event(j, "created", false, NULL, out);
    response_event(j, "in_progress", false, NULL, out);
}

static void on_item_begin(struct job *j, size_t i, struct buf *out)
{
    item_event(j, "response.output_item.added", i, false, out);
    part_event(j, "response.content_part.added", i, false, out);
}

static void on_item_piece(struct job *j, size_t i, const struct buf *piece,
                          const struct buf *logprobs, struct buf *out)
{
    static const char *const types[] = {
        [DIALECT_REASONING] = "response.reasoning_text.delta",
        [DIALECT_TEXT] = "response.output_text.delta",
        [DIALECT_CALL] = "response.function_call_arguments.delta",
    };
    const enum dialect_kind kind = j->made.items[i].kind;
    begin_inner(j, types[kind], i, out);
    buf_add_str(out, ",\"delta\":");
    add_buf(out, piece);
    if (kind == DIALECT_TEXT)
        buf_printf(out, ",\"logprobs\":[%s]", logprobs ? buf_str(logprobs) : "");
    end_event(out);
}

static void on_item_end(struct job *j, size_t i, struct buf *out)
{
    static const char *const types[] = {
        [DIALECT_REASONING] = "response.reasoning_text.done",
        [DIALECT_TEXT] = "response.output_text.done",
        [DIALECT_CALL] = "response.function_call_arguments.done",
    };
    const struct dialect_item *item = &j->made.items[i];
    begin_inner(j, types[item->kind], i, out);
    if (item->kind == DIALECT_CALL) {
        buf_add_str(out, ",\"name\":");
        add_str(out, j->choices[0].answer.calls[item->i_call].name);
    }
    buf_printf(out, ",\"%s\":", item->kind == DIALECT_CALL ? "arguments" : "text");
    add_buf(out, &item->text);
    if (item->kind == DIALECT_TEXT)
        buf_printf(out, ",\"logprobs\":[%s]", buf_str(&item->logprobs));
    end_event(out);
    part_event(j, "response.content_part.done", i, true, out);
    item_event(j, "response.output_item.done", i, true, out);
}

static void on_end(struct job *j, struct buf *out)
{
    response_event(j, status_of(j, NULL), true, NULL, out);
}

static void on_fail(struct job *j, const struct http_error *error, struct buf *out)
{
    struct buf body = BUF_INIT;
    response_event(j, "failed", true, error, out);
    begin_event(j, "error", out);
    buf_add_str(out, ",\"code\":\"server_error\",\"message\":");
    add_str(out, error->message);
    buf_add_str(out, ",\"param\":null,");
    http_error_body(&body, error); /* {"error":…}: clients raise it */
    buf_add(out, buf_str(&body) + 1, body.len ? body.len - 2 : 0);
    buf_take_failure(out, &body);
    buf_release(&body);
    end_event(out);
}

static void on_whole(struct job *j, struct buf *out)
{
    add_response(j, true, NULL, out);
}

static const char *const names[][2] = {
    {"messages", "input"},
    {"max_completion_tokens", "max_output_tokens"},
    {"max_tokens", "max_output_tokens"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"verbosity", "text.verbosity"},
    {NULL, NULL},
};

const struct dialect responses_dialect = {
    .id_prefix = "resp_",
    .names = names,
    .system = "instructions",
    .counted = "{\"object\":\"response.input_tokens\",\"input_tokens\":",
    .needs_text = true,
    .read = responses_read,
    .begin = on_begin,
    .item_begin = on_item_begin,
    .item_piece = on_item_piece,
    .item_end = on_item_end,
    .end = on_end,
    .fail = on_fail,
    .whole = on_whole,
};
