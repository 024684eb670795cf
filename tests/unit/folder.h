/* SPDX-License-Identifier: Apache-2.0 */
/* folder - a temporary model folder for one test: files written from text or bytes, removed at the
 * end. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_FOLDER_H
#define QUIRE_TESTS_UNIT_FOLDER_H
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
#include "common/file.h"

struct folder {
    char path[64];
};

static inline void folder_init(struct folder *f)
{
    snprintf(f->path, sizeof f->path, "/tmp/quire-test-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static inline void folder_remove(const char *path)
{
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));) {
        char name[PATH_MAX];
        struct stat st;
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0)
            continue;
        assert_int_equal(path_join(name, sizeof name, path, x->d_name, NULL), Q_OK);
        if (lstat(name, &st) == 0 && S_ISDIR(st.st_mode))
            folder_remove(name);
        else
            unlink(name);
    }
    closedir(d);
    rmdir(path);
}

static inline void folder_release(struct folder *f)
{
    folder_remove(f->path);
}

/* "a/b/c": the folders a and b are created. */
static inline void folder_write(const struct folder *f, const char *name, const void *data,
                                size_t n)
{
    char path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(path, sizeof path, f->path, name, &e), &e);
    for (char *p = path + strlen(f->path) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(path, 0700);
    }
    assert_ok(file_write(path, data, n, 0600, &e), &e);
}

static inline void folder_text(const struct folder *f, const char *name, const char *text)
{
    folder_write(f, name, text, strlen(text));
}

/* f/name becomes a symbolic link to target, which need not exist. */
static inline void folder_link(const struct folder *f, const char *name, const char *target)
{
    char path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(path, sizeof path, f->path, name, &e), &e);
    assert_int_equal(symlink(target, path), 0);
}

/* Copy from/name to f/name. */
static inline void folder_copy(const struct folder *f, const char *from, const char *name)
{
    char path[PATH_MAX];
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(path, sizeof path, from, name, &e), &e);
    assert_ok(file_read(&b, path, 1u << 26, &e), &e);
    folder_write(f, name, b.data, b.len);
    buf_release(&b);
}

#endif
