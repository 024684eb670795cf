/* SPDX-License-Identifier: Apache-2.0 */
/* wrap - streamed text, wrapped between words at a terminal's width.
 *
 * A word is held until its end has arrived. Wide characters (CJK) may break anywhere; lines between
 * ``` fences are unchanged. Control characters are removed (common/printable.h), so that an answer
 * cannot control the terminal. Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_WRAP_H
#define QUIRE_FRONTEND_CLI_WRAP_H
#include <stdbool.h>
#include <stdio.h>
#include "common/buf.h"
#include "common/printable.h"

struct wrap {
    unsigned width;        /* columns; 0: text is passed through unchanged */
    unsigned column;       /* column after the printed text */
    unsigned spaces;       /* held; printed before the word, or replaced by a line break */
    struct buf word;       /* held */
    unsigned word_columns; /* of it */
    bool fenced;           /* between ``` and ``` */
    bool begun;            /* the line is not empty */
    struct printable in;
    struct buf safe; /* of the piece at hand */
    struct buf out;  /* to be written and reset by the owner */
    bool has_lost;   /* text, for want of memory */
};
void wrap_add(struct wrap *w, const char *text, size_t n);
/* End of the text: print what is held. */
void wrap_flush(struct wrap *w);
void wrap_release(struct wrap *w); /* all zero is the empty value */

#endif
