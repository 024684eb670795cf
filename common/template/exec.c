/* SPDX-License-Identifier: Apache-2.0 */
/* Statements write to in->out. A block whose text becomes a value (set, filter, macro, call) is a
 * capture: text_mark before it, text_take after it; captures can be nested. break and continue are
 * passed up in in->flow. */
#include "common/template/text.h"

typedef enum q_code exec_fn(struct interp *in, const struct node *n);

static enum q_code exec_text(struct interp *in, const struct node *n)
{
    buf_add(&in->out, n->constant.as.s->data, n->constant.as.s->n);
    return Q_OK;
}

static enum q_code exec_print(struct interp *in, const struct node *n)
{
    struct value v;
    enum q_code rc = eval(in, n->a, &v);
    return rc ? rc : print_str(in, v);
}

static enum q_code exec_if(struct interp *in, const struct node *n)
{
    for (size_t i = 0; i < n->body.n; i++) {
        const struct node *branch = n->body.at[i];
        struct value v = v_bool(true);
        enum q_code rc = branch->a ? eval(in, branch->a, &v) : Q_OK;
        if (rc || op_truth(v))
            return rc ? rc : exec_body(in, &branch->body);
    }
    return Q_OK;
}

static enum q_code assign_many(struct interp *in, const struct node *target, struct value v)
{
    struct seq *items;
    enum q_code rc;
    if (v.kind != V_UNDEF && !op_iterable(v))
        return in_raise(in, "TypeError", "cannot unpack non-iterable %s object",
                        value_type_name(v));
    if ((rc = op_iterate(in, v, &items)))
        return rc;
    size_t n = target->body.n;
    if (items->n < n)
        return in_raise(in, "ValueError", "not enough values to unpack (expected %zu, got %zu)", n,
                        items->n);
    if (items->n > n)
        return in_raise(in, "ValueError", "too many values to unpack (expected %zu)", n);
    for (size_t i = 0; i < n && !rc; i++)
        rc = assign(in, target->body.at[i], items->items[i]);
    return rc;
}

enum q_code assign(struct interp *in, const struct node *target, struct value v)
{
    enum q_code rc;
    struct value ns;
    if (target->kind == N_NAME)
        return scope_set(in, in->scope, target->name, v);
    if (target->kind != N_NSREF)
        return assign_many(in, target, v);
    if ((rc = name_lookup(in, target->name, &ns)))
        return rc;
    if (ns.kind != V_NAMESPACE)
        return in_raise(in, "TemplateRuntimeError",
                        "cannot assign attribute on non-namespace object");
    const struct str *key = target->constant.as.s;
    if (key->n && key->data[0] == '_')
        return in_raise(
            in, "SecurityError",
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
            "'%.100s'. Please rename the attribute.",
            key->data);
    return dict_put(in, ns.as.dict, target->constant, v);
}

static enum q_code exec_set(struct interp *in, const struct node *n)
{
    struct value v;
    enum q_code rc = eval(in, n->b, &v);
    return rc ? rc : assign(in, n->a, v);
}

/* Run a body in its own scope and take its text; *out is V_MISSING when a break or continue left
 * it. */
static enum q_code capture(struct interp *in, const struct node_list *body, struct value *out)
{
    enum q_code rc;
    struct scope *outer = in->scope;
    size_t mark = text_mark(in);
    if ((rc = scope_new(in, outer, &in->scope)))
        return rc;
    rc = exec_body(in, body);
    in->scope = outer;
    if (rc || (rc = text_take(in, mark, out)))
        return rc;
    if (in->flow != FLOW_NEXT)
        out->kind = V_MISSING;
    return Q_OK;
}

static enum q_code exec_set_block(struct interp *in, const struct node *n)
{
    struct value v;
    enum q_code rc = capture(in, &n->body, &v);
    if (rc || v.kind == V_MISSING)
        return rc;
    if (n->b && (rc = eval_filter_on(in, n->b, v, &v)))
        return rc;
    return assign(in, n->a, v);
}

static enum q_code exec_filter_block(struct interp *in, const struct node *n)
{
    struct value v;
    enum q_code rc = capture(in, &n->body, &v);
    if (rc || v.kind == V_MISSING || (rc = eval_filter_on(in, n->b, v, &v)))
        return rc;
    if (v.kind != V_STR)
        return in_raise(in, "TypeError", "expected str instance, %s found", value_type_name(v));
    return print_str(in, v);
}

static enum q_code exec_with(struct interp *in, const struct node *n)
{
    enum q_code rc;
    struct scope *outer = in->scope, *inner;
    if ((rc = scope_new(in, outer, &inner)))
        return rc;
    for (size_t i = 0; i + 1 < n->alt.n && !rc; i += 2) {
        struct value v;
        if (!(rc = eval(in, n->alt.at[i + 1], &v))) {
            in->scope = inner;
            rc = assign(in, n->alt.at[i], v);
            in->scope = outer;
        }
    }
    in->scope = inner;
    if (!rc)
        rc = exec_body(in, &n->body);
    in->scope = outer;
    return rc;
}

static enum q_code exec_within(struct interp *in, const struct node *n, struct scope *around)
{
    enum q_code rc;
    struct scope *outer = in->scope;
    if ((rc = scope_new(in, around, &in->scope)))
        return rc;
    rc = exec_body(in, &n->body);
    in->scope = outer;
    return rc;
}

static enum q_code exec_scope(struct interp *in, const struct node *n)
{
    return exec_within(in, n, in->scope);
}

/* What is captured later (a macro's text, say) is not noted: text_take removes it. */
static enum q_code exec_generation(struct interp *in, const struct node *n)
{
    const size_t mark = text_mark(in);
    const enum q_code rc = exec_within(in, n, in->scope);
    if (rc || in->out.failed)
        return rc;
    return ranges_add(&in->generated, mark, in->out.len, in->e);
}

enum q_code exec_block(struct interp *in, const struct node *n, struct scope *around)
{
    return n->required ? in_raise(in, "TemplateRuntimeError", "Required block '%.100s' not found",
                                  n->name->data)
                       : exec_within(in, n, around);
}

static enum q_code exec_own_block(struct interp *in, const struct node *n)
{
    return exec_block(in, n, n->flag ? in->scope : in->top);
}

/* ---- macros ---- */

static enum q_code macro_new(struct interp *in, const struct macro_def *def, struct value *out)
{
    struct macro *m;
    enum q_code rc = in_alloc(in, &m, 1, sizeof *m);
    if (rc)
        return rc;
    *m = (struct macro){def, in->scope};
    for (struct scope *s = in->scope; s && !s->captured; s = s->up)
        s->captured = true;
    *out = (struct value){.kind = V_MACRO, .as.macro = m};
    return Q_OK;
}

static enum q_code exec_macro(struct interp *in, const struct node *n)
{
    struct value m;
    enum q_code rc = macro_new(in, n->macro, &m);
    return rc ? rc : scope_set(in, in->scope, n->macro->name, m);
}

/* {% call f(x) %}: f gets the block as the keyword argument `caller`. */
static enum q_code exec_call_block(struct interp *in, const struct node *n)
{
    enum q_code rc;
    struct value caller, result;
    struct keyword *keywords;
    struct call_args args = *n->a->args;
    if ((rc = macro_new(in, n->macro, &caller)) ||
        (rc = in_alloc(in, &keywords, args.n_keyword + 1, sizeof *keywords)))
        return rc;
    struct node call = *n->a, name = {.kind = N_CONST, .constant = caller};
    if (args.n_keyword)
        memcpy(keywords, args.keywords, args.n_keyword * sizeof *keywords);
    keywords[args.n_keyword] = (struct keyword){in->t->caller_name, &name};
    args.keywords = keywords;
    args.n_keyword++;
    call.args = &args;
    return (rc = eval(in, &call, &result)) ? rc : print_str(in, result);
}

/* ---- loops ---- */

static enum q_code loop_scope(struct interp *in, struct loop *loop, struct scope **s)
{
    enum q_code rc;
    if (*s && !(*s)->captured)
        (*s)->n = 0;
    else if ((rc = scope_new(in, loop->outer, s)))
        return rc;
    in->scope = *s;
    return Q_OK;
}

/* The items that pass the loop's own condition, seen with the target but without `loop`. */
static enum q_code loop_filter(struct interp *in, struct loop *loop)
{
    enum q_code rc;
    struct scope *s = NULL;
    struct seq *kept;
    if (!loop->node->c)
        return Q_OK;
    if ((rc = seq_new(in, 0, &kept)))
        return rc;
    for (size_t i = 0; i < loop->items->n; i++) {
        struct value ok;
        if ((rc = loop_scope(in, loop, &s)) ||
            (rc = assign(in, loop->node->a, loop->items->items[i])) ||
            (rc = eval(in, loop->node->c, &ok)) ||
            (op_truth(ok) && (rc = seq_add(in, kept, loop->items->items[i]))))
            break;
    }
    loop->items = kept;
    return rc;
}

/* One pass over the items. *completed: some iteration reached the end of the body, which decides
 * about `else`. */
static enum q_code loop_run(struct interp *in, struct loop *loop, bool *completed)
{
    enum q_code rc = Q_OK;
    struct scope *s = NULL;
    struct value self = {.kind = V_LOOP, .as.loop = loop};
    for (loop->at = 0; loop->at < loop->items->n; loop->at++) {
        if ((rc = in_charge(in, 1)) || (rc = loop_scope(in, loop, &s)) ||
            (rc = scope_set(in, s, in->t->loop_name, self)) ||
            (rc = assign(in, loop->node->a, loop->items->items[loop->at])) ||
            (rc = exec_body(in, &loop->node->body)))
            break;
        enum flow flow = in->flow;
        in->flow = FLOW_NEXT;
        *completed |= flow == FLOW_NEXT;
        if (flow == FLOW_BREAK)
            break;
    }
    return rc;
}

enum q_code exec_loop(struct interp *in, const struct node *n, struct seq *items, uint32_t depth)
{
    enum q_code rc;
    struct loop *loop;
    struct scope *outer = in->scope;
    bool completed = false;
    if ((rc = in_alloc(in, &loop, 1, sizeof *loop)))
        return rc;
    *loop = (struct loop){.node = n, .outer = outer, .items = items, .depth = depth};
    if (!(rc = loop_filter(in, loop)))
        rc = loop_run(in, loop, &completed);
    in->scope = outer;
    if (rc || completed || !n->alt.n)
        return rc;
    if ((rc = scope_new(in, outer, &in->scope)))
        return rc;
    rc = exec_body(in, &n->alt);
    in->scope = outer;
    return rc;
}

static enum q_code exec_for(struct interp *in, const struct node *n)
{
    enum q_code rc;
    struct value over;
    struct seq *items;
    if ((rc = eval(in, n->b, &over)) || (rc = op_iterate(in, over, &items)))
        return rc;
    return exec_loop(in, n, items, 0);
}

static enum q_code exec_flow(struct interp *in, const struct node *n)
{
    in->flow = n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    return Q_OK;
}

static enum q_code exec_no_loader(struct interp *in, const struct node *n)
{
    (void)n;
    return in_raise(in, "TypeError", "no loader for this environment specified");
}

static exec_fn *const functions[] = {
    [N_TEXT] = exec_text,
    [N_PRINT] = exec_print,
    [N_FOR] = exec_for,
    [N_IF] = exec_if,
    [N_SET] = exec_set,
    [N_SET_BLOCK] = exec_set_block,
    [N_MACRO] = exec_macro,
    [N_CALL_BLOCK] = exec_call_block,
    [N_FILTER_BLOCK] = exec_filter_block,
    [N_WITH] = exec_with,
    [N_SCOPE] = exec_scope,
    [N_GENERATION] = exec_generation,
    [N_BLOCK] = exec_own_block,
    [N_BREAK] = exec_flow,
    [N_CONTINUE] = exec_flow,
    [N_NO_LOADER] = exec_no_loader,
};

static enum q_code exec(struct interp *in, const struct node *n)
{
    enum q_code rc;
    Q_ASSERT(n->kind < sizeof functions / sizeof functions[0] && functions[n->kind]);
    if (!(rc = in_enter(in)) && !(rc = in_charge(in, 1)))
        rc = functions[n->kind](in, n);
    in_leave(in);
    if (!rc && in->out.failed)
        rc = in_output_check(in);
    if (rc && !in->fault.line) {
        in->fault.line = n->line;
        in->fault.column = n->column;
    }
    return rc;
}

enum q_code exec_body(struct interp *in, const struct node_list *body)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < body->n && !rc && in->flow == FLOW_NEXT; i++)
        rc = exec(in, body->at[i]);
    return rc;
}
