/* SPDX-License-Identifier: Apache-2.0 */
/* expr - a grammar under construction: expressions and the rules they refer to.
 *
 * Every notation (regular expressions, JSON Schema, EBNF, Lark, structural tags) builds
 * expressions; program_emit.c converts them to a program. Expressions are constant values in the
 * build's arena and may be shared. A call that builds never fails: the first failure (memory, a
 * limit, a message by expr_fail) is kept in the build, later calls return EXPR_NEVER, and the
 * owner checks once at the end, as with a buf. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_EXPR_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_EXPR_H
#include "engine/grammar/automaton/build.h"
#include "engine/grammar/automaton/cset.h"

enum expr_kind {
    EXPR_NEVER, /* no text at all */
    EXPR_EMPTY, /* the empty text */
    EXPR_BYTES, /* these bytes */
    EXPR_CHARS, /* one code point of a set */
    EXPR_FSM,   /* a text of code points that an fsm accepts */
    EXPR_SEQ,
    EXPR_ALT,
    EXPR_REPEAT,
    EXPR_WITHIN, /* the FSM that is its kid, texts of at most so many code points */
    EXPR_RULE
};
/* How code points become bytes. */
enum expr_form {
    EXPR_UTF8,
    EXPR_JSON, /* inside a JSON string: escapes where JSON wants them, UTF-8 elsewhere */
    EXPR_RAW   /* FSM only: its letters are the bytes */
};

struct fsm;

struct expr {
    enum expr_kind kind;
    enum expr_form form; /* CHARS, FSM */
    uint32_t min, max;   /* REPEAT; max EXPR_INF = without end. WITHIN: max */
    bool ticks;          /* FSM: the kid of a WITHIN */
    uint32_t n;          /* of bytes or kids */
    uint32_t rule;       /* RULE */
    uint32_t weight;     /* states it takes, roughly; saturates */
    union {
        const char *bytes;              /* [n] */
        const struct expr *const *kids; /* [n]; REPEAT and WITHIN have one */
        const struct cset *set;
        const struct fsm *fsm;
    };
};

/* build_fail. Always EXPR_NEVER, so that a builder can return it. */
__attribute__((format(printf, 3, 4))) const struct expr *
expr_fail(struct build *b, enum q_code code, const char *fmt, ...);

extern const struct expr expr_never, expr_empty;
const struct expr *expr_bytes(struct build *b, const char *s, size_t n); /* copies */
const struct expr *expr_text(struct build *b, const char *s);
const struct expr *expr_chars(struct build *b, const struct cset *set, enum expr_form form);
const struct expr *expr_fsm(struct build *b, const struct fsm *f, enum expr_form form);
/* The texts of f that have at most `max` code points. */
const struct expr *expr_within(struct build *b, const struct fsm *f, enum expr_form form,
                               uint32_t max);
const struct expr *expr_seq(struct build *b, const struct expr *const *kids, size_t n); /* copies */
const struct expr *expr_seq2(struct build *b, const struct expr *x, const struct expr *y);
const struct expr *expr_seq3(struct build *b, const struct expr *x, const struct expr *y,
                             const struct expr *z);
const struct expr *expr_alt(struct build *b, const struct expr *const *kids, size_t n);
const struct expr *expr_alt2(struct build *b, const struct expr *x, const struct expr *y);
const struct expr *expr_repeat(struct build *b, const struct expr *x, uint32_t min, uint32_t max);
const struct expr *expr_optional(struct build *b, const struct expr *x);
/* A rule without a body yet; expr_ref refers to it. name is copied. */
uint32_t expr_rule_new(struct build *b, const char *name);
const struct expr *expr_ref(struct build *b, uint32_t rule);
/* A rule of its own with this body, and the reference to it. */
const struct expr *expr_named(struct build *b, const char *name, const struct expr *body);

/* A named part of the source begins: rules made until expr_scope_end are part of it, and failures
 * name it, also those found when its rules become automata. Scopes do not nest. NULL: failed. */
struct build_scope *expr_scope_new(struct build *b, const char *name);
/* The part's text: a rule of its own. `scope` may be NULL. */
const struct expr *expr_scope_end(struct build *b, struct build_scope *scope,
                                  const struct expr *body);

/* Can x be the empty text? rules [by rule] may be NULL when x has none. */
bool expr_nullable(const struct expr *x, const bool *rules);

/* Growing lists of expressions, in the arena. */
struct expr_list {
    const struct expr **items;
    size_t n, cap;
};
void expr_add(struct build *b, struct expr_list *l, const struct expr *x);

#endif
