/* SPDX-License-Identifier: Apache-2.0 */
/* kern: which variant a machine gets, and the sizes callers allocate by. The arithmetic is
 * kcheck's. */
#include "check.h"
#include "kernels/kern.h"
#include "kernels/variants.h"

static void test_caps_parse(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    uint32_t machine = kern_caps_machine(), caps = 99;
    assert_ok(kern_caps_parse(&caps, "auto", &e), &e);
    assert_int_equal(caps, machine);
    assert_ok(kern_caps_parse(&caps, "none", &e), &e);
    assert_int_equal(caps, CAP_NONE);
    assert_ok(kern_caps_parse(&caps, "avx2", &e), &e);
    assert_int_equal(caps, machine & CAP_AVX2);
    assert_ok(kern_caps_parse(&caps, "amx", &e), &e);
    assert_int_equal(caps, machine);
    assert_ok(kern_caps_parse(&caps, "avx512_bf16", &e), &e);
    assert_int_equal(caps, machine & ~(uint32_t)(CAP_AMX_INT8 | CAP_AMX_BF16));
    assert_ok(kern_caps_parse(&caps, "avx2_vnni", &e), &e);
    assert_int_equal(caps, machine & (CAP_AVX2 | CAP_AVX_VNNI));
    caps = 7;
    assert_fails(kern_caps_parse(&caps, "AVX2", &e), Q_INVALID, "\"AVX2\"", &e);
    assert_fails(kern_caps_parse(&caps, "", &e), Q_INVALID,
                 "avx512_bf16, avx512_vnni, avx512, avx2_vnni, avx2", &e);
    assert_int_equal(caps, 7); /* untouched by a failure */
}

/* Without any instruction set the table is the reference, whole. */
static void test_table_none(void **state)
{
    (void)state;
    struct kern_table t;
    kern_table_cpu(&t, CAP_NONE);
    assert_int_equal(t.caps, CAP_NONE);
#define OP(op, tolerance)          \
    assert_true(t.op == op##_ref); \
    assert_string_equal(kern_variant_name(#op, CAP_NONE), "ref");
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"
    assert_string_equal(kern_variant_name("no_such_op", CAP_NONE), "none");
}

/* With all the machine has: every slot is the function that kern_variant_name names, the last line
 * of kernels.def that fits. */
static void test_table_machine(void **state)
{
    (void)state;
    struct kern_table t;
    uint32_t n_named = 0, n_op = 0;
    kern_table_cpu(&t, UINT32_MAX);
    assert_int_equal(t.caps, kern_caps_machine());
#define OP(op, tolerance) \
    n_op++;               \
    assert_non_null(t.op);
#define IMPL(table, op, variant, needs)                                    \
    if (t.op == op##_##variant) {                                          \
        n_named++;                                                         \
        assert_int_equal(t.caps &(needs), needs);                          \
        assert_string_equal(kern_variant_name(#op, UINT32_MAX), #variant); \
    }
#include "kernels/kernels.def"
    assert_int_equal(n_named, n_op);
    if (kern_caps_machine() & CAP_AVX512)
        assert_true(t.rms_norm != rms_norm_ref);
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(packed_bytes(DT_F32, 1, 1), 64 * 4);
    assert_int_equal(packed_bytes(DT_F16, 65, 3), 128 * 3 * 2);
    assert_int_equal(packed_bytes(DT_BF16, 64, 3), 64 * 4 * 2); /* pairs along k */
    assert_true(packed_bytes(DT_F32, 200000, 100000) == (size_t)200000 * 100000 * 4); /* 75 GiB */
    assert_int_equal(packed_int8_bytes(65, 65), 2 * (64 * 128 + 64 * 4)); /* and scales */
    assert_int_equal(kern_kv_block_bytes(DT_F32, 2, 7), 2 * 16 * 7 * 4);
    assert_int_equal(kern_kv_block_bytes(DT_BF16, 2, 7), 2 * 16 * 8 * 2);
    assert_int_equal(kern_kv_block_bytes(DT_I8, 2, 7), 2 * (16 * 7 + 16 * 4)); /* and scales */
    size_t small = kern_scratch_bytes(1, 1, 64), large = kern_scratch_bytes(131072, 1, 64);
    assert_true(small > 0 && small % 64 == 0);
    assert_in_range(large, small, (size_t)3 << 19); /* it does not grow with the context */
    assert_int_equal(kern_attention_parts(131072, 32, 128, 1), 0);
    assert_int_equal(kern_attention_parts(512, 32, 128, 64), 0);
    assert_int_equal(kern_attention_parts(513, 4, 60, 2), 4 * 2 * 4 * (64 + 16));
}

/* One row of each sequence: is any of them split? */
static bool splits(const uint32_t *contexts, uint32_t n_seq, struct attention_args a, uint32_t nth)
{
    static float parts; /* its address alone is read */
    struct attention_seq seqs[4];
    assert_in_range(n_seq, 1, 4);
    for (uint32_t i = 0; i < n_seq; i++)
        seqs[i] = (struct attention_seq){.row = i, .n_query = 1, .start = contexts[i] - 1};
    a.kv_dtype = DT_BF16;
    a.seqs = seqs;
    a.n_seq = n_seq;
    a.parts = &parts;
    a.n_part = a.n_part ? a.n_part : SIZE_MAX;
    return kern_attention_splits(&a, nth);
}

/* A sequence that threads share is read in order: divided by splits, not by KV heads. */
static void test_attention_splits(void **state)
{
    const struct attention_args many = {.n_head = 12, .n_kv_head = 12, .head_dim = 64};
    const struct attention_args grouped = {.n_head = 32, .n_kv_head = 8, .head_dim = 64};
    const struct attention_args few = {.n_head = 2, .n_kv_head = 2, .head_dim = 64};
    const struct attention_args wide = {.n_head = 32, .n_kv_head = 32, .head_dim = 64};
    struct attention_args other = many;
    (void)state;
    assert_true(splits((uint32_t[]){1500}, 1, many, 2));
    assert_true(splits((uint32_t[]){1100, 1100, 1100}, 3, many, 2));
    assert_true(splits((uint32_t[]){50, 1300}, 2, many, 2));
    assert_true(splits((uint32_t[]){4500}, 1, many, 8));
    assert_false(splits((uint32_t[]){1500}, 1, many, 1));
    assert_false(splits((uint32_t[]){950}, 1, many, 2));        /* not a split for each */
    assert_false(splits((uint32_t[]){1500, 1500}, 2, many, 2)); /* a thread has a whole one */
    assert_false(splits((uint32_t[]){1500, 4}, 2, few, 2));     /* too few items to divide evenly */
    assert_false(splits((uint32_t[]){1500}, 1, many, 6));
    assert_false(splits((uint32_t[]){1500}, 1, grouped, 2)); /* arithmetic takes longer */
    assert_false(splits((uint32_t[]){1500}, 1, wide, 2));    /* more heads than an item has */
    assert_true(splits((uint32_t[]){1500}, 1, grouped, 16)); /* threads would be idle */
    assert_true(splits((uint32_t[]){1500}, 1, few, 4));
    other.window = 750;
    assert_false(splits((uint32_t[]){1500}, 1, other, 2));
    other.window = 1250;
    assert_true(splits((uint32_t[]){1500}, 1, other, 2));
    other.n_part = 100; /* no room */
    assert_false(splits((uint32_t[]){1500}, 1, other, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caps_parse),       cmocka_unit_test(test_table_none),
        cmocka_unit_test(test_table_machine),    cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_attention_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
