/* SPDX-License-Identifier: Apache-2.0 */
/* batch: lines of OpenAI's batch format, the file of results across interruptions, full disks and
 * mistakes, custom_ids that come twice. The whole verb: tests/e2e/test_batch.py. */
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/file.h"
#include "common/mem.h"
#include "frontend/cli/batch_line.h"
#include "frontend/cli/batch_out.h"

static enum q_code read_line(struct batch_line *l, const char *text, struct q_err *e)
{
    q_err_reset(e);
    return batch_line_read(l, &(struct batch_form){.n_line = 7}, text, strlen(text), e);
}

static void lines_may_be_bodies_by_themselves(void **state)
{
    (void)state;
    static const struct {
        const char *text, *id, *body; /* body NULL: an error that contains id */
        enum batch_url url;
        bool chats, raw;
    } cases[] = {
        {"{\"prompt\":\"a\",\"max_tokens\":3}", "line-7", "{\"prompt\":\"a\",\"max_tokens\":3}",
         BATCH_COMPLETIONS, false, false},
        {"{\"prompt\":\"a\",\"seed\":3}", "line-7",
         "{\"seed\":3,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", BATCH_CHAT, true,
         false},
        {"{\"prompt\":\"a\"}", "line-7", "{\"prompt\":\"a\"}", BATCH_COMPLETIONS, false, true},
        {"{\"prompt\":[1,2],\"custom_id\":\"x\"}", "x", "{\"prompt\":[1,2]}", BATCH_COMPLETIONS,
         true, false},
        {"{\"messages\":[],\"custom_id\":\"x\"}", "x", "{\"messages\":[]}", BATCH_CHAT, false,
         false},
        {"{\"messages\":[]}", "messages: not accepted with --raw", NULL, BATCH_CHAT, false, true},
        {"{\"messages\":[],\"stream\":true}", "stream: streaming is not possible in a batch", NULL,
         BATCH_CHAT, true, false},
        {"{\"prompt\":\"a\",\"custom_id\":1}", "custom_id: expected a string", NULL, BATCH_CHAT,
         true, false},
        {"{\"prompt\":\"a\",\"url\":\"/v1/completions\"}", "custom_id: is missing", NULL,
         BATCH_CHAT, true, false},
        {"{\"max_tokens\":3}", "custom_id: is missing", NULL, BATCH_CHAT, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct q_err e = Q_ERR_INIT;
        struct batch_line l;
        const struct batch_form f = {.n_line = 7, .chats = cases[i].chats, .raw = cases[i].raw};
        enum q_code rc = batch_line_read(&l, &f, cases[i].text, strlen(cases[i].text), &e);
        if (!cases[i].body) {
            assert_true(rc && strstr(e.message, cases[i].id));
        } else {
            assert_ok(rc, &e);
            assert_string_equal(l.custom_id, cases[i].id);
            assert_string_equal(buf_str(&l.body), cases[i].body);
            assert_int_equal(l.url, cases[i].url);
        }
        batch_line_release(&l);
    }
}

static void lines_are_read(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct batch_line l;
    assert_ok(read_line(&l,
                        "{\"custom_id\":\"a\\u00e9\",\"method\":\"POST\",\"url\":"
                        "\"/v1/completions\", \"body\": {\"prompt\": [1, 2.5], \"x\":null}}",
                        &e),
              &e);
    assert_string_equal(l.custom_id, "a\xc3\xa9");
    assert_int_equal(l.url, BATCH_COMPLETIONS);
    assert_string_equal(buf_str(&l.body), "{\"prompt\":[1,2.5],\"x\":null}");
    batch_line_release(&l);
}

static void bad_lines_say_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum q_code code;
        const char *says;
        bool has_id;
    } bad[] = {
        {"", Q_INVALID, "cannot read", false},
        {"[1]", Q_INVALID, "object", false},
        {"{\"custom_id\":1}", Q_INVALID, "custom_id: expected a string, got an integer", false},
        {"{\"method\":\"POST\"}", Q_INVALID, "custom_id: is missing", false},
        {"{\"custom_id\":\"\"}", Q_INVALID, "custom_id: expected 1 to 512 bytes", false},
        {"{\"custom_id\":\"a\"}", Q_INVALID, "method: is missing", true},
        {"{\"custom_id\":\"a\",\"method\":\"GET\",\"url\":\"/v1/completions\"}", Q_INVALID,
         "method: is \"GET\", expected POST", true},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v2\"}", Q_INVALID,
         "url: unknown endpoint \"/v2\"; accepted are", true},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/moderations\",\"body\":{}}",
         Q_UNSUPPORTED, "is not supported; accepted are", true},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}",
         Q_INVALID, "body: expected an object, got an array", true},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\"}", Q_INVALID,
         "body: expected an object, got nothing", true},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
         "{\"stream\":true}}",
         Q_UNSUPPORTED, "not possible", true},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct q_err e = Q_ERR_INIT;
        struct batch_line l;
        assert_fails(read_line(&l, bad[i].text, &e), bad[i].code, bad[i].says, &e);
        assert_int_equal(l.custom_id != NULL, bad[i].has_id);
        batch_line_release(&l);
    }
}

static void add_answer(struct buf *out, const char *id, int status)
{
    struct buf body = BUF_INIT;
    buf_add_str(&body, "{\"a\":[]}");
    batch_answer_line(out, id, &(struct batch_answer){status, "r1", &body});
    buf_release(&body);
}

static void results_are_read_again(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct batch_done d;
    add_answer(&b, "x\"y", 200);
    assert_ok(batch_done_read(&d, b.data, b.len - 1, &e), &e);
    assert_string_equal(d.custom_id, "x\"y");
    assert_false(d.duplicate || d.failed);
    q_free(d.custom_id);
    buf_reset(&b);
    batch_error_line(&b, NULL, &(struct batch_error){"invalid_line", "no \"JSON\"", 17});
    assert_ok(batch_done_read(&d, b.data, b.len - 1, &e), &e);
    assert_null(d.custom_id);
    assert_int_equal(d.line, 17);
    assert_true(d.failed);
    buf_reset(&b);
    batch_error_line(&b, "z", &(struct batch_error){BATCH_DUPLICATE, "again", 3});
    assert_ok(batch_done_read(&d, b.data, b.len - 1, &e), &e);
    assert_true(d.duplicate);
    q_free(d.custom_id);
    assert_fails(batch_done_read(&d, "{}", 2, &e), Q_CORRUPT, "response", &e);
    assert_fails(batch_done_read(&d, "{\"id", 4, &e), Q_CORRUPT, "JSON", &e);
    buf_release(&b);
}

static char path[64];

static void write_file(const struct buf *b)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(file_write(path, buf_str(b), b->len, 0600, &e), &e);
}

static bool answered(struct batch_ids *ids, const char *id)
{
    struct q_err e = Q_ERR_INIT;
    struct batch_entry *entry = NULL;
    assert_ok(batch_ids_find(ids, id, 0, &entry, &e), &e);
    return entry->answered;
}

/* Whatever byte the last run ended at, whole lines count and the torn one does not. */
static void a_torn_end_is_cut_off(void **state)
{
    (void)state;
    struct buf whole = BUF_INIT;
    add_answer(&whole, "a", 200);
    size_t one = whole.len;
    add_answer(&whole, "b", 400);
    for (size_t n = 0; n <= whole.len; n++) {
        struct q_err e = Q_ERR_INIT;
        struct batch_ids ids = BATCH_IDS_INIT;
        struct batch_out o;
        struct buf part = BUF_INIT, now = BUF_INIT, line = BUF_INIT;
        buf_add(&part, whole.data, n);
        write_file(&part);
        assert_ok(batch_out_open(&o, path, &ids, &e), &e);
        assert_int_equal(o.n_line, (n >= one) + (n == whole.len));
        assert_int_equal(o.n_failed, n == whole.len);
        assert_int_equal(answered(&ids, "a"), n >= one);
        assert_int_equal(answered(&ids, "b"), n == whole.len);
        add_answer(&line, "c", 200);
        assert_ok(batch_out_write(&o, &line, &e), &e);
        assert_ok(batch_out_close(&o, &e), &e);
        assert_ok(file_read(&now, path, 1 << 20, &e), &e);
        size_t kept = n >= whole.len ? whole.len : n >= one ? one : 0;
        assert_int_equal(now.len, kept + line.len);
        assert_memory_equal(now.data, whole.data, kept);
        assert_memory_equal(now.data + kept, line.data, line.len);
        batch_ids_release(&ids);
        buf_release(&part);
        buf_release(&now);
        buf_release(&line);
    }
    buf_release(&whole);
}

static void another_file_is_not_overwritten(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct batch_ids ids = BATCH_IDS_INIT;
    struct batch_out o, second;
    struct buf b = BUF_INIT;
    buf_add_str(&b, "dear diary\nit rained\n");
    write_file(&b);
    assert_fails(batch_out_open(&o, path, &ids, &e), Q_CORRUPT, "line 1 is not a batch result", &e);
    q_err_reset(&e);
    assert_ok(batch_out_close(&o, &e), &e);
    buf_reset(&b);
    add_answer(&b, "a", 200);
    write_file(&b);
    assert_ok(batch_out_open(&o, path, &ids, &e), &e);
    assert_fails(batch_out_open(&second, path, &ids, &e), Q_IO, "another run", &e);
    q_err_reset(&e);
    assert_ok(batch_out_close(&second, &e), &e);
    assert_ok(batch_out_close(&o, &e), &e);
    batch_ids_release(&ids);
    buf_release(&b);
}

/* A disk that is full takes a part of a line: it is taken back. */
static void a_full_disk_leaves_whole_lines(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct batch_ids ids = BATCH_IDS_INIT;
    struct batch_out o;
    struct buf empty = BUF_INIT, line = BUF_INIT, now = BUF_INIT;
    struct rlimit before, small;
    write_file(&empty);
    add_answer(&line, "a", 200);
    assert_ok(batch_out_open(&o, path, &ids, &e), &e);
    assert_ok(batch_out_write(&o, &line, &e), &e);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = line.len + line.len / 2;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum q_code rc = batch_out_write(&o, &line, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(rc, Q_IO, "cannot write the output", &e);
    assert_ok(file_read(&now, path, 1 << 20, &e), &e);
    assert_int_equal(now.len, line.len);
    q_err_reset(&e);
    assert_ok(batch_out_write(&o, &line, &e), &e); /* there is room again */
    assert_ok(batch_out_close(&o, &e), &e);
    batch_ids_release(&ids);
    buf_release(&line);
    buf_release(&now);
}

static void many_ids_are_told_apart(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct batch_ids ids = BATCH_IDS_INIT;
    struct batch_entry *entry = NULL;
    char id[32];
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < 5000; i++) {
            snprintf(id, sizeof id, "%u", i);
            assert_ok(batch_ids_find(&ids, id, 0, &entry, &e), &e);
            assert_int_equal(entry->n_seen++, round);
            assert_ok(batch_ids_find(&ids, NULL, i, &entry, &e), &e); /* a line is no id */
            assert_int_equal(entry->n_seen++, round);
        }
    assert_int_equal(ids.n, 10000);
    batch_ids_release(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(lines_may_be_bodies_by_themselves),
        cmocka_unit_test(bad_lines_say_what_is_wrong),
        cmocka_unit_test(results_are_read_again),
        cmocka_unit_test(a_torn_end_is_cut_off),
        cmocka_unit_test(another_file_is_not_overwritten),
        cmocka_unit_test(a_full_disk_leaves_whole_lines),
        cmocka_unit_test(many_ids_are_told_apart),
    };
    snprintf(path, sizeof path, "/tmp/quire-batch-%d", (int)getpid());
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
