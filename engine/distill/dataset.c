/* SPDX-License-Identifier: Apache-2.0 */
/* The sequences of an epoch lie in one file (sequence_file.h): the cache file, or one without a
 * name. A step's sequences are computed from its number, and read. Of several processes that open
 * the same data with one cache folder one tokenizes, holding a lock, and the others wait. */
#include "engine/distill/dataset.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/data_file.h"
#include "engine/distill/dataset_internal.h"
#include "engine/distill/sequence_order.h"

#define SEQ_LEN_MAX (1u << 24)
#define ROWS_MAX    ((size_t)UINT32_MAX)

struct slot { /* one micro batch */
    uint32_t *ids, *positions;
    int32_t *labels;
    struct train_segment *segments;
    size_t ids_cap, positions_cap, labels_cap, segments_cap;
};

struct dataset {
    struct sequence_file *file;
    struct dataset_counts counts;
    uint64_t seed;
    uint32_t global_batch, micro_batch;
    bool shuffle;
    struct slot slots[DATASET_SLOTS];
};

/* ---- opening ---- */

static enum q_code check_options(const struct dataset_options *o, struct q_err *e)
{
    if (o->n_path == 0)
        return q_fail(e, Q_INVALID, "data: no file is given");
    if (o->seq_len < 2 || o->seq_len > SEQ_LEN_MAX)
        return q_fail(e, Q_INVALID, "sequence length: %u, expected 2 to %u", o->seq_len,
                      SEQ_LEN_MAX);
    if (o->vocab_size == 0 || o->vocab_size > INT32_MAX)
        return q_fail(e, Q_INVALID, "vocabulary size: %u, expected 1 to %d", o->vocab_size,
                      INT32_MAX);
    if (o->micro_batch == 0 || o->global_batch == 0 || o->global_batch % o->micro_batch != 0)
        return q_fail(e, Q_INVALID,
                      "global batch size: %u, expected a multiple of the micro batch size (%u)",
                      o->global_batch, o->micro_batch);
    if (o->seq_len > UINT32_MAX / o->micro_batch)
        return q_fail(e, Q_INVALID, "micro batch size: %u sequences of %u tokens are too many",
                      o->micro_batch, o->seq_len);
    return Q_OK;
}

struct cache { /* the cache file of some data */
    char path[PATH_MAX], beside[PATH_MAX], lock_path[PATH_MAX];
    char key[SEQUENCE_FILE_KEY];
    uint64_t stamps; /* of the data's files, before the key was computed */
    int lock;        /* -1: none */
};

static uint64_t sum_stamps(const struct dataset_options *o)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < o->n_path; i++) {
        struct file_stamp stamp = {0};
        (void)file_stamp(&stamp, o->paths[i]);
        sum = XXH3_64bits_withSeed(&stamp, sizeof stamp, sum);
    }
    return sum;
}

static enum q_code name_cache(struct cache *c, const char *dir, struct q_err *e)
{
    const int n = (int)sizeof c->key;
    if (snprintf(c->path, PATH_MAX, "%s/%.*s.sequences", dir, n, c->key) >= PATH_MAX ||
        snprintf(c->beside, PATH_MAX, "%s/%.*s.sequences.tmp", dir, n, c->key) >= PATH_MAX ||
        snprintf(c->lock_path, PATH_MAX, "%s/%.*s.lock", dir, n, c->key) >= PATH_MAX)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %s", PATH_MAX, dir);
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return q_fail(e, Q_IO, "%s: cannot make the folder of tokenized data: %s", dir,
                      strerror(errno));
    return Q_OK;
}

/* One process at a time makes the file. Where the file system has no locks, all of them do. */
static enum q_code lock_cache(struct cache *c, struct q_err *e)
{
    c->lock = open(c->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (c->lock < 0)
        return q_fail(e, Q_IO, "%s: cannot create: %s", c->lock_path, strerror(errno));
    if (flock(c->lock, LOCK_EX | LOCK_NB) == 0)
        return Q_OK;
    if (errno == EWOULDBLOCK)
        log_info("%s: waiting for another process that reads the same data", c->lock_path);
    while (flock(c->lock, LOCK_EX) != 0)
        if (errno != EINTR) {
            log_warning("%s: cannot lock: %s", c->lock_path, strerror(errno));
            break;
        }
    return Q_OK;
}

/* An unusable cache file is made anew. */
static enum q_code try_cache(struct dataset *d, const struct cache *c, uint32_t vocab_size)
{
    struct q_err why = Q_ERR_INIT;
    const int fd = open(c->path, O_RDONLY | O_CLOEXEC);
    enum q_code rc;
    if (fd < 0)
        return Q_NOT_FOUND;
    rc = sequence_file_open(&d->file, fd, c->key, vocab_size, &why);
    if (rc)
        log_warning("%s cannot be used: %s; the data are tokenized again", c->path, why.message);
    else
        log_info("tokenized data: %s", c->path);
    return rc;
}

/* A file of other data than its key says has no name. */
static enum q_code name_file(const struct dataset_options *o, const struct cache *c,
                             struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (sum_stamps(o) != c->stamps)
        rc = q_fail(e, Q_IO, "%s: the data were changed while they were read", o->paths[0]);
    else if (rename(c->beside, c->path) != 0)
        rc = q_fail(e, Q_IO, "%s: cannot rename to its name: %s", c->beside, strerror(errno));
    if (rc)
        unlink(c->beside);
    return rc;
}

static enum q_code make_file(struct dataset *d, const struct dataset_options *o,
                             const struct cache *c, struct q_err *e)
{
    int fd = -1;
    enum q_code rc = dataset_fill(o, c->key, *c->path ? c->beside : NULL, &fd, e);
    if (rc)
        return rc;
    if (*c->path && (rc = name_file(o, c, e))) {
        close(fd);
        return rc;
    }
    return sequence_file_open(&d->file, fd, c->key, o->vocab_size, e);
}

static enum q_code open_file(struct dataset *d, const struct dataset_options *o, struct q_err *e)
{
    struct cache c = {.lock = -1};
    enum q_code rc;
    for (uint32_t i = 0; i < o->n_path; i++)
        if ((rc = data_file_check("", o->paths[i], e)))
            return rc;
    if (!o->cache_dir)
        return make_file(d, o, &c, e);
    c.stamps = sum_stamps(o);
    if (!(rc = dataset_key(c.key, o, e)) && !(rc = name_cache(&c, o->cache_dir, e)) &&
        !(rc = lock_cache(&c, e)) && try_cache(d, &c, o->vocab_size))
        rc = make_file(d, o, &c, e);
    if (c.lock >= 0)
        close(c.lock); /* unlocks */
    return rc;
}

/* What the first lines' trouble was, also when the file is older than this run. */
static void log_notes(const struct dataset *d)
{
    const struct dataset_counts *n = &d->counts;
    for (const char *line = sequence_file_notes(d->file); *line;) {
        const size_t length = strcspn(line, "\n");
        log_warning("%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
    log_info("data: %llu lines, %llu samples (%llu truncated, %llu without a token that counts), "
             "broken lines: %llu; sequences: %llu of at most %u tokens, %llu tokens, %llu of them "
             "count",
             (unsigned long long)n->n_line, (unsigned long long)n->n_sample,
             (unsigned long long)n->n_truncated, (unsigned long long)n->n_empty,
             (unsigned long long)n->n_broken, (unsigned long long)n->n_sequence,
             sequence_file_totals(d->file)->longest, (unsigned long long)n->n_token,
             (unsigned long long)n->n_counted);
}

static enum q_code set_counts(struct dataset *d, const struct dataset_options *o, struct q_err *e)
{
    const struct sequence_totals *t = sequence_file_totals(d->file);
    d->counts = (struct dataset_counts){
        .n_line = t->n_line,
        .n_sample = t->n_sample,
        .n_token = t->n_token,
        .n_counted = t->n_counted,
        .n_broken = t->n_broken,
        .n_empty = t->n_empty,
        .n_truncated = t->n_truncated,
        .n_sequence = t->n_sequence,
        .content_sum = sequence_file_content_sum(d->file),
        .row_max = t->longest * o->micro_batch,
    };
    if (t->n_sequence == 0 || t->n_counted == 0 || t->longest > o->seq_len)
        return q_fail(e, Q_CORRUPT, "the tokenized data have no usable sequence");
    return Q_OK;
}

enum q_code dataset_open(struct dataset **out, const struct dataset_options *o, struct q_err *e)
{
    struct dataset *d;
    enum q_code rc = check_options(o, e);
    if (rc)
        return rc;
    if (!(d = q_calloc(1, sizeof *d)))
        return q_fail(e, Q_NO_MEMORY, "out of memory for the data");
    d->seed = o->seed;
    d->shuffle = o->shuffle;
    d->global_batch = o->global_batch;
    d->micro_batch = o->micro_batch;
    if (!(rc = open_file(d, o, e)) && !(rc = set_counts(d, o, e))) {
        log_notes(d);
        *out = d;
    } else {
        dataset_free(d);
    }
    return rc;
}

void dataset_free(struct dataset *d)
{
    if (!d)
        return;
    sequence_file_close(d->file);
    for (uint32_t i = 0; i < DATASET_SLOTS; i++) {
        q_free(d->slots[i].ids);
        q_free(d->slots[i].positions);
        q_free(d->slots[i].labels);
        q_free(d->slots[i].segments);
    }
    q_free(d);
}

const struct dataset_counts *dataset_counts(const struct dataset *d)
{
    return &d->counts;
}

/* ---- steps ---- */

/* The number in the file of the i-th sequence of a step. */
static uint64_t sequence_at(const struct dataset *d, uint64_t step, uint64_t i)
{
    const uint64_t n = d->counts.n_sequence, all = (step - 1) * d->global_batch + i;
    const struct sequence_order order = {.seed = d->seed, .epoch = all / n, .n = n};
    return d->shuffle ? sequence_order_at(&order, all % n) : all % n;
}

static enum q_code reserve(struct slot *s, size_t n_row, size_t n_segment, struct q_err *e)
{
    enum q_code rc;
    if ((rc = q_grow(&s->ids, &s->ids_cap, n_row, sizeof *s->ids, ROWS_MAX, e)) ||
        (rc = q_grow(&s->positions, &s->positions_cap, n_row, sizeof *s->positions, ROWS_MAX, e)) ||
        (rc = q_grow(&s->labels, &s->labels_cap, n_row, sizeof *s->labels, ROWS_MAX, e)))
        return rc;
    return q_grow(&s->segments, &s->segments_cap, n_segment, sizeof *s->segments, ROWS_MAX, e);
}

/* Row t of a segment predicts the label of position t + 1; the last row predicts nothing. */
static void append_segment(struct slot *s, struct micro_batch *b, const struct sequence *from,
                           uint32_t row, uint32_t n)
{
    s->segments[b->n_segment++] = (struct train_segment){b->n_row, n};
    for (uint32_t t = 0; t < n; t++, b->n_row++) {
        s->ids[b->n_row] = from->ids[row + t];
        s->positions[b->n_row] = t;
        s->labels[b->n_row] = t + 1 < n ? from->labels[row + t + 1] : -1;
    }
}

static enum q_code append_sequence(struct slot *s, struct micro_batch *b,
                                   const struct sequence *from, struct q_err *e)
{
    uint32_t row = 0;
    enum q_code rc =
        reserve(s, (size_t)b->n_row + from->n_row, (size_t)b->n_segment + from->n_segment, e);
    if (rc)
        return rc;
    for (uint32_t k = 0; k < from->n_segment; k++) {
        append_segment(s, b, from, row, from->n_rows[k]);
        row += from->n_rows[k];
    }
    b->n_counted += from->n_counted;
    return Q_OK;
}

enum q_code dataset_batch(struct dataset *d, uint64_t step, uint32_t i, uint32_t slot,
                          struct micro_batch *out, struct q_err *e)
{
    struct micro_batch b = {0};
    struct sequence sequence;
    enum q_code rc = Q_OK;
    Q_ASSERT(step > 0 && slot < DATASET_SLOTS && i < d->global_batch / d->micro_batch);
    struct slot *s = &d->slots[slot];
    for (uint32_t k = 0; k < d->micro_batch && !rc; k++) {
        const uint64_t at = sequence_at(d, step, (uint64_t)i * d->micro_batch + k);
        if (!(rc = sequence_file_read(d->file, at, &sequence, e)))
            rc = append_sequence(s, &b, &sequence, e);
    }
    if (rc)
        return rc;
    b.ids = s->ids;
    b.positions = s->positions;
    b.segments = s->segments;
    b.labels = s->labels;
    *out = b;
    return Q_OK;
}

enum q_code dataset_n_counted(struct dataset *d, uint64_t step, uint64_t *n, struct q_err *e)
{
    uint64_t sum = 0;
    enum q_code rc = Q_OK;
    Q_ASSERT(step > 0);
    for (uint64_t i = 0; i < d->global_batch && !rc; i++) {
        uint32_t n_row, n_counted;
        if (!(rc = sequence_file_size(d->file, sequence_at(d, step, i), &n_row, &n_counted, e)))
            sum += n_counted;
    }
    if (!rc)
        *n = sum;
    return rc;
}
