/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars: what each notation accepts, what is refused and how, and masks against the matcher
 * itself, token by token, over a vocabulary made to cut texts at awkward places. */
#include "check.h"
#include "rounds.h"
#include <stdio.h>
#include <string.h>
#include "common/json_read.h"
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher/matcher.h"
#include "engine/grammar/automaton/program.h"

#define SOURCE(k, s) ((struct grammar_source){.kind = (k), .text = (s), .n = strlen(s)})

struct sample {
    uint32_t kind;
    const char *source;
    const char *good[6], *bad[8];
};

static const struct sample samples[] = {
    {GRAMMAR_REGEX, "[a-c]+\\d{2,3}", {"a12", "cab123"}, {"a1", "d12", "a1234", ""}},
    {GRAMMAR_REGEX, "(a|b)*abb|^x$", {"abb", "aababb", "x"}, {"ab", "xx", "abba"}},
    {GRAMMAR_REGEX, "é+[à-ü]{1,2}.", {"ééüx", "éàü€"}, {"éx", "e"}},
    {GRAMMAR_REGEX, "(?=.*[0-9])(?!.*bad)[a-z0-9]{4,}", {"abc1", "1aaaa"}, {"abcd", "1bad", "a1"}},
    {GRAMMAR_REGEX, "x{1000,2000}y", {NULL}, {"xy", "y"}},
    {GRAMMAR_REGEX, "(?:ab|a){0,5000}c", {"c", "abaabc"}, {"bc", "abb"}},
    {GRAMMAR_CHOICE, "[\"yes\",\"no\",\"né\"]", {"yes", "no", "né"}, {"y", "yesno", "ne"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":"
     "120},"
     "\"b\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":3}},\"required\":[\"a\"],"
     "\"additionalProperties\":false}",
     {"{\"a\":-3}", "{ \"a\": 120, \"b\":\"\\u00e9\\n\\\"\" }", "{\n  \"a\": 7\n}"},
     {"{\"a\":-4}", "{\"a\":121}", "{}", "{\"a\":1,\"b\":\"\"}", "{\"a\":1,\"b\":\"four\"}",
      "{\"a\":1.5}", "{\"a\":1,\"c\":1}"}},
    {GRAMMAR_JSON | GRAMMAR_COMPACT,
     "{\"type\":\"array\",\"items\":{\"enum\":[1,\"x\"]},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1,\"x\",1]"},
     {"[]", "[1, 1]", "[1,1,1,1]", "[2]"}},
    {GRAMMAR_JSON,
     "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{"
     "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},"
     "\"required\":[\"next\"],\"additionalProperties\":false}}}",
     {"{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"},
     {"{\"next\":{}}", "null"}},
    {GRAMMAR_JSON,
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\"}",
     {"{\"a\":1}", "{\"b\":[]}", "{\"b\":1,\"c\":2}"},
     {"{}", "{\"a\":1,\"b\":2}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"string\",\"pattern\":\"^a\\\"?b+$\",\"maxLength\":4}",
     {"\"ab\"", "\"a\\\"bb\""},
     {"\"abbbb\"", "\"a\"\"", "\"xab\""}},
    /* thousands of remainders, digits counted */
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"multipleOf\":33,\"not\":{\"multipleOf\":8},\"anyOf\":[{\"multipleOf\":"
     "49},{"
     "\"multipleOf\":25}]}",
     {"1617", "-825", "3234", "82500"},
     {"33", "1618", "12936", "0", "-6600", "1617.5"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"multipleOf\":9973}",
     {"9973", "-99730", "0", "19946", "99999999996381"},
     {"9974", "1", "09973", "9973.5"}},
    /* in old drafts an $id beside $ref is none */
    {GRAMMAR_JSON,
     "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"$id\":\"http://x/a/b/"
     "\",\"definitions\":{"
     "\"foo\":{\"$id\":\"http://x/a/"
     "foo.json\",\"type\":\"string\"},\"bar\":{\"$id\":\"foo.json\",\"type\":"
     "\"number\"}},\"allOf\":[{\"$id\":\"http://x/a/\",\"$ref\":\"foo.json\"}]}",
     {"1"},
     {"\"a\"", "null"}},
    /* excluded arrays and objects are taken apart */
    {GRAMMAR_JSON,
     "{\"not\":{\"enum\":[{\"a\":{\"b\":1}},[1,2],{},\"x\",7]},\"type\":[\"object\",\"array\","
     "\"string\"]}",
     {"{\"a\":{\"b\":2}}", "{\"b\":{\"b\":1}}", "[2,1]", "[1]", "{\"a\":{}}", "\"y\""},
     {"{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1.0}}", "[1,2]", "{}", "\"x\"", "8"}},
    /* 2 * 3 * 3 * 4 alternatives of a string, as one automaton */
    {GRAMMAR_JSON,
     "{\"type\":\"string\",\"allOf\":[{\"anyOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]},{"
     "\"anyOf\":[{"
     "\"pattern\":\"^c\"},{\"pattern\":\"^d\"},{\"enum\":[\"bx\",\"xx\"]}]},{\"anyOf\":[{\"not\":{"
     "\"pattern\":\"e\"}},{\"pattern\":\"ee\"},{\"type\":\"number\"}]},{\"anyOf\":[{\"maxLength\":"
     "3},{"
     "\"pattern\":\"1\"},{\"pattern\":\"2\"},{\"pattern\":\"3\"}]}],\"minLength\":2,\"maxLength\":"
     "6}",
     {"\"ca\"", "\"bx\"", "\"db3zzz\"", "\"ca1x\"", "\"cee1a\""},
     {"\"a\"", "\"xx\"", "\"cea\"", "\"cazz\"", "\"db3zzzz\"", "\"ac\"", "7"}},
    /* options that differ in one kind of value only, through allOf and references */
    {GRAMMAR_JSON,
     "{\"$defs\":{\"field\":{\"required\":[\"t\"]},\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/field\"}],"
     "\"properties\":{\"t\":{\"enum\":[\"a\"]},\"x\":{\"type\":\"integer\"}}},\"b\":{\"allOf\":[{"
     "\"$ref\":\"#/$defs/"
     "field\"}],\"properties\":{\"t\":{\"enum\":[\"b\"]}}}},\"oneOf\":[{\"$ref\":"
     "\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"},{\"type\":\"number\"}]}",
     {"{\"t\":\"a\"}", "{\"t\":\"b\",\"x\":\"any\"}"},
     {"1", "null", "\"a\"", "{}", "{\"t\":\"c\"}", "{\"t\":\"a\",\"x\":\"any\"}"}},
    /* what one requires and the other has no room for */
    {GRAMMAR_JSON,
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\","
     "\"b\"],"
     "\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":["
     "\"a\"],\"additionalProperties\":false},{\"properties\":{\"a\":{\"const\":1}},\"required\":["
     "\"c\"],"
     "\"type\":\"object\"}]}",
     {"{\"a\":1,\"b\":2}", "{\"a\":2}", "{\"a\":1,\"c\":2}", "{\"c\":[]}"},
     {"{}", "{\"a\":2,\"c\":1}", "{\"b\":1}", "{\"a\":1,\"b\":1,\"d\":1}"}},
    /* a condition inside of itself, negated again and again */
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"properties\":{\"type\":{\"anyOf\":[{\"enum\":[\"list\",\"text\"]},{"
     "\"$ref\":\"#\"}]},\"items\":{\"$ref\":\"#\"}},\"additionalProperties\":false,\"required\":["
     "\"type\"],\"if\":{\"properties\":{\"type\":{\"const\":\"list\"}}},\"then\":{\"required\":["
     "\"items\"]}}",
     {"{\"type\":\"text\"}", "{\"type\":\"list\",\"items\":{\"type\":\"text\"}}",
      "{\"type\":{\"type\":\"text\"},\"items\":{\"type\":\"text\"}}"},
     {"{\"type\":\"list\"}", "{\"type\":{\"type\":\"list\"}}", "{}"}},
    {GRAMMAR_JSON,
     "{\"oneOf\":[{\"const\":0},{\"const\":\"a\"},{\"enum\":[true,null,2.5]}]}",
     {"0", "-0.0", "\"a\"", "true", "null", "2.50"},
     {"false", "1", "\"b\""}},
    {GRAMMAR_JSON,
     "{\"oneOf\":[{\"const\":0,\"title\":\"x\"},{\"enum\":[0.0,1]}]}",
     {"1"},
     {"0", "0.0", "2"}},
    {GRAMMAR_JSON | GRAMMAR_SPACED,
     "\"( |\\t){0,3}\" {\"type\":\"array\",\"items\":{\"const\":1},\"maxItems\":2}",
     {"[1,1]", "[   1, 1\t]", "[]"},
     {"[1,\n1]", "[    1]", "[2]"}},
    {GRAMMAR_JSON,
     "{\"enum\":[{\"a\":1},{\"a\":\"x\"},{\"b\":1},[1,1],[1,2],[9],3],\"required\":[\"a\"],"
     "\"properties\":{\"a\":{\"type\":\"integer\"}},\"uniqueItems\":true,\"items\":{\"maximum\":8}"
     "}",
     {"{\"a\":1}", "[1,2]", "3"},
     {"{\"a\":\"x\"}", "{\"b\":1}", "[1,1]", "[9]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"prefixItems\":[{\"enum\":[\"a\",7]}],\"items\":{\"enum\":[7,8,\"b\"]},"
     "\"contains\":{\"type\":\"integer\"},\"minContains\":2,\"maxContains\":3,\"maxItems\":5}",
     {"[\"a\",7,8]", "[7,8]", "[7,\"b\",7,\"b\",8]", "[\"a\",\"b\",7,\"b\",8]"},
     {"[]", "[7]", "[\"a\",7]", "[7,7,7,7]", "[\"a\",7,7,7,7]", "[\"a\",\"b\",\"b\",\"b\",7,7]"}},
    {GRAMMAR_JSON,
     "{\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{\"const\":2},\"maxContains\":1}],"
     "\"items\":{\"enum\":[1,2,3]},\"type\":\"array\"}",
     {"[1,2]", "[3,2,1,1]", "[2,3,1]"},
     {"[1]", "[2]", "[1,2,2]", "[3]", "[]"}},
    {GRAMMAR_JSON,
     "{\"if\":{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},"
     "\"then\":{\"required\":[\"x\"]},\"else\":{\"required\":[\"y\"]},"
     "\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"integer\"}}}",
     {"{\"k\":1,\"x\":0}", "{\"k\":2,\"y\":0}", "{\"y\":0}"},
     {"{\"k\":1,\"y\":0}", "{\"k\":2,\"x\":0}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":10}",
     {"0.51", "10", "10.0", "9.999"},
     {"0.5", "0.50", "10.01", "-1", "0", "11"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"multipleOf\":0.25}",
     {"0.25", "-1.5", "2", "3.750"},
     {"0.3", "1.125", "0.255"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"multipleOf\":7,\"not\":{\"enum\":[14]}}",
     {"0", "21", "-7"},
     {"14", "8"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"patternProperties\":{\"^n_\":{\"type\":\"number\"}},"
     "\"additionalProperties\":{\"type\":\"string\"},\"maxProperties\":2}",
     {"{\"n_a\":1,\"b\":\"x\"}", "{}"},
     {"{\"n_a\":\"x\"}", "{\"b\":1}", "{\"a\":\"\",\"b\":\"\",\"c\":\"\"}"}},
    {GRAMMAR_JSON,
     "{\"contains\":{\"const\":5},\"type\":\"array\"}",
     {"[5]", "[1,5,2]"},
     {"[]", "[1]"}},
    {GRAMMAR_JSON,
     "{\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"items\":false,"
     "\"type\":\"array\"}",
     {"[]", "[\"a\"]", "[\"a\",null]"},
     {"[1]", "[\"a\",null,1]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"2024-13-01\"", "\"x\""}},
    {GRAMMAR_JSON,
     "true",
     {"[1,{\"a\":null}]", "-1.5e+10", "\"\\ud83d\\ude00\""},
     {"01", "[1,]", "\"\\ud83d\""}},
    {GRAMMAR_EBNF,
     "root ::= item (\",\" item)* # list\nitem ::= [0-9]{1,3} | \"(\" root \")\"",
     {"1", "1,22,(333,4)"},
     {"1234", "1,", "(1"}},
    {GRAMMAR_EBNF,
     "start: sum\nsum: sum \"+\" NUM | NUM\nNUM: /[0-9]+/\n%ignore \" \"",
     {"1", "1 + 2+3 ", " 1"},
     {"+1", "1+", "1 2"}},
    {GRAMMAR_TAGS,
     "{\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</f>\"}],"
     "\"triggers\":[\"<f\"]}",
     {"text", "", "a <f>12</f> b <f>3</f>", "a < f"},
     {"a <f>x</f>", "<f>1", "<fx"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"not\":{\"multipleOf\":2}}",
     {"1", "-3", "2.5", "0.05", "4.0005"},
     {"2", "0", "-4", "6.0", "8.000"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"integer\"}}}",
     {"[\"a\"]", "[1,null]"},
     {"[]", "[1,2]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"not\":{\"contains\":{\"const\":2}}}",
     {"[]", "[1,1]"},
     {"[1,2]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"not\":{\"prefixItems\":[{\"const\":1},{\"const\":2}]}}",
     {"[2]", "[1,1]", "[0,2]"},
     {"[]", "[1]", "[1,2]", "[1,2,3]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"minimum\":0,\"maximum\":30,\"oneOf\":[{\"multipleOf\":3},{"
     "\"multipleOf\":5}]}",
     {"3", "5", "27", "25"},
     {"0", "15", "30", "7"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"not\":{\"dependentRequired\":{\"a\":[\"b\"]}}}",
     {"{\"a\":1}", "{\"a\":1,\"c\":1}"},
     {"{}", "{\"b\":1}", "{\"a\":1,\"b\":1}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"not\":{\"oneOf\":[{\"minimum\":5},{\"maximum\":9}]}}",
     {"5", "9"},
     {"4", "10"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"not\":{\"if\":{\"minimum\":5},\"then\":{\"maximum\":9},\"else\":{"
     "\"minimum\":3}}}",
     {"10", "2"},
     {"3", "5", "9"}},
    {GRAMMAR_JSON,
     "{\"type\":\"string\",\"format\":\"uri-template\"}",
     {"\"http://x/{a,b*}/{?q:3}\"", "\"\""},
     {"\"http://x/{\"", "\"{}\"", "\"a b\""}},
    {GRAMMAR_JSON | GRAMMAR_COMPACT, /* counted loops, in which a token is many rounds */
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":20,"
     "\"maxLength\":"
     "30}},\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"string\",\"maxLength\":26},"
     "\"maxProperties\":3}",
     {"{\"a\":\"abcdefghijabcdefghij\"}", "{\"a\":\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
                                          "abcdefghijabcdefghij\",\"b\":\"\"}"},
     {"{\"a\":\"abcdefghijabcdefghi\"}", "{\"a\":\"abcdefghijabcdefghijabcdefghija\"}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"not\":{\"patternProperties\":{\"^a\":{\"type\":\"integer\"}}},"
     "\"required\":[\"b\"]}",
     {"{\"b\":1,\"ax\":\"s\"}", "{\"b\":1,\"c\":2,\"a\":null}"},
     {"{\"b\":1}", "{\"b\":1,\"a\":1}", "{\"a\":\"s\"}", "{\"b\":1,\"a\":\"s\",\"a\":1}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"properties\":{\"ab\":{},\"c\":{}},\"not\":{\"patternProperties\":{"
     "\"a\":{\"const\":1}}},\"additionalProperties\":false}",
     {"{\"ab\":2}", "{\"ab\":2,\"c\":1}"},
     {"{}", "{\"ab\":1}", "{\"c\":2}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"not\":{\"propertyNames\":{\"maxLength\":2}},\"maxProperties\":2}",
     {"{\"abc\":1}", "{\"a\":1,\"abc\":1}"},
     {"{}", "{\"ab\":1}", "{\"a\":1,\"b\":2,\"abc\":3}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"not\":{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":"
     "\"string\"}}}",
     {"{\"b\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\"}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"allOf\":[{\"not\":{\"patternProperties\":{\"a\":false}}},{\"not\":{"
     "\"patternProperties\":{\"b\":false}}}],\"maxProperties\":2,\"propertyNames\":{\"pattern\":\"^"
     "..$\"}}",
     {"{\"ab\":1}", "{\"xa\":1,\"xb\":2}"},
     {"{}", "{\"a\":1}", "{\"xa\":1}", "{\"xx\":1,\"xa\":1,\"xb\":1}", "{\"xa\":1,\"ya\":1}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"patternProperties\":{\"^[a-c]$\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":false,\"minProperties\":2}",
     {"{\"a\":1,\"c\":2}", "{\"a\":1,\"b\":1,\"c\":2}"},
     {"{}", "{\"a\":1}", "{\"a\":1,\"a\":2}", "{\"a\":1,\"d\":1}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"object\",\"propertyNames\":{\"anyOf\":[{\"const\":\"x\"},{\"pattern\":\"^y+$\"}]}"
     "}",
     {"{\"x\":1}", "{\"yy\":1,\"x\":2}"},
     {"{\"z\":1}", "{\"xy\":1}"}},
    {GRAMMAR_JSON,
     "{\"enum\":[{\"a\":1,\"b\":2},{\"a\":1,\"c\":true},{\"q\":1}],\"not\":{\"properties\":{\"a\":{"
     "}},\"additionalProperties\":{\"type\":\"boolean\"}}}",
     {"{\"a\":1,\"b\":2}", "{\"q\":1}"},
     {"{\"a\":1,\"c\":true}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"not\":{\"type\":\"integer\"},\"minimum\":1}",
     {"1.5", "2.25", "10.01"},
     {"1", "2.0", "0.5", "3.000"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"allOf\":[{\"multipleOf\":5},{\"not\":{\"multipleOf\":7}},{\"anyOf\":[{"
     "\"multipleOf\":11},{\"not\":{\"multipleOf\":3}}]}]}",
     {"5", "-10", "55", "165"},
     {"35", "15", "4", "0", "5.5"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"allOf\":[{\"multipleOf\":0.5},{\"multipleOf\":0.2},{\"not\":{"
     "\"multipleOf\":3}}]}",
     {"1", "2.0", "-4"},
     {"0.5", "0.2", "3", "1.5", "6.0"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"minimum\":10000,\"allOf\":[{\"multipleOf\":5},{\"multipleOf\":3},{"
     "\"multipleOf\":2},{\"multipleOf\":7}],\"not\":{\"multipleOf\":9}}",
     {"10290", "10500"},
     {"10080", "420", "10291"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
     "c\"},\"uniqueItems\":true,\"minItems\":2,\"maxItems\":3,\"$defs\":{\"c\":{\"enum\":[\"a\","
     "\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"a\",1,1.0]}}}",
     {"[\"a\",\"b\"]", "[\"a\",\"i\",1]", "[\"c\",\"h\",\"i\"]"},
     {"[\"a\"]", "[\"a\",\"a\"]", "[\"a\",\"b\",\"c\",\"d\"]", "[1,1.0]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"items\":{\"enum\":[1,2,\"x\"],\"type\":\"integer\"},\"uniqueItems\":"
     "true}",
     {"[]", "[2,1]"},
     {"[\"x\"]", "[1,1]"}},
    {GRAMMAR_JSON,
     "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":1}",
     {"[true]", "[false,true]"},
     {"[]", "[true,true]"}},
    {GRAMMAR_JSON,
     "{\"$id\":\"http://x/"
     "root\",\"$ref\":\"list\",\"$defs\":{\"n\":{\"$dynamicAnchor\":\"t\",\"type\":\"integer\"},"
     "\"list\":{\"$id\":\"list\",\"type\":\"array\",\"items\":{\"$dynamicRef\":\"#t\"},\"$defs\":{"
     "\"t\":{\"$dynamicAnchor\":\"t\"}}}}}",
     {"[1,2]", "[]"},
     {"[\"a\"]", "[null]"}},
    {GRAMMAR_JSON,
     "{\"$id\":\"http://x/"
     "root\",\"type\":\"object\",\"properties\":{\"s\":{\"$ref\":\"s\"},\"n\":{\"$ref\":\"n\"}},"
     "\"additionalProperties\":false,\"$defs\":{\"s\":{\"$id\":\"s\",\"$ref\":\"list\",\"$defs\":{"
     "\"t\":{\"$dynamicAnchor\":\"t\",\"type\":\"string\"}}},\"n\":{\"$id\":\"n\",\"$ref\":"
     "\"list\",\"$defs\":{\"t\":{\"$dynamicAnchor\":\"t\",\"type\":\"integer\"}}},\"l\":{\"$id\":"
     "\"list\",\"type\":\"array\",\"items\":{\"$dynamicRef\":\"#t\"},\"$defs\":{\"t\":{\"$"
     "dynamicAnchor\":\"t\"}}}}}",
     {"{\"s\":[\"a\"],\"n\":[1]}", "{\"n\":[]}"},
     {"{\"s\":[1]}", "{\"n\":[\"a\"]}"}},
    {GRAMMAR_JSON,
     "{\"type\":\"number\",\"not\":{\"enum\":[0,-1.5]}}",
     {"1", "-1", "1.5", "0.5"},
     {"0", "-0", "-0.0", "0.00", "-1.5", "-1.50"}},
    {GRAMMAR_JSON,
     "{\"type\":\"integer\",\"enum\":[1000000000000000000000000000000,1.5,2]}",
     {"1e+30", "2"},
     {"1.5"}},
    {GRAMMAR_REGEX, "x{25,28}(y|xy{30})x{3}", {NULL}, {"xy"}},
    {GRAMMAR_REGEX, "(?:[x-z]{2}|xxx){220,225}y?", {NULL}, {"xy"}},
    {GRAMMAR_EBNF,
     "root ::= \"[\" item{3,12} \"]\" | \"x\"{200,210} \"[[]]\"\nitem ::= \"[\" item{0,30} \"]\" | "
     "[a-y]{4} "
     "\"xx\"",
     {"[[][][]]", "[abcdxx[abcdxx][]]"},
     {"[[][]]"}},
};

static struct matcher *compiled_source(const struct grammar_source *source, const struct trie *trie)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    struct matcher *m = NULL;
    if (grammar_compile(&words, &n_word, source, &e) || matcher_new(&m, words, n_word, trie, &e))
        fail_msg("%s: %s", source->text, e.message);
    q_free(words);
    return m;
}

static struct matcher *compiled(uint32_t kind, const char *source, const struct trie *trie)
{
    return compiled_source(&SOURCE(kind, source), trie);
}

static bool accepts(struct matcher *m, const char *text)
{
    matcher_begin(m);
    matcher_config c = matcher_bytes(m, matcher_start(m), text, strlen(text));
    return c && matcher_can_end(m, c);
}

static void check_sample(struct matcher *m, const struct sample *s)
{
    for (size_t k = 0; k < sizeof s->good / sizeof *s->good && s->good[k]; k++)
        if (!accepts(m, s->good[k]))
            fail_msg("%s should accept %s", s->source, s->good[k]);
    for (size_t k = 0; k < sizeof s->bad / sizeof *s->bad && s->bad[k]; k++)
        if (accepts(m, s->bad[k]))
            fail_msg("%s should not accept %s", s->source, s->bad[k]);
}

static void every_notation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct matcher *m = compiled(s->kind, s->source, NULL);
        check_sample(m, s);
        matcher_free(m);
    }
}

static void large_repetitions_are_counted(void **state)
{
    (void)state;
    char text[2102];
    struct matcher *m = compiled(GRAMMAR_REGEX, "x{1000,2000}y", NULL);
    static const struct {
        size_t n;
        bool fits;
    } cases[] = {{999, false}, {1000, true}, {2000, true}, {2001, false}};
    for (size_t i = 0; i < 4; i++) {
        memset(text, 'x', cases[i].n);
        memcpy(text + cases[i].n, "y", 2);
        assert_int_equal(accepts(m, text), cases[i].fits);
    }
    matcher_free(m);
}

static void refusals_say_what(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind;
        const char *source, *why;
    } cases[] = {
        {GRAMMAR_JSON, "{\"properties\":{\"x\":{\"type\":\"array\",\"uniqueItems\":true}}}",
         "#/properties/x/uniqueItems"},
        {GRAMMAR_JSON, "{\"$ref\":\"http://example.com/x\"}",
         "quire does not fetch other documents"},
        {GRAMMAR_JSON, "{\"type\":\"strin\"}", "#/type: expected the name of a type"},
        {GRAMMAR_JSON, "{\"type\":\"object\",\"properties\":3}", "#/properties: expected"},
        {GRAMMAR_JSON, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no text can satisfy"},
        {GRAMMAR_JSON, "{\"a\":", "not JSON"},
        {GRAMMAR_JSON | GRAMMAR_SPACED, "\"[ x]\" {}", "white space pattern: it matches more"},
        {GRAMMAR_JSON | GRAMMAR_SPACED, "{} {}", "expected a JSON string before the schema"},
        {GRAMMAR_JSON | GRAMMAR_SPACED, "\" \" {", "not JSON"},
        {GRAMMAR_JSON,
         "{\"oneOf\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"string\",\"format\":"
         "\"x\"}]}",
         "#/oneOf: options 0 and 1"},
        {GRAMMAR_JSON, "{\"type\":\"object\",\"minProperties\":2}", "minProperties"},
        {GRAMMAR_REGEX, "(a)\\1", "back references"},
        {GRAMMAR_REGEX, "a(?=b)", "lookahead"},
        {GRAMMAR_REGEX, "(a", "not closed"},
        {GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"(a{300}){300}\",\"maxLength\":9}",
         "too large"},
        {GRAMMAR_CHOICE, "[]", "one or more"},
        {GRAMMAR_EBNF, "root ::= a", "rule \"a\" is not defined"},
        {GRAMMAR_EBNF, "root ::= a \"x\"\na ::= b\nb ::= root | \"y\"", "left recursion"},
        {GRAMMAR_EBNF, "start: %import x", "line 1"},
        {GRAMMAR_TAGS, "{\"format\":{\"type\":\"nonsense\"}}", "nonsense"},
        {77, "x", "kind 77"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct q_err e = Q_ERR_INIT;
        uint32_t *words = NULL, n_word = 0;
        enum q_code rc =
            grammar_compile(&words, &n_word, &SOURCE(cases[i].kind, cases[i].source), &e);
        if (!rc || !strstr(e.message, cases[i].why))
            fail_msg("%s: got \"%s\", wanted \"%s\"", cases[i].source, e.message, cases[i].why);
    }
}

/* Every byte, and pieces that end inside a character, a string, a property, an object. */
static void make_vocabulary(struct trie *t)
{
    static const char *const pieces[] = {
        "\xc3",     "\xa9",     "\xc3\xa9x",    "\xe2\x82",    "\xac\"",   "{\"",   "\": ",
        "\":",      "\",",      "\", \"",       "\"}",         "}}",       "}}}",   "a\":",
        "{\"a\":1", "}, ",      "[[",           "]]",          "1]",       "12",    "123",
        "-1",       ".5",       "e+",           "true",        "tru",      "null}", "\\u",
        "\\\"",     "00",       "  ",           "\n  ",        "xx",       "xxxx",  "xy",
        "xxy",      "</",       "<f>",          "</f>",        " <f",      "abc",   "bb",
        "next",     "\"next\"", "next\":{\"",   "y",           "ye",       "es",    "yes",
        "no",       "né",       "\xff</t>\xff", "\xff<e>\xff", "k</t>{\"", "</t",   "t>"};
    char text[1024];
    uint32_t at[512], n = 0, used = 0;
    for (uint32_t i = 0; i < 256; i++) {
        at[n++] = used;
        text[used++] = (char)i;
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces * 2; i++) { /* each twice */
        const char *piece = pieces[i / 2];
        at[n++] = used;
        memcpy(text + used, piece, strlen(piece));
        used += (uint32_t)strlen(piece);
    }
    at[n++] = used; /* one token without bytes */
    at[n] = used;
    struct q_err e = Q_ERR_INIT;
    assert_int_equal(trie_init(t, text, at, n, &e), Q_OK);
}

static uint32_t bit(const uint32_t *bits, uint32_t i)
{
    return bits[i / 32] >> i % 32 & 1;
}

/* Six random texts: every mask has the tokens that the matcher takes. */
static void follow_masks(struct matcher *m, const struct trie *t, const char *name)
{
    uint32_t bits[32], seed = 1;
    for (uint32_t run = 0; run < 6; run++) {
        matcher_begin(m);
        matcher_config c = matcher_start(m);
        for (uint32_t step = 0; c && step < 40; step++) {
            uint32_t n = 0, left;
            memset(bits, 0, sizeof bits);
            assert_true(matcher_mask(m, c, bits));
            for (uint32_t id = 0; id < t->n_vocab; id++) {
                if ((matcher_token(m, c, id) != 0) != bit(bits, id))
                    fail_msg("%s: token %u after %u", name, id, step);
                n += bit(bits, id);
            }
            if (n == 0)
                assert_true(matcher_must_end(m, c));
            seed = seed * 1664525 + 1013904223;
            left = n ? (seed >> 8) % n : 0;
            uint32_t id = 0;
            while (n && (!bit(bits, id) || left-- != 0))
                id++;
            c = n ? matcher_token(m, c, id) : 0;
        }
    }
    assert_false(matcher_stuck(m));
}

static void masks_agree_with_the_matcher(void **state)
{
    (void)state;
    struct trie t;
    make_vocabulary(&t);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct matcher *m = compiled(samples[i].kind, samples[i].source, &t);
        follow_masks(m, &t, samples[i].source);
        matcher_free(m);
    }
    trie_release(&t);
}

/* A string with a limit has another mask for each length, but one walk over the vocabulary. */
static void counts_share_their_walk(void **state)
{
    (void)state;
    struct trie t;
    uint32_t bits[32];
    struct matcher_stats before, after;
    make_vocabulary(&t);
    struct matcher *m =
        compiled(GRAMMAR_JSON, "{\"type\":\"string\",\"minLength\":30,\"maxLength\":60}", &t);
    matcher_begin(m);
    matcher_config c = matcher_bytes(m, matcher_start(m), "\"x", 2);
    for (uint32_t i = 0; i < 59; i++) {
        memset(bits, 0, sizeof bits);
        assert_true(matcher_mask(m, c, bits));
        matcher_stats(m, i ? &after : &before);
        assert_int_equal(bit(bits, '"'), i >= 29);
        c = matcher_bytes(m, c, "x", 1);
    }
    assert_true(after.n_walk <= before.n_walk + 1); /* the closing quote's */
    assert_true(after.n_local > before.n_local);
    assert_true(c && !matcher_bytes(m, c, "x", 1));
    matcher_free(m);
    trie_release(&t);
}

/* Another grammar finds what this one has walked, and nothing of another automaton. */
static void grammars_share_their_walks(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"],"
        "\"additionalProperties\":false}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z]*$\"}}"};
    static const char *const texts[] = {"[\"x", "{\"a\":\"x", "[\"x"};
    uint64_t n_walk[3], n_token[3];
    struct trie t;
    make_vocabulary(&t);
    for (size_t i = 0; i < 3; i++) {
        uint32_t bits[32] = {0};
        struct matcher_stats s;
        struct matcher *m = compiled(GRAMMAR_JSON | GRAMMAR_COMPACT, schemas[i], &t);
        matcher_begin(m);
        matcher_config c = matcher_bytes(m, matcher_start(m), texts[i], strlen(texts[i]));
        assert_true(matcher_mask(m, c, bits));
        matcher_stats(m, &s);
        n_walk[i] = s.n_walk;
        n_token[i] = 0;
        for (uint32_t id = 0; id < t.n_vocab; id++) {
            assert_int_equal(matcher_token(m, c, id) != 0, bit(bits, id));
            n_token[i] += bit(bits, id);
        }
        matcher_free(m);
    }
    assert_true(n_walk[0] > 0 && n_walk[2] > 0);
    assert_int_equal(n_walk[1], 0);
    assert_true(n_token[2] < n_token[0] / 2);
    trie_release(&t);
}

/* A matcher that takes the sample's texts as it should, at its beginning. */
static struct matcher *checked_matcher(const struct grammar_source *source, const struct sample *s,
                                       const struct trie *t)
{
    struct matcher *m = compiled_source(source, t);
    check_sample(m, s);
    follow_masks(m, t, s->source);
    matcher_begin(m);
    return m;
}

/* Reasoning is free until its end marker comes, as text or as special tokens; then the grammar
 * holds, also for what the token that ends the marker has behind it. */
static void grammars_begin_after_reasoning(void **state)
{
    (void)state;
    static const struct sample cases[] = {
        {GRAMMAR_CHOICE,
         "[\"</t>\",\"yes\"]",
         {"</t>yes", "ab\n<</t</t>yes", "x\xff</t>\xffyes", "\xff<e>\xff \xc3</t></t>",
          "</\xff<e>\xff</t>yes"},
         {"yes", "</t>", "</t>no", "a</t>yes</t>yes", "\xff</t>yes", "\xff</t>x\xffyes", "</t"}},
        {GRAMMAR_JSON | GRAMMAR_COMPACT,
         "{\"type\":\"object\",\"additionalProperties\":false}",
         {"{} </t>{}", "</</t>{}", "\xff</t>\xff{}"},
         {"{}", "</t>", "</t>{}x", "</t>a</t>{}"}},
    };
    struct trie t;
    make_vocabulary(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sample *s = &cases[i];
        struct grammar_source source = SOURCE(s->kind, s->source);
        source.after = "</t>";
        source.n_after = 4;
        struct matcher *m = checked_matcher(&source, s, &t);
        matcher_config c = matcher_start(m);
        char forced[8];
        assert_true(matcher_is_before(m, c) && !matcher_can_end(m, c));
        assert_int_equal(matcher_forced(m, c, forced, sizeof forced), 0);
        c = matcher_bytes(m, c, "{\"yes\"}</t", 10);
        assert_true(matcher_is_before(m, c));
        c = matcher_bytes(m, c, ">", 1);
        assert_true(c && !matcher_is_before(m, c));
        matcher_free(m);
    }
    trie_release(&t);
}

/* A text may begin with reasoning; one that does not is bound from its first byte. */
static void grammars_begin_at_once_or_after_reasoning(void **state)
{
    (void)state;
    static const char tags[] = "<t>\0</t>\0\xff<e>\xff\0";
    static const struct sample cases[] = {
        {GRAMMAR_CHOICE,
         "[\"</t>\",\"yes\",\"<t\"]",
         {"yes", "<t>ab\n<</t</t>yes", "<t></t>yes", "<t>x\xff</t>\xffyes", "\xff<e>\xffyes", "<t"},
         {"", "ab</t>yes", " <t></t>yes", "<t>yes", "<t>", "<t>a</t>no", "<e>yes",
          "\xff<t>\xff</t>yes"}},
        {GRAMMAR_JSON | GRAMMAR_COMPACT,
         "{\"type\":\"object\",\"additionalProperties\":false}",
         {"{}", "<t>{} </t>{}", "\xff<e>\xff{}", "<t></</t>{}"},
         {"a", "</t>{}", "\xff<e>\xff<t>", "<t></t>{}x", "\xff<e>\xff<t>{}"}},
    };
    struct trie t;
    make_vocabulary(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sample *s = &cases[i];
        struct grammar_source source = SOURCE(s->kind, s->source);
        source.tags = tags;
        source.n_tags = sizeof tags; /* the last pair's end is empty */
        struct matcher *m = checked_matcher(&source, s, &t);
        matcher_config c = matcher_start(m);
        assert_true(!matcher_is_before(m, c) && !matcher_can_end(m, c));
        c = matcher_bytes(m, c, "<t>{", 4);
        assert_true(c && matcher_is_before(m, c) && !matcher_can_end(m, c));
        c = matcher_bytes(m, c, "</t>", 4);
        assert_true(c && !matcher_is_before(m, c));
        matcher_free(m);
    }
    trie_release(&t);
}

static void tags_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *tags;
        size_t n;
    } bad[] = {
        {"<t>", 3},
        {"<t>\0</t>", 8},
        {"\0</t>\0", 6},
        {"a\0b\0c\0", 6},
        {"1\0\0"
         "2\0\0"
         "3\0\0"
         "4\0\0"
         "5\0\0"
         "6\0\0"
         "7\0\0"
         "8\0\0"
         "9\0\0",
         27},
    };
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct grammar_source source = SOURCE(GRAMMAR_REGEX, "a");
        source.tags = bad[i].tags;
        source.n_tags = bad[i].n;
        assert_int_equal(grammar_compile(&words, &n_word, &source, &e), Q_INVALID);
        q_err_reset(&e);
    }
    struct grammar_source source = SOURCE(GRAMMAR_REGEX, "a");
    source.tags = bad[4].tags;
    source.n_tags = 24; /* eight pairs are not too many */
    assert_int_equal(grammar_compile(&words, &n_word, &source, &e), Q_OK);
    q_free(words);
}

static void markers_are_checked(void **state)
{
    (void)state;
    char marker[258];
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    struct grammar_source source = SOURCE(GRAMMAR_REGEX, "a");
    source.after = marker;
    memset(marker, 'a', sizeof marker); /* the automaton's own worst case, too */
    marker[255] = 'b';
    source.n_after = 257;
    assert_int_equal(grammar_compile(&words, &n_word, &source, &e), Q_INVALID);
    assert_non_null(strstr(e.message, "257 bytes"));
    q_err_reset(&e);
    source.n_after = 256;
    assert_int_equal(grammar_compile(&words, &n_word, &source, &e), Q_OK);
    q_free(words);
    marker[3] = (char)0xff;
    assert_int_equal(grammar_compile(&words, &n_word, &source, &e), Q_INVALID);
}

static void forced_text_is_known(void **state)
{
    (void)state;
    char out[64];
    struct matcher *m = compiled(GRAMMAR_JSON | GRAMMAR_COMPACT,
                                 "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
                                 "\"string\"}},\"required\":[\"name\"],"
                                 "\"additionalProperties\":false}",
                                 NULL);
    size_t n = matcher_forced(m, matcher_start(m), out, sizeof out);
    assert_int_equal(n, strlen("{\"name\":\""));
    assert_memory_equal(out, "{\"name\":\"", n);
    matcher_free(m);
}

static void the_longest_token_is_found(void **state)
{
    (void)state;
    struct trie t;
    uint32_t id = 0;
    make_vocabulary(&t);
    assert_int_equal(trie_longest(&t, "next\":{\"a", 9, &id), 8);
    assert_memory_equal(t.text + t.at[id], "next\":{\"", 8);
    assert_int_equal(trie_longest(&t, "next\":{", 7, &id), 4);
    assert_int_equal(trie_longest(&t, "\xff</t>\xff", 6, &id), 6);
    assert_int_equal(trie_longest(&t, "q", 1, &id), 1);
    assert_int_equal(id, 'q');
    assert_int_equal(trie_longest(&t, "q", 0, &id), 0);
    trie_release(&t);
}

static void damaged_programs_are_errors(void **state)
{
    (void)state;
    uint32_t *words = NULL, n_word = 0;
    struct q_err e = Q_ERR_INIT;
    struct matcher *m = NULL;
    assert_int_equal(grammar_compile(&words, &n_word, &SOURCE(GRAMMAR_REGEX, "(ab){500}"), &e),
                     Q_OK);
    for (uint32_t i = 0; i < n_word; i++) {
        uint32_t old = words[i];
        words[i] = 0x7fffffff;
        if (!matcher_new(&m, words, n_word, NULL, &e)) { /* a count may be anything */
            matcher_bytes(m, matcher_start(m), "abab", 4);
            matcher_free(m);
        }
        words[i] = old;
    }
    for (uint32_t n = 0; n < n_word; n++)
        assert_int_equal(matcher_new(&m, words, n, NULL, &e), Q_CORRUPT);
    q_free(words);
}

static void hostile_grammars_end(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "root ::= (\"a\" | \"a\" root | root2)*\nroot2 ::= \"a\"? \"a\"? \"a\"? root3\nroot3 ::= "
        "\"b\"",
        "root ::= x x x x x x x x\nx ::= y y y y y y y y\ny ::= z z z z z z z z\nz ::= \"a\"?",
        "root ::= \"(\" root \")\" | \"(\" root \"]\" | \"\""};
    char text[5000];
    for (size_t i = 0; i < 3; i++) {
        struct matcher *m = compiled(GRAMMAR_EBNF, sources[i], NULL);
        memset(text, i == 2 ? '(' : 'a', sizeof text);
        matcher_begin(m);
        matcher_bytes(m, matcher_start(m), text, sizeof text);
        matcher_free(m);
    }
}

/* One allocation fails, each in turn (under a sanitizer every fourth, of each text others): the
 * error is Q_NO_MEMORY, not a limit or a fault of the grammar, or the program is the same. */
static void fail_each_allocation(uint32_t kind, const char *text)
{
    static int n_text;
    struct q_err e = Q_ERR_INIT;
    uint32_t *whole = NULL, *words, n_whole, n_word;
    const struct grammar_source source = SOURCE(kind, text);
    const uint64_t before = mem_alloc_count();
    assert_ok(grammar_compile(&whole, &n_whole, &source, &e), &e);
    const int n_all = (int)(mem_alloc_count() - before);
    for (int n = n_text++ % ROUNDS(1, 4); n < n_all; n += ROUNDS(1, 4)) {
        words = NULL;
        q_err_reset(&e);
        mem_fail_once(n);
        const enum q_code rc = grammar_compile(&words, &n_word, &source, &e);
        mem_fail_once(-1);
        if (rc && rc != Q_NO_MEMORY)
            fail_msg("%s: allocation %d of %d: %s", text, n, n_all, e.message);
        if (!rc && (n_word != n_whole || memcmp(words, whole, n_word * sizeof *words) != 0))
            fail_msg("%s: allocation %d of %d: another program", text, n, n_all);
        q_free(words);
    }
    q_free(whole);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    const char *const schemas[] = {
        "{\"$id\": \"http://x/a\", \"$ref\": \"b#y\", \"$defs\": {\"b\": {\"$id\": \"b\", "
        "\"$defs\": "
        "{\"y\": {\"$anchor\": \"y\", \"type\": \"integer\"}}}}}",
        "{\"type\": \"string\", \"pattern\": \"^[a-f]+[0-9]*$\", \"allOf\": [{\"pattern\": "
        "\"^a[a-z0-9]{1,9}$\"}], \"not\": {\"const\": \"ab\"}}",
        "{\"patternProperties\": {\"^a\": {\"type\": \"null\"}}, \"additionalProperties\": false, "
        "\"required\": [\"ab\"]}",
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        fail_each_allocation(GRAMMAR_JSON, schemas[i]);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        fail_each_allocation(samples[i].kind, samples[i].source);
}

/* The text's bytes one by one, with a mask before each; false: stuck. *hash: of all masks. */
static bool follow_with_masks(struct matcher *m, const struct trie *t, const char *text,
                              uint64_t *hash)
{
    uint32_t bits[32];
    matcher_begin(m);
    matcher_config c = matcher_start(m);
    for (*hash = 0; c; text++) {
        memset(bits, 0, sizeof bits);
        if (!matcher_mask(m, c, bits))
            return false;
        for (size_t i = 0; i < trie_words(t); i++)
            *hash = *hash * 0x100000001B3u + bits[i];
        if (!*text)
            return true;
        c = matcher_bytes(m, c, text, 1);
    }
    return false;
}

/* One allocation fails, each in turn: the matcher is stuck, and the next try is whole; or the masks
 * are the same. */
static void masks_without_memory(void **state)
{
    (void)state;
    const char *const text = "{\"a\":\"xyz\",\"b\":[1,22]}";
    const char *const source =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"minLength\": 2, "
        "\"maxLength\": 9}, \"b\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}}}, "
        "\"required\": [\"a\", \"b\"], \"additionalProperties\": false}";
    uint64_t want = 0, got, n_before;
    int n_stuck = 0;
    bool has_failed = true;
    for (int64_t n = -1; has_failed; n++) {
        struct trie t;
        make_vocabulary(&t);
        struct matcher *m = compiled(GRAMMAR_JSON, source, &t);
        uint64_t *hash = n < 0 ? &want : &got;
        n_before = mem_failure_count();
        mem_fail_once(n);
        const bool whole = follow_with_masks(m, &t, text, hash);
        mem_fail_once(-1);
        has_failed = n < 0 || mem_failure_count() != n_before;
        if (whole ? *hash != want : !has_failed || !matcher_stuck(m))
            fail_msg("allocation %lld: whole %d, stuck %d", (long long)n, whole, matcher_stuck(m));
        n_stuck += !whole;
        assert_true(follow_with_masks(m, &t, text, hash));
        assert_int_equal(*hash, want);
        matcher_free(m);
        trie_release(&t);
    }
    assert_true(n_stuck > 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_notation),
                                       cmocka_unit_test(large_repetitions_are_counted),
                                       cmocka_unit_test(refusals_say_what),
                                       cmocka_unit_test(masks_agree_with_the_matcher),
                                       cmocka_unit_test(the_longest_token_is_found),
                                       cmocka_unit_test(forced_text_is_known),
                                       cmocka_unit_test(damaged_programs_are_errors),
                                       cmocka_unit_test(counts_share_their_walk),
                                       cmocka_unit_test(grammars_share_their_walks),
                                       cmocka_unit_test(grammars_begin_after_reasoning),
                                       cmocka_unit_test(grammars_begin_at_once_or_after_reasoning),
                                       cmocka_unit_test(tags_are_checked),
                                       cmocka_unit_test(markers_are_checked),
                                       cmocka_unit_test(hostile_grammars_end),
                                       cmocka_unit_test(memory_may_run_out),
                                       cmocka_unit_test(masks_without_memory)};
    json_use_mem();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
