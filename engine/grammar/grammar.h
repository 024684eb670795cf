/* SPDX-License-Identifier: Apache-2.0 */
/* grammar - structured output: compiles the constraint of a request to the program of its masks.
 *
 * A source (JSON Schema, regular expression, list of choices, EBNF, structural tag) is compiled to
 * a program (program.h), which does not depend on a vocabulary. An engine compiles once per source,
 * off its loop, and sends the program to the worker with the sequence; a matcher (matcher.h) over
 * the vocabulary's trie (trie.h) then computes the tokens allowed after any history.
 *
 *     source ─ grammar_compile ─▶ program ─ matcher + trie ─▶ masks
 *     schema_goal.c regex.c ebnf.c lark.c tags.c ─▶ expr ─ nfa.c fsm.c program_emit.c ─┘
 *
 * Hostile sources: text, nesting, rules, states and work are bounded; the error names
 * the limit that was exceeded. Threads: grammar_compile is pure, any number at once.
 * Programs give jansson the allocations of common/mem (json_set_alloc_funcs), so that its failures
 * are errors of the compile too. */
#ifndef QUIRE_ENGINE_GRAMMAR_GRAMMAR_H
#define QUIRE_ENGINE_GRAMMAR_GRAMMAR_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define GRAMMAR_SOURCE_MAX ((size_t)8 << 20) /* bytes */

/* on the wire: never renumbered */
enum grammar_kind {
    GRAMMAR_NONE = 0,
    GRAMMAR_JSON = 1,   /* a JSON Schema */
    GRAMMAR_REGEX = 2,  /* the whole text matches */
    GRAMMAR_CHOICE = 3, /* a JSON array of strings */
    GRAMMAR_EBNF = 4,   /* GBNF or Lark, detected */
    GRAMMAR_TAGS = 5,   /* a structural tag, JSON */
    GRAMMAR_KINDS
};
#define GRAMMAR_COMPACT 0x100u /* added to a kind: no white space between JSON's tokens */
/* Added to GRAMMAR_JSON: a JSON string precedes the schema, the regular expression of the white
 * space between tokens. It matches white space of JSON only. */
#define GRAMMAR_SPACED  0x200u

struct grammar_source { /* borrowed */
    uint32_t kind;      /* enum grammar_kind, perhaps with GRAMMAR_COMPACT */
    const char *text;   /* [n] UTF-8 */
    size_t n;
    /* [n_after] The grammar begins after the first occurrence of this marker; any text may precede
     * it (reasoning), and the output cannot end before it. n_after 0: it begins at once. */
    const char *after;
    size_t n_after;
    /* [n_tags] Without `after`: tags of reasoning, start NUL end NUL, repeated (at most 8).
     * Where the text begins with a start (special tokens in it between two bytes 0xFF), the
     * grammar begins after the first end of this pair, as above (after the start when the end is
     * empty); else at once. */
    const char *tags;
    size_t n_tags;
    uint32_t work_max;       /* limit of compile steps; 0: the default (README.md) */
    uint32_t try_max;        /* steps after which the compile ends with Q_TIMEOUT; 0: no limit */
    const atomic_bool *stop; /* NULL, or a flag that ends the compile with Q_CANCELLED */
};
/* Errors: Q_INVALID, Q_UNSUPPORTED (what and where: "#/properties/x/not: …"), Q_TOO_LARGE,
 * Q_NO_MEMORY, Q_TIMEOUT and Q_CANCELLED as above. Ownership: *words by q_free. */
FALLIBLE grammar_compile(uint32_t **words, uint32_t *n_word, const struct grammar_source *source,
                         struct q_err *e);

#endif
