/* SPDX-License-Identifier: Apache-2.0 */
/* check - cmocka with its includes in the required order, two assertions of ours, skipping with a
 * reason, and running a test program in parts. */
#ifndef QUIRE_TESTS_UNIT_CHECK_H
#define QUIRE_TESTS_UNIT_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "common/err.h"

/* Assert that the call succeeds; prints the error otherwise. */
#define assert_ok(call, e)                           \
    do {                                             \
        if ((call) != Q_OK)                          \
            fail_msg("%s: %s", #call, (e)->message); \
    } while (0)

/* Assert that the call fails with this code and a message that contains `part`. */
#define assert_fails(call, want, part, e)                                                  \
    do {                                                                                   \
        enum q_code got_ = (call);                                                         \
        if (got_ != (want) || !strstr((e)->message, (part)))                               \
            fail_msg("%s: got %s \"%s\", wanted %s with \"%s\"", #call, q_code_name(got_), \
                     (e)->message, q_code_name(want), (part));                             \
        q_err_reset(e);                                                                    \
    } while (0)

/* Skip this test. tests/tally.py counts the printed line; `missing` is a path or a program. */
#define skip_without(missing)                         \
    do {                                              \
        print_message("skipped: no %s\n", (missing)); \
        skip();                                       \
    } while (0)

/* Run all tests, or with the command line "k/n" those whose index is k modulo n (unit(… PARTS n) in
 * tests/CMakeLists.txt makes a test of each). */
static inline int check_run_part(const struct CMUnitTest *tests, size_t n_test, int argc,
                                 char **argv)
{
    struct CMUnitTest mine[128];
    unsigned part = 0, n_part = 1;
    size_t n = 0;
    if (argc > 1 && (sscanf(argv[1], "%u/%u", &part, &n_part) != 2 || part >= n_part)) {
        fprintf(stderr, "usage: %s [PART/PARTS]\n", argv[0]);
        return 2;
    }
    for (size_t i = part; i < n_test && n < sizeof mine / sizeof *mine; i += n_part)
        mine[n++] = tests[i];
    if (n == 0 || n_test > sizeof mine / sizeof *mine) {
        fprintf(stderr, "%s: %zu tests, of which this part has %zu\n", argv[0], n_test, n);
        return 2;
    }
    return _cmocka_run_group_tests("tests", mine, n, NULL, NULL);
}

#endif
