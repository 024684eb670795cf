/* SPDX-License-Identifier: Apache-2.0 */
/* A file is read in blocks of whole lines. The team tokenizes the lines of a block, each thread
 * taking the next free one; then the results go to the packing in the order of the file, so that
 * what comes out does not depend on the threads. Memory: one block and its samples. The tokenizer
 * is opened when the first line needs it: data of ids alone take none. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "engine/distill/data_file.h"
#include "engine/distill/dataset_internal.h"
#include "engine/distill/packing.h"

#define BLOCK_BYTES ((size_t)4 << 20) /* as many are read at once, more for a longer line */
#define LINES_MAX   8192u             /* of a block */
#define NAMED_MAX   10u               /* lines of each kind that notes name */

struct line {
    size_t at, n; /* in the block's bytes */
    uint64_t number;
    struct sample sample;
    char *reason; /* NULL: it is a sample, or out of memory */
    enum q_code rc;
    bool needs_tokenizer;
};

struct filler {
    const struct dataset_options *o;
    struct dataset_text text;
    struct sample_source source;
    struct packing *packing;
    struct sequence_totals totals;
    struct buf notes; /* the first lines that are not as they should be */
    char first_reason[Q_MESSAGE_MAX];
    uint64_t n_empty_named, n_truncated_named, n_broken_named;
    uint64_t bytes_done, bytes_total;
};

struct block { /* of one file */
    struct filler *f;
    const char *path;
    int fd;
    char *data; /* [n], cap */
    size_t n, cap;
    uint64_t number; /* of the last line that was taken */
    bool end;        /* of the file */
    bool skipping;   /* a line that is too long */
    struct line *lines;
    uint32_t n_line;
    atomic_uint next;
    const struct sample_source *source;
};

/* ---- notes ---- */

__attribute__((format(printf, 3, 4))) static void note(struct filler *f, uint64_t *n_named,
                                                       const char *format, ...)
{
    char text[Q_MESSAGE_MAX];
    va_list ap;
    if ((*n_named)++ >= NAMED_MAX)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    q_shorten(text, 512);
    if (f->notes.len + strlen(text) + 1 > SEQUENCE_NOTES_MAX)
        return;
    buf_add_str(&f->notes, text);
    buf_add_char(&f->notes, '\n');
}

static void note_broken(struct filler *f, const char *path, uint64_t number, const char *reason)
{
    f->totals.n_broken++;
    if (!*f->first_reason)
        snprintf(f->first_reason, sizeof f->first_reason, "%s:%llu: %s", path,
                 (unsigned long long)number, reason);
    note(f, &f->n_broken_named, "%s:%llu: %s; the line is left out", path,
         (unsigned long long)number, reason);
}

/* ---- tokenizing a block ---- */

static void read_lines(void *arg, uint32_t ith, uint32_t nth)
{
    struct block *b = arg;
    (void)ith;
    (void)nth;
    for (uint32_t i; (i = atomic_fetch_add(&b->next, 1)) < b->n_line;) {
        struct line *l = &b->lines[i];
        struct q_err e = Q_ERR_INIT;
        l->reason = NULL;
        l->rc = sample_read(&l->sample, b->source, b->data + l->at, l->n, &l->needs_tokenizer, &e);
        if (l->rc && l->rc != Q_NO_MEMORY && !(l->reason = q_strdup(e.message)))
            l->rc = Q_NO_MEMORY;
    }
}

static void release_lines(struct block *b)
{
    for (uint32_t i = 0; i < b->n_line; i++) {
        sample_release(&b->lines[i].sample);
        q_free(b->lines[i].reason);
        b->lines[i].reason = NULL;
    }
}

static enum q_code open_text(struct filler *f, struct q_err *e)
{
    const enum q_code rc = dataset_text_open(&f->text, f->o->tokenizer_dir, e);
    f->source.tokenizer = f->text.tokenizer;
    f->source.chat = f->text.chat;
    f->source.chat_error = f->text.chat_error;
    f->source.eos = f->text.eos;
    return rc;
}

static enum q_code tokenize(struct block *b, struct q_err *e)
{
    bool needs_tokenizer = false;
    enum q_code rc = Q_OK;
    for (int pass = 0; pass < 2 && !rc; pass++) {
        atomic_store(&b->next, 0);
        team_run(b->f->o->team, read_lines, b);
        needs_tokenizer = false;
        for (uint32_t i = 0; i < b->n_line; i++)
            needs_tokenizer |= b->lines[i].needs_tokenizer;
        if (!needs_tokenizer)
            break;
        release_lines(b);
        rc = open_text(b->f, e);
    }
    return rc;
}

/* One line's sample to the packing. */
static enum q_code take_line(struct block *b, const struct line *l, struct q_err *e)
{
    struct filler *f = b->f;
    const unsigned long long number = l->number;
    const struct sample *s = &l->sample;
    f->totals.n_line++;
    if (l->rc == Q_NO_MEMORY)
        return q_fail(e, Q_NO_MEMORY, "%s:%llu: out of memory", b->path, number);
    if (l->rc) {
        note_broken(f, b->path, l->number, l->reason);
        return Q_OK;
    }
    f->totals.n_sample++;
    if (s->truncated) {
        f->totals.n_truncated++;
        note(f, &f->n_truncated_named, "%s:%llu: the sample has more than %u tokens and is cut",
             b->path, number, f->o->seq_len);
    }
    if (s->n_counted == 0) {
        f->totals.n_empty++;
        note(f, &f->n_empty_named, "%s:%llu: no token of the sample counts%s", b->path, number,
             f->o->packing ? "; it is left out" : "");
        if (f->o->packing)
            return Q_OK;
    }
    return packing_add(f->packing, s, e);
}

static enum q_code take_lines(struct block *b, struct q_err *e)
{
    enum q_code rc = tokenize(b, e);
    for (uint32_t i = 0; i < b->n_line && !rc; i++)
        rc = take_line(b, &b->lines[i], e);
    release_lines(b);
    b->n_line = 0;
    return rc;
}

/* ---- lines of a file ---- */

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || s[i] == '\0')
            return false;
    return true;
}

/* Blank lines have a number and are nothing else. */
static enum q_code add_line(struct block *b, size_t at, size_t n, struct q_err *e)
{
    b->number++;
    if (b->number == 1) {
        const size_t mark = utf8_mark(b->data + at, n);
        at += mark;
        n -= mark;
    }
    if (is_blank(b->data + at, n))
        return Q_OK;
    b->lines[b->n_line++] = (struct line){.at = at, .n = n, .number = b->number};
    return b->n_line == LINES_MAX ? take_lines(b, e) : Q_OK;
}

/* A line that does not fit: what is there of it is dropped, and so is the rest. */
static enum q_code drop_long_line(struct block *b, struct q_err *e)
{
    char reason[96];
    enum q_code rc = take_lines(b, e); /* those before it come first */
    b->skipping = true;
    b->n = 0;
    b->number++;
    b->f->totals.n_line++;
    snprintf(reason, sizeof reason, "the line has more than %zu bytes", DATASET_LINE_MAX);
    note_broken(b->f, b->path, b->number, reason);
    return rc;
}

/* All whole lines of the block's bytes; the last one may be without a newline at the file's end.
 * What is left is moved to the front. */
static enum q_code split_lines(struct block *b, struct q_err *e)
{
    size_t at = 0;
    enum q_code rc = Q_OK;
    while (at < b->n && !rc) {
        const char *newline = memchr(b->data + at, '\n', b->n - at);
        if (!newline && !b->end)
            break;
        const size_t end = newline ? (size_t)(newline - b->data) : b->n;
        if (b->skipping)
            b->skipping = false;
        else
            rc = add_line(b, at, end - at, e);
        at = newline ? end + 1 : end;
    }
    if (!rc)
        rc = take_lines(b, e);
    b->n -= at;
    memmove(b->data, b->data + at, b->n);
    if (!rc && b->skipping)
        b->n = 0;
    else if (!rc && b->n >= DATASET_LINE_MAX)
        rc = drop_long_line(b, e);
    return rc;
}

static enum q_code read_more(struct block *b, struct q_err *e)
{
    const size_t want = b->n + BLOCK_BYTES;
    enum q_code rc = q_grow(&b->data, &b->cap, want, 1, DATASET_LINE_MAX + 2 * BLOCK_BYTES, e);
    while (!rc && b->n < want && !b->end) {
        const ssize_t n = read(b->fd, b->data + b->n, want - b->n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = q_fail(e, Q_IO, "%s: cannot read: %s", b->path, strerror(errno));
        b->end = n <= 0;
        b->n += n > 0 ? (size_t)n : 0;
        b->f->bytes_done += n > 0 ? (uint64_t)n : 0;
    }
    return rc;
}

static enum q_code fill_file(struct filler *f, const char *path, struct q_err *e)
{
    struct file_stamp before = {0}, after = {0};
    struct block b = {.f = f, .path = path, .source = &f->source};
    enum q_code rc = Q_OK;
    (void)file_stamp(&before, path);
    b.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (b.fd < 0)
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO, "%s: cannot open: %s", path,
                      strerror(errno));
    b.lines = q_calloc(LINES_MAX, sizeof *b.lines);
    if (!b.lines)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for lines of data");
    while (!rc && !b.end) {
        if (!(rc = read_more(&b, e)))
            rc = split_lines(&b, e);
        if (!rc && f->o->progress)
            f->o->progress(f->o->progress_ctx, f->bytes_done, f->bytes_total);
    }
    if (!rc && (!file_stamp(&after, path) || memcmp(&before, &after, sizeof before) != 0))
        rc = q_fail(e, Q_IO, "%s: the file was changed while it was read", path);
    close(b.fd);
    q_free(b.lines);
    q_free(b.data);
    return rc;
}

/* ---- all of it ---- */

static enum q_code check_files(struct filler *f, struct q_err *e)
{
    for (uint32_t i = 0; i < f->o->n_path; i++) {
        struct file_stamp stamp = {0};
        const enum q_code rc = data_file_check("", f->o->paths[i], e);
        if (rc)
            return rc;
        (void)file_stamp(&stamp, f->o->paths[i]);
        f->bytes_total += stamp.size;
    }
    return Q_OK;
}

static enum q_code check_usable(const struct filler *f, struct q_err *e)
{
    const struct sequence_totals *t = &f->totals;
    if (t->n_sample > t->n_empty)
        return Q_OK;
    return q_fail(e, Q_CORRUPT,
                  "%s: no usable sample in %llu lines: %llu are broken, %llu have no token that "
                  "counts%s%s",
                  f->o->paths[0], (unsigned long long)t->n_line, (unsigned long long)t->n_broken,
                  (unsigned long long)t->n_empty, *f->first_reason ? "; the first: " : "",
                  f->first_reason);
}

enum q_code dataset_fill(const struct dataset_options *o, const char key[SEQUENCE_FILE_KEY],
                         const char *path, int *fd, struct q_err *e)
{
    struct filler f = {
        .o = o,
        .source = {.seq_len = o->seq_len, .vocab_size = o->vocab_size, .eos = TOKEN_NONE},
        .notes = BUF_INIT,
    };
    struct sequence_writer *w = NULL;
    enum q_code rc;
    if ((rc = check_files(&f, e)) || (rc = sequence_writer_new(&w, path, e)) ||
        (rc = packing_new(&f.packing, o->seq_len, o->packing, w, e)))
        goto out;
    for (uint32_t i = 0; i < o->n_path && !rc; i++)
        rc = fill_file(&f, o->paths[i], e);
    if (!rc && !(rc = check_usable(&f, e)) && !(rc = packing_finish(f.packing, e)) &&
        !(rc = buf_check(&f.notes, "notes about the data", e)))
        rc = sequence_writer_finish(w, key, &f.totals, buf_str(&f.notes), fd, e);
out:
    packing_free(f.packing);
    sequence_writer_free(w);
    dataset_text_release(&f.text);
    buf_release(&f.notes);
    mem_trim();
    return rc;
}
