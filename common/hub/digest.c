/* SPDX-License-Identifier: Apache-2.0 */
/* A source of its own, so that a program that only looks for folders does not load OpenSSL. */
#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/gguf/gguf_file.h"
#include "common/hub/hub.h"
#include "common/hub/hub_json.h"
#include "common/hub/params.h"

/* Add one part to the digest: name, length and bytes, so that different sets of parts give
 * different digests. */
static bool digest_part(EVP_MD_CTX *ctx, const char *name, const void *data, size_t n)
{
    uint64_t n64 = n;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n64 >> (8 * i));
    return EVP_DigestUpdate(ctx, name, strlen(name) + 1) &&
           EVP_DigestUpdate(ctx, length, sizeof length) &&
           (n == 0 || EVP_DigestUpdate(ctx, data, n));
}

/* config.json with sorted keys and without white space, so that equal values give equal texts. */
static enum q_code config_text(char **out, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    json_t *root = NULL;
    enum q_code rc = params_read_config(&text, path, dir, e);
    if (!rc && !(rc = hub_json_parse(&root, buf_str(&text), text.len, path, e))) {
        *out = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
        rc = *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    }
    json_decref(root);
    buf_release(&text);
    return rc;
}

/* Replace `name` by the next greater name of a tokenizer file in the folder; false: there is
 * none. */
static bool next_file(char name[NAME_MAX + 1], const char *dir)
{
    char best[NAME_MAX + 1] = "";
    DIR *d = opendir(dir);
    for (const struct dirent *entry; d && (entry = readdir(d));)
        if (hub_is_tokenizer_file(entry->d_name) && strcmp(entry->d_name, name) > 0 &&
            (!*best || strcmp(entry->d_name, best) < 0))
            snprintf(best, sizeof best, "%s", entry->d_name);
    if (d)
        closedir(d);
    snprintf(name, NAME_MAX + 1, "%s", best);
    return *best;
}

/* The folder's tokenizer files, by name. */
static enum q_code digest_tokenizer(EVP_MD_CTX *ctx, const char *dir, struct q_err *e)
{
    char name[NAME_MAX + 1] = "";
    enum q_code rc = Q_OK;
    while (!rc && next_file(name, dir)) {
        char path[PATH_MAX];
        struct mapping file = MAPPING_INIT;
        if (!(rc = path_join(path, sizeof path, dir, name, e)) && file_exists(path) &&
            !(rc = mapping_open(&file, path, e)) && !digest_part(ctx, name, file.data, file.size))
            rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", path);
        mapping_release(&file);
    }
    return rc;
}

/* A GGUF file's metadata and the list of its tensors, with the tokenizer and the template. */
static enum q_code digest_gguf(EVP_MD_CTX *ctx, const char *path, struct q_err *e)
{
    struct gguf_file f = GGUF_FILE_INIT;
    enum q_code rc = gguf_file_open(&f, path, e);
    size_t n = f.map.size;
    for (uint64_t i = 0; i < f.g.n_tensor && !rc; i++)
        if (f.g.tensors[i].offset < n)
            n = (size_t)f.g.tensors[i].offset;
    if (!rc && !digest_part(ctx, "gguf", f.map.data, n))
        rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", path);
    gguf_file_release(&f);
    return rc;
}

enum q_code hub_digest(unsigned char digest[32], const char *dir, struct q_err *e)
{
    char *config = NULL;
    EVP_MD_CTX *ctx = NULL;
    enum q_code rc = config_text(&config, dir, e);
    if (rc)
        goto out;
    ctx = EVP_MD_CTX_new();
    if (!ctx || !EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ||
        !digest_part(ctx, "config", config, strlen(config)))
        rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", dir);
    else
        rc = weight_files_is_gguf(dir) ? digest_gguf(ctx, dir, e) : digest_tokenizer(ctx, dir, e);
    if (!rc && !EVP_DigestFinal_ex(ctx, digest, NULL))
        rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", dir);
out:
    EVP_MD_CTX_free(ctx);
    if (config) {
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        release(config);
    }
    return rc;
}
