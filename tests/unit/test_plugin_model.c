/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_model: models of plugins at the level of model_forward: the world model's goldens in three
 * spellings of its checkpoint, and a family under other names with the bits of the built-in one. */
#include "engine/model/modality.h"
#include "engine/model/plugins.h"
#include "golden.h"
#include "plugins_near.h"

#define TERRA "../shared/goldens/terra"

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
    assert_ok(modalities_open(&w->m, o->dir, &e), &e);
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
    if (!root)
        skip_without(TERRA);
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
    const struct runner_options o = {.n_thread = 2, .caps = kern_caps_machine(), .dtype = DT_F32};
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_world_models_goldens),
        cmocka_unit_test(the_world_model_in_other_types),
    };
    (void)argc;
    plugins_near(plugins_dir, argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
