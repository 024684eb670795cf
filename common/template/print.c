/* SPDX-License-Identifier: Apache-2.0 */
/* Text of values: Python's str() and repr(), and json.dumps. All three append to in->out. */
#include <math.h>
#include "common/utf8.h"
#include "common/template/text.h"
#include "common/template/unicode.h"

/* ---- floats ---- */

/* The next number of as many digits, away from zero: "1.09e+05" to "1.10e+05". False for all
 * nines. */
static bool next_decimal(char *text)
{
    size_t i = strcspn(text, "e");
    while (i-- > 0 && text[i] != '-') {
        if (text[i] == '9') {
            text[i] = '0';
        } else if (text[i] != '.') {
            text[i]++;
            return true;
        }
    }
    return false;
}

/* d.ddde±xx with the fewest digits that read back as f. Up to 15 always survive, except near the
 * smallest numbers; below a power of two, where numbers lie closer, 16 may do when rounded up. */
static void shortest(double f, char *text, size_t size)
{
    int precision = fabs(f) < 1e-300 ? 1 : 15;
    do {
        snprintf(text, size, "%.*e", precision - 1, f);
        if (strtod(text, NULL) == f)
            return;
    } while (++precision <= 16);
    if (!next_decimal(text) || strtod(text, NULL) != f)
        snprintf(text, size, "%.16e", f);
}

/* As Python lays it out: plain from 1e-4 up to 1e16. */
void print_float(struct buf *out, double f)
{
    char text[40];
    if (isnan(f) || isinf(f)) {
        buf_add_str(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    shortest(f, text, sizeof text);
    char digits[20];
    size_t n = 0;
    const char *p = text;
    if (*p == '-') {
        buf_add_char(out, '-');
        p++;
    }
    for (; *p && *p != 'e'; p++)
        if (*p != '.' && *p != ',')
            digits[n++] = *p;
    int exponent = (int)strtol(p + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (exponent < -4 || exponent >= 16) {
        buf_add(out, digits, 1);
        if (n > 1) {
            buf_add_char(out, '.');
            buf_add(out, digits + 1, n - 1);
        }
        buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
        return;
    }
    for (int i = exponent < 0 ? exponent : 0; i < (int)n || i <= exponent; i++) {
        buf_add_char(out, i >= 0 && i < (int)n ? digits[i] : '0');
        if (i == exponent)
            buf_add_char(out, '.');
    }
    if (exponent >= (int)n - 1)
        buf_add_char(out, '0');
}

/* ---- repr ---- */

static void repr_char(struct buf *out, uint32_t c, char quote)
{
    if (c == (uint32_t)quote || c == '\\')
        buf_printf(out, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        buf_printf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (uni_is_printable(c))
        buf_add_utf8(out, c);
    else
        buf_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static void repr_str(struct interp *in, const struct str *s)
{
    uint32_t c;
    struct buf *out = &in->out;
    bool single = memchr(s->data, '\'', s->n) != NULL, twice = memchr(s->data, '"', s->n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    buf_add_str(out, s->markup ? "Markup(" : "");
    buf_add_char(out, quote);
    for (size_t i = 0, step; i < s->n; i += step) {
        size_t mark = text_mark(in);
        step = utf8_decode(s->data + i, s->n - i, &c);
        repr_char(out, c, quote);
        text_made_of(in, mark, s, i, i + step);
    }
    buf_add_char(out, quote);
    buf_add_str(out, s->markup ? ")" : "");
}

static enum q_code repr_seq(struct interp *in, const struct seq *s, const char *open,
                            const char *close)
{
    enum q_code rc = Q_OK;
    buf_add_str(&in->out, open);
    for (size_t i = 0; i < s->n && !rc; i++) {
        if (i)
            buf_add_str(&in->out, ", ");
        rc = print_repr(in, s->items[i]);
    }
    buf_add_str(&in->out, close);
    return rc;
}

static enum q_code repr_dict(struct interp *in, const struct dict *d)
{
    enum q_code rc = Q_OK;
    buf_add_char(&in->out, '{');
    for (size_t i = 0; i < d->n && !rc; i++) {
        if (i)
            buf_add_str(&in->out, ", ");
        if (!(rc = print_repr(in, d->entries[i].key))) {
            buf_add_str(&in->out, ": ");
            rc = print_repr(in, d->entries[i].value);
        }
    }
    buf_add_char(&in->out, '}');
    return rc;
}

static void repr_range(struct buf *out, const struct range *r)
{
    buf_printf(out, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        buf_printf(out, ", %lld", (long long)r->step);
    buf_add_char(out, ')');
}

static enum q_code repr_view(struct interp *in, struct value v)
{
    struct seq *items;
    enum q_code rc = op_iterate(in, v, &items);
    if (rc)
        return rc;
    buf_add_str(&in->out, value_type_name(v));
    return repr_seq(in, items, "([", "])");
}

static enum q_code repr_nested(struct interp *in, struct value v)
{
    enum q_code rc;
    switch (v.kind) {
    case V_LIST:
        return repr_seq(in, v.as.seq, "[", "]");
    case V_TUPLE:
        return repr_seq(in, v.as.seq, "(", v.as.seq->n == 1 ? ",)" : ")");
    case V_DICT:
        return repr_dict(in, v.as.dict);
    case V_VIEW:
        return repr_view(in, v);
    default:
        buf_add_str(&in->out, "<Namespace ");
        rc = repr_dict(in, v.as.dict);
        buf_add_char(&in->out, '>');
        return rc;
    }
}

static void repr_object(struct buf *out, struct value v)
{
    switch (v.kind) {
    case V_LOOP:
        buf_printf(out, "<LoopContext %zu/%zu>", v.as.loop->at + 1, v.as.loop->items->n);
        return;
    case V_MACRO:
        buf_printf(out, "<Macro '%s'>", v.as.macro->def->name->data);
        return;
    case V_TEMPLATE:
        buf_add_str(out, "<TemplateReference None>");
        return;
    case V_FUNC:
        buf_printf(out, "<function %s>", v.as.func->name);
        return;
    case V_METHOD:
        buf_printf(out, "<built-in method %s of %s object>", v.as.method->row->name,
                   value_type_name(v.as.method->self));
        return;
    default:
        buf_printf(out, "<%s>", value_object_name(v));
    }
}

enum q_code print_repr(struct interp *in, struct value v)
{
    enum q_code rc;
    if ((rc = in_charge(in, 1)))
        return rc;
    switch (v.kind) {
    case V_UNDEF:
        buf_add_str(&in->out, "Undefined");
        return Q_OK;
    case V_NONE:
        buf_add_str(&in->out, "None");
        return Q_OK;
    case V_BOOL:
        buf_add_str(&in->out, v.as.b ? "True" : "False");
        return Q_OK;
    case V_INT:
        buf_printf(&in->out, "%lld", (long long)v.as.i);
        return Q_OK;
    case V_FLOAT:
        print_float(&in->out, v.as.f);
        return Q_OK;
    case V_STR:
        repr_str(in, v.as.s);
        return in_charge(in, cost_scan(v.as.s->n));
    case V_RANGE:
        repr_range(&in->out, v.as.range);
        return Q_OK;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_NAMESPACE:
        if (!(rc = in_enter(in)))
            rc = repr_nested(in, v);
        in_leave(in);
        return rc ? rc : in_output_check(in);
    default:
        repr_object(&in->out, v);
        return Q_OK;
    }
}

enum q_code print_str(struct interp *in, struct value v)
{
    if (v.kind == V_UNDEF) /* shows as nothing, whatever the reason */
        return Q_OK;
    if (v.kind != V_STR)
        return print_repr(in, v);
    text_add_all(in, v.as.s);
    return in_charge(in, cost_copy(v.as.s->n));
}

enum q_code text_of(struct interp *in, struct value v, struct str **out)
{
    enum q_code rc;
    struct value made;
    if (v.kind == V_STR) {
        *out = v.as.s;
        return Q_OK;
    }
    size_t mark = text_mark(in);
    if ((rc = print_str(in, v)) || (rc = text_take(in, mark, &made)))
        return rc;
    *out = made.as.s;
    return Q_OK;
}

enum q_code print_escaped(struct interp *in, const struct str *s)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    for (size_t i = 0; i < s->n; i++) {
        size_t k = 0;
        while (k < 5 && entities[k].c != s->data[i])
            k++;
        if (k == 5) {
            text_add(in, s, i, i + 1);
            continue;
        }
        size_t mark = text_mark(in);
        buf_add_str(&in->out, entities[k].entity);
        text_made_of(in, mark, s, i, i + 1);
    }
    return in_charge(in, cost_search(s->n));
}

/* ---- JSON ---- */

static void json_char(struct buf *out, uint32_t c, bool ensure_ascii)
{
    static const char escapes[] = "\"\"\\\\\nn\rr\tt\bb\ff";
    for (size_t i = 0; i + 1 < sizeof escapes; i += 2)
        if ((uint32_t)escapes[i] == c) {
            buf_printf(out, "\\%c", escapes[i + 1]);
            return;
        }
    if (c < 0x20 || (ensure_ascii && c > 0x7f && c < 0x10000))
        buf_printf(out, "\\u%04x", c);
    else if (ensure_ascii && c >= 0x10000)
        buf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                   0xDC00 + ((c - 0x10000) & 0x3FF));
    else
        buf_add_utf8(out, c);
}

static enum q_code json_str(struct interp *in, const struct str *s, bool ensure_ascii)
{
    uint32_t c;
    buf_add_char(&in->out, '"');
    for (size_t i = 0; i < s->n;) {
        size_t plain = i;
        while (plain < s->n && (unsigned char)s->data[plain] >= 0x20 &&
               (unsigned char)s->data[plain] < 0x80 && s->data[plain] != '"' &&
               s->data[plain] != '\\')
            plain++;
        text_add(in, s, i, plain);
        if ((i = plain) == s->n)
            break;
        size_t mark = text_mark(in), step = utf8_decode(s->data + i, s->n - i, &c);
        json_char(&in->out, c, ensure_ascii);
        text_made_of(in, mark, s, i, i + step);
        i += step;
    }
    buf_add_char(&in->out, '"');
    return in_charge(in, cost_search(s->n));
}

static enum q_code json_scalar(struct interp *in, struct value v, bool ensure_ascii)
{
    switch (v.kind) {
    case V_NONE:
        buf_add_str(&in->out, "null");
        return Q_OK;
    case V_BOOL:
        buf_add_str(&in->out, v.as.b ? "true" : "false");
        return Q_OK;
    case V_INT:
        return print_repr(in, v);
    case V_FLOAT:
        if (isnan(v.as.f) || isinf(v.as.f))
            buf_add_str(&in->out, isnan(v.as.f) ? "NaN" : v.as.f < 0 ? "-Infinity" : "Infinity");
        else
            print_float(&in->out, v.as.f);
        return Q_OK;
    case V_STR:
        return json_str(in, v.as.s, ensure_ascii);
    default:
        return in_raise(in, "TypeError", "Object of type %s is not JSON serializable",
                        value_type_name(v));
    }
}

/* A dict's key: strings as they are, numbers, bools and null as strings of their JSON form. */
static enum q_code json_key(struct interp *in, struct value key, const struct json_style *style)
{
    enum q_code rc;
    if (key.kind == V_STR)
        return json_str(in, key.as.s, style->ensure_ascii);
    if (key.kind != V_NONE && !v_is_number(key))
        return in_raise(in, "TypeError", "keys must be str, int, float, bool or None, not %s",
                        value_type_name(key));
    buf_add_char(&in->out, '"');
    rc = json_scalar(in, key, style->ensure_ascii);
    buf_add_char(&in->out, '"');
    return rc;
}

static void json_newline(struct interp *in, const struct json_style *style, size_t level)
{
    if (!style->indent)
        return;
    buf_add_char(&in->out, '\n');
    for (size_t i = 0; i < level; i++)
        text_add_all(in, style->indent);
}

static enum q_code sorted_entries(struct interp *in, const struct dict *d, struct dict *out)
{
    enum q_code rc;
    struct seq *order;
    struct value *keys;
    if ((rc = seq_new(in, d->n, &order)) || (rc = in_alloc(in, &keys, d->n, sizeof *keys)) ||
        (rc = in_alloc(in, &out->entries, d->n, sizeof *out->entries)))
        return rc;
    for (size_t i = 0; i < d->n; i++) {
        order->items[i] = v_int((int64_t)i);
        keys[i] = d->entries[i].key;
    }
    order->n = out->n = d->n;
    if ((rc = op_sort(in, order, keys, false)))
        return rc;
    for (size_t i = 0; i < d->n; i++)
        out->entries[i] = d->entries[order->items[i].as.i];
    return Q_OK;
}

static enum q_code json_dict(struct interp *in, const struct dict *d,
                             const struct json_style *style, size_t level)
{
    enum q_code rc;
    struct dict sorted = {0};
    if (style->sort_keys) {
        if ((rc = sorted_entries(in, d, &sorted)))
            return rc;
        d = &sorted;
    }
    buf_add_char(&in->out, '{');
    for (size_t i = 0; i < d->n; i++) {
        if ((rc = in_charge(in, 1 + level / 8)))
            return rc;
        if (i)
            text_add_all(in, style->item_separator);
        json_newline(in, style, level + 1);
        if ((rc = json_key(in, d->entries[i].key, style)))
            return rc;
        text_add_all(in, style->key_separator);
        if ((rc = print_json(in, d->entries[i].value, style, level + 1)))
            return rc;
    }
    if (d->n)
        json_newline(in, style, level);
    buf_add_char(&in->out, '}');
    return Q_OK;
}

static enum q_code json_list(struct interp *in, const struct seq *s, const struct json_style *style,
                             size_t level)
{
    enum q_code rc;
    buf_add_char(&in->out, '[');
    for (size_t i = 0; i < s->n; i++) {
        if ((rc = in_charge(in, 1 + level / 8)))
            return rc;
        if (i)
            text_add_all(in, style->item_separator);
        json_newline(in, style, level + 1);
        if ((rc = print_json(in, s->items[i], style, level + 1)))
            return rc;
    }
    if (s->n)
        json_newline(in, style, level);
    buf_add_char(&in->out, ']');
    return Q_OK;
}

enum q_code print_json(struct interp *in, struct value v, const struct json_style *style,
                       size_t level)
{
    enum q_code rc;
    if (v.kind != V_DICT && v.kind != V_LIST && v.kind != V_TUPLE)
        return json_scalar(in, v, style->ensure_ascii);
    if (!(rc = in_enter(in)) && !(rc = in_charge(in, 1)))
        rc = v.kind == V_DICT ? json_dict(in, v.as.dict, style, level)
                              : json_list(in, v.as.seq, style, level);
    in_leave(in);
    return rc ? rc : in_output_check(in);
}
