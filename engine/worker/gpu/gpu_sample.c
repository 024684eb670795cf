/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling on the device. The host sends for each row its parameters, the position in the histories
 * at which its token is written, its biases and, if tokens are masked, one bit per token. The host
 * computes the masks (sample_mask) while the forward pass runs. The device returns tokens and, if
 * requested, logprobs and alternatives.
 *
 *   to device   struct sample_row [n_logit] | u32 position [n_logit] | u32 bias id [] | f32 bias []
 *   to host     struct sample_pick [n_logit] | u32 id [n_logit][20] | f32 logprob [n_logit][20] */
#include <string.h>
#include "engine/worker/gpu/gpu_internal.h"

static size_t words_of(const struct gpu *g)
{
    return SAMPLE_MASK_WORDS(g->model.limits.vocab_size);
}

static size_t places_at(uint32_t n)
{
    return n * sizeof(struct sample_row);
}

static size_t biases_at(uint32_t n)
{
    return places_at(n) + n * sizeof(uint32_t);
}

static size_t ids_at(const struct gpu *g)
{
    return g->model.limits.n_logit_max * sizeof(struct sample_pick);
}

static size_t logprobs_at(const struct gpu *g)
{
    return ids_at(g) + (size_t)g->model.limits.n_logit_max * SAMPLE_TOP_MAX * sizeof(uint32_t);
}

static size_t picks_bytes(const struct gpu *g)
{
    return logprobs_at(g) + (size_t)g->model.limits.n_logit_max * SAMPLE_TOP_MAX * sizeof(float);
}

FALLIBLE gpu_sampling_make(struct gpu *g, struct q_err *e)
{
    const struct device_table *t = g->link.t;
    const uint32_t n = g->model.limits.n_logit_max, n_seq = g->model.limits.n_seq_max;
    const size_t down = biases_at(n) + (size_t)n_seq * SAMPLE_BIAS_MAX * 2 * sizeof(uint32_t);
    const size_t masks = n * words_of(g) * sizeof(uint32_t);
    struct gpu_sampling *s = &g->sampling;
    enum q_code rc;
    void *p;
    if (!t->kern(g->link.d)->sample)
        return Q_OK;
    if ((rc = t->alloc(g->link.d, &p, down, "sampling", e)))
        return rc;
    s->device = p;
    if ((rc = t->alloc(g->link.d, &p, masks, "masks of tokens", e)))
        return rc;
    s->device_masks = p;
    if ((rc = t->alloc(g->link.d, &p, picks_bytes(g), "sampled tokens", e)))
        return rc;
    s->device_picks = p;
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        if ((rc = t->host_alloc(g->link.d, &p, down, "sampling", e)))
            return rc;
        s->host[i] = p;
        if ((rc = t->host_alloc(g->link.d, &p, masks, "masks of tokens", e)))
            return rc;
        s->masks[i] = p;
        if ((rc = t->host_alloc(g->link.d, &p, picks_bytes(g), "sampled tokens", e)))
            return rc;
        s->picks[i] = p;
    }
    return Q_OK;
}

void gpu_sampling_release(struct gpu *g)
{
    const struct device_table *t = g->link.t;
    struct gpu_sampling *s = &g->sampling;
    t->release(g->link.d, s->device);
    t->release(g->link.d, s->device_masks);
    t->release(g->link.d, s->device_picks);
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        t->host_free(g->link.d, s->host[i]);
        t->host_free(g->link.d, s->masks[i]);
        t->host_free(g->link.d, s->picks[i]);
    }
}

bool gpu_samples(const struct gpu *g, const struct logit_row *row)
{
    const struct slot *slot = row->slot;
    const struct sample_params *p = &slot->params;
    const uint32_t n_vocab = g->model.limits.vocab_size;
    /* Ids of the history that are no tokens: penalties and logprobs of the device index with them.
     */
    const bool no_token = row->is_prompt ? slot->history[row->position] >= n_vocab
                                         : slot->has_items && sample_penalizes(p);
    return g->sampling.device && row->n_top <= SAMPLE_TOP_MAX && !no_token;
}

struct filling { /* one step's parameters in host memory */
    struct gpu *g;
    const struct slots *s;
    struct masks *masks;
    struct sample_row *rows;
    uint32_t *places, *bias_ids, *bits;
    float *biases;
    uint32_t n_bias, n_mask;
    bool logprobs;
};

static void fill_known(const struct filling *f, uint32_t i)
{
    const struct logit_row *row = &f->s->rows[i];
    f->rows[i] = (struct sample_row){
        .top_p = 1,
        .repetition = 1,
        .flags = SAMPLE_KNOWN | SAMPLE_LOGPROB,
        .token = row->slot->history[row->position],
        .history = row->i_slot,
        .mask = SAMPLE_NO_MASK,
        .n_top = row->n_top,
    };
}

/* Rows of one sequence have one list. */
static bool shares_biases(const struct slots *s, uint32_t i)
{
    return i && !s->rows[i - 1].is_prompt && s->rows[i - 1].i_slot == s->rows[i].i_slot;
}

static uint32_t count_biases(const struct slots *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->batch.n_logit; i++)
        if (!s->rows[i].is_prompt && !shares_biases(s, i))
            n += s->rows[i].slot->params.n_bias;
    return n;
}

static void fill_biases(struct filling *f, uint32_t i)
{
    const struct sample_params *p = &f->s->rows[i].slot->params;
    f->rows[i].n_bias = p->n_bias;
    f->rows[i].bias_start = f->n_bias;
    if (shares_biases(f->s, i)) {
        f->rows[i].bias_start = f->n_bias - p->n_bias;
        return;
    }
    memcpy(f->bias_ids + f->n_bias, p->bias_ids, p->n_bias * sizeof *f->bias_ids);
    memcpy(f->biases + f->n_bias, p->bias, p->n_bias * sizeof *f->biases);
    f->n_bias += p->n_bias;
}

static void fill_sampled(struct filling *f, uint32_t i)
{
    const struct logit_row *row = &f->s->rows[i];
    const struct sample_params *p = &row->slot->params;
    const struct sample_input in = slots_input(
        row, slots_masks(row->slot) ? masks_wait(f->masks, i) : (struct row_mask){NULL, NULL});
    uint32_t *bits = f->bits + f->n_mask * words_of(f->g);
    const bool masked = sample_mask(bits, &in, f->s->vocab_size);
    uint32_t flags = p->n_logprob != SAMPLE_NO_LOGPROBS ? SAMPLE_LOGPROB : 0;
    if (p->adjusted_logprobs)
        flags |= SAMPLE_ADJUSTED;
    f->rows[i] = (struct sample_row){
        .seed = p->seed,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .repetition = p->repetition_penalty,
        .presence = p->presence_penalty,
        .frequency = p->frequency_penalty,
        .top_n_sigma = p->top_n_sigma,
        .flags = flags,
        .history = row->i_slot,
        .n_known = row->position,
        .n_prompt = row->slot->n_prompt,
        .mask = masked ? f->n_mask : SAMPLE_NO_MASK,
        .n_top = row->n_top,
    };
    f->n_mask += masked;
    f->logprobs |= flags & SAMPLE_LOGPROB;
    fill_biases(f, i);
}

/* Where the row's token goes: behind the history, unless draft tokens decide whether it is one of
 * its sequence, or there is no room. */
static uint32_t place_of(struct gpu *g, const struct slots *s, uint32_t i)
{
    const struct logit_row *row = &s->rows[i];
    if (row->is_prompt || row->slot->n_draft_token || row->position >= g->history_len)
        return KERN_NO_SLOT;
    g->sent[row->i_slot].n_token = row->position + 1;
    return (uint32_t)gpu_history_at(g, row->i_slot, row->position);
}

static void fill_rows(struct filling *f)
{
    for (uint32_t i = 0; i < f->s->batch.n_logit; i++) {
        const struct logit_row *row = &f->s->rows[i];
        f->places[i] = KERN_NO_SLOT;
        if (!gpu_samples(f->g, row)) {
            f->rows[i] = (struct sample_row){.flags = SAMPLE_SKIP};
            continue;
        }
        if (row->is_prompt)
            fill_known(f, i);
        else
            fill_sampled(f, i);
        f->logprobs |= row->is_prompt;
        f->places[i] = place_of(f->g, f->s, i);
    }
}

/* Copy the samples to the host, and the alternatives if there are any. */
static void bring_picks(const struct gpu *g, uint32_t n, bool logprobs)
{
    const struct device_table *t = g->link.t;
    const struct gpu_sampling *q = &g->sampling;
    const size_t top = (size_t)n * SAMPLE_TOP_MAX * sizeof(uint32_t);
    unsigned char *host = q->picks[g->i_buffer];
    t->copy(g->link.s, host, q->device_picks, n * sizeof(struct sample_pick));
    if (!logprobs)
        return;
    t->copy(g->link.s, host + ids_at(g), q->device_picks + ids_at(g), top);
    t->copy(g->link.s, host + logprobs_at(g), q->device_picks + logprobs_at(g), top);
}

void gpu_sample(struct gpu *g, const struct slots *s, struct masks *masks)
{
    const struct device_table *t = g->link.t;
    const struct gpu_sampling *q = &g->sampling;
    const uint32_t n = s->batch.n_logit, n_bias = count_biases(s);
    const size_t ids = biases_at(n), values = ids + n_bias * sizeof(uint32_t);
    unsigned char *host = q->host[g->i_buffer];
    struct filling f = {
        .g = g,
        .s = s,
        .masks = masks,
        .rows = (struct sample_row *)(void *)host,
        .places = (uint32_t *)(void *)(host + places_at(n)),
        .bias_ids = (uint32_t *)(void *)(host + ids),
        .biases = (float *)(void *)(host + values),
        .bits = q->masks[g->i_buffer],
    };
    fill_rows(&f);
    t->event_record(gpu_events_now(g)->picking, g->link.s);
    t->copy(g->link.s, q->device, host, values + n_bias * sizeof(float));
    if (f.n_mask)
        t->copy(g->link.s, q->device_masks, f.bits, f.n_mask * words_of(g) * sizeof *f.bits);
    const struct sample_args a = {
        .x = g->model.logits,
        .x_stride = g->model.limits.vocab_size,
        .rows = (const void *)q->device,
        .n_row = n,
        .n_vocab = g->model.limits.vocab_size,
        .histories = g->words + g->histories,
        .history_stride = g->history_len,
        .masks = q->device_masks,
        .bias_ids = (const void *)(q->device + ids),
        .bias = (const void *)(q->device + values),
        .out = (void *)q->device_picks,
        .top_ids = (void *)(q->device_picks + ids_at(g)),
        .top_logprobs = (void *)(q->device_picks + logprobs_at(g)),
    };
    const struct kern_exec *x = executor_device_exec(g->model.executor);
    t->kern(g->link.d)->sample(&a, x);
    const struct scatter_args append = {
        .dst = g->words,
        .at = (const void *)(q->device + places_at(n)),
        .value = (const void *)q->device_picks,
        .n = n,
        .step = sizeof(struct sample_pick) / sizeof(uint32_t),
        .limit = a.n_vocab,
    };
    t->kern(g->link.d)->scatter(&append, x);
    bring_picks(g, n, f.logprobs);
}

void gpu_row(const struct gpu *g, uint64_t n, uint32_t i_row, uint32_t n_top,
             const struct sample_result *out)
{
    const unsigned char *picks = g->sampling.picks[n % GPU_STEPS];
    const struct sample_pick *pick = (const struct sample_pick *)(const void *)picks + i_row;
    const bool wanted = n_top != SAMPLE_NO_LOGPROBS, bad = pick->token == SAMPLE_BAD;
    struct step_row *row = out->row;
    row->token = pick->token;
    row->rank = wanted || bad ? pick->rank : 0;
    row->logprob = wanted && !bad ? pick->logprob : 0;
    row->n_top = wanted && !bad ? pick->n_top : 0;
    const size_t at = (size_t)i_row * SAMPLE_TOP_MAX * sizeof(uint32_t);
    memcpy(out->top_ids, picks + ids_at(g) + at, row->n_top * sizeof *out->top_ids);
    memcpy(out->top_logprobs, picks + logprobs_at(g) + at, row->n_top * sizeof *out->top_logprobs);
}
