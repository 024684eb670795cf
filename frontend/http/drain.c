/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a server: it accepts nothing new, answers what is open, and says when that is done.
 *
 * With --reuse-port other processes listen on the port. The kernel gives each of them a share of
 * the new connections, and resets those in the queue of a listening socket that is closed. So a
 * filter first drops the packets that begin a connection: clients send them again after a second,
 * and then to the others. Handshakes that have begun come to their end, and their connections are
 * accepted; then the socket is closed.
 *
 * A connection that was accepted and has sent no request yet is about to: it is waited for, a
 * little. */
#include <linux/filter.h>
#include <sys/socket.h>
#include "frontend/http/http_internal.h"

#define CHECK_MS     20
#define HANDSHAKE_MS 300  /* for the handshakes in progress, with --reuse-port */
#define FIRST_MS     1000 /* for the first request of a connection */

#define TCP_FLAGS   13 /* byte of the header */
#define TCP_SYN     0x02
#define TCP_SYN_ACK 0x12

static void drop_new(const uv_tcp_t *listener)
{
    static struct sock_filter code[] = {
        {BPF_LD | BPF_B | BPF_ABS, 0, 0, TCP_FLAGS}, {BPF_ALU | BPF_AND | BPF_K, 0, 0, TCP_SYN_ACK},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, TCP_SYN},  {BPF_RET | BPF_K, 0, 0, 0},
        {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    uv_os_fd_t fd;
    if (uv_fileno((const uv_handle_t *)listener, &fd) == 0)
        setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program,
                   sizeof program); /* as far as it can */
}

static void close_listeners(struct http_server *s)
{
    for (uint32_t i = 0; i < s->n_listener; i++)
        uv_close((uv_handle_t *)&s->listeners[i], NULL);
    s->n_listener = 0;
}

void server_check_drained(struct http_server *s)
{
    const int64_t now = (int64_t)uv_now(s->loop);
    if (!s->drained || s->n_exchange || s->n_listener ||
        (s->guard.n_new && now < s->first_until_ms))
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
    for (uint32_t i = 0; i < s->n_listener && shares; i++)
        drop_new(&s->listeners[i]);
    if (!shares)
        close_listeners(s);
    h2o_context_request_shutdown(&s->ctx);
    s->drainer.data = s;
    uv_timer_init(s->loop, &s->drainer);
    uv_timer_start(&s->drainer, on_drainer, CHECK_MS, CHECK_MS);
    server_check_drained(s);
}
