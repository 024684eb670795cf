/* SPDX-License-Identifier: Apache-2.0 */
/* Request bodies: JSON limits, the table of fields, messages, prompts. */
#include "check.h"
#include "common/chat/messages.h"
#include "common/chat/thinking.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "frontend/api/json.h"
#include "frontend/api/params_sampling.h"
#include "frontend/api/prompt.h"

static struct params p;
static struct q_err e;
static json_t *body;

static json_t *parse(const char *text)
{
    json_decref(body);
    body = NULL;
    assert_ok(json_body(&body, text, strlen(text), &e), &e);
    return body;
}

static enum q_code read_chat(const char *text)
{
    return params_read(&p, parse(text), WHERE_CHAT, &e);
}

static enum q_code read_text(const char *text)
{
    return params_read(&p, parse(text), WHERE_TEXT, &e);
}

static void test_json_limits(void **state)
{
    (void)state;
    static char deep[3 * JSON_DEPTH_MAX], many[2 * JSON_VALUES_MAX + 64];
    json_t *v = NULL;
    memset(deep, '[', JSON_DEPTH_MAX + 1);
    assert_fails(json_body(&v, deep, JSON_DEPTH_MAX + 1, &e), Q_TOO_LARGE, "deeper than", &e);
    size_t n = (size_t)snprintf(many, sizeof many, "{\"a\":[1");
    while (n + 2 < sizeof many) {
        many[n++] = ',';
        many[n++] = '1';
    }
    assert_fails(json_body(&v, many, n, &e), Q_TOO_LARGE, "values", &e);
    assert_fails(json_body(&v, "", 0, &e), Q_INVALID, "no body", &e);
    assert_fails(json_body(&v, "[]", 2, &e), Q_INVALID, "must be a JSON object", &e);
    assert_fails(json_body(&v, "{} x", 4, &e), Q_INVALID, "line 1", &e);
    static const char big[] =
        "{\"a\": 9223372036854775808, \"b\": -100000000000000000000, \"c\": 9223372036854775807,"
        " \"d\": 1.5e3, \"e\": \"99999999999999999999\\\"\", \"f\": [0.99999999999999999999]}";
    assert_ok(json_body(&v, big, sizeof big - 1, &e), &e);
    assert_true(json_real_value(json_object_get(v, "a")) == 9223372036854775808.0);
    assert_true(json_real_value(json_object_get(v, "b")) == -1e20);
    assert_true(json_integer_value(json_object_get(v, "c")) == INT64_MAX);
    assert_true(json_real_value(json_object_get(v, "d")) == 1500.0);
    assert_string_equal(json_string_value(json_object_get(v, "e")), "99999999999999999999\"");
    json_decref(v);
    v = NULL;
    assert_fails(json_body(&v, "{\"a\": 1e999}", 12, &e), Q_INVALID, "line 1", &e);
    assert_null(v);
    /* brackets inside strings do not nest, and a backslash hides a quote */
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":\"\\\"", 8);
    memcpy(deep + sizeof deep - 2, "\"}", 2);
    assert_ok(json_body(&v, deep, sizeof deep, &e), &e);
    json_decref(v);
}

static void test_defaults(void **state)
{
    (void)state;
    struct params_context c = {NULL, 100, 20};
    static struct params_ids ids;
    struct sample_params s;
    assert_ok(read_chat("{\"temperature\":null,\"stop\":null}"), &e);
    assert_false(p.has[FIELD_temperature]);
    assert_true(p.add_generation_prompt && p.skip_special_tokens && p.parallel_tool_calls);
    assert_false(p.add_special_tokens); /* the template writes them */
    assert_int_equal(p.n, 1);
    assert_ok(params_sampling(&p, &c, &s, &ids, &e), &e);
    assert_true(s.temperature == 1 && s.top_p == 1 && s.top_k == 0 && s.min_p == 0 &&
                s.repetition_penalty == 1);
    assert_int_equal(s.max_tokens, 0);
    assert_true(s.n_logprob == SAMPLE_NO_LOGPROBS && s.n_prompt_logprob == SAMPLE_NO_LOGPROBS);
    uint64_t seed = s.seed;
    assert_ok(params_sampling(&p, &c, &s, &ids, &e), &e);
    assert_true(s.seed != seed); /* drawn */
    assert_ok(read_text("{}"), &e);
    assert_true(p.add_special_tokens);
}

static void test_model_defaults(void **state)
{
    (void)state;
    struct generation_defaults d = {
        .has_temperature = true,
        .temperature = 0.5,
        .has_top_k = true,
        .top_k = 7,
    };
    struct params_context c = {&d, 100, 20};
    static struct params_ids ids;
    struct sample_params s;
    assert_ok(read_text("{\"top_k\":-1,\"seed\":-3}"), &e);
    assert_ok(params_sampling(&p, &c, &s, &ids, &e), &e);
    assert_true(s.temperature == 0.5f);
    assert_int_equal(s.top_k, 0); /* the request's word counts */
    assert_true(s.seed == (uint64_t)-3);
}

static void test_sampling_fields(void **state)
{
    (void)state;
    struct params_context c = {NULL, 100, 20};
    static struct params_ids ids;
    struct sample_params s;
    assert_ok(
        read_chat(
            "{\"logit_bias\":{\"5\":-100,\"99\":2.5},\"stop_token_ids\":[3,4],\"logprobs\":true,"
            "\"top_logprobs\":4,\"prompt_logprobs\":0,\"max_tokens\":5,\"max_completion_tokens\":6,"
            "\"min_tokens\":2,\"ignore_eos\":true}"),
        &e);
    assert_ok(params_sampling(&p, &c, &s, &ids, &e), &e);
    assert_int_equal(s.n_bias, 2);
    assert_int_equal(s.n_stop_id, 2);
    assert_int_equal(s.stop_ids[1], 4);
    assert_int_equal(s.n_logprob, 4);
    assert_int_equal(s.n_prompt_logprob, 0);
    assert_int_equal(s.max_tokens, 6); /* the newer name counts */
    assert_true(s.ignore_eos);
    params_ids_release(&ids);
    assert_ok(read_chat("{\"logit_bias\":{\"100\":1}}"), &e);
    assert_fails(params_sampling(&p, &c, &s, &ids, &e), Q_INVALID, "below 100", &e);
    params_ids_release(&ids);
    assert_string_equal(p.param, "logit_bias");
    assert_ok(read_chat("{\"logit_bias\":{\"0\":1,\"5\":1,\"05\":2}}"), &e);
    assert_fails(params_sampling(&p, &c, &s, &ids, &e), Q_INVALID, "\"05\" has leading zeros", &e);
    params_ids_release(&ids);
    assert_ok(read_text("{\"logprobs\":21}"), &e);
    assert_fails(params_sampling(&p, &c, &s, &ids, &e), Q_INVALID, "21", &e);
}

/* A row of fields.def that is not supported is refused by name, and its harmless value is not. */
static void test_not_yet_fields(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t where;
        const char *harmless;
    } rows[] = {
#define CHAT   WHERE_CHAT
#define TEXT   WHERE_TEXT
#define BOTH   WHERE_BOTH
#define TOKENS WHERE_TOKENS
#define NUM(name, where, min, max)
#define INT(name, where, min, max)
#define BOOL(name, where)
#define STR(name, where)
#define LIST(name, where)
#define OBJECT(name, where)
#define ANY(name, where)
#define NO_EFFECT(name, where)
#define TOLD(name, where, values)
#define NOT_YET(name, where, harmless) {#name, where, harmless},
#define NEVER(name, where, reason)     {#name, where, "null"},
#include "frontend/api/fields.def"
    };
    char text[256];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum params_where where = rows[i].where & WHERE_CHAT ? WHERE_CHAT : WHERE_TEXT;
        snprintf(text, sizeof text, "{\"%s\":{\"unlikely\":[1]}}", rows[i].name);
        assert_fails(params_read(&p, parse(text), where, &e), Q_UNSUPPORTED, rows[i].name, &e);
        assert_string_equal(p.param, rows[i].name);
        snprintf(text, sizeof text, "{\"%s\":%s}", rows[i].name, rows[i].harmless);
        assert_ok(params_read(&p, parse(text), where, &e), &e);
    }
}

static void test_wrong_values(void **state)
{
    (void)state;
    assert_fails(read_chat("{\"temperature\":2.5}"), Q_INVALID,
                 "temperature: 2.5 is out of range, expected 0 to 2", &e);
    assert_string_equal(p.param, "temperature");
    assert_fails(read_chat("{\"n\":129}"), Q_INVALID, "1 to 128", &e);
    assert_fails(read_chat("{\"n\":1.5}"), Q_INVALID, "integer", &e);
    assert_fails(read_chat("{\"n\":1e300}"), Q_INVALID, "out of range, expected 1 to 128", &e);
    assert_fails(read_chat("{\"n\":99999999999999999999}"), Q_INVALID,
                 "n: 1e+20 is out of range, expected 1 to 128", &e);
    assert_fails(read_chat("{\"stream\":1}"), Q_INVALID, "true or false", &e);
    assert_fails(read_chat("{\"tools\":{}}"), Q_INVALID, "array", &e);
    assert_fails(read_chat("{\"model\":5}"), Q_INVALID, "string", &e);
    assert_fails(read_chat("{\"logit_bias\":[]}"), Q_INVALID, "object", &e);
    assert_fails(read_chat("{\"prompt\":\"x\"}"), Q_INVALID, "does not accept this field", &e);
    assert_fails(read_text("{\"messages\":[]}"), Q_INVALID, "does not accept this field", &e);
    assert_fails(read_text("{\"best_of\":2,\"n\":3}"), Q_INVALID, "best_of: 2 is less", &e);
    assert_fails(read_text("{\"stream_options\":{\"include_usage\":false}}"), Q_INVALID, "stream",
                 &e);
    assert_ok(read_text("{\"stream_options\":{}}"), &e); /* requests nothing, as in vLLM */
    assert_fails(read_text("{\"kv_transfer_params\":{}}"), Q_UNSUPPORTED, "between engines", &e);
    assert_fails(read_text("{\"truncate_prompt_tokens\":0}"), Q_INVALID, "leaves no prompt", &e);
    assert_fails(read_text("{\"truncate_prompt_tokens\":-2}"), Q_INVALID, "-1 to", &e);
    assert_fails(read_text("{\"truncation_side\":\"top\"}"), Q_INVALID, "\"left\"", &e);
    assert_fails(read_text("{\"cache_salt\":\"\"}"), Q_INVALID, "cache_salt: 0 characters", &e);
    assert_ok(read_chat("{\"spaces_between_special_tokens\":false}"), &e);
    assert_fails(read_chat("{\"spaces_between_special_tokens\":false,"
                           "\"skip_special_tokens\":false}"),
                 Q_UNSUPPORTED, "spaces_between_special_tokens: false is not", &e);
    assert_fails(read_text("{\"priority\":4294967296}"), Q_INVALID, "priority", &e);
    assert_fails(read_text("{\"stream\":true,\"prompt_logprobs\":1}"), Q_INVALID, "prompt_logprobs",
                 &e);
    assert_ok(read_text("{\"stream\":true,\"stream_options\":{\"include_usage\":true}}"), &e);
    assert_true(p.include_usage);
    assert_ok(read_chat("{\"continue_final_message\":false,\"n\":2.0,\"unknown_to_us\":[]}"), &e);
    assert_int_equal(p.n, 2);
}

static void test_stops(void **state)
{
    (void)state;
    const char *stops[PARAMS_STOPS_MAX];
    uint32_t n;
    assert_ok(read_chat("{\"stop\":\"a\"}"), &e);
    assert_ok(params_stops(&p, stops, &n, &e), &e);
    assert_int_equal(n, 1);
    assert_ok(read_chat("{\"stop\":[\"a\",\"b\"]}"), &e);
    assert_ok(params_stops(&p, stops, &n, &e), &e);
    assert_int_equal(n, 2);
    assert_string_equal(stops[1], "b");
    assert_ok(read_chat("{\"stop\":[\"a\",null]}"), &e);
    assert_fails(params_stops(&p, stops, &n, &e), Q_INVALID, "null", &e);
    assert_ok(read_chat("{\"stop\":{}}"), &e);
    assert_fails(params_stops(&p, stops, &n, &e), Q_INVALID, "an object", &e);
}

static json_t *messages(const char *text)
{
    json_t *out = NULL;
    assert_ok(messages_read(&out, json_object_get(parse(text), "messages"), NULL, &e), &e);
    return out;
}

static void test_messages(void **state)
{
    (void)state;
    json_t *m = messages(
        "{\"messages\":[{\"role\":\"developer\",\"content\":[\"a\",{\"type\":\"text\",\"text\":"
        "\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"x\\\":1}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},"
        "{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[]},"
        "{\"role\":\"tool\",\"content\":null}]}");
    json_t *first = json_array_get(m, 0),
           *calls = json_object_get(json_array_get(m, 1), "tool_calls");
    assert_string_equal(json_string_value(json_object_get(first, "role")), "developer");
    assert_string_equal(json_string_value(json_object_get(first, "content")), "a\nb");
    json_t *f = json_object_get(json_array_get(calls, 0), "function");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(f, "arguments"), "x")), 1);
    assert_true(json_is_object(
        json_object_get(json_object_get(json_array_get(calls, 1), "function"), "arguments")));
    assert_null(json_object_get(json_array_get(m, 2), "tool_calls"));
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 3), "content")), "");
    /* the request's own JSON is as it was */
    json_t *given = json_object_get(body, "messages");
    assert_string_equal(json_string_value(json_object_get(json_array_get(given, 0), "role")),
                        "developer");
    json_t *old = json_object_get(
        json_array_get(json_object_get(json_array_get(given, 1), "tool_calls"), 0), "function");
    assert_true(json_is_string(json_object_get(old, "arguments")));
    json_decref(m);
}

static void test_bad_messages(void **state)
{
    (void)state;
    static const struct {
        const char *messages;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"[]", Q_INVALID, "0 entries"},
        {"[5]", Q_INVALID, "entry 0: expected an object"},
        {"[{\"role\":\"\",\"content\":\"x\"}]", Q_INVALID, "role"},
        {"[{\"role\":\"user\",\"content\":null}]", Q_INVALID, "requires \"content\""},
        {"[{\"role\":\"tool\"}]", Q_INVALID, "requires \"content\""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"audio\"}]}]", Q_UNSUPPORTED, "audio"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", Q_INVALID, "part 0"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\"}]}]", Q_INVALID,
         "no \"thinking\""},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", Q_INVALID, "tool_calls"},
        {"[{\"role\":\"assistant\",\"function_call\":\"f\"}]", Q_INVALID,
         "entry 0: function_call: expected {\"name\""},
        {"[{\"role\":\"assistant\",\"function_call\":{}}]", Q_INVALID, "without a name"},
        {"[{\"role\":\"function\"}]", Q_INVALID, "requires \"content\""},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", Q_INVALID, "function.name"},
    };
    char text[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *out = NULL;
        snprintf(text, sizeof text, "{\"messages\":%s}", cases[i].messages);
        assert_fails(messages_read(&out, json_object_get(parse(text), "messages"), NULL, &e),
                     cases[i].code, cases[i].part, &e);
        assert_null(out);
    }
}

/* Calls and results in OpenAI's older form, and refusals. */
static void test_older_messages(void **state)
{
    (void)state;
    static const struct {
        const char *given, *read;
    } cases[] = {
        {"[{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"x\\\":1}\"}},"
         "{\"role\":\"function\",\"name\":\"f\",\"content\":\"r\"}]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call00000\","
         "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},"
         "{\"role\":\"tool\",\"name\":\"f\",\"content\":\"r\",\"tool_call_id\":\"call00000\"}]"},
        /* each result has the id of the call before it; one without a call has none */
        {"[{\"role\":\"user\",\"content\":\"u\"},"
         "{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"bad\"}},"
         "{\"role\":\"function\",\"name\":\"f\",\"content\":null},"
         "{\"role\":\"function\",\"name\":\"g\",\"content\":\"r\"}]",
         "[{\"role\":\"user\",\"content\":\"u\"},"
         "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
         "{\"role\":\"tool\",\"name\":\"f\",\"content\":\"\",\"tool_call_id\":\"call00001\"},"
         "{\"role\":\"tool\",\"name\":\"g\",\"content\":\"r\"}]"},
        /* the newer form wins; null is nothing */
        {"[{\"role\":\"assistant\",\"content\":\"c\",\"function_call\":null,\"refusal\":null},"
         "{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\"},\"tool_calls\":["
         "{\"id\":\"1\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]}]",
         "[{\"role\":\"assistant\",\"content\":\"c\",\"function_call\":null,\"refusal\":null},"
         "{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\"},\"tool_calls\":["
         "{\"id\":\"1\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]}]"},
        {"[{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"},"
         "{\"role\":\"assistant\",\"refusal\":\"never\"},"
         "{\"role\":\"assistant\",\"content\":\"c\",\"refusal\":\"no\"}]",
         "[{\"role\":\"assistant\",\"content\":\"no\",\"refusal\":\"no\"},"
         "{\"role\":\"assistant\",\"content\":\"never\",\"refusal\":\"never\"},"
         "{\"role\":\"assistant\",\"content\":\"c\",\"refusal\":\"no\"}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = BUF_INIT;
        buf_printf(&text, "{\"messages\":%s}", cases[i].given);
        json_t *out = messages(buf_str(&text)), *want = json_loads(cases[i].read, 0, NULL);
        assert_non_null(want);
        if (!json_equal(out, want))
            fail_msg("case %zu: %s", i, json_dumps(out, 0));
        json_decref(want);
        json_decref(out);
        buf_release(&text);
    }
}

/* The parts of a reply that comes back in a history are its text. */
static void test_parts(void **state)
{
    (void)state;
    json_t *m = messages("{\"messages\":[{\"role\":\"assistant\",\"content\":["
                         "{\"type\":\"thinking\",\"thinking\":\"a\"},"
                         "{\"type\":\"output_text\",\"text\":\"b\",\"annotations\":[]},"
                         "{\"type\":\"refusal\",\"refusal\":\"c\"},"
                         "{\"type\":\"input_text\",\"text\":\"d\"},{\"text\":\"e\"}]}]}");
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 0), "content")),
                        "a\nb\nc\nd\ne");
    json_decref(m);
}

/* What a model wrote wrong comes back in histories: a template gets {}. */
static void test_broken_arguments(void **state)
{
    (void)state;
    static const char *const broken[] = {"\"{\\\"city\\\": \\\"Os\"",
                                         "\"[1]\"",
                                         "\"\"",
                                         "\"no\"",
                                         "7",
                                         "[1]",
                                         "null",
                                         "true",
                                         "\"{} {}\""};
    char text[512];
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        json_t *out = NULL;
        snprintf(text, sizeof text,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
                 "\"f\",\"arguments\":%s}}]}]}",
                 broken[i]);
        assert_ok(messages_read(&out, json_object_get(parse(text), "messages"), NULL, &e), &e);
        const json_t *calls = json_object_get(json_array_get(out, 0), "tool_calls"),
                     *function = json_object_get(json_array_get(calls, 0), "function"),
                     *arguments = json_object_get(function, "arguments");
        assert_true(json_is_object(arguments) && json_object_size(arguments) == 0);
        json_decref(out);
    }
}

/* Each form in which a client can ask for reasoning or for none reaches the variable that the
 * template has, and what chat_template_kwargs sets stays. */
static void test_thinking(void **state)
{
    (void)state;
    static const char plain[] = "{% if enable_thinking %}<think>{% endif %}",
                      deepseek[] = "{% if not thinking is defined %}{% set thinking = false %}",
                      mistral[] = "{% if reasoning_effort not in ['none', 'high'] %}",
                      gpt_oss[] = "{% set reasoning_effort = 'medium' %}{{ message.thinking }}",
                      seed[] = "{% if thinking_budget == 0 %}",
                      none[] = "{{ message['thinking'] }}";
    static const struct {
        const char *source, *request, *kwargs;
    } rows[] = {
        {plain, "{\"enable_thinking\":false}", "{\"enable_thinking\":false}"},
        {plain, "{\"thinking\":false}", "{\"enable_thinking\":false}"},
        {plain, "{\"thinking\":{\"type\":\"disabled\"}}", "{\"enable_thinking\":false}"},
        {plain, "{\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":9}}",
         "{\"enable_thinking\":true}"},
        {plain, "{\"thinking\":{\"type\":\"adaptive\"}}", "{}"},
        {plain, "{\"reasoning_effort\":\"none\"}",
         "{\"enable_thinking\":false,\"reasoning_effort\":\"none\"}"},
        {plain, "{\"reasoning_effort\":\"low\"}",
         "{\"enable_thinking\":true,\"reasoning_effort\":\"low\"}"},
        {plain, "{\"reasoning_effort\":\"high\",\"enable_thinking\":false}",
         "{\"enable_thinking\":false,\"reasoning_effort\":\"high\"}"},
        {plain, "{\"enable_thinking\":true,\"chat_template_kwargs\":{\"enable_thinking\":false}}",
         "{\"enable_thinking\":false}"},
        {plain, "{\"chat_template_kwargs\":{\"thinking\":false}}",
         "{\"enable_thinking\":false,\"thinking\":false}"},
        {plain, "{}", "{}"},
        {deepseek, "{\"enable_thinking\":true}", "{\"thinking\":true}"},
        {deepseek, "{\"chat_template_kwargs\":{\"enable_thinking\":false,\"x\":1}}",
         "{\"enable_thinking\":false,\"thinking\":false,\"x\":1}"},
        {deepseek, "{\"reasoning_effort\":\"minimal\"}",
         "{\"thinking\":true,\"reasoning_effort\":\"minimal\"}"},
        {mistral, "{\"enable_thinking\":false}", "{\"reasoning_effort\":\"none\"}"},
        {mistral, "{\"thinking\":true}", "{\"reasoning_effort\":\"high\"}"},
        {mistral, "{\"thinking\":true,\"reasoning_effort\":\"none\"}",
         "{\"reasoning_effort\":\"none\"}"},
        {gpt_oss, "{\"enable_thinking\":false}", "{}"},
        {gpt_oss, "{\"reasoning_effort\":\"low\"}", "{\"reasoning_effort\":\"low\"}"},
        {seed, "{\"enable_thinking\":false}", "{\"thinking_budget\":0}"},
        {seed, "{\"enable_thinking\":true}", "{}"},
        {none, "{\"thinking\":true}", "{}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *request = parse(rows[i].request);
        const struct turn_ask ask = {
            .enable_thinking = json_object_get(request, "enable_thinking"),
            .thinking = json_object_get(request, "thinking"),
            .reasoning_effort = json_string_value(json_object_get(request, "reasoning_effort")),
            .chat_template_kwargs = json_object_get(request, "chat_template_kwargs"),
        };
        json_t *kwargs = NULL, *want = json_loads(rows[i].kwargs, 0, NULL);
        assert_ok(thinking_kwargs(&kwargs, &ask, rows[i].source, &e), &e);
        if (!json_equal(kwargs, want))
            fail_msg("%s with %s: %s", rows[i].request, rows[i].source,
                     json_dumps(kwargs, JSON_COMPACT));
        json_decref(kwargs);
        json_decref(want);
    }
    static const char *const bad[] = {"{\"v\":7}", "{\"v\":\"maybe\"}", "{\"v\":{\"type\":1}}",
                                      "{\"v\":{}}", "{\"v\":[]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum thinking asked;
        const struct turn_ask ask = {.enable_thinking = json_object_get(parse(bad[i]), "v")};
        assert_fails(thinking_read(&asked, &ask, &e), Q_INVALID, "enable_thinking: expected true",
                     &e);
    }
}

/* Fields of other endpoints have no effect on /tokenize and are logged; each name once, not without
 * end. */
static void test_no_effect(void **state)
{
    (void)state;
    struct unknown u = {0};
    char both[UNKNOWN_BOTH_MAX];
    assert_ok(params_read(&p, parse("{\"temperature\":[],\"echo\":1,\"tool_choice\":\"none\"}"),
                          WHERE_TOKENS, &e),
              &e);
    assert_string_equal(unknown_warning(&p.unknown, both),
                        "fields without effect: temperature, echo");
    assert_true(p.has[FIELD_tool_choice] && !p.has[FIELD_temperature]);
    assert_ok(unknown_check(&p.unknown, true, &e), &e);
    assert_null(unknown_warning(&u, both));
    for (int i = 0; i < 1000; i++)
        unknown_no_effect(&u, "some_field_of_another_endpoint");
    size_t n = strlen(u.idle);
    assert_true(n < UNKNOWN_TEXT_MAX);
    assert_string_equal(u.idle + n - 11, "dpoint, ...");
    unknown_note(&u, "x", "", 0);
    assert_memory_equal(unknown_warning(&u, both), "ignored unknown fields: x; fields without ",
                        42);
}

static void test_prompts(void **state)
{
    (void)state;
    static struct served_model s = {.config.vocab_size = 10};
    struct prompts list;
    s.tokenizer = (struct tokenizer *)&s; /* only asked whether there is one */
    assert_ok(prompts_read(&list, json_object_get(parse("{\"p\":[[1,2],\"text\",[9]]}"), "p"), &s,
                           false, &e),
              &e);
    assert_int_equal(list.n, 3);
    assert_int_equal(list.items[0].ids.n, 2);
    assert_int_equal(list.items[1].n_text, 4);
    prompts_truncate(&list, 1, true);
    assert_int_equal(list.items[0].ids.n, 1);
    assert_int_equal(list.items[0].ids.ids[0], 2);
    prompts_release(&list);
    assert_ok(
        prompts_read(&list, json_object_get(parse("{\"p\":[[1,2,3],[9]]}"), "p"), &s, false, &e),
        &e);
    prompts_truncate(&list, 2, false);
    assert_int_equal(list.items[0].ids.n, 2);
    assert_int_equal(list.items[0].ids.ids[0], 1);
    assert_int_equal(list.items[1].ids.n, 1);
    prompts_release(&list);
    assert_fails(prompts_read(&list, json_object_get(parse("{\"p\":[1,10]}"), "p"), &s, false, &e),
                 Q_INVALID, "0 … 9", &e);
    prompts_release(&list);
    assert_fails(prompts_read(&list, json_object_get(parse("{\"p\":[1,-3]}"), "p"), &s, false, &e),
                 Q_INVALID, "token id -3 at position 1", &e);
    prompts_release(&list);
    assert_ok(prompts_read(&list, json_object_get(parse("{\"p\":[1,-3]}"), "p"), &s, true, &e), &e);
    assert_int_equal(list.items[0].ids.ids[1], (uint32_t)-3);
    prompts_release(&list);
    s.tokenizer = NULL;
    assert_fails(prompts_read(&list, json_object_get(parse("{\"p\":\"x\"}"), "p"), &s, false, &e),
                 Q_UNSUPPORTED, "skip-tokenizer-init", &e);
    prompts_release(&list);
}

/* Everything a body goes through, with the n-th allocation failing until none does. */
static enum q_code whole_way(const char *text, size_t n)
{
    static struct served_model s = {.config.vocab_size = 10};
    static struct params_ids ids;
    struct params_context c = {NULL, 10, 20};
    struct sample_params sampling;
    struct prompts list = {NULL, 0};
    json_t *v = NULL, *out = NULL;
    enum q_code rc;
    if ((rc = json_body(&v, text, n, &e)) == Q_OK &&
        (rc = params_read(&p, v, WHERE_TOKENS, &e)) == Q_OK &&
        (rc = params_sampling(&p, &c, &sampling, &ids, &e)) == Q_OK &&
        (rc = messages_read(&out, p.messages, NULL, &e)) == Q_OK)
        rc = prompts_read(&list, p.prompt, &s, false, &e);
    prompts_release(&list);
    params_ids_release(&ids);
    json_decref(out);
    json_decref(v);
    return rc;
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char text[] =
        "{\"messages\":[{\"role\":\"developer\",\"content\":[\"a\",{\"type\":\"text\",\"text\":"
        "\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"x\\\":1}\"}}]}],\"prompt\":[[1,2,3],[4]]}";
    static void (*const fails[])(int64_t) = {mem_fail_after, mem_fail_once};
    json_decref(body);
    body = NULL;
    json_use_mem();
    for (int i = 0; i < 2; i++) {
        uint64_t before;
        int n = -1;
        enum q_code rc;
        do {
            q_err_reset(&e);
            before = mem_failure_count();
            fails[i](++n);
            rc = whole_way(text, sizeof text - 1);
            fails[i](-1);
            if (rc && rc != Q_NO_MEMORY)
                fail_msg("allocation %d: %s", n, e.message);
        } while (mem_failure_count() != before);
        assert_int_equal(rc, Q_OK);
        assert_true(n > 50);
    }
}

static int release(void **state)
{
    (void)state;
    json_decref(body);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_limits),    cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_model_defaults), cmocka_unit_test(test_sampling_fields),
        cmocka_unit_test(test_not_yet_fields), cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_stops),          cmocka_unit_test(test_messages),
        cmocka_unit_test(test_older_messages), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_bad_messages),   cmocka_unit_test(test_broken_arguments),
        cmocka_unit_test(test_thinking),       cmocka_unit_test(test_no_effect),
        cmocka_unit_test(test_prompts),        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
