/* SPDX-License-Identifier: Apache-2.0 */
/* Tool-call parsers: every text of tests/data/toolstreams in every cut; what real templates write
 * (../shared, skipped when absent); limits and failing allocations. */
#include "check.h"
#include <jansson.h>
#include <stdlib.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/mem.h"
#include "frontend/parsers/json_scan.h"
#include "frontend/parsers/tool.h"

#define STREAMS "tests/data/toolstreams/hermes.json"
#define REAL    "../shared/data/toolcalls/from-templates/tool_call_texts.json"
#define SEED    20260902u

static struct q_err err;

struct result { /* all events, joined */
    struct buf content;
    struct buf name[TOOL_CALLS_MAX], args[TOOL_CALLS_MAX];
    uint32_t n_call, n_end;
    size_t n_event;
    bool failing; /* the sink refuses */
};

static enum q_code sink(void *ctx, const struct tool_event *event, struct q_err *e)
{
    struct result *r = ctx;
    r->n_event++;
    if (r->failing)
        return q_fail(e, Q_CANCELLED, "the client is gone");
    switch (event->kind) {
    case TOOL_CONTENT:
        assert_true(event->n > 0);
        buf_add(&r->content, event->text, event->n);
        return buf_check(&r->content, "content", e);
    case TOOL_CALL_BEGIN:
        assert_int_equal(event->call, r->n_call);
        assert_true(event->n > 0);
        buf_add(&r->name[r->n_call], event->text, event->n);
        return buf_check(&r->name[r->n_call++], "name", e);
    case TOOL_CALL_ARGS:
        assert_int_equal(event->call, r->n_call - 1);
        buf_add(&r->args[event->call], event->text, event->n);
        return buf_check(&r->args[event->call], "args", e);
    case TOOL_CALL_END:
        assert_int_equal(event->call, r->n_call - 1);
        assert_true(json_scan_valid(buf_str(&r->args[event->call]), r->args[event->call].len));
        r->n_end++;
        return Q_OK;
    }
    return Q_INTERNAL;
}

static void result_release(struct result *r)
{
    buf_release(&r->content);
    for (size_t i = 0; i < TOOL_CALLS_MAX; i++) {
        buf_release(&r->name[i]);
        buf_release(&r->args[i]);
    }
    memset(r, 0, sizeof *r);
}

/* Parse text cut at the n_cut positions. */
static enum q_code parse(const char *format, const json_t *text, const size_t *cut, size_t n_cut,
                         struct result *r)
{
    struct tool_parser *p = NULL;
    const char *s = json_string_value(text);
    size_t at = 0, n = json_string_length(text);
    enum q_code rc = tool_parser_new(&p, format, &err);
    for (size_t i = 0; i <= n_cut && !rc; i++) {
        size_t to = i < n_cut ? cut[i] : n;
        char *piece = malloc(to - at + 1); /* its own memory, so that reading past it is seen */
        memcpy(piece, s + at, to - at);
        rc = tool_parser_feed(p, piece, to - at, sink, r, &err);
        free(piece);
        at = to;
    }
    if (!rc)
        rc = tool_parser_finish(p, sink, r, &err);
    if (p && !rc)
        assert_int_equal(tool_parser_n_calls(p), r->n_call);
    tool_parser_free(p);
    return rc;
}

static bool same(const struct buf *b, const json_t *want)
{
    return b->len == json_string_length(want) &&
           memcmp(buf_str(b), json_string_value(want), b->len) == 0;
}

static void check_row(const json_t *row, const size_t *cut, size_t n_cut)
{
    static struct result r;
    const json_t *calls = json_object_get(row, "calls");
    assert_ok(parse("hermes", json_object_get(row, "text"), cut, n_cut, &r), &err);
    bool good = same(&r.content, json_object_get(row, "content")) &&
                r.n_call == json_array_size(calls) &&
                r.n_end == json_integer_value(json_object_get(row, "complete"));
    for (size_t i = 0; i < r.n_call && good; i++)
        good = same(&r.name[i], json_array_get(json_array_get(calls, i), 0)) &&
               same(&r.args[i], json_array_get(json_array_get(calls, i), 1));
    if (!good)
        fail_msg("%s in %zu cuts (first %zu): content \"%s\", %u calls (%s %s), %u ended",
                 json_string_value(json_object_get(row, "text")), n_cut, n_cut ? cut[0] : 0,
                 buf_str(&r.content), r.n_call, buf_str(&r.name[0]), buf_str(&r.args[0]), r.n_end);
    result_release(&r);
}

static void all_cuts(void **state)
{
    (void)state;
    json_t *rows = json_load_file(STREAMS, JSON_ALLOW_NUL, NULL), *row;
    size_t i, cut[4096];
    uint32_t random = SEED;
    assert_non_null(rows);
    json_array_foreach (rows, i, row) {
        size_t n = json_string_length(json_object_get(row, "text"));
        assert_true(n < 4096);
        check_row(row, NULL, 0);
        for (cut[0] = 0; cut[0] <= n; cut[0]++)
            check_row(row, cut, 1);
        for (size_t k = 0; k < n; k++)
            cut[k] = k;
        check_row(row, cut, n);
        for (int round = 0; round < 100; round++) {
            size_t n_cut = 0;
            for (size_t at = 0; at < n; at++) {
                random = random * 1664525u + 1013904223u;
                if ((random >> 24) % (2 + (uint32_t)round % 9) == 0)
                    cut[n_cut++] = at;
            }
            check_row(row, cut, n_cut);
        }
    }
    assert_true(i >= 40);
    print_message("%zu texts, all cuts in two, single bytes, 100 groupings each (seed %u)\n", i,
                  SEED);
    json_decref(rows);
}

/* --- what real templates write ---------------------------------------------------------------- */

static bool calls_agree(const struct result *r, const json_t *want)
{
    bool good = r->n_call == json_array_size(want) && r->n_end == r->n_call;
    for (size_t i = 0; i < r->n_call && good; i++) {
        const json_t *f = json_object_get(json_array_get(want, i), "function");
        json_t *args = json_loadb(buf_str(&r->args[i]), r->args[i].len, JSON_DECODE_ANY, NULL);
        good = same(&r->name[i], json_object_get(f, "name")) && args &&
               json_equal(args, json_object_get(f, "arguments"));
        json_decref(args);
    }
    return good;
}

static void real_texts(void **state)
{
    (void)state;
    static struct result r;
    if (!file_exists(REAL)) {
        print_message("skipped: " REAL " is not there\n");
        skip();
    }
    json_t *set = json_load_file(REAL, JSON_ALLOW_NUL, NULL), *entry, *texts, *text;
    size_t i, n = 0, n_bad = 0;
    const char *name, *field;
    json_array_foreach (json_object_get(set, "templates"), i, entry)
        json_object_foreach (json_object_get(entry, "results"), name, texts)
            json_object_foreach (texts, field, text) {
                const char *s = json_string_value(text), *tag = s ? strstr(s, "<tool_call>") : NULL;
                if (!tag ||
                    (strcmp(field, "completion") != 0 && strcmp(field, "after_user_turn") != 0))
                    continue;
                const char *in =
                    tag + strlen("<tool_call>") + strspn(tag + strlen("<tool_call>"), " \n");
                if (strncmp(in, "{\"", 2) != 0 || strstr(s, "</arg_value>"))
                    continue; /* the tag, but another format inside */
                assert_ok(parse("hermes", text, NULL, 0, &r), &err);
                const json_t *want = json_object_get(
                    json_object_get(json_object_get(set, "expected"), name), "tool_calls");
                if (!calls_agree(&r, want) && n_bad++ < 5)
                    print_error("%s, %s: %.300s\n",
                                json_string_value(json_object_get(entry, "template")), name, s);
                n++;
                result_release(&r);
            }
    print_message("%zu of %zu texts in Hermes form give the expected calls\n", n - n_bad, n);
    assert_int_equal(n_bad, 0);
    assert_true(n > 0);
    json_decref(set);
}

/* --- the framework ---------------------------------------------------------------------------- */

static void framework(void **state)
{
    (void)state;
    static struct result r;
    struct tool_parser *p = NULL;
    assert_fails(tool_parser_new(&p, "nope", &err), Q_NOT_FOUND, "hermes", &err);
    assert_string_equal(tool_parser_names()[0], "hermes");
    json_t *text = json_string("a <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> b");
    assert_ok(parse("none", text, NULL, 0, &r), &err);
    assert_true(same(&r.content, text));
    result_release(&r);
    r.failing = true;
    assert_fails(parse("hermes", text, NULL, 0, &r), Q_CANCELLED, "gone", &err);
    assert_int_equal(r.n_event, 1);
    result_release(&r);
    tool_parser_free(NULL);
    json_decref(text);
}

/* Arguments go out as they come, not at the end. */
static void streams(void **state)
{
    (void)state;
    static struct result r;
    struct tool_parser *p = NULL;
    const char *head = "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"abc";
    assert_ok(tool_parser_new(&p, "hermes", &err), &err);
    assert_ok(tool_parser_feed(p, head, strlen(head), sink, &r, &err), &err);
    assert_int_equal(r.n_call, 1);
    assert_string_equal(buf_str(&r.args[0]), "{\"text\": \"abc");
    assert_ok(tool_parser_feed(p, "d", 1, sink, &r, &err), &err);
    assert_string_equal(buf_str(&r.args[0]), "{\"text\": \"abcd");
    tool_parser_free(p);
    result_release(&r);
}

static void limits(void **state)
{
    (void)state;
    static struct result r;
    struct buf b = BUF_INIT;
    for (int i = 0; i < TOOL_CALLS_MAX + 1; i++)
        buf_add_str(&b, "<tool_call>{\"name\": \"f\"}</tool_call>");
    json_t *text = json_stringn(buf_str(&b), b.len);
    assert_ok(parse("hermes", text, NULL, 0, &r), &err);
    assert_int_equal(r.n_call, TOOL_CALLS_MAX);
    assert_string_equal(buf_str(&r.content), "<tool_call>{\"name\": \"f\"}</tool_call>");
    result_release(&r);
    json_decref(text);
    buf_reset(&b);
    buf_add_str(&b, "<tool_call>{\"arguments\": \"");
    for (size_t i = 0; i < TOOL_CALL_BYTES_MAX; i++)
        buf_add_char(&b, 'x');
    buf_add_str(&b, "\", \"name\": \"f\"}</tool_call>");
    text = json_stringn(buf_str(&b), b.len);
    assert_ok(parse("hermes", text, NULL, 0, &r), &err);
    assert_int_equal(r.n_call, 0);
    assert_true(same(&r.content, text));
    result_release(&r);
    json_decref(text);
    buf_reset(&b);
    buf_add_str(&b, "<tool_call>{\"name\": \"f\", \"arguments\": ");
    for (size_t i = 0; i < 2 * JSON_SCAN_DEPTH_MAX; i++)
        buf_add_char(&b, '[');
    text = json_stringn(buf_str(&b), b.len);
    assert_ok(parse("hermes", text, NULL, 0, &r), &err);
    assert_int_equal(r.args[0].len, JSON_SCAN_DEPTH_MAX);
    result_release(&r);
    json_decref(text);
    buf_release(&b);
}

static void allocations_fail(void **state)
{
    (void)state;
    static struct result r;
    json_t *text = json_string(
        "x<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}</tool_call>\n y"
        "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": 1}}</tool_call><tool_call>{\"b\": 1}");
    enum q_code rc = Q_NO_MEMORY;
    int n = 0;
    for (; rc != Q_OK && n < 300; n++) {
        mem_fail_after(n);
        rc = parse("hermes", text, NULL, 0, &r);
        mem_fail_after(-1);
        if (rc != Q_OK && rc != Q_NO_MEMORY)
            fail_msg("allocation %d: %s %s", n, q_code_name(rc), err.message);
        result_release(&r);
    }
    assert_int_equal(rc, Q_OK);
    assert_true(n > 5);
    json_decref(text);
}

static void scanner(void **state)
{
    (void)state;
    static const char *const good[] = {"1",  " -0.5e-7 ", "\"\\u00e9\\n\"",
                                       "[]", "{}",        "[1, {\"a\": [true, null]}]",
                                       "0",  "1e5",       "false"},
                             *const bad[] = {"",        "01",      "-",           "1.",     "1e",
                                             "[1,]",    "{\"a\"}", "{\"a\":1,}",  "{a:1}",  "nul",
                                             "\"\\x\"", "\"a",     "[",           "1 2",    "tru e",
                                             "+1",      ".5",      "\"\\u12g4\"", "\"\n\"", "]",
                                             "{]"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (!json_scan_valid(good[i], strlen(good[i])))
            fail_msg("%s refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (json_scan_valid(bad[i], strlen(bad[i])))
            fail_msg("%s accepted", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_cuts),  cmocka_unit_test(real_texts),
        cmocka_unit_test(framework), cmocka_unit_test(streams),
        cmocka_unit_test(limits),    cmocka_unit_test(allocations_fail),
        cmocka_unit_test(scanner),
    };
    return cmocka_run_group_tests_name("tool", tests, NULL, NULL);
}
