/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in the notation of a program:
 *
 *   [f(a=1, b="x"), g()]     with brackets, or one call per line (CALL_LINES)
 *   call:f{a:1,b:<q>x<q>}    CALL_BRACES, with a string delimiter of the format
 *
 *   LIST > NAME -(-> ARG > ARG_NAME -=-> VALUE > NEXT -)-> AFTER
 *                                           `-> BRACE, QUOTED, or RAW -> NEXT
 *
 * Values are translated to JSON by lenient_json.h. A string whose schema does not allow strings is
 * translated as the value in it. A list without a tag must begin with the name of a known function
 * and an opening parenthesis.
 *
 * A brace in f(a={…}) begins an object or a set; the first member decides (BRACE). In
 * call:f{a:text} strings need no quotes (RAW).
 *
 * Two errors in f(a=1) that Python rejects are corrected. A quote that is not escaped inside a
 * string: the string ends only at a quote after which an argument can end (QUOTED looks ahead). A
 * string without quotes where the schema requires a string: it ends before the next known
 * parameter, or at a closing parenthesis without an opening one in the string (RAW). */
#include "common/parsers/parser_internal.h"
#include <string.h>
#include "common/parsers/json_scan.h"
#include "common/parsers/lenient_json.h"
#include "common/parsers/types.h"

enum place { LIST, NAME, ARG, ARG_NAME, VALUE, BRACE, QUOTED, RAW, NEXT, AFTER };

#define AHEAD_MAX      (FORMAT_NAME_MAX + 64) /* bytes that are looked at behind a quote */
#define STRINGS_MAX    2 /* strings behind each other there; the time doubles with every one */
#define NAME_AHEAD_MAX (2 * FORMAT_NAME_MAX) /* bytes that may be a name, blanks around it */

struct calls {
    enum place place;
    bool bracket; /* a list's bracket is open */
    bool empty;   /* it was closed with nothing in it */
    bool any;     /* the call has an argument */
    bool paren;   /* call:f(…), a slip */
    bool in_value, keep;
    bool comment;    /* between arguments, up to the line's end */
    char quote;      /* BRACE: of the string within, 0 = none */
    char name_quote; /* the first byte of the delimiter a parameter's name is in; 0: in none */
    bool escaped;
    struct buf name, scratch;
    struct buf head; /* an argument's name and what stands before it, until its value is certain */
    char arg[FORMAT_NAME_MAX + 1];
    size_t n_arg;
    char tag[FORMAT_TAG_MAX];
    size_t n_tag;
    unsigned types;
    struct lenient_json value;
    struct buf ahead; /* QUOTED: the quote and what follows it */
    size_t comma;     /* RAW: behind the last comma in scratch, 0 = none */
    uint32_t n_open;  /* RAW: parentheses that are open */
    uint32_t n_call;  /* of this region */
};

static void calls_begin(struct parser *p)
{
    struct calls *k = format_state(p);
    k->place = LIST;
    k->bracket = k->empty = false;
    k->n_tag = 0;
    k->n_call = 0;
    buf_reset(&k->name);
}

static bool is_name(char c)
{
    return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static bool braces(const struct parser *p)
{
    return format_row(p)->flags & CALL_BRACES;
}

/* What ends the arguments. */
static char closer(const struct parser *p, const struct calls *k)
{
    return braces(p) && !k->paren ? '}' : ')';
}

static enum part begin_call(struct calls *k, enum place place)
{
    buf_reset(&k->name);
    k->place = place;
    k->any = k->paren = k->comment = false;
    k->name_quote = 0;
    return PART_MORE;
}

/* ---- names ---- */

static enum part name_byte(struct parser *p, struct calls *k, char c)
{
    if (is_name(c) || c == '.' || c == '-' || (braces(p) && (c == ':' || c == '/'))) {
        buf_add_char(&k->name, c);
        return k->name.len > FORMAT_NAME_MAX ? PART_BAD : PART_MORE;
    }
    if (braces(p)) { /* call:f, or just :f, or :call:f */
        size_t n = *buf_str(&k->name) == ':';
        n += strncmp(buf_str(&k->name) + n, "call:", 5) == 0 ? 5 : 0;
        if (n == 0 || k->name.failed)
            return PART_BAD;
        k->name.len -= n;
        memmove(k->name.data, k->name.data + n, k->name.len + 1);
    }
    k->paren = c == '(';
    if (k->name.len == 0 || k->name.failed || (c != '(' && (c != '{' || !braces(p))))
        return PART_BAD;
    if (region_bare(p) && format_tools_known(p) && !format_function(p, buf_str(&k->name)))
        return PART_BAD;
    k->place = ARG;
    return PART_MORE;
}

static enum part list_byte(struct parser *p, struct calls *k, char c)
{
    const struct tool_format *f = format_row(p);
    bool lines = f->flags & CALL_LINES;
    size_t whole;
    if (k->bracket && c == ']' && f->close[0] && k->n_tag == 0) {
        k->bracket = false;
        k->empty = true;
        return PART_MORE;
    }
    if (k->n_tag || (f->close[0] && c == f->close[0][0])) { /* nothing is called */
        k->tag[k->n_tag++] = c;
        int i = tag_begun(f->close, k->tag, k->n_tag, &whole);
        return whole ? PART_END : i >= 0 ? PART_MORE : PART_BAD;
    }
    if (is_blank(c))
        return PART_MORE;
    if (c == '[' && !k->bracket && !k->empty && !braces(p) && !k->n_call) {
        k->bracket = true;
        return PART_MORE;
    }
    if (k->empty || (!k->bracket && !braces(p) && !lines))
        return PART_BAD;
    begin_call(k, NAME);
    return name_byte(p, k, c);
}

/* ---- arguments ---- */

static void announce(struct parser *p, struct calls *k)
{
    if (!call_announced(p))
        call_announce(p, k->name.data, k->name.len);
}

static enum part call_over(struct parser *p, struct calls *k)
{
    announce(p, k);
    call_args(p, k->any ? "}" : "{}", k->any ? 1 : 2);
    call_end(p);
    k->n_call++;
    k->place = AFTER;
    return PART_MORE;
}

static enum part arg_over(struct parser *p, struct calls *k)
{
    k->arg[k->n_arg] = 0;
    buf_reset(&k->head);
    buf_add_str(&k->head, k->any ? ", " : "{");
    buf_add_json_str(&k->head, k->arg, k->n_arg);
    buf_add_str(&k->head, ": ");
    k->any = true;
    k->types = types_of(format_function(p, buf_str(&k->name)), k->arg);
    lenient_json_init(&k->value, format_row(p)->quote, braces(p));
    k->value.bare_words = braces(p);
    k->value.python = !braces(p);
    k->in_value = k->keep = false;
    buf_reset(&k->scratch);
    k->place = VALUE;
    return PART_MORE;
}

/* Quotes around a parameter's name in braces, which needs none. PART_END: the byte is of them. */
static enum part name_quote(struct parser *p, struct calls *k, char c)
{
    const char *quote = format_row(p)->quote;
    if (!braces(p))
        return PART_MORE;
    if (!k->n_tag && c != quote[0]) {
        bool is_quote = (c == '"' || c == '\'') && (!k->name_quote || k->name_quote == c);
        if (is_quote)
            k->name_quote = k->name_quote ? 0 : c;
        return is_quote ? PART_END : PART_MORE;
    }
    if (c != quote[k->n_tag])
        return PART_BAD;
    k->n_tag = quote[k->n_tag + 1] ? k->n_tag + 1 : 0;
    if (k->n_tag == 0)
        k->name_quote = k->name_quote ? 0 : quote[0];
    return PART_END;
}

static enum part arg_byte(struct parser *p, struct calls *k, char c)
{
    enum part quote = name_quote(p, k, c);
    if (quote != PART_MORE)
        return quote == PART_END ? PART_MORE : PART_BAD;
    if (k->place == ARG && c == '#' && !braces(p)) {
        k->comment = true;
        return PART_MORE;
    }
    bool quoted = k->name_quote != 0;
    if (k->place == ARG && !quoted && is_blank(c))
        return PART_MORE;
    if (k->place == ARG && !quoted && c == closer(p, k))
        return call_over(p, k);
    if (k->place == ARG && c == ',' && k->any && !quoted) /* one too many */
        return PART_MORE;
    if (k->place == ARG) {
        k->place = ARG_NAME;
        k->n_arg = 0;
    }
    if (c == (braces(p) ? ':' : '=') && !quoted && k->n_arg)
        return arg_over(p, k);
    if (is_blank(c) && !quoted)
        return PART_MORE;
    if ((!quoted && !is_name(c) && c != '-' && c != '.') || k->n_arg == FORMAT_NAME_MAX)
        return PART_BAD;
    k->arg[k->n_arg++] = c;
    return PART_MORE;
}

/* A piece of a value: the argument's name goes before the first. */
static void value_out(struct parser *p, struct calls *k, const char *text, size_t n)
{
    announce(p, k);
    kept(p, &k->head);
    call_args(p, buf_str(&k->head), k->head.len);
    buf_reset(&k->head);
    call_args(p, text, n);
}

/* The kept string is complete in scratch; what it holds is wanted, not the string. */
static void kept_over(struct parser *p, struct calls *k)
{
    struct buf text = BUF_INIT, value = BUF_INIT;
    json_scan_unquote(&text, buf_str(&k->scratch), k->scratch.len);
    types_value(k->types, buf_str(&text), text.len, &value);
    kept(p, &text);
    kept(p, &value);
    value_out(p, k, buf_str(&value), value.len);
    buf_release(&text);
    buf_release(&value);
}

static enum part next_byte(struct parser *p, struct calls *k, char c);
static enum part read_byte(struct parser *p, struct calls *k, char c);

/* One more byte of a value that lenient_json.h reads. */
static enum lenient_json_step value_step(struct parser *p, struct calls *k, char c)
{
    struct buf piece = BUF_INIT;
    enum lenient_json_step step = lenient_json_byte(&k->value, c, k->keep ? &k->scratch : &piece);
    kept(p, k->keep ? &k->scratch : &piece);
    if (piece.len)
        value_out(p, k, piece.data, piece.len);
    buf_release(&piece);
    return step;
}

static enum part lenient_json_value(struct parser *p, struct calls *k, char c)
{
    enum lenient_json_step step = value_step(p, k, c);
    if (step == LENIENT_JSON_BAD)
        return PART_BAD;
    if (step == LENIENT_JSON_MORE)
        return PART_MORE;
    if (k->keep)
        kept_over(p, k);
    k->place = NEXT;
    return step == LENIENT_JSON_PAST ? next_byte(p, k, c) : PART_MORE;
}

static enum part value_byte(struct parser *p, struct calls *k, char c)
{
    const char *quote = format_row(p)->quote;
    if (!k->in_value && is_blank(c))
        return PART_MORE;
    if (!k->in_value) {
        bool string = c == '"' || c == '\'' || (quote && c == quote[0]);
        k->in_value = true;
        k->keep = string && k->types && !(k->types & TYPE_STRING);
        if (!string && (k->types & TYPE_STRING || braces(p)) && !strchr("[({)", c)) {
            k->place = RAW;
            k->comma = k->n_open = 0;
            return read_byte(p, k, c);
        }
    }
    if (c == '{' && !braces(p) && lenient_json_at_value(&k->value)) {
        k->place = BRACE;
        k->quote = 0;
        k->escaped = false;
        buf_reset(&k->ahead);
        buf_add_char(&k->ahead, c);
        return PART_MORE;
    }
    if (!braces(p) && lenient_json_closes(&k->value, c)) {
        k->place = QUOTED;
        buf_reset(&k->ahead);
        buf_add_char(&k->ahead, c);
        return PART_MORE;
    }
    return lenient_json_value(p, k, c);
}

/* ---- a brace: an object's, or a set's ---- */

/* Up to what follows the first member. */
static enum part brace_byte(struct parser *p, struct calls *k, char c)
{
    buf_add_char(&k->ahead, c);
    if (k->quote) {
        if (!k->escaped && c == k->quote)
            k->quote = 0;
        k->escaped = !k->escaped && c == '\\';
        return PART_MORE;
    }
    if (c == '"' || c == '\'')
        k->quote = c;
    if (!c || !strchr(":,}{[(", c) || k->ahead.failed)
        return PART_MORE;
    size_t blank = 1;
    while (blank < k->ahead.len && is_blank(k->ahead.data[blank]))
        blank++;
    bool set =
        c == '(' ? blank + 1 == k->ahead.len : (c == ',' || c == '}') && blank + 1 < k->ahead.len;
    struct buf ahead = k->ahead, out = BUF_INIT;
    enum part part = PART_MORE;
    k->ahead = (struct buf)BUF_INIT;
    k->place = VALUE;
    if (set) {
        lenient_json_begin_set(&k->value, &out);
        kept(p, &out);
        value_out(p, k, buf_str(&out), out.len);
    }
    for (size_t i = set; i < ahead.len && part == PART_MORE; i++)
        part = i ? read_byte(p, k, ahead.data[i]) : lenient_json_value(p, k, ahead.data[i]);
    buf_release(&out);
    buf_release(&ahead);
    return part;
}

/* ---- a quote inside a string, or its end ---- */

enum follows { FOLLOWS_MORE, FOLLOWS_VALUE, FOLLOWS_TEXT };

/* Is the parenthesis at text[0] the last of a call? Only a few things may follow it. */
static enum follows call_ends(const struct parser *p, const char *text, size_t n)
{
    const char *close = format_row(p)->close[0];
    size_t i = 1;
    while (i < n && is_blank(text[i]))
        i++;
    if (i == n)
        return n < AHEAD_MAX ? FOLLOWS_MORE : FOLLOWS_VALUE;
    bool line = format_row(p)->flags & CALL_LINES && (is_name(text[i]) || i > 1);
    return strchr("],;", text[i]) || (close && text[i] == close[0]) || line ? FOLLOWS_VALUE
                                                                            : FOLLOWS_TEXT;
}

static enum follows what_follows(const struct parser *p, const char *text, size_t n, int nesting);

/* A quote at text[at], behind another one: does it begin a string that goes on with the first? It
 * does if that string ends where a value may. A quote at a value's end belongs to the text. */
static enum follows string_follows(const struct parser *p, const char *text, size_t n, size_t at,
                                   int nesting)
{
    size_t i = at + 1;
    enum follows end = at ? FOLLOWS_TEXT : what_follows(p, text + 1, n - 1, nesting);
    if (end == FOLLOWS_VALUE || (end == FOLLOWS_MORE && n < AHEAD_MAX))
        return end == FOLLOWS_VALUE ? FOLLOWS_TEXT : FOLLOWS_MORE;
    while (i < n && text[i] != text[at])
        i += text[i] == '\\' ? 2 : 1;
    if (i >= n)
        return n < AHEAD_MAX ? FOLLOWS_MORE : FOLLOWS_TEXT;
    return what_follows(p, text + i + 1, n - i - 1, nesting);
}

/* Can `text`, behind a quote, stand behind a value? ")", ",", "]" (a slip), and a name with "=". */
static enum follows what_follows(const struct parser *p, const char *text, size_t n, int nesting)
{
    bool comma = false;
    size_t i = 0, from;
    while (i < n && (is_blank(text[i]) || (text[i] == ',' && !comma) || (text[i] == '#' && i))) {
        if (text[i] == '#') /* a comment */
            while (i + 1 < n && text[i] != '\n')
                i++;
        comma |= text[i++] == ',';
    }
    if (i < n && !comma && (text[i] == '"' || text[i] == '\''))
        return nesting == STRINGS_MAX ? FOLLOWS_TEXT : string_follows(p, text, n, i, nesting + 1);
    if (i + 1 == n && !comma && text[i] == '+')
        return n < AHEAD_MAX ? FOLLOWS_MORE : FOLLOWS_TEXT;
    if (i < n && !comma && text[i] == '+' && strchr("\"' ", text[i + 1])) /* no literal */
        return FOLLOWS_VALUE;
    for (from = i; i < n && (is_name(text[i]) || text[i] == '-' || text[i] == '.');)
        i++;
    if (i == n)
        return n < AHEAD_MAX ? FOLLOWS_MORE : FOLLOWS_TEXT;
    if (i == from)
        return text[i] == ')'             ? call_ends(p, text + i, n - i)
               : text[i] == ']' && !comma ? FOLLOWS_VALUE
                                          : FOLLOWS_TEXT;
    while (i < n && is_blank(text[i]))
        i++;
    if (i == n)
        return n < AHEAD_MAX ? FOLLOWS_MORE : FOLLOWS_TEXT;
    return text[i] == '=' ? FOLLOWS_VALUE : FOLLOWS_TEXT;
}

static enum part quoted_byte(struct parser *p, struct calls *k, char c)
{
    enum part part = PART_MORE;
    struct buf ahead;
    buf_add_char(&k->ahead, c);
    enum follows follows = what_follows(p, buf_str(&k->ahead) + 1, k->ahead.len - 1, 0);
    if (k->ahead.failed || follows == FOLLOWS_MORE)
        return PART_MORE;
    ahead = k->ahead;
    k->ahead = (struct buf)BUF_INIT;
    k->place = VALUE;
    if (follows == FOLLOWS_TEXT)
        lenient_json_value(p, k, '\\'); /* the quote is one of the text */
    part = lenient_json_value(p, k, ahead.data[0]);
    for (size_t i = 1; i < ahead.len && part == PART_MORE; i++)
        part = read_byte(p, k, ahead.data[i]);
    buf_release(&ahead);
    return part;
}

/* ---- a string without quotes ---- */

/* What came is the whole value: a number or a word, or else a string. */
static void raw_over(struct parser *p, struct calls *k, size_t n)
{
    struct buf value = BUF_INIT;
    const char *text = buf_str(&k->scratch);
    while (n && is_blank(text[n - 1]))
        n--;
    if (braces(p)) {
        types_value(k->types | (k->types & TYPE_NULL ? TYPE_NONE : 0), text, n, &value);
    } else if (!lenient_json_whole_python(text, n, &value)) {
        buf_reset(&value);
        buf_add_char(&value, '"');
        for (size_t i = 0; i < n; i++)
            lenient_json_escape(&value, text[i]);
        buf_add_char(&value, '"');
    }
    kept(p, &value);
    value_out(p, k, buf_str(&value), value.len);
    buf_release(&value);
}

/* Is text[0..n) the name of one of the function's parameters? It is kept as the next one's. */
static bool next_arg(const struct parser *p, struct calls *k, const char *text, size_t n)
{
    const json_t *f = format_function(p, buf_str(&k->name));
    const json_t *known = json_object_get(json_object_get(f, "parameters"), "properties");
    while (n && is_blank(*text)) {
        text++;
        n--;
    }
    while (n && is_blank(text[n - 1]))
        n--;
    if (n == 0 || n > FORMAT_NAME_MAX)
        return false;
    char name[FORMAT_NAME_MAX + 1];
    memcpy(name, text, n);
    name[n] = 0;
    if (!json_object_get(known, name))
        return false;
    memcpy(k->arg, name, n);
    k->n_arg = n;
    return true;
}

/* Is text[0..n) a name, blanks and quotes aside? It is kept as the next parameter's. */
static bool takes_name(struct calls *k, const char *text, size_t n)
{
    while (n && (is_blank(*text) || *text == '"' || *text == '\'')) {
        text++;
        n--;
    }
    while (n && (is_blank(text[n - 1]) || text[n - 1] == '"' || text[n - 1] == '\''))
        n--;
    for (size_t i = 0; i < n; i++)
        if (!is_name(text[i]) && text[i] != '-' && text[i] != '.')
            return false;
    if (n == 0 || n > FORMAT_NAME_MAX)
        return false;
    memcpy(k->arg, text, n);
    k->n_arg = n;
    return true;
}

/* In braces it ends at the brace, before a name and a colon, or at a delimiter whose first one was
 * forgotten; what can be no text ends at any comma. */
static enum part raw_in_braces(struct parser *p, struct calls *k, char c)
{
    bool text = !k->types || k->types & TYPE_STRING;
    const char *quote = format_row(p)->quote;
    size_t n_quote = strlen(quote);
    if (c == closer(p, k) || (c == ',' && !text)) {
        raw_over(p, k, k->scratch.len);
        k->place = NEXT;
        return next_byte(p, k, c);
    }
    if (c == ':' && k->comma && k->scratch.len - k->comma < NAME_AHEAD_MAX &&
        takes_name(k, k->scratch.data + k->comma, k->scratch.len - k->comma)) {
        raw_over(p, k, k->comma - 1);
        return arg_over(p, k);
    }
    buf_add_char(&k->scratch, c);
    size_t n_close = tag_ends(format_row(p)->close[0], k->scratch.data, k->scratch.len);
    if (n_close) { /* the brace is missing */
        raw_over(p, k, k->scratch.len - n_close);
        call_over(p, k);
        return PART_END;
    }
    if (c == ',')
        k->comma = k->scratch.len;
    if (k->scratch.len < n_quote || c != quote[n_quote - 1] ||
        memcmp(k->scratch.data + k->scratch.len - n_quote, quote, n_quote) != 0)
        return PART_MORE;
    raw_over(p, k, k->scratch.len - n_quote);
    k->place = NEXT;
    return PART_MORE;
}

static enum part raw_byte(struct parser *p, struct calls *k, char c)
{
    if (braces(p))
        return raw_in_braces(p, k, c);
    if (k->scratch.len == 1 && strchr("rRuU", k->scratch.data[0]) && (c == '"' || c == '\'')) {
        char prefix = k->scratch.data[0];
        buf_reset(&k->scratch);
        k->place = VALUE;
        lenient_json_value(p, k, prefix);
        return lenient_json_value(p, k, c);
    }
    if (c == ')' && k->n_open == 0) {
        raw_over(p, k, k->scratch.len);
        return call_over(p, k);
    }
    if (c == '=' && k->comma && k->scratch.len - k->comma < NAME_AHEAD_MAX &&
        next_arg(p, k, k->scratch.data + k->comma, k->scratch.len - k->comma)) {
        raw_over(p, k, k->comma - 1);
        return arg_over(p, k);
    }
    buf_add_char(&k->scratch, c);
    k->n_open += c == '(';
    k->n_open -= c == ')';
    if (c == ',')
        k->comma = k->scratch.len;
    return PART_MORE;
}

/* After a value. A missing comma is a slip that is easy to see through. */
static enum part next_byte(struct parser *p, struct calls *k, char c)
{
    if (is_blank(c))
        return PART_MORE;
    if (c == closer(p, k))
        return call_over(p, k);
    k->comment = c == '#' && !braces(p);
    if (k->comment)
        return PART_MORE;
    k->place = ARG;
    return c == ',' ? PART_MORE : arg_byte(p, k, c);
}

/* ---- after a call ---- */

static enum part after_byte(struct parser *p, struct calls *k, char c)
{
    const struct tool_format *f = format_row(p);
    bool list = k->bracket || f->flags & CALL_LINES;
    size_t whole;
    k->tag[k->n_tag++] = c;
    if (tag_begun(f->close, k->tag, k->n_tag, &whole) >= 0)
        return whole ? PART_END : PART_MORE;
    if (k->n_tag > 1)
        return PART_PAST;
    k->n_tag = 0;
    if (is_blank(c))
        return PART_MORE;
    if (c == ']' && k->bracket) {
        k->bracket = false;
        call_drop_kept(p);
        return f->close[0] ? PART_MORE : PART_END;
    }
    if (list && (c == ',' || c == ';'))
        return PART_MORE;
    if (!list || !is_name(c))
        return PART_PAST;
    begin_call(k, NAME);
    return name_byte(p, k, c);
}

static enum part read_byte(struct parser *p, struct calls *k, char c)
{
    if (k->comment) {
        k->comment = c != '\n';
        return PART_MORE;
    }
    switch (k->place) {
    case LIST:
        return list_byte(p, k, c);
    case NAME:
        return name_byte(p, k, c);
    case ARG:
    case ARG_NAME:
        return arg_byte(p, k, c);
    case VALUE:
        return value_byte(p, k, c);
    case BRACE:
        return brace_byte(p, k, c);
    case QUOTED:
        return quoted_byte(p, k, c);
    case RAW:
        return raw_byte(p, k, c);
    case NEXT:
        return next_byte(p, k, c);
    default:
        return after_byte(p, k, c);
    }
}

static enum part calls_byte(struct parser *p, char c)
{
    struct calls *k = format_state(p);
    enum part part = read_byte(p, k, c);
    kept(p, &k->name);
    kept(p, &k->scratch);
    kept(p, &k->head);
    kept(p, &k->ahead);
    return part;
}

/* A string that was closed when the text ended is complete. */
static bool calls_finish(struct parser *p)
{
    struct calls *k = format_state(p);
    if (k->place == QUOTED && call_announced(p)) {
        struct buf ahead = k->ahead;
        k->ahead = (struct buf)BUF_INIT;
        k->place = VALUE;
        enum part part = lenient_json_value(p, k, ahead.data[0]);
        for (size_t i = 1; i < ahead.len && part == PART_MORE; i++)
            part = read_byte(p, k, ahead.data[i]);
        buf_release(&ahead);
    }
    if (k->place == VALUE && k->in_value && !k->keep && call_announced(p)) {
        struct buf piece = BUF_INIT;
        lenient_json_settle(&k->value, &piece);
        if (piece.len)
            value_out(p, k, piece.data, piece.len);
        buf_release(&piece);
    }
    return k->n_call && k->place == AFTER;
}

static void calls_release(struct parser *p)
{
    struct calls *k = format_state(p);
    buf_release(&k->name);
    buf_release(&k->scratch);
    buf_release(&k->head);
    buf_release(&k->ahead);
}

const struct tool_family family_call = {
    .state_bytes = sizeof(struct calls),
    .begin = calls_begin,
    .byte = calls_byte,
    .finish = calls_finish,
    .release = calls_release,
};
