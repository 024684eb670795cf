/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as texts. A bound becomes an automaton that compares digits: fewer digits are less, the
 * first digit that differs decides, fractions compare as if they went on with zeros. Bounds,
 * wholeness and multiples are multiplied. Numbers with bounds have no exponents, and all are short
 * enough that every reader reads them exactly or at least finitely. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/grammar/schema.h"

#define WHOLE_MAX    40u /* digits before the point, for want of a bound */
#define PART_MAX     20u /* behind it */
#define MULTIPLE_MAX 20000.0

static const struct gx *digits(struct build *b, char lo, char hi)
{
    if (lo > hi)
        return &gx_never;
    return gx_chars(b, cset_of(b, &(struct range){(uint32_t)lo, (uint32_t)hi}, 1), GX_UTF8);
}

static const struct gx *any_digits(struct build *b, uint32_t min, uint32_t max)
{
    return gx_repeat(b, digits(b, '0', '9'), min, max);
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

bool number_read(struct number *out, const json_t *v)
{
    char text[64];
    *out = (struct number){.is_set = true};
    if (json_is_integer(v)) {
        long long n = json_integer_value(v);
        snprintf(text, sizeof text, "%lld", n);
    } else if (json_is_real(v) && isfinite(json_real_value(v))) {
        for (int n = 1; n <= 17; n++) {
            snprintf(text, sizeof text, "%.*g", n, json_real_value(v));
            if (strtod(text, NULL) == json_real_value(v))
                break;
        }
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

bool number_holds(const struct conj *c, const json_t *v)
{
    struct number n;
    if (!number_read(&n, v))
        return false;
    int low = c->low.is_set ? number_compare(&n, &c->low) : 1;
    int high = c->high.is_set ? number_compare(&n, &c->high) : -1;
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
static const struct gx *fraction(struct build *b)
{
    return gx_optional(b, gx_seq2(b, gx_text(b, "."), any_digits(b, 1, PART_MAX)));
}

/* whole digits that are more (or less, by `sign`) than those of n, with as many digits. */
static const struct gx *same_length(struct build *b, const struct number *n, int sign)
{
    struct gx_list l = {0};
    size_t n_digit = strlen(n->whole);
    for (size_t i = 0; i < n_digit; i++) {
        char d = n->whole[i];
        const struct gx *here = sign > 0
                                    ? digits(b, (char)(d + 1), '9')
                                    : digits(b, i == 0 && n_digit > 1 ? '1' : '0', (char)(d - 1));
        uint32_t rest = (uint32_t)(n_digit - i - 1);
        gx_add(b, &l, gx_seq3(b, gx_bytes(b, n->whole, i), here, any_digits(b, rest, rest)));
    }
    return gx_alt(b, l.items, l.n);
}

/* What may follow n's whole digits: ".ddd" for fractions above (below) n's; the same unless strict.
 */
static const struct gx *same_whole(struct build *b, const struct number *n, int sign)
{
    struct gx_list l = {0};
    size_t m = strlen(n->part);
    const struct gx *zeros = gx_repeat(b, gx_text(b, "0"), 0, PART_MAX);
    for (size_t j = 0; j < m; j++) { /* differs at digit j */
        char d = n->part[j];
        const struct gx *here =
            sign > 0 ? digits(b, (char)(d + 1), '9') : digits(b, '0', (char)(d - 1));
        gx_add(b, &l, gx_seq3(b, gx_bytes(b, n->part, j), here, any_digits(b, 0, PART_MAX)));
        if (sign < 0 && j > 0) /* ends there: then zeros, which are less */
            gx_add(b, &l, gx_bytes(b, n->part, j));
    }
    const struct gx *equal = gx_bytes(b, n->part, m);
    if (sign > 0) /* equal, then anything; strict: something that is not 0 */
        gx_add(
            b, &l,
            gx_seq3(b, equal, zeros, gx_seq2(b, digits(b, '1', '9'), any_digits(b, 0, PART_MAX))));
    if (!n->strict)
        gx_add(b, &l, gx_seq2(b, equal, m ? zeros : gx_repeat(b, gx_text(b, "0"), 1, PART_MAX)));
    const struct gx *with = gx_seq2(b, gx_text(b, "."), gx_alt(b, l.items, l.n));
    bool without = m ? sign < 0 : !n->strict; /* no fraction at all */
    return without ? gx_alt2(b, with, &gx_empty) : with;
}

/* Unsigned numbers that are above (sign > 0) or below n, or equal unless strict. */
static const struct gx *beyond(struct build *b, const struct number *n, int sign)
{
    uint32_t n_digit = (uint32_t)strlen(n->whole);
    const struct gx *first = digits(b, '1', '9'), *other = &gx_never;
    if (sign > 0 && n_digit < WHOLE_MAX)
        other = gx_seq2(b, first, any_digits(b, n_digit, WHOLE_MAX - 1));
    else if (sign < 0 && n_digit > 1)
        other = gx_alt2(b, gx_text(b, "0"), gx_seq2(b, first, any_digits(b, 0, n_digit - 2)));
    const struct gx *more = gx_seq2(b, gx_alt2(b, other, same_length(b, n, sign)), fraction(b));
    return gx_alt2(b, more, gx_seq2(b, gx_text(b, n->whole), same_whole(b, n, sign)));
}

static const struct gx *unsigned_any(struct build *b)
{
    const struct gx *whole =
        gx_alt2(b, gx_text(b, "0"), gx_seq2(b, digits(b, '1', '9'), any_digits(b, 0, WHOLE_MAX)));
    return gx_seq2(b, whole, fraction(b));
}

static const struct fsm *fsm_of(struct build *b, const struct gx *x)
{
    return fsm_of_chars(b, x, "a number's bounds");
}

/* Unsigned texts between two bounds; NULL bounds are none. */
static const struct fsm *between(struct build *b, const struct number *low,
                                 const struct number *high)
{
    const struct fsm *f = fsm_of(b, low ? beyond(b, low, 1) : unsigned_any(b));
    return high ? fsm_and(b, f, fsm_of(b, beyond(b, high, -1))) : f;
}

static const struct fsm *within_bounds(struct schema *s, const struct conj *c)
{
    struct build *b = s->b;
    struct number zero = {.is_set = true, .whole = "0"};
    struct number low = c->low, high = c->high, above = zero;
    const struct gx *x = &gx_never;
    above.strict = true;
    if (!high.is_set || !high.negative) { /* from 0 on */
        const struct fsm *f =
            between(b, low.is_set && !low.negative ? &low : NULL, high.is_set ? &high : NULL);
        x = gx_fsm(b, f, GX_UTF8);
    }
    if (!low.is_set || low.negative) { /* below 0: the sizes change places */
        const struct fsm *f =
            between(b, high.is_set && high.negative ? &high : &above, low.is_set ? &low : NULL);
        x = gx_alt2(b, x, gx_seq2(b, gx_text(b, "-"), gx_fsm(b, f, GX_UTF8)));
    }
    return build_ok(b) ? fsm_of(b, x) : NULL;
}

/* Remainders by m of the digits so far. Layer 0 is before the point, layer 1 + j behind it with j
 * digits read; up to `scale` digits count, then zeros may follow. States: start, sign, then
 * 2 + remainder + m * layer. */
static const struct fsm *multiples(struct schema *s, uint32_t m, uint32_t scale)
{
    struct build *b = s->b;
    uint32_t n = 2 + m * (scale ? scale + 2 : 1);
    struct fsm *f = build_alloc(b, 1, sizeof *f);
    if (!f || !build_work(b, (uint64_t)n * 12))
        return NULL;
    f->states = build_alloc(b, n, sizeof *f->states);
    f->edges = build_alloc(b, (size_t)n * 12, sizeof *f->edges);
    if (!f->states || !f->edges)
        return NULL;
    f->n_state = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = i < 2 ? 0 : (i - 2) % m, layer = i < 2 ? 0 : (i - 2) / m, left = r;
        uint32_t next = layer && layer <= scale ? layer + 1 : layer;
        struct fsm_state *at = &f->states[i];
        at->edge = f->n_edge;
        if (i == 0)
            f->edges[f->n_edge++] = (struct fsm_edge){'-', '-', 1};
        if (i >= 2 && layer == 0 && scale)
            f->edges[f->n_edge++] = (struct fsm_edge){'.', '.', 2 + r + m};
        for (uint32_t d = 0; d < (layer > scale ? 1u : 10u); d++) {
            uint32_t to = layer > scale ? r : (uint32_t)(((uint64_t)r * 10 + d) % m);
            f->edges[f->n_edge++] = (struct fsm_edge){'0' + d, '0' + d, 2 + to + m * next};
        }
        at->n_edge = f->n_edge - at->edge;
        for (uint32_t j = layer ? layer - 1 : 0; j < scale; j++)
            left = (uint32_t)((uint64_t)left * 10 % m);
        at->final = i >= 2 && left == 0;
    }
    return f;
}

/* is_not: what is left out are the multiples in every spelling, with zeros behind the point. */
static const struct fsm *use_multiple(struct schema *s, const struct fsm *f, double of, bool is_not)
{
    uint32_t scale = 0;
    double m = of;
    while (m != floor(m) && scale < 9)
        m = of * pow(10, ++scale);
    if (fabs(m - round(m)) > 1e-9 || m > MULTIPLE_MAX) {
        gx_fail(s->b, Q_UNSUPPORTED,
                "multipleOf: %g is not supported; accepted are whole numbers up to %g, and such "
                "with a point in them",
                of, MULTIPLE_MAX);
        return NULL;
    }
    if (!f || !is_not)
        return f ? fsm_and(s->b, f, multiples(s, (uint32_t)round(m), scale)) : NULL;
    return fsm_minus(s->b, f, multiples(s, (uint32_t)round(m) * 10, scale + 1));
}

static const struct fsm *without(struct schema *s, const struct fsm *f, const struct conj *c)
{
    struct build *b = s->b;
    for (uint32_t k = 0; k < c->n_not_in; k++) {
        size_t i;
        json_t *v;
        json_array_foreach ((json_t *)c->not_in[k], i, v) {
            struct number n;
            if (!json_is_number(v) || !f || !number_read(&n, v))
                continue;
            const struct gx *zeros = gx_repeat(b, gx_text(b, "0"), 1, PART_MAX);
            const struct gx *tail = gx_optional(b, gx_seq2(b, gx_text(b, "."), zeros));
            if (n.part[0])
                tail = gx_seq3(b, gx_text(b, "."), gx_text(b, n.part),
                               gx_repeat(b, gx_text(b, "0"), 0, PART_MAX));
            const struct gx *x =
                gx_seq3(b, gx_text(b, n.negative ? "-" : ""), gx_text(b, n.whole), tail);
            f = fsm_minus(b, f, fsm_of(b, x));
        }
    }
    return f;
}

static const struct gx *free_number(struct schema *s, bool whole)
{
    struct build *b = s->b;
    const struct range signs[] = {{'+', '+'}, {'-', '-'}}, e[] = {{'E', 'E'}, {'e', 'e'}};
    const struct gx *minus = gx_optional(b, gx_text(b, "-"));
    const struct gx *digit =
        gx_alt2(b, gx_text(b, "0"), gx_seq2(b, digits(b, '1', '9'), any_digits(b, 0, WHOLE_MAX)));
    const struct gx *power =
        gx_seq3(b, gx_chars(b, cset_of(b, e, 2), GX_UTF8),
                gx_optional(b, gx_chars(b, cset_of(b, signs, 2), GX_UTF8)), any_digits(b, 1, 2));
    const struct gx *tail = gx_seq2(b, fraction(b), gx_optional(b, power));
    return gx_seq3(b, minus, digit, whole ? &gx_empty : tail);
}

const struct gx *number_gx(struct schema *s, const struct conj *c)
{
    struct build *b = s->b;
    struct conj with = *c;
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
        return gx_named(b, "", free_number(s, whole));
    const struct fsm *f = within_bounds(s, &with);
    for (uint32_t i = 0; i < c->n_multiple && build_ok(b); i++)
        f = use_multiple(s, f, c->multiple_of[i], c->not_multiple[i]);
    if (excludes)
        f = without(s, f, c);
    if (whole && f) {
        const struct gx *sign = gx_optional(b, gx_text(b, "-"));
        f = fsm_and(b, f, fsm_of(b, gx_seq2(b, sign, any_digits(b, 1, WHOLE_MAX + 1))));
    }
    return f && !fsm_is_empty(f) ? gx_named(b, "", gx_fsm(b, f, GX_UTF8)) : &gx_never;
}
