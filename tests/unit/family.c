/* SPDX-License-Identifier: Apache-2.0 */
#include "family.h"
#include <math.h>
#include "common/buf.h"
#include "common/mem.h"

#define HIDDEN  32u
#define INTER   40u
#define HEADS   6u /* most */
#define KV      2u
#define HEAD    8u
#define EXPERTS 6u
#define USED    2u

/* ---- the family's table ---- */

struct row {
    struct arch_tensor tensor;
    uint32_t needs; /* enum family_has: it is there with all of these */
};

static const struct row rows[] = {
    {{"embed", W_EMBED, {D_VOCAB, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"head", W_LM_HEAD, {D_VOCAB, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_LM_HEAD},
    {{"head.bias", W_LM_HEAD_BIAS, {D_VOCAB}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_LM_HEAD_BIAS},
    {{"norm", W_FINAL_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"norm.bias", W_FINAL_NORM_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_NORM_BIAS},
    {{"embed.norm", W_EMBED_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_EMBED_NORM},
    {
        {"embed.norm.bias", W_EMBED_NORM_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
        FAMILY_EMBED_NORM | FAMILY_NORM_BIAS,
    },
    {{"%u.n1", W_ATTN_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"%u.n1.bias", W_ATTN_NORM_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_NORM_BIAS},
    {{"%u.n2", W_MLP_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"%u.n2.bias", W_MLP_NORM_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_NORM_BIAS},
    {{"%u.q", W_Q, {D_Q, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"%u.k", W_K, {D_KV, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"%u.v", W_V, {D_KV, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"%u.o", W_O, {D_HIDDEN, D_Q}, SHARD_NONE, WHEN_ALWAYS}, 0},
    {{"%u.q.bias", W_Q_BIAS, {D_Q}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_BIASES},
    {{"%u.k.bias", W_K_BIAS, {D_KV}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_BIASES},
    {{"%u.v.bias", W_V_BIAS, {D_KV}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_BIASES},
    {{"%u.o.bias", W_O_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_BIASES},
    {{"%u.q_norm", W_Q_NORM, {D_HEAD}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_Q_NORM},
    {{"%u.k_norm", W_K_NORM, {D_HEAD}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_Q_NORM},
    {
        {"%u.q_norms.%u", W_Q_NORM, {D_HEADS, D_HEAD}, SHARD_NONE, WHEN_QK_NORM},
        FAMILY_HEAD_NORMS,
    },
    {
        {"%u.k_norms.%u", W_K_NORM, {D_KV_HEADS, D_HEAD}, SHARD_NONE, WHEN_QK_NORM},
        FAMILY_HEAD_NORMS,
    },
    {{"%u.gate", W_GATE, {D_INTER, D_HIDDEN}, SHARD_NONE, WHEN_DENSE}, 0},
    {{"%u.up", W_UP, {D_INTER, D_HIDDEN}, SHARD_NONE, WHEN_DENSE}, 0},
    {{"%u.up.bias", W_UP_BIAS, {D_INTER}, SHARD_NONE, WHEN_DENSE}, FAMILY_BIASES},
    {{"%u.down", W_DOWN, {D_HIDDEN, D_INTER}, SHARD_NONE, WHEN_DENSE}, 0},
    {{"%u.down.bias", W_DOWN_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_DENSE}, FAMILY_BIASES},
    {{"%u.positive", W_ACT_POSITIVE, {D_ONE}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_XIELU},
    {{"%u.negative", W_ACT_NEGATIVE, {D_ONE}, SHARD_NONE, WHEN_ALWAYS}, FAMILY_XIELU},
    {{"%u.router", W_ROUTER, {D_EXPERTS, D_HIDDEN}, SHARD_NONE, WHEN_EXPERTS}, FAMILY_EXPERTS},
    {
        {"%u.router.bias", W_ROUTER_BIAS, {D_EXPERTS}, SHARD_NONE, WHEN_EXPERTS},
        FAMILY_EXPERTS | FAMILY_ROUTER_BIAS,
    },
    {
        {"%u.%u.gate", W_EXPERT_GATE, {D_EXPERT_INTER, D_HIDDEN}, SHARD_NONE, WHEN_EXPERTS},
        FAMILY_EXPERTS,
    },
    {
        {"%u.%u.up", W_EXPERT_UP, {D_EXPERT_INTER, D_HIDDEN}, SHARD_NONE, WHEN_EXPERTS},
        FAMILY_EXPERTS,
    },
    {
        {"%u.%u.down", W_EXPERT_DOWN, {D_HIDDEN, D_EXPERT_INTER}, SHARD_NONE, WHEN_EXPERTS},
        FAMILY_EXPERTS,
    },
};

static void add_tensor(struct family_model *m, const struct arch_tensor *t)
{
    assert_true(m->arch.n_tensor < FAMILY_TENSORS_MAX);
    m->tensors[m->arch.n_tensor++] = *t;
}

static void make_arch(struct family_model *m, const struct family *f)
{
    const bool two = f->has & FAMILY_POSITIONS_2;
    m->arch = (struct arch){.name = f->name, .tensors = m->tensors, .layer = f->layer};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].needs & f->has) == rows[i].needs &&
            !(rows[i].tensor.slot == W_GATE && f->layer.mlp == ARCH_MLP_PLAIN))
            add_tensor(m, &rows[i].tensor);
    if (f->layer.gated)
        add_tensor(m, &(struct arch_tensor){
                          .name = "%u.q_gate",
                          .slot = W_Q_GATE,
                          .dims = {D_Q, D_HIDDEN},
                      });
    if (f->layer.sinks)
        add_tensor(m, &(struct arch_tensor){
                          .name = "%u.sinks",
                          .slot = W_SINKS,
                          .dims = {D_HEADS},
                      });
    if (f->layer.positions == ARCH_LEARNED)
        add_tensor(m, &(struct arch_tensor){
                          .name = "positions",
                          .slot = W_POSITIONS,
                          .dims = {two ? D_POSITIONS_2 : D_POSITIONS, D_HIDDEN},
                      });
}

static void make_config(struct model_config *c, const struct family *f)
{
    *c = (struct model_config){
        .vocab_size = FAMILY_VOCAB,
        .hidden_size = HIDDEN,
        .intermediate_size = INTER,
        .n_layer = FAMILY_LAYERS,
        .n_head = f->n_head ? f->n_head : 4,
        .n_kv_head = KV,
        .head_dim = HEAD,
        .max_position = FAMILY_TOKENS_MAX,
        .rms_norm_eps = 1e-5,
        .tie_word_embeddings = !(f->has & FAMILY_LM_HEAD),
        .window = {0, f->window},
        .no_rope = {false, f->no_rope},
        .rope = {.theta = 10000},
        .local_rope = {.theta = 100},
        .forward = f->forward,
        .dtype = DT_F32,
        .bos_id = UINT32_MAX,
    };
    snprintf(c->architecture, sizeof c->architecture, "%s", f->name);
    snprintf(c->hidden_act, sizeof c->hidden_act, "%s", f->act);
    if (f->has & FAMILY_EXPERTS) {
        c->moe = (struct moe_config){.n_expert = EXPERTS, .n_used = USED, .width = INTER};
        c->moe.layers[1] = true; /* the first layer is dense */
    }
}

/* ---- its numbers ---- */

static float draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static bool is_head_norm(const struct arch_tensor *t)
{
    return (t->slot == W_Q_NORM || t->slot == W_K_NORM) && t->dims[1];
}

static void add_numbers(struct family_model *m, const struct arch_tensor *t, struct arch_place at,
                        struct buf *header)
{
    static uint64_t state = 5;
    const bool of_head = is_head_norm(t);
    const uint32_t n_row = arch_dim_size(&m->config, t->dims[of_head]);
    const uint32_t n_col = t->dims[1] && !of_head ? arch_dim_size(&m->config, t->dims[1]) : 1;
    const size_t n = (size_t)n_row * n_col, first = m->n_number;
    const bool is_norm = t->slot == W_EMBED_NORM || t->slot == W_FINAL_NORM ||
                         t->slot == W_ATTN_NORM || t->slot == W_MLP_NORM || t->slot == W_Q_NORM ||
                         t->slot == W_K_NORM;
    const float wide = n_col > 1 ? 0.4f : 0.6f;
    char name[ARCH_NAME_MAX];
    struct q_err e = Q_ERR_INIT;
    assert_ok(q_grow(&m->numbers, &m->capacity, first + n, sizeof(float), 1u << 24, &e), &e);
    for (size_t i = 0; i < n; i++)
        m->numbers[first + i] = draw(&state) * wide + (is_norm ? 1 : 0);
    m->n_number += n;
    assert_true(m->n_entry < sizeof m->entries / sizeof *m->entries);
    m->entries[m->n_entry++] = (struct family_entry){t->slot, at, first};
    arch_tensor_name(name, t->name, at);
    buf_printf(header, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", header->len ? ',' : '{', name,
               n_row);
    if (n_col > 1)
        buf_printf(header, ",%u", n_col);
    buf_printf(header, "],\"data_offsets\":[%zu,%zu]}", first * sizeof(float),
               m->n_number * sizeof(float));
}

static void add_layer(struct family_model *m, const struct arch_tensor *t, uint32_t layer,
                      struct buf *header)
{
    const uint32_t n = is_head_norm(t)             ? arch_dim_size(&m->config, t->dims[0])
                       : t->slot >= W_EXPERT_FIRST ? EXPERTS
                                                   : 1;
    if (!arch_wants(&m->config, t->when, layer))
        return;
    for (uint32_t i = 0; i < n; i++)
        add_numbers(m, t, (struct arch_place){layer, i}, header);
}

void family_init(struct family_model *m, const struct family *f)
{
    struct buf header = BUF_INIT, file = BUF_INIT;
    *m = (struct family_model){.f = f};
    make_arch(m, f);
    make_config(&m->config, f);
    for (size_t i = 0; i < m->arch.n_tensor; i++)
        for (uint32_t k = 0; k < (m->tensors[i].slot < W_LAYER_FIRST ? 1 : FAMILY_LAYERS); k++)
            add_layer(m, &m->tensors[i], k, &header);
    buf_add_char(&header, '}');
    while (header.len % 8)
        buf_add_char(&header, ' ');
    for (int i = 0; i < 8; i++)
        buf_add_char(&file, (char)((uint64_t)header.len >> 8 * i));
    buf_add(&file, header.data, header.len);
    buf_add(&file, (const char *)m->numbers, m->n_number * sizeof(float));
    folder_init(&m->folder);
    folder_write(&m->folder, "model.safetensors", file.data, file.len);
    buf_release(&header);
    buf_release(&file);
}

void family_release(struct family_model *m)
{
    folder_release(&m->folder);
    q_free(m->numbers);
}

/* NULL: the family has no such tensor. */
static const float *find(const struct family_model *m, enum arch_slot slot, uint32_t layer,
                         uint32_t expert)
{
    for (uint32_t i = 0; i < m->n_entry; i++)
        if (m->entries[i].slot == slot && m->entries[i].at.layer == layer &&
            m->entries[i].at.expert == expert)
            return m->numbers + m->entries[i].first;
    return NULL;
}

/* ---- what it computes ---- */

static double activated(const char *act, double z)
{
    const double u = sqrt(2 / M_PI) * (z + 0.044715 * z * z * z);
    if (strcmp(act, "relu") == 0)
        return fmax(z, 0);
    if (strcmp(act, "gelu_new") == 0)
        return z / 2 * (1 + tanh(u));
    assert_string_equal(act, "silu");
    return z / (1 + exp(-z));
}

/* y = W x + b */
static void multiply(double *y, const float *w, const float *b, const double *x, uint32_t n_out,
                     uint32_t n_in)
{
    for (uint32_t o = 0; o < n_out; o++) {
        y[o] = b ? b[o] : 0;
        for (uint32_t i = 0; i < n_in; i++)
            y[o] += (double)w[(size_t)o * n_in + i] * x[i];
    }
}

static void norm(double *y, const double *x, uint32_t n, enum arch_norm kind, const float *w,
                 const float *b)
{
    double mean = 0, sum = 0;
    for (uint32_t i = 0; i < n && kind == ARCH_NORM_LAYER; i++)
        mean += x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean) / n;
    for (uint32_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(sum + 1e-5) * (double)w[i] + (b ? (double)b[i] : 0);
}

static void rotate(double *head, const struct family_model *m, uint32_t layer, uint32_t position)
{
    const bool local = m->f->layer.local_rope && m->config.window[layer];
    const double theta = local ? m->config.local_rope.theta : m->config.rope.theta;
    const bool pairs = m->f->layer.positions == ARCH_ROPE_INTERLEAVED;
    for (uint32_t j = 0; j < HEAD / 2; j++) {
        double *p = pairs ? head + 2 * j : head + j, *q = pairs ? p + 1 : p + HEAD / 2;
        const double angle = position * pow(theta, -2.0 * j / HEAD), c = cos(angle), s = sin(angle);
        const double u = *p, v = *q;
        *p = u * c - v * s;
        *q = v * c + u * s;
    }
}

struct family_at {
    uint32_t layer, row, n; /* n: rows of the sequence */
};

struct cache { /* of one layer */
    double k[FAMILY_TOKENS_MAX][KV * HEAD], v[FAMILY_TOKENS_MAX][KV * HEAD];
};

static double slope_of(const struct family_model *m, uint32_t head)
{
    static const double of_4[] = {0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8}; /* arXiv:2108.12409 */
    static const double more[] = {0x1p-1, 0x1p-3};
    const bool alibi = m->f->layer.positions == ARCH_ALIBI || m->f->forward.alibi;
    const double slope = head < 4 ? of_4[head] : more[head - 4];
    return !alibi ? 0 : m->f->layer.alibi_scaled ? slope / sqrt(HEAD) : slope;
}

/* One head's attention of the row at `at`; n: of the sequence. */
static void attend(double *out, const double *q, const struct cache *c,
                   const struct family_model *m, struct family_at at, uint32_t head)
{
    const struct forward_config *f = &m->f->forward;
    const float *sinks = find(m, W_SINKS, at.layer, 0);
    const uint32_t window = m->f->layer.windows ? m->config.window[at.layer] : 0, t0 = at.row;
    const uint32_t first = window && f->chunks         ? t0 / window * window
                           : window && t0 + 1 > window ? t0 + 1 - window
                                                       : 0;
    const uint32_t all = window && t0 + window < at.n ? t0 + window : at.n;
    const uint32_t end = m->f->layer.bidirectional ? all : t0 + 1;
    const size_t kv = head / (m->config.n_head / KV) * HEAD;
    const double scale = m->f->layer.scales && f->attention_multiplier != 0
                             ? f->attention_multiplier
                             : 1 / sqrt(HEAD);
    double p[FAMILY_TOKENS_MAX], most = sinks ? (double)sinks[head] : -INFINITY, total;
    for (uint32_t t = first; t < end; t++) {
        p[t] = -slope_of(m, head) * fabs((double)t - t0);
        for (uint32_t d = 0; d < HEAD; d++)
            p[t] += q[d] * c->k[t][kv + d] * scale;
        most = fmax(most, p[t]);
    }
    total = sinks ? exp((double)sinks[head] - most) : 0;
    for (uint32_t t = first; t < end; t++)
        total += exp(p[t] - most);
    for (uint32_t d = 0; d < HEAD; d++) {
        out[d] = 0;
        for (uint32_t t = first; t < end; t++)
            out[d] += exp(p[t] - most) / total * c->v[t][kv + d];
    }
}

static void limit(double *x, uint32_t n, double clip)
{
    for (uint32_t i = 0; i < n && clip != 0; i++)
        x[i] = fmin(fmax(x[i], -clip), clip);
}

/* A head of q, or of k, through its norm and rotated. */
static void make_head(double *head, const struct family_model *m, struct family_at at, bool of_k,
                      uint32_t i)
{
    const bool apart = m->f->layer.qk_norm == ARCH_QK_NORM_APART;
    const float *w = find(m, of_k ? W_K_NORM : W_Q_NORM, at.layer, apart ? i : 0);
    const bool alibi = m->f->forward.alibi;
    const enum arch_norm kind = apart ? m->f->layer.norm : ARCH_NORM_RMS;
    const bool behind = m->f->layer.qk_norm_behind_rope;
    if (w && !behind)
        norm(head, head, HEAD, kind, w, NULL);
    if (arch_rotates(&m->f->layer) && !alibi && !m->config.no_rope[at.layer])
        rotate(head, m, at.layer, at.row);
    if (w && behind)
        norm(head, head, HEAD, kind, w, NULL);
}

/* q, k and v of a row; k and v into the cache. Behind q, from HEADS * HEAD on, are its gates. */
static void make_qkv(double *q, const double *h, struct cache *c, const struct family_model *m,
                     struct family_at at)
{
    const uint32_t i = at.layer, n_q = m->config.n_head * HEAD;
    double *k = c->k[at.row], *v = c->v[at.row];
    const double clip = m->f->layer.clips ? m->f->forward.clip : 0;
    multiply(q, find(m, W_Q, i, 0), find(m, W_Q_BIAS, i, 0), h, n_q, HIDDEN);
    if (m->f->layer.gated)
        multiply(q + HEADS * HEAD, find(m, W_Q_GATE, i, 0), NULL, h, n_q, HIDDEN);
    multiply(k, find(m, W_K, i, 0), find(m, W_K_BIAS, i, 0), h, KV * HEAD, HIDDEN);
    multiply(v, find(m, W_V, i, 0), find(m, W_V_BIAS, i, 0), h, KV * HEAD, HIDDEN);
    limit(q, n_q, clip);
    limit(k, KV * HEAD, clip);
    limit(v, KV * HEAD, clip);
    for (uint32_t j = 0; j < m->config.n_head; j++)
        make_head(q + (size_t)j * HEAD, m, at, false, j);
    const struct forward_config *f = &m->f->forward;
    for (uint32_t j = 0; j < n_q && m->f->layer.query_growth; j++)
        q[j] *= 1 + f->query_growth * log1p(floor((at.row + f->query_first) / f->query_length));
    for (uint32_t j = 0; j < KV; j++)
        make_head(k + (size_t)j * HEAD, m, at, true, j);
}

static void attention(double *y, const double *q, const struct cache *c,
                      const struct family_model *m, struct family_at at)
{
    const uint32_t n_head = m->config.n_head;
    double a[HEADS * HEAD];
    for (uint32_t i = 0; i < n_head; i++)
        attend(a + (size_t)i * HEAD, q + (size_t)i * HEAD, c, m, at, i);
    for (uint32_t i = 0; i < n_head * HEAD && m->f->layer.gated; i++)
        a[i] /= 1 + exp(-q[HEADS * HEAD + i]);
    multiply(y, find(m, W_O, at.layer, 0), find(m, W_O_BIAS, at.layer, 0), a, HIDDEN,
             n_head * HEAD);
}

struct mlp {
    const float *gate, *up, *down, *up_bias, *down_bias;
    const float *positive, *negative; /* xIELU */
};

static double xielu(const struct mlp *w, double z)
{
    const double p = log1p(exp(*w->positive)), n = 0.5 + log1p(exp(*w->negative));
    return z / 2 + (z > 0 ? p * z * z : n * (expm1(z) - z));
}

static void mlp(double *y, const double *h, const struct mlp *w, const char *act)
{
    double g[INTER], u[INTER];
    multiply(u, w->up, w->up_bias, h, INTER, HIDDEN);
    if (w->gate)
        multiply(g, w->gate, NULL, h, INTER, HIDDEN);
    for (uint32_t i = 0; i < INTER; i++)
        u[i] = w->gate       ? activated(act, g[i]) * u[i]
               : w->positive ? xielu(w, u[i])
                             : activated(act, u[i]);
    multiply(y, w->down, w->down_bias, u, HIDDEN, INTER);
}

/* The best of those that are left; its score becomes -infinity. */
static uint32_t take_best(double *scores)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < EXPERTS; i++)
        if (scores[i] > scores[best])
            best = i;
    scores[best] = -INFINITY;
    return best;
}

static void experts(double *y, const double *h, const struct family_model *m, uint32_t layer)
{
    const bool of_top = m->f->layer.route == ARCH_ROUTE_TOP_SOFTMAX;
    double scores[EXPERTS], left[EXPERTS], one[HIDDEN], total = 0;
    uint32_t taken[USED];
    multiply(scores, find(m, W_ROUTER, layer, 0), find(m, W_ROUTER_BIAS, layer, 0), h, EXPERTS,
             HIDDEN);
    memcpy(left, scores, sizeof left);
    for (uint32_t i = 0; i < USED; i++)
        taken[i] = take_best(left);
    for (uint32_t i = 0; i < (of_top ? USED : EXPERTS); i++)
        total += exp(scores[of_top ? taken[i] : i]);
    memset(y, 0, HIDDEN * sizeof *y);
    for (uint32_t i = 0; i < USED; i++) {
        const struct mlp w = {
            .gate = find(m, W_EXPERT_GATE, layer, taken[i]),
            .up = find(m, W_EXPERT_UP, layer, taken[i]),
            .down = find(m, W_EXPERT_DOWN, layer, taken[i]),
        };
        const double weight = exp(scores[taken[i]]) / total;
        double weighed[HIDDEN];
        for (uint32_t c = 0; c < HIDDEN; c++)
            weighed[c] = m->f->layer.weighs_input ? weight * h[c] : h[c];
        mlp(one, weighed, &w, m->f->act);
        for (uint32_t c = 0; c < HIDDEN; c++)
            y[c] += m->f->layer.weighs_input ? one[c] : weight * one[c];
    }
}

static void any_mlp(double *y, const double *h, const struct family_model *m, uint32_t layer)
{
    const struct mlp w = {
        .gate = find(m, W_GATE, layer, 0),
        .up = find(m, W_UP, layer, 0),
        .down = find(m, W_DOWN, layer, 0),
        .up_bias = find(m, W_UP_BIAS, layer, 0),
        .down_bias = find(m, W_DOWN_BIAS, layer, 0),
        .positive = find(m, W_ACT_POSITIVE, layer, 0),
        .negative = find(m, W_ACT_NEGATIVE, layer, 0),
    };
    if (m->config.moe.layers[layer])
        experts(y, h, m, layer);
    else
        mlp(y, h, &w, m->f->act);
}

typedef double row_of[HIDDEN];

/* What is behind attention of one row. q: the row's. */
static void finish(double *x, const double *q, const struct cache *c, const struct family_model *m,
                   struct family_at at)
{
    const struct arch_layer *l = &m->f->layer;
    const uint32_t i = at.layer;
    const double given = m->f->forward.residual_multiplier;
    const double times = l->scales && given != 0 ? given : 1;
    const bool shared = l->residual == ARCH_RESIDUAL_SHARED_NORM;
    const bool parallel = shared || l->residual == ARCH_RESIDUAL_PARALLEL;
    double h[HIDDEN], y[HIDDEN], z[HIDDEN];
    attention(y, q, c, m, at);
    for (uint32_t k = 0; k < HIDDEN && !parallel; k++)
        x[k] += times * y[k];
    if (shared)
        norm(h, x, HIDDEN, l->norm, find(m, W_ATTN_NORM, i, 0), find(m, W_ATTN_NORM_BIAS, i, 0));
    else
        norm(h, x, HIDDEN, l->norm, find(m, W_MLP_NORM, i, 0), find(m, W_MLP_NORM_BIAS, i, 0));
    any_mlp(z, h, m, i);
    for (uint32_t k = 0; k < HIDDEN; k++)
        x[k] += times * (z[k] + (parallel ? y[k] : 0));
}

static void layer(row_of *x, const struct family_model *m, uint32_t i, uint32_t n)
{
    static struct cache c;
    static double q[FAMILY_TOKENS_MAX][2 * HEADS * HEAD];
    double h[HIDDEN];
    for (uint32_t t = 0; t < n; t++) {
        norm(h, x[t], HIDDEN, m->f->layer.norm, find(m, W_ATTN_NORM, i, 0),
             find(m, W_ATTN_NORM_BIAS, i, 0));
        make_qkv(q[t], h, &c, m, (struct family_at){i, t, n});
    }
    for (uint32_t t = 0; t < n; t++)
        finish(x[t], q[t], &c, m, (struct family_at){i, t, n});
}

static double embedding_scale(const struct family *f)
{
    if (f->layer.embedding == ARCH_EMBEDDING_ROOT_HIDDEN)
        return sqrt(HIDDEN);
    return f->layer.embedding == ARCH_EMBEDDING_CONFIG ? f->forward.embedding_multiplier : 1;
}

/* The row that layers begin with. */
static void embed(double *x, const struct family_model *m, uint32_t id, uint32_t t)
{
    const struct family *f = m->f;
    const float *table = find(m, W_EMBED, 0, 0), *positions = find(m, W_POSITIONS, 0, 0);
    const float *w = find(m, W_EMBED_NORM, 0, 0), *b = find(m, W_EMBED_NORM_BIAS, 0, 0);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        x[i] = (double)table[id * HIDDEN + i] * embedding_scale(f);
        if (positions)
            x[i] += (double)positions[(t + f->layer.first_position) * HIDDEN + i];
    }
    if (w)
        norm(x, x, HIDDEN, f->layer.norm, w, b);
}

void family_logits(double *logits, const struct family_model *m, const uint32_t *ids, uint32_t n)
{
    static row_of x[FAMILY_TOKENS_MAX];
    const struct family *f = m->f;
    const float *head = find(m, f->has & FAMILY_LM_HEAD ? W_LM_HEAD : W_EMBED, 0, 0);
    const double multiplier = f->forward.logit_multiplier;
    assert_true(n <= FAMILY_TOKENS_MAX);
    for (uint32_t t = 0; t < n; t++)
        embed(x[t], m, ids[t], t);
    for (uint32_t i = 0; i < FAMILY_LAYERS; i++)
        layer(x, m, i, n);
    for (uint32_t t = 0; t < n; t++) {
        double h[HIDDEN], *row = logits + (size_t)t * FAMILY_VOCAB;
        norm(h, x[t], HIDDEN, f->layer.norm, find(m, W_FINAL_NORM, 0, 0),
             find(m, W_FINAL_NORM_BIAS, 0, 0));
        multiply(row, head, find(m, W_LM_HEAD_BIAS, 0, 0), h, FAMILY_VOCAB, HIDDEN);
        for (uint32_t i = 0; i < FAMILY_VOCAB && f->layer.scales && multiplier != 0; i++)
            row[i] *= multiplier;
    }
}
