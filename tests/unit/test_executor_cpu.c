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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fusions_change_no_bit),
        cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_meetings_before_blocks),
        cmocka_unit_test(test_memory),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
