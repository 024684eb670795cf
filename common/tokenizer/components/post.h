/* SPDX-License-Identifier: Apache-2.0 */
/* post - the result of the chain of post-processors for one text (ids before and after it), and for
 * two (ids before, between and after them, and which of all these are of type 1).
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
    bool text;     /* a text is between them */
    uint32_t type; /* of its ids */
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

enum post_region { POST_BEFORE, POST_FIRST, POST_BETWEEN, POST_SECOND, POST_AFTER, POST_REGIONS };
struct post_pair {
    bool is_there; /* the chain puts two texts together, each once and in order */
    struct token_list before, between, after;
    /* Where type 1 begins: so many ids into a region; POST_REGIONS: nowhere. */
    enum post_region second;
    uint32_t n_into;
};
/* The same for two texts. A chain that does not take two is no error: is_there is false. Errors:
 * Q_NO_MEMORY. Ownership: post_pair_release. */
FALLIBLE post_plan_pair(struct post_pair *out, const struct tok_chain *chain, struct q_err *e);
void post_pair_release(struct post_pair *p);

#endif
