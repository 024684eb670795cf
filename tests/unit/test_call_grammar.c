/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that a grammar makes: in every format it lets through what models write (forced.json, made
 * by writers that know nothing of it), and what it lets through is a call that the format's parser
 * reads and that fits the function's schema: texts changed at random are checked where they still
 * fit the grammar. */
#include "parse_all.h"
#include <jansson.h>
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher/matcher.h"
#include "common/parsers/call_grammar.h"

#define ROWS    "tests/data/toolstreams/forced.json"
#define SEED    20261122u
#define CHANGES 400 /* of one text */

static struct q_err err;
static json_t *set;
static struct parsed r; /* large */

/* The matcher of a request's grammar, NULL: none is needed. */
static struct matcher *grammar_of(const struct call_grammar *f)
{
    json_t *tag = NULL;
    uint32_t *words = NULL, n_word = 0;
    struct matcher *m = NULL;
    assert_ok(call_grammar_tools(&tag, f, &err), &err);
    if (!tag)
        return NULL;
    char *text = json_dumps(tag, JSON_COMPACT);
    const struct grammar_source source = {.kind = GRAMMAR_TAGS, .text = text, .n = strlen(text)};
    if (grammar_compile(&words, &n_word, &source, &err) ||
        matcher_new(&m, words, n_word, NULL, &err))
        fail_msg("%s: %s: %s", f->tool, err.message, text);
    q_free(words);
    free(text);
    json_decref(tag);
    return m;
}

/* The request's grammar cannot be made. */
static void refused(const struct call_grammar *f, const char *message)
{
    json_t *tag = NULL;
    uint32_t *words = NULL, n_word = 0;
    assert_ok(call_grammar_tools(&tag, f, &err), &err);
    assert_non_null(tag);
    char *text = json_dumps(tag, JSON_COMPACT);
    const struct grammar_source source = {.kind = GRAMMAR_TAGS, .text = text, .n = strlen(text)};
    if (grammar_compile(&words, &n_word, &source, &err) == Q_OK || !strstr(err.message, message))
        fail_msg("%s: \"%s\" is not in \"%s\": %s", f->tool, message, err.message, text);
    q_free(words);
    free(text);
    json_decref(tag);
}

static bool accepts(struct matcher *m, const char *text, size_t n)
{
    matcher_begin(m);
    matcher_config c = matcher_bytes(m, matcher_start(m), text, n);
    return c && matcher_can_end(m, c);
}

static struct call_grammar config(const char *tool)
{
    const char *template = strcmp(tool, "mistral") ? "<|function_call|>" : "[ARGS]";
    return (struct call_grammar){
        .tool = tool,
        .template = template,
        .tools = json_object_get(set, "tools"),
        .required = true,
        .parallel = true,
    };
}

/* ---- the constraints of a schema on a value: as much of JSON Schema as forced.json has ---- */

static bool fits(const json_t *root, const json_t *schema, const json_t *v)
{
    const char *type = json_string_value(json_object_get(schema, "type")), *key;
    const json_t *choice = json_object_get(schema, "enum"), *inner;
    size_t i;
    json_t *one;
    if (json_object_get(schema, "$ref"))
        schema = json_object_get(json_object_get(root, "$defs"), "n"), type = "integer";
    if (choice) {
        json_array_foreach ((json_t *)choice, i, one)
            if (json_equal(one, v))
                return true;
        return false;
    }
    if (!strcmp(type, "string"))
        return json_is_string(v) &&
               (!json_object_get(schema, "maxLength") || json_string_length(v) <= 9 * 4);
    if (!strcmp(type, "integer"))
        return json_is_integer(v);
    if (!strcmp(type, "number"))
        return json_is_number(v);
    if (!strcmp(type, "boolean"))
        return json_is_boolean(v);
    if (!strcmp(type, "array")) {
        json_array_foreach ((json_t *)v, i, one)
            if (!fits(root, json_object_get(schema, "items"), one))
                return false;
        return json_is_array(v);
    }
    json_object_foreach ((json_t *)v, key, one) {
        inner = json_object_get(json_object_get(schema, "properties"), key);
        if (!inner || !fits(root, inner, one))
            return false;
    }
    json_array_foreach (json_object_get(schema, "required"), i, one)
        if (!json_object_get(v, json_string_value(one)))
            return false;
    return json_is_object(v);
}

static bool call_fits(const char *name, const struct buf *args)
{
    size_t i;
    json_t *tool;
    json_t *v = json_loadb(buf_str(args), args->len, JSON_ALLOW_NUL, NULL);
    bool good = false;
    json_array_foreach (json_object_get(set, "tools"), i, tool) {
        const json_t *f = json_object_get(tool, "function"),
                     *schema = json_object_get(f, "parameters");
        if (!strcmp(json_string_value(json_object_get(f, "name")), name))
            good = v && fits(schema, schema, v);
    }
    json_decref(v);
    return good;
}

/* What the grammar let through has to be n calls (0: one or more) and nothing else. */
static void check_calls(const char *tool, const char *text, size_t n, size_t n_call)
{
    const struct parser_config c = {.tool = tool, .tools = json_object_get(set, "tools")};
    assert_ok(parse_cut(&c, text, n, NULL, 0, &r, &err), &err);
    bool good = r.n_call && r.n_end == r.n_call && (!n_call || r.n_call == n_call);
    for (size_t i = 0; i < r.n_call && good; i++)
        good = call_fits(buf_str(&r.name[i]), &r.args[i]);
    if (!good || r.content.len)
        fail_msg("%s: %.*s: %u calls, %u ended, content \"%s\", last %s %s", tool, (int)n, text,
                 r.n_call, r.n_end, buf_str(&r.content), buf_str(&r.name[0]), buf_str(&r.args[0]));
    parsed_release(&r);
}

/* ---- tests ---- */

static uint32_t random_below(uint32_t n)
{
    static uint32_t state = SEED;
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* The text with a byte or two changed, taken out or doubled. */
static size_t change(char *to, const char *text, size_t n)
{
    static const char bytes[] = "a0 -.,\"'<>[](){}=:\n/\\tTr1|";
    size_t at = random_below((uint32_t)n), more = 0;
    uint32_t how = random_below(4);
    char c = bytes[random_below(sizeof bytes - 1)];
    memcpy(to, text, at);
    if (how == 0)
        to[at] = c, more = 1;
    else if (how == 1) /* a piece is taken out */
        at -= at > 3 ? random_below(4) : 0;
    else if (how == 2)
        to[at] = c, to[at + 1] = text[at], more = 2;
    else
        to[at] = text[at], to[at + 1] = text[at], more = 2;
    size_t from = how == 1 ? at + 1 + random_below(3) : at + 1;
    from = from > n ? n : from;
    memcpy(to + at + more, text + from, n - from);
    return at + more + n - from;
}

struct counts {
    size_t n_text, n_changed, n_bad;
};

static void one_format(const char *tool, struct counts *counts)
{
    struct call_grammar f = config(tool);
    struct matcher *m = grammar_of(&f);
    static char changed[8192];
    json_t *row;
    size_t i, n_accepted = 0;
    json_array_foreach (json_object_get(set, "rows"), i, row) {
        const char *text = json_string_value(json_object_get(row, "text"));
        size_t n = strlen(text),
               n_call = (size_t)json_integer_value(json_object_get(row, "n_call"));
        assert_true(n + 8 < sizeof changed);
        if (strcmp(json_string_value(json_object_get(row, "format")), tool) != 0 ||
            !accepts(m, text, n))
            continue;
        n_accepted++;
        check_calls(tool, text, n, n_call);
        for (int k = 0; k < CHANGES; k++) {
            size_t n_changed = change(changed, text, n);
            if (accepts(m, changed, n_changed)) {
                check_calls(tool, changed, n_changed, 0);
                counts->n_changed++;
            }
        }
    }
    if (n_accepted < 4) {
        json_array_foreach (json_object_get(set, "rows"), i, row)
            if (!strcmp(json_string_value(json_object_get(row, "format")), tool))
                print_error("%s\n", json_string_value(json_object_get(row, "text")));
        print_error("%s: %zu texts fit its grammar, expected 4 or more\n", tool, n_accepted);
        counts->n_bad++;
    }
    counts->n_text += n_accepted;
    matcher_free(m);
}

static void every_format(void **state)
{
    (void)state;
    struct counts counts = {0};
    size_t n = 0;
    for (const char *const *name = parser_tool_names(); *name; name++)
        if (strcmp(*name, "none") != 0) {
            one_format(*name, &counts);
            n++;
        }
    assert_int_equal(counts.n_bad, 0);
    print_message("%zu formats: %zu texts of independent writers and %zu changed ones fit the "
                  "grammars, and all are calls that fit their schemas\n",
                  n, counts.n_text, counts.n_changed);
}

static void one_call_only(void **state)
{
    (void)state;
    json_t *row;
    size_t i, n = 0;
    for (const char *const *name = parser_tool_names(); *name; name++) {
        struct call_grammar f = config(*name);
        f.parallel = false;
        struct matcher *m = strcmp(*name, "none") ? grammar_of(&f) : NULL;
        json_array_foreach (json_object_get(set, "rows"), i, row) {
            const char *text = json_string_value(json_object_get(row, "text"));
            bool one = json_integer_value(json_object_get(row, "n_call")) == 1;
            if (!m || strcmp(json_string_value(json_object_get(row, "format")), *name) != 0)
                continue;
            if (!one && accepts(m, text, strlen(text)))
                fail_msg("%s: more than one call: %s", *name, text);
            n += one && accepts(m, text, strlen(text));
        }
        matcher_free(m);
    }
    assert_true(n > 200);
}

/* An answer by a schema, as its format writes it. */
static const char *answer_of(const char *tool, const char *json, char *out, size_t size)
{
    const char *before = !strcmp(tool, "openai")     ? "<|channel|>final<|message|>"
                         : !strncmp(tool, "muse", 4) ? " to=user<|message|>"
                                                     : "";
    snprintf(out, size, "%s%s", before, json);
    return out;
}

/* Calls that may come beside a schema: in every format an answer is calls and nothing else, or
 * the schema's constraints and nothing else. */
static void calls_or_an_answer(void **state)
{
    (void)state;
    json_t *answer = json_loads("{\"type\": \"json_schema\", \"json_schema\": {\"type\": "
                                "\"object\", \"properties\": {\"a\": {\"const\": 7}}, "
                                "\"required\": [\"a\"], \"additionalProperties\": false}}",
                                0, NULL),
           *row, *tools = json_deep_copy(json_object_get(set, "tools"));
    static const char *const bad[] = {"Hello.", "{}", "{\"a\": 8}", "[]", "{\"a\": 7} ok", ""};
    static char text[8192];
    size_t i, n_name = 0;
    for (int strict = 0; strict < 2; strict++) {
        json_array_foreach (tools, i, row)
            json_object_set_new(json_object_get(row, "function"), "strict", json_boolean(strict));
        for (const char *const *name = parser_tool_names(); strcmp(*name, "none") != 0; name++) {
            struct call_grammar f = config(*name), one = f;
            f.required = false;
            f.answer = answer;
            f.tools = tools;
            one = f;
            one.parallel = false;
            struct matcher *m = grammar_of(&f), *m_one = grammar_of(&one);
            size_t n_call = 0;
            answer_of(*name, "{\"a\": 7}", text, sizeof text);
            if (!m || !accepts(m, text, strlen(text)) || !accepts(m_one, text, strlen(text)))
                fail_msg("%s: the answer is not let through", *name);
            for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
                if (accepts(m, answer_of(*name, bad[k], text, sizeof text), strlen(text)))
                    fail_msg("%s: lets through %s", *name, text);
            json_array_foreach (json_object_get(set, "rows"), i, row) {
                const char *call = json_string_value(json_object_get(row, "text"));
                bool several = json_integer_value(json_object_get(row, "n_call")) > 1;
                if (strcmp(json_string_value(json_object_get(row, "format")), *name) != 0 ||
                    !accepts(m, call, strlen(call)))
                    continue;
                n_call++;
                if (accepts(m_one, call, strlen(call)) == several)
                    fail_msg("%s: several %d: %s", *name, several, call);
                snprintf(text, sizeof text, "%s{\"a\": 7}", call);
                if (accepts(m, text, strlen(text)))
                    fail_msg("%s: a call and an answer: %s", *name, text);
            }
            if (n_call < 4)
                fail_msg("%s: %zu texts of calls fit, expected 4 or more", *name, n_call);
            matcher_free(m);
            matcher_free(m_one);
            n_name++;
        }
    }
    struct call_grammar f = config("none");
    f.required = false;
    f.answer = answer;
    assert_null(grammar_of(&f)); /* no calls: the answer's own grammar is all */
    json_decref(answer);
    json_decref(tools);
    assert_true(n_name > 100);
}

/* A parameter that the format cannot name keeps no answer from having a schema. */
static void names_that_cannot_be_written(void **state)
{
    (void)state;
    json_t *answer = json_loads("{\"type\": \"const_string\", \"value\": \"yes\"}", 0, NULL),
           *tools = json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
                               "{\"a[0]\": {\"type\": \"string\"}}}}}]",
                               0, NULL);
    struct call_grammar f = {
        .tool = "qwen3_coder",
        .tools = tools,
        .answer = answer,
        .parallel = true,
    };
    struct matcher *m = grammar_of(&f);
    static const char call[] = "<tool_call>\n<function=f>\n<parameter=a[0]>\nx\n</parameter>\n"
                               "</function>\n</tool_call>";
    assert_true(accepts(m, call, strlen(call)) && accepts(m, "yes", 3) && !accepts(m, "no", 2));
    matcher_free(m);
    f.required = true;
    json_t *tag = NULL;
    assert_fails(call_grammar_tools(&tag, &f, &err), Q_UNSUPPORTED, "parameter name \"a[0]\"",
                 &err);
    json_decref(answer);
    json_decref(tools);
}

/* Strict functions that may be called: calls among text keep to the schema. */
static void among_text(void **state)
{
    (void)state;
    static const struct {
        const char *tool, *good, *bad;
    } rows[] = {
        {"hermes", "Hi. <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
         "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
        {"llama3_json", "1 { 2 {\"name\": \"now\", \"parameters\": {}}",
         "{\"name\": \"now\", \"parameters\": 1"},
        {"pythonic", "see [1]: [now(), play(n=1)] ok", "[play(n=x)]"},
        {"qwen3_coder", "a\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
         "<tool_call>\n<function=play>\n<parameter=m>\n1\n</parameter>\n</function>\n</tool_call>"},
        {"kimi_k2",
         "x<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_"
         "begin|>"
         "{}<|tool_call_end|><|tool_calls_section_end|>",
         "<|tool_calls_section_begin|>"},
        {"kimi_k3",
         "\xff<|open|>\xffresponse\xff<|sep|>\xff<b> é.\xff<|close|>\xffresponse\xff<|sep|>\xff"
         "\xff<|open|>\xfftools\xff<|sep|>\xff\xff<|open|>\xff"
         "call tool=\"now\" index=\"1\"\xff<|sep|>\xff\xff<|close|>\xff"
         "call\xff<|sep|>\xff\xff<|close|>\xfftools\xff<|sep|>\xff\xff<|end|>\xff",
         "\xff<|open|>\xffresponse\xff<|sep|>\xffHi\xff<|open|>\xfftools\xff<|sep|>\xffwhat"},
        {"inkling",
         "\xff<|content_text|>\xffHm\xff<|end_message|>\xff\xff<|message_model|>\xff"
         "\xff<|content_invoke_tool_json|>\xff{\"name\": \"now\", \"args\": "
         "{}}\xff<|end_message|>\xff",
         "\xff<|content_invoke_tool_json|>\xff{\"name\": \"now\", \"args\": {\"x\": "
         "1}}\xff<|end_message|>\xff"},
        {"cohere_command3", "\xff<|START_TEXT|>\xffOne.\xff<|END_TEXT|>\xff",
         "a\xff<|START_ACTION|>\xff[{\"tool_name\": \"now\"}]"},
        {"cohere_command3", "\xff<|START_RESPONSE|>\xff\xff<|END_RESPONSE|>\xff",
         "x<|START_ACTION|>y"},
        {"muse_glimmer",
         " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>1 <atem:invoke>",
         " to=play<|message|><atem:function_calls>\n<atem:invoke name=\"play\">\n"
         "<atem:parameter name=\"n\">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"},
        {"muse_glimmer",
         " to=now<|message|><atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n"
         "</atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n"
         "<atem:invoke name=\"now\">\n</atem:invoke>\n</atem:function_calls>",
         " to=play<|message|><atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n"
         "</atem:function_calls>"},
        {"openai",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>1.",
         "<|channel|>commentary to=functions.play <|constrain|>json<|message|>{\"n\": \"1\"}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct call_grammar f = config(rows[i].tool);
        f.required = false;
        struct matcher *m = grammar_of(&f);
        assert_non_null(m);
        if (!accepts(m, rows[i].good, strlen(rows[i].good)))
            fail_msg("%s: does not fit: %s", rows[i].tool, rows[i].good);
        if (accepts(m, rows[i].bad, strlen(rows[i].bad)))
            fail_msg("%s: fits: %s", rows[i].tool, rows[i].bad);
        matcher_free(m);
    }
}

/* A schema that no grammar can be made of is found while it is made: the error has the tool's entry
 * and name and the path in its parameters, in every format. */
static void errors_name_the_tool(void **state)
{
    (void)state;
#define X(schema)                                                                  \
    "{\"type\": \"object\", \"required\": [\"x\"], \"$defs\": {\"y\": {\"type\": " \
    "\"string\", \"pattern\": \"(\"}}, \"properties\": {\"x\": " schema "}}"
    static const char *const schemas[][2] = {
        {X("{\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/y\"}}"),
         "#/$defs/y: pattern: the group"},
        {X("{\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \"(\"}}"),
         "#/properties/x/items: pattern: the group"},
    };
    static const char never[] = X("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 2}");
#undef X
    static const char *const formats[] = {
        "hermes", "llama3_json", "mistral",  "openai",       "kimi_k2",
        "glm45",  "qwen3_coder", "pythonic", "deepseek_v32", "muse",
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (int way = 0; way < 8; way++) {
            const bool strict = way & 1, allowed = way & 2;
            json_t *bad = json_loads(schemas[way >> 2][0], 0, NULL);
            json_t *tools = json_pack("[{s:{s:s}},{s:{s:s}},{s:{s:s,s:b,s:o}}]", "function", "name",
                                      "a", "function", "name", "b", "function", "name", "bad",
                                      "strict", strict, "parameters", bad);
            json_t *some = json_pack("[O]", json_array_get(tools, 2));
            const struct call_grammar f = {
                .tool = formats[i],
                .tools = allowed ? some : tools,
                .listed = allowed ? tools : NULL,
                .required = !strict,
                .parallel = true,
            };
            refused(&f, "tools: entry 2, function \"bad\": #/");
            refused(&f, schemas[way >> 2][1]);
            json_decref(some);
            json_decref(tools);
        }
    json_t *tools = json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters",
                              json_loads(never, 0, NULL));
    refused(&(struct call_grammar){.tool = "hermes", .tools = tools, .required = true},
            "tools: entry 0, function \"f\": no text can satisfy");
    json_decref(tools);
}

static void named_and_refused(void **state)
{
    (void)state;
    struct call_grammar f = config("glm45");
    json_t *tag = NULL;
    f.name = "now";
    struct matcher *m = grammar_of(&f);
    static const char good[] = "<tool_call>now\n</tool_call>",
                      bad[] = "<tool_call>play\n</tool_call>";
    assert_true(accepts(m, good, strlen(good)) && !accepts(m, bad, strlen(bad)));
    matcher_free(m);
    f.name = "nope";
    assert_fails(call_grammar_tools(&tag, &f, &err), Q_INVALID, "no function \"nope\"", &err);
    f = config("none");
    assert_fails(call_grammar_tools(&tag, &f, &err), Q_UNSUPPORTED, "tool-call parser none", &err);
    json_t *tools = json_loads(
        "[{\"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": {\"properties\": "
        "{\"a\": {\"type\": \"string\", \"pattern\": \"x+\"}}}}}]",
        0, NULL);
    f = (struct call_grammar){.tool = "glm45", .tools = tools, .required = true};
    assert_fails(call_grammar_tools(&tag, &f, &err), Q_UNSUPPORTED,
                 "function \"f\": calls use the format of the tool-call parser glm45: "
                 "it cannot express \"pattern\" of a string",
                 &err);
    f.tool = "hermes"; /* JSON has it */
    matcher_free(grammar_of(&f));
    json_object_set(json_object_get(json_array_get(tools, 0), "function"), "strict", json_false());
    f.tool = "glm45"; /* then its arguments are free */
    m = grammar_of(&f);
    static const char any[] =
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>yy</arg_value>\n</tool_call>";
    assert_true(accepts(m, any, strlen(any)));
    matcher_free(m);
    f.required = false;
    assert_null(grammar_of(&f));
    json_decref(tools);
}

/* Tags of a checkpoint with a suffix of its own: the suffix is in the template. */
static void suffixed(void **state)
{
    (void)state;
    static const char
        named[] = "{%- set HYTK = ':opensource' %}{{ '<arg_key{}>'.format(HYTK) }}",
        literal[] = "<arg_key:1.a>",
        v3[] = "<tool_calls:opensource>\n<tool_call:opensource>play<tool_sep:opensource>\n"
               "<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>7"
               "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        v4[] = "<tool_calls:1.a><tool_call:1.a>play<arg_key:1.a>n</arg_key:1.a>"
               "<arg_value:1.a>7</arg_value:1.a></tool_call:1.a></tool_calls:1.a>";
    struct call_grammar f = config("hy_v3");
    f.template = named;
    struct matcher *m = grammar_of(&f);
    assert_true(accepts(m, v3, strlen(v3)) && !accepts(m, v4, strlen(v4)));
    check_calls("hy_v3", v3, strlen(v3), 1);
    matcher_free(m);
    f = config("hy_v4");
    f.template = literal;
    m = grammar_of(&f);
    assert_true(accepts(m, v4, strlen(v4)) && !accepts(m, v3, strlen(v3)));
    check_calls("hy_v4", v4, strlen(v4), 1);
    matcher_free(m);
    assert_true(call_grammar_thinks("openai") && call_grammar_thinks("muse_glimmer"));
    assert_true(!call_grammar_thinks("hermes") && !call_grammar_thinks("none"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format),
        cmocka_unit_test(one_call_only),
        cmocka_unit_test(among_text),
        cmocka_unit_test(errors_name_the_tool),
        cmocka_unit_test(named_and_refused),
        cmocka_unit_test(calls_or_an_answer),
        cmocka_unit_test(names_that_cannot_be_written),
        cmocka_unit_test(suffixed),
    };
    set = json_load_file(ROWS, 0, NULL);
    int n = set ? cmocka_run_group_tests_name("forced", tests, NULL, NULL) : 1;
    json_decref(set);
    return n;
}
