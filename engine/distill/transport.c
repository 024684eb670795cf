/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of groups are written once, over send and receive, because their order of sums is a
 * promise: element i of the result is ((x_0[i] + x_1[i]) + x_2[i]) + … on every rank.
 *
 * Two ranks, or few elements: each sends all it has to each other rank and adds by itself. More:
 * the array is divided; rank j of the group adds part j of all ranks and sends the result, so that
 * a rank sends 2 (n - 1) / n of the array whatever n is. Arrays go in pieces; in each phase of a
 * piece all ranks send before they receive, and a phase needs only what the phases before it have
 * sent, so with TRANSPORT_SENDS messages under way nobody waits in a circle. */
#include "engine/distill/transport.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/distill/transport_internal.h"

#define PIECE_BYTES ((size_t)512 << 10)
#define FEW_BYTES   ((size_t)16 << 10) /* sent whole to all ranks */

struct self_message { /* of this rank to itself */
    uint32_t tag;
    size_t n;
    void *data; /* NULL: none */
};

struct transport {
    const struct transport_kind *kind; /* NULL: one rank */
    void *impl;
    struct transport_state state;
    struct q_err failed;                      /* the first error; further calls repeat it */
    struct self_message own[TRANSPORT_SENDS]; /* the older one first */
    uint32_t *all;                            /* [size] 0, 1, … */
    void *pieces[2];                          /* PIECE_BYTES each */
};

static enum q_code open_kind(struct transport *t, struct q_err *e)
{
    t->state.size = 1;
    if (getenv(TRANSPORT_SIZE))
        return transport_local_open(&t->impl, &t->kind, &t->state, e);
    if (transport_mpi_is_rank())
        return transport_mpi_open(&t->impl, &t->kind, &t->state, e);
    return Q_OK;
}

FALLIBLE transport_open(struct transport **out, struct q_err *e)
{
    struct transport *t = q_calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "transport: no memory");
    enum q_code rc = open_kind(t, e);
    if (rc)
        goto fail;
    t->all = q_calloc(t->state.size, sizeof *t->all);
    t->pieces[0] = t->state.size > 1 ? q_alloc(PIECE_BYTES) : NULL;
    t->pieces[1] = t->state.size > 1 ? q_alloc(PIECE_BYTES) : NULL;
    if (!t->all || (t->state.size > 1 && (!t->pieces[0] || !t->pieces[1]))) {
        rc = q_fail(e, Q_NO_MEMORY, "transport: no memory for %u ranks", t->state.size);
        goto fail;
    }
    for (uint32_t i = 0; i < t->state.size; i++)
        t->all[i] = i;
    *out = t;
    return Q_OK;
fail:
    transport_fail(t, e ? e->message : "cannot start");
    return rc;
}

static void end_transport(struct transport *t, const char *cause)
{
    if (!t)
        return;
    if (t->impl)
        t->kind->close(t->impl, cause);
    for (uint32_t i = 0; i < TRANSPORT_SENDS; i++)
        q_free(t->own[i].data);
    q_free(t->pieces[0]);
    q_free(t->pieces[1]);
    q_free(t->all);
    q_free(t);
}

void transport_close(struct transport *t)
{
    end_transport(t, t && t->failed.code ? t->failed.message : NULL);
}

void transport_fail(struct transport *t, const char *cause)
{
    end_transport(t, cause);
}

bool transport_peer_failed(const struct transport *t)
{
    return t->state.peer_failed;
}

uint32_t transport_rank(const struct transport *t)
{
    return t->state.rank;
}

uint32_t transport_size(const struct transport *t)
{
    return t->state.size;
}

struct transport_group transport_all(const struct transport *t)
{
    return (struct transport_group){t->all, t->state.size};
}

double transport_waited(struct transport *t)
{
    double waited = t->state.waited;
    t->state.waited = 0;
    return waited;
}

/* ---- messages ---- */

/* Keep the first error, so that no later call goes on after it. */
static enum q_code keep_error(struct transport *t, enum q_code rc, struct q_err *e)
{
    if (rc && !t->failed.code && e)
        t->failed = *e;
    return rc;
}

static enum q_code check_peer(struct transport *t, uint32_t peer, struct q_err *e)
{
    if (t->failed.code)
        return q_fail(e, t->failed.code, "%s", t->failed.message);
    if (peer >= t->state.size)
        return q_fail(e, Q_INVALID, "transport: a message to or from rank %u of %u", peer,
                      t->state.size);
    return Q_OK;
}

static enum q_code send_self(struct transport *t, const struct transport_message *m,
                             const void *data, struct q_err *e)
{
    uint32_t i = 0;
    while (i < TRANSPORT_SENDS && t->own[i].data)
        i++;
    if (i == TRANSPORT_SENDS)
        return q_fail(e, Q_INVALID,
                      "transport: rank %u would wait for itself: %u messages to "
                      "itself are under way",
                      m->peer, TRANSPORT_SENDS);
    void *copy = q_alloc(m->n);
    if (!copy)
        return q_fail(e, Q_NO_MEMORY, "transport: no memory for %zu bytes", m->n);
    if (m->n)
        memcpy(copy, data, m->n);
    t->own[i] = (struct self_message){m->tag, m->n, copy};
    return Q_OK;
}

static enum q_code receive_self(struct transport *t, const struct transport_message *m, void *data,
                                struct q_err *e)
{
    uint32_t i = 0;
    while (i < TRANSPORT_SENDS && !(t->own[i].data && t->own[i].tag == m->tag))
        i++;
    if (i == TRANSPORT_SENDS)
        return q_fail(e, Q_INVALID, "transport: rank %u waits for a message of its own, tag %u",
                      m->peer, m->tag);
    if (t->own[i].n != m->n)
        return q_fail(e, Q_MISMATCH, "transport: a message to itself has %zu bytes, not %zu",
                      t->own[i].n, m->n);
    if (m->n)
        memcpy(data, t->own[i].data, m->n);
    q_free(t->own[i].data);
    for (; i + 1 < TRANSPORT_SENDS; i++)
        t->own[i] = t->own[i + 1];
    t->own[i] = (struct self_message){0};
    return Q_OK;
}

FALLIBLE transport_send(struct transport *t, const struct transport_message *m, const void *data,
                        struct q_err *e)
{
    enum q_code rc = check_peer(t, m->peer, e);
    if (rc)
        return rc;
    if (m->peer == t->state.rank)
        return keep_error(t, send_self(t, m, data, e), e);
    return keep_error(t, t->kind->send(t->impl, m, data, e), e);
}

FALLIBLE transport_receive(struct transport *t, const struct transport_message *m, void *data,
                           struct q_err *e)
{
    enum q_code rc = check_peer(t, m->peer, e);
    if (rc)
        return rc;
    if (m->peer == t->state.rank)
        return keep_error(t, receive_self(t, m, data, e), e);
    return keep_error(t, t->kind->receive(t->impl, m, data, e), e);
}

FALLIBLE transport_flush(struct transport *t, struct q_err *e)
{
    enum q_code rc = check_peer(t, t->state.rank, e);
    if (rc || !t->kind)
        return rc;
    return keep_error(t, t->kind->flush(t->impl, e), e);
}

/* ---- groups ---- */

/* n bytes at `data` to every other rank of the group. */
static enum q_code send_others(struct transport *t, const struct transport_group *g, uint32_t tag,
                               const void *data, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; !rc && i < g->n; i++)
        if (g->ranks[i] != t->state.rank)
            rc = transport_send(t, &(struct transport_message){g->ranks[i], tag, n}, data, e);
    return rc;
}

static enum q_code group_index(const struct transport *t, const struct transport_group *g,
                               uint32_t *out, struct q_err *e)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (i > 0 && g->ranks[i - 1] >= g->ranks[i])
            return q_fail(e, Q_INVALID, "transport: the ranks of a group are not ascending");
    for (*out = 0; *out < g->n; ++*out)
        if (g->ranks[*out] == t->state.rank)
            return Q_OK;
    return q_fail(e, Q_INVALID, "transport: rank %u calls for a group without it", t->state.rank);
}

struct sum_type {
    size_t size;
    void (*add)(void *to, const void *x, size_t n); /* to[i] += x[i] */
};
static void add_f32(void *to, const void *x, size_t n)
{
    float *a = to;
    const float *b = x;
    for (size_t i = 0; i < n; i++)
        a[i] += b[i];
}
static void add_f64(void *to, const void *x, size_t n)
{
    double *a = to;
    const double *b = x;
    for (size_t i = 0; i < n; i++)
        a[i] += b[i];
}
static const struct sum_type sum_f32 = {sizeof(float), add_f32};
static const struct sum_type sum_f64 = {sizeof(double), add_f64};

/* One piece of a sum. */
struct sum {
    struct transport *t;
    const struct transport_group *g;
    const struct sum_type *type;
    uint32_t me; /* index in the group */
};

/* pieces[0] = the sum of own (n elements) and of what every other rank sends, in the order of
 * ranks. */
static enum q_code add_received(const struct sum *s, const void *own, size_t n, struct q_err *e)
{
    struct transport *t = s->t;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; !rc && i < s->g->n; i++) {
        const void *x = own;
        void *to = t->pieces[i > 0];
        if (i != s->me) {
            rc = transport_receive(
                t,
                &(struct transport_message){s->g->ranks[i], TRANSPORT_TAG_SUM, n * s->type->size},
                to, e);
            x = to;
        }
        if (rc)
            return rc;
        if (i > 0)
            s->type->add(t->pieces[0], x, n);
        else if (x != to)
            memcpy(to, x, n * s->type->size);
    }
    return rc;
}

/* Each rank adds everything. */
static enum q_code sum_whole(const struct sum *s, unsigned char *x, size_t n, struct q_err *e)
{
    const size_t size = s->type->size, piece = PIECE_BYTES / size;
    enum q_code rc = Q_OK;
    for (size_t at = 0; !rc && at < n; at += piece) {
        size_t n_now = n - at < piece ? n - at : piece;
        rc = send_others(s->t, s->g, TRANSPORT_TAG_SUM, x + at * size, n_now * size, e);
        if (!rc)
            rc = add_received(s, x + at * size, n_now, e);
        if (!rc)
            memcpy(x + at * size, s->t->pieces[0], n_now * size);
    }
    return rc;
}

/* Part i of n elements in g->n parts. */
static size_t part_begin(const struct sum *s, size_t n, uint32_t i)
{
    return n / s->g->n * i + (n % s->g->n < i ? n % s->g->n : i);
}

/* Each rank adds its part of n elements and sends the result. */
static enum q_code sum_parts(const struct sum *s, unsigned char *x, size_t n, struct q_err *e)
{
    const size_t size = s->type->size;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; !rc && i < s->g->n; i++) {
        size_t begin = part_begin(s, n, i), end = part_begin(s, n, i + 1);
        struct transport_message m = {s->g->ranks[i], TRANSPORT_TAG_SUM, (end - begin) * size};
        if (i != s->me)
            rc = transport_send(s->t, &m, x + begin * size, e);
    }
    size_t begin = part_begin(s, n, s->me), n_own = part_begin(s, n, s->me + 1) - begin;
    if (rc || (rc = add_received(s, x + begin * size, n_own, e)))
        return rc;
    memcpy(x + begin * size, s->t->pieces[0], n_own * size);
    rc = send_others(s->t, s->g, TRANSPORT_TAG_SUM, x + begin * size, n_own * size, e);
    for (uint32_t i = 0; !rc && i < s->g->n; i++) {
        begin = part_begin(s, n, i);
        size_t bytes = (part_begin(s, n, i + 1) - begin) * size;
        struct transport_message m = {s->g->ranks[i], TRANSPORT_TAG_SUM, bytes};
        if (i != s->me)
            rc = transport_receive(s->t, &m, x + begin * size, e);
    }
    return rc;
}

static enum q_code sum_all(struct sum *s, void *x, size_t n, struct q_err *e)
{
    const size_t size = s->type->size, block = PIECE_BYTES / size * s->g->n;
    enum q_code rc = group_index(s->t, s->g, &s->me, e);
    if (rc || s->g->n <= 1 || n == 0)
        return rc;
    if (s->g->n == 2 || n * size <= FEW_BYTES)
        return sum_whole(s, x, n, e);
    for (size_t at = 0; !rc && at < n; at += block)
        rc = sum_parts(s, (unsigned char *)x + at * size, n - at < block ? n - at : block, e);
    return rc;
}

FALLIBLE transport_sum_f32(struct transport *t, const struct transport_group *g, float *x, size_t n,
                           struct q_err *e)
{
    return sum_all(&(struct sum){t, g, &sum_f32, 0}, x, n, e);
}

FALLIBLE transport_sum_f64(struct transport *t, const struct transport_group *g, double *x,
                           size_t n, struct q_err *e)
{
    return sum_all(&(struct sum){t, g, &sum_f64, 0}, x, n, e);
}

FALLIBLE transport_gather(struct transport *t, const struct transport_group *g, const void *x,
                          size_t bytes, void *out, struct q_err *e)
{
    unsigned char *to = out;
    uint32_t me;
    enum q_code rc = group_index(t, g, &me, e);
    if (rc)
        return rc;
    if (bytes)
        memmove(to + me * bytes, x, bytes);
    for (size_t at = 0; !rc && at < bytes; at += PIECE_BYTES) {
        size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        rc = send_others(t, g, TRANSPORT_TAG_GATHER, to + me * bytes + at, n, e);
        for (uint32_t i = 0; !rc && i < g->n; i++) {
            struct transport_message m = {g->ranks[i], TRANSPORT_TAG_GATHER, n};
            if (i != me)
                rc = transport_receive(t, &m, to + i * bytes + at, e);
        }
    }
    return rc;
}

FALLIBLE transport_broadcast(struct transport *t, const struct transport_group *g, uint32_t root,
                             void *data, size_t bytes, struct q_err *e)
{
    unsigned char *at = data;
    uint32_t me;
    enum q_code rc = group_index(t, g, &me, e);
    if (!rc && root >= g->n)
        rc = q_fail(e, Q_INVALID, "transport: broadcast from rank %u of a group of %u", root, g->n);
    while (!rc && bytes) {
        size_t n = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        struct transport_message m = {g->ranks[root], TRANSPORT_TAG_BROADCAST, n};
        if (me == root)
            rc = send_others(t, g, TRANSPORT_TAG_BROADCAST, at, n, e);
        else
            rc = transport_receive(t, &m, at, e);
        at += n;
        bytes -= n;
    }
    return rc;
}

FALLIBLE transport_max(struct transport *t, const struct transport_group *g, uint64_t *x,
                       struct q_err *e)
{
    uint64_t few[16], *all = g->n <= 16 ? few : q_calloc(g->n, sizeof *all);
    if (!all)
        return q_fail(e, Q_NO_MEMORY, "transport: no memory for %u ranks", g->n);
    enum q_code rc = transport_gather(t, g, x, sizeof *x, all, e);
    for (uint32_t i = 0; !rc && i < g->n; i++)
        if (*x < all[i])
            *x = all[i];
    if (all != few)
        q_free(all);
    return rc;
}
