/* SPDX-License-Identifier: Apache-2.0 */
/* packed cache: the same bits from it as without it, and every fault of a file, a folder or
 * the disk is said and costs a packing, nothing else. Counts lines of the log, never time. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include "checkpoint.h"
#include "common/log.h"
#include "golden.h"

#define MODEL "tests/data/models/llama"
#define VOCAB 512u

#define NOT_THERE "not there yet"
#define MAPPED    "mapped and checked"
#define WROTE     "packed cache: wrote"

static struct q_err e;
static struct folder f;
static char model_dir[256], cache_dir[256]; /* f.path is short */

static int setup(void **state)
{
    (void)state;
    q_err_reset(&e);
    folder_init(&f);
    folder_copy(&f, MODEL, "config.json");
    folder_copy(&f, MODEL, "model.safetensors");
    snprintf(model_dir, sizeof model_dir, "%s", f.path);
    snprintf(cache_dir, sizeof cache_dir, "%s/packed", f.path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&f);
    return 0;
}

/* What is logged from capture_begin on. */
static int saved_stderr;
static FILE *captured;

static void capture_begin(void)
{
    captured = tmpfile();
    assert_non_null(captured);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(captured), STDERR_FILENO);
    log_setup("test", LOG_INFO, false);
}

static void capture_end(struct buf *out)
{
    log_setup("test", LOG_ERROR, false);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    rewind(captured);
    buf_reset(out);
    for (int c; (c = fgetc(captured)) != EOF;)
        buf_add_char(out, (char)c);
    fclose(captured);
}

static void logits_of(float out[VOCAB], struct runner *r)
{
    static const uint32_t ids[] = {1, 2, 3};
    static float all[3 * VOCAB];
    run_prompt(r, ids, 3, 3, all);
    memcpy(out, all + 2 * VOCAB, VOCAB * sizeof *out);
}

struct way { /* of loading */
    uint32_t n_thread, caps;
    enum dtype dtype;
    enum quantization quantization;
    const char *cache;
};

static struct runner_options options_of(const struct way *way)
{
    return (struct runner_options){
        .dir = model_dir,
        .n_thread = way->n_thread,
        .caps = way->caps,
        .dtype = way->dtype,
        .quantization = way->quantization,
        .packed_cache = way->cache,
    };
}

static void answer(float out[VOCAB], const struct way *way)
{
    struct runner r;
    const struct runner_options o = options_of(way);
    assert_ok(runner_open(&r, &o, &e), &e);
    assert_int_equal(model_shape(r.model)->vocab_size, VOCAB);
    logits_of(out, &r);
    runner_close(&r); /* a file that is being written is whole then */
}

/* Load by the cache: the same bits as without it, and these parts (up to NULL) in the log. */
static void expect_way(struct way way, const char *const *parts)
{
    static float want[VOCAB], got[VOCAB];
    struct buf text = BUF_INIT;
    way.cache = NULL;
    answer(want, &way);
    way.cache = cache_dir;
    capture_begin();
    answer(got, &way);
    capture_end(&text);
    assert_memory_equal(want, got, sizeof want);
    for (; *parts; parts++)
        if (!strstr(buf_str(&text), *parts))
            fail_msg("the log lacks \"%s\":\n%s", *parts, buf_str(&text));
    buf_release(&text);
}

static struct way plain_way(void)
{
    return (struct way){.n_thread = 2, .caps = kern_caps_machine(), .dtype = DT_F32};
}

#define expect(...) expect_way(plain_way(), (const char *const[]){__VA_ARGS__, NULL})

/* Names in the cache's folder; the last one goes to `name`. */
static uint32_t n_cached(char name[NAME_MAX + 1])
{
    uint32_t n = 0;
    DIR *d = opendir(cache_dir);
    for (const struct dirent *x; d && (x = readdir(d));)
        if (x->d_name[0] != '.') {
            snprintf(name, NAME_MAX + 1, "%s", x->d_name);
            n++;
        }
    if (d)
        closedir(d);
    return n;
}

static void cached_path(char path[PATH_MAX])
{
    char name[NAME_MAX + 1];
    assert_int_equal(n_cached(name), 1);
    assert_ok(path_join(path, PATH_MAX, cache_dir, name, &e), &e);
}

static void a_hit_gives_the_same_bits(void **state)
{
    (void)state;
    expect(NOT_THERE, WROTE);
    expect(MAPPED);
    struct way way = plain_way();
    const char *const hit[] = {MAPPED, NULL};
    way.n_thread = 1;
    expect_way(way, hit);
    way.n_thread = 3;
    expect_way(way, hit);
}

/* The layout and the key are the same for all instruction sets. */
static void one_file_for_all_instruction_sets(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct way way = plain_way();
    const char *const hit[] = {MAPPED, NULL};
    expect(WROTE);
    static const char *const names[] = {"none", "avx2", "auto"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(kern_caps_parse(&way.caps, names[i], &e), &e);
        expect_way(way, hit);
    }
    cached_path(path);
}

static void other_types_are_other_files(void **state)
{
    (void)state;
    char name[NAME_MAX + 1];
    struct way way = plain_way();
    const char *const first[] = {NOT_THERE, WROTE, NULL}, *const hit[] = {MAPPED, NULL};
    expect(WROTE);
    way.quantization = QUANTIZE_INT8;
    expect_way(way, first);
    assert_int_equal(n_cached(name), 2);
    expect_way(way, hit);
    way.quantization = QUANTIZE_NOT;
    way.dtype = DT_BF16;
    expect_way(way, first);
    expect_way(way, hit);
    expect(MAPPED);
    assert_int_equal(n_cached(name), 3);
}

/* Other numbers of the same names and shapes, and the same numbers in a file touched since. */
static void other_weights_are_not_taken(void **state)
{
    (void)state;
    char name[NAME_MAX + 1], path[PATH_MAX];
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    const struct checkpoint other = {.from = MODEL, .factor = 1.5f, .name = ""};
    expect(WROTE);
    assert_ok(path_join(path, sizeof path, model_dir, "model.safetensors", &e), &e);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    expect("was made of other files; packing", WROTE);
    expect(MAPPED);
    assert_int_equal(n_cached(name), 1);
    checkpoint_write(&f, &other);
    expect(NOT_THERE, WROTE);
    expect(MAPPED);
    assert_int_equal(n_cached(name), 2);
}

/* One byte at `at` (from the end when negative) is another one. */
static void flip(const char *path, off_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    at = at < 0 ? lseek(fd, 0, SEEK_END) + at : at;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void damage_is_seen_and_mended(void **state)
{
    (void)state;
    static const struct {
        off_t at;
        const char *said;
    } cases[] = {
        {0, "is no file of packed weights"},    {8, "is of another version"},
        {20, "has a damaged header"},           {100, "has a damaged header"},
        {4096, "has damaged checksums"},        {2 << 20, "is damaged: a checksum differs"},
        {-1, "is damaged: a checksum differs"},
    };
    char path[PATH_MAX];
    expect(WROTE);
    cached_path(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        flip(path, cases[i].at);
        expect(cases[i].said, "; packing", WROTE);
        expect(MAPPED);
        cached_path(path);
    }
}

static void truncation_is_seen_and_mended(void **state)
{
    (void)state;
    static const struct {
        off_t size;
        const char *said;
    } cases[] = {
        {0, "is too short"},
        {100, "is too short"},
        {4096, "is truncated"},
        {2 << 20, "is truncated"},
        {(2 << 20) + 12345, "is truncated"},
    };
    char path[PATH_MAX];
    expect(WROTE);
    cached_path(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(truncate(path, cases[i].size), 0);
        expect(cases[i].said, "; packing", WROTE);
        expect(MAPPED);
    }
}

static void two_writers_at_once(void **state)
{
    (void)state;
    static float want[VOCAB], a[VOCAB], b[VOCAB];
    struct way way = plain_way();
    struct runner one, two;
    char path[PATH_MAX];
    answer(want, &way);
    way.cache = cache_dir;
    const struct runner_options o = options_of(&way);
    assert_ok(runner_open(&one, &o, &e), &e);
    assert_ok(runner_open(&two, &o, &e), &e);
    logits_of(a, &one);
    logits_of(b, &two);
    runner_close(&two);
    runner_close(&one);
    assert_memory_equal(want, a, sizeof want);
    assert_memory_equal(want, b, sizeof want);
    cached_path(path); /* one file, nothing beside it */
    expect(MAPPED);
}

static void what_a_killed_writer_left_goes(void **state)
{
    (void)state;
    char path[PATH_MAX];
    folder_text(&f, "packed/00.packed.123-0.tmp", "half");
    folder_text(&f, "packed/01.packed.124-0.tmp", "of one that lives");
    folder_text(&f, "packed/mine.tmp", "nothing of ours");
    snprintf(path, sizeof path, "%s/01.packed.124-0.tmp", cache_dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    expect(WROTE);
    char name[NAME_MAX + 1];
    assert_int_equal(n_cached(name), 3);
    assert_true(file_exists(path));
    close(fd);
}

static void ignore(int signal_number)
{
    (void)signal_number;
}

static void what_cannot_be_written_is_said_only(void **state)
{
    (void)state;
    char name[NAME_MAX + 1];
    struct rlimit was, small;
    folder_text(&f, "plain", "no folder");
    snprintf(cache_dir, sizeof cache_dir, "%s/plain", f.path);
    expect("Not a directory", "packed cache: cannot create");
    snprintf(cache_dir, sizeof cache_dir, "%s/no/such", f.path);
    expect("cannot make the folder", "the model runs without it");
    snprintf(cache_dir, sizeof cache_dir, "%s/full", f.path);
    signal(SIGXFSZ, ignore);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect("packed cache: cannot write", "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(n_cached(name), 0);
    expect(WROTE);
    expect(MAPPED);
}

/* Other weights over mapped ones: not into the file. */
static void a_reload_leaves_the_file_alone(void **state)
{
    (void)state;
    static float want[VOCAB], got[VOCAB];
    const struct checkpoint other = {.from = MODEL, .factor = 1.25f, .name = "step"};
    char step_dir[256], path[PATH_MAX];
    struct way way = plain_way();
    struct runner r;
    checkpoint_write(&f, &other);
    snprintf(step_dir, sizeof step_dir, "%s/step", f.path);
    snprintf(model_dir, sizeof model_dir, "%s", step_dir);
    answer(want, &way);
    snprintf(model_dir, sizeof model_dir, "%s", f.path);
    expect(WROTE);
    way.cache = cache_dir;
    const struct runner_options o = options_of(&way);
    for (int again = 0; again < 2; again++) { /* the first time over pages of the file */
        assert_ok(runner_open(&r, &o, &e), &e);
        assert_true(model_shape(r.model)->weights_mapped);
        const struct model_options mo = {
            .dir = model_dir,
            .weights_dir = step_dir,
            .packed_cache = cache_dir,
            .dtype = DT_F32,
            .kern = &r.kern,
            .team = r.team,
        };
        for (int i = 0; i <= again; i++)
            assert_ok(model_reload(r.model, &mo, &e), &e);
        assert_false(model_shape(r.model)->weights_mapped);
        logits_of(got, &r);
        runner_close(&r);
        assert_memory_equal(want, got, sizeof want);
    }
    cached_path(path);
    expect(MAPPED);
}

int main(void)
{
    log_setup("test", LOG_ERROR, false);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_hit_gives_the_same_bits),
        TEST(one_file_for_all_instruction_sets),
        TEST(other_types_are_other_files),
        TEST(other_weights_are_not_taken),
        TEST(damage_is_seen_and_mended),
        TEST(truncation_is_seen_and_mended),
        TEST(two_writers_at_once),
        TEST(what_a_killed_writer_left_goes),
        TEST(what_cannot_be_written_is_said_only),
        TEST(a_reload_leaves_the_file_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
