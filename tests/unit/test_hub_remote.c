/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a download that need no server: tests/e2e/test_hub_download.py has the rest. */
#include <fcntl.h>
#include <unistd.h>
#include "folder.h"
#include "common/hub/remote/choose.h"
#include "common/hub/remote/fault.h"
#include "common/hub/remote/store.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHA1   "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391" /* git's, of an empty file */
#define SHA256 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" /* of "abc" */

static struct folder f;
static struct q_err e;

static int setup(void **state)
{
    (void)state;
    folder_init(&f);
    q_err_reset(&e);
    setenv("QUIRE_DOWNLOAD_DIR", f.path, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unsetenv("QUIRE_DOWNLOAD_DIR");
    folder_release(&f);
    return 0;
}

static void test_names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "a/b", ".gitattributes", "a b", "a..b", "1_Pooling/x"};
    static const char *const bad[] = {"",     "/",    "/a",    "a/",   "a//b", ".",    "..",
                                      "a/..", "../a", "a/./b", "a\\b", "a\nb", "a\x7f"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(cache_is_file(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(cache_is_file(bad[i]));
    char id[64];
    assert_true(cache_id_of(id, sizeof id, "models--org--na--me"));
    assert_string_equal(id, "org/na--me");
    assert_true(cache_id_of(id, sizeof id, "models--gpt2"));
    assert_string_equal(id, "gpt2");
    assert_false(cache_id_of(id, sizeof id, "datasets--a--b"));
    assert_false(cache_id_of(id, sizeof id, "models--..--b"));
}

static void test_head(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "HTTP/1.1 302 Found\r\n",   "ETag: W/\"small\"",
        "X-LINKED-ETAG: \"large\"", "etag: \"again\"",
        "Content-Length: 5",        "X-Linked-Size: 123",
        "content-length: 6",        "Content-Range: bytes 10-99/100",
        "Retry-After: 7",
    };
    struct head h;
    head_init(&h);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        head_line(&h, lines[i], strlen(lines[i]), 0);
    assert_int_equal(h.status, 302);
    assert_string_equal(h.etag, "large");
    assert_int_equal(h.size, 123);
    assert_int_equal(h.range_from, 10);
    assert_int_equal(h.range_total, 100);
    assert_int_equal(h.retry_after_s, 7);
    static const char date[] = "Retry-After: Thu, 01 Jan 1970 00:02:00 GMT";
    head_line(&h, date, strlen(date), 20);
    assert_int_equal(h.retry_after_s, 100);
    static const char next[] = "HTTP/2 200";
    head_line(&h, next, strlen(next), 0);
    assert_true(h.status == 200 && !*h.etag && h.size == HEAD_NONE);
    static const char huge[] = "content-length: 99999999999999999999";
    head_line(&h, huge, strlen(huge), 0);
    assert_true(h.size == HEAD_NONE);
}

static void test_origin(void **state)
{
    (void)state;
    static struct endpoint p = {.url = "https://hub.example"};
    static const struct {
        const char *url;
        bool is;
    } cases[] = {
        {"https://hub.example/a", true},      {"https://HUB.example:443/a", true},
        {"https://hub.example", true},        {"http://hub.example/a", false},
        {"https://hub.example:444/", false},  {"https://hub.example.evil/a", false},
        {"https://hub.example@evil/", false}, {"https://evil/https://hub.example", false},
        {"https://cdn.hub.example/", false},  {"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(endpoint_has(&p, cases[i].url), cases[i].is);
}

static void test_blob(void **state)
{
    (void)state;
    struct store s;
    struct blob b = BLOB_INIT;
    bool known;
    int first, second;
    char path[PATH_MAX];
    assert_ok(store_init(&s, "org/name", &e), &e);
    assert_ok(store_make(&s, &e), &e);
    snprintf(b.etag, sizeof b.etag, "%s", SHA256);
    b.size = 3;
    assert_ok(blob_open(&b, &s, &e), &e);
    assert_ok(blob_write(&b, 0, "ab", 2, &e), &e);
    blob_release(&b); /* the next download goes on */
    assert_ok(blob_open(&b, &s, &e), &e);
    assert_true(b.at == 2 && b.resumed == 2);
    assert_fails(blob_write(&b, 2, "cd", 2, &e), Q_CORRUPT, "more than the 3 bytes", &e);
    assert_ok(blob_write(&b, 2, "c", 1, &e), &e);
    assert_ok(blob_finish(&b, "file", &e), &e);
    blob_release(&b);
    assert_true(store_has_blob(&s, SHA256));
    assert_ok(store_link(&s, COMMIT, "a/b.bin", SHA256, &e), &e);
    assert_true(store_has(&s, COMMIT, "a/b.bin"));
    assert_ok(store_pointer(path, &s, COMMIT, "a/b.bin", &e), &e);
    assert_ok(blob_verify(&known, path, SHA256, &e), &e);
    assert_true(known);
    assert_fails(blob_verify(&known, path, SHA1, &e), Q_CORRUPT, "wrong checksum", &e);
    assert_ok(blob_verify(&known, path, "other", &e), &e);
    assert_false(known);
    struct blob empty = BLOB_INIT;
    snprintf(empty.etag, sizeof empty.etag, "%s", SHA1);
    assert_ok(blob_open(&empty, &s, &e), &e);
    assert_ok(blob_finish(&empty, "file", &e), &e);
    blob_release(&empty);
    assert_ok(store_try_lock(&first, &s, SHA1, &e), &e);
    assert_ok(store_try_lock(&second, &s, SHA1, &e), &e);
    assert_true(first >= 0 && second < 0);
    close(first);
    assert_ok(store_try_lock(&second, &s, SHA1, &e), &e);
    assert_true(second >= 0);
    close(second);
    assert_fails(store_check_space(&s, UINT64_MAX, &e), Q_NO_SPACE, "--download-dir", &e);
}

/* Three ranges: numbers alone, no content. */
static void test_ranges(void **state)
{
    (void)state;
    static const uint64_t size = 2 * RANGE_BYTES + 5;
    struct blob_ranges r;
    char path[] = "/tmp/quire-test-ranges-XXXXXX";
    const struct file_open file = {mkstemp(path), path};
    uint64_t wrong = RANGE_BYTES + 1;
    assert_true(file.fd >= 0);
    assert_ok(blob_ranges_open(&r, &file, size, &e), &e);
    assert_int_equal(r.n, 3);
    assert_int_equal(blob_ranges_front(&r), 0);
    assert_true(blob_ranges_take(&r) == 0 && blob_ranges_take(&r) == 1 &&
                blob_ranges_take(&r) == 2);
    assert_false(blob_ranges_is_free(&r));
    assert_ok(blob_ranges_add(&r, &file, RANGE_BYTES, 7, &e), &e);
    assert_ok(blob_ranges_add(&r, &file, 2 * RANGE_BYTES, 5, &e), &e);
    assert_int_equal(blob_ranges_front(&r), 0);
    assert_ok(blob_ranges_add(&r, &file, 0, RANGE_BYTES, &e), &e);
    assert_int_equal(blob_ranges_front(&r), RANGE_BYTES + 7);
    blob_ranges_give_back(&r, 1);
    assert_int_equal(blob_ranges_take(&r), 1);
    blob_ranges_release(&r);
    assert_ok(blob_ranges_open(&r, &file, size, &e), &e); /* what was written */
    assert_true(r.sum == RANGE_BYTES + 12 && blob_ranges_front(&r) == RANGE_BYTES + 7);
    assert_int_equal(blob_ranges_take(&r), 1);
    assert_ok(blob_ranges_reset(&r, &file, &e), &e);
    assert_ok(blob_ranges_add(&r, &file, 0, size, &e), &e); /* of all ranges at once */
    assert_true(r.sum == size && blob_ranges_front(&r) == size && !blob_ranges_is_free(&r));
    blob_ranges_release(&r);
    assert_ok(file_write_at(&file, &wrong, sizeof wrong, size + 16, &e), &e);
    assert_ok(blob_ranges_open(&r, &file, size, &e),
              &e); /* more than a range has: none of it counts */
    assert_int_equal(r.sum, 0);
    blob_ranges_release(&r);
    assert_int_equal(ftruncate(file.fd, 100), 0);
    assert_ok(blob_ranges_open(&r, &file, size, &e), &e); /* a beginning */
    assert_true(r.sum == 100 && blob_ranges_front(&r) == 100);
    blob_ranges_release(&r);
    assert_fails(blob_ranges_open(&r, &file, UINT64_MAX, &e), Q_TOO_LARGE, "expected at most", &e);
    blob_ranges_release(&r);
    close(file.fd);
    unlink(path);
}

/* By a thread that follows the file, in whatever steps it grows. */
static void test_sum_that_follows(void **state)
{
    (void)state;
    static char data[9 << 20];
    struct blob_sum s = {.hash = NULL};
    char path[] = "/tmp/quire-test-sum-XXXXXX", want[BLOB_SUM_DIGITS + 1], got[BLOB_SUM_DIGITS + 1];
    const struct file_open file = {mkstemp(path), path};
    assert_true(file.fd >= 0);
    memset(data, 'x', sizeof data);
    assert_ok(blob_sum_begin(&s, SHA256, sizeof data, &e), &e);
    assert_ok(blob_sum_add(&s, data, sizeof data, &e), &e);
    assert_true(blob_sum_end(&s, want));
    assert_ok(blob_sum_begin(&s, SHA256, sizeof data, &e), &e);
    assert_ok(blob_sum_follow(&s, &file, &e), &e);
    for (uint64_t at = 0; at < sizeof data; at += 3 << 20) {
        assert_ok(file_write_at(&file, data + at, 3 << 20, at, &e), &e);
        assert_ok(blob_sum_announce(&s, at + (3 << 20), &e), &e);
    }
    assert_ok(blob_sum_join(&s, sizeof data, &e), &e);
    assert_true(blob_sum_end(&s, got));
    assert_string_equal(got, want);
    assert_ok(blob_sum_begin(&s, SHA256, sizeof data, &e), &e);
    assert_ok(blob_sum_follow(&s, &file, &e), &e);
    assert_fails(blob_sum_join(&s, sizeof data + 1, &e), Q_CORRUPT, "", &e); /* it has fewer */
    assert_ok(blob_sum_begin(&s, SHA256, sizeof data, &e), &e);
    assert_ok(blob_sum_follow(&s, &file, &e), &e);
    assert_ok(blob_sum_announce(&s, sizeof data, &e), &e);
    blob_sum_release(&s); /* while it reads */
    close(file.fd);
    unlink(path);
}

static void test_ref(void **state)
{
    (void)state;
    struct store s;
    char hash[CACHE_HASH_MAX + 1];
    assert_ok(store_init(&s, "name", &e), &e);
    assert_ok(store_make(&s, &e), &e);
    assert_ok(store_write_ref(&s, "refs/pr/1", COMMIT, &e), &e);
    assert_ok(cache_read_ref(hash, s.repo, "refs/pr/1", &e), &e);
    assert_string_equal(hash, COMMIT);
    assert_ok(store_write_ref(&s, "refs/pr/1", "other", &e), &e);
    assert_ok(cache_read_ref(hash, s.repo, "refs/pr/1", &e), &e);
    assert_string_equal(hash, "other");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_head, setup, teardown),
        cmocka_unit_test_setup_teardown(test_origin, setup, teardown),
        cmocka_unit_test_setup_teardown(test_blob, setup, teardown),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_sum_that_follows),
        cmocka_unit_test_setup_teardown(test_ref, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
