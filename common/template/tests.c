/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of `x is …`. */
#include "common/template/builtins.h"

static enum q_code yes_if(bool yes, struct value *out)
{
    *out = v_bool(yes);
    return Q_OK;
}

#define KIND_TEST(name, condition)                                                       \
    enum q_code test_##name(struct interp *in, const struct value *a, struct value *out) \
    {                                                                                    \
        (void)in;                                                                        \
        return yes_if(condition, out);                                                   \
    }

KIND_TEST(boolean, a[0].kind == V_BOOL)
KIND_TEST(defined, a[0].kind != V_UNDEF)
KIND_TEST(undefined, a[0].kind == V_UNDEF)
KIND_TEST(none, a[0].kind == V_NONE)
KIND_TEST(true, a[0].kind == V_BOOL && a[0].as.b)
KIND_TEST(false, a[0].kind == V_BOOL && !a[0].as.b)
KIND_TEST(integer, a[0].kind == V_INT)
KIND_TEST(float, a[0].kind == V_FLOAT)
KIND_TEST(number, v_is_number(a[0]))
KIND_TEST(string, a[0].kind == V_STR)
KIND_TEST(mapping, a[0].kind == V_DICT)
KIND_TEST(iterable, op_iterable(a[0]))
KIND_TEST(escaped, a[0].kind == V_STR && a[0].as.s->markup)
KIND_TEST(callable, a[0].kind == V_MACRO || a[0].kind == V_FUNC || a[0].kind == V_METHOD ||
                        a[0].kind == V_JOINER || a[0].kind == V_BLOCK || a[0].kind == V_LOOP ||
                        a[0].kind == V_UNDEF)
KIND_TEST(sequence, a[0].kind == V_STR || a[0].kind == V_LIST || a[0].kind == V_TUPLE ||
                        a[0].kind == V_DICT || a[0].kind == V_RANGE || a[0].kind == V_UNDEF)
/* Is it the name of a filter or test? */
static enum q_code name_test(struct interp *in, struct value v,
                             const struct native *(*find)(const char *, size_t), struct value *out)
{
    uint64_t hash;
    enum q_code rc = op_hash(in, v, &hash);
    return rc ? rc : yes_if(v.kind == V_STR && find(v.as.s->data, v.as.s->n), out);
}

enum q_code test_filter(struct interp *in, const struct value *a, struct value *out)
{
    return name_test(in, a[0], filter_find, out);
}

enum q_code test_test(struct interp *in, const struct value *a, struct value *out)
{
    return name_test(in, a[0], test_find, out);
}

static enum q_code remainder_is(struct interp *in, struct value v, struct value divisor,
                                int64_t want, struct value *out)
{
    const struct value operands[2] = {v, divisor};
    struct value rest;
    bool same;
    enum q_code rc;
    if ((rc = op_binary(in, OP_MOD, operands, &rest)) ||
        (rc = op_equal(in, rest, v_int(want), &same)))
        return rc;
    return yes_if(same, out);
}

enum q_code test_odd(struct interp *in, const struct value *a, struct value *out)
{
    return remainder_is(in, a[0], v_int(2), 1, out);
}

enum q_code test_even(struct interp *in, const struct value *a, struct value *out)
{
    return remainder_is(in, a[0], v_int(2), 0, out);
}

enum q_code test_divisibleby(struct interp *in, const struct value *a, struct value *out)
{
    return remainder_is(in, a[0], a[1], 0, out);
}

/* Identity. Values without identity of their own (numbers, text) count as the same object when they
 * are equal. */
enum q_code test_sameas(struct interp *in, const struct value *a, struct value *out)
{
    bool same = a[0].kind == a[1].kind;
    enum q_code rc = Q_OK;
    if (same && (a[0].kind == V_LIST || a[0].kind == V_TUPLE || a[0].kind == V_DICT))
        same = a[0].as.seq == a[1].as.seq;
    else if (same)
        rc = op_equal(in, a[0], a[1], &same);
    *out = v_bool(same);
    return rc;
}

enum q_code test_in(struct interp *in, const struct value *a, struct value *out)
{
    bool yes;
    enum q_code rc = op_contains(in, a[1], a[0], &yes);
    *out = v_bool(yes);
    return rc;
}

static enum q_code case_test(struct interp *in, struct value v, native_fn *method,
                             struct value *out)
{
    struct str *s;
    enum q_code rc = text_of(in, v, &s);
    const struct value self = v_str(s);
    return rc ? rc : method(in, &self, out);
}

enum q_code test_lower(struct interp *in, const struct value *a, struct value *out)
{
    return case_test(in, a[0], method_str_islower, out);
}

enum q_code test_upper(struct interp *in, const struct value *a, struct value *out)
{
    return case_test(in, a[0], method_str_isupper, out);
}

#define COMPARE_TEST(name, op)                                                           \
    enum q_code test_##name(struct interp *in, const struct value *a, struct value *out) \
    {                                                                                    \
        bool yes = false;                                                                \
        enum q_code rc = op_compare(in, op, a, &yes);                                    \
        *out = v_bool(yes);                                                              \
        return rc;                                                                       \
    }

COMPARE_TEST(eq, OP_EQ)
COMPARE_TEST(ne, OP_NE)
COMPARE_TEST(lt, OP_LT)
COMPARE_TEST(le, OP_LE)
COMPARE_TEST(gt, OP_GT)
COMPARE_TEST(ge, OP_GE)
