/* SPDX-License-Identifier: Apache-2.0 */
/* Statements: one function per tag, in the table `tags`. The body of an if, for … ends at one of
 * the names that its parser expects; parse_body stops before that name. */
#include "common/template/parse.h"
#include <stdarg.h>
#include "common/utf8.h"
#include "common/template/template_internal.h"
#include "common/template/unicode.h"

struct node *parse_fail(struct parser *p, const char *type, const char *fmt, ...)
{
    char message[Q_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (!p->rc)
        p->rc = lex_fail(p->err, p->at, type, "%s", message);
    return NULL;
}

static void *parser_alloc(struct parser *p, size_t n, size_t size)
{
    void *m = arena_alloc_array(&p->t->mem, n, size);
    if (!m && !p->rc)
        p->rc = p->t->mem.used + n * size > TEMPLATE_MEMORY_MAX
                    ? q_fail(p->err->e, Q_TOO_LARGE,
                             "chat template: its tree is larger than %u bytes", TEMPLATE_MEMORY_MAX)
                    : q_fail(p->err->e, Q_NO_MEMORY, "chat template: out of memory");
    return m;
}

struct node *node_new(struct parser *p, enum node_kind kind, const struct token *at)
{
    struct node *n = parser_alloc(p, 1, sizeof *n);
    if (!n)
        return NULL;
    n->kind = kind;
    n->line = at->line;
    n->column = at->column;
    return n;
}

bool list_add(struct parser *p, struct node_list *l, struct node *n)
{
    if (!n)
        return false;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct node **at = parser_alloc(p, cap, sizeof *at);
        if (!at)
            return false;
        if (l->n)
            memcpy(at, l->at, l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = n;
    return true;
}

struct str *const_str(struct parser *p, const char *text, size_t n)
{
    struct str *s = parser_alloc(p, 1, sizeof *s);
    char *copy = s ? parser_alloc(p, n + 1, 1) : NULL;
    if (!copy)
        return NULL;
    memcpy(copy, text, n);
    *s = (struct str){.data = copy, .n = n, .n_char = utf8_count(copy, n)};
    return s;
}

static bool names_grow(struct parser *p)
{
    size_t n_slot = p->n_slot ? p->n_slot * 2 : 64;
    struct str **names = q_calloc(n_slot, sizeof *names);
    if (!names) {
        p->rc = q_fail(p->err->e, Q_NO_MEMORY, "chat template: out of memory");
        return false;
    }
    for (size_t i = 0; i < p->n_slot; i++) {
        if (!p->names[i])
            continue;
        size_t slot = hash_bytes(p->names[i]->data, p->names[i]->n) & (n_slot - 1);
        while (names[slot])
            slot = (slot + 1) & (n_slot - 1);
        names[slot] = p->names[i];
    }
    q_free(p->names);
    p->names = names;
    p->n_slot = n_slot;
    return true;
}

struct str *intern(struct parser *p, const char *text, size_t n)
{
    if (p->n_name * 2 >= p->n_slot && !names_grow(p))
        return NULL;
    size_t slot = hash_bytes(text, n) & (p->n_slot - 1);
    while (p->names[slot]) {
        if (p->names[slot]->n == n && memcmp(p->names[slot]->data, text, n) == 0)
            return p->names[slot];
        slot = (slot + 1) & (p->n_slot - 1);
    }
    struct str *s = const_str(p, text, n);
    if (s) {
        p->names[slot] = s;
        p->n_name++;
    }
    return s;
}

bool tok_is_name(const struct token *t, const char *name)
{
    return t->kind == T_NAME && t->n == strlen(name) && memcmp(t->text, name, t->n) == 0;
}

bool accept(struct parser *p, enum token_kind kind)
{
    if (p->at->kind != kind)
        return false;
    p->at++;
    return true;
}

bool accept_name(struct parser *p, const char *name)
{
    if (!tok_is_name(p->at, name))
        return false;
    p->at++;
    return true;
}

static const char *kind_text(enum token_kind kind)
{
    static const char *const text[] = {
        [T_PRINT_END] = "end of print statement",
        [T_BLOCK_END] = "end of statement block",
        [T_NAME] = "name",
        [T_ASSIGN] = "=",
        [T_COLON] = ":",
        [T_COMMA] = ",",
        [T_LPAREN] = "(",
        [T_RPAREN] = ")",
        [T_LBRACKET] = "[",
        [T_RBRACKET] = "]",
        [T_RBRACE] = "}",
        [T_RBRACE + 1] = NULL,
    };
    return text[kind] ? text[kind] : "?";
}

bool expect(struct parser *p, enum token_kind kind)
{
    if (accept(p, kind))
        return true;
    char got[64];
    if (p->at->kind == T_EOF)
        parse_fail(p, "TemplateSyntaxError", "unexpected end of template, expected '%s'.",
                   kind_text(kind));
    else
        parse_fail(p, "TemplateSyntaxError", "expected token '%s', got '%s'", kind_text(kind),
                   lex_describe(p->at, got, sizeof got));
    return false;
}

struct str *expect_name(struct parser *p)
{
    const struct token *t = p->at;
    return expect(p, T_NAME) ? intern(p, t->text, t->n) : NULL;
}

bool parser_enter(struct parser *p)
{
    if (++p->depth <= PARSE_DEPTH_MAX)
        return true;
    parse_fail(p, "RecursionError", "the template is nested too deeply");
    return false;
}

void parser_leave(struct parser *p)
{
    p->depth--;
}

static struct node *parse_statement(struct parser *p);

static bool at_end_tag(const struct parser *p, const char *const *ends)
{
    for (size_t i = 0; ends && ends[i]; i++)
        if (tok_is_name(p->at, ends[i]))
            return true;
    return false;
}

/* Text, prints and statements until one of the names in `ends` (NULL: the end of the template)
 * follows a "{%". */
static bool parse_nodes(struct parser *p, struct node_list *out, const char *const *ends)
{
    for (;;) {
        const struct token *t = p->at;
        struct node *n;
        if (t->kind == T_EOF && ends)
            parse_fail(
                p, "TemplateSyntaxError",
                "Unexpected end of template. Jinja was looking for the following tags: '%s'%s%s%s.",
                ends[0], ends[1] ? " or '" : "", ends[1] ? ends[1] : "", ends[1] ? "'" : "");
        if (t->kind == T_EOF)
            return !ends;
        p->at++;
        if (t->kind == T_DATA) {
            n = node_new(p, N_TEXT, t);
            struct str *s = n ? const_str(p, t->text, t->n) : NULL;
            if (!s)
                return false;
            n->constant = v_str(s);
        } else if (t->kind == T_PRINT_BEGIN) {
            n = node_new(p, N_PRINT, t);
            if (!n || !(n->a = parse_tuple(p, TUPLE_EXPR)) || !expect(p, T_PRINT_END))
                return false;
        } else {
            if (at_end_tag(p, ends))
                return true;
            n = parse_statement(p);
            if (!n || !expect(p, T_BLOCK_END))
                return false;
        }
        if (!list_add(p, out, n))
            return false;
    }
}

/* "%}", the body and the closing tag's name, which the caller inspects through *end. */
static bool parse_body(struct parser *p, struct node_list *out, const char *const *ends,
                       const struct token **end)
{
    accept(p, T_COLON);
    if (!expect(p, T_BLOCK_END) || !parse_nodes(p, out, ends))
        return false;
    if (end)
        *end = p->at;
    p->at++;
    return true;
}

static struct node *parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const end_else[] = {"endfor",
                                                                                     NULL};
    const struct token *end;
    if (!(n->a = parse_target(p, false)))
        return NULL;
    if (!accept_name(p, "in")) {
        char got[64];
        return parse_fail(p, "TemplateSyntaxError", "expected token 'in', got '%s'",
                          lex_describe(p->at, got, sizeof got));
    }
    if (!(n->b = parse_tuple(p, TUPLE_NO_COND)))
        return NULL;
    if (accept_name(p, "if") && !(n->c = parse_expression(p)))
        return NULL;
    n->flag = accept_name(p, "recursive");
    p->n_loop++;
    bool ok = parse_body(p, &n->body, ends, &end);
    p->n_loop--;
    if (ok && tok_is_name(end, "else"))
        ok = parse_body(p, &n->alt, end_else, NULL);
    return ok ? n : NULL;
}

static struct node *parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end_else[] = {"endif",
                                                                                            NULL};
    const struct token *end = NULL;
    bool ok = true;
    do {
        struct node *branch = node_new(p, N_BRANCH, p->at);
        ok = branch && (branch->a = parse_tuple(p, TUPLE_NO_COND)) &&
             parse_body(p, &branch->body, ends, &end) && list_add(p, &n->body, branch);
    } while (ok && tok_is_name(end, "elif"));
    if (ok && tok_is_name(end, "else")) {
        struct node *branch = node_new(p, N_BRANCH, end);
        ok =
            branch && parse_body(p, &branch->body, end_else, NULL) && list_add(p, &n->body, branch);
    }
    return ok ? n : NULL;
}

static struct node *parse_set(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endset", NULL};
    if (!(n->a = parse_target(p, true)))
        return NULL;
    if (accept(p, T_ASSIGN))
        return (n->b = parse_tuple(p, TUPLE_EXPR)) ? n : NULL;
    n->kind = N_SET_BLOCK;
    if (accept(p, T_PIPE) && !(n->b = parse_filter_chain(p, NULL)))
        return NULL;
    return parse_body(p, &n->body, ends, NULL) ? n : NULL;
}

static struct node *parse_with(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endwith", NULL};
    while (p->at->kind != T_BLOCK_END) {
        if (n->alt.n && !expect(p, T_COMMA))
            return NULL;
        if (!list_add(p, &n->alt, parse_target(p, false)) || !expect(p, T_ASSIGN) ||
            !list_add(p, &n->alt, parse_expression(p)))
            return NULL;
    }
    return parse_body(p, &n->body, ends, NULL) ? n : NULL;
}

#define PARAM_MAX 256

/* "(a, b=1)" of a macro or call block. */
static bool parse_signature(struct parser *p, struct macro_def *m)
{
    m->params = parser_alloc(p, PARAM_MAX, sizeof *m->params);
    m->defaults = parser_alloc(p, PARAM_MAX, sizeof *m->defaults);
    if (!m->defaults || !expect(p, T_LPAREN))
        return false;
    bool seen_default = false;
    while (p->at->kind != T_RPAREN) {
        if (m->n_param && !expect(p, T_COMMA))
            return false;
        if (m->n_param == PARAM_MAX)
            return parse_fail(p, "SyntaxError", "a macro has more than %d parameters", PARAM_MAX);
        struct str *name = expect_name(p);
        if (!name)
            return false;
        m->params[m->n_param] = name;
        m->has_caller_param |= name == p->t->caller_name;
        if (accept(p, T_ASSIGN)) {
            seen_default = true;
            if (!(m->defaults[m->n_param] = parse_expression(p)))
                return false;
        } else if (seen_default) {
            return parse_fail(p, "TemplateSyntaxError",
                              "non-default argument follows default argument");
        }
        m->n_param++;
    }
    return expect(p, T_RPAREN);
}

/* Signature (if there is one) and body; loops around do not reach into it. */
static struct macro_def *parse_macro_def(struct parser *p, struct str *name, bool signature)
{
    struct macro_def *m = parser_alloc(p, 1, sizeof *m);
    if (!m || !name)
        return NULL;
    m->name = name;
    struct macro_scope *scope = parser_alloc(p, 1, sizeof *scope);
    if (!scope)
        return NULL;
    *scope = (struct macro_scope){p->macro_scope, m};
    p->macro_scope = scope;
    bool ok = !signature || parse_signature(p, m);
    p->macro_scope = scope->up;
    return ok ? m : NULL;
}

static bool parse_macro_body(struct parser *p, struct macro_def *m, const char *const *ends)
{
    struct macro_scope *scope = parser_alloc(p, 1, sizeof *scope);
    if (!scope)
        return false;
    *scope = (struct macro_scope){p->macro_scope, m};
    p->macro_scope = scope;
    uint32_t n_loop = p->n_loop;
    p->n_loop = 0;
    bool ok = parse_body(p, &m->body, ends, NULL);
    p->n_loop = n_loop;
    p->macro_scope = scope->up;
    return ok;
}

static struct node *parse_macro(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    n->macro = parse_macro_def(p, expect_name(p), true);
    return n->macro && parse_macro_body(p, n->macro, ends) ? n : NULL;
}

static struct node *parse_call_block(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endcall", NULL};
    n->macro = parse_macro_def(p, p->t->caller_name, p->at->kind == T_LPAREN);
    if (!n->macro || !(n->a = parse_expression(p)))
        return NULL;
    if (n->a->kind != N_CALL)
        return parse_fail(p, "TemplateSyntaxError", "expected call");
    return parse_macro_body(p, n->macro, ends) ? n : NULL;
}

static struct node *parse_filter_block(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endfilter", NULL};
    return (n->b = parse_filter_chain(p, NULL)) && parse_body(p, &n->body, ends, NULL) ? n : NULL;
}

/* {% generation %} marks what the model said, for training. */
static struct node *parse_generation(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    uint32_t n_loop = p->n_loop;
    p->n_loop = 0; /* its body is a call block: loops do not reach into it */
    p->t->marks_generation = true;
    bool ok = parse_body(p, &n->body, ends, NULL);
    p->n_loop = n_loop;
    return ok ? n : NULL;
}

static bool is_blank(const struct node_list *body)
{
    for (size_t i = 0; i < body->n; i++) {
        const struct node *n = body->at[i];
        const struct str *s = n->kind == N_TEXT ? n->constant.as.s : NULL;
        if (!s || uni_skip_space(s->data, 0, s->n) != s->n)
            return false;
    }
    return true;
}

static struct node *parse_block(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endblock", NULL};
    if (p->t->blocks.n == TEMPLATE_BLOCKS_MAX)
        return parse_fail(p, "MemoryError", "more than %d blocks", TEMPLATE_BLOCKS_MAX);
    if (!(n->name = expect_name(p)) || !list_add(p, &p->t->blocks, n))
        return NULL;
    n->flag = accept_name(p, "scoped");
    n->required = accept_name(p, "required");
    uint32_t n_loop = p->n_loop;
    p->n_loop = 0;
    bool ok = parse_body(p, &n->body, ends, NULL);
    p->n_loop = n_loop;
    if (ok && n->required && !is_blank(&n->body))
        return parse_fail(p, "TemplateSyntaxError",
                          "Required blocks can only contain comments or whitespace");
    if (ok && p->at->kind == T_NAME && p->at->n == n->name->n &&
        memcmp(p->at->text, n->name->data, n->name->n) == 0)
        p->at++;
    return ok ? n : NULL;
}

static struct node *parse_loop_control(struct parser *p, struct node *n)
{
    if (p->n_loop == 0)
        return parse_fail(p, "SyntaxError", "'%s' outside loop",
                          n->kind == N_BREAK ? "break" : "continue");
    return n;
}

/* include, import, from, extends: an environment for chat templates has no loader; reaching one is
 * an error. */
static struct node *parse_no_loader(struct parser *p, struct node *n)
{
    while (p->at->kind != T_BLOCK_END && p->at->kind != T_EOF)
        p->at++;
    return n;
}

static struct node *parse_print(struct parser *p, struct node *n)
{
    n->flag = true;
    while (p->at->kind != T_BLOCK_END) {
        if (n->body.n && !expect(p, T_COMMA))
            return NULL;
        struct node *print = node_new(p, N_PRINT, p->at);
        if (!print || !(print->a = parse_expression(p)) || !list_add(p, &n->body, print))
            return NULL;
    }
    return n;
}

static const struct {
    const char *name;
    enum node_kind kind;
    struct node *(*parse)(struct parser *p, struct node *n);
} tags[] = {
    {"for", N_FOR, parse_for},
    {"if", N_IF, parse_if},
    {"set", N_SET, parse_set},
    {"with", N_WITH, parse_with},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALL_BLOCK, parse_call_block},
    {"filter", N_FILTER_BLOCK, parse_filter_block},
    {"generation", N_GENERATION, parse_generation},
    {"block", N_BLOCK, parse_block},
    {"break", N_BREAK, parse_loop_control},
    {"continue", N_CONTINUE, parse_loop_control},
    {"print", N_SCOPE, parse_print},
    {"include", N_NO_LOADER, parse_no_loader},
    {"import", N_NO_LOADER, parse_no_loader},
    {"from", N_NO_LOADER, parse_no_loader},
    {"extends", N_NO_LOADER, parse_no_loader},
};

static struct node *parse_statement(struct parser *p)
{
    const struct token *t = p->at;
    if (t->kind != T_NAME)
        return parse_fail(p, "TemplateSyntaxError", "tag name expected");
    if (!parser_enter(p))
        return NULL;
    struct node *n = NULL;
    size_t i = 0;
    while (i < sizeof tags / sizeof tags[0] && !tok_is_name(t, tags[i].name))
        i++;
    if (i == sizeof tags / sizeof tags[0]) {
        parse_fail(p, "TemplateSyntaxError", "Encountered unknown tag '%.*s'.",
                   (int)(t->n < 64 ? t->n : 64), t->text);
    } else if ((n = node_new(p, tags[i].kind, t))) {
        p->at++;
        n = tags[i].parse(p, n);
    }
    parser_leave(p);
    return n;
}

enum q_code parse_template(struct template *t, const struct token_list *tokens,
                           const struct lex_error *err)
{
    struct parser p = {.t = t, .at = tokens->at, .err = err};
    if ((t->loop_name = intern(&p, "loop", 4)) && (t->caller_name = intern(&p, "caller", 6)) &&
        (t->varargs_name = intern(&p, "varargs", 7)) &&
        (t->kwargs_name = intern(&p, "kwargs", 6)) && (t->self_name = intern(&p, "self", 4)) &&
        parse_nodes(&p, &t->body, NULL))
        parse_check(&p);
    q_free(p.names);
    return p.rc;
}
