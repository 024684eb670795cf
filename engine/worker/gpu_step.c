/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/worker/gpu_state.h"

#define ALIGN 256u
#define MIB   1048576.0

static size_t take(size_t *at, size_t n)
{
    const size_t here = *at;
    *at = (here + n + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

struct gpu_layout gpu_layout_of(uint32_t n_token, uint32_t n_seq, uint32_t n_logit)
{
    size_t at = 0;
    struct gpu_layout l;
    l.ids = take(&at, n_token * sizeof(uint32_t));
    l.positions = take(&at, n_token * sizeof(uint32_t));
    l.places = take(&at, n_token * sizeof(uint32_t));
    l.seqs = take(&at, n_seq * sizeof(struct attention_seq));
    l.rows = take(&at, n_logit * sizeof(uint32_t));
    l.plan = at;
    return l;
}

static uint32_t *words(unsigned char *base, size_t at)
{
    return (uint32_t *)(void *)(base + at);
}

static struct attention_seq *seqs_at(unsigned char *base, const struct gpu_layout *at)
{
    return (struct attention_seq *)(void *)(base + at->seqs);
}

void gpu_pad(const struct gpu *g, const struct gpu_layout *at, uint32_t i, uint32_t n)
{
    for (; i < n; i++) {
        words(g->host, at->ids)[i] = 0;
        words(g->host, at->positions)[i] = 0;
        words(g->host, at->places)[i] = KERN_NO_SLOT;
        words(g->host, at->rows)[i] = i;
        seqs_at(g->host, at)[i] = (struct attention_seq){.blocks = g->tables, .row = i};
    }
}

void gpu_send(const struct gpu *g, const struct gpu_layout *at, const struct batch *counts)
{
    const struct device_table *t = g->link.t;
    const size_t n_plan =
        t->plan(g->link.d, g->host + at->plan, &g->limits, seqs_at(g->host, at), counts->n_seq);
    Q_ASSERT(n_plan <= g->plan_bytes);
    t->copy(g->link.s, g->device, g->host, at->plan + n_plan);
}

void gpu_walk(const struct gpu *g, const struct gpu_layout *at, const struct batch *counts,
              const struct kv_cache *kv)
{
    struct batch b = *counts;
    b.token_ids = words(g->device, at->ids);
    b.positions = words(g->device, at->positions);
    b.slots = words(g->device, at->places);
    b.seqs = seqs_at(g->device, at);
    b.logit_rows = words(g->device, at->rows);
    device_walk_run(g->walk,
                    &(struct device_step){
                        .batch = &b, .plan = g->device + at->plan, .kv = kv, .logits = g->logits});
}

/* ---- graphs ---- */

static struct batch padded(const struct gpu *g, uint32_t n)
{
    return (struct batch){
        .n_token = n, .n_seq = n, .n_logit = n, .context_max = g->limits.context_max};
}

static FALLIBLE record(struct gpu *g, struct gpu_graph *to, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const uint32_t n = to->n_seq;
    const struct gpu_layout at = gpu_layout_of(n, n, n);
    const struct batch b = padded(g, n);
    enum q_code rc;
    gpu_pad(g, &at, 0, n);
    gpu_send(g, &at, &b);
    gpu_walk(g, &at, &b, &g->kv); /* what is chosen at a first call is chosen here */
    if ((rc = t->sync(g->link.s, e)) || (rc = t->check(g->link.d, e)) ||
        (rc = t->graph_begin(g->link.s, e)))
        return rc;
    gpu_walk(g, &at, &b, &g->kv);
    return t->graph_end(g->link.s, &to->graph, e);
}

FALLIBLE gpu_record(struct gpu *g, struct q_err *e)
{
    const int64_t start_ms = clock_ms();
    uint64_t before, after, total;
    enum q_code rc = g->link.t->memory(g->link.d, &before, &total, e);
    for (uint32_t i = g->n_graph; i-- > 0 && !rc;) {
        rc = record(g, &g->graphs[i], e);
        if (!rc && (i % 8 == 0 || i + 1 == g->n_graph))
            log_info("graphs: %u of %u recorded, for %u sequences", g->n_graph - i, g->n_graph,
                     g->graphs[i].n_seq);
    }
    if (rc || (rc = g->link.t->memory(g->link.d, &after, &total, e)))
        return rc ? q_wrap(e, "recording a step as a graph") : Q_OK;
    if (g->n_graph)
        log_info("graphs: %u take %.1f MiB, recorded in %lld ms", g->n_graph,
                 before > after ? (double)(before - after) / MIB : 0.0,
                 (long long)(clock_ms() - start_ms));
    return Q_OK;
}

/* The graph for a batch in which every sequence has one row and wants its logits; NULL: none. */
static const struct gpu_graph *graph_for(const struct gpu *g, const struct batch *b)
{
    const struct gpu_graph *found = NULL;
    if (b->n_seq == 0 || b->n_token != b->n_seq || b->n_logit != b->n_seq)
        return NULL;
    for (uint32_t i = 0; i < g->n_graph && !found; i++)
        if (g->graphs[i].n_seq >= b->n_seq)
            found = &g->graphs[i];
    return found;
}

/* ---- a step ---- */

static void fill_arrays(const struct gpu *g, const struct gpu_layout *at, const struct batch *b,
                        const struct step_view *v)
{
    const size_t rows = b->n_token * sizeof(uint32_t);
    memcpy(g->host + at->ids, b->token_ids, rows);
    memcpy(g->host + at->positions, b->positions, rows);
    memcpy(g->host + at->places, b->slots, rows);
    memcpy(g->host + at->rows, b->logit_rows, b->n_logit * sizeof(uint32_t));
    for (uint32_t i = 0; i < b->n_seq; i++) {
        struct attention_seq *q = &seqs_at(g->host, at)[i];
        *q = b->seqs[i];
        q->blocks = g->tables + (size_t)v->seqs[i].slot * g->table_len;
    }
}

static FALLIBLE send_updates(const struct gpu *g, uint32_t n, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const size_t bytes = n * sizeof(uint32_t);
    const size_t at = g->updates_at, value = at + g->updates_max * sizeof(uint32_t);
    const struct kern_exec x = {.nth = 1, .stream = g->link.s};
    if (n == 0)
        return Q_OK;
    t->copy(g->link.s, g->device + at, g->host + at, bytes);
    t->copy(g->link.s, g->device + value, g->host + value, bytes);
    t->kern(g->link.d)->scatter(
        &(struct scatter_args){
            .dst = g->tables, .at = words(g->device, at), .value = words(g->device, value), .n = n},
        &x);
    /* the next ones go through the same memory */
    return n == g->updates_max ? t->sync(g->link.s, e) : Q_OK;
}

/* The blocks that the step's sequences have got. */
static FALLIBLE update_tables(const struct gpu *g, const struct slots *s, const struct step_view *v,
                              struct q_err *e)
{
    uint32_t *at = words(g->host, g->updates_at), *value = at + g->updates_max, n = 0;
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_seq *q = &v->seqs[i];
        const struct slot *slot = &s->slots[q->slot];
        for (uint32_t j = slot->n_block - q->n_new_block; j < slot->n_block; j++) {
            at[n] = q->slot * g->table_len + j;
            value[n++] = slot->blocks[j];
            enum q_code rc = n == g->updates_max ? send_updates(g, n, e) : Q_OK;
            if (rc)
                return rc;
            n %= g->updates_max;
        }
    }
    return send_updates(g, n, e);
}

static FALLIBLE bring_logits(struct gpu *g, uint32_t n, float **logits, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    enum q_code rc;
    if (n)
        t->copy(g->link.s, g->host_logits, g->logits,
                (size_t)n * g->limits.vocab_size * sizeof *g->logits);
    t->event_record(g->done, g->link.s);
    if ((rc = t->event_wait(g->done, e)) || (rc = t->check(g->link.d, e)))
        return rc;
    *logits = g->host_logits;
    return Q_OK;
}

FALLIBLE gpu_forward(struct gpu *g, const struct slots *s, const struct step_view *v,
                     float **logits, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct gpu_graph *graph = graph_for(g, &s->batch);
    struct batch b = s->batch;
    if (graph)
        b = padded(g, graph->n_seq);
    const struct gpu_layout at = gpu_layout_of(b.n_token, b.n_seq, b.n_logit);
    fill_arrays(g, &at, &s->batch, v);
    if (graph)
        gpu_pad(g, &at, s->batch.n_seq, b.n_seq);
    enum q_code rc = update_tables(g, s, v, e);
    if (rc)
        return rc;
    gpu_send(g, &at, &b);
    if (g->is_copying)
        t->stream_wait(g->link.s, g->copied);
    g->is_copying = false;
    if (graph)
        t->graph_launch(graph->graph, g->link.s);
    else if (b.n_token)
        gpu_walk(g, &at, &b, &g->kv);
    return bring_logits(g, s->batch.n_logit, logits, e);
}

void gpu_copies(struct gpu *g, const struct step_view *v)
{
    for (uint32_t i = 0; i < v->head->n_out; i++)
        kv_cache_copy_on(g->copier, &g->swap, v->outs[i].host, &g->kv, v->outs[i].block);
    for (uint32_t i = 0; i < v->head->n_in; i++)
        kv_cache_copy_on(g->copier, &g->kv, v->ins[i].block, &g->swap, v->ins[i].host);
    g->link.t->event_record(g->copied, g->copier);
    g->is_copying = true;
}
