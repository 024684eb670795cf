/* SPDX-License-Identifier: Apache-2.0 */
/* The keywords of a schema that separate strings from other types: type, enum, const, anyOf,
 * oneOf, allOf and references within the parameters. Other keywords are not read. */
#include "common/parsers/types.h"
#include <string.h>
#include <strings.h>
#include "common/parsers/parser_internal.h"
#include "common/parsers/json_scan.h"
#include "common/parsers/lenient_json.h"

#define NESTING_MAX    8    /* anyOf and $ref inside each other */
#define PATH_DEPTH_MAX 60   /* objects and arrays that a path leads through */
#define VISITS_MAX     1000 /* schemas looked at for one answer */

unsigned types_named(const char *name, size_t n)
{
    static const struct {
        const char *name;
        unsigned type;
    } known[] = {
        {"string", TYPE_STRING},   {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
        {"boolean", TYPE_BOOLEAN}, {"null", TYPE_NULL},       {"array", TYPE_ARRAY},
        {"object", TYPE_OBJECT},   {"str", TYPE_STRING},      {"int", TYPE_INTEGER},
        {"float", TYPE_NUMBER},    {"bool", TYPE_BOOLEAN},    {"list", TYPE_ARRAY},
        {"dict", TYPE_OBJECT},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == n && strncasecmp(known[i].name, name, n) == 0)
            return known[i].type;
    return 0;
}

static unsigned type_named(const json_t *name)
{
    return json_is_string(name) ? types_named(json_string_value(name), json_string_length(name))
                                : 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    default:
        return TYPE_NULL;
    }
}

/* One step of a JSON pointer: ~1 is a slash, ~0 a tilde (RFC 6901). */
static void unescape(char *part)
{
    char *to = part;
    for (const char *from = part; *from; from++)
        if (from[0] == '~' && (from[1] == '0' || from[1] == '1'))
            *to++ = *++from == '0' ? '~' : '/';
        else
            *to++ = *from;
    *to = 0;
}

/* "#/$defs/Name" from the root. */
static const json_t *follow(const json_t *root, const char *path)
{
    char part[128];
    if (strncmp(path, "#/", 2) != 0)
        return NULL;
    for (path += 2; root && *path;) {
        size_t n = strcspn(path, "/");
        if (n >= sizeof part)
            return NULL;
        memcpy(part, path, n);
        part[n] = 0;
        unescape(part);
        root = json_object_get(root, part);
        path += n + (path[n] == '/');
    }
    return root;
}

static void cut(struct buf *b, size_t n)
{
    b->len = n;
    if (b->data)
        b->data[n] = 0;
}

/* A step of a path from `at` to `schema` and the rest of it, as a JSON pointer (RFC 6901). */
static bool add_path(const json_t *at, const json_t *schema, int depth, struct buf *out)
{
    const char *key;
    json_t *item;
    size_t i, n = out->len;
    if (at == schema || depth == PATH_DEPTH_MAX)
        return at == schema;
    json_object_foreach ((json_t *)at, key, item) {
        buf_add_char(out, '/');
        for (const char *s = key; *s; s++)
            if (*s == '~' || *s == '/')
                buf_add_str(out, *s == '~' ? "~0" : "~1");
            else
                buf_add_char(out, *s);
        if (add_path(item, schema, depth + 1, out))
            return true;
        cut(out, n);
    }
    json_array_foreach ((json_t *)at, i, item) {
        buf_printf(out, "/%zu", i);
        if (add_path(item, schema, depth + 1, out))
            return true;
        cut(out, n);
    }
    return false;
}

bool types_path(const json_t *root, const json_t *schema, struct buf *out)
{
    size_t n = out->len;
    buf_add_char(out, '#');
    if (add_path(root, schema, 0, out))
        return true;
    cut(out, n);
    return false;
}

static unsigned types_in(const json_t *root, const json_t *schema, int nesting, int *left)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *constant;
    unsigned types = type_named(type);
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)type, i, v)
        types |= type_named(v);
    if (types || nesting == NESTING_MAX || --*left < 0)
        return types;
    json_array_foreach (json_object_get(schema, "enum"), i, v)
        types |= type_of_value(v);
    if ((constant = json_object_get(schema, "const")))
        types |= type_of_value(constant);
    if (ref)
        types |= types_in(root, follow(root, ref), nesting + 1, left);
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        json_array_foreach (json_object_get(schema, lists[k]), i, v) {
            unsigned more = types_in(root, v, nesting + 1, left);
            if (!more && k < 2) /* anything */
                return 0;
            types |= more;
        }
    return types;
}

/* The member's types by all the branches of an object's schema. */
static unsigned types_of_member(const json_t *root, const json_t *schema, const char *name,
                                int nesting, int *left)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *member = json_object_get(json_object_get(schema, "properties"), name);
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    size_t i;
    json_t *v;
    if (member || nesting == NESTING_MAX || --*left < 0)
        return types_in(root, member, 0, left);
    unsigned types = ref ? types_of_member(root, follow(root, ref), name, nesting + 1, left) : 0;
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        json_array_foreach (json_object_get(schema, lists[k]), i, v)
            types |= types_of_member(root, v, name, nesting + 1, left);
    return types;
}

unsigned types_of(const json_t *function, const char *parameter)
{
    const json_t *root = json_object_get(function, "parameters");
    int left = VISITS_MAX;
    return types_of_member(root, root, parameter, 0, &left);
}

unsigned types_in_schema(const json_t *root, const json_t *schema)
{
    int left = VISITS_MAX;
    return types_in(root, schema, 0, &left);
}

const json_t *types_target(const json_t *root, const json_t *schema)
{
    const char *ref;
    for (int i = 0; i < NESTING_MAX && (ref = json_string_value(json_object_get(schema, "$ref")));
         i++)
        schema = follow(root, ref);
    return schema;
}

static const json_t *child_in(const json_t *root, const json_t *schema, const char *name,
                              int nesting, int *left)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *child = json_object_get(json_object_get(schema, "properties"), name);
    size_t i;
    json_t *v;
    if (!child && strcmp(name, "item") == 0)
        child = json_object_get(schema, "items");
    if (!child)
        child = json_object_get(schema, "additionalProperties");
    if (json_is_object(child) || nesting == NESTING_MAX || --*left < 0)
        return child;
    child = ref ? child_in(root, follow(root, ref), name, nesting + 1, left) : NULL;
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        json_array_foreach (json_object_get(schema, lists[k]), i, v)
            child = child ? child : child_in(root, v, name, nesting + 1, left);
    return child;
}

const json_t *types_child(const json_t *root, const json_t *schema, const char *name)
{
    int left = VISITS_MAX;
    return child_in(root, schema, name, 0, &left);
}

static void add_string(const char *text, size_t n, struct buf *out)
{
    buf_add_char(out, '"');
    for (size_t i = 0; i < n; i++)
        lenient_json_escape(out, text[i]);
    buf_add_char(out, '"');
}

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && strncasecmp(text, word, n) == 0;
}

/* The kind of a JSON text by its first byte. */
static unsigned kind_of(const char *json)
{
    json += strspn(json, " \t\r\n");
    switch (*json) {
    case '"':
        return TYPE_STRING;
    case '{':
        return TYPE_OBJECT;
    case '[':
        return TYPE_ARRAY;
    case 't':
    case 'f':
        return TYPE_BOOLEAN;
    case 'n':
        return TYPE_NULL;
    default:
        return strpbrk(json, ".eE") ? TYPE_NUMBER : TYPE_INTEGER | TYPE_NUMBER;
    }
}

/* true, false, null as text of one of these types; NULL: it is none of them. */
static const char *word_value(unsigned types, const char *text, size_t n)
{
    const bool number = types & (TYPE_INTEGER | TYPE_NUMBER | TYPE_STRING);
    if ((types & TYPE_BOOLEAN) && (is_word(text, n, "true") || (!number && is_word(text, n, "1"))))
        return "true";
    if ((types & TYPE_BOOLEAN) && (is_word(text, n, "false") || (!number && is_word(text, n, "0"))))
        return "false";
    if (!(types & TYPE_NULL))
        return NULL;
    const bool none = types & TYPE_NONE || !(types & TYPE_STRING); /* else it is a word */
    return is_word(text, n, "null") ||
                   (none && (is_word(text, n, "none") || is_word(text, n, "nil")))
               ? "null"
               : NULL;
}

/* A string in quotes where none is allowed: what it holds, if that is of one of the types. */
static bool held_value(unsigned types, const char *json, size_t n, struct buf *out)
{
    struct buf text = BUF_INIT, inner = BUF_INIT;
    json_scan_unquote(&text, json, n);
    bool fits =
        lenient_json_whole(buf_str(&text), text.len, &inner) && kind_of(buf_str(&inner)) & types;
    if (fits)
        buf_add(out, inner.data, inner.len);
    if ((text.failed || inner.failed) && !out->failed)
        out->failed = text.failed ? text.failed : inner.failed;
    buf_release(&text);
    buf_release(&inner);
    return fits;
}

void types_value(unsigned types, const char *text, size_t n, struct buf *out)
{
    struct buf json = BUF_INIT;
    const char *from = text, *word;
    const bool maybe_string = !types || types & TYPE_STRING;
    size_t n_in = n;
    while (n_in && is_blank(*from)) {
        from++;
        n_in--;
    }
    while (n_in && is_blank(from[n_in - 1]))
        n_in--;
    if ((word = word_value(types, from, n_in))) {
        buf_add_str(out, word);
        return;
    }
    bool value = types != TYPE_STRING && lenient_json_whole(from, n_in, &json) && !json.failed;
    unsigned kind = value ? kind_of(buf_str(&json)) : 0;
    if (kind == TYPE_NULL && types & TYPE_STRING) /* None, which word_value did not take */
        value = false;
    if (kind & TYPE_NUMBER && !types && !json_scan_valid(from, n_in)) /* 007, 1_000 */
        value = false;
    /* a string in quotes is one only where something else was due; of unknown type it stays text */
    if (!value || (maybe_string ? kind == TYPE_STRING || (types && !(kind & types))
                                : kind == TYPE_STRING && from[0] != '"'))
        add_string(text, n, out);
    else if (kind != TYPE_STRING || !held_value(types, json.data, json.len, out))
        buf_add(out, json.data, json.len);
    if (json.failed && !out->failed)
        out->failed = json.failed;
    buf_release(&json);
}
