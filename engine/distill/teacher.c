/* SPDX-License-Identifier: Apache-2.0 */
/* A micro batch is one step of the executor: each segment is a sequence whose prompt it is. Blocks
 * of the KV cache are dealt out from the first on, so that micro batches touch the same memory. A
 * state (of convolutions, recurrences) begins with zeros in each segment and is not needed behind
 * its last row: all segments use one row of the pool, one after another. */
#include "engine/distill/teacher.h"
#include <string.h>
#include "common/mem.h"
#include "engine/model/arch.h"
#include "engine/model/model.h"
#include "engine/model/region.h"

#define SPARE_BLOCKS 16u /* of the KV cache: ends of segments */

struct teacher {
    struct model *model;
    struct team *team;
    uint32_t vocab, hidden_size, longest; /* longest: sequence that it takes */
    struct kv_cache kv;
    struct model_scratch *scratch;
    uint32_t n_row_max, n_thread;
    bool has_head;
    uint32_t *slots, *blocks, *prompts; /* [n_row_max] */
    struct attention_seq *seqs;         /* [n_row_max] */
    struct state_part *parts;           /* [n_row_max] of a stage with states; else NULL */
    struct region stream;               /* [n_row_max, hidden_size], without the head */
    struct region logits;               /* [n_logit_max, vocab_size] */
    uint32_t n_logit_max;
    bool keeps_hidden;
    struct region hidden;    /* [2][n_row_max, hidden_size] all rows; those that were asked for */
    float **taps;            /* [n_layer + 1] of the executor: the last one is `hidden` */
    struct region attention; /* [n_row_max] q, then k, then v */
    struct model_attention_tap attention_tap;
    struct attention_rows attention_rows;
    struct batch batch; /* the last one */
    uint64_t scratch_bytes;
    struct tensor_group group;
    enum q_code rc; /* of the last pass: what gathering columns has failed with, with its error */
    struct q_err e;
};

static void run(const struct teacher *t, team_fn *fn, void *arg)
{
    if (t->team)
        team_run(t->team, fn, arg);
    else
        fn(arg, 0, 1);
}

/* ---- forward ---- */

static FALLIBLE check_batch(const struct teacher *t, const struct micro_batch *b, struct q_err *e)
{
    if (b->n_row > t->n_row_max)
        return q_fail(e, Q_INVALID, "a micro batch of %u tokens, room is for %u", b->n_row,
                      t->n_row_max);
    for (uint32_t i = 0; i < b->n_row; i++)
        if (b->ids[i] >= t->vocab)
            return q_fail(e, Q_INVALID, "token %u of row %u: the teacher's vocabulary has %u",
                          b->ids[i], i, t->vocab);
    for (uint32_t i = 0; i < b->n_segment; i++)
        if (b->segments[i].n_row > t->longest)
            return q_fail(e, Q_INVALID,
                          "a sequence of %u tokens: the teacher takes %u (its "
                          "max_position_embeddings); use shorter sequences",
                          b->segments[i].n_row, t->longest);
    return Q_OK;
}

static uint32_t blocks_of(uint32_t n_row)
{
    return (n_row + KERN_BLOCK - 1) / KERN_BLOCK;
}

/* Nothing in the pool outlives a micro batch: a larger one takes its place. */
static FALLIBLE want_blocks(struct teacher *t, uint32_t n, struct q_err *e)
{
    if (n <= t->kv.n_block)
        return Q_OK;
    kv_cache_release(&t->kv);
    const enum q_code rc = kv_cache_init(&t->kv, t->model, n + n / 4, e);
    return rc || !t->parts ? rc : kv_cache_init_states(&t->kv, t->model, 1, e);
}

static void deal_blocks(struct teacher *t, const struct micro_batch *b)
{
    uint32_t n_block = 0;
    for (uint32_t i = 0; i < b->n_segment; i++) {
        const struct train_segment *g = &b->segments[i];
        t->seqs[i] = (struct attention_seq){t->blocks + n_block, g->row, g->n_row, 0};
        t->prompts[i] = g->n_row;
        if (t->parts)
            t->parts[i] =
                (struct state_part){g->row, g->n_row, 0, KERN_STATE_ZERO, KERN_STATE_NONE};
        for (uint32_t r = 0; r < g->n_row; r++)
            t->slots[g->row + r] = n_block * KERN_BLOCK + r;
        for (const uint32_t end = n_block + blocks_of(g->n_row); n_block < end; n_block++)
            t->blocks[n_block] = n_block;
        if (g->n_row > t->batch.context_max)
            t->batch.context_max = g->n_row;
    }
}

static void forward(void *arg, uint32_t ith, uint32_t nth)
{
    struct teacher *t = arg;
    model_forward(t->model, &t->batch, &t->kv, t->scratch, NULL, t->team, ith, nth);
}

static FALLIBLE run_model(struct teacher *t, const struct micro_batch *b, const float *x,
                          struct q_err *e)
{
    uint32_t n_block = 0;
    for (uint32_t i = 0; i < b->n_segment; i++)
        n_block += blocks_of(b->segments[i].n_row);
    const enum q_code rc = want_blocks(t, n_block, e);
    if (rc)
        return rc;
    t->batch = (struct batch){
        .token_ids = b->ids,
        .positions = b->positions,
        .slot_mapping = t->slots,
        .seqs = t->seqs,
        .n_token = b->n_row,
        .n_seq = b->n_segment,
        .any_row = true,
        .n_prompts = t->prompts,
        .state_parts = t->parts,
        .n_state_part = t->parts ? b->n_segment : 0,
        .stream_in = x,
        .stream_out = t->has_head ? NULL : (float *)(void *)t->stream.data,
    };
    deal_blocks(t, b);
    if (b->n_row)
        run(t, forward, t);
    return Q_OK;
}

/* The passes have no errors of their own. */
static FALLIBLE take_error(struct teacher *t, struct q_err *e)
{
    const enum q_code rc = t->rc;
    if (rc)
        *e = t->e;
    t->rc = Q_OK;
    t->e = (struct q_err)Q_ERR_INIT;
    return rc;
}

FALLIBLE teacher_forward(struct teacher *t, const struct micro_batch *b, const float *x,
                         const float **out, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_batch(t, b, e)) || (rc = run_model(t, b, x, e)))
        return rc;
    *out = t->has_head ? NULL : t->batch.stream_out;
    return take_error(t, e);
}

/* ---- logits ---- */

struct logits_job {
    struct teacher *t;
    struct batch batch;
    struct model_logits out;
};

static void logits(void *arg, uint32_t ith, uint32_t nth)
{
    const struct logits_job *j = arg;
    model_logits(j->t->model, &j->batch, j->t->scratch, &j->out, j->t->team, ith, nth);
}

static FALLIBLE want_logits(struct teacher *t, uint32_t n, struct q_err *e)
{
    const size_t row = t->vocab * sizeof(float);
    if (n <= t->n_logit_max)
        return Q_OK;
    region_release(&t->logits);
    t->n_logit_max = 0;
    const enum q_code rc = region_init(&t->logits, n * row, "a teacher's logits", e);
    t->n_logit_max = rc ? 0 : n;
    return rc;
}

static FALLIBLE model_rows(struct teacher *t, const uint32_t *rows, uint32_t n, const float **out,
                           struct q_err *e)
{
    struct logits_job j = {.t = t, .batch = t->batch};
    const enum q_code rc = want_logits(t, n, e);
    if (rc)
        return rc;
    j.batch.logit_rows = rows;
    j.batch.n_logit = n;
    j.out = (struct model_logits){(float *)(void *)t->logits.data, 0, n};
    run(t, logits, &j);
    *out = j.out.rows;
    return take_error(t, e);
}

static enum q_code logit_rows(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                              uint32_t n, struct teacher_rows *out, struct q_err *e)
{
    struct teacher *t = ctx;
    *out = (struct teacher_rows){.stride = t->vocab, .n_col = t->vocab};
    Q_ASSERT(t->has_head && b->n_row == t->batch.n_token && b->ids == t->batch.token_ids);
    return model_rows(t, rows, n, &out->z, e);
}

static enum q_code hidden_rows(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                               uint32_t n, const float **out, struct q_err *e)
{
    const struct teacher *t = ctx;
    const float *all = (const float *)(const void *)t->hidden.data;
    float *to = (float *)(void *)t->hidden.data + (size_t)t->n_row_max * t->hidden_size;
    (void)e;
    Q_ASSERT(b->n_row == t->batch.n_token && b->ids == t->batch.token_ids && n <= b->n_row);
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * t->hidden_size, all + (size_t)rows[i] * t->hidden_size,
               t->hidden_size * sizeof *to);
    *out = to;
    return Q_OK;
}

static enum q_code attention_rows(void *ctx, const struct micro_batch *b,
                                  struct attention_rows *out, struct q_err *e)
{
    const struct teacher *t = ctx;
    (void)e;
    Q_ASSERT(b->n_row == t->batch.n_token && b->ids == t->batch.token_ids);
    *out = t->attention_rows;
    return Q_OK;
}

struct teacher_source teacher_logits_source(struct teacher *t)
{
    return (struct teacher_source){
        .rows = logit_rows,
        .hidden = t->keeps_hidden ? hidden_rows : NULL,
        .attention = t->attention.data ? attention_rows : NULL,
        .ctx = t,
        .n_vocab = t->vocab,
    };
}

/* ---- life ---- */

/* Sequences are as long as a micro batch at most, so that memory for longer ones is not needed. */
static FALLIBLE choose_length(uint32_t *out, const struct teacher_options *o, struct q_err *e)
{
    struct model_config *c = q_calloc(1, sizeof *c);
    const struct arch *arch;
    enum q_code rc;
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a teacher's config");
    if (!(rc = model_config_load(c, NULL, o->dir, e)) &&
        !(rc = arch_find(&arch, c->architecture, e))) {
        const uint32_t max = model_lengths(arch, c).max;
        *out = o->n_row_max < max ? o->n_row_max : max;
    }
    q_free(c);
    return rc;
}

/* Columns of a product from all ranks; after an error none are asked for. */
static void gather_columns(void *ctx, const float *x, size_t n, float *out)
{
    struct teacher *t = ctx;
    if (!t->rc)
        t->rc = t->group.gather(t->group.ctx, x, n, out, &t->e);
}

static struct model_options model_options_of(const struct teacher_options *o, struct teacher *t)
{
    return (struct model_options){
        .dir = o->dir,
        .dtype_auto = o->dtype_auto,
        .dtype = o->dtype,
        .quantization = o->quantization,
        .stage = {o->layers.first, o->layers.n, o->layers.has_embedding, o->layers.has_head},
        .shard = {o->tensor_parallel.rank, o->tensor_parallel.size, gather_columns, t},
        .kern = o->kern,
        .team = o->team,
    };
}

static FALLIBLE load_model(struct teacher *t, const struct teacher_options *o, struct q_err *e)
{
    struct model_options m = model_options_of(o, t);
    enum q_code rc;
    if ((rc = choose_length(&m.max_model_len, o, e)) || (rc = model_load(&t->model, &m, e)))
        return rc;
    t->vocab = model_shape(t->model)->vocab_size;
    t->hidden_size = model_shape(t->model)->hidden_size;
    t->longest = model_shape(t->model)->max_model_len;
    return Q_OK;
}

static FALLIBLE make_arrays(struct teacher *t, struct q_err *e)
{
    const size_t n = t->n_row_max, row = t->hidden_size * sizeof(float);
    t->slots = q_calloc(n, sizeof *t->slots);
    t->blocks = q_calloc(n, sizeof *t->blocks);
    t->prompts = q_calloc(n, sizeof *t->prompts);
    t->seqs = q_calloc(n, sizeof *t->seqs);
    const bool has_states = model_shape(t->model)->state_bytes > 0;
    t->parts = has_states ? q_calloc(n, sizeof *t->parts) : NULL;
    if (!t->slots || !t->blocks || !t->prompts || !t->seqs || (has_states && !t->parts))
        return q_fail(e, Q_NO_MEMORY, "out of memory for a teacher's micro batch of %zu tokens", n);
    return t->has_head ? Q_OK : region_init(&t->stream, n * row, "a teacher's stream", e);
}

static FALLIBLE tap_hidden(struct teacher *t, struct q_err *e)
{
    const uint32_t n_layer = model_config(t->model)->n_layer;
    const size_t row = t->hidden_size * sizeof(float);
    enum q_code rc;
    if (!t->keeps_hidden)
        return Q_OK;
    if (!(t->taps = q_calloc(n_layer + 1, sizeof *t->taps)))
        return q_fail(e, Q_NO_MEMORY, "out of memory for a teacher's hidden states");
    if ((rc = region_init(&t->hidden, 2 * t->n_row_max * row, "a teacher's hidden states", e)))
        return rc;
    t->taps[n_layer] = (float *)(void *)t->hidden.data;
    model_scratch_tap(t->scratch, t->taps);
    return Q_OK;
}

static FALLIBLE tap_attention(struct teacher *t, const struct attention_shape *s, struct q_err *e)
{
    if (!s || !t->has_head)
        return Q_OK;
    const size_t n = t->n_row_max, q = attention_q_columns(s), kv = attention_kv_columns(s);
    enum q_code rc = region_init(&t->attention, n * (q + 2 * kv) * sizeof(float),
                                 "a teacher's queries, keys and values", e);
    if (rc)
        return rc;
    float *at = (float *)(void *)t->attention.data;
    t->attention_tap = (struct model_attention_tap){
        .layer = model_config(t->model)->n_layer - 1,
        .q = at,
        .k = at + n * q,
        .v = at + n * (q + kv),
    };
    t->attention_rows = (struct attention_rows){
        t->attention_tap.q, t->attention_tap.k, t->attention_tap.v, q, kv,
    };
    model_scratch_tap_attention(t->scratch, &t->attention_tap);
    return Q_OK;
}

static FALLIBLE load_all(struct teacher *t, const struct teacher_options *o, struct q_err *e)
{
    enum q_code rc;
    if ((rc = load_model(t, o, e)) || (rc = make_arrays(t, e)) ||
        (rc = model_scratch_new(&t->scratch, t->model, t->n_row_max, t->n_thread, e)) ||
        (rc = tap_hidden(t, e)) || (rc = tap_attention(t, o->attention, e)) ||
        (rc = want_blocks(t, blocks_of(t->n_row_max) + SPARE_BLOCKS, e)))
        return rc;
    t->scratch_bytes = model_scratch_bytes(t->model, t->n_row_max, t->n_thread);
    return Q_OK;
}

/* All of the model, and its part where it is divided into stages. */
FALLIBLE teacher_check(const struct teacher_options *o, struct q_err *e)
{
    struct model_options whole = model_options_of(o, NULL), stage = whole;
    enum q_code rc;
    whole.stage = (struct pipeline_stage){.n_layer = 0};
    if ((rc = model_check(&whole, false, e)))
        return rc;
    return o->layers.n ? model_check(&stage, false, e) : Q_OK;
}

FALLIBLE teacher_load(struct teacher **out, const struct teacher_options *o, struct q_err *e)
{
    if (o->n_row_max == 0)
        return q_fail(e, Q_INVALID, "%s: a teacher for micro batches of 0 tokens", o->dir);
    struct teacher *t = q_calloc(1, sizeof *t);
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a teacher");
    t->team = o->team;
    t->n_thread = o->team ? team_size(o->team) : 1;
    t->n_row_max = o->n_row_max;
    t->has_head = o->layers.n == 0 || o->layers.has_head;
    t->keeps_hidden = o->keeps_hidden && t->has_head;
    t->group = o->tensor_parallel;
    const enum q_code rc = load_all(t, o, e);
    if (rc) {
        teacher_free(t);
        return rc;
    }
    *out = t;
    return Q_OK;
}

void teacher_free(struct teacher *t)
{
    if (!t)
        return;
    model_scratch_free(t->scratch);
    kv_cache_release(&t->kv);
    model_free(t->model);
    region_release(&t->stream);
    region_release(&t->logits);
    region_release(&t->hidden);
    region_release(&t->attention);
    q_free(t->taps);
    q_free(t->slots);
    q_free(t->blocks);
    q_free(t->prompts);
    q_free(t->seqs);
    q_free(t->parts);
    q_free(t);
}

const struct model_config *teacher_config(const struct teacher *t)
{
    return model_config(t->model);
}

uint64_t teacher_bytes(const struct teacher *t)
{
    return model_shape(t->model)->weight_bytes + t->scratch_bytes + t->kv.memory_bytes +
           t->kv.states_bytes + t->stream.size + t->logits.size + t->hidden.size +
           t->attention.size;
}
