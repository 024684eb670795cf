/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates in their surroundings, against transformers: 15 templates of the golden set
 * through a model folder, 150 real ones (../shared/data, skipped when absent), and how a folder's
 * template is found. */
#include "check.h"
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/file.h"
#include "common/template/chat.h"

#define GOLDENS     "tests/data/templates"
#define REAL        "../shared/data"
#define REAL_GOLDEN REAL "/templates/golden/golden.json.zst"

static struct q_err err;
static char dir[64]; /* a model folder made for the test */

static int64_t now_of(const json_t *set)
{
    struct tm tm = {0};
    assert_non_null(
        strptime(json_string_value(json_object_get(set, "now")), "%Y-%m-%dT%H:%M:%S", &tm));
    return timegm(&tm);
}

static void put_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(file_write(path, text, strlen(text), 0600, &err), &err);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/quire-chat-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "own.jinja",
                                        "additional_chat_templates/tool_use.jinja"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    rmdir(path);
    return rmdir(dir);
}

/* ---- the golden set ---- */

static bool case_agrees(const struct chat *chat, const json_t *c, int64_t now, const char *name)
{
    const json_t *want = json_object_get(c, "expected"), *error = json_object_get(c, "error");
    struct chat_request r = {
        .messages = json_object_get(c, "messages"),
        .kwargs = json_object_get(c, "kwargs"),
        .add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt")),
        .continue_final_message = json_is_true(json_object_get(c, "continue_final_message")),
        .now = now,
    };
    if (!json_is_null(json_object_get(c, "tools")))
        r.tools = json_object_get(c, "tools");
    if (!json_is_null(json_object_get(c, "documents")))
        r.documents = json_object_get(c, "documents");
    struct buf out = BUF_INIT;
    struct template_fault fault = {0};
    enum q_code rc = chat_render(chat, &r, &out, &fault, &err);
    bool good = want ? !rc && out.len == json_string_length(want) &&
                           memcmp(buf_str(&out), json_string_value(want), out.len) == 0
                     : rc == Q_INVALID;
    const char *type = json_string_value(json_object_get(error, "type"));
    if (good && error && strcmp(type, "TemplateError") == 0)
        good = strcmp(err.message, json_string_value(json_object_get(error, "message"))) == 0;
    if (!good)
        print_error("%s, %s: got %s%s\n", name,
                    json_string_value(json_object_get(c, "conversation")), rc ? "error " : "",
                    rc ? err.message : buf_str(&out));
    buf_release(&out);
    return good;
}

static void goldens(void **state)
{
    (void)state;
    static const char *const names[] = {"chatml",  "chatml_think",  "documents",     "gemma",
                                        "harmony", "inst",          "json_dump",     "llama3",
                                        "macros",  "llama31_tools", "loopcontrols",  "plain",
                                        "strict",  "tools_xml",     "undefined_attr"};
    size_t n = 0, n_good = 0, k;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[256], source[256];
        snprintf(path, sizeof path, GOLDENS "/tmpl-%s.json", names[i]);
        snprintf(source, sizeof source, GOLDENS "/%s.jinja", names[i]);
        json_t *set = json_load_file(path, JSON_ALLOW_NUL, NULL), *c;
        assert_non_null(set);
        char *tokens = json_dumps(json_object_get(set, "variables"), 0);
        put_file("tokenizer_config.json", tokens);
        free(tokens);
        struct chat *chat = NULL;
        assert_ok(chat_open(&chat, dir, source, &err), &err);
        json_array_foreach (json_object_get(set, "cases"), k, c)
            n_good += case_agrees(chat, c, now_of(set), names[i]);
        n += k;
        chat_free(chat);
        json_decref(set);
    }
    print_message("%zu of %zu conversations as transformers renders them\n", n_good, n);
    assert_int_equal(n_good, n);
    assert_true(n >= 500);
}

/* ---- real templates ---- */

static json_t *load_real(void)
{
    FILE *f = popen("zstd -dcq " REAL_GOLDEN, "r");
    json_t *set = f ? json_loadf(f, JSON_ALLOW_NUL, NULL) : NULL;
    if (f)
        pclose(f);
    return set;
}

static bool real_agrees(const struct template *t, const json_t *entry, const json_t *input,
                        const json_t *want, int64_t now)
{
    json_t *v = json_copy((json_t *)json_object_get(entry, "special_tokens"));
    json_object_set_new(v, "tools", json_null());
    json_object_set_new(v, "documents", json_null());
    json_object_update(v, (json_t *)input);
    const struct template_run r = {.variables = v, .now = now};
    struct buf out = BUF_INIT;
    struct template_fault fault = {0};
    enum q_code rc = template_render(t, &r, &out, &fault, &err);
    const json_t *text = json_object_get(want, "text");
    const char *kind = json_string_value(json_object_get(want, "error"));
    bool good = text ? !rc && out.len == json_string_length(text) &&
                           memcmp(buf_str(&out), json_string_value(text), out.len) == 0
                     : rc != Q_OK;
    if (good && kind && strcmp(kind, "raise_exception") == 0)
        good = strcmp(err.message, json_string_value(json_object_get(want, "message"))) == 0;
    buf_release(&out);
    json_decref(v);
    return good;
}

static void real_templates(void **state)
{
    (void)state;
    if (!file_exists(REAL_GOLDEN))
        skip_without(REAL_GOLDEN);
    json_t *set = load_real(), *entry, *want;
    size_t i, n = 0, n_good = 0;
    const char *name;
    if (!set)
        skip_without("program zstd");
    json_array_foreach (json_object_get(set, "templates"), i, entry) {
        char path[512];
        struct buf source = BUF_INIT;
        struct template *t = NULL;
        snprintf(path, sizeof path, REAL "/%s",
                 json_string_value(json_object_get(entry, "template")));
        assert_ok(file_read(&source, path, 1u << 24, &err), &err);
        assert_ok(template_compile(&t, buf_str(&source), source.len, NULL, &err), &err);
        json_object_foreach (json_object_get(entry, "results"), name, want) {
            bool good = real_agrees(t, entry, json_object_get(json_object_get(set, "cases"), name),
                                    want, now_of(set));
            if (!good)
                print_error("%s, %s differs\n", path, name);
            n_good += good;
            n++;
        }
        template_free(t);
        buf_release(&source);
    }
    print_message("%zu of %zu renderings of %zu real templates agree\n", n_good, n, i);
    assert_int_equal(n_good, n);
    json_decref(set);
}

/* ---- which template ---- */

static void renders(const char *own, bool tools, const char *want)
{
    struct chat *chat = NULL;
    struct buf out = BUF_INIT;
    json_t *messages = json_loads("[{\"role\": \"user\", \"content\": \"hi\"}]", 0, NULL),
           *list = json_array();
    struct chat_request r = {.messages = messages, .tools = tools ? list : NULL};
    assert_ok(chat_open(&chat, dir, own, &err), &err);
    assert_ok(chat_render(chat, &r, &out, NULL, &err), &err);
    assert_string_equal(buf_str(&out), want);
    chat_free(chat);
    buf_release(&out);
    json_decref(messages);
    json_decref(list);
}

static void finding(void **state)
{
    (void)state;
    struct chat *chat = NULL;
    assert_fails(chat_open(&chat, dir, NULL, &err), Q_NOT_FOUND, "--chat-template", &err);
    put_file(
        "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": \"<e>\", \"add_bos_token\": true, "
        "\"chat_template\": \"{{ bos_token }}A{{ messages[0].content }}\"}");
    renders(NULL, false, "<b>Ahi");
    put_file("tokenizer_config.json", "{\"bos_token\": \"<b>\", \"chat_template\": [{\"name\": "
                                      "\"default\", \"template\": \"D\"}, "
                                      "{\"name\": \"tool_use\", \"template\": \"T{{ tools | length "
                                      "}}\"}, {\"name\": \"rag\", \"template\": \"R\"}]}");
    renders(NULL, false, "D");
    renders(NULL, true, "T0");
    put_file("tokenizer_config.json",
             "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"R\"}]}");
    assert_fails(chat_open(&chat, dir, NULL, &err), Q_INVALID, "default", &err);
    put_file("tokenizer_config.json", "{\"chat_template\": \"old\"}");
    put_file("special_tokens_map.json", "{\"eos_token\": {\"content\": \"<e>\"}}");
    put_file("chat_template.json", "{\"chat_template\": \"J{{ eos_token }}\"}");
    renders(NULL, false, "J<e>");
    put_file("chat_template.jinja", "F{{ eos_token }}{{ pad_token }}\n");
    renders(NULL, false, "F<e>");
    char path[256], own[256];
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file("additional_chat_templates/tool_use.jinja", "X");
    renders(NULL, true, "X");
    renders(NULL, false, "F<e>");
    put_file("own.jinja", "own");
    snprintf(own, sizeof own, "%s/own.jinja", dir);
    renders(own, false, "own");
    put_file("chat_template.jinja", "{% if %}");
    assert_fails(chat_open(&chat, dir, NULL, &err), Q_INVALID, "line 1, column 7", &err);
    put_file("tokenizer_config.json", "{\"chat_template\": ");
    assert_fails(chat_open(&chat, dir, own, &err), Q_CORRUPT, "tokenizer_config.json", &err);
}

/* ---- requests ---- */

/* OpenAI's messages for templates that want parts, strings, developers. */
static void forms(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        enum chat_content content;
        const char *want;
    } rows[] = {
#define ROLE "{{ m.role }}:"
#define EACH "{% for m in messages %}"
#define LOOP "{%- for c in m['content'] %}<{{ c.text }}>{% endfor %}"
        {EACH ROLE LOOP "{% endfor %}", CHAT_CONTENT_AUTO, "system:<d>user:<hi>"},
        {EACH ROLE LOOP "{% endfor %}", CHAT_CONTENT_STRING, "system:<>user:<><>"},
        {EACH ROLE "{{ m.content }}{% endfor %}", CHAT_CONTENT_AUTO, "system:duser:hi"},
        {EACH ROLE "{{ m.content }}{% endfor %}", CHAT_CONTENT_AS_IS, "developer:duser:hi"},
        {EACH ROLE "{% if m.content is string %}{{ m.content }}{% else %}" LOOP
                   "{% endif %}{% endfor %}",
         CHAT_CONTENT_AUTO, "system:duser:hi"},
        {EACH ROLE "{% if m.content is string %}{{ m.content }}{% else %}" LOOP
                   "{% endif %}{% endfor %}",
         CHAT_CONTENT_OPENAI, "system:<d>user:<hi>"},
        {EACH "{% if m.role == 'developer' %}D{% endif %}{% endfor %}", CHAT_CONTENT_AUTO, "D"},
    };
    json_t *messages = json_loads("[{\"role\": \"developer\", \"content\": \"d\"}, {\"role\": "
                                  "\"user\", \"content\": \"hi\"}]",
                                  0, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat *chat = NULL;
        struct buf out = BUF_INIT;
        const struct chat_request r = {.messages = messages, .content = rows[i].content};
        assert_ok(chat_from_source(&chat, rows[i].source, strlen(rows[i].source), NULL, &err),
                  &err);
        assert_ok(chat_render(chat, &r, &out, NULL, &err), &err);
        assert_string_equal(buf_str(&out), rows[i].want);
        chat_free(chat);
        buf_release(&out);
    }
    json_decref(messages);
}

static void refused_requests(void **state)
{
    (void)state;
    struct chat *chat = NULL;
    struct buf out = BUF_INIT;
    put_file("own.jinja", "{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}");
    char own[256];
    snprintf(own, sizeof own, "%s/own.jinja", dir);
    assert_ok(chat_open(&chat, dir, own, &err), &err);
    json_t *
        none = json_array(),
       *kwargs = json_loads("{\"messages\": 1}", 0, NULL),
       *image = json_loads("[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]", 0, NULL),
       *said = json_loads(
           "[{\"role\": \"assistant\", \"reasoning\": \"r\", \"content\": \"c \", \"x\": null}]", 0,
           NULL);
    struct chat_request r = {.messages = none};
    assert_fails(chat_render(chat, &r, &out, NULL, &err), Q_INVALID, "at least one message", &err);
    r = (struct chat_request){.messages = said, .kwargs = kwargs};
    assert_fails(chat_render(chat, &r, &out, NULL, &err), Q_INVALID, "chat_template_kwargs", &err);
    r = (struct chat_request){.messages = image, .continue_final_message = true};
    assert_fails(chat_render(chat, &r, &out, NULL, &err), Q_INVALID, "continue_final_message",
                 &err);
    r = (struct chat_request){.messages = said, .template_source = "{{ nope.x }}"};
    assert_fails(chat_render(chat, &r, &out, NULL, &err), Q_INVALID,
                 "column 8: 'nope' is undefined", &err);
    assert_int_equal(out.len, 0);
    r = (struct chat_request){.messages = said};
    assert_ok(chat_render(chat, &r, &out, NULL, &err), &err);
    assert_string_equal(buf_str(&out), "c r");
    r.continue_final_message = true;
    buf_reset(&out);
    assert_ok(chat_render(chat, &r, &out, NULL, &err), &err);
    assert_string_equal(buf_str(&out), "c ");
    json_decref(none);
    json_decref(kwargs);
    json_decref(image);
    json_decref(said);
    chat_free(chat);
    buf_release(&out);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(goldens, setup, teardown),
        cmocka_unit_test(real_templates),
        cmocka_unit_test_setup_teardown(finding, setup, teardown),
        cmocka_unit_test(forms),
        cmocka_unit_test_setup_teardown(refused_requests, setup, teardown),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
