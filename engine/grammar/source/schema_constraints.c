/* SPDX-License-Identifier: Apache-2.0 */
/* Adds each keyword of a schema to the constraints. Keywords for single properties or items stay
 * with their schema (c->objects, c->arrays): their combination depends on all schemas. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/grammar/source/schema_constraints.h"

#define NOT_VALUES_MAX 4 /* arrays and objects of one enum that are excluded one by one */

struct at { /* where a keyword stands */
    struct schema *s;
    struct constraints *c;
    const json_t *schema;
    const struct chain *chain;
    const char *key;
};
typedef void keyword_fn(const struct at *a, const json_t *v);

void constraints_init(struct constraints *c)
{
    *c = (struct constraints){
        .types = T_ANY,
        .length_max = EXPR_INF,
        .items_max = EXPR_INF,
        .props_max = EXPR_INF,
    };
}

static void expected(const struct at *a, const char *what)
{
    schema_fail(a->s, Q_INVALID, a->schema, a->key, "expected %s", what);
}

static void too_many(const struct at *a, size_t n)
{
    schema_fail(a->s, Q_TOO_LARGE, a->schema, a->key,
                "more than %zu uses of this keyword apply at once", n);
}

/* Append v to a list of n entries of this size. */
#define PUT(a, list, n, v)                              \
    do {                                                \
        if ((n) < sizeof(list) / sizeof *(list))        \
            (list)[(n)++] = (v);                        \
        else                                            \
            too_many(a, sizeof(list) / sizeof *(list)); \
    } while (0)

static uint32_t type_bit(const char *name)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } types[] = {
        {"null", T_NULL},     {"boolean", T_BOOL}, {"integer", T_INTEGER}, {"number", T_NUMBER},
        {"string", T_STRING}, {"array", T_ARRAY},  {"object", T_OBJECT},   {"any", T_ANY},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (name && !strcmp(types[i].name, name))
            return types[i].bits;
    return 0;
}

uint32_t schema_types(const json_t *type)
{
    uint32_t bits = type_bit(json_string_value(type));
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)type, i, item)
        bits |= type_bit(json_string_value(item));
    return type ? bits : T_ANY;
}

static void on_type(const struct at *a, const json_t *v)
{
    uint32_t bits = schema_types(v);
    if (!bits && !(json_is_array(v) && json_array_size(v) == 0))
        expected(a,
                 "the name of a type (null, boolean, integer, number, string, array, object), or "
                 "a list of them");
    a->c->types &= bits;
}

static void on_enum(const struct at *a, const json_t *v)
{
    if (!json_is_array(v))
        expected(a, "an array of values");
    else
        PUT(a, a->c->in, a->c->n_in, v);
}

static void on_const(const struct at *a, const json_t *v)
{
    json_t *list = schema_make(a->s, json_pack("[O]", v));
    if (list)
        PUT(a, a->c->in, a->c->n_in, list);
}

/* A schema that only this array or object satisfies. */
static json_t *value_schema(const struct at *a, const json_t *v)
{
    json_t *parts = json_is_array(v) ? json_array() : json_object(), *names = json_array(), *item;
    const char *name;
    size_t i;
    json_array_foreach ((json_t *)v, i, item)
        json_array_append_new(parts, json_pack("{s:O}", "const", item));
    json_object_foreach ((json_t *)v, name, item) {
        json_object_set_new(parts, name, json_pack("{s:O}", "const", item));
        json_array_append_new(names, json_string(name));
    }
    if (json_is_object(v))
        return json_pack("{s:s,s:o,s:o,s:b}", "type", "object", "properties", parts, "required",
                         names, "additionalProperties", 0);
    json_decref(names);
    return json_pack("{s:s,s:o,s:I,s:I}", "type", "array", a->s->old_ref ? "items" : "prefixItems",
                     parts, "minItems", (json_int_t)i, "maxItems", (json_int_t)i);
}

/* Not those: arrays and objects by what they consist of, the others as they are. NULL: there are
 * none to take apart, or too many. */
static const json_t *not_values(const struct at *a, const json_t *v)
{
    json_t *plain = json_array(), *all = json_pack("[{s:o}]", KEY_NOT_ENUM, plain), *item;
    size_t i, n = 0;
    json_array_foreach ((json_t *)v, i, item)
        n += json_is_array(item) || json_is_object(item);
    json_array_foreach ((json_t *)v, i, item) {
        if (n == 0 || n > NOT_VALUES_MAX)
            break;
        if (!json_is_array(item) && !json_is_object(item)) {
            json_array_append(plain, item);
            continue;
        }
        const json_t *is = schema_make(a->s, value_schema(a, item));
        const json_t *negated = is ? schema_not(a->s, is) : NULL;
        if (!negated)
            break;
        json_array_append(all, (json_t *)negated);
    }
    if (n && i == json_array_size(v))
        return schema_make(a->s, json_pack("{s:o}", "allOf", all));
    json_decref(all);
    return NULL;
}

static void on_not_enum(const struct at *a, const json_t *v)
{
    struct made *made = schema_made(a->s, v, MADE_NOT_VALUES);
    if (made && !made->is_known)
        made->schema = not_values(a, v);
    if (made)
        made->is_known = true;
    if (made && made->schema)
        constraints_add(a->s, a->c, made->schema, a->chain);
    else
        PUT(a, a->c->not_in, a->c->n_not_in, v);
}

static void tighten(const struct at *a, struct number *bound, const json_t *v, bool strict)
{
    struct number n;
    bool low = bound == &a->c->low;
    if (!number_read(&n, v)) {
        expected(a, "a number of at most 60 digits");
        return;
    }
    n.strict = strict;
    int order = bound->is_set ? number_compare(&n, bound) : low ? 1 : -1;
    if (order == 0)
        bound->strict |= strict;
    else if ((order > 0) == low)
        *bound = n;
}

/* Draft 4 has true beside minimum. */
static bool old_strict(const struct at *a, const char *key)
{
    return json_is_true(json_object_get(a->schema, key));
}

static void on_minimum(const struct at *a, const json_t *v)
{
    tighten(a, &a->c->low, v, old_strict(a, "exclusiveMinimum"));
}

static void on_maximum(const struct at *a, const json_t *v)
{
    tighten(a, &a->c->high, v, old_strict(a, "exclusiveMaximum"));
}

static void on_above(const struct at *a, const json_t *v)
{
    if (!json_is_boolean(v))
        tighten(a, &a->c->low, v, true);
}

static void on_below(const struct at *a, const json_t *v)
{
    if (!json_is_boolean(v))
        tighten(a, &a->c->high, v, true);
}

static void on_multiple(const struct at *a, const json_t *v)
{
    if (!json_is_number(v) || !(json_number_value(v) > 0))
        expected(a, "a number above 0");
    else
        PUT(a, a->c->multiple_of, a->c->n_multiple, json_number_value(v));
}

static void on_not_multiple(const struct at *a, const json_t *v)
{
    uint32_t n = a->c->n_multiple;
    on_multiple(a, v);
    if (a->c->n_multiple > n)
        a->c->not_multiple[n] = true;
}

static uint32_t count(const struct at *a, const json_t *v)
{
    double n = json_number_value(v);
    if (!json_is_number(v) || n < 0 || n != floor(n)) {
        expected(a, "a whole number of 0 or more");
        return 0;
    }
    return n < 4e9 ? (uint32_t)n : EXPR_INF - 1;
}

static void at_least(uint32_t *bound, uint32_t n)
{
    *bound = n > *bound ? n : *bound;
}

static void at_most(uint32_t *bound, uint32_t n)
{
    *bound = n < *bound ? n : *bound;
}

static void on_min_length(const struct at *a, const json_t *v)
{
    at_least(&a->c->length_min, count(a, v));
}

static void on_max_length(const struct at *a, const json_t *v)
{
    at_most(&a->c->length_max, count(a, v));
}

static void on_min_items(const struct at *a, const json_t *v)
{
    at_least(&a->c->items_min, count(a, v));
}

static void on_max_items(const struct at *a, const json_t *v)
{
    at_most(&a->c->items_max, count(a, v));
}

static void on_min_properties(const struct at *a, const json_t *v)
{
    at_least(&a->c->props_min, count(a, v));
}

static void on_max_properties(const struct at *a, const json_t *v)
{
    at_most(&a->c->props_max, count(a, v));
}

static void add_pattern(const struct at *a, const json_t *v, bool is_not)
{
    if (!json_is_string(v)) {
        expected(a, "a pattern");
        return;
    }
    if (a->c->n_pattern < 32)
        a->c->is_not[a->c->n_pattern] = is_not;
    PUT(a, a->c->patterns, a->c->n_pattern, v);
}

static void on_pattern(const struct at *a, const json_t *v)
{
    add_pattern(a, v, false);
}

static void on_not_pattern(const struct at *a, const json_t *v)
{
    add_pattern(a, v, true);
}

static void on_format(const struct at *a, const json_t *v)
{
    if (!json_is_string(v))
        expected(a, "the name of a format");
    else
        PUT(a, a->c->formats, a->c->n_format, json_string_value(v));
}

static void on_required(const struct at *a, const json_t *v)
{
    if (json_is_boolean(v)) /* draft 3: of the property it stands in, and no constraint here */
        return;
    if (!json_is_array(v))
        expected(a, "an array of property names");
    else
        PUT(a, a->c->required, a->c->n_required, v);
}

static void note_source(const struct at *a, const json_t **list, const struct chain **chains,
                        uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++)
        if (list[i] == a->schema)
            return;
    if (*n == SCHEMA_SOURCES_MAX) {
        too_many(a, SCHEMA_SOURCES_MAX);
        return;
    }
    chains[*n] = a->chain;
    list[(*n)++] = a->schema;
}

bool constraints_sees(const json_t *schema, const struct chain *source)
{
    for (; source; source = source->up) {
        if (source->schema == schema)
            return true;
        if (source->is_hidden)
            return false;
    }
    return false;
}

static void on_object(const struct at *a, const json_t *v)
{
    bool map = !strcmp(a->key, "properties") || !strcmp(a->key, "patternProperties");
    if (map ? !json_is_object(v) : !json_is_object(v) && !json_is_boolean(v))
        expected(a, map ? "an object of schemas" : "a schema");
    else
        note_source(a, a->c->objects, a->c->object_chains, &a->c->n_object);
}

static void on_array(const struct at *a, const json_t *v)
{
    bool list = !strcmp(a->key, "prefixItems") || (!strcmp(a->key, "items") && json_is_array(v));
    if (list ? !json_is_array(v) : !json_is_object(v) && !json_is_boolean(v))
        expected(a, list ? "an array of schemas" : "a schema");
    else
        note_source(a, a->c->arrays, a->c->array_chains, &a->c->n_array);
}

static void on_unique(const struct at *a, const json_t *v)
{
    if (!json_is_boolean(v))
        expected(a, "true or false");
    else if (json_is_true(v))
        note_source(a, a->c->arrays, a->c->array_chains, &a->c->n_array);
}

static void add_choice(const struct at *a, const json_t *options)
{
    struct choice pick = {options, a->chain};
    if (options)
        PUT(a, a->c->choices, a->c->n_choice, pick);
}

static bool is_schemas(const struct at *a, const json_t *v)
{
    if (!json_is_array(v) || json_array_size(v) == 0)
        expected(a, "an array of schemas");
    return json_is_array(v) && json_array_size(v);
}

static void on_any_of(const struct at *a, const json_t *v)
{
    if (is_schemas(a, v))
        add_choice(a, v);
}

static void on_all_of(const struct at *a, const json_t *v)
{
    size_t i;
    json_t *item;
    if (is_schemas(a, v))
        json_array_foreach ((json_t *)v, i, item)
            constraints_add(a->s, a->c, item, a->chain);
}

/* Option i, and none of those that it does not exclude by itself. What is excluded only for some
 * types of values is negated for the others alone. */
static const json_t *only(const struct at *a, const json_t *options, size_t i)
{
    struct schema *s = a->s;
    json_t *option = json_array_get(options, i), *other;
    json_t *all = json_pack("[O]", option);
    size_t k;
    json_array_foreach ((json_t *)options, k, other) {
        const json_t *negated;
        uint32_t types = k == i ? 0 : schema_common(s, option, other, 0);
        if (!types)
            continue;
        uint32_t n_dropped = s->n_dropped;
        negated = schema_not(s, other);
        const json_t *inside = json_object_get(negated, KEY_HIDDEN);
        bool by_type = json_object_size(inside) == 1 && json_object_get(inside, "type");
        if (!negated || (by_type && s->n_dropped > n_dropped)) {
            schema_fail(s, Q_UNSUPPORTED, a->schema, "oneOf",
                        "options %zu and %zu overlap and cannot be separated; use anyOf", i, k);
            break;
        }
        if (types & T_OBJECT)
            json_array_append(all, (json_t *)negated);
        else
            json_array_append_new(all,
                                  json_pack("{s:[{s:s},O]}", "anyOf", "type", "object", negated));
    }
    return schema_make(s, json_pack("{s:o}", "allOf", all));
}

static void on_one_of(const struct at *a, const json_t *v)
{
    if (!is_schemas(a, v))
        return;
    if (schemas_exclusive(a->s, v)) {
        add_choice(a, v);
        return;
    }
    struct made *made = schema_made(a->s, v, MADE_ONE_OF);
    if (made && !made->schema) {
        json_t *options = schema_make(a->s, json_array());
        for (size_t i = 0; options && i < json_array_size(v) && build_ok(a->s->b); i++) {
            const json_t *option = only(a, v, i);
            if (option)
                json_array_append(options, (json_t *)option);
        }
        made->schema = options;
    }
    add_choice(a, made ? made->schema : NULL);
}

static void on_not(const struct at *a, const json_t *v)
{
    const json_t *negated = schema_not(a->s, v);
    if (negated)
        constraints_add(a->s, a->c, negated, a->chain);
    else
        schema_fail(a->s, Q_UNSUPPORTED, a->schema, "not",
                    "the negation of its schema cannot be written as a grammar");
}

/* A schema that all values satisfy. */
static bool is_free(const json_t *v)
{
    return !v || json_is_true(v) || (json_is_object(v) && json_object_size(v) == 0);
}

static const json_t *if_options(const struct at *a, const json_t *v)
{
    json_t *then = json_object_get(a->schema, "then"), *other = json_object_get(a->schema, "else");
    const json_t *negated = schema_not(a->s, v);
    if (!negated) {
        schema_fail(a->s, Q_UNSUPPORTED, a->schema, "if",
                    "the negation of the condition cannot be written as a grammar");
        return NULL;
    }
    json_t *yes = then ? json_pack("{s:[O,O]}", "allOf", v, then) : json_incref((json_t *)v);
    json_t *no =
        other ? json_pack("{s:[O,O]}", "allOf", negated, other) : json_incref((json_t *)negated);
    return schema_make(a->s, json_pack("[o,o]", yes, no));
}

/* (if and then) or (not if and else) */
static void on_if(const struct at *a, const json_t *v)
{
    if (is_free(json_object_get(a->schema, "then")) && is_free(json_object_get(a->schema, "else")))
        return;
    struct made *made = schema_made(a->s, a->schema, MADE_IF);
    if (made && !made->schema)
        made->schema = if_options(a, v);
    add_choice(a, made ? made->schema : NULL);
}

/* Without the property, or with it and what depends on it (taken). */
static void depend(const struct at *a, const char *name, json_t *then)
{
    struct made *made = schema_made(a->s, name, MADE_DEPENDENT);
    if (made && !made->schema)
        made->schema = schema_make(a->s, json_pack("[{s:{s:b}},{s:[s],s:[O]}]", "properties", name,
                                                   0, "required", name, "allOf", then));
    add_choice(a, made ? made->schema : NULL);
    json_decref(then);
}

static void on_dependent(const struct at *a, const json_t *v)
{
    const char *name;
    json_t *then;
    if (!json_is_object(v)) {
        expected(a, "an object");
        return;
    }
    json_object_foreach ((json_t *)v, name, then) {
        if (json_is_array(then))
            depend(a, name, json_pack("{s:O}", "required", then));
        else if (json_is_string(then))
            depend(a, name, json_pack("{s:[O]}", "required", then));
        else
            depend(a, name, json_incref(then));
    }
}

static void on_ref(const struct at *a, const json_t *v)
{
    (void)v;
    const json_t *target = ref_target(a->s, a->schema, a->key);
    if (target)
        constraints_add(a->s, a->c, target, a->chain);
}

static void on_some(const struct at *a, const json_t *v)
{
    PUT(a, a->c->some, a->c->n_some, v);
}

static void on_hidden(const struct at *a, const json_t *v)
{
    struct chain *chain = build_alloc(a->s->b, 1, sizeof *chain);
    if (!chain)
        return;
    *chain = (struct chain){.up = a->chain, .depth = chain_inside(a->chain), .is_hidden = true};
    constraints_add(a->s, a->c, v, chain);
}

/* What has no negation is left out of the union that this belongs to. */
static void on_negated(const struct at *a, const json_t *v)
{
    const json_t *negated = schema_not(a->s, v);
    if (negated)
        constraints_add(a->s, a->c, negated, a->chain);
    else
        a->c->dead = true;
}

static void on_refused(const struct at *a, const json_t *v)
{
    (void)v;
    schema_fail(a->s, Q_UNSUPPORTED, a->schema, a->key, "this keyword is not supported");
}

static const struct {
    const char *name;
    keyword_fn *add;
} keywords[] = {
    {"type", on_type},
    {"properties", on_object},
    {"required", on_required},
    {"additionalProperties", on_object},
    {"items", on_array},
    {"enum", on_enum},
    {"const", on_const},
    {"$ref", on_ref},
    {"$dynamicRef", on_ref},
    {"$recursiveRef", on_ref},
    {"anyOf", on_any_of},
    {"oneOf", on_one_of},
    {"allOf", on_all_of},
    {"not", on_not},
    {"if", on_if},
    {"pattern", on_pattern},
    {"format", on_format},
    {"minLength", on_min_length},
    {"maxLength", on_max_length},
    {"minimum", on_minimum},
    {"maximum", on_maximum},
    {"exclusiveMinimum", on_above},
    {"exclusiveMaximum", on_below},
    {"multipleOf", on_multiple},
    {"divisibleBy", on_multiple},
    {"minItems", on_min_items},
    {"maxItems", on_max_items},
    {"uniqueItems", on_unique},
    {"prefixItems", on_array},
    {"additionalItems", on_array},
    {"unevaluatedItems", on_array},
    {"contains", on_array},
    {"patternProperties", on_object},
    {"propertyNames", on_object},
    {"unevaluatedProperties", on_object},
    {"minProperties", on_min_properties},
    {"maxProperties", on_max_properties},
    {"dependentRequired", on_dependent},
    {"dependentSchemas", on_dependent},
    {"dependencies", on_dependent},
    {"disallow", on_refused},
    {"extends", on_refused},
    {KEY_HIDDEN, on_hidden},
    {KEY_NEGATED, on_negated},
    {KEY_SOME, on_some},
    {KEY_NOT_ENUM, on_not_enum},
    {KEY_NOT_PATTERN, on_not_pattern},
    {KEY_NOT_MULTIPLE, on_not_multiple},
};

/* Is the schema being merged already? Then this is recursion that reads nothing. */
static bool recurs(const struct chain *chain, const json_t *schema, bool *by_choice)
{
    *by_choice = false;
    for (; chain; chain = chain->up) {
        if (chain->schema == schema)
            return true;
        *by_choice |= chain->is_choice;
    }
    return false;
}

void constraints_add(struct schema *s, struct constraints *c, const json_t *schema,
                     const struct chain *up)
{
    const char *key;
    json_t *v;
    bool by_choice;
    if (!build_ok(s->b) || json_is_true(schema) ||
        !build_work(s->b, 20 + 10 * (uint64_t)json_object_size(schema) + chain_inside(up) / 4))
        return;
    if (!json_is_object(schema)) {
        c->dead = true;
        if (!json_is_false(schema))
            expr_fail(s->b, Q_INVALID,
                      "the schema contains a value that is not a schema (an object, true "
                      "or false)");
        return;
    }
    if (recurs(up, schema, &by_choice)) { /* as a choice it adds no value that others do not */
        c->dead |= by_choice;
        return;
    }
    struct chain *chain = build_alloc(s->b, 1, sizeof *chain);
    if (!chain)
        return;
    *chain = (struct chain){.schema = schema, .up = up, .depth = chain_inside(up)};
    if (chain->depth > CHAIN_MAX) {
        expr_fail(s->b, Q_TOO_LARGE, "more than %u references and allOf inside each other",
                  CHAIN_MAX);
        return;
    }
    const json_t *ref = s->old_ref ? json_object_get(schema, "$ref") : NULL;
    json_object_foreach ((json_t *)schema, key, v) {
        struct at a = {s, c, schema, chain, key};
        if (ref && strcmp(key, "$ref") != 0)
            continue;
        for (size_t i = 0; i < sizeof keywords / sizeof *keywords && !c->dead; i++)
            if (!strcmp(keywords[i].name, key))
                keywords[i].add(&a, v);
    }
}

/* Does each list of names that are no other property's, for a property that must be there, hold all
 * that the source allows? */
static bool has_no_other(struct schema *s, const json_t *some, const json_t *source)
{
    size_t i;
    json_t *names, *v;
    const char *name;
    const json_t *listed = NULL;
    json_array_foreach (json_object_get(json_object_get(some, "names"), "allOf"), i, names)
        if (json_object_get(names, KEY_NOT_ENUM))
            listed = json_object_get(names, KEY_NOT_ENUM);
    if (!listed || !schema_is_closed(source))
        return false;
    json_object_foreach (json_object_get(source, "properties"), name, v) {
        bool is_listed = json_is_false(v);
        json_array_foreach ((json_t *)listed, i, names)
            is_listed |= json_is_string(names) && !strcmp(json_string_value(names), name);
        if (!is_listed || !build_work(s->b, 1 + json_array_size(listed) / 4))
            return false;
    }
    return true;
}

/* A property is required and cannot be, of the sources and lists that are new. */
static bool misses_required(struct schema *s, const struct constraints *c)
{
    for (uint32_t r = 0; r < c->n_required; r++) {
        size_t i;
        json_t *item;
        json_array_foreach ((json_t *)c->required[r], i, item) {
            const char *name = json_string_value(item);
            uint32_t k = r < c->n_seen_required ? c->n_seen_object : 0;
            for (; name && k < c->n_object; k++)
                for (uint32_t j = 0; j <= k; j++)
                    if (schemas_forbid(s, c->objects[k], c->objects[j], name, 0))
                        return true;
        }
    }
    return false;
}

void constraints_prune(struct schema *s, struct constraints *c)
{
    bool is_new = c->n_object > c->n_seen_object || c->n_required > c->n_seen_required;
    if (c->types & T_OBJECT && !c->dead && is_new) {
        s->n_look = 0;
        bool never = misses_required(s, c);
        for (uint32_t j = 0; j < c->n_some && !never; j++)
            for (uint32_t k = 0; k < c->n_object && !never; k++)
                never = has_no_other(s, c->some[j], c->objects[k]);
        if (never)
            c->types &= ~(uint32_t)T_OBJECT;
        c->n_seen_object = c->n_object;
        c->n_seen_required = c->n_required;
    }
    c->dead |= c->types == 0;
}
