/* SPDX-License-Identifier: Apache-2.0 */
/* The four steps of loading: list (load_plan.c), allocate (here), fill (fill.c), report
 * (load_plan_log.c). Each step reads the rows of the first. load_dests.def binds rows to the
 * members of struct weights. */
#include "engine/model/load/weights.h"
#include <stddef.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/hub/nested.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/size_text.h"
#include "engine/model/load/fill.h"
#include "engine/model/load/gguf_names.h"
#include "engine/model/load/mistral_names.h"
#include "engine/model/load/packed_cache.h"
#include "engine/model/load/packed_cache_key.h"
#include "engine/model/load/weight_finder.h"
#include "engine/model/plugin/maps.h"

struct loader {
    struct weights *w; /* files, plan and arrays from the listing on */
    const struct model_config *config;
    const struct load_options *options;
    struct filler filler;
    struct packed_cache_id id;
};

/* ---- list ---- */

static enum q_code open_files(struct loader *l, const struct arch *arch, struct q_err *e)
{
    if (l->options->format == LOAD_DUMMY)
        return Q_OK;
    const enum weight_format format = load_format_files(l->options->format);
    const enum q_code rc = tensor_set_open_as(&l->w->files, l->options->dir, format, e);
    if (rc)
        return rc;
    if (!arch->plugin && mistral_names_are_in(l->w->files))
        return mistral_names_map(l->w->files, l->config, e);
    if (!arch->plugin && gguf_names_are_in(l->w->files))
        return gguf_names_map(l->w->files, l->config, e);
    if (!arch->plugin)
        return weight_names_map(l->w->files, e);
    return plugin_map_names(l->w->files, arch, l->config, e);
}

static struct weight_finder finder_of(const struct loader *l, const struct arch *arch)
{
    return (struct weight_finder){
        .arch = arch,
        .config = l->config,
        .files = l->w->files,
        .dummy_dtype = l->options->dtype,
        .is_mapped = plugin_has_maps(arch),
        .stage = l->options->stage,
        .names = weight_names_of(arch, l->config, l->w->files),
    };
}

/* Places of a plugin's tensors. */
static enum q_code make_own(struct weights *w, const struct arch *arch, uint32_t n_layer,
                            struct q_err *e)
{
    uint32_t n = 0;
    w->own_at = q_calloc((size_t)arch->n_own + 1, sizeof *w->own_at);
    for (uint32_t i = 0; i < arch->n_own && w->own_at; i++) {
        w->own_at[i] = n;
        n += arch->own[i].of_layer ? n_layer : 1;
    }
    w->own = q_calloc((size_t)n + 1, sizeof *w->own);
    return w->own && w->own_at ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for %u tensors", n);
}

/* l->w is safe to release afterwards, whatever comes. */
static enum q_code list(struct loader *l, const struct arch *arch, struct q_err *e)
{
    struct weights *w = l->w;
    const struct model_config *c = l->config;
    enum q_code rc;
    *w = (struct weights){.n_layer = c->n_layer, .n_expert = c->moe.n_expert};
    w->layers = q_calloc(c->n_layer, sizeof *w->layers);
    w->experts = q_calloc((size_t)c->n_layer * c->moe.n_expert + 1, sizeof *w->experts);
    if (!w->layers || !w->experts)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u layers", c->n_layer);
    if ((rc = make_own(w, arch, c->n_layer, e)) || (rc = open_files(l, arch, e)))
        return rc;
    const struct weight_finder f = finder_of(l, arch);
    if ((rc = load_plan_new(&w->plan, &f, l->options, e)))
        return rc;
    w->n_param = w->plan->n_param;
    return Q_OK;
}

static void report(const struct loader *l)
{
    const struct load_plan *p = l->w->plan;
    weight_finder_warn_unused(p->arch, p->n_unused, p->unused);
    if (*l->config->outer && !l->config->takes_items)
        log_info("%s: its text model is served, as %s, without %s", l->config->outer, p->arch->name,
                 nested_inputs(l->config->outer));
    else if (*l->config->outer)
        log_info("%s: its text model is %s", l->config->outer, p->arch->name);
    load_plan_log(p, l->options, &l->config->quant);
}

/* ---- allocate ---- */

/* They are all written and all read: beyond the memory the system would kill the process. */
static enum q_code fail_too_big(const struct loader *l, const char *what, struct q_err *e)
{
    static const struct {
        enum quantization is;
        const char *flag;
        double bits; /* of a weight, with its part of scales */
    } smaller[] = {{QUANTIZE_INT8, "int8", 8.1}, {QUANTIZE_INT4, "int4", 4.5}};
    const struct load_options *o = l->options;
    const double need = (double)l->w->plan->n_bytes, most = (double)o->memory_bytes;
    char size[SIZE_TEXT_MAX], most_size[SIZE_TEXT_MAX];
    const enum quantization now = o->quantization;
    struct buf ways = BUF_INIT;
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        const double then = need * smaller[i].bits / (double)dtype_bits(o->dtype);
        if (now == QUANTIZE_NOT && !l->config->quant.method && then < most)
            buf_printf(&ways, "--quantization %s (about %s), ", smaller[i].flag,
                       size_text_binary(size, then));
    }
    enum q_code rc = q_fail(e, Q_NO_MEMORY,
                            "%s: %s in %s do not fit the %s that this process can have; ways out: "
                            "%sa smaller model, or a machine with more memory",
                            what, size_text_binary(size, need),
                            now ? quantization_name(now) : dtype_name(o->dtype),
                            size_text_binary(most_size, most), buf_str(&ways));
    buf_release(&ways);
    return rc;
}

/* Memory for the packed weights, near the threads that will read them. */
static FALLIBLE make_region(struct loader *l, const char *what, struct q_err *e)
{
    const struct load_options *o = l->options;
    struct region *r = &l->w->memory;
    const size_t n = l->w->plan->n_bytes;
    if (o->device)
        return region_init_on(r, n, what, o->device, e);
    if (o->memory_bytes && n > o->memory_bytes)
        return fail_too_big(l, what, e);
    enum q_code rc = region_init_streamed(r, n, what, o->team, e);
    if (!rc && team_place_memory(o->team, r->data, r->size, CPUS_FIRST_TOUCH) > 1)
        l->filler.way = FILL_OWN;
    return rc;
}

/* A device's layout is its library's own, and the way there takes as long as packing. */
static bool wants_cache(const struct load_options *o)
{
    return o->packed_cache && o->format != LOAD_DUMMY && !o->device;
}

/* Is it in the packed cache? Then filler.way says so. */
static FALLIBLE find_packed(struct loader *l, struct q_err *e)
{
    const struct load_options *o = l->options;
    const struct weights *w = l->w;
    struct buf key = BUF_INIT;
    enum q_code rc = packed_cache_key(&key, w->plan, o->kern, e);
    l->id.n_bytes = w->plan->n_bytes;
    if (!rc)
        rc = packed_cache_identify(&l->id, w->files, key.data, key.len, e);
    if (!rc && packed_cache_open(&l->w->memory, o->packed_cache, &l->id, o->team))
        l->filler.way = FILL_FOUND;
    buf_release(&key);
    return rc;
}

/* The region: found packed, or empty. */
static enum q_code get_region(struct loader *l, struct q_err *e)
{
    struct weights *w = l->w;
    enum q_code rc = wants_cache(l->options) ? find_packed(l, e) : Q_OK;
    if (!rc && w->plan->n_host_bytes)
        rc = region_init(&w->host, w->plan->n_host_bytes, "weights of items", e);
    return rc || l->filler.way == FILL_FOUND ? rc : make_region(l, "weights", e);
}

/* ---- fill ---- */

/* Where each destination is in the struct that has it. */
#define OWNER_MODEL  struct weights
#define OWNER_LAYER  struct layer_weights
#define OWNER_EXPERT struct expert_weights
static const struct {
    enum load_owner of;
    size_t offset;
} members[DEST_COUNT] = {
#define DEST(name, of, member, kind, join, role, when, ...) {OF_##of, offsetof(OWNER_##of, member)},
#include "engine/model/load/load_dests.def"
};

static void bind_row(struct weights *w, const struct load_row *r)
{
    struct layer_weights *layer = &w->layers[r->of.layer];
    void *owner = w;
    if (r->own) {
        const size_t i = (size_t)(r->own - w->plan->arch->own);
        w->own[w->own_at[i] + (r->own->of_layer ? r->of.layer : 0)] = r->form;
        return;
    }
    if (members[r->dest].of == OF_LAYER)
        owner = layer;
    if (members[r->dest].of == OF_EXPERT) {
        layer->experts = w->experts + (size_t)r->of.layer * w->n_expert;
        owner = &layer->experts[r->of.expert];
    }
    void *member = (char *)owner + members[r->dest].offset;
    if (r->kind == KIND_MATRIX || r->dest == DEST_KV_B || r->dest == DEST_TYPES ||
        r->dest == DEST_EMBED_LAYERS)
        *(struct packed *)member = r->form;
    else
        *(const void **)member = r->form.data;
    if (r->dest == DEST_POSITIONS)
        w->positions_dtype = r->form.dtype;
    if (r->dest != DEST_EMBED)
        return;
    w->embed_dtype = r->form.dtype;
    w->embed_packed = r->place == PLACE_SHARED;
}

static enum q_code fill(struct loader *l, struct q_err *e)
{
    struct weights *w = l->w;
    load_plan_place(w->plan, w->memory.data);
    load_plan_place_host(w->plan, w->host.data);
    for (size_t i = 0; i < w->plan->n_row; i++)
        bind_row(w, &w->plan->rows[i]);
    enum q_code rc = w->plan->n_host_bytes ? fill_run_host(w->plan, l->options, e) : Q_OK;
    if (!rc)
        rc = fill_run(&l->filler, w->plan, e);
    if (w->files)
        tensor_set_drop_pages(w->files);
    return rc;
}

/* ---- all of it ---- */

static double ms(int64_t us)
{
    return (double)us * 1e-3;
}

enum q_code weights_load(struct weights *w, const struct arch *arch, const struct model_config *c,
                         const struct load_options *o, struct q_err *e)
{
    struct loader l = {.w = w, .config = c, .options = o};
    enum q_code rc;
    const int64_t start_us = clock_us();
    int64_t listed_us = start_us, region_us = start_us;
    if (!(rc = list(&l, arch, e)) && !(rc = fill_init(&l.filler, w->plan, o, e))) {
        report(&l);
        listed_us = clock_us();
        rc = get_region(&l, e);
        region_us = clock_us();
    }
    if (rc || (rc = fill(&l, e)))
        weights_release(w);
    else if (wants_cache(o) && l.filler.way != FILL_FOUND)
        w->writer = packed_cache_write(o->packed_cache, &l.id, &w->memory, w->files);
    if (!rc)
        log_debug("start: tensors found and checked %.1f ms, memory for them or the packed cache "
                  "%.1f ms, packing %.1f ms",
                  ms(listed_us - start_us), ms(region_us - listed_us), ms(clock_us() - region_us));
    fill_release(&l.filler);
    return rc;
}

/* The old region where everything lies in the same way, else a new one beside it. What launches
 * have by value is another then, or where scales of inputs are. */
static enum q_code take_region(struct loader *l, struct weights *old, struct q_err *e)
{
    struct weights *w = l->w;
    const bool fits = !old->memory.is_file && load_plan_same_layout(w->plan, old->plan);
    w->generation = old->generation + !(fits && load_plan_same_scales(w->plan, old->plan));
    if (!fits)
        return make_region(l, "the new weights", e);
    w->memory = old->memory; /* from here on the old weights are lost, and nothing can fail */
    old->memory = (struct region)REGION_INIT;
    if (l->options->quantization) /* scales and sums beside the numbers begin at zero */
        region_zero(&w->memory);
    return Q_OK;
}

enum q_code weights_reload(struct weights *w, const struct arch *arch, const struct model_config *c,
                           const struct load_options *o, struct q_err *e)
{
    struct weights fresh;
    struct loader l = {.w = &fresh, .config = c, .options = o};
    enum q_code rc;
    if ((rc = list(&l, arch, e)) || (rc = fill_init(&l.filler, fresh.plan, o, e)))
        goto out;
    report(&l);
    packed_cache_writer_end(w->writer, true);
    w->writer = NULL;
    if ((fresh.plan->n_host_bytes &&
         (rc = region_init(&fresh.host, fresh.plan->n_host_bytes, "weights of items", e))) ||
        (rc = take_region(&l, w, e)))
        goto out;
    rc = fill(&l, e);
    Q_ASSERT(rc == Q_OK || o->device); /* everything was found and checked by the listing */
    weights_release(w);
    *w = fresh;
    fresh = (struct weights){0};
out:
    fill_release(&l.filler);
    weights_release(&fresh);
    return rc;
}

enum q_code weights_plan(struct weights *w, const struct arch *arch, const struct model_config *c,
                         const struct load_options *o, struct q_err *e)
{
    struct loader l = {.w = w, .config = c, .options = o};
    const enum q_code rc = list(&l, arch, e);
    if (rc)
        weights_release(w);
    return rc;
}

enum q_code weights_check(const struct arch *arch, const struct model_config *c,
                          const struct load_options *o, struct q_err *e)
{
    struct weights w;
    const struct loader l = {.w = &w, .config = c, .options = o};
    const enum q_code rc = weights_plan(&w, arch, c, o, e);
    if (!rc)
        report(&l);
    weights_release(&w);
    return rc;
}

void weights_release(struct weights *w)
{
    packed_cache_writer_end(w->writer, false);
    q_free(w->layers);
    q_free(w->experts);
    q_free(w->own);
    q_free(w->own_at);
    region_release(&w->host);
    region_release(&w->memory);
    load_plan_free(w->plan);
    tensor_set_free(w->files);
    *w = (struct weights){0};
}
