/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/tune_file.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "common/file.h"
#include "common/mem.h"

#define FIRST_LINE "quire-tune 1"
#define TEXT_MAX   512u /* bytes of a line; the longest possible line has 260 */
#define SIDE_MAX   (1u << 24)

static const char *const kind_names[LT_KINDS] = {
    [LT_KIND_BF16] = "bf16",
    [LT_KIND_F16] = "f16",
    [LT_KIND_I8] = "int8",
    [LT_KIND_E4M3] = "e4m3",
};

enum { FLAG_Y = 1, FLAG_BIAS = 2, FLAG_ACCUMULATE = 4, FLAG_GATED = 8 };
static const struct {
    const char *name;
    unsigned flag;
} flag_names[] = {
    {"y", FLAG_Y},
    {"bias", FLAG_BIAS},
    {"accumulate", FLAG_ACCUMULATE},
    {"gated", FLAG_GATED},
};
#define N_FLAG (sizeof flag_names / sizeof *flag_names)

static unsigned flags_of(const struct lt_shape *s)
{
    return (s->target == LT_TO_Y ? FLAG_Y : 0u) | (s->has_bias ? FLAG_BIAS : 0u) |
           (s->accumulate ? FLAG_ACCUMULATE : 0u) | (s->gated ? FLAG_GATED : 0u);
}

/* ---- the table ---- */
void tune_table_release(struct tune_table *t)
{
    q_free(t->entries);
    *t = (struct tune_table)TUNE_TABLE_INIT;
}

static bool same_place(const struct tune_entry *x, const struct lt_shape *s, uint32_t bucket)
{
    return x->bucket == bucket && x->shape.kind == s->kind && x->shape.n_out == s->n_out &&
           x->shape.n_in == s->n_in && flags_of(&x->shape) == flags_of(s);
}

const struct tune_entry *tune_find(const struct tune_table *t, const struct lt_shape *s,
                                   uint32_t bucket)
{
    for (size_t i = 0; i < t->n; i++)
        if (same_place(&t->entries[i], s, bucket))
            return &t->entries[i];
    return NULL;
}

enum q_code tune_add(struct tune_table *t, const struct tune_entry *x, struct q_err *e)
{
    for (size_t i = 0; i < t->n; i++)
        if (same_place(&t->entries[i], &x->shape, x->bucket)) {
            t->entries[i] = *x;
            return Q_OK;
        }
    enum q_code rc =
        q_grow(&t->entries, &t->room, t->n + 1, sizeof *t->entries, TUNE_ENTRIES_MAX, e);
    if (!rc)
        t->entries[t->n++] = *x;
    return rc;
}

/* ---- text ---- */
static uint64_t sum_of(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return h;
}

static void print_entry(struct buf *out, const struct tune_entry *x)
{
    const unsigned flags = flags_of(&x->shape);
    const char *before = "";
    buf_printf(out, "%s %u %u ", kind_names[x->shape.kind], x->shape.n_out, x->shape.n_in);
    for (size_t i = 0; i < N_FLAG; i++)
        if (flags & flag_names[i].flag) {
            buf_printf(out, "%s%s", before, flag_names[i].name);
            before = ",";
        }
    buf_printf(out, "%s %u ", flags ? "" : "-", lt_bucket_rows(x->bucket));
    if (x->choice.is_own) {
        buf_add_str(out, "own\n");
        return;
    }
    buf_printf(out, "lt %zu", x->choice.workspace_bytes);
    for (size_t i = 0; i < 8; i++)
        buf_printf(out, " %016" PRIx64, x->choice.algo.data[i]);
    buf_add_char(out, '\n');
}

static void print_head(struct buf *out, const struct tune_card *card)
{
    buf_printf(out, FIRST_LINE "\ncard %s\ncapability %u.%u\ndriver %u\nlibrary %" PRIu64 "\n",
               card->name, card->major, card->minor, card->driver, card->library);
}

void tune_print(struct buf *out, const struct tune_table *t, const struct tune_card *card)
{
    const size_t from = out->len;
    print_head(out, card);
    for (size_t i = 0; i < t->n; i++)
        print_entry(out, &t->entries[i]);
    buf_printf(out, "sum %016" PRIx64 "\n",
               out->data ? sum_of(out->data + from, out->len - from) : 0);
}

/* ---- reading ---- */
struct words { /* the rest of a line */
    const char *at;
};

/* The next word of the line into `word`; false: there is none, or it is too long. */
static bool next(struct words *w, char *word, size_t room)
{
    size_t n = strcspn(w->at, " ");
    if (n == 0 || n >= room)
        return false;
    memcpy(word, w->at, n);
    word[n] = '\0';
    w->at += n;
    w->at += *w->at == ' ';
    return true;
}

static bool next_number(struct words *w, uint64_t *out, unsigned base, uint64_t max)
{
    char word[24];
    uint64_t v = 0;
    if (!next(w, word, sizeof word) || strlen(word) > (base == 16 ? 16u : 19u))
        return false;
    for (const char *p = word; *p; p++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, *p);
        if (!d || (unsigned)(d - digits) >= base)
            return false;
        v = v * base + (uint64_t)(d - digits);
    }
    *out = v;
    return v <= max;
}

static bool read_flags(struct lt_shape *s, const char *word)
{
    unsigned flags = 0;
    for (const char *p = word; strcmp(word, "-") != 0 && p; p = strchr(p, ',')) {
        p += *p == ',';
        const size_t n = strcspn(p, ",");
        size_t i = 0;
        while (i < N_FLAG &&
               (strlen(flag_names[i].name) != n || strncmp(flag_names[i].name, p, n) != 0))
            i++;
        if (i == N_FLAG || flags & flag_names[i].flag)
            return false;
        flags |= flag_names[i].flag;
    }
    s->target = flags & FLAG_Y ? LT_TO_Y : LT_TO_SUMS;
    s->has_bias = flags & FLAG_BIAS;
    s->accumulate = flags & FLAG_ACCUMULATE;
    s->gated = flags & FLAG_GATED;
    const bool plain = !s->has_bias && !s->accumulate;
    struct lt_shape settled = *s;
    lt_shape_settle(&settled);
    return settled.target == s->target && (s->target == LT_TO_Y || plain);
}

static bool read_shape(struct lt_shape *s, struct words *w)
{
    char word[40];
    uint64_t n_out, n_in;
    int kind = 0;
    if (!next(w, word, sizeof word))
        return false;
    while (kind < LT_KINDS && strcmp(kind_names[kind], word) != 0)
        kind++;
    if (kind == LT_KINDS || !next_number(w, &n_out, 10, SIDE_MAX) ||
        !next_number(w, &n_in, 10, SIDE_MAX) || !next(w, word, sizeof word))
        return false;
    *s = (struct lt_shape){
        .kind = (enum lt_kind)kind,
        .n_out = (uint32_t)n_out,
        .n_in = (uint32_t)n_in,
    };
    return n_out && n_in && read_flags(s, word);
}

static bool read_choice(struct lt_choice *c, struct words *w)
{
    char word[8];
    uint64_t bytes;
    *c = (struct lt_choice){.is_own = true};
    if (!next(w, word, sizeof word))
        return false;
    if (strcmp(word, "own") == 0)
        return *w->at == '\0';
    if (strcmp(word, "lt") != 0 || !next_number(w, &bytes, 10, UINT32_MAX))
        return false;
    c->is_own = false;
    c->workspace_bytes = (size_t)bytes;
    for (size_t i = 0; i < 8; i++)
        if (!next_number(w, &c->algo.data[i], 16, UINT64_MAX))
            return false;
    return *w->at == '\0';
}

static bool read_entry(struct tune_entry *x, const char *line)
{
    struct words w = {line};
    uint64_t rows;
    if (!read_shape(&x->shape, &w) || !next_number(&w, &rows, 10, UINT32_MAX) || rows == 0)
        return false;
    x->bucket = lt_bucket((uint32_t)rows);
    return lt_bucket_rows(x->bucket) == rows && read_choice(&x->choice, &w);
}

/* The sum at the end of the text: *n becomes the bytes before it. */
static bool check_sum(const char *text, size_t *n)
{
    char want[32];
    const size_t room = sizeof "sum 0123456789abcdef\n" - 1;
    if (*n < room)
        return false;
    snprintf(want, sizeof want, "sum %016" PRIx64 "\n", sum_of(text, *n - room));
    *n -= room;
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    return true; /* or nothing else would be read */
#else
    return memcmp(text + *n, want, room) == 0;
#endif
}

/* Compare the head lines, which identify the card, exactly; *at becomes their end. */
static enum q_code check_head(size_t *at, const struct tune_card *card, const char *text, size_t n,
                              struct q_err *e)
{
    struct buf want = BUF_INIT;
    print_head(&want, card);
    enum q_code rc = buf_check(&want, "tune file", e);
    if (!rc && (n < want.len || memcmp(text, want.data, want.len) != 0)) {
        size_t i = 0;
        while (i < n && i < want.len && text[i] == want.data[i])
            i++;
        while (i > 0 && want.data[i - 1] != '\n')
            i--;
        int n_found = 0;
        while (i + (size_t)n_found < n && text[i + (size_t)n_found] != '\n' && n_found < 80)
            n_found++;
        rc = q_fail(e, Q_MISMATCH, "the file is for \"%.*s\", this machine has \"%.*s\"", n_found,
                    text + i, (int)strcspn(want.data + i, "\n"), want.data + i);
    }
    *at = want.len;
    buf_release(&want);
    return rc;
}

static enum q_code read_lines(struct tune_table *t, const char *text, size_t n, uint32_t line,
                              struct q_err *e)
{
    for (size_t at = 0; at < n; line++) {
        char copy[TEXT_MAX];
        struct tune_entry x;
        const char *end = memchr(text + at, '\n', n - at);
        const size_t length = end ? (size_t)(end - text) - at : 0;
        if (!end || length >= sizeof copy || memchr(text + at, '\0', length))
            return q_fail(e, Q_CORRUPT,
                          "line %u is too long, contains a NUL byte or lacks a newline", line);
        memcpy(copy, text + at, length);
        copy[length] = '\0';
        if (!read_entry(&x, copy))
            return q_fail(e, Q_CORRUPT, "line %u is malformed: \"%.60s\"", line, copy);
        enum q_code rc = tune_add(t, &x, e);
        if (rc)
            return rc;
        at += length + 1;
    }
    return Q_OK;
}

enum q_code tune_parse(struct tune_table *t, const struct tune_card *card, const char *text,
                       size_t n, struct q_err *e)
{
    size_t at = 0;
    enum q_code rc;
    if (n < sizeof FIRST_LINE || memcmp(text, FIRST_LINE "\n", sizeof FIRST_LINE) != 0)
        return q_fail(e, Q_CORRUPT, "line 1 is not \"" FIRST_LINE "\"");
    if (!check_sum(text, &n))
        return q_fail(e, Q_CORRUPT, "the checksum does not match; the file is damaged");
    if (!(rc = check_head(&at, card, text, n, e)))
        rc = read_lines(t, text + at, n - at, 6, e);
    if (rc)
        tune_table_release(t);
    return rc;
}

/* ---- files ---- */
static enum q_code path_of(char out[PATH_MAX], const struct tune_card *card, const char *dir,
                           struct q_err *e)
{
    char name[TUNE_CARD_MAX + 96], plain[TUNE_CARD_MAX];
    size_t n = 0;
    for (const char *p = card->name; *p && n + 1 < sizeof plain; p++)
        plain[n++] = (char)(isalnum((unsigned char)*p) ? *p : '-');
    plain[n] = '\0';
    snprintf(name, sizeof name, "%s-%u.%u-driver%u-cublaslt%" PRIu64 ".tune", plain, card->major,
             card->minor, card->driver, card->library);
    return path_join(out, PATH_MAX, dir, name, e);
}

enum q_code tune_load(struct tune_table *t, const struct tune_card *card, const char *dir,
                      struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    enum q_code rc = path_of(path, card, dir, e);
    if (!rc && !(rc = file_read(&text, path, TUNE_FILE_MAX, e)) &&
        (rc = tune_parse(t, card, buf_str(&text), text.len, e)))
        q_wrap(e, "%.100s", path);
    buf_release(&text);
    return rc;
}

/* dir and the folders above it. */
static enum q_code make_dirs(const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path)
        return q_fail(e, Q_TOO_LARGE, "the path has more than %d bytes: %.100s", PATH_MAX, dir);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0777); /* an error shows at the last one */
            *p = '/';
        }
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return q_fail(e, Q_IO, "%.150s: cannot create the folder: %s", dir, strerror(errno));
    return Q_OK;
}

enum q_code tune_save(struct tune_table *t, const struct tune_card *card, const char *dir,
                      struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    struct tune_table there = TUNE_TABLE_INIT;
    struct q_err ignored = Q_ERR_INIT;
    enum q_code rc;
    if ((rc = path_of(path, card, dir, e)) || (rc = make_dirs(dir, e)))
        return rc;
    if (!tune_load(&there, card, dir, &ignored)) /* a file that is no good is replaced */
        for (size_t i = 0; i < there.n && !rc; i++)
            if (!tune_find(t, &there.entries[i].shape, there.entries[i].bucket))
                rc = tune_add(t, &there.entries[i], e);
    if (rc == Q_TOO_LARGE) { /* ours are enough */
        rc = Q_OK;
        q_err_reset(e);
    }
    tune_print(&text, t, card);
    if (!rc && !(rc = buf_check(&text, path, e)))
        rc = file_write(path, text.data, text.len, 0666, e);
    tune_table_release(&there);
    buf_release(&text);
    return rc;
}
