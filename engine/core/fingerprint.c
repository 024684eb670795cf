/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/fingerprint.h"
#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/mem.h"

#define HEADER_HASHED_MAX \
    ((uint64_t)64 << 20) /* bytes; a longer header is refused when the model loads */

static int is_weights(const struct dirent *d)
{
    size_t n = strlen(d->d_name), suffix = sizeof ".safetensors" - 1;
    return n > suffix && !strcmp(d->d_name + n - suffix, ".safetensors");
}

static FALLIBLE hash_file(EVP_MD_CTX *md, const char *dir, const char *name, struct q_err *e)
{
    char path[PATH_MAX];
    struct mapping m = MAPPING_INIT;
    enum q_code rc;
    if ((rc = path_join(path, sizeof path, dir, name, e)) || (rc = mapping_open(&m, path, e)))
        return rc;
    uint64_t size = m.size, header = 0;
    if (size >= sizeof header)
        memcpy(&header, m.data, sizeof header);
    if (header > size - sizeof header || size < sizeof header || header > HEADER_HASHED_MAX)
        header = 0;
    EVP_DigestUpdate(md, name, strlen(name) + 1);
    EVP_DigestUpdate(md, &size, sizeof size);
    EVP_DigestUpdate(md, m.data, header ? header + sizeof header : 0);
    mapping_release(&m);
    return Q_OK;
}

static FALLIBLE hash_weights(EVP_MD_CTX *md, const char *dir, struct q_err *e)
{
    struct dirent **entries;
    int n = scandir(dir, &entries, is_weights, alphasort);
    if (n < 0)
        return q_fail(e, Q_IO, "%s: %s", dir, strerror(errno));
    enum q_code rc = Q_OK;
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = hash_file(md, dir, entries[i]->d_name, e);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

FALLIBLE fingerprint_make(char *out, size_t size, const char *model_dir, enum load_format format,
                          const struct worker_info *info, struct q_err *e)
{
    unsigned char digest[32], hash[EVP_MAX_MD_SIZE];
    char settings[RING_NAMES_MAX + 256];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(md);
        return q_fail(e, Q_NO_MEMORY, "fingerprint: no SHA-256");
    }
    enum q_code rc = hub_digest(digest, model_dir, e);
    if (!rc && format != LOAD_DUMMY)
        rc = hash_weights(md, model_dir, e);
    if (!rc) {
        snprintf(settings, sizeof settings, "quire %s; dummy %d; %s %s; length %u; %s",
                 QUIRE_VERSION, format == LOAD_DUMMY, dtype_name(info->shape.compute_dtype),
                 dtype_name(info->shape.kv_dtype), info->shape.max_model_len, info->kernels);
        EVP_DigestUpdate(md, digest, sizeof digest);
        EVP_DigestUpdate(md, settings, strlen(settings));
        EVP_DigestFinal_ex(md, hash, NULL);
        snprintf(out, size, "fp_%02x%02x%02x%02x%02x%02x%02x%02x", hash[0], hash[1], hash[2],
                 hash[3], hash[4], hash[5], hash[6], hash[7]);
    }
    EVP_MD_CTX_free(md);
    return rc;
}
