/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of str that split, join and format, and the methods of dict, list and tuple. */
#include "common/utf8.h"
#include "common/template/builtins.h"

/* ---- splitting ---- */

static enum q_code add_part(struct interp *in, struct seq *parts, const struct str *s, size_t from,
                            size_t to)
{
    struct value v;
    enum q_code rc = text_slice(in, s, from, to, &v);
    return rc ? rc : seq_add(in, parts, v);
}

static size_t next_boundary(const struct str *s, size_t at, bool blank)
{
    uint32_t c;
    while (at < s->n) {
        size_t step = utf8_decode(s->data + at, s->n - at, &c);
        if (uni_is_space(c) != blank)
            break;
        at += step;
    }
    return at;
}

static size_t previous_boundary(const struct str *s, size_t at, bool blank)
{
    while (at > 0) {
        size_t before = at - 1;
        uint32_t c;
        while (before > 0 && ((unsigned char)s->data[before] & 0xC0) == 0x80)
            before--;
        utf8_decode(s->data + before, at - before, &c);
        if (uni_is_space(c) != blank)
            break;
        at = before;
    }
    return at;
}

/* At white space; after n_max cuts the rest stays whole. */
static enum q_code split_blanks(struct interp *in, const struct str *s, int64_t n_max,
                                struct seq *parts)
{
    enum q_code rc = Q_OK;
    size_t at = next_boundary(s, 0, true);
    while (at < s->n && !rc) {
        bool last = n_max >= 0 && (int64_t)parts->n == n_max;
        size_t end = last ? previous_boundary(s, s->n, true) : next_boundary(s, at, false);
        if (last) /* the rest keeps the blanks at its end */
            end = s->n;
        rc = add_part(in, parts, s, at, end);
        at = next_boundary(s, end, true);
    }
    return rc;
}

static enum q_code rsplit_blanks(struct interp *in, const struct str *s, int64_t n_max,
                                 struct seq *parts)
{
    enum q_code rc = Q_OK;
    size_t end = previous_boundary(s, s->n, true);
    while (end > 0 && !rc) {
        bool last = n_max >= 0 && (int64_t)parts->n == n_max;
        size_t at = last ? 0 : previous_boundary(s, end, false);
        rc = add_part(in, parts, s, at, end);
        end = previous_boundary(s, at, true);
    }
    return rc;
}

static enum q_code split_at(struct interp *in, const struct str *s, const struct str *sep,
                            int64_t n_max, struct seq *parts)
{
    enum q_code rc;
    size_t from = 0;
    while (n_max < 0 || (int64_t)parts->n < n_max) {
        const char *hit = memmem(s->data + from, s->n - from, sep->data, sep->n);
        if (!hit)
            break;
        size_t at = (size_t)(hit - s->data);
        if ((rc = add_part(in, parts, s, from, at)))
            return rc;
        from = at + sep->n;
    }
    return add_part(in, parts, s, from, s->n);
}

static enum q_code rsplit_at(struct interp *in, const struct str *s, const struct str *sep,
                             int64_t n_max, struct seq *parts)
{
    enum q_code rc;
    size_t to = s->n;
    if ((rc = in_charge(in, s->n / 8 * (1 + sep->n / 64))))
        return rc;
    for (size_t at = to; at >= sep->n && (n_max < 0 || (int64_t)parts->n < n_max);) {
        if (memcmp(s->data + at - sep->n, sep->data, sep->n) != 0) {
            at--;
            continue;
        }
        if ((rc = add_part(in, parts, s, at, to)))
            return rc;
        at = to = at - sep->n;
    }
    return add_part(in, parts, s, 0, to);
}

static void reverse_items(struct seq *s)
{
    for (size_t i = 0; i < s->n / 2; i++) {
        struct value v = s->items[i];
        s->items[i] = s->items[s->n - 1 - i];
        s->items[s->n - 1 - i] = v;
    }
}

static enum q_code split(struct interp *in, const struct value *a, bool from_right,
                         struct value *out)
{
    enum q_code rc;
    struct str *sep, *s = a[0].as.s;
    struct seq *parts;
    int64_t n_max;
    if ((rc = arg_str(in, a[1], "separator", &sep)) ||
        (rc = arg_int(in, a[2], -1, "maxsplit", &n_max)) || (rc = seq_new(in, 0, &parts)) ||
        (rc = in_charge(in, cost_search(s->n))))
        return rc;
    if (sep && sep->n == 0)
        return in_raise(in, "ValueError", "empty separator");
    if (!sep)
        rc = from_right ? rsplit_blanks(in, s, n_max, parts) : split_blanks(in, s, n_max, parts);
    else
        rc = from_right ? rsplit_at(in, s, sep, n_max, parts) : split_at(in, s, sep, n_max, parts);
    if (from_right)
        reverse_items(parts);
    *out = v_seq(V_LIST, parts);
    return rc;
}

enum q_code method_str_split(struct interp *in, const struct value *a, struct value *out)
{
    return split(in, a, false, out);
}

enum q_code method_str_rsplit(struct interp *in, const struct value *a, struct value *out)
{
    return split(in, a, true, out);
}

enum q_code text_split_lines(struct interp *in, const struct str *s, bool keep_ends,
                             struct seq **out)
{
    enum q_code rc;
    size_t from = 0;
    uint32_t c;
    if ((rc = seq_new(in, 0, out)) || (rc = in_charge(in, cost_scan(s->n))))
        return rc;
    for (size_t at = 0; at < s->n;) {
        size_t end = at;
        at += utf8_decode(s->data + at, s->n - at, &c);
        if (!uni_is_line_end(c))
            continue;
        if (c == '\r' && at < s->n && s->data[at] == '\n')
            at++;
        if ((rc = add_part(in, *out, s, from, keep_ends ? at : end)))
            return rc;
        from = at;
    }
    return from < s->n ? add_part(in, *out, s, from, s->n) : Q_OK;
}

enum q_code method_str_splitlines(struct interp *in, const struct value *a, struct value *out)
{
    struct seq *lines;
    enum q_code rc = text_split_lines(in, a[0].as.s, arg_bool(a[1], false), &lines);
    *out = v_seq(V_LIST, lines);
    return rc;
}

static enum q_code partition(struct interp *in, const struct value *a, bool last, struct value *out)
{
    enum q_code rc;
    struct str *sep, *s = a[0].as.s;
    struct seq *parts, *cut;
    if ((rc = need_str(in, a[1], "separator", &sep)) || (rc = seq_new(in, 3, &parts)) ||
        (rc = seq_new(in, 2, &cut)))
        return rc;
    if (sep->n == 0)
        return in_raise(in, "ValueError", "empty separator");
    if ((rc = last ? rsplit_at(in, s, sep, 1, cut) : split_at(in, s, sep, 1, cut)))
        return rc;
    if (last)
        reverse_items(cut);
    struct value nothing;
    if ((rc = text_borrow(in, "", 0, &nothing)))
        return rc;
    bool found = cut->n == 2;
    parts->items[0] = found ? cut->items[0] : last ? nothing : a[0];
    parts->items[1] = found ? a[1] : nothing;
    parts->items[2] = found ? cut->items[1] : last ? a[0] : nothing;
    parts->n = 3;
    *out = v_seq(V_TUPLE, parts);
    return in_charge(in, cost_search(s->n));
}

enum q_code method_str_partition(struct interp *in, const struct value *a, struct value *out)
{
    return partition(in, a, false, out);
}

enum q_code method_str_rpartition(struct interp *in, const struct value *a, struct value *out)
{
    return partition(in, a, true, out);
}

/* ---- joining and formatting ---- */

enum q_code method_str_join(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *items;
    if ((rc = op_iterate(in, a[1], &items)))
        return rc;
    size_t mark = text_mark(in);
    for (size_t i = 0; i < items->n; i++) {
        if (items->items[i].kind != V_STR)
            return in_raise(in, "TypeError", "sequence item %zu: expected str instance, %s found",
                            i, value_type_name(items->items[i]));
        if (i)
            text_add_all(in, a[0].as.s);
        if ((rc = print_str(in, items->items[i])) || (rc = in_charge(in, 1)))
            return rc;
    }
    return text_take(in, mark, out);
}

enum q_code method_str_format(struct interp *in, const struct value *a, struct value *out)
{
    return format_braces(in, a[0].as.s, a + 1, out);
}

/* Anything may stand for the mapping as long as no field asks for a name. */
enum q_code method_str_format_map(struct interp *in, const struct value *a, struct value *out)
{
    struct dict none = {0};
    struct seq positional = {0};
    const struct value args[2] = {v_seq(V_TUPLE, &positional),
                                  a[1].kind == V_DICT ? a[1] : v_dict(&none)};
    return format_braces(in, a[0].as.s, args, out);
}

/* ---- dict ---- */

enum q_code method_dict_get(struct interp *in, const struct value *a, struct value *out)
{
    struct value *found;
    enum q_code rc = dict_get(in, a[0].as.dict, a[1], &found);
    if (!rc)
        *out = found ? *found : a[2].kind == V_MISSING ? v_none() : a[2];
    return rc;
}

enum q_code method_dict_copy(struct interp *in, const struct value *a, struct value *out)
{
    (void)in;
    *out = a[0]; /* dicts never change, so one serves as its copy */
    return Q_OK;
}

static enum q_code view_new(struct interp *in, struct dict *d, enum view_kind kind,
                            struct value *out)
{
    struct view *view;
    enum q_code rc = in_alloc(in, &view, 1, sizeof *view);
    if (rc)
        return rc;
    *view = (struct view){kind, d};
    *out = (struct value){.kind = V_VIEW, .as.view = view};
    return Q_OK;
}

enum q_code method_dict_items(struct interp *in, const struct value *a, struct value *out)
{
    return view_new(in, a[0].as.dict, VIEW_ITEMS, out);
}

enum q_code method_dict_keys(struct interp *in, const struct value *a, struct value *out)
{
    return view_new(in, a[0].as.dict, VIEW_KEYS, out);
}

enum q_code method_dict_values(struct interp *in, const struct value *a, struct value *out)
{
    return view_new(in, a[0].as.dict, VIEW_VALUES, out);
}

/* ---- list, tuple, range ---- */

enum q_code method_seq_copy(struct interp *in, const struct value *a, struct value *out)
{
    (void)in;
    *out = a[0];
    return Q_OK;
}

enum q_code method_seq_count(struct interp *in, const struct value *a, struct value *out)
{
    struct seq *s;
    int64_t n = 0;
    enum q_code rc = op_iterate(in, a[0], &s);
    if (rc)
        return rc;
    for (size_t i = 0; i < s->n; i++) {
        bool same;
        if ((rc = op_equal(in, s->items[i], a[1], &same)) || (rc = in_charge(in, 1)))
            return rc;
        n += same;
    }
    *out = v_int(n);
    return Q_OK;
}

enum q_code method_seq_index(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    int64_t n, start, end;
    if ((rc = op_iterate(in, a[0], &s)))
        return rc;
    n = (int64_t)s->n;
    if ((rc = arg_int(in, a[2], 0, "start", &start)) || (rc = arg_int(in, a[3], n, "stop", &end)))
        return rc;
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    end = end < 0 ? end + n : end > n ? n : end;
    for (int64_t i = start; i < end; i++) {
        bool same;
        if ((rc = op_equal(in, s->items[i], a[1], &same)) || (rc = in_charge(in, 1)))
            return rc;
        if (same) {
            *out = v_int(i);
            return Q_OK;
        }
    }
    return in_raise(in, "ValueError", "the value is not in the %s", value_type_name(a[0]));
}
