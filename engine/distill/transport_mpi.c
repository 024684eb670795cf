/* SPDX-License-Identifier: Apache-2.0 */
/* Open MPI's library, opened at run time: one build serves machines with and without it, and
 * nothing of it is needed to build. Its ABI (libmpi.so.40: versions 4 and 5) names communicators,
 * types and error handlers by the addresses of exported objects, so the few functions below need no
 * header. Libraries with another ABI (MPICH) lack those objects and are refused by name.
 *
 * A send is MPI_Issend from a buffer of this file: it is complete when its receiver has taken it,
 * which is the rule of transport.h. mpirun ends all ranks when one ends without MPI_Finalize, so a
 * failing rank does not call it. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "engine/distill/transport_internal.h"

#define LIBRARY         "QUIRE_MPI_LIBRARY" /* environment: a path instead of the names below */
#define THREAD_FUNNELED 1                   /* MPI_THREAD_FUNNELED of Open MPI */
#define ERROR_MAX       512

struct status { /* MPI_Status: 24 bytes in Open MPI; it is written whole */
    int source, tag, error, cancelled;
    size_t n_byte;
    char more[40];
};

struct mpi {
    int (*init)(int *argc, char ***argv, int wanted, int *provided);
    int (*rank)(void *comm, int *out);
    int (*size)(void *comm, int *out);
    int (*issend)(const void *data, int n, void *type, int to, int tag, void *comm, void **request);
    int (*recv)(void *data, int n, void *type, int from, int tag, void *comm, struct status *s);
    int (*wait)(void **request, struct status *s);
    int (*get_count)(const struct status *s, void *type, int *n);
    int (*set_errhandler)(void *comm, void *handler);
    int (*error_string)(int code, char *text, int *n);
    int (*finalize)(void);
    void *world, *byte, *errors_return;
};
static const struct {
    const char *name;
    size_t at;
} symbols[] = {
    {"MPI_Init_thread", offsetof(struct mpi, init)},
    {"MPI_Comm_rank", offsetof(struct mpi, rank)},
    {"MPI_Comm_size", offsetof(struct mpi, size)},
    {"MPI_Issend", offsetof(struct mpi, issend)},
    {"MPI_Recv", offsetof(struct mpi, recv)},
    {"MPI_Wait", offsetof(struct mpi, wait)},
    {"MPI_Get_count", offsetof(struct mpi, get_count)},
    {"MPI_Comm_set_errhandler", offsetof(struct mpi, set_errhandler)},
    {"MPI_Error_string", offsetof(struct mpi, error_string)},
    {"MPI_Finalize", offsetof(struct mpi, finalize)},
    {"ompi_mpi_comm_world", offsetof(struct mpi, world)},
    {"ompi_mpi_byte", offsetof(struct mpi, byte)},
    {"ompi_mpi_errors_return", offsetof(struct mpi, errors_return)},
};

struct mpi_send { /* one of the sends to a rank */
    void *request;
    unsigned char *data;
    size_t capacity;
    bool busy;
};
struct mpi_link {
    struct mpi_send sends[TRANSPORT_LANES][TRANSPORT_SENDS];
    uint32_t next[TRANSPORT_LANES]; /* the older one when both are busy */
};
struct mpi_ranks {
    struct mpi f;
    struct transport_state *s;
    struct mpi_link *links; /* [s->size] */
    bool started;
};

bool transport_mpi_is_rank(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK");
}

static enum q_code open_library(struct mpi *f, struct q_err *e)
{
    const char *const given = getenv(LIBRARY);
    const char *tried[] = {"libmpi.so.40", "libmpi.so"};
    const size_t n = given ? 1 : sizeof tried / sizeof *tried;
    void *library = NULL;
    char why[ERROR_MAX] = "";
    tried[0] = given ? given : tried[0];
    for (size_t i = 0; !library && i < n; i++) {
        library = dlopen(tried[i], RTLD_NOW | RTLD_GLOBAL); /* its plug-ins look in it */
        if (!library && !why[0])
            snprintf(why, sizeof why, "%s", dlerror());
    }
    if (!library)
        return q_fail(e, Q_UNSUPPORTED,
                      "this process was started by mpirun (OMPI_COMM_WORLD_SIZE or PMIX_RANK is "
                      "set), but Open MPI's library cannot be opened: %s; " LIBRARY
                      " may name it, and without these variables the ranks are started here",
                      why);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return q_fail(e, Q_UNSUPPORTED,
                          "the MPI library has no %s: it is not Open MPI 4 or 5, the one that is "
                          "supported",
                          symbols[i].name);
        memcpy((unsigned char *)f + symbols[i].at, &symbol, sizeof symbol);
    }
    return Q_OK; /* stays open: MPI cannot be started twice in a process */
}

static enum q_code check_call(struct mpi_ranks *m, int code, const char *what, struct q_err *e)
{
    char text[ERROR_MAX] = "unknown";
    int n = 0;
    if (!code)
        return Q_OK;
    m->f.error_string(code, text, &n);
    return q_fail(e, Q_IO, "MPI: %s: %s", what, text);
}

static enum q_code wait_send(struct mpi_ranks *m, struct mpi_send *s, struct q_err *e)
{
    struct status status;
    if (!s->busy)
        return Q_OK;
    int64_t began = clock_us();
    int code = m->f.wait(&s->request, &status);
    m->s->waited += 1e-6 * (double)(clock_us() - began);
    s->busy = false;
    return check_call(m, code, "send", e);
}

static enum q_code check_size(size_t n, struct q_err *e)
{
    if (n <= INT_MAX)
        return Q_OK;
    return q_fail(e, Q_TOO_LARGE, "MPI: a message of %zu bytes; %d at most", n, INT_MAX);
}

static enum q_code mpi_send(void *impl, const struct transport_message *message, const void *data,
                            struct q_err *e)
{
    struct mpi_ranks *m = impl;
    struct mpi_link *p = &m->links[message->peer];
    const uint32_t lane = transport_lane(message->tag);
    struct mpi_send *s = &p->sends[lane][p->next[lane]];
    enum q_code rc;
    if ((rc = check_size(message->n, e)) || (rc = wait_send(m, s, e)))
        return rc;
    if (s->capacity < message->n) {
        q_free(s->data);
        s->capacity = 0;
        s->data = q_alloc(message->n);
        if (!s->data)
            return q_fail(e, Q_NO_MEMORY, "transport: no memory for %zu bytes", message->n);
        s->capacity = message->n;
    }
    if (message->n)
        memcpy(s->data, data, message->n);
    int code = m->f.issend(s->data, (int)message->n, m->f.byte, (int)message->peer,
                           (int)message->tag, m->f.world, &s->request);
    s->busy = !code;
    p->next[lane] = (p->next[lane] + 1) % TRANSPORT_SENDS;
    return check_call(m, code, "send", e);
}

static enum q_code mpi_receive(void *impl, const struct transport_message *message, void *data,
                               struct q_err *e)
{
    struct mpi_ranks *m = impl;
    struct status status = {0};
    int n = 0;
    enum q_code rc = check_size(message->n, e);
    if (rc)
        return rc;
    int64_t began = clock_us();
    int code = m->f.recv(data, (int)message->n, m->f.byte, (int)message->peer, (int)message->tag,
                         m->f.world, &status);
    m->s->waited += 1e-6 * (double)(clock_us() - began);
    if ((rc = check_call(m, code, "receive", e)) ||
        (rc = check_call(m, m->f.get_count(&status, m->f.byte, &n), "receive", e)))
        return rc;
    if ((size_t)n != message->n)
        return q_fail(e, Q_MISMATCH,
                      "transport: rank %u has sent %d bytes with tag %u, rank %u expects %zu",
                      message->peer, n, message->tag, m->s->rank, message->n);
    return Q_OK;
}

static enum q_code mpi_flush(void *impl, struct q_err *e)
{
    struct mpi_ranks *m = impl;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; !rc && i < m->s->size; i++)
        for (uint32_t k = 0; !rc && k < TRANSPORT_LANES * TRANSPORT_SENDS; k++)
            rc = wait_send(m, &m->links[i].sends[k / TRANSPORT_SENDS][k % TRANSPORT_SENDS], e);
    return rc;
}

static void mpi_close(void *impl, const char *cause)
{
    struct mpi_ranks *m = impl;
    struct q_err ignored;
    if (cause && m->started)
        return; /* MPI still reads the buffers; mpirun ends the ranks when this one exits */
    if (m->started && mpi_flush(m, &ignored) == Q_OK)
        m->f.finalize();
    for (uint32_t i = 0; m->links && i < m->s->size; i++)
        for (uint32_t k = 0; k < TRANSPORT_LANES * TRANSPORT_SENDS; k++)
            q_free(m->links[i].sends[k / TRANSPORT_SENDS][k % TRANSPORT_SENDS].data);
    q_free(m->links);
    q_free(m);
}

static const struct transport_kind mpi_kind = {mpi_send, mpi_receive, mpi_flush, mpi_close};

FALLIBLE transport_mpi_open(void **impl, const struct transport_kind **kind,
                            struct transport_state *s, struct q_err *e)
{
    struct mpi_ranks *m = q_calloc(1, sizeof *m);
    int rank = 0, size = 1, provided = 0;
    enum q_code rc;
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "transport: no memory");
    m->s = s;
    *impl = m;
    *kind = &mpi_kind;
    if ((rc = open_library(&m->f, e)))
        return rc;
    int code = m->f.init(NULL, NULL, THREAD_FUNNELED, &provided);
    if (code)
        return q_fail(e, Q_IO, "MPI_Init_thread: error %d", code);
    m->started = true;
    if ((rc = check_call(m, m->f.set_errhandler(m->f.world, m->f.errors_return), "start", e)) ||
        (rc = check_call(m, m->f.rank(m->f.world, &rank), "start", e)) ||
        (rc = check_call(m, m->f.size(m->f.world, &size), "start", e)))
        return rc;
    m->links = q_calloc((size_t)size, sizeof *m->links);
    if (!m->links)
        return q_fail(e, Q_NO_MEMORY, "transport: no memory for %d ranks", size);
    s->rank = (uint32_t)rank;
    s->size = (uint32_t)size;
    return Q_OK;
}
