/* SPDX-License-Identifier: Apache-2.0 */
/* columns - text for terminals: words wrapped to a width, next to a column of names. A column is a
 * code point; a word longer than the width is on a line of its own.
 * Threads: pure. */
#ifndef QUIRE_COMMON_COLUMNS_H
#define QUIRE_COMMON_COLUMNS_H
#include <stdio.h>

#define COLUMNS_DEFAULT 80

/* The width to write `out` in: COLUMNS, else the terminal's, else COLUMNS_DEFAULT; 40 to 120. */
unsigned columns_width(FILE *out);
/* Print the words of `text`, starting at column `at`, in lines of at most `width`, all but the
 * first indented, with a newline at the end. A newline in the text ends its line. */
void columns_put(FILE *out, unsigned at, unsigned indent, unsigned width, const char *text);
/* Two spaces, `left`, and `right` from column `indent` on, or on the next line if left is long. */
void columns_row(FILE *out, const char *left, unsigned indent, unsigned width, const char *right);
/* A command to copy, after four spaces: broken with a backslash, never inside quotes. */
void columns_command(FILE *out, unsigned width, const char *command);

#endif
