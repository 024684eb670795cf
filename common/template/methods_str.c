/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of str: case, blanks, searching, classification. Splitting and joining are in
 * methods_split.c. */
#include "common/utf8.h"
#include "common/template/builtins.h"

#define CASE_METHOD(name, kind)                                                                \
    enum q_code method_str_##name(struct interp *in, const struct value *a, struct value *out) \
    {                                                                                          \
        return text_case(in, a[0].as.s, kind, out);                                            \
    }

CASE_METHOD(capitalize, CASE_CAPITAL)
CASE_METHOD(casefold, CASE_FOLD)
CASE_METHOD(lower, CASE_LOWER)
CASE_METHOD(swapcase, CASE_SWAP)
CASE_METHOD(title, CASE_TITLE)
CASE_METHOD(upper, CASE_UPPER)

/* ---- blanks ---- */

static enum q_code strip(struct interp *in, const struct value *a, enum strip_side side,
                         struct value *out)
{
    struct str *chars;
    enum q_code rc = arg_str(in, a[1], "strip arg", &chars);
    return rc ? rc : text_strip(in, a[0].as.s, chars, side, out);
}

enum q_code method_str_strip(struct interp *in, const struct value *a, struct value *out)
{
    return strip(in, a, STRIP_BOTH, out);
}

enum q_code method_str_lstrip(struct interp *in, const struct value *a, struct value *out)
{
    return strip(in, a, STRIP_LEFT, out);
}

enum q_code method_str_rstrip(struct interp *in, const struct value *a, struct value *out)
{
    return strip(in, a, STRIP_RIGHT, out);
}

/* center, ljust, rjust; a fill other than a blank replaces the blanks that were added. */
static enum q_code pad(struct interp *in, const struct value *a, enum pad_side side,
                       struct value *out)
{
    enum q_code rc;
    int64_t width;
    struct str *fill, *s = a[0].as.s;
    struct value padded;
    if ((rc = need_int(in, a[1], "width", &width)) || (rc = arg_str(in, a[2], "fill", &fill)))
        return rc;
    if (fill && text_chars(fill) != 1)
        return in_raise(in, "TypeError", "The fill character must be exactly one character long");
    if ((rc = text_pad(in, s, width, side, &padded)))
        return rc;
    *out = padded;
    if (!fill || fill->data[0] == ' ')
        return Q_OK;
    size_t n = padded.as.s->n - s->n, mark = text_mark(in);
    size_t left = side == PAD_LEFT ? n : side == PAD_RIGHT ? 0 : n / 2 + (n & (size_t)width & 1);
    for (size_t i = 0; i < n + 1; i++)
        text_add_all(in, i == left ? s : fill);
    return (rc = in_charge(in, n / 16)) ? rc : text_take(in, mark, out);
}

enum q_code method_str_center(struct interp *in, const struct value *a, struct value *out)
{
    return pad(in, a, PAD_BOTH, out);
}

enum q_code method_str_ljust(struct interp *in, const struct value *a, struct value *out)
{
    return pad(in, a, PAD_RIGHT, out);
}

enum q_code method_str_rjust(struct interp *in, const struct value *a, struct value *out)
{
    return pad(in, a, PAD_LEFT, out);
}

enum q_code method_str_zfill(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    int64_t width;
    struct str *s = a[0].as.s;
    struct value padded;
    if ((rc = need_int(in, a[1], "width", &width)) ||
        (rc = text_pad(in, s, width, PAD_LEFT, &padded)))
        return rc;
    size_t mark = text_mark(in), n = padded.as.s->n - s->n;
    size_t sign = s->n && (s->data[0] == '-' || s->data[0] == '+');
    text_add(in, s, 0, sign);
    for (size_t i = 0; i < n; i++)
        buf_add_char(&in->out, '0');
    text_add(in, s, sign, s->n);
    return text_take(in, mark, out);
}

enum q_code method_str_expandtabs(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    int64_t size, column = 0;
    const struct str *s = a[0].as.s;
    if ((rc = arg_int(in, a[1], 8, "tabsize", &size)))
        return rc;
    if (size > 1 << 16)
        return in_raise(in, "OverflowError", "tabs are too wide");
    size_t mark = text_mark(in);
    for (size_t i = 0; i < s->n; i++) {
        bool tab = s->data[i] == '\t', end = s->data[i] == '\n' || s->data[i] == '\r';
        int64_t n = tab && size > 0 ? size - column % size : 0;
        for (int64_t k = 0; k < n; k++)
            buf_add_char(&in->out, ' ');
        if (!tab)
            text_add(in, s, i, i + 1);
        column = end ? 0 : column + n + (!tab && ((unsigned char)s->data[i] & 0xC0) != 0x80);
    }
    return (rc = in_charge(in, cost_scan(s->n))) ? rc : text_take(in, mark, out);
}

/* ---- searching ---- */

struct window { /* s[start:end] in bytes, of the optional arguments */
    size_t from, to;
    bool valid; /* start <= length: otherwise not even "" is found */
};

static enum q_code window_of(struct interp *in, const struct value *a, struct window *w)
{
    enum q_code rc;
    struct str *s = a[0].as.s;
    int64_t n = (int64_t)text_chars(s), at[2];
    if ((rc = arg_int(in, a[2], 0, "start", &at[0])) || (rc = arg_int(in, a[3], n, "end", &at[1])))
        return rc;
    for (int i = 0; i < 2; i++)
        if (at[i] < 0)
            at[i] = at[i] + n < 0 ? 0 : at[i] + n;
    w->valid = at[0] <= n && at[0] <= at[1];
    w->from = text_offset(s, (size_t)at[0]);
    w->to = at[1] < at[0] ? w->from : text_offset(s, (size_t)at[1]);
    return in_charge(in, cost_search(s->n));
}

/* Byte position of the first or last occurrence, or SIZE_MAX. */
static size_t search(const struct str *s, const struct str *part, const struct window *w, bool last)
{
    if (!w->valid || part->n > w->to - w->from)
        return SIZE_MAX;
    if (!last) {
        const char *hit = part->n ? memmem(s->data + w->from, w->to - w->from, part->data, part->n)
                                  : s->data + w->from;
        return hit ? (size_t)(hit - s->data) : SIZE_MAX;
    }
    for (size_t at = w->to - part->n;; at--) {
        if (part->n == 0 || memcmp(s->data + at, part->data, part->n) == 0)
            return at;
        if (at == w->from)
            return SIZE_MAX;
    }
}

static enum q_code find_substring(struct interp *in, const struct value *a, bool last, bool must,
                                  struct value *out)
{
    enum q_code rc;
    struct str *part;
    struct window w;
    if ((rc = need_str(in, a[1], "find() argument", &part)) || (rc = window_of(in, a, &w)))
        return rc;
    if (last && (rc = in_charge(in, (w.to - w.from) / 8 * (1 + part->n / 64))))
        return rc;
    size_t at = search(a[0].as.s, part, &w, last);
    if (at == SIZE_MAX && must)
        return in_raise(in, "ValueError", "substring not found");
    *out = v_int(at == SIZE_MAX ? -1 : (int64_t)utf8_count(a[0].as.s->data, at));
    return Q_OK;
}

enum q_code method_str_find(struct interp *in, const struct value *a, struct value *out)
{
    return find_substring(in, a, false, false, out);
}

enum q_code method_str_rfind(struct interp *in, const struct value *a, struct value *out)
{
    return find_substring(in, a, true, false, out);
}

enum q_code method_str_index(struct interp *in, const struct value *a, struct value *out)
{
    return find_substring(in, a, false, true, out);
}

enum q_code method_str_rindex(struct interp *in, const struct value *a, struct value *out)
{
    return find_substring(in, a, true, true, out);
}

enum q_code method_str_count(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *part, *s = a[0].as.s;
    struct window w;
    int64_t n = 0;
    if ((rc = need_str(in, a[1], "count() argument", &part)) || (rc = window_of(in, a, &w)))
        return rc;
    if (part->n == 0) {
        *out = v_int(w.valid ? (int64_t)utf8_count(s->data + w.from, w.to - w.from) + 1 : 0);
        return Q_OK;
    }
    for (size_t at; (at = search(s, part, &w, false)) != SIZE_MAX; n++)
        w.from = at + part->n;
    *out = v_int(n);
    return Q_OK;
}

/* A prefix or suffix, or a tuple of them. */
static enum q_code affix(struct interp *in, const struct value *a, bool suffix, struct value *out)
{
    enum q_code rc;
    struct window w;
    const struct str *s = a[0].as.s;
    struct value one = a[1];
    const struct value *parts = a[1].kind == V_TUPLE ? a[1].as.seq->items : &one;
    size_t n = a[1].kind == V_TUPLE ? a[1].as.seq->n : 1;
    bool yes = false;
    if ((rc = window_of(in, a, &w)))
        return rc;
    for (size_t i = 0; i < n && !yes; i++) {
        struct str *part;
        if ((rc = need_str(in, parts[i], suffix ? "endswith first arg" : "startswith first arg",
                           &part)) ||
            (rc = in_charge(in, 1)))
            return rc;
        yes = w.valid && part->n <= w.to - w.from &&
              (part->n == 0 ||
               memcmp(s->data + (suffix ? w.to - part->n : w.from), part->data, part->n) == 0);
    }
    *out = v_bool(yes);
    return Q_OK;
}

enum q_code method_str_startswith(struct interp *in, const struct value *a, struct value *out)
{
    return affix(in, a, false, out);
}

enum q_code method_str_endswith(struct interp *in, const struct value *a, struct value *out)
{
    return affix(in, a, true, out);
}

static enum q_code remove_affix(struct interp *in, const struct value *a, bool suffix,
                                struct value *out)
{
    struct str *part, *s = a[0].as.s;
    enum q_code rc =
        need_str(in, a[1], suffix ? "removesuffix() argument" : "removeprefix() argument", &part);
    if (rc)
        return rc;
    bool hit = part->n && part->n <= s->n &&
               memcmp(s->data + (suffix ? s->n - part->n : 0), part->data, part->n) == 0;
    *out = a[0];
    if (!hit)
        return Q_OK;
    return suffix ? text_slice(in, s, 0, s->n - part->n, out)
                  : text_slice(in, s, part->n, s->n, out);
}

enum q_code method_str_removeprefix(struct interp *in, const struct value *a, struct value *out)
{
    return remove_affix(in, a, false, out);
}

enum q_code method_str_removesuffix(struct interp *in, const struct value *a, struct value *out)
{
    return remove_affix(in, a, true, out);
}

enum q_code method_str_replace(struct interp *in, const struct value *a, struct value *out)
{
    int64_t count;
    enum q_code rc = arg_int(in, a[3], -1, "count", &count);
    return rc ? rc : text_replace(in, a, count, out);
}

/* ---- classification ---- */

static bool is_alnum(uint32_t c)
{
    return uni_is_alpha(c) || uni_is_decimal(c) || uni_is_digit(c) || uni_is_numeric(c);
}

static bool is_ascii(uint32_t c)
{
    return c < 0x80;
}

/* True when all code points have the property; `empty` is the answer for "". */
static enum q_code all_are(struct interp *in, const struct str *s, bool (*property)(uint32_t),
                           bool empty, struct value *out)
{
    bool yes = s->n ? true : empty;
    uint32_t c;
    for (size_t i = 0; i < s->n && yes;) {
        i += utf8_decode(s->data + i, s->n - i, &c);
        yes = property(c);
    }
    *out = v_bool(yes);
    return in_charge(in, cost_scan(s->n));
}

#define ALL_METHOD(name, property, empty)                                                      \
    enum q_code method_str_##name(struct interp *in, const struct value *a, struct value *out) \
    {                                                                                          \
        return all_are(in, a[0].as.s, property, empty, out);                                   \
    }

ALL_METHOD(isalnum, is_alnum, false)
ALL_METHOD(isalpha, uni_is_alpha, false)
ALL_METHOD(isascii, is_ascii, true)
ALL_METHOD(isdecimal, uni_is_decimal, false)
ALL_METHOD(isdigit, uni_is_digit, false)
ALL_METHOD(isnumeric, uni_is_numeric, false)
ALL_METHOD(isprintable, uni_is_printable, true)
ALL_METHOD(isspace, uni_is_space, false)

/* At least one cased character and none of the other case. */
static enum q_code all_case(struct interp *in, const struct str *s, bool upper, struct value *out)
{
    bool any = false, other = false;
    uint32_t c;
    for (size_t i = 0; i < s->n && !other;) {
        i += utf8_decode(s->data + i, s->n - i, &c);
        any |= upper ? uni_is_upper(c) : uni_is_lower(c);
        other = uni_is_title(c) || (upper ? uni_is_lower(c) : uni_is_upper(c));
    }
    *out = v_bool(any && !other);
    return in_charge(in, cost_scan(s->n));
}

enum q_code method_str_isupper(struct interp *in, const struct value *a, struct value *out)
{
    return all_case(in, a[0].as.s, true, out);
}

enum q_code method_str_islower(struct interp *in, const struct value *a, struct value *out)
{
    return all_case(in, a[0].as.s, false, out);
}

enum q_code method_str_istitle(struct interp *in, const struct value *a, struct value *out)
{
    const struct str *s = a[0].as.s;
    bool any = false, good = true, in_word = false;
    uint32_t c;
    for (size_t i = 0; i < s->n && good;) {
        i += utf8_decode(s->data + i, s->n - i, &c);
        bool begins = uni_is_upper(c) || uni_is_title(c), cased = begins || uni_is_lower(c);
        good = !cased || begins != in_word;
        any |= cased;
        in_word = cased;
    }
    *out = v_bool(any && good);
    return in_charge(in, cost_scan(s->n));
}
