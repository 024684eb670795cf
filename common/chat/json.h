/* SPDX-License-Identifier: Apache-2.0 */
/* json - request bodies as JSON, with limits checked before jansson allocates memory.
 *
 * jansson needs 40 to 100 bytes per value, independent of its text, and stack for nesting. Depth
 * and number of values are therefore counted first, in one pass over the bytes. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_CHAT_JSON_H
#define QUIRE_COMMON_CHAT_JSON_H
#include <jansson.h>
#include "common/buf.h"
#include "common/json_kind.h"

#define JSON_DEPTH_MAX  100
#define JSON_VALUES_MAX 2000000u /* token ids of a long prompt count one each: 80 MB in jansson */

/* *out: a new reference to any value. Errors: as json_body. */
FALLIBLE json_text(json_t **out, const char *text, size_t n, struct q_err *e);
/* The same where an object with a key twice is no JSON: Q_INVALID, with its place. */
FALLIBLE json_text_unique(json_t **out, const char *text, size_t n, struct q_err *e);
/* The same for a request's body. *out: a new reference to an object. Errors: Q_INVALID (not JSON,
 * with line and column; not an object), Q_TOO_LARGE (depth, values). */
FALLIBLE json_body(json_t **out, const char *text, size_t n, struct q_err *e);
/* Append the value's compact JSON text. */
void json_add(struct buf *out, const json_t *v);

#endif
