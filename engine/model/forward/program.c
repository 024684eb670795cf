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

#define STATE_ALIGN 16u /* floats: a cache line */

uint32_t program_state_floats(const struct program_op *op)
{
    if (op->kind == PROGRAM_DELTA)
        return op->delta.n_value_head * op->delta.key_dim * op->delta.value_dim;
    return op->kind == PROGRAM_CONV ? (op->conv.width - 1) * op->out.n_col : 0;
}

void program_place_states(struct layer_program *p)
{
    p->n_state = 0;
    for (uint32_t i = 0; i < p->n_op; i++) {
        struct program_op *op = &p->ops[i];
        const uint32_t n = program_state_floats(op);
        if (n && op->kind == PROGRAM_DELTA)
            op->delta.state = p->n_state;
        else if (n)
            op->conv.state = p->n_state;
        p->n_state += (n + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    }
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
