/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/overlap.h"
#include <string.h>

#define WIDTH 512u
#define ROWS  3u

struct room { /* on the host, and the same on the device */
    uint16_t w[WIDTH * WIDTH], h[ROWS * WIDTH];
    float gain[WIDTH], start[ROWS * WIDTH], x[ROWS * WIDTH];
    float want[ROWS * WIDTH];
};
struct chain {
    const struct device_table *t;
    struct device *d;
    const struct kern_table *k;
    struct room *host, *card;
    struct overlap_size size;
};

static void fill_buffers(struct room *r)
{
    uint64_t rng = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < sizeof r->w / sizeof *r->w; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        const float v = ((float)(rng >> 40) * 0x1p-23f - 1) / 16;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        r->w[i] = (uint16_t)(bits >> 16);
        r->gain[i % WIDTH] = 1 + v;
        r->start[i % (ROWS * WIDTH)] = 8 * v;
    }
}

/* x += W norm(x), as often as there are layers. */
static void launch_chain(const struct chain *c, struct device_stream *s)
{
    const struct kern_exec x = {.nth = 1, .stream = s};
    const struct norm_rows_args norm = {
        .y = c->card->h,
        .y_dtype = DT_BF16,
        .x = c->card->x,
        .w = c->card->gain,
        .n_row = ROWS,
        .n_col = WIDTH,
        .x_stride = WIDTH,
        .y_stride = WIDTH,
        .eps = 1e-5f,
    };
    const struct linear_args product = {
        .y = c->card->x,
        .y_dtype = DT_F32,
        .x = c->card->h,
        .x_dtype = DT_BF16,
        .w = {.data = c->card->w, .n_out = WIDTH, .n_in = WIDTH, .dtype = DT_BF16},
        .n_row = ROWS,
        .x_stride = WIDTH,
        .y_stride = WIDTH,
        .accumulate = 1,
    };
    for (uint32_t i = 0; i < c->size.n_layer; i++) {
        c->k->norm_rows(&norm, &x);
        c->k->linear(&product, &x);
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

static FALLIBLE runs(struct overlap_trial *out, const struct chain *c, struct device_stream *s,
                     struct device_graph *graph, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < c->size.n_run && !rc; i++) {
        rc = run_chain(c, s, graph, e);
        out->n_run++;
        out->n_kernel += 2 * c->size.n_layer;
        const void *bits = c->host->x, *want = c->host->want;
        out->n_wrong += memcmp(bits, want, sizeof c->host->x) != 0;
    }
    return rc;
}

static FALLIBLE run_all(struct overlap_trial *out, const struct chain *c,
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

enum q_code overlap_trial_run(struct overlap_trial *out, const struct device_link *apart,
                              const struct device_link *early, struct overlap_size size,
                              struct q_err *e)
{
    static const char what[] = "the trial of overlapping kernels";
    struct chain c = {apart->t, apart->d, apart->t->kern(apart->d), NULL, NULL, size};
    void *host = NULL, *card = NULL;
    enum q_code rc;
    *out = (struct overlap_trial){0};
    if (!(rc = c.t->host_alloc(c.d, &host, sizeof *c.host, what, e)) &&
        !(rc = c.t->alloc(c.d, &card, sizeof *c.card, what, e))) {
        c.host = host;
        c.card = card;
        fill_buffers(c.host);
        rc = run_all(out, &c, apart->s, early->s, e);
    }
    if (card)
        c.t->release(c.d, card);
    if (host)
        c.t->host_free(c.d, host);
    return rc;
}
