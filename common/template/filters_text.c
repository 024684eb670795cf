/* SPDX-License-Identifier: Apache-2.0 */
/* Filters for text, and functions that they share with str's methods. Filters accept any value and
 * convert it with str(). */
#include "common/utf8.h"
#include "common/template/builtins.h"

/* ---- upper and lower case ---- */

struct char_at { /* a code point of s: s->data[at..at + step) */
    const struct str *s;
    size_t at, step;
};

/* c[0..n), made of one code point. */
static void add_mapped(struct interp *in, const uint32_t *c, size_t n, const struct char_at *from)
{
    size_t mark = text_mark(in);
    for (size_t i = 0; i < n; i++)
        buf_add_utf8(&in->out, c[i]);
    text_made_of(in, mark, from->s, from->at, from->at + from->step);
}

/* Is the letter before s[at] (after it, if forward) a cased one, not counting those case rules
 * ignore? */
static bool cased_neighbour(const struct str *s, size_t at, bool forward)
{
    uint32_t c;
    size_t seen = 0;
    while ((forward ? at < s->n : at > 0) && ++seen < 64) {
        if (forward) {
            at += utf8_decode(s->data + at, s->n - at, &c);
        } else {
            size_t end = at--;
            while (at > 0 && ((unsigned char)s->data[at] & 0xC0) == 0x80)
                at--;
            utf8_decode(s->data + at, end - at, &c);
        }
        if (!uni_is_case_ignorable(c))
            return uni_is_cased(c);
    }
    return false;
}

/* Lower case of the code point at s[at..at+step); sigma at the end of a word is ς. */
static size_t lower_at(const struct str *s, size_t at, size_t step, uint32_t c, uint32_t *out)
{
    if (c != 0x3A3)
        return uni_lower(c, out);
    bool final = cased_neighbour(s, at, false) && !cased_neighbour(s, at + step, true);
    out[0] = final ? 0x3C2 : 0x3C3;
    return 1;
}

void print_case(struct interp *in, const struct str *s, size_t from, size_t to, enum case_kind kind)
{
    uint32_t c, mapped[UNI_CASE_MAX];
    bool in_word = false;
    for (size_t i = from, step; i < to; i += step) {
        step = utf8_decode(s->data + i, s->n - i, &c);
        size_t n;
        if (kind == CASE_FOLD)
            n = uni_fold(c, mapped);
        else if (kind == CASE_UPPER || (kind == CASE_SWAP && uni_is_lower(c)))
            n = uni_upper(c, mapped);
        else if (kind == CASE_SWAP && !uni_is_upper(c))
            n = (mapped[0] = c, 1);
        else if (kind == CASE_LOWER || kind == CASE_SWAP || in_word)
            n = lower_at(s, i, step, c, mapped);
        else
            n = uni_title(c, mapped);
        in_word = kind == CASE_CAPITAL || uni_is_cased(c);
        add_mapped(in, mapped, n, &(struct char_at){s, i, step});
    }
}

enum q_code text_case(struct interp *in, const struct str *s, enum case_kind kind,
                      struct value *out)
{
    enum q_code rc;
    size_t mark = text_mark(in);
    print_case(in, s, 0, s->n, kind);
    if ((rc = in_charge(in, cost_scan(s->n))) || (rc = text_take(in, mark, out)))
        return rc;
    out->as.s->markup = s->markup;
    return Q_OK;
}

static enum q_code case_of(struct interp *in, struct value v, enum case_kind kind,
                           struct value *out)
{
    struct str *s;
    enum q_code rc = text_of(in, v, &s);
    return rc ? rc : text_case(in, s, kind, out);
}

enum q_code filter_upper(struct interp *in, const struct value *a, struct value *out)
{
    return case_of(in, a[0], CASE_UPPER, out);
}

enum q_code filter_lower(struct interp *in, const struct value *a, struct value *out)
{
    return case_of(in, a[0], CASE_LOWER, out);
}

enum q_code filter_capitalize(struct interp *in, const struct value *a, struct value *out)
{
    return case_of(in, a[0], CASE_CAPITAL, out);
}

/* Not str.title(): a word begins after white space, "-", "(", "{", "[" or "<" only. */
enum q_code filter_title(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s;
    uint32_t c, mapped[UNI_CASE_MAX];
    if ((rc = text_of(in, a[0], &s)))
        return rc;
    size_t mark = text_mark(in);
    bool begin = true;
    for (size_t i = 0, step; i < s->n; i += step) {
        step = utf8_decode(s->data + i, s->n - i, &c);
        size_t n = begin ? uni_upper(c, mapped) : lower_at(s, i, step, c, mapped);
        add_mapped(in, mapped, n, &(struct char_at){s, i, step});
        begin = uni_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) && c);
    }
    return (rc = in_charge(in, cost_scan(s->n))) ? rc : text_take(in, mark, out);
}

/* ---- blanks ---- */

static bool strips(uint32_t c, const struct str *chars)
{
    if (!chars)
        return uni_is_space(c);
    char bytes[4];
    size_t n = utf8_encode(c, bytes);
    return memmem(chars->data, chars->n, bytes, n) != NULL;
}

enum q_code text_strip(struct interp *in, struct str *s, const struct str *chars,
                       enum strip_side side, struct value *out)
{
    size_t from = 0, to = s->n;
    uint32_t c;
    while ((side & STRIP_LEFT) && from < to) {
        size_t step = utf8_decode(s->data + from, to - from, &c);
        if (!strips(c, chars))
            break;
        from += step;
    }
    while ((side & STRIP_RIGHT) && to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s->data[at] & 0xC0) == 0x80)
            at--;
        utf8_decode(s->data + at, to - at, &c);
        if (!strips(c, chars))
            break;
        to = at;
    }
    enum q_code rc = in_charge(in, (s->n - (to - from)) * (1 + (chars ? chars->n / 64 : 0)) / 8);
    if (rc || (rc = text_slice(in, s, from, to, out)))
        return rc;
    out->as.s->markup = s->markup;
    return Q_OK;
}

enum q_code filter_trim(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s, *chars;
    if ((rc = text_of(in, a[0], &s)) || (rc = arg_str(in, a[1], "strip arg", &chars)))
        return rc;
    return text_strip(in, s, chars, STRIP_BOTH, out);
}

#define PAD_MAX (1 << 24) /* characters of padding; more is a mistake or an attack */

enum q_code print_fill(struct interp *in, int64_t n, uint32_t c)
{
    char block[256];
    size_t n_block = 0;
    enum q_code rc = in_charge(in, n > 0 ? cost_search((size_t)n) : 0);
    if (rc)
        return rc;
    while (n_block + 4 <= sizeof block)
        n_block += utf8_encode(c, block + n_block);
    size_t unit = utf8_encode(c, block), per_block = n_block / unit;
    for (; n > 0; n -= (int64_t)per_block)
        buf_add(&in->out, block, ((size_t)n < per_block ? (size_t)n : per_block) * unit);
    return Q_OK;
}

enum q_code text_pad(struct interp *in, struct str *s, int64_t width, enum pad_side side,
                     struct value *out)
{
    enum q_code rc;
    int64_t n = width - (int64_t)text_chars(s);
    if (n > PAD_MAX)
        return in_raise(in, "MemoryError", "a width of more than %d characters", PAD_MAX);
    if (n < 0)
        n = 0;
    /* Python puts the odd blank to the left when the width is odd */
    int64_t left = side == PAD_BOTH ? n / 2 + (n & width & 1) : side == PAD_LEFT ? n : 0;
    size_t mark = text_mark(in);
    if ((rc = print_fill(in, left, ' ')))
        return rc;
    text_add_all(in, s);
    if ((rc = print_fill(in, n - left, ' ')))
        return rc;
    return text_take(in, mark, out);
}

enum q_code filter_center(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s;
    int64_t width;
    if ((rc = text_of(in, a[0], &s)) || (rc = arg_int(in, a[1], 80, "width", &width)))
        return rc;
    return text_pad(in, s, width, PAD_BOTH, out);
}

enum q_code filter_indent(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *lines;
    struct str *s, *unit = NULL;
    int64_t width = 4;
    if ((rc = need_str(in, a[0], "indent() input", &s)))
        return rc;
    if (a[1].kind == V_STR)
        unit = a[1].as.s;
    else if ((rc = arg_int(in, a[1], 4, "width", &width)))
        return rc;
    if (width > PAD_MAX)
        return in_raise(in, "MemoryError", "a width of more than %d characters", PAD_MAX);
    bool first = arg_bool(a[2], false), blank = arg_bool(a[3], false);
    if ((rc = text_split_lines(in, s, false, &lines)))
        return rc;
    /* Jinja adds a newline first: text that ends in one keeps an empty last line */
    uint32_t c = 0;
    if (s->n)
        utf8_decode(s->data + s->n - 1, 1, &c);
    bool extra = s->n == 0 || c == '\n' || c == '\r' || (c < 0x80 && uni_is_line_end(c));
    size_t n = lines->n + extra, mark = text_mark(in);
    for (size_t i = 0; i < n; i++) {
        const struct str *line = i < lines->n ? lines->items[i].as.s : NULL;
        if (i)
            buf_add_char(&in->out, '\n');
        if (i == 0 ? first : blank || (line && line->n)) {
            if (unit)
                text_add_all(in, unit);
            else if ((rc = print_fill(in, width, ' ')))
                return rc;
        }
        if (line)
            text_add_all(in, line);
    }
    return text_take(in, mark, out);
}

/* ---- replacing and cutting ---- */

/* a: text, old, new. An empty `old` stands before every character and at the end. */
enum q_code text_replace(struct interp *in, const struct value a[3], int64_t count,
                         struct value *out)
{
    enum q_code rc;
    struct str *s, *old, *new;
    if ((rc = need_str(in, a[0], "replace() input", &s)) ||
        (rc = need_str(in, a[1], "replace() argument 1", &old)) ||
        (rc = need_str(in, a[2], "replace() argument 2", &new)))
        return rc;
    size_t mark = text_mark(in), from = 0;
    int64_t done = 0;
    while (count < 0 || done < count) {
        const char *hit =
            old->n ? memmem(s->data + from, s->n - from, old->data, old->n) : s->data + from;
        if (!hit)
            break;
        size_t at = (size_t)(hit - s->data);
        text_add(in, s, from, at);
        text_add_all(in, new);
        done++;
        from = at + old->n;
        if (old->n == 0) {
            if (from == s->n)
                break;
            uint32_t c;
            size_t step = utf8_decode(s->data + from, s->n - from, &c);
            text_add(in, s, from, from + step);
            from += step;
        }
        if ((rc = in_charge(in, 1)))
            return rc;
    }
    text_add(in, s, from, s->n);
    if ((rc = in_charge(in, cost_search(s->n))))
        return rc;
    return text_take(in, mark, out);
}

enum q_code filter_replace(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    int64_t count;
    struct str *part[3];
    struct value v[3];
    if ((rc = arg_int(in, a[3], -1, "count", &count)))
        return rc;
    for (int i = 0; i < 3; i++) {
        if ((rc = text_of(in, a[i], &part[i])))
            return rc;
        v[i] = v_str(part[i]);
    }
    return text_replace(in, v, count, out);
}

/* s[:n_char] without its last word, or all of it when it is one word. */
static size_t cut_at_word(struct str *s, size_t n_char, bool kill_words)
{
    size_t end = text_offset(s, n_char);
    const char *blank = kill_words ? NULL : memrchr(s->data, ' ', end);
    return blank ? (size_t)(blank - s->data) : end;
}

/* Anything short enough passes unchanged, also what is no text. */
enum q_code filter_truncate(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s, *end;
    struct value dots;
    int64_t length, leeway;
    size_t n;
    if ((rc = arg_int(in, a[1], 255, "length", &length)) ||
        (rc = arg_int(in, a[4], 5, "leeway", &leeway)) || (rc = text_borrow(in, "...", 3, &dots)) ||
        (rc = need_str(in, a[3].kind == V_MISSING ? dots : a[3], "end", &end)))
        return rc;
    if (length < (int64_t)text_chars(end) || leeway < 0)
        return in_raise(in, "AssertionError", "expected length >= %zu, got %lld", text_chars(end),
                        (long long)length);
    *out = a[0];
    if ((rc = op_length(in, a[0], &n)) || (int64_t)n <= length + leeway ||
        (rc = need_str(in, a[0], "truncate() input", &s)))
        return rc;
    size_t mark = text_mark(in);
    text_add(in, s, 0, cut_at_word(s, (size_t)length - text_chars(end), arg_bool(a[2], false)));
    text_add_all(in, end);
    return text_take(in, mark, out);
}

/* ---- HTML ---- */

enum q_code filter_forceescape(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s;
    if ((rc = text_of(in, a[0], &s)))
        return rc;
    size_t mark = text_mark(in);
    if ((rc = print_escaped(in, s)) || (rc = text_take(in, mark, out)))
        return rc;
    out->as.s->markup = true;
    return Q_OK;
}

enum q_code filter_escape(struct interp *in, const struct value *a, struct value *out)
{
    *out = a[0];
    return a[0].kind == V_STR && a[0].as.s->markup ? Q_OK : filter_forceescape(in, a, out);
}

enum q_code filter_safe(struct interp *in, const struct value *a, struct value *out)
{
    struct str *s;
    enum q_code rc;
    if ((rc = text_of(in, a[0], &s)) || (rc = text_slice(in, s, 0, s->n, out)))
        return rc;
    out->as.s->markup = true;
    return Q_OK;
}

enum q_code filter_string(struct interp *in, const struct value *a, struct value *out)
{
    struct str *s;
    enum q_code rc = text_of(in, a[0], &s);
    *out = v_str(s);
    return rc;
}

/* One entity at s[i] ("&amp;"), or 0. */
static size_t read_entity(const struct str *s, size_t i, uint32_t *c)
{
    static const struct {
        const char *name;
        uint32_t c;
    } named[] = {
        {"amp;", '&'}, {"lt;", '<'}, {"gt;", '>'}, {"quot;", '"'}, {"apos;", '\''}, {"nbsp;", 0xA0},
    };
    const char *p = s->data + i + 1;
    size_t left = s->n - i - 1;
    for (size_t k = 0; k < sizeof named / sizeof named[0]; k++)
        if (left >= strlen(named[k].name) && memcmp(p, named[k].name, strlen(named[k].name)) == 0) {
            *c = named[k].c;
            return strlen(named[k].name) + 1;
        }
    if (left < 3 || p[0] != '#')
        return 0;
    bool hex = (p[1] | 0x20) == 'x';
    size_t at = hex ? 2 : 1, first = at;
    uint32_t code = 0;
    for (; at < left && at < 10 && p[at] != ';'; at++) {
        char d = (char)(p[at] | 0x20);
        int digit = d >= '0' && d <= '9'          ? d - '0'
                    : hex && d >= 'a' && d <= 'f' ? d - 'a' + 10
                                                  : -1;
        if (digit < 0)
            return 0;
        code = code * (hex ? 16 : 10) + (uint32_t)digit;
    }
    if (at == first || at >= left || p[at] != ';')
        return 0;
    *c = code;
    return at + 2;
}

/* Tags and comments out, white space to single blanks, entities to characters. */
enum q_code filter_striptags(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s;
    uint32_t c;
    bool gap = false, any = false;
    if ((rc = text_of(in, a[0], &s)))
        return rc;
    size_t mark = text_mark(in);
    for (size_t i = 0, step; i < s->n; i += step) {
        step = utf8_decode(s->data + i, s->n - i, &c);
        bool comment = s->n - i >= 4 && memcmp(s->data + i, "<!--", 4) == 0;
        const char *end = c != '<'  ? NULL
                          : comment ? memmem(s->data + i, s->n - i, "-->", 3)
                                    : memchr(s->data + i, '>', s->n - i);
        if (end) {
            step = (size_t)(end - s->data) - i + (comment ? 3 : 1);
            continue;
        }
        size_t entity = c == '&' ? read_entity(s, i, &c) : 0;
        step = entity ? entity : step;
        if (!entity && uni_is_space(c)) {
            gap = any;
            continue;
        }
        if (gap)
            buf_add_char(&in->out, ' ');
        gap = false;
        any = true;
        add_mapped(in, &c, 1, &(struct char_at){s, i, step});
        if ((rc = in_charge(in, c == '<' ? cost_copy(s->n - i) : 0)))
            return rc;
    }
    return (rc = in_charge(in, cost_scan(s->n))) ? rc : text_take(in, mark, out);
}

enum q_code filter_xmlattr(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    size_t mark = text_mark(in), n = 0;
    if (a[0].kind != V_DICT)
        return in_raise(in, "AttributeError", "'%s' object has no attribute 'items'",
                        value_type_name(a[0]));
    for (size_t i = 0; i < a[0].as.dict->n; i++) {
        struct dict_entry *e = &a[0].as.dict->entries[i];
        struct str *key, *value;
        if (e->value.kind == V_NONE || e->value.kind == V_UNDEF)
            continue;
        if ((rc = need_str(in, e->key, "attribute name", &key)) ||
            (rc = text_of(in, e->value, &value)))
            return rc;
        for (size_t k = 0; k < key->n; k++)
            if (strchr(" \t\n\f\r/>=", key->data[k]) && key->data[k])
                return in_raise(in, "ValueError", "Invalid character in attribute name");
        if (n++ || arg_bool(a[1], true))
            buf_add_char(&in->out, ' ');
        if ((rc = print_escaped(in, key)))
            return rc;
        buf_add_str(&in->out, "=\"");
        if ((rc = print_escaped(in, value)))
            return rc;
        buf_add_char(&in->out, '"');
    }
    return text_take(in, mark, out);
}

/* ---- words and URLs ---- */

enum q_code filter_format(struct interp *in, const struct value *a, struct value *out)
{
    struct str *s;
    enum q_code rc = text_of(in, a[0], &s);
    if (rc)
        return rc;
    if (a[1].as.seq->n && a[2].as.dict->n)
        return in_raise(in, "FilterArgumentError",
                        "can't handle positional and keyword arguments at the same time");
    return format_percent(in, s, a[2].as.dict->n ? a[2] : a[1], out);
}

enum q_code filter_wordcount(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s;
    uint32_t c;
    int64_t n = 0;
    bool inside = false;
    if ((rc = text_of(in, a[0], &s)))
        return rc;
    for (size_t i = 0; i < s->n;) {
        i += utf8_decode(s->data + i, s->n - i, &c);
        bool word = uni_is_word(c);
        n += word && !inside;
        inside = word;
    }
    *out = v_int(n);
    return in_charge(in, cost_scan(s->n));
}

static void quote_url(struct interp *in, const struct str *s, bool in_query)
{
    for (size_t i = 0; i < s->n; i++) {
        size_t mark = text_mark(in);
        unsigned char c = (unsigned char)s->data[i];
        bool plain = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        if (plain || (c >= '0' && c <= '9') || (c && strchr("-_.~", c)) || (c == '/' && !in_query))
            buf_add_char(&in->out, (char)c);
        else if (c == ' ' && in_query)
            buf_add_char(&in->out, '+');
        else
            buf_printf(&in->out, "%%%02X", c);
        text_made_of(in, mark, s, i, i + 1);
    }
}

/* Text is quoted; pairs become a query string. */
enum q_code filter_urlencode(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s, *key;
    struct seq *items;
    size_t mark = text_mark(in);
    if (a[0].kind == V_STR || !op_iterable(a[0])) {
        if ((rc = text_of(in, a[0], &s)) || (rc = in_charge(in, cost_scan(s->n))))
            return rc;
        quote_url(in, s, false);
        return text_take(in, mark, out);
    }
    struct view view = {VIEW_ITEMS, a[0].as.dict};
    struct value pairs =
        a[0].kind == V_DICT ? (struct value){.kind = V_VIEW, .as.view = &view} : a[0];
    if ((rc = op_iterate(in, pairs, &items)))
        return rc;
    for (size_t i = 0; i < items->n; i++) {
        struct seq *pair;
        if ((rc = op_iterate(in, items->items[i], &pair)))
            return rc;
        if (pair->n != 2)
            return in_raise(in, "ValueError", "not enough values to unpack (expected 2, got %zu)",
                            pair->n);
        if ((rc = text_of(in, pair->items[0], &key)) || (rc = text_of(in, pair->items[1], &s)))
            return rc;
        buf_add_str(&in->out, i ? "&" : "");
        quote_url(in, key, true);
        buf_add_char(&in->out, '=');
        quote_url(in, s, true);
    }
    return text_take(in, mark, out);
}
