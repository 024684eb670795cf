/* SPDX-License-Identifier: Apache-2.0 */
/* link_items: items of generations on their way to an engine, and what an engine says of them. */
#include "link_run.h"

static struct item_wire wire_of(size_t n_word)
{
    struct item_wire w = ITEM_WIRE_INIT;
    struct q_err e = Q_ERR_INIT;
    double *numbers = q_calloc(n_word, sizeof *numbers);
    numbers[n_word - 1] = 5;
    const struct item_array item = {
        .modality = "actions",
        .dtype = ITEM_NUMBERS,
        .n_dim = 1,
        .dims = {(uint32_t)n_word},
        .data = numbers,
        .n_byte = n_word * sizeof *numbers,
    };
    assert_ok(item_wire_make(&w, &item, 1, &e), &e);
    q_free(numbers);
    return w;
}

static void read_items(const struct msg_submit *m, const void *data, const struct item_wire *want)
{
    struct item_array item;
    struct q_err e = Q_ERR_INIT;
    uint32_t n;
    assert_ok(item_wire_count(&n, m, &e), &e);
    assert_int_equal(n, 1);
    assert_ok(item_wire_read(&item, 1, m, data, m->item_bytes, &e), &e);
    assert_string_equal(item.modality, "actions");
    assert_int_equal(item.n_byte, want->n_data * 8);
    assert_memory_equal(item.data, want->data, item.n_byte);
}

/* As the loop does, one piece after the other. Returns how many. */
static uint32_t write_pieces(void)
{
    uint32_t n = 0;
    for (; link_now.writing; n++)
        link_write_items(&link_now);
    return n;
}

/* Items go with every submission: in the frame, or large ones through shared memory that the engine
 * removes; what it never reads is removed with the generation. */
static void test_items_go_along(void **state)
{
    (void)state;
    struct item_wire few = wire_of(3), many = wire_of(1u << 16);
    struct q_err e = Q_ERR_INIT;
    char unread[ITEM_MEMORY_MAX];
    void *data;
    for (int i = 0; i < 2; i++) {
        generations[i].generation = (struct generation){
            .calls = &calls,
            .prompt = prompt,
            .n_prompt = 3,
            .items = i ? &many : &few,
        };
        sample_params_default(&generations[i].generation.params);
        assert_ok(link_open(&link_now, &generations[i].generation, &e), &e);
    }
    for (uint64_t instance = 1; instance < 4; instance++) { /* an engine, and those after it */
        greet(instance, 10);
        struct msg_submit m = next_submit();
        read_items(&m, NULL, &few);
        assert_int_equal(write_pieces(), 1);
        m = next_submit();
        assert_int_equal(m.item_data.n, 0);
        snprintf(unread, sizeof unread, "%.*s", (int)m.item_memory.n, m.item_memory.data);
        if (instance == 2)
            continue; /* this engine dies before it reads */
        assert_ok(item_memory_take(&data, m.item_memory.data, m.item_memory.n, m.item_bytes, &e),
                  &e);
        read_items(&m, data, &many);
        q_free(data);
        assert_fails(item_memory_take(&data, m.item_memory.data, m.item_memory.n, m.item_bytes, &e),
                     Q_NOT_FOUND, "shared memory", &e);
    }
    connected = false;
    greet(4, 10); /* its submissions cannot be sent */
    assert_int_equal(write_pieces(), 0);
    connected = true;
    greet(5, 10);
    assert_int_equal(write_pieces(), 1);
    struct msg_submit m = next_submit();
    m = next_submit();
    snprintf(unread, sizeof unread, "%.*s", (int)m.item_memory.n, m.item_memory.data);
    link_close(&link_now, &generations[1].generation);
    assert_fails(item_memory_take(&data, unread, strlen(unread), m.item_bytes, &e), Q_NOT_FOUND,
                 "shared memory", &e);
    link_close(&link_now, &generations[0].generation);
    item_wire_release(&few);
    item_wire_release(&many);
}

static void open_with(uint32_t i, const struct item_wire *items)
{
    static const uint32_t ids[] = {1, 2, 3, 4};
    struct q_err e = Q_ERR_INIT;
    generations[i].generation = (struct generation){
        .calls = &calls,
        .prompt = ids,
        .n_prompt = i + 1, /* the frames differ by it */
        .items = items,
    };
    sample_params_default(&generations[i].generation.params);
    assert_ok(link_open(&link_now, &generations[i].generation, &e), &e);
}

/* The first of two generations with large items, none of which is written yet. */
static const struct generation *open_two_large(struct item_wire *many)
{
    const struct generation *first = &generations[0].generation;
    open_with(0, many);
    open_with(1, many);
    assert_true(link_now.writing == first && first->n_item_written == 0);
    return first;
}

/* Large items are written in pieces, between which other generations are submitted; those of one
 * generation at a time, and those of a closed one not at all. */
static void test_large_items_hold_nobody_up(void **state)
{
    (void)state;
    struct item_wire few = wire_of(3), many = wire_of((5u << 20) / 16); /* 2.5 pieces */
    struct q_err e = Q_ERR_INIT;
    void *data;
    greet(1, 10);
    const struct generation *first = open_two_large(&many);
    open_with(2, &few);
    struct msg_submit m = next_submit();
    assert_int_equal(m.prompt.n, 3); /* not behind the items before it */
    for (uint64_t i = 1; i < 3; i++) {
        link_write_items(&link_now);
        assert_int_equal(first->n_item_written, i * LINK_ITEMS_PIECE);
        open_with(3, NULL);
        m = next_submit();
        assert_int_equal(m.prompt.n, 4);
        link_close(&link_now, &generations[3].generation);
    }
    link_write_items(&link_now);
    m = next_submit();
    assert_int_equal(m.prompt.n, 1);
    assert_int_equal(m.item_bytes, many.n_data * 8);
    assert_ok(item_memory_take(&data, m.item_memory.data, m.item_memory.n, m.item_bytes, &e), &e);
    read_items(&m, data, &many);
    q_free(data);
    assert_true(link_now.writing == &generations[1].generation);
    char unread[ITEM_MEMORY_MAX];
    memcpy(unread, link_now.writing->item_memory, sizeof unread);
    open_with(3, &many);
    link_write_items(&link_now);
    link_close(&link_now, &generations[1].generation);
    assert_true(!link_now.writing);
    assert_fails(item_memory_take(&data, unread, strlen(unread), many.n_data * 8, &e), Q_NOT_FOUND,
                 "shared memory", &e);
    link_tick(&link_now); /* the next one */
    assert_int_equal(write_pieces(), 3);
    m = next_submit();
    assert_int_equal(m.prompt.n, 4);
    link_close(&link_now, &generations[0].generation);
    link_close(&link_now, &generations[2].generation);
    link_close(&link_now, &generations[3].generation);
    item_wire_release(&few);
    item_wire_release(&many);
}

/* ---- an engine on another machine ---- */

static uint32_t n_given;

static bool take_block(void *ctx, struct socket_block *block)
{
    if (!keep_frame(ctx, block->bytes + block->start, block->n))
        return false;
    q_free(block);
    n_given++;
    return true;
}

/* Over tcp a large submit becomes a frame in pieces, between which others are submitted, and the
 * socket takes it as it is. */
static void test_large_frames_hold_nobody_up(void **state)
{
    (void)state;
    struct item_wire few = wire_of(3), many = wire_of((5u << 20) / 16); /* 2.5 pieces */
    link_now.has_memory = false;
    link_now.give = take_block;
    n_given = 0;
    greet(1, 10);
    const struct generation *first = open_two_large(&many);
    open_with(2, &few);
    struct msg_submit m = next_submit();
    assert_int_equal(m.prompt.n, 3); /* not behind the items before it */
    link_write_items(&link_now);
    assert_int_equal(first->n_item_written, LINK_ITEMS_PIECE);
    open_with(3, NULL);
    m = next_submit();
    assert_int_equal(m.prompt.n, 4);
    link_write_items(&link_now);
    assert_int_equal(n_given, 0);
    connected = false; /* a frame that cannot be sent is kept */
    link_write_items(&link_now);
    assert_true(n_given == 0 && first->item_block && !first->wire_id);
    connected = true;
    link_tick(&link_now);
    m = next_submit();
    assert_true(n_given == 1 && !first->item_block && m.prompt.n == 1 && m.req_id);
    assert_int_equal(m.item_data.n, many.n_data);
    read_items(&m, NULL, &many);
    greet(2, 10); /* another engine gets all, and first those of the block that is being written */
    assert_true(link_now.writing == &generations[1].generation);
    for (int i = 0; i < 2; i++)
        assert_true(next_submit().prompt.n > 2);
    assert_int_equal(write_pieces(), 6);
    for (uint32_t i = 2; i > 0; i--) {
        m = next_submit();
        assert_int_equal(m.prompt.n, i);
        read_items(&m, NULL, &many);
    }
    assert_int_equal(n_given, 3);
    greet(3, 10); /* closed while it is written */
    const struct generation *last = link_now.writing;
    assert_true(last && last->item_block);
    link_write_items(&link_now);
    for (uint32_t i = 0; i < 4; i++)
        link_close(&link_now, &generations[i].generation);
    assert_true(!link_now.writing && !last->item_block);
    item_wire_release(&few);
    item_wire_release(&many);
}

/* Beside a prompt of any length; and not if the frame would be too large. */
static void test_fields_of_a_large_frame(void **state)
{
    (void)state;
    struct item_wire many = wire_of((2u << 20) / 8);
    const size_t n_prompt = 3u << 20, too_many = 16u << 20;
    uint32_t *ids = q_calloc(too_many, sizeof *ids);
    struct q_err e = Q_ERR_INIT;
    link_now.has_memory = false;
    link_now.give = take_block;
    greet(1, 10);
    struct generation *f = &generations[0].generation;
    *f = (struct generation){.calls = &calls, .prompt = ids, .n_prompt = n_prompt, .items = &many};
    sample_params_default(&f->params);
    assert_ok(link_open(&link_now, f, &e), &e);
    assert_int_equal(write_pieces(), 2);
    struct arena a = ARENA_INIT(64u << 20);
    struct msg_submit m;
    const struct buf *b = next_frame(MSG_submit);
    assert_ok(msg_submit_decode(&m, b->data, b->len, &a, &e), &e);
    assert_int_equal(m.prompt.n, n_prompt);
    read_items(&m, NULL, &many);
    arena_release(&a);
    link_close(&link_now, f);
    f->n_prompt = too_many;
    assert_fails(link_open(&link_now, f, &e), Q_TOO_LARGE, "exceed", &e);
    assert_true(!f->list && !f->item_block);
    q_free(ids);
    item_wire_release(&many);
}

static void test_items_have_a_credit(void **state)
{
    (void)state;
    static const uint8_t digest[32];
    struct item_wire w = wire_of(100);
    struct q_err e = Q_ERR_INIT;
    GIVE(hello, {.wire_min = 1,
                 .wire_max = 1,
                 .digest = {digest, 32},
                 .instance = 1,
                 .credit = 10,
                 .heartbeat_ms = 50,
                 .item_credit = 1700});
    for (int i = 0; i < 3; i++) {
        generations[i].generation = (struct generation){
            .calls = &calls,
            .prompt = prompt,
            .n_prompt = 3,
            .items = &w,
        };
        sample_params_default(&generations[i].generation.params);
        enum q_code rc = link_open(&link_now, &generations[i].generation, &e);
        assert_int_equal(rc, i < 2 ? Q_OK : Q_NO_SPACE);
    }
    link_close(&link_now, &generations[0].generation);
    assert_ok(link_open(&link_now, &generations[2].generation, &e), &e);
    struct item_wire big = wire_of(300);
    generations[3].generation = generations[2].generation;
    generations[3].generation.list = NULL;
    generations[3].generation.wire_id = 0;
    generations[3].generation.items = &big;
    assert_fails(link_open(&link_now, &generations[3].generation, &e), Q_TOO_LARGE,
                 "--mm-processor-cache-gb", &e);
    link_close(&link_now, &generations[1].generation);
    link_close(&link_now, &generations[2].generation);
    item_wire_release(&w);
    item_wire_release(&big);
}

/* ---- what an engine says of items ---- */

static void test_expanded(void **state)
{
    struct msg_submit m;
    const uint32_t at[] = {0, 2}, n[] = {5, 3}, down[] = {2, 0}, far[] = {3, 4}, none[] = {0, 3},
                   huge[] = {90, 10};
    (void)state;
    greet(1, 4);
    open_generation(0);
    m = next_submit();
#define EXPAND(id, a, b) \
    GIVE(expanded,       \
         {.req_id = (id), .positions = {(a), sizeof(a) / 4}, .n_token = {(b), sizeof(b) / 4}})
    EXPAND(m.req_id, down, n);
    EXPAND(m.req_id, far, n);
    EXPAND(m.req_id, at, none);
    EXPAND(m.req_id, at, huge); /* beyond the longest sequence */
    GIVE(expanded, {.req_id = m.req_id, .positions = {at, 2}, .n_token = {n, 1}});
    assert_int_equal(generations[0].n_expanded, 0);
    EXPAND(m.req_id + 1, at, n); /* of no generation */
    EXPAND(m.req_id, at, n);
    assert_int_equal(generations[0].n_expanded, 2);
    assert_memory_equal(generations[0].at, at, sizeof at);
    assert_memory_equal(generations[0].n_token, n, sizeof n);
}

static void test_item_types(void **state)
{
    static const uint8_t digest[32];
    static const struct item_types types = {
        .n = 2,
        .rows =
            {
                {"grids", "grid", (uint32_t)-7, 2, {2, 3}, {0}, 4, 6},
                {"strips", "", 9, 1, {0}, {5}, 0, 8},
            },
    };
    struct item_types_wire w;
    struct msg_hello m = {
        .wire_min = 1,
        .wire_max = 1,
        .digest = {digest, 32},
        .instance = 1,
        .credit = 1,
    };
    struct item_types out;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    item_types_put(&m, &w, &types);
    assert_ok(item_types_read(&out, &m, &e), &e);
    assert_memory_equal(&out, &types, sizeof out);
    GIVE(hello, m);
    assert_memory_equal(&link_engine(&link_now)->item_types, &types, sizeof types);
    for (size_t i = 1; i < m.modalities.n; i++) { /* cut anywhere but between two */
        struct msg_hello cut = m;
        cut.modalities.n = i;
        assert_fails(item_types_read(&out, &cut, &e), Q_CORRUPT, "malformed", &e);
        assert_int_equal(out.n, 0);
    }
    for (size_t i = 1; i < m.modality_names.n; i++) {
        struct msg_hello cut = m;
        cut.modality_names.n = i;
        assert_fails(item_types_read(&out, &cut, &e), Q_CORRUPT, "malformed", &e);
    }
    m.instance = 2; /* an engine that says nonsense takes no parts, and is an engine */
    m.modalities.n = 3;
    GIVE(hello, m);
    assert_int_equal(link_state(&link_now), LINK_UP);
    assert_int_equal(link_engine(&link_now)->item_types.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_expanded),
        TEST(test_item_types),
        TEST(test_items_go_along),
        TEST(test_large_items_hold_nobody_up),
        TEST(test_large_frames_hold_nobody_up),
        TEST(test_fields_of_a_large_frame),
        TEST(test_items_have_a_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
