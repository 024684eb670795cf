/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/data_file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct format { /* first bytes of files that are no JSONL */
    const char *bytes;
    size_t n;
    const char *is, *remedy;
} formats[] = {
    {"\x1f\x8b", 2, "compressed by gzip", "decompress it with gunzip"},
    {"\x28\xb5\x2f\xfd", 4, "compressed by zstd", "decompress it with unzstd"},
    {"\xfd\x37zXZ\0", 6, "compressed by xz", "decompress it with unxz"},
    {"BZh", 3, "compressed by bzip2", "decompress it with bunzip2"},
    {"PK\x03\x04", 4, "a zip archive", "unpack it with unzip"},
    {"PAR1", 4, "a Parquet file", "write its rows as JSON lines"},
    {"ARROW1", 6, "an Arrow file", "write its rows as JSON lines"},
    {"\xff\xfe", 2, "UTF-16 text", "convert it to UTF-8 with iconv"},
    {"\xfe\xff", 2, "UTF-16 text", "convert it to UTF-8 with iconv"},
};

static FALLIBLE check_kind(const char *name, const struct stat *st, struct q_err *e)
{
    const char *kind = S_ISDIR(st->st_mode)    ? "a folder"
                       : S_ISFIFO(st->st_mode) ? "a FIFO, which can be read only once"
                       : S_ISSOCK(st->st_mode) ? "a socket"
                                               : "a device";
    if (S_ISREG(st->st_mode))
        return Q_OK;
    return q_fail(e, Q_INVALID, "%s is %s, expected a JSONL file", name, kind);
}

static FALLIBLE check_format(const char *name, const char *first, size_t n, struct q_err *e)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (n >= formats[i].n && memcmp(first, formats[i].bytes, formats[i].n) == 0)
            return q_fail(e, Q_INVALID, "%s is %s, expected a JSONL file in UTF-8: %s", name,
                          formats[i].is, formats[i].remedy);
    return Q_OK;
}

FALLIBLE data_file_check(const char *flag, const char *path, struct q_err *e)
{
    char first[8], name[PATH_MAX + 32];
    struct stat st;
    enum q_code rc;
    snprintf(name, sizeof name, "%s%s%s", flag, *flag ? " " : "", path);
    if (stat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? q_fail(e, Q_NOT_FOUND, "%s: there is no such file", name)
                   : q_fail(e, Q_IO, "%s: cannot read: %s", name, strerror(errno));
    if ((rc = check_kind(name, &st, e)))
        return rc;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd < 0 ? -1 : read(fd, first, sizeof first);
    if (n < 0)
        rc = q_fail(e, Q_IO, "%s: cannot read: %s", name, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc ? rc : check_format(name, first, (size_t)n, e);
}
