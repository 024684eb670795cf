/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways in which a checkpoint stores experts: a tensor for each, or one for all of a layer;
 * and the two names that some tensors have. A golden, which has one of them, is written in the
 * other; both must give the same bits. */
#include "folder.h"
#include "golden.h"

#define VOCAB   256u /* the most */
#define N_TOKEN 40u

static struct q_err e;

struct writer {
    struct buf header, data;
};

static void add(struct writer *w, const char *name, const char *shape, const void *data, size_t n)
{
    buf_printf(&w->header,
               "%c\"%s\": {\"dtype\": \"BF16\", \"shape\": %s, \"data_offsets\": [%zu, %zu]}",
               w->header.len ? ',' : '{', name, shape, w->data.len, w->data.len + n);
    buf_add(&w->data, data, n);
}

static void shape_text(char out[64], const struct tensor *t)
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->n_dim; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%c%llu", i ? ',' : '[',
                              (unsigned long long)t->shape[i]);
    snprintf(out + n, 64 - n, "]");
}

static const struct tensor *expert(const struct tensor_set *s, const char *before, uint32_t i,
                                   const char *what)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%u.%s.weight", before, i, what);
    return tensor_find(s, name);
}

/* One tensor for all experts: of each gate and then up, and down. `before`: "model.layers.1…" */
static void add_stacked(struct writer *w, const struct tensor_set *s, const char *before)
{
    struct buf gate_up = BUF_INIT, down = BUF_INIT;
    char name[256], shape[64];
    uint32_t n = 0;
    uint64_t width = 0, hidden = 0;
    for (const struct tensor *t; (t = expert(s, before, n, "gate_proj")); n++) {
        const struct tensor *up = expert(s, before, n, "up_proj");
        const struct tensor *its = expert(s, before, n, "down_proj");
        buf_add(&gate_up, t->data, t->n_bytes);
        buf_add(&gate_up, up->data, up->n_bytes);
        buf_add(&down, its->data, its->n_bytes);
        width = t->shape[0];
        hidden = t->shape[1];
    }
    if (!n)
        return;
    snprintf(name, sizeof name, "%s.gate_up_proj", before);
    snprintf(shape, sizeof shape, "[%u,%llu,%llu]", n, 2 * (unsigned long long)width,
             (unsigned long long)hidden);
    add(w, name, shape, gate_up.data, gate_up.len);
    snprintf(name, sizeof name, "%s.down_proj", before);
    snprintf(shape, sizeof shape, "[%u,%llu,%llu]", n, (unsigned long long)hidden,
             (unsigned long long)width);
    add(w, name, shape, down.data, down.len);
    buf_release(&gate_up);
    buf_release(&down);
}

/* Columns first … first + n - 1 of an expert's [rows, columns], as rows. */
static void add_turned(struct writer *w, const char *name, const struct tensor *t,
                       const uint64_t range[3])
{
    const uint64_t rows = t->shape[1], columns = t->shape[2];
    const uint16_t *from = (const uint16_t *)t->data + range[0] * rows * columns;
    struct buf turned = BUF_INIT;
    char shape[64];
    for (uint64_t c = range[1]; c < range[1] + range[2]; c++)
        for (uint64_t r = 0; r < rows; r++)
            buf_add(&turned, (const char *)&from[r * columns + c], sizeof *from);
    snprintf(shape, sizeof shape, "[%llu,%llu]", (unsigned long long)range[2],
             (unsigned long long)rows);
    add(w, name, shape, turned.data, turned.len);
    buf_release(&turned);
}

/* A tensor for each expert of one that has all of a layer, inputs as rows: Llama 4's. */
static void add_apart(struct writer *w, const struct tensor *t, bool is_down)
{
    const uint64_t columns = t->shape[2];
    const int n_before = (int)(strrchr(t->name, '.') - t->name);
    char name[160];
    for (uint64_t i = 0; i < t->shape[0]; i++) {
        for (uint64_t half = 0; half < (is_down ? 1u : 2u); half++) {
            const uint64_t n = is_down ? columns : columns / 2;
            const char *what = is_down ? "down" : half ? "up" : "gate";
            snprintf(name, sizeof name, "%.*s.%llu.%s_proj.weight", n_before, t->name,
                     (unsigned long long)i, what);
            add_turned(w, name, t, (const uint64_t[]){i, half * n, n});
        }
    }
}

static const char *other_name(char out[256], const char *name)
{
    static const struct {
        const char *part, *other;
    } names[] = {
        {"attention_layer_norm", "input_layernorm"},
        {"feedforward_layer_norm", "post_attention_layernorm"},
        {"attention_sink_bias", "sinks"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *at = strstr(name, names[i].part);
        if (!at)
            continue;
        snprintf(out, 256, "%.*s%s%s", (int)(at - name), name, names[i].other,
                 at + strlen(names[i].part));
        return out;
    }
    return name;
}

static void write_other_way(const struct folder *f, const char *dir)
{
    struct writer w = {BUF_INIT, BUF_INIT};
    struct buf file = BUF_INIT;
    struct tensor_set *s;
    char shape[64], before[64], name[256];
    assert_ok(tensor_set_open(&s, dir, &e), &e);
    for (uint32_t i = 0; i < tensor_count(s); i++) {
        const struct tensor *t = tensor_at(s, i);
        const bool is_down = strstr(t->name, ".experts.down_proj");
        shape_text(shape, t);
        if (is_down || strstr(t->name, ".experts.gate_up_proj"))
            add_apart(&w, t, is_down);
        else if (!strstr(t->name, ".experts."))
            add(&w, other_name(name, t->name), shape, t->data, t->n_bytes);
    }
    for (uint32_t layer = 0; layer < 8; layer++) {
        snprintf(before, sizeof before, "model.layers.%u.mlp.experts", layer);
        add_stacked(&w, s, before);
    }
    tensor_set_free(s);
    buf_add_char(&w.header, '}');
    const uint64_t n_header = w.header.len;
    buf_add(&file, (const char *)&n_header, sizeof n_header);
    buf_add(&file, w.header.data, w.header.len);
    buf_add(&file, w.data.data, w.data.len);
    folder_write(f, "model.safetensors", file.data, file.len);
    folder_copy(f, dir, "config.json");
    buf_release(&w.header);
    buf_release(&w.data);
    buf_release(&file);
}

static void logits_of(float *logits, const char *dir)
{
    const struct runner_options o = {.dir = dir, .n_thread = 2, .caps = kern_caps_machine()};
    uint32_t ids[N_TOKEN];
    struct runner r;
    assert_ok(runner_open(&r, &o, &e), &e);
    const uint32_t vocab = model_shape(r.model)->vocab_size;
    assert_in_range(vocab, 1, VOCAB);
    for (uint32_t i = 0; i < N_TOKEN; i++)
        ids[i] = (i * 37 + 11) % vocab;
    run_prompt(&r, ids, N_TOKEN, N_TOKEN, logits);
    runner_close(&r);
}

static void test_same_bits(void **state)
{
    static float one[N_TOKEN * VOCAB], other[N_TOKEN * VOCAB];
    char dir[PATH_MAX];
    struct folder f;
    snprintf(dir, sizeof dir, GOLDEN_DIR "/%s", (const char *)*state);
    folder_init(&f);
    write_other_way(&f, dir);
    logits_of(one, dir);
    logits_of(other, f.path);
    assert_memory_equal(one, other, sizeof one);
    folder_release(&f);
}

int main(void)
{
    static const char *const models[] = {"glm4_moe", "ernie4_5_moe",  "flex_olmo",
                                         "llama4",   "mimo_v2_flash", "olmo_hybrid"};
    struct CMUnitTest tests[sizeof models / sizeof *models];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        tests[i] = (struct CMUnitTest){models[i], test_same_bits, NULL, NULL,
                                       (void *)(uintptr_t)models[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
