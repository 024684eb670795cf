/* SPDX-License-Identifier: Apache-2.0 */
/* quire_request.h - the second part of the public library: requests and their events. Included by
 * quire.h, which has the mental model and the rules on threads, errors and ownership.
 *
 * A conversation has the JSON format of /v1/chat/completions and is read by the same code: the chat
 * template makes the prompt, and the answer is split into content, reasoning and tool calls. In
 * this example the model must call a function:
 *
 *     struct quire_error error = {QUIRE_OK, ""};   struct quire_engine *engine = NULL;
 *     struct quire_options o;   quire_options_init(&o, sizeof o);   o.model = "path/to/model";
 *     struct quire_request *r = NULL;
 *     struct quire_params p;   quire_params_init(&p, sizeof p);
 *     p.messages_json = "[{\"role\": \"user\", \"content\": \"How warm is it in Lisbon?\"}]";
 *     p.tools_json = "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\","
 *                    " \"parameters\": {\"type\": \"object\", \"properties\":"
 *                    " {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}]";
 *     p.tool_choice_json = "required";
 *     struct quire_event event = {.kind = QUIRE_TOKEN};
 *     if (!quire_engine_open(&engine, &o, &error) && !quire_submit(&r, engine, &p, &error))
 *         while (event.kind != QUIRE_FINISH && !quire_next(r, &event, -1, &error))
 *             if (event.kind == QUIRE_TOOL_CALL) // {"id": …, "function": {"name": "get_weather", …
 *                 printf("%.*s\n", (int)event.n_text, event.text);
 *     if (error.code)
 *         fprintf(stderr, "%s\n", error.message);
 *     if (r)
 *         puts(quire_request_message(r)); // goes back in messages_json, with the call's result
 *     quire_request_free(r);
 *     quire_engine_close(engine); */
#ifndef QUIRE_REQUEST_H
#define QUIRE_REQUEST_H
#include "quire.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Structured output: the kind of `grammar`. */
enum quire_grammar {
    QUIRE_GRAMMAR_NONE,
    QUIRE_GRAMMAR_JSON_SCHEMA,     /* a JSON Schema; "{}" for any JSON value */
    QUIRE_GRAMMAR_REGEX,           /* the whole text matches */
    QUIRE_GRAMMAR_CHOICE,          /* a JSON array of strings */
    QUIRE_GRAMMAR_EBNF,            /* GBNF or Lark, detected from the text */
    QUIRE_GRAMMAR_STRUCTURAL_TAG,  /* a structural tag, JSON */
    QUIRE_GRAMMAR_COMPACT = 0x100, /* flag: no white space between JSON tokens */
    /* Flag for JSON_SCHEMA: a JSON string with the white-space pattern precedes the schema. */
    QUIRE_GRAMMAR_SPACED = 0x200
};

struct quire_params { /* negative numbers: the model's default, else OpenAI's */
    size_t size;
    const char *text;    /* prompt as UTF-8 … */
    size_t n_text;       /* SIZE_MAX = NUL-terminated */
    const uint32_t *ids; /* … or as [n_ids] token ids, if text is NULL */
    size_t n_ids;
    bool add_special; /* text: add special tokens such as bos (default) */
    float temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;                             /* 0 = off */
    float presence_penalty, frequency_penalty; /* 0 = off */
    int64_t seed;                              /* negative: drawn */
    uint32_t max_tokens;                       /* 0 = as many as fit */
    uint32_t min_tokens;
    bool ignore_eos;
    bool skip_special;        /* leave special tokens out of the text (default) */
    bool include_stop;        /* include the stop string in the text */
    int32_t logprobs;         /* alternatives per token; negative: no logprobs */
    int32_t prompt_logprobs;  /* the same for prompt tokens: QUIRE_PROMPT events */
    const char *const *stops; /* [n_stop] strings that end the text */
    size_t n_stop;
    const uint32_t *stop_ids; /* [n_stop_id] tokens that end it */
    size_t n_stop_id;
    const uint32_t *bias_ids; /* [n_bias], none twice */
    const float *bias;        /* [n_bias], -100 … 100 */
    size_t n_bias;
    void (*notify)(void *ctx); /* called on an engine thread after each event; may be NULL */
    void *notify_ctx;
    const uint32_t *allowed_ids; /* [n_allowed] allowed tokens; none = all */
    size_t n_allowed;
    int32_t priority;       /* lower is earlier; with scheduling_policy "priority" */
    const char *cache_salt; /* the prefix cache is shared within a salt; NULL = "" */
    bool no_prefix_cache;   /* neither use nor fill the prefix cache */
    uint32_t grammar_kind;  /* enum quire_grammar: the output follows the grammar */
    const char *grammar;    /* NUL-terminated UTF-8; an invalid grammar ends the request */
    /* The grammar applies after the first occurrence of this text in the output (the end of
     * reasoning, "</think>"); NULL: from the first token. */
    const char *grammar_after;
    /* A conversation instead of text and ids: one user message, optionally after a system message,
     * or all messages as JSON. Errors start with the field's name in the API: "messages: …". */
    const char *user;          /* UTF-8; no JSON */
    const char *system;        /* the same, NULL = none; with user only */
    const char *messages_json; /* array; user is NULL then */
    const char *tools_json;    /* array of available functions; NULL = none */
    /* NULL or "auto": the model decides; "none", "required", or a JSON object with a function's
     * name. */
    const char *tool_choice_json;
    const char *chat_template_kwargs_json; /* object: variables for the template */
    const char *documents_json;            /* array */
    const char *reasoning_effort;
    bool parallel_tool_calls;    /* several calls are allowed (default) */
    bool continue_final_message; /* the answer continues the last message */
};
/* Everything to its default. size: sizeof *p. Threads: one. */
QUIRE_API void quire_params_init(struct quire_params *p, size_t size);

struct quire_request;
/* All of `p` is copied; for several answers to a prompt, submit several requests with different
 * seeds.
 * Errors: QUIRE_INVALID, QUIRE_BUSY, QUIRE_UNAVAILABLE, QUIRE_NO_MEMORY.
 * Threads: any. */
QUIRE_API enum quire_code quire_submit(struct quire_request **out, struct quire_engine *engine,
                                       const struct quire_params *p, struct quire_error *error);

enum quire_event_kind {
    QUIRE_PROMPT,
    QUIRE_TOKEN, /* in a conversation its text is content; the next two kinds precede it */
    QUIRE_FINISH,
    QUIRE_REASONING, /* conversations: reasoning text */
    QUIRE_TOOL_CALL  /* conversations: text is one complete call as JSON */
};
enum quire_finish {
    QUIRE_FINISH_NONE,
    QUIRE_FINISH_STOP, /* an end-of-text token, a stop id or a stop string */
    QUIRE_FINISH_LENGTH,
    QUIRE_FINISH_ABORT,
    QUIRE_FINISH_ERROR,
    QUIRE_FINISH_TOOL_CALLS /* conversations: stopped after tool calls */
};

struct quire_alternative {
    uint32_t token;
    float logprob;
};
struct quire_event {
    enum quire_event_kind kind;
    uint32_t token;    /* PROMPT, TOKEN */
    uint32_t position; /* of that token, prompt and output counted from 0 */
    const char *text;  /* [n_text] final text; complete UTF-8 characters, no NUL */
    size_t n_text;
    float logprob;                       /* PROMPT, and TOKEN if requested */
    uint32_t rank;                       /* 1 = most likely; 0 = no logprobs */
    const struct quire_alternative *top; /* [n_top] most likely first */
    uint32_t n_top;
    enum quire_finish finish; /* FINISH */
    int32_t i_stop;           /* FINISH: index of the matched stop string, or -1 */
    int64_t stop_id;          /* FINISH: the stop token of stop_ids, or -1 */
};
/* The next event, waiting at most timeout_ms (0: not at all, negative: without limit); after the
 * end it returns FINISH again.
 * Errors: QUIRE_TIMEOUT; any other ends the request (event is FINISH).
 * Threads: one for a request. */
QUIRE_API enum quire_code quire_next(struct quire_request *r, struct quire_event *event,
                                     int timeout_ms, struct quire_error *error);
/* The answer to a conversation so far as a message of the API, {"role", "content", "reasoning",
 * "tool_calls"}, NUL-terminated; complete after FINISH. "" for other prompts. Valid until the next
 * call for the request.
 * Threads: one for a request. */
QUIRE_API const char *quire_request_message(struct quire_request *r);
QUIRE_API uint32_t quire_request_n_prompt(const struct quire_request *r); /* tokens; any thread */
/* Aborts the request if it has not finished. NULL is accepted. Threads: one for a request. */
QUIRE_API void quire_request_free(struct quire_request *r);

#ifdef __cplusplus
}
#endif
#endif
