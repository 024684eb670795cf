/* SPDX-License-Identifier: Apache-2.0 */
/* engines - the engines of one frontend, each behind a link.
 *
 * A generation is opened at the engine that has the least to compute before its answer: the part of
 * the prompt that the engine has not cached (affinity.h), prompts that wait there, and half of the
 * output of each open request. All generations of a request (struct link_request) are at one
 * engine. One that is lost, drains or is refused gives its generations to others, with their tokens
 * so far: by determinism (DESIGN section 6) the rest is what the first engine would have given, if
 * both have the same fingerprint; a generation that has tokens goes to no other. A request may be
 * what ended the engine, so it is given on once: lost with a second engine it waits for that one,
 * whose link finds out (link_suspect.c). An engine without room passes a new request on to one with
 * room. With one engine every call is that of its link.
 * Threads: the loop's. */
#ifndef QUIRE_FRONTEND_LINK_ENGINES_H
#define QUIRE_FRONTEND_LINK_ENGINES_H
#include "frontend/link/affinity.h"
#include "frontend/link/link.h"

#define ENGINES_MAX AFFINITY_ENGINES

struct engines;

struct engines_config {           /* borrowed while engines_new runs; strings as long as engines */
    const char *const *addresses; /* [n] */
    uint32_t n;                   /* 1 at least */
    struct link_config link;      /* of each: keys, digest, times */
    /* Any may be NULL. */
    void (*on_change)(void *ctx);    /* one came, went or has other properties */
    void (*on_heartbeat)(void *ctx); /* each connected engine has answered engines_ask */
    /* from: the number of the engine that answers. */
    void (*on_command_done)(void *ctx, uint32_t from, const struct msg_command_done *m);
    void (*on_stream_resumed)(void *ctx, uint32_t from, const struct msg_stream_resumed *m);
    void *ctx;
};

/* Errors: Q_INVALID (an address, one that is given twice, more than ENGINES_MAX), Q_FORBIDDEN (tcp
 * without keys), Q_IO, Q_NO_MEMORY. */
FALLIBLE engines_new(struct engines **out, uv_loop_t *loop, const struct engines_config *c,
                     struct q_err *e);
void engines_free(struct engines *g); /* open generations are dropped without a call */
/* The addresses [n] alone, before anything is connected. Errors: Q_INVALID, as engines_new. */
FALLIBLE engines_check(const char *const *addresses, uint32_t n, struct q_err *e);
uint32_t engines_n(const struct engines *g);
struct link *engines_link(const struct engines *g, uint32_t i);
/* For messages: " at ADDRESS", or "" of the only one. */
const char *engines_name(const struct engines *g, uint32_t i);

/* Of the engine that is closest to accepting requests; LINK_UP: one does. */
enum link_state engines_state(const struct engines *g);
const char *engines_reason(const struct engines *g); /* why none is LINK_UP; "" when one is */
const char *engines_code(const struct engines *g);   /* link_code of engines_state */
/* The only engine hangs: link_hangs. Of several none is killed, others do its work. */
bool engines_hang(const struct engines *g);
/* What they have in common: limits that all keep, adapters that one has at least; asleep, paused
 * and refusing if all are. The rest is of the first one. Of those that are up, else of all that
 * ever were; instance 0: none was. */
const struct link_engine *engines_info(const struct engines *g);

/* As link_open, at an engine of its choice. */
FALLIBLE engines_open(struct engines *g, struct generation *f, struct q_err *e);
void engines_close(struct engines *g, struct generation *f); /* as link_close */
void engines_end(struct engines *g, const char *message);    /* as link_end */
/* Request a heartbeat of each. False: none is connected. */
bool engines_ask(struct engines *g);
/* Is each connected? Commands are for all of them. Errors: Q_UNAVAILABLE, names one that is not. */
FALLIBLE engines_need_all(const struct engines *g, struct q_err *e);
FALLIBLE engines_reset_prefix_cache(struct engines *g, const char *reason, struct q_err *e);

#endif
