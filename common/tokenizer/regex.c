/* SPDX-License-Identifier: Apache-2.0 */
/* Oniguruma's Ruby syntax and PCRE2 agree on most syntax in tokenizer files. The differences, and
 * their rewritten forms before compiling (compared on all code points):
 *
 * clang-format off
 *   Ruby               PCRE2 reads it as                 rewritten to
 *   \s \S              U+180E is a space                 \p{White_Space} \P{White_Space}
 *   \w \W              letters, digits and _ only        [\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]; not in
 *                                                        a class also six Latin-1 superscripts and
 *                                                        fractions, as Oniguruma has them
 *   \b \B              where its own \w begins or ends   lookaround with that \w
 *   \h \H              horizontal space                  [0-9a-fA-F] and its complement
 *   [[:alpha:]] …      other sets                        properties
 *   ^ $                the text's ends                   the same with PCRE2_MULTILINE
 *   (?m: )             multi-line ^ $                    (?s: )
 *   \uHHHH             an error                          \x{HHHH}
 *   \p{Han} …          script extensions                 \p{sc:Han}
 *   a{1,3}+            possessive                        (?:a{1,3})+
 *   [a[bc]] [a&&b]     [ and && as themselves            refused
 * clang-format on
 *
 * Characters newer than Unicode 14 are unassigned in Debian's PCRE2 (10.42), but not in Oniguruma.
 * A pattern is therefore compiled twice: unchanged, and with those characters written out in every
 * class that contains them (regex_newer.def). The second is slower and used only for texts with
 * such a character. \\P inside a class cannot be written out. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/tokenizer/regex.h"
#include <pcre2.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/tokenizer/steps.h"

#define MATCH_LIMIT_BASE 100000u        /* backtracks allowed for any subject, … */
#define MATCH_LIMIT_BYTE 32u            /* … and for each byte of a long one */
#define HEAP_LIMIT_KIB   (256u * 1024u) /* interpreter */
#define DEPTH_LIMIT      1000000u       /* interpreter: nested backtracking points */
#define JIT_STACK_START  ((size_t)64 << 10)
#define JIT_STACK_MAX \
    ((size_t)32 << 20) /* reserved only when 32 KiB of machine stack were not enough */

struct tok_regex_code {
    pcre2_code *code;
    bool jit;
};
struct tok_regex {
    struct tok_regex_code plain, newer; /* newer.code NULL: plain will do */
};

static const struct newer {
    const char *property, *ranges; /* of a class */
} newers[] = {
#define NEWER(property, ranges) {#property, ranges},
#include "common/tokenizer/regex_newer.def"
};

struct rewriter {
    const char *p;
    size_t n, i;
    struct buf out;
    const char *at;
    bool newer; /* write characters out that PCRE2 does not know */
    bool in_class;
    size_t class_start; /* index in p just after the opening [ and ^ */
    size_t atom;        /* where the last atom starts in out, for {n,m}+ */
    size_t groups[64];  /* where open groups start in out */
    uint32_t n_group;
};

static enum q_code unsupported(const struct rewriter *r, const char *what, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED,
                  "tokenizer.json: %s: %s at byte %zu of the pattern is not supported", r->at, what,
                  r->i);
}

static bool general_category(const char *name, size_t n)
{
    static const char one[] = "LMNPSZC";
    if (n == 0 || !strchr(one, name[0]))
        return false;
    return n == 1 || (n == 2 && (name[1] == '&' || (name[1] >= 'a' && name[1] <= 'z')));
}

/* The ranges to add to a property, "" for none. */
static const char *newer_of(const struct rewriter *r, const char *name, size_t n)
{
    for (size_t i = 0; r->newer && i < sizeof newers / sizeof *newers; i++) {
        if (strlen(newers[i].property) == n && memcmp(newers[i].property, name, n) == 0)
            return newers[i].ranges;
    }
    return "";
}

/* \p{Name}: general categories stay, anything else is tried as a script first and then as it is. */
static void add_property(struct rewriter *r, const char *name, size_t n, char p)
{
    bool negated = n && name[0] == '^';
    if (negated) {
        name++;
        n--;
        p = p == 'p' ? 'P' : 'p';
    }
    char script[80];
    int erc;
    PCRE2_SIZE where;
    const char *more = newer_of(r, name, n);
    bool own_class = *more && !r->in_class;
    if (own_class) {
        buf_add_str(&r->out, p == 'p' ? "[" : "[^");
        p = 'p';
    }
    buf_printf(&r->out, "\\%c{", p);
    if (!general_category(name, n) && n < 64) {
        int len = snprintf(script, sizeof script, "\\p{sc:%.*s}", (int)n, name);
        pcre2_code *probe =
            pcre2_compile((PCRE2_SPTR)script, (PCRE2_SIZE)len, PCRE2_UTF, &erc, &where, NULL);
        if (probe)
            buf_add_str(&r->out, "sc:");
        pcre2_code_free(probe);
    }
    buf_add(&r->out, name, n);
    buf_add_char(&r->out, '}');
    if (p == 'p')
        buf_add_str(&r->out, more);
    if (own_class)
        buf_add_char(&r->out, ']');
}

#define WORD   "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN1 "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define W      "[" WORD LATIN1 "%s]"

/* p[i] is a backslash that is not the last byte. */
static enum q_code escape(struct rewriter *r, struct q_err *e)
{
    char c = r->p[r->i + 1];
    const char *rest = r->p + r->i + 2;
    size_t n_rest = r->n - r->i - 2;
    size_t used = 2;
    if (c == 's' || c == 'S')
        buf_add_str(&r->out, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    else if (c == 'w')
        buf_printf(&r->out, r->in_class ? WORD "%s" : W, newer_of(r, "word", 4));
    else if ((c == 'd' || (c == 'D' && !r->in_class)) && *newer_of(r, "Nd", 2)) {
        const char *more = newer_of(r, "Nd", 2);
        const char *open = r->in_class ? "" : c == 'd' ? "[" : "[^";
        buf_printf(&r->out, "%s\\p{Nd}%s%s", open, more, r->in_class ? "" : "]");
    } else if (c == 'h')
        buf_add_str(&r->out, r->in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
    else if ((c == 'W' || c == 'H') && r->in_class)
        return unsupported(r, "\\W or \\H in a class", e);
    else if (c == 'W')
        buf_printf(&r->out, "[^" WORD LATIN1 "%s]", newer_of(r, "word", 4));
    else if ((c == 'b' || c == 'B') && !r->in_class) {
        const char *more = newer_of(r, "word", 4);
        const char *negated = c == 'B' ? "!" : "=";
        buf_printf(&r->out, "(?%s(?<=" W ")(?!" W ")|(?<!" W ")(?=" W "))", negated, more, more,
                   more, more);
    } else if (c == 'H')
        buf_add_str(&r->out, "[^0-9a-fA-F]");
    else if (c == 'u') {
        if (n_rest < 4)
            return unsupported(r, "an incomplete \\u", e);
        buf_printf(&r->out, "\\x{%.4s}", rest);
        used = 6;
    } else if ((c == 'p' || c == 'P') && n_rest && rest[0] == '{') {
        const char *close = memchr(rest, '}', n_rest);
        if (!close)
            return unsupported(r, "an incomplete \\p{", e);
        add_property(r, rest + 1, (size_t)(close - rest - 1), c);
        used = 2 + (size_t)(close - rest) + 1;
    } else
        buf_add(&r->out, r->p + r->i, 2);
    r->i += used;
    return Q_OK;
}

/* [:alpha:] and the like; p[i] is the bracket. */
static enum q_code posix_class(struct rewriter *r, struct q_err *e)
{
    static const struct {
        const char *name, *as, *properties[2];
    } classes[] = {
        {"[:alpha:]", "\\p{Alphabetic}", {"Alphabetic", ""}},
        {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}", {"Alphabetic", "Nd"}},
        {"[:space:]", "\\p{White_Space}", {"", ""}},
        {"[:punct:]", "\\p{P}\\p{S}", {"P", "S"}},
        {"[:digit:]", "\\p{Nd}", {"Nd", ""}},
        {"[:xdigit:]", "0-9a-fA-F", {"", ""}},
        {"[:upper:]", "\\p{Uppercase}", {"Uppercase", ""}},
        {"[:lower:]", "\\p{Lowercase}", {"Lowercase", ""}},
        {"[:word:]", WORD, {"word", ""}},
    };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        size_t len = strlen(classes[i].name);
        if (r->n - r->i >= len && memcmp(r->p + r->i, classes[i].name, len) == 0) {
            buf_add_str(&r->out, classes[i].as);
            for (size_t k = 0; k < 2; k++)
                buf_add_str(&r->out, newer_of(r, classes[i].properties[k],
                                              strlen(classes[i].properties[k])));
            r->i += len;
            return Q_OK;
        }
    }
    return unsupported(r, "this POSIX class", e);
}

/* Inside [...]. */
static enum q_code in_class(struct rewriter *r, struct q_err *e)
{
    char c = r->p[r->i];
    char next = r->i + 1 < r->n ? r->p[r->i + 1] : 0;
    if (c == '[' && next != ':')
        return unsupported(r, "a class inside a class", e);
    if (c == '&' && next == '&')
        return unsupported(r, "an intersection of classes (&&)", e);
    if (c == '[')
        return posix_class(r, e);
    if (c == ']' && r->i != r->class_start)
        r->in_class = false;
    buf_add_char(&r->out, c);
    r->i++;
    return Q_OK;
}

/* "(" and what follows it: options change their letter, verbs are refused. */
static enum q_code open_group(struct rewriter *r, struct q_err *e)
{
    if (r->n_group == sizeof r->groups / sizeof *r->groups)
        return unsupported(r, "a group at this depth", e);
    r->groups[r->n_group++] = r->out.len;
    buf_add_char(&r->out, '(');
    r->i++;
    if (r->i < r->n && r->p[r->i] == '*')
        return unsupported(r, "(*", e);
    if (r->i >= r->n || r->p[r->i] != '?')
        return Q_OK;
    size_t k = r->i + 1;
    while (k < r->n && strchr("imx-", r->p[k]) && r->p[k])
        k++;
    bool options = k < r->n && (r->p[k] == ':' || r->p[k] == ')');
    if (k + 0 < r->n && (r->p[r->i + 1] == 'C' || r->p[r->i + 1] == 'R'))
        return unsupported(r, "(?C or (?R", e);
    if (!options)
        return Q_OK;
    for (; r->i < k; r->i++)
        buf_add_char(&r->out, r->p[r->i] == 'm' ? 's' : r->p[r->i]);
    return Q_OK;
}

/* {n,m} followed by +: not possessive in Ruby. Returns false when this { is no counter. */
static bool counter(struct rewriter *r)
{
    size_t k = r->i + 1;
    while (k < r->n && (r->p[k] == ',' || (r->p[k] >= '0' && r->p[k] <= '9')))
        k++;
    if (k == r->i + 1 || k >= r->n || r->p[k] != '}')
        return false;
    size_t len = k + 1 - r->i;
    bool plus = k + 1 < r->n && r->p[k + 1] == '+';
    if (plus && r->atom <= r->out.len) {
        char tail[64];
        struct buf atom = BUF_INIT;
        buf_add(&atom, buf_str(&r->out) + r->atom, r->out.len - r->atom);
        r->out.len = r->atom;
        buf_add_str(&r->out, "(?:");
        buf_add(&r->out, buf_str(&atom), atom.len);
        if (atom.failed)
            r->out.failed = atom.failed;
        buf_release(&atom);
        snprintf(tail, sizeof tail, "%.*s)", (int)len, r->p + r->i);
        buf_add_str(&r->out, tail);
    } else
        buf_add(&r->out, r->p + r->i, len);
    r->i += len;
    return true;
}

static enum q_code step(struct rewriter *r, struct q_err *e)
{
    char c = r->p[r->i];
    if (c == '\\' && r->i + 1 < r->n) {
        if (!r->in_class)
            r->atom = r->out.len;
        return escape(r, e);
    }
    if (r->in_class)
        return in_class(r, e);
    if (c == '(')
        return open_group(r, e);
    if (c == '{' && counter(r))
        return Q_OK;
    if (c == ')')
        r->atom = r->n_group ? r->groups[--r->n_group] : r->out.len;
    else if (!strchr("*+?", c) && ((unsigned char)c & 0xc0) != 0x80)
        r->atom = r->out.len;
    buf_add_char(&r->out, c);
    r->i++;
    if (c == '[') {
        r->in_class = true;
        if (r->i < r->n && r->p[r->i] == '^') {
            buf_add_char(&r->out, '^');
            r->i++;
        }
        r->class_start = r->i;
    }
    return Q_OK;
}

static enum q_code rewrite(struct rewriter *r, struct q_err *e)
{
    while (r->i < r->n) {
        enum q_code rc = step(r, e);
        if (rc)
            return rc;
    }
    return buf_check(&r->out, r->at, e);
}

static void *pcre_alloc(size_t n, void *ignored)
{
    (void)ignored;
    return q_alloc(n);
}

static void pcre_free(void *p, void *ignored)
{
    (void)ignored;
    q_free(p);
}

#ifdef QUIRE_TOK_STEPS
_Thread_local uint64_t tok_steps;
bool tok_steps_patterns;

/* Between any two items of a pattern that was compiled for it. */
static int count_steps(pcre2_callout_block *b, void *last)
{
    size_t *at = last;
    TOK_STEPS(1 +
              (*at > b->current_position ? *at - b->current_position : b->current_position - *at));
    *at = b->current_position;
    return 0;
}

static uint32_t more_options(void)
{
    return tok_steps_patterns ? PCRE2_AUTO_CALLOUT : 0;
}

static void watch(struct tok_regex_run *run, size_t *at)
{
    pcre2_set_callout(run->match, count_steps, at);
}
#else
#define more_options() 0u
#define watch(run, at) ((void)(at))
#endif

static enum q_code compile(struct tok_regex_code *x, const struct rewriter *r, struct q_err *e)
{
    int erc;
    PCRE2_SIZE where;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_general_context *g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *c = g ? pcre2_compile_context_create(g) : NULL;
    pcre2_general_context_free(g);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a pattern");
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(c, 64);
    options |= more_options();
    x->code = pcre2_compile((PCRE2_SPTR)buf_str(&r->out), r->out.len, options, &erc, &where, c);
    pcre2_compile_context_free(c);
    if (x->code) {
        x->jit = pcre2_jit_compile(x->code, PCRE2_JIT_COMPLETE) == 0;
        return Q_OK;
    }
    char why[128];
    pcre2_get_error_message(erc, (PCRE2_UCHAR *)why, sizeof why);
    if (erc == PCRE2_ERROR_HEAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a pattern");
    return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s: invalid pattern: %s", r->at, why);
}

enum q_code tok_regex_new(struct tok_regex **out, const char *pattern, size_t n, const char *at,
                          struct q_err *e)
{
    enum q_code rc;
    struct rewriter r = {.p = pattern, .n = n, .at = at, .out = BUF_INIT_MAX(TOK_REGEX_MAX * 8)};
    struct rewriter newer = r;
    newer.newer = true;
    if (n > TOK_REGEX_MAX)
        return q_fail(e, Q_UNSUPPORTED,
                      "tokenizer.json: %s: the pattern has %zu bytes, expected at most %d", at, n,
                      TOK_REGEX_MAX);
    struct tok_regex *x = q_calloc(1, sizeof *x);
    if (!x)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a pattern");
    if ((rc = rewrite(&r, e)) || (rc = compile(&x->plain, &r, e)) || (rc = rewrite(&newer, e)))
        goto out;
    bool same = r.out.len == newer.out.len;
    if (!same && (rc = compile(&x->newer, &newer, e)))
        goto out;
    *out = x;
    x = NULL;
out:
    tok_regex_free(x);
    buf_release(&r.out);
    buf_release(&newer.out);
    return rc;
}

void tok_regex_free(struct tok_regex *x)
{
    if (!x)
        return;
    pcre2_code_free(x->plain.code);
    pcre2_code_free(x->newer.code);
    q_free(x);
}

enum q_code tok_regex_run_init(struct tok_regex_run *run, struct q_err *e)
{
    *run = (struct tok_regex_run)TOK_REGEX_RUN_INIT;
    run->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (run->general) {
        run->match = pcre2_match_context_create(run->general);
        run->data = pcre2_match_data_create(1, run->general);
    }
    if (run->match && run->data) {
        pcre2_set_heap_limit(run->match, HEAP_LIMIT_KIB);
        pcre2_set_depth_limit(run->match, DEPTH_LIMIT);
        return Q_OK;
    }
    tok_regex_run_release(run);
    return q_fail(e, Q_NO_MEMORY, "out of memory for pattern matching");
}

void tok_regex_run_release(struct tok_regex_run *run)
{
    pcre2_jit_stack_free(run->stack);
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->match);
    pcre2_general_context_free(run->general);
    *run = (struct tok_regex_run)TOK_REGEX_RUN_INIT;
}

static int match_once(const struct tok_regex_code *x, struct tok_regex_run *run,
                      const struct tok_search *q, size_t from)
{
    if (x->jit) /* skips pcre2_match's checks, which cost as much as a short match */
        return pcre2_jit_match(x->code, (PCRE2_SPTR)q->s, q->n, from, PCRE2_NO_UTF_CHECK, run->data,
                               run->match);
    return pcre2_match(x->code, (PCRE2_SPTR)q->s, q->n, from, PCRE2_NO_UTF_CHECK, run->data,
                       run->match);
}

static enum q_code match_failed(int rc, struct q_err *e)
{
    char why[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
    if (rc == PCRE2_ERROR_NOMEMORY)
        return q_fail(e, Q_NO_MEMORY, "out of memory matching a pattern");
    return q_fail(e, Q_TOO_LARGE, "a pattern of tokenizer.json failed on this text: %s", why);
}

enum q_code tok_regex_find(const struct tok_regex *x, struct tok_regex_run *run,
                           struct tok_search *q, size_t from, struct q_err *e)
{
    size_t limit = MATCH_LIMIT_BASE + q->n * MATCH_LIMIT_BYTE;
    size_t at = from;
    watch(run, &at);
    TOK_STEPS(1);
    const struct tok_regex_code *code = run->newer && x->newer.code ? &x->newer : &x->plain;
    pcre2_set_match_limit(run->match, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    int rc = match_once(code, run, q, from);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !run->stack) {
        run->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, run->general);
        if (!run->stack)
            return q_fail(e, Q_NO_MEMORY, "out of memory for a pattern's stack");
        pcre2_jit_stack_assign(run->match, NULL, run->stack);
        rc = match_once(code, run, q, from);
    }
    q->found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return Q_OK;
    if (rc < 0)
        return match_failed(rc, e);
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(run->data);
    q->start = ov[0];
    q->end = ov[1];
    if (q->start > q->end) /* \K inside a lookahead can do this */
        q->start = q->end;
    return Q_OK;
}
