/* SPDX-License-Identifier: Apache-2.0 */
/* Character classes. The tables of classes.def are results of the reference implementation,
 * written by tests/data/tokenizers/make_classes.py; the parts of the reference use different
 * Unicode versions. */
#include "common/tokenizer/chars.h"
#include <utf8proc.h>
#include "common/tokenizer/steps.h"
#include "common/utf8.h"

struct range {
    uint32_t first, last;
};
struct run { /* characters of one script */
    uint32_t first, last, script;
};
struct lower {
    uint32_t cp, lower;
};

#define CLASS(name, ...)       static const struct range class_##name[] = {__VA_ARGS__};
#define R(first, last)         {first, last},
#define SCRIPTS(...)           static const struct run runs[] = {__VA_ARGS__};
#define S(first, last, script) {first, last, (script) + 1},
#define LOWER(...)             static const struct lower lowers[] = {__VA_ARGS__};
#define L(cp, lower)           {cp, lower},
#include "common/tokenizer/classes.def"

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* White_Space of PropList.txt: what Rust's char::is_whitespace and \s of a Unicode regex mean. */
bool tok_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= '\t' && cp <= '\r');
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static bool in_ranges(const struct range *r, size_t n, uint32_t cp)
{
    size_t low = 0; /* the ranges before it end before cp */
    size_t high = cp < r[0].first ? 0 : n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r[mid].last < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && r[low].first <= cp;
}

#define IN(name, cp) in_ranges(class_##name, COUNT(class_##name), cp)

bool tok_is_word(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || cp == '_' ||
               (cp >= 'a' && cp <= 'z');
    return IN(WORD, cp);
}

bool tok_is_punct(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    return IN(PUNCT, cp);
}

bool tok_is_numeric(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    return IN(NUMERIC, cp);
}

bool tok_is_other(uint32_t cp)
{
    if (cp < 0x80)
        return (cp < ' ' && cp != '\t' && cp != '\n' && cp != '\r') || cp == 0x7f;
    return IN(OTHER, cp);
}

bool tok_is_nonspacing(uint32_t cp)
{
    return cp >= 0x300 && IN(NONSPACING, cp);
}

bool tok_is_combining(uint32_t cp)
{
    return cp >= 0x300 && IN(COMBINING, cp);
}

bool tok_is_newer(uint32_t cp)
{
    return cp >= 0x7fd &&
           (IN(NEWER, cp) || IN(UNICODE15, cp)); /* utf8proc has Unicode 15 or later */
}

bool tok_is_unicode15(uint32_t cp)
{
    return IN(UNICODE15, cp);
}

uint32_t tok_script(uint32_t cp)
{
    size_t low = 0;
    size_t high = COUNT(runs);
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (runs[mid].last < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(runs) && runs[low].first <= cp ? runs[low].script : 0;
}

uint32_t tok_lower(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z' ? cp | 0x20 : cp;
    for (size_t i = 0; cp >= lowers[0].cp && i < COUNT(lowers); i++) {
        if (lowers[i].cp == cp)
            return lowers[i].lower;
    }
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

uint32_t tok_last_char(const char *s, size_t n)
{
    size_t start = n - 1;
    while (start && ((unsigned char)s[start] & 0xc0) == 0x80)
        start--;
    uint32_t cp;
    utf8_decode(s + start, n - start, &cp);
    return cp;
}

size_t tok_trim_end(const char *s, size_t n)
{
    while (n) {
        uint32_t cp = tok_last_char(s, n);
        if (!tok_is_space(cp))
            break;
        char bytes[4];
        n -= utf8_encode(cp, bytes);
        TOK_STEPS(1);
    }
    return n;
}
