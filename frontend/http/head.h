/* SPDX-License-Identifier: Apache-2.0 */
/* head - checks of the raw head of an HTTP/1 request before h2o reads it.
 *
 * h2o takes the first of two Content-Length headers, prefers Transfer-Encoding to either, and does
 * not require Host. A proxy may decide differently and then see different requests in the same
 * bytes (request smuggling). RFC 9112 requires 400 for all of these. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_HTTP_HEAD_H
#define QUIRE_FRONTEND_HTTP_HEAD_H
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the head with the empty line at its end; 0: incomplete. */
size_t head_length(const char *bytes, size_t n);
/* The error in a complete head (a sentence without full stop); NULL: none that h2o does not detect
 * itself. */
const char *head_fault(const char *head, size_t n);
struct head_value { /* in the head, without the spaces around it */
    const char *data;
    size_t n;
};
/* The first header of this name (in small letters) in a complete head; false: none. value may be
 * NULL. */
bool head_find(const char *head, size_t n, const char *name, struct head_value *value);
/* Does the complete head announce a body of at least a byte? */
bool head_has_body(const char *head, size_t n);
/* Rename, in place, the headers that announce a body or another protocol, so that h2o waits for
 * neither. For a complete head. */
void head_unframe(char *head, size_t n);
/* Number of complete header lines of a possibly incomplete head; counted up to `most` + 1. */
size_t head_n_field(const char *bytes, size_t n, size_t most);
#define HEAD_BLANK_MIN 64 /* bytes: room for the request line, Host and the empty line */
/* Write a valid head of n bytes (at least HEAD_BLANK_MIN) that requests "/"; h2o parses it in place
 * of an invalid one. */
void head_blank(char *bytes, size_t n);

#endif
