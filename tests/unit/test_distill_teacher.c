/* SPDX-License-Identifier: Apache-2.0 */
/* A teacher, whole and in pipeline stages, gives the logits that the model gives each sequence
 * alone: the same bits, for several families, types and quantizations; micro batches one after
 * another leave nothing to the next; rows are asked for in any chunks. Over tensor-parallel ranks,
 * of any number: the same bits, for every model that is served and every way to pack it. */
#include "engine/distill/teacher.h"
#include <dirent.h>
#include "common/mem.h"
#include "golden.h"
#include "student_ranks.h"

#define VOCAB   512u
#define ROW_MAX 200u

static struct q_err e;

static const struct teacher_case {
    const char *model;
    enum dtype dtype;
    enum quantization quantization;
    bool dtype_auto;
} cases[] = {
    {"llama", DT_F32, QUANTIZE_NOT, false},
    {"llama", DT_BF16, QUANTIZE_NOT, false},
    {"llama", DT_F32, QUANTIZE_INT8, false},
    {"qwen2", DT_F32, QUANTIZE_NOT, false}, /* tied */
    {"qwen2", DT_BF16, QUANTIZE_INT4, false},
    {"qwen2-sliding-bf16", DT_F32, QUANTIZE_NOT, true},
    {"gemma2", DT_F32, QUANTIZE_NOT, false},
    {"granite", DT_F32, QUANTIZE_NOT, false},
    {"phi3-longrope", DT_F32, QUANTIZE_NOT, false},
    {"llama-rope-dynamic", DT_F32, QUANTIZE_NOT, false},
    {"qwen3_moe", DT_F32, QUANTIZE_NOT, false},
    {"qwen2_moe", DT_BF16, QUANTIZE_NOT, false},
    {"deepseek_v3", DT_F32, QUANTIZE_NOT, false},
    {"llama-gptq", DT_F32, QUANTIZE_NOT, true},
    {"qwen2-awq", DT_F32, QUANTIZE_NOT, true},
    {"lfm2", DT_F32, QUANTIZE_NOT, false}, /* states of convolutions */
    {"lfm2-bias", DT_BF16, QUANTIZE_NOT, false},
    {"qwen3_next", DT_F32, QUANTIZE_NOT, false}, /* states of recurrences */
    {"qwen3_next", DT_BF16, QUANTIZE_INT8, false},
};
#define N_CASE (sizeof cases / sizeof *cases)

struct rows { /* a micro batch */
    struct micro_batch b;
    uint32_t ids[ROW_MAX], positions[ROW_MAX];
    struct train_segment segments[ROW_MAX];
    int32_t labels[ROW_MAX];
};

static void make_batch(struct rows *r, const uint32_t *lengths, uint32_t seed)
{
    uint32_t n = 0, s = 0;
    for (; lengths[s]; s++) {
        r->segments[s] = (struct train_segment){n, lengths[s]};
        for (uint32_t i = 0; i < lengths[s]; i++, n++) {
            r->ids[n] = (n * 37 + seed * 101 + 3) % 120; /* every golden has as many */
            r->positions[n] = i;
            r->labels[n] = 1;
        }
    }
    r->b = (struct micro_batch){n, s, r->ids, r->positions, r->segments, r->labels, n};
}

static const char *dir_of(const struct teacher_case *c)
{
    static char dir[PATH_MAX];
    snprintf(dir, sizeof dir, GOLDEN_DIR "/%s", c->model);
    return dir;
}

/* ---- one sequence after another, by the model ---- */

static float want[ROW_MAX * VOCAB];
static uint32_t n_vocab; /* of the model that run_alone ran, at most VOCAB */

static void run_alone(const struct teacher_case *c, const struct rows *r)
{
    struct runner runner;
    const struct runner_options o = {
        .dir = dir_of(c),
        .n_thread = 1,
        .caps = kern_caps_machine(),
        .dtype_auto = c->dtype_auto,
        .dtype = c->dtype,
        .quantization = c->quantization,
    };
    assert_ok(runner_open(&runner, &o, &e), &e);
    n_vocab = model_shape(runner.model)->vocab_size;
    assert_true(n_vocab <= VOCAB);
    for (uint32_t s = 0; s < r->b.n_segment; s++) {
        const struct train_segment *g = &r->segments[s];
        run_prompt(&runner, r->ids + g->row, g->n_row, g->n_row, want + (size_t)g->row * n_vocab);
    }
    runner_close(&runner);
}

/* ---- the teacher's ranks ---- */

#define STAGES_MAX 3u
struct ranks {
    struct kern_table k;
    struct team *teams[STAGES_MAX];
    struct teacher *t[STAGES_MAX];
    uint32_t n;
};

static void ranks_open(struct ranks *r, const struct teacher_case *c, uint32_t n)
{
    struct model_config config;
    assert_ok(model_config_load(&config, NULL, dir_of(c), &e), &e);
    *r = (struct ranks){.n = n};
    kern_table_cpu(&r->k, kern_caps_machine());
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = config.n_layer * i / n, end = config.n_layer * (i + 1) / n;
        if (i % 2 == 0)
            assert_ok(team_new(&r->teams[i], 2 + i, false, &e), &e);
        const struct teacher_options o = {
            .dir = dir_of(c),
            .kern = &r->k,
            .team = r->teams[i],
            .dtype_auto = c->dtype_auto,
            .dtype = c->dtype,
            .quantization = c->quantization,
            .layers = {first, end - first, i == 0, i == n - 1},
            .n_row_max = ROW_MAX,
        };
        assert_ok(teacher_load(&r->t[i], &o, &e), &e);
        assert_int_equal(teacher_config(r->t[i])->n_layer, config.n_layer);
        assert_true(teacher_bytes(r->t[i]) > 0);
    }
}

static void ranks_close(struct ranks *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        teacher_free(r->t[i]);
        team_free(r->teams[i]);
    }
}

/* Every second row, `chunk` rows at a time, has the bits of `want`. */
static void check_batch(struct ranks *r, const struct rows *rows, uint32_t chunk)
{
    static float stream[ROW_MAX * 128];
    const float *x = NULL;
    uint32_t asked[ROW_MAX], n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const float *out;
        assert_ok(teacher_forward(r->t[i], &rows->b, x, &out, &e), &e);
        assert_true((out == NULL) == (i == r->n - 1));
        if (out) {
            memcpy(stream, out, rows->b.n_row * teacher_config(r->t[i])->hidden_size * sizeof *out);
            x = stream;
        }
    }
    const struct teacher_source s = teacher_logits_source(r->t[r->n - 1]);
    assert_int_equal(s.n_vocab, n_vocab);
    for (uint32_t i = 0; i < rows->b.n_row; i += 2)
        asked[n++] = i;
    for (uint32_t at = 0; at < n; at += chunk) {
        struct teacher_rows got;
        const uint32_t count = n - at < chunk ? n - at : chunk;
        assert_ok(s.rows(s.ctx, &rows->b, asked + at, count, &got, &e), &e);
        assert_null(got.ids);
        assert_int_equal(got.n_col, n_vocab);
        for (uint32_t i = 0; i < count; i++)
            assert_memory_equal(got.z + i * got.stride, want + (size_t)asked[at + i] * n_vocab,
                                n_vocab * sizeof(float));
    }
}

static void test_cases(void **state)
{
    static const uint32_t lengths[][6] = {{37, 1, 20, 0}, {90, 16, 0}, {5, 5, 5, 5, 5, 0}};
    static struct rows rows;
    (void)state;
    for (size_t i = 0; i < N_CASE; i++)
        for (uint32_t n = 1; n <= 2; n++) {
            struct ranks r;
            ranks_open(&r, &cases[i], n);
            for (uint32_t k = 0; k < 3; k++) {
                make_batch(&rows, lengths[k], k);
                run_alone(&cases[i], &rows);
                check_batch(&r, &rows, 7 + 20 * k);
            }
            ranks_close(&r);
        }
}

/* More ends of segments than blocks: the pool grows, and what follows is as before. */
static void test_many_segments(void **state)
{
    static struct rows rows;
    static uint32_t ones[ROW_MAX + 1], one[2] = {60};
    struct ranks r;
    (void)state;
    for (uint32_t i = 0; i < ROW_MAX; i++)
        ones[i] = 1;
    ranks_open(&r, &cases[0], 2);
    make_batch(&rows, ones, 5);
    run_alone(&cases[0], &rows);
    check_batch(&r, &rows, 64);
    make_batch(&rows, one, 6);
    run_alone(&cases[0], &rows);
    check_batch(&r, &rows, 64);
    ones[0] = 0;
    make_batch(&rows, ones, 0); /* no row at all */
    check_batch(&r, &rows, 1);
    ranks_close(&r);
}

static void test_three_stages(void **state)
{
    static const uint32_t lengths[] = {60, 33, 0};
    static struct rows rows;
    const struct teacher_case *c = &cases[5];
    struct ranks r;
    (void)state;
    ranks_open(&r, c, 3);
    make_batch(&rows, lengths, 1);
    run_alone(c, &rows);
    check_batch(&r, &rows, 50);
    ranks_close(&r);
}

static void test_refused(void **state)
{
    static const uint32_t lengths[] = {40, 150, 0};
    static struct rows rows;
    struct kern_table k;
    struct teacher *t;
    const float *out;
    (void)state;
    kern_table_cpu(&k, CAP_NONE);
    struct teacher_options o = {
        .dir = GOLDEN_DIR "/llama",
        .kern = &k,
        .dtype = DT_F32,
        .n_row_max = 300,
        .layers = {.n = 3},
    };
    assert_fails(teacher_load(&t, &o, &e), Q_INVALID, "the model has 2", &e);
    o.layers.n = 0;
    assert_ok(teacher_load(&t, &o, &e), &e); /* 300 rows: several sequences */
    make_batch(&rows, lengths, 1);
    assert_ok(teacher_forward(t, &rows.b, NULL, &out, &e), &e);
    rows.ids[11] = VOCAB;
    assert_fails(teacher_forward(t, &rows.b, NULL, &out, &e), Q_INVALID,
                 "token 512 of row 11: the teacher's vocabulary has 512", &e);
    rows.ids[11] = 0;
    rows.segments[1].n_row = 257;
    assert_fails(teacher_forward(t, &rows.b, NULL, &out, &e), Q_INVALID,
                 "a sequence of 257 tokens: the teacher takes 256", &e);
    rows.b.n_row = 301;
    assert_fails(teacher_forward(t, &rows.b, NULL, &out, &e), Q_INVALID,
                 "a micro batch of 301 tokens, room is for 300", &e);
    teacher_free(t);
    o.n_row_max = 0;
    assert_fails(teacher_load(&t, &o, &e), Q_INVALID, "micro batches of 0 tokens", &e);
    o.dir = "/nowhere";
    o.n_row_max = 1;
    assert_fails(teacher_load(&t, &o, &e), Q_NOT_FOUND, "/nowhere", &e);
}

/* ---- tensor-parallel ranks ---- */

#define CHUNK 33u /* rows of a question */

struct divided { /* a rank, in a thread of its own */
    struct test_rank at;
    const struct teacher_case *c;
    uint32_t n_thread, n_stage;
    const struct rows *rows;
    struct teacher *t[STAGES_MAX];
    struct team *team;
    float *z; /* [n_row][n_vocab] */
};

static void part_load(struct divided *p, struct kern_table *k)
{
    struct q_err err = Q_ERR_INIT;
    const uint32_t n_layer = test_layers_of(p->c->model);
    p->n_stage = p->n_stage < n_layer ? p->n_stage : n_layer;
    if (p->n_thread > 1)
        assert_ok(team_new(&p->team, p->n_thread, false, &err), &err);
    for (uint32_t i = 0; i < p->n_stage; i++) {
        const uint32_t first = n_layer * i / p->n_stage;
        const struct teacher_options o = {
            .dir = p->c->model,
            .kern = k,
            .team = p->team,
            .dtype_auto = p->c->dtype_auto,
            .dtype = p->c->dtype,
            .quantization = p->c->quantization,
            .layers = {first, n_layer * (i + 1) / p->n_stage - first, i == 0, i == p->n_stage - 1},
            .n_row_max = ROW_MAX,
            .tensor_parallel = test_group_of(&p->at),
        };
        assert_ok(teacher_load(&p->t[i], &o, &err), &err);
        assert_int_equal(teacher_config(p->t[i])->n_layer, n_layer);
    }
}

static void part_ask(const struct divided *p)
{
    struct q_err err = Q_ERR_INIT;
    const struct teacher_source s = teacher_logits_source(p->t[p->n_stage - 1]);
    const uint32_t n_row = p->rows->b.n_row;
    assert_int_equal(s.n_vocab, n_vocab);
    for (uint32_t at = 0; at < n_row; at += CHUNK) {
        uint32_t asked[CHUNK], n = 0;
        struct teacher_rows got;
        for (; n < CHUNK && at + n < n_row; n++)
            asked[n] = at + n;
        assert_ok(s.rows(s.ctx, &p->rows->b, asked, n, &got, &err), &err);
        for (uint32_t i = 0; i < n; i++)
            memcpy(p->z + (size_t)(at + i) * n_vocab, got.z + i * got.stride,
                   n_vocab * sizeof *p->z);
    }
}

static void *run_part(void *arg)
{
    struct divided *p = arg;
    struct q_err err = Q_ERR_INIT;
    struct kern_table k;
    const float *x = NULL, *out;
    kern_table_cpu(&k, kern_caps_machine());
    part_load(p, &k);
    for (uint32_t i = 0; i < p->n_stage; i++, x = out)
        assert_ok(teacher_forward(p->t[i], &p->rows->b, x, &out, &err), &err);
    assert_null(x);
    part_ask(p);
    for (uint32_t i = 0; i < p->n_stage; i++) {
        assert_true(teacher_bytes(p->t[i]) > 0);
        teacher_free(p->t[i]);
    }
    team_free(p->team);
    return NULL;
}

/* The logits of all ranks, one rank after another. */
static float *run_parts(const struct divided *like, uint32_t size)
{
    static struct test_meeting m;
    const size_t n = (size_t)like->rows->b.n_row * n_vocab;
    struct divided parts[TEST_RANKS_MAX];
    pthread_t threads[TEST_RANKS_MAX];
    float *z = calloc(n * size, sizeof *z);
    m.size = size;
    pthread_barrier_init(&m.barrier, NULL, size);
    for (uint32_t i = 0; i < size; i++) {
        parts[i] = *like;
        parts[i].at = (struct test_rank){&m, i};
        parts[i].z = z + i * n;
    }
    for (uint32_t i = 1; i < size; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_part, &parts[i]), 0);
    run_part(&parts[0]);
    for (uint32_t i = 1; i < size; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&m.barrier);
    return z;
}

/* Layers that read what an earlier one left beside the stream cannot be in another stage. */
static bool is_undivided(const char *model)
{
    return strcmp(model, "gemma4") == 0 || strncmp(model, "gemma3n", strlen("gemma3n")) == 0;
}

/* Stages and threads of the ranks differ from case to case. */
static void check_parts(const struct teacher_case *c, uint32_t size)
{
    static const uint32_t lengths[] = {37, 1, 90, 0};
    static struct rows rows;
    static uint32_t n_call;
    char dir[PATH_MAX];
    struct teacher_case at = *c;
    make_batch(&rows, lengths, 2);
    run_alone(c, &rows);
    snprintf(dir, sizeof dir, "%s", dir_of(c));
    at.model = dir; /* a path: ranks are threads */
    const struct divided like = {
        .c = &at,
        .n_thread = 1 + n_call % 2,
        .n_stage = is_undivided(c->model) ? 1 : 1 + n_call / 2 % 2,
        .rows = &rows,
    };
    const size_t n = (size_t)rows.b.n_row * n_vocab;
    float *z = run_parts(&like, size);
    n_call++;
    for (uint32_t i = 0; i < size; i++)
        if (memcmp(z + i * n, want, n * sizeof *z) != 0)
            fail_msg("%s (%s, quantization \"%s\") over %u ranks: other logits on rank %u",
                     c->model, dtype_name(c->dtype), quantization_name(c->quantization), size, i);
    free(z);
}

/* Every model of the goldens: dense families, experts, latent attention, states, quantized
 * checkpoints. */
static void test_parts(void **state)
{
    DIR *d = opendir(GOLDEN_DIR);
    size_t n = 0;
    (void)state;
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));) {
        const struct teacher_case c = {.model = x->d_name, .dtype = DT_F32, .dtype_auto = n % 2};
        if (strchr(x->d_name, '.')) /* what writes them too */
            continue;
        check_parts(&c, 2);
        n++;
    }
    closedir(d);
    assert_true(n > 40);
}

static void test_stages_that_are_refused(void **state)
{
    struct kern_table k;
    struct teacher *t = NULL;
    const struct teacher_case c = {.model = "gemma4", .dtype_auto = true};
    (void)state;
    kern_table_cpu(&k, kern_caps_machine());
    const struct teacher_options o = {
        .dir = dir_of(&c),
        .kern = &k,
        .dtype_auto = true,
        .layers = {0, 2, true, false},
        .n_row_max = ROW_MAX,
    };
    assert_fails(teacher_load(&t, &o, &e), Q_UNSUPPORTED, "not supported in pipeline stages", &e);
}

/* More ranks than heads, than divide a width, than some matrices have panels; what is packed when
 * loading; types of the outputs of products. */
static void test_forms_of_parts(void **state)
{
    static const struct {
        struct teacher_case c;
        uint32_t size;
    } some[] = {
        {{"llama", DT_F32, QUANTIZE_NOT, false}, 3},
        {{"llama", DT_BF16, QUANTIZE_NOT, false}, 4},
        {{"llama", DT_F16, QUANTIZE_NOT, false}, 2},
        {{"llama", DT_F32, QUANTIZE_INT8, false}, 3},
        {{"gemma2", DT_BF16, QUANTIZE_INT4, false}, 2},
        {{"qwen2", DT_F32, QUANTIZE_INT4, false}, 4},
        {{"qwen3_moe", DT_BF16, QUANTIZE_INT8, false}, 2},
        {{"mixtral", DT_BF16, QUANTIZE_NOT, false}, 3},
        {{"gpt_oss-mxfp4", DT_BF16, QUANTIZE_NOT, false}, 2},
        {{"olmo2", DT_F32, QUANTIZE_NOT, false}, 3},
        {{"gpt2", DT_BF16, QUANTIZE_INT8, false}, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        check_parts(&some[i].c, some[i].size);
}

/* A rank of a model with wide matrices holds its part of them. */
static void test_memory_of_parts(void **state)
{
    struct test_meeting m = {.size = 2};
    struct kern_table k;
    uint64_t bytes[2] = {0};
    (void)state;
    kern_table_cpu(&k, CAP_NONE);
    for (uint32_t i = 0; i < 2; i++) {
        struct model *model;
        struct model_options o = {
            .dir = GOLDEN_DIR "/llama",
            .format = LOAD_DUMMY,
            .dtype = DT_F32,
            .kern = &k,
            .shard = {.rank = 1, .size = i ? m.size : 0},
        };
        assert_ok(model_load(&model, &o, &e), &e);
        bytes[i] = model_shape(model)->weight_bytes;
        model_free(model);
    }
    assert_true(bytes[1] < 3 * bytes[0] / 4);
}

/* The group's error is the pass's; the next one is as if there had been none. */
static enum q_code fail_gather(void *ctx, const float *x, size_t n, float *out, struct q_err *err)
{
    int *n_left = ctx;
    memset(out, 0, 2 * n * sizeof *out);
    memcpy(out, x, n * sizeof *out);
    return (*n_left)-- ? Q_OK : q_fail(err, Q_IO, "rank 1 has died");
}

static void test_group_fails(void **state)
{
    static const uint32_t lengths[] = {40, 0};
    static struct rows rows;
    struct kern_table k;
    struct teacher *t;
    struct teacher_rows z;
    const float *out;
    const uint32_t row = 3;
    int n_left = 2;
    (void)state;
    kern_table_cpu(&k, CAP_NONE);
    const struct teacher_options o = {
        .dir = GOLDEN_DIR "/qwen3_moe",
        .kern = &k,
        .dtype = DT_F32,
        .n_row_max = 64,
        .tensor_parallel = {.rank = 0, .size = 2, .gather = fail_gather, .ctx = &n_left},
    };
    assert_ok(teacher_load(&t, &o, &e), &e);
    make_batch(&rows, lengths, 1);
    assert_fails(teacher_forward(t, &rows.b, NULL, &out, &e), Q_IO, "rank 1 has died", &e);
    n_left = 1000;
    assert_ok(teacher_forward(t, &rows.b, NULL, &out, &e), &e);
    const struct teacher_source s = teacher_logits_source(t);
    n_left = 0;
    assert_fails(s.rows(s.ctx, &rows.b, &row, 1, &z, &e), Q_IO, "rank 1 has died", &e);
    teacher_free(t);
}

/* The n-th allocation of a load fails, for every n. */
static void test_part_no_memory(void **state)
{
    struct test_meeting m = {.size = 2};
    struct test_rank rank = {&m, 1};
    struct kern_table k;
    struct teacher *t = NULL;
    enum q_code rc = Q_NO_MEMORY;
    int64_t n = 0;
    (void)state;
    kern_table_cpu(&k, CAP_NONE);
    const struct teacher_options o = {
        .dir = GOLDEN_DIR "/llama",
        .kern = &k,
        .dtype = DT_F32,
        .layers = {0, 2, true, true},
        .n_row_max = 16,
        .tensor_parallel = test_group_of(&rank),
    };
    for (; rc == Q_NO_MEMORY; n++) {
        q_err_reset(&e);
        mem_fail_after(n);
        rc = teacher_load(&t, &o, &e);
        mem_fail_after(-1);
    }
    assert_ok(rc, &e);
    assert_true(n > 10);
    teacher_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_many_segments),
        cmocka_unit_test(test_three_stages),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_forms_of_parts),
        cmocka_unit_test(test_part_no_memory),
        cmocka_unit_test(test_memory_of_parts),
        cmocka_unit_test(test_stages_that_are_refused),
        cmocka_unit_test(test_group_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
