/* SPDX-License-Identifier: Apache-2.0 */
/* A pushdown automaton: the stack has one bit per level (object or array), and the state
 * determines which tokens may follow. */
#include "common/parsers/json_scan.h"
#include <string.h>

enum state {
    S_VALUE,      /* a value must come */
    S_FIRST_ITEM, /* after '[': a value or ']' */
    S_FIRST_KEY,  /* after '{': a key or '}' */
    S_KEY,        /* after ',' in an object */
    S_COLON,
    S_NEXT, /* after a value inside a container: ',' or the closing bracket */
    S_STRING,
    S_ESCAPE,
    S_HEX,
    S_KEY_STRING,
    S_KEY_ESCAPE,
    S_KEY_HEX,
    S_LITERAL,
    S_MINUS, /* number states: which digits may follow */
    S_ZERO,
    S_INT,
    S_POINT,
    S_FRACTION,
    S_E,
    S_E_SIGN,
    S_EXPONENT,
    S_DONE
};

static const char *const literals[] = {"true", "false", "null"};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool in_object(const struct json_scan *s)
{
    return s->is_object[(s->depth - 1) / 8] >> ((s->depth - 1) % 8) & 1;
}

static enum json_scan_step go(struct json_scan *s, enum state next)
{
    s->state = next;
    return JSON_SCAN_MORE;
}

static enum json_scan_step value_over(struct json_scan *s)
{
    s->state = s->depth ? S_NEXT : S_DONE;
    return s->depth ? JSON_SCAN_MORE : JSON_SCAN_END;
}

static enum json_scan_step open_level(struct json_scan *s, bool object)
{
    if (s->depth == JSON_SCAN_DEPTH_MAX)
        return JSON_SCAN_BAD;
    uint8_t bit = (uint8_t)(1u << (s->depth % 8)), *byte = &s->is_object[s->depth / 8];
    *byte = (uint8_t)(object ? *byte | bit : *byte & ~bit);
    s->depth++;
    return go(s, object ? S_FIRST_KEY : S_FIRST_ITEM);
}

static enum json_scan_step close_level(struct json_scan *s)
{
    s->depth--;
    return value_over(s);
}

static enum json_scan_step begin_value(struct json_scan *s, char c)
{
    if (c == '{' || c == '[')
        return open_level(s, c == '{');
    if (c == '"')
        return go(s, S_STRING);
    if (c == '-')
        return go(s, S_MINUS);
    if (is_digit(c))
        return go(s, c == '0' ? S_ZERO : S_INT);
    for (uint8_t i = 0; i < 3; i++)
        if (c == literals[i][0]) {
            s->literal = (uint8_t)(i << 4 | 1);
            return go(s, S_LITERAL);
        }
    return JSON_SCAN_BAD;
}

static enum json_scan_step in_literal(struct json_scan *s, char c)
{
    const char *word = literals[s->literal >> 4];
    if (c != word[s->literal & 15])
        return JSON_SCAN_BAD;
    s->literal++;
    return word[s->literal & 15] ? JSON_SCAN_MORE : value_over(s);
}

/* Strings of values and of keys are the same three states, three apart. */
static enum json_scan_step in_string(struct json_scan *s, char c)
{
    bool key = s->state >= S_KEY_STRING;
    enum state plain = key ? S_KEY_STRING : S_STRING;
    switch (s->state - plain) {
    case 0:
        if (c == '"' && key)
            return go(s, S_COLON);
        if (c == '"')
            return value_over(s);
        return c == '\\' ? go(s, (enum state)(plain + 1)) : JSON_SCAN_MORE;
    case 1:
        if (c == 'u') {
            s->n_hex = 0;
            return go(s, (enum state)(plain + 2));
        }
        return c && strchr("\"\\/bfnrt", c) ? go(s, plain) : JSON_SCAN_BAD;
    default:
        if (!is_hex(c))
            return JSON_SCAN_BAD;
        return ++s->n_hex == 4 ? go(s, plain) : JSON_SCAN_MORE;
    }
}

bool json_scan_may_end(const struct json_scan *s)
{
    return s->depth == 0 && (s->state == S_ZERO || s->state == S_INT || s->state == S_FRACTION ||
                             s->state == S_EXPONENT);
}

/* The state after one more byte of a number, S_DONE when the byte does not belong to it. */
static enum state number_next(enum state state, char c)
{
    bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (state) {
    case S_MINUS:
        return c == '0' ? S_ZERO : digit ? S_INT : S_DONE;
    case S_ZERO:
        return c == '.' ? S_POINT : e ? S_E : S_DONE;
    case S_INT:
        return digit ? S_INT : c == '.' ? S_POINT : e ? S_E : S_DONE;
    case S_POINT:
        return digit ? S_FRACTION : S_DONE;
    case S_FRACTION:
        return digit ? S_FRACTION : e ? S_E : S_DONE;
    case S_E:
        return digit ? S_EXPONENT : c == '+' || c == '-' ? S_E_SIGN : S_DONE;
    default:
        return digit ? S_EXPONENT : S_DONE;
    }
}

static enum json_scan_step in_number(struct json_scan *s, char c)
{
    enum state next = number_next((enum state)s->state, c);
    if (next != S_DONE)
        return go(s, next);
    bool complete =
        s->state == S_ZERO || s->state == S_INT || s->state == S_FRACTION || s->state == S_EXPONENT;
    if (!complete || is_digit(c))
        return JSON_SCAN_BAD;
    if (value_over(s) == JSON_SCAN_END)
        return JSON_SCAN_PAST;
    return json_scan_byte(s, c);
}

static enum json_scan_step between(struct json_scan *s, char c)
{
    if (is_space(c))
        return JSON_SCAN_SPACE;
    switch (s->state) {
    case S_FIRST_ITEM:
        return c == ']' ? close_level(s) : begin_value(s, c);
    case S_FIRST_KEY:
        if (c == '}')
            return close_level(s);
        return c == '"' ? go(s, S_KEY_STRING) : JSON_SCAN_BAD;
    case S_KEY:
        return c == '"' ? go(s, S_KEY_STRING) : JSON_SCAN_BAD;
    case S_COLON:
        return c == ':' ? go(s, S_VALUE) : JSON_SCAN_BAD;
    case S_NEXT:
        if (c == ',')
            return go(s, in_object(s) ? S_KEY : S_VALUE);
        return c == (in_object(s) ? '}' : ']') ? close_level(s) : JSON_SCAN_BAD;
    default:
        return begin_value(s, c);
    }
}

enum json_scan_step json_scan_byte(struct json_scan *s, char c)
{
    if (s->state >= S_STRING && s->state <= S_KEY_HEX)
        return in_string(s, c);
    if (s->state == S_LITERAL)
        return in_literal(s, c);
    if (s->state >= S_MINUS && s->state <= S_EXPONENT)
        return in_number(s, c);
    return s->state == S_DONE ? JSON_SCAN_BAD : between(s, c);
}

bool json_scan_close(const struct json_scan *s, struct buf *out)
{
    bool number =
        s->state == S_ZERO || s->state == S_INT || s->state == S_FRACTION || s->state == S_EXPONENT;
    if (s->state != S_NEXT && s->state != S_DONE && !number)
        return false;
    for (uint32_t i = s->depth; i-- > 0;)
        buf_add_char(out, s->is_object[i / 8] >> (i % 8) & 1 ? '}' : ']');
    return true;
}

bool json_scan_in_string(const struct json_scan *s)
{
    return s->state >= S_STRING && s->state <= S_KEY_HEX;
}

bool json_scan_valid(const char *text, size_t n)
{
    struct json_scan s = JSON_SCAN_INIT;
    size_t i = 0;
    enum json_scan_step step = JSON_SCAN_MORE;
    while (i < n && (step == JSON_SCAN_MORE || step == JSON_SCAN_SPACE)) {
        if (json_scan_in_string(&s) && (unsigned char)text[i] < 0x20)
            return false;
        step = json_scan_byte(&s, text[i++]);
    }
    if (step == JSON_SCAN_PAST)
        i--;
    if (step != JSON_SCAN_END && step != JSON_SCAN_PAST)
        return step != JSON_SCAN_BAD && json_scan_may_end(&s);
    while (i < n && is_space(text[i]))
        i++;
    return i == n;
}

static uint32_t hex4(const char *p)
{
    uint32_t c = 0;
    for (int i = 0; i < 4; i++)
        c = c << 4 | (uint32_t)(is_digit(p[i]) ? p[i] - '0' : (p[i] | 0x20) - 'a' + 10);
    return c;
}

void json_scan_unquote(struct buf *out, const char *literal, size_t n)
{
    static const char plain[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    for (size_t i = 1; i + 1 < n; i++) {
        if (literal[i] != '\\') {
            buf_add_char(out, literal[i]);
            continue;
        }
        char c = literal[++i];
        if (c != 'u') {
            buf_add_char(out, strchr(plain, c)[1]);
            continue;
        }
        uint32_t code = hex4(literal + i + 1), low = 0;
        i += 4;
        if (code >= 0xD800 && code < 0xDC00 && i + 7 < n && literal[i + 1] == '\\' &&
            literal[i + 2] == 'u')
            low = hex4(literal + i + 3);
        if (low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            i += 6;
        }
        buf_add_utf8(out, code);
    }
}
