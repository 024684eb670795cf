/* SPDX-License-Identifier: Apache-2.0 */
/* Sources made to take long: each is refused after a bounded number of steps, with what was too
 * much. Without its bound each of them takes from seconds to hours, which the test's limit notices;
 * no time is looked at here. */
#include "check.h"
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "engine/grammar/grammar.h"

static void refused(struct buf *source, uint32_t kind, const char *why)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    const struct grammar_source from = {
        .kind = kind,
        .text = buf_str(source),
        .n = source->len,
        .work_max = 16000000,
    };
    enum q_code rc = grammar_compile(&words, &n_word, &from, &e);
    if (rc != Q_TOO_LARGE || !strstr(e.message, why))
        fail_msg("%.60s…: %d, \"%s\"", buf_str(source), (int)rc, e.message);
    q_free(words);
    buf_release(source);
}

/* Each value is looked for in the other list. */
static void enums_that_meet(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"allOf\":[{\"enum\":[0");
    for (uint32_t i = 1; i < 70000; i++)
        buf_printf(&b, ",%u", i);
    buf_printf(&b, "]},{\"enum\":[0");
    for (uint32_t i = 35000; i < 105000; i++)
        buf_printf(&b, ",%u", i);
    buf_printf(&b, "]}]}");
    refused(&b, GRAMMAR_JSON, " steps");
}

/* The same thousands of keywords again and again. */
static void references_to_something_large(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"$defs\":{\"x\":{\"k\":1");
    for (uint32_t i = 0; i < 50000; i++)
        buf_printf(&b, ",\"k%u\":1", i);
    buf_printf(&b, "}},\"allOf\":[{}");
    for (uint32_t i = 0; i < 3000; i++)
        buf_printf(&b, ",{\"allOf\":[{\"$ref\":\"#/$defs/x\"},{\"minimum\":%u}]}", i);
    buf_printf(&b, "]}");
    refused(&b, GRAMMAR_JSON, " steps");
}

/* Products of sets of hundreds of ranges. */
static void patterns_of_many_ranges(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"patternProperties\":{\"\\\\W\":{}");
    for (uint32_t i = 0; i < 11; i++)
        buf_printf(&b, ",\"\\\\W%u\":{}", i);
    buf_printf(&b, "},\"properties\":{\"p\":{}");
    for (uint32_t i = 0; i < 4900; i++)
        buf_printf(&b, ",\"p%u\":{}", i);
    buf_printf(&b, "}}");
    refused(&b, GRAMMAR_JSON, " steps");
}

/* May both hold? Thirty required properties, each with thirty more, five levels down: it is not
 * looked at to the end, and what may hold together is negated. */
static void options_within_options(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    buf_printf(&b, "{\"oneOf\":[{\"$ref\":\"#/$defs/a0\"},{\"$ref\":\"#/$defs/b0\"}],\"$defs\":{"
                   "\"a5\":{\"type\":\"integer\"},\"b5\":{\"type\":\"number\"}");
    for (uint32_t i = 0; i < 10; i++) {
        buf_printf(&b, ",\"%c%u\":{\"type\":\"object\",\"required\":[\"p\"", "ab"[i / 5], i % 5);
        for (uint32_t k = 0; k < 30; k++)
            buf_printf(&b, ",\"p%u\"", k);
        buf_printf(&b, "],\"properties\":{\"p\":{}");
        for (uint32_t k = 0; k < 30; k++)
            buf_printf(&b, ",\"p%u\":{\"$ref\":\"#/$defs/%c%u\"}", k, "ab"[i / 5], i % 5 + 1);
        buf_printf(&b, "}}");
    }
    buf_printf(&b, "}}");
    const struct grammar_source from = {
        .kind = GRAMMAR_JSON,
        .text = buf_str(&b),
        .n = b.len,
        .work_max = 12000000,
    };
    if (grammar_compile(&words, &n_word, &from, &e))
        fail_msg("%s", e.message);
    q_free(words);
    buf_release(&b);
}

static void rules_upon_rules(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "root ::= a0");
    for (uint32_t i = 0; i < 40000; i++)
        buf_printf(&b, "\na%u ::= \"x\" a%u", i, i + 1);
    buf_printf(&b, "\na40000 ::= \"z\"");
    refused(&b, GRAMMAR_EBNF, " steps");
}

/* One reference leads to the next: the stack would not end. */
static void references_in_a_row(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{\"d180000\":true");
    for (uint32_t i = 0; i < 180000; i++)
        buf_printf(&b, ",\"d%u\":{\"$ref\":\"#/$defs/d%u\"}", i, i + 1);
    buf_printf(&b, "}}");
    refused(&b, GRAMMAR_JSON, "#: more than 2000 references and allOf inside each other");
}

/* The last of thousands of properties, again and again. */
static void names_required_again(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"properties\":{\"p\":true");
    for (uint32_t i = 0; i < 4900; i++)
        buf_printf(&b, ",\"p%u\":true", i);
    buf_printf(&b, "},\"required\":[\"p4899\"");
    for (uint32_t i = 0; i < 800000; i++)
        buf_printf(&b, ",\"p4899\"");
    buf_printf(&b, "]}");
    refused(&b, GRAMMAR_JSON, " steps");
}

/* Each name is looked for among all of them. */
static void anchors_of_many_names(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"$defs\":{\"d\":true");
    for (uint32_t i = 0; i < 160000; i++)
        buf_printf(&b, ",\"d%u\":{\"$dynamicAnchor\":\"n%u\"}", i, i);
    buf_printf(&b, "}}");
    refused(&b, GRAMMAR_JSON, " steps");
}

/* A schema of as many bytes as are allowed, most of them a description, and one byte more. */
static void sources_up_to_the_limit(void **state)
{
    (void)state;
    static const char begin[] = "{\"type\":\"integer\",\"description\":\"", end[] = "\"}";
    for (size_t more = 0; more < 2; more++) {
        struct q_err e = Q_ERR_INIT;
        uint32_t *words = NULL, n_word = 0;
        struct buf b = BUF_INIT;
        buf_add_str(&b, begin);
        while (b.len < GRAMMAR_SOURCE_MAX + more - (sizeof end - 1))
            buf_add_char(&b, 'd');
        buf_add_str(&b, end);
        const struct grammar_source from = {.kind = GRAMMAR_JSON, .text = buf_str(&b), .n = b.len};
        enum q_code rc = grammar_compile(&words, &n_word, &from, &e);
        assert_int_equal(rc, more ? Q_TOO_LARGE : Q_OK);
        assert_true(!more || strstr(e.message, "8388609 bytes, the limit is 8388608"));
        q_free(words);
        buf_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_in_a_row),     cmocka_unit_test(names_required_again),
        cmocka_unit_test(anchors_of_many_names),   cmocka_unit_test(sources_up_to_the_limit),
        cmocka_unit_test(enums_that_meet),         cmocka_unit_test(references_to_something_large),
        cmocka_unit_test(patterns_of_many_ranges), cmocka_unit_test(options_within_options),
        cmocka_unit_test(rules_upon_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
