/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions. eval() counts the step and the depth, calls the function of the node's kind, and on
 * the first failure records the line and column of the innermost node that failed. */
#include "common/template/text.h"

typedef enum q_code eval_fn(struct interp *in, const struct node *n, struct value *out);

static enum q_code eval_const(struct interp *in, const struct node *n, struct value *out)
{
    (void)in;
    *out = n->constant;
    return Q_OK;
}

static enum q_code eval_name(struct interp *in, const struct node *n, struct value *out)
{
    return name_lookup(in, n->name, out);
}

static enum q_code eval_seq(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    struct seq *s;
    if ((rc = seq_new(in, n->body.n, &s)))
        return rc;
    for (size_t i = 0; i < n->body.n; i++) {
        struct value v;
        if ((rc = eval(in, n->body.at[i], &v)) || (rc = seq_add(in, s, v)))
            return rc;
    }
    *out = v_seq(n->kind == N_LIST ? V_LIST : V_TUPLE, s);
    return Q_OK;
}

static enum q_code eval_dict(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    struct dict *d;
    struct value key, v;
    if ((rc = dict_new(in, n->body.n / 2, &d)))
        return rc;
    for (size_t i = 0; i + 1 < n->body.n; i += 2)
        if ((rc = eval(in, n->body.at[i], &key)) || (rc = eval(in, n->body.at[i + 1], &v)) ||
            (rc = dict_put(in, d, key, v)))
            return rc;
    *out = v_dict(d);
    return Q_OK;
}

static enum q_code eval_attr(struct interp *in, const struct node *n, struct value *out)
{
    struct value of;
    enum q_code rc = eval(in, n->a, &of);
    return rc ? rc : get_attr(in, of, n->constant, out);
}

static enum q_code eval_item(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    struct value of, key, bounds[3] = {{V_NONE, {0}}, {V_NONE, {0}}, {V_NONE, {0}}};
    if ((rc = eval(in, n->a, &of)))
        return rc;
    if (n->b->kind != N_SLICE)
        return (rc = eval(in, n->b, &key)) ? rc : get_item(in, of, key, out);
    const struct node *part[3] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++)
        if (part[i] && (rc = eval(in, part[i], &bounds[i])))
            return rc;
    return get_slice(in, of, bounds, out);
}

/* ---- arguments ---- */

static enum q_code add_star(struct interp *in, const struct node *star, struct seq *args)
{
    enum q_code rc;
    struct value v;
    struct seq *more;
    if ((rc = eval(in, star, &v)) || (rc = op_iterate(in, v, &more)))
        return rc;
    for (size_t i = 0; i < more->n; i++)
        if ((rc = seq_add(in, args, more->items[i])))
            return rc;
    return Q_OK;
}

static enum q_code add_star_star(struct interp *in, const struct node *node, struct call *c)
{
    enum q_code rc;
    struct value v;
    if ((rc = eval(in, node, &v)))
        return rc;
    if (v.kind != V_DICT)
        return in_raise(in, "TypeError", "argument after ** must be a mapping, not %s",
                        value_type_name(v));
    struct named_value *named;
    if ((rc = in_alloc(in, &named, c->n_named + v.as.dict->n, sizeof *named)))
        return rc;
    if (c->n_named)
        memcpy(named, c->named, c->n_named * sizeof *named);
    c->named = named;
    for (size_t i = 0; i < v.as.dict->n; i++) {
        const struct dict_entry *e = &v.as.dict->entries[i];
        if (e->key.kind != V_STR)
            return in_raise(in, "TypeError", "keywords must be strings");
        c->named[c->n_named++] = (struct named_value){e->key.as.s, e->value};
    }
    return Q_OK;
}

static enum q_code eval_args(struct interp *in, const struct call_args *args, struct call *c)
{
    enum q_code rc;
    *c = (struct call){NULL, 0, NULL, 0};
    if (!args)
        return Q_OK;
    struct seq *list;
    if ((rc = seq_new(in, args->positional.n, &list)))
        return rc;
    for (size_t i = 0; i < args->positional.n; i++) {
        struct value v;
        if ((rc = eval(in, args->positional.at[i], &v)) || (rc = seq_add(in, list, v)))
            return rc;
    }
    if (args->star && (rc = add_star(in, args->star, list)))
        return rc;
    c->args = list->items;
    c->n_arg = list->n;
    if (args->n_keyword && (rc = in_alloc(in, &c->named, args->n_keyword, sizeof *c->named)))
        return rc;
    for (size_t i = 0; i < args->n_keyword; i++) {
        c->named[i].name = args->keywords[i].name;
        if ((rc = eval(in, args->keywords[i].value, &c->named[i].value)))
            return rc;
        c->n_named++;
    }
    return args->star_star ? add_star_star(in, args->star_star, c) : Q_OK;
}

static enum q_code eval_call(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    struct value f;
    struct call c;
    if ((rc = eval(in, n->a, &f)) || (rc = eval_args(in, n->args, &c)))
        return rc;
    return call_value(in, f, &c, out);
}

static enum q_code apply_row(struct interp *in, const struct node *n, struct value input,
                             struct value *out)
{
    struct call c;
    enum q_code rc;
    if (!n->row)
        return in_raise(in, "TemplateRuntimeError", "No %s named '%s'.",
                        n->kind == N_TEST ? "test" : "filter", n->name->data);
    if ((rc = eval_args(in, n->args, &c)))
        return rc;
    return native_call(in, n->row, &input, &c, out);
}

static enum q_code eval_row(struct interp *in, const struct node *n, struct value *out)
{
    struct value input;
    enum q_code rc = eval(in, n->a, &input);
    return rc ? rc : apply_row(in, n, input, out);
}

/* The filters of a block, innermost first, on its text. */
enum q_code eval_filter_on(struct interp *in, const struct node *chain, struct value input,
                           struct value *out)
{
    enum q_code rc = in_enter(in);
    if (!rc && chain->a)
        rc = eval_filter_on(in, chain->a, input, &input);
    if (!rc)
        rc = apply_row(in, chain, input, out);
    in_leave(in);
    return rc;
}

/* ---- operators ---- */

static enum q_code eval_concat(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    struct value v, joined;
    struct str *left, *right;
    if ((rc = eval(in, n->body.at[0], &v)) || (rc = text_of(in, v, &left)))
        return rc;
    for (size_t i = 1; i < n->body.n; i++) {
        if ((rc = eval(in, n->body.at[i], &v)) || (rc = text_of(in, v, &right)) ||
            (rc = text_concat(in, left, right, &joined)))
            return rc;
        left = joined.as.s;
    }
    *out = v_str(left);
    return Q_OK;
}

static enum q_code eval_binary(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    struct value v[2];
    if ((rc = eval(in, n->a, &v[0])) || (rc = eval(in, n->b, &v[1])))
        return rc;
    return op_binary(in, n->op, v, out);
}

static enum q_code eval_sign(struct interp *in, const struct node *n, struct value *out)
{
    struct value v;
    enum q_code rc = eval(in, n->a, &v);
    return rc ? rc : op_negate(in, v, n->kind == N_NEG, out);
}

static enum q_code eval_not(struct interp *in, const struct node *n, struct value *out)
{
    struct value v;
    enum q_code rc = eval(in, n->a, &v);
    if (!rc)
        *out = v_bool(!op_truth(v));
    return rc;
}

static enum q_code eval_logic(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc = eval(in, n->a, out);
    if (rc || op_truth(*out) == (n->kind == N_OR))
        return rc;
    return eval(in, n->b, out);
}

static enum q_code eval_cond(struct interp *in, const struct node *n, struct value *out)
{
    struct value v;
    enum q_code rc = eval(in, n->a, &v);
    if (rc)
        return rc;
    if (op_truth(v))
        return eval(in, n->b, out);
    if (n->c)
        return eval(in, n->c, out);
    return undef_hint(
        in, "the inline if-expression evaluated to false and no else section was defined.", out);
}

static enum q_code eval_compare(struct interp *in, const struct node *n, struct value *out)
{
    struct value v[2];
    bool yes = true;
    enum q_code rc = eval(in, n->a, &v[0]);
    for (size_t i = 0; !rc && yes && i < n->body.n; i++) {
        if ((rc = eval(in, n->body.at[i]->a, &v[1])))
            break;
        rc = op_compare(in, n->body.at[i]->op, v, &yes);
        v[0] = v[1];
    }
    *out = v_bool(yes);
    return rc;
}

static eval_fn *const functions[] = {
    [N_CONST] = eval_const,     [N_NAME] = eval_name,     [N_LIST] = eval_seq,
    [N_TUPLE] = eval_seq,       [N_DICT] = eval_dict,     [N_ATTR] = eval_attr,
    [N_ITEM] = eval_item,       [N_CALL] = eval_call,     [N_FILTER] = eval_row,
    [N_TEST] = eval_row,        [N_CONCAT] = eval_concat, [N_BINARY] = eval_binary,
    [N_NEG] = eval_sign,        [N_POS] = eval_sign,      [N_NOT] = eval_not,
    [N_AND] = eval_logic,       [N_OR] = eval_logic,      [N_COND] = eval_cond,
    [N_COMPARE] = eval_compare,
};

enum q_code eval(struct interp *in, const struct node *n, struct value *out)
{
    enum q_code rc;
    if (n->kind >= sizeof functions / sizeof functions[0] || !functions[n->kind])
        return in_raise(in, "TypeError", "a slice is not a value here");
    if (!(rc = in_enter(in)) && !(rc = in_charge(in, 1)))
        rc = functions[n->kind](in, n, out);
    in_leave(in);
    if (rc && !in->fault.line) {
        in->fault.line = n->line;
        in->fault.column = n->column;
    }
    return rc;
}
