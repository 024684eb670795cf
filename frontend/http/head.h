/* SPDX-License-Identifier: Apache-2.0 */
/* head - the head of an HTTP/1 request as it came, before h2o reads it.
 *
 * h2o takes the first of two Content-Length headers, prefers Transfer-Encoding to either, and needs
 * no Host. A proxy in front may decide otherwise, and then the two see different requests in the
 * same bytes (request smuggling). RFC 9112 wants 400 for all of these. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_HTTP_HEAD_H
#define QUIRE_FRONTEND_HTTP_HEAD_H
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the head with the empty line at its end; 0: the end is not there yet. */
size_t head_length(const char *bytes, size_t n);
/* What is wrong with a whole head (a sentence without full stop); NULL: nothing that h2o would not
 * see itself. */
const char *head_fault(const char *head, size_t n);
/* Is there a header of this name (in small letters)? Of a whole head. */
bool head_has(const char *head, size_t n, const char *name);
/* Rename, in place, the headers that announce a body or another protocol, so that h2o waits for
 * neither. Of a whole head. */
void head_unframe(char *head, size_t n);
/* Header lines that are whole, of a head that need not be; counted up to `most` + 1. */
size_t head_n_field(const char *bytes, size_t n, size_t most);
#define HEAD_BLANK_MIN 64 /* bytes: room for the request line, Host and the empty line */
/* Write a head of n bytes, HEAD_BLANK_MIN or more, that asks for "/" and has nothing wrong with it:
 * for h2o to read in the place of one that it must not see. */
void head_blank(char *bytes, size_t n);

#endif
