/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/unpack.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#define PIECE       65536 /* bytes by which the output buffer grows */
#define WINDOW      15    /* log2 of zlib's largest window */
#define WINDOW_GZIP (16 + WINDOW)
#define WINDOW_RAW  (-WINDOW)

enum coding coding_read(const char *value, size_t n)
{
    static const struct {
        const char *name;
        enum coding coding;
    } known[] = {
        {"", CODING_NONE},       {"identity", CODING_NONE},   {"gzip", CODING_GZIP},
        {"x-gzip", CODING_GZIP}, {"deflate", CODING_DEFLATE},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == n && strncasecmp(known[i].name, value, n) == 0)
            return known[i].coding;
    return CODING_UNKNOWN;
}

/* RFC 1950: method 8, and a check on the first two bytes. */
static bool has_zlib_head(const unsigned char *b, size_t n)
{
    return n >= 2 && (b[0] & 15) == Z_DEFLATED && (b[0] * 256 + b[1]) % 31 == 0;
}

/* One call of inflate. *done: the data ended, or continues with the next member. */
static enum q_code step(z_stream *z, struct buf *out, bool *done, struct q_err *e)
{
    size_t room = out->max - out->len < PIECE ? out->max - out->len + 1 : PIECE;
    unsigned char piece[PIECE];
    z->next_out = piece;
    z->avail_out = (uInt)room;
    int rc = inflate(z, Z_NO_FLUSH);
    size_t n = room - z->avail_out;
    if (n > out->max - out->len)
        return q_fail(e, Q_TOO_LARGE, "the decompressed request body exceeds %zu bytes", out->max);
    buf_add(out, piece, n);
    *done = rc == Z_STREAM_END;
    if (rc == Z_MEM_ERROR)
        return q_fail(e, Q_NO_MEMORY, "out of memory while decompressing the request body");
    if (rc == Z_BUF_ERROR || (rc == Z_OK && !z->avail_in && z->avail_out))
        return q_fail(e, Q_INVALID, "the compressed request body is incomplete");
    if (rc != Z_OK && rc != Z_STREAM_END)
        return q_fail(e, Q_INVALID, "the request body does not match its Content-Encoding: %s",
                      z->msg ? z->msg : "bad data");
    return buf_check(out, "the decompressed request body", e);
}

FALLIBLE unpack(struct buf *out, enum coding coding, const char *data, size_t n, struct q_err *e)
{
    z_stream z = {.next_in = (unsigned char *)data, .avail_in = (uInt)n};
    int window = coding == CODING_GZIP         ? WINDOW_GZIP
                 : has_zlib_head(z.next_in, n) ? WINDOW
                                               : WINDOW_RAW;
    enum q_code rc = Q_OK;
    bool done = false;
    if (n > UINT32_MAX)
        return q_fail(e, Q_TOO_LARGE, "the compressed request body has %zu bytes", n);
    if (!out->max)
        out->max = BUF_MAX_DEFAULT;
    if (inflateInit2(&z, window) != Z_OK)
        return q_fail(e, Q_NO_MEMORY, "out of memory while decompressing the request body");
    while (rc == Q_OK && !done) {
        rc = step(&z, out, &done, e);
        if (rc == Q_OK && done && z.avail_in && coding == CODING_GZIP)
            done = inflateReset(&z) != Z_OK; /* members follow one another (RFC 1952 2.2) */
    }
    if (rc == Q_OK && z.avail_in)
        rc = q_fail(e, Q_INVALID, "%u extra bytes follow the compressed request body", z.avail_in);
    inflateEnd(&z);
    return rc;
}
