/* SPDX-License-Identifier: Apache-2.0 */
/* quire.h - run a language model inside your program: the public library (pkg-config quire).
 *
 * The mental model: an ENGINE is one loaded model, with a scheduler that batches and a worker that
 * computes; it has threads of its own. A REQUEST is one prompt on its way through it. You submit
 * any number of them at once; each gives a stream of EVENTS: tokens, and in the end one FINISH.
 *
 *     struct quire_options o;   quire_options_init(&o, sizeof o);   o.model = "path/to/model";
 *     struct quire_engine *engine;   quire_engine_open(&engine, &o, &error);
 *     struct quire_params p;   quire_params_init(&p, sizeof p);   p.text = "Once upon";
 *     struct quire_request *r;   quire_submit(&r, engine, &p, &error);
 *     for (event.kind = QUIRE_TOKEN; event.kind != QUIRE_FINISH;)
 *         if (!quire_next(r, &event, -1, &error))
 *             fwrite(event.text, 1, event.n_text, stdout);
 *     quire_request_free(r);   quire_engine_close(engine);
 *
 * The same request gives the same tokens, bit for bit, whatever else the engine computes beside it.
 * Errors: functions return QUIRE_OK (0), or a code and fill `error` (may be NULL); outputs are then
 * untouched. The library never prints, exits or aborts for what its caller gives it.
 * Threads: any number may use an engine at once; a request belongs to one at a time.
 * Ownership: what has _free or _close is released with it, requests before their engine; pointers
 * in an event live until the next quire_next or quire_request_free.
 * Versions: `size`, set by the init functions, lets structs grow: fields are added at the end. */
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
    char message[248]; /* what, which, how much; no newline */
};

/* Engine */
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
    uint32_t max_model_len; /* tokens of prompt and output; 0 = the model's */
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
    const char *kv_cache_dtype;    /* "auto", "bfloat16", "float32", "int8" */
    double gpu_memory_utilization; /* part of the memory; 0 = half, at most what the load fills */
};
QUIRE_API void quire_options_init(struct quire_options *o, size_t size);

struct quire_engine;
/* Load and start; returns when the engine is ready or has failed. */
QUIRE_API enum quire_code quire_engine_open(struct quire_engine **out,
                                            const struct quire_options *o,
                                            struct quire_error *error);
QUIRE_API void quire_engine_close(struct quire_engine *engine); /* NULL is fine */

struct quire_info {
    size_t size; /* set by the caller: sizeof(struct quire_info) */
    uint32_t vocab_size, max_model_len, max_num_seqs, num_blocks;
    uint64_t n_param, weight_bytes;
    char fingerprint[32]; /* same value, same tokens */
};
struct quire_stats {
    size_t size; /* set by the caller */
    uint64_t steps, prompt_tokens, generation_tokens, preemptions, aborted, finished,
        worker_restarts;
    uint32_t running, waiting, blocks_used, blocks_total;
};
QUIRE_API void quire_engine_info(const struct quire_engine *engine, struct quire_info *info);
QUIRE_API void quire_engine_stats(struct quire_engine *engine, struct quire_stats *stats);

/* Request */

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
    int32_t logprobs;         /* alternatives per token, 0 … 20; negative: none at all */
    int32_t prompt_logprobs;  /* the same for prompt tokens: QUIRE_PROMPT events */
    const char *const *stops; /* [n_stop] strings that end the text */
    size_t n_stop;
    const uint32_t *stop_ids; /* [n_stop_id] tokens that end it */
    size_t n_stop_id;
    const uint32_t *bias_ids; /* [n_bias] */
    const float *bias;        /* [n_bias], -100 … 100 */
    size_t n_bias;
    void (*notify)(void *ctx); /* may be NULL; called on an engine thread when events came */
    void *notify_ctx;
};
QUIRE_API void quire_params_init(struct quire_params *p, size_t size);

struct quire_request;
/* All of `p` is copied. Errors: QUIRE_INVALID, QUIRE_BUSY, QUIRE_UNAVAILABLE, QUIRE_NO_MEMORY. */
QUIRE_API enum quire_code quire_submit(struct quire_request **out, struct quire_engine *engine,
                                       const struct quire_params *p, struct quire_error *error);

enum quire_event_kind { QUIRE_PROMPT, QUIRE_TOKEN, QUIRE_FINISH };
enum quire_finish {
    QUIRE_FINISH_NONE,
    QUIRE_FINISH_STOP, /* an end-of-text token, a stop id or a stop string */
    QUIRE_FINISH_LENGTH,
    QUIRE_FINISH_ABORT,
    QUIRE_FINISH_ERROR
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
 * given again and again. Errors: QUIRE_TIMEOUT; any other ends the request (event is FINISH). */
QUIRE_API enum quire_code quire_next(struct quire_request *r, struct quire_event *event,
                                     int timeout_ms, struct quire_error *error);
QUIRE_API uint32_t quire_request_n_prompt(const struct quire_request *r); /* tokens of the prompt */
/* Ends it if it has not finished. NULL is fine. */
QUIRE_API void quire_request_free(struct quire_request *r);

/* Text. Release out->ids, out->bytes (NUL at [n]) with quire_free. Errors: QUIRE_INVALID (not
 * UTF-8), QUIRE_UNSUPPORTED (skip_tokenizer), QUIRE_NO_MEMORY. */
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

#ifdef __cplusplus
}
#endif
#endif
