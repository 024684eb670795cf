/* SPDX-License-Identifier: Apache-2.0 */
/* engines_internal - the state of struct engines, and its functions for the loop and for tests,
 * which make the links themselves. engines_loop.c is the only part that uses libuv.
 * Threads: the loop's. */
#ifndef QUIRE_FRONTEND_LINK_ENGINES_INTERNAL_H
#define QUIRE_FRONTEND_LINK_ENGINES_INTERNAL_H
#include "frontend/link/engines.h"
#include "frontend/link/link_internal.h"
#include "proto/address.h"

#define ENGINE_NAME_MAX (ADDRESS_PATH_MAX + ADDRESS_HOST_MAX)

struct engine {
    struct engines *set;
    struct link *link;
    uint32_t at;                /* its place in set->all */
    uint64_t instance;          /* whose prefixes the affinity has */
    bool asked;                 /* for a heartbeat, which has not come */
    char name[ENGINE_NAME_MAX]; /* " at ADDRESS" */
};

struct engines {
    struct engines_config set;
    struct engine all[ENGINES_MAX];
    uint32_t n;
    struct link_totals totals;
    struct affinity *affinity; /* NULL: there is one engine */
    /* Of the generation for which an engine was chosen last: */
    struct affinity_keys keys;
    uint32_t n_prefill; /* what the engine has to compute of its prompt */
    uint32_t turn;      /* breaks ties of prompts without keys */
    struct link_engine info;
    bool is_unsettled; /* a link has changed since engines_settle */
    int64_t settled_ms;
    struct engines_loop *loop;
};

/* Without links. Errors: as engines_new. */
FALLIBLE engines_init(struct engines *g, const struct engines_config *c, struct q_err *e);
/* The config of link i; strings and ctx are those of g. */
struct link_config engines_link_config(struct engines *g, uint32_t i);
void engines_release(struct engines *g); /* not the links */
/* Give generations that wait at engines that are away to others. */
void engines_settle(struct engines *g);

/* engines_choice.c */
/* The best engine for a generation among those whose bit is in `of`, one at least; if none of them
 * can take it, any, whose link says why. Sets g->keys and g->n_prefill. */
struct engine *engines_choose(struct engines *g, const struct generation *f, uint64_t of);
/* The same for one that is at `from`: an engine that is up (if awake: and takes requests) and may
 * go on with what it has; if `from` is refused, one that may come as well. NULL: there is none. */
struct engine *engines_choose_next(struct engines *g, const struct generation *f,
                                   const struct engine *from, uint64_t of, bool awake);
/* The engines that go on with its tokens, which are of the engine behind `from`: bits. */
uint64_t engines_that_go_on(const struct engines *g, const struct generation *f,
                            const struct link *from);

#endif
