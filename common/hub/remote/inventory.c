/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/inventory.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "common/hub/remote/shared_blobs.h"
#include "common/hub/remote/store.h"
#include "common/mem.h"
#include "common/printable.h"

#define DEPTH_MAX     32u /* folders inside of folders */
#define MODELS_MAX    ((size_t)100000)
#define REVISIONS_MAX ((size_t)100000)
#define SHARED_MAX    ((size_t)1000000)
#define OPEN_MAX      16 /* folders that nftw keeps open */

/* For every file below a folder; rel: its path below it. */
typedef enum q_code file_fn(void *ctx, const char *path, const char *rel, struct q_err *e);

struct walk {
    const char *dir;
    file_fn *file;
    void *ctx;
};

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* NULL: it does not exist. */
static enum q_code open_folder(DIR **out, const char *dir, struct q_err *e)
{
    *out = opendir(dir);
    if (*out || errno == ENOENT || errno == ENOTDIR)
        return Q_OK;
    return q_fail(e, Q_IO, "%s: cannot be read: %s", dir, strerror(errno));
}

/* below: of w->dir; "": itself. A folder that does not exist is empty. */
static enum q_code walk(const struct walk *w, const char *below, unsigned depth, struct q_err *e)
{
    char dir[PATH_MAX], path[PATH_MAX], rel[PATH_MAX];
    enum q_code rc = path_join(dir, sizeof dir, w->dir, below, e);
    DIR *d = NULL;
    if (!rc && depth <= DEPTH_MAX)
        rc = open_folder(&d, dir, e);
    for (const struct dirent *x; d && !rc && (x = readdir(d));) {
        struct stat st;
        if (is_dots(x->d_name))
            continue;
        if (snprintf(rel, sizeof rel, "%s%s%s", below, *below ? "/" : "", x->d_name) >=
                (int)sizeof rel ||
            path_join(path, sizeof path, w->dir, rel, NULL))
            continue; /* too long for any program */
        if (lstat(path, &st) == 0)
            rc = S_ISDIR(st.st_mode) ? walk(w, rel, depth + 1, e) : w->file(w->ctx, path, rel, e);
    }
    if (d)
        closedir(d);
    return rc;
}

/* ---- reading ---- */

struct counted { /* the files of a revision */
    struct inventory_model *model;
    struct inventory_revision *revision;
};

static enum q_code add_file(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    const struct counted *c = ctx;
    struct stat st;
    (void)rel, (void)e;
    c->revision->n_file++;
    if (stat(path, &st) == 0)
        c->revision->bytes += (uint64_t)st.st_size;
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode)) /* no link to a blob */
        c->model->bytes += (uint64_t)st.st_size;
    return Q_OK;
}

static enum q_code add_blob(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    static const char end[] = ".incomplete";
    struct inventory_model *m = ctx;
    struct stat st;
    const size_t n = strlen(rel);
    (void)e;
    if (stat(path, &st) != 0)
        return Q_OK;
    m->bytes += (uint64_t)st.st_size;
    if (n >= sizeof end && !strcmp(rel + n - (sizeof end - 1), end))
        m->partial_bytes += (uint64_t)st.st_size;
    return Q_OK;
}

static struct inventory_revision *find_revision(const struct inventory_model *m, const char *commit)
{
    for (size_t i = 0; i < m->n; i++)
        if (!strcmp(m->revisions[i].commit, commit))
            return &m->revisions[i];
    return NULL;
}

static enum q_code add_ref(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    const struct inventory_model *m = ctx;
    char hash[CACHE_HASH_MAX + 1];
    struct inventory_revision *r = NULL;
    struct q_err why = Q_ERR_INIT;
    (void)path;
    if (cache_is_revision(rel) && !cache_read_ref(hash, m->repo, rel, &why))
        r = find_revision(m, hash);
    if (why.code == Q_IO || why.code == Q_NO_MEMORY) {
        *e = why;
        return why.code;
    }
    if (!r)
        return Q_OK;
    if (r->refs.len)
        buf_add_str(&r->refs, ", ");
    buf_add_str(&r->refs, rel);
    return buf_check(&r->refs, "the names of a revision", e);
}

static int by_commit(const void *a, const void *b)
{
    return strcmp(((const struct inventory_revision *)a)->commit,
                  ((const struct inventory_revision *)b)->commit);
}

static enum q_code read_revisions(struct inventory_model *m, struct q_err *e)
{
    char dir[PATH_MAX];
    enum q_code rc = path_join(dir, sizeof dir, m->repo, "snapshots", e);
    DIR *d = NULL;
    if (!rc)
        rc = open_folder(&d, dir, e);
    for (const struct dirent *x; d && !rc && (x = readdir(d));) {
        if (!cache_is_hash(x->d_name))
            continue;
        rc = q_grow(&m->revisions, &m->cap, m->n + 1, sizeof *m->revisions, REVISIONS_MAX, e);
        if (rc)
            break;
        struct inventory_revision *r = &m->revisions[m->n++];
        struct counted c = {m, r};
        const struct walk w = {dir, add_file, &c};
        *r = (struct inventory_revision){.refs = BUF_INIT};
        memcpy(r->commit, x->d_name, strlen(x->d_name) + 1); /* fits: it is a hash */
        rc = walk(&w, x->d_name, 0, e);
    }
    if (d)
        closedir(d);
    if (m->n)
        qsort(m->revisions, m->n, sizeof *m->revisions, by_commit);
    return rc;
}

static enum q_code read_model(struct inventory_model *m, struct q_err *e)
{
    char blobs[PATH_MAX], refs[PATH_MAX];
    enum q_code rc = read_revisions(m, e);
    if (rc || (rc = path_join(blobs, sizeof blobs, m->repo, "blobs", e)) ||
        (rc = path_join(refs, sizeof refs, m->repo, "refs", e)))
        return rc;
    const struct walk in_blobs = {blobs, add_blob, m}, in_refs = {refs, add_ref, m};
    rc = walk(&in_blobs, "", 0, e);
    return rc ? rc : walk(&in_refs, "", 0, e);
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct inventory_model *)a)->id, ((const struct inventory_model *)b)->id);
}

static enum q_code add_model(struct inventory *v, const char *id, struct q_err *e)
{
    enum q_code rc = q_grow(&v->models, &v->cap, v->n + 1, sizeof *v->models, MODELS_MAX, e);
    if (rc)
        return rc;
    struct inventory_model *m = &v->models[v->n++];
    memset(m, 0, sizeof *m);
    snprintf(m->id, sizeof m->id, "%s", id);
    rc = cache_repo_dir(m->repo, id, e);
    return rc ? rc : read_model(m, e);
}

enum q_code inventory_read(struct inventory *out, const char *id, struct q_err *e)
{
    char found[INVENTORY_ID_MAX];
    enum q_code rc = cache_dir(out->cache, e);
    if (!rc && id && !cache_is_id(id))
        rc = q_fail(e, Q_INVALID, "\"%s\" is no model id, expected ORG/NAME", id);
    DIR *d = NULL;
    if (!rc)
        rc = open_folder(&d, out->cache, e);
    for (const struct dirent *x; d && !rc && (x = readdir(d));)
        if (cache_id_of(found, sizeof found, x->d_name) && (!id || !strcmp(id, found)))
            rc = add_model(out, found, e);
    if (d)
        closedir(d);
    if (!rc && id && !out->n)
        rc = q_fail(e, Q_NOT_FOUND, "%s is not in the cache %s", id, out->cache);
    if (out->n)
        qsort(out->models, out->n, sizeof *out->models, by_id);
    return rc;
}

void inventory_release(struct inventory *v)
{
    for (size_t i = 0; i < v->n; i++) {
        for (size_t k = 0; k < v->models[i].n; k++)
            buf_release(&v->models[i].revisions[k].refs);
        q_free(v->models[i].revisions);
    }
    q_free(v->models);
    *v = (struct inventory)INVENTORY_INIT;
}

/* ---- checksums ---- */

/* etag: [CACHE_HASH_MAX + 1]. The blob's name that a snapshot's file links to; false: no link. */
static bool blob_of(char *etag, const char *path)
{
    char target[PATH_MAX];
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    if (!cache_is_hash(name))
        return false;
    memcpy(etag, name, strlen(name) + 1); /* fits: it is a hash */
    return true;
}

static enum q_code verify_file(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    struct inventory_check *c = ctx;
    struct q_err why = Q_ERR_INIT;
    char etag[CACHE_HASH_MAX + 1];
    bool known = false;
    if (!blob_of(etag, path)) {
        c->n_unknown++;
        return Q_OK;
    }
    enum q_code rc = blob_verify(&known, path, etag, &why);
    if (rc && rc != Q_CORRUPT && file_exists(path)) { /* that says nothing about the file */
        *e = why;
        return rc;
    }
    c->n_bad += rc != Q_OK;
    c->n_good += !rc && known;
    c->n_unknown += !rc && !known;
    if (rc)
        buf_printf(&c->bad, "%s: %s\n", rel, why.message);
    return buf_check(&c->bad, "the list of damaged files", e);
}

enum q_code inventory_verify(struct inventory_check *out, const struct inventory_model *m,
                             struct q_err *e)
{
    char dir[PATH_MAX];
    const struct walk w = {dir, verify_file, out};
    enum q_code rc = path_join(dir, sizeof dir, m->repo, "snapshots", e);
    return rc ? rc : walk(&w, "", 0, e);
}

/* ---- removal ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static enum q_code remove_tree(const char *path, struct q_err *e)
{
    if (nftw(path, remove_one, OPEN_MAX, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return Q_OK;
    return q_fail(e, Q_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

/* A lock that another process holds: it downloads. */
static enum q_code check_lock(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    const struct inventory_model *m = ctx;
    (void)rel;
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return Q_OK;
    const bool held = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held ? q_fail(e, Q_UNAVAILABLE, "%s is being downloaded; nothing was removed", m->id)
                : Q_OK;
}

struct user {
    const char *etag;
    bool used;
};

static enum q_code look_for_blob(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    struct user *u = ctx;
    char etag[CACHE_HASH_MAX + 1];
    (void)rel, (void)e;
    u->used = u->used || (blob_of(etag, path) && !strcmp(etag, u->etag));
    return Q_OK;
}

/* Remove a blob that no snapshot links to. */
static enum q_code remove_unused(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    char dir[PATH_MAX];
    const struct inventory_model *m = ctx;
    struct user u = {rel, false};
    const struct walk w = {dir, look_for_blob, &u};
    enum q_code rc = path_join(dir, sizeof dir, m->repo, "snapshots", e);
    if (rc || (rc = walk(&w, "", 0, e)) || u.used)
        return rc;
    return unlink(path) == 0 || errno == ENOENT
               ? Q_OK
               : q_fail(e, Q_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

struct named { /* refs of a commit */
    const struct inventory_model *m;
    const char *commit;
};

static enum q_code remove_ref(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    const struct named *x = ctx;
    char hash[CACHE_HASH_MAX + 1];
    if (!cache_is_revision(rel) || cache_read_ref(hash, x->m->repo, rel, NULL) ||
        strcmp(hash, x->commit) != 0 || unlink(path) == 0)
        return Q_OK;
    return q_fail(e, Q_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

static enum q_code remove_revision(const struct inventory_model *m, const char *revision,
                                   struct q_err *e)
{
    char commit[CACHE_HASH_MAX + 1], snapshot[PATH_MAX], absent[PATH_MAX], refs[PATH_MAX],
        blobs[PATH_MAX];
    enum q_code rc;
    if (!cache_is_revision(revision))
        return q_fail(e, Q_INVALID, "\"%s\" is not a revision (a branch, tag or commit hash)",
                      revision);
    if ((rc = cache_read_ref(commit, m->repo, revision, e)))
        return rc;
    if (!find_revision(m, commit))
        return q_fail(e, Q_NOT_FOUND, "%s has no revision \"%s\" in the cache", m->id, revision);
    if ((rc = cache_join(snapshot, m->repo, "snapshots", commit, e)) ||
        (rc = cache_join(absent, m->repo, ".no_exist", commit, e)) ||
        (rc = path_join(refs, sizeof refs, m->repo, "refs", e)) ||
        (rc = path_join(blobs, sizeof blobs, m->repo, "blobs", e)))
        return rc;
    struct named x = {m, commit};
    const struct walk in_refs = {refs, remove_ref, &x};
    const struct walk in_blobs = {blobs, remove_unused, (void *)(uintptr_t)m};
    if ((rc = walk(&in_refs, "", 0, e)) || (rc = remove_tree(snapshot, e)) ||
        (rc = remove_tree(absent, e)))
        return rc;
    return walk(&in_blobs, "", 0, e);
}

struct shared { /* files of the store for all models that blobs link to */
    char (*hashes)[SHARED_HASH_DIGITS + 1];
    size_t n, cap;
};

static enum q_code add_shared(void *ctx, const char *path, const char *rel, struct q_err *e)
{
    struct shared *s = ctx;
    char hash[SHARED_HASH_DIGITS + 1];
    (void)rel;
    if (!shared_blobs_target(hash, path))
        return Q_OK;
    const enum q_code rc = q_grow(&s->hashes, &s->cap, s->n + 1, sizeof *s->hashes, SHARED_MAX, e);
    if (!rc)
        memcpy(s->hashes[s->n++], hash, sizeof hash);
    return rc;
}

static enum q_code remove_model(const struct inventory_model *m, const char *locks,
                                const char *revision, struct q_err *e)
{
    enum q_code rc;
    if (revision && ((rc = remove_revision(m, revision, e)) || m->n > 1))
        return rc; /* else it was the last one */
    rc = remove_tree(m->repo, e);
    return rc ? rc : remove_tree(locks, e);
}

enum q_code inventory_remove(const struct inventory *v, const struct inventory_model *m,
                             const char *revision, struct q_err *e)
{
    char locks[PATH_MAX], blobs[PATH_MAX];
    struct shared shared = {.n = 0};
    const struct walk in_locks = {locks, check_lock, (void *)(uintptr_t)m};
    const struct walk in_blobs = {blobs, add_shared, &shared};
    enum q_code rc = cache_join(locks, v->cache, ".locks", strrchr(m->repo, '/') + 1, e);
    if (rc || (rc = walk(&in_locks, "", 0, e)) ||
        (rc = path_join(blobs, sizeof blobs, m->repo, "blobs", e)))
        return rc;
    if (!(rc = walk(&in_blobs, "", 0, e)))
        rc = remove_model(m, locks, revision, e);
    for (size_t i = 0; i < shared.n; i++)
        shared_blobs_sweep(v->cache, shared.hashes[i]);
    q_free(shared.hashes);
    return rc;
}
