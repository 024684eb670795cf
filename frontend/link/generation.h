/* SPDX-License-Identifier: Apache-2.0 */
/* generation - a prompt that is submitted to an engine, with its output tokens so far, and what its
 * owner hears. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_LINK_GENERATION_H
#define QUIRE_FRONTEND_LINK_GENERATION_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/items.h"
#include "proto/sampling.h"

struct link;

struct logprob_rows {  /* rows of n entries: the sampled or prompt token first, then alternatives */
    uint32_t n_row, n; /* n = 0: none */
    const uint32_t *ids;   /* [n_row, n] */
    const float *logprobs; /* [n_row, n] */
    const uint32_t *ranks; /* [n_row] of the first entry, 1 = most likely */
};

struct link_tokens {     /* output for a generation; borrowed during the call */
    const uint32_t *ids; /* [n] new tokens */
    uint32_t n;
    struct logprob_rows logprobs; /* n_row = n, or none */
    struct logprob_rows prompt;   /* the next prompt positions, or none */
    const float *values;          /* [n_value] the vector of a generation that pools, or none */
    uint32_t n_value;
    enum finish_reason finish; /* not FINISH_NONE: this is the last call */
    uint32_t stop_id;          /* the stop token's id + 1 when finish is by a stop_token_id */
    uint32_t n_cached;         /* prompt tokens found in the prefix cache */
    uint64_t queue_us;         /* waiting time in the engine; with the first token only */
};

struct generation;
struct generation_list;
struct generation_calls { /* after on_error, or on_tokens with a finish, the generation is closed;
                          link_close is still required */
    void (*on_tokens)(struct generation *f, const struct link_tokens *t);
    void (*on_error)(struct generation *f, enum q_code code, const char *message,
                     uint32_t retry_after_ms);
    /* The prompt's ids at positions[i] became n_token[i] of them, [n]; before any on_tokens, and
     * again after a resubmission. NULL: not of interest. */
    void (*on_expanded)(struct generation *f, const uint32_t *positions, const uint32_t *n_token,
                        size_t n);
    /* It is about to be submitted, perhaps again and to another engine. NULL: not of interest. */
    void (*on_submit)(struct generation *f);
};

/* Of the generations of one request; zeroed before the first link_open, then the link's. The engine
 * refuses a request by refusing its first generation; the others wait until there is room. */
struct link_request {
    struct link *link;     /* of the engine that has them all; NULL: it is not chosen */
    uint32_t n;            /* its generations, if set by the owner before; 0 = unknown */
    bool accepted;         /* one of its generations was */
    uint32_t n_submitted;  /* its generations at the engine */
    uint32_t window;       /* so many of them at most; 0 = any number */
    int64_t not_before_ms; /* the others are submitted; 0 = at any time */
};

struct generation { /* embedded by its owner, zeroed, then these set before link_open */
    const struct generation_calls *calls;
    const uint32_t *prompt; /* [n_prompt] borrowed until the generation is closed */
    size_t n_prompt;
    /* [n_begun] existing output tokens, read by link_open only: they count as output and are not
     * passed to on_tokens. */
    const uint32_t *begun;
    size_t n_begun;
    const struct item_wire *items; /* inputs that are no tokens, borrowed likewise; NULL: none */
    /* [n_item_position] of their placeholders in prompt, one each, borrowed likewise; NULL: the
     * engine finds them by their ids. */
    const uint32_t *item_positions;
    size_t n_item_position;
    bool fits_max_tokens;        /* params.max_tokens is what fits: less where items expand */
    bool counts_only;            /* on_expanded is of interest; of a generation with items */
    struct sample_params params; /* its arrays borrowed likewise */
    int32_t priority;            /* lower = earlier; 0 = default */
    uint64_t tenant;             /* for fair scheduling; 0 = none */
    uint32_t weight;             /* of the tenant; 0 = 1 */
    int64_t arrived_ms;          /* clock_ms of the request's arrival; 0 = unknown */
    const char *adapter;         /* name of its LoRA adapter, borrowed likewise; NULL = none */
    unsigned char cache_salt[32];
    uint32_t n_cache_salt;        /* bytes: 32, or 0 = the shared prefixes */
    bool no_prefix_cache;         /* neither use nor fill the prefix cache */
    struct link_request *request; /* borrowed likewise; NULL: it is the only one */
    uint32_t n_shared;            /* leading public prompt tokens, independent of the salt */
    /* Of the kept stream that it belongs to, borrowed likewise; NULL = none. */
    const uint8_t *stream_id; /* [STREAM_ID_BYTES] */
    uint32_t n_resume, choice;
    /* the link's own: */
    struct link *link;                 /* of the last link_open or link_move; NULL: none yet */
    struct token_list emitted;         /* tokens given to on_tokens */
    char item_memory[ITEM_MEMORY_MAX]; /* of the submit; "" = none */
    uint64_t n_item_written;           /* bytes of them in it, or sent in pieces */
    uint64_t n_item_received;          /* of those sent in pieces, by the engine */
    bool items_inline;                 /* there is no shared memory for them */
    uint64_t wire_id;                  /* 0 = not submitted */
    uint32_t n_prompt_row;             /* prompt logprobs rows passed to on_tokens */
    uint32_t n_prompt_skip;            /* such rows to skip after a resubmission */
    int64_t since_ms;                  /* start of waiting for an engine */
    int64_t not_before_ms;             /* time of the next try after a full engine */
    bool taken;                        /* it was accepted by an engine that was lost */
    bool has_turn;                     /* it is alone with the engine: link_suspect.c */
    bool was_lost;                     /* with the engine that was lost last */
    bool is_moved;                     /* away from an engine that was lost with it */
    uint64_t refused_by;               /* a bit for each engine that had no room: engines.c */
    uint32_t n_prefill;                /* prompt tokens that its engine has to compute, estimated */
    uint32_t n_lost;                   /* engines that crashed with it */
    uint32_t n_since_lost;             /* tokens since the last such crash */
    int64_t trial_ms;                  /* of the first output of its trial; 0 = none yet */
    struct generation *next, *prev;    /* in the link's waiting or running list */
    struct generation_list *list;      /* which; NULL = closed */
};

#endif
