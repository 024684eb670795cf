/* SPDX-License-Identifier: Apache-2.0 */
/* programs - the compiled grammars of all requests, waiting or running. Equal programs are stored
 * once, and all programs together take at most PROGRAMS_BYTES. Threads: the scheduler's loop. */
#ifndef QUIRE_ENGINE_SCHED_PROGRAMS_H
#define QUIRE_ENGINE_SCHED_PROGRAMS_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define PROGRAMS_BYTES ((size_t)256 << 20)

struct held_program;
struct programs { /* zeroed: empty */
    struct held_program *first;
    size_t bytes; /* of all */
};
void programs_release(struct programs *p);
/* The held copy of data [n_byte > 0], one reference.
 * Errors: Q_NO_SPACE (too many bytes with it; the first one always fits), Q_NO_MEMORY. */
FALLIBLE programs_take(struct programs *p, const void **out, const void *data, size_t n_byte,
                       struct q_err *e);
void programs_drop(struct programs *p, const void *held); /* takes NULL */

#endif
