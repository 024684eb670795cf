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
                         const struct worker_config *worker, struct q_err *e)
{
    enum q_code rc = modalities_open(&x->modalities, worker->model_dir, &worker->images, e);
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
static FALLIBLE count_items(struct core_items_job *t, struct q_err *e)
{
    const struct modalities *m = t->modalities;
    for (uint32_t i = 0; i < t->args.n; i++) {
        const uint32_t at = modality_find(m, t->args.items[i].modality);
        if (at == m->n)
            return no_modality(m, t->args.items[i].modality, e);
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
static size_t typed_bytes(const struct item_array *from, enum quire_dtype to)
{
    return from->dtype == ITEM_NUMBERS ? from->n_byte / sizeof(double) * (to == QUIRE_U8 ? 1 : 4)
                                       : from->n_byte;
}

/* The item in that type, without its data. */
static struct quire_item typed_item(const struct item_array *from, const struct modality *m)
{
    struct quire_item item = {
        .dtype = from->dtype == ITEM_NUMBERS ? m->dtype : (enum quire_dtype)from->dtype,
        .n_dim = from->n_dim,
        .n_byte = typed_bytes(from, m->dtype),
    };
    for (uint32_t i = 0; i < from->n_dim && i < ITEM_DIMS_MAX; i++)
        item.dims[i] = from->dims[i];
    return item;
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

static FALLIBLE hash_item(const struct core_items_job *t, struct step_item *s, struct q_err *e)
{
    const struct modality *m = &t->modalities->rows[s->modality];
    struct {
        char name[MODALITY_NAME_MAX];
        uint32_t dtype, n_dim, dims[ITEM_DIMS_MAX];
    } head = {.dtype = s->dtype, .n_dim = s->n_dim};
    snprintf(head.name, sizeof head.name, "%s", m->name);
    memcpy(head.dims, s->dims, s->n_dim * sizeof *head.dims);
    if (EVP_DigestInit_ex(t->hasher, NULL, NULL) &&
        EVP_DigestUpdate(t->hasher, &head, sizeof head) &&
        EVP_DigestUpdate(t->hasher, t->memory + s->offset, s->n_byte) &&
        EVP_DigestFinal_ex(t->hasher, (unsigned char *)s->hash, NULL))
        return Q_OK;
    return q_fail(e, Q_INTERNAL, "items: SHA-256 failed");
}

/* Its data in the type that its modality takes. A plugin's item is read in the store, which aligns
 * it; an image where it came, or converted in *made. */
static FALLIBLE typed_data(struct quire_item *item, void **made, const struct item_array *from,
                           const struct modality *m, void *store, struct q_err *e)
{
    const bool is_number = from->dtype == ITEM_NUMBERS;
    void *to = m->of ? store : NULL;
    if (!m->of && is_number && !(to = *made = q_alloc(item->n_byte + 1)))
        return q_fail(e, Q_NO_MEMORY, "%s[%u]: out of memory", m->name, item->index);
    item->data = to ? to : from->data;
    if (is_number)
        return convert(to, from, m, item->index, e);
    if (to && from->n_byte)
        memcpy(to, from->data, from->n_byte);
    return Q_OK;
}

static FALLIBLE keep_item(struct core_items_job *t, struct step_item *s, struct quire_item *item,
                          struct q_err *e)
{
    struct quire_item kept;
    enum q_code rc = modality_check(t->modalities, s->modality, item, e);
    if (rc || (rc = modality_keep(t->modalities, s->modality, item, t->memory + s->offset, e)))
        return rc;
    modality_kept(t->modalities, s->modality, item, &kept);
    s->n_token = item->n_token;
    s->n_byte = kept.n_byte;
    memcpy(s->dims, kept.dims, sizeof s->dims);
    t->n_row_of[s->modality] += item->n_token;
    return hash_item(t, s, e);
}

/* One item into the store at `offset`; its place in the prompt comes later. */
static FALLIBLE take_item(struct core_items_job *t, uint32_t i, uint32_t index, uint64_t offset,
                          struct q_err *e)
{
    const struct item_array *from = &t->args.items[i];
    const uint32_t at = modality_find(t->modalities, from->modality);
    const struct modality *m = &t->modalities->rows[at];
    struct quire_item item = typed_item(from, m);
    void *made = NULL;
    Q_ASSERT(t->table); /* core_items_reserve */
    if (from->n_dim > ITEM_DIMS_MAX)
        return q_fail(e, Q_INVALID, "%s[%u]: %u dimensions, expected %u", m->name, index,
                      from->n_dim, m->n_dim);
    item.index = index;
    t->table[i] = (struct step_item){
        .offset = offset,
        .modality = at,
        .index = index,
        .dtype = (uint32_t)item.dtype,
        .n_dim = item.n_dim,
    };
    enum q_code rc = typed_data(&item, &made, from, m, t->memory + offset, e);
    if (!rc)
        rc = keep_item(t, &t->table[i], &item, e);
    q_free(made);
    return rc;
}

static size_t table_bytes(const struct core_items_job *t)
{
    return aligned(t->args.n * sizeof *t->table);
}

static size_t stored_at(const struct core_items_job *t, uint32_t i)
{
    const struct item_array *from = &t->args.items[i];
    const uint32_t at = modality_find(t->modalities, from->modality);
    const struct quire_item item = typed_item(from, &t->modalities->rows[at]);
    struct quire_item kept;
    modality_kept(t->modalities, at, &item, &kept);
    return aligned(kept.n_byte);
}

FALLIBLE core_items_reserve(struct core_items *x, struct core_items_job *t,
                            const struct core_items_args *a, struct q_err *e)
{
    *t = (struct core_items_job){
        .args = *a,
        .modalities = x->modalities,
        .memory = x->store.memory,
        .hasher = x->hasher,
    };
    enum q_code rc = count_items(t, e);
    size_t n_byte = rc ? 0 : table_bytes(t);
    for (uint32_t i = 0; i < a->n && !rc; i++)
        n_byte += stored_at(t, i);
    const struct item_need need = {.n_byte = n_byte, .n_item = a->n, .settled = a->settled};
    if (rc || !a->n || (rc = item_store_add(&x->store, &t->offset, a->owner, &need, e)))
        return rc;
    t->table = (struct step_item *)(void *)(t->memory + t->offset);
    return Q_OK;
}

FALLIBLE core_items_fill(struct core_items_job *t, struct q_err *e)
{
    uint32_t n_seen[MODALITIES_MAX] = {0};
    uint64_t offset = t->offset + table_bytes(t);
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < t->args.n && !rc; i++) {
        const uint32_t at = modality_find(t->modalities, t->args.items[i].modality);
        rc = take_item(t, i, n_seen[at]++, offset, e);
        offset += stored_at(t, i);
    }
    return rc;
}

FALLIBLE core_items_begin(struct core_items *x, const struct core_items_args *a, bool *any,
                          struct q_err *e)
{
    *any = core_items_any(x);
    x->n_prompt = x->expanded.n = 0;
    if (!*any)
        return a->n ? q_fail(e, Q_INVALID,
                             "multi_modal_data: the model takes tokens only; remove the field")
                    : Q_OK;
    if (item_store_find(&x->store, a->owner))
        return q_fail(e, Q_MISMATCH, "req_id %llu is already in use",
                      (unsigned long long)a->owner.req_id);
    return Q_OK;
}

FALLIBLE core_items_take(struct core_items *x, struct msg_submit *m,
                         const struct core_items_args *a, struct q_err *e)
{
    struct core_items_job t;
    bool any;
    enum q_code rc = core_items_begin(x, a, &any, e);
    x->expanded.n_prompt = (uint32_t)m->prompt.n;
    if (rc || !any) {
        step_items_put(m, NULL, 0, 0);
        return rc;
    }
    if ((rc = core_items_reserve(x, &t, a, e)) || (rc = core_items_fill(&t, e)) ||
        (rc = core_items_place(x, &t, m, e)))
        item_store_drop(&x->store, a->owner, 0);
    return rc;
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
