/* SPDX-License-Identifier: Apache-2.0 */
/* post - the result of the chain of post-processors for one text: ids before and after it.
 *
 * A post-processor receives not one row of ids but the rows of the previous post-processor: a
 * template makes one row for each of its pieces, and cls and sep are added around each row. All
 * rows are known at load. Private to common/tokenizer. Threads: read-only after load. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_POST_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_POST_H
#include <jansson.h>
#include <stdbool.h>
#include "common/tokenizer/token_list.h"

struct tok_chain;

struct post_wrap {
    struct token_list before, after;
};
struct post_row {
    struct post_wrap ids;
    bool text; /* the text is between them */
};
struct post_rows {
    struct post_row *rows; /* [n] */
    size_t n, cap;
};
#define POST_ROWS_MAX 256

/* What the chain puts around a text. Errors: Q_UNSUPPORTED (the text is not there exactly once).
 * Ownership: post_wrap_release, also after an error. */
FALLIBLE post_plan(struct post_wrap *out, const struct tok_chain *chain, struct q_err *e);
void post_wrap_release(struct post_wrap *w);

#endif
