/* SPDX-License-Identifier: Apache-2.0 */
/* api_keys - the accepted API keys, compared in constant time, with their attributes.
 *
 * Only SHA-256 digests are stored; every digest is compared, so the time reveals neither length nor
 * position of a match. Keys are given on the command line or in the lines of a file:
 *
 *     # a key to a line; behind it, with blanks between, what it may have
 *     sk-4f1c
 *     sk-9a02 weight=3        its requests get three times the share under contention
 *     sk-root admin           may control the engine; once there is such a key, no other may
 *
 * Threads: read-only once filled. */
#ifndef QUIRE_FRONTEND_HTTP_API_KEYS_H
#define QUIRE_FRONTEND_HTTP_API_KEYS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define API_KEYS_MAX           65536
#define API_KEY_BYTES_MAX      1024
#define API_KEY_FILE_BYTES_MAX ((size_t)64 << 20)
#define API_KEY_WEIGHT_MAX     1000 /* of proto's submit */

struct api_key {
    unsigned char digest[32];
    uint32_t weight; /* 1 … API_KEY_WEIGHT_MAX: scheduling weight of the key */
    bool admin;
};
struct api_keys {
    struct api_key *items; /* [n] */
    size_t n, cap;
    bool has_admin; /* one of them is */
};
/* clang-format off */
#define API_KEYS_INIT {NULL, 0, 0, false}
/* clang-format on */
/* Add keys of weight 1. Errors: Q_INVALID (empty), Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE api_keys_add(struct api_keys *k, const char *const *api_keys, size_t n, struct q_err *e);
/* Add those of a file's text. Errors: Q_INVALID (with line and reason), Q_TOO_LARGE, Q_NO_MEMORY.
 */
FALLIBLE api_keys_add_text(struct api_keys *k, const char *text, size_t n, struct q_err *e);
/* Errors: those of file_read; Q_INVALID also for a file without keys, because the server would be
 * open. */
FALLIBLE api_keys_add_file(struct api_keys *k, const char *path, struct q_err *e);
/* Check for duplicate keys. Errors: Q_INVALID. */
FALLIBLE api_keys_check(const struct api_keys *k, struct q_err *e);
void api_keys_release(struct api_keys *k);
/* header: the value of Authorization. The known key in `Bearer KEY`; NULL: none. */
const struct api_key *api_keys_find(const struct api_keys *k, const char *header, size_t n);
/* The same for a key alone, as in X-Api-Key. */
const struct api_key *api_keys_find_plain(const struct api_keys *k, const char *key, size_t n);
/* SHA-256 of the key in an Authorization header. False: no key. */
bool api_keys_digest(unsigned char out[32], const char *header, size_t n);

#endif
