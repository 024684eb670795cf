/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/modality.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "engine/model/model.h"
#include "engine/model/plugin/plugin_model.h"
#include "engine/model/region.h"
#include "engine/model/vision/vision.h"

#define SHAPE_MAX       96u
#define DUMMY_BYTES_MAX ((size_t)256 << 20) /* of an item and its rows; a larger one is not tried */
#define WORKERS_MAX     1024u
#define IMAGES_MAX      999u   /* of a request, unless --limit-mm-per-prompt: vLLM's */
#define ZEROS_MS        120000 /* for the rows of the largest items, on one thread */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [QUIRE_F32] = {"f32", sizeof(float)},
    [QUIRE_U8] = {"u8", 1},
    [QUIRE_I32] = {"i32", sizeof(int32_t)},
};

_Static_assert(MODALITIES_MAX == PLUGIN_MODALITIES_MAX, "a place for each");

struct modality_work {
    struct region memory;
    uint32_t n;
    struct plugin_work calls[WORKERS_MAX]; /* [n] */
    atomic_bool taken[WORKERS_MAX];        /* [n] */
};

/* ---- from the plugin's row and the config ---- */

static enum q_code take_sizes(struct modality *m, const struct plugin_sizes *sizes, struct q_err *e)
{
    const struct quire_modality *of = m->of;
    char what[MODALITY_NAME_MAX + 40];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < of->n_dim && !rc; i++) {
        snprintf(what, sizeof what, "modality %s: dims[%u]", of->name, i);
        m->dims_max[i] = of->dims_max[i];
        if (*of->dims[i])
            rc = plugin_size(&m->dims[i], sizes, of->dims[i], 1u << 30, what, e);
    }
    snprintf(what, sizeof what, "modality %s: n_token", of->name);
    if (!rc && of->n_token)
        rc = plugin_size(&m->n_token, sizes, of->n_token, MODALITY_TOKENS_MAX, what, e);
    snprintf(what, sizeof what, "modality %s: max_items", of->name);
    m->max_items = MODALITY_ITEMS_LIMIT;
    if (!rc && of->max_items)
        rc = plugin_size(&m->max_items, sizes, of->max_items, MODALITY_ITEMS_LIMIT, what, e);
    return rc;
}

static enum q_code take_modality(struct modality *m, const struct quire_modality *of,
                                 const struct quire_model *model, struct q_err *e)
{
    const struct plugin_sizes sizes = {model->root, model->path, &model->config};
    *m = (struct modality){
        .placeholder = (uint32_t)of->placeholder,
        .expand = of->expand,
        .dtype = of->dtype,
        .n_dim = of->n_dim,
        .of = of,
    };
    snprintf(m->name, sizeof m->name, "%s", of->name);
    snprintf(m->part_type, sizeof m->part_type, "%s", of->part_type ? of->part_type : "");
    if (of->placeholder >= (int64_t)model->config.vocab_size)
        return q_fail(e, Q_INVALID,
                      "modality %s: its placeholder %lld is neither negative nor a token of the "
                      "vocabulary of %u",
                      of->name, (long long)of->placeholder, model->config.vocab_size);
    enum q_code rc = take_sizes(m, &sizes, e);
    double bytes = (double)dtypes[m->dtype].bytes;
    for (uint32_t i = 0; i < m->n_dim; i++)
        bytes *= m->dims[i] ? m->dims[i] : m->dims_max[i];
    if (!rc && bytes > (double)((uint64_t)1 << 40))
        rc = q_fail(e, Q_INVALID, "modality %s: its largest item has %g bytes", of->name, bytes);
    return rc;
}

/* The images of a built-in model. */
static FALLIBLE open_vision(struct modalities *m, const char *config_dir,
                            const struct vision_options *images, struct q_err *e)
{
    const enum q_code rc = vision_open(&m->vision, config_dir, images, e);
    if (rc || !m->vision)
        return rc;
    m->rows[m->n++] = (struct modality){
        .name = "image",
        .part_type = "image_url",
        .placeholder = vision_placeholder(m->vision),
        .expand = true,
        .dtype = QUIRE_U8,
        .n_dim = 3,
        .dims = {0, 0, VISION_CHANNELS},
        .dims_max = {IMAGE_SIDE_MAX, IMAGE_SIDE_MAX},
        .max_items = IMAGES_MAX,
    };
    return Q_OK;
}

FALLIBLE modalities_open(struct modalities **out, const char *config_dir,
                         const struct vision_options *images, struct q_err *e)
{
    struct modalities *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", config_dir);
    m->host = &plugin_host;
    enum q_code rc = plugin_model_open(&m->model, config_dir, e);
    const struct plugin_arch *a = m->model ? m->model->arch : NULL;
    for (; a && m->n < a->a.n_modality && !rc; m->n += rc == Q_OK)
        rc = take_modality(&m->rows[m->n], &a->modalities[m->n], m->model, e);
    if (rc && a)
        rc = q_wrap(e, "plugin %s", plugin_arch_text(a));
    if (!rc && !a)
        rc = open_vision(m, config_dir, images, e);
    if (rc)
        modalities_free(m);
    else
        *out = m;
    return rc;
}

static void free_work(struct modality_work *w)
{
    if (w)
        region_release(&w->memory);
    q_free(w);
}

void modalities_free(struct modalities *m)
{
    if (!m)
        return;
    free_work(m->work);
    plugin_model_free(m->model);
    vision_free(m->vision);
    q_free(m);
}

uint32_t modality_find(const struct modalities *m, const char *name)
{
    uint32_t i = 0;
    while (i < m->n && strcmp(m->rows[i].name, name) != 0)
        i++;
    return i;
}

uint32_t modality_of_placeholder(const struct modalities *m, uint32_t token_id)
{
    uint32_t i = 0;
    while (i < m->n && m->rows[i].placeholder != token_id)
        i++;
    return i;
}

/* ---- items ---- */

size_t modality_item_bytes(const struct quire_item *item)
{
    size_t n = (unsigned)item->dtype <= QUIRE_I32 ? dtypes[item->dtype].bytes : 0;
    for (uint32_t i = 0; i < item->n_dim && i < QUIRE_DIMS_MAX; i++) {
        if (item->dims[i] && n > SIZE_MAX / item->dims[i])
            return SIZE_MAX;
        n *= item->dims[i];
    }
    return n;
}

/* "[2, 3]" */
static void shape_text(char out[SHAPE_MAX], const struct quire_item *item)
{
    size_t n = (size_t)snprintf(out, SHAPE_MAX, "[");
    for (uint32_t i = 0; i < item->n_dim && i < QUIRE_DIMS_MAX; i++)
        n += (size_t)snprintf(out + n, SHAPE_MAX - n, "%s%u", i ? ", " : "", item->dims[i]);
    snprintf(out + n, SHAPE_MAX - n, "%s]", item->n_dim > QUIRE_DIMS_MAX ? ", …" : "");
}

/* "[1…512, 3]" */
static void wanted_text(char out[SHAPE_MAX], const struct modality *m)
{
    size_t n = (size_t)snprintf(out, SHAPE_MAX, "[");
    for (uint32_t i = 0; i < m->n_dim; i++) {
        n += (size_t)snprintf(out + n, SHAPE_MAX - n, m->dims[i] ? "%s" : "%s1…", i ? ", " : "");
        n += (size_t)snprintf(out + n, SHAPE_MAX - n, "%u",
                              m->dims[i] ? m->dims[i] : m->dims_max[i]);
    }
    snprintf(out + n, SHAPE_MAX - n, "]");
}

static bool fits_shape(const struct modality *m, const struct quire_item *item)
{
    bool fits = item->n_dim == m->n_dim;
    for (uint32_t i = 0; i < m->n_dim && fits; i++)
        fits = m->dims[i] ? item->dims[i] == m->dims[i]
                          : item->dims[i] >= 1 && item->dims[i] <= m->dims_max[i];
    return fits;
}

static enum q_code check_finite(const struct modality *m, const struct quire_item *item,
                                struct q_err *e)
{
    const float *x = item->data;
    for (size_t i = 0; item->dtype == QUIRE_F32 && i < item->n_byte / sizeof *x; i++)
        if (!isfinite(x[i]))
            return q_fail(e, Q_INVALID, "%s[%u]: number %zu of it is %s", m->name, item->index, i,
                          isnan(x[i]) ? "not a number" : "infinite");
    return Q_OK;
}

static enum q_code check_form(const struct modality *m, const struct quire_item *item,
                              struct q_err *e)
{
    char found[SHAPE_MAX], wanted[SHAPE_MAX];
    shape_text(found, item);
    wanted_text(wanted, m);
    if (item->dtype != m->dtype)
        return q_fail(e, Q_INVALID, "%s[%u]: dtype %s is not %s", m->name, item->index,
                      (unsigned)item->dtype <= QUIRE_I32 ? dtypes[item->dtype].name : "?",
                      dtypes[m->dtype].name);
    if (!fits_shape(m, item))
        return q_fail(e, Q_INVALID, "%s[%u]: shape %s is not %s", m->name, item->index, found,
                      wanted);
    if (item->n_byte != modality_item_bytes(item))
        return q_fail(e, Q_INVALID, "%s[%u]: %zu bytes are not the %zu of %s %s", m->name,
                      item->index, item->n_byte, modality_item_bytes(item), dtypes[m->dtype].name,
                      found);
    return Q_OK;
}

static enum q_code ask_plugin(const struct modalities *all, const struct modality *m,
                              const struct quire_item *item, struct q_err *e)
{
    struct quire_plugin_error error = {{0}};
    plugin_begin(all->model, NULL);
    const int failed = m->of->check_item(all->host, all->model, item, &error);
    plugin_end();
    if (!failed)
        return Q_OK;
    const enum q_code rc = plugin_failed(all->model, "check_item", &error, Q_INVALID, e);
    return rc ? q_wrap(e, "%s[%u]: plugin %s", m->name, item->index,
                       plugin_arch_text(all->model->arch))
              : Q_OK;
}

static struct vision_size size_of(const struct quire_item *image)
{
    return (struct vision_size){image->dims[0], image->dims[1]};
}

FALLIBLE modality_check(const struct modalities *all, uint32_t i_modality, struct quire_item *item,
                        struct q_err *e)
{
    const struct modality *m = &all->rows[i_modality];
    enum q_code rc = check_form(m, item, e);
    if (rc)
        return rc;
    if (!m->of && vision_check(size_of(item), e))
        return q_wrap(e, "%s[%u]", m->name, item->index);
    if (!m->of) {
        item->n_token = vision_rows(all->vision, size_of(item));
        return Q_OK;
    }
    item->n_token = m->n_token ? m->n_token : m->of->count_tokens(all->model, item);
    if (item->n_token == 0 || item->n_token > MODALITY_TOKENS_MAX)
        return q_fail(e, Q_INVALID,
                      "%s[%u]: plugin %s says that it becomes %u rows, expected 1 to "
                      "%u",
                      m->name, item->index, plugin_arch_text(all->model->arch), item->n_token,
                      MODALITY_TOKENS_MAX);
    return m->of->check_item ? ask_plugin(all, m, item, e) : check_finite(m, item, e);
}

void modality_largest(const struct modalities *all, uint32_t i_modality, struct quire_item *out)
{
    const struct modality *m = &all->rows[i_modality];
    *out = (struct quire_item){.dtype = m->dtype, .n_dim = m->n_dim};
    for (uint32_t i = 0; i < m->n_dim; i++)
        out->dims[i] = m->dims[i] ? m->dims[i] : m->dims_max[i];
    out->n_byte = modality_item_bytes(out);
    out->n_token = m->n_token ? m->n_token
                   : m->of    ? m->of->count_tokens(all->model, out)
                              : vision_rows_max(all->vision);
}

void modality_kept(const struct modalities *all, uint32_t i_modality, const struct quire_item *item,
                   struct quire_item *kept)
{
    const struct modality *m = &all->rows[i_modality];
    *kept = *item;
    if (m->of || !fits_shape(m, item))
        return;
    const struct vision_size s = vision_kept_size(all->vision, size_of(item));
    kept->dims[0] = s.height;
    kept->dims[1] = s.width;
    kept->n_byte = modality_item_bytes(kept);
}

FALLIBLE modality_keep(const struct modalities *all, uint32_t i_modality,
                       const struct quire_item *item, void *to, struct q_err *e)
{
    if (!all->rows[i_modality].of)
        return vision_keep_image(all->vision, to, item->data, size_of(item), e);
    Q_ASSERT(item->data == to);
    return Q_OK;
}

void modality_tokens(const struct modalities *all, uint32_t i_modality,
                     const struct quire_item *kept, uint32_t first, uint32_t n, uint32_t *ids)
{
    _Static_assert(MODALITY_ROW == VISION_ROWS, "one mark");
    if (!all->rows[i_modality].of) {
        vision_tokens(all->vision, size_of(kept), first, n, ids);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        ids[i] = MODALITY_ROW;
}

/* ---- rows ---- */

/* One of the calls' work memory; at most as many calls run as there are. */
static uint32_t take_work(struct modality_work *w)
{
    for (uint32_t i = 0;; i = (i + 1) % w->n) {
        bool expected = false;
        if (atomic_compare_exchange_strong(&w->taken[i], &expected, true))
            return i;
    }
}

FALLIBLE modality_embed(const struct modalities *all, uint32_t i_modality,
                        const struct quire_item *item, const struct quire_rows *out,
                        struct q_err *e)
{
    const struct modality *m = &all->rows[i_modality];
    struct quire_plugin_error error = {{0}};
    Q_ASSERT(m->of && all->work && out->n == item->n_token &&
             out->n_col == all->model->config.hidden_size);
    const uint32_t i = take_work(all->work);
    plugin_begin(all->model, &all->work->calls[i]);
    const int failed = m->of->embed_item(all->host, all->model, item, out, &error);
    plugin_end();
    atomic_store(&all->work->taken[i], false);
    if (!failed)
        return Q_OK;
    const enum q_code rc = plugin_failed(all->model, "embed_item", &error, Q_INVALID, e);
    return rc ? q_wrap(e, "plugin %s: %s[%u]", plugin_arch_text(all->model->arch), m->name,
                       item->index)
              : Q_OK;
}

uint32_t modality_rows_of_step(const struct modalities *all, uint32_t i_modality)
{
    return all->rows[i_modality].of ? 0 : vision_rows_of_square(all->vision);
}

struct modality_span modality_embed_part(const struct modalities *all, uint32_t i_modality,
                                         const struct quire_item *item, struct modality_span want,
                                         const struct quire_rows *out)
{
    const struct vision_image image = {item->data, size_of(item)};
    const struct vision_out to = {out->rows, out->stride, want.first, want.end};
    Q_ASSERT(!all->rows[i_modality].of && want.end <= item->n_token);
    const struct vision_out made = vision_embed(all->vision, &image, &to);
    return (struct modality_span){made.first, made.end};
}

/* The most that a call of any modality needs. */
static size_t scratch_bytes(const struct modalities *m)
{
    size_t most = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        struct quire_item item;
        modality_largest(m, i, &item);
        const size_t n =
            m->rows[i].of->scratch_bytes ? m->rows[i].of->scratch_bytes(m->model, &item) : 0;
        most = n > most ? n : most;
    }
    return most;
}

static void cut_work(struct modality_work *w, struct region_cutter *c, size_t scratch, size_t rows)
{
    for (uint32_t i = 0; i < w->n; i++)
        w->calls[i] = (struct plugin_work){
            .scratch = scratch ? region_cut(c, 1, scratch) : NULL,
            .rows = rows ? region_cut(c, 1, rows) : NULL,
            .rows_bytes = rows,
        };
}

/* Zeros through check and embed_item. An item of zeros that the plugin does not take is none. */
static enum q_code try_dummy(const struct modalities *m, uint32_t i, struct q_err *e)
{
    struct quire_item item;
    struct q_err refused = Q_ERR_INIT;
    modality_largest(m, i, &item);
    const uint32_t n_col = m->model->config.hidden_size;
    const double bytes = (double)item.n_byte + (double)item.n_token * n_col * sizeof(float);
    if (item.n_token == 0 || item.n_token > MODALITY_TOKENS_MAX || bytes > (double)DUMMY_BYTES_MAX)
        return Q_OK;
    void *data = q_calloc(1, item.n_byte);
    float *rows = q_calloc((size_t)item.n_token * n_col, sizeof *rows);
    const struct quire_rows out = {rows, item.n_token, n_col, n_col};
    enum q_code rc = data && rows ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory");
    item.data = data;
    if (!rc && !modality_check(m, i, &item, &refused) && item.n_token == out.n &&
        modality_embed(m, i, &item, &out, e)) /* not the command line is invalid */
        rc = q_fail(e, Q_UNSUPPORTED, "an item of zeros: %s", e->message);
    q_free(rows);
    q_free(data);
    return rc;
}

struct binding {
    struct modalities *m;
    uint32_t n_thread;
    struct q_err error;
};

static enum q_code bind_work(struct binding *b)
{
    struct modalities *m = b->m;
    struct region_cutter c = {0};
    struct q_err *e = &b->error;
    enum q_code rc;
    m->work = q_calloc(1, sizeof *m->work);
    if (!m->work)
        return q_fail(e, Q_NO_MEMORY, "out of memory for items");
    const uint32_t n = b->n_thread;
    m->work->n = n < 1 ? 1 : n > WORKERS_MAX ? WORKERS_MAX : n;
    const size_t scratch = scratch_bytes(m), rows = plugin_rows_bytes(m->model);
    cut_work(m->work, &c, scratch, rows);
    if ((rc = region_init(&m->work->memory, c.used + 1, "work memory of items", e)))
        return rc;
    c = (struct region_cutter){.base = m->work->memory.data};
    cut_work(m->work, &c, scratch, rows);
    for (uint32_t i = 0; i < m->n && !rc; i++)
        rc = try_dummy(m, i, e);
    return rc;
}

static void run_bind(void *binding)
{
    const enum q_code rc = bind_work(binding);
    (void)rc; /* in its error */
}

FALLIBLE modalities_bind(struct modalities *m, const struct model *model, uint32_t n_thread,
                         struct q_err *e)
{
    struct binding b = {m, n_thread, Q_ERR_INIT};
    if (m->n == 0 || m->vision)
        return Q_OK;
    free_work(m->work);
    m->work = NULL;
    m->model->model = model;
    m->model->config = *model_config(model);
    const struct trial trial = {
        .plugin = plugin_arch_text(m->model->arch),
        .when = "with an item of zeros (count_tokens, scratch_bytes, check_item or embed_item)",
        .limit_ms = ZEROS_MS,
        .run = run_bind,
        .ctx = &b,
    };
    const enum q_code rc = plugin_try(&trial, e);
    if (!rc && b.error.code)
        *e = b.error;
    return rc ? rc : b.error.code;
}

FALLIBLE modalities_load(struct modalities *m, const struct model_options *o, struct q_err *e)
{
    return m->vision ? vision_load(m->vision, o, e) : Q_OK;
}

void modalities_settle(struct modalities *m, bool keeps_new)
{
    if (m->vision)
        vision_settle(m->vision, keeps_new);
}

uint64_t modalities_work_bytes(const struct modalities *m)
{
    return m->vision ? vision_bytes(m->vision) : m->work ? m->work->memory.size : 0;
}
