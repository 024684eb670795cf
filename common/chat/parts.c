/* SPDX-License-Identifier: Apache-2.0 */
/* A mark is PARTS_NONCE random digits and the item's number. Digits survive what templates do to
 * text: tojson, trim, upper, escaping. A template that drops a message's content, or writes it
 * twice, shows by the marks, and is an error: an item is never lost in silence. Of literals the
 * number must be that of the images. */
#include "common/chat/parts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "common/items/item_image.h"
#include "common/json_kind.h"
#include "common/mem.h"

#define NUMBER_DIGITS 5u
#define MARK_BYTES    (PARTS_NONCE + NUMBER_DIGITS)

_Static_assert(ITEM_LIST_MAX <= 100000, "NUMBER_DIGITS hold an item's number");

const struct item_type *parts_type(const struct parts *p, const char *type)
{
    for (uint32_t i = 0; p->types && i < p->types->n; i++)
        if (*type && !strcmp(p->types->rows[i].part_type, type))
            return &p->types->rows[i];
    for (uint32_t i = 0; p->types && i < p->types->n; i++)
        if (*p->types->rows[i].part_type && !strcmp(p->types->rows[i].modality, type))
            return &p->types->rows[i];
    const bool is_word = !strcmp(type, "input_image") || !strcmp(type, "image");
    for (uint32_t i = 0; is_word && p->types && i < p->types->n; i++)
        if (item_type_is_image(&p->types->rows[i]))
            return &p->types->rows[i];
    return NULL;
}

FALLIBLE parts_no_type(const struct parts *p, const char *type, size_t i_message, struct q_err *e)
{
    struct buf names = BUF_INIT;
    bool any = false;
    if (p->types && p->types->unknown)
        return q_fail(e, Q_UNAVAILABLE,
                      "messages: entry %zu: content of type \"%.40s\": no engine is connected yet "
                      "that says which types it takes; retry later",
                      i_message, type);
    for (uint32_t i = 0; p->types && i < p->types->n; i++) {
        const char *name = p->types->rows[i].part_type;
        if (*name)
            buf_printf(&names, ", %s", name);
        any |= *name != '\0';
    }
    enum q_code rc =
        q_fail(e, Q_UNSUPPORTED,
               "messages: entry %zu: content of type \"%.40s\" is not supported; accepted %s "
               "text%s",
               i_message, type, any ? "are" : "is", buf_str(&names));
    buf_release(&names);
    return rc;
}

static FALLIBLE make_nonce(struct parts *p, struct q_err *e)
{
    uint64_t random[2];
    if (*p->nonce)
        return Q_OK;
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return q_fail(e, Q_INTERNAL, "no random numbers");
    snprintf(p->nonce, sizeof p->nonce, "%020" PRIu64 "%020" PRIu64, random[0], random[1]);
    return Q_OK;
}

static void add_mark(const struct parts *p, size_t i_item, struct buf *text)
{
    buf_printf(text, "%s%05zu", p->nonce, i_item);
}

/* The member with the value: named as the part's type, or as the modality. */
static FALLIBLE value_of(const json_t **out, const struct item_type *type, const json_t *part,
                         struct q_err *e)
{
    const bool same = !strcmp(type->part_type, type->modality);
    const char *key;
    json_t *v;
    *out = NULL;
    json_object_foreach ((json_t *)(uintptr_t)part, key, v) {
        const bool is_value = !strcmp(key, type->part_type) || !strcmp(key, type->modality);
        if (is_value && *out)
            return q_fail(e, Q_INVALID, "both \"%s\" and \"%s\" are given; expected one of them",
                          type->part_type, type->modality);
        if (is_value)
            *out = v;
        else if (strcmp(key, "type") != 0)
            return q_fail(e, Q_INVALID, "unknown member \"%.40s\"; expected type and \"%s\"", key,
                          type->part_type);
    }
    if (*out && !json_is_null(*out))
        return Q_OK;
    return same ? q_fail(e, Q_INVALID, "it has no \"%s\"", type->part_type)
                : q_fail(e, Q_INVALID, "it has no \"%s\" (or \"%s\")", type->part_type,
                         type->modality);
}

/* The member with an image; what other members say has no effect. uuid: vLLM's name of an image
 * that it has seen; here a cached image is found by its bytes. */
static FALLIBLE image_of(const json_t **out, const struct item_type *type, const json_t *part,
                         struct q_err *e)
{
    static const char *const ignored[] = {"type", "detail", "uuid", "cache_control", "file_id"};
    const json_t *detail = json_object_get(part, "detail"), *uuid = json_object_get(part, "uuid"),
                 *file = json_object_get(part, "file_id");
    const char *key;
    json_t *v;
    enum q_code rc = item_image_detail(detail, e);
    *out = NULL;
    if (rc)
        return rc;
    if (uuid && !json_is_null(uuid) && !json_is_string(uuid))
        return q_fail(e, Q_INVALID, "uuid: expected a string, got %s", json_kind(uuid));
    if (file && !json_is_null(file))
        return q_fail(e, Q_UNSUPPORTED,
                      "file_id: files are not kept; send the image itself as image_url, "
                      "\"data:image/png;base64,…\"");
    json_object_foreach ((json_t *)(uintptr_t)part, key, v) {
        bool is_ignored = json_is_null(v);
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
            is_ignored |= !strcmp(key, ignored[i]);
        const bool is_value =
            !strcmp(key, type->part_type) || !strcmp(key, type->modality) || !strcmp(key, "source");
        if (is_ignored)
            continue;
        if (!is_value)
            return q_fail(e, Q_INVALID,
                          "unknown member \"%.40s\"; expected type, \"%s\" and detail", key,
                          type->part_type);
        if (*out)
            return q_fail(e, Q_INVALID, "two members have an image; expected one");
        *out = v;
    }
    if (*out)
        return Q_OK;
    return uuid && !json_is_null(uuid)
               ? q_fail(e, Q_UNSUPPORTED,
                        "it has a uuid and no image: images are not kept by name; "
                        "send the image in each request")
               : q_fail(e, Q_INVALID, "it has no \"%s\"", type->part_type);
}

static FALLIBLE add_items(struct parts *p, const struct item_type *type, const json_t *part,
                          struct buf *text, struct q_err *e)
{
    const size_t at = (size_t)(type - p->types->rows), first = p->list.n;
    const json_t *value;
    enum q_code rc;
    if (!first)
        p->list.data.max = ITEM_LIST_BYTES;
    if ((rc = item_type_is_image(type) ? image_of(&value, type, part, e)
                                       : value_of(&value, type, part, e)) ||
        (rc = make_nonce(p, e)) ||
        (rc = item_list_add(&p->list, type, p->n_of[at], value, &p->rules, e)))
        return rc;
    p->n_of[at] += p->list.n - first;
    if (p->n_of[at] > type->max_items)
        return q_fail(e, Q_INVALID,
                      "%s: more than %u items, expected at most %u in a request "
                      "(--limit-mm-per-prompt)",
                      type->modality, type->max_items, type->max_items);
    for (size_t i = first; text && i < p->list.n; i++)
        add_mark(p, i, text);
    return Q_OK;
}

FALLIBLE parts_add(struct parts *p, const struct item_type *type, const json_t *part,
                   const struct part_place *at, struct buf *text, struct q_err *e)
{
    enum q_code rc;
    if (!strcmp(at->role, "assistant"))
        rc = q_fail(e, Q_INVALID,
                    "role \"assistant\" takes no \"%s\"; put it into a message of the user, the "
                    "system or a tool",
                    type->part_type);
    else
        rc = add_items(p, type, part, text, e);
    return rc ? q_wrap(e, "messages: entry %zu: content part %zu", at->i_message, at->i_part)
              : Q_OK;
}

void parts_end(struct parts *p)
{
    item_list_end(&p->list);
}

/* ---- images ---- */

static const struct item_type *type_of(const struct parts *p, const struct item_array *item)
{
    const struct item_type *type = p->types->rows;
    while (type->modality != item->modality)
        type++;
    return type;
}

const struct item_type *parts_image_type(const struct parts *p)
{
    for (uint32_t i = 0; p->types && i < p->types->n; i++)
        if (p->n_of[i] && item_type_is_image(&p->types->rows[i]))
            return &p->types->rows[i];
    return NULL;
}

void parts_mark_image(const struct parts *p, size_t *next, struct buf *text)
{
    while (*next < p->list.n && !item_type_is_image(type_of(p, &p->list.items[*next])))
        ++*next;
    Q_ASSERT(*next < p->list.n);
    add_mark(p, (*next)++, text);
}

FALLIBLE parts_literals(struct parts *p, const struct tokenizer *t, bool *all, struct q_err *e)
{
    struct buf text = BUF_INIT;
    enum q_code rc = Q_OK;
    *all = true;
    for (uint32_t i = 0; p->types && i < p->types->n && !rc; i++) {
        const struct item_type *x = &p->types->rows[i];
        if (!p->n_of[i] || !item_type_is_image(x))
            continue;
        text.len = 0;
        if (t && x->placeholder < tokenizer_vocab_size(t))
            rc = tokenizer_token_bytes(t, x->placeholder, &text, e);
        const bool has_one = !rc && text.len && text.len < PARTS_LITERAL_MAX;
        snprintf(p->literals[i], PARTS_LITERAL_MAX, "%s", has_one ? buf_str(&text) : "");
        *all &= *p->literals[i] != '\0';
    }
    buf_release(&text);
    return rc;
}

/* ---- the rendered prompt ---- */

struct place {
    size_t start, n; /* bytes of the prompt */
    size_t item;
};
struct taking {
    struct parts *p;
    struct buf *prompt;
    struct place *places; /* [n] of at most list.n; in the order of the prompt after put_in_order */
    size_t n;
};

static FALLIBLE not_once(const struct parts *p, size_t item, const char *what, struct q_err *e)
{
    const struct item_array *a = &p->list.items[item];
    size_t index = 0;
    for (size_t i = 0; i < item; i++)
        index += !strcmp(p->list.items[i].modality, a->modality);
    return q_fail(e, Q_INVALID,
                  "%s[%zu]: the chat template %s; put it into a message whose content the template "
                  "writes once",
                  a->modality, index, what);
}

static FALLIBLE find_marks(struct taking *t, size_t from, bool *seen, struct q_err *e)
{
    const struct parts *p = t->p;
    const char *text = buf_str(t->prompt), *end = text + t->prompt->len, *at = text + from;
    while ((at = memmem(at, (size_t)(end - at), p->nonce, PARTS_NONCE))) {
        size_t item = 0, digits = 0;
        const char *number = at + PARTS_NONCE;
        for (; digits < NUMBER_DIGITS && number + digits < end; digits++) {
            if (number[digits] < '0' || number[digits] > '9')
                break;
            item = item * 10 + (size_t)(number[digits] - '0');
        }
        if (digits < NUMBER_DIGITS || item >= p->list.n)
            return q_fail(e, Q_INVALID,
                          "the chat template changes the text of messages so that "
                          "the place of an item is lost");
        if (seen[item])
            return not_once(p, item, "writes it twice", e);
        seen[item] = true;
        t->places[t->n++] = (struct place){(size_t)(at - text), MARK_BYTES, item};
        at += MARK_BYTES;
    }
    return Q_OK;
}

/* The next item of the type, from *item on. */
static bool next_of(const struct parts *p, const struct item_type *type, size_t *item)
{
    while (*item < p->list.n && p->list.items[*item].modality != type->modality)
        ++*item;
    return *item < p->list.n;
}

/* The literals of one type that the template wrote: the k-th is its k-th item. */
static size_t find_literals(struct taking *t, uint32_t i_type, size_t from,
                            const struct ranges *content, bool *seen)
{
    const struct parts *p = t->p;
    const struct item_type *type = &p->types->rows[i_type];
    const char *literal = p->literals[i_type], *text = buf_str(t->prompt), *at = text + from,
               *end = text + t->prompt->len;
    const size_t n = strlen(literal);
    size_t item = 0, n_found = 0;
    while ((at = memmem(at, (size_t)(end - at), literal, n))) {
        const size_t start = (size_t)(at - text);
        const bool is_own = !ranges_meet(content, start, start + n);
        at += is_own ? n : 1;
        if (!is_own)
            continue;
        n_found++;
        if (!next_of(p, type, &item))
            continue;
        seen[item] = true;
        t->places[t->n++] = (struct place){start, n, item++};
    }
    return n_found;
}

static FALLIBLE find_images(struct taking *t, size_t from, const struct ranges *content, bool *seen,
                            struct q_err *e)
{
    const struct parts *p = t->p;
    for (uint32_t i = 0; p->in_list && i < p->types->n; i++) {
        const size_t n = p->n_of[i];
        if (!n || !item_type_is_image(&p->types->rows[i]))
            continue;
        const size_t n_found = find_literals(t, i, from, content, seen);
        if (n_found != n)
            return q_fail(e, Q_INVALID,
                          "the chat template writes the model's token \"%s\" %zu times for %zu "
                          "images (%s), expected once for each; put images into messages whose "
                          "parts the template writes, or use another template",
                          p->literals[i], n_found, n, p->types->rows[i].modality);
    }
    return Q_OK;
}

static FALLIBLE find_all(struct taking *t, size_t from, const struct ranges *content, bool *seen,
                         struct q_err *e)
{
    enum q_code rc;
    if ((rc = find_marks(t, from, seen, e)) || (rc = find_images(t, from, content, seen, e)))
        return rc;
    for (size_t i = 0; i < t->p->list.n; i++)
        if (!seen[i])
            return not_once(t->p, i, "leaves it out", e);
    return Q_OK;
}

/* Bytes that are removed before a place of the text. *i, and *cut, the bytes of the i places before
 * it, go along. */
static size_t without_places(const struct taking *t, size_t at, size_t *i, size_t *cut)
{
    while (*i < t->n && t->places[*i].start < at)
        *cut += t->places[(*i)++].n;
    const struct place *last = *i ? &t->places[*i - 1] : NULL;
    const size_t inside = last && at < last->start + last->n ? last->start + last->n - at : 0;
    return at - (*cut - inside);
}

static FALLIBLE cut_ranges(const struct taking *t, struct ranges *content, struct q_err *e)
{
    struct ranges cut = RANGES_INIT;
    size_t i = 0, n_cut = 0;
    enum q_code rc = Q_OK;
    for (size_t k = 0; k < content->n && !rc; k++) {
        const size_t start = without_places(t, content->at[k].start, &i, &n_cut);
        rc = ranges_add(&cut, start, without_places(t, content->at[k].end, &i, &n_cut), e);
    }
    ranges_release(content);
    *content = cut;
    return rc;
}

static void cut_text(const struct taking *t)
{
    char *text = t->prompt->data;
    size_t to = t->places[0].start;
    for (size_t i = 0; i < t->n; i++) {
        const size_t from = t->places[i].start + t->places[i].n;
        const size_t end = i + 1 < t->n ? t->places[i + 1].start : t->prompt->len;
        memmove(text + to, text + from, end - from);
        to += end - from;
    }
    t->prompt->len = to;
    text[to] = '\0';
}

static int by_start(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Items and inserts in the order of the prompt. Errors: Q_INVALID (literals of two types that have
 * bytes in common). */
static FALLIBLE put_in_order(const struct taking *t, struct item_array *ordered, struct q_err *e)
{
    struct parts *p = t->p;
    size_t n_cut = 0;
    qsort(t->places, t->n, sizeof *t->places, by_start);
    for (size_t i = 0; i < t->n; i++) {
        const struct place *x = &t->places[i];
        if (i && x->start < x[-1].start + x[-1].n)
            return q_fail(e, Q_INVALID, "the placeholders of two modalities have the same text");
        ordered[i] = p->list.items[x->item];
        p->places[i] = (struct tokenizer_insert){
            .at = x->start - n_cut,
            .id = type_of(p, &ordered[i])->placeholder,
        };
        n_cut += x->n;
    }
    memcpy(p->list.items, ordered, t->n * sizeof *ordered);
    return Q_OK;
}

FALLIBLE parts_take(struct parts *p, struct buf *prompt, size_t from, struct ranges *content,
                    struct q_err *e)
{
    const size_t n = p->list.n;
    struct taking t = {.p = p, .prompt = prompt};
    if (!n)
        return Q_OK;
    Q_ASSERT(content || !p->in_list);
    enum q_code rc = Q_OK;
    bool *seen = q_calloc(n, sizeof *seen);
    struct item_array *ordered = q_calloc(n, sizeof *ordered);
    t.places = q_calloc(n, sizeof *t.places);
    q_free(p->places);
    p->places = q_calloc(n, sizeof *p->places);
    if (!seen || !ordered || !t.places || !p->places)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for %zu items", n);
    if (!rc && !(rc = find_all(&t, from, content, seen, e)) &&
        !(rc = put_in_order(&t, ordered, e)) && !(rc = content ? cut_ranges(&t, content, e) : Q_OK))
        cut_text(&t);
    q_free(seen);
    q_free(ordered);
    q_free(t.places);
    return rc;
}

void parts_release(struct parts *p)
{
    item_list_release(&p->list);
    q_free(p->places);
    *p = (struct parts){.types = NULL};
}
