/* SPDX-License-Identifier: Apache-2.0 */
/* vision: images of built-in models against transformers (tests/data/vision): which rows of the
 * prompt stand for an image, and what the tower and its projector make of it; that neither depends
 * on threads; what a folder may say and what is refused. */
#include "engine/model/modality.h"
#include "engine/model/vision/vision.h"
#include "folder.h"
#include "golden.h"

#define VISION_DIR  "tests/data/vision"
#define BEFORE      14u /* tokens of a golden's prompt before the image, */
#define BEHIND      17u /* and behind it */
#define PIXELS_MAX  (128u * 128u * VISION_CHANNELS)
#define KEPT_MAX    (256u * 128u * VISION_CHANNELS)
#define ROWS_MAX    128u
#define COLS_MAX    64u
#define TOLERANCE   1e-5 /* length of a row's error, of the row's own */
#define TOLERANCE16 3e-2 /* in 16 bits */

static const char *const folders[] = {"llava", "llava-siglip", "smolvlm", "idefics3", "internvl"};
#define N_FOLDER (sizeof folders / sizeof *folders)

static unsigned char pixels[PIXELS_MAX], kept[KEPT_MAX];
static float rows[ROWS_MAX * COLS_MAX];

struct answers {
    json_t *root;
    struct tensor_set *rows;
};
struct opened {
    struct kern_table kern;
    struct team *team;
    struct modalities *m;
};

/* The formula of tests/data/vision/make.py. */
static void draw(uint32_t width, uint32_t height)
{
    unsigned char *p = pixels;
    assert_true(width * height * VISION_CHANNELS <= PIXELS_MAX);
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++) {
            *p++ = (unsigned char)(5 * x + 3 * y);
            *p++ = (unsigned char)((x * x + 7 * y) % 251);
            *p++ = (unsigned char)(x * y / 3 + 11 * (x / 8 + y / 8) % 2 * 90);
        }
}

static void answers_open(struct answers *g, const char *dir)
{
    char path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, "%s/golden.json", dir);
    g->root = json_load_file(path, 0, NULL);
    assert_non_null(g->root);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    assert_ok(tensor_set_open_file(&g->rows, path, &e), &e);
}

static void answers_release(struct answers *g)
{
    json_decref(g->root);
    tensor_set_free(g->rows);
}

static void open_folder(struct opened *o, const char *dir, const struct model_options *how)
{
    struct q_err e = Q_ERR_INIT;
    struct model_options mine = *how;
    *o = (struct opened){.team = NULL};
    kern_table_cpu(&o->kern, how->memory_bytes ? CAP_NONE : kern_caps_machine());
    if (how->max_model_len > 1)
        assert_ok(team_new(&o->team, how->max_model_len, false, &e), &e);
    mine.dir = dir;
    mine.kern = &o->kern;
    mine.team = o->team;
    assert_ok(modalities_open(&o->m, dir, NULL, &e), &e);
    assert_int_equal(o->m->n, 1);
    assert_ok(modalities_load(o->m, &mine, &e), &e);
}

static void close_folder(struct opened *o)
{
    modalities_free(o->m);
    team_free(o->team);
}

static uint32_t number(const json_t *a, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(a, key));
}

/* An image through the engine's part: checked and kept. */
static struct quire_item take_image(const struct modalities *m, uint32_t width, uint32_t height)
{
    struct quire_item item = {
        .dtype = QUIRE_U8,
        .n_dim = 3,
        .dims = {height, width, VISION_CHANNELS},
        .data = pixels,
        .n_byte = (size_t)width * height * VISION_CHANNELS,
    };
    struct quire_item out;
    struct q_err e = Q_ERR_INIT;
    draw(width, height);
    assert_ok(modality_check(m, 0, &item, &e), &e);
    modality_kept(m, 0, &item, &out);
    assert_true(out.n_byte <= sizeof kept);
    assert_ok(modality_keep(m, 0, &item, kept, &e), &e);
    out.data = kept;
    return out;
}

/* In parts of `step` rows, as chunks of a prompt ask. */
static void embed(const struct modalities *m, const struct quire_item *item, uint32_t n_col,
                  uint32_t step, float *out)
{
    const struct quire_rows to = {out, item->n_token, n_col, n_col};
    assert_true(item->n_token <= ROWS_MAX && n_col <= COLS_MAX);
    memset(out, 0, sizeof rows);
    for (uint32_t at = 0; at < item->n_token;) {
        const uint32_t left = item->n_token - at;
        const struct modality_span want = {at, at + (left < step ? left : step)},
                                   got = modality_embed_part(m, 0, item, want, &to);
        assert_true(got.first <= want.first && got.end >= want.end);
        at = got.end;
    }
}

/* Tokens of the image's rows are those of the golden's prompt; rows of features are marked. */
static uint32_t check_tokens(const struct modalities *m, const json_t *a,
                             const struct quire_item *item, uint32_t *ids)
{
    const json_t *want = json_object_get(a, "ids");
    uint32_t n_feature = 0;
    assert_int_equal(item->n_token, json_array_size(want) - BEFORE - BEHIND);
    for (uint32_t from = 0; from < item->n_token; from += 5) { /* in parts, as chunks ask */
        const uint32_t left = item->n_token - from;
        modality_tokens(m, 0, item, from, left < 5 ? left : 5, ids + from);
    }
    for (uint32_t i = 0; i < item->n_token; i++) {
        const uint32_t id = (uint32_t)json_integer_value(json_array_get(want, BEFORE + i));
        assert_int_equal(ids[i], id == m->rows[0].placeholder ? MODALITY_ROW : id);
        n_feature += ids[i] == MODALITY_ROW;
    }
    return n_feature;
}

static void check_image(const struct opened *o, const struct answers *g, uint32_t i,
                        double tolerance)
{
    const json_t *a = json_array_get(json_object_get(g->root, "answers"), i);
    const struct quire_item item = take_image(o->m, number(a, "width"), number(a, "height"));
    uint32_t ids[ROWS_MAX], at = 0;
    char name[32];
    snprintf(name, sizeof name, "rows.%u", i);
    const struct tensor *want = tensor_find(g->rows, name);
    assert_non_null(want);
    const uint32_t n_col = (uint32_t)want->shape[1];
    assert_int_equal(check_tokens(o->m, a, &item, ids), want->shape[0]);
    embed(o->m, &item, n_col, 1 + i % 7, rows);
    for (uint32_t r = 0; r < item.n_token; r++) {
        double length = 0, off = 0;
        if (ids[r] != MODALITY_ROW)
            continue;
        for (uint32_t c = 0; c < n_col; c++) {
            float v;
            memcpy(&v, (const char *)want->data + ((size_t)at * n_col + c) * sizeof v, sizeof v);
            length += (double)v * v;
            off += pow((double)v - rows[r * n_col + c], 2);
        }
        if (sqrt(off) > tolerance * sqrt(length))
            fail_msg("image %u, row %u: off by %g of %g", i, r, sqrt(off), sqrt(length));
        at++;
    }
}

/* max_model_len: threads; memory_bytes: the reference's kernels. The tower reads neither. */
static void check_folder(const char *dir, const struct model_options *how, double tolerance)
{
    struct opened o;
    struct answers g;
    answers_open(&g, dir);
    open_folder(&o, dir, how);
    for (uint32_t i = 0; i < json_array_size(json_object_get(g.root, "answers")); i++)
        check_image(&o, &g, i, tolerance);
    close_folder(&o);
    answers_release(&g);
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FOLDER; i++) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, VISION_DIR "/%s", folders[i]);
        check_folder(dir, &(struct model_options){.dtype = DT_F32}, TOLERANCE);
        check_folder(dir, &(struct model_options){.dtype = DT_F32, .max_model_len = 3}, TOLERANCE);
        check_folder(dir, &(struct model_options){.dtype = DT_F32, .memory_bytes = 1}, TOLERANCE);
        check_folder(dir, &(struct model_options){.dtype = DT_BF16}, TOLERANCE16);
        check_folder(dir, &(struct model_options){.dtype = DT_F16}, TOLERANCE16);
    }
}

/* ---- sizes ---- */

struct fit {
    uint32_t width, height, kept_width, kept_height, n_token;
};

/* By hand: SmolVLM's rules for squares of 512 pixels and a longest edge of 2048, 64 rows each. */
static void test_sizes(void **state)
{
    static const struct fit fits[] = {
        {2048, 2048, 2048, 2560, 16 * 66 + 3 + 1 + 67},
        {1, 1, 2048, 2560, 16 * 66 + 3 + 1 + 67},
        {4000, 3000, 2048, 2048, 12 * 66 + 2 + 1 + 67}, /* 2048 x 1536 */
        {3000, 4000, 1536, 2560, 12 * 66 + 3 + 1 + 67},
        {1000, 10, 2048, 1024, 4 * 66 + 1 + 67}, /* 2048 x 20, which become 512 rows */
    };
    struct vision_config c = {
        .model = vision_model_of("SmolVLMForConditionalGeneration"),
        .image_size = 512,
        .n_token = 64,
        .longest_edge = 2048,
        .splits = true,
    };
    const struct vision_words w = {.n_newline = 1, .n_last = 1};
    static struct vision_layout l;
    (void)state;
    assert_non_null(c.model);
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
        const struct vision_size size =
            vision_kept(&c, (struct vision_size){fits[i].height, fits[i].width});
        assert_int_equal(size.width, fits[i].kept_width);
        assert_int_equal(size.height, fits[i].kept_height);
        vision_layout(&l, &c, &w, vision_grid_of(&c, size));
        assert_int_equal(l.n_row, fits[i].n_token);
    }
    c.splits = false;
    const struct vision_size one = vision_kept(&c, (struct vision_size){3000, 4000});
    assert_int_equal(one.width, 512);
    assert_int_equal(one.height, 512);
    vision_layout(&l, &c, &w, vision_grid_of(&c, one));
    assert_int_equal(l.n_row, 67);
}

/* Which grid an image gets: computed with transformers' get_optimal_tiled_canvas. */
static void test_grids(void **state)
{
    static const struct fit fits[] = {
        {448, 448, 448, 448, 1},     {1000, 1000, 1344, 1792, 10}, {1400, 1400, 1344, 1792, 10},
        {800, 600, 1792, 1792, 13},  {600, 800, 1344, 2240, 13},   {4000, 1000, 1792, 896, 5},
        {1000, 4000, 448, 2240, 5},  {100, 2000, 448, 5824, 13},   {896, 448, 896, 896, 3},
        {2000, 1000, 1792, 1344, 9},
    };
    struct vision_config c = {
        .model = vision_model_of("InternVLForConditionalGeneration"),
        .image_size = 448,
        .tiles_min = 1,
        .tiles_max = 12,
    };
    (void)state;
    assert_non_null(c.model);
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
        const struct vision_size size =
            vision_kept(&c, (struct vision_size){fits[i].height, fits[i].width});
        assert_int_equal(size.width, fits[i].kept_width);
        assert_int_equal(size.height, fits[i].kept_height);
        assert_int_equal(vision_squares(vision_grid_of(&c, size)), fits[i].n_token);
    }
}

/* ---- what a folder may say ---- */

struct change {
    const char *from, *key, *value; /* folder; file:key or file:object.key; JSON, NULL: removed */
    const char *says; /* of an error, or of what is not supported; NULL: it is served */
    bool is_error;
};

#define CONFIG "config.json:"
#define PIXELS "preprocessor_config.json:"
static const struct change changes[] = {
    {"llava", CONFIG "x", "1", NULL, false},
    {"llava", CONFIG "vision_feature_layer", "-3", NULL, false},
    {"llava", CONFIG "vision_feature_layer", "2", NULL, false},
    {"llava", CONFIG "vision_feature_layer", "[-2, -3]", "several layers", false},
    {"llava", CONFIG "vision_feature_layer", "0", "without layers", false},
    {"llava", CONFIG "vision_feature_layer", "-5", "vision_feature_layer", true},
    {"llava", CONFIG "vision_feature_select_strategy", "\"full\"", NULL, false},
    {"llava", CONFIG "vision_feature_select_strategy", "\"some\"", "expected default or full",
     true},
    {"llava-siglip", CONFIG "vision_feature_select_strategy", "\"default\"", "class row", false},
    {"llava", CONFIG "vision_config", "[]", "vision_config is a list", true},
    {"llava", CONFIG "vision_config.model_type", "\"pixtral\"", "pixtral is not supported", false},
    {"llava", CONFIG "vision_config.num_attention_heads", "5", "heads that divide", true},
    {"llava", CONFIG "vision_config.patch_size", "29", "no larger than the image", true},
    {"llava", CONFIG "vision_config.image_size", "4000", "make 326042 rows", true},
    {"llava", CONFIG "vision_config.num_channels", "1", "1 channels", false},
    {"llava", CONFIG "projector_hidden_act", "\"tanh\"", "projector_hidden_act", false},
    {"llava", CONFIG "image_token_index", NULL, "image_token_id is missing", true},
    {"llava", CONFIG "image_token_index", "99999", "too large", true},
    {"llava", PIXELS "do_resize", "false", "do_resize", false},
    {"llava", PIXELS "size", "{\"shortest_edge\": 20}", "other sizes", false},
    {"llava", PIXELS "size", "28", NULL, false},
    {"llava", PIXELS "size", "{\"height\": 28, \"width\": 28}", NULL, false},
    {"llava", PIXELS "size", "\"big\"", "expected an object", true},
    {"llava", PIXELS "image_std", "[1, 0, 1]", "has a 0", true},
    {"llava", PIXELS "image_mean", "[1, 2]", "list of 3 numbers", true},
    {"llava", PIXELS "resample", "4", "resample 4", false},
    {"llava", PIXELS "resample", "9", "resample", true},
    {"smolvlm", CONFIG "scale_factor", "3", "does not divide", true},
    {"smolvlm", PIXELS "max_image_size", "{\"longest_edge\": 64}", "tiles of 64", false},
    {"smolvlm", PIXELS "size", "{\"longest_edge\": 4096}", "more than 64 tiles", false},
    {"internvl", CONFIG "downsample_ratio", "0.25", NULL, false},
    {"smolvlm", CONFIG "vision_config.model_type", "\"idefics3\"", NULL, false}, /* older files */
    {"internvl", CONFIG "downsample_ratio", "1", "a single patch", false},
    {"smolvlm", CONFIG "scale_factor", "1", "a single patch", false},
    {"internvl", CONFIG "downsample_ratio", "0.3", "does not divide", true},
    {"internvl", CONFIG "vision_feature_select_strategy", "\"full\"", "several patches", false},
    {"internvl", CONFIG "vision_config.image_size", "[32, 64]", "64 x 32", false},
    {"internvl", CONFIG "vision_config.image_size", "[32]", "a list of two", true},
    {"internvl", CONFIG "vision_config.image_size", "32", NULL, false},
    {"internvl", CONFIG "vision_config.attention_bias", "false", NULL, false},
    {"internvl", CONFIG "vision_config.use_qk_norm", "true", "use_qk_norm", false},
    {"internvl", CONFIG "vision_config.norm_type", "\"rms_norm\"", "rms_norm", false},
    {"internvl", PIXELS "max_patches", "64", "expected at most 63", true},
    {"internvl", PIXELS "min_patches", "7", "no fewer", true},
    {"internvl", PIXELS "size", "{\"height\": 64, \"width\": 64}", "tiles of 64", false},
    {"smolvlm", PIXELS "size", NULL, "more than 64 tiles", false}, /* 1456 of 32 */
};

static void apply(json_t *root, const char *key, const char *value)
{
    const char *dot = strchr(key, '.');
    char object[64];
    if (dot) {
        snprintf(object, sizeof object, "%.*s", (int)(dot - key), key);
        root = json_object_get(root, object);
        key = dot + 1;
        assert_non_null(root);
    }
    if (value)
        assert_int_equal(json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL)),
                         0);
    else
        assert_int_equal(json_object_del(root, key), 0);
}

static void write_changed(struct folder *f, const struct change *c)
{
    static const char *const files[] = {"config.json", "preprocessor_config.json"};
    const char *colon = strchr(c->key, ':');
    for (size_t i = 0; i < 2; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, VISION_DIR "/%s/%s", c->from, files[i]);
        json_t *root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        if (!strncmp(c->key, files[i], strlen(files[i])))
            apply(root, colon + 1, c->value);
        char *text = json_dumps(root, 0);
        folder_text(f, files[i], text);
        free(text);
        json_decref(root);
    }
}

static void check_change(const struct change *c)
{
    struct folder f;
    struct model_config text;
    struct vision_config *v = NULL;
    struct buf why = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    folder_init(&f);
    write_changed(&f, c);
    assert_ok(model_config_load(&text, NULL, f.path, &e), &e);
    const enum q_code rc = vision_config_load(&v, f.path, NULL, &text, &why, &e);
    if (c->is_error != (rc != Q_OK) || (v != NULL) != !c->says ||
        (c->says && !strstr(c->is_error ? e.message : buf_str(&why), c->says)))
        fail_msg("%s, %s = %s: %s%s", c->from, c->key, c->value ? c->value : "nothing",
                 rc ? e.message : "", buf_str(&why));
    q_free(v);
    buf_release(&why);
    folder_release(&f);
}

static void test_folders(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        check_change(&changes[i]);
}

/* --mm-processor-kwargs, --language-model-only. */
static void test_options(void **state)
{
    static struct vision_options o;
    struct modalities *m;
    struct q_err e = Q_ERR_INIT;
    char text[VISION_PROCESSOR_MAX + 8];
    (void)state;
    assert_ok(vision_options_processor(&o, "{\"size\": {\"longest_edge\": 32}}", &e), &e);
    assert_ok(modalities_open(&m, VISION_DIR "/smolvlm", &o, &e), &e);
    struct quire_item largest;
    modality_largest(m, 0, &largest);
    assert_int_equal(largest.n_token, 4 + 3);
    modalities_free(m);
    o.none = true;
    assert_ok(modalities_open(&m, VISION_DIR "/smolvlm", &o, &e), &e);
    assert_int_equal(m->n, 0);
    modalities_free(m);
    assert_fails(vision_options_processor(&o, "[1]", &e), Q_INVALID, "no JSON object", &e);
    snprintf(text, sizeof text, "{\"a\": \"%*s\"}", VISION_PROCESSOR_MAX - 6, "");
    assert_fails(vision_options_processor(&o, text, &e), Q_INVALID, "expected at most", &e);
}

/* ---- weights ---- */

/* Items that do not fit, and tensors that are not there. */
static void test_refused(void **state)
{
    struct modalities *m;
    struct q_err e = Q_ERR_INIT;
    struct quire_item item = {
        .dtype = QUIRE_U8,
        .n_dim = 3,
        .dims = {1, 300, VISION_CHANNELS},
        .data = pixels,
        .n_byte = 900,
    };
    (void)state;
    assert_ok(modalities_open(&m, VISION_DIR "/llava", NULL, &e), &e);
    assert_fails(modality_check(m, 0, &item, &e), Q_INVALID, "200 times as long", &e);
    item.dims[2] = 4;
    assert_fails(modality_check(m, 0, &item, &e), Q_INVALID, "is not [1…", &e);
    struct kern_table kern;
    kern_table_cpu(&kern, CAP_NONE);
    const struct model_options o = {
        .dir = VISION_DIR "/llava-siglip", /* another tower's tensors */
        .dtype = DT_F32,
        .kern = &kern,
    };
    assert_fails(modalities_load(m, &o, &e), Q_MISMATCH, "--language-model-only", &e);
    modalities_free(m);
}

/* Without files numbers are made up, and images are rows of numbers all the same. */
static void test_dummy(void **state)
{
    struct opened o;
    (void)state;
    open_folder(&o, VISION_DIR "/smolvlm",
                &(struct model_options){.dtype = DT_F32, .format = LOAD_DUMMY});
    const struct quire_item item = take_image(o.m, 40, 40);
    embed(o.m, &item, 32, 1000, rows);
    for (uint32_t i = 2 * 32; i < 6 * 32; i++)
        assert_true(isfinite(rows[i]) && rows[i] != 0);
    close_folder(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_grids),   cmocka_unit_test(test_folders),
        cmocka_unit_test(test_options), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_dummy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
