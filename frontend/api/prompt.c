/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/prompt.h"

#include <string.h>
#include "common/mem.h"
#include "frontend/api/json.h"
#include "frontend/api/structured.h"

void prompts_release(struct prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        token_list_release(&p->items[i].ids);
        token_list_release(&p->items[i].expanded);
        buf_release(&p->items[i].rendered);
        ranges_release(&p->items[i].content);
    }
    q_free(p->items);
    *p = (struct prompts){NULL, 0};
}

static enum q_code make(struct prompts *p, size_t n, struct q_err *e)
{
    if (n > PROMPTS_MAX)
        return q_fail(e, Q_TOO_LARGE, "prompt: %zu prompts, expected at most %d", n, PROMPTS_MAX);
    p->items = q_calloc(n, sizeof *p->items);
    if (!p->items)
        return q_fail(e, Q_NO_MEMORY, "prompt: out of memory for %zu prompts", n);
    p->n = n;
    return Q_OK;
}

static enum q_code read_text(struct prompt *p, const json_t *v, const struct served_model *s,
                             struct q_err *e)
{
    if (!s->tokenizer)
        return q_fail(
            e, Q_UNSUPPORTED,
            "prompt: this server has no tokenizer (--skip-tokenizer-init); send token ids");
    p->text = json_string_value(v);
    p->n_text = json_string_length(v);
    return Q_OK;
}

/* least: the lowest id; placeholders of items are negative. */
static enum q_code read_ids(struct prompt *p, const json_t *v, const struct served_model *s,
                            json_int_t least, struct q_err *e)
{
    size_t i;
    json_t *item;
    enum q_code rc;
    if (json_array_size(v) == 0)
        return q_fail(e, Q_INVALID, "prompt: a list of token ids is empty");
    json_array_foreach ((json_t *)v, i, item) {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item))
            return q_fail(e, Q_INVALID, "prompt: entry %zu: expected a token id, got %s", i,
                          json_kind(item));
        if (id < least || id >= s->config.vocab_size)
            return q_fail(e, Q_INVALID,
                          "prompt: token id %lld at position %zu is not in the vocabulary (0 … %u)",
                          (long long)id, i, s->config.vocab_size - 1);
        if ((rc = token_list_add(&p->ids, (uint32_t)id, e)) != Q_OK)
            return rc;
    }
    return Q_OK;
}

FALLIBLE prompts_read(struct prompts *p, const json_t *value, const struct served_model *s,
                      bool placeholders, struct q_err *e)
{
    enum q_code rc = Q_OK;
    const json_int_t least = placeholders ? INT32_MIN : 0;
    const json_t *first = json_array_get(value, 0);
    *p = (struct prompts){NULL, 0};
    if (!value)
        return q_fail(e, Q_INVALID, "prompt: the field is missing");
    if (json_is_string(value) || json_is_integer(first)) {
        if ((rc = make(p, 1, e)) != Q_OK)
            return rc;
        return json_is_string(value) ? read_text(p->items, value, s, e)
                                     : read_ids(p->items, value, s, least, e);
    }
    if (!json_is_array(value) || !first)
        return q_fail(e, Q_INVALID,
                      "prompt: expected a string, an array of strings, of token ids, or of arrays "
                      "of token ids; got %s",
                      json_is_array(value) ? "an empty array" : json_kind(value));
    rc = make(p, json_array_size(value), e);
    for (size_t i = 0; rc == Q_OK && i < p->n; i++) {
        const json_t *v = json_array_get(value, i);
        if (json_is_string(v))
            rc = read_text(&p->items[i], v, s, e);
        else if (json_is_array(v))
            rc = read_ids(&p->items[i], v, s, least, e);
        else
            rc = q_fail(e, Q_INVALID,
                        "prompt: entry %zu: expected a string or an array of token ids, got %s", i,
                        json_kind(v));
    }
    return rc;
}

struct item_rules prompts_item_rules(const struct options *o, bool is_batch)
{
    const char *dir = o->allowed_local_media_path;
    return (struct item_rules){.files = *dir || is_batch, .dir = *dir ? dir : NULL};
}

struct turn_ask prompts_ask(const struct served_model *s, const struct params *params,
                            const struct sample_params *sampling)
{
    return (struct turn_ask){
        .messages = params->messages,
        .tools = params->tools,
        .tool_choice = params->tool_choice,
        .documents = params->documents,
        .chat_template_kwargs = params->chat_template_kwargs,
        .reasoning_effort = params->reasoning_effort,
        .chat_template = params->chat_template,
        .add_generation_prompt = params->add_generation_prompt,
        .continue_final_message = params->continue_final_message,
        .parallel_tool_calls = params->parallel_tool_calls,
        .auto_tool_choice = s->options->enable_auto_tool_choice,
        .trust_template = s->options->trust_request_chat_template,
        .enable_thinking = params->enable_thinking,
        .thinking = params->thinking,
        .form = {sampling->grammar, sampling->grammar_data, sampling->n_grammar},
    };
}

FALLIBLE prompts_render(struct prompts *p, struct turn *t, struct q_err *e)
{
    enum q_code rc = make(p, 1, e);
    if (rc != Q_OK || (rc = turn_render(t, &p->items->rendered, &p->items->content, e)) != Q_OK)
        return rc;
    p->items->text = buf_str(&p->items->rendered);
    p->items->n_text = p->items->rendered.len;
    p->items->inserts = t->parts.places;
    p->items->n_insert = t->parts.list.n;
    return Q_OK;
}

FALLIBLE prompt_expand(struct prompt *p, const uint32_t *positions, const uint32_t *n_token,
                       size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t next = 0;
    if (p->expanded.n || !n)
        return Q_OK;
    for (size_t i = 0; i < p->ids.n && !rc; i++) {
        const bool is_there = next < n && positions[next] == i;
        for (uint32_t k = is_there ? n_token[next] : 1; k && !rc; k--)
            rc = token_list_add(&p->expanded, p->ids.ids[i], e);
        next += is_there;
    }
    if (rc || next < n)
        token_list_release(&p->expanded);
    return rc;
}

FALLIBLE prompt_encode(struct prompt *p, const struct served_model *s, bool add_special,
                       struct q_err *e)
{
    const struct tokenizer_text text = {
        .data = p->text,
        .n = p->n_text,
        .content = &p->content,
        .inserts = p->inserts,
        .n_insert = p->n_insert,
    };
    return tokenizer_encode_prompt(s->tokenizer, &text, add_special, &p->ids, e);
}

FALLIBLE prompts_check_bytes(const struct prompts *p, const struct served_model *s,
                             uint32_t max_model_len, const char *what, struct q_err *e)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct prompt *it = &p->items[i];
        if (it->text && !served_model_may_fit(s, it->n_text, max_model_len))
            return q_fail(e, Q_INVALID,
                          "This model's maximum context length is %u tokens. However, you "
                          "requested at least %zu tokens (%zu bytes in the %s). Please reduce the "
                          "length of the %s.",
                          max_model_len, it->n_text / s->token_bytes_max, it->n_text, what, what);
    }
    return Q_OK;
}

FALLIBLE prompts_encode(struct prompts *p, const struct served_model *s, bool add_special,
                        struct q_err *e)
{
    for (size_t i = 0; i < p->n; i++) {
        struct prompt *it = &p->items[i];
        if (!it->text)
            continue;
        enum q_code rc = prompt_encode(it, s, add_special, e);
        if (rc != Q_OK)
            return q_wrap(e, "prompt");
        if (it->ids.n == 0)
            return q_fail(e, Q_INVALID, "prompt: the text has no tokens");
    }
    return Q_OK;
}

void prompts_truncate(struct prompts *p, size_t n, bool left)
{
    for (size_t i = 0; i < p->n; i++) {
        struct prompt *it = &p->items[i];
        if (it->ids.n <= n)
            continue;
        if (left)
            memmove(it->ids.ids, it->ids.ids + (it->ids.n - n), n * sizeof *it->ids.ids);
        it->ids.n = n;
        it->text = NULL;
    }
}
