/* SPDX-License-Identifier: Apache-2.0 */
/* Negation. A schema fails if one of its keywords fails, so its negation is the union of the
 * negations of its keywords. A keyword left out makes the union smaller but never wrong: keywords
 * without a negation are left out as long as one remains. */
#include <math.h>
#include <string.h>
#include "common/buf.h"
#include "engine/grammar/source/schema.h"

#define DEPTH_MAX 24
#define PAIRS_MAX 8 /* options of a oneOf of which two may hold */

static json_t *negate(struct schema *s, const json_t *schema, int depth);

static void option(json_t *options, json_t *made)
{
    if (made)
        json_array_append_new(options, made);
}

static bool has_type(const json_t *types, const char *name)
{
    size_t i;
    json_t *item;
    if (json_is_string(types))
        return !strcmp(json_string_value(types), name);
    json_array_foreach ((json_t *)types, i, item)
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    return false;
}

static void not_types(json_t *options, const json_t *v)
{
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    json_t *left = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool named = false;
        size_t k;
        json_t *item;
        json_t *one = json_is_string(v) ? json_pack("[O]", v) : json_incref((json_t *)v);
        json_array_foreach (one, k, item) {
            const char *name = json_string_value(item);
            named |= name && (!strcmp(name, names[i]) || !strcmp(name, "any") ||
                              (!strcmp(names[i], "number") && !strcmp(name, "integer")));
        }
        json_decref(one);
        if (!named)
            json_array_append_new(left, json_string(names[i]));
    }
    if (json_array_size(left))
        option(options, json_pack("{s:o}", "type", left));
    else
        json_decref(left);
    if (has_type(v, "integer") && !has_type(v, "number") && !has_type(v, "any"))
        option(options, json_pack("{s:s,s:i}", "type", "number", KEY_NOT_MULTIPLE, 1));
}

static void not_required(json_t *options, const json_t *v)
{
    size_t i;
    json_t *name;
    json_array_foreach ((json_t *)v, i, name)
        if (json_is_string(name))
            option(options, json_pack("{s:s,s:{s:b}}", "type", "object", "properties",
                                      json_string_value(name), 0));
}

static void not_properties(struct schema *s, json_t *options, const json_t *v, int depth)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)v, name, value) {
        json_t *negated = negate(s, value, depth + 1);
        if (negated)
            option(options, json_pack("{s:s,s:[s],s:{s:o}}", "type", "object", "required", name,
                                      "properties", name, negated));
    }
}

static void not_any_of(struct schema *s, json_t *options, const json_t *v, int depth)
{
    json_t *all = json_array(), *negated;
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)v, i, item) {
        if (!(negated = negate(s, item, depth + 1))) {
            json_decref(all);
            return;
        }
        json_array_append_new(all, negated);
    }
    option(options, json_pack("{s:o}", "allOf", all));
}

static void not_all_of(struct schema *s, json_t *options, const json_t *v, int depth)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)v, i, item)
        option(options, negate(s, item, depth + 1));
}

/* None holds, or two do. */
static void not_one_of(struct schema *s, json_t *options, const json_t *v, int depth)
{
    size_t n = json_array_size(v);
    not_any_of(s, options, v, depth);
    for (size_t i = 0; i < n && n <= PAIRS_MAX; i++)
        for (size_t k = i + 1; k < n; k++)
            if (schema_common(s, json_array_get(v, i), json_array_get(v, k), 0))
                option(options,
                       json_pack("{s:[O,O]}", "allOf", json_array_get(v, i), json_array_get(v, k)));
}

/* Some property whose name satisfies `names` (taken) has a value that does not satisfy v. */
static void some_property(struct schema *s, json_t *options, json_t *names, const json_t *v,
                          int depth)
{
    json_t *negated = names && !s->b->lean ? negate(s, v, depth + 1) : NULL;
    s->b->is_rich = true;
    if (negated)
        option(options, json_pack("{s:s,s:{s:O,s:o}}", "type", "object", KEY_SOME, "names", names,
                                  "value", negated));
    else
        s->n_dropped++;
    json_decref(names);
}

static void not_patterns(struct schema *s, json_t *options, const json_t *v, int depth)
{
    const char *pattern;
    json_t *value;
    json_object_foreach ((json_t *)v, pattern, value)
        some_property(s, options, json_pack("{s:s}", "pattern", pattern), value, depth);
}

static void not_names(struct schema *s, json_t *options, const json_t *v, int depth)
{
    some_property(s, options, negate(s, v, depth + 1), json_false(), depth);
}

/* One that the same schema neither lists nor has a pattern for. */
static void not_additional(struct schema *s, json_t *options, const json_t *schema, int depth)
{
    json_t *listed = json_array(), *all = json_array(), *value;
    const char *name;
    json_object_foreach (json_object_get(schema, "properties"), name, value)
        json_array_append_new(listed, json_string(name));
    json_object_foreach (json_object_get(schema, "patternProperties"), name, value)
        json_array_append_new(all, json_pack("{s:s}", KEY_NOT_PATTERN, name));
    json_array_append_new(all, json_pack("{s:o}", KEY_NOT_ENUM, listed));
    some_property(s, options, json_pack("{s:o}", "allOf", all),
                  json_object_get(schema, "additionalProperties"), depth);
}

/* One item fails; where there are prefixItems it is not said which. */
static void not_items(struct schema *s, json_t *options, const json_t *schema, int depth)
{
    const json_t *v = json_object_get(schema, "items");
    bool all = (json_is_object(v) || json_is_boolean(v)) && !json_object_get(schema, "prefixItems");
    json_t *negated = all ? negate(s, v, depth + 1) : NULL;
    if (negated)
        option(options, json_pack("{s:s,s:o}", "type", "array", "contains", negated));
    else
        s->n_dropped++;
}

static void not_prefix(struct schema *s, json_t *options, const json_t *v, int depth)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *negated = negate(s, json_array_get(v, i), depth + 1), *items = json_array();
        for (size_t k = 0; negated && k < i; k++)
            json_array_append_new(items, json_true());
        if (!negated) {
            json_decref(items);
            continue;
        }
        json_array_append_new(items, negated);
        option(options, json_pack("{s:s,s:I,s:o}", "type", "array", "minItems", (json_int_t)i + 1,
                                  "prefixItems", items));
    }
}

/* No item is one of these. Counts of them have no negation here. */
static void not_contains(struct schema *s, json_t *options, const json_t *schema, int depth)
{
    bool counted = json_object_get(schema, "minContains") || json_object_get(schema, "maxContains");
    json_t *negated = counted ? NULL : negate(s, json_object_get(schema, "contains"), depth + 1);
    if (negated)
        option(options, json_pack("{s:s,s:o}", "type", "array", "items", negated));
    else
        s->n_dropped++;
}

/* The property is there, and what depends on it fails. */
static void not_dependent(struct schema *s, json_t *options, const json_t *v, int depth)
{
    const char *name;
    json_t *then;
    json_object_foreach ((json_t *)v, name, then) {
        json_t *all = json_is_array(then)    ? json_pack("{s:O}", "required", then)
                      : json_is_string(then) ? json_pack("{s:[O]}", "required", then)
                                             : json_incref(then);
        json_t *negated = negate(s, all, depth + 1);
        json_decref(all);
        if (negated)
            option(options, json_pack("{s:s,s:[s],s:[o]}", "type", "object", "required", name,
                                      "allOf", negated));
    }
}

/* The branch that is taken fails. */
static void not_if(struct schema *s, json_t *options, const json_t *schema, int depth)
{
    const json_t *then = json_object_get(schema, "then"), *other = json_object_get(schema, "else");
    json_t *condition = json_object_get(schema, "if");
    json_t *negated = then ? negate(s, then, depth + 1) : NULL;
    if (negated)
        option(options, json_pack("{s:[O,o]}", "allOf", condition, negated));
    json_t *unless = other ? negate(s, condition, depth + 1) : NULL;
    negated = unless ? negate(s, other, depth + 1) : NULL;
    if (negated)
        option(options, json_pack("{s:[o,o]}", "allOf", unless, negated));
    else
        json_decref(unless);
}

/* A bound fails on its other side; d is what the other bound differs by. */
static void not_bound(json_t *options, const char *key, const json_t *v)
{
    static const struct {
        const char *key, *type, *other;
        int add;
    } bounds[] = {
        {"minimum", "number", "exclusiveMaximum", 0},
        {"maximum", "number", "exclusiveMinimum", 0},
        {"exclusiveMinimum", "number", "maximum", 0},
        {"exclusiveMaximum", "number", "minimum", 0},
        {"minLength", "string", "maxLength", -1},
        {"maxLength", "string", "minLength", 1},
        {"minItems", "array", "maxItems", -1},
        {"maxItems", "array", "minItems", 1},
        {"minProperties", "object", "maxProperties", -1},
        {"maxProperties", "object", "minProperties", 1},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        json_int_t n = json_is_integer(v) ? json_integer_value(v) + bounds[i].add : 0;
        if (strcmp(bounds[i].key, key) != 0 || !json_is_number(v))
            continue;
        if (bounds[i].add == 0)
            option(options, json_pack("{s:s,s:O}", "type", bounds[i].type, bounds[i].other, v));
        else if (json_is_integer(v) && n >= 0)
            option(options, json_pack("{s:s,s:I}", "type", bounds[i].type, bounds[i].other, n));
    }
}

/* Constraints whose negation no schema says; other keywords that are not known here are none. */
static bool cannot_fail_alone(const char *key)
{
    static const char *const names[] = {"format",
                                        "uniqueItems",
                                        "additionalItems",
                                        "unevaluatedProperties",
                                        "unevaluatedItems",
                                        "prefixItems",
                                        "dependencies",
                                        "dependentRequired",
                                        "dependentSchemas", /* these: of another draft */
                                        KEY_SOME};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], key))
            return true;
    return false;
}

/* Keywords with schemas in them; false: it is another. */
static bool not_inner(struct schema *s, json_t *options, const char *key, const json_t *schema,
                      int depth)
{
    const json_t *v = json_object_get(schema, key);
    if (!strcmp(key, "properties"))
        not_properties(s, options, v, depth);
    else if (!strcmp(key, "patternProperties"))
        not_patterns(s, options, v, depth);
    else if (!strcmp(key, "propertyNames"))
        not_names(s, options, v, depth);
    else if (!strcmp(key, "additionalProperties"))
        not_additional(s, options, schema, depth);
    else if (!strcmp(key, "anyOf"))
        not_any_of(s, options, v, depth);
    else if (!strcmp(key, "allOf"))
        not_all_of(s, options, v, depth);
    else if (!strcmp(key, "oneOf"))
        not_one_of(s, options, v, depth);
    else if (!strcmp(key, "if"))
        not_if(s, options, schema, depth);
    else if (!strcmp(key, "items"))
        not_items(s, options, schema, depth);
    else if (!strcmp(key, "prefixItems") && !s->old_ref)
        not_prefix(s, options, v, depth);
    else if (!strcmp(key, "contains"))
        not_contains(s, options, schema, depth);
    else if (s->old_ref ? !strcmp(key, "dependencies")
                        : !strcmp(key, "dependentRequired") || !strcmp(key, "dependentSchemas"))
        not_dependent(s, options, v, depth);
    else if (!strcmp(key, KEY_HIDDEN))
        option(options, negate(s, v, depth + 1));
    else
        return false;
    return true;
}

static void not_keyword(struct schema *s, json_t *options, const char *key, const json_t *v)
{
    if (!strcmp(key, "type"))
        not_types(options, v);
    else if (!strcmp(key, "const"))
        option(options, json_pack("{s:[O]}", KEY_NOT_ENUM, v));
    else if (!strcmp(key, "enum"))
        option(options, json_pack("{s:O}", KEY_NOT_ENUM, v));
    else if (!strcmp(key, KEY_NOT_ENUM))
        option(options, json_pack("{s:O}", "enum", v));
    else if (!strcmp(key, "pattern") && json_is_string(v))
        option(options, json_pack("{s:s,s:O}", "type", "string", KEY_NOT_PATTERN, v));
    else if (!strcmp(key, KEY_NOT_PATTERN))
        option(options, json_pack("{s:s,s:O}", "type", "string", "pattern", v));
    else if (!strcmp(key, "required"))
        not_required(options, v);
    else if (!strcmp(key, "multipleOf"))
        option(options, json_pack("{s:s,s:O}", "type", "number", KEY_NOT_MULTIPLE, v));
    else if (!strcmp(key, KEY_NOT_MULTIPLE))
        option(options, json_pack("{s:s,s:O}", "type", "number", "multipleOf", v));
    else if (!strcmp(key, "not") || !strcmp(key, KEY_NEGATED))
        option(options, json_incref((json_t *)v));
    else if (cannot_fail_alone(key))
        s->n_dropped++;
    else
        not_bound(options, key, v);
}

/* A new reference; NULL: nothing can be said. */
static json_t *negate(struct schema *s, const json_t *schema, int depth)
{
    const char *key;
    json_t *v;
    if (json_is_boolean(schema))
        return json_boolean(json_is_false(schema));
    if (depth > DEPTH_MAX || !json_is_object(schema) ||
        !build_work(s->b, 500 + 50 * (uint64_t)json_object_size(schema)))
        return NULL;
    if (json_object_size(schema) == 0)
        return json_false();
    json_t *options = json_array();
    json_object_foreach ((json_t *)schema, key, v) {
        const json_t *target;
        if (s->old_ref && strcmp(key, "$ref") != 0 && json_object_get(schema, "$ref"))
            continue;
        if (strcmp(key, "$ref") != 0) {
            if (!not_inner(s, options, key, schema, depth))
                not_keyword(s, options, key, v);
        } else if ((target = ref_target(s, schema, key))) {
            option(options,
                   depth ? json_pack("{s:O}", KEY_NEGATED, target) : negate(s, target, depth + 1));
        }
    }
    size_t n = json_array_size(options);
    json_t *one = n == 1 ? json_incref(json_array_get(options, 0)) : NULL;
    if (n > 1)
        return json_pack("{s:o}", "anyOf", options);
    json_decref(options);
    return one;
}

const json_t *schema_not(struct schema *s, const json_t *schema)
{
    struct made *m = schema_made(s, schema, MADE_NOT);
    if (!m)
        return NULL;
    if (!m->is_known) {
        uint32_t n_dropped = s->n_dropped;
        json_t *made = negate(s, schema, 0);
        m->schema = made ? schema_make(s, json_pack("{s:o}", KEY_HIDDEN, made)) : NULL;
        m->n_dropped = s->n_dropped - n_dropped;
        m->is_known = true;
    } else {
        s->n_dropped += m->n_dropped;
    }
    return m->schema;
}
