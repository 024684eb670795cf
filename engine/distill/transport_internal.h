/* SPDX-License-Identifier: Apache-2.0 */
/* transport_internal - what a kind of transport implements, and the environment of a rank.
 * Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_TRANSPORT_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_TRANSPORT_INTERNAL_H
#include "engine/distill/transport.h"

/* Set by the launcher for its ranks. */
#define TRANSPORT_RANK    "QUIRE_RANK"
#define TRANSPORT_SIZE    "QUIRE_RANKS"
#define TRANSPORT_SOCKETS "QUIRE_RANK_SOCKETS" /* "4,-,7": by rank; "-": this rank itself */

/* Tags of the functions of groups; two ranks that call different ones get Q_MISMATCH. */
enum transport_group_tag {
    TRANSPORT_TAG_SUM = TRANSPORT_TAGS,
    TRANSPORT_TAG_GATHER,
    TRANSPORT_TAG_BROADCAST,
    TRANSPORT_TAGS_END
};

static inline uint32_t transport_lane(uint32_t tag)
{
    return tag < TRANSPORT_LANE_TAGS ? 0 : 1;
}

/* Peers are other ranks. A function that fails because a peer has ended sets *peer_failed. Seconds
 * of waiting are added to *waited. */
struct transport_state {
    uint32_t rank, size;
    double waited;
    bool peer_failed;
};
struct transport_kind {
    enum q_code (*send)(void *impl, const struct transport_message *m, const void *data,
                        struct q_err *e);
    enum q_code (*receive)(void *impl, const struct transport_message *m, void *data,
                           struct q_err *e);
    enum q_code (*flush)(void *impl, struct q_err *e);
    void (*close)(void *impl, const char *cause); /* NULL: the run has ended without an error */
};

/* impl is released by kind->close. s outlives it. */
FALLIBLE transport_local_open(void **impl, const struct transport_kind **kind,
                              struct transport_state *s, struct q_err *e);
FALLIBLE transport_mpi_open(void **impl, const struct transport_kind **kind,
                            struct transport_state *s, struct q_err *e);
/* Was this process started by mpirun or another starter of MPI programs? */
bool transport_mpi_is_rank(void);

#endif
