/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/gpu/gpu.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/parse.h"
#include "engine/model/forward/device_tune.h"
#include "engine/worker/adapters.h"
#include "engine/worker/gpu/gpu_internal.h"

#define MEMORY_GPU_PART 0.9 /* without --gpu-memory-utilization; vLLM's */
#define MIB             1048576.0

/* ---- which device ---- */

static FALLIBLE parse_name(const char *name, uint32_t *index, bool *is_auto, bool *is_cpu,
                           struct q_err *e)
{
    int64_t i = 0;
    *is_auto = !*name || !strcmp(name, "auto");
    *is_cpu = !strcmp(name, "cpu");
    *index = 0;
    if (*is_auto || *is_cpu || !strcmp(name, "cuda"))
        return Q_OK;
    if (strncmp(name, "cuda:", 5) != 0)
        return q_fail(e, Q_INVALID, "--device is \"%s\", expected auto, cpu, cuda or cuda:N", name);
    enum q_code rc = parse_i64(&i, name + 5, 0, 1023, "--device cuda:N", e);
    *index = (uint32_t)i;
    return rc;
}

/* True if a driver is installed; checked first, because loading the device library is slow. */
static bool has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver)
        dlclose(driver);
    return driver != NULL;
}

/* Where choices of algorithms are kept: below the user's cache. NULL: there is none. */
static const char *tune_dir(char out[PATH_MAX])
{
    return user_cache_dir(out, "quire/tune") ? out : NULL;
}

static FALLIBLE make_events(const struct device_link *l, struct gpu_step_events *m, struct q_err *e)
{
    struct device_event **all[] = {&m->begun, &m->forward_done, &m->picking,
                                   &m->done,  &m->copying,      &m->copied};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++)
        rc = l->t->event_new(l->d, all[i], e);
    return rc;
}

static void release_events(const struct device_table *t, const struct gpu_step_events *m)
{
    struct device_event *const all[] = {m->begun, m->forward_done, m->picking,
                                        m->done,  m->copying,      m->copied};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        t->event_free(all[i]);
}

static FALLIBLE open_device(struct gpu *g, struct q_err *e)
{
    const struct worker_config *c = g->config;
    const struct device_options o = {
        .index = g->index,
        .deterministic = c->deterministic,
        .tune_dir = tune_dir(g->tune_dir),
    };
    struct device_link *l = &g->link;
    enum q_code rc;
    if ((rc = device_library_open(&l->t, *c->device_library ? c->device_library : NULL, e)) ||
        (rc = l->t->open(&l->d, &o, e)) || (rc = l->t->stream_new(l->d, &l->s, e)) ||
        (rc = l->t->stream_new(l->d, &g->copier, e)))
        return rc;
    if (*l->t->props(l->d)->note)
        log_info("%s", l->t->props(l->d)->note);
    for (uint32_t i = 0; i < GPU_STEP_EVENTS && !rc; i++)
        rc = make_events(l, &g->step_events[i], e);
    return rc;
}

FALLIBLE gpu_open(struct gpu **out, const struct worker_config *c, struct q_err *e)
{
    bool is_auto, is_cpu;
    uint32_t index;
    enum q_code rc = parse_name(c->device, &index, &is_auto, &is_cpu, e);
    *out = NULL;
    if (rc || is_cpu || (is_auto && !*c->device_library && !has_driver()))
        return rc;
    struct gpu *g = q_calloc(1, sizeof *g);
    if (!g)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a device");
    g->config = c;
    g->index = index;
    if (open_device(g, e)) {
        gpu_free(g);
        if (!is_auto)
            return q_wrap(e, "--device %s", c->device);
        log_warning("no GPU is used, computing on the CPU: %s", e->message);
        q_err_reset(e);
        return Q_OK;
    }
    *out = g;
    return Q_OK;
}

FALLIBLE gpu_check(bool *on_device, const struct worker_config *c, struct q_err *e)
{
    const struct device_table *t;
    struct device *d = NULL;
    bool is_auto, is_cpu;
    uint32_t index;
    enum q_code rc = parse_name(c->device, &index, &is_auto, &is_cpu, e);
    *on_device = !is_cpu && !(is_auto && !*c->device_library && !has_driver());
    if (rc || is_auto || is_cpu)
        return rc;
    char dir[PATH_MAX]; /* the worker reads there what this start finds out about the card */
    const struct device_options o = {.index = index, .tune_dir = tune_dir(dir)};
    if (!(rc = device_library_open(&t, *c->device_library ? c->device_library : NULL, e)) &&
        !(rc = t->open(&d, &o, e)))
        t->close(d);
    return rc ? q_wrap(e, "--device %s", c->device) : Q_OK;
}

const struct device_link *gpu_link(const struct gpu *g)
{
    return g ? &g->link : NULL;
}

void gpu_describe(const struct gpu *g, char *out, size_t n)
{
    const struct device_props *p = g->link.t->props(g->link.d);
    snprintf(out, n, "%s:%u %s %u.%u, driver %u.%u%s", g->link.t->name, g->index, p->name, p->major,
             p->minor, p->driver / 1000, p->driver % 1000 / 10,
             g->config->deterministic ? ", deterministic" : "");
}

/* ---- memory of steps ---- */

static FALLIBLE make_items(struct gpu *g, struct gpu_model *l, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const size_t n = (size_t)l->limits.n_row_max * l->limits.hidden_size * sizeof *l->items;
    enum q_code rc;
    void *p;
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        if ((rc = t->host_alloc(g->link.d, &p, n, "rows of items", e)))
            return rc;
        memset(p, 0, n);
        l->host_items[i] = p;
    }
    if ((rc = t->alloc(g->link.d, &p, n, "rows of items", e)))
        return rc;
    l->items = p;
    return Q_OK;
}

/* Slots for the adapters of the model. */
static FALLIBLE make_lora(struct gpu *g, struct gpu_model *l, struct q_err *e)
{
    const struct worker_config *c = g->config;
    const struct lora_device_args a = {
        .link = &g->link,
        .config = model_config(l->model),
        .dtype = adapters_dtype(c, l->model),
        .rank_max = c->max_lora_rank,
        .n_slot = c->max_loras ? c->max_loras : LORA_GROUPS_MAX,
    };
    enum q_code rc;
    if (!c->max_lora_rank || l != &g->model)
        return Q_OK;
    if (!(rc = lora_device_new(&l->lora, &a, e)))
        log_info("adapters: %u slots on the device, %.1f MiB (--max-loras, --max-lora-rank)",
                 a.n_slot, (double)lora_device_bytes(l->lora) / MIB);
    return rc;
}

/* Allocate the memory of a model's steps. max_logit: rows of logits. */
static FALLIBLE make_model(struct gpu *g, struct gpu_model *l, const struct model *m,
                           const struct device_limits *limits, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    struct device_limits *d = &l->limits;
    enum q_code rc;
    void *p;
    l->model = m;
    *d = *limits;
    executor_device_limits(d, m);
    if ((rc = executor_device_new(&l->executor, m, d, e)) || (rc = make_lora(g, l, e)))
        return rc;
    const struct batch most = {
        .n_token = d->n_row_max,
        .n_seq = d->n_seq_max,
        .n_logit = d->n_logit_max,
        .n_state_part = model_shape(m)->state_bytes ? d->n_seq_max * (1 + STEP_SEQ_SNAPSHOTS) : 0,
    };
    l->plan_bytes = t->plan_bytes(g->link.d, d);
    if (executor_device_wide_limits(&l->wide, d, m))
        l->wide_plan_bytes = t->plan_bytes(g->link.d, &l->wide);
    const struct gpu_layout at = gpu_layout_of(l, &most);
    const size_t n_bytes = at.wide_plan + l->wide_plan_bytes;
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        if ((rc = t->host_alloc(g->link.d, &p, n_bytes, "a step's arrays", e)))
            return rc;
        l->host[i] = p;
    }
    if ((rc = t->alloc(g->link.d, &p, n_bytes, "a step's arrays", e)))
        return rc;
    l->device = p;
    if ((rc = t->alloc(g->link.d, &p, d->n_row_max * sizeof *l->ids, "a step's tokens", e)))
        return rc;
    l->ids = p;
    if (model_takes_items(m) && (rc = make_items(g, l, e)))
        return rc;
    const size_t logits = (size_t)d->n_logit_max * model_shape(m)->n_output * sizeof *l->logits;
    rc = t->alloc(g->link.d, &p, logits, "logits", e);
    l->logits = rc ? NULL : p;
    return rc;
}

static void release_model(struct gpu *g, struct gpu_model *l)
{
    const struct device_table *t = g->link.t;
    if (l->kv_made)
        kv_cache_release(&l->kv);
    if (l->swap.memory)
        kv_cache_release(&l->swap);
    executor_device_free(l->executor);
    lora_device_free(l->lora);
    t->release(g->link.d, l->device);
    t->release(g->link.d, l->ids);
    t->release(g->link.d, l->logits);
    t->release(g->link.d, l->items);
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        t->host_free(g->link.d, l->host[i]);
        t->host_free(g->link.d, l->host_items[i]);
    }
}

/* A step of as many rows, sequences and logits as there can be, over a pool of a few blocks that
 * all sequences share. */
static void fill_largest(struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
                         const struct batch *b, uint32_t each)
{
    unsigned char *host = l->host[g->i_buffer];
    uint32_t *from = (uint32_t *)(void *)(host + at->from);
    uint32_t *positions = (uint32_t *)(void *)(host + at->positions);
    uint32_t *places = (uint32_t *)(void *)(host + at->slot_mapping);
    uint32_t *rows = (uint32_t *)(void *)(host + at->rows);
    struct attention_seq *seqs = (struct attention_seq *)(void *)(host + at->seqs);
    for (uint32_t i = 0; i < b->n_token; i++) {
        from[i] = (uint32_t)g->histories;
        positions[i] = i % each;
        if (gpu_has_types(l))
            ((uint32_t *)(void *)(host + at->types))[i] = 0;
        if (model_takes_items(l->model)) /* all of them are, of one */
            ((uint32_t *)(void *)(host + at->item_ids))[i] = 0;
        places[i] = i < each ? i : KERN_NO_SLOT;
    }
    for (uint32_t i = 0; i < b->n_logit; i++)
        rows[i] = i;
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const uint32_t left = b->n_token - i * each;
        seqs[i] = (struct attention_seq){
            .blocks = g->words,
            .row = i * each,
            .n_query = left < each ? left : each,
        };
    }
    memset(host + at->rope_cos_sin, 0, b->n_token * executor_device_cos_sin_bytes(l->model));
    if (b->n_state_part) /* all rows are of one, whose state is the pool's only one */
        *(struct state_part *)(void *)(host + at->state_parts) =
            (struct state_part){0, b->n_token, 0, KERN_STATE_ZERO, KERN_STATE_NONE};
}

static FALLIBLE run_largest(struct gpu *g, const struct gpu_model *l, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct device_limits *d = &l->limits;
    const uint32_t n = d->n_row_max, each = (n + d->n_seq_max - 1) / d->n_seq_max;
    const uint32_t n_block = (each + KERN_BLOCK - 1) / KERN_BLOCK;
    const struct batch b = {
        .n_token = n,
        .n_seq = (n + each - 1) / each,
        .n_logit = n < d->n_logit_max ? n : d->n_logit_max,
        .n_state_part = model_shape(l->model)->state_bytes ? 1 : 0,
        .context_max = each,
    };
    const struct gpu_layout at = gpu_layout_of(l, &b);
    struct kv_cache few;
    enum q_code rc = kv_cache_init(&few, l->model, n_block, e);
    if (rc)
        return rc;
    if (b.n_state_part && (rc = kv_cache_init_states(&few, l->model, 1, e))) {
        kv_cache_release(&few);
        return rc;
    }
    uint32_t *first = g->updates.host[g->i_buffer];
    for (uint32_t i = 0; i < n_block; i++)
        first[i] = i;
    t->copy(g->link.s, g->words, first, n_block * sizeof *first);
    fill_largest(g, l, &at, &b, each);
    g->n_item = model_takes_items(l->model);
    gpu_fill_lora(g, l, &at, NULL, n);
    gpu_send(g, l, &at, &b);
    rc = gpu_forward_done(g, &(struct gpu_pass){l, &at, &b, &few, false, l->lora != NULL}, e);
    kv_cache_release(&few);
    return rc ? q_wrap(e, "memory measurement with a step of %u tokens", n) : Q_OK;
}

/* The pools of one model; n_state 0: it has no states. */
static FALLIBLE make_kv(struct gpu_model *l, const struct gpu_sizes *sizes, uint32_t n_state,
                        struct q_err *e)
{
    enum q_code rc = kv_cache_init(&l->kv, l->model, sizes->n_block, e);
    l->kv_made = !rc;
    if (!rc && n_state)
        rc = kv_cache_init_states(&l->kv, l->model, n_state, e);
    if (!rc && sizes->n_swap_block)
        rc = kv_cache_init_swap(&l->swap, l->model, sizes->n_swap_block, e);
    return rc;
}

static FALLIBLE make_pools(struct gpu *g, struct step_limits *l, struct gpu_sizes *sizes,
                           struct q_err *e)
{
    struct worker_config c = *g->config;
    const struct model_shape *shape = model_shape(g->model.model);
    struct memory_need need = {
        .weight_bytes = shape->weight_bytes,
        .block_bytes = shape->kv_block_bytes ? shape->kv_block_bytes : MEMORY_EMPTY_BLOCK,
        .state_bytes = shape->state_bytes,
        .on_device = true,
    };
    uint64_t left, total;
    enum q_code rc = g->link.t->memory(g->link.d, &left, &total, e);
    if (rc)
        return rc;
    if (g->draft.model) {
        need.weight_bytes += model_shape(g->draft.model)->weight_bytes;
        need.block_bytes += model_shape(g->draft.model)->kv_block_bytes;
    }
    need.activation_bytes = total - left > need.weight_bytes ? total - left - need.weight_bytes : 0;
    need.total_bytes = total;
    if (c.memory_part <= 0)
        c.memory_part = MEMORY_GPU_PART;
    if ((rc = memory_states(l, &c, &need, e)))
        return rc;
    if (c.fit_length && memory_fit_length(l, &c, &need, NULL, NULL))
        c.n_block = (l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    if ((rc = memory_blocks(&sizes->n_block, &c, l, &need, e)))
        return rc;
    const struct memory_need host = {
        .block_bytes = need.block_bytes,
        .total_bytes = memory_available(),
        .on_device = true,
    };
    sizes->n_swap_block = memory_swap_blocks(sizes->n_block, &c, l, &host);
    if (sizes->n_swap_block)
        l->copies_max = 2 * g->table_len;
    rc = make_kv(&g->model, sizes, l->n_state, e);
    return rc || !g->draft.model ? rc : make_kv(&g->draft, sizes, 0, e);
}

/* The configured graph sizes, ascending and unique; by default 1, 2, 4, 8, 16, 24 … */
static void choose_graphs(struct gpu *g)
{
    const struct worker_config *c = g->config;
    const uint32_t most = c->max_num_seqs;
    if (c->enforce_eager || model_shape(g->model.model)->pools) /* which has no steps of decode */
        return;
    for (uint32_t i = 0; i < c->n_graph_size; i++)
        if (c->graph_sizes[i] <= most)
            g->graphs[g->n_graph++].n_seq = c->graph_sizes[i];
    for (uint32_t n = 1; c->n_graph_size == 0 && n <= most && g->n_graph < RING_GRAPHS_MAX - 1;
         n = n < 8 ? 2 * n : n + 8)
        g->graphs[g->n_graph++].n_seq = n;
    if (c->n_graph_size == 0 && g->graphs[g->n_graph - 1].n_seq != most)
        g->graphs[g->n_graph++].n_seq = most;
}

static FALLIBLE make_models(struct gpu *g, const struct gpu_models *m, const struct step_limits *l,
                            struct q_err *e)
{
    struct device_limits d = {.n_seq_max = l->max_num_seqs, .n_logit_max = l->logit_rows_max};
    enum q_code rc;
    /* a graph may have more rows than a step may have tokens */
    d.n_row_max =
        l->max_num_batched_tokens > l->max_num_seqs ? l->max_num_batched_tokens : l->max_num_seqs;
    if ((rc = make_model(g, &g->model, m->model, &d, e)) || !m->draft)
        return rc;
    d.n_row_max = l->max_num_batched_tokens + l->max_num_seqs; /* draft.c, n_token_max */
    d.n_logit_max = l->max_num_seqs;
    return make_model(g, &g->draft, m->draft, &d, e);
}

/* What becomes of the rows behind the model. */
static FALLIBLE make_results(struct gpu *g, struct q_err *e)
{
    const struct model_shape *shape = model_shape(g->model.model);
    const size_t logits = (size_t)GPU_LOGITS * shape->vocab_size * sizeof *g->host_logits;
    enum q_code rc;
    void *p;
    if (shape->pools)
        return gpu_pool_make(g, e);
    if ((rc = gpu_sampling_make(g, e)) ||
        (rc = g->link.t->host_alloc(g->link.d, &p, logits, "logits", e)))
        return rc;
    g->host_logits = p;
    return Q_OK;
}

FALLIBLE gpu_make(struct gpu *g, const struct gpu_models *m, struct step_limits *l,
                  struct gpu_sizes *sizes, struct q_err *e)
{
    const int64_t start_ms = clock_ms();
    enum q_code rc;
    if ((rc = gpu_slots_make(g, l, e)) || (rc = make_models(g, m, l, e)) ||
        (rc = make_results(g, e)))
        return rc;
    if ((rc = device_tune(m->model, g->model.executor, &g->model.limits, e)) ||
        (m->draft && (rc = device_tune(m->draft, g->draft.executor, &g->draft.limits, e))))
        return rc;
    if ((rc = run_largest(g, &g->model, e)) ||
        (g->draft.model && (rc = run_largest(g, &g->draft, e))))
        return rc;
    log_info("device: measured the memory of a step of %u tokens in %lld ms",
             g->model.limits.n_row_max, (long long)(clock_ms() - start_ms));
    if ((rc = make_pools(g, l, sizes, e)))
        return rc;
    choose_graphs(g);
    return gpu_record(g, e);
}

const struct kv_cache *gpu_kv(const struct gpu *g)
{
    return &g->model.kv;
}

struct lora_device *gpu_lora(const struct gpu *g)
{
    return g->model.lora;
}

const struct kv_cache *gpu_swap(const struct gpu *g)
{
    return &g->model.swap;
}

static void forget_model(const struct gpu_model *l)
{
    if (l->kv_made)
        kv_cache_forget(&l->kv);
    if (l->swap.memory)
        kv_cache_forget(&l->swap);
}

void gpu_forget(struct gpu *g)
{
    forget_model(&g->model);
    forget_model(&g->draft);
}

void gpu_stop(struct gpu *g)
{
    struct q_err e = Q_ERR_INIT;
    if (!g || !g->link.s || !g->copier)
        return;
    if (g->link.t->sync(g->copier, &e) || g->link.t->sync(g->link.s, &e))
        log_debug("device: %s", e.message);
}

void gpu_free(struct gpu *g)
{
    if (!g)
        return;
    const struct device_table *t = g->link.t;
    struct device *d = g->link.d;
    if (d) {
        gpu_drop_graphs(g);
        release_model(g, &g->model);
        release_model(g, &g->draft);
        gpu_slots_release(g);
        gpu_sampling_release(g);
        gpu_pool_release(g);
        t->host_free(d, g->host_logits);
        for (uint32_t i = 0; i < GPU_STEP_EVENTS; i++)
            release_events(t, &g->step_events[i]);
        t->stream_free(g->copier);
        t->stream_free(g->link.s);
        t->close(d);
    }
    q_free(g);
}
