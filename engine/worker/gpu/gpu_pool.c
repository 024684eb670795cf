/* SPDX-License-Identifier: Apache-2.0 */
/* Of a model that pools, the rows that stand in the place of logits go to the host, which computes
 * the vectors of them (engine/worker/vectors.c) while the device computes the next step. Host
 * memory is that of two steps in flight. */
#include <string.h>
#include "engine/worker/gpu/gpu_internal.h"

static size_t row_floats(const struct gpu *g)
{
    return model_shape(g->model.model)->n_output;
}

FALLIBLE gpu_pool_make(struct gpu *g, struct q_err *e)
{
    const size_t n = g->model.limits.n_logit_max * row_floats(g) * sizeof(float);
    enum q_code rc;
    void *p;
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        if ((rc = g->link.t->host_alloc(g->link.d, &p, n, "pooled rows", e)))
            return rc;
        memset(p, 0, n);
        g->pooled[i] = p;
    }
    return Q_OK;
}

void gpu_pool_release(struct gpu *g)
{
    for (uint32_t i = 0; i < GPU_STEPS; i++)
        g->link.t->host_free(g->link.d, g->pooled[i]);
}

void gpu_pool(struct gpu *g, uint32_t n)
{
    g->link.t->event_record(gpu_events_now(g)->picking, g->link.s);
    if (n)
        g->link.t->copy(g->link.s, g->pooled[g->i_buffer], g->model.logits,
                        n * row_floats(g) * sizeof(float));
}

const float *gpu_pooled(const struct gpu *g, uint64_t n, uint32_t i_row)
{
    return g->pooled[n % GPU_STEPS] + i_row * row_floats(g);
}
