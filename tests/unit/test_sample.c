/* SPDX-License-Identifier: Apache-2.0 */
/* sample, select, philox: the reference distributions, ties, bad rows, and that a draw depends on
 * nothing else. */
#include "check.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include "common/hub/safetensors.h"
#include "common/mem.h"
#include "engine/worker/philox.h"
#include "engine/worker/sample.h"
#include "engine/worker/select.h"

static struct kern_table kern;

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    static const uint32_t vectors[3][10] = {
        /* counter, key, output; Random123 1.14, kat_vectors */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox(out, vectors[i], vectors[i] + 4);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
    double u = philox_uniform(7, 3);
    assert_true(u >= 0 && u < 1);
    assert_true(u == philox_uniform(7, 3));
    assert_true(u != philox_uniform(7, 4) && u != philox_uniform(8, 3));
    assert_true(u != philox_uniform(7 + (UINT64_C(1) << 32), 3));
}

/* goldens */

#define SAMPLING "tests/data/goldens/sampling"

static uint32_t ids_of(const json_t *list, uint32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static double number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return v ? json_number_value(v) : otherwise;
}

struct biases {
    uint32_t ids[16];
    float values[16];
};

static void params_of(struct sample_params *p, const json_t *o, struct biases *b)
{
    sample_params_default(p);
    p->temperature = (float)number(o, "temperature", 1);
    p->top_p = (float)number(o, "top_p", 1);
    p->min_p = (float)number(o, "min_p", 0);
    p->top_k = (uint32_t)number(o, "top_k", 0);
    p->repetition_penalty = (float)number(o, "repetition_penalty", 1);
    p->presence_penalty = (float)number(o, "presence_penalty", 0);
    p->frequency_penalty = (float)number(o, "frequency_penalty", 0);
    const char *key;
    json_t *value, *bias = json_object_get(o, "logit_bias");
    json_object_foreach (bias, key, value) {
        b->ids[p->n_bias] = (uint32_t)strtoul(key, NULL, 10);
        b->values[p->n_bias++] = (float)json_number_value(value);
    }
    p->bias_ids = b->ids;
    p->bias = b->values;
}

static double dist_prob(const struct sample_dist *d, uint32_t id)
{
    if (!d->items)
        return (double)d->weights[id] / d->total;
    for (uint32_t i = 0; i < d->n; i++)
        if (d->items[i].id == id)
            return (double)d->items[i].value / d->total;
    return 0;
}

/* One case. heap false: the same through the path over the whole row. */
static void golden_case(const json_t *c, const struct tensor_set *set, bool heap)
{
    const struct tensor *logits = tensor_find(set, json_string_value(json_object_get(c, "logits")));
    const struct tensor *probs = tensor_find(set, json_string_value(json_object_get(c, "probs")));
    assert_non_null(logits);
    assert_non_null(probs);
    uint32_t n_vocab = (uint32_t)logits->shape[0], history[256];
    struct biases b;
    struct sample_params p;
    params_of(&p, json_object_get(c, "params"), &b);
    struct sample_input in = {.params = &p, .history = history};
    in.n_prompt = ids_of(json_object_get(c, "prompt_ids"), history);
    in.n_known = in.n_prompt + ids_of(json_object_get(c, "output_ids"), history + in.n_prompt);
    uint32_t n_pad =
        heap ? 0 : SAMPLE_HEAP_MAX; /* ids that can never be drawn make top_k leave the heap */
    struct q_err e = Q_ERR_INIT;
    struct sample_scratch s;
    assert_ok(sample_scratch_init(&s, n_vocab + n_pad, &kern, &e), &e);
    float *row = q_calloc(n_vocab + n_pad, sizeof *row);
    memcpy(row, logits->data, n_vocab * sizeof *row);
    for (uint32_t i = n_vocab; i < n_vocab + n_pad; i++)
        row[i] = -INFINITY;
    sample_adjust(row, &in, &s);
    for (uint32_t i = 0; i < s.n_vocab; i++)
        assert_int_equal(s.counts[i], 0);
    struct sample_dist d;
    if (heap) {
        assert_true(sample_filter(&d, row, &p, &s));
    } else { /* what sample_filter does for a top_k beyond the heap */
        float max;
        assert_true(select_max(row, &s, &max));
        double total = select_weights(row, max, p.temperature, p.min_p, &s);
        if (p.top_k)
            total = select_cut(row, SELECT_COUNT, p.top_k, &s);
        if (p.top_p < 1)
            total = select_cut(row, SELECT_MASS, (double)p.top_p * total, &s);
        assert_true(total == select_sum(row, &s));
        d = (struct sample_dist){.weights = row, .n = s.n_vocab, .total = total};
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        float want;
        memcpy(&want, (const char *)probs->data + i * sizeof want, sizeof want);
        double got = dist_prob(&d, i);
        if (fabs(got - (double)want) > 1e-5 || (got > 0) != (want > 0))
            fail_msg("%s id %u: got %g, wanted %g", probs->name, i, got, (double)want);
    }
    q_free(row);
    sample_scratch_release(&s);
}

static void distributions_are_the_reference_ones(void **state)
{
    (void)state;
    json_error_t je;
    json_t *root = json_load_file(SAMPLING ".json", 0, &je);
    assert_non_null(root);
    struct q_err e = Q_ERR_INIT;
    struct tensor_set *set = NULL;
    assert_ok(tensor_set_open_file(&set, SAMPLING ".safetensors", &e), &e);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) >= 29);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        golden_case(json_array_get(cases, i), set, true);
        golden_case(json_array_get(cases, i), set, false);
    }
    tensor_set_free(set);
    json_decref(root);
}

/* random rows */

static uint64_t random_state = 1;
static uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static int by_value(const void *a, const void *b)
{
    const struct row_item *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

enum { N_ROW = 3001 };

static void heap_and_radix_agree_with_a_sort(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct sample_scratch s;
    assert_ok(sample_scratch_init(&s, N_ROW, &kern, &e), &e);
    static struct row_item sorted[N_ROW], top[SAMPLE_HEAP_MAX];
    static float row[N_ROW], cut[N_ROW];
    for (int round = 0; round < 60; round++) {
        uint32_t n_value = round % 3 == 0   ? 5
                           : round % 3 == 1 ? 200
                                            : 1u << 24; /* many ties, some, few */
        for (uint32_t i = 0; i < N_ROW; i++) {
            row[i] = (float)(1 + random_u32() % n_value) / 16777216.0f;
            if (round % 2) /* a few large ones, and many that are next to nothing */
                row[i] = ldexpf(row[i], -(int)(random_u32() % 24));
            sorted[i] = (struct row_item){row[i], i};
        }
        qsort(sorted, N_ROW, sizeof *sorted, by_value);
        uint32_t k = round == 0 ? 1 : 1 + random_u32() % SAMPLE_HEAP_MAX;
        assert_int_equal(select_top(row, N_ROW, k, top), k);
        for (uint32_t i = 0; i < k; i++)
            assert_int_equal(top[i].id, sorted[i].id);
        memcpy(cut, row, sizeof cut);
        select_sum(cut, &s);
        select_cut(cut, SELECT_COUNT, k, &s);
        for (uint32_t i = 0; i < N_ROW; i++)
            assert_true((cut[sorted[i].id] != 0) == (i < k));
        double total = 0, limit, before = 0;
        for (uint32_t i = 0; i < N_ROW; i++)
            total += (double)row[i];
        limit = total * (1 + random_u32() % 98) / 100.0 + 1e-9;
        memcpy(cut, row, sizeof cut);
        select_sum(cut, &s);
        select_cut(cut, SELECT_MASS, limit, &s);
        for (uint32_t i = 0; i < N_ROW; i++) {
            assert_true((cut[sorted[i].id] != 0) == (before < limit));
            before += (double)sorted[i].value;
        }
    }
    sample_scratch_release(&s);
}

enum { N_BIG = 151936 };

/* Weight i of a vocabulary's row: flat, of a few values, with a head, all equal, or falling so fast
 * that most are next to nothing; in an order that a sample of every n-th may not see through. */
static float big_weight(int shape, uint32_t i)
{
    const float u = (float)(1 + random_u32() % (1u << 24)) / 16777216.0f;
    switch (shape) {
    case 0:
        return 0.5f + u / 2;
    case 1:
        return (float)(1 + (int)(u * 5)) / 8;
    case 2:
        return i % 5000 == 77 ? u : u * 0x1p-9f;
    case 3:
        return 0.25f;
    case 4:
        return select_exp(-60 * u);
    default: /* what the sample looks at is not like the rest */
        return i % 61 == 30 ? u * 0x1p-20f : 0.5f + u / 2;
    }
}

static void cut_as_sorted(struct sample_scratch *s, float *row, const struct row_item *sorted,
                          double part)
{
    float *cut = q_calloc(N_BIG, sizeof *cut);
    const uint32_t k = 1 + (uint32_t)(part * (N_BIG - 1));
    memcpy(cut, row, N_BIG * sizeof *cut);
    const double total = select_sum(cut, s), left = select_cut(cut, SELECT_COUNT, k, s);
    for (uint32_t i = 0; i < N_BIG; i++)
        assert_true((cut[sorted[i].id] != 0) == (i < k));
    assert_true(left == select_sum(cut, s));
    memcpy(cut, row, N_BIG * sizeof *cut);
    select_sum(cut, s);
    const double kept = select_cut(cut, SELECT_MASS, part * total, s);
    assert_true(kept == select_sum(cut, s));
    double before = 0;
    for (uint32_t i = 0; i < N_BIG; i++) { /* sums are rounded: the last one kept may be another */
        if (fabs(before - part * total) > 1e-9 * total)
            assert_true((cut[sorted[i].id] != 0) == (before < part * total));
        before += (double)sorted[i].value;
    }
    q_free(cut);
}

/* Rows as large as a vocabulary, in which the items are never all looked at, by every set of
 * kernels. */
static void large_rows_are_cut_as_a_sort_does(void **state)
{
    (void)state;
    static const uint32_t caps[] = {CAP_NONE, CAP_AVX2, ~0u};
    static const double parts[] = {0.0, 0.03, 0.9, 0.999};
    struct q_err e = Q_ERR_INIT;
    struct row_item *sorted = q_calloc(N_BIG, sizeof *sorted);
    float *row = q_calloc(N_BIG, sizeof *row);
    for (int shape = 0; shape < 6; shape++) {
        for (uint32_t i = 0; i < N_BIG; i++) {
            row[i] = big_weight(shape, i);
            sorted[i] = (struct row_item){row[i], i};
        }
        qsort(sorted, N_BIG, sizeof *sorted, by_value);
        for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
            struct kern_table k;
            struct sample_scratch s;
            kern_table_cpu(&k, caps[c]);
            assert_ok(sample_scratch_init(&s, N_BIG, &k, &e), &e);
            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
                cut_as_sorted(&s, row, sorted, parts[i]);
            sample_scratch_release(&s);
        }
    }
    q_free(row);
    q_free(sorted);
}

static void exp_is_close_and_monotone(void **state)
{
    (void)state;
    float last = 0;
    for (double x = -87; x <= 0; x += 0.0001) {
        float got = select_exp((float)x);
        double want = exp((double)(float)x);
        assert_true(fabs((double)got - want) <= 3e-7 * want);
        assert_true(got >= last);
        last = got;
    }
    assert_true(select_exp(0) == 1.0f);
    assert_true(select_exp(-INFINITY) == 0.0f && select_exp(-1000) == 0.0f);
}

/* the whole row */

struct fixture {
    struct sample_scratch s;
    struct sample_params p;
    uint32_t history[8];
    struct sample_input in;
    float logits[N_ROW];
    uint32_t top_ids[SAMPLE_LOGPROBS_FEW];
    float top[SAMPLE_LOGPROBS_FEW];
    struct step_row row;
};
static struct fixture f;

static void fixture_reset(void)
{
    sample_params_default(&f.p);
    f.p.temperature = 1;
    f.p.seed = 11;
    f.in = (struct sample_input){.params = &f.p, .history = f.history, .n_known = 3, .n_prompt = 2};
    random_state = 5;
    for (uint32_t i = 0; i < N_ROW; i++)
        f.logits[i] = (float)(random_u32() % 4096) / 512.0f;
}

static uint32_t token(void)
{
    sample_token(f.logits, &f.in, &f.s, &(struct sample_result){&f.row, f.top_ids, f.top});
    return f.row.token;
}

static void bad_rows_give_bad_tokens(void **state)
{
    (void)state;
    static const float temperatures[] = {0, 1};
    for (int i = 0; i < 2; i++)
        for (uint32_t at = 0; at < N_ROW; at += 777) {
            fixture_reset();
            f.p.temperature = temperatures[i];
            f.p.n_logprob = 2;
            f.logits[at] = NAN;
            assert_int_equal(token(), SAMPLE_BAD);
            fixture_reset();
            f.p.temperature = temperatures[i];
            for (uint32_t j = 0; j < N_ROW; j++)
                f.logits[j] = -INFINITY;
            assert_int_equal(token(), SAMPLE_BAD);
            f.logits[at] = -5;
            assert_int_equal(token(), at);
            fixture_reset();
            f.p.temperature = temperatures[i];
            f.logits[at] = INFINITY;
            assert_int_equal(token(), at);
        }
}

static void greedy_takes_the_lowest_id_of_the_largest(void **state)
{
    (void)state;
    fixture_reset();
    f.p.temperature = 0;
    f.logits[900] = f.logits[2000] = f.logits[3000] = 100;
    assert_int_equal(token(), 900);
    const uint32_t ids[] = {900, 3000};
    const float bias[] = {-1, -2};
    f.p.bias_ids = ids;
    f.p.bias = bias;
    f.p.n_bias = 2;
    assert_int_equal(token(), 2000);
}

static void stop_ids_cannot_come_before_min_tokens(void **state)
{
    (void)state;
    fixture_reset();
    f.p.temperature = 0;
    const uint32_t stops[] = {900, 901};
    f.p.stop_ids = stops;
    f.p.n_stop_id = 2;
    f.p.min_tokens = 2;
    f.logits[900] = 100;
    f.logits[901] = 99;
    f.logits[7] = 98;
    f.in.n_known = f.in.n_prompt + 1;
    assert_int_equal(token(), 7);
    fixture_reset();
    f.p.temperature = 0;
    f.p.stop_ids = stops;
    f.p.n_stop_id = 2;
    f.p.min_tokens = 2;
    f.logits[900] = 100;
    f.in.n_known = f.in.n_prompt + 2;
    assert_int_equal(token(), 900);
}

/* logits[10] > [20] > [30] > … > [80] above everything else; history 1 2 | 3. */
static void ranked(void)
{
    static const uint32_t history[] = {1, 2, 3};
    fixture_reset();
    memcpy(f.history, history, sizeof history);
    f.p.temperature = 0;
    for (uint32_t i = 1; i <= 8; i++)
        f.logits[i * 10] = 100.0f - (float)i;
}

static void only_allowed_ids_come(void **state)
{
    (void)state;
    static uint32_t some[SAMPLE_MASK_WORDS(N_ROW)], others[SAMPLE_MASK_WORDS(N_ROW)];
    memset(others, 0xff, sizeof others);
    some[0] = 1u << 20 | 1u << 30;
    some[(N_ROW - 1) / 32] = 1u << (N_ROW - 1) % 32;
    ranked();
    f.in.allowed = some;
    assert_int_equal(token(), 20);
    ranked();
    others[0] = ~(1u << 20);
    f.in.allowed = some;
    f.in.grammar = others; /* both hold */
    assert_int_equal(token(), 30);
    ranked();
    others[0] = 0;
    f.in.allowed = some;
    f.in.grammar = others;
    assert_int_equal(token(), N_ROW - 1);
    ranked();
    memset(others, 0, sizeof others);
    f.in.grammar = others;
    assert_int_equal(token(), SAMPLE_BAD); /* nothing is left */
}

/* Of the masks nothing holds for a forced token, nor the bias; its logprob is the model's. */
static void a_forced_token_comes(void **state)
{
    (void)state;
    static const uint32_t forced = 77, none = UINT32_MAX, words[] = {1, 77}, stops[] = {77};
    static uint32_t nothing[SAMPLE_MASK_WORDS(N_ROW)], bits[SAMPLE_MASK_WORDS(N_ROW)];
    for (int hot = 0; hot < 2; hot++) {
        ranked();
        f.p.temperature = hot ? 1.5f : 0;
        f.in.allowed = f.in.grammar = nothing;
        f.p.bad_words = words;
        f.p.n_bad = 2;
        f.p.stop_ids = stops;
        f.p.n_stop_id = 1;
        f.p.min_tokens = 9;
        f.in.forced = &forced;
        assert_true(sample_mask(bits, &f.in, N_ROW));
        for (uint32_t i = 0; i < N_ROW; i++)
            assert_int_equal(bits[i / 32] >> i % 32 & 1, i == forced);
        assert_int_equal(token(), 77);
    }
    ranked();
    f.p.n_thinking = 1;
    f.in.forced = &none;
    assert_int_equal(token(), SAMPLE_BAD);
    ranked();
    f.p.n_thinking = 1;
    assert_true(sample_has_mask(&f.in));
    assert_false(sample_mask(bits, &f.in, N_ROW));
    assert_int_equal(token(), 10);
}

static void bad_words_do_not_end(void **state)
{
    (void)state;
    static const uint32_t words[] = {1, 10, 2, 3, 20, 3, 2, 3, 30, 2, 4, 40};
    ranked(); /* 10; 3 20 after the output 3; not 2 3 30, whose 2 is prompt; not 4 40 */
    f.p.bad_words = words;
    f.p.n_bad = 12;
    assert_int_equal(token(), 30);
    ranked();
    f.in.n_prompt = 1; /* now it is output */
    f.p.bad_words = words;
    f.p.n_bad = 12;
    assert_int_equal(token(), 40);
    ranked();
    f.in.n_known = 2; /* nothing generated yet: only the single one counts */
    f.p.bad_words = words;
    f.p.n_bad = 12;
    assert_int_equal(token(), 20);
}

static void no_ngram_comes_twice(void **state)
{
    (void)state;
    static const uint32_t history[] = {7, 20, 7, 10, 5, 7};
    for (uint32_t window = 0; window < 6; window++) {
        ranked();
        memcpy(f.history, history, sizeof history);
        f.in.n_known = 6;
        f.p.no_repeat_ngram = 2; /* 7 10 and 7 20 are there */
        f.p.no_repeat_window = window;
        assert_int_equal(token(), window == 0 ? 30 : window < 4 ? 10 : 20);
    }
    ranked();
    memcpy(f.history, history, sizeof history);
    f.in.n_known = 6;
    f.p.no_repeat_ngram = 3; /* 5 7 was never there before */
    assert_int_equal(token(), 10);
    ranked();
    f.in.n_known = 3;
    f.p.no_repeat_ngram = SAMPLE_NGRAM_MAX; /* longer than the history */
    assert_int_equal(token(), 10);
    ranked();
    memcpy(f.history, history, sizeof history);
    f.in.n_known = 6;
    f.p.no_repeat_ngram = 1;
    assert_int_equal(token(), 30);
}

static void sigma_cuts_far_from_the_largest(void **state)
{
    (void)state;
    for (uint32_t pass = 0; pass < 3; pass++) {
        struct sample_dist d;
        double sum = 0, square = 0;
        fixture_reset();
        f.logits[3] = -INFINITY; /* counts for nothing */
        f.p.top_n_sigma = 0.25f * (float)(pass + 1);
        f.p.top_k = pass == 2 ? 100 : 0; /* both paths */
        float before[N_ROW], max = -INFINITY;
        memcpy(before, f.logits, sizeof before);
        for (uint32_t i = 0; i < N_ROW; i++)
            if (i != 3) {
                sum += (double)before[i];
                max = before[i] > max ? before[i] : max;
            }
        for (uint32_t i = 0; i < N_ROW; i++)
            if (i != 3)
                square += pow((double)before[i] - sum / (N_ROW - 1), 2);
        double limit = (double)max - (double)f.p.top_n_sigma * sqrt(square / (N_ROW - 1));
        assert_true(sample_filter(&d, f.logits, &f.p, &f.s));
        uint32_t n_in = 0;
        for (uint32_t i = 0; i < N_ROW; i++) {
            if (dist_prob(&d, i) > 0)
                assert_true((double)before[i] >= limit);
            n_in += dist_prob(&d, i) > 0;
            if (pass < 2 && (double)before[i] >= limit)
                assert_true(dist_prob(&d, i) > 0);
        }
        assert_true(n_in > 1 && n_in < N_ROW / 2);
    }
}

static void logprobs_are_of_the_raw_row(void **state)
{
    (void)state;
    fixture_reset();
    const uint32_t bias_ids[] = {5};
    const float bias[] = {100};
    f.p.temperature = 0;
    f.p.bias_ids = bias_ids;
    f.p.bias = bias;
    f.p.n_bias = 1;
    f.p.n_logprob = 4;
    f.logits[5] = 1.0f;
    f.logits[6] = 50.0f;
    f.logits[8] = f.logits[7] = 49.0f;
    double sum = 0;
    for (uint32_t i = 0; i < N_ROW; i++)
        sum += exp((double)f.logits[i] - 50);
    uint32_t n_above = 0;
    for (uint32_t i = 0; i < N_ROW; i++)
        n_above += f.logits[i] > 1.0f || (f.logits[i] == 1.0f && i < 5);
    assert_int_equal(token(), 5);
    assert_int_equal(f.row.rank, n_above + 1);
    assert_int_equal(f.row.position, 3);
    assert_true(fabs((double)f.row.logprob - (1 - 50 - log(sum))) < 1e-4);
    assert_int_equal(f.row.n_top, 4);
    assert_int_equal(f.top_ids[0], 6);
    assert_int_equal(f.top_ids[1], 7);
    assert_int_equal(f.top_ids[2], 8);
    assert_true(fabs((double)f.top[0] + log(sum)) < 1e-4);
    fixture_reset();
    f.p.temperature = 0;
    f.p.bias_ids = bias_ids;
    f.p.bias = bias;
    f.p.n_bias = 1;
    f.p.n_logprob = 2;
    f.p.adjusted_logprobs = true; /* of the row that the bias left */
    f.logits[5] = 1.0f;
    f.logits[6] = 100.0f;
    assert_int_equal(token(), 5);
    assert_int_equal(f.row.rank, 1);
    assert_int_equal(f.top_ids[0], 5);
    assert_int_equal(f.top_ids[1], 6);
    assert_true(fabs((double)f.row.logprob + log(1 + exp(-1.0))) < 1e-4);
    assert_true(fabs((double)f.top[1] + 1 + log(1 + exp(-1.0))) < 1e-4);
    fixture_reset();
    assert_true(token() != SAMPLE_BAD);
    assert_int_equal(f.row.n_top, 0);
    assert_int_equal(f.row.rank, 0);
    fixture_reset();
    f.row.token = 17;
    sample_known(f.logits, 3, &f.s, &(struct sample_result){&f.row, f.top_ids, f.top});
    assert_int_equal(f.row.token, 17);
    assert_int_equal(f.row.n_top, 3);
}

/* Each path draws from its distribution: 20000 seeds over few tokens, five standard
 * deviations. */
static void draws_follow_the_distribution(void **state)
{
    (void)state;
    static const struct {
        uint32_t top_k;
        float top_p;
    } cases[] = {{0, 1}, {4, 1}, {0, 0.8f}, {1500, 0.8f}};
    enum { N_DRAW = 20000 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        static uint32_t counts[N_ROW];
        memset(counts, 0, sizeof counts);
        struct sample_dist d;
        fixture_reset();
        for (uint32_t i = 0; i < N_ROW; i++)
            f.logits[i] = i % 600 == 1 ? (float)(i / 600) : -90.0f;
        f.p.top_k = cases[c].top_k;
        f.p.top_p = cases[c].top_p;
        assert_true(sample_filter(&d, f.logits, &f.p, &f.s));
        for (uint32_t i = 0; i < N_DRAW; i++)
            counts[sample_draw(&d, philox_uniform(i, 9), &f.s)]++;
        for (uint32_t i = 0; i < N_ROW; i++) {
            double p = dist_prob(&d, i);
            assert_true(fabs((double)counts[i] - p * N_DRAW) <=
                        5 * sqrt(p * (1 - p) * N_DRAW) + 1e-9);
        }
        for (double u = 0; u < 1; u += 0.0625) /* the ends of the range give tokens with weight */
            assert_true(dist_prob(&d, sample_draw(&d, u, &f.s)) > 0);
        assert_true(dist_prob(&d, sample_draw(&d, 1 - 0x1p-53, &f.s)) > 0);
    }
}

static void scratch_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    for (int64_t n = 0;; n++) {
        struct sample_scratch s;
        mem_fail_after(n);
        enum q_code rc = sample_scratch_init(&s, 100, &kern, &e);
        mem_fail_after(-1);
        if (rc == Q_OK) {
            assert_true(n > 0);
            sample_scratch_release(&s);
            break;
        }
        assert_int_equal(rc, Q_NO_MEMORY);
    }
}

static int setup(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    kern_table_cpu(&kern, kern_caps_machine());
    return sample_scratch_init(&f.s, N_ROW, &kern, &e);
}

static int teardown(void **state)
{
    (void)state;
    sample_scratch_release(&f.s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(distributions_are_the_reference_ones),
        cmocka_unit_test(heap_and_radix_agree_with_a_sort),
        cmocka_unit_test(large_rows_are_cut_as_a_sort_does),
        cmocka_unit_test(exp_is_close_and_monotone),
        cmocka_unit_test(bad_rows_give_bad_tokens),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_the_largest),
        cmocka_unit_test(stop_ids_cannot_come_before_min_tokens),
        cmocka_unit_test(only_allowed_ids_come),
        cmocka_unit_test(a_forced_token_comes),
        cmocka_unit_test(bad_words_do_not_end),
        cmocka_unit_test(no_ngram_comes_twice),
        cmocka_unit_test(sigma_cuts_far_from_the_largest),
        cmocka_unit_test(logprobs_are_of_the_raw_row),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(scratch_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
