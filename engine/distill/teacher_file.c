/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/teacher_file.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/dtype.h"
#include "common/log.h"
#include "common/mem.h"

#define ENTRIES_MAX ((size_t)1 << 32)
#define NO_SHARD    UINT32_MAX

struct place { /* of a sequence */
    struct teacher_key key;
    uint64_t at, sum;
    uint32_t n_row, n_counted, shard;
};

struct teacher_file {
    char dir[PATH_MAX];
    struct teacher_file_info info;
    struct place *places; /* [n] by key */
    size_t n, cap;
    int fd; /* of the shard that was read last */
    uint32_t shard;
    char path[PATH_MAX];
    unsigned char *data; /* of the sequence that was read last */
    size_t data_cap;
    struct teacher_key key;
    uint32_t n_counted; /* of it; 0: there is none */
    uint32_t top_k, n_student;
    uint32_t *ids; /* [LOSS_HEAD_ROWS_MAX, top_k] what the source gives */
    float *z;
    float *sorted; /* [info.top_k] */
};

/* ---- opening ---- */

static FALLIBLE take_info(struct teacher_file *f, const struct teacher_shard_head *h,
                          const char *path, struct q_err *e)
{
    struct teacher_file_info *i = &f->info;
    if (i->top_k == 0) {
        i->top_k = h->top_k;
        i->n_vocab = h->n_vocab;
        memcpy(i->teacher, h->teacher, sizeof i->teacher);
    }
    if (i->top_k != h->top_k || i->n_vocab != h->n_vocab || strcmp(i->teacher, h->teacher) != 0)
        return q_fail(e, Q_MISMATCH,
                      "%s is of teacher \"%.60s\", top %u of %u, the files before it of \"%.60s\", "
                      "top %u of %u",
                      path, h->teacher, h->top_k, h->n_vocab, i->teacher, i->top_k, i->n_vocab);
    return Q_OK;
}

static FALLIBLE open_shard(struct teacher_file *f, uint32_t number, struct q_err *e)
{
    enum q_code rc;
    if (f->shard == number)
        return Q_OK;
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
    f->shard = NO_SHARD;
    if ((rc = teacher_shard_path(f->path, f->dir, number, false, e)))
        return rc;
    if ((f->fd = open(f->path, O_RDONLY | O_CLOEXEC)) < 0)
        return q_fail(e, Q_IO, "%s: cannot open: %s", f->path, strerror(errno));
    f->shard = number;
    return Q_OK;
}

static FALLIBLE add_places(struct teacher_file *f, const struct teacher_entry *index, size_t n,
                           struct q_err *e)
{
    enum q_code rc = q_grow(&f->places, &f->cap, f->n + n, sizeof *f->places, ENTRIES_MAX, e);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct teacher_entry *x = &index[i];
        f->places[f->n++] = (struct place){x->key, x->at, x->sum, x->n_row, x->n_counted, f->shard};
        f->info.n_position += x->n_counted;
    }
    return rc;
}

static FALLIBLE read_shard(struct teacher_file *f, uint32_t number, struct q_err *e)
{
    struct teacher_shard_head head;
    struct teacher_entry *index = NULL;
    enum q_code rc;
    if ((rc = open_shard(f, number, e)) ||
        (rc = teacher_shard_read_head(&head, f->fd, f->path, true, e)) ||
        (rc = take_info(f, &head, f->path, e)) ||
        (rc = teacher_shard_read_index(&index, &head, f->fd, f->path, e)))
        return rc;
    rc = add_places(f, index, (size_t)head.n_entry, e);
    q_free(index);
    return rc;
}

static int compare_keys(const struct teacher_key *a, const struct teacher_key *b)
{
    const int i = a->word[0] == b->word[0];
    return a->word[i] < b->word[i] ? -1 : a->word[i] > b->word[i];
}

static int by_key(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return compare_keys(&x->key, &y->key);
}

static FALLIBLE read_folder(struct teacher_file *f, struct q_err *e)
{
    uint32_t *numbers = NULL, tmp;
    size_t n = 0;
    enum q_code rc = teacher_shard_list(&numbers, &n, &tmp, f->dir, e);
    if (!rc && n == 0)
        rc = q_fail(e, Q_NOT_FOUND, "%s: no complete file (" TEACHER_SHARD_SUFFIX ") in it%s",
                    f->dir, tmp == UINT32_MAX ? "" : "; `quire teach` was not finished");
    else if (!rc && tmp != UINT32_MAX)
        log_warning("%s: `quire teach` was not finished, its last file is left out", f->dir);
    for (size_t i = 0; i < n && !rc; i++)
        rc = read_shard(f, numbers[i], e);
    q_free(numbers);
    if (!rc && f->n)
        qsort(f->places, f->n, sizeof *f->places, by_key);
    f->info.n_sequence = f->n;
    return rc;
}

FALLIBLE teacher_file_open(struct teacher_file **out, const char *dir, struct q_err *e)
{
    struct teacher_file *f = q_calloc(1, sizeof *f);
    enum q_code rc = Q_OK;
    if (!f)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %s", dir);
    f->fd = -1;
    f->shard = NO_SHARD;
    if ((size_t)snprintf(f->dir, sizeof f->dir, "%s", dir) >= sizeof f->dir)
        rc = q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %.200s", PATH_MAX, dir);
    if (rc || (rc = read_folder(f, e))) {
        teacher_file_close(f);
        return rc;
    }
    *out = f;
    return Q_OK;
}

void teacher_file_close(struct teacher_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    q_free(f->places);
    q_free(f->data);
    q_free(f->ids);
    q_free(f->z);
    q_free(f->sorted);
    q_free(f);
}

const struct teacher_file_info *teacher_file_info(const struct teacher_file *f)
{
    return &f->info;
}

/* ---- finding ---- */

static uint32_t count_rows(const int32_t *labels, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += labels[i] >= 0;
    return count;
}

/* NULL: it is not there. */
static const struct place *find_segment(const struct teacher_file *f, const struct micro_batch *b,
                                        const struct train_segment *g)
{
    const int32_t *labels = b->labels + g->row;
    const struct place wanted = {.key = teacher_key_of(b->ids + g->row, labels, g->n_row)};
    const struct place *p =
        f->n ? bsearch(&wanted, f->places, f->n, sizeof *f->places, by_key) : NULL;
    return p && p->n_row == g->n_row && p->n_counted == count_rows(labels, g->n_row) ? p : NULL;
}

static enum q_code fail_missing(const struct teacher_file *f, const struct micro_batch *b,
                                const struct train_segment *g, struct q_err *e)
{
    const uint32_t *ids = b->ids + g->row, n = g->n_row;
    return q_fail(e, Q_NOT_FOUND,
                  "%s: no log-probabilities of the sequence of %u tokens that begins with %u, %u, "
                  "%u; the folder was written of other data, with another tokenizer, "
                  "--seq-length or labels, or `quire teach` was not finished",
                  f->dir, n, ids[0], n > 1 ? ids[1] : 0, n > 2 ? ids[2] : 0);
}

FALLIBLE teacher_file_check(const struct teacher_file *f, const struct micro_batch *b,
                            struct q_err *e)
{
    for (uint32_t i = 0; i < b->n_segment; i++) {
        const struct train_segment *g = &b->segments[i];
        if (count_rows(b->labels + g->row, g->n_row) && !find_segment(f, b, g))
            return fail_missing(f, b, g, e);
    }
    return Q_OK;
}

/* ---- rows ---- */

/* Its ids and values into f->data. */
static FALLIBLE read_segment(struct teacher_file *f, const struct micro_batch *b,
                             const struct train_segment *g, struct q_err *e)
{
    const struct place *p = find_segment(f, b, g);
    enum q_code rc;
    if (!p)
        return fail_missing(f, b, g, e);
    if (f->n_counted && teacher_key_equal(&f->key, &p->key))
        return Q_OK;
    const struct teacher_entry x = {.n_counted = p->n_counted};
    const uint64_t bytes = teacher_entry_bytes(&x, f->info.top_k);
    f->n_counted = 0;
    if ((rc = open_shard(f, p->shard, e)) ||
        (rc = q_grow(&f->data, &f->data_cap, bytes, 1, SIZE_MAX / 2, e)) ||
        (rc = teacher_shard_read(f->fd, f->path, p->at, f->data, (size_t)bytes, e)))
        return rc;
    if (teacher_entry_sum(f->data, bytes) != p->sum)
        return q_fail(e, Q_CORRUPT, "%s: the checksum of the sequence at byte %llu is wrong",
                      f->path, (unsigned long long)p->at);
    f->key = p->key;
    f->n_counted = p->n_counted;
    return Q_OK;
}

static int by_value_down(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

struct wanted_values { /* of a row: those above, and so many of those equal */
    float above;
    uint32_t n_equal;
};

/* Of [n] values the k largest, of equal ones the first. */
static struct wanted_values choose(struct teacher_file *f, const float *values, uint32_t n,
                                   uint32_t k)
{
    struct wanted_values w = {-INFINITY, n};
    if (n <= k)
        return w;
    memcpy(f->sorted, values, n * sizeof *values);
    qsort(f->sorted, n, sizeof *f->sorted, by_value_down);
    w.above = f->sorted[k - 1];
    w.n_equal = k;
    for (uint32_t i = 0; i < k; i++)
        w.n_equal -= f->sorted[i] > w.above;
    return w;
}

/* Rows with fewer ids than columns: the lowest free ids, with probability 0, so that ids ascend. */
static void fill_up(uint32_t *ids, float *z, uint32_t n, uint32_t k)
{
    for (uint32_t id = 0; n < k; id++) {
        uint32_t at = 0;
        while (at < n && ids[at] < id)
            at++;
        if (at < n && ids[at] == id)
            continue;
        memmove(ids + at + 1, ids + at, (n - at) * sizeof *ids);
        memmove(z + at + 1, z + at, (n - at) * sizeof *z);
        ids[at] = id;
        z[at] = -INFINITY;
        n++;
    }
}

struct row {
    uint32_t ids[KERN_TOP_K_MAX], n; /* those that the student has, ascending */
    float values[KERN_TOP_K_MAX];
};

/* Row i of the sequence's counted ones. */
static FALLIBLE read_row(struct row *out, const struct teacher_file *f, uint32_t i, struct q_err *e)
{
    const uint32_t k = f->info.top_k;
    const unsigned char *ids = f->data + (size_t)i * k * sizeof(uint32_t);
    const unsigned char *halves =
        f->data + (size_t)f->n_counted * k * sizeof(uint32_t) + (size_t)i * k * sizeof(uint16_t);
    bool any = false;
    out->n = 0;
    for (uint32_t j = 0; j < k; j++) {
        uint32_t id;
        uint16_t half;
        memcpy(&id, ids + j * sizeof id, sizeof id);
        memcpy(&half, halves + j * sizeof half, sizeof half);
        const float value = f16_to_f32(half);
        if (!(value <= 0) || (out->n && id <= out->ids[out->n - 1]))
            return q_fail(e, Q_CORRUPT,
                          "%s: a row has ids that do not ascend, or %g as a log-probability",
                          f->path, (double)value);
        if (id >= f->n_student)
            break;
        any |= value > -INFINITY;
        out->ids[out->n] = id;
        out->values[out->n++] = value;
    }
    if (any)
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "%s: in row %u of a sequence all of the teacher's top %u are beyond the "
                  "student's %u tokens",
                  f->path, i, k, f->n_student);
}

/* Of a row the likeliest, as row `to` of the source's. */
static void give_row(struct teacher_file *f, const struct row *r, uint32_t to)
{
    const uint32_t k = f->top_k;
    uint32_t *ids = f->ids + (size_t)to * k, n = 0;
    float *z = f->z + (size_t)to * k;
    struct wanted_values w = choose(f, r->values, r->n, k);
    for (uint32_t j = 0; j < r->n; j++) {
        const bool is_equal = r->n > k && r->values[j] == w.above;
        if (r->n > k && (is_equal ? w.n_equal == 0 : r->values[j] < w.above))
            continue;
        w.n_equal -= is_equal;
        ids[n] = r->ids[j];
        z[n++] = r->values[j];
    }
    fill_up(ids, z, n, k);
}

static FALLIBLE take_row(struct teacher_file *f, uint32_t i, uint32_t to, struct q_err *e)
{
    struct row r;
    const enum q_code rc = read_row(&r, f, i, e);
    if (!rc)
        give_row(f, &r, to);
    return rc;
}

static enum q_code source_rows(void *ctx, const struct micro_batch *b, const uint32_t *rows,
                               uint32_t n, struct teacher_rows *out, struct q_err *e)
{
    struct teacher_file *f = ctx;
    uint32_t i_segment = 0, row = 0, i_counted = 0;
    bool is_read = false;
    enum q_code rc = Q_OK;
    Q_ASSERT(n <= LOSS_HEAD_ROWS_MAX);
    for (uint32_t i = 0; i < n && !rc; i++) {
        const struct train_segment *g = &b->segments[i_segment];
        for (; rows[i] >= g->row + g->n_row; is_read = false)
            g = &b->segments[++i_segment];
        if (!is_read) {
            rc = read_segment(f, b, g, e);
            is_read = true;
            row = g->row;
            i_counted = 0;
        }
        for (; row < rows[i]; row++)
            i_counted += b->labels[row] >= 0;
        Q_ASSERT(rc || i_counted < f->n_counted);
        rc = rc ? rc : take_row(f, i_counted, i, e);
    }
    *out = (struct teacher_rows){f->z, f->ids, f->top_k, f->top_k};
    return rc;
}

FALLIBLE teacher_file_source(struct teacher_file *f, uint32_t top_k, uint32_t n_student,
                             struct teacher_source *out, struct q_err *e)
{
    const uint32_t k = top_k ? top_k : f->info.top_k;
    if (k > f->info.top_k || k > n_student)
        return q_fail(e, Q_INVALID, "top k of %u: %s has the top %u, the student %u tokens", k,
                      f->dir, f->info.top_k, n_student);
    f->top_k = k;
    f->n_student = n_student;
    q_free(f->ids);
    q_free(f->z);
    q_free(f->sorted);
    f->ids = q_calloc((size_t)LOSS_HEAD_ROWS_MAX * k, sizeof *f->ids);
    f->z = q_calloc((size_t)LOSS_HEAD_ROWS_MAX * k, sizeof *f->z);
    f->sorted = q_calloc(f->info.top_k, sizeof *f->sorted);
    if (!f->ids || !f->z || !f->sorted)
        return q_fail(e, Q_NO_MEMORY, "out of memory for rows of %s", f->dir);
    *out = (struct teacher_source){
        .rows = source_rows,
        .ctx = f,
        .n_vocab = f->info.n_vocab ? f->info.n_vocab : n_student,
    };
    return Q_OK;
}
