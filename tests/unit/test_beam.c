/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search without an engine: against all sequences there are, against a plain search that never
 * stops early, and its limits. The model is a pseudo-random distribution for each prefix. */
#include "check.h"
#include <math.h>
#include <stdlib.h>
#include "common/mem.h"
#include "frontend/api/beam_tree.h"

enum { VOCAB = 4, END = 0, DEPTH = 5, ANSWERS_MAX = 2000 };

static struct q_err e;

struct answer {
    uint32_t tokens[DEPTH], n;
    double sum, score;
    bool stopped;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* Logprobs that may follow a prefix, likeliest first. */
static void follow(uint64_t seed, const uint32_t *prefix, uint32_t n, uint32_t *ids,
                   float *logprobs)
{
    double weights[VOCAB], sum = 0;
    uint64_t h = mix(seed + 1);
    for (uint32_t i = 0; i < n; i++)
        h = mix(h + prefix[i] + 1);
    for (uint32_t i = 0; i < VOCAB; i++) {
        weights[i] = 1 + (double)(mix(h + 77 * i) % 1000);
        sum += weights[i];
        ids[i] = i;
    }
    for (uint32_t i = 1; i < VOCAB; i++) /* insertion sort */
        for (uint32_t k = i; k > 0 && weights[ids[k]] > weights[ids[k - 1]]; k--) {
            uint32_t other = ids[k];
            ids[k] = ids[k - 1];
            ids[k - 1] = other;
        }
    for (uint32_t i = 0; i < VOCAB; i++)
        logprobs[i] = (float)log(weights[ids[i]] / sum);
}

static int by_score(const void *a, const void *b)
{
    const struct answer *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score;
}

static double score_of(const struct beam_rules *r, double sum, uint32_t n)
{
    return sum / pow((double)r->n_prompt + n, r->length_penalty);
}

/* Every answer there is below a prefix. */
static void enumerate(uint64_t seed, const struct beam_rules *r, struct answer *at,
                      struct answer *all, uint32_t *n_all)
{
    uint32_t ids[VOCAB], n = at->n;
    float logprobs[VOCAB];
    double sum = at->sum;
    follow(seed, at->tokens, n, ids, logprobs);
    for (uint32_t i = 0; i < VOCAB; i++) {
        at->tokens[n] = ids[i];
        at->sum = sum + (double)logprobs[i];
        at->n = n + 1;
        at->stopped = ids[i] == END;
        at->score = score_of(r, at->sum, at->stopped ? n : n + 1);
        if (at->stopped ? n >= r->min_tokens : n + 1 == r->max_tokens) {
            assert_true(*n_all < ANSWERS_MAX);
            all[(*n_all)++] = *at;
        } else if (!at->stopped) {
            enumerate(seed, r, at, all, n_all);
        }
    }
    at->n = n;
    at->sum = sum;
}

/* Run a tree to its end; returns how many steps it took. */
static uint32_t run(uint64_t seed, struct beam_tree *t)
{
    uint32_t n_step = 0;
    while (!t->over) {
        for (uint32_t i = 0; i < t->n_beam; i++) {
            struct token_list tokens = TOKEN_LIST_INIT;
            uint32_t ids[VOCAB];
            float logprobs[VOCAB];
            assert_ok(beam_tokens(t, t->beams[i], &tokens, &e), &e);
            follow(seed, tokens.ids, (uint32_t)tokens.n, ids, logprobs);
            assert_ok(beam_offer(t, ids, logprobs, VOCAB, &e), &e);
            token_list_release(&tokens);
        }
        assert_ok(beam_advance(t, &e), &e);
        n_step++;
    }
    return n_step;
}

static void assert_answer(const struct beam_tree *t, uint32_t i, const struct answer *want)
{
    struct token_list tokens = TOKEN_LIST_INIT;
    assert_ok(beam_tokens(t, t->ended[i].node, &tokens, &e), &e);
    assert_true(fabs(t->ended[i].score - want->score) < 1e-12);
    assert_int_equal(tokens.n, want->n);
    assert_memory_equal(tokens.ids, want->tokens, want->n * sizeof(uint32_t));
    assert_int_equal(t->ended[i].stopped, want->stopped);
    token_list_release(&tokens);
}

static const uint32_t ends[] = {END};

static struct beam_rules rules(uint32_t width, uint32_t max_tokens, double length_penalty)
{
    return (struct beam_rules){
        .width = width,
        .n_prompt = 3,
        .max_tokens = max_tokens,
        .length_penalty = length_penalty,
        .ends = ends,
        .n_end = 1,
    };
}

/* With as many beams as there are prefixes nothing is cut, and the best must be the best of all. */
static void wide_beams_find_the_best_of_all(void **state)
{
    (void)state;
    static struct answer all[ANSWERS_MAX];
    static const double penalties[] = {1, 0, 2.5, -1, 30};
    for (uint64_t seed = 0; seed < 20; seed++)
        for (size_t p = 0; p < sizeof penalties / sizeof *penalties; p++) {
            struct beam_rules r = rules(27, 3, penalties[p]);
            r.min_tokens = seed % 3;
            struct beam_tree t;
            struct answer root = {.n = 0};
            uint32_t n_all = 0;
            enumerate(seed, &r, &root, all, &n_all);
            qsort(all, n_all, sizeof *all, by_score);
            assert_ok(beam_tree_init(&t, &r, &e), &e);
            run(seed, &t);
            assert_int_equal(t.n_ended, 27);
            for (uint32_t i = 0; i < t.n_ended; i++)
                assert_answer(&t, i, &all[i]);
            beam_tree_release(&t);
        }
}

/* The search as it is written down: every step takes the best `width`, and nothing stops it but
 * max_tokens. */
static uint32_t plain(uint64_t seed, const struct beam_rules *r, struct answer *out)
{
    static struct answer beams[ANSWERS_MAX], next[ANSWERS_MAX];
    uint32_t n_beam = 1, n_out = 0;
    beams[0] = (struct answer){.n = 0};
    for (uint32_t step = 0; step < r->max_tokens; step++) {
        uint32_t n_next = 0;
        for (uint32_t b = 0; b < n_beam; b++) {
            uint32_t ids[VOCAB];
            float logprobs[VOCAB];
            follow(seed, beams[b].tokens, beams[b].n, ids, logprobs);
            for (uint32_t i = 0; i < VOCAB && i < 2 * r->width; i++) {
                struct answer a = beams[b];
                a.tokens[a.n++] = ids[i];
                a.sum += (double)logprobs[i];
                a.stopped = ids[i] == END;
                a.score = score_of(r, a.sum, a.stopped ? a.n - 1 : a.n);
                if (a.stopped)
                    out[n_out++] = a;
                else
                    next[n_next++] = a;
            }
        }
        qsort(next, n_next, sizeof *next, by_score);
        n_beam = n_next < r->width ? n_next : r->width;
        memcpy(beams, next, n_beam * sizeof *beams);
    }
    memcpy(out + n_out, beams, n_beam * sizeof *beams);
    n_out += n_beam;
    qsort(out, n_out, sizeof *out, by_score);
    return n_out;
}

static void stopping_early_changes_nothing(void **state)
{
    (void)state;
    static struct answer want[ANSWERS_MAX];
    static const double penalties[] = {1, 0, 3, -2, 0.5};
    uint32_t n_short = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct beam_rules r = rules(1 + seed % 4, DEPTH, penalties[seed % 5]);
        struct beam_tree t;
        uint32_t n_want = plain(seed, &r, want);
        assert_ok(beam_tree_init(&t, &r, &e), &e);
        n_short += run(seed, &t) < DEPTH;
        assert_true(n_want >= t.n_ended && t.n_ended == r.width);
        for (uint32_t i = 0; i < t.n_ended; i++)
            assert_answer(&t, i, &want[i]);
        for (uint32_t i = 0; i < t.n_ended; i++) { /* and the rows are those of the path */
            const struct beam_node *k = &t.nodes[t.ended[i].node];
            assert_int_equal(t.row_ids[k->row * t.row_size + k->rank - 1], k->token);
            assert_true(t.row_logprobs[k->row * t.row_size + k->rank - 1] == k->logprob);
        }
        beam_tree_release(&t);
    }
    assert_true(n_short > 20); /* it does stop early */
}

static void early_stopping_takes_the_first(void **state)
{
    (void)state;
    uint32_t n_shorter = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct beam_rules r = rules(2, DEPTH, 3);
        struct beam_tree full, early;
        assert_ok(beam_tree_init(&full, &r, &e), &e);
        r.early_stopping = true;
        assert_ok(beam_tree_init(&early, &r, &e), &e);
        uint32_t n_full = run(seed, &full), n_early = run(seed, &early);
        assert_true(n_early <= n_full);
        n_shorter += n_early < n_full;
        if (n_early < DEPTH)
            assert_true(early.ended[0].stopped && early.ended[1].stopped);
        beam_tree_release(&full);
        beam_tree_release(&early);
    }
    assert_true(n_shorter > 10);
}

/* A stand-in for text: an answer whose tokens end with 2 3 ends there. */
static bool ends_with_2_3(void *ctx, const struct beam_tree *t, const struct beam_node *node)
{
    ++*(uint32_t *)ctx;
    return node->token == 3 && node->parent != BEAM_NONE && t->nodes[node->parent].token == 2;
}

static void text_ends_an_answer_too(void **state)
{
    (void)state;
    uint32_t n_call = 0, n_found = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct beam_rules r = rules(3, DEPTH, 1);
        struct beam_tree t;
        r.ends_text = ends_with_2_3;
        r.ctx = &n_call;
        assert_ok(beam_tree_init(&t, &r, &e), &e);
        run(seed, &t);
        assert_int_equal(t.n_ended, 3);
        for (uint32_t i = 0; i < t.n_ended; i++) {
            struct token_list tokens = TOKEN_LIST_INIT;
            assert_ok(beam_tokens(&t, t.ended[i].node, &tokens, &e), &e);
            size_t n = tokens.n;
            for (size_t k = 1; k < n; k++) { /* nothing comes after it */
                bool here = tokens.ids[k - 1] == 2 && tokens.ids[k] == 3;
                assert_true(!here || k == n - 1);
                if (!here || n == DEPTH)
                    continue;
                n_found++; /* and its last token counts */
                double want = score_of(&r, t.nodes[t.ended[i].node].sum, (uint32_t)n);
                assert_true(!t.ended[i].stopped && fabs(t.ended[i].score - want) < 1e-12);
            }
            assert_true(i == 0 || t.ended[i - 1].score >= t.ended[i].score);
            token_list_release(&tokens);
        }
        beam_tree_release(&t);
    }
    assert_true(n_found > 20);
    assert_true(n_call < 200 * DEPTH * 3 * 6); /* not for every candidate */
}

static void what_is_no_number_is_left_out(void **state)
{
    (void)state;
    struct beam_rules r = rules(2, 1, 1);
    struct beam_tree t;
    const uint32_t ids[] = {3, 2, 1};
    const float logprobs[] = {-1, NAN, -INFINITY};
    assert_ok(beam_tree_init(&t, &r, &e), &e);
    assert_ok(beam_offer(&t, ids, logprobs, 3, &e), &e);
    assert_ok(beam_advance(&t, &e), &e);
    assert_true(t.over);
    assert_int_equal(t.n_ended, 1); /* fewer than requested: set by the owner */
    beam_tree_release(&t);
    assert_ok(beam_tree_init(&t, &r, &e), &e);
    assert_fails(beam_offer(&t, ids, logprobs, 0, &e), Q_INTERNAL, "no alternatives", &e);
    beam_tree_release(&t);
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    enum q_code rc = Q_NO_MEMORY;
    for (int n = 0; rc != Q_OK; n++) {
        struct beam_rules r = rules(2, 1, 1);
        struct beam_tree t = {.nodes = NULL};
        const uint32_t ids[] = {3, 2, 1};
        const float logprobs[] = {-1, -2, -3};
        q_err_reset(&e);
        mem_fail_after(n);
        if ((rc = beam_tree_init(&t, &r, &e)) == Q_OK &&
            (rc = beam_offer(&t, ids, logprobs, 3, &e)) == Q_OK)
            rc = beam_advance(&t, &e);
        mem_fail_after(-1);
        assert_int_equal(rc, e.code);
        assert_true(n < 100);
        beam_tree_release(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_beams_find_the_best_of_all),
        cmocka_unit_test(stopping_early_changes_nothing),
        cmocka_unit_test(early_stopping_takes_the_first),
        cmocka_unit_test(text_ends_an_answer_too),
        cmocka_unit_test(what_is_no_number_is_left_out),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
