/* SPDX-License-Identifier: Apache-2.0 */
/* A pushdown automaton whose stack holds the closing brackets that are still missing. A comma is
 * held until the next item begins, so that a comma before a closing bracket can be left out.
 * Numbers and words are held until they end, because their translation depends on all of their
 * characters.
 *
 * With `python`: '''three quotes''', r'' and u'', "strings" "side by side", octal escapes, 0x1F,
 * keys that are numbers, comments. Such a string ends at the text after it (JOIN). */
#include "common/parsers/lenient_json.h"
#include <stdlib.h>
#include <string.h>
#include "common/parsers/json_scan.h"

enum state {
    VALUE,      /* a value must come */
    FIRST_ITEM, /* after [ or (: a value or the end */
    FIRST_KEY,  /* after {: a key or the end */
    KEY,        /* after a comma in an object: a key, or the end */
    ITEM,       /* after a comma in an array: a value, or the end */
    COLON,
    NEXT, /* after a value inside a container */
    STRING,
    ESCAPE,
    HEX,
    QUOTE,    /* in the format's own delimiter, before a string */
    BARE_KEY, /* in a key without quotes */
    WORD,     /* in a number or a word */
    TEXT,     /* in a string without quotes, up to what ends a member */
    OPENED,   /* python: behind a string's first quote */
    EMPTY,    /* behind two */
    JOIN,     /* behind a string, which another one may go on */
    OCTAL,
    KEY_WORD, /* in a key that is a number or a word */
    DONE
};

void lenient_json_init(struct lenient_json *l, const char *quote, bool bare_keys)
{
    l->quote = quote;
    l->bare_keys = bare_keys;
    l->bare_words = l->python = l->raw = l->triple = l->comment = false;
    l->state = VALUE;
    l->comma = false;
    l->n_gap = l->n_word = l->n_quote = 0;
    l->depth = 0;
}

void lenient_json_escape(struct buf *out, char c)
{
    unsigned char u = (unsigned char)c;
    if (c == '"' || c == '\\')
        buf_add_char(out, '\\');
    if (u >= 0x20)
        buf_add_char(out, c);
    else if (c == '\n' || c == '\t' || c == '\r')
        buf_add_str(out, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
    else
        buf_printf(out, "\\u%04x", u);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

static bool is_letter(char c)
{
    return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
}

/* ---- containers ---- */

static enum lenient_json_step value_over(struct lenient_json *l)
{
    l->state = l->depth ? NEXT : DONE;
    return l->depth ? LENIENT_JSON_MORE : LENIENT_JSON_END;
}

static void put_comma(struct lenient_json *l, struct buf *out)
{
    if (!l->comma)
        return;
    buf_add_char(out, ',');
    buf_add(out, l->gap, l->n_gap);
    l->comma = false;
    l->n_gap = 0;
}

static enum lenient_json_step open_level(struct lenient_json *l, char c, struct buf *out)
{
    if (l->depth == LENIENT_JSON_DEPTH_MAX)
        return LENIENT_JSON_BAD;
    buf_add_char(out, c == '{' ? '{' : '[');
    l->stack[l->depth++] = c == '{' ? '}' : c == '[' ? ']' : ')';
    l->state = c == '{' ? FIRST_KEY : FIRST_ITEM;
    return LENIENT_JSON_MORE;
}

#define SET 'S' /* on the stack: a set, which a brace closes */

static char closer(const struct lenient_json *l)
{
    char c = l->stack[l->depth - 1];
    return c == SET ? '}' : c;
}

void lenient_json_begin_set(struct lenient_json *l, struct buf *out)
{
    put_comma(l, out);
    if (open_level(l, '[', out) == LENIENT_JSON_MORE)
        l->stack[l->depth - 1] = SET;
}

static enum lenient_json_step close_level(struct lenient_json *l, struct buf *out)
{
    buf_add_char(out, l->stack[--l->depth] == '}' ? '}' : ']');
    l->comma = false;
    l->n_gap = 0;
    return value_over(l);
}

static enum lenient_json_step open_string(struct lenient_json *l, char c, bool key, struct buf *out)
{
    l->delimiter = c;
    l->key = key;
    l->n_quote = 0;
    l->raw = l->triple = false;
    l->state = l->python && c != 'Q' ? OPENED : STRING;
    buf_add_char(out, '"');
    return LENIENT_JSON_MORE;
}

static enum lenient_json_step close_string(struct lenient_json *l, struct buf *out)
{
    if (l->python && l->state != JOIN) {
        l->state = JOIN;
        return LENIENT_JSON_MORE;
    }
    buf_add_char(out, '"');
    if (!l->key)
        return value_over(l);
    l->state = COLON;
    return LENIENT_JSON_MORE;
}

/* ---- numbers and words ---- */

static const char *const words[][2] = {
    {"true", "true"}, {"false", "false"}, {"null", "null"},
    {"True", "true"}, {"False", "false"}, {"None", "null"},
};
#define N_WORD (sizeof words / sizeof *words)

/* Is what is held the prefix of a string? */
static bool is_prefix(const struct lenient_json *l)
{
    return l->python && l->n_word == 1 && strchr("rRuU", l->word[0]);
}

/* Can what is held become a number or a word? */
static bool word_possible(const struct lenient_json *l)
{
    if (is_prefix(l))
        return true;
    if (is_digit(l->word[0]) || strchr("+-.", l->word[0])) {
        char c = l->word[l->n_word - 1];
        return is_digit(c) || strchr("+-._eE", c) ||
               (l->python && (is_hex(c) || strchr("xXoO", c)));
    }
    for (size_t i = 0; i < N_WORD; i++)
        if (strncmp(words[i][0], l->word, l->n_word) == 0)
            return true;
    return false;
}

/* A number as Python has it: +1 .5 5. 1_000 007 -> JSON's. */
static bool put_number(const char *text, size_t n, struct buf *out)
{
    char number[2 * LENIENT_JSON_WORD_MAX + 4]; /* every point may get a zero */
    size_t n_number = 0, i = 0;
    if (text[i] == '+' || text[i] == '-')
        if (text[i++] == '-')
            number[n_number++] = '-';
    while (i + 1 < n && text[i] == '0' && is_digit(text[i + 1]))
        i++;
    if (i < n && text[i] == '.')
        number[n_number++] = '0';
    for (; i < n; i++) {
        if (text[i] == '_')
            continue;
        number[n_number++] = text[i];
        if (text[i] == '.' && (i + 1 == n || !is_digit(text[i + 1])))
            number[n_number++] = '0';
    }
    if (!json_scan_valid(number, n_number))
        return false;
    buf_add(out, number, n_number);
    return true;
}

/* 0x1F 0o17 0b11, up to 64 bits */
static bool put_based(const char *text, size_t n, struct buf *out)
{
    char digits[LENIENT_JSON_WORD_MAX + 1], *end;
    size_t n_digit = 0, i = text[0] == '-' || text[0] == '+';
    if (i + 2 >= n || text[i] != '0')
        return false;
    char kind = (char)(text[i + 1] | 0x20);
    int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    for (size_t k = i + 2; k < n; k++)
        if (text[k] != '_')
            digits[n_digit++] = text[k];
    digits[n_digit] = 0;
    if (!base || !n_digit || !is_hex(digits[0]) || n_digit > 63)
        return false;
    unsigned long long value = strtoull(digits, &end, base);
    if (*end || (base == 16 && n_digit > 16) || (base == 8 && n_digit > 21))
        return false;
    buf_printf(out, "%s%llu", text[0] == '-' ? "-" : "", value);
    return true;
}

static bool put_word(struct lenient_json *l, struct buf *out)
{
    size_t n = l->n_word;
    l->n_word = 0;
    if (l->python && put_based(l->word, n, out))
        return true;
    for (size_t i = 0; i < N_WORD; i++)
        if (strlen(words[i][0]) == n && memcmp(words[i][0], l->word, n) == 0) {
            buf_add_str(out, words[i][1]);
            return true;
        }
    if (!json_scan_valid(l->word, n))
        return put_number(l->word, n, out);
    buf_add(out, l->word, n);
    return true;
}

static enum lenient_json_step text_over(struct lenient_json *l, struct buf *out)
{
    buf_add_char(out, '"');
    l->n_gap = l->n_quote = 0; /* blanks before the end are layout */
    return value_over(l);
}

/* It ends before what ends a member, or at a delimiter whose first one was forgotten. */
static enum lenient_json_step in_text(struct lenient_json *l, char c, struct buf *out)
{
    if (l->quote && c == l->quote[l->n_quote])
        return l->quote[++l->n_quote] ? LENIENT_JSON_MORE : text_over(l, out);
    uint8_t n_quote = l->n_quote;
    l->n_quote = 0;
    if (!n_quote && c && strchr(",]}", c)) {
        text_over(l, out);
        return lenient_json_byte(l, c, out);
    }
    if (!n_quote && is_blank(c) && l->n_gap < LENIENT_JSON_GAP_MAX) {
        l->gap[l->n_gap++] = c;
        return LENIENT_JSON_MORE;
    }
    for (uint8_t i = 0; i < l->n_gap; i++)
        lenient_json_escape(out, l->gap[i]);
    l->n_gap = 0;
    for (uint8_t i = 0; l->quote && i < n_quote; i++) /* no delimiter after all */
        lenient_json_escape(out, l->quote[i]);
    if (n_quote)
        return in_text(l, c, out);
    lenient_json_escape(out, c);
    return LENIENT_JSON_MORE;
}

/* What was taken for a word is text, which is a value only inside an object or array. */
static enum lenient_json_step word_is_text(struct lenient_json *l, struct buf *out)
{
    if (!l->bare_words || l->depth == 0)
        return LENIENT_JSON_BAD;
    buf_add_char(out, '"');
    for (uint8_t i = 0; i < l->n_word; i++)
        lenient_json_escape(out, l->word[i]);
    l->n_word = 0;
    l->state = TEXT;
    return LENIENT_JSON_MORE;
}

static enum lenient_json_step in_word(struct lenient_json *l, char c, struct buf *out)
{
    if (is_letter(c) || is_digit(c) || c == '+' || c == '-' || c == '.') {
        if (l->n_word == LENIENT_JSON_WORD_MAX)
            return LENIENT_JSON_BAD;
        l->word[l->n_word++] = c;
        return word_possible(l) ? LENIENT_JSON_MORE : word_is_text(l, out);
    }
    if (is_prefix(l) && (c == '"' || c == '\'')) {
        bool raw = (l->word[0] | 0x20) == 'r';
        open_string(l, c, false, out);
        l->raw = raw;
        return LENIENT_JSON_MORE;
    }
    uint8_t n = l->n_word;
    if (!put_word(l, out)) {
        l->n_word = n;
        return word_is_text(l, out) == LENIENT_JSON_MORE ? in_text(l, c, out) : LENIENT_JSON_BAD;
    }
    if (value_over(l) == LENIENT_JSON_END)
        return LENIENT_JSON_PAST;
    return lenient_json_byte(l, c, out);
}

/* ---- strings ---- */

/* The format's own delimiter occurs with its first byte only at its begin, so what matched of it so
 * far and is none contains no other begin. */
static enum lenient_json_step in_quoted(struct lenient_json *l, char c, struct buf *out)
{
    if (c == l->quote[l->n_quote]) {
        if (l->quote[++l->n_quote])
            return LENIENT_JSON_MORE;
        l->n_quote = 0;
        return close_string(l, out);
    }
    for (uint8_t i = 0; i < l->n_quote; i++)
        lenient_json_escape(out, l->quote[i]);
    if (l->n_quote) {
        l->n_quote = 0;
        return in_quoted(l, c, out);
    }
    lenient_json_escape(out, c);
    return LENIENT_JSON_MORE;
}

static enum lenient_json_step in_string(struct lenient_json *l, char c, struct buf *out)
{
    if (l->delimiter == 'Q')
        return in_quoted(l, c, out);
    if (l->triple && c == l->delimiter && ++l->n_quote < 3)
        return LENIENT_JSON_MORE;
    if (c == l->delimiter)
        return close_string(l, out);
    for (; l->n_quote; l->n_quote--)
        lenient_json_escape(out, l->delimiter);
    if (c == '\\')
        l->state = ESCAPE;
    else
        lenient_json_escape(out, c);
    return LENIENT_JSON_MORE;
}

/* Behind the first quote of a string, and behind two: the third makes a string of three. */
static enum lenient_json_step in_opened(struct lenient_json *l, char c, struct buf *out)
{
    if (l->state == OPENED && c == l->delimiter) {
        l->state = EMPTY;
        return LENIENT_JSON_MORE;
    }
    if (l->state == EMPTY && c != l->delimiter) {
        l->state = JOIN;
        return lenient_json_byte(l, c, out);
    }
    l->triple = l->state == EMPTY;
    l->state = STRING;
    return l->triple ? LENIENT_JSON_MORE : in_string(l, c, out);
}

/* Behind a string: another one goes on with it, anything else shows that it is over. */
static enum lenient_json_step in_join(struct lenient_json *l, char c, struct buf *out)
{
    if (is_blank(c))
        return LENIENT_JSON_MORE;
    l->n_quote = 0;
    if (c == '"' || c == '\'') {
        l->delimiter = c;
        l->raw = l->triple = false;
        l->state = OPENED;
        return LENIENT_JSON_MORE;
    }
    return close_string(l, out) == LENIENT_JSON_END ? LENIENT_JSON_PAST
                                                    : lenient_json_byte(l, c, out);
}

static void put_code(struct buf *out, uint32_t code)
{
    if (code < 0x80)
        lenient_json_escape(out, (char)code);
    else
        buf_add_utf8(out, code);
}

/* Up to three digits. */
static enum lenient_json_step in_octal(struct lenient_json *l, char c, struct buf *out)
{
    bool digit = c >= '0' && c <= '7';
    if (digit)
        l->octal = (uint16_t)(l->octal * 8 + (c - '0'));
    if (digit && ++l->n_hex < 3)
        return LENIENT_JSON_MORE;
    l->state = STRING;
    put_code(out, l->octal);
    return digit ? LENIENT_JSON_MORE : in_string(l, c, out);
}

/* The escapes that only Python has. False: it is none of them. */
static bool python_escape(struct lenient_json *l, char c, struct buf *out)
{
    if (l->raw) {
        buf_add_str(out, "\\\\");
        lenient_json_escape(out, c);
    } else if (c >= '0' && c <= '7') {
        l->state = OCTAL;
        l->octal = (uint16_t)(c - '0');
        l->n_hex = 1;
    } else if (c == 'a' || c == 'v') {
        put_code(out, c == 'a' ? 7 : 11);
    } else {
        return false;
    }
    return true;
}

static enum lenient_json_step in_escape(struct lenient_json *l, char c, struct buf *out)
{
    l->state = STRING;
    if (l->python && python_escape(l, c, out))
        return LENIENT_JSON_MORE;
    if (c && strchr("\"\\/bfnrt", c)) {
        buf_add_char(out, '\\');
        buf_add_char(out, c);
    } else if (c == 'u' || c == 'x' || c == 'U') {
        l->state = HEX;
        l->word[0] = c;
        l->n_hex = 0;
        l->hex_want = c == 'u' ? 4 : c == 'x' ? 2 : 8;
    } else if (c == '\'') {
        buf_add_char(out, c);
    } else if (c != '\n') { /* a line that goes on; anything else stands for itself */
        buf_add_str(out, "\\\\");
        return in_string(l, c, out);
    }
    return LENIENT_JSON_MORE;
}

static enum lenient_json_step in_hex(struct lenient_json *l, char c, struct buf *out)
{
    if (!is_hex(c)) { /* no escape after all */
        buf_add_str(out, "\\\\");
        buf_add(out, l->word, 1u + l->n_hex);
        l->state = STRING;
        return in_string(l, c, out);
    }
    l->word[1 + l->n_hex++] = c;
    if (l->n_hex < l->hex_want)
        return LENIENT_JSON_MORE;
    l->state = STRING;
    uint32_t code = 0;
    for (uint8_t i = 1; i <= l->n_hex; i++)
        code = code << 4 |
               (uint32_t)(is_digit(l->word[i]) ? l->word[i] - '0' : (l->word[i] | 0x20) - 'a' + 10);
    if (l->word[0] == 'u')
        buf_printf(out, "\\u%.4s", l->word + 1);
    else if (l->word[0] == 'x')
        buf_printf(out, "\\u%04x", code);
    else
        buf_add_utf8(out, code);
    return LENIENT_JSON_MORE;
}

/* ---- values and what is between them ---- */

static enum lenient_json_step begin_value(struct lenient_json *l, char c, struct buf *out)
{
    put_comma(l, out);
    if (c == '{' || c == '[' || c == '(')
        return open_level(l, c, out);
    if (l->quote && c == l->quote[0]) {
        l->state = QUOTE;
        l->key = false;
        l->n_quote = 1;
        return LENIENT_JSON_MORE;
    }
    if (c == '"' || c == '\'')
        return open_string(l, c, false, out);
    l->state = WORD;
    l->n_word = 0;
    if (!is_letter(c) && !is_digit(c) && c != '-' && c != '+' && c != '.') {
        enum lenient_json_step step =
            strchr(",]}:", c) && c ? LENIENT_JSON_BAD : word_is_text(l, out);
        return step == LENIENT_JSON_MORE ? in_text(l, c, out) : step;
    }
    return in_word(l, c, out);
}

static enum lenient_json_step begin_key(struct lenient_json *l, char c, struct buf *out)
{
    put_comma(l, out);
    if (c == '"' || c == '\'')
        return open_string(l, c, true, out);
    if (l->quote && c == l->quote[0]) {
        l->state = QUOTE;
        l->key = true;
        l->n_quote = 1;
        return LENIENT_JSON_MORE;
    }
    if (l->python && (is_letter(c) || is_digit(c) || c == '-')) {
        l->state = KEY_WORD;
        l->n_word = 0;
        l->word[l->n_word++] = c;
        return LENIENT_JSON_MORE;
    }
    if (!l->bare_keys || !(is_letter(c) || is_digit(c) || (unsigned char)c >= 0x80))
        return LENIENT_JSON_BAD;
    l->state = BARE_KEY;
    buf_add_char(out, '"');
    buf_add_char(out, c);
    return LENIENT_JSON_MORE;
}

/* A number or word as a key is the string of it. */
static enum lenient_json_step in_key_word(struct lenient_json *l, char c, struct buf *out)
{
    if (is_letter(c) || is_digit(c) || c == '.' || c == '-' || c == '+') {
        if (l->n_word == LENIENT_JSON_WORD_MAX)
            return LENIENT_JSON_BAD;
        l->word[l->n_word++] = c;
        return LENIENT_JSON_MORE;
    }
    buf_add_char(out, '"');
    if (!put_word(l, out))
        return LENIENT_JSON_BAD;
    buf_add_char(out, '"');
    l->state = COLON;
    return lenient_json_byte(l, c, out);
}

static enum lenient_json_step in_bare_key(struct lenient_json *l, char c, struct buf *out)
{
    if (c == ':') {
        buf_add_str(out, "\":");
        l->state = VALUE;
        return LENIENT_JSON_MORE;
    }
    if (c && strchr("{}[]\"',\n", c))
        return LENIENT_JSON_BAD;
    lenient_json_escape(out, c);
    return LENIENT_JSON_MORE;
}

static enum lenient_json_step in_quote(struct lenient_json *l, char c, struct buf *out)
{
    if (c != l->quote[l->n_quote])
        return LENIENT_JSON_BAD;
    return l->quote[++l->n_quote] ? LENIENT_JSON_MORE : open_string(l, 'Q', l->key, out);
}

static enum lenient_json_step between(struct lenient_json *l, char c, struct buf *out)
{
    bool may_close = l->state == FIRST_ITEM || l->state == FIRST_KEY || l->state == KEY ||
                     l->state == ITEM || l->state == NEXT;
    if (l->python && c == '#') {
        l->comment = true;
        return LENIENT_JSON_MORE;
    }
    if (is_blank(c)) {
        if (!l->comma)
            buf_add_char(out, c);
        else if (l->n_gap < LENIENT_JSON_GAP_MAX)
            l->gap[l->n_gap++] = c;
        return LENIENT_JSON_MORE;
    }
    if (may_close && l->depth && c == closer(l))
        return close_level(l, out);
    switch (l->state) {
    case FIRST_KEY:
    case KEY:
        return begin_key(l, c, out);
    case COLON:
        if (c != ':')
            return LENIENT_JSON_BAD;
        buf_add_char(out, c);
        l->state = VALUE;
        return LENIENT_JSON_MORE;
    case NEXT:
        if (c != ',')
            return LENIENT_JSON_BAD;
        l->comma = true;
        l->state = l->stack[l->depth - 1] == '}' ? KEY : ITEM;
        return LENIENT_JSON_MORE;
    default:
        return begin_value(l, c, out);
    }
}

enum lenient_json_step lenient_json_byte(struct lenient_json *l, char c, struct buf *out)
{
    if (l->comment) {
        l->comment = c != '\n';
        return LENIENT_JSON_MORE;
    }
    switch (l->state) {
    case STRING:
        return in_string(l, c, out);
    case ESCAPE:
        return in_escape(l, c, out);
    case HEX:
        return in_hex(l, c, out);
    case QUOTE:
        return in_quote(l, c, out);
    case BARE_KEY:
        return in_bare_key(l, c, out);
    case WORD:
        return in_word(l, c, out);
    case TEXT:
        return in_text(l, c, out);
    case OPENED:
    case EMPTY:
        return in_opened(l, c, out);
    case JOIN:
        return in_join(l, c, out);
    case OCTAL:
        return in_octal(l, c, out);
    case KEY_WORD:
        return in_key_word(l, c, out);
    case DONE:
        return LENIENT_JSON_BAD;
    default:
        return between(l, c, out);
    }
}

bool lenient_json_closes(const struct lenient_json *l, char c)
{
    return l->state == STRING && l->depth == 0 && !l->triple && c == l->delimiter;
}

bool lenient_json_at_value(const struct lenient_json *l)
{
    return !l->comment && (l->state == VALUE || l->state == FIRST_ITEM || l->state == ITEM);
}

bool lenient_json_finish(struct lenient_json *l, struct buf *out)
{
    if (l->state == WORD && l->depth == 0 && put_word(l, out))
        l->state = DONE;
    if ((l->state == JOIN || l->state == EMPTY) && l->depth == 0)
        lenient_json_settle(l, out);
    return l->state == DONE;
}

void lenient_json_settle(struct lenient_json *l, struct buf *out)
{
    if (l->state == WORD && put_word(l, out))
        value_over(l);
    if (l->state == EMPTY)
        l->state = JOIN;
    if (l->state == JOIN)
        close_string(l, out);
}

static bool whole(const char *text, size_t n, bool python, struct buf *out)
{
    struct lenient_json l;
    enum lenient_json_step step = LENIENT_JSON_MORE;
    lenient_json_init(&l, NULL, false);
    l.python = python;
    size_t i = 0;
    while (i < n && step == LENIENT_JSON_MORE)
        step = lenient_json_byte(&l, text[i++], out);
    if (step == LENIENT_JSON_PAST)
        i--;
    if (step == LENIENT_JSON_BAD || (step == LENIENT_JSON_MORE && !lenient_json_finish(&l, out)))
        return false;
    while (i < n && is_blank(text[i]))
        i++;
    return i == n;
}

bool lenient_json_whole(const char *text, size_t n, struct buf *out)
{
    return whole(text, n, false, out);
}

bool lenient_json_whole_python(const char *text, size_t n, struct buf *out)
{
    return whole(text, n, true, out);
}
