/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/source/name_tree.h"
#include <string.h>

struct name_tree {
    const char *text; /* [n] what all texts here have in common */
    uint32_t n, n_kid;
    const struct name_tree *const *kids; /* [n_kid] by their first byte, all different */
    const struct expr *rest;             /* behind text: a rule of the kids, or what was given */
};

static const struct name_tree *leaf(struct build *b, const char *text, uint32_t n,
                                    const struct expr *rest)
{
    struct name_tree *t = build_work(b, 4) ? build_alloc(b, 1, sizeof *t) : NULL;
    if (t)
        *t = (struct name_tree){.text = text, .n = n, .rest = rest};
    return t;
}

/* kids are taken as they are. */
static const struct name_tree *branch(struct build *b, const char *text, uint32_t n,
                                      const struct name_tree *const *kids, uint32_t n_kid)
{
    struct name_tree *t = build_work(b, 4 + n_kid) ? build_alloc(b, 1, sizeof *t) : NULL;
    struct expr_list l = {0};
    for (uint32_t i = 0; t && i < n_kid; i++)
        expr_add(b, &l, kids[i] ? name_tree_expr(b, kids[i]) : &expr_never);
    if (!t || !build_ok(b))
        return NULL;
    *t = (struct name_tree){.text = text, .n = n, .n_kid = n_kid, .kids = kids};
    t->rest = expr_named(b, "", expr_alt(b, l.items, l.n));
    return t;
}

static const struct name_tree *split(struct build *b, const struct name_tree *tree, uint32_t at,
                                     const char *text, uint32_t n, const struct expr *rest)
{
    const struct name_tree **kids = build_alloc(b, 2, sizeof *kids);
    struct name_tree *old = build_alloc(b, 1, sizeof *old);
    if (!kids || !old)
        return NULL;
    *old = *tree;
    old->text += at;
    old->n -= at;
    kids[0] = old;
    kids[1] = leaf(b, text + at, n - at, rest);
    return branch(b, tree->text, at, kids, 2);
}

const struct name_tree *name_tree_add(struct build *b, const struct name_tree *tree,
                                      const char *text, uint32_t n, const struct expr *rest)
{
    uint32_t at = 0, i = 0;
    if (!tree)
        return leaf(b, text, n, rest);
    while (at < tree->n && at < n && tree->text[at] == text[at])
        at++;
    if (at < tree->n)
        return split(b, tree, at, text, n, rest);
    while (i < tree->n_kid && tree->kids[i]->text[0] != text[at])
        i++;
    uint32_t n_kid = tree->n_kid + (i == tree->n_kid);
    const struct name_tree **kids = build_work(b, 1) ? build_alloc(b, n_kid, sizeof *kids) : NULL;
    if (!kids)
        return NULL;
    memcpy(kids, tree->kids, tree->n_kid * sizeof *kids);
    kids[i] = name_tree_add(b, i < tree->n_kid ? tree->kids[i] : NULL, text + at, n - at, rest);
    return build_ok(b) ? branch(b, tree->text, at, kids, n_kid) : NULL;
}

const struct expr *name_tree_expr(struct build *b, const struct name_tree *tree)
{
    return tree ? expr_seq2(b, expr_bytes(b, tree->text, tree->n), tree->rest) : &expr_never;
}
