/* SPDX-License-Identifier: Apache-2.0 */
/* head - the header lines of a hub's response that a download needs. The lines are untrusted: a
 * value that is too long or malformed counts as absent. Threads: pure. */
#ifndef QUIRE_COMMON_HUB_REMOTE_HEAD_H
#define QUIRE_COMMON_HUB_REMOTE_HEAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/hub/cache.h"

#define HEAD_NONE    UINT64_MAX /* a number that was not given */
#define HEAD_URL_MAX 8192       /* bytes of a location, signed ones too */
#define HEAD_TEXT    256        /* bytes of an error's text */

struct head {
    unsigned status;                         /* of the status line; 0: none yet */
    char etag[CACHE_HASH_MAX + 1];           /* X-Linked-Etag, else ETag, without W/ and quotes */
    char commit[CACHE_HASH_MAX + 1];         /* X-Repo-Commit */
    uint64_t size;                           /* X-Linked-Size, else Content-Length */
    uint64_t range_from, range_total;        /* Content-Range: bytes FROM-…/TOTAL */
    uint64_t retry_after_s;                  /* Retry-After, or the t of RateLimit */
    char location[HEAD_URL_MAX + 1];         /* "": none */
    char error_code[64], message[HEAD_TEXT]; /* X-Error-Code, X-Error-Message */
    bool linked_etag, linked_size;           /* of an X-Linked header */
};

/* No line was read yet: all values are absent. */
void head_init(struct head *h);
/* One line, with or without its end. A status line begins a new response: all values are reset.
 * unix_s: now, for a Retry-After that is a date. */
void head_line(struct head *h, const char *line, size_t n, int64_t unix_s);

#endif
