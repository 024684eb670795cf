/* SPDX-License-Identifier: Apache-2.0 */
/* dataset: lines to samples, samples to sequences, sequences to micro batches of a step, and the
 * file of tokenized data. */
#include <fcntl.h>
#include <sys/wait.h>
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/dataset.h"
#include "engine/distill/dataset_internal.h"
#include "engine/distill/sequence_internal.h"
#include "engine/distill/sequence_order.h"
#include "folder.h"

static struct q_err e;
static struct folder f;
static struct team *team;
static struct dataset *d;
static char path[2][128], cache[128];
static const char *paths[2] = {path[0], path[1]};

static int setup(void **state)
{
    (void)state;
    q_err_reset(&e);
    folder_init(&f);
    snprintf(path[0], sizeof path[0], "%s/a.jsonl", f.path);
    snprintf(path[1], sizeof path[1], "%s/b.jsonl", f.path);
    snprintf(cache, sizeof cache, "%s/cache", f.path);
    paths[0] = path[0];
    paths[1] = path[1];
    return team_new(&team, 2, false, &e) != Q_OK;
}

static int teardown(void **state)
{
    (void)state;
    dataset_free(d);
    d = NULL;
    team_free(team);
    folder_release(&f);
    return 0;
}

static struct dataset_options options(void)
{
    return (struct dataset_options){
        .paths = paths,
        .n_path = 1,
        .seq_len = 16,
        .vocab_size = 100,
        .global_batch = 1,
        .micro_batch = 1,
        .team = team,
    };
}

static void open_data(const struct dataset_options *o)
{
    dataset_free(d);
    d = NULL;
    assert_ok(dataset_open(&d, o, &e), &e);
}

/* "ids | labels of rows" of a micro batch, segments apart. */
static const char *shown(uint64_t step, uint32_t i)
{
    static char text[4096];
    struct micro_batch b;
    size_t n = 0;
    assert_ok(dataset_batch(d, step, i, 3, &b, &e), &e);
    uint32_t row = 0, n_counted = 0;
    for (uint32_t k = 0; k < b.n_segment; k++) {
        assert_int_equal(b.segments[k].row, row);
        n += (size_t)snprintf(text + n, sizeof text - n, k ? "; " : "");
        for (uint32_t t = 0; t < b.segments[k].n_row; t++, row++) {
            assert_int_equal(b.positions[row], t);
            n_counted += b.labels[row] >= 0;
            n += (size_t)snprintf(text + n, sizeof text - n, t ? " %u" : "%u", b.ids[row]);
            if (b.labels[row] >= 0)
                n += (size_t)snprintf(text + n, sizeof text - n, ">%d", b.labels[row]);
        }
    }
    assert_int_equal(row, b.n_row);
    assert_int_equal(n_counted, b.n_counted);
    return text;
}

static uint64_t n_counted(uint64_t step)
{
    uint64_t n = 0;
    assert_ok(dataset_n_counted(d, step, &n, &e), &e);
    return n;
}

/* ---- lines ---- */

static void test_ids(void **state)
{
    (void)state;
    struct dataset_options o = options();
    folder_text(&f, "a.jsonl",
                "\xef\xbb\xbf{\"input_ids\": [1, 2, 3]}\r\n"
                "\n"
                "  {\"labels\": [-100, -100, 9, 4, -100], \"input_ids\": [5, 6, 7, 4, 0]}  \n"
                "{\"input_ids\": [8, 9, 0, 0], \"attention_mask\": [1, 1, 0, 0], \"id\": \"x\"}\n"
                "{\"input_ids\": [3], \"labels\": [3]}\n"
                "{\"input_ids\": [1, 2], \"labels\": [1, -100]}");
    open_data(&o);
    assert_string_equal(shown(1, 0), "1>2 2>3 3");
    assert_string_equal(shown(2, 0), "5 6>9 7>4 4 0");
    assert_string_equal(shown(3, 0), "8>9 9");
    assert_string_equal(shown(4, 0), "3");
    assert_string_equal(shown(5, 0), "1 2");
    assert_string_equal(shown(6, 0), "1>2 2>3 3"); /* the next epoch */
    const struct dataset_counts *n = dataset_counts(d);
    assert_int_equal(n->n_line, 5);
    assert_int_equal(n->n_sample, 5);
    assert_int_equal(n->n_token, 13);
    assert_int_equal(n->n_counted, 5);
    assert_int_equal(n->n_empty, 2);
    assert_int_equal(n->n_broken + n->n_truncated, 0);
    assert_int_equal(n->n_sequence, 5);
    assert_int_equal(n->row_max, 5);
}

/* A reason for each; a good line before and behind. */
static const struct {
    const char *line, *reason;
} broken[] = {
    {"{\"input_ids\": [1, 2", "not valid JSON"},
    {"nonsense", "not valid JSON"},
    {"[1, 2]", "expected a JSON object, got an array"},
    {"{\"prompt\": \"x\"}", "it has no input_ids, text or messages"},
    {"{\"text\": \"x\", \"input_ids\": [1]}", "it has input_ids and text"},
    {"{\"input_ids\": 5}", "input_ids: expected an array, got an integer"},
    {"{\"input_ids\": []}", "input_ids has no token"},
    {"{\"input_ids\": [1, \"2\"]}", "input_ids[1]: expected a token id, got a string"},
    {"{\"input_ids\": [1, 2.0]}", "input_ids[1]: expected a token id, got a number"},
    {"{\"input_ids\": [1, 100]}", "input_ids[1] is 100, expected 0 to 99"},
    {"{\"input_ids\": [1, -1]}", "input_ids[1] is -1, expected 0 to 99"},
    {"{\"input_ids\": [1, 2], \"labels\": [1]}", "labels has 1 entries, input_ids 2"},
    {"{\"input_ids\": [1, 2], \"labels\": {}}", "labels: expected an array, got an object"},
    {"{\"input_ids\": [1, 2], \"labels\": [1, -1]}", "labels[1] is -1, expected 0 to 99, or -100"},
    {"{\"input_ids\": [1, 2], \"labels\": [1, 100]}", "labels[1] is 100"},
    {"{\"input_ids\": [1, 2], \"labels\": [1, null]}", "labels[1]: expected a token id"},
    {"{\"input_ids\": [1, 2], \"attention_mask\": [0, 1]}", "attention_mask[1] is 1 behind a 0"},
    {"{\"input_ids\": [1, 2], \"attention_mask\": [1, 2]}", "attention_mask[1]: expected 0 or 1"},
    {"{\"input_ids\": [1, 2], \"attention_mask\": [0, 0]}", "input_ids has no token that"},
    {"{\"input_ids\": [99999999999999999999]}", "input_ids[0]: expected a token id"},
    {"{\"input_ids\": [1, 4294967297]}", "input_ids[1] is 4294967297, expected 0 to 99"},
    {"{\"input_ids\": [1, 2], \"labels\": [1, 4294967296]}", "labels[1] is 4294967296"},
    {"{\"input_ids\": [1, true]}", "input_ids[1]: expected a token id, got a boolean"},
    {"{\"input_ids\": [1, 1e1]}", "input_ids[1]: expected a token id, got a number"},
    {"{\"input_ids\": [1, 2], \"input_ids\": [3, 4]}", "has a key twice in one object: line 1"},
    {"{\"input_ids\": [1, 2], \"x\": [{\"a\": 1, \"a\": 1}]}", "has a key twice in one object"},
    {"{\"input_ids\": [99999999999999999999], \"a\": 1, \"a\": 2}", "has a key twice"},
    {"{\"input_ids\": [1, 2], \"x\": \"\xff\xfe\"}", "not valid JSON"},
    {"{\"input_ids\": [1, 2], \"x\": \"\xc0\x80\"}", "not valid JSON"},
    {"{\"input_ids\": [1, 2], \"x\": \"\xed\xa0\x80\"}", "not valid JSON"},
    {"\xef\xbb\xbf{\"input_ids\": [1, 2]}", "not valid JSON"}, /* a mark in the middle of a file */
};
#define N_BROKEN (sizeof broken / sizeof *broken)

static void test_broken(void **state)
{
    (void)state;
    char text[1024], want[64];
    struct dataset_options o = options();
    for (size_t i = 0; i < N_BROKEN; i++) {
        snprintf(text, sizeof text, "\n%s\n", broken[i].line);
        folder_text(&f, "a.jsonl", text);
        assert_fails(dataset_open(&d, &o, &e), Q_CORRUPT, broken[i].reason, &e);
        snprintf(want, sizeof want, "/a.jsonl:2: ");
        assert_fails(dataset_open(&d, &o, &e), Q_CORRUPT, want, &e);
        snprintf(text, sizeof text, "{\"input_ids\": [1, 2]}\n%s\n{\"input_ids\": [3, 4]}\n",
                 broken[i].line);
        folder_text(&f, "a.jsonl", text);
        open_data(&o);
        assert_int_equal(dataset_counts(d)->n_broken, 1);
        assert_int_equal(dataset_counts(d)->n_line, 3);
        assert_string_equal(shown(1, 0), "1>2 2");
        assert_string_equal(shown(2, 0), "3>4 4");
    }
}

static void test_no_data(void **state)
{
    (void)state;
    struct dataset_options o = options();
    assert_fails(dataset_open(&d, &o, &e), Q_NOT_FOUND, "a.jsonl", &e);
    paths[0] = f.path;
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "is a folder, expected a JSONL file", &e);
    paths[0] = path[0];
    folder_text(&f, "a.jsonl", "");
    assert_fails(dataset_open(&d, &o, &e), Q_CORRUPT, "no usable sample in 0 lines", &e);
    folder_text(&f, "a.jsonl",
                "{\"input_ids\": [1]}\n{\"input_ids\": [7, 8], \"labels\": [7, -100]}");
    assert_fails(dataset_open(&d, &o, &e), Q_CORRUPT,
                 "no usable sample in 2 lines: 0 are broken, 2 have no token that counts", &e);
    folder_text(&f, "a.jsonl", "{\"text\": \"x\"}\n");
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "need a model folder with a tokenizer", &e);
    o.tokenizer_dir = f.path;
    assert_fails(dataset_open(&d, &o, &e), Q_NOT_FOUND, "which need a tokenizer", &e);
}

/* A byte 0 is a byte like another one: it ends no line and hides nothing behind it. */
static void test_zero_bytes(void **state)
{
    (void)state;
    static const char text[] = "{\"input_ids\": [1, 2]}\n"
                               "{\"input_ids\": [3, 4]}\0\n"
                               "\0\n"
                               "{\"x\": \"\0\", \"input_ids\": [5, 6]}\n"
                               "{\"x\": \"\\u0000\", \"input_ids\": [7, 8]}\n";
    struct dataset_options o = options();
    folder_write(&f, "a.jsonl", text, sizeof text - 1);
    open_data(&o);
    assert_int_equal(dataset_counts(d)->n_line, 5);
    assert_int_equal(dataset_counts(d)->n_broken, 3);
    assert_string_equal(shown(1, 0), "1>2 2");
    assert_string_equal(shown(2, 0), "7>8 8");
}

/* What is no JSONL file is named as what it is, before anything waits for it or reads it. */
static void test_other_files(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *message;
    } rows[] = {
        {"\x1f\x8b\x08\0\0\0\0\0\0\3", 10, "compressed by gzip, expected a JSONL file in UTF-8"},
        {"\x28\xb5\x2f\xfd\x20\0", 6, "compressed by zstd"},
        {"\xfd\x37zXZ\0\0", 7, "compressed by xz"},
        {"BZh91AY", 7, "compressed by bzip2"},
        {"PK\x03\x04\x14\0", 6, "is a zip archive"},
        {"PAR1\x15\x04", 6, "is a Parquet file"},
        {"ARROW1\0\0", 8, "is an Arrow file"},
        {"\xff\xfe{\0\"\0", 6, "is UTF-16 text"},
        {"\xfe\xff\0{\0\"", 6, "is UTF-16 text"},
    };
    struct dataset_options o = options();
    char fifo[128];
    for (size_t k = 0; k < 2; k++, o.cache_dir = cache)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            folder_write(&f, "a.jsonl", rows[i].bytes, rows[i].n);
            assert_fails(dataset_open(&d, &o, &e), Q_INVALID, rows[i].message, &e);
        }
    snprintf(fifo, sizeof fifo, "%s/fifo", f.path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    paths[0] = fifo;
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "is a FIFO", &e);
    paths[0] = "/dev/zero";
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "/dev/zero is a device", &e);
    paths[0] = path[0];
    folder_write(&f, "a.jsonl", "\x1f", 1); /* shorter than any mark */
    assert_fails(dataset_open(&d, &o, &e), Q_CORRUPT, "no usable sample in 1 lines", &e);
}

static void test_options(void **state)
{
    (void)state;
    struct dataset_options o = options();
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n");
    o.n_path = 0;
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "no file", &e);
    o = options();
    o.seq_len = 1;
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "sequence length: 1, expected 2", &e);
    o = options();
    o.vocab_size = 0;
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "vocabulary size", &e);
    o = options();
    o.global_batch = 3;
    o.micro_batch = 2;
    assert_fails(dataset_open(&d, &o, &e), Q_INVALID, "a multiple of the micro batch size (2)", &e);
}

/* Longer than the block that is read at once, and longer than a line may be. */
static void test_long_lines(void **state)
{
    (void)state;
    struct dataset_options o = options();
    FILE *out = fopen(path[0], "w");
    assert_non_null(out);
    fprintf(out, "{\"input_ids\": [1, 2]}\n{\"x\": \"%*s\", \"input_ids\": [3, 4]}\n", 9 << 20, "");
    fprintf(out, "{\"x\": \"%*s\", \"input_ids\": [5, 6]}\n", (int)DATASET_LINE_MAX + (9 << 20),
            "");
    fprintf(out, "{\"input_ids\": [7, 8]}\n");
    fclose(out);
    open_data(&o);
    assert_int_equal(dataset_counts(d)->n_line, 4);
    assert_int_equal(dataset_counts(d)->n_broken, 1);
    assert_string_equal(shown(1, 0), "1>2 2");
    assert_string_equal(shown(2, 0), "3>4 4");
    assert_string_equal(shown(3, 0), "7>8 8");
}

/* ---- sequences ---- */

static void write_lengths(const uint32_t *n, size_t n_line)
{
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < n_line; i++) {
        buf_add_str(&b, "{\"input_ids\": [");
        for (uint32_t k = 0; k < n[i]; k++)
            buf_printf(&b, k ? ", %zu" : "%zu", i + 1);
        buf_add_str(&b, "]}\n");
    }
    folder_write(&f, "a.jsonl", b.data, b.len);
    buf_release(&b);
}

static void test_packing(void **state)
{
    (void)state;
    struct dataset_options o = options();
    o.packing = true;
    o.seq_len = 5;
    o.micro_batch = o.global_batch = 2;
    write_lengths((const uint32_t[]){3, 4, 2, 7, 1, 2}, 6);
    open_data(&o);
    /* 3 + 2 is full first; 7 is cut to 5; 1 has no token that counts and is left out */
    assert_string_equal(shown(1, 0), "1>1 1>1 1; 3>3 3; 4>4 4>4 4>4 4>4 4");
    assert_string_equal(shown(2, 0), "2>2 2>2 2>2 2; 6>6 6");
    const struct dataset_counts *n = dataset_counts(d);
    assert_int_equal(n->n_sequence, 4);
    assert_int_equal(n->n_truncated, 1);
    assert_int_equal(n->n_empty, 1);
    assert_int_equal(n->n_token, 16);
    assert_int_equal(n->row_max, 10);
    assert_int_equal(n_counted(1), 7);
    assert_int_equal(n_counted(2), 4);
    o.packing = false;
    open_data(&o);
    assert_int_equal(dataset_counts(d)->n_sequence, 6);
    assert_string_equal(shown(3, 0), "5; 6>6 6");
}

/* Every sample is in one sequence; no sequence is longer than it may be; few are much shorter. */
static void test_packing_all(void **state)
{
    (void)state;
    enum { N = 99 };
    struct dataset_options o = options();
    uint32_t n[N], seen[N + 1] = {0};
    uint64_t n_token = 0;
    o.packing = o.shuffle = true;
    o.seq_len = 64;
    for (uint32_t i = 0; i < N; i++)
        n_token += n[i] = 2 + i * 7919u % 41;
    write_lengths(n, N);
    open_data(&o);
    const struct dataset_counts *c = dataset_counts(d);
    assert_int_equal(c->n_token, n_token);
    assert_true(c->n_sequence * o.seq_len < n_token * 11 / 10 + o.seq_len);
    for (uint64_t step = 1; step <= c->n_sequence; step++) {
        struct micro_batch b;
        assert_ok(dataset_batch(d, step, 0, 0, &b, &e), &e);
        assert_true(b.n_row <= o.seq_len);
        for (uint32_t k = 0; k < b.n_segment; k++) {
            const uint32_t id = b.ids[b.segments[k].row];
            assert_int_equal(b.segments[k].n_row, n[id - 1]);
            seen[id]++;
        }
    }
    for (uint32_t i = 1; i <= N; i++)
        assert_int_equal(seen[i], 1);
}

/* ---- order ---- */

static void test_order(void **state)
{
    (void)state;
    static unsigned char seen[2000];
    for (uint64_t n = 1; n <= 2000; n += n < 70 ? 1 : 311) {
        uint64_t n_fixed = 0;
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            const struct sequence_order o = {.seed = 7, .epoch = 3, .n = n};
            const uint64_t at = sequence_order_at(&o, i);
            assert_true(at < n && !seen[at]);
            seen[at] = 1;
            n_fixed += at == i;
        }
        assert_true(n < 50 || n_fixed < n / 4);
    }
    const struct sequence_order large = {.seed = 1, .epoch = 0, .n = UINT64_MAX / 3};
    assert_true(sequence_order_at(&large, large.n - 1) < large.n);
}

/* Epochs and seeds differ; each takes all; a step is a function of its number alone. */
static void test_shuffle(void **state)
{
    (void)state;
    enum { N = 30, STEPS = 20, G = 6, M = 2 };
    uint32_t n[N], order[3][STEPS * G];
    struct dataset_options o = options();
    o.shuffle = true;
    o.global_batch = G;
    o.micro_batch = M;
    for (uint32_t i = 0; i < N; i++)
        n[i] = 2 + i % 3;
    write_lengths(n, N);
    for (uint32_t pass = 0; pass < 3; pass++) {
        o.seed = pass == 2 ? 8 : 7;
        open_data(&o);
        for (uint32_t k = 0; k < STEPS; k++) {
            const uint32_t step = pass == 1 ? STEPS - k : k + 1;
            uint64_t counted = 0;
            for (uint32_t i = 0; i < G / M; i++) {
                struct micro_batch b;
                assert_ok(dataset_batch(d, step, i, i, &b, &e), &e);
                assert_int_equal(b.n_segment, M);
                counted += b.n_counted;
                for (uint32_t s = 0; s < M; s++)
                    order[pass][(step - 1) * G + i * M + s] = b.ids[b.segments[s].row];
            }
            assert_int_equal(counted, n_counted(step));
        }
    }
    assert_memory_equal(order[0], order[1], sizeof order[0]);
    assert_memory_not_equal(order[0], order[2], sizeof order[0]);
    assert_memory_not_equal(order[0], order[0] + N, N * sizeof order[0][0]);
    for (uint32_t epoch = 0; epoch < STEPS * G / N; epoch++) {
        uint32_t seen[N + 1] = {0};
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(seen[order[0][epoch * N + i]]++, 0);
    }
}

/* Slots keep what they have; several files are one; a batch that is larger than an epoch. */
static void test_slots(void **state)
{
    (void)state;
    struct micro_batch b[3];
    struct dataset_options o = options();
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n");
    folder_text(&f, "b.jsonl", "{\"input_ids\": [3, 4, 5]}");
    o.n_path = 2;
    o.global_batch = 6;
    o.micro_batch = 2;
    open_data(&o);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(dataset_batch(d, 1, i, i, &b[i], &e), &e);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(b[i].n_row, 5);
        assert_int_equal(b[i].ids[0], 1);
        assert_int_equal(b[i].ids[4], 5);
    }
    assert_ptr_not_equal(b[0].ids, b[1].ids);
    assert_int_equal(n_counted(1), 9);
}

/* ---- the file ---- */

static void test_cache(void **state)
{
    (void)state;
    struct dataset_options o = options();
    struct file_stamp before, after;
    char name[256] = "";
    o.cache_dir = cache;
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": \"x\"}\n");
    open_data(&o);
    char key[SEQUENCE_FILE_KEY + 1] = "";
    assert_ok(dataset_key(key, &o, &e), &e);
    snprintf(name, sizeof name, "%s/%s.sequences", cache, key);
    assert_true(file_stamp(&before, name));
    open_data(&o); /* from the file */
    assert_int_equal(dataset_counts(d)->n_broken, 1);
    assert_string_equal(shown(1, 0), "1>2 2");
    assert_true(file_stamp(&after, name));
    assert_memory_equal(&before, &after, sizeof before);

    /* other data of the same size, other options: other files */
    o.seq_len++;
    char other[SEQUENCE_FILE_KEY + 1] = "";
    assert_ok(dataset_key(other, &o, &e), &e);
    assert_string_not_equal(key, other);
    o.seq_len--;
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 3]}\n{\"input_ids\": \"x\"}\n");
    open_data(&o);
    assert_string_equal(shown(1, 0), "1>3 3");
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": \"x\"}\n");

    /* every broken byte is noticed, and the file is made again */
    struct buf bytes = BUF_INIT;
    assert_ok(file_read(&bytes, name, 1 << 20, &e), &e);
    log_setup("test", LOG_ERROR, false);
    for (size_t i = 0; i < bytes.len; i++) {
        if (i >= sizeof(struct sequence_head) && i < SEQUENCE_FILE_HEAD)
            continue; /* room between head and records */
        bytes.data[i] ^= 1;
        assert_ok(file_write(name, bytes.data, bytes.len, 0600, &e), &e);
        bytes.data[i] ^= 1;
        open_data(&o);
        assert_string_equal(shown(1, 0), "1>2 2");
        struct buf again = BUF_INIT;
        assert_ok(file_read(&again, name, 1 << 20, &e), &e);
        assert_int_equal(again.len, bytes.len);
        assert_memory_equal(again.data, bytes.data, bytes.len);
        buf_release(&again);
    }
    for (size_t n = 0; n < bytes.len; n += 7) { /* and every truncation */
        assert_ok(file_write(name, bytes.data, n, 0600, &e), &e);
        open_data(&o);
        assert_string_equal(shown(1, 0), "1>2 2");
    }
    buf_release(&bytes);
}

/* Changed between the hash of the data and the reading: no file says that it is of the data that
 * were hashed. */
static void change_data(void *ctx, uint64_t done, uint64_t total)
{
    (void)total;
    bool *once = ctx;
    if (*once && done)
        folder_text(&f, "a.jsonl", "{\"input_ids\": [5, 6]}\n");
    *once = false;
}

static void test_changed_while_read(void **state)
{
    (void)state;
    struct dataset_options o = options();
    bool once = true;
    o.cache_dir = cache;
    o.n_path = 2;
    paths[0] = path[1];
    paths[1] = path[0];
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n");
    folder_text(&f, "b.jsonl", "{\"input_ids\": [3, 4]}\n");
    o.progress = change_data; /* behind b.jsonl, before a.jsonl is opened */
    o.progress_ctx = &once;
    assert_fails(dataset_open(&d, &o, &e), Q_IO, "the data were changed while they were read", &e);
    o.progress = NULL;
    open_data(&o);
    assert_string_equal(shown(1, 0), "3>4 4");
    assert_string_equal(shown(2, 0), "5>6 6");
}

/* The hash of the content is that of ids, labels and segments, wherever the files lie. */
static void test_content_sum(void **state)
{
    (void)state;
    struct dataset_options o = options();
    uint64_t sums[4];
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n{\"broken\"\n{\"input_ids\": [3, 4]}\n");
    open_data(&o);
    sums[0] = dataset_counts(d)->content_sum;
    folder_text(&f, "b.jsonl", "{\"input_ids\": [1, 2]}\n{\"text\"\n{\"input_ids\":[3,4]}\n");
    paths[0] = path[1];
    open_data(&o);
    sums[1] = dataset_counts(d)->content_sum;
    folder_text(&f, "b.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 5]}\n");
    open_data(&o);
    sums[2] = dataset_counts(d)->content_sum;
    folder_text(&f, "b.jsonl",
                "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 4], \"labels\": [3, 5]}\n");
    open_data(&o);
    sums[3] = dataset_counts(d)->content_sum;
    assert_true(sums[0] == sums[1] && sums[2] != sums[0] && sums[3] != sums[0] &&
                sums[3] != sums[2]);
}

/* Two processes with one folder: one makes the file, both have it. */
static void test_cache_shared(void **state)
{
    (void)state;
    uint32_t n[64];
    struct dataset_options o = options();
    o.cache_dir = cache;
    for (size_t i = 0; i < 64; i++)
        n[i] = 3;
    write_lengths(n, 64);
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            struct team *own = NULL;
            struct dataset *mine = NULL;
            if (team_new(&own, 1, false, &e))
                _exit(1);
            o.team = own;
            _exit(dataset_open(&mine, &o, &e) || dataset_counts(mine)->n_sequence != 64);
        }
    }
    for (int i = 0; i < 2; i++) {
        int status = 1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
}

static void test_cache_dir(void **state)
{
    (void)state;
    struct dataset_options o = options();
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n");
    o.cache_dir = path[0];
    assert_fails(dataset_open(&d, &o, &e), Q_IO, "a.jsonl", &e);
}

/* The result is the same for any number of threads. */
static void test_threads(void **state)
{
    (void)state;
    uint32_t n[99];
    char key[2][SEQUENCE_FILE_KEY + 1] = {"", ""}, name[256];
    struct buf bytes[2] = {BUF_INIT, BUF_INIT};
    struct dataset_options o = options();
    o.cache_dir = cache;
    o.packing = true;
    for (uint32_t i = 0; i < 99; i++)
        n[i] = 2 + i % 11;
    write_lengths(n, 99);
    for (uint32_t i = 0; i < 2; i++) {
        struct team *own = NULL;
        assert_ok(team_new(&own, i ? 3 : 1, false, &e), &e);
        o.team = own;
        open_data(&o);
        assert_ok(dataset_key(key[i], &o, &e), &e);
        snprintf(name, sizeof name, "%s/%s.sequences", cache, key[i]);
        assert_ok(file_read(&bytes[i], name, 1 << 20, &e), &e);
        unlink(name);
        team_free(own);
    }
    assert_string_equal(key[0], key[1]);
    assert_int_equal(bytes[0].len, bytes[1].len);
    assert_memory_equal(bytes[0].data, bytes[1].data, bytes[0].len);
    buf_release(&bytes[0]);
    buf_release(&bytes[1]);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct dataset_options o = options();
    uint32_t n_failed = 0;
    folder_text(&f, "a.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 4, 5]}\n{\"x\": 1}\n");
    o.cache_dir = cache;
    for (int64_t i = 0; i < 10000; i++) {
        struct dataset *mine = NULL;
        mem_fail_after(i);
        enum q_code rc = dataset_open(&mine, &o, &e);
        struct micro_batch b;
        if (!rc)
            rc = dataset_batch(mine, 1, 0, 0, &b, &e);
        mem_fail_after(-1);
        dataset_free(mine);
        if (!rc)
            break;
        assert_int_equal(rc, Q_NO_MEMORY);
        n_failed++;
    }
    assert_true(n_failed > 10 && n_failed < 10000);
    q_err_reset(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ids, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_data, setup, teardown),
        cmocka_unit_test_setup_teardown(test_zero_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_options, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_packing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_packing_all, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shuffle, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changed_while_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_content_sum, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_dir, setup, teardown),
        cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
