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
    switch (op->kind) {
    case PROGRAM_CONV:
        return (op->conv.width - 1) * op->out.n_col;
    case PROGRAM_DELTA:
        return op->delta.n_value_head * op->delta.key_dim * op->delta.value_dim;
    case PROGRAM_SCAN:
        return op->scan.n_head * op->scan.head_dim * op->scan.n_state;
    default:
        return 0;
    }
}

static void place_state(struct program_op *op, uint32_t at)
{
    if (op->kind == PROGRAM_CONV)
        op->conv.state = at;
    else if (op->kind == PROGRAM_DELTA)
        op->delta.state = at;
    else if (op->kind == PROGRAM_SCAN)
        op->scan.state = at;
}

void program_place_states(struct layer_program *p)
{
    p->n_state = 0;
    for (uint32_t i = 0; i < p->n_op; i++) {
        const uint32_t n = program_state_floats(&p->ops[i]);
        place_state(&p->ops[i], p->n_state);
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
