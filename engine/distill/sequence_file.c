/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/sequence_file.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/mem.h"
#include "engine/distill/file_sum.h"
#include "engine/distill/sequence_internal.h"

#define ROWS_MAX ((size_t)1 << 31)
#define NAME     "the tokenized data"

struct sequence_file {
    struct file_open file;
    struct sequence_head head;
    uint32_t vocab_size;
    char *notes;
    uint32_t *words; /* a record */
    int32_t *labels;
    size_t words_cap, labels_cap;
};

/* ---- opening ---- */

static enum q_code refuse(struct q_err *e, const char *reason)
{
    return q_fail(e, Q_CORRUPT, NAME ": %s", reason);
}

static enum q_code check_head(const struct sequence_head *h, uint64_t file_bytes, struct q_err *e)
{
    const uint64_t n = h->totals.n_sequence;
    if (memcmp(h->magic, SEQUENCE_MAGIC, sizeof h->magic) != 0)
        return refuse(e, "it is no file of sequences");
    if (h->version != SEQUENCE_VERSION || h->head_bytes != sizeof *h)
        return refuse(e, "it is of another version of quire");
    if (h->head_sum != XXH3_64bits(h, offsetof(struct sequence_head, head_sum)))
        return refuse(e, "the checksum of its head is wrong");
    if (h->file_bytes != file_bytes)
        return refuse(e, "its size is not the one that its head says");
    if (h->index_at < SEQUENCE_FILE_HEAD || h->index_at > h->notes_at || h->notes_at > file_bytes ||
        n > file_bytes / sizeof(struct sequence_entry) ||
        h->notes_at - h->index_at != n * sizeof(struct sequence_entry) ||
        file_bytes - h->notes_at > SEQUENCE_NOTES_MAX)
        return refuse(e, "its parts do not fit together");
    if (h->totals.longest > ROWS_MAX)
        return refuse(e, "a sequence in it is too long");
    return Q_OK;
}

static enum q_code check_body(const struct sequence_file *f, struct q_err *e)
{
    uint64_t sum = 0;
    const enum q_code rc = file_sum(&sum, &f->file, SEQUENCE_FILE_HEAD, f->head.file_bytes, e);
    return rc || sum == f->head.body_sum ? rc : refuse(e, "its checksum is wrong");
}

static enum q_code read_notes(struct sequence_file *f, struct q_err *e)
{
    const size_t n = (size_t)(f->head.file_bytes - f->head.notes_at);
    f->notes = q_calloc(n + 1, 1);
    if (!f->notes)
        return q_fail(e, Q_NO_MEMORY, NAME ": out of memory");
    return file_read_at(&f->file, f->notes, n, f->head.notes_at, e);
}

enum q_code sequence_file_open(struct sequence_file **out, int fd, const char *key,
                               uint32_t vocab_size, struct q_err *e)
{
    struct stat st;
    enum q_code rc;
    struct sequence_file *f = q_calloc(1, sizeof *f);
    if (!f) {
        close(fd);
        return q_fail(e, Q_NO_MEMORY, NAME ": out of memory");
    }
    f->file = (struct file_open){fd, NAME};
    f->vocab_size = vocab_size;
    if (fstat(fd, &st) != 0 || st.st_size < (off_t)SEQUENCE_FILE_HEAD)
        rc = refuse(e, "the file is shorter than its head");
    else if (!(rc = file_read_at(&f->file, &f->head, sizeof f->head, 0, e)) &&
             !(rc = check_head(&f->head, (uint64_t)st.st_size, e)))
        rc = key && memcmp(f->head.key, key, sizeof f->head.key) != 0
                 ? q_fail(e, Q_MISMATCH, NAME ": it is of other data")
                 : check_body(f, e);
    if (!rc)
        rc = read_notes(f, e);
    if (rc)
        sequence_file_close(f);
    else
        *out = f;
    return rc;
}

void sequence_file_close(struct sequence_file *f)
{
    if (!f)
        return;
    close(f->file.fd);
    q_free(f->notes);
    q_free(f->words);
    q_free(f->labels);
    q_free(f);
}

const struct sequence_totals *sequence_file_totals(const struct sequence_file *f)
{
    return &f->head.totals;
}

const char *sequence_file_notes(const struct sequence_file *f)
{
    return f->notes;
}

uint64_t sequence_file_content_sum(const struct sequence_file *f)
{
    return f->head.content_sum;
}

/* ---- reading ---- */

static enum q_code bad_sequence(uint64_t i, const char *reason, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, NAME ": sequence %llu: %s", (unsigned long long)i, reason);
}

static enum q_code read_entry(const struct sequence_file *f, uint64_t i,
                              struct sequence_entry *entry, struct q_err *e)
{
    enum q_code rc;
    if (i >= f->head.totals.n_sequence)
        return bad_sequence(i, "there is no such sequence", e);
    if ((rc =
             file_read_at(&f->file, entry, sizeof *entry, f->head.index_at + i * sizeof *entry, e)))
        return rc;
    if (entry->n_row == 0 || entry->n_row > f->head.totals.longest ||
        entry->n_counted >= entry->n_row)
        return bad_sequence(i, "its index entry is wrong", e);
    return Q_OK;
}

enum q_code sequence_file_size(const struct sequence_file *f, uint64_t i, uint32_t *n_row,
                               uint32_t *n_counted, struct q_err *e)
{
    struct sequence_entry entry;
    enum q_code rc = read_entry(f, i, &entry, e);
    if (rc)
        return rc;
    *n_row = entry.n_row;
    *n_counted = entry.n_counted;
    return Q_OK;
}

/* The record behind its head into f->words. */
static enum q_code read_words(struct sequence_file *f, uint64_t i,
                              const struct sequence_entry *entry, struct sequence_record *head,
                              struct q_err *e)
{
    const uint64_t end = f->head.index_at;
    enum q_code rc;
    if (entry->at < SEQUENCE_FILE_HEAD || entry->at > end || end - entry->at < sizeof *head)
        return bad_sequence(i, "its record is outside of the file", e);
    if ((rc = file_read_at(&f->file, head, sizeof *head, entry->at, e)))
        return rc;
    if (head->n_segment == 0 || head->n_segment > entry->n_row || head->flags > SEQUENCE_LABELS)
        return bad_sequence(i, "its record is wrong", e);
    const size_t n_label = head->flags ? entry->n_row : sequence_mask_words(entry->n_row);
    const size_t n = (size_t)head->n_segment + entry->n_row + n_label;
    if ((end - entry->at - sizeof *head) / sizeof *f->words < n)
        return bad_sequence(i, "its record is outside of the file", e);
    if ((rc = q_grow(&f->words, &f->words_cap, n, sizeof *f->words, 3 * ROWS_MAX, e)) ||
        (rc = q_grow(&f->labels, &f->labels_cap, entry->n_row, sizeof *f->labels, ROWS_MAX, e)))
        return rc;
    return file_read_at(&f->file, f->words, n * sizeof *f->words, entry->at + sizeof *head, e);
}

static void expand_labels(struct sequence_file *f, const struct sequence *s, bool own)
{
    const uint32_t *from = s->ids + s->n_row;
    if (own) {
        memcpy(f->labels, from, s->n_row * sizeof *from);
        return;
    }
    for (uint32_t i = 0; i < s->n_row; i++)
        f->labels[i] = from[i / 32] >> i % 32 & 1 ? (int32_t)s->ids[i] : -1;
}

/* What is computed with later is what it says: segments cover the rows, ids and labels are of the
 * vocabulary, as many rows count as the index has. */
static const char *check_sequence(const struct sequence_file *f, const struct sequence *s)
{
    uint64_t n_row = 0;
    uint32_t n_counted = 0, row = 0;
    for (uint32_t k = 0; k < s->n_segment; k++) {
        if (s->n_rows[k] == 0)
            return "a segment has no rows";
        n_row += s->n_rows[k];
    }
    if (n_row != s->n_row)
        return "its segments do not cover its rows";
    for (uint32_t i = 0; i < s->n_row; i++)
        if (s->ids[i] >= f->vocab_size || s->labels[i] < -1 ||
            (s->labels[i] >= 0 && (uint32_t)s->labels[i] >= f->vocab_size))
            return "an id or a label is outside of the vocabulary";
    for (uint32_t k = 0; k < s->n_segment; k++)
        for (uint32_t t = 0; t < s->n_rows[k]; t++, row++)
            n_counted += t && s->labels[row] >= 0;
    return n_counted == s->n_counted ? NULL : "it counts other rows than its index entry says";
}

enum q_code sequence_file_read(struct sequence_file *f, uint64_t i, struct sequence *out,
                               struct q_err *e)
{
    struct sequence_entry entry;
    struct sequence_record head;
    enum q_code rc;
    if ((rc = read_entry(f, i, &entry, e)) || (rc = read_words(f, i, &entry, &head, e)))
        return rc;
    const struct sequence s = {
        .n_row = entry.n_row,
        .n_segment = head.n_segment,
        .n_counted = entry.n_counted,
        .n_rows = f->words,
        .ids = f->words + head.n_segment,
        .labels = f->labels,
    };
    expand_labels(f, &s, head.flags == SEQUENCE_LABELS);
    const char *why = check_sequence(f, &s);
    if (why)
        return bad_sequence(i, why, e);
    *out = s;
    return Q_OK;
}
