/* SPDX-License-Identifier: Apache-2.0 */
/* Every supported kind against the reference library: small tokenizers of every kind
 * (tests/data/tokenizers) and real ones
 * (../shared/data/tokenizers, skipped when absent). The formats: tests/data/tokenizers/README.md.
 */
#include "check.h"
#include <jansson.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/tokenizer/stream.h"
#include "common/tokenizer/tokenizer.h"

#define SMALL "tests/data/tokenizers"
#define REAL  "../shared/data/tokenizers"

static struct q_err err;
static size_t token_bytes; /* of the running test's tokenizer: tokenizer_token_bytes_max */
static int n_bad;          /* differences in the running test; the first few are printed */

static void differs(const char *style, const char *what, const json_t *text, const char *got)
{
    char *t = json_dumps(text, JSON_ENCODE_ANY);
    if (n_bad++ < 8)
        print_error("%s: %s differs for %.200s: got %.400s\n", style, what, t ? t : "?", got);
    free(t);
}

static void list_text(struct buf *b, const struct token_list *l)
{
    buf_reset(b);
    for (size_t i = 0; i < l->n; i++)
        buf_printf(b, "%s%u", i ? " " : "", l->ids[i]);
}

static bool same_ids(const json_t *want, const struct token_list *got)
{
    bool same = json_array_size(want) == got->n;
    for (size_t i = 0; i < got->n && same; i++)
        same = json_integer_value(json_array_get(want, i)) == (json_int_t)got->ids[i];
    return same;
}

static bool same_text(const json_t *want, const struct buf *got)
{
    return json_is_string(want) && json_string_length(want) == got->len &&
           memcmp(json_string_value(want), buf_str(got), got->len) == 0;
}

static void check_encode(const struct tokenizer *t, const char *style, const json_t *text,
                         bool special, const json_t *want)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf shown = BUF_INIT;
    assert_ok(
        tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, &err),
        &err);
    list_text(&shown, &ids);
    if (!same_ids(want, &ids))
        differs(style, special ? "ids" : "ids_no_special", text, buf_str(&shown));
    if (token_bytes && json_string_length(text) > ids.n * token_bytes)
        differs(style, "bytes of a token", text, buf_str(&shown));
    token_list_release(&ids);
    buf_release(&shown);
}

static struct token_list ids_of(const json_t *array)
{
    struct token_list l = TOKEN_LIST_INIT;
    for (size_t i = 0; i < json_array_size(array); i++)
        assert_ok(token_list_add(&l, (uint32_t)json_integer_value(json_array_get(array, i)), &err),
                  &err);
    return l;
}

static void check_decode(const struct tokenizer *t, const char *style, const json_t *ids, bool skip,
                         const json_t *want)
{
    struct token_list l = ids_of(ids);
    struct buf text = BUF_INIT;
    assert_ok(tokenizer_decode(t, l.ids, l.n, skip, &text, &err), &err);
    if (!same_text(want, &text))
        differs(style, skip ? "decoded_skip" : "decoded", ids, buf_str(&text));
    buf_release(&text);
    token_list_release(&l);
}

static void check_stream(const struct tokenizer *t, const char *style, const json_t *c)
{
    const json_t *pieces = json_object_get(c, "stream");
    const json_t *ids = json_object_get(c, "ids");
    struct detok *d = NULL;
    struct buf text = BUF_INIT;
    if (!pieces)
        return;
    assert_ok(detok_new(&d, t, true, &err), &err);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        buf_reset(&text);
        assert_ok(detok_push(d, (uint32_t)json_integer_value(json_array_get(ids, i)), &text, &err),
                  &err);
        if (!same_text(json_array_get(pieces, i), &text))
            differs(style, "stream", ids, buf_str(&text));
    }
    buf_reset(&text);
    assert_ok(detok_flush(d, &text, &err), &err);
    if (!same_text(json_object_get(c, "stream_flush"), &text))
        differs(style, "stream_flush", ids, buf_str(&text));
    detok_free(d);
    buf_release(&text);
}

static void check_case(const struct tokenizer *t, const char *style, const json_t *c)
{
    const json_t *text = json_object_get(c, "text");
    const json_t *ids = json_object_get(c, "ids");
    if (text) {
        check_encode(t, style, text, true, ids);
        check_encode(t, style, text, false, json_object_get(c, "ids_no_special"));
    }
    check_decode(t, style, ids, false, json_object_get(c, "decoded"));
    check_decode(t, style, ids, true, json_object_get(c, "decoded_skip"));
    check_stream(t, style, c);
}

/* Two texts as one prompt. */
static void check_pair(const struct tokenizer *t, const char *style, const json_t *c)
{
    static const char *const keys[] = {"text", "text_pair"};
    const json_t *want = json_object_get(c, "ids"), *types = json_object_get(c, "type_ids");
    struct token_list parts[2] = {TOKEN_LIST_INIT, TOKEN_LIST_INIT}, got = TOKEN_LIST_INIT;
    uint32_t second_at;
    for (int i = 0; i < 2; i++) {
        const json_t *text = json_object_get(c, keys[i]);
        assert_ok(tokenizer_encode(t, json_string_value(text), json_string_length(text), false,
                                   &parts[i], &err),
                  &err);
    }
    const struct tokenizer_pair pair = {parts[0].ids, parts[1].ids, parts[0].n, parts[1].n};
    assert_ok(tokenizer_encode_pair(t, &pair, &got, &second_at, &err), &err);
    assert_int_equal(got.n, parts[0].n + parts[1].n + tokenizer_pair_special(t));
    assert_int_equal(got.n, json_array_size(want));
    for (size_t i = 0; i < got.n; i++) {
        const json_int_t type = json_integer_value(json_array_get(types, i));
        assert_int_equal(got.ids[i], json_integer_value(json_array_get(want, i)));
        if (type != (second_at && i >= second_at))
            fail_msg("%s: id %zu of a pair has type %d", style, i, !type);
    }
    token_list_release(&parts[0]);
    token_list_release(&parts[1]);
    token_list_release(&got);
}

static void small_style(const char *style)
{
    char path[256];
    json_error_t why;
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, SMALL "/%s/golden.json", style);
    json_t *golden = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!golden)
        fail_msg("%s: %s", path, why.text);
    snprintf(path, sizeof path, SMALL "/%s", style);
    assert_ok(tokenizer_open(&t, path, &err), &err);
    token_bytes = tokenizer_token_bytes_max(t);
    assert_int_equal(tokenizer_vocab_size(t),
                     json_integer_value(json_object_get(golden, "vocab_size")));
    static const char *const lists[] = {"cases", "id_cases"};
    size_t n = 0;
    for (size_t k = 0; k < 2; k++) {
        const json_t *list = json_object_get(golden, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++, n++)
            check_case(t, style, json_array_get(list, i));
    }
    const json_t *pairs = json_object_get(golden, "pairs");
    for (size_t i = 0; i < json_array_size(pairs); i++)
        check_pair(t, style, json_array_get(pairs, i));
    assert_true(n >= 200 && json_array_size(pairs) >= 10);
    assert_int_equal(n_bad, 0);
    tokenizer_free(t);
    json_decref(golden);
}

#define SMALL_TEST(style)                  \
    static void test_##style(void **state) \
    {                                      \
        (void)state;                       \
        n_bad = 0;                         \
        small_style(#style);               \
    }
SMALL_TEST(gpt2)
SMALL_TEST(roberta)
SMALL_TEST(llama3)
SMALL_TEST(qwen2)
SMALL_TEST(o200k)
SMALL_TEST(deepseek)
SMALL_TEST(deepseek3)
SMALL_TEST(spbpe)
SMALL_TEST(spbpe_meta)
SMALL_TEST(gemma)
SMALL_TEST(t5)
SMALL_TEST(unigram)
SMALL_TEST(wordpiece)
SMALL_TEST(wordpiece_cased)

/* A small tokenizer, perhaps without the added tokens that take white space along, which all of
 * them have for the tests above. */
static struct tokenizer *open_style(const char *style, bool without_strips)
{
    char path[256];
    json_error_t why;
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, SMALL "/%s/tokenizer.json", style);
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, &why);
    json_t *added = json_object_get(file, "added_tokens");
    for (size_t i = json_array_size(added); i-- > 0 && without_strips;) {
        const char *content =
            json_string_value(json_object_get(json_array_get(added, i), "content"));
        if (!strcmp(content, "<lstrip>") || !strcmp(content, "<rstrip>") ||
            !strcmp(content, "<both>"))
            json_array_remove(added, i);
    }
    char *text = json_dumps(file, 0);
    assert_non_null(text);
    assert_ok(tokenizer_from_json(&t, text, strlen(text), &err), &err);
    free(text);
    json_decref(file);
    return t;
}

/* Texts that normalizers shorten are no exception; where text can disappear no number is known. */
static void test_token_bytes(void **state)
{
    static const struct {
        const char *style, *text;
        bool is_known;
    } rows[] = {
        {"gpt2", "                ", true},
        {"llama3", "\xe2\x84\xaa", true},
        {"qwen2", "\xe2\x84\xaa\xe1\xbf\xaf", true}, /* to be one byte each: K ` */
        {"qwen2", "\xce\xb9\xcc\x88\xcc\x81\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", true},
        {"deepseek3", "\xc3\xa9", true},
        {"spbpe", "  ", true},
        {"spbpe_meta", "  ", true},
        {"gemma", "  ", true},
        {"t5", " ", false},
        {"unigram", " ", false},
        {"wordpiece", " ", false},
        {"roberta", " ", false}, /* its <mask> takes white space along */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tokenizer *t = open_style(rows[i].style, true);
        struct tokenizer *strips = open_style(rows[i].style, false);
        struct token_list ids = TOKEN_LIST_INIT;
        struct buf text = BUF_INIT;
        const size_t n = tokenizer_token_bytes_max(t);
        if ((n > 0) != rows[i].is_known)
            fail_msg("%s: %zu bytes of a token", rows[i].style, n);
        assert_int_equal(tokenizer_token_bytes_max(strips), 0);
        for (int k = 0; k < 2000; k++)
            buf_add_str(&text, rows[i].text);
        assert_ok(tokenizer_encode(t, text.data, text.len, false, &ids, &err), &err);
        assert_true(!n || text.len <= ids.n * n);
        token_list_release(&ids);
        buf_release(&text);
        tokenizer_free(t);
        tokenizer_free(strips);
    }
}

/* ---- files other than tokenizer.json: tokenizer.model, tiktoken ranks, tekken.json, lists ---- */

static void file_style(const char *style)
{
    char path[256];
    json_error_t why;
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, SMALL "/%s/golden.json", style);
    json_t *golden = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!golden)
        fail_msg("%s: %s", path, why.text);
    snprintf(path, sizeof path, SMALL "/%s", style);
    assert_ok(tokenizer_open(&t, path, &err), &err);
    token_bytes = tokenizer_token_bytes_max(t);
    const json_t *cases = json_object_get(golden, "cases");
    assert_true(json_array_size(cases) >= 190);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const json_t *text = json_object_get(c, "text");
        const json_t *special = json_object_get(c, "ids_special");
        const json_t *decoded = json_object_get(c, "decoded");
        if (text)
            check_encode(t, style, text, false, json_object_get(c, "ids"));
        if (special)
            check_encode(t, style, text, true, special);
        if (decoded)
            check_decode(t, style, json_object_get(c, "ids"), false, decoded);
    }
    assert_int_equal(n_bad, 0);
    tokenizer_free(t);
    json_decref(golden);
}

static void test_files(void **state)
{
    (void)state;
    n_bad = 0;
    file_style("sp_bpe");
    file_style("sp_unigram");
    file_style("tiktoken");
    file_style("tekken");
    file_style("word_list");
    file_style("merge_list");
}

/* ---- real tokenizers ---- */

/* The text of a .zst file, by way of the zstd program; false when the file or the program is not
 * there. */
static bool read_zst(struct buf *out, const char *path)
{
    char command[512];
    char chunk[65536];
    size_t n;
    if (!file_exists(path))
        return false;
    snprintf(command, sizeof command, "zstd -dcq '%s'", path);
    FILE *f = popen(command, "r");
    while (f && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_add(out, chunk, n);
    return f && pclose(f) == 0 && out->len > 0;
}

static json_t *load_zst(const char *path)
{
    struct buf b = BUF_INIT;
    json_error_t why;
    json_t *j = read_zst(&b, path) ? json_loadb(buf_str(&b), b.len, JSON_ALLOW_NUL, &why) : NULL;
    buf_release(&b);
    return j;
}

/* ids with special tokens: prefix and suffix around them, but for the exceptions listed. */
static void check_special(const struct tokenizer *t, const char *name, const json_t *golden,
                          const json_t *text, size_t i)
{
    char key[24];
    snprintf(key, sizeof key, "%zu", i);
    json_t *want =
        json_deep_copy(json_object_get(json_object_get(golden, "ids_with_special"), key));
    if (!want) {
        want = json_deep_copy(json_object_get(golden, "special_prefix"));
        json_array_extend(want, json_array_get(json_object_get(golden, "ids"), i));
        json_array_extend(want, json_object_get(golden, "special_suffix"));
    }
    check_encode(t, name, text, true, want);
    json_decref(want);
}

static const json_t *exception(const json_t *golden, const char *list, size_t i)
{
    char key[24];
    snprintf(key, sizeof key, "%zu", i);
    return json_object_get(json_object_get(golden, list), key);
}

static void real_tokenizer(const char *name)
{
    char path[256];
    struct buf file = BUF_INIT;
    struct tokenizer *t = NULL;
    json_t *all = load_zst(REAL "/golden/inputs.json.zst");
    const json_t *inputs = json_object_get(all, "strings");
    snprintf(path, sizeof path, REAL "/golden/%s.json.zst", name);
    json_t *golden = load_zst(path);
    snprintf(path, sizeof path, REAL "/%s/tokenizer.json.zst", name);
    if (!inputs || !golden || !read_zst(&file, path)) {
        json_decref(all);
        json_decref(golden);
        skip_without(file_exists(path) ? "program zstd" : path);
    }
    assert_ok(tokenizer_from_json(&t, buf_str(&file), file.len, &err), &err);
    token_bytes = tokenizer_token_bytes_max(t);
    const json_t *ids = json_object_get(golden, "ids");
    assert_true(json_array_size(inputs) >= 300 && json_array_size(ids) == json_array_size(inputs));
    for (size_t i = 0; i < json_array_size(inputs); i++) {
        const json_t *text = json_array_get(inputs, i);
        const json_t *row = json_array_get(ids, i);
        check_encode(t, name, text, false, row);
        check_special(t, name, golden, text, i);
        const json_t *plain = exception(golden, "decode", i);
        const json_t *skip = exception(golden, "decode_skip_special", i);
        check_decode(t, name, row, false, plain ? plain : text);
        check_decode(t, name, row, true, skip ? skip : plain ? plain : text);
    }
    assert_int_equal(n_bad, 0);
    tokenizer_free(t);
    buf_release(&file);
    json_decref(all);
    json_decref(golden);
}

static const char *const real_names[] = {"gpt2",
                                         "roberta-base",
                                         "distilroberta-ner",
                                         "llama3.2",
                                         "qwen3",
                                         "gpt-oss",
                                         "deepseek-llm",
                                         "falcon",
                                         "phi-2",
                                         "granite-code",
                                         "gpt-neox-pythia",
                                         "llama1",
                                         "llama2",
                                         "mistral-7b-v0.3",
                                         "phi-3",
                                         "minueza-32m-chat",
                                         "chatglm",
                                         "clip",
                                         "albert",
                                         "t5-small",
                                         "bert-base-uncased",
                                         "bert-cased-ner",
                                         "bge-large-zh-v1.5",
                                         "finbert-tone",
                                         "all-minilm-l6-v2"};

static void test_real(void **state)
{
    n_bad = 0;
    real_tokenizer(*state);
}

int main(void)
{
    struct CMUnitTest tests[48] = {
        cmocka_unit_test(test_gpt2),        cmocka_unit_test(test_roberta),
        cmocka_unit_test(test_llama3),      cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_o200k),       cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_deepseek3),   cmocka_unit_test(test_spbpe),
        cmocka_unit_test(test_spbpe_meta),  cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_t5),          cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_wordpiece),   cmocka_unit_test(test_wordpiece_cased),
        cmocka_unit_test(test_token_bytes), cmocka_unit_test(test_files)};
    size_t n = 16;
    for (size_t i = 0; i < sizeof real_names / sizeof *real_names; i++)
        tests[n++] =
            (struct CMUnitTest){real_names[i], test_real, NULL, NULL, (void *)real_names[i]};
    return _cmocka_run_group_tests("tok_golden", tests, n, NULL, NULL);
}
