/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the values that may satisfy two schemas at once: oneOf needs them before its
 * options are negated, and constraints to find contradictions. The result may include a type
 * without such values; a type that is not included has none. */
#include <math.h>
#include <string.h>
#include "common/buf.h"
#include "engine/grammar/source/schema_constraints.h"

#define FOLLOW_MAX 24    /* references one behind the other */
#define PARTS_MAX  16    /* schemas that hold together */
#define DEPTH_MAX  4     /* properties inside properties */
#define LOOKS_MAX  4000u /* at properties, for one pair of schemas; then they count as common */

/* A schema and all that must hold with it: what $ref and allOf lead to. */
struct parts {
    const json_t *items[PARTS_MAX];
    uint32_t n, types;
};

static const json_t *follow(struct schema *s, const json_t *x)
{
    for (int i = 0; i < FOLLOW_MAX && json_object_get(x, "$ref") && build_ok(s->b); i++)
        x = ref_target(s, x, "$ref");
    return x;
}

/* The values that const or enum leave; a new reference, NULL: they do not stand there. */
static json_t *values_of(const json_t *x)
{
    json_t *v = json_object_get(x, "const");
    if (v)
        return json_pack("[O]", v);
    v = json_object_get(x, "enum");
    return json_is_array(v) ? json_incref(v) : NULL;
}

static uint32_t types_of_values(const json_t *values)
{
    uint32_t types = 0;
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)values, i, v)
        types |= schema_type_of(v);
    return types;
}

static void gather(struct schema *s, struct parts *p, const json_t *x, int depth)
{
    size_t i;
    json_t *item;
    x = follow(s, x);
    if (json_is_false(x))
        p->types = 0;
    if (!json_is_object(x) || p->n == PARTS_MAX || depth > DEPTH_MAX || !build_work(s->b, 50))
        return;
    p->items[p->n++] = x;
    const json_t *type = json_object_get(x, "type");
    json_t *values = values_of(x);
    if (json_is_string(type) || json_is_array(type))
        p->types &= schema_types(type);
    if (values && build_work(s->b, json_array_size(values)))
        p->types &= types_of_values(values);
    json_decref(values);
    json_array_foreach (json_object_get(x, "allOf"), i, item)
        gather(s, p, item, depth + 1);
}

/* The types of the values that both lists hold. */
static uint32_t types_in_both(struct schema *s, const json_t *x, const json_t *y)
{
    uint32_t types = 0;
    size_t i, k;
    json_t *v, *w;
    if (!build_work(s->b, json_array_size(x) * (1 + (uint64_t)json_array_size(y))))
        return 0;
    json_array_foreach ((json_t *)x, i, v)
        json_array_foreach ((json_t *)y, k, w)
            if (schema_same(v, w))
                types |= schema_type_of(v);
    return types;
}

static uint32_t types_by_values(struct schema *s, const struct parts *x, const struct parts *y,
                                uint32_t types)
{
    for (uint32_t i = 0; i < x->n && types; i++) {
        json_t *values = values_of(x->items[i]);
        for (uint32_t k = 0; values && k < y->n && types; k++) {
            json_t *others = values_of(y->items[k]);
            if (others)
                types &= types_in_both(s, values, others);
            json_decref(others);
        }
        json_decref(values);
    }
    return types;
}

bool schema_is_closed(const json_t *x)
{
    return json_is_false(json_object_get(x, "additionalProperties")) &&
           json_object_size(json_object_get(x, "patternProperties")) == 0;
}

bool schemas_forbid(struct schema *s, const json_t *x, const json_t *y, const char *name, int depth)
{
    const json_t *a = json_object_get(json_object_get(x, "properties"), name);
    const json_t *b = json_object_get(json_object_get(y, "properties"), name);
    if (s->n_look >= LOOKS_MAX || !build_work(s->b, 4))
        return false;
    s->n_look++;
    if (json_is_false(a) || json_is_false(b) || (!a && schema_is_closed(x)) ||
        (!b && schema_is_closed(y)))
        return true;
    return a && b && a != b && !schema_common(s, a, b, depth + 1);
}

/* An object that satisfies both cannot be, for a property that x requires. */
static bool requires_too_much(struct schema *s, const struct parts *x, const struct parts *y,
                              int depth)
{
    for (uint32_t r = 0; r < x->n; r++) {
        size_t i;
        json_t *name;
        json_array_foreach (json_object_get(x->items[r], "required"), i, name) {
            const char *text = json_string_value(name);
            for (uint32_t k = 0; text && k < x->n * y->n; k++)
                if (!build_ok(s->b) ||
                    schemas_forbid(s, x->items[k / y->n], y->items[k % y->n], text, depth))
                    return build_ok(s->b);
        }
    }
    return false;
}

uint32_t schema_common(struct schema *s, const json_t *x, const json_t *y, int depth)
{
    struct parts a = {.n = 0, .types = T_ANY}, b = {.n = 0, .types = T_ANY};
    s->n_look = depth ? s->n_look : 0;
    gather(s, &a, x, 0);
    gather(s, &b, y, 0);
    uint32_t types = types_by_values(s, &a, &b, a.types & b.types);
    if (types & T_OBJECT && depth <= DEPTH_MAX && s->n_look < LOOKS_MAX && build_work(s->b, 100) &&
        (requires_too_much(s, &a, &b, depth) || requires_too_much(s, &b, &a, depth)))
        types &= ~(uint32_t)T_OBJECT;
    return build_ok(s->b) ? types : T_ANY;
}

/* Put the value into the set; false: it is there already, or is none that is put there. */
static bool put_value(json_t *set, const json_t *v)
{
    struct buf key = BUF_INIT;
    double number = json_number_value(v);
    bool is_new = false;
    if (json_is_string(v) && !memchr(json_string_value(v), 0, json_string_length(v)))
        buf_printf(&key, "s%s", json_string_value(v));
    else if (json_is_number(v) && fabs(number) < 1e15)
        buf_printf(&key, "n%.17g", number == 0 ? 0 : number); /* -0 is 0 */
    else if (json_is_boolean(v) || json_is_null(v))
        buf_printf(&key, "%c", json_is_null(v) ? '0' : json_is_true(v) ? 't' : 'f');
    if (key.len && !key.failed && !json_object_get(set, buf_str(&key)))
        is_new = json_object_set_new(set, buf_str(&key), json_true()) == 0;
    buf_release(&key);
    return is_new;
}

static bool is_listed(const json_t *names, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)names, i, item)
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    return false;
}

/* Is no value in two options, of the options themselves or (name) of a property of theirs? */
static bool told_apart(struct schema *s, const json_t *options, const char *name)
{
    json_t *set = json_object(), *option, *v;
    bool apart = set != NULL;
    size_t i, k;
    json_array_foreach ((json_t *)options, i, option) {
        const json_t *x = follow(s, option);
        if (name) {
            apart = apart && schema_types(json_object_get(x, "type")) == T_OBJECT &&
                    is_listed(json_object_get(x, "required"), name);
            x = apart ? follow(s, json_object_get(json_object_get(x, "properties"), name)) : NULL;
        }
        json_t *values = apart ? values_of(x) : NULL;
        apart = apart && values && build_work(s->b, 10 + 4 * (uint64_t)json_array_size(values));
        json_array_foreach (values, k, v)
            apart = apart && put_value(set, v);
        json_decref(values);
        if (!apart)
            break;
    }
    json_decref(set);
    return apart;
}

bool schemas_exclusive(struct schema *s, const json_t *options)
{
    const json_t *first = follow(s, json_array_get(options, 0));
    const json_t *required = json_object_get(first, "required");
    bool apart = told_apart(s, options, NULL);
    for (size_t i = 0; !apart && i < json_array_size(required) && build_ok(s->b); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        apart = name && told_apart(s, options, name);
    }
    return apart && build_ok(s->b);
}
