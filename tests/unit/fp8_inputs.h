/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_inputs - tests/data/quantized/fp8 with other scales of its matrices' inputs, and what such a
 * checkpoint computes where these are used: a forward pass of its one layer in f64, written for
 * tests, whose matrices are those of numpy (plain_twin.h). Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_FP8_INPUTS_H
#define QUIRE_TESTS_UNIT_FP8_INPUTS_H
#include <math.h>
#include "device_run.h"
#include "plain_twin.h"
#include "tensor_bytes.h"

#define FP8_FROM "tests/data/quantized/fp8"
enum {
    FP8_HIDDEN = 64,
    FP8_INTER = 96,
    FP8_HEADS = 4,
    FP8_KV = 2,
    FP8_HEAD = 16,
    FP8_VOCAB = 96,
    FP8_TOKENS_MAX = 48
};
enum fp8_matrix { FP8_Q, FP8_K, FP8_V, FP8_O, FP8_GATE, FP8_UP, FP8_DOWN, FP8_MATRICES };
static const struct {
    const char *name;
    uint32_t rows, cols;
} fp8_matrices[FP8_MATRICES] = {
    {"self_attn.q_proj", FP8_HEADS *FP8_HEAD, FP8_HIDDEN},
    {"self_attn.k_proj", FP8_KV *FP8_HEAD, FP8_HIDDEN},
    {"self_attn.v_proj", FP8_KV *FP8_HEAD, FP8_HIDDEN},
    {"self_attn.o_proj", FP8_HIDDEN, FP8_HEADS *FP8_HEAD},
    {"mlp.gate_proj", FP8_INTER, FP8_HIDDEN},
    {"mlp.up_proj", FP8_INTER, FP8_HIDDEN},
    {"mlp.down_proj", FP8_HIDDEN, FP8_INTER},
};

/* As launches have them: of one product, and so of q, k and v, and of gate and up, the largest;
 * none where one of them has none. */
static inline void fp8_set(double *scales, const float *of)
{
    static const int begin[] = {FP8_Q, FP8_O, FP8_GATE, FP8_DOWN, FP8_MATRICES};
    for (int p = 0; p < 4; p++) {
        double most = 0;
        bool all = true;
        for (int i = begin[p]; i < begin[p + 1]; i++) {
            most = fmax(most, (double)of[i]);
            all = all && of[i] > 0;
        }
        for (int i = begin[p]; i < begin[p + 1]; i++)
            scales[i] = all ? most : 0;
    }
}

struct fp8_inputs {
    float scales[FP8_MATRICES]; /* as the checkpoint has them */
    bool dynamic;               /* its config says so */
    bool renamed;               /* transformers' name of them */
};

/* The header of a safetensors file, whose length precedes it, with "activation_scale". */
static inline void fp8_rename(struct buf *file)
{
    static const char old[] = "input_scale", name[] = "activation_scale";
    struct buf header = BUF_INIT, all = BUF_INIT;
    uint64_t n;
    memcpy(&n, file->data, sizeof n);
    const char *at = file->data + sizeof n, *end = at + n, *found;
    for (; (found = memmem(at, (size_t)(end - at), old, sizeof old - 1));
         at = found + sizeof old - 1) {
        buf_add(&header, at, (size_t)(found - at));
        buf_add_str(&header, name);
    }
    buf_add(&header, at, (size_t)(end - at));
    while (header.len % 8)
        buf_add_char(&header, ' ');
    n = header.len;
    buf_add(&all, &n, sizeof n);
    buf_add(&all, header.data, header.len);
    buf_add(&all, end, (size_t)(file->data + file->len - end));
    buf_move(file, &all);
    buf_release(&header);
}

/* A folder with these; release it with folder_release. */
static inline void fp8_folder(struct folder *f, const struct fp8_inputs *in)
{
    static const char is_static[] = "\"static\"";
    struct q_err e = Q_ERR_INIT;
    struct buf text = BUF_INIT, config = BUF_INIT, file = BUF_INIT;
    struct tensor_set *s;
    folder_init(f);
    assert_ok(file_read(&text, FP8_FROM "/config.json", 1 << 16, &e), &e);
    const char *at = strstr(buf_str(&text), is_static);
    assert_non_null(at);
    buf_add(&config, text.data, (size_t)(at - text.data));
    buf_printf(&config, "\"%s\"%s", in->dynamic ? "dynamic" : "static", at + strlen(is_static));
    folder_write(f, "config.json", config.data, config.len);
    assert_ok(file_read(&file, FP8_FROM "/model.safetensors", 1 << 24, &e), &e);
    assert_ok(tensor_set_open(&s, FP8_FROM, &e), &e);
    for (int i = 0; i < FP8_MATRICES; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.%s.input_scale", fp8_matrices[i].name);
        const struct tensor *t = tensor_find(s, name);
        assert_true(t && t->dtype == DT_F32 && t->n_bytes == sizeof(float));
        memcpy(tensor_bytes_at(&file, s, t), &in->scales[i], sizeof(float));
    }
    if (in->renamed)
        fp8_rename(&file);
    folder_write(f, "model.safetensors", file.data, file.len);
    tensor_set_free(s);
    buf_release(&text);
    buf_release(&config);
    buf_release(&file);
}

struct fp8_model {
    float embed[FP8_VOCAB * FP8_HIDDEN], head[FP8_VOCAB * FP8_HIDDEN];
    float attn_norm[FP8_HIDDEN], mlp_norm[FP8_HIDDEN], norm[FP8_HIDDEN];
    float w[FP8_MATRICES][FP8_INTER * FP8_HIDDEN];
    double scales[FP8_MATRICES]; /* of inputs that are multiplied; 0: each row has its own */
    double k[FP8_TOKENS_MAX][FP8_KV * FP8_HEAD], v[FP8_TOKENS_MAX][FP8_KV * FP8_HEAD];
};

/* Of FP8_FROM; scales are all 0. */
static inline void fp8_model_read(struct fp8_model *m)
{
    static struct model_config config;
    struct weight_finder f = {.config = &config};
    struct tensor_set *files = NULL;
    struct q_err e = Q_ERR_INIT;
    memset(m->scales, 0, sizeof m->scales);
    assert_ok(model_config_load(&config, NULL, FP8_FROM, &e), &e);
    assert_ok(arch_find(&f.arch, config.architecture, &e), &e);
    assert_ok(tensor_set_open(&files, FP8_FROM, &e), &e);
    f.files = files;
    plain_read(m->embed, &f, "model.embed_tokens.weight", FP8_VOCAB, FP8_HIDDEN);
    plain_read(m->head, &f, "lm_head.weight", FP8_VOCAB, FP8_HIDDEN);
    plain_read(m->norm, &f, "model.norm.weight", 1, FP8_HIDDEN);
    plain_read(m->attn_norm, &f, "model.layers.0.input_layernorm.weight", 1, FP8_HIDDEN);
    plain_read(m->mlp_norm, &f, "model.layers.0.post_attention_layernorm.weight", 1, FP8_HIDDEN);
    for (int i = 0; i < FP8_MATRICES; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.%s.weight", fp8_matrices[i].name);
        plain_read(m->w[i], &f, name, fp8_matrices[i].rows, fp8_matrices[i].cols);
    }
    tensor_set_free(files);
}

/* To the nearest e4m3, ties to even, at most 448. */
static inline double fp8_nearest(double x)
{
    const double size = fmin(fabs(x), 448);
    const double step = size < 0x1p-6 ? 0x1p-9 : exp2(floor(log2(size)) - 3);
    return copysign(fmin(nearbyint(size / step) * step, 448), x);
}

/* y = W x as the device multiplies. */
static inline void fp8_multiply(double *y, const struct fp8_model *m, enum fp8_matrix by,
                                const double *x)
{
    const uint32_t n_in = fp8_matrices[by].cols;
    double rounded[FP8_INTER], most = 0, scale = m->scales[by];
    for (uint32_t k = 0; k < n_in; k++)
        most = fmax(most, fabs(x[k]));
    if (scale == 0)
        scale = most / 448;
    for (uint32_t k = 0; k < n_in; k++)
        rounded[k] = fp8_nearest(x[k] / scale);
    for (uint32_t o = 0; o < fp8_matrices[by].rows; o++) {
        y[o] = 0;
        for (uint32_t k = 0; k < n_in; k++)
            y[o] += (double)m->w[by][(size_t)o * n_in + k] * rounded[k] * scale;
    }
}

static inline void fp8_norm(double *y, const double *x, const float *w)
{
    double sum = 0;
    for (int i = 0; i < FP8_HIDDEN; i++)
        sum += x[i] * x[i] / FP8_HIDDEN;
    for (int i = 0; i < FP8_HIDDEN; i++)
        y[i] = x[i] / sqrt(sum + 1e-5) * (double)w[i];
}

static inline void fp8_rotate(double *heads, uint32_t n_head, uint32_t position)
{
    for (uint32_t h = 0; h < n_head; h++)
        for (uint32_t j = 0; j < FP8_HEAD / 2; j++) {
            double *a = heads + h * FP8_HEAD + j, *b = a + FP8_HEAD / 2;
            const double angle = position * pow(10000, -2.0 * j / FP8_HEAD), was = *a;
            *a = was * cos(angle) - *b * sin(angle);
            *b = *b * cos(angle) + was * sin(angle);
        }
}

static inline void fp8_attend(double *out, const struct fp8_model *m, const double *q, uint32_t at)
{
    for (uint32_t h = 0; h < FP8_HEADS; h++) {
        const uint32_t kv = h / (FP8_HEADS / FP8_KV) * FP8_HEAD;
        double p[FP8_TOKENS_MAX], total = 0, *y = out + h * FP8_HEAD;
        for (uint32_t t = 0; t <= at; t++) {
            double score = 0;
            for (uint32_t d = 0; d < FP8_HEAD; d++)
                score += q[h * FP8_HEAD + d] * m->k[t][kv + d] / sqrt(FP8_HEAD);
            total += p[t] = exp(score);
        }
        for (uint32_t d = 0; d < FP8_HEAD; d++) {
            y[d] = 0;
            for (uint32_t t = 0; t <= at; t++)
                y[d] += p[t] / total * m->v[t][kv + d];
        }
    }
}

/* log p of `next` behind token `id` at position `at`, after those before it. */
static inline double fp8_logprob(struct fp8_model *m, uint32_t id, uint32_t at, uint32_t next)
{
    double x[FP8_HIDDEN], h[FP8_HIDDEN], q[FP8_HIDDEN], a[FP8_HIDDEN], g[FP8_INTER], up[FP8_INTER];
    double total = 0, of_next = 0;
    assert_true(at < FP8_TOKENS_MAX);
    for (int i = 0; i < FP8_HIDDEN; i++)
        x[i] = (double)m->embed[id * FP8_HIDDEN + i];
    fp8_norm(h, x, m->attn_norm);
    fp8_multiply(q, m, FP8_Q, h);
    fp8_multiply(m->k[at], m, FP8_K, h);
    fp8_multiply(m->v[at], m, FP8_V, h);
    fp8_rotate(q, FP8_HEADS, at);
    fp8_rotate(m->k[at], FP8_KV, at);
    fp8_attend(a, m, q, at);
    fp8_multiply(h, m, FP8_O, a);
    for (int i = 0; i < FP8_HIDDEN; i++)
        x[i] += h[i];
    fp8_norm(h, x, m->mlp_norm);
    fp8_multiply(g, m, FP8_GATE, h);
    fp8_multiply(up, m, FP8_UP, h);
    for (int i = 0; i < FP8_INTER; i++)
        g[i] *= up[i] / (1 + exp(-g[i]));
    fp8_multiply(h, m, FP8_DOWN, g);
    for (int i = 0; i < FP8_HIDDEN; i++)
        x[i] += h[i];
    fp8_norm(h, x, m->norm);
    for (uint32_t v = 0; v < FP8_VOCAB; v++) {
        double logit = 0;
        for (int i = 0; i < FP8_HIDDEN; i++)
            logit += (double)m->head[v * FP8_HIDDEN + i] * h[i];
        total += exp(logit);
        of_next = v == next ? logit : of_next;
    }
    return of_next - log(total);
}

/* The largest difference of a greedy answer's logprobs, and its prompt's, from m's. */
static inline double fp8_worst(struct fp8_model *m, const struct golden_prompt *p,
                               const struct bits_answer *a)
{
    double worst = 0;
    assert_true(a->n_prompt == p->n - 1 && p->n + a->n <= FP8_TOKENS_MAX);
    for (uint32_t i = 0; i + 1 < p->n + a->n; i++) {
        const bool of_prompt = i + 1 < p->n;
        const struct bits_row *row = of_prompt ? &a->prompt[i] : &a->sampled[i + 1 - p->n];
        const uint32_t id = i < p->n ? p->ids[i] : a->sampled[i - p->n].token;
        assert_true(!of_prompt || row->token == p->ids[i + 1]);
        worst = fmax(worst, fabs((double)row->logprob - fp8_logprob(m, id, i, row->token)));
    }
    return worst;
}

/* That of n answers of the engine that is open. */
static inline double fp8_worst_of(struct fp8_model *m, const struct golden *g, uint32_t n)
{
    double worst = 0;
    struct q_err e = Q_ERR_INIT;
    bits_forget(&engine);
    for (uint32_t i = 0; i < n; i++) {
        const struct golden_prompt *p = &g->prompts[i % g->n];
        const struct msg_submit submit = {
            .req_id = i,
            .prompt = {p->ids, p->n},
            .top_p = 1,
            .repetition_penalty = 1,
            .max_tokens = 12,
            .ignore_eos = true,
            .n_logprob = 1,
            .n_prompt_logprob = 1,
        };
        assert_ok(core_submit(engine.core, 1, &submit, &e), &e);
    }
    finish_all(n);
    for (uint32_t i = 0; i < n; i++)
        worst = fmax(worst, fp8_worst(m, &g->prompts[i % g->n], &answers[i]));
    return worst;
}

#endif
