/* SPDX-License-Identifier: Apache-2.0 */
/* worker: one sequence through hand-made steps in the ring, in chunks and two steps deep; damaged
 * steps; failed loads. */
#include "check.h"
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include "common/file.h"
#include "engine/worker/worker.h"

#define MODEL "tests/data/models/llama"

static struct ring *ring;
static struct worker_info info;
static pthread_t thread;
static uint64_t i_step;
static const struct mask_provider *masks;

static void *run(void *arg)
{
    static struct q_err e;
    return worker_run(arg, masks, &e) ? &e : NULL;
}

static struct q_err start(const char *dir, uint32_t n_thread)
{
    struct worker_config c = {
        .dtype = DT_F32,
        .max_model_len = 256,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 64,
        .n_block = 20,
        .swap_bytes = 1 << 20,
        .n_thread = n_thread,
        .cpu_isa = "auto",
        .log_level = 3,
    };
    struct q_err e = Q_ERR_INIT;
    uint32_t percent;
    snprintf(c.model_dir, sizeof c.model_dir, "%s", dir);
    assert_ok(ring_new(&ring, &c, &e), &e);
    assert_int_equal(pthread_create(&thread, NULL, run, ring), 0);
    while (ring_state(ring, &percent, &e) == WORKER_LOADING) {
        struct pollfd p = {.fd = ring_event_fd(ring), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1);
        ring_event_clear(ring);
    }
    i_step = 0;
    if (ring_state(ring, &percent, &e) == WORKER_READY)
        assert_ok(ring_attach(ring, &info, &e), &e);
    return e;
}

static void stop(void)
{
    ring_stop(ring);
    pthread_join(thread, NULL);
    ring_free(ring);
}

static struct step_copy outs[4], ins[4]; /* of the next step */
static uint32_t n_out, n_in;

static void send_step(const struct step_seq *q, const struct step_admit *a, const uint32_t *known,
                      const uint32_t *blocks)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    const struct step_head h = {
        .step = ++i_step,
        .n_seq = 1,
        .n_admit = a != NULL,
        .n_block = q->n_new_block,
        .n_known = a ? a->n_known : 0,
        .n_token = q->n_token,
        .n_out = n_out,
        .n_in = n_in,
        .n_logit = q->flags & STEP_PROMPT_LOGPROBS ? q->n_token : (q->flags & STEP_SAMPLE) != 0,
    };
    assert_ok(step_layout(&v, ring_step_space(ring), info.step_bytes, &h, &e), &e);
    *v.seqs = *q;
    if (a) {
        *v.admits = *a;
        memcpy(v.known, known, a->n_known * sizeof *known);
    }
    memcpy(v.blocks, blocks, q->n_new_block * sizeof *blocks);
    memcpy(v.outs, outs, n_out * sizeof *outs);
    memcpy(v.ins, ins, n_in * sizeof *ins);
    n_out = n_in = 0;
    ring_step_send(ring);
}

static struct step_result receive(void)
{
    struct q_err e = Q_ERR_INIT;
    struct step_result r;
    void *memory;
    while (!(memory = ring_result_next(ring))) {
        struct pollfd p = {.fd = ring_event_fd(ring), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1);
        ring_event_clear(ring);
    }
    assert_ok(step_result_view(&r, memory, info.result_bytes, &info.limits, &e), &e);
    return r;
}

static uint32_t ids_of(const json_t *list, uint32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static struct step_admit admit_of(uint32_t n_prompt)
{
    struct step_admit a = {.n_known = n_prompt, .n_prompt = n_prompt};
    sample_params_default(&a.params);
    a.params.temperature = 0;
    return a;
}

static void chunks_and_decoding_give_the_reference(void **state)
{
    (void)state;
    json_error_t je;
    json_t *root = json_load_file(MODEL "/golden.json", 0, &je);
    assert_non_null(root);
    const json_t *golden = json_array_get(json_object_get(root, "prompts"), 3); /* 33 tokens */
    uint32_t prompt[64], greedy[64], blocks[16], n_block_used = 0;
    uint32_t n = ids_of(json_object_get(golden, "ids"), prompt),
             n_greedy = ids_of(json_object_get(golden, "greedy"), greedy);
    for (uint32_t i = 0; i < 16; i++)
        blocks[i] = 19 - i;
    for (uint32_t chunk = 5; chunk <= 64; chunk += 14) {
        assert_int_equal(start(MODEL, chunk % 2 + 1).code, Q_OK);
        struct step_admit a = admit_of(n);
        n_block_used = 0;
        uint32_t in_flight = 0, n_got = 0;
        for (uint32_t at = 0; at < n + n_greedy - 1 || in_flight;) {
            while (in_flight < RING_DEPTH && at < n + n_greedy - 1) {
                struct step_seq q = {.slot = 2, .start = at};
                q.n_token = at < n ? (n - at < chunk ? n - at : chunk) : 1;
                q.flags = (at == 0 ? STEP_ADMIT : 0u) | (at + q.n_token >= n ? STEP_SAMPLE : 0u);
                uint32_t need = (at + q.n_token + 15) / 16;
                q.n_new_block = need - n_block_used;
                send_step(&q, at == 0 ? &a : NULL, prompt, blocks + n_block_used);
                n_block_used = need;
                at += q.n_token;
                in_flight++;
            }
            struct step_result r = receive();
            assert_int_equal(r.head->error, Q_OK);
            for (uint32_t i = 0; i < r.head->n_row; i++) {
                assert_int_equal(r.rows[i].token, greedy[n_got]);
                assert_int_equal(r.rows[i].position, n + n_got);
                assert_int_equal(r.rows[i].slot, 2);
                n_got++;
            }
            ring_result_take(ring);
            in_flight--;
        }
        assert_int_equal(n_got, n_greedy);
        stop();
    }
    json_decref(root);
}

/* A grammar in which only id 7 + (sum of the history) % 50 may come next, thought about for some
 * time; what it was asked is written down. */
struct fake {
    pthread_t thread;
    uint32_t n_ask, n_known_max;
    uint64_t grammars;
};

static uint32_t only(const uint32_t *history, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += history[i];
    return 7 + sum % 50;
}

static void fake_fill(void *ctx, const struct mask_job *ask, uint32_t *bits)
{
    struct fake *f = ctx;
    f->thread = pthread_self();
    f->n_ask++;
    f->grammars |= UINT64_C(1) << ask->grammar;
    if (ask->n_known > f->n_known_max)
        f->n_known_max = ask->n_known;
    if (ask->n_known % 2)
        usleep(3000); /* sometimes later than the forward pass */
    uint32_t id = only(ask->history, ask->n_known);
    if (ask->grammar != 9) /* 9 lets nothing come */
        bits[id / 32] |= 1u << id % 32;
}

/* Requests with and without a grammar in the same steps, two steps deep. */
static void masks_come_from_their_own_thread(void **state)
{
    (void)state;
    struct fake fake = {.n_ask = 0};
    const struct mask_provider provider = {.fill = fake_fill, .ctx = &fake};
    uint32_t history[64] = {1, 2, 3}, n_known = 3;
    const uint32_t blocks[] = {4, 5, 6};
    masks = &provider;
    assert_int_equal(start(MODEL, 2).code, Q_OK);
    struct step_admit a = admit_of(3);
    a.params.grammar = 5;
    uint32_t in_flight = 0;
    for (uint32_t at = 0, n_block = 0; n_known < 35;) {
        for (; in_flight < RING_DEPTH && at < 34; in_flight++) {
            struct step_seq q = {.slot = 1, .start = at, .n_token = at ? 1 : 3};
            q.flags = STEP_SAMPLE | (at ? 0u : STEP_ADMIT);
            q.n_new_block = (at + q.n_token + 15) / 16 - n_block;
            send_step(&q, at ? NULL : &a, history, blocks + n_block);
            n_block += q.n_new_block;
            at += q.n_token;
        }
        struct step_result r = receive();
        assert_int_equal(r.head->n_row, 1);
        assert_int_equal(r.rows[0].token, only(history, n_known));
        history[n_known++] = r.rows[0].token;
        ring_result_take(ring);
        in_flight--;
    }
    assert_int_equal(fake.n_ask, 32);
    assert_int_equal(fake.n_known_max, 34);
    assert_true(!pthread_equal(fake.thread, thread)); /* a side thread */
    /* no token is allowed: the request fails; without a grammar there is no mask */
    const struct step_seq q = {
        .slot = 2,
        .flags = STEP_ADMIT | STEP_SAMPLE,
        .n_token = 3,
        .n_new_block = 1,
    };
    a.params.grammar = 9;
    send_step(&q, &a, history, blocks);
    assert_int_equal(receive().rows[0].rank, SAMPLE_EMPTY);
    ring_result_take(ring);
    a.params.grammar = 0;
    send_step(&q, &a, history, blocks);
    assert_int_equal(receive().rows[0].rank, 0);
    ring_result_take(ring);
    assert_int_equal(fake.n_ask, 33);
    assert_true(fake.grammars == (1u << 5 | 1u << 9));
    stop();
    masks = NULL;
    /* our own provider: a grammar without a program lets nothing come */
    assert_int_equal(start(MODEL, 1).code, Q_OK);
    a.params.grammar = 5;
    send_step(&q, &a, history, blocks);
    assert_int_equal(receive().rows[0].rank, SAMPLE_EMPTY);
    ring_result_take(ring);
    stop();
}

/* Steps that step_view accepts and a worker must still refuse; it continues afterwards. */
static void wrong_steps_are_answered_with_an_error(void **state)
{
    (void)state;
    assert_int_equal(start(MODEL, 1).code, Q_OK);
    const uint32_t good[] = {1, 2, 3}, bad_id[] = {1, 1u << 30, 3}, blocks[] = {0},
                   bad_block[] = {20};
    struct step_admit a = admit_of(3);
    const struct step_seq all = {
        .slot = 1,
        .flags = STEP_ADMIT | STEP_SAMPLE,
        .n_token = 3,
        .n_new_block = 1,
    };
    struct step_seq no_block = all, ahead = {.slot = 1, .start = 5, .n_token = 1},
                    early = {.slot = 1, .flags = STEP_SAMPLE, .start = 0, .n_token = 2},
                    fresh = {.slot = 3, .n_token = 1};
    no_block.n_new_block = 0;
    const struct {
        const struct step_seq *q;
        const struct step_admit *a;
        const uint32_t *known, *blocks;
        bool ok;
    } steps[] = {
        {&all, &a, bad_id, blocks, false},    {&all, &a, good, bad_block, false},
        {&no_block, &a, good, blocks, false}, {&fresh, NULL, good, blocks, false},
        {&all, &a, good, blocks, true},       {&ahead, NULL, good, blocks, false},
        {&early, NULL, good, blocks, false},  {&all, &a, good, blocks, true},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        send_step(steps[i].q, steps[i].a, steps[i].known, steps[i].blocks);
        struct step_result r = receive();
        assert_int_equal(r.head->error, steps[i].ok ? Q_OK : Q_CORRUPT);
        assert_int_equal(r.head->n_row, steps[i].ok);
        assert_int_equal(r.head->step, i_step);
        ring_result_take(ring);
    }
    memset(ring_step_space(ring), 0xff, info.step_bytes); /* not even a step */
    ring_step_send(ring);
    assert_int_equal(receive().head->error, Q_CORRUPT);
    ring_result_take(ring);
    stop();
}

/* One step of three tokens in slot 1 with lists; the token sampled, or the error's number. */
static uint32_t with_lists(uint32_t n_allowed, uint32_t n_bad, const uint32_t *lists)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    const struct step_head h = {
        .step = ++i_step,
        .n_seq = 1,
        .n_admit = 1,
        .n_block = 1,
        .n_known = 3,
        .n_list = n_allowed + n_bad,
        .n_token = 3,
        .n_logit = 1,
    };
    assert_ok(step_layout(&v, ring_step_space(ring), info.step_bytes, &h, &e), &e);
    *v.seqs = (struct step_seq){
        .slot = 1,
        .flags = STEP_ADMIT | STEP_SAMPLE,
        .n_token = 3,
        .n_new_block = 1,
    };
    *v.admits = admit_of(3);
    v.admits->n_allowed = n_allowed;
    v.admits->n_bad = n_bad;
    for (uint32_t i = 0; i < 3; i++)
        v.known[i] = 1 + i;
    v.blocks[0] = 0;
    if (h.n_list)
        memcpy(v.lists, lists, h.n_list * sizeof *lists);
    ring_step_send(ring);
    struct step_result r = receive();
    uint32_t got = r.head->error ? UINT32_MAX - r.head->error : r.rows[0].token;
    ring_result_take(ring);
    return got;
}

/* Lists of allowed ids and bad words that step_view cannot check; nothing of them stays. */
static void wrong_lists_are_answered_with_an_error(void **state)
{
    (void)state;
    static uint32_t many[SAMPLE_ALLOWED_MAX + 1]; /* zeros: ids there are, words of no length */
    const uint32_t corrupt = UINT32_MAX - Q_CORRUPT;
    assert_int_equal(start(MODEL, 1).code, Q_OK);
    const uint32_t last = info.shape.vocab_size - 1, best = with_lists(0, 0, NULL);
    assert_true(best < last);
    const struct {
        uint32_t n_allowed, n_bad, lists[4];
        bool ok;
    } cases[] = {
        {2, 0, {5, last + 1}, false},  {2, 0, {UINT32_MAX, 5}, false}, {0, 2, {1, last + 1}, false},
        {0, 2, {3, 7}, false},         {0, 2, {0, 7}, false},          {1, 2, {last, 2, 7}, false},
        {1, 2, {last, 1, best}, true}, {1, 0, {last}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(with_lists(cases[i].n_allowed, cases[i].n_bad, cases[i].lists),
                         cases[i].ok ? last : corrupt);
    assert_int_equal(with_lists(SAMPLE_ALLOWED_MAX + 1, 0, many), corrupt);
    assert_int_equal(with_lists(0, SAMPLE_BAD_MAX + 1, many), corrupt);
    const uint32_t not_best[] = {1, best};
    assert_true(with_lists(0, 2, not_best) != best);
    assert_int_equal(with_lists(0, 0, NULL), best);
    stop();
}

static uint32_t token_of_step(void)
{
    struct step_result r = receive();
    assert_int_equal(r.head->error, Q_OK);
    assert_int_equal(r.head->n_row, 1);
    uint32_t token = r.rows[0].token;
    ring_result_take(ring);
    return token;
}

/* Three copies of blocks to or from the host blocks at `host` and, one each, `by` further. */
static uint32_t copy_three(struct step_copy *to, const uint32_t blocks[3], uint32_t host, int by)
{
    for (int i = 0; i < 3; i++)
        to[i] = (struct step_copy){.block = blocks[i], .host = host + (uint32_t)(by * i)};
    return 3;
}

/* A sequence of two blocks goes to host memory while another takes its blocks in the same step,
 * comes back into other blocks, and goes out and in again within one step. */
static void blocks_are_copied_out_before_in_before_rows(void **state)
{
    (void)state;
    json_error_t je;
    json_t *root = json_load_file(MODEL "/golden.json", 0, &je);
    const json_t *golden = json_array_get(json_object_get(root, "prompts"), 3); /* 33 tokens */
    uint32_t known[80], greedy[64], other[40];
    uint32_t n = ids_of(json_object_get(golden, "ids"), known);
    ids_of(json_object_get(golden, "greedy"), greedy);
    for (uint32_t i = 0; i < 40; i++)
        other[i] = 7 + i;
    for (uint32_t n_thread = 1; n_thread <= 2; n_thread++) {
        static const uint32_t first[] = {0, 1, 2}, second[] = {9, 4, 17}, third[] = {2, 1, 0};
        assert_int_equal(start(MODEL, n_thread).code, Q_OK);
        assert_true(info.n_swap_block > 6 && info.limits.copies_max == 32);
        struct step_admit a = admit_of(n);
        struct step_seq q = {
            .slot = 0,
            .flags = STEP_ADMIT | STEP_SAMPLE,
            .n_token = n,
            .n_new_block = 3,
        };
        send_step(&q, &a, known, first);
        assert_int_equal(token_of_step(), greedy[0]);
        known[n] = greedy[0];
        n_out = copy_three(outs, first, 6, -1);
        struct step_admit b = admit_of(40);
        q = (struct step_seq){
            .slot = 1,
            .flags = STEP_ADMIT | STEP_SAMPLE,
            .n_token = 40,
            .n_new_block = 3,
        };
        send_step(&q, &b, other, first);
        token_of_step();
        n_in = copy_three(ins, second, 6, -1);
        a.n_known = n + 1;
        a.n_restored = n;
        q = (struct step_seq){
            .slot = 2,
            .flags = STEP_ADMIT | STEP_SAMPLE,
            .start = n,
            .n_token = 1,
            .n_new_block = 3,
        };
        send_step(&q, &a, known, second);
        assert_int_equal(token_of_step(), greedy[1]);
        known[n + 1] = greedy[1];
        n_out = copy_three(outs, second, 0, 1);
        n_in = copy_three(ins, third, 0, 1);
        a.n_known = n + 2;
        a.n_restored = n + 1;
        q.slot = 3;
        q.start = n + 1;
        send_step(&q, &a, known, third);
        assert_int_equal(token_of_step(), greedy[2]);
        const struct step_copy bad[] = {{20, 0}, {0, info.n_swap_block}};
        for (uint32_t i = 0; i < 4; i++) {
            *(i % 2 ? ins : outs) = bad[i / 2];
            *(i % 2 ? &n_in : &n_out) = 1;
            send_step(&q, &a, known, third);
            assert_int_equal(receive().head->error, Q_CORRUPT);
            ring_result_take(ring);
        }
        stop();
    }
    json_decref(root);
}

static void a_missing_model_is_reported(void **state)
{
    (void)state;
    struct q_err e = start("/nowhere/model", 1);
    assert_int_equal(e.code, Q_NOT_FOUND);
    assert_non_null(strstr(e.message, "/nowhere/model"));
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_decoding_give_the_reference),
        cmocka_unit_test(masks_come_from_their_own_thread),
        cmocka_unit_test(wrong_steps_are_answered_with_an_error),
        cmocka_unit_test(wrong_lists_are_answered_with_an_error),
        cmocka_unit_test(blocks_are_copied_out_before_in_before_rows),
        cmocka_unit_test(a_missing_model_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
