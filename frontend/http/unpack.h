/* SPDX-License-Identifier: Apache-2.0 */
/* unpack - request bodies with a Content-Encoding.
 *
 * gzip and deflate (RFC 9110 8.4.1), the latter also without its zlib wrapper, as some clients send
 * it. What comes out is bounded by out->max, whatever the ratio. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_HTTP_UNPACK_H
#define QUIRE_FRONTEND_HTTP_UNPACK_H
#include "common/buf.h"

#define UNPACK_ACCEPTED "gzip, deflate, identity" /* for Accept-Encoding */

enum coding { CODING_NONE, CODING_GZIP, CODING_DEFLATE, CODING_UNKNOWN };
/* Of the value of a Content-Encoding header; CODING_NONE where it is empty. */
enum coding coding_read(const char *value, size_t n);
/* Append the plain bytes. Errors: Q_INVALID (no such data, cut off, or followed by more),
 * Q_TOO_LARGE (more than out->max), Q_NO_MEMORY. */
FALLIBLE unpack(struct buf *out, enum coding coding, const char *data, size_t n, struct q_err *e);

#endif
