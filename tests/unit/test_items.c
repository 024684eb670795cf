/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs that are no tokens, from a submit to the rows of a step: the same bits however a request
 * is computed, what they are refused for, and the memory they lie in. */
#include "items_run.h"

static struct bits_answer want;
static struct items_request mixed;

static void close_core(void)
{
    core_free(engine.core);
    engine.core = NULL;
}

/* One request alone in a fresh engine, in one chunk. */
static struct bits_answer alone(const struct items_request *r)
{
    struct core_config c = items_config();
    c.prefix_cache = false;
    c.worker.max_num_batched_tokens = 144;
    open_core(&c);
    ask_items(r, 1);
    finish_all(1);
    close_core();
    return answers[1];
}

static void expect(uint64_t req_id, const struct bits_answer *a, const char *what)
{
    if (memcmp(&answers[req_id], a, sizeof *a) != 0)
        fail_msg("%s, request %u: other tokens, or other bits of logprobs", what, (unsigned)req_id);
}

static void items_count(void **state)
{
    (void)state;
    struct items_request other;
    make_mixed(&other, 5);
    const struct bits_answer a = alone(&other);
    assert_int_equal(want.n, 24);
    assert_int_equal(want.sampled[0].position, 72);
    if (!memcmp(&a, &want, sizeof a))
        fail_msg("other items, the same answer");
}

static void any_chunk_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 2, 3, 5, 7, 15, 16, 18, 20, 36, 71};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct core_config c = items_config();
        c.worker.max_num_batched_tokens = chunks[i];
        c.worker.max_num_seqs = 1;
        open_core(&c);
        ask_items(&mixed, 1);
        finish_all(1);
        expect(1, &want, "in chunks");
        close_core();
    }
}

static void any_batch_gives_the_same_bits(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct items_request others[7];
    c.worker.max_num_batched_tokens = 50;
    c.worker.n_thread = 3; /* several items at once */
    c.prefix_cache = false;
    c.worker.n_block = 128;
    open_core(&c);
    for (uint32_t i = 0; i < 7; i++) {
        make_mixed(&others[i], i);
        ask_items(i == 3 ? &mixed : &others[i], i);
    }
    finish_all(7);
    expect(3, &want, "among others");
    close_core();
}

static void preempted_in_both_ways(void **state)
{
    (void)state;
    struct scheduler_stats s;
    for (int mode = PREEMPT_SWAP; mode <= PREEMPT_RECOMPUTE; mode++) {
        struct core_config c = items_config();
        c.policy.preemption = (enum preemption_mode)mode;
        c.worker.swap_bytes = 1u << 24;
        c.prefix_cache = false;
        c.worker.n_block = 9; /* one request, and a part of another */
        open_core(&c);
        for (uint32_t i = 0; i < 4; i++)
            ask_items(&mixed, i);
        while (engine.n_finished < 4) {
            struct q_err e = Q_ERR_INIT;
            core_preempt_last(engine.core);
            assert_ok(core_step(engine.core, &e), &e); /* plans, so that there is news */
            if (engine.n_finished < 4)
                bits_turn(&engine);
        }
        for (uint32_t i = 0; i < 4; i++)
            expect(i, &want, "preempted");
        core_stats(engine.core, &s);
        assert_true(s.n_preemption > 0);
        assert_true(mode == PREEMPT_RECOMPUTE ? s.n_swap_out == 0 : s.n_swap_out > 0);
        close_core();
    }
}

/* Blocks are shared by what the items are, not by their placeholders. */
static void the_cache_knows_contents(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct items_request other;
    make_mixed(&other, 5);
    open_core(&c);
    ask_items(&mixed, 1);
    finish_all(1);
    ask_items(&mixed, 2);
    finish_all(2);
    expect(1, &want, "cold");
    expect(2, &want, "from the cache");
    assert_int_equal(engine.notes[1].n_cached, 0);
    assert_int_equal(engine.notes[2].n_cached, 64);
    ask_items(&other, 3); /* its first grid begins in the first block */
    finish_all(3);
    assert_int_equal(engine.notes[3].n_cached, 0);
    other = mixed;
    other.numbers[6][0] = 29; /* the last mark, in the fifth block */
    for (uint32_t i = 0; i < other.n_item; i++)
        other.items[i].data = other.numbers[i];
    ask_items(&other, 4);
    finish_all(4);
    assert_int_equal(engine.notes[4].n_cached, 64 - 16 * (69 / 16 < 4));
    close_core();
}

/* An item through whose middle a block ends: the second half's block is found only with the same
 * whole item. */
static void a_block_ends_in_an_item(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct items_request a = {.n = 0}, b = {.n = 0};
    add_text(&a, 14, 1);
    add_grid(&a, 1);
    add_text(&a, 16, 2);
    add_text(&b, 14, 1);
    add_grid(&b, 2);
    add_text(&b, 16, 2);
    open_core(&c);
    ask_items(&a, 1);
    finish_all(1);
    ask_items(&b, 2);
    finish_all(2);
    ask_items(&a, 3);
    finish_all(3);
    assert_int_equal(engine.notes[2].n_cached, 0);
    assert_int_equal(engine.notes[3].n_cached, 32);
    const struct bits_answer first = answers[1];
    expect(3, &first, "again");
    close_core();
}

/* History with ids that are no tokens: what looks at the history passes over them. */
static void parameters_pass_over_placeholders(void **state)
{
    (void)state;
    struct core_config c = items_config();
    c.worker.speculation = (struct speculation){SPECULATE_NGRAM, 4, 1, 3, ""};
    c.worker.max_num_batched_tokens = 32;
    open_core(&c);
    ask_items(&mixed, 0);
    finish_all(1);
    expect(0, &want, "with n-gram drafts");
    struct msg_submit m = items_submit(&mixed, 1);
    const uint32_t bad_words[] = {2, 11, 12};
    struct q_err e = Q_ERR_INIT;
    m.repetition_penalty = 1.3f;
    m.presence_penalty = m.frequency_penalty = 0.5f;
    m.no_repeat_ngram = 2;
    m.min_tokens = 5;
    m.bad_words = (struct proto_u32s){bad_words, 3};
    m.n_prompt_logprob = 2;
    assert_ok(try_items(&mixed, &m, &e), &e);
    finish_all(2);
    assert_int_equal(answers[1].finish, FINISH_LENGTH);
    assert_int_equal(answers[1].n_prompt, 71);
    for (uint32_t i = 0; i < 71; i++) {
        const struct bits_row *row = &answers[1].prompt[i];
        assert_int_equal(row->position, i + 1);
        assert_true((row->token >= 512) == (row->rank == 0)); /* placeholders have none */
        assert_int_equal(row->n_top, 1);
    }
    assert_int_equal(answers[1].prompt[12].token, GRID_ID);
    close_core();
}

/* ---- refusals ---- */

static void refuse(const struct items_request *r, const char *why)
{
    const struct msg_submit m = items_submit(r, 99);
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = try_items(r, &m, &e);
    if (rc != Q_INVALID || !strstr(e.message, why))
        fail_msg("got %s \"%s\", wanted INVALID with \"%s\"", q_code_name(rc), e.message, why);
}

static void what_is_refused(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct items_request r;
    c.items.n_limit = 1;
    c.items.limits[0] = (struct core_item_limit){"strips", 2};
    open_core(&c);
    r = mixed;
    r.n_item--;
    refuse(&r, "marks: 1 items, but the prompt has 2 placeholders (7)");
    memset(&r, 0, sizeof r);
    add_text(&r, 3, 1);
    add_grid(&r, 1);
    r.n--;
    refuse(&r, "grids: 1 items of 4 rows in total, but the prompt has 3 placeholders (-7)");
    add_id(&r, GRID_ID, 1);
    r.n_item = 0;
    refuse(&r, "prompt has 4 placeholders (-7) of grids, but multi_modal_data has no grids");
    r.n_item = 1;
    r.items[0].dims[0] = 3;
    r.items[0].n_byte = 9 * sizeof(double);
    refuse(&r, "grids[0]: shape [3, 3]");
    r.items[0].modality = "images";
    refuse(&r, "the model has no modality \"images\", it has: grids, strips, marks");
    memset(&r, 0, sizeof r);
    add_grid(&r, 1);
    r.ids[2] = 50;
    add_id(&r, GRID_ID, 1);
    refuse(&r, "grids[0]: its 4 placeholders (-7) are not consecutive: position 2");
    memset(&r, 0, sizeof r);
    add_text(&r, 3, 1);
    add_mark(&r, -1);
    refuse(&r, "a mark is 0 or more");
    *r.numbers[0] = 1.5;
    refuse(&r, "marks[0]: number 0 is 1.5, expected a whole number of 32 bits");
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < 3; i++)
        add_strip(&r, 2, i);
    refuse(&r, "strips: 3 items, expected at most 2");
    memset(&r, 0, sizeof r);
    add_text(&r, 3, 1);
    add_id(&r, (uint32_t)-3, 1);
    refuse(&r, "token id -3 at position 3 is not in the vocabulary (0 … 511)");
    assert_int_equal(core_item_bytes(engine.core), 0);
    ask_items(&mixed, 1); /* and the engine still answers */
    finish_all(1);
    close_core();
}

static void a_model_of_tokens_takes_no_items(void **state)
{
    (void)state;
    struct core_config c = config_of(GOLDENS_DIR "/llama");
    struct items_request r = {.n = 0};
    open_core(&c);
    add_text(&r, 3, 1);
    add_array(&r, "grids", 1, 1, 0);
    refuse(&r, "multi_modal_data: the model takes tokens only");
    r.n_item = 0;
    add_id(&r, GRID_ID, 1);
    refuse(&r, "token id -7 at position 3 is not in the vocabulary (0 … 511)");
    close_core();
}

/* A vocabulary token that is a placeholder is a token where there are no items. */
static void a_placeholder_may_be_a_token(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct items_request r = {.n = 0};
    open_core(&c);
    add_text(&r, 5, 1);
    add_id(&r, MARK_ID, 2);
    ask_items(&r, 1);
    finish_all(1);
    assert_int_equal(answers[1].finish, FINISH_LENGTH);
    close_core();
}

/* Whatever address it comes from: plugin.h promises 16 bytes. */
static void a_plugin_reads_aligned_data(void **state)
{
    static struct items_request r;
    static unsigned char bytes[sizeof(int32_t) + 1];
    const struct core_config c = items_config();
    (void)state;
    memset(&r, 0, sizeof r);
    bytes[1] = 30;
    add_text(&r, 4, 1);
    add_id(&r, MARK_ID, 1);
    r.items[r.n_item++] = (struct item_array){
        .modality = "marks",
        .dtype = ITEM_I32,
        .n_dim = 1,
        .dims = {1},
        .data = bytes + 1,
        .n_byte = sizeof(int32_t),
    };
    open_core(&c);
    ask_items(&r, 0);
    finish_all(1);
    assert_int_equal(answers[0].finish, FINISH_LENGTH);
    close_core();
}

/* An item that the plugin cannot compute ends its request, and no other. */
static void a_failed_item_ends_its_request(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct items_request bad;
    make_mixed(&bad, 666);
    open_core(&c);
    ask_items(&bad, 1);
    ask_items(&mixed, 2);
    finish_all(2);
    assert_int_equal(answers[1].finish, FINISH_ERROR);
    expect(2, &want, "beside a failed one");
    close_core();
}

/* ---- the store ---- */

static void a_full_store_refuses_and_recovers(void **state)
{
    (void)state;
    struct core_config c = items_config();
    struct q_err e = Q_ERR_INIT;
    uint32_t n = 0;
    c.items.store_bytes = 1u << 20;
    c.queue_max = 4096;
    c.worker.n_block = 9;
    open_core(&c);
    uint64_t one = 0;
    for (; n < BITS_REQUESTS - 1; n++) {
        ask_items(&mixed, n);
        one = one ? one : core_item_bytes(engine.core);
    }
    assert_int_equal(core_item_bytes(engine.core), n * one);
    for (uint32_t i = 0; i < n; i += 2)
        assert_true(core_abort(engine.core, 1, i));
    for (uint32_t i = 1; i < n; i += 2)
        assert_true(core_abort(engine.core, 1, i));
    ask_items(&mixed, n); /* takes what they have left */
    assert_int_equal(core_item_bytes(engine.core), one);
    assert_int_equal(core_abort_frontend(engine.core, 1), 1);
    struct items_request big = {.n = 0};
    add_text(&big, 3, 1);
    big.items[0] = (struct item_array){
        .modality = "grids",
        .dtype = ITEM_F32,
        .n_dim = 1,
        .dims = {1u << 19},
        .data = q_calloc(1, 1u << 21),
        .n_byte = 1u << 21,
    };
    big.n_item = 1;
    const struct msg_submit m = items_submit(&big, 1);
    assert_int_equal(try_items(&big, &m, &e), Q_TOO_LARGE);
    q_free((void *)(uintptr_t)big.items[0].data);
    close_core();
}

static void pieces_of_the_store(void **state)
{
    (void)state;
    struct item_store s;
    struct q_err e = Q_ERR_INIT;
    uint64_t offset, seed = 1;
    struct item_need need = {.n_item = 1};
    assert_ok(item_store_init(&s, 1u << 20, &e), &e);
    need.n_byte = (1u << 20) + 1;
    assert_int_equal(item_store_add(&s, &offset, (struct item_owner){1, 1}, &need, &e),
                     Q_TOO_LARGE);
    for (uint64_t i = 1; i < 3000; i++) { /* random sizes; the oldest of eight goes */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        need.n_byte = 1 + (seed >> 40) % 50000;
        need.settled = i > 3 ? i - 3 : 0; /* a step or two are in flight */
        if (i > 8)
            item_store_drop(&s, (struct item_owner){1, i - 8}, i);
        assert_ok(item_store_add(&s, &offset, (struct item_owner){1, i}, &need, &e), &e);
        memset(s.memory + offset, (int)i, need.n_byte);
        item_store_check(&s);
        const struct item_piece *p = item_store_find(&s, (struct item_owner){1, i});
        assert_true(p && p->offset == offset);
        for (uint64_t k = i > 7 ? i - 7 : 1; k <= i; k++) { /* nothing was written over */
            p = item_store_find(&s, (struct item_owner){1, k});
            assert_int_equal(s.memory[p->offset], k & 0xff);
        }
    }
    need.n_byte = 1u << 20;
    need.settled = UINT64_MAX;
    assert_int_equal(item_store_add(&s, &offset, (struct item_owner){2, 1}, &need, &e), Q_NO_SPACE);
    item_store_drop_frontend(&s, 1, 5000);
    need.settled = 4999;
    assert_int_equal(item_store_add(&s, &offset, (struct item_owner){2, 1}, &need, &e), Q_NO_SPACE);
    need.settled = 5000;
    assert_ok(item_store_add(&s, &offset, (struct item_owner){2, 1}, &need, &e), &e);
    item_store_release(&s);
}

/* ---- the table and the wire ---- */

static void a_table_is_checked(void **state)
{
    (void)state;
    const struct step_item good[] = {
        {.offset = 128, .n_byte = 24, .position = 3, .n_token = 4, .n_dim = 2, .dims = {2, 3}},
        {
            .offset = 160,
            .n_byte = 5,
            .position = 7,
            .n_token = 5,
            .modality = 1,
            .dtype = ITEM_U8,
            .n_dim = 1,
            .dims = {5},
        },
    };
    const struct step_item_limits l = {1024, 2, 12};
    struct step_item bad[2];
    struct q_err e = Q_ERR_INIT;
    assert_ok(step_items_check(good, 2, &l, &e), &e);
    assert_int_equal(step_items_from(good, 2, 0), 0);
    assert_int_equal(step_items_from(good, 2, 6), 0);
    assert_int_equal(step_items_from(good, 2, 7), 1);
    assert_int_equal(step_items_from(good, 2, 12), 2);
#define BAD(change)                                                    \
    do {                                                               \
        memcpy(bad, good, sizeof bad);                                 \
        bad[1].change;                                                 \
        assert_int_equal(step_items_check(bad, 2, &l, &e), Q_CORRUPT); \
    } while (0)
    BAD(offset = 1024);
    BAD(offset = UINT64_MAX - 15);
    BAD(offset = 168);
    BAD(n_byte = 6);
    BAD(n_byte = UINT64_MAX);
    BAD(dims[0] = UINT32_MAX);
    BAD(n_dim = 5);
    BAD(dtype = ITEM_NUMBERS);
    BAD(modality = 2);
    BAD(position = 6);
    BAD(position = UINT32_MAX);
    BAD(n_token = 6);
    BAD(n_token = 0);
    BAD(n_token = UINT32_MAX);
#undef BAD
}

static void items_travel(void **state)
{
    (void)state;
    struct item_wire w;
    struct buf frame = BUF_INIT;
    struct arena arena = ARENA_INIT(1u << 24);
    struct msg_submit m = items_submit(&mixed, 5), back;
    struct item_array read[ITEMS_TOP];
    struct q_err e = Q_ERR_INIT;
    uint32_t n = 0;
    assert_ok(item_wire_make(&w, mixed.items, mixed.n_item, &e), &e);
    item_wire_put(&m, &w);
    assert_ok(msg_submit_encode(&m, &frame, &e), &e);
    assert_ok(msg_submit_decode(&back, frame.data, frame.len, &arena, &e), &e);
    assert_ok(item_wire_count(&n, &back, &e), &e);
    assert_int_equal(n, mixed.n_item);
    assert_ok(item_wire_read(read, n, &back, NULL, 0, &e), &e);
    for (uint32_t i = 0; i < n; i++) {
        assert_string_equal(read[i].modality, mixed.items[i].modality);
        assert_int_equal(read[i].n_byte, mixed.items[i].n_byte);
        assert_memory_equal(read[i].data, mixed.items[i].data, read[i].n_byte);
        assert_memory_equal(read[i].dims, mixed.items[i].dims, read[i].n_dim * sizeof(uint32_t));
    }
    struct core_config c = items_config();
    open_core(&c);
    bits_submit(&engine, &back);
    finish_all(1);
    expect(5, &want, "over the wire");
    /* Each of its fields cut or bent is refused. */
    struct msg_submit bad = back;
    bad.item_data.n--;
    assert_int_equal(core_submit(engine.core, 1, &bad, &e), Q_CORRUPT);
    bad = back;
    bad.item_shapes.n--;
    assert_int_equal(core_submit(engine.core, 1, &bad, &e), Q_CORRUPT);
    bad = back;
    bad.item_modalities.n = 7;
    assert_int_equal(core_submit(engine.core, 1, &bad, &e), Q_CORRUPT);
    bad = back;
    bad.item_shapes = (struct proto_u32s){NULL, 0}; /* contents without shapes are nothing */
    assert_int_equal(core_submit(engine.core, 1, &bad, &e), Q_INVALID);
    close_core();
    item_wire_release(&w);
    buf_release(&frame);
    arena_release(&arena);
}

static int setup(void **state)
{
    (void)state;
    items_model();
    make_mixed(&mixed, 1);
    for (uint32_t i = 0; i < mixed.n_item; i++)
        mixed.items[i].data = mixed.numbers[i];
    want = alone(&mixed);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&items_folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_count),
        cmocka_unit_test(any_chunk_gives_the_same_bits),
        cmocka_unit_test(any_batch_gives_the_same_bits),
        cmocka_unit_test(preempted_in_both_ways),
        cmocka_unit_test(the_cache_knows_contents),
        cmocka_unit_test(a_block_ends_in_an_item),
        cmocka_unit_test(parameters_pass_over_placeholders),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_model_of_tokens_takes_no_items),
        cmocka_unit_test(a_placeholder_may_be_a_token),
        cmocka_unit_test(a_plugin_reads_aligned_data),
        cmocka_unit_test(a_failed_item_ends_its_request),
        cmocka_unit_test(a_full_store_refuses_and_recovers),
        cmocka_unit_test(pieces_of_the_store),
        cmocka_unit_test(a_table_is_checked),
        cmocka_unit_test(items_travel),
    };
    log_setup("test", LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, setup, teardown);
}
