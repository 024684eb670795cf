/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/worker/gpu/gpu_internal.h"

#define ALIGN 256u
#define MIB   1048576.0

static size_t take_bytes(size_t *at, size_t n)
{
    const size_t here = *at;
    *at = (here + n + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

struct gpu_layout gpu_layout_of(const struct gpu_model *l, const struct batch *counts)
{
    const size_t rows = counts->n_token * sizeof(uint32_t);
    size_t at = 0;
    struct gpu_layout to;
    to.from = take_bytes(&at, rows);
    to.positions = take_bytes(&at, rows);
    to.slot_mapping = take_bytes(&at, rows);
    to.seqs = take_bytes(&at, counts->n_seq * sizeof(struct attention_seq));
    to.rows = take_bytes(&at, counts->n_logit * sizeof(uint32_t));
    to.state_parts = take_bytes(&at, counts->n_state_part * sizeof(struct state_part));
    to.types = take_bytes(&at, gpu_has_types(l) ? rows : 0);
    to.item_ids = take_bytes(&at, model_takes_items(l->model) ? rows : 0);
    to.lora_rows = take_bytes(&at, l->lora ? rows : 0);
    to.lora_tiles = take_bytes(&at, l->lora ? lora_device_n_tile(l->lora, counts->n_token) *
                                                  sizeof(struct lora_row_tile)
                                            : 0);
    to.rope_cos_sin = take_bytes(&at, counts->n_token * executor_device_cos_sin_bytes(l->model));
    to.plan = take_bytes(&at, l->plan_bytes);
    to.wide_plan = at;
    return to;
}

static uint32_t *words(unsigned char *base, size_t at)
{
    return (uint32_t *)(void *)(base + at);
}

static struct attention_seq *seqs_at(unsigned char *base, const struct gpu_layout *at)
{
    return (struct attention_seq *)(void *)(base + at->seqs);
}

static struct state_part *state_parts_at(unsigned char *base, const struct gpu_layout *at)
{
    return (struct state_part *)(void *)(base + at->state_parts);
}

/* Parts i … n - 1 as ones without rows. */
static void pad_state_parts(struct state_part *parts, uint32_t i, uint32_t n)
{
    for (; i < n; i++)
        parts[i] = (struct state_part){
            .row = UINT32_MAX,
            .state = KERN_STATE_NONE,
            .from = KERN_STATE_NONE,
            .to = KERN_STATE_NONE,
        };
}

static struct lora_row_tile *tiles_at(unsigned char *base, const struct gpu_layout *at)
{
    return (struct lora_row_tile *)(void *)(base + at->lora_tiles);
}

void gpu_fill_lora(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
                   const struct lora_batch *b, uint32_t n)
{
    unsigned char *host = l->host[g->i_buffer];
    if (l->lora)
        lora_device_tiles(l->lora, b, n, tiles_at(host, at), words(host, at->lora_rows));
}

void gpu_pad(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
             uint32_t i, uint32_t n)
{
    unsigned char *host = l->host[g->i_buffer];
    if (model_shape(l->model)->state_bytes)
        pad_state_parts(state_parts_at(host, at), i, n);
    for (; i < n; i++) {
        words(host, at->from)[i] = (uint32_t)g->histories;
        words(host, at->positions)[i] = 0;
        words(host, at->slot_mapping)[i] = KERN_NO_SLOT;
        words(host, at->rows)[i] = i;
        if (gpu_has_types(l))
            words(host, at->types)[i] = 0;
        if (model_takes_items(l->model))
            words(host, at->item_ids)[i] = KERN_NO_ROW;
        seqs_at(host, at)[i] = (struct attention_seq){.blocks = g->words, .row = i};
    }
}

void gpu_send(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
              const struct batch *counts)
{
    const struct device_table *t = g->link.t;
    unsigned char *host = l->host[g->i_buffer];
    const size_t n_plan =
        t->plan(g->link.d, host + at->plan, &l->limits, seqs_at(host, at), counts->n_seq);
    Q_ASSERT(n_plan <= l->plan_bytes);
    if (g->n_item)
        t->copy(g->link.s, l->items, l->host_items[g->i_buffer],
                (size_t)g->n_item * l->limits.hidden_size * sizeof(float));
    t->copy(g->link.s, l->device, host, at->plan + n_plan);
    if (!l->wide_plan_bytes)
        return;
    const size_t n_wide =
        t->plan(g->link.d, host + at->wide_plan, &l->wide, seqs_at(host, at), counts->n_seq);
    Q_ASSERT(n_wide <= l->wide_plan_bytes);
    t->copy(g->link.s, l->device + at->wide_plan, host + at->wide_plan, n_wide);
}

FALLIBLE gpu_forward(const struct gpu *g, const struct gpu_pass *p, struct q_err *e)
{
    const struct gpu_model *l = p->l;
    const struct gpu_layout *at = p->at;
    struct batch b = *p->counts;
    const struct scatter_args tokens = {
        .dst = l->ids,
        .value = g->words,
        .from = words(l->device, at->from),
        .n = b.n_token,
        .limit = l->limits.vocab_size,
    };
    g->link.t->kern(g->link.d)->scatter(&tokens, executor_device_exec(l->executor));
    b.token_ids = l->ids;
    b.positions = words(l->device, at->positions);
    b.token_types = gpu_has_types(l) ? words(l->device, at->types) : NULL;
    b.slot_mapping = words(l->device, at->slot_mapping);
    b.seqs = seqs_at(l->device, at);
    b.logit_rows = words(l->device, at->rows);
    b.state_parts = state_parts_at(l->device, at);
    const struct lora_slots lora =
        p->has_lora ? lora_device_slots(l->lora, b.n_token, tiles_at(l->device, at),
                                        words(l->device, at->lora_rows))
                    : (struct lora_slots){0};
    const struct device_step s = {
        .batch = &b,
        .cos_sin = (const float *)(const void *)(l->device + at->rope_cos_sin),
        .plan = l->device + at->plan,
        .plan_host = p->is_recorded ? NULL : l->host[g->i_buffer] + at->plan,
        .wide_plan = l->device + at->wide_plan,
        .wide_plan_host = p->is_recorded ? NULL : l->host[g->i_buffer] + at->wide_plan,
        .item_ids = words(l->device, at->item_ids),
        .items = l->items,
        .kv = p->kv,
        .lora = p->has_lora ? &lora : NULL,
        .logits = l->logits,
    };
    return executor_device_run(l->executor, &s, e);
}

FALLIBLE gpu_forward_done(const struct gpu *g, const struct gpu_pass *p, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    struct q_err ignored = Q_ERR_INIT;
    const enum q_code rc = gpu_forward(g, p, e);
    const enum q_code end = t->sync(g->link.s, rc ? &ignored : e);
    return rc ? rc : end ? end : t->check(g->link.d, e);
}

/* ---- graphs ---- */

static struct batch padded(const struct gpu *g, uint32_t n)
{
    return (struct batch){
        .n_token = n,
        .n_seq = n,
        .n_logit = n,
        .n_state_part = model_shape(g->model.model)->state_bytes ? n : 0,
        .context_max = g->model.limits.context_max,
    };
}

static FALLIBLE record(struct gpu *g, uint32_t n, bool has_lora, struct device_graph **to,
                       struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct gpu_model *l = &g->model;
    const struct batch b = padded(g, n);
    const struct gpu_layout at = gpu_layout_of(l, &b);
    enum q_code rc;
    g->n_item = 0;
    gpu_pad(g, l, &at, 0, n);
    gpu_fill_lora(g, l, &at, NULL, n);
    gpu_send(g, l, &at, &b);
    const struct gpu_pass pass = {l, &at, &b, &l->kv, true, has_lora};
    if ((rc = gpu_forward_done(g, &pass, e)) || /* the library makes its lazy choices here */
        (rc = t->graph_begin(g->link.s, e)))
        return rc;
    struct q_err ignored = Q_ERR_INIT;
    rc = gpu_forward(g, &pass, e);
    const enum q_code end = t->graph_end(g->link.s, to, rc ? &ignored : e);
    return rc ? rc : end;
}

FALLIBLE gpu_record(struct gpu *g, struct q_err *e)
{
    const int64_t start_ms = clock_ms();
    uint64_t before, after, total;
    g->generation = model_generation(g->model.model);
    enum q_code rc = g->link.t->memory(g->link.d, &before, &total, e);
    for (uint32_t i = g->n_graph; i-- > 0 && !rc;) {
        struct gpu_graph *to = &g->graphs[i];
        rc = record(g, to->n_seq, false, &to->graph, e);
        if (!rc && g->model.lora)
            rc = record(g, to->n_seq, true, &to->with_lora, e);
        if (!rc && (i % 8 == 0 || i + 1 == g->n_graph))
            log_info("CUDA graphs: captured %u of %u, batch size %u", g->n_graph - i, g->n_graph,
                     g->graphs[i].n_seq);
    }
    if (rc || g->link.t->memory(g->link.d, &after, &total, e))
        return q_wrap(e, "capturing CUDA graphs (--enforce-eager disables them)");
    if (g->n_graph)
        log_info("CUDA graphs: %u graphs, %.1f MiB, captured in %lld ms", g->n_graph,
                 before > after ? (double)(before - after) / MIB : 0.0,
                 (long long)(clock_ms() - start_ms));
    return Q_OK;
}

void gpu_drop_graphs(struct gpu *g)
{
    for (uint32_t i = 0; i < g->n_graph; i++) {
        g->link.t->graph_free(g->graphs[i].graph);
        g->link.t->graph_free(g->graphs[i].with_lora);
        g->graphs[i].graph = g->graphs[i].with_lora = NULL;
    }
}

void gpu_reloaded(struct gpu *g)
{
    struct q_err e = Q_ERR_INIT;
    if (!g->n_graph || g->generation == model_generation(g->model.model))
        return;
    gpu_drop_graphs(g);
    if (!gpu_record(g, &e))
        return;
    log_warning("after a reload: %s; steps are launched kernel by kernel", e.message);
    gpu_drop_graphs(g);
    g->n_graph = 0;
}

/* The graph for a batch in which every sequence has one row with logits, and so one part of a
 * state; NULL: none. */
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

/* Rows of items, side by side, and which row of the batch each is. Returns how many there are. */
static uint32_t fill_items(const struct gpu *g, const struct gpu_model *l,
                           const struct gpu_layout *at, const struct batch *b)
{
    const size_t hidden = l->limits.hidden_size;
    uint32_t *ids = words(l->host[g->i_buffer], at->item_ids), n = 0;
    float *rows = l->host_items[g->i_buffer];
    if (!model_takes_items(l->model))
        return 0;
    for (uint32_t i = 0; i < b->n_token; i++) {
        const float *row = b->item_rows ? b->item_rows[i] : NULL;
        ids[i] = row ? n : KERN_NO_ROW;
        if (row)
            memcpy(rows + n++ * hidden, row, hidden * sizeof *row);
    }
    return n;
}

/* slots: of the sequences of b. */
static void fill_arrays(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
                        const struct batch *b, const uint32_t *slots)
{
    unsigned char *host = l->host[g->i_buffer];
    const size_t rows = b->n_token * sizeof(uint32_t);
    memcpy(host + at->positions, b->positions, rows);
    memcpy(host + at->slot_mapping, b->slot_mapping, rows);
    memcpy(host + at->rows, b->logit_rows, b->n_logit * sizeof(uint32_t));
    if (b->n_state_part)
        memcpy(host + at->state_parts, b->state_parts, b->n_state_part * sizeof *b->state_parts);
    if (gpu_has_types(l))
        memcpy(host + at->types, b->token_types, rows);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        struct attention_seq *q = &seqs_at(host, at)[i];
        *q = b->seqs[i];
        q->blocks = g->words + (size_t)slots[i] * g->table_len;
        for (uint32_t j = 0; j < q->n_query; j++)
            words(host, at->from)[q->row + j] = (uint32_t)gpu_history_at(g, slots[i], q->start + j);
    }
    if (executor_device_cos_sin(l->model, (float *)(void *)(host + at->rope_cos_sin), b))
        for (uint32_t i = 0; i < b->n_token; i++)
            words(host, at->positions)[i] = i;
}

static void wait_copies(struct gpu *g)
{
    if (g->is_copying)
        g->link.t->stream_wait(g->link.s, gpu_events_now(g)->copied);
    g->is_copying = false;
}

FALLIBLE gpu_launch(struct gpu *g, const struct slots *s, const struct step_view *v,
                    struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct gpu_model *l = &g->model;
    const struct gpu_graph *graph = graph_for(g, &s->batch);
    const struct batch b = graph ? padded(g, graph->n_seq) : s->batch;
    const struct gpu_layout at = gpu_layout_of(l, &b);
    const struct lora_batch *lora = s->batch.lora;
    enum q_code rc = gpu_update(g, s, v, e);
    q_err_reset(&g->refusal);
    if (rc || (lora && (rc = lora_device_place(l->lora, lora, e))))
        return rc;
    for (uint32_t j = 0; j < s->batch.n_seq; j++)
        g->seq_slots[j] = v->seqs[j].slot;
    fill_arrays(g, l, &at, &s->batch, g->seq_slots);
    g->n_item = fill_items(g, l, &at, &s->batch);
    if (graph)
        gpu_pad(g, l, &at, s->batch.n_seq, b.n_seq);
    gpu_fill_lora(g, l, &at, lora, b.n_token);
    gpu_send(g, l, &at, &b);
    gpu_events_now(g)->has_copies = v->head->n_out || v->head->n_in;
    wait_copies(g);
    t->event_record(gpu_events_now(g)->begun, g->link.s);
    if (graph)
        t->graph_launch(lora ? graph->with_lora : graph->graph, g->link.s);
    else if (b.n_token &&
             gpu_forward(g, &(struct gpu_pass){l, &at, &b, &l->kv, false, lora != NULL},
                         &g->refusal))
        log_error("%s", g->refusal.message);
    t->event_record(gpu_events_now(g)->forward_done, g->link.s);
    return Q_OK;
}

const char *gpu_refusal(const struct gpu *g)
{
    return g->refusal.code ? g->refusal.message : NULL;
}

uint64_t gpu_launch_sampling(struct gpu *g, const struct slots *s, struct masks *masks)
{
    if (g->pooled[0])
        gpu_pool(g, s->batch.n_logit);
    else if (s->batch.n_logit && g->sampling.device)
        gpu_sample(g, s, masks);
    else
        g->link.t->event_record(gpu_events_now(g)->picking, g->link.s);
    g->link.t->event_record(gpu_events_now(g)->done, g->link.s);
    gpu_next_buffer(g);
    return g->n_step++;
}

bool gpu_done(const struct gpu *g, uint64_t n)
{
    Q_ASSERT(n < g->n_step && g->n_step - n < GPU_STEP_EVENTS);
    return g->link.t->event_done(g->step_events[n % GPU_STEP_EVENTS].done);
}

FALLIBLE gpu_wait(struct gpu *g, uint64_t n, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    Q_ASSERT(n < g->n_step && g->n_step - n < GPU_STEP_EVENTS);
    enum q_code rc = t->event_wait(g->step_events[n % GPU_STEP_EVENTS].done, e);
    return rc ? rc : t->check(g->link.d, e);
}

struct gpu_times gpu_times_of(const struct gpu *g, uint64_t n)
{
    const struct device_table *t = g->link.t;
    const struct gpu_step_events *m = &g->step_events[n % GPU_STEP_EVENTS];
    const struct gpu_step_events *before =
        &g->step_events[(n + GPU_STEP_EVENTS - 1) % GPU_STEP_EVENTS];
    const float copy_ms = m->has_copies ? t->event_ms(m->copying, m->copied) : 0;
    struct gpu_times to = {.copy_us = (uint32_t)(copy_ms * 1000), .gap_us = STEP_NO_GAP};
    Q_ASSERT(n < g->n_step && g->n_step - n < GPU_STEP_EVENTS);
    if (n) {
        const float between = t->event_ms(before->done, m->begun) - copy_ms;
        const float within = t->event_ms(m->forward_done, m->picking);
        to.gap_us = step_gap(1000.0 * (double)((between > 0 ? between : 0) + within));
    }
    return to;
}

FALLIBLE gpu_logits(struct gpu *g, const uint32_t *rows, uint32_t n, float **logits,
                    struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const size_t n_vocab = g->model.limits.vocab_size;
    Q_ASSERT(n <= GPU_LOGITS);
    for (uint32_t i = 0; i < n; i++)
        t->copy(g->link.s, g->host_logits + i * n_vocab, g->model.logits + rows[i] * n_vocab,
                n_vocab * sizeof(float));
    enum q_code rc = t->sync(g->link.s, e);
    *logits = g->host_logits;
    return rc ? rc : t->check(g->link.d, e);
}

void gpu_copies(struct gpu *g, const struct step_view *v)
{
    const struct device_table *t = g->link.t;
    struct gpu_model *models[] = {&g->model, &g->draft};
    const struct gpu_step_events *m = gpu_events_now(g);
    if (g->n_step) /* that step may write blocks that are copied out, and read blocks that are
                    * overwritten */
        t->stream_wait(g->copier, g->step_events[(g->n_step - 1) % GPU_STEP_EVENTS].done);
    t->event_record(m->copying, g->copier);
    for (uint32_t k = 0; k < 2 && models[k]->model; k++) {
        const struct gpu_model *l = models[k];
        if (!l->kv.n_layer) /* states only */
            continue;
        for (uint32_t i = 0; i < v->head->n_out; i++)
            kv_cache_copy_on(g->copier, &l->swap, v->outs[i].host, &l->kv, v->outs[i].block);
        for (uint32_t i = 0; i < v->head->n_in; i++)
            kv_cache_copy_on(g->copier, &l->kv, v->ins[i].block, &l->swap, v->ins[i].host);
    }
    t->event_record(m->copied, g->copier);
    g->is_copying = true;
}

/* ---- the draft model ---- */

/* The likeliest tokens of rows of logits, by the device. */
static void sample_greedy_device(struct gpu *g, uint32_t n)
{
    const struct device_table *t = g->link.t;
    const struct gpu_sampling *q = &g->sampling;
    const struct gpu_model *l = &g->draft;
    struct sample_row *rows = (struct sample_row *)(void *)q->host[g->i_buffer];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct sample_row){.top_p = 1, .repetition = 1, .mask = SAMPLE_NO_MASK};
    t->copy(g->link.s, q->device, rows, n * sizeof *rows);
    const struct sample_args a = {
        .x = l->logits,
        .x_stride = l->limits.vocab_size,
        .rows = (const void *)q->device,
        .n_row = n,
        .n_vocab = l->limits.vocab_size,
        .histories = g->words + g->histories,
        .history_stride = g->history_len,
        .out = (void *)q->device_picks,
    };
    t->kern(g->link.d)->sample(&a, executor_device_exec(l->executor));
    t->copy(g->link.s, q->picks[g->i_buffer], q->device_picks, n * sizeof(struct sample_pick));
}

/* The same by the host. */
static FALLIBLE sample_greedy_host(struct gpu *g, uint32_t n, uint32_t *tokens, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const size_t n_vocab = g->draft.limits.vocab_size;
    for (uint32_t from = 0; from < n; from += GPU_LOGITS) {
        const uint32_t part = n - from < GPU_LOGITS ? n - from : GPU_LOGITS;
        t->copy(g->link.s, g->host_logits, g->draft.logits + from * n_vocab,
                part * n_vocab * sizeof(float));
        enum q_code rc = t->sync(g->link.s, e);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < part; i++)
            tokens[from + i] = sample_greedy(g->host_logits + i * n_vocab, (uint32_t)n_vocab);
    }
    return Q_OK;
}

FALLIBLE gpu_draft(struct gpu *g, const struct batch *b, const uint32_t *slots, uint32_t *tokens,
                   struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct gpu_model *l = &g->draft;
    const struct gpu_layout at = gpu_layout_of(l, b);
    const bool there = g->sampling.device && b->n_logit;
    enum q_code rc;
    fill_arrays(g, l, &at, b, slots);
    g->n_item = fill_items(g, l, &at, b);
    gpu_send(g, l, &at, b);
    wait_copies(g);
    struct q_err refusal = Q_ERR_INIT;
    if (gpu_forward(g, &(struct gpu_pass){l, &at, b, &l->kv, false, false}, &refusal))
        log_error("draft model: its tokens are none: %s", refusal.message);
    if (there)
        sample_greedy_device(g, b->n_logit);
    else if ((rc = sample_greedy_host(g, b->n_logit, tokens, e)))
        return rc;
    if ((rc = t->sync(g->link.s, e)) || (rc = t->check(g->link.d, e)))
        return rc;
    const struct sample_pick *picks = (const void *)g->sampling.picks[g->i_buffer];
    for (uint32_t i = 0; there && i < b->n_logit; i++)
        tokens[i] = picks[i].token;
    return Q_OK;
}
