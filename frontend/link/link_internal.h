/* SPDX-License-Identifier: Apache-2.0 */
/* link_internal - the state of a link and its functions for uv callbacks and tests.
 *
 * link.c, link_receive.c and link_output.c are pure: input frames are passed to link_receive, time
 * to link_tick, and output frames to `send`. The loop and the socket are in link_loop.c; a unit
 * test provides its own functions. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_LINK_LINK_INTERNAL_H
#define QUIRE_FRONTEND_LINK_LINK_INTERNAL_H
#include "common/mem.h"
#include "frontend/link/link.h"

struct link_loop;

#define LINK_REASON_MAX (Q_MESSAGE_MAX + 32) /* bytes: an error message with a prefix */

struct generation_list {
    struct generation *first, *last;
    uint32_t n;
};

struct link {
    struct link_config set;
    struct link_loop *loop; /* NULL in tests */
    bool has_memory;        /* the engine is on this machine: ipc:// */
    bool (*send)(void *ctx, const void *frame, size_t n); /* false: not now */
    void *send_ctx;
    enum link_state state;
    char reason[LINK_REASON_MAX];
    struct link_engine engine;
    uint64_t instance; /* ours */
    uint64_t engine_instance;
    uint32_t engine_start; /* hello.n_start of the engine with that instance */
    uint32_t heartbeat_ms;
    struct generation_list waiting, running;
    struct generation **slots; /* [n_slot] running generations by wire id */
    size_t slots_cap;
    uint32_t n_slot, slot_hint; /* no free slot below the hint */
    uint64_t count;             /* submissions so far */
    /* Its items are on their way: waiting, while they are written to shared memory, or running,
     * while they are sent in pieces; NULL: none. */
    struct generation *writing;
    int writing_fd;   /* of the shared memory */
    bool is_stuck;    /* the last piece could not be sent: the next tick tries again */
    uint64_t *aborts; /* [n_abort] wire ids to abort in the engine */
    size_t n_abort, aborts_cap;
    struct arena arena; /* of the frame being read */
    bool probing;      /* hello sent while up: a reply means that the engine lost the generations */
    bool suspecting;   /* one generation at a time is submitted: link_suspect.c */
    bool has_trials;   /* the engine knows submit.alone */
    const char *ended; /* of link_end: no generation is opened any more; NULL: not called */
    bool loading;      /* the engine said so last */
    const char *refused; /* why the connection is refused; static; NULL: it is not */
    int64_t refused_log_ms;
    uint64_t n_refused_skipped;
    int64_t away_since_ms;    /* of LINK_CONNECTING: when it began */
    int64_t silent_since_ms;  /* 0 = no timeout */
    int64_t unheard_since_ms; /* 0 = the engine has answered, or the timeout was logged */
    int64_t hello_ms, beat_ms, sent_beat_ms, step_ms, drop_log_ms;
    int64_t tick_ms;          /* the last link_tick; 0 = none yet */
    uint64_t n_drop_unlogged; /* frames dropped since drop_log_ms */
    uint64_t step;
    /* Load, for the choice of an engine. */
    uint64_t n_prefill;            /* sum over its open generations that have no token */
    uint32_t n_others;             /* requests of other frontends, by the last heartbeat */
    double n_failing;              /* generations that it failed, the last ones */
    double mean_output;            /* tokens of a generation, of the last ones that finished */
    struct link_totals noted, own; /* its part of set.totals; those of the only link */
};

/* link_lists.c: a generation is in one list while it is open; with the engine it has a wire id. */
void generation_list_add(struct generation_list *l, struct generation *f);  /* at the end */
void generation_list_push(struct generation_list *l, struct generation *f); /* at the front */
void generation_list_take(struct generation *f); /* remove from its list */
struct generation *generation_by_wire_id(const struct link *l,
                                         uint64_t wire_id); /* NULL: unknown */
bool generation_name(struct link *l,
                     struct generation *f); /* give it a new wire id; false: no memory */
void generation_unname(struct link *l, struct generation *f); /* remove it, if it has one */

/* Initialize to zero with a random instance number; the caller sets `send` afterwards. Errors:
 * Q_INTERNAL (no random numbers). */
FALLIBLE link_init(struct link *l, const struct link_config *c, struct q_err *e);
void link_release(struct link *l); /* its generations are dropped without a call */
/* Process one frame of the engine; a malformed frame is counted and dropped. */
void link_receive(struct link *l, const void *frame, size_t n);
/* The connection to the engine was refused because of its keys, or ours. why: static. */
void link_refused(struct link *l, const char *why);
/* Handle the passing of time (every 50 ms): hello, heartbeats, a silent engine, generations that
 * waited too long. */
void link_tick(struct link *l);
void link_leave(struct link *l); /* send drain to the engine */
void link_flush(struct link *l); /* send the aborts of this iteration, before the loop waits */
void link_pump(struct link *l);  /* submit what may be submitted now */

/* link.c, for link_receive.c */
/* Send hello to a connected engine: does it still know this frontend? */
void link_probe(struct link *l);
void link_set_state(struct link *l, enum link_state state, const char *reason);
void link_note_state(struct link *l); /* in the metrics */
void link_note_open(struct link *l);
/* Set a metric to the sum over the links, of which this one's part is now `value`. */
void link_note(struct link *l, enum metric m, double value);
/* The same for a counter of the engine, which begins again with a restart. */
void link_count(struct link *l, enum metric m, double value);
void link_note_gone(struct link *l); /* what it has now is nothing, if there are other links */
/* It leaves its list for good. */
void link_drop(struct link *l, struct generation *f);
/* Its prompt is computed, or is not computed here. */
void link_note_prefilled(struct link *l, struct generation *f);
/* The engine is lost: every generation is taken back. */
void link_go_down(struct link *l, const char *reason);
/* Put a generation back at the head of the queue, with its tokens so far. */
void link_take_back(struct link *l, struct generation *f);
/* Out of its list and without wire id: it is closed. */
void link_withdraw(struct link *l, struct generation *f);
/* Withdraw it and tell its owner. */
void link_fail(struct link *l, struct generation *f, enum q_code code, const char *message,
               uint32_t retry_after_ms);
void link_add_abort(struct link *l, uint64_t wire_id); /* for the next link_flush_aborts */
void link_flush_aborts(struct link *l);

/* link_items.c */
uint64_t generation_item_bytes(const struct generation *f); /* on the wire */
/* Errors: Q_TOO_LARGE (never), Q_NO_SPACE (now). Before the engine is known, it is asked later. */
FALLIBLE link_check_items(const struct link *l, const struct generation *f, struct q_err *e);
/* May it be submitted now? Many bytes are written to shared memory before. */
bool link_begin_items(struct link *l, struct generation *f);
/* It has been submitted: many bytes follow in pieces. */
void link_follow_items(struct link *l, struct generation *f);
/* Is there a piece of the items of l->writing that may be written or sent now? */
bool link_may_write(const struct link *l);
/* Write or send it: the loop calls it once an iteration while there is one, so that others have
 * their turn between two pieces. */
void link_write_items(struct link *l);
/* The engine has received pieces. Errors: Q_CORRUPT. */
FALLIBLE link_items_received(struct link *l, const struct msg_items_received *m, struct q_err *e);
void link_put_items(const struct link *l, struct msg_submit *m, const struct generation *f);
/* Free what its items were written to: the engine has read it, or never will. */
void generation_drop_items(struct link *l, struct generation *f);

/* Pass the tokens numbered from seq to a generation; drops duplicates, detects gaps. */
void link_deliver(struct link *l, struct generation *f, uint32_t seq, struct link_tokens *t);
/* Decode a step's columns. Errors: Q_CORRUPT, before any delivery. */
FALLIBLE link_output(struct link *l, const struct msg_output *m, struct q_err *e);
/* link_suspect.c */
/* The engine is lost: running generations are marked. Before they are taken back. */
void link_suspect_lost(struct link *l);
/* An engine answers after it: were they the cause? The one to end with an error; NULL: none. */
struct generation *link_suspect_judge(struct link *l, const struct msg_hello *m);
/* The cause in hello.death, n bytes; "" = unknown. */
const char *link_suspect_cause(struct proto_str death, int *n);
/* It has n_token new tokens. True: it was on trial and has passed. */
bool link_suspect_passed(struct generation *f, uint32_t n_token);
/* The next suspect to submit; NULL: one is running, or there is none (suspecting is false then). */
struct generation *link_suspect_next(struct link *l);
/* Assert every invariant; in builds with tests after each event. Cost: O(open generations). */
void link_check(const struct link *l);

#endif
