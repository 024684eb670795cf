/* SPDX-License-Identifier: Apache-2.0 */
/* err - error codes and messages of all functions.
 *
 * A function that can fail returns `enum q_code` (0 = Q_OK) and fills the caller's `struct q_err`
 * if and only if the code is not Q_OK. The list of codes is err.def. Libraries never print, exit or
 * abort for bad input; Q_ASSERT is for bugs of quire and is enabled in release builds. Threads: a
 * q_err belongs to its caller; all functions are reentrant. */
#ifndef QUIRE_COMMON_ERR_H
#define QUIRE_COMMON_ERR_H
#include <stdarg.h>
#include <stddef.h>

enum q_code {
#define ERR(name, http, text) Q_##name,
#include "common/err.def"
    Q_CODE_COUNT
};

#define Q_MESSAGE_MAX 1024 /* bytes, with the closing 0 */

struct q_err {
    enum q_code code;
    char message[Q_MESSAGE_MAX]; /* the fault, its place and the numbers; no trailing newline */
};
/* clang-format off */
#define Q_ERR_INIT {Q_OK, {0}}
/* clang-format on */

/* Prefix of the declaration of every function that can fail: the result must be used. */
#define FALLIBLE __attribute__((warn_unused_result)) enum q_code

/* q_fail(e, code, format, …): set `e` (may be NULL) to `code` with a formatted message and return
 * `code`. A message that does not fit loses the middle of its longest words (they are paths and
 * names; q_shorten), never its beginning or its end, and no UTF-8 sequence is cut. `code` must not
 * be Q_OK, and is evaluated twice. A macro, so that compilers and analysers know at the call that
 * the result is not Q_OK. */
#define q_fail(e, code, ...) (q_fail_text((e), (code), __VA_ARGS__), q_code_same(code))
__attribute__((format(printf, 3, 4))) void q_fail_text(struct q_err *e, enum q_code code,
                                                       const char *fmt, ...);
static inline enum q_code q_code_same(enum q_code code)
{
    return code;
}

/* Put "prefix: " before the message already in `e`; returns e->code, so `return q_wrap(e, "x")`
 * works. */
__attribute__((format(printf, 2, 3))) enum q_code q_wrap(struct q_err *e, const char *fmt, ...);

/* Shorten a text to at most size - 1 bytes: "…" replaces the middle of its longest words and, if
 * necessary, the middle of the text. Beginnings and ends remain. size: at least 8. */
void q_shorten(char *text, size_t size);

/* Back to Q_OK and an empty message. */
void q_err_reset(struct q_err *e);
const char *q_code_name(enum q_code code); /* "NO_SPACE" */
const char *q_code_text(enum q_code code); /* the sentence of err.def */
int q_code_http(enum q_code code);         /* HTTP status */

/* Prints the broken condition to stderr and aborts. For states that only a bug of quire can reach,
 * never for input. */
_Noreturn void q_assert_fail(const char *cond, const char *file, int line);
#define Q_ASSERT(cond) ((cond) ? (void)0 : q_assert_fail(#cond, __FILE__, __LINE__))

#endif
