/* SPDX-License-Identifier: Apache-2.0 */
/* items_internal - base64 text and paths of files in items, for arrays and images alike. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_ITEMS_ITEMS_INTERNAL_H
#define QUIRE_COMMON_ITEMS_ITEMS_INTERNAL_H
#include <limits.h>
#include "common/items/items.h"

struct item_text {
    const char *member; /* that has it, for messages */
    const char *data;   /* [n] and a NUL, or NULL */
    size_t n;
};
/* *out: allocated, *n bytes. Errors: Q_INVALID (base64 has + and /, its padding, and no white
 * space), Q_NO_MEMORY; the message begins with the member's name. */
FALLIBLE item_base64(unsigned char **out, size_t *n, const struct item_text *text, struct q_err *e);
/* The real path of a file that the rules allow. Errors: Q_INVALID, Q_UNSUPPORTED (no files); the
 * message begins with the member's name. */
FALLIBLE item_path(char out[PATH_MAX], const struct item_rules *rules, const char *path,
                   const char *member, struct q_err *e);

#endif
