/* SPDX-License-Identifier: Apache-2.0 */
/* json_read - jansson's parser where memory runs out.
 *
 * The lexer of jansson (2.14, lex_save) ignores that its buffer for a token could not grow. A
 * string then lacks bytes, or is copied beyond its buffer; a number ends the program by an
 * assertion. So from the first allocation of a parse that fails on, small ones are served from a
 * reserve, larger ones fail, and the parse has no result.
 *
 * options_main calls json_use_mem; in the processes of others (libquire) jansson's own allocations
 * stay.
 * Threads: any. */
#ifndef QUIRE_COMMON_JSON_READ_H
#define QUIRE_COMMON_JSON_READ_H
#include <jansson.h>
#include <stddef.h>

/* jansson allocates by common/mem. Before its first use, once in a program. */
void json_use_mem(void);
/* As json_loadb, json_loads and json_load_callback (flags, and error, which may be NULL, are
 * theirs); NULL with json_error_out_of_memory if any allocation failed. */
json_t *json_read_bytes(const char *text, size_t n, size_t flags, json_error_t *error);
json_t *json_read_string(const char *text, size_t flags, json_error_t *error);
json_t *json_read_callback(json_load_callback_t callback, void *data, size_t flags,
                           json_error_t *error);

#endif
