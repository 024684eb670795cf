/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's executor: a program without fusions gives the bits of the fused one; where the threads
 * meet; which buffers share memory. */
#include "engine/model/forward/cpu_scratch.h"
#include "common/log.h"
#include "golden.h"

#define VOCAB  512u
#define N_LONG 90u

static struct q_err e = Q_ERR_INIT;
static float want[N_LONG * VOCAB], got[N_LONG * VOCAB];

struct way {
    const char *model;
    enum dtype dtype;
    enum quantization quantization;
    uint32_t meetings; /* of the threads in the last layer, decoding one sequence */
    bool all_meet;     /* without fusions as many: norms behind each branch part its operations */
};
static const struct way ways[] = {
    {"llama", DT_F32, QUANTIZE_NOT, 6, false},
    {"llama-bias-tied", DT_BF16, QUANTIZE_NOT, 6, false},
    {"mistral", DT_F16, QUANTIZE_NOT, 6, false},
    {"qwen3", DT_F32, QUANTIZE_INT8, 6, false},
    {"llama-bias-tied", DT_F32, QUANTIZE_INT4, 6, false},
    {"deepseek_v2", DT_BF16, QUANTIZE_NOT, 12, false},
    {"deepseek_v3", DT_F32, QUANTIZE_INT8, 14, false},
    {"gemma2", DT_F32, QUANTIZE_NOT, 8, true},
    {"gemma2", DT_BF16, QUANTIZE_INT8, 8, true},
    {"gpt_neox", DT_BF16, QUANTIZE_NOT, 5, false},
    {"gpt_neox", DT_F32, QUANTIZE_INT8, 5, false},
    {"granite", DT_F32, QUANTIZE_NOT, 8, true},
    {"phi", DT_BF16, QUANTIZE_NOT, 5, false},
    {"phi3-longrope", DT_F32, QUANTIZE_INT4, 6, false},
    {"olmoe", DT_BF16, QUANTIZE_NOT, 8, false},
    {"mixtral", DT_F32, QUANTIZE_INT8, 8, false},
    {"qwen3_moe", DT_F32, QUANTIZE_INT4, 8, false},
    {"granitemoe", DT_F32, QUANTIZE_NOT, 9, true},
    {"gpt_oss", DT_F32, QUANTIZE_NOT, 8, false},
    {"gpt_oss-mxfp4", DT_BF16, QUANTIZE_INT8, 8, false},
    {"qwen2_moe", DT_F32, QUANTIZE_NOT, 9, false},
    {"qwen2_moe", DT_BF16, QUANTIZE_INT8, 9, false},
};
#define N_WAY (sizeof ways / sizeof *ways)

static void open_way(struct runner *r, const struct way *way, uint32_t n_thread, bool no_fusion)
{
    char dir[200];
    snprintf(dir, sizeof dir, "%s/%s", GOLDEN_DIR, way->model);
    assert_ok(runner_open(r,
                          &(struct runner_options){
                              .dir = dir,
                              .n_thread = n_thread,
                              .caps = kern_caps_machine(),
                              .dtype = way->dtype,
                              .quantization = way->quantization,
                              .no_fusion = no_fusion,
                          },
                          &e),
              &e);
}

/* A prompt at once, some rows, and one by one. */
static void answer(float *out, const struct way *way, uint32_t n_thread, bool no_fusion)
{
    struct runner r;
    uint32_t ids[N_LONG];
    uint64_t random = 3;
    struct run_seq q = {.tokens = ids, .n_prompt = N_LONG};
    open_way(&r, way, n_thread, no_fusion);
    for (uint32_t i = 0; i < N_LONG; i++)
        ids[i] = (uint32_t)(run_random(&random) % VOCAB);
    while (q.n_done < N_LONG) {
        q.n_next = q.n_done == 0 ? 70 : q.n_done < 80 ? 5 : 1;
        q.logits = out + (size_t)q.n_done * VOCAB;
        run_step(&r, &q, 1);
    }
    runner_close(&r);
}

static void test_fusions_change_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WAY; i++) {
        answer(want, &ways[i], 1, false);
        for (uint32_t n_thread = 1; n_thread <= 3; n_thread += 2) {
            answer(got, &ways[i], n_thread, true);
            print_message("%s, way %zu, %u threads\n", ways[i].model, i, n_thread);
            assert_memory_equal(got, want, sizeof want);
        }
    }
}

/* Barriers of the last layer in blocks of n_row rows. */
static uint32_t meetings(const struct runner *r, uint32_t n_row)
{
    const struct layer_program *p = &r->model->program;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_stage; i++)
        if (p->ops[p->stages[i].first].layer == p->n_layer - 1)
            n += r->scratch->stages[i].barrier >> cpu_mode(n_row) & 1;
    return n;
}

static void test_meetings(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WAY; i++) {
        struct runner r;
        open_way(&r, &ways[i], 2, false);
        assert_int_equal(meetings(&r, 1), ways[i].meetings);
        /* An add of its own goes by rows: a norm of the same rows behind it needs no barrier. */
        assert_true(meetings(&r, 100) + ways[i].all_meet > meetings(&r, 8));
        runner_close(&r);
        open_way(&r, &ways[i], 2, true);
        assert_true(ways[i].all_meet ? meetings(&r, 1) == ways[i].meetings
                                     : meetings(&r, 1) > ways[i].meetings);

        runner_close(&r);
    }
}

/* BLOOM has a norm behind the embedding, which goes through all rows of the step by shares of
 * threads. Layers go through blocks of rows, whose shares are other rows: the threads meet between
 * them. */
static void test_meetings_before_blocks(void **state)
{
    static const struct way way = {.model = "bloom", .dtype = DT_F32};
    struct runner r;
    (void)state;
    open_way(&r, &way, 2, false);
    const struct layer_program *p = &r.model->program;
    const struct cpu_stage *stages = r.scratch->stages;
    const uint32_t last = p->passes[0].n - 1, next = p->passes[1].first;
    assert_true(p->passes[0].layer == PROGRAM_NO_LAYER && p->passes[1].layer == 0);
    assert_true(p->ops[p->stages[last].first].kind == PROGRAM_NORM && next == last + 1);
    assert_true(stages[next].barrier >> (CPU_MODES - 1) & 1);
    runner_close(&r);
}

/* Inputs of products that are not needed together share memory, others lie alone. */
static void test_memory(void **state)
{
    (void)state;
    struct runner r;
    open_way(&r, &ways[3], 2, false);
    const uint64_t *overlaps = r.scratch->overlaps;
    assert_true(overlaps[PROGRAM_B_A_Q] >> PROGRAM_B_H_Q & 1);
    assert_true(r.scratch->buffers[PROGRAM_B_A_Q].x == r.scratch->buffers[PROGRAM_B_H_Q].x);
    assert_false(overlaps[PROGRAM_B_ACT_Q] >> PROGRAM_B_H_Q & 1);
    static const uint32_t alone[] = {PROGRAM_B_X, PROGRAM_B_QKV, PROGRAM_B_A, PROGRAM_B_ACT_Q};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        assert_true(overlaps[alone[i]] == 1ull << alone[i]);
    runner_close(&r);
}

/* ---- rows that nobody asks for ---- */

static uint32_t n_attended; /* rows of all calls */
static void (*attention)(const struct attention_args *a, const struct kern_exec *x);

static void count_rows(const struct attention_args *a, const struct kern_exec *x)
{
    for (uint32_t i = 0; i < a->n_seq; i++)
        n_attended += a->seqs[i].n_query;
    attention(a, x);
}

/* The last layer computes the rows alone that are asked for; all, where they may be later. */
static void test_rows_left_out(void **state)
{
    struct runner r;
    uint32_t ids[70] = {0};
    float *taps[64] = {NULL};
    (void)state;
    open_way(&r, &ways[0], 1, false);
    attention = r.kern.attention;
    r.kern.attention = count_rows;
    const uint32_t before = (model_shape(r.model)->n_layer - 1) * 70;
    const uint32_t asked[] = {0, 1, 3, 70};
    for (size_t i = 0; i < 4; i++) {
        struct run_seq q = {.tokens = ids, .n_prompt = 70, .n_next = 70};
        q.n_unasked = 70 - asked[i];
        q.logits = asked[i] ? got : NULL;
        n_attended = 0;
        run_step(&r, &q, 1);
        assert_int_equal(n_attended, before + asked[i]);
    }
    r.tap = taps; /* who reads hidden states reads all of them */
    n_attended = 0;
    run_step(&r, &(struct run_seq){.tokens = ids, .n_prompt = 70, .n_next = 70}, 1);
    assert_int_equal(n_attended, before + 70);
    const struct model_shape *s = model_shape(r.model);
    assert_int_equal(s->asked_context_ops * s->n_layer, s->context_ops);
    assert_true(s->asked_row_ops && s->asked_row_ops * s->n_layer < s->row_ops); /* not q, k, v */
    runner_close(&r);
}

/* Sequences by their numbers of rows, rows that are asked for; spans, rows of each sequence in
 * them. */
static const struct {
    uint32_t seqs[6], asked[8];
    struct cpu_rows spans[4];
    uint32_t left[6];
} span_cases[] = {
    {{100}, {99}, {{99, 1}}, {1}},
    {{100}, {10, 99}, {{10, 90}}, {90}},
    {{1, 1, 1}, {0, 1, 2}, {{0, 3}}, {1, 1, 1}},
    {{1, 1, 100}, {0, 1, 101}, {{0, 2}, {101, 1}}, {1, 1, 1}},
    {{1, 32, 1}, {0, 32}, {{0, 33}}, {1, 32, 0}},
    {{1, 33, 40}, {0, 33, 73}, {{0, 1}, {33, 1}, {73, 1}}, {1, 1, 1}},
    {{50, 10, 10, 90}, {49, 69}, {{49, 21}}, {1, 10, 10, 0}},
    {{50, 60, 90}, {49, 199}, {{49, 1}, {199, 1}}, {1, 0, 1}},
};

static void test_spans(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof span_cases / sizeof *span_cases; i++) {
        struct attention_seq in[6], out[6];
        struct cpu_rows rows[6];
        struct cpu_spans s = {.rows = rows, .seqs = out};
        struct batch b = {.seqs = in, .logit_rows = span_cases[i].asked, .n_logit = 1};
        uint32_t n_span = 0, n_left = 0;
        for (; span_cases[i].seqs[b.n_seq]; b.n_token += in[b.n_seq++].n_query)
            in[b.n_seq] = (struct attention_seq){NULL, b.n_token, span_cases[i].seqs[b.n_seq], 7};
        while (span_cases[i].asked[b.n_logit])
            b.n_logit++;
        cpu_spans_make(&s, &b);
        for (; span_cases[i].spans[n_span].n; n_span++) {
            assert_int_equal(rows[n_span].at, span_cases[i].spans[n_span].at);
            assert_int_equal(rows[n_span].n, span_cases[i].spans[n_span].n);
        }
        assert_int_equal(s.n_row, n_span);
        for (uint32_t k = 0; k < b.n_seq; k++) {
            const uint32_t left = span_cases[i].left[k];
            if (!left)
                continue;
            assert_int_equal(out[n_left].n_query, left);
            assert_int_equal(out[n_left].row + left, in[k].row + in[k].n_query);
            assert_int_equal(out[n_left].start + left, 7 + in[k].n_query);
            n_left++;
        }
        assert_int_equal(s.n_seq, n_left);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fusions_change_no_bit),  cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_meetings_before_blocks), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_rows_left_out),          cmocka_unit_test(test_spans),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
