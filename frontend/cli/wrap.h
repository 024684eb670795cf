/* SPDX-License-Identifier: Apache-2.0 */
/* wrap - text that comes in pieces, broken between words at a terminal's width.
 *
 * A word is held until its end has come. Wide characters (CJK) may break anywhere; lines between
 * ``` fences are left as they are. Control characters are left out (common/printable.h), so that no
 * answer steers the terminal. Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_WRAP_H
#define QUIRE_FRONTEND_CLI_WRAP_H
#include <stdbool.h>
#include <stdio.h>
#include "common/buf.h"
#include "common/printable.h"

struct wrap {
    unsigned width;        /* columns; 0: text goes out as it comes, whatever is in it */
    unsigned column;       /* of what is out */
    unsigned spaces;       /* held; they go out before the word, or become a line's end */
    struct buf word;       /* held */
    unsigned word_columns; /* of it */
    bool fenced;           /* between ``` and ``` */
    bool begun;            /* something of this line is out or held */
    struct printable in;
    struct buf safe; /* of the piece at hand */
    struct buf out;  /* to be written and reset by the owner */
};
void wrap_add(struct wrap *w, const char *text, size_t n);
/* The text is over for now: what is held goes out. */
void wrap_flush(struct wrap *w);
void wrap_release(struct wrap *w); /* all zero is the empty value */

#endif
