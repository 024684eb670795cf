/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/worker.h"
#include <string.h>
#include <sys/mman.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/worker/memory.h"
#include "engine/worker/worker_internal.h"
#include "kernels/bench/reading.h"

/* Minimum number of logits rows in a step: prompt logprobs of a few sequences then need few steps,
 * and many sequences may speculate in one step. */
#define LOGIT_ROWS_MIN   64u
/* Rows of a step that --max-num-batched-tokens is raised to at most for prompts in one step. */
#define WHOLE_TOKENS_MAX 32768u

static void load_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct worker *w = ctx;
    ring_progress(w->ring, total ? (uint32_t)((double)done * 99.0 / (double)total) : 0);
}

/* The place of the one token that a request which pools seems to generate; and steps that a prompt
 * fits, where it has to be in one. */
static void set_pooling_limits(struct worker *w, const struct model_shape *shape)
{
    struct step_limits *l = &w->limits;
    const bool is_whole = shape->both_ways || w->pooling.kind != POOLING_LAST;
    const uint32_t most =
        shape->max_model_len < WHOLE_TOKENS_MAX ? shape->max_model_len : WHOLE_TOKENS_MAX;
    l->max_model_len++;
    l->top_more = l->max_num_seqs * w->pooling.n_out;
    if (is_whole && l->max_num_batched_tokens < most) {
        log_info("--max-num-batched-tokens is %u instead of %u: a prompt is computed in one step",
                 most, l->max_num_batched_tokens);
        l->max_num_batched_tokens = most;
    }
    l->known_max = l->max_model_len + l->max_num_batched_tokens;
}

static void set_limits(struct worker *w)
{
    const struct worker_config *c = w->config;
    const struct model_shape *shape = model_shape(w->model);
    uint32_t n_row = c->max_num_seqs > LOGIT_ROWS_MIN ? c->max_num_seqs : LOGIT_ROWS_MIN;
    if (c->speculation.method != SPECULATE_NOT)
        n_row += LOGIT_ROWS_MIN * c->speculation.n_draft_token;
    w->vocab_size = shape->vocab_size;
    w->n_output = shape->n_output;
    w->limits = (struct step_limits){
        .max_num_seqs = c->max_num_seqs,
        .max_num_batched_tokens = c->max_num_batched_tokens,
        .max_model_len = shape->max_model_len,
        .logit_rows_max = n_row,
        .top_more = 2 * shape->vocab_size,
        .known_max = shape->max_model_len + c->max_num_batched_tokens,
        .item_mib = c->item_mib,
    };
    if (shape->pools)
        set_pooling_limits(w, shape);
}

/* A step's copies: two sequences of max_model_len in each direction bound the time that all others
 * wait for them. */
static FALLIBLE make_swap(struct worker *w, struct worker_info *info,
                          const struct memory_need *need, struct q_err *e)
{
    uint32_t n_seq_block = (w->limits.max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    info->n_swap_block = memory_swap_blocks(info->n_block, w->config, &w->limits, need);
    if (info->n_swap_block == 0)
        return Q_OK;
    w->limits.copies_max = 2 * n_seq_block;
    return kv_cache_init_swap(&w->swap, w->model, info->n_swap_block, e);
}

static struct model_options options_of(struct worker *w, const char *weights_dir)
{
    const struct worker_config *c = w->config;
    return (struct model_options){
        .dir = c->model_dir,
        .weights_dir = weights_dir,
        .format = c->format,
        .dtype_auto = c->dtype_auto,
        .dtype = c->dtype,
        .kv_given = c->kv_given,
        .kv_dtype = c->kv_dtype,
        .quantization = c->quantization,
        .packed_cache = *c->packed_cache ? c->packed_cache : NULL,
        .max_model_len = c->max_model_len,
        .memory_bytes = memory_for_weights(),
        .lora_rank = c->max_lora_rank,
        .generates = true,
        .pooling = &w->pooling,
        .kern = &w->kern,
        .team = w->team,
        .link = gpu_link(w->gpu),
        .progress = load_progress,
        .progress_ctx = w,
    };
}

/* Does the model pool? Before it is loaded. */
static FALLIBLE read_pooling(struct worker *w, struct q_err *e)
{
    const struct worker_config *c = w->config;
    const struct pooling_options o = {c->runner, c->convert, c->pooler};
    struct model_config *config = q_alloc(sizeof *config);
    if (!config)
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for config.json");
    enum q_code rc = model_config_load(config, NULL, c->model_dir, e);
    if (!rc)
        rc = pooling_read(&w->pooling, config, c->model_dir, &o, e);
    if (!rc && w->pooling.makes != ARCHS_GENERATES && c->speculation.method != SPECULATE_NOT)
        rc = q_fail(e, Q_INVALID,
                    "--speculative-config: %s makes vectors, there is nothing to "
                    "draft",
                    config->architecture);
    q_free(config);
    return rc;
}

static FALLIBLE load_model(struct worker *w, struct q_err *e)
{
    const struct worker_config *c = w->config;
    uint32_t caps;
    enum q_code rc;
    if ((rc = config_source_set(&c->source, e)) ||
        (rc = plugins_open(&c->plugins, c->model_dir, e)) || (rc = read_pooling(w, e)) ||
        (c->speculation.method == SPECULATE_DRAFT &&
         (rc = plugins_open(&c->plugins, c->speculation.draft_dir, e))) ||
        (rc = kern_caps_parse(&caps, c->cpu_isa, e)) ||
        (rc = team_new(&w->team, c->n_thread, c->pin, e)))
        return rc;
    kern_table_cpu(&w->kern, caps);
    w->n_thread = team_size(w->team);
    if ((rc = gpu_open(&w->gpu, c, e)))
        return rc;
    struct model_options o = options_of(w, *c->weights_dir ? c->weights_dir : NULL);
    if ((rc = modalities_open(&w->modalities, c->model_dir, &c->images, e)))
        return rc;
    o.takes_items = w->modalities->n > 0;
    if ((rc = model_load(&w->model, &o, e)) || (rc = modalities_load(w->modalities, &o, e)))
        return rc;
    o.takes_items = false; /* a draft model reads tokens */
    set_limits(w);
    if (model_shape(w->model)->state_bytes && c->speculation.method != SPECULATE_NOT)
        return q_fail(e, Q_UNSUPPORTED,
                      "--speculative-config: %s has layers with a state of each sequence, which a "
                      "draft token that is rejected would change",
                      model_config(w->model)->architecture);
    const struct draft_args a = {
        .options = &o,
        .target = model_shape(w->model),
        .limits = &w->limits,
        .gpu = w->gpu,
    };
    if (c->speculation.method == SPECULATE_DRAFT)
        rc = draft_new(&w->draft, &c->speculation, &a, e);
    return rc;
}

static FALLIBLE make_samplers(struct worker *w, struct q_err *e)
{
    w->samplers = q_calloc(w->n_thread, sizeof *w->samplers);
    if (!w->samplers)
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for %u samplers", w->n_thread);
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < w->n_thread && !rc; i++)
        rc = sample_scratch_init(&w->samplers[i], w->vocab_size, &w->kern, e);
    return rc;
}

/* Allocate the scratch of steps. */
static FALLIBLE make_scratch(struct worker *w, struct q_err *e)
{
    enum q_code rc =
        model_scratch_new(&w->scratch, w->model, w->limits.max_num_batched_tokens, w->n_thread, e);
    if (rc)
        return rc;
    w->logits_max =
        w->limits.logit_rows_max < MODEL_LOGIT_ROWS ? w->limits.logit_rows_max : MODEL_LOGIT_ROWS;
    w->logits_bytes = (size_t)w->logits_max * w->n_output * sizeof *w->logits;
    void *logits = mmap(NULL, w->logits_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (logits == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for %u rows of logits", w->logits_max);
    w->logits = logits;
    return (rc = worker_make_vectors(w, e)) ? rc : make_samplers(w, e);
}

static FALLIBLE make_items(struct worker *w, uint64_t *n_byte, struct q_err *e)
{
    struct items_args a = {
        .modalities = w->modalities,
        .hidden_size = model_shape(w->model)->hidden_size,
        .n_row_max = w->limits.max_num_batched_tokens,
        .team = w->team,
    };
    *n_byte = 0;
    if (!w->modalities || !w->modalities->n)
        return Q_OK;
    enum q_code rc = ring_items(w->ring, &a.store, e);
    if (rc)
        return rc;
    if (!a.store)
        return q_fail(e, Q_MISMATCH, "worker: the model takes items, but there is no item store");
    w->item_store = a.store;
    if ((rc = modalities_bind(w->modalities, w->model, w->n_thread, e)))
        return rc;
    *n_byte = items_bytes(&a) + modalities_work_bytes(w->modalities);
    return items_new(&w->items, &a, e);
}

static FALLIBLE make_notes(struct worker *w, struct q_err *e)
{
    w->notes = q_calloc(w->limits.max_num_seqs, sizeof *w->notes);
    return w->notes ? Q_OK : q_fail(e, Q_NO_MEMORY, "worker: out of memory for a step");
}

static FALLIBLE make_adapters(struct worker *w, struct q_err *e)
{
    return w->config->max_lora_rank ? adapters_new(&w->adapters, &w->limits, e) : Q_OK;
}

/* All that a step uses, and how much that is. */
static FALLIBLE make_step(struct worker *w, struct memory_need *need, struct q_err *e)
{
    enum q_code rc = make_scratch(w, e);
    if (rc || (rc = make_notes(w, e)))
        return rc;
    if ((rc = make_adapters(w, e)))
        return rc;
    need->activation_bytes =
        model_scratch_bytes(w->model, w->limits.max_num_batched_tokens, w->n_thread) +
        w->logits_bytes + w->n_thread * sample_scratch_bytes(w->vocab_size);
    if (w->draft)
        need->activation_bytes += draft_scratch_bytes(w->draft);
    uint64_t item_bytes;
    rc = make_items(w, &item_bytes, e);
    need->activation_bytes += rc ? 0 : item_bytes;
    return rc;
}

/* Allocate the host's part of a step on a device, and the device's memory. */
static FALLIBLE make_gpu(struct worker *w, struct worker_info *info, struct q_err *e)
{
    const struct gpu_models models = {w->model, w->draft ? draft_model(w->draft) : NULL};
    struct gpu_sizes sizes = {0};
    enum q_code rc;
    uint64_t item_bytes;
    if ((rc = worker_make_vectors(w, e)) || (rc = make_samplers(w, e)) || (rc = make_notes(w, e)) ||
        (rc = make_adapters(w, e)) || (rc = make_items(w, &item_bytes, e)) ||
        (rc = worker_device_make(w, e)) || (rc = gpu_make(w->gpu, &models, &w->limits, &sizes, e)))
        return rc;
    info->n_block = sizes.n_block;
    info->n_swap_block = sizes.n_swap_block;
    return Q_OK;
}

static FALLIBLE make_masks(struct worker *w, struct q_err *e)
{
    struct mask_provider own;
    const struct mask_provider *p = w->provider;
    if (!p) {
        struct grammars_args a = {w->config->model_dir, w->config->tokenizer_path, w->vocab_size,
                                  w->limits.max_num_seqs};
        enum q_code rc = grammars_new(&w->grammars, &a, e);
        if (rc)
            return rc;
        own = grammars_provider(w->grammars);
        p = &own;
    }
    return masks_new(&w->masks, p, w->limits.logit_rows_max, w->vocab_size, e);
}

/* Every thread reads KV that any thread has written. */
static void place_kv(const struct worker *w)
{
    uint32_t n = team_place_memory(w->team, w->kv.memory, w->kv.memory_bytes, CPUS_SPREAD);
    if (team_machine_nodes(w->team) == 1)
        log_debug("memory: one NUMA node, no placement needed");
    else if (n == 1)
        log_info("memory: placed on the NUMA node of the threads, one of %u",
                 team_machine_nodes(w->team));
    else
        log_info("memory: the threads are on %u NUMA nodes; weights are placed on the node of the "
                 "thread that reads them, and the KV cache is spread over the nodes",
                 n);
}

/* memory_steps, of a worker */
static enum q_code size_steps(uint64_t *bytes, const struct step_limits *l, void *ctx,
                              struct q_err *e)
{
    const struct worker *w = ctx;
    enum q_code rc = ring_body_bytes(bytes, l, e);
    if (!rc)
        *bytes += slots_bytes(l, w->vocab_size);
    return rc;
}

/* Allocate the pools and buffers of steps on the CPU. */
static FALLIBLE make_cpu(struct worker *w, struct worker_info *info, struct q_err *e)
{
    const struct model_shape *shape = model_shape(w->model);
    struct memory_need need = {
        .weight_bytes = shape->weight_bytes,
        .block_bytes = shape->kv_block_bytes ? shape->kv_block_bytes : MEMORY_EMPTY_BLOCK,
        .state_bytes = shape->state_bytes,
    };
    enum q_code rc = make_step(w, &need, e);
    if (rc)
        return rc;
    /* Pages of a mapped file count as free memory already. */
    uint64_t free_bytes = memory_available(), held = shape->weights_mapped ? 0 : need.weight_bytes;
    if (w->draft) {
        held += draft_shape(w->draft)->weights_mapped ? 0 : draft_shape(w->draft)->weight_bytes;
        need.weight_bytes += draft_shape(w->draft)->weight_bytes;
        need.block_bytes += draft_shape(w->draft)->kv_block_bytes;
    }
    need.total_bytes = free_bytes < UINT64_MAX - held ? free_bytes + held : UINT64_MAX;
    struct worker_config c = *w->config;
    if ((rc = memory_states(&w->limits, &c, &need, e)))
        return rc;
    if (c.fit_length && memory_fit_length(&w->limits, &c, &need, size_steps, w))
        c.n_block = (w->limits.max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    if ((rc = size_steps(&need.step_bytes, &w->limits, w, e)) ||
        (rc = memory_blocks(&info->n_block, &c, &w->limits, &need, e)) ||
        (rc = kv_cache_init(&w->kv, w->model, info->n_block, e)))
        return rc;
    w->kv_made = true;
    if (w->limits.n_state && (rc = kv_cache_init_states(&w->kv, w->model, w->limits.n_state, e)))
        return rc;
    place_kv(w);
    if ((rc = make_swap(w, info, &need, e)))
        return rc;
    return w->draft ? draft_make_kv(w->draft, info->n_block, info->n_swap_block, e) : Q_OK;
}

/* Everything that depends on the model's shape. */
static FALLIBLE make_state(struct worker *w, struct worker_info *info, struct q_err *e)
{
    enum q_code rc = w->gpu ? make_gpu(w, info, e) : make_cpu(w, info, e);
    if (rc || (rc = make_masks(w, e)))
        return rc;
    if ((rc = slots_init(&w->slots, &w->limits, info->n_block, w->vocab_size, e)))
        return rc;
    w->slots.item_store = w->item_store;
    w->slots.has_types = model_shape(w->model)->n_type > 1;
    w->slots.pooling = w->pooling.kind;
    w->slots.n_modality = w->modalities ? w->modalities->n : 0;
    return Q_OK;
}

/* "linear=avx512 attention=ref …": the kernels in use, for logs and system_fingerprint. */
static void name_kernels(char *out, size_t size, uint32_t caps)
{
    static const char *const ops[] = {
#define OP(op, tolerance) #op,
#define IMPL(table, op, variant, needs)
#include "kernels/kernels.def"
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s=%s", i ? " " : "", ops[i],
                                 kern_variant_name(ops[i], caps));
    Q_ASSERT(used < size); /* complete: the fingerprint depends on every variant */
}

/* How weights are prefetched. Mapped ones are not measured: pages of the file may be missing. */
static void choose_reading(struct worker *w)
{
    const struct model_shape *s = model_shape(w->model);
    const struct reading_memory m = {model_weights(w->model),
                                     s->weights_mapped ? 0 : s->weight_bytes};
    struct kern_processor p;
    kern_processor(&p);
    const char *from = reading_source_text(reading_choose(w->team, &w->kern, &m, &p));
    char text[READING_TEXT_MAX];
    reading_describe(text);
    log_debug("weights of one row: %s (%s)", text, from);
}

static FALLIBLE worker_start(struct worker *w, struct q_err *e)
{
    struct worker_info info = {0};
    int64_t start_ms = clock_ms(), loaded_ms;
    enum q_code rc = load_model(w, e);
    loaded_ms = clock_ms();
    if (rc || (rc = make_state(w, &info, e)))
        return rc;
    log_debug("start: threads and model %lld ms, step buffers and KV cache %lld ms",
              (long long)(loaded_ms - start_ms), (long long)(clock_ms() - loaded_ms));
    const struct model_shape *shape = model_shape(w->model);
    info.shape = *shape;
    info.limits = w->limits;
    info.n_thread = w->n_thread;
    if (w->gpu)
        gpu_describe(w->gpu, info.kernels, sizeof info.kernels);
    else
        name_kernels(info.kernels, sizeof info.kernels, w->kern.caps);
    if ((rc = ring_ready(w->ring, &info, e)))
        return rc;
    w->step_bytes = info.step_bytes;
    w->result_bytes = info.result_bytes;
    const char *quantized = quantization_name(shape->quantization);
    log_info("model loaded: %.1f M parameters, weights %s, KV cache %s, %u threads, %lld ms",
             (double)shape->n_param / 1e6,
             *quantized ? quantized : dtype_name(shape->compute_dtype), dtype_name(shape->kv_dtype),
             w->n_thread, (long long)(clock_ms() - start_ms));
    log_debug("kernels: %s", info.kernels);
    model_log_pages(w->model);
    if (!w->gpu)
        choose_reading(w);
    return Q_OK;
}

static void worker_end(struct worker *w)
{
    masks_free(w->masks);
    grammars_free(w->grammars);
    slots_release(&w->slots);
    for (uint32_t i = 0; w->samplers && i < w->n_thread; i++)
        sample_scratch_release(&w->samplers[i]);
    q_free(w->samplers);
    q_free(w->pool_scratch);
    pooling_release(&w->pooling);
    q_free(w->notes);
    if (w->logits_bytes)
        munmap(w->logits, w->logits_bytes);
    if (w->kv_made)
        kv_cache_release(&w->kv);
    kv_cache_release(&w->swap);
    model_scratch_free(w->scratch);
    worker_device_release(w);
    gpu_stop(w->gpu);
    items_free(w->items);
    modalities_free(w->modalities);
    draft_free(w->draft);
    adapters_free(w->adapters);
    model_free(w->model);
    gpu_free(w->gpu);
    team_free(w->team);
}

static void forget_kv(struct worker *w)
{
    if (w->gpu) {
        gpu_forget(w->gpu);
        return;
    }
    kv_cache_forget(&w->kv);
    if (w->swap.memory)
        kv_cache_forget(&w->swap);
    if (w->draft)
        draft_forget_kv(w->draft);
}

/* Other weights where the old ones are. The KV cache's numbers were made with the old ones. */
static FALLIBLE reload(struct worker *w, struct q_err *e)
{
    char dir[PATH_MAX];
    int64_t start_ms = clock_ms();
    ring_command_path(w->ring, dir);
    struct model_options o = options_of(w, dir);
    if (o.format == LOAD_DUMMY)
        o.format = LOAD_AUTO;
    o.progress = NULL;
    enum q_code rc = modalities_load(w->modalities, &o, e);
    if (rc)
        return rc;
    rc = model_reload(w->model, &o, e);
    modalities_settle(w->modalities, rc == Q_OK);
    if (rc)
        return rc;
    forget_kv(w);
    if (w->gpu)
        gpu_reloaded(w->gpu);
    if (w->items)
        items_forget(w->items);
    log_info("reloaded the weights of %s in %lld ms", dir, (long long)(clock_ms() - start_ms));
    return Q_OK;
}

static FALLIBLE load_adapter(struct worker *w, struct q_err *e)
{
    char dir[PATH_MAX];
    ring_command_path(w->ring, dir);
    const struct adapters_load load = {
        .adapter = ring_command_adapter(w->ring),
        .dir = dir,
        .config = w->config,
        .model = w->model,
        .device = w->gpu ? gpu_lora(w->gpu) : NULL,
    };
    return w->adapters ? adapters_load(w->adapters, &load, e)
                       : q_fail(e, Q_UNSUPPORTED, "worker: LoRA adapters are not enabled");
}

/* Orders that this build does not know are none of its business. */
static void run_command(struct worker *w)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    switch (ring_command_now(w->ring)) {
    case RING_FORGET_KV:
        forget_kv(w);
        break;
    case RING_RELOAD:
        alloc_thaw();
        rc = reload(w, &e);
        alloc_freeze();
        break;
    case RING_LOAD_ADAPTER:
        alloc_thaw();
        rc = load_adapter(w, &e);
        alloc_freeze();
        break;
    case RING_DROP_ADAPTER:
        if (w->adapters)
            adapters_drop(w->adapters, ring_command_adapter(w->ring));
        break;
    case RING_NO_COMMAND:
        break;
    }
    ring_command_done(w->ring, rc ? &e : NULL);
}

FALLIBLE worker_check(const struct worker_config *c, struct q_err *e)
{
    struct worker w = {.config = c};
    bool on_device;
    const struct model_options o = options_of(&w, *c->weights_dir ? c->weights_dir : NULL);
    enum q_code rc = read_pooling(&w, e);
    if (!rc && !(rc = gpu_check(&on_device, c, e)))
        rc = model_check(&o, on_device, e);
    pooling_release(&w.pooling);
    return rc;
}

FALLIBLE worker_run(struct ring *r, const struct mask_provider *masks, struct q_err *e)
{
    Q_ASSERT(r);
    struct worker w = {.ring = r, .config = ring_config(r), .provider = masks};
    enum q_code rc = worker_start(&w, e);
    if (rc) {
        ring_failed(r, e);
    } else {
        void *step, *result;
        alloc_freeze();
        for (;;) {
            struct q_err told = Q_ERR_INIT; /* to the engine, in a result */
            if (worker_complete_now(&w)) {
                if (worker_complete_step(&w, &told))
                    q_err_reset(&told);
                continue;
            }
            if (!ring_step_wait(r, &step, &result))
                break;
            if (step)
                worker_step(&w, step, result);
            else
                run_command(&w); /* no step is in flight then (ring_command) */
        }
        alloc_thaw();
    }
    worker_end(&w);
    return rc;
}
