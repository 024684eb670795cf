/* SPDX-License-Identifier: Apache-2.0 */
/* quire.h when memory runs out: every allocation of open, submit and answer fails once, and each
 * time the caller gets an error, nothing leaks (asan), nothing hangs, and the next try works. */
#include "engine_goldens.h"
#include <stdlib.h>
#include "common/mem.h"
#include "engine/quire.h"

#define EDGE 100 /* allocations */

static bool refused(enum quire_code rc, const struct quire_error *e)
{
    if (rc == QUIRE_OK)
        return false;
    assert_int_equal(rc, e->code);
    assert_true(e->message[0] != '\0');
    return true;
}

/* One request from submit to finish. False: it was refused or ended with an error. */
static bool answer(struct quire_engine *engine, const struct golden_prompt *g)
{
    struct quire_request *r = NULL;
    struct quire_error e = {0};
    struct quire_event ev = {.kind = QUIRE_TOKEN};
    struct quire_params p;
    const uint32_t bias_ids[] = {3};
    const float bias[] = {0};
    uint32_t n = 0;
    quire_params_init(&p, sizeof p);
    p.ids = g->ids;
    p.n_ids = g->n;
    p.temperature = 0;
    p.max_tokens = 4;
    p.ignore_eos = true;
    p.logprobs = 2;
    p.bias_ids = bias_ids;
    p.bias = bias;
    p.n_bias = 1;
    if (refused(quire_submit(&r, engine, &p, &e), &e))
        return false;
    bool ok = true;
    while (ok && ev.kind != QUIRE_FINISH) {
        ok = !refused(quire_next(r, &ev, 60000, &e), &e);
        if (ok && ev.kind == QUIRE_TOKEN)
            assert_int_equal(ev.token, g->greedy[n++]);
        assert_true(e.code != QUIRE_TIMEOUT);
    }
    if (ok)
        assert_int_equal(n, 4);
    quire_request_free(r);
    return ok;
}

static struct quire_options options_of(const char *dir)
{
    struct quire_options o;
    quire_options_init(&o, sizeof o);
    o.model = dir;
    o.dtype = "float32";
    o.max_num_seqs = 2;
    o.max_num_batched_tokens = 64;
    o.max_num_queued_reqs = 4;
    o.num_blocks = 32;
    o.threads = 2;
    o.pin_threads = false;
    o.skip_tokenizer = true;
    return o;
}

static void opening_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    int64_t n = 0;
    for (bool failed = true; failed; n++) {
        struct quire_engine *engine = NULL;
        struct quire_error e = {0};
        mem_fail_after(n);
        failed = refused(quire_engine_open(&engine, &o, &e), &e);
        mem_fail_after(-1);
        if (!failed)
            assert_true(answer(engine, &g.prompts[1]));
        quire_engine_close(engine);
    }
    assert_true(n > 50);
}

static void answers_survive_every_failed_allocation(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    struct quire_engine *engine = NULL;
    struct quire_error e = {0};
    if (refused(quire_engine_open(&engine, &o, &e), &e))
        fail_msg("%s", e.message);
    bool ok = false;
    for (int64_t n = 0; !ok; n++) {
        mem_fail_after(n);
        ok = answer(engine, &g.prompts[1]);
        mem_fail_after(-1);
        assert_true(ok || answer(engine, &g.prompts[1])); /* the engine is as good as before */
    }
    struct quire_stats stats = {.size = sizeof stats};
    quire_engine_stats(engine, &stats);
    assert_int_equal(stats.running + stats.waiting + stats.blocks_used, 0);
    quire_engine_close(engine);
}

/* The n-th call's tools: the grammar of each is another, so that each is compiled. */
static const char *tools_of(int64_t n)
{
    static char text[256];
    snprintf(text, sizeof text,
             "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":"
             "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
             "\"maxLength\":%d}}}}}]",
             (int)n + 16);
    return text;
}

/* A call, from the JSON to the message; `choice` is NULL or tool_choice. False: an allocation
 * failed on the way. */
static bool converse(struct quire_engine *engine, const char *choice, int64_t n)
{
    struct quire_request *r = NULL;
    struct quire_error e = {0};
    struct quire_event ev = {.kind = QUIRE_TOKEN};
    struct quire_params p;
    quire_params_init(&p, sizeof p);
    p.user = "What is the weather in Oslo?";
    p.tools_json = tools_of(n);
    p.tool_choice_json = choice;
    p.max_tokens = 64;
    if (refused(quire_submit(&r, engine, &p, &e), &e))
        return false;
    bool ok = true;
    while (ok && ev.kind != QUIRE_FINISH)
        ok = !refused(quire_next(r, &ev, 60000, &e), &e);
    assert_true(e.code != QUIRE_TIMEOUT);
    if (ok) {
        assert_int_equal(ev.finish, QUIRE_FINISH_TOOL_CALLS);
        ok = *quire_request_message(r) != '\0';
    }
    quire_request_free(r);
    return ok;
}

/* Every allocation of the beginning and the end; of a long middle (a grammar is compiled by
 * thousands of small ones) as many as take seconds. */
static int64_t step_at(int64_t n, int64_t n_alloc)
{
    int64_t n_middle = n_alloc - 2 * EDGE;
    return n < EDGE || n >= n_alloc - EDGE || n_middle <= EDGE ? 1 : (n_middle + EDGE - 1) / EDGE;
}

static void calls_survive_failed_allocations(const char *choice)
{
    struct quire_options o = options_of("deploy/model/quire-tiny");
    o.max_model_len = 512;
    struct quire_engine *engine = NULL;
    struct quire_error e = {0};
    o.skip_tokenizer = false;
    o.max_num_batched_tokens = 256;
    if (refused(quire_engine_open(&engine, &o, &e), &e))
        fail_msg("%s", e.message);
    assert_true(converse(engine, choice, 0)); /* what happens once has happened */
    uint64_t before = mem_alloc_count();
    assert_true(converse(engine, choice, 1));
    int64_t n_alloc = (int64_t)(mem_alloc_count() - before), n_failed = 0;
    print_message("%d allocations\n", (int)n_alloc);
    assert_true(n_alloc > 50);
    for (int64_t n = 0; n < n_alloc; n += step_at(n, n_alloc)) {
        mem_fail_after(n);
        n_failed += !converse(engine, choice, n + 2);
        mem_fail_after(-1);
    }
    assert_true(n_failed > 20);
    assert_true(converse(engine, choice, 1));
    quire_engine_close(engine);
}

static void conversations_survive_failed_allocations(void **state)
{
    (void)state;
    calls_survive_failed_allocations(NULL);
}

/* The grammar of a forced call is compiled by a thread of its own. */
static void forced_calls_survive_failed_allocations(void **state)
{
    (void)state;
    calls_survive_failed_allocations("\"required\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives_every_failed_allocation),
        cmocka_unit_test(answers_survive_every_failed_allocation),
        cmocka_unit_test(conversations_survive_failed_allocations),
        cmocka_unit_test(forced_calls_survive_failed_allocations),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
