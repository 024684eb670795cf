/* SPDX-License-Identifier: Apache-2.0 */
/* Lark's notation. Rules have lower-case names and terminals upper-case names; terminals of
 * %ignore may follow every terminal of a rule and stand at the start. Priorities, aliases and the
 * ? of inlined rules affect syntax trees only and are ignored. Extensions as in llguidance: `%json
 * {schema}` as a terminal, and `<name>` for a special token of the vocabulary. */
#include "engine/grammar/source/lark.h"
#include <jansson.h>
#include <string.h>
#include "common/json_read.h"
#include "engine/grammar/source/chars.h"
#include "engine/grammar/source/gbnf.h"
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema.h"

#define NAME_MAX_BYTES 128
#define TIMES_MAX      100000u

struct lark {
    struct build *b;
    const char *s; /* [n] with a NUL behind */
    size_t n, at;
    uint32_t depth;
    size_t first_rule;
    bool in_terminal;
    uint32_t ignored; /* rule: what %ignore names, one of them; EXPR_INF = nothing */
    struct expr_list ignores;
};

/* %import common.NAME */
static const struct {
    const char *name, *pattern;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER",
     "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
};

static const struct expr *alternatives(struct lark *p);

static const struct expr *wrong(struct lark *p, const char *what)
{
    uint32_t line = 1;
    for (size_t i = 0; i < p->at && i < p->n; i++)
        line += p->s[i] == '\n';
    return expr_fail(p->b, Q_INVALID, "grammar (Lark), line %u: %s", line, what);
}

static int peek(const struct lark *p)
{
    return p->at < p->n ? (unsigned char)p->s[p->at] : -1;
}

static bool take_text(struct lark *p, const char *text)
{
    size_t n = strlen(text);
    if (p->at > p->n || p->n - p->at < n || memcmp(p->s + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static bool is_name(int c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
}

/* Blanks and comments; line ends only when told. */
static void skip(struct lark *p, bool lines)
{
    for (int c; (c = peek(p)) >= 0; p->at++) {
        bool comment = c == '#' || (c == '/' && p->s[p->at + 1] == '/');
        if (comment)
            while (p->at < p->n && p->s[p->at] != '\n')
                p->at++;
        if (peek(p) == '\n' ? !lines : !comment && c != ' ' && c != '\t' && c != '\r')
            break;
    }
}

static size_t name_at(const struct lark *p, size_t at)
{
    size_t n = 0;
    while (at + n < p->n && is_name((unsigned char)p->s[at + n]))
        n++;
    return n;
}

/* To the next item of an expression: over a line end when the next line goes on with it. */
static void skip_on(struct lark *p)
{
    skip(p, false);
    if (peek(p) != '\n')
        return;
    struct lark q = *p;
    skip(&q, true);
    if (peek(&q) == '|' || (p->depth && q.at < q.n))
        p->at = q.at;
}

static uint32_t rule_named(struct lark *p, const char *s, size_t n)
{
    char name[NAME_MAX_BYTES];
    if (n >= sizeof name) {
        wrong(p, "the name is too long");
        return 0;
    }
    memcpy(name, s, n);
    name[n] = '\0';
    build_work(p->b, 1 + p->b->n_rule / 4);
    for (size_t i = p->first_rule; i < p->b->n_rule; i++)
        if (!strcmp(p->b->rules[i].name, name))
            return (uint32_t)i;
    return expr_rule_new(p->b, name);
}

/* Behind a terminal of a rule. */
static const struct expr *with_ignored(struct lark *p, const struct expr *x)
{
    if (p->in_terminal || p->ignored == EXPR_INF)
        return x;
    return expr_seq2(p->b, x, expr_ref(p->b, p->ignored));
}

static bool flag(struct lark *p, char letter)
{
    bool is = p->at < p->n && p->s[p->at] == letter && !is_name((unsigned char)p->s[p->at + 1]);
    p->at += is;
    return is;
}

static const struct expr *string(struct lark *p)
{
    size_t from = p->at;
    const struct expr *x = gbnf_string(p->b, p->s, p->n, &p->at, '"');
    if (take_text(p, "..\"")) {
        const struct expr *y = gbnf_string(p->b, p->s, p->n, &p->at, '"');
        if (x->kind != EXPR_BYTES || y->kind != EXPR_BYTES || x->n != 1 || y->n != 1 ||
            (uint8_t)x->bytes[0] > (uint8_t)y->bytes[0])
            return wrong(p, "a range needs two single ASCII characters");
        return expr_chars(p->b, chars_one(p->b, (uint8_t)x->bytes[0], (uint8_t)y->bytes[0]),
                          EXPR_UTF8);
    }
    if (!flag(p, 'i') || x->kind != EXPR_BYTES)
        return x;
    struct expr_list l = {0};
    (void)from;
    for (uint32_t i = 0; i < x->n; i++) {
        char c = x->bytes[i];
        const struct expr *one = expr_bytes(p->b, &c, 1);
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') {
            c ^= 0x20;
            one = expr_alt2(p->b, one, expr_bytes(p->b, &c, 1));
        }
        expr_add(p->b, &l, one);
    }
    return expr_seq(p->b, l.items, l.n);
}

static const struct expr *pattern(struct lark *p)
{
    size_t from = p->at;
    bool in_class = false;
    for (; p->at < p->n && (in_class || p->s[p->at] != '/') && p->s[p->at] != '\n'; p->at++) {
        in_class = p->s[p->at] == '[' || (in_class && p->s[p->at] != ']');
        p->at += p->s[p->at] == '\\';
    }
    p->at = p->at < p->n ? p->at : p->n;
    size_t n = p->at < p->n ? p->at - from : 0;
    if (!take_text(p, "/"))
        return wrong(p, "the pattern is not closed");
    struct regex_text r = {.s = p->s + from, .n = n, .where = "grammar (Lark)"};
    for (; peek(p) >= 'a' && peek(p) <= 'z'; p->at++) {
        r.ignore_case |= peek(p) == 'i';
        r.dot_all |= peek(p) == 's';
        if (!strchr("imslux", peek(p)) || peek(p) == 'x')
            return wrong(p, "this flag of the pattern is not supported");
    }
    return regex_expr(p->b, &r, EXPR_UTF8);
}

/* %json {…} */
static const struct expr *schema(struct lark *p)
{
    json_error_t error;
    skip(p, true);
    json_t *v = json_read_bytes(p->s + p->at, p->n - p->at, JSON_DISABLE_EOF_CHECK, &error);
    if (!v)
        return wrong(p, "%json needs a JSON Schema");
    p->at += (size_t)error.position;
    const struct expr *x = schema_expr(p->b, v, NULL, NULL);
    json_decref(v);
    return x;
}

/* <name>: a special token */
static const struct expr *special(struct lark *p)
{
    size_t from = p->at - 1;
    while (p->at < p->n && p->s[p->at] != '>' && p->s[p->at] != '\n')
        p->at++;
    if (!take_text(p, ">"))
        return wrong(p, "the special token is not closed");
    const struct expr *mark = expr_bytes(p->b, "\xff", 1);
    return expr_seq3(p->b, mark, expr_bytes(p->b, p->s + from, p->at - from), mark);
}

static const struct expr *inner(struct lark *p, const char *close)
{
    if (++p->depth > EXPR_DEPTH_MAX)
        return wrong(p, "groups are nested too deeply");
    skip(p, true);
    const struct expr *x = alternatives(p);
    p->depth--;
    skip(p, true);
    return take_text(p, close) ? x : wrong(p, "the group is not closed");
}

static const struct expr *primary(struct lark *p)
{
    if (take_text(p, "("))
        return inner(p, ")");
    if (take_text(p, "["))
        return expr_optional(p->b, inner(p, "]"));
    if (take_text(p, "\""))
        return with_ignored(p, string(p));
    if (take_text(p, "/"))
        return with_ignored(p, pattern(p));
    if (take_text(p, "%json"))
        return with_ignored(p, schema(p));
    if (take_text(p, "<"))
        return with_ignored(p, special(p));
    size_t n = name_at(p, p->at);
    if (!n)
        return wrong(p, "expected a string, a pattern, a group or a name");
    const char *name = p->s + p->at;
    p->at += n;
    const struct expr *x = expr_ref(p->b, rule_named(p, name, n));
    size_t first = name[0] == '_' && n > 1;
    bool terminal = name[first] >= 'A' && name[first] <= 'Z';
    return terminal ? with_ignored(p, x) : x;
}

static bool number(struct lark *p, uint32_t *n)
{
    size_t from = p->at;
    for (*n = 0; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        *n = *n > TIMES_MAX ? *n : *n * 10 + (uint32_t)(peek(p) - '0');
    return p->at > from && *n <= TIMES_MAX;
}

static const struct expr *repeated(struct lark *p)
{
    const struct expr *x = primary(p);
    uint32_t min, max;
    for (;;) {
        if (take_text(p, "*"))
            x = expr_repeat(p->b, x, 0, EXPR_INF);
        else if (take_text(p, "+"))
            x = expr_repeat(p->b, x, 1, EXPR_INF);
        else if (take_text(p, "?"))
            x = expr_repeat(p->b, x, 0, 1);
        else
            break;
    }
    skip(p, false);
    if (!take_text(p, "~"))
        return x;
    skip(p, false);
    bool good = number(p, &min);
    max = min;
    skip(p, false);
    if (take_text(p, "..")) {
        skip(p, false);
        good &= number(p, &max);
    }
    return good && min <= max ? expr_repeat(p->b, x, min, max)
                              : wrong(p, "expected ~ n, or ~ n..m, of at most 100000");
}

static const struct expr *sequence(struct lark *p)
{
    struct expr_list l = {0};
    for (skip_on(p); build_ok(p->b); skip_on(p)) {
        int c = peek(p);
        if (c < 0 || c == '\n' || c == '|' || c == ')' || c == ']')
            break;
        if (take_text(p, "->")) { /* an alias names a node of the tree */
            skip(p, false);
            p->at += name_at(p, p->at);
            continue;
        }
        expr_add(p->b, &l, repeated(p));
    }
    return expr_seq(p->b, l.items, l.n);
}

static const struct expr *alternatives(struct lark *p)
{
    struct expr_list l = {0};
    do {
        expr_add(p->b, &l, sequence(p));
    } while (take_text(p, "|") && build_ok(p->b));
    return expr_alt(p->b, l.items, l.n);
}

static void import(struct lark *p)
{
    skip(p, false);
    if (!take_text(p, "common.")) {
        wrong(p, "only %import common.NAME is supported");
        return;
    }
    size_t n = name_at(p, p->at), i = 0;
    const char *name = p->s + p->at, *as = name;
    size_t n_as = n, n_common = sizeof common / sizeof *common;
    while (i < n_common && !(strlen(common[i].name) == n && !memcmp(common[i].name, name, n)))
        i++;
    p->at += n;
    skip(p, false);
    if (take_text(p, "->")) {
        skip(p, false);
        n_as = name_at(p, p->at);
        as = p->s + p->at;
        p->at += n_as;
    }
    if (i == n_common) {
        wrong(p, "common has no terminal of this name that quire supports");
        return;
    }
    uint32_t rule = rule_named(p, as, n_as);
    const struct regex_text r = {
        .s = common[i].pattern,
        .n = strlen(common[i].pattern),
        .where = "common",
    };
    const struct expr *x = regex_expr(p->b, &r, EXPR_UTF8);
    if (build_ok(p->b))
        p->b->rules[rule].body = x;
}

static void directive(struct lark *p)
{
    if (take_text(p, "%import")) {
        import(p);
    } else if (take_text(p, "%ignore")) {
        p->in_terminal = true;
        expr_add(p->b, &p->ignores, alternatives(p));
        p->in_terminal = false;
    } else {
        wrong(p, "only %import and %ignore are supported");
    }
}

static void definition(struct lark *p)
{
    if (!take_text(p, "?"))
        take_text(p, "!");
    size_t n = name_at(p, p->at);
    const char *name = p->s + p->at;
    p->at += n;
    uint32_t rule = n ? rule_named(p, name, n) : 0;
    if (take_text(p, ".")) /* a priority */
        p->at += name_at(p, p->at);
    skip(p, false);
    if (!n || !take_text(p, ":")) {
        wrong(p, "expected a definition, as name: …");
        return;
    }
    size_t first = name[0] == '_' && n > 1;
    p->in_terminal = name[first] >= 'A' && name[first] <= 'Z';
    const struct expr *body = alternatives(p);
    p->in_terminal = false;
    if (!build_ok(p->b))
        return;
    if (p->b->rules[rule].body)
        wrong(p, "the name is defined twice");
    if (peek(p) >= 0 && peek(p) != '\n')
        wrong(p, "unexpected text after a definition");
    p->b->rules[rule].body = body;
}

const struct expr *lark_expr(struct build *b, const char *source, size_t n)
{
    struct lark p = {.b = b, .s = source, .n = n, .first_rule = b->n_rule, .ignored = EXPR_INF};
    bool ignores = strstr(source, "%ignore") != NULL;
    if (ignores)
        p.ignored = expr_rule_new(b, "(ignored)");
    uint32_t start = rule_named(&p, "start", 5);
    for (skip(&p, true); build_ok(b) && p.at < n; skip(&p, true))
        if (peek(&p) == '%')
            directive(&p);
        else
            definition(&p);
    if (!build_ok(b))
        return &expr_never;
    if (ignores)
        b->rules[p.ignored].body =
            expr_repeat(b, expr_alt(b, p.ignores.items, p.ignores.n), 0, EXPR_INF);
    for (size_t i = p.first_rule; build_ok(b) && i < b->n_rule; i++)
        if (!b->rules[i].body)
            expr_fail(b, Q_INVALID, "grammar (Lark): rule or terminal \"%.80s\" is not defined",
                      b->rules[i].name);
    const struct expr *x = expr_ref(b, start);
    return ignores ? expr_seq2(b, expr_ref(b, p.ignored), x) : x;
}
