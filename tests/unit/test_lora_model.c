/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters in the layer program: PEFT's goldens; adapters of every matrix that takes one, in
 * every form that families have (stacked, by heads, transposed, plain and gated MLPs, latent
 * attention, experts' neighbours), against the same model with the adapter merged into its tensors;
 * quantized bases; and the same bits alone, beside rows of other adapters, in any chunks, by any
 * threads and kernels. */
#include "golden.h"
#include "plain_twin.h"
#include "common/hub/safetensors_write.h"
#include "engine/model/arch.h"
#include "engine/model/lora/lora_module.h"
#include "common/log.h"
#include "engine/model/lora/lora_module.h"

#define DATA        "tests/data"
#define VOCAB_MAX   2048u
#define TENSORS_MAX 600u
#define N_PROMPT    40u

static float other[RUN_TOKENS_MAX * VOCAB_MAX];
static float first[RUN_TOKENS_MAX * VOCAB_MAX], base[RUN_TOKENS_MAX * VOCAB_MAX];

static struct lora *open_adapter(const struct runner *r, const char *dir, enum dtype dtype)
{
    const struct lora_options o = {dir, dtype, 64};
    struct lora *a = NULL;
    struct q_err e = Q_ERR_INIT;
    assert_ok(lora_load(&a, model_config(r->model), &o, &e), &e);
    return a;
}

/* ---- goldens ---- */

static void check_golden(const char *name)
{
    char dir[PATH_MAX];
    struct golden g;
    struct runner r;
    struct q_err e = Q_ERR_INIT;
    const struct runner_options o = {
        .dir = DATA "/models/llama",
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .lora_rank = 8,
    };
    snprintf(dir, sizeof dir, DATA "/lora/%s", name);
    assert_ok(golden_open(&g, dir, &e), &e);
    assert_ok(runner_open(&r, &o, &e), &e);
    struct lora *a = open_adapter(&r, dir, DT_F32);
    const uint32_t vocab = model_shape(r.model)->vocab_size;
    const json_t *list = json_object_get(g.root, "prompts"), *p;
    size_t i;
    r.adapter = a;
    assert_true(json_array_size(list) >= 5);
    json_array_foreach (list, i, p) {
        uint32_t ids[RUN_TOKENS_MAX], want[RUN_TOKENS_MAX];
        const uint32_t n = golden_ids(ids, json_object_get(p, "ids"));
        const uint32_t n_greedy = golden_ids(want, json_object_get(p, "greedy"));
        const struct tensor *last = golden_array(&g, (uint32_t)i, "logits_last");
        run_prompt(&r, ids, n, n, first);
        const float *mine = first + (size_t)(n - 1) * vocab;
        assert_non_null(last);
        assert_true(difference(mine, last->data, vocab) <= 2e-4 * abs_max(last->data, vocab));
        run_greedy(&r, ids, n, n_greedy, mine);
        assert_memory_equal(ids + n, want, n_greedy * sizeof *want);
    }
    lora_free(a);
    runner_close(&r);
    golden_close(&g);
}

static void goldens_of_peft(void **state)
{
    (void)state;
    check_golden("llama-lora-r4");
    check_golden("llama-lora-r8");
}

/* ---- merged ---- */

static float value_at(const struct tensor *t, size_t i)
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

struct writer { /* of a safetensors file of f32 */
    struct safetensors_item items[2 * TENSORS_MAX];
    char names[2 * TENSORS_MAX][256];
    float *data[2 * TENSORS_MAX];
    size_t n;
};

static float *add_item(struct writer *w, const char *name, uint32_t n_dim, const uint64_t *shape)
{
    struct safetensors_item *x = &w->items[w->n];
    size_t n = 1;
    assert_true(w->n < 2 * TENSORS_MAX);
    snprintf(w->names[w->n], sizeof w->names[w->n], "%s", name);
    *x = (struct safetensors_item){.name = w->names[w->n], .dtype = DT_F32, .n_dim = n_dim};
    for (uint32_t i = 0; i < n_dim; i++) {
        x->shape[i] = shape[i];
        n *= shape[i];
    }
    return w->data[w->n++] = calloc(n + 1, sizeof(float));
}

static void write_items(struct writer *w, const struct folder *f, const char *name)
{
    struct buf out = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    uint64_t n_file;
    assert_ok(safetensors_layout(w->items, w->n, &out, &n_file, &e), &e);
    char *file = calloc(n_file, 1);
    memcpy(file, out.data, out.len);
    for (size_t i = 0; i < w->n; i++) {
        memcpy(file + w->items[i].at, w->data[i], w->items[i].n_bytes);
        free(w->data[i]);
    }
    folder_write(f, name, file, n_file);
    free(file);
    buf_release(&out);
    w->n = 0;
}

static float random_value(uint64_t *state)
{
    return (float)((double)(run_random(state) % 20001) / 10000.0 - 1) * 0.25f;
}

/* The name that the tensor's matrix has in adapters, if it takes one. */
static bool adapted_name(char out[200], const struct arch *a, const struct model_config *c,
                         const struct tensor *t)
{
    static const enum arch_slot slots[] = {W_QKV,  W_QKV_HEADS, W_Q,       W_K,    W_V,  W_O,
                                           W_KV_A, W_Q_B,       W_GATE_UP, W_GATE, W_UP, W_DOWN};
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        for (size_t i = 0; i < a->n_tensor; i++)
            for (size_t k = 0; k < sizeof slots / sizeof *slots; k++) {
                char name[ARCH_NAME_MAX];
                if (a->tensors[i].slot != slots[k] || !a->tensors[i].name ||
                    !arch_wants(c, a->tensors[i].when, layer))
                    continue;
                arch_tensor_name(name, a->tensors[i].name, (struct arch_place){layer, 0});
                if (strcmp(name, t->name) != 0)
                    continue;
                snprintf(out, 200, "%.*s", (int)strlen(name) - 7, name);
                return true;
            }
    return false;
}

#define RANK  5u
#define SCALE 2.0f

struct made { /* an adapter, and the model with the adapter merged */
    struct folder adapter, merged;
    uint32_t n_module;
};

/* merged = W + SCALE B A, of a tensor that may be stored transposed. */
static void merge(struct writer *adapter, float *to, const struct tensor *t, const char *module,
                  bool transposed, uint64_t *seed)
{
    char name[256];
    const uint64_t n_out = t->shape[transposed], n_in = t->shape[!transposed];
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    float *a = add_item(adapter, name, 2, (uint64_t[]){RANK, n_in});
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    float *b = add_item(adapter, name, 2, (uint64_t[]){n_out, RANK});
    for (size_t i = 0; i < RANK * n_in; i++)
        a[i] = random_value(seed);
    for (size_t i = 0; i < RANK * n_out; i++)
        b[i] = random_value(seed) * 0.2f;
    for (size_t o = 0; o < n_out; o++)
        for (size_t k = 0; k < n_in; k++) {
            double sum = 0;
            for (size_t j = 0; j < RANK; j++)
                sum += (double)b[o * RANK + j] * a[j * n_in + k];
            const size_t at = transposed ? k * n_out + o : o * n_in + k;
            to[at] = (float)(to[at] + SCALE * sum);
        }
}

static void make(struct made *m, const char *dir, const char *targets, uint64_t seed)
{
    static struct writer adapter, merged;
    struct tensor_set *set = NULL;
    struct model_config *c = calloc(1, sizeof *c);
    const struct arch *arch = NULL;
    struct q_err e = Q_ERR_INIT;
    char module[200], text[600];
    assert_ok(model_config_load(c, NULL, dir, &e), &e);
    assert_ok(arch_find(&arch, c->architecture, &e), &e);
    assert_ok(tensor_set_open(&set, dir, &e), &e);
    folder_init(&m->adapter);
    folder_init(&m->merged);
    m->n_module = 0;
    for (uint32_t i = 0; i < tensor_count(set); i++) {
        const struct tensor *t = tensor_at(set, i);
        float *to = add_item(&merged, t->name, t->n_dim, t->shape);
        const size_t n = t->n_bytes / (dtype_bits(t->dtype) / 8);
        for (size_t k = 0; k < n; k++)
            to[k] = value_at(t, k);
        if (!adapted_name(module, arch, c, t))
            continue;
        const bool transposed = strstr(arch->name, "GPT2") != NULL;
        merge(&adapter, to, t, module, transposed, &seed);
        m->n_module++;
    }
    snprintf(text, sizeof text,
             "{\"peft_type\": \"LORA\", \"r\": %u, \"lora_alpha\": %g, \"target_modules\": %s}",
             RANK, (double)SCALE * RANK, targets);
    folder_text(&m->adapter, "adapter_config.json", text);
    write_items(&adapter, &m->adapter, "adapter_model.safetensors");
    write_items(&merged, &m->merged, "model.safetensors");
    folder_copy(&m->merged, dir, "config.json");
    tensor_set_free(set);
    free(c);
}

static void made_release(struct made *m)
{
    folder_release(&m->adapter);
    folder_release(&m->merged);
}

static void prompt_of(uint32_t ids[N_PROMPT], uint32_t vocab)
{
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = (i * 37 + 11) % (vocab < 200 ? vocab : 200);
}

static void run_all(float *out, const char *dir, const char *adapter, enum quantization q,
                    uint32_t *vocab)
{
    struct runner r;
    struct q_err e = Q_ERR_INIT;
    uint32_t ids[N_PROMPT];
    const struct runner_options o = {
        .dir = dir,
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .lora_rank = 16,
        .quantization = q,
    };
    if (runner_open(&r, &o, &e))
        fail_msg("%s: %s", dir, e.message);
    struct lora *a = adapter ? open_adapter(&r, adapter, DT_F32) : NULL;
    r.adapter = a;
    *vocab = model_shape(r.model)->vocab_size;
    assert_in_range(*vocab, 1, VOCAB_MAX);
    prompt_of(ids, *vocab);
    run_prompt(&r, ids, N_PROMPT, 17, out);
    lora_free(a);
    runner_close(&r);
}

static void families_against_merged_tensors(void **state)
{
    static const char *const names[] = {
        "llama",      "llama-bias-tied",
        "gpt2",       "gpt_neox",
        "gptj",       "bloom",
        "falcon",     "phi",
        "phi3",       "gemma2",
        "gemma3",     "cohere",
        "olmo2",      "qwen2",
        "qwen3",      "qwen2_moe",
        "mixtral",    "deepseek_v2",
        "opt",        "stablelm",
        "starcoder2", "glm4",
        "granite",    "deepseek_v3",
    };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct made m;
        char dir[PATH_MAX];
        uint32_t vocab;
        snprintf(dir, sizeof dir, DATA "/models/%s", names[i]);
        make(&m, dir, "\".*\"", i + 1);
        assert_true(m.n_module > 1);
        run_all(first, dir, m.adapter.path, QUANTIZE_NOT, &vocab);
        run_all(other, m.merged.path, NULL, QUANTIZE_NOT, &vocab);
        run_all(base, dir, NULL, QUANTIZE_NOT, &vocab);
        const size_t n = (size_t)N_PROMPT * vocab;
        const double most = abs_max(other, n), far = difference(first, other, n);
        if (!(far <= 2e-4 * most))
            fail_msg("%s: differs from the merged model by %g of %g", names[i], far, most);
        if (!(difference(first, base, n) > 0.02 * most))
            fail_msg("%s: the adapter changes nothing", names[i]);
        made_release(&m);
    }
}

/* An adapter of every module that takes one, whose names begin with `start` where the table's begin
 * with "model."; other_part: a module of another part, or NULL. */
static void make_nested(struct folder *f, const struct model_config *c, const char *start,
                        const char *other_part, const char *targets)
{
    static struct writer adapter;
    const struct arch *arch = NULL;
    struct q_err e = Q_ERR_INIT;
    char text[600], name[256];
    uint64_t seed = 3;
    assert_ok(arch_find(&arch, c->architecture, &e), &e);
    folder_init(f);
    for (size_t i = 0; i < c->n_layer * arch->n_tensor; i++) {
        const uint32_t layer = (uint32_t)(i / arch->n_tensor);
        const struct arch_tensor *t = &arch->tensors[i % arch->n_tensor];
        char tensor[ARCH_NAME_MAX];
        if (!t->name || !lora_module_is_adapted(t) || !arch_wants(c, t->when, layer))
            continue;
        arch_tensor_name(tensor, t->name, (struct arch_place){layer, 0});
        for (int k = 0; k < 2; k++) {
            const uint64_t n = arch_dim_at(c, t->dims[!k], layer);
            snprintf(name, sizeof name, "base_model.model.%s%.*s.lora_%c.weight", start,
                     (int)strlen(tensor) - 13, tensor + 6, k ? 'B' : 'A');
            float *to =
                add_item(&adapter, name, 2, k ? (uint64_t[]){n, RANK} : (uint64_t[]){RANK, n});
            for (size_t j = 0; j < RANK * n; j++)
                to[j] = random_value(&seed);
        }
    }
    if (other_part) {
        snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", other_part);
        add_item(&adapter, name, 2, (uint64_t[]){RANK, 8});
    }
    snprintf(text, sizeof text,
             "{\"peft_type\": \"LORA\", \"r\": %u, \"lora_alpha\": 4, \"target_modules\": \"%s\"}",
             RANK, targets);
    folder_text(f, "adapter_config.json", text);
    write_items(&adapter, f, "adapter_model.safetensors");
}

/* Models that take images too: adapters name the text model's modules as transformers 4 or 5 does,
 * and may have factors of the part for images. */
static void text_models_of_others(void **state)
{
    static const char *const names[] = {"gemma3-vision", "mistral3-vision", "qwen2_5-vision"};
    static const struct {
        const char *start, *other_part, *targets;
    } forms[] = {
        {"model.", NULL, ".*_proj"},
        {"model.", "visual.blocks.0.attn.qkv", ".*_proj"},
        {"language_model.model.", "vision_tower.layers.0.q_proj", "language_model.*_proj"},
        {"model.language_model.", "model.visual.blocks.0.mlp.fc1", "model.language_model.*_proj"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            static struct model_config c;
            struct folder f;
            struct q_err e = Q_ERR_INIT;
            char dir[PATH_MAX];
            uint32_t vocab;
            snprintf(dir, sizeof dir, DATA "/models/%s", names[i]);
            assert_ok(model_config_load(&c, NULL, dir, &e), &e);
            make_nested(&f, &c, forms[k].start, forms[k].other_part, forms[k].targets);
            run_all(k ? other : first, dir, f.path, QUANTIZE_NOT, &vocab);
            folder_release(&f);
            if (k)
                assert_memory_equal(other, first, (size_t)N_PROMPT * vocab * sizeof *first);
        }
}

/* The cosine between two moves of logits. */
static double cosine(const float *a, const float *from_a, const float *b, const float *from_b,
                     size_t n)
{
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = (double)a[i] - from_a[i], y = (double)b[i] - from_b[i];
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    return dot / sqrt(aa * bb);
}

/* The adapter moves the logits of a quantized base as it moves those of floats, but for
 * quantization's own error; checkpoints of quantized integers beside the floats that they mean. */
static void quantized_bases(void **state)
{
    static const struct {
        const char *dir;
        enum quantization quantization;
        double least;
        bool has_twin;
    } cases[] = {
        {DATA "/models/llama-bias-tied", QUANTIZE_INT8, 0.99, false},
        {DATA "/models/gpt_neox", QUANTIZE_INT8, 0.99, false},
        {DATA "/models/deepseek_v2", QUANTIZE_INT8, 0.95, false},
        {DATA "/models/llama-bias-tied", QUANTIZE_INT4, 0.6, false},
        {DATA "/models/qwen2_moe", QUANTIZE_INT4, 0.6, false},
        {DATA "/quantized/gptq-4-act", QUANTIZE_NOT, 0.99, true},
        {DATA "/quantized/awq-4", QUANTIZE_NOT, 0.99, true},
        {DATA "/quantized/packed-4", QUANTIZE_NOT, 0.99, true},
    };
    static float plain[N_PROMPT * VOCAB_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        struct folder twin;
        uint32_t vocab;
        if (cases[i].has_twin)
            plain_twin(&twin, cases[i].dir);
        const char *floats = cases[i].has_twin ? twin.path : cases[i].dir;
        make(&m, floats, "\"all-linear\"", 100 + i);
        run_all(base, cases[i].dir, NULL, cases[i].quantization, &vocab);
        run_all(first, cases[i].dir, m.adapter.path, cases[i].quantization, &vocab);
        run_all(plain, floats, NULL, QUANTIZE_NOT, &vocab);
        run_all(other, m.merged.path, NULL, QUANTIZE_NOT, &vocab);
        const double same = cosine(first, base, other, plain, (size_t)N_PROMPT * vocab);
        if (!(same > cases[i].least))
            fail_msg("%s: the cosine of both moves is %g", cases[i].dir, same);
        made_release(&m);
        if (cases[i].has_twin)
            folder_release(&twin);
    }
}

/* ---- bits ---- */

#define N_SEQ 6u

struct bits_case {
    struct runner r;
    struct lora *adapters[3];
    uint32_t ids[N_SEQ][N_PROMPT], vocab;
};

static const struct lora *adapter_of(const struct bits_case *t, uint32_t i)
{
    return i % 4 == 3 ? NULL : t->adapters[i % 4];
}

static void run_alone(struct bits_case *t, uint32_t i, uint32_t chunk, float *out)
{
    t->r.adapter = adapter_of(t, i);
    run_prompt(&t->r, t->ids[i], N_PROMPT, chunk, out);
}

/* All sequences in each step, in chunks of other sizes. */
static void run_together(struct bits_case *t, float *out[N_SEQ])
{
    uint32_t done[N_SEQ] = {0};
    for (bool more = true; more;) {
        struct run_seq step[N_SEQ];
        uint32_t n = 0;
        for (uint32_t i = 0; i < N_SEQ; i++) {
            const uint32_t left = N_PROMPT - done[i], want = 1 + 3 * i;
            if (!left)
                continue;
            step[n++] = (struct run_seq){
                .tokens = t->ids[i],
                .n_prompt = N_PROMPT,
                .n_done = done[i],
                .n_next = left < want ? left : want,
                .index = i,
                .adapter = adapter_of(t, i),
                .logits = out[i] + (size_t)done[i] * t->vocab,
            };
            done[i] += step[n - 1].n_next;
        }
        more = n > 0;
        if (more)
            run_step(&t->r, step, n);
    }
}

static void check_bits(const char *model, const struct runner_options *o, const struct made *m)
{
    static float alone[N_SEQ][N_PROMPT * VOCAB_MAX], together[N_SEQ][N_PROMPT * VOCAB_MAX];
    struct bits_case t = {.vocab = 0};
    float *out[N_SEQ];
    struct q_err e = Q_ERR_INIT;
    if (runner_open(&t.r, o, &e))
        fail_msg("%s: %s", model, e.message);
    t.vocab = model_shape(t.r.model)->vocab_size;
    const enum dtype dtype = model_shape(t.r.model)->compute_dtype;
    for (uint32_t i = 0; i < 3; i++)
        t.adapters[i] = open_adapter(&t.r, m[i].adapter.path, dtype);
    for (uint32_t i = 0; i < N_SEQ; i++) {
        prompt_of(t.ids[i], t.vocab);
        t.ids[i][0] = i;
        out[i] = together[i];
        run_alone(&t, i, N_PROMPT, alone[i]);
        run_alone(&t, i, 7, other);
        assert_memory_equal(alone[i], other, N_PROMPT * t.vocab * sizeof(float));
    }
    assert_true(memcmp(alone[0], alone[1], N_PROMPT * t.vocab * sizeof(float)) != 0);
    run_together(&t, out);
    for (uint32_t i = 0; i < N_SEQ; i++)
        if (memcmp(alone[i], together[i], N_PROMPT * t.vocab * sizeof(float)) != 0)
            fail_msg("%s: sequence %u has other bits beside others", model, i);
    for (uint32_t i = 0; i < 3; i++)
        lora_free(t.adapters[i]);
    runner_close(&t.r);
}

static void same_bits_beside_other_adapters(void **state)
{
    static const struct {
        const char *model;
        bool dtype_auto;
        enum dtype dtype;
        enum quantization quantization;
    } cases[] = {
        {"llama", false, DT_F32, QUANTIZE_NOT},      {"llama", false, DT_BF16, QUANTIZE_NOT},
        {"qwen2_moe", false, DT_BF16, QUANTIZE_NOT}, {"phi3", false, DT_F32, QUANTIZE_INT4},
        {"gpt2", false, DT_F16, QUANTIZE_NOT},       {"deepseek_v2", false, DT_F32, QUANTIZE_INT8},
    };
    static const char *const caps[] = {"none", "avx2", "avx512", "auto"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m[3];
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, DATA "/models/%s", cases[i].model);
        for (uint32_t k = 0; k < 3; k++)
            make(&m[k], dir, "\".*\"", 10 * i + k);
        for (uint32_t n = 1; n <= 4; n++) {
            struct runner_options o = {
                .dir = dir,
                .n_thread = n,
                .dtype = cases[i].dtype,
                .quantization = cases[i].quantization,
                .lora_rank = 16,
            };
            struct q_err e = Q_ERR_INIT;
            assert_ok(kern_caps_parse(&o.caps, caps[n - 1], &e), &e);
            check_bits(cases[i].model, &o, m);
        }
        for (uint32_t k = 0; k < 3; k++)
            made_release(&m[k]);
    }
}

/* Rows without an adapter have the bits of a model that takes none. */
static void base_rows_have_the_bits_of_the_model(void **state)
{
    static const enum quantization quantizations[] = {QUANTIZE_NOT, QUANTIZE_INT8, QUANTIZE_INT4};
    static const char *const names[] = {"llama", "phi3", "gemma2", "qwen2_moe", "gpt_neox"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < 3; k++) {
            char dir[PATH_MAX];
            uint32_t vocab = 0, ids[N_PROMPT];
            snprintf(dir, sizeof dir, DATA "/models/%s", names[i]);
            for (uint32_t rank = 0; rank <= 16; rank += 16) {
                struct runner r;
                struct q_err e = Q_ERR_INIT;
                const struct runner_options o = {
                    .dir = dir,
                    .n_thread = 2,
                    .caps = kern_caps_machine(),
                    .lora_rank = rank,
                    .quantization = quantizations[k],
                };
                assert_ok(runner_open(&r, &o, &e), &e);
                vocab = model_shape(r.model)->vocab_size;
                prompt_of(ids, vocab);
                run_prompt(&r, ids, N_PROMPT, 13, rank ? first : base);
                runner_close(&r);
            }
            if (memcmp(first, base, (size_t)N_PROMPT * vocab * sizeof(float)) != 0)
                fail_msg("%s %s: other bits", names[i], quantization_name(quantizations[k]));
        }
}

/* MiMo V2 Flash: V, and what reads attention's output, are filled up with zeros while loading. */
static void narrow_heads_of_v(void **state)
{
    struct model_config c;
    struct generation_defaults g;
    struct lora_module m;
    const struct arch *a;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    assert_ok(model_config_load(&c, &g, GOLDEN_DIR "/mimo_v2_flash", &e), &e);
    assert_ok(arch_find(&a, c.architecture, &e), &e);
    assert_ok(lora_module_find(&m, a, &c, "model.layers.1.self_attn.k_proj", &e), &e);
    assert_fails(lora_module_find(&m, a, &c, "model.layers.1.self_attn.v_proj", &e), Q_UNSUPPORTED,
                 "narrower than those of K", &e);
    assert_fails(lora_module_find(&m, a, &c, "model.layers.1.self_attn.o_proj", &e), Q_UNSUPPORTED,
                 "narrower than those of K", &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_of_peft),
        cmocka_unit_test(families_against_merged_tensors),
        cmocka_unit_test(text_models_of_others),
        cmocka_unit_test(quantized_bases),
        cmocka_unit_test(same_bits_beside_other_adapters),
        cmocka_unit_test(base_rows_have_the_bits_of_the_model),
        cmocka_unit_test(narrow_heads_of_v),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
