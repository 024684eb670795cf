/* SPDX-License-Identifier: Apache-2.0 */
/* A call is a tag: its begin contains the function's name, its content the arguments. All calls
 * form one list of tags, inside the section if the format has one. Only schemas are repeated in
 * the source: a list contains each function at most twice (the first call, and the calls after
 * it).
 *
 * Parameters of f(a=1, b=2) are separated by commas, so the required ones come first and each
 * optional one brings its own comma. Without required parameters there is one alternative for each
 * parameter that may be the first. */
#include "common/parsers/call_grammar.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/parsers/parser_internal.h"
#include "common/parsers/types.h"

#define FIRSTS_MAX 24 /* parameters, all optional, of which any may be the first */
#define DEPTH_MAX  8  /* objects and arrays inside each other, where tags say them */

enum writes {
    CALL_GRAMMAR_JSON,
    CALL_GRAMMAR_XML,
    CALL_GRAMMAR_PYTHON,
    CALL_GRAMMAR_BRACES,
    CALL_GRAMMAR_NESTED
};

struct writing {
    const char *name;
    enum writes kind;
    const char *mark;
    const char *section[2], *call[3], *between, *arg[3];
    const char *quote;
    bool bare;    /* no tag of its own begins the calls */
    bool wrapped; /* so do answers without calls, in special tokens */
    const char *thinks[2], *answers;
};
/* clang-format off */
static const struct writing writings[] = {
#define CALL_GRAMMAR(n, k, ...) {.name = n, .kind = CALL_GRAMMAR_##k, __VA_ARGS__},
#include "common/parsers/call_grammar.def"
};
/* clang-format on */

/* A writing with the suffix of a checkpoint's tags in it. */
struct suffixed {
    struct writing w;
    char text[9][2 * FORMAT_TAG_MAX];
};

struct making {
    const struct writing *w;
    const json_t *root;   /* the function's parameters */
    const char *function; /* its name */
    size_t i_tool;        /* its entry in the request's tools */
    bool loose;           /* of values that are JSON only the type counts, which always compiles */
    bool failed;          /* a reason is in why */
    char why[200];
};

static json_t *cannot(struct making *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static json_t *cannot(struct making *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!m->failed)
        vsnprintf(m->why, sizeof m->why, format, args);
    va_end(args);
    m->failed = true;
    return NULL;
}

/* Append, or fail when there is nothing to append. */
static void add(struct making *m, json_t *list, json_t *item)
{
    if (!item || json_array_append_new(list, item) != 0)
        cannot(m, "there is not enough memory");
}

/* ---- formats of a structural tag ---- */

static json_t *fixed(const char *text)
{
    return json_pack("{s:s,s:s}", "type", "const_string", "value", text);
}

/* Where a part is missing, because something failed, so is the whole: json_pack would leave the
 * other parts to nobody. */
static json_t *list_of(const char *type, json_t *elements)
{
    if (!elements)
        return NULL;
    return json_pack("{s:s,s:o}", "type", type, "elements", elements);
}

static json_t *maybe(json_t *format)
{
    return format ? list_of("or", json_pack("[o,o]", format, fixed(""))) : NULL;
}

static json_t *tag(const char *begin, json_t *content, const char *end)
{
    if (!content)
        return NULL;
    return json_pack("{s:s,s:s,s:o,s:s}", "type", "tag", "begin", begin, "content", content, "end",
                     end);
}

static json_t *regex(const char *pattern)
{
    return json_pack("{s:s,s:s}", "type", "regex", "pattern", pattern);
}

/* The tool that a tag calls: errors of a grammar name it. */
static void set_tool(json_t *tag, const char *function, json_int_t index)
{
    json_object_set_new(tag, "function", json_string(function));
    json_object_set_new(tag, "index", json_integer(index));
}

static json_t *tags_behind(const char *between, bool least, bool one, json_t *tags)
{
    if (!tags)
        return NULL;
    return json_pack("{s:s,s:s,s:b,s:b,s:o}", "type", "tags_with_separator", "separator", between,
                     "at_least_one", least, "stop_after_first", one, "tags", tags);
}

/* Text without what would end it. */
static json_t *text_without(const char *end)
{
    return json_pack("{s:s,s:[s]}", "type", "any_text", "excludes", end);
}

/* The types of a schema and no other keyword. */
static json_t *types_only(const struct making *m, const json_t *schema)
{
    static const char *const words[] = {"string", "integer", "number", "boolean",
                                        "null",   "array",   "object"};
    unsigned types = types_in_schema(m->root, schema);
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (types >> i & 1)
            json_array_append_new(list, json_string(words[i]));
    if (json_array_size(list))
        return json_pack("{s:o}", "type", list);
    json_decref(list);
    return json_object();
}

static json_t *json_of(const struct making *m, const json_t *schema)
{
    static const char *const definitions[] = {"$defs", "definitions"};
    json_t *copy = m->loose                 ? types_only(m, schema)
                   : json_is_object(schema) ? json_copy((json_t *)schema)
                                            : json_object();
    for (size_t i = 0; i < 2 && !m->loose; i++) {
        json_t *all = json_object_get(m->root, definitions[i]);
        if (all && copy && !json_object_get(copy, definitions[i]))
            json_object_set(copy, definitions[i], all);
    }
    json_t *format = json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", copy);
    struct buf path = BUF_INIT;
    if (format && schema != m->root && types_path(m->root, schema, &path) && !path.failed)
        json_object_set_new(format, "path", json_string(buf_str(&path))); /* errors start with it */
    buf_release(&path);
    return format;
}

/* ---- values that are not JSON ---- */

static json_t *parameters(struct making *m, const json_t *schema, int depth);
static json_t *value(struct making *m, const json_t *schema, int depth);

/* What ends a text in this format, so that none may hold it. */
static const char *text_end(const struct writing *w)
{
    if (w->kind == CALL_GRAMMAR_BRACES)
        return w->quote;
    if (w->kind == CALL_GRAMMAR_NESTED)
        return "]<]minimax[>[";
    const char *end = w->arg[2];
    return *end == '\n' ? end + 1 : end;
}

static json_t *quoted(const struct making *m, json_t *text)
{
    const char *quote = m->w->quote ? m->w->quote : "";
    return *quote ? tag(quote, text, quote) : text;
}

/* A text with only so many characters. Those that begin what ends it are left out. */
static json_t *sized_text(struct making *m, const json_t *least, const json_t *most)
{
    char pattern[64];
    char stop = text_end(m->w)[0];
    int n = snprintf(pattern, sizeof pattern, "[^%s%c\\n]{%lld,", stop == ']' ? "\\" : "", stop,
                     (long long)json_integer_value(least));
    if (most)
        n += snprintf(pattern + n, sizeof pattern - (size_t)n, "%lld",
                      (long long)json_integer_value(most));
    snprintf(pattern + n, sizeof pattern - (size_t)n, "}");
    return regex(pattern);
}

/* Is there a keyword in the schema that is none of these (and none that says nothing)? */
static const char *other_keyword(const json_t *schema, const char *const *known)
{
    static const char *const notes[] = {
        "title", "description", "default", "examples",   "$schema",  "$id",       "$comment",
        "$defs", "definitions", "strict",  "deprecated", "readOnly", "writeOnly", NULL};
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)schema, key, v) {
        size_t i = 0, k = 0;
        while (notes[i] && strcmp(notes[i], key) != 0)
            i++;
        while (known[k] && strcmp(known[k], key) != 0)
            k++;
        if (!notes[i] && !known[k])
            return key;
    }
    return NULL;
}

/* A parameter that may be a string: any text, as far as nothing more is asked of it. */
static json_t *text_value(struct making *m, const json_t *schema)
{
    static const char *const known[] = {"type", "minLength", "maxLength", "anyOf", "oneOf", NULL},
                             *const plain[] = {"type", NULL};
    static const char *const lists[] = {"anyOf", "oneOf"};
    const json_t *least = json_object_get(schema, "minLength"),
                 *most = json_object_get(schema, "maxLength");
    const char *other = other_keyword(schema, known);
    size_t i;
    json_t *v;
    for (size_t k = 0; k < 2 && !other; k++)
        json_array_foreach (json_object_get(schema, lists[k]), i, v)
            other = other ? other : other_keyword(v, plain);
    if (other)
        return cannot(m, "it cannot express \"%.40s\" of a string", other);
    return quoted(m, least || most ? sized_text(m, least, most) : text_without(text_end(m->w)));
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* enum, const: the values as they are written. */
static json_t *listed(struct making *m, const json_t *values)
{
    json_t *all = json_array(), *v;
    size_t i;
    json_array_foreach ((json_t *)values, i, v) {
        struct buf text = BUF_INIT;
        bool string = json_is_string(v);
        bool python = m->w->kind == CALL_GRAMMAR_PYTHON;
        if (python && (json_is_boolean(v) || json_is_null(v)))
            buf_add_str(&text, json_is_true(v) ? "True" : json_is_null(v) ? "None" : "False");
        else if (string && !python)
            buf_add(&text, json_string_value(v), json_string_length(v));
        else
            json_dump_callback(v, add_piece, &text, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        if (string && !python && strstr(buf_str(&text), text_end(m->w)))
            cannot(m, "a value of \"enum\" contains its closing tag");
        json_t *one = text.failed ? NULL : fixed(buf_str(&text));
        add(m, all, string && !python ? quoted(m, one) : one);
        buf_release(&text);
    }
    return list_of("or", all);
}

static json_t *python_value(struct making *m, const json_t *schema, unsigned types)
{
    static const char *const known[] = {"type", NULL};
    json_t *all = json_array();
    if (!(types & (TYPE_BOOLEAN | TYPE_NULL)) || other_keyword(schema, known)) {
        add(m, all, json_of(m, schema)); /* JSON inside: the parser reads both */
        return list_of("or", all);
    }
    if (types & TYPE_BOOLEAN) {
        add(m, all, fixed("True"));
        add(m, all, fixed("False"));
    }
    if (types & TYPE_NULL)
        add(m, all, fixed("None"));
    static const struct {
        unsigned type;
        const char *name;
    } rest[] = {
        {TYPE_STRING, "string"}, {TYPE_INTEGER, "integer"}, {TYPE_NUMBER, "number"},
        {TYPE_ARRAY, "array"},   {TYPE_OBJECT, "object"},
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (types & rest[i].type) {
            json_t *one = json_pack("{s:s}", "type", rest[i].name);
            add(m, all, json_of(m, one));
            json_decref(one);
        }
    return list_of("or", all);
}

static json_t *items(struct making *m, const json_t *schema, int depth)
{
    static const char *const known[] = {"type", "items", NULL};
    const char *other = other_keyword(schema, known);
    bool braces = m->w->kind == CALL_GRAMMAR_BRACES;
    if (other)
        return cannot(m, "it cannot express \"%.40s\" of an array", other);
    json_t *one = value(m, json_object_get(schema, "items"), depth + 1);
    json_t *each =
        braces ? tag("", one, "") : tag("]<]minimax[>[<item>", one, "]<]minimax[>[</item>");
    json_t *all =
        tags_behind(braces ? "," : "", !braces, false, each ? json_pack("[o]", each) : NULL);
    return braces ? tag("[", all, "]") : all;
}

/* Objects and arrays as tags or braces of the format. */
static json_t *composed(struct making *m, const json_t *schema, unsigned types, int depth)
{
    if (depth == DEPTH_MAX)
        return cannot(m, "the schema is nested too deeply");
    if (types == TYPE_ARRAY)
        return items(m, schema, depth);
    json_t *inner = parameters(m, schema, depth + 1);
    return m->w->kind == CALL_GRAMMAR_BRACES ? tag("{", inner, "}") : inner;
}

static json_t *value(struct making *m, const json_t *schema, int depth)
{
    const json_t *target = types_target(m->root, schema);
    const json_t *constant = json_object_get(target, "const"),
                 *choice = json_object_get(target, "enum");
    unsigned types = types_in_schema(m->root, target);
    bool tree = m->w->kind == CALL_GRAMMAR_BRACES || m->w->kind == CALL_GRAMMAR_NESTED;
    if (choice)
        return listed(m, choice);
    if (constant) {
        json_t *one = json_pack("[O]", constant), *all = listed(m, one);
        json_decref(one);
        return all;
    }
    if (m->w->kind == CALL_GRAMMAR_PYTHON)
        return python_value(m, target, types);
    if (types & TYPE_STRING || !types)
        return text_value(m, target);
    if (!tree || !(types & (TYPE_ARRAY | TYPE_OBJECT)))
        return json_of(m, target);
    if (types != TYPE_ARRAY && types != TYPE_OBJECT)
        return cannot(m, "it cannot express a value of more than one type");
    return composed(m, target, types, depth);
}

/* ---- parameters ---- */

/* What stands before a value, or after it. */
static void put_arg(const struct making *m, struct buf *out, const char *text, const char *name,
                    const json_t *schema)
{
    static const char *const words[] = {"string", "number", "number", "boolean",
                                        "null",   "array",  "object"};
    unsigned types = types_in_schema(m->root, schema);
    bool string = !types || types & TYPE_STRING;
    size_t k = 0;
    while (!string && k < 6 && !(types >> k & 1))
        k++;
    for (; *text; text++)
        if (*text == '$')
            buf_add_str(out, string ? "true" : "false");
        else if (*text == '@')
            buf_add_str(out, words[k]);
        else if (*text == '%')
            buf_add_str(out, name);
        else
            buf_add_char(out, *text);
}

static json_t *parameter(struct making *m, const char *comma, const char *name,
                         const json_t *schema, int depth)
{
    const struct writing *w = m->w;
    struct buf begin = BUF_INIT, end = BUF_INIT;
    buf_add_str(&begin, comma);
    buf_add_str(&begin, w->arg[0]);
    buf_add_str(&begin, name);
    put_arg(m, &begin, w->arg[1], name, schema);
    put_arg(m, &end, w->arg[2], name, schema);
    json_t *one = tag(buf_str(&begin), value(m, schema, depth), buf_str(&end));
    if (begin.failed || end.failed)
        cannot(m, "there is not enough memory");
    buf_release(&begin);
    buf_release(&end);
    return one;
}

static bool is_required(const json_t *schema, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach (json_object_get(schema, "required"), i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), name) == 0)
            return true;
    return false;
}

/* The optional ones, each with its comma, behind the one called `after` (NULL: all). */
static void add_optional(struct making *m, json_t *out, const json_t *schema, const char *after,
                         int depth)
{
    const char *comma = m->w->kind == CALL_GRAMMAR_PYTHON ? ", " : ",", *name;
    json_t *v;
    bool on = !after;
    json_object_foreach (json_object_get(schema, "properties"), name, v) {
        if (on && !is_required(schema, name))
            add(m, out, maybe(parameter(m, comma, name, v, depth)));
        on |= after && strcmp(name, after) == 0;
    }
}

static json_t *with_commas(struct making *m, const json_t *schema, int depth)
{
    const json_t *properties = json_object_get(schema, "properties");
    const char *comma = m->w->kind == CALL_GRAMMAR_PYTHON ? ", " : ",", *name;
    json_t *required = json_array(), *v;
    json_object_foreach ((json_t *)properties, name, v)
        if (is_required(schema, name))
            add(m, required, parameter(m, json_array_size(required) ? comma : "", name, v, depth));
    if (json_array_size(required)) {
        add_optional(m, required, schema, NULL, depth);
        return list_of("sequence", required);
    }
    json_decref(required);
    json_t *cases = json_pack("[o]", fixed(""));
    if (json_object_size(properties) > FIRSTS_MAX)
        cannot(m, "more than %d parameters, none of them required", FIRSTS_MAX);
    else
        json_object_foreach ((json_t *)properties, name, v) {
            json_t *one = json_pack("[o]", parameter(m, "", name, v, depth));
            add_optional(m, one, schema, name, depth);
            add(m, cases, list_of("sequence", one));
        }
    return list_of("or", cases);
}

/* An object's members as the format writes parameters. */
static json_t *parameters(struct making *m, const json_t *schema, int depth)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties",
                                        NULL};
    const char *other = other_keyword(schema, known), *name;
    const json_t *properties = json_object_get(schema, "properties");
    json_t *all, *v;
    size_t i;
    if (other)
        return cannot(m, "it cannot express \"%.40s\" of an object", other);
    json_array_foreach (json_object_get(schema, "required"), i, v)
        if (!json_string_value(v) || !json_object_get(properties, json_string_value(v)))
            return cannot(m, "a required parameter is not in \"properties\"");
    json_object_foreach ((json_t *)properties, name, v)
        if (!*name || strlen(name) > FORMAT_NAME_MAX || strpbrk(name, "<>\"'&{}[]()=:, \n\t"))
            return cannot(m, "it cannot express the parameter name \"%.40s\"", name);
    if (m->w->kind == CALL_GRAMMAR_PYTHON || m->w->kind == CALL_GRAMMAR_BRACES)
        return with_commas(m, schema, depth);
    all = json_pack("[o]", fixed(""));
    json_object_foreach ((json_t *)properties, name, v) {
        json_t *one = parameter(m, "", name, v, depth);
        add(m, all, is_required(schema, name) ? one : maybe(one));
    }
    return list_of("sequence", all);
}

/* Arguments of a function that is not held to its schema. */
static json_t *free_arguments(struct making *m)
{
    json_t *any = json_pack("{s:s,s:{}}", "type", "object", "properties"), *all;
    json_t *properties = json_object_get(any, "properties"), *v;
    const char *key;
    json_object_foreach (json_object_get(m->root, "properties"), key, v)
        json_object_set_new(properties, key, json_object());
    m->failed = false;
    all = parameters(m, any, 0);
    json_decref(any);
    return all;
}

/* ---- calls ---- */

/* What stands before the name, which may have the name in it already. */
static void put_before_name(const struct making *m, struct buf *out)
{
    for (const char *s = m->w->call[0]; *s; s++)
        if (*s == '%')
            buf_add_str(out, m->function);
        else
            buf_add_char(out, *s);
}

/* The function's name as it stands in the format, after text that may end in a quote. */
static void put_name(const struct making *m, struct buf *out)
{
    struct buf json = BUF_INIT;
    if (m->w->kind != CALL_GRAMMAR_JSON || !strchr(m->w->call[1], '"')) {
        buf_add_str(out, m->function);
        return;
    }
    buf_add_json_str(&json, m->function, strlen(m->function));
    if (json.len >= 2)
        buf_add(out, json.data + 1, json.len - 2);
    buf_release(&json);
}

/* Can it be written in formats whose names stand in no quotes? */
static bool is_name(const char *function)
{
    return !strpbrk(function, "<>\"'&{}[]()=, \n\t");
}

static json_t *arguments(struct making *m, const json_t *function, bool keep_schema)
{
    m->root = json_object_get(function, "parameters");
    m->function = json_string_value(json_object_get(function, "name"));
    m->failed = false;
    bool known = json_is_object(m->root) && json_object_size(m->root);
    if (m->w->kind == CALL_GRAMMAR_JSON)
        return keep_schema && known && !m->loose ? json_of(m, m->root)
                                                 : json_pack("{s:s,s:{s:s}}", "type", "json_schema",
                                                             "json_schema", "type", "object");
    if (!is_name(m->function))
        return cannot(m, "it cannot express the name of the function");
    return keep_schema ? parameters(m, types_target(m->root, m->root), 0) : free_arguments(m);
}

static json_t *call(struct making *m, const json_t *function, json_t *content)
{
    struct buf begin = BUF_INIT;
    const struct writing *w = m->w;
    m->function = json_string_value(json_object_get(function, "name"));
    put_before_name(m, &begin);
    put_name(m, &begin);
    buf_add_str(&begin, w->call[1]);
    char *number =
        strchr(w->call[0], '#') || strchr(w->call[1], '#') ? strchr(begin.data, '#') : NULL;
    if (number && content && !begin.failed) { /* the tag's begin is what is before the number */
        content = list_of("sequence", json_pack("[o,o,o]", regex("0|[1-9][0-9]{0,2}"),
                                                fixed(number + 1), content));
        *number = 0;
    }
    json_t *one = tag(buf_str(&begin), content, w->call[2]);
    set_tool(one, m->function, (json_int_t)m->i_tool);
    if (begin.failed)
        cannot(m, "there is not enough memory");
    buf_release(&begin);
    return one;
}

/* All functions' calls, one behind the other. */
static json_t *calls(const struct writing *w, json_t *tags, bool parallel)
{
    return tags_behind(w->between ? w->between : "", true, !parallel || !w->between,
                       json_incref(tags));
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

static json_t *section(const struct writing *w, json_t *tags, bool parallel)
{
    return w->section[0] ? tag(w->section[0], calls(w, tags, parallel), w->section[1])
                         : calls(w, tags, parallel);
}

/* The same tags, each behind a text. */
static json_t *behind(const char *before, const json_t *tags)
{
    json_t *all = json_array(), *one;
    size_t i;
    json_array_foreach ((json_t *)tags, i, one) {
        struct buf begin = BUF_INIT;
        buf_add_str(&begin, before);
        buf_add_str(&begin, json_string_value(json_object_get(one, "begin")));
        json_t *copy = json_copy(one);
        json_object_set_new(copy, "begin", json_string(buf_str(&begin)));
        json_array_append_new(all, copy);
        buf_release(&begin);
    }
    return all;
}

/* Without a tag of their own calls begin with the first one's name. */
static json_t *among_bare(const struct writing *w, const json_t *tags, bool parallel)
{
    json_t *triggers = json_array(), *all = behind(or_empty(w->section[0]), tags), *one;
    size_t i;
    json_array_foreach (all, i, one) {
        json_t *arguments = tag("", json_incref(json_object_get(one, "content")), "");
        set_tool(arguments, json_string_value(json_object_get(one, "function")),
                 json_integer_value(json_object_get(one, "index")));
        json_object_del(one, "function"); /* calls of others follow inside this tag */
        json_t *content = json_pack("[o,o]", arguments, fixed(w->call[2]));
        if (parallel)
            json_array_append_new(
                content, tags_behind("", false, false, behind(or_empty(w->between), tags)));
        json_object_set_new(one, "content", list_of("sequence", content));
        json_object_set_new(one, "end", json_string(or_empty(w->section[1])));
        json_array_append(triggers, json_object_get(one, "begin"));
    }
    return json_pack("{s:s,s:o,s:b,s:o}", "type", "triggered_tags", "triggers", triggers,
                     "stop_after_first", !parallel, "tags", all);
}

/* Calls among free text: what begins one must become one. */
static json_t *among_text(const struct writing *w, json_t *tags, bool parallel)
{
    if (w->bare)
        return among_bare(w, tags, parallel);
    const char *first = w->section[0] ? w->section[0] : w->call[0];
    const char *mark_end = w->wrapped ? strrchr(first, '>') : NULL; /* its special tokens alone */
    int n = mark_end ? (int)(mark_end + 1 - first) : (int)strlen(first);
    return json_pack("{s:s,s:[s%],s:b,s:b,s:o}", "type", "triggered_tags", "triggers", first, n,
                     "stop_after_first", !parallel, "special_tokens", w->wrapped, "tags",
                     w->section[0] ? json_pack("[o]", section(w, tags, parallel))
                                   : json_incref(tags));
}

/* Calls alone, or the answer alone. */
static json_t *calls_or(const struct writing *w, json_t *tags, const struct call_grammar *f)
{
    json_t *made = section(w, tags, f->parallel);
    return made ? list_of("or", json_pack("[o,O]", made, f->answer)) : NULL;
}

/* The channels of one turn: what the model thinks, then calls, or its answer. */
static json_t *channels(const struct writing *w, json_t *tags, const struct call_grammar *f)
{
    json_t *last = section(w, tags, f->parallel);
    json_t *answer =
        f->answer ? json_incref((json_t *)f->answer) : json_pack("{s:s}", "type", "any_text");
    if (f->required)
        json_decref(answer);
    else
        last = list_of("or", json_pack("[o,o]", last, tag(w->answers, answer, "")));
    json_t *thinks = tag(w->thinks[0], json_pack("{s:s}", "type", "any_text"), w->thinks[1]);
    return list_of("sequence", json_pack("[o,o]", maybe(thinks), last));
}

/* ---- the request ---- */

static const struct writing *writing_of(const struct call_grammar *f)
{
    for (size_t i = 0; i < sizeof writings / sizeof *writings; i++)
        if (strcmp(writings[i].name, f->tool) == 0 &&
            (!writings[i].mark || (f->template && strstr(f->template, writings[i].mark))))
            return &writings[i];
    return NULL;
}

/* The row's texts with the suffix that the template says in place of TAG_SUFFIX. */
static const struct writing *with_suffix(const struct writing *w, const struct call_grammar *f,
                                         struct suffixed *out)
{
    char suffix[TAG_SUFFIX_MAX + 1];
    out->w = *w;
    const char **const texts[] = {&out->w.section[0], &out->w.section[1], &out->w.call[0],
                                  &out->w.call[1],    &out->w.call[2],    &out->w.between,
                                  &out->w.arg[0],     &out->w.arg[1],     &out->w.arg[2]};
    parser_suffix(f->template ? f->template : "", suffix);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n = 0;
        if (!*texts[i] || !strchr(*texts[i], *TAG_SUFFIX))
            continue;
        for (const char *s = *texts[i]; *s; s++)
            n +=
                (size_t)snprintf(out->text[i] + n, sizeof out->text[i] - n,
                                 *s == *TAG_SUFFIX ? "%s" : "%.1s", *s == *TAG_SUFFIX ? suffix : s);
        *texts[i] = out->text[i];
    }
    return &out->w;
}

bool call_grammar_thinks(const char *tool)
{
    for (size_t i = 0; i < sizeof writings / sizeof *writings; i++)
        if (strcmp(writings[i].name, tool) == 0)
            return writings[i].thinks[0];
    return false;
}

static bool is_strict(const json_t *function)
{
    return json_is_true(json_object_get(function, "strict"));
}

/* The index in the request's tools of tools[i], which calls this function. */
static size_t entry_of(const struct call_grammar *f, size_t i, const char *name)
{
    size_t k;
    json_t *tool;
    json_array_foreach ((json_t *)f->listed, k, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *s = json_string_value(json_object_get(function ? function : tool, "name"));
        if (s && strcmp(s, name) == 0)
            return k;
    }
    return i;
}

static enum q_code add_calls(const struct call_grammar *f, const struct writing *w, json_t *tags,
                             struct q_err *e)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)f->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        struct making m = {
            .w = w,
            .i_tool = name ? entry_of(f, i, name) : i,
            .loose = !f->required && !is_strict(function),
        };
        if (!name || (f->name && strcmp(name, f->name) != 0))
            continue;
        json_t *content = arguments(&m, function, f->required || f->answer || is_strict(function));
        if (m.failed && !is_strict(function)) {
            json_decref(content);
            content = free_arguments(&m);
        }
        if (m.failed && is_name(name) && !f->required && !is_strict(function)) {
            json_decref(content); /* a parameter whose name cannot be written: any arguments */
            m.failed = false;
            content = text_without(w->call[2]);
        }
        if (m.failed)
            json_decref(content);
        json_t *one = m.failed ? NULL : call(&m, function, content);
        if (m.failed)
            json_decref(one);
        if (m.failed || !one || json_array_append_new(tags, one) != 0) {
            return q_fail(e, Q_UNSUPPORTED,
                          "tools: entry %zu, function \"%.60s\": calls use the format of the "
                          "tool-call parser %s: %s",
                          m.i_tool, name, f->tool, m.failed ? m.why : "there is not enough memory");
        }
    }
    if (json_array_size(tags) == 0)
        return q_fail(e, Q_INVALID, "tool_choice: \"tools\" has no function \"%.60s\"",
                      f->name ? f->name : "");
    return Q_OK;
}

static bool any_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)tools, i, tool)
        if (is_strict(json_object_get(tool, "function")))
            return true;
    return false;
}

enum q_code call_grammar_tools(json_t **out, const struct call_grammar *f, struct q_err *e)
{
    struct suffixed suffixed;
    const struct writing *w = writing_of(f);
    const char *what = f->required ? "tool_choice: a call cannot be required"
                                   : "tools: \"strict\" is not supported";
    *out = NULL;
    if (!f->required && !f->answer && !any_strict(f->tools))
        return Q_OK;
    if (!w && f->answer && !f->required)
        return Q_OK;
    if (!w)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s with the tool-call parser %s: its format has no grammar", what, f->tool);
    w = with_suffix(w, f, &suffixed);
    json_t *tags = json_array(), *format = NULL;
    enum q_code rc = tags ? add_calls(f, w, tags, e)
                          : q_fail(e, Q_NO_MEMORY, "out of memory for the tools of the request");
    if (rc == Q_OK) {
        format = w->thinks[0]  ? channels(w, tags, f)
                 : f->required ? section(w, tags, f->parallel)
                 : f->answer   ? calls_or(w, tags, f)
                               : among_text(w, tags, f->parallel);
        *out = json_pack("{s:s,s:o}", "type", "structural_tag", "format", format);
        if (!*out)
            rc = q_fail(e, Q_NO_MEMORY, "out of memory for the tools of the request");
    }
    json_decref(tags);
    return rc;
}
