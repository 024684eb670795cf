/* SPDX-License-Identifier: Apache-2.0 */
/* Images in conversations: what templates of the known forms get and write for them, where the
 * images are in the prompt then, and what URLs of images are read.
 *
 * The templates are short ones in the manner of those that models have. */
#include "check.h"
#include <jansson.h>
#include "common/chat/turn.h"
#include "common/items/item_image.h"
#include "common/mem.h"
#include "folder.h"

static struct q_err err;

/* ---- templates ---- */

#define LIST_ONLY                                                                                 \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' }}{% for p in m['content'] %}"    \
    "{% if p['type'] == 'text' %}{{ p['text'] }}{% elif p['type'] == 'image' %}{{ '<image>' }}"   \
    "{% endif %}{% endfor %}<end>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif " \
    "%}"
#define FIRST_IMAGES                                                                        \
    "{% for m in messages %}{{ m['role'] | upper + ': ' }}"                                 \
    "{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}" \
    "{% endfor %}{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}"       \
    "{{ p['text'] + ' ' }}{% endfor %}{% endfor %}ASSISTANT:"
#define BOTH                                                                                      \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}"               \
    "{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' or 'image' in p %}" \
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in p %}{{ p.text }}{% endif %}"    \
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
#define MACRO                                                                                 \
    "{% macro write(content) %}{% if content is string %}{{ content }}{% else %}"             \
    "{% for item in content %}{% if item.type == 'image' %}<|vision_start|><|image_pad|>"     \
    "<|vision_end|>{% else %}{{ item.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}" \
    "{% for m in messages %}[{{ m.role }}]{{ write(m.content) }}{% endfor %}"
#define TRIMMED                                                                         \
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n"            \
    "{% if m['content'] is string %}{{ m['content'] | trim }}"                          \
    "{% elif m['content'] is iterable %}{% for item in m['content'] %}"                 \
    "{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"                          \
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}" \
    "{% endif %}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
#define NUMBERED                                                                                \
    "{% set n = namespace(i=0) %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"          \
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"    \
    "{% if p['type'] == 'image' %}{% set n.i = n.i + 1 %}Image-{{ n.i }}: <IMG_CONTEXT>\n"      \
    "{% elif p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>" \
    "{% endfor %}"
#define STRINGS "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
#define LOST                                                                               \
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}" \
    "{% elif p.type == 'image' and m.role == 'user' %}<image>{% endif %}{% endfor %}{% endfor %}"

#define IMAGE(k)                                                                 \
    "{\"type\":\"image_url\",\"image_url\":{\"data\":\"" k k k k "\",\"dtype\":" \
    "\"uint8\",\"shape\":[1,1,3]}}"
#define TEXT(t) "{\"type\":\"text\",\"text\":\"" t "\"}"
#define USER(c) "{\"role\":\"user\",\"content\":" c "}"

/* Tokens of the vocabulary, by id. */
static const char *const vocabulary[] = {
    "<unk>", "x", "y", "<image>", "<|image_pad|>", "<start_of_image>", "<IMG_CONTEXT>",
};
enum { IMG = 3, PAD, START, CONTEXT };

/* [k] is where an image is; images differ by their pixels: A has 0, B 1, C 2. */
static const struct {
    const char *source;
    uint32_t token;
    const char *messages, *want;
} rows[] = {
    {LIST_ONLY, IMG, USER("[" IMAGE("A") "," TEXT("hi") "]"),
     "<|im_start|>user:[0]hi<end>\nassistant:"},
    {LIST_ONLY, IMG,
     USER("[" TEXT("a") "," IMAGE("B") "," TEXT("b") "," TEXT("c") "," IMAGE("A") "]"),
     "<|im_start|>user:a[1]bc[0]<end>\nassistant:"},
    {LIST_ONLY, IMG, USER("[" TEXT("<image>") "," IMAGE("A") "," TEXT("x<image>y") "]"),
     "<|im_start|>user:<image>[0]x<image>y<end>\nassistant:"},
    {LIST_ONLY, IMG, USER("\"<image>\"") "," USER("[" IMAGE("C") "]"),
     "<|im_start|>user:<image><end>\n<|im_start|>user:[2]<end>\nassistant:"},
    {LIST_ONLY, IMG, USER("\"only text\""), "<|im_start|>user:only text<end>\nassistant:"},
    {FIRST_IMAGES, IMG, USER("[" TEXT("a") "," IMAGE("B") "," IMAGE("A") "]"),
     "USER: [1]\n[0]\na ASSISTANT:"},
    {BOTH, PAD, USER("[" IMAGE("A") "," TEXT("hi") "]") "," USER("\"plain\""),
     "<|im_start|>user\n<|vision_start|>[0]<|vision_end|>hi<|im_end|>\n<|im_start|>user\nplain"
     "<|im_end|>\n<|im_start|>assistant"},
    {BOTH, PAD, USER("[" TEXT("<|image_pad|>") "," IMAGE("B") "," IMAGE("A") "]"),
     "<|im_start|>user\n<|image_pad|><|vision_start|>[1]<|vision_end|><|vision_start|>[0]"
     "<|vision_end|><|im_end|>\n<|im_start|>assistant"},
    {MACRO, PAD, USER("[" TEXT("q") "," IMAGE("A") "]"),
     "[user]q<|vision_start|>[0]<|vision_end|>"},
    {TRIMMED, START, USER("[" IMAGE("A") "," TEXT(" hi ") "]"),
     "<start_of_turn>user\n[0]hi<end_of_turn>\n<start_of_turn>model"},
    {NUMBERED, CONTEXT, USER("[" IMAGE("B") "," IMAGE("A") "," TEXT("differ?") "]"),
     "<|im_start|>user\nImage-1: [1]\nImage-2: [0]\ndiffer?<|im_end|>"},
    /* templates that take strings */
    {STRINGS, IMG, USER("[" IMAGE("A") "," TEXT("hi") "]"), "[user][0]\nhi"},
    {STRINGS, IMG,
     USER("[" TEXT("a") "," IMAGE("B") "," TEXT("b") "," TEXT("c") "," IMAGE("A") "]"),
     "[user]a\n[1]\nb\nc\n[0]"},
    {STRINGS, IMG, USER("[" TEXT("<image>") "," IMAGE("A") "]"), "[user]<image>\n[0]"},
    /* a placeholder that is no token: there is no literal */
    {LIST_ONLY, (uint32_t)-5, USER("[" IMAGE("A") "," TEXT("hi") "]"),
     "<|im_start|>user:[0]\nhi<end>\nassistant:"},
};

static struct tokenizer *open_tokenizer(void)
{
    struct buf json = BUF_INIT;
    struct tokenizer *t = NULL;
    buf_add_str(&json, "{\"added_tokens\":[");
    for (size_t i = IMG; i < sizeof vocabulary / sizeof *vocabulary; i++)
        buf_printf(&json,
                   "%s{\"id\":%zu,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                   "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                   i > IMG ? "," : "", i, vocabulary[i]);
    buf_add_str(&json, "],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
                       "\"decoder\":null,\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
                       "\"vocab\":{\"<unk>\":0,\"x\":1,\"y\":2},\"merges\":[]}}");
    assert_ok(tokenizer_from_json(&t, buf_str(&json), json.len, &err), &err);
    buf_release(&json);
    return t;
}

static struct item_types image_type(uint32_t token)
{
    return (struct item_types){
        .n = 2,
        .rows =
            {
                {
                    .modality = "grids",
                    .part_type = "grid",
                    .placeholder = (uint32_t)-7,
                    .n_dim = 1,
                    .dims = {1},
                    .max_items = 9,
                },
                {
                    .modality = "image",
                    .part_type = "image_url",
                    .placeholder = token,
                    .n_dim = 3,
                    .dims = {0, 0, 3},
                    .dims_max = {8, 8},
                    .max_items = 4,
                },
            },
    };
}

struct talk {
    struct chat_model model;
    struct turn turn;
    struct buf prompt;
    struct ranges content;
};

static enum q_code talk_begin(struct talk *t, const char *source, uint32_t token,
                              const char *messages)
{
    static struct item_types types; /* borrowed by the turn */
    struct buf text = BUF_INIT;
    types = image_type(token);
    buf_printf(&text, "[%s]", messages);
    json_t *m = json_loads(buf_str(&text), 0, NULL);
    assert_non_null(m);
    *t = (struct talk){.model = {.content = CHAT_CONTENT_AUTO}};
    assert_ok(chat_from_source(&t->model.template, source, strlen(source), NULL, &err), &err);
    t->model.tokenizer = open_tokenizer();
    const struct turn_ask ask = {
        .messages = m,
        .add_generation_prompt = true,
        .item_types = &types,
    };
    enum q_code rc = turn_read(&t->turn, &t->model, &ask, &err);
    if (!rc)
        rc = turn_render(&t->turn, &t->prompt, &t->content, &err);
    buf_release(&text);
    json_decref(m);
    return rc;
}

static void talk_end(struct talk *t)
{
    tokenizer_free((struct tokenizer *)(uintptr_t)t->model.tokenizer);
    turn_release(&t->turn);
    buf_release(&t->prompt);
    ranges_release(&t->content);
    chat_model_release(&t->model);
}

/* The prompt with [pixel] for each item. */
static void show(const struct talk *t, struct buf *out)
{
    const struct parts *p = &t->turn.parts;
    size_t done = 0;
    for (size_t i = 0; i < p->list.n; i++) {
        const size_t at = p->places[i].at;
        assert_true(at >= done && at <= t->prompt.len);
        buf_add(out, buf_str(&t->prompt) + done, at - done);
        if (p->list.items[i].n_dim == 3)
            buf_printf(out, "[%u]", *(const unsigned char *)p->list.items[i].data >> 2);
        else
            buf_add_str(out, "(grid)");
        done = at;
    }
    buf_add(out, buf_str(&t->prompt) + done, t->prompt.len - done);
}

static void test_templates(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct talk t;
        struct buf shown = BUF_INIT;
        const enum q_code rc = talk_begin(&t, rows[i].source, rows[i].token, rows[i].messages);
        if (rc)
            fail_msg("row %zu: %s", i, err.message);
        show(&t, &shown);
        if (strcmp(buf_str(&shown), rows[i].want) != 0)
            fail_msg("row %zu gives\n%s\nwanted\n%s", i, buf_str(&shown), rows[i].want);
        for (size_t k = 0; k < t.turn.parts.list.n; k++)
            assert_int_equal(t.turn.parts.places[k].id, rows[i].token);
        buf_release(&shown);
        talk_end(&t);
    }
}

/* The ids of the prompt: one placeholder at each place, and no other of the request's text. */
static void test_ids(void **state)
{
    static const uint32_t want[] = {1, IMG, 2, 0, 1};
    struct talk t;
    struct token_list ids = TOKEN_LIST_INIT;
    (void)state;
    assert_ok(talk_begin(&t,
                         "{% for p in messages[0].content %}{% if p.type == 'image' %}<image>"
                         "{% else %}{{ p.text }}{% endif %}{% endfor %}",
                         IMG, USER("[" TEXT("x") "," IMAGE("A") "," TEXT("y<image>x") "]")),
              &err);
    const struct tokenizer_text text = {
        .data = buf_str(&t.prompt),
        .n = t.prompt.len,
        .content = &t.content,
        .inserts = t.turn.parts.places,
        .n_insert = t.turn.parts.list.n,
    };
    assert_ok(tokenizer_encode_prompt(t.model.tokenizer, &text, false, &ids, &err), &err);
    for (size_t i = 0, k = 0; i < ids.n; i++) /* unknown characters between y and x */
        if (!(i && ids.ids[i] == 0 && ids.ids[i - 1] == 0))
            assert_int_equal(ids.ids[i], want[k++]);
    assert_int_equal(t.turn.parts.places[0].position, 1);
    token_list_release(&ids);
    talk_end(&t);
}

/* Beside a plugin's other items, which are marks in any template. */
static void test_with_other_items(void **state)
{
    static const char messages[] = USER("[" TEXT("a") ",{\"type\":\"grid\",\"grid\":[1]}," TEXT(
        "b") "," IMAGE("B") ",{\"type\":\"grid\",\"grid\":[2]}," IMAGE("A") "]");
    static const struct {
        const char *source, *want;
    } both[] = {
        {LIST_ONLY, "<|im_start|>user:a(grid)b[1](grid)[0]<end>\nassistant:"},
        {STRINGS, "[user]a(grid)b\n[1]\n(grid)\n[0]"},
    };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct talk t;
        struct buf shown = BUF_INIT;
        assert_ok(talk_begin(&t, both[i].source, IMG, messages), &err);
        show(&t, &shown);
        assert_string_equal(buf_str(&shown), both[i].want);
        buf_release(&shown);
        talk_end(&t);
    }
}

static void test_what_is_wrong(void **state)
{
    static const struct {
        const char *source, *messages, *says;
    } cases[] = {
        {LOST, "{\"role\":\"system\",\"content\":[" IMAGE("A") "]}",
         "messages: the chat template writes the model's token \"<image>\" 0 times for 1 images"},
        {LIST_ONLY "{{ '<image>' }}", USER("[" IMAGE("A") "]"), "2 times for 1 images"},
        {LIST_ONLY,
         USER("[" IMAGE("A") "," IMAGE("A") "," IMAGE("A") "," IMAGE("A") "," IMAGE("A") "]"),
         "content part 4: image: more than 4 items"},
        {LIST_ONLY, "{\"role\":\"assistant\",\"content\":[" IMAGE("A") "]}",
         "takes no \"image_url\""},
        {LIST_ONLY, USER("[{\"type\":\"image_url\"}]"), "it has no \"image_url\""},
        {LIST_ONLY, USER("[{\"type\":\"image_url\",\"image_url\":null,\"uuid\":\"x\"}]"),
         "images are not kept by name"},
        {LIST_ONLY, USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":5}}]"),
         "messages: entry 0: content part 0: image[0]: url: expected a string"},
        {LIST_ONLY, USER("[{\"type\":\"image_url\",\"image_url\":\"x\",\"size\":5}]"),
         "unknown member \"size\""},
        {LIST_ONLY, USER("[{\"type\":\"input_image\",\"file_id\":\"file-1\"}]"),
         "file_id: files are not kept"},
        {LIST_ONLY, USER("[{\"type\":\"image\",\"source\":{\"type\":\"file\",\"file_id\":\"f\"}}]"),
         "file_id: files are not kept"},
        {LIST_ONLY, USER("[{\"type\":\"input_image\",\"image_url\":\"x\",\"detail\":\"best\"}]"),
         "detail: \"best\", expected"},
        {LIST_ONLY, USER("[{\"type\":\"grid\",\"grid\":{\"url\":\"x\"}}]"),
         "expected either data (with dtype and shape) or path"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct talk t;
        q_err_reset(&err);
        const enum q_code rc = talk_begin(&t, cases[i].source, IMG, cases[i].messages);
        if ((rc != Q_INVALID && rc != Q_UNSUPPORTED) || !strstr(err.message, cases[i].says))
            fail_msg("case %zu: %s, wanted %s", i, err.message, cases[i].says);
        talk_end(&t);
    }
    q_err_reset(&err);
}

/* Each allocation fails once: the error says so, and nothing is lost. */
static void test_no_memory(void **state)
{
    static const char *const sources[] = {LIST_ONLY, STRINGS};
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct item_types types = image_type(IMG);
        struct chat_model m = {.content = CHAT_CONTENT_AUTO, .tokenizer = open_tokenizer()};
        json_t *list = json_loads("[" USER("[" TEXT("a") "," IMAGE("B") "]") "]", 0, NULL);
        assert_non_null(list);
        assert_ok(chat_from_source(&m.template, sources[k], strlen(sources[k]), NULL, &err), &err);
        for (long n = 0;; n++) {
            const struct turn_ask ask = {.messages = list, .item_types = &types};
            struct buf prompt = BUF_INIT;
            struct ranges content = RANGES_INIT;
            struct turn t;
            q_err_reset(&err);
            mem_fail_after(n);
            enum q_code rc = turn_read(&t, &m, &ask, &err);
            if (!rc)
                rc = turn_render(&t, &prompt, &content, &err);
            mem_fail_after(-1);
            turn_release(&t);
            buf_release(&prompt);
            ranges_release(&content);
            if (!rc)
                break;
            assert_int_equal(rc, Q_NO_MEMORY);
        }
        json_decref(list);
        tokenizer_free((struct tokenizer *)(uintptr_t)m.tokenizer);
        chat_model_release(&m);
    }
    q_err_reset(&err);
}

/* ---- URLs ---- */

/* PNG of 1 x 1: red. */
#define PNG                                                                                    \
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSu" \
    "QmCC"

static const struct item_rules no_files = {.files = false};

static enum q_code read_json(struct image *out, const char *json, const struct item_rules *rules)
{
    json_t *v = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(v);
    q_err_reset(&err);
    *out = (struct image){.rgb = NULL};
    assert_true(item_image_is(v));
    const enum q_code rc = item_image_read(out, v, rules, &err);
    json_decref(v);
    return rc;
}

static void is_red(const struct image *i)
{
    static const unsigned char red[] = {255, 0, 0};
    assert_int_equal(i->width, 1);
    assert_int_equal(i->height, 1);
    assert_memory_equal(i->rgb, red, 3);
}

static void test_forms(void **state)
{
    static const char *const forms[] = {
        "\"data:image/png;base64," PNG "\"",
        "\"data:;base64," PNG "\"",
        "\"DATA:text/plain;charset=x;base64," PNG "\"", /* the bytes decide */
        "{\"url\":\"data:image/jpeg;base64," PNG "\",\"detail\":\"original\"}",
        "{\"url\":\"data:image/png;base64," PNG "\",\"detail\":null}",
        "{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"" PNG "\"}",
        "{\"type\":\"url\",\"url\":\"data:image/png;base64," PNG "\"}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct image image;
        assert_ok(read_json(&image, forms[i], &no_files), &err);
        is_red(&image);
        image_release(&image);
    }
}

static void test_urls_that_are_refused(void **state)
{
    static const struct {
        const char *json, *says;
        enum q_code code;
    } cases[] = {
        {"\"https://example.com/a.png\"",
         "url: quire does not fetch URLs; send the image as a data: URL", Q_UNSUPPORTED},
        {"{\"url\":\"HTTP://x\"}", "does not fetch URLs", Q_UNSUPPORTED},
        {"\"ftp://x/a.png\"", "is no URL of an image; accepted are data:", Q_INVALID},
        {"\"\"", "is no URL of an image", Q_INVALID},
        {"\"data:image/png\"", "has a comma before its data", Q_INVALID},
        {"\"data:image/png,%89PNG\"", "percent-encoded", Q_INVALID},
        {"\"data:base64," PNG "\"", "percent-encoded", Q_INVALID},
        {"\"data:image/png;BASE64," PNG "\"", "percent-encoded", Q_INVALID},
        {"\"FILE:///etc/passwd\"", "is no URL of an image", Q_INVALID},
        {"\"data:image/png;base64,\"", "no bytes", Q_INVALID},
        {"\"data:image/png;base64,AAA\"", "a multiple of 4", Q_INVALID},
        {"\"data:image/png;base64,AA-_\"", "url: not base64", Q_INVALID},
        {"\"data:image/png;base64,AAAA AAA\"", "url: not base64", Q_INVALID},
        {"\"data:image/png;base64,AAAA\\u0000AAA\"", "not base64", Q_INVALID},
        {"\"data:image/png;base64,AAAA\"", "PNG", Q_INVALID},
        {"\"file:///etc/passwd\"", "url: this server reads no files", Q_UNSUPPORTED},
        {"\"file:a.png\"", "expected file:///PATH", Q_INVALID},
        {"\"file://other/a.png\"", "absolute path", Q_INVALID},
        {"\"file:///a%00\"", "has a NUL", Q_INVALID},
        {"{\"url\":\"x\",\"size\":1}", "unexpected member \"size\"", Q_INVALID},
        {"{\"url\":\"x\",\"detail\":1}", "detail: expected a string", Q_INVALID},
        {"{\"type\":\"blob\"}", "type: expected", Q_INVALID},
        {"{\"type\":\"base64\",\"data\":1}", "data: expected a string", Q_INVALID},
        {"{\"type\":\"base64\",\"data\":\"" PNG "\",\"media_type\":1}", "media_type", Q_INVALID},
        {"{\"type\":\"base64\",\"data\":\"!\"}", "data: expected base64", Q_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct image image;
        const enum q_code rc = read_json(&image, cases[i].json, &no_files);
        if (rc != cases[i].code || !strstr(err.message, cases[i].says))
            fail_msg("%s: %s \"%s\", wanted \"%s\"", cases[i].json, q_code_name(rc), err.message,
                     cases[i].says);
        image_release(&image);
    }
}

static void test_files(void **state)
{
    static const struct {
        const char *url, *says; /* url: %s is the folder */
    } cases[] = {
        {"file://%s/in/a%%20b.png", NULL},
        {"file://localhost%s/in/a b.png", NULL},
        {"file://%s/in/../in/a%%20b.png", NULL},
        {"file://%s/out.png", "is no file in the folder of --allowed-local-media-path"},
        {"file://%s/in/../out.png", "is no file in the folder"},
        {"file://%s/in/link.png", "is no file in the folder"},
        {"file://%s/in/none.png", "is no file in the folder"},
        {"file://%s/in/text.png", "PNG"},
        {"file://%s/in/empty.png", "no bytes"},
    };
    static const char png[] =
        "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9c"
        "c\xf8\xcf\xc0\0\0\3\1\1\0\xc9\xfe\x92\xef\0\0\0\0IEND\xae"
        "B`\x82";
    struct folder folder;
    char path[PATH_MAX], json[2 * PATH_MAX];
    (void)state;
    folder_init(&folder);
    snprintf(path, sizeof path, "%s/in", folder.path);
    folder_write(&folder, "out.png", png, sizeof png - 1);
    folder_write(&folder, "in/a b.png", png, sizeof png - 1);
    folder_write(&folder, "in/text.png", "text", 4);
    folder_write(&folder, "in/empty.png", "", 0);
    folder_link(&folder, "in/link.png", "../out.png");
    const struct item_rules rules = {.files = true, .dir = path};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct image image;
        struct buf url = BUF_INIT;
        for (const char *at = cases[i].url; *at; at++)
            if (*at == '%') {
                buf_add_str(&url, *++at == 's' ? folder.path : "%");
            } else {
                buf_add_char(&url, *at);
            }
        snprintf(json, sizeof json, "\"%s\"", buf_str(&url));
        buf_release(&url);
        const enum q_code rc = read_json(&image, json, &rules);
        if (cases[i].says ? rc != Q_INVALID || !strstr(err.message, cases[i].says) : rc != Q_OK)
            fail_msg("%s: %s", json, err.message);
        if (!cases[i].says)
            is_red(&image);
        image_release(&image);
    }
    folder_release(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_with_other_items),
        cmocka_unit_test(test_what_is_wrong),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_urls_that_are_refused),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
