/* SPDX-License-Identifier: Apache-2.0 */
/* check - cmocka with its includes in the order it wants, and two asserts of ours. */
#ifndef QUIRE_TESTS_UNIT_CHECK_H
#define QUIRE_TESTS_UNIT_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/err.h"

/* The call succeeded; prints the error otherwise. */
#define assert_ok(call, e)                           \
    do {                                             \
        if ((call) != Q_OK)                          \
            fail_msg("%s: %s", #call, (e)->message); \
    } while (0)

/* The call failed with this code and a message that has `part` in it. */
#define assert_fails(call, want, part, e)                                                  \
    do {                                                                                   \
        enum q_code got_ = (call);                                                         \
        if (got_ != (want) || !strstr((e)->message, (part)))                               \
            fail_msg("%s: got %s \"%s\", wanted %s with \"%s\"", #call, q_code_name(got_), \
                     (e)->message, q_code_name(want), (part));                             \
        q_err_reset(e);                                                                    \
    } while (0)

#endif
