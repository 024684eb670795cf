/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/gpu.h"
#include <dlfcn.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/parse.h"
#include "engine/worker/gpu_state.h"

#define MEMORY_GPU_PART 0.9 /* without --gpu-memory-utilization; vLLM's */
#define UPDATES_MAX     16384u
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

/* A driver is there; asked first, because the library behind the library is large. */
static bool has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver)
        dlclose(driver);
    return driver != NULL;
}

static FALLIBLE open_device(struct gpu *g, struct q_err *e)
{
    const struct worker_config *c = g->config;
    const struct device_options o = {.index = g->index, .deterministic = c->deterministic};
    struct device_link *l = &g->link;
    enum q_code rc;
    if ((rc = device_library_open(&l->t, *c->device_library ? c->device_library : NULL, e)) ||
        (rc = l->t->open(&l->d, &o, e)) || (rc = l->t->stream_new(l->d, &l->s, e)) ||
        (rc = l->t->stream_new(l->d, &g->copier, e)) || (rc = l->t->event_new(l->d, &g->copied, e)))
        return rc;
    return l->t->event_new(l->d, &g->done, e);
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
    if ((rc = open_device(g, e))) {
        gpu_free(g);
        if (!is_auto)
            return rc;
        log_warning("computing on the CPU: %s", e->message);
        q_err_reset(e);
        return Q_OK;
    }
    *out = g;
    return Q_OK;
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

/* ---- what steps use ---- */

static FALLIBLE make_arrays(struct gpu *g, const struct step_limits *l, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct device_limits *d = &g->limits;
    const size_t logits = (size_t)d->n_logit_max * d->vocab_size * sizeof *g->logits;
    /* a graph may have more rows than a step may have tokens */
    const uint32_t n_row = d->n_row_max > d->n_seq_max ? d->n_row_max : d->n_seq_max;
    const struct gpu_layout most = gpu_layout_of(n_row, d->n_seq_max, d->n_logit_max);
    void *p;
    enum q_code rc;
    g->table_len = (l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    g->plan_bytes = t->plan_bytes(g->link.d, d);
    g->updates_at = (most.plan + g->plan_bytes + 255) / 256 * 256;
    g->updates_max = UPDATES_MAX;
    const size_t bytes = g->updates_at + 2 * g->updates_max * sizeof(uint32_t);
    if ((rc = t->host_alloc(g->link.d, &p, bytes, "a step's arrays", e)))
        return rc;
    g->host = p;
    if ((rc = t->alloc(g->link.d, &p, bytes, "a step's arrays", e)))
        return rc;
    g->device = p;
    const size_t tables = (size_t)d->n_seq_max * g->table_len * sizeof *g->tables;
    if ((rc = t->alloc(g->link.d, &p, tables, "block tables", e)))
        return rc;
    g->tables = p;
    t->fill(g->link.s, g->tables, 0, tables);
    if ((rc = t->alloc(g->link.d, &p, logits, "logits", e)))
        return rc;
    g->logits = p;
    if ((rc = t->host_alloc(g->link.d, &p, logits, "logits", e)))
        return rc;
    g->host_logits = p;
    return Q_OK;
}

/* A step of as many rows, sequences and logits as there can be, over a pool of a few blocks that
 * all sequences share. */
static void fill_largest(struct gpu *g, const struct gpu_layout *at, struct batch *b, uint32_t each)
{
    uint32_t *ids = (uint32_t *)(void *)(g->host + at->ids);
    uint32_t *positions = (uint32_t *)(void *)(g->host + at->positions);
    uint32_t *places = (uint32_t *)(void *)(g->host + at->places);
    uint32_t *rows = (uint32_t *)(void *)(g->host + at->rows);
    struct attention_seq *seqs = (struct attention_seq *)(void *)(g->host + at->seqs);
    for (uint32_t i = 0; i < b->n_token; i++) {
        ids[i] = 0;
        positions[i] = i % each;
        places[i] = i < each ? i : KERN_NO_SLOT;
    }
    for (uint32_t i = 0; i < b->n_logit; i++)
        rows[i] = i;
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const uint32_t left = b->n_token - i * each;
        seqs[i] = (struct attention_seq){
            .blocks = g->tables, .row = i * each, .n_query = left < each ? left : each};
    }
}

static FALLIBLE run_largest(struct gpu *g, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const struct device_limits *d = &g->limits;
    const uint32_t n = d->n_row_max, each = (n + d->n_seq_max - 1) / d->n_seq_max;
    const uint32_t n_block = (each + KERN_BLOCK - 1) / KERN_BLOCK;
    struct batch b = {.n_token = n,
                      .n_seq = (n + each - 1) / each,
                      .n_logit = n < d->n_logit_max ? n : d->n_logit_max,
                      .context_max = each};
    const struct gpu_layout at = gpu_layout_of(n, b.n_seq, b.n_logit);
    struct kv_cache few;
    enum q_code rc = kv_cache_init(&few, g->model, n_block, e);
    if (rc)
        return rc;
    uint32_t *first = (uint32_t *)(void *)(g->host + g->updates_at);
    for (uint32_t i = 0; i < n_block; i++)
        first[i] = i;
    t->copy(g->link.s, g->tables, first, n_block * sizeof *first);
    fill_largest(g, &at, &b, each);
    gpu_send(g, &at, &b);
    gpu_walk(g, &at, &b, &few);
    if (!(rc = t->sync(g->link.s, e)))
        rc = t->check(g->link.d, e);
    kv_cache_release(&few);
    return rc ? q_wrap(e, "a step of %u tokens, to measure", n) : Q_OK;
}

static FALLIBLE make_pools(struct gpu *g, struct step_limits *l, struct gpu_sizes *sizes,
                           struct q_err *e)
{
    struct worker_config c = *g->config;
    struct memory_need need = {.block_bytes = model_shape(g->model)->kv_block_bytes,
                               .on_device = true};
    uint64_t left, total;
    enum q_code rc = g->link.t->memory(g->link.d, &left, &total, e);
    if (rc)
        return rc;
    need.weight_bytes = model_shape(g->model)->weight_bytes;
    need.activation_bytes = total - left > need.weight_bytes ? total - left - need.weight_bytes : 0;
    need.total_bytes = total;
    if (c.memory_part <= 0)
        c.memory_part = MEMORY_GPU_PART;
    if ((rc = memory_blocks(&sizes->n_block, &c, l, &need, e)) ||
        (rc = kv_cache_init(&g->kv, g->model, sizes->n_block, e)))
        return rc;
    g->kv_made = true;
    const struct memory_need host = {
        .block_bytes = need.block_bytes, .total_bytes = memory_available(), .on_device = true};
    sizes->n_swap_block = memory_swap_blocks(sizes->n_block, &c, l, &host);
    if (sizes->n_swap_block == 0)
        return Q_OK;
    l->copies_max = 2 * g->table_len;
    return kv_cache_init_swap(&g->swap, g->model, sizes->n_swap_block, e);
}

/* The sizes that are asked for, ascending and none twice; without a word 1, 2, 4, 8, 16, 24 … */
static void choose_graphs(struct gpu *g)
{
    const struct worker_config *c = g->config;
    const uint32_t most = c->max_num_seqs;
    if (c->enforce_eager)
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

FALLIBLE gpu_make(struct gpu *g, const struct model *m, struct step_limits *l,
                  struct gpu_sizes *sizes, struct q_err *e)
{
    int64_t start_ms = clock_ms();
    enum q_code rc;
    g->model = m;
    g->limits =
        (struct device_limits){.n_seq_max = l->max_num_seqs, .n_logit_max = l->logit_rows_max};
    g->limits.n_row_max =
        l->max_num_batched_tokens > l->max_num_seqs ? l->max_num_batched_tokens : l->max_num_seqs;
    device_walk_limits(&g->limits, m);
    if ((rc = device_walk_new(&g->walk, m, &g->limits, e)) || (rc = make_arrays(g, l, e)) ||
        (rc = run_largest(g, e)))
        return rc;
    log_info("device: a step of %u tokens was computed in %lld ms to measure its memory",
             g->limits.n_row_max, (long long)(clock_ms() - start_ms));
    if ((rc = make_pools(g, l, sizes, e)))
        return rc;
    choose_graphs(g);
    return gpu_record(g, e);
}

const struct kv_cache *gpu_kv(const struct gpu *g)
{
    return &g->kv;
}

const struct kv_cache *gpu_swap(const struct gpu *g)
{
    return &g->swap;
}

void gpu_forget(struct gpu *g)
{
    kv_cache_forget(&g->kv);
    if (g->swap.memory)
        kv_cache_forget(&g->swap);
}

void gpu_free(struct gpu *g)
{
    if (!g)
        return;
    const struct device_table *t = g->link.t;
    struct device *d = g->link.d;
    for (uint32_t i = 0; i < g->n_graph; i++)
        t->graph_free(g->graphs[i].graph);
    if (g->kv_made)
        kv_cache_release(&g->kv);
    if (g->swap.memory)
        kv_cache_release(&g->swap);
    device_walk_free(g->walk);
    if (d) {
        t->release(d, g->tables);
        t->release(d, g->device);
        t->release(d, g->logits);
        t->host_free(d, g->host);
        t->host_free(d, g->host_logits);
        t->event_free(g->copied);
        t->event_free(g->done);
        t->stream_free(g->copier);
        t->stream_free(g->link.s);
        t->close(d);
    }
    q_free(g);
}
