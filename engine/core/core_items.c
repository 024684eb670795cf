/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/core_items.h"
#include <assert.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"

#define STORE_DEFAULT ((uint64_t)4 << 30)

static_assert(ITEM_TYPES_MAX == MODALITIES_MAX && ITEM_TYPE_NAME_MAX == MODALITY_NAME_MAX &&
                  ITEM_TYPE_DIMS_MAX == QUIRE_DIMS_MAX,
              "frontends know a model's modalities as they are");

/* Command lines are shared between models, so it is no error. */
static void warn_unknown(const struct modalities *m, const char *name)
{
    struct buf names = BUF_INIT;
    for (uint32_t i = 0; i < m->n; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", m->rows[i].name);
    log_warning("--limit-mm-per-prompt: the model has no modality \"%s\", it has: %s", name,
                buf_str(&names));
    buf_release(&names);
}

static void fill_type(struct item_type *to, const struct modality *m)
{
    *to = (struct item_type){
        .placeholder = m->placeholder,
        .n_dim = m->n_dim,
        .n_token = m->n_token,
        .max_items = m->max_items,
    };
    snprintf(to->modality, sizeof to->modality, "%s", m->name);
    snprintf(to->part_type, sizeof to->part_type, "%s", m->part_type);
    memcpy(to->dims, m->dims, sizeof to->dims);
    memcpy(to->dims_max, m->dims_max, sizeof to->dims_max);
}

FALLIBLE core_items_open(struct core_items *x, const struct core_item_config *c,
                         const char *config_dir, struct q_err *e)
{
    enum q_code rc = modalities_open(&x->modalities, config_dir, e);
    if (rc || !core_items_any(x))
        return rc;
    for (uint32_t i = 0; i < c->n_limit; i++) {
        const uint32_t at = modality_find(x->modalities, c->limits[i].name);
        if (at < x->modalities->n)
            x->modalities->rows[at].max_items = c->limits[i].n;
        else
            warn_unknown(x->modalities, c->limits[i].name);
    }
    for (x->types.n = 0; x->types.n < x->modalities->n; x->types.n++)
        fill_type(&x->types.rows[x->types.n], &x->modalities->rows[x->types.n]);
    x->hasher = EVP_MD_CTX_new();
    if (!x->hasher || !EVP_DigestInit_ex(x->hasher, EVP_sha256(), NULL))
        return q_fail(e, Q_NO_MEMORY, "items: SHA-256 is not available");
    return item_store_init(&x->store, c->store_bytes ? c->store_bytes : STORE_DEFAULT, e);
}

void core_items_release(struct core_items *x)
{
    item_store_release(&x->store);
    modalities_free(x->modalities);
    EVP_MD_CTX_free(x->hasher);
    q_free(x->prompt);
    q_free(x->arrays);
    q_free(x->expanded.positions);
    q_free(x->expanded.n_token);
    *x = (struct core_items)CORE_ITEMS_INIT;
}

FALLIBLE core_items_read(struct core_items *x, const struct msg_submit *m, uint32_t *n,
                         struct q_err *e)
{
    enum q_code rc = item_wire_count(n, m, e);
    if (rc || (rc = q_grow(&x->arrays, &x->arrays_cap, *n, sizeof *x->arrays, ITEMS_MAX, e)))
        return rc;
    return item_wire_read(x->arrays, *n, m, NULL, 0, e);
}

/* ---- contents ---- */

struct taking { /* a submit whose items are being taken */
    struct core_items *x;
    const struct core_items_args *a;
    const struct modalities *modalities;
    uint32_t n_of[MODALITIES_MAX];     /* items */
    uint64_t n_row_of[MODALITIES_MAX]; /* their rows */
    struct step_item *table;           /* [a->n] in the order of a->items, then by position */
    uint64_t offset;                   /* of the table in the store */
};

static FALLIBLE no_modality(const struct modalities *m, const char *name, struct q_err *e)
{
    struct buf names = BUF_INIT;
    for (uint32_t i = 0; i < m->n; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", m->rows[i].name);
    enum q_code rc =
        q_fail(e, Q_INVALID, "multi_modal_data: the model has no modality \"%.64s\", it has: %s",
               name, buf_str(&names));
    buf_release(&names);
    return rc;
}

/* Which modality each item has, and how many there are of each. */
static FALLIBLE count_items(struct taking *t, struct q_err *e)
{
    const struct modalities *m = t->modalities;
    for (uint32_t i = 0; i < t->a->n; i++) {
        const uint32_t at = modality_find(m, t->a->items[i].modality);
        if (at == m->n)
            return no_modality(m, t->a->items[i].modality, e);
        t->n_of[at]++;
    }
    for (uint32_t i = 0; i < m->n; i++)
        if (t->n_of[i] > m->rows[i].max_items)
            return q_fail(e, Q_INVALID,
                          "%s: %u items, expected at most %u in a request "
                          "(--limit-mm-per-prompt)",
                          m->rows[i].name, t->n_of[i], m->rows[i].max_items);
    return Q_OK;
}

static size_t aligned(size_t n)
{
    return (n + ITEM_ALIGN - 1) / ITEM_ALIGN * ITEM_ALIGN;
}

/* Bytes of an item in the type that its modality takes. */
static size_t stored_bytes(const struct item_array *from, enum quire_dtype to)
{
    return from->dtype == ITEM_NUMBERS ? from->n_byte / sizeof(double) * (to == QUIRE_U8 ? 1 : 4)
                                       : from->n_byte;
}

static FALLIBLE bad_number(const char *name, uint32_t index, size_t at, double v, const char *what,
                           struct q_err *e)
{
    return q_fail(e, Q_INVALID, "%s[%u]: number %zu is %.17g, expected %s", name, index, at, v,
                  what);
}

/* JSON numbers become what the modality takes. */
static FALLIBLE convert(void *to, const struct item_array *from, const struct modality *m,
                        uint32_t index, struct q_err *e)
{
    const size_t n = from->n_byte / sizeof(double);
    for (size_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, (const char *)from->data + i * sizeof v, sizeof v);
        const bool is_whole = v == floor(v);
        if (m->dtype == QUIRE_F32) {
            ((float *)to)[i] = (float)v;
            if (!isfinite(((float *)to)[i]))
                return bad_number(m->name, index, i, v, "a finite float32", e);
        } else if (m->dtype == QUIRE_U8) {
            if (!is_whole || v < 0 || v > UINT8_MAX)
                return bad_number(m->name, index, i, v, "a whole number from 0 to 255", e);
            ((uint8_t *)to)[i] = (uint8_t)v;
        } else {
            if (!is_whole || v < INT32_MIN || v > INT32_MAX)
                return bad_number(m->name, index, i, v, "a whole number of 32 bits", e);
            ((int32_t *)to)[i] = (int32_t)v;
        }
    }
    return Q_OK;
}

static struct quire_item item_of(const struct core_items *x, const struct step_item *s)
{
    struct quire_item item = {
        .index = s->index,
        .dtype = (enum quire_dtype)s->dtype,
        .n_dim = s->n_dim,
        .data = x->store.memory + s->offset,
        .n_byte = s->n_byte,
    };
    memcpy(item.dims, s->dims, sizeof item.dims);
    return item;
}

static FALLIBLE hash_item(struct core_items *x, struct step_item *s, struct q_err *e)
{
    const struct modality *m = &x->modalities->rows[s->modality];
    struct {
        char name[MODALITY_NAME_MAX];
        uint32_t dtype, n_dim, dims[ITEM_DIMS_MAX];
    } head = {.dtype = s->dtype, .n_dim = s->n_dim};
    snprintf(head.name, sizeof head.name, "%s", m->name);
    memcpy(head.dims, s->dims, s->n_dim * sizeof *head.dims);
    if (EVP_DigestInit_ex(x->hasher, NULL, NULL) &&
        EVP_DigestUpdate(x->hasher, &head, sizeof head) &&
        EVP_DigestUpdate(x->hasher, x->store.memory + s->offset, s->n_byte) &&
        EVP_DigestFinal_ex(x->hasher, (unsigned char *)s->hash, NULL))
        return Q_OK;
    return q_fail(e, Q_INTERNAL, "items: SHA-256 failed");
}

/* One item into the store at `offset`; its place in the prompt comes later. */
static FALLIBLE take_item(struct taking *t, uint32_t i, uint32_t index, uint64_t offset,
                          struct q_err *e)
{
    const struct item_array *from = &t->a->items[i];
    const uint32_t at = modality_find(t->modalities, from->modality);
    const struct modality *m = &t->modalities->rows[at];
    struct step_item *s = &t->table[i];
    enum q_code rc = Q_OK;
    if (from->n_dim > ITEM_DIMS_MAX)
        return q_fail(e, Q_INVALID, "%s[%u]: %u dimensions, expected %u", m->name, index,
                      from->n_dim, m->n_dim);
    *s = (struct step_item){
        .offset = offset,
        .n_byte = stored_bytes(from, m->dtype),
        .modality = at,
        .index = index,
        .dtype = from->dtype == ITEM_NUMBERS ? (uint32_t)m->dtype : (uint32_t)from->dtype,
        .n_dim = from->n_dim,
    };
    memcpy(s->dims, from->dims, from->n_dim * sizeof *s->dims);
    void *to = t->x->store.memory + offset;
    if (from->dtype == ITEM_NUMBERS)
        rc = convert(to, from, m, index, e);
    else if (from->n_byte)
        memcpy(to, from->data, from->n_byte);
    if (rc)
        return rc;
    struct quire_item item = item_of(t->x, s);
    if ((rc = modality_check(t->modalities, at, &item, e)))
        return rc;
    s->n_token = item.n_token;
    t->n_row_of[at] += item.n_token;
    return hash_item(t->x, s, e);
}

static FALLIBLE take_contents(struct taking *t, struct q_err *e)
{
    const struct core_items_args *a = t->a;
    size_t n_table = aligned(a->n * sizeof *t->table), n_byte = n_table;
    uint32_t n_seen[MODALITIES_MAX] = {0};
    for (uint32_t i = 0; i < a->n; i++) {
        const uint32_t at = modality_find(t->modalities, a->items[i].modality);
        n_byte += aligned(stored_bytes(&a->items[i], t->modalities->rows[at].dtype));
    }
    const struct item_need need = {.n_byte = n_byte, .n_item = a->n, .settled = a->settled};
    enum q_code rc = item_store_add(&t->x->store, &t->offset, a->owner, &need, e);
    if (rc)
        return rc;
    t->table = (struct step_item *)(void *)(t->x->store.memory + t->offset);
    uint64_t offset = t->offset + n_table;
    for (uint32_t i = 0; i < a->n && !rc; i++) {
        const uint32_t at = modality_find(t->modalities, a->items[i].modality);
        rc = take_item(t, i, n_seen[at]++, offset, e);
        offset += aligned(stored_bytes(&a->items[i], t->modalities->rows[at].dtype));
    }
    return rc;
}

/* ---- placeholders ---- */

/* Placeholders that stand for the items of a modality. */
static uint64_t n_expected(const struct taking *t, uint32_t at)
{
    return t->modalities->rows[at].expand ? t->n_of[at] : t->n_row_of[at];
}

static FALLIBLE check_counts(const struct taking *t, const struct proto_u32s *prompt,
                             struct q_err *e)
{
    const struct modalities *m = t->modalities;
    uint64_t n_of[MODALITIES_MAX] = {0};
    for (size_t i = 0; i < prompt->n; i++) {
        const uint32_t at = modality_of_placeholder(m, prompt->data[i]);
        if (at < m->n)
            n_of[at]++;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        const struct modality *one = &m->rows[i];
        const int id = (int)one->placeholder;
        const unsigned long long n = n_of[i];
        /* Without items, a placeholder of the vocabulary is the token that it is. */
        if (n == n_expected(t, i) || (!t->n_of[i] && one->placeholder < t->a->vocab_size))
            continue;
        if (!t->n_of[i])
            return q_fail(e, Q_INVALID,
                          "prompt has %llu placeholders (%d) of %s, but multi_modal_data has no %s",
                          n, id, one->name, one->name);
        if (n_expected(t, i) != t->n_of[i])
            return q_fail(e, Q_INVALID,
                          "%s: %u items of %llu rows in total, but the prompt has %llu "
                          "placeholders (%d)",
                          one->name, t->n_of[i], (unsigned long long)t->n_row_of[i], n, id);
        return q_fail(e, Q_INVALID, "%s: %u items, but the prompt has %llu placeholders (%d)",
                      one->name, t->n_of[i], n, id);
    }
    return Q_OK;
}

static FALLIBLE add_ids(struct taking *t, uint32_t id, uint32_t n, struct q_err *e)
{
    struct core_items *x = t->x;
    const size_t n_max = t->a->max_model_len;
    if (n > n_max - x->n_prompt)
        return q_fail(e, Q_INVALID,
                      "prompt: with its items it has more than %zu tokens, the limit for prompt "
                      "and answer together (max_model_len)",
                      n_max);
    enum q_code rc =
        q_grow(&x->prompt, &x->prompt_cap, x->n_prompt + n, sizeof *x->prompt, n_max, e);
    for (uint32_t i = 0; i < n && !rc; i++)
        x->prompt[x->n_prompt++] = id;
    return rc;
}

/* The first item of modality `at` from number `from` on; a->n: there is none. */
static uint32_t next_item(const struct taking *t, uint32_t at, uint32_t from)
{
    Q_ASSERT(t->table); /* take_contents */
    while (from < t->a->n && t->table[from].modality != at)
        from++;
    return from;
}

static FALLIBLE not_together(const struct taking *t, const struct step_item *s, size_t position,
                             struct q_err *e)
{
    const struct modality *m = &t->modalities->rows[s->modality];
    return q_fail(e, Q_INVALID,
                  "%s[%u]: its %u placeholders (%d) are not consecutive: position %zu of the "
                  "prompt is another token",
                  m->name, s->index, s->n_token, (int)m->placeholder, position);
}

/* The placeholder at position i of the sent prompt is n rows. */
static FALLIBLE note_expansion(struct taking *t, size_t i, uint32_t n, struct q_err *e)
{
    struct core_items *x = t->x;
    struct core_expansions *all = &x->expanded;
    enum q_code rc;
    if (n == 1)
        return Q_OK;
    if ((rc = q_grow(&all->positions, &x->expanded_cap[0], all->n + 1, sizeof *all->positions,
                     ITEMS_MAX, e)) ||
        (rc = q_grow(&all->n_token, &x->expanded_cap[1], all->n + 1, sizeof *all->n_token,
                     ITEMS_MAX, e)))
        return rc;
    all->positions[all->n] = (uint32_t)i;
    all->n_token[all->n++] = n;
    return Q_OK;
}

/* Is there one placeholder for each item, at ascending positions? */
static FALLIBLE check_positions(const struct taking *t, const struct msg_submit *m, struct q_err *e)
{
    const struct proto_u32s *at = &m->item_positions;
    if (at->n != t->a->n)
        return q_fail(e, Q_INVALID, "item_positions: %zu for %u items", at->n, t->a->n);
    for (size_t i = 0; i < at->n; i++) {
        const struct modality *one = &t->modalities->rows[t->table[i].modality];
        if (at->data[i] >= m->prompt.n || (i && at->data[i] <= at->data[i - 1]) ||
            m->prompt.data[at->data[i]] != one->placeholder)
            return q_fail(e, Q_INVALID,
                          "item_positions: entry %zu is no placeholder (%d) of %s in the prompt", i,
                          (int)one->placeholder, one->name);
    }
    return Q_OK;
}

/* The prompt with as many rows in place of each placeholder as its item has. */
static FALLIBLE place_at(struct taking *t, const struct msg_submit *m, struct q_err *e)
{
    uint32_t i_item = 0;
    enum q_code rc = check_positions(t, m, e);
    for (size_t i = 0; i < m->prompt.n && !rc; i++) {
        if (i_item == t->a->n || m->item_positions.data[i_item] != i) {
            rc = add_ids(t, m->prompt.data[i], 1, e);
            continue;
        }
        struct step_item *s = &t->table[i_item++];
        s->position = (uint32_t)t->x->n_prompt;
        if (!(rc = note_expansion(t, i, s->n_token, e)))
            rc = add_ids(t, m->prompt.data[i], s->n_token, e);
    }
    return rc;
}

/* The prompt with a row for each placeholder, and where each item begins in it. */
static FALLIBLE place_items(struct taking *t, const struct proto_u32s *prompt, struct q_err *e)
{
    const struct modalities *m = t->modalities;
    uint32_t next[MODALITIES_MAX] = {0};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < prompt->n && !rc; i++) {
        const uint32_t id = prompt->data[i], at = modality_of_placeholder(m, id);
        if (at == m->n || !t->n_of[at]) {
            rc = add_ids(t, id, 1, e);
            continue;
        }
        const uint32_t i_item = next_item(t, at, next[at]);
        Q_ASSERT(i_item < t->a->n); /* check_counts */
        struct step_item *s = &t->table[i_item];
        next[at] = i_item + 1;
        s->position = (uint32_t)t->x->n_prompt;
        for (uint32_t j = 1; j < s->n_token && !m->rows[at].expand; j++)
            if (++i == prompt->n || prompt->data[i] != id)
                return not_together(t, s, i, e);
        if (m->rows[at].expand)
            rc = note_expansion(t, i, s->n_token, e);
        if (!rc)
            rc = add_ids(t, id, s->n_token, e);
    }
    return rc;
}

static FALLIBLE place(struct taking *t, const struct msg_submit *sent, struct q_err *e)
{
    if (sent->item_positions.n)
        return place_at(t, sent, e);
    enum q_code rc = check_counts(t, &sent->prompt, e);
    return rc || !t->a->n ? rc : place_items(t, &sent->prompt, e);
}

/* A sender knows the prompt's length without what its items become. */
static FALLIBLE fit_length(struct taking *t, struct msg_submit *m, struct q_err *e)
{
    const uint32_t limit = t->a->max_model_len, n = (uint32_t)t->x->n_prompt;
    if (!t->x->expanded.n)
        return Q_OK;
    t->x->expanded.n_prompt = n;
    if (n < limit && m->max_tokens > limit - n && m->max_tokens_fits)
        m->max_tokens = limit - n;
    if (n < limit && m->max_tokens <= limit - n)
        return Q_OK;
    const uint32_t asked = m->max_tokens_fits ? 1 : m->max_tokens;
    return q_fail(e, Q_INVALID,
                  "This model's maximum context length is %u tokens. However, you requested %llu "
                  "tokens (%u in the prompt with the tokens of its items, %u in the completion). "
                  "Please reduce the length of the prompt or completion.",
                  limit, (unsigned long long)n + asked, n, asked);
}

static int by_position(const void *a, const void *b)
{
    const struct step_item *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

FALLIBLE core_items_take(struct core_items *x, struct msg_submit *m,
                         const struct core_items_args *a, struct q_err *e)
{
    struct taking t = {.x = x, .a = a, .modalities = x->modalities};
    const bool any = core_items_any(x);
    const struct msg_submit sent = *m;
    enum q_code rc = Q_OK;
    step_items_put(m, NULL, 0, 0);
    x->n_prompt = x->expanded.n = 0;
    x->expanded.n_prompt = (uint32_t)m->prompt.n;
    if (!any)
        return a->n ? q_fail(e, Q_INVALID,
                             "multi_modal_data: the model takes tokens only; remove the field")
                    : Q_OK;
    if (item_store_find(&x->store, a->owner))
        return q_fail(e, Q_MISMATCH, "req_id %llu is already in use",
                      (unsigned long long)a->owner.req_id);
    if ((rc = count_items(&t, e)) || (a->n && (rc = take_contents(&t, e))) ||
        (rc = place(&t, &sent, e)) || (rc = fit_length(&t, m, e))) {
        item_store_drop(&x->store, a->owner, 0);
        return rc;
    }
    if (!a->n)
        return Q_OK;
    Q_ASSERT(t.table);
    qsort(t.table, a->n, sizeof *t.table, by_position);
    m->prompt = (struct proto_u32s){x->prompt, x->n_prompt};
    step_items_put(m, t.table, a->n, t.offset);
    return Q_OK;
}

void core_items_put(const struct core_items *x, struct msg_submit *m, struct item_owner owner)
{
    const struct item_piece *p = x->modalities ? item_store_find(&x->store, owner) : NULL;
    step_items_put(m, NULL, 0, 0);
    if (!p)
        return;
    const struct step_item *table = (const struct step_item *)(void *)(x->store.memory + p->offset);
    step_items_put(m, table, p->n_item, p->offset);
}
