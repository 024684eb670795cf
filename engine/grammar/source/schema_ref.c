/* SPDX-License-Identifier: Apache-2.0 */
/* $ref within one document. Every schema object belongs to a resource: the root, or an object with
 * an $id. A walk stores the resource of each object and the URIs of resources and anchors; a
 * reference is resolved against the resource of its object and looked up. References to other
 * documents are refused: nothing is downloaded.
 *
 * The target of a $dynamicRef depends on the resources that were entered before it: the outermost
 * one with the anchor. Where several schemas have the same anchor, the entered resources are a
 * *scope*: for each name the first resource that has it. A schema that is referred to from another
 * scope is copied for that scope, so that each schema object has one meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/grammar/source/schema.h"

#define URI_MAX     1024
#define OBJECTS_MAX 400000u
#define WALK_MAX    400u /* nesting of the document */
#define DYNAMIC_MAX 8u   /* names of dynamic anchors that several schemas have */
#define SCOPES_MAX  1000u

struct resource {
    const char *uri; /* without fragment; "" = the root has none */
    const json_t *root;
};
struct anchor {
    uint32_t resource;
    const char *name;
    const json_t *schema;
    bool is_dynamic;
};
struct object {
    const json_t *schema;
    uint32_t resource, scope;
};
struct scope {
    uint32_t resources[DYNAMIC_MAX]; /* + 1, by name; 0 = none has it yet */
};
struct copy {
    const json_t *of, *schema;
    uint32_t scope;
};
struct ref_index {
    struct resource *resources;
    struct anchor *anchors;
    struct object *objects; /* [object_size] by hash, schema NULL = free */
    size_t n_resource, n_anchor, n_object, resource_cap, anchor_cap, object_size;
    const char *dynamic[DYNAMIC_MAX]; /* names that several schemas have */
    struct scope *scopes;             /* [0]: nothing entered yet */
    struct copy *copies;
    size_t n_dynamic, n_scope, n_copy, scope_cap, copy_cap;
};

static size_t slot_of(const struct ref_index *r, const json_t *schema)
{
    size_t at = ((uintptr_t)schema >> 4) * 0x9E3779B97F4A7C15u >> 20 & (r->object_size - 1);
    while (r->objects[at].schema && r->objects[at].schema != schema)
        at = (at + 1) & (r->object_size - 1);
    return at;
}

static bool note_object(struct schema *s, const json_t *schema, uint32_t resource, uint32_t scope)
{
    struct ref_index *r = s->refs;
    if (r->n_object * 2 >= r->object_size) {
        size_t size = r->object_size ? r->object_size * 2 : 256;
        struct object *old = r->objects, *fresh = q_calloc(size, sizeof *fresh);
        size_t old_size = r->object_size;
        if (!fresh) {
            expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
            return false;
        }
        if (r->n_object > OBJECTS_MAX) {
            q_free(fresh);
            expr_fail(s->b, Q_TOO_LARGE, "the schema is too large: more than %u objects",
                      OBJECTS_MAX);
            return false;
        }
        r->objects = fresh;
        r->object_size = size;
        for (size_t i = 0; i < old_size; i++)
            if (old[i].schema)
                fresh[slot_of(r, old[i].schema)] = old[i];
        q_free(old);
    }
    size_t at = slot_of(r, schema);
    r->n_object += !r->objects[at].schema;
    r->objects[at] = (struct object){schema, resource, scope};
    return true;
}

/* ref against base, RFC 3986 as far as schemas use it (no "..", no query). out without fragment. */
static void resolve(char *out, size_t size, const char *base, const char *ref, size_t n_ref)
{
    const char *colon = memchr(ref, ':', n_ref), *slash = memchr(ref, '/', n_ref);
    const char *authority = strstr(base, "://");
    size_t keep = 0;
    if (colon && (!slash || colon < slash)) {
        keep = 0;
    } else if (n_ref == 0) {
        keep = strlen(base);
    } else if (ref[0] == '/' && authority) {
        const char *path = strchr(authority + 3, '/');
        keep = path ? (size_t)(path - base) : strlen(base);
    } else if (ref[0] != '/') {
        const char *last = strrchr(base, '/');
        keep = last ? (size_t)(last - base) + 1 : 0;
    }
    snprintf(out, size, "%.*s%.*s", (int)keep, base, (int)n_ref, ref);
}

static uint32_t enter_resource(struct schema *s, const json_t *schema, uint32_t resource)
{
    struct ref_index *r = s->refs;
    struct q_err e = Q_ERR_INIT;
    const char *id = json_string_value(json_object_get(schema, "$id"));
    if (!id && s->old_ref)
        id = json_string_value(json_object_get(schema, "id"));
    size_t n = id ? strcspn(id, "#") : 0;
    if (!id || (n == 0 && schema != s->root) || (s->old_ref && json_object_get(schema, "$ref")))
        return resource; /* beside $ref nothing counts */
    char uri[URI_MAX];
    resolve(uri, sizeof uri, r->n_resource ? r->resources[resource].uri : "", id, n);
    char *copy = build_alloc(s->b, strlen(uri) + 1, 1);
    if (!copy || build_grown(s->b, q_grow(&r->resources, &r->resource_cap, r->n_resource + 1,
                                          sizeof *r->resources, OBJECTS_MAX, &e)))
        return resource;
    memcpy(copy, uri, strlen(uri) + 1);
    if (schema == s->root) {
        r->resources[0].uri = copy;
        return 0;
    }
    r->resources[r->n_resource] = (struct resource){copy, schema};
    return (uint32_t)r->n_resource++;
}

static void note_anchor(struct schema *s, const json_t *schema, uint32_t resource, const char *key)
{
    struct ref_index *r = s->refs;
    struct q_err e = Q_ERR_INIT;
    const char *name = json_string_value(json_object_get(schema, key));
    if (name && !strcmp(key, "$id") && *name++ != '#')
        return;
    if (!name || build_grown(s->b, q_grow(&r->anchors, &r->anchor_cap, r->n_anchor + 1,
                                          sizeof *r->anchors, OBJECTS_MAX, &e)))
        return;
    r->anchors[r->n_anchor++] =
        (struct anchor){resource, name, schema, !strcmp(key, "$dynamicAnchor")};
}

/* Values are not schemas, whatever they look like. */
static bool is_value(const char *key)
{
    return !strcmp(key, "enum") || !strcmp(key, "const") || !strcmp(key, "default") ||
           !strcmp(key, "examples") || !strcmp(key, "example");
}

static void walk(struct schema *s, const json_t *v, uint32_t resource, uint32_t depth)
{
    const char *key;
    json_t *item;
    size_t i;
    if (depth > WALK_MAX) {
        expr_fail(s->b, Q_TOO_LARGE, "the schema is nested more than %u deep", WALK_MAX);
        return;
    }
    if (json_is_array(v))
        json_array_foreach ((json_t *)v, i, item)
            walk(s, item, resource, depth + 1);
    if (!json_is_object(v) || !build_ok(s->b))
        return;
    resource = enter_resource(s, v, resource);
    if (!note_object(s, v, resource, 0))
        return;
    note_anchor(s, v, resource, "$anchor");
    note_anchor(s, v, resource, "$dynamicAnchor");
    note_anchor(s, v, resource, "$id");
    json_object_foreach ((json_t *)v, key, item)
        if (!is_value(key))
            walk(s, item, resource, depth + 1);
}

static const json_t *find_dynamic(const struct ref_index *r, uint32_t resource, const char *name)
{
    for (size_t i = 0; i < r->n_anchor; i++)
        if (r->anchors[i].resource == resource && r->anchors[i].is_dynamic &&
            !strcmp(r->anchors[i].name, name))
            return r->anchors[i].schema;
    return NULL;
}

/* The scope behind `scope` when the resource is entered. */
static uint32_t enter_scope(struct schema *s, uint32_t scope, uint32_t resource)
{
    struct ref_index *r = s->refs;
    struct q_err e = Q_ERR_INIT;
    struct scope next = r->scopes[scope];
    build_work(s->b, 1 + r->n_scope / 4 + r->n_anchor * r->n_dynamic / 2);
    for (size_t k = 0; k < r->n_dynamic; k++)
        if (!next.resources[k] && find_dynamic(r, resource, r->dynamic[k]))
            next.resources[k] = resource + 1;
    for (uint32_t i = 0; i < r->n_scope; i++)
        if (!memcmp(&r->scopes[i], &next, sizeof next))
            return i;
    if (build_grown(s->b, q_grow(&r->scopes, &r->scope_cap, r->n_scope + 1, sizeof *r->scopes,
                                 SCOPES_MAX, &e))) {
        expr_fail(s->b, Q_TOO_LARGE, "$dynamicRef: it resolves in more than %u different ways",
                  SCOPES_MAX);
        return 0;
    }
    r->scopes[r->n_scope] = next;
    return (uint32_t)r->n_scope++;
}

/* The scopes of what was copied from `of`, which itself may be `copy`. */
static void note_scopes(struct schema *s, const json_t *of, json_t *copy, struct object at)
{
    struct ref_index *r = s->refs;
    const char *key;
    json_t *item;
    size_t i;
    json_array_foreach ((json_t *)of, i, item)
        note_scopes(s, item, json_array_get(copy, i), at);
    if (!json_is_object(of) || !build_work(s->b, 50))
        return;
    const struct object *o = &r->objects[slot_of(r, of)];
    if (o->schema && o->resource != at.resource) {
        at.resource = o->resource;
        at.scope = enter_scope(s, at.scope, at.resource);
    }
    if (!note_object(s, copy, at.resource, at.scope))
        return;
    json_object_foreach ((json_t *)of, key, item)
        if (!is_value(key))
            note_scopes(s, item, json_object_get(copy, key), at);
}

/* Names that several schemas have, and if there are any, the scopes of all schemas. */
static void note_dynamic(struct schema *s)
{
    struct ref_index *r = s->refs;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < r->n_anchor && build_work(s->b, 1); i++) {
        size_t n = 0, k = 0;
        while (k < r->n_dynamic && strcmp(r->dynamic[k], r->anchors[i].name) != 0)
            k++;
        if (k < r->n_dynamic || !r->anchors[i].is_dynamic)
            continue;
        for (size_t j = 0; j < r->n_anchor && n < 2 && build_work(s->b, 2); j++)
            n += !strcmp(r->anchors[i].name, r->anchors[j].name);
        if (n < 2)
            continue;
        if (k == DYNAMIC_MAX) {
            expr_fail(s->b, Q_TOO_LARGE, "more than %u dynamic anchors that several schemas share",
                      DYNAMIC_MAX);
            return;
        }
        r->dynamic[r->n_dynamic++] = r->anchors[i].name;
    }
    if (!r->n_dynamic || !build_ok(s->b))
        return;
    if (q_grow(&r->scopes, &r->scope_cap, 1, sizeof *r->scopes, SCOPES_MAX, &e)) {
        expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
        return;
    }
    r->scopes[0] = (struct scope){{0}};
    r->n_scope = 1;
    note_scopes(s, s->root, (json_t *)s->root, (struct object){NULL, UINT32_MAX, 0});
}

/* The target as it is meant from the scope of the reference. */
static const json_t *in_scope(struct schema *s, const json_t *target, uint32_t scope)
{
    struct ref_index *r = s->refs;
    struct q_err e = Q_ERR_INIT;
    const struct object o = r->objects[slot_of(r, target)];
    if (!r->n_dynamic || !o.schema)
        return target;
    scope = enter_scope(s, scope, o.resource);
    if (scope == o.scope || !build_work(s->b, 1 + r->n_copy / 4))
        return target;
    for (size_t i = 0; i < r->n_copy; i++)
        if (r->copies[i].of == target && r->copies[i].scope == scope)
            return r->copies[i].schema;
    json_t *copy = schema_make(s, json_deep_copy(target));
    if (copy &&
        q_grow(&r->copies, &r->copy_cap, r->n_copy + 1, sizeof *r->copies, OBJECTS_MAX, &e)) {
        expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
        return NULL;
    }
    if (!copy)
        return NULL;
    r->copies[r->n_copy++] = (struct copy){target, copy, scope};
    note_scopes(s, target, copy, (struct object){NULL, o.resource, scope});
    return copy;
}

void ref_index_new(struct schema *s)
{
    struct q_err e = Q_ERR_INIT;
    s->refs = q_calloc(1, sizeof *s->refs);
    if (!s->refs || q_grow(&s->refs->resources, &s->refs->resource_cap, 1,
                           sizeof *s->refs->resources, OBJECTS_MAX, &e)) {
        expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
        return;
    }
    s->refs->resources[0] = (struct resource){"", s->root};
    s->refs->n_resource = 1;
    walk(s, s->root, 0, 0);
    if (build_ok(s->b))
        note_dynamic(s);
}

void ref_index_free(struct ref_index *r)
{
    if (!r)
        return;
    q_free(r->resources);
    q_free(r->anchors);
    q_free(r->objects);
    q_free(r->scopes);
    q_free(r->copies);
    q_free(r);
}

/* One step of a JSON pointer, with its escapes; *at behind it. */
static void token(const char **at, char *out, size_t size)
{
    size_t n = 0;
    const char *p = *at;
    for (; *p && *p != '/'; p++) {
        char c = *p;
        unsigned code;
        if (c == '%' && sscanf(p + 1, "%2x", &code) == 1 && p[1] && p[2]) {
            c = (char)code;
            p += 2;
        }
        if (c == '~' && (p[1] == '0' || p[1] == '1'))
            c = *++p == '0' ? '~' : '/';
        if (n + 1 < size)
            out[n++] = c;
    }
    out[n] = '\0';
    *at = p;
}

static const json_t *point(const json_t *from, const char *pointer)
{
    char name[512];
    while (from && *pointer == '/') {
        pointer++;
        token(&pointer, name, sizeof name);
        from = json_is_array(from) ? json_array_get(from, strtoul(name, NULL, 10))
                                   : json_object_get(from, name);
    }
    return from;
}

static const json_t *find_anchor(const struct ref_index *r, uint32_t resource, const char *name)
{
    for (size_t i = 0; i < r->n_anchor; i++)
        if (r->anchors[i].resource == resource && !strcmp(r->anchors[i].name, name))
            return r->anchors[i].schema;
    return NULL;
}

const json_t *ref_target(struct schema *s, const json_t *at, const char *keyword)
{
    const struct ref_index *r = s->refs;
    const char *ref = json_string_value(json_object_get(at, keyword));
    Q_ASSERT(r); /* made before any reference is followed */
    const struct object *o = r->object_size ? &r->objects[slot_of(r, at)] : NULL;
    bool known = o && o->schema;
    uint32_t resource = known ? o->resource : 0, scope = known ? o->scope : 0;
    char uri[URI_MAX];
    const json_t *target = NULL;
    if (!build_work(s->b, 1 + (r->n_anchor + r->n_resource) / 2))
        return NULL;
    if (!ref) {
        schema_fail(s, Q_INVALID, at, keyword, "expected a reference (a string)");
        return NULL;
    }
    size_t n = strcspn(ref, "#");
    const char *fragment = ref[n] ? ref + n + 1 : "";
    if (n) {
        resolve(uri, sizeof uri, r->resources[resource].uri, ref, n);
        for (resource = 0; resource < r->n_resource; resource++)
            if (!strcmp(r->resources[resource].uri, uri))
                break;
    }
    if (resource < r->n_resource)
        target = *fragment && *fragment != '/' ? find_anchor(r, resource, fragment)
                                               : point(r->resources[resource].root, fragment);
    if (target && !strcmp(keyword, "$dynamicRef") && find_dynamic(r, resource, fragment))
        for (size_t k = 0; k < r->n_dynamic; k++)
            if (!strcmp(r->dynamic[k], fragment) && r->scopes[scope].resources[k])
                target = find_dynamic(r, r->scopes[scope].resources[k] - 1, fragment);
    if (!target)
        schema_fail(s, resource < r->n_resource ? Q_INVALID : Q_UNSUPPORTED, at, keyword,
                    "\"%.80s\" is not in this schema%s", ref,
                    resource < r->n_resource ? "" : "; quire does not fetch other documents");
    return target ? in_scope(s, target, scope) : NULL;
}

/* Appends to out the way from v to the schema; false: it is not below. */
static bool find_path(const json_t *v, const json_t *at, char *out, size_t size, int depth)
{
    const char *key;
    json_t *item;
    size_t i, n = strlen(out);
    if (v == at)
        return true;
    if (depth > 60)
        return false;
    json_array_foreach ((json_t *)v, i, item) {
        snprintf(out + n, size - n, "/%zu", i);
        if (find_path(item, at, out, size, depth + 1))
            return true;
        out[n] = '\0';
    }
    json_object_foreach ((json_t *)v, key, item) {
        snprintf(out + n, size - n, "/%s", key);
        if (find_path(item, at, out, size, depth + 1))
            return true;
        out[n] = '\0';
    }
    return false;
}

bool ref_path(const struct schema *s, const json_t *at, char *out, size_t size)
{
    static const char *const definitions[] = {"/$defs/", "/definitions/"};
    const char *base = s->base ? s->base : "#";
    out[0] = 0;
    bool found = find_path(s->root, at, out, size, 0), copied = false;
    for (size_t i = 0; i < 2; i++)
        copied |= strncmp(out, definitions[i], strlen(definitions[i])) == 0;
    char inside[SCHEMA_PATH_MAX];
    snprintf(inside, sizeof inside, "%s", found ? out : "");
    snprintf(out, size, "%s%s", copied ? "#" : base, inside);
    return found;
}
