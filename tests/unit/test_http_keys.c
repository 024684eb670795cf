/* SPDX-License-Identifier: Apache-2.0 */
/* API keys: what is accepted, and OpenAI's error body. */
#include "check.h"
#include "frontend/http/api_keys.h"
#include "frontend/http/exchange.h"

static bool accepts(const struct api_keys *k, const char *header)
{
    return api_keys_accept(k, header, strlen(header));
}

static void test_keys(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    const char *two[] = {"alpha", "beta"};
    assert_ok(api_keys_init(&k, two, 2, &e), &e);
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
    assert_false(api_keys_accept(&k, "Bearer alpha\0", 13)); /* a NUL is part of the key */
    unsigned char one[32], other[32];
    assert_true(api_keys_digest(one, "Bearer alpha", 12) &&
                api_keys_digest(other, "bearer alpha", 12));
    assert_memory_equal(one, other, 32);
    assert_true(api_keys_digest(other, "Bearer beta", 11) && memcmp(one, other, 32) != 0);
    assert_false(api_keys_digest(one, "alpha", 5));
    api_keys_release(&k);
}

static void test_no_keys_means_open(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    assert_ok(api_keys_init(&k, NULL, 0, &e), &e);
    assert_true(accepts(&k, ""));
    api_keys_release(&k);
    api_keys_release(&k); /* the empty value is fine too */
}

static void test_empty_key_is_refused(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    const char *keys[] = {"alpha", ""};
    assert_fails(api_keys_init(&k, keys, 2, &e), Q_INVALID, "empty", &e);
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
            .code = Q_INVALID, .message = "temperature: \"x\"", .param = "temperature"},
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
        cmocka_unit_test(test_no_keys_means_open),
        cmocka_unit_test(test_empty_key_is_refused),
        cmocka_unit_test(test_error_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
