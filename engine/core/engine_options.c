/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/engine_options.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/hub/weight_files.h"
#include "common/hub/config_source.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/parse.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/core/item_options.h"
#include "engine/core/speculative.h"

FALLIBLE engine_dtype_parse(bool *is_auto, enum dtype *out, const char *text, struct q_err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {
        {"float32", DT_F32}, {"float", DT_F32}, {"bfloat16", DT_BF16},
        {"float16", DT_F16}, {"half", DT_F16},
    };
    *is_auto = !strcmp(text, "auto");
    *out = DT_F32;
    if (*is_auto)
        return Q_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name)) {
            *out = names[i].dtype;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "--dtype is \"%s\", expected auto, float32, bfloat16 or float16",
                  text);
}

FALLIBLE engine_kv_dtype_parse(bool *is_given, enum dtype *out, const char *text, struct q_err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {
        {"bfloat16", DT_BF16}, {"float32", DT_F32},
        {"int8", DT_I8},       {"int8_per_token_head", DT_I8}, /* vLLM's name for it */
        {"fp8", DT_F8_E4M3},   {"fp8_e4m3", DT_F8_E4M3},
    };
    *is_given = strcmp(text, "auto") != 0;
    *out = DT_F32;
    for (size_t i = 0; *is_given && i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name)) {
            *out = names[i].dtype;
            return Q_OK;
        }
    if (!*is_given)
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "--kv-cache-dtype is \"%s\", expected auto, bfloat16, float32, int8 or fp8",
                  text);
}

FALLIBLE engine_quantization_parse(enum quantization *out, const char *text, struct q_err *e)
{
    *out = QUANTIZE_NOT;
    if (!*text || !strcmp(text, "none"))
        return Q_OK;
    for (*out = QUANTIZE_INT8; *out <= QUANTIZE_FP8; ++*out)
        if (strcmp(text, quantization_name(*out)) == 0)
            return Q_OK;
    return q_fail(
        e, Q_INVALID,
        "--quantization is \"%s\", expected none, int8, int4, fp8 or the checkpoint's own method",
        text);
}

/* Methods of checkpoints as vLLM's command lines name them, and what they are here
 * (quant_config_name). */
static const struct {
    const char *name, *method;
} checkpoint_methods[] = {
    {"awq", "awq"},
    {"awq_marlin", "awq"},
    {"gptq", "gptq"},
    {"gptq_marlin", "gptq"},
    {"auto-round", "gptq"},
    {"auto-round", "awq"},
    {"fbgemm_fp8", "fp8"},
    {"modelopt", "fp8"},
    {"modelopt", "fp4"},
    {"modelopt_fp4", "fp4"},
    {"compressed-tensors", "compressed-tensors"},
    {"compressed-tensors", "fp8"},
    {"compressed-tensors", "fp4"},
    {"torchao", "torchao"},
    {"mxfp4", "mxfp4"},
    {"bitsandbytes", "bitsandbytes"},
    {"hqq", "hqq"},
    {"gguf", "gguf"},
};
#define N_CHECKPOINT_METHOD (sizeof checkpoint_methods / sizeof *checkpoint_methods)

FALLIBLE engine_quantization_option(enum quantization *out, const char *text, const char *dir,
                                    struct q_err *e)
{
    bool is_named = false, is_method = false;
    for (size_t i = 0; i < N_CHECKPOINT_METHOD; i++)
        is_named = is_named || !strcmp(text, checkpoint_methods[i].name);
    if (!is_named)
        return engine_quantization_parse(out, text, e);
    struct model_config *c = q_alloc(sizeof *c);
    enum q_code rc =
        c ? model_config_load(c, NULL, dir, e) : q_fail(e, Q_NO_MEMORY, "out of memory");
    const char *method = rc ? "" : quant_config_name(&c->quant);
    for (size_t i = 0; i < N_CHECKPOINT_METHOD; i++)
        is_method |= !strcmp(text, checkpoint_methods[i].name) &&
                     !strcmp(method, checkpoint_methods[i].method);
    if (!rc && !is_method)
        rc = q_fail(e, Q_INVALID,
                    "--quantization is \"%s\", expected none, int8, int4 or fp8; the checkpoint is "
                    "%s%s",
                    text, *method ? "of " : "not quantized", method);
    q_free(c);
    *out = QUANTIZE_NOT;
    return rc;
}

FALLIBLE engine_format_parse(enum load_format *out, const char *text, struct q_err *e)
{
    static const char *const names[] = {
        [LOAD_AUTO] = "auto", [LOAD_SAFETENSORS] = "safetensors",
        [LOAD_PT] = "pt",     [LOAD_MISTRAL] = "mistral",
        [LOAD_GGUF] = "gguf", [LOAD_DUMMY] = "dummy",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) {
            *out = (enum load_format)i;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID,
                  "--load-format is \"%s\", expected auto, safetensors, pt (pytorch_model.bin), "
                  "mistral (consolidated.safetensors), gguf or dummy",
                  text);
}

static FALLIBLE preemption_parse(enum preemption_mode *out, const char *text, struct q_err *e)
{
    static const char *const names[] = {
        [PREEMPT_AUTO] = "auto",
        [PREEMPT_SWAP] = "swap",
        [PREEMPT_RECOMPUTE] = "recompute",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) {
            *out = (enum preemption_mode)i;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "--preemption-mode is \"%s\", expected auto, swap or recompute",
                  text);
}

static FALLIBLE policy_options(struct scheduler_policy *p, const struct options *o, struct q_err *e)
{
    p->by_priority = !strcmp(o->scheduling_policy, "priority");
    p->long_prefill_token_threshold = (uint32_t)o->long_prefill_token_threshold;
    p->max_num_partial_prefills = (uint32_t)o->max_num_partial_prefills;
    p->max_long_partial_prefills = (uint32_t)o->max_long_partial_prefills;
    p->delay_factor = o->scheduler_delay_factor;
    p->request_timeout_us = (int64_t)(o->request_timeout * 1e6);
    if (!p->by_priority && strcmp(o->scheduling_policy, "fcfs") != 0)
        return q_fail(e, Q_INVALID, "--scheduling-policy is \"%s\", expected fcfs or priority",
                      o->scheduling_policy);
    if (p->max_long_partial_prefills > p->max_num_partial_prefills)
        return q_fail(e, Q_INVALID,
                      "--max-long-partial-prefills is %u, expected at most "
                      "--max-num-partial-prefills (%u)",
                      p->max_long_partial_prefills, p->max_num_partial_prefills);
    return preemption_parse(&p->preemption, o->preemption_mode, e);
}

/* In its place among the smaller and the larger ones, once. */
static void add_size(struct worker_config *w, uint32_t size)
{
    uint32_t at = w->n_graph_size;
    while (at && w->graph_sizes[at - 1] > size)
        at--;
    if (at && w->graph_sizes[at - 1] == size)
        return;
    memmove(&w->graph_sizes[at + 1], &w->graph_sizes[at],
            (w->n_graph_size++ - at) * sizeof *w->graph_sizes);
    w->graph_sizes[at] = size;
}

/* "4,2,1": in any order. */
static FALLIBLE graph_sizes(struct worker_config *w, const char *text, struct q_err *e)
{
    char number[16];
    for (const char *p = text; *p; p += *p == ',') {
        const size_t n = strcspn(p, ",");
        const int written = snprintf(number, sizeof number, "%.*s", (int)n, p);
        int64_t size;
        if (n == 0 || written >= (int)sizeof number || w->n_graph_size == RING_GRAPHS_MAX)
            return q_fail(
                e, Q_INVALID,
                "--cuda-graph-sizes is \"%s\", expected at most %u comma-separated numbers", text,
                RING_GRAPHS_MAX);
        enum q_code rc =
            parse_i64(&size, number, 1, STEP_SEQS_MAX, "--cuda-graph-sizes: each size", e);
        if (rc)
            return rc;
        add_size(w, (uint32_t)size);
        p += n;
    }
    return Q_OK;
}

static FALLIBLE device_options(struct worker_config *w, const struct options *o, struct q_err *e)
{
    if (snprintf(w->device, sizeof w->device, "%s", o->device) >= (int)sizeof w->device ||
        snprintf(w->device_library, sizeof w->device_library, "%s", o->cuda_library) >=
            (int)sizeof w->device_library)
        return q_fail(e, Q_INVALID, "--device or --cuda-library: the value is too long");
    w->deterministic = o->deterministic;
    w->enforce_eager = o->enforce_eager;
    return graph_sizes(w, o->cuda_graph_sizes, e);
}

/* Can the file be written, as far as its folder shows? */
static FALLIBLE check_output(const char *flag, const char *path, struct q_err *e)
{
    const char *slash = strrchr(path, '/');
    char dir[PATH_MAX] = ".";
    struct stat st;
    if (!*path)
        return Q_OK;
    if (slash && snprintf(dir, sizeof dir, "%.*s", slash > path ? (int)(slash - path) : 1, path) >=
                     (int)sizeof dir)
        return q_fail(e, Q_INVALID, "%s: the path has more than %zu bytes", flag, sizeof dir - 1);
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* a file of before is renamed */
        return q_fail(e, Q_INVALID, "%s %s: is %s, expected a file name", flag, path,
                      S_ISDIR(st.st_mode)   ? "a folder"
                      : S_ISLNK(st.st_mode) ? "a link"
                                            : "a pipe or a device");
    if (access(dir, W_OK | X_OK) != 0)
        return q_fail(e, Q_INVALID, "%s %s: the folder %s is not writable: %s", flag, path, dir,
                      strerror(errno));
    return Q_OK;
}

/* The texts live as long as the process. */
static FALLIBLE record_options(struct recorder_options *r, const struct options *o,
                               const char *model, struct q_err *e)
{
    static char path[PATH_MAX];
    enum q_code rc = check_output("--record", o->record, e);
    if (rc || !*o->record)
        return rc;
    r->path = o->record;
    r->file_bytes = o->record_size;
    r->n_file = (uint32_t)o->record_files;
    r->model = realpath(model, path) ? path : model; /* an id of a hub is no path */
    r->options = q_calloc(RECORD_OPTIONS_MAX, sizeof *r->options);
    if (!r->options)
        return q_fail(e, Q_NO_MEMORY, "--record: out of memory");
    return options_forward(o, FOR_REPLAY, r->options, &r->n_option, RECORD_OPTIONS_MAX, e);
}

/* Called before other files of the folder are read, so that an unsupported architecture or missing
 * weights are the first error that a user sees. */
static FALLIBLE check_folder(const struct worker_config *w, struct q_err *e)
{
    struct model_config ignored;
    enum q_code rc = model_config_load(&ignored, NULL, w->model_dir, e);
    if (rc || w->format == LOAD_DUMMY)
        return rc;
    return weight_files_check(w->model_dir, load_format_files(w->format), e);
}

static FALLIBLE resolve_model(struct worker_config *w, const char *model, const char *revision,
                              struct q_err *e)
{
    return w->format == LOAD_DUMMY /* loads no weights */
               ? hub_resolve_files(w->model_dir, model, revision, e)
               : hub_resolve_format(w->model_dir, model, revision, load_format_files(w->format), e);
}

FALLIBLE engine_options(struct core_config *c, const struct options *o, const char *model,
                        struct q_err *e)
{
    enum log_level level;
    struct worker_config *w = &c->worker;
    const char *revision = *o->revision ? o->revision : NULL;
    enum q_code rc;
    memset(c, 0, sizeof *c);
    if ((rc = engine_format_parse(&w->format, o->load_format, e)) ||
        (rc = resolve_model(w, model, revision, e)) ||
        (rc = config_source_options(&w->source, w->model_dir, o, e)) ||
        (rc = plugins_config_set(&w->plugins, o->plugin.items, o->plugin.n, o->plugin_path, e)) ||
        (rc = plugins_open(&w->plugins, w->model_dir, e)) || (rc = check_folder(w, e)) ||
        (rc = hub_resolve_tokenizer(c->tokenizer_path, o->tokenizer,
                                    *o->tokenizer_revision ? o->tokenizer_revision : NULL,
                                    w->model_dir, e)) ||
        (rc = tokenizer_apply_mode(c->tokenizer_path, o->tokenizer_mode, e)) ||
        (rc = engine_dtype_parse(&w->dtype_auto, &w->dtype, o->dtype, e)) ||
        (rc = speculative_parse(&w->speculation, o->speculative_config, e)) ||
        (rc = engine_kv_dtype_parse(&w->kv_given, &w->kv_dtype, o->kv_cache_dtype, e)) ||
        (rc = engine_quantization_option(&w->quantization, o->quantization, w->model_dir, e)) ||
        (rc = generation_defaults_option(&c->override, o->override_generation_config, e)) ||
        (rc = log_level_parse(&level, o->log_level, e)) ||
        (rc = check_output("--trace", o->trace, e)) ||
        (rc = record_options(&c->record, o, model, e)))
        return rc;
    plugins_pin(&w->plugins, w->model_dir);
    if (o->max_model_len == 1)
        return q_fail(e, Q_INVALID,
                      "--max-model-len is 1, expected 2 or more (one prompt token, one output "
                      "token), 0 for the model's own limit, or auto for what fits the KV cache");
    if ((rc = policy_options(&c->policy, o, e)) || (rc = device_options(w, o, e)) ||
        (rc = adapter_options(&c->adapters, w, o, e)) ||
        (rc = item_options(&c->items, o->limit_mm_per_prompt, o->mm_processor_cache_gb, e)) ||
        (rc = vision_options_processor(&w->images, o->mm_processor_kwargs, e)))
        return rc;
    w->images.none = o->language_model_only || item_options_limit(&c->items, "image") == 0;
    snprintf(w->tokenizer_path, sizeof w->tokenizer_path, "%s", c->tokenizer_path);
    c->no_jump_forward = o->disable_jump_forward;
    w->max_model_len = o->max_model_len > 0 ? (uint32_t)o->max_model_len : 0;
    w->fit_length = o->max_model_len < 0;
    w->max_num_seqs = (uint32_t)o->max_num_seqs;
    w->max_num_batched_tokens = (uint32_t)o->max_num_batched_tokens;
    w->n_block = (uint32_t)o->num_gpu_blocks_override;
    w->kv_bytes = o->kv_cache_memory_bytes;
    w->memory_part = o->gpu_memory_utilization;
    w->swap_bytes = (uint64_t)(o->swap_space * (double)(UINT64_C(1) << 30));
    w->n_thread = (uint32_t)o->threads;
    w->pin = true;
    w->log_level = (int)level;
    w->log_json = o->log_json;
    if (strcmp(o->packed_cache, "off") != 0 &&
        snprintf(w->packed_cache, sizeof w->packed_cache, "%s", o->packed_cache) >=
            (int)sizeof w->packed_cache)
        return q_fail(e, Q_INVALID, "--packed-cache: the path has more than %zu bytes",
                      sizeof w->packed_cache - 1);
    snprintf(w->cpu_isa, sizeof w->cpu_isa, "%s", o->cpu_isa);
    if (snprintf(w->runner, sizeof w->runner, "%s", o->runner) >= (int)sizeof w->runner ||
        snprintf(w->convert, sizeof w->convert, "%s", o->convert) >= (int)sizeof w->convert ||
        snprintf(w->pooler, sizeof w->pooler, "%s", o->pooler_config) >= (int)sizeof w->pooler)
        return q_fail(e, Q_INVALID,
                      "--runner, --convert or --pooler-config: the value is too long");
    c->queue_max = (uint32_t)o->max_num_queued_reqs;
    c->queue_token_max = (uint64_t)o->max_num_queued_tokens;
    c->ttft_max_us = (int64_t)(o->max_ttft * 1e6);
    c->worker_timeout_s = (uint32_t)o->worker_timeout;
    c->stall_timeout_s = (uint32_t)o->stall_timeout;
    c->prefix_cache = o->enable_prefix_caching;
    c->in_process = o->in_process_worker;
    c->trace_path = *o->trace ? o->trace : NULL;
    c->profiler_dir = *o->profiler_dir ? o->profiler_dir : NULL;
    return Q_OK;
}
