/* SPDX-License-Identifier: Apache-2.0 */
/* parse - tokens to the tree of ast.h; shared between parse.c (statements) and parse_expr.c
 * (expressions).
 *
 * Functions that return a node return NULL after a failure; p->rc and the caller's q_err hold the
 * error.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_TEMPLATE_PARSE_H
#define QUIRE_COMMON_TEMPLATE_PARSE_H
#include "common/template/lex.h"

struct parser {
    struct template *t;
    const struct token *at; /* the current token */
    const struct lex_error *err;
    enum q_code rc;
    uint32_t depth;                  /* recursion of the parser itself */
    uint32_t n_loop;                 /* enclosing loops inside the innermost macro */
    struct macro_scope *macro_scope; /* the enclosing macros, innermost first */
    struct str **names;              /* [n_slot] interned, hash table */
    size_t n_name, n_slot;
};

struct macro_scope { /* the special names used in the enclosing macros */
    struct macro_scope *up;
    struct macro_def *def;
};

#define PARSE_DEPTH_MAX 800

enum tuple_mode { TUPLE_EXPR, TUPLE_NO_COND, TUPLE_PARENS };

/* Statements (parse.c). */
FALLIBLE parse_template(struct template *t, const struct token_list *tokens,
                        const struct lex_error *err);

/* Checks of the complete tree that jinja2 makes after parsing (check.c). */
bool parse_check(struct parser *p);

/* Expressions (parse_expr.c). */
struct node *parse_expression(struct parser *p);
struct node *parse_tuple(struct parser *p, enum tuple_mode mode);
/* An assignment target: names, tuples of names; with_ns allows ns.attr. Ends at "in" if until_in.
 */
struct node *parse_target(struct parser *p, bool with_ns);
/* name(args)|name…, applied to `input`; the first name stands at the current token. */
struct node *parse_filter_chain(struct parser *p, struct node *input);
bool parse_args(struct parser *p, struct call_args **out);

/* Helpers (parse.c). */
struct node *parse_fail(struct parser *p, const char *type, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
struct node *node_new(struct parser *p, enum node_kind kind, const struct token *at);
bool list_add(struct parser *p, struct node_list *l, struct node *n);
struct str *intern(struct parser *p, const char *text, size_t n);
struct str *const_str(struct parser *p, const char *text, size_t n);
bool tok_is_name(const struct token *t, const char *name);
bool accept(struct parser *p, enum token_kind kind);
bool accept_name(struct parser *p, const char *name);
bool expect(struct parser *p, enum token_kind kind);
struct str *expect_name(struct parser *p);
bool parser_enter(struct parser *p); /* false (and failed) when too deep; pair with parser_leave */
void parser_leave(struct parser *p);

#endif
