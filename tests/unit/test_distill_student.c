/* SPDX-License-Identifier: Apache-2.0 */
/* A student's passes over the models of the goldens, all of them: the folder is listed, and a model
 * is either refused, with the message in `refusals`, or its residual stream is compared with the
 * executor that serves it, its gradients with differences of the loss, tensor-parallel ranks with
 * one. Some also: the same bits for any threads,
 * stages, micro batches under way and with recomputation. */
#include <dirent.h>
#include "common/buf.h"
#include "common/mem.h"
#include "engine/distill/train_program.h"
#include "engine/model/forward/program_text.h"
#include "folder.h"
#include "golden.h"
#include "rounds.h"
#include "student_ranks.h"

#define MODELS_MAX 192u

static char models[MODELS_MAX][64]; /* accepted as students, in the order of their names */
static size_t n_model;

/* Folders that are no students. */
static const struct refusal {
    const char *name, *student;
} refusals[] = {
    {"apertus", "has no gradient: no support for xIELU"},
    {"baichuan2-13b", "a head whose rows have the length 1 is no student yet"},
    {"gemma3-vision", "the text model of another model is no student yet"},
    {"minicpm3", "operation 5 (store of layer 0) has no gradient: no support for latent attention"},
    {"ministral3", "has no gradient: no support for a multiplier of q by its position"},
    {"mistral3-vision", "has no gradient: no support for a multiplier of q by its position"},
    {"qwen2_5-vision", "the text model of another model is no student yet"},
    {"qwen3-vision", "the text model of another model is no student yet"},
    {"gemma3n", "has no gradient"},
    {"gemma3n-two", "has no gradient"},
    {"gemma4", "has no gradient"},
    {"gemma4-dense", "has no gradient"},
    {"gemma4-moe", "has no gradient"},
    {"gemma4_unified", "has no gradient"},
    {"dots1", "has no gradient: only dense families are supported"},
    {"ernie4_5_moe", "has no gradient: only dense families are supported"},
    {"flex_olmo", "has no gradient: only dense families are supported"},
    {"glm4_moe", "has no gradient: only dense families are supported"},
    {"glm4_moe_lite", "(store of layer 0) has no gradient: no support for latent attention"},
    {"granitemoeshared", "has no gradient: only dense families are supported"},
    {"hunyuan_v1_moe", "has no gradient: only dense families are supported"},
    {"mistral4", "(store of layer 0) has no gradient: no support for latent attention"},
    {"kimi_k2", "(store of layer 0) has no gradient: no support for latent attention"},
    {"bamba", "has no gradient"},
    {"falcon_h1", "has no gradient"},
    {"falcon_h1-norm", "has no gradient"},
    {"falcon_mamba", "has no gradient"},
    {"granitemoehybrid", "has no gradient"},
    {"granitemoehybrid-dense", "has no gradient"},
    {"jamba", "has no gradient"},
    {"mamba", "has no gradient"},
    {"mamba2", "has no gradient"},
    {"mamba2-bias", "has no gradient"},
    {"nemotron_h", "has no gradient"},
    {"nemotron_h-moe", "has no gradient"},
    {"nemotron_h-latent", "has no gradient"},
    {"minimax", "has no gradient"},
    {"olmo_hybrid", "has no gradient"},
    {"olmo_hybrid-rope", "has no gradient"},
    {"lfm2", "has no gradient"},
    {"lfm2_moe", "has no gradient"},
    {"qwen3_5", "has no gradient"},
    {"qwen3_5_moe", "has no gradient"},
    {"lfm2-bias", "has no gradient"},
    {"llama4", "has no gradient"},
    {"mimo_v2_flash", "no support for heads of another size or number in some layers"},
    {"minimax_m2", "has no gradient: only dense families are supported"},
    {"cohere2_moe", "has no gradient: only dense families are supported"},
    {"cohere2_moe-sigmoid", "has no gradient: only dense families are supported"},
    {"afmoe", "has no gradient: no support for a gate of attention's output"},
    {"exaone_moe", "has no gradient: only dense families are supported"},
    {"granite_swa", "has no gradient: no support for attention sinks"},
    {"granitemoe_swa", "has no gradient"},
    {"hy_v3", "has no gradient: only dense families are supported"},
    {"mellum", "has no gradient: only dense families are supported"},
    {"solar_open", "has no gradient: only dense families are supported"},
    {"dbrx", "has no gradient: only dense families are supported"},
    {"phimoe", "has no gradient: only dense families are supported"},
    {"qwen3_next", "has no gradient"},
    {"youtu", "operation 5 (store of layer 0) has no gradient: no support for latent attention"},
    {"deepseek_v2",
     "operation 5 (store of layer 0) has no gradient: no support for latent attention"},
    {"deepseek_v2-group",
     "operation 5 (store of layer 0) has no gradient: no support for latent attention"},
    {"deepseek_v3",
     "operation 5 (store of layer 0) has no gradient: no support for latent attention"},
    {"gpt_oss", "has no gradient: no support for attention sinks"},
    {"gpt_oss-mxfp4", "has no gradient: no support for attention sinks"},
    {"granitemoe", "has no gradient: only dense families are supported"},
    {"llama-gptq",
     "model.layers.0.self_attn.q_proj.qweight is quantized; expected F32, F16 or BF16"},
    {"llama-gptq-act8",
     "model.layers.0.self_attn.q_proj.qweight is quantized; expected F32, F16 or BF16"},
    {"llama-torchao-int4", "is quantized; expected F32, F16 or BF16"},
    {"llama-torchao-int8-int4", "is quantized; expected F32, F16 or BF16"},
    {"mixtral", "operation 10 (route of layer 0) has no gradient: only dense families"},
    {"olmoe", "operation 12 (route of layer 0) has no gradient: only dense families"},
    {"olmoe-clip", "operation 13 (route of layer 0) has no gradient: only dense families"},
    {"opt-bare", "has no gradient: no support for a stream without a norm at its end"},
    {"opt-post", "has no gradient: no support for an embedding of other columns than the stream"},
    {"qwen2-awq",
     "model.layers.0.self_attn.q_proj.qweight is quantized; expected F32, F16 or BF16"},
    {"qwen2_moe", "operation 13 (route of layer 0) has no gradient: only dense families"},
    {"qwen3_moe", "operation 26 (route of layer 1) has no gradient: only dense families"},
};
#define N_REFUSAL (sizeof refusals / sizeof *refusals)

static const struct refusal *refusal_of(const char *name)
{
    for (size_t i = 0; i < N_REFUSAL; i++)
        if (strcmp(refusals[i].name, name) == 0)
            return &refusals[i];
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int list_models(void **state)
{
    DIR *d = opendir(GOLDEN_DIR);
    size_t n_refused = 0;
    (void)state;
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));) {
        if (strchr(x->d_name, '.')) /* and what writes them */
            continue;
        if (refusal_of(x->d_name)) {
            n_refused++;
            continue;
        }
        assert_true(n_model < MODELS_MAX && strlen(x->d_name) < sizeof models[0]);
        snprintf(models[n_model++], sizeof models[0], "%s", x->d_name);
    }
    closedir(d);
    qsort(models, n_model, sizeof models[0], by_name);
    assert_int_equal(n_refused, N_REFUSAL); /* each of them is there */
    assert_true(n_model >= 33);
    return 0;
}

static const char *dir_of(const char *name)
{
    static char dir[4 * PATH_MAX];
    snprintf(dir, sizeof dir, GOLDEN_DIR "/%s", name);
    return dir;
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)b[i] * b[i];
    }
    return sqrt(sum / (all ? all : 1));
}

/* ---- the lists of a layer ---- */

static struct program_form form_f32(const void *ctx, enum program_weight w, uint32_t layer)
{
    (void)ctx;
    (void)w;
    (void)layer;
    return (struct program_form){.input = DT_F32};
}

static void print_list(struct buf *out, const struct train_list *list)
{
    static const char *const kinds[] = {
        [TRAIN_RUN] = "",
        [TRAIN_KEEP] = "keep ",
        [TRAIN_SCALE] = "scale ",
        [TRAIN_GRAD] = "grad ",
    };
    for (uint32_t i = 0; i < list->n; i++) {
        const struct train_step *s = &list->steps[i];
        buf_printf(out, "%s%s%s%s", i ? ", " : "", kinds[s->kind],
                   s->kind == TRAIN_KEEP ? "" : program_kind_name(s->op->kind),
                   s->accumulate ? " +=" : "");
    }
}

/* What a layer's forward pass keeps: numbers a row. */
static uint32_t kept_numbers(const struct train_layer *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_value; i++)
        n += l->values[i].place == TRAIN_KEPT ? l->values[i].n_col : 0;
    return n;
}

static void check_lists(const char *name, const char *forward, const char *backward, uint32_t kept)
{
    static struct model_config c;
    static struct train_layer l;
    struct layer_program p = LAYER_PROGRAM_INIT;
    const struct program_forms forms = {form_f32, NULL, DT_F32, 0};
    const struct arch *arch;
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(model_config_load(&c, NULL, dir_of(name), &e), &e);
    assert_ok(arch_find(&arch, c.architecture, &e), &e);
    assert_ok(program_compile(&p, arch, &c, &forms, &e), &e);
    assert_ok(train_layer_make(&l, &p, 1, &e), &e);
    print_list(&text, &l.forward);
    assert_string_equal(text.data, forward);
    buf_release(&text);
    text = (struct buf)BUF_INIT;
    print_list(&text, &l.backward);
    assert_string_equal(text.data, backward);
    buf_release(&text);
    assert_int_equal(kept_numbers(&l), kept);
    program_release(&p);
}

/* Llama keeps x in front of both norms, q k v, attention's output and its sums, gate and up;
 * Gemma 2 also what its norms behind the branches read; Qwen3 q and k in front of their norms. */
static void test_lists(void **state)
{
    (void)state;
    check_lists("llama",
                "keep , norm, matmul, rope, attention, matmul, add, keep , norm, matmul, activate, "
                "matmul, add",
                "activate, grad matmul, grad activate, norm, grad matmul, grad norm +=, "
                "grad matmul, grad attention, grad rope, norm, grad matmul, grad norm +=",
                64 + 128 + 64 + 4 + 64 + 192);
    check_lists("qwen3",
                "keep , norm, matmul, keep , norm, keep , norm, rope, attention, matmul, add, "
                "keep , norm, matmul, activate, matmul, add",
                "activate, grad matmul, grad activate, norm, grad matmul, grad norm +=, "
                "grad matmul, grad attention, grad rope, grad norm, keep , grad norm, keep , "
                "norm, grad matmul, grad norm +=",
                64 + 256 + 192 + 128 + 4 + 64 + 192);
    check_lists("gemma2",
                "keep , norm, matmul, rope, attention, matmul, keep , norm, add, keep , norm, "
                "matmul, activate, matmul, keep , norm, add",
                "grad norm, activate, grad matmul, grad activate, norm, grad matmul, "
                "grad norm +=, grad norm, grad matmul, grad attention, grad rope, norm, "
                "grad matmul, grad norm +=",
                64 + 192 + 96 + 4 + 64 + 64 + 192 + 64);
}

/* ---- forward ---- */

/* The stream behind the first layer, as the executor has it at the second one's begin. */
static void check_stream(const char *name)
{
    static float logits[TEST_ROWS_MAX * 2048], mine[TEST_ROWS_MAX * 256], states[8][256 * 256];
    static struct test_batch t;
    struct q_err e = Q_ERR_INIT;
    struct runner r;
    struct test_student s;
    float *tap[CONFIG_LAYERS_MAX + 1] = {0};
    const float *x;
    const struct runner_options o = {
        .dir = dir_of(name),
        .n_thread = 1,
        .caps = kern_caps_machine(),
        .dtype = DT_F32,
        .max_model_len = 160,
    };
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        tap[i] = states[i];
    assert_ok(runner_open(&r, &o, &e), &e);
    assert_ok(test_student_open(&s, &(struct test_options){.dir = dir_of(name), .n_cut = 1}, &e),
              &e);
    assert_true(s.n_layer < sizeof states / sizeof *states);
    test_batch_fill(&t, (uint32_t[]){130, 0}, model_shape(r.model)->vocab_size, 7);
    const size_t n = (size_t)t.b.n_row * s.hidden;
    r.tap = tap;
    run_prompt(&r, t.ids, t.b.n_row, t.b.n_row, logits);
    assert_ok(student_forward(s.s, &(struct student_pass){0, 0, &t.b}, NULL, &x, &e), &e);
    double d = distance(x, states[1], n);
    if (!(d < 1e-6) && s.n_layer > 1)
        fail_msg("%s: behind layer 0 the stream differs by %g", name, d);
    for (uint32_t i = 1; i < s.n_stage; i++)
        assert_ok(student_forward(s.s, &(struct student_pass){i, 0, &t.b}, x, &x, &e), &e);
    /* behind the last layer the executor hands out the final norm of it */
    struct head_weights head;
    assert_true(student_head(s.s, &head));
    const struct rms_norm_args norm = {
        .y = mine,
        .x = x,
        .w = head.norm,
        .n_row = t.b.n_row,
        .n_col = s.hidden,
        .x_stride = s.hidden,
        .y_stride = s.hidden,
        .eps = head.norm_eps,
    };
    const struct layer_norm_args layer = {
        .y = mine,
        .x = x,
        .w = head.norm,
        .b = head.norm_bias,
        .n_row = t.b.n_row,
        .n_col = s.hidden,
        .x_stride = s.hidden,
        .y_stride = s.hidden,
        .eps = head.norm_eps,
    };
    if (head.is_layer_norm)
        s.kern.layer_norm(&layer, &(struct kern_exec){.nth = 1});
    else
        s.kern.rms_norm(&norm, &(struct kern_exec){.nth = 1});
    d = distance(mine, states[s.n_layer], n);
    if (!(d < 1e-5))
        fail_msg("%s: behind the last layer the stream differs by %g", name, d);
    test_student_close(&s);
    runner_close(&r);
}

static void test_streams(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_model; i++)
        check_stream(models[i]);
}

/* ---- gradients against differences ---- */

static double loss_at(struct test_student *s, const struct micro_batch *b)
{
    static float y[TEST_ROWS_MAX * 256];
    student_params_changed(s->s);
    test_forward(s, b, 0, y);
    return test_loss(y, (size_t)b->n_row * s->hidden);
}

struct direction { /* in which a tensor's numbers are moved */
    float *w;
    const float *d;
    size_t n;
};

static double loss_moved(struct test_student *s, const struct micro_batch *b,
                         const struct direction *d, double h, float *saved)
{
    memcpy(saved, d->w, d->n * sizeof *saved);
    for (size_t i = 0; i < d->n; i++)
        d->w[i] = (float)(d->w[i] + h * d->d[i]);
    const double loss = loss_at(s, b);
    memcpy(d->w, saved, d->n * sizeof *saved);
    return loss;
}

/* The derivative in a direction by central differences of two widths, extrapolated to 0 (error of
 * the fourth order). */
static double slope(struct test_student *s, const struct micro_batch *b, const struct direction *d,
                    double h, float *saved)
{
    double by[2];
    for (int i = 0; i < 2; i++) {
        const double at = i ? h / 2 : h;
        by[i] = (loss_moved(s, b, d, at, saved) - loss_moved(s, b, d, -at, saved)) / (2 * at);
    }
    return (4 * by[1] - by[0]) / 3;
}

static double norm_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

#define NO_GRADIENT 1e-5 /* of that of the parameter */

/* Each tensor is moved along its gradient, where the loss changes most, and along random signs of
 * each of its parts of 61 columns, where a wrong element counts as much as any other. */
static void check_tensor(struct test_student *s, const struct micro_batch *b, const char *model,
                         const struct param *p, const struct param_tensor *t)
{
    const struct params *all = student_params(s->s);
    const size_t n = (size_t)t->n_row * t->n_col, at = p->at + (size_t)t->row * p->n_col;
    float *d = malloc(n * sizeof *d), *saved = malloc(n * sizeof *saved);
    const float *g = all->g + at;
    const double size = norm_of(all->w + at, n), g_norm = norm_of(g, n);
    /* scores that all have the same number added, as a bias of keys without rope, give the same
     * softmax: the gradient is the rounding of 0 */
    if (g_norm < NO_GRADIENT * norm_of(all->g + p->at, (size_t)p->n_row * p->n_col)) {
        free(d);
        free(saved);
        return;
    }
    uint64_t seed = p->at + 3;
    for (int round = 0; round < ROUNDS(3, 1); round++) {
        double want = 0;
        for (size_t i = 0; i < n; i++) {
            const float sign = test_random(&seed) & 1 ? 1 : -1;
            d[i] = round == 0 ? g[i] : round == 1 ? sign * fabsf(g[i]) : g[i] * (float)(i % 3);
            want += (double)d[i] * g[i];
        }
        const double d_norm = norm_of(d, n);
        const struct direction to = {all->w + at, d, n};
        const double h = 2e-3 * (size > 1 ? size : 1) / (d_norm > 0 ? d_norm : 1);
        /* the first width that agrees: rounding of the loss is too much for narrow ones where it
         * hardly changes, its curvature for wide ones */
        static const double widths[] = {1, 4, 16, 1.0 / 4, 1.0 / 16, 1.0 / 64};
        double got = 0;
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            if (fabs((got = slope(s, b, &to, h * widths[i], saved)) - want) <=
                2e-3 * d_norm * g_norm)
                break;
        if (!(fabs(got - want) <= 2e-3 * d_norm * g_norm))
            fail_msg("%s: %s: the slope in direction %d is %.9g, by the gradient %.9g (|g| %g)",
                     model, t->name, round, got, want, g_norm);
    }
    free(d);
    free(saved);
}

static void check_gradients(const char *name, uint32_t isa_set, uint32_t isa)
{
    static struct test_batch t;
    struct test_student s;
    struct q_err e = Q_ERR_INIT;
    const struct test_options o = {
        .dir = dir_of(name),
        .has_no_head = true,
        .isa_set = isa_set,
        .isa = isa,
    };
    assert_ok(test_student_open(&s, &o, &e), &e);
    test_batch_fill(&t, (uint32_t[]){37, 1, 60, 0}, student_config(s.s)->vocab_size, 11);
    params_zero_gradients(student_params(s.s));
    test_step(&s, &t.b, 0);
    const struct params *p = student_params(s.s);
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->all[i].n_tensor; k++)
            check_tensor(&s, &t.b, name, &p->all[i], &p->all[i].tensors[k]);
    test_student_close(&s);
}

static void test_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_model; i++)
        check_gradients(models[i], 0, 0);
}

/* ---- the same bits ---- */

struct result { /* of two micro batches, the second's forward pass before the first's backward */
    double loss;
    float *g;
    size_t n;
};

static struct result run_two(const struct test_options *o)
{
    static struct test_batch t[2];
    static float y[2][TEST_ROWS_MAX * 256], dy[TEST_ROWS_MAX * 256];
    struct test_student s;
    struct q_err e = Q_ERR_INIT;
    struct result r = {0};
    assert_ok(test_student_open(&s, o, &e), &e);
    const uint32_t vocab = student_config(s.s)->vocab_size, n_slot = o->n_slot ? o->n_slot : 1;
    test_batch_fill(&t[0], (uint32_t[]){300, 1, 239, 50, 0}, vocab, 3);
    test_batch_fill(&t[1], (uint32_t[]){5, 64, 0}, vocab, 4);
    params_zero_gradients(student_params(s.s));
    if (n_slot > 1)
        for (uint32_t i = 0; i < 2; i++)
            test_forward(&s, &t[i].b, 1 - i, y[i]);
    for (uint32_t i = 0; i < 2; i++) {
        const size_t n = (size_t)t[i].b.n_row * s.hidden;
        if (n_slot == 1)
            test_forward(&s, &t[i].b, 0, y[i]);
        test_loss_grad(dy, y[i], n);
        test_backward(&s, &t[i].b, n_slot == 1 ? 0 : 1 - i, dy);
        r.loss += test_loss(y[i], n);
    }
    r.n = student_params(s.s)->n_element;
    r.g = malloc(r.n * sizeof *r.g);
    memcpy(r.g, student_params(s.s)->g, r.n * sizeof *r.g);
    test_student_close(&s);
    return r;
}

static void check_same(const char *name, const struct result *a, const struct test_options *other)
{
    struct result b = run_two(other);
    assert_int_equal(a->n, b.n);
    if (a->loss != b.loss || memcmp(a->g, b.g, b.n * sizeof *b.g) != 0)
        fail_msg("%s: other bits with %u threads, %u layers a stage, %u slots, recompute %d", name,
                 other->n_thread, other->n_cut, other->n_slot, other->recompute);
    free(b.g);
}

static void test_bits(void **state)
{
    static const char *const some[] = {"llama",   "qwen3",   "gemma2",           "gemma3",
                                       "granite", "exaone4", "cohere2",          "starcoder2",
                                       "bloom",   "gpt2",    "gpt_neox",         "olmo",
                                       "cohere",  "opt",     "stablelm-parallel"};
    static const struct test_options others[] = {
        {.n_thread = 2},
        {.n_thread = 3, .n_slot = 2},
        {.n_cut = 1, .n_slot = 2},
        {.recompute = true},
        {.recompute = true, .n_slot = 2, .n_thread = 2, .n_cut = 1},
    };
    enum { N_OTHER = sizeof others / sizeof *others };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof some / sizeof *some; i++) {
        const char *name = some[i / 2];
        struct test_options base = {.dir = dir_of(name), .compute = i % 2 ? DT_BF16 : DT_F32};
        struct result want = run_two(&base);
        /* under a sanitizer one of them, in turn */
        for (size_t k = i % ROUNDS(1, N_OTHER); k < N_OTHER; k += ROUNDS(1, N_OTHER)) {
            struct test_options other = others[k];
            other.dir = base.dir;
            other.compute = base.compute;
            check_same(name, &want, &other);
        }
        free(want.g);
    }
}

/* ---- other arithmetic ---- */

static double cosine(const float *a, const float *b, size_t n)
{
    double product = 0;
    for (size_t i = 0; i < n; i++)
        product += (double)a[i] * b[i];
    return product / (norm_of(a, n) * norm_of(b, n) + 1e-300);
}

/* The plain kernels, AVX2 and AVX-512 order sums alike; exponentials differ in their last bits. */
static void test_instruction_sets(void **state)
{
    static const uint32_t sets[] = {CAP_NONE, CAP_AVX2, CAP_AVX2 | CAP_AVX512};
    static const char *const some[] = {"gemma2", "qwen3", "starcoder2", "bloom"};
    (void)state;
    for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
        struct test_options o = {.dir = dir_of(some[k])};
        struct result mine = run_two(&o);
        o.isa_set = 1;
        for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
            o.isa = sets[i] & kern_caps_machine();
            struct result other = run_two(&o);
            const double d = distance(other.g, mine.g, mine.n);
            if (!(d < 2e-5) || !(fabs(other.loss / mine.loss - 1) < 1e-5))
                fail_msg("%s: gradients differ by %g between instruction sets", o.dir, d);
            free(other.g);
        }
        free(mine.g);
    }
}

static void test_bf16(void **state)
{
    static const char *const some[] = {"llama",  "qwen2",   "qwen3", "mistral", "phi3",
                                       "gemma3", "cohere2", "bloom", "gpt2"};
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct test_options o = {.dir = dir_of(some[i])};
        struct result mine = run_two(&o);
        o.compute = DT_BF16;
        struct result halves = run_two(&o);
        const double c = cosine(halves.g, mine.g, mine.n), d = distance(halves.g, mine.g, mine.n);
        if (!(c > 0.99) || d == 0)
            fail_msg("%s: the gradients of bf16 and f32 have a cosine of %g, distance %g", some[i],
                     c, d);
        free(mine.g);
        free(halves.g);
    }
}

/* ---- tensor parallelism ---- */

struct rank {
    struct test_rank at;
    struct test_options o;
    struct test_student s;
    struct test_batch t;
    float *y, *dy;
    double loss;
};

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct q_err e = Q_ERR_INIT;
    r->o.group = test_group_of(&r->at);
    assert_ok(test_student_open(&r->s, &r->o, &e), &e);
    test_batch_fill(&r->t, (uint32_t[]){70, 1, 29, 0}, student_config(r->s.s)->vocab_size, 5);
    const size_t n = (size_t)r->t.b.n_row * r->s.hidden;
    r->y = malloc(2 * n * sizeof *r->y);
    r->dy = r->y + n;
    params_zero_gradients(student_params(r->s.s));
    test_forward(&r->s, &r->t.b, 0, r->y);
    test_loss_grad(r->dy, r->y, n);
    test_backward(&r->s, &r->t.b, 0, r->dy);
    r->loss = test_loss(r->y, n);
    return NULL;
}

static void run_ranks(struct rank *ranks, const struct test_options *o, uint32_t size)
{
    static struct test_meeting m;
    pthread_t threads[TEST_RANKS_MAX];
    m.size = size;
    pthread_barrier_init(&m.barrier, NULL, size);
    for (uint32_t i = 0; i < size; i++)
        ranks[i] = (struct rank){.at = {&m, i}, .o = *o};
    for (uint32_t i = 1; i < size; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    run_rank(&ranks[0]);
    for (uint32_t i = 1; i < size; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&m.barrier);
}

static void check_whole(const struct param *p, const struct param_tensor *t, const struct rank *one,
                        const struct rank *ranks, uint32_t size)
{
    const size_t n = (size_t)t->all_rows * t->all_cols;
    const float *g = student_params(one->s.s)->g + p->at;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    test_put(want, student_params(one->s.s), t->name);
    for (uint32_t k = 0; k < size; k++)
        test_put(got, student_params(ranks[k].s.s), t->name);
    const double d = distance(got, want, n);
    const bool none = norm_of(want, n) < NO_GRADIENT * norm_of(g, (size_t)p->n_row * p->n_col);
    if (!none && !(d < 3e-5))
        fail_msg("%s: %u ranks: the gradient of %s differs by %g", one->o.dir, size, t->name, d);
    free(want);
    free(got);
}

static void check_ranks(const char *name, uint32_t size, bool recompute)
{
    static struct rank one[1], ranks[TEST_RANKS_MAX];
    const struct test_options o = {
        .dir = dir_of(name),
        .has_no_head = true,
        .n_cut = 1,
        .recompute = recompute,
    };
    run_ranks(one, &(struct test_options){.dir = o.dir, .has_no_head = true}, 1);
    run_ranks(ranks, &o, size);
    if (!(fabs(ranks[0].loss / one->loss - 1) < 1e-5))
        fail_msg("%s: %u ranks have the loss %.9g, one has %.9g", name, size, ranks[0].loss,
                 one->loss);
    for (uint32_t k = 1; k < size; k++) /* sums have the same bits on all ranks */
        assert_true(ranks[k].loss == ranks[0].loss);
    const struct params *p = student_params(one->s.s);
    uint64_t n_param = 0;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->all[i].n_tensor; k++)
            check_whole(&p->all[i], &p->all[i].tensors[k], one, ranks, size);
    for (uint32_t k = 0; k < size; k++) {
        n_param += student_params(ranks[k].s.s)->n_param;
        free(ranks[k].y);
        test_student_close(&ranks[k].s);
    }
    assert_int_equal(n_param, p->n_param);
    free(one->y);
    test_student_close(&one->s);
}

static void check_refused(const char *name, struct test_options o, enum q_code code,
                          const char *part)
{
    struct test_student s;
    struct q_err e = Q_ERR_INIT;
    o.dir = dir_of(name);
    assert_fails(test_student_open(&s, &o, &e), code, part, &e);
    test_student_close(&s);
}

/* Models that so many ranks cannot divide. */
static const struct {
    const char *name;
    uint32_t size;
    enum q_code code;
    const char *message;
} undivided[] = {
    {"olmo2", 2, Q_UNSUPPORTED, "a norm over all heads cannot be divided among ranks"},
    {"olmo2", 4, Q_UNSUPPORTED, "a norm over all heads cannot be divided among ranks"},
    {"olmo3", 2, Q_UNSUPPORTED, "a norm over all heads cannot be divided among ranks"},
    {"olmo3", 4, Q_UNSUPPORTED, "a norm over all heads cannot be divided among ranks"},
    {"mpt", 4, Q_INVALID,
     "--tensor-parallel-size 4 does not divide the student's num_attention_heads of 6"},
    {"qwen2", 4, Q_INVALID,
     "--tensor-parallel-size 4 does not divide the student's num_attention_heads of 6"},
};

/* Is it one of them, and refused as such? */
static bool is_undivided(const char *name, uint32_t size)
{
    struct test_meeting m = {.size = size};
    struct test_rank r = {&m, 0};
    const struct test_options o = {.group = test_group_of(&r)};
    for (size_t i = 0; i < sizeof undivided / sizeof *undivided; i++)
        if (strcmp(undivided[i].name, name) == 0 && undivided[i].size == size) {
            check_refused(name, o, undivided[i].code, undivided[i].message);
            return true;
        }
    return false;
}

/* Four ranks share two heads of K and V. */
static void test_tensor_parallel(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_model; i++)
        for (uint32_t size = 2; size <= 4; size += 2)
            if (!is_undivided(models[i], size))
                check_ranks(models[i], size, i % 2);
}

/* ---- what is refused ---- */

static void test_refused(void **state)
{
    struct test_meeting m = {.size = 3};
    struct test_rank r = {&m, 0};
    const struct test_options three = {.group = test_group_of(&r)};
    (void)state;
    for (size_t i = 0; i < N_REFUSAL; i++) {
        const struct refusal *x = &refusals[i];
        check_refused(x->name, (struct test_options){0}, Q_UNSUPPORTED, x->student);
    }
    check_refused("llama", three, Q_INVALID,
                  "--tensor-parallel-size 3 does not divide the student's num_attention_heads");
    check_refused("llama", (struct test_options){.compute = DT_F16}, Q_INVALID,
                  "float32 or bfloat16");
    check_refused("nowhere", (struct test_options){0}, Q_NOT_FOUND, "nowhere");
}

/* ---- other folders ---- */

static void read_of(struct buf *out, const char *dir, const char *name)
{
    char path[2 * PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(path, sizeof path, dir, name, &e), &e);
    assert_ok(file_read(out, path, 1u << 24, &e), &e);
}

static void copy_file(const struct folder *f, const char *dir, const char *name)
{
    struct buf b = BUF_INIT;
    read_of(&b, dir, name);
    folder_write(f, name, b.data, b.len);
    buf_release(&b);
}

/* The file's tensors under names that have no "model." in front, as a model without a head has
 * them. The header keeps its length: spaces may stand behind it. */
static void write_bare(const struct folder *f, const char *dir)
{
    static const char prefix[] = "\"model.";
    size_t n_cut = 0;
    uint64_t n_header;
    struct buf b = BUF_INIT;
    copy_file(f, dir, "config.json");
    read_of(&b, dir, "model.safetensors");
    memcpy(&n_header, b.data, sizeof n_header);
    char *to = b.data + 8, *end = to + n_header;
    for (const char *from = to; from < end;) {
        *to++ = *from++;
        if (memcmp(from - 1, prefix, sizeof prefix - 1) != 0)
            continue;
        from += sizeof prefix - 2;
        n_cut++;
    }
    memset(to, ' ', (size_t)(end - to));
    assert_true(n_cut > 10);
    folder_write(f, "model.safetensors", b.data, b.len);
    buf_release(&b);
}

/* The same numbers, and in checkpoints the whole names. */
static void test_bare_names(void **state)
{
    struct folder f;
    struct q_err e = Q_ERR_INIT;
    struct test_student whole, bare;
    (void)state;
    folder_init(&f);
    write_bare(&f, dir_of("smollm3"));
    assert_ok(test_student_open(&bare, &(struct test_options){.dir = f.path}, &e), &e);
    assert_ok(test_student_open(&whole, &(struct test_options){.dir = dir_of("smollm3")}, &e), &e);
    const struct params *a = student_params(bare.s), *b = student_params(whole.s);
    assert_true(a->n == b->n && a->n_element == b->n_element);
    assert_memory_equal(a->w, b->w, a->n_element * sizeof *a->w);
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t k = 0; k < a->all[i].n_tensor; k++)
            assert_string_equal(a->all[i].tensors[k].name, b->all[i].tensors[k].name);
    test_student_close(&bare);
    test_student_close(&whole);
    folder_release(&f);
}

/* OLMo's norms have no tensors, and no parameters. */
static void test_norms_without_weight(void **state)
{
    struct test_student s;
    struct q_err e = Q_ERR_INIT;
    struct head_weights head;
    (void)state;
    assert_ok(test_student_open(&s, &(struct test_options){.dir = dir_of("olmo")}, &e), &e);
    const struct params *p = student_params(s.s);
    for (uint32_t i = 0; i < p->n; i++)
        assert_int_equal(p->all[i].n_tensor > 0 && p->all[i].decays, 1); /* matrices alone */
    assert_true(student_head(s.s, &head));
    assert_true(head.norm && head.norm[0] == 1 && !head.norm_grad && !head.norm_bias_grad);
    test_student_close(&s);
}

/* A norm's weight does not decay, however many dimensions it has. */
static void test_weights_of_heads_do_not_decay(void **state)
{
    static const char *const some[] = {"cohere", "stablelm-parallel"};
    struct test_student s;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        assert_ok(test_student_open(&s, &(struct test_options){.dir = dir_of(some[i])}, &e), &e);
        const struct param *q = params_find(student_params(s.s), PROGRAM_W_Q_NORM, 0);
        assert_true(q && !q->decays && q->n_row * q->n_col > student_config(s.s)->head_dim);
        test_student_close(&s);
    }
}

/* The n-th allocation of a load fails, for every n. */
static void test_no_memory(void **state)
{
    struct test_student s;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = Q_NO_MEMORY;
    int64_t n = 0;
    (void)state;
    for (; rc == Q_NO_MEMORY; n++) {
        mem_fail_after(n);
        rc = test_student_open(&s, &(struct test_options){.dir = dir_of("llama"), .n_cut = 1}, &e);
        mem_fail_after(-1);
        test_student_close(&s);
        q_err_reset(&e);
    }
    assert_int_equal(rc, Q_OK);
    assert_true(n > 10);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bare_names),
        cmocka_unit_test(test_norms_without_weight),
        cmocka_unit_test(test_weights_of_heads_do_not_decay),
        cmocka_unit_test(test_no_memory),
    };
    list_models(NULL);
    return check_run_part(tests, sizeof tests / sizeof *tests, argc, argv);
}
