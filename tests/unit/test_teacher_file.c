/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a teacher's log-probabilities: what is written is read back, in any order and
 * packing; writing goes on after an interruption at any byte; another teacher's folder is refused;
 * and no changed byte gives other numbers. */
#include <fcntl.h>
#include <math.h>
#include <sys/file.h>
#include "engine/distill/teacher_file.h"
#include "engine/distill/teacher_writer.h"
#include "folder.h"

enum { N_SEQUENCE = 9, TOP_K = 4, ROWS_MAX = 40, VOCAB = 300 };

static struct q_err e;

static struct sequence { /* and its log-probabilities */
    uint32_t n, n_counted, ids[ROWS_MAX];
    int32_t labels[ROWS_MAX]; /* of rows */
    uint32_t top_ids[ROWS_MAX * TOP_K];
    float logprobs[ROWS_MAX * TOP_K];
} sequences[N_SEQUENCE];

static void make_sequence(struct sequence *s, uint32_t i)
{
    *s = (struct sequence){.n = 3 + 4 * i};
    for (uint32_t r = 0; r < s->n; r++) {
        s->ids[r] = (i * 57 + r * 13) % VOCAB;
        s->labels[r] = r + 1 == s->n || (r + i) % 4 == 0 ? -1 : 7;
        if (s->labels[r] < 0)
            continue;
        for (uint32_t k = 0; k < TOP_K; k++) {
            const uint32_t at = s->n_counted * TOP_K + k;
            s->top_ids[at] = r + k * 60 + (k * i) % 5;
            s->logprobs[at] = -0.25f * (float)((k * 7 + r + i) % 11) - 0.125f;
        }
        s->n_counted++;
    }
}

static int setup(void **state)
{
    static struct folder f;
    q_err_reset(&e);
    for (uint32_t i = 0; i < N_SEQUENCE; i++)
        make_sequence(&sequences[i], i);
    folder_init(&f);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    folder_release(*state);
    return 0;
}

/* ---- writing ---- */

static struct teacher_writer_options options_of(const char *dir)
{
    return (struct teacher_writer_options){dir, TOP_K, VOCAB, "large-model", 700};
}

static FALLIBLE add(struct teacher_writer *w, const struct sequence *s)
{
    const struct teacher_sequence x = {
        .key = teacher_key_of(s->ids, s->labels, s->n),
        .n_row = s->n,
        .n_counted = s->n_counted,
        .ids = s->top_ids,
        .logprobs = s->logprobs,
    };
    return teacher_writer_has(w, &x.key) ? Q_OK : teacher_writer_add(w, &x, &e);
}

/* The first n sequences. */
static void write_folder(const char *dir, uint32_t n, bool finish)
{
    const struct teacher_writer_options o = options_of(dir);
    struct teacher_writer *w;
    assert_ok(teacher_writer_open(&w, &o, &e), &e);
    for (uint32_t i = 0; i < n; i++)
        assert_ok(add(w, &sequences[i]), &e);
    assert_int_equal(teacher_writer_count(w), n);
    if (finish)
        assert_ok(teacher_writer_finish(w, &e), &e);
    teacher_writer_close(w);
}

/* ---- reading ---- */

struct rows {
    struct micro_batch b;
    uint32_t ids[N_SEQUENCE * ROWS_MAX];
    int32_t labels[N_SEQUENCE * ROWS_MAX];
    struct train_segment segments[N_SEQUENCE];
};

static void append(struct rows *r, const struct sequence *s)
{
    r->segments[r->b.n_segment++] = (struct train_segment){r->b.n_row, s->n};
    memcpy(r->ids + r->b.n_row, s->ids, s->n * sizeof *s->ids);
    memcpy(r->labels + r->b.n_row, s->labels, s->n * sizeof *s->labels);
    r->b.n_row += s->n;
    r->b.n_counted += s->n_counted;
    r->b.ids = r->ids;
    r->b.labels = r->labels;
    r->b.segments = r->segments;
}

static void check_row(const struct teacher_rows *got, uint32_t row, const struct sequence *s,
                      uint32_t i)
{
    for (uint32_t k = 0; k < TOP_K; k++) {
        assert_int_equal(got->ids[row * got->stride + k], s->top_ids[i * TOP_K + k]);
        assert_true(got->z[row * got->stride + k] == s->logprobs[i * TOP_K + k]);
    }
}

/* All rows that count, `chunk` at a time, of the sequences in this order. */
static void check_rows(struct teacher_file *f, const uint32_t *order, uint32_t n, uint32_t chunk)
{
    static struct rows r;
    static uint32_t asked[N_SEQUENCE * ROWS_MAX], of[N_SEQUENCE * ROWS_MAX],
        number[N_SEQUENCE * ROWS_MAX];
    struct teacher_source source;
    uint32_t n_asked = 0;
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < n; i++) {
        const struct sequence *s = &sequences[order[i]];
        for (uint32_t t = 0, c = 0; t < s->n; t++)
            if (s->labels[t] >= 0) {
                asked[n_asked] = r.b.n_row + t;
                of[n_asked] = order[i];
                number[n_asked++] = c++;
            }
        append(&r, s);
    }
    assert_int_equal(n_asked, r.b.n_counted);
    assert_ok(teacher_file_check(f, &r.b, &e), &e);
    assert_ok(teacher_file_source(f, 0, VOCAB, &source, &e), &e);
    assert_int_equal(source.n_vocab, VOCAB);
    for (uint32_t at = 0; at < n_asked; at += chunk) {
        struct teacher_rows got;
        const uint32_t m = n_asked - at < chunk ? n_asked - at : chunk;
        assert_ok(source.rows(source.ctx, &r.b, asked + at, m, &got, &e), &e);
        assert_int_equal(got.n_col, TOP_K);
        for (uint32_t i = 0; i < m; i++)
            check_row(&got, i, &sequences[of[at + i]], number[at + i]);
    }
}

static void check_folder(const char *dir)
{
    static const uint32_t orders[][4] = {{0, 1, 2, 3}, {8, 2, 8, 5}, {4, 7, 6, 0}};
    struct teacher_file *f;
    uint64_t n_position = 0;
    assert_ok(teacher_file_open(&f, dir, &e), &e);
    for (uint32_t i = 0; i < N_SEQUENCE; i++)
        n_position += sequences[i].n_counted;
    const struct teacher_file_info *info = teacher_file_info(f);
    assert_int_equal(info->n_sequence, N_SEQUENCE);
    assert_int_equal(info->n_position, n_position);
    assert_int_equal(info->top_k, TOP_K);
    assert_string_equal(info->teacher, "large-model");
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t chunk = 1; chunk < 60; chunk += 13)
            check_rows(f, orders[i], 4, chunk);
    teacher_file_close(f);
}

static void test_round_trip(void **state)
{
    struct folder *f = *state;
    char path[PATH_MAX];
    write_folder(f->path, N_SEQUENCE, true);
    check_folder(f->path);
    assert_ok(teacher_shard_path(path, f->path, 2, false, &e), &e);
    assert_true(file_exists(path)); /* several shards */
}

/* ---- going on ---- */

/* Without waiting for the disk. */
static void overwrite(const char *path, const char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A process that ends behind any byte of its last shard loses at most one sequence. */
static void test_resume(void **state)
{
    struct folder *f = *state;
    struct buf whole = BUF_INIT;
    char path[PATH_MAX], dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s/part", f->path);
    write_folder(dir, 2, false);
    assert_ok(teacher_shard_path(path, dir, 0, true, &e), &e);
    assert_ok(file_read(&whole, path, 1 << 20, &e), &e);
    for (size_t n = 0, next; n <= whole.len; n = next) {
        next = n + 41 < whole.len || n == whole.len ? n + 41 : whole.len;
        folder_remove(dir);
        mkdir(dir, 0700);
        overwrite(path, whole.data, n);
        const struct teacher_writer_options o = options_of(dir);
        struct teacher_writer *w;
        assert_ok(teacher_writer_open(&w, &o, &e), &e);
        const uint64_t left = teacher_writer_count(w);
        assert_true(n == whole.len ? left == 2 : left < 2);
        teacher_writer_close(w);
        write_folder(dir, N_SEQUENCE, true);
        check_folder(dir);
    }
    buf_release(&whole);
}

/* What is complete is not written again. */
static void test_nothing_new(void **state)
{
    struct folder *f = *state;
    struct file_stamp before, after;
    char path[PATH_MAX];
    write_folder(f->path, N_SEQUENCE, true);
    assert_ok(teacher_shard_path(path, f->path, 0, false, &e), &e);
    assert_true(file_stamp(&before, path));
    write_folder(f->path, N_SEQUENCE, true);
    assert_true(file_stamp(&after, path));
    assert_memory_equal(&before, &after, sizeof before);
    check_folder(f->path);
}

/* ---- what is refused ---- */

static void test_other_settings(void **state)
{
    struct folder *f = *state;
    struct teacher_writer *w;
    struct teacher_writer_options o = options_of(f->path);
    for (int finished = 0; finished < 2; finished++) {
        write_folder(f->path, 2, finished);
        o = options_of(f->path);
        o.top_k = 5;
        assert_fails(teacher_writer_open(&w, &o, &e), Q_MISMATCH,
                     "has the top 4, asked for is the top 5", &e);
        o = options_of(f->path);
        o.n_vocab = 0;
        assert_fails(teacher_writer_open(&w, &o, &e), Q_MISMATCH, "a vocabulary of 300", &e);
        o = options_of(f->path);
        o.teacher = "other";
        assert_fails(teacher_writer_open(&w, &o, &e), Q_MISMATCH,
                     "is of teacher \"large-model\", not of \"other\"", &e);
    }
    const int fd = open(f->path, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    o = options_of(f->path);
    assert_fails(teacher_writer_open(&w, &o, &e), Q_UNAVAILABLE, "another process", &e);
    close(fd);
}

static void test_missing(void **state)
{
    static struct rows r;
    struct folder *f = *state;
    struct teacher_file *file;
    struct teacher_source source;
    struct teacher_rows got;
    char dir[PATH_MAX];
    const uint32_t row = 1;
    snprintf(dir, sizeof dir, "%s/empty", f->path);
    assert_fails(teacher_file_open(&file, dir, &e), Q_NOT_FOUND, dir, &e);
    write_folder(dir, 2, false);
    assert_fails(teacher_file_open(&file, dir, &e), Q_NOT_FOUND, "was not finished", &e);
    write_folder(dir, 2, true);
    assert_ok(teacher_file_open(&file, dir, &e), &e);
    memset(&r, 0, sizeof r);
    append(&r, &sequences[0]);
    append(&r, &sequences[5]);
    assert_fails(teacher_file_check(file, &r.b, &e), Q_NOT_FOUND,
                 "the sequence of 23 tokens that begins with 285, 298, 11", &e);
    memset(&r, 0, sizeof r);
    append(&r, &sequences[0]);
    r.labels[0] = 3; /* a row more that counts */
    assert_ok(teacher_file_source(file, 2, VOCAB, &source, &e), &e);
    assert_fails(source.rows(source.ctx, &r.b, &row, 1, &got, &e), Q_NOT_FOUND, "sequence of 3",
                 &e);
    assert_fails(teacher_file_source(file, TOP_K + 1, VOCAB, &source, &e), Q_INVALID,
                 "has the top 4", &e);
    teacher_file_close(file);
}

/* ---- the likeliest, and a smaller student ---- */

static void test_fewer(void **state)
{
    static struct rows r;
    struct folder *f = *state;
    struct teacher_file *file;
    struct teacher_source source;
    struct teacher_rows got;
    const struct sequence *s = &sequences[8];
    uint32_t row = 1; /* the second that counts is row 2 */
    while (s->labels[row] < 0)
        row++;
    write_folder(f->path, N_SEQUENCE, true);
    assert_ok(teacher_file_open(&file, f->path, &e), &e);
    memset(&r, 0, sizeof r);
    append(&r, s);
    for (uint32_t k = 1; k <= TOP_K; k++) {
        float least = 0;
        assert_ok(teacher_file_source(file, k, VOCAB, &source, &e), &e);
        assert_ok(source.rows(source.ctx, &r.b, &row, 1, &got, &e), &e);
        assert_int_equal(got.n_col, k);
        for (uint32_t i = 0; i < k; i++) {
            assert_true(i == 0 || got.ids[i] > got.ids[i - 1]);
            least = fminf(least, got.z[i]);
        }
        uint32_t n_larger = 0;
        for (uint32_t i = 0; i < TOP_K; i++)
            n_larger += s->logprobs[i] > least;
        assert_true(n_larger < k);
    }
    /* of ids 1, 62, 128, 183 the student has two; two free ids stand beside them */
    assert_ok(teacher_file_source(file, 4, s->top_ids[2], &source, &e), &e);
    assert_ok(source.rows(source.ctx, &r.b, &row, 1, &got, &e), &e);
    uint32_t n_finite = 0;
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(i == 0 || got.ids[i] > got.ids[i - 1]);
        assert_true(got.ids[i] < s->top_ids[2]);
        n_finite += got.z[i] > -INFINITY;
    }
    assert_int_equal(n_finite, 2);
    teacher_file_close(file);
}

/* ---- changed bytes ---- */

/* With one byte changed the shard is refused, or its sequence is; a byte that nothing reads
 * changes nothing. */
static void check_changed(const char *dir, const struct rows *r, const struct teacher_rows *want,
                          size_t at)
{
    struct teacher_file *f;
    struct teacher_source source;
    struct teacher_rows got;
    struct q_err why = Q_ERR_INIT;
    uint32_t rows[ROWS_MAX], n = 0;
    if (teacher_file_open(&f, dir, &why))
        return;
    for (uint32_t i = 0; i < r->b.n_row; i++)
        if (r->labels[i] >= 0)
            rows[n++] = i;
    assert_ok(teacher_file_source(f, 0, VOCAB, &source, &e), &e);
    if (!source.rows(source.ctx, &r->b, rows, n, &got, &why))
        for (uint32_t i = 0; i < n * TOP_K; i++)
            if (got.ids[i] != want->ids[i] || got.z[i] != want->z[i])
                fail_msg("byte %zu was changed: number %u is another", at, i);
    teacher_file_close(f);
}

static void test_changed_bytes(void **state)
{
    static struct rows r;
    struct folder *f = *state;
    struct buf whole = BUF_INIT;
    struct teacher_rows want = {.ids = sequences[1].top_ids, .z = sequences[1].logprobs};
    char path[PATH_MAX];
    uint32_t n_refused = 0;
    write_folder(f->path, 2, true);
    memset(&r, 0, sizeof r);
    append(&r, &sequences[1]);
    assert_ok(teacher_shard_path(path, f->path, 0, false, &e), &e);
    assert_ok(file_read(&whole, path, 1 << 20, &e), &e);
    for (size_t i = 0; i < whole.len; i++) {
        struct teacher_file *file;
        struct q_err why = Q_ERR_INIT;
        whole.data[i] ^= 0x41;
        overwrite(path, whole.data, whole.len);
        whole.data[i] ^= 0x41;
        check_changed(f->path, &r, &want, i);
        if (teacher_file_open(&file, f->path, &why))
            n_refused++;
        else
            teacher_file_close(file);
    }
    assert_true(n_refused >= sizeof(struct teacher_shard_head)); /* all of the head, the index */
    for (size_t n = 0; n < whole.len; n++) {
        struct teacher_file *file;
        overwrite(path, whole.data, n);
        assert_fails(teacher_file_open(&file, f->path, &e), Q_CORRUPT, path, &e);
    }
    buf_release(&whole);
}

/* Shards of two teachers in one folder. */
static void test_mixed(void **state)
{
    struct folder *f = *state;
    struct teacher_writer *w;
    struct teacher_file *file;
    char from[PATH_MAX], to[PATH_MAX], dir[PATH_MAX];
    struct teacher_writer_options o = options_of(f->path);
    snprintf(dir, sizeof dir, "%s/other", f->path);
    write_folder(f->path, 1, true);
    o.dir = dir;
    o.teacher = "small-model";
    assert_ok(teacher_writer_open(&w, &o, &e), &e);
    assert_ok(add(w, &sequences[1]), &e);
    assert_ok(teacher_writer_finish(w, &e), &e);
    teacher_writer_close(w);
    assert_ok(teacher_shard_path(from, dir, 0, false, &e), &e);
    assert_ok(teacher_shard_path(to, f->path, 1, false, &e), &e);
    assert_int_equal(rename(from, to), 0);
    assert_fails(teacher_file_open(&file, f->path, &e), Q_MISMATCH, "is of teacher \"small-model\"",
                 &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_new, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_settings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fewer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changed_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mixed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
