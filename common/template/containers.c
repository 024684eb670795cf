/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, tuples and dicts of a rendering, and the names of types. */
#include "common/template/template_internal.h"

#define DICT_LINEAR_MAX 8 /* entries searched one by one; more get a hash index */

static const struct {
    const char *type, *object;
} kind_names[] = {
    [V_MISSING] = {"missing", "missing"},
    [V_UNDEF] = {"Undefined", "Undefined"},
    [V_NONE] = {"NoneType", "None"},
    [V_BOOL] = {"bool", "bool object"},
    [V_INT] = {"int", "int object"},
    [V_FLOAT] = {"float", "float object"},
    [V_STR] = {"str", "str object"},
    [V_LIST] = {"list", "list object"},
    [V_TUPLE] = {"tuple", "tuple object"},
    [V_ITER] = {"generator", "generator object"},
    [V_DICT] = {"dict", "dict object"},
    [V_VIEW] = {"dict_items", "dict_items object"},
    [V_RANGE] = {"range", "range object"},
    [V_NAMESPACE] = {"Namespace", "jinja2.utils.Namespace object"},
    [V_LOOP] = {"LoopContext", "jinja2.runtime.LoopContext object"},
    [V_TEMPLATE] = {"TemplateReference", "jinja2.runtime.TemplateReference object"},
    [V_BLOCK] = {"BlockReference", "jinja2.runtime.BlockReference object"},
    [V_MACRO] = {"Macro", "jinja2.runtime.Macro object"},
    [V_FUNC] = {"function", "function object"},
    [V_METHOD] = {"builtin_function_or_method", "builtin_function_or_method object"},
    [V_CYCLER] = {"Cycler", "jinja2.utils.Cycler object"},
    [V_JOINER] = {"Joiner", "jinja2.utils.Joiner object"},
};

const char *value_type_name(struct value v)
{
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    return v.kind == V_VIEW ? views[v.as.view->kind] : kind_names[v.kind].type;
}

const char *value_object_name(struct value v)
{
    static const char *const views[] = {"dict_keys object", "dict_values object",
                                        "dict_items object"};
    return v.kind == V_VIEW ? views[v.as.view->kind] : kind_names[v.kind].object;
}

enum q_code seq_new(struct interp *in, size_t cap, struct seq **out)
{
    static struct value nothing; /* so that items is never NULL */
    enum q_code rc;
    struct seq *s;
    if ((rc = in_alloc(in, &s, 1, sizeof *s)) ||
        (cap && (rc = in_alloc(in, &s->items, cap, sizeof *s->items))))
        return rc;
    if (!cap)
        s->items = &nothing;
    s->cap = cap;
    *out = s;
    return Q_OK;
}

enum q_code seq_add(struct interp *in, struct seq *s, struct value v)
{
    enum q_code rc;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct value *items;
        if ((rc = in_alloc(in, &items, cap, sizeof *items)))
            return rc;
        if (s->n)
            memcpy(items, s->items, s->n * sizeof *items);
        s->items = items;
        s->cap = cap;
    }
    s->items[s->n++] = v;
    return in_charge(in, 1);
}

enum q_code seq_pair(struct interp *in, struct value a, struct value b, struct value *out)
{
    struct seq *s;
    enum q_code rc;
    if ((rc = seq_new(in, 2, &s)))
        return rc;
    s->items[0] = a;
    s->items[1] = b;
    s->n = 2;
    *out = v_seq(V_TUPLE, s);
    return Q_OK;
}

enum q_code dict_new(struct interp *in, size_t cap, struct dict **out)
{
    enum q_code rc;
    struct dict *d;
    if ((rc = in_alloc(in, &d, 1, sizeof *d)) ||
        (cap && (rc = in_alloc(in, &d->entries, cap, sizeof *d->entries))))
        return rc;
    d->cap = cap;
    *out = d;
    return Q_OK;
}

/* Entry with an equal key, or NULL. */
static enum q_code dict_find(struct interp *in, const struct dict *d, const struct dict_entry *like,
                             struct dict_entry **out)
{
    enum q_code rc;
    *out = NULL;
    size_t slot = d->n_slot ? like->hash & (d->n_slot - 1) : 0;
    for (size_t i = 0; d->index ? d->index[slot] != 0 : i < d->n; i++) {
        struct dict_entry *e = &d->entries[d->index ? d->index[slot] - 1 : i];
        bool same = false;
        if (e->hash == like->hash && (rc = op_equal(in, e->key, like->key, &same)))
            return rc;
        if (same) {
            *out = e;
            return Q_OK;
        }
        slot = (slot + 1) & (d->n_slot - 1);
        if ((i & 15) == 15 && (rc = in_charge(in, 1)))
            return rc;
    }
    return Q_OK;
}

static void index_add(struct dict *d, size_t i_entry)
{
    size_t slot = d->entries[i_entry].hash & (d->n_slot - 1);
    while (d->index[slot])
        slot = (slot + 1) & (d->n_slot - 1);
    d->index[slot] = (uint32_t)i_entry + 1;
}

static enum q_code dict_grow(struct interp *in, struct dict *d)
{
    enum q_code rc;
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct dict_entry *entries;
    if (cap > UINT32_MAX / 2)
        return in_raise(in, "MemoryError", "a dict has more than %u entries", UINT32_MAX / 2);
    if ((rc = in_alloc(in, &entries, cap, sizeof *entries)))
        return rc;
    if (d->n)
        memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->cap = cap;
    return Q_OK;
}

static enum q_code dict_reindex(struct interp *in, struct dict *d)
{
    enum q_code rc;
    size_t n_slot = 32;
    while (n_slot < d->cap * 2)
        n_slot *= 2;
    if ((rc = in_alloc(in, &d->index, n_slot, sizeof *d->index)))
        return rc;
    d->n_slot = n_slot;
    for (size_t i = 0; i < d->n; i++)
        index_add(d, i);
    return in_charge(in, d->n / 4);
}

enum q_code dict_put(struct interp *in, struct dict *d, struct value key, struct value v)
{
    enum q_code rc;
    struct dict_entry fresh = {key, v, 0}, *found;
    if ((rc = op_hash(in, key, &fresh.hash)) || (rc = dict_find(in, d, &fresh, &found)))
        return rc;
    if (found) {
        found->value = v;
        return Q_OK;
    }
    if (d->n == d->cap && (rc = dict_grow(in, d)))
        return rc;
    d->entries[d->n++] = fresh;
    if (d->n > DICT_LINEAR_MAX && d->n_slot < d->n * 2)
        rc = dict_reindex(in, d);
    else if (d->index)
        index_add(d, d->n - 1);
    return rc ? rc : in_charge(in, 1);
}

enum q_code dict_get(struct interp *in, const struct dict *d, struct value key, struct value **out)
{
    enum q_code rc;
    struct dict_entry like = {.key = key}, *found;
    if ((rc = op_hash(in, key, &like.hash)) || (rc = dict_find(in, d, &like, &found)))
        return rc;
    *out = found ? &found->value : NULL;
    return Q_OK;
}

enum q_code dict_get_str(struct interp *in, const struct dict *d, const struct str *key,
                         struct value **out)
{
    return dict_get(in, d, v_str((struct str *)key), out);
}
