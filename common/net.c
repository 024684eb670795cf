/* SPDX-License-Identifier: Apache-2.0 */
#include "common/net.h"
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/log.h"

#define TCP_FLAGS      13 /* byte of the header */
#define TCP_SYN        0x02
#define TCP_SYN_ACK    0x12
#define LOOPBACK_FIRST 127 /* 127.0.0.0/8 */
#define BACKLOG        1024
#define PORT_TRIES     16 /* attempts to find a port that is free at every address */

static_assert(EAI_NONAME < 0, "net_open returns errors of getaddrinfo below 0");
/* The port is at the same offset in both structs. */
static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
              "one struct reads both");

static uint16_t port_of(int fd)
{
    struct sockaddr_in6 at = {.sin6_port = 0};
    socklen_t n = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &n) == 0 ? ntohs(at.sin6_port) : 0;
}

/* 0 or an errno. */
static int listen_at(int *out, const struct addrinfo *a, uint16_t port, bool only_v6, bool shares)
{
    const int on = 1;
    struct sockaddr_in6 at = {.sin6_port = 0};
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    memcpy(&at, a->ai_addr, a->ai_addrlen < sizeof at ? a->ai_addrlen : sizeof at);
    at.sin6_port = htons(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (shares)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (only_v6 && a->ai_family == AF_INET6) /* otherwise "::" also takes the port of IPv4 */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        const int error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

/* Is the same address in the list before this one? /etc/hosts may repeat addresses. */
static bool is_repeated(const struct addrinfo *first, const struct addrinfo *a)
{
    for (; first != a; first = first->ai_next)
        if (first->ai_addrlen == a->ai_addrlen &&
            !memcmp(first->ai_addr, a->ai_addr, a->ai_addrlen))
            return true;
    return false;
}

static bool is_absent(int error)
{
    return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

/* One attempt. Returns 0, or the errno of the address that failed; then nothing is open. */
static int listen_all(struct net_sockets *out, const struct addrinfo *found, uint16_t port,
                      bool shares)
{
    int absent = 0, error = 0;
    *out = (struct net_sockets){.port = port};
    for (const struct addrinfo *a = found; a && !error && out->n < NET_LISTEN_MAX; a = a->ai_next) {
        if (is_repeated(found, a))
            continue;
        error = listen_at(&out->fd[out->n], a, out->port, found->ai_next != NULL, shares);
        if (is_absent(error)) {
            absent = error;
            error = 0;
            continue;
        }
        if (!error)
            out->port = port_of(out->fd[out->n++]);
    }
    if (!error && out->n == 0)
        error = absent;
    if (error)
        net_sockets_close(out);
    return error;
}

static int open_all(struct net_sockets *out, const char *host, uint16_t port, bool shares)
{
    const struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
    };
    struct addrinfo *found = NULL;
    *out = (struct net_sockets){.n = 0};
    int error = getaddrinfo(host, "0", &hints, &found), tries = port ? 1 : PORT_TRIES;
    if (error)
        return error;
    do {
        error = listen_all(out, found, port, shares);
    } while (error == EADDRINUSE &&
             --tries > 0); /* the port was free at one address and taken at another */
    freeaddrinfo(found);
    return error;
}

int net_open(struct net_sockets *out, const char *host, uint16_t port)
{
    return open_all(out, host, port, false);
}

const char *net_error_text(int error)
{
    return error < 0 ? gai_strerror(error) : strerror(error);
}

static FALLIBLE listen_on(struct net_sockets *out, const char *host, uint16_t port, bool shares,
                          struct q_err *e)
{
    const int error = open_all(out, host, port, shares);
    if (error < 0)
        return q_fail(e, Q_IO, "--host: cannot listen on %s: %s", host, net_error_text(error));
    if (error)
        return q_fail(e, Q_IO, "cannot listen on %s port %u: %s%s", host, port,
                      net_error_text(error), net_hint(error));
    return Q_OK;
}

FALLIBLE net_listen(struct net_sockets *out, const char *host, uint16_t port, struct q_err *e)
{
    return listen_on(out, host, port, false, e);
}

FALLIBLE net_listen_shared(struct net_sockets *out, const char *host, uint16_t port,
                           struct q_err *e)
{
    return listen_on(out, host, port, true, e);
}

void net_sockets_close(struct net_sockets *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        close(s->fd[i]);
    s->n = 0;
}

/* 0 or an errno: EADDRINUSE if a process listens there. */
static int remove_stale(const struct sockaddr_un *at)
{
    struct stat st;
    if (lstat(at->sun_path, &st) != 0)
        return errno == ENOENT ? 0 : errno;
    if (!S_ISSOCK(st.st_mode))
        return ENOTSOCK;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    const bool is_stale =
        connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!is_stale)
        return EADDRINUSE;
    return unlink(at->sun_path) == 0 || errno == ENOENT ? 0 : errno;
}

static int listen_path(int *out, const struct sockaddr_un *at)
{
    int error = remove_stale(at);
    if (error)
        return error;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (bind(fd, (const struct sockaddr *)at, sizeof *at) != 0) {
        error = errno;
    } else if (listen(fd, BACKLOG) != 0) {
        error = errno;
        unlink(at->sun_path);
    }
    if (error)
        close(fd);
    else
        *out = fd;
    return error;
}

FALLIBLE net_listen_path(struct net_sockets *out, struct net_path *at, const char *path,
                         struct q_err *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    *out = (struct net_sockets){.n = 0};
    *at = (struct net_path){.text = ""};
    if (strlen(path) >= sizeof address.sun_path)
        return q_fail(e, Q_IO, "--uds: the path has %zu bytes, expected at most %zu: %s",
                      strlen(path), sizeof address.sun_path - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    const int error = listen_path(&out->fd[0], &address);
    if (error)
        return q_fail(e, Q_IO, "--uds: cannot listen on %s: %s", path,
                      error == EADDRINUSE ? "another process listens on it"
                      : error == ENOTSOCK ? "the file exists and is no socket"
                                          : strerror(error));
    out->n = 1;
    if (stat(path, &st) == 0) {
        memcpy(at->text, path, strlen(path) + 1);
        at->device = st.st_dev;
        at->inode = st.st_ino;
    }
    return Q_OK;
}

void net_path_remove(struct net_path *at)
{
    struct stat st;
    if (at->text[0] && lstat(at->text, &st) == 0 && st.st_dev == at->device &&
        st.st_ino == at->inode)
        unlink(at->text);
    at->text[0] = 0;
}

void net_drop_new(int fd)
{
    static struct sock_filter code[] = {
        {BPF_LD | BPF_B | BPF_ABS, 0, 0, TCP_FLAGS}, {BPF_ALU | BPF_AND | BPF_K, 0, 0, TCP_SYN_ACK},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, TCP_SYN},  {BPF_RET | BPF_K, 0, 0, 0},
        {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    int family = AF_UNIX;
    socklen_t n = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n) != 0 || family == AF_UNIX)
        return;
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

FALLIBLE net_raise_descriptors(uint32_t n, struct q_err *e)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= n)
        return Q_OK;
    struct rlimit raised = r;
    raised.rlim_cur = r.rlim_max < n ? r.rlim_max : n;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
        r = raised;
    else
        log_warning("cannot raise the limit of open file descriptors: %s", strerror(errno));
    if (r.rlim_cur >= NET_DESCRIPTORS_LEAST)
        return Q_OK;
    return q_fail(e, Q_IO,
                  "the limit of open file descriptors is %llu, at least %d are needed, and one "
                  "more for each connection: raise it (ulimit -n, LimitNOFILE=)",
                  (unsigned long long)r.rlim_cur, NET_DESCRIPTORS_LEAST);
}

bool net_is_open(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, a, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 != LOOPBACK_FIRST;
    }
    if (a->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 v6;
    memcpy(&v6, a, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        return v6.sin6_addr.s6_addr[12] != LOOPBACK_FIRST;
    return !IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool net_host_is_open(const char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    if (strcmp(host, "*") == 0 || getaddrinfo(host, "0", &hints, &found) != 0)
        return true; /* "*" is every address; a name that cannot be resolved counts as reachable */
    bool open = false;
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        open = open || net_is_open(a->ai_addr);
    freeaddrinfo(found);
    return open;
}

void net_warn_open(const char *host, unsigned port)
{
    if (net_host_is_open(host))
        log_warning("no API key is set and %s port %u is reachable from other machines: any of "
                    "them can use the model; set --api-key or --api-key-file, or --host 127.0.0.1",
                    host, port);
}

const char *net_hint(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "; another process uses this port: stop it, or choose another port with --port";
    case EACCES:
        return "; ports below 1024 are privileged: choose a higher one with --port, or grant the "
               "process CAP_NET_BIND_SERVICE";
    case EADDRNOTAVAIL:
        return "; this machine does not have this address: use --host 0.0.0.0 for all interfaces, "
               "or 127.0.0.1 for this machine only";
    default:
        return "";
    }
}
