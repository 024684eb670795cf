/* SPDX-License-Identifier: Apache-2.0 */
/* schema_constraints - the conditions on one value: the constraints of all schemas that apply
 * together, by type, and the choices (anyOf, oneOf, if, dependencies) that are still open.
 * Keywords for single properties or items stay with their schema. Private to engine/grammar. JSON
 * is the root's or of schema.made. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_SCHEMA_CONSTRAINTS_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_SCHEMA_CONSTRAINTS_H
#include "engine/grammar/source/schema.h"

#define SCHEMA_SOURCES_MAX 64u   /* schemas with properties, or items, of one conj */
#define CHAIN_MAX          2000u /* schemas that references and allOf merge inside each other */
#define SOME_MAX           16u   /* properties that negations want of one conj */

struct number { /* a bound, exactly */
    bool is_set, negative, strict;
    char whole[64],
        part[64]; /* digits before and behind the point, without zeros that say nothing */
};
struct chain { /* schemas being merged, inside out */
    const json_t *schema;
    const struct chain *up;
    uint32_t depth; /* schemas around this one */
    bool is_choice; /* entered as an option */
    bool is_hidden; /* what is inside does not count as evaluated */
};
static inline uint32_t chain_inside(const struct chain *up) /* the depth of a link below */
{
    return up ? up->depth + 1 : 0;
}
struct choice {
    const json_t *options; /* an array of schemas */
    const struct chain *chain;
};
struct constraints {
    uint32_t types;
    const json_t *in[64]; /* enum arrays */
    uint32_t n_in;
    const json_t *not_in[32];
    uint32_t n_not_in;
    struct number low, high;
    double multiple_of[16];
    bool not_multiple[16]; /* none of them */
    uint32_t n_multiple;
    uint32_t length_min, length_max; /* code points; EXPR_INF = no limit */
    const json_t *patterns[32];      /* strings */
    bool is_not[32];                 /* the pattern must not match */
    uint32_t n_pattern;
    const char *formats[8];
    uint32_t n_format;
    uint32_t items_min, items_max, props_min, props_max;
    const json_t *arrays[SCHEMA_SOURCES_MAX]; /* schemas with keywords for arrays */
    const json_t *objects[SCHEMA_SOURCES_MAX];
    const struct chain *array_chains[SCHEMA_SOURCES_MAX], *object_chains[SCHEMA_SOURCES_MAX];
    uint32_t n_array, n_object;
    const json_t *required[SCHEMA_SOURCES_MAX]; /* arrays of names */
    uint32_t n_required;
    const json_t *some[SOME_MAX]; /* of KEY_SOME */
    uint32_t n_some;
    struct choice choices[64];
    uint32_t n_choice;
    uint32_t n_seen_object, n_seen_required; /* that constraints_prune has looked at */
    bool dead;                               /* nothing satisfies it */
};

/* Merge a schema into c. */
void constraints_init(struct constraints *c);
/* The T_ bits that the keyword "type" names; T_ANY: it is missing. */
uint32_t schema_types(const json_t *type);
/* Take the types away that contradict themselves, as far as it is cheap to see. */
void constraints_prune(struct schema *s, struct constraints *c);
void constraints_add(struct schema *s, struct constraints *c, const json_t *schema,
                     const struct chain *chain);
/* Does a schema with unevaluated… see what this source evaluates? Only itself and what is in it. */
bool constraints_sees(const json_t *schema, const struct chain *source);

#endif
