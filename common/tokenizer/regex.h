/* SPDX-License-Identifier: Apache-2.0 */
/* regex - the patterns of tokenizer.json on PCRE2.
 *
 * The reference uses Oniguruma in its Ruby syntax; syntax with a different meaning in PCRE2 is
 * rewritten before compiling (see regex.c), and syntax without an equivalent is refused by name.
 * Work per match is limited, so that endless backtracking is an error and not a hang. Threads: a
 * compiled pattern is read-only; a tok_regex_run has one owner. */
#ifndef QUIRE_COMMON_TOKENIZER_REGEX_H
#define QUIRE_COMMON_TOKENIZER_REGEX_H
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

#define TOK_REGEX_MAX 65536 /* bytes of one pattern */

struct tok_regex;
struct tok_regex_run {                    /* memory for matching, any pattern */
    void *general, *match, *data, *stack; /* PCRE2's contexts */
    bool newer; /* set by who has it: the text holds a character newer than PCRE2's Unicode */
};
/* clang-format off */
#define TOK_REGEX_RUN_INIT {NULL, NULL, NULL, NULL, false}
/* clang-format on */
struct tok_search { /* one subject and the match found last */
    const char *s;  /* [n] valid UTF-8, all that the pattern can see */
    size_t n;
    size_t start, end; /* of the match */
    bool found;
};

/* at: where the pattern stands, for messages. Errors: Q_UNSUPPORTED (why).
 */
FALLIBLE tok_regex_new(struct tok_regex **out, const char *pattern, size_t n, const char *at,
                       struct q_err *e);
void tok_regex_free(struct tok_regex *r);

/* What one thread needs to search; released by tok_regex_run_release. Errors: Q_NO_MEMORY. */
FALLIBLE tok_regex_run_init(struct tok_regex_run *run, struct q_err *e);
void tok_regex_run_release(struct tok_regex_run *run);
/* Look for the first match that starts at or after `from`. Errors: Q_TOO_LARGE (limit on
 * backtracking), Q_NO_MEMORY. */
FALLIBLE tok_regex_find(const struct tok_regex *r, struct tok_regex_run *run, struct tok_search *q,
                        size_t from, struct q_err *e);

#endif
