/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of macros, native functions, cyclers and recursive loops. Arguments are bound as in
 * Python. */
#include "common/template/text.h"

/* ---- macros ---- */

static const struct value *named_find(const struct call *c, const struct str *name, bool *used)
{
    for (size_t i = 0; i < c->n_named; i++)
        if (c->named[i].name == name ||
            (c->named[i].name->n == name->n &&
             memcmp(c->named[i].name->data, name->data, name->n) == 0)) {
            used[i] = true;
            return &c->named[i].value;
        }
    return NULL;
}

static enum q_code bind_param(struct interp *in, const struct macro_def *def, size_t i,
                              const struct value *given)
{
    enum q_code rc;
    struct value v;
    if (given) {
        v = *given;
    } else if (def->defaults && def->defaults[i]) {
        if ((rc = eval(in, def->defaults[i], &v)))
            return rc;
    } else {
        size_t mark = text_mark(in);
        struct value hint;
        buf_printf(&in->out, "parameter '%s' was not provided", def->params[i]->data);
        if ((rc = text_take(in, mark, &hint)) || (rc = undef_hint(in, hint.as.s->data, &v)))
            return rc;
    }
    return scope_set(in, in->scope, def->params[i], v);
}

/* `caller`, `kwargs`, `varargs` for a body that mentions them; leftovers are errors for one that
 * does not. */
static enum q_code bind_rest(struct interp *in, const struct macro_def *def, const struct call *c,
                             bool *used)
{
    enum q_code rc;
    struct value v;
    if (def->uses_caller && !def->has_caller_param) {
        const struct value *caller = named_find(c, in->t->caller_name, used);
        v = caller ? *caller : v_none();
        if ((!caller && (rc = undef_hint(in, "No caller defined", &v))) ||
            (rc = scope_set(in, in->scope, in->t->caller_name, v)))
            return rc;
    }
    struct dict *kwargs = NULL;
    if (def->uses_kwargs && ((rc = dict_new(in, 0, &kwargs)) ||
                             (rc = scope_set(in, in->scope, in->t->kwargs_name, v_dict(kwargs)))))
        return rc;
    for (size_t i = 0; i < c->n_named; i++) {
        if (used[i])
            continue;
        if (!kwargs)
            return in_raise(in, "TypeError", "macro '%.60s' takes no keyword argument '%.60s'",
                            def->name->data, c->named[i].name->data);
        if ((rc = dict_put(in, kwargs, v_str((struct str *)c->named[i].name), c->named[i].value)))
            return rc;
    }
    size_t n_rest = c->n_arg > def->n_param ? c->n_arg - def->n_param : 0;
    if (!def->uses_varargs)
        return n_rest
                   ? in_raise(in, "TypeError", "macro '%.60s' takes not more than %zu argument(s)",
                              def->name->data, def->n_param)
                   : Q_OK;
    struct seq *rest;
    if ((rc = seq_new(in, n_rest, &rest)))
        return rc;
    if (n_rest)
        memcpy(rest->items, c->args + def->n_param, n_rest * sizeof *rest->items);
    rest->n = n_rest;
    return scope_set(in, in->scope, in->t->varargs_name, v_seq(V_TUPLE, rest));
}

enum q_code macro_call(struct interp *in, const struct macro *m, const struct call *c,
                       struct value *out)
{
    enum q_code rc;
    const struct macro_def *def = m->def;
    struct scope *outer = in->scope, *inner;
    bool *used;
    if ((rc = in_alloc(in, &used, c->n_named, sizeof *used)) ||
        (rc = scope_new(in, m->scope, &inner)))
        return rc;
    /* Values for all parameters first: an error about the arguments comes before the evaluation of
     * defaults. */
    const struct value **given;
    if ((rc = in_alloc(in, &given, def->n_param, sizeof *given)))
        return rc;
    for (size_t i = 0; i < def->n_param; i++)
        given[i] = i < c->n_arg ? &c->args[i] : named_find(c, def->params[i], used);
    enum flow flow = in->flow;
    in->scope = inner;
    in->flow = FLOW_NEXT;
    size_t mark = text_mark(in);
    rc = bind_rest(in, def, c, used);
    for (size_t i = 0; i < def->n_param && !rc; i++)
        rc = bind_param(in, def, i, given[i]);
    if (!rc)
        rc = exec_body(in, &def->body);
    in->scope = outer;
    in->flow = flow;
    return rc ? rc : text_take(in, mark, out);
}

/* ---- native rows ---- */

struct signature {
    const char *name[NATIVE_PARAM_MAX];
    size_t n[NATIVE_PARAM_MAX];
    bool optional[NATIVE_PARAM_MAX];
    size_t n_param;      /* without star and star_star */
    int star, star_star; /* their positions in the array, -1 = none */
};

static void signature_parse(struct signature *s, const char *text, size_t first)
{
    *s = (struct signature){.n_param = first, .star = -1, .star_star = -1};
    size_t slot = first;
    while (*text && slot < NATIVE_PARAM_MAX) {
        size_t n = strcspn(text, " ");
        if (n == 1 && text[0] == '*') {
            s->star = (int)slot++;
        } else if (n == 2 && text[0] == '*') {
            s->star_star = (int)slot++;
        } else {
            s->optional[slot] = text[n - 1] == '?';
            s->name[slot] = text;
            s->n[slot] = n - s->optional[slot];
            s->n_param = ++slot;
        }
        text += n + (text[n] == ' ');
    }
}

static enum q_code bind_positional(struct interp *in, const struct native *row,
                                   const struct signature *s, const struct call *c, struct value *a)
{
    enum q_code rc;
    size_t first = s->n_param > 0 && !s->name[0] ? 1 : 0, n_slot = s->n_param - first;
    size_t n_take = n_slot < c->n_arg ? n_slot : c->n_arg;
    for (size_t i = 0; i < n_take; i++)
        a[first + i] = c->args[i];
    if (s->star < 0)
        return n_take == c->n_arg
                   ? Q_OK
                   : in_raise(in, "TypeError", "%s() takes at most %zu arguments (%zu given)",
                              row->name, n_slot, c->n_arg);
    struct seq *rest;
    if ((rc = seq_new(in, c->n_arg - n_take, &rest)))
        return rc;
    for (size_t i = n_take; i < c->n_arg; i++)
        if ((rc = seq_add(in, rest, c->args[i])))
            return rc;
    a[s->star] = v_seq(V_TUPLE, rest);
    return Q_OK;
}

static enum q_code bind_named(struct interp *in, const struct native *row,
                              const struct signature *s, const struct call *c, struct value *a)
{
    enum q_code rc;
    struct dict *rest = NULL;
    if (s->star_star >= 0) {
        if ((rc = dict_new(in, c->n_named, &rest)))
            return rc;
        a[s->star_star] = v_dict(rest);
    }
    for (size_t i = 0; i < c->n_named; i++) {
        const struct str *name = c->named[i].name;
        size_t slot = 0;
        while (slot < s->n_param &&
               !(s->name[slot] && s->n[slot] == name->n &&
                 memcmp(s->name[slot], name->data, name->n) == 0 && name->data[0] != '_'))
            slot++;
        if (slot < s->n_param && a[slot].kind != V_MISSING)
            return in_raise(in, "TypeError", "%s() got multiple values for argument '%.60s'",
                            row->name, name->data);
        if (slot < s->n_param)
            a[slot] = c->named[i].value;
        else if (!rest)
            return in_raise(in, "TypeError", "%s() got an unexpected keyword argument '%.60s'",
                            row->name, name->data);
        else if ((rc = dict_put(in, rest, v_str((struct str *)name), c->named[i].value)))
            return rc;
    }
    return Q_OK;
}

enum q_code native_call(struct interp *in, const struct native *row, const struct value *self,
                        const struct call *c, struct value *out)
{
    enum q_code rc;
    struct signature s;
    struct value a[NATIVE_PARAM_MAX] = {{V_MISSING, {0}}};
    signature_parse(&s, row->signature, self ? 1 : 0);
    if (self)
        a[0] = *self;
    if ((rc = bind_positional(in, row, &s, c, a)) || (rc = bind_named(in, row, &s, c, a)))
        return rc;
    for (size_t i = 0; i < s.n_param; i++)
        if (s.name[i] && !s.optional[i] && a[i].kind == V_MISSING)
            return in_raise(in, "TypeError", "%s() missing a required argument: '%.*s'", row->name,
                            (int)s.n[i], s.name[i]);
    if ((rc = in_enter(in)) || (rc = in_charge(in, 1))) {
        in_leave(in);
        return rc;
    }
    rc = row->fn(in, a, out);
    in_leave(in);
    return rc;
}

/* ---- everything that can be called ---- */

/* loop(items) of a recursive for: the loop's text for other items. */
static enum q_code loop_call(struct interp *in, struct loop *loop, const struct call *c,
                             struct value *out)
{
    enum q_code rc;
    struct seq *items;
    if (!loop->node->flag)
        return in_raise(in, "TypeError",
                        "The loop must have the 'recursive' marker to be called recursively.");
    if (c->n_arg != 1 || c->n_named)
        return in_raise(in, "TypeError", "loop() takes one argument");
    if ((rc = op_iterate(in, c->args[0], &items)))
        return rc;
    struct scope *scope = in->scope;
    enum flow flow = in->flow;
    size_t mark = text_mark(in);
    in->scope = loop->outer;
    rc = exec_loop(in, loop->node, items, loop->depth + 1);
    in->scope = scope;
    in->flow = flow;
    return rc ? rc : text_take(in, mark, out);
}

/* self.name(): the block's text once more, as it stands at the top. */
static enum q_code block_call(struct interp *in, const struct node *block, const struct call *c,
                              struct value *out)
{
    if (c->n_arg || c->n_named)
        return in_raise(in, "TypeError", "a block takes no arguments");
    enum flow flow = in->flow;
    size_t mark = text_mark(in);
    in->flow = FLOW_NEXT;
    enum q_code rc = exec_block(in, block, in->top);
    in->flow = flow;
    return rc ? rc : text_take(in, mark, out);
}

/* joiner(): nothing the first time, then the separator. */
static enum q_code joiner_call(struct interp *in, struct cycler *j, struct value *out)
{
    if (j->at++ == 0)
        return text_borrow(in, "", 0, out);
    *out = j->items[0];
    return Q_OK;
}

static enum q_code call_any(struct interp *in, struct value f, const struct call *c,
                            struct value *out)
{
    switch (f.kind) {
    case V_FUNC:
        return native_call(in, f.as.func, NULL, c, out);
    case V_METHOD:
        return native_call(in, f.as.method->row, &f.as.method->self, c, out);
    case V_MACRO:
        return macro_call(in, f.as.macro, c, out);
    case V_BLOCK:
        return block_call(in, f.as.block, c, out);
    case V_LOOP:
        return loop_call(in, f.as.loop, c, out);
    case V_JOINER:
        return joiner_call(in, f.as.cycler, out);
    case V_UNDEF:
        return in_undefined(in, f.as.undef);
    default:
        return in_raise(in, "TypeError", "'%s' object is not callable", value_type_name(f));
    }
}

enum q_code call_value(struct interp *in, struct value f, const struct call *c, struct value *out)
{
    enum q_code rc = in_enter(in);
    if (!rc)
        rc = call_any(in, f, c, out);
    in_leave(in);
    return rc;
}
