/* SPDX-License-Identifier: Apache-2.0 */
/* buf - a growing byte string with a limit.
 *
 * Append functions return no error: the first failure (out of memory, limit reached) is recorded,
 * and every later append does nothing, so text is built without checks and buf_check is called once
 * at the end. data is NUL-terminated whenever len > 0 or buf_str() is used; it may contain NULs.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_BUF_H
#define QUIRE_COMMON_BUF_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct buf {
    char *data;
    size_t len; /* bytes used, without the terminating NUL */
    size_t cap; /* bytes allocated */
    size_t max; /* limit on len; 0 means BUF_MAX_DEFAULT */
    enum q_code failed;
};
#define BUF_MAX_DEFAULT ((size_t)1 << 30)
/* clang-format off */
#define BUF_INIT {NULL, 0, 0, 0, Q_OK}
#define BUF_INIT_MAX(limit) {NULL, 0, 0, (limit), Q_OK}
/* clang-format on */

/* Append n bytes, a string, one byte. */
void buf_add(struct buf *b, const void *data, size_t n);
void buf_add_str(struct buf *b, const char *s);
void buf_add_char(struct buf *b, char c);
/* Pointer to room for n more bytes and a NUL; the caller adds the number of bytes written to len
 * and appends the NUL. NULL: no room, recorded as a failed append. */
char *buf_room(struct buf *b, size_t n);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *b, const char *fmt, ...);
void buf_vprintf(struct buf *b, const char *fmt, va_list ap);
/* Append `code_point` as UTF-8 (invalid scalar values become U+FFFD). */
void buf_add_utf8(struct buf *b, uint32_t code_point);
/* Append a JSON string literal with its quotes. Invalid UTF-8 becomes U+FFFD. */
void buf_add_json_str(struct buf *b, const char *s, size_t n);
/* A failure of `from`, whose text goes into b, becomes b's. */
void buf_take_failure(struct buf *b, const struct buf *from);
void buf_reset(struct buf *b); /* len = 0, failure cleared, memory kept */
void buf_release(struct buf *b);
void buf_move(struct buf *dst,
              struct buf *src);           /* dst's old contents are released, src becomes empty */
const char *buf_str(const struct buf *b); /* never NULL */
/* Q_OK, or the error of the first failed append (`what` names the text being built). */
FALLIBLE buf_check(const struct buf *b, const char *what, struct q_err *e);

#endif
