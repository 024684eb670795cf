/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/scan.h"
#include <math.h>
#include <string.h>
#include "common/utf8.h"

#define DEPTH_MAX 64 /* of values that are skipped */

void scan_init(struct tok_scan *s, struct tok_str json)
{
    *s = (struct tok_scan){.p = json.s, .end = json.s + json.n};
}

void scan_release(struct tok_scan *s)
{
    buf_release(&s->text);
}

static void fail(struct tok_scan *s)
{
    s->p = NULL;
}

bool scan_failed(const struct tok_scan *s)
{
    return !s->p;
}

/* Behind the spaces from p on, as far as they are many. */
static const char *over_spaces(const char *p, const char *end)
{
    while (end - p >= 8 && memcmp(p, "        ", 8) == 0)
        p += 8;
    return p;
}

char scan_peek_far(struct tok_scan *s)
{
    if (!s->p)
        return 0;
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p = *s->p == '\n' ? over_spaces(s->p + 1, s->end) : s->p + 1;
    return s->p < s->end ? *s->p : 0;
}

bool scan_open(struct tok_scan *s, char open)
{
    if (scan_peek(s) != open)
        return false;
    s->p++;
    s->more = false;
    return true;
}

bool scan_item(struct tok_scan *s, char close)
{
    char c = scan_peek(s);
    if (c == close && s->p) {
        s->p++;
        s->more = true; /* in the list around this one */
        return false;
    }
    if (c == 0 || (s->more && c != ',')) {
        fail(s);
        return false;
    }
    s->p += s->more;
    s->more = true;
    return true;
}

bool scan_colon(struct tok_scan *s)
{
    if (scan_peek(s) != ':')
        return false;
    s->p++;
    return true;
}

/* ---- strings ---- */

static int hex4(const char *p)
{
    int x = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        x = x * 16 + digit;
    }
    return x;
}

/* \uXXXX, or two of them that are one character; p stands behind \u. */
static bool escape_u(struct tok_scan *s)
{
    int unit = s->end - s->p >= 4 ? hex4(s->p) : -1;
    uint32_t cp = (uint32_t)unit;
    if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff))
        return false;
    s->p += 4;
    if (unit >= 0xd800 && unit <= 0xdbff) {
        int low = s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u' ? hex4(s->p + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return false;
        cp = 0x10000 + ((cp - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
        s->p += 6;
    }
    buf_add_utf8(&s->text, cp);
    return true;
}

/* p stands behind the backslash. */
static bool escape(struct tok_scan *s)
{
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end)
        return false;
    char c = *s->p++;
    if (c == 'u')
        return escape_u(s);
    const char *name = c ? strchr(names, c) : NULL;
    if (name)
        buf_add_char(&s->text, values[name - names]);
    return name != NULL;
}

#define EACH(byte) (0x0101010101010101ull * (byte))

/* The first character from p on that is a quote, a backslash or below `low` (<= 0x80); else `end`.
 * *high: one before it is not ASCII. Eight bytes at a time: taking one from each of eight that are
 * not below it borrows nothing, so the lowest bit that comes out is the first such character's. */
static inline const char *find_stop(const char *p, const char *end, unsigned char low, bool *high)
{
    unsigned char all = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (uint64_t x; end - p >= 8; p += 8) {
        memcpy(&x, p, 8);
        uint64_t quote = x ^ EACH('"');
        uint64_t escape = x ^ EACH('\\');
        uint64_t found = (((quote - EACH(1)) & ~quote) | ((escape - EACH(1)) & ~escape) |
                          ((x - EACH((uint64_t)low)) & ~x)) &
                         EACH(0x80);
        uint64_t before = found ? (found & -found) - 1 : UINT64_MAX; /* the bits below it */
        *high = *high || (x & before & EACH(0x80));
        if (found)
            return p + __builtin_ctzll(found) / 8;
    }
#endif
    for (; p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= low; p++)
        all |= (unsigned char)*p;
    *high = *high || all >= 0x80;
    return p;
}

static const char *plain_end(const char *p, const char *end, bool *high)
{
    return find_stop(p, end, ' ', high);
}

/* The characters from p on that stand for themselves. */
static size_t plain(const struct tok_scan *s, bool *high)
{
    return (size_t)(plain_end(s->p, s->end, high) - s->p);
}

bool scan_string(struct tok_scan *s, struct tok_str *out)
{
    if (scan_peek(s) != '"')
        return false;
    s->p++;
    bool high = false;
    size_t n = plain(s, &high);
    out->s = s->p;
    out->n = n;
    s->p += n;
    if (s->p < s->end && *s->p == '\\') {
        buf_reset(&s->text);
        buf_add(&s->text, out->s, n);
        while (s->p < s->end && *s->p == '\\') {
            s->p++;
            if (!escape(s))
                return false;
            n = plain(s, &high);
            buf_add(&s->text, s->p, n);
            s->p += n;
        }
        out->s = buf_str(&s->text);
        out->n = s->text.len;
    }
    if (s->p >= s->end || *s->p != '"' || s->text.failed || (high && !utf8_valid(out->s, out->n)))
        return false;
    s->p++;
    return true;
}

bool scan_two_words(struct tok_scan *s, struct tok_str *a, struct tok_str *b)
{
    bool high = false;
    if (scan_peek(s) != '"')
        return false;
    const char *from = s->p + 1;
    const char *space = find_stop(from, s->end, ' ' + 1, &high);
    if (space == s->end || *space != ' ')
        return false;
    const char *quote = find_stop(space + 1, s->end, ' ' + 1, &high);
    if (quote == s->end || *quote != '"')
        return false;
    *a = (struct tok_str){from, (size_t)(space - from)};
    *b = (struct tok_str){space + 1, (size_t)(quote - space - 1)};
    s->p = quote + 1;
    return true;
}

/* ---- numbers ---- */

bool scan_uint(struct tok_scan *s, uint64_t *out)
{
    uint64_t x = 0;
    char c = scan_peek(s);
    const char *from = s->p;
    if (c < '0' || c > '9')
        return false;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        if (s->p - from >= 18)
            return false;
        x = x * 10 + (uint64_t)(*s->p++ - '0');
    }
    *out = x;
    c = s->p < s->end ? *s->p : 0;
    return c != '.' && c != 'e' && c != 'E';
}

/* Digits into *x; those that no longer fit are dropped and counted in *n_dropped. */
static size_t digits(struct tok_scan *s, uint64_t *x, size_t *n_dropped)
{
    size_t n = 0;
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++, n++) {
        uint64_t digit = (uint64_t)(*s->p - '0');
        if (*n_dropped || *x > (UINT64_MAX - digit) / 10)
            ++*n_dropped;
        else
            *x = *x * 10 + digit;
    }
    return n;
}

static double scale(double x, long exponent)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    long n = exponent < 0 ? -exponent : exponent;
    double power = n < (long)(sizeof powers / sizeof *powers) ? powers[n] : pow(10, (double)n);
    return exponent < 0 ? x / power : x * power;
}

bool scan_number(struct tok_scan *s, double *out)
{
    uint64_t x = 0;
    size_t n_dropped = 0;
    long exponent = 0;
    bool negative = scan_peek(s) == '-';
    if (negative)
        s->p++;
    if (!s->p || digits(s, &x, &n_dropped) == 0)
        return false;
    exponent += (long)n_dropped;
    if (s->p < s->end && *s->p == '.') {
        size_t before = n_dropped;
        s->p++;
        size_t n = digits(s, &x, &n_dropped);
        if (n == 0)
            return false;
        exponent -= (long)(n - (n_dropped - before));
    }
    if (s->p < s->end && (*s->p | 0x20) == 'e') {
        uint64_t e = 0;
        size_t ignored = 0;
        bool down = ++s->p < s->end && *s->p == '-';
        s->p += s->p < s->end && (*s->p == '-' || *s->p == '+');
        if (digits(s, &e, &ignored) == 0 || e > 400 || ignored)
            return false;
        exponent += down ? -(long)e : (long)e;
    }
    double value = scale((double)x, exponent);
    *out = negative ? -value : value;
    return isfinite(value);
}

/* ---- any value ---- */

static bool skip_scalar(struct tok_scan *s)
{
    struct tok_str text;
    double number;
    static const char *const words[] = {"true", "false", "null"};
    char c = scan_peek(s);
    if (c == '"')
        return scan_string(s, &text);
    if (c == '-' || (c >= '0' && c <= '9'))
        return scan_number(s, &number);
    for (size_t i = 0; c && i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, words[i], n) == 0) {
            s->p += n;
            return true;
        }
    }
    return false;
}

bool scan_skip(struct tok_scan *s)
{
    char close[DEPTH_MAX];
    struct tok_str key;
    size_t depth = 0;
    for (;;) {
        char c = scan_peek(s);
        if (c != '[' && c != '{') {
            if (!skip_scalar(s))
                return false;
        } else if (depth == DEPTH_MAX || !scan_open(s, c))
            return false;
        else
            close[depth++] = c == '[' ? ']' : '}';
        while (depth && !scan_item(s, close[depth - 1])) {
            if (scan_failed(s))
                return false;
            depth--;
        }
        if (depth == 0)
            return true;
        if (close[depth - 1] == '}' && !(scan_string(s, &key) && scan_colon(s)))
            return false;
    }
}

/* The quote that ends a string whose first character is at p; `end` when there is none. */
static inline const char *string_end(const char *p, const char *end)
{
    bool high = false;
    while ((p = find_stop(p, end, ' ', &high)) < end && *p != '"')
        p += *p == '\\' && end - p > 1 ? 2 : 1;
    return p;
}

static bool skip_brackets(struct tok_scan *s)
{
    size_t depth = 0;
    size_t n_comma = 0;
    for (const char *p = s->p; p < s->end; p++) {
        if (*p == '"') { /* of the big values, nearly all */
            if ((p = string_end(p + 1, s->end)) == s->end)
                return false;
        } else if (*p == ',')
            n_comma += depth == 1;
        else if (*p == '\n')
            p = over_spaces(p + 1, s->end) - 1;
        else if (*p == '[' || *p == '{')
            depth++;
        else if ((*p == ']' || *p == '}') && --depth == 0) {
            s->p = p + 1;
            s->more = true;
            s->n_item = n_comma + 1;
            return true;
        }
    }
    return false;
}

bool scan_value(struct tok_scan *s, struct tok_str *out)
{
    char c = scan_peek(s);
    const char *from = s->p;
    s->n_item = 1;
    if (!(c == '[' || c == '{' ? skip_brackets(s) : scan_skip(s)))
        return false;
    *out = (struct tok_str){from, (size_t)(s->p - from)};
    return true;
}

bool tok_big_find(struct tok_str json, struct tok_big *out)
{
    static const struct tok_big none = {{"", 0}, {"", 0}, 0, 0};
    struct tok_scan s;
    struct tok_str key;
    int level = 1; /* 1: the file's object, 2: the model's */
    bool found = false;
    scan_init(&s, json);
    *out = none;
    bool ok = scan_open(&s, '{');
    while (ok && level) {
        if (!scan_item(&s, '}')) {
            level--;
            ok = !scan_failed(&s);
            continue;
        }
        ok = scan_string(&s, &key) && scan_colon(&s);
        struct tok_str value = {"", 0};
        if (ok && level == 1 && key.n == 5 && memcmp(key.s, "model", 5) == 0 &&
            scan_peek(&s) == '{') {
            found = ok = scan_open(&s, '{');
            *out = none;
            level = 2;
            continue;
        }
        bool vocab = ok && level == 2 && key.n == 5 && memcmp(key.s, "vocab", 5) == 0;
        bool merges = ok && level == 2 && key.n == 6 && memcmp(key.s, "merges", 6) == 0;
        ok = ok && scan_value(&s, &value);
        if (vocab) {
            out->vocab = value;
            out->n_vocab = s.n_item;
        }
        if (merges) {
            out->merges = value;
            out->n_merge = s.n_item;
        }
    }
    scan_release(&s);
    return ok && found;
}
