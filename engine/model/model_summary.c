/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model_summary.h"
#include <inttypes.h>
#include <string.h>
#include "common/hub/nested.h"
#include "common/size_text.h"
#include "kernels/ops/kv_layout.h"

#define LABEL_COLUMNS 12

static void label(struct buf *out, const char *name)
{
    buf_printf(out, "%-*s", LABEL_COLUMNS, name);
}

/* ---- what a sequence takes ---- */

/* Models that attend both ways compute a sequence in one step and keep nothing of it. */
static uint64_t block_bytes(const struct model *m)
{
    uint64_t n = 0;
    if (m->arch->layer.bidirectional)
        return 0;
    for (uint32_t i = 0; i < m->config.n_layer; i++)
        if (model_has_kv(m, i))
            n += model_kv_arrays(m) * (uint64_t)model_kv_block_bytes(m, i);
    return n;
}

static bool has_attention(const struct model_config *c)
{
    uint32_t i = 0;
    while (i < c->n_layer && !model_config_has_kv(c, i))
        i++;
    return i < c->n_layer;
}

/* K and V of a sequence of max_model_len tokens. */
static uint64_t sequence_bytes(const struct model *m)
{
    return ((uint64_t)m->shape.max_model_len + KERN_BLOCK - 1) / KERN_BLOCK * block_bytes(m);
}

/* ---- text ---- */

static void text_sizes(struct buf *out, const struct model_summary *s)
{
    const struct model *m = s->m;
    const struct model_config *c = &m->config;
    label(out, "model");
    buf_printf(out, "%s (model_type %s), %s\n", m->arch->name, c->model_type,
               c->pools ? "makes one vector of a sequence" : "generates text");
    if (*c->outer) {
        label(out, "");
        buf_printf(out, "the text model of %s, which takes %s\n", c->outer,
                   nested_inputs(c->outer));
        label(out, "images");
        buf_printf(out, "%s%s\n",
                   s->images ? "" : "refused: ", s->images ? s->images : s->no_images);
    }
    if (*model_plugin(m)) {
        label(out, "plugin");
        buf_printf(out, "%s\n", model_plugin(m));
    }
    label(out, "sizes");
    buf_printf(out, "%u layers, hidden %u", c->n_layer, c->hidden_size);
    if (has_attention(c))
        buf_printf(out, ", %u heads, %u KV heads of %u", c->n_head, c->n_kv_head, c->head_dim);
    if (c->moe.n_expert)
        buf_printf(out, ", %u experts", c->moe.n_expert);
    buf_printf(out, ", vocabulary %u, %u tokens at most\n", c->vocab_size, m->shape.max_model_len);
}

static void text_weights(struct buf *out, const struct model *m)
{
    const struct load_plan *p = m->weights.plan;
    char size[SIZE_TEXT_MAX];
    label(out, "files");
    if (p->files)
        buf_printf(out, "%s (--load-format %s): %u tensors", tensor_set_found(p->files),
                   load_plan_format(p), tensor_count(p->files));
    else
        buf_add_str(out, "none (--load-format dummy)");
    if (p->unused)
        buf_printf(out, ", %u of them not used, the first is %s", p->n_unused,
                   p->unused->stored ? p->unused->stored : p->unused->name);
    buf_add_char(out, '\n');
    label(out, "weights");
    buf_printf(out, "%" PRIu64 " parameters, %s in memory\n", p->n_param,
               size_text_binary(size, (double)p->n_bytes));
    load_plan_sums_text(out, p);
}

static void text_memory(struct buf *out, const struct model_summary *s)
{
    const struct model *m = s->m;
    const uint64_t one = sequence_bytes(m);
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];
    label(out, "KV cache");
    if (one)
        buf_printf(out, "%s, %s a token, %s of %u tokens, %s of %u such sequences\n",
                   dtype_name(m->shape.kv_dtype),
                   size_text_binary(a, (double)block_bytes(m) / KERN_BLOCK),
                   size_text_binary(b, (double)one), m->shape.max_model_len,
                   size_text_binary(c, (double)one * s->n_seq), s->n_seq);
    else
        buf_add_str(out, "none\n");
    if (!s->state_bytes)
        return;
    label(out, "states");
    buf_printf(out, "%s a sequence, %s of %u\n", size_text_binary(a, (double)s->state_bytes),
               size_text_binary(b, (double)s->state_bytes * s->n_seq), s->n_seq);
}

void model_summary_text(struct buf *out, const struct model_summary *s)
{
    const struct model *m = s->m;
    const enum quantization q = m->shape.quantization;
    text_sizes(out, s);
    label(out, "computes in");
    buf_printf(out, "%s%s%s\n", dtype_name(m->shape.compute_dtype), q ? ", weights in " : "",
               q ? quantization_name(q) : "");
    text_weights(out, m);
    text_memory(out, s);
    label(out, "on the CPU");
    buf_add_str(out, "supported\n");
    label(out, "on a GPU");
    if (s->no_device)
        buf_printf(out, "refused: %s\n", s->no_device);
    else
        buf_add_str(out, "supported, as far as config.json and the options show\n");
}

/* ---- JSON ---- */

static void json_text(struct buf *out, const char *key, const char *text)
{
    buf_printf(out, ", \"%s\": ", key);
    if (text)
        buf_add_json_str(out, text, strlen(text));
    else
        buf_add_str(out, "null");
}

static void json_number(struct buf *out, const char *key, uint64_t n)
{
    buf_printf(out, ", \"%s\": %" PRIu64, key, n);
}

static void json_sizes(struct buf *out, const struct model_summary *s)
{
    const struct model *m = s->m;
    const struct model_config *c = &m->config;
    buf_add_str(out, "{\"architecture\": ");
    buf_add_json_str(out, m->arch->name, strlen(m->arch->name));
    json_text(out, "model_type", c->model_type);
    json_text(out, "text_model_of", *c->outer ? c->outer : NULL);
    json_text(out, "images", s->images);
    json_text(out, "images_refused", s->no_images);
    json_text(out, "plugin", *model_plugin(m) ? model_plugin(m) : NULL);
    json_text(out, "runner", c->pools ? "pooling" : "generate");
    json_number(out, "layers", c->n_layer);
    json_number(out, "hidden_size", c->hidden_size);
    json_number(out, "heads", c->n_head);
    json_number(out, "kv_heads", c->n_kv_head);
    json_number(out, "head_dim", c->head_dim);
    json_number(out, "experts", c->moe.n_expert);
    json_number(out, "vocab_size", c->vocab_size);
    json_number(out, "max_model_len", m->shape.max_model_len);
    json_text(out, "dtype", dtype_name(m->shape.compute_dtype));
    json_text(out, "kv_cache_dtype", dtype_name(m->shape.kv_dtype));
    json_text(out, "quantization",
              m->shape.quantization ? quantization_name(m->shape.quantization) : NULL);
}

void model_summary_json(struct buf *out, const struct model_summary *s)
{
    const struct model *m = s->m;
    const struct load_plan *p = m->weights.plan;
    const uint64_t one = sequence_bytes(m);
    json_sizes(out, s);
    json_text(out, "load_format", load_plan_format(p));
    json_text(out, "files", p->files ? tensor_set_found(p->files) : NULL);
    json_number(out, "tensors", p->files ? tensor_count(p->files) : 0);
    json_number(out, "unused_tensors", p->n_unused);
    json_text(out, "first_unused",
              !p->unused          ? NULL
              : p->unused->stored ? p->unused->stored
                                  : p->unused->name);
    json_number(out, "parameters", p->n_param);
    json_number(out, "weight_bytes", p->n_bytes);
    buf_add_str(out, ", \"forms\": ");
    load_plan_sums_json(out, p);
    json_number(out, "kv_bytes_per_token", block_bytes(m) / KERN_BLOCK);
    json_number(out, "kv_bytes_per_sequence", one);
    json_number(out, "state_bytes_per_sequence", s->state_bytes);
    json_number(out, "max_num_seqs", s->n_seq);
    json_number(out, "sequences_bytes", (one + s->state_bytes) * s->n_seq);
    json_text(out, "gpu_refuses", s->no_device);
    buf_add_str(out, "}\n");
}
