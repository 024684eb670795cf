/* SPDX-License-Identifier: Apache-2.0 */
/* Tags of reasoning: in every format, at the end of prompts, in chat templates. */
#include "parse_all.h"

static struct q_err err;
static struct parsed r; /* large */

/* Every format's tags have room, and are pairs. */
static void tags_of_every_format(void **state)
{
    (void)state;
    for (const char *const *name = parser_reasoning_names(); *name; name++) {
        struct parser_before before;
        size_t n_nul = 0;
        parser_reasoning_before(&before, *name, "<arg_key:0123456789012345678901234567890>", "x",
                                1);
        for (size_t i = 0; i < before.n_tags; i++)
            n_nul += !before.tags[i];
        assert_true(n_nul % 2 == 0 && before.end[0] == 0);
        bool none = !strcmp(*name, "none") || !strcmp(*name, "minimax_m2_append_think");
        if (none != !before.n_tags || (before.n_tags && before.tags[before.n_tags - 1]))
            fail_msg("%s: %zu bytes of tags", *name, before.n_tags);
    }
}

/* The tags for a limit: each start with its end, which may be the prompt's own, and what else ends
 * reasoning. */
static void tags_for_a_limit(void **state)
{
    (void)state;
    static const char suffixed[] = "<arg_key:opensource>";
    struct parser_tags tags;
    for (const char *const *name = parser_reasoning_names(); *name; name++) {
        const bool none = !strcmp(*name, "none") || !strcmp(*name, "minimax_m2_append_think") ||
                          !strncmp(*name, "muse", 4) || !strcmp(*name, "openai_gptoss");
        const bool found = parser_reasoning_tags(&tags, *name, true, suffixed, "x", 1);
        if (found == none || (found && !tags.n_pair) || (found && tags.open))
            fail_msg("%s: %zu pairs", *name, tags.n_pair);
        for (size_t i = 0; found && i < tags.n_pair; i++) {
            struct buf prompt = BUF_INIT;
            char start[PARSER_TAG_MAX], end[PARSER_TAG_MAX];
            snprintf(start, sizeof start, "%s", tags.starts[i]);
            snprintf(end, sizeof end, "%s", tags.ends[i]);
            assert_true(*start && *end);
            buf_printf(&prompt, "x%s\n", start);
            struct parser_tags open;
            assert_true(
                parser_reasoning_tags(&open, *name, false, suffixed, buf_str(&prompt), prompt.len));
            assert_true(open.open && open.n_pair == tags.n_pair + 1);
            assert_string_equal(open.starts[0], start);
            assert_string_equal(open.ends[0], end);
            buf_release(&prompt);
        }
    }
    assert_true(parser_reasoning_tags(&tags, "hy_v3", false, suffixed, "x", 1));
    assert_string_equal(tags.ends[0], "</think:opensource>");
    assert_true(parser_reasoning_tags(&tags, "kimi_k2", true, "", "x", 1) && tags.n_other == 3);
    assert_true(parser_reasoning_tags(&tags, "kimi_k2", false, "", "x", 1) && !tags.n_other);
    assert_true(parser_reasoning_tags(&tags, "plamo3", false, "", "x", 1) && tags.n_other == 1);
    assert_true(tags.again);
    assert_true(parser_reasoning_tags(&tags, "mistral", false, "", "x", 1) && tags.n_pair == 2);
    assert_string_equal(tags.ends[1], "</think>");
}

/* The text whole, in all cuts in two and byte by byte. */
static void check(const char *format, const struct buf *text, const char *content)
{
    static size_t cut[200];
    const struct parser_config c = {.reasoning = format, .start = REASONING_NOT_OPEN};
    assert_true(text->len < 200);
    for (size_t k = 0; k <= text->len; k++)
        cut[k] = k;
    for (size_t k = 0; k <= text->len + 1; k++) {
        bool all = k > text->len;
        assert_ok(parse_cut(&c, text->data, text->len, all ? cut : cut + k, all ? text->len : 1, &r,
                            &err),
                  &err);
        if (strcmp(buf_str(&r.content), content) != 0 || strcmp(buf_str(&r.reasoning), "a") != 0)
            fail_msg("%s: %s, cut %zu: content \"%s\", reasoning \"%s\"", format, text->data, k,
                     buf_str(&r.content), buf_str(&r.reasoning));
        parsed_release(&r);
    }
}

/* A second end tag of reasoning: layout directly after reasoning in every format; later in the
 * answer only in these formats, and text in the others. */
static void second_end_tags(void **state)
{
    (void)state;
    static const char *const layout[] = {
        "deepseek_v4",     "qwen3",       "granite_thinking_parser",
        "deepseek_v41",    "iquest_q1",   "mimo",
        "glm45",           "glm47",       "kimi_k2",
        "minimax_m2",      "nemotron_v3", "step3p5",
        "apertus2509",     "ling3",       "poolside_v1",
        "minimax_m3",      "kimi_k3",     "solar_open",
        "plamo3",          "solar_open2", "inkling",
        "seed_oss",        "mistral",     "gemma4",
        "cohere_command3", "hcx",
    };
    size_t n = 0, n_layout = 0;
    for (const char *const *name = parser_reasoning_names(); *name; name++) {
        bool is_layout = false;
        struct parser_before tags;
        for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
            is_layout |= strcmp(layout[i], *name) == 0;
        n_layout += is_layout;
        parser_reasoning_before(&tags, *name, "", "x", 1);
        if (!strncmp(*name, "muse", 4) || !strcmp(*name, "openai_gptoss"))
            continue; /* messages on channels */
        for (const char *at = tags.tags; at < tags.tags + tags.n_tags; n++) {
            const char *begin = at, *end = at + strlen(at) + 1;
            struct buf text = BUF_INIT, content = BUF_INIT;
            at = end + strlen(end) + 1;
            buf_printf(&text, "%s\na%s \n%s\n\nb", begin, end, end);
            check(*name, &text, "b");
            buf_reset(&text);
            buf_printf(&text, "%s\na%sb %s c", begin, end, end);
            buf_printf(&content, "b %s c", is_layout ? "" : end);
            check(*name, &text, buf_str(&content));
            buf_release(&text);
            buf_release(&content);
        }
    }
    assert_true(n >= 40);
    assert_int_equal(n_layout, sizeof layout / sizeof *layout);
}

static void prompts(void **state)
{
    (void)state;
    static const struct {
        const char *format, *prompt;
        enum reasoning_start start;
        const char *end, *tags; /* tags: a blank for each NUL */
        const char *template_text;
    } rows[] = {
        {"qwen3", "<|im_start|>assistant\n<think>\n", REASONING_OPEN, "</think>", "", ""},
        {"qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", REASONING_NOT_OPEN, "", "", ""},
        {"qwen3", "what is <think>?<|im_start|>assistant\n", REASONING_NOT_OPEN, "",
         "<think> </think> ", ""},
        {"deepseek_v3",
         "<\xef\xbd\x9c"
         "Assistant\xef\xbd\x9c>",
         REASONING_NOT_OPEN, "", "<think> </think> ", ""},
        {"deepseek_v3", "</think>", REASONING_NOT_OPEN, "", "", ""},
        {"seed_oss", "<seed:bos>assistant\n<seed:think>", REASONING_OPEN, "</seed:think>", "", ""},
        {"hy_v3", "<think:opensource>", REASONING_OPEN, "</think:opensource>", "", ""},
        {"hy_v3", "<think:opensource></think:opensource>", REASONING_NOT_OPEN, "", "", ""},
        {"hy_v3", "x", REASONING_NOT_OPEN, "", "<think> </think> ", ""},
        {"hy_v3", "x", REASONING_NOT_OPEN, "", "<think:open> </think:open> ", "'<arg_key:open>'"},
        {"hy_v4", "x<think>\n", REASONING_OPEN, "</think>", "", ""},
        {"hy_v4", "<think:a b>", REASONING_NOT_OPEN, "", "<think> </think> ", NULL},
        {"k2_horizon", "<ifm|think_fast>", REASONING_OPEN, "</ifm|think_fast>", "", ""},
        {"k2_horizon", "x", REASONING_NOT_OPEN, "",
         "<ifm|think> </ifm|think> <ifm|think_fast> </ifm|think_fast> <ifm|think_faster> "
         "</ifm|think_faster> ",
         ""},
        {"openai_gptoss", "<|start|>assistant", REASONING_NOT_OPEN, "",
         "<|channel|>analysis <|channel|>final<|message|> <|channel|>commentary "
         "<|channel|>final<|message|> <|channel|>final<|message|>  ",
         ""},
        {"muse_glimmer", "<|start|>assistant", REASONING_NOT_OPEN, "",
         " to=self<|message|> to=user<|message|>  to=user<|message|>  ", ""},
        {"minimax_m2_append_think", "x", REASONING_NOT_OPEN, "", "", ""},
        {"none", "<think>", REASONING_NOT_OPEN, "", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].prompt);
        struct parser_before before;
        parser_reasoning_before(&before, rows[i].format, rows[i].template_text, rows[i].prompt, n);
        assert_int_equal(parser_reasoning_start(rows[i].format, rows[i].prompt, n), rows[i].start);
        for (size_t k = 0; k < before.n_tags; k++)
            before.tags[k] = before.tags[k] ? before.tags[k] : ' ';
        if (strcmp(before.end, rows[i].end) != 0 || before.n_tags != strlen(rows[i].tags) ||
            memcmp(before.tags, rows[i].tags, before.n_tags) != 0)
            fail_msg("%s, %s: ends with \"%s\", tags \"%.*s\"", rows[i].format, rows[i].prompt,
                     before.end, (int)before.n_tags, before.tags);
    }
}

/* Formats of templates without a golden, and the suffixes of their tags. */
static void detected(void **state)
{
    (void)state;
    static const struct {
        const char *text, *tool, *reasoning, *suffix;
    } rows[] = {
        {"{%- set HYTK = ':opensource' %}{%- set t = '<think{}>'.format(HYTK) %}"
         "{{ '<tool_calls{}>'.format(HYTK) }}{{ '<arg_key{}>'.format( HYTK ) }}"
         "{{ '<tool_sep{}>'.format(HYTK) }}",
         "hy_v3", "hy_v3", ":opensource"},
        {"{% set x = 1 %}{% set HY =\":6124c78e\" %}<tool_calls{}> <think{}> "
         "\"<arg_key{}>\".format(HY)",
         "hy_v4", "hy_v3", ":6124c78e"},
        {"<think:a-b.c> <tool_calls:a-b.c> <arg_key:a-b.c>", "hy_v4", "hy_v3", ":a-b.c"},
        {"<tool_calls><arg_key><tool_sep>", "hy_v3", NULL, ""},
        {"<tool_calls><arg_key>", "hy_v4", NULL, ""},
        {"<arg_key:>", NULL, NULL, ""},
        {"<arg_key{}>'.format(X)", NULL, NULL, ""},
        {"{% set X = Y %}<arg_key{}>'.format(X)", NULL, NULL, ""},
        {"{% set X = ':a b' %}<arg_key{}>'.format(X)", NULL, NULL, ""},
        {"<arg_key><think>", "glm45", "glm45", ""},
        {"<|message|><atem:invoke name=\"", "muse_glimmer", "muse_glimmer", ""},
        {"to=commentary<|message|> <atem:invoke name=\"", "muse", "muse", ""},
        {"I am Step-5. <function= <parameter= <think>", "step5", "step5", ""},
        {"<function= <parameter= <think><|im_start|>", "qwen3_coder", "qwen3", ""},
        {"{{ '[unused11]' }} [unused16] [unused17]", "pangu", "pangu", ""},
        {"<iquestcoder_tool_call> <arg_key> <think>", "iquest_coder_v2", "iquest_q1", ""},
        {"{{ '<tool_call>function\\n' }}", "step_audio_2", NULL, ""},
        {"<longcat_tool_call> <longcat_think>", "longcat", "longcat", ""},
        {"◁think▷", NULL, "kimi", ""},
        {"<|inner_prefix|><|tools_prefix|>", "apertus", "apertus2509", ""},
        {"<ifm|tool_call> <ifm|arg_key> <ifm|think>", "k2_horizon", "k2_horizon", ""},
        {"<|plamo:begin_tool_name:plamo|> <|plamo:begin_think:plamo|>", "plamo3", "plamo3", ""},
        {"<|think|> <|tool_call:name|> <|tool_call:args|>", "solar_open", "solar_open", ""},
        {"<think> <iquest_tool_call> <arg_key>", "iquest_q1", "iquest_q1", ""},
        {"<|im_start|>assistant/think -> tool/function_call", "hcx", "hcx", ""},
        {"nothing", NULL, NULL, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct parser_detected found = parser_detect(rows[i].text);
        char suffix[PARSER_SUFFIX_MAX + 1];
        parser_suffix(rows[i].text, suffix);
        if (!found.tool != !rows[i].tool || (found.tool && strcmp(found.tool, rows[i].tool)) ||
            !found.reasoning != !rows[i].reasoning ||
            (found.reasoning && strcmp(found.reasoning, rows[i].reasoning)) ||
            strcmp(suffix, rows[i].suffix) != 0)
            fail_msg("%s: %s, %s, suffix \"%s\"", rows[i].text, found.tool ? found.tool : "none",
                     found.reasoning ? found.reasoning : "none", suffix);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_of_every_format),
        cmocka_unit_test(tags_for_a_limit),
        cmocka_unit_test(second_end_tags),
        cmocka_unit_test(prompts),
        cmocka_unit_test(detected),
    };
    return cmocka_run_group_tests_name("parser_tags", tests, NULL, NULL);
}
