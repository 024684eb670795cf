/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"

#define STEPS_MAX      ((size_t)1 << 20)
#define MODEL_FILE_MAX ((uint64_t)1 << 30) /* bytes of a file that is copied */
#define COPY_STEP      ((size_t)1 << 20)
#define TMP            ".tmp"

static enum q_code fail_io(struct q_err *e, const char *path, const char *what)
{
    return q_fail(e, Q_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* ---- room ---- */

enum q_code check_room(const char *dir, uint64_t need, struct q_err *e)
{
    struct statvfs st;
    if (statvfs(dir, &st) != 0) /* not every file system can say */
        return Q_OK;
    const uint64_t left = (uint64_t)st.f_bavail * st.f_frsize;
    if (left >= need)
        return Q_OK;
    return q_fail(e, Q_IO, "%s: no room for a checkpoint: it needs %llu bytes, %llu are free", dir,
                  (unsigned long long)need, (unsigned long long)left);
}

enum q_code create_file(const char *path, const struct buf *first, uint64_t n_bytes,
                        struct q_err *e)
{
    const struct file_open f = {open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), path};
    enum q_code rc;
    if (f.fd < 0)
        return fail_io(e, path, "create");
    if (fallocate(f.fd, 0, 0, (off_t)n_bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
        errno != EINVAL)
        rc = fail_io(e, path, "reserve its bytes");
    else if (ftruncate(f.fd, (off_t)n_bytes) != 0)
        rc = fail_io(e, path, "set its size");
    else
        rc = file_write_at(&f, first->data, first->len, 0, e);
    if (!rc && fsync(f.fd) != 0)
        rc = fail_io(e, path, "sync");
    if (close(f.fd) != 0 && !rc)
        rc = fail_io(e, path, "close");
    return rc;
}

enum q_code sync_path(const char *path, struct q_err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum q_code rc = Q_OK;
    if (fd < 0)
        return fail_io(e, path, "open");
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) /* a folder, where it cannot be */
        rc = fail_io(e, path, "sync");
    close(fd);
    return rc;
}

/* ---- removing and renaming ---- */

static enum q_code remove_depth(const char *path, int depth, struct q_err *e)
{
    enum q_code rc = Q_OK;
    char inside[PATH_MAX];
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? Q_OK : fail_io(e, path, "remove");
    if (!S_ISDIR(st.st_mode))
        return unlink(path) == 0 || errno == ENOENT ? Q_OK : fail_io(e, path, "remove");
    DIR *d = depth ? opendir(path) : NULL;
    if (!d)
        return fail_io(e, path, "remove");
    for (const struct dirent *x; !rc && (x = readdir(d));)
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 &&
            !(rc = path_join(inside, sizeof inside, path, x->d_name, e)))
            rc = remove_depth(inside, depth - 1, e);
    closedir(d);
    if (!rc && rmdir(path) != 0 && errno != ENOENT)
        rc = fail_io(e, path, "remove");
    return rc;
}

enum q_code remove_all(const char *path, struct q_err *e)
{
    enum { DEPTH = 4 }; /* a model folder has one folder in it */
    return remove_depth(path, DEPTH, e);
}

enum q_code replace_path(const char *from, const char *to, struct q_err *e)
{
    char parent[PATH_MAX];
    struct stat st;
    enum q_code rc = Q_OK;
    snprintf(parent, sizeof parent, "%s", to);
    char *slash = strrchr(parent, '/');
    if (slash)
        *slash = '\0';
    if (lstat(to, &st) != 0 || !S_ISDIR(st.st_mode)) {
        if (rename(from, to) != 0)
            return fail_io(e, to, "replace");
    } else if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        rc = remove_all(from, e); /* the one before */
    } else {                      /* a file system that cannot exchange two names */
        if ((rc = remove_all(to, e)))
            return rc;
        if (rename(from, to) != 0)
            return fail_io(e, to, "replace");
    }
    return rc ? rc : sync_path(slash ? parent : ".", e);
}

/* ---- names ---- */

/* prefix + decimal number + suffix */
static bool parse_name(uint64_t *step, const char *name, const char *prefix, const char *suffix)
{
    const size_t n = strlen(prefix);
    char *end;
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9')
        return false;
    errno = 0;
    *step = strtoull(name + n, &end, 10);
    return errno == 0 && strcmp(end, suffix) == 0;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

enum q_code list_steps(uint64_t **steps, size_t *n, const char *dir, const char *prefix,
                       struct q_err *e)
{
    size_t cap = 0;
    enum q_code rc = Q_OK;
    uint64_t step;
    *steps = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return fail_io(e, dir, "read");
    for (const struct dirent *x; !rc && (x = readdir(d));)
        if (parse_name(&step, x->d_name, prefix, "") &&
            !(rc = q_grow(steps, &cap, *n + 1, sizeof **steps, STEPS_MAX, e)))
            (*steps)[(*n)++] = step;
    closedir(d);
    if (rc) {
        q_free(*steps);
        *steps = NULL;
        *n = 0;
    } else if (*n) {
        qsort(*steps, *n, sizeof **steps, by_number);
    }
    return rc;
}

static bool is_leftover(const char *name)
{
    uint64_t step;
    return parse_name(&step, name, "step-", TMP) || parse_name(&step, name, "state-", TMP) ||
           parse_name(&step, name, "gradients-", ".safetensors" TMP);
}

enum q_code remove_leftovers(const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc = Q_OK;
    DIR *d = opendir(dir);
    if (!d)
        return fail_io(e, dir, "read");
    for (const struct dirent *x; !rc && (x = readdir(d));)
        if (is_leftover(x->d_name) && !(rc = path_join(path, sizeof path, dir, x->d_name, e))) {
            log_info("%s is of an interrupted run and is removed", path);
            rc = remove_all(path, e);
        }
    closedir(d);
    return rc;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

enum q_code checkpoint_check_output(const char *dir, struct q_err *e)
{
    struct stat st;
    uint64_t step;
    enum q_code rc = Q_OK;
    if (stat(dir, &st) != 0)
        return errno == ENOENT ? Q_OK : fail_io(e, dir, "read");
    if (!S_ISDIR(st.st_mode))
        return q_fail(e, Q_INVALID, "output: %s is a file; expected a folder, or none yet", dir);
    DIR *d = opendir(dir);
    if (!d)
        return fail_io(e, dir, "read");
    for (const struct dirent *x; !rc && (x = readdir(d));)
        if (strcmp(x->d_name, "config.json") == 0 ||
            (ends_with(x->d_name, ".safetensors") &&
             !parse_name(&step, x->d_name, "gradients-", ".safetensors")))
            rc = q_fail(e, Q_INVALID,
                        "output: %s is a model folder (it has %s); expected another folder, in "
                        "which checkpoints are folders",
                        dir, x->d_name);
    closedir(d);
    return rc;
}

/* ---- the other files of a model ---- */

static bool is_model_file(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".tiktoken"};
    if (*name == '.' || ends_with(name, ".index.json"))
        return false;
    if (strncmp(name, "tokenizer.model.v", 17) == 0 || strcmp(name, "LICENSE") == 0)
        return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static enum q_code copy_file(const char *from, const char *to, struct q_err *e)
{
    struct buf bytes = BUF_INIT;
    enum q_code rc = file_read(&bytes, from, MODEL_FILE_MAX, e);
    if (!rc)
        rc = file_write(to, bytes.data, bytes.len, 0644, e);
    buf_release(&bytes);
    return rc;
}

/* config.json with the dtype that the tensors have; unchanged where it says that already. */
static enum q_code copy_config(const char *from, const char *to, enum dtype dtype, struct q_err *e)
{
    const char *name = dtype == DT_F32 ? "float32" : dtype == DT_BF16 ? "bfloat16" : "float16";
    json_t *root = NULL;
    enum q_code rc = hub_json_load(&root, from, e);
    if (rc)
        return rc;
    const char *key = json_object_get(root, "dtype") ? "dtype" : "torch_dtype";
    const char *says = json_string_value(json_object_get(root, key));
    if (says && strcmp(says, name) == 0) {
        json_decref(root);
        return copy_file(from, to, e);
    }
    char *text = json_object_set_new(root, key, json_string(name)) == 0
                     ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17))
                     : NULL;
    rc = text ? file_write(to, text, strlen(text), 0644, e)
              : q_fail(e, Q_NO_MEMORY, "out of memory for %s", to);
    if (text) {
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        release(text);
    }
    json_decref(root);
    return rc;
}

struct copy {
    const char *from, *to;
    enum dtype dtype;
    uint64_t *n_bytes;
};

static enum q_code copy_entry(const struct copy *c, const char *name, struct q_err *e)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct stat st;
    enum q_code rc = path_join(from, sizeof from, c->from, name, e);
    if (rc)
        return rc;
    if (!is_model_file(name) || stat(from, &st) != 0 || !S_ISREG(st.st_mode))
        return Q_OK;
    *c->n_bytes += (uint64_t)st.st_size;
    if (!c->to || (rc = path_join(to, sizeof to, c->to, name, e)))
        return rc;
    return strcmp(name, "config.json") == 0 ? copy_config(from, to, c->dtype, e)
                                            : copy_file(from, to, e);
}

static enum q_code copy_folder(const struct copy *c, struct q_err *e)
{
    enum q_code rc = Q_OK;
    DIR *d = opendir(c->from);
    if (!d)
        return fail_io(e, c->from, "read");
    if (c->to && mkdir(c->to, 0777) != 0 && errno != EEXIST)
        rc = fail_io(e, c->to, "create");
    for (const struct dirent *x; !rc && (x = readdir(d));)
        rc = copy_entry(c, x->d_name, e);
    closedir(d);
    if (!rc && c->to)
        rc = sync_path(c->to, e);
    return rc;
}

enum q_code copy_model_files(const char *from, const char *to, enum dtype dtype, uint64_t *n_bytes,
                             struct q_err *e)
{
    static const char templates[] = "additional_chat_templates";
    char from_more[PATH_MAX], to_more[PATH_MAX];
    const struct copy main = {from, to, dtype, n_bytes};
    const struct copy more = {from_more, to ? to_more : NULL, dtype, n_bytes};
    enum q_code rc;
    *n_bytes = 0;
    if ((rc = copy_folder(&main, e)) ||
        (rc = path_join(from_more, sizeof from_more, from, templates, e)) ||
        (to && (rc = path_join(to_more, sizeof to_more, to, templates, e))))
        return rc;
    return dir_exists(from_more) ? copy_folder(&more, e) : Q_OK;
}
