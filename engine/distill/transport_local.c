/* SPDX-License-Identifier: Apache-2.0 */
/* Between each two ranks lies a socket, whose records are small: a message (with its data when they
 * are few), the word that a message was received, the end of a run. Data of larger messages are
 * written by the sender into memory that both map, one of TRANSPORT_SENDS slots for each direction
 * and lane, and copied out by the receiver. So
 *  - a message is at its receiver at once, whatever the sender computes afterwards: no thread has
 *    to push it through a socket;
 *  - a socket never holds more than SLOTS messages and as many words back, which always fit,
 *    so no send of a record blocks, and two ranks that send to each other never wait in a
 *    circle;
 *  - a rank that dies closes its sockets, and all others see it while they wait for any rank.
 *
 *     sender                       socket                      receiver
 *     copy into slot 1 ──▶ MESSAGE tag, n, slot 1 (fd) ──▶ kept in order of arrival
 *     slot 1 is free   ◀── RECEIVED slot 1             ◀── copied out by a receive of that tag */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/parse.h"
#include "engine/distill/transport_internal.h"

#define INLINE_BYTES 2048 /* data within a record; a cause's length */
#define SLOTS        (TRANSPORT_LANES * TRANSPORT_SENDS) /* of a direction, by lane */
#define SLOT_ROUND   ((size_t)64 << 10)

enum record_kind { RECORD_MESSAGE = 1, RECORD_RECEIVED, RECORD_END, RECORD_FAILED };
struct record {
    uint32_t kind, tag, slot, is_inline;
    uint64_t n;        /* bytes of the message */
    uint64_t capacity; /* of the slot's memory */
    unsigned char data[INLINE_BYTES];
};
#define RECORD_HEAD offsetof(struct record, data)

struct slot { /* memory of one direction */
    int fd;   /* -1: none yet */
    unsigned char *at;
    size_t capacity;
    bool busy;   /* of the sender: not received yet */
    bool shared; /* of the sender: the receiver has fd */
};
struct rank_link {
    int fd;                   /* -1: this rank, or the peer's end was read */
    bool ended, gone;         /* its run is over; it has died or failed */
    char cause[INLINE_BYTES]; /* of its failure; "": it has died */
    struct slot out[SLOTS], in[SLOTS];
    struct record inbox[SLOTS]; /* in order of arrival */
    uint32_t n_inbox;
};
struct local {
    struct transport_state *s;
    struct rank_link *links; /* [s->size] */
};

/* ---- slots ---- */

static void slot_release(struct slot *s)
{
    if (s->at)
        munmap(s->at, s->capacity);
    if (s->fd >= 0)
        close(s->fd);
    *s = (struct slot){.fd = -1};
}

static enum q_code map_slot(struct slot *s, size_t capacity, struct q_err *e)
{
    void *at = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "transport: mmap of %zu bytes: %s", capacity,
                      strerror(errno));
    if (s->at)
        munmap(s->at, s->capacity);
    s->at = at;
    s->capacity = capacity;
    return Q_OK;
}

/* Room for n bytes. The memory is reserved, so that a full machine is an error and no SIGBUS. */
static enum q_code grow_slot(struct slot *s, size_t n, struct q_err *e)
{
    size_t capacity = (n + SLOT_ROUND - 1) / SLOT_ROUND * SLOT_ROUND;
    if (n <= s->capacity)
        return Q_OK;
    if (s->fd < 0)
        s->fd = memfd_create("quire-rank", MFD_CLOEXEC);
    if (s->fd < 0)
        return q_fail(e, Q_IO, "transport: memfd_create: %s", strerror(errno));
    int failed = posix_fallocate(s->fd, 0, (off_t)capacity);
    if (failed)
        return q_fail(e, Q_NO_MEMORY, "transport: no memory for a message of %zu bytes: %s", n,
                      strerror(failed));
    return map_slot(s, capacity, e);
}

/* ---- records ---- */

/* The error of a rank's death, or Q_OK. One that died without a cause comes first: others may have
 * failed because of it. */
static enum q_code check_peers(struct local *l, struct q_err *e)
{
    uint32_t found = l->s->size;
    for (uint32_t i = 0; i < l->s->size; i++)
        if (l->links[i].gone && (found == l->s->size || !l->links[i].cause[0]))
            found = i;
    if (found == l->s->size)
        return Q_OK;
    l->s->peer_failed = true;
    if (!l->links[found].cause[0])
        return q_fail(e, Q_IO, "rank %u has died", found);
    return q_fail(e, Q_IO, "rank %u has failed: %s", found, l->links[found].cause);
}

/* fd -1: none goes along. A peer that has ended is no error here. */
static enum q_code send_record(struct local *l, uint32_t to, const struct record *r, int fd,
                               struct q_err *e)
{
    struct rank_link *p = &l->links[to];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)r, RECORD_HEAD + (r->is_inline ? r->n : 0)};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = p->fd < 0 ? 0 : sendmsg(p->fd, &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0 || errno == EPIPE || errno == ECONNRESET) /* its end is read later */
        return Q_OK;
    return q_fail(e, Q_IO, "transport: a message to rank %u: %s", to, strerror(errno));
}

/* The fd that came along, or -1. */
static int take_fd(struct msghdr *m)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    int fd = -1;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/* A message waits in p->inbox[p->n_inbox]. */
static enum q_code keep_message(struct rank_link *p, int fd, struct q_err *e)
{
    const struct record *r = &p->inbox[p->n_inbox];
    struct slot *s = &p->in[r->slot];
    if (fd >= 0) {
        slot_release(s);
        s->fd = fd;
    }
    p->n_inbox++;
    struct stat st;
    if (r->is_inline || r->capacity <= s->capacity)
        return Q_OK;
    if (s->fd < 0 || fstat(s->fd, &st) != 0 || (uint64_t)st.st_size < r->capacity)
        return q_fail(e, Q_CORRUPT, "transport: a message of %llu bytes without its memory",
                      (unsigned long long)r->n);
    return map_slot(s, r->capacity, e);
}

static enum q_code handle_record(struct local *l, uint32_t from, struct record *r, int fd,
                                 struct q_err *e)
{
    struct rank_link *p = &l->links[from];
    const size_t n_data = r->is_inline ? (size_t)r->n : 0;
    if (r->slot < SLOTS && n_data <= INLINE_BYTES && (r->is_inline || r->n <= r->capacity)) {
        switch (r->kind) {
        case RECORD_MESSAGE:
            if (p->n_inbox == SLOTS)
                break;
            memcpy(&p->inbox[p->n_inbox], r, RECORD_HEAD + n_data);
            return keep_message(p, fd, e);
        case RECORD_RECEIVED:
            p->out[r->slot].busy = false;
            return Q_OK;
        case RECORD_END:
            p->ended = true;
            return Q_OK;
        case RECORD_FAILED:
            snprintf(p->cause, sizeof p->cause, "%.*s", (int)n_data, (const char *)r->data);
            p->gone = true;
            return Q_OK;
        default:
            break;
        }
    }
    if (fd >= 0)
        close(fd);
    return q_fail(e, Q_CORRUPT, "transport: rank %u has sent a record that has no meaning", from);
}

/* All records that a peer has sent. */
static enum q_code read_peer(struct local *l, uint32_t from, struct q_err *e)
{
    struct rank_link *p = &l->links[from];
    enum q_code rc = Q_OK;
    while (!rc && p->fd >= 0) {
        struct record r;
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec part = {&r, sizeof r};
        struct msghdr m = {
            .msg_iov = &part,
            .msg_iovlen = 1,
            .msg_control = control.bytes,
            .msg_controllen = sizeof control.bytes,
        };
        ssize_t n = recvmsg(p->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        /* a peer that closes with unread records causes ECONNRESET before its last records */
        if (n < 0 && (errno == EINTR || errno == ECONNRESET))
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return Q_OK;
        if (n <= 0) { /* closed, by its end or by its death */
            close(p->fd);
            p->fd = -1;
            p->gone = p->gone || !p->ended;
            return Q_OK;
        }
        if ((size_t)n < RECORD_HEAD)
            r.kind = 0;
        rc = handle_record(l, from, &r, take_fd(&m), e);
    }
    return rc;
}

/* Read what has come, and wait for something if nothing has; then the error of a death. */
static enum q_code wait_records(struct local *l, struct q_err *e)
{
    struct pollfd fds[TRANSPORT_RANKS_MAX];
    enum q_code rc = check_peers(l, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < l->s->size; i++)
        fds[i] = (struct pollfd){.fd = l->links[i].fd, .events = POLLIN};
    int64_t began = clock_us();
    int n = poll(fds, l->s->size, -1);
    l->s->waited += 1e-6 * (double)(clock_us() - began);
    if (n < 0 && errno != EINTR)
        return q_fail(e, Q_IO, "transport: poll: %s", strerror(errno));
    for (uint32_t i = 0; !rc && n > 0 && i < l->s->size; i++)
        if (fds[i].revents)
            rc = read_peer(l, i, e);
    return rc;
}

/* ---- the kind ---- */

static enum q_code check_ended(const struct local *l, uint32_t peer, struct q_err *e)
{
    if (!l->links[peer].ended)
        return Q_OK;
    l->s->peer_failed = true;
    return q_fail(e, Q_IO, "rank %u has ended its run, and rank %u still waits for it", peer,
                  l->s->rank);
}

static enum q_code local_send(void *impl, const struct transport_message *m, const void *data,
                              struct q_err *e)
{
    struct local *l = impl;
    struct rank_link *p = &l->links[m->peer];
    const uint32_t first = transport_lane(m->tag) * TRANSPORT_SENDS;
    struct record r = {.kind = RECORD_MESSAGE, .tag = m->tag, .slot = first, .n = m->n};
    enum q_code rc = Q_OK;
    while (!rc && p->out[r.slot].busy) {
        if (++r.slot < first + TRANSPORT_SENDS)
            continue;
        r.slot = first;
        if (!(rc = check_ended(l, m->peer, e)))
            rc = wait_records(l, e);
    }
    if (rc)
        return rc;
    struct slot *s = &p->out[r.slot];
    int fd = -1;
    r.is_inline = m->n <= INLINE_BYTES;
    if (r.is_inline) {
        if (m->n)
            memcpy(r.data, data, m->n);
    } else {
        if ((rc = grow_slot(s, m->n, e)))
            return rc;
        memcpy(s->at, data, m->n);
        r.capacity = s->capacity;
        fd = s->shared ? -1 : s->fd;
        s->shared = true;
    }
    s->busy = true;
    return send_record(l, m->peer, &r, fd, e);
}

/* The first message with this tag, n_inbox: none has come. */
static uint32_t find_message(const struct rank_link *p, uint32_t tag)
{
    uint32_t i = 0;
    while (i < p->n_inbox && p->inbox[i].tag != tag)
        i++;
    return i;
}

/* Ranks that call different functions of groups would wait for ever. */
static enum q_code check_calls(const struct rank_link *p, const struct transport_message *m,
                               struct q_err *e)
{
    for (uint32_t i = 0; m->tag >= TRANSPORT_TAGS && i < p->n_inbox; i++)
        if (p->inbox[i].tag >= TRANSPORT_TAGS && p->inbox[i].tag != m->tag)
            return q_fail(e, Q_MISMATCH,
                          "transport: rank %u calls another function of a group (%u) than this "
                          "rank (%u)",
                          m->peer, p->inbox[i].tag - TRANSPORT_TAGS, m->tag - TRANSPORT_TAGS);
    return Q_OK;
}

static enum q_code local_receive(void *impl, const struct transport_message *m, void *data,
                                 struct q_err *e)
{
    struct local *l = impl;
    struct rank_link *p = &l->links[m->peer];
    uint32_t i;
    while ((i = find_message(p, m->tag)) == p->n_inbox) {
        enum q_code rc;
        if ((rc = check_calls(p, m, e)) || (rc = check_ended(l, m->peer, e)) ||
            (rc = wait_records(l, e)))
            return rc;
    }
    const struct record *r = &p->inbox[i];
    struct record back = {.kind = RECORD_RECEIVED, .slot = r->slot, .is_inline = 1};
    if (r->n != m->n)
        return q_fail(e, Q_MISMATCH,
                      "transport: rank %u has sent %llu bytes with tag %u, rank %u expects %zu",
                      m->peer, (unsigned long long)r->n, m->tag, l->s->rank, m->n);
    if (m->n)
        memcpy(data, r->is_inline ? r->data : p->in[r->slot].at, m->n);
    p->n_inbox--;
    memmove(&p->inbox[i], &p->inbox[i + 1], (p->n_inbox - i) * sizeof *p->inbox);
    return send_record(l, m->peer, &back, -1, e);
}

static enum q_code local_flush(void *impl, struct q_err *e)
{
    struct local *l = impl;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; !rc && i < l->s->size; i++)
        for (uint32_t slot = 0; !rc && slot < SLOTS; slot++)
            while (!rc && l->links[i].out[slot].busy)
                if (!(rc = check_ended(l, i, e)))
                    rc = wait_records(l, e);
    return rc;
}

static void local_close(void *impl, const char *cause)
{
    struct local *l = impl;
    struct record r = {.kind = cause ? RECORD_FAILED : RECORD_END, .is_inline = 1};
    if (cause) {
        r.n = strnlen(cause, INLINE_BYTES - 1);
        memcpy(r.data, cause, r.n);
    }
    for (uint32_t i = 0; l->links && i < l->s->size; i++) {
        struct rank_link *p = &l->links[i];
        struct q_err ignored;
        enum q_code rc = send_record(l, i, &r, -1, &ignored);
        (void)rc; /* the others see the end of the socket */
        if (p->fd >= 0)
            close(p->fd);
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            slot_release(&p->out[slot]);
            slot_release(&p->in[slot]);
        }
    }
    q_free(l->links);
    q_free(l);
}

static const struct transport_kind local_kind = {local_send, local_receive, local_flush,
                                                 local_close};

/* ---- open ---- */

static enum q_code number_of(const char *name, int64_t min, int64_t max, uint32_t *out,
                             struct q_err *e)
{
    const char *text = getenv(name);
    int64_t value = 0;
    enum q_code rc = parse_i64(&value, text ? text : "", min, max, name, e);
    *out = (uint32_t)value;
    return rc;
}

/* "4,-,7": a socket for each rank but this one. */
static enum q_code take_sockets(struct local *l, const char *text, struct q_err *e)
{
    for (uint32_t i = 0; i < l->s->size; i++) {
        size_t n = strcspn(text, ",");
        char number[16];
        int64_t fd = -1;
        struct stat st;
        enum q_code rc = Q_OK;
        snprintf(number, sizeof number, "%.*s", (int)(n < sizeof number ? n : sizeof number), text);
        if (i != l->s->rank)
            rc = parse_i64(&fd, number, 0, INT32_MAX, TRANSPORT_SOCKETS, e);
        else if (strcmp(number, "-") != 0)
            rc = q_fail(e, Q_INVALID, TRANSPORT_SOCKETS ": rank %u has a socket to itself", i);
        if (rc)
            return rc;
        if (i != l->s->rank && (fstat((int)fd, &st) != 0 || !S_ISSOCK(st.st_mode)))
            return q_fail(e, Q_INVALID, TRANSPORT_SOCKETS ": %s is no open socket", number);
        if (fd >= 0)
            fcntl((int)fd, F_SETFD, FD_CLOEXEC);
        l->links[i].fd = (int)fd;
        text += n + (text[n] == ',');
    }
    return *text ? q_fail(e, Q_INVALID, TRANSPORT_SOCKETS ": more than %u ranks", l->s->size)
                 : Q_OK;
}

FALLIBLE transport_local_open(void **impl, const struct transport_kind **kind,
                              struct transport_state *s, struct q_err *e)
{
    const char *sockets = getenv(TRANSPORT_SOCKETS);
    enum q_code rc;
    if ((rc = number_of(TRANSPORT_SIZE, 1, TRANSPORT_RANKS_MAX, &s->size, e)) ||
        (rc = number_of(TRANSPORT_RANK, 0, (int64_t)s->size - 1, &s->rank, e)))
        return rc;
    struct local *l = q_calloc(1, sizeof *l);
    if (l)
        *l = (struct local){s, q_calloc(s->size, sizeof *l->links)};
    if (!l || !l->links) {
        q_free(l);
        return q_fail(e, Q_NO_MEMORY, "transport: no memory for %u ranks", s->size);
    }
    for (uint32_t i = 0; i < s->size; i++) {
        l->links[i].fd = -1;
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            l->links[i].out[slot].fd = l->links[i].in[slot].fd = -1;
    }
    *impl = l;
    *kind = &local_kind;
    return take_sockets(l, sockets ? sockets : "", e);
}
