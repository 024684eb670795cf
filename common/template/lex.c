/* SPDX-License-Identifier: Apache-2.0 */
/* The lexer reads the source once. Outside tags it searches for the next "{{", "{%" or "{#";
 * inside a tag it reads operators, names, numbers and strings. White space around tags:
 *   "{%-" and "-%}" remove all white space on their side;
 *   without a sign, "{%" and "{#" at the start of a line remove the blanks before them
 *   (lstrip_blocks), and "%}" and "#}" remove one newline after them (trim_blocks); "+" disables
 *   both; "{{ }}" removes nothing.
 * A closing tag counts only when all brackets inside the tag are closed, so {{ {'a': {}} }} works.
 */
#include "common/template/lex.h"
#include "common/template/template_internal.h"
#include <stdarg.h>
#include "common/utf8.h"
#include "common/template/unicode.h"

struct lexer {
    const char *s;
    size_t n, pos;
    size_t counted; /* line and column are those of this position */
    uint32_t line, column;
    bool line_starting; /* the last match ended with a newline (or nothing came before) */
    char open[TEMPLATE_NESTING_MAX];
    size_t n_open;
    struct token_list *out;
    const struct lex_error *err;
};

static const struct {
    char text[3];
    enum token_kind kind;
} operators[] = {
    {"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
    {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
    {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
    {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
    {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
    {";", T_SEMICOLON},
};

static const char *const token_names[] = {
    [T_EOF] = "end of template",
    [T_DATA] = "template data",
    [T_PRINT_BEGIN] = "begin of print statement",
    [T_PRINT_END] = "end of print statement",
    [T_BLOCK_BEGIN] = "begin of statement block",
    [T_BLOCK_END] = "end of statement block",
    [T_NAME] = "name",
    [T_STRING] = "string",
    [T_INT] = "integer",
    [T_FLOAT] = "float",
};

const char *lex_describe(const struct token *t, char *scratch, size_t size)
{
    if (t->kind == T_NAME || t->kind >= T_ADD)
        snprintf(scratch, size, "%.*s", (int)(t->n < size - 1 ? t->n : size - 1), t->text);
    else
        snprintf(scratch, size, "%s", token_names[t->kind]);
    return scratch;
}

enum q_code lex_fail(const struct lex_error *err, const struct token *at, const char *type,
                     const char *fmt, ...)
{
    char message[Q_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (err->fault)
        *err->fault = (struct template_fault){type, at->line, at->column};
    return q_fail(err->e, Q_INVALID, "chat template line %u, column %u: %s", at->line, at->column,
                  message);
}

/* Line and column of a position. Positions are asked for in rising order, so that all of them
 * together cost one pass over the source. */
static struct token place(struct lexer *lx, enum token_kind kind, size_t pos)
{
    for (; lx->counted < pos; lx->counted++) {
        if (lx->s[lx->counted] == '\n') {
            lx->line++;
            lx->column = 1;
        } else if (((unsigned char)lx->s[lx->counted] & 0xC0) != 0x80) {
            lx->column++;
        }
    }
    return (struct token){
        .kind = kind,
        .line = lx->line,
        .column = lx->column,
        .text = lx->s + pos,
    };
}

static enum q_code emit(struct lexer *lx, enum token_kind kind, size_t pos, size_t n)
{
    struct token_list *l = lx->out;
    enum q_code rc =
        q_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at, TEMPLATE_SOURCE_MAX + 2, lx->err->e);
    if (rc)
        return rc;
    l->at[l->n] = place(lx, kind, pos);
    l->at[l->n++].n = n;
    return Q_OK;
}

/* Literal text s[from..to) before a tag whose sign is '-', '+' or 0; blocks strip the start of
 * their line. */
static enum q_code emit_data(struct lexer *lx, size_t from, size_t to, char sign, bool is_block)
{
    if (sign == '-') {
        to = uni_trim_space(lx->s, from, to);
    } else if (sign != '+' && is_block) {
        size_t start = to;
        while (start > from && lx->s[start - 1] != '\n')
            start--;
        if ((start > from || lx->line_starting) && uni_skip_space(lx->s, start, to) == to)
            to = start;
    }
    return to > from ? emit(lx, T_DATA, from, to - from) : Q_OK;
}

/* The position after a closing "%}" or "#}" at pos whose sign came before it. */
static size_t after_close(const struct lexer *lx, size_t pos, char sign)
{
    if (sign == '-')
        return uni_skip_space(lx->s, pos, lx->n);
    if (sign != '+' && pos < lx->n && lx->s[pos] == '\n')
        return pos + 1;
    return pos;
}

static void set_pos(struct lexer *lx, size_t pos)
{
    lx->line_starting = pos > 0 && lx->s[pos - 1] == '\n';
    lx->pos = pos;
}

static enum q_code lex_comment(struct lexer *lx, size_t begin, size_t pos)
{
    const char *end = memmem(lx->s + pos, lx->n - pos, "#}", 2);
    if (!end) {
        struct token at = place(lx, T_DATA, begin);
        return lex_fail(lx->err, &at, "TemplateSyntaxError", "Missing end of comment tag");
    }
    size_t q = (size_t)(end - lx->s);
    char sign = q > pos && (lx->s[q - 1] == '-' || lx->s[q - 1] == '+') ? lx->s[q - 1] : 0;
    set_pos(lx, after_close(lx, q + 2, sign));
    return Q_OK;
}

/* Does `word` stand at pos, spaces around it, and then the end of a block? Sets the sign and the
 * end of "%}". */
static bool match_word_tag(const struct lexer *lx, size_t pos, const char *word, char *sign,
                           size_t *end)
{
    size_t n_word = strlen(word);
    pos = uni_skip_space(lx->s, pos, lx->n);
    if (lx->n - pos < n_word || memcmp(lx->s + pos, word, n_word) != 0)
        return false;
    pos = uni_skip_space(lx->s, pos + n_word, lx->n);
    *sign = pos < lx->n && (lx->s[pos] == '-' || lx->s[pos] == '+') ? lx->s[pos++] : 0;
    if (lx->n - pos < 2 || lx->s[pos] != '%' || lx->s[pos + 1] != '}')
        return false;
    *end = pos + 2;
    return true;
}

/* After {% raw %}: everything up to {% endraw %} is text. */
static enum q_code lex_raw(struct lexer *lx, size_t begin, size_t pos)
{
    for (size_t at = pos; at + 1 < lx->n; at++) {
        if (lx->s[at] != '{' || lx->s[at + 1] != '%')
            continue;
        size_t p = at + 2, end;
        char open = p < lx->n && (lx->s[p] == '-' || lx->s[p] == '+') ? lx->s[p++] : 0, close;
        if (!match_word_tag(lx, p, "endraw", &close, &end))
            continue;
        enum q_code rc = emit_data(lx, pos, at, open, true);
        set_pos(lx, after_close(lx, end, close));
        return rc;
    }
    struct token t = place(lx, T_DATA, begin);
    return lex_fail(lx->err, &t, "TemplateSyntaxError", "Missing end of raw directive");
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them: the position after, or pos when there is no digit.
 */
static size_t skip_digits(const struct lexer *lx, size_t pos)
{
    size_t end = pos;
    while (end < lx->n &&
           (is_digit(lx->s[end]) || (lx->s[end] == '_' && end > pos && lx->s[end - 1] != '_' &&
                                     end + 1 < lx->n && is_digit(lx->s[end + 1]))))
        end++;
    return end;
}

/* The end of a float at pos, or pos when it is none. */
static size_t match_float(const struct lexer *lx, size_t pos)
{
    if (pos > 0 && lx->s[pos - 1] == '.')
        return pos;
    size_t end = skip_digits(lx, pos), fraction = end;
    if (end < lx->n && lx->s[end] == '.') {
        fraction = skip_digits(lx, end + 1);
        if (fraction == end + 1)
            fraction = end;
    }
    if (fraction < lx->n && (lx->s[fraction] | 0x20) == 'e') {
        size_t p = fraction + 1;
        if (p < lx->n && (lx->s[p] == '+' || lx->s[p] == '-'))
            p++;
        size_t exponent = skip_digits(lx, p);
        if (exponent > p)
            return exponent;
    }
    return fraction > end ? fraction : pos;
}

static bool is_base_digit(char c, int base)
{
    int d = is_digit(c)                              ? c - '0'
            : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                     : 99;
    return d < base;
}

static size_t match_int(const struct lexer *lx, size_t pos)
{
    if (lx->s[pos] == '0' && pos + 1 < lx->n) {
        char kind = (char)(lx->s[pos + 1] | 0x20);
        int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
        size_t end = pos + 2;
        while (base && end < lx->n &&
               (is_base_digit(lx->s[end], base) ||
                (lx->s[end] == '_' && end + 1 < lx->n && is_base_digit(lx->s[end + 1], base))))
            end++;
        if (base && end > pos + 2)
            return end;
        for (end = pos + 1; end < lx->n && lx->s[end] == '0';)
            end++;
        return end;
    }
    return skip_digits(lx, pos);
}

static size_t match_name(const struct lexer *lx, size_t pos)
{
    uint32_t c;
    while (pos < lx->n) {
        size_t step = utf8_decode(lx->s + pos, lx->n - pos, &c);
        if (!uni_is_word(c))
            break;
        pos += step;
    }
    return pos;
}

static size_t match_string(const struct lexer *lx, size_t pos)
{
    char quote = lx->s[pos];
    for (size_t p = pos + 1; p < lx->n; p++) {
        if (lx->s[p] == '\\')
            p++;
        else if (lx->s[p] == quote)
            return p + 1;
    }
    return pos;
}

static enum q_code lex_operator(struct lexer *lx, size_t pos)
{
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        const char *text = operators[i].text;
        size_t n = strlen(text);
        if (lx->n - pos < n || memcmp(lx->s + pos, text, n) != 0)
            continue;
        struct token at = place(lx, operators[i].kind, pos);
        if (strchr("{[(", text[0])) {
            if (lx->n_open == TEMPLATE_NESTING_MAX)
                return lex_fail(lx->err, &at, "RecursionError",
                                "brackets are nested deeper than %d", TEMPLATE_NESTING_MAX);
            lx->open[lx->n_open++] = text[0] == '{' ? '}' : text[0] == '[' ? ']' : ')';
        } else if (strchr("}])", text[0])) {
            if (lx->n_open == 0)
                return lex_fail(lx->err, &at, "TemplateSyntaxError", "unexpected '%c'", text[0]);
            char want = lx->open[--lx->n_open];
            if (want != text[0])
                return lex_fail(lx->err, &at, "TemplateSyntaxError",
                                "unexpected '%c', expected '%c'", text[0], want);
        }
        lx->pos = pos + n;
        return emit(lx, operators[i].kind, pos, n);
    }
    struct token at = place(lx, T_DATA, pos);
    uint32_t c;
    size_t step = utf8_decode(lx->s + pos, lx->n - pos, &c);
    return lex_fail(lx->err, &at, "TemplateSyntaxError", "unexpected char '%.*s' at %zu", (int)step,
                    lx->s + pos, pos);
}

/* One token inside a tag. */
static enum q_code lex_inner(struct lexer *lx)
{
    size_t pos = lx->pos, end;
    char c = lx->s[pos];
    enum token_kind kind = T_NAME;
    if (is_digit(c)) {
        kind = T_FLOAT;
        if ((end = match_float(lx, pos)) == pos) {
            kind = T_INT;
            end = match_int(lx, pos);
        }
    } else if (c == '\'' || c == '"') {
        kind = T_STRING;
        end = match_string(lx, pos);
    } else {
        end = match_name(lx, pos);
    }
    if (end == pos)
        return lex_operator(lx, pos);
    lx->pos = end;
    return emit(lx, kind, pos, end - pos);
}

/* The end of the tag at the current position, if it is one: its sign and where it stops. */
static bool at_close(const struct lexer *lx, bool is_block, char *sign, size_t *end)
{
    if (lx->n_open)
        return false;
    size_t p = lx->pos;
    char c = lx->s[p];
    *sign = c == '-' || (c == '+' && is_block) ? c : 0;
    if (*sign)
        p++;
    if (lx->n - p < 2 || lx->s[p] != (is_block ? '%' : '}') || lx->s[p + 1] != '}')
        return false;
    *end = p + 2;
    return true;
}

/* The inside of a {{ }} or {% %}, up to and with its end. */
static enum q_code lex_tag(struct lexer *lx, size_t pos, bool is_block)
{
    enum q_code rc = Q_OK;
    lx->n_open = 0;
    lx->pos = pos;
    while (!rc) {
        lx->pos = uni_skip_space(lx->s, lx->pos, lx->n);
        if (lx->pos == lx->n)
            return Q_OK; /* the parser reports the missing end */
        char sign;
        size_t end;
        if (at_close(lx, is_block, &sign, &end)) {
            rc = emit(lx, is_block ? T_BLOCK_END : T_PRINT_END, lx->pos, end - lx->pos);
            set_pos(lx, is_block ? after_close(lx, end, sign)
                                 : after_close(lx, end, sign ? sign : '+'));
            return rc;
        }
        rc = lex_inner(lx);
    }
    return rc;
}

/* Text up to the next tag, and that tag. */
static enum q_code lex_one(struct lexer *lx)
{
    size_t p = lx->pos;
    while (p + 1 < lx->n && !(lx->s[p] == '{' &&
                              (lx->s[p + 1] == '{' || lx->s[p + 1] == '%' || lx->s[p + 1] == '#')))
        p++;
    if (p + 1 >= lx->n) {
        size_t from = lx->pos;
        lx->pos = lx->n;
        return emit(lx, T_DATA, from, lx->n - from);
    }
    char kind = lx->s[p + 1];
    size_t inside = p + 2;
    char sign = 0, close;
    size_t end;
    if (inside < lx->n && (lx->s[inside] == '-' || lx->s[inside] == '+'))
        sign = lx->s[inside++];
    enum q_code rc = emit_data(lx, lx->pos, p, sign, kind != '{');
    if (rc)
        return rc;
    if (kind == '#')
        return lex_comment(lx, p, inside);
    if (kind == '%' && match_word_tag(lx, inside, "raw", &close, &end) && close != '+') {
        set_pos(lx, close == '-' ? uni_skip_space(lx->s, end, lx->n) : end);
        return lex_raw(lx, p, lx->pos);
    }
    if ((rc = emit(lx, kind == '%' ? T_BLOCK_BEGIN : T_PRINT_BEGIN, p, 2)))
        return rc;
    return lex_tag(lx, inside, kind == '%');
}

enum q_code lex_all(struct token_list *out, const char *source, size_t n,
                    const struct lex_error *err)
{
    struct lexer lx = {
        .s = source,
        .n = n,
        .line = 1,
        .column = 1,
        .line_starting = true,
        .out = out,
        .err = err,
    };
    enum q_code rc = Q_OK;
    while (lx.pos < n && !rc)
        rc = lex_one(&lx);
    return rc ? rc : emit(&lx, T_EOF, n, 0);
}
