/* SPDX-License-Identifier: Apache-2.0 */
/* Truth, equality, order, membership, hashing, length, iteration and sorting of values, by
 * Python's rules. */
#include <math.h>
#include "common/utf8.h"
#include "common/template/text.h"

size_t op_range_length(const struct range *r)
{
    __int128 span = (__int128)r->stop - r->start, step = r->step;
    __int128 n = step > 0 ? (span + step - 1) / step : (span + step + 1) / step;
    return n < 0 ? 0 : (size_t)n;
}

bool op_truth(struct value v)
{
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEF:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.as.b;
    case V_INT:
        return v.as.i != 0;
    case V_FLOAT:
        return v.as.f != 0.0;
    case V_STR:
        return v.as.s->n != 0;
    case V_LIST:
    case V_TUPLE:
        return v.as.seq->n != 0;
    case V_DICT:
        return v.as.dict->n != 0;
    case V_VIEW:
        return v.as.view->dict->n != 0;
    case V_RANGE:
        return op_range_length(v.as.range) != 0;
    case V_LOOP:
        return v.as.loop->items->n != 0;
    default:
        return true;
    }
}

enum q_code op_length(struct interp *in, struct value v, size_t *out)
{
    switch (v.kind) {
    case V_UNDEF:
        *out = 0;
        return Q_OK;
    case V_STR:
        *out = text_chars(v.as.s);
        return Q_OK;
    case V_LIST:
    case V_TUPLE:
        *out = v.as.seq->n;
        return Q_OK;
    case V_DICT:
        *out = v.as.dict->n;
        return Q_OK;
    case V_VIEW:
        *out = v.as.view->dict->n;
        return Q_OK;
    case V_RANGE:
        *out = op_range_length(v.as.range);
        return Q_OK;
    case V_LOOP:
        *out = v.as.loop->items->n;
        return Q_OK;
    default:
        return in_raise(in, "TypeError", "object of type '%s' has no len()", value_type_name(v));
    }
}

/* ---- equality and order ---- */

/* -1, 0, 1, or 2 when a NaN is in it. Exact also between large integers and floats. */
static int number_order(struct value a, struct value b)
{
    if (a.kind != V_FLOAT && b.kind != V_FLOAT)
        return v_as_int(a) < v_as_int(b) ? -1 : v_as_int(a) > v_as_int(b);
    if (a.kind == V_FLOAT && b.kind == V_FLOAT)
        return a.as.f < b.as.f ? -1 : a.as.f > b.as.f ? 1 : a.as.f == b.as.f ? 0 : 2;
    if (a.kind == V_FLOAT) {
        int order = number_order(b, a);
        return order == 2 ? 2 : -order;
    }
    if (isnan(b.as.f))
        return 2;
    if (b.as.f >= 9223372036854775808.0)
        return -1;
    if (b.as.f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)b.as.f, i = v_as_int(a);
    double rest = b.as.f - (double)whole;
    return i < whole ? -1 : i > whole ? 1 : rest > 0 ? -1 : rest < 0;
}

static enum q_code seq_equal(struct interp *in, const struct seq *a, const struct seq *b, bool *out)
{
    enum q_code rc = Q_OK;
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out && !rc; i++)
        rc = op_equal(in, a->items[i], b->items[i], out);
    return rc;
}

static enum q_code dict_equal(struct interp *in, const struct dict *a, const struct dict *b,
                              bool *out)
{
    enum q_code rc = Q_OK;
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out && !rc; i++) {
        struct value *other;
        if ((rc = dict_get(in, b, a->entries[i].key, &other)))
            return rc;
        *out = other != NULL;
        if (other)
            rc = op_equal(in, a->entries[i].value, *other, out);
    }
    return rc;
}

static bool range_equal(const struct range *a, const struct range *b)
{
    size_t n = op_range_length(a);
    return n == op_range_length(b) &&
           (n == 0 || (a->start == b->start && (n == 1 || a->step == b->step)));
}

enum q_code op_equal(struct interp *in, struct value a, struct value b, bool *out)
{
    enum q_code rc;
    *out = false;
    if (v_is_number(a) && v_is_number(b)) {
        *out = number_order(a, b) == 0;
        return Q_OK;
    }
    if (a.kind != b.kind)
        return Q_OK;
    switch (a.kind) {
    case V_UNDEF:
    case V_NONE:
        *out = true;
        return Q_OK;
    case V_STR:
        *out = a.as.s->n == b.as.s->n &&
               (a.as.s->n == 0 || memcmp(a.as.s->data, b.as.s->data, a.as.s->n) == 0);
        return in_charge(in, *out ? cost_copy(a.as.s->n) : 0);
    case V_RANGE:
        *out = range_equal(a.as.range, b.as.range);
        return Q_OK;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
        if (!(rc = in_enter(in)) && !(rc = in_charge(in, 1)))
            rc = a.kind == V_DICT ? dict_equal(in, a.as.dict, b.as.dict, out)
                                  : seq_equal(in, a.as.seq, b.as.seq, out);
        in_leave(in);
        return rc;
    default:
        *out = a.as.seq == b.as.seq; /* identity: all other kinds are pointers */
        return Q_OK;
    }
}

static enum q_code not_ordered(struct interp *in, const char *op, struct value a, struct value b)
{
    if (a.kind == V_UNDEF || b.kind == V_UNDEF)
        return in_undefined(in, a.kind == V_UNDEF ? a.as.undef : b.as.undef);
    return in_raise(in, "TypeError", "'%s' not supported between instances of '%s' and '%s'", op,
                    value_type_name(a), value_type_name(b));
}

static enum q_code op_order(struct interp *in, enum node_op op, struct value a, struct value b,
                            bool *out);

/* The first items that differ decide; if none does, the lengths. */
static enum q_code seq_order(struct interp *in, enum node_op op, const struct value v[2], bool *out)
{
    enum q_code rc;
    const struct seq *a = v[0].as.seq, *b = v[1].as.seq;
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        if ((rc = op_equal(in, a->items[i], b->items[i], &same)))
            return rc;
        if (!same)
            return op_order(in, op, a->items[i], b->items[i], out);
    }
    return op_order(in, op, v_int((int64_t)a->n), v_int((int64_t)b->n), out);
}

static enum q_code op_order(struct interp *in, enum node_op op, struct value a, struct value b,
                            bool *out)
{
    static const char *const text[] = {
        [OP_LT] = "<",
        [OP_LE] = "<=",
        [OP_GT] = ">",
        [OP_GE] = ">=",
    };
    int order;
    if (v_is_number(a) && v_is_number(b)) {
        order = number_order(a, b);
    } else if (a.kind == V_STR && b.kind == V_STR) {
        order = text_compare(a.as.s, b.as.s);
    } else if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
        const struct value v[2] = {a, b};
        enum q_code rc = in_enter(in);
        if (!rc && !(rc = in_charge(in, 1)))
            rc = seq_order(in, op, v, out);
        in_leave(in);
        return rc;
    } else {
        return not_ordered(in, text[op], a, b);
    }
    *out = order != 2 && (op == OP_LT   ? order < 0
                          : op == OP_LE ? order <= 0
                          : op == OP_GT ? order > 0
                                        : order >= 0);
    return Q_OK;
}

enum q_code op_less(struct interp *in, struct value a, struct value b, bool *out)
{
    return op_order(in, OP_LT, a, b, out);
}

enum q_code op_compare(struct interp *in, enum node_op op, const struct value v[2], bool *out)
{
    enum q_code rc;
    if (op == OP_EQ || op == OP_NE) {
        rc = op_equal(in, v[0], v[1], out);
        *out ^= op == OP_NE;
        return rc;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        rc = op_contains(in, v[1], v[0], out);
        *out ^= op == OP_NOT_IN;
        return rc;
    }
    return op_order(in, op, v[0], v[1], out);
}

/* ---- membership and hashing ---- */

static enum q_code str_contains(struct interp *in, const struct str *s, struct value item,
                                bool *out)
{
    if (item.kind == V_UNDEF)
        return in_undefined(in, item.as.undef);
    if (item.kind != V_STR)
        return in_raise(in, "TypeError", "'in <string>' requires string as left operand, not %s",
                        value_type_name(item));
    const struct str *part = item.as.s;
    *out = part->n == 0 || memmem(s->data, s->n, part->data, part->n) != NULL;
    return in_charge(in, cost_search(s->n));
}

enum q_code op_contains(struct interp *in, struct value of, struct value item, bool *out)
{
    enum q_code rc;
    struct value *found;
    struct seq *items;
    *out = false;
    if (of.kind == V_STR)
        return str_contains(in, of.as.s, item, out);
    if (of.kind == V_DICT || (of.kind == V_VIEW && of.as.view->kind == VIEW_KEYS)) {
        rc = dict_get(in, of.kind == V_DICT ? of.as.dict : of.as.view->dict, item, &found);
        *out = !rc && found;
        return rc;
    }
    if (!op_iterable(of))
        return in_raise(in, "TypeError", "argument of type '%s' is not iterable",
                        value_type_name(of));
    if ((rc = op_iterate(in, of, &items)))
        return rc;
    for (size_t i = 0; i < items->n && !*out; i++)
        if ((rc = op_equal(in, items->items[i], item, out)) || (rc = in_charge(in, 1)))
            return rc;
    return Q_OK;
}

static uint64_t hash_int(uint64_t i)
{
    return hash_bytes((const char *)&i, sizeof i);
}

enum q_code op_hash(struct interp *in, struct value v, uint64_t *out)
{
    enum q_code rc = Q_OK;
    switch (v.kind) {
    case V_STR:
        *out = hash_bytes(v.as.s->data, v.as.s->n);
        return in_charge(in, cost_copy(v.as.s->n));
    case V_BOOL:
    case V_INT:
        *out = hash_int((uint64_t)v_as_int(v));
        return Q_OK;
    case V_FLOAT: /* equal to an integer means the same hash */
        if (fabs(v.as.f) < 9.2e18 && v.as.f == floor(v.as.f))
            *out = hash_int((uint64_t)(int64_t)v.as.f);
        else
            *out = hash_bytes((const char *)&v.as.f, sizeof v.as.f);
        return Q_OK;
    case V_TUPLE:
        *out = v.as.seq->n;
        if (!(rc = in_enter(in)))
            for (size_t i = 0; i < v.as.seq->n && !rc; i++) {
                uint64_t h = 0;
                if (!(rc = op_hash(in, v.as.seq->items[i], &h)) && !(rc = in_charge(in, 1)))
                    *out = hash_int(*out * 31 + h);
            }
        in_leave(in);
        return rc;
    case V_LIST:
    case V_DICT:
        return in_raise(in, "TypeError", "unhashable type: '%s'", value_type_name(v));
    case V_UNDEF:
    case V_NONE:
        *out = v.kind;
        return Q_OK;
    default:
        *out = hash_int((uint64_t)(uintptr_t)v.as.seq);
        return Q_OK;
    }
}

/* ---- iteration ---- */

bool op_iterable(struct value v)
{
    return v.kind == V_UNDEF || v.kind == V_STR || (v.kind >= V_LIST && v.kind <= V_RANGE) ||
           v.kind == V_LOOP;
}

static enum q_code iterate_str(struct interp *in, struct str *s, struct seq *list)
{
    enum q_code rc = Q_OK;
    uint32_t c;
    for (size_t i = 0; i < s->n && !rc;) {
        struct value part;
        size_t step = utf8_decode(s->data + i, s->n - i, &c);
        if (!(rc = text_slice(in, s, i, i + step, &part)))
            rc = seq_add(in, list, part);
        i += step;
    }
    return rc;
}

static enum q_code iterate_dict(struct interp *in, const struct dict *d, enum view_kind kind,
                                struct seq *list)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < d->n && !rc; i++) {
        struct value v = kind == VIEW_KEYS ? d->entries[i].key : d->entries[i].value;
        if (kind == VIEW_ITEMS && (rc = seq_pair(in, d->entries[i].key, d->entries[i].value, &v)))
            return rc;
        rc = seq_add(in, list, v);
    }
    return rc;
}

static enum q_code iterate_rest(struct interp *in, struct value v, struct seq **out)
{
    struct seq *from = v.kind == V_LOOP ? v.as.loop->items : v.as.seq;
    size_t at = v.kind == V_LOOP ? v.as.loop->at + 1 : from->at;
    enum q_code rc = in_alloc(in, out, 1, sizeof **out);
    if (rc)
        return rc;
    if (at > from->n)
        at = from->n;
    **out = (struct seq){.items = from->items + at, .n = from->n - at};
    if (v.kind == V_ITER)
        from->at = from->n;
    else
        v.as.loop->at = from->n;
    return Q_OK;
}

enum q_code op_iterate(struct interp *in, struct value v, struct seq **out)
{
    enum q_code rc;
    struct seq *list;
    if (v.kind == V_LIST || v.kind == V_TUPLE) {
        *out = v.as.seq;
        return Q_OK;
    }
    if (v.kind == V_ITER || v.kind == V_LOOP)
        return iterate_rest(in, v, out);
    if (!op_iterable(v))
        return in_raise(in, "TypeError", "'%s' object is not iterable", value_type_name(v));
    size_t n = 0;
    if (v.kind != V_UNDEF && (rc = op_length(in, v, &n)))
        return rc;
    if ((rc = in_charge(in, n)) || (rc = seq_new(in, n, &list)))
        return rc;
    if (v.kind == V_STR)
        rc = iterate_str(in, v.as.s, list);
    else if (v.kind == V_DICT)
        rc = iterate_dict(in, v.as.dict, VIEW_KEYS, list);
    else if (v.kind == V_VIEW)
        rc = iterate_dict(in, v.as.view->dict, v.as.view->kind, list);
    else
        for (size_t i = 0; i < n && !rc; i++)
            rc = seq_add(in, list, v_int(v.as.range->start + (int64_t)i * v.as.range->step));
    *out = list;
    return rc;
}

/* ---- sorting: merge sort, because comparisons can fail and equal keys keep their order ---- */

struct sort_run {
    struct interp *in;
    struct value *keys;
    bool reverse;
};

static enum q_code merge(const struct sort_run *r, uint32_t *to, const uint32_t *a, size_t n_a,
                         size_t n)
{
    const uint32_t *b = a + n_a;
    size_t n_b = n - n_a, i = 0, j = 0;
    while (i < n_a && j < n_b) {
        bool second = false;
        enum q_code rc = r->reverse ? op_less(r->in, r->keys[a[i]], r->keys[b[j]], &second)
                                    : op_less(r->in, r->keys[b[j]], r->keys[a[i]], &second);
        if (rc || (rc = in_charge(r->in, 1)))
            return rc;
        *to++ = second ? b[j++] : a[i++];
    }
    memcpy(to, i < n_a ? a + i : b + j, (i < n_a ? n_a - i : n_b - j) * sizeof *to);
    return Q_OK;
}

enum q_code op_sort(struct interp *in, struct seq *s, struct value *keys, bool reverse)
{
    enum q_code rc;
    uint32_t *order, *other;
    struct value *items;
    const struct sort_run run = {in, keys, reverse};
    if (s->n < 2)
        return Q_OK;
    if ((rc = in_alloc(in, &order, s->n, sizeof *order)) ||
        (rc = in_alloc(in, &other, s->n, sizeof *other)) ||
        (rc = in_alloc(in, &items, s->n, sizeof *items)))
        return rc;
    for (size_t i = 0; i < s->n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < s->n; width *= 2) {
        for (size_t at = 0; at < s->n; at += 2 * width) {
            size_t n = s->n - at < 2 * width ? s->n - at : 2 * width;
            if ((rc = merge(&run, other + at, order + at, n < width ? n : width, n)))
                return rc;
        }
        uint32_t *swap = order;
        order = other;
        other = swap;
    }
    for (size_t i = 0; i < s->n; i++)
        items[i] = s->items[order[i]];
    memcpy(s->items, items, s->n * sizeof *items);
    return Q_OK;
}
