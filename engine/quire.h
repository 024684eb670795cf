/* SPDX-License-Identifier: Apache-2.0 */
/* quire.h - run a language model inside your program: the public library (pkg-config quire).
 *
 * The mental model: an ENGINE is one loaded model, with a scheduler that batches and a worker that
 * computes, with its own threads. A REQUEST is one prompt in the engine. Any number of requests can
 * be submitted at once; each produces a stream of EVENTS: tokens, and one FINISH at the end.
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
 * The same request gives the same tokens, bit for bit, independent of other requests in the engine.
 * Errors: functions return QUIRE_OK (0), or a code and fill `error` (may be NULL); outputs are then
 * untouched. The library never prints, exits or aborts because of its caller's arguments.
 * Threads: "any" beside a function: any thread, at any time, at once with others. "one": one thread
 * at a time for the same object. There is no global state but the log's level (the last opened).
 * Ownership: release objects with their _free or _close function, requests before their engine;
 * pointers in an event live until the next quire_next or quire_request_free.
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
    QUIRE_INVALID,     /* an argument is invalid; the message names it */
    QUIRE_UNSUPPORTED, /* not supported in this build or version */
    QUIRE_NOT_FOUND,   /* no such model or file */
    QUIRE_TIMEOUT,
    QUIRE_MISMATCH, /* parts of the model do not match */
    QUIRE_TOO_LARGE,
    QUIRE_BUSY, /* the queue is full: read events, then submit again */
    QUIRE_CANCELLED,
    QUIRE_INTERNAL, /* a bug of quire */
    QUIRE_NO_MEMORY,
    QUIRE_IO,
    QUIRE_CORRUPT,    /* a model file is malformed */
    QUIRE_UNAVAILABLE /* the engine has failed or is closing */
};
struct quire_error {
    enum quire_code code;
    char message[1024]; /* one sentence without newline */
};

/* Engine */
struct quire_settings;
struct quire_options {
    size_t size;
    const char *model;             /* folder or cached id; the one field without a default */
    const char *revision;          /* of an id; NULL = main */
    const char *load_format;       /* "auto", "safetensors", "pt", "mistral", "dummy" (random) */
    const char *dtype;             /* "auto", "float32", "bfloat16", "float16" */
    const char *generation_config; /* "auto": sampling defaults of the model; "vllm": none */
    const char *cpu_isa;           /* newest instruction set to use; "auto" */
    const char *worker_program;    /* NULL: the worker is a thread; else the path of quire-worker */
    const char *log_level;  /* lines to stderr: "debug", "info", "warning"; NULL: errors only */
    uint32_t max_model_len; /* maximum tokens of prompt and output; 0 = the model's limit,
                             * UINT32_MAX = the same, or as many as the KV cache's memory holds */
    uint32_t max_num_seqs;  /* maximum running sequences */
    uint32_t max_num_batched_tokens; /* maximum tokens per step */
    uint32_t max_num_queued_reqs;    /* maximum waiting requests; further ones get QUIRE_BUSY */
    uint32_t num_blocks;             /* KV blocks of 16 tokens; 0 = from kv_cache_bytes */
    uint64_t kv_cache_bytes;         /* 0 = from gpu_memory_utilization */
    uint32_t threads;                /* 0 = one per physical core */
    bool pin_threads;                /* pin compute threads to cores */
    bool skip_tokenizer;             /* no tokenizer: token ids only */
    void (*progress)(void *ctx, uint32_t percent); /* called while loading, on the same thread; or
                                                    * NULL */
    void *progress_ctx;
    const char *kv_cache_dtype;    /* "auto", "bfloat16", "float32", "int8", "fp8" */
    double gpu_memory_utilization; /* fraction of the memory; 0 = half, at most the maximum load */
    struct quire_settings *settings; /* of quire_options_set; NULL: none */
};
/* Set all fields to their defaults. size: sizeof *o. Threads: one. */
QUIRE_API void quire_options_init(struct quire_options *o, size_t size);
/* Set an option by its name on the command lines of `quire engine` and `quire generate` (see
 * --help; "-" or "_", with or without "--"), or by vLLM's name (`quire help vllm`; flags without
 * effect are accepted), for programs with settings as text, and for options without a field above,
 * such as chat_template. The strings are not copied; they must be valid until quire_engine_open has
 * returned. Ownership: quire_options_release, after the last open. Threads: one.
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
/* Free the memory that quire_options_set allocated; the fields remain valid. Without such options,
 * and when called twice, it has no effect. Threads: one. */
QUIRE_API void quire_options_release(struct quire_options *o);

struct quire_engine;
/* Load and start; returns when the engine is ready or has failed. Any number of engines may be
 * open.
 * Errors: QUIRE_INVALID, QUIRE_NOT_FOUND, QUIRE_CORRUPT, QUIRE_MISMATCH, QUIRE_NO_MEMORY, QUIRE_IO.
 * Threads: any; `o` is one's. */
QUIRE_API enum quire_code quire_engine_open(struct quire_engine **out,
                                            const struct quire_options *o,
                                            struct quire_error *error);
/* All requests must be freed, and no call may be in progress. NULL is accepted. Threads: one. */
QUIRE_API void quire_engine_close(struct quire_engine *engine);

struct quire_info {
    size_t size; /* set by the caller: sizeof(struct quire_info) */
    uint32_t vocab_size, max_model_len, max_num_seqs, num_blocks;
    uint64_t n_param, weight_bytes;
    char fingerprint[32]; /* equal values give equal tokens */
    char dtype[8];        /* type of the computation: "F32", "BF16", "F16" */
    /* Multiplications and additions per token in the layers' matrices, per row of logits, per token
     * and context token; bytes of weights read per step, bytes of KV per token. */
    uint64_t row_ops, logit_ops, context_ops, step_bytes, kv_token_bytes;
    char quantization
        [8]; /* of the weights, also of a quantized checkpoint: "int8", "int4", "fp8"; "" for none */
    bool has_chat_template; /* conversations are supported */
    /* Error of an unusable template; NULL if usable or missing. Valid as long as the engine. */
    const char *chat_template_error;
    uint32_t n_modality; /* kinds of inputs that the model takes; 0: tokens only */
    uint32_t n_vector;   /* values of the vector that the model makes of a text (quire_pool): of an
                          * embedding, or one for each class; 0: it generates text */
    bool classifies;     /* they are of classes */
    /* Of row_ops and context_ops what only a token takes whose logits are asked for: of a prompt
     * the last one. 0: every token takes all. */
    uint64_t asked_row_ops, asked_context_ops;
};
struct quire_stats {
    size_t size; /* set by the caller */
    uint64_t steps, prompt_tokens, generation_tokens, preemptions, aborted, finished,
        worker_restarts;
    uint32_t running, waiting, blocks_used, blocks_total;
    uint64_t prefix_queries, prefix_hits; /* prompt tokens looked up in the prefix cache, found */
    /* Preempted requests with KV in host memory, not counted in waiting; blocks there; number of
     * preemptions by swap. */
    uint32_t swapped, swap_blocks_used, swap_blocks_total;
    uint64_t swap_preemptions;
    /* Steps that directly followed another; idle compute time between them in microseconds. */
    uint64_t step_gaps, step_gap_us;
};
/* Both wait for the engine's thread. Threads: any. */
QUIRE_API void quire_engine_info(const struct quire_engine *engine, struct quire_info *info);
QUIRE_API void quire_engine_stats(struct quire_engine *engine, struct quire_stats *stats);

/* Replace the weights in place by others of the same model, e.g. in a training loop. dir: a folder
 * with safetensors (an equivalent config.json is allowed), or NULL to reload the current folder.
 * Returns when the new weights are in use. mode: QUIRE_WAIT finishes running requests with the old
 * weights first, QUIRE_ABORT ends all requests, QUIRE_KEEP continues them after their tokens. No
 * cached prefix or KV of the old weights is used afterwards, and info.fingerprint changes. On an
 * error the old weights are kept and no request ends: QUIRE_MISMATCH, QUIRE_NOT_FOUND,
 * QUIRE_CORRUPT, QUIRE_UNAVAILABLE (another reload is in progress).
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
 *     quire_engine_close(engine);
 */

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

/* An input of a model that is no token, such as an image or an action: what a plugin's modality
 * takes (engine/plugin.h). It stands where the prompt's ids have the modality's placeholder. */
enum quire_number {
    QUIRE_FLOAT32,
    QUIRE_UINT8,
    QUIRE_INT32,
    QUIRE_FLOAT64 /* becomes what the modality takes, if it can */
};
struct quire_input {
    const char *modality; /* "actions" */
    enum quire_number number;
    uint32_t n_dim, dims[8];
    const void *data; /* row-major; copied once, by quire_submit */
    size_t n_byte;
};

/* The array of an .npy file (floats and integers), or a tensor of a .safetensors file (tensor NULL:
 * its only one): number, dims, data and n_byte of `out`; integers other than uint8 and int32 become
 * FLOAT64. Release out->data with quire_free.
 * Errors: QUIRE_INVALID (what the file is, and what is read), QUIRE_TOO_LARGE, QUIRE_NO_MEMORY.
 * Threads: any. */
QUIRE_API enum quire_code quire_input_read(struct quire_input *out, const char *path,
                                           const char *tensor, struct quire_error *error);

struct quire_params { /* negative numbers: the model's default, else OpenAI's */
    size_t size;
    const char *text;    /* prompt as UTF-8 … */
    size_t n_text;       /* SIZE_MAX = NUL-terminated */
    const uint32_t *ids; /* … or as [n_ids] token ids, if text is NULL. A negative placeholder of
                          * inputs, such as -3, is (uint32_t)-3 */
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
    bool parallel_tool_calls;         /* several calls are allowed (default) */
    bool continue_final_message;      /* the answer continues the last message */
    const struct quire_input *inputs; /* [n_input] those of a modality in the order of their
                                       * placeholders; not for a conversation, which has them in
                                       * the content parts of its messages: {"type": "action",
                                       * "action": [0.1, 0.2]}, {"type": "image_url",
                                       * "image_url": {"url": "data:image/png;base64,…"}} */
    size_t n_input;
    bool input_files;    /* content parts may name files ({"path": "a.npy"}, an image's file: URL):
                       * any that this process can read, so only where the messages are the
                       * caller's own */
    const char *adapter; /* name of a LoRA adapter of the engine; NULL or "": the model itself */
    bool has_thinking_budget; /* at most thinking_token_budget tokens of reasoning; of a model whose
                               * reasoning parser is known */
    uint32_t thinking_token_budget;
};
/* Everything to its default. size: sizeof *p. Threads: one. */
QUIRE_API void quire_params_init(struct quire_params *p, size_t size);

struct quire_request;
/* All of `p` is copied; for several answers to a prompt, submit several requests with different
 * seeds.
 * Errors: QUIRE_INVALID, QUIRE_BUSY, QUIRE_UNAVAILABLE, QUIRE_NO_MEMORY. Threads: any. */
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
 * end it returns FINISH again. Errors: QUIRE_TIMEOUT; any other ends the request (event is FINISH).
 * Threads: one for a request. */
QUIRE_API enum quire_code quire_next(struct quire_request *r, struct quire_event *event,
                                     int timeout_ms, struct quire_error *error);
/* The answer to a conversation so far as a message of the API, {"role", "content", "reasoning",
 * "tool_calls"}, NUL-terminated; complete after FINISH. "" for other prompts. Valid until the next
 * call for the request. Threads: one for a request. */
QUIRE_API const char *quire_request_message(struct quire_request *r);
QUIRE_API uint32_t quire_request_n_prompt(const struct quire_request *r); /* tokens; any thread */
/* Aborts the request if it has not finished. NULL is accepted. Threads: one for a request. */
QUIRE_API void quire_request_free(struct quire_request *r);

#ifdef __cplusplus
}
#endif
#endif
