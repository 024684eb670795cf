/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets are created and configured with czmq's zsock; frames are sent and received with zmq_msg,
 * because zmsg and zframe allocate a list per frame and assert if the allocation fails.
 *
 * Readiness. ZeroMQ's descriptor only signals that the state changed since the last send or
 * receive, and each of them clears the signal. A loop that waits for this descriptor alone can miss
 * a frame. So the owner waits for an epoll descriptor of
 *     the ZeroMQ descriptor   something arrived since the last call
 *     an eventfd              a frame is waiting after the last call (`kicked`)
 *     the ZAP descriptor      a client waits for authentication (listening with keys)
 *     those of socket_watch   a connection came or failed; it is time to look at them
 * and every send and receive updates the eventfd.
 *
 * High-water marks. An engine whose frontend does not read gets Q_NO_SPACE from socket_send and
 * drops the frontend, which submits its requests again when it reconnects. A frontend whose engine
 * does not read, or is not connected, gets Q_UNAVAILABLE and keeps the request (ZMQ_IMMEDIATE: no
 * frame is queued without a connection, because a restarted engine must get hello first). No frame
 * is dropped silently: ROUTER_MANDATORY. */
#include "proto/socket.h"
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <czmq.h>
#include "common/mem.h"
#include "common/net.h"
#include "proto/address.h"
#include "proto/curve.h"
#include "proto/proto.h"
#include "proto/socket_watch.h"
#include "proto/zap.h"

#define RECONNECT_MS     20                /* first pause before connecting again */
#define RECONNECT_MAX_MS 1000              /* pauses double up to this */
#define FRAME_MARGIN     ((size_t)8 << 20) /* bytes in the kernel's buffer, heads, encryption */
#define TCP_KEEPALIVE_S  30 /* idle seconds before the kernel probes (ZMTP pings come sooner) */

struct socket {
    zsock_t *zsock;
    void *handle; /* the libzmq socket inside zsock */
    int epoll_fd, kick_fd;
    bool kicked;
    bool listening;
    bool zap; /* holds a zap_ref */
    struct socket_watch *watch;
    bool counts; /* it counts bytes of connections */
    int from;    /* descriptor of the connection that the last frame came over; -1: unknown */
    uint64_t n_bad;
    zmq_msg_t frame; /* the one given out last */
    char address[ADDRESS_TEXT_MAX];
    char path[ADDRESS_PATH_MAX +
              1]; /* socket file of a listening socket, "" = none; libzmq does not remove it */
};

/* Prevent czmq from installing handlers for SIGINT and SIGTERM with its first socket; main handles
 * signals. */
static void quiet_czmq(void)
{
    static bool done;
    if (done)
        return;
    done = true;
    setenv("ZSYS_SIGHANDLER", "false", 0);
    zsys_handler_set(NULL);
    zsys_init();
}

static void set_options(struct socket *s, enum address_kind kind)
{
    int hwm = s->listening ? SOCKET_HWM_LISTEN : SOCKET_HWM_CONNECT;
    zsock_set_sndhwm(s->zsock, hwm);
    zsock_set_rcvhwm(s->zsock, hwm);
    zsock_set_linger(s->zsock, SOCKET_LINGER_MS);
    zsock_set_maxmsgsize(s->zsock, (int)PROTO_FRAME_MAX);
    zsock_set_heartbeat_ivl(s->zsock, SOCKET_HEARTBEAT_MS);
    zsock_set_heartbeat_timeout(s->zsock, 3 * SOCKET_HEARTBEAT_MS);
    zsock_set_handshake_ivl(s->zsock, SOCKET_HANDSHAKE_MS);
    if (kind == ADDRESS_TCP) {
        zsock_set_ipv6(s->zsock, 1);
        zsock_set_tcp_keepalive(s->zsock, 1);
        zsock_set_tcp_keepalive_idle(s->zsock, TCP_KEEPALIVE_S);
    }
    if (s->listening) {
        zsock_set_router_mandatory(s->zsock, 1);
    } else {
        zsock_set_immediate(s->zsock, 1);
        zsock_set_reconnect_ivl(s->zsock, RECONNECT_MS);
        zsock_set_reconnect_ivl_max(s->zsock, RECONNECT_MAX_MS);
    }
}

static enum q_code set_keys(struct socket *s, const struct socket_config *c, struct q_err *e)
{
    if (!c->keys_dir || !c->keys_dir[0]) {
        if (c->insecure_tcp)
            return Q_OK;
        return q_fail(e, Q_FORBIDDEN,
                      "%s: tcp requires keys: create them with `quire keygen` and set --keys to "
                      "their folder, or allow tcp without keys with --insecure-tcp",
                      c->address);
    }
    struct curve_keys k;
    enum q_code rc = curve_load(&k, c->keys_dir, s->listening ? CURVE_ENGINE : CURVE_FRONTEND, e);
    if (rc)
        return rc;
    zsock_set_curve_publickey(s->zsock, k.public_key);
    zsock_set_curve_secretkey(s->zsock, k.secret_key);
    if (s->listening) {
        zsock_set_zap_domain(s->zsock, "quire");
        zsock_set_curve_server(s->zsock, 1);
        rc = zap_ref(k.peer_key, e);
        s->zap = !rc;
    } else {
        zsock_set_curve_serverkey(s->zsock, k.peer_key);
    }
    curve_wipe(&k);
    return rc;
}

/* libzmq removes an existing file at an ipc path before it binds, even the socket of a running
 * engine or a user's file. So check first: a socket on which no process listens is stale and may be
 * replaced. */
static enum q_code check_path_free(const char *path, struct q_err *e)
{
    struct stat st;
    if (lstat(path, &st))
        return errno == ENOENT ? Q_OK : q_fail(e, Q_IO, "ipc://%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return q_fail(e, Q_MISMATCH, "ipc://%s: the file exists and is not a socket", path);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    memcpy(name.sun_path, path, strlen(path) + 1); /* ADDRESS_PATH_MAX fits */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return q_fail(e, Q_IO, "ipc://%s: %s", path, strerror(errno));
    int failed = connect(fd, (struct sockaddr *)&name, sizeof name) ? errno : 0;
    close(fd);
    if (failed == ECONNREFUSED || failed == ENOENT)
        return Q_OK;
    return q_fail(e, Q_MISMATCH, "ipc://%s: another process is listening on this address", path);
}

static enum q_code watch(struct socket *s, int fd, struct q_err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    if (fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev))
        return q_fail(e, Q_IO, "socket: epoll: %s", strerror(errno));
    return Q_OK;
}

static enum q_code watch_all(struct socket *s, struct q_err *e)
{
    enum q_code rc;
    int fds[2];
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->kick_fd < 0)
        return q_fail(e, Q_IO, "socket: %s", strerror(errno));
    if ((rc = watch(s, s->kick_fd, e)) || (rc = watch(s, (int)zsock_fd(s->zsock), e)))
        return rc;
    if (s->zap && (rc = watch(s, zap_fd(), e)))
        return rc;
    socket_watch_fds(s->watch, fds);
    rc = watch(s, fds[0], e);
    return rc || fds[1] < 0 ? rc : watch(s, fds[1], e);
}

static enum q_code fail_bind(const char *text, int error, const char *why, struct q_err *e)
{
    return error == EADDRINUSE
               ? q_fail(e, Q_MISMATCH, "%s: another process is listening on this address", text)
               : q_fail(e, Q_IO, "%s: cannot listen: %s", text, why);
}

static enum q_code bind_text(struct socket *s, const char *text, struct q_err *e)
{
    mode_t before = umask(0177);
    int failed = zmq_bind(s->handle, text) ? zmq_errno() : 0;
    umask(before);
    size_t n = sizeof s->address;
    if (failed)
        return fail_bind(text, failed, zmq_strerror(failed), e);
    if (zmq_getsockopt(s->handle, ZMQ_LAST_ENDPOINT, s->address, &n))
        return q_fail(e, Q_IO, "%s: %s", text, zmq_strerror(zmq_errno()));
    return Q_OK;
}

/* libzmq binds only the first address of a name. So each address gets a listening descriptor
 * (net.h), which libzmq takes over. "*" and names of network interfaces are passed to libzmq. */
static enum q_code bind_tcp(struct socket *s, const struct address *a, struct q_err *e)
{
    char text[ADDRESS_TEXT_MAX];
    struct net_sockets found = {.n = 0};
    struct address chosen = *a;
    const int none = -1;
    address_print(a, text);
    int error = a->host[0] == '*' ? EAI_NONAME : net_open(&found, a->host, a->port);
    if (error < 0)
        return bind_text(s, text, e);
    if (error)
        return fail_bind(text, error, net_error_text(error), e);
    enum q_code rc = Q_OK;
    for (; found.n && !rc; found.n--) {
        zmq_setsockopt(s->handle, ZMQ_USE_FD, &found.fd[found.n - 1], sizeof found.fd[0]);
        if ((rc = bind_text(s, text, e)))
            break;
    }
    zmq_setsockopt(s->handle, ZMQ_USE_FD, &none, sizeof none);
    net_sockets_close(&found); /* those that libzmq did not take */
    chosen.port = found.port;
    address_print(&chosen, s->address);
    return rc;
}

static enum q_code attach(struct socket *s, const struct address *a, struct q_err *e)
{
    char text[ADDRESS_TEXT_MAX];
    enum q_code rc;
    address_print(a, text);
    if (!s->listening) {
        if (zmq_connect(s->handle, text))
            return q_fail(e, Q_IO, "%s: %s", text, zmq_strerror(zmq_errno()));
        snprintf(s->address, sizeof s->address, "%s", text);
        return Q_OK;
    }
    if (a->kind == ADDRESS_TCP)
        return bind_tcp(s, a, e);
    if ((rc = check_path_free(a->path, e)) || (rc = bind_text(s, text, e)))
        return rc;
    memcpy(s->path, a->path, sizeof s->path);
    return Q_OK;
}

static enum q_code open_socket(struct socket **out, const struct socket_config *c, bool listening,
                               struct q_err *e)
{
    struct address a;
    enum q_code rc = address_parse(&a, c->address, e);
    if (rc)
        return rc;
    if (!listening && a.kind == ADDRESS_TCP && (a.port == 0 || a.host[0] == '*'))
        return q_fail(e, Q_INVALID, "address \"%s\": expected the engine's host and port",
                      c->address);
    struct socket *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for a socket", c->address);
    s->epoll_fd = s->kick_fd = -1;
    s->listening = listening;
    zmq_msg_init(&s->frame);
    quiet_czmq();
    s->zsock = zsock_new(listening ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!s->zsock) {
        rc = q_fail(e, Q_IO, "%s: cannot create a socket: %s", c->address,
                    zmq_strerror(zmq_errno()));
        goto out;
    }
    s->handle = zsock_resolve(s->zsock);
    set_options(s, a.kind);
    const struct watch_config w = {
        .socket = s->handle,
        .listens = listening,
        .has_keys = a.kind == ADDRESS_TCP && c->keys_dir && *c->keys_dir,
        .counts = listening && a.kind == ADDRESS_TCP,
        .bytes_max = PROTO_FRAME_MAX + FRAME_MARGIN,
    };
    s->counts = w.counts;
    if ((rc = socket_watch_new(&s->watch, &w, e)) ||
        (a.kind == ADDRESS_TCP && (rc = set_keys(s, c, e))) || (rc = watch_all(s, e)) ||
        (rc = attach(s, &a, e)))
        goto out;
    *out = s;
    s = NULL;
out:
    socket_free(s);
    return rc;
}

enum q_code socket_listen(struct socket **out, const struct socket_config *c, struct q_err *e)
{
    return open_socket(out, c, true, e);
}

enum q_code socket_connect(struct socket **out, const struct socket_config *c, struct q_err *e)
{
    return open_socket(out, c, false, e);
}

void socket_free(struct socket *s)
{
    if (!s)
        return;
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->kick_fd >= 0)
        close(s->kick_fd);
    zmq_msg_close(&s->frame);
    socket_watch_free(s->watch);
    if (s->path[0])
        unlink(s->path); /* no other process can have replaced it while this one listened */
    zsock_destroy(&s->zsock);
    if (s->zap)
        zap_unref();
    q_free(s);
}

int socket_fd(const struct socket *s)
{
    return s->epoll_fd;
}

const char *socket_address(const struct socket *s)
{
    return s->address;
}

/* Set the eventfd: readable if and only if `ready`. */
static void set_kick(struct socket *s, bool ready)
{
    uint64_t one = 1;
    if (ready == s->kicked)
        return;
    ssize_t n = ready ? write(s->kick_fd, &one, sizeof one) : read(s->kick_fd, &one, sizeof one);
    s->kicked = n > 0 ? ready : s->kicked;
}

static bool frame_waits(struct socket *s)
{
    int events = 0;
    size_t n = sizeof events;
    return zmq_getsockopt(s->handle, ZMQ_EVENTS, &events, &n) == 0 && (events & ZMQ_POLLIN);
}

/* Receive one part into s->frame; false when none is there. */
static bool recv_part(struct socket *s)
{
    int rc;
    do
        rc = zmq_msg_recv(&s->frame, s->handle, ZMQ_DONTWAIT);
    while (rc < 0 && zmq_errno() == EINTR);
    return rc >= 0;
}

/* Read the remaining parts of a message. All parts of a message arrive together. */
static void skip_parts(struct socket *s)
{
    while (zmq_msg_more(&s->frame) && recv_part(s))
        continue;
}

/* Read one message; on a listening socket its first part is the peer's name. True if the message is
 * valid; then s->frame contains it. */
static bool take_message(struct socket *s, struct socket_peer *peer)
{
    if (s->listening) {
        size_t n = zmq_msg_size(&s->frame);
        bool good = n <= SOCKET_PEER_MAX && zmq_msg_more(&s->frame);
        if (good && peer) {
            memset(peer, 0, sizeof *peer);
            peer->n = (uint8_t)n;
            memcpy(peer->name, zmq_msg_data(&s->frame), n);
        }
        if (!good || !recv_part(s)) {
            skip_parts(s);
            return false;
        }
    }
    if (!zmq_msg_more(&s->frame))
        return true;
    skip_parts(s);
    return false;
}

bool socket_recv(struct socket *s, struct socket_peer *peer, const void **frame, size_t *n)
{
    if (s->zap)
        zap_answer();
    while (recv_part(s)) {
        const bool is_valid = take_message(s, peer);
        if (s->counts)
            socket_watch_heard(s->watch, s->from = zmq_msg_get(&s->frame, ZMQ_SRCFD));
        if (!is_valid) {
            s->n_bad++;
            continue;
        }
        *frame = zmq_msg_data(&s->frame);
        *n = zmq_msg_size(&s->frame);
        set_kick(s, frame_waits(s));
        return true;
    }
    socket_watch_run(s->watch);
    set_kick(s, false);
    return false;
}

void socket_reconnect(struct socket *s)
{
    Q_ASSERT(!s->listening);
    zmq_disconnect(s->handle, s->address); /* ENOENT: it was given up */
    zmq_connect(s->handle, s->address);    /* its address was accepted before */
    set_kick(s, frame_waits(s));
}

void socket_admit(struct socket *s)
{
    if (s->counts)
        socket_watch_admit(s->watch, s->from);
}

bool socket_failure(struct socket *s, struct watch_failure *out)
{
    return socket_watch_failure(s->watch, out);
}

struct socket_frame {
    zmq_msg_t message;
};

struct socket_frame *socket_keep(struct socket *s)
{
    struct socket_frame *f = q_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    zmq_msg_init(&f->message);
    zmq_msg_move(&f->message, &s->frame); /* a large frame's bytes do not move */
    return f;
}

void socket_frame_free(struct socket_frame *f)
{
    if (f)
        zmq_msg_close(&f->message);
    q_free(f);
}

static enum q_code send_failed(const struct socket *s, struct q_err *e)
{
    int code = zmq_errno();
    if (code == EHOSTUNREACH)
        return q_fail(e, Q_UNAVAILABLE, "%s: the frontend disconnected", s->address);
    if (code == EAGAIN && s->listening)
        return q_fail(e, Q_NO_SPACE, "%s: the frontend does not read: %d frames are waiting",
                      s->address, SOCKET_HWM_LISTEN);
    if (code == EAGAIN)
        return q_fail(e, Q_UNAVAILABLE, "%s: no engine is connected, or the engine does not read",
                      s->address);
    return q_fail(e, Q_IO, "%s: %s", s->address, zmq_strerror(code));
}

static int send_part(struct socket *s, const void *data, size_t n, int flags)
{
    int rc;
    do
        rc = zmq_send(s->handle, data, n, flags | ZMQ_DONTWAIT);
    while (rc < 0 && zmq_errno() == EINTR);
    return rc;
}

enum q_code socket_send(struct socket *s, const struct socket_peer *peer, const void *frame,
                        size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    Q_ASSERT(s->listening == (peer != NULL));
    if (n > PROTO_FRAME_MAX)
        return q_fail(e, Q_TOO_LARGE, "%s: a frame of %zu bytes, expected at most %zu", s->address,
                      n, PROTO_FRAME_MAX);
    if ((peer && send_part(s, peer->name, peer->n, ZMQ_SNDMORE) < 0) ||
        send_part(s, frame, n, 0) < 0)
        rc = send_failed(s, e);
    set_kick(s, frame_waits(s));
    return rc;
}

bool socket_peer_equal(const struct socket_peer *a, const struct socket_peer *b)
{
    return a->n == b->n && memcmp(a->name, b->name, a->n) == 0;
}

uint64_t socket_n_bad(const struct socket *s)
{
    return s->n_bad;
}

uint64_t socket_n_refused(void)
{
    return zap_n_refused();
}
