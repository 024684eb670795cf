/* SPDX-License-Identifier: Apache-2.0 */
/* What quire teach asks a server and reads of its answer, and the top k of a model's logits. The
 * program itself: tests/e2e/test_teach.py. */
#include <math.h>
#include "check.h"
#include "engine/distill/teach.h"
#include "engine/distill/teacher_answer.h"

static struct q_err e;

/* ---- questions and answers ---- */

static const uint32_t tokens[] = {5, 6, 7, 8, 9};
static const int32_t labels[] = {-1, 4, 4, -1, -1}; /* rows 1 and 2 */

static struct teacher_question question(uint32_t top_k)
{
    return (struct teacher_question){"a \"model\"", tokens, labels, 5, 2, top_k};
}

static void test_question(void **state)
{
    struct buf b = BUF_INIT;
    const struct teacher_question q = question(3);
    (void)state;
    teacher_question_write(&b, &q);
    assert_string_equal(buf_str(&b),
                        "{\"model\":\"a \\\"model\\\"\",\"prompt\":[5,6,7,8],\"max_tokens\":1,"
                        "\"temperature\":0,\"prompt_logprobs\":3}");
    buf_release(&b);
}

#define ANSWER(rows) "{\"choices\":[{\"prompt_logprobs\":[null," rows "]}]}"
#define FIRST        "{\"6\":{\"logprob\":-1}}"

static enum q_code read_answer(const char *body, uint32_t top_k, uint32_t *ids, float *logprobs)
{
    const struct teacher_question q = question(top_k);
    return teacher_answer_read(body, strlen(body), &q, ids, logprobs, &e);
}

static void test_answer(void **state)
{
    static const char body[] = ANSWER(
        FIRST ",{\"9\":{\"logprob\":-9.5},\"30\":{\"logprob\":-0.25},\"4\":{\"logprob\":-2}},"
              "{\"8\":{\"logprob\":0.001},\"2\":{\"logprob\":null}}");
    static const char equal[] =
        ANSWER(FIRST ",{\"9\":{\"logprob\":-1},\"3\":{\"logprob\":-1},\"4\":{\"logprob\":-1}},"
                     "{\"1\":{\"logprob\":-1e9},\"2\":{\"logprob\":-1}}");
    uint32_t ids[4];
    float logprobs[4];
    (void)state;
    assert_ok(read_answer(body, 2, ids, logprobs), &e);
    assert_true(ids[0] == 4 && ids[1] == 30 && ids[2] == 2 && ids[3] == 8);
    assert_true(logprobs[0] == -2 && logprobs[1] == -0.25f && logprobs[2] == -65504 &&
                logprobs[3] == 0);
    assert_ok(read_answer(equal, 2, ids, logprobs), &e);
    assert_true(ids[0] == 3 && ids[1] == 4 && ids[2] == 1 && logprobs[2] == -65504);
}

static void test_wrong_answers(void **state)
{
    static const struct {
        const char *body, *part;
        enum q_code code;
    } cases[] = {
        {"", "is no JSON", Q_CORRUPT},
        {"[]", "has no choices", Q_CORRUPT},
        {"{\"choices\":[{\"text\":\"\"}]}", "must be quire or vLLM", Q_UNSUPPORTED},
        {"{\"choices\":[{\"prompt_logprobs\":null}]}", "must be quire or vLLM", Q_UNSUPPORTED},
        {ANSWER(FIRST), "has 2 elements for a prompt of 4 tokens", Q_CORRUPT},
        {ANSWER(FIRST ",null,null"), "prompt_logprobs[2] is no object", Q_CORRUPT},
        {ANSWER(FIRST ",{},{}"), "prompt_logprobs[2] has 0 tokens, expected 1 or 2", Q_CORRUPT},
        {ANSWER(FIRST ",{\"x\":{\"logprob\":-1}},{}"), "\"x\" is no token id", Q_CORRUPT},
        {ANSWER(FIRST ",{\"-1\":{\"logprob\":-1}},{}"), "\"-1\" is no token id", Q_CORRUPT},
        {ANSWER(FIRST ",{\"4294967295\":{\"logprob\":-1}},{}"), "is no token id", Q_CORRUPT},
        {ANSWER(FIRST ",{\"1\":{}},{}"), "token 1 has no logprob", Q_CORRUPT},
        {ANSWER(FIRST ",{\"1\":{\"logprob\":\"a\"}},{}"), "token 1 has no logprob", Q_CORRUPT},
        {ANSWER(FIRST ",{\"1\":{\"logprob\":3.5}},{}"), "token 1 has 3.5 as a logprob, expected",
         Q_CORRUPT},
        {ANSWER(FIRST ",{\"1\":{\"logprob\":-1},\"2\":{\"logprob\":-1},\"3\":{\"logprob\":-1}},{}"),
         "has 3 tokens, expected 1 or 2", Q_CORRUPT},
    };
    uint32_t ids[4];
    float logprobs[4];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_answer(cases[i].body, 1, ids, logprobs), cases[i].code, cases[i].part,
                     &e);
    assert_fails(read_answer(ANSWER(FIRST ",{\"1\":{\"logprob\":-1},\"01\":{\"logprob\":-1}},{}"),
                             2, ids, logprobs),
                 Q_CORRUPT, "has token 1 twice", &e);
}

static void test_errors_and_models(void **state)
{
    static const char *const errors[][2] = {
        {"{\"error\":{\"message\":\"too\\nbusy\"}}", "too busy"},
        {"{\"error\":\"no\"}", "no"},
        {"{\"message\":\"vllm\"}", "vllm"},
        {"{\"detail\":\"Not Found\"}", "Not Found"},
        {"<html>\n", "<html> "},
    };
    char text[20];
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        teacher_answer_error(text, sizeof text, errors[i][0], strlen(errors[i][0]));
        assert_string_equal(text, errors[i][1]);
    }
    static const char list[] = "{\"data\":[{\"id\":\"first\"},{\"id\":\"second\"}]}";
    assert_ok(teacher_answer_model(text, sizeof text, list, strlen(list), &e), &e);
    assert_string_equal(text, "first");
    assert_fails(teacher_answer_model(text, 3, list, strlen(list), &e), Q_CORRUPT, "names none",
                 &e);
    assert_fails(teacher_answer_model(text, sizeof text, "{}", 2, &e), Q_CORRUPT, "names none", &e);
}

/* ---- the top k ---- */

enum { N_ROW = 11, N_COL = 333, STRIDE = 340, K_MAX = 40 };

static float z[N_ROW * STRIDE];

static void fill_logits(void)
{
    uint64_t random = 3;
    for (uint32_t i = 0; i < N_ROW * STRIDE; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        z[i] = (float)(random >> 60); /* many are equal */
    }
    z[5] = NAN;
    z[STRIDE + 7] = -INFINITY;
    z[2 * STRIDE + 9] = 1e5f;
}

/* Columns that come before column v. */
static uint32_t rank_of(const float *row, uint32_t v)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_COL; i++)
        n += row[i] > row[v] || (row[i] == row[v] && i < v) || (isnan(row[v]) && !isnan(row[i]));
    return n;
}

static void check_row(const struct teach_rows *r, uint32_t row)
{
    const float *at = z + row * STRIDE;
    double most = -INFINITY, sum = 0;
    for (uint32_t v = 0; v < N_COL; v++)
        most = fmax(most, (double)at[v]);
    for (uint32_t v = 0; v < N_COL; v++)
        sum += isnan(at[v]) ? 0 : exp((double)at[v] - most);
    for (uint32_t i = 0; i < r->k; i++) {
        const uint32_t id = r->ids[row * r->k + i];
        const double want = (double)at[id] - most - log(sum);
        assert_true(i == 0 || id > r->ids[row * r->k + i - 1]);
        assert_true(rank_of(at, id) < r->k);
        assert_true(fabs((double)r->logprobs[row * r->k + i] - want) < 1e-4 * (1 + fabs(want)));
    }
}

static void test_top_k(void **state)
{
    static uint32_t ids[2][N_ROW * K_MAX];
    static float logprobs[2][N_ROW * K_MAX];
    struct kern_table k;
    struct team *team;
    (void)state;
    fill_logits();
    kern_table_cpu(&k, kern_caps_machine());
    assert_ok(team_new(&team, 3, false, &e), &e);
    for (uint32_t n = 1; n <= K_MAX; n += 13) {
        struct teach_rows r = {z, STRIDE, N_ROW, N_COL, n, ids[0], logprobs[0]};
        teach_top_k(&r, &k, NULL);
        for (uint32_t row = 0; row < N_ROW; row++)
            check_row(&r, row);
        r.ids = ids[1];
        r.logprobs = logprobs[1];
        teach_top_k(&r, &k, team);
        assert_memory_equal(ids[0], ids[1], N_ROW * n * sizeof **ids);
        assert_memory_equal(logprobs[0], logprobs[1], N_ROW * n * sizeof **logprobs);
    }
    team_free(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_question),      cmocka_unit_test(test_answer),
        cmocka_unit_test(test_wrong_answers), cmocka_unit_test(test_errors_and_models),
        cmocka_unit_test(test_top_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
