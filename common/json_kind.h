/* SPDX-License-Identifier: Apache-2.0 */
/* json_kind - the kind of a JSON value for error messages: "temperature: expected a number, got a
 * string".
 * Threads: pure. */
#ifndef QUIRE_COMMON_JSON_KIND_H
#define QUIRE_COMMON_JSON_KIND_H
#include <jansson.h>

/* "a string", "a number", …; NULL is "nothing". */
const char *json_kind(const json_t *v);

#endif
