/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model.h"
#include <limits.h>
#include <stdio.h>
#include <math.h>
#include <string.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/forward/alibi.h"
#include "engine/model/load/upload.h"
#include "engine/model/lora/lora.h"
#include "engine/model/model_program.h"
#include "engine/model/model_same.h"
#include "engine/model/model_summary.h"
#include "engine/model/pooler.h"
#include "engine/model/model_state.h"
#include "engine/model/plugin/plugin_model.h"
#include "engine/model/vision/vision.h"

/* Sums of int8 products must fit 32 bits. */
static enum q_code check_quantization(const struct model *m, enum quantization q, struct q_err *e)
{
    const struct model_config *c = &m->config;
    uint32_t most = arch_dim_at(c, D_INTER, c->n_layer - 1); /* no layer has a wider MLP */
    if (c->hidden_size > most)
        most = c->hidden_size;
    if (model_q_cols(m) > most)
        most = model_q_cols(m);
    if (c->moe.width > most)
        most = c->moe.width;
    if (c->moe.shared_width > most)
        most = c->moe.shared_width;
    for (uint32_t i = 0; i < m->arch->n_own; i++)
        most = c->own[i].cols > most ? c->own[i].cols : most;
    if (q && most > KERN_INT8_IN_MAX)
        return q_fail(e, Q_UNSUPPORTED,
                      "quantization %s supports matrices of at most %u inputs, this model has %u",
                      quantization_name(q), KERN_INT8_IN_MAX, most);
    return Q_OK;
}

/* Dynamic rope answers any length by design; every other kind ends where its positions were
 * trained. */
struct model_lengths model_lengths(const struct arch *arch, const struct model_config *c)
{
    const uint32_t learned = arch_positions_max(arch, c);
    const uint32_t most = learned == UINT32_MAX ? rotary_length_max(c) : learned;
    return (struct model_lengths){most, c->rope.kind == ROPE_DYNAMIC ? UINT32_MAX : most};
}

static enum q_code choose_length(uint32_t *out, const struct model *m,
                                 const struct model_options *o, struct q_err *e)
{
    const uint32_t asked = o->max_model_len;
    const uint32_t taught = m->config.pools && o->pooling ? o->pooling->max_length : 0;
    const struct model_config *c = &m->config;
    const struct model_lengths lengths = model_lengths(m->arch, c);
    if (asked > lengths.max)
        return q_fail(e, Q_INVALID,
                      "max_model_len %u is more than the %u tokens the model can take "
                      "(max_position_embeddings %u and "
                      "its rope scaling)",
                      asked, lengths.max, c->max_position);
    *out = asked ? asked : lengths.usual;
    if (!asked && taught && taught < *out)
        *out = taught;
    return Q_OK;
}

size_t model_kv_block_bytes(const struct model *m, uint32_t layer)
{
    const struct model_config *c = &m->config;
    const uint32_t n = model_config_kv_heads(c, layer), head = model_config_head_dim(c, layer);
    if (c->latent.rank)
        return (size_t)KERN_BLOCK * (c->latent.rank + c->latent.rope) *
               (dtype_bits(m->shape.kv_dtype) / 8);
    return m->link ? m->link->t->kv_block_bytes(m->shape.kv_dtype, n, head)
                   : kern_kv_block_bytes(m->shape.kv_dtype, n, head);
}

static void number_kv_layers(struct model *m)
{
    m->shape.n_kv_layer = 0;
    m->shape.kv_block_bytes = 0;
    for (uint32_t i = 0; i < m->config.n_layer; i++) {
        if (model_config_reads_kv(&m->config, i))
            m->kv_layers[i] = m->kv_layers[model_config_kv_of(&m->config, i)];
        if (!model_has_kv(m, i))
            continue;
        m->kv_layers[i] = (uint16_t)m->shape.n_kv_layer++;
        m->shape.kv_block_bytes += model_kv_arrays(m) * (uint64_t)model_kv_block_bytes(m, i);
    }
}

static void fill_shape(struct model *m)
{
    const struct model_config *c = &m->config;
    struct model_shape *s = &m->shape;
    s->vocab_size = c->vocab_size;
    s->hidden_size = c->hidden_size;
    s->n_layer = pipeline_stage_is_whole(&m->stage) ? c->n_layer : m->stage.n_layer;
    s->pools = c->pools;
    s->both_ways = m->arch->layer.bidirectional;
    s->n_output = c->pools ? c->hidden_size : c->vocab_size;
    s->n_type = c->n_type;
    s->n_kv_head = c->n_kv_head;
    s->n_head = c->n_head;
    s->head_dim = c->head_dim;
    s->weight_bytes = m->weights.memory.size;
    s->weights_mapped = m->weights.memory.is_file;
    s->n_param = m->weights.n_param;
    number_kv_layers(m);
    s->state_bytes = m->program.n_state * sizeof(float);
}

static enum q_code choose_dtype(enum dtype *out, const struct model_options *o,
                                const struct model_config *c, struct q_err *e)
{
    *out = o->dtype_auto ? c->dtype : o->dtype;
    if (*out == DT_F32 || *out == DT_BF16 || *out == DT_F16)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "dtype %s is not supported, expected float32, bfloat16 or float16",
                  dtype_name(*out));
}

static enum q_code choose_kv(enum dtype *out, const struct model_options *o,
                             const struct model_config *c, enum dtype compute, struct q_err *e)
{
    const bool halves = compute == DT_BF16 || (compute == DT_F16 && o->link);
    *out = o->kv_given ? o->kv_dtype : halves ? DT_BF16 : DT_F32;
    if (*out == DT_F8_E4M3 && !o->link)
        return q_fail(e, Q_UNSUPPORTED,
                      "KV cache dtype fp8 is not supported on the CPU; int8 takes the same memory");
    if (c->latent.rank && *out != DT_F32 && *out != DT_BF16)
        return q_fail(e, Q_UNSUPPORTED,
                      "KV cache dtype %s is not supported with latent attention, expected bfloat16 "
                      "or float32",
                      dtype_name(*out));
    if (*out == DT_F32 || *out == DT_BF16 || *out == DT_I8 || *out == DT_F8_E4M3)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "KV cache dtype %s is not supported, expected bfloat16, float32, int8 or fp8",
                  dtype_name(*out));
}

/* What is computed in: that of the checkpoint when it is quantized already. Random weights stand in
 * for such a checkpoint as weights that are quantized while loading. */
static enum q_code choose_quantization(enum quantization *out, const struct model_options *o,
                                       struct model_config *c, struct q_err *e)
{
    const bool is_fp8 = c->quant.method == QUANT_FP8;
    *out = o->quantization;
    const bool becomes_floats = quant_config_becomes_floats(&c->quant);
    if (o->quantization == QUANTIZE_FP8 && !o->link && (!c->quant.method || becomes_floats) &&
        !is_fp8)
        return q_fail(e, Q_UNSUPPORTED,
                      "quantization fp8 is not supported on the CPU; expected int8 or int4");
    if (o->format == LOAD_DUMMY && becomes_floats)
        memset(&c->quant, 0, sizeof c->quant);
    if (!c->quant.method || becomes_floats) /* floats, made what is asked for */
        return Q_OK;
    if (o->quantization && !(is_fp8 && o->quantization == QUANTIZE_FP8))
        return q_fail(e, Q_INVALID,
                      "quantization %s: the checkpoint is quantized already (%s, "
                      "%u bits); use --quantization none",
                      quantization_name(o->quantization), quant_config_name(&c->quant),
                      c->quant.bits);
    *out = c->quant.bits <= 4 ? QUANTIZE_INT4 : QUANTIZE_INT8;
    if (is_fp8) /* on the CPU it is made floats while it is packed */
        *out = o->link ? QUANTIZE_FP8 : QUANTIZE_NOT;
    if (o->format == LOAD_DUMMY)
        memset(&c->quant, 0, sizeof c->quant);
    return Q_OK;
}

/* What the upload's buffers could not hold. */
static enum q_code check_device(const struct model *m, struct q_err *e)
{
    const struct model_config *c = &m->config;
    const size_t most = UPLOAD_BYTES / 2 / sizeof(float); /* a interleaved bias has two parts */
    if (!m->link)
        return Q_OK;
    if ((arch_has(m->arch, c, W_LM_HEAD_BIAS, 0) && c->vocab_size > most) ||
        c->hidden_size > most || c->intermediate_size > most || model_q_cols(m) > most ||
        c->moe.width > most || c->moe.shared_width > most)
        return q_fail(e, Q_TOO_LARGE, "matrices of more than %zu columns", most);
    return Q_OK;
}

struct cos_sin_job {
    const struct rotary *of;
    float *rows;
    uint32_t from, n;
};

static void cos_sin_rows(void *arg, uint32_t ith, uint32_t nth)
{
    const struct cos_sin_job *j = arg;
    const uint32_t end = (uint32_t)((uint64_t)j->n * (ith + 1) / nth);
    for (uint32_t i = (uint32_t)((uint64_t)j->n * ith / nth); i < end; i++)
        rotary_row(j->of, j->rows + 2 * (size_t)i * j->of->n_pair, j->from + i, 0);
}

/* The CPU computes (cos, sin) of a step's rows as it goes; a device has those of all positions, the
 * same numbers, so that a step depends on nothing that the host computes. */
static enum q_code make_cos_sin(struct model *m, struct region *to, const struct rotary *of,
                                struct team *team, struct q_err *e)
{
    const uint32_t n = m->shape.max_model_len;
    const size_t row = 2 * (size_t)of->n_pair * sizeof(float);
    struct upload u = {0};
    enum q_code rc = upload_init(&u, m->link, e);
    if (rc || (rc = region_init_on(to, n * row, "rotary table", m->link, e)))
        goto out;
    struct cos_sin_job j = {.of = of};
    for (; j.from < n; j.from += j.n) {
        j.n = n - j.from < UPLOAD_BYTES / row ? n - j.from : (uint32_t)(UPLOAD_BYTES / row);
        j.rows = upload_space(&u);
        if (team)
            team_run(team, cos_sin_rows, &j);
        else
            cos_sin_rows(&j, 0, 1);
        upload_copy(&u, to->data + j.from * row, j.n * row);
        upload_next(&u);
    }
    rc = upload_end(&u, e);
out:
    upload_release(&u);
    return rc;
}

static enum q_code make_tables(struct model *m, struct team *team, struct q_err *e)
{
    const struct arch_layer *l = &m->arch->layer;
    enum q_code rc = Q_OK;
    if (!m->link || !arch_rotates(l))
        return Q_OK;
    if (!model_rope_varies(m))
        rc = make_cos_sin(m, &m->rope_cos_sin, &m->rotary, team, e);
    return rc || !l->local_rope ? rc
                                : make_cos_sin(m, &m->local_cos_sin, &m->local_rotary, team, e);
}

/* The first attention with slopes; NULL: there is none. */
static const struct program_op *find_alibi(const struct layer_program *p)
{
    for (uint32_t i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == PROGRAM_ATTENTION && p->ops[i].attention.alibi)
            return &p->ops[i];
    return NULL;
}

static enum q_code make_slopes(struct model *m, struct q_err *e)
{
    const struct program_op *op = find_alibi(&m->program);
    const uint32_t n = m->config.n_head;
    struct upload u = {0};
    enum q_code rc;
    if (!op)
        return Q_OK;
    if ((rc = region_init_on(&m->slopes, n * sizeof(float), "slopes", m->link, e)) ||
        (m->link && (rc = upload_init(&u, m->link, e))))
        goto out;
    float *to = m->link ? upload_space(&u) : (float *)(void *)m->slopes.data;
    for (uint32_t i = 0; i < n; i++)
        to[i] = alibi_slope(i, n) * (m->arch->layer.alibi_scaled ? op->attention.scale : 1);
    if (m->link) {
        upload_copy(&u, m->slopes.data, n * sizeof *to);
        upload_next(&u);
        rc = upload_end(&u, e);
    }
out:
    upload_release(&u);
    return rc;
}

static enum q_code find_family(struct model *m, const struct model_options *o, struct q_err *e)
{
    enum q_code rc;
    if ((rc = model_config_load(&m->config, NULL, o->dir, e)) ||
        (rc = arch_find(&m->arch, m->config.architecture, e)) || !m->arch->plugin)
        return rc;
    if (o->link && m->arch->plugin->a.forward)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: plugin %s computes the forward pass itself, which is not supported on a "
                      "device; use --device cpu",
                      m->arch->name, plugin_arch_text(m->arch->plugin));
    if ((rc = plugin_model_open(&m->plugin, o->dir, e)))
        return rc;
    m->plugin->model = m;
    return plugin_model_check(m->plugin, e);
}

static enum q_code check_stage(struct model *m, const struct pipeline_stage *s, struct q_err *e)
{
    const uint32_t n = m->config.n_layer;
    m->stage = *s;
    if (pipeline_stage_is_whole(s))
        return Q_OK;
    if (s->first >= n || s->n_layer > n - s->first)
        return q_fail(e, Q_INVALID, "a stage of %u layers from layer %u on: the model has %u",
                      s->n_layer, s->first, n);
    if ((s->has_embedding && s->first) || (s->has_head && s->first + s->n_layer != n))
        return q_fail(e, Q_INVALID,
                      "a stage of layers %u to %u of %u: only the first layer's may have the "
                      "embedding, only the last one's the head",
                      s->first, s->first + s->n_layer - 1, n);
    if (m->arch->plugin && m->arch->plugin->a.forward)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: plugin %s computes the forward pass itself, which cannot be divided "
                      "into stages",
                      m->arch->name, plugin_arch_text(m->arch->plugin));
    return Q_OK;
}

static enum q_code check_shard(struct model *m, const struct model_options *o, struct q_err *e)
{
    m->shard = o->shard;
    if (!model_shard_is_part(&o->shard))
        return Q_OK;
    Q_ASSERT(o->shard.rank < o->shard.size && !o->packed_cache && !o->link);
    if (m->arch->plugin)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: models of plugin %s cannot be divided among tensor-parallel ranks; "
                      "use one, and pipeline stages for more ranks",
                      m->arch->name, plugin_arch_text(m->arch->plugin));
    return Q_OK;
}

static enum q_code check_lora(const struct model *m, const struct model_options *o, struct q_err *e)
{
    if (!o->lora_rank)
        return Q_OK;
    if (o->lora_rank > LORA_RANK_MAX)
        return q_fail(e, Q_INVALID, "--max-lora-rank %u: expected at most %u", o->lora_rank,
                      LORA_RANK_MAX);
    if (m->arch->plugin && m->arch->plugin->a.forward)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: plugin %s computes the forward pass itself, which takes no LoRA "
                      "adapters",
                      m->arch->name, plugin_arch_text(m->arch->plugin));
    return Q_OK;
}

/* Whether there is a program of the model's config, and how long its sequences may be. */
static enum q_code check_config(struct model *m, const struct model_options *o, bool on_device,
                                struct q_err *e)
{
    enum q_code rc;
    m->config.takes_items = o->takes_items;
    if (o->pooling && o->pooling->makes != ARCHS_GENERATES) {
        m->config.pools = true;
        m->config.pooling = o->pooling->kind;
    }
    if (m->config.pools && (m->arch->plugin || !pipeline_stage_is_whole(&o->stage)))
        return q_fail(e, Q_UNSUPPORTED, "%s: vectors in place of logits are not supported %s",
                      m->arch->name, m->arch->plugin ? "of a plugin's model" : "in stages");
    m->lora_rank = o->lora_rank;
    if ((rc = check_lora(m, o, e)) || (rc = check_stage(m, &o->stage, e)) ||
        (rc = check_shard(m, o, e)) || (rc = model_program_try(m, on_device, e)))
        return rc;
    if (o->generates && m->arch->layer.bidirectional && !m->config.pools &&
        !model_has_own_forward(m))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: its layers attend both ways, which needs a prompt in one step; the "
                      "engine computes prompts in chunks and tokens one at a time, so that only "
                      "layers that attend to what comes before can be served",
                      m->arch->name);
    model_drop_unread(&m->config, &m->arch->layer);
    return choose_length(&m->shape.max_model_len, m, o, e);
}

static enum q_code load_config(struct model *m, const struct model_options *o, bool on_device,
                               struct q_err *e)
{
    const enum q_code rc = find_family(m, o, e);
    return rc ? rc : check_config(m, o, on_device, e);
}

/* What *decided leaves open, and what is computed in. */
static enum q_code decide(struct model *m, struct model_options *decided, struct q_err *e)
{
    const struct model_options asked = *decided;
    struct model_config *c = &m->config;
    enum q_code rc;
    if ((rc = choose_quantization(&decided->quantization, &asked, c, e)) ||
        (rc = check_quantization(m, decided->quantization, e)) ||
        (rc = choose_dtype(&decided->dtype, &asked, c, e)))
        return rc;
    return choose_kv(&m->shape.kv_dtype, &asked, c, decided->dtype, e);
}

/* What the loader is asked for. dtype and quantization are decided. */
static struct load_options load_options_of(const struct model_config *c,
                                           const struct model_options *o)
{
    return (struct load_options){
        .dir = o->weights_dir ? o->weights_dir : o->dir,
        .format = o->format,
        .dtype = o->dtype,
        .quantization = o->quantization,
        .stage = o->stage,
        .shard = o->shard,
        .packed_cache = o->packed_cache,
        .kern = o->kern,
        .team = o->team,
        .memory_bytes = o->memory_bytes,
        .device = o->link,
        .gate_up_apart = o->no_fusion || o->lora_rank,
        .gate_act = model_program_gate_act(c),
        .progress = o->progress,
        .progress_ctx = o->progress_ctx,
    };
}

/* Headers only. */
static enum q_code check_files(const struct model_options *o, struct q_err *e)
{
    struct tensor_set *files = NULL;
    enum q_code rc = tensor_set_open_as(&files, o->weights_dir ? o->weights_dir : o->dir,
                                        load_format_files(o->format), e);
    tensor_set_free(files);
    return rc;
}

FALLIBLE model_check(const struct model_options *o, bool on_device, struct q_err *e)
{
    struct model_options decided = *o;
    struct model *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory checking %s", o->dir);
    enum q_code rc = load_config(m, o, on_device, e);
    if (!rc && !on_device)
        rc = decide(m, &decided, e);
    const struct load_options lo = load_options_of(&m->config, &decided);
    if (!rc && o->format != LOAD_DUMMY)
        rc = on_device ? check_files(o, e) : weights_check(m->arch, &m->config, &lo, e);
    model_free(m);
    return rc;
}

FALLIBLE model_show_weights(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e)
{
    struct model_options decided = *o;
    struct model *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory checking %s", o->dir);
    enum q_code rc = load_config(m, o, false, e);
    if (rc || (rc = decide(m, &decided, e)))
        goto out;
    const struct load_options lo = load_options_of(&m->config, &decided);
    if ((rc = weights_plan(&m->weights, m->arch, &m->config, &lo, e)))
        goto out;
    if (how->json)
        load_plan_json(out, m->weights.plan);
    else
        load_plan_text(out, m->weights.plan);
out:
    model_free(m);
    return rc;
}

FALLIBLE model_show_summary(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e)
{
    struct model_options decided = *o;
    struct model *m = q_calloc(1, sizeof *m);
    struct model_summary s = {.m = m, .n_seq = how->n_seq};
    struct q_err no_device = Q_ERR_INIT;
    struct buf images = BUF_INIT;
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory checking %s", o->dir);
    enum q_code rc = load_config(m, o, false, e);
    if (rc || (rc = decide(m, &decided, e)))
        goto out;
    m->shape.compute_dtype = decided.dtype;
    m->shape.quantization = decided.quantization;
    const struct load_options lo = load_options_of(&m->config, &decided);
    if ((rc = weights_plan(&m->weights, m->arch, &m->config, &lo, e)) ||
        (rc = model_program_state_bytes(&s.state_bytes, m, e)))
        goto out;
    if (model_check(o, true, &no_device))
        s.no_device = no_device.message;
    if (*m->config.outer) {
        bool served;
        if ((rc = vision_describe(&images, &served, o->dir, &m->config, e)))
            goto out;
        *(served ? &s.images : &s.no_images) = buf_str(&images);
    }
    if (how->json)
        model_summary_json(out, &s);
    else
        model_summary_text(out, &s);
out:
    buf_release(&images);
    model_free(m);
    return rc;
}

FALLIBLE model_show_program(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e)
{
    struct model_options decided = *o;
    struct model *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory checking %s", o->dir);
    enum q_code rc = load_config(m, o, false, e);
    if (!rc && !(rc = decide(m, &decided, e))) {
        m->shape.compute_dtype = decided.dtype;
        m->shape.quantization = decided.quantization;
        rc = model_program_show(out, m, how, e);
    }
    model_free(m);
    return rc;
}

static enum q_code make_pooler(struct pooler **out, const struct model *m,
                               const struct model_options *o, struct q_err *e)
{
    return pooler_new(out,
                      &(struct pooler_args){
                          .arch = m->arch,
                          .config = &m->config,
                          .pooling = o->pooling,
                          .dir = o->weights_dir ? o->weights_dir : o->dir,
                          .format = o->format,
                      },
                      e);
}

static enum q_code load_model(struct model *m, const struct model_options *o, struct q_err *e)
{
    enum q_code rc;
    struct model_options decided = *o;
    struct model_config *c = &m->config;
    if ((rc = check_config(m, o, o->link != NULL, e)) || (rc = decide(m, &decided, e)))
        return rc;
    m->link = o->link;
    m->no_fusion = o->no_fusion;
    m->host_kern = o->kern;
    m->kern = decided.kern = o->link ? o->link->t->kern(o->link->d) : o->kern;
    m->shape.compute_dtype = decided.dtype;
    m->shape.quantization = decided.quantization;
    rotary_init(&m->rotary, c);
    rotary_init_local(&m->local_rotary, c);
    struct load_options lo = load_options_of(&m->config, &decided);
    lo.own_read = m->own_read;
    lo.host_kern = m->host_kern;
    if ((rc = check_device(m, e)) || (rc = weights_load(&m->weights, m->arch, c, &lo, e)) ||
        (rc = model_program_make(m, e)))
        return rc;
    fill_shape(m);
    if (m->config.pools && (rc = make_pooler(&m->pooler, m, o, e)))
        return rc;
    rc = make_tables(m, o->team, e);
    return rc ? rc : make_slopes(m, e);
}

static enum q_code hand_over(struct model **out, struct model *m, enum q_code rc)
{
    if (rc)
        model_free(m);
    else
        *out = m;
    return rc;
}

enum q_code model_load(struct model **out, const struct model_options *o, struct q_err *e)
{
    struct model *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", o->dir);
    enum q_code rc = find_family(m, o, e);
    if (!rc)
        rc = load_model(m, o, e);
    return hand_over(out, m, rc);
}

FALLIBLE model_load_family(struct model **out, const struct model_family *f,
                           const struct model_options *o, struct q_err *e)
{
    struct model *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", o->dir);
    m->arch = f->arch;
    m->config = *f->config;
    return hand_over(out, m, load_model(m, o, e));
}

enum q_code model_check_weights(const struct model_config *c, const struct model_options *o,
                                struct q_err *e)
{
    const struct arch *arch;
    enum q_code rc;
    if ((rc = arch_find(&arch, c->architecture, e)) ||
        (rc = model_check_same(c, arch, o->weights_dir, e)))
        return rc;
    const struct load_options lo = load_options_of(c, o);
    return weights_check(arch, c, &lo, e);
}

enum q_code model_reload(struct model *m, const struct model_options *o, struct q_err *e)
{
    struct model_options decided = *o;
    enum q_code rc;
    decided.dtype = m->shape.compute_dtype;
    decided.quantization = m->shape.quantization;
    decided.no_fusion = m->no_fusion;
    decided.lora_rank = m->lora_rank;
    decided.stage = m->stage;
    decided.shard = m->shard;
    decided.link = m->link;
    decided.kern = m->kern;
    decided.packed_cache = NULL; /* a training's steps are read once */
    struct pooler *pooler = NULL;
    struct load_options lo = load_options_of(&m->config, &decided);
    lo.own_read = m->own_read;
    lo.host_kern = m->host_kern;
    if ((rc = model_check_same(&m->config, m->arch, o->weights_dir, e)) ||
        (m->pooler && (rc = make_pooler(&pooler, m, o, e))) ||
        (rc = weights_reload(&m->weights, m->arch, &m->config, &lo, e)) ||
        (rc = model_program_make(m, e))) {
        pooler_free(pooler);
        return rc;
    }
    pooler_free(m->pooler);
    m->pooler = pooler;
    fill_shape(m);
    return Q_OK;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    weights_release(&m->weights);
    program_release(&m->program);
    pooler_free(m->pooler);
    plugin_model_free(m->plugin);
    region_release(&m->rope_cos_sin);
    region_release(&m->local_cos_sin);
    region_release(&m->slopes);
    q_free(m);
}

const struct model_shape *model_shape(const struct model *m)
{
    return &m->shape;
}

void model_log_pages(const struct model *m)
{
    char text[REGION_TEXT_MAX];
    region_describe(text, &m->weights.memory);
    log_info("weights: %s", text);
}

const void *model_weights(const struct model *m)
{
    return m->weights.memory.data;
}

uint32_t model_generation(const struct model *m)
{
    return m->weights.generation;
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct pooler *model_pooler(const struct model *m)
{
    return m->pooler;
}

bool model_takes_items(const struct model *m)
{
    return m->arch->takes_items || m->config.takes_items;
}

const char *model_plugin(const struct model *m)
{
    return plugin_arch_text(m->plugin ? m->plugin->arch : NULL);
}

bool model_has_own_forward(const struct model *m)
{
    return m->plugin && m->plugin->arch->a.forward && !m->link;
}
