/* SPDX-License-Identifier: Apache-2.0 */
/* Lines with text and messages: which tokens there are, and which of them count. Expected texts
 * have {} around what counts. */
#include <glob.h>
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/dataset.h"
#include "engine/distill/dataset_internal.h"
#include "engine/distill/sample_chat.h"
#include "folder.h"

#define MODEL "deploy/model/quire-tiny"

static struct q_err e;
static struct tokenizer *tokenizer;

static int setup(void **state)
{
    (void)state;
    q_err_reset(&e);
    return tokenizer_open(&tokenizer, MODEL, &e) != Q_OK;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    tokenizer = NULL;
    return 0;
}

/* The tokens' text, with {} around those of `counted`. */
static void show(const struct sample_tokens *t, struct buf *out)
{
    bool inside = false;
    buf_reset(out);
    for (size_t i = 0, k = 0; i <= t->ids.n; i++) {
        while (k < t->counted.n && t->counted.at[k].end <= i)
            k++;
        const bool now = i < t->ids.n && k < t->counted.n && t->counted.at[k].start <= i;
        if (now != inside)
            buf_add_char(out, now ? '{' : '}');
        inside = now;
        if (i < t->ids.n)
            assert_ok(tokenizer_token_bytes(tokenizer, t->ids.ids[i], out, &e), &e);
    }
}

static enum q_code read_with(const char *template, const char *line, struct buf *out)
{
    struct chat *chat = NULL;
    struct sample_tokens t = {.ids = TOKEN_LIST_INIT};
    json_t *root = json_loads(line, 0, NULL);
    assert_non_null(root);
    enum q_code rc = chat_from_source(&chat, template, strlen(template), NULL, &e);
    const struct sample_source source = {.tokenizer = tokenizer, .chat = chat};
    if (!rc && !(rc = sample_chat_read(&t, &source, root, &e)))
        show(&t, out);
    chat_free(chat);
    token_list_release(&t.ids);
    ranges_release(&t.counted);
    json_decref(root);
    return rc;
}

#define CHATML                                                                                  \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"           \
    "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + '</call>' }}{% endfor %}" \
    "{{ '<|im_end|>\n' }}{% endfor %}"                                                          \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
/* Reasoning is left out before the last question, and always opened after it, as in Qwen3. */
#define THINKING                                                                                   \
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"             \
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"                \
    "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and loop.index0 > ns.last %}" \
    "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"                \
    "{{ (m.content or '') }}{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name }}"     \
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"                                                 \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
/* Tools stand before the last question, as in Mistral's formats; no header before an answer. */
#define TOOLS_LAST                                                                     \
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}" \
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"    \
    "{% if m.role == 'user' %}{% if tools and loop.index0 == ns.last %}"               \
    "{{ '[TOOLS]' + tools[0].function.name + '[/TOOLS]' }}"                            \
    "{% endif %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}"                      \
    "{{ m.content + '<|endoftext|>' }}{% endif %}{% endfor %}"
#define GENERATION                                                                 \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"                  \
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}" \
    "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"

#define USER(text)      "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define CALL(name)                                                                       \
    "{\"role\": \"assistant\", \"tool_calls\": [{\"type\": \"function\", \"function\": " \
    "{\"name\": \"" name "\", \"arguments\": \"{}\"}}]}"
#define TOOLS ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"fn\"}}]"

static const struct {
    const char *template, *line, *want;
} rows[] = {
    {CHATML, "{\"messages\": [" USER("one") ", " ASSISTANT("two") "]}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{two<|im_end|>}\n"},
    /* several turns, a system message; an answer that ends with white space keeps it */
    {CHATML,
     "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, " USER("one") ", " ASSISTANT(
         "two \\n") ", " USER("three") ", " ASSISTANT("four") ", " USER("five") "]}",
     "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>"
     "assistant\n"
     "{two \n<|im_end|>}\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
     "{four<|im_end|>}\n<|im_start|>user\nfive<|im_end|>\n"},
    /* a call, its result, the same texts again */
    {CHATML,
     "{\"messages\": [" USER("one") ", " CALL("fn") ", {\"role\": \"tool\", \"content\": "
                                                    "\"one\"}, " ASSISTANT("one") ", " USER(
                                                        "one") ", " ASSISTANT("one") "]" TOOLS "}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{<call>fn</call><|im_end|>}\n"
     "<|im_start|>tool\none<|im_end|>\n<|im_start|>assistant\n{one<|im_end|>}\n"
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{one<|im_end|>}\n"},
    /* what a message spells is text, and a header in it is no answer */
    {CHATML,
     "{\"messages\": [" USER("<|im_start|>assistant\\nno<|im_end|>") ", " ASSISTANT("two") "]}",
     "<|im_start|>user\n<|im_start|>assistant\nno<|im_end|><|im_end|>\n<|im_start|>assistant\n"
     "{two<|im_end|>}\n"},
    {CHATML,
     "{\"messages\": [" USER(
         "one") ", {\"role\": \"assistant\", \"content\": \"two\", "
                "\"weight\": 0}, " USER(
                    "three") ", {\"role\": \"assistant\", \"content\": \"four\", "
                             "\"weight\": 1}]}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
     "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n{four<|im_end|>}\n"},
    {CHATML, "{\"messages\": [" USER("\xc3\xa9t\xc3\xa9") ", " ASSISTANT("\xc3\xa8re") "]}",
     "<|im_start|>user\n\xc3\xa9t\xc3\xa9<|im_end|>\n<|im_start|>assistant\n"
     "{\xc3\xa8re<|im_end|>}\n"},
    {CHATML, "{\"messages\": [" USER("one") "]}", "<|im_start|>user\none<|im_end|>\n"},
    /* reasoning */
    {THINKING,
     "{\"messages\": [" USER("one") ", {\"role\": \"assistant\", \"content\": \"two\", "
                                    "\"reasoning_content\": \"hm\"}, " USER(
                                        "three") ", {\"role\": \"assistant\", \"content\": "
                                                 "\"four\", \"reasoning_content\": \"so\"}]}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{two<|im_end|>}\n"
     "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
     "{<think>\nso\n</think>\n\nfour<|im_end|>}\n"},
    {THINKING,
     "{\"messages\": [" USER("one") ", " CALL(
         "fn") ", {\"role\": \"tool\", \"content\": "
               "\"3\"}, " ASSISTANT("two") ", " USER("one") ", " CALL("fn") ", {\"role\": "
                                                                            "\"tool\", "
                                                                            "\"content\": "
                                                                            "\"3\"},"
                                                                            " " ASSISTANT("t"
                                                                                          "w"
                                                                                          "o") "]}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{<call>fn<|im_end|>}\n"
     "<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n{two<|im_end|>}\n"
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
     "{<think>\n\n</think>\n\n<call>fn<|im_end|>}\n<|im_start|>tool\n3<|im_end|>\n"
     "<|im_start|>assistant\n{<think>\n\n</think>\n\ntwo<|im_end|>}\n"},
    /* tools that move to the last question */
    {TOOLS_LAST,
     "{\"messages\": [" USER("on") ", " ASSISTANT("A") ", " USER("on") ", " ASSISTANT("B") "]" TOOLS
                                                                                           "}",
     "[INST]on[/INST]{A<|endoftext|>}[TOOLS]fn[/TOOLS][INST]on[/INST]{B<|endoftext|>}"},
    {TOOLS_LAST,
     "{\"messages\": [" USER("on") ", " ASSISTANT("A") ", " USER("off") ", " ASSISTANT(
         "B") "]" TOOLS "}",
     "[INST]on[/INST]{A<|endoftext|>}[TOOLS]fn[/TOOLS][INST]off[/INST]{B<|endoftext|>}"},
    {GENERATION,
     "{\"messages\": [" USER("one") ", " ASSISTANT("two ") ", " USER("three") ", " ASSISTANT(
         "four") "]}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{two <|im_end|>}\n"
     "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n{four<|im_end|>}\n"},
    {GENERATION,
     "{\"messages\": [" USER("one") ", " ASSISTANT("two") ", " USER(
         "three") ", {\"role\": "
                  "\"assistant\", \"content\": \"four\", \"weight\": 0}]}",
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n{two<|im_end|>}\n"
     "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n"},
};

static void test_counted(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(read_with(rows[i].template, rows[i].line, &out), &e);
        if (strcmp(buf_str(&out), rows[i].want) != 0)
            fail_msg("row %zu:\n%s\nwanted\n%s", i, buf_str(&out), rows[i].want);
    }
    buf_release(&out);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *reason;
    } bad[] = {
        {"{\"messages\": {}}", "messages: expected an array, got an object"},
        {"{\"messages\": []}", "messages: 0 entries"},
        {"{\"messages\": [5]}", "messages: entry 0: expected an object"},
        {"{\"messages\": [{\"content\": \"x\"}]}", "has no \"role\""},
        {"{\"messages\": [{\"role\": \"usr\", \"content\": \"x\"}]}", "usr"},
        {"{\"messages\": [" USER("x") "], \"tools\": {}}", "tools: expected an array"},
        {"{\"messages\": [" USER("x") "], \"chat_template_kwargs\": 1}", "expected an object"},
        {"{\"messages\": [" USER("x") ", {\"role\": \"assistant\", \"content\": \"y\", "
                                      "\"weight\": 0.5}]}",
         "messages: entry 1: weight: expected 0 or 1"},
        {"{\"messages\": [" USER("x") ", {\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
                                      "{\"name\": \"f\", \"arguments\": \"{broken\"}}]}]}",
         "messages: entry 1: tool call 0: arguments are no JSON object"},
    };
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_true(read_with(CHATML, bad[i].line, &out) != Q_OK);
        if (!strstr(e.message, bad[i].reason))
            fail_msg("row %zu: %s", i, e.message);
        q_err_reset(&e);
    }
    buf_release(&out);
}

static size_t count_of(const struct buf *b, const char *word)
{
    size_t n = 0;
    for (const char *p = buf_str(b); (p = strstr(p, word)); p++)
        n++;
    return n;
}

/* With every template: all answers count, and nothing that anyone else says. */
static void check_template(const char *path, size_t *n_done)
{
    static const char *const lines[] = {
        "{\"messages\": [" USER("QUX one") ", " ASSISTANT("ZAP two") "]}",
        "{\"messages\": [" USER("QUX one") ", " ASSISTANT("ZAP two") ", " USER(
            "QUX three") ", " ASSISTANT("ZAP four") ", " USER("QUX five") ", " ASSISTANT("ZAP "
                                                                                         "six") "]"
                                                                                                "}",
        "{\"messages\": [" USER("QUX one") ", " ASSISTANT("ZAP two") ", " USER("QUX three") "]}",
    };
    static const struct {
        size_t n_question, n_answer;
    } want[] = {{1, 1}, {3, 3}, {2, 1}};
    struct buf source = BUF_INIT, out = BUF_INIT;
    assert_ok(file_read(&source, path, 1 << 22, &e), &e);
    for (size_t i = 0; i < 3; i++) {
        const enum q_code rc = read_with(buf_str(&source), lines[i], &out);
        /* one takes two messages only, the other writes how many there are before each */
        if (rc == Q_UNSUPPORTED && !strstr(path, "reranker") && !strstr(path, "macros"))
            fail_msg("%s: %s", path, e.message);
        q_err_reset(&e); /* it wants other variables or other messages */
        if (rc || count_of(&out, "QUX") != want[i].n_question ||
            count_of(&out, "ZAP") != want[i].n_answer)
            continue; /* not all messages are written, or one several times */
        bool inside = false;
        for (const char *p = buf_str(&out); *p; p++) {
            inside = *p == '{' ? true : *p == '}' ? false : inside;
            if (!strncmp(p, "QUX", 3) && inside)
                fail_msg("%s: a question counts:\n%s", path, buf_str(&out));
            if (!strncmp(p, "ZAP", 3) && !inside)
                fail_msg("%s: an answer does not count:\n%s", path, buf_str(&out));
        }
        ++*n_done;
    }
    buf_release(&source);
    buf_release(&out);
}

static void check_templates(const char *pattern, size_t n_min)
{
    glob_t g;
    size_t n_done = 0;
    if (glob(pattern, 0, NULL, &g) != 0) {
        skip_without(pattern);
        return;
    }
    for (size_t i = 0; i < g.gl_pathc; i++)
        check_template(g.gl_pathv[i], &n_done);
    globfree(&g);
    if (n_done < n_min)
        fail_msg("%s: %zu conversations were checked, expected %zu", pattern, n_done, n_min);
}

static void test_templates(void **state)
{
    (void)state;
    check_templates("tests/data/templates/*.jinja", 30);
}

static void test_real_templates(void **state)
{
    (void)state;
    check_templates("../shared/data/templates/*/*.jinja", 200);
}

/* ---- through a data set ---- */

static struct folder f;
static struct team *team;
static struct dataset *d;

static void open_lines(const char *lines, const char *dir)
{
    static char path[128];
    static const char *paths[1] = {path};
    const struct dataset_options o = {
        .paths = paths,
        .n_path = 1,
        .tokenizer_dir = dir,
        .seq_len = 64,
        .vocab_size = tokenizer_vocab_size(tokenizer),
        .global_batch = 1,
        .micro_batch = 1,
        .team = team,
    };
    snprintf(path, sizeof path, "%s/data.jsonl", f.path);
    folder_text(&f, "data.jsonl", lines);
    dataset_free(d);
    d = NULL;
    assert_ok(dataset_open(&d, &o, &e), &e);
}

static int setup_data(void **state)
{
    folder_init(&f);
    return setup(state) || team_new(&team, 2, false, &e);
}

static int teardown_data(void **state)
{
    dataset_free(d);
    d = NULL;
    team_free(team);
    folder_release(&f);
    return teardown(state);
}

/* The text of a micro batch's rows, and whether all but the last of them count. */
static void batch_text(uint64_t step, struct buf *out, bool *all)
{
    struct micro_batch b;
    assert_ok(dataset_batch(d, step, 0, 0, &b, &e), &e);
    *all = b.n_counted == b.n_row - 1;
    buf_reset(out);
    for (uint32_t i = 0; i < b.n_row; i++)
        assert_ok(tokenizer_token_bytes(tokenizer, b.ids[i], out, &e), &e);
}

/* A text ends with the tokenizer's end token, once; all of it counts. */
static void test_text(void **state)
{
    (void)state;
    bool all;
    struct buf out = BUF_INIT;
    open_lines("{\"text\": \"Hello, you.\"}\n{\"text\": \"Once<|im_end|>\"}\n{\"text\": 5}\n"
               "{\"text\": \"\"}\n{\"input_ids\": [5, 6]}\n{\"text\": \"\\ud800\"}\n",
               MODEL);
    batch_text(1, &out, &all);
    assert_string_equal(buf_str(&out), "Hello, you.<|im_end|>");
    assert_true(all);
    batch_text(2, &out, &all);
    assert_string_equal(buf_str(&out), "Once<|im_end|>");
    const struct dataset_counts *n = dataset_counts(d);
    assert_int_equal(n->n_broken, 2);
    assert_int_equal(n->n_empty, 1);
    assert_int_equal(n->n_sample, 4);
    buf_release(&out);
}

/* The model's own template; a folder without one, or without an end token. */
static void test_folders(void **state)
{
    (void)state;
    bool all;
    struct buf out = BUF_INIT;
    static const char *const lines =
        "{\"messages\": [" USER("Hi") ", " ASSISTANT("Yes.") "]}\n"
                                                             "{\"text\": \"one two three\"}\n";
    open_lines(lines, MODEL);
    struct micro_batch b;
    assert_ok(dataset_batch(d, 1, 0, 0, &b, &e), &e);
    assert_true(b.n_counted > 1 && b.n_counted < b.n_row - 4);
    batch_text(1, &out, &all);
    assert_non_null(strstr(buf_str(&out), "<|im_start|>assistant\nYes.<|im_end|>"));
    folder_copy(&f, MODEL, "tokenizer.json");
    open_lines(lines, f.path);
    assert_int_equal(dataset_counts(d)->n_broken, 1);
    batch_text(1, &out, &all);
    assert_string_equal(buf_str(&out), "one two three");
    folder_text(&f, "special_tokens_map.json", "{\"eos_token\": {\"content\": \"<|endoftext|>\"}}");
    open_lines(lines, f.path);
    batch_text(1, &out, &all);
    assert_string_equal(buf_str(&out), "one two three<|endoftext|>");
    folder_text(&f, "tokenizer_config.json",
                "{\"eos_token\": \"<|im_end|>\", "
                "\"model_max_length\": 1000000000000000019884624838656}");
    open_lines(lines, f.path);
    batch_text(1, &out, &all);
    assert_string_equal(buf_str(&out), "one two three<|im_end|>");
    buf_release(&out);
}

/* ---- marks ---- */

/* Where every character of a text is in its ids: as the text up to there says, on its own. */
static void test_marks(void **state)
{
    (void)state;
    static const char *const folders[] = {
        "tests/data/tokenizers/qwen2",   "tests/data/tokenizers/llama3",
        "tests/data/tokenizers/spbpe",   "tests/data/tokenizers/gemma",
        "tests/data/tokenizers/unigram", MODEL,
    };
    static const char text[] = "Hello  <|im_end|> w\xc3\xb6rld</s>\n\nagain <s>x";
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct tokenizer *t = NULL;
        struct token_list ids = TOKEN_LIST_INIT, whole = TOKEN_LIST_INIT;
        struct token_mark items[sizeof text];
        struct token_marks marks = {items, 0};
        const struct tokenizer_text all = {.data = text, .n = strlen(text)};
        if (tokenizer_open(&t, folders[i], &e))
            fail_msg("%s: %s", folders[i], e.message);
        for (size_t at = 0; at <= all.n; at++)
            if (((unsigned char)text[at] & 0xC0u) != 0x80u)
                items[marks.n++] = (struct token_mark){.at = at};
        assert_ok(tokenizer_encode_marked(t, &all, &marks, &ids, &e), &e);
        assert_ok(tokenizer_encode(t, text, all.n, false, &whole, &e), &e);
        assert_int_equal(ids.n, whole.n);
        assert_memory_equal(ids.ids, whole.ids, ids.n * sizeof *ids.ids);
        assert_true(items[0].n_before == 0 && !items[0].crosses);
        assert_true(items[marks.n - 1].n_before == ids.n && !items[marks.n - 1].crosses);
        size_t n_clean = 0;
        for (size_t k = 0; k < marks.n; k++) {
            struct token_list part = TOKEN_LIST_INIT;
            if (items[k].crosses || !items[k].at)
                continue;
            assert_ok(tokenizer_encode(t, text, items[k].at, false, &part, &e), &e);
            assert_int_equal(part.n, items[k].n_before);
            assert_memory_equal(part.ids, ids.ids, part.n * sizeof *part.ids);
            token_list_release(&part);
            n_clean++;
        }
        assert_true(n_clean > 3);
        items[0].at = 4;
        items[1].at = 3;
        assert_fails(tokenizer_encode_marked(t, &all, &marks, &ids, &e), Q_INVALID, "mark 1", &e);
        token_list_release(&ids);
        token_list_release(&whole);
        tokenizer_free(t);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    uint32_t n_failed = 0;
    for (int64_t i = 0; i < 20000; i++) {
        struct buf shown = BUF_INIT;
        struct chat *chat = NULL;
        struct sample_tokens t = {.ids = TOKEN_LIST_INIT};
        json_t *root = json_loads(rows[8].line, 0, NULL);
        assert_ok(chat_from_source(&chat, THINKING, strlen(THINKING), NULL, &e), &e);
        const struct sample_source source = {.tokenizer = tokenizer, .chat = chat};
        mem_fail_after(i);
        const enum q_code rc = sample_chat_read(&t, &source, root, &e);
        mem_fail_after(-1);
        if (!rc)
            show(&t, &shown);
        chat_free(chat);
        token_list_release(&t.ids);
        ranges_release(&t.counted);
        json_decref(root);
        const bool same = !rc && strcmp(buf_str(&shown), rows[8].want) == 0;
        buf_release(&shown);
        if (same)
            break;
        assert_int_equal(rc, Q_NO_MEMORY);
        n_failed++;
    }
    assert_true(n_failed > 10 && n_failed < 20000);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_templates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_real_templates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_text, setup_data, teardown_data),
        cmocka_unit_test_setup_teardown(test_folders, setup_data, teardown_data),
        cmocka_unit_test_setup_teardown(test_marks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
