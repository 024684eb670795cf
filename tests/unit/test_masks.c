/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps tokens from coming, from JSON to sampling parameters. */
#include "check.h"
#include <jansson.h>
#include "common/mem.h"
#include "frontend/api/params_sampling.h"

static struct q_err e;
static struct params p;
static struct params_ids ids;
static struct sample_params s;
static json_t *body;

/* The sampling parameters of a body, for a vocabulary of 300. */
static enum q_code read_body(const char *text)
{
    const struct params_context c = {NULL, 300, 20};
    json_error_t je;
    json_decref(body);
    body = json_loads(text, 0, &je);
    assert_non_null(body);
    q_err_reset(&e);
    enum q_code rc = params_read(&p, body, WHERE_TEXT, &e);
    return rc == Q_OK ? params_sampling(&p, &c, &s, &ids, &e) : rc;
}

static void allowed_ids_are_checked(void **state)
{
    (void)state;
    assert_ok(read_body("{\"allowed_token_ids\":[5,299,5]}"), &e);
    assert_int_equal(s.n_allowed, 3);
    assert_int_equal(s.allowed_ids[1], 299);
    assert_ok(read_body("{\"allowed_token_ids\":null}"), &e);
    assert_int_equal(s.n_allowed, 0);
    assert_fails(read_body("{\"allowed_token_ids\":[]}"), Q_INVALID, "0 entries", &e);
    assert_fails(read_body("{\"allowed_token_ids\":[1,300]}"), Q_INVALID,
                 "entry 1 is not a token id", &e);
    assert_string_equal(p.param, "allowed_token_ids");
    assert_fails(read_body("{\"allowed_token_ids\":[\"1\"]}"), Q_INVALID, "entry 0", &e);
}

static void processors_are_looked_up(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"logits_processors\":[{\"qualname\":\"no_repeat_ngram\",\"args\":[3,50]}]}",
        "{\"logits_processors\":[{\"qualname\":\"no_repeat_ngram\",\"args\":[3],"
        "\"kwargs\":{\"window_size\":50}}]}",
        "{\"logits_processors\":[{\"name\":\"no_repeat_ngram\",\"kwargs\":{\"window_size\":50,"
        "\"ngram_size\":3}}]}"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_ok(read_body(same[i]), &e);
        assert_int_equal(s.no_repeat_ngram, 3);
        assert_int_equal(s.no_repeat_window, 50);
    }
    assert_ok(read_body("{\"no_repeat_ngram_size\":4,\"top_n_sigma\":-1}"), &e);
    assert_int_equal(s.no_repeat_ngram, 4);
    assert_true(s.top_n_sigma == 0);
    assert_ok(read_body("{\"logits_processors\":[{\"qualname\":\"top_n_sigma\",\"args\":[1.5]},"
                        "{\"qualname\":\"suppress_tokens\",\"args\":[[7,8]]}]}"),
              &e);
    assert_true(s.top_n_sigma == 1.5f);
    assert_int_equal(s.n_bad, 4);
    assert_true(s.bad_words[0] == 1 && s.bad_words[1] == 7 && s.bad_words[3] == 8);
}

static void wrong_processors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *list, *part;
    } cases[] = {
        {"[\"os.system\"]",
         "unknown processor \"os.system\"; accepted are no_repeat_ngram(ngram_size, "
         "window_size), suppress_tokens(token_ids), top_n_sigma(n)"},
        {"[\"top_n_sigma\"]", "the argument n is missing"},
        {"[5]", "got an integer"},
        {"[{\"qualname\":\"top_n_sigma\",\"args\":[-1]}]", "a number from 0 to 1000"},
        {"[{\"qualname\":\"top_n_sigma\",\"args\":[1,2]}]", "unknown or too many arguments"},
        {"[{\"qualname\":\"top_n_sigma\",\"args\":[1],\"kwargs\":{\"x\":1}}]",
         "unknown or too many"},
        {"[{\"qualname\":\"no_repeat_ngram\",\"args\":[2.5]}]", "an integer from 1 to 64"},
        {"[{\"qualname\":\"suppress_tokens\",\"args\":[7]}]", "expected an array"},
        {"[{\"qualname\":\"suppress_tokens\",\"args\":[[300]]}]", "entry 0 is not a token id"},
    };
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"logits_processors\":%s}", cases[i].list);
        assert_fails(read_body(text), Q_INVALID, cases[i].part, &e);
        assert_string_equal(p.param, "logits_processors");
    }
}

/* gpt2's tokenizer: " the" is another single token than "the", so both are bad. */
static void bad_words_become_sequences(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct token_list plain = TOKEN_LIST_INIT, spaced = TOKEN_LIST_INIT;
    assert_ok(tokenizer_open(&t, "tests/data/tokenizers/gpt2", &e), &e);
    assert_ok(tokenizer_encode(t, "the", 3, false, &plain, &e), &e);
    assert_ok(tokenizer_encode(t, " the", 4, false, &spaced, &e), &e);
    assert_true(plain.n == 1 && spaced.n == 1); /* else this tests nothing */
    assert_ok(read_body("{\"bad_words\":[\" the\"]}"), &e);
    assert_ok(params_bad_words(&p, t, &s, &ids, &e), &e);
    const uint32_t want[] = {1, plain.ids[0], 1, spaced.ids[0]};
    assert_int_equal(s.n_bad, 4);
    assert_memory_equal(s.bad_words, want, sizeof want);
    assert_true(sample_bad_words_fit(s.bad_words, s.n_bad, 1u << 20));
    assert_ok(read_body("{\"bad_words\":[]}"), &e);
    assert_ok(params_bad_words(&p, NULL, &s, &ids, &e), &e);
    assert_int_equal(s.n_bad, 0);
    assert_ok(read_body("{\"bad_words\":[\"x\"]}"), &e);
    assert_fails(params_bad_words(&p, NULL, &s, &ids, &e), Q_UNSUPPORTED, "suppress_tokens", &e);
    assert_ok(read_body("{\"bad_words\":[\"x\",\"  \"]}"), &e);
    q_err_reset(&e);
    assert_fails(params_bad_words(&p, t, &s, &ids, &e), Q_INVALID, "entry 1", &e);
    assert_string_equal(p.param, "bad_words");
    assert_ok(read_body("{\"bad_words\":[5]}"), &e);
    assert_fails(params_bad_words(&p, t, &s, &ids, &e), Q_INVALID, "an integer", &e);
    token_list_release(&plain);
    token_list_release(&spaced);
    tokenizer_free(t);
}

static int release(void **state)
{
    (void)state;
    json_decref(body);
    params_ids_release(&ids);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allowed_ids_are_checked),
        cmocka_unit_test(processors_are_looked_up),
        cmocka_unit_test(wrong_processors_are_refused),
        cmocka_unit_test(bad_words_become_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
