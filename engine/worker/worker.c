/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/worker.h"
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/worker/gpu.h"
#include "engine/worker/grammars.h"
#include "engine/worker/memory.h"
#include "engine/worker/sample.h"
#include "engine/worker/slots.h"
#include "engine/worker/speculate.h"

/* So that prompt logprobs with few sequences do not take one step per handful of rows; and as many
 * sequences may speculate in one step. */
#define LOGIT_ROWS_MIN 64u

struct worker {
    struct ring *ring; /* borrowed */
    const struct worker_config *config;
    struct kern_table kern;
    struct team *team;
    struct model *model;
    struct model_scratch *scratch;
    struct gpu *gpu;          /* NULL: the CPU computes. Its pools are its own */
    struct kv_cache kv, swap; /* swap: with limits.copies_max */
    bool kv_made;
    struct slots slots;
    struct draft *draft;                  /* NULL: none */
    const struct mask_provider *provider; /* NULL: our own; borrowed */
    struct grammars *grammars;            /* our own */
    struct masks *masks;
    struct sample_scratch *samplers; /* [n_thread] */
    uint32_t n_thread, vocab_size;
    float *logits; /* [logits_max, vocab_size], a mapping, or [logit_rows_max] of the gpu's */
    size_t logits_bytes;
    uint32_t logits_max; /* rows that are made at a time */
    struct step_limits limits;
    size_t step_bytes, result_bytes;
    /* the step being computed */
    const struct step_view *step; /* while its copies are done */
    struct step_result result;
    atomic_uint next_row;
    int64_t forward_end_us, sampled_us; /* sampled_us: before the forward pass ended */
};

static void load_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct worker *w = ctx;
    ring_progress(w->ring, total ? (uint32_t)((double)done * 99.0 / (double)total) : 0);
}

static void set_limits(struct worker *w)
{
    const struct worker_config *c = w->config;
    const struct model_shape *shape = model_shape(w->model);
    uint32_t n_row = c->max_num_seqs > LOGIT_ROWS_MIN ? c->max_num_seqs : LOGIT_ROWS_MIN;
    if (c->speculation.method != SPECULATE_NOT)
        n_row += LOGIT_ROWS_MIN * c->speculation.n_guess;
    w->vocab_size = shape->vocab_size;
    w->limits = (struct step_limits){.max_num_seqs = c->max_num_seqs,
                                     .max_num_batched_tokens = c->max_num_batched_tokens,
                                     .max_model_len = shape->max_model_len,
                                     .logit_rows_max = n_row,
                                     .top_more = 2 * shape->vocab_size,
                                     .known_max = shape->max_model_len + c->max_num_batched_tokens};
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
    return (struct model_options){.dir = c->model_dir,
                                  .weights_dir = weights_dir,
                                  .format = c->format,
                                  .dtype_auto = c->dtype_auto,
                                  .dtype = c->dtype,
                                  .kv_given = c->kv_given,
                                  .kv_dtype = c->kv_dtype,
                                  .quantization = c->quantization,
                                  .packed_cache = *c->packed_cache ? c->packed_cache : NULL,
                                  .max_model_len = c->max_model_len,
                                  .kern = &w->kern,
                                  .team = w->team,
                                  .link = gpu_link(w->gpu),
                                  .progress = load_progress,
                                  .progress_ctx = w};
}

static FALLIBLE load_model(struct worker *w, struct q_err *e)
{
    const struct worker_config *c = w->config;
    uint32_t caps;
    enum q_code rc;
    if ((rc = kern_caps_parse(&caps, c->cpu_isa, e)) ||
        (rc = team_new(&w->team, c->n_thread, c->pin, e)))
        return rc;
    kern_table_cpu(&w->kern, caps);
    w->n_thread = team_size(w->team);
    if ((rc = gpu_open(&w->gpu, c, e)))
        return rc;
    if (w->gpu && c->speculation.method == SPECULATE_DRAFT)
        return q_fail(
            e, Q_UNSUPPORTED,
            "--speculative-config: a draft model does not run on a device yet; use method "
            "ngram, or --device cpu");
    const struct model_options o = options_of(w, *c->weights_dir ? c->weights_dir : NULL);
    if ((rc = model_load(&w->model, &o, e)))
        return rc;
    set_limits(w);
    const struct draft_args a = {
        .options = &o, .target = model_shape(w->model), .limits = &w->limits};
    if (c->speculation.method == SPECULATE_DRAFT)
        rc = draft_new(&w->draft, &c->speculation, &a, e);
    return rc;
}

static FALLIBLE make_samplers(struct worker *w, struct q_err *e)
{
    w->samplers = q_calloc(w->n_thread, sizeof *w->samplers);
    if (!w->samplers)
        return q_fail(e, Q_NO_MEMORY, "worker: no memory for %u samplers", w->n_thread);
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < w->n_thread && !rc; i++)
        rc = sample_scratch_init(&w->samplers[i], w->vocab_size, &w->kern, e);
    return rc;
}

/* What a step uses. */
static FALLIBLE make_scratch(struct worker *w, struct q_err *e)
{
    enum q_code rc =
        model_scratch_new(&w->scratch, w->model, w->limits.max_num_batched_tokens, w->n_thread, e);
    if (rc)
        return rc;
    w->logits_max =
        w->limits.logit_rows_max < MODEL_LOGIT_ROWS ? w->limits.logit_rows_max : MODEL_LOGIT_ROWS;
    w->logits_bytes = (size_t)w->logits_max * w->vocab_size * sizeof *w->logits;
    void *logits = mmap(NULL, w->logits_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (logits == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "worker: no memory for %u rows of logits", w->logits_max);
    w->logits = logits;
    return make_samplers(w, e);
}

/* All that a step uses, and how much that is. */
static FALLIBLE make_step(struct worker *w, struct memory_need *need, struct q_err *e)
{
    enum q_code rc = make_scratch(w, e);
    if (rc)
        return rc;
    need->activation_bytes =
        model_scratch_bytes(w->model, w->limits.max_num_batched_tokens, w->n_thread) +
        w->logits_bytes + w->n_thread * sample_scratch_bytes(w->vocab_size);
    if (w->draft)
        need->activation_bytes += draft_scratch_bytes(w->draft);
    return Q_OK;
}

/* What the CPU uses of a step that a device computes, and all that the device uses. */
static FALLIBLE make_gpu(struct worker *w, struct worker_info *info, struct q_err *e)
{
    struct gpu_sizes sizes = {0};
    enum q_code rc;
    if ((rc = make_samplers(w, e)) || (rc = gpu_make(w->gpu, w->model, &w->limits, &sizes, e)))
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

/* Every thread reads what any of them has written. */
static void place_kv(const struct worker *w)
{
    uint32_t n = team_place_memory(w->team, w->kv.memory, w->kv.memory_bytes, CPUS_SPREAD);
    if (team_machine_nodes(w->team) == 1)
        log_debug("memory: one NUMA node; there is nothing to place");
    else if (n == 1)
        log_info("memory: of %u NUMA nodes, that of the threads", team_machine_nodes(w->team));
    else
        log_info("memory: the threads are on %u NUMA nodes; each packs the weights it reads, and "
                 "the KV cache is spread over them",
                 n);
}

/* Pools and what else a step on the CPU uses. */
static FALLIBLE make_cpu(struct worker *w, struct worker_info *info, struct q_err *e)
{
    const struct model_shape *shape = model_shape(w->model);
    struct memory_need need = {.weight_bytes = shape->weight_bytes,
                               .block_bytes = shape->kv_block_bytes};
    enum q_code rc = make_step(w, &need, e);
    if (rc)
        return rc;
    if ((rc = ring_body_bytes(&need.step_bytes, &w->limits, e)))
        return rc;
    need.step_bytes += slots_bytes(&w->limits, w->vocab_size);
    /* Pages of a mapped file count as free memory already. */
    uint64_t free_bytes = memory_available(), held = shape->weights_mapped ? 0 : need.weight_bytes;
    if (w->draft) {
        held += draft_shape(w->draft)->weights_mapped ? 0 : draft_shape(w->draft)->weight_bytes;
        need.weight_bytes += draft_shape(w->draft)->weight_bytes;
        need.block_bytes += draft_shape(w->draft)->kv_block_bytes;
    }
    need.total_bytes = free_bytes < UINT64_MAX - held ? free_bytes + held : UINT64_MAX;
    if ((rc = memory_blocks(&info->n_block, w->config, &w->limits, &need, e)) ||
        (rc = kv_cache_init(&w->kv, w->model, info->n_block, e)))
        return rc;
    w->kv_made = true;
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
    return slots_init(&w->slots, &w->limits, info->n_block, w->vocab_size, e);
}

/* "linear=avx512 attention=ref …": what computes here, for logs and system_fingerprint. */
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
}

static FALLIBLE worker_start(struct worker *w, struct q_err *e)
{
    struct worker_info info = {0};
    int64_t start_ms = clock_ms(), loaded_ms;
    enum q_code rc = load_model(w, e);
    loaded_ms = clock_ms();
    if (rc || (rc = make_state(w, &info, e)))
        return rc;
    log_debug("start: threads and model %lld ms, memory for steps and KV %lld ms",
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
    log_info("%.1f M parameters as %s, KV as %s, %u threads, loaded in %lld ms",
             (double)shape->n_param / 1e6,
             *quantized ? quantized : dtype_name(shape->compute_dtype), dtype_name(shape->kv_dtype),
             w->n_thread, (long long)(clock_ms() - start_ms));
    log_debug("kernels %s", info.kernels);
    model_log_pages(w->model);
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
    if (w->logits_bytes)
        munmap(w->logits, w->logits_bytes);
    if (w->kv_made)
        kv_cache_release(&w->kv);
    kv_cache_release(&w->swap);
    model_scratch_free(w->scratch);
    draft_free(w->draft);
    model_free(w->model);
    gpu_free(w->gpu);
    team_free(w->team);
}

/* One row of logits to row i of the result. */
static void finish_row(struct worker *w, uint32_t i, float *logits, struct sample_scratch *s)
{
    const struct logit_row *from = &w->slots.rows[i];
    struct step_row *row = &w->result.rows[i];
    const struct sample_result out = {.row = row,
                                      .top_ids = w->result.top_ids + from->top_start,
                                      .top_logprobs = w->result.top_logprobs + from->top_start};
    row->slot = from->i_slot;
    row->position = from->position;
    row->top_start = from->top_start;
    row->is_prompt = from->is_prompt;
    row->is_rejected = 0;
    row->is_forced = from->slot->is_forced;
    if (from->is_prompt) {
        row->token = from->slot->history[from->position];
        sample_known(logits, from->n_top, s, &out);
        return;
    }
    bool grammar = from->slot->params.grammar != 0;
    const struct sample_input in = {.params = &from->slot->params,
                                    .history = from->slot->history,
                                    .n_known = from->position,
                                    .n_prompt = from->slot->n_prompt,
                                    .allowed =
                                        from->slot->params.n_allowed ? from->slot->allowed : NULL,
                                    .grammar = grammar ? masks_wait(w->masks, i) : NULL};
    sample_token(logits, &in, s, &out);
    if (row->token == SAMPLE_BAD) /* the history needs one until the engine ends the request */
        row->token = 0;
}

/* Rows first … first + n - 1 of the step, whose logits are there, as threads come for them. */
static void finish_rows(struct worker *w, uint32_t first, uint32_t n, uint32_t ith)
{
    for (uint32_t i; (i = atomic_fetch_add_explicit(&w->next_row, 1, memory_order_relaxed)) < n;)
        finish_row(w, first + i, w->logits + (size_t)i * w->vocab_size, &w->samplers[ith]);
}

/* Every thread of the team: what a device has computed is sampled. */
static void sample_all(void *arg, uint32_t ith, uint32_t nth)
{
    struct worker *w = arg;
    (void)nth;
    finish_rows(w, 0, w->slots.batch.n_logit, ith);
}

/* Every thread of the team: the forward pass together, then some rows of logits at a time: together
 * computed, one by one sampled. */
static void compute(void *arg, uint32_t ith, uint32_t nth)
{
    struct worker *w = arg;
    const struct batch *b = &w->slots.batch;
    struct team *team = nth > 1 ? w->team : NULL;
    struct model_logits l = {.rows = w->logits};
    model_forward(w->model, b, &w->kv, w->scratch, NULL, team, ith, nth);
    for (; l.first < b->n_logit; l.first += l.n) {
        const uint32_t left = b->n_logit - l.first;
        l.n = left < w->logits_max ? left : w->logits_max;
        if (l.first && ith == 0) { /* all threads have left the rows before */
            atomic_store_explicit(&w->next_row, 0, memory_order_relaxed);
            w->sampled_us += clock_us() - w->forward_end_us;
        }
        model_logits(w->model, b, w->scratch, &l, team, ith, nth);
        if (ith == 0)
            w->forward_end_us = clock_us();
        finish_rows(w, l.first, l.n, ith);
        if (l.n < left)
            team_barrier(team);
    }
    if (b->n_logit == 0 && ith == 0)
        w->forward_end_us = clock_us();
}

/* SAMPLE_BAD foresees nothing. */
static uint32_t sampled(const struct step_row *row)
{
    return sample_failed(row) ? SAMPLE_BAD : row->token;
}

/* Every sequence that speculates gets its guesses, as many as the step has room for. */
static void guess(struct worker *w, const struct step_view *v)
{
    const struct speculation *c = &w->config->speculation;
    masks_guess(w->masks, &w->slots, v);
    if (w->draft) /* its passes decide what it guesses */
        draft_guess(w->draft, &w->slots, v);
    for (uint32_t i = 0; i < v->head->n_seq && c->method == SPECULATE_NGRAM; i++) {
        const struct step_seq *q = &v->seqs[i];
        struct slot *slot = &w->slots.slots[q->slot];
        if (q->flags & STEP_SPECULATE && !slot->is_forced)
            slot->n_guess = speculate_ngram(slot->history + slot->n_known, q->n_token - 1,
                                            slot->history, slot->n_known, c);
    }
}

static FALLIBLE check_copies(const struct worker *w, const struct step_copy *c, uint32_t n,
                             struct q_err *e)
{
    const uint32_t n_block = (w->gpu ? gpu_kv(w->gpu) : &w->kv)->n_block;
    const uint32_t n_host = (w->gpu ? gpu_swap(w->gpu) : &w->swap)->n_block;
    for (uint32_t i = 0; i < n; i++)
        if (c[i].block >= n_block || c[i].host >= n_host)
            return q_fail(e, Q_CORRUPT, "worker: copy of block %u of %u and %u of %u", c[i].block,
                          n_block, c[i].host, n_host);
    return Q_OK;
}

/* Every thread: its share of the copies, all out before one in. */
static void copy(void *arg, uint32_t ith, uint32_t nth)
{
    struct worker *w = arg;
    const struct step_view *v = w->step;
    for (uint32_t i = ith; i < v->head->n_out; i += nth) {
        kv_cache_copy(&w->swap, v->outs[i].host, &w->kv, v->outs[i].block);
        if (w->draft)
            draft_copy(w->draft, &v->outs[i], true);
    }
    team_barrier(nth > 1 ? w->team : NULL);
    for (uint32_t i = ith; i < v->head->n_in; i += nth) {
        kv_cache_copy(&w->kv, v->ins[i].block, &w->swap, v->ins[i].host);
        if (w->draft)
            draft_copy(w->draft, &v->ins[i], false);
    }
}

static FALLIBLE step_copies(struct worker *w, const struct step_view *v, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_copies(w, v->outs, v->head->n_out, e)) ||
        (rc = check_copies(w, v->ins, v->head->n_in, e)))
        return rc;
    w->step = v;
    if ((v->head->n_out || v->head->n_in) && w->gpu)
        gpu_copies(w->gpu, v);
    else if (v->head->n_out || v->head->n_in)
        team_run(w->team, copy, w);
    w->step = NULL;
    return Q_OK;
}

static FALLIBLE step_compute(struct worker *w, const struct step_view *v, void *result,
                             struct q_err *e)
{
    struct slots *s = &w->slots;
    int64_t start_us = clock_us();
    enum q_code rc;
    if ((rc = step_copies(w, v, e)))
        return rc;
    int64_t copied_us = v->head->n_out || v->head->n_in ? clock_us() : start_us;
    if ((rc = slots_apply(s, v, e)))
        return rc;
    guess(w, v);
    if ((rc = slots_batch(s, v, e)) || (rc = step_result_layout(&w->result, result, w->result_bytes,
                                                                s->batch.n_logit, s->n_top, e)))
        return rc;
    masks_begin(w->masks);
    atomic_store_explicit(&w->next_row, 0, memory_order_relaxed);
    w->sampled_us = 0;
    if (w->gpu) {
        rc = gpu_forward(w->gpu, s, v, &w->logits, e);
        w->forward_end_us = clock_us();
    }
    if (!rc)
        team_run(w->team, w->gpu ? sample_all : compute, w);
    masks_end(w->masks);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < s->batch.n_logit; i++)
        if (!s->rows[i].is_prompt)
            w->result.rows[i].is_rejected = !slots_take(s, i, sampled(&w->result.rows[i]));
    if (w->draft)
        draft_settle(s, v);
    w->result.head->start_us = start_us;
    w->result.head->copy_us = (uint32_t)(copied_us - start_us);
    w->result.head->forward_us = (uint32_t)(w->forward_end_us - w->sampled_us - copied_us);
    w->result.head->total_us = (uint32_t)(clock_us() - start_us);
    w->result.head->error = Q_OK;
    return Q_OK;
}

/* A step that cannot be computed still gets a result, an empty one that says why. */
static FALLIBLE step_answer(struct worker *w, void *step, void *result, struct q_err *e)
{
    struct step_view v;
    uint64_t number = 0;
    enum q_code rc = step_view(&v, step, w->step_bytes, &w->limits, e);
    if (!rc) {
        number = v.head->step;
        rc = step_compute(w, &v, result, e);
    }
    if (rc) {
        log_error("%s", e->message);
        struct q_err ignored = Q_ERR_INIT;
        if (step_result_layout(&w->result, result, w->result_bytes, 0, 0, &ignored))
            return rc;
        w->result.head->error = (uint32_t)rc;
        w->result.head->forward_us = w->result.head->total_us = 0;
        w->result.head->start_us = clock_us();
    }
    w->result.head->step = number;
    return Q_OK;
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
    ring_order_path(w->ring, dir);
    struct model_options o = options_of(w, dir);
    if (o.format == LOAD_DUMMY)
        o.format = LOAD_AUTO;
    o.progress = NULL;
    enum q_code rc = model_reload(w->model, &o, e);
    if (rc)
        return rc;
    forget_kv(w);
    log_info("other weights, from %s, loaded in %lld ms", dir, (long long)(clock_ms() - start_ms));
    return Q_OK;
}

/* Orders that this build does not know are none of its business. */
static void obey(struct worker *w)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    switch (ring_order_now(w->ring)) {
    case RING_FORGET_KV:
        forget_kv(w);
        break;
    case RING_RELOAD:
        alloc_thaw();
        rc = reload(w, &e);
        alloc_freeze();
        break;
    case RING_NO_ORDER:
        break;
    }
    ring_order_done(w->ring, rc ? &e : NULL);
}

FALLIBLE worker_run(struct ring *r, const struct mask_provider *masks, struct q_err *e)
{
    struct worker w = {.ring = r, .config = ring_config(r), .provider = masks};
    enum q_code rc = worker_start(&w, e);
    if (rc) {
        ring_failed(r, e);
    } else {
        void *step, *result;
        alloc_freeze();
        while (!rc && ring_step_wait(r, &step, &result)) {
            if (!step) {
                obey(&w);
                continue;
            }
            rc = step_answer(&w, step, result, e);
            ring_step_done(r);
        }
        alloc_thaw();
    }
    worker_end(&w);
    return rc;
}
