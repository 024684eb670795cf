/* SPDX-License-Identifier: Apache-2.0 */
/* Submits whose items arrive in pieces, at an engine over tcp:// whose other end is a socket of the
 * test: the answer is that of a submit whose items are in its frame, everything that is promised is
 * bounded, and whatever goes wrong ends one request and leaves nothing. */
#include "items_run.h"
#include "common/clock.h"
#include "engine/server/frontends_internal.h"

#define BLOB_BYTES 600000u /* three pieces; two of them do not fit the store of 1 MB */
#define BLOB_ID    ((uint32_t)-9)

static struct server_config config;
static struct frontends frontends;
static struct socket *listener, *front;
static struct item_wire blob;
static uint32_t prompt[] = {20, 21, 22, BLOB_ID, 23};

static int open_engine(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const struct socket_config at = {.address = "tcp://127.0.0.1:0", .insecure_tcp = true};
    items_model();
    config = (struct server_config){
        .core = items_config(),
        .model_name = "grids",
        .max_frontend_reqs = 4,
        .heartbeat_ms = 1000,
    };
    assert_ok(socket_listen(&listener, &at, &e), &e);
    assert_ok(frontends_init(&frontends, &config, &e), &e);
    assert_ok(core_new(&engine.core, &config.core, frontends_output, &frontends, &e), &e);
    frontends.core = engine.core;
    while (core_state(engine.core, NULL) == CORE_LOADING)
        bits_turn(&engine);
    assert_ok(frontends_ready(&frontends, &e), &e);
    unsigned char *bytes = q_calloc(BLOB_BYTES, 1);
    for (uint32_t i = 0; i < BLOB_BYTES; i++)
        bytes[i] = (unsigned char)(i % 241);
    const struct item_array item = {
        .modality = "blobs",
        .dtype = ITEM_U8,
        .n_dim = 1,
        .dims = {BLOB_BYTES},
        .data = bytes,
        .n_byte = BLOB_BYTES,
    };
    assert_ok(item_wire_make(&blob, &item, 1, &e), &e);
    q_free(bytes);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    socket_free(listener);
    core_free(engine.core);
    frontends_release(&frontends);
    item_wire_release(&blob);
    folder_release(&items_folder);
    return 0;
}

/* ---- the two ends ---- */

/* Hand over what has come to the engine until `n` more frames have. */
static void take_frames(uint32_t n)
{
    struct frontend_address from = {.socket = listener};
    struct pollfd p = {.fd = socket_fd(listener), .events = POLLIN};
    const void *frame;
    size_t n_byte;
    while (n) {
        assert_true(poll(&p, 1, 60000) == 1);
        for (; n && socket_recv(listener, &from.name, &frame, &n_byte); n--)
            frontends_receive(&frontends, &from, frame, n_byte);
    }
}

static void send_frame(struct buf *b)
{
    struct q_err e = Q_ERR_INIT;
    while (socket_send(front, NULL, b->data, b->len, &e) == Q_UNAVAILABLE) { /* not connected yet */
        const void *frame;
        size_t n;
        struct socket_peer peer;
        q_err_reset(&e);
        assert_false(socket_recv(listener, &peer, &frame, &n));
        usleep(1000);
    }
    assert_ok(e.code, &e);
    buf_release(b);
}

#define SAY(name, ...)                                      \
    do {                                                    \
        struct q_err e_ = Q_ERR_INIT;                       \
        struct buf b_ = BUF_INIT;                           \
        const struct msg_##name m_ = __VA_ARGS__;           \
        assert_ok(msg_##name##_encode(&m_, &b_, &e_), &e_); \
        send_frame(&b_);                                    \
        take_frames(1);                                     \
    } while (0)

static uint64_t n_instance;

static int connect_front(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const struct socket_config at = {.address = socket_address(listener), .insecure_tcp = true};
    assert_ok(socket_connect(&front, &at, &e), &e);
    SAY(hello, {.wire_min = 1,
                .wire_max = 1,
                .digest = {frontends.digest, sizeof frontends.digest},
                .instance = ++n_instance});
    assert_int_equal(frontends.n, 1);
    return 0;
}

static int disconnect_front(void **state)
{
    (void)state;
    SAY(drain, {.reason = {"test", 4}});
    frontends_sweep(&frontends);
    assert_int_equal(frontends.n, 0);
    assert_null(frontends.uploads.first);
    assert_int_equal(frontends.uploads.n_byte, 0);
    frontends.draining = false;
    socket_free(front);
    return 0;
}

/* The next message of this kind to the frontend; the engine goes on meanwhile. */
static struct msg_error error_now;
static struct msg_output output_now;
static struct msg_items_received received_now;

static void next_message(uint32_t tag)
{
    static struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    const int64_t until = clock_ms() + 60000;
    const void *frame;
    size_t n;
    for (; clock_ms() < until; usleep(200)) {
        assert_ok(core_step(engine.core, &e), &e);
        while (socket_recv(front, NULL, &frame, &n)) {
            const uint32_t found = proto_peek(frame, n);
            if (found != tag)
                continue;
            if (tag == MSG_error)
                assert_ok(msg_error_decode(&error_now, frame, n, &a, &e), &e);
            else if (tag == MSG_output)
                assert_ok(msg_output_decode(&output_now, frame, n, &a, &e), &e);
            else
                assert_ok(msg_items_received_decode(&received_now, frame, n, &a, &e), &e);
            return;
        }
    }
    fail_msg("no %s came", proto_name(tag));
}

static void expect_error(uint64_t req_id, const char *code, const char *part)
{
    next_message(MSG_error);
    assert_int_equal(error_now.req_id, req_id);
    assert_memory_equal(error_now.code.data, code, error_now.code.n);
    char message[Q_MESSAGE_MAX];
    snprintf(message, sizeof message, "%.*s", (int)error_now.message.n, error_now.message.data);
    if (!strstr(message, part))
        fail_msg("\"%s\" has no \"%s\"", message, part);
}

/* ---- requests ---- */

static struct msg_submit ask(uint64_t req_id)
{
    struct msg_submit m = {
        .req_id = req_id,
        .prompt = {prompt, sizeof prompt / sizeof *prompt},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 4,
        .ignore_eos = true,
        .no_prefix_cache = true,
    };
    item_wire_put(&m, &blob);
    return m;
}

static struct msg_submit ask_in_pieces(uint64_t req_id)
{
    struct msg_submit m = ask(req_id);
    m.item_data.n = 0;
    m.item_bytes = blob.n_data * sizeof *blob.data;
    m.in_pieces = true;
    return m;
}

static void say_piece(uint64_t req_id, uint64_t offset, size_t n)
{
    SAY(item_piece,
        {.req_id = req_id, .offset = offset, .data = {(const uint8_t *)blob.data + offset, n}});
}

static void say_all(uint64_t req_id)
{
    const uint64_t n_byte = blob.n_data * sizeof *blob.data;
    for (uint64_t at = 0; at < n_byte; at += ITEM_PIECE_BYTES) {
        const uint64_t left = n_byte - at;
        say_piece(req_id, at, left < ITEM_PIECE_BYTES ? left : ITEM_PIECE_BYTES);
        next_message(MSG_items_received);
        assert_true(received_now.req_id == req_id);
        assert_int_equal(received_now.n_byte,
                         at + (left < ITEM_PIECE_BYTES ? left : ITEM_PIECE_BYTES));
    }
}

static void take_tokens(uint64_t req_id, uint32_t tokens[4])
{
    for (uint32_t n = 0; n < 4; n += (uint32_t)output_now.tokens.n) {
        next_message(MSG_output);
        assert_true(output_now.req_ids.n == 1 && output_now.req_ids.data[0] == req_id);
        assert_true(n + output_now.tokens.n <= 4);
        memcpy(tokens + n, output_now.tokens.data, output_now.tokens.n * sizeof *tokens);
        if (!output_now.tokens.n)
            fail_msg("the request ended with %u tokens", n);
    }
}

static uint32_t n_open(void)
{
    return frontends.frontends[0].n_open;
}

static void pieces_have_the_answer_of_a_frame(void **state)
{
    (void)state;
    uint32_t want[4], got[4];
    SAY(submit, ask(1));
    take_tokens(1, want);
    SAY(submit, ask_in_pieces(2));
    assert_int_equal(n_open(), 1);
    say_all(2);
    assert_null(frontends.uploads.first);
    take_tokens(2, got);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(n_open(), 0);
}

static void promises_are_bounded(void **state)
{
    (void)state;
    uint32_t tokens[4];
    SAY(submit, ask_in_pieces(1));
    SAY(submit, ask_in_pieces(2));
    expect_error(2, "NO_SPACE", "--mm-processor-cache-gb");
    struct msg_submit m = ask_in_pieces(3);
    m.item_bytes = 2u << 20;
    SAY(submit, m);
    expect_error(3, "TOO_LARGE", "expected at most 1048576");
    m.item_bytes = UINT64_MAX - 7;
    SAY(submit, m);
    expect_error(3, "TOO_LARGE", "expected at most 1048576");
    m.item_bytes = 8; /* not what the shapes make */
    SAY(submit, m);
    expect_error(3, "CORRUPT", "contents are cut");
    m.item_bytes = 0;
    SAY(submit, m);
    expect_error(3, "CORRUPT", "in pieces");
    m = ask_in_pieces(3);
    m.item_data = (struct proto_words){blob.data, 1};
    SAY(submit, m);
    expect_error(3, "CORRUPT", "no other contents");
    SAY(submit, ask_in_pieces(1));
    expect_error(1, "CORRUPT", "exists already");
    say_all(1);
    take_tokens(1, tokens);
    assert_int_equal(n_open(), 0);
}

static void wrong_pieces_end_their_request(void **state)
{
    (void)state;
    const uint64_t n_bad = frontends.n_bad_frame, n_byte = blob.n_data * sizeof *blob.data;
    SAY(submit, ask_in_pieces(1));
    say_piece(1, 8, 8);
    expect_error(1, "CORRUPT", "expected at most 262144 at 0");
    say_piece(1, 0, 8); /* of no request any more: skipped */
    assert_int_equal(frontends.n_bad_frame, n_bad + 1);
    SAY(submit, ask_in_pieces(2));
    say_piece(2, 0, ITEM_PIECE_BYTES + 8);
    expect_error(2, "CORRUPT", "262152 bytes at 0");
    SAY(submit, ask_in_pieces(3));
    say_piece(3, 0, 0);
    expect_error(3, "CORRUPT", "0 bytes at 0");
    SAY(submit, ask_in_pieces(4));
    for (uint64_t at = 0; at + ITEM_PIECE_BYTES <= n_byte; at += ITEM_PIECE_BYTES)
        say_piece(4, at, ITEM_PIECE_BYTES);
    const uint64_t at = n_byte / ITEM_PIECE_BYTES * ITEM_PIECE_BYTES;
    say_piece(4, at, n_byte - at - 8);
    SAY(item_piece, {.req_id = 4, .offset = n_byte - 8, .data = {(const uint8_t *)blob.data, 16}});
    expect_error(4, "CORRUPT", "16 bytes at");
    assert_int_equal(n_open(), 0);
    assert_int_equal(frontends.uploads.n_byte, 0);
}

static void what_has_begun_is_given_up(void **state)
{
    (void)state;
    uint64_t id = 1;
    SAY(submit, ask_in_pieces(id));
    say_piece(id, 0, ITEM_PIECE_BYTES);
    SAY(abort, {.req_ids = {&id, 1}});
    assert_true(!frontends.uploads.first && n_open() == 0);
    SAY(submit, ask_in_pieces(2));
    frontends_end_silent_uploads(&frontends, clock_ms() + UPLOAD_SILENT_MS / 2);
    assert_non_null(frontends.uploads.first);
    frontends_end_silent_uploads(&frontends, clock_ms() + UPLOAD_SILENT_MS + 1000);
    expect_error(2, "TIMEOUT", "no bytes were received");
    assert_int_equal(n_open(), 0);
    SAY(submit, ask_in_pieces(3));
    frontends_drain(&frontends, "the engine stops");
    expect_error(3, "UNAVAILABLE", "shutting down");
    SAY(submit, ask_in_pieces(4));
    expect_error(4, "UNAVAILABLE", "shutting down");
    frontends.draining = false;
    SAY(submit, ask_in_pieces(5)); /* its frontend goes: disconnect_front */
    say_piece(5, 0, ITEM_PIECE_BYTES);
}

#define UPLOAD(name) cmocka_unit_test_setup_teardown(name, connect_front, disconnect_front)

int main(void)
{
    const struct CMUnitTest tests[] = {
        UPLOAD(pieces_have_the_answer_of_a_frame),
        UPLOAD(promises_are_bounded),
        UPLOAD(wrong_pieces_end_their_request),
        UPLOAD(what_has_begun_is_given_up),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
