/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose arguments are nested tags, each after a mark (MiniMax M3):
 *
 *   M<invoke name="f">M<city>Bonn M</city>M<to>M<item>a M</item>M<item>b M</item>M</to>M</invoke>
 *
 * (without the blanks; M is ]<]minimax[>[, the row's key_open). A level is an object, an array (if
 * its members are named item, or by the schema) or text, whose type is given by the request's
 * tools. A string is passed on byte by byte, other text when it is complete.
 *
 *   NAME -">"-> BODY: text and tags; a tag in a wrong place is text of the value
 *
 * A repeated member becomes an array, so the content of a parameter is held until the parameter
 * ends. Blanks between tags are layout. Text next to members belongs to no value and is dropped. */
#include "common/parsers/parser_internal.h"
#include <string.h>
#include "common/parsers/lenient_json.h"
#include "common/parsers/types.h"

#define LEVELS_MAX 32
#define TAG_MAX    (FORMAT_NAME_MAX + 32) /* bytes of the mark and the tag behind it */

enum kind { UNKNOWN, TEXT_VALUE, STRING, OBJECT, ARRAY };

struct level {
    enum kind kind;
    bool any;        /* a member came */
    bool repeated;   /* the last one came more than once: its array is open */
    size_t value_at; /* where in `held` its value begins */
    const json_t *schema;
    char name[FORMAT_NAME_MAX + 1];
};

struct nested {
    bool in_name;
    struct buf name, text; /* text: of the value, until its type is certain */
    char tag[TAG_MAX];     /* bytes that may be a tag */
    size_t n_tag;
    uint32_t n_level; /* 1 = the arguments themselves */
    bool holding;     /* within a parameter that has members */
    struct buf held;  /* its value */
    struct level levels[LEVELS_MAX];
};

static void nested_begin(struct parser *p)
{
    struct nested *x = format_state(p);
    x->in_name = true;
    x->n_tag = 0;
    x->n_level = 0;
    x->holding = false;
    buf_reset(&x->held);
    buf_reset(&x->name);
    buf_reset(&x->text);
}

static struct level *top(struct nested *x)
{
    return &x->levels[x->n_level - 1];
}

static const json_t *parameters(const struct parser *p, const struct nested *x)
{
    return json_object_get(format_function(p, buf_str(&x->name)), "parameters");
}

/* ---- what goes out ---- */

static void put_bytes(struct parser *p, struct nested *x, const char *text, size_t n)
{
    if (x->holding)
        buf_add(&x->held, text, n);
    else
        call_args(p, text, n);
}

static void put_text(struct parser *p, struct nested *x, const char *text)
{
    put_bytes(p, x, text, strlen(text));
}

static void put_escaped(struct parser *p, struct nested *x, const char *text, size_t n)
{
    struct buf piece = BUF_INIT;
    for (size_t i = 0; i < n; i++)
        lenient_json_escape(&piece, text[i]);
    kept(p, &piece);
    put_bytes(p, x, buf_str(&piece), piece.len);
    buf_release(&piece);
}

/* The value that came last becomes the first of an array. */
static void make_array(struct nested *x, struct level *l)
{
    buf_add_char(&x->held, ' ');
    if (x->held.failed)
        return;
    memmove(x->held.data + l->value_at + 1, x->held.data + l->value_at,
            x->held.len - 1 - l->value_at);
    x->held.data[l->value_at] = '[';
    l->repeated = true;
}

static void end_array(struct parser *p, struct nested *x, struct level *l)
{
    if (l->repeated)
        put_text(p, x, "]");
    l->repeated = false;
}

static void push(struct nested *x, const char *name, size_t n, const json_t *schema)
{
    struct level *l = &x->levels[x->n_level++];
    l->kind = UNKNOWN;
    l->any = l->repeated = false;
    l->schema = schema;
    memcpy(l->name, name, n);
    l->name[n] = 0;
    buf_reset(&x->text);
}

/* What stands before a member: its name, or nothing but a comma if it comes again. */
static void put_name(struct parser *p, struct nested *x, const char *name, size_t n)
{
    struct level *l = top(x);
    const char *last = x->levels[x->n_level].name; /* of the level that was closed last */
    struct buf head = BUF_INIT;
    bool again = x->holding && l->kind == OBJECT && l->any && strlen(last) == n &&
                 memcmp(last, name, n) == 0;
    if (again && !l->repeated)
        make_array(x, l);
    else if (!again)
        end_array(p, x, l);
    buf_add_str(&head, l->any ? ", " : "");
    l->any = true;
    if (l->kind == OBJECT && !again) {
        buf_add_json_str(&head, name, n);
        buf_add_str(&head, ": ");
    }
    kept(p, &head);
    put_bytes(p, x, buf_str(&head), head.len);
    buf_release(&head);
    if (!again)
        l->value_at = x->held.len;
}

/* A member begins: what is before it, and the kind of its value as far as that is known. */
static enum part open_member(struct parser *p, struct nested *x, const char *name, size_t n)
{
    struct level *l = top(x);
    const json_t *root = parameters(p, x);
    if (x->n_level == LEVELS_MAX)
        return PART_BAD;
    x->holding |= x->n_level == 2;
    if (l->kind == UNKNOWN) {
        unsigned types = types_in_schema(root, l->schema);
        bool item = n == 4 && memcmp(name, "item", 4) == 0;
        l->kind = types & TYPE_OBJECT || !(item || types & TYPE_ARRAY) ? OBJECT : ARRAY;
        put_text(p, x, l->kind == ARRAY ? "[" : "{");
    }
    put_name(p, x, name, n);
    const json_t *outer = l->schema;
    push(x, name, n, NULL);
    l = top(x);
    l->schema =
        types_child(root, outer, x->levels[x->n_level - 2].kind == ARRAY ? "item" : l->name);
    if (types_in_schema(root, l->schema) == TYPE_STRING) {
        l->kind = STRING;
        put_text(p, x, "\"");
    }
    return PART_MORE;
}

static void close_member(struct parser *p, struct nested *x)
{
    struct level *l = top(x);
    struct buf value = BUF_INIT;
    unsigned types = types_in_schema(parameters(p, x), l->schema);
    size_t n = x->text.len;
    while (n && is_blank(x->text.data[n - 1]))
        n--;
    end_array(p, x, l);
    if (l->kind == STRING)
        put_text(p, x, "\"");
    else if (l->kind == OBJECT || l->kind == ARRAY)
        put_text(p, x, l->kind == ARRAY ? "]" : "}");
    else if (n == 0 && types & (TYPE_ARRAY | TYPE_OBJECT) && !(types & TYPE_STRING))
        put_text(p, x, types & TYPE_ARRAY ? "[]" : "{}");
    else
        types_value(types, buf_str(&x->text), x->text.len, &value);
    kept(p, &value);
    put_bytes(p, x, buf_str(&value), value.len);
    buf_release(&value);
    buf_reset(&x->text);
    if (--x->n_level > 1 || !x->holding)
        return;
    x->holding = false;
    put_bytes(p, x, buf_str(&x->held), x->held.len);
    buf_reset(&x->held);
}

static void text_bytes(struct parser *p, struct nested *x, const char *text, size_t n)
{
    struct level *l = top(x);
    if (l->kind == STRING) {
        put_escaped(p, x, text, n);
    } else if (l->kind == UNKNOWN || l->kind == TEXT_VALUE) {
        buf_add(&x->text, text, n);
        for (size_t i = 0; i < n; i++)
            if (!is_blank(text[i]))
                l->kind = TEXT_VALUE;
    }
}

/* ---- tags ---- */

/* How far tag[0..n) is a tag: its name in *name, *n_name when it is whole. */
static enum part tag_part(const char *mark, const char *tag, size_t n, size_t *from, bool *closing)
{
    size_t n_mark = strlen(mark), at;
    if (memcmp(mark, tag, n < n_mark ? n : n_mark) != 0)
        return PART_BAD;
    for (at = n_mark; at < n && is_blank(tag[at]);)
        at++;
    if (at >= n)
        return n < TAG_MAX ? PART_MORE : PART_BAD;
    if (tag[at++] != '<')
        return PART_BAD;
    *closing = at < n && tag[at] == '/';
    at += *closing;
    *from = at;
    for (; at < n; at++)
        if (tag[at] == '>')
            return at > *from ? PART_END : PART_BAD;
        else if ((unsigned char)tag[at] <= ' ' || strchr("<&\"", tag[at]))
            return PART_BAD;
    return n < TAG_MAX ? PART_MORE : PART_BAD;
}

/* A tag stands there. PART_PAST: it is text. */
static enum part take_tag(struct parser *p, struct nested *x, const char *name, size_t n,
                          bool closing)
{
    struct level *l = top(x);
    if (closing && x->n_level == 1) {
        if (n != 6 || memcmp(name, "invoke", 6) != 0)
            return PART_BAD;
        if (!call_announced(p))
            call_announce(p, x->name.data, x->name.len);
        put_text(p, x, l->any ? "}" : "{}");
        call_end(p);
        return PART_END;
    }
    if (closing) {
        if (strlen(l->name) == n && memcmp(l->name, name, n) == 0)
            close_member(p, x);
        else
            return l->kind == OBJECT || l->kind == ARRAY ? PART_BAD : PART_PAST;
        return PART_MORE;
    }
    if (l->kind == STRING || l->kind == TEXT_VALUE)
        return PART_PAST;
    if (n > FORMAT_NAME_MAX)
        return PART_BAD;
    if (!call_announced(p))
        call_announce(p, x->name.data, x->name.len);
    return open_member(p, x, name, n);
}

/* Blanks aside, between the members of the arguments there are only tags. */
static enum part plain(struct parser *p, struct nested *x, char c)
{
    if (x->n_level == 1 && !is_blank(c))
        return PART_BAD;
    text_bytes(p, x, &c, 1);
    return PART_MORE;
}

static enum part body_byte(struct parser *p, struct nested *x, char c)
{
    x->tag[x->n_tag++] = c;
    while (x->n_tag) {
        size_t from = 0, n = x->n_tag;
        bool closing = false;
        enum part part = tag_part(format_row(p)->key_open, x->tag, n, &from, &closing);
        if (part == PART_MORE)
            return part;
        if (part == PART_END) {
            part = take_tag(p, x, x->tag + from, n - from - 1, closing);
            if (part != PART_PAST) {
                x->n_tag = 0;
                return part;
            }
        }
        part = plain(p, x, x->tag[0]);
        if (part != PART_MORE)
            return part;
        memmove(x->tag, x->tag + 1, --x->n_tag);
    }
    return PART_MORE;
}

/* ---- the family ---- */

/* "f", in quotes, up to ">". */
static enum part name_byte(struct parser *p, struct nested *x, char c)
{
    if (c != '>') {
        bool edge = c == '"' || c == '\'';
        if ((unsigned char)c <= ' ' || c == '<' || x->name.len == FORMAT_NAME_MAX)
            return PART_BAD;
        if (!edge)
            buf_add_char(&x->name, c);
        return PART_MORE;
    }
    if (x->name.len == 0 || x->name.failed)
        return PART_BAD;
    x->in_name = false;
    push(x, "", 0, parameters(p, x));
    top(x)->kind = UNKNOWN;
    return PART_MORE;
}

static enum part nested_byte(struct parser *p, char c)
{
    struct nested *x = format_state(p);
    enum part part = x->in_name ? name_byte(p, x, c) : body_byte(p, x, c);
    kept(p, &x->name);
    kept(p, &x->text);
    kept(p, &x->held);
    return part;
}

static void nested_release(struct parser *p)
{
    struct nested *x = format_state(p);
    buf_release(&x->name);
    buf_release(&x->text);
    buf_release(&x->held);
}

const struct tool_family family_nested = {
    .state_bytes = sizeof(struct nested),
    .begin = nested_begin,
    .byte = nested_byte,
    .release = nested_release,
};
