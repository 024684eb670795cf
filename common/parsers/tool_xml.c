/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose parameters are tags:
 *
 *   <function=f><parameter=a>VALUE</parameter>…</function>
 *   <invoke name="f"><parameter name="a" string="true">VALUE</parameter>…</invoke>
 *   <tool_call>f<arg_key>a</arg_key><arg_value>VALUE</arg_value>…</tool_call>
 *
 *   NAME > BETWEEN -key_open-> KEY > [[TYPE] > VALUE_OPEN] > VALUE -value_close-> CLOSED
 *          `<------------------------------ tag -------------------------------------'
 *
 * A value without its closing tag ends where the next known parameter begins (OPENED looks ahead),
 * with the call if nothing or another call follows the call's closing tag (ENDED looks ahead), or
 * at a tag if its type excludes tags. A string with text after the call's closing tag is
 * malformed, because its end is not certain. A JSON object may replace the parameters (BODY).
 *
 * Values are plain text, so their types come from the request's tools. A string is passed on byte
 * by byte, another value when it is complete. A closing tag inside a value is text unless a tag of
 * the call follows: CLOSED looks ahead and returns the bytes if not. */
#include "common/parsers/parser_internal.h"
#include <stdio.h>
#include <string.h>
#include "common/json_read.h"
#include "common/parsers/lenient_json.h"
#include "common/parsers/types.h"

#define KEYS_MAX 4096 /* bytes of names that are remembered, which keeps the time linear */

enum place { NAME, BETWEEN, BODY, KEY, VALUE_OPEN, TYPE, VALUE, CLOSED, OPENED, ENDED };

/* Of a value of unknown type: what its first bytes show. */
enum guess { GUESS_NOTHING, GUESS_VALUE, GUESS_WORD, GUESS_WORD_OVER };

struct xml {
    enum place place;
    struct buf name,
        text; /* text: the key, the attributes, a type, a value that waits for its end */
    char key[FORMAT_NAME_MAX + 1];
    char tag[FORMAT_TAG_MAX];
    size_t n_tag;
    struct buf ahead; /* read in CLOSED, OPENED, ENDED: the tag, then blanks, a begun tag, a name */
    size_t n_close;   /* bytes of the tag in it */
    struct buf head;  /* a parameter's name and what stands before it, until it is certain */
    struct buf inner; /* a value that may be all the arguments */
    struct lenient_json body;       /* XML_BODY: the object in place of parameters */
    struct buf keys;                /* XML_ONCE: the names that came, each with a NUL */
    bool is_body;                   /* `inner` was a JSON object in place of parameters */
    bool wrapped;                   /* the value may be all the arguments: `head` waits */
    bool skip;                      /* the parameter came before: nothing of it goes out */
    bool any;                       /* there was a parameter */
    bool string;                    /* the value goes out as it comes */
    bool cdata;                     /* it stands in <![CDATA[ ]]> */
    char close[FORMAT_TAG_MAX + 4]; /* what ends it */
    bool newline;                   /* one is held: layout if the value ends here */
    bool first;                     /* before the value's first byte */
    enum guess guess;
    size_t word_at; /* in `text`: the first byte that is no blank */
    unsigned types;
};

static void xml_begin(struct parser *p)
{
    struct xml *x = format_state(p);
    x->place = NAME;
    x->any = x->is_body = false;
    x->n_tag = 0;
    buf_reset(&x->name);
    buf_reset(&x->text);
    buf_reset(&x->ahead);
    buf_reset(&x->head);
    buf_reset(&x->inner);
    buf_reset(&x->keys);
}

/* ---- tags ---- */

enum next { NEXT_NONE, NEXT_MORE, NEXT_KEY, NEXT_CLOSE, NEXT_LAYOUT };

#define KEY_TAGS 4

/* The spellings of key_open. tags: [KEY_TAGS]. Returns how many there are. */
static size_t key_tags(const struct tool_format *f, const char **tags)
{
    size_t n = 0;
    tags[n++] = f->key_open;
    for (size_t i = 0; i + 1 < KEY_TAGS && f->key_also[i]; i++)
        tags[n++] = f->key_also[i];
    return n;
}

/* What may follow a parameter, as far as `text` shows it. */
static enum next next_tag(const struct parser *p, const char *text, size_t n)
{
    const struct tool_format *f = format_row(p);
    const char *key[FORMAT_TAGS] = {NULL};
    const char *layout[FORMAT_TAGS] = {NULL}; /* of the layout tags only those that close */
    size_t whole[3];
    key_tags(f, key);
    for (int i = 0, k = 0; i < FORMAT_TAGS && f->layout[i]; i++)
        if (f->layout[i][1] == '/')
            layout[k++] = f->layout[i];
    int i_key = tag_begun(key, text, n, &whole[0]),
        i_close = tag_begun(f->close, text, n, &whole[1]),
        i_layout = tag_begun(layout, text, n, &whole[2]);
    if (whole[0] || whole[1] || whole[2])
        return whole[0] ? NEXT_KEY : whole[1] ? NEXT_CLOSE : NEXT_LAYOUT;
    return i_key >= 0 || i_close >= 0 || i_layout >= 0 ? NEXT_MORE : NEXT_NONE;
}

/* Collect `text` up to the tag. PART_END: it is complete. */
static enum part collect_until(struct xml *x, const char *tag, char c)
{
    const char *const tags[FORMAT_TAGS] = {tag};
    size_t whole;
    x->tag[x->n_tag++] = c;
    while (x->n_tag) {
        if (tag_begun(tags, x->tag, x->n_tag, &whole) >= 0) {
            if (whole)
                x->n_tag = 0;
            return whole ? PART_END : PART_MORE;
        }
        buf_add_char(&x->text, x->tag[0]);
        memmove(x->tag, x->tag + 1, --x->n_tag);
    }
    return x->text.len > FORMAT_NAME_MAX ? PART_BAD : PART_MORE;
}

/* Without blanks and quotes around it; what follows a quoted name are attributes. */
static const char *bare_name(const struct buf *b, bool attributes, size_t *n)
{
    const char *s = buf_str(b), *end = s + b->len;
    while (s < end && (is_blank(*s) || *s == '"' || *s == '\''))
        s++;
    size_t length = (size_t)(end - s);
    if (attributes && memchr(s, '"', length))
        length = (size_t)((const char *)memchr(s, '"', length) - s);
    while (length && (is_blank(s[length - 1]) || s[length - 1] == '"' || s[length - 1] == '\''))
        length--;
    *n = length;
    return s;
}

/* &quot; and &amp; in a name that is copied out of a tag. */
static void unescape(const struct parser *p, struct buf *name)
{
    static const char *const entities[][2] = {{"&quot;", "\""}, {"&amp;", "&"}};
    if (!(format_row(p)->flags & XML_ESCAPED))
        return;
    for (size_t k = 0; k < 2; k++)
        for (char *at = name->data; at && (at = strstr(at, entities[k][0])); at++) {
            size_t n = strlen(entities[k][0]);
            *at = entities[k][1][0];
            memmove(at + 1, at + n, name->len - (size_t)(at - name->data) - n + 1);
            name->len -= n - 1;
        }
}

/* ---- the call ---- */

static void announce(struct parser *p, struct xml *x)
{
    if (!call_announced(p))
        call_announce(p, x->name.data, x->name.len);
}

static enum part call_over(struct parser *p, struct xml *x)
{
    announce(p, x);
    if (x->inner.len)
        call_args(p, x->inner.data, x->inner.len);
    else
        call_args(p, x->any ? "}" : "{}", x->any ? 1 : 2);
    call_end(p);
    return PART_END;
}

/* f.f is f, unless there is a function of that name. */
static void once(const struct parser *p, struct buf *name)
{
    size_t half = name->len / 2;
    if (name->len % 2 == 0 || format_function(p, name->data) || name->data[half] != '.' ||
        memcmp(name->data, name->data + half + 1, half) != 0)
        return;
    name->data[half] = 0;
    if (format_function(p, name->data))
        name->len = half;
    else
        name->data[half] = '.';
}

static enum part name_over(struct parser *p, struct xml *x)
{
    size_t n;
    const char *name = bare_name(&x->text, format_row(p)->flags & XML_ATTRIBUTES, &n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] <= ' ' ||
            strchr(format_row(p)->flags & XML_ESCAPED ? "{}\"" : "<>{}\"", name[i]))
            return PART_BAD;
    buf_add(&x->name, name, n);
    unescape(p, &x->name);
    if (format_row(p)->flags & XML_TWICE)
        once(p, &x->name);
    buf_reset(&x->text);
    x->place = BETWEEN;
    return n ? PART_MORE : PART_BAD;
}

static enum part between_byte(struct parser *p, struct xml *x, char c);
static enum part in_body(struct parser *p, struct xml *x, char c);

/* The name is text: it ends with the line, with name_end or where a tag begins. */
static enum part text_name(struct parser *p, struct xml *x, char c)
{
    const char *end = format_row(p)->name_end[0];
    size_t whole;
    if (c == '\n' && x->text.len == 0 && x->n_tag == 0)
        return PART_MORE;
    if (x->text.len == 0 && (c == '<' || x->n_tag)) { /* nothing is called */
        x->tag[x->n_tag++] = c;
        int i = tag_begun(format_row(p)->close, x->tag, x->n_tag, &whole);
        return whole ? PART_END : i >= 0 ? PART_MORE : PART_BAD;
    }
    if (x->text.len == 0 && (c == '{' || c == '['))
        return PART_BAD;
    if (c == '\n' && x->n_tag == 0)
        return name_over(p, x);
    if (x->n_tag || (end && c == end[0])) {
        x->tag[x->n_tag++] = c;
        if (end && tag_begun(format_row(p)->name_end, x->tag, x->n_tag, &whole) >= 0) {
            if (!whole)
                return PART_MORE;
            x->n_tag = 0;
            return name_over(p, x);
        }
        x->n_tag--;
        if (name_over(p, x) != PART_MORE) /* another tag than name_end: the parameters begin */
            return PART_BAD;
        return between_byte(p, x, c);
    }
    if (c == '<') {
        if (name_over(p, x) != PART_MORE)
            return PART_BAD;
        return between_byte(p, x, c);
    }
    buf_add_char(&x->text, c);
    return x->text.len > FORMAT_NAME_MAX ? PART_BAD : PART_MORE;
}

static enum part in_name(struct parser *p, struct xml *x, char c)
{
    if (format_row(p)->flags & XML_KEY_TAGS)
        return text_name(p, x, c);
    enum part part = collect_until(x, format_row(p)->name_end[0], c);
    return part == PART_END ? name_over(p, x) : part;
}

/* What is no tag behind a parameter: some text, or the parameter's closing tag once more. It is
 * dropped if a tag of the call follows. */
static enum part noise(struct parser *p, struct xml *x)
{
    const char *const again[FORMAT_TAGS] = {format_row(p)->value_close};
    size_t whole;
    bool begun = tag_begun(again, x->tag, x->n_tag, &whole) >= 0;
    bool text = x->n_tag == 1 && x->tag[0] != '<';
    if (!x->any || x->wrapped || (!begun && !text))
        return PART_BAD;
    call_noise(p);
    if (whole || text)
        x->n_tag = 0;
    return PART_MORE;
}

static enum part between_byte(struct parser *p, struct xml *x, char c)
{
    bool begun = x->n_tag || x->any || x->inner.len;
    if (is_blank(c) && x->n_tag == 0)
        return PART_MORE;
    if (c == '{' && !begun && format_row(p)->flags & XML_BODY) {
        lenient_json_init(&x->body, NULL, false);
        buf_reset(&x->text);
        x->place = BODY;
        return in_body(p, x, c);
    }
    x->tag[x->n_tag++] = c;
    switch (next_tag(p, x->tag, x->n_tag)) {
    case NEXT_MORE:
        return PART_MORE;
    case NEXT_KEY:
        if (x->is_body)
            return PART_BAD;
        x->n_tag = 0;
        x->place = KEY;
        buf_reset(&x->text);
        announce(p, x);
        return PART_MORE;
    case NEXT_CLOSE:
        return call_over(p, x);
    case NEXT_LAYOUT: /* the call's own closing tag was forgotten */
        return call_over(p, x);
    default:
        return noise(p, x);
    }
}

/* ---- values ---- */

static void put_text(struct parser *p, const struct xml *x, const char *text, size_t n)
{
    if (!x->skip)
        call_args(p, text, n);
}

static void put_escaped(struct parser *p, const struct xml *x, char c)
{
    struct buf piece = BUF_INIT;
    lenient_json_escape(&piece, c);
    kept(p, &piece);
    put_text(p, x, buf_str(&piece), piece.len);
    buf_release(&piece);
}

static void start_string(struct parser *p, struct xml *x)
{
    x->string = true;
    put_text(p, x, "\"", 1);
}

static void begin_value(struct parser *p, struct xml *x)
{
    x->place = VALUE;
    if (x->types == TYPE_STRING && !x->wrapped)
        start_string(p, x);
}

static const json_t *properties(const struct parser *p, const struct xml *x)
{
    const json_t *f = format_function(p, buf_str(&x->name));
    return json_object_get(json_object_get(f, "parameters"), "properties");
}

/* May this parameter, the first of the call, hold all the others? */
static bool may_wrap(const struct parser *p, const struct xml *x, const char *key)
{
    static const char *const names[] = {"arguments", "input", "properties", "parameters"};
    const json_t *known = properties(p, x);
    if (!(format_row(p)->flags & XML_WRAPPED) || x->any || !json_object_size(known))
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0)
            return !json_object_get(known, key);
    return false;
}

static json_t *loaded(const struct buf *b)
{
    return json_read_bytes(buf_str(b), b->len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
}

/* Is text[0..n) an object of known parameters, or a string that holds one? Then it goes to
 * `inner`. */
static bool unwrap(struct parser *p, struct xml *x, const char *text, size_t n)
{
    const json_t *known = properties(p, x);
    const char *key;
    json_t *member;
    buf_reset(&x->inner);
    bool fits = lenient_json_whole(text, n, &x->inner);
    json_t *v = fits ? loaded(&x->inner) : NULL;
    if (json_is_string(v)) {
        json_t *string = v;
        buf_reset(&x->inner);
        fits = lenient_json_whole(json_string_value(v), json_string_length(v), &x->inner);
        v = fits ? loaded(&x->inner) : NULL;
        json_decref(string);
    }
    fits = json_is_object(v);
    json_object_foreach (v, key, member)
        fits &= json_object_get(known, key) != NULL;
    json_decref(v);
    kept(p, &x->inner);
    if (!fits)
        buf_reset(&x->inner);
    return fits;
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* A JSON object in place of parameters. It goes out when it is complete: it may wrap them. */
static enum part in_body(struct parser *p, struct xml *x, char c)
{
    enum lenient_json_step step = lenient_json_byte(&x->body, c, &x->text);
    kept(p, &x->text);
    if (step == LENIENT_JSON_MORE)
        return PART_MORE;
    if (step != LENIENT_JSON_END)
        return PART_BAD;
    json_t *v = loaded(&x->text);
    const char *key = json_object_iter_key(json_object_iter(v));
    struct buf member = BUF_INIT;
    if (json_object_size(v) == 1 && may_wrap(p, x, key))
        json_dump_callback(json_object_get(v, key), add_piece, &member, JSON_ENCODE_ANY);
    kept(p, &member);
    if (!member.len || !unwrap(p, x, member.data, member.len))
        buf_add(&x->inner, buf_str(&x->text), x->text.len);
    kept(p, &x->inner);
    buf_release(&member);
    json_decref(v);
    x->is_body = true;
    x->place = BETWEEN;
    return PART_MORE;
}

/* The name goes out, and what was taken for all the arguments before it. */
static void put_head(struct parser *p, struct xml *x)
{
    kept(p, &x->head);
    put_text(p, x, buf_str(&x->head), x->head.len);
    buf_reset(&x->head);
    if (x->inner.len)
        put_text(p, x, x->inner.data, x->inner.len);
    buf_reset(&x->inner);
}

/* Did the parameter come before? It is kept if not. */
static bool came_before(struct parser *p, struct xml *x)
{
    if (!(format_row(p)->flags & XML_ONCE))
        return false;
    for (size_t i = 0; i < x->keys.len; i += strlen(x->keys.data + i) + 1)
        if (strcmp(x->keys.data + i, x->key) == 0)
            return true;
    if (x->keys.len < KEYS_MAX)
        buf_add(&x->keys, x->key, strlen(x->key) + 1);
    kept(p, &x->keys);
    return false;
}

/* What the tag and the tools say of the value's type. The tools know better, but a string that is
 * said to be one stays one where strings are allowed. */
static unsigned types_said(const struct parser *p, const struct xml *x, const char *attributes)
{
    unsigned known = types_of(format_function(p, buf_str(&x->name)), x->key);
    const bool string =
        strstr(attributes, "string=\"true\"") || strstr(attributes, " type=\"string\"");
    const bool other = strstr(attributes, "string=\"false\"") || strstr(attributes, " type=\"");
    if (string && (!known || known & TYPE_STRING))
        return TYPE_STRING;
    if (!known)
        return other ? ~(TYPE_STRING | TYPE_NONE) : 0;
    return known & TYPE_NULL && format_row(p)->flags & XML_NONE ? known | TYPE_NONE : known;
}

static enum part key_over(struct parser *p, struct xml *x)
{
    size_t n;
    const char *name = bare_name(&x->text, format_row(p)->flags & XML_ATTRIBUTES, &n);
    struct buf key = BUF_INIT;
    buf_add(&key, name, n);
    unescape(p, &key);
    kept(p, &key);
    n = key.len;
    memcpy(x->key, buf_str(&key), n + 1);
    buf_release(&key);
    if (n == 0)
        return PART_BAD;
    if (x->inner.len) { /* it was one of several */
        put_head(p, x);
        x->any = true;
    }
    x->skip = came_before(p, x);
    x->wrapped = !x->skip && may_wrap(p, x, x->key);
    if (!x->skip) {
        buf_add_str(&x->head, x->any ? ", " : "{");
        buf_add_json_str(&x->head, x->key, n);
        buf_add_str(&x->head, ": ");
        if (!x->wrapped)
            put_head(p, x);
    }
    snprintf(x->close, sizeof x->close, "%s", format_row(p)->value_close);
    x->cdata = false;
    x->types = types_said(p, x, buf_str(&x->text));
    x->any |= !x->wrapped;
    x->first = true;
    x->newline = x->string = false;
    x->guess = GUESS_NOTHING;
    x->n_tag = 0;
    buf_reset(&x->text);
    if (format_row(p)->value_open)
        x->place = VALUE_OPEN;
    else
        begin_value(p, x);
    return PART_MORE;
}

static enum part in_key(struct parser *p, struct xml *x, char c)
{
    enum part part = collect_until(x, format_row(p)->key_end, c);
    return part == PART_END ? key_over(p, x) : part;
}

static enum part value_open(struct parser *p, struct xml *x, char c)
{
    const struct tool_format *f = format_row(p);
    const char *const tags[FORMAT_TAGS] = {f->value_open, f->type_open};
    size_t whole;
    if (is_blank(c) && x->n_tag == 0)
        return PART_MORE;
    x->tag[x->n_tag++] = c;
    int i = tag_begun(tags, x->tag, x->n_tag, &whole);
    if (whole)
        x->n_tag = 0;
    if (whole && i == 0)
        begin_value(p, x);
    else if (whole)
        x->place = TYPE;
    return i < 0 ? PART_BAD : PART_MORE;
}

/* The type that the model says, "array[string]" for one, chooses among those of the schema; without
 * a schema it counts. "any" keeps the text as it is. */
static enum part in_type(struct parser *p, struct xml *x, char c)
{
    enum part part = collect_until(x, format_row(p)->type_close, c);
    if (part != PART_END)
        return part;
    const char *name = buf_str(&x->text) + strspn(buf_str(&x->text), " \t\r\n");
    size_t n = strcspn(name, "[ \t\r\n");
    unsigned said = n == 3 && strncmp(name, "any", 3) == 0 ? TYPE_STRING : types_named(name, n);
    if (x->types == 0 || x->types & said)
        x->types = said;
    buf_reset(&x->text);
    x->place = VALUE_OPEN;
    return PART_MORE;
}

/* Of unknown type: can what came, with this byte the last, still be anything but a string? */
static bool undecided(struct xml *x, char c)
{
    static const char *const words[] = {"true", "false", "null", "True", "False", "None"};
    if (x->guess == GUESS_VALUE)
        return true;
    if (is_blank(c)) {
        x->guess = x->guess == GUESS_WORD ? GUESS_WORD_OVER : x->guess;
        return true;
    }
    if (x->guess == GUESS_WORD_OVER)
        return false;
    if (x->guess == GUESS_NOTHING) {
        x->guess = c && strchr("{[-+.0123456789", c) ? GUESS_VALUE : GUESS_WORD;
        x->word_at = x->text.len - 1;
    }
    const char *word = buf_str(&x->text) + x->word_at;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(words[i], word, x->text.len - x->word_at) == 0)
            return true;
    return x->guess == GUESS_VALUE;
}

static void value_text(struct parser *p, struct xml *x, char c)
{
    if (x->string) {
        put_escaped(p, x, c);
        return;
    }
    buf_add_char(&x->text, c);
    if (x->types || x->wrapped || x->text.failed || undecided(x, c))
        return;
    start_string(p, x);
    for (size_t i = 0; i < x->text.len; i++)
        put_escaped(p, x, x->text.data[i]);
    buf_reset(&x->text);
}

/* A byte of the value itself. With XML_TRIM a newline at either end is layout. */
static void value_take(struct parser *p, struct xml *x, char c)
{
    bool trim = (format_row(p)->flags & XML_TRIM) && !x->cdata, first = x->first;
    x->first = false;
    if (trim && first && c == '\n')
        return;
    if (x->newline)
        value_text(p, x, '\n');
    x->newline = trim && c == '\n';
    if (!x->newline)
        value_text(p, x, c);
}

/* The tags that count inside a value: what ends it, at its begin what puts it into CDATA, what
 * begins the next parameter (from i_key on), and what ends the call (from i_end on). */
struct value_tags {
    const char *tags[FORMAT_TAGS + 1];
    size_t i_key, i_end;
};

static struct value_tags value_tags(const struct parser *p, const struct xml *x)
{
    const struct tool_format *f = format_row(p);
    struct value_tags v = {{x->close}, 1, FORMAT_TAGS};
    if (x->first && (f->flags & XML_CDATA))
        v.tags[v.i_key++] = "<![CDATA[";
    if (!(f->flags & XML_KEY_ENDS) || x->cdata)
        return v;
    size_t n = v.i_end = v.i_key + key_tags(f, v.tags + v.i_key);
    for (size_t i = 0; i < FORMAT_TAGS && f->close[i] && n < FORMAT_TAGS; i++)
        v.tags[n++] = f->close[i];
    for (size_t i = 0; i < FORMAT_TAGS && f->layout[i] && n < FORMAT_TAGS; i++)
        if (f->layout[i][1] == '/')
            v.tags[n++] = f->layout[i];
    return v;
}

static enum part value_ends_call(struct parser *p, struct xml *x);
static void value_over(struct parser *p, struct xml *x);

/* Can no tag be part of the value? */
static bool is_plain(unsigned types)
{
    return types && !(types & (TYPE_STRING | TYPE_ARRAY | TYPE_OBJECT));
}

static enum part in_value(struct parser *p, struct xml *x, char c)
{
    x->tag[x->n_tag++] = c;
    while (x->n_tag) {
        const struct value_tags v = value_tags(p, x);
        size_t whole;
        int i = tag_begun(v.tags, x->tag, x->n_tag, &whole);
        if (whole && i == 1 && v.i_key == 2) {
            x->n_tag = 0;
            x->cdata = true;
            x->first = false;
            snprintf(x->close, sizeof x->close, "]]>%s", format_row(p)->value_close);
            return PART_MORE;
        }
        if (whole) {
            buf_reset(&x->ahead);
            buf_add(&x->ahead, x->tag, whole);
            x->n_close = whole;
            x->n_tag = 0;
            x->place = (size_t)i < v.i_key ? CLOSED : (size_t)i < v.i_end ? OPENED : ENDED;
        }
        if (whole && x->place == ENDED && is_plain(x->types))
            return value_ends_call(p, x);
        if (whole && x->place == CLOSED && is_plain(x->types)) {
            value_over(p, x);
            x->place = BETWEEN;
        }
        if (i >= 0)
            return PART_MORE;
        value_take(p, x, x->tag[0]);
        memmove(x->tag, x->tag + 1, --x->n_tag);
    }
    return PART_MORE;
}

static void value_over(struct parser *p, struct xml *x)
{
    struct buf value = BUF_INIT;
    if (x->string) {
        put_text(p, x, "\"", 1);
    } else if (!x->wrapped || !unwrap(p, x, buf_str(&x->text), x->text.len)) {
        if (x->wrapped)
            put_head(p, x);
        x->any = true;
        types_value(x->types, buf_str(&x->text), x->text.len, &value);
        kept(p, &value);
        put_text(p, x, buf_str(&value), value.len);
    }
    x->wrapped = x->skip = false;
    buf_release(&value);
    buf_reset(&x->text);
    x->n_tag = 0;
}

/* The tag that was read ahead is text of the value, and what follows it is read again. */
static enum part tag_is_text(struct parser *p, struct xml *x)
{
    x->place = VALUE;
    value_take(p, x, x->ahead.data[0]);
    region_unread(p, x->ahead.data + 1, x->ahead.len - 1);
    return PART_MORE;
}

/* A tag of a parameter inside a value: it ends the value if it names a parameter of the function,
 * or, of a function that is not known, anything that could be one. */
static enum part opened_byte(struct parser *p, struct xml *x, char c)
{
    const char *end = format_row(p)->key_end;
    buf_add_char(&x->ahead, c);
    size_t n = x->ahead.len - x->n_close, n_end = tag_ends(end, x->ahead.data + x->n_close, n);
    if (!n_end)
        return c == '\n' || c == '<' || n > FORMAT_NAME_MAX ? tag_is_text(p, x) : PART_MORE;
    struct buf key = BUF_INIT;
    size_t n_name;
    buf_add(&key, x->ahead.data + x->n_close, n - n_end);
    const char *name = bare_name(&key, format_row(p)->flags & XML_ATTRIBUTES, &n_name);
    char known[FORMAT_NAME_MAX + 1];
    memcpy(known, name, n_name);
    known[n_name] = 0;
    const json_t *all = properties(p, x);
    bool fits = n_name && known[strcspn(known, " \t\"'<>{}()[]=")] == 0 &&
                (!json_object_size(all) || json_object_get(all, known));
    if (fits) {
        value_over(p, x);
        buf_reset(&x->text);
        buf_add(&x->text, key.data, key.len);
    }
    kept(p, &key);
    buf_release(&key);
    return fits ? key_over(p, x) : tag_is_text(p, x);
}

/* The value ends with the call. The call's own closing tag belongs to it; what follows is read
 * again. */
static enum part value_ends_call(struct parser *p, struct xml *x)
{
    size_t whole;
    tag_begun(format_row(p)->close, x->ahead.data, x->ahead.len, &whole);
    value_over(p, x);
    call_over(p, x);
    region_unread(p, x->ahead.data + whole, x->ahead.len - whole);
    return PART_END;
}

/* The call's closing tag inside a value: it ends both if what wraps a call, or another call,
 * follows. Where the text ends, xml_finish decides. */
static enum part ended_byte(struct parser *p, struct xml *x, char c)
{
    const struct tool_format *f = format_row(p);
    size_t at = x->n_close, whole_open, whole_layout;
    buf_add_char(&x->ahead, c);
    while (at < x->ahead.len && is_blank(x->ahead.data[at]))
        at++;
    if (at == x->ahead.len)
        return at < x->n_close + FORMAT_TAG_MAX ? PART_MORE : tag_is_text(p, x);
    int open = tag_begun(f->open, x->ahead.data + at, x->ahead.len - at, &whole_open);
    int layout = tag_begun(f->layout, x->ahead.data + at, x->ahead.len - at, &whole_layout);
    if (whole_open || whole_layout)
        return value_ends_call(p, x);
    return open >= 0 || layout >= 0 ? PART_MORE : tag_is_text(p, x);
}

/* Was the closing tag one? What follows tells. */
static enum part closed_byte(struct parser *p, struct xml *x, char c)
{
    size_t at = x->n_close;
    buf_add_char(&x->ahead, c);
    while (at < x->ahead.len && is_blank(x->ahead.data[at]))
        at++;
    if (at == x->ahead.len && at < x->n_close + FORMAT_TAG_MAX)
        return PART_MORE;
    enum next next =
        at < x->ahead.len ? next_tag(p, x->ahead.data + at, x->ahead.len - at) : NEXT_NONE;
    if (next == NEXT_MORE)
        return PART_MORE;
    if (next == NEXT_NONE)
        return tag_is_text(p, x);
    value_over(p, x);
    x->place = BETWEEN;
    size_t n = x->ahead.len - at - 1;
    memcpy(x->tag, x->ahead.data + at, n);
    x->n_tag = n;
    return between_byte(p, x, c);
}

static enum part read_byte(struct parser *p, struct xml *x, char c)
{
    switch (x->place) {
    case NAME:
        return in_name(p, x, c);
    case BETWEEN:
        return between_byte(p, x, c);
    case BODY:
        return in_body(p, x, c);
    case KEY:
        return in_key(p, x, c);
    case VALUE_OPEN:
        return value_open(p, x, c);
    case TYPE:
        return in_type(p, x, c);
    case VALUE:
        return in_value(p, x, c);
    case OPENED:
        return opened_byte(p, x, c);
    case ENDED:
        return ended_byte(p, x, c);
    default:
        return closed_byte(p, x, c);
    }
}

static enum part xml_byte(struct parser *p, char c)
{
    struct xml *x = format_state(p);
    enum part part = read_byte(p, x, c);
    kept(p, &x->name);
    kept(p, &x->text);
    kept(p, &x->ahead);
    return part;
}

/* A value that was closed when the text ended is complete. */
static bool xml_finish(struct parser *p)
{
    struct xml *x = format_state(p);
    if (x->place == CLOSED)
        value_over(p, x);
    if (x->place == ENDED && !text_was_cut(p))
        return value_ends_call(p, x) == PART_END;
    return false;
}

static void xml_release(struct parser *p)
{
    struct xml *x = format_state(p);
    buf_release(&x->name);
    buf_release(&x->text);
    buf_release(&x->ahead);
    buf_release(&x->head);
    buf_release(&x->inner);
    buf_release(&x->keys);
}

const struct tool_family family_xml = {
    .state_bytes = sizeof(struct xml),
    .begin = xml_begin,
    .byte = xml_byte,
    .finish = xml_finish,
    .release = xml_release,
};
