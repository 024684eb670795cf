/* SPDX-License-Identifier: Apache-2.0 */
/* link - the frontend's side of the wire to one engine.
 *
 * A flow is one generation: a prompt on its way to an engine and the tokens that come back. The
 * link keeps every open flow's prompt, parameters and tokens so far. When the engine goes away
 * (connection lost, silent for too long, or another instance answers) it waits for one to come back
 * and submits each flow again as prompt + tokens so far; by determinism (DESIGN section 6) the rest
 * is what it would have been, and the owner of the flow sees only a pause. Sequence numbers make
 * that exact: a token that came before is dropped, a gap makes the flow be submitted again. At most
 * the engine's credit of flows is with it; the others wait here, in order. Threads: the loop's
 * thread only. Design: frontend/link/README.md. */
#ifndef QUIRE_FRONTEND_LINK_LINK_H
#define QUIRE_FRONTEND_LINK_LINK_H
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/proto.h"
#include "proto/sampling.h"

#define LINK_FLOWS_MAX 65536u /* open at once */

struct link;

struct logprob_rows {    /* rows of n entries: the chosen or given token first, then alternatives */
    uint32_t n_row, n;   /* n = 0: none */
    const uint32_t *ids; /* [n_row, n] */
    const float *logprobs; /* [n_row, n] */
    const uint32_t *ranks; /* [n_row] of the first entry, 1 = most likely */
};

struct link_tokens {     /* what came for a flow; borrowed during the call */
    const uint32_t *ids; /* [n] new tokens */
    uint32_t n;
    struct logprob_rows logprobs; /* n_row = n, or none */
    struct logprob_rows prompt;   /* the next prompt positions, or none */
    enum finish_reason finish;    /* not FINISH_NONE: this is the last call */
    uint32_t stop_id;             /* the stop token's id + 1 when finish is by a stop_token_id */
    uint32_t n_cached;            /* prompt tokens from the prefix cache */
    uint64_t queue_us;            /* waited in the engine; with the first token only */
};

struct flow;
struct flow_list;
struct flow_calls { /* after on_error, or on_tokens with a finish, the flow is closed; link_close it
                       all the same */
    void (*on_tokens)(struct flow *f, const struct link_tokens *t);
    void (*on_error)(struct flow *f, enum q_code code, const char *message,
                     uint32_t retry_after_ms);
};

struct flow { /* embedded by its owner, zeroed, then these set before link_open */
    const struct flow_calls *calls;
    const uint32_t *prompt; /* [n_prompt] borrowed until the flow is closed */
    size_t n_prompt;
    /* [n_begun] output tokens that are there already, read by link_open only: they count as output
     * and are not given to on_tokens. */
    const uint32_t *begun;
    size_t n_begun;
    struct sample_params params; /* its arrays borrowed likewise */
    int32_t priority;            /* lower goes first; 0 = ordinary */
    uint64_t tenant;             /* for fair share; 0 = nobody in particular */
    uint32_t weight;             /* of the tenant; 0 = 1 */
    int64_t arrived_ms;          /* clock_ms when the client's request came; 0 = unknown */
    unsigned char cache_salt[32];
    uint32_t n_cache_salt; /* bytes: 32, or 0 = the prefixes that all share */
    bool no_prefix_cache;  /* neither read the prefix cache nor leave anything there */
    uint32_t n_shared;     /* leading prompt tokens shared by all whatever the salt */
    /* the link's own: */
    struct token_list emitted; /* tokens given to on_tokens */
    uint64_t wire_id;          /* 0 = not with an engine */
    uint32_t n_prompt_row;     /* prompt logprob rows given to on_tokens */
    uint32_t n_prompt_skip;    /* such rows that come again after a resubmission */
    int64_t since_ms;          /* since when it waits for an engine */
    int64_t not_before_ms;     /* the engine was full: try again then */
    bool taken;                /* an engine that went away had it and had not refused it */
    struct flow *next, *prev;  /* in the link's waiting or running list */
    struct flow_list *list;    /* which; NULL = closed */
};

struct link_config {     /* borrowed while link_new runs; strings as long as the link */
    const char *address; /* ipc:///path or tcp://host:port */
    const char *keys;    /* folder of keys, "" = none */
    bool insecure_tcp;
    unsigned char digest[32];        /* hub_digest of our model folder */
    uint32_t engine_timeout_ms;      /* how long a flow waits for an engine that is away */
    void (*on_change)(void *ctx);    /* up or down; may be NULL */
    void (*on_heartbeat)(void *ctx); /* the metrics of the engine are set; may be NULL */
    void (*on_ordered)(void *ctx, const struct msg_ordered *m); /* answers link_order; or NULL */
    void *ctx;
};

enum link_state {
    LINK_CONNECTING, /* no engine yet, or it went away */
    LINK_UP,
    LINK_REFUSED, /* engine and frontend disagree (model, version); link_reason says how */
    LINK_DRAINING /* the engine takes nothing new */
};

struct link_engine { /* from its hello; zero before the first */
    uint32_t vocab_size, max_model_len, max_num_seqs, credit;
    char fingerprint[128], model[Q_MESSAGE_MAX - 128], version[64]; /* cut when longer */
    uint32_t eos_ids[16], n_eos;
    uint64_t instance;    /* another number, another process */
    uint32_t sleep_level; /* by its last heartbeat; 0 = awake */
    bool paused;          /* likewise: nothing is computed */
    bool pausing;         /* a pause is wanted, and reached with `paused` */
    bool refusing;        /* and new requests are not for it to take until its end */
};

/* Errors: Q_INVALID (address), Q_FORBIDDEN (tcp without keys), Q_IO. */
FALLIBLE link_new(struct link **out, uv_loop_t *loop, const struct link_config *c, struct q_err *e);
/* Close the connection; open flows are forgotten without a call. */
void link_free(struct link *l);
enum link_state link_state(const struct link *l);
/* The engine is connected and has been silent so long that it will not come back by itself. */
bool link_hangs(const struct link *l);
const char *link_reason(const struct link *l); /* why not LINK_UP; "" when up */
const struct link_engine *link_engine(const struct link *l);
uint32_t link_n_open(const struct link *l);

/* Hand a flow over. Errors: Q_NO_SPACE (LINK_FLOWS_MAX), Q_NO_MEMORY; the flow is then not open. */
FALLIBLE link_open(struct link *l, struct flow *f, struct q_err *e);
/* Forget a flow and release what the link held for it; a closed one is fine. The engine is told
 * before the loop waits again, in one message for all flows of this turn. */
void link_close(struct link *l, struct flow *f);
/* Tell the engine to rest or go on (its heartbeats say when it does), to do something once
 * (on_ordered answers, unless the engine goes away), or to forget its prefix cache. Errors:
 * Q_UNAVAILABLE (no engine now). */
FALLIBLE link_steer(struct link *l, const struct msg_steer *m, struct q_err *e);
FALLIBLE link_order(struct link *l, const struct msg_order *m, struct q_err *e);
/* Ask for a heartbeat now. False: no engine is there to ask. */
bool link_ask(struct link *l);
FALLIBLE link_reset_prefix_cache(struct link *l, const char *reason, struct q_err *e);

#endif
