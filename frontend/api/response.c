/* SPDX-License-Identifier: Apache-2.0 */
/* Responses as JSON text, written directly into the buffer, because their formats are fixed: first
 * streams, then whole bodies; chat beside completions.
 *
 * Members of vLLM's responses that have no value here are null (vLLM 0.33: whole bodies have all of
 * them, chunks those that its server sets). Every step of the engine makes a chunk, with or without
 * text; with a parser only the steps with output of the parser, token ids or logprobs do. The last
 * chunk has the rest of the text and the finish_reason. */
#include <string.h>
#include "frontend/api/job_internal.h"

static void add_str(struct buf *out, const char *s)
{
    buf_add_json_str(out, s, strlen(s));
}

/* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…, */
static void add_head(const struct job *j, const char *object, struct buf *out)
{
    /* The fingerprint: of the current weights for a chunk, of all weights used for a whole
     * response. */
    bool whole = !j->params.stream && *j->fingerprints;
    char now[JOB_FINGERPRINT_MAX];
    job_fingerprint(j, now);
    const char *fingerprint = whole ? j->fingerprints : now;
    buf_add_str(out, "{\"id\":");
    add_str(out, j->id);
    buf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
               (long long)j->created);
    add_str(out, j->model);
    buf_add_str(out, ",\"system_fingerprint\":");
    if (*fingerprint)
        add_str(out, fingerprint);
    else
        buf_add_str(out, "null");
    buf_add_char(out, ',');
}

static void add_usage(const struct job *j, struct buf *out)
{
    size_t n_prompt = 0, n_out = 0, n_cached = 0, n_thought = 0;
    bool thinks = false;
    for (size_t i = 0; i < j->prompts.n; i++)
        n_prompt += prompt_ids(&j->prompts.items[i])->n;
    for (uint32_t i = 0; i < j->n_choice; i++) {
        n_out += j->no_output ? 0 : j->choices[i].n_token;
        n_thought += j->choices[i].n_thought + j->choices[i].n_perhaps;
        thinks |= j->choices[i].parser && j->app->served.chat.reasoning_parser;
        if (j->choices[i].index % j->width == 0) /* a prompt counts once: its first choice */
            n_cached += j->choices[i].n_cached;  /* computed it, the others used its blocks */
    }
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%zu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%zu}",
               n_prompt, n_prompt + n_out, n_out, n_cached);
    if (thinks)
        buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%zu}", n_thought);
    else if (!j->params.stream)
        buf_add_str(out, ",\"completion_tokens_details\":null");
    buf_add_char(out, '}');
}

/* With continuous_usage_stats: the usage of this choice so far. */
static void add_usage_so_far(const struct choice *c, struct buf *out)
{
    size_t n_prompt = prompt_ids(c->prompt)->n, n_out = c->job->no_output ? 0 : c->n_token;
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%zu",
               n_prompt, n_prompt + n_out, n_out);
    if (c->parser && c->job->app->served.chat.reasoning_parser)
        buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%u}",
                   c->n_thought + c->n_perhaps);
    buf_add_char(out, '}');
}

static void add_ids(const struct prompt *p, struct buf *out)
{
    const struct token_list *ids = prompt_ids(p);
    buf_add_char(out, '[');
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, "%s%d", i ? "," : "", (int)ids->ids[i]); /* placeholders are negative */
    buf_add_char(out, ']');
}

static bool wants_ids(const struct job *j)
{
    return j->params.return_token_ids || !j->params.detokenize || !j->app->served.tokenizer;
}

static bool wants_logprobs(const struct job *j)
{
    return j->logprobs;
}

/* "logprobs":… of the pending output of the choice. */
static void add_logprobs(const struct choice *c, struct buf *out)
{
    if (!wants_logprobs(c->job))
        buf_add_str(out, "\"logprobs\":null");
    else if (c->job->chat)
        buf_printf(out, "\"logprobs\":{\"content\":[%s],\"refusal\":null}", buf_str(&c->items));
    else
        buf_printf(out,
                   "\"logprobs\":{\"text_offset\":[%s],\"token_logprobs\":[%s],\"tokens\":[%s],"
                   "\"top_logprobs\":[%s]}",
                   buf_str(&c->offsets), buf_str(&c->values), buf_str(&c->items),
                   buf_str(&c->tops));
}

/* "finish_reason":…,"stop_reason":… */
static void add_finish(const struct choice *c, bool final, struct buf *out)
{
    buf_add_str(out, "\"finish_reason\":");
    if (final)
        add_str(out, c->finish);
    else
        buf_add_str(out, "null");
    buf_add_str(out, ",\"stop_reason\":");
    if (final && c->i_stop >= 0)
        add_str(out, c->job->stops[c->i_stop]);
    else if (final && c->stop_id)
        buf_printf(out, "%u", c->stop_id - 1);
    else
        buf_add_str(out, "null");
}

static void add_delta(struct choice *c, struct buf *out)
{
    buf_add_str(out, "\"delta\":");
    if (c->begun)
        answer_delta_json(&c->answer, !c->parser, out);
    else
        buf_add_str(out, "{\"role\":\"assistant\",\"content\":\"\"}");
    buf_add_char(out, ',');
}

static void end_chunk(const struct choice *c, struct buf *out)
{
    struct job *j = c->job;
    buf_add_char(out, ']');
    if (c->begun || !j->chat)
        buf_add_str(out, ",\"kv_transfer_params\":null");
    if (j->params.continuous_usage) {
        buf_add_char(out, ',');
        add_usage_so_far(c, out);
    } else if (j->params.include_usage) {
        buf_add_str(out, ",\"usage\":null");
    }
    buf_add_char(out, '}');
    kept_stream_event_end(j, out);
}

/* "prompt_token_ids":… */
static void add_prompt_ids(const struct choice *c, bool wanted, struct buf *out)
{
    buf_add_str(out, "\"prompt_token_ids\":");
    if (wanted)
        add_ids(c->prompt, out);
    else
        buf_add_str(out, "null");
}

static void begin_chunk(struct job *j, const struct choice *c, struct buf *out)
{
    kept_stream_event(j, out);
    add_head(j, j->chat ? "chat.completion.chunk" : "text_completion", out);
    if (j->chat && !c->begun) {
        add_prompt_ids(c, j->params.return_token_ids, out);
        buf_add_str(out, ",\"prompt_text\":null,");
    }
    buf_printf(out, "\"choices\":[{\"index\":%u,", c->index);
}

static void add_new_ids(struct choice *c, struct buf *out)
{
    if (wants_ids(c->job))
        buf_printf(out, ",\"token_ids\":[%s]", buf_str(&c->ids));
    else
        buf_add_str(out, ",\"token_ids\":null");
}

static void empty(struct choice *c)
{
    buf_reset(&c->answer.content);
    buf_reset(&c->answer.reasoning);
    buf_reset(&c->items);
    buf_reset(&c->values);
    buf_reset(&c->tops);
    buf_reset(&c->offsets);
    buf_reset(&c->ids);
    c->n_told = c->n_token;
}

/* The prompt as given; for token ids their text including special tokens, because logprobs.tokens
 * and text_offset include them. */
static void add_echo(struct choice *c, struct buf *out)
{
    const struct served_model *s = &c->job->app->served;
    struct q_err e = Q_ERR_INIT;
    if (c->prompt->text)
        buf_add(out, c->prompt->text, c->prompt->n_text);
    else if (s->tokenizer && tokenizer_decode(s->tokenizer, c->prompt->ids.ids, c->prompt->ids.n,
                                              false, out, &e) != Q_OK)
        out->failed = e.code;
}

static void text_chunk(struct job *j, struct choice *c, struct buf *out)
{
    begin_chunk(j, c, out);
    buf_add_str(out, "\"text\":");
    if (!c->begun && j->params.echo) {
        struct buf whole = BUF_INIT;
        add_echo(c, &whole);
        buf_add(&whole, buf_str(&c->answer.content), c->answer.content.len);
        buf_take_failure(out, &whole);
        buf_add_json_str(out, buf_str(&whole), whole.len);
        buf_release(&whole);
    } else {
        buf_add_json_str(out, buf_str(&c->answer.content), c->answer.content.len);
    }
    buf_add_char(out, ',');
    add_logprobs(c, out);
    buf_add_char(out, ',');
    add_finish(c, c->finished, out);
    buf_add_char(out, ',');
    add_prompt_ids(c, !c->begun && j->params.return_token_ids, out);
    add_new_ids(c, out);
    buf_add_str(out, ",\"weight_versions\":null}");
    end_chunk(c, out);
    c->begun = true;
    empty(c);
}

static void chat_chunk(struct job *j, struct choice *c, bool final, struct buf *out)
{
    begin_chunk(j, c, out);
    add_delta(c, out);
    add_logprobs(c, out);
    buf_add_char(out, ',');
    add_finish(c, final, out);
    if (c->begun)
        add_new_ids(c, out);
    buf_add_str(out, final ? ",\"weight_versions\":null}" : "}");
    end_chunk(c, out);
    c->begun = true;
    empty(c);
}

/* Reasoning is in a delta of its own, before the content: clients for DeepSeek's API ignore one of
 * the two if a delta has both. */
static void reasoning_chunk(struct job *j, struct choice *c, struct buf *out)
{
    struct choice only = *c;
    only.answer = (struct answer){.reasoning = c->answer.reasoning};
    only.items = only.values = only.tops = only.offsets = only.ids = (struct buf)BUF_INIT;
    chat_chunk(j, &only, false, out);
    buf_reset(&c->answer.reasoning);
}

/* The role in a chunk of its own, as in OpenAI's API and vLLM; no token counts yet. */
static void role_chunk(struct job *j, struct choice *c, struct buf *out)
{
    struct choice first = *c;
    first.answer = (struct answer){.n_call = 0};
    first.items = first.values = first.tops = first.offsets = first.ids = (struct buf)BUF_INIT;
    first.n_token = first.n_thought = first.n_perhaps = 0;
    chat_chunk(j, &first, false, out);
    c->begun = true;
}

void response_chunks(struct job *j, struct choice *c, struct buf *out)
{
    bool news = c->answer.content.len || c->answer.reasoning.len || c->items.len || c->ids.len;
    bool step = c->n_token > c->n_told && !j->no_output;
    if (!j->chat) {
        if (news || step || c->finished)
            text_chunk(j, c, out);
        return;
    }
    if (!c->begun && (c->n_token || c->finished))
        role_chunk(j, c, out);
    if (c->answer.reasoning.len && (c->answer.content.len || answer_calls_pending(&c->answer)))
        reasoning_chunk(j, c, out);
    if (news || answer_calls_pending(&c->answer) || (step && !c->parser) || c->finished)
        chat_chunk(j, c, c->finished, out);
}

void response_usage_chunk(struct job *j, struct buf *out)
{
    kept_stream_event(j, out);
    add_head(j, j->chat ? "chat.completion.chunk" : "text_completion", out);
    buf_add_str(out, "\"choices\":[],");
    add_usage(j, out);
    buf_add_char(out, '}');
    kept_stream_event_end(j, out);
}

static void add_message(struct choice *c, struct buf *out)
{
    buf_add_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    answer_content_json(&c->answer, out);
    buf_add_str(out, ",\"refusal\":null,\"annotations\":null,\"audio\":null,"
                     "\"function_call\":null,");
    if (c->answer.reasoning.len)
        answer_reasoning_json(&c->answer, out);
    else
        buf_add_str(out, "\"reasoning\":null");
    if (c->answer.n_call) {
        buf_add_str(out, ",\"tool_calls\":");
        answer_calls_json(&c->answer, out);
    }
    buf_add_str(out, "},");
}

/* "prompt_logprobs":[null,{…},…] */
static void add_prompt_logprobs(const struct choice *c, struct buf *out)
{
    buf_add_str(out, ",\"prompt_logprobs\":");
    if (!c->job->params.has[FIELD_prompt_logprobs]) {
        buf_add_str(out, "null");
        return;
    }
    buf_add_str(out, "[null");
    buf_add(out, buf_str(&c->prompt_rows), c->prompt_rows.len);
    buf_add_char(out, ']');
}

static void add_text_choice(struct choice *c, struct buf *out)
{
    struct job *j = c->job;
    struct buf whole = BUF_INIT;
    if (j->params.echo)
        add_echo(c, &whole);
    buf_add(&whole, buf_str(&c->answer.content), c->answer.content.len);
    buf_take_failure(out, &whole);
    buf_add_str(out, "\"text\":");
    buf_add_json_str(out, buf_str(&whole), whole.len);
    buf_add_char(out, ',');
    buf_release(&whole);
    add_logprobs(c, out);
    buf_add_char(out, ',');
    add_finish(c, true, out);
    buf_add_char(out, ',');
    add_prompt_ids(c, j->params.return_token_ids, out);
    add_new_ids(c, out);
    add_prompt_logprobs(c, out);
}

void response_body(struct job *j, struct buf *out)
{
    add_head(j, j->chat ? "chat.completion" : "text_completion", out);
    buf_add_str(out, "\"choices\":[");
    for (uint32_t i = 0, n = 0; i < j->n_choice; i++) {
        struct choice *c = &j->choices[i];
        if (i % j->width >= (uint32_t)j->params.n)
            continue; /* best_of computed more choices than are shown */
        buf_printf(out, "%s{\"index\":%u,", n ? "," : "", n);
        n++;
        if (j->chat) {
            add_message(c, out);
            add_logprobs(c, out);
            buf_add_char(out, ',');
            add_finish(c, true, out);
            add_new_ids(c, out);
        } else {
            add_text_choice(c, out);
        }
        buf_add_str(out, ",\"routed_experts\":null,\"weight_versions\":null}");
    }
    buf_add_str(out, "],\"service_tier\":null,");
    add_usage(j, out);
    if (j->chat) {
        add_prompt_logprobs(&j->choices[0], out);
        buf_add_char(out, ',');
        add_prompt_ids(&j->choices[0], j->params.return_token_ids, out);
        buf_add_str(out, ",\"prompt_text\":null");
    }
    buf_add_str(out, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
}
