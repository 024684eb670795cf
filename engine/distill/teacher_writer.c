/* SPDX-License-Identifier: Apache-2.0 */
/* A shard is appended to: an entry, then its ids and values, in one write. So whatever ends the
 * process, the file holds whole entries and at most a part of one, which is cut off by the next
 * run. */
#include "engine/distill/teacher_writer.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/dtype.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"

#define SHARD_BYTES ((uint64_t)64 << 20)
#define ENTRIES_MAX ((size_t)1 << 32)

struct key_set { /* open addressing; a key of zeros is a free place */
    struct teacher_key *keys;
    size_t n, cap; /* a power of two */
};

struct teacher_writer {
    char dir[PATH_MAX], path[PATH_MAX];
    uint64_t shard_bytes;
    struct teacher_shard_head head; /* of the shard that is written; at first of all */
    int dir_fd, fd;                 /* fd -1: no shard is open */
    uint32_t number;                /* of the open shard, or of the next one */
    uint64_t at;                    /* end of the open shard */
    struct teacher_entry *index;    /* of the open shard */
    size_t n_index, index_cap;
    struct key_set known;
    unsigned char *data; /* an entry on its way */
    size_t data_cap;
};

/* ---- keys ---- */

static size_t place_of(const struct key_set *s, const struct teacher_key *key)
{
    static const struct teacher_key none = {{0, 0}};
    size_t i = key->word[0] & (s->cap - 1);
    while (!teacher_key_equal(&s->keys[i], key) && !teacher_key_equal(&s->keys[i], &none))
        i = (i + 1) & (s->cap - 1);
    return i;
}

static FALLIBLE set_grow(struct key_set *s, struct q_err *e)
{
    const struct key_set old = *s;
    struct key_set more = {.n = old.n, .cap = old.cap ? 2 * old.cap : 1024};
    if (2 * (old.n + 1) <= old.cap)
        return Q_OK;
    more.keys = q_calloc(more.cap, sizeof *more.keys);
    if (!more.keys)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the keys of %zu sequences", old.n);
    for (size_t i = 0; i < old.cap; i++)
        if (old.keys[i].word[0] | old.keys[i].word[1])
            more.keys[place_of(&more, &old.keys[i])] = old.keys[i];
    q_free(old.keys);
    *s = more;
    return Q_OK;
}

static FALLIBLE set_add(struct key_set *s, const struct teacher_key *key, struct q_err *e)
{
    const enum q_code rc = set_grow(s, e);
    if (rc)
        return rc;
    const size_t i = place_of(s, key);
    s->n += !teacher_key_equal(&s->keys[i], key);
    s->keys[i] = *key;
    return Q_OK;
}

bool teacher_writer_has(const struct teacher_writer *w, const struct teacher_key *key)
{
    return w->known.cap && teacher_key_equal(&w->known.keys[place_of(&w->known, key)], key);
}

uint64_t teacher_writer_count(const struct teacher_writer *w)
{
    return w->known.n;
}

/* ---- a folder that is there ---- */

static FALLIBLE check_settings(const struct teacher_writer *w, const struct teacher_shard_head *h,
                               const char *path, struct q_err *e)
{
    if (h->top_k != w->head.top_k)
        return q_fail(e, Q_MISMATCH,
                      "%s has the top %u, asked for is the top %u; use another folder", path,
                      h->top_k, w->head.top_k);
    if (h->n_vocab != w->head.n_vocab)
        return q_fail(
            e, Q_MISMATCH,
            "%s is of a vocabulary of %u tokens, the teacher's has %u; use another folder", path,
            h->n_vocab, w->head.n_vocab);
    if (strcmp(h->teacher, w->head.teacher) != 0)
        return q_fail(e, Q_MISMATCH,
                      "%s is of teacher \"%.100s\", not of \"%.100s\"; use another "
                      "folder",
                      path, h->teacher, w->head.teacher);
    return Q_OK;
}

static FALLIBLE note_shard(struct teacher_writer *w, uint32_t number, struct q_err *e)
{
    struct teacher_shard_head head;
    struct teacher_entry *index = NULL;
    char path[PATH_MAX];
    enum q_code rc = teacher_shard_path(path, w->dir, number, false, e);
    if (rc)
        return rc;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return q_fail(e, Q_IO, "%s: cannot open: %s", path, strerror(errno));
    if (!(rc = teacher_shard_read_head(&head, fd, path, true, e)) &&
        !(rc = check_settings(w, &head, path, e)))
        rc = teacher_shard_read_index(&index, &head, fd, path, e);
    for (size_t i = 0; !rc && i < head.n_entry; i++)
        rc = set_add(&w->known, &index[i].key, e);
    close(fd);
    q_free(index);
    return rc;
}

static FALLIBLE add_index(struct teacher_writer *w, const struct teacher_entry *x, struct q_err *e)
{
    enum q_code rc =
        q_grow(&w->index, &w->index_cap, w->n_index + 1, sizeof *w->index, ENTRIES_MAX, e);
    if (rc || (rc = set_add(&w->known, &x->key, e)))
        return rc;
    w->index[w->n_index++] = *x;
    return Q_OK;
}

/* The entry at w->at of a shard of `size` bytes, if it is whole. */
static bool read_entry(struct teacher_writer *w, struct teacher_entry *x, uint64_t size)
{
    struct q_err e = Q_ERR_INIT;
    if (size - w->at < sizeof *x || teacher_shard_read(w->fd, w->path, w->at, x, sizeof *x, &e))
        return false;
    const uint64_t from = w->at + sizeof *x, bytes = teacher_entry_bytes(x, w->head.top_k);
    return x->at == from && x->n_row <= TEACHER_ROWS_MAX && x->n_counted <= x->n_row &&
           bytes <= size - from && !q_grow(&w->data, &w->data_cap, bytes, 1, SIZE_MAX / 2, &e) &&
           !teacher_shard_read(w->fd, w->path, from, w->data, (size_t)bytes, &e) &&
           teacher_entry_sum(w->data, bytes) == x->sum;
}

/* Goes on with a shard behind its last whole entry. */
static FALLIBLE continue_shard(struct teacher_writer *w, uint32_t number, struct q_err *e)
{
    struct teacher_shard_head head;
    struct teacher_entry x;
    struct q_err why = Q_ERR_INIT;
    struct stat st;
    enum q_code rc = teacher_shard_path(w->path, w->dir, number, true, e);
    if (rc)
        return rc;
    if ((w->fd = open(w->path, O_RDWR | O_CLOEXEC)) < 0 || fstat(w->fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: cannot open: %s", w->path, strerror(errno));
    if (teacher_shard_read_head(&head, w->fd, w->path, false, &why)) {
        log_warning("%s; it is written anew", why.message);
        close(w->fd);
        w->fd = -1;
        return Q_OK;
    }
    if ((rc = check_settings(w, &head, w->path, e)))
        return rc;
    for (w->at = sizeof head; read_entry(w, &x, (uint64_t)st.st_size);
         w->at = x.at + teacher_entry_bytes(&x, head.top_k))
        if ((rc = add_index(w, &x, e)))
            return rc;
    if (ftruncate(w->fd, (off_t)w->at) != 0)
        return q_fail(e, Q_IO, "%s: cannot cut it behind its last whole entry: %s", w->path,
                      strerror(errno));
    w->number = number;
    return Q_OK;
}

static FALLIBLE open_folder(struct teacher_writer *w, struct q_err *e)
{
    if (mkdir(w->dir, 0777) != 0 && errno != EEXIST)
        return q_fail(e, Q_IO, "%s: cannot make the folder: %s", w->dir, strerror(errno));
    w->dir_fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->dir_fd < 0)
        return q_fail(e, Q_IO, "%s: cannot open the folder: %s", w->dir, strerror(errno));
    if (flock(w->dir_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return q_fail(e, Q_UNAVAILABLE, "%s: another process writes to the folder", w->dir);
    return Q_OK;
}

static FALLIBLE take_folder(struct teacher_writer *w, struct q_err *e)
{
    uint32_t *numbers = NULL, tmp;
    size_t n = 0;
    enum q_code rc = open_folder(w, e);
    if (rc || (rc = teacher_shard_list(&numbers, &n, &tmp, w->dir, e)))
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        rc = note_shard(w, numbers[i], e);
    w->number = n ? numbers[n - 1] + 1 : 0;
    if (!rc && tmp != UINT32_MAX && tmp >= w->number)
        rc = continue_shard(w, tmp, e);
    q_free(numbers);
    return rc;
}

FALLIBLE teacher_writer_open(struct teacher_writer **out, const struct teacher_writer_options *o,
                             struct q_err *e)
{
    struct teacher_writer *w = q_calloc(1, sizeof *w);
    enum q_code rc = Q_OK;
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "out of memory for writing to %s", o->dir);
    w->fd = w->dir_fd = -1;
    w->shard_bytes = o->shard_bytes ? o->shard_bytes : SHARD_BYTES;
    w->head.top_k = o->top_k;
    w->head.n_vocab = o->n_vocab;
    snprintf(w->head.teacher, sizeof w->head.teacher, "%s", o->teacher);
    if ((size_t)snprintf(w->dir, sizeof w->dir, "%s", o->dir) >= sizeof w->dir)
        rc = q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %.200s", PATH_MAX, o->dir);
    if (rc || (rc = take_folder(w, e))) {
        teacher_writer_close(w);
        return rc;
    }
    *out = w;
    return Q_OK;
}

void teacher_writer_close(struct teacher_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->dir_fd >= 0)
        close(w->dir_fd);
    q_free(w->index);
    q_free(w->known.keys);
    q_free(w->data);
    q_free(w);
}

/* ---- writing ---- */

static FALLIBLE write_all(const struct teacher_writer *w, const void *data, size_t n, uint64_t at,
                          struct q_err *e)
{
    const struct file_open f = {w->fd, w->path};
    return file_write_at(&f, data, n, at, e);
}

static FALLIBLE begin_shard(struct teacher_writer *w, struct q_err *e)
{
    enum q_code rc;
    if (w->number > TEACHER_SHARD_MAX)
        return q_fail(e, Q_TOO_LARGE, "%s: more than %u files", w->dir, TEACHER_SHARD_MAX + 1);
    if ((rc = teacher_shard_path(w->path, w->dir, w->number, true, e)))
        return rc;
    w->fd = open(w->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return q_fail(e, Q_IO, "%s: cannot create: %s", w->path, strerror(errno));
    w->head.n_entry = w->head.index_at = w->head.file_bytes = w->head.index_sum = 0;
    teacher_shard_seal(&w->head);
    w->at = sizeof w->head;
    w->n_index = 0;
    return write_all(w, &w->head, sizeof w->head, 0, e);
}

/* Ids, then values, behind the entry. */
static void fill_data(struct teacher_writer *w, struct teacher_entry *x,
                      const struct teacher_sequence *s)
{
    const size_t n = (size_t)s->n_counted * w->head.top_k;
    const uint64_t bytes = teacher_entry_bytes(x, w->head.top_k);
    unsigned char *ids = w->data + sizeof *x, *values = ids + n * sizeof *s->ids;
    memset(ids, 0, (size_t)bytes);
    memcpy(ids, s->ids, n * sizeof *s->ids);
    for (size_t i = 0; i < n; i++) {
        const uint16_t half = f32_to_f16(s->logprobs[i]);
        memcpy(values + i * sizeof half, &half, sizeof half);
    }
    x->sum = teacher_entry_sum(ids, bytes);
    memcpy(w->data, x, sizeof *x);
}

FALLIBLE teacher_writer_add(struct teacher_writer *w, const struct teacher_sequence *s,
                            struct q_err *e)
{
    struct teacher_entry x = {.key = s->key, .n_row = s->n_row, .n_counted = s->n_counted};
    const uint64_t bytes = teacher_entry_bytes(&x, w->head.top_k);
    enum q_code rc;
    if ((rc = q_grow(&w->data, &w->data_cap, sizeof x + bytes, 1, SIZE_MAX / 2, e)) ||
        (w->fd < 0 && (rc = begin_shard(w, e))))
        return rc;
    x.at = w->at + sizeof x;
    fill_data(w, &x, s);
    if ((rc = write_all(w, w->data, sizeof x + (size_t)bytes, w->at, e)) ||
        (rc = add_index(w, &x, e)))
        return rc;
    w->at = x.at + bytes;
    return w->at < w->shard_bytes ? Q_OK : teacher_writer_finish(w, e);
}

/* The index, then the head that counts it, then the name: each on disk before the next. */
FALLIBLE teacher_writer_finish(struct teacher_writer *w, struct q_err *e)
{
    char path[PATH_MAX];
    const size_t n = w->n_index * sizeof *w->index;
    enum q_code rc;
    if (w->fd < 0)
        return Q_OK;
    w->head.n_entry = w->n_index;
    w->head.index_at = w->at;
    w->head.file_bytes = w->at + n;
    w->head.index_sum = XXH3_64bits(w->index, n);
    teacher_shard_seal(&w->head);
    if ((rc = teacher_shard_path(path, w->dir, w->number, false, e)) ||
        (rc = write_all(w, w->index, n, w->at, e)))
        return rc;
    if (fsync(w->fd) != 0 || (rc = write_all(w, &w->head, sizeof w->head, 0, e)) ||
        fsync(w->fd) != 0 || rename(w->path, path) != 0)
        return rc ? rc : q_fail(e, Q_IO, "%s: cannot finish it: %s", w->path, strerror(errno));
    (void)fsync(w->dir_fd);
    close(w->fd);
    w->fd = -1;
    w->number++;
    w->n_index = 0;
    return Q_OK;
}
