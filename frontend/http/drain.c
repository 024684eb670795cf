/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a server: it accepts nothing new, answers what is open, and says when that is done.
 *
 * The kernel resets the connections in the queue of a listening socket when it is closed. So new
 * connections are held off first (net_drop_new; an inherited socket is the supervisor's, which does
 * it when all frontends end), the connections in the queue are accepted, and the socket is closed.
 * With --reuse-port other processes listen on the port, and a client that tries again after a
 * second reaches one of them: there handshakes in progress are waited for as well.
 *
 * A connection that was accepted and has sent no request yet is about to: it is waited for, a
 * little. */
#include "common/net.h"
#include "frontend/http/http_internal.h"

#define CHECK_MS     20
#define HANDSHAKE_MS 300  /* for the handshakes in progress, with --reuse-port */
#define FIRST_MS     1000 /* for the first request of a connection */

static void close_listeners(struct http_server *s)
{
    net_path_remove(&s->path); /* new connections are refused, and a new server may take the path */
    server_accept_next(s);     /* they are in no queue of the kernel any more */
    for (uint32_t i = 0; i < s->n_listener; i++) {
        guard_accept_queued(&s->guard, (uv_stream_t *)&s->listeners[i], LISTEN_BACKLOG + 1);
        uv_close((uv_handle_t *)&s->listeners[i], NULL);
    }
    s->n_listener = 0;
}

/* The kernel has what was sent without TLS; with it the relay may have answers still. */
static bool is_all_sent(struct http_server *s)
{
    struct tls_relay *relay = s->guard.relay;
    if (relay && !s->relay_finishes)
        tls_relay_finish(relay);
    s->relay_finishes = true;
    return !relay || tls_relay_finished(relay);
}

void server_check_drained(struct http_server *s)
{
    const int64_t now = (int64_t)uv_now(s->loop);
    if (!s->drained || s->n_exchange || s->n_listener ||
        (s->guard.n_new && now < s->first_until_ms) || !is_all_sent(s))
        return;
    void (*done)(void *ctx) = s->drained;
    s->drained = NULL;
    uv_timer_stop(&s->drainer);
    done(s->drained_ctx);
}

static void on_drainer(uv_timer_t *timer)
{
    struct http_server *s = timer->data;
    if (s->n_listener && (int64_t)uv_now(s->loop) >= s->listen_until_ms)
        close_listeners(s);
    server_check_drained(s);
}

void http_server_drain(struct http_server *s, void (*done)(void *ctx), void *ctx)
{
    const int64_t now = (int64_t)uv_now(s->loop);
    const bool shares = s->set.reuse_port && s->n_listener;
    s->drained = done;
    s->drained_ctx = ctx;
    s->listen_until_ms = now + (shares ? HANDSHAKE_MS : 0);
    s->first_until_ms = s->listen_until_ms + FIRST_MS;
    for (uint32_t i = 0; i < s->n_listener && s->is_port_own; i++) {
        uv_os_fd_t fd;
        if (uv_fileno((const uv_handle_t *)&s->listeners[i], &fd) == 0)
            net_drop_new(fd);
    }
    if (!shares)
        close_listeners(s);
    h2o_context_request_shutdown(&s->ctx);
    s->drainer.data = s;
    uv_timer_init(s->loop, &s->drainer);
    uv_timer_start(&s->drainer, on_drainer, CHECK_MS, CHECK_MS);
    server_check_drained(s);
}
