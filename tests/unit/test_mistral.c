/* SPDX-License-Identifier: Apache-2.0 */
/* The chat format of a folder with tekken.json and no template: mistral-common's texts
 * (tests/data/templates/mistral.json, written by tests/differential/mistral_diff.py), and what is
 * refused. */
#include <jansson.h>
#include "common/json_read.h"
#include "common/mem.h"
#include "folder.h"
#include "common/template/chat.h"

#define GOLDEN "tests/data/templates/mistral.json"

static struct q_err err;

/* A chat of that version of the file. */
static enum q_code open_version(struct chat **chat, unsigned version, struct folder *f)
{
    char text[200];
    folder_init(f);
    snprintf(text, sizeof text,
             "{\"config\":{\"version\":\"v%u\"},\"vocab\":[{\"rank\":0}],\"special_tokens\":[]}",
             version);
    folder_text(f, "tekken.json", text);
    return chat_open(chat, f->path, NULL, &err);
}

static enum q_code render(const struct chat *chat, const json_t *row, struct buf *out)
{
    const struct chat_request r = {
        .messages = json_object_get(row, "messages"),
        .tools = json_object_get(row, "tools"),
        .add_generation_prompt = true, /* the format has none */
        .continue_final_message = json_is_true(json_object_get(row, "continue_final_message")),
    };
    return chat_render(chat, &r, out, NULL, &err);
}

static void test_goldens(void **state)
{
    (void)state;
    json_t *rows = json_load_file(GOLDEN, JSON_ALLOW_NUL, NULL), *row;
    size_t i, n_version[14] = {0};
    assert_non_null(rows);
    json_array_foreach (rows, i, row) {
        unsigned version = (unsigned)json_integer_value(json_object_get(row, "version"));
        const json_t *want = json_object_get(row, "text");
        struct chat *chat = NULL;
        struct folder f;
        struct buf out = BUF_INIT;
        assert_ok(open_version(&chat, version, &f), &err);
        assert_ok(render(chat, row, &out), &err);
        if (strcmp(buf_str(&out), json_string_value(want)) != 0)
            fail_msg("row %zu, v%u:\n%s\nis not\n%s", i, version, buf_str(&out),
                     json_string_value(want));
        assert_true(!strstr(chat_source(chat), "[ARGS]") == (version < 11)); /* the parser's mark */
        n_version[version]++;
        buf_release(&out);
        chat_free(chat);
        folder_release(&f);
    }
    assert_true(n_version[3] >= 10 && n_version[7] >= 10 && n_version[11] >= 10 &&
                n_version[13] >= 10);
    json_decref(rows);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        unsigned version;
        const char *messages, *said;
    } rows[] = {
        {7,
         "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}"
         "]",
         "messages: entry 0: content of type \"image_url\" of role user cannot be rendered in the "
         "format of tekken.json v7; text can"},
        {11, "[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"x\"}]}]",
         "\"thinking\" of role assistant"},
        {13, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]",
         "entry 1: a tool's result needs \"tool_call_id\""},
        {3, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\"}]",
         "no text and no calls"},
        {3,
         "[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}"
         "}]}]",
         "text and calls"},
        {13, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", "no function name"},
        {13, "[{\"role\":\"narrator\",\"content\":\"a\"}]", "role \"narrator\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat *chat = NULL;
        struct folder f;
        struct buf out = BUF_INIT;
        json_t *row = json_pack("{s:o}", "messages", json_loads(rows[i].messages, 0, NULL));
        assert_ok(open_version(&chat, rows[i].version, &f), &err);
        assert_fails(render(chat, row, &out), Q_INVALID, rows[i].said, &err);
        buf_release(&out);
        json_decref(row);
        chat_free(chat);
        folder_release(&f);
    }
}

/* Where mistral-common would refuse and vLLM makes something of it: ids of another length. */
static void test_long_ids(void **state)
{
    (void)state;
    struct chat *chat = NULL;
    struct folder f;
    struct buf out = BUF_INIT;
    json_t *row = json_loads(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_"
        "calls\":[{"
        "\"id\":\"call_0123456789\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},{"
        "\"role\":\"tool\",\"tool_call_id\":\"call_0123456789\",\"content\":\"b\"}]}",
        0, NULL);
    assert_ok(open_version(&chat, 11, &f), &err);
    assert_ok(render(chat, row, &out), &err);
    assert_string_equal(buf_str(&out),
                        "<s>[INST]a[/INST][TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"x\": "
                        "1}</s>[TOOL_RESULTS]123456789[TOOL_CONTENT]b[/TOOL_RESULTS]");
    buf_release(&out);
    json_decref(row);
    chat_free(chat);
    folder_release(&f);
}

/* A template of the folder's own goes first; versions that are not known are refused by name. */
static void test_which(void **state)
{
    (void)state;
    struct chat *chat = NULL;
    struct folder f;
    assert_fails(open_version(&chat, 15, &f), Q_UNSUPPORTED, "v13 only, not of v15", &err);
    folder_text(&f, "chat_template.jinja", "own");
    assert_ok(chat_open(&chat, f.path, NULL, &err), &err);
    assert_string_equal(chat_source(chat), "own");
    chat_free(chat);
    folder_release(&f);
    folder_init(&f);
    assert_fails(chat_open(&chat, f.path, NULL, &err), Q_NOT_FOUND, "no chat template", &err);
    folder_text(&f, "tekken.json", "{\"config\":{\"version\":\"x\"},\"vocab\":[1]}");
    assert_fails(chat_open(&chat, f.path, NULL, &err), Q_CORRUPT, "config.version", &err);
    folder_release(&f);
}

static void test_allocations_fail(void **state)
{
    (void)state;
    json_t *rows = json_load_file(GOLDEN, JSON_ALLOW_NUL, NULL);
    for (size_t i = 0; i < json_array_size(rows); i += 11) {
        const json_t *row = json_array_get(rows, i);
        unsigned version = (unsigned)json_integer_value(json_object_get(row, "version"));
        struct chat *chat = NULL;
        struct folder f;
        enum q_code rc = Q_NO_MEMORY;
        assert_ok(open_version(&chat, version, &f), &err);
        for (int n = 0; rc != Q_OK && n < 3000; n++) {
            struct buf out = BUF_INIT;
            mem_fail_after(n);
            rc = render(chat, row, &out);
            mem_fail_after(-1);
            if (rc != Q_OK && rc != Q_NO_MEMORY)
                fail_msg("allocation %d: %s", n, err.message);
            buf_release(&out);
        }
        assert_int_equal(rc, Q_OK);
        chat_free(chat);
        folder_release(&f);
    }
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_ids),         cmocka_unit_test(test_which),
        cmocka_unit_test(test_allocations_fail),
    };
    json_use_mem();
    return cmocka_run_group_tests_name("mistral", tests, NULL, NULL);
}
