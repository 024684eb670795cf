/* SPDX-License-Identifier: Apache-2.0 */
/* schema - JSON Schema (draft 2020-12, and differences of older drafts) to a grammar.
 *
 * A *goal* is a list of schemas that one value must satisfy together. It is merged into
 * *constraints*: the keywords by type, and the choices (anyOf, oneOf, if, dependencies) that are
 * still open. Choices are taken one after another, so that a goal becomes a union of constraints
 * without choices, and each of these an expression. Goals are cached by their schemas: recursion
 * becomes rules. A keyword that a grammar cannot express is replaced where the replacement is
 * exact or stricter (`not` by De Morgan, oneOf by negation of the other options); other keywords
 * are refused with their path. Every text of the grammar is valid; a valid text may be missing
 * only for the order of properties: listed ones come in the schema's order, then others.
 *
 *     schema_goal.c goals and choices · schema_constraints.c keywords · schema_not.c negation
 *     schema_ref.c $ref
 *     schema_string.c schema_number.c schema_array.c schema_object.c the types · schema_names.c
 *     names of properties
 *
 * Private to engine/grammar. JSON is the root's or of `made`. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_SCHEMA_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_SCHEMA_H
#include <jansson.h>
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/automaton/expr.h"

#define SCHEMA_CHOICES_MAX 8000u   /* conjs of one goal */
#define SCHEMA_GOALS_MAX   200000u /* of one schema */
#define SCHEMA_PATH_MAX    160u    /* bytes of a path in messages */
#define SCHEMA_INSIDE_MAX  100u    /* goals made inside each other; deeper ones are put off */

enum schema_type {
    T_NULL = 1,
    T_BOOL = 2,
    T_INTEGER = 4,  /* numbers that are whole */
    T_FRACTION = 8, /* the others */
    T_NUMBER = 12,
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ANY = 127
};

/* Keywords that a negation needs and JSON Schema lacks. */
#define KEY_NOT_ENUM     "\x01not-enum"
#define KEY_NOT_PATTERN  "\x01not-pattern"
#define KEY_NOT_MULTIPLE "\x01not-multiple"
/* {"names", "value"}: some property whose name the first allows has a value that the second does */
#define KEY_SOME         "\x01some"
/* A schema that holds, but what it looks at counts as not looked at (unevaluatedProperties). */
#define KEY_HIDDEN       "\x01hidden"
/* The negation of a schema that a reference leads to: made when it is met, as it may be recursive.
 */
#define KEY_NEGATED      "\x01negated"

struct goal { /* schemas that hold together */
    const json_t **items;
    size_t n, cap;
};
struct goal_memo;
struct ref_index;

/* Schemas made of others, each once: goals are known by their schemas, so that recursion through
 * what is made would never end otherwise. */
enum made_kind { MADE_NOT, MADE_NOT_VALUES, MADE_ONE_OF, MADE_IF, MADE_DEPENDENT };
struct made {
    const void *from; /* the keyword's value, schema or name */
    enum made_kind kind;
    bool is_known;        /* for a schema that may be NULL */
    uint32_t n_dropped;   /* keywords left out of a negation */
    const json_t *schema; /* NULL: not yet, or none can be made */
};

struct string_memo { /* strings by what is asked of them: equal ones are one rule */
    const char *key;
    const struct expr *expr;
    struct string_memo *next;
};
struct schema {
    struct build *b;
    struct string_memo *strings;
    const json_t *root;
    json_t *made;       /* array: schemas made here */
    bool old_ref;       /* beside $ref nothing counts (drafts before 2019-09) */
    uint32_t depth;     /* of goals inside each other */
    uint32_t n_dropped; /* keywords that negations had to leave out */
    uint32_t n_look;    /* at properties, by schema_common */
    const char *base;   /* path of the root in messages; NULL: "#" */
    bool is_placed;     /* the failure's message begins with a path */
    struct ref_index *refs;
    struct goal_memo **memos; /* [memo_size] by hash */
    size_t n_memo, memo_size;
    struct made **mades; /* [made_size] by hash */
    size_t n_made, made_size;
    struct goal_memo *later;                 /* put off: met too deep inside others */
    const struct expr *ws, *any, *character; /* made when first used */
};

struct number;
struct chain;
struct constraints;

/* The grammar of root. ws: what may come between tokens; NULL: as schema_ws has it. base: the path
 * of root in messages, for a part of a larger schema whose definitions were copied; NULL: "#". */
const struct expr *schema_expr(struct build *b, const json_t *root, const struct expr *ws,
                               const char *base);
/* The white space that a client asks for; a failure when it matches anything else. */
const struct expr *schema_ws_pattern(struct build *b, const char *pattern, size_t n);

/* schema_goal.c */
void goal_add(struct schema *s, struct goal *g, const json_t *schema);
const struct expr *schema_goal(struct schema *s, const struct goal *g);
const struct expr *schema_one(struct schema *s, const json_t *schema);
/* Is this value of an enum one that the schema (or every schema of the goal) allows? As strict as
 * the grammar of the schema would be. */
bool schema_holds(struct schema *s, const json_t *schema, const json_t *v);
bool goal_holds(struct schema *s, const struct goal *g, const json_t *v);
bool schema_same(const json_t *x, const json_t *y); /* equal as JSON Schema has it: 1 is 1.0 */
uint32_t schema_type_of(const json_t *v);           /* a T_ bit */
const struct expr *schema_ws(struct schema *s);
const struct expr *schema_any(struct schema *s);
const struct expr *schema_value(struct schema *s, const json_t *v); /* this value, literally */
const struct expr *schema_quoted(struct schema *s, const char *text,
                                 size_t n); /* as a JSON string */
/* A comma or colon and the white space that may follow it. */
const struct expr *schema_token(struct schema *s, const char *text);
json_t *schema_make(struct schema *s, json_t *made); /* takes the reference; NULL: failed */
/* What is made of `from` in this way, for the caller to make if it is empty; NULL: no memory. */
struct made *schema_made(struct schema *s, const void *from, enum made_kind kind);
/* A failure at a keyword of a schema; the message begins with its path. */
__attribute__((format(printf, 5, 6))) const struct expr *
schema_fail(struct schema *s, enum q_code code, const json_t *at, const char *keyword,
            const char *fmt, ...);

/* schema_not.c: a schema that holds only where this one does not; NULL: none can be made. */
const json_t *schema_not(struct schema *s, const json_t *schema);
/* schema_apart.c: the types of the values that may satisfy both; T_ bits. */
uint32_t schema_common(struct schema *s, const json_t *x, const json_t *y, int depth);
/* No object with a property of this name satisfies both. */
bool schemas_forbid(struct schema *s, const json_t *x, const json_t *y, const char *name,
                    int depth);
bool schema_is_closed(const json_t *x); /* it has no properties but those that it lists */
/* All are disjoint, by values: their own, or those of a property that each one requires. */
bool schemas_exclusive(struct schema *s, const json_t *options);
/* schema_ref.c */
void ref_index_new(struct schema *s);
void ref_index_free(struct ref_index *r);
/* What $ref or $dynamicRef of this schema points to; NULL: failed. */
const json_t *ref_target(struct schema *s, const json_t *at, const char *keyword);
/* "#/properties/x" of a schema somewhere in the root. False: not found, and out is the root's. */
bool ref_path(const struct schema *s, const json_t *at, char *out, size_t size);

/* schema_string.c: the texts of constraints' strings as an automaton; *plain: all texts. */
const struct fsm *string_fsm(struct schema *s, const struct constraints *c, bool *plain);
const struct expr *string_expr(struct schema *s, const struct constraints *c);
/* The strings of constraints with open choices, all alternatives as one automaton. */
const struct expr *string_union_expr(struct schema *s, const struct constraints *c);
/* What constraints asks of a string, made when the first of many strings is looked at. */
struct string_test {
    const struct fsm *fsm;
    bool is_made, is_plain;
};
bool string_holds(struct schema *s, const struct constraints *c, struct string_test *t,
                  const char *text, size_t n);
/* schema_goal.c: does the rest of the conj allow this value of its first enum? */
bool constraints_allows(struct schema *s, const struct constraints *c, const json_t *v,
                        struct string_test *t);
/* schema_names.c: the names that a schema allows; *plain (and NULL): all of them. */
const struct fsm *names_fsm(struct schema *s, const json_t *schema, const json_t *at,
                            const char *keyword, bool *plain);
/* All texts of f into out [max], if they are so few and short; false: they are not. */
bool names_listed(struct build *b, const struct fsm *f, const char **out, uint32_t *n,
                  uint32_t max);
/* schema_number.c */
bool number_read(struct number *out, const json_t *v);
int number_compare(const struct number *x, const struct number *y);
/* A number of the schema as texts may write it: 0, 0.0 and -0 are one. whole: without a point. */
const struct expr *number_value(struct schema *s, const json_t *v, bool whole);
const struct expr *number_expr(struct schema *s, const struct constraints *c);
bool number_holds(const struct constraints *c, const json_t *v);
/* schema_array.c, schema_object.c */
const struct expr *array_expr(struct schema *s, const struct constraints *c);
bool array_holds(struct schema *s, const struct constraints *c, const json_t *v);
const struct expr *object_expr(struct schema *s, const struct constraints *c);
bool object_holds(struct schema *s, const struct constraints *c, const json_t *v);

#endif
