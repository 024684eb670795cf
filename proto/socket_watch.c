/* SPDX-License-Identifier: Apache-2.0 */
/* Connections are known by their descriptors, which libzmq's thread opens and closes: an event says
 * so a little later. A descriptor that was closed and given out again meanwhile is told by the
 * socket's cookie, so that no other one is shut down.
 *
 * Tried and of no use against parts without end: ZMQ_MAXMSGSIZE (of one part), ZMQ_RCVHWM (counts
 * whole messages), reading with ZMQ_RCVMORE (nothing can be read before the last part),
 * zmq_disconnect_peer and SERVER sockets (drafts, in no distribution's build), ZMQ_STREAM (ZMTP
 * would be written here again). */
#include "proto/socket_watch.h"
#include <errno.h>
#include <linux/tcp.h> /* TCP_INFO with tcpi_bytes_received, which the C library leaves out */
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <zmq.h>
#include <czmq.h>
#include "common/clock.h"
#include "common/mem.h"

#define EVENTS                                                                    \
    (ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |             \
     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define DESCRIPTORS_MAX ((size_t)1 << 20)

struct connection {
    bool is_open, is_admitted, has_message; /* since the last look */
    uint64_t cookie;
    uint64_t n_byte; /* received when it had its last message */
    int64_t since_ms;
};

struct socket_watch {
    struct watch_config set;
    zsock_t *events;
    int timer_fd; /* runs while a connection is not admitted */
    bool timer_runs;
    struct connection *connections; /* [n] by descriptor */
    size_t n, cap;
    int64_t looked_ms;
    struct watch_failure failure; /* why NULL: none */
};

static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) ? 0 : cookie;
}

/* Bytes that the connection has received. False: it is gone, or no figure of the kernel. */
static bool received(uint64_t *n_byte, int fd)
{
    struct tcp_info info;
    socklen_t n = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) ||
        n < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received)
        return false;
    *n_byte = info.tcpi_bytes_received;
    return true;
}

static void fail(struct socket_watch *w, const char *why, bool is_of_keys)
{
    w->failure.n++;
    if (w->failure.why && w->failure.is_of_keys && !is_of_keys)
        return; /* that one is told */
    w->failure.why = why;
    w->failure.is_of_keys = is_of_keys;
}

/* ---- handshakes ---- */

static const char *protocol_error(const struct socket_watch *w, uint32_t value)
{
    const bool listens = w->set.listens;
    switch (value) {
    case ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return w->set.has_keys ? listens ? "a peer without keys (--keys) tried to connect"
                                         : "the engine has no keys (--keys)"
               : listens       ? "a peer with keys tried to connect to an address without (--keys)"
                               : "the engine requires keys (--keys)";
    case ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
    case ZMQ_PROTOCOL_ERROR_ZMTP_KEY_EXCHANGE:
        return listens ? "a frontend has the public key of another engine (engine.pub in its "
                         "--keys)"
                       : "the engine has not the key of engine.pub in --keys";
    default:
        return listens ? "a peer does not speak the protocol of frontends (ZMTP)"
                       : "the process at this address does not speak the protocol of engines "
                         "(ZMTP)";
    }
}

static void on_handshake(struct socket_watch *w, uint16_t event, uint32_t value)
{
    const bool has_keys = w->set.has_keys, listens = w->set.listens;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        fail(w,
             listens ? "a frontend's key is not the frontend.pub of --keys"
                     : "the engine does not accept the frontend.key of --keys",
             true);
    else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        fail(w, protocol_error(w, value),
             value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ||
                 value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC ||
                 value == ZMQ_PROTOCOL_ERROR_ZMTP_KEY_EXCHANGE);
    else if (!listens && has_keys) /* the engine gives no reason to a peer that it cannot decrypt */
        fail(w,
             "the engine closed the connection while keys were exchanged: engine.pub in --keys may "
             "be of another engine",
             true);
}

/* ---- connections ---- */

static void run_timer(struct socket_watch *w)
{
    bool is_wanted = false;
    for (size_t i = 0; i < w->n && !is_wanted; i++)
        is_wanted = w->connections[i].is_open && !w->connections[i].is_admitted;
    if (is_wanted == w->timer_runs)
        return;
    const long every_ns = is_wanted ? WATCH_EVERY_MS * 1000000L : 0;
    const struct itimerspec t = {{0, every_ns}, {0, every_ns}};
    w->timer_runs = timerfd_settime(w->timer_fd, 0, &t, NULL) == 0 && is_wanted;
}

static void on_accepted(struct socket_watch *w, int fd)
{
    const size_t n = fd < 0 || !w->set.counts ? 0 : (size_t)fd + 1;
    if (!n || (n > w->n &&
               q_grow(&w->connections, &w->cap, n, sizeof *w->connections, DESCRIPTORS_MAX, NULL)))
        return;
    if (n > w->n)
        memset(w->connections + w->n, 0, (n - w->n) * sizeof *w->connections);
    w->n = n > w->n ? n : w->n;
    w->connections[fd] = (struct connection){
        .is_open = true,
        .cookie = cookie_of(fd),
        .since_ms = clock_ms(),
    };
}

static struct connection *connection_of(struct socket_watch *w, int fd)
{
    return fd >= 0 && (size_t)fd < w->n && w->connections[fd].is_open ? &w->connections[fd] : NULL;
}

static void on_closed(struct socket_watch *w, int fd)
{
    struct connection *c = connection_of(w, fd);
    if (c)
        c->is_open = false;
}

/* libzmq's thread reads the end, frees the parts and closes the descriptor; what the kernel has and
 * the other end is to send goes with it. */
static void cut_off(int fd)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    shutdown(fd, SHUT_RDWR);
}

static void look_at(struct socket_watch *w, int fd, int64_t now_ms)
{
    struct connection *c = connection_of(w, fd);
    uint64_t n_byte;
    if (!c)
        return;
    if (cookie_of(fd) != c->cookie || !received(&n_byte, fd)) {
        c->is_open = false; /* the event is on its way */
        return;
    }
    if (c->has_message) {
        c->has_message = false;
        c->n_byte = n_byte;
    }
    const char *why = NULL;
    if (n_byte - c->n_byte > (c->is_admitted ? w->set.bytes_max : WATCH_FIRST_BYTES))
        why = c->is_admitted ? "a frontend sent too many bytes without the end of a message"
                             : "a peer sent too many bytes before its hello";
    else if (!c->is_admitted && now_ms - c->since_ms > WATCH_FIRST_MS)
        why = "a peer sent no hello";
    if (!why)
        return;
    fail(w, why, false);
    cut_off(fd);
    c->is_open = false;
}

static void look(struct socket_watch *w)
{
    const int64_t now_ms = clock_ms();
    if (!w->set.counts || now_ms - w->looked_ms < WATCH_EVERY_MS)
        return;
    w->looked_ms = now_ms;
    for (size_t i = 0; i < w->n; i++)
        look_at(w, (int)i, now_ms);
    run_timer(w);
}

/* ---- events ---- */

/* False: there is none. */
static bool take_event(struct socket_watch *w)
{
    zmq_msg_t part;
    uint16_t event = 0;
    uint32_t value = 0;
    zmq_msg_init(&part);
    void *from = zsock_resolve(w->events);
    bool found = zmq_msg_recv(&part, from, ZMQ_DONTWAIT) == sizeof event + sizeof value;
    if (found) {
        memcpy(&event, zmq_msg_data(&part), sizeof event);
        memcpy(&value, (const char *)zmq_msg_data(&part) + sizeof event, sizeof value);
    }
    while (found && zmq_msg_more(&part)) /* the address that it is about */
        if (zmq_msg_recv(&part, from, ZMQ_DONTWAIT) < 0)
            break;
    zmq_msg_close(&part);
    if (!found)
        return false;
    if (event == ZMQ_EVENT_ACCEPTED)
        on_accepted(w, (int)value);
    else if (event == ZMQ_EVENT_CLOSED || event == ZMQ_EVENT_DISCONNECTED)
        on_closed(w, (int)value);
    else
        on_handshake(w, event, value);
    return true;
}

static void take_events(struct socket_watch *w)
{
    bool any = false;
    while (take_event(w))
        any = true;
    if (any && w->set.counts)
        run_timer(w);
}

void socket_watch_run(struct socket_watch *w)
{
    uint64_t n_tick;
    take_events(w);
    if (w->timer_runs && read(w->timer_fd, &n_tick, sizeof n_tick) < 0 && errno != EAGAIN)
        w->timer_runs = false;
    look(w);
}

/* The message may come before the event of its connection is read. */
void socket_watch_heard(struct socket_watch *w, int fd)
{
    take_events(w);
    struct connection *c = connection_of(w, fd);
    if (c)
        c->has_message = true;
}

void socket_watch_admit(struct socket_watch *w, int fd)
{
    struct connection *c = connection_of(w, fd);
    if (c)
        c->is_admitted = true;
}

bool socket_watch_failure(struct socket_watch *w, struct watch_failure *out)
{
    *out = w->failure;
    w->failure = (struct watch_failure){.why = NULL};
    return out->why != NULL;
}

void socket_watch_fds(const struct socket_watch *w, int fds[2])
{
    fds[0] = (int)zsock_fd(w->events);
    fds[1] = w->timer_fd;
}

FALLIBLE socket_watch_new(struct socket_watch **out, const struct watch_config *c, struct q_err *e)
{
    static _Atomic uint64_t n_made; /* libzmq forgets a name some time after its socket */
    char at[64];
    struct socket_watch *w = q_calloc(1, sizeof *w);
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "socket: out of memory");
    w->set = *c;
    w->timer_fd = c->counts ? timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK) : -1;
    w->events = zsock_new(ZMQ_PAIR);
    snprintf(at, sizeof at, "inproc://quire-watch-%llu", (unsigned long long)++n_made);
    if (w->events) { /* never full: libzmq's thread would wait for it */
        zsock_set_rcvhwm(w->events, 0);
        zsock_set_linger(w->events, 0);
    }
    if (!w->events || (c->counts && w->timer_fd < 0) || zmq_socket_monitor(c->socket, at, EVENTS) ||
        zmq_connect(zsock_resolve(w->events), at)) {
        socket_watch_free(w);
        return q_fail(e, Q_IO, "socket: cannot watch connections: %s", zmq_strerror(zmq_errno()));
    }
    take_events(w); /* a pipe signals what comes after it was found empty */
    *out = w;
    return Q_OK;
}

void socket_watch_free(struct socket_watch *w)
{
    if (!w)
        return;
    zmq_socket_monitor(w->set.socket, NULL, 0);
    zsock_destroy(&w->events);
    if (w->timer_fd >= 0)
        close(w->timer_fd);
    q_free(w->connections);
    q_free(w);
}
