/* SPDX-License-Identifier: Apache-2.0 */
/* Strings of a JSON Schema: each format against texts of its RFC, lengths beside formats and
 * patterns; and numbers of an enum in the forms that are equal. */
#include "check.h"
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher/matcher.h"

static struct q_err err;

static struct matcher *compiled(const char *schema)
{
    uint32_t *words = NULL, n_word = 0;
    struct matcher *m = NULL;
    const struct grammar_source source = {
        .kind = GRAMMAR_JSON,
        .text = schema,
        .n = strlen(schema),
    };
    if (grammar_compile(&words, &n_word, &source, &err) ||
        matcher_new(&m, words, n_word, NULL, &err))
        fail_msg("%s: %s", schema, err.message);
    q_free(words);
    return m;
}

static bool accepts(struct matcher *m, const char *text, size_t n)
{
    matcher_begin(m);
    matcher_config c = matcher_bytes(m, matcher_start(m), text, n);
    return c && matcher_can_end(m, c);
}

static void check(struct matcher *m, const char *name, const char *const *texts, bool want)
{
    for (; *texts; texts++) {
        struct buf json = BUF_INIT;
        buf_add_json_str(&json, *texts, strlen(*texts));
        if (accepts(m, buf_str(&json), json.len) != want)
            fail_msg("%s %s %s", name, want ? "should take" : "should not take", *texts);
        buf_release(&json);
    }
}

static const struct {
    const char *format;
    const char *good[20], *bad[14];
} formats[] = {
    {"uri",
     {"file:///etc/hosts", "https://[::1]:80/", "http://[2001:db8::7]/c=GB?objectClass?one",
      "http://[v7.a:b]/", "http://a@b:80/%20?q=/?#f?/", "urn:isbn:0451450523", "mailto:a@b.c",
      "tel:+1-816-555-1212", "http://example.com", "x:", "x:/a//b",
      "http://-.~_!$&'()*+,;=:%40@h:80/", "http://192.168.0.1:/"},
     {"//a/b", "/a", "a", "", "http:// a", "http://[::1", "http://[::12345]/", "http://a:8x/", ":a",
      "http://a/<>", "http://a/%2", "http://a@b@c/", "h\xc3\xa9:"}},
    {"uri-reference",
     {"", "a", "/a", "//a:80/b", "./a:b", "?q", "#f", "http://a", "a/b:c"},
     {"a b", "//a:b/", "//a@b@c/", "\\\\a", "1:b"}},
    {"iri",
     {"http://\xc6\x92\xc3\xb8.\xc3\x9f/?\xe2\x88\x82#\xcf\x80", "http://[::1]/", "file:/etc/hosts",
      "http://a/\xf0\x90\x8c\x80?\xee\x80\x80"},
     {"/a", "http://a/\xee\x80\x80", "http://a b"}},
    {"iri-reference", {"\xc3\xa2", "/\xcf\x80", "#\xc6\x92"}, {"a b", "\\"}},
    {"uri-template", {"http://a/{b*}{?c:3,d}", "a'b\xc3\xa9"}, {"{a", "{}", "a b"}},
    {"email",
     {"te~st@example.com", "~a@b.c", "a.b+c@d-e.f", "!#$%&'*+-/=?^_`{|}~@x", "\"a b@..\"@c.d",
      "\"\\\"\"@c", "a@[127.0.0.1]", "a@[IPv6:::1]", "a@localhost"},
     {"a", ".a@b.c", "a.@b.c", "a..b@c.d", "a b@c.d", "a@b=c.d", "a@[127.0.0.300]", "a@-b.c", "@b",
      "a@", "\"a@b.c", "a@b."}},
    {"idn-email",
     {"\xec\x8b\xa4\xeb\xa1\x80@\xec\x8b\xa4\xeb\xa1\x80.\xed\x85\x8c", "\xce\xb4@example.com",
      "a@b.c"},
     {"\xec\x8b\xa4", ".\xc3\xa9@b.c"}},
    {"hostname",
     {"a", "1host", "www.example.com", "a-b.c--d", "a.b.c.d.e.f.g.h.i.j"},
     {"", "-a", "a-", "a..b", ".a", "a_b", "xn--X", "ab--c.de"}},
    {"idn-hostname", {"\xec\x8b\xa4\xeb\xa1\x80.\xed\x85\x8c", "a.b"}, {"\xe3\x83\xbb", "a b"}},
    {"ipv6",
     {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "::ffff:192.168.0.1", "1::d6:1.2.3.4",
      "1:2:3:4:5:6:1.2.3.4", "1:2::1.2.3.4", "::1.2.3.4"},
     {"1:2:3:4:5:6:7", ":::", "1::2::3", "12345::", "::1.2.3.256", "1:2:3:4:5:6:7:1.2.3.4",
      "1.2.3.4::", ":1", "1:"}},
    {"ipv4", {"0.0.0.0", "255.255.255.255"}, {"256.0.0.0", "1.2.3", "01.2.3.4"}},
    {"time",
     {"08:30:06Z", "08:30:06.123456789012z", "23:59:60Z", "23:59:60.5+00:00", "00:00:00-23:59"},
     {"24:00:00Z", "08:30:60Z", "08:30:06", "08:30:06+24:00", "23:59:60+01:00"}},
    {"date-time",
     {"1963-06-19T08:30:06Z", "1963-06-19t08:30:06.2z", "1998-12-31T23:59:60Z"},
     {"1963-06-19 08:30:06Z", "1963-02-29T00:00:00Z", "1990-02-31T15:59:59.123-08:00"}},
    {"duration", {"P1Y2M3DT4H5M6S", "P4W", "PT36H"}, {"P", "PT", "P1", "1Y", "P1YT", "P2D1Y"}},
};

static void each_format(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char schema[80];
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}",
                 formats[i].format);
        struct matcher *m = compiled(schema);
        check(m, formats[i].format, formats[i].good, true);
        check(m, formats[i].format, formats[i].bad, false);
        matcher_free(m);
    }
}

/* Is a text of n times `c` behind `head` accepted? */
static bool takes(struct matcher *m, const char *head, char c, size_t n)
{
    struct buf text = BUF_INIT;
    buf_add_char(&text, '"');
    buf_add_str(&text, head);
    for (size_t i = strlen(head); i < n; i++)
        buf_add_char(&text, c);
    buf_add_char(&text, '"');
    bool yes = accepts(m, buf_str(&text), text.len);
    buf_release(&text);
    return yes;
}

static const struct {
    const char *schema, *head;
    size_t yes[3], no[3]; /* lengths, 0: no more */
} lengths[] = {
    {"{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":255}",
     "http://a/",
     {9, 100, 255},
     {256, 999}},
    {"{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2048}",
     "http://a/",
     {9, 255, 2048},
     {2049}},
    {"{\"type\":\"string\",\"format\":\"iri\",\"minLength\":12,\"maxLength\":10000}",
     "http://a/",
     {12, 10000},
     {11, 10001}},
    {"{\"type\":\"string\",\"format\":\"email\",\"maxLength\":320}", "a.b@c.d.", {9, 60}, {321}},
    {"{\"type\":\"string\",\"format\":\"hostname\",\"maxLength\":253}", "a.b.", {4 + 1, 60}, {254}},
    {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":300}", "2024-02-29", {10}, {11}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]{1,1000}$\",\"maxLength\":500}",
     "",
     {1, 500},
     {501}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"minLength\":3,\"maxLength\":5000}",
     "",
     {3, 5000},
     {2, 5001}},
    {"{\"type\":\"string\",\"pattern\":\"^a\",\"maxLength\":100000}",
     "",
     {1, 300, 100000},
     {100001}},
    {"{\"type\":\"string\",\"pattern\":\"^(aa)*$\",\"minLength\":3,\"maxLength\":7}",
     "",
     {4, 6},
     {2, 5, 8}},
};

static void lengths_beside_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct matcher *m = compiled(lengths[i].schema);
        for (size_t k = 0; k < 3 && lengths[i].yes[k]; k++)
            if (!takes(m, lengths[i].head, 'a', lengths[i].yes[k]))
                fail_msg("%s should take %zu", lengths[i].schema, lengths[i].yes[k]);
        for (size_t k = 0; k < 3 && lengths[i].no[k]; k++)
            if (takes(m, lengths[i].head, 'a', lengths[i].no[k]))
                fail_msg("%s should not take %zu", lengths[i].schema, lengths[i].no[k]);
        matcher_free(m);
    }
    matcher_free(compiled("{\"properties\":{\"a\":{\"format\":\"uri\",\"maxLength\":2001},\"b\":{"
                          "\"format\":\"uri\",\"maxLength\":2002},\"c\":{\"format\":\"uri\","
                          "\"maxLength\":2003},\"d\":{\"format\":\"email\",\"maxLength\":254}}}"));
}

static const struct {
    const char *schema;
    const char *good[8], *bad[6];
} numbers[] = {
    {"{\"enum\":[{\"a\":0.0}]}",
     {"{\"a\":0.0}", "{\"a\":0}", "{\"a\":-0}", "{\"a\":-0.00}"},
     {"{\"a\":0.1}", "{\"a\":00}", "{\"a\":1}", "{\"a\":0.}"}},
    {"{\"const\":0}", {"0", "0.0", "-0", "-0.0"}, {"00", "1", "-1", "0.01"}},
    {"{\"const\":-0.0}", {"0", "-0.0"}, {"1"}},
    {"{\"enum\":[1.0,-2.50]}", {"1", "1.00", "-2.5", "-2.50"}, {"-1", "2.5", "1.5", "10", "-2"}},
    {"{\"enum\":[[100,0.001]]}", {"[100,0.001]", "[100.0,0.0010]"}, {"[10,0.001]", "[100,0.01]"}},
    {"{\"const\":1e30}",
     {"1e+30", "1e30", "1000000000000000000000000000000", "1000000000000000000000000000000.0"},
     {"1e3", "1e31"}},
    {"{\"const\":1e100}", {"1e+100", "1e100"}, {"1e10", "1e101", "1"}},
    {"{\"enum\":[-1e70,1e70,1e-70,2],\"minimum\":0}", {"1e70", "1e-70", "2"}, {"-1e70", "0"}},
    {"{\"enum\":[1e70,1e-70,-1e-70],\"exclusiveMaximum\":0}", {"-1e-70"}, {"1e70", "1e-70"}},
    {"{\"const\":1.5e-7}", {"1.5e-07", "1.5e-7", "0.00000015"}, {"1.5e-8", "1.5"}},
    {"{\"type\":\"integer\",\"enum\":[1.0,2,2.5]}", {"1", "2"}, {"2.5", "1.0", "3"}},
    {"{\"type\":\"number\",\"not\":{\"enum\":[0.0,2]}}", {"20", "2.5", "1"}, {"0", "-0.0", "2.0"}},
};

static void equal_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct matcher *m = compiled(numbers[i].schema);
        for (size_t k = 0; k < 8 && numbers[i].good[k]; k++)
            if (!accepts(m, numbers[i].good[k], strlen(numbers[i].good[k])))
                fail_msg("%s should take %s", numbers[i].schema, numbers[i].good[k]);
        for (size_t k = 0; k < 6 && numbers[i].bad[k]; k++)
            if (accepts(m, numbers[i].bad[k], strlen(numbers[i].bad[k])))
                fail_msg("%s should not take %s", numbers[i].schema, numbers[i].bad[k]);
        matcher_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format),
        cmocka_unit_test(lengths_beside_others),
        cmocka_unit_test(equal_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
