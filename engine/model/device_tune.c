/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/device_tune.h"
#include "common/clock.h"
#include "common/log.h"
#include "engine/model/model_state.h"

#define PRODUCTS_MAX 64u /* different ones; what is more is not chosen for */

struct products {
    struct device_product items[PRODUCTS_MAX];
    uint32_t n;
    const struct model *m;
    const struct device_limits *limits;
};

static bool same(const struct device_product *a, const struct device_product *b)
{
    return a->w->n_out == b->w->n_out && a->w->n_in == b->w->n_in && a->w->dtype == b->w->dtype &&
           a->w->group == b->w->group && a->w->blocks == b->w->blocks &&
           a->w->gated == b->w->gated && a->y_dtype == b->y_dtype && a->has_bias == b->has_bias &&
           a->accumulate == b->accumulate;
}

/* next: what reads the outputs of gated weights. */
static void add(struct products *p, const struct packed *w, const float *bias, bool accumulate,
                const struct packed *next)
{
    const bool is_head = w == &p->m->weights.lm_head;
    const struct device_product x = {.w = w,
                                     .x_dtype = device_walk_input(p->m, w),
                                     .y_dtype = w->gated ? device_walk_made(p->m, next) : DT_F32,
                                     .has_bias = bias != NULL,
                                     .accumulate = accumulate,
                                     .n_row_max =
                                         is_head ? p->limits->n_logit_max : p->limits->n_row_max};
    if (!w->data) /* a layer of experts has no such matrix */
        return;
    for (uint32_t i = 0; i < p->n; i++)
        if (same(&p->items[i], &x))
            return;
    if (p->n < PRODUCTS_MAX)
        p->items[p->n++] = x;
}

static void report(const struct device_tuned *t, int64_t ms)
{
    if (t->n_kept || t->n_made)
        log_info("products: %u choices of algorithms from disk, %u made in %lld ms; %u are the "
                 "library's, the others our own kernels",
                 t->n_kept, t->n_made, (long long)ms, t->n_library);
    if (t->n_wrong)
        log_warning("products: %u algorithms of the library gave other numbers than our kernels "
                    "and are not used",
                    t->n_wrong);
    if (*t->note)
        log_info("products: %s", t->note);
}

FALLIBLE device_tune(const struct model *m, const struct device_walk *w,
                     const struct device_limits *l, struct q_err *e)
{
    struct products p = {.m = m, .limits = l};
    struct device_tuned came = {0};
    const int64_t start_ms = clock_ms();
    if (!m->link->t->tune)
        return Q_OK;
    for (uint32_t i = 0; i < m->weights.n_layer; i++) {
        const struct layer_weights *g = &m->weights.layers[i];
        add(&p, &g->qkv, g->qkv_bias, false, NULL);
        add(&p, &g->out, g->out_bias, true, NULL);
        add(&p, &g->gate_up, g->gate_up_bias, false, &g->down);
        add(&p, &g->down, g->down_bias, !g->experts, NULL); /* of a shared one: not onto x */
    }
    add(&p, &m->weights.lm_head, NULL, false, NULL);
    const struct device_tuning what = {p.items, p.n, device_walk_exec(w)};
    enum q_code rc = m->link->t->tune(m->link->d, &what, &came, e);
    if (rc)
        return q_wrap(e, "choosing who computes products (--deterministic does without)");
    report(&came, clock_ms() - start_ms);
    return Q_OK;
}
