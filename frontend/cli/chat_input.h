/* SPDX-License-Identifier: Apache-2.0 */
/* chat_input - messages from a person at a terminal, with editing, history and several lines, or
 * lines from a pipe.
 *
 * At a terminal a message is a line; a line that ends in a backslash goes on in the next, and
 * """ begins a text that """ ends. What is pasted stays one message, whatever is in it.
 * Threads: main. */
#ifndef QUIRE_FRONTEND_CLI_CHAT_INPUT_H
#define QUIRE_FRONTEND_CLI_CHAT_INPUT_H
#include <stdbool.h>
#include "common/buf.h"

struct chat_input;
enum chat_input_kind {
    INPUT_TEXT,
    INPUT_INTERRUPTED, /* Ctrl-C; what was typed is gone */
    INPUT_END /* Ctrl-D, the end of a pipe, or Ctrl-C on an empty line after chat_input_warned */
};
/* words: [NULL-terminated] what Tab completes at the beginning of a line; those that end in a blank
 * take a file's name, which it completes too. Errors: Q_NO_MEMORY. */
FALLIBLE chat_input_open(struct chat_input **out, const char *const *words, struct q_err *e);
void chat_input_close(struct chat_input *in);       /* NULL is fine */
bool chat_input_edits(const struct chat_input *in); /* a person types, on a terminal */
/* The person was told that Ctrl-C once more ends: until the next message it does. */
void chat_input_warned(struct chat_input *in);
/* Is the last message one line to the person: without a newline but those of a backslash? */
bool chat_input_is_line(const struct chat_input *in);
/* The next message. Errors are an INPUT_END. */
enum chat_input_kind chat_input_read(struct chat_input *in, const char *prompt, struct buf *text);

#endif
