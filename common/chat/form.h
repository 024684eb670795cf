/* SPDX-License-Identifier: Apache-2.0 */
/* form - the grammar that a request sets for its answer (a schema, an expression, …), and the same
 * as a part of a structural tag together with tool calls.
 * Threads: values. */
#ifndef QUIRE_COMMON_CHAT_FORM_H
#define QUIRE_COMMON_CHAT_FORM_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

/* the kinds of submit.grammar_kind */
enum form_kind {
    FORM_NONE = 0,
    FORM_JSON = 1,
    FORM_REGEX = 2,
    FORM_CHOICE = 3,
    FORM_EBNF = 4,
    FORM_TAGS = 5 /* a structural tag, which has free text around it */
};
#define FORM_COMPACT 0x100u /* added to JSON: no white space between JSON's tokens */
#define FORM_SPACED  0x200u /* added to JSON: a pattern for it stands before the schema */

struct form {
    uint32_t kind;    /* enum form_kind, perhaps with FORM_COMPACT or FORM_SPACED */
    const char *text; /* [n] the source; borrowed */
    size_t n;
};
/* Is it a grammar of the whole answer, and not one with free text around it? */
bool form_binds(const struct form *f);
/* *out: the format, owned by the caller. f->kind is neither FORM_NONE nor FORM_TAGS.
 * Errors: Q_INVALID (no JSON, no strings), Q_NO_MEMORY. */
FALLIBLE form_tag(json_t **out, const struct form *f, struct q_err *e);

#endif
