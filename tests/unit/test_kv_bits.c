/* SPDX-License-Identifier: Apache-2.0 */
/* KV dtypes: each gives the same bits for every chunk budget, number of threads and place of the
 * blocks; and tokens fed one by one are the tokens of a prompt. Compared with memcmp. */
#include "golden.h"

#define VOCAB_MAX 2560u
#define N_ONE     6u /* tokens at the end that are fed one by one */

struct kv_case {
    const char *dir;
    uint32_t n_token;
};

static const struct kv_case cases[] = {
    {"deploy/model/quire-tiny", 600}, /* more than the chunk budget of 512 */
    {GOLDEN_DIR "/qwen2-sliding-bf16", 250},
    {GOLDEN_DIR "/qwen3-v5cfg-f16", 250},
    {GOLDEN_DIR "/mistral", 250},
};
#define N_CASE (sizeof cases / sizeof *cases)

static const enum dtype kv_dtypes[] = {DT_F32, DT_BF16, DT_I8};
static const uint32_t budgets[] = {RUN_BATCH_MAX, 512, 64, 16}; /* the first: unlimited */

static float want[RUN_TOKENS_MAX * VOCAB_MAX], got[RUN_TOKENS_MAX * VOCAB_MAX];

static uint64_t random_ids(uint32_t *ids, uint32_t n, uint32_t vocab)
{
    uint64_t state = 20260401;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(run_random(&state) % vocab);
    return state;
}

/* All logits of the tokens, in chunks of `budget` and the last ones alone. */
static void feed(struct runner *r, const uint32_t *ids, uint32_t n, uint32_t budget, float *logits)
{
    size_t vocab = model_shape(r->model)->vocab_size;
    struct run_seq q = {.tokens = ids, .n_prompt = n};
    while (q.n_done < n) {
        uint32_t left = n - q.n_done, most = left > N_ONE ? left - N_ONE : 1;
        if (budget == RUN_BATCH_MAX)
            most = left;
        q.n_next = most < budget ? most : budget;
        q.logits = logits + q.n_done * vocab;
        run_step(r, &q, 1);
    }
}

static void check_dtype(const struct kv_case *c, enum dtype kv_dtype)
{
    static uint32_t ids[RUN_TOKENS_MAX];
    struct q_err e = Q_ERR_INIT;
    for (uint32_t n_thread = 1; n_thread <= 2; n_thread++) {
        struct runner r;
        struct runner_options o = {
            .dir = c->dir,
            .n_thread = n_thread,
            .caps = kern_caps_machine(),
            .dtype_auto = true,
            .kv_given = true,
            .kv_dtype = kv_dtype,
        };
        assert_ok(runner_open(&r, &o, &e), &e);
        assert_int_equal(r.kv.dtype, kv_dtype);
        uint32_t vocab = model_shape(r.model)->vocab_size;
        uint64_t seed = random_ids(ids, c->n_token, vocab);
        size_t n_value = (size_t)c->n_token * vocab;
        for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
            bool first = n_thread == 1 && i == 0;
            if (!first) /* the first keeps the runner's own places */
                runner_place(&r, seed + i + 10 * n_thread);
            feed(&r, ids, c->n_token, budgets[i], first ? want : got);
            if (!first && memcmp(want, got, n_value * sizeof *got) != 0)
                fail_msg("%s, KV %s, %u threads, chunks of %u: other bits", c->dir,
                         dtype_name(kv_dtype), n_thread, budgets[i]);
        }
        runner_close(&r);
    }
}

static void test_bits(void **state)
{
    const struct kv_case *c = *state;
    for (size_t i = 0; i < sizeof kv_dtypes / sizeof *kv_dtypes; i++)
        check_dtype(c, kv_dtypes[i]);
}

int main(void)
{
    struct CMUnitTest tests[N_CASE];
    for (size_t i = 0; i < N_CASE; i++)
        tests[i] = (struct CMUnitTest){strrchr(cases[i].dir, '/') + 1, test_bits, NULL, NULL,
                                       (void *)(uintptr_t)&cases[i]};
    return _cmocka_run_group_tests("kv_bits", tests, N_CASE, NULL, NULL);
}
