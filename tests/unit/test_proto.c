/* SPDX-License-Identifier: Apache-2.0 */
/* The codec, walked over messages.def itself: every message filled at random goes there and back,
 * every shorter frame and every flipped byte is refused or decodes to something without touching
 * memory it should not. */
#include "check.h"
#include <dirent.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/file.h"
#include "common/mem.h"
#include "proto/codec.h"
#include "proto/item_memory.h"
#include "proto/proto.h"
#include "proto/msgpack_reader.h"

static uint64_t random_state = 20240607; /* fixed: a failure repeats */

static uint64_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 11;
}

/* Shapes that reach the branches of msgpack's formats: zero, one byte, two, four, eight. */
static uint64_t random_number(void)
{
    static const uint64_t masks[] = {0, 0x7f, 0xff, 0xffff, 0xffffffff, UINT64_MAX};
    return next_random() * 0x9e3779b97f4a7c15u & masks[next_random() % 6];
}

static size_t random_length(void)
{
    static const size_t lengths[] = {0, 1, 3, 31, 32, 255, 256, 1000};
    return lengths[next_random() % 8];
}

/* Enough bytes for any array, never aligned on purpose. */
static const void *random_bytes(struct arena *a, size_t n)
{
    uint8_t *p = arena_alloc(a, n + 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)next_random();
    return p;
}

static void fill_field(void *m, const struct codec_field *f, struct arena *a)
{
    void *p = (char *)m + f->offset;
    size_t n = random_length();
    switch (f->type) {
    case CODEC_u32:
        *(uint32_t *)p = (uint32_t)random_number();
        break;
    case CODEC_u64:
        *(uint64_t *)p = random_number();
        break;
    case CODEC_f32:
        *(float *)p = (float)(int64_t)(next_random() % 2000) / 7.0f - 100.0f;
        break;
    case CODEC_bool:
        *(bool *)p = next_random() % 2;
        break;
    default:
        /* An empty array is {NULL, 0}; elements of all array types are any bytes. */
        *(struct proto_u64s *)p = (struct proto_u64s){n ? random_bytes(a, n * 8) : NULL, n};
        break;
    }
}

static void fill(void *m, const struct codec_message *cm, struct arena *a)
{
    memset(m, 0, cm->size);
    for (const struct codec_field *f = cm->fields(); f->tag; f++)
        fill_field(m, f, a);
}

static const struct codec_message *find(uint32_t tag)
{
    const struct codec_message *cm = codec_messages;
    while (cm->tag && cm->tag != tag)
        cm++;
    return cm;
}

/* One function per message: there and back, then every truncation. */
#define MSG(tag, name)                                                                       \
    static void test_##name(void **state)                                                    \
    {                                                                                        \
        (void)state;                                                                         \
        for (int i = 0; i < 50; i++) {                                                       \
            struct q_err e = Q_ERR_INIT;                                                     \
            struct arena made = ARENA_INIT(1 << 24), taken = ARENA_INIT(1 << 24);            \
            struct buf frame = BUF_INIT, text = BUF_INIT;                                    \
            struct msg_##name m, back;                                                       \
            fill(&m, find(MSG_##name), &made);                                               \
            assert_ok(msg_##name##_encode(&m, &frame, &e), &e);                              \
            assert_int_equal(proto_peek(frame.data, frame.len), MSG_##name);                 \
            assert_ok(msg_##name##_decode(&back, frame.data, frame.len, &taken, &e), &e);    \
            assert_true(msg_##name##_equal(&m, &back));                                      \
            msg_##name##_print(&back, &text);                                                \
            assert_ok(buf_check(&text, "print", &e), &e);                                    \
            assert_memory_equal(text.data, #name "{", sizeof #name);                         \
            for (size_t n = 0; n < frame.len && i < 3; n++) {                                \
                void *cut = q_alloc(n);                                                      \
                memcpy(cut, frame.data, n);                                                  \
                assert_int_equal(msg_##name##_decode(&back, cut, n, &taken, &e), Q_CORRUPT); \
                q_free(cut);                                                                 \
                arena_reset(&taken);                                                         \
            }                                                                                \
            for (int flip = 0; flip < 200; flip++) {                                         \
                size_t at = next_random() % frame.len;                                       \
                char was = frame.data[at];                                                   \
                frame.data[at] = (char)next_random();                                        \
                if (!msg_##name##_decode(&back, frame.data, frame.len, &taken, &e))          \
                    msg_##name##_print(&back, &text);                                        \
                buf_reset(&text);                                                            \
                arena_reset(&taken);                                                         \
                frame.data[at] = was;                                                        \
            }                                                                                \
            buf_release(&frame);                                                             \
            buf_release(&text);                                                              \
            arena_release(&made);                                                            \
            arena_release(&taken);                                                           \
        }                                                                                    \
    }
#define FIELD(tag, type, name, text)
#define END(name)
#include "proto/messages.def"

static void test_table(void **state)
{
    (void)state;
    uint64_t seen = 0;
    for (const struct codec_message *m = codec_messages; m->tag; m++) {
        uint64_t fields = 0;
        assert_true(m->tag <= 63 && !(seen >> m->tag & 1));
        seen |= UINT64_C(1) << m->tag;
        for (const struct codec_field *f = m->fields(); f->tag; f++) {
            assert_true(f->tag <= CODEC_TAG_MAX && !(fields >> f->tag & 1));
            fields |= UINT64_C(1) << f->tag;
        }
        assert_string_equal(proto_name(m->tag), m->name);
    }
    assert_string_equal(proto_name(0), "?");
    assert_string_equal(proto_name(4000), "?");
}

/* Contents of items are never copied out of their frame, however they lie in it. */
static void test_words_are_borrowed(void **state)
{
    (void)state;
    static const uint64_t words[] = {1, UINT64_MAX, 3};
    struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    for (uint64_t req_id = 1; req_id < UINT32_MAX; req_id <<= 5) { /* of different lengths */
        const struct msg_submit m = {.req_id = req_id, .item_data = {words, 3}};
        struct msg_submit got;
        struct buf b = BUF_INIT;
        assert_ok(msg_submit_encode(&m, &b, &e), &e);
        assert_ok(msg_submit_decode(&got, b.data, b.len, &a, &e), &e);
        assert_int_equal(got.item_data.n, 3);
        assert_memory_equal(got.item_data.data, words, sizeof words);
        assert_true((const char *)got.item_data.data > (const char *)b.data &&
                    (const char *)got.item_data.data < (const char *)b.data + b.len);
        buf_release(&b);
    }
    arena_release(&a);
}

/* A reserved tag is no message's, and no other reserved one's. */
static void test_reserved(void **state)
{
    (void)state;
    static const uint32_t reserved[] = {
#define MSG(tag, name)
#define FIELD(tag, type, name, text)
#define END(name)
#define RESERVED(tag, name, text) tag,
#include "proto/messages.def"
    };
    size_t n = sizeof reserved / sizeof *reserved;
    assert_true(n >= 1);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(proto_name(reserved[i]), "?");
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(reserved[i], reserved[k]);
    }
}

static enum q_code decode_steer(struct msg_control *m, const char *frame, size_t n, struct q_err *e)
{
    struct arena a = ARENA_INIT(1 << 16);
    enum q_code rc = msg_control_decode(m, frame, n, &a, e);
    arena_release(&a);
    return rc;
}
#define STEER(bytes, e) decode_steer(&m, bytes, sizeof bytes - 1, e)

static void test_known_bytes(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct msg_control m;
    assert_ok(STEER("\x92\x0a\x81\x01\x07", &e), &e); /* [10, {1: 7}] */
    assert_int_equal(m.sleep, 7);
    assert_ok(STEER("\x92\x0a\x80", &e), &e); /* nothing in it: 0 */
    assert_int_equal(m.sleep, 0);
    assert_ok(STEER("\x92\x0a\x81\x01\xd2\x00\x00\x01\x00", &e), &e); /* a signed format */
    assert_int_equal(m.sleep, 256);
    assert_ok(STEER("\x92\x0a\x82\x2a\x93\x01\xa1x\x80\x01\x07", &e), &e); /* unknown field 42 */
    assert_int_equal(m.sleep, 7);
    assert_ok(STEER("\x94\x0a\x81\x01\x07\xc0\xc3", &e), &e); /* a newer wire's third element */
    assert_int_equal(m.sleep, 7);
    struct buf out = BUF_INIT;
    assert_ok(msg_control_encode(&(struct msg_control){.sleep = 7}, &out, &e), &e);
    assert_int_equal(out.len, 5);
    assert_memory_equal(out.data, "\x92\x0a\x81\x01\x07", 5);
    buf_release(&out);
}

static void test_refused(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct msg_control m;
    assert_fails(STEER("", &e), Q_CORRUPT, "does not start", &e);
    assert_fails(STEER("\x91\x0a", &e), Q_CORRUPT, "does not start", &e);
    assert_fails(STEER("\x92\x07\x80", &e), Q_CORRUPT, "is a drain", &e);
    assert_fails(STEER("\x92\x63\x80", &e), Q_CORRUPT, "is a ?", &e);
    assert_fails(STEER("\x92\x0a\x81\x01\xa1x", &e), Q_CORRUPT, "found str", &e);
    assert_fails(STEER("\x92\x0a\x81\x01\xff", &e), Q_CORRUPT, "negative", &e);
    assert_fails(STEER("\x92\x0a\x82\x01\x07\x01\x08", &e), Q_CORRUPT, "duplicate", &e);
    assert_fails(STEER("\x92\x0a\x81\x01\xcf\x00\x00\x00\x01\x00\x00\x00\x00", &e), Q_CORRUPT,
                 "32 bits", &e);
    assert_fails(STEER("\x92\x0a\x81\xa1k\x07", &e), Q_CORRUPT, "expected a field tag", &e);
    assert_fails(STEER("\x92\x0a\x80\x00", &e), Q_CORRUPT, "after the message's end", &e);
    assert_fails(STEER("\x92\x0a\xdf\xff\xff\xff\xff\x01\x07", &e), Q_CORRUPT, "end of frame", &e);
    assert_fails(STEER("\x92\x0a\x81\x2a\xdd\xff\xff\xff\xff", &e), Q_CORRUPT, "truncated", &e);
    assert_int_equal(m.sleep, 0);
    struct arena a = ARENA_INIT(1 << 16);
    struct msg_abort ab;
    assert_fails(msg_abort_decode(&ab,
                                  "\x92\x03\x81\x01\xc4\x07"
                                  "1234567",
                                  13, &a, &e),
                 Q_CORRUPT, "not a multiple", &e);
    arena_release(&a);
}

/* A hundred thousand arrays in each other cost neither stack nor time. */
static void test_nesting(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct msg_control m;
    struct buf frame = BUF_INIT;
    buf_add(&frame, "\x92\x0a\x81\x2a", 4);
    for (int i = 0; i < 100000; i++)
        buf_add_char(&frame, '\x91');
    assert_fails(decode_steer(&m, frame.data, frame.len, &e), Q_CORRUPT, "truncated", &e);
    buf_add_char(&frame, '\xc0');
    assert_ok(decode_steer(&m, frame.data, frame.len, &e), &e);
    buf_release(&frame);
}

static void test_limits(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf out = BUF_INIT;
    buf_add_str(&out, "before");
    char *big = q_calloc(1, PROTO_FRAME_MAX + 8);
    struct msg_submit m = {.prompt = {(const uint32_t *)(void *)big, PROTO_ARRAY_MAX + 1}};
    assert_fails(msg_submit_encode(&m, &out, &e), Q_TOO_LARGE, "submit.prompt", &e);
    m.prompt.n = PROTO_ARRAY_MAX; /* 64 MiB exactly, so the frame is larger */
    assert_fails(msg_submit_encode(&m, &out, &e), Q_TOO_LARGE, "exceed the frame limit", &e);
    m = (struct msg_submit){.grammar = {(const uint8_t *)big, PROTO_ARRAY_MAX + 1}};
    assert_fails(msg_submit_encode(&m, &out, &e), Q_TOO_LARGE, "submit.grammar", &e);
    struct msg_drain d = {.reason = {big, PROTO_STR_MAX + 1}};
    assert_fails(msg_drain_encode(&d, &out, &e), Q_TOO_LARGE, "drain.reason", &e);
    assert_string_equal(buf_str(&out), "before");
    struct arena taken = ARENA_INIT(1 << 20);
    struct msg_submit back;
    buf_reset(&out);
    m.grammar.n = 8 << 20; /* as large as a source may be */
    assert_ok(msg_submit_encode(&m, &out, &e), &e);
    assert_ok(msg_submit_decode(&back, out.data, out.len, &taken, &e), &e);
    assert_int_equal(back.grammar.n, 8 << 20);
    arena_release(&taken);
    q_free(big);
    buf_release(&out);
}

/* Every allocation of an encode and a decode fails once. */
static void test_no_memory(void **state)
{
    (void)state;
    struct arena made = ARENA_INIT(1 << 24);
    struct msg_output m, back;
    struct buf frame = BUF_INIT;
    bool done = false;
    fill(&m, find(MSG_output), &made);
    for (int n = 0; !done; n++) {
        struct q_err e = Q_ERR_INIT;
        struct arena taken = ARENA_INIT(1 << 24);
        buf_release(&frame);
        mem_fail_after(n);
        enum q_code rc = msg_output_encode(&m, &frame, &e);
        if (!rc)
            rc = msg_output_decode(&back, frame.data, frame.len, &taken, &e);
        mem_fail_after(-1);
        assert_true(rc == Q_OK || rc == Q_NO_MEMORY);
        done = rc == Q_OK;
        assert_true(!done || msg_output_equal(&m, &back));
        arena_release(&taken);
        assert_true(n < 1000);
    }
    buf_release(&frame);
    arena_release(&made);
}

/* proto/reference.md is generated from messages.def and up to date. */
static void test_reference(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf want = BUF_INIT, found = BUF_INIT;
    proto_reference(&want);
    assert_ok(file_read(&found, "proto/reference.md", 1 << 20, &e), &e);
    if (strcmp(buf_str(&want), buf_str(&found)))
        fail_msg("proto/reference.md is out of date: run proto_reference > proto/reference.md");
    buf_release(&want);
    buf_release(&found);
}

/* Of this process and its child. */
static int count_objects(pid_t child)
{
    char mine[32], its[32];
    int n = 0;
    snprintf(mine, sizeof mine, "quire-items-%d-", (int)getpid());
    snprintf(its, sizeof its, "quire-items-%d-", (int)child);
    DIR *d = opendir("/dev/shm");
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += !strncmp(x->d_name, mine, strlen(mine)) || !strncmp(x->d_name, its, strlen(its));
    closedir(d);
    return n;
}

/* An object is read once, with any name or size. */
static void test_item_memory(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",
        "/",
        "/etc/passwd",
        "/quire-items-",
        "/quire-items-1-0123456789abcde",
        "/quire-items-1-0123456789abcdefg",
        "/quire-items-0-0123456789abcdef",
        "/quire-items--1-0123456789abcdef",
        "/quire-items-1/../x-0123456789abcd",
        "/quire-items-123456789012345678901234567890123456789-0123456789abcdef",
    };
    char name[ITEM_MEMORY_MAX];
    struct q_err e = Q_ERR_INIT;
    void *data = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_fails(item_memory_take(&data, names[i], strlen(names[i]), 8, &e), Q_CORRUPT, "name",
                     &e);
    assert_ok(item_memory_make(name, "12345678", 8, &e), &e);
    assert_fails(item_memory_take(&data, name, strlen(name), 9, &e), Q_CORRUPT, "expected 9", &e);
    assert_int_equal(count_objects(0), 0); /* it is gone, right or wrong */
    assert_ok(item_memory_make(name, "12345678", 8, &e), &e);
    item_memory_sweep(); /* its maker is alive */
    assert_ok(item_memory_take(&data, name, strlen(name), 8, &e), &e);
    assert_memory_equal(data, "12345678", 8);
    q_free(data);
    item_memory_drop(name); /* nothing is there any more */
    pid_t child = fork();   /* one that dies with its object */
    if (child == 0) {
        enum q_code rc = item_memory_make(name, "12345678", 8, &e);
        _exit(rc != Q_OK);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(count_objects(child), 1);
    item_memory_sweep();
    assert_int_equal(count_objects(child), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define MSG(tag, name) cmocka_unit_test(test_##name),
#define FIELD(tag, type, name, text)
#define END(name)
#include "proto/messages.def"
        cmocka_unit_test(test_table),       cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_known_bytes), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nesting),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_reference),
        cmocka_unit_test(test_item_memory), cmocka_unit_test(test_words_are_borrowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
