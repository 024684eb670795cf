/* SPDX-License-Identifier: Apache-2.0 */
/* What is looked at before h2o reads a request, and what pages of other origins may do. */
#include "check.h"
#include "frontend/http/chunks.h"
#include "frontend/http/cors.h"
#include "frontend/http/head.h"
#include "frontend/http/unpack.h"

static const char *fault(const char *head)
{
    assert_int_equal(head_length(head, strlen(head)), strlen(head));
    for (size_t n = 0; n < strlen(head); n++) /* not whole before its last byte */
        assert_int_equal(head_length(head, n), 0);
    return head_fault(head, strlen(head));
}

static void test_faults(void **state)
{
    (void)state;
#define GET "GET / HTTP/1.1\r\n"
    static const struct {
        const char *head, *word; /* NULL: nothing is wrong */
    } cases[] = {
        {GET "Host: x\r\n\r\n", NULL},
        {"GET / HTTP/1.1\nhost:\n\n", NULL}, /* empty, but there (RFC 9112 3.2) */
        {GET "\r\n", "Host"},
        {GET "Host: x\r\nHOST: x\r\n\r\n", "more than one Host"},
        {GET "Host: a b\r\n\r\n", "not a host name"},
        {GET "Host: a@b\r\n\r\n", "not a host name"},
        {GET "Host: \xc3\xa9\r\n\r\n", "not a host name"},
        {GET "Host:  [2001:db8::1%25e]:80 \r\n\r\n", NULL},
        {"GET / HTTP/1.0\r\n\r\n", NULL},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"},
        {"PRI * HTTP/2.0\r\n\r\n", NULL},
        {"\r\n" GET "\r\n", "Host"},
        {GET "Host: x\r\nContent-Length: 5 \r\ncontent-length:\t5\r\n\r\n", NULL},
        {GET "Host: x\r\nContent-Length: 5\r\nContent-Length: 05\r\n\r\n", "differ"},
        {GET "Host: x\r\nContent-Length: 5\r\nX: y\r\nContent-Length:\r\n\r\n", "differ"},
        {GET "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n", NULL},
        {GET "Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "exclude"},
        {GET "Host: x\r\nTransfer-Encoding: a\r\nTransfer-Encoding: chunked\r\n\r\n", "more than"},
        {GET "Host: x\r\nTransfer-Encoding: CHUNKED \r\n\r\n", NULL},
        {GET "Host: x\r\nTransfer-Encoding: gzip\r\n\r\n", "that is supported is chunked"},
        {GET "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "is supported is chunked"},
        {GET "Host: x\r\nTransfer-Encoding:\r\n\r\n", "is supported is chunked"},
        {GET "Host: x\r\nContent-Length: x\r\n\r\n", "not a whole number"},
        {GET "Host: x\r\nContent-Length: -1\r\n\r\n", "not a whole number"},
        {GET "Host: x\r\nContent-Length: +5\r\n\r\n", "not a whole number"},
        {GET "Host: x\r\nContent-Length: 5, 5\r\n\r\n", "not a whole number"},
        {GET "Host: x\r\nContent-Length: 0x5\r\n\r\n", "not a whole number"},
        {GET "Host: x\r\nContent-Length:  \r\n\r\n", "is empty"},
        {GET "Host: x\r\nContent-Length: 999999999999999999\r\n\r\n", NULL},
        {GET "Host: x\r\nContent-Length: 0000000000000000000005\r\n\r\n", NULL},
        {GET "Host: x\r\nContent-Length: 1000000000000000000\r\n\r\n", "too large"},
        {GET "Host: x\r\n\tContent-Length: 5\r\n\r\n", "space"},
        {GET "Host: x\r\nX-Content-Length: 5\r\nContent-Length-X: 6\r\n\r\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = fault(cases[i].head);
        if (!cases[i].word != !got || (got && !strstr(got, cases[i].word)))
            fail_msg("%s: %s", cases[i].head, got ? got : "nothing");
    }
}

/* In one piece and byte by byte; n_body: of them to the body's end, 0: it is not there. */
static void check_chunks(const char *text, size_t n_body, const char *word)
{
    size_t n = strlen(text), at = 0;
    struct chunks whole = {.n_digit = 0}, single = {.n_digit = 0};
    const char *fault = chunks_take(&whole, text, n), *found = NULL;
    while (at < n && single.state < CHUNKS_WHOLE)
        found = chunks_take(&single, text + at++, 1);
    if (fault != found || !fault != !word || (fault && !strstr(fault, word)))
        fail_msg("%s: %s, %s", text, fault ? fault : "nothing", found ? found : "nothing");
    assert_int_equal(whole.state, single.state);
    assert_int_equal(whole.state == CHUNKS_WHOLE, n_body != 0);
    if (n_body)
        assert_int_equal(at, n_body);
}

static void test_chunks(void **state)
{
    (void)state;
    check_chunks("5\r\nhello\r\n0\r\n\r\nGET", 15, NULL);
    check_chunks("0005;a=b;c=\"d e\"\r\nhello\r\n00;x\r\nA: b c\r\nD:\r\n\r\n", 45, NULL);
    check_chunks("A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", 35, NULL);
    check_chunks("5\r\nhel", 0, NULL);
    check_chunks("0x5\r\nhello\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks("5 \r\nhello\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks("5g\r\nhello\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks("-5\r\nhello\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks(" 5\r\nhello\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks("\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks("5\nhello\r\n0\r\n\r\n", 0, "not a hexadecimal");
    check_chunks("5\r\rhello\r\n0\r\n\r\n", 0, "CR LF");
    check_chunks("5;a\nhello\r\n0\r\n\r\n", 0, "control character");
    check_chunks("5\r\nhello\n0\r\n\r\n", 0, "its data do not end");
    check_chunks("5\r\nhello!\r\n0\r\n\r\n", 0, "its data do not end");
    check_chunks("5\r\nhello\r\r\n0\r\n\r\n", 0, "its data do not end");
    check_chunks("00000000000000005\r\nhello\r\n0\r\n\r\n", 0, "16 digits");
    check_chunks("0\r\nGET / HTTP/1.1\r\n\r\n", 0, "not a header line");
    check_chunks("0\r\na: b\n\r\n", 0, "not a header line");
    check_chunks("0\r\n\n", 0, "not a header line");
    check_chunks("0\r\na: b\r\r\n\r\n", 0, "CR LF");
}

static void test_blank(void **state)
{
    (void)state;
    char head[200];
    for (size_t n = HEAD_BLANK_MIN; n <= sizeof head; n++) {
        head_blank(head, n);
        assert_int_equal(head_length(head, n), n);
        assert_int_equal(head_length(head, n - 1), 0);
        assert_null(head_fault(head, n));
        assert_int_equal(head_n_field(head, n, 100), 2);
    }
}

static void test_fields(void **state)
{
    (void)state;
    static const char head[] = "\r\nGET / HTTP/1.1\r\nHost: x\r\na: b\n c\r\nd: e\r\n\r\nf: g\r\n";
    assert_int_equal(head_n_field(head, sizeof head - 1, 100), 4);
    assert_int_equal(head_n_field(head, sizeof head - 1, 2), 3);
    assert_int_equal(head_n_field(head, 5, 100), 0);
    assert_int_equal(head_n_field(head, strlen("\r\nGET / HTTP/1.1\r\nHost: x\r\na: "), 100), 1);
}

static void test_find(void **state)
{
    (void)state;
    static const char head[] = GET "Host: x\r\nTransfer-Encoding: chunked\r\nX: expect: y\r\n"
                                   "Key:\t a b \r\nkey: c\r\n\r\nlate: d\r\n\r\n";
    const size_t n = head_length(head, sizeof head - 1);
    struct head_value v;
    assert_true(head_find(head, n, "transfer-encoding", NULL));
    assert_false(head_find(head, n, "expect", NULL));
    assert_false(head_find(head, n, "late", NULL));
    assert_true(head_find(head, n, "key", &v));
    assert_int_equal(v.n, 3);
    assert_memory_equal(v.data, "a b", 3);
}

static void test_has_body(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        bool has;
    } cases[] = {
        {GET "Host: x\r\n\r\n", false},
        {GET "Content-Length: 0\r\n\r\n", false},
        {GET "Content-Length: 000\r\n\r\n", false},
        {GET "content-length:007 \r\n\r\n", true},
        {GET "X: y\r\nContent-Length: 10\r\n\r\n", true},
        {GET "Transfer-Encoding: chunked\r\n\r\n", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(head_has_body(cases[i].head, strlen(cases[i].head)), cases[i].has);
}

static void test_unframe(void **state)
{
    (void)state;
    char head[] = GET "Host: x\r\nContent-Length: 5\r\nX: y\r\ntransfer-encoding: chunked\r\n"
                      "Expect: 100-continue\r\nUpgrade: h2c\r\n\r\nContent-Length: 7\r\n";
    head_unframe(head, strlen(head));
    assert_string_equal(head, GET "Host: x\r\n_ontent-Length: 5\r\nX: y\r\n_ransfer-encoding: "
                                  "chunked\r\n_xpect: 100-continue\r\n_pgrade: "
                                  "h2c\r\n\r\nContent-Length: 7\r\n");
}

static const char *refused(const struct cors *c, const char *frontend_id, const char *method,
                           const char *headers)
{
    const struct cors_asked a = {frontend_id,    method,
                                 headers,        strlen(frontend_id),
                                 strlen(method), headers ? strlen(headers) : 0};
    const char *what = cors_refused(c, &a);
    return what ? what : "nothing";
}

static void test_cors(void **state)
{
    (void)state;
    static const char *const any[] = {"*"}, *const origins[] = {"https://a", "http://b:1"};
    static const char *const methods[] = {"GET"}, *const headers[] = {"X-One"};
    struct cors c = {{any, 1}, {any, 1}, {any, 1}, false};
    assert_false(cors_varies(&c));
    assert_string_equal(refused(&c, "null", "PUT", "x, y"), "nothing");
    assert_string_equal(refused(&c, "http://x", "TRACE", NULL), "method");
    c.credentials = true;
    assert_true(cors_varies(&c)); /* no browser takes "*" with credentials */
    c = (struct cors){{origins, 2}, {methods, 1}, {headers, 1}, false};
    assert_true(cors_varies(&c));
    assert_string_equal(refused(&c, "https://a", "GET", NULL), "nothing");
    assert_string_equal(refused(&c, "http://b:1", "GET", " x-one ,accept,,CONTENT-TYPE"),
                        "nothing");
    assert_string_equal(refused(&c, "http://b", "GET", NULL), "origin");
    assert_string_equal(refused(&c, "https://a", "POST", NULL), "method");
    assert_string_equal(refused(&c, "https://a", "GET", "x-one, x-two"), "headers");
}

static void test_coding(void **state)
{
    (void)state;
    assert_int_equal(coding_read("", 0), CODING_NONE);
    assert_int_equal(coding_read("Identity", 8), CODING_NONE);
    assert_int_equal(coding_read("GZIP", 4), CODING_GZIP);
    assert_int_equal(coding_read("x-gzip", 6), CODING_GZIP);
    assert_int_equal(coding_read("deflate", 7), CODING_DEFLATE);
    assert_int_equal(coding_read("gzip ", 5), CODING_UNKNOWN);
    assert_int_equal(coding_read("br", 2), CODING_UNKNOWN);
}

/* Every cut of a packed text is an error, and the limit holds to the byte. */
static void test_unpack(void **state)
{
    (void)state;
    static const unsigned char packed[] = {0x1f, 0x8b, 8,    0,    0,    0,    0,    0, 2,
                                           3,    0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0, 0x86,
                                           0xa6, 0x10, 0x36, 5,    0,    0,    0}; /* "hello" */
    for (size_t n = 0; n <= sizeof packed; n++) {
        for (size_t max = 4; max <= 6; max++) {
            struct q_err e = Q_ERR_INIT;
            struct buf out = BUF_INIT_MAX(max);
            enum q_code rc = unpack(&out, CODING_GZIP, (const char *)packed, n, &e);
            bool whole = n == sizeof packed && max >= 5;
            assert_int_equal(rc == Q_OK, whole);
            if (whole)
                assert_string_equal(buf_str(&out), "hello");
            else if (n == sizeof packed)
                assert_int_equal(rc, Q_TOO_LARGE);
            buf_release(&out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),  cmocka_unit_test(test_blank),
        cmocka_unit_test(test_chunks),  cmocka_unit_test(test_fields),
        cmocka_unit_test(test_find),    cmocka_unit_test(test_has_body),
        cmocka_unit_test(test_unframe), cmocka_unit_test(test_cors),
        cmocka_unit_test(test_coding),  cmocka_unit_test(test_unpack)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
