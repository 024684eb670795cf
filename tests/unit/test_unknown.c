/* SPDX-License-Identifier: Apache-2.0 */
/* Names that are in no table, and roles that a template supports. */
#include "check.h"
#include "common/chat/roles.h"
#include "common/nearest.h"
#include "frontend/api/params.h"

static size_t n_compared; /* calls of nearest_name out of other files */
size_t __real_nearest_name(const char *name, const char *names, const char **nearest);
size_t __wrap_nearest_name(const char *name, const char *names, const char **nearest);
size_t __wrap_nearest_name(const char *name, const char *names, const char **nearest)
{
    n_compared++;
    return __real_nearest_name(name, names, nearest);
}

static void test_distance(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        size_t edits;
    } cases[] = {
        {"", "", 0},
        {"", "abc", 3},
        {"serve", "serve", 0},
        {"srve", "serve", 1},
        {"sevre", "serve", 1},
        {"kitten", "sitting", 3},
        {"--prot", "--port", 1},
        {"ca", "abc", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *a = cases[i].a, *b = cases[i].b;
        assert_int_equal(nearest_distance(a, strlen(a), b, strlen(b)), cases[i].edits);
        assert_int_equal(nearest_distance(b, strlen(b), a, strlen(a)), cases[i].edits);
    }
    char text[NEAREST_MAX + 2];
    memset(text, 'x', sizeof text);
    assert_int_equal(nearest_distance(text, NEAREST_MAX, text, NEAREST_MAX), 0);
    assert_int_equal(nearest_distance(text, NEAREST_MAX + 1, text, 2), NEAREST_MAX + 1);
}

static void test_nearest(void **state)
{
    (void)state;
    static const char names[] = "temperature top_p top_k n max_tokens max_completion_tokens stop";
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"temperatur", "temperature"},
        {"Temperature", "temperature"},
        {"tempreature", "temperature"},
        {"topP", "top_p"},
        {"top-k", "top_k"},
        {"tpo_k", "top_k"},
        {"maxTokens", "max_tokens"},
        {"max_new_tokens", "max_tokens"},
        {"max_completion_token", "max_completion_tokens"},
        {"stops", "stop"},
        {"", ""},
        {"x", ""},
        {"N", "n"},
        {"beam", ""},
        {"something_else", ""},
        {"a_name_much_longer_than_any_that_is_known_and_than_what_is_compared", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *nearest = "";
        size_t n = nearest_name(cases[i].name, names, &nearest);
        if (n != strlen(cases[i].want) || memcmp(nearest, cases[i].want, n) != 0)
            fail_msg("%s: %.*s", cases[i].name, (int)n, nearest);
    }
}

static void test_header(void **state)
{
    (void)state;
    struct unknown u = {0};
    struct q_err e = Q_ERR_INIT;
    assert_ok(unknown_check(&u, true, &e), &e);
    unknown_note(&u, "a\r\n\x01\xff%,b", "abc", 2);
    assert_string_equal(u.text, "ignored unknown fields: a%0D%0A%01%FF%25%2Cb (did you mean ab?)");
    assert_ok(unknown_check(&u, false, &e), &e);
    assert_fails(unknown_check(&u, true, &e), Q_INVALID, "did you mean ab?", &e);
    char name[1000];
    memset(name, 0xff, sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (int i = 0; i < 1000; i++) {
        unknown_note(&u, name + i % 999, name, 40);
        assert_true(strlen(u.text) < UNKNOWN_TEXT_MAX - 1);
    }
    assert_int_equal(u.n, 1001);
    char end[32];
    snprintf(end, sizeof end, " and %zu more", u.n_more);
    assert_string_equal(u.text + strlen(u.text) - strlen(end), end);
}

/* However many names come, few are looked up and listed; the others are counted. */
static void test_many(void **state)
{
    (void)state;
    static struct params p;
    struct q_err e = Q_ERR_INIT;
    json_t *body = json_pack("{s:{}, s:[{}]}", "response_format", "tools");
    json_t *inside[] = {body, json_object_get(body, "response_format"),
                        json_array_get(json_object_get(body, "tools"), 0)};
    for (int i = 0; i < 3 * 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "temperatur%d", i);
        json_object_set_new(inside[i % 3], name, json_true());
    }
    size_t before = n_compared;
    assert_ok(params_read(&p, body, WHERE_CHAT, &e), &e);
    assert_int_equal(p.unknown.n, 2 * 5000); /* those of tools resemble no name */
    assert_int_equal(p.unknown.n_looked, UNKNOWN_LOOK_MAX);
    assert_int_equal(n_compared - before, UNKNOWN_LOOK_MAX);
    assert_non_null(strstr(p.unknown.text, "(did you mean temperature?)"));
    size_t n_listed = 1;
    for (const char *at = p.unknown.text; (at = strstr(at, ", ")); at++)
        n_listed++;
    assert_true(n_listed <= UNKNOWN_LOOK_MAX);
    assert_int_equal(n_listed + p.unknown.n_more, p.unknown.n);
    assert_fails(unknown_check(&p.unknown, true, &e), Q_INVALID, "did you mean temperature?", &e);
    json_decref(body);
}

static void test_roles(void **state)
{
    (void)state;
    static const struct {
        const char *source, *role;
        bool there;
    } cases[] = {
        {"{% if message.role == 'ipython' %}", "ipython", true},
        {"{%- if message[\"role\"] == \"ipython\" -%}", "ipython", true},
        {"{% if 'ipython' == message.role %}", "ipython", true},
        {"{% if m.role in ['a', 'documents'] %}", "documents", true},
        {"{% if m.role in ('context') %}", "context", true},
        {"{% set roles = {'critic': 'C', 'b': 'D'} %}", "critic", true},
        {"{% if message.role == 'ipython' %}", "ipytho", false},
        {"{% if m['role'] == 'user' and m['content'] %}", "content", false},
        {"{% if m['role'] == 'user' and m.get('name') %}", "name", false},
        {"{% if m['role'] == 'user' %}", "role", false},
        {"role 'ipython'", "ipython", false},
        {"{{ x == 'ipython' }}", "ipython", false},
        {"{% if m.role == 'ipython'", "ipython", false},
        {"{% if m.role == 'a' %} 'ipython' {% endif %}", "ipython", false},
        {"", "x", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (role_in_template(cases[i].role, cases[i].source) != cases[i].there)
            fail_msg("%s in %s", cases[i].role, cases[i].source);
}

/* Each of the roles that every template is given, and no two of them in one text. */
static void test_known_roles(void **state)
{
    (void)state;
    static const struct {
        const char *role;
        bool known;
    } cases[] = {
        {"system", true},
        {"developer", true},
        {"user", true},
        {"assistant", true},
        {"tool", true},
        {"function", true},
        {"user assistant", false},
        {"tool function", false},
        {"use", false},
        {"assistants", false},
        {" ", false},
        {"User", false},
    };
    const struct chat_model none = {.template = NULL};
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *messages = json_pack("[{s:s}]", "role", cases[i].role);
        if ((roles_check(&none, NULL, messages, &e) == Q_OK) != cases[i].known)
            fail_msg("role \"%s\": %s", cases[i].role, e.message);
        json_decref(messages);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distance), cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_header),   cmocka_unit_test(test_many),
        cmocka_unit_test(test_roles),    cmocka_unit_test(test_known_roles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
