/* SPDX-License-Identifier: Apache-2.0 */
/* replace - the description that the Replace normalizer and the Replace decoder share. Private to
 * common/tokenizer. Threads: read-only once loaded. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_REPLACE_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_REPLACE_H
#include "common/tokenizer/components/cut.h"

struct replace {
    struct tok_pattern pattern;
    char *content; /* [n] what stands in the place of a match */
    size_t n;
};

/* The component operations (tokenizer_internal.h). After an error *self is NULL or to be dropped
 * all the same. Errors: Q_CORRUPT, Q_UNSUPPORTED (those of tok_pattern), Q_NO_MEMORY. */
FALLIBLE replace_load(void **self, const json_t *spec, const char *at, struct q_err *e);
void replace_drop(void *self); /* NULL is fine */

#endif
