/* SPDX-License-Identifier: Apache-2.0 */
/* Connections as ZeroMQ's: frames of one connection arrive in order; a connection that breaks loses
 * what is on its way, and is made again under another name, without a word to the frontend. A
 * half-open one is found by ZMTP's pings (proto/socket.h). */
#include <string.h>
#include "common/mem.h"
#include "events.h"
#include "proto/socket.h"
#include "service.h"

#define CONNECT_US   200000 /* at most, to connect again */
#define QUEUE_MAX    64 /* frames of a frontend that does not read: SOCKET_HWM_LISTEN, smaller */
#define HALF_OPEN_US ((int64_t)SOCKET_HEARTBEAT_MS * 3000)

struct wire {
    bool is_up, swallows;
    uint32_t epoch;     /* counts connections */
    int64_t last_us[2]; /* when the last frame arrives: at the frontend, at the engine */
    uint32_t n_queued;  /* frames that the frontend has not read */
};
static struct wire wires[SERVICE_FRONTENDS_MAX];

struct carried { /* a frame on its way */
    uint32_t frontend, epoch;
    bool to_engine;
    size_t n;
    unsigned char bytes[];
};

uint32_t wire_epoch(uint32_t frontend)
{
    return wires[frontend].is_up ? wires[frontend].epoch : 0;
}

bool wire_is_full(uint32_t frontend)
{
    return wires[frontend].n_queued >= QUEUE_MAX;
}

static void connect_now(uint64_t frontend, void *p)
{
    struct wire *w = &wires[frontend];
    (void)p;
    if (w->is_up || !frontend_runs((uint32_t)frontend))
        return;
    if (!engine_listens()) {
        event_add(events_pick(20000, CONNECT_US), connect_now, frontend, NULL);
        return;
    }
    *w = (struct wire){.is_up = true, .epoch = w->epoch + 1};
}

void wire_open(uint32_t frontend)
{
    event_add(events_pick(100, CONNECT_US), connect_now, frontend, NULL);
}

void wire_break(uint32_t frontend)
{
    struct wire *w = &wires[frontend];
    if (!w->is_up)
        return;
    w->is_up = false;
    service.report->n_broken++;
    wire_open(frontend);
}

static void pings_missed(uint64_t which, void *p)
{
    const uint32_t frontend = (uint32_t)(which % SERVICE_FRONTENDS_MAX);
    (void)p;
    if (wire_epoch(frontend) == which / SERVICE_FRONTENDS_MAX)
        wire_break(frontend);
}

void wire_swallow(uint32_t frontend)
{
    struct wire *w = &wires[frontend];
    if (!w->is_up || w->swallows)
        return;
    w->swallows = true;
    event_add(HALF_OPEN_US, pings_missed, (uint64_t)w->epoch * SERVICE_FRONTENDS_MAX + frontend,
              NULL);
}

void wire_close_all(void)
{
    for (uint32_t i = 0; i < SERVICE_FRONTENDS_MAX; i++)
        wires[i] = (struct wire){.epoch = 0};
}

void wire_read(uint32_t frontend, bool by_engine)
{
    struct wire *w = &wires[frontend];
    if (!by_engine && w->n_queued)
        w->n_queued--;
}

static void arrive(uint64_t unused, void *p)
{
    struct carried *c = p;
    const struct wire *w = &wires[c->frontend];
    (void)unused;
    if (w->is_up && !w->swallows && c->epoch == w->epoch) {
        void *frame = q_alloc(c->n + !c->n);
        if (!frame)
            sim_fail("no memory");
        memcpy(frame, c->bytes, c->n);
        if (c->to_engine)
            engine_receive(c->frontend, c->epoch, frame, c->n);
        else
            frontend_receive(c->frontend, frame, c->n);
    }
    q_free(c);
}

bool wire_send(uint32_t frontend, bool to_engine, const void *frame, size_t n)
{
    struct wire *w = &wires[frontend];
    if (!w->is_up)
        return false;
    struct carried *c = q_alloc(sizeof *c + n);
    if (!c)
        sim_fail("no memory");
    *c = (struct carried){.frontend = frontend, .epoch = w->epoch, .to_engine = to_engine, .n = n};
    memcpy(c->bytes, frame, n);
    w->n_queued += !to_engine;
    int64_t at_us = events_now_us() + events_pick(1, service.latency_us);
    if (at_us < w->last_us[to_engine])
        at_us = w->last_us[to_engine];
    w->last_us[to_engine] = at_us;
    event_add(at_us - events_now_us(), arrive, 0, c);
    return true;
}

/* ---- the engine's socket (proto/socket.h): a peer's name is its frontend and connection ---- */

struct socket {
    int unused;
};

const char *socket_address(const struct socket *s)
{
    (void)s;
    return "tcp://sim";
}

bool socket_peer_equal(const struct socket_peer *a, const struct socket_peer *b)
{
    return a->n == b->n && !memcmp(a->name, b->name, a->n);
}

FALLIBLE socket_send(struct socket *s, const struct socket_peer *peer, const void *frame, size_t n,
                     struct q_err *e)
{
    uint32_t name[2]; /* frontend, epoch */
    (void)s;
    memcpy(name, peer->name, sizeof name);
    if (wire_epoch(name[0]) != name[1])
        return q_fail(e, Q_UNAVAILABLE, "the peer has disconnected");
    if (wire_is_full(name[0]))
        return q_fail(e, Q_NO_SPACE, "%d frames wait for a peer that does not read", QUEUE_MAX);
    (void)wire_send(name[0], false, frame, n);
    return Q_OK;
}

struct socket_frame *socket_keep(struct socket *s)
{
    (void)s;
    return NULL; /* no request has items */
}

void socket_frame_free(struct socket_frame *f)
{
    (void)f;
}

void socket_admit(struct socket *s)
{
    (void)s; /* connections are not watched here */
}
