/* SPDX-License-Identifier: Apache-2.0 */
/* Losses and gradients of a whole global batch against the goldens of distillation (13 cases in
 * double precision: ../shared/goldens/distill, its README has definitions and tolerances), with one
 * and several stages, and with two tensor-parallel ranks, which are threads here. */
#include <jansson.h>
#include "common/hub/safetensors.h"
#include "engine/distill/teacher.h"
#include "student_ranks.h"

#define GOLDENS "../shared/goldens/distill"
#define MICROS  8u
#define MAX_REL 5e-5 /* of the README: gradients, worst tensor, largest difference */
#define L2_REL  2e-5
#define BF16_L2 4e-2 /* RESULTS.md: of all parameters */

static const char *const cases[] = {
    "fkl_T1",
    "fkl_T1_ragged",
    "fkl_T2",
    "fkl_T2_no_t2",
    "fkl_ce05",
    "jsd_b05",
    "jsd_skew_T15",
    "rkl_T1",
    "tied_fkl_T1",
    "tied_fkl_T2_ce05_ragged",
    "topk20",
    "topk20_both",
    "vocab_differs_ragged",
};
#define N_CASE (sizeof cases / sizeof *cases)

/* ---- a case ---- */

struct golden_case {
    char teacher[256], student[256];
    struct loss_options loss;
    struct tensor_set *grads;
    double want_loss;
    struct test_batch batches[MICROS];
    uint64_t n_position;
};

static json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *j = json_load_file(path, 0, &error);
    if (!j)
        fail_msg("%s: %s", path, error.text);
    return j;
}

static const char *text_of(const json_t *c, const char *key)
{
    return json_string_value(json_object_get(c, key));
}

static double number_of(const json_t *c, const char *key)
{
    return json_number_value(json_object_get(c, key));
}

static struct loss_options loss_of(const json_t *c)
{
    const char *kind = text_of(c, "kind");
    return (struct loss_options){
        .kind = strcmp(kind, "fkl") == 0   ? DISTILL_FKL
                : strcmp(kind, "rkl") == 0 ? DISTILL_RKL
                                           : DISTILL_JSD,
        .temperature = (float)number_of(c, "temperature"),
        .beta = strcmp(kind, "jsd") == 0 ? (float)number_of(c, "beta") : 0.5f,
        .t2 = json_is_true(json_object_get(c, "t2")),
        .kd_weight = number_of(c, "w_kd"),
        .ce_weight = number_of(c, "w_ce"),
        .top_k = (uint32_t)number_of(c, "top_k"),
        .renorm = strcmp(text_of(c, "top_k_student"), "renorm") == 0,
    };
}

static json_t *at(const json_t *j, size_t a, size_t b)
{
    return json_array_get(json_array_get(j, a), b);
}

/* The first step's micro batch: padding is no row. */
static void read_micro(struct test_batch *t, const json_t *data, size_t micro)
{
    const json_t *ids = at(json_object_get(data, "input_ids"), 0, micro);
    const json_t *mask = at(json_object_get(data, "attention_mask"), 0, micro);
    const json_t *labels = at(json_object_get(data, "labels"), 0, micro);
    uint32_t n = 0, n_counted = 0;
    for (size_t s = 0; s < json_array_size(ids); s++) {
        uint32_t length = 0;
        t->segments[s].row = n;
        while (length < json_array_size(json_array_get(ids, s)) &&
               json_integer_value(at(mask, s, length)))
            length++;
        t->segments[s].n_row = length;
        for (uint32_t i = 0; i < length; i++, n++) {
            const json_t *next = i + 1 < length ? at(labels, s, i + 1) : NULL;
            const int64_t label = next ? json_integer_value(next) : -100;
            t->ids[n] = (uint32_t)json_integer_value(at(ids, s, i));
            t->positions[n] = i;
            t->labels[n] = label == -100 ? -1 : (int32_t)label;
            n_counted += label != -100;
        }
    }
    t->b = (struct micro_batch){
        .n_row = n,
        .n_segment = (uint32_t)json_array_size(ids),
        .ids = t->ids,
        .positions = t->positions,
        .segments = t->segments,
        .labels = t->labels,
        .n_counted = n_counted,
    };
}

static void open_case(struct golden_case *g, const char *name)
{
    char path[256];
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, GOLDENS "/cases/%s/expected.json", name);
    json_t *expected = read_json(path);
    const json_t *c = json_object_get(expected, "case");
    snprintf(path, sizeof path, GOLDENS "/data/%s.json", text_of(c, "data"));
    json_t *data = read_json(path);
    snprintf(g->teacher, sizeof g->teacher, GOLDENS "/pair%s/teacher", text_of(c, "pair"));
    snprintf(g->student, sizeof g->student, GOLDENS "/pair%s/student", text_of(c, "pair"));
    g->loss = loss_of(c);
    g->want_loss = number_of(json_array_get(json_object_get(expected, "steps"), 0), "loss");
    snprintf(path, sizeof path, GOLDENS "/cases/%s/grads_step1.safetensors", name);
    assert_ok(tensor_set_open_file(&g->grads, path, &e), &e);
    g->n_position = 0;
    for (uint32_t i = 0; i < MICROS; i++) {
        read_micro(&g->batches[i], data, i);
        g->n_position += g->batches[i].b.n_counted;
    }
    json_decref(data);
    json_decref(expected);
}

/* ---- ranks as threads ---- */

struct rank {
    struct test_rank at;
    const struct golden_case *g;
    struct test_options o;
    struct test_student s;
    struct loss_sums sums;
    double loss;
};

static void run_micro(struct rank *r, struct loss_head *head, struct teacher *teacher, uint32_t i)
{
    static float dx[TEST_RANKS_MAX][TEST_ROWS_MAX * 256], y[TEST_RANKS_MAX][TEST_ROWS_MAX * 256];
    const struct micro_batch *b = &r->g->batches[i].b;
    const struct teacher_source source = teacher_logits_source(teacher);
    struct loss_sums sums;
    const float *x;
    struct q_err e = Q_ERR_INIT;
    assert_ok(teacher_forward(teacher, b, NULL, &x, &e), &e);
    test_forward(&r->s, b, 0, y[r->at.i]);
    assert_ok(loss_head_run(head, b, y[r->at.i], &source, (double)r->g->n_position, dx[r->at.i],
                            &sums, &e),
              &e);
    test_backward(&r->s, b, 0, dx[r->at.i]);
    r->loss += (r->g->loss.kd_weight * sums.kd + r->g->loss.ce_weight * sums.ce) /
               (double)r->g->n_position;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct q_err e = Q_ERR_INIT;
    struct head_weights w;
    struct loss_head *head = NULL;
    struct teacher *teacher = NULL;
    r->o.dir = r->g->student;
    r->o.group = test_group_of(&r->at);
    assert_ok(test_student_open(&r->s, &r->o, &e), &e);
    assert_true(student_head(r->s.s, &w));
    assert_ok(loss_head_new(&head, &w, &r->g->loss, &e), &e);
    const struct teacher_options t = {
        .dir = r->g->teacher,
        .kern = &r->s.kern,
        .team = r->s.team,
        .dtype = DT_F32,
        .layers = {.n = test_layers_of(r->g->teacher), .has_embedding = true, .has_head = true},
        .n_row_max = TEST_ROWS_MAX,
    };
    assert_ok(teacher_load(&teacher, &t, &e), &e);
    params_zero_gradients(student_params(r->s.s));
    for (uint32_t i = 0; i < MICROS; i++)
        run_micro(r, head, teacher, i);
    loss_head_free(head);
    teacher_free(teacher);
    return NULL;
}

/* ---- against the golden ---- */

struct errors {
    double max_rel, l2_rel; /* worst tensor */
    double difference, all; /* squares of all parameters */
};

static void compare_tensor(struct errors *worst, const struct tensor *want, const float *got)
{
    const size_t n = want->n_bytes / sizeof(float);
    const float *w = want->data;
    double most = 0, largest = 0, sum = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - w[i];
        most = fabs(d) > most ? fabs(d) : most;
        largest = fabsf(w[i]) > largest ? fabsf(w[i]) : largest;
        sum += d * d;
        all += (double)w[i] * w[i];
    }
    assert_true(all > 0);
    worst->max_rel = most / largest > worst->max_rel ? most / largest : worst->max_rel;
    worst->l2_rel = sqrt(sum / all) > worst->l2_rel ? sqrt(sum / all) : worst->l2_rel;
    worst->difference += sum;
    worst->all += all;
}

static struct errors compare(const struct golden_case *g, const struct rank *ranks, uint32_t size)
{
    struct errors worst = {0};
    for (uint32_t i = 0; i < tensor_count(g->grads); i++) {
        const struct tensor *want = tensor_at(g->grads, i);
        float *got = calloc(1, want->n_bytes);
        for (uint32_t k = 0; k < size; k++)
            test_put(got, student_params(ranks[k].s.s), want->name);
        compare_tensor(&worst, want, got);
        free(got);
    }
    return worst;
}

static void check_case(const char *name, const struct test_options *o, uint32_t size)
{
    static struct golden_case g;
    static struct rank ranks[TEST_RANKS_MAX];
    static struct test_meeting m;
    pthread_t threads[TEST_RANKS_MAX];
    open_case(&g, name);
    m.size = size;
    pthread_barrier_init(&m.barrier, NULL, size);
    for (uint32_t i = 0; i < size; i++)
        ranks[i] = (struct rank){.at = {&m, i}, .g = &g, .o = *o};
    for (uint32_t i = 1; i < size; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    run_rank(&ranks[0]);
    for (uint32_t i = 1; i < size; i++)
        pthread_join(threads[i], NULL);
    const struct errors d = compare(&g, ranks, size);
    const double loss = fabs(ranks[0].loss / g.want_loss - 1), l2 = sqrt(d.difference / d.all);
    const bool is_f32 = o->compute == DT_F32;
    if (is_f32 ? loss > 1e-5 || d.max_rel > MAX_REL || d.l2_rel > L2_REL
               : loss > 2e-3 || l2 > BF16_L2)
        fail_msg("%s, %u layers a stage, %u ranks, %s: the loss is off by %g, the gradients' worst "
                 "tensor by %g of its largest, %g of its L2; all of them by %g",
                 name, o->n_cut, size, dtype_name(o->compute), loss, d.max_rel, d.l2_rel, l2);
    for (uint32_t i = 0; i < size; i++)
        test_student_close(&ranks[i].s);
    tensor_set_free(g.grads);
    pthread_barrier_destroy(&m.barrier);
}

static void check_cases(const struct test_options *o, uint32_t size)
{
    if (!file_exists(GOLDENS "/README.md"))
        skip_without(GOLDENS);
    for (size_t i = 0; i < N_CASE; i++)
        check_case(cases[i], o, size);
}

static void test_one_stage(void **state)
{
    (void)state;
    check_cases(&(struct test_options){0}, 1);
}

static void test_stages(void **state)
{
    (void)state;
    check_cases(&(struct test_options){.n_cut = 2, .n_thread = 2}, 1);
    check_cases(&(struct test_options){.n_cut = 1, .recompute = true}, 1);
}

static void test_tensor_parallel(void **state)
{
    (void)state;
    check_cases(&(struct test_options){.n_cut = 3}, 2);
}

static void test_bf16(void **state)
{
    (void)state;
    check_cases(&(struct test_options){.compute = DT_BF16}, 1);
    check_cases(&(struct test_options){.compute = DT_BF16, .n_cut = 2}, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stage),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_bf16),
    };
    return check_run_part(tests, sizeof tests / sizeof *tests, argc, argv);
}
