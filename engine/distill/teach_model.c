/* SPDX-License-Identifier: Apache-2.0 */
/* A model that is loaded here: a micro batch at a time, logits of a chunk of rows at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/distill/teach.h"
#include "engine/distill/teacher.h"

/* ---- the top k of a row ---- */

struct candidate {
    float z;
    uint32_t id;
};

/* Is a less likely than b? */
static bool is_less(struct candidate a, struct candidate b)
{
    return a.z < b.z || (a.z == b.z && a.id > b.id);
}

/* heap[0] is the least likely; its place is free for c. */
static void sift_down(struct candidate *heap, uint32_t n, struct candidate c)
{
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_less(heap[child + 1], heap[child]))
            child++;
        if (!is_less(heap[child], c))
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

static void sift_up(struct candidate *heap, uint32_t at, struct candidate c)
{
    for (; at && is_less(c, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = c;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* log_sum: the logarithm of the sum of exp(z). NaN stands last. */
static void top_k_of_row(const struct teach_rows *r, uint32_t row, double log_sum)
{
    struct candidate heap[KERN_TOP_K_MAX];
    const float *z = r->z + row * r->stride;
    for (uint32_t v = 0; v < r->n_col; v++) {
        const struct candidate c = {isnan(z[v]) ? -INFINITY : z[v], v};
        if (v < r->k)
            sift_up(heap, v, c);
        else if (is_less(heap[0], c))
            sift_down(heap, r->k, c);
    }
    qsort(heap, r->k, sizeof *heap, by_id);
    for (uint32_t i = 0; i < r->k; i++) {
        const double p = (double)heap[i].z - log_sum;
        r->ids[(size_t)row * r->k + i] = heap[i].id;
        r->logprobs[(size_t)row * r->k + i] = (float)(p < 0 ? p : 0);
    }
}

struct top_k_job {
    const struct teach_rows *r;
    const struct kern_table *kern;
};

static void top_k(void *arg, uint32_t ith, uint32_t nth)
{
    const struct top_k_job *j = arg;
    const struct kern_exec alone = {.nth = 1};
    const uint32_t n = j->r->n, end = (uint32_t)((uint64_t)n * (ith + 1) / nth);
    for (uint32_t i = (uint32_t)((uint64_t)n * ith / nth); i < end; i++) {
        float most;
        uint32_t best;
        double sum;
        const struct softmax_stats_args a = {
            .x = j->r->z + i * j->r->stride,
            .x_stride = j->r->stride,
            .n_row = 1,
            .n_col = j->r->n_col,
            .max = &most,
            .argmax = &best,
            .sumexp = &sum,
        };
        j->kern->softmax_stats(&a, &alone);
        top_k_of_row(j->r, i, (double)most + log(sum));
    }
}

void teach_top_k(const struct teach_rows *r, const struct kern_table *kern, struct team *team)
{
    struct top_k_job j = {r, kern};
    Q_ASSERT(r->k <= r->n_col && r->k <= KERN_TOP_K_MAX);
    if (team)
        team_run(team, top_k, &j);
    else
        top_k(&j, 0, 1);
}

/* ---- all micro batches ---- */

struct run {
    const struct teach_options *o;
    struct teacher *t;
    struct teacher_source source;
    uint32_t *rows; /* [n_row_max] that count */
    uint32_t *ids;  /* [n_row_max, top_k] */
    float *logprobs;
};

static FALLIBLE run_batch(struct run *r, const struct micro_batch *b, struct q_err *e)
{
    const uint32_t k = r->o->top_k;
    const float *stream;
    uint32_t n = 0;
    enum q_code rc = teacher_forward(r->t, b, NULL, &stream, e);
    for (uint32_t i = 0; i < b->n_row; i++)
        if (b->labels[i] >= 0)
            r->rows[n++] = i;
    for (uint32_t at = 0, chunk = loss_head_rows(r->source.n_vocab); at < n && !rc; at += chunk) {
        struct teacher_rows z;
        const uint32_t m = n - at < chunk ? n - at : chunk;
        if ((rc = r->source.rows(r->source.ctx, b, r->rows + at, m, &z, e)))
            break;
        const struct teach_rows top = {
            .z = z.z,
            .stride = z.stride,
            .n = m,
            .n_col = z.n_col,
            .k = k,
            .ids = r->ids + (size_t)at * k,
            .logprobs = r->logprobs + (size_t)at * k,
        };
        teach_top_k(&top, r->o->kern, r->o->team);
    }
    return rc;
}

static FALLIBLE run_init(struct run *r, const struct teach_options *o, uint32_t n_row_max,
                         struct q_err *e)
{
    const struct teacher_options t = {
        .dir = o->dir,
        .kern = o->kern,
        .team = o->team,
        .dtype_auto = o->dtype_auto,
        .dtype = o->dtype,
        .quantization = o->quantization,
        .n_row_max = n_row_max,
    };
    const size_t n = (size_t)n_row_max * o->top_k;
    const enum q_code rc = teacher_load(&r->t, &t, e);
    if (rc)
        return rc;
    r->o = o;
    r->source = teacher_logits_source(r->t);
    r->rows = q_calloc(n_row_max, sizeof *r->rows);
    r->ids = q_calloc(n, sizeof *r->ids);
    r->logprobs = q_calloc(n, sizeof *r->logprobs);
    return r->rows && r->ids && r->logprobs
               ? Q_OK
               : q_fail(e, Q_NO_MEMORY, "out of memory for the top %u of %u rows", o->top_k,
                        n_row_max);
}

FALLIBLE teach_model_run(const struct teach_options *o, uint32_t n_row_max,
                         const struct teach_model_calls *calls, struct q_err *e)
{
    struct run r = {0};
    struct micro_batch b;
    bool end = false;
    enum q_code rc = run_init(&r, o, n_row_max, e);
    while (!rc && !(rc = calls->next(calls->ctx, &b, &end, e)) && !end)
        if (o->stop && atomic_load(o->stop))
            rc = q_fail(e, Q_CANCELLED, "stopped");
        else if (!(rc = run_batch(&r, &b, e)))
            rc = calls->take(calls->ctx, &b, r.ids, r.logprobs, e);
    teacher_free(r.t);
    q_free(r.rows);
    q_free(r.ids);
    q_free(r.logprobs);
    return rc;
}
