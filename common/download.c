/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of the beginnings: the Git LFS specification (docs/spec.md, "The Pointer"; hawser is its
 * first name), git-annex's documentation (internals/pointer_file; internals, for its links),
 * PKWARE's APPNOTE (4.3.7), xet-core's pointer file ("# xet version 0"), and the texts that
 * huggingface.co answers with 401, 403 and 404. */
#include "common/download.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_MAX 256u /* bytes that are looked at */

enum instead { IS_LFS, IS_XET, IS_ANNEX, IS_PAGE, IS_GGUF, IS_ARCHIVE, IS_REFUSAL };

#define NOT_THERE ", not the file itself"
#define GET       "download the model with `hf download`"

/* "PATH is IS: run `COMMAND` in its folder, or WAY". */
static const struct {
    const char *is;
    const char *command; /* NULL: none */
    const char *way;
} words[] = {
    [IS_LFS] = {"a Git LFS pointer" NOT_THERE, "git lfs pull", GET},
    [IS_XET] = {"a Xet pointer" NOT_THERE, NULL, GET},
    [IS_ANNEX] = {"a git-annex pointer" NOT_THERE, "git annex get", GET},
    [IS_PAGE] = {"an HTML page", NULL, "the download saved a web page instead of the file; " GET},
    [IS_GGUF] = {"a GGUF file despite its name", NULL, "give it a name that ends with .gguf"},
    [IS_ARCHIVE] =
        {"a zip archive despite its name (a PyTorch checkpoint is one, and its name ends with "
         ".bin)",
         NULL, "unpack it, or " GET},
};

static const struct {
    const char *text; /* compared without case, after leading white space */
    enum instead is;
} beginnings[] = {
    {"version https://git-lfs.github.com/spec/", IS_LFS},
    {"version https://hawser.github.com/spec/", IS_LFS},
    {"# xet version ", IS_XET},
    {"/annex/objects/", IS_ANNEX},
    {"<!doctype html", IS_PAGE},
    {"<html", IS_PAGE},
    {"GGUF", IS_GGUF},
    {"PK\3\4", IS_ARCHIVE},
    {"Entry not found", IS_REFUSAL},
    {"Repository not found", IS_REFUSAL},
    {"Invalid username or password", IS_REFUSAL},
    {"Access to model ", IS_REFUSAL},
    {"Invalid credentials in Authorization header", IS_REFUSAL},
};

/* Is a file of this name a zip archive, as torch.save writes them? */
static bool is_archive_name(const char *path)
{
    static const char *const ends[] = {".bin", ".pth", ".pt"};
    const size_t n = strlen(path);
    bool yes = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n_end = strlen(ends[i]);
        yes = yes || (n > n_end && strcmp(path + n - n_end, ends[i]) == 0);
    }
    return yes;
}

/* Does the name say that the file is what its first bytes say? */
static bool is_named(enum instead is, const char *path)
{
    static const char gguf[] = ".gguf";
    const size_t n = strlen(path), n_end = sizeof gguf - 1;
    return is == IS_ARCHIVE ? is_archive_name(path)
                            : is == IS_GGUF && n > n_end && !strcasecmp(path + n - n_end, gguf);
}

/* The folder of a file: [*n] bytes of its path, or of ".". */
static const char *folder_of(const char *path, int *n)
{
    const char *slash = strrchr(path, '/');
    *n = slash && slash > path ? (int)(slash - path) : 1;
    return !slash ? "." : slash == path ? "/" : path;
}

static enum q_code fail(enum instead is, const char *path, const char *head, struct q_err *e)
{
    int n_dir;
    const char *dir = folder_of(path, &n_dir);
    if (is == IS_REFUSAL)
        return q_fail(e, Q_CORRUPT,
                      "%s contains a server's error message instead of the file (\"%.*s\"): " GET
                      ", after `hf auth login` if the model is private or gated",
                      path, (int)strcspn(head, "\r\n"), head);
    if (!words[is].command)
        return q_fail(e, Q_CORRUPT, "%s is %s: %s", path, words[is].is, words[is].way);
    return q_fail(e, Q_CORRUPT, "%s is %s: run `%s` in %.*s, or %s", path, words[is].is,
                  words[is].command, n_dir, dir, words[is].way);
}

enum q_code download_check(const void *data, size_t n, const char *path, struct q_err *e)
{
    char head[HEAD_MAX + 1] = "";
    if (n == 0)
        return q_fail(e, Q_CORRUPT, "%s is empty, as after an incomplete download", path);
    memcpy(head, data, n < HEAD_MAX ? n : HEAD_MAX);
    const char *text = head;
    if (!strncmp(text, "\xef\xbb\xbf", 3)) /* a byte order mark */
        text += 3;
    while (isspace((unsigned char)*text))
        text++;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncasecmp(text, beginnings[i].text, strlen(beginnings[i].text)) == 0 &&
            !is_named(beginnings[i].is, path))
            return fail(beginnings[i].is, path, text, e);
    return Q_OK;
}

enum q_code download_check_file(const char *path, struct q_err *e)
{
    char head[HEAD_MAX];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    const bool is_pipe = fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (is_pipe)
        return q_fail(e, Q_IO, "%s: is a pipe, expected a file", path);
    if (n < 0)
        return q_fail(e, code == ENOENT || code == ENOTDIR ? Q_NOT_FOUND : Q_IO,
                      "%s: cannot read: %s", path, strerror(code));
    return download_check(head, (size_t)n, path, e);
}

enum q_code download_check_link(const char *path, struct q_err *e)
{
    char target[PATH_MAX];
    struct stat st;
    int n_dir;
    const char *dir = folder_of(path, &n_dir), *slash = strrchr(path, '/');
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0 || stat(path, &st) == 0)
        return Q_OK; /* no link, or one to a file */
    target[n] = '\0';
    if (strstr(target, "annex/objects/"))
        return q_fail(e, Q_NOT_FOUND,
                      "%s is a git-annex link without the file's content: run `git annex get %s` "
                      "in %.*s, or " GET,
                      path, slash ? slash + 1 : path, n_dir, dir);
    return q_fail(e, Q_NOT_FOUND,
                  "%s is a link to a missing file: the model is incomplete, download it again with "
                  "`hf download`",
                  path);
}
