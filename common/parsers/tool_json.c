/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with JSON arguments, in two forms:
 *
 *   objects  <tag>{"name": "f", "arguments": {…}}</tag>   one, several, or an array of them
 *   heads    <tag>f<name_end>{…}</tag>                    the name before the arguments
 *
 *   OPEN -{-> KEY > COLON > VALUE > NEXT -}-> AFTER     OPEN -f-> HEAD > BEFORE -{-> VALUE > AFTER
 *
 * Values are read by lenient_json.h, so a tag inside a string is text. A call is announced when
 * its name is complete and two bytes of its arguments are certain; arguments before the name are
 * held. An object without a tag must resemble a call more closely: its first key must be a key of
 * calls, its name must be one of the request's tools, and it must have arguments, unless it stands
 * at the beginning and has only a name. */
#include "common/parsers/parser_internal.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "common/json_read.h"
#include "common/parsers/json_scan.h"
#include "common/parsers/lenient_json.h"

enum place {
    OPEN,   /* after the tag */
    ITEMS,  /* between the objects of an array */
    KEY,    /* after '{' or ',': a key, or '}' if `first_key` */
    COLON,  /* after a key */
    VALUE,  /* in a value, or in the blanks before it */
    NEXT,   /* after a value */
    HEAD,   /* in the name, up to name_end */
    ID,     /* after the second name_end: an id, up to the first one */
    BEFORE, /* after the head: arguments, or with JSON_TWO_HEADS the name */
    FENCE,  /* ```json before the arguments */
    AFTER   /* after a call: the closing tag, or another object */
};

enum role { ROLE_OTHER, ROLE_KEY, ROLE_NAME, ROLE_ARGS };

#define NO_WRAP SIZE_MAX

struct json {
    enum place place;
    enum role role;            /* what the current value is */
    struct lenient_json value; /* the current value */
    bool in_value;             /* past its first byte */
    bool keep;                 /* it goes to `scratch`, not straight out */
    struct buf scratch;
    struct buf name, args; /* until the announcement */
    char tag[FORMAT_TAG_MAX];
    size_t n_tag;
    const char *quote; /* the format's own string delimiter */
    bool array, head, first_key, has_name, has_args;
    bool others;      /* a member that no call has */
    bool infer;       /* the name is a number: the arguments tell the function */
    size_t n_certain; /* bytes in `args` that are no blanks, at most 2 */
    size_t n_wrap[2]; /* by wrapper: bytes of its begin that are in `args`, or NO_WRAP */
    uint32_t n_call;  /* of this region */
};

static void call_reset(struct json *h)
{
    buf_reset(&h->name);
    buf_reset(&h->args);
    buf_reset(&h->scratch);
    h->has_name = h->has_args = h->head = h->infer = h->others = false;
    h->n_tag = h->n_certain = 0;
    memset(h->n_wrap, 0, sizeof h->n_wrap);
}

static void json_begin(struct parser *p)
{
    struct json *h = format_state(p);
    call_reset(h);
    h->place = OPEN;
    h->array = false;
    h->quote = format_row(p)->quote;
    h->n_call = 0;
}

/* ---- the call ---- */

static void announce(struct parser *p, struct json *h)
{
    call_announce(p, h->name.data, h->name.len);
    call_args(p, buf_str(&h->args), h->args.len);
    buf_reset(&h->args);
}

static const char *const wrappers[] = {"arguments", "input"};
#define N_WRAPPER (sizeof wrappers / sizeof *wrappers)

/* More of the arguments: do they begin an object whose first member has a wrapper's name and is an
 * object or a string? Blanks do not count. */
static void wrap_step(struct json *h, const char *text, size_t n)
{
    char want[32];
    for (size_t k = 0; k < N_WRAPPER; k++) {
        size_t n_want = (size_t)snprintf(want, sizeof want, "{\"%s\":", wrappers[k]);
        for (size_t i = 0; i < n && h->n_wrap[k] <= n_want; i++) {
            if (is_blank(text[i]))
                continue;
            bool fits = h->n_wrap[k] < n_want ? text[i] == want[h->n_wrap[k]]
                                              : text[i] == '{' || text[i] == '"';
            h->n_wrap[k] = fits ? h->n_wrap[k] + 1 : NO_WRAP;
        }
    }
}

static const json_t *properties(const struct parser *p, const struct json *h)
{
    const json_t *f = format_function(p, buf_str(&h->name));
    return json_object_get(json_object_get(f, "parameters"), "properties");
}

/* A wrapper's name that is a parameter of the function wraps nothing. */
static void wrap_exclude(const struct parser *p, struct json *h)
{
    const json_t *known = properties(p, h);
    for (size_t k = 0; k < N_WRAPPER; k++)
        if (json_object_get(known, wrappers[k]))
            h->n_wrap[k] = NO_WRAP;
}

static bool may_be_wrapped(const struct parser *p, const struct json *h)
{
    if (!(format_row(p)->flags & JSON_WRAPPED))
        return false;
    for (size_t k = 0; k < N_WRAPPER; k++)
        if (h->n_wrap[k] != NO_WRAP)
            return true;
    return false;
}

/* Is every member of `inner` a parameter of the function, or the function not known? */
static bool members_fit(const struct parser *p, const struct json *h, const json_t *inner)
{
    const json_t *known = properties(p, h);
    const char *key;
    json_t *member;
    if (!format_function(p, buf_str(&h->name)))
        return true;
    json_object_foreach ((json_t *)inner, key, member)
        if (!json_object_get(known, key))
            return false;
    return true;
}

/* The object that a wrapper holds, as text: {"arguments": {…}} or {"arguments": "{…}"}. */
static void wrapped_text(const struct buf *args, const json_t *inner, struct buf *out)
{
    if (json_is_string(inner)) {
        const char *text = json_string_value(inner);
        size_t n = json_string_length(inner), blank = 0;
        while (blank < n && is_blank(text[blank]))
            blank++;
        if (blank == n || text[blank] != '{' || !lenient_json_whole(text + blank, n - blank, out))
            buf_reset(out);
        return;
    }
    if (!json_is_object(inner))
        return;
    const char *from = strchr(buf_str(args) + 1, '{'), *end = args->data + args->len;
    while (end[-1] != '}') /* the outer brace */
        end--;
    for (end--; end[-1] != '}';) /* the inner one */
        end--;
    buf_add(out, from, (size_t)(end - from));
}

/* The arguments are complete. Where all of them are in one member that is no parameter of the
 * function, they become the members of its object. */
static void unwrap(struct parser *p, struct json *h)
{
    struct buf text = BUF_INIT;
    const json_t *inner = NULL;
    json_t *args = json_read_bytes(buf_str(&h->args), h->args.len, JSON_ALLOW_NUL, NULL);
    for (size_t k = 0; k < N_WRAPPER && json_object_size(args) == 1 && !inner; k++)
        inner = h->n_wrap[k] == NO_WRAP ? NULL : json_object_get(args, wrappers[k]);
    wrapped_text(&h->args, inner, &text);
    json_t *object = json_read_bytes(buf_str(&text), text.len, JSON_ALLOW_NUL, NULL);
    if (object && members_fit(p, h, object)) {
        buf_reset(&h->args);
        buf_add(&h->args, text.data, text.len);
    }
    kept(p, &text);
    kept(p, &h->args);
    json_decref(object);
    json_decref(args);
    buf_release(&text);
}

static void args_out(struct parser *p, struct json *h, const char *text, size_t n)
{
    if (call_announced(p)) {
        call_args(p, text, n);
        return;
    }
    buf_add(&h->args, text, n);
    kept(p, &h->args);
    wrap_step(h, text, n);
    for (size_t i = 0; i < n && h->n_certain < 2; i++)
        h->n_certain += !is_blank(text[i]);
    if (h->n_certain == 2 && h->has_name && !may_be_wrapped(p, h))
        announce(p, h);
}

static enum part set_name(struct parser *p, struct json *h, const char *name, size_t n)
{
    buf_reset(&h->name);
    buf_add(&h->name, name, n);
    kept(p, &h->name);
    if (n == 0 || h->name.failed)
        return PART_BAD;
    if (region_bare(p) && format_tools_known(p) && !format_function(p, buf_str(&h->name)))
        return PART_BAD;
    h->has_name = true;
    wrap_exclude(p, h);
    args_out(p, h, "", 0);
    return PART_MORE;
}

/* Can a function be called with these arguments: does it know all of them, and need no others? */
static bool takes(const json_t *f, const json_t *args)
{
    const json_t *schema = json_object_get(f, "parameters");
    const json_t *known = json_object_get(schema, "properties"), *name;
    const json_t *required = json_object_get(schema, "required");
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach ((json_t *)args, key, value)
        if (!json_object_get(known, key))
            return false;
    json_array_foreach ((json_t *)required, i, name)
        if (json_string_value(name) && !json_object_get(args, json_string_value(name)))
            return false;
    return true;
}

/* The only function that the arguments fit; NULL if there are several. */
static const char *function_of(const struct parser *p, const struct json *h)
{
    const json_t *tools = format_tools(p), *tool, *only = NULL;
    json_t *args = json_read_bytes(buf_str(&h->args), h->args.len, JSON_ALLOW_NUL, NULL);
    size_t n = json_array_size(tools), n_fit = 0, i;
    json_array_foreach ((json_t *)tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        f = f ? f : tool;
        if (n > 1 && !takes(f, args))
            continue;
        only = f;
        n_fit++;
    }
    json_decref(args);
    return n_fit == 1 ? json_string_value(json_object_get(only, "name")) : NULL;
}

static enum part call_over(struct parser *p, struct json *h)
{
    const char *name = h->infer && !h->has_name ? function_of(p, h) : NULL;
    if (name && set_name(p, h, name, strlen(name)) != PART_MORE)
        return PART_BAD;
    bool sure = format_row(p)->bare_behind ||
                (format_tools_known(p) && region_first(p) && !h->array && !h->others);
    /* other members without arguments: they may stand for them */
    if (!h->has_name || (!h->has_args && (h->others || (region_bare(p) && !sure))))
        return PART_BAD;
    if (!h->has_args && (call_announced(p) || h->args.len == 0))
        args_out(p, h, "{}", 2);
    if (!call_announced(p) && may_be_wrapped(p, h))
        unwrap(p, h);
    if (!call_announced(p))
        announce(p, h);
    call_end(p);
    h->n_call++;
    bool last = h->head && !format_row(p)->close[0];
    call_reset(h);
    h->place = h->array ? ITEMS : AFTER;
    return last ? PART_END : PART_MORE;
}

/* ---- values of an object ---- */

static enum role role_of(const struct parser *p, const struct json *h, const char *key)
{
    if (format_row(p)->flags & JSON_KEY_IS_NAME)
        return ROLE_ARGS;
    if (!strcmp(key, "name") || !strcmp(key, "tool_name") || !strcmp(key, "function"))
        return h->has_name ? ROLE_OTHER : ROLE_NAME;
    if (!strcmp(key, "arguments") || !strcmp(key, "parameters") ||
        ((format_row(p)->flags & JSON_ARGS) && !strcmp(key, "args")))
        return h->has_args ? ROLE_OTHER : ROLE_ARGS;
    return ROLE_OTHER;
}

static enum part key_over(struct parser *p, struct json *h, const struct buf *key)
{
    bool first = h->first_key;
    h->first_key = false;
    h->role = role_of(p, h, buf_str(key));
    if (format_row(p)->flags & JSON_KEY_IS_NAME)
        return h->has_name ? PART_BAD : set_name(p, h, buf_str(key), key->len);
    bool fits = h->role != ROLE_OTHER || !strcmp(buf_str(key), "type") ||
                !strcmp(buf_str(key), "id") || !strcmp(buf_str(key), "tool_call_id");
    h->others |= !fits;
    return first && region_bare(p) && !fits ? PART_BAD : PART_MORE;
}

/* Arguments written as a string: the object inside it; none at all is an empty one. */
static enum part args_string(struct parser *p, struct json *h, const struct buf *text)
{
    struct buf inner = BUF_INIT;
    size_t n = text->len, blank = 0;
    while (blank < n && is_blank(text->data[blank]))
        blank++;
    bool good = blank == n;
    if (good)
        buf_add_str(&inner, "{}");
    else if (text->data[blank] == '{')
        good = lenient_json_whole(text->data + blank, n - blank, &inner);
    kept(p, &inner);
    if (good)
        args_out(p, h, buf_str(&inner), inner.len);
    buf_release(&inner);
    return good ? PART_MORE : PART_BAD;
}

/* A value that was kept is complete in scratch: a string, or null for the arguments. */
static enum part kept_over(struct parser *p, struct json *h)
{
    struct buf text = BUF_INIT;
    enum part part = PART_MORE;
    if (h->scratch.len == 0 || h->scratch.data[0] != '"') {
        args_out(p, h, "{}", 2);
        return PART_MORE;
    }
    json_scan_unquote(&text, h->scratch.data, h->scratch.len);
    kept(p, &text);
    if (h->role == ROLE_KEY)
        part = key_over(p, h, &text);
    else if (h->role == ROLE_NAME)
        part = set_name(p, h, buf_str(&text), text.len);
    else
        part = args_string(p, h, &text);
    buf_release(&text);
    return part;
}

static void begin_value(struct json *h, enum role role)
{
    lenient_json_init(&h->value, h->quote, false);
    h->in_value = h->keep = false;
    h->role = role;
    h->place = VALUE;
    buf_reset(&h->scratch);
}

static enum part value_over(struct parser *p, struct json *h)
{
    enum role role = h->role;
    enum part part = h->keep ? kept_over(p, h) : PART_MORE;
    h->place = role == ROLE_KEY ? COLON : NEXT;
    if (role == ROLE_ARGS) {
        h->has_args = true;
        if (h->head && part == PART_MORE)
            return call_over(p, h);
    }
    return part;
}

static enum part between(struct parser *p, struct json *h, char c);

static enum part value_byte(struct parser *p, struct json *h, char c)
{
    if (!h->in_value) {
        bool string = c == '"' || c == '\'' || (h->quote && c == h->quote[0]);
        if (is_blank(c))
            return PART_MORE;
        if (!string && (h->role == ROLE_KEY || h->role == ROLE_NAME))
            return PART_BAD;
        if (h->role == ROLE_ARGS && !string && !strchr("{nN", c)) /* no object */
            return PART_BAD;
        h->in_value = true;
        h->keep = h->role == ROLE_KEY || h->role == ROLE_NAME ||
                  (h->role == ROLE_ARGS && (string || c == 'n' || c == 'N'));
    }
    struct buf piece = BUF_INIT, *out = h->keep ? &h->scratch : &piece;
    enum lenient_json_step step = lenient_json_byte(&h->value, c, out);
    kept(p, out);
    if (h->role == ROLE_ARGS && !h->keep && piece.len)
        args_out(p, h, piece.data, piece.len);
    buf_release(&piece);
    if (step == LENIENT_JSON_BAD)
        return PART_BAD;
    if (step == LENIENT_JSON_MORE)
        return PART_MORE;
    enum part part = value_over(p, h);
    return part == PART_MORE && step == LENIENT_JSON_PAST ? between(p, h, c) : part;
}

/* ---- heads ---- */

/* Is there a function of that name? `unknown`: the answer where the request has none, and for a
 * number in the name's place. */
static bool known_name(const struct parser *p, const char *name, size_t n, bool unknown)
{
    struct buf text = BUF_INIT;
    if (!format_tools_known(p) || strspn(name, "0123456789") >= n)
        return unknown;
    buf_add(&text, name, n);
    bool known = format_function(p, buf_str(&text));
    buf_release(&text);
    return known;
}

/* The name as it stands in the head: without blanks around it, "functions." and ":3". */
static enum part head_name(struct parser *p, struct json *h)
{
    const char *name = buf_str(&h->scratch);
    size_t n = h->scratch.len;
    while (n && is_blank(*name)) {
        name++;
        n--;
    }
    while (n && is_blank(name[n - 1]))
        n--;
    if (format_row(p)->flags & JSON_NUMBERED) {
        size_t end = n;
        while (end && name[end - 1] >= '0' && name[end - 1] <= '9')
            end--;
        bool numbered = end && end < n && name[end - 1] == ':';
        bool point = end && end < n && name[end - 1] == '.'; /* functions.f.0 */
        n = numbered ? end - 1 : n;
        if (n > 10 && strncmp(name, "functions.", 10) == 0) {
            name += 10;
            n -= 10;
        }
        if (!numbered && !known_name(p, name, n, !point))
            return PART_BAD;
        h->infer = n == 0 || strspn(name, "0123456789") >= n;
    }
    if (h->infer)
        return format_tools_known(p) ? PART_MORE : PART_BAD;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] <= ' ' || (name[i] && strchr("<[{", name[i])))
            return PART_BAD;
    return set_name(p, h, name, n);
}

static enum part begin_args(struct parser *p, struct json *h, char c)
{
    h->head = true;
    if (!h->has_name && head_name(p, h) != PART_MORE)
        return PART_BAD;
    begin_value(h, ROLE_ARGS);
    return value_byte(p, h, c);
}

/* The tags that end a part of a head: name_end, and in a format whose calls no tag ends the one
 * that begins the next call. Returns the index of the latter; tags: [HEAD_TAGS]. */
#define HEAD_TAGS (FORMAT_TAGS + 4)
static int head_tags(const struct parser *p, const char **tags)
{
    const struct tool_format *f = format_row(p);
    int n = 0, n_end;
    while (n < 4 && f->name_end[n]) {
        tags[n] = f->name_end[n];
        n++;
    }
    n_end = n;
    if (!f->close[0])
        tags[n++] = f->open[0];
    tags[n] = NULL;
    return n_end;
}

/* One more byte of a head: *i_tag is the tag of head_tags that is complete with it, or -1. */
static enum part head_byte(struct parser *p, struct json *h, char c, int *i_tag)
{
    const char *tags[HEAD_TAGS];
    size_t whole;
    head_tags(p, tags);
    *i_tag = -1;
    h->tag[h->n_tag++] = c;
    while (h->n_tag) {
        int i = tag_begun(tags, h->tag, h->n_tag, &whole);
        if (whole) {
            *i_tag = i;
            h->n_tag = 0;
        } else if (i >= 0) {
            break;
        } else {
            buf_add_char(&h->scratch, h->tag[0]);
            memmove(h->tag, h->tag + 1, --h->n_tag);
        }
    }
    kept(p, &h->scratch);
    return h->scratch.len > FORMAT_NAME_MAX ? PART_BAD : PART_MORE;
}

/* A head without arguments where the text ends, or the next call begins: a call, too, in a format
 * whose calls no tag ends. A name alone has to be one of the request's functions, if it has any. */
static bool head_alone(struct parser *p, struct json *h)
{
    if (!h->has_name && (head_name(p, h) != PART_MORE || !h->has_name))
        return false;
    if (h->place == HEAD && format_tools_known(p) && !format_function(p, buf_str(&h->name)))
        return false;
    h->head = true;
    return call_over(p, h) != PART_BAD;
}

/* The next call's tag came: it is read again behind the call that the head is. */
static enum part next_call(struct parser *p, struct json *h)
{
    const char *open = format_row(p)->open[0];
    if (!head_alone(p, h))
        return PART_BAD;
    region_unread(p, open, strlen(open));
    return PART_END;
}

/* Did the name's line end? Behind it there may be only the tag. */
static bool line_over(const struct json *h)
{
    return h->n_tag == 0 && h->scratch.len && h->scratch.data[h->scratch.len - 1] == '\n';
}

static enum part in_head(struct parser *p, struct json *h, char c)
{
    unsigned flags = format_row(p)->flags & JSON_FLAGS;
    const char *tags[HEAD_TAGS];
    int i_tag;
    if (h->place == HEAD && c == '{' && h->n_tag == 0)
        return flags ? PART_BAD : begin_args(p, h, c);
    if (h->place == HEAD && line_over(h) && !is_blank(c) && !strchr("<[", c))
        return PART_BAD;
    enum part part = head_byte(p, h, c, &i_tag);
    if (part != PART_MORE || i_tag < 0)
        return part;
    if (!format_row(p)->close[0] && i_tag == head_tags(p, tags))
        return next_call(p, h);
    if (flags & JSON_ID_FIRST && i_tag == 0) { /* the name follows */
        buf_reset(&h->scratch);
        return PART_MORE;
    }
    if (h->place == HEAD && !(flags & JSON_TWO_HEADS) && head_name(p, h) != PART_MORE)
        return PART_BAD;
    h->place = h->place == HEAD && i_tag == 1 && !(flags & JSON_ID_FIRST) ? ID : BEFORE;
    if (h->place == ID || h->has_name)
        buf_reset(&h->scratch);
    return PART_MORE;
}

static enum part before_args(struct parser *p, struct json *h, char c)
{
    bool name_follows = h->place == BEFORE && (format_row(p)->flags & JSON_TWO_HEADS);
    const struct tool_format *f = format_row(p);
    bool next = !f->close[0] && c == f->open[0][0];
    size_t whole;
    if (h->n_tag || ((c == '<' || next) && !name_follows)) { /* tags before the arguments */
        h->tag[h->n_tag++] = c;
        int i = tag_begun(f->close[0] ? f->layout : f->open, h->tag, h->n_tag, &whole);
        if (whole)
            h->n_tag = 0;
        return whole && !f->close[0] ? next_call(p, h) : i >= 0 ? PART_MORE : PART_BAD;
    }
    if (c == '{')
        return begin_args(p, h, c);
    if (is_blank(c) || (h->place == FENCE && strchr("`json", c) && c))
        return PART_MORE;
    if (!name_follows)
        return PART_BAD;
    if (h->first_key) { /* the kind stood there; now the name */
        buf_reset(&h->scratch);
        h->first_key = false;
    }
    buf_add_char(&h->scratch, c);
    kept(p, &h->scratch);
    return h->scratch.len > FORMAT_NAME_MAX ? PART_BAD : PART_MORE;
}

/* ---- between ---- */

static enum part begin_object(struct json *h)
{
    call_reset(h);
    h->first_key = true;
    h->place = KEY;
    return PART_MORE;
}

/* The closing tag right behind the opening one: nothing is called. */
static enum part nothing_byte(struct parser *p, struct json *h, char c)
{
    size_t whole;
    h->tag[h->n_tag++] = c;
    int i = tag_begun(format_row(p)->close, h->tag, h->n_tag, &whole);
    if (i >= 0 || !format_row(p)->name_end[0])
        return whole ? PART_END : i >= 0 ? PART_MORE : PART_BAD;
    char head[FORMAT_TAG_MAX]; /* it is the head's first tag */
    size_t n = h->n_tag;
    enum part part = PART_MORE;
    memcpy(head, h->tag, n);
    h->n_tag = 0;
    h->place = HEAD;
    h->first_key = true;
    for (size_t k = 0; k < n && part == PART_MORE; k++)
        part = in_head(p, h, head[k]);
    return part;
}

static enum part open_byte(struct parser *p, struct json *h, char c)
{
    const char *close = format_row(p)->close[0];
    if (h->n_tag || (close && c == close[0]))
        return nothing_byte(p, h, c);
    if (is_blank(c))
        return PART_MORE;
    if (c == '{' && !(format_row(p)->name_end[0] && format_row(p)->flags & JSON_FLAGS))
        return begin_object(h);
    if (c == '[' && !h->array) {
        h->array = true;
        h->place = ITEMS;
        return PART_MORE;
    }
    if (!format_row(p)->name_end[0])
        return PART_BAD;
    h->place = HEAD;
    h->first_key = true;
    return in_head(p, h, c);
}

static enum part item_byte(struct parser *p, struct json *h, char c)
{
    if (is_blank(c) || (c == ',' && h->n_call))
        return PART_MORE;
    if (c == '{')
        return begin_object(h);
    if (c != ']' || (!h->n_call && region_bare(p)))
        return PART_BAD; /* an empty list behind a tag calls nothing */
    if (h->n_call || !format_row(p)->close[0])
        call_drop_kept(p);
    h->array = false;
    h->place = AFTER;
    return PART_MORE;
}

/* After a call: its closing tag, a separator and another object, or just text. One brace too many,
 * a frequent slip, is ignored. */
static enum part after_byte(struct parser *p, struct json *h, char c)
{
    const struct tool_format *f = format_row(p);
    size_t whole;
    h->tag[h->n_tag++] = c;
    if (tag_begun(f->close, h->tag, h->n_tag, &whole) >= 0)
        return whole ? PART_END : PART_MORE;
    bool empty = h->n_call == 0 && f->close[0]; /* only the tag may follow an empty list */
    if (h->n_tag > 1 || (empty && !is_blank(c)))
        return empty ? PART_BAD : PART_PAST;
    h->n_tag = 0;
    if (c == '}' || (c == '`' && f->flags & JSON_TWO_HEADS)) {
        call_drop_kept(p);
        return PART_MORE;
    }
    if (c == '{' && !f->name_end[0])
        return begin_object(h);
    return is_blank(c) || ((c == ',' || c == ';') && !f->name_end[0]) ? PART_MORE : PART_PAST;
}

static enum part between(struct parser *p, struct json *h, char c)
{
    if (is_blank(c))
        return PART_MORE;
    if (h->place == KEY && !(c == '}' && h->first_key)) {
        begin_value(h, ROLE_KEY);
        return value_byte(p, h, c);
    }
    if (c == '}' && h->place != COLON)
        return call_over(p, h);
    if (h->place == COLON && c == ':') {
        begin_value(h, h->role);
        return PART_MORE;
    }
    if (h->place != NEXT || c != ',')
        return PART_BAD;
    h->place = KEY;
    return PART_MORE;
}

static enum part json_byte(struct parser *p, char c)
{
    struct json *h = format_state(p);
    if (h->place == BEFORE && c == '\n' && !h->first_key) {
        h->place = FENCE; /* the name stands on a line of its own */
        return head_name(p, h);
    }
    switch (h->place) {
    case OPEN:
        return open_byte(p, h, c);
    case ITEMS:
        return item_byte(p, h, c);
    case VALUE:
        return value_byte(p, h, c);
    case HEAD:
    case ID:
        return in_head(p, h, c);
    case BEFORE:
    case FENCE:
        return before_args(p, h, c);
    case AFTER:
        return after_byte(p, h, c);
    default:
        return between(p, h, c);
    }
}

/* In a format whose calls no tag ends, a name without arguments is a call, too. */
static bool json_finish(struct parser *p)
{
    struct json *h = format_state(p);
    const struct tool_format *f = format_row(p);
    if (h->place == VALUE && h->role == ROLE_ARGS && !h->keep && call_announced(p)) {
        struct buf piece = BUF_INIT;
        lenient_json_settle(&h->value, &piece);
        args_out(p, h, buf_str(&piece), piece.len);
        buf_release(&piece);
    }
    bool head = h->place == HEAD || h->place == ID || h->place == BEFORE;
    if (head && h->n_tag == 0 && !f->close[0] && !region_bare(p) && !text_was_cut(p))
        head_alone(p, h);
    return h->place == AFTER || (h->n_call && h->place == ITEMS);
}

static void json_release(struct parser *p)
{
    struct json *h = format_state(p);
    buf_release(&h->name);
    buf_release(&h->args);
    buf_release(&h->scratch);
}

const struct tool_family family_json = {
    .state_bytes = sizeof(struct json),
    .begin = json_begin,
    .byte = json_byte,
    .finish = json_finish,
    .release = json_release,
};
