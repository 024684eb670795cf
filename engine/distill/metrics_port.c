/* SPDX-License-Identifier: Apache-2.0 */
/* The thread waits for a connection or for the end (a pipe), reads a request's head, answers and
 * closes. Values are relaxed atomics: a scrape may see two of neighbouring steps. */
#include "engine/distill/metrics_port.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/net.h"

#define HEAD_MAX  4096 /* bytes of a request */
#define TIMEOUT_S 2    /* of a connection's reads and writes */

static const struct {
    const char *name, *kind, *help;
} rows[RUN_METRICS] = {
#define RUN_METRIC(id, name, kind, help) {name, #kind, help},
#include "engine/distill/run_metrics.def"
};

struct metrics_port {
    struct net_sockets sockets;
    int end[2]; /* a pipe: closed at the end */
    pthread_t thread;
    bool runs;
    uint32_t n_rank;
    _Atomic double values[RUN_METRICS];
    _Atomic bool is_set[RUN_METRICS]; /* a gauge has had a value */
    _Atomic double *rss;              /* [n_rank] */
};

void metrics_port_set(struct metrics_port *p, enum run_metric m, double value)
{
    atomic_store_explicit(&p->values[m], value, memory_order_relaxed);
    atomic_store_explicit(&p->is_set[m], true, memory_order_relaxed);
}

void metrics_port_add(struct metrics_port *p, enum run_metric m, double value)
{
    const double old = atomic_load_explicit(&p->values[m], memory_order_relaxed);
    atomic_store_explicit(&p->values[m], old + value, memory_order_relaxed);
}

void metrics_port_rss(struct metrics_port *p, uint32_t rank, double mb)
{
    atomic_store_explicit(&p->rss[rank], mb, memory_order_relaxed);
}

/* ---- answers ---- */

/* What is no number has a spelling of its own, without a sign. */
static void add_value(struct buf *out, const char *name, double v)
{
    if (isnan(v))
        buf_printf(out, "%s NaN\n", name);
    else if (isinf(v))
        buf_printf(out, "%s %cInf\n", name, v > 0 ? '+' : '-');
    else
        buf_printf(out, "%s %.17g\n", name, v);
}

/* A gauge that has had no value has no sample. */
static void render(struct buf *out, struct metrics_port *p)
{
    for (uint32_t i = 0; i < RUN_METRICS; i++) {
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", rows[i].name, rows[i].help, rows[i].name,
                   rows[i].kind);
        if (rows[i].kind[0] == 'c' || atomic_load_explicit(&p->is_set[i], memory_order_relaxed))
            add_value(out, rows[i].name, atomic_load_explicit(&p->values[i], memory_order_relaxed));
    }
    buf_add_str(out, "# HELP quire:distill_peak_rss_bytes Peak resident memory of a rank.\n"
                     "# TYPE quire:distill_peak_rss_bytes gauge\n");
    for (uint32_t i = 0; i < p->n_rank; i++)
        buf_printf(out, "quire:distill_peak_rss_bytes{rank=\"%u\"} %.0f\n", i,
                   1048576 * atomic_load_explicit(&p->rss[i], memory_order_relaxed));
}

/* The request's head, as far as HEAD_MAX bytes hold it. */
static size_t read_head(int fd, char head[HEAD_MAX])
{
    size_t n = 0;
    while (n < HEAD_MAX - 1) {
        const ssize_t got = read(fd, head + n, HEAD_MAX - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
        head[n] = '\0';
        if (strstr(head, "\r\n\r\n"))
            break;
    }
    head[n] = '\0';
    return n;
}

static void write_all(int fd, const struct buf *b)
{
    for (size_t at = 0; at < b->len;) {
        const ssize_t n = send(fd, b->data + at, b->len - at, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        at += (size_t)n;
    }
}

static void answer(struct metrics_port *p, int fd)
{
    const struct timeval limit = {.tv_sec = TIMEOUT_S};
    char head[HEAD_MAX];
    struct buf body = BUF_INIT, all = BUF_INIT;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const bool is_ours = read_head(fd, head) && (!strncmp(head, "GET /metrics ", 13) ||
                                                 !strncmp(head, "GET /metrics?", 13));
    if (is_ours)
        render(&body, p);
    else
        buf_add_str(&body, "only GET /metrics is served here\n");
    buf_printf(&all,
               "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
               "Content-Length: %zu\r\nConnection: close\r\n\r\n",
               is_ours ? "200 OK" : "404 Not Found", body.len);
    buf_add(&all, buf_str(&body), body.len);
    if (!body.failed && !all.failed)
        write_all(fd, &all);
    buf_release(&body);
    buf_release(&all);
}

static void *serve(void *arg)
{
    struct metrics_port *p = arg;
    struct pollfd waits[NET_LISTEN_MAX + 1] = {{.fd = p->end[0], .events = POLLIN}};
    for (uint32_t i = 0; i < p->sockets.n; i++)
        waits[i + 1] = (struct pollfd){.fd = p->sockets.fd[i], .events = POLLIN};
    for (;;) {
        if (poll(waits, p->sockets.n + 1, -1) < 0 && errno != EINTR)
            return NULL;
        if (waits[0].revents)
            return NULL;
        for (uint32_t i = 1; i <= p->sockets.n; i++) {
            const int fd = waits[i].revents ? accept4(waits[i].fd, NULL, NULL, SOCK_CLOEXEC) : -1;
            if (fd < 0)
                continue;
            answer(p, fd);
            close(fd);
        }
    }
}

/* ---- life ---- */

static FALLIBLE start(struct metrics_port *p, uint32_t port, struct q_err *e)
{
    const int error = net_open(&p->sockets, "127.0.0.1", (uint16_t)port);
    if (error)
        return q_fail(e, Q_IO, "--metrics-port %u: %s; choose another port", port,
                      net_error_text(error));
    if (pipe2(p->end, O_CLOEXEC))
        return q_fail(e, Q_IO, "--metrics-port: pipe: %s", strerror(errno));
    const int rc = pthread_create(&p->thread, NULL, serve, p);
    if (rc)
        return q_fail(e, Q_IO, "--metrics-port: thread: %s", strerror(rc));
    p->runs = true;
    return Q_OK;
}

FALLIBLE metrics_port_open(struct metrics_port **out, uint32_t port, uint32_t n_rank,
                           struct q_err *e)
{
    struct metrics_port *p = q_calloc(1, sizeof *p);
    *out = NULL;
    if (p) {
        p->end[0] = p->end[1] = -1;
        p->n_rank = n_rank;
        p->rss = q_calloc(n_rank, sizeof *p->rss);
    }
    enum q_code rc =
        !p || !p->rss ? q_fail(e, Q_NO_MEMORY, "no memory for metrics") : start(p, port, e);
    if (rc)
        metrics_port_close(p);
    else
        *out = p;
    return rc;
}

void metrics_port_close(struct metrics_port *p)
{
    if (!p)
        return;
    if (p->end[1] >= 0)
        close(p->end[1]); /* the thread's poll sees it */
    if (p->runs)
        pthread_join(p->thread, NULL);
    if (p->end[0] >= 0)
        close(p->end[0]);
    net_sockets_close(&p->sockets);
    q_free((void *)p->rss);
    q_free(p);
}
