/* SPDX-License-Identifier: Apache-2.0 */
/* The loader's plan: every tensor is in one row, rows do not overlap, forms and reasons are those
 * that were asked for, both ways of filling give the same bytes, and the plan can be read as text
 * and as JSON. */
#include "engine/model/load/fill.h"
#include "engine/model/load/packed_cache_key.h"
#include "engine/model/load/weights.h"
#include "fake_device.h"
#include "folder.h"
#include "golden.h"
#include "common/log.h"
#include "common/mem.h"

#define MODELS    "tests/data/models/"
#define QUANTIZED "tests/data/quantized/"

static struct q_err e;
static struct kern_table kern;

struct planned {
    struct model_config config;
    struct load_options options;
    struct weights w;
};

static enum q_code plan_of(struct planned *p, const char *dir, const struct load_options *how)
{
    const struct arch *arch;
    p->options = *how;
    p->options.dir = dir;
    p->options.kern = &kern;
    assert_ok(model_config_load(&p->config, NULL, dir, &e), &e);
    assert_ok(arch_find(&arch, p->config.architecture, &e), &e);
    return weights_plan(&p->w, arch, &p->config, &p->options, &e);
}

/* Is the checkpoint quantized already? Then the model's options say how it is computed in. */
static struct load_options options_for(const char *dir, enum dtype dtype, enum quantization q)
{
    struct model_config c;
    assert_ok(model_config_load(&c, NULL, dir, &e), &e);
    if (c.quant.method && !quant_config_becomes_floats(&c.quant))
        q = c.quant.method == QUANT_FP8 ? QUANTIZE_NOT
            : c.quant.bits == 4         ? QUANTIZE_INT4
                                        : QUANTIZE_INT8;
    return (struct load_options){.dtype = dtype, .quantization = q};
}

static const char *const dirs[] = {
    MODELS "llama",
    MODELS "llama-bf16-sharded",
    MODELS "llama-bias-tied",
    MODELS "llama-gptq",
    MODELS "llama-gptq-act8",
    MODELS "llama-torchao-int4",
    MODELS "llama-torchao-int8-int4",
    MODELS "mistral",
    MODELS "deepseek_v3",
    MODELS "gemma2",
    MODELS "gpt_neox",
    MODELS "gpt_neox-seq",
    MODELS "phi3",
    MODELS "mixtral",
    MODELS "olmoe",
    MODELS "granitemoe",
    MODELS "gpt_oss",
    MODELS "gpt_oss-mxfp4",
    MODELS "qwen2",
    MODELS "qwen2-awq",
    MODELS "qwen2_moe",
    MODELS "qwen3",
    MODELS "qwen3-v5cfg-f16",
    MODELS "qwen3_moe",
    QUANTIZED "gptq-4-act",
    QUANTIZED "gptq-8-act",
    QUANTIZED "awq-4",
    QUANTIZED "packed-4-asym",
    QUANTIZED "int8",
    QUANTIZED "fp8-channel",
    QUANTIZED "fp8-block",
    QUANTIZED "experts-shared",
    QUANTIZED "experts-mixed",
};
#define N_DIR (sizeof dirs / sizeof *dirs)
static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};

/* fn for every model in every dtype and quantization. */
static void for_all(void (*fn)(const struct planned *p))
{
    for (size_t i = 0; i < N_DIR; i++)
        for (size_t d = 0; d < 3; d++)
            for (enum quantization q = QUANTIZE_NOT; q <= QUANTIZE_INT4; q++) {
                struct planned p;
                const struct load_options how = options_for(dirs[i], dtypes[d], q);
                assert_ok(plan_of(&p, dirs[i], &how), &e);
                fn(&p);
                weights_release(&p.w);
            }
}

static uint32_t uses_of(const struct load_plan *p, const struct tensor *t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < p->n_row; i++)
        for (uint32_t k = 0; k < p->rows[i].n_source && !p->rows[i].tied; k++) {
            const struct weight_source *s = load_plan_sources(p, &p->rows[i]) + k;
            const bool is_it = s->tensor == t || s->quant.q == t || s->quant.scales == t ||
                               s->quant.zeros == t || s->quant.order == t;
            /* the other slices of a tensor begin behind, the other experts lie behind */
            n += is_it && s->slice.first == 0 && (!s->stacked || s->place.expert == 0);
        }
    return n;
}

/* Tensors that the loader recognises and does not read. */
static bool is_left_out(const char *name)
{
    static const char *const ends[] = {".g_idx", ".weight_shape", ".input_scale",
                                       "._weight_zero_point"}; /* all 0 */
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static void check_tensors(const struct planned *p)
{
    for (uint32_t i = 0; i < tensor_count(p->w.files); i++) {
        const struct tensor *t = tensor_at(p->w.files, i);
        const uint32_t n = uses_of(p->w.plan, t);
        if (n != 1 && !(n == 0 && is_left_out(t->name)))
            fail_msg("%s: %s is in %u rows", t->file, t->name, n);
    }
}

static void every_tensor_is_in_one_row(void **state)
{
    (void)state;
    for_all(check_tensors);
}

static void check_places(const struct planned *p)
{
    size_t end = 0;
    for (size_t i = 0; i < p->w.plan->n_row; i++) {
        const struct load_row *r = &p->w.plan->rows[i];
        if (r->place != PLACE_REGION) {
            assert_int_equal(r->bytes, 0);
            continue;
        }
        assert_true(r->order_at >= end && r->order_at < end + REGION_ALIGN);
        if (r->ordered)
            assert_true(r->at >= r->order_at + r->form.n_in * sizeof(uint32_t));
        assert_int_equal(r->at % REGION_ALIGN, 0);
        assert_true(r->bytes > 0);
        if (r->kind == KIND_MATRIX)
            assert_int_equal(r->bytes, load_form_bytes(&r->form, NULL));
        end = r->at + r->bytes;
    }
    assert_true(end <= p->w.plan->n_bytes && p->w.plan->n_bytes < end + REGION_ALIGN);
}

static void rows_lie_one_after_the_other(void **state)
{
    (void)state;
    for_all(check_places);
}

static const struct load_row *find_row(const struct load_plan *p, const char *wanted)
{
    char name[LOAD_NAME_MAX];
    for (size_t i = 0; i < p->n_row; i++) {
        load_row_name(name, &p->rows[i]);
        if (strcmp(name, wanted) == 0)
            return &p->rows[i];
    }
    fail_msg("no row %s", wanted);
    return NULL;
}

static void forms_and_their_reasons(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        enum dtype dtype;
        enum quantization quantization;
        const char *row, *form;
        enum load_place place;
        enum load_why why;
    } cases[] = {
        {MODELS "llama", DT_F32, QUANTIZE_NOT, "embed", "F32", PLACE_FILE, WHY_TABLE},
        {MODELS "llama", DT_F32, QUANTIZE_NOT, "lm_head", "F32", PLACE_REGION, WHY_DTYPE},
        {MODELS "llama", DT_BF16, QUANTIZE_NOT, "layers.1.gate_up", "BF16, interleaved",
         PLACE_REGION, WHY_DTYPE},
        {MODELS "llama-bf16-sharded", DT_F32, QUANTIZE_NOT, "layers.0.qkv", "BF16", PLACE_REGION,
         WHY_EXACT},
        {MODELS "llama-bias-tied", DT_F32, QUANTIZE_NOT, "embed", "BF16", PLACE_SHARED, WHY_TABLE},
        {MODELS "llama-bias-tied", DT_F16, QUANTIZE_NOT, "embed", "BF16", PLACE_FILE, WHY_TABLE},
        {MODELS "llama-bias-tied", DT_F32, QUANTIZE_NOT, "layers.0.gate_up_bias",
         "F32, interleaved", PLACE_REGION, WHY_VECTOR},
        {MODELS "llama-bias-tied", DT_F32, QUANTIZE_INT8, "embed", "BF16", PLACE_FILE, WHY_TABLE},
        {MODELS "llama", DT_F32, QUANTIZE_INT8, "layers.0.out", "int8", PLACE_REGION, WHY_ASKED},
        {MODELS "llama", DT_F32, QUANTIZE_INT4, "layers.0.qkv", "int4 in groups of 64",
         PLACE_REGION, WHY_ASKED},
        {MODELS "llama", DT_F32, QUANTIZE_INT4, "lm_head", "int8", PLACE_REGION, WHY_INT8_LOGITS},
        {MODELS "qwen2_moe", DT_F32, QUANTIZE_INT4, "layers.0.experts.3.down", "int8", PLACE_REGION,
         WHY_INT8_INPUTS},
        {MODELS "qwen2_moe", DT_BF16, QUANTIZE_INT4, "layers.0.router", "BF16", PLACE_REGION,
         WHY_ROUTER},
        {MODELS "llama-gptq", DT_F32, QUANTIZE_INT4, "lm_head", "int8", PLACE_REGION,
         WHY_INT8_FLOATS},
        {MODELS "llama-gptq-act8", DT_F32, QUANTIZE_INT8, "layers.0.qkv", "int8", PLACE_REGION,
         WHY_MADE_INT8},
        {QUANTIZED "gptq-4-act", DT_F32, QUANTIZE_INT4, "layers.0.down",
         "int4 in groups of 32, act-order", PLACE_REGION, WHY_STORED},
        {QUANTIZED "gptq-4-act", DT_F32, QUANTIZE_INT4, "layers.0.qkv", "int8", PLACE_REGION,
         WHY_INT8_ORDERS},
        {QUANTIZED "experts-shared", DT_F32, QUANTIZE_INT4, "layers.0.gate_up", "int8, interleaved",
         PLACE_REGION, WHY_INT8_SHARED},
        {QUANTIZED "int8", DT_F32, QUANTIZE_INT8, "layers.0.qkv", "int8", PLACE_REGION, WHY_STORED},
        {QUANTIZED "fp8-block", DT_BF16, QUANTIZE_NOT, "layers.0.qkv", "BF16", PLACE_REGION,
         WHY_CPU_FP8},
        {QUANTIZED "fp8", DT_BF16, QUANTIZE_NOT, "layers.0.qkv", "BF16", PLACE_REGION, WHY_CPU_FP8},
        {QUANTIZED "fp8", DT_BF16, QUANTIZE_FP8, "layers.0.gate_up",
         "e4m3, inputs in one scale, interleaved", PLACE_REGION, WHY_STORED},
        {QUANTIZED "fp8-some", DT_BF16, QUANTIZE_FP8, "layers.0.qkv", "e4m3", PLACE_REGION,
         WHY_MADE_FLOATS}, /* k has none */
        {QUANTIZED "fp8-some", DT_BF16, QUANTIZE_FP8, "layers.0.gate_up",
         "e4m3, inputs in one scale, interleaved", PLACE_REGION, WHY_STORED},
        {QUANTIZED "fp8-channel", DT_BF16, QUANTIZE_FP8, "layers.0.qkv", "e4m3", PLACE_REGION,
         WHY_STORED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct planned p;
        char form[LOAD_FORM_MAX];
        const struct load_options how = {
            .dtype = cases[i].dtype,
            .quantization = cases[i].quantization,
        };
        assert_ok(plan_of(&p, cases[i].dir, &how), &e);
        const struct load_row *r = find_row(p.w.plan, cases[i].row);
        load_row_form(form, r);
        if (strcmp(form, cases[i].form) != 0 || r->place != cases[i].place ||
            r->why != cases[i].why)
            fail_msg("case %zu, %s %s: %s, place %d, %s", i, cases[i].dir, cases[i].row, form,
                     r->place, load_why_text(r->why));
        weights_release(&p.w);
    }
}

/* ---- filling ---- */

static void fill_one(struct region *out, const struct planned *p, enum fill_way way,
                     struct team *team)
{
    struct filler f;
    struct load_options o = p->options;
    o.team = team;
    assert_ok(fill_init(&f, p->w.plan, &o, &e), &e);
    f.way = way;
    assert_ok(region_init(out, p->w.plan->n_bytes, "test", &e), &e);
    load_plan_place(p->w.plan, out->data);
    assert_ok(fill_run(&f, p->w.plan, &e), &e);
    fill_release(&f);
}

static struct team *team_3;

static void check_fill(const struct planned *p)
{
    struct region one, taken, own;
    fill_one(&one, p, FILL_TAKEN, NULL);
    fill_one(&taken, p, FILL_TAKEN, team_3);
    fill_one(&own, p, FILL_OWN, team_3);
    assert_memory_equal(one.data, taken.data, one.size);
    assert_memory_equal(one.data, own.data, one.size);
    region_release(&one);
    region_release(&taken);
    region_release(&own);
}

/* Pieces as they come, and each thread its own: the bytes are those of one thread. */
static void every_way_of_filling_gives_the_same_bytes(void **state)
{
    (void)state;
    assert_ok(team_new(&team_3, 3, false, &e), &e);
    for_all(check_fill);
    team_free(team_3);
}

/* ---- tensors that hold several matrices ---- */

struct fused_file { /* being written */
    struct buf header, data;
    struct tensor_set *from;
};

static void add_header(struct fused_file *f, const char *name, const struct tensor *like,
                       uint64_t rows)
{
    const uint64_t n = like->n_bytes / like->shape[0] * rows;
    buf_printf(&f->header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%llu",
               f->header.len ? ", " : "{", name, dtype_name(like->dtype), (unsigned long long)rows);
    for (uint32_t d = 1; d < like->n_dim; d++)
        buf_printf(&f->header, ", %llu", (unsigned long long)like->shape[d]);
    buf_printf(&f->header, "], \"data_offsets\": [%zu, %zu]}", f->data.len,
               f->data.len + (size_t)n);
}

/* For each of n_block: its part of the first tensor, of the second, … */
static void add_fused(struct fused_file *f, const char *name, const struct tensor *const *parts,
                      size_t n, uint64_t n_block)
{
    uint64_t rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += parts[i]->shape[0];
    add_header(f, name, parts[0], rows);
    for (uint64_t b = 0; b < n_block; b++)
        for (size_t i = 0; i < n; i++) {
            const uint64_t bytes = parts[i]->n_bytes / n_block;
            buf_add(&f->data, (const char *)parts[i]->data + b * bytes, bytes);
        }
}

static const struct fusion {
    const char *whole, *parts[3];
    enum arch_slot slot, slot_by_heads;
    struct {
        enum arch_dim dims[2];
    } shape;
    enum arch_slot replaced[3];
} fusions[] = {
    {"self_attn.qkv.weight",
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     W_QKV,
     W_QKV_HEADS,
     {{D_QKV, D_HIDDEN}},
     {W_Q, W_K, W_V}},
    {"self_attn.qkv.bias",
     {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
     W_QKV_BIAS,
     W_QKV_HEADS_BIAS,
     {{D_QKV}},
     {W_Q_BIAS, W_K_BIAS, W_V_BIAS}},
    {"mlp.gate_up.weight",
     {"mlp.gate_proj.weight", "mlp.up_proj.weight", NULL},
     W_GATE_UP,
     W_GATE_UP,
     {{D_2_INTER, D_HIDDEN}},
     {W_GATE, W_UP, W_UP}},
};
#define N_FUSION (sizeof fusions / sizeof *fusions)

static void add_fusion(struct fused_file *f, const struct fusion *x, uint32_t layer,
                       uint64_t n_block)
{
    const struct tensor *parts[3] = {NULL};
    char name[128];
    size_t n = 0;
    do {
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, x->parts[n]);
        parts[n] = tensor_find(f->from, name);
        assert_non_null(parts[n]);
    } while (++n < 3 && x->parts[n]);
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, x->whole);
    add_fused(f, name, parts, n, x->slot == W_GATE_UP ? 1 : n_block);
}

static bool is_fused_part(const char *name)
{
    for (size_t i = 0; i < N_FUSION; i++)
        for (size_t k = 0; k < 3 && fusions[i].parts[k]; k++)
            if (strstr(name, fusions[i].parts[k]))
                return true;
    return false;
}

/* The model of `dir` with its q, k and v, and its gate and up, as one tensor each. */
static void write_fused(const struct folder *to, const char *dir, bool by_heads)
{
    struct fused_file f = {BUF_INIT, BUF_INIT, NULL};
    struct buf file = BUF_INIT;
    struct model_config c;
    assert_ok(model_config_load(&c, NULL, dir, &e), &e);
    assert_ok(tensor_set_open(&f.from, dir, &e), &e);
    for (uint32_t i = 0; i < tensor_count(f.from); i++) {
        const struct tensor *t = tensor_at(f.from, i);
        if (!is_fused_part(t->name))
            add_fused(&f, t->name, &t, 1, 1);
    }
    for (uint32_t i = 0; i < c.n_layer; i++)
        for (size_t k = 0; k < N_FUSION; k++)
            add_fusion(&f, &fusions[k], i, by_heads ? c.n_kv_head : 1);
    buf_add_char(&f.header, '}');
    while (f.header.len % 8)
        buf_add_char(&f.header, ' ');
    for (int i = 0; i < 8; i++)
        buf_add_char(&file, (char)((uint64_t)f.header.len >> 8 * i));
    buf_add(&file, f.header.data, f.header.len);
    buf_add(&file, f.data.data, f.data.len);
    folder_write(to, "model.safetensors", file.data, file.len);
    folder_copy(to, dir, "config.json");
    tensor_set_free(f.from);
    buf_release(&f.header);
    buf_release(&f.data);
    buf_release(&file);
}

#define TENSORS_MAX 64u

/* The family with the fused tensors in its table instead of their parts. */
static void fused_arch(struct arch *out, struct arch_tensor tensors[TENSORS_MAX],
                       const struct arch *from, bool by_heads)
{
    static const char *const names[N_FUSION] = {"model.layers.%u.self_attn.qkv.weight",
                                                "model.layers.%u.self_attn.qkv.bias",
                                                "model.layers.%u.mlp.gate_up.weight"};
    *out = *from;
    out->tensors = tensors;
    out->n_tensor = 0;
    for (size_t i = 0; i < from->n_tensor; i++) {
        bool replaced = false;
        for (size_t k = 0; k < N_FUSION * 3; k++)
            replaced |= from->tensors[i].slot == fusions[k / 3].replaced[k % 3];
        if (!replaced)
            tensors[out->n_tensor++] = from->tensors[i];
    }
    for (size_t k = 0; k < N_FUSION; k++)
        tensors[out->n_tensor++] = (struct arch_tensor){
            .name = names[k],
            .slot = by_heads ? fusions[k].slot_by_heads : fusions[k].slot,
            .dims = {fusions[k].shape.dims[0], fusions[k].shape.dims[1]},
            .when = WHEN_ALWAYS,
        };
    assert_true(out->n_tensor <= TENSORS_MAX);
}

static struct device_link link_fake(void)
{
    const struct device_options o = {0};
    struct device_link l = {.t = fake_device_table()};
    assert_ok(l.t->open(&l.d, &o, &e), &e);
    assert_ok(l.t->stream_new(l.d, &l.s, &e), &e);
    return l;
}

/* The region of these weights in host memory: [n_bytes]. */
static unsigned char *loaded_bytes(const struct weights *w, const struct device_link *link)
{
    const size_t n = w->plan->n_bytes;
    unsigned char *out = q_alloc(n);
    void *host = w->memory.data;
    assert_non_null(out);
    if (link) {
        assert_ok(link->t->host_alloc(link->d, &host, n, "test", &e), &e);
        link->t->copy(link->s, host, w->memory.data, n);
        assert_ok(link->t->sync(link->s, &e), &e);
    }
    memcpy(out, host, n);
    if (link)
        link->t->host_free(link->d, host);
    return out;
}

static void compare_fused(const char *dir, const struct folder *fused, bool by_heads,
                          const struct load_options *how)
{
    struct arch arch;
    struct arch_tensor tensors[TENSORS_MAX];
    const struct arch *plain;
    struct model_config c;
    struct weights a, b;
    struct load_options o = *how;
    assert_ok(model_config_load(&c, NULL, dir, &e), &e);
    assert_ok(arch_find(&plain, c.architecture, &e), &e);
    fused_arch(&arch, tensors, plain, by_heads);
    o.dir = dir;
    assert_ok(weights_load(&a, plain, &c, &o, &e), &e);
    o.dir = fused->path;
    assert_ok(weights_load(&b, &arch, &c, &o, &e), &e);
    assert_true(load_plan_same_layout(a.plan, b.plan));
    assert_int_equal(a.plan->n_param, b.plan->n_param);
    unsigned char *want = loaded_bytes(&a, o.device), *got = loaded_bytes(&b, o.device);
    assert_memory_equal(want, got, a.plan->n_bytes);
    q_free(want);
    q_free(got);
    weights_release(&a);
    weights_release(&b);
}

/* q, k and v as one tensor, whole or by KV heads, and gate and up: the same bytes as of tensors of
 * their own, on the CPU and on a device. */
static void fused_tensors_are_slices(void **state)
{
    static const char *const models[] = {MODELS "qwen2", MODELS "qwen2-sliding-bf16"};
    struct device_link link = link_fake();
    (void)state;
    assert_ok(team_new(&team_3, 3, false, &e), &e);
    for (size_t i = 0; i < 4; i++) {
        const bool by_heads = i % 2;
        struct folder f;
        folder_init(&f);
        write_fused(&f, models[i / 2], by_heads);
        for (size_t k = 0; k < 3 * 3 + 3; k++) { /* the last three on the device */
            struct load_options o = {
                .dtype = k < 9 ? dtypes[k / 3] : DT_BF16,
                .quantization = (enum quantization)(k % 3),
                .kern = &kern,
                .team = k % 2 ? team_3 : NULL,
            };
            if (k >= 9) {
                o.device = &link;
                o.kern = link.t->kern(link.d);
            }
            compare_fused(models[i / 2], &f, by_heads, &o);
        }
        folder_release(&f);
    }
    team_free(team_3);
    link.t->stream_free(link.s);
    link.t->close(link.d);
}

/* The model with one more tensor in its family's table. */
static void refuse_tensor(const char *model, const struct arch_tensor *more, const char *message)
{
    struct planned p;
    const struct load_options how = {.dtype = DT_F32};
    struct arch_tensor tensors[TENSORS_MAX];
    assert_ok(plan_of(&p, model, &how), &e);
    struct arch arch = *p.w.plan->arch;
    assert_true(arch.n_tensor < TENSORS_MAX);
    memcpy(tensors, arch.tensors, arch.n_tensor * sizeof *tensors);
    tensors[arch.n_tensor++] = *more;
    arch.tensors = tensors;
    const struct weight_finder f = {.arch = &arch, .config = &p.config, .dummy_dtype = DT_F32};
    struct load_plan *plan = NULL;
    assert_fails(load_plan_new(&plan, &f, &how, &e), Q_UNSUPPORTED, message, &e);
    assert_null(plan);
    weights_release(&p.w);
}

static void a_tensor_without_a_destination_is_refused(void **state)
{
    (void)state;
    refuse_tensor(MODELS "qwen3_moe",
                  &(struct arch_tensor){
                      .name = "model.layers.%u.mlp.experts.%u.left_over",
                      .slot = W_IGNORE,
                      .dims = {D_HEADS, D_NONE},
                      .when = WHEN_EXPERTS,
                  },
                  "experts.0.left_over is of a kind that is not loaded");
    /* The slot has a destination, but not in a layer without experts. */
    refuse_tensor(MODELS "llama",
                  &(struct arch_tensor){
                      .name = "model.layers.%u.mlp.router.weight",
                      .slot = W_ROUTER,
                      .dims = {D_HEADS, D_HIDDEN},
                      .when = WHEN_ALWAYS,
                  },
                  "layers.0.mlp.router.weight is of a kind that is not loaded");
}

/* ---- comparing plans ---- */

/* One launch of all experts' products knows one scale of their inputs: the largest, or none. */
static void experts_share_a_scale_of_inputs(void **state)
{
    const struct load_form small = {.dtype = DT_F8_E4M3, .x_scale = 0.25f, .why = WHY_STORED};
    const struct load_form large = {.dtype = DT_F8_E4M3, .x_scale = 0.5f, .why = WHY_STORED};
    const struct load_form none = {.dtype = DT_F8_E4M3, .why = WHY_STORED};
    const struct load_form floats = {.dtype = DT_BF16, .why = WHY_LEFT};
    const struct {
        const struct load_form *forms[3];
        float scale;
    } cases[] = {
        {{&small, &large, &small}, 0.5f}, {{&large, &small, &small}, 0.5f},
        {{&large, &none, &small}, 0},     {{&none, &large, &small}, 0},
        {{&large, &small, &none}, 0},     {{&large, &floats, &small}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct load_form all = {0};
        for (size_t k = 0; k < 3; k++)
            load_form_join(&all, cases[i].forms[k], k == 0);
        if (all.x_scale != cases[i].scale)
            fail_msg("case %zu: %g, expected %g", i, (double)all.x_scale, (double)cases[i].scale);
    }
}

static void layouts_are_compared_by_their_rows(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        enum dtype a_dtype, b_dtype;
        enum quantization a_quantization, b_quantization;
        bool same;
    } cases[] = {
        {MODELS "llama", MODELS "llama", DT_F32, DT_F32, QUANTIZE_NOT, QUANTIZE_NOT, true},
        {MODELS "llama", MODELS "llama", DT_F32, DT_BF16, QUANTIZE_INT8, QUANTIZE_INT8, true},
        {MODELS "llama", MODELS "llama", DT_F32, DT_BF16, QUANTIZE_NOT, QUANTIZE_NOT, false},
        {MODELS "llama", MODELS "llama", DT_F32, DT_F32, QUANTIZE_INT8, QUANTIZE_INT4, false},
        {MODELS "llama", MODELS "mistral", DT_F32, DT_F32, QUANTIZE_NOT, QUANTIZE_NOT, false},
        {QUANTIZED "gptq-4-act", QUANTIZED "gptq-4", DT_F32, DT_F32, QUANTIZE_INT4, QUANTIZE_INT4,
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct planned a, b;
        struct buf keys[2] = {BUF_INIT, BUF_INIT};
        const struct load_options how_a = {
            .dtype = cases[i].a_dtype,
            .quantization = cases[i].a_quantization,
        };
        const struct load_options how_b = {
            .dtype = cases[i].b_dtype,
            .quantization = cases[i].b_quantization,
        };
        assert_ok(plan_of(&a, cases[i].a, &how_a), &e);
        assert_ok(plan_of(&b, cases[i].b, &how_b), &e);
        if (load_plan_same_layout(a.w.plan, b.w.plan) != cases[i].same)
            fail_msg("case %zu", i);
        assert_ok(packed_cache_key(&keys[0], a.w.plan, &kern, &e), &e);
        assert_ok(packed_cache_key(&keys[1], b.w.plan, &kern, &e), &e);
        assert_true(keys[0].len > 0);
        assert_int_equal(keys[0].len == keys[1].len &&
                             memcmp(keys[0].data, keys[1].data, keys[0].len) == 0,
                         cases[i].same);
        buf_release(&keys[0]);
        buf_release(&keys[1]);
        weights_release(&a.w);
        weights_release(&b.w);
    }
}

/* ---- reading it ---- */

static void check_json(const struct planned *p)
{
    struct buf text = BUF_INIT;
    json_error_t at;
    size_t i;
    const json_t *row;
    json_int_t bytes = 0, summed = 0, n_row = 0;
    load_plan_json(&text, p->w.plan);
    assert_ok(buf_check(&text, "plan", &e), &e);
    assert_ptr_equal(memchr(text.data, '\n', text.len), text.data + text.len - 1); /* one line */
    json_t *all = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, &at);
    assert_non_null(all);
    assert_int_equal(json_array_size(json_object_get(all, "rows")), p->w.plan->n_row);
    json_array_foreach (json_object_get(all, "rows"), i, row)
        bytes += json_integer_value(json_object_get(row, "bytes"));
    json_array_foreach (json_object_get(all, "summary"), i, row) {
        summed += json_integer_value(json_object_get(row, "bytes"));
        n_row += json_integer_value(json_object_get(row, "rows"));
    }
    assert_int_equal(bytes, summed);
    assert_int_equal(n_row, p->w.plan->n_row);
    assert_true((size_t)bytes <= p->w.plan->n_bytes);
    json_decref(all);
    buf_release(&text);
}

static void json_has_every_row(void **state)
{
    (void)state;
    for_all(check_json);
}

static const char *const rows_of_a_layer[] = {
    "layers.0.qkv                    [128, 64]       int4 in groups of 64                    "
    "4480 bytes  --quantization\n"
    "    model.layers.0.self_attn.q_proj.weight [64, 64] F32\n"
    "    model.layers.0.self_attn.k_proj.weight [32, 64] F32\n"
    "    model.layers.0.self_attn.v_proj.weight [32, 64] F32\n",
    "lm_head                         [512, 64]       int8                                   "
    "34816 bytes  the logits' matrix, which needs more than 4 bits\n",
};

static void text_names_rows_and_tensors(void **state)
{
    (void)state;
    struct planned p;
    struct buf text = BUF_INIT;
    const struct load_options how = {.dtype = DT_F32, .quantization = QUANTIZE_INT4};
    assert_ok(plan_of(&p, MODELS "llama", &how), &e);
    load_plan_text(&text, p.w.plan);
    for (size_t i = 0; i < sizeof rows_of_a_layer / sizeof *rows_of_a_layer; i++)
        if (!strstr(buf_str(&text), rows_of_a_layer[i]))
            fail_msg("the plan lacks\n%sit is\n%s", rows_of_a_layer[i], buf_str(&text));
    buf_release(&text);
    weights_release(&p.w);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const struct load_options how = {.dtype = DT_F32};
    enum q_code rc = Q_NO_MEMORY;
    struct planned p;
    assert_ok(plan_of(&p, MODELS "mixtral", &how), &e);
    const struct weight_finder f = {
        .arch = p.w.plan->arch,
        .config = &p.config,
        .files = p.w.files,
        .dummy_dtype = DT_F32,
    };
    for (int64_t n = 0; rc; n++) {
        struct load_plan *plan = NULL;
        assert_true(n < 1000);
        q_err_reset(&e);
        mem_fail_after(n);
        rc = load_plan_new(&plan, &f, &how, &e);
        mem_fail_after(-1);
        assert_true(rc == e.code && (rc == Q_OK || rc == Q_NO_MEMORY));
        assert_int_equal(plan != NULL, rc == Q_OK);
        load_plan_free(plan);
    }
    weights_release(&p.w);
}

int main(void)
{
    kern_table_cpu(&kern, kern_caps_machine());
    log_setup("test", LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_is_in_one_row),
        cmocka_unit_test(rows_lie_one_after_the_other),
        cmocka_unit_test(forms_and_their_reasons),
        cmocka_unit_test(every_way_of_filling_gives_the_same_bytes),
        cmocka_unit_test(fused_tensors_are_slices),
        cmocka_unit_test(a_tensor_without_a_destination_is_refused),
        cmocka_unit_test(experts_share_a_scale_of_inputs),
        cmocka_unit_test(layouts_are_compared_by_their_rows),
        cmocka_unit_test(json_has_every_row),
        cmocka_unit_test(text_names_rows_and_tensors),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
