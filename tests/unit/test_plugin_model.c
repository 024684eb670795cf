/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_model: models of plugins at the level of model_forward: the world model's goldens in three
 * spellings of its checkpoint, and a family under other names with the bits of the built-in one. */
#include "engine/model/modality.h"
#include "engine/model/plugins.h"
#include "folder.h"
#include "golden.h"
#include "plugins_near.h"

#define TERRA "tests/data/terra"

static char plugins_dir[PLUGINS_DIR_MAX];

static void open_plugin(const char *name)
{
    static struct plugins_config c;
    char path[PATH_MAX];
    const char *const paths[] = {path};
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, "%s/%s", plugins_dir, name);
    memset(&c, 0, sizeof c);
    assert_ok(plugins_config_set(&c, paths, 1, "", &e), &e);
    assert_ok(plugins_open(&c, NULL, &e), &e);
}

/* ---- the world model ---- */

struct world { /* a model and its items */
    struct runner r;
    struct modalities *m;
    uint32_t hidden, vocab;
};

static void world_open(struct world *w, const struct runner_options *o)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(runner_open(&w->r, o, &e), &e);
    assert_ok(modalities_open(&w->m, o->dir, NULL, &e), &e);
    assert_ok(modalities_bind(w->m, w->r.model, o->n_thread, &e), &e);
    w->hidden = model_shape(w->r.model)->hidden_size;
    w->vocab = model_shape(w->r.model)->vocab_size;
}

static void world_close(struct world *w)
{
    modalities_free(w->m);
    runner_close(&w->r);
}

struct rollout { /* tokens of a sequence, and the rows of its placeholders */
    uint32_t ids[RUN_TOKENS_MAX];
    const float *items[RUN_TOKENS_MAX];
    float rows[RUN_TOKENS_MAX][64];
    uint32_t n, n_item;
};

/* Append ids; each placeholder takes the next action. */
static void add_ids(struct world *w, struct rollout *s, const json_t *ids, const json_t *actions)
{
    struct q_err e = Q_ERR_INIT;
    assert_true(w->hidden <= 64);
    for (size_t i = 0; i < json_array_size(ids); i++, s->n++) {
        const json_int_t id = json_integer_value(json_array_get(ids, i));
        s->ids[s->n] = (uint32_t)id;
        s->items[s->n] = NULL;
        if (modality_of_placeholder(w->m, (uint32_t)id) == w->m->n)
            continue;
        float action[3];
        for (size_t k = 0; k < 3; k++)
            action[k] =
                (float)json_number_value(json_array_get(json_array_get(actions, s->n_item), k));
        struct quire_item item = {.index = s->n_item, .n_dim = 1, .dims = {3}, .data = action};
        item.n_byte = sizeof action;
        const struct quire_rows out = {s->rows[s->n], 1, w->hidden, w->hidden};
        assert_ok(modality_check(w->m, 0, &item, &e), &e);
        assert_ok(modality_embed(w->m, 0, &item, &out, &e), &e);
        s->items[s->n] = s->rows[s->n];
        s->n_item++;
    }
}

/* Rows from q->n_done to s->n in steps of `chunk`; the last one's logits. */
static void feed(struct world *w, struct run_seq *q, const struct rollout *s, uint32_t chunk,
                 float *last)
{
    static float logits[RUN_TOKENS_MAX * 128];
    assert_true(w->vocab <= 128);
    q->tokens = s->ids;
    q->items = s->items;
    q->n_prompt = s->n;
    q->logits = logits;
    while (q->n_done < s->n) {
        q->n_next = s->n - q->n_done < chunk ? s->n - q->n_done : chunk;
        run_step(&w->r, q, 1);
    }
    memcpy(last, logits + (size_t)(q->n_next - 1) * w->vocab, w->vocab * sizeof *last);
}

static double max_difference(const float *a, const json_t *b, uint32_t n)
{
    double most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - json_number_value(json_array_get(b, i))));
    return most;
}

/* One case of golden.json: each frame's logits and greedy tokens. tolerance 0: tokens alone. */
static double run_case(struct world *w, const json_t *c, uint32_t chunk, bool exact)
{
    static struct rollout s;
    struct run_seq q = {0};
    float last[128];
    double most = 0;
    const json_t *frames = json_object_get(c, "frames"), *actions = json_object_get(c, "actions");
    memset(&s, 0, sizeof s);
    add_ids(w, &s, json_object_get(c, "prompt_token_ids"), actions);
    for (size_t f = 0; f < json_array_size(frames); f++) {
        const json_t *frame = json_array_get(frames, f), *tokens = json_object_get(frame, "tokens");
        assert_int_equal(s.n, json_integer_value(json_object_get(frame, "prompt_len")));
        feed(w, &q, &s, chunk, last);
        most = fmax(most, max_difference(last, json_object_get(frame, "logits"), w->vocab));
        for (size_t i = 0; i < json_array_size(tokens); i++) {
            const uint32_t want = (uint32_t)json_integer_value(json_array_get(tokens, i));
            if (exact && argmax(last, w->vocab) != want)
                fail_msg("%s: frame %zu, token %zu is %u, expected %u",
                         json_string_value(json_object_get(c, "name")), f, i,
                         argmax(last, w->vocab), want);
            s.items[s.n] = NULL;
            s.ids[s.n++] = want;
            if (i + 1 < json_array_size(tokens))
                feed(w, &q, &s, chunk, last);
        }
        if (f + 1 < json_array_size(frames)) {
            const json_int_t next =
                json_integer_value(json_object_get(json_array_get(frames, f + 1), "prompt_len"));
            json_t *placeholders = json_array();
            for (json_int_t i = s.n; i < next; i++)
                json_array_append_new(placeholders, json_integer(-3));
            add_ids(w, &s, placeholders, actions);
            json_decref(placeholders);
        }
    }
    return most;
}

static json_t *read_goldens(void)
{
    json_t *root = json_load_file(TERRA "/golden.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static void check_folder(const char *folder, const struct runner_options *like, double tolerance)
{
    json_t *root = read_goldens();
    const json_t *cases = json_object_get(root, "cases");
    char dir[PATH_MAX];
    struct runner_options o = *like;
    struct world w;
    double most = 0;
    snprintf(dir, sizeof dir, TERRA "/%s", folder);
    o.dir = dir;
    world_open(&w, &o);
    for (size_t i = 0; i < json_array_size(cases); i++)
        most = fmax(most, run_case(&w, json_array_get(cases, i), i % 2 ? 7 : 256, tolerance > 0));
    print_message("%s: %zu cases, logits differ by %g at most\n", folder, json_array_size(cases),
                  most);
    if (tolerance > 0 && !(most <= tolerance))
        fail_msg("%s: logits differ by %g, at most %g is accepted", folder, most, tolerance);
    if (!(most < 20))
        fail_msg("%s: logits differ by %g", folder, most);
    world_close(&w);
    json_decref(root);
}

static void the_world_models_goldens(void **state)
{
    (void)state;
    static const char *const folders[] = {"model", "model_mistral", "model_bf16"};
    const struct runner_options o = {
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
    };
    struct runner_options plain = o;
    open_plugin("positions.so");
    for (size_t i = 0; i < 3; i++)
        check_folder(folders[i], &o, 2e-3);
    plain.n_thread = 1;
    plain.caps = 0;
    plain.no_fusion = true;
    check_folder("model", &plain, 2e-3);
}

/* Smaller numbers cost what they cost; what is asked of is that they run. */
static void the_world_model_in_other_types(void **state)
{
    (void)state;
    const struct runner_options cases[] = {
        {.n_thread = 2, .caps = kern_caps_machine(), .dtype = DT_BF16},
        {.n_thread = 2, .caps = kern_caps_machine(), .quantization = QUANTIZE_INT8},
        {.n_thread = 1, .caps = 0, .quantization = QUANTIZE_INT4},
        {.n_thread = 2, .caps = kern_caps_machine(), .dtype = DT_F16},
    };
    open_plugin("positions.so");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_folder("model", &cases[i], 0);
}

/* Weights of the same numbers over the old ones, from a folder with other names of tensors; and the
 * packed cache, whose second start maps what the first one packed. */
static void weights_are_replaced_and_cached(void **state)
{
    (void)state;
    json_t *root = read_goldens();
    const json_t *c = json_array_get(json_object_get(root, "cases"), 0);
    struct runner_options o = {
        .dir = TERRA "/model",
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
    };
    struct q_err e = Q_ERR_INIT;
    struct folder cache;
    struct world w;
    open_plugin("positions.so");
    world_open(&w, &o);
    const struct model_options other = {
        .dir = TERRA "/model",
        .weights_dir = TERRA "/model_mistral",
        .kern = &w.r.kern,
        .team = w.r.team,
    };
    assert_ok(model_reload(w.r.model, &other, &e), &e);
    assert_true(run_case(&w, c, 16, true) < 2e-3);
    world_close(&w);
    folder_init(&cache);
    o.packed_cache = cache.path;
    for (int i = 0; i < 2; i++) {
        world_open(&w, &o);
        assert_int_equal(model_shape(w.r.model)->weights_mapped, i);
        assert_true(run_case(&w, c, 16, true) < 2e-3);
        world_close(&w);
    }
    folder_release(&cache);
    json_decref(root);
}

/* ---- variations of Llama that compute what Llama computes ---- */

struct checkpoint_out { /* a safetensors file of f32 */
    struct buf header, data;
};

static void put(struct checkpoint_out *c, const char *name, const float *x, uint32_t rows,
                uint32_t cols)
{
    const size_t from = c->data.len;
    buf_add(&c->data, x, (size_t)rows * (cols ? cols : 1) * sizeof *x);
    buf_printf(&c->header, "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [%u", from ? ", " : "{", name,
               rows);
    if (cols)
        buf_printf(&c->header, ", %u", cols);
    buf_printf(&c->header, "], \"data_offsets\": [%zu, %zu]}", from, c->data.len);
}

static const float *tensor_of(const struct tensor_set *s, uint32_t *rows, uint32_t *cols,
                              const char *name)
{
    const struct tensor *t = tensor_find(s, name);
    assert_non_null(t);
    *rows = (uint32_t)t->shape[0];
    *cols = t->n_dim > 1 ? (uint32_t)t->shape[1] : 0;
    return t->data;
}

static void put_as(struct checkpoint_out *c, const struct tensor_set *s, const char *from,
                   const char *to)
{
    uint32_t rows, cols;
    const float *x = tensor_of(s, &rows, &cols, from);
    put(c, to, x, rows, cols);
}

static void put_stacked(struct checkpoint_out *c, const struct tensor_set *s,
                        const char *const *from, uint32_t n, const char *to)
{
    struct buf all = BUF_INIT;
    uint32_t rows, cols = 0, total = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *x = tensor_of(s, &rows, &cols, from[i]);
        buf_add(&all, x, (size_t)rows * cols * sizeof *x);
        total += rows;
    }
    put(c, to, (const float *)(const void *)all.data, total, cols);
    buf_release(&all);
}

/* Rows of each head of 16 from halves to pairs, as Mistral's own checkpoints have them. */
static void put_pairs(struct checkpoint_out *c, const struct tensor_set *s, const char *from,
                      const char *to)
{
    static float y[64 * 64];
    uint32_t rows, cols;
    const float *x = tensor_of(s, &rows, &cols, from);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t h = r / 16, w = r % 16, stored = h * 16 + w % 8 * 2 + w / 8;
        memcpy(y + stored * cols, x + r * cols, cols * sizeof *x);
    }
    put(c, to, y, rows, cols);
}

static void write_variation(const struct folder *f)
{
    static const char *const qkv[] = {"model.layers.0.self_attn.q_proj.weight",
                                      "model.layers.0.self_attn.k_proj.weight",
                                      "model.layers.0.self_attn.v_proj.weight"};
    static const char *const gate_up[] = {"model.layers.1.mlp.gate_proj.weight",
                                          "model.layers.1.mlp.up_proj.weight"};
    static const char *const names[][2] = {
        {"model.embed_tokens.weight", "tok.weight"},
        {"lm_head.weight", "head.weight"},
        {"model.norm.weight", "model.norm.weight"},
        {"model.layers.0.input_layernorm.weight", "blocks.0.input.norm"},
        {"model.layers.1.input_layernorm.weight", "blocks.1.input.norm"},
        {"model.layers.0.post_attention_layernorm.weight", "blocks.0.post_attention.norm"},
        {"model.layers.1.post_attention_layernorm.weight", "blocks.1.post_attention.norm"},
        {"model.layers.0.self_attn.o_proj.weight", "blocks.0.self_attn.o_proj.weight"},
        {"model.layers.1.self_attn.o_proj.weight", "blocks.1.self_attn.o_proj.weight"},
        {"model.layers.1.self_attn.v_proj.weight", "blocks.1.wv.weight"},
        {"model.layers.0.mlp.gate_proj.weight", "blocks.0.mlp.gate_proj.weight"},
        {"model.layers.0.mlp.up_proj.weight", "blocks.0.mlp.up_proj.weight"},
        {"model.layers.0.mlp.down_proj.weight", "blocks.0.mlp.down_proj.weight"},
        {"model.layers.1.mlp.down_proj.weight", "blocks.1.mlp.down_proj.weight"},
        {"model.norm.weight", "buffers.left_over"},
    };
    struct checkpoint_out c = {BUF_INIT, BUF_INIT};
    struct buf file = BUF_INIT;
    struct tensor_set *s;
    struct q_err e = Q_ERR_INIT;
    assert_ok(tensor_set_open(&s, GOLDEN_DIR "/llama", &e), &e);
    put_stacked(&c, s, qkv, 3, "blocks.0.qkv.weight");
    put_stacked(&c, s, gate_up, 2, "blocks.1.gate_up.weight");
    put_pairs(&c, s, "model.layers.1.self_attn.q_proj.weight", "blocks.1.wq.weight");
    put_pairs(&c, s, "model.layers.1.self_attn.k_proj.weight", "blocks.1.wk.weight");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_as(&c, s, names[i][0], names[i][1]);
    buf_add_str(&c.header, "}");
    while (c.header.len % 8)
        buf_add_char(&c.header, ' ');
    const uint64_t n = c.header.len;
    buf_add(&file, &n, sizeof n);
    buf_add(&file, c.header.data, c.header.len);
    buf_add(&file, c.data.data, c.data.len);
    folder_write(f, "consolidated.safetensors", file.data, file.len);
    tensor_set_free(s);
    buf_release(&c.header);
    buf_release(&c.data);
    buf_release(&file);
}

/* Llama's golden folder with another architecture and more keys. */
static void write_like(const struct folder *f, const char *architecture, const char *more)
{
    char text[2000], path[PATH_MAX];
    folder_init((struct folder *)(uintptr_t)f);
    snprintf(text, sizeof text,
             "{\"architectures\": [\"%s\"], \"model_type\": \"llama\", \"vocab_size\": 512, "
             "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"hidden_act\": \"silu\", "
             "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-05, \"rope_theta\": "
             "1000000.0%s}",
             architecture, more);
    folder_text(f, "config.json", text);
    assert_non_null(realpath(GOLDEN_DIR "/llama/model.safetensors", path));
    folder_link(f, "model.safetensors", path);
}

#define LIKE_TOKENS 40u
static float like_logits[2][LIKE_TOKENS * 512];

static void run_like(const char *dir, const struct runner_options *like, uint32_t chunk, float *to)
{
    uint32_t ids[LIKE_TOKENS];
    struct runner_options o = *like;
    struct runner r;
    struct q_err e = Q_ERR_INIT;
    o.dir = dir;
    for (uint32_t i = 0; i < LIKE_TOKENS; i++)
        ids[i] = (17 * i + 3) % 500;
    assert_ok(runner_open(&r, &o, &e), &e);
    run_prompt(&r, ids, LIKE_TOKENS, chunk, to);
    r.logits_step = 3; /* and asked for some at a time */
    run_prompt(&r, ids, LIKE_TOKENS, LIKE_TOKENS, to);
    runner_close(&r);
}

/* The same bits as the built-in family, in every type. */
static void compare_like(const char *dir, const char *what)
{
    const struct runner_options cases[] = {
        {.n_thread = 2, .caps = kern_caps_machine(), .dtype = DT_F32},
        {.n_thread = 3, .caps = kern_caps_machine(), .dtype = DT_BF16},
        {.n_thread = 1, .caps = 0, .dtype = DT_F32},
        {.n_thread = 2, .caps = kern_caps_machine(), .quantization = QUANTIZE_INT8},
        {.n_thread = 2, .caps = kern_caps_machine(), .quantization = QUANTIZE_INT4},
        {
            .n_thread = 2,
            .caps = kern_caps_machine(),
            .dtype = DT_F32,
            .kv_given = true,
            .kv_dtype = DT_I8,
        },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t chunk = 5; chunk <= LIKE_TOKENS; chunk += 35) {
            run_like(GOLDEN_DIR "/llama", &cases[i], chunk, like_logits[0]);
            run_like(dir, &cases[i], chunk, like_logits[1]);
            if (memcmp(like_logits[0], like_logits[1], sizeof like_logits[0]) != 0)
                fail_msg("%s: case %zu, chunks of %u: other bits than the family's", what, i,
                         chunk);
        }
}

static void other_names_give_the_same_bits(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    folder_text(&f, "config.json",
                "{\"architectures\": [\"VariationForCausalLM\"], \"vocab_size\": 512, \"dim\": 64, "
                "\"sizes\": {\"n_layers\": 2}, \"heads\": {\"q\": 4, \"kv\": 2}, "
                "\"ffn_blocks\": 3, \"frames\": 8, \"frame_len\": 32, \"eps\": 1e-5}");
    open_plugin("variation.so");
    write_variation(&f);
    compare_like(f.path, "variation");
    folder_release(&f);
}

static void own_operations_give_the_same_bits(void **state)
{
    (void)state;
    struct folder f;
    open_plugin("operation.so");
    write_like(&f, "OperationForCausalLM", "");
    compare_like(f.path, "operation");
    folder_release(&f);
}

static void a_forward_pass_gives_the_same_bits(void **state)
{
    (void)state;
    struct folder f;
    open_plugin("override.so");
    write_like(&f, "OverrideForCausalLM", "");
    compare_like(f.path, "override");
    folder_release(&f);
}

/* Its logits are no numbers then, which the sampler refuses. */
static void a_forward_pass_may_fail(void **state)
{
    (void)state;
    const struct runner_options o = {
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
    };
    struct folder f;
    open_plugin("override.so");
    write_like(&f, "OverrideForCausalLM", ", \"fails_at\": 3");
    run_like(f.path, &o, LIKE_TOKENS, like_logits[0]);
    for (size_t i = 0; i < sizeof like_logits[0] / sizeof *like_logits[0]; i++)
        assert_true(isnan(like_logits[0][i]));
    folder_release(&f);
}

static void mistakes_in_a_program_are_named(void **state)
{
    (void)state;
    static const struct {
        int number;
        const char *part;
    } cases[] = {
        {0, "operation \"convolve\" is none that a plugin inserts: embed, positions, "},
        {1, "its input \"nothing\" is a buffer that no operation before it has written"},
        {2, "it reads a buffer that no operation has written"},
        {3, "there is no tensor \"none such\""},
        {4, "its weight is no matrix of the plugin"},
        {5, "parameter \"factor\" is unknown; it takes scale"},
        {6, "out is not its input"},
        {7, "tensor attn_norm is of each layer, the operation of none"},
        {8, "an operation: size is 8"},
        {9, "out is NULL"},
        {10, "tensor few is [5, 64], 256 positions need 256 rows"},
        {11, "kv is no buffer to write"},
        {100, "no operation \"convolve\" in layer 0; there are norm, matmul, rope, "},
        {101, "layer 99 does not exist, there are 2"},
        {102, "it reads a buffer that no operation has written"},
        {103, "plugin operation 1.0: program failed and gave no reason"},
        {104, "xxxxxxxx"},
    };
    char more[60];
    open_plugin("operation.so");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct q_err e = Q_ERR_INIT;
        struct folder f;
        struct runner r;
        const struct runner_options o = {.dir = f.path, .n_thread = 1, .dtype = DT_F32};
        snprintf(more, sizeof more, ", \"mistake\": %d", cases[i].number);
        write_like(&f, "MistakenForCausalLM", more);
        const enum q_code rc = runner_open(&r, &o, &e);
        assert_true(rc == Q_INVALID || rc == Q_UNSUPPORTED);
        if (!strstr(e.message, cases[i].part) || !strstr(e.message, "operation 1.0"))
            fail_msg("mistake %d: \"%s\", wanted \"%s\"", cases[i].number, e.message,
                     cases[i].part);
        runner_close(&r);
        folder_release(&f);
    }
}

/* ---- items ---- */

static enum q_code embed_bytes(const struct modalities *m, uint8_t first, float *rows,
                               struct q_err *e)
{
    const uint8_t data[6] = {first};
    struct quire_item item = {.dtype = QUIRE_U8, .n_dim = 2, .dims = {2, 3}, .data = data};
    const struct quire_rows out = {rows, 2, 64, 70};
    item.n_byte = sizeof data;
    const enum q_code rc = modality_check(m, 2, &item, e);
    return rc ? rc : modality_embed(m, 2, &item, &out, e);
}

static void check_rows(const struct modalities *m)
{
    static const float clip[8] = {1, 1, 1, 1, 0.5f, 0, 0, 0};
    static float rows[2 * 70];
    struct quire_item item = {.n_dim = 1, .dims = {8}, .data = clip, .n_byte = sizeof clip};
    const struct quire_rows out = {rows, 2, 64, 70};
    struct q_err e = Q_ERR_INIT;
    assert_ok(modality_check(m, 1, &item, &e), &e);
    assert_ok(modality_embed(m, 1, &item, &out, &e), &e);
    assert_true(rows[0] == 4 && rows[1] == 2 && rows[63] == 4.0f / 64);
    assert_true(rows[70] == 0.5f && rows[64] == 0); /* what lies between rows stays */
    assert_ok(embed_bytes(m, 9, rows, &e), &e);
    assert_true(rows[0] == 9 && rows[70 + 63] == 9);
    assert_fails(embed_bytes(m, 255, rows, &e), Q_INVALID, "marks[0]: 255 is no mark", &e);
    assert_fails(embed_bytes(m, 254, rows, &e), Q_INVALID,
                 "marks[0]: plugin items 2: embed_item failed and gave no reason", &e);
}

static void rows_of_items(void **state)
{
    (void)state;
    const struct runner_options o = {.n_thread = 1, .dtype = DT_F32};
    struct runner_options here = o;
    struct kern_table kern;
    struct model *model;
    struct modalities *m;
    struct runner r;
    struct folder f;
    struct q_err e = Q_ERR_INIT;
    open_plugin("items.so");
    write_like(&f, "ItemsForCausalLM",
               ", \"action_dim\": 3, \"num_frames\": 5, \"actions_per_frame\": 6, \"clip_max\": 2");
    here.dir = f.path;
    assert_fails(runner_open(&r, &here, &e), Q_NOT_FOUND,
                 "tensor action.weight is missing, expected shape [64, 3]", &e);
    runner_close(&r);
    kern_table_cpu(&kern, 0);
    const struct model_options dummy = {
        .dir = f.path,
        .format = LOAD_DUMMY,
        .dtype = DT_F32,
        .kern = &kern,
    };
    assert_ok(model_load(&model, &dummy, &e), &e);
    assert_true(model_takes_items(model));
    assert_ok(modalities_open(&m, f.path, NULL, &e), &e);
    assert_ok(modalities_bind(m, model, 2, &e), &e);
    assert_true(modalities_work_bytes(m) > 0);
    check_rows(m);
    modalities_free(m);
    model_free(model);
    folder_release(&f);
    write_like(&f, "ItemsForCausalLM", ", \"action_dim\": 3, \"flavour\": \"sweet\"");
    here.dir = f.path;
    assert_fails(runner_open(&r, &here, &e), Q_UNSUPPORTED, "flavour \"sweet\" is not plain", &e);
    runner_close(&r);
    folder_release(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_world_models_goldens),
        cmocka_unit_test(the_world_model_in_other_types),
        cmocka_unit_test(weights_are_replaced_and_cached),
        cmocka_unit_test(other_names_give_the_same_bits),
        cmocka_unit_test(own_operations_give_the_same_bits),
        cmocka_unit_test(a_forward_pass_gives_the_same_bits),
        cmocka_unit_test(a_forward_pass_may_fail),
        cmocka_unit_test(mistakes_in_a_program_are_named),
        cmocka_unit_test(rows_of_items),
    };
    (void)argc;
    plugins_near(plugins_dir, argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
