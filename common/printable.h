/* SPDX-License-Identifier: Apache-2.0 */
/* printable - text from a model, a server or a file, made safe to print on a terminal.
 *
 * Control characters can set a terminal's title and colours, write its clipboard and move its
 * cursor. C0 except newline and tab, DEL, and C1 (U+0080 to U+009F, which UTF-8 terminals interpret
 * too) are removed; bytes that are not UTF-8 become U+FFFD. Threads: one owner. */
#ifndef QUIRE_COMMON_PRINTABLE_H
#define QUIRE_COMMON_PRINTABLE_H
#include <stdio.h>
#include "common/buf.h"

struct printable { /* state of a text in pieces; all zero at the beginning */
    char partial[4];
    unsigned n_partial; /* bytes of an incomplete character at the end of the last piece */
};
/* Append the next piece without its control characters. */
void printable_add(struct printable *p, const char *text, size_t n, struct buf *out);
/* End of the text: an incomplete character becomes U+FFFD. */
void printable_end(struct printable *p, struct buf *out);
/* Append a whole text without its control characters. NULL: nothing. */
void printable_text(const char *text, size_t n, struct buf *out);
/* The same on one line: newlines and tabs become blanks. For names. */
void printable_line(const char *text, size_t n, struct buf *out);
/* fprintf of a message of any length, without the control characters of its arguments. */
__attribute__((format(printf, 2, 3))) void printable_printf(FILE *out, const char *format, ...);

#endif
