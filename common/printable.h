/* SPDX-License-Identifier: Apache-2.0 */
/* printable - text from a model, a server or a file, made safe to print on a terminal.
 *
 * A terminal obeys control characters: they set its title and colours, write its clipboard, move
 * its cursor. Left out are C0 but newline and tab, DEL, and C1 (U+0080 to U+009F, which UTF-8
 * terminals obey too); bytes that are not UTF-8 become U+FFFD. Threads: one owner. */
#ifndef QUIRE_COMMON_PRINTABLE_H
#define QUIRE_COMMON_PRINTABLE_H
#include <stdio.h>
#include "common/buf.h"

struct printable { /* a text that comes in pieces; all zero is its beginning */
    char partial[4];
    unsigned n_partial; /* bytes of a character whose rest has not come */
};
/* Append what is safe of the next piece. */
void printable_add(struct printable *p, const char *text, size_t n, struct buf *out);
/* The text is over: an unfinished character becomes U+FFFD. */
void printable_end(struct printable *p, struct buf *out);
/* Append what is safe of a whole text. NULL: nothing. */
void printable_text(const char *text, size_t n, struct buf *out);
/* The same on one line: newlines and tabs become blanks. For names. */
void printable_line(const char *text, size_t n, struct buf *out);
/* fprintf of a message, however long, whose arguments may hold anything. */
__attribute__((format(printf, 2, 3))) void printable_printf(FILE *out, const char *format, ...);

#endif
