/* SPDX-License-Identifier: Apache-2.0 */
/* columns - text for terminals: words put into lines of a width, beside a column of names.
 * A column is a code point; a word longer than its room stands alone and sticks out.
 * Threads: pure. */
#ifndef QUIRE_COMMON_COLUMNS_H
#define QUIRE_COMMON_COLUMNS_H
#include <stdio.h>

#define COLUMNS_DEFAULT 80

/* The width to write `out` in: COLUMNS, else the terminal's, else COLUMNS_DEFAULT; 40 to 120. */
unsigned columns_width(FILE *out);
/* The words of `text`, the cursor being in column `at`: lines up to `width`, all but the first
 * indented, and a newline at the end. A newline in the text ends its line there. */
void columns_put(FILE *out, unsigned at, unsigned indent, unsigned width, const char *text);
/* Two spaces, `left`, and `right` from column `indent` on, on the next line where left is long. */
void columns_row(FILE *out, const char *left, unsigned indent, unsigned width, const char *right);
/* A command to copy, after four spaces: broken by a backslash between words, never in quotes. */
void columns_command(FILE *out, unsigned width, const char *command);

#endif
