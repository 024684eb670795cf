/* SPDX-License-Identifier: Apache-2.0 */
#include "common/template/unicode.h"
#include <utf8proc.h>
#include "common/utf8.h"

/* clang-format off */
struct triple { uint32_t c[UNI_CASE_MAX]; };
static const struct {
    uint32_t c;
    struct triple upper, title, fold;
} specials[] = {
#define SPECIAL(code, u0, u1, u2, t0, t1, t2, f0, f1, f2) \
    {code, {{u0, u1, u2}}, {{t0, t1, t2}}, {{f0, f1, f2}}},
#include "common/template/special_case.def"
};
/* clang-format on */

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool uni_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t uni_skip_space(const char *s, size_t from, size_t to)
{
    uint32_t c;
    while (from < to) {
        size_t step = utf8_decode(s + from, to - from, &c);
        if (!uni_is_space(c))
            break;
        from += step;
    }
    return from;
}

size_t uni_trim_space(const char *s, size_t from, size_t to)
{
    while (to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s[at] & 0xC0) == 0x80)
            at--;
        uint32_t c;
        utf8_decode(s + at, to - at, &c);
        if (!uni_is_space(c))
            break;
        to = at;
    }
    return to;
}

bool uni_is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

bool uni_is_alpha(uint32_t c)
{
    if (c < 0x80)
        return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool uni_is_decimal(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : category(c) == UTF8PROC_CATEGORY_ND;
}

/* Digits that are no decimals: superscripts, subscripts, circled and the like (Numeric_Type=Digit).
 */
bool uni_is_digit(uint32_t c)
{
    return uni_is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
           (c >= 0x2488 && c <= 0x2490) || c == 0x24ea || (c >= 0x24f5 && c <= 0x24fd) ||
           c == 0x24ff || (c >= 0x2776 && c <= 0x277e) || (c >= 0x2780 && c <= 0x2788) ||
           (c >= 0x278a && c <= 0x2792) || (c >= 0x1369 && c <= 0x1371) ||
           (c >= 0x19da && c <= 0x19da) || (c >= 0x10a40 && c <= 0x10a43) ||
           (c >= 0x10e60 && c <= 0x10e68) || (c >= 0x11052 && c <= 0x1105a) ||
           (c >= 0x1f100 && c <= 0x1f10a);
}

/* Letters with a numeric value: CJK numerals (Unihan, Numeric_Type=Numeric), ascending. */
static const uint32_t numeral_letters[] = {
    0x3405,  0x3483,  0x382a,  0x3b4d,  0x4e00,  0x4e03,  0x4e07,  0x4e09,  0x4e5d,
    0x4e8c,  0x4e94,  0x4e96,  0x4ebf,  0x4ec0,  0x4edf,  0x4ee8,  0x4f0d,  0x4f70,
    0x5104,  0x5146,  0x5169,  0x516b,  0x516d,  0x5341,  0x5343,  0x5344,  0x5345,
    0x534c,  0x53c1,  0x53c2,  0x53c3,  0x53c4,  0x56db,  0x58f1,  0x58f9,  0x5e7a,
    0x5efe,  0x5eff,  0x5f0c,  0x5f0d,  0x5f0e,  0x5f10,  0x62fe,  0x634c,  0x67d2,
    0x6f06,  0x7396,  0x767e,  0x8086,  0x842c,  0x8cae,  0x8cb3,  0x8d30,  0x9621,
    0x9646,  0x964c,  0x9678,  0x96f6,  0xf96b,  0xf973,  0xf978,  0xf9b2,  0xf9d1,
    0xf9d3,  0xf9fd,  0x20001, 0x20064, 0x200e2, 0x20121, 0x2092a, 0x20983, 0x2098c,
    0x2099c, 0x20aea, 0x20afd, 0x20b19, 0x22390, 0x22998, 0x23b1b, 0x2626d, 0x2f890,
};

bool uni_is_numeric(uint32_t c)
{
    if (c < 0x80 || uni_is_digit(c))
        return uni_is_digit(c);
    utf8proc_category_t k = category(c);
    size_t low = 0, high = sizeof numeral_letters / sizeof numeral_letters[0];
    while (k == UTF8PROC_CATEGORY_LO && low < high) {
        size_t mid = (low + high) / 2;
        if (numeral_letters[mid] == c)
            return true;
        if (numeral_letters[mid] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool uni_is_word(uint32_t c)
{
    return c == '_' || uni_is_alpha(c) || uni_is_numeric(c);
}

bool uni_is_upper(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z';
    /* Other_Uppercase: roman numerals, circled and squared letters */
    return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f) ||
           (c >= 0x24b6 && c <= 0x24cf) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

bool uni_is_lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'a' && c <= 'z';
    /* Other_Lowercase: modifier letters, roman numerals, circled letters */
    return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba ||
           (c >= 0x2b0 && c <= 0x2b8) || c == 0x2c0 || c == 0x2c1 || (c >= 0x2e0 && c <= 0x2e4) ||
           c == 0x345 || c == 0x37a || (c >= 0x1d2c && c <= 0x1d6a) || c == 0x1d78 ||
           (c >= 0x1d9b && c <= 0x1dbf) || c == 0x2071 || c == 0x207f ||
           (c >= 0x2090 && c <= 0x209c) || (c >= 0x2170 && c <= 0x217f) ||
           (c >= 0x24d0 && c <= 0x24e9) || c == 0x2c7c || c == 0x2c7d || c == 0xa69c ||
           c == 0xa69d || c == 0xa770 || c == 0xa7f8 || c == 0xa7f9 ||
           (c >= 0xab5c && c <= 0xab5f) || c == 0x10780 ||
           (c >= 0x10783 && c <= 0x107ba && c != 0x10786 && c != 0x107b1);
}

bool uni_is_title(uint32_t c)
{
    return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT;
}

bool uni_is_cased(uint32_t c)
{
    return uni_is_upper(c) || uni_is_lower(c) || uni_is_title(c);
}

bool uni_is_case_ignorable(uint32_t c)
{
    if (c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xa8 || c == 0xad ||
        c == 0xaf || c == 0xb4 || c == 0xb7 || c == 0xb8 || c == 0x2018 || c == 0x2019 ||
        c == 0x2024 || c == 0x2027 || c == 0x387 || c == 0x55f || c == 0x5f4 || c == 0xfe13 ||
        c == 0xfe52 || c == 0xfe55 || c == 0xff07 || c == 0xff0e || c == 0xff1a)
        return true;
    if (c < 0x80)
        return false;
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

bool uni_is_printable(uint32_t c)
{
    if (c < 0x80)
        return c >= 0x20 && c < 0x7f;
    utf8proc_category_t k = category(c);
    return k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_CC && k != UTF8PROC_CATEGORY_CF &&
           k != UTF8PROC_CATEGORY_CS && k != UTF8PROC_CATEGORY_CO && k != UTF8PROC_CATEGORY_ZS &&
           k != UTF8PROC_CATEGORY_ZL && k != UTF8PROC_CATEGORY_ZP;
}

static size_t put_points(const struct triple *t, uint32_t out[UNI_CASE_MAX])
{
    size_t n = 0;
    while (n < UNI_CASE_MAX && (t->c[n] || n == 0)) {
        out[n] = t->c[n];
        n++;
    }
    return n;
}

/* Index in specials, or -1. */
static int special(uint32_t c)
{
    int low = 0, high = (int)(sizeof specials / sizeof specials[0]) - 1;
    while (c >= 0x80 && low <= high) {
        int mid = (low + high) / 2;
        if (specials[mid].c == c)
            return mid;
        if (specials[mid].c < c)
            low = mid + 1;
        else
            high = mid - 1;
    }
    return -1;
}

size_t uni_upper(uint32_t c, uint32_t out[UNI_CASE_MAX])
{
    int i = special(c);
    if (i >= 0)
        return put_points(&specials[i].upper, out);
    out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
    return 1;
}

size_t uni_lower(uint32_t c, uint32_t out[UNI_CASE_MAX])
{
    if (c == 0x130) { /* İ: i and a dot above */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

size_t uni_title(uint32_t c, uint32_t out[UNI_CASE_MAX])
{
    int i = special(c);
    if (i >= 0)
        return put_points(&specials[i].title, out);
    out[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)c);
    return 1;
}

size_t uni_fold(uint32_t c, uint32_t out[UNI_CASE_MAX])
{
    int i = special(c);
    if (i >= 0)
        return put_points(&specials[i].fold, out);
    utf8proc_int32_t folded[8];
    int boundary = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, folded, 8, UTF8PROC_CASEFOLD, &boundary);
    out[0] = n == 1 ? (uint32_t)folded[0] : c;
    return 1;
}
