/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the ranks of a tensor-parallel group. Thread 0 exchanges while the others wait; an
 * error is kept in the call, and the pass goes on to its end without further sums, so that all
 * threads take the same way. */
#include "engine/distill/student_internal.h"

void student_sum(struct student_run *r, float *x, size_t n)
{
    const struct tensor_group *g = &r->s->group;
    struct student_call *c = r->call;
    if (r->x.ith == 0 && !c->rc)
        c->rc = g->sum(g->ctx, x, n, c->e);
    student_meet(r);
}

/* Behind `exchange` lie the parts of all ranks. Those of the ranks that share the rows are added in
 * the order of ranks, then to the gradient. */
void student_add_shared(struct student_run *r, const struct param *p, float *g,
                        const struct param_tensor *t)
{
    struct student *s = r->s;
    const struct tensor_group *group = &s->group;
    struct student_call *c = r->call;
    const size_t n = (size_t)t->n_row * t->n_col, at = (size_t)t->row * p->n_col;
    const uint32_t first = group->rank / t->n_sharing * t->n_sharing;
    float *all = s->exchange + (size_t)p->n_row * p->n_col;
    if (r->x.ith == 0 && !c->rc)
        c->rc = group->gather(group->ctx, s->exchange + at, n, all, c->e);
    for (size_t i = 0; i < n && r->x.ith == 0 && !c->rc; i++) {
        float sum = all[first * n + i];
        for (uint32_t k = first + 1; k < first + t->n_sharing; k++)
            sum += all[k * n + i];
        g[at + i] += sum;
    }
    student_meet(r);
}
