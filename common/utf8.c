/* SPDX-License-Identifier: Apache-2.0 */
#include "common/utf8.h"
#include <string.h>

/* Length and the accepted range of the second byte for each lead byte; length 0 = cannot start a
 * sequence. */
static void lead_info(unsigned char lead, size_t *len, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (lead < 0x80)
        *len = 1;
    else if (lead >= 0xc2 && lead <= 0xdf)
        *len = 2;
    else if (lead >= 0xe0 && lead <= 0xef) {
        *len = 3;
        if (lead == 0xe0)
            *lo = 0xa0; /* shorter forms exist */
        if (lead == 0xed)
            *hi = 0x9f; /* surrogates */
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        *len = 4;
        if (lead == 0xf0)
            *lo = 0x90;
        if (lead == 0xf4)
            *hi = 0x8f; /* beyond U+10FFFF */
    } else
        *len = 0;
}

/* The number of well-formed bytes at the start of s; *len = the length by the lead byte. */
static size_t well_formed(const char *s, size_t n, size_t *len)
{
    unsigned char lo, hi;
    const unsigned char *p = (const unsigned char *)s;
    lead_info(p[0], len, &lo, &hi);
    size_t have = 1;
    while (have < *len && have < n && p[have] >= lo && p[have] <= hi) {
        have++;
        lo = 0x80;
        hi = 0xbf;
    }
    return have;
}

size_t utf8_decode(const char *s, size_t n, uint32_t *code_point)
{
    static const unsigned char mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t len;
    if (n && (unsigned char)s[0] < 0x80) { /* most text */
        *code_point = (unsigned char)s[0];
        return 1;
    }
    size_t have = well_formed(s, n, &len);
    if (have != len) {
        *code_point = UTF8_REPLACEMENT;
        return have;
    }
    uint32_t cp = (unsigned char)s[0] & mask[len];
    for (size_t i = 1; i < len; i++)
        cp = cp << 6 | ((unsigned char)s[i] & 0x3f);
    *code_point = cp;
    return len;
}

size_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        cp = UTF8_REPLACEMENT;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)(lead[len] | cp);
    return len;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len;
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, s + i, 8), (eight & 0x8080808080808080ull) == 0)) {
            i += 8;
            continue;
        }
        unsigned char lead = (unsigned char)s[i];
        if (lead < 0x80) {
            i++;
            continue;
        }
        if (lead >= 0xc2 && lead <= 0xdf && n - i >= 2 &&
            ((unsigned char)s[i + 1] & 0xc0) == 0x80) {
            i += 2; /* covers half of the characters of byte-level vocabularies */
            continue;
        }
        size_t have = well_formed(s + i, n - i, &len);
        if (have != len)
            return false;
        i += have;
    }
    return true;
}

size_t utf8_complete_prefix(const char *s, size_t n)
{
    size_t back = 0;
    while (back < n && back < 3 && ((unsigned char)s[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back == n)
        return n;
    size_t at = n - 1 - back;
    size_t len;
    size_t have = well_formed(s + at, n - at, &len);
    return len > have && at + have == n ? at : n;
}

size_t utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
    }
    return count;
}

size_t utf8_mark(const char *text, size_t n)
{
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}
