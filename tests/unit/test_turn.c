/* SPDX-License-Identifier: Apache-2.0 */
/* A request's turn: what comes before an answer's grammar with the chat templates of real models
 * (../shared, skipped when absent) and of tests/data, for each way in which a request enables
 * reasoning or for none. */
#include "check.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "common/chat/turn.h"
#include "common/file.h"
#include "common/json_read.h"
#include "common/mem.h"

#define REAL "../shared/data/templates"
#define OURS "tests/data/templates"

static struct q_err err;

struct rendered {
    struct buf prompt;
    struct turn_before before;
    bool failed; /* the template refuses the request */
};

static void rendered_release(struct rendered *r)
{
    buf_release(&r->prompt);
    *r = (struct rendered){.failed = false};
}

/* The turn of a request for a form of the answer; fields: enable_thinking and the like. */
static void render(struct rendered *out, const struct chat_model *m, const char *fields)
{
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hello."),
           *f = json_loads(fields, 0, NULL);
    const struct turn_ask ask = {
        .messages = messages,
        .enable_thinking = json_object_get(f, "enable_thinking"),
        .thinking = json_object_get(f, "thinking"),
        .reasoning_effort = json_string_value(json_object_get(f, "reasoning_effort")),
        .chat_template_kwargs = json_object_get(f, "chat_template_kwargs"),
        .add_generation_prompt = true,
        .parallel_tool_calls = true,
        .auto_tool_choice = true,
        .form = {FORM_REGEX, "x", 1},
    };
    struct turn t;
    assert_non_null(f);
    q_err_reset(&err);
    assert_ok(turn_read(&t, m, &ask, &err), &err);
    out->failed = turn_render(&t, &out->prompt, NULL, &err) != Q_OK;
    if (!out->failed)
        turn_before(&t, &out->prompt, &out->before);
    turn_release(&t);
    json_decref(messages);
    json_decref(f);
}

static bool model_open(struct chat_model *m, const char *path)
{
    struct buf text = BUF_INIT;
    *m = (struct chat_model){.content = CHAT_CONTENT_AUTO};
    q_err_reset(&err);
    assert_ok(file_read(&text, path, (size_t)1 << 20, &err), &err);
    bool good = chat_from_source(&m->template, buf_str(&text), text.len, NULL, &err) == Q_OK;
    buf_release(&text);
    if (!good)
        return false;
    struct parser_detected found = parser_detect(chat_source(m->template));
    m->tool_parser = found.tool ? found.tool : "hermes";
    m->reasoning_parser = found.reasoning ? found.reasoning : "qwen3";
    buf_add(&m->reasoning_tags, "<think>\0</think>\0", 17); /* as of a vocabulary that has them */
    return true;
}

static bool same(const struct rendered *a, const struct rendered *b)
{
    return a->failed == b->failed && a->prompt.len == b->prompt.len &&
           (a->failed || !memcmp(buf_str(&a->prompt), buf_str(&b->prompt), a->prompt.len));
}

/* All forms of on, or of off, give one prompt; the first is the template's own. */
static void agree(struct rendered *out, const struct chat_model *m, const char *path,
                  const char *const *forms)
{
    render(out, m, forms[0]);
    for (size_t i = 1; forms[i]; i++) {
        struct rendered other = {.failed = false};
        render(&other, m, forms[i]);
        if (!same(out, &other))
            fail_msg("%s: %s gives\n%s\n%s gives\n%s", path, forms[0], buf_str(&out->prompt),
                     forms[i], buf_str(&other.prompt));
        rendered_release(&other);
    }
}

struct counts {
    size_t n_template, n_switched, n_open;
};

static void one_template(const char *path, struct counts *counts)
{
    static const char *const off[] = {"{\"enable_thinking\":false}",
                                      "{\"thinking\":false}",
                                      "{\"thinking\":{\"type\":\"disabled\"}}",
                                      "{\"chat_template_kwargs\":{\"enable_thinking\":false}}",
                                      "{\"chat_template_kwargs\":{\"thinking\":false}}",
                                      NULL},
                             *const on[] = {"{\"enable_thinking\":true}", "{\"thinking\":true}",
                                            "{\"thinking\":{\"type\":\"enabled\"}}",
                                            "{\"chat_template_kwargs\":{\"enable_thinking\":true}}",
                                            NULL};
    struct chat_model m;
    struct rendered plain = {.failed = false}, without = plain, with = plain;
    if (model_open(&m, path)) {
        render(&plain, &m, "{}");
        agree(&without, &m, path, off);
        agree(&with, &m, path, on);
        counts->n_template += !plain.failed;
        if (!same(&without, &with)) {
            counts->n_switched++;
            counts->n_open += with.before.after != NULL;
            if (without.before.after || without.before.tags)
                fail_msg("%s: reasoning may come though it is off: %s", path,
                         buf_str(&without.prompt));
        }
        if (!plain.failed && plain.before.after && plain.before.tags)
            fail_msg("%s: both an end and tags", path);
    }
    rendered_release(&plain);
    rendered_release(&without);
    rendered_release(&with);
    chat_model_release(&m);
}

static void folder(const char *path, struct counts *counts)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    char file[1024];
    while (dir && (entry = readdir(dir))) {
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.' && entry->d_type == DT_DIR)
            folder(file, counts);
        else if (strstr(entry->d_name, ".jinja"))
            one_template(file, counts);
    }
    if (dir)
        closedir(dir);
}

static void our_templates(void **state)
{
    (void)state;
    struct counts counts = {0};
    folder(OURS, &counts);
    assert_true(counts.n_template > 10);
}

static void real_templates(void **state)
{
    (void)state;
    struct counts counts = {0};
    if (!dir_exists(REAL))
        skip_without(REAL);
    folder(REAL, &counts);
    print_message("%zu templates, %zu of them with a switch, %zu open reasoning when it is on\n",
                  counts.n_template, counts.n_switched, counts.n_open);
    assert_true(counts.n_template > 80 && counts.n_switched >= 12 && counts.n_open >= 4);
}

/* Where the grammar of an answer begins with templates of real models. */
static void known_models(void **state)
{
    (void)state;
    static const struct {
        const char *file, *fields;
        const char *after; /* NULL: at once, or behind reasoning if `tags` */
        bool tags;
    } rows[] = {
        {"llama.cpp/Qwen-Qwen3-0.6B.jinja", "{}", NULL, true},
        {"llama.cpp/Qwen-Qwen3-0.6B.jinja", "{\"enable_thinking\":false}", NULL, false},
        {"llama.cpp/Qwen-Qwen3-0.6B.jinja", "{\"reasoning_effort\":\"none\"}", NULL, false},
        {"llama.cpp/Qwen-Qwen3-0.6B.jinja", "{\"reasoning_effort\":\"low\"}", NULL, true},
        {"llama.cpp/Qwen-QwQ-32B.jinja", "{\"thinking\":true}", "</think>", false},
        {"llama.cpp/deepseek-ai-DeepSeek-V3.1.jinja", "{}", NULL, false},
        {"llama.cpp/deepseek-ai-DeepSeek-V3.1.jinja", "{\"reasoning_effort\":\"low\"}", "</think>",
         false},
        {"llama.cpp/deepseek-ai-DeepSeek-V3.1.jinja", "{\"enable_thinking\":true}", "</think>",
         false},
        {"llama.cpp/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja", "{\"thinking\":false}", NULL,
         false},
        {"llama.cpp/openai-gpt-oss-120b.jinja", "{}", NULL, true},
    };
    if (!dir_exists(REAL))
        skip_without(REAL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat_model m;
        struct rendered r = {.failed = false};
        char path[512];
        snprintf(path, sizeof path, "%s/%s", REAL, rows[i].file);
        assert_true(model_open(&m, path));
        render(&r, &m, rows[i].fields);
        const char *after = r.before.after;
        if (r.failed || !after != !rows[i].after || (after && strcmp(after, rows[i].after) != 0) ||
            !r.before.tags == rows[i].tags)
            fail_msg("%s with %s: \"%s\", tags %d, parser %s; %s%s", rows[i].file, rows[i].fields,
                     after ? after : "", r.before.tags != NULL, m.reasoning_parser,
                     buf_str(&r.prompt), err.message);
        rendered_release(&r);
        chat_model_release(&m);
    }
}

#define FN(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define ALLOWED(mode, list) \
    "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":" mode ",\"tools\":" list "}}"

#define ALL "function f;function g;function h;"
static const struct {
    const char *choice, *prompt; /* the prompt, or the code and */
    const char *in, *out;        /* text in the grammar, text not in it; or in the message */
} choices[] = {
    {"null", ALL, NULL, "f"},
    {"\"auto\"", ALL, NULL, "f"},
    {"\"none\"", "", NULL, "f"},
    {"\"required\"", ALL, "\\\"h\\\"", NULL},
    {FN("g"), ALL, "\\\"g\\\"", "\\\"f\\\""},
    {"{\"type\":\"function\",\"name\":\"g\"}", ALL, "\\\"g\\\"", "\\\"f\\\""},
    {ALLOWED("\"auto\"", "[" FN("g") "]"), "function g;", NULL, "g"},
    {ALLOWED("\"required\"", "[" FN("h") "," FN("f") "," FN("h") "]"), "function f;function h;",
     "\\\"h\\\"", "\\\"g\\\""},
    {"{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"name\":\"g\"}]}",
     "function g;", "\\\"g\\\"", "\\\"f\\\""},
    {ALLOWED("\"none\"", "[" FN("g") "]"), NULL, "unknown mode \"none\"", NULL},
    {ALLOWED("7", "[" FN("g") "]"), NULL, "mode", NULL},
    {ALLOWED("\"auto\"", "[]"), NULL, "list of 1 to 1024", NULL},
    {ALLOWED("\"auto\"", "{}"), NULL, "list of 1 to 1024", NULL},
    {ALLOWED("\"auto\"", "[" FN("g") "," FN("x") "]"), NULL, "\"tools\" has no function \"x\"",
     NULL},
    {ALLOWED("\"auto\"", "[{\"type\":\"custom\",\"name\":\"g\"}]"), NULL,
     "entry 0 has no function name", NULL},
    {ALLOWED("\"auto\"", "[7]"), NULL, "entry 0 has no function name", NULL},
    {"{\"type\":\"allowed_tools\"}", NULL, "mode", NULL},
    {"{\"type\":\"custom\"}", NULL, "type \"custom\" without a function name", NULL},
    {"{}", NULL, "function name", NULL},
    {"[]", NULL, "expected a string or an object", NULL},
    {"\"any\"", NULL, "unknown value \"any\"", NULL},
    {FN("x"), NULL, "no function \"x\"", NULL},
};

/* The tools that the prompt shows, and those that the grammar of a required call has. */
static void tool_choices(void **state)
{
    (void)state;
    static const char source[] = "{% for t in tools or [] %}{{ t.type }} {{ t.function.name }};"
                                 "{% endfor %}";
    struct chat_model m = {.tool_parser = "hermes"};
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hello."),
           *tools = json_loads("[{\"function\":{\"name\":\"f\"}},"
                               "{\"function\":{\"name\":\"g\"},\"type\":null}," FN("h") "]",
                               0, NULL);
    q_err_reset(&err);
    assert_ok(chat_from_source(&m.template, source, strlen(source), NULL, &err), &err);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        json_t *choice = json_loads(choices[i].choice, JSON_DECODE_ANY, NULL);
        struct buf prompt = BUF_INIT;
        struct turn t;
        const struct turn_ask ask = {
            .messages = messages,
            .tools = tools,
            .tool_choice = json_is_null(choice) ? NULL : choice,
            .auto_tool_choice = true,
        };
        assert_non_null(choice);
        q_err_reset(&err);
        enum q_code rc = turn_read(&t, &m, &ask, &err);
        if (!choices[i].prompt) {
            assert_fails(rc, Q_INVALID, choices[i].in, &err);
            assert_string_equal(t.field, "tool_choice");
        } else {
            assert_ok(rc, &err);
            assert_ok(turn_render(&t, &prompt, NULL, &err), &err);
            assert_string_equal(buf_str(&prompt), choices[i].prompt);
            assert_true(!choices[i].in || strstr(buf_str(&t.tags), choices[i].in));
            assert_true(!choices[i].out || !strstr(buf_str(&t.tags), choices[i].out));
        }
        buf_release(&prompt);
        turn_release(&t);
        json_decref(choice);
    }
    assert_int_equal(json_array_size(tools), 3); /* the request's own are as they were */
    assert_null(json_object_get(json_array_get(tools, 0), "type"));
    json_decref(messages);
    json_decref(tools);
    chat_model_release(&m);
}

/* The prompt and the grammar of a turn; allocations that fail end with it. */
static enum q_code whole_turn(const struct chat_model *m, const json_t *request, struct buf *out)
{
    struct buf prompt = BUF_INIT;
    struct turn t;
    const struct turn_ask ask = {
        .messages = json_object_get(request, "messages"),
        .tools = json_object_get(request, "tools"),
        .tool_choice = json_object_get(request, "tool_choice"),
        .chat_template_kwargs = json_object_get(request, "chat_template_kwargs"),
        .add_generation_prompt = true,
        .auto_tool_choice = true,
        .parallel_tool_calls = true,
    };
    q_err_reset(&err);
    enum q_code rc = turn_read(&t, m, &ask, &err) ?: turn_render(&t, &prompt, NULL, &err);
    mem_fail_once(-1);
    if (!rc) {
        buf_add(out, prompt.data, prompt.len);
        buf_add(out, t.tags.data, t.tags.len);
    }
    buf_release(&prompt);
    turn_release(&t);
    return rc;
}

/* One allocation fails, each in turn: Q_NO_MEMORY, or the prompt and the grammar are the same. */
static void memory_may_run_out(void **state)
{
    (void)state;
    static const char *const paths[] = {OURS "/llama31_tools.jinja", OURS "/chatml_think.jinja"};
    json_t *request = json_read_string(
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"Weather?\"}]}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": "
        "\"call_1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"city\\\": \\\"Rome\\\"}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call_1\", "
        "\"content\": \"sun\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": "
        "\"f\", "
        "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
        "\"string\"}}, \"required\": [\"city\"]}}}], \"tool_choice\": \"required\", "
        "\"chat_template_kwargs\": {\"x\": 1}}",
        0, NULL);
    assert_non_null(request);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct chat_model m;
        struct buf want = BUF_INIT;
        int n = 0;
        assert_true(model_open(&m, paths[i]));
        assert_ok(whole_turn(&m, request, &want), &err);
        for (uint64_t before = 0; mem_failure_count() != before || n == 0; n++) {
            struct buf got = BUF_INIT;
            before = mem_failure_count();
            mem_fail_once(n);
            const enum q_code rc = whole_turn(&m, request, &got);
            if (rc ? rc != Q_NO_MEMORY
                   : got.len != want.len || memcmp(got.data, want.data, got.len) != 0)
                fail_msg("%s: allocation %d: %s", paths[i], n, rc ? err.message : "another prompt");
            buf_release(&got);
        }
        assert_true(n > 50);
        buf_release(&want);
        chat_model_release(&m);
    }
    json_decref(request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_templates), cmocka_unit_test(real_templates),
        cmocka_unit_test(known_models), cmocka_unit_test(tool_choices),
        cmocka_unit_test(memory_may_run_out)};
    json_use_mem();
    return cmocka_run_group_tests_name("turn", tests, NULL, NULL);
}
