/* SPDX-License-Identifier: Apache-2.0 */
/* program_own - what a plugin adds to a layer program: operations of its own and buffers with names
 * of its own. Threads: as program.h. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_OWN_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_OWN_H
#include <stdint.h>
#include "common/err.h"

#define PROGRAM_NAME_MAX 32u /* of a buffer */

struct quire_operation;
struct program_own {
    const struct quire_operation *of;
    double params[8]; /* QUIRE_OP_PARAMS_MAX */
    struct program_own *next;
};

struct layer_program;
struct program_op;
/* One operation at place `at` of the list, before the one that is there. Errors: Q_NO_MEMORY. */
FALLIBLE program_insert(struct layer_program *p, uint32_t at, const struct program_op *op,
                        struct q_err *e);

#endif
