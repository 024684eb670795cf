/* SPDX-License-Identifier: Apache-2.0 */
/* API keys: what is accepted, and OpenAI's error body. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
#include "frontend/http/api_keys.h"
#include "frontend/http/exchange.h"

static bool accepts(const struct api_keys *k, const char *header)
{
    return api_keys_find(k, header, strlen(header));
}

static void test_keys(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    const char *two[] = {"alpha", "beta"};
    assert_ok(api_keys_add(&k, two, 2, &e), &e);
    assert_true(accepts(&k, "Bearer alpha"));
    assert_true(accepts(&k, "bearer beta")); /* the scheme's case does not matter (RFC 9110) */
    assert_false(accepts(&k, "Bearer Alpha"));
    assert_false(accepts(&k, "Bearer alph"));
    assert_false(accepts(&k, "Bearer alphaa"));
    assert_false(accepts(&k, "Bearer "));
    assert_false(accepts(&k, "Bearer"));
    assert_false(accepts(&k, "alpha"));
    assert_false(accepts(&k, "Basic alpha"));
    assert_false(accepts(&k, ""));
    assert_null(api_keys_find(&k, "Bearer alpha\0", 13)); /* a NUL is part of the key */
    unsigned char one[32], other[32];
    assert_true(api_keys_digest(one, "Bearer alpha", 12) &&
                api_keys_digest(other, "bearer alpha", 12));
    assert_memory_equal(one, other, 32);
    assert_true(api_keys_digest(other, "Bearer beta", 11) && memcmp(one, other, 32) != 0);
    assert_false(api_keys_digest(one, "alpha", 5));
    api_keys_release(&k);
}

static const struct api_key *find(const struct api_keys *k, const char *header)
{
    return api_keys_find(k, header, strlen(header));
}

static void test_keys_of_a_file(void **state)
{
    (void)state;
    static const char text[] =
        "# keys\n\nsk-one\r\n  sk-two \tweight=3\nsk-root admin weight=1000 # x\n"
        "sk-hash#tag";
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    const char *more[] = {"sk-line"};
    assert_ok(api_keys_add(&k, more, 1, &e), &e);
    assert_ok(api_keys_add_text(&k, text, sizeof text - 1, &e), &e);
    assert_ok(api_keys_check(&k, &e), &e);
    assert_true(k.n == 5 && k.has_admin);
    assert_int_equal(find(&k, "Bearer sk-line")->weight, 1);
    assert_int_equal(find(&k, "Bearer sk-one")->weight, 1);
    assert_int_equal(find(&k, "Bearer sk-two")->weight, 3);
    assert_false(find(&k, "Bearer sk-two")->admin);
    assert_int_equal(find(&k, "Bearer sk-root")->weight, 1000);
    assert_true(find(&k, "Bearer sk-root")->admin);
    assert_non_null(find(&k, "Bearer sk-hash#tag"));
    assert_null(find(&k, "Bearer #"));
    assert_null(find(&k, "Bearer weight=3"));
    assert_ok(api_keys_add_text(&k, "sk-one", 6, &e), &e);
    assert_fails(api_keys_check(&k, &e), Q_INVALID, "given twice", &e);
    api_keys_release(&k);
    api_keys_release(&k); /* the empty value is fine too */
}

static void test_hashed_keys(void **state)
{
    (void)state;
    static const char text[] =
        "sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8 name=alice\n"
        "sk-b models=small,medium name=b\nsk-c\n";
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    assert_ok(api_keys_add_text(&k, text, sizeof text - 1, &e), &e);
    assert_string_equal(find(&k, "Bearer alpha")->name, "alice"); /* printf alpha | sha256sum */
    assert_null(find(&k, "Bearer sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8"
                         "f2223f8"));
    assert_true(api_key_allows(find(&k, "Bearer alpha"), "small"));
    assert_true(api_key_allows(find(&k, "Bearer sk-b"), "small"));
    assert_true(api_key_allows(find(&k, "Bearer sk-b"), "medium"));
    assert_false(api_key_allows(find(&k, "Bearer sk-b"), "smal"));
    assert_false(api_key_allows(find(&k, "Bearer sk-b"), "small,medium"));
    assert_false(api_key_allows(find(&k, "Bearer sk-b"), "large"));
    assert_true(strlen(find(&k, "Bearer sk-c")->name) == strlen("key 01234567"));
    assert_ok(api_keys_add_text(&k, "alpha", 5, &e), &e);
    assert_fails(api_keys_check(&k, &e), Q_INVALID, "given twice", &e);
    api_keys_release(&k);
}

static void test_readable_file_is_refused(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    char path[] = "/tmp/quire-keys-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "sk-one\n", 7) == 7);
    assert_int_equal(fchmod(fd, 0644), 0);
    assert_fails(api_keys_add_file(&k, path, &e), Q_FORBIDDEN, "(mode 0644): chmod o-rwx", &e);
    q_err_reset(&e);
    assert_int_equal(fchmod(fd, 0602), 0);
    assert_fails(api_keys_add_file(&k, path, &e), Q_FORBIDDEN, "may change it", &e);
    q_err_reset(&e);
    assert_int_equal(fchmod(fd, 0640), 0);
    assert_ok(api_keys_add_file(&k, path, &e), &e);
    close(fd);
    unlink(path);
    api_keys_release(&k);
}

static void test_mistakes_in_a_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"a\nb weight=0", "line 2: weight"},
        {"a weight=1001", "line 1: weight"},
        {"a weight=", "line 1: weight"},
        {"a weight=3x", "line 1: weight"},
        {"#\n\nsk-secret tier=gold", "line 3: unknown attribute \"tier=gold\" after a key"},
        {"sha256:12", "line 1: expected 64 hex digits after sha256:, got 2"},
        {"sha256:zed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8", "64 hex"},
        {"a name=", "line 1: name="},
        {"a name=\x01", "line 1: name="},
        {"a models=", "line 1: models="},
        {"a models=b,,c", "line 1: models="},
        {"a models=b models=c", "given twice"},
        {"sk one two", "line 1: unknown attribute \"one\""},
    };
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    char long_key[API_KEY_BYTES_MAX + 2];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        q_err_reset(&e);
        assert_int_equal(api_keys_add_text(&k, bad[i].text, strlen(bad[i].text), &e), Q_INVALID);
        assert_non_null(strstr(e.message, bad[i].message));
        assert_null(strstr(e.message, "sk-secret")); /* it may end in a log */
    }
    memset(long_key, 'x', sizeof long_key);
    q_err_reset(&e);
    assert_fails(api_keys_add_text(&k, long_key, sizeof long_key, &e), Q_INVALID, "exceeds", &e);
    q_err_reset(&e);
    assert_fails(api_keys_add_text(&k, "a\0b", 3, &e), Q_INVALID, "NUL", &e);
    q_err_reset(&e);
    assert_ok(api_keys_add_text(&k, long_key, API_KEY_BYTES_MAX, &e), &e);
    assert_int_equal(api_keys_add_file(&k, "/nowhere/keys", &e), Q_NOT_FOUND);
    assert_string_equal(e.message,
                        "--api-key-file: /nowhere/keys: cannot open: No such file or directory");
    q_err_reset(&e);
    assert_fails(api_keys_add_file(&k, "/dev/null", &e), Q_INVALID, "no key", &e);
    api_keys_release(&k);
}

static void test_empty_key_is_refused(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    const char *keys[] = {"alpha", ""};
    assert_fails(api_keys_add(&k, keys, 2, &e), Q_INVALID, "empty", &e);
    api_keys_release(&k);
}

static void assert_body(const struct http_error *error, const char *want)
{
    struct buf out = BUF_INIT;
    http_error_body(&out, error);
    assert_string_equal(buf_str(&out), want);
    buf_release(&out);
}

static void test_error_bodies(void **state)
{
    (void)state;
    assert_body(
        &(struct http_error){
            .code = Q_INVALID,
            .message = "temperature: \"x\"",
            .param = "temperature",
        },
        "{\"error\":{\"message\":\"temperature: \\\"x\\\"\",\"type\":\"invalid_request_error\","
        "\"param\":\"temperature\",\"code\":null}}");
    assert_body(&(struct http_error){.code = Q_NO_SPACE, .message = "full"},
                "{\"error\":{\"message\":\"full\",\"type\":\"rate_limit_error\",\"param\":null,"
                "\"code\":\"rate_limit_exceeded\"}}");
    assert_body(
        &(struct http_error){.status = 400, .code = Q_INVALID, .message = "m", .openai_code = "c"},
        "{\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":"
        "\"c\"}}");
    assert_body(
        &(struct http_error){.code = Q_CORRUPT, .message = "m"},
        "{\"error\":{\"message\":\"m\",\"type\":\"server_error\",\"param\":null,\"code\":null}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_keys_of_a_file),
        cmocka_unit_test(test_hashed_keys),
        cmocka_unit_test(test_readable_file_is_refused),
        cmocka_unit_test(test_mistakes_in_a_file),
        cmocka_unit_test(test_empty_key_is_refused),
        cmocka_unit_test(test_error_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
