/* SPDX-License-Identifier: Apache-2.0 */
/* Thinking budgets: the words, and the state after the tokens of an output. */
#include "check.h"
#include <string.h>
#include "engine/worker/thinking_state.h"

/* ---- a vocabulary and the words of a limit ---- */

static const char *const tokens[] = {"a",
                                     "b",
                                     " ",
                                     "\n",
                                     "<",
                                     "</",
                                     "think",
                                     ">",
                                     "/",
                                     "t",
                                     "h",
                                     "i",
                                     "n",
                                     "k",
                                     ">x",
                                     "x</th",
                                     "[",
                                     "]",
                                     "[]",
                                     "\xff</think>\xff",
                                     "",
                                     "ab",
                                     "\xff<think>\xff"};
#define N_TOKEN ((uint32_t)(sizeof tokens / sizeof *tokens))

static char text[512];
static uint32_t at[N_TOKEN + 1];

static size_t longest(const void *ctx, const char *s, size_t n, uint32_t *token)
{
    size_t most = 0;
    (void)ctx;
    for (uint32_t i = 0; i < N_TOKEN; i++) {
        const size_t length = strlen(tokens[i]);
        if (length > most && length <= n && !memcmp(tokens[i], s, length)) {
            most = length;
            *token = i;
        }
    }
    return most;
}

static struct thinking_vocabulary vocabulary = {text, at, N_TOKEN, longest, NULL};

static int make_vocabulary(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_TOKEN; i++) {
        memcpy(text + at[i], tokens[i], strlen(tokens[i]));
        at[i + 1] = at[i] + (uint32_t)strlen(tokens[i]);
    }
    return 0;
}

static uint32_t id_of(const char *token)
{
    for (uint32_t i = 0; i < N_TOKEN; i++)
        if (!strcmp(tokens[i], token))
            return i;
    fail_msg("no token %s", token);
    return 0;
}

struct words {
    uint32_t data[THINKING_BUDGET_WORDS_MAX + 8];
    uint32_t n;
};

/* ids: of an end, tokens divided by '|'. */
static void add_tag(struct words *w, uint32_t kind, const char *tag, const char *ids)
{
    uint32_t *head = w->data + w->n;
    head[0] = kind;
    head[1] = (uint32_t)strlen(tag);
    head[2] = 0;
    w->n += 3;
    for (const char *c = tag; *c; c++)
        w->data[w->n++] = (unsigned char)*c;
    while (ids && *ids) {
        char one[32];
        const size_t n = strcspn(ids, "|");
        snprintf(one, sizeof one, "%.*s", (int)n, ids);
        w->data[w->n++] = id_of(one);
        head[2]++;
        ids += n + (ids[n] == '|');
    }
}

static struct words words;

static struct thinking_budget limit(uint32_t max_tokens, uint32_t flags, const char *ids)
{
    struct thinking_budget b;
    words.n = 0;
    words.data[words.n++] = max_tokens;
    words.data[words.n++] = flags;
    add_tag(&words, THINKING_START, "<think>", NULL);
    add_tag(&words, THINKING_END_OF, "</think>", ids);
    add_tag(&words, THINKING_START, "[", NULL);
    add_tag(&words, THINKING_END_OF, "]", "]");
    add_tag(&words, THINKING_END, "kb", NULL);
    assert_true(thinking_budget_view(&b, words.data, words.n, N_TOKEN));
    return b;
}

/* The model's tokens, divided by '|', but where one is forced, in whose place the model's is not
 * read; the output's text, forced tokens within braces. */
static const char *run(const struct thinking_budget *b, const char *model)
{
    static char out[512];
    struct thinking_state s;
    out[0] = 0;
    thinking_state_begin(&s, b);
    while (*model) {
        char one[32];
        const size_t n = strcspn(model, "|");
        uint32_t token;
        const bool forced = thinking_state_forces(&s, b, &vocabulary, &token);
        snprintf(one, sizeof one, "%.*s", (int)n, model);
        if (!forced)
            token = id_of(one);
        const size_t length = strlen(out);
        snprintf(out + length, sizeof out - length, forced ? "{%s}" : "%s", tokens[token]);
        thinking_state_read(&s, b, &vocabulary, token);
        model += n + (model[n] == '|');
    }
    return out;
}

/* ---- tests ---- */

#define MANY   "</|think|>"       /* the end as three tokens */
#define SINGLE "\xff</think>\xff" /* as one */

static void the_end_is_forced_when_the_limit_is_reached(void **state)
{
    (void)state;
    struct thinking_budget b = limit(0, THINKING_OPENED, MANY);
    assert_string_equal(run(&b, "a|a|a|a|b|a"), "{</}{think}{>}aba");
    b = limit(2, THINKING_OPENED, MANY);
    assert_string_equal(run(&b, "a|b|a|a|b|a|<|think|>|a|a|a"), "ab{</}{think}{>}a<think>aaa");
    b = limit(2, THINKING_OPENED, SINGLE);
    assert_string_equal(run(&b, "a||a|a"), "a{" SINGLE "}a");
    assert_string_equal(run(&b, "a|</|a|a"), "a</{" SINGLE "}a"); /* one token is not spelled */
    b = limit(9, THINKING_OPENED, MANY);
    assert_string_equal(run(&b, "a|</|think|>x|a|a|a|a|a|a|a|a|a"), "a</think>xaaaaaaaaa");
    b = limit(UINT32_MAX, THINKING_OPENED, MANY);
    assert_string_equal(run(&b, "a|a|a"), "aaa");
}

/* What the model has begun of the tag at the border is completed, in its own cut into tokens. */
static void a_begun_end_is_completed(void **state)
{
    (void)state;
    struct thinking_budget b = limit(2, THINKING_OPENED, MANY);
    assert_string_equal(run(&b, "a|</|b|b|a"), "a</{think}{>}a");
    assert_string_equal(run(&b, "</|think|b|a"), "</think{>}a");
    assert_string_equal(run(&b, "a|<|b|b|b|a"), "a<{/}{think}{>}a");
    assert_string_equal(run(&b, "a|x</th|b|b|b|b|a"), "ax</th{i}{n}{k}{>}a");
    assert_string_equal(run(&b, "</|<|b|b|b|a"), "</<{/}{think}{>}a"); /* begun anew */
    assert_string_equal(run(&b, "</|think|>x|a"), "</think{>}a");
}

static void reasoning_begins_at_the_start(void **state)
{
    (void)state;
    struct thinking_budget b = limit(1, 0, MANY);
    assert_string_equal(run(&b, "<|think|>|a|a|a|a|a"), "<think>a{</}{think}{>}a");
    assert_string_equal(run(&b, " |\n|"
                                "\xff<think>\xff"
                                "|a|a|a|a|a"),
                        " \n\xff<think>\xff"
                        "a{</}{think}{>}a");
    assert_string_equal(run(&b, "a|<|think|>|a|a|a"), "a<think>aaa"); /* behind other text */
    assert_string_equal(run(&b, "<|a|<|think|>|a|a|a"), "<a<think>aaa");
    assert_string_equal(run(&b, "<|think|>|</|think|>|<|think|>|a|a"),
                        "<think></{think}{>}<think>aa");
    b = limit(2, THINKING_AGAIN, MANY); /* over all parts, with the ends of those before */
    assert_string_equal(run(&b, "a|<|think|>|a|\xff</think>\xff|a|<|think|>|a|a|a|a"),
                        "a<think>a\xff</think>\xff"
                        "a<think>{</}{think}{>}a");
}

static void every_start_has_its_end(void **state)
{
    (void)state;
    struct thinking_budget b = limit(1, 0, MANY);
    assert_string_equal(run(&b, "[|a|b|a"), "[a{]}a");
    assert_string_equal(run(&b, "[]|a|b|a"), "[]aba"); /* both in a token */
    b = limit(3, 0, MANY);
    assert_string_equal(run(&b, "[|\xff</think>\xff|a|b|a"),
                        "[" SINGLE "aba"); /* any end ends it */
    assert_string_equal(run(&b, "[|k|b|a|b|a"), "[kbaba");
    assert_string_equal(run(&b, "[|k|a|a|b|a"), "[kaa{]}a");
}

static uint64_t drawn = 1;

static uint32_t draw(uint32_t n)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(drawn >> 33) % n;
}

/* Any tokens: no more than the limit begin before the end tag, and the end comes at once. */
static void no_output_reasons_longer(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 3000; round++) {
        const uint32_t max = draw(12);
        const struct thinking_budget b = limit(max, THINKING_OPENED, round % 2 ? MANY : SINGLE);
        char out[512] = "";
        size_t begins[40];
        struct thinking_state s;
        thinking_state_begin(&s, &b);
        for (uint32_t i = 0; i < 40; i++) {
            uint32_t token;
            if (!thinking_state_forces(&s, &b, &vocabulary, &token))
                token = draw(16);
            begins[i] = strlen(out);
            for (const char *c = tokens[token]; *c; c++)
                if (*c != '\xff')
                    strncat(out, c, 1);
            thinking_state_read(&s, &b, &vocabulary, token);
        }
        const char *think = strstr(out, "</think>"), *brace = strstr(out, "]"),
                   *call = strstr(out, "kb");
        const char *ends[] = {think, brace, call}, *end = NULL;
        for (size_t i = 0; i < 3; i++)
            end = ends[i] && (!end || ends[i] < end) ? ends[i] : end;
        assert_non_null(end);
        uint32_t n = 0;
        while (n < 40 && begins[n] < (size_t)(end - out))
            n++;
        if (n > max)
            fail_msg("round %u: %u tokens of %u before the end in %s", round, n, max, out);
    }
}

static void wrong_words_are_none(void **state)
{
    (void)state;
    struct thinking_budget b = limit(1, 0, MANY);
    const struct words good = words;
    for (uint32_t n = 0; n < good.n; n++) /* cut short: the last tag is whole at some places */
        if (thinking_budget_view(&b, good.data, n, N_TOKEN))
            assert_true(b.n_tag == 2 || b.n_tag == 4);
    assert_false(thinking_budget_view(&b, good.data, good.n, 5)); /* ids of another vocabulary */
    for (uint32_t i = 1; i < good.n; i++) {
        struct words bad = good;
        bad.data[i] = UINT32_MAX;
        assert_false(thinking_budget_view(&b, bad.data, bad.n, N_TOKEN));
    }
    struct words many = {.data = {1, 0}, .n = 2};
    for (uint32_t i = 0; i <= THINKING_BUDGET_TAGS_MAX / 2; i++) {
        add_tag(&many, THINKING_START, "[", NULL);
        add_tag(&many, THINKING_END_OF, "]", "]");
    }
    assert_false(thinking_budget_view(&b, many.data, many.n, N_TOKEN));
    struct words no_start = {.data = {1, 0}, .n = 2};
    assert_false(thinking_budget_view(&b, no_start.data, no_start.n, N_TOKEN));
    add_tag(&no_start, THINKING_END, "]", NULL);
    assert_false(thinking_budget_view(&b, no_start.data, no_start.n, N_TOKEN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_forced_when_the_limit_is_reached),
        cmocka_unit_test(a_begun_end_is_completed),
        cmocka_unit_test(reasoning_begins_at_the_start),
        cmocka_unit_test(every_start_has_its_end),
        cmocka_unit_test(no_output_reasons_longer),
        cmocka_unit_test(wrong_words_are_none),
    };
    return cmocka_run_group_tests(tests, make_vocabulary, NULL);
}
