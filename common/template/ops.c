/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic with Python's results: / always gives a float, // and % round towards minus infinity,
 * bools are integers. Integers have 64 bits; results beyond that raise OverflowError. */
#include <math.h>
#include "common/template/text.h"

#define REPEAT_MAX (1u << 30) /* bytes or items of "x" * n, before the memory limit says no */

static const char *const op_text[] = {
    [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",           [OP_DIV] = "/",
    [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "** or pow()",
};

static enum q_code overflow(struct interp *in)
{
    return in_raise(in, "OverflowError", "the result needs an integer of more than 64 bits");
}

static enum q_code bad_operands(struct interp *in, enum node_op op, const struct value v[2])
{
    for (int i = 0; i < 2; i++)
        if (v[i].kind == V_UNDEF)
            return in_undefined(in, v[i].as.undef);
    return in_raise(in, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'",
                    op_text[op], value_type_name(v[0]), value_type_name(v[1]));
}

static enum q_code zero_division(struct interp *in, enum node_op op, bool is_float)
{
    return in_raise(in, "ZeroDivisionError", "%s",
                    op == OP_DIV ? (is_float ? "float division by zero" : "division by zero")
                    : op == OP_MOD && !is_float ? "integer modulo by zero"
                    : op == OP_MOD              ? "float modulo"
                    : is_float                  ? "float floor division by zero"
                                                : "integer division or modulo by zero");
}

static enum q_code int_power(struct interp *in, int64_t base, int64_t exponent, struct value *out)
{
    int64_t result = 1;
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return overflow(in);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return overflow(in);
    }
    *out = v_int(result);
    return Q_OK;
}

static enum q_code int_divide(struct interp *in, enum node_op op, int64_t a, int64_t b,
                              struct value *out)
{
    if (b == 0)
        return zero_division(in, op, false);
    if (a == INT64_MIN && b == -1)
        return overflow(in);
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    *out = v_int(op == OP_MOD ? r : q);
    return Q_OK;
}

static enum q_code int_op(struct interp *in, enum node_op op, int64_t a, int64_t b,
                          struct value *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    default:
        return int_divide(in, op, a, b, out);
    }
    *out = v_int(r);
    return over ? overflow(in) : Q_OK;
}

static double float_mod(double a, double b)
{
    double r = fmod(a, b);
    if (r != 0.0)
        return (r < 0) != (b < 0) ? r + b : r;
    return copysign(0.0, b);
}

static double float_floordiv(double a, double b)
{
    double q = (a - float_mod(a, b)) / b;
    if (q == 0.0)
        return copysign(0.0, a / b);
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1.0 : whole;
}

static enum q_code float_power(struct interp *in, double a, double b, struct value *out)
{
    if (a == 0.0 && b < 0.0)
        return in_raise(in, "ZeroDivisionError", "0.0 cannot be raised to a negative power");
    if (a < 0.0 && isfinite(a) && isfinite(b) && b != floor(b))
        return in_raise(in, "TypeError", "complex numbers are not supported");
    double r = pow(a, b);
    if (isinf(r) && isfinite(a) && isfinite(b))
        return in_raise(in, "OverflowError", "(34, 'Numerical result out of range')");
    *out = v_float(r);
    return Q_OK;
}

static enum q_code float_op(struct interp *in, enum node_op op, double a, double b,
                            struct value *out)
{
    if (b == 0.0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return zero_division(in, op, true);
    switch (op) {
    case OP_ADD:
        *out = v_float(a + b);
        return Q_OK;
    case OP_SUB:
        *out = v_float(a - b);
        return Q_OK;
    case OP_MUL:
        *out = v_float(a * b);
        return Q_OK;
    case OP_DIV:
        *out = v_float(a / b);
        return Q_OK;
    case OP_FLOORDIV:
        *out = v_float(float_floordiv(a, b));
        return Q_OK;
    case OP_MOD:
        *out = v_float(float_mod(a, b));
        return Q_OK;
    default:
        return float_power(in, a, b, out);
    }
}

static enum q_code number_op(struct interp *in, enum node_op op, const struct value v[2],
                             struct value *out)
{
    if (v[0].kind == V_FLOAT || v[1].kind == V_FLOAT)
        return float_op(in, op, v_as_float(v[0]), v_as_float(v[1]), out);
    int64_t a = v_as_int(v[0]), b = v_as_int(v[1]);
    if (op == OP_DIV)
        return b == 0 ? zero_division(in, op, false) : float_op(in, op, (double)a, (double)b, out);
    if (op == OP_POW)
        return b < 0 ? float_op(in, op, (double)a, (double)b, out) : int_power(in, a, b, out);
    return int_op(in, op, a, b, out);
}

/* ---- sequences ---- */

/* Plain text joined to Markup is escaped first. */
static enum q_code escape_operand(struct interp *in, struct str **s)
{
    struct value v;
    size_t mark = text_mark(in);
    enum q_code rc;
    if ((*s)->markup)
        return Q_OK;
    if ((rc = print_escaped(in, *s)) || (rc = text_take(in, mark, &v)))
        return rc;
    *s = v.as.s;
    return Q_OK;
}

static enum q_code str_add(struct interp *in, struct str *a, struct str *b, struct value *out)
{
    enum q_code rc;
    bool markup = a->markup || b->markup;
    if (markup && ((rc = escape_operand(in, &a)) || (rc = escape_operand(in, &b))))
        return rc;
    if ((rc = text_concat(in, a, b, out)) || !markup || out->as.s->markup)
        return rc;
    struct str *s;
    if ((rc = in_alloc(in, &s, 1, sizeof *s)))
        return rc;
    *s = *out->as.s;
    s->markup = true;
    *out = v_str(s);
    return Q_OK;
}

/* list + list. `xs = xs + [x]` in a loop is linear: the new list continues in the memory of the
 * first if that was the last one made there. */
static enum q_code seq_concat(struct interp *in, const struct value v[2], struct value *out)
{
    enum q_code rc;
    const struct seq *a = v[0].as.seq, *b = v[1].as.seq;
    struct seq *s;
    if ((rc = in_alloc(in, &s, 1, sizeof *s)) || (rc = in_charge(in, b->n)))
        return rc;
    *s = (struct seq){.items = a->items, .n = a->n, .cap = a->cap, .used = a->used};
    if (!a->used || *a->used != a->n || a->cap - a->n < b->n) {
        s->cap = a->used ? (a->n + b->n) * 2 : a->n + b->n + 4;
        if ((rc = in_alloc(in, &s->items, s->cap, sizeof *s->items)) ||
            (rc = in_alloc(in, &s->used, 1, sizeof *s->used)) || (rc = in_charge(in, a->n / 8)))
            return rc;
        if (a->n)
            memcpy(s->items, a->items, a->n * sizeof *s->items);
    }
    if (b->n)
        memmove(s->items + a->n, b->items, b->n * sizeof *s->items);
    s->n = a->n + b->n;
    *s->used = s->n;
    *out = v_seq(v[0].kind, s);
    return Q_OK;
}

static enum q_code repeat(struct interp *in, struct value of, int64_t times, struct value *out)
{
    enum q_code rc;
    size_t n = of.kind == V_STR ? of.as.s->n : of.as.seq->n, total;
    if (times < 0)
        times = 0;
    if (__builtin_mul_overflow(n, (size_t)times, &total) || total > REPEAT_MAX)
        return in_raise(in, "MemoryError", "a repetition makes more than %u elements", REPEAT_MAX);
    if (of.kind == V_STR) {
        size_t mark = text_mark(in);
        if ((rc = in_charge(in, (uint64_t)times)))
            return rc;
        for (size_t i = 0; total && i < (size_t)times; i++)
            text_add_all(in, of.as.s);
        return text_take(in, mark, out);
    }
    struct seq *s;
    if ((rc = seq_new(in, total, &s)) || (rc = in_charge(in, total)))
        return rc;
    for (size_t i = 0; i < total; i++)
        s->items[i] = of.as.seq->items[i % n];
    s->n = total;
    *out = v_seq(of.kind, s);
    return Q_OK;
}

static bool is_sequence(struct value v)
{
    return v.kind == V_STR || v.kind == V_LIST || v.kind == V_TUPLE;
}

static enum q_code op_add(struct interp *in, const struct value v[2], struct value *out)
{
    if (v[0].kind == V_STR && v[1].kind == V_STR)
        return str_add(in, v[0].as.s, v[1].as.s, out);
    if (v[0].kind == v[1].kind && is_sequence(v[0]))
        return seq_concat(in, v, out);
    if (is_sequence(v[0]) && v[1].kind != V_UNDEF)
        return in_raise(in, "TypeError", "can only concatenate %s (not \"%s\") to %s",
                        value_type_name(v[0]), value_type_name(v[1]), value_type_name(v[0]));
    return bad_operands(in, OP_ADD, v);
}

enum q_code op_binary(struct interp *in, enum node_op op, const struct value v[2],
                      struct value *out)
{
    if (v_is_number(v[0]) && v_is_number(v[1]))
        return number_op(in, op, v, out);
    if (op == OP_ADD)
        return op_add(in, v, out);
    if (op == OP_MUL && is_sequence(v[0]) && v_is_int(v[1]))
        return repeat(in, v[0], v_as_int(v[1]), out);
    if (op == OP_MUL && is_sequence(v[1]) && v_is_int(v[0]))
        return repeat(in, v[1], v_as_int(v[0]), out);
    if (op == OP_MOD && v[0].kind == V_STR)
        return format_percent(in, v[0].as.s, v[1], out);
    return bad_operands(in, op, v);
}

enum q_code op_negate(struct interp *in, struct value v, bool minus, struct value *out)
{
    if (v.kind == V_UNDEF)
        return in_undefined(in, v.as.undef);
    if (!v_is_number(v))
        return in_raise(in, "TypeError", "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                        value_type_name(v));
    if (v.kind == V_FLOAT)
        *out = v_float(minus ? -v.as.f : v.as.f);
    else if (minus && v_as_int(v) == INT64_MIN)
        return overflow(in);
    else
        *out = v_int(minus ? -v_as_int(v) : v_as_int(v));
    return Q_OK;
}
