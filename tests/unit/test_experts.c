/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts, beside their goldens (model_golden) and equal bits however they are fed
 * (model_bits): what is refused, dummy weights, reloads, the packed cache, and any number of
 * threads for few and for many rows. */
#include "checkpoint.h"
#include "common/log.h"
#include "golden.h"

#define MODEL  GOLDEN_DIR "/qwen3_moe"
#define VOCAB  512u
#define N_LONG 90u

static struct q_err e;
static struct kern_table kern;

/* ---- what is refused ---- */

/* config.json with `from` replaced by `to`. */
static void write_config(const struct folder *f, const char *from, const char *to)
{
    struct buf text = BUF_INIT, out = BUF_INIT;
    assert_ok(file_read(&text, MODEL "/config.json", 1 << 16, &e), &e);
    const char *at = strstr(buf_str(&text), from);
    assert_non_null(at);
    buf_printf(&out, "%.*s%s%s", (int)(at - buf_str(&text)), buf_str(&text), to, at + strlen(from));
    folder_write(f, "config.json", out.data, out.len);
    buf_release(&text);
    buf_release(&out);
}

static void what_does_not_fit_is_said(void **state)
{
    static const struct {
        const char *from, *to;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"\"num_experts\": 8", "\"num_experts\": 9", Q_MISMATCH,
         "model.layers.1.mlp.gate.weight has shape [8, 64], expected [9, 64] (num_experts, "
         "hidden_size)"},
        {"\"moe_intermediate_size\": 24", "\"moe_intermediate_size\": 32", Q_MISMATCH,
         "model.layers.1.mlp.experts.0.gate_proj.weight has shape [24, 64], expected [32, 64] "
         "(moe_intermediate_size, hidden_size)"},
        {"\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 3", Q_NOT_FOUND,
         "model.layers.1.mlp.gate_proj.weight is missing, expected shape [96, 64]"},
        {"\"mlp_only_layers\": [\n    0\n  ]", "\"mlp_only_layers\": []", Q_NOT_FOUND,
         "model.layers.0.mlp.gate.weight is missing, expected shape [8, 64]"},
        {"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9", Q_CORRUPT,
         "num_experts_per_tok is 9, expected at most num_experts (num_local_experts), 8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        struct model *m = NULL;
        folder_init(&f);
        folder_copy(&f, MODEL, "model.safetensors");
        write_config(&f, cases[i].from, cases[i].to);
        const struct model_options o = {.dir = f.path, .dtype = DT_F32, .kern = &kern};
        q_err_reset(&e);
        assert_fails(model_load(&m, &o, &e), cases[i].code, cases[i].part, &e);
        folder_release(&f);
    }
}

/* ---- the same bits ---- */

static float want[N_LONG * VOCAB], got[N_LONG * VOCAB];

static const struct way {
    enum dtype dtype;
    enum quantization quantization;
} ways[] = {
    {DT_F32, QUANTIZE_NOT},
    {DT_BF16, QUANTIZE_NOT},
    {DT_F32, QUANTIZE_INT8},
    {DT_F32, QUANTIZE_INT4},
};
#define N_WAY (sizeof ways / sizeof *ways)

static struct runner_options options_of(const struct way *way, const char *dir, uint32_t n_thread)
{
    return (struct runner_options){
        .dir = dir,
        .n_thread = n_thread,
        .caps = kern_caps_machine(),
        .dtype = way->dtype,
        .quantization = way->quantization,
    };
}

/* A long prompt at once, some rows, and one by one. */
static void logits_of(float *out, struct runner *r)
{
    uint32_t ids[N_LONG];
    uint64_t random = 11;
    struct run_seq q = {.tokens = ids, .n_prompt = N_LONG};
    for (uint32_t i = 0; i < N_LONG; i++)
        ids[i] = (uint32_t)(run_random(&random) % VOCAB);
    for (; q.n_done < N_LONG;) {
        q.n_next = q.n_done == 0 ? 60 : q.n_done < 72 ? 6 : 1;
        q.logits = out + (size_t)q.n_done * VOCAB;
        run_step(r, &q, 1);
    }
}

static void answer(float *out, const struct runner_options *o)
{
    struct runner r;
    assert_ok(runner_open(&r, o, &e), &e);
    logits_of(out, &r);
    runner_close(&r);
}

static void any_number_of_threads(void **state)
{
    static const uint32_t counts[] = {2, 5, 8};
    const struct way *way = *state;
    struct runner_options o = options_of(way, MODEL, 1);
    answer(want, &o);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        o.n_thread = counts[i];
        answer(got, &o);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void from_the_packed_cache(void **state)
{
    const struct way *way = *state;
    struct folder f;
    folder_init(&f);
    struct runner_options o = options_of(way, MODEL, 2);
    answer(want, &o);
    o.packed_cache = f.path;
    for (int again = 0; again < 2; again++) { /* written, then mapped */
        struct runner r;
        assert_ok(runner_open(&r, &o, &e), &e);
        assert_int_equal(model_shape(r.model)->weights_mapped, again);
        logits_of(got, &r);
        runner_close(&r);
        assert_memory_equal(got, want, sizeof want);
    }
    folder_release(&f);
}

/* Over the old weights where both lie alike, beside them where not. */
static void reloads(void **state)
{
    const struct way *way = *state;
    struct folder f;
    struct runner r;
    char dir[PATH_MAX];
    folder_init(&f);
    for (int as_bf16 = 0; as_bf16 < 2; as_bf16++) {
        const struct checkpoint c = {
            .from = MODEL,
            .factor = 1.25f,
            .as_bf16 = as_bf16,
            .name = as_bf16 ? "half" : "step",
        };
        checkpoint_write(&f, &c);
        assert_ok(path_join(dir, sizeof dir, f.path, c.name, &e), &e);
        struct runner_options o = options_of(way, dir, 2);
        answer(want, &o);
        o.dir = MODEL;
        assert_ok(runner_open(&r, &o, &e), &e);
        const struct model_options mo = {
            .dir = MODEL,
            .weights_dir = dir,
            .dtype = way->dtype,
            .kern = &r.kern,
            .team = r.team,
        };
        const uint64_t work = model_shape(r.model)->row_ops,
                       bytes = model_shape(r.model)->step_bytes;
        assert_ok(model_reload(r.model, &mo, &e), &e);
        assert_int_equal(model_shape(r.model)->row_ops, work);
        assert_true(as_bf16 || model_shape(r.model)->step_bytes == bytes);
        logits_of(got, &r);
        runner_close(&r);
        assert_memory_equal(got, want, sizeof want);
    }
    folder_release(&f);
}

static void other_experts_are_no_reload(void **state)
{
    struct folder f;
    struct model *m = NULL;
    (void)state;
    folder_init(&f);
    folder_copy(&f, MODEL, "model.safetensors");
    write_config(&f, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 3");
    struct model_options o = {.dir = MODEL, .dtype = DT_F32, .kern = &kern};
    assert_ok(model_load(&m, &o, &e), &e);
    o.weights_dir = f.path;
    assert_fails(model_reload(m, &o, &e), Q_MISMATCH, "has moe.n_used 3, the served model has 2",
                 &e);
    model_free(m);
    folder_release(&f);
}

/* ---- without files ---- */

static void dummy_weights(void **state)
{
    struct model *m = NULL;
    (void)state;
    for (size_t i = 0; i < N_WAY; i++) {
        const struct model_options o = {
            .dir = MODEL,
            .format = LOAD_DUMMY,
            .dtype = ways[i].dtype,
            .quantization = ways[i].quantization,
            .kern = &kern,
        };
        assert_ok(model_load(&m, &o, &e), &e);
        /* q, k, v, o; router and two experts, or the MLP; the logits */
        const struct model_shape *s = model_shape(m);
        assert_int_equal(s->n_param, 158624);
        assert_int_equal(s->row_ops, 2 * (2 * (64 * 192 + 64 * 96) + 3 * 64 * 96 + 8 * 64 +
                                          2 * (2 * 64 * 24 + 64 * 24)));
        model_free(m);
    }
}

int main(void)
{
    struct CMUnitTest tests[3 * N_WAY + 3];
    size_t n = 0;
    kern_table_cpu(&kern, kern_caps_machine());
    log_setup("test", LOG_ERROR, false);
    for (size_t i = 0; i < N_WAY; i++) {
        void *way = (void *)(uintptr_t)&ways[i];
        tests[n++] =
            (struct CMUnitTest){"any number of threads", any_number_of_threads, NULL, NULL, way};
        tests[n++] =
            (struct CMUnitTest){"from the packed cache", from_the_packed_cache, NULL, NULL, way};
        tests[n++] = (struct CMUnitTest){"reloads", reloads, NULL, NULL, way};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(what_does_not_fit_is_said);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(other_experts_are_no_reload);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(dummy_weights);
    return _cmocka_run_group_tests("experts", tests, n, NULL, NULL);
}
