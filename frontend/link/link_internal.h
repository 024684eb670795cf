/* SPDX-License-Identifier: Apache-2.0 */
/* link_internal - the state of a link and its functions for uv callbacks and tests.
 *
 * link.c and link_output.c are pure: input frames are passed to link_receive, time to link_tick,
 * and output frames to `send`. The loop and the socket are in link_loop.c; a unit test provides its
 * own functions. Threads: the loop's thread only. */
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
    uint32_t heartbeat_ms;
    struct generation_list waiting, running;
    struct generation **slots; /* [n_slot] running generations by wire id */
    size_t slots_cap;
    uint32_t n_slot, slot_hint; /* no free slot below the hint */
    uint64_t count;             /* submissions so far */
    /* Waiting, while its items are written to shared memory, in pieces; NULL: none. */
    struct generation *writing;
    int writing_fd;
    uint64_t *aborts; /* [n_abort] wire ids to abort in the engine */
    size_t n_abort, aborts_cap;
    struct arena arena; /* of the frame being read */
    bool probing;      /* hello sent while up: a reply means that the engine lost the generations */
    const char *ended; /* of link_end: no generation is opened any more; NULL: not called */
    int64_t silent_since_ms;  /* 0 = no timeout */
    int64_t unheard_since_ms; /* 0 = the engine has answered, or the timeout was logged */
    int64_t hello_ms, beat_ms, sent_beat_ms, step_ms, drop_log_ms;
    uint64_t step;
};

/* generation.c: a generation is in one list while it is open; with the engine it has a wire id. */
void generation_list_add(struct generation_list *l, struct generation *f);  /* at the end */
void generation_list_push(struct generation_list *l, struct generation *f); /* at the front */
void generation_list_take(struct generation *f); /* remove from its list */
struct generation *generation_by_wire_id(const struct link *l,
                                         uint64_t wire_id); /* NULL: unknown */
bool generation_name(struct link *l,
                     struct generation *f); /* give it a new wire id; false: no memory */
void generation_unname(struct link *l, struct generation *f); /* remove it, if it has one */
/* Remove the shared memory of its items, if there is one: the engine has read it, or never will. */
void generation_drop_items(struct link *l, struct generation *f);

/* Initialize to zero with a random instance number; the caller sets `send` afterwards. Errors:
 * Q_INTERNAL (no random numbers). */
FALLIBLE link_init(struct link *l, const struct link_config *c, struct q_err *e);
void link_release(struct link *l); /* its generations are dropped without a call */
/* Process one frame of the engine; a malformed frame is counted and dropped. */
void link_receive(struct link *l, const void *frame, size_t n);
/* Handle the passing of time (every 50 ms): hello, heartbeats, a silent engine, generations that
 * waited too long. */
void link_tick(struct link *l);
/* Write a piece of the items of l->writing, LINK_ITEMS_PIECE bytes at most: the loop calls it once
 * an iteration while there is one, so that others have their turn between two pieces. */
void link_write_items(struct link *l);
void link_leave(struct link *l); /* send drain to the engine */
void link_flush(struct link *l); /* send the aborts of this iteration, before the loop waits */
/* Pass the tokens numbered from seq to a generation; drops duplicates, detects gaps. */
void link_deliver(struct link *l, struct generation *f, uint32_t seq, struct link_tokens *t);
/* Decode a step's columns. Errors: Q_CORRUPT, before any delivery. */
FALLIBLE link_output(struct link *l, const struct msg_output *m, struct q_err *e);
/* Assert every invariant; in builds with tests after each event. Cost: O(open generations). */
void link_check(const struct link *l);

#endif
