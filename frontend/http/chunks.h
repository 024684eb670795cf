/* SPDX-License-Identifier: Apache-2.0 */
/* chunks - incremental check of the framing of a chunked body (RFC 9112 7.1).
 *
 * h2o reads the digits of a chunk's size and skips everything up to the line feed, so that "0x5" is
 * the last chunk for h2o and five bytes for other parsers, which then read the rest as another
 * request (request smuggling). Here a size is 1 to 16 hexadecimal digits, then extensions from ';'
 * on, then CR LF; CR LF follows the data; trailers are header lines. A valid body ends at the same
 * byte as for h2o. Threads: values. */
#ifndef QUIRE_FRONTEND_HTTP_CHUNKS_H
#define QUIRE_FRONTEND_HTTP_CHUNKS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chunks { /* all zero: before the first byte of a body */
    enum {
        CHUNKS_SIZE,
        CHUNKS_EXTENSION,
        CHUNKS_SIZE_END, /* the line feed of a size */
        CHUNKS_DATA,
        CHUNKS_DATA_RETURN,
        CHUNKS_DATA_END,
        CHUNKS_TRAILER, /* the begin of a line */
        CHUNKS_TRAILER_NAME,
        CHUNKS_TRAILER_VALUE,
        CHUNKS_TRAILER_END, /* the line feed of a trailer */
        CHUNKS_LAST,        /* the line feed of the body's end */
        CHUNKS_WHOLE,
        CHUNKS_WRONG
    } state;
    unsigned n_digit;
    uint64_t left; /* bytes of the chunk's data */
};
/* Process the next bytes, up to the body's end. Returns the error (a sentence without full stop)
 * once; NULL: no error yet. */
const char *chunks_take(struct chunks *c, const char *bytes, size_t n);

#endif
