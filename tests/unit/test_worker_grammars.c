/* SPDX-License-Identifier: Apache-2.0 */
/* The masks that a worker fills for grammars, where memory runs out: a mask is whole or empty, and
 * one failed allocation changes nothing. */
#include "check.h"
#include <string.h>
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/worker/grammars.h"

#define TOKENIZER "tests/data/tokenizers/gpt2"
#define N_VOCAB   1088u
#define N_WORD    (N_VOCAB / 32)

static const uint32_t history[] = {7, 90, 1, 64, 1}; /* a prompt of one token, then {"a" */
static const struct mask_job job = {
    .grammar = 1,
    .history = history,
    .n_known = 5,
    .n_prompt = 1,
    .stop_ids = history,
    .n_stop_id = 1,
};

static void compile(uint32_t **words, uint32_t *n_word)
{
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"minLength\": 2, "
        "\"maxLength\": 9}}, \"required\": [\"a\"]}";
    const struct grammar_source source = {
        .kind = GRAMMAR_JSON,
        .text = schema,
        .n = sizeof schema - 1,
    };
    struct q_err e = Q_ERR_INIT;
    assert_ok(grammar_compile(words, n_word, &source, &e), &e);
}

static struct grammars *open_grammars(const uint32_t *words, uint32_t n_word)
{
    const struct grammars_args a = {
        .model_dir = TOKENIZER,
        .tokenizer_path = "",
        .vocab_size = N_VOCAB,
        .n_slot = 1,
    };
    const struct slot_grammar s = {.slot = 0, .n_word = n_word, .words = words};
    struct q_err e = Q_ERR_INIT;
    struct grammars *g = NULL;
    assert_ok(grammars_new(&g, &a, &e), &e);
    struct mask_provider p = grammars_provider(g);
    p.admit(p.ctx, &s);
    return g;
}

static void fill(struct grammars *g, uint32_t *bits)
{
    struct mask_provider p = grammars_provider(g);
    memset(bits, 0, N_WORD * sizeof *bits);
    p.fill(p.ctx, &job, bits);
}

static void a_mask_without_memory_is_tried_again(void **state)
{
    (void)state;
    uint32_t *words = NULL, n_word, want[N_WORD], bits[N_WORD];
    compile(&words, &n_word);
    struct grammars *g = open_grammars(words, n_word);
    const uint64_t before = mem_alloc_count();
    fill(g, want);
    const int n_all = (int)(mem_alloc_count() - before);
    grammars_free(g);
    assert_true(n_all > 9);
    assert_true(want[25 / 32] >> 25 % 32 & 1); /* : */
    for (int n = 0; n < n_all; n++) {
        g = open_grammars(words, n_word);
        mem_fail_once(n);
        fill(g, bits);
        mem_fail_once(-1);
        if (memcmp(bits, want, sizeof bits) != 0)
            fail_msg("allocation %d of %d: another mask", n, n_all);
        grammars_free(g);
    }
    q_free(words);
}

/* All allocations fail from the n-th on. */
static void a_mask_is_whole_or_empty(void **state)
{
    (void)state;
    static const uint32_t none[N_WORD];
    uint32_t *words = NULL, n_word, want[N_WORD], bits[N_WORD], n_empty = 0;
    bool whole = false;
    compile(&words, &n_word);
    struct grammars *g = open_grammars(words, n_word);
    fill(g, want);
    grammars_free(g);
    for (int n = 0; !whole; n++) {
        g = open_grammars(words, n_word);
        mem_fail_after(n);
        fill(g, bits);
        mem_fail_after(-1);
        whole = !memcmp(bits, want, sizeof bits);
        if (!whole && memcmp(bits, none, sizeof bits) != 0)
            fail_msg("no memory from allocation %d on: a part of a mask", n);
        n_empty += !whole;
        fill(g, bits); /* there is memory again */
        assert_memory_equal(bits, want, sizeof bits);
        grammars_free(g);
    }
    assert_true(n_empty > 9);
    q_free(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_mask_without_memory_is_tried_again),
                                       cmocka_unit_test(a_mask_is_whole_or_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
