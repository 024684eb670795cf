/* SPDX-License-Identifier: Apache-2.0 */
/* gx - a grammar under construction: expressions and the rules they refer to.
 *
 * Every front door (regular expressions, JSON Schema, EBNF, Lark, structural tags) builds these;
 * program_emit.c makes the program that runs of them. Expressions are values in the build's arena,
 * are never changed once made and may be shared. Building never fails at the call: the first
 * failure (memory, a limit, a message by gx_fail) is kept in the build, later calls give GX_NEVER,
 * and the owner asks once at the end, as with a buf. Threads: as the
 * build. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_GX_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_GX_H
#include "engine/grammar/automaton/build.h"
#include "engine/grammar/automaton/cset.h"

enum gx_kind {
    GX_NEVER, /* no text at all */
    GX_EMPTY, /* the empty text */
    GX_BYTES, /* these bytes */
    GX_CHARS, /* one code point of a set */
    GX_FSM,   /* a text of code points that an fsm accepts */
    GX_SEQ,
    GX_ALT,
    GX_REPEAT,
    GX_WITHIN, /* the FSM that is its kid, texts of at most so many code points */
    GX_RULE
};
/* How code points become bytes. */
enum gx_form {
    GX_UTF8,
    GX_JSON, /* inside a JSON string: escapes where JSON wants them, UTF-8 elsewhere */
    GX_RAW   /* FSM only: its letters are the bytes */
};

struct fsm;

struct gx {
    enum gx_kind kind;
    enum gx_form form; /* CHARS, FSM */
    uint32_t min, max; /* REPEAT; max GX_INF = without end. WITHIN: max */
    bool ticks;        /* FSM: the kid of a WITHIN */
    uint32_t n;        /* of bytes or kids */
    uint32_t rule;     /* RULE */
    uint32_t weight;   /* states it takes, roughly; saturates */
    union {
        const char *bytes;            /* [n] */
        const struct gx *const *kids; /* [n]; REPEAT and WITHIN have one */
        const struct cset *set;
        const struct fsm *fsm;
    };
};

/* build_fail. Always GX_NEVER, so that a builder can return it. */
__attribute__((format(printf, 3, 4))) const struct gx *gx_fail(struct build *b, enum q_code code,
                                                               const char *fmt, ...);

extern const struct gx gx_never, gx_empty;
const struct gx *gx_bytes(struct build *b, const char *s, size_t n); /* copies */
const struct gx *gx_text(struct build *b, const char *s);
const struct gx *gx_chars(struct build *b, const struct cset *set, enum gx_form form);
const struct gx *gx_fsm(struct build *b, const struct fsm *f, enum gx_form form);
/* The texts of f that have at most `max` code points. */
const struct gx *gx_within(struct build *b, const struct fsm *f, enum gx_form form, uint32_t max);
const struct gx *gx_seq(struct build *b, const struct gx *const *kids, size_t n); /* copies */
const struct gx *gx_seq2(struct build *b, const struct gx *x, const struct gx *y);
const struct gx *gx_seq3(struct build *b, const struct gx *x, const struct gx *y,
                         const struct gx *z);
const struct gx *gx_alt(struct build *b, const struct gx *const *kids, size_t n);
const struct gx *gx_alt2(struct build *b, const struct gx *x, const struct gx *y);
const struct gx *gx_repeat(struct build *b, const struct gx *x, uint32_t min, uint32_t max);
const struct gx *gx_optional(struct build *b, const struct gx *x);
/* A rule without a body yet; gx_ref refers to it. name is copied. */
uint32_t gx_rule_new(struct build *b, const char *name);
const struct gx *gx_ref(struct build *b, uint32_t rule);
/* A rule of its own with this body, and the reference to it. */
const struct gx *gx_named(struct build *b, const char *name, const struct gx *body);

/* Can x be the empty text? rules [by rule] may be NULL when x has none. */
bool gx_nullable(const struct gx *x, const bool *rules);

/* Growing lists of expressions, in the arena. */
struct gx_list {
    const struct gx **items;
    size_t n, cap;
};
void gx_add(struct build *b, struct gx_list *l, const struct gx *x);

#endif
