/* SPDX-License-Identifier: Apache-2.0 */
/* Twice the text takes twice the steps (common/tokenizer/steps.h), for all kinds of text and
 * whichever family reads it. No clock: the steps of a text are always the same. */
#include "check.h"
#include <stdlib.h>
#include "common/tokenizer/steps.h"
#include "common/tokenizer/tokenizer.h"

#define SMALL "tests/data/tokenizers"

static struct q_err err;

static const char *const families[] = {
    "gpt2",   "roberta",    "llama3",   "qwen2",  "o200k",     "deepseek",  "deepseek3",
    "spbpe",  "spbpe_meta", "gemma",    "t5",     "unigram",   "wordpiece", "wordpiece_cased",
    "sp_bpe", "sp_unigram", "tiktoken", "tekken", "word_list", "merge_list"};
static const char *const fills[] = {"a",
                                    " ",
                                    "\n",
                                    "\t",
                                    "7",
                                    "A",
                                    "\xf0\x9f\x99\x82",
                                    "\xe4\xb8\xad",
                                    "\xcc\x81",
                                    "\xe2\x96\x81",
                                    ".,;:!?-()[]{}\"'",
                                    "a ",
                                    " \n",
                                    "1.",
                                    "'s",
                                    "ab1 ,",
                                    "<",
                                    "\xe2\x80\x8d",
                                    "e\xcc\x81",
                                    "<|",
                                    "\r\n",
                                    "\xc2\xa0",
                                    "=",
                                    "x\xe2\x96\x81"};

static uint64_t steps_of(const struct tokenizer *t, const char *fill, size_t n)
{
    struct buf text = BUF_INIT;
    struct token_list ids = TOKEN_LIST_INIT;
    while (text.len < n)
        buf_add_str(&text, fill);
    tok_steps = 0;
    assert_ok(tokenizer_encode(t, buf_str(&text), text.len, true, &ids, &err), &err);
    token_list_release(&ids);
    buf_release(&text);
    return tok_steps;
}

static void test_steps(void **state)
{
    (void)state;
    enum { N = 6000 }; /* bytes; n log n still is less than 2.2 times as much for twice of it */
    tok_steps_patterns = true;
    int n_bad = 0;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char path[128];
        struct tokenizer *t = NULL;
        snprintf(path, sizeof path, SMALL "/%s", families[f]);
        assert_ok(tokenizer_open(&t, path, &err), &err);
        uint64_t all = 0;
        for (size_t i = 0; i < sizeof fills / sizeof *fills; i++) {
            uint64_t once = steps_of(t, fills[i], N);
            uint64_t twice = steps_of(t, fills[i], (size_t)2 * N);
            all += once;
            if ((double)twice <= 2.2 * (double)once + 2)
                continue;
            print_error("%s \"%s\": %lu steps, %lu for twice the text\n", families[f], fills[i],
                        (unsigned long)once, (unsigned long)twice);
            n_bad++;
        }
        assert_true(all > N); /* it was counted */
        tokenizer_free(t);
    }
    tok_steps_patterns = false;
    assert_int_equal(n_bad, 0);
}

/* That steps tell: a pattern that looks through the rest of the text at every place. */
static void test_a_quadratic_pattern_shows(void **state)
{
    (void)state;
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(?=a*$)\"},\"behavior\":"
        "\"Isolated\",\"invert\":false},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":"
        "[]}}";
    struct tokenizer *t = NULL;
    tok_steps_patterns = true;
    assert_ok(tokenizer_from_json(&t, json, sizeof json - 1, &err), &err);
    uint64_t once = steps_of(t, "a", 500);
    uint64_t twice = steps_of(t, "a", 1000);
    tok_steps_patterns = false;
    assert_true(twice > 3 * once);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps),
                                       cmocka_unit_test(test_a_quadratic_pattern_shows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
