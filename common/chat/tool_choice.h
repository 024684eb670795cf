/* SPDX-License-Identifier: Apache-2.0 */
/* tool_choice - the allowed tools of a request, and whether a call is required.
 *
 * "none", "auto", "required", one function by name, or a list of allowed functions, in the forms
 * of OpenAI's chat completions and of its responses (which have one level less). Threads:
 * reentrant. Pointers in a struct tool_choice are borrowed from the request. */
#ifndef QUIRE_COMMON_CHAT_TOOL_CHOICE_H
#define QUIRE_COMMON_CHAT_TOOL_CHOICE_H
#include <jansson.h>
#include "common/err.h"

enum tool_mode { TOOL_NONE, TOOL_AUTO, TOOL_REQUIRED };

struct tool_choice {
    enum tool_mode mode;
    const char *name;      /* the one function to call; NULL: any */
    const json_t *allowed; /* [n] of the tools that may be called; NULL: all */
};
/* choice: the request's field; NULL: not given, which is "auto". Errors: Q_INVALID, beginning with
 * "tool_choice". */
FALLIBLE tool_choice_read(struct tool_choice *out, const json_t *choice, struct q_err *e);
/* Take from `tools` (of tools_read) what is not allowed. Errors: Q_INVALID, beginning with
 * "tool_choice": an entry names no function, or one that is not there. */
FALLIBLE tool_choice_apply(const struct tool_choice *c, json_t *tools, struct q_err *e);

#endif
