/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers of reasoning and tool calls: every text of tests/data/toolstreams in every cut; what real
 * templates write (../shared, skipped when absent); limits and failing allocations. */
#include "parse_all.h"
#include <inttypes.h>
#include <jansson.h>
#include "common/file.h"
#include "common/mem.h"
#include "common/parsers/lenient_json.h"
#include "common/parsers/types.h"
#include "rounds.h"

#define STREAMS   "tests/data/toolstreams/"
#define REAL      "../shared/data/toolcalls/from-templates/tool_call_texts.json"
#define TEMPLATES "../shared/data/"
#define SEED      20260902u
#define CUTS_MAX  8192

static struct q_err err;
static struct parsed r; /* large */

static bool same(const struct buf *b, const json_t *want)
{
    return b->len == json_string_length(want) &&
           memcmp(buf_str(b), want ? json_string_value(want) : "", b->len) == 0;
}

/* A call is [name, arguments], the arguments as text or as the value they have to read as. */
static bool call_agrees(size_t i, const json_t *want)
{
    const json_t *args = json_array_get(want, 1);
    if (!same(&r.name[i], json_array_get(want, 0)))
        return false;
    if (json_is_string(args))
        return same(&r.args[i], args);
    json_t *got =
        json_loadb(buf_str(&r.args[i]), r.args[i].len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool good = got && json_equal(got, args);
    json_decref(got);
    return good;
}

static void check_row(const struct parser_config *c, const json_t *row, const size_t *cut,
                      size_t n_cut)
{
    const json_t *calls = json_object_get(row, "calls"), *text = json_object_get(row, "text");
    const json_t *complete = json_object_get(row, "complete");
    assert_ok(parse_cut(c, json_string_value(text), json_string_length(text), cut, n_cut, &r, &err),
              &err);
    size_t n_end = complete ? (size_t)json_integer_value(complete) : json_array_size(calls);
    bool good = same(&r.content, json_object_get(row, "content")) &&
                same(&r.reasoning, json_object_get(row, "reasoning")) &&
                r.n_call == json_array_size(calls) && r.n_end == n_end;
    for (size_t i = 0; i < r.n_call && good; i++)
        good = call_agrees(i, json_array_get(calls, i));
    const char *name = json_string_value(json_object_get(row, "name"));
    if (!good)
        fail_msg(
            "%s: %s/%s: %s in %zu cuts (first %zu): content \"%s\", reasoning \"%s\", %u calls "
            "(%s %s), %u ended",
            name ? name : "", c->tool ? c->tool : "", c->reasoning ? c->reasoning : "",
            json_string_value(text), n_cut, n_cut ? cut[0] : 0, buf_str(&r.content),
            buf_str(&r.reasoning), r.n_call, buf_str(&r.name[0]), buf_str(&r.args[0]), r.n_end);
    parsed_release(&r);
}

/* Whole, cut in two everywhere, byte by byte, in random groupings. Under a sanitizer every seventh
 * cut in two, from another byte on in each text. */
static void check_cuts(const struct parser_config *c, const json_t *row)
{
    static uint32_t random = SEED, n_text;
    static size_t cut[CUTS_MAX];
    size_t n = json_string_length(json_object_get(row, "text"));
    assert_true(n < CUTS_MAX);
    check_row(c, row, NULL, 0);
    for (cut[0] = n_text++ % ROUNDS(1, 7); cut[0] <= n; cut[0] += ROUNDS(1, 7))
        check_row(c, row, cut, 1);
    for (size_t k = 0; k < n; k++)
        cut[k] = k;
    check_row(c, row, cut, n);
    for (int round = 0; round < ROUNDS(100, 10); round++) {
        size_t n_cut = 0;
        for (size_t at = 0; at < n; at++) {
            random = random * 1664525u + 1013904223u;
            if ((random >> 24) % (2 + (uint32_t)round % 9) == 0)
                cut[n_cut++] = at;
        }
        check_row(c, row, cut, n_cut);
    }
}

static json_t *load(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, STREAMS "%s", name);
    json_t *set = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(set);
    return set;
}

static void hermes(void **state)
{
    (void)state;
    json_t *rows = load("hermes.json"), *row;
    size_t i;
    json_array_foreach (rows, i, row)
        check_cuts(&(struct parser_config){.tool = "hermes"}, row);
    assert_true(i >= 40);
    print_message("%zu texts, cut in two, single bytes, %d groupings each (seed %u)\n", i,
                  ROUNDS(100, 10), SEED);
    json_decref(rows);
}

/* Every format of tools.def has rows; a row without tools known too, where values carry types. */
static void formats(void **state)
{
    (void)state;
    json_t *set = load("formats.json"), *row;
    const json_t *rows = json_object_get(set, "rows");
    size_t i, n = 0;
    for (const char *const *name = parser_tool_names(); *name; name++) {
        size_t n_row = 0;
        const struct parser_config c = {.tool = *name, .tools = json_object_get(set, "tools")};
        json_array_foreach ((json_t *)rows, i, row)
            if (strcmp(json_string_value(json_object_get(row, "format")), *name) == 0) {
                check_cuts(&c, row);
                n_row++;
            }
        if (n_row < 3 && strcmp(*name, "none") != 0)
            fail_msg("%s: only %zu rows in formats.json", *name, n_row);
        n += n_row;
    }
    assert_int_equal(n, json_array_size(rows));
    print_message("%zu texts of all formats, in all cuts\n", n);
    json_decref(set);
}

static enum reasoning_start start_of(const char *name)
{
    return !name                       ? REASONING_BY_FORMAT
           : strcmp(name, "open") == 0 ? REASONING_OPEN
                                       : REASONING_NOT_OPEN;
}

static void reasoning(void **state)
{
    (void)state;
    json_t *rows = load("reasoning.json"), *row;
    size_t i;
    uint64_t seen = 0;
    json_array_foreach (rows, i, row) {
        const char *start = json_string_value(json_object_get(row, "start"));
        struct parser_config c = {
            .tool = json_string_value(json_object_get(row, "tool")),
            .reasoning = json_string_value(json_object_get(row, "format")),
        };
        c.start = start_of(start);
        check_cuts(&c, row);
        for (size_t k = 0; parser_reasoning_names()[k]; k++)
            if (strcmp(parser_reasoning_names()[k], c.reasoning) == 0)
                seen |= 1ull << k;
    }
    for (size_t k = 0; parser_reasoning_names()[k]; k++)
        if (!(seen >> k & 1) && strcmp(parser_reasoning_names()[k], "none") != 0)
            fail_msg("%s has no row in reasoning.json", parser_reasoning_names()[k]);
    json_decref(rows);
}

/* What models write that is not quite their format, each row with tools of its own. */
static void slips(void **state)
{
    (void)state;
    json_t *rows = load("slips.json"), *row;
    size_t i;
    json_array_foreach (rows, i, row) {
        const char *start = json_string_value(json_object_get(row, "start"));
        struct parser_config c = {
            .tool = json_string_value(json_object_get(row, "tool")),
            .reasoning = json_string_value(json_object_get(row, "thinks")),
            .tools = json_object_get(row, "tools"),
        };
        c.start = start_of(start);
        check_cuts(&c, row);
    }
    assert_true(i >= 120);
    print_message("%zu texts that are not quite their format, in all cuts\n", i);
    json_decref(rows);
}

/* The bytes of a text without calls that are not shown: mistral's tag at its begin. */
static size_t tag_dropped(const char *tool, const char *s, size_t n)
{
    static const char tag[] = "[TOOL_CALLS]";
    size_t at = sizeof tag - 1;
    if (strcmp(tool, "mistral") != 0 || n < at || memcmp(s, tag, at) != 0)
        return 0;
    while (at < n && strchr(" \n", s[at]))
        at++;
    return at;
}

/* A text that ends anywhere: the same for every cut; nothing is lost before the announcement. */
static void truncated(void **state)
{
    (void)state;
    json_t *set = load("formats.json"), *row;
    static struct parsed whole;
    size_t i, n_text = 0;
    json_array_foreach (json_object_get(set, "rows"), i, row) {
        const json_t *text = json_object_get(row, "text");
        const char *s = json_string_value(text);
        const struct parser_config c = {
            .tool = json_string_value(json_object_get(row, "format")),
            .tools = json_object_get(set, "tools"),
        };
        for (size_t n = i % 7; n < json_string_length(text); n += ROUNDS(7, 35)) {
            size_t cut[2] = {n / 3, n / 2};
            assert_ok(parse_cut(&c, s, n, NULL, 0, &whole, &err), &err);
            assert_ok(parse_cut(&c, s, n, cut, 2, &r, &err), &err);
            bool good = r.n_call == whole.n_call && r.n_end == whole.n_end &&
                        r.content.len == whole.content.len && r.n_end + 1 >= r.n_call &&
                        (r.n_end == r.n_call) == !r.broken.len;
            bool channels = !strcmp(c.tool, "openai") || !strncmp(c.tool, "muse", 4);
            size_t from = r.n_call ? 0 : tag_dropped(c.tool, s, n);
            if (r.n_end == 0 && !channels) /* no call: all of it is content */
                good = good && r.shown.len == n - from &&
                       !memcmp(buf_str(&r.shown), s + from, n - from);
            for (size_t k = 0; k < r.n_call; k++)
                good &= r.args[k].len == whole.args[k].len;
            if (r.n_call == 0 && !channels) /* headers say nothing and are dropped */
                good &= whole.content.len == n - from &&
                        memcmp(buf_str(&whole.content), s + from, n - from) == 0;
            if (!good)
                fail_msg("%s: %.*s: content \"%s\", %u calls", c.tool, (int)n, s,
                         buf_str(&whole.content), whole.n_call);
            parsed_release(&whole);
            parsed_release(&r);
            n_text++;
        }
    }
    print_message("%zu texts cut short\n", n_text);
    json_decref(set);
}

/* ---- what real templates write ---- */

static bool calls_agree(const json_t *want)
{
    bool good = r.n_call == json_array_size(want) && r.n_end == r.n_call;
    for (size_t i = 0; i < r.n_call && good; i++) {
        const json_t *f = json_object_get(json_array_get(want, i), "function");
        json_t *call =
            json_pack("[O, O]", json_object_get(f, "name"), json_object_get(f, "arguments"));
        good = call_agrees(i, call);
        json_decref(call);
    }
    return good;
}

/* Templates that write the first of a message's calls only: what they make of parallel calls holds
 * one, so one is what a parser has to find. */
static bool first_call_only(const char *template, const char *name)
{
    static const char *const names[] = {"GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B",
                                        "openai-gpt-oss-120b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(template, names[i]))
            return strcmp(name, "parallel") == 0;
    return false;
}

struct counts {
    size_t n, n_bad, n_first;
};

static void real_text(const char *template, const char *name, const json_t *texts,
                      const json_t *set, const char *source, struct counts *counts)
{
    const json_t *text = json_object_get(texts, "completion"),
                 *want = json_object_get(json_object_get(json_object_get(set, "expected"), name),
                                         "tool_calls");
    struct parser_detected found = parser_detect(source);
    struct parser_config c = {.tool = found.tool, .tools = json_object_get(set, "tools")};
    if (!text)
        text = json_object_get(texts, "after_user_turn");
    if (!want || !text)
        return;
    assert_ok(parse_cut(&c, json_string_value(text), json_string_length(text), NULL, 0, &r, &err),
              &err);
    bool first = first_call_only(template, name);
    json_t *one = first ? json_pack("[O]", json_array_get(want, 0)) : NULL;
    bool good = calls_agree(first ? one : want);
    json_decref(one);
    counts->n++;
    counts->n_first += first;
    if (!good && counts->n_bad++ < 5)
        print_error("%s (%s), %s: %.400s\n", template, found.tool ? found.tool : "none", name,
                    json_string_value(text));
    parsed_release(&r);
}

static void real_texts(void **state)
{
    (void)state;
    if (!file_exists(REAL))
        skip_without(REAL);
    json_t *set = json_load_file(REAL, JSON_ALLOW_NUL, NULL), *entry, *texts;
    size_t i;
    struct counts counts = {0};
    const char *name;
    json_array_foreach (json_object_get(set, "templates"), i, entry) {
        const char *template = json_string_value(json_object_get(entry, "template"));
        char path[400];
        struct buf source = BUF_INIT;
        snprintf(path, sizeof path, TEMPLATES "%s", template);
        assert_ok(file_read(&source, path, 1u << 22, &err), &err);
        json_object_foreach (json_object_get(entry, "results"), name, texts)
            real_text(template, name, texts, set, buf_str(&source), &counts);
        buf_release(&source);
    }
    print_message("%zu of %zu texts of %zu real templates give the expected calls with the format "
                  "detected from the template; of %zu, whose templates write the first call only, "
                  "that one\n",
                  counts.n - counts.n_bad, counts.n, i, counts.n_first);
    assert_int_equal(counts.n_bad, 0);
    assert_true(counts.n > 300 && counts.n_first == 3);
    json_decref(set);
}

/* ---- the framework ---- */

static enum q_code parse_text(const char *tool, const struct buf *text)
{
    return parse_cut(&(struct parser_config){.tool = tool}, buf_str(text), text->len, NULL, 0, &r,
                     &err);
}

/* Every alias is the name of no row, and stands for one. */
static void aliases(void **state)
{
    (void)state;
    const struct parser_alias *const lists[] = {parser_tool_aliases(), parser_reasoning_aliases()};
    const char *const *const names[] = {parser_tool_names(), parser_reasoning_names()};
    const char *const texts[] = {"deepseekv31", "<think>a</think>b"};
    struct parser *p = NULL;
    for (int k = 0; k < 2; k++)
        for (const struct parser_alias *a = lists[k]; a->name; a++) {
            bool row = false, own = false;
            for (size_t i = 0; names[k][i]; i++) {
                row |= !strcmp(names[k][i], a->row);
                own |= !strcmp(names[k][i], a->name);
            }
            const char *found = k ? parser_reasoning_row(a->name) : parser_tool_row(a->name);
            const struct parser_config c = {
                .tool = k ? NULL : a->name,
                .reasoning = k ? a->name : NULL,
            };
            if (!row || own || !found || strcmp(found, a->row) != 0)
                fail_msg("%s: %s", a->name, found ? found : "no row");
            assert_ok(parser_new(&p, &c, &err), &err);
            parser_free(p);
        }
    assert_null(parser_tool_row("nope"));
    assert_null(parser_reasoning_row("nope"));
    assert_int_equal(parser_reasoning_start("deepseek-r1", texts[1], 7), REASONING_OPEN);
    assert_fails(parser_new(&p, &(struct parser_config){.tool = "deepseekv9"}, &err), Q_NOT_FOUND,
                 texts[0], &err);
}

static void framework(void **state)
{
    (void)state;
    struct parser *p = NULL;
    struct buf text = BUF_INIT;
    assert_fails(parser_new(&p, &(struct parser_config){.tool = "nope"}, &err), Q_NOT_FOUND,
                 "hermes granite4", &err);
    assert_fails(parser_new(&p, &(struct parser_config){.reasoning = "nope"}, &err), Q_NOT_FOUND,
                 "deepseek_r1", &err);
    buf_add_str(&text, "a <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> b");
    assert_ok(parse_text("none", &text), &err);
    assert_string_equal(buf_str(&r.content), buf_str(&text));
    parsed_release(&r);
    r.failing = true;
    assert_fails(parse_text("hermes", &text), Q_CANCELLED, "gone", &err);
    assert_int_equal(r.n_event, 1);
    parsed_release(&r);
    parser_free(NULL);
    buf_release(&text);
}

/* Arguments go out as they come, not at the end. */
static void streams(void **state)
{
    (void)state;
    static const struct {
        const char *tool, *head, *args, *more, *then;
    } rows[] = {
        {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"abc",
         "{\"text\": \"abc", "d", "{\"text\": \"abcd"},
        {"qwen3_coder", "<function=f>\n<parameter=text>\nabc", "{\"text\": \"abc", "d\ne",
         "{\"text\": \"abcd\\ne"},
        {"pythonic", "[f(text='ab\"c", "{\"text\": \"ab\\\"c", "d", "{\"text\": \"ab\\\"cd"},
        {"gemma4", "<|tool_call>call:f{text:<|\"|>abc", "{\"text\": \"abc", "d",
         "{\"text\": \"abcd"},
        {"glm45", "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>abc", "{\"text\": \"abc", "d",
         "{\"text\": \"abcd"},
        {"openai", "<|channel|>commentary to=functions.f<|message|>{\"a\": [1, ", "{\"a\": [1", "2",
         "{\"a\": [1, "},
        {"k2_horizon", "<ifm|tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", "{\"a\": \"b",
         "c", "{\"a\": \"bc"},
        {"muse_glimmer", " to=f<|message|><atem:invoke name=\"f\"><atem:parameter name=\"a\">b c",
         "{\"a\": \"b c", "d", "{\"a\": \"b cd"},
        {"kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"b",
         "{\"a\": \"b", "c", "{\"a\": \"bc"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct parser *p = NULL;
        assert_ok(parser_new(&p, &(struct parser_config){.tool = rows[i].tool}, &err), &err);
        assert_ok(parser_feed(p, rows[i].head, strlen(rows[i].head), parsed_sink_all, &r, &err),
                  &err);
        assert_int_equal(r.n_call, 1);
        assert_string_equal(buf_str(&r.name[0]), "f");
        assert_string_equal(buf_str(&r.args[0]), rows[i].args);
        assert_ok(parser_feed(p, rows[i].more, strlen(rows[i].more), parsed_sink_all, &r, &err),
                  &err);
        assert_string_equal(buf_str(&r.args[0]), rows[i].then);
        parser_free(p);
        parsed_release(&r);
    }
}

static void limits(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    for (int i = 0; i < PARSER_CALLS_MAX + 1; i++)
        buf_add_str(&b, "<tool_call>{\"name\": \"f\"}</tool_call>");
    assert_ok(parse_text("hermes", &b), &err);
    assert_int_equal(r.n_call, PARSER_CALLS_MAX);
    assert_string_equal(buf_str(&r.content), "<tool_call>{\"name\": \"f\"}</tool_call>");
    parsed_release(&r);
    buf_reset(&b);
    buf_add_str(&b, "<tool_call>{\"arguments\": {\"a\": \"");
    for (size_t i = 0; i < PARSER_CALL_BYTES_MAX; i++)
        buf_add_char(&b, 'x');
    buf_add_str(&b, "\"}, \"name\": \"f\"}</tool_call>");
    assert_ok(parse_text("hermes", &b), &err);
    assert_int_equal(r.n_call, 0);
    assert_int_equal(r.content.len, b.len);
    parsed_release(&r);
    buf_reset(&b);
    buf_add_str(&b, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ");
    for (size_t i = 0; i < 2 * LENIENT_JSON_DEPTH_MAX; i++)
        buf_add_char(&b, '[');
    assert_ok(parse_text("hermes", &b), &err);
    assert_int_equal(r.args[0].len, strlen("{\"a\": ") + LENIENT_JSON_DEPTH_MAX - 1);
    parsed_release(&r);
    buf_release(&b);
}

static const char *const begins[] = {"<tool_call>{\"a\": \"",
                                     "[f(",
                                     "{\"name\": \"",
                                     "<function=f><parameter=a></parameter>",
                                     "<tool_call>f\n<arg_key>",
                                     "[TOOL_CALLS]f",
                                     "[TOOL_CALLS] x [{\"name\": ",
                                     "<|channel|>",
                                     "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
                                     "<tool_call><tool_call",
                                     "<|start|>assistant to=f<|start|>assistant to=",
                                     "<ifm|tool_call>{\"a\": <ifm|tool_call>f",
                                     "<co> a </co: 0",
                                     "\n "};

/* The bytes that a parser reads of a text of n bytes, all of them such pieces. */
static uint64_t work_of(const char *tool, const char *reasoning, const char *piece, size_t n)
{
    const struct parser_config c = {.tool = tool, .reasoning = reasoning};
    struct parser *p = NULL;
    struct buf b = BUF_INIT;
    while (b.len < n)
        buf_add_str(&b, piece);
    assert_ok(parser_new(&p, &c, &err), &err);
    assert_ok(parser_feed(p, b.data, b.len, parsed_sink_all, &r, &err), &err);
    assert_ok(parser_finish(p, parsed_sink_all, &r, &err), &err);
    uint64_t work = parser_work(p);
    assert_true(work >= b.len);
    parser_free(p);
    parsed_release(&r);
    buf_release(&b);
    return work;
}

/* Many begins of what never ends, in every format: what is read grows as the text does, although
 * pieces of it are read again. */
static void work(void **state)
{
    (void)state;
    const size_t n = ROUNDS(40000, 3000);
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        for (const char *const *name = parser_tool_names(); *name; name++) {
            uint64_t once = work_of(*name, NULL, begins[i], n),
                     twice = work_of(*name, NULL, begins[i], 2 * n);
            if (twice > 5 * once / 2)
                fail_msg("%s: %s: %" PRIu64 " bytes read of %zu, %" PRIu64 " of twice as many",
                         *name, begins[i], once, n, twice);
            most = twice > most ? twice : most;
        }
        for (const char *const *name = parser_reasoning_names(); *name; name++) {
            uint64_t once = work_of("glm45", *name, begins[i], n),
                     twice = work_of("glm45", *name, begins[i], 2 * n);
            if (twice > 5 * once / 2)
                fail_msg("%s: %s: %" PRIu64 " bytes read of %zu, %" PRIu64 " of twice as many",
                         *name, begins[i], once, n, twice);
        }
    }
    print_message("at most %" PRIu64 " bytes read of %zu\n", most, 2 * n);
}

/* A megabyte of blanks and the like where a format waits for something else: a look back at what
 * came, with every byte, would take hours. */
static void megabytes(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"glm45", "<tool_call>f<arg_key>zz</arg_key><arg_value>", " "},
        {"glm45", "<tool_call>f<arg_key>zz</arg_key><arg_value>true", " "},
        {"qwen3_coder", "<function=f><parameter=zz>", "\n"},
        {"qwen3_coder", "<function=f><parameter=zz>x</function>", " "},
        {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {", " "},
        {"hermes", "<tool_call>{\"arguments\": {", " "},
        {"hermes", "", " "},
        {"deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{", " "},
        {"kimi_k2", "<|tool_call_begin|>0<|tool_call_argument_begin|>{", " "},
        {"mistral", "[TOOL_CALLS] x", "["},
        {"muse", "", " "},
        {"muse", "<|start|>", " "},
        {"muse", " to=x", " "},
        {"gemma4", "<|tool_call>call:f{a:x,", " :"},
        {"lfm2", "<|tool_call_start|>[f(a={", " "},
        {"lfm2", "<|tool_call_start|>[f(a='x'", " "},
        {"lfm2", "<|tool_call_start|>[f(a=\"x", "\""}, /* each may begin a string, or end one */
        {"pythonic", "[f(a=\"x", "\" '"},
        {"minimax_m3", "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<x>", " "},
        {"openai", "<|channel|>commentary to=", " "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = BUF_INIT;
        buf_add_str(&b, rows[i][1]);
        while (b.len < ROUNDS(1000000, 200000))
            buf_add_str(&b, rows[i][2]);
        assert_ok(parse_text(rows[i][0], &b), &err);
        parsed_release(&r);
        buf_release(&b);
    }
}

static void allocations_fail(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"hermes", "x<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}</tool_call>\n y"
                   "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": "
                   "1}}</tool_call><tool_call>{\"b\": 1}"},
        {"qwen3_coder", "<function=f>\n<parameter=a>\n[1]\n</parameter> x </parameter></function>"},
        {"pythonic", "[f(a=1, b='x')]"},
        {"mistral", "[TOOL_CALLS] junk [1] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}] x"},
        {"glm45", "<tool_call>f\n<arg_key>a</arg_key><arg_value>\"1\"</arg_value></arg_value> x "
                  "<arg_key>b</arg_key><arg_value>true, 1</arg_value></tool_call>"},
        {"k2_horizon",
         "<ifm|tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</ifm|tool_call>"},
        {"muse_glimmer", "to=self<|message|>x<|start|> y<|eom|><|start|>assistant "
                         "to=f<|message|><atem:invoke name=\"f\"></atem:invoke>"},
        {"openai", "<|channel|>analysis<|message|>x<|end|><|start|>assistant "
                   "to=functions.f<|message|>{\"a\": 1}"},
        {"deepseek_v4",
         "<think>A <｜DSML｜tool_calls> tag. <｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
         "<｜DSML｜parameter name=\"arguments\">{\"a\": 1}</｜DSML｜parameter>\n"
         "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
        {"minicpm5", "<function name=\"f\"><param name=\"a\">x</param><param name=\"a\">1</param>"
                     "<param name=\"b\">1<paramname=\"c\">2</param></function>"},
        {"kimi_k2", "<|tool_call_begin|>0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>"},
        {"lfm2", "<|tool_call_start|>[f(a={'x', 'y'}, b='it's', c={1: 2})]<|tool_call_end|>"},
        {"minimax_m3",
         "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<b>]<]minimax[>[<c>1]<]minimax[>["
         "</c>]<]minimax[>[<c>2]<]minimax[>[</c>]<]minimax[>[</b>]<]minimax[>[</invoke>"},
        {"gemma4", "<think>x <|tool_call>call:f{a:some text,b:{c:more text}}<tool_call|>"},
    };
    json_t *tools =
        json_loads("[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {}}}}]", 0, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        enum q_code rc = Q_NO_MEMORY;
        int n = 0;
        for (; rc != Q_OK && n < 300; n++) {
            mem_fail_after(n);
            rc = parse_cut(
                &(struct parser_config){
                    .tool = texts[i][0],
                    .reasoning = "qwen3",
                    .tools = tools,
                    .start = REASONING_NOT_OPEN,
                },
                texts[i][1], strlen(texts[i][1]), NULL, 0, &r, &err);
            mem_fail_after(-1);
            if (rc != Q_OK && rc != Q_NO_MEMORY)
                fail_msg("%s, allocation %d: %s %s", texts[i][0], n, q_code_name(rc), err.message);
            parsed_release(&r);
        }
        assert_int_equal(rc, Q_OK);
        assert_true(n > 5);
    }
    json_decref(tools);
}

/* ---- values ---- */

static void scanner(void **state)
{
    (void)state;
    static const char *const good[] = {"1",  " -0.5e-7 ", "\"\\u00e9\\n\"",
                                       "[]", "{}",        "[1, {\"a\": [true, null]}]",
                                       "0",  "1e5",       "false"},
                             *const bad[] = {"",        "01",      "-",           "1.",     "1e",
                                             "[1,]",    "{\"a\"}", "{\"a\":1,}",  "{a:1}",  "nul",
                                             "\"\\x\"", "\"a",     "[",           "1 2",    "tru e",
                                             "+1",      ".5",      "\"\\u12g4\"", "\"\n\"", "]",
                                             "{]"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (!json_scan_valid(good[i], strlen(good[i])))
            fail_msg("%s refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (json_scan_valid(bad[i], strlen(bad[i])))
            fail_msg("%s accepted", bad[i]);
}

static void literals(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        /* as written, as JSON; NULL: refused */
        {"{\"a\" : [1, 2.50,  true ]}", "{\"a\" : [1, 2.50,  true ]}"},
        {"{'a': 'it\\'s \"x\"',}", "{\"a\": \"it's \\\"x\\\"\"}"},
        {"(1, None, [True, False,])", "[1, null, [true, false]]"},
        {"[+1, .5, -.5, 5., 1_000, 007, -0, 1e5]", "[1, 0.5, -0.5, 5.0, 1000, 7, -0, 1e5]"},
        {"'\\x41\\u00e9\\U0001F600\\a\\d\\\n\\'", NULL},
        {"'\\x41\\u00e9\\U0001F600\\d\\\n'", "\"\\u0041\\u00e9😀\\\\d\""},
        {"\"a\nb\\u12g\"", "\"a\\nb\\\\u12g\""},
        {"\"\\ud83d\\ude00\"", "\"\\ud83d\\ude00\""},
        {"oops", NULL},
        {"[1 2]", NULL},
        {"{a: 1}", NULL},
        {"{]", NULL},
        {"[,]", NULL},
        {"--1", NULL},
        {"1.2.3", NULL},
        {"", NULL},
        {"[", NULL},
        {"nul", NULL},
        {"1", "1"},
        {" True ", " true"},
        {"....", NULL},
        {"+", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf out = BUF_INIT;
        bool good = lenient_json_whole(rows[i][0], strlen(rows[i][0]), &out);
        if (good != !!rows[i][1] || (good && strcmp(buf_str(&out), rows[i][1]) != 0))
            fail_msg("%s: %s", rows[i][0], good ? buf_str(&out) : "refused");
        if (good && !json_scan_valid(buf_str(&out), out.len))
            fail_msg("%s: no JSON: %s", rows[i][0], buf_str(&out));
        buf_release(&out);
    }
}

static void values(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text, *json;
    } rows[] = {
        {"{\"type\": \"string\"}", "12", "\"12\""},
        {"{\"type\": \"integer\"}", " 12 ", "12"},
        {"{\"type\": \"integer\"}", "twelve", "\"twelve\""},
        {"{\"type\": \"boolean\"}", "True", "true"},
        {"{\"type\": [\"string\", \"null\"]}", "null", "null"},
        {"{\"type\": [\"string\", \"null\"]}", "12", "\"12\""},
        {"{\"type\": [\"string\", \"integer\"]}", "12", "12"},
        {"{\"type\": [\"string\", \"integer\"]}", "\"12\"", "\"\\\"12\\\"\""},
        {"{\"type\": \"object\"}", "{'a': None}", "{\"a\": null}"},
        {"{\"type\": \"array\"}", "a, b", "\"a, b\""},
        {"{\"anyOf\": [{\"type\": \"number\"}, {\"type\": \"null\"}]}", "1.5", "1.5"},
        {"{\"enum\": [\"1\", \"2\"]}", "1", "\"1\""},
        {"{\"const\": 3}", "3", "3"},
        {"{\"$ref\": \"#/$defs/d\"}", "3", "\"3\""},
        {"{\"$ref\": \"#/nowhere\"}", "3", "3"},
        {"{}", "3", "3"},
        {"{}", "text", "\"text\""},
        {"{}", "\"q\"", "\"\\\"q\\\"\""},
        {"{}", "None", "null"},
        {"{}", "007", "\"007\""},
        {"{}", "1_000", "\"1_000\""},
        {"{}", "-1.5e3", "-1.5e3"},
        {"{}", "[007, .5]", "[7, 0.5]"},
        {"{\"type\": \"integer\"}", "007", "7"},
        {"{\"type\": [\"string\", \"integer\"]}", "007", "7"},
        {"{\"type\": \"integer\"}", "\"12\"", "12"},
        {"{\"type\": [\"number\", \"null\"]}", " \"12\" ", "12"},
        {"{\"type\": \"boolean\"}", "\"true\"", "true"},
        {"{\"type\": \"object\"}", "\"{\\\"a\\\": 1}\"", "{\"a\": 1}"},
        {"{\"type\": \"integer\"}", "\"x\"", "\"x\""},
        {"{\"type\": \"array\"}", "\"12\"", "\"12\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *f = json_pack("{s:{s:{s:o}, s:{s:{s:s}}}}", "parameters", "properties", "p",
                              json_loads(rows[i].schema, 0, NULL), "$defs", "d", "type", "string");
        struct buf out = BUF_INIT;
        types_value(types_of(f, "p"), rows[i].text, strlen(rows[i].text), &out);
        if (strcmp(buf_str(&out), rows[i].json) != 0)
            fail_msg("%s of %s: %s", rows[i].text, rows[i].schema, buf_str(&out));
        buf_release(&out);
        json_decref(f);
    }
}

/* A schema whose branches lead back to itself: the look-up is bounded. */
static void branches(void **state)
{
    (void)state;
    struct buf text = BUF_INIT;
    buf_add_str(&text,
                "{\"parameters\": {\"$ref\": \"#/$defs/x\", \"$defs\": {\"x\": {\"anyOf\": [");
    for (int i = 0; i < 64; i++)
        buf_add_str(&text, "{\"$ref\": \"#/$defs/x\"}, ");
    buf_add_str(&text, "{\"properties\": {\"p\": {\"type\": \"integer\"}, "
                       "\"q\": {\"$ref\": \"#/$defs/x\"}}}]}}}}");
    json_t *f = json_loads(buf_str(&text), 0, NULL);
    assert_non_null(f);
    assert_int_equal(types_of(f, "none"), 0);
    assert_int_equal(types_of(f, "q"), 0);
    const json_t *root = json_object_get(f, "parameters");
    assert_int_equal(types_in_schema(root, root), 0);
    assert_null(types_child(root, root, "none"));
    json_decref(f);
    buf_release(&text);
}

static enum q_code parse_ended(const struct parser_config *c, const char *s, size_t step, bool cut)
{
    struct parser *p = NULL;
    size_t n = strlen(s);
    enum q_code rc = parser_new(&p, c, &err);
    for (size_t i = 0; i < n && !rc; i += step)
        rc = parser_feed(p, s + i, step < n - i ? step : n - i, parsed_sink_all, &r, &err);
    if (cut)
        parser_cut(p);
    rc = rc ? rc : parser_finish(p, parsed_sink_all, &r, &err);
    parser_free(p);
    return rc;
}

/* Calls that break off or go wrong after their announcement: completed where only brackets are
 * missing and the model ended the text, else none, and what was written comes out. */
static void broken_calls(void **state)
{
    (void)state;
#define H(args) "<tool_call>\n{\"name\": \"f\", \"arguments\": " args
    static const struct {
        const char *tool, *text;
        const char *args;  /* of the complete call; NULL: it is broken */
        const char *shown; /* NULL: the whole text */
    } rows[] = {
        {"hermes", H("{\"a\": 1}"), "{\"a\": 1}", ""},
        {"hermes", H("{\"a\": 1"), "{\"a\": 1}", ""},
        {"hermes", H("{\"a\": {\"b\": [\"x\", true"), "{\"a\": {\"b\": [\"x\", true]}}", ""},
        {"hermes", H("{\"a\": \"Oslo\"\n</tool_call>"), "{\"a\": \"Oslo\"\n}", ""},
        {"hermes", H("{\"a\": 1}\n</tool_call>\nDone."), "{\"a\": 1}", "\nDone."},
        {"hermes", H("{\"a\": [1, 2\n</tool_call>"), "{\"a\": [1, 2\n]}", ""},
        {"hermes", H("{\"a\": \"Os"), NULL, NULL},
        {"hermes", H("{\"a\": "), NULL, NULL},
        {"hermes", H("{\"a\": 1, "), NULL, NULL},
        {"hermes", H("{\"a\": tru"), NULL, NULL},
        {"hermes", H("{\"a\": -"), NULL, NULL},
        {"hermes", H("{\"a\": 1,\n</tool_call>"), NULL, NULL},
        {"hermes", H("{\"a\" \"Oslo\"}}\n</tool_call> ok"), NULL, NULL},
        {"hermes", "Well.\n" H("{\"a\": 1 \"b\": 2}}\n</tool_call>\n and more \n"), NULL, NULL},
        {"hermes", H("{\"a\": 1 oops ") H("{}}</tool_call>"), "{}", H("{\"a\": 1 oops ")},
        {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": \"b\"", "{\"a\": \"b\"}", ""},
        {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": \"b", NULL, NULL},
        {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nOslo\n</parameter>\n",
         "{\"a\": \"Oslo\"}", ""},
        {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nOs", NULL, NULL},
        {"pythonic", "[f(a=\"b\", c=", NULL, NULL},
        {"openai", "<|channel|>commentary to=functions.f<|message|>{\"a\": [1", "{\"a\": [1]}", ""},
        {"openai", "<|channel|>commentary to=functions.f<|message|>{\"a\": [1<|call|>",
         "{\"a\": [1]}", ""},
        {"openai", "<|channel|>commentary to=functions.f<|message|>{\"a\": \"x", NULL,
         "{\"a\": \"x"},
        {"openai", "<|channel|>commentary to=functions.f<|message|>{\"a\": x} y", NULL,
         "{\"a\": x} y"},
    };
#undef H
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t step = 1; step < 9; step++) {
            const struct parser_config c = {.tool = rows[i].tool};
            const char *shown = rows[i].shown ? rows[i].shown : rows[i].text;
            assert_ok(parse_ended(&c, rows[i].text, step, false), &err);
            uint32_t last = r.n_call - 1;
            bool good = r.n_call && r.n_end == (rows[i].args != NULL) &&
                        !strcmp(buf_str(&r.shown), shown) && !strcmp(buf_str(&r.name[last]), "f");
            if (!good || (rows[i].args && strcmp(buf_str(&r.args[last]), rows[i].args) != 0))
                fail_msg("%s: %u calls, %u ended: %s, shown %s", rows[i].text, r.n_call, r.n_end,
                         buf_str(&r.args[last]), buf_str(&r.shown));
            parsed_release(&r);
        }
}

/* A limit is no end: what is missing may be anything. */
static void calls_cut_by_a_limit(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}"},
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1"},
        {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": \"b\""},
        {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nOslo\n</parameter>\n"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const struct parser_config c = {.tool = texts[i][0]};
        assert_ok(parse_ended(&c, texts[i][1], 3, true), &err);
        if (r.n_call != 1 || r.n_end || strcmp(buf_str(&r.shown), texts[i][1]) != 0)
            fail_msg("%s: %u ended, shown %s", texts[i][1], r.n_end, buf_str(&r.shown));
        parsed_release(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes),
        cmocka_unit_test(formats),
        cmocka_unit_test(reasoning),
        cmocka_unit_test(truncated),
        cmocka_unit_test(slips),
        cmocka_unit_test(real_texts),
        cmocka_unit_test(aliases),
        cmocka_unit_test(framework),
        cmocka_unit_test(streams),
        cmocka_unit_test(limits),
        cmocka_unit_test(work),
        cmocka_unit_test(megabytes),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(scanner),
        cmocka_unit_test(literals),
        cmocka_unit_test(values),
        cmocka_unit_test(branches),
        cmocka_unit_test(broken_calls),
        cmocka_unit_test(calls_cut_by_a_limit),
    };
    return cmocka_run_group_tests_name("parser", tests, NULL, NULL);
}
