/* SPDX-License-Identifier: Apache-2.0 */
/* link_internal - the inside of a link: its state and the steps that uv callbacks and tests drive.
 *
 * link.c and link_output.c are pure: frames come in by link_receive, time by link_tick, and frames
 * leave through `send`. The loop and the socket are in link_loop.c; a unit test puts its own
 * functions there. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_LINK_LINK_INTERNAL_H
#define QUIRE_FRONTEND_LINK_LINK_INTERNAL_H
#include "common/mem.h"
#include "frontend/link/link.h"

struct link_loop;

#define LINK_REASON_MAX (Q_MESSAGE_MAX + 32) /* bytes: an error message and some words */

struct flow_list {
    struct flow *first, *last;
    uint32_t n;
};

struct link {
    struct link_config set;
    struct link_loop *loop;                               /* NULL in tests */
    bool (*send)(void *ctx, const void *frame, size_t n); /* false: not now */
    void *send_ctx;
    enum link_state state;
    char reason[LINK_REASON_MAX];
    struct link_engine engine;
    uint64_t instance; /* ours */
    uint64_t engine_instance;
    uint32_t heartbeat_ms;
    struct flow_list waiting, running;
    struct flow **slots; /* [n_slot] running flows by wire id */
    size_t slots_cap;
    uint32_t n_slot, slot_hint; /* no free slot below the hint */
    uint64_t count;             /* submissions so far */
    uint64_t *aborts;           /* [n_abort] wire ids to tell the engine of */
    size_t n_abort, aborts_cap;
    struct arena arena;      /* of the frame being read */
    bool probing;            /* greeted while up: the answer means that it forgot us */
    int64_t silent_since_ms; /* 0 = it is not silence that keeps the engine away */
    int64_t
        unheard_since_ms; /* 0 = the engine has answered once, or its silence has been told of */
    int64_t hello_ms, beat_ms, sent_beat_ms, step_ms, drop_log_ms;
    uint64_t step;
};

/* flow.c: a flow is in one list while it is open; with the engine it has a wire id. */
void flow_list_add(struct flow_list *l, struct flow *f);              /* at the end */
void flow_list_push(struct flow_list *l, struct flow *f);             /* at the front */
void flow_list_take(struct flow *f);                                  /* out of the one it is in */
struct flow *flow_by_wire_id(const struct link *l, uint64_t wire_id); /* NULL: nobody's */
bool flow_name(struct link *l, struct flow *f);   /* give it a new wire id; false: no memory */
void flow_unname(struct link *l, struct flow *f); /* take it away; fine without one */

/* Zero, with an instance number drawn; `send` is set by the caller afterwards. Errors: Q_INTERNAL
 * (no random numbers). */
FALLIBLE link_init(struct link *l, const struct link_config *c, struct q_err *e);
void link_release(struct link *l); /* its flows are forgotten without a call */
/* One frame of the engine's, of any content: what does not decode is counted and dropped. */
void link_receive(struct link *l, const void *frame, size_t n);
/* Time passes: hello, heartbeat, silence, flows that waited too long. Every 50 ms. */
void link_tick(struct link *l);
void link_leave(struct link *l); /* tell the engine that we go */
void link_flush(struct link *l); /* send the aborts of this turn, before the loop waits */
/* Give a flow the tokens numbered from seq; drops what it had, finds gaps. */
void link_deliver(struct link *l, struct flow *f, uint32_t seq, struct link_tokens *t);
/* Take a step's columns apart. Errors: Q_CORRUPT, before anything was delivered. */
FALLIBLE link_output(struct link *l, const struct msg_output *m, struct q_err *e);
/* Assert every invariant. In trees with tests each event does it. Cost: O(open flows). */
void link_check(const struct link *l);

#endif
