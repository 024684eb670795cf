/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as texts. A bound becomes an automaton that compares digits: a number with fewer digits
 * is smaller, else the first different digit decides, and fractions are compared as if padded with
 * zeros. The divisors (and forbidden divisors) of a number become an automaton that counts
 * remainders, by the least common multiple of as many of them as are small enough together.
 * Bounds, integers and multiples are combined by products. With many remainders numbers have fewer
 * digits, which are counted while a text is read or combined with the remainders, whichever needs
 * fewer states. Numbers with bounds have no exponents, and all numbers are short enough for
 * readers to parse them exactly or at least as finite values. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/grammar/source/schema_constraints.h"

#define WHOLE_MAX         40u /* digits before the point, for want of a bound */
#define PART_MAX          20u /* behind it */
#define MULTIPLE_MAX      20000.0
#define LAYERS_MAX        4000u  /* remainders of one automaton, times places behind the point */
#define COUNTED_LOOPS_MAX 30000u /* remainders beside a counted length */
#define EXACT_MAX         15u    /* letters of a number that every reader reads exactly */
#define PRODUCT_MAX       5000u  /* remainders times digits, so that a program has room for two */

static const struct expr *digits(struct build *b, char lo, char hi)
{
    if (lo > hi)
        return &expr_never;
    return expr_chars(b, cset_of(b, &(struct range){(uint32_t)lo, (uint32_t)hi}, 1), EXPR_UTF8);
}

static const struct expr *any_digits(struct build *b, uint32_t min, uint32_t max)
{
    return expr_repeat(b, digits(b, '0', '9'), min, max);
}

/* Digits of v >= 0 with 17 significant ones, e.g. "1e-07": to a point at its place. */
static bool place_point(struct number *out, const char *mantissa, int exponent)
{
    char all[128];
    size_t n = 0;
    int point = 0;
    for (const char *p = mantissa; *p && *p != 'e'; p++)
        if (*p == '.')
            point = (int)n;
        else if (n < sizeof all - 1)
            all[n++] = *p;
    point = strchr(mantissa, '.') ? point + exponent : (int)n + exponent;
    memset(out->whole, 0, sizeof out->whole);
    memset(out->part, 0, sizeof out->part);
    if (point > 60 || point < -50 || (int)n - point > 60)
        return false;
    size_t n_whole = 0, n_part = 0;
    for (int i = point < 0 ? point : 0; i < (int)n || i < point; i++) {
        char d = i >= 0 && i < (int)n ? all[i] : '0';
        if (i >= point)
            out->part[n_part++] = d;
        else if (n_whole || d != '0')
            out->whole[n_whole++] = d;
    }
    while (n_part && out->part[n_part - 1] == '0')
        out->part[--n_part] = '\0';
    if (n_whole == 0)
        out->whole[0] = '0';
    return true;
}

/* With the fewest digits that read back the same. */
static void shortest(char *text, size_t size, double value)
{
    for (int n = 1; n <= 17; n++) {
        snprintf(text, size, "%.*g", n, value);
        if (strtod(text, NULL) == value)
            break;
    }
}

bool number_read(struct number *out, const json_t *v)
{
    char text[64];
    *out = (struct number){.is_set = true};
    if (json_is_integer(v)) {
        long long n = json_integer_value(v);
        snprintf(text, sizeof text, "%lld", n);
    } else if (json_is_real(v) && isfinite(json_real_value(v))) {
        shortest(text, sizeof text, json_real_value(v));
    } else {
        return false;
    }
    out->negative = text[0] == '-';
    const char *e = strchr(text, 'e');
    if (!place_point(out, text + out->negative, e ? (int)strtol(e + 1, NULL, 10) : 0))
        return false;
    if (!strcmp(out->whole, "0") && !out->part[0])
        out->negative = false;
    return true;
}

/* The exponent form of very large and very small values, as printed and as most write it: 1e-07,
 * 1e-7; 1e+30, 1e30. */
static const struct expr *exponent_forms(struct build *b, const char *text)
{
    char plain[64];
    const char *e = strchr(text, 'e'), *digit = e + 1 + strspn(e + 1, "+-0");
    snprintf(plain, sizeof plain, "%.*s%s%s", (int)(e + 1 - text), text, e[1] == '-' ? "-" : "",
             digit);
    return expr_alt2(b, expr_text(b, text), expr_text(b, plain));
}

const struct expr *number_value(struct schema *s, const json_t *v, bool whole)
{
    struct build *b = s->b;
    struct number n;
    char text[64];
    shortest(text, sizeof text, json_number_value(v));
    bool is_far = json_is_real(v) && strchr(text, 'e');
    if (!number_read(&n, v))
        return is_far ? exponent_forms(b, text) : expr_text(b, text);
    bool zero = !strcmp(n.whole, "0") && !n.part[0];
    const struct expr *minus = expr_text(b, "-");
    const struct expr *sign = n.negative ? minus : zero ? expr_repeat(b, minus, 0, 1) : &expr_empty;
    const struct expr *x =
        expr_seq2(b, whole ? n.negative ? minus : &expr_empty : sign, expr_text(b, n.whole));
    uint32_t n_part = (uint32_t)strlen(n.part), room = n_part < PART_MAX ? PART_MAX - n_part : 0;
    const struct expr *point = expr_seq2(b, expr_text(b, "."), expr_text(b, n.part));
    if (n_part)
        x = expr_seq3(b, x, point, expr_repeat(b, digits(b, '0', '0'), 0, room));
    else if (!whole)
        x = expr_seq2(b, x,
                      expr_repeat(b,
                                  expr_seq2(b, point, expr_repeat(b, digits(b, '0', '0'), 1, room)),
                                  0, 1));
    return is_far ? expr_alt2(b, x, exponent_forms(b, text)) : x;
}

static int compare_size(const struct number *x, const struct number *y)
{
    size_t nx = strlen(x->whole), ny = strlen(y->whole);
    if (nx != ny)
        return nx < ny ? -1 : 1;
    int c = strcmp(x->whole, y->whole);
    return c ? c : strcmp(x->part, y->part);
}

int number_compare(const struct number *x, const struct number *y)
{
    if (x->negative != y->negative)
        return x->negative ? -1 : 1;
    int c = compare_size(x, y);
    c = c < 0 ? -1 : c > 0;
    return x->negative ? -c : c;
}

/* v beside a bound, where v may have more digits than a number has. */
static int compare_value(const json_t *v, const struct number *bound)
{
    struct number n;
    if (number_read(&n, v))
        return number_compare(&n, bound);
    char text[sizeof bound->whole + sizeof bound->part + 4];
    snprintf(text, sizeof text, "%s%s.%s", bound->negative ? "-" : "", bound->whole, bound->part);
    double x = json_number_value(v), y = strtod(text, NULL);
    return (x > y) - (x < y);
}

bool number_holds(const struct constraints *c, const json_t *v)
{
    int low = c->low.is_set ? compare_value(v, &c->low) : 1;
    int high = c->high.is_set ? compare_value(v, &c->high) : -1;
    if (low < 0 || (low == 0 && c->low.strict) || high > 0 || (high == 0 && c->high.strict))
        return false;
    for (uint32_t i = 0; i < c->n_multiple; i++) {
        double times = json_number_value(v) / c->multiple_of[i];
        if (c->not_multiple[i] ? fabs(times - round(times)) < 1e-6 : times != floor(times))
            return false;
    }
    return true;
}

/* .ddd or nothing */
static const struct expr *fraction(struct build *b)
{
    return expr_optional(b, expr_seq2(b, expr_text(b, "."), any_digits(b, 1, PART_MAX)));
}

/* whole digits that are more (or less, by `sign`) than those of n, with as many digits. */
static const struct expr *same_length(struct build *b, const struct number *n, int sign)
{
    struct expr_list l = {0};
    size_t n_digit = strlen(n->whole);
    for (size_t i = 0; i < n_digit; i++) {
        char d = n->whole[i];
        const struct expr *here = sign > 0
                                      ? digits(b, (char)(d + 1), '9')
                                      : digits(b, i == 0 && n_digit > 1 ? '1' : '0', (char)(d - 1));
        uint32_t rest = (uint32_t)(n_digit - i - 1);
        expr_add(b, &l, expr_seq3(b, expr_bytes(b, n->whole, i), here, any_digits(b, rest, rest)));
    }
    return expr_alt(b, l.items, l.n);
}

/* What may follow n's whole digits: ".ddd" for fractions above (below) n's; the same unless strict.
 */
static const struct expr *same_whole(struct build *b, const struct number *n, int sign)
{
    struct expr_list l = {0};
    size_t m = strlen(n->part);
    const struct expr *zeros = expr_repeat(b, expr_text(b, "0"), 0, PART_MAX);
    for (size_t j = 0; j < m; j++) { /* differs at digit j */
        char d = n->part[j];
        const struct expr *here =
            sign > 0 ? digits(b, (char)(d + 1), '9') : digits(b, '0', (char)(d - 1));
        expr_add(b, &l, expr_seq3(b, expr_bytes(b, n->part, j), here, any_digits(b, 0, PART_MAX)));
        if (sign < 0 && j > 0) /* ends there: then zeros, which are less */
            expr_add(b, &l, expr_bytes(b, n->part, j));
    }
    const struct expr *equal = expr_bytes(b, n->part, m);
    if (sign > 0) /* equal, then anything; strict: something that is not 0 */
        expr_add(b, &l,
                 expr_seq3(b, equal, zeros,
                           expr_seq2(b, digits(b, '1', '9'), any_digits(b, 0, PART_MAX))));
    if (!n->strict)
        expr_add(b, &l,
                 expr_seq2(b, equal, m ? zeros : expr_repeat(b, expr_text(b, "0"), 1, PART_MAX)));
    const struct expr *with = expr_seq2(b, expr_text(b, "."), expr_alt(b, l.items, l.n));
    bool without = m ? sign < 0 : !n->strict; /* no fraction at all */
    return without ? expr_alt2(b, with, &expr_empty) : with;
}

/* Unsigned numbers that are above (sign > 0) or below n, or equal unless strict. */
static const struct expr *beyond(struct build *b, const struct number *n, int sign)
{
    uint32_t n_digit = (uint32_t)strlen(n->whole);
    const struct expr *first = digits(b, '1', '9'), *other = &expr_never;
    if (sign > 0 && n_digit < WHOLE_MAX)
        other = expr_seq2(b, first, any_digits(b, n_digit, WHOLE_MAX - 1));
    else if (sign < 0 && n_digit > 1)
        other = expr_alt2(b, expr_text(b, "0"), expr_seq2(b, first, any_digits(b, 0, n_digit - 2)));
    const struct expr *more =
        expr_seq2(b, expr_alt2(b, other, same_length(b, n, sign)), fraction(b));
    return expr_alt2(b, more, expr_seq2(b, expr_text(b, n->whole), same_whole(b, n, sign)));
}

static const struct expr *unsigned_any(struct build *b, uint32_t n_more)
{
    const struct expr *whole = expr_alt2(
        b, expr_text(b, "0"), expr_seq2(b, digits(b, '1', '9'), any_digits(b, 0, n_more)));
    return expr_seq2(b, whole, fraction(b));
}

static const struct fsm *fsm_of(struct build *b, const struct expr *x)
{
    return fsm_of_chars(b, x, "a number's bounds");
}

/* Unsigned texts between two bounds; NULL bounds are none. */
static const struct fsm *between(struct build *b, const struct number *low,
                                 const struct number *high)
{
    const struct fsm *f = fsm_of(b, low ? beyond(b, low, 1) : unsigned_any(b, WHOLE_MAX));
    return high ? fsm_and(b, f, fsm_of(b, beyond(b, high, -1))) : f;
}

/* n_more: digits behind the first, where there is no bound. */
static const struct fsm *within_bounds(struct schema *s, const struct constraints *c,
                                       uint32_t n_more)
{
    struct build *b = s->b;
    struct number zero = {.is_set = true, .whole = "0"};
    struct number low = c->low, high = c->high, above = zero;
    const struct expr *x = &expr_never;
    above.strict = true;
    if (!low.is_set && !high.is_set) /* both signs in the same states */
        return fsm_of(b,
                      expr_seq2(b, expr_optional(b, expr_text(b, "-")), unsigned_any(b, n_more)));
    if (!high.is_set || !high.negative) { /* from 0 on */
        const struct fsm *f =
            between(b, low.is_set && !low.negative ? &low : NULL, high.is_set ? &high : NULL);
        x = expr_fsm(b, f, EXPR_UTF8);
    }
    if (!low.is_set || low.negative) { /* below 0: the sizes change places */
        const struct fsm *f =
            between(b, high.is_set && high.negative ? &high : &above, low.is_set ? &low : NULL);
        x = expr_alt2(b, x, expr_seq2(b, expr_text(b, "-"), expr_fsm(b, f, EXPR_UTF8)));
    }
    return build_ok(b) ? fsm_of(b, x) : NULL;
}

/* Multiples that are counted together: remainders by m, in units of 10^-scale. */
struct residues {
    uint64_t m;
    uint32_t scale, n;
    uint64_t units[16]; /* each divides m */
    bool is_not[16];    /* the number is no multiple of this one */
    bool some;          /* it must be one of another */
};

static bool residues_hold(const struct residues *q, uint64_t r, uint32_t places_left)
{
    bool holds = true;
    for (; places_left; places_left--)
        r = r * 10 % q->m;
    for (uint32_t i = 0; i < q->n; i++)
        holds &= (r % q->units[i] == 0) != q->is_not[i];
    return holds;
}

static void put_edge(struct fsm *f, char lo, char hi, uint32_t to)
{
    f->edges[f->n_edge++] = (struct fsm_edge){(uint32_t)lo, (uint32_t)hi, to};
}

/* Behind the places that count: zeros, or digits that no multiple has. */
static void put_tail(struct fsm *f, const struct residues *q, uint32_t zeros)
{
    put_edge(f, '0', '0', zeros);
    if (!q->some)
        put_edge(f, '1', '9', f->n_state - 1);
}

/* Of the state with remainder r in a layer; true: what was read so far holds. */
static bool put_remainder(struct fsm *f, const struct residues *q, uint32_t r, uint32_t layer)
{
    uint32_t m = (uint32_t)q->m, next = layer ? layer + 1 : 0;
    bool holds = residues_hold(q, r, q->scale - (layer ? layer - 1 : 0));
    uint32_t zeros = f->n_state - (holds ? 3 : 2);
    if (layer == 0 && (q->scale || !q->some))
        put_edge(f, '.', '.', q->scale ? 2 + r + m : zeros);
    for (uint32_t d = 0; d < 10 && layer <= q->scale; d++)
        put_edge(f, (char)('0' + d), (char)('0' + d),
                 2 + (uint32_t)(((uint64_t)r * 10 + d) % m) + m * next);
    if (layer > q->scale)
        put_tail(f, q, zeros);
    return holds;
}

/* Layer 0 is before the point, layer 1 + j behind it with j digits read; behind `scale` of them it
 * is told apart only whether nothing but zeros came. States: start, sign, the remainders by layer,
 * then three: zeros behind what holds, zeros behind what does not, other digits. A number that must
 * be a multiple of a whole one has no point. */
static const struct fsm *residues_fsm(struct build *b, const struct residues *q)
{
    uint32_t m = (uint32_t)q->m, end = 2 + m * (q->scale ? q->scale + 2 : 1), n = end + 3;
    struct fsm *f = build_alloc(b, 1, sizeof *f);
    if (!f || !build_work(b, (uint64_t)n * 12))
        return NULL;
    f->states = build_alloc(b, n, sizeof *f->states);
    f->edges = build_alloc(b, (size_t)n * 12, sizeof *f->edges);
    if (!f->states || !f->edges)
        return NULL;
    f->n_state = n;
    for (uint32_t i = 0; i < n; i++) {
        struct fsm_state *at = &f->states[i];
        at->edge = f->n_edge;
        if (i == 0)
            put_edge(f, '-', '-', 1);
        for (char d = 0; d < 10 && i < 2; d++)
            put_edge(f, (char)('0' + d), (char)('0' + d), 2 + (uint32_t)d % m);
        if (i >= 2 && i < end)
            at->final = put_remainder(f, q, (i - 2) % m, (i - 2) / m);
        if (i == end || i == end + 1)
            put_tail(f, q, i);
        if (i == end + 2)
            put_edge(f, '0', '9', i);
        at->final |= i == end || i == end + 2;
        at->n_edge = f->n_edge - at->edge;
    }
    return f;
}

static uint64_t common_divisor(uint64_t x, uint64_t y)
{
    while (y) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

/* One more of q; false: too many remainders for one automaton (never for the first). */
static bool residues_add(struct residues *q, uint64_t unit, uint32_t scale, bool is_not)
{
    struct residues new = *q;
    for (; new.scale < scale; new.scale++, new.m *= 10)
        for (uint32_t i = 0; i < q->n; i++)
            new.units[i] *= 10;
    for (; scale < new.scale; scale++)
        unit *= 10;
    Q_ASSERT(new.m > 0); /* at most MULTIPLE_MAX units of 10^-9 */
    uint64_t both = common_divisor(q->n ? new.m : unit, unit), times = both ? unit / both : 1;
    if (q->n &&
        (new.m > LAYERS_MAX / (new.scale + 2) || times > LAYERS_MAX / (new.scale + 2) / new.m))
        return false;
    new.m = q->n ? new.m *times : unit;
    new.units[new.n] = unit;
    new.is_not[new.n++] = is_not;
    new.some |= !is_not;
    *q = new;
    return true;
}

/* All of c in as few as hold them; how many. */
static uint32_t list_residues(struct schema *s, const struct constraints *c, struct residues *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_multiple && build_ok(s->b); i++) {
        double of = c->multiple_of[i], m = of;
        uint32_t scale = 0, k = 0;
        while (fabs(m - round(m)) > 1e-9 && scale < 9)
            m = of * pow(10, ++scale);
        if (fabs(m - round(m)) > 1e-9 || m > MULTIPLE_MAX || m < 1) {
            expr_fail(s->b, Q_UNSUPPORTED,
                      "multipleOf: %g is not supported; expected a whole number up to %g, or one "
                      "divided by a power of ten",
                      of, MULTIPLE_MAX);
            return 0;
        }
        while (k < n && !residues_add(&out[k], (uint64_t)round(m), scale, c->not_multiple[i]))
            k++;
        if (k == n) {
            out[n] = (struct residues){.m = 1};
            n += residues_add(&out[n], (uint64_t)round(m), scale, c->not_multiple[i]);
        }
    }
    return n;
}

/* Many remainders and many digits are too many states: how many digits there may be behind the
 * first where there is no bound; a second bound for want of one, well beyond the first. */
static uint32_t limit_digits(struct constraints *c, const struct residues *residues, uint32_t n)
{
    uint64_t m = 1;
    size_t n_bound = strlen(c->low.whole);
    struct number most = {.is_set = true, .strict = true, .whole = "1"};
    char text[24];
    for (uint32_t i = 0; i < n; i++)
        m = residues[i].m > m ? residues[i].m : m;
    if (strlen(c->high.whole) > n_bound)
        n_bound = strlen(c->high.whole);
    size_t n_least = (size_t)snprintf(text, sizeof text, "%" PRIu64, m);
    n_least = (n_least > n_bound ? n_least : n_bound) + (m < 1000 ? 4 : 1);
    size_t n_digit = PRODUCT_MAX / m > n_least ? PRODUCT_MAX / m : n_least;
    if (n_digit > WHOLE_MAX)
        return WHOLE_MAX;
    memset(most.whole + 1, '0', n_digit);
    most.negative = !c->low.is_set;
    if (c->low.is_set && !c->high.is_set)
        c->high = most;
    if (c->high.is_set && !c->low.is_set)
        c->low = most;
    return (uint32_t)n_digit - 1;
}

static const struct fsm *without(struct schema *s, const struct fsm *f, const struct constraints *c)
{
    struct build *b = s->b;
    for (uint32_t k = 0; k < c->n_not_in; k++) {
        size_t i;
        json_t *v;
        json_array_foreach ((json_t *)c->not_in[k], i, v) {
            struct number n;
            if (!json_is_number(v) || !f || !number_read(&n, v))
                continue;
            const struct expr *zeros = expr_repeat(b, expr_text(b, "0"), 1, PART_MAX);
            const struct expr *tail = expr_optional(b, expr_seq2(b, expr_text(b, "."), zeros));
            if (n.part[0])
                tail = expr_seq3(b, expr_text(b, "."), expr_text(b, n.part),
                                 expr_repeat(b, expr_text(b, "0"), 0, PART_MAX));
            const struct expr *minus = expr_text(b, "-");
            bool is_zero = !strcmp(n.whole, "0") && !n.part[0]; /* -0 too */
            const struct expr *sign = n.negative ? minus
                                      : is_zero  ? expr_optional(b, minus)
                                                 : &expr_empty;
            const struct expr *x = expr_seq3(b, sign, expr_text(b, n.whole), tail);
            f = fsm_minus(b, f, fsm_of(b, x));
        }
    }
    return f;
}

static const struct expr *free_number(struct schema *s, bool whole)
{
    struct build *b = s->b;
    const struct range signs[] = {{'+', '+'}, {'-', '-'}}, e[] = {{'E', 'E'}, {'e', 'e'}};
    const struct expr *minus = expr_optional(b, expr_text(b, "-"));
    const struct expr *digit = expr_alt2(
        b, expr_text(b, "0"), expr_seq2(b, digits(b, '1', '9'), any_digits(b, 0, WHOLE_MAX)));
    const struct expr *power = expr_seq3(
        b, expr_chars(b, cset_of(b, e, 2), EXPR_UTF8),
        expr_optional(b, expr_chars(b, cset_of(b, signs, 2), EXPR_UTF8)), any_digits(b, 1, 2));
    const struct expr *tail = expr_seq2(b, fraction(b), expr_optional(b, power));
    return expr_seq3(b, minus, digit, whole ? &expr_empty : tail);
}

/* Can the remainders be told apart without a bound of digits? Then digits are counted while a text
 * is read. */
static bool are_countable(const struct residues *residues, uint32_t n)
{
    uint64_t m = 1;
    for (uint32_t i = 0; i < n && m <= COUNTED_LOOPS_MAX; i++)
        m = m / common_divisor(m, residues[i].m) * residues[i].m * (residues[i].scale + 1);
    return m <= COUNTED_LOOPS_MAX;
}

static const struct fsm *of_any_length(struct build *b)
{
    const struct expr *any = any_digits(b, 0, EXPR_INF), *digit = digits(b, '0', '9');
    const struct expr *whole =
        expr_alt2(b, expr_text(b, "0"), expr_seq2(b, digits(b, '1', '9'), any));
    const struct expr *part = expr_optional(b, expr_seq3(b, expr_text(b, "."), digit, any));
    return fsm_of(b, expr_seq3(b, expr_optional(b, expr_text(b, "-")), whole, part));
}

const struct expr *number_expr(struct schema *s, const struct constraints *c)
{
    struct build *b = s->b;
    struct constraints with = *c;
    bool whole = !(c->types & T_FRACTION);
    for (uint32_t i = 0; i < c->n_format; i++) { /* of OpenAPI */
        bool is32 = !strcmp(c->formats[i], "int32");
        const char *end = is32 ? "2147483647" : "9223372036854775807";
        if (!whole || (!is32 && strcmp(c->formats[i], "int64") != 0))
            continue;
        struct number low = {.is_set = true, .negative = true}, high = {.is_set = true};
        snprintf(low.whole, sizeof low.whole, "%s", end);
        snprintf(high.whole, sizeof high.whole, "%s", end);
        if (!with.low.is_set || number_compare(&low, &with.low) > 0)
            with.low = low;
        if (!with.high.is_set || number_compare(&high, &with.high) < 0)
            with.high = high;
    }
    bool excludes = false;
    for (uint32_t k = 0; k < c->n_not_in; k++)
        excludes |= json_array_size(c->not_in[k]) > 0;
    if (!with.low.is_set && !with.high.is_set && !c->n_multiple && !excludes)
        return expr_named(b, "", free_number(s, whole));
    struct residues residues[16];
    uint32_t n_residues = list_residues(s, c, residues);
    uint32_t n_more = limit_digits(&with, residues, n_residues);
    bool counts = n_more < WHOLE_MAX && !with.low.is_set && !with.high.is_set &&
                  are_countable(residues, n_residues);
    const struct fsm *f = NULL;
    if (build_ok(b))
        f = counts ? of_any_length(b) : within_bounds(s, &with, n_more);
    if (excludes)
        f = without(s, f, c);
    if (whole && f) {
        const struct expr *sign = expr_optional(b, expr_text(b, "-"));
        f = fsm_and(
            b, f,
            fsm_of(b, expr_seq2(b, sign, any_digits(b, 1, counts ? EXPR_INF : WHOLE_MAX + 1))));
    }
    f = n_residues ? fsm_minimal(b, f) : f;
    for (uint32_t i = 0; i < n_residues && f; i++)
        f = fsm_minimal(b, fsm_and(b, f, fsm_minimal(b, residues_fsm(b, &residues[i]))));
    if (!f || fsm_is_empty(f))
        return &expr_never;
    return expr_named(b, "",
                      counts ? expr_within(b, f, EXPR_UTF8, EXACT_MAX) : expr_fsm(b, f, EXPR_UTF8));
}
