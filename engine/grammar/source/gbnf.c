/* SPDX-License-Identifier: Apache-2.0 */
/* GBNF by recursive descent. A rule ends where the next one begins: at a name followed by "::=". */
#include "engine/grammar/source/gbnf.h"
#include <string.h>
#include "common/buf.h"
#include "common/utf8.h"
#include "engine/grammar/source/chars.h"

#define NAME_MAX_BYTES 128
#define TIMES_MAX      100000u

struct parser {
    struct build *b;
    const char *s;
    size_t n, at;
    uint32_t depth;
    size_t first_rule; /* of this grammar in the build */
};

static const struct expr *alternatives(struct parser *p);

static uint32_t line_of(const struct parser *p)
{
    uint32_t line = 1;
    for (size_t i = 0; i < p->at && i < p->n; i++)
        line += p->s[i] == '\n';
    return line;
}

static const struct expr *wrong(struct parser *p, const char *what)
{
    return expr_fail(p->b, Q_INVALID, "grammar, line %u: %s", line_of(p), what);
}

static int peek(const struct parser *p)
{
    return p->at < p->n ? (unsigned char)p->s[p->at] : -1;
}

static bool is_name(int c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' ||
           c == '_' || c == '.';
}

static void skip(struct parser *p)
{
    for (int c; (c = peek(p)) >= 0; p->at++) {
        if (c == '#')
            while (p->at < p->n && p->s[p->at] != '\n')
                p->at++;
        else if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            break;
    }
}

static bool take_text(struct parser *p, const char *text)
{
    size_t n = strlen(text);
    if (p->at > p->n || p->n - p->at < n || memcmp(p->s + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static size_t name_at(const struct parser *p)
{
    size_t n = 0;
    while (p->at + n < p->n && is_name((unsigned char)p->s[p->at + n]))
        n++;
    return n;
}

/* Does a rule's head stand here? */
static bool at_head(const struct parser *p)
{
    struct parser q = *p;
    size_t n = name_at(&q);
    q.at += n;
    skip(&q);
    return n && take_text(&q, "::=");
}

static uint32_t rule_named(struct parser *p, size_t n)
{
    char name[NAME_MAX_BYTES];
    if (n >= sizeof name) {
        wrong(p, "the name is too long");
        return 0;
    }
    memcpy(name, p->s + p->at, n);
    name[n] = '\0';
    p->at += n;
    build_work(p->b, 1 + p->b->n_rule / 4);
    for (size_t i = p->first_rule; i < p->b->n_rule; i++)
        if (!strcmp(p->b->rules[i].name, name))
            return (uint32_t)i;
    return expr_rule_new(p->b, name);
}

static int hex_digit(int c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One character of a literal or class, at s[*at]; false at a malformed escape. */
static bool character(const char *s, size_t n, size_t *at, uint32_t *c)
{
    static const char from[] = "nrtfvb0", to[] = "\n\r\t\f\v\b";
    if (s[*at] != '\\') {
        *at += utf8_decode(s + *at, n - *at, c);
        return true;
    }
    if (++*at >= n)
        return false;
    char letter = s[(*at)++];
    int digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    const char *known = strchr(from, letter);
    *c = known && letter ? (uint32_t)(unsigned char)to[known - from] : (unsigned char)letter;
    if (digits)
        *c = 0;
    for (int i = 0; i < digits; i++, ++*at) {
        if (*at >= n || hex_digit(s[*at]) < 0)
            return false;
        *c = *c << 4 | (uint32_t)hex_digit(s[*at]);
    }
    if (!digits && (unsigned char)letter >= 0x80) {
        --*at;
        *at += utf8_decode(s + *at, n - *at, c);
    }
    return *c <= EXPR_CHAR_MAX;
}

const struct expr *gbnf_string(struct build *b, const char *text, size_t n, size_t *at, char quote)
{
    struct buf bytes = BUF_INIT;
    while (*at < n && text[*at] != quote) {
        uint32_t c;
        if (!character(text, n, at, &c)) {
            buf_release(&bytes);
            return expr_fail(b, Q_INVALID, "grammar: malformed escape in a string");
        }
        buf_add_utf8(&bytes, c);
    }
    const struct expr *x = *at < n && !bytes.failed
                               ? expr_bytes(b, buf_str(&bytes), bytes.len)
                               : expr_fail(b, Q_INVALID, "grammar: a string is not closed");
    *at += *at < n;
    buf_release(&bytes);
    return x;
}

static const struct expr *class(struct parser *p)
{
    struct build *b = p->b;
    const struct cset *set = cset_of(b, NULL, 0);
    bool negated = take_text(p, "^");
    while (build_ok(b) && !take_text(p, "]")) {
        uint32_t lo, hi;
        if (p->at >= p->n || p->s[p->at] == '\n' || !character(p->s, p->n, &p->at, &lo))
            return wrong(p, "the class is not closed or has a malformed escape");
        hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->n && p->s[p->at + 1] != ']') {
            p->at++;
            if (!character(p->s, p->n, &p->at, &hi) || hi < lo)
                return wrong(p, "the range goes backwards or has a malformed escape");
        }
        set = cset_or(b, set, chars_one(b, lo, hi));
    }
    return expr_chars(b, negated ? cset_not(b, set) : set, EXPR_UTF8);
}

static const struct expr *primary(struct parser *p)
{
    size_t n;
    if (take_text(p, "\""))
        return gbnf_string(p->b, p->s, p->n, &p->at, '"');
    if (take_text(p, "["))
        return class(p);
    if (take_text(p, "(")) {
        if (++p->depth > EXPR_DEPTH_MAX)
            return wrong(p, "groups are nested too deeply");
        const struct expr *x = alternatives(p);
        p->depth--;
        return take_text(p, ")") ? x : wrong(p, "the group is not closed");
    }
    if (take_text(p, "."))
        return expr_chars(p->b, &cset_any, EXPR_UTF8);
    if ((n = name_at(p)))
        return expr_ref(p->b, rule_named(p, n));
    return wrong(p, "expected a string, a class, a group or the name of a rule");
}

static bool number(struct parser *p, uint32_t *n)
{
    size_t from = p->at;
    for (*n = 0; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        *n = *n > TIMES_MAX ? *n : *n * 10 + (uint32_t)(peek(p) - '0');
    return p->at > from;
}

static const struct expr *times(struct parser *p, const struct expr *x)
{
    uint32_t min, max;
    skip(p);
    bool low = number(p, &min);
    skip(p);
    max = min;
    if (take_text(p, ",")) {
        skip(p);
        if (!number(p, &max))
            max = EXPR_INF;
    } else if (!low) {
        return wrong(p, "expected {n}, {n,} or {n,m}");
    }
    skip(p);
    if (!take_text(p, "}") || min > TIMES_MAX ||
        (max != EXPR_INF && (max > TIMES_MAX || max < min)))
        return wrong(p, "expected {n}, {n,} or {n,m} of at most 100000 times");
    return expr_repeat(p->b, x, min, max);
}

static const struct expr *sequence(struct parser *p)
{
    struct expr_list l = {0};
    for (skip(p); build_ok(p->b); skip(p)) {
        if (p->at >= p->n || peek(p) == '|' || peek(p) == ')' || at_head(p))
            break;
        const struct expr *x = primary(p);
        for (bool more = true; more && build_ok(p->b);) {
            if (take_text(p, "*"))
                x = expr_repeat(p->b, x, 0, EXPR_INF);
            else if (take_text(p, "+"))
                x = expr_repeat(p->b, x, 1, EXPR_INF);
            else if (take_text(p, "?"))
                x = expr_repeat(p->b, x, 0, 1);
            else if (take_text(p, "{"))
                x = times(p, x);
            else
                more = false;
        }
        expr_add(p->b, &l, x);
    }
    return expr_seq(p->b, l.items, l.n);
}

static const struct expr *alternatives(struct parser *p)
{
    struct expr_list l = {0};
    do {
        expr_add(p->b, &l, sequence(p));
        skip(p);
    } while (take_text(p, "|") && build_ok(p->b));
    return expr_alt(p->b, l.items, l.n);
}

const struct expr *gbnf_expr(struct build *b, const char *source, size_t n)
{
    struct parser p = {.b = b, .s = source, .n = n, .first_rule = b->n_rule};
    uint32_t root = EXPR_INF;
    for (skip(&p); build_ok(b) && p.at < n; skip(&p)) {
        size_t n_name = name_at(&p);
        if (!at_head(&p))
            return wrong(&p, "expected a rule: name ::= …");
        uint32_t rule = rule_named(&p, n_name);
        skip(&p);
        p.at += 3;
        const struct expr *body = alternatives(&p);
        if (!build_ok(b))
            break;
        if (b->rules[rule].body)
            return expr_fail(b, Q_INVALID, "grammar, line %u: rule \"%.60s\" is defined twice",
                             line_of(&p), b->rules[rule].name);
        b->rules[rule].body = body;
        if (!strcmp(b->rules[rule].name, "root"))
            root = rule;
        if (peek(&p) == ')')
            return wrong(&p, "unexpected )");
    }
    for (size_t i = p.first_rule; build_ok(b) && i < b->n_rule; i++)
        if (!b->rules[i].body)
            expr_fail(b, Q_INVALID, "grammar: rule \"%.80s\" is not defined", b->rules[i].name);
    if (root == EXPR_INF)
        return expr_fail(b, Q_INVALID, "grammar: rule \"root\" is not defined");
    return build_ok(b) ? expr_ref(b, root) : &expr_never;
}
