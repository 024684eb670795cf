/* SPDX-License-Identifier: Apache-2.0 */
/* Masks over a vocabulary like a model's, most of it text: what is taken at once (all text, whole
 * subtrees, a counted loop's rounds) is what the matcher takes token by token, and few nodes of the
 * trie are looked at for it. */
#include "check.h"
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher/matcher.h"

#define N_TOKEN 3000u

static uint32_t draw(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

/* Words of one to six characters; one in ten is cut inside of a character, or has a byte that no
 * text has, or what ends a string. */
static void make_vocabulary(struct trie *t)
{
    static const char *const pieces[] = {
        "a", "b", "e", "n", "x",  "A",  "Z", "0", "1", "7",  " ",  " t",           "-",   "_", ".",
        ":", "/", "é", "ß", "字", "の", "…", "😀", "𝒜", "th", "in", "\xed\x9f\xbf", "\x7f"};
    static const char *const ends[] = {"\xc3",     "\xe2\x82", "\xf0\x9f\x98", "\xa9", "\xff",
                                       "\"",       "\\",       "\n",           "\",",  "\"}",
                                       "\xed\xa0", "\xc0\x80", "\xf5",         "é\"",  "\t"};
    static char text[N_TOKEN * 32];
    static uint32_t at[N_TOKEN + 1];
    struct q_err e = Q_ERR_INIT;
    uint32_t used = 0, seed = 11;
    for (uint32_t i = 0; i < N_TOKEN; i++) {
        at[i] = used;
        if (i < 256) {
            text[used++] = (char)i;
            continue;
        }
        for (uint32_t k = 0, n = 1 + draw(&seed, 6); k < n; k++) {
            const char *p = pieces[draw(&seed, sizeof pieces / sizeof *pieces)];
            used += (uint32_t)snprintf(text + used, 8, "%s", p);
        }
        if (i % 10 == 0)
            used += (uint32_t)snprintf(text + used, 8, "%s",
                                       ends[draw(&seed, sizeof ends / sizeof *ends)]);
    }
    at[N_TOKEN] = used;
    assert_int_equal(trie_init(t, text, at, N_TOKEN, &e), Q_OK);
}

static struct matcher *compiled(const char *schema, const struct trie *t)
{
    struct q_err e = Q_ERR_INIT;
    struct matcher *m = NULL;
    uint32_t *words = NULL, n_word = 0;
    const struct grammar_source source = {
        .kind = GRAMMAR_JSON,
        .text = schema,
        .n = strlen(schema),
    };
    if (grammar_compile(&words, &n_word, &source, &e) || matcher_new(&m, words, n_word, t, &e))
        fail_msg("%s: %s", schema, e.message);
    q_free(words);
    return m;
}

/* The mask behind the text; how many tokens it has. */
static uint32_t check_mask(struct matcher *m, const struct trie *t, const char *text)
{
    uint32_t bits[(N_TOKEN + 31) / 32] = {0}, n = 0;
    matcher_begin(m);
    matcher_config c = matcher_bytes(m, matcher_start(m), text, strlen(text));
    assert_true(c);
    assert_true(matcher_mask(m, c, bits));
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        uint32_t bit = bits[id / 32] >> id % 32 & 1;
        if ((matcher_token(m, c, id) != 0) != bit)
            fail_msg("behind %s: token %u", text, id);
        n += bit;
    }
    return n;
}

static void shortcuts_take_what_the_matcher_takes(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *texts[6];
    } cases[] = {
        {"{\"type\":\"string\"}", {"\"", "\"a", "\"\xc3", "\"\xf0\x9f", "\"\\", "\"\\u00e"}},
        {"{\"type\":\"string\",\"maxLength\":7}",
         {"\"", "\"ab", "\"a字", "\"\xe5\xad", "\"aaaaaaa"}},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":900}", {"\"", "\"ab", "\"abcé"}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z0-9]+$\"}", {"\"", "\"a", "\"a7"}},
        {"{\"type\":\"string\",\"pattern\":\"^[^a]*$\"}", {"\"", "\"b", "\"\xe5\xad"}},
        {"{\"type\":\"string\",\"pattern\":\"^[ -~é]*$\"}", {"\"", "\"b", "\"\xc3"}},
        {"{\"type\":\"string\",\"not\":{\"enum\":[\"ab\",\"né\",\"字\",\"😀x\"]}}",
         {"\"", "\"a", "\"n", "\"n\xc3", "\"\xe5", "\"zz"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"in\":{}},\"additionalProperties\":{"
         "\"type\":\"string\",\"maxLength\":2}}",
         {"{\"", "{\"a", "{\"in\":1,\"", "{\"i", "{\"x\":\"", "{\"x\":\"é"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^.{2,40}b$\"}}",
         {"[\"", "[\"a", "[\"aab", "[\"aab\","}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-zé字]+$\",\"maxLength\":6}",
         {"\"", "\"a", "\"\xc3", "\"aaé", "\"aaaaa", "\"aaaaa字"}},
        {"{\"type\":\"string\",\"pattern\":\"^a.*b$\",\"minLength\":3,\"maxLength\":5}",
         {"\"", "\"a", "\"ax", "\"axb", "\"a\\", "\"axxx"}},
        {"{\"type\":\"string\",\"pattern\":\"^(ab|e:)*x?$\",\"maxLength\":900}",
         {"\"", "\"a", "\"ab", "\"abx"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[^a]*$\",\"maxLength\":"
         "4}}",
         {"[\"", "[\"b", "[\"bbb", "[\"bbbb", "[\"\xe5\xad", "[\"b\""}},
    };
    struct trie t;
    make_vocabulary(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct matcher *m = compiled(cases[i].schema, &t);
        for (size_t k = 0; k < 6 && cases[i].texts[k]; k++)
            check_mask(m, &t, cases[i].texts[k]);
        matcher_free(m);
    }
    trie_release(&t);
}

static const char *const bounded[] = {
    "{\"type\":\"string\",\"pattern\":\"^(ab|aeen)+$\",\"maxLength\":7}",
    "{\"type\":\"string\",\"pattern\":\"^a+(n|字b)?e{3}$\",\"minLength\":6,\"maxLength\":9}",
    "{\"type\":\"string\",\"format\":\"uri\",\"minLength\":8,\"maxLength\":11}",
    "{\"type\":\"string\",\"pattern\":\"x[ab]*7$\",\"maxLength\":5}"};

/* Whatever tokens of the masks are taken, a text can be ended: no length is run into. */
static void lengths_lead_to_an_end(void **state)
{
    (void)state;
    struct trie t;
    uint32_t seed = 5;
    make_vocabulary(&t);
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded * 40; i++) {
        struct matcher *m = compiled(bounded[i / 40], &t);
        matcher_begin(m);
        matcher_config c = matcher_start(m);
        for (uint32_t n = 0; !matcher_must_end(m, c); n++) {
            uint32_t bits[(N_TOKEN + 31) / 32] = {0}, id = draw(&seed, N_TOKEN);
            assert_true(n < 20 && matcher_mask(m, c, bits));
            uint32_t tried = 0;
            for (; tried < N_TOKEN && !(bits[id / 32] >> id % 32 & 1); tried++)
                id = (id + 1) % N_TOKEN;
            if (tried == N_TOKEN)
                fail_msg("%s: nothing may come", bounded[i / 40]);
            c = matcher_token(m, c, id);
        }
        matcher_free(m);
    }
    trie_release(&t);
}

/* Inside of a string, at its start with other names left out, and with a limit: no node of a token
 * that is text throughout is looked at but to see that it is. */
static void text_is_not_walked(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text;
    } cases[] = {
        {"{\"type\":\"string\"}", "\"a"},
        {"{\"type\":\"string\",\"maxLength\":500}", "\"a"},
        {"{\"properties\":{\"ab\":{}},\"required\":[\"ab\"],\"type\":\"object\"}", "{\"ab\":1,\"a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trie t;
        struct matcher_stats s;
        make_vocabulary(&t);
        struct matcher *m = compiled(cases[i].schema, &t);
        assert_true(check_mask(m, &t, cases[i].text) > t.n_vocab * 3 / 4);
        matcher_stats(m, &s);
        assert_true(s.n_node > 0 && s.n_node <= s.n_walk * (t.n_all - t.n_node));
        assert_true(t.n_all - t.n_node < t.n_node / 3);
        matcher_free(m);
        trie_release(&t);
    }
}

/* Schemas of sizes that real ones have, each with a text at its far end. */
static void large_schemas_are_followed(void **state)
{
    (void)state;
    struct buf schema[3] = {BUF_INIT, BUF_INIT, BUF_INIT}, text[3] = {BUF_INIT, BUF_INIT, BUF_INIT};
    const uint32_t n[3] = {5000, 1000, 400};
    buf_printf(&schema[0], "{\"enum\":[\"x\"");
    buf_printf(&schema[1], "{\"type\":\"object\",\"properties\":{\"x\":{}");
    buf_printf(&schema[2], "{\"$ref\":\"#/$defs/d0\",\"$defs\":{\"d400\":{\"const\":1}");
    for (uint32_t i = 0; i < n[0]; i++)
        buf_printf(&schema[0], ",\"some value %u\"", i);
    for (uint32_t i = 0; i < n[1]; i++)
        buf_printf(&schema[1], ",\"property_%u\":{\"type\":\"integer\"}", i);
    for (uint32_t i = 0; i < n[2]; i++)
        buf_printf(&schema[2],
                   ",\"d%u\":{\"properties\":{\"k\":{\"$ref\":\"#/$defs/d%u\"}},\"type\":"
                   "\"object\"}",
                   i, i + 1);
    buf_printf(&schema[0], "]}");
    buf_printf(&schema[1], "}}");
    buf_printf(&schema[2], "}}");
    buf_printf(&text[0], "\"some value 4999\"");
    buf_printf(&text[1], "{\"property_0\":1,\"property_5\":2,\"property_999\":3}");
    for (uint32_t i = 0; i < 120; i++)
        buf_printf(&text[2], "{\"k\":");
    buf_printf(&text[2], "{}");
    for (uint32_t i = 0; i < 120; i++)
        buf_printf(&text[2], "}");
    for (int i = 0; i < 3; i++) {
        struct matcher *m = compiled(buf_str(&schema[i]), NULL);
        matcher_begin(m);
        matcher_config c = matcher_bytes(m, matcher_start(m), buf_str(&text[i]), text[i].len);
        assert_true(c && matcher_can_end(m, c));
        matcher_free(m);
        buf_release(&schema[i]);
        buf_release(&text[i]);
    }
}

/* Every property of a large object, with and without other names, with a required one here and
 * there, and with a least number of them: no mask looks at more than some thousand pairs, and
 * little is forgotten on the way. */
static void a_thousand_properties_come_one_by_one(void **state)
{
    (void)state;
    static const char *const ends[] = {"},\"additionalProperties\":false}", "}}",
                                       "},\"required\":[\"property_0500\"]}",
                                       "},\"additionalProperties\":false,\"minProperties\":3}",
                                       "},\"additionalProperties\":false,\"maxProperties\":1000}"};
    struct trie t;
    make_vocabulary(&t);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct buf schema = BUF_INIT, text = BUF_INIT;
        struct matcher_stats s;
        buf_printf(&schema, "{\"type\":\"object\",\"properties\":{\"property_0000\":{}");
        buf_printf(&text, "{\"property_0000\":true");
        for (uint32_t k = 1; k < 1000; k++) {
            buf_printf(&schema, ",\"property_%04u\":{\"type\":\"%s\"}", k,
                       k % 2 ? "integer" : "string");
            buf_printf(&text, k % 2 ? ",\"property_%04u\":%u" : ",\"property_%04u\":\"%u\"", k, k);
        }
        buf_printf(&schema, "%s", ends[i]);
        buf_printf(&text, "}");
        struct matcher *m = compiled(buf_str(&schema), &t);
        matcher_limit(m, 20000);
        uint32_t generation = matcher_begin(m);
        matcher_config c = matcher_start(m);
        for (size_t k = 0; k < text.len && c; k++) {
            uint32_t bits[(N_TOKEN + 31) / 32] = {0}, now = matcher_begin(m);
            uint8_t byte = (uint8_t)text.data[k];
            if (now != generation)
                c = matcher_bytes(m, matcher_start(m), text.data, k);
            generation = now;
            if (!matcher_mask(m, c, bits) || !(bits[byte / 32] >> byte % 32 & 1))
                fail_msg("%s: no mask at byte %zu", ends[i], k);
            c = matcher_token(m, c, byte);
        }
        matcher_stats(m, &s);
        assert_true(c && matcher_can_end(m, c));
        assert_true(s.n_flush <= 2 && s.n_walk < 40000);
        matcher_free(m);
        buf_release(&schema);
        buf_release(&text);
    }
    trie_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shortcuts_take_what_the_matcher_takes),
                                       cmocka_unit_test(lengths_lead_to_an_end),
                                       cmocka_unit_test(large_schemas_are_followed),
                                       cmocka_unit_test(text_is_not_walked),
                                       cmocka_unit_test(a_thousand_properties_come_one_by_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
