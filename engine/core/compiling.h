/* SPDX-License-Identifier: Apache-2.0 */
/* compiling - requests with a grammar on their way to the scheduler.
 *
 * A grammar that was compiled lately is known at once; another one is compiled on a thread while
 * the engine goes on, and the requests with it wait here, those with the same source for the same
 * compile. What cannot be compiled ends its requests with the compiler's error.
 *
 *     waiting ─▶ short: COMPILING_SHORT steps at most ─▶ done
 *                  └ not done ─▶ waiting ─▶ long: as many as a grammar may take ─▶ done
 *
 * Each stage has a thread of its own, so a grammar that takes long, by accident or on purpose,
 * delays others that do, and ordinary ones only by its short stage. In a stage the tenants take
 * turns; requests of one tenant go by arrival. Work that no request waits for is stopped.
 * Bounds: COMPILING_MAX requests, COMPILING_BYTES of them and their sources; programs are on their
 * way for COMPILING_HANDED jobs of a stage at once.
 * Threads: the core's loop; the compiler's threads see their job only. */
#ifndef QUIRE_ENGINE_CORE_COMPILING_H
#define QUIRE_ENGINE_CORE_COMPILING_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/proto.h"

#define COMPILING_MAX    1024u /* requests waiting */
#define COMPILING_BYTES  ((size_t)256 << 20)
#define COMPILING_HANDED 2u
#define COMPILING_SHORT  1000000u /* steps: some 25 ms */

enum compiling_stage { COMPILING_IS_SHORT, COMPILING_IS_LONG, COMPILING_STAGES };
struct compiling;
struct compiling_stats {
    uint32_t n_waiting[COMPILING_STAGES]; /* jobs, with those that are worked on */
    uint64_t n_job[COMPILING_STAGES];     /* compiled in this stage, finished or not */
    uint64_t n_shared;                    /* requests that joined a job */
    uint64_t n_stopped;                   /* jobs that came back without a program, stopped */
    size_t bytes;
};
/* With threads, but for tests, which call compiling_work themselves. Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE compiling_new(struct compiling **out, bool threads, struct q_err *e);
void compiling_free(struct compiling *c);
int compiling_fd(const struct compiling *c); /* readable if compiling_take has a result */
/* The program of m's grammar, borrowed until the next call; NULL: not cached. */
const uint32_t *compiling_known(struct compiling *c, const struct msg_submit *m, uint32_t *n_word);
/* Have it compiled; m is copied. Errors: Q_NO_SPACE (a bound above), Q_NO_MEMORY. */
FALLIBLE compiling_add(struct compiling *c, uint32_t origin, const struct msg_submit *m,
                       struct q_err *e);
struct compiled {
    uint32_t origin;
    uint64_t req_id;
    struct msg_submit submit; /* with the program as its grammar; borrowed until the next call */
    struct q_err error;       /* error of the compilation */
};
/* The next request that is done; call it until it says false. */
bool compiling_take(struct compiling *c, struct compiled *out);
/* What a thread does: the next job handed to this stage, waiting for it at most timeout_ms (-1:
 * without limit). False: there was none. */
bool compiling_work(struct compiling *c, enum compiling_stage stage, int timeout_ms);
bool compiling_abort(struct compiling *c, uint32_t origin, uint64_t req_id);
uint32_t compiling_abort_origin(struct compiling *c, uint32_t origin);
/* Abort one waiting request and return its id; false: none waits. */
bool compiling_abort_next(struct compiling *c, uint32_t *origin, uint64_t *req_id);
uint32_t compiling_count(const struct compiling *c);
void compiling_stats(const struct compiling *c, struct compiling_stats *out);

#endif
