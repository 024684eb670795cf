/* SPDX-License-Identifier: Apache-2.0 */
/* chat_input - messages typed at a terminal, with editing, history and several lines, or lines of a
 * pipe.
 *
 * At a terminal a message is a line; a line that ends in a backslash continues on the next, and a
 * text between """ and """ is one message. Pasted text is always one message.
 * Threads: main. */
#ifndef QUIRE_FRONTEND_CLI_CHAT_INPUT_H
#define QUIRE_FRONTEND_CLI_CHAT_INPUT_H
#include <stdbool.h>
#include "common/buf.h"

struct chat_input;
enum chat_input_kind {
    INPUT_TEXT,
    INPUT_INTERRUPTED, /* Ctrl-C; the typed text is discarded */
    INPUT_END /* Ctrl-D, the end of a pipe, or Ctrl-C on an empty line after chat_input_warned */
};
/* words: [NULL-terminated] words completed by Tab at the beginning of a line; words that end in a
 * blank are followed by a file name, which is completed too. Errors: Q_NO_MEMORY. */
FALLIBLE chat_input_open(struct chat_input **out, const char *const *words, struct q_err *e);
void chat_input_close(struct chat_input *in);       /* NULL is fine */
bool chat_input_edits(const struct chat_input *in); /* input is typed at a terminal */
/* The hint about Ctrl-C was shown: until the next message Ctrl-C ends the input. */
void chat_input_warned(struct chat_input *in);
/* True if the last message is one line, except for newlines after a backslash. */
bool chat_input_is_line(const struct chat_input *in);
/* The next message. Errors are an INPUT_END. */
enum chat_input_kind chat_input_read(struct chat_input *in, const char *prompt, struct buf *text);

#endif
