/* SPDX-License-Identifier: Apache-2.0 */
/* transport - messages between the ranks of a run.
 *
 * LOCAL: processes of one machine over sockets, made by the launcher (launch.h). MPI: ranks of
 * mpirun over a library that is opened at run time. A message has a tag; messages of one tag
 * between two ranks arrive in order. A send copies nothing and returns at once while at most
 * TRANSPORT_SENDS are under way to the same rank, else it waits for the oldest one; its data stays
 * the caller's and unchanged until transport_sent says so or the next transport_flush returns.
 *
 * Sums go in the order of ranks on every rank: the same bits everywhere and in every run.
 * Errors of all functions: Q_IO (a rank has ended: its number, and its cause where it is known).
 * Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_TRANSPORT_H
#define QUIRE_ENGINE_DISTILL_TRANSPORT_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TRANSPORT_SENDS 2u

struct transport;
/* From the environment that launcher or mpirun have set; without either: one rank. Errors: Q_IO,
 * Q_UNSUPPORTED (mpirun, but no MPI library can be opened: which were tried). */
FALLIBLE transport_open(struct transport **out, struct q_err *e);
void transport_close(struct transport *t);
uint32_t transport_rank(const struct transport *t);
uint32_t transport_size(const struct transport *t);

struct transport_message {
    uint32_t peer, tag;
    size_t n; /* bytes */
};
FALLIBLE transport_send(struct transport *t, const struct transport_message *m, const void *data,
                        struct q_err *e);
/* Waits. m->n must be the sender's. */
FALLIBLE transport_receive(struct transport *t, const struct transport_message *m, void *data,
                           struct q_err *e);
/* Waits until all sends have left. */
FALLIBLE transport_flush(struct transport *t, struct q_err *e);

struct transport_group {   /* ranks that call together */
    const uint32_t *ranks; /* [n] ascending; this rank is one of them */
    uint32_t n;
};
FALLIBLE transport_sum_f32(struct transport *t, const struct transport_group *g, float *x, size_t n,
                           struct q_err *e);
FALLIBLE transport_sum_f64(struct transport *t, const struct transport_group *g, double *x,
                           size_t n, struct q_err *e);
/* out: [g->n][bytes]. */
FALLIBLE transport_gather(struct transport *t, const struct transport_group *g, const void *x,
                          size_t bytes, void *out, struct q_err *e);
/* The largest of the ranks' values. */
FALLIBLE transport_max(struct transport *t, const struct transport_group *g, uint64_t *x,
                       struct q_err *e);
struct transport_group transport_all(const struct transport *t);
/* Seconds that this rank has waited in receive, send and sums since the last call. */
double transport_waited(struct transport *t);

#endif
