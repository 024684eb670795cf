/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/items.h"
#include <assert.h>
#include <string.h>

#define SHAPE_HEAD 3u /* numbers before the dims */

static_assert(sizeof(struct step_item) % sizeof(uint64_t) == 0, "a table is whole words");

/* ---- on the wire ---- */

static size_t words_of(size_t n_byte)
{
    return (n_byte + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

/* The number of a name; new ones are added. */
static uint32_t name_number(struct buf *names, const char *name)
{
    uint32_t i = 0;
    for (size_t at = 0; at < names->len; at += strlen(names->data + at) + 1, i++)
        if (!strcmp(names->data + at, name))
            return i;
    buf_add(names, name, strlen(name) + 1);
    return i;
}

FALLIBLE item_wire_make(struct item_wire *w, const struct item_array *items, uint32_t n,
                        struct q_err *e)
{
    size_t n_shape = 0, n_data = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_shape += SHAPE_HEAD + items[i].n_dim;
        n_data += words_of(items[i].n_byte);
    }
    *w = (struct item_wire)ITEM_WIRE_INIT;
    w->shapes = q_calloc(n_shape + 1, sizeof *w->shapes);
    w->data = q_calloc(n_data + 1, sizeof *w->data);
    if (!w->shapes || !w->data) {
        item_wire_release(w);
        return q_fail(e, Q_NO_MEMORY, "multi_modal_data: out of memory for %u items", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct item_array *t = &items[i];
        uint32_t *shape = w->shapes + w->n_shape;
        shape[0] = name_number(&w->names, t->modality);
        shape[1] = t->dtype;
        shape[2] = t->n_dim;
        memcpy(shape + SHAPE_HEAD, t->dims, t->n_dim * sizeof *shape);
        w->n_shape += SHAPE_HEAD + t->n_dim;
        if (t->n_byte)
            memcpy(w->data + w->n_data, t->data, t->n_byte);
        w->n_data += words_of(t->n_byte);
    }
    return buf_check(&w->names, "multi_modal_data", e);
}

void item_wire_release(struct item_wire *w)
{
    buf_release(&w->names);
    q_free(w->shapes);
    q_free(w->data);
    *w = (struct item_wire)ITEM_WIRE_INIT;
}

void item_wire_put(struct msg_submit *m, const struct item_wire *w)
{
    m->item_modalities = (struct proto_bytes){(const uint8_t *)w->names.data, w->names.len};
    m->item_shapes = (struct proto_u32s){w->shapes, w->n_shape};
    m->item_data = (struct proto_words){w->data, w->n_data};
}

static enum q_code corrupt(const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "submit: items: %s", what);
}

FALLIBLE item_wire_count(uint32_t *n, const struct msg_submit *m, struct q_err *e)
{
    const struct proto_u32s *s = &m->item_shapes;
    *n = 0;
    for (size_t at = 0; at < s->n; ++*n) {
        if (*n == ITEMS_MAX)
            return q_fail(e, Q_INVALID, "multi_modal_data: more than %u items", ITEMS_MAX);
        if (s->n - at < SHAPE_HEAD || s->data[at + 2] > ITEM_ARRAY_DIMS_MAX ||
            s->n - at - SHAPE_HEAD < s->data[at + 2])
            return corrupt("a shape is cut", e);
        at += SHAPE_HEAD + s->data[at + 2];
    }
    return Q_OK;
}

/* NULL: there is none with this number. */
static const char *name_at(const struct msg_submit *m, uint32_t number)
{
    const char *names = (const char *)m->item_modalities.data;
    size_t at = 0;
    while (at < m->item_modalities.n) {
        const size_t left = m->item_modalities.n - at, n = strnlen(names + at, left);
        if (n == left || n == 0 || n >= ITEM_NAME_MAX)
            return NULL;
        if (number-- == 0)
            return names + at;
        at += n + 1;
    }
    return NULL;
}

FALLIBLE item_wire_read(struct item_array *out, uint32_t n, const struct msg_submit *m,
                        const void *data, size_t n_byte, struct q_err *e)
{
    const uint32_t *shape = m->item_shapes.data;
    const unsigned char *bytes = data ? data : m->item_data.data;
    size_t left = data ? n_byte : m->item_data.n * sizeof(uint64_t), n_one;
    for (uint32_t i = 0; i < n; i++, shape += SHAPE_HEAD + shape[2]) {
        struct item_array *t = &out[i];
        *t =
            (struct item_array){.modality = name_at(m, shape[0]), .n_dim = shape[2], .data = bytes};
        if (!t->modality)
            return corrupt("a modality has no name", e);
        if (shape[1] >= ITEM_DTYPES)
            return corrupt("a type is unknown", e);
        t->dtype = (enum item_dtype)shape[1];
        memcpy(t->dims, shape + SHAPE_HEAD, t->n_dim * sizeof *t->dims);
        n_one = t->n_byte = item_array_bytes(t);
        if (n_one > left || (n_one = words_of(n_one) * sizeof(uint64_t)) > left)
            return corrupt("contents are cut", e);
        bytes = n_one ? bytes + n_one : bytes; /* NULL: there are none */
        left -= n_one;
    }
    return left ? corrupt("more contents than items", e) : Q_OK;
}

/* ---- in the store ---- */

static bool bytes_fit(const struct step_item *x)
{
    uint64_t n = x->dtype == ITEM_U8 ? 1 : 4;
    if (x->dtype >= ITEM_NUMBERS || x->n_dim > ITEM_DIMS_MAX)
        return false;
    for (uint32_t i = 0; i < x->n_dim; i++)
        if (__builtin_mul_overflow(n, (uint64_t)x->dims[i], &n))
            return false;
    return n == x->n_byte;
}

FALLIBLE step_items_check(const struct step_item *items, uint32_t n,
                          const struct step_item_limits *l, struct q_err *e)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct step_item *x = &items[i];
        if (x->offset % ITEM_ALIGN || x->offset > l->store_bytes ||
            x->n_byte > l->store_bytes - x->offset || !bytes_fit(x))
            return q_fail(e, Q_CORRUPT, "item %u: %llu bytes at %llu are not in the store of %llu",
                          i, (unsigned long long)x->n_byte, (unsigned long long)x->offset,
                          (unsigned long long)l->store_bytes);
        if (x->modality >= l->n_modality)
            return q_fail(e, Q_CORRUPT, "item %u: modality %u, there are %u", i, x->modality,
                          l->n_modality);
        if (x->position < end || !x->n_token || x->position >= l->n_prompt ||
            x->n_token > l->n_prompt - x->position)
            return q_fail(e, Q_CORRUPT, "item %u: %u rows at %u do not fit a prompt of %u", i,
                          x->n_token, x->position, l->n_prompt);
        end = x->position + x->n_token;
    }
    return Q_OK;
}

uint32_t step_items_from(const struct step_item *items, uint32_t n, uint32_t position)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (items[mid].position + items[mid].n_token <= position)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void step_items_put(struct msg_submit *m, const struct step_item *items, uint32_t n,
                    uint64_t offset)
{
    m->item_modalities = (struct proto_bytes){NULL, 0};
    m->item_shapes = (struct proto_u32s){NULL, 0};
    m->item_memory = (struct proto_str){NULL, 0};
    m->item_data = (struct proto_words){items, n * (sizeof *items / sizeof(uint64_t))};
    m->item_bytes = n ? offset : 0;
    m->item_positions = (struct proto_u32s){NULL, 0};
}

const struct step_item *step_items_get(const struct msg_submit *m, uint32_t *n, uint64_t *offset)
{
    *n = (uint32_t)(m->item_data.n / (sizeof(struct step_item) / sizeof(uint64_t)));
    *offset = m->item_bytes;
    return *n ? m->item_data.data : NULL;
}
