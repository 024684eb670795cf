/* SPDX-License-Identifier: Apache-2.0 */
/* frontends - the frontends of a server: hello, credit, requests, timeouts.
 *
 * A frontend is identified by its socket and ZeroMQ's routing id of its connection; a
 * re-established connection is a new frontend, and the old one is dropped after a timeout, a failed
 * send, or a hello of the same process. Each frontend has a unique number, the `frontend_id` of its
 * requests in the core. Threads: the server's loop. */
#ifndef QUIRE_ENGINE_SERVER_FRONTENDS_H
#define QUIRE_ENGINE_SERVER_FRONTENDS_H
#include "common/mem.h"
#include "engine/core/core.h"
#include "engine/server/outbox.h"
#include "engine/server/server_config.h"
#include "engine/server/streams.h"
#include "engine/server/uploads.h"
#include "proto/socket.h"

struct frontend_address {
    struct socket *socket; /* borrowed */
    struct socket_peer name;
};

struct frontend {
    struct frontend_address at;
    uint64_t instance;    /* of the frontend's process */
    uint32_t frontend_id; /* its number */
    uint32_t n_open;      /* requests */
    bool greeted;         /* hello was sent to it; false while the model loads */
    bool lost;            /* its connection is closed; received frames may be unread */
    bool removed;         /* to be removed by frontends_sweep */
    int64_t heard_ms;
};

struct frontends {
    const struct server_config *config;
    struct core *core;        /* borrowed; set once it exists */
    unsigned char digest[32]; /* of our model folder */
    uint64_t instance;        /* ours */
    bool draining;
    struct frontend *frontends; /* [n] of SERVER_FRONTENDS_MAX */
    uint32_t n, frontend_id_last;
    struct arena arena;        /* of the frame being read */
    struct buf frame;          /* being written */
    uint32_t sent_sleep_level; /* with the last heartbeat */
    bool sent_paused, sent_pausing, sent_refusing;
    bool asked; /* a frontend requested a heartbeat */
    char sent_fingerprint[CORE_FINGERPRINT_MAX];
    uint64_t sent_adapters;      /* number of changes of their list */
    uint32_t reload_frontend_id; /* sender and id of the command of the current reload */
    uint64_t reload_id;
    struct outbox outbox; /* made when the core is ready */
    bool outbox_made;
    struct streams streams;      /* kept, to be resumed */
    struct uploads uploads;      /* submits whose items are on their way */
    int64_t started_ms, beat_ms; /* beat_ms: of the last heartbeats; 0 = none yet */
    uint64_t n_bad_frame, n_bad_skipped;
    int64_t bad_logged_ms;
    bool on_trial;          /* the only request is one with `alone` */
    int64_t after_trial_ms; /* nothing is accepted until then: what it left behind is alone, too */
    int64_t trial_until_ms; /* no other request is accepted: one with `alone` waits … */
    int64_t trial_asked_ms; /* … since then for others to end */
    uint64_t tried;         /* instance of the frontend whose request is on trial; 0: none is … */
    uint64_t tried_before;  /* … when the engine before this one ended */
    int trial_fd;           /* of trial_file; -1: none */
    uint32_t turn_of;       /* the frontend whose next one is accepted until then; 0: none */
    int64_t finish_ms;      /* when the last request finished */
    double finish_every_ms; /* mean time between finishes, for Retry-After */
};

/* c is borrowed. Reads the model folder for its digest. Errors: Q_NO_MEMORY, Q_IO, hub_digest's. */
FALLIBLE frontends_init(struct frontends *p, const struct server_config *c, struct q_err *e);
void frontends_release(struct frontends *p);
/* One frame from a socket. */
void frontends_receive(struct frontends *p, const struct frontend_address *from, const void *frame,
                       size_t n);
/* The core is ready: send hello to the waiting frontends. Errors: Q_NO_MEMORY. */
FALLIBLE frontends_ready(struct frontends *p, struct q_err *e);
/* The core's sink; ctx is the struct frontends. */
void frontends_output(void *ctx, const struct step_result *result,
                      const struct scheduler_output *outputs, uint32_t n);
/* Send heartbeats to all and drop frontends after a timeout. Call it every heartbeat_ms. */
void frontends_beat(struct frontends *p, int64_t now_ms);
/* True if a heartbeat is due now: a change of sleep, pause or weights, or a request. */
bool frontends_news(const struct frontends *p);
/* Store the identity of the weights for the next engine of the same supervisor. */
void frontends_remember_identity(const struct frontends *p);
/* Reply to long-running commands that have finished. Call it after every core_step. */
void frontends_answer_commands(struct frontends *p);
void frontends_drain(struct frontends *p, const char *reason);
/* All received frames are processed: drop lost frontends, with a warning unless they sent drain or
 * the engine stops too. */
void frontends_received(struct frontends *p);
/* Remove frontends marked `removed` and abort their requests. Call it after every batch of work. */
void frontends_sweep(struct frontends *p);

#endif
