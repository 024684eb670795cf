/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/program.h"
#include <string.h>
#include "common/mem.h"

#define CAPACITY_FIRST 64u

FALLIBLE program_add(struct layer_program *p, const struct program_op *op, struct q_err *e)
{
    if (p->n_op == p->op_capacity) {
        const uint32_t n = p->op_capacity ? 2 * p->op_capacity : CAPACITY_FIRST;
        struct program_op *more = q_realloc_array(p->ops, n, sizeof *more);
        if (!more)
            return q_fail(e, Q_NO_MEMORY, "out of memory for a program of %u operations", n);
        p->ops = more;
        p->op_capacity = n;
    }
    p->ops[p->n_op++] = *op;
    return Q_OK;
}

FALLIBLE program_insert(struct layer_program *p, uint32_t at, const struct program_op *op,
                        struct q_err *e)
{
    const enum q_code rc = program_add(p, op, e);
    if (rc)
        return rc;
    memmove(&p->ops[at + 1], &p->ops[at], (p->n_op - 1 - at) * sizeof *p->ops);
    p->ops[at] = *op;
    return Q_OK;
}

void program_release(struct layer_program *p)
{
    while (p->owns) {
        struct program_own *next = p->owns->next;
        q_free(p->owns);
        p->owns = next;
    }
    q_free(p->ops);
    q_free(p->stages);
    q_free(p->passes);
    *p = (struct layer_program)LAYER_PROGRAM_INIT;
}
