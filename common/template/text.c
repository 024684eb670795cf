/* SPDX-License-Identifier: Apache-2.0 */
#include "common/template/text.h"
#include "common/utf8.h"

#define ROOM_MIN 64 /* bytes of the first room a growing string gets */
#define ROLE_MAX 64 /* bytes of a role that a template names */

const unsigned char TEXT_ALL[1] = {1};

static enum q_code str_new(struct interp *in, const char *data, size_t n, struct value *out)
{
    struct str *s;
    enum q_code rc = in_alloc(in, &s, 1, sizeof *s);
    if (rc)
        return rc;
    *s = (struct str){.data = data, .n = n, .n_char = n ? STR_UNCOUNTED : 0};
    *out = v_str(s);
    return Q_OK;
}

enum q_code text_new(struct interp *in, const char *data, size_t n, struct value *out)
{
    char *copy;
    enum q_code rc;
    if ((rc = in_alloc(in, &copy, n + 1, 1)) || (rc = in_charge(in, cost_copy(n))))
        return rc;
    if (n)
        memcpy(copy, data, n);
    return str_new(in, copy, n, out);
}

enum q_code text_borrow(struct interp *in, const char *data, size_t n, struct value *out)
{
    return str_new(in, data, n, out);
}

enum q_code text_slice(struct interp *in, const struct str *s, size_t from, size_t to,
                       struct value *out)
{
    enum q_code rc = str_new(in, s->data + from, to > from ? to - from : 0, out);
    if (rc)
        return rc;
    if (s->n_char == s->n) /* a part of ASCII is ASCII */
        out->as.s->n_char = out->as.s->n;
    bool mixed = s->content && s->content != TEXT_ALL;
    out->as.s->content = mixed ? s->content + from : s->content;
    return Q_OK;
}

size_t text_chars(struct str *s)
{
    if (s->n_char == STR_UNCOUNTED)
        s->n_char = utf8_count(s->data, s->n);
    return s->n_char;
}

size_t text_offset(struct str *s, size_t i_char)
{
    size_t n_char = text_chars(s), byte = 0;
    if (i_char >= n_char)
        return s->n;
    if (n_char == s->n)
        return i_char;
    for (; byte < s->n; byte++)
        if (((unsigned char)s->data[byte] & 0xC0) != 0x80 && i_char-- == 0)
            break;
    return byte;
}

bool text_is(const struct str *s, const char *literal)
{
    return s->n == strlen(literal) && memcmp(s->data, literal, s->n) == 0;
}

int text_compare(const struct str *a, const struct str *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->data, b->data, n) : 0;
    return order ? order : a->n < b->n ? -1 : a->n > b->n;
}

/* A room whose used part is exactly `a`, with space for n more bytes. */
static enum q_code room_for(struct interp *in, struct str *a, size_t n, struct str_room **out)
{
    enum q_code rc;
    struct str_room *r = a->room;
    if (r && a->data + a->n == r->data + r->used && r->cap - r->used >= n) {
        *out = r;
        return Q_OK;
    }
    size_t need = a->n + n, cap = need < ROOM_MIN ? ROOM_MIN : a->room ? need * 2 : need + need / 8;
    if ((rc = in_alloc(in, &r, 1, sizeof *r)) || (rc = in_alloc(in, &r->data, cap, 1)))
        return rc;
    if (a->n)
        memcpy(r->data, a->data, a->n);
    r->used = a->n;
    r->cap = cap;
    *out = r;
    return in_charge(in, cost_copy(a->n));
}

/* Write at map[0..s->n) where the bytes of s came from. */
static void put_origin(unsigned char *map, const struct str *s)
{
    if (s->content && s->content != TEXT_ALL)
        memmove(map, s->content, s->n);
    else
        memset(map, s->content != NULL, s->n);
}

/* The origin of a followed by b, which end at r->used. */
static enum q_code join_origin(struct interp *in, struct str_room *r, const struct str *a,
                               const struct str *b, const unsigned char **out)
{
    enum q_code rc;
    bool mixed = a->content != b->content || (a->content && a->content != TEXT_ALL);
    *out = a->content;
    if (!mixed)
        return Q_OK;
    size_t start = r->used - a->n - b->n;
    bool fresh = !r->content || a->content != r->content + start;
    if (!r->content && (rc = in_alloc(in, &r->content, r->cap, 1)))
        return rc;
    if (fresh)
        put_origin(r->content + start, a);
    put_origin(r->content + start + a->n, b);
    *out = r->content + start;
    return in_charge(in, cost_copy((fresh ? a->n : 0) + b->n));
}

/* a is extended in place when it is the last string of its room; strings that end earlier there do
 * not notice. */
enum q_code text_concat(struct interp *in, struct str *a, struct str *b, struct value *out)
{
    enum q_code rc;
    struct str_room *r;
    if (b->n == 0 || a->n == 0) {
        *out = v_str(b->n == 0 ? a : b);
        return Q_OK;
    }
    size_t n_char = a->n_char != STR_UNCOUNTED && b->n_char != STR_UNCOUNTED ? a->n_char + b->n_char
                                                                             : STR_UNCOUNTED;
    if ((rc = room_for(in, a, b->n, &r)))
        return rc;
    size_t start = r->used - a->n;
    memmove(r->data + r->used, b->data, b->n);
    r->used += b->n;
    if ((rc = str_new(in, r->data + start, a->n + b->n, out)) ||
        (rc = join_origin(in, r, a, b, &out->as.s->content)) ||
        (rc = in_charge(in, cost_copy(b->n))))
        return rc;
    out->as.s->room = r;
    out->as.s->n_char = n_char;
    return Q_OK;
}

size_t text_mark(const struct interp *in)
{
    return in->out.len;
}

/* The origin of in->out from `mark` on. */
static enum q_code take_origin(struct interp *in, size_t mark, const unsigned char **out)
{
    const struct ranges *r = &in->content;
    size_t i = ranges_find(r, mark), n = in->out.len - mark;
    unsigned char *map;
    *out = NULL;
    if (i == r->n || n == 0)
        return Q_OK;
    *out = TEXT_ALL;
    if (r->at[i].start <= mark && r->at[i].end == in->out.len)
        return Q_OK;
    enum q_code rc = in_alloc(in, &map, n, 1);
    if (rc)
        return rc;
    memset(map, 0, n);
    for (; i < r->n; i++) {
        size_t start = r->at[i].start > mark ? r->at[i].start - mark : 0;
        memset(map + start, 1, r->at[i].end - mark - start);
    }
    *out = map;
    return in_charge(in, cost_copy(n) + (r->n - i) / 8);
}

enum q_code text_take(struct interp *in, size_t mark, struct value *out)
{
    const unsigned char *origin;
    enum q_code rc = in_output_check(in);
    if (rc || (rc = take_origin(in, mark, &origin)) ||
        (rc = text_new(in, buf_str(&in->out) + mark, in->out.len - mark, out)))
        return rc;
    out->as.s->content = origin;
    in->out.len = mark;
    ranges_cut(&in->content, mark);
    ranges_cut(&in->generated, mark);
    return Q_OK;
}

/* in->out[from..to) is the request's. */
static void note_content(struct interp *in, size_t from, size_t to)
{
    struct q_err e;
    enum q_code rc = in->out.failed ? Q_OK : ranges_add(&in->content, from, to, &e);
    if (rc)
        in->out.failed = rc;
}

void text_add(struct interp *in, const struct str *s, size_t from, size_t to)
{
    size_t mark = in->out.len;
    if (to <= from)
        return;
    buf_add(&in->out, s->data + from, to - from);
    if (!s->content || in->out.failed)
        return;
    if (s->content == TEXT_ALL) {
        note_content(in, mark, in->out.len);
        return;
    }
    for (size_t i = from, end; i < to; i = end) {
        unsigned char kind = s->content[i];
        const unsigned char *other = memchr(s->content + i, !kind, to - i);
        end = other ? (size_t)(other - s->content) : to;
        if (kind)
            note_content(in, mark + (i - from), mark + (end - from));
    }
}

void text_add_all(struct interp *in, const struct str *s)
{
    text_add(in, s, 0, s->n);
}

void text_made_of(struct interp *in, size_t mark, const struct str *s, size_t from, size_t to)
{
    if (!s->content || to <= from)
        return;
    if (s->content == TEXT_ALL || memchr(s->content + from, 1, to - from))
        note_content(in, mark, in->out.len);
}

enum q_code need_str(struct interp *in, struct value v, const char *what, struct str **out)
{
    if (v.kind == V_UNDEF)
        return in_undefined(in, v.as.undef);
    if (v.kind != V_STR)
        return in_raise(in, "TypeError", "%s must be str, not %s", what, value_type_name(v));
    *out = v.as.s;
    return Q_OK;
}

enum q_code need_int(struct interp *in, struct value v, const char *what, int64_t *out)
{
    if (v.kind == V_UNDEF)
        return in_undefined(in, v.as.undef);
    if (!v_is_int(v))
        return in_raise(in, "TypeError", "%s must be int, not %s", what, value_type_name(v));
    *out = v_as_int(v);
    return Q_OK;
}

/* ---- from JSON ---- */

/* Is the word, in quotes, in the template's source? */
static bool is_in_source(const struct template *t, const char *word, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    char quoted[ROLE_MAX + 2];
    if (n == 0 || n > ROLE_MAX || strspn(word, letters) != n)
        return false;
    memcpy(quoted + 1, word, n);
    quoted[0] = quoted[n + 1] = '\'';
    if (memmem(t->source, t->n, quoted, n + 2))
        return true;
    quoted[0] = quoted[n + 1] = '"';
    return memmem(t->source, t->n, quoted, n + 2) != NULL;
}

/* Templates write "<|" ~ message.role ~ "|>": these roles, and those that the template names, may
 * become part of a control token. */
static bool is_known_role(const struct interp *in, const char *key, const json_t *v)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    const char *role = strcmp(key, "role") == 0 ? json_string_value(v) : NULL;
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (json_string_length(v) == strlen(roles[i]) && strcmp(role, roles[i]) == 0)
            return true;
    return role && is_in_source(in->t, role, json_string_length(v));
}

static enum q_code borrow_from(struct interp *in, const char *data, size_t n,
                               const unsigned char *origin, struct value *out)
{
    enum q_code rc = text_borrow(in, data, n, out);
    if (!rc)
        out->as.s->content = origin;
    return rc;
}

static enum q_code object_from_json(struct interp *in, const json_t *j, const unsigned char *origin,
                                    struct value *out)
{
    enum q_code rc;
    struct dict *d;
    if ((rc = dict_new(in, json_object_size(j), &d)))
        return rc;
    void *it = json_object_iter((json_t *)j);
    for (; it; it = json_object_iter_next((json_t *)j, it)) {
        struct value key, v;
        const char *name = json_object_iter_key(it);
        const json_t *item = json_object_iter_value(it);
        const unsigned char *from = is_known_role(in, name, item) ? NULL : origin;
        if ((rc = borrow_from(in, name, strlen(name), origin, &key)) ||
            (rc = value_from_json(in, item, from, &v)) || (rc = dict_put(in, d, key, v)))
            return rc;
    }
    *out = v_dict(d);
    return Q_OK;
}

static enum q_code array_from_json(struct interp *in, const json_t *j, const unsigned char *origin,
                                   struct value *out)
{
    enum q_code rc;
    struct seq *s;
    if ((rc = seq_new(in, json_array_size(j), &s)))
        return rc;
    for (size_t i = 0; i < json_array_size(j); i++) {
        struct value v;
        if ((rc = value_from_json(in, json_array_get(j, i), origin, &v)) ||
            (rc = seq_add(in, s, v)))
            return rc;
    }
    *out = v_seq(V_LIST, s);
    return Q_OK;
}

enum q_code value_from_json(struct interp *in, const json_t *j, const unsigned char *origin,
                            struct value *out)
{
    enum q_code rc;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        if (!(rc = in_enter(in)))
            rc = json_is_object(j) ? object_from_json(in, j, origin, out)
                                   : array_from_json(in, j, origin, out);
        in_leave(in);
        return rc;
    case JSON_STRING:
        return borrow_from(in, json_string_value(j), json_string_length(j), origin, out);
    case JSON_INTEGER:
        *out = v_int(json_integer_value(j));
        return Q_OK;
    case JSON_REAL:
        *out = v_float(json_real_value(j));
        return Q_OK;
    case JSON_NULL:
        *out = v_none();
        return Q_OK;
    default:
        *out = v_bool(json_is_true(j));
        return Q_OK;
    }
}
