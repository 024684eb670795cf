/* SPDX-License-Identifier: Apache-2.0 */
/* compiling - requests with a grammar on their way to the scheduler.
 *
 * A grammar that was compiled lately is known at once; another one is compiled on a thread of its
 * own while the engine goes on, and its request waits here. What cannot be compiled ends its
 * request with the compiler's error.
 * Threads: the core's loop; the compiler's thread sees copies only. */
#ifndef QUIRE_ENGINE_CORE_COMPILING_H
#define QUIRE_ENGINE_CORE_COMPILING_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/proto.h"

#define COMPILING_MAX  1024u /* requests waiting */
#define COMPILED_KEPT  128u  /* programs remembered, of COMPILED_BYTES together */
#define COMPILED_BYTES ((size_t)64 << 20)

struct compiling;
FALLIBLE compiling_new(struct compiling **out, struct q_err *e);
void compiling_free(struct compiling *c);
int compiling_fd(const struct compiling *c); /* readable when compiling_take has something */
/* The program of m's grammar, borrowed until the next call; NULL: not known. */
const uint32_t *compiling_known(struct compiling *c, const struct msg_submit *m, uint32_t *n_word);
/* Have it compiled; m is copied. Errors: Q_NO_SPACE (COMPILING_MAX wait), Q_NO_MEMORY. */
FALLIBLE compiling_add(struct compiling *c, uint32_t origin, const struct msg_submit *m,
                       struct q_err *e);
struct compiled {
    uint32_t origin;
    uint64_t req_id;
    struct msg_submit submit; /* with the program as its grammar; borrowed until the next call */
    struct q_err error;       /* why there is no program */
};
bool compiling_take(struct compiling *c, struct compiled *out); /* the next that is done */
bool compiling_abort(struct compiling *c, uint32_t origin, uint64_t req_id);
uint32_t compiling_abort_origin(struct compiling *c, uint32_t origin);
/* Abort one that waits and say which; false: none does. */
bool compiling_abort_next(struct compiling *c, uint32_t *origin, uint64_t *req_id);
uint32_t compiling_count(const struct compiling *c);

#endif
