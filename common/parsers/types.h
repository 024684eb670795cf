/* SPDX-License-Identifier: Apache-2.0 */
/* types - the types of a function's arguments by its schema, for formats that write values as text.
 * Threads: any; nothing is kept. */
#ifndef QUIRE_COMMON_PARSERS_TYPES_H
#define QUIRE_COMMON_PARSERS_TYPES_H
#include <jansson.h>
#include <stdbool.h>
#include "common/buf.h"

#define TYPE_STRING  1u
#define TYPE_INTEGER 2u
#define TYPE_NUMBER  4u
#define TYPE_BOOLEAN 8u
#define TYPE_NULL    16u
#define TYPE_ARRAY   32u
#define TYPE_OBJECT  64u
#define TYPE_NONE    128u /* with TYPE_NULL: None is null even with TYPE_STRING */

/* The type of this name, 0 = unknown. */
unsigned types_named(const char *name, size_t n);
/* The types a parameter may have, 0 = unknown. function: {"name", "parameters"} or NULL. */
unsigned types_of(const json_t *function, const char *parameter);
/* The same for any schema inside the parameters `root`. */
unsigned types_in_schema(const json_t *root, const json_t *schema);
/* The schema of an object's member, or of an array's items (`name` "item"); NULL: unknown. */
const json_t *types_child(const json_t *root, const json_t *schema, const char *name);
/* Append the path of a schema inside `root`, "#/properties/x". False: it is not part of it. */
bool types_path(const json_t *root, const json_t *schema, struct buf *out);
/* The schema a chain of references ends at. */
const json_t *types_target(const json_t *root, const json_t *schema);
/* Append the JSON of a value in text form. A value that does not fit its types becomes a string, so
 * the result is always valid JSON. Without a type, text that parses as a number, true, false, null,
 * an array or an object has that type; all other text is a string, also 007 and 1_000. */
void types_value(unsigned types, const char *text, size_t n, struct buf *out);

#endif
