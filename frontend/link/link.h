/* SPDX-License-Identifier: Apache-2.0 */
/* link - the frontend's side of the wire to one engine; of several: frontend/link/engines.h.
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
#include "common/item_types.h"
#include "common/metrics.h"
#include "frontend/link/generation.h"
#include "proto/proto.h"
#include "proto/stream_log.h"

#define LINK_FLOWS_MAX   65536u            /* open at once */
#define LINK_ITEMS_PIECE ((size_t)1 << 20) /* written to shared memory at once: 0.5 ms */

struct link;

/* Values of the engines' metrics, added up over the links of one frontend. */
struct link_totals {
    double of[METRIC_COUNT];
    uint64_t iterations[METRIC_BUCKETS_MAX + 1];
};

struct link_config {     /* borrowed while link_new runs; strings as long as the link */
    const char *address; /* ipc:///path or tcp://host:port */
    const char *keys;    /* folder of keys, "" = none */
    bool insecure_tcp;
    unsigned char digest[32];        /* hub_digest of our model folder */
    uint32_t engine_timeout_ms;      /* maximum time a generation waits for an unavailable engine */
    bool no_replay;                  /* generations of a lost engine end with an error */
    const char *name;                /* of the engine in log lines: " at ADDRESS"; NULL: "" */
    struct link_totals *totals;      /* NULL: there is no other link */
    void (*on_change)(void *ctx);    /* up or down; may be NULL */
    void (*on_heartbeat)(void *ctx); /* the metrics of the engine are set; may be NULL */
    void (*on_command_done)(void *ctx,
                            const struct msg_command_done *m); /* answers link_command; or NULL */
    void (*on_stream_resumed)(void *ctx, const struct msg_stream_resumed *m); /* likewise */
    /* The engine has no room for a new generation. True: it was moved (link_move) or closed. */
    bool (*on_full)(void *ctx, struct generation *f); /* likewise */
    /* May another engine take the generations of one that does not match? NULL: no. */
    bool (*has_others)(void *ctx);
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
/* Give an open generation to another link, where it waits as if it had been opened there; what it
 * has received stays; what an engine had accepted goes first. n_prefill: as in the generation. The
 * engine aborts it. The caller submits it: link_pump. */
void link_move(struct link *l, struct generation *f, struct link *to, uint32_t n_prefill);
enum link_state link_state(const struct link *l);
/* Not connected for so long that a new generation does not wait for it. */
bool link_is_away(const struct link *l);
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
