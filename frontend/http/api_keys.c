/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>
#include "common/mem.h"

static bool digest_of(unsigned char out[32], const char *data, size_t n)
{
    unsigned int size = 32;
    return EVP_Digest(data, n, out, &size, EVP_sha256(), NULL) == 1;
}

FALLIBLE api_keys_init(struct api_keys *k, const char *const *api_keys, size_t n, struct q_err *e)
{
    k->digests = q_calloc(n ? n : 1, sizeof(*k->digests));
    if (!k->digests)
        return q_fail(e, Q_NO_MEMORY, "api keys: no memory for %zu", n);
    for (size_t i = 0; i < n; i++) {
        if (!*api_keys[i])
            return q_fail(e, Q_INVALID, "--api-key: a key is empty");
        if (!digest_of(k->digests[i], api_keys[i], strlen(api_keys[i])))
            return q_fail(e, Q_INTERNAL, "api keys: SHA-256 is not available");
    }
    k->n = n;
    return Q_OK;
}

void api_keys_release(struct api_keys *k)
{
    q_free(k->digests);
    *k = (struct api_keys)API_KEYS_INIT;
}

bool api_keys_digest(unsigned char out[32], const char *header, size_t n)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof(scheme) - 1;
    return n >= n_scheme && strncasecmp(header, scheme, n_scheme) == 0 &&
           digest_of(out, header + n_scheme, n - n_scheme);
}

bool api_keys_accept(const struct api_keys *k, const char *header, size_t n)
{
    unsigned char digest[32];
    if (k->n == 0)
        return true;
    if (!api_keys_digest(digest, header, n))
        return false;
    int n_match = 0;
    for (size_t i = 0; i < k->n; i++)
        n_match += CRYPTO_memcmp(digest, k->digests[i], sizeof(digest)) == 0;
    return n_match > 0;
}
