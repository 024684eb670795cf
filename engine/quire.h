/* SPDX-License-Identifier: Apache-2.0 */
/* quire.h - run a language model inside your program: the public library (pkg-config quire).
 *
 * The mental model: an ENGINE is one loaded model, with a scheduler that batches and a worker that
 * computes; it has threads of its own. A REQUEST is one prompt on its way through it. You submit
 * any number of them at once; each gives a stream of EVENTS: tokens, and in the end one FINISH.
 *
 *     struct quire_error error;   struct quire_engine *engine;   struct quire_request *r;
 *     struct quire_options o;   quire_options_init(&o, sizeof o);   o.model = "path/to/model";
 *     if (quire_engine_open(&engine, &o, &error)) {
 *         fprintf(stderr, "%s\n", error.message);
 *         return;
 *     }
 *     struct quire_params p;   quire_params_init(&p, sizeof p);
 *     p.user = "What is the capital of France?";   p.max_tokens = 32;
 *     if (!quire_submit(&r, engine, &p, &error)) {
 *         struct quire_event event = {.kind = QUIRE_TOKEN};
 *         while (event.kind != QUIRE_FINISH && !quire_next(r, &event, -1, &error))
 *             fwrite(event.text, 1, event.n_text, stdout);
 *         quire_request_free(r);
 *     }
 *     quire_engine_close(engine);
 *
 * A prompt is a conversation, which goes through the model's chat template (user, messages_json),
 * or plain text or token ids that the model continues (text, ids): see "Requests" below.
 *
 * The same request gives the same tokens, bit for bit, whatever else the engine computes beside it.
 * Errors: functions return QUIRE_OK (0), or a code and fill `error` (may be NULL); outputs are then
 * untouched. The library never prints, exits or aborts for what its caller gives it.
 * Threads: "any" beside a function: any thread, at any time, at once with others. "one": one thread
 * at a time for the same object. There is no global state but the log's level (the last opened).
 * Ownership: what has _free or _close is released with it, requests before their engine; pointers
 * in an event live until the next quire_next or quire_request_free.
 * Versions: `size`, set by the init functions, lets structs grow: fields are added at the end.
 * The examples in these comments are compiled and run by tests/unit/test_quire_examples.c. */
#ifndef QUIRE_H
#define QUIRE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_API __attribute__((visibility("default")))

enum quire_code {
    QUIRE_OK,
    QUIRE_INVALID,     /* an argument breaks a rule; the message names it */
    QUIRE_UNSUPPORTED, /* understood, but not in this build or version */
    QUIRE_NOT_FOUND,   /* no such model or file */
    QUIRE_TIMEOUT,
    QUIRE_MISMATCH, /* parts of the model do not fit each other */
    QUIRE_TOO_LARGE,
    QUIRE_BUSY, /* the queue is full: take events, then submit again */
    QUIRE_CANCELLED,
    QUIRE_INTERNAL, /* a bug of quire */
    QUIRE_NO_MEMORY,
    QUIRE_IO,
    QUIRE_CORRUPT,    /* a model file is malformed */
    QUIRE_UNAVAILABLE /* the engine has failed or is closing */
};
struct quire_error {
    enum quire_code code;
    char message[1024]; /* what, which, how much; no newline */
};

/* Engine */
struct quire_settings;
struct quire_options {
    size_t size;
    const char *model;             /* folder or cached id; the one field without a default */
    const char *revision;          /* of an id; NULL = main */
    const char *load_format;       /* "auto", "safetensors", "dummy" (random weights) */
    const char *dtype;             /* "auto", "float32", "bfloat16", "float16" */
    const char *generation_config; /* "auto": sampling defaults of the model; "vllm": none */
    const char *cpu_isa;           /* newest instruction set to use; "auto" */
    const char *worker_program;    /* NULL: the worker is a thread; else quire-worker's path */
    const char *log_level;  /* lines to stderr: "debug", "info", "warning"; NULL: errors only */
    uint32_t max_model_len; /* tokens of prompt and output; 0 = the model's, UINT32_MAX = the
                             * same, or as many as the KV cache's memory holds */
    uint32_t max_num_seqs;  /* sequences computed at once */
    uint32_t max_num_batched_tokens; /* tokens of one step */
    uint32_t max_num_queued_reqs;    /* requests waiting; one more is QUIRE_BUSY */
    uint32_t num_blocks;             /* KV blocks of 16 tokens; 0 = from kv_cache_bytes */
    uint64_t kv_cache_bytes;         /* 0 = what gpu_memory_utilization leaves */
    uint32_t threads;                /* 0 = one per physical core */
    bool pin_threads;                /* compute threads to cores */
    bool skip_tokenizer;             /* token ids in and out only */
    void (*progress)(void *ctx, uint32_t percent); /* while loading, same thread; or NULL */
    void *progress_ctx;
    const char *kv_cache_dtype;      /* "auto", "bfloat16", "float32", "int8", "fp8" */
    double gpu_memory_utilization;   /* part of the memory; 0 = half, at most what the load fills */
    struct quire_settings *settings; /* of quire_options_set; NULL: none */
};
/* Everything to its default. size: sizeof *o. Threads: one. */
QUIRE_API void quire_options_init(struct quire_options *o, size_t size);
/* Set an option of the engine by the name it has on the command lines of `quire engine` and `quire
 * generate` (--help lists them; "-" or "_", with or without "--"), or by vLLM's (`quire help vllm`;
 * what has no effect here is taken), for programs that have settings as text, and for the options
 * that are no field above, such as chat_template. The strings are kept, not copied, until
 * quire_engine_open has returned. Ownership: quire_options_release, after the last open. Threads:
 * one.
 *
 *     struct quire_error error;
 *     struct quire_options o;   quire_options_init(&o, sizeof o);
 *     if (quire_options_set(&o, "max_num_seqs", "64", &error) ||
 *         quire_options_set(&o, "--kv-cache-memory-bytes", "512M", &error) ||
 *         quire_options_set(&o, "scheduling-policy", "priority", &error))
 *         fprintf(stderr, "%s\n", error.message);
 *     quire_options_release(&o);
 *
 * Errors: QUIRE_INVALID (not in its range), QUIRE_NOT_FOUND (no such option), QUIRE_UNSUPPORTED
 * (vLLM's, refused here; why), QUIRE_TOO_LARGE (too many that are no fields), QUIRE_NO_MEMORY. */
QUIRE_API enum quire_code quire_options_set(struct quire_options *o, const char *name,
                                            const char *value, struct quire_error *error);
/* What quire_options_set keeps; the fields stay. Options that were never set by name hold nothing,
 * and so does a second call. Threads: one. */
QUIRE_API void quire_options_release(struct quire_options *o);

struct quire_engine;
/* Load and start; returns when the engine is ready or has failed. Any number may be open at once.
 * Errors: QUIRE_INVALID, QUIRE_NOT_FOUND, QUIRE_CORRUPT, QUIRE_MISMATCH, QUIRE_NO_MEMORY, QUIRE_IO.
 * Threads: any; `o` is one's. */
QUIRE_API enum quire_code quire_engine_open(struct quire_engine **out,
                                            const struct quire_options *o,
                                            struct quire_error *error);
/* Requests must have been freed, and no other call be under way. NULL is fine. Threads: one. */
QUIRE_API void quire_engine_close(struct quire_engine *engine);

struct quire_info {
    size_t size; /* set by the caller: sizeof(struct quire_info) */
    uint32_t vocab_size, max_model_len, max_num_seqs, num_blocks;
    uint64_t n_param, weight_bytes;
    char fingerprint[32]; /* same value, same tokens */
    char dtype[8];        /* it computes in: "F32", "BF16", "F16" */
    /* Multiplications and additions of a token in the layers' matrices, of a row of logits, of a
     * token with one of its context; bytes of matrices every step reads, of KV a token. */
    uint64_t row_ops, logit_ops, context_ops, step_bytes, kv_token_bytes;
    char quantization
        [8]; /* of its matrices, whoever quantized them: "int8", "int4", "fp8"; "" for none */
    bool has_chat_template; /* it takes conversations */
    /* Why its template cannot be used; NULL when it can be, and for a model that has none. The text
     * lives as long as the engine. */
    const char *chat_template_error;
};
struct quire_stats {
    size_t size; /* set by the caller */
    uint64_t steps, prompt_tokens, generation_tokens, preemptions, aborted, finished,
        worker_restarts;
    uint32_t running, waiting, blocks_used, blocks_total;
    uint64_t prefix_queries, prefix_hits; /* prompt tokens looked up in the prefix cache, found */
    /* Preempted requests whose KV is in host memory, not counted in waiting; blocks there; how many
     * of the preemptions copied KV out. */
    uint32_t swapped, swap_blocks_used, swap_blocks_total;
    uint64_t swap_preemptions;
    /* Steps that followed another without a rest; microseconds that nothing was computed between
     * them, which is the time of the engine that computing did not hide. */
    uint64_t step_gaps, step_gap_us;
};
/* Both ask the engine's thread. Threads: any. */
QUIRE_API void quire_engine_info(const struct quire_engine *engine, struct quire_info *info);
QUIRE_API void quire_engine_stats(struct quire_engine *engine, struct quire_stats *stats);

/* Other weights of the same model, in place: for programs that train in a loop. dir: a folder with
 * safetensors (a config.json beside them must mean the same), or NULL for the one in use, as it is
 * now. Returns when they serve. mode: what becomes of requests: QUIRE_WAIT lets those that have
 * begun finish with the old weights first, QUIRE_ABORT ends all, QUIRE_KEEP has them go on after
 * the tokens they have. No cached prefix or key of the old weights is used afterwards, and
 * info.fingerprint is another. Errors: the old weights serve on, and nothing has ended:
 * QUIRE_MISMATCH, QUIRE_NOT_FOUND, QUIRE_CORRUPT, QUIRE_UNAVAILABLE (a reload is under way).
 * Threads: any. */
enum quire_in_flight { QUIRE_KEEP, QUIRE_ABORT, QUIRE_WAIT };
QUIRE_API enum quire_code quire_engine_reload(struct quire_engine *engine, const char *dir,
                                              enum quire_in_flight mode, struct quire_error *error);

/* Text. Release out->ids, out->bytes (NUL at [n]) with quire_free. Errors: QUIRE_INVALID (not
 * UTF-8), QUIRE_UNSUPPORTED (skip_tokenizer), QUIRE_NO_MEMORY. Threads: any. */
struct quire_tokens {
    const uint32_t *ids; /* [n] */
    size_t n;
};
struct quire_text {
    const char *bytes; /* [n] UTF-8 */
    size_t n;
};
QUIRE_API enum quire_code quire_tokenize(const struct quire_engine *engine,
                                         struct quire_tokens *out, const struct quire_text *in,
                                         bool add_special, struct quire_error *error);
QUIRE_API enum quire_code quire_detokenize(const struct quire_engine *engine,
                                           struct quire_text *out, const struct quire_tokens *in,
                                           bool skip_special, struct quire_error *error);
QUIRE_API void quire_free(const void *memory);
QUIRE_API const char *quire_version(void); /* "0.1.0" */

/* Requests.
 *
 * A conversation is given as the JSON that /v1/chat/completions takes, and read by the same code:
 * the chat template makes the prompt of it, and the answer is taken apart into content, reasoning
 * and tool calls. Here a model is made to call a function:
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
 *     quire_engine_close(engine);
 */

/* Structured output: what `grammar` is. */
enum quire_grammar {
    QUIRE_GRAMMAR_NONE,
    QUIRE_GRAMMAR_JSON_SCHEMA,     /* a JSON Schema; "{}" for any JSON value */
    QUIRE_GRAMMAR_REGEX,           /* the whole text matches */
    QUIRE_GRAMMAR_CHOICE,          /* a JSON array of strings */
    QUIRE_GRAMMAR_EBNF,            /* GBNF or Lark, whichever it is */
    QUIRE_GRAMMAR_STRUCTURAL_TAG,  /* a structural tag, JSON */
    QUIRE_GRAMMAR_COMPACT = 0x100, /* added to one: no white space between JSON's tokens */
    /* Added to JSON_SCHEMA: before it stands a JSON string, the pattern of what may come there. */
    QUIRE_GRAMMAR_SPACED = 0x200
};

struct quire_params { /* negative numbers: the model's default, else OpenAI's */
    size_t size;
    const char *text;    /* prompt as UTF-8 … */
    size_t n_text;       /* SIZE_MAX = NUL-terminated */
    const uint32_t *ids; /* … or as [n_ids] token ids, when text is NULL */
    size_t n_ids;
    bool add_special; /* text: add bos and the like (default) */
    float temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;                             /* 0 = off */
    float presence_penalty, frequency_penalty; /* 0 = off */
    int64_t seed;                              /* negative: drawn */
    uint32_t max_tokens;                       /* 0 = as many as fit */
    uint32_t min_tokens;
    bool ignore_eos;
    bool skip_special;        /* special tokens give no text (default) */
    bool include_stop;        /* a stop string is part of the text */
    int32_t logprobs;         /* alternatives per token, at most all; negative: none */
    int32_t prompt_logprobs;  /* the same for prompt tokens: QUIRE_PROMPT events */
    const char *const *stops; /* [n_stop] strings that end the text */
    size_t n_stop;
    const uint32_t *stop_ids; /* [n_stop_id] tokens that end it */
    size_t n_stop_id;
    const uint32_t *bias_ids; /* [n_bias], none twice */
    const float *bias;        /* [n_bias], -100 … 100 */
    size_t n_bias;
    void (*notify)(void *ctx); /* may be NULL; called on an engine thread after each event */
    void *notify_ctx;
    const uint32_t *allowed_ids; /* [n_allowed] no other token is sampled; none = all may be */
    size_t n_allowed;
    int32_t priority;       /* lower is earlier, with scheduling_policy "priority" */
    const char *cache_salt; /* blocks of the prefix cache are shared within a salt; NULL = "" */
    bool no_prefix_cache;   /* neither take blocks from there nor leave any */
    uint32_t grammar_kind;  /* enum quire_grammar: the output follows the grammar */
    const char *grammar;    /* NUL-terminated UTF-8; what is wrong in it ends the request */
    /* It holds behind the first of these in the output (the end of reasoning, "</think>"), before
     * which anything may come; NULL: from the first token. */
    const char *grammar_after;
    /* A conversation in place of text and ids: one message of the user, perhaps after one of the
     * system, or all as JSON. Errors begin with the field's name in the API: "messages: …". */
    const char *user;          /* UTF-8; no JSON */
    const char *system;        /* the same, NULL = none; with user only */
    const char *messages_json; /* array; user is NULL then */
    const char *tools_json;    /* array of functions the model may call; NULL = none */
    /* NULL or "auto": the model decides; "none", "required", or a JSON object that names one. */
    const char *tool_choice_json;
    const char *chat_template_kwargs_json; /* object: variables for the template */
    const char *documents_json;            /* array */
    const char *reasoning_effort;
    bool parallel_tool_calls;    /* several calls may come (default) */
    bool continue_final_message; /* the answer goes on in the last message */
};
/* Everything to its default. size: sizeof *p. Threads: one. */
QUIRE_API void quire_params_init(struct quire_params *p, size_t size);

struct quire_request;
/* All of `p` is copied; several answers to a prompt are several requests with seeds of their own.
 * Errors: QUIRE_INVALID, QUIRE_BUSY, QUIRE_UNAVAILABLE, QUIRE_NO_MEMORY. Threads: any. */
QUIRE_API enum quire_code quire_submit(struct quire_request **out, struct quire_engine *engine,
                                       const struct quire_params *p, struct quire_error *error);

enum quire_event_kind {
    QUIRE_PROMPT,
    QUIRE_TOKEN, /* of a conversation its text is content; the two below come before it */
    QUIRE_FINISH,
    QUIRE_REASONING, /* conversations: text that the model thinks */
    QUIRE_TOOL_CALL  /* conversations: text is one whole call as JSON */
};
enum quire_finish {
    QUIRE_FINISH_NONE,
    QUIRE_FINISH_STOP, /* an end-of-text token, a stop id or a stop string */
    QUIRE_FINISH_LENGTH,
    QUIRE_FINISH_ABORT,
    QUIRE_FINISH_ERROR,
    QUIRE_FINISH_TOOL_CALLS /* conversations: a stop, after tool calls */
};

struct quire_alternative {
    uint32_t token;
    float logprob;
};
struct quire_event {
    enum quire_event_kind kind;
    uint32_t token;    /* PROMPT, TOKEN */
    uint32_t position; /* of that token, prompt and output counted from 0 */
    const char *text;  /* [n_text] text that became final; ends with a whole character, no NUL */
    size_t n_text;
    float logprob;                       /* PROMPT, and TOKEN when asked for */
    uint32_t rank;                       /* 1 = most likely; 0 = no logprobs */
    const struct quire_alternative *top; /* [n_top] most likely first */
    uint32_t n_top;
    enum quire_finish finish; /* FINISH */
    int32_t i_stop;           /* FINISH: index of the stop string that was found, or -1 */
    int64_t stop_id;          /* FINISH: the stop token of stop_ids that came, or -1 */
};
/* The next event, waiting at most timeout_ms (0: not at all, negative: without limit); FINISH is
 * given again and again. Errors: QUIRE_TIMEOUT; any other ends the request (event is FINISH).
 * Threads: one for a request. */
QUIRE_API enum quire_code quire_next(struct quire_request *r, struct quire_event *event,
                                     int timeout_ms, struct quire_error *error);
/* The answer to a conversation so far as a message of the API, {"role", "content", "reasoning",
 * "tool_calls"}, NUL-terminated; whole after FINISH. "" for other prompts. It lives until the
 * next call for the request. Threads: one for a request. */
QUIRE_API const char *quire_request_message(struct quire_request *r);
QUIRE_API uint32_t quire_request_n_prompt(const struct quire_request *r); /* tokens; any thread */
/* Ends it (abort) if it has not finished. NULL is fine. Threads: one for a request. */
QUIRE_API void quire_request_free(struct quire_request *r);

#ifdef __cplusplus
}
#endif
#endif
