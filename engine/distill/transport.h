/* SPDX-License-Identifier: Apache-2.0 */
/* transport - messages between the ranks of a run.
 *
 * LOCAL: processes of one machine, over sockets made by the launcher (launch.h) and memory that two
 * ranks share. MPI: ranks of mpirun, over Open MPI's library, which is opened at run time. A
 * message has a tag; messages of one tag between two ranks arrive in order. Tags are divided into
 * TRANSPORT_LANES lanes, the teacher's messages and all others. At most TRANSPORT_SENDS messages of
 * a lane to a rank are under way: a further send waits until one of them was received there.
 * The data of a send are copied, so they are the caller's again at once. A rank may send to itself.
 *
 * Sums go in the order of ranks on every rank: the same bits everywhere and in every run.
 * Errors of all functions: Q_IO (a rank has ended: its number, and its cause where it is known),
 * Q_NO_MEMORY, Q_MISMATCH (the sizes of sender and receiver, or the calls of a group, differ).
 * After an error every further call fails. Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_TRANSPORT_H
#define QUIRE_ENGINE_DISTILL_TRANSPORT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TRANSPORT_SENDS     2u
#define TRANSPORT_TAGS      0x7000u /* tags of messages are below; MPI promises 32767 */
#define TRANSPORT_LANES     2u
#define TRANSPORT_LANE_TAGS 0x2000u /* tags below are lane 0 */
#define TRANSPORT_RANKS_MAX 64u     /* of LOCAL; MPI: 4096 */

struct transport;
/* From the environment that launcher or mpirun have set; without either: one rank. Errors: Q_IO,
 * Q_INVALID (an environment that no launcher makes), Q_UNSUPPORTED (mpirun, but no MPI library can
 * be opened: which were tried). */
FALLIBLE transport_open(struct transport **out, struct q_err *e);
/* At the end of a run without an error. */
void transport_close(struct transport *t);
/* Instead of transport_close when this rank ends with an error: the errors of all others name this
 * rank and the cause. With MPI, mpirun ends all ranks, and this does not return. */
void transport_fail(struct transport *t, const char *cause);
/* Has a call failed because another rank has ended or failed? Then this rank's error is not the
 * cause of the run's end (LAUNCH_EXIT_PEER in launch.h). */
bool transport_peer_failed(const struct transport *t);
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
/* Waits until all messages of this rank were received. */
FALLIBLE transport_flush(struct transport *t, struct q_err *e);

struct transport_group {   /* ranks that call together */
    const uint32_t *ranks; /* [n] ascending; this rank is one of them */
    uint32_t n;
};
/* g of one rank: nothing is done. */
FALLIBLE transport_sum_f32(struct transport *t, const struct transport_group *g, float *x, size_t n,
                           struct q_err *e);
FALLIBLE transport_sum_f64(struct transport *t, const struct transport_group *g, double *x,
                           size_t n, struct q_err *e);
/* out: [g->n][bytes]. */
FALLIBLE transport_gather(struct transport *t, const struct transport_group *g, const void *x,
                          size_t bytes, void *out, struct q_err *e);
/* data of the rank g->ranks[root] to all of the group. */
FALLIBLE transport_broadcast(struct transport *t, const struct transport_group *g, uint32_t root,
                             void *data, size_t bytes, struct q_err *e);
/* The largest of the ranks' values. */
FALLIBLE transport_max(struct transport *t, const struct transport_group *g, uint64_t *x,
                       struct q_err *e);
struct transport_group transport_all(const struct transport *t);
/* Seconds that this rank has waited in receive, send and sums since the last call. */
double transport_waited(struct transport *t);

#endif
