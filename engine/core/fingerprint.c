/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/fingerprint.h"
#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/hub/safetensors.h"
#include "common/mem.h"
#include "engine/core/weights_identity.h"
#include "engine/model/plugins.h"

#define HASH_BYTES 32 /* SHA-256 */
#define N_SPOT     8  /* of each tensor, from its first bytes to its last */
#define SPOT_BYTES 16
#define HEADER_HASHED_MAX \
    ((uint64_t)64 << 20) /* bytes; a longer header is refused when the model loads */

static bool is_weights(const char *name)
{
    static const char *const ends[] = {".safetensors", ".bin", ".pth"};
    const size_t n = strlen(name);
    bool yes = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n_end = strlen(ends[i]);
        yes = yes || (n > n_end && !strcmp(name + n - n_end, ends[i]));
    }
    return yes;
}

static FALLIBLE hash_file(unsigned char out[HASH_BYTES], const char *dir, const char *name,
                          struct q_err *e)
{
    char path[PATH_MAX];
    struct mapping m = MAPPING_INIT;
    enum q_code rc;
    if ((rc = path_join(path, sizeof path, dir, name, e)) || (rc = mapping_open(&m, path, e)))
        return rc;
    uint64_t size = m.size, header = 0;
    if (size >= sizeof header)
        memcpy(&header, m.data, sizeof header);
    if (size < sizeof header || header > size - sizeof header || header > HEADER_HASHED_MAX)
        header = 0;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1) {
        EVP_DigestUpdate(md, name, strlen(name) + 1);
        EVP_DigestUpdate(md, &size, sizeof size);
        EVP_DigestUpdate(md, m.data, header ? header + sizeof header : 0);
        EVP_DigestFinal_ex(md, out, NULL);
    } else {
        rc = q_fail(e, Q_NO_MEMORY, "fingerprint: SHA-256 is not available");
    }
    EVP_MD_CTX_free(md);
    mapping_release(&m);
    return rc;
}

/* The hashes of the files, put together so that the order in which the folder lists them does
 * not matter. */
static FALLIBLE hash_weights(unsigned char all[HASH_BYTES], const char *dir, struct q_err *e)
{
    if (weight_files_is_gguf(dir)) { /* the digest has its metadata, the samples its tensors */
        struct mapping m = MAPPING_INIT;
        const enum q_code rc = mapping_open(&m, dir, e);
        memcpy(all, &m.size, sizeof m.size);
        mapping_release(&m);
        return rc;
    }
    DIR *d = opendir(dir);
    if (!d)
        return q_fail(e, Q_IO, "%s: %s", dir, strerror(errno));
    enum q_code rc = Q_OK;
    for (const struct dirent *entry; !rc && (entry = readdir(d));) {
        unsigned char one[HASH_BYTES] = {0};
        if (is_weights(entry->d_name))
            rc = hash_file(one, dir, entry->d_name, e);
        for (int i = 0; i < HASH_BYTES; i++)
            all[i] ^= one[i];
    }
    closedir(d);
    return rc;
}

static void hash_spots(EVP_MD_CTX *md, const struct tensor *t)
{
    const unsigned char *data = t->data;
    uint64_t last = t->n_bytes > SPOT_BYTES ? t->n_bytes - SPOT_BYTES : 0;
    size_t n = t->n_bytes < SPOT_BYTES ? t->n_bytes : SPOT_BYTES;
    for (uint64_t i = 0; i < N_SPOT; i++)
        EVP_DigestUpdate(md, data + last / (N_SPOT - 1) * i, n);
    tensor_drop(t->data, t->n_bytes); /* a touch brings in whole runs of pages */
}

static FALLIBLE hash_samples(unsigned char out[HASH_BYTES], const char *dir,
                             enum weight_format format, struct q_err *e)
{
    struct tensor_set *s = NULL;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    enum q_code rc = tensor_set_open_as(&s, dir, format, e);
    if (rc)
        goto out;
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        rc = q_fail(e, Q_NO_MEMORY, "fingerprint: SHA-256 is not available");
        goto out;
    }
    for (uint32_t i = 0; i < tensor_count(s); i++)
        hash_spots(md, tensor_at(s, i));
    EVP_DigestFinal_ex(md, out, NULL);
out:
    EVP_MD_CTX_free(md);
    tensor_set_free(s);
    return rc;
}

/* The plugin that serves the folder's architecture; "": none does. */
static FALLIBLE find_plugin(char out[PLUGIN_TEXT_MAX], const char *dir, struct q_err *e)
{
    struct model_config *c = q_alloc(sizeof *c);
    enum q_code rc =
        c ? model_config_load(c, NULL, dir, e) : q_fail(e, Q_NO_MEMORY, "out of memory");
    snprintf(out, PLUGIN_TEXT_MAX, "%s", rc ? "" : plugins_text(c->architecture));
    q_free(c);
    return rc;
}

FALLIBLE fingerprint_make(char out[FINGERPRINT_MAX], const struct worker_config *c,
                          const struct worker_info *info, const unsigned char *changed,
                          struct q_err *e)
{
    unsigned char digest[HASH_BYTES], weights[HASH_BYTES] = {0}, samples[HASH_BYTES] = {0},
                                      hash[HASH_BYTES];
    const char *dir = *c->weights_dir ? c->weights_dir : c->model_dir;
    char settings[RING_NAMES_MAX + PLUGIN_TEXT_MAX + RING_POOLER_MAX + 256];
    char plugin[PLUGIN_TEXT_MAX];
    enum q_code rc = hub_digest(digest, c->model_dir, e);
    if (!rc)
        rc = find_plugin(plugin, c->model_dir, e);
    if (!rc && c->format != LOAD_DUMMY && !(rc = hash_weights(weights, dir, e)))
        rc = hash_samples(samples, dir, load_format_files(c->format), e);
    if (rc)
        return rc;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1) {
        snprintf(settings, sizeof settings, "quire %s; dummy %d; %s %s %s; length %u; %s%s%s%s%s",
                 QUIRE_VERSION, c->format == LOAD_DUMMY, dtype_name(info->shape.compute_dtype),
                 dtype_name(info->shape.kv_dtype), quantization_name(info->shape.quantization),
                 info->shape.max_model_len, info->kernels, *plugin ? "; plugin " : "", plugin,
                 info->shape.pools ? "; pooled " : "", info->shape.pools ? c->pooler : "");
        EVP_DigestUpdate(md, digest, sizeof digest);
        EVP_DigestUpdate(md, weights, sizeof weights);
        EVP_DigestUpdate(md, samples, sizeof samples);
        EVP_DigestUpdate(md, settings, strlen(settings));
        if (changed)
            EVP_DigestUpdate(md, changed, WEIGHTS_IDENTITY_BYTES);
        EVP_DigestFinal_ex(md, hash, NULL);
        snprintf(out, FINGERPRINT_MAX, "fp_%02x%02x%02x%02x%02x%02x%02x%02x", hash[0], hash[1],
                 hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]);
    } else {
        rc = q_fail(e, Q_NO_MEMORY, "fingerprint: SHA-256 is not available");
    }
    EVP_MD_CTX_free(md);
    return rc;
}
