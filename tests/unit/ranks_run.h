/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_run - forked processes with the sockets that a launcher makes, one for each rank. A rank's
 * function reports what is wrong with rank_check and returns; RANK_SECONDS end what hangs. */
#ifndef QUIRE_TESTS_UNIT_RANKS_RUN_H
#define QUIRE_TESTS_UNIT_RANKS_RUN_H
#include "check.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/distill/transport_internal.h"

#define RANK_SECONDS  120
#define RANKS_RUN_MAX 6
#define RANK_WRONG    99

/* In a rank: end it when the condition does not hold. */
#define rank_check(condition)                                                                   \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: rank %s: %s\n", __FILE__, __LINE__, getenv(TRANSPORT_RANK), \
                    #condition);                                                                \
            _exit(RANK_WRONG);                                                                  \
        }                                                                                       \
    } while (0)
#define rank_ok(call, e)                                                    \
    do {                                                                    \
        if ((call) != Q_OK) {                                               \
            fprintf(stderr, "%s:%d: rank %s: %s: %s\n", __FILE__, __LINE__, \
                    getenv(TRANSPORT_RANK), #call, (e)->message);           \
            _exit(RANK_WRONG);                                              \
        }                                                                   \
    } while (0)

typedef void rank_fn(struct transport *t, void *arg); /* closes t */

static inline void rank_environment(int sockets[RANKS_RUN_MAX][RANKS_RUN_MAX], uint32_t rank,
                                    uint32_t n)
{
    char text[256], number[16];
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)(i == rank ? snprintf(text + at, sizeof text - at, "%s-", i ? "," : "")
                                 : snprintf(text + at, sizeof text - at, "%s%d", i ? "," : "",
                                            sockets[rank][i]));
    setenv(TRANSPORT_SOCKETS, text, 1);
    snprintf(number, sizeof number, "%u", rank);
    setenv(TRANSPORT_RANK, number, 1);
    snprintf(number, sizeof number, "%u", n);
    setenv(TRANSPORT_SIZE, number, 1);
}

static inline void ranks_close(int sockets[RANKS_RUN_MAX][RANKS_RUN_MAX], uint32_t n, uint32_t keep)
{
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            if (a != b && a != keep)
                close(sockets[a][b]);
}

/* Run fn on n ranks; statuses: of waitpid. */
static inline void ranks_run(uint32_t n, rank_fn *fn, void *arg, int *statuses)
{
    int sockets[RANKS_RUN_MAX][RANKS_RUN_MAX];
    pid_t pids[RANKS_RUN_MAX];
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < a; b++) {
            int pair[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
            sockets[a][b] = pair[0];
            sockets[b][a] = pair[1];
        }
    fflush(NULL);
    for (uint32_t rank = 0; rank < n; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank])
            continue;
        struct q_err e = Q_ERR_INIT;
        struct transport *t;
        alarm(RANK_SECONDS);
        ranks_close(sockets, n, rank);
        rank_environment(sockets, rank, n);
        rank_ok(transport_open(&t, &e), &e);
        fn(t, arg);
        _exit(0);
    }
    ranks_close(sockets, n, n);
    for (uint32_t rank = 0; rank < n; rank++)
        assert_int_equal(waitpid(pids[rank], &statuses[rank], 0), pids[rank]);
}

/* All ranks have to return. */
static inline void ranks_run_well(uint32_t n, rank_fn *fn, void *arg)
{
    int statuses[RANKS_RUN_MAX];
    ranks_run(n, fn, arg, statuses);
    for (uint32_t rank = 0; rank < n; rank++)
        if (statuses[rank] != 0)
            fail_msg("rank %u of %u: status %d", rank, n, statuses[rank]);
}

#endif
