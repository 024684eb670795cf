/* SPDX-License-Identifier: Apache-2.0 */
/* Truncation has two implementations. With a small top_k the candidates are a short list (heap),
 * and min_p, top_p and the draw work on that list, best first. Otherwise the row of logits is
 * replaced by a row of weights, truncation sets elements to zero, and the draw scans the sums of
 * chunks and then one chunk, in order of ids. The choice depends on the parameters only, so a
 * request gives the same tokens in every run.
 *
 * Penalties count the tokens of the history in a dense array that is zero between rows, then
 * iterate over the history again to apply and clear the counts. No state is kept between steps, so
 * preemption and replay restore nothing. */
#include "engine/worker/sample.h"
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/worker/philox.h"
#include "engine/worker/select.h"

#define TEMPERATURE_MIN \
    0.01f /* below this, exp((x - max) / t) would be all zeros but one anyway \
           */
#define SEEN_IN_PROMPT (1u << 31)

static uint32_t items_of(uint32_t n_vocab) /* room for the items of ROW_BETWEEN */
{
    return (n_vocab > SAMPLE_HEAP_MAX ? n_vocab : SAMPLE_HEAP_MAX) + 16;
}

FALLIBLE sample_scratch_init(struct sample_scratch *s, uint32_t n_vocab,
                             const struct kern_table *kern, struct q_err *e)
{
    *s = (struct sample_scratch)SAMPLE_SCRATCH_INIT;
    s->n_vocab = n_vocab;
    s->kern = kern;
    s->counts = q_calloc(n_vocab, sizeof *s->counts);
    s->raw = q_calloc(n_vocab, sizeof *s->raw);
    s->chunk_sums = q_calloc(n_vocab / SAMPLE_CHUNK + 1, sizeof *s->chunk_sums);
    s->part_sums = q_calloc(n_vocab / SAMPLE_CHUNK + 1, sizeof *s->part_sums);
    s->masses = q_calloc(SAMPLE_BUCKETS, sizeof *s->masses);
    s->bucket_counts = q_calloc(SAMPLE_BUCKETS, sizeof *s->bucket_counts);
    s->items = q_calloc(items_of(n_vocab), sizeof *s->items);
    if (s->counts && s->raw && s->chunk_sums && s->part_sums && s->masses && s->bucket_counts &&
        s->items)
        return Q_OK;
    sample_scratch_release(s);
    return q_fail(e, Q_NO_MEMORY, "sample: out of memory for a vocabulary of %u tokens", n_vocab);
}

uint64_t sample_scratch_bytes(uint32_t n_vocab)
{
    const struct sample_scratch *s = NULL;
    uint64_t n_item = items_of(n_vocab);
    return (sizeof *s->counts + sizeof *s->raw) * (uint64_t)n_vocab +
           2 * sizeof *s->chunk_sums * (n_vocab / SAMPLE_CHUNK + 1) +
           (sizeof *s->masses + sizeof *s->bucket_counts) * SAMPLE_BUCKETS +
           sizeof *s->items * n_item;
}

void sample_scratch_release(struct sample_scratch *s)
{
    q_free(s->counts);
    q_free(s->raw);
    q_free(s->chunk_sums);
    q_free(s->part_sums);
    q_free(s->masses);
    q_free(s->bucket_counts);
    q_free(s->items);
    *s = (struct sample_scratch)SAMPLE_SCRATCH_INIT;
}

/* Placeholders of items are no tokens. */
static void penalize(float *logits, const struct sample_input *in, const struct sample_scratch *s)
{
    const struct sample_params *p = in->params;
    uint32_t *counts = s->counts;
    for (uint32_t i = 0; i < in->n_known; i++) {
        uint32_t id = in->history[i];
        if (id >= s->n_vocab)
            continue;
        counts[id] = i < in->n_prompt ? counts[id] | SEEN_IN_PROMPT : counts[id] + 1;
    }
    for (uint32_t i = 0; i < in->n_known; i++) {
        uint32_t id = in->history[i];
        uint32_t seen = id < s->n_vocab ? counts[id] : 0;
        if (!seen)
            continue; /* applied at an earlier place of the same token */
        counts[id] = 0;
        float x = logits[id];
        x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        uint32_t n_output = seen & ~SEEN_IN_PROMPT;
        if (n_output)
            x = x - p->frequency_penalty * (float)n_output - p->presence_penalty;
        logits[id] = x;
    }
}

static void mask_bits(float *logits, const uint32_t *bits, uint32_t n_vocab)
{
    for (uint32_t w = 0; w * 32 < n_vocab; w++) {
        uint32_t n = n_vocab - w * 32 < 32 ? n_vocab - w * 32 : 32;
        for (uint32_t i = 0; bits[w] != UINT32_MAX && i < n; i++)
            if (!(bits[w] >> i & 1))
                logits[w * 32 + i] = -INFINITY;
    }
}

/* The target of masks: logits that become -inf, or bits that become 0. */
struct masked {
    float *logits;  /* NULL: bits */
    uint32_t *bits; /* [SAMPLE_MASK_WORDS] */
    uint32_t n_vocab;
};

static void mask_id(const struct masked *m, uint32_t id)
{
    if (id >= m->n_vocab) /* a placeholder of an item */
        return;
    if (m->logits) {
        m->logits[id] = -INFINITY;
        return;
    }
    Q_ASSERT(m->bits);
    m->bits[id / 32] &= ~(1u << id % 32);
}

static void mask_but(const struct masked *m, const uint32_t *bits, uint32_t n_vocab)
{
    if (m->logits) {
        mask_bits(m->logits, bits, n_vocab);
        return;
    }
    Q_ASSERT(m->bits);
    for (size_t i = 0; i < SAMPLE_MASK_WORDS(n_vocab); i++)
        m->bits[i] &= bits[i];
}

/* An id that is none leaves no token. */
static void mask_but_one(const struct masked *m, uint32_t id, uint32_t n_vocab)
{
    if (m->logits) {
        for (uint32_t i = 0; i < n_vocab; i++)
            if (i != id)
                m->logits[i] = -INFINITY;
        return;
    }
    Q_ASSERT(m->bits);
    memset(m->bits, 0, SAMPLE_MASK_WORDS(n_vocab) * sizeof *m->bits);
    if (id < n_vocab)
        m->bits[id / 32] |= 1u << id % 32;
}

/* The last id of each sequence whose other ids end the output. */
static void mask_bad_words(const struct masked *m, const struct sample_input *in)
{
    const uint32_t *words = in->params->bad_words;
    uint32_t n_output = in->n_known - in->n_prompt, n;
    for (uint32_t i = 0; i < in->params->n_bad; i += 1 + n) {
        const uint32_t *ids = words + i + 1;
        n = words[i];
        if (n - 1 <= n_output &&
            !memcmp(in->history + in->n_known - (n - 1), ids, (n - 1) * sizeof *ids))
            mask_id(m, ids[n - 1]);
    }
}

/* Mask the tokens that followed every earlier occurrence of the last size - 1 tokens. */
static void mask_repeated(const struct masked *m, const struct sample_input *in)
{
    uint32_t n = in->params->no_repeat_ngram - 1, window = in->params->no_repeat_window;
    uint32_t start = window && window < in->n_known ? in->n_known - window : 0;
    const uint32_t *tail = in->history + in->n_known - n;
    if (in->n_known <= n)
        return;
    for (uint32_t i = start; i + n < in->n_known; i++)
        if (!memcmp(in->history + i, tail, n * sizeof *tail))
            mask_id(m, in->history[i + n]);
}

/* The grammar's text is whole and nothing may follow it. */
static bool only_stops(const struct sample_input *in, uint32_t n_vocab)
{
    const struct sample_params *p = in->params;
    uint32_t n = 0, n_stop = 0;
    for (size_t i = 0; in->grammar && i < SAMPLE_MASK_WORDS(n_vocab); i++)
        n += (uint32_t)__builtin_popcount(in->grammar[i]);
    for (uint32_t i = 0; in->grammar && n <= STEP_STOP_IDS_MAX && i < p->n_stop_id; i++)
        n_stop += p->stop_ids[i] < n_vocab &&
                  (in->grammar[p->stop_ids[i] / 32] >> p->stop_ids[i] % 32 & 1);
    return in->grammar && n && n_stop >= n;
}

static void mask(const struct masked *m, const struct sample_input *in, uint32_t n_vocab)
{
    const struct sample_params *p = in->params;
    if (in->forced) {
        mask_but_one(m, *in->forced, n_vocab);
        return;
    }
    if (in->grammar)
        mask_but(m, in->grammar, n_vocab);
    if (in->allowed)
        mask_but(m, in->allowed, n_vocab);
    mask_bad_words(m, in);
    if (p->no_repeat_ngram)
        mask_repeated(m, in);
    if (in->n_known - in->n_prompt < p->min_tokens && !only_stops(in, n_vocab))
        for (uint32_t i = 0; i < p->n_stop_id; i++)
            if (p->stop_ids[i] < n_vocab)
                mask_id(m, p->stop_ids[i]);
}

bool sample_has_mask(const struct sample_input *in)
{
    const struct sample_params *p = in->params;
    return in->grammar || in->allowed || p->n_bad || p->n_thinking || p->min_tokens ||
           p->no_repeat_ngram;
}

bool sample_mask(uint32_t *bits, const struct sample_input *in, uint32_t n_vocab)
{
    const struct sample_params *p = in->params;
    if (!in->grammar && !in->forced && !in->allowed && !p->n_bad && !p->no_repeat_ngram &&
        in->n_known - in->n_prompt >= p->min_tokens)
        return false;
    memset(bits, 0xff, SAMPLE_MASK_WORDS(n_vocab) * sizeof *bits);
    mask(&(struct masked){.bits = bits, .n_vocab = n_vocab}, in, n_vocab);
    return true;
}

void sample_adjust(float *logits, const struct sample_input *in, struct sample_scratch *s)
{
    const struct sample_params *p = in->params;
    mask(&(struct masked){.logits = logits, .n_vocab = s->n_vocab}, in, s->n_vocab);
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias_ids[i] < s->n_vocab)
            logits[p->bias_ids[i]] += p->bias[i];
    if (sample_penalizes(p))
        penalize(logits, in, s);
}

uint32_t sample_greedy(const float *logits, uint32_t n_vocab)
{
    uint32_t best;
    return select_best(logits, n_vocab, &best) ? best : SAMPLE_BAD;
}

static float temperature_of(const struct sample_params *p)
{
    return p->temperature < TEMPERATURE_MIN ? TEMPERATURE_MIN : p->temperature;
}

/* Candidates as a list: the best top_k, min_p and top_p applied to it. */
static void filter_list(struct sample_dist *d, const float *logits, float max,
                        const struct sample_params *p, struct sample_scratch *s)
{
    float temperature = temperature_of(p);
    uint32_t n = select_top(logits, s->n_vocab, p->top_k, s->items);
    double sum = 0;
    uint32_t n_kept = 0;
    for (; n_kept < n; n_kept++) {
        float w = select_exp((s->items[n_kept].value - max) / temperature);
        if (n_kept && (w < p->min_p || w == 0.0f))
            break;
        s->items[n_kept].value = w;
        sum += (double)w;
    }
    double limit = (double)p->top_p * sum, total = 0;
    uint32_t n_left = 0;
    while (n_left < n_kept && (n_left == 0 || p->top_p >= 1.0f || total < limit))
        total += (double)s->items[n_left++].value;
    *d = (struct sample_dist){.items = s->items, .n = n_left, .total = total};
}

static void filter_dense(struct sample_dist *d, float *logits, float max,
                         const struct sample_params *p, struct sample_scratch *s)
{
    double total = select_weights(logits, max, temperature_of(p), p->min_p, s);
    if (p->top_k && p->top_k < s->n_vocab)
        total = select_cut(logits, SELECT_COUNT, p->top_k, s);
    if (p->top_p < 1.0f)
        total = select_cut(logits, SELECT_MASS, (double)p->top_p * total, s);
    *d = (struct sample_dist){.weights = logits, .n = s->n_vocab, .total = total};
}

/* Logits far below the largest become -inf: mean and deviation are of the finite ones. */
static void cut_sigma(float *logits, float max, float n_sigma, uint32_t n_vocab)
{
    double sum = 0, square = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] != -INFINITY) {
            sum += (double)logits[i];
            n++;
        }
    double mean = sum / n;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] != -INFINITY) {
            double d = (double)logits[i] - mean;
            square += d * d;
        }
    double limit = (double)max - (double)n_sigma * sqrt(square / n);
    for (uint32_t i = 0; i < n_vocab; i++)
        if ((double)logits[i] < limit)
            logits[i] = -INFINITY;
}

bool sample_filter(struct sample_dist *d, float *logits, const struct sample_params *p,
                   struct sample_scratch *s)
{
    float max;
    if (!select_max(logits, s, &max))
        return false;
    if (max ==
        INFINITY) { /* differences would be NaN: the first infinite logit has all the probability */
        s->items[0] = (struct row_item){1.0f, sample_greedy(logits, s->n_vocab)};
        *d = (struct sample_dist){.items = s->items, .n = 1, .total = 1.0};
        return true;
    }
    if (p->top_n_sigma > 0)
        cut_sigma(logits, max, p->top_n_sigma, s->n_vocab);
    if (p->top_k && p->top_k <= SAMPLE_HEAP_MAX)
        filter_list(d, logits, max, p, s);
    else
        filter_dense(d, logits, max, p, s);
    return true;
}

static uint32_t draw_list(const struct sample_dist *d, double target)
{
    double sum = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        sum += (double)d->items[i].value;
        if (sum > target)
            return d->items[i].id;
    }
    return d->items[d->n - 1].id; /* rounding */
}

uint32_t sample_draw(const struct sample_dist *d, double uniform, const struct sample_scratch *s)
{
    Q_ASSERT(d->n && (d->items || d->weights) && d->total > 0);
    Q_ASSERT(uniform >= 0 && uniform < 1);
    double target = uniform * d->total, sum = 0;
    if (d->items)
        return draw_list(d, target);
    uint32_t start = 0, last = 0;
    for (uint32_t c = 0; start + SAMPLE_CHUNK < d->n && sum + s->chunk_sums[c] <= target; c++) {
        sum += s->chunk_sums[c];
        start += SAMPLE_CHUNK;
    }
    bool found = false;
    for (uint32_t i = start; i < d->n;
         i++) { /* beyond the chunk only when rounding hid the crossing */
        if (d->weights[i] == 0.0f)
            continue;
        sum += (double)d->weights[i];
        last = i;
        found = true;
        if (sum > target)
            return i;
    }
    while (!found && start-- > 0) /* the tail was all zero: the last id with weight */
        if (d->weights[start] != 0.0f) {
            last = start;
            found = true;
        }
    return last;
}

/* Fill rank, logprob and alternatives of row->token from the logits kept for it. */
static void fill_logprobs(const float *raw, uint32_t n_top, struct sample_scratch *s,
                          const struct sample_result *out)
{
    struct step_row *row = out->row;
    float max, chosen = raw[row->token];
    uint32_t argmax;
    double sumexp;
    const struct softmax_stats_args a = {
        .x = raw,
        .x_stride = s->n_vocab,
        .n_row = 1,
        .n_col = s->n_vocab,
        .max = &max,
        .argmax = &argmax,
        .sumexp = &sumexp,
    };
    const struct kern_exec x = {.ith = 0, .nth = 1};
    s->kern->softmax_stats(&a, &x);
    double lse = (double)max + log(sumexp);
    row->rank = 1 + select_rank(raw, row->token, s);
    row->logprob = (float)((double)chosen - lse);
    row->n_top = select_top(raw, s->n_vocab, n_top, s->items);
    for (uint32_t i = 0; i < row->n_top; i++) {
        out->top_ids[i] = s->items[i].id;
        out->top_logprobs[i] = (float)((double)s->items[i].value - lse);
    }
}

void sample_known(const float *logits, uint32_t n_top, struct sample_scratch *s,
                  const struct sample_result *out)
{
    const uint32_t id = out->row->token;
    if (id >= s->n_vocab) /* a placeholder of an item: its place has alternatives only */
        out->row->token = 0;
    fill_logprobs(logits, n_top, s, out);
    if (id < s->n_vocab)
        return;
    out->row->token = id;
    out->row->rank = 0;
    out->row->logprob = 0;
}

/* All are -inf. */
static bool is_empty(const float *logits, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] != -INFINITY)
            return false;
    return true;
}

void sample_token(float *logits, const struct sample_input *in, struct sample_scratch *s,
                  const struct sample_result *out)
{
    const struct sample_params *p = in->params;
    struct step_row *row = out->row;
    bool logprobs = p->n_logprob != SAMPLE_NO_LOGPROBS;
    Q_ASSERT(in->n_prompt <= in->n_known && (logits || !s->n_vocab));
    row->position = in->n_known;
    row->rank = 0;
    row->logprob = 0;
    row->n_top = 0;
    if (logprobs && !p->adjusted_logprobs)
        memcpy(s->raw, logits, s->n_vocab * sizeof *logits);
    sample_adjust(logits, in, s);
    if (logprobs && p->adjusted_logprobs)
        memcpy(s->raw, logits, s->n_vocab * sizeof *logits);
    struct sample_dist d;
    if (p->temperature == 0.0f)
        row->token = sample_greedy(logits, s->n_vocab);
    else if (sample_filter(&d, logits, p, s))
        row->token = sample_draw(&d, philox_uniform(p->seed, in->n_known), s);
    else
        row->token = SAMPLE_BAD;
    if (row->token == SAMPLE_BAD)
        row->rank = is_empty(logits, s->n_vocab) && sample_has_mask(in) ? SAMPLE_EMPTY : SAMPLE_BAD;
    else if (logprobs)
        fill_logprobs(s->raw, p->n_logprob, s, out);
}
