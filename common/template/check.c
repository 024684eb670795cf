/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that jinja2 reports after parsing, when it compiles the tree to Python: duplicate blocks,
 * and unknown filters and tests. An unknown filter is accepted inside an if or an inline if, which
 * may test for it first, but not in a nested scope there (a loop, a macro, a with …). */
#include "common/template/parse.h"

static bool fail_at(struct parser *p, const struct node *n, const char *what, const char *name)
{
    const struct token at = {.line = n->line, .column = n->column};
    p->at = &at;
    parse_fail(p, "TemplateAssertionError", what, name);
    p->at = NULL;
    return false;
}

static bool check(struct parser *p, const struct node *n, bool soft);

static bool check_list(struct parser *p, const struct node_list *l, bool soft)
{
    bool ok = true;
    for (size_t i = 0; i < l->n && ok; i++)
        ok = check(p, l->at[i], soft);
    return ok;
}

static bool check_args(struct parser *p, const struct call_args *a, bool soft)
{
    if (!a)
        return true;
    bool ok = check_list(p, &a->positional, soft);
    for (size_t i = 0; i < a->n_keyword && ok; i++)
        ok = check(p, a->keywords[i].value, soft);
    return ok && check(p, a->star, soft) && check(p, a->star_star, soft);
}

static bool check_macro(struct parser *p, const struct macro_def *m)
{
    bool ok = true;
    for (size_t i = 0; m && i < m->n_param && ok; i++)
        ok = check(p, m->defaults[i], false);
    return !m || (ok && check_list(p, &m->body, false));
}

/* Which parts of a node are in a scope of their own: the rest is as its surroundings. */
static bool check_parts(struct parser *p, const struct node *n, bool soft)
{
    switch (n->kind) {
    case N_IF:
    case N_COND:
        soft = true;
        break;
    case N_FOR:
        return check(p, n->b, soft) && check(p, n->c, false) && check_list(p, &n->body, false) &&
               check_list(p, &n->alt, false);
    case N_WITH:
        return check_list(p, &n->alt, soft) && check_list(p, &n->body, false);
    case N_FILTER_BLOCK:
    case N_SET_BLOCK:
    case N_BLOCK:
        soft = false;
        break;
    case N_GENERATION:
        soft = false;
        break;
    case N_SCOPE:
        soft = soft && n->flag;
        break;
    default:
        break;
    }
    return check(p, n->a, soft) && check(p, n->b, soft) && check(p, n->c, soft) &&
           check_list(p, &n->body, soft) && check_list(p, &n->alt, soft) &&
           check_args(p, n->args, soft) && check_macro(p, n->macro);
}

static bool check(struct parser *p, const struct node *n, bool soft)
{
    if (!n)
        return true;
    if ((n->kind == N_FILTER || n->kind == N_TEST) && !n->row && !soft)
        return fail_at(p, n,
                       n->kind == N_TEST ? "No test named '%.100s'." : "No filter named '%.100s'.",
                       n->name->data);
    bool ok = parser_enter(p) && check_parts(p, n, soft);
    parser_leave(p);
    return ok;
}

bool parse_check(struct parser *p)
{
    const struct node_list *blocks = &p->t->blocks;
    p->depth = 0;
    for (size_t i = 1; i < blocks->n; i++)
        for (size_t k = 0; k < i; k++)
            if (blocks->at[i]->name == blocks->at[k]->name)
                return fail_at(p, blocks->at[i], "block '%.100s' defined twice",
                               blocks->at[i]->name->data);
    return check_list(p, &p->t->body, false);
}
