/* SPDX-License-Identifier: Apache-2.0 */
/* build - the compilation of one source: its memory, its rules, its first failure and its work
 * limit. A failure is kept, later calls do nothing, and the owner checks once at the end, as with
 * a buf. Threads: one owner per build; nothing is global. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_BUILD_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_BUILD_H
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/mem.h"

#define EXPR_MEMORY_MAX ((size_t)256 << 20) /* bytes of one build, everything in it */
/* Units of work of one build: a constant, and so many for each of the first EXPR_WORK_BYTES of the
 * source. A unit is 10 to 25 ns of an ordinary core: 0.6 to 1.6 s for a short source, at most twice
 * that. */
#define EXPR_WORK_MAX   64000000u
#define EXPR_WORK_BYTE  64u
#define EXPR_WORK_BYTES ((size_t)1 << 20)
#define EXPR_RULES_MAX  100000u
#define EXPR_INF        UINT32_MAX
#define EXPR_DEPTH_MAX  200u /* expressions, schemas, groups inside each other in a source */
#define EXPR_CHAR_MAX   0x10FFFFu

struct expr;
/* A part of the source that messages name, such as a tool of the request. */
struct build_scope {
    const char *name;
    uint32_t rule;   /* its text */
    uint64_t n_word; /* of the program, counted by program_emit */
    struct build_scope *next;
};
struct expr_rule {
    const char *name;          /* for messages; "" = made by us */
    const struct expr *body;   /* NULL until it is known */
    struct build_scope *scope; /* that the rule is part of; may be NULL */
};

struct build {
    struct arena arena;
    struct expr_rule *rules; /* [n_rule] */
    size_t n_rule, rules_cap;
    struct q_err err;          /* the first failure */
    uint64_t work;             /* states and edges made so far */
    uint64_t work_max;         /* more is a failure: bounds time whatever the source */
    uint64_t try_max;          /* more is too much for now; 0: nothing is */
    const atomic_bool *stop;   /* set: building fails; may be NULL */
    bool lean;                 /* negations leave out what takes room (KEY_SOME of schema.h) … */
    bool is_rich;              /* … and would have done so: leaner is possible */
    uint32_t before;           /* + 1: the rule of the text before the grammar; 0 = there is none */
    struct build_scope *scope; /* new rules are part of it; may be NULL */
    struct build_scope *scopes; /* all of them, the last one first */
};

void build_init(struct build *b);    /* empty, with its bounds of memory and work */
void build_release(struct build *b); /* every expr and rule of it; the error stays readable */
/* Keep the first failure. */
__attribute__((format(printf, 3, 4))) void build_fail(struct build *b, enum q_code code,
                                                      const char *fmt, ...);
void build_fail_va(struct build *b, enum q_code code, const char *fmt, va_list ap);
/* rc is q_grow's of a list of the build. A lack of memory is kept as the failure, so that the limit
 * that the caller names next is not. Returns rc. */
FALLIBLE build_grown(struct build *b, enum q_code rc);
/* Count n units of work, before or after it is done: what loops over a source counts here, so that
 * time is bounded whatever the source. False when it was too much (a failure is kept). */
bool build_work(struct build *b, uint64_t n);
/* Zeroed memory of the build; NULL (and a failure is kept) when there is none. */
void *build_alloc(struct build *b, size_t n, size_t size);
static inline bool build_ok(const struct build *b)
{
    return b->err.code == Q_OK;
}

#endif
