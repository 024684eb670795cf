/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer files and texts that are wrong, out of range or too large; and every allocation failing
 * once. */
#include "check.h"
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/tokenizer/stream.h"

static struct q_err err;

/* A complete small tokenizer: a and b of the byte-level alphabet, one merge, every slot in use. */
#define ADDED                                                                            \
    "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true,\"lstrip\":true}," \
    "{\"id\":5,\"content\":\"ba\",\"normalized\":true}]"
#define NORM                                                                     \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}," \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"c\"},\"content\":\"a\"}]}"
#define PRE                                                                            \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["                     \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s\"},\"behavior\":\"Removed\"}," \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]}"
#define POST                                                              \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["    \
    "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]," \
    "\"special_tokens\":{\"<s>\":{\"ids\":[4]}}}"
#define DEC "\"decoder\":{\"type\":\"ByteLevel\"}"
#define MODEL                                                                              \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2," \
    "\"u\":3},\"merges\":[\"a b\"]}"
#define OBJECT(...) "{" __VA_ARGS__ "}"
#define WHOLE       OBJECT(ADDED "," NORM "," PRE "," POST "," DEC "," MODEL)

static void test_whole(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf text = BUF_INIT;
    static const uint32_t want[] = {4, 2, 0, 4, 5, 3, 0};
    assert_ok(tokenizer_from_json(&t, WHOLE, strlen(WHOLE), &err), &err);
    assert_ok(tokenizer_encode(t, "ab c <s>baza", 12, true, &ids, &err), &err);
    assert_int_equal(ids.n, 7);
    assert_memory_equal(ids.ids, want, sizeof want);
    assert_ok(tokenizer_decode(t, ids.ids, ids.n, true, &text, &err), &err);
    assert_string_equal(buf_str(&text), "ababaua");
    assert_int_equal(tokenizer_vocab_size(t), 6);
    buf_release(&text);
    token_list_release(&ids);
    tokenizer_free(t);
}

static void test_truncated(void **state)
{
    (void)state;
    for (size_t n = 0; n < strlen(WHOLE); n++) {
        struct tokenizer *t = NULL;
        char *part =
            malloc(n ? n : 1); /* exactly n bytes, so that asan reports a read behind them */
        memcpy(part, WHOLE, n);
        assert_fails(tokenizer_from_json(&t, part, n, &err), Q_CORRUPT, "tokenizer.json", &err);
        free(part);
    }
}

#define BPE(rest)            "{\"model\":{\"type\":\"BPE\"," rest "}}"
#define MODEL_OF(type, rest) "{\"model\":{\"type\":\"" type "\"," rest "}}"
#define WITH(part)           OBJECT(part "," MODEL)
#define SPLIT(rest)          WITH("\"pre_tokenizer\":{\"type\":\"Split\"," rest "}")
#define TEMPLATE(rest)       WITH("\"post_processor\":{\"type\":\"TemplateProcessing\"," rest "}")

#define DECODERS(list) WITH("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" list "]}")

static const struct {
    const char *json;
    enum q_code code;
    const char *part;
} refused[] = {
    {"[]", Q_CORRUPT, "expected an object, found an array"},
    {"{}", Q_CORRUPT, "model: expected an object, found nothing"},
    {"{\"model\":7}", Q_CORRUPT, "model: expected an object, found an integer"},
    {"{\"model\":{\"type\":7}}", Q_CORRUPT, "model.type"},
    {"{\"model\":{\"type\":\"Mystery\"}}", Q_UNSUPPORTED, "\"Mystery\""},
    {"{\"model\":{\"vocab\":[3]}}", Q_CORRUPT, "model.vocab[0]: expected [token, score]"},
    {BPE("\"vocab\":[]"), Q_CORRUPT, "model.vocab: expected an object"},
    {BPE("\"vocab\":{\"a\":\"b\"}"), Q_CORRUPT, "model.vocab.a"},
    {BPE("\"vocab\":{\"a\":-1}"), Q_CORRUPT, "expected a token id, found \"-1"},
    {BPE("\"vocab\":{\"a\":99999999999}"), Q_CORRUPT, "99999999999 is not in"},
    {BPE("\"vocab\":{\"a\":1.5}"), Q_CORRUPT, "model.vocab.a"},
    {BPE("\"vocab\":{}"), Q_CORRUPT, "model.merges"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[\"a\"]"), Q_CORRUPT, "model.merges[0]"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]"), Q_CORRUPT, "model.merges[0]"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), Q_CORRUPT, "model.merges[0]"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]"), Q_CORRUPT, "model.merges[0]"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[\"a b\"]"), Q_CORRUPT, "the second is not in"},
    {BPE("\"vocab\":{},\"merges\":[\"a b\"]"), Q_CORRUPT, "the first is not in"}, /* no tables */
    {BPE("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), Q_CORRUPT, "the merged token is not in"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[\"a \xff\"]"), Q_CORRUPT, "the second is not in"},
    {BPE("\"vocab\":{\"a\":0},\"merges\":[,,,,,,,,]"), Q_CORRUPT, "model.merges[0]"},
    {BPE("\"vocab\":{,,,,,,,,}"), Q_CORRUPT, "model.vocab"},
    {BPE("\"vocab\":{},\"merges\":[],\"unk_token\":\"u\""), Q_CORRUPT, "unk_token \"u\""},
    {BPE("\"vocab\":{},\"merges\":[],\"unk_token\":1"), Q_CORRUPT, "unk_token"},
    {BPE("\"dropout\":0.1"), Q_UNSUPPORTED, "dropout"},
    {BPE("\"end_of_word_suffix\":7"), Q_CORRUPT, "end_of_word_suffix"},
    {BPE("\"continuing_subword_prefix\":\"##\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"),
     Q_CORRUPT, "shorter than continuing_subword_prefix"},
    {MODEL_OF("Unigram", "\"vocab\":[[\"a\",0.5]],\"unk_id\":1"), Q_CORRUPT, "model.unk_id 1"},
    {MODEL_OF("Unigram", "\"vocab\":{}"), Q_CORRUPT, "model.vocab"},
    {MODEL_OF("WordPiece", "\"vocab\":[]"), Q_CORRUPT, "model.vocab"},
    {MODEL_OF("WordPiece", "\"vocab\":{},\"max_input_chars_per_word\":-1"), Q_CORRUPT,
     "max_input_chars_per_word"},
    {MODEL_OF("WordLevel", "\"vocab\":{},\"unk_token\":1"), Q_CORRUPT, "model.unk_token"},
    {BPE("\"ignore_merges\":3"), Q_CORRUPT, "ignore_merges"},
    {WITH("\"normalizer\":3"), Q_CORRUPT, "normalizer: expected an object or null"},
    {WITH("\"normalizer\":{}"), Q_CORRUPT, "normalizer.type"},
    {WITH("\"normalizer\":{\"type\":\"Foo\"}"), Q_UNSUPPORTED, "normalizer[0]: type \"Foo\""},
    {WITH("\"normalizer\":{\"type\":\"Prepend\"}"), Q_CORRUPT, "normalizer[0].prepend"},
    {WITH("\"normalizer\":{\"type\":\"Sequence\"}"), Q_CORRUPT, "normalizer.normalizers"},
    {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[3]}"), Q_CORRUPT, "objects"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Mystery\"}"), Q_UNSUPPORTED, "\"Mystery\""},
    {WITH("\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"ab\"}"), Q_CORRUPT,
     "[0].delimiter"},
    {WITH("\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}"), Q_CORRUPT, "length"},
    {WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}"), Q_CORRUPT,
     "precompiled_charsmap is corrupt"},
    {WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BBBBBBBB\"}"),
     Q_CORRUPT, "precompiled_charsmap is corrupt"},
    {WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAP8=\"}"),
     Q_CORRUPT, "precompiled_charsmap is not UTF-8"},
    {WITH("\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":3}"), Q_CORRUPT,
     "[0].lowercase"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\"}"), Q_CORRUPT, "[0].replacement"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"xy\"}"), Q_CORRUPT,
     "one character"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"x\",\"prepend_scheme\":"
          "\"odd\"}"),
     Q_UNSUPPORTED, "\"odd\""},
    {DECODERS("{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}"), Q_UNSUPPORTED,
     "decoder[1] requires separate tokens"},
    {DECODERS("{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":-1}"), Q_CORRUPT, "stop"},
    {DECODERS("{\"type\":\"Fuse\"},{\"type\":\"CTC\",\"pad_token\":\"\","
              "\"word_delimiter_token\":\"|\"}"),
     Q_UNSUPPORTED, "decoder[1] requires separate tokens"},
    {DECODERS("{\"type\":\"Strip\",\"content\":\"\",\"start\":0,\"stop\":0}"), Q_CORRUPT,
     "one character"},
    {DECODERS("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}"),
     Q_UNSUPPORTED, "Regex in a decoder"},
    {DECODERS("{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}"), Q_CORRUPT, "content"},
    {SPLIT("\"behavior\":\"Isolated\""), Q_CORRUPT, "pre_tokenizer[0].pattern"},
    {SPLIT("\"behavior\":\"Odd\",\"pattern\":{\"String\":\"a\"}"), Q_UNSUPPORTED, "\"Odd\""},
    {SPLIT("\"pattern\":{\"String\":\"a\"}"), Q_CORRUPT, "behavior"},
    {SPLIT("\"behavior\":\"Isolated\",\"pattern\":{\"String\":\"\"}"), Q_UNSUPPORTED, "empty"},
    {SPLIT("\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(\"}"), Q_UNSUPPORTED,
     "invalid pattern"},
    {SPLIT("\"behavior\":\"Isolated\",\"pattern\":{\"Other\":\"(\"}"), Q_CORRUPT, "String"},
    {TEMPLATE("\"single\":3"), Q_CORRUPT, "single"},
    {TEMPLATE("\"single\":[]"), Q_UNSUPPORTED, "exactly once"},
    {TEMPLATE("\"single\":[{\"Sequence\":{\"id\":\"B\"}}]"), Q_UNSUPPORTED, "exactly once"},
    {TEMPLATE("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]"), Q_CORRUPT, "no ids for \"x\""},
    {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), Q_CORRUPT, "cls[1]"},
    {WITH("\"decoder\":{\"type\":\"CTC\"}"), Q_CORRUPT, "decoder[0].pad_token"},
    {WITH("\"decoder\":{\"type\":\"Mystery\"}"), Q_UNSUPPORTED, "decoder[0]: type \"Mystery\""},
    {WITH("\"added_tokens\":{}"), Q_CORRUPT, "added_tokens: expected an array"},
    {WITH("\"added_tokens\":[3]"), Q_CORRUPT, "added_tokens[0].content"},
    {WITH("\"added_tokens\":[{\"content\":\"x\",\"lstrip\":1}]"), Q_CORRUPT,
     "added_tokens[0].lstrip"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct tokenizer *t = NULL;
        enum q_code rc = tokenizer_from_json(&t, refused[i].json, strlen(refused[i].json), &err);
        if (rc == Q_OK)
            fail_msg("accepted: %s", refused[i].json);
        assert_null(t);
        assert_fails(rc, refused[i].code, refused[i].part, &err);
    }
}

/* Deep and long things end at a stated limit. */
static void test_limits(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct buf b = BUF_INIT;
    buf_add_str(&b, "{\"normalizer\":");
    for (int i = 0; i < 20; i++)
        buf_add_str(&b, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 20; i++)
        buf_add_str(&b, "]}");
    buf_add_str(&b, "," MODEL "}");
    assert_fails(tokenizer_from_json(&t, b.data, b.len, &err), Q_UNSUPPORTED, "nested deeper",
                 &err);
    buf_reset(&b);
    buf_add_str(&b, "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}");
    for (int i = 0; i < 100; i++)
        buf_add_str(&b, ",{\"type\":\"Fuse\"}");
    buf_add_str(&b, "]}," MODEL "}");
    assert_fails(tokenizer_from_json(&t, b.data, b.len, &err), Q_UNSUPPORTED, "more than 32", &err);
    buf_reset(&b);
    for (int i = 0; i < 100000; i++)
        buf_add_char(&b, '[');
    assert_fails(tokenizer_from_json(&t, b.data, b.len, &err), Q_CORRUPT, "depth", &err);
    buf_reset(&b);
    buf_add_str(&b, "{\"added_tokens\":[{\"content\":\"");
    for (int i = 0; i < 5000; i++)
        buf_add_char(&b, 'x');
    buf_add_str(&b, "\"}]," MODEL "}");
    assert_fails(tokenizer_from_json(&t, b.data, b.len, &err), Q_UNSUPPORTED, "5000 bytes", &err);
    buf_release(&b);
}

static void test_bad_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } rows[] = {
        {"\xff", "byte 0"},
        {"abcdefghijk\xc3", "byte 11"},
        {"abcdefgh\xed\xa0\x80", "byte 8"},   /* a surrogate */
        {"\xc0\x80", "byte 0"},               /* an overlong form */
        {"\u4f60\xf4\x90\x80\x80", "byte 3"}, /* beyond U+10FFFF */
    };
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    assert_ok(tokenizer_from_json(&t, WHOLE, strlen(WHOLE), &err), &err);
    assert_ok(token_list_add(&ids, 77, &err), &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum q_code rc = tokenizer_encode(t, rows[i].text, strlen(rows[i].text), true, &ids, &err);
        assert_fails(rc, Q_INVALID, rows[i].part, &err);
        assert_int_equal(ids.n, 1);
    }
    assert_ok(tokenizer_encode(t, "\uFFFD", 3, false, &ids, &err), &err); /* itself is no error */
    assert_fails(tokenizer_encode(t, "a", TOKENIZER_TEXT_MAX + 1, true, &ids, &err), Q_TOO_LARGE,
                 "67108865", &err);
    ids.n = 1;
    assert_ok(tokenizer_encode(t, "", 0, false, &ids, &err), &err);
    assert_int_equal(ids.n, 1);
    token_list_release(&ids);
    tokenizer_free(t);
}

static void test_bad_ids(void **state)
{
    (void)state;
    static const uint32_t ids[] = {0, 6, TOKEN_NONE, 1u << 24, 4, 1};
    struct tokenizer *t = NULL;
    struct buf text = BUF_INIT;
    assert_ok(tokenizer_from_json(&t, WHOLE, strlen(WHOLE), &err), &err);
    assert_ok(tokenizer_decode(t, ids, 6, false, &text, &err), &err);
    assert_string_equal(buf_str(&text), "a<s>b");
    assert_false(tokenizer_is_special(t, TOKEN_NONE));
    assert_true(tokenizer_is_special(t, 4));
    buf_release(&text);
    tokenizer_free(t);
}

static void test_missing_folder(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    assert_fails(tokenizer_open(&t, "tests/data/no-such-folder", &err), Q_NOT_FOUND,
                 "no-such-folder", &err);
}

/* Files that are no tokenizer.json, and what is wrong with each. */
static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *file, *data;
        size_t n;
        const char *config;
        enum q_code code;
        const char *part;
    } rows[] = {
#define BYTES(s) s, sizeof(s) - 1
        {"tokenizer.model", BYTES("\x0a\x7f"), "{}", Q_CORRUPT, "not a SentencePiece model"},
        {"tokenizer.model", BYTES("\x0a\x03\x0a\x01\xff"), "{}", Q_CORRUPT, "a piece"},
        {"tokenizer.model", BYTES("\x12\x02\x18\x02"), "{}", Q_CORRUPT, "no pieces"},
        {"tokenizer.model",
         BYTES("\x0a\x03\x0a\x01"
               "a\x12\x02\x18\x03"),
         "{}", Q_UNSUPPORTED, "model_type 3"},
        {"tokenizer.model",
         BYTES("\x0a\x03\x0a\x01"
               "a\x12\x03\xc0\x01\x01"),
         "{}", Q_UNSUPPORTED, "treat_whitespace_as_suffix"},
        {"tokenizer.model",
         BYTES("\x0a\x03\x0a\x01"
               "a\x12\x03\xc0\x02\x09"),
         "{}", Q_CORRUPT, "unk_id"},
        {"tokenizer.model",
         BYTES("\x0a\x03\x0a\x01"
               "a"),
         "{\"tokenizer_class\":\"XLMRobertaTokenizer\"}", Q_UNSUPPORTED, "XLMRobertaTokenizer"},
        {"tokenizer.model",
         BYTES("\x0a\x03\x0a\x01"
               "a"),
         "{\"add_bos_token\":true}", Q_CORRUPT, "bos_token \"<s>\""},
        {"tiktoken.model", BYTES("YQ== 0\n"), "{\"tokenizer_class\":\"Mystery\"}", Q_UNSUPPORTED,
         "\"Mystery\""},
        {"qwen.tiktoken", BYTES("YQ== 0\nYg 1\n"), "{}", Q_CORRUPT, "line 2: not base64"},
        {"qwen.tiktoken", BYTES("YQ== 0\nYg== x\n"), "{}", Q_CORRUPT, "line 2: not a rank"},
        {"qwen.tiktoken", BYTES("YQ== 99999999\n"), "{}", Q_CORRUPT, "line 1: not a rank"},
        {"qwen.tiktoken", BYTES("YQ== 0\n"), "{", Q_CORRUPT, "tokenizer_config.json: line 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[] = "/tmp/quire-tok-XXXXXX";
        char path[2][64];
        struct tokenizer *t = NULL;
        assert_non_null(mkdtemp(dir));
        snprintf(path[0], sizeof path[0], "%s/%s", dir, rows[i].file);
        snprintf(path[1], sizeof path[1], "%s/tokenizer_config.json", dir);
        assert_ok(file_write(path[0], rows[i].data, rows[i].n, 0600, &err), &err);
        assert_ok(file_write(path[1], rows[i].config, strlen(rows[i].config), 0600, &err), &err);
        enum q_code rc = tokenizer_open(&t, dir, &err);
        tokenizer_free(t);
        assert_fails(rc, rows[i].code, rows[i].part, &err);
        unlink(path[0]);
        unlink(path[1]);
        rmdir(dir);
    }
}

/* Added tokens that only tokenizer_config.json lists, as in older folders; and that file broken. */
static void test_config_tokens(void **state)
{
    (void)state;
    static const char config[] = "{\"model_max_length\":1000000000000000019884624838656,\"added_"
                                 "tokens_decoder\":{\"4\":{\"content\":\"<s>\",\"special\":false},"
                                 "\"6\":{\"content\":\"<new>\",\"special\":true}}}";
    char dir[] = "/tmp/quire-tok-XXXXXX";
    char path[2][64];
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    assert_non_null(mkdtemp(dir));
    snprintf(path[0], sizeof path[0], "%s/tokenizer.json", dir);
    snprintf(path[1], sizeof path[1], "%s/tokenizer_config.json", dir);
    assert_ok(file_write(path[0], WHOLE, strlen(WHOLE), 0600, &err), &err);
    assert_ok(file_write(path[1], config, strlen(config), 0600, &err), &err);
    assert_ok(tokenizer_open(&t, dir, &err), &err);
    assert_ok(tokenizer_encode(t, "a<new>", 6, false, &ids, &err), &err);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[1], 6);
    assert_true(tokenizer_is_special(t, 6));
    assert_true(tokenizer_is_special(t, 4)); /* tokenizer.json has it: it decides */
    tokenizer_free(t);
    t = NULL;
    assert_ok(file_write(path[1], config, 30, 0600, &err), &err);
    assert_fails(tokenizer_open(&t, dir, &err), Q_CORRUPT, "tokenizer_config.json", &err);
    unlink(path[0]);
    unlink(path[1]);
    rmdir(dir);
    token_list_release(&ids);
}

/* A word of a million equal characters, alone and as spaces, takes no time worth measuring. */
static void test_long_words(void **state)
{
    (void)state;
    static const char fills[] = "a \n\tA";
    struct tokenizer *t = NULL;
    size_t n = 1u << 20;
    char *text = malloc(n);
    assert_ok(tokenizer_open(&t, "tests/data/tokenizers/qwen2", &err), &err);
    for (size_t i = 0; i < sizeof fills - 1; i++) {
        struct token_list ids = TOKEN_LIST_INIT;
        struct buf back = BUF_INIT;
        memset(text, fills[i], n);
        text[n - 1] = 'x';
        assert_ok(tokenizer_encode(t, text, n, false, &ids, &err), &err);
        assert_ok(tokenizer_decode(t, ids.ids, ids.n, false, &back, &err), &err);
        assert_int_equal(back.len, n);
        assert_memory_equal(back.data, text, n);
        token_list_release(&ids);
        buf_release(&back);
    }
    free(text);
    tokenizer_free(t);
}

/* Load, encode, decode, stream and stop with the n-th allocation failing. */
static enum q_code everything(struct q_err *e)
{
    enum q_code rc;
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf text = BUF_INIT;
    struct buf sent = BUF_INIT;
    struct detok *d = NULL;
    struct stop *s = NULL;
    static const char *const stops[] = {"abab", "zz"};
    int hit = -1;
    char word[300]; /* long enough for the heap */
    for (size_t i = 0; i < sizeof word; i++)
        word[i] = "ab"[i & 1];
    if ((rc = tokenizer_from_json(&t, WHOLE, strlen(WHOLE), e)) ||
        (rc = tokenizer_encode(t, "e\u0301 \u00e9 ab c <s>baza", 19, true, &ids, e)) ||
        (rc = tokenizer_encode(t, word, sizeof word, true, &ids, e)) ||
        (rc = tokenizer_decode(t, ids.ids, ids.n, false, &text, e)) ||
        (rc = detok_new(&d, t, true, e)) || (rc = stop_new(&s, stops, 2, false, e)) ||
        (rc = detok_push(d, 2, &sent, e)) || (rc = detok_flush(d, &sent, e)) ||
        (rc = stop_push(s, "xxab", 4, &sent, &hit, e)) || (rc = stop_flush(s, &sent, e)))
        goto out;
    assert_string_equal(buf_str(&sent), "abxxab");
out:
    detok_free(d);
    stop_free(s);
    buf_release(&text);
    buf_release(&sent);
    token_list_release(&ids);
    tokenizer_free(t);
    return rc;
}

/* Fails the n-th allocation for n = 0, 1, … until all goes well; returns that n. */
static int64_t fail_each(void)
{
    int64_t n = 0;
    for (enum q_code rc = Q_NO_MEMORY; rc != Q_OK; n++) {
        assert_true(n < 100000);
        mem_fail_after(n);
        rc = everything(&err);
        mem_fail_after(-1);
        if (rc != Q_OK)
            assert_fails(rc, Q_NO_MEMORY, "", &err);
    }
    return n;
}

static void test_no_memory(void **state)
{
    (void)state;
    int64_t n = fail_each();
    assert_true(n > 50); /* it did reach into loading */
    json_use_mem();      /* jansson's memory too */
    assert_true(fail_each() > n);
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),      cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_bad_text),   cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_long_words), cmocka_unit_test(test_missing_folder),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_config_tokens),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
