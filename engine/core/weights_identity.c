/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/weights_identity.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"

#define HEAD_BYTES 65536 /* headers of safetensors and gguf begin a file */

static bool has_weights(const char *name)
{
    static const char *const ends[] = {".safetensors", ".bin", ".pth", ".pt", ".gguf"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n_end = strlen(ends[i]);
        if (n > n_end && !strcmp(name + n - n_end, ends[i]))
            return true;
    }
    return false;
}

static FALLIBLE hash(unsigned char out[WEIGHTS_IDENTITY_BYTES], const char *name,
                     const struct stat *st, const void *head, size_t n, struct q_err *e)
{
    const uint64_t numbers[] = {(uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec,
                                (uint64_t)st->st_mtim.tv_nsec, (uint64_t)st->st_ino};
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    const bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
                    EVP_DigestUpdate(md, name, strlen(name) + 1) == 1 &&
                    EVP_DigestUpdate(md, numbers, sizeof numbers) == 1 &&
                    EVP_DigestUpdate(md, head, n) == 1 && EVP_DigestFinal_ex(md, out, NULL) == 1;
    EVP_MD_CTX_free(md);
    return ok ? Q_OK : q_fail(e, Q_NO_MEMORY, "weights: SHA-256 is not available");
}

/* Add a file to the identity; the order of the files does not matter. What is no regular file
 * holds no weights, and is not waited for. */
static FALLIBLE add_file(unsigned char all[WEIGHTS_IDENTITY_BYTES], const char *path,
                         const char *name, struct q_err *e)
{
    unsigned char one[WEIGHTS_IDENTITY_BYTES], head[HEAD_BYTES];
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        const int why = errno;
        if (fd >= 0)
            close(fd);
        return q_fail(e, Q_IO, "%s: %s", path, strerror(why));
    }
    const ssize_t n = S_ISREG(st.st_mode) ? pread(fd, head, sizeof head, 0) : 0;
    close(fd);
    if (n < 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return Q_OK;
    const enum q_code rc = hash(one, name, &st, head, (size_t)n, e);
    for (int i = 0; i < WEIGHTS_IDENTITY_BYTES && !rc; i++)
        all[i] ^= one[i];
    return rc;
}

FALLIBLE weights_identity(unsigned char out[WEIGHTS_IDENTITY_BYTES], const char *path,
                          struct q_err *e)
{
    memset(out, 0, WEIGHTS_IDENTITY_BYTES);
    DIR *d = opendir(path);
    if (!d && errno == ENOTDIR)
        return add_file(out, path, "", e);
    if (!d)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    enum q_code rc = Q_OK;
    for (const struct dirent *entry; !rc && (entry = readdir(d));) {
        char file[PATH_MAX];
        if (has_weights(entry->d_name) &&
            !(rc = path_join(file, sizeof file, path, entry->d_name, e)))
            rc = add_file(out, file, entry->d_name, e);
    }
    closedir(d);
    return rc;
}
