/* SPDX-License-Identifier: Apache-2.0 */
/* The template language by itself: snippets against jinja2's answers, places of errors, limits,
 * hostile templates, failing allocations. */
#include "check.h"
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/template/template.h"

#define SNIPPETS "tests/data/templates/tmpl-snippets.json"

static struct q_err err;
static struct template_fault fault;

static int64_t seconds(const char *iso)
{
    struct tm tm = {0};
    assert_non_null(strptime(iso, "%Y-%m-%dT%H:%M:%S", &tm));
    return timegm(&tm);
}

/* Compile and render in one go; variables may be NULL. */
static enum q_code run(const char *source, size_t n, const struct template_run *r, struct buf *out)
{
    struct template *t = NULL;
    fault = (struct template_fault){0};
    enum q_code rc = template_compile(&t, source, n, &fault, &err);
    if (!rc)
        rc = template_render(t, r, out, &fault, &err);
    template_free(t);
    return rc;
}

static enum q_code run_text(const char *source, const char *variables, struct buf *out)
{
    json_t *v = variables ? json_loads(variables, 0, NULL) : NULL;
    assert_true(!variables || v);
    const struct template_run r = {.variables = v, .now = 1};
    buf_reset(out);
    enum q_code rc = run(source, strlen(source), &r, out);
    json_decref(v);
    return rc;
}

static void gives(const char *source, const char *variables, const char *want)
{
    struct buf out = BUF_INIT;
    assert_ok(run_text(source, variables, &out), &err);
    if (strcmp(buf_str(&out), want) != 0)
        fail_msg("%s: got \"%s\", wanted \"%s\"", source, buf_str(&out), want);
    buf_release(&out);
}

static void refuses(const char *source, const char *type, uint32_t line, uint32_t column)
{
    struct buf out = BUF_INIT;
    enum q_code rc = run_text(source, "{\"x\": 1, \"d\": {}, \"l\": [1]}", &out);
    if (rc == Q_OK)
        fail_msg("%s: no error, got \"%s\"", source, buf_str(&out));
    if (strcmp(fault.type, type) != 0 || fault.line != line || fault.column != column)
        fail_msg("%s: got %s at %u:%u (%s), wanted %s at %u:%u", source, fault.type, fault.line,
                 fault.column, err.message, type, line, column);
    buf_release(&out);
}

/* ---- against jinja2 ---- */

static void snippets(void **state)
{
    (void)state;
    json_t *set = json_load_file(SNIPPETS, JSON_ALLOW_NUL, NULL), *c;
    assert_non_null(set);
    const struct template_run r = {
        .variables = json_object_get(set, "variables"),
        .now = seconds(json_string_value(json_object_get(set, "now"))),
    };
    size_t i, n_bad = 0;
    json_array_foreach (json_object_get(set, "cases"), i, c) {
        const json_t *source = json_object_get(c, "template"),
                     *want = json_object_get(c, "expected");
        const char *type = json_string_value(json_object_get(json_object_get(c, "error"), "type"));
        struct buf out = BUF_INIT;
        enum q_code rc = run(json_string_value(source), json_string_length(source), &r, &out);
        bool good = want ? !rc && out.len == json_string_length(want) &&
                               memcmp(buf_str(&out), json_string_value(want), out.len) == 0
                         : rc == Q_INVALID && strcmp(fault.type, type) == 0;
        if (!good && n_bad++ < 10)
            print_error("%s: got %s\n", json_string_value(source),
                        rc ? err.message : buf_str(&out));
        buf_release(&out);
    }
    print_message("%zu of %zu snippets as jinja2 has them\n", i - n_bad, i);
    assert_int_equal(n_bad, 0);
    assert_true(i > 400);
    json_decref(set);
}

/* Not in the golden set; the answers are jinja2 3.1.6's. */
static void language(void **state)
{
    (void)state;
    gives("{{ 'Ab-c d' | title }}|{{ 'ab c'.title() }}|{{ 'xyz' | capitalize }}", NULL,
          "Ab-C D|Ab C|Xyz");
    gives("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ loop.index }}{{ k }}{{ v }}{% endfor %}",
          NULL, "1a12b2");
    gives("{% set x = 'abc' %}{% set x = x ~ 'd' %}{% set y = x ~ 'e' %}{% set z = x ~ 'f' %}{{ x "
          "}}{{ y }}{{ z }}",
          NULL, "abcdabcdeabcdf");
    gives("{% set a = [1] + [2] %}{% set b = a + [3] %}{% set c = a + [4] %}{{ a }}{{ b }}{{ c }}",
          NULL, "[1, 2][1, 2, 3][1, 2, 4]");
    gives("{% for x in [1, 2] %}{% continue %}{% else %}e{% endfor %}", NULL, "e");
    gives("{% for x in [1] %}{% set y %}a{% break %}b{% endset %}{% endfor %}{{ y }}|", NULL, "|");
    gives("{% macro f(x) %}{{ x }}{{ caller() if caller else '' }}{% endmacro %}{{ f(1) }}", NULL,
          "1");
    gives("{% for i in range(2) %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", NULL,
          "01");
    gives("{% set g = [1, 2] | map('string') %}{{ g | join }}{{ g | join }}", NULL, "12");
    gives("{{ d.items is defined }}{{ d['items'] }}{{ d.keys() | list }}",
          "{\"d\": {\"items\": 5}}", "True5['items']");
    gives("{{ '%5.1f|%-4d|%+d|%%' % (2.25, 7, 3) }}", NULL, "  2.2|7   |+3|%");
    gives("{{ '{:>6.2f}|{:,}|{!r}|{a[k]}'.format(1.005, 1234567, 'x', a={'k': 1}) }}", NULL,
          "  1.00|1,234,567|'x'|1");
    gives("{{ 1e15 }} {{ 1e16 }} {{ 0.0001 }} {{ 0.00001 }} {{ 123456789.125 }} {{ 5e-324 }}", NULL,
          "1000000000000000.0 1e+16 0.0001 1e-05 123456789.125 5e-324");
    gives("{{ x is defined and x.y is defined }}{{ (x | default({})).y is undefined }}", NULL,
          "FalseTrue");
    gives("{{ 'a\u00e9\u4f60'[::-1] }}{{ 'a\u00e9\u4f60'[1] }}{{ 'a\u00e9\u4f60' | length }}", NULL,
          "\u4f60\u00e9a\u00e93");
}

/* Found by comparing random templates with jinja2 3.1.6. */
static void corners(void **state)
{
    (void)state;
    gives("{{ 5.684341886080802e-14 }} {{ 2.0 ** 300 }} {{ 1e22 + 1 }}", NULL,
          "5.684341886080802e-14 2.037035976334486e+90 1e+22");
    gives("{{ [nope, nope] | sort | length }}{{ ['b', 'A'] | sort(attribute='zz') }}", NULL,
          "2['b', 'A']");
    gives("{{ 'well--known semi-detached'|wordwrap(6) }}", NULL,
          "well--\nknown\nsemi-d\netache\nd");
    gives("{{ 'Hello World'|wordwrap(3, true, '|') }}", NULL, "Hel|lo |Wor|ld");
    gives("{{ '\u4e94'.isnumeric() }}{{ '\u2075'.isdigit() }}{{ '\u03a3\u03a3'.lower() }}", NULL,
          "TrueTrue\u03c3\u03c2");
    gives("{{ [] | truncate(8, true) }}{{ range(4).index(2) }}{{ 'x' is filter }}", NULL,
          "[]2False");
    refuses("{{ none[1:] }}", "TypeError", 1, 8);
    refuses("{% filter length %}abc{% endfilter %}", "TypeError", 1, 4);
    refuses("{{ '%.\u0354' | format(1) }}", "ValueError", 1, 12);
}

static void *render_often(void *shared)
{
    const struct template *t = shared;
    struct q_err e = Q_ERR_INIT;
    const struct template_run r = {.now = 1};
    for (int i = 0; i < 200; i++) {
        struct buf out = BUF_INIT;
        if (template_render(t, &r, &out, NULL, &e) ||
            strcmp(buf_str(&out), "h\u00e9llo 5 \u00e9 [1, 2]xx") != 0)
            return shared;
        buf_release(&out);
    }
    return NULL;
}

/* One compiled template, four threads (looked at by tsan). */
static void threads_share(void **state)
{
    (void)state;
    const char *source =
        "{% macro m(s) %}{{ s ~ ' ' ~ s|length ~ ' ' ~ s[1] }}{% endmacro %}{{ m('h\u00e9llo') }} "
        "{{ [1] + [2] }}{% for i in 'ab' %}{{ 'x' }}{% endfor %}";
    struct template *t = NULL;
    pthread_t thread[4];
    assert_ok(template_compile(&t, source, strlen(source), NULL, &err), &err);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    template_free(t);
}

static void long_texts_stay_linear(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    const struct template_limits limits = {1u << 20, 8u << 20, 2000000, 500};
    const struct template_run r = {.now = 1, .limits = &limits};
    const char *source =
        "{% set ns = namespace(s='', l=[]) %}{% for i in range(20000) %}{% set ns.s = ns.s ~ "
        "'abcdefgh' %}"
        "{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.s | length }} {{ ns.l | length }}";
    assert_ok(run(source, strlen(source), &r, &out), &err);
    assert_string_equal(buf_str(&out), "160000 20000");
    buf_release(&out);
}

/* ---- errors ---- */

static void places(void **state)
{
    (void)state;
    refuses("ab\n  {{ x.y.z }}", "UndefinedError", 2, 9);
    refuses("{{ 1 +\n   nope.a }}", "UndefinedError", 2, 8);
    refuses("\u00e9\u00e9 {{ l[9].a }}", "UndefinedError", 1, 11);
    refuses("{% if x %}\n{{ d | nofilter }}", "TemplateSyntaxError", 2, 19);
    refuses("{{ d | nofilter }}", "TemplateAssertionError", 1, 8);
    refuses("{% for %}", "TemplateSyntaxError", 1, 8);
    refuses("a\n\n{{ raise_exception('no') }}", "TemplateError", 3, 19);
    refuses("{{ 'abc", "TemplateSyntaxError", 1, 4);
    refuses("{# x", "TemplateSyntaxError", 1, 1);
    refuses("{% raw %} x", "TemplateSyntaxError", 1, 1);
    assert_string_equal(err.message,
                        "chat template line 1, column 1: Missing end of raw directive");
    refuses("{{ raise_exception('Only user and assistant roles are supported!') }}",
            "TemplateError", 1, 19);
    assert_string_equal(err.message, "Only user and assistant roles are supported!");
    refuses("{{ d.a.b }}", "UndefinedError", 1, 7);
    assert_string_equal(err.message,
                        "chat template line 1, column 7: 'dict object' has no attribute 'a'");
}

/* Blocks, and what is refused only when it is reached; as jinja2 3.1.6. */
static void blocks(void **state)
{
    (void)state;
    static const char *const variables = "{\"x\": 3, \"l\": [1, 2], \"d\": {\"k\": 1, \"z\": [5]}}";
    gives(
        "{% with x = 5 %}{% block y scoped %}{{ x }}{% endblock %}{% block n %}{{ x }}{% endblock "
        "%}{% endwith %}",
        variables, "53");
    gives("{% for i in l %}{% block y scoped %}{{ i }}{{ loop.last }}{% endblock %}{% endfor %}",
          variables, "1False2True");
    gives("{{ self.f() }}{% set x = 7 %}{% block f %}<{{ x }}>{% endblock %}{{ self.f() | upper }}",
          variables, "<3><7><7>");
    gives("{% block a %}{{ self.b() }}{% endblock %}{% block b %}b{% endblock %}", NULL, "bb");
    gives("{{ self }}{{ self.nope }}{{ self.f is callable }}{{ self.f.name }}{% block f %}{% "
          "endblock %}",
          "{\"self\": 1}", "<TemplateReference None>Truef");
    gives("{% set self = 2 %}{{ self }}", NULL, "2");
    gives("{% for i in l %}{% macro m() %}{{ self.f() }}{% endmacro %}{{ m() }}{% endfor %}{% "
          "block f %}{{ x }}{% endblock %}",
          variables, "333");
    gives("{{ '{k}{z[0]}'.format_map(d) }}{{ 'x'.format_map(3) }}", variables, "15x");
    refuses("{{ self.nope() }}", "UndefinedError", 1, 13);
    refuses("{% block a %}{{ self.a() }}{% endblock %}", "LimitExceeded", 1, 17);
    refuses("{% block a %}{% endblock %} {% block a %}{% endblock %}", "TemplateAssertionError", 1,
            32);
    refuses("{% block a required %}{% endblock %}", "TemplateRuntimeError", 1, 4);
    refuses("{% block a required %}x{% endblock %}", "TemplateSyntaxError", 1, 36);
    refuses("{{ '{}'.format_map(d) }}", "IndexError", 1, 19);
    refuses("{{ '{q}'.format_map(d) }}", "KeyError", 1, 20);
    gives("{% if x == 4 %}{{ x | no }}{{ x is no }}{% endif %}a", variables, "a");
    gives("{{ x | no if x == 4 else 'b' }}{{ 'b' if x == 3 else (x is no) }}", variables, "bb");
    gives("{% if x == 4 %}{{ x | a.b }}{% with a = x | no %}{% endwith %}{% endif %}", variables,
          "");
    refuses("{% if x %}{{ x | no }}{% endif %}", "TemplateRuntimeError", 1, 18);
    refuses("{{ 1 if x is no }}", "TemplateRuntimeError", 1, 11);
    refuses("{{ false and x | no }}", "TemplateAssertionError", 1, 18);
    refuses("{{ x is a.b }}", "TemplateAssertionError", 1, 6);
    assert_string_equal(err.message, "chat template line 1, column 6: No test named 'a.b'.");
    static const char *const own_scope[] = {
        "{% if false %}{% for i in l %}{{ i | no }}{% endfor %}{% endif %}",
        "{% if false %}{% macro m(a=1 | no) %}{% endmacro %}{% endif %}",
        "{% if false %}{% filter no %}{% endfilter %}{% endif %}",
        "{% if false %}{% set a | no %}{% endset %}{% endif %}",
        "{% if false %}{% with a = 1 %}{{ a is no }}{% endwith %}{% endif %}",
        "{% if false %}{% block b %}{{ a is no }}{% endblock %}{% endif %}"};
    for (size_t i = 0; i < sizeof own_scope / sizeof *own_scope; i++) {
        struct buf out = BUF_INIT;
        assert_fails(run_text(own_scope[i], NULL, &out), Q_INVALID, "named 'no'", &err);
        assert_string_equal(fault.type, "TemplateAssertionError");
        buf_release(&out);
    }
}

static void sandbox(void **state)
{
    (void)state;
    refuses("{{ l.append(1) }}", "SecurityError", 1, 12);
    refuses("{{ ''.__class__.__mro__ }}", "SecurityError", 1, 16);
    refuses("{{ d.update({}) }}", "SecurityError", 1, 12);
    gives("[{{ l.append }}{{ ''.__class__ }}]", "{\"l\": []}", "[]");
}

/* ---- limits ---- */

static void hits_limit(const char *source)
{
    struct buf out = BUF_INIT;
    const struct template_limits limits = {1u << 20, 4u << 20, 1000000, 300};
    const struct template_run r = {.now = 1, .limits = &limits};
    enum q_code rc = run(source, strlen(source), &r, &out);
    if (rc != Q_TOO_LARGE && !(rc == Q_INVALID && strstr(err.message, "rang")))
        fail_msg("%s: %s %s", source, q_code_name(rc), err.message);
    buf_release(&out);
}

static void limits(void **state)
{
    (void)state;
    hits_limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    hits_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    hits_limit("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x "
               "%}{% endfor %}");
    hits_limit("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x "
               "%}{% endfor %}");
    hits_limit("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% "
               "endfor %}{{ ns.x }}");
    hits_limit("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% "
               "endfor %}{{ ns.x == [] or "
               "ns.x | tojson }}");
    hits_limit("{{ 'x' * 999999999 }}");
    hits_limit("{{ [0] * 99999999 }}");
    hits_limit("{{ range(999999999) }}");
    hits_limit("{{ 'x'.center(9999999) }}");
    hits_limit("{% for i in range(99999) %}{{ 'abcdefghijklmnopqrstuvwxyz' }}{% endfor %}");
    hits_limit("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    hits_limit("{% set s = 'ab' * 100000 %}{% for i in range(99999) %}{% if s.rfind('zz') > 0 %}{% "
               "endif %}{% endfor %}");
}

/* n times `unit` between `before` and `after`: must be refused or work, quickly. */
static void repeat_must_end(const char *before, const char *unit, const char *after)
{
    struct buf source = BUF_INIT, out = BUF_INIT;
    const struct template_run r = {.now = 1};
    buf_add_str(&source, before);
    for (int i = 0; i < 20000; i++)
        buf_add_str(&source, unit);
    buf_add_str(&source, after);
    enum q_code rc = run(buf_str(&source), source.len, &r, &out);
    assert_true(rc == Q_OK || rc == Q_INVALID || rc == Q_TOO_LARGE);
    buf_release(&source);
    buf_release(&out);
}

static void hostile(void **state)
{
    (void)state;
    static const char *const shapes[][3] = {
        {"{{ ", "(", ""},
        {"{{ ", "[", ""},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"{{ a", ".a", " }}"},
        {"{{ 1", "+1", " }}"},
        {"{{ 1", "|abs", " }}"},
        {"{{ 1", " if 1 else 1", " }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for a in b %}", ""},
        {"", "{#", ""},
        {"", "{% raw %}", ""},
        {"", "{%", ""},
        {"", "{{", ""},
        {"{{ ", "{", ""},
        {"{{ 1", "<1", " }}"},
        {"{{ '", "\\", "' }}"},
        {"{% if 1 %}", "{% elif 1 %}", "{% endif %}"},
        {"", "{{ a }}", ""},
        {"{{ f(", "a,", ") }}"},
        {"{{ f", "()", " }}"},
        {"{{ a", "[0]", " }}"},
        {"{{ 1", " is odd", " }}"},
        {"{% set ", "a,", "b = c %}"},
        {"{% set ", "(", "%}"},
        {"{{ 'a'", "'b'", " }}"},
        {"{{ 1", "~1", " }}"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        repeat_must_end(shapes[i][0], shapes[i][1], shapes[i][2]);
}

/* ---- memory ---- */

static void allocations_fail(void **state)
{
    (void)state;
    const char *source =
        "{% set ns = namespace(a=[1]) %}{% macro m(x, y=2) %}{{ x }}{{ y }}{{ varargs }}{% "
        "endmacro %}"
        "{% for m2 in l if m2 %}{{ m(m2, 3, 4) }}{% set ns.a = ns.a + [m2] %}{% endfor %}{{ ns.a | "
        "tojson }}"
        "{{ d | dictsort }}{{ 'a,b' .split(',') | join('-') }}{{ '%s' % x }}{{ 'é' * 3 }}"
        "{% filter upper %}q{% endfilter %}{{ {'a': 1, 'b': 2}.items() | list }}";
    json_t *v = json_loads("{\"l\": [1, 2, 0, 3], \"d\": {\"z\": 1, \"y\": [2]}, \"x\": \"text\"}",
                           0, NULL);
    const struct template_run r = {.variables = v, .now = 1};
    enum q_code rc = Q_NO_MEMORY;
    int n = 0;
    for (; rc != Q_OK && n < 500; n++) {
        struct buf out = BUF_INIT;
        mem_fail_after(n);
        rc = run(source, strlen(source), &r, &out);
        mem_fail_after(-1);
        if (rc != Q_OK && rc != Q_NO_MEMORY)
            fail_msg("allocation %d: %s %s", n, q_code_name(rc), err.message);
        buf_release(&out);
    }
    assert_int_equal(rc, Q_OK);
    assert_true(n > 8);
    json_decref(v);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snippets),
        cmocka_unit_test(language),
        cmocka_unit_test(corners),
        cmocka_unit_test(threads_share),
        cmocka_unit_test(long_texts_stay_linear),
        cmocka_unit_test(places),
        cmocka_unit_test(blocks),
        cmocka_unit_test(sandbox),
        cmocka_unit_test(limits),
        cmocka_unit_test(hostile),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
