/* SPDX-License-Identifier: Apache-2.0 */
/* unpack - request bodies with a Content-Encoding.
 *
 * gzip and deflate (RFC 9110 8.4.1), the latter also without its zlib wrapper, as some clients send
 * it. The output is limited to out->max for any compression ratio. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_HTTP_UNPACK_H
#define QUIRE_FRONTEND_HTTP_UNPACK_H
#include "common/buf.h"

#define UNPACK_ACCEPTED "gzip, deflate, identity" /* for Accept-Encoding */

enum coding { CODING_NONE, CODING_GZIP, CODING_DEFLATE, CODING_UNKNOWN };
/* The coding of a Content-Encoding header; CODING_NONE if it is empty. */
enum coding coding_read(const char *value, size_t n);
/* Append the plain bytes. Errors: Q_INVALID (invalid, truncated, or followed by more data),
 * Q_TOO_LARGE (more than out->max), Q_NO_MEMORY. */
FALLIBLE unpack(struct buf *out, enum coding coding, const char *data, size_t n, struct q_err *e);

#endif
