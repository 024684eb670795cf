/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of requests that pool: the layers behind the pooling are computed by the host from
 * the pooled rows, wherever the model is (engine/model/pooler.h). */
#include <string.h>
#include "common/mem.h"
#include "engine/model/pooler.h"
#include "engine/worker/worker_internal.h"

FALLIBLE worker_make_vectors(struct worker *w, struct q_err *e)
{
    const struct pooler *pooler = model_pooler(w->model);
    if (!pooler)
        return Q_OK;
    w->pool_scratch = q_calloc((size_t)w->n_thread * pooler_n_scratch(pooler), sizeof(float));
    return w->pool_scratch ? Q_OK
                           : q_fail(e, Q_NO_MEMORY, "worker: out of memory for the pooled rows");
}

void worker_finish_vector(struct worker *w, uint32_t i, const struct worker_vector *v, uint32_t ith)
{
    const struct logit_row *from = v->row;
    const struct pooler *p = model_pooler(w->model);
    struct step_row *row = &w->result.rows[i];
    const struct pooler_ask ask = {.n = from->n_top, .is_raw = v->is_raw};
    *row = (struct step_row){
        .slot = from->i_slot,
        .position = from->position,
        .n_top = from->n_top,
        .top_start = from->top_start,
        .rank = 1,
    };
    memset(w->result.top_ids + from->top_start, 0, from->n_top * sizeof *w->result.top_ids);
    if (!pooler_run(p, v->pooled, ask, w->pool_scratch + (size_t)ith * pooler_n_scratch(p),
                    w->result.top_logprobs + from->top_start))
        row->rank = SAMPLE_BAD; /* the request ends; the others go on */
}

/* ---- of a step on a device ---- */

struct vectors_job {
    struct worker *w;
    const struct inflight_step *step;
};

/* Every thread: rows as they come. */
static void finish_vectors(void *arg, uint32_t ith, uint32_t nth)
{
    const struct vectors_job *j = arg;
    struct worker *w = j->w;
    const struct inflight_step *f = j->step;
    (void)nth;
    for (uint32_t i;
         (i = atomic_fetch_add_explicit(&w->next_row, 1, memory_order_relaxed)) < f->n_row;)
        worker_finish_vector(w, i,
                             &(struct worker_vector){
                                 .row = &f->rows[i].row,
                                 .is_raw = f->rows[i].is_raw,
                                 .pooled = gpu_pooled(w->gpu, f->i, i),
                             },
                             ith);
}

void worker_complete_vectors(struct worker *w, const struct inflight_step *f)
{
    struct vectors_job j = {w, f};
    atomic_store_explicit(&w->next_row, 0, memory_order_relaxed);
    team_run(w->team, finish_vectors, &j);
}
