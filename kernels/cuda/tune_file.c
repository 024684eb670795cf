/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/tune_file.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/mem.h"

#define FIRST_LINE "quire-tune 2"
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
    buf_printf(out, "%s %zu", x->choice.by_sums ? "sums" : "lt", x->choice.workspace_bytes);
    for (size_t i = 0; i < 8; i++)
        buf_printf(out, " %016" PRIx64, x->choice.algo.data[i]);
    buf_add_char(out, '\n');
}

static void print_head(struct buf *out, const struct tune_card *card)
{
    buf_add_str(out, FIRST_LINE "\n");
    card_file_head(out, &card->card);
    buf_printf(out, "library %" PRIu64 "\n", card->library);
}

void tune_print(struct buf *out, const struct tune_table *t, const struct tune_card *card)
{
    const size_t from = out->len;
    print_head(out, card);
    for (size_t i = 0; i < t->n; i++)
        print_entry(out, &t->entries[i]);
    card_file_sum(out, from);
}

/* ---- reading ---- */
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
    if (!words_next(w, word, sizeof word))
        return false;
    while (kind < LT_KINDS && strcmp(kind_names[kind], word) != 0)
        kind++;
    if (kind == LT_KINDS || !words_number(w, &n_out, 10, SIDE_MAX) ||
        !words_number(w, &n_in, 10, SIDE_MAX) || !words_next(w, word, sizeof word))
        return false;
    *s = (struct lt_shape){
        .kind = (enum lt_kind)kind,
        .n_out = (uint32_t)n_out,
        .n_in = (uint32_t)n_in,
    };
    return n_out && n_in && read_flags(s, word);
}

/* Is there such a way to make this product? */
static bool has_way(const struct lt_shape *s, bool by_sums)
{
    return by_sums ? s->target == LT_TO_SUMS || s->kind == LT_KIND_E4M3 : s->target == LT_TO_Y;
}

static bool read_choice(struct lt_choice *c, const struct lt_shape *s, struct words *w)
{
    char word[8];
    uint64_t bytes;
    *c = (struct lt_choice){.is_own = true};
    if (!words_next(w, word, sizeof word))
        return false;
    if (strcmp(word, "own") == 0)
        return *w->at == '\0';
    c->by_sums = strcmp(word, "sums") == 0;
    if ((!c->by_sums && strcmp(word, "lt") != 0) || !has_way(s, c->by_sums) ||
        !words_number(w, &bytes, 10, UINT32_MAX))
        return false;
    c->is_own = false;
    c->workspace_bytes = (size_t)bytes;
    for (size_t i = 0; i < 8; i++)
        if (!words_number(w, &c->algo.data[i], 16, UINT64_MAX))
            return false;
    return *w->at == '\0';
}

static bool read_entry(struct tune_entry *x, const char *line)
{
    struct words w = {line};
    uint64_t rows;
    if (!read_shape(&x->shape, &w) || !words_number(&w, &rows, 10, UINT32_MAX) || rows == 0)
        return false;
    x->bucket = lt_bucket((uint32_t)rows);
    return lt_bucket_rows(x->bucket) == rows && read_choice(&x->choice, &x->shape, &w);
}

static enum q_code read_lines(struct tune_table *t, const char *text, size_t n, uint32_t line,
                              struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t at = 0; at < n && !rc; line++) {
        char copy[TEXT_MAX];
        struct tune_entry x;
        if ((rc = card_file_line(copy, sizeof copy, &at, text, n, line, e)))
            return rc;
        if (!read_entry(&x, copy))
            return q_fail(e, Q_CORRUPT, "line %u is malformed: \"%.60s\"", line, copy);
        rc = tune_add(t, &x, e);
    }
    return rc;
}

enum q_code tune_parse(struct tune_table *t, const struct tune_card *card, const char *text,
                       size_t n, struct q_err *e)
{
    struct buf head = BUF_INIT;
    size_t begin = 0, end = 0;
    print_head(&head, card);
    enum q_code rc = buf_check(&head, "tune file", e);
    if (!rc && !(rc = card_file_check(&begin, &end, &head, text, n, e)))
        rc = read_lines(t, text + begin, end - begin, 6, e);
    if (rc)
        tune_table_release(t);
    buf_release(&head);
    return rc;
}

/* ---- files ---- */
static enum q_code path_of(char out[PATH_MAX], const struct tune_card *card, const char *dir,
                           struct q_err *e)
{
    char suffix[48];
    snprintf(suffix, sizeof suffix, "-cublaslt%" PRIu64 ".tune", card->library);
    return card_file_path(out, dir, &card->card, suffix, e);
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

enum q_code tune_save(struct tune_table *t, const struct tune_card *card, const char *dir,
                      struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    struct tune_table there = TUNE_TABLE_INIT;
    struct q_err ignored = Q_ERR_INIT;
    enum q_code rc;
    if ((rc = path_of(path, card, dir, e)) || (rc = card_file_make_dirs(dir, e)))
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
