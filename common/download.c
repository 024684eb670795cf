/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of the beginnings: the Git LFS specification (docs/spec.md, "The Pointer"; hawser is its
 * first name), git-annex's documentation (internals/pointer_file), PKWARE's APPNOTE (4.3.7), xet-core's pointer file ("# xet version 0"), and the texts that huggingface.co
 * answers with 401, 403 and 404. */
#include "common/download.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define HEAD_MAX 256u /* bytes that are looked at */

enum instead { IS_LFS, IS_XET, IS_ANNEX, IS_PAGE, IS_GGUF, IS_ARCHIVE, IS_REFUSAL };

static const struct {
    const char *text; /* letters of either case, behind spaces */
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

static enum q_code fail(enum instead is, const char *path, const char *head, struct q_err *e)
{
    const char *slash = strrchr(path, '/');
    const int n_dir = slash && slash > path ? (int)(slash - path) : 1;
    const char *dir = !slash ? "." : slash == path ? "/" : path;
    switch (is) {
    case IS_LFS:
        return q_fail(e, Q_CORRUPT,
                      "%s is a Git LFS pointer, the file itself was not downloaded: run `git lfs "
                      "pull` in %.*s, or get the model with `hf download`",
                      path, n_dir, dir);
    case IS_XET:
        return q_fail(e, Q_CORRUPT,
                      "%s is a Xet pointer, the file itself was not downloaded: get the model with "
                      "`hf download`",
                      path);
    case IS_ANNEX:
        return q_fail(e, Q_CORRUPT,
                      "%s is a git-annex pointer, the file itself was not downloaded: run `git "
                      "annex get` in %.*s, or get the model with `hf download`",
                      path, n_dir, dir);
    case IS_ARCHIVE:
        return q_fail(e, Q_CORRUPT,
                      "%s is a zip archive, whatever its name (PyTorch's checkpoints are such "
                      "archives, quire reads safetensors): unpack it, or get the model with `hf "
                      "download`",
                      path);
    case IS_PAGE:
        return q_fail(e, Q_CORRUPT,
                      "%s is a page of HTML: a download saved a web page in place of the file; get "
                      "the model with `hf download`",
                      path);
    case IS_GGUF:
        return q_fail(e, Q_CORRUPT,
                      "%s is a GGUF file, whatever its name; quire reads the files of Hugging Face "
                      "folders: give those of the model that it was made from",
                      path);
    case IS_REFUSAL:
        break;
    }
    return q_fail(e, Q_CORRUPT,
                  "%s holds a server's refusal in place of the file (\"%.*s\"): get the model with "
                  "`hf download`, after `hf auth login` when it is private or gated",
                  path, (int)strcspn(head, "\r\n"), head);
}

enum q_code download_check(const void *data, size_t n, const char *path, struct q_err *e)
{
    char head[HEAD_MAX + 1] = "";
    if (n == 0)
        return q_fail(e, Q_CORRUPT, "%s is empty (an unfinished download leaves such a file)",
                      path);
    memcpy(head, data, n < HEAD_MAX ? n : HEAD_MAX);
    const char *text = head;
    if (!strncmp(text, "\xef\xbb\xbf", 3)) /* a byte order mark */
        text += 3;
    while (isspace((unsigned char)*text))
        text++;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncasecmp(text, beginnings[i].text, strlen(beginnings[i].text)) == 0)
            return fail(beginnings[i].is, path, text, e);
    return Q_OK;
}

enum q_code download_check_file(const char *path, struct q_err *e)
{
    char head[HEAD_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return q_fail(e, code == ENOENT || code == ENOTDIR ? Q_NOT_FOUND : Q_IO,
                      "%s: cannot read: %s", path, strerror(code));
    return download_check(head, (size_t)n, path, e);
}
