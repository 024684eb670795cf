/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of /v1/messages: the message, and the events of a stream, a block of content at a
 * time. Tokens found in the prefix cache are no input tokens, as in Anthropic's counts. */
#include "frontend/api/anthropic.h"

#include <string.h>
#include "frontend/api/job_internal.h"
#include "frontend/api/json.h"

static void add_str(struct buf *out, const char *s)
{
    buf_add_json_str(out, s, strlen(s));
}

static void add_buf(struct buf *out, const struct buf *s)
{
    buf_add_json_str(out, buf_str(s), s->len);
    buf_take_failure(out, s);
}

/* ---- blocks ---- */
static const struct answer_call *call_of(const struct job *j, size_t i)
{
    return &j->choices[0].answer.calls[j->made.items[i].i_call];
}

/* What the model wrote as arguments is an object, or nothing: clients read no other input. */
static void add_input(const struct buf *arguments, struct buf *out)
{
    struct q_err e = Q_ERR_INIT;
    json_t *input = NULL;
    if (!json_body(&input, buf_str(arguments), arguments->len, &e))
        buf_add(out, buf_str(arguments), arguments->len);
    else
        buf_add_str(out, "{}");
    buf_take_failure(out, arguments);
    json_decref(input);
}

/* The block as it begins (not filled), and as it is at its end. A client returns a thought only
 * with a signature; it means nothing here. */
static void add_block(const struct job *j, size_t i, bool filled, struct buf *out)
{
    static const struct buf none = BUF_INIT;
    const struct dialect_item *item = &j->made.items[i];
    const struct buf *text = filled ? &item->text : &none;
    if (item->kind == DIALECT_CALL) {
        buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", call_of(j, i)->id);
        add_str(out, call_of(j, i)->name);
        buf_add_str(out, ",\"input\":");
        add_input(text, out);
    } else if (item->kind == DIALECT_TEXT) {
        buf_add_str(out, "{\"type\":\"text\",\"citations\":null,\"text\":");
        add_buf(out, text);
    } else {
        buf_add_str(out, "{\"type\":\"thinking\",\"signature\":");
        add_str(out, filled ? j->id : "");
        buf_add_str(out, ",\"thinking\":");
        add_buf(out, text);
    }
    buf_add_char(out, '}');
}

/* ---- the message ---- */
static void add_usage(const struct job *j, bool is_over, struct buf *out)
{
    const struct choice *c = j->n_choice ? &j->choices[0] : NULL;
    const size_t n_in = prompt_ids(&j->prompts.items[0])->n;
    const uint32_t n_cached = c ? c->n_cached : 0;
    buf_printf(out,
               "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
               n_in - n_cached, n_cached, is_over && c ? c->n_token : 0);
}

/* "stop_reason":…,"stop_sequence":… */
static void add_stop(const struct job *j, struct buf *out)
{
    static const char *const reasons[][2] = {
        {"length", "max_tokens"},
        {"tool_calls", "tool_use"},
    };
    const struct choice *c = &j->choices[0];
    const char *const stop = c->i_stop < 0 ? NULL : j->stops[c->i_stop];
    const char *reason = stop ? "stop_sequence" : "end_turn";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (!strcmp(reasons[i][0], c->finish))
            reason = reasons[i][1];
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (stop && !strcmp(reason, "stop_sequence"))
        add_str(out, stop);
    else
        buf_add_str(out, "null");
}

static void add_message(const struct job *j, bool is_over, struct buf *out)
{
    char now[JOB_FINGERPRINT_MAX];
    job_fingerprint(j, now);
    buf_add_str(out, "{\"id\":");
    add_str(out, j->id);
    buf_add_str(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    add_str(out, j->model);
    buf_add_str(out, ",\"content\":[");
    for (size_t i = 0; is_over && i < j->made.n; i++) {
        if (i)
            buf_add_char(out, ',');
        add_block(j, i, true, out);
    }
    buf_add_str(out, "],");
    if (is_over)
        add_stop(j, out);
    else
        buf_add_str(out, "\"stop_reason\":null,\"stop_sequence\":null");
    buf_add_char(out, ',');
    add_usage(j, is_over, out);
    buf_add_str(out, ",\"system_fingerprint\":");
    add_str(out, is_over && *j->fingerprints ? j->fingerprints : now);
    buf_add_char(out, '}');
}

/* ---- events ---- */
static void begin_event(const char *type, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(struct buf *out)
{
    buf_add_str(out, "}\n\n");
}

static void on_begin(struct job *j, struct buf *out)
{
    begin_event("message_start", out);
    buf_add_str(out, ",\"message\":");
    add_message(j, false, out);
    end_event(out);
}

static void on_item_begin(struct job *j, size_t i, struct buf *out)
{
    begin_event("content_block_start", out);
    buf_printf(out, ",\"index\":%zu,\"content_block\":", i);
    add_block(j, i, false, out);
    end_event(out);
}

static void add_delta(size_t i, const char *type, const char *member, const struct buf *piece,
                      struct buf *out)
{
    begin_event("content_block_delta", out);
    buf_printf(out, ",\"index\":%zu,\"delta\":{\"type\":\"%s\",\"%s\":", i, type, member);
    add_buf(out, piece);
    buf_add_char(out, '}');
    end_event(out);
}

static void on_item_piece(struct job *j, size_t i, const struct buf *piece,
                          const struct buf *logprobs, struct buf *out)
{
    static const char *const types[][2] = {
        [DIALECT_REASONING] = {"thinking_delta", "thinking"},
        [DIALECT_TEXT] = {"text_delta", "text"},
        [DIALECT_CALL] = {"input_json_delta", "partial_json"},
    };
    const enum dialect_kind kind = j->made.items[i].kind;
    (void)logprobs; /* this API has none */
    add_delta(i, types[kind][0], types[kind][1], piece, out);
}

static void on_item_end(struct job *j, size_t i, struct buf *out)
{
    if (j->made.items[i].kind == DIALECT_REASONING) {
        struct buf id = BUF_INIT;
        buf_add_str(&id, j->id);
        add_delta(i, "signature_delta", "signature", &id, out);
        buf_release(&id);
    }
    begin_event("content_block_stop", out);
    buf_printf(out, ",\"index\":%zu", i);
    end_event(out);
}

static void on_end(struct job *j, struct buf *out)
{
    begin_event("message_delta", out);
    buf_add_str(out, ",\"delta\":{");
    add_stop(j, out);
    buf_add_str(out, "},");
    add_usage(j, true, out);
    end_event(out);
    begin_event("message_stop", out);
    end_event(out);
}

static void on_fail(struct job *j, const struct http_error *error, struct buf *out)
{
    (void)j;
    buf_add_str(out, "event: error\ndata: ");
    http_error_body(out, error);
    buf_add_str(out, "\n\n");
}

static void on_whole(struct job *j, struct buf *out)
{
    add_message(j, true, out);
}

static const char *const names[][2] = {
    {"max_completion_tokens", "max_tokens"},
    {"stop", "stop_sequences"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {"thinking_token_budget", "thinking.budget_tokens"},
    {NULL, NULL},
};

const struct dialect anthropic_dialect = {
    .id_prefix = "msg_",
    .names = names,
    .system = "system",
    .counted = "{\"input_tokens\":",
    .error_form = HTTP_ERROR_ANTHROPIC,
    .fails_if_aborted = true,
    .read = anthropic_read,
    .begin = on_begin,
    .item_begin = on_item_begin,
    .item_piece = on_item_piece,
    .item_end = on_item_end,
    .end = on_end,
    .fail = on_fail,
    .whole = on_whole,
};
