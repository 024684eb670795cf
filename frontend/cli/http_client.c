/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/buf.h"
#include "frontend/cli/tls_client.h"

#define STOP_LOOK_MS 100

FALLIBLE http_url_parse(struct http_url *out, const char *text, struct q_err *e)
{
    static const char plain[] = "http://", tls[] = "https://";
    out->tls = !strncasecmp(text, tls, sizeof tls - 1);
    if (!out->tls && strncasecmp(text, plain, sizeof plain - 1) != 0)
        return q_fail(e, Q_INVALID,
                      "--url: expected http://host:port or https://host:port, got %.200s", text);
    const char *at = text + (out->tls ? sizeof tls : sizeof plain) - 1;
    bool v6 = *at == '[';
    at += v6;
    size_t n = strcspn(at, v6 ? "]" : ":/");
    if (n == 0 || n >= sizeof out->host)
        return q_fail(e, Q_INVALID, "--url: the host is missing in %.200s", text);
    memcpy(out->host, at, n);
    out->host[n] = 0;
    at += n + (v6 && at[n] == ']');
    snprintf(out->port, sizeof out->port, "%s", out->tls ? "443" : "80");
    if (*at == ':') {
        n = strspn(++at, "0123456789");
        if (n == 0 || n > 5)
            return q_fail(e, Q_INVALID, "--url: the port is missing in %.200s", text);
        snprintf(out->port, sizeof out->port, "%.*s", (int)n, at);
        at += n;
    }
    if (*at && *at != '/')
        return q_fail(e, Q_INVALID, "--url: expected %s://host:port, got %.200s",
                      http_url_scheme(out), text);
    n = strlen(at);
    while (n && at[n - 1] == '/')
        n--;
    if (n >= 3 && !strncmp(at + n - 3, "/v1", 3)) /* the base URL in the form of SDKs */
        n -= 3;
    if (n >= sizeof out->prefix)
        return q_fail(e, Q_INVALID, "--url: too long");
    snprintf(out->prefix, sizeof out->prefix, "%.*s", (int)n, at);
    return Q_OK;
}

struct reader { /* bytes from the socket, a line or a block at a time */
    int fd;
    struct tls_client tls; /* open if the URL is https:// */
    const volatile sig_atomic_t *stop;
    char data[HTTP_LINE_MAX];
    size_t at, n;
};

static enum q_code connect_to(const struct http_url *url, int *fd, struct q_err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc = getaddrinfo(url->host, url->port, &hints, &found);
    if (rc)
        return q_fail(e, Q_IO, "%s: %s", url->host, gai_strerror(rc));
    *fd = -1;
    for (struct addrinfo *a = found; a && *fd < 0; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd >= 0 && connect(*fd, a->ai_addr, a->ai_addrlen) != 0) {
            int error = errno;
            close(*fd);
            *fd = -1;
            errno = error;
        }
    }
    freeaddrinfo(found);
    if (*fd < 0)
        return q_fail(e, Q_IO,
                      "cannot connect to %s://%s:%s: %s (start a server with `quire serve "
                      "MODEL`, or run the model in the chat itself with `quire chat MODEL`)",
                      http_url_scheme(url), url->host, url->port, strerror(errno));
    return Q_OK;
}

static enum q_code send_all(struct reader *r, const struct buf *b, struct q_err *e)
{
    if (r->tls.ssl)
        return tls_client_write(&r->tls, b->data, b->len, e);
    for (size_t at = 0; at < b->len;) {
        ssize_t n = send(r->fd, b->data + at, b->len - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return q_fail(e, Q_IO, "sending the request: %s", strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    return Q_OK;
}

/* Have at least one unread byte. Errors: Q_IO (also the end of the stream). */
static enum q_code fill(struct reader *r, struct q_err *e)
{
    ssize_t n;
    if (r->at < r->n)
        return Q_OK;
    if (r->tls.ssl) {
        r->at = r->n = 0;
        return tls_client_read(&r->tls, r->data, sizeof r->data, &r->n, e);
    }
    do {
        struct pollfd p = {.fd = r->fd, .events = POLLIN};
        int ready = poll(&p, 1, r->stop ? STOP_LOOK_MS : -1);
        if (r->stop && *r->stop)
            return q_fail(e, Q_CANCELLED, "stopped");
        n = ready > 0 ? recv(r->fd, r->data, sizeof r->data, 0) : -1;
        if (ready <= 0)
            errno = EINTR;
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return q_fail(e, Q_IO, "the server closed the connection%s%s", n ? ": " : "",
                      n ? strerror(errno) : "");
    r->at = 0;
    r->n = (size_t)n;
    return Q_OK;
}

/* A line without its end. */
static enum q_code read_line(struct reader *r, char *out, size_t size, struct q_err *e)
{
    size_t n = 0;
    for (;;) {
        enum q_code rc = fill(r, e);
        if (rc != Q_OK)
            return rc;
        char c = r->data[r->at++];
        if (c == '\n')
            break;
        if (n + 1 >= size)
            return q_fail(e, Q_CORRUPT, "a line of the server's response exceeds %zu bytes", size);
        if (c != '\r')
            out[n++] = c;
    }
    out[n] = 0;
    return Q_OK;
}

/* Pass n bytes of the body to on_body; SIZE_MAX: until the connection ends. */
static enum q_code read_block(struct reader *r, struct http_call *c, size_t n, struct q_err *e)
{
    while (n) {
        enum q_code rc = fill(r, e);
        if (rc == Q_IO && n == SIZE_MAX) {
            q_err_reset(e);
            return Q_OK;
        }
        if (rc != Q_OK)
            return rc;
        size_t k = r->n - r->at < n ? r->n - r->at : n;
        if ((rc = c->on_body(c->ctx, r->data + r->at, k, e)) != Q_OK)
            return rc;
        r->at += k;
        n -= n == SIZE_MAX ? 0 : k;
    }
    return Q_OK;
}

static enum q_code read_chunks(struct reader *r, struct http_call *c, struct q_err *e)
{
    char line[256];
    enum q_code rc;
    for (;;) {
        if ((rc = read_line(r, line, sizeof line, e)) != Q_OK)
            return rc;
        char *end;
        unsigned long n = strtoul(line, &end, 16);
        if (end == line || n > (1ul << 30))
            return q_fail(e, Q_CORRUPT, "the server's response has an invalid chunk");
        if ((rc = read_block(r, c, n, e)) || (rc = read_line(r, line, sizeof line, e)))
            return rc;
        if (n == 0)
            return Q_OK;
    }
}

static enum q_code read_answer(struct reader *r, struct http_call *c, struct q_err *e)
{
    char line[HTTP_LINE_MAX];
    size_t length = SIZE_MAX;
    bool chunked = false;
    enum q_code rc = read_line(r, line, sizeof line, e);
    if (rc != Q_OK)
        return rc;
    if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12)
        return q_fail(e, Q_CORRUPT, "the server's response is not HTTP/1.1");
    c->status = (int)strtol(line + 9, NULL, 10);
    while ((rc = read_line(r, line, sizeof line, e)) == Q_OK && *line) {
        if (!strncasecmp(line, "content-length:", 15))
            length = strtoul(line + 15, NULL, 10);
        if (!strncasecmp(line, "transfer-encoding:", 18) && strstr(line + 18, "chunked"))
            chunked = true;
    }
    if (rc != Q_OK)
        return rc;
    return chunked ? read_chunks(r, c, e) : read_block(r, c, length, e);
}

FALLIBLE http_call(const struct http_url *url, struct http_call *c, struct q_err *e)
{
    struct buf head = BUF_INIT;
    struct reader r = {.fd = -1, .stop = c->stop, .tls = TLS_CLIENT_INIT};
    enum q_code rc;
    c->status = 0;
    buf_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n", c->method,
               url->prefix, c->path, url->host, url->port);
    if (c->api_key && *c->api_key)
        buf_printf(&head, "Authorization: Bearer %s\r\n", c->api_key);
    if (c->body)
        buf_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", c->n_body);
    buf_add_str(&head, "\r\n");
    buf_add(&head, c->body ? c->body : "", c->n_body);
    if ((rc = buf_check(&head, "the request", e)) == Q_OK &&
        (rc = connect_to(url, &r.fd, e)) == Q_OK && url->tls)
        rc = tls_client_open(&r.tls, r.fd, url->host, c->stop, e);
    if (rc == Q_OK && (rc = send_all(&r, &head, e)) == Q_OK)
        rc = read_answer(&r, c, e);
    tls_client_release(&r.tls);
    if (r.fd >= 0)
        close(r.fd);
    buf_release(&head);
    return rc;
}
