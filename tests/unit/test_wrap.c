/* SPDX-License-Identifier: Apache-2.0 */
/* wrap: words at a width, for text that comes in any pieces. */
#include "check.h"
#include <stdlib.h>
#include "frontend/cli/wrap.h"

static const struct {
    unsigned width;
    const char *in, *out;
} cases[] = {
    {10, "one two three four", "one two\nthree four"},
    {9, "one two three four", "one two\nthree\nfour"},
    {10, "0123456789 x", "0123456789\nx"},
    {5, "a 0123456789 b", "a\n0123456789\nb"}, /* a long word is the terminal's to break */
    {20, "a\n\nb  c\n", "a\n\nb  c\n"},
    {8, "  - one two", "  - one\ntwo"}, /* indentation stays at a line's beginning */
    {8, "one      two", "one\ntwo"},
    {6, "```\nlong line here\n```\nlong line", "```\nlong line here\n```\nlong\nline"},
    {6, "\xe4\xb8\x96\xe7\x95\x8c\xe4\xb8\x96\xe7\x95\x8c", /* four characters of two columns */
     "\xe4\xb8\x96\xe7\x95\x8c\xe4\xb8\x96\n\xe7\x95\x8c"},
    {5, "\xc3\xa9\xc3\xa9\xc3\xa9 \xc3\xa9", "\xc3\xa9\xc3\xa9\xc3\xa9 \xc3\xa9"},
    {4, "ae\xcc\x81z b", "ae\xcc\x81z\nb"}, /* a combining accent takes no column */
    {20,
     "a\x1b[31mb\x07"
     "c\r",
     "a[31mbc"},
    {0, "a\x1b[31m  b\n", "a\x1b[31m  b\n"}, /* no terminal: as it comes */
    {20, "a\xff\xc2\x9b\xe4\xb8z\xc3", "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd"},
    {0, "a\xff\xc3", "a\xff\xc3"},
};

static void assert_wrapped(size_t i, size_t piece)
{
    struct wrap w = {.width = cases[i].width};
    size_t n = strlen(cases[i].in);
    for (size_t at = 0; at < n; at += piece)
        wrap_add(&w, cases[i].in + at, n - at < piece ? n - at : piece);
    wrap_flush(&w);
    if (strcmp(buf_str(&w.out), cases[i].out) != 0)
        fail_msg("case %zu in pieces of %zu: \"%s\", wanted \"%s\"", i, piece, buf_str(&w.out),
                 cases[i].out);
    wrap_release(&w);
}

static void words_are_wrapped(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece <= 40; piece++)
            assert_wrapped(i, piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_wrapped),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
