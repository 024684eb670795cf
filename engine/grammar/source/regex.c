/* SPDX-License-Identifier: Apache-2.0 */
/* A recursive descent parser. ^ and $ become letters of their own (fsm.h), which an automaton
 * resolves at any position. Those at the ends of a pattern are removed first, so that most
 * patterns need no automaton over code points. */
#include "engine/grammar/source/regex.h"
#include <string.h>
#include "common/utf8.h"
#include "engine/grammar/source/chars.h"

struct parser {
    struct build *b;
    const struct regex_text *r;
    size_t at;
    enum expr_form form;
    uint32_t depth;
    bool anchors;                /* ^ or $ somewhere inside */
    struct expr_list must, not ; /* lookaheads at the start */
};

static const struct expr *alternatives(struct parser *p);

static const struct expr *refuse(struct parser *p, const char *what)
{
    return expr_fail(p->b, Q_UNSUPPORTED, "%s: %s at byte %zu of \"%.60s\"", p->r->where, what,
                     p->at, p->r->s);
}

static const struct expr *wrong(struct parser *p, const char *what)
{
    return expr_fail(p->b, Q_INVALID, "%s: %s at byte %zu of \"%.60s\"", p->r->where, what, p->at,
                     p->r->s);
}

static int peek(const struct parser *p, size_t ahead)
{
    return p->at + ahead < p->r->n ? (unsigned char)p->r->s[p->at + ahead] : -1;
}

static bool take_text(struct parser *p, const char *text)
{
    size_t n = strlen(text);
    if (p->at > p->r->n || p->r->n - p->at < n || memcmp(p->r->s + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static const struct expr *chars(struct parser *p, const struct cset *set)
{
    return expr_chars(p->b, set, p->form);
}

/* Both cases of ASCII letters. */
static const struct cset *fold(struct parser *p, const struct cset *set)
{
    struct range other[64];
    uint32_t n = 0;
    if (!p->r->ignore_case)
        return set;
    for (uint32_t c = 'A'; c <= 'Z'; c++) {
        if (cset_has(set, c))
            other[n++] = (struct range){c | 0x20, c | 0x20};
        if (cset_has(set, c | 0x20))
            other[n++] = (struct range){c, c};
    }
    return cset_or(p->b, set, cset_of(p->b, other, n));
}

static const struct expr *literal(struct parser *p, uint32_t c)
{
    char text[4];
    bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    if (p->form == EXPR_UTF8 && !(p->r->ignore_case && letter))
        return expr_bytes(p->b, text, utf8_encode(c, text));
    return chars(p, fold(p, chars_one(p->b, c, c)));
}

static bool hex(struct parser *p, int n, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < n; i++, p->at++) {
        int c = peek(p, 0), d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        if (c < 0 || d < 0 || d > 15 || (d > 9 && (c | 0x20) < 'a')) {
            wrong(p, "expected hexadecimal digits");
            return false;
        }
        *out = *out * 16 + (uint32_t)d;
    }
    return true;
}

/* \uXXXX, a pair of them, \u{X…} */
static uint32_t unicode_escape(struct parser *p)
{
    uint32_t c = 0, low;
    if (take_text(p, "{")) {
        int n = 0;
        while (n < 7 && peek(p, (size_t)n) > 0 && peek(p, (size_t)n) != '}')
            n++;
        if (hex(p, n, &c) && !take_text(p, "}"))
            wrong(p, "expected }");
        return c;
    }
    if (hex(p, 4, &c) && c >= 0xD800 && c < 0xDC00 && take_text(p, "\\u") && hex(p, 4, &low))
        c = 0x10000 + ((c - 0xD800) << 10) + ((low - 0xDC00) & 0x3FF);
    return c;
}

/* \p{…} behind the p. */
static struct char_class category(struct parser *p, bool negated)
{
    struct char_class c = {&cset_any, &cset_any};
    const char *s = p->r->s + p->at + 1;
    const char *end = peek(p, 0) == '{' ? memchr(s, '}', p->r->n - p->at - 1) : NULL;
    size_t n = end ? (size_t)(end - s) : 0;
    if (end) {
        const char *value = memchr(s, '=', n);
        const char *name = value ? value + 1 : s;
        const struct cset *set = chars_category(p->b, name, (size_t)(end - name));
        if (set) {
            p->at += n + 2;
            c.sure = c.maybe = set;
            return negated ? chars_negated(p->b, c) : c;
        }
    }
    refuse(p, "this \\p is not supported; expected a general category such as \\p{Lu}");
    return c;
}

/* An escape that stands for one code point; the backslash is read. */
static uint32_t escaped_char(struct parser *p)
{
    static const char from[] = "ntrfvae0", to[] = "\n\t\r\f\v\a\x1b";
    uint32_t c = 0;
    int first = peek(p, 0);
    const char *known = first > 0 ? strchr(from, first) : NULL;
    if (known && !(first == '0' && peek(p, 1) >= '0' && peek(p, 1) <= '9')) {
        p->at++;
        return (unsigned char)to[known - from];
    }
    if (take_text(p, "x"))
        return peek(p, 0) == '{' ? unicode_escape(p) : (hex(p, 2, &c), c);
    if (take_text(p, "u"))
        return unicode_escape(p);
    if (take_text(p, "c")) {
        c = (uint32_t)peek(p, 0) & 0x1F;
        p->at += p->at < p->r->n;
        return c;
    }
    if (first >= '0' && first <= '9')
        refuse(p, "back references are not regular");
    else if (first < 0 || ((first | 0x20) >= 'a' && (first | 0x20) <= 'z'))
        refuse(p, "this escape is not supported");
    if (!build_ok(p->b))
        return 0;
    p->at += utf8_decode(p->r->s + p->at, p->r->n - p->at, &c);
    return c;
}

/* One item of a class: a code point, or a set of them (then true). */
static bool class_item(struct parser *p, uint32_t *c, struct char_class *set)
{
    if (!take_text(p, "\\")) {
        if (peek(p, 0) == '[' && peek(p, 1) == ':')
            refuse(p, "POSIX classes are not supported");
        p->at += utf8_decode(p->r->s + p->at, p->r->n - p->at, c);
        return false;
    }
    int letter = peek(p, 0);
    if (letter > 0 && strchr("dDwWsS", letter)) {
        p->at++;
        *set = chars_class(p->b, (char)letter);
        return true;
    }
    if (take_text(p, "p") || take_text(p, "P")) {
        *set = category(p, letter == 'P');
        return true;
    }
    *c = take_text(p, "b") ? 8 : escaped_char(p);
    return false;
}

static const struct expr *char_class(struct parser *p)
{
    struct build *b = p->b;
    bool negated = take_text(p, "^");
    struct char_class all = {cset_of(b, NULL, 0), cset_of(b, NULL, 0)}, set;
    for (bool first = true; build_ok(b); first = false) {
        uint32_t lo, hi;
        if (p->at >= p->r->n)
            return wrong(p, "the class is not closed");
        if (first && !negated && peek(p, 0) == ']')
            return wrong(p, "the class is empty, or its ] needs a backslash");
        if (take_text(p, "]"))
            break;
        if (class_item(p, &lo, &set)) {
            all.sure = cset_or(b, all.sure, set.sure);
            all.maybe = cset_or(b, all.maybe, set.maybe);
            continue;
        }
        hi = lo;
        if (peek(p, 0) == '-' && peek(p, 1) > 0 && peek(p, 1) != ']') {
            size_t before = p->at++;
            if (class_item(p, &hi, &set)) { /* [a-\d]: the - is itself */
                p->at = before;
                hi = lo;
                p->at++;
                all.sure = cset_or(b, all.sure, chars_one(b, '-', '-'));
                all.maybe = cset_or(b, all.maybe, chars_one(b, '-', '-'));
            }
            if (hi < lo)
                return wrong(p, "the range goes backwards");
        }
        const struct cset *one = fold(p, chars_one(b, lo, hi));
        all.sure = cset_or(b, all.sure, one);
        all.maybe = cset_or(b, all.maybe, one);
    }
    return chars(p, negated ? cset_not(b, all.maybe) : all.sure);
}

static const struct expr *anchor(struct parser *p, uint32_t letter)
{
    struct range *r = build_alloc(p->b, 1, sizeof *r);
    struct cset *set = build_alloc(p->b, 1, sizeof *set);
    if (!r || !set)
        return &expr_never;
    *r = (struct range){letter, letter};
    *set = (struct cset){r, 1};
    p->anchors = true;
    return expr_chars(p->b, set, EXPR_UTF8);
}

static const struct expr *group(struct parser *p)
{
    if (take_text(p, "?")) {
        if (take_text(p, "P<") || (peek(p, 0) == '<' && peek(p, 1) != '=' && peek(p, 1) != '!')) {
            while (p->at < p->r->n && !take_text(p, ">"))
                p->at++;
        } else if (peek(p, 0) == '=' || peek(p, 0) == '!') {
            return refuse(p, "a lookahead is only supported at the start of the pattern");
        } else if (!take_text(p, ":")) {
            return refuse(p, peek(p, 0) == '<' ? "lookbehind is not supported"
                                               : "this kind of group is not supported");
        }
    }
    if (++p->depth > EXPR_DEPTH_MAX)
        return wrong(p, "groups are nested too deeply");
    const struct expr *x = alternatives(p);
    p->depth--;
    return take_text(p, ")") ? x : wrong(p, "the group is not closed");
}

static const struct expr *escape(struct parser *p)
{
    int letter = peek(p, 0);
    if (letter > 0 && strchr("dDwWsS", letter)) {
        p->at++;
        return chars(p, chars_class(p->b, (char)letter).sure);
    }
    if (take_text(p, "p") || take_text(p, "P"))
        return chars(p, category(p, letter == 'P').sure);
    if (letter == 'b' || letter == 'B')
        return refuse(p, "word boundaries are not supported");
    if (take_text(p, "A"))
        return anchor(p, FSM_BEGIN);
    if (take_text(p, "z") || take_text(p, "Z"))
        return anchor(p, FSM_FINISH);
    return literal(p, escaped_char(p));
}

static const struct expr *atom(struct parser *p)
{
    uint32_t c;
    if (take_text(p, "("))
        return group(p);
    if (take_text(p, "["))
        return char_class(p);
    if (take_text(p, "."))
        return chars(p, p->r->dot_all ? &cset_any : chars_dot(p->b));
    if (take_text(p, "^"))
        return anchor(p, FSM_BEGIN);
    if (take_text(p, "$"))
        return anchor(p, FSM_FINISH);
    if (take_text(p, "\\"))
        return escape(p);
    if (peek(p, 0) == '*' || peek(p, 0) == '+' || peek(p, 0) == '?')
        return wrong(p, "the repetition has no expression before it");
    p->at += utf8_decode(p->r->s + p->at, p->r->n - p->at, &c);
    return literal(p, c);
}

static bool number(struct parser *p, uint32_t *n)
{
    size_t from = p->at;
    for (*n = 0; peek(p, 0) >= '0' && peek(p, 0) <= '9'; p->at++)
        *n = *n > REGEX_TIMES_MAX ? *n : *n * 10 + (uint32_t)(peek(p, 0) - '0');
    return p->at > from;
}

/* {m}, {m,}, {m,n}, {,n}; anything else is text, as everywhere. */
static bool times(struct parser *p, uint32_t *min, uint32_t *max)
{
    size_t from = p->at;
    if (!take_text(p, "{"))
        return false;
    bool low = number(p, min);
    *max = *min;
    if (take_text(p, ",") && !number(p, max)) {
        *max = EXPR_INF;
        if (!low)
            *min = EXPR_INF; /* {,} */
    } else if (!low && p->at == from + 1) {
        *min = EXPR_INF;
    }
    if (*min != EXPR_INF && take_text(p, "}")) {
        if (*min > REGEX_TIMES_MAX || (*max != EXPR_INF && *max > REGEX_TIMES_MAX))
            wrong(p, "the repetition is of more than 100000 times");
        else if (*max < *min)
            wrong(p, "the bounds of the repetition are reversed");
        return true;
    }
    p->at = from;
    return false;
}

static const struct expr *repeated(struct parser *p)
{
    const struct expr *x = atom(p);
    for (int n = 0; build_ok(p->b) && n < 4; n++) {
        uint32_t min = 0, max = EXPR_INF;
        if (take_text(p, "+"))
            min = 1;
        else if (take_text(p, "?"))
            max = 1;
        else if (!take_text(p, "*") && !times(p, &min, &max))
            break;
        x = expr_repeat(p->b, x, min, max);
        if (!take_text(p, "?") && peek(p, 0) == '+')
            return refuse(p, "possessive repetitions are not supported");
    }
    return x;
}

static const struct expr *sequence(struct parser *p)
{
    struct expr_list l = {0};
    while (p->at < p->r->n && peek(p, 0) != '|' && peek(p, 0) != ')' && build_ok(p->b)) {
        if (peek(p, 0) == '{') { /* not a repetition: itself */
            p->at++;
            expr_add(p->b, &l, literal(p, '{'));
            continue;
        }
        expr_add(p->b, &l, repeated(p));
    }
    return expr_seq(p->b, l.items, l.n);
}

static const struct expr *alternatives(struct parser *p)
{
    struct expr_list l = {0};
    do {
        expr_add(p->b, &l, sequence(p));
    } while (take_text(p, "|") && build_ok(p->b));
    return expr_alt(p->b, l.items, l.n);
}

/* (?=…) and (?!…) as long as they come. */
static void lookaheads(struct parser *p)
{
    bool positive;
    while (build_ok(p->b) && ((positive = take_text(p, "(?=")) || take_text(p, "(?!"))) {
        expr_add(p->b, positive ? &p->must : &p->not, alternatives(p));
        if (!take_text(p, ")"))
            wrong(p, "the group is not closed");
    }
}

static const struct expr *loop_on(struct parser *p, uint32_t letter, bool any)
{
    const struct expr *x = anchor(p, letter);
    if (any)
        x = expr_alt2(p->b, x, expr_chars(p->b, &cset_any, p->form));
    return expr_repeat(p->b, x, 0, EXPR_INF);
}

/* The automaton of x between loops; free_start: any text may come before it. */
static const struct fsm *resolve(struct parser *p, const struct expr *x, bool free_start,
                                 bool free_end)
{
    x = expr_seq3(p->b, loop_on(p, FSM_BEGIN, free_start), x, loop_on(p, FSM_FINISH, free_end));
    return fsm_resolve_anchors(p->b, fsm_of_chars(p->b, x, p->r->where));
}

struct parsed {
    const struct expr *body;
    bool anchors, free_start, free_end;
};

/* Is the | of an alternative at the top? Then ^ and $ belong to one alternative each. */
static bool splits_at_top(const struct regex_text *r)
{
    int depth = 0;
    bool in_class = false;
    for (size_t i = 0; i < r->n; i++) {
        char c = r->s[i];
        if (c == '\\')
            i++;
        else if (in_class)
            in_class = c != ']';
        else if (c == '[')
            in_class = true;
        else
            depth += (c == '(') - (c == ')');
        if (c == '|' && depth == 0 && !in_class)
            return true;
    }
    return false;
}

static struct parsed parse(struct parser *p)
{
    struct regex_text whole = *p->r, inner = whole;
    struct parsed out = {&expr_never, false, whole.search, whole.search};
    size_t n = whole.n, n_slash = 0;
    if (n > REGEX_MAX || !utf8_valid(whole.s, n)) {
        wrong(p, n > REGEX_MAX ? "the pattern is too long" : "the pattern is not UTF-8");
        return out;
    }
    if (!splits_at_top(&whole)) {
        if (n && whole.s[0] == '^') {
            out.free_start = false;
            p->at = 1;
        }
        while (n > 1 && n_slash < n - 1 && whole.s[n - 2 - n_slash] == '\\')
            n_slash++;
        if (n > p->at && whole.s[n - 1] == '$' && n_slash % 2 == 0) {
            out.free_end = false;
            inner.n--;
        }
        p->r = &inner;
        lookaheads(p);
        if (p->must.n || p->not .n)
            out.free_start = false;
    }
    out.body = alternatives(p);
    if (build_ok(p->b) && p->at < inner.n)
        wrong(p, "unexpected )");
    out.anchors = p->anchors;
    p->r = NULL; /* inner ends here */
    return out;
}

static const struct expr *around(struct parser *p, const struct parsed *x)
{
    const struct expr *any = expr_repeat(p->b, expr_chars(p->b, &cset_any, p->form), 0, EXPR_INF);
    return expr_seq3(p->b, x->free_start ? any : &expr_empty, x->body,
                     x->free_end ? any : &expr_empty);
}

static const struct fsm *to_fsm(struct parser *p, const struct regex_text *r,
                                const struct parsed *x)
{
    struct build *b = p->b;
    p->r = r;
    const struct fsm *f = x->anchors ? resolve(p, x->body, x->free_start, x->free_end)
                                     : fsm_of_chars(b, around(p, x), r->where);
    for (size_t i = 0; i < p->must.n && f; i++)
        f = fsm_and(b, f, resolve(p, p->must.items[i], false, true));
    for (size_t i = 0; i < p->not .n && f; i++)
        f = fsm_minus(b, f, resolve(p, p->not .items[i], false, true));
    return f;
}

const struct fsm *regex_fsm(struct build *b, const struct regex_text *r)
{
    struct parser p = {.b = b, .r = r, .form = EXPR_UTF8};
    struct parsed x = parse(&p);
    return build_ok(b) ? to_fsm(&p, r, &x) : NULL;
}

const struct expr *regex_expr(struct build *b, const struct regex_text *r, enum expr_form form)
{
    struct parser p = {.b = b, .r = r, .form = form};
    struct parsed x = parse(&p);
    if (!build_ok(b))
        return &expr_never;
    if (!x.anchors && !p.must.n && !p.not .n)
        return around(&p, &x);
    const struct fsm *f = to_fsm(&p, r, &x);
    return f ? expr_fsm(b, f, form) : &expr_never;
}
