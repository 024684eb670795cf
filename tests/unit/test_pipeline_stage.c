/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline stages of a model: the logits of a model that was cut have the bits of the whole one, a
 * stage reads and holds its own tensors and no others, and a cut that no model has is refused. */
#include "checkpoint.h"
#include "engine/model/model_show.h"
#include "golden.h"

#define VOCAB   512u
#define HIDDEN  512u /* at most */
#define N_ROW   (FIRST + SECOND)
#define FIRST   37u /* rows of the first sequence */
#define SECOND  20u
#define N_BLOCK 8u

static struct q_err e;

struct way { /* of computing */
    const char *dir;
    enum load_format format;
    bool dtype_auto;
    enum dtype dtype;
    enum quantization quantization;
    uint32_t n_thread;
    const char *packed_cache;
};

struct rows { /* of all tokens */
    const float *in;
    float *out, *logits, *embedded;
};

struct run {
    const struct model *m;
    struct batch b;
    struct kv_cache kv;
    struct model_scratch *scratch;
    struct team *team;
    float *logits;
};

static void forward(void *arg, uint32_t ith, uint32_t nth)
{
    struct run *r = arg;
    model_forward(r->m, &r->b, &r->kv, r->scratch, r->logits, r->team, ith, nth);
}

static struct model_options options_of(const struct way *w, const struct kern_table *k)
{
    return (struct model_options){
        .dir = w->dir,
        .format = w->format,
        .dtype_auto = w->dtype_auto,
        .dtype = w->dtype,
        .quantization = w->quantization,
        .packed_cache = w->packed_cache,
        .kern = k,
    };
}

/* Two sequences, all rows. */
static void compute(struct run *r, const struct rows *x)
{
    static uint32_t ids[N_ROW], positions[N_ROW], slots[N_ROW], rows[N_ROW];
    static const uint32_t blocks[2][4] = {{5, 2, 7, 0}, {1, 6, 3, 4}};
    static const uint32_t prompts[] = {FIRST, SECOND};
    static float taps[5][N_ROW * HIDDEN];
    float *tap[5];
    const struct attention_seq seqs[] = {{blocks[0], 0, FIRST, 0}, {blocks[1], FIRST, SECOND, 0}};
    for (uint32_t i = 0; i < N_ROW; i++) {
        const uint32_t s = i >= FIRST, p = s ? i - FIRST : i;
        ids[i] = (i * 41 + 7) % 96;
        positions[i] = p;
        slots[i] = blocks[s][p / KERN_BLOCK] * KERN_BLOCK + p % KERN_BLOCK;
        rows[i] = i;
    }
    for (uint32_t i = 0; i < 5; i++)
        tap[i] = taps[i];
    r->b = (struct batch){
        .token_ids = ids,
        .positions = positions,
        .slot_mapping = slots,
        .seqs = seqs,
        .logit_rows = rows,
        .n_token = N_ROW,
        .n_seq = 2,
        .n_logit = x->logits ? N_ROW : 0,
        .context_max = FIRST,
        .n_prompts = prompts,
        .stream_in = x->in,
        .stream_out = x->out,
    };
    r->logits = x->logits;
    model_scratch_tap(r->scratch, x->embedded ? tap : NULL);
    if (r->team)
        team_run(r->team, forward, r);
    else
        forward(r, 0, 1);
    if (x->embedded)
        memcpy(x->embedded, taps[0], N_ROW * model_shape(r->m)->hidden_size * sizeof(float));
}

struct counts {
    uint64_t n_param, weight_bytes, kv_block_bytes;
    uint32_t n_layer;
};

/* Adds what the stage holds to `counts`. */
static void run_stage(const struct way *w, struct pipeline_stage stage, const struct rows *x,
                      struct counts *counts)
{
    struct kern_table k;
    struct model *m = NULL;
    struct run r = {0};
    struct model_options o = options_of(w, &k);
    kern_table_cpu(&k, kern_caps_machine());
    if (w->n_thread > 1)
        assert_ok(team_new(&r.team, w->n_thread, false, &e), &e);
    o.team = r.team;
    o.stage = stage;
    assert_ok(model_load(&m, &o, &e), &e);
    r.m = m;
    assert_true(model_shape(m)->hidden_size <= HIDDEN && model_shape(m)->vocab_size <= VOCAB);
    assert_ok(kv_cache_init(&r.kv, m, N_BLOCK, &e), &e);
    assert_int_equal(r.kv.n_layer, model_shape(m)->n_layer);
    assert_ok(model_scratch_new(&r.scratch, m, N_ROW, w->n_thread, &e), &e);
    compute(&r, x);
    counts->n_param += model_shape(m)->n_param;
    counts->weight_bytes += model_shape(m)->weight_bytes;
    counts->kv_block_bytes += model_shape(m)->kv_block_bytes;
    counts->n_layer += model_shape(m)->n_layer;
    model_scratch_free(r.scratch);
    kv_cache_release(&r.kv);
    model_free(m);
    team_free(r.team);
}

static const struct pipeline_stage whole = {0};
static float want[N_ROW * VOCAB], got[N_ROW * VOCAB], streams[2][N_ROW * HIDDEN];

static struct model_config config_of(const char *dir)
{
    struct model_config c;
    assert_ok(model_config_load(&c, NULL, dir, &e), &e);
    return c;
}

/* The model in n stages against the whole one; the stages' threads differ. */
static void check_cut(const struct way *w, uint32_t n)
{
    const struct model_config c = config_of(w->dir);
    struct counts all = {0}, parts = {0};
    memset(got, 0xff, sizeof got);
    run_stage(w, whole, &(struct rows){.logits = want}, &all);
    for (uint32_t i = 0; i < n; i++) {
        struct way one = *w;
        const uint32_t first = c.n_layer * i / n, end = c.n_layer * (i + 1) / n;
        const struct pipeline_stage stage = {first, end - first, i == 0, i == n - 1};
        const struct rows x = {
            .in = i ? streams[i % 2] : NULL,
            .out = i == n - 1 ? NULL : streams[(i + 1) % 2],
            .logits = i == n - 1 ? got : NULL,
        };
        one.n_thread = 1 + (i + w->n_thread) % 2;
        run_stage(&one, stage, &x, &parts);
    }
    if (memcmp(want, got, N_ROW * c.vocab_size * sizeof(float)) != 0)
        fail_msg("%s in %u stages (%s, quantization \"%s\"): other logits", w->dir, n,
                 dtype_name(w->dtype), quantization_name(w->quantization));
    assert_int_equal(parts.n_layer, c.n_layer);
    assert_int_equal(parts.kv_block_bytes, all.kv_block_bytes);
    const bool two_tables = c.tie_word_embeddings && n > 1;
    const uint32_t n_col = c.embed_size ? c.embed_size : c.hidden_size;
    const uint64_t table = two_tables ? (uint64_t)c.vocab_size * n_col : 0;
    assert_int_equal(parts.n_param, all.n_param + table);
}

static const struct {
    enum dtype dtype;
    enum quantization quantization;
} numbers[] = {
    {DT_F32, QUANTIZE_NOT},  {DT_BF16, QUANTIZE_NOT},  {DT_F16, QUANTIZE_NOT},
    {DT_F32, QUANTIZE_INT8}, {DT_BF16, QUANTIZE_INT4},
};
#define N_NUMBERS (sizeof numbers / sizeof *numbers)

static const char *const models[] = {
    "deepseek_v2",
    "deepseek_v3",
    "gemma2",
    "gpt_neox",
    "granite",
    "llama-bf16-sharded",
    "llama-bias-tied",
    "llama-rope-yarn",
    "mistral",
    "mixtral",
    "olmoe",
    "opt-post",
    "phi",
    "phi3-longrope",
    "qwen2-sliding-bf16",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "granitemoe",
    "gpt_oss-mxfp4",
};
#define N_MODEL (sizeof models / sizeof *models)

static void test_families(void **state)
{
    char dir[PATH_MAX];
    (void)state;
    for (size_t i = 0; i < N_MODEL; i++)
        for (size_t k = 0; k < N_NUMBERS; k++) {
            snprintf(dir, sizeof dir, GOLDEN_DIR "/%s", models[i]);
            const struct way w = {
                .dir = dir,
                .dtype = numbers[k].dtype,
                .quantization = numbers[k].quantization,
                .n_thread = 1 + (uint32_t)(i + k) % 2,
            };
            check_cut(&w, config_of(dir).n_layer);
        }
}

/* Of all checkpoints that hold integers. */
static void test_quantized(void **state)
{
    static const char *const dirs[] = {
        GOLDEN_DIR "/llama-gptq",
        GOLDEN_DIR "/llama-gptq-act8",
        GOLDEN_DIR "/qwen2-awq",
    };
    (void)state;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        const struct way w = {.dir = dirs[i], .dtype_auto = true, .n_thread = 2};
        check_cut(&w, 2);
    }
}

/* Models of one layer: it begins with the embedding's rows. */
static void test_one_layer(void **state)
{
    static const char *const dirs[] = {
        "experts-awq-4",  "experts-fp8-block-128", "experts-mixed",
        "experts-shared", "fp8-block-128",         "fp8-some",
        "gptq-4-act",     "packed-4-asym",
    };
    static float embedded[N_ROW * HIDDEN];
    char dir[PATH_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        struct counts counts = {0};
        snprintf(dir, sizeof dir, "tests/data/quantized/%s", dirs[i]);
        const struct way w = {.dir = dir, .dtype_auto = true, .n_thread = 1};
        run_stage(&w, whole, &(struct rows){.logits = want, .embedded = embedded}, &counts);
        run_stage(&w, (struct pipeline_stage){0, 1, false, true},
                  &(struct rows){.in = embedded, .logits = got}, &counts);
        assert_memory_equal(want, got, N_ROW * config_of(dir).vocab_size * sizeof(float));
    }
}

/* f: the config of a golden with another number of layers, and no weights. */
static void deep_config(const struct folder *f, const char *golden, uint32_t n_layer)
{
    char path[PATH_MAX], text[16384], *at, *rest;
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, GOLDEN_DIR "/%s/config.json", golden);
    assert_ok(file_read(&b, path, sizeof text - 16, &e), &e);
    snprintf(text, sizeof text, "%.*s", (int)b.len, b.data);
    at = strstr(text, "\"num_hidden_layers\":");
    assert_non_null(at);
    rest = strchr(at, ',');
    buf_reset(&b);
    buf_printf(&b, "%.*s\"num_hidden_layers\": %u%s", (int)(at - text), text, n_layer, rest);
    folder_write(f, "config.json", b.data, b.len);
    buf_release(&b);
}

/* Random weights, also of a tied table that the last stage has to make by itself. */
static void test_three_stages(void **state)
{
    static const char *const goldens[] = {"llama",   "qwen2", "granite",
                                          "mixtral", "phi3",  "opt-post"};
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++)
        for (size_t k = 0; k < N_NUMBERS; k++) {
            struct folder f;
            folder_init(&f);
            deep_config(&f, goldens[i], 5);
            const struct way w = {
                .dir = f.path,
                .format = LOAD_DUMMY,
                .dtype = numbers[k].dtype,
                .quantization = numbers[k].quantization,
                .n_thread = 2,
            };
            check_cut(&w, 3);
            check_cut(&w, 5);
            folder_release(&f);
        }
}

/* ---- a stage's own tensors ---- */

/* Copies f/model.safetensors of the golden without the tensors whose name has `without` in it. */
static void write_without(const struct folder *f, const char *golden, const char *const *without)
{
    struct tensor_set *s;
    struct buf header = BUF_INIT, data = BUF_INIT, file = BUF_INIT;
    assert_ok(tensor_set_open(&s, golden, &e), &e);
    for (uint32_t i = 0; i < tensor_count(s); i++) {
        const struct tensor *t = tensor_at(s, i);
        const size_t from = data.len;
        bool left_out = false;
        for (const char *const *w = without; *w; w++)
            left_out |= strstr(t->name, *w) != NULL;
        if (left_out)
            continue;
        buf_add(&data, t->data, t->n_bytes);
        buf_printf(&header, "%c\"%s\": {\"dtype\": \"%s\", \"shape\": [", header.len ? ',' : '{',
                   t->name, t->dtype == DT_F32 ? "F32" : "BF16");
        for (uint32_t d = 0; d < t->n_dim; d++)
            buf_printf(&header, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
        buf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", from, data.len);
    }
    buf_add_char(&header, '}');
    while (header.len % 8)
        buf_add_char(&header, ' ');
    const uint64_t n = header.len;
    buf_add(&file, &n, sizeof n);
    buf_add(&file, header.data, header.len);
    buf_add(&file, data.data, data.len);
    folder_write(f, "model.safetensors", file.data, file.len);
    folder_copy(f, golden, "config.json");
    tensor_set_free(s);
    buf_release(&header);
    buf_release(&data);
    buf_release(&file);
}

static enum q_code load(const char *dir, struct pipeline_stage stage)
{
    struct kern_table k;
    struct model *m = NULL;
    struct model_options o = {.dir = dir, .dtype = DT_F32, .kern = &k, .stage = stage};
    kern_table_cpu(&k, CAP_NONE);
    const enum q_code rc = model_load(&m, &o, &e);
    model_free(m);
    return rc;
}

static void test_tensors(void **state)
{
    static const char *const first_only[] = {"layers.1.", "lm_head", "model.norm", NULL};
    static const char *const last_only[] = {"layers.0.", "embed_tokens", NULL};
    static const char *const last_tied[] = {"layers.0.", NULL};
    const struct pipeline_stage first = {0, 1, true, false}, last = {1, 1, false, true};
    struct folder f;
    (void)state;
    folder_init(&f);
    write_without(&f, GOLDEN_DIR "/llama", first_only);
    assert_ok(load(f.path, first), &e);
    assert_fails(load(f.path, last), Q_NOT_FOUND, "lm_head.weight is missing", &e);
    assert_fails(load(f.path, (struct pipeline_stage){1, 1, false, false}), Q_NOT_FOUND,
                 "model.layers.1.", &e);
    assert_fails(load(f.path, whole), Q_NOT_FOUND, "is missing", &e);
    write_without(&f, GOLDEN_DIR "/llama", last_only);
    assert_ok(load(f.path, last), &e);
    assert_fails(load(f.path, first), Q_NOT_FOUND, "model.embed_tokens.weight is missing", &e);
    write_without(&f, GOLDEN_DIR "/qwen2", last_tied);
    assert_ok(load(f.path, last), &e);
    write_without(&f, GOLDEN_DIR "/qwen2", last_only);
    assert_fails(load(f.path, last), Q_NOT_FOUND, "model.embed_tokens.weight is missing", &e);
    folder_release(&f);
}

static void test_refused(void **state)
{
    static const char dir[] = GOLDEN_DIR "/llama";
    (void)state;
    assert_fails(load(dir, (struct pipeline_stage){0, 3, true, false}), Q_INVALID,
                 "a stage of 3 layers from layer 0 on: the model has 2", &e);
    assert_fails(load(dir, (struct pipeline_stage){UINT32_MAX, 2, false, false}), Q_INVALID,
                 "the model has 2", &e);
    assert_fails(load(dir, (struct pipeline_stage){1, 1, true, true}), Q_INVALID,
                 "only the first layer's may have the embedding", &e);
    assert_fails(load(dir, (struct pipeline_stage){0, 1, true, true}), Q_INVALID,
                 "only the last one's the head", &e);
    const struct model_options o = {
        .dir = dir,
        .dtype = DT_F32,
        .stage = {0, 1, true, false},
    };
    assert_ok(model_check(&o, false, &e), &e);
    assert_fails(model_check(&o, true, &e), Q_UNSUPPORTED,
                 "a pipeline stage is not supported on devices yet", &e);
}

/* Each stage has a file of its own, and finds it again. */
static void test_packed_cache(void **state)
{
    struct folder f;
    char cache[PATH_MAX];
    (void)state;
    folder_init(&f);
    folder_copy(&f, GOLDEN_DIR "/qwen2", "config.json");
    folder_copy(&f, GOLDEN_DIR "/qwen2", "model.safetensors");
    snprintf(cache, sizeof cache, "%s/packed", f.path);
    struct way w = {.dir = f.path, .dtype = DT_BF16, .n_thread = 1, .packed_cache = cache};
    for (int i = 0; i < 3; i++)
        check_cut(&w, 2);
    folder_release(&f);
}

/* The plan and the program that are shown are those of the stage. */
static void test_shown(void **state)
{
    struct buf text = BUF_INIT;
    struct model_options o = {
        .dir = GOLDEN_DIR "/llama",
        .dtype = DT_F32,
        .stage = {1, 1, false, true},
    };
    const struct model_show how = {.n_token = 8};
    (void)state;
    assert_ok(model_show_weights(&text, &o, &how, &e), &e);
    assert_non_null(strstr(text.data, "layers.1.qkv"));
    assert_non_null(strstr(text.data, "lm_head"));
    assert_null(strstr(text.data, "layers.0.qkv"));
    assert_null(strstr(text.data, "embed_tokens"));
    buf_reset(&text);
    assert_ok(model_show_program(&text, &o, &how, &e), &e);
    assert_non_null(strstr(text.data, "LlamaForCausalLM: 1 layers"));
    assert_non_null(strstr(text.data, "receive"));
    assert_non_null(strstr(text.data, "layer 1\n"));
    assert_null(strstr(text.data, "layer 0\n"));
    assert_null(strstr(text.data, "embed"));
    buf_reset(&text);
    o.stage = (struct pipeline_stage){0, 1, true, false};
    assert_ok(model_show_program(&text, &o, &how, &e), &e);
    assert_non_null(strstr(text.data, "send"));
    assert_null(strstr(text.data, "lm_head"));
    buf_release(&text);
}

/* A stage's weights are changed as those of a whole model are. */
static void test_reload(void **state)
{
    const struct checkpoint c = {.from = GOLDEN_DIR "/llama", .factor = 1.25f, .name = "next"};
    const struct pipeline_stage last = {1, 1, false, true};
    static float in[N_ROW * HIDDEN];
    struct counts counts = {0};
    struct folder f;
    struct kern_table k;
    struct run r = {0};
    struct model *m;
    char next[PATH_MAX];
    (void)state;
    kern_table_cpu(&k, kern_caps_machine());
    folder_init(&f);
    checkpoint_write(&f, &c);
    snprintf(next, sizeof next, "%s/next", f.path);
    for (size_t i = 0; i < N_ROW * HIDDEN; i++)
        in[i] = (float)(i % 17) / 8 - 1;
    const struct way w = {.dir = next, .dtype = DT_F32, .n_thread = 1};
    run_stage(&w, last, &(struct rows){.in = in, .logits = want}, &counts);
    struct model_options o = options_of(&w, &k);
    o.dir = c.from;
    o.stage = last;
    assert_ok(model_load(&m, &o, &e), &e);
    o.weights_dir = next;
    assert_ok(model_reload(m, &o, &e), &e);
    r.m = m;
    assert_ok(kv_cache_init(&r.kv, m, N_BLOCK, &e), &e);
    assert_ok(model_scratch_new(&r.scratch, m, N_ROW, 1, &e), &e);
    compute(&r, &(struct rows){.in = in, .logits = got});
    assert_memory_equal(want, got, sizeof want);
    model_scratch_free(r.scratch);
    kv_cache_release(&r.kv);
    model_free(m);
    folder_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),     cmocka_unit_test(test_quantized),
        cmocka_unit_test(test_one_layer),    cmocka_unit_test(test_three_stages),
        cmocka_unit_test(test_tensors),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_packed_cache), cmocka_unit_test(test_shown),
        cmocka_unit_test(test_reload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
