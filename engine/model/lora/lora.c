/* SPDX-License-Identifier: Apache-2.0 */
/* One function reads an adapter for the check and for the load: tensors are found and checked
 * first, each at the place of its module; a load then converts them into one piece of memory. */
#include "engine/model/lora/lora.h"
#include <stdio.h>
#include <string.h>
#include "common/hub/adapter.h"
#include "common/hub/nested.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/load/weight_names.h"
#include "engine/model/lora/lora_internal.h"
#include "engine/model/lora/lora_module.h"
#include "kernels/device.h"

#define MODEL "model." /* the beginning of most names of a family's table */

/* Products that may have adapters, and the place of each in lora.factors. */
static const enum program_weight adapted[] = {
    PROGRAM_W_QKV, PROGRAM_W_Q_B, PROGRAM_W_OUT, PROGRAM_W_GATE_UP, PROGRAM_W_UP, PROGRAM_W_DOWN,
};
_Static_assert(sizeof adapted / sizeof *adapted == LORA_PRODUCTS, "as lora.h says");

uint32_t lora_product(uint32_t w)
{
    uint32_t i = 0;
    while (i < LORA_PRODUCTS && adapted[i] != (enum program_weight)w)
        i++;
    return i;
}

bool lora_is_adapted(uint32_t w)
{
    return lora_product(w) < LORA_PRODUCTS;
}

const struct lora_factors *lora_factors_of(const struct lora *a, uint32_t w, uint32_t layer)
{
    const size_t i = lora_product(w);
    Q_ASSERT(!a->link);
    if (i == LORA_PRODUCTS || layer >= a->n_layer)
        return NULL;
    const struct lora_factors *f = &a->factors[layer * LORA_PRODUCTS + i];
    return f->n_part ? f : NULL;
}

uint64_t lora_bytes(const struct lora *a)
{
    return a->n_byte;
}

void lora_free(struct lora *a)
{
    if (!a)
        return;
    q_free(a->factors);
    q_free(a->data);
    if (a->link)
        a->link->t->host_free(a->link->d, a->image);
    q_free(a);
}

/* ---- finding ---- */

struct found { /* of a module */
    const struct tensor *factors[2];
};

struct reader {
    const struct arch *arch;
    const struct model_config *c;
    const struct lora_options *o;
    struct adapter_config *config;
    struct tensor_set *files;
    struct found *found;        /* [n_layer][arch->n_tensor] */
    enum weight_names names;    /* how the adapter calls the text model's modules */
    uint32_t n_other;           /* factors of modules for other inputs, which are not served */
    const struct tensor *other; /* the first of them */
    struct q_err *e;
};

static struct found *found_of(const struct reader *r, const struct lora_module *m)
{
    return &r->found[m->layer * r->arch->n_tensor + (size_t)(m->tensor - r->arch->tensors)];
}

static enum q_code fail_name(const struct reader *r, const struct tensor *t)
{
    static const struct {
        const char *part, *text;
    } known[] = {
        {"lora_magnitude_vector", "DoRA is not supported"},
        {"lora_embedding_", "adapters of the embedding are not supported"},
        {"lora_bias", "biases are not supported"},
        {".bias", "biases are not supported"},
        {"modules_to_save", "modules_to_save is not supported"},
        {".base_layer.", "adapters of lm_head and of the embedding are not supported"},
        {"embed_tokens.weight",
         "a whole embedding (PEFT's save_embedding_layers) is not supported"},
        {"lm_head.weight", "a whole lm_head (PEFT's save_embedding_layers) is not supported"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(t->name, known[i].part))
            return q_fail(r->e, Q_UNSUPPORTED, "%s: tensor %s: %s", t->file, t->name,
                          known[i].text);
    return q_fail(r->e, Q_UNSUPPORTED,
                  "%s: tensor %s is no factor of an adapter, expected "
                  "base_model.model.MODULE.lora_A.weight or .lora_B.weight",
                  t->file, t->name);
}

/* Of a model that takes other inputs too: "language_model.model.layers.0 …", or another form. */
static enum weight_names names_of(const struct reader *r)
{
    char start[ARCH_NAME_MAX], module[ADAPTER_MODULE_MAX];
    enum adapter_factor factor;
    for (enum weight_names n = NAMES_OUTER; *r->c->outer && n < WEIGHT_NAMES; n++) {
        weight_names_pattern(start, n, r->arch, MODEL);
        for (uint32_t i = 0; i < tensor_count(r->files); i++)
            if (adapter_tensor_parse(module, &factor, tensor_at(r->files, i)->name) &&
                strncmp(module, start, strlen(start)) == 0)
                return n;
    }
    return NAMES_PLAIN;
}

/* The module's name in the family's table. */
static void text_name(char out[ADAPTER_MODULE_MAX], const struct reader *r, const char *module)
{
    static const char *const begins[] = {MODEL, ""};
    char start[ARCH_NAME_MAX];
    snprintf(out, ADAPTER_MODULE_MAX, "%s", module);
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        weight_names_pattern(start, r->names, r->arch, begins[i]);
        if (strncmp(module, start, strlen(start)) == 0) {
            snprintf(out, ADAPTER_MODULE_MAX, "%s%s", begins[i], module + strlen(start));
            return;
        }
    }
}

/* The other way round. */
static void adapter_name(char out[ARCH_NAME_MAX], const struct reader *r,
                         const struct lora_module *m)
{
    char name[ARCH_NAME_MAX];
    lora_module_name(name, m);
    weight_names_pattern(out, r->names, r->arch, name);
}

static enum q_code find_tensor(struct reader *r, const struct tensor *t)
{
    char module[ADAPTER_MODULE_MAX], name[ADAPTER_MODULE_MAX];
    enum adapter_factor factor;
    struct lora_module m;
    bool is_wanted;
    enum q_code rc;
    if (!adapter_tensor_parse(module, &factor, t->name))
        return fail_name(r, t);
    if (*r->c->outer && !weight_names_is_text(r->names, module)) {
        r->other = r->n_other++ ? r->other : t;
        return Q_OK;
    }
    text_name(name, r, module);
    if ((rc = lora_module_find(&m, r->arch, r->c, name, r->e)) ||
        (rc = adapter_targets(&is_wanted, r->config, module, false, r->e)))
        return rc;
    if (!is_wanted)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: module %s has factors, but target_modules of adapter_config.json does "
                      "not name the module",
                      t->file, module);
    found_of(r, &m)->factors[factor] = t;
    return Q_OK;
}

static enum q_code check_factor(const struct reader *r, const struct tensor *t, uint32_t rows,
                                uint32_t cols)
{
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: tensor %s is of %s, expected float32, float16 or bfloat16", t->file,
                      t->name, dtype_name(t->dtype));
    if (t->n_dim == 2 && t->shape[0] == rows && t->shape[1] == cols)
        return Q_OK;
    return q_fail(r->e, Q_MISMATCH, "%s: tensor %s is [%llu, %llu%s], the model takes [%u, %u]",
                  t->file, t->name, (unsigned long long)(t->n_dim ? t->shape[0] : 0),
                  (unsigned long long)(t->n_dim > 1 ? t->shape[1] : 0),
                  t->n_dim == 2 ? "" : ", other dimensions", rows, cols);
}

/* A module that the adapter may have factors for. */
static enum q_code check_module(const struct reader *r, const struct lora_module *m)
{
    const struct found *f = found_of(r, m);
    const struct lora_place p = lora_module_place(m, r->arch, r->c);
    char name[ARCH_NAME_MAX];
    struct adapter_size size;
    bool is_wanted;
    enum q_code rc;
    adapter_name(name, r, m);
    if ((rc = adapter_targets(&is_wanted, r->config, name, false, r->e)))
        return rc;
    if (!f->factors[ADAPTER_A] && !f->factors[ADAPTER_B] && !is_wanted)
        return Q_OK;
    for (int i = ADAPTER_A; i <= ADAPTER_B; i++)
        if (!f->factors[i])
            return q_fail(r->e, Q_CORRUPT, "%s: lora_%c of module %s is missing", r->o->dir,
                          i == ADAPTER_A ? 'A' : 'B', name);
    if ((rc = adapter_size_of(&size, r->config, name, r->e)))
        return rc;
    if (size.rank > r->o->rank_max)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: rank %u of module %s is more than --max-lora-rank %u", r->o->dir,
                      size.rank, name, r->o->rank_max);
    rc = check_factor(r, f->factors[ADAPTER_A], size.rank, p.n_in);
    return rc ? rc : check_factor(r, f->factors[ADAPTER_B], p.n_out, size.rank);
}

typedef enum q_code each_module(const struct reader *r, const struct lora_module *m, void *ctx);

static enum q_code for_each(const struct reader *r, each_module *fn, void *ctx)
{
    enum q_code rc = Q_OK;
    for (uint32_t layer = 0; layer < r->c->n_layer; layer++)
        for (size_t i = 0; i < r->arch->n_tensor && !rc; i++) {
            const struct lora_module m = {&r->arch->tensors[i], layer};
            if (lora_module_is_adapted(m.tensor) && m.tensor->name &&
                arch_wants(r->c, m.tensor->when, layer))
                rc = fn(r, &m, ctx);
        }
    return rc;
}

static enum q_code check_one(const struct reader *r, const struct lora_module *m, void *ctx)
{
    (void)ctx;
    return check_module(r, m);
}

static enum q_code read_all(struct reader *r)
{
    enum q_code rc;
    if ((rc = arch_find(&r->arch, r->c->architecture, r->e)) ||
        (rc = adapter_config_load(&r->config, r->o->dir, r->e)) ||
        (rc = adapter_tensors_open(&r->files, r->o->dir, r->e)))
        return rc;
    if (!tensor_count(r->files))
        return q_fail(r->e, Q_CORRUPT, "%s: the adapter has no tensors", r->o->dir);
    r->found = q_calloc((size_t)r->c->n_layer * r->arch->n_tensor + 1, sizeof *r->found);
    if (!r->found)
        return q_fail(r->e, Q_NO_MEMORY, "%s: out of memory", r->o->dir);
    r->names = names_of(r);
    for (uint32_t i = 0; i < tensor_count(r->files); i++)
        if ((rc = find_tensor(r, tensor_at(r->files, i))))
            return rc;
    if (r->n_other)
        log_warning("%s: %u factors are of modules for %s, which are not served, and are not used; "
                    "the first is %s",
                    r->o->dir, r->n_other, nested_inputs(r->c->outer), r->other->name);
    return for_each(r, check_one, NULL);
}

static void reader_release(struct reader *r)
{
    adapter_config_free(r->config);
    tensor_set_free(r->files);
    q_free(r->found);
}

FALLIBLE lora_check(const struct model_config *c, const struct lora_options *o, struct q_err *e)
{
    struct reader r = {.c = c, .o = o, .e = e};
    const enum q_code rc = read_all(&r);
    reader_release(&r);
    return rc;
}

/* ---- loading ---- */

struct filler {
    struct lora *a;
    size_t at; /* bytes used */
};

static float element(const struct tensor *t, size_t i)
{
    uint16_t half;
    float f;
    if (t->dtype == DT_F32) {
        memcpy(&f, (const char *)t->data + 4 * i, 4);
        return f;
    }
    memcpy(&half, (const char *)t->data + 2 * i, 2);
    return t->dtype == DT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

static void put(void *to, enum dtype dtype, size_t i, float f)
{
    if (dtype == DT_F32)
        ((float *)to)[i] = f;
    else
        ((uint16_t *)to)[i] = dtype == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
}

/* Of both factors. */
static size_t module_bytes(enum dtype dtype, uint32_t rank, const struct lora_place *p)
{
    return lora_factor_bytes(dtype, (size_t)rank * p->n_in) +
           lora_factor_bytes(dtype, lora_b_size(rank, p->n_out));
}

static enum q_code count_module(const struct reader *r, const struct lora_module *m, void *ctx)
{
    const struct lora_place p = lora_module_place(m, r->arch, r->c);
    const struct tensor *a = found_of(r, m)->factors[ADAPTER_A];
    if (a)
        *(size_t *)ctx += module_bytes(r->o->dtype, (uint32_t)a->shape[0], &p);
    return Q_OK;
}

static enum q_code fill_module(const struct reader *r, const struct lora_module *m, void *ctx)
{
    struct filler *t = ctx;
    const struct found *from = found_of(r, m);
    const struct lora_place p = lora_module_place(m, r->arch, r->c);
    const enum dtype dtype = r->o->dtype;
    struct adapter_size size;
    char name[ARCH_NAME_MAX];
    if (!from->factors[ADAPTER_A])
        return Q_OK;
    adapter_name(name, r, m);
    const enum q_code rc = adapter_size_of(&size, r->config, name, r->e);
    if (rc)
        return rc;
    struct lora_factors *f = &t->a->factors[m->layer * LORA_PRODUCTS + lora_product(p.weight)];
    Q_ASSERT(f->n_part < KERN_LORA_PARTS);
    const size_t n_a = (size_t)size.rank * p.n_in, n_b = (size_t)size.rank * p.n_out;
    unsigned char *a = t->a->data + t->at, *b = a + lora_factor_bytes(dtype, n_a);
    t->at += module_bytes(dtype, size.rank, &p);
    f->dtype = dtype;
    f->n_in = p.n_in;
    f->parts[f->n_part++] = (struct lora_part){a, b, size.rank, p.col, p.n_out, size.scale};
    for (size_t i = 0; i < n_a; i++)
        put(a, dtype, i, element(from->factors[ADAPTER_A], i));
    for (size_t i = 0; i < n_b; i++) {
        const uint32_t row = (uint32_t)(i / size.rank), j = (uint32_t)(i % size.rank);
        put(b, dtype, lora_b_index(size.rank, j, lora_module_column(&p, r->c, row)),
            element(from->factors[ADAPTER_B], i));
    }
    return Q_OK;
}

static enum q_code load(struct lora *a, const struct reader *r)
{
    struct filler t = {.a = a};
    enum q_code rc = for_each(r, count_module, &a->n_byte);
    a->n_layer = r->c->n_layer;
    a->factors = q_calloc((size_t)a->n_layer * LORA_PRODUCTS, sizeof *a->factors);
    a->data = q_alloc_huge(a->n_byte + 64); /* B's panels are padded: by zeros */
    if (!a->factors || !a->data)
        return q_fail(r->e, Q_NO_MEMORY, "%s: out of memory for an adapter of %zu bytes", r->o->dir,
                      a->n_byte);
    memset(a->data, 0, a->n_byte);
    return rc ? rc : for_each(r, fill_module, &t);
}

FALLIBLE lora_load(struct lora **out, const struct model_config *c, const struct lora_options *o,
                   struct q_err *e)
{
    struct reader r = {.c = c, .o = o, .e = e};
    struct lora *a = NULL;
    enum q_code rc = read_all(&r);
    if (!rc && !(a = q_calloc(1, sizeof *a)))
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", o->dir);
    if (!rc)
        rc = load(a, &r);
    reader_release(&r);
    if (rc)
        lora_free(a);
    else
        *out = a;
    return rc;
}

static enum q_code add_most(const struct reader *r, const struct lora_module *m, void *ctx)
{
    const struct lora_place p = lora_module_place(m, r->arch, r->c);
    *(size_t *)ctx += module_bytes(r->o->dtype, r->o->rank_max, &p);
    return Q_OK;
}

FALLIBLE lora_most_bytes(size_t *out, const struct model_config *c, const struct lora_options *o,
                         struct q_err *e)
{
    struct reader r = {.c = c, .o = o, .e = e};
    const enum q_code rc = arch_find(&r.arch, c->architecture, e);
    *out = 0;
    return rc ? rc : for_each(&r, add_most, out);
}

/* ---- batches ---- */

FALLIBLE lora_batch_make(struct lora_batch *b, uint32_t *rows, const struct lora_seq *seqs,
                         uint32_t n, struct q_err *e)
{
    uint32_t used = 0;
    b->n_group = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t g = 0;
        while (g < b->n_group && b->groups[g].adapter != seqs[i].adapter)
            g++;
        if (!seqs[i].adapter || g < b->n_group)
            continue;
        if (g == LORA_GROUPS_MAX)
            return q_fail(e, Q_TOO_LARGE, "a step has more than %u adapters", LORA_GROUPS_MAX);
        b->groups[b->n_group++] = (struct lora_rows){seqs[i].adapter, rows + used, 0};
        for (uint32_t k = i; k < n; k++)
            for (uint32_t r = 0; seqs[k].adapter == seqs[i].adapter && r < seqs[k].n_row; r++)
                rows[used++] = seqs[k].row + r;
        b->groups[g].n_row = (uint32_t)(rows + used - b->groups[g].rows);
    }
    return Q_OK;
}
