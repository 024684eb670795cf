/* SPDX-License-Identifier: Apache-2.0 */
/* link - the frontend's side of the wire to one engine.
 *
 * A generation is a prompt submitted to an engine, with its output tokens. The link keeps every
 * open generation's prompt, parameters and tokens so far. If the engine is lost (connection lost,
 * timeout, or another instance answers) the link waits for a reconnect and submits each generation
 * again as prompt + tokens so far; by determinism (DESIGN section 6) the remaining tokens are the
 * same, and for the generation's owner there is only a pause. Sequence numbers make this exact:
 * duplicates are dropped, a gap causes a new submission. At most the engine's credit of
 * generations is submitted; the others wait here, in order.
 * Threads: the loop's thread only. Design: frontend/link/README.md. */
#ifndef QUIRE_FRONTEND_LINK_LINK_H
#define QUIRE_FRONTEND_LINK_LINK_H
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/tokenizer/tokenizer.h"
#include "common/item_types.h"
#include "proto/items.h"
#include "proto/proto.h"
#include "proto/sampling.h"
#include "proto/stream_log.h"

#define LINK_FLOWS_MAX   65536u            /* open at once */
#define LINK_ITEMS_PIECE ((size_t)1 << 20) /* written to shared memory at once: 0.5 ms */

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
                          link_close is * still required */
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
    uint32_t n_lost;                   /* engines that crashed with it */
    uint32_t n_since_lost;             /* tokens since the last such crash */
    int64_t trial_ms;                  /* of the first output of its trial; 0 = none yet */
    struct generation *next, *prev;    /* in the link's waiting or running list */
    struct generation_list *list;      /* which; NULL = closed */
};

struct link_config {     /* borrowed while link_new runs; strings as long as the link */
    const char *address; /* ipc:///path or tcp://host:port */
    const char *keys;    /* folder of keys, "" = none */
    bool insecure_tcp;
    unsigned char digest[32];        /* hub_digest of our model folder */
    uint32_t engine_timeout_ms;      /* maximum time a generation waits for an unavailable engine */
    bool no_replay;                  /* generations of a lost engine end with an error */
    void (*on_change)(void *ctx);    /* up or down; may be NULL */
    void (*on_heartbeat)(void *ctx); /* the metrics of the engine are set; may be NULL */
    void (*on_command_done)(void *ctx,
                            const struct msg_command_done *m); /* answers link_command; or NULL */
    void (*on_stream_resumed)(void *ctx, const struct msg_stream_resumed *m); /* likewise */
    void *ctx;
};

enum link_state {
    LINK_CONNECTING, /* not connected, or connection lost */
    LINK_UP,
    LINK_REFUSED, /* engine and frontend do not match; link_reason has the reason */
    LINK_DRAINING /* the engine accepts no new requests */
};

struct link_engine { /* from its hello; zero before the first */
    uint32_t vocab_size, max_model_len, max_num_seqs, max_num_reqs, credit;
    char fingerprint[128], model[Q_MESSAGE_MAX - 128], version[64]; /* cut when longer */
    uint32_t eos_ids[16], n_eos;
    uint64_t instance;    /* changes with a restart */
    uint32_t sleep_level; /* by its last heartbeat; 0 = awake */
    bool paused;          /* likewise: generation is paused */
    bool pausing;         /* a pause is requested; reached with `paused` */
    bool refusing;        /* the pause rejects new requests */
    uint64_t item_credit; /* bytes of items in open generations; 0 = the model takes none */
    struct item_types item_types;
    struct buf adapters; /* LoRA adapters: frontend/link/adapter_list.h */
};

/* Errors: Q_INVALID (address), Q_FORBIDDEN (tcp without keys), Q_IO. */
FALLIBLE link_new(struct link **out, uv_loop_t *loop, const struct link_config *c, struct q_err *e);
/* Close the connection; open generations are dropped without a call. */
void link_free(struct link *l);
enum link_state link_state(const struct link *l);
/* The engine is connected but has not answered for so long that it must be killed. */
bool link_hangs(const struct link *l);
const char *link_reason(const struct link *l); /* why not LINK_UP; "" when up */
/* The same in a word for programs: engine_unreachable, engine_keys, engine_loading, engine_stalled,
 * engine_mismatch, engine_draining; "" when up. */
const char *link_code(const struct link *l);
const struct link_engine *link_engine(const struct link *l);
uint32_t link_n_open(const struct link *l);

/* Open a generation. Errors: Q_UNAVAILABLE (the engine is away for longer than engine_timeout_ms;
 * link_end was called), Q_NO_SPACE (LINK_FLOWS_MAX, item credit), Q_TOO_LARGE (items beyond the
 * credit; a field or all of it beyond a frame), Q_NO_MEMORY; the generation is then not open.
 * Without an engine, one that no frame can carry ends with on_error when there is one. */
FALLIBLE link_open(struct link *l, struct generation *f, struct q_err *e);
/* Close a generation and free the link's memory for it; a closed generation is accepted. The abort
 * is sent before the loop waits again, in one message for all generations of this iteration. */
void link_close(struct link *l, struct generation *f);
/* The process stops: end all open generations with on_error (Q_UNAVAILABLE), and refuse later ones
 * with it. message: static. */
void link_end(struct link *l, const char *message);
/* Send a sleep or pause command (heartbeats report its effect), a one-time command (on_command_done
 * has the reply, unless the engine is lost), or a reset of the prefix cache. Errors: Q_UNAVAILABLE
 * (not connected). */
FALLIBLE link_control(struct link *l, const struct msg_control *m, struct q_err *e);
FALLIBLE link_command(struct link *l, const struct msg_command *m, struct q_err *e);
/* Have a stream kept by the engine; ask for one that is (on_stream_resumed has the reply, unless
 * the engine is lost). Errors: Q_UNAVAILABLE, Q_TOO_LARGE. */
FALLIBLE link_keep_stream(struct link *l, const struct msg_keep_stream *m, struct q_err *e);
FALLIBLE link_resume_stream(struct link *l, const struct msg_resume_stream *m, struct q_err *e);
/* Request a heartbeat now. False: not connected. */
bool link_ask(struct link *l);
FALLIBLE link_reset_prefix_cache(struct link *l, const char *reason, struct q_err *e);

#endif
