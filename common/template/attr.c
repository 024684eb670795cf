/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes and items. a.b is Python's attribute first and the item 'b' second; a['b'] is the
 * item first. If neither exists the result is an Undefined that records the name and the object.
 * Attributes that the sandbox forbids (names with underscores, methods that change their object)
 * give an Undefined whose use is an error. */
#include "common/template/text.h"

/* ---- attributes ---- */

static enum q_code macro_attr(struct interp *in, const struct macro *m, const struct str *name,
                              struct value *out)
{
    enum q_code rc;
    struct seq *params;
    if (text_is(name, "name")) {
        *out = v_str(m->def->name);
        return Q_OK;
    }
    if (!text_is(name, "arguments")) {
        bool internal = text_is(name, "caller") || text_is(name, "catch_kwargs") ||
                        text_is(name, "catch_varargs");
        *out = v_bool(text_is(name, "caller")         ? m->def->uses_caller
                      : text_is(name, "catch_kwargs") ? m->def->uses_kwargs
                                                      : m->def->uses_varargs);
        out->kind = internal ? V_BOOL : V_MISSING;
        return Q_OK;
    }
    if ((rc = seq_new(in, m->def->n_param, &params)))
        return rc;
    for (size_t i = 0; i < m->def->n_param && !rc; i++)
        rc = seq_add(in, params, v_str(m->def->params[i]));
    *out = v_seq(V_TUPLE, params);
    return rc;
}

static enum q_code loop_neighbour(struct interp *in, const struct loop *l, bool next,
                                  struct value *out)
{
    if (next ? l->at + 1 < l->items->n : l->at > 0) {
        *out = l->items->items[next ? l->at + 1 : l->at - 1];
        return Q_OK;
    }
    return undef_hint(in, next ? "there is no next item" : "there is no previous item", out);
}

static enum q_code loop_attr(struct interp *in, const struct loop *l, const struct str *name,
                             struct value *out)
{
    int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        struct value value;
    } members[] = {
        {"index", v_int(at + 1)},    {"index0", v_int(at)},
        {"revindex", v_int(n - at)}, {"revindex0", v_int(n - at - 1)},
        {"first", v_bool(at == 0)},  {"last", v_bool(at + 1 == n)},
        {"length", v_int(n)},        {"depth", v_int(l->depth + 1)},
        {"depth0", v_int(l->depth)},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (text_is(name, members[i].name)) {
            *out = members[i].value;
            return Q_OK;
        }
    if (text_is(name, "previtem") || text_is(name, "nextitem"))
        return loop_neighbour(in, l, name->data[0] == 'n', out);
    return Q_OK;
}

/* Members that are plain values; *out stays V_MISSING when there is none of that name. */
static enum q_code own_attr(struct interp *in, struct value of, const struct str *name,
                            struct value *out)
{
    enum q_code rc;
    struct value *found;
    out->kind = V_MISSING;
    switch (of.kind) {
    case V_NAMESPACE:
        if ((rc = dict_get_str(in, of.as.dict, name, &found)))
            return rc;
        if (found)
            *out = *found;
        return Q_OK;
    case V_LOOP:
        return loop_attr(in, of.as.loop, name, out);
    case V_MACRO:
        return macro_attr(in, of.as.macro, name, out);
    case V_TEMPLATE:
        for (size_t i = 0; i < in->t->blocks.n; i++)
            if (text_compare(in->t->blocks.at[i]->name, name) == 0)
                *out = (struct value){.kind = V_BLOCK, .as.block = in->t->blocks.at[i]};
        return in_charge(in, in->t->blocks.n / 8);
    case V_BLOCK:
        if (text_is(name, "name"))
            *out = v_str(of.as.block->name);
        return Q_OK;
    case V_CYCLER:
        if (text_is(name, "current"))
            *out = of.as.cycler->items[of.as.cycler->at];
        return Q_OK;
    case V_TUPLE:
        if (of.as.seq->grouper && (text_is(name, "grouper") || text_is(name, "list")))
            *out = of.as.seq->items[name->data[0] == 'l'];
        return Q_OK;
    case V_RANGE:
        if (text_is(name, "start") || text_is(name, "stop") || text_is(name, "step"))
            *out = v_int(name->n == 5           ? of.as.range->start
                         : name->data[2] == 'o' ? of.as.range->stop
                                                : of.as.range->step);
        return Q_OK;
    case V_BOOL:
    case V_INT:
        if (text_is(name, "real") || text_is(name, "numerator"))
            *out = v_int(v_as_int(of));
        else if (text_is(name, "imag") || text_is(name, "denominator"))
            *out = v_int(name->data[0] == 'd');
        return Q_OK;
    case V_FLOAT:
        if (text_is(name, "real") || text_is(name, "imag"))
            *out = v_float(name->data[0] == 'r' ? of.as.f : 0.0);
        return Q_OK;
    default:
        return Q_OK;
    }
}

/* The Python attribute; V_MISSING when the object has none of that name. */
static enum q_code python_attr(struct interp *in, struct value of, const struct str *name,
                               struct value *out)
{
    enum q_code rc;
    bool unsafe = name->n > 4 && memcmp(name->data, "__", 2) == 0 &&
                  memcmp(name->data + name->n - 2, "__", 2) == 0;
    const struct native *row = unsafe ? NULL : method_find(of, name, &unsafe);
    if (unsafe)
        return undef_new(in,
                         (struct undef){
                             .kind = UNDEF_UNSAFE,
                             .owner = value_type_name(of),
                             .name = v_str((struct str *)name),
                         },
                         out);
    if (!row)
        return own_attr(in, of, name, out);
    struct method *m;
    if ((rc = in_alloc(in, &m, 1, sizeof *m)))
        return rc;
    *m = (struct method){row, of};
    *out = (struct value){.kind = V_METHOD, .as.method = m};
    return Q_OK;
}

/* ---- items ---- */

static bool index_in(int64_t *i, size_t n)
{
    if (*i < 0)
        *i += (int64_t)n;
    return *i >= 0 && *i < (int64_t)n;
}

static enum q_code str_item(struct interp *in, struct str *s, int64_t i, struct value *out)
{
    enum q_code rc;
    if (!index_in(&i, text_chars(s)))
        return Q_OK;
    if ((rc = in_charge(in, s->n == s->n_char ? 0 : cost_search(s->n))))
        return rc;
    return text_slice(in, s, text_offset(s, (size_t)i), text_offset(s, (size_t)i + 1), out);
}

/* obj[key] as Python has it; V_MISSING where Python would raise. */
static enum q_code python_item(struct interp *in, struct value of, struct value key,
                               struct value *out)
{
    enum q_code rc;
    struct value *found = NULL;
    out->kind = V_MISSING;
    if (of.kind == V_DICT) {
        bool hashable = key.kind != V_LIST && key.kind != V_DICT;
        if (hashable && (rc = dict_get(in, of.as.dict, key, &found)))
            return rc;
        if (found)
            *out = *found;
        return Q_OK;
    }
    if (!v_is_int(key))
        return Q_OK;
    int64_t i = v_as_int(key);
    if (of.kind == V_STR)
        return str_item(in, of.as.s, i, out);
    if ((of.kind == V_LIST || of.kind == V_TUPLE) && index_in(&i, of.as.seq->n))
        *out = of.as.seq->items[i];
    else if (of.kind == V_RANGE && index_in(&i, (size_t)op_range_length(of.as.range)))
        *out = v_int(of.as.range->start + i * of.as.range->step);
    return Q_OK;
}

static enum q_code undef_member(struct interp *in, struct value of, struct value name,
                                struct value *out)
{
    return undef_new(
        in, (struct undef){.kind = UNDEF_MEMBER, .owner = value_object_name(of), .name = name},
        out);
}

enum q_code get_attr(struct interp *in, struct value of, struct value name, struct value *out)
{
    enum q_code rc;
    if (of.kind == V_UNDEF)
        return in_undefined(in, of.as.undef);
    if ((rc = python_attr(in, of, name.as.s, out)) || out->kind != V_MISSING)
        return rc;
    if ((rc = python_item(in, of, name, out)) || out->kind != V_MISSING)
        return rc;
    return undef_member(in, of, name, out);
}

enum q_code get_item(struct interp *in, struct value of, struct value key, struct value *out)
{
    enum q_code rc;
    if (of.kind == V_UNDEF)
        return in_undefined(in, of.as.undef);
    if ((rc = python_item(in, of, key, out)) || out->kind != V_MISSING)
        return rc;
    if (key.kind == V_STR && ((rc = python_attr(in, of, key.as.s, out)) || out->kind != V_MISSING))
        return rc;
    return undef_member(in, of, key, out);
}

/* ---- slices ---- */

struct slice { /* resolved: n items from start, step apart */
    int64_t start, step;
    size_t n;
};

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i += n;
    return i < low ? low : i > high ? high : i;
}

/* False when a bound is no integer or the step is 0. */
static bool slice_resolve(const struct value at[3], size_t length, struct slice *s)
{
    for (int i = 0; i < 3; i++)
        if (at[i].kind != V_NONE && !v_is_int(at[i]))
            return false;
    int64_t n = (int64_t)length, step = at[2].kind == V_NONE ? 1 : v_as_int(at[2]);
    if (step == 0)
        return false;
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t start =
        at[0].kind == V_NONE ? (step > 0 ? low : high) : clamp(v_as_int(at[0]), n, low, high);
    int64_t stop =
        at[1].kind == V_NONE ? (step > 0 ? high : low) : clamp(v_as_int(at[1]), n, low, high);
    struct range r = {start, stop, step};
    *s = (struct slice){start, step, (size_t)op_range_length(&r)};
    return true;
}

static enum q_code slice_str(struct interp *in, struct str *s, const struct slice *sl,
                             struct value *out)
{
    enum q_code rc;
    if ((rc = in_charge(in, cost_search(s->n) + (sl->step == 1 ? 0 : sl->n))))
        return rc;
    if (sl->n == 0)
        return text_borrow(in, "", 0, out);
    if (sl->step == 1)
        return text_slice(in, s, text_offset(s, (size_t)sl->start),
                          text_offset(s, (size_t)sl->start + sl->n), out);
    bool ascii = s->n == text_chars(s);
    size_t mark = text_mark(in);
    size_t *offsets = NULL;
    if (!ascii) { /* the byte offset of every code point */
        if ((rc = in_alloc(in, &offsets, s->n_char + 1, sizeof *offsets)))
            return rc;
        for (size_t i = 0, byte = 0; byte <= s->n; byte++)
            if (byte == s->n || ((unsigned char)s->data[byte] & 0xC0) != 0x80)
                offsets[i++] = byte;
    }
    for (size_t i = 0; i < sl->n; i++) {
        size_t at = (size_t)(sl->start + (int64_t)i * sl->step);
        size_t from = ascii ? at : offsets[at], to = ascii ? at + 1 : offsets[at + 1];
        text_add(in, s, from, to);
    }
    return text_take(in, mark, out);
}

static enum q_code slice_seq(struct interp *in, struct value of, const struct slice *sl,
                             struct value *out)
{
    enum q_code rc;
    struct seq *s;
    if ((rc = seq_new(in, sl->n, &s)) || (rc = in_charge(in, sl->n / 4)))
        return rc;
    for (size_t i = 0; i < sl->n; i++)
        s->items[i] = of.as.seq->items[sl->start + (int64_t)i * sl->step];
    s->n = sl->n;
    *out = v_seq(of.kind, s);
    return Q_OK;
}

static enum q_code slice_range(struct interp *in, const struct range *r, const struct slice *sl,
                               struct value *out)
{
    struct range *made;
    enum q_code rc = in_alloc(in, &made, 1, sizeof *made);
    if (rc)
        return rc;
    int64_t start = r->start + sl->start * r->step, step = r->step * sl->step;
    *made = (struct range){start, start + (int64_t)sl->n * step, step};
    *out = (struct value){.kind = V_RANGE, .as.range = made};
    return Q_OK;
}

enum q_code get_slice(struct interp *in, struct value of, const struct value at[3],
                      struct value *out)
{
    struct slice s;
    size_t n = 0;
    if (of.kind == V_UNDEF)
        return in_undefined(in, of.as.undef);
    bool can = of.kind == V_STR || of.kind == V_LIST || of.kind == V_TUPLE || of.kind == V_RANGE;
    if (can && at[2].kind != V_NONE && v_is_int(at[2]) && v_as_int(at[2]) == 0)
        return in_raise(in, "ValueError", "slice step cannot be zero");
    if (can)
        n = of.kind == V_STR     ? text_chars(of.as.s)
            : of.kind == V_RANGE ? (size_t)op_range_length(of.as.range)
                                 : of.as.seq->n;
    if (of.kind == V_DICT)
        return in_raise(in, "TypeError", "unhashable type: 'slice'");
    if (!can)
        return in_raise(in, "TypeError", "'%s' object is not subscriptable", value_type_name(of));
    if (!slice_resolve(at, n, &s))
        return in_raise(in, "TypeError",
                        "slice indices must be integers or None or have an __index__ method");
    return of.kind == V_STR     ? slice_str(in, of.as.s, &s, out)
           : of.kind == V_RANGE ? slice_range(in, of.as.range, &s, out)
                                : slice_seq(in, of, &s, out);
}

/* ---- attribute= of filters ---- */

enum q_code get_path(struct interp *in, struct value of, struct value path, struct value fallback,
                     struct value *out)
{
    enum q_code rc;
    *out = of;
    if (path.kind != V_STR) {
        if ((rc = get_item(in, of, path, out)))
            return rc;
        if (out->kind == V_UNDEF && fallback.kind != V_MISSING && fallback.kind != V_NONE)
            *out = fallback;
        return Q_OK;
    }
    const struct str *s = path.as.s;
    for (size_t from = 0; from <= s->n;) {
        const char *dot = memchr(s->data + from, '.', s->n - from);
        size_t to = dot ? (size_t)(dot - s->data) : s->n;
        struct value key;
        int64_t number = 0;
        bool digits = to > from && to - from < 18;
        for (size_t i = from; i < to && digits; i++) {
            digits = s->data[i] >= '0' && s->data[i] <= '9';
            number = number * 10 + (s->data[i] - '0');
        }
        if ((rc = text_slice(in, s, from, to, &key)))
            return rc;
        if (digits)
            key = v_int(number);
        if ((rc = get_item(in, *out, key, out)))
            return rc;
        if (out->kind == V_UNDEF && fallback.kind != V_MISSING && fallback.kind != V_NONE)
            *out = fallback;
        from = to + 1;
    }
    return Q_OK;
}
