/* SPDX-License-Identifier: Apache-2.0 */
/* Random normalizers, pre-tokenizers and decoders against the reference library (pipelines.json,
 * made by make_pipelines.py beside it), and what the pattern rewriting matches. */
#include "check.h"
#include <jansson.h>
#include "common/buf.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/tokenizer.h"

#define FOLDER "tests/data/tokenizers/"

static struct q_err err;

static json_t *load(const char *path)
{
    json_error_t why;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!j)
        fail_msg("%s:%d: %s", path, why.line, why.text);
    return j;
}

/* A tokenizer.json with the pipeline's own parts. */
static struct tokenizer *build(const json_t *base, const json_t *pipeline)
{
    struct tokenizer *t = NULL;
    json_t *spec = json_copy((json_t *)base);
    json_t *model = json_copy(json_object_get(base, "model"));
    json_object_update(model, json_object_get(pipeline, "model"));
    json_object_update(spec, json_object_get(pipeline, "changes"));
    json_object_set_new(spec, "model", model);
    char *text = json_dumps(spec, 0);
    assert_ok(tokenizer_from_json(&t, text, strlen(text), &err), &err);
    free(text);
    json_decref(spec);
    return t;
}

static bool same_ids(const json_t *want, const struct token_list *got)
{
    bool same = json_array_size(want) == got->n;
    for (size_t i = 0; i < got->n && same; i++)
        same = json_integer_value(json_array_get(want, i)) == (json_int_t)got->ids[i];
    return same;
}

static bool same_text(const json_t *want, const struct buf *got)
{
    return json_string_length(want) == got->len &&
           memcmp(json_string_value(want), buf_str(got), got->len) == 0;
}

static bool check_case(const struct tokenizer *t, const json_t *c)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf plain = BUF_INIT;
    struct buf skip = BUF_INIT;
    const json_t *text = json_object_get(c, "text");
    const char *s = json_string_value(text);
    if (text)
        assert_ok(tokenizer_encode(t, s, json_string_length(text), true, &ids, &err), &err);
    bool same = !text || same_ids(json_object_get(c, "ids"), &ids);
    ids.n = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(c, "ids")); i++) {
        json_int_t id = json_integer_value(json_array_get(json_object_get(c, "ids"), i));
        assert_ok(token_list_add(&ids, (uint32_t)id, &err), &err);
    }
    assert_ok(tokenizer_decode(t, ids.ids, ids.n, false, &plain, &err), &err);
    assert_ok(tokenizer_decode(t, ids.ids, ids.n, true, &skip, &err), &err);
    same = same && same_text(json_object_get(c, "decoded"), &plain) &&
           same_text(json_object_get(c, "decoded_skip"), &skip);
    token_list_release(&ids);
    buf_release(&plain);
    buf_release(&skip);
    return same;
}

static void test_pipelines(void **state)
{
    (void)state;
    int n_bad = 0;
    static const char *const names[] = {"gpt2", "spbpe_meta", "unigram", "wordpiece"};
    json_t *bases = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, FOLDER "%s/tokenizer.json", names[i]);
        json_object_set_new(bases, names[i], load(path));
    }
    json_t *all = load(FOLDER "pipelines.json");
    assert_true(json_array_size(all) >= 100);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *pipeline = json_array_get(all, i);
        const json_t *cases = json_object_get(pipeline, "cases");
        const char *base = json_string_value(json_object_get(pipeline, "base"));
        struct tokenizer *t = build(json_object_get(bases, base), pipeline);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            if (check_case(t, json_array_get(cases, k)))
                continue;
            char *changes = json_dumps(json_object_get(pipeline, "changes"), 0);
            char *shown = json_dumps(json_array_get(cases, k), 0);
            if (n_bad++ < 8)
                print_error("pipeline %zu: %s\n  case %s\n", i, changes, shown);
            free(changes);
            free(shown);
        }
        tokenizer_free(t);
    }
    assert_int_equal(n_bad, 0);
    json_decref(bases);
    json_decref(all);
}

/* Joins all matches with '|'. */
static void matches(const char *pattern, const char *text, char *out, size_t size)
{
    struct tok_regex *x = NULL;
    struct tok_regex_run run;
    struct tok_search q = {.s = text, .n = strlen(text)};
    size_t at = 0;
    out[0] = '\0';
    assert_ok(tok_regex_new(&x, pattern, strlen(pattern), "test", &err), &err);
    assert_ok(tok_regex_run_init(&run, &err), &err);
    for (size_t from = 0; from <= q.n;) {
        assert_ok(tok_regex_find(x, &run, &q, from, &err), &err);
        if (!q.found)
            break;
        at += (size_t)snprintf(out + at, size - at, "%s%.*s", at ? "|" : "", (int)(q.end - q.start),
                               text + q.start);
        from = q.end > q.start ? q.end : q.end + 1;
    }
    tok_regex_run_release(&run);
    tok_regex_free(x);
}

static void test_regex(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text, *want;
    } rows[] = {
        {"\\s+", "a \t\u00a0\u3000b\u180ec", " \t\u00a0\u3000"},
        {"\\w+", "na\u0308i_\u0663\u00b2 \u2460", "na\u0308i_\u0663\u00b2"},
        {"[\\w]+", "x\u00b2y", "x|y"},
        {"\\W", "a-\u00b2", "-"},
        {"\\h+", "xfF09gh a", "fF09|a"},
        {"a{1,2}+", "aaaaa", "aaaaa"},
        {"(ab|c){1,2}+d", "abcabd", "abcabd"},
        {"[x-z]{2}+", "xyzxy", "xyzx"},
        {"^a|b$", "ab\nab", "a|b|a|b"},
        {"(?m:a.b)", "a\nb", "a\nb"},
        {"a.b", "a\nb", ""},
        {"\\u4f60", "\u4f60", "\u4f60"},
        {"(?i:'S)", "'s 'S '\u017f", "'s|'S|'\u017f"},
        {"\\p{Han}+", "a\u4f60\u597d\u3001", "\u4f60\u597d"},
        {"\\p{^L}+", "a1 b", "1 "},
        {"[[:punct:]]", "a$\u20ac", "$|\u20ac"},
        {"[]a]", "]a[", "]|a"},
        {"\\p{N}{1,3}", "12345", "123|45"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char got[256];
        matches(rows[i].pattern, rows[i].text, got, sizeof got);
        if (strcmp(got, rows[i].want) != 0)
            fail_msg("%s on \"%s\": got \"%s\", wanted \"%s\"", rows[i].pattern, rows[i].text, got,
                     rows[i].want);
    }
}

static void test_regex_refused(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"[a[bc]]", "a class inside a class"},
        {"[a&&b]", "an intersection"},
        {"[\\W]", "\\W or \\H in a class"},
        {"(*COMMIT)a", "(*"},
        {"(?R)", "(?C or (?R"},
        {"(a", "invalid pattern"},
        {"\\p{Nonsense}", "invalid pattern"},
        {"[[:graph:]]", "this POSIX class"},
        {"\\p{L", "an incomplete \\p{"},
        {"a**?+{", "invalid pattern"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tok_regex *x = NULL;
        enum q_code rc = tok_regex_new(&x, rows[i][0], strlen(rows[i][0]), "here", &err);
        tok_regex_free(x);
        assert_fails(rc, Q_UNSUPPORTED, rows[i][1], &err);
    }
}

/* Exponential backtracking ends in an error, soon. */
static void test_regex_limit(void **state)
{
    (void)state;
    static const char pattern[] = "(a|aa|aaa)+$";
    char text[200];
    struct tok_regex *x = NULL;
    struct tok_regex_run run;
    struct tok_search q = {.s = text, .n = sizeof text};
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'c';
    assert_ok(tok_regex_new(&x, pattern, sizeof pattern - 1, "test", &err), &err);
    assert_ok(tok_regex_run_init(&run, &err), &err);
    assert_fails(tok_regex_find(x, &run, &q, 0, &err), Q_TOO_LARGE, "failed on this text", &err);
    tok_regex_run_release(&run);
    tok_regex_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_regex_refused),
        cmocka_unit_test(test_regex_limit),
        cmocka_unit_test(test_pipelines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
