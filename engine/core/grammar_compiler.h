/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_compiler - requests whose grammar is compiled before they reach the scheduler.
 *
 * The program of a recently compiled grammar is cached. Any other grammar is compiled on a thread
 * while the engine runs; its requests wait here, and requests with the same source share one job.
 * If a grammar cannot be compiled, its requests end with the compiler's error.
 *
 *     waiting ─▶ short: GRAMMAR_COMPILER_SHORT steps at most ─▶ done
 *                  └ not done ─▶ waiting ─▶ long: as many as a grammar may take ─▶ done
 *
 * Each stage has a thread, of a lower priority than the others of the engine. So an expensive
 * grammar delays other expensive ones, cheap ones only by its short stage, and no step. A stage
 * serves the tenants round robin, and each tenant's requests in order of arrival. A job without
 * waiting requests is stopped. Bounds: GRAMMAR_COMPILER_MAX requests, GRAMMAR_COMPILER_BYTES of
 * requests and sources, GRAMMAR_COMPILER_HANDED jobs at once with the thread of a stage.
 * Threads: the core's loop; the compiler's threads see their job only. */
#ifndef QUIRE_ENGINE_CORE_GRAMMAR_COMPILER_H
#define QUIRE_ENGINE_CORE_GRAMMAR_COMPILER_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/proto.h"

#define GRAMMAR_COMPILER_MAX    1024u /* requests waiting */
#define GRAMMAR_COMPILER_BYTES  ((size_t)256 << 20)
#define GRAMMAR_COMPILER_HANDED 2u
#define GRAMMAR_COMPILER_SHORT  1000000u /* steps of compilation: about 25 ms */

enum grammar_compiler_stage {
    GRAMMAR_COMPILER_IS_SHORT,
    GRAMMAR_COMPILER_IS_LONG,
    GRAMMAR_COMPILER_STAGES
};
struct grammar_compiler;
struct grammar_compiler_stats {
    uint32_t n_waiting[GRAMMAR_COMPILER_STAGES]; /* jobs, including those being compiled */
    uint64_t n_job[GRAMMAR_COMPILER_STAGES];     /* compiled in this stage, finished or not */
    uint64_t n_shared;                           /* requests that joined a job */
    uint64_t n_stopped;                          /* jobs stopped without a program */
    size_t bytes;
};
/* threads false: for tests, which call grammar_compiler_work themselves. Errors: Q_NO_MEMORY,
 * Q_IO. */
FALLIBLE grammar_compiler_new(struct grammar_compiler **out, bool threads, struct q_err *e);
void grammar_compiler_free(struct grammar_compiler *c);
int grammar_compiler_fd(
    const struct grammar_compiler *c); /* readable if grammar_compiler_take has a result */
/* The cached program of m's grammar, borrowed until the next call; NULL: not cached. */
const uint32_t *grammar_compiler_known(struct grammar_compiler *c, const struct msg_submit *m,
                                       uint32_t *n_word);
/* Add a request whose grammar is to be compiled; m is copied. Errors: Q_NO_SPACE (a bound above),
 * Q_NO_MEMORY. */
FALLIBLE grammar_compiler_add(struct grammar_compiler *c, uint32_t frontend_id,
                              const struct msg_submit *m, struct q_err *e);
struct compiled {
    uint32_t frontend_id;
    uint64_t req_id;
    struct msg_submit submit; /* with the program as its grammar; borrowed until the next call */
    struct q_err error;       /* error of the compilation */
};
/* The next request whose compilation has ended; call it until it returns false. */
bool grammar_compiler_take(struct grammar_compiler *c, struct compiled *out);
/* Compile the next job handed to this stage; waits for it at most timeout_ms (-1: without limit).
 * False: no job came. Called by the stage's thread. */
bool grammar_compiler_work(struct grammar_compiler *c, enum grammar_compiler_stage stage,
                           int timeout_ms);
bool grammar_compiler_abort(struct grammar_compiler *c, uint32_t frontend_id, uint64_t req_id);
uint32_t grammar_compiler_abort_frontend(struct grammar_compiler *c, uint32_t frontend_id);
/* Abort one waiting request and return its id; false: none waits. */
bool grammar_compiler_abort_next(struct grammar_compiler *c, uint32_t *frontend_id,
                                 uint64_t *req_id);
uint32_t grammar_compiler_count(const struct grammar_compiler *c);
/* Has a thread a job, perhaps one that no request waits for any more? */
bool grammar_compiler_works(const struct grammar_compiler *c);
void grammar_compiler_stats(const struct grammar_compiler *c, struct grammar_compiler_stats *out);

#endif
