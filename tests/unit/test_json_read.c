/* SPDX-License-Identifier: Apache-2.0 */
/* jansson's parser where one allocation fails, or all from one on: no result, or the whole one. */
#include "check.h"
#include <jansson.h>
#include "common/buf.h"
#include "common/json_read.h"
#include "common/mem.h"

/* A string of n letters, an escape in it, and other values around it. */
static void make_text(struct buf *b, size_t n)
{
    buf_add_str(b, "{\"numbers\": [1234567890123456, -1.2345678901234567890123456e-7, 17], \"");
    for (size_t i = 0; i < n; i++)
        buf_add(b, &"abcdefghijklmnopqrstuvwxyz"[i % 26], 1);
    buf_add_str(b, "\\u00e9\\n\": [\"");
    for (size_t i = 0; i < n; i++)
        buf_add(b, i % 9 ? "x" : "\xc3\xa9", i % 9 ? 1 : 2);
    buf_add_str(b, "\", {\"a\": null, \"b\": {}, \"c\": [[true]]}]}");
    assert_false(b->failed);
}

struct piece {
    const struct buf *text;
    size_t at;
};

static size_t read_piece(void *out, size_t room, void *from)
{
    struct piece *p = from;
    const size_t left = p->text->len - p->at, n = left < room ? left : room;
    memcpy(out, p->text->data + p->at, n);
    p->at += n;
    return n;
}

static json_t *read_by(int way, const struct buf *b, json_error_t *error)
{
    struct piece p = {b, 0};
    return way == 0   ? json_read_bytes(b->data, b->len, 0, error)
           : way == 1 ? json_read_string(b->data, 0, error)
                      : json_read_callback(read_piece, &p, 0, error);
}

/* True if the failure was met. */
static bool one_failure(const struct buf *b, const json_t *want, int way, void (*fails)(int64_t),
                        int64_t n)
{
    json_error_t error;
    const uint64_t before = mem_failure_count();
    fails(n);
    json_t *v = read_by(way, b, &error);
    fails(-1);
    const bool has_failed = mem_failure_count() != before;
    if (has_failed && (v || json_error_code(&error) != json_error_out_of_memory))
        fail_msg("way %d, allocation %d of %zu bytes: %s", way, (int)n, b->len,
                 v ? "a result" : error.text);
    if (!has_failed && !json_equal(v, want))
        fail_msg("way %d, %zu bytes: another result: %s", way, b->len, v ? "" : error.text);
    json_decref(v);
    return has_failed;
}

static void a_failed_allocation_is_no_result(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 5, 40, 700, 2100, 4100, 70000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct buf b = BUF_INIT;
        make_text(&b, lengths[i]);
        json_t *want = json_read_string(buf_str(&b), 0, NULL);
        assert_non_null(want);
        for (int way = 0; way < 3; way++) {
            int64_t n_once = 0, n_after = 0;
            while (one_failure(&b, want, way, mem_fail_once, n_once))
                n_once++;
            while (one_failure(&b, want, way, mem_fail_after, n_after))
                n_after++;
            assert_true(n_once > 20 && n_once == n_after);
        }
        json_decref(want);
        buf_release(&b);
    }
}

/* Errors of the text stay those of jansson. */
static void errors_of_the_text(void **state)
{
    (void)state;
    json_error_t error;
    assert_null(json_read_string("{\"a\": [1, }", 0, &error));
    assert_int_equal(json_error_code(&error), json_error_invalid_syntax);
    assert_null(json_read_bytes("{\"a\"", 4, 0, &error));
    assert_int_equal(json_error_code(&error), json_error_premature_end_of_input);
    assert_null(json_read_string("[1e999]", 0, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_allocation_is_no_result),
                                       cmocka_unit_test(errors_of_the_text)};
    json_use_mem();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
