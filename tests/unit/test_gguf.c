/* SPDX-License-Identifier: Apache-2.0 */
/* The container of GGUF files, and their blocks against the floats that ggml's Python package makes
 * of them (tests/data/gguf). */
#include "check.h"
#include "common/buf.h"
#include "common/gguf/gguf_file.h"
#include "common/gguf/rows.h"
#include "common/hub/gguf_choice.h"
#include "common/hub/safetensors.h"
#include "common/mem.h"

#define DATA "tests/data/gguf/"

static struct q_err e;

/* ---- a file in memory ---- */

struct made { /* what the file is made of; 0: as a good file has it */
    uint32_t version, kind, type, n_dim, alignment;
    uint64_t n_tensor, n_value, key_length, text_length, array_length, first, second, row;
    bool same_names, same_keys, no_data;
};

static void add_number(struct buf *b, uint64_t x, uint32_t n_byte)
{
    for (uint32_t i = 0; i < n_byte; i++)
        buf_add_char(b, (char)(x >> 8 * i));
}

static void add_text(struct buf *b, const char *text, uint64_t n)
{
    add_number(b, n ? n : strlen(text), 8);
    buf_add_str(b, text);
}

static void add_tensor(struct buf *b, const char *name, const struct made *m, uint64_t offset)
{
    const uint32_t n_dim = m->n_dim ? m->n_dim : 2;
    add_text(b, name, 0);
    add_number(b, n_dim, 4);
    for (uint32_t i = 0; i < n_dim; i++)
        add_number(b, i ? 2 : m->row ? m->row : 32, 8);
    add_number(b, m->type ? m->type : 8, 4); /* Q8_0 */
    add_number(b, offset, 8);
}

/* Three values, two tensors of [2, 32] Q8_0: 68 bytes each. */
static struct buf make(const struct made *m)
{
    struct buf b = BUF_INIT;
    const uint32_t alignment = m->alignment ? m->alignment : 64;
    buf_add_str(&b, "GGUF");
    add_number(&b, m->version ? m->version : 3, 4);
    add_number(&b, m->n_tensor ? m->n_tensor : 2, 8);
    add_number(&b, m->n_value ? m->n_value : 3, 8);
    add_text(&b, "general.alignment", m->key_length);
    add_number(&b, m->kind ? m->kind : GGUF_U32, 4);
    add_number(&b, alignment, 4);
    add_text(&b, m->same_keys ? "general.alignment" : "text", 0);
    add_number(&b, GGUF_TEXT, 4);
    add_text(&b, "hello", m->text_length);
    add_text(&b, "list", 0);
    add_number(&b, GGUF_ARRAY, 4);
    add_number(&b, GGUF_I16, 4);
    add_number(&b, m->array_length ? m->array_length : 3, 8);
    for (uint32_t i = 0; i < 3; i++)
        add_number(&b, i - 1, 2);
    add_tensor(&b, "a", m, m->first);
    add_tensor(&b, m->same_names ? "a" : "b", m, m->second ? m->second : 128);
    while (b.len % 64)
        buf_add_char(&b, 0);
    for (uint32_t i = 0; i < 128 + 68 && !m->no_data; i++)
        buf_add_char(&b, (char)i);
    assert_int_equal(b.failed, Q_OK);
    return b;
}

static void test_reads(void **state)
{
    (void)state;
    const struct made m = {0};
    struct buf b = make(&m);
    struct gguf g = GGUF_INIT;
    struct gguf_text t;
    int64_t x;
    double y;
    assert_ok(gguf_read(&g, b.data, b.len, "x.gguf", &e), &e);
    assert_int_equal(g.alignment, 64);
    assert_true(gguf_text(gguf_find(&g, "text"), &t) && t.n == 5 && !memcmp(t.s, "hello", 5));
    assert_true(gguf_element_whole(gguf_find(&g, "list"), 0, &x) && x == -1);
    assert_true(gguf_element(gguf_find(&g, "list"), 2, &y) && y == 1);
    assert_false(gguf_element(gguf_find(&g, "list"), 3, &y));
    assert_false(gguf_whole(gguf_find(&g, "list"), &x) || gguf_whole(gguf_find(&g, "nothing"), &x));
    const struct gguf_tensor *a = gguf_tensor(&g, "b");
    assert_non_null(a);
    assert_true(a->n_dim == 2 && a->shape[0] == 2 && a->shape[1] == 32 && a->n_bytes == 68);
    assert_true(a->data == (unsigned char *)b.data + a->offset && a->offset % 64 == 0);
    assert_null(gguf_tensor(&g, "c"));
    gguf_release(&g);
    buf_release(&b);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        struct made made;
        enum q_code code;
        const char *part;
    } cases[] = {
        {{.version = 1}, Q_UNSUPPORTED, "version 1 is not supported, expected 2 or 3"},
        {{.version = 3u << 24}, Q_UNSUPPORTED, "big-endian"},
        {{.n_tensor = UINT64_MAX}, Q_CORRUPT, "byte 8: 18446744073709551615 tensors and 3 values"},
        {{.n_value = 1u << 20}, Q_CORRUPT, "do not fit the file"},
        {{.n_value = 4}, Q_CORRUPT, "the name of a tensor does not fit the file"},
        {{.key_length = UINT64_MAX}, Q_CORRUPT, "byte 32: a key does not fit the file"},
        {{.key_length = 1u << 16}, Q_CORRUPT, "does not fit"},
        {{.kind = 13}, Q_CORRUPT, "general.alignment has the kind 13, expected 0 to 12"},
        {{.text_length = 1 << 20}, Q_CORRUPT, "a text does not fit the file"},
        {{.array_length = (uint64_t)1 << 63}, Q_CORRUPT, "an array does not fit the file"},
        {{.alignment = 3}, Q_CORRUPT, "general.alignment is 3, expected a power of two"},
        {{.alignment = 1u << 30}, Q_CORRUPT, "up to 1048576"},
        {{.n_dim = 5}, Q_CORRUPT, "tensor a has 5 dimensions, expected 1 to 4"},
        {{.type = 4}, Q_UNSUPPORTED, "tensor a has the type 4, which is not known"},
        {{.row = 33}, Q_CORRUPT, "rows of 33 numbers are no whole blocks of 32"},
        {{.row = (uint64_t)1 << 63}, Q_CORRUPT, "are 0 or too large"},
        {{.first = 32}, Q_CORRUPT, "offset 32, expected a multiple of 64"},
        {{.second = 64}, Q_CORRUPT, "tensors a and b overlap"},
        {{.second = (uint64_t)1 << 62}, Q_CORRUPT, "tensor b ends behind the file"},
        {{.second = UINT64_MAX - 63}, Q_CORRUPT, "tensor b ends behind the file"},
        {{.no_data = true}, Q_CORRUPT, "ends behind the file"},
        {{.same_names = true}, Q_CORRUPT, "two tensors have the name a"},
        {{.same_keys = true}, Q_CORRUPT, "the key general.alignment is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = make(&cases[i].made);
        struct gguf g = GGUF_INIT;
        assert_fails(gguf_read(&g, b.data, b.len, "x.gguf", &e), cases[i].code, cases[i].part, &e);
        gguf_release(&g);
        buf_release(&b);
    }
}

/* Cut anywhere, the file is refused; and so it is when any allocation fails. */
static void test_cut_and_out_of_memory(void **state)
{
    (void)state;
    const struct made m = {0};
    struct buf b = make(&m);
    struct gguf g = GGUF_INIT;
    for (size_t n = 0; n < b.len; n++) {
        char *exact = q_alloc(n);
        memcpy(exact, b.data, n);
        assert_int_not_equal(gguf_read(&g, exact, n, "x.gguf", &e), Q_OK);
        gguf_release(&g);
        q_free(exact);
    }
    for (int64_t n = 0; n < 4; n++) {
        mem_fail_after(n);
        const enum q_code rc = gguf_read(&g, b.data, b.len, "x.gguf", &e);
        mem_fail_after(-1);
        assert_int_equal(rc, Q_NO_MEMORY);
        gguf_release(&g);
    }
    buf_release(&b);
}

/* ---- blocks ---- */

static void test_blocks(void **state)
{
    (void)state;
    struct gguf_file f = GGUF_FILE_INIT;
    struct tensor_set *want = NULL;
    assert_ok(gguf_file_open(&f, DATA "blocks.gguf", &e), &e);
    assert_ok(tensor_set_open_file(&want, DATA "blocks.safetensors", &e), &e);
    uint32_t n_type = 0;
    for (uint32_t i = 0; i < 64; i++)
        n_type += gguf_type_of(i) && gguf_type_of(i)->read_as == GGUF_BLOCKS;
    assert_int_equal(f.g.n_tensor, n_type); /* the file has all of them */
    for (uint64_t i = 0; i < f.g.n_tensor; i++) {
        const struct gguf_tensor *t = &f.g.tensors[i];
        const struct tensor *expected = tensor_find(want, t->type->name);
        float made[1024];
        assert_non_null(expected);
        assert_int_equal(expected->n_bytes, sizeof made);
        gguf_rows(made, t->type, t->data, 1024 / t->type->block);
        for (uint32_t k = 0; k < 1024; k++) {
            float x;
            memcpy(&x, (const char *)expected->data + k * sizeof x, sizeof x);
            if (made[k] != x)
                fail_msg("%s: number %u is %.9g, expected %.9g", t->type->name, k, (double)made[k],
                         (double)x);
        }
    }
    tensor_set_free(want);
    gguf_file_release(&f);
}

/* ---- names ---- */

static void test_names_of_splits(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint32_t number, count;
    assert_true(gguf_file_split(&number, &count, "/x/m-Q8_0-00002-of-00012.gguf"));
    assert_true(number == 2 && count == 12);
    assert_ok(gguf_file_split_path(path, "/x/m-Q8_0-00002-of-00012.gguf", 11, &e), &e);
    assert_string_equal(path, "/x/m-Q8_0-00011-of-00012.gguf");
    assert_false(gguf_file_split(&number, &count, "m-00003-of-00002.gguf"));
    assert_false(gguf_file_split(&number, &count, "m-00000-of-00002.gguf"));
    assert_false(gguf_file_split(&number, &count, "m-0001-of-00002.gguf"));
    assert_false(gguf_file_split(&number, &count, "-00001-of-00002.gguf.x"));
    assert_false(gguf_file_split(&number, &count, "m.gguf"));
}

/* A '-' and digits where a number would stand do not change the defaults of the caller. */
static void test_names_of_no_splits(void **state)
{
    static const char *const names[] = {
        "gemma-3-4b-it-Q4_K_M.gguf",
        "m-00003-of-00002.gguf",
        "m-00001-of-0000x.gguf",
        "m-00001-or-00002.gguf",
    };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t number = 1, count = 1;
        assert_false(gguf_file_split(&number, &count, names[i]));
        assert_true(number == 1 && count == 1);
    }
}

static void test_tags(void **state)
{
    (void)state;
    static const struct {
        const char *model, *tag;
        size_t n;
    } cases[] = {
        {"org/name:Q4_K_M", "Q4_K_M", 8},
        {"/a/b:c.d", "c.d", 4},
        {"org/name", "", 0},
        {"org/name:", "", 0},
        {":x", "", 0},
        {"a:b/c", "", 0},
        {"org/name:a b", "", 0},
        {"a/b:c:d", "d", 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *tag;
        assert_int_equal(gguf_choice_tag(&tag, cases[i].model), cases[i].n);
        assert_string_equal(tag, cases[i].tag);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_cut_and_out_of_memory),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_names_of_splits),
        cmocka_unit_test(test_names_of_no_splits),
        cmocka_unit_test(test_tags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
