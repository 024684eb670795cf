/* SPDX-License-Identifier: Apache-2.0 */
/* Filters for sequences. A result that is a generator in Jinja is computed at once, as a value
 * that can be read only once (V_ITER). */
#include "common/template/builtins.h"

static enum q_code iter_value(struct seq *s, struct value *out)
{
    *out = v_seq(V_ITER, s);
    return Q_OK;
}

/* A list of one's own, to sort or reverse. */
static enum q_code copy_items(struct interp *in, struct value v, struct seq **out)
{
    enum q_code rc;
    struct seq *items;
    if ((rc = op_iterate(in, v, &items)) || (rc = seq_new(in, items->n, out)) ||
        (rc = in_charge(in, items->n)))
        return rc;
    if (items->n)
        memcpy((*out)->items, items->items, items->n * sizeof *items->items);
    (*out)->n = items->n;
    return Q_OK;
}

enum q_code filter_list(struct interp *in, const struct value *a, struct value *out)
{
    struct seq *s = NULL;
    enum q_code rc = copy_items(in, a[0], &s);
    if (!rc)
        *out = v_seq(V_LIST, s);
    return rc;
}

enum q_code filter_length(struct interp *in, const struct value *a, struct value *out)
{
    size_t n = 0;
    enum q_code rc = op_length(in, a[0], &n);
    *out = v_int((int64_t)n);
    return rc;
}

enum q_code filter_first(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items;
    if (a[0].kind == V_ITER && a[0].as.seq->at < a[0].as.seq->n) {
        *out = a[0].as.seq->items[a[0].as.seq->at++];
        return Q_OK;
    }
    if ((rc = op_iterate(in, a[0], &items)))
        return rc;
    if (items->n == 0)
        return undef_hint(in, "No first item, sequence was empty.", out);
    *out = items->items[0];
    return Q_OK;
}

enum q_code filter_last(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items;
    if (a[0].kind == V_ITER)
        return in_raise(in, "TypeError", "'generator' object is not reversible");
    if ((rc = op_iterate(in, a[0], &items)))
        return rc;
    if (items->n == 0)
        return undef_hint(in, "No last item, sequence was empty.", out);
    *out = items->items[items->n - 1];
    return Q_OK;
}

/* Jinja picks one at random; the same request must give the same prompt, so it is the first here.
 */
enum q_code filter_random(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    size_t n;
    if ((rc = op_length(in, a[0], &n)))
        return rc;
    if (n == 0)
        return undef_hint(in, "No random item, sequence was empty.", out);
    return get_item(in, a[0], v_int(0), out);
}

enum q_code filter_reverse(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    const struct value bounds[3] = {v_none(), v_none(), v_int(-1)};
    if (a[0].kind == V_STR)
        return get_slice(in, a[0], bounds, out);
    if ((rc = copy_items(in, a[0], &s)))
        return rc;
    for (size_t i = 0; i < s->n / 2; i++) {
        struct value v = s->items[i];
        s->items[i] = s->items[s->n - 1 - i];
        s->items[s->n - 1 - i] = v;
    }
    *out = v_seq(a[0].kind == V_ITER ? V_LIST : V_ITER, s);
    return Q_OK;
}

enum q_code filter_items(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    struct view view = {VIEW_ITEMS, a[0].as.dict};
    if (a[0].kind != V_DICT && a[0].kind != V_UNDEF)
        return in_raise(in, "TypeError", "Can only get item pairs from a mapping.");
    if (a[0].kind == V_UNDEF)
        rc = seq_new(in, 0, &s);
    else
        rc = copy_items(in, (struct value){.kind = V_VIEW, .as.view = &view}, &s);
    return rc ? rc : iter_value(s, out);
}

enum q_code filter_join(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items;
    struct value v;
    struct str *separator = NULL;
    if (a[1].kind != V_MISSING && (rc = text_of(in, a[1], &separator)))
        return rc;
    if ((rc = op_iterate(in, a[0], &items)))
        return rc;
    size_t mark = text_mark(in);
    for (size_t i = 0; i < items->n; i++) {
        v = items->items[i];
        if (a[2].kind != V_MISSING && a[2].kind != V_NONE &&
            (rc = get_path(in, v, a[2], v_none(), &v)))
            return rc;
        if (i && separator)
            text_add_all(in, separator);
        if ((rc = print_str(in, v)) || (rc = in_charge(in, 1)))
            return rc;
    }
    return text_take(in, mark, out);
}

/* ---- keys: attribute= and case_sensitive= ---- */

struct key_args {
    struct value attribute; /* V_MISSING or V_NONE: the item itself */
    struct value fallback;
    bool case_sensitive;
};

static enum q_code fold_case(struct interp *in, struct value *v, bool case_sensitive)
{
    return case_sensitive || v->kind != V_STR ? Q_OK : text_case(in, v->as.s, CASE_LOWER, v);
}

static enum q_code item_key(struct interp *in, struct value item, const struct key_args *k,
                            struct value *out)
{
    enum q_code rc;
    *out = item;
    if (k->attribute.kind != V_MISSING && k->attribute.kind != V_NONE &&
        (rc = get_path(in, item, k->attribute, k->fallback, out)))
        return rc;
    return fold_case(in, out, k->case_sensitive);
}

static enum q_code item_keys(struct interp *in, const struct seq *s, const struct key_args *k,
                             struct value **out)
{
    enum q_code rc = in_alloc(in, out, s->n, sizeof **out);
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = item_key(in, s->items[i], k, &(*out)[i]);
    return rc;
}

/* The keys of one item for sort: a tuple, because attribute="age,name" names several, and because
 * tuples that are equal are never asked for their order (two undefined keys have none). */
static enum q_code sort_key(struct interp *in, struct value item, struct key_args k,
                            struct value *out)
{
    enum q_code rc;
    struct seq *tuple;
    const struct value whole = k.attribute;
    size_t n = whole.kind == V_STR ? whole.as.s->n : 0;
    if ((rc = seq_new(in, 1, &tuple)))
        return rc;
    for (size_t from = 0; from <= n;) {
        const char *comma = n ? memchr(whole.as.s->data + from, ',', n - from) : NULL;
        size_t to = comma ? (size_t)(comma - whole.as.s->data) : n;
        struct value key;
        if ((n && (rc = text_slice(in, whole.as.s, from, to, &k.attribute))) ||
            (rc = item_key(in, item, &k, &key)) || (rc = seq_add(in, tuple, key)))
            return rc;
        from = to + 1;
    }
    *out = v_seq(V_TUPLE, tuple);
    return Q_OK;
}

enum q_code filter_sort(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    struct value *keys;
    struct key_args k = {a[3], v_none(), arg_bool(a[2], false)};
    if ((rc = copy_items(in, a[0], &s)) || (rc = in_alloc(in, &keys, s->n, sizeof *keys)))
        return rc;
    for (size_t i = 0; i < s->n; i++)
        if ((rc = sort_key(in, s->items[i], k, &keys[i])))
            return rc;
    if ((rc = op_sort(in, s, keys, arg_bool(a[1], false))))
        return rc;
    *out = v_seq(V_LIST, s);
    return Q_OK;
}

static enum q_code extreme(struct interp *in, const struct value *a, bool want_max,
                           struct value *out)
{
    enum q_code rc;
    struct seq *s;
    struct value *keys;
    struct key_args k = {a[2], v_none(), arg_bool(a[1], false)};
    if ((rc = op_iterate(in, a[0], &s)))
        return rc;
    if (s->n == 0)
        return undef_hint(in, "No aggregated item, sequence was empty.", out);
    if ((rc = item_keys(in, s, &k, &keys)))
        return rc;
    size_t best = 0;
    for (size_t i = 1; i < s->n; i++) {
        bool better;
        if ((rc = want_max ? op_less(in, keys[best], keys[i], &better)
                           : op_less(in, keys[i], keys[best], &better)))
            return rc;
        best = better ? i : best;
    }
    *out = s->items[best];
    return in_charge(in, s->n);
}

enum q_code filter_max(struct interp *in, const struct value *a, struct value *out)
{
    return extreme(in, a, true, out);
}

enum q_code filter_min(struct interp *in, const struct value *a, struct value *out)
{
    return extreme(in, a, false, out);
}

enum q_code filter_unique(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items, *kept;
    struct dict *seen;
    struct key_args k = {a[2], v_none(), arg_bool(a[1], false)};
    if ((rc = op_iterate(in, a[0], &items)) || (rc = seq_new(in, 0, &kept)) ||
        (rc = dict_new(in, 0, &seen)))
        return rc;
    for (size_t i = 0; i < items->n; i++) {
        struct value key, *found;
        if ((rc = item_key(in, items->items[i], &k, &key)) ||
            (rc = dict_get(in, seen, key, &found)))
            return rc;
        if (!found &&
            ((rc = dict_put(in, seen, key, v_none())) || (rc = seq_add(in, kept, items->items[i]))))
            return rc;
    }
    return iter_value(kept, out);
}

enum q_code filter_groupby(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s, *groups, *members = NULL;
    struct value *keys, group;
    struct key_args k = {a[1], a[2].kind == V_MISSING ? v_none() : a[2], arg_bool(a[3], false)};
    if ((rc = copy_items(in, a[0], &s)) || (rc = item_keys(in, s, &k, &keys)) ||
        (rc = op_sort(in, s, keys, false)) || (rc = item_keys(in, s, &k, &keys)) ||
        (rc = seq_new(in, 0, &groups)))
        return rc;
    k.case_sensitive = true; /* the group shows the first item's own key */
    for (size_t i = 0; i < s->n; i++) {
        bool same = false;
        if (i && (rc = op_equal(in, keys[i - 1], keys[i], &same)))
            return rc;
        if (!same) {
            struct value key;
            if ((rc = item_key(in, s->items[i], &k, &key)) || (rc = seq_new(in, 0, &members)) ||
                (rc = seq_pair(in, key, v_seq(V_LIST, members), &group)) ||
                (rc = seq_add(in, groups, group)))
                return rc;
            group.as.seq->grouper = true;
        }
        if ((rc = seq_add(in, members, s->items[i])))
            return rc;
    }
    *out = v_seq(V_LIST, groups);
    return Q_OK;
}

enum q_code filter_dictsort(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    struct value *keys;
    struct str *by;
    struct view view = {VIEW_ITEMS, a[0].as.dict};
    if (a[0].kind == V_UNDEF)
        return in_undefined(in, a[0].as.undef);
    if (a[0].kind != V_DICT)
        return in_raise(in, "AttributeError", "'%s' object has no attribute 'items'",
                        value_type_name(a[0]));
    if ((rc = arg_str(in, a[2], "by", &by)))
        return rc;
    bool by_value = by && text_is(by, "value");
    if (by && !by_value && !text_is(by, "key"))
        return in_raise(in, "FilterArgumentError",
                        "You can only sort by either \"key\" or \"value\"");
    struct key_args k = {v_int(by_value), v_none(), arg_bool(a[1], false)};
    if ((rc = copy_items(in, (struct value){.kind = V_VIEW, .as.view = &view}, &s)) ||
        (rc = item_keys(in, s, &k, &keys)) || (rc = op_sort(in, s, keys, arg_bool(a[3], false))))
        return rc;
    *out = v_seq(V_LIST, s);
    return Q_OK;
}

enum q_code filter_sum(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    struct value sum[2] = {a[2].kind == V_MISSING ? v_int(0) : a[2]};
    if (sum[0].kind == V_STR)
        return in_raise(in, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    if ((rc = op_iterate(in, a[0], &s)))
        return rc;
    for (size_t i = 0; i < s->n; i++) {
        sum[1] = s->items[i];
        if (a[1].kind != V_MISSING && a[1].kind != V_NONE &&
            (rc = get_path(in, sum[1], a[1], v_none(), &sum[1])))
            return rc;
        if ((rc = op_binary(in, OP_ADD, sum, &sum[0])) || (rc = in_charge(in, 1)))
            return rc;
    }
    *out = sum[0];
    return Q_OK;
}

/* ---- batch and slice ---- */

static bool has_fill(struct value v)
{
    return v.kind != V_MISSING && v.kind != V_NONE;
}

enum q_code filter_batch(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items, *rows, *row = NULL;
    int64_t width;
    if ((rc = need_int(in, a[1], "linecount", &width)) || (rc = op_iterate(in, a[0], &items)) ||
        (rc = seq_new(in, 0, &rows)))
        return rc;
    for (size_t i = 0; i < items->n; i++) {
        if ((!row || (int64_t)row->n == width) &&
            ((rc = seq_new(in, 0, &row)) || (rc = seq_add(in, rows, v_seq(V_LIST, row)))))
            return rc;
        if ((rc = seq_add(in, row, items->items[i])))
            return rc;
    }
    while (row && has_fill(a[2]) && (int64_t)row->n < width)
        if ((rc = seq_add(in, row, a[2])))
            return rc;
    return iter_value(rows, out);
}

enum q_code filter_slice(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items, *rows, *row;
    int64_t n;
    if ((rc = need_int(in, a[1], "slices", &n)) || (rc = op_iterate(in, a[0], &items)) ||
        (rc = seq_new(in, 0, &rows)))
        return rc;
    if (n == 0)
        return in_raise(in, "ZeroDivisionError", "integer division or modulo by zero");
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t take = items->n / (size_t)n + ((size_t)i < items->n % (size_t)n);
        if ((rc = seq_new(in, 0, &row)) || (rc = seq_add(in, rows, v_seq(V_LIST, row))))
            return rc;
        for (size_t k = 0; k < take; k++)
            if ((rc = seq_add(in, row, items->items[at++])))
                return rc;
        if (has_fill(a[2]) && (size_t)i >= items->n % (size_t)n && (rc = seq_add(in, row, a[2])))
            return rc;
    }
    return iter_value(rows, out);
}

/* ---- map, select & co. ---- */

/* The rest of a call's arguments, after the first n_skip positional ones. */
static enum q_code rest_of(struct interp *in, const struct value *a, size_t n_skip, struct call *c)
{
    enum q_code rc;
    const struct dict *named = a[2].as.dict;
    *c = (struct call){a[1].as.seq->items + n_skip, a[1].as.seq->n - n_skip, NULL, 0};
    if (named->n && (rc = in_alloc(in, &c->named, named->n, sizeof *c->named)))
        return rc;
    for (size_t i = 0; i < named->n; i++)
        c->named[c->n_named++] =
            (struct named_value){named->entries[i].key.as.s, named->entries[i].value};
    return Q_OK;
}

static enum q_code find_row(struct interp *in, struct value name, bool is_test,
                            const struct native **out)
{
    struct str *s;
    enum q_code rc = need_str(in, name, is_test ? "test name" : "filter name", &s);
    if (rc)
        return rc;
    *out = is_test ? test_find(s->data, s->n) : filter_find(s->data, s->n);
    return *out ? Q_OK
                : in_raise(in, "TemplateRuntimeError", "No %s named '%.*s'.",
                           is_test ? "test" : "filter", (int)(s->n < 80 ? s->n : 80), s->data);
}

/* map(attribute="x", default=y): the keyword arguments. */
static enum q_code map_path(struct interp *in, const struct dict *named, struct value *path,
                            struct value *fallback)
{
    for (size_t i = 0; i < named->n; i++) {
        const struct str *name = named->entries[i].key.as.s;
        if (text_is(name, "attribute"))
            *path = named->entries[i].value;
        else if (text_is(name, "default"))
            *fallback = named->entries[i].value;
        else
            return in_raise(in, "FilterArgumentError", "Unexpected keyword argument '%.*s'",
                            (int)(name->n < 80 ? name->n : 80), name->data);
    }
    return path->kind != V_MISSING
               ? Q_OK
               : in_raise(in, "FilterArgumentError", "map requires a filter argument");
}

enum q_code filter_map(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items, *made;
    struct call rest = {NULL, 0, NULL, 0};
    struct value path = {V_MISSING, {0}}, fallback = v_none(), v;
    const struct native *row = NULL;
    if ((rc = seq_new(in, 0, &made)))
        return rc;
    if (!op_truth(a[0]))
        return iter_value(made, out);
    if (a[1].as.seq->n == 0)
        rc = map_path(in, a[2].as.dict, &path, &fallback);
    else if (!(rc = find_row(in, a[1].as.seq->items[0], false, &row)))
        rc = rest_of(in, a, 1, &rest);
    if (rc || (rc = op_iterate(in, a[0], &items)))
        return rc;
    for (size_t i = 0; i < items->n; i++)
        if ((rc = row ? native_call(in, row, &items->items[i], &rest, &v)
                      : get_path(in, items->items[i], path, fallback, &v)) ||
            (rc = seq_add(in, made, v)))
            return rc;
    return iter_value(made, out);
}

static enum q_code pick(struct interp *in, const struct value *a, bool by_attribute, bool want,
                        struct value *out)
{
    enum q_code rc;
    struct seq *items, *kept;
    struct call rest;
    const struct native *row = NULL;
    const struct seq *args = a[1].as.seq;
    size_t n_skip = by_attribute;
    if ((rc = seq_new(in, 0, &kept)))
        return rc;
    if (!op_truth(a[0]))
        return iter_value(kept, out);
    if (args->n < n_skip)
        return in_raise(in, "FilterArgumentError", "Missing parameter for attribute name");
    if (args->n > n_skip && (rc = find_row(in, args->items[n_skip++], true, &row)))
        return rc;
    if ((rc = rest_of(in, a, n_skip, &rest)) || (rc = op_iterate(in, a[0], &items)))
        return rc;
    for (size_t i = 0; i < items->n; i++) {
        struct value v = items->items[i], yes;
        if (by_attribute && (rc = get_path(in, v, args->items[0], v_none(), &v)))
            return rc;
        yes = v;
        if (row && (rc = native_call(in, row, &v, &rest, &yes)))
            return rc;
        if (op_truth(yes) == want && (rc = seq_add(in, kept, items->items[i])))
            return rc;
        if ((rc = in_charge(in, 1)))
            return rc;
    }
    return iter_value(kept, out);
}

enum q_code filter_select(struct interp *in, const struct value *a, struct value *out)
{
    return pick(in, a, false, true, out);
}

enum q_code filter_reject(struct interp *in, const struct value *a, struct value *out)
{
    return pick(in, a, false, false, out);
}

enum q_code filter_selectattr(struct interp *in, const struct value *a, struct value *out)
{
    return pick(in, a, true, true, out);
}

enum q_code filter_rejectattr(struct interp *in, const struct value *a, struct value *out)
{
    return pick(in, a, true, false, out);
}
