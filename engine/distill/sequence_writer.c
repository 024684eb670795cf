/* SPDX-License-Identifier: Apache-2.0 */
/* Records go to the file through one buffer, index entries to a second file without a name, so that
 * memory does not grow with the data; the index is copied behind the records at the end. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/mem.h"
#include "engine/distill/sequence_internal.h"

struct stream { /* appended to through a buffer */
    struct file_open file;
    uint64_t at;         /* bytes written */
    unsigned char *data; /* [SEQUENCE_BUFFER] */
    size_t n;
};

struct sequence_writer {
    struct stream records, index;
    char path[PATH_MAX];
    bool is_named;
    XXH3_state_t *sum;
    struct sequence_totals totals;
};

/* ---- files without a name ---- */

static enum q_code open_unnamed(int *fd, char path[PATH_MAX], struct q_err *e)
{
    const char *given = getenv("TMPDIR");
    const char *dirs[] = {given && *given ? given : "/var/tmp", "/var/tmp", "/tmp"};
    int code = 0;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        if (snprintf(path, PATH_MAX, "%s/quire-XXXXXX", dirs[i]) >= PATH_MAX)
            continue;
        *fd = mkostemp(path, O_CLOEXEC);
        if (*fd >= 0) {
            unlink(path);
            return Q_OK;
        }
        code = code ? code : errno;
    }
    return q_fail(e, Q_IO, "%s: no temporary file can be made there: %s; set TMPDIR", dirs[0],
                  strerror(code));
}

/* ---- streams ---- */

static enum q_code stream_flush(struct stream *s, XXH3_state_t *sum, struct q_err *e)
{
    enum q_code rc = file_write_at(&s->file, s->data, s->n, s->at, e);
    if (rc)
        return rc;
    if (sum && s->n && XXH3_64bits_update(sum, s->data, s->n) != XXH_OK)
        return q_fail(e, Q_INTERNAL, "%s: the checksum failed", s->file.path);
    s->at += s->n;
    s->n = 0;
    return Q_OK;
}

static enum q_code stream_add(struct stream *s, XXH3_state_t *sum, const void *data, size_t n,
                              struct q_err *e)
{
    const unsigned char *p = data;
    enum q_code rc = Q_OK;
    while (n && !rc) {
        const size_t room = SEQUENCE_BUFFER - s->n, step = n < room ? n : room;
        memcpy(s->data + s->n, p, step);
        s->n += step;
        p += step;
        n -= step;
        if (s->n == SEQUENCE_BUFFER)
            rc = stream_flush(s, sum, e);
    }
    return rc;
}

static enum q_code add_record(struct sequence_writer *w, const void *data, size_t n,
                              struct q_err *e)
{
    return stream_add(&w->records, w->sum, data, n, e);
}

/* ---- the writer ---- */

enum q_code sequence_writer_new(struct sequence_writer **out, const char *path, struct q_err *e)
{
    static const char zeros[SEQUENCE_FILE_HEAD];
    char unnamed[PATH_MAX];
    enum q_code rc;
    struct sequence_writer *w = q_calloc(1, sizeof *w);
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a file of sequences");
    w->records.file = w->index.file = (struct file_open){-1, w->path};
    w->records.data = q_alloc(SEQUENCE_BUFFER);
    w->index.data = q_alloc(SEQUENCE_BUFFER);
    w->sum = XXH3_createState();
    if (!w->records.data || !w->index.data || !w->sum || XXH3_64bits_reset(w->sum) != XXH_OK) {
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for a file of sequences");
        goto out;
    }
    if ((rc = open_unnamed(&w->index.file.fd, unnamed, e)))
        goto out;
    if (!path) {
        rc = open_unnamed(&w->records.file.fd, w->path, e);
    } else if (snprintf(w->path, sizeof w->path, "%s", path) >= (int)sizeof w->path) {
        rc = q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %s", PATH_MAX, path);
    } else {
        w->records.file.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        w->is_named = w->records.file.fd >= 0;
        if (!w->is_named)
            rc = q_fail(e, Q_IO, "%s: cannot create: %s", path, strerror(errno));
    }
    if (!rc && !(rc = file_write_at(&w->records.file, zeros, sizeof zeros, 0, e)))
        w->records.at = sizeof zeros;
out:
    if (rc)
        sequence_writer_free(w);
    else
        *out = w;
    return rc;
}

void sequence_writer_free(struct sequence_writer *w)
{
    if (!w)
        return;
    if (w->records.file.fd >= 0)
        close(w->records.file.fd);
    if (w->index.file.fd >= 0)
        close(w->index.file.fd);
    if (w->is_named)
        unlink(w->path);
    XXH3_freeState(w->sum);
    q_free(w->records.data);
    q_free(w->index.data);
    q_free(w);
}

static bool labels_are_ids(const struct sequence *s)
{
    for (uint32_t i = 0; i < s->n_row; i++)
        if (s->labels[i] >= 0 && (uint32_t)s->labels[i] != s->ids[i])
            return false;
    return true;
}

static enum q_code add_mask(struct sequence_writer *w, const struct sequence *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    uint32_t word = 0;
    for (uint32_t i = 0; i < s->n_row && !rc; i++) {
        word |= (uint32_t)(s->labels[i] >= 0) << i % 32;
        if (i % 32 == 31 || i + 1 == s->n_row) {
            rc = add_record(w, &word, sizeof word, e);
            word = 0;
        }
    }
    return rc;
}

enum q_code sequence_writer_add(struct sequence_writer *w, const struct sequence *s,
                                struct q_err *e)
{
    const bool mask = labels_are_ids(s);
    const struct sequence_record head = {s->n_segment, mask ? 0 : SEQUENCE_LABELS};
    const struct sequence_entry entry = {w->records.at + w->records.n, s->n_row, s->n_counted};
    struct sequence_totals *t = &w->totals;
    enum q_code rc;
    if ((rc = add_record(w, &head, sizeof head, e)) ||
        (rc = add_record(w, s->n_rows, s->n_segment * sizeof *s->n_rows, e)) ||
        (rc = add_record(w, s->ids, s->n_row * sizeof *s->ids, e)) ||
        (rc = mask ? add_mask(w, s, e)
                   : add_record(w, s->labels, s->n_row * sizeof *s->labels, e)) ||
        (rc = stream_add(&w->index, NULL, &entry, sizeof entry, e)))
        return rc;
    t->n_sequence++;
    t->n_token += s->n_row;
    t->n_counted += s->n_counted;
    t->longest = s->n_row > t->longest ? s->n_row : t->longest;
    return Q_OK;
}

/* The index behind the records. */
static enum q_code copy_index(struct sequence_writer *w, struct q_err *e)
{
    enum q_code rc = stream_flush(&w->index, NULL, e);
    for (uint64_t at = 0; at < w->index.at && !rc;) {
        const uint64_t left = w->index.at - at;
        const size_t n = left < SEQUENCE_BUFFER ? (size_t)left : SEQUENCE_BUFFER;
        if (!(rc = file_read_at(&w->index.file, w->index.data, n, at, e)))
            rc = add_record(w, w->index.data, n, e);
        at += n;
    }
    return rc;
}

enum q_code sequence_writer_finish(struct sequence_writer *w, const char key[SEQUENCE_FILE_KEY],
                                   const struct sequence_totals *t, const char *notes, int *fd,
                                   struct q_err *e)
{
    struct sequence_head head;
    enum q_code rc;
    memset(&head, 0, sizeof head); /* padding is summed too */
    memcpy(head.magic, SEQUENCE_MAGIC, sizeof head.magic);
    head.version = SEQUENCE_VERSION;
    head.head_bytes = sizeof head;
    memcpy(head.key, key, sizeof head.key);
    head.totals.n_line = t->n_line;
    head.totals.n_sample = t->n_sample;
    head.totals.n_broken = t->n_broken;
    head.totals.n_empty = t->n_empty;
    head.totals.n_truncated = t->n_truncated;
    head.totals.n_sequence = w->totals.n_sequence;
    head.totals.n_token = w->totals.n_token;
    head.totals.n_counted = w->totals.n_counted;
    head.totals.longest = w->totals.longest;
    head.index_at = w->records.at + w->records.n;
    if ((rc = copy_index(w, e)))
        return rc;
    if ((rc = stream_flush(&w->records, w->sum, e)))
        return rc;
    head.notes_at = w->records.at;
    head.content_sum = XXH3_64bits_digest(w->sum);
    if ((rc = add_record(w, notes, strnlen(notes, SEQUENCE_NOTES_MAX), e)) ||
        (rc = stream_flush(&w->records, w->sum, e)))
        return rc;
    head.file_bytes = w->records.at;
    head.body_sum = XXH3_64bits_digest(w->sum);
    head.head_sum = XXH3_64bits(&head, offsetof(struct sequence_head, head_sum));
    if ((rc = file_write_at(&w->records.file, &head, sizeof head, 0, e)))
        return rc;
    if (w->is_named && fsync(w->records.file.fd) != 0)
        return q_fail(e, Q_IO, "%s: cannot sync: %s", w->path, strerror(errno));
    *fd = w->records.file.fd;
    w->records.file.fd = -1;
    w->is_named = false;
    return Q_OK;
}
