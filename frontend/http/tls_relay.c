/* SPDX-License-Identifier: Apache-2.0 */
/* A connection has two directions, up from the client and down to it. Each moves bytes until one
 * side would block; what its receiver did not take is kept, and the direction reads nothing before
 * that has gone. So a connection holds at most one piece for each direction, and none while it
 * idles. Both descriptors are edge-triggered: after any event both directions are tried.
 *
 * No client occupies the thread. A turn of a connection ends after some pieces; it also ends after
 * some bytes read from the client (limit_read), because OpenSSL does not return while messages
 * without data, such as key updates, arrive. In a round all connections that move bytes have their
 * turn, and a few handshakes: a stream waits for these few, however many begin at once.
 *
 * An end travels like a byte: close_notify or the end of the client's bytes becomes a half-close of
 * the pair; the server's end becomes close_notify and a half-close. A client whose connection was
 * reset loses its pair at once, which tells the server.
 *
 * The server limits the connections that it has open. Those that it has closed, whose clients have
 * yet to read or to end their side, are limited here: the first one closed is dropped.
 *
 * h2o has TLS of its own. It is not used: with libuv it takes a read without bytes (the kernel has
 * none left when a buffer was filled exactly) for an error of the connection, its handshakes would
 * delay all streams, and the guard would have to know of it everywhere. */
#include "frontend/http/tls_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "common/queue.h"

#define PIECE         16384 /* bytes of the largest record */
#define PIECES        16    /* of a turn */
#define TURN_READ     65536 /* bytes of a turn that the client sent, as encrypted */
#define HANDSHAKES    4     /* of a round */
#define PLAIN_MAX     65536 /* bytes thrown away of a request without TLS */
#define EVENTS        64
#define CHECK_MS      1000
#define HANDSHAKE_MS  10000
#define LINGER_MS     2000 /* for a client to end its side, after the server has closed */
#define FINISH_MS     5000
#define FAILED_LOG_MS 5000

struct relay_order { /* to the thread; it finishes when the queue is closed */
    SSL *ssl;
    int client, server;
};

struct rest { /* bytes that their receiver has not taken yet */
    unsigned char *bytes;
    size_t at, n;
};

struct relay_list {
    struct relay_connection *first, *last;
    unsigned n;
};

struct ready_list { /* connections whose turn it is */
    struct relay_connection *first, **end;
};

struct relay_connection {
    struct relay_list *list; /* relay->open or relay->closing */
    struct relay_connection *next, *prev;
    struct relay_connection *next_ready;
    SSL *ssl;
    int client, server; /* descriptors: the client's socket, the relay's end of the pair */
    struct rest up, down;
    int64_t begun_ms;    /* when it was accepted */
    int64_t progress_ms; /* when the client last took bytes */
    int64_t ended_ms;    /* when the last bytes were sent to the client */
    size_t n_read;       /* bytes from the client in this turn */
    bool is_limited;     /* there may be more of them */
    bool is_ready;
    bool shaken;       /* the handshake is over */
    bool client_ended; /* the client sends no more */
    bool up_ended;     /* the server knows that */
    bool server_ended; /* the server sends no more */
    bool down_ended;   /* the client knows that */
    bool server_gone;  /* the server reads no more */
    bool over;         /* to be freed in its turn */
};

struct tls_relay {
    struct queue orders; /* of struct relay_order */
    pthread_t thread;
    int epoll;
    uint32_t connections_max;
    int64_t write_timeout_ms;
    _Atomic uint32_t n_connection; /* with those in the queue */
    _Atomic bool finished;
    bool is_joined; /* the loop's */
    /* the thread's */
    struct relay_list open, closing; /* closing: the server has closed; the first one first */
    struct ready_list ready, handshakes;
    int64_t now_ms, checked_ms;
    int64_t finish_ms; /* when the rest is closed; 0: not finishing */
    int64_t failed_log_ms;
    uint64_t n_unlogged;
    unsigned char piece[PIECE];
};

static void list_add(struct relay_list *list, struct relay_connection *c)
{
    c->list = list;
    c->next = NULL;
    c->prev = list->last;
    if (list->last)
        list->last->next = c;
    else
        list->first = c;
    list->last = c;
    list->n++;
}

static void list_remove(struct relay_connection *c)
{
    struct relay_list *list = c->list;
    if (c->prev)
        c->prev->next = c->next;
    else
        list->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        list->last = c->prev;
    list->n--;
}

static void mark_ready(struct tls_relay *r, struct relay_connection *c)
{
    struct ready_list *list = c->shaken || c->over ? &r->ready : &r->handshakes;
    if (c->is_ready)
        return;
    c->is_ready = true;
    c->next_ready = NULL;
    *list->end = c;
    list->end = &c->next_ready;
}

static struct relay_connection *take_ready(struct ready_list *list)
{
    struct relay_connection *c = list->first;
    list->first = c->next_ready;
    if (!list->first)
        list->end = &list->first;
    c->is_ready = false;
    return c;
}

static void end_connection(struct tls_relay *r, struct relay_connection *c)
{
    c->over = true;
    mark_ready(r, c);
}

/* ---- one direction ---- */

static void drop_rest(struct rest *rest)
{
    q_free(rest->bytes);
    *rest = (struct rest){.bytes = NULL};
}

static void keep_rest(struct relay_connection *c, struct rest *rest, const unsigned char *bytes,
                      size_t n)
{
    if (n == 0)
        return;
    *rest = (struct rest){.bytes = q_alloc(n), .n = n};
    if (rest->bytes)
        memcpy(rest->bytes, bytes, n);
    else
        c->over = true; /* out of memory */
}

/* Has the rest gone? */
static bool has_gone(struct rest *rest, size_t n_taken)
{
    rest->at += n_taken;
    if (rest->at < rest->n)
        return false;
    drop_rest(rest);
    return true;
}

/* Before and after OpenSSL reads from the client: in this turn it gets TURN_READ bytes. */
static long limit_read(BIO *bio, int call, const char *bytes, size_t n, int unused, long unused_too,
                       int result, size_t *n_done)
{
    struct relay_connection *c = (struct relay_connection *)(void *)BIO_get_callback_arg(bio);
    (void)bytes, (void)n, (void)unused, (void)unused_too;
    if (call == (BIO_CB_READ | BIO_CB_RETURN) && result > 0 && n_done)
        c->n_read += *n_done;
    if (call != BIO_CB_READ || c->n_read < TURN_READ)
        return result;
    c->is_limited = true;
    BIO_clear_retry_flags(bio);
    BIO_set_retry_read(bio);
    return -1;
}

/* Bytes that the server takes now. */
static size_t send_up(struct relay_connection *c, const unsigned char *bytes, size_t n)
{
    size_t at = 0;
    while (at < n && !c->server_gone) {
        const ssize_t sent = send(c->server, bytes + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0)
            at += (size_t)sent;
        else if (errno == EAGAIN)
            return at;
        else
            c->server_gone = errno != EINTR;
    }
    return n; /* of a server that has gone: bytes nobody reads */
}

/* Bytes that the client takes now. */
static size_t send_down(struct tls_relay *r, struct relay_connection *c, const unsigned char *bytes,
                        size_t n)
{
    size_t at = 0;
    while (at < n && !c->over) {
        ERR_clear_error();
        const int sent = SSL_write(c->ssl, bytes + at, (int)(n - at));
        if (sent > 0) {
            at += (size_t)sent;
            c->progress_ms = r->now_ms;
            continue;
        }
        const int why = SSL_get_error(c->ssl, sent);
        if (why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ)
            break;
        c->over = true;
    }
    return at;
}

/* Move a piece of the client's bytes. False: nothing moves before an event. */
static bool move_up(struct tls_relay *r, struct relay_connection *c)
{
    if (c->up.n && !has_gone(&c->up, send_up(c, c->up.bytes + c->up.at, c->up.n - c->up.at)))
        return false;
    if (c->client_ended) {
        if (!c->up_ended)
            shutdown(c->server, SHUT_WR);
        c->up_ended = true;
        return false;
    }
    ERR_clear_error();
    const int n = SSL_read(c->ssl, r->piece, sizeof r->piece);
    if (n > 0) {
        const size_t taken = send_up(c, r->piece, (size_t)n);
        keep_rest(c, &c->up, r->piece + taken, (size_t)n - taken);
        return true;
    }
    const int why = SSL_get_error(c->ssl, n);
    c->client_ended = why == SSL_ERROR_ZERO_RETURN;
    c->over |= !c->client_ended && why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE;
    return c->client_ended;
}

/* Tell the client that the server sends no more. */
static void end_down(struct tls_relay *r, struct relay_connection *c)
{
    ERR_clear_error();
    const int rc = SSL_shutdown(c->ssl);
    if (rc < 0 && SSL_get_error(c->ssl, rc) == SSL_ERROR_WANT_WRITE)
        return;
    shutdown(c->client, SHUT_WR);
    c->down_ended = true;
    c->ended_ms = r->now_ms;
}

/* Move a piece of the server's bytes. False: nothing moves before an event. */
static bool move_down(struct tls_relay *r, struct relay_connection *c)
{
    if (c->down.n &&
        !has_gone(&c->down, send_down(r, c, c->down.bytes + c->down.at, c->down.n - c->down.at)))
        return false;
    if (c->server_ended) {
        if (!c->down_ended)
            end_down(r, c);
        return false;
    }
    const ssize_t n = recv(c->server, r->piece, sizeof r->piece, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
        return true;
    if (n > 0) {
        c->progress_ms = r->now_ms; /* the client had taken all that was before */
        const size_t taken = send_down(r, c, r->piece, (size_t)n);
        keep_rest(c, &c->down, r->piece + taken, (size_t)n - taken);
        return true;
    }
    c->server_ended = n == 0 || errno != EAGAIN;
    return c->server_ended;
}

/* ---- the handshake ---- */

/* A client that speaks HTTP to a port of TLS gets an answer that it understands. */
static void reply_plain(const struct relay_connection *c)
{
    static const char body[] =
        "{\"error\":{\"message\":\"this port expects TLS: use https:// in the URL\","
        "\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}";
    char thrown_away[4096], all[512];
    const int n = snprintf(all, sizeof all,
                           "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                           "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                           sizeof body - 1, body);
    for (size_t i = 0; i < PLAIN_MAX / sizeof thrown_away; i++) /* unread bytes make it a reset */
        if (recv(c->client, thrown_away, sizeof thrown_away, MSG_DONTWAIT) <= 0)
            break;
    send(c->client, all, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void note_failure(struct tls_relay *r, const struct relay_connection *c, const char *why)
{
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof from;
    char address[NI_MAXHOST] = "a client";
    metric_add(METRIC_TLS_FAILED, 1); /* this thread alone counts them */
    if (!log_ratelimit(&r->failed_log_ms, &r->n_unlogged, FAILED_LOG_MS))
        return;
    if (getpeername(c->client, (struct sockaddr *)&from, &n) == 0 && from.ss_family != AF_UNIX)
        getnameinfo((struct sockaddr *)&from, n, address, sizeof address, NULL, 0, NI_NUMERICHOST);
    log_warning("tls: the handshake with %s failed: %s (%" PRIu64 " such lines omitted before)",
                address, why, r->n_unlogged);
    r->n_unlogged = 0;
}

static void shake(struct tls_relay *r, struct relay_connection *c)
{
    ERR_clear_error();
    const int rc = SSL_accept(c->ssl);
    c->shaken = rc == 1;
    c->progress_ms = r->now_ms;
    const int why = c->shaken ? SSL_ERROR_NONE : SSL_get_error(c->ssl, rc);
    if (c->shaken || why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return;
    c->over = true;
    const unsigned long code = ERR_peek_error();
    const int reason = ERR_GET_REASON(code);
    if (why != SSL_ERROR_SSL || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        return; /* the client has closed: a port that is open is all that some want to know */
    const char *text = ERR_reason_error_string(code);
    note_failure(r, c, text ? text : "OpenSSL gives no reason");
    if (reason == SSL_R_HTTP_REQUEST)
        reply_plain(c);
}

/* ---- connections ---- */

/* The descriptors leave the epoll by name: a child that is being started may have copies. */
static void free_connection(struct tls_relay *r, struct relay_connection *c)
{
    list_remove(c);
    drop_rest(&c->up);
    drop_rest(&c->down);
    SSL_free(c->ssl);
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->client, NULL);
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->server, NULL);
    close(c->client);
    close(c->server);
    q_free(c);
    r->n_connection--;
}

/* The server does not count the connection any more. */
static void begin_closing(struct tls_relay *r, struct relay_connection *c)
{
    if (c->list == &r->closing)
        return;
    list_remove(c);
    list_add(&r->closing, c);
    if (r->closing.n <= TLS_CLOSING_MAX)
        return;
    struct relay_connection *first = r->closing.first;
    list_remove(first);
    list_add(&r->open, first);
    end_connection(r, first);
}

/* After a turn. A client that may still send, if only its close_notify, keeps its socket for
 * LINGER_MS: the kernel would answer with a reset, which can destroy what was sent to it. */
static void note_end(struct tls_relay *r, struct relay_connection *c)
{
    if (r->finish_ms && !c->down.n && !c->down_ended && c->shaken && !c->is_ready)
        end_down(r, c);
    if (!c->shaken)
        c->over = c->server_gone || r->finish_ms;
    else
        c->over = c->down_ended && (c->client_ended || r->finish_ms);
    if (!c->over && (c->server_gone || c->server_ended))
        begin_closing(r, c);
}

static void work(struct tls_relay *r, struct relay_connection *c)
{
    c->n_read = 0;
    c->is_limited = false;
    if (!c->shaken && !c->over)
        shake(r, c);
    bool moves = c->shaken;
    for (int i = 0; moves && i < PIECES && !c->over; i++) {
        const bool moves_up = move_up(r, c);
        moves = move_down(r, c) || moves_up;
    }
    if ((moves || c->is_limited) && !c->over)
        mark_ready(r, c);
    if (!c->over)
        note_end(r, c);
    if (c->over && !c->is_ready)
        free_connection(r, c);
}

/* One round. */
static void run_ready(struct tls_relay *r)
{
    struct relay_connection *c = r->ready.first;
    r->ready = (struct ready_list){.end = &r->ready.first};
    for (struct relay_connection *next; c; c = next) {
        next = c->next_ready;
        c->is_ready = false;
        work(r, c);
    }
    for (int i = 0; i < HANDSHAKES && r->handshakes.first; i++)
        work(r, take_ready(&r->handshakes));
}

/* The reason to end a connection that nothing moves, "" for one that is none of a failed handshake;
 * NULL: none. */
static const char *overdue(const struct tls_relay *r, const struct relay_connection *c)
{
    if (!c->shaken)
        return r->now_ms - c->begun_ms > HANDSHAKE_MS ? "the client took too long" : NULL;
    if (!c->server_ended && !c->server_gone)
        return NULL; /* the server's matter */
    const bool is_overdue = c->down_ended ? c->server_gone && r->now_ms - c->ended_ms > LINGER_MS
                                          : r->now_ms - c->progress_ms > r->write_timeout_ms;
    return is_overdue ? "" : NULL;
}

static void check_list(struct tls_relay *r, const struct relay_list *list)
{
    for (struct relay_connection *c = list->first; c; c = c->next) {
        const char *why = c->over ? NULL : overdue(r, c);
        if (!why)
            continue;
        if (*why)
            note_failure(r, c, why);
        end_connection(r, c);
    }
}

static void check_times(struct tls_relay *r)
{
    if (r->now_ms - r->checked_ms < CHECK_MS)
        return;
    r->checked_ms = r->now_ms;
    check_list(r, &r->open);
    check_list(r, &r->closing);
}

/* The lowest bit of a pointer to a connection says which descriptor the event is of. */
static bool watch(const struct tls_relay *r, struct relay_connection *c, bool is_server)
{
    struct epoll_event ev = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
        .data.u64 = (uintptr_t)c | is_server,
    };
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, is_server ? c->server : c->client, &ev) == 0;
}

static void take(struct tls_relay *r, const struct relay_order *order)
{
    struct relay_connection *c = q_calloc(1, sizeof *c);
    if (!c) {
        SSL_free(order->ssl);
        close(order->client);
        close(order->server);
        r->n_connection--;
        return;
    }
    *c = (struct relay_connection){
        .ssl = order->ssl,
        .client = order->client,
        .server = order->server,
        .begun_ms = r->now_ms,
    };
    list_add(&r->open, c);
    BIO_set_callback_arg(SSL_get_rbio(c->ssl), (char *)c);
    BIO_set_callback_ex(SSL_get_rbio(c->ssl), limit_read);
    c->over = !watch(r, c, false) || !watch(r, c, true);
    mark_ready(r, c);
}

static void begin_finish(struct tls_relay *r)
{
    r->finish_ms = r->now_ms + FINISH_MS;
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, queue_fd(&r->orders), NULL); /* it stays readable */
    for (struct relay_connection *c = r->open.first; c; c = c->next)
        mark_ready(r, c);
    for (struct relay_connection *c = r->closing.first; c; c = c->next)
        mark_ready(r, c);
}

static void take_orders(struct tls_relay *r)
{
    struct relay_order order;
    while (queue_pop(&r->orders, &order, 0))
        take(r, &order);
    if (!r->finish_ms && queue_closed(&r->orders))
        begin_finish(r);
}

static void note_event(struct tls_relay *r, const struct epoll_event *ev)
{
    struct relay_connection *c = (struct relay_connection *)(uintptr_t)(ev->data.u64 & ~1ull);
    if (!c) {
        take_orders(r);
        return;
    }
    if (ev->data.u64 & 1)
        c->server_gone |= (ev->events & (EPOLLHUP | EPOLLERR)) != 0;
    else
        c->over |= (ev->events & EPOLLERR) != 0; /* HUP alone: both sides have ended */
    mark_ready(r, c);
}

static void *thread_main(void *p)
{
    struct tls_relay *r = p;
    struct epoll_event events[EVENTS];
    while (!r->finish_ms || (r->n_connection && r->now_ms < r->finish_ms)) {
        const bool waits = !r->ready.first && !r->handshakes.first;
        const int n = epoll_wait(r->epoll, events, EVENTS, waits ? CHECK_MS : 0);
        r->now_ms = clock_ms();
        for (int i = 0; i < n; i++)
            note_event(r, &events[i]);
        check_times(r);
        run_ready(r);
    }
    while (r->open.first)
        free_connection(r, r->open.first);
    while (r->closing.first)
        free_connection(r, r->closing.first);
    r->finished = true;
    return NULL;
}

/* ---- the loop's side ---- */

static enum q_code start(struct tls_relay *r, struct q_err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0};
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (r->epoll < 0 || epoll_ctl(r->epoll, EPOLL_CTL_ADD, queue_fd(&r->orders), &ev) != 0)
        return q_fail(e, Q_IO, "tls: epoll: %s", strerror(errno));
    const int failed = pthread_create(&r->thread, NULL, thread_main, r);
    return failed ? q_fail(e, Q_IO, "tls: cannot start a thread: %s", strerror(failed)) : Q_OK;
}

FALLIBLE tls_relay_new(struct tls_relay **out, uint32_t connections_max, int64_t write_timeout_ms,
                       struct q_err *e)
{
    struct tls_relay *r = q_calloc(1, sizeof *r);
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "tls: out of memory for the relay");
    *r = (struct tls_relay){
        .epoll = -1,
        .connections_max = connections_max + TLS_CLOSING_MAX,
        .write_timeout_ms = write_timeout_ms,
    };
    r->ready.end = &r->ready.first;
    r->handshakes.end = &r->handshakes.first;
    r->now_ms = r->checked_ms = clock_ms();
    enum q_code rc =
        queue_init(&r->orders, sizeof(struct relay_order), r->connections_max, true, e);
    if (rc == Q_OK)
        rc = start(r, e);
    if (rc == Q_OK) {
        *out = r;
        return Q_OK;
    }
    if (r->epoll >= 0)
        close(r->epoll);
    queue_release(&r->orders);
    q_free(r);
    return rc;
}

/* Order the thread to relay between `client` and `server`, which are its own then. */
static enum q_code order_relay(struct tls_relay *r, SSL_CTX *context, int client, int server,
                               struct q_err *e)
{
    const struct relay_order order = {SSL_new(context), client, server};
    if (!order.ssl || SSL_set_fd(order.ssl, client) != 1) {
        SSL_free(order.ssl);
        return q_fail(e, Q_NO_MEMORY, "out of memory for a connection with TLS");
    }
    r->n_connection++;
    const enum q_code rc = queue_push(&r->orders, &order, e);
    if (rc) {
        r->n_connection--;
        SSL_free(order.ssl);
    }
    return rc;
}

FALLIBLE tls_relay_insert(struct tls_relay *r, SSL_CTX *context, int fd, struct q_err *e)
{
    enum q_code rc = Q_OK;
    int pair[2] = {-1, -1};
    if (r->n_connection >= r->connections_max)
        return q_fail(e, Q_NO_SPACE, "too many connections with TLS wait for their clients");
    const int client = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (client < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ||
        dup3(pair[0], fd, O_CLOEXEC) < 0)
        rc = q_fail(e, Q_IO, "no descriptors for a connection with TLS: %s", strerror(errno));
    if (rc == Q_OK)
        rc = order_relay(r, context, client, pair[1], e);
    if (pair[0] >= 0)
        close(pair[0]);
    if (rc && client >= 0)
        close(client);
    if (rc && pair[1] >= 0)
        close(pair[1]);
    return rc;
}

void tls_relay_finish(struct tls_relay *r)
{
    queue_close(&r->orders);
}

bool tls_relay_finished(struct tls_relay *r)
{
    if (r->finished && !r->is_joined)
        pthread_join(r->thread, NULL); /* it has nothing left to do */
    r->is_joined = r->finished;
    return r->is_joined;
}
