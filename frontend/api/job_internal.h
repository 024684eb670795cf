/* SPDX-License-Identifier: Apache-2.0 */
/* job_internal - declarations shared by the files of job: one request for tokens, with its prompts,
 * its choices and its response.
 *
 * read (params, messages) -> encode (on a thread if long) -> choices opened on the link -> tokens
 * -> text, tool calls, logprobs (choice.c) -> chunks, or one body at the end (response.c)
 *
 * There is one choice per prompt and n. A job is freed with its exchange; choices that are still
 * open are then closed on the link, which aborts them in the engine. Threads: the loop's thread;
 * reading and encoding may run on another (task.h). */
#ifndef QUIRE_FRONTEND_API_JOB_INTERNAL_H
#define QUIRE_FRONTEND_API_JOB_INTERNAL_H
#include "frontend/link/adapter_list.h"
#include "frontend/api/app.h"
#include "frontend/api/beam.h"
#include "frontend/api/dialect.h"
#include "frontend/api/kept_stream.h"
#include "frontend/api/params_sampling.h"
#include "frontend/api/prompt.h"
#include "frontend/api/reply_id.h"
#include "frontend/api/task.h"
#include "frontend/api/tenant.h"
#include "common/chat/answer.h"
#include "common/items/items.h"
#include "common/parsers/parser.h"
#include "common/tokenizer/stream.h"
#include "proto/items.h"

#define CHOICES_MAX      4096 /* of one request */
#define FINGERPRINTS_MAX 400  /* bytes; the latest changes beyond that are omitted */

struct job;

struct choice {
    struct generation generation; /* first: the link returns this pointer */
    struct job *job;
    struct prompt *prompt;
    uint32_t index;
    struct detok *detok;        /* NULL without tokenizer */
    struct stop *stop;          /* NULL without stop strings */
    struct parser *parser;      /* NULL without tools and reasoning */
    struct turn_before before;  /* the reasoning before a grammar */
    struct token_list thinking; /* the limit on it, as submit.thinking */
    /* Output not sent yet. Streams empty these with every chunk, other responses at the end. */
    struct answer answer;             /* completions: its content is the text */
    struct buf items;                 /* chat: logprob objects; completions: tokens' strings */
    struct dialect_tokens waiting;    /* dialects: those that items belong to */
    struct buf text_items;            /* dialects: of tokens that are known to be of text */
    struct buf values, tops, offsets; /* completions: token_logprobs, top_logprobs, text_offset */
    struct buf ids;                   /* token ids, comma separated */
    struct buf prompt_rows;           /* prompt_logprobs, comma separated after the first null */
    /* Counts and times. */
    uint32_t n_token;              /* given out */
    uint32_t n_told;               /* tokens already sent in chunks */
    uint32_t n_thought, n_perhaps; /* reasoning tokens, and tokens that may be */
    uint32_t n_cached;
    double logprob_sum; /* with best_of */
    size_t n_char;      /* length of the tokens' strings so far, for text_offset */
    int64_t first_us, last_us, queue_us;
    bool begun;         /* its first chunk is sent */
    bool finished;      /* finish is set, the generation is closed */
    bool closed;        /* its last chunk is sent */
    const char *finish; /* "stop", "length", "tool_calls", "abort" */
    int i_stop;         /* stop string that ended it, -1 = none */
    uint32_t stop_id;   /* stop token id + 1 that ended it, 0 = none */
};

struct job {
    struct task task; /* first */
    struct app *app;
    bool chat;                     /* else completions */
    const struct dialect *dialect; /* of a chat; NULL: a chat completion's */
    json_t *asked;                 /* the dialect's body */
    json_t *entries;               /* of its messages (dialect.h) */
    struct dialect_answer made;    /* with a dialect: the answer so far */
    bool ended;                    /* answered, or failed */
    bool too_long;                 /* refused for its length */
    bool no_output;                /* completions with echo and max_tokens 0: the prompt only */
    json_t *body;
    struct params params;
    struct sample_params sampling;
    struct params_ids *arrays;
    const char *stops[PARAMS_STOPS_MAX];
    uint32_t n_stop;
    struct turn turn; /* chat: messages, tools */
    struct prompts prompts;
    struct item_wire *items; /* [n_items] of multi_modal_data: of each prompt, or 1 for all */
    size_t n_items;
    uint32_t *positions;          /* [turn.parts.list.n] of their placeholders, of content parts */
    struct item_types item_types; /* what the engine takes, as it was at the start of the request */
    bool takes_items;             /* or no engine is known yet */
    uint32_t max_model_len;       /* likewise */
    bool fits_max_tokens;         /* max_tokens was not asked for: it is what fits */
    struct tenant tenant;
    uint32_t weight;             /* of the API key */
    uint32_t width;              /* choices made for each prompt: n, or best_of */
    bool logprobs;               /* of tokens, in the answer */
    struct choice *choices;      /* [n_choice] */
    struct link_request request; /* of their generations */
    uint32_t n_choice, n_finished;
    struct beam_search **searches; /* [prompts.n] with use_beam_search, else NULL */
    char id[REPLY_ID_MAX];
    size_t n_id_prefix; /* of reply_id_make */
    int64_t created;    /* unix seconds */
    int64_t arrived_us;
    const char *model;        /* name from the request */
    struct buf out;           /* chunk under construction */
    struct kept_stream *kept; /* that its client can resume; NULL: it cannot */
    /* system_fingerprints of all engines and weights of its tokens, in order, joined by '+'. */
    char fingerprints[FINGERPRINTS_MAX];
    size_t last_fingerprint;      /* where the last one begins */
    struct buf adapters;          /* those of the engine when the request came */
    bool knows_adapters;          /* there was one */
    struct adapter_entry adapter; /* its LoRA adapter, borrowed from them; name NULL: none */
};

/* Start a job for this exchange from its body; it sends the response, including errors. */
void job_start(struct app *a, struct http_exchange *x, bool chat);
/* The same for a chat in another dialect. again: the handler, for a request that has to wait. */
void job_start_dialect(struct app *a, struct http_exchange *x, const struct dialect *dialect,
                       http_handler *again);
/* The choice has new output: send it in a stream; finish the job when all choices are finished. */
void job_progress(struct job *j, struct choice *c);
/* End the job with an error, as a response or as the last event of its stream. param: the request
 * field that is wrong, or NULL. retry_after_s 0: 1 where a client may retry, else no header. */
void job_fail(struct job *j, const struct q_err *e, const char *param, uint32_t retry_after_s);

#define JOB_FINGERPRINT_MAX 160u
/* The engine's current fingerprint, with that of the job's adapter. */
void job_fingerprint(const struct job *j, char out[JOB_FINGERPRINT_MAX]);
/* Record the engine's current fingerprint for received tokens. */
void job_note_fingerprint(struct job *j);
/* Assert every invariant; in builds with tests after each event. Cost: O(choices). */
void job_check(const struct job *j);

/* job_items.c */
/* After the prompts are read. Errors: those of item_list_read; params.param is set. */
FALLIBLE job_read_items(struct job *j, struct q_err *e);
/* The items of messages; after the prompt is encoded. Errors: Q_NO_MEMORY. */
FALLIBLE job_take_parts(struct job *j, struct q_err *e);
struct item_rules job_item_rules(const struct app *a);
const struct item_wire *job_items_of(const struct job *j, size_t i_prompt); /* NULL: none */
void job_release_items(struct job *j);

/* job_answer.c */
/* What the job's answer takes here, at most: max_tokens that was not asked for becomes less.
 * longest: tokens of the longest prompt. Errors: Q_INVALID; params.param is set. */
FALLIBLE job_fit_answer(struct job *j, uint32_t longest, struct q_err *e);

/* choice.c */
FALLIBLE choice_init(struct choice *c, struct job *j, uint32_t index, struct q_err *e);
void choice_release(struct choice *c); /* closes the generation */
extern const struct generation_calls choice_calls;

/* response.c: the JSON. */
/* Append the pending output of c as events, and empty it. */
void response_chunks(struct job *j, struct choice *c, struct buf *out);
void response_usage_chunk(struct job *j, struct buf *out);
void response_body(struct job *j, struct buf *out);

/* logprobs.c: append the rows' logprobs to the choice's buffers. */
void logprobs_token(struct choice *c, const struct logprob_rows *r, uint32_t i_row, uint32_t id);
void logprobs_prompt(struct choice *c, const struct logprob_rows *r);
/* completions with echo: the prompt's first token, which has no logprob. */
void logprobs_first(struct choice *c);

#endif
