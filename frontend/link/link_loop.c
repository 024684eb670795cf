/* SPDX-License-Identifier: Apache-2.0 */
/* The link's part in the loop: the socket, its descriptor, a tick, and a prepare handle that sends
 * the messages of one iteration (aborts) before the loop waits, an idle handle that writes or sends
 * items a piece an iteration. All decisions are in link.c. */
#include <openssl/rand.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/link/link_internal.h"
#include "proto/socket.h"

#define TICK_MS         50
#define RECONNECT_MS    2000 /* after a refusal: keys are replaced at the engine's end */
#define FRAMES_PER_WAKE 64 /* then other events of the loop follow; the descriptor stays readable */

struct link_loop {
    struct link *link;
    struct socket *socket;
    uv_poll_t poll;
    uv_timer_t tick;
    uv_prepare_t prepare;
    uv_idle_t write; /* active while items are written: the loop does not wait then */
    int64_t reconnect_ms;
    int n_closing;
};

static bool send_frame(void *ctx, const void *frame, size_t n)
{
    struct link_loop *o = ctx;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = socket_send(o->socket, NULL, frame, n, &e);
    if (rc != Q_OK && rc != Q_UNAVAILABLE)
        log_error("link: %s", e.message);
    return rc == Q_OK;
}

static void note_failure(struct link_loop *o)
{
    struct watch_failure f;
    if (socket_failure(o->socket, &f) && f.is_of_keys)
        link_refused(o->link, f.why);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct link_loop *o = poll->data;
    const void *frame;
    size_t n;
    for (int i = 0; i < FRAMES_PER_WAKE && socket_recv(o->socket, NULL, &frame, &n); i++)
        link_receive(o->link, frame, n);
    note_failure(o);
}

static void on_tick(uv_timer_t *timer)
{
    struct link_loop *o = timer->data;
    link_tick(o->link);
    if (o->link->refused && clock_ms() - o->reconnect_ms >= RECONNECT_MS) {
        o->reconnect_ms = clock_ms();
        socket_reconnect(o->socket);
    }
}

static void on_write(uv_idle_t *write)
{
    struct link_loop *o = write->data;
    link_write_items(o->link);
    if (!link_may_write(o->link))
        uv_idle_stop(write);
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct link_loop *o = prepare->data;
    link_flush(o->link);
    if (link_may_write(o->link))
        uv_idle_start(&o->write, on_write);
}

FALLIBLE link_new(struct link **out, uv_loop_t *loop, const struct link_config *c, struct q_err *e)
{
    struct socket_config sc = {c->address, c->keys, c->insecure_tcp};
    struct link *l = q_calloc(1, sizeof *l);
    struct link_loop *o = q_calloc(1, sizeof *o);
    enum q_code rc;
    *out = NULL;
    if (!l || !o) {
        rc = q_fail(e, Q_NO_MEMORY, "link: out of memory");
        goto fail;
    }
    if ((rc = link_init(l, c, e)) || (rc = socket_connect(&o->socket, &sc, e)))
        goto fail;
    o->link = l;
    l->loop = o;
    l->send = send_frame;
    l->send_ctx = o;
    o->poll.data = o->tick.data = o->prepare.data = o->write.data = o;
    uv_poll_init(loop, &o->poll, socket_fd(o->socket));
    uv_poll_start(&o->poll, UV_READABLE, on_readable);
    uv_timer_init(loop, &o->tick);
    uv_timer_start(&o->tick, on_tick, 0, TICK_MS);
    uv_prepare_init(loop, &o->prepare);
    uv_prepare_start(&o->prepare, on_prepare);
    uv_idle_init(loop, &o->write);
    *out = l;
    return Q_OK;
fail:
    if (l)
        link_release(l);
    q_free(l);
    q_free(o);
    return rc;
}

static void on_closed(uv_handle_t *h)
{
    struct link_loop *o = h->data;
    if (++o->n_closing == 4)
        q_free(o);
}

void link_free(struct link *l)
{
    if (!l)
        return;
    struct link_loop *o = l->loop;
    link_leave(l);
    uv_poll_stop(&o->poll);
    uv_close((uv_handle_t *)&o->poll, on_closed);
    uv_close((uv_handle_t *)&o->tick, on_closed);
    uv_close((uv_handle_t *)&o->prepare, on_closed);
    uv_close((uv_handle_t *)&o->write, on_closed);
    socket_free(o->socket);
    link_release(l);
    q_free(l);
}
