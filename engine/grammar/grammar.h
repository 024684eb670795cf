/* SPDX-License-Identifier: Apache-2.0 */
/* grammar - structured output: what a request asks for, compiled to what the worker's masks need.
 *
 * A source (JSON Schema, regular expression, list of choices, EBNF, structural tag) is compiled to
 * a program (program.h), which knows nothing of any vocabulary. An engine compiles once per source,
 * off its loop, and sends the program to the worker with the sequence; a matcher (matcher.h) over
 * the vocabulary's trie (trie.h) then says which tokens may come after any history.
 *
 *     source ─ grammar_compile ─▶ program ─ matcher + trie ─▶ masks
 *     schema_goal.c regex.c ebnf.c lark.c tags.c ─▶ gx ─ nfa.c fsm.c program_emit.c ─┘
 *
 * Hostile sources: text, nesting, rules, states and work are bounded; the compiler fails with what
 * was too much. Threads: grammar_compile is pure, any number at once. */
#ifndef QUIRE_ENGINE_GRAMMAR_GRAMMAR_H
#define QUIRE_ENGINE_GRAMMAR_GRAMMAR_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define GRAMMAR_SOURCE_MAX ((size_t)1 << 20) /* bytes */

enum grammar_kind { /* on the wire: never renumbered */
                    GRAMMAR_NONE = 0,
                    GRAMMAR_JSON = 1,   /* a JSON Schema */
                    GRAMMAR_REGEX = 2,  /* the whole text matches */
                    GRAMMAR_CHOICE = 3, /* a JSON array of strings */
                    GRAMMAR_EBNF = 4,   /* GBNF or Lark, whichever it is */
                    GRAMMAR_TAGS = 5,   /* a structural tag, JSON */
                    GRAMMAR_KINDS
};
#define GRAMMAR_COMPACT 0x100u /* added to a kind: no white space between JSON's tokens */
/* Added to GRAMMAR_JSON: before the schema stands a JSON string, the regular expression of what may
 * come between tokens. It matches white space of JSON only. */
#define GRAMMAR_SPACED  0x200u

struct grammar_source { /* borrowed */
    uint32_t kind;      /* enum grammar_kind, perhaps with GRAMMAR_COMPACT */
    const char *text;   /* [n] UTF-8 */
    size_t n;
    /* [n_after] The grammar begins behind the first of these; before it any text may come (a
     * model's reasoning), and the output cannot end. n_after 0: it begins at once. */
    const char *after;
    size_t n_after;
    /* [n_tags] Without `after`: tags of reasoning, start NUL end NUL, again and again (at most 8).
     * Where the text begins with a start (special tokens in it between two bytes 0xFF), the
     * grammar begins behind the first end that belongs to it, as above (an empty one: behind the
     * start); else at once. */
    const char *tags;
    size_t n_tags;
    uint32_t work_max; /* steps of compiling that are too many; 0: the usual limit (README.md) */
    uint32_t try_max;  /* steps to give up after with Q_TIMEOUT, which says nothing; 0: none */
    const atomic_bool
        *stop; /* NULL, or what makes the compile end with Q_CANCELLED once it is set */
};
/* Errors: Q_INVALID, Q_UNSUPPORTED (what and where: "#/properties/x/not: …"), Q_TOO_LARGE,
 * Q_NO_MEMORY, Q_TIMEOUT and Q_CANCELLED as above. Ownership: *words by q_free. */
FALLIBLE grammar_compile(uint32_t **words, uint32_t *n_word, const struct grammar_source *source,
                         struct q_err *e);

#endif
