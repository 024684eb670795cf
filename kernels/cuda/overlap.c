/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/overlap.h"
#include <math.h>
#include <string.h>

#define WIDTH    512u
#define HEAD_DIM 128u
#define HEADS    (WIDTH / HEAD_DIM)
#define KV_HEADS 2u
#define ROWS     3u  /* sequences that decode */
#define BLOCKS   12u /* of all sequences */
#define CONTEXT  ((BLOCKS / ROWS) * KERN_BLOCK)
#define KV       (BLOCKS * KV_HEADS * KERN_BLOCK * HEAD_DIM)
#define PLAN_MAX 16384u

struct arrays {            /* on the host, and the same on the device */
    uint16_t k[KV], v[KV]; /* first: as aligned as a cache is */
    uint16_t w_q[WIDTH * WIDTH], w_o[WIDTH * WIDTH], h[ROWS * WIDTH], heads[ROWS * WIDTH];
    float gain[WIDTH], start[ROWS * WIDTH], x[ROWS * WIDTH], q[ROWS * WIDTH];
    float want[ROWS * WIDTH];
    uint32_t blocks[BLOCKS];
    struct attention_seq seqs[ROWS];
    _Alignas(16) unsigned char plan[PLAN_MAX];
};
struct chain {
    const struct device_table *t;
    struct device *d;
    const struct kern_table *k;
    struct arrays *host, *card;
    void *scratch;
    size_t scratch_bytes;
    struct overlap_size size;
};

static const struct device_limits limits = {
    .n_row_max = ROWS,
    .n_seq_max = ROWS,
    .n_logit_max = 1,
    .context_max = CONTEXT,
    .n_head = HEADS,
    .n_kv_head = KV_HEADS,
    .head_dim = HEAD_DIM,
    .hidden_size = WIDTH,
    .intermediate_size = WIDTH,
    .vocab_size = 1,
    .kv_dtype = DT_BF16,
};

static void fill_bf16(uint64_t *rng, uint16_t *to, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        to[i] = f32_to_bf16(scale * trial_draw_f32(rng));
}

static FALLIBLE fill_arrays(const struct chain *c, struct q_err *e)
{
    struct arrays *h = c->host;
    uint64_t rng = TRIAL_SEED;
    if (c->t->plan_bytes(c->d, &limits) > PLAN_MAX)
        return q_fail(e, Q_NO_SPACE,
                      "trial of overlapping kernels: the plan has %zu bytes, the buffer %u",
                      c->t->plan_bytes(c->d, &limits), PLAN_MAX);
    fill_bf16(&rng, h->k, KV, 1);
    fill_bf16(&rng, h->v, KV, 1);
    fill_bf16(&rng, h->w_q, WIDTH * WIDTH, 1.0f / 16);
    fill_bf16(&rng, h->w_o, WIDTH * WIDTH, 1.0f / 16);
    for (uint32_t i = 0; i < WIDTH; i++)
        h->gain[i] = 1 + trial_draw_f32(&rng) / 16;
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        h->start[i] = trial_draw_f32(&rng) / 2;
    for (uint32_t i = 0; i < BLOCKS; i++)
        h->blocks[i] = i * 5 % BLOCKS;
    for (uint32_t s = 0; s < ROWS; s++) /* lengths that end within a block */
        h->seqs[s] = (struct attention_seq){c->card->blocks + s * (BLOCKS / ROWS), s, 1,
                                            CONTEXT - 1 - 7 * (s + 1)};
    c->t->plan(c->d, h->plan, &limits, h->seqs, ROWS);
    return Q_OK;
}

static struct linear_args product_of(void *y, const void *x, const void *w)
{
    return (struct linear_args){
        .y = y,
        .y_dtype = DT_F32,
        .x = x,
        .x_dtype = DT_BF16,
        .w = {.data = w, .n_out = WIDTH, .n_in = WIDTH, .dtype = DT_BF16},
        .n_row = ROWS,
        .x_stride = WIDTH,
        .y_stride = WIDTH,
    };
}

/* x += W_o attention(W_q norm(x)), as often as there are layers. */
static void launch_chain(const struct chain *c, struct device_stream *s)
{
    const struct kern_exec x = {
        .nth = 1,
        .scratch = c->scratch,
        .scratch_bytes = c->scratch_bytes,
        .stream = s,
    };
    struct arrays *card = c->card;
    const struct norm_rows_args norm = {
        .y = card->h,
        .y_dtype = DT_BF16,
        .x = card->x,
        .w = card->gain,
        .n_row = ROWS,
        .n_col = WIDTH,
        .x_stride = WIDTH,
        .y_stride = WIDTH,
        .eps = 1e-5f,
    };
    const struct attention_args attention = {
        .out = card->heads,
        .out_dtype = DT_BF16,
        .q = card->q,
        .out_stride = WIDTH,
        .q_stride = WIDTH,
        .k_cache = card->k,
        .v_cache = card->v,
        .kv_dtype = DT_BF16,
        .seqs = card->seqs,
        .n_seq = ROWS,
        .n_head = HEADS,
        .n_kv_head = KV_HEADS,
        .head_dim = HEAD_DIM,
        .context_max = CONTEXT,
        .scale = 1.0f / sqrtf((float)HEAD_DIM),
        .plan = card->plan,
        .n_row = ROWS,
    };
    const struct linear_args q = product_of(card->q, card->h, card->w_q);
    struct linear_args o = product_of(card->x, card->heads, card->w_o);
    o.accumulate = 1;
    for (uint32_t i = 0; i < c->size.n_layer; i++) {
        c->k->norm_rows(&norm, &x);
        c->k->linear(&q, &x);
        c->k->attention(&attention, &x);
        c->k->linear(&o, &x);
    }
}

/* One run, by `graph` if it is not NULL; the result is in host->x. */
static FALLIBLE run_chain(const struct chain *c, struct device_stream *s,
                          struct device_graph *graph, struct q_err *e)
{
    enum q_code rc;
    c->t->copy(s, c->card->x, c->card->start, sizeof c->card->x);
    if (graph)
        c->t->graph_launch(graph, s);
    else
        launch_chain(c, s);
    c->t->copy(s, c->host->x, c->card->x, sizeof c->host->x);
    return (rc = c->t->sync(s, e)) ? rc : c->t->check(c->d, e);
}

static FALLIBLE runs(struct trial_result *out, const struct chain *c, struct device_stream *s,
                     struct device_graph *graph, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < c->size.n_run && !rc; i++) {
        rc = run_chain(c, s, graph, e);
        const void *bits = c->host->x, *want = c->host->want;
        out->n++;
        out->n_differ += memcmp(bits, want, sizeof c->host->x) != 0;
    }
    return rc;
}

static FALLIBLE run_all(struct trial_result *out, const struct chain *c,
                        struct device_stream *apart, struct device_stream *early, struct q_err *e)
{
    struct device_graph *graph = NULL;
    enum q_code rc;
    c->t->copy(apart, c->card, c->host, sizeof *c->host);
    if ((rc = run_chain(c, apart, NULL, e)))
        return rc;
    memcpy(c->host->want, c->host->x, sizeof c->host->want);
    if ((rc = runs(out, c, early, NULL, e)) || (rc = c->t->graph_begin(early, e)))
        return rc;
    launch_chain(c, early);
    if (!(rc = c->t->graph_end(early, &graph, e)))
        rc = runs(out, c, early, graph, e);
    c->t->graph_free(graph);
    return rc;
}

enum q_code overlap_trial_run(struct trial_result *out, const struct device_link *apart,
                              const struct device_link *early, struct overlap_size size,
                              struct q_err *e)
{
    static const char what[] = "the trial of overlapping kernels";
    struct chain c = {.t = apart->t, .d = apart->d, .k = apart->t->kern(apart->d), .size = size};
    void *host = NULL, *card = NULL;
    enum q_code rc;
    *out = (struct trial_result){0};
    c.scratch_bytes = c.t->workspace_bytes(c.d, &limits);
    if (!(rc = c.t->host_alloc(c.d, &host, sizeof *c.host, what, e)) &&
        !(rc = c.t->alloc(c.d, &card, sizeof *c.card, what, e)) &&
        !(rc = c.t->alloc(c.d, &c.scratch, c.scratch_bytes, what, e))) {
        c.host = host;
        c.card = card;
        if (!(rc = fill_arrays(&c, e)))
            rc = run_all(out, &c, apart->s, early->s, e);
    }
    if (c.scratch)
        c.t->release(c.d, c.scratch);
    if (card)
        c.t->release(c.d, card);
    if (host)
        c.t->host_free(c.d, host);
    return rc;
}
