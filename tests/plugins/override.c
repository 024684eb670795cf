/* SPDX-License-Identifier: Apache-2.0 */
/* override - level 5 of engine/plugin.h: the whole forward pass. Llama as transformers has it, by
 * the engine's functions of a step; gate and up are
 * one product, whose activation is silu. */
#include <string.h>
#include "engine/plugin.h"

enum { X, H, QKV, A, G, ROWS, OUT, N_BUFFER };

static struct quire_rows rows_of(const struct quire_step *s, uint32_t buffer, uint32_t n,
                                 uint32_t n_col)
{
    const struct quire_rows r = {s->host->step_buffer(s, buffer), n, n_col, n_col};
    return r;
}

/* This thread's rows: y += x. */
static void add(const struct quire_step *s, const struct quire_rows *y, const struct quire_rows *x)
{
    const uint32_t from = (uint32_t)((uint64_t)y->n * s->ith / s->nth);
    const uint32_t end = (uint32_t)((uint64_t)y->n * (s->ith + 1) / s->nth);
    for (uint32_t i = from; i < end; i++)
        for (uint32_t c = 0; c < y->n_col; c++)
            y->rows[i * y->stride + c] += x->rows[i * x->stride + c];
}

struct sizes {
    uint32_t hidden, q, kv, inter;
};

static int layer(const struct quire_step *s, uint32_t i, const struct sizes *z,
                 struct quire_plugin_error *e)
{
    const struct quire_host *host = s->host;
    const uint32_t n = s->n_row;
    const struct quire_rows x = rows_of(s, X, n, z->hidden), h = rows_of(s, H, n, z->hidden);
    const struct quire_rows qkv = rows_of(s, QKV, n, z->q + 2 * z->kv), a = rows_of(s, A, n, z->q);
    const struct quire_rows g = rows_of(s, G, n, z->inter), o = rows_of(s, OUT, n, z->hidden);
    struct quire_rows qk = qkv;
    double head = 0;
    (void)host->config_number(s->model, "head_dim", &head);
    qk.n_col = z->q + z->kv;
    if (host->step_rms_norm(s, "attn_norm", i, &x, &h, e))
        return 1;
    host->barrier(s);
    if (host->step_linear(s, "qkv", i, &h, &qkv, e))
        return 1;
    host->barrier(s);
    if (host->step_rope(s, qk.n_col / (uint32_t)head, &qk, e) ||
        host->step_attention(s, i, &qkv, &a, e))
        return 1;
    host->barrier(s);
    if (host->step_linear(s, "out", i, &a, &o, e))
        return 1;
    host->barrier(s);
    add(s, &x, &o);
    host->barrier(s);
    if (host->step_rms_norm(s, "mlp_norm", i, &x, &h, e))
        return 1;
    host->barrier(s);
    if (host->step_linear(s, "gate_up", i, &h, &g, e)) /* silu(gate) * up */
        return 1;
    host->barrier(s);
    if (host->step_linear(s, "down", i, &g, &o, e))
        return 1;
    host->barrier(s);
    add(s, &x, &o);
    host->barrier(s);
    return 0;
}

static int forward(const struct quire_step *s, struct quire_plugin_error *e)
{
    const struct quire_host *host = s->host;
    double hidden, heads, kv_heads, head, inter, vocab, fault = -1, crash = -1;
    if (!host->config_number(s->model, "hidden_size", &hidden) ||
        !host->config_number(s->model, "num_attention_heads", &heads) ||
        !host->config_number(s->model, "num_key_value_heads", &kv_heads) ||
        !host->config_number(s->model, "head_dim", &head) ||
        !host->config_number(s->model, "intermediate_size", &inter) ||
        !host->config_number(s->model, "vocab_size", &vocab))
        return 1;
    const struct sizes z = {(uint32_t)hidden, (uint32_t)(heads * head), (uint32_t)(kv_heads * head),
                            (uint32_t)inter};
    const struct quire_rows x = rows_of(s, X, s->n_row, z.hidden);
    if (host->config_number(s->model, "crashes_at", &crash))
        for (uint32_t i = 0; i < s->n_row; i++)
            if (s->token_ids[i] == (uint32_t)crash)
                *(volatile int *)0 = 1;
    if (host->config_number(s->model, "fails_at", &fault))
        for (uint32_t i = 0; i < s->n_row; i++)
            if (s->token_ids[i] == (uint32_t)fault) {
                memcpy(e->message, "a token it does not want", 25);
                return 1;
            }
    if (host->step_embed(s, &x, e))
        return 1;
    host->barrier(s);
    for (uint32_t i = 0; i < host->n_layer(s->model); i++)
        if (layer(s, i, &z, e))
            return 1;
    const struct quire_rows asked = rows_of(s, ROWS, s->n_logit, z.hidden);
    const struct quire_rows logits = {s->logits, s->n_logit, (uint32_t)vocab, (uint32_t)vocab};
    for (uint32_t i = s->ith; i < s->n_logit; i += s->nth)
        memcpy(asked.rows + i * asked.stride, x.rows + s->logit_rows[i] * x.stride,
               z.hidden * sizeof(float));
    host->barrier(s);
    if (s->n_logit == 0)
        return 0;
    if (host->step_rms_norm(s, "final_norm", QUIRE_NO_LAYER, &asked, &asked, e))
        return 1;
    host->barrier(s);
    return host->step_linear(s, "lm_head", QUIRE_NO_LAYER, &asked, &logits, e);
}

static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "OverrideForCausalLM",
    .base = "LlamaForCausalLM",
    .forward = forward,
    .buffers =
        {
            [X] = "hidden_size",
            [H] = "hidden_size",
            [QKV] = "num_attention_heads * head_dim * 3",
            [A] = "num_attention_heads * head_dim",
            [G] = "intermediate_size",
            [ROWS] = "hidden_size",
            [OUT] = "hidden_size",
        },
};
static const struct quire_architecture *const architectures[] = {&architecture};

static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "override",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
