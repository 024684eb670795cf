/* SPDX-License-Identifier: Apache-2.0 */
/* What a region of packed weights will look like, in words and in bytes: text about each piece, and
 * a small matrix of each form that occurs, made by the way that the weights go. It is hashed into
 * the key of the packed cache, so a layout cannot change without the key. */
#include <string.h>
#include "engine/model/weights.h"

#define PROBE_OUT 80u  /* a whole panel and a part of one; whole turns */
#define PROBE_IN  256u /* two groups of 128 */

static FALLIBLE add_probe(struct buf *plan, const struct kern_table *kern,
                          const struct packed *like, struct q_err *e)
{
    const struct weight_source s = {
        .present = true, .dtype = DT_F32, .rows = PROBE_OUT, .cols = PROBE_IN, .seed = 1};
    struct weight_matrix m = {.dst = *like, .parts = {s, s}, .n_part = like->gated ? 2 : 1};
    struct region out = REGION_INIT;
    struct weight_filler f = {
        .kern = kern, .n_thread = 1, .part_bytes = (size_t)KERN_PANEL * PROBE_IN * sizeof(float)};
    enum q_code rc;
    m.dst.n_out = m.n_part * PROBE_OUT;
    m.dst.n_in = PROBE_IN;
    const size_t n = weights_matrix_bytes(&m.dst, NULL);
    if (!(rc = region_init(&f.buffer, f.part_bytes, "a packed probe", e)) &&
        !(rc = region_init(&out, n, "a packed probe", e))) {
        m.dst.data = out.data;
        weights_fill(&f, &m, 1);
        buf_add(plan, m.dst.data, n);
    }
    region_release(&out);
    region_release(&f.buffer);
    return rc;
}

/* The same form: whatever struct packed says but the size. */
static bool is_alike(const struct packed *a, const struct packed *b)
{
    return a->dtype == b->dtype && a->group == b->group && a->gated == b->gated &&
           a->blocks == b->blocks;
}

/* Forms of the experts' matrices that differ from the expert's before. */
static FALLIBLE add_experts(struct buf *plan, const struct weights *w,
                            const struct kern_table *kern, struct q_err *e)
{
    const struct packed *gate_up = NULL, *down = NULL;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < w->n_layer * w->n_expert && !rc; i++) {
        const struct expert_weights *x = &w->experts[i];
        if (x->down.n_in == 0) /* of a layer that has none */
            continue;
        if (!gate_up || !is_alike(&x->gate_up, gate_up))
            rc = add_probe(plan, kern, &x->gate_up, e);
        if (!rc && (!down || !is_alike(&x->down, down)))
            rc = add_probe(plan, kern, &x->down, e);
        gate_up = &x->gate_up;
        down = &x->down;
    }
    return rc;
}

FALLIBLE weights_plan_probe(struct buf *plan, const struct weights *w,
                            const struct kern_table *kern, struct q_err *e)
{
    const struct packed *last = &w->lm_head;
    enum q_code rc = add_probe(plan, kern, last, e);
    for (uint32_t i = 0; i < w->n_layer && !rc; i++) {
        const struct layer_weights *l = &w->layers[i];
        const struct packed *const all[] = {&l->qkv, &l->out, &l->gate_up, &l->down, &l->router};
        for (size_t k = 0; k < sizeof all / sizeof *all && !rc; k++) {
            if (all[k]->n_in == 0)
                continue;
            if (!is_alike(all[k], last))
                rc = add_probe(plan, kern, all[k], e);
            last = all[k];
        }
    }
    rc = rc ? rc : add_experts(plan, w, kern, e);
    return rc ? rc : buf_check(plan, "plan of the weights", e);
}

void weights_plan_matrix(struct buf *plan, const struct packed *p, size_t at)
{
    buf_printf(plan, "matrix %u %u %s %zu at %zu\n", p->n_out, p->n_in, dtype_name(p->dtype),
               weights_matrix_bytes(p, NULL), at);
}
