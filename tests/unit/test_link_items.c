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
    for (; link_may_write(&link_now); n++)
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

static struct msg_item_piece next_piece(void)
{
    static struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    struct msg_item_piece m;
    const struct buf *b = next_frame(MSG_item_piece);
    assert_ok(msg_item_piece_decode(&m, b->data, b->len, &a, &e), &e);
    return m;
}

static void receive(uint64_t req_id, uint64_t n_byte)
{
    GIVE(items_received, {.req_id = req_id, .n_byte = n_byte});
}

/* The engine takes all contents of a submit, piece by piece. */
static void take_pieces(uint64_t req_id, const struct item_wire *want)
{
    const uint64_t n_byte = want->n_data * sizeof *want->data;
    for (uint64_t n = 0; n < n_byte;) {
        write_pieces();
        const struct msg_item_piece p = next_piece();
        assert_true(p.req_id == req_id && p.offset == n);
        assert_true(p.data.n && p.data.n <= ITEM_PIECE_BYTES);
        assert_memory_equal(p.data.data, (const char *)want->data + n, p.data.n);
        n += p.data.n;
        receive(req_id, n);
    }
    assert_true(no_more(MSG_item_piece));
}

/* Over tcp the contents follow their submit, of which no more than the engine has room for is on
 * its way: a neighbour's submit goes behind ITEM_PIECES_AHEAD pieces at most. */
static void test_pieces_hold_nobody_up(void **state)
{
    (void)state;
    struct item_wire few = wire_of(3), many = wire_of((5u << 20) / 16 + 1); /* ten and a rest */
    const uint64_t n_byte = many.n_data * sizeof *many.data;
    link_now.has_memory = false;
    greet(1, 10);
    const struct generation *first = open_two_large(&many);
    open_with(2, &few);
    struct msg_submit m = next_submit();
    assert_true(m.prompt.n == 1 && m.in_pieces && !m.item_data.n && !m.item_memory.n);
    assert_int_equal(m.item_bytes, n_byte);
    const uint64_t req_id = m.req_id;
    m = next_submit(); /* not the second one with many, which waits for the first one's items */
    assert_true(m.prompt.n == 3 && !m.in_pieces);
    read_items(&m, NULL, &few);
    uint64_t n_received = 0;
    for (uint32_t n_sent = 0; n_received < n_byte;) {
        n_sent += write_pieces();
        assert_true(n_sent * ITEM_PIECE_BYTES <= n_received + ITEM_PIECES_AHEAD * ITEM_PIECE_BYTES);
        open_with(3, NULL);
        assert_int_equal(proto_peek(frames[n_frame - 1].data, frames[n_frame - 1].len), MSG_submit);
        link_close(&link_now, &generations[3].generation);
        const struct msg_item_piece p = next_piece();
        assert_true(p.req_id == req_id && p.offset == n_received);
        assert_memory_equal(p.data.data, (const char *)many.data + n_received, p.data.n);
        n_received += p.data.n;
        receive(req_id, n_received);
    }
    assert_true(first->list == &link_now.running && link_may_write(&link_now));
    assert_true(link_now.writing == &generations[1].generation);
    for (uint32_t i = 0; i < 3; i++)
        link_close(&link_now, &generations[i].generation);
    assert_true(!link_now.writing);
    item_wire_release(&few);
    item_wire_release(&many);
}

/* Another engine gets all of it again, also of a generation that was half sent. */
static void test_pieces_are_sent_again(void **state)
{
    (void)state;
    struct item_wire many = wire_of((5u << 20) / 16);
    link_now.has_memory = false;
    greet(1, 10);
    open_two_large(&many);
    struct msg_submit m = next_submit();
    take_pieces(m.req_id, &many);
    m = next_submit();
    assert_int_equal(m.prompt.n, 2);
    write_pieces();
    connected = false; /* a piece that cannot be sent is sent by a later tick */
    receive(m.req_id, ITEM_PIECE_BYTES);
    link_write_items(&link_now);
    assert_true(!link_may_write(&link_now));
    assert_int_equal(link_now.writing->n_item_written, ITEM_PIECES_AHEAD * ITEM_PIECE_BYTES);
    connected = true;
    link_tick(&link_now);
    assert_true(link_may_write(&link_now));
    n_read = n_frame;
    greet(2, 10);
    receive(m.req_id, 2 * ITEM_PIECE_BYTES); /* of the submission before */
    assert_int_equal(link_now.writing->n_item_received, 0);
    for (uint32_t i = 1; i <= 2; i++) {
        m = next_submit();
        assert_int_equal(m.prompt.n, i);
        take_pieces(m.req_id, &many);
    }
    assert_true(!link_now.writing && link_now.running.n == 2);
    greet(3, 10);
    m = next_submit();
    write_pieces();
    give_tokens(m.req_id, 0, prompt, 1, FINISH_STOP); /* the engine does not want the rest */
    assert_int_equal(generations[0].finish, FINISH_STOP);
    m = next_submit();
    GIVE(error, {.req_id = m.req_id, .code = {"INVALID", 7}, .message = {"no", 2}});
    assert_int_equal(generations[1].error, Q_INVALID);
    assert_true(!link_now.writing);
    item_wire_release(&many);
}

static void test_pieces_that_were_not_sent(void **state)
{
    (void)state;
    struct item_wire many = wire_of((5u << 20) / 16);
    link_now.has_memory = false;
    greet(1, 10);
    open_with(0, &many);
    const uint64_t req_id = next_submit().req_id;
    write_pieces();
    receive(req_id, 2 * ITEM_PIECE_BYTES);
    const double before = metric_value(METRIC_FRAMES_DROPPED);
    receive(req_id, ITEM_PIECE_BYTES);
    receive(req_id, (ITEM_PIECES_AHEAD + 1) * ITEM_PIECE_BYTES);
    assert_true(metric_value(METRIC_FRAMES_DROPPED) == before + 2);
    assert_int_equal(link_now.writing->n_item_received, 2 * ITEM_PIECE_BYTES);
    link_close(&link_now, &generations[0].generation);
    item_wire_release(&many);
}

/* Engines that die before all of its items have come did not die of it. */
static void test_half_sent_is_no_suspect(void **state)
{
    (void)state;
    static const uint8_t digest[32];
    static const char death[] = "crash: signal 11";
    struct item_wire many = wire_of((5u << 20) / 16);
    link_now.has_memory = false;
    for (uint64_t instance = 1; instance < 8; instance++) {
        GIVE(hello, {.wire_min = 1,
                     .wire_max = 1,
                     .digest = {digest, 32},
                     .instance = instance,
                     .credit = 10,
                     .max_model_len = 100,
                     .heartbeat_ms = 50,
                     .death = {death, sizeof death - 1}});
        if (instance == 1)
            open_with(0, &many);
        assert_int_equal(next_submit().prompt.n, 1);
        write_pieces();
    }
    assert_int_equal(generations[0].error, Q_OK);
    assert_int_equal(generations[0].generation.n_lost, 0);
    link_close(&link_now, &generations[0].generation);
    item_wire_release(&many);
}

/* Beside a prompt of any length; and not if the frame would be too large. */
static void test_fields_beside_pieces(void **state)
{
    (void)state;
    struct item_wire many = wire_of((2u << 20) / 8);
    const size_t n_prompt = 3u << 20, too_many = 17u << 20;
    uint32_t *ids = q_calloc(too_many, sizeof *ids);
    struct q_err e = Q_ERR_INIT;
    link_now.has_memory = false;
    greet(1, 10);
    struct generation *f = &generations[0].generation;
    *f = (struct generation){.calls = &calls, .prompt = ids, .n_prompt = n_prompt, .items = &many};
    sample_params_default(&f->params);
    assert_ok(link_open(&link_now, f, &e), &e);
    struct arena a = ARENA_INIT(64u << 20);
    struct msg_submit m;
    const struct buf *b = next_frame(MSG_submit);
    assert_ok(msg_submit_decode(&m, b->data, b->len, &a, &e), &e);
    assert_int_equal(m.prompt.n, n_prompt);
    take_pieces(m.req_id, &many);
    arena_release(&a);
    link_close(&link_now, f);
    f->n_prompt = too_many;
    assert_fails(link_open(&link_now, f, &e), Q_TOO_LARGE, "expected at most", &e);
    assert_true(!f->list && !link_now.writing);
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
        TEST(test_pieces_hold_nobody_up),
        TEST(test_pieces_are_sent_again),
        TEST(test_pieces_that_were_not_sent),
        TEST(test_half_sent_is_no_suspect),
        TEST(test_fields_beside_pieces),
        TEST(test_items_have_a_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
