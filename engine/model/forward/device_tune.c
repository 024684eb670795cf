/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/device_tune.h"
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

/* Of a stage, if it is a product. The router's stays our own: it is small, and which experts a row
 * takes turns on its last bits. */
static void add(struct products *p, const struct program_stage *s, bool asked)
{
    const struct program_op *op = &p->m->program.ops[s->first], *last = op + s->n - 1;
    if (op->kind != PROGRAM_MATMUL || program_weight_is_router(op->weight))
        return;
    const struct device_product x = {
        .w = program_matrix(&p->m->weights, op->weight, op->layer, 0),
        .x_dtype = (enum dtype)op->in[0].dtype,
        .y_dtype = (enum dtype)last->out.dtype,
        .has_bias = op->bias != PROGRAM_W_NONE,
        .accumulate = last->onto,
        .n_row_max = asked ? p->limits->n_logit_max : p->limits->n_row_max,
    };
    for (uint32_t i = 0; i < p->n; i++)
        if (same(&p->items[i], &x))
            return;
    if (p->n < PRODUCTS_MAX)
        p->items[p->n++] = x;
}

static void report(const struct device_tuned *t, int64_t ms)
{
    if (t->n_kept || t->n_made)
        log_info(
            "matrix products: %u algorithms read from disk, %u measured in %lld ms; %u are of the "
            "vendor library, the others are quire's kernels",
            t->n_kept, t->n_made, (long long)ms, t->n_library);
    if (t->n_wrong)
        log_warning("matrix products: %u algorithms of the vendor library are not used: their "
                    "results differ from those of quire's kernels",
                    t->n_wrong);
    if (*t->note)
        log_info("matrix products: %s", t->note);
}

FALLIBLE device_tune(const struct model *m, const struct executor_device *d,
                     const struct device_limits *l, struct q_err *e)
{
    struct products p = {.m = m, .limits = l};
    struct device_tuned came = {0};
    const int64_t start_ms = clock_ms();
    if (!m->link->t->tune)
        return Q_OK;
    for (uint32_t i = 0; i < m->program.n_pass; i++) {
        const struct program_pass *pass = &m->program.passes[i];
        for (uint32_t j = pass->first; j < pass->first + pass->n; j++)
            add(&p, &m->program.stages[j], pass->asked);
    }
    const struct device_tuning what = {p.items, p.n, executor_device_exec(d)};
    enum q_code rc = m->link->t->tune(m->link->d, &what, &came, e);
    if (rc)
        return q_wrap(e, "choosing the algorithms of matrix products (--deterministic skips this)");
    report(&came, clock_ms() - start_ms);
    return Q_OK;
}
