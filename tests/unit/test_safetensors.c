/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include "folder.h"
#include "common/hub/safetensors.h"
#include "common/hub/safetensors_write.h"
#include "common/mem.h"

static struct folder f;
static struct q_err e;
static struct tensor_set *s;

static int setup(void **state)
{
    (void)state;
    folder_init(&f);
    q_err_reset(&e);
    s = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&f);
    return 0;
}

/* A file with this header and n_data bytes 0, 1, 2 … behind it. */
static void write_file(const char *name, const char *header, size_t n_data)
{
    struct buf b = BUF_INIT;
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        buf_add_char(&b, (char)(n >> 8 * i));
    buf_add_str(&b, header);
    for (size_t i = 0; i < n_data; i++)
        buf_add_char(&b, (char)i);
    folder_write(&f, name, b.data, b.len);
    buf_release(&b);
}

static void test_reads(void **state)
{
    (void)state;
    write_file(
        "model.safetensors",
        "{\"__metadata__\": {\"format\": \"pt\"}, "
        "\"b\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [4, 28]}, "
        "\"a\": {\"dtype\": \"BF16\", \"shape\": [2], \"data_offsets\": [0, 4]}, "
        "\"empty\": {\"dtype\": \"I8\", \"shape\": [0, 5], \"data_offsets\": [28, 28]}, "
        "\"scalar\": {\"dtype\": \"F64\", \"shape\": [], \"data_offsets\": [28, 36]}, "
        "\"nibbles\": {\"dtype\": \"F4\", \"shape\": [3, 2], \"data_offsets\": [36, 39]}}   ",
        39);
    assert_ok(tensor_set_open(&s, f.path, &e), &e);
    assert_int_equal(tensor_count(s), 5);
    const struct tensor *t = tensor_find(s, "b");
    assert_non_null(t);
    assert_true(t->dtype == DT_F32 && t->n_dim == 2 && t->shape[0] == 2 && t->shape[1] == 3 &&
                t->n_bytes == 24);
    assert_int_equal(*(const unsigned char *)t->data, 4);
    assert_non_null(strstr(t->file, "model.safetensors"));
    assert_int_equal(tensor_find(s, "scalar")->n_bytes, 8);
    assert_int_equal(tensor_find(s, "empty")->n_bytes, 0);
    assert_int_equal(tensor_find(s, "nibbles")->n_bytes, 3);
    assert_null(tensor_find(s, "c"));
    assert_null(tensor_find(s, "__metadata__"));
    assert_string_equal(tensor_at(s, 0)->name, "a"); /* sorted */
    tensor_set_drop_pages(s);
    assert_int_equal(*(const unsigned char *)t->data, 4);
    tensor_set_free(s);
}

static void test_every_dtype(void **state)
{
    (void)state;
    for (int t = 0; t < DT_COUNT; t++) {
        char header[200];
        uint32_t n_bytes = dtype_bits((enum dtype)t); /* 8 elements of b bits are b bytes */
        snprintf(header, sizeof header,
                 "{\"x\": {\"dtype\": \"%s\", \"shape\": [8], \"data_offsets\": [0, %u]}}",
                 dtype_name((enum dtype)t), n_bytes);
        write_file("model.safetensors", header, n_bytes);
        assert_ok(tensor_set_open(&s, f.path, &e), &e);
        assert_int_equal(tensor_at(s, 0)->dtype, t);
        tensor_set_free(s);
    }
}

#define ONE(dtype, shape, offsets) \
    "{\"x\": {\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}}"

static void test_refused_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header, *part;
        size_t n_data;
    } cases[] = {
        {ONE("\"F32\"", "[2]", "[0, 8]"), "truncated", 7},
        {ONE("\"F32\"", "[2]", "[0, 8]"), "1 extra bytes after the last tensor", 9},
        {ONE("\"F32\"", "[2]", "[4, 12]"), "a gap", 12},
        {ONE("\"F32\"", "[3]", "[0, 8]"), "require 12 bytes, the data have 8", 8},
        {ONE("\"F32\"", "[2]", "[8, 0]"), "the end is before the start", 8},
        {ONE("\"F32\"", "[2]", "[-8, 0]"), "two offsets", 8},
        {ONE("\"F32\"", "[-2]", "[0, 8]"), "not a size", 8},
        {ONE("\"F32\"", "[2.0]", "[0, 8]"), "not a size", 8},
        {ONE("\"F32\"", "2", "[0, 8]"), "not a list", 8},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0, 8]"), "more than 8", 8},
        {ONE("\"F32\"", "[4611686018427387904, 4]", "[0, 0]"), "exceeds the limit", 0},
        {ONE("\"F32\"", "[2]", "[0, 9223372036854775807]"), "truncated", 8},
        {ONE("\"F32\"", "[2]", "[0, 8, 8]"), "two offsets", 8},
        {ONE("\"F32\"", "[2]", "{}"), "two offsets", 8},
        {ONE("\"F33\"", "[2]", "[0, 8]"), "dtype \"F33\"", 8},
        {ONE("7", "[2]", "[0, 8]"), "dtype \"?\"", 8},
        {ONE("\"F4\"", "[3]", "[0, 1]"), "exceeds the limit", 1},
        {"{\"x\": 3}", "not an object", 0},
        {"{\"x\": {}, \"x\": {}}", "duplicate", 0},
        {"[]", "a list", 0},
        {"", "not valid JSON", 0},
        {"{\"a\": {\"dtype\": \"I8\", \"shape\": [4], \"data_offsets\": [0, 4]}, "
         "\"b\": {\"dtype\": \"I8\", \"shape\": [4], \"data_offsets\": [2, 6]}}",
         "overlap", 6},
        {"{\"a\": {\"dtype\": \"I8\", \"shape\": [4], \"data_offsets\": [0, 4]}, "
         "\"b\": {\"dtype\": \"I8\", \"shape\": [4], \"data_offsets\": [0, 4]}}",
         "overlap", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("model.safetensors", cases[i].header, cases[i].n_data);
        assert_fails(tensor_set_open(&s, f.path, &e), Q_CORRUPT, cases[i].part, &e);
    }
}

static void test_refused_lengths(void **state)
{
    (void)state;
    static const struct {
        unsigned char bytes[12];
        size_t n;
        const char *part;
    } cases[] = {
        {{0}, 0, "is empty"},
        {{1, 2, 3}, 7, "too short"},
        {{200}, 8, "truncated"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "truncated"},
        {{255, 255, 255, 255, 255, 255, 255, 255, '{', '}'}, 10, "at most"},
        {{1, 0, 64, 6, 0, 0, 0, 0, '{', '}'}, 10, "at most"},
        {{0}, 8, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_write(&f, "model.safetensors", cases[i].bytes, cases[i].n);
        assert_fails(tensor_set_open(&s, f.path, &e), Q_CORRUPT, cases[i].part, &e);
    }
}

/* A file cut anywhere is refused. */
static void test_every_truncation(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    char path[PATH_MAX];
    write_file("model.safetensors", ONE("\"F32\"", "[2]", "[0, 8]"), 8);
    assert_ok(path_join(path, sizeof path, f.path, "model.safetensors", &e), &e);
    assert_ok(file_read(&b, path, 1000, &e), &e);
    for (size_t n = 0; n < b.len; n++) {
        folder_write(&f, "model.safetensors", b.data, n);
        assert_int_equal(tensor_set_open(&s, f.path, &e), Q_CORRUPT);
    }
    buf_release(&b);
}

static void test_sharded(void **state)
{
    (void)state;
    write_file("one.safetensors", ONE("\"I8\"", "[2]", "[0, 2]"), 2);
    write_file("two.safetensors",
               "{\"y\": {\"dtype\": \"I8\", \"shape\": [1], \"data_offsets\": [0, 1]}, "
               "\"x\": {\"dtype\": \"I8\", \"shape\": [3], \"data_offsets\": [1, 4]}}",
               4);
    const char *index = "model.safetensors.index.json";
    folder_text(&f, index,
                "{\"weight_map\": {\"x\": \"one.safetensors\", \"y\": \"two.safetensors\"}}");
    assert_ok(tensor_set_open(&s, f.path, &e), &e);
    assert_int_equal(tensor_count(s), 2);
    assert_int_equal(tensor_find(s, "x")->n_bytes,
                     2); /* the index says one, the copy in two does not count */
    tensor_set_free(s);
    static const struct {
        const char *text, *part;
        enum q_code code;
    } cases[] = {
        {"{\"weight_map\": {\"x\": \"one.safetensors\", \"z\": \"two.safetensors\"}}",
         "does not contain it", Q_CORRUPT},
        {"{\"weight_map\": {\"x\": \"three.safetensors\"}}", "three.safetensors is missing",
         Q_NOT_FOUND},
        {"{\"weight_map\": {\"x\": \"../one.safetensors\"}}", "not the name of a file", Q_CORRUPT},
        {"{\"weight_map\": {\"x\": \"/etc/passwd\"}}", "not the name of a file", Q_CORRUPT},
        {"{\"weight_map\": {\"x\": 1}}", "not the name of a file", Q_CORRUPT},
        {"{\"weight_map\": {}}", "empty", Q_CORRUPT},
        {"{\"weight_map\": []}", "a list", Q_CORRUPT},
        {"{}", "nothing", Q_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_text(&f, index, cases[i].text);
        assert_fails(tensor_set_open(&s, f.path, &e), cases[i].code, cases[i].part, &e);
    }
}

#define ITEM(name) "{\"" name "\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}}"

/* Files of other names and no index: all are read, Mistral's, adapters and pickles are not. */
static void test_loose_files(void **state)
{
    (void)state;
    write_file("gptq_model-4bit-128g.safetensors", ITEM("x"), 2);
    write_file("consolidated-2.safetensors", ITEM("x"), 2);
    write_file("adapter_model.safetensors", ITEM("x"), 2);
    assert_ok(tensor_set_open(&s, f.path, &e), &e);
    assert_int_equal(tensor_count(s), 1);
    assert_string_equal(tensor_set_found(s), "gptq_model-4bit-128g.safetensors");
    tensor_set_free(s);
    write_file("m-00002-of-00002.safetensors", ITEM("z"), 2);
    assert_fails(tensor_set_open(&s, f.path, &e), Q_NOT_FOUND,
                 "m-00001-of-00002.safetensors is missing", &e);
    write_file("m-00001-of-00002.safetensors", ITEM("y"), 2);
    assert_ok(tensor_set_open_as(&s, f.path, WEIGHTS_SAFETENSORS, &e), &e);
    assert_int_equal(tensor_count(s), 3);
    assert_true(tensor_find(s, "x") && tensor_find(s, "y") && tensor_find(s, "z"));
    assert_string_equal(tensor_set_found(s), "*.safetensors");
    tensor_set_free(s);
    write_file("copy.safetensors", ITEM("y"), 2);
    assert_fails(tensor_set_open(&s, f.path, &e), Q_CORRUPT,
                 "copy.safetensors and m-00001-of-00002.safetensors: both have the tensor y", &e);
    folder_text(&f, "pytorch_model.bin", "x");
    assert_fails(tensor_set_open(&s, f.path, &e), Q_UNSUPPORTED, "pytorch_model.bin", &e);
    write_file("model.safetensors", ITEM("w"), 2); /* with the name that is meant it is alone */
    assert_ok(tensor_set_open(&s, f.path, &e), &e);
    assert_int_equal(tensor_count(s), 1);
    tensor_set_free(s);
}

static void test_nothing_there(void **state)
{
    (void)state;
    assert_fails(tensor_set_open(&s, f.path, &e), Q_NOT_FOUND, "neither model.safetensors", &e);
    folder_text(&f, "pytorch_model.bin", "x");
    assert_fails(tensor_set_open(&s, f.path, &e), Q_UNSUPPORTED, "pytorch_model.bin", &e);
    tensor_set_free(NULL);
}

static void *fail_malloc(size_t n)
{
    return q_alloc(n);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    enum q_code rc = Q_NO_MEMORY;
    json_set_alloc_funcs(fail_malloc, q_free);
    for (int64_t n = 0; rc; n++) {
        assert_true(n < 5000);
        q_err_reset(&e);
        mem_fail_after(n);
        rc = tensor_set_open(&s, "tests/data/models/llama-bf16-sharded", &e);
        mem_fail_after(-1);
        assert_true(rc == e.code);
    }
    tensor_set_free(s);
    json_set_alloc_funcs(malloc, free);
}

/* What safetensors_layout says is what the reader finds. */
static void test_layout(void **state)
{
    (void)state;
    struct safetensors_item items[] = {
        {.name = "b", .dtype = DT_BF16, .n_dim = 2, .shape = {2, 3}},
        {.name = "a \"quoted\" \xc3\xa4", .dtype = DT_F32, .n_dim = 1, .shape = {3}},
        {.name = "empty", .dtype = DT_F32, .n_dim = 2, .shape = {0, 7}},
        {.name = "scalar", .dtype = DT_I64},
        {.name = "nibbles", .dtype = DT_F4, .n_dim = 2, .shape = {3, 2}},
    };
    enum { N = sizeof items / sizeof *items };
    struct buf b = BUF_INIT;
    uint64_t n_file = 0;
    assert_ok(safetensors_layout(items, N, &b, &n_file, &e), &e);
    assert_int_equal(b.len % 8, 0);
    assert_int_equal(n_file, b.len + 12 + 12 + 0 + 8 + 3);
    while (b.len < n_file)
        buf_add_char(&b, (char)(b.len * 7));
    folder_write(&f, "model.safetensors", b.data, b.len);
    assert_ok(tensor_set_open(&s, f.path, &e), &e);
    assert_int_equal(tensor_count(s), N);
    for (size_t i = 0; i < N; i++) {
        const struct tensor *t = tensor_find(s, items[i].name);
        assert_non_null(t);
        assert_true(t->dtype == items[i].dtype && t->n_dim == items[i].n_dim);
        assert_memory_equal(t->shape, items[i].shape, t->n_dim * sizeof *t->shape);
        assert_int_equal(t->n_bytes, items[i].n_bytes);
        assert_memory_equal(t->data, b.data + items[i].at, t->n_bytes);
    }
    tensor_set_free(s);
    buf_reset(&b);
    items[3].name = "b";
    assert_fails(safetensors_layout(items, N, &b, &n_file, &e), Q_INVALID, "the name b", &e);
    items[3].name = "c";
    items[4].shape[0] = 1;
    items[4].shape[1] = 1;
    assert_fails(safetensors_layout(items, N, &b, &n_file, &e), Q_INVALID, "whole number", &e);
    items[4] = (struct safetensors_item){"x", DT_F32, 2, {UINT64_MAX / 8, 8}, 0, 0};
    assert_fails(safetensors_layout(items, N, &b, &n_file, &e), Q_INVALID, "64 bits", &e);
    for (int64_t i = 0; i < 3; i++) {
        mem_fail_after(i);
        buf_release(&b);
        const enum q_code rc = safetensors_layout(items, 4, &b, &n_file, &e);
        mem_fail_after(-1);
        assert_true(rc == Q_NO_MEMORY || i == 2);
        q_err_reset(&e);
    }
    buf_release(&b);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_layout),          IN_FOLDER(test_reads),
        IN_FOLDER(test_every_dtype),     IN_FOLDER(test_refused_headers),
        IN_FOLDER(test_refused_lengths), IN_FOLDER(test_every_truncation),
        IN_FOLDER(test_sharded),         IN_FOLDER(test_nothing_there),
        IN_FOLDER(test_loose_files),     IN_FOLDER(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
