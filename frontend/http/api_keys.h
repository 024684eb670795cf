/* SPDX-License-Identifier: Apache-2.0 */
/* api_keys - the API keys a server accepts, compared in constant time.
 *
 * Only SHA-256 digests are kept; every digest is compared, so the time tells neither length nor
 * place of a match. Threads: read-only once filled. */
#ifndef QUIRE_FRONTEND_HTTP_API_KEYS_H
#define QUIRE_FRONTEND_HTTP_API_KEYS_H
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

struct api_keys {
    unsigned char (*digests)[32]; /* [n] */
    size_t n;
};
/* clang-format off */
#define API_KEYS_INIT {NULL, 0}
/* clang-format on */
FALLIBLE api_keys_init(struct api_keys *k, const char *const *api_keys, size_t n, struct q_err *e);
void api_keys_release(struct api_keys *k);
/* header: the value of Authorization. True when it is `Bearer KEY` with a known key, or when there
 * are no keys. */
bool api_keys_accept(const struct api_keys *k, const char *header, size_t n);
/* SHA-256 of the key in an Authorization header. False: there is none in it. */
bool api_keys_digest(unsigned char out[32], const char *header, size_t n);

#endif
