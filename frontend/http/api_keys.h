/* SPDX-License-Identifier: Apache-2.0 */
/* api_keys - the accepted API keys, compared in constant time, with their attributes.
 *
 * Only SHA-256 digests are stored; every digest is compared, so the time reveals neither length nor
 * position of a match. Keys are given on the command line or in the lines of a file:
 *
 *     # a key to a line, or its SHA-256; behind it, with blanks between, what it has
 *     sha256:9f86d0…0a08 name=alice   the key is not in the file; logs show the name
 *     sk-9a02 weight=3                its requests get three times the share under contention
 *     sk-4f1c models=small,medium     other models are refused
 *     sk-root admin                   may use the administration endpoints
 *
 * The hash has no salt: it protects keys of `quire keygen --api-key-name` (256 random bits), not
 * keys that can be guessed.
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

#define API_KEY_NAME_MAX 64
#define API_KEY_HASH     "sha256:" /* before the 64 hex digits of a key's SHA-256 */

struct api_key {
    unsigned char digest[32];
    uint32_t weight; /* 1 … API_KEY_WEIGHT_MAX: scheduling weight of the key */
    bool admin;
    char name[API_KEY_NAME_MAX + 1]; /* for logs: of name=, else "key " and 8 digits of the hash */
    char *models; /* owned: the allowed models' names, separated by commas; NULL: all */
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
 * open; Q_FORBIDDEN for a file that every user of the machine may read or write. */
FALLIBLE api_keys_add_file(struct api_keys *k, const char *path, struct q_err *e);
/* Check for duplicate keys. Errors: Q_INVALID. */
FALLIBLE api_keys_check(const struct api_keys *k, struct q_err *e);
void api_keys_release(struct api_keys *k);
/* May this key use the model of that name? */
bool api_key_allows(const struct api_key *key, const char *model);
/* header: the value of Authorization. The known key in `Bearer KEY`; NULL: none. */
const struct api_key *api_keys_find(const struct api_keys *k, const char *header, size_t n);
/* The key of this digest; NULL: unknown. */
const struct api_key *api_keys_find_digest(const struct api_keys *k,
                                           const unsigned char digest[32]);
/* The same for a key alone, as in X-Api-Key. */
const struct api_key *api_keys_find_plain(const struct api_keys *k, const char *key, size_t n);
/* SHA-256 of the key in an Authorization header. False: no key. */
bool api_keys_digest(unsigned char out[32], const char *header, size_t n);

#endif
