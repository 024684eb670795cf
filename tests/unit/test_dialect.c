/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /v1/responses and /v1/messages as those of chat completions, and what happens when
 * memory runs out anywhere on the way. tests/e2e has the answers, and the refusals. */
#include "check.h"
#include "common/chat/messages.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "frontend/api/anthropic.h"
#include "frontend/api/json.h"
#include "frontend/api/responses.h"

static struct q_err e;

static const char responses[] =
    "{\"model\":\"m\",\"instructions\":\"I\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
    "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
    "\"b\"},{\"text\":\"c\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"d\"},"
    "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},"
    "{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":\"g\",\"arguments\":\"{}\"},"
    "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"h\"},"
    "{\"role\":\"assistant\",\"content\":\"i\"},{\"role\":\"assistant\",\"content\":\"j\"}],"
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{},\"strict\":null,"
    "\"odd\":1}],\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"k\",\"schema\":{}}},"
    "\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},\"max_output_tokens\":9,"
    "\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2,\"top_k\":3,"
    "\"background\":false,\"truncation\":\"disabled\",\"previous_response_id\":null}";
static const char responses_chat[] =
    "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"I\"},"
    "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning\":\"b\\nc\","
    "\"reasoning_content\":\"b\\nc\",\"content\":\"d\",\"tool_calls\":["
    "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
    "{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"h\"},"
    "{\"role\":\"assistant\",\"content\":\"i\"},{\"role\":\"assistant\",\"content\":\"j\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
    "\"tools.odd\":1,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
    "{\"name\":\"k\",\"schema\":{}}},\"reasoning_effort\":\"low\",\"max_completion_tokens\":9,"
    "\"logprobs\":true,\"top_logprobs\":2,\"top_k\":3}";

static const char anthropic[] =
    "{\"model\":\"m\",\"system\":[{\"type\":\"text\",\"text\":\"I\"}],\"max_tokens\":9,"
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
    "{\"type\":\"thinking\",\"thinking\":\"b\",\"signature\":\"s\"},"
    "{\"type\":\"text\",\"text\":\"d\"},"
    "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":"
    "\"h\"},{\"type\":\"text\",\"text\":\"i\"},{\"type\":\"text\",\"text\":\"j\"},"
    "{\"type\":\"tool_result\",\"tool_use_id\":\"2\"}]},"
    "{\"role\":\"assistant\",\"content\":\"k\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{},"
    "\"cache_control\":{\"type\":\"ephemeral\"},\"odd\":1}],\"tool_choice\":{\"type\":\"tool\","
    "\"name\":\"f\",\"disable_parallel_tool_use\":true},\"output_config\":{\"effort\":\"low\","
    "\"format\":{\"type\":\"json_schema\",\"schema\":{}}},\"stop_sequences\":[\"x\"],"
    "\"thinking\":{\"type\":\"enabled\"},\"mcp_servers\":[],\"top_k\":3}";
static const char anthropic_chat[] =
    "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\","
    "\"text\":\"I\"}]},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
    "\"reasoning\":\"b\",\"reasoning_content\":\"b\",\"content\":[{\"type\":\"text\",\"text\":"
    "\"d\"}],\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
    "\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"h\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"i\"},{\"type\":\"text\","
    "\"text\":\"j\"}]},{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"\"},"
    "{\"role\":\"assistant\",\"content\":\"k\"}],\"continue_final_message\":true,"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
    "\"tools.odd\":1,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
    "\"parallel_tool_calls\":false,\"reasoning_effort\":\"low\",\"response_format\":{\"type\":"
    "\"json_schema\",\"json_schema\":{\"name\":\"output\",\"schema\":{},\"strict\":true}},"
    "\"stop\":[\"x\"],\"thinking\":{\"type\":\"enabled\"},\"max_completion_tokens\":9,"
    "\"top_k\":3}";

static const struct {
    const struct dialect *dialect;
    const char *body, *chat, *entries;
} all[] = {
    {&responses_dialect, responses, responses_chat, "[-1,0,2,5,6,7]"},
    {&anthropic_dialect, anthropic, anthropic_chat, "[-1,0,1,2,2,2,3]"},
};
#define N_DIALECT (sizeof all / sizeof *all)

static void test_bodies(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_DIALECT; i++) {
        json_t *body, *want, *got, *entries;
        assert_ok(json_body(&body, all[i].body, strlen(all[i].body), &e), &e);
        assert_ok(json_body(&want, all[i].chat, strlen(all[i].chat), &e), &e);
        assert_ok(all[i].dialect->read(&got, &entries, body, &e), &e);
        if (!json_equal(got, want)) {
            char *text = json_dumps(got, JSON_INDENT(1) | JSON_SORT_KEYS);
            fail_msg("%s", text);
        }
        char *text = json_dumps(entries, JSON_COMPACT);
        assert_string_equal(text, all[i].entries);
        free(text);
        json_decref(entries);
        json_decref(got);
        json_decref(want);
        json_decref(body);
    }
}

static void test_errors(void **state)
{
    static const struct {
        const struct dialect *dialect;
        const char *message, *param; /* of the chat */
        const char *said, *field;    /* by the dialect */
    } rows[] = {
        {NULL, "stop: a", "stop", "stop: a", "stop"},
        {NULL, "stop: a", "", "stop: a", NULL},
        {&responses_dialect, "top_p: a", "top_p", "top_p: a", "top_p"},
        {&responses_dialect, "out of memory", NULL, "out of memory", NULL},
        {&responses_dialect, "messages: a", "messages", "input: a", "input"},
        {&responses_dialect, "messages: entry 2: a", "messages", "input: entry 4: a", "input"},
        {&responses_dialect, "messages: entry 0 has", "messages", "instructions has",
         "instructions"},
        {&responses_dialect, "messages: entry 3: a", "messages", "input: entry 3: a", "input"},
        {&anthropic_dialect, "stop: too many: 9", "stop", "stop_sequences: too many: 9",
         "stop_sequences"},
        {&anthropic_dialect, "messages: entry 1: a", "messages", "messages: entry 0: a",
         "messages"},
        {&anthropic_dialect, "messages: entry 0: a", "messages", "system: a", "system"},
    };
    struct dialect_error told;
    json_t *entries = json_pack("[iii]", -1, 0, 4);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dialect_error_of(&told, rows[i].dialect, entries, rows[i].message, rows[i].param);
        assert_string_equal(told.message, rows[i].said);
        if (rows[i].field)
            assert_string_equal(told.param, rows[i].field);
        else
            assert_null(told.param);
    }
    json_decref(entries);
}

/* Without an error, or Q_NO_MEMORY: nothing crashes, and LeakSanitizer finds nothing. */
static enum q_code whole_way(size_t i)
{
    json_t *body = NULL, *chat = NULL, *entries = NULL, *out = NULL;
    enum q_code rc = json_body(&body, all[i].body, strlen(all[i].body), &e);
    if (!rc && !(rc = all[i].dialect->read(&chat, &entries, body, &e)))
        rc = messages_read(&out, json_object_get(chat, "messages"), NULL, &e);
    json_decref(out);
    json_decref(entries);
    json_decref(chat);
    json_decref(body);
    return rc;
}

static void test_no_memory(void **state)
{
    static void (*const fails[])(int64_t) = {mem_fail_after, mem_fail_once};
    (void)state;
    json_use_mem();
    for (size_t i = 0; i < N_DIALECT * 2; i++) {
        uint64_t before;
        int n = -1;
        enum q_code rc;
        do {
            q_err_reset(&e);
            before = mem_failure_count();
            fails[i % 2](++n);
            rc = whole_way(i / 2);
            fails[i % 2](-1);
            if (rc && rc != Q_NO_MEMORY)
                fail_msg("allocation %d: %s", n, e.message);
        } while (mem_failure_count() != before);
        assert_ok(rc, &e);
        assert_true(n > 200);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
