/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: what is refused and how it is said, tied and left-over tensors, dummy weights, dtypes,
 * failed allocations. */
#include "folder.h"
#include "golden.h"
#include "common/log.h"
#include "common/mem.h"

#define MODELS "tests/data/models/"
#define VOCAB  512u

static struct q_err e;
static struct kern_table kern;
static struct model *m;

static enum q_code load(const char *dir, enum load_format format, enum dtype dtype)
{
    struct model_options o = {.dir = dir, .format = format, .dtype = dtype, .kern = &kern};
    m = NULL;
    q_err_reset(&e);
    return model_load(&m, &o, &e);
}

#define LEFT_OVER "model.layers.1.self_attn.rotary_emb.inv_freq"
#define STRANGER  "model.layers.2.mlp.up_proj.weight" /* of a layer the config does not have */

#define OSS "model.layers.0.mlp.experts."

struct edit {           /* one change to a safetensors file's tensors */
    const char *name;   /* tensor; "" = add LEFT_OVER and STRANGER */
    const char *rename; /* new name, NULL = keep, "" = drop (its bytes too) */
    const char *dtype;  /* NULL = keep */
    int64_t shape[2];   /* {0} = keep */
};

/* Writes f/model.safetensors: the tensors of MODELS from, with one edit. */
static void write_edited(const struct folder *f, const char *from, const struct edit *edit)
{
    struct tensor_set *s;
    struct buf header = BUF_INIT, data = BUF_INIT, file = BUF_INIT;
    assert_ok(tensor_set_open(&s, from, &e), &e);
    buf_add_char(&header, '{');
    for (uint32_t i = 0; i < tensor_count(s); i++) {
        const struct tensor *t = tensor_at(s, i);
        bool mine = strcmp(t->name, edit->name) == 0;
        const char *name = mine && edit->rename ? edit->rename : t->name;
        if (!*name)
            continue;
        buf_printf(&header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [",
                   header.len > 1 ? ", " : "", name,
                   mine && edit->dtype ? edit->dtype : dtype_name(t->dtype));
        if (mine && edit->shape[0])
            buf_printf(&header, "%lld%s%.0lld", (long long)edit->shape[0],
                       edit->shape[1] ? ", " : "", (long long)edit->shape[1]);
        else
            for (uint32_t d = 0; d < t->n_dim; d++)
                buf_printf(&header, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
        buf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", data.len,
                   data.len + (size_t)t->n_bytes);
        buf_add(&data, t->data, t->n_bytes);
    }
    if (!*edit->name) { /* two are added, one known to be left over in old files */
        buf_printf(&header,
                   ", \"" LEFT_OVER
                   "\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [%zu, %zu]}",
                   data.len, data.len + 8);
        buf_printf(&header,
                   ", \"" STRANGER
                   "\": {\"dtype\": \"I8\", \"shape\": [1], \"data_offsets\": [%zu, %zu]}}",
                   data.len + 8, data.len + 9);
        buf_add(&data, "123456789", 9);
    } else {
        buf_add_char(&header, '}');
    }
    for (int i = 0; i < 8; i++)
        buf_add_char(&file, (char)((uint64_t)header.len >> 8 * i));
    buf_add(&file, header.data, header.len);
    buf_add(&file, data.data, data.len);
    folder_write(f, "model.safetensors", file.data, file.len);
    tensor_set_free(s);
    buf_release(&header);
    buf_release(&data);
    buf_release(&file);
}

static const struct {
    const char *from;
    struct edit edit;
    enum q_code code;
    const char *part;
} refused[] = {
    {"llama",
     {"model.layers.1.mlp.up_proj.weight", "", NULL, {0}},
     Q_NOT_FOUND,
     "tensor model.layers.1.mlp.up_proj.weight is missing, expected shape [96, 64]"},
    {"llama", {"lm_head.weight", "", NULL, {0}}, Q_NOT_FOUND, "tensor lm_head.weight is missing"},
    {"llama",
     {"model.norm.weight", "norm", NULL, {0}},
     Q_NOT_FOUND,
     "model.norm.weight is missing"},
    {"llama",
     {"model.layers.0.self_attn.k_proj.weight", NULL, NULL, {64, 32}},
     Q_MISMATCH,
     "k_proj.weight has shape [64, 32], expected [32, 64] (num_key_value_heads * head_dim, "
     "hidden_size)"},
    {"llama",
     {"model.norm.weight", NULL, NULL, {8, 8}},
     Q_MISMATCH,
     "has shape [8, 8], expected [64]"},
    {"llama",
     {"model.layers.0.mlp.down_proj.weight", NULL, NULL, {6144}},
     Q_MISMATCH,
     "has shape [6144]"},
    {"llama",
     {"lm_head.weight", NULL, "I32", {0}},
     Q_MISMATCH,
     "has dtype I32, expected F32, F16 or BF16"},
    {"qwen2",
     {"model.layers.0.self_attn.v_proj.bias", "", NULL, {0}},
     Q_NOT_FOUND,
     "v_proj.bias is missing"},
    {"qwen3",
     {"model.layers.1.self_attn.k_norm.weight", "", NULL, {0}},
     Q_NOT_FOUND,
     "k_norm.weight"},
    {"llama-bias-tied",
     {"model.embed_tokens.weight", "", NULL, {0}},
     Q_NOT_FOUND,
     "embed_tokens.weight"},
    {"granitemoe",
     {"model.layers.1.block_sparse_moe.input_linear.weight", NULL, NULL, {384, 64}},
     Q_MISMATCH,
     "input_linear.weight has shape [384, 64], expected [6, 64, 64] (num_experts, "
     "2 * moe_intermediate_size, hidden_size)"},
    {"granitemoe",
     {"model.layers.1.block_sparse_moe.output_linear.weight", "", NULL, {0}},
     Q_NOT_FOUND,
     "output_linear.weight is missing, expected shape [6, 64, 32]"},
    {"gpt_oss",
     {OSS "gate_up_proj", NULL, NULL, {512, 48}},
     Q_MISMATCH,
     "gate_up_proj has shape [512, 48], expected [8, 64, 48] (num_experts, hidden_size, "
     "2 * moe_intermediate_size)"},
    {"gpt_oss",
     {OSS "down_proj_bias", NULL, NULL, {64, 8}},
     Q_MISMATCH,
     "down_proj_bias has shape [64, 8], expected [8, 64] (num_experts, hidden_size)"},
    {"gpt_oss",
     {OSS "down_proj", "", NULL, {0}},
     Q_NOT_FOUND,
     "down_proj is missing, expected shape [8, 24, 64]"},
    {"gpt_oss-mxfp4",
     {OSS "down_proj_blocks", "", NULL, {0}},
     Q_NOT_FOUND,
     "experts.down_proj is missing"},
    {"gpt_oss-mxfp4",
     {OSS "gate_up_proj_scales", "", NULL, {0}},
     Q_NOT_FOUND,
     "gate_up_proj_scales is missing beside " OSS "gate_up_proj_blocks"},
    {"gpt_oss-mxfp4",
     {OSS "gate_up_proj_blocks", NULL, "I8", {0}},
     Q_MISMATCH,
     "gate_up_proj_blocks has dtype I8, expected U8"},
    {"gpt_oss-mxfp4",
     {OSS "down_proj_blocks", NULL, NULL, {384, 16}},
     Q_MISMATCH,
     "down_proj_blocks has another shape than [6, 64, 1, 16] (experts, outputs, blocks of 32 "
     "inputs, bytes)"},
    {"gpt_oss-mxfp4",
     {OSS "down_proj_scales", NULL, NULL, {64, 6}},
     Q_MISMATCH,
     "down_proj_scales has another shape than [6, 64, 1] (experts, outputs, blocks of 32 "
     "inputs)"},
};

static void test_refused_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct folder f;
        char from[PATH_MAX];
        snprintf(from, sizeof from, MODELS "%s", refused[i].from);
        folder_init(&f);
        folder_copy(&f, from, "config.json");
        write_edited(&f, from, &refused[i].edit);
        assert_fails(load(f.path, LOAD_AUTO, DT_F32), refused[i].code, refused[i].part, &e);
        folder_release(&f);
    }
}

/* The last logits of prompt 1 2 3 in the model of a folder. */
static void last_logits(float *out, const char *dir)
{
    static const uint32_t ids[] = {1, 2, 3};
    static float all[3 * VOCAB];
    struct runner r;
    struct runner_options o = {
        .dir = dir,
        .n_thread = 1,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
    };
    assert_ok(runner_open(&r, &o, &e), &e);
    assert_int_equal(model_shape(r.model)->vocab_size, VOCAB);
    run_prompt(&r, ids, 3, 3, all);
    memcpy(out, all + 2 * VOCAB, VOCAB * sizeof *out);
    runner_close(&r);
}

/* A tied table under the other name, and unused tensors: the same answers. */
static void test_accepted_tensors(void **state)
{
    (void)state;
    static float want[VOCAB], got[VOCAB];
    static const struct {
        const char *from;
        struct edit edit;
    } cases[] = {
        {"llama-bias-tied", {"model.embed_tokens.weight", "lm_head.weight", NULL, {0}}},
        {"llama-bias-tied", {"", NULL, NULL, {0}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        char from[PATH_MAX];
        snprintf(from, sizeof from, MODELS "%s", cases[i].from);
        folder_init(&f);
        folder_copy(&f, from, "config.json");
        write_edited(&f, from, &cases[i].edit);
        last_logits(want, from);
        last_logits(got, f.path);
        assert_memory_equal(want, got, sizeof want);
        folder_release(&f);
    }
}

/* What loading this folder logs. */
static void load_log(struct buf *out, const char *dir)
{
    FILE *log = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(log);
    dup2(fileno(log), STDERR_FILENO);
    log_setup("test", LOG_WARNING, false);
    enum q_code rc = load(dir, LOAD_AUTO, DT_F32);
    log_setup("test", LOG_ERROR, false);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_ok(rc, &e);
    model_free(m);
    rewind(log);
    for (int c; (c = fgetc(log)) != EOF;)
        buf_add_char(out, (char)c);
    fclose(log);
}

static void test_warns_of_strangers(void **state)
{
    (void)state;
    struct folder f;
    struct buf text = BUF_INIT;
    folder_init(&f);
    folder_copy(&f, MODELS "llama", "config.json");
    write_edited(&f, MODELS "llama", &(struct edit){"", NULL, NULL, {0}});
    load_log(&text, MODELS "llama");
    assert_int_equal(text.len, 0);
    load_log(&text, f.path);
    assert_non_null(strstr(buf_str(&text), "1 tensors are not part of LlamaForCausalLM"));
    assert_non_null(strstr(buf_str(&text), STRANGER));
    assert_null(strstr(buf_str(&text), LEFT_OVER));
    buf_release(&text);
    folder_release(&f);
}

static void test_refused_configs(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"LlamaForCausalLM", "Zamba2ForCausalLM", Q_UNSUPPORTED,
         " more (quire check-model --help lists all)"},
        {"silu", "gelu", Q_UNSUPPORTED, "hidden_act \"gelu\""},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", Q_NOT_FOUND, "model.layers.2."},
        {"\"vocab_size\": 512", "\"vocab_size\": 16777216", Q_MISMATCH, "expected [16777216, 64]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        struct buf b = BUF_INIT, changed = BUF_INIT;
        folder_init(&f);
        folder_copy(&f, MODELS "llama", "model.safetensors");
        assert_ok(file_read(&b, MODELS "llama/config.json", 1u << 20, &e), &e);
        const char *at = strstr(buf_str(&b), cases[i].from);
        assert_non_null(at);
        buf_add(&changed, b.data, (size_t)(at - b.data));
        buf_add_str(&changed, cases[i].to);
        buf_add_str(&changed, at + strlen(cases[i].from));
        folder_write(&f, "config.json", changed.data, changed.len);
        assert_fails(load(f.path, LOAD_AUTO, DT_F32), cases[i].code, cases[i].part, &e);
        buf_release(&b);
        buf_release(&changed);
        folder_release(&f);
    }
}

/* Weights are exchanged for those of a model that computes the same. */
static void test_other_forward_is_no_reload(void **state)
{
    (void)state;
    static const struct {
        const char *model, *from, *to, *part;
    } cases[] = {
        {"gemma2", "\"attn_logit_softcapping\": 3.0", "\"attn_logit_softcapping\": 4.0",
         "has forward.attention_soft_cap 4, the served model has 3"},
        {"gpt_neox", "\"use_parallel_residual\": true", "\"use_parallel_residual\": false",
         "has forward.parallel_residual false, the served model has true"},
        {"phi3-longrope", "1.03", "1.04", "other factors of longrope"},
        {"gpt_oss", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 8.0",
         "has forward.glu_limit 8, the served model has 7"},
        {"granite", "\"residual_multiplier\": 0.35", "\"residual_multiplier\": 0.25",
         "has forward.residual_multiplier 0.25, the served model has 0.3"},
        {"gemma3n", "0.75,", "0.7,", "differ in the sparsity of their gates"},
        {"gemma3n", "\"altup_correct_scale\": true", "\"altup_correct_scale\": false",
         "has streams.scaled false, the served model has true"},
        {"gemma4", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 0",
         "has layers.n_kv_reader 0, the served model has 2"},
        {"deepseek_v2-group", "\"topk_group\": 2", "\"topk_group\": 3",
         "has moe.n_group_used 3, the served model has 2"},
        {"falcon_h1-norm", "\"mamba_norm_before_gate\": true", "\"mamba_norm_before_gate\": false",
         "has mixer.norm_first false"},
    };
    kern_table_cpu(&kern, CAP_NONE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        struct buf b = BUF_INIT, changed = BUF_INIT;
        char dir[PATH_MAX], config[PATH_MAX];
        snprintf(dir, sizeof dir, MODELS "%s", cases[i].model);
        snprintf(config, sizeof config, MODELS "%s/config.json", cases[i].model);
        folder_init(&f);
        folder_copy(&f, dir, "model.safetensors");
        assert_ok(file_read(&b, config, 1u << 20, &e), &e);
        const char *at = strstr(buf_str(&b), cases[i].from);
        assert_non_null(at);
        buf_add(&changed, b.data, (size_t)(at - b.data));
        buf_add_str(&changed, cases[i].to);
        buf_add_str(&changed, at + strlen(cases[i].from));
        folder_write(&f, "config.json", changed.data, changed.len);
        struct model_options o = {.dir = dir, .dtype = DT_F32, .kern = &kern};
        assert_ok(model_load(&m, &o, &e), &e);
        o.weights_dir = f.path;
        assert_fails(model_reload(m, &o, &e), Q_MISMATCH, cases[i].part, &e);
        model_free(m);
        m = NULL;
        buf_release(&b);
        buf_release(&changed);
        folder_release(&f);
    }
}

/* A family that spells its sizes differently is "not supported", not "hidden_size is missing". */
static void test_other_family(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    folder_text(&f, "config.json",
                "{\"architectures\": [\"Zamba2ForCausalLM\"], \"d_model\": 768}");
    assert_fails(
        load(f.path, LOAD_AUTO, DT_F32), Q_UNSUPPORTED,
        "Zamba2ForCausalLM is not supported; supported are those of the model types afmoe, ", &e);
    folder_release(&f);
}

static void test_lengths(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t asked, want; /* want 0: refused */
    } cases[] = {
        {"llama", 0, 256},
        {"llama", 100, 100},
        {"llama", 257, 0},
        {"llama-rope-linear", 0, 640},
        {"llama-rope-linear", 641, 0},
        {"llama-rope-llama3", 0, 512},
        {"llama-rope-yarn", 0, 256},
        {"llama-rope-yarn", 257, 0},
        {"llama-rope-dynamic", 0, 128},
        {"llama-rope-dynamic", 500, 500},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, MODELS "%s", cases[i].name);
        struct model_options o = {.dir = dir, .max_model_len = cases[i].asked, .kern = &kern};
        if (!cases[i].want) {
            assert_fails(model_load(&m, &o, &e), Q_INVALID, "more than the", &e);
            continue;
        }
        assert_ok(model_load(&m, &o, &e), &e);
        assert_int_equal(model_shape(m)->max_model_len, cases[i].want);
        model_free(m);
    }
}

static void test_shape(void **state)
{
    (void)state;
    uint64_t n_file = 0;
    struct tensor_set *s;
    assert_ok(tensor_set_open(&s, MODELS "llama", &e), &e);
    for (uint32_t i = 0; i < tensor_count(s); i++)
        n_file += tensor_at(s, i)->n_bytes / sizeof(float);
    tensor_set_free(s);
    assert_ok(load(MODELS "llama", LOAD_SAFETENSORS, DT_BF16), &e);
    const struct model_shape *shape = model_shape(m);
    assert_int_equal(shape->n_param, n_file);
    assert_int_equal(shape->compute_dtype, DT_BF16);
    assert_int_equal(shape->kv_dtype, DT_BF16);
    assert_int_equal(shape->kv_block_bytes,
                     2 * 2 * 2 * 16 * 16 * 2); /* K+V, layers, heads, head_dim, tokens, bytes */
    assert_true(shape->weight_bytes > n_file && shape->weight_bytes < 4 * n_file);
    assert_string_equal(model_config(m)->architecture, "LlamaForCausalLM");
    model_free(m);
    struct model_options o = {
        .dir = MODELS "llama",
        .dtype = DT_BF16,
        .kern = &kern,
        .kv_given = true,
    };
    assert_ok(model_load(&m, &o, &e), &e); /* KV in f32 though computed in bf16 */
    assert_int_equal(model_shape(m)->kv_dtype, DT_F32);
    assert_int_equal(model_shape(m)->kv_block_bytes, 2 * 2 * 2 * 16 * 16 * 4);
    model_free(m);
    o.kv_dtype = DT_I8;
    assert_ok(model_load(&m, &o, &e), &e);
    assert_int_equal(model_shape(m)->kv_block_bytes, 2 * 2 * 2 * 16 * (16 + 4)); /* a scale each */
    model_free(m);
    o.kv_dtype = DT_F16;
    assert_fails(model_load(&m, &o, &e), Q_UNSUPPORTED, "float32, int8 or fp8", &e);
    o.kv_dtype = DT_F8_E4M3;
    assert_fails(model_load(&m, &o, &e), Q_UNSUPPORTED,
                 "KV cache dtype fp8 is not supported on the CPU", &e);
    assert_fails(load(MODELS "llama", LOAD_AUTO, DT_I8), Q_UNSUPPORTED, "dtype I8", &e);
}

/* No file but config.json: the same numbers for any threads, finite logits in every dtype. */
static void test_dummy(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    static const uint32_t ids[] = {5, 6, 7};
    static float first[3 * VOCAB], second[3 * VOCAB];
    static const char *const models[] = {"qwen2", "llama", "qwen3"};
    for (size_t i = 0; i < 9; i++) {
        struct folder f;
        char from[PATH_MAX];
        snprintf(from, sizeof from, MODELS "%s", models[i / 3]);
        folder_init(&f);
        folder_copy(&f, from, "config.json");
        for (uint32_t n_thread = 1; n_thread <= 3; n_thread++) {
            struct runner r = {.n_thread = n_thread};
            struct model_options o = {
                .dir = f.path,
                .format = LOAD_DUMMY,
                .dtype = dtypes[i % 3],
                .kern = &kern,
            };
            if (n_thread > 1)
                assert_ok(team_new(&r.team, n_thread, false, &e), &e);
            o.team = r.team;
            assert_ok(model_load(&r.model, &o, &e), &e);
            assert_ok(kv_cache_init(&r.kv, r.model, RUN_BLOCKS, &e), &e);
            assert_ok(model_scratch_new(&r.scratch, r.model, 3, n_thread, &e), &e);
            run_prompt(&r, ids, 3, 3, n_thread == 1 ? first : second);
            if (n_thread > 1)
                assert_memory_equal(first, second, sizeof first);
            runner_close(&r);
        }
        double most = abs_max(first, 3 * VOCAB);
        assert_true(isfinite(most) && most > 1e-3 && most < 100);
        assert_memory_not_equal(first, first + VOCAB, VOCAB * sizeof *first);
        folder_release(&f);
    }
}

static uint64_t progress_done, progress_total;

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    assert_ptr_equal(ctx, &progress_done);
    assert_true(done > progress_done && done <= total);
    progress_done = done;
    progress_total = total;
}

static void test_progress(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "qwen3", "llama-bf16-sharded"};
    for (size_t i = 0; i < 3; i++) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, MODELS "%s", models[i]);
        progress_done = 0;
        struct model_options o = {
            .dir = dir,
            .kern = &kern,
            .progress = on_progress,
            .progress_ctx = &progress_done,
        };
        assert_ok(model_load(&m, &o, &e), &e);
        assert_true(progress_done > 0 && progress_done == progress_total);
        model_free(m);
    }
}

/* A tied embedding is read out of the packed lm_head: the numbers are not in memory twice, unless
 * lm_head's are others (int8, or rounded). */
static void test_tied_embedding_is_there_once(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        enum quantization quantization;
        bool once;
    } cases[] = {
        {DT_BF16, QUANTIZE_NOT, true},
        {DT_F32, QUANTIZE_NOT, true},
        {DT_BF16, QUANTIZE_INT8, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct model_options o = {
            .dir = MODELS "qwen2",
            .format = LOAD_DUMMY,
            .dtype = cases[i].dtype,
            .quantization = cases[i].quantization,
            .kern = &kern,
        };
        assert_ok(model_load(&m, &o, &e), &e);
        const struct model_shape *s = model_shape(m);
        const uint64_t table =
            (uint64_t)s->vocab_size * s->hidden_size * (dtype_bits(cases[i].dtype) / 8);
        assert_int_equal(s->weight_bytes - s->step_bytes < table, cases[i].once);
        model_free(m);
    }
}

static void test_limits(void **state)
{
    (void)state;
    struct kv_cache kv;
    struct model_scratch *s;
    assert_ok(load(MODELS "llama", LOAD_AUTO, DT_F32), &e);
    assert_fails(kv_cache_init(&kv, m, 0, &e), Q_INVALID, "0 blocks", &e);
    assert_fails(model_scratch_new(&s, m, 0, 1, &e), Q_INVALID, "above 0", &e);
    assert_true(model_scratch_bytes(m, 64, 1) > 64 * 64 * 4);
    assert_true(model_scratch_bytes(m, 128, 1) > model_scratch_bytes(m, 64, 1));
    assert_true(model_scratch_bytes(m, 64, 4) > model_scratch_bytes(m, 64, 1));
    model_free(m);
}

static void *fail_malloc(size_t n)
{
    return q_alloc(n);
}

static uint64_t resident_bytes(void)
{
    unsigned long long size, resident, shared;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu %llu", &size, &resident, &shared), 3);
    fclose(f);
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A pool of 8 GiB and more costs nothing until blocks are written, then a huge page for each array
 * that was touched. And a copied block is the block. */
static void test_pool_is_lazy(void **state)
{
    (void)state;
    struct kv_cache kv, other, swap;
    assert_ok(load(MODELS "llama", LOAD_AUTO, DT_F32), &e);
    const struct model_shape *s = model_shape(m);
    uint32_t n_block = (uint32_t)(((uint64_t)8 << 30) / s->kv_block_bytes);
    uint64_t before = resident_bytes();
    assert_ok(kv_cache_init(&kv, m, n_block, &e), &e);
    assert_ok(kv_cache_init(&other, m, 3, &e), &e);
    assert_true(resident_bytes() - before < (4u << 20));
    size_t n = kv.block_bytes[0];
    assert_int_equal(2 * n * s->n_layer, s->kv_block_bytes);
    for (uint32_t i = 0; i < s->n_layer; i++) {
        memset((char *)kv.k[i] + 100 * n, (int)(i + 1), n);
        memset((char *)kv.v[i] + 100 * n, (int)(i + 65), n);
    }
    assert_true(resident_bytes() - before < (8u << 20) + 2ull * s->n_layer * (2u << 20));
    kv_cache_copy(&other, 2, &kv, 100);
    kv_cache_copy(&kv, 7, &other, 2);
    for (uint32_t i = 0; i < s->n_layer; i++) {
        assert_memory_equal((char *)kv.k[i] + 7 * n, (char *)kv.k[i] + 100 * n, n);
        assert_memory_equal((char *)kv.v[i] + 7 * n, (char *)kv.v[i] + 100 * n, n);
        assert_int_equal(((char *)other.k[i])[2 * n - 1], 0);
        assert_int_equal(((char *)other.v[i])[3 * n - 1], i + 65);
    }
    /* Swap space takes a huge page for many blocks, not one for each array. */
    uint64_t without = resident_bytes();
    assert_ok(kv_cache_init_swap(&swap, m, n_block, &e), &e);
    kv_cache_copy(&swap, 0, &kv, 100);
    kv_cache_copy(&swap, 1, &kv, 8);
    kv_cache_copy(&swap, 2, &kv, 100);
    assert_true(resident_bytes() - without < (4u << 20));
    kv_cache_copy(&kv, 9, &swap, 2);
    kv_cache_copy(&kv, 10, &swap, 1);
    for (uint32_t i = 0; i < s->n_layer; i++) {
        assert_memory_equal((char *)kv.k[i] + 9 * n, (char *)kv.k[i] + 100 * n, n);
        assert_memory_equal((char *)kv.v[i] + 9 * n, (char *)kv.v[i] + 100 * n, n);
        assert_memory_equal((char *)kv.v[i] + 10 * n, (char *)kv.v[i] + 8 * n, n);
    }
    kv_cache_release(&swap);
    assert_fails(kv_cache_init_swap(&swap, m, 0, &e), Q_INVALID, "0 blocks", &e);
    kv_cache_forget(&kv);
    assert_true(resident_bytes() - before < (4u << 20) + 2ull * s->n_layer * (2u << 20));
    assert_int_equal(((char *)kv.k[0])[100 * n], 0);
    kv_cache_release(&kv);
    kv_cache_release(&other);
    model_free(m);
}

/* Every allocation from model_load to a ready scratch fails once: an error, no leak, no crash. */
static void test_out_of_memory(void **state)
{
    (void)state;
    enum q_code rc = Q_NO_MEMORY;
    json_set_alloc_funcs(fail_malloc, q_free);
    for (int64_t n = 0; rc; n++) {
        struct runner r;
        struct runner_options o = {
            .dir = MODELS "llama-bf16-sharded",
            .n_thread = 1,
            .dtype_auto = true,
        };
        assert_true(n < 5000);
        q_err_reset(&e);
        mem_fail_after(n);
        rc = runner_open(&r, &o, &e);
        mem_fail_after(-1);
        assert_true(rc == e.code);
        runner_close(&r);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    kern_table_cpu(&kern, kern_caps_machine());
    log_setup("test", LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_tensors),
        cmocka_unit_test(test_accepted_tensors),
        cmocka_unit_test(test_refused_configs),
        cmocka_unit_test(test_other_family),
        cmocka_unit_test(test_other_forward_is_no_reload),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_dummy),
        cmocka_unit_test(test_warns_of_strangers),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_tied_embedding_is_there_once),
        cmocka_unit_test(test_pool_is_lazy),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
