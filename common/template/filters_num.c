/* SPDX-License-Identifier: Apache-2.0 */
/* Filters for numbers, defaults and JSON. */
#include <errno.h>
#include <math.h>
#include "common/template/builtins.h"

/* ---- reading numbers ---- */

/* s without white space at its ends and without underscores between digits, in text[size]; 0 when
 * it cannot be. */
static size_t number_text(const struct str *s, char *text, size_t size)
{
    size_t n = 0, from = uni_skip_space(s->data, 0, s->n), to = uni_trim_space(s->data, from, s->n);
    for (size_t i = from; i < to; i++) {
        bool between = i > from && i + 1 < to && s->data[i - 1] != '_' && s->data[i + 1] != '_';
        if (s->data[i] == '_' && between)
            continue;
        if (s->data[i] == '_' || (unsigned char)s->data[i] <= ' ' ||
            (unsigned char)s->data[i] >= 0x7f || n + 1 == size)
            return 0;
        text[n++] = s->data[i];
    }
    text[n] = '\0';
    return n;
}

bool parse_python_int(const struct str *s, int base, int64_t *out)
{
    char text[128], *end;
    const char *p = text;
    size_t n = number_text(s, text, sizeof text);
    if (n == 0 || base < 0 || base == 1 || base > 36)
        return false;
    bool minus = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    char kind = p[0] == '0' ? (char)(p[1] | 0x20) : 0;
    int prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix && (base == prefix || base == 0)) {
        p += 2;
        base = prefix;
    } else if (base == 0) {
        base = 10;
    }
    if (*p == '-' || *p == '+' || *p == '\0' || (base == 16 && p[0] == '0' && (p[1] | 0x20) == 'x'))
        return false;
    errno = 0;
    long long value = strtoll(p, &end, base);
    if (*end || errno)
        return false;
    *out = minus ? -value : value;
    return true;
}

bool parse_python_float(const struct str *s, double *out)
{
    char text[512], *end;
    size_t n = number_text(s, text, sizeof text);
    if (n == 0 || strpbrk(text, "xX(")) /* strtod reads more than Python: hexadecimal, nan(…) */
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

static bool float_to_int(double f, struct value *out)
{
    if (isnan(f) || fabs(f) >= 9223372036854775808.0)
        return false;
    *out = v_int((int64_t)f);
    return true;
}

enum q_code filter_int(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    int64_t base, i;
    double f;
    if (a[0].kind == V_UNDEF)
        return in_undefined(in, a[0].as.undef);
    if ((rc = arg_int(in, a[2], 10, "base", &base)))
        return rc;
    *out = a[1].kind == V_MISSING ? v_int(0) : a[1];
    if (v_is_int(a[0]))
        *out = v_int(v_as_int(a[0]));
    else if (a[0].kind == V_FLOAT && !isfinite(a[0].as.f))
        return isnan(a[0].as.f)
                   ? Q_OK
                   : in_raise(in, "OverflowError", "cannot convert float infinity to integer");
    else if (a[0].kind == V_FLOAT)
        return float_to_int(a[0].as.f, out)
                   ? Q_OK
                   : in_raise(in, "OverflowError",
                              "the result needs an integer of more than 64 bits");
    else if (a[0].kind == V_STR &&
             parse_python_int(a[0].as.s, (int)(base < 0 || base > 36 ? 1 : base), &i))
        *out = v_int(i);
    else if (a[0].kind == V_STR && parse_python_float(a[0].as.s, &f))
        float_to_int(f, out);
    return Q_OK;
}

enum q_code filter_float(struct interp *in, const struct value *a, struct value *out)
{
    double f;
    if (a[0].kind == V_UNDEF)
        return in_undefined(in, a[0].as.undef);
    *out = a[1].kind == V_MISSING ? v_float(0.0) : a[1];
    if (v_is_number(a[0]))
        *out = v_float(v_as_float(a[0]));
    else if (a[0].kind == V_STR && parse_python_float(a[0].as.s, &f))
        *out = v_float(f);
    return Q_OK;
}

enum q_code filter_abs(struct interp *in, const struct value *a, struct value *out)
{
    if (v_is_number(a[0])) {
        bool negative = a[0].kind == V_FLOAT ? signbit(a[0].as.f) : v_as_int(a[0]) < 0;
        return op_negate(in, a[0], negative, out);
    }
    if (a[0].kind == V_UNDEF)
        return in_undefined(in, a[0].as.undef);
    return in_raise(in, "TypeError", "bad operand type for abs(): '%s'", value_type_name(a[0]));
}

/* ---- round ---- */

/* To the nearest, ties to even, of the exact decimal value: what printf does. */
static double round_common(double f, int64_t precision)
{
    char text[400];
    if (!isfinite(f) || precision > 340)
        return f;
    if (precision < 0) {
        double unit = precision < -320 ? INFINITY : pow(10.0, (double)-precision);
        double q = isinf(unit) ? 0.0 : nearbyint(f / unit);
        return q == 0.0 ? copysign(0.0, f) : q * unit;
    }
    if (precision > 30 ||
        snprintf(text, sizeof text, "%.*f", (int)precision, f) >= (int)sizeof text)
        return f;
    return strtod(text, NULL);
}

enum q_code filter_round(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    int64_t precision;
    struct str *method;
    if ((rc = arg_int(in, a[1], 0, "precision", &precision)) ||
        (rc = arg_str(in, a[2], "method", &method)))
        return rc;
    bool up = method && text_is(method, "ceil"), down = method && text_is(method, "floor");
    if (method && !up && !down && !text_is(method, "common"))
        return in_raise(in, "FilterArgumentError", "method must be common, ceil or floor");
    if (a[0].kind == V_UNDEF)
        return in_undefined(in, a[0].as.undef);
    if (!v_is_number(a[0]))
        return in_raise(in, "TypeError", "type %s doesn't define __round__ method",
                        value_type_name(a[0]));
    double f = v_as_float(a[0]);
    if (up || down) {
        double unit = pow(10.0, (double)precision);
        *out = v_float((up ? ceil(f * unit) : floor(f * unit)) / unit);
    } else if (a[0].kind == V_FLOAT) {
        *out = v_float(round_common(f, precision));
    } else {
        *out = precision < 0 ? v_int((int64_t)round_common(f, precision)) : v_int(v_as_int(a[0]));
    }
    return Q_OK;
}

enum q_code filter_filesizeformat(struct interp *in, const struct value *a, struct value *out)
{
    static const char prefixes[] = "kMGTPEZY";
    enum q_code rc;
    struct value v = {0};
    const struct value args[2] = {a[0], {V_MISSING, {0}}};
    bool binary = arg_bool(a[1], false);
    double read;
    if (a[0].kind == V_STR && !parse_python_float(a[0].as.s, &read))
        return in_raise(in, "ValueError", "could not convert string to float");
    if (a[0].kind != V_STR && a[0].kind != V_UNDEF && !v_is_number(a[0]))
        return in_raise(in, "TypeError",
                        "float() argument must be a string or a real number, not '%s'",
                        value_type_name(a[0]));
    if ((rc = filter_float(in, args, &v)))
        return rc;
    double bytes = v.as.f, base = binary ? 1024.0 : 1000.0, unit = base;
    size_t mark = text_mark(in);
    if (bytes == 1.0) {
        buf_add_str(&in->out, "1 Byte");
    } else if (bytes < base) {
        buf_printf(&in->out, "%.0f Bytes", trunc(bytes));
    } else {
        size_t i = 0;
        for (; i + 1 < sizeof prefixes - 1 && bytes >= unit * base; i++)
            unit *= base;
        char c = binary && i == 0 ? 'K' : prefixes[i];
        buf_printf(&in->out, "%.1f %c%sB", bytes / unit, c, binary ? "i" : "");
    }
    return text_take(in, mark, out);
}

/* ---- others ---- */

enum q_code filter_default(struct interp *in, const struct value *a, struct value *out)
{
    bool absent = a[0].kind == V_UNDEF || (arg_bool(a[2], false) && !op_truth(a[0]));
    *out = absent ? a[1] : a[0];
    return absent && a[1].kind == V_MISSING ? text_borrow(in, "", 0, out) : Q_OK;
}

enum q_code filter_attr(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *name;
    if ((rc = need_str(in, a[1], "attr() name", &name)))
        return rc;
    if (a[0].kind != V_DICT)
        return get_attr(in, a[0], a[1], out);
    /* unlike d.x this never looks at the items */
    bool unsafe;
    if (method_find(a[0], name, &unsafe) || unsafe)
        return get_attr(in, a[0], a[1], out);
    return undef_new(
        in, (struct undef){.kind = UNDEF_MEMBER, .owner = value_object_name(a[0]), .name = a[1]},
        out);
}

/* indent= of json.dumps: a number of blanks or a string. */
static enum q_code json_indent(struct interp *in, struct value v, const struct str **out)
{
    enum q_code rc;
    int64_t n;
    struct value blank, text;
    *out = NULL;
    if (v.kind == V_MISSING || v.kind == V_NONE)
        return Q_OK;
    if (v.kind == V_STR) {
        *out = v.as.s;
        return Q_OK;
    }
    if ((rc = need_int(in, v, "indent", &n)) || (rc = text_borrow(in, " ", 1, &blank)))
        return rc;
    const struct value operands[2] = {blank, v_int(n)};
    rc = op_binary(in, OP_MUL, operands, &text);
    *out = text.as.s;
    return rc;
}

enum q_code filter_tojson(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct value item, key;
    struct seq *pair;
    struct str *item_separator, *key_separator;
    struct json_style style = {
        .ensure_ascii = arg_bool(a[1], false),
        .sort_keys = arg_bool(a[4], false),
    };
    if ((rc = json_indent(in, a[2], &style.indent)) ||
        (rc = text_borrow(in, ", ", style.indent ? 1 : 2, &item)) ||
        (rc = text_borrow(in, ": ", 2, &key)))
        return rc;
    if (a[3].kind != V_MISSING && a[3].kind != V_NONE) {
        if ((rc = op_iterate(in, a[3], &pair)))
            return rc;
        if (pair->n != 2)
            return in_raise(in, "ValueError", "separators must be a pair");
        item = pair->items[0];
        key = pair->items[1];
    }
    if ((rc = need_str(in, item, "item separator", &item_separator)) ||
        (rc = need_str(in, key, "key separator", &key_separator)))
        return rc;
    style.item_separator = item_separator;
    style.key_separator = key_separator;
    size_t mark = text_mark(in);
    if ((rc = print_json(in, a[0], &style, 0)))
        return rc;
    return text_take(in, mark, out);
}
