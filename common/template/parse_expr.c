/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions by recursive descent, one function per level of precedence, lowest first:
 *   a if b else c · or · and · not · == != < > <= >= in · + - · ~ · * / // % · ** ·
 *   unary - + · .x [x] (x) | is
 * Two rules differ from Python: unary minus binds tighter than **, and filters bind tighter than
 * all operators except a call after them. */
#include "common/template/parse.h"
#include <errno.h>
#include "common/utf8.h"
#include "common/template/template_internal.h"

static struct node *parse_unary(struct parser *p, bool with_filter);

static struct node *binary(struct parser *p, enum node_kind kind, enum node_op op, struct node *a,
                           struct node *b)
{
    struct node *n = a && b ? node_new(p, kind, p->at - 1) : NULL;
    if (!n)
        return NULL;
    n->line = a->line;
    n->column = a->column;
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

/* ---- literals ---- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xhh, \uhhhh, \Uhhhhhhhh: n_digit digits at s[*i]. False when they are not all there. */
static bool read_hex(const char *s, size_t n, size_t *i, size_t n_digit, uint32_t *out)
{
    uint32_t c = 0;
    if (n - *i < n_digit)
        return false;
    for (size_t k = 0; k < n_digit; k++) {
        int d = hex_value(s[*i + k]);
        if (d < 0)
            return false;
        c = c << 4 | (uint32_t)d;
    }
    *i += n_digit;
    *out = c;
    return true;
}

static uint32_t read_octal(const char *s, size_t n, size_t *i)
{
    uint32_t c = 0;
    for (size_t k = 0; k < 3 && *i < n && s[*i] >= '0' && s[*i] <= '7'; k++)
        c = c * 8 + (uint32_t)(s[(*i)++] - '0');
    return c;
}

/* One escape whose backslash stands before s[*i]. False for a malformed one. */
static bool unescape(const char *s, size_t n, size_t *i, struct buf *out)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = s[*i];
    uint32_t code;
    for (size_t k = 0; k + 1 < sizeof plain; k += 2)
        if (plain[k] == c) {
            buf_add_char(out, plain[k + 1]);
            (*i)++;
            return true;
        }
    if (c == '\n') {
        (*i)++;
        return true;
    }
    if (c >= '0' && c <= '7') {
        buf_add_utf8(out, read_octal(s, n, i));
        return true;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        (*i)++;
        if (!read_hex(s, n, i, c == 'x' ? 2 : c == 'u' ? 4 : 8, &code) || code > 0x10FFFF)
            return false;
        /* A surrogate pair written as two escapes is one character. */
        size_t low_at = *i + 2;
        uint32_t low;
        if (code >= 0xD800 && code < 0xDC00 && n - *i > 2 && s[*i] == '\\' && s[*i + 1] == 'u' &&
            read_hex(s, n, &low_at, 4, &low) && low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            *i = low_at;
        }
        buf_add_utf8(out, code);
        return true;
    }
    buf_add_char(out, '\\'); /* unknown escapes stay as they are */
    return c != 'N';         /* character names are not known here */
}

/* Adjacent string tokens make one constant. */
static struct node *parse_string(struct parser *p)
{
    struct node *n = node_new(p, N_CONST, p->at);
    struct buf text = BUF_INIT_MAX(TEMPLATE_SOURCE_MAX);
    bool ok = n != NULL;
    for (; ok && p->at->kind == T_STRING; p->at++) {
        const char *s = p->at->text + 1;
        size_t len = p->at->n - 2;
        for (size_t i = 0; ok && i < len;) {
            const char *slash = memchr(s + i, '\\', len - i);
            size_t plain = slash ? (size_t)(slash - s) - i : len - i;
            buf_add(&text, s + i, plain);
            i += plain;
            if (i < len) {
                i++;
                ok = unescape(s, len, &i, &text);
            }
        }
        if (!ok)
            parse_fail(p, "TemplateSyntaxError", "(unicode error) malformed escape in a string");
    }
    if (ok && !p->rc && text.failed)
        p->rc = q_fail(p->err->e, text.failed, "chat template: %s", q_code_text(text.failed));
    struct str *value = ok && !p->rc ? const_str(p, buf_str(&text), text.len) : NULL;
    buf_release(&text);
    if (!value)
        return NULL;
    n->constant = v_str(value);
    return n;
}

static struct node *parse_number(struct parser *p)
{
    struct node *n = node_new(p, N_CONST, p->at);
    char digits[400]; /* without underscores */
    size_t len = 0;
    for (size_t i = 0; i < p->at->n && len < sizeof digits - 1; i++)
        if (p->at->text[i] != '_')
            digits[len++] = p->at->text[i];
    digits[len] = '\0';
    if (!n)
        return NULL;
    if (len == sizeof digits - 1)
        return parse_fail(p, "OverflowError", "a number is longer than %zu digits", len);
    if (p->at->kind == T_FLOAT) {
        n->constant = v_float(strtod(digits, NULL));
    } else {
        char kind = len > 1 ? (char)(digits[1] | 0x20) : 0;
        int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        errno = 0;
        n->constant = v_int(strtoll(digits + (base == 10 ? 0 : 2), NULL, base));
        if (errno == ERANGE)
            return parse_fail(p, "OverflowError", "the integer %.40s… needs more than 64 bits",
                              digits);
    }
    p->at++;
    return n;
}

static struct node *parse_items(struct parser *p, enum node_kind kind, enum token_kind close)
{
    struct node *n = node_new(p, kind, p->at++);
    while (n && p->at->kind != close) {
        if (n->body.n && !expect(p, T_COMMA))
            return NULL;
        if (p->at->kind == close)
            break;
        if (!list_add(p, &n->body, parse_expression(p)))
            return NULL;
        if (kind == N_DICT && (!expect(p, T_COLON) || !list_add(p, &n->body, parse_expression(p))))
            return NULL;
    }
    return n && expect(p, close) ? n : NULL;
}

/* Macros give their body `caller`, `varargs`, `kwargs` only if it mentions them. */
static void note_special_name(struct parser *p, const struct str *name)
{
    for (struct macro_scope *s = p->macro_scope; s; s = s->up) {
        s->def->uses_caller |= name == p->t->caller_name;
        s->def->uses_varargs |= name == p->t->varargs_name;
        s->def->uses_kwargs |= name == p->t->kwargs_name;
    }
}

static struct node *parse_name(struct parser *p, bool with_ns)
{
    const struct token *t = p->at++;
    struct node *n = node_new(p, N_CONST, t);
    if (!n)
        return NULL;
    if (tok_is_name(t, "true") || tok_is_name(t, "True")) {
        n->constant = v_bool(true);
    } else if (tok_is_name(t, "false") || tok_is_name(t, "False")) {
        n->constant = v_bool(false);
    } else if (tok_is_name(t, "none") || tok_is_name(t, "None")) {
        n->constant = v_none();
    } else {
        n->kind = N_NAME;
        if (!(n->name = intern(p, t->text, t->n)))
            return NULL;
        n->constant = v_str(n->name);
        note_special_name(p, n->name);
        if (with_ns && accept(p, T_DOT)) {
            n->kind = N_NSREF;
            struct str *attr = expect_name(p);
            if (!attr)
                return NULL;
            n->constant = v_str(attr);
        }
    }
    return n;
}

static struct node *parse_primary(struct parser *p, bool with_ns)
{
    char got[64];
    struct node *n;
    switch (p->at->kind) {
    case T_NAME:
        return parse_name(p, with_ns);
    case T_STRING:
        return parse_string(p);
    case T_INT:
    case T_FLOAT:
        return parse_number(p);
    case T_LPAREN:
        p->at++;
        n = parse_tuple(p, TUPLE_PARENS);
        return n && expect(p, T_RPAREN) ? n : NULL;
    case T_LBRACKET:
        return parse_items(p, N_LIST, T_RBRACKET);
    case T_LBRACE:
        return parse_items(p, N_DICT, T_RBRACE);
    default:
        return parse_fail(p, "TemplateSyntaxError", "unexpected '%s'",
                          lex_describe(p->at, got, sizeof got));
    }
}

/* ---- postfix: attributes, subscripts, calls, filters, tests ---- */

static bool arg_order(struct parser *p, bool ok)
{
    if (!ok)
        parse_fail(p, "TemplateSyntaxError", "invalid syntax for function call expression");
    return ok;
}

static bool parse_keyword(struct parser *p, struct call_args *args, size_t *cap)
{
    if (args->n_keyword == *cap) {
        size_t n = *cap ? *cap * 2 : 4;
        struct keyword *k = arena_alloc_array(&p->t->mem, n, sizeof *k);
        if (!k) {
            p->rc = q_fail(p->err->e, Q_NO_MEMORY, "chat template: out of memory");
            return false;
        }
        if (args->n_keyword)
            memcpy(k, args->keywords, args->n_keyword * sizeof *k);
        args->keywords = k;
        *cap = n;
    }
    struct keyword *k = &args->keywords[args->n_keyword];
    if (!(k->name = expect_name(p)) || !expect(p, T_ASSIGN) || !(k->value = parse_expression(p)))
        return false;
    args->n_keyword++;
    return true;
}

static bool parse_arg(struct parser *p, struct call_args *args, size_t *keyword_cap)
{
    if (accept(p, T_MUL))
        return arg_order(p, !args->star && !args->star_star) && (args->star = parse_expression(p));
    if (accept(p, T_POW))
        return arg_order(p, !args->star_star) && (args->star_star = parse_expression(p));
    if (p->at->kind == T_NAME && p->at[1].kind == T_ASSIGN)
        return arg_order(p, !args->star_star) && parse_keyword(p, args, keyword_cap);
    return arg_order(p, !args->star && !args->star_star && !args->n_keyword) &&
           list_add(p, &args->positional, parse_expression(p));
}

bool parse_args(struct parser *p, struct call_args **out)
{
    struct call_args *args = arena_alloc(&p->t->mem, sizeof *args);
    if (!args) {
        p->rc = q_fail(p->err->e, Q_NO_MEMORY, "chat template: out of memory");
        return false;
    }
    *out = args;
    size_t keyword_cap = 0;
    bool more = false;
    if (!expect(p, T_LPAREN))
        return false;
    for (; p->at->kind != T_RPAREN; more = true) {
        if (more && !expect(p, T_COMMA))
            return false;
        if (p->at->kind == T_RPAREN)
            break;
        if (!parse_arg(p, args, &keyword_cap))
            return false;
    }
    return expect(p, T_RPAREN);
}

/* start? ":" stop? (":" step?)?, or a plain expression */
static struct node *parse_subscribed(struct parser *p)
{
    const struct token *first = p->at;
    struct node *start = NULL;
    if (p->at->kind != T_COLON && !(start = parse_expression(p)))
        return NULL;
    if (!accept(p, T_COLON))
        return start;
    struct node *n = node_new(p, N_SLICE, first);
    if (!n)
        return NULL;
    n->a = start;
    if (p->at->kind != T_COLON && p->at->kind != T_RBRACKET && p->at->kind != T_COMMA &&
        !(n->b = parse_expression(p)))
        return NULL;
    if (accept(p, T_COLON) && p->at->kind != T_RBRACKET && p->at->kind != T_COMMA &&
        !(n->c = parse_expression(p)))
        return NULL;
    return n;
}

static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct node *n = node_new(p, N_ITEM, p->at);
    if (!n)
        return NULL;
    n->a = of;
    if (accept(p, T_DOT)) {
        if (p->at->kind == T_INT)
            return (n->b = parse_number(p)) ? n : NULL;
        if (p->at->kind != T_NAME)
            return parse_fail(p, "TemplateSyntaxError", "expected name or number");
        n->kind = N_ATTR;
        if (!(n->name = expect_name(p)))
            return NULL;
        n->constant = v_str(n->name);
        return n;
    }
    p->at++;
    struct node *tuple = node_new(p, N_TUPLE, p->at);
    while (tuple && p->at->kind != T_RBRACKET)
        if ((tuple->body.n && !expect(p, T_COMMA)) ||
            !list_add(p, &tuple->body, parse_subscribed(p)))
            return NULL;
    if (!tuple || !expect(p, T_RBRACKET))
        return NULL;
    n->b = tuple->body.n == 1 ? tuple->body.at[0] : tuple;
    return n;
}

static struct node *parse_call(struct parser *p, struct node *of)
{
    struct node *n = node_new(p, N_CALL, p->at);
    if (!n)
        return NULL;
    n->a = of;
    return parse_args(p, &n->args) ? n : NULL;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (n) {
        if (p->at->kind == T_DOT || p->at->kind == T_LBRACKET)
            n = parse_subscript(p, n);
        else if (p->at->kind == T_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* The (dotted) name of a filter or test at the current token, and its row; check.c refuses those
 * without one. */
static bool parse_row(struct parser *p, struct node *n, bool is_test)
{
    if (!(n->name = expect_name(p)))
        return false;
    n->row =
        is_test ? test_find(n->name->data, n->name->n) : filter_find(n->name->data, n->name->n);
    while (accept(p, T_DOT)) { /* no row has a dotted name */
        const struct str *first = n->name, *next = expect_name(p);
        char whole[256];
        if (!next)
            return false;
        int size = snprintf(whole, sizeof whole, "%s.%s", first->data, next->data);
        size = size < (int)sizeof whole ? size : (int)sizeof whole - 1;
        n->row = NULL;
        if (!(n->name = intern(p, whole, utf8_complete_prefix(whole, (size_t)size))))
            return false;
    }
    return true;
}

static struct node *parse_one_filter(struct parser *p, struct node *input)
{
    struct node *n = node_new(p, N_FILTER, p->at);
    if (!n || !parse_row(p, n, false))
        return NULL;
    n->a = input;
    if (p->at->kind == T_LPAREN && !parse_args(p, &n->args))
        return NULL;
    return n;
}

struct node *parse_filter_chain(struct parser *p, struct node *input)
{
    struct node *n = parse_one_filter(p, input);
    while (n && accept(p, T_PIPE))
        n = parse_one_filter(p, n);
    return n;
}

/* Without brackets a test takes one argument if one can start here: "x is divisibleby 3". */
static bool parse_test_arg(struct parser *p, struct node *n)
{
    enum token_kind k = p->at->kind;
    bool starts = k == T_NAME || k == T_STRING || k == T_INT || k == T_FLOAT || k == T_LBRACKET ||
                  k == T_LBRACE;
    if (!starts || tok_is_name(p->at, "else") || tok_is_name(p->at, "or") ||
        tok_is_name(p->at, "and"))
        return true;
    if (tok_is_name(p->at, "is")) {
        parse_fail(p, "TemplateSyntaxError", "You cannot chain multiple tests with is");
        return false;
    }
    if (!(n->args = arena_alloc(&p->t->mem, sizeof *n->args))) {
        p->rc = q_fail(p->err->e, Q_NO_MEMORY, "chat template: out of memory");
        return false;
    }
    return list_add(p, &n->args->positional, parse_postfix(p, parse_primary(p, false)));
}

static struct node *parse_test(struct parser *p, struct node *of)
{
    const struct token *is = p->at++;
    bool negated = accept_name(p, "not");
    struct node *n = node_new(p, N_TEST, is);
    if (!n || !parse_row(p, n, true))
        return NULL;
    n->a = of;
    if (p->at->kind == T_LPAREN ? !parse_args(p, &n->args) : !parse_test_arg(p, n))
        return NULL;
    if (!negated)
        return n;
    struct node *not = node_new(p, N_NOT, is);
    if (not )
        not ->a = n;
    return not ;
}

static struct node *parse_filters(struct parser *p, struct node *n)
{
    while (n) {
        if (accept(p, T_PIPE))
            n = parse_one_filter(p, n);
        else if (tok_is_name(p->at, "is"))
            n = parse_test(p, n);
        else if (p->at->kind == T_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators, tightest first ---- */

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    struct node *n = NULL;
    if (!parser_enter(p))
        return NULL;
    if (p->at->kind == T_SUB || p->at->kind == T_ADD) {
        n = node_new(p, p->at->kind == T_SUB ? N_NEG : N_POS, p->at);
        p->at++;
        if (n && !(n->a = parse_unary(p, false)))
            n = NULL;
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filters(p, n);
    parser_leave(p);
    return n;
}

static struct node *parse_pow(struct parser *p)
{
    struct node *n = parse_unary(p, true);
    while (n && accept(p, T_POW))
        n = binary(p, N_BINARY, OP_POW, n, parse_unary(p, true));
    return n;
}

static struct node *parse_product(struct parser *p)
{
    struct node *n = parse_pow(p);
    while (n) {
        enum token_kind k = p->at->kind;
        if (k != T_MUL && k != T_DIV && k != T_FLOORDIV && k != T_MOD)
            break;
        p->at++;
        enum node_op op = k == T_MUL        ? OP_MUL
                          : k == T_DIV      ? OP_DIV
                          : k == T_FLOORDIV ? OP_FLOORDIV
                                            : OP_MOD;
        n = binary(p, N_BINARY, op, n, parse_pow(p));
    }
    return n;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!first || p->at->kind != T_TILDE)
        return first;
    struct node *n = node_new(p, N_CONCAT, p->at);
    if (!n || !list_add(p, &n->body, first))
        return NULL;
    while (accept(p, T_TILDE))
        if (!list_add(p, &n->body, parse_product(p)))
            return NULL;
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    struct node *n = parse_concat(p);
    while (n && (p->at->kind == T_ADD || p->at->kind == T_SUB)) {
        enum node_op op = p->at->kind == T_ADD ? OP_ADD : OP_SUB;
        p->at++;
        n = binary(p, N_BINARY, op, n, parse_concat(p));
    }
    return n;
}

static bool accept_compare(struct parser *p, enum node_op *op)
{
    if (p->at->kind >= T_EQ && p->at->kind <= T_GE) {
        *op = (enum node_op)(OP_EQ + (p->at++->kind - T_EQ));
        return true;
    }
    *op = OP_IN;
    if (accept_name(p, "in"))
        return true;
    if (!tok_is_name(p->at, "not") || !tok_is_name(p->at + 1, "in"))
        return false;
    *op = OP_NOT_IN;
    p->at += 2;
    return true;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_sum(p), *n = NULL;
    enum node_op op;
    while (first && accept_compare(p, &op)) {
        if (!n && (!(n = node_new(p, N_COMPARE, p->at - 1))))
            return NULL;
        n->a = first;
        struct node *operand = node_new(p, N_OPERAND, p->at);
        if (!operand || !(operand->a = parse_sum(p)) || !list_add(p, &n->body, operand))
            return NULL;
        operand->op = op;
    }
    return n ? n : first;
}

static struct node *parse_not(struct parser *p)
{
    if (!tok_is_name(p->at, "not"))
        return parse_compare(p);
    if (!parser_enter(p))
        return NULL;
    struct node *n = node_new(p, N_NOT, p->at++);
    if (n && !(n->a = parse_not(p)))
        n = NULL;
    parser_leave(p);
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);
    while (n && accept_name(p, "and"))
        n = binary(p, N_AND, OP_EQ, n, parse_not(p));
    return n;
}

static struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);
    while (n && accept_name(p, "or"))
        n = binary(p, N_OR, OP_EQ, n, parse_and(p));
    return n;
}

struct node *parse_expression(struct parser *p)
{
    if (!parser_enter(p))
        return NULL;
    struct node *n = parse_or(p);
    while (n && accept_name(p, "if")) {
        struct node *cond = node_new(p, N_COND, p->at - 1);
        bool ok = cond && (cond->a = parse_or(p));
        if (ok && accept_name(p, "else"))
            ok = (cond->c = parse_expression(p));
        if (ok)
            cond->b = n;
        n = ok ? cond : NULL;
    }
    parser_leave(p);
    return n;
}

struct node *parse_tuple(struct parser *p, enum tuple_mode mode)
{
    const struct token *start = p->at;
    struct node *first = NULL, *tuple = NULL;
    for (bool more = true; more;) {
        enum token_kind k = p->at->kind;
        if (k == T_PRINT_END || k == T_BLOCK_END || k == T_RPAREN ||
            (mode == TUPLE_NO_COND && tok_is_name(p->at, "recursive")))
            break;
        bool deep = parser_enter(p);
        struct node *n = !deep ? NULL : mode == TUPLE_NO_COND ? parse_or(p) : parse_expression(p);
        parser_leave(p);
        if (!n)
            return NULL;
        first = first ? first : n;
        more = accept(p, T_COMMA);
        if (more && !tuple && !(tuple = node_new(p, N_TUPLE, start)))
            return NULL;
        if (tuple && !list_add(p, &tuple->body, n))
            return NULL;
    }
    if (tuple || first)
        return tuple ? tuple : first;
    char got[64];
    if (mode != TUPLE_PARENS)
        return parse_fail(p, "TemplateSyntaxError", "Expected an expression, got '%s'",
                          lex_describe(p->at, got, sizeof got));
    return node_new(p, N_TUPLE, start);
}

/* Only names, and tuples and lists of them, can be assigned to. */
static bool check_target(struct parser *p, struct node *n, int depth)
{
    if (n->kind == N_NAME || n->kind == N_NSREF)
        return true;
    if (depth > 16 || (n->kind != N_TUPLE && n->kind != N_LIST)) {
        parse_fail(p, "TemplateSyntaxError", "can't assign to this expression");
        return false;
    }
    for (size_t i = 0; i < n->body.n; i++)
        if (!check_target(p, n->body.at[i], depth + 1))
            return false;
    return true;
}

struct node *parse_target(struct parser *p, bool with_ns)
{
    char got[64];
    const struct token *start = p->at;
    if (start->kind == T_PRINT_END || start->kind == T_BLOCK_END || start->kind == T_RPAREN)
        return parse_fail(p, "TemplateSyntaxError", "Expected an expression, got '%s'",
                          lex_describe(start, got, sizeof got));
    struct node *n = parse_primary(p, with_ns), *tuple = NULL;
    while (n && accept(p, T_COMMA)) {
        if (!tuple && (!(tuple = node_new(p, N_TUPLE, start)) || !list_add(p, &tuple->body, n)))
            return NULL;
        if (tok_is_name(p->at, "in") || p->at->kind == T_BLOCK_END || p->at->kind == T_ASSIGN)
            break;
        if (!list_add(p, &tuple->body, n = parse_primary(p, with_ns)))
            return NULL;
    }
    n = n && tuple ? tuple : n;
    return n && check_target(p, n, 0) ? n : NULL;
}
