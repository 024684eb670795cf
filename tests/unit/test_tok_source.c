/* SPDX-License-Identifier: Apache-2.0 */
/* Which file of a folder is the tokenizer, by --tokenizer-mode too; Mistral's tekken.json and lists
 * of words and merges that are not what they should be. Right ones are in test_tok_golden. */
#include "check.h"
#include <stdlib.h>
#include <unistd.h>
#include "common/file.h"
#include "common/tokenizer/tokenizer.h"

static struct q_err err;

#define FILES_MAX 4
struct folder {
    char dir[32];
    char path[FILES_MAX][96];
    size_t n;
};

static void folder_new(struct folder *f)
{
    f->n = 0;
    snprintf(f->dir, sizeof f->dir, "/tmp/quire-tok-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
}

static void folder_add(struct folder *f, const char *name, const char *data)
{
    struct q_err e;
    assert_ok(path_join(f->path[f->n], sizeof f->path[0], f->dir, name, &e), &e);
    assert_ok(file_write(f->path[f->n], data, strlen(data), 0600, &err), &err);
    f->n++;
}

static void folder_free(struct folder *f)
{
    for (size_t i = 0; i < f->n; i++)
        unlink(f->path[i]);
    rmdir(f->dir);
}

/* The id of "a" differs between the files. */
static uint32_t id_of_a(const char *path)
{
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    assert_ok(tokenizer_open(&t, path, &err), &err);
    assert_ok(tokenizer_encode(t, "a", 1, false, &ids, &err), &err);
    assert_int_equal(ids.n, 1);
    uint32_t id = ids.ids[0];
    token_list_release(&ids);
    tokenizer_free(t);
    return id;
}

#define HF      "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":0,\"a\":1},\"merges\":[]}}"
#define WORDS   "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n"
#define VOCAB   "{\"b\":0,\"c\":1,\"a\":2}"
#define SPECIAL ",\"special_tokens\":[{\"rank\":0,\"token_str\":\"<s>\"}]"
#define CONFIG(n_vocab, n_special)                                              \
    "\"config\":{\"pattern\":\"\\\\w+|\\\\W\",\"default_vocab_size\":" #n_vocab \
    ",\"default_num_special_tokens\":" #n_special ",\"version\":\"v7\"}"
#define TEKKEN(config, vocab, rest) "{" config ",\"vocab\":[" vocab "]" rest "}"
#define TOKEN(rank, bytes)          "{\"rank\":" #rank ",\"token_bytes\":\"" bytes "\",\"token_str\":null}"

/* A tekken.json with the 256 bytes, "aa" to n_run times "a", and n special tokens. */
static void write_tekken(struct folder *f, const char *name, int n_special, int n_run)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct buf b = BUF_INIT;
    buf_printf(&b,
               "{\"config\":{\"pattern\":\"\\\\w+|\\\\W\",\"default_vocab_size\":%d,\"default_num_"
               "special_tokens\":%d,\"version\":\"v7\"}" SPECIAL ",\"vocab\":[",
               255 + n_run + n_special, n_special);
    for (int i = 0; i < 256; i++)
        buf_printf(&b, "%s{\"token_bytes\":\"%c%c==\",\"rank\":%d}", i ? "," : "", digits[i >> 2],
                   digits[(i & 3) << 4], i);
    for (int n = 2; n <= n_run; n++) {
        buf_add_str(&b, ",{\"token_bytes\":\"");
        for (int i = 0; i < n / 3; i++)
            buf_add_str(&b, "YWFh");
        buf_printf(&b, "%s\",\"rank\":%d}",
                   n % 3 == 0   ? ""
                   : n % 3 == 1 ? "YQ=="
                                : "YWE=",
                   254 + n);
    }
    buf_add_str(&b, "]}");
    folder_add(f, name, buf_str(&b));
    buf_release(&b);
}

/* The first of the known files wins over all others. */
static void test_which_file(void **state)
{
    (void)state;
    struct folder f;
    folder_new(&f);
    folder_add(&f, "vocab.txt", WORDS);
    assert_int_equal(id_of_a(f.dir), 5);
    folder_add(&f, "merges.txt", "#version: 0.2\n");
    assert_int_equal(id_of_a(f.dir), 5);
    folder_add(&f, "vocab.json", VOCAB);
    assert_int_equal(id_of_a(f.dir), 2);
    assert_int_equal(id_of_a(f.path[0]), 5); /* a file is that file */
    write_tekken(&f, "tekken.json", 10, 1);
    assert_int_equal(id_of_a(f.dir), 10 + 'a');
    unlink(f.path[--f.n]);
    folder_add(&f, "tokenizer.json", HF);
    assert_int_equal(id_of_a(f.dir), 1);
    folder_free(&f);
}

static void test_modes(void **state)
{
    (void)state;
    struct folder f;
    char path[PATH_MAX];
    static const char *const same[] = {"auto", "hf", "slow"};
    folder_new(&f);
    folder_add(&f, "tokenizer.json", HF);
    snprintf(path, sizeof path, "%s", f.dir);
    for (size_t i = 0; i < 3; i++)
        assert_ok(tokenizer_apply_mode(path, same[i], &err), &err);
    assert_string_equal(path, f.dir);
    assert_fails(tokenizer_apply_mode(path, "mistral", &err), Q_NOT_FOUND, "tekken.json", &err);
    assert_fails(tokenizer_apply_mode(path, "custom", &err), Q_UNSUPPORTED, "code of vLLM", &err);
    assert_fails(tokenizer_apply_mode(path, "rust", &err), Q_UNSUPPORTED,
                 "expected auto, hf, slow or mistral", &err);
    write_tekken(&f, "tekken_1.json", 3, 1);
    write_tekken(&f, "tekken_2.json", 7, 1); /* of several the last by name */
    assert_ok(tokenizer_apply_mode(path, "mistral", &err), &err);
    assert_string_equal(path, f.path[2]);
    assert_int_equal(id_of_a(path), 7 + 'a');
    assert_ok(tokenizer_apply_mode(path, "mistral", &err), &err); /* a file stays what it is */
    assert_string_equal(path, f.path[2]);
    folder_free(&f);
}

/* Of 60 tokens that are runs there are 1770 merges, more than two a token: the table grows. */
static void test_more_merges_than_tokens(void **state)
{
    (void)state;
    enum { RUN = 60, TEXT = 64 };
    struct folder f;
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    char text[TEXT];
    memset(text, 'a', sizeof text);
    folder_new(&f);
    write_tekken(&f, "tekken.json", 3, RUN);
    assert_ok(tokenizer_open(&t, f.dir, &err), &err);
    assert_ok(tokenizer_encode(t, text, RUN, false, &ids, &err), &err);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.ids[0], 3 + 254 + RUN);
    ids.n = 0; /* by merges: 32 of 2, 16 of 4, 8 of 8, 4 of 16, 2 of 32; there is no token of 64 */
    assert_ok(tokenizer_encode(t, text, TEXT, false, &ids, &err), &err);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 3 + 254 + 32);
    assert_int_equal(ids.ids[1], 3 + 254 + 32);
    token_list_release(&ids);
    tokenizer_free(t);
    folder_free(&f);
}

static void test_bad_files(void **state)
{
    (void)state;
#define BYTE0 TOKEN(0, "AA==")
    static const struct {
        const char *file, *data;
        enum q_code code;
        const char *part;
    } rows[] = {
        {"tekken.json", "{", Q_CORRUPT, "tekken.json: line 1"},
        {"tekken.json", "{}", Q_CORRUPT, "\"vocab\" is missing"},
        {"tekken.json", "{\"vocab\":[]}", Q_CORRUPT, "config"},
        {"tekken.json", TEKKEN("\"config\":{}", "", ""), Q_CORRUPT, "pattern"},
        {"tekken.json", TEKKEN(CONFIG(-1, 0), "", ""), Q_CORRUPT, "default_vocab_size: expected"},
        {"tekken.json", TEKKEN(CONFIG(1, 2), "", ""), Q_CORRUPT, "1 is less than"},
        {"tekken.json", TEKKEN(CONFIG(2, 0), BYTE0, SPECIAL), Q_CORRUPT, "1 special_tokens"},
        {"tekken.json", TEKKEN(CONFIG(3, 1), BYTE0, SPECIAL), Q_CORRUPT, "1 tokens"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), TOKEN(1, "AA=="), SPECIAL), Q_CORRUPT,
         "vocab[0]: its"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), TOKEN(0, "AQ=="), SPECIAL), Q_CORRUPT, "256 tokens"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), TOKEN(0, "A"), SPECIAL), Q_CORRUPT, "not base64"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), "{\"rank\":0}", SPECIAL), Q_CORRUPT, "no \"token_b"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), "7", SPECIAL), Q_CORRUPT, "vocab[0]: expected {"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), BYTE0, ",\"special_tokens\":[{\"rank\":0}]"),
         Q_CORRUPT, "special_tokens[0]"},
        {"tekken.json",
         TEKKEN(CONFIG(2, 1), BYTE0, ",\"special_tokens\":[{\"rank\":1,\"token_str\":\"x\"}]"),
         Q_CORRUPT, "its index"},
        {"tekken.json", TEKKEN(CONFIG(2, 1), BYTE0, ",\"special_tokens\":{}"), Q_CORRUPT, "array"},
        {"tekken.json", TEKKEN(CONFIG(20, 19), BYTE0, ""), Q_CORRUPT, "20 special_tokens"},
        {"tekken.json",
         "{\"config\":{\"pattern\":\"a\",\"default_vocab_size\":20,\"default_num_special_tokens\":"
         "20,\"version\":\"v11\"},\"vocab\":[]}",
         Q_CORRUPT, "up to version v7"},
        {"tekken.json",
         "{\"config\":{\"pattern\":\"a\",\"default_vocab_size\":20,\"default_num_special_tokens\":"
         "20,\"version\":\"7\"},\"vocab\":[]}",
         Q_CORRUPT, "config.version"},
        {"vocab.txt", "", Q_CORRUPT, "empty"},
        {"vocab.txt", "a\n\xff\n", Q_CORRUPT, "line 2: not UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct folder f;
        struct tokenizer *t = NULL;
        folder_new(&f);
        folder_add(&f, rows[i].file, rows[i].data);
        enum q_code rc = tokenizer_open(&t, f.dir, &err);
        tokenizer_free(t);
        assert_fails(rc, rows[i].code, rows[i].part, &err);
        folder_free(&f);
    }
}

static void test_bad_lists(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *merges, *config;
        enum q_code code;
        const char *part;
    } rows[] = {
        {"[]", "", "{}", Q_CORRUPT, "vocab.json: expected an object"},
        {"{\"a\":-1}", "", "{}", Q_CORRUPT, "vocab.json"},
        {"{", "", "{}", Q_CORRUPT, "vocab.json: line 1"},
        {VOCAB, "a\n", "{}", Q_CORRUPT, "merges.txt: line 1"},
        {VOCAB, "#version: 0.2\nb c d\n", "{}", Q_CORRUPT, "merges.txt: line 2"},
        {VOCAB, "b c\n", "{}", Q_CORRUPT, "the merged token is not in"},
        {VOCAB, "", "{\"tokenizer_class\":\"MarianTokenizer\"}", Q_UNSUPPORTED, "MarianTokenizer"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct folder f;
        struct tokenizer *t = NULL;
        folder_new(&f);
        folder_add(&f, "vocab.json", rows[i].vocab);
        folder_add(&f, "merges.txt", rows[i].merges);
        folder_add(&f, "tokenizer_config.json", rows[i].config);
        enum q_code rc = tokenizer_open(&t, f.dir, &err);
        tokenizer_free(t);
        assert_fails(rc, rows[i].code, rows[i].part, &err);
        folder_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_file),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_more_merges_than_tokens),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
