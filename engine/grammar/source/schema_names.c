/* SPDX-License-Identifier: Apache-2.0 */
/* Names of properties as automata over code points: the names that a schema allows (propertyNames,
 * and the names that a negation requires), and the texts of a small finite automaton. */
#include <string.h>
#include "common/utf8.h"
#include "engine/grammar/source/schema_constraints.h"

#define NAME_BYTES_MAX 64u /* of a name that is written out */

struct names {
    struct schema *s;
    const json_t *at; /* for messages */
    const char *keyword;
    struct expr_list parts; /* automata of the ways through the choices */
    uint32_t n_way;
    bool plain; /* one of them allows every name */
};

/* The names among the values of an enum. */
static const struct fsm *listed_names(struct names *n, const struct constraints *c)
{
    struct schema *s = n->s;
    struct expr_list l = {0};
    struct string_test test = {NULL, false, false};
    size_t k;
    json_t *v;
    json_array_foreach ((json_t *)c->in[0], k, v)
        if (json_is_string(v) && constraints_allows(s, c, v, &test))
            expr_add(s->b, &l, expr_bytes(s->b, json_string_value(v), json_string_length(v)));
    return fsm_of_chars(s->b, expr_alt(s->b, l.items, l.n), n->keyword);
}

/* Every way to take the open choices of c. */
static void add_names(struct names *n, struct constraints *c)
{
    struct schema *s = n->s;
    size_t i;
    json_t *option;
    if (!build_ok(s->b) || c->dead || !(c->types & T_STRING))
        return;
    if (c->n_choice == 0) {
        bool plain = false;
        const struct fsm *f = c->n_in ? listed_names(n, c) : string_fsm(s, c, &plain);
        n->plain |= plain;
        if (f)
            expr_add(s->b, &n->parts, expr_fsm(s->b, f, EXPR_UTF8));
        if (++n->n_way > SCHEMA_CHOICES_MAX / 4)
            schema_fail(s, Q_TOO_LARGE, n->at, n->keyword,
                        "more than %u alternatives for a property name", SCHEMA_CHOICES_MAX / 4);
        return;
    }
    struct choice pick = c->choices[--c->n_choice];
    struct constraints *next = build_work(s->b, 200) ? build_alloc(s->b, 1, sizeof *next) : NULL;
    json_array_foreach ((json_t *)pick.options, i, option) {
        struct chain *chain = next ? build_alloc(s->b, 1, sizeof *chain) : NULL;
        if (!chain)
            return;
        *chain =
            (struct chain){.up = pick.chain, .depth = chain_inside(pick.chain), .is_choice = true};
        *next = *c;
        constraints_add(s, next, option, chain);
        add_names(n, next);
    }
}

const struct fsm *names_fsm(struct schema *s, const json_t *schema, const json_t *at,
                            const char *keyword, bool *plain)
{
    struct names n = {.s = s, .at = at, .keyword = keyword};
    struct constraints *c = build_alloc(s->b, 1, sizeof *c);
    *plain = false;
    if (!c)
        return NULL;
    constraints_init(c);
    constraints_add(s, c, schema, NULL);
    add_names(&n, c);
    *plain = n.plain && build_ok(s->b);
    if (*plain || !build_ok(s->b))
        return NULL;
    const struct expr *all = expr_alt(s->b, n.parts.items, n.parts.n);
    return all->kind == EXPR_FSM ? all->fsm : fsm_of_chars(s->b, all, keyword);
}

struct texts {
    struct build *b;
    const struct fsm *f;
    const char **items; /* [n] */
    uint32_t n, max;
    char text[NAME_BYTES_MAX + 4];
};

/* The texts from this state on, behind n bytes. False: too many, too long, or one has a zero. */
static bool add_texts(struct texts *t, uint32_t state, size_t n)
{
    const struct fsm_state *at = &t->f->states[state];
    if (n > NAME_BYTES_MAX || !build_work(t->b, 1) || (at->final && t->n == t->max))
        return false;
    if (at->final) {
        char *copy = build_alloc(t->b, n + 1, 1);
        if (!copy)
            return false;
        memcpy(copy, t->text, n);
        t->items[t->n++] = copy;
    }
    for (uint32_t k = 0; k < at->n_edge; k++) {
        const struct fsm_edge *e = &t->f->edges[at->edge + k];
        if (e->lo == 0 || e->hi - e->lo >= t->max)
            return false;
        for (uint32_t c = e->lo; c <= e->hi; c++)
            if (!add_texts(t, e->to, n + utf8_encode(c, t->text + n)))
                return false;
    }
    return true;
}

bool names_listed(struct build *b, const struct fsm *f, const char **out, uint32_t *n, uint32_t max)
{
    struct texts t = {.b = b, .f = f, .items = out, .max = max};
    bool few = add_texts(&t, 0, 0);
    *n = few ? t.n : 0;
    return few;
}
