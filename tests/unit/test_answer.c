/* SPDX-License-Identifier: Apache-2.0 */
/* What a parser finds, gathered: the message of a whole answer and the deltas of a stream, calls
 * that break before and after a delta has shown them, and what a request leaves out. */
#include "check.h"
#include <string.h>
#include "common/chat/answer.h"

static struct q_err err;

static void take(struct answer *a, enum parsed_kind kind, const char *text)
{
    const struct parsed_event event = {.kind = kind, .text = text, .n = strlen(text)};
    assert_ok(answer_take(a, &event, &err), &err);
}

/* A call whose arguments come in one piece; broken: NULL, or what the model wrote for it. */
static void take_call(struct answer *a, const char *name, const char *args, const char *broken)
{
    take(a, PARSED_CALL_BEGIN, name);
    take(a, PARSED_CALL_ARGS, args);
    take(a, broken ? PARSED_CALL_BROKEN : PARSED_CALL_END, broken ? broken : "");
}

/* The JSON with the id of call i, which is random, written as <i>. */
static void assert_json(const struct answer *a, struct buf *got, const char *want)
{
    assert_int_equal(got->failed, Q_OK);
    for (size_t i = 0; i < a->n_call; i++) {
        char *at = strstr(buf_str(got), a->calls[i].id);
        size_t n_id = strlen(a->calls[i].id);
        assert_int_equal(n_id, strlen("call_") + 24);
        if (!at)
            continue;
        at[0] = '<';
        at[1] = (char)('0' + i);
        memmove(at + 2, ">", 1);
        memmove(at + 3, at + n_id, strlen(at + n_id) + 1);
    }
    assert_string_equal(buf_str(got), want);
    buf_release(got);
}

static void assert_message(const struct answer *a, const char *want)
{
    struct buf b = BUF_INIT;
    answer_json(a, &b);
    assert_json(a, &b, want);
}

/* The next delta, which empties the answer as a stream does. */
static void assert_delta(struct answer *a, bool always_content, const char *want)
{
    struct buf b = BUF_INIT;
    answer_delta_json(a, always_content, &b);
    buf_reset(&a->content);
    buf_reset(&a->reasoning);
    assert_false(answer_calls_pending(a));
    assert_json(a, &b, want);
}

#define CALL(i, name, args)                                                           \
    "{\"id\":\"<" #i ">\",\"type\":\"function\",\"function\":{\"name\":\"" name "\"," \
    "\"arguments\":\"" args "\"}}"
#define SHOWN(i, name, args)                                                                     \
    "{\"index\":" #i ",\"id\":\"<" #i ">\",\"type\":\"function\",\"function\":{\"name\":\"" name \
    "\",\"arguments\":\"" args "\"}}"
#define MORE(i, args) "{\"index\":" #i ",\"function\":{\"arguments\":\"" args "\"}}"

static void test_whole(void **state)
{
    struct answer a = {.n_call = 0};
    (void)state;
    assert_message(&a, "{\"role\":\"assistant\",\"content\":\"\"}");
    take(&a, PARSED_REASONING, "hm");
    take(&a, PARSED_REASONING, "\"m");
    assert_message(&a, "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"hm\\\"m\"}");
    assert_false(answer_has_calls(&a));
    take_call(&a, "f", "{}", NULL);
    take_call(&a, "g", "[]", NULL);
    assert_true(answer_has_calls(&a));
    assert_true(a.calls[1].whole);
    assert_string_not_equal(a.calls[0].id, a.calls[1].id);
    assert_message(&a, "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"hm\\\"m\","
                       "\"tool_calls\":[" CALL(0, "f", "{}") "," CALL(1, "g", "[]") "]}");
    answer_release(&a);
    assert_int_equal(a.n_call, 0);
    take_call(&a, "f", "{}", NULL);
    take(&a, PARSED_CONTENT, "so");
    assert_message(
        &a, "{\"role\":\"assistant\",\"content\":\"so\",\"tool_calls\":[" CALL(0, "f", "{}") "]}");
    answer_release(&a);
}

static void test_stream(void **state)
{
    struct answer a = {.n_call = 0};
    (void)state;
    assert_delta(&a, false, "{}");
    assert_delta(&a, true, "{\"content\":\"\"}");
    take(&a, PARSED_REASONING, "hm");
    assert_delta(&a, false, "{\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"}");
    take(&a, PARSED_CONTENT, "so");
    take(&a, PARSED_CALL_BEGIN, "f");
    assert_true(answer_calls_pending(&a));
    assert_delta(&a, false, "{\"content\":\"so\",\"tool_calls\":[" SHOWN(0, "f", "") "]}");
    take(&a, PARSED_CALL_ARGS, "{");
    assert_true(answer_calls_pending(&a));
    assert_delta(&a, false, "{\"tool_calls\":[" MORE(0, "{") "]}");
    take(&a, PARSED_CALL_ARGS, "}");
    take(&a, PARSED_CALL_END, "");
    take_call(&a, "g", "[]", NULL);
    assert_delta(&a, false, "{\"tool_calls\":[" MORE(0, "}") "," SHOWN(1, "g", "[]") "]}");
    assert_delta(&a, false, "{}");
    answer_release(&a);
}

/* Not shown: it is content alone, and the next call takes its place. */
static void test_broken_unseen(void **state)
{
    struct answer a = {.n_call = 0};
    (void)state;
    take_call(&a, "f", "{", "<f>{");
    take(&a, PARSED_CALL_BROKEN, "!");
    assert_false(answer_has_calls(&a));
    assert_message(&a, "{\"role\":\"assistant\",\"content\":\"<f>{!\"}");
    take_call(&a, "g", "[]", NULL);
    assert_message(&a, "{\"role\":\"assistant\",\"content\":\"<f>{!\",\"tool_calls\":[" CALL(
                           0, "g", "[]") "]}");
    answer_release(&a);
}

/* Shown: it stays as far as it came and counts no longer, not as the one call either; its text is
 * not content as well. What follows it is. */
static void test_broken_shown(void **state)
{
    struct answer a = {.one_call = true};
    (void)state;
    take(&a, PARSED_CALL_BEGIN, "f");
    assert_delta(&a, false, "{\"tool_calls\":[" SHOWN(0, "f", "") "]}");
    assert_true(answer_has_calls(&a));
    take(&a, PARSED_CALL_ARGS, "{");
    take(&a, PARSED_CALL_BROKEN, "<f>{");
    assert_false(answer_has_calls(&a));
    take(&a, PARSED_CALL_BROKEN, "!");
    assert_delta(&a, false, "{\"tool_calls\":[" MORE(0, "{") "]}");
    take(&a, PARSED_CONTENT, "so");
    assert_delta(&a, false, "{\"content\":\"so\"}");
    take_call(&a, "g", "[]", NULL);
    assert_true(answer_has_calls(&a));
    assert_delta(&a, false, "{\"tool_calls\":[" SHOWN(1, "g", "[]") "]}");
    take_call(&a, "h", "[]", NULL);
    assert_delta(&a, false, "{}");
    answer_release(&a);
}

/* A later call is left out whole, also where it breaks. */
static void test_left_out(void **state)
{
    struct answer a = {.one_call = true, .no_reasoning = true};
    (void)state;
    take(&a, PARSED_REASONING, "hm");
    take_call(&a, "f", "{}", NULL);
    take_call(&a, "g", "[]", NULL);
    take_call(&a, "h", "[", "<h>[");
    assert_message(
        &a, "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CALL(0, "f", "{}") "]}");
    answer_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),         cmocka_unit_test(test_stream),
        cmocka_unit_test(test_broken_unseen), cmocka_unit_test(test_broken_shown),
        cmocka_unit_test(test_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
