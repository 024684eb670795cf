/* SPDX-License-Identifier: Apache-2.0 */
/* "%s" % x and "{}".format(x). Both parse a specification into one struct and share the code for
 * padding and numbers. */
#include <math.h>
#include "common/utf8.h"
#include "common/template/builtins.h"

#define WIDTH_MAX (1 << 20) /* of a field or a precision */

struct spec {
    bool left, plus, blank, alternate, zero, comma, underscore;
    char align; /* '<' '>' '^' '=' or 0; str.format only */
    uint32_t fill;
    int64_t width, precision; /* precision -1: not given */
    char type;                /* 0: none */
    bool percent_style;
};

/* ---- putting a field together ---- */

/* sign and prefix ("-", "0x"), then the body, padded to the width. Numbers go right by default,
 * text left. */
static enum q_code put_field(struct interp *in, const struct spec *s, const char *prefix,
                             const char *body, size_t n, bool number)
{
    int64_t length = (int64_t)(strlen(prefix) + utf8_count(body, n)),
            pad = s->width > length ? s->width - length : 0;
    bool zero = s->zero && number && !s->left && (!s->align || s->align == '=');
    bool inner = zero || s->align == '=';
    bool right = s->percent_style ? !s->left : s->align ? s->align == '>' : number;
    int64_t before = s->align == '^' ? pad / 2 : right ? pad : 0;
    uint32_t fill = zero ? '0' : s->fill ? s->fill : ' ';
    if (inner)
        before = 0;
    enum q_code rc = print_fill(in, before, fill);
    buf_add_str(&in->out, prefix);
    if (!rc && inner)
        rc = print_fill(in, pad, fill);
    buf_add(&in->out, body, n);
    return rc || inner ? rc : print_fill(in, pad - before, fill);
}

/* Thousands separators into the digits of a number up to its end or point. */
static size_t group_digits(char *text, size_t n, size_t size, char mark)
{
    size_t n_int = strspn(text, "0123456789");
    for (size_t at = n_int; at > 3 && n + 1 < size; n++) {
        at -= 3;
        memmove(text + at + 1, text + at, n - at + 1);
        text[at] = mark;
    }
    return n;
}

static enum q_code put_int(struct interp *in, const struct spec *s, int64_t value)
{
    char body[128], prefix[4] = "";
    uint64_t u = value < 0 ? -(uint64_t)value : (uint64_t)value;
    size_t n = 0, n_prefix = 0;
    if (s->precision > 100)
        return in_raise(in, "ValueError", "precision of more than 100 digits");
    unsigned base = s->type == 'x' || s->type == 'X' ? 16
                    : s->type == 'o'                 ? 8
                    : s->type == 'b'                 ? 2
                                                     : 10;
    do {
        unsigned d = (unsigned)(u % base);
        body[n++] = (char)(d < 10 ? '0' + d : (s->type == 'X' ? 'A' : 'a') + d - 10);
        u /= base;
    } while (u);
    while (s->percent_style && (int64_t)n < s->precision)
        body[n++] = '0';
    for (size_t i = 0; i < n / 2; i++) {
        char c = body[i];
        body[i] = body[n - 1 - i];
        body[n - 1 - i] = c;
    }
    body[n] = '\0';
    if (value < 0 || s->plus || s->blank)
        prefix[n_prefix++] = value < 0 ? '-' : s->plus ? '+' : ' ';
    if (s->alternate && base != 10) {
        prefix[n_prefix++] = '0';
        prefix[n_prefix++] = s->type;
    }
    if (s->comma || s->underscore)
        n = group_digits(body, n, sizeof body, s->comma ? ',' : '_');
    return put_field(in, s, prefix, body, n, true);
}

static enum q_code put_float(struct interp *in, const struct spec *s, double value)
{
    char text[512], prefix[2] = "", conversion[8];
    char type = s->type == '%' ? 'f' : s->type ? s->type : 'g';
    if (s->precision > 100)
        return in_raise(in, "ValueError", "precision of more than 100 digits");
    if (s->type == '%')
        value *= 100.0;
    snprintf(conversion, sizeof conversion, s->alternate ? "%%#.*%c" : "%%.*%c", type);
    double size = fabs(value);
    struct buf shortest = BUF_INIT;
    int n;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (s->type == 0 && s->precision < 0) {
        print_float(&shortest, size);
        n = snprintf(text, sizeof text, "%s", buf_str(&shortest));
        buf_release(&shortest);
    } else {
        n = snprintf(text, sizeof text, conversion, s->precision < 0 ? 6 : (int)s->precision, size);
    }
#pragma GCC diagnostic pop
    if (n < 0 || (size_t)n + 2 >= sizeof text)
        return in_raise(in, "ValueError", "the number is too long to be formatted");
    if (s->type == '%') {
        text[n++] = '%';
        text[n] = '\0';
    }
    if (signbit(value) && !isnan(value))
        prefix[0] = '-';
    else if (s->plus || s->blank)
        prefix[0] = s->plus ? '+' : ' ';
    size_t n_text = (size_t)n;
    if (s->comma || s->underscore)
        n_text = group_digits(text, n_text, sizeof text, s->comma ? ',' : '_');
    return put_field(in, s, prefix, text, n_text, true);
}

static enum q_code put_text(struct interp *in, const struct spec *s, struct str *text)
{
    size_t n = s->precision >= 0 ? text_offset(text, (size_t)s->precision) : text->n;
    if (s->width == 0) {
        text_add(in, text, 0, n);
        return Q_OK;
    }
    size_t mark = text_mark(in);
    enum q_code rc = put_field(in, s, "", text->data, n, false);
    text_made_of(in, mark, text, 0, n);
    return rc;
}

/* ---- printf style ---- */

struct percent {
    struct interp *in;
    const struct str *format;
    size_t at; /* next byte of the format */
    struct value args;
    size_t i_arg; /* next positional one */
};

static enum q_code next_arg(struct percent *p, struct value *out)
{
    bool many = p->args.kind == V_TUPLE;
    if (many ? p->i_arg >= p->args.as.seq->n : p->i_arg > 0)
        return in_raise(p->in, "TypeError", "not enough arguments for format string");
    *out = many ? p->args.as.seq->items[p->i_arg] : p->args;
    p->i_arg++;
    return Q_OK;
}

static bool more(const struct percent *p)
{
    return p->at < p->format->n;
}

static char peek(const struct percent *p)
{
    return more(p) ? p->format->data[p->at] : '\0';
}

/* Digits, or "*" for the next argument. */
static enum q_code read_number(struct percent *p, int64_t *out)
{
    enum q_code rc;
    struct value v;
    if (peek(p) == '*') {
        p->at++;
        if ((rc = next_arg(p, &v)) || (rc = need_int(p->in, v, "* of a format", out)))
            return rc;
    } else {
        for (*out = 0; more(p) && peek(p) >= '0' && peek(p) <= '9' && *out <= WIDTH_MAX; p->at++)
            *out = *out * 10 + (peek(p) - '0');
    }
    return *out > WIDTH_MAX
               ? in_raise(p->in, "ValueError", "a width or precision over %d", WIDTH_MAX)
               : Q_OK;
}

/* Everything between "%" and the conversion letter. */
static enum q_code read_percent(struct percent *p, struct spec *s, struct value *named)
{
    enum q_code rc;
    if (peek(p) == '(') {
        const char *close = memchr(p->format->data + p->at, ')', p->format->n - p->at);
        struct value key, *found = NULL;
        if (!close)
            return in_raise(p->in, "ValueError", "incomplete format key");
        if (p->args.kind != V_DICT)
            return in_raise(p->in, "TypeError", "format requires a mapping");
        size_t end = (size_t)(close - p->format->data);
        if ((rc = text_slice(p->in, p->format, p->at + 1, end, &key)) ||
            (rc = dict_get(p->in, p->args.as.dict, key, &found)))
            return rc;
        if (!found)
            return in_raise(p->in, "KeyError", "'%.*s'", (int)(key.as.s->n < 80 ? key.as.s->n : 80),
                            key.as.s->data);
        *named = *found;
        p->at = end + 1;
    }
    for (; more(p) && peek(p) && strchr("-+ #0", peek(p)); p->at++) {
        s->left |= peek(p) == '-';
        s->plus |= peek(p) == '+';
        s->blank |= peek(p) == ' ';
        s->alternate |= peek(p) == '#';
        s->zero |= peek(p) == '0';
    }
    if ((rc = read_number(p, &s->width)))
        return rc;
    if (s->width < 0) {
        s->left = true;
        s->width = -s->width < WIDTH_MAX ? -s->width : WIDTH_MAX;
    }
    if (peek(p) == '.') {
        p->at++;
        if ((rc = read_number(p, &s->precision)))
            return rc;
        if (s->precision < 0)
            s->precision = 0;
    }
    while (more(p) && peek(p) && strchr("hlL", peek(p)))
        p->at++;
    if (!more(p))
        return in_raise(p->in, "ValueError", "incomplete format");
    s->type = p->format->data[p->at++];
    return Q_OK;
}

static enum q_code percent_number(struct interp *in, struct spec *s, struct value v)
{
    bool whole = strchr("diuxXo", s->type) != NULL;
    if (v.kind == V_UNDEF)
        return in_undefined(in, v.as.undef);
    if (!v_is_number(v) || (v.kind == V_FLOAT && strchr("xXo", s->type)))
        return in_raise(in, "TypeError", "%%%c format: a real number is required, not %s", s->type,
                        value_type_name(v));
    if (!whole)
        return put_float(in, s, v_as_float(v));
    if (v.kind == V_FLOAT && !(fabs(v.as.f) < 9.2e18))
        return in_raise(in, "OverflowError", "cannot convert float to integer");
    return put_int(in, s, v.kind == V_FLOAT ? (int64_t)v.as.f : v_as_int(v));
}

static enum q_code percent_one(struct interp *in, struct spec *s, struct value v)
{
    enum q_code rc;
    struct value made;
    struct str *text;
    size_t mark = text_mark(in);
    switch (s->type) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        return percent_number(in, s, v);
    case 's':
        return (rc = text_of(in, v, &text)) ? rc : put_text(in, s, text);
    case 'r':
    case 'a':
        if ((rc = print_repr(in, v)) || (rc = text_take(in, mark, &made)))
            return rc;
        return put_text(in, s, made.as.s);
    case 'c':
        if (v.kind == V_STR && text_chars(v.as.s) == 1)
            return put_text(in, s, v.as.s);
        if (!v_is_int(v) || v_as_int(v) < 0 || v_as_int(v) > 0x10FFFF)
            return in_raise(in, "TypeError", "%%c requires an int or a unicode character");
        buf_add_utf8(&in->out, (uint32_t)v_as_int(v));
        if ((rc = text_take(in, mark, &made)))
            return rc;
        return put_text(in, s, made.as.s);
    default:
        return in_raise(in, "ValueError", "unsupported format character '%c'", s->type);
    }
}

enum q_code format_percent(struct interp *in, struct str *format, struct value args,
                           struct value *out)
{
    enum q_code rc;
    struct percent p = {.in = in, .format = format, .args = args};
    bool used_key = false;
    size_t mark = text_mark(in);
    while (p.at < format->n) {
        const char *percent = memchr(format->data + p.at, '%', format->n - p.at);
        size_t to = percent ? (size_t)(percent - format->data) : format->n;
        text_add(in, format, p.at, to);
        p.at = to + 1;
        if (!percent)
            break;
        struct spec s = {.precision = -1, .percent_style = true};
        struct value v = {V_MISSING, {0}};
        if ((rc = read_percent(&p, &s, &v)))
            return rc;
        used_key |= v.kind != V_MISSING;
        if (s.type == '%') {
            buf_add_char(&in->out, '%');
            continue;
        }
        if ((v.kind == V_MISSING && (rc = next_arg(&p, &v))) || (rc = percent_one(in, &s, v)))
            return rc;
    }
    bool all_used = args.kind == V_TUPLE
                        ? p.i_arg == args.as.seq->n
                        : p.i_arg > 0 || used_key || args.kind == V_DICT || args.kind == V_LIST;
    if (!all_used)
        return in_raise(in, "TypeError", "not all arguments converted during string formatting");
    return text_take(in, mark, out);
}

/* ---- str.format ---- */

struct braces {
    struct interp *in;
    const struct str *format;
    const struct seq *args;
    const struct dict *named;
    int64_t i_auto; /* next automatic number; -1 once explicit numbers were used */
};

/* "[[fill]align][sign][#][0][width][,_][.precision][type]" */
static enum q_code read_spec(struct interp *in, const struct str *text, struct spec *s)
{
    const char *p = text->data, *end = p + text->n;
    uint32_t first = 0;
    size_t step = text->n ? utf8_decode(p, text->n, &first) : 0;
    *s = (struct spec){.precision = -1};
    if (text->n > step && p[step] && strchr("<>^=", p[step])) {
        s->fill = first;
        s->align = p[step];
        p += step + 1;
    } else if (text->n && *p && strchr("<>^=", *p)) {
        s->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) {
        s->plus = *p == '+';
        s->blank = *p++ == ' ';
    }
    if (p < end && *p == '#')
        s->alternate = (p++, true);
    if (p < end && *p == '0')
        s->zero = (p++, true);
    for (; p < end && *p >= '0' && *p <= '9' && s->width <= WIDTH_MAX; p++)
        s->width = s->width * 10 + (*p - '0');
    for (; p < end && (*p == ',' || *p == '_'); p++)
        *(*p == ',' ? &s->comma : &s->underscore) = true;
    if (p < end && *p == '.')
        for (s->precision = 0, p++; p < end && *p >= '0' && *p <= '9' && s->precision <= WIDTH_MAX;
             p++)
            s->precision = s->precision * 10 + (*p - '0');
    if (p < end)
        s->type = *p++;
    if (p < end || s->width > WIDTH_MAX || s->precision > WIDTH_MAX)
        return in_raise(in, "ValueError", "Invalid format specifier");
    return Q_OK;
}

static enum q_code put_spec(struct interp *in, const struct str *text, struct value v)
{
    enum q_code rc;
    struct spec s;
    struct str *shown;
    if ((rc = read_spec(in, text, &s)))
        return rc;
    if (v.kind == V_UNDEF && text->n)
        return in_undefined(in, v.as.undef);
    bool as_float = s.type && strchr("eEfFgG%", s.type);
    if (v_is_number(v) && (v.kind == V_FLOAT || as_float) && s.type != 's')
        return !s.type || as_float
                   ? put_float(in, &s, v_as_float(v))
                   : in_raise(in, "ValueError",
                              "Unknown format code '%c' for object of type 'float'", s.type);
    if (v.kind == V_INT || (v.kind == V_BOOL && s.type)) {
        if (s.type && !strchr("dxXobn", s.type))
            return in_raise(in, "ValueError", "Unknown format code '%c' for object of type 'int'",
                            s.type);
        return put_int(in, &s, v_as_int(v));
    }
    if (s.type && s.type != 's')
        return in_raise(in, "ValueError", "Unknown format code '%c' for object of type '%s'",
                        s.type, value_type_name(v));
    if (v.kind != V_STR && v.kind != V_BOOL && text->n)
        return in_raise(in, "TypeError", "unsupported format string passed to %s.__format__",
                        value_type_name(v));
    return (rc = text_of(in, v, &shown)) ? rc : put_text(in, &s, shown);
}

/* The object of a field name "0", "", "name", then its ".attr" and "[key]" parts. */
static enum q_code field_object(struct braces *b, const struct str *field, struct value *out)
{
    enum q_code rc;
    size_t n = 0, digits = 0;
    while (n < field->n && field->data[n] != '.' && field->data[n] != '[')
        n++;
    int64_t index = 0;
    for (; digits < n && field->data[digits] >= '0' && field->data[digits] <= '9' && digits < 9;
         digits++)
        index = index * 10 + (field->data[digits] - '0');
    if (digits == n) {
        if (n == 0 ? b->i_auto < 0 : b->i_auto > 0)
            return in_raise(b->in, "ValueError", "cannot mix manual and automatic field numbering");
        index = n == 0 ? b->i_auto++ : index;
        b->i_auto = n == 0 ? b->i_auto : -1;
        if (index >= (int64_t)b->args->n)
            return in_raise(b->in, "IndexError",
                            "Replacement index %lld out of range for positional args tuple",
                            (long long)index);
        *out = b->args->items[index];
    } else {
        struct value key, *found;
        if ((rc = text_slice(b->in, field, 0, n, &key)) ||
            (rc = dict_get(b->in, b->named, key, &found)))
            return rc;
        if (!found)
            return in_raise(b->in, "KeyError", "'%.*s'", (int)(n < 80 ? n : 80), field->data);
        *out = *found;
    }
    while (n < field->n) {
        bool item = field->data[n] == '[';
        size_t from = ++n;
        while (n < field->n &&
               (item ? field->data[n] != ']' : field->data[n] != '.' && field->data[n] != '['))
            n++;
        struct value key;
        int64_t number;
        if ((rc = text_slice(b->in, field, from, n, &key)))
            return rc;
        if (item && parse_python_int(key.as.s, 10, &number))
            key = v_int(number);
        if ((rc = item ? get_item(b->in, *out, key, out) : get_attr(b->in, *out, key, out)))
            return rc;
        if (out->kind == V_UNDEF)
            return in_undefined(b->in, out->as.undef);
        n += item;
    }
    return Q_OK;
}

/* One replacement field, the text between its braces. */
static enum q_code put_replacement(struct braces *b, const struct str *inside)
{
    enum q_code rc;
    const char *colon = memchr(inside->data, ':', inside->n),
               *bang = memchr(inside->data, '!', inside->n);
    size_t n_name = colon ? (size_t)(colon - inside->data) : inside->n;
    char conversion = 0;
    if (bang && (!colon || bang < colon)) {
        conversion = (size_t)(bang - inside->data) + 1 < inside->n ? bang[1] : 0;
        n_name = (size_t)(bang - inside->data);
    }
    struct value name, spec, v;
    size_t spec_at = colon ? (size_t)(colon - inside->data) + 1 : inside->n;
    if ((rc = text_slice(b->in, inside, 0, n_name, &name)) ||
        (rc = text_slice(b->in, inside, spec_at, inside->n, &spec)) ||
        (rc = field_object(b, name.as.s, &v)))
        return rc;
    if (memchr(spec.as.s->data, '{', spec.as.s->n) &&
        (rc = format_braces(b->in, spec.as.s,
                            (struct value[]){v_seq(V_TUPLE, (struct seq *)b->args),
                                             v_dict((struct dict *)b->named)},
                            &spec)))
        return rc;
    if (conversion == 'r' || conversion == 'a' || conversion == 's') {
        size_t mark = text_mark(b->in);
        if ((rc = conversion == 's' ? print_str(b->in, v) : print_repr(b->in, v)) ||
            (rc = text_take(b->in, mark, &v)))
            return rc;
    } else if (conversion) {
        return in_raise(b->in, "ValueError", "Unknown conversion specifier '%c'", conversion);
    }
    return put_spec(b->in, spec.as.s, v);
}

/* args: the positional ones (tuple) and the named ones (dict). */
static enum q_code braces_run(struct braces *b)
{
    enum q_code rc;
    const struct str *f = b->format;
    for (size_t i = 0; i < f->n; i++) {
        char c = f->data[i];
        bool doubled = i + 1 < f->n && f->data[i + 1] == c;
        if ((c != '{' && c != '}') || doubled) {
            text_add(b->in, f, i, i + 1);
            i += (c == '{' || c == '}') && doubled;
            continue;
        }
        if (c == '}')
            return in_raise(b->in, "ValueError", "Single '}' encountered in format string");
        size_t depth = 1, end = i + 1;
        for (; end < f->n && depth; end++)
            depth = f->data[end] == '{' ? depth + 1 : f->data[end] == '}' ? depth - 1 : depth;
        if (depth)
            return in_raise(b->in, "ValueError", "expected '}' before end of string");
        struct value inside;
        if ((rc = in_charge(b->in, 1)) || (rc = text_slice(b->in, f, i + 1, end - 1, &inside)) ||
            (rc = put_replacement(b, inside.as.s)))
            return rc;
        i = end - 1;
    }
    return in_charge(b->in, f->n / 16);
}

enum q_code format_braces(struct interp *in, struct str *format, const struct value *args,
                          struct value *out)
{
    struct braces b = {in, format, args[0].as.seq, args[1].as.dict, 0};
    size_t mark = text_mark(in);
    enum q_code rc = in_enter(in);
    if (!rc)
        rc = braces_run(&b);
    in_leave(in);
    return rc ? rc : text_take(in, mark, out);
}
