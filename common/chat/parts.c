/* SPDX-License-Identifier: Apache-2.0 */
/* A mark is PARTS_NONCE random digits and the item's number. Digits survive what templates do to
 * text: tojson, trim, upper, escaping. A template that drops a message's content, or writes it
 * twice, shows by the marks, and is an error: an item is never lost in silence. */
#include "common/chat/parts.h"
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
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

static FALLIBLE add_items(struct parts *p, const struct item_type *type, const json_t *part,
                          struct buf *text, struct q_err *e)
{
    const size_t at = (size_t)(type - p->types->rows), first = p->list.n;
    const json_t *value;
    enum q_code rc;
    if (!first)
        p->list.data.max = ITEM_LIST_BYTES;
    if ((rc = value_of(&value, type, part, e)) || (rc = make_nonce(p, e)) ||
        (rc = item_list_add(&p->list, type, p->n_of[at], value, &p->rules, e)))
        return rc;
    p->n_of[at] += p->list.n - first;
    if (p->n_of[at] > type->max_items)
        return q_fail(e, Q_INVALID,
                      "%s: more than %u items, expected at most %u in a request "
                      "(--limit-mm-per-prompt)",
                      type->modality, type->max_items, type->max_items);
    for (size_t i = first; i < p->list.n; i++)
        buf_printf(text, "%s%05zu", p->nonce, i);
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

/* ---- the rendered prompt ---- */

struct taking {
    struct parts *p;
    struct buf *prompt;
    size_t *starts; /* [n] of the marks in the prompt, with them */
    size_t *order;  /* [n] their items */
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
        t->starts[t->n] = (size_t)(at - text);
        t->order[t->n++] = item;
        at += MARK_BYTES;
    }
    for (size_t i = 0; i < p->list.n; i++)
        if (!seen[i])
            return not_once(p, i, "leaves it out", e);
    return Q_OK;
}

/* Bytes of marks before a place of the text with marks. *i walks along. */
static size_t without_marks(const struct taking *t, size_t at, size_t *i)
{
    while (*i < t->n && t->starts[*i] < at)
        ++*i;
    const size_t inside =
        *i && at < t->starts[*i - 1] + MARK_BYTES ? t->starts[*i - 1] + MARK_BYTES - at : 0;
    return at - (*i * MARK_BYTES - inside);
}

static FALLIBLE cut_ranges(const struct taking *t, struct ranges *content, struct q_err *e)
{
    struct ranges cut = RANGES_INIT;
    size_t i = 0;
    enum q_code rc = Q_OK;
    for (size_t k = 0; k < content->n && !rc; k++) {
        const size_t start = without_marks(t, content->at[k].start, &i);
        rc = ranges_add(&cut, start, without_marks(t, content->at[k].end, &i), e);
    }
    ranges_release(content);
    *content = cut;
    return rc;
}

static void cut_text(const struct taking *t)
{
    char *text = t->prompt->data;
    size_t to = t->starts[0];
    for (size_t i = 0; i < t->n; i++) {
        const size_t from = t->starts[i] + MARK_BYTES;
        const size_t end = i + 1 < t->n ? t->starts[i + 1] : t->prompt->len;
        memmove(text + to, text + from, end - from);
        to += end - from;
    }
    t->prompt->len = to;
    text[to] = '\0';
}

/* Items and places in the order of the prompt. */
static void put_in_order(const struct taking *t, struct item_array *ordered)
{
    struct parts *p = t->p;
    for (size_t i = 0; i < t->n; i++) {
        const struct item_type *type = p->types->rows;
        ordered[i] = p->list.items[t->order[i]];
        while (type->modality != ordered[i].modality)
            type++;
        p->places[i] = (struct tokenizer_insert){
            .at = t->starts[i] - i * MARK_BYTES,
            .id = type->placeholder,
        };
    }
    memcpy(p->list.items, ordered, t->n * sizeof *ordered);
}

FALLIBLE parts_take(struct parts *p, struct buf *prompt, size_t from, struct ranges *content,
                    struct q_err *e)
{
    const size_t n = p->list.n;
    struct taking t = {.p = p, .prompt = prompt};
    if (!n)
        return Q_OK;
    enum q_code rc = Q_OK;
    bool *seen = q_calloc(n, sizeof *seen);
    struct item_array *ordered = q_calloc(n, sizeof *ordered);
    t.starts = q_calloc(n, sizeof *t.starts);
    t.order = q_calloc(n, sizeof *t.order);
    q_free(p->places);
    p->places = q_calloc(n, sizeof *p->places);
    if (!rc && (!seen || !ordered || !t.starts || !t.order || !p->places))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for %zu items", n);
    if (!rc && !(rc = find_marks(&t, from, seen, e)) &&
        !(rc = content ? cut_ranges(&t, content, e) : Q_OK)) {
        cut_text(&t);
        put_in_order(&t, ordered);
    }
    q_free(seen);
    q_free(ordered);
    q_free(t.starts);
    q_free(t.order);
    return rc;
}

void parts_release(struct parts *p)
{
    item_list_release(&p->list);
    q_free(p->places);
    *p = (struct parts){.types = NULL};
}
